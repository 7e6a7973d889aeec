//! The flow table of one core: which connection a packet belongs to, and from which side it comes.
//!
//! Lines of the cache with ten places each. A flow stands in the line that its hash names, or in the next ones if that is
//! full; a line counts the flows that have passed it by, so that a search ends in the first line that none has, and what
//! is taken out leaves neither tombstones nor anything to move. A place is six bytes (15 bits of the hash, the leg, two marks, the
//! slot); the key itself is in the connection, compared only when those bits match. Two flows a connection, one for each
//! leg.
//!
//! The hash is keyed with random numbers ([`hash`](crate::base::hash): what that promises). A flow that would stand more than
//! [`REACH`] lines from its home is refused before anything is counted, so no search reads more lines than that, and what
//! cannot be put in makes no search of others longer.
//!
//! Budget: 8 bytes a flow at a load of at most four fifths, where one search in five reads a second line; look-up of a
//! prefetched line about 20 cycles. Source: `benches/core`.

use crate::base::drop_reason::DropReason;
use crate::base::hash::{FlowHash, KeyWords, PairHash};
use e2d2::memory::LargeSlice;
use e2d2::wire::frame::IpVersion;
use netfcts::leg::is_mapped;
use netfcts::{FourTuple, Side};
use wide::u16x8;

/// What is to be known of a flow before its connection is looked at. Where it turns out not to be so, nothing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mark {
    /// It may be captured: the tap is to be asked.
    Captured = 1 << 29,
    /// Its legs may be watched.
    Watched = 1 << 28,
}

/// What an entry points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowRef(u32);

impl FlowRef {
    const SERVER_LEG: u32 = 1 << 31;
    const TIME_WAIT: u32 = 1 << 30;
    const MARKS: u32 = Mark::Captured as u32 | Mark::Watched as u32;

    /// The number of slots that can be told apart.
    pub const MAX_SLOTS: usize = 1 << 28;

    /// The client leg of a live connection.
    pub const fn client(slot: u32) -> Self {
        FlowRef(slot)
    }

    /// The server leg of a live connection.
    pub const fn server(slot: u32) -> Self {
        FlowRef(slot | Self::SERVER_LEG)
    }

    /// The same leg of a connection in TIME-WAIT.
    pub const fn in_time_wait(self, slot: u32) -> Self {
        FlowRef(self.0 & Self::SERVER_LEG | Self::TIME_WAIT | slot)
    }

    /// The same flow with this mark if `is_marked`.
    #[inline]
    pub const fn marked_if(self, is_marked: bool, mark: Mark) -> Self {
        FlowRef(self.0 | if is_marked { mark as u32 } else { 0 })
    }

    /// True if it has this mark.
    #[inline]
    pub const fn has(self, mark: Mark) -> bool {
        self.0 & mark as u32 != 0
    }

    /// True if both are the same flow, whatever their marks.
    #[inline]
    const fn is_same(self, other: FlowRef) -> bool {
        (self.0 ^ other.0) & !Self::MARKS == 0
    }

    /// True for the server leg.
    pub const fn is_server_leg(self) -> bool {
        self.0 & Self::SERVER_LEG != 0
    }

    /// The peer at the other end of the leg.
    #[inline]
    pub const fn side(self) -> Side {
        if self.is_server_leg() {
            Side::Server
        } else {
            Side::Client
        }
    }

    /// True when `slot` is one of the TIME-WAIT.
    pub const fn is_time_wait(self) -> bool {
        self.0 & Self::TIME_WAIT != 0
    }

    /// The index of the connection, or of the TIME-WAIT entry.
    pub const fn slot(self) -> u32 {
        self.0 & !(Self::SERVER_LEG | Self::TIME_WAIT | Self::MARKS)
    }
}

/// Why a flow is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// The table holds as many flows as it was made for.
    #[error("the flow table is full")]
    Full,
    /// There is a free place, but none within [`REACH`] lines of the flow's home.
    #[error("the flow table is crowded around the flow's hash")]
    Crowded,
}

impl From<NoPlace> for DropReason {
    fn from(refusal: NoPlace) -> Self {
        match refusal {
            NoPlace::Full => DropReason::TableFull,
            NoPlace::Crowded => DropReason::TableCrowded,
        }
    }
}

/// Lines that a flow may stand in: that of its hash and those after it. With hashes like random numbers one flow in two
/// million is refused while the table is as full as it may be, and none of thirty million at three quarters of its places.
pub const REACH: usize = 32;

/// Flows that stand in one line.
const PLACES: usize = 10;

/// A line of the cache.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    /// Zero where a place is free.
    tags: [u16; PLACES],
    flows: [FlowRef; PLACES],
    /// Flows at home here or before that stand in a later line; at its maximum it is not exact and stays.
    passed_by: u32,
}

const _: () = assert!(size_of::<Line>() == 64);

const EMPTY: Line = Line {
    tags: [0; PLACES],
    flows: [FlowRef(0); PLACES],
    passed_by: 0,
};

impl Line {
    /// The places with this tag.
    #[inline]
    fn matching(&self, tag: u16) -> Matches {
        let [a, b, c, d, e, f, g, h, ninth, tenth] = self.tags;
        let first_eight = u16x8::new([a, b, c, d, e, f, g, h]).simd_eq(u16x8::splat(tag));
        Matches(first_eight.to_bitmask() | u32::from(ninth == tag) << 8 | u32::from(tenth == tag) << 9)
    }

    /// The place of `flow`, if it is here.
    #[inline]
    fn place_of(&self, tag: u16, flow: FlowRef) -> Option<usize> {
        self.matching(tag).find(|&place| self.flows[place].is_same(flow))
    }
}

/// Places of a line, one bit each, so that they stay in a register.
struct Matches(u32);

impl Iterator for Matches {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let place = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        // No bit stands for a later place, which the compiler cannot know.
        Some(place.min(PLACES - 1))
    }
}

/// Which connection owns a flow.
pub struct FlowTable {
    lines: LargeSlice<Line>,
    used: usize,
    limit: usize,
    flow_hash: FlowHash,
    source_hash: PairHash,
}

impl FlowTable {
    /// A table for `flows` flows (two a connection), hashed with keys made of `secret`.
    pub fn new(flows: usize, secret: [u64; 2]) -> Self {
        let limit = flows.max(8);
        // Four fifths full at most: then one line in five has more flows at home than it has places.
        let lines = LargeSlice::of(EMPTY, (limit * 5).div_ceil(4 * PLACES));
        let mut words = KeyWords::new(secret);
        FlowTable {
            lines,
            used: 0,
            limit,
            flow_hash: FlowHash::new(&mut words),
            source_hash: PairHash::new(&mut words),
        }
    }

    /// The hash of a key; computed once for a packet.
    #[inline]
    pub fn hash(&self, key: &FourTuple) -> u64 {
        self.flow_hash.of(key)
    }

    /// [`FlowTable::hash`] of a packet's key, without a look at the addresses for the version of IP that its header has named.
    #[inline(always)]
    pub fn hash_of_packet(&self, key: &FourTuple, version: IpVersion) -> u64 {
        match version {
            IpVersion::V4 => self.flow_hash.of_mapped(key),
            IpVersion::V6 => self.hash(key),
        }
    }

    /// The keyed hash of whoever has `address`: with IPv4 the address itself, with IPv6 the network of the host, whose owner
    /// has all addresses in it (RFC 6177 2).
    ///
    /// Its key is another than that of flows: in an overload a source can see when its turn is, and so bits of its hash.
    #[inline]
    pub fn source_hash(&self, address: u128) -> u64 {
        let source = if is_mapped(address) {
            address
        } else {
            address >> 64 << 64
        };
        self.source_hash.of_wide(source)
    }

    /// Asks the processor for the line that a look-up of `hash` will read.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        e2d2::prefetch(&self.lines[self.home(hash)]);
    }

    /// The flow with this `hash` for which `is_it` holds (it compares the key in the connection).
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(FlowRef) -> bool) -> Option<FlowRef> {
        let tag = tag_of(hash);
        let mut at = self.home(hash);
        for _ in 0..REACH {
            let line = &self.lines[at];
            let found = line
                .matching(tag)
                .map(|place| line.flows[place])
                .find(|&flow| is_it(flow));
            if found.is_some() || line.passed_by == 0 {
                return found;
            }
            at = self.after(at);
        }
        None
    }

    /// The most likely flow with this `hash`, unchecked: what to prefetch next.
    #[inline]
    pub fn guess(&self, hash: u64) -> Option<FlowRef> {
        let line = &self.lines[self.home(hash)];
        line.matching(tag_of(hash)).next().map(|place| line.flows[place])
    }

    /// Adds a flow that is not in the table.
    ///
    /// # Errors
    /// Why it is not taken; the table is then as it was.
    pub fn insert(&mut self, hash: u64, flow: FlowRef) -> Result<(), NoPlace> {
        if self.used == self.limit {
            return Err(NoPlace::Full);
        }
        let home = self.home(hash);
        let (at, place) = self.free_place(home).ok_or(NoPlace::Crowded)?;
        let mut passed = home;
        while passed != at {
            let line = &mut self.lines[passed];
            line.passed_by = line.passed_by.saturating_add(1);
            passed = self.after(passed);
        }
        let line = &mut self.lines[at];
        line.tags[place] = tag_of(hash);
        line.flows[place] = flow;
        self.used += 1;
        Ok(())
    }

    /// The first free place within reach of `home`, by its line and its number there.
    #[inline]
    fn free_place(&self, home: usize) -> Option<(usize, usize)> {
        let mut at = home;
        for _ in 0..REACH {
            if let Some(place) = self.lines[at].matching(0).next() {
                return Some((at, place));
            }
            at = self.after(at);
        }
        None
    }

    /// Makes the entry of `old` point to `new`. Returns false if there is none.
    pub fn replace(&mut self, hash: u64, old: FlowRef, new: FlowRef) -> bool {
        let entry = self.entry_mut(hash, old);
        entry.is_some_and(|entry| {
            *entry = new;
            true
        })
    }

    /// Gives `flow` one more mark. Returns false if it is not there.
    pub fn mark(&mut self, hash: u64, flow: FlowRef, mark: Mark) -> bool {
        let entry = self.entry_mut(hash, flow);
        entry.is_some_and(|entry| {
            *entry = entry.marked_if(true, mark);
            true
        })
    }

    /// Takes `flow` out. Returns false if it was not there.
    pub fn remove(&mut self, hash: u64, flow: FlowRef) -> bool {
        let Some((at, place)) = self.position(hash, flow) else {
            return false;
        };
        self.used -= 1;
        self.lines[at].tags[place] = 0;
        let mut passed = self.home(hash);
        while passed != at {
            let line = &mut self.lines[passed];
            if line.passed_by != u32::MAX {
                line.passed_by -= 1;
            }
            passed = self.after(passed);
        }
        true
    }

    /// The number of flows in the table.
    pub fn len(&self) -> usize {
        self.used
    }

    /// True when no flow is in the table.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The memory of the table in bytes, empty entries included.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.lines)
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        // The hash's upper half scaled to the size: no division, and any size will do.
        (((hash >> 32) * self.lines.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.lines.len() { 0 } else { at + 1 }
    }

    #[inline]
    fn entry_mut(&mut self, hash: u64, flow: FlowRef) -> Option<&mut FlowRef> {
        let (at, place) = self.position(hash, flow)?;
        Some(&mut self.lines[at].flows[place])
    }

    fn position(&self, hash: u64, flow: FlowRef) -> Option<(usize, usize)> {
        let tag = tag_of(hash);
        let mut at = self.home(hash);
        for _ in 0..REACH {
            let line = &self.lines[at];
            if let Some(place) = line.place_of(tag, flow) {
                return Some((at, place));
            }
            if line.passed_by == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }
}

/// The lowest bits of the hash, of which the first is set: never zero, which means "free". The home comes from others.
#[inline]
fn tag_of(hash: u64) -> u16 {
    hash as u16 | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn key(n: u64) -> FourTuple {
        FourTuple {
            remote: u128::from(n) | 0xffff_0000_0000,
            local: 5,
            remote_port: n as u16,
            local_port: 80,
        }
    }

    #[test]
    fn finds_what_was_put_in_through_any_sequence_of_changes() {
        let mut table = FlowTable::new(512, [1, 2]);
        let mut model: HashMap<u32, FourTuple> = HashMap::new();
        let mut state = 42_u64;
        for _ in 0..200_000 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let slot = (state >> 40) as u32 % 700;
            let flow = FlowRef::client(slot);
            let hash = table.hash(&key(u64::from(slot)));
            if model.remove(&slot).is_some() {
                assert!(table.remove(hash, flow));
                assert_eq!(table.find(hash, |found| found == flow), None);
            } else if model.len() < 512 {
                table.insert(hash, flow).expect("room");
                model.insert(slot, key(u64::from(slot)));
            } else {
                assert_eq!(table.insert(hash, flow), Err(NoPlace::Full));
            }
            assert_eq!(table.len(), model.len());
        }
        for (&slot, key) in &model {
            let flow = FlowRef::client(slot);
            assert_eq!(table.find(table.hash(key), |found| found == flow), Some(flow));
        }
    }

    #[test]
    fn both_legs_and_time_wait_are_told_apart() {
        let flow = FlowRef::server(77);
        assert!(flow.is_server_leg() && !flow.is_time_wait());
        let closed = flow.in_time_wait(78);
        assert!(closed.is_server_leg() && closed.is_time_wait());
        assert_eq!((flow.slot(), closed.slot()), (77, 78));
    }

    #[test]
    fn a_flow_is_the_same_with_a_mark_until_it_is_another() {
        let mut table = FlowTable::new(8, [1, 2]);
        let (hash, flow) = (table.hash(&key(7)), FlowRef::server(7));
        assert!(!table.mark(hash, flow, Mark::Captured), "it is not there");
        table.insert(hash, flow.marked_if(true, Mark::Watched)).expect("room");
        let marks = |table: &FlowTable| {
            let found = table.find(hash, |found| found.slot() == 7).expect("it is there");
            assert!(found.is_server_leg() && !found.is_time_wait());
            [Mark::Watched, Mark::Captured].map(|mark| found.has(mark))
        };
        assert_eq!(marks(&table), [true, false]);
        assert!(table.mark(hash, flow, Mark::Captured) && table.mark(hash, flow, Mark::Captured));
        assert_eq!(marks(&table), [true, true]);
        let resting = flow.marked_if(true, Mark::Watched).in_time_wait(3);
        assert!(table.replace(hash, flow, resting));
        assert_eq!(table.guess(hash), Some(FlowRef::server(0).in_time_wait(3)));
        assert!(table.mark(hash, resting, Mark::Captured) && table.remove(hash, resting) && table.is_empty());
    }
}
