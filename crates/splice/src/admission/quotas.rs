//! Limits of connections: of listeners, classes, pools, and of each client.
//!
//! A connection is counted when its handshake is complete, so forged SYNs are not counted. Listener, class and client are known
//! then; the pool is counted when it is chosen. Each connection keeps what it was counted for, and its end takes back exactly that,
//! also when a reload has changed the limits meanwhile.
//!
//! **Clients that are prefixes.** Each address of the prefix may have at most as many connections as the prefix has left, and
//! likewise of its rate: a single address gets at most half. The last quarter of the limit is for known addresses, those that
//! still have a [place](crate::base::client_counts) from an earlier connection; each gets one connection for eight that are left.
//! So one address, or any number of new ones, cannot take a /64's limit from its other addresses.

mod shared;

use crate::base::callbacks::Refusal;
use crate::base::client_counts::{ClientCounts, ClientKey, ClientLines, ClientPlace};
use crate::base::limit::{ClientLimit, Limit, Limited, Limits};
use crate::base::meter::CoreMeters;
use arrayvec::ArrayVec;
use e2d2::time::Instant;
use netfcts::leg::is_mapped;
use shared::Shared;
use std::sync::Arc;

/// Ends that a core keeps to itself, at most until the next beginning or the end of the batch.
const MOST_LEAVING: usize = 64;

/// Bits in front of the IPv4 address in its mapped form (RFC 4291 2.5.5.2).
const MAPPED_BITS: u8 = 96;

const ADDRESS_BITS: u8 = 128;

/// A client's limit divided by this is kept for known addresses.
const KEPT_FOR_KNOWN: u64 = 4;

/// A known address may have what is left divided by this.
const LEFT_FOR_EACH: u64 = 8;

/// The client of a connection that is to be counted, and what it connects to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applicant {
    /// The listener's number.
    pub(crate) listener: u16,
    /// The client's class, if it has one.
    pub(crate) class: Option<u16>,
    /// The client's address; IPv4 in its mapped form.
    pub(crate) address: u128,
    /// Clients are prefixes of more than one address.
    is_prefix: bool,
    /// Where it is counted, if the listener's clients have a limit.
    client: Option<ClientLines>,
}

/// The limit that a connection exceeds, and how the connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    pub(crate) of: Limited,
    pub(crate) refusal: Refusal,
}

/// What a connection is counted for: each number plus one, 0 for none, as in zeroed memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted([u32; 4]);

const CLIENT: usize = 0;
const ADDRESS: usize = 1;
const POOL: usize = 2;
/// The class, and a bit for the listener.
const CLASS: usize = 3;
const LISTENER_BIT: u32 = 1 << 31;

impl Counted {
    #[inline]
    fn new((client, address): (Option<ClientPlace>, Option<ClientPlace>), class: Option<u16>, listener: bool) -> Self {
        let number = |place: Option<ClientPlace>| place.map_or(0, ClientPlace::number);
        let class = class.map_or(0, |class| u32::from(class) + 1);
        Counted([
            number(client),
            number(address),
            0,
            class | if listener { LISTENER_BIT } else { 0 },
        ])
    }

    /// The places of its client and of its address.
    fn places(self) -> impl Iterator<Item = ClientPlace> {
        [CLIENT, ADDRESS]
            .into_iter()
            .filter_map(move |word| ClientPlace::of_number(self.0[word]))
    }

    fn pool(self) -> Option<u16> {
        self.0[POOL].checked_sub(1).map(|pool| pool as u16)
    }

    fn class(self) -> Option<u16> {
        (self.0[CLASS] & !LISTENER_BIT).checked_sub(1).map(|class| class as u16)
    }

    fn is_of_listener(self) -> bool {
        self.0[CLASS] & LISTENER_BIT != 0
    }
}

/// What one core has counted.
pub(crate) struct Quotas {
    clients: Arc<ClientCounts>,
    /// By slot: that of a [`Counted`].
    counted: Box<[[u32; 4]]>,
    /// Whether anything was counted since the start.
    are_used: bool,
    /// Whether a pool was.
    have_pools: bool,
    /// Places of clients one of whose connections has ended, which the table of all cores does not know yet: an atomic subtraction
    /// waits for all stores before it, and for the line, which is asked for meanwhile.
    leaving: ArrayVec<ClientPlace, MOST_LEAVING>,
}

impl Quotas {
    /// Room for this many connections, whose memory is taken now if it is used from the start; the counts of clients are shared by all
    /// cores.
    pub(crate) fn new((connections, is_used): (usize, bool), clients: Arc<ClientCounts>) -> Self {
        let mut counted = bytemuck::zeroed_slice_box(connections);
        if is_used {
            e2d2::memory::take_in_large_pages(&mut counted);
        }
        Quotas {
            clients,
            counted,
            are_used: false,
            have_pools: false,
            leaving: ArrayVec::new(),
        }
    }

    /// Bytes of this core's memory, once all of it was touched.
    pub(crate) fn memory(&self) -> usize {
        if self.are_used { size_of_val(&*self.counted) } else { 0 }
    }

    /// The client with this address, at this listener and in this class. Asks the processor for what is read of it when it is counted.
    ///
    /// Inlined, so that what it returns is not copied: a copy in wider pieces than were written waits for all stores before it.
    #[inline(always)]
    pub(crate) fn applicant(&self, limits: &Limits, (listener, class): (u16, Option<u16>), address: u128) -> Applicant {
        let bits = limits.of_clients(listener).map(|of_each| bits_of(of_each, address));
        let client = bits.map(|bits| {
            let behind = u32::from(ADDRESS_BITS.saturating_sub(bits));
            let client = self.clients.lines_of(ClientKey {
                prefix: address & u128::MAX.checked_shl(behind).unwrap_or(0),
                listener,
                bits,
            });
            self.clients.prefetch(&client);
            client
        });
        Applicant {
            listener,
            class,
            address,
            is_prefix: bits.is_some_and(|bits| bits < ADDRESS_BITS),
            client,
        }
    }

    /// Asks the processor for what a connection is counted for.
    #[inline]
    pub(crate) fn prefetch(&self, slot: u32) {
        if self.are_used
            && let Some(entry) = self.counted.get(slot as usize)
        {
            e2d2::prefetch(entry);
        }
    }

    /// Whether all limits admit one more connection; counts nothing.
    pub(crate) fn has_room(
        &mut self,
        (limits, meters): (&Limits, &CoreMeters),
        who: &Applicant,
        now: Instant,
    ) -> Result<(), Excess> {
        Shared::of(limits, who).have_room(meters, now)?;
        let (Some(of_each), Some(client)) = (limits.of_clients(who.listener), &who.client) else {
            return Ok(());
        };
        self.settle();
        let all = self.clients.of(client, now).unwrap_or_default();
        if fits(&of_each.limit, all, self.own(who, now), now) {
            Ok(())
        } else {
            Err(excess(Limited::Clients, &of_each.limit))
        }
    }

    /// Counts a connection whose handshake is complete, if all limits admit it.
    ///
    /// # Errors
    /// The limit that it exceeds: only the refusal is counted then.
    #[inline]
    pub(crate) fn admit(
        &mut self,
        (limits, meters): (&Limits, &mut CoreMeters),
        who: &Applicant,
        now: Instant,
    ) -> Result<Counted, Excess> {
        let shared = Shared::of(limits, who);
        let admitted = shared
            .have_room(meters, now)
            .and_then(|()| self.enter_client(limits, who, now));
        match admitted {
            Ok(places) => Ok(shared.count(meters, places, now)),
            Err(excess) => {
                let id = match excess.of {
                    Limited::Class => who.class.unwrap_or_default(),
                    _ => who.listener,
                };
                meters.refuse(excess.of, id, now);
                Err(excess)
            }
        }
    }

    /// Counts a connection that was admitted before its handshake was complete; no limit refuses it.
    pub(crate) fn admit_late(
        &mut self,
        (limits, meters): (&Limits, &mut CoreMeters),
        who: &Applicant,
        now: Instant,
    ) -> Counted {
        let of_each = limits.of_clients(who.listener).zip(who.client.as_ref());
        let client = of_each.and_then(|(of_each, client)| {
            let (place, _) = self.clients.enter(client, now)?;
            if let Some(rate) = of_each.limit.rate {
                self.clients.take(place, |due| rate.after(due, 1, now));
            }
            Some(place)
        });
        Shared::of(limits, who).count(meters, (client, None), now)
    }

    /// Stores what the connection in `slot` is counted for.
    #[inline]
    pub(crate) fn keep(&mut self, slot: u32, counted: Counted) {
        // No address is counted without its client.
        if counted.0[CLIENT] == 0 && counted.0[CLASS] == 0 {
            return;
        }
        self.are_used = true;
        // Its pool, if it has one, stays.
        let entry = &mut self.counted[slot as usize];
        *entry = [counted.0[CLIENT], counted.0[ADDRESS], entry[POOL], counted.0[CLASS]];
    }

    /// Tells all cores of the connections that have ended.
    #[inline]
    pub(crate) fn settle(&mut self) {
        self.leaving.drain(..).for_each(|place| self.clients.leave(place));
    }

    /// Takes back what a connection was counted for that has ended, or was not made.
    pub(crate) fn take_back(
        &mut self,
        (limits, meters): (&Limits, &mut CoreMeters),
        (listener, counted): (u16, Counted),
        now: Instant,
    ) {
        for place in counted.places() {
            if self.leaving.is_full() {
                self.settle();
            }
            self.clients.prefetch_place(place);
            self.leaving.push(place);
        }
        if counted.is_of_listener() {
            end(meters, limits, (Limited::Listener, listener), now);
        }
        if let Some(class) = counted.class() {
            end(meters, limits, (Limited::Class, class), now);
        }
        if let Some(pool) = counted.pool() {
            end(meters, limits, (Limited::Pool, pool), now);
        }
    }

    /// Whether the pool's limit admits one more; counts one that it does not.
    pub(crate) fn has_room_in_pool(
        &self,
        (limits, meters): (&Limits, &mut CoreMeters),
        pool: u16,
        now: Instant,
    ) -> Result<(), Excess> {
        let Some(limit) = limits.of(Limited::Pool, pool) else {
            return Ok(());
        };
        if meters.has_room(Limited::Pool, pool, limit, now) {
            return Ok(());
        }
        meters.refuse(Limited::Pool, pool, now);
        Err(excess(Limited::Pool, limit))
    }

    /// Counts a connection for the pool that is chosen for it, and takes it back from the pool chosen before.
    ///
    /// # Errors
    /// The pool's limit is exceeded.
    pub(crate) fn choose(
        &mut self,
        (limits, meters): (&Limits, &mut CoreMeters),
        (slot, pool): (u32, u16),
        now: Instant,
    ) -> Result<(), Excess> {
        let Some(limit) = limits.of(Limited::Pool, pool) else {
            self.leave_pool((limits, meters), slot, now);
            return Ok(());
        };
        // It has its place already, and asks again.
        if self.pool(slot) == Some(pool) {
            return Ok(());
        }
        self.has_room_in_pool((limits, meters), pool, now)?;
        self.leave_pool((limits, meters), slot, now);
        (self.are_used, self.have_pools) = (true, true);
        begin(meters, (Limited::Pool, pool), Some(limit), now);
        self.counted[slot as usize][POOL] = u32::from(pool) + 1;
        Ok(())
    }

    /// Takes back what a connection was counted for when it ends.
    #[inline]
    pub(crate) fn end(&mut self, limits: (&Limits, &mut CoreMeters), (slot, listener): (u32, u16), now: Instant) {
        if !self.are_used {
            return;
        }
        let counted = Counted(std::mem::take(&mut self.counted[slot as usize]));
        if counted != Counted::default() {
            self.take_back(limits, (listener, counted), now);
        }
    }

    /// The pool that a connection is counted for.
    pub(crate) fn pool(&self, slot: u32) -> Option<u16> {
        let counted = self.counted.get(slot as usize).filter(|_| self.have_pools)?;
        Counted(*counted).pool()
    }

    /// The class that a connection is in.
    #[inline]
    pub(crate) fn class(&self, slot: u32) -> Option<u16> {
        if !self.are_used {
            return None;
        }
        Counted(*self.counted.get(slot as usize)?).class()
    }

    fn leave_pool(&mut self, (limits, meters): (&Limits, &mut CoreMeters), slot: u32, now: Instant) {
        if !self.have_pools {
            return;
        }
        let pool = std::mem::take(&mut self.counted[slot as usize][POOL]);
        if let Some(pool) = pool.checked_sub(1) {
            end(meters, limits, (Limited::Pool, pool as u16), now);
        }
    }

    /// Where clients are prefixes, what the client's address has by itself: open connections, and when its bucket is full, if it is known.
    fn own(&self, who: &Applicant, now: Instant) -> Option<Option<(u64, u64)>> {
        who.is_prefix.then(|| self.clients.of(&self.address_of(who), now))
    }

    /// Where a single address is counted, of clients that are prefixes.
    fn address_of(&self, who: &Applicant) -> ClientLines {
        self.clients.lines_of(ClientKey {
            prefix: who.address,
            listener: who.listener,
            bits: ADDRESS_BITS,
        })
    }

    /// Counts a connection for its client and, where clients are prefixes, for its address.
    fn enter_client(
        &mut self,
        limits: &Limits,
        who: &Applicant,
        now: Instant,
    ) -> Result<(Option<ClientPlace>, Option<ClientPlace>), Excess> {
        let (Some(of_each), Some(client)) = (limits.of_clients(who.listener), &who.client) else {
            return Ok((None, None));
        };
        self.settle();
        let limit = &of_each.limit;
        let Some((client, open)) = self.clients.enter(client, now) else {
            return Ok((None, None));
        };
        if !fits(limit, (open, self.clients.due(client)), self.own(who, now), now) {
            if let Some(rate) = limit.rate {
                // What is owed by an earlier rate.
                self.clients.forgive(client, rate.fullest(now));
            }
            self.clients.leave(client);
            return Err(excess(Limited::Clients, limit));
        }
        if let Some(rate) = limit.rate {
            self.clients.take(client, |due| rate.after(due, 1, now));
        }
        if !who.is_prefix {
            return Ok((Some(client), None));
        }
        let address = self.clients.enter(&self.address_of(who), now).map(|(place, _)| place);
        if let (Some(place), Some(rate)) = (address, limit.rate) {
            self.clients.take(place, |due| rate.after(due, 1, now));
        }
        Ok((Some(client), address))
    }
}

/// Whether a client with so many open connections, and a bucket that is full then, may have one more; where clients are prefixes, by what
/// its address has by itself, too.
fn fits(limit: &Limit, (open, due): (u64, u64), own: Option<Option<(u64, u64)>>, now: Instant) -> bool {
    let leaves_enough = |left: u64, all: u32, own: Option<Option<u64>>| match own {
        None => left > 0,
        Some(own) => {
            let (is_known, own) = (own.is_some(), own.unwrap_or(0));
            let is_kept = left * KEPT_FOR_KNOWN <= all.into();
            own < left && (!is_kept || is_known && own * LEFT_FOR_EACH < left)
        }
    };
    let has_room = limit.connections.is_none_or(|most| {
        let left = u64::from(most).saturating_sub(open);
        leaves_enough(left, most, own.map(|own| own.map(|(open, _)| open)))
    });
    has_room
        && limit.rate.is_none_or(|rate| match own {
            None => rate.has_left(due, now),
            Some(own) => {
                let used = own.map(|(_, due)| rate.used(due, now));
                leaves_enough(rate.left(due, now), rate.burst, Some(used))
            }
        })
}

fn excess(of: Limited, limit: &Limit) -> Excess {
    Excess {
        of,
        refusal: limit.beyond,
    }
}

#[inline]
fn begin(meters: &mut CoreMeters, of: (Limited, u16), limit: Option<&Limit>, now: Instant) {
    let of_both = limit.map_or((None, None), |limit| (limit.connections, limit.rate));
    meters.begin(of, of_both, now);
}

fn end(meters: &mut CoreMeters, limits: &Limits, of: (Limited, u16), now: Instant) {
    let most = limits.of(of.0, of.1).and_then(|limit| limit.connections);
    meters.end(of, most, now);
}

/// How many bits of an address make a client, of its mapped form for IPv4.
#[inline]
fn bits_of(of_each: &ClientLimit, address: u128) -> u8 {
    if is_mapped(address) {
        MAPPED_BITS + of_each.prefix_v4
    } else {
        of_each.prefix_v6
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::limit::Limits;
    use crate::base::meter::Meters;

    #[test]
    fn who_is_chosen_for_another_pool_no_longer_counts_for_the_first() {
        let limit = Limit {
            connections: Some(1),
            rate: None,
            beyond: Refusal::Reject,
        };
        let limits = Limits::new((Vec::new(), Vec::new()), vec![Some(limit), None], Vec::new());
        let (now, shared) = (Instant::from_millis(1_000), Arc::<Meters>::default());
        let mut meters = CoreMeters::new(Arc::clone(&shared));
        let mut quotas = Quotas::new((4, false), Arc::new(ClientCounts::new((4, 1), false, [1, 2])));
        let mut choose = |slot, pool| quotas.choose((&limits, &mut meters), (slot, pool), now);
        assert_eq!(choose(0, 0), Ok(()));
        assert!(choose(1, 0).is_err(), "it is full");
        assert_eq!(choose(0, 0), Ok(()), "by the one who asks again");
        assert_eq!(choose(0, 1), Ok(()));
        assert_eq!(shared.of(Limited::Pool, 0).open, 0);
        assert_eq!(choose(1, 0), Ok(()));
        quotas.end((&limits, &mut meters), (0, 0), now);
        quotas.end((&limits, &mut meters), (1, 0), now);
        assert_eq!(shared.of(Limited::Pool, 0).open, 0);
    }
}
