//! Source ports of (local address, server) pairs.
//!
//! A port that a connection has used rests at the tail of a queue, together with the numbers that its next connection has
//! to exceed so that a server still in TIME-WAIT takes the SYN (RFC 9293 3.6.1, RFC 6191). While a port is out, the
//! connection owns those numbers: the pool needs no table by port and ports may be any subset of the 65 535 (those that
//! steer back to one core, say).
//!
//! ```text
//!   set of ports   1024 ........................... 65535      never used from `fresh` on, in their order
//!                               ▲ fresh
//!   queue          head ─► port, SEQ, TSval ─► … ─► tail       released, the longest ago first
//! ```
//!
//! The oldest port is taken again when it has rested, and a fresh one only while a pool has hardly used any or none has
//! rested. So a pool takes memory for the ports that it needs at once, not for all that it may use.
//!
//! Budget: 10 bytes per port that was ever in the queue with others, in blocks of 2 KiB ([`PORTS_PER_BLOCK`] ports); 1.3 KiB
//! per pool for the pool itself and the quarantine; 8 KiB per different set. All blocks of a core are one reservation of
//! addresses whose pages the system gives when they are first written ([`SparseWords`]): nothing is allocated, a page
//! fault for two blocks is the price. Rejected: blocks lent to pools from an arena, for each port used keeps its numbers, and an arena
//! for fewer would run out when load moves from servers to others. Taking and releasing touch one line each.

use std::sync::Arc;
use std::time::Duration;

use e2d2::memory::SparseWords;
use e2d2::time::Instant;

use crate::SeqNum;

/// What the next connection from a port has to exceed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastUse {
    /// The number after the last one sent from the port.
    pub next_seq: SeqNum,
    /// The time stamp value after the last one sent from the port.
    pub next_tsval: u32,
}

/// A port handed out by [`PortPools::take`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The port.
    pub port: u16,
    /// What is left from the connection before; `None` for the port's first use.
    pub last_use: Option<LastUse>,
    /// Whether the port's quarantine is not over: no rested port was left.
    pub early: bool,
    /// The port that [`PortPools::take`] gives next if no quarantine ends meanwhile; `None` if all are in use.
    pub next: Option<u16>,
}

/// Parts that a quarantine is measured in: a port rests at most this fraction longer than asked for, never shorter.
const PARTS: u32 = 64;

/// Words of a block: half a page.
const BLOCK: usize = 1024;

/// Words of a port in the queue: itself, SEQ and TSval.
const ENTRY: usize = 5;

/// Words of a cache line.
const LINE: usize = 32;

/// Released ports that a block has room for; the last word is the number of the next block.
pub const PORTS_PER_BLOCK: usize = (BLOCK - 1) / ENTRY;

/// Ports that are used once before any is used again: what two blocks have room for wherever the queue begins. Where a
/// server gets few connections its ports so rest longer than they must.
const FEW: u32 = PORTS_PER_BLOCK as u32;

/// No block.
const NONE: u16 = u16::MAX;

/// A set of ports: what pools choose from. Shared by those with the same.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PortSet {
    bits: Box<[u64; 1024]>,
    len: u32,
}

impl FromIterator<u16> for PortSet {
    /// Port 0 and repeated ports are left out.
    fn from_iter<I: IntoIterator<Item = u16>>(ports: I) -> PortSet {
        let mut bits = Box::new([0; 1024]);
        for port in ports.into_iter().filter(|&port| port != 0) {
            bits[usize::from(port) / 64] |= 1 << (port % 64);
        }
        let len = bits.iter().map(|word: &u64| word.count_ones()).sum();
        PortSet { bits, len }
    }
}

impl std::fmt::Debug for PortSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ports", self.len)
    }
}

impl PortSet {
    /// Bytes of memory of each.
    pub const MEMORY: usize = size_of::<PortSet>() + size_of::<[u64; 1024]>();

    /// How many ports are in it.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True if it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if `port` is in it.
    #[inline]
    pub fn contains(&self, port: u16) -> bool {
        self.bits[usize::from(port) / 64] >> (port % 64) & 1 != 0
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        let first = self.at_or_after(1);
        std::iter::successors(first, |port| {
            port.checked_add(1).and_then(|next| self.at_or_after(next))
        })
    }

    /// The first port that is not before `port`.
    #[inline]
    fn at_or_after(&self, port: u16) -> Option<u16> {
        let mut word = usize::from(port) / 64;
        let mut bits = self.bits[word] & (u64::MAX << (port % 64));
        while bits == 0 {
            word += 1;
            bits = *self.bits.get(word)?;
        }
        Some((word * 64) as u16 + bits.trailing_zeros() as u16)
    }
}

/// The pools of one core, by server and number of the local address. See the module documentation.
pub struct PortPools {
    memory: SparseWords,
    pools: Box<[PortPool]>,
    /// The first pool of each server.
    first: Box<[u32]>,
    /// Different sets.
    sets: usize,
    /// How long ports rest which are released from now on.
    quarantine: Duration,
}

impl PortPools {
    /// Bytes that a port takes which was ever used.
    pub const BYTES_PER_PORT: usize = ENTRY * size_of::<u16>();

    /// A pool for each local address of each server, of the ports in its set, fresh ones handed out in their order. A port
    /// released rests for `quarantine`.
    pub fn new<I: IntoIterator<Item = Arc<PortSet>>>(
        servers: impl IntoIterator<Item = I>,
        quarantine: Duration,
    ) -> PortPools {
        let (mut pools, mut first, mut blocks) = (Vec::new(), Vec::new(), 0);
        let mut sets = Vec::new();
        for locals in servers {
            first.push(pools.len() as u32);
            for set in locals {
                sets.push(Arc::as_ptr(&set));
                let pool = PortPool::new(set, blocks, quarantine);
                blocks += pool.blocks();
                pools.push(pool);
            }
        }
        sets.sort_unstable();
        sets.dedup();
        PortPools {
            memory: SparseWords::new(blocks * BLOCK),
            pools: pools.into_boxed_slice(),
            first: first.into_boxed_slice(),
            sets: sets.len(),
            quarantine,
        }
    }

    /// Has ports rest for this long that are released from now on. Those that rest do so for as long as when they were released.
    pub fn set_quarantine(&mut self, quarantine: Duration) {
        self.quarantine = quarantine;
    }

    /// Every pool.
    pub fn iter(&self) -> impl Iterator<Item = &PortPool> {
        self.pools.iter()
    }

    /// The pool of a local address of a server.
    ///
    /// # Panics
    /// If there is none.
    pub fn pool(&self, server: usize, local: usize) -> &PortPool {
        &self.pools[self.place(server, local)]
    }

    #[inline]
    fn place(&self, server: usize, local: usize) -> usize {
        self.first[server] as usize + local
    }

    /// Takes the port that has rested longest, or one that was never used; `None` if all are in use. It is one of `usable`, which is
    /// the pool's set or a part of it that only becomes smaller: other ports are not looked at again.
    ///
    /// # Panics
    /// If there is no such pool.
    #[inline]
    pub fn take(&mut self, (server, local): (usize, usize), usable: &Arc<PortSet>, now: Instant) -> Option<Taken> {
        let place = self.place(server, local);
        self.pools[place].take_of(usable, &mut self.memory, now)
    }

    /// Gives a port back. It goes to the tail; `next_seq` and `next_tsval` come back with it when it is taken again.
    ///
    /// A release beyond the number of ports taken is ignored; in a build with assertions any port that is not taken panics.
    ///
    /// # Panics
    /// If there is no such pool.
    #[inline]
    pub fn release(&mut self, (server, local): (usize, usize), port: u16, last: LastUse, now: Instant) {
        let place = self.place(server, local);
        let when = (now, self.quarantine);
        self.pools[place].release(&mut self.memory, port, last, when);
    }

    /// Bytes of memory held: what was set aside, and the blocks that were used.
    pub fn memory(&self) -> usize {
        let pools: usize = self.pools.iter().map(PortPool::memory).sum();
        size_of::<PortPools>() + size_of_val(&*self.first) + self.sets * PortSet::MEMORY + pools
    }

    /// Of it, bytes that came into use since the start.
    pub fn grown(&self) -> usize {
        self.pools.iter().map(PortPool::grown).sum()
    }

    /// Bytes of memory that a pool takes of which no port was used, but for its set.
    pub const fn empty() -> usize {
        size_of::<PortPool>() + Quarantine::MEMORY
    }

    /// The same of a pool of so many ports when all were used.
    pub fn largest(ports: usize) -> usize {
        Self::empty() + blocks_for(ports) * size_of::<[u16; BLOCK]>()
    }
}

/// Blocks for a queue of so many, which may begin and end within one.
fn blocks_for(ports: usize) -> usize {
    // An even number: pools do not share pages.
    (ports / PORTS_PER_BLOCK + 2).next_multiple_of(2)
}

/// The ports of one local address towards one server.
///
/// Owned by one core.
pub struct PortPool {
    set: Arc<PortSet>,
    /// The next port that was never used; 0 if there is none left.
    fresh: u16,
    /// Ports that were never used.
    fresh_left: u32,
    /// Ports that are not usable any more, as far as their turn has come.
    gone: u32,
    /// Its first block among all.
    base: usize,
    /// Blocks that were ever used, and the list of those that are not in the queue.
    touched: u16,
    spare: u16,
    /// Where the queue begins, and where it ends: block and entry.
    head: (u16, u16),
    tail: (u16, u16),
    /// Positions in the queue count up and are never reset.
    taken_out: u64,
    put_in: u64,
    quarantine: Quarantine,
    taken: taken::Ports,
}

impl PortPool {
    fn new(set: Arc<PortSet>, base: usize, quarantine: Duration) -> PortPool {
        PortPool {
            fresh: set.at_or_after(1).unwrap_or(0),
            fresh_left: set.len,
            gone: 0,
            base,
            touched: 0,
            spare: NONE,
            head: (NONE, 0),
            tail: (NONE, PORTS_PER_BLOCK as u16),
            taken_out: 0,
            put_in: 0,
            quarantine: Quarantine::new(quarantine),
            taken: taken::Ports::default(),
            set,
        }
    }

    /// Number of ports, free or taken.
    pub fn capacity(&self) -> usize {
        self.set.len() - self.gone as usize
    }

    /// Number of free ports, rested or not.
    pub fn free(&self) -> usize {
        self.fresh_left as usize + self.waiting()
    }

    /// Number of ports taken.
    pub fn in_use(&self) -> usize {
        self.capacity() - self.free()
    }

    /// Bytes of memory held, but for its set.
    fn memory(&self) -> usize {
        PortPools::empty() + self.grown()
    }

    fn grown(&self) -> usize {
        usize::from(self.touched) * size_of::<[u16; BLOCK]>()
    }

    fn blocks(&self) -> usize {
        blocks_for(self.capacity())
    }

    fn waiting(&self) -> usize {
        (self.put_in - self.taken_out) as usize
    }

    /// True if a port that was never used goes before those that rest.
    #[inline]
    fn prefers_fresh(&self, has_rested: bool) -> bool {
        self.fresh_left > 0 && (!has_rested || self.set.len - self.fresh_left < FEW)
    }

    #[inline]
    fn take_of(&mut self, usable: &Arc<PortSet>, memory: &mut [u16], now: Instant) -> Option<Taken> {
        let mut taken = self.take(memory, now)?;
        if !Arc::ptr_eq(usable, &self.set) {
            // Each port is left out once.
            while !usable.contains(taken.port) {
                self.taken.remove(taken.port);
                self.gone += 1;
                taken = self.take(memory, now)?;
            }
        }
        Some(taken)
    }

    #[inline]
    fn take(&mut self, memory: &mut [u16], now: Instant) -> Option<Taken> {
        let has_rested = self.waiting() > 0 && self.quarantine.has_rested(self.taken_out, now);
        let (port, last_use, early) = if self.prefers_fresh(has_rested) {
            (self.take_fresh(), None, false)
        } else if self.waiting() > 0 {
            let (port, last_use) = self.pop(memory);
            (port, Some(last_use), !has_rested)
        } else {
            return None;
        };
        self.taken.insert(port);
        Some(Taken {
            port,
            last_use,
            early,
            next: self.next_port(memory),
        })
    }

    #[inline]
    fn next_port(&self, memory: &[u16]) -> Option<u16> {
        let has_rested = self.waiting() > 0 && self.quarantine.is_known_to_have_rested(self.taken_out);
        if self.prefers_fresh(has_rested) {
            return Some(self.fresh);
        }
        if self.waiting() == 0 {
            return None;
        }
        let at = self.at(self.head);
        if let Some(line_behind) = memory.get(at + LINE) {
            e2d2::prefetch(line_behind);
        }
        memory.get(at).copied()
    }

    #[inline]
    fn release(&mut self, memory: &mut [u16], port: u16, last: LastUse, when: (Instant, Duration)) {
        self.taken.remove(port);
        if self.free() == self.capacity() {
            return;
        }
        self.quarantine.released(self.put_in, when);
        self.push(memory, port, last);
    }

    #[inline]
    fn take_fresh(&mut self) -> u16 {
        let port = self.fresh;
        self.fresh_left -= 1;
        self.fresh = port
            .checked_add(1)
            .and_then(|next| self.set.at_or_after(next))
            .unwrap_or(0);
        port
    }

    /// The place of an entry.
    #[inline]
    fn at(&self, (block, entry): (u16, u16)) -> usize {
        (self.base + usize::from(block)) * BLOCK + usize::from(entry) * ENTRY
    }

    /// The place of a block's link to the next one.
    #[inline]
    fn link(&self, block: u16) -> usize {
        self.at((block, 0)) + BLOCK - 1
    }

    fn push(&mut self, memory: &mut [u16], port: u16, last: LastUse) {
        if usize::from(self.tail.1) == PORTS_PER_BLOCK {
            let block = self.new_block(memory);
            if self.tail.0 == NONE {
                self.head = (block, 0);
            } else {
                memory[self.link(self.tail.0)] = block;
            }
            self.tail = (block, 0);
        }
        let (seq, tsval) = (last.next_seq.0, last.next_tsval);
        let at = self.at(self.tail);
        memory[at..at + ENTRY].copy_from_slice(&[
            port,
            (seq >> 16) as u16,
            seq as u16,
            (tsval >> 16) as u16,
            tsval as u16,
        ]);
        self.tail.1 += 1;
        self.put_in += 1;
    }

    fn pop(&mut self, memory: &mut [u16]) -> (u16, LastUse) {
        let at = self.at(self.head);
        let entry: [u16; ENTRY] = memory[at..].first_chunk().copied().unwrap_or_default();
        let [port, seq_high, seq_low, tsval_high, tsval_low] = entry;
        let wide = |high, low| u32::from(high) << 16 | u32::from(low);
        let last_use = LastUse {
            next_seq: SeqNum(wide(seq_high, seq_low)),
            next_tsval: wide(tsval_high, tsval_low),
        };
        self.taken_out += 1;
        self.head.1 += 1;
        if self.waiting() == 0 {
            // The block is used again from its beginning.
            (self.head.1, self.tail.1) = (0, 0);
        } else if usize::from(self.head.1) == PORTS_PER_BLOCK {
            let empty = self.head.0;
            self.head = (memory[self.link(empty)], 0);
            memory[self.link(empty)] = self.spare;
            self.spare = empty;
        }
        (port, last_use)
    }

    /// A block that is not in the queue: one that was, or the next that never was. There is always one, for
    /// [`blocks_for`] all ports.
    fn new_block(&mut self, memory: &[u16]) -> u16 {
        let spare = self.spare;
        if spare != NONE {
            self.spare = memory[self.link(spare)];
            return spare;
        }
        self.touched += 1;
        self.touched - 1
    }
}

/// Tells which positions in the queue have rested, without a time per port: positions are released in the order of time, so it is
/// enough to remember where the tail stood at the end of every part of the quarantine.
struct Quarantine {
    /// How long positions rest which are released in the part that releases go to now: the longest asked for.
    length: Duration,
    /// Positions below this one have rested.
    rested: u64,
    /// Closed parts that may not have rested, oldest first: (first position after the part, when its positions have rested).
    parts: std::collections::VecDeque<(u64, Instant)>,
    /// End of the part that releases go to now; its positions are those from the last closed part on.
    part_end: Instant,
    /// First position that was not released when last asked.
    tail: u64,
    /// Before it, [`advance`](Self::advance) changes nothing.
    next_change: Instant,
}

impl Quarantine {
    /// Bytes of memory besides itself.
    const MEMORY: usize = (PARTS as usize + 3) * size_of::<(u64, Instant)>();

    fn new(length: Duration) -> Quarantine {
        // One closed part per part's length, for the quarantine's length, and one closing at either end.
        let parts = std::collections::VecDeque::with_capacity(PARTS as usize + 3);
        Quarantine {
            length,
            rested: 0,
            parts,
            part_end: Instant::ZERO,
            tail: 0,
            next_change: Instant::ZERO,
        }
    }

    #[inline]
    fn released(&mut self, position: u64, (now, length): (Instant, Duration)) {
        if now >= self.part_end {
            self.advance(now);
            self.length = length;
            self.part_end = now + length / PARTS;
        } else {
            self.length = self.length.max(length);
        }
        self.tail = position + 1;
        self.next_change = self.next_change.min(self.part_end);
    }

    /// True if that was seen before.
    #[inline]
    fn is_known_to_have_rested(&self, position: u64) -> bool {
        position < self.rested
    }

    #[inline]
    fn has_rested(&mut self, position: u64, now: Instant) -> bool {
        if position < self.rested {
            return true;
        }
        if now >= self.next_change {
            self.advance(now);
        }
        position < self.rested
    }

    fn advance(&mut self, now: Instant) {
        let closed = self.parts.back().map_or(self.rested, |(end, _)| *end);
        self.next_change = Instant::MAX;
        if self.tail > closed {
            if now >= self.part_end {
                let rested_at = self.part_end + self.length;
                match self.parts.back_mut() {
                    // Only where the quarantine has been longer: who is behind in the queue waits as long.
                    Some((end, later)) if *later >= rested_at => *end = self.tail,
                    _ => self.parts.push_back((self.tail, rested_at)),
                }
            } else {
                self.next_change = self.part_end;
            }
        }
        while let Some((end, _)) = self.parts.front().filter(|(_, rested_at)| *rested_at <= now) {
            self.rested = *end;
            self.parts.pop_front();
        }
        if let Some((_, rested_at)) = self.parts.front() {
            self.next_change = self.next_change.min(*rested_at);
        }
    }
}

/// Which ports are out, to catch a port released twice or handed out twice.
#[cfg(debug_assertions)]
mod taken {
    /// One bit per port.
    pub(super) struct Ports(Box<[u64; 1024]>);

    impl Default for Ports {
        fn default() -> Ports {
            Ports(Box::new([0; 1024]))
        }
    }

    impl Ports {
        pub(super) fn insert(&mut self, port: u16) {
            let (word, bit) = (usize::from(port) / 64, 1 << (port % 64));
            assert!(self.0[word] & bit == 0, "port {port} handed out twice");
            self.0[word] |= bit;
        }

        pub(super) fn remove(&mut self, port: u16) {
            let (word, bit) = (usize::from(port) / 64, 1 << (port % 64));
            assert!(self.0[word] & bit != 0, "port {port} released but not taken");
            self.0[word] &= !bit;
        }
    }
}

/// A release build trusts its callers, who hold one connection per port.
#[cfg(not(debug_assertions))]
mod taken {
    #[derive(Default)]
    pub(super) struct Ports;

    impl Ports {
        pub(super) fn insert(&mut self, _port: u16) {}
        pub(super) fn remove(&mut self, _port: u16) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// One pool.
    struct Alone(PortPools, Arc<PortSet>);

    impl Alone {
        fn new(ports: impl IntoIterator<Item = u16>, quarantine: Duration) -> Alone {
            let set = Arc::new(ports.into_iter().collect());
            Alone(PortPools::new([[Arc::clone(&set)]], quarantine), set)
        }

        fn take(&mut self, now: Instant) -> Option<Taken> {
            self.0.take((0, 0), &self.1, now)
        }

        fn give(&mut self, port: u16, seq: u32, now: Instant) {
            let last = LastUse {
                next_seq: SeqNum(seq),
                next_tsval: seq.wrapping_add(1),
            };
            self.0.release((0, 0), port, last, now);
        }

        fn pool(&self) -> &PortPool {
            self.0.pool(0, 0)
        }
    }

    #[test]
    fn the_next_port_is_told_beforehand() {
        let mut pool = Alone::new([7, 8], SECOND);
        let mut told = None;
        for _ in 0..5 {
            let taken = pool.take(at(0)).expect("a port is free");
            assert!(told.is_none_or(|told| told == taken.port));
            assert!(taken.next.is_some() && taken.next != Some(taken.port));
            told = taken.next;
            pool.give(taken.port, 1, at(0));
        }
        let last = [(); 2].map(|()| pool.take(at(0)).and_then(|taken| taken.next));
        assert!(last[0].is_some() && last[1].is_none());
    }

    #[test]
    fn ports_come_in_their_order_and_then_as_released() {
        let mut pool = Alone::new([7, 5, 0, 7, 9], SECOND);
        assert_eq!((pool.pool().capacity(), pool.pool().free()), (3, 3));
        let ports: Vec<_> = std::iter::from_fn(|| pool.take(at(0))).collect();
        assert_eq!(ports.iter().map(|taken| taken.port).collect::<Vec<_>>(), [5, 7, 9]);
        assert!(ports.iter().all(|taken| taken.last_use.is_none() && !taken.early));
        pool.give(9, 90, at(1));
        pool.give(7, 70, at(2));
        let last_use = Some(LastUse {
            next_seq: SeqNum(90),
            next_tsval: 91,
        });
        assert_eq!(
            pool.take(at(1500)),
            Some(Taken {
                port: 9,
                last_use,
                early: false,
                next: Some(7),
            })
        );
        assert_eq!(pool.take(at(1500)).map(|taken| taken.port), Some(7));
        assert_eq!(pool.take(at(1500)), None);
    }

    #[test]
    fn a_set_is_what_was_put_in_but_for_port_0() {
        let set: PortSet = [0, 1, 63, 64, 65, 4095, 65_535].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [1, 63, 64, 65, 4095, 65_535]);
        assert_eq!((set.len(), set.is_empty()), (6, false));
        assert!(set.contains(64) && !set.contains(66) && set.contains(65_535) && !set.contains(0));
        assert_eq!(PortSet::from_iter([0]).iter().next(), None);
    }

    #[test]
    fn a_port_that_is_not_usable_any_more_is_not_handed_out_but_taken_back() {
        let mut pool = Alone::new(5..=9, SECOND);
        let take = |pool: &mut Alone, now| pool.take(at(now)).map(|taken| taken.port);
        assert_eq!([take(&mut pool, 0), take(&mut pool, 0)], [Some(5), Some(6)]);
        pool.give(5, 50, at(1));
        // One that is out, one that rests, one that was never used.
        pool.1 = Arc::new([7, 9].into_iter().collect());
        assert_eq!([take(&mut pool, 2), take(&mut pool, 3)], [Some(7), Some(9)]);
        assert_eq!(
            (take(&mut pool, 4), pool.pool().in_use(), pool.pool().free()),
            (None, 3, 0)
        );
        pool.give(6, 60, at(5));
        pool.give(9, 90, at(6));
        assert_eq!([take(&mut pool, 7), take(&mut pool, 7)], [Some(9), None]);
        pool.give(7, 70, at(8));
        pool.give(9, 91, at(8));
        assert_eq!(
            (pool.pool().in_use(), pool.pool().free(), pool.pool().capacity()),
            (0, 2, 2)
        );
    }

    #[test]
    fn reuse_before_the_quarantine_ends_is_flagged() {
        let mut pool = Alone::new([1], SECOND);
        pool.take(at(0)).unwrap();
        pool.give(1, 5, at(100));
        assert!(pool.take(at(1099)).unwrap().early, "one millisecond too early");
        pool.give(1, 5, at(2000));
        // One sixty-fourth late at most.
        assert!(!pool.take(at(3016)).unwrap().early);
    }

    #[test]
    fn an_early_port_does_not_make_the_next_one_rested() {
        let mut pool = Alone::new([1, 2], SECOND);
        pool.take(at(0)).unwrap();
        pool.take(at(0)).unwrap();
        pool.give(1, 5, at(100));
        assert!(pool.take(at(200)).unwrap().early);
        pool.give(1, 5, at(300));
        pool.give(2, 5, at(300));
        assert!(pool.take(at(1200)).unwrap().early);
        assert!(!pool.take(at(1400)).unwrap().early);
    }

    #[test]
    fn a_port_rests_though_it_was_asked_for_before_and_nothing_else_is_released() {
        let mut pool = Alone::new([1, 2, 3], SECOND);
        pool.take(at(0)).unwrap();
        pool.take(at(0)).unwrap();
        pool.give(1, 5, at(100));
        assert_eq!(pool.take(at(105)).map(|taken| taken.port), Some(3));
        let taken = pool.take(at(1_117)).unwrap();
        assert_eq!((taken.port, taken.early), (1, false));
    }

    #[test]
    fn without_quarantine_nothing_is_early() {
        let mut pool = Alone::new([1], Duration::ZERO);
        for n in 0..100 {
            assert!(!pool.take(at(n / 2)).unwrap().early);
            pool.give(1, 5, at(n / 2));
        }
    }

    #[test]
    fn a_pool_takes_memory_for_the_ports_that_it_needs_at_once() {
        let mut pool = Alone::new(1024..=65_535, SECOND);
        let at_start = pool.0.memory();
        assert!(at_start < 12 << 10, "{at_start}");
        // 100 connections at once, a million in all, each a millisecond after the one before.
        let mut open: VecDeque<u16> = VecDeque::new();
        for n in 0..1_000_000 {
            let taken = pool.take(at(n)).unwrap();
            assert!(!taken.early);
            open.push_back(taken.port);
            if open.len() > 100 {
                pool.give(open.pop_front().unwrap(), n as u32, at(n));
            }
        }
        let used = pool.0.memory() - at_start;
        assert_eq!(used, pool.0.grown());
        // A thousand rest, and a part more.
        assert!((10_000..14_000).contains(&used), "{used}");
    }

    #[test]
    fn few_ports_take_one_page() {
        let mut pool = Alone::new(1024..=65_535, SECOND);
        for n in 0..100_000 {
            let port = pool.take(at(10 * n)).unwrap().port;
            pool.give(port, 1, at(10 * n));
        }
        assert_eq!(pool.0.grown(), 4096);
        assert!(pool.0.memory() <= 16 << 10, "{}", pool.0.memory());
    }

    #[test]
    fn all_ports_of_all_pools_can_be_released_at_once_and_take_ten_bytes_each() {
        let set: Arc<PortSet> = Arc::new((1024..=65_535).collect());
        let pools = || [Arc::clone(&set), Arc::clone(&set)];
        let mut all = PortPools::new([pools(), pools(), pools()], SECOND);
        let mut ports = 0;
        for round in 0..3 {
            for (server, local) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)] {
                let taken: Vec<Taken> = std::iter::from_fn(|| all.take((server, local), &set, at(round))).collect();
                assert_eq!(taken.len(), 64_512);
                for Taken { port, last_use, .. } in taken {
                    let mark = (server * 2 + local) as u32 * 65_536 + u32::from(port);
                    assert_eq!(last_use.map(|last| last.next_tsval), (round > 0).then_some(mark));
                    let last = LastUse {
                        next_seq: SeqNum(u32::MAX - mark),
                        next_tsval: mark,
                    };
                    all.release((server, local), port, last, at(round));
                    ports += 1;
                }
            }
        }
        assert_eq!(ports, 3 * 6 * 64_512);
        let bytes = all.grown() as f64 / (6.0 * 64_512.0);
        assert!(bytes < 10.2, "{bytes}");
        assert!(all.memory() <= PortSet::MEMORY + 6 * PortPools::largest(64_512) + 200);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "port 3 released but not taken")]
    fn a_port_released_twice_is_caught() {
        let mut pool = Alone::new([3, 4], SECOND);
        pool.take(at(0)).unwrap();
        pool.give(3, 0, at(0));
        pool.give(3, 0, at(0));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Take(u8),
        Release(u8, usize),
        Wait(u64),
        Rest(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let wait = prop_oneof![0u64..5, 0u64..100, 0u64..3000];
        prop_oneof![
            4 => (1u8..60).prop_map(Op::Take),
            4 => (1u8..60, any::<usize>()).prop_map(|(count, which)| Op::Release(count, which)),
            2 => wait.prop_map(Op::Wait),
            1 => (0u64..2000).prop_map(Op::Rest)
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_queue_of_times(
            count in prop_oneof![1u16..50, 150u16..1000],
            quarantine in 0u64..2000,
            ops in prop::collection::vec(op(), 1..400),
        ) {
            let mut pool = Alone::new(100..100 + count, Duration::from_millis(quarantine));
            let mut fresh: VecDeque<u16> = (100..100 + count).collect();
            // Port, number, when it may be taken at the earliest, and when it was released.
            let mut queue: VecDeque<(u16, u32, u64, u64)> = VecDeque::new();
            let mut out = Vec::new();
            let (mut now, mut seq, mut last_released) = (0u64, 0u32, 0u64);
            let mut asked = vec![quarantine];
            for op in ops {
                match op {
                    Op::Wait(millis) => now += millis,
                    Op::Rest(millis) => {
                        pool.0.set_quarantine(Duration::from_millis(millis));
                        asked.push(millis);
                    }
                    Op::Release(count, which) => for _ in 0..usize::from(count).min(out.len()) {
                        let port = out.swap_remove(which % out.len());
                        seq += 7;
                        pool.give(port, seq, at(now));
                        last_released = now;
                        queue.push_back((port, seq, now + asked.last().copied().unwrap_or(0), now));
                    }
                    Op::Take(count) => for _ in 0..count {
                        let taken = pool.take(at(now));
                        let Some(taken) = taken else {
                            prop_assert!(fresh.is_empty() && queue.is_empty());
                            break;
                        };
                        let few = pool.pool().capacity() - fresh.len() < FEW as usize;
                        // Whether a port has rested is exact below the quarantine, and may be seen one part later; where it was
                        // changed, at the end of the longest, which those behind wait for, too.
                        let front = queue.front().copied();
                        let longest = asked.iter().copied().max().unwrap_or(0);
                        let latest = if asked.len() == 1 { front.map_or(0, |of| of.3) } else { last_released };
                        let surely = front.is_some() && now > latest + longest + longest / 64 + 1;
                        match taken.last_use {
                            None => {
                                prop_assert!(few || !surely, "fresh though one has rested at {now}: {front:?}");
                                prop_assert_eq!(fresh.pop_front(), Some(taken.port));
                                prop_assert!(!taken.early);
                            }
                            Some(last) => {
                                prop_assert!(fresh.is_empty() || !few && !taken.early);
                                let (port, seq, earliest, _) = queue.pop_front().unwrap();
                                prop_assert_eq!((taken.port, last.next_seq.0, last.next_tsval), (port, seq, seq + 1));
                                prop_assert!(taken.early || now >= earliest, "taken at {now}: {front:?}");
                                prop_assert!(!taken.early || !surely);
                            }
                        }
                        out.push(taken.port);
                    }
                }
                prop_assert_eq!((pool.pool().free(), pool.pool().in_use()), (fresh.len() + queue.len(), out.len()));
            }
        }
    }
}
