//! A capture's way through the core: which frames and timers are of connections that are captured.

use crate::base::callbacks::SelectServer;
use crate::base::output::{NextHops, Output};
use crate::capture::{Facts, Interrupted, Tap, Whose};
use crate::proxy::{Incoming, Proxy, Rooms};
use crate::session::connection::Connection;
use crate::session::endpoints::Endpoints;
use crate::session::phase::Phase;
use crate::session::segment::Segment;
use crate::session::table::FlowRef;
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::wire::tcp::TcpFlags;
use netfcts::Side;
use std::ops::Range;

/// Places that a round looks at for open connections that a new capture is of.
const CHOSEN_PER_ROUND: usize = super::visit::LOOKED_AT_PER_ROUND;

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// Goes on with another tap, or none, and returns the one before.
    pub fn swap_tap(&mut self, tap: Option<Box<Tap>>) -> Option<Box<Tap>> {
        std::mem::replace(&mut self.rooms.emit.tap, tap)
    }

    /// Captures the open connections in the next of `places` that the capture is of; a round's part of them.
    pub fn choose_open(&mut self, places: &mut Range<u32>) {
        let Some(tap) = &mut self.rooms.emit.tap else { return };
        for slot in places.by_ref().take(CHOSEN_PER_ROUND) {
            // Those that have begun since the tap is there have been chosen, or not.
            if let Some(connection) = self.connections.get(slot).filter(|_| !tap.has(slot)) {
                let ends = &connection.ends;
                let key = ends.key(&self.rooms.settings, &self.rooms.borrowed, Side::Client);
                let hash = key.map_or(0, |key| self.rooms.flows.hash(&key));
                let of = (ends.client_address(), connection.listener);
                tap.choose_open(slot, of, ends.leg.map(|leg| leg.server), hash);
            }
        }
    }

    /// As the plain way, and each frame of a captured connection begins a group.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_tapped(
        &mut self,
        buffers: ArrayVec<P::Buffer, BURST>,
        segments: &mut [Segment],
        out: &mut impl Output<P::Buffer>,
    ) {
        for (buffer, segment) in buffers.into_iter().zip(segments) {
            let found = self.find(segment);
            let is_captured = self.begin_group(found, segment, buffer.data());
            match self.verify(segment, buffer.data()) {
                Ok(()) => self.handle_found(found, Incoming { buffer, segment }, out),
                Err(reason) => self.rooms.emit.dropped(reason),
            }
            if is_captured {
                self.end_group(found);
            }
        }
    }

    /// Begins the group of a frame, if it is of a connection that is captured.
    #[inline]
    fn begin_group(&mut self, found: Option<FlowRef>, segment: &Segment, frame: &[u8]) -> bool {
        let is_captured = match (&self.rooms.emit.tap, found) {
            (None, _) => false,
            (Some(tap), Some(flow)) if !flow.is_time_wait() => tap.has(flow.slot()),
            (Some(tap), Some(flow)) => {
                // A SYN where a connection rests is the first of another.
                tap.has_resting(flow.slot()) || segment.has(TcpFlags::SYN) && self.may_want(segment)
            }
            (Some(_), None) => self.may_want(segment),
        };
        if is_captured {
            self.open_group(found, segment, frame);
        }
        is_captured
    }

    #[inline]
    fn may_want(&self, segment: &Segment) -> bool {
        let tap = self.rooms.emit.tap.as_ref();
        tap.is_some_and(|tap| tap.is_drawn(segment.hash)) && self.may_want_drawn(segment)
    }

    #[inline(never)]
    fn may_want_drawn(&self, segment: &Segment) -> bool {
        let address = self.rooms.settings.addresses.index(segment.key.local);
        let listener = address.and_then(|address| self.rooms.listener(address, segment));
        let tap = self.rooms.emit.tap.as_ref();
        listener
            .zip(tap)
            .is_some_and(|(listener, tap)| tap.may_want(segment.key.remote, listener, segment.hash))
    }

    #[inline(never)]
    fn open_group(&mut self, found: Option<FlowRef>, segment: &Segment, frame: &[u8]) {
        let side = found.map_or(Side::Client, FlowRef::side);
        let (whose, ends) = match found {
            None => (Whose::Stranger, None),
            Some(flow) if flow.is_time_wait() => {
                let rested = self.rooms.time_wait.entry(flow.slot());
                (Whose::Resting, rested.map(|rested| rested.ends))
            }
            Some(flow) => {
                let connection = self.connections.get(flow.slot());
                (Whose::Open(flow.slot()), connection.map(|connection| connection.ends))
            }
        };
        let hash = match ends.filter(|_| side == Side::Server) {
            Some(ends) => self.rooms.hash_of_client(&ends),
            None => segment.hash,
        };
        let now = self.rooms.now;
        if let Some(tap) = &mut self.rooms.emit.tap {
            tap.begin(hash, whose, now);
            tap.note_received(side, segment.device, frame);
        }
    }

    #[inline(never)]
    fn end_group(&mut self, found: Option<FlowRef>) {
        let current = self.rooms.emit.tap.as_ref().and_then(|tap| tap.current());
        let facts = match (current, found) {
            (Some(slot), _) => self.facts(slot),
            (None, Some(flow)) if flow.is_time_wait() => self.facts_at_rest(flow),
            (None, _) => None,
        };
        if let Some(tap) = &mut self.rooms.emit.tap {
            tap.end(facts);
        }
    }

    /// It is the turn of the connection in `slot`; whether that is captured.
    #[inline(never)]
    pub(super) fn begin_turn(&mut self, slot: u32) -> (Interrupted, bool) {
        let Rooms {
            emit,
            now,
            settings,
            borrowed,
            flows,
            ..
        } = &mut self.rooms;
        let Some(tap) = &mut emit.tap else {
            return (Interrupted::Nothing, false);
        };
        let connection = self.connections.get(slot);
        let key = || connection.and_then(|connection| connection.ends.key(settings, borrowed, Side::Client));
        let interrupted = tap.enter(slot, *now, || key().map_or(0, |key| flows.hash(&key)));
        (interrupted, tap.current() == Some(slot))
    }

    /// The turn that has begun with `interrupted` is over.
    #[cold]
    #[inline(never)]
    pub(super) fn end_turn(&mut self, slot: u32, interrupted: Interrupted) {
        if matches!(interrupted, Interrupted::Nothing) {
            return;
        }
        let facts = self.facts(slot);
        if let Some(tap) = &mut self.rooms.emit.tap {
            tap.leave(interrupted, facts);
        }
    }

    fn facts(&self, slot: u32) -> Option<Facts> {
        let connection: &Connection = self.connections.get(slot)?;
        let ends = &connection.ends;
        let offsets = connection.spliced().map(|spliced| {
            [
                spliced.client_seq_offset,
                spliced.server_seq_offset,
                spliced.client_ts_offset,
                spliced.server_ts_offset,
            ]
        });
        Some(Facts {
            slot,
            phase: connection.phase(),
            client: ends.client,
            client_port: ends.client_port,
            listener: Some(connection.listener),
            server: ends.leg.map(|leg| leg.server),
            rule: self.rooms.emit.tap.as_ref().and_then(|tap| tap.rule(slot)),
            offsets,
        })
    }

    fn facts_at_rest(&self, flow: FlowRef) -> Option<Facts> {
        let rested = self.rooms.time_wait.entry(flow.slot())?;
        Some(Facts {
            slot: flow.slot(),
            phase: Phase::TimeWait,
            client: rested.ends.client,
            client_port: rested.ends.client_port,
            listener: None,
            server: rested.ends.leg.map(|leg| leg.server),
            rule: None,
            offsets: Some([
                rested.client_seq_offset,
                rested.server_seq_offset,
                rested.client_ts_offset,
                rested.server_ts_offset,
            ]),
        })
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// What is sent now is for a client that has no connection yet.
    pub(super) fn begin_strangers_group(&mut self, hash: u64, client: u128, listener: u16) {
        if let Some(tap) = &mut self.emit.tap
            && tap.may_want(client, listener, hash)
        {
            tap.begin(hash, Whose::Stranger, self.now);
        }
    }

    /// It was sent.
    pub(super) fn end_strangers_group(&mut self) {
        if let Some(tap) = &mut self.emit.tap {
            tap.end(None);
        }
    }

    pub(super) fn hash_of_client(&self, ends: &Endpoints) -> u64 {
        let key = ends.key(&self.settings, &self.borrowed, Side::Client);
        key.map_or(0, |key| self.flows.hash(&key))
    }
}
