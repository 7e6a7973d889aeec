//! Memory for held bytes is short: copies are given up, and only when there are none connections that have asked for more
//! (DESIGN: decision 28).
//!
//! Bytes without an ACK are the client's: it repeats them. So the copy of a connection whose server is called is worth one
//! retransmission time-out of its client, and not the connection.

use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::base::settings::SendProxyFields;
use crate::proxy::Proxy;
use crate::proxy_header::send_proxy;
use crate::reassembly::{BufferId, EvictionClass, Owner, ReassemblyError};
use crate::session::connection::{Opening, Stage};
use crate::session::event::Event;
use crate::session::phase::Phase;
use e2d2::buffer::BufferPool;
use netfcts::record::RecordFlags;

/// How many give way at most when someone new is held: one more than comes, so that the pressure ends.
const GIVE_WAY_AT_ONCE: usize = 2;

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// Keeps bytes of a client, the first of which is the `offset`-th of its stream, and sees that others find room after it.
    ///
    /// # Errors
    /// Why they are dropped; the client repeats them.
    pub(super) fn keep_held(
        &mut self,
        slot: u32,
        offset: usize,
        bytes: &[u8],
        out: &mut impl Output<P::Buffer>,
    ) -> Result<(), DropReason> {
        let connection = self.connections.get(slot).ok_or(DropReason::UnknownFlow)?;
        let is_called = connection.phase == Phase::ServerSynSent;
        let share = self.share_of(slot, connection);
        let owner = Owner { slot, share };
        let mut kept = self.insert_held(offset, bytes, owner, is_called);
        if kept == Err(ReassemblyError::Exhausted) && !is_called {
            self.empty_chunk(slot, out);
            kept = self.insert_held(offset, bytes, owner, is_called);
        }
        match kept {
            Ok(_) if is_called => self.claim_of_called(slot),
            Ok(_) => self.relieve(slot, out),
            Err(ReassemblyError::ShareUsed) => return Err(DropReason::ReassemblyQuota),
            Err(ReassemblyError::Exhausted) => return Err(DropReason::ReassemblyFull),
            Err(ReassemblyError::BeyondWindow) => return Err(DropReason::OutOfWindow),
            Err(ReassemblyError::TooManyHoles) => return Err(DropReason::TooManyHoles),
        }
        Ok(())
    }

    /// For a connection whose server is called there is room only while nobody has to give way.
    fn insert_held(
        &mut self,
        offset: usize,
        bytes: &[u8],
        owner: Owner,
        is_called: bool,
    ) -> Result<bool, ReassemblyError> {
        let Some(Stage::Opening(opening)) = self
            .connections
            .get_mut(owner.slot)
            .map(|connection| &mut connection.stage)
        else {
            return Ok(false);
        };
        let acknowledged = (opening.acknowledged - opening.first_byte()).max(0) as usize;
        if is_called && self.reassembly.is_pressed() && offset + bytes.len() > acknowledged {
            return Err(ReassemblyError::Exhausted);
        }
        self.reassembly.insert(&mut opening.held, offset, bytes, owner)
    }

    pub(super) fn is_called(&self, slot: u32) -> bool {
        self.connections
            .get(slot)
            .is_some_and(|connection| connection.phase == Phase::ServerSynSent)
    }

    /// While the memory is nearly full: those who have waited longest give way, copies first, unless nobody else waits.
    fn relieve(&mut self, but: u32, out: &mut impl Output<P::Buffer>) {
        for _ in 0..GIVE_WAY_AT_ONCE {
            if !self.reassembly.is_pressed() {
                return;
            }
            let others = |longest: &u32| *longest != but;
            if let Some(longest) = self.reassembly.longest(EvictionClass::Unacked).filter(others) {
                self.drive(self.now, longest, Event::UnackedEvicted, None, out);
            } else if let Some(longest) = self.reassembly.longest(EvictionClass::Acked).filter(others) {
                self.emit.dropped(DropReason::ConnectionEvicted);
                self.drive(self.now, longest, Event::ConnectionEvicted, None, out);
            } else {
                return;
            }
        }
    }

    /// There is no block of the size that is needed, though there may be small ones: all copies beside the longest-waiting
    /// give way.
    #[cold]
    fn empty_chunk(&mut self, but: u32, out: &mut impl Output<P::Buffer>) {
        for slot in self.reassembly.beside_longest() {
            if slot != but {
                self.drive(self.now, slot, Event::UnackedEvicted, None, out);
            }
        }
        self.relieve(but, out);
    }

    /// Forgets what is held beyond what the client has been told to have arrived, and a FIN behind it.
    pub(crate) fn give_up_copy(&mut self, slot: u32) {
        let is_kept_elsewhere = !self.is_called(slot) || self.keep_found_fields(slot);
        let Some(opening) = self.opening_mut(slot).map(|opening| *opening) else {
            return;
        };
        let (mut held, acknowledged) = (opening.held, acknowledged_len(&opening));
        if !is_kept_elsewhere || !self.reassembly.shorten(&mut held, acknowledged) {
            // Not to be asked again.
            return self.reassembly.set_claim(held, EvictionClass::Pinned);
        }
        let Some(opening) = self.opening_mut(slot) else { return };
        opening.held = if held.is_none() { BufferId::GIVEN_UP } else { held };
        if usize::from(opening.fin_offset) > acknowledged {
            opening.fin_offset = Opening::NO_FIN;
        }
        self.emit.dropped(DropReason::ReassemblyEvicted);
        self.records.flag(slot, RecordFlags::COPY_GIVEN_UP);
    }

    /// Keeps what the server's PROXY header is to say of the bytes. Returns false if there is no room for that.
    fn keep_found_fields(&mut self, slot: u32) -> bool {
        if self.headers.payload_fields == SendProxyFields::default() {
            return true;
        }
        let Some(connection) = self.connections.get(slot) else {
            return false;
        };
        let Some(opening) = connection.opening() else {
            return false;
        };
        let Some(found) = send_proxy::found(
            &self.settings,
            self.headers.payload_fields,
            self.reassembly.in_order(opening.held),
        ) else {
            return false;
        };
        let client = (connection.client_address(), connection.client_port);
        let address = self.settings.addresses.value(connection.listener_address);
        let ends = [client, (address, connection.listener_port)];
        // What was found the first time stands, if they are given up again before they were whole.
        found.is_empty() || self.headers.received.keep_found(slot, &found, ends)
    }

    /// What can be done about the bytes of a connection whose server is called: those without an ACK can be given up, if the
    /// others fit a smaller block.
    pub(super) fn claim_of_called(&mut self, slot: u32) {
        let Some(opening) = self.opening_mut(slot).map(|opening| *opening) else {
            return;
        };
        let is_copy = self
            .reassembly
            .is_smaller_without_rest(opening.held, acknowledged_len(&opening));
        let claim = if is_copy {
            EvictionClass::Unacked
        } else {
            EvictionClass::Pinned
        };
        self.reassembly.set_claim(opening.held, claim);
    }

    /// Bytes of the connection have been acknowledged.
    pub(super) fn renew_claim(&mut self, slot: u32) {
        if self.is_called(slot) {
            return self.claim_of_called(slot);
        }
        if let Some(opening) = self.opening_mut(slot).map(|opening| *opening)
            && acknowledged_len(&opening) > 0
        {
            self.reassembly.set_claim(opening.held, EvictionClass::Acked);
        }
    }
}

/// How many of the client's bytes are acknowledged.
fn acknowledged_len(opening: &Opening) -> usize {
    (opening.acknowledged - opening.first_byte()).max(0) as usize
}
