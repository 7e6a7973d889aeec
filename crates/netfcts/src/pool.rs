//! Source ports of one (local address, server) pair.
//!
//! A port that a connection has used rests at the tail of a queue, together with the numbers that its next connection has
//! to exceed so that a server still in TIME-WAIT takes the SYN (RFC 9293 3.6.1, RFC 6191). While a port is out, the
//! connection owns those numbers: the pool needs no table by port and ports may be any subset of the 65 535 (those that
//! steer back to one core, say).
//!
//! Budget: 10 bytes per port (a port, a sequence number and a time stamp in one ring) and about 1 KiB per pool for the
//! quarantine. Taking and releasing touch one place each, both move forward through memory.

use std::time::Duration;

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

/// A port handed out by [`PortPool::take`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The port.
    pub port: u16,
    /// What is left from the connection before; `None` for the port's first use.
    pub last_use: Option<LastUse>,
    /// Whether the port's quarantine is not over: no rested port was left.
    pub early: bool,
}

/// Parts that a quarantine is measured in: a port rests at most this fraction longer than asked for, never shorter.
const PARTS: u32 = 64;

/// A queue of free ports, used first in first out. See the module documentation.
///
/// Owned by one core.
pub struct PortPool {
    ports: Box<[u16]>,
    /// Two arrays and not one of pairs with `ports`: 10 bytes per port, not 12.
    last_uses: Box<[(SeqNum, u32)]>,
    /// Ring positions count up and are never reset.
    head: u64,
    tail: u64,
    /// The positions modulo the number of ports, kept beside them to spare the division.
    head_slot: usize,
    tail_slot: usize,
    quarantine: Quarantine,
    taken: taken::Ports,
}

impl PortPool {
    /// A pool of the given ports, handed out in this order at first. A port released rests for `quarantine`.
    ///
    /// Port 0 and repeated ports are left out.
    pub fn new(ports: impl IntoIterator<Item = u16>, quarantine: Duration) -> PortPool {
        let mut seen = [0u64; 1024];
        let unseen = |port: &u16| {
            let (word, bit) = (usize::from(*port) / 64, 1 << (port % 64));
            let fresh = seen[word] & bit == 0;
            seen[word] |= bit;
            fresh && *port != 0
        };
        let ports: Box<[u16]> = ports.into_iter().filter(unseen).collect();
        PortPool {
            last_uses: vec![(SeqNum(0), 0); ports.len()].into_boxed_slice(),
            head: 0,
            tail: ports.len() as u64,
            head_slot: 0,
            tail_slot: 0,
            quarantine: Quarantine::new(quarantine, ports.len() as u64),
            taken: taken::Ports::default(),
            ports,
        }
    }

    /// Number of ports, free or taken.
    pub fn capacity(&self) -> usize {
        self.ports.len()
    }

    /// Number of free ports, rested or not.
    pub fn free(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// Number of ports taken.
    pub fn in_use(&self) -> usize {
        self.capacity() - self.free()
    }

    /// Bytes of memory held, for the budget per connection.
    pub fn memory(&self) -> usize {
        size_of::<PortPool>() + size_of_val(&*self.ports) + size_of_val(&*self.last_uses) + self.quarantine.memory()
    }

    /// Takes the port that has rested longest; `None` if all are in use.
    #[inline]
    pub fn take(&mut self, now: Instant) -> Option<Taken> {
        if self.head == self.tail {
            return None;
        }
        let (position, slot) = (self.head, self.head_slot);
        self.head += 1;
        self.head_slot = self.after(slot);
        let port = self.ports[slot];
        self.taken.insert(port);
        // The first round through the ring holds the ports as they were given, unused.
        let used = position >= self.ports.len() as u64;
        let last_use = used.then(|| {
            let (next_seq, next_tsval) = self.last_uses[slot];
            LastUse { next_seq, next_tsval }
        });
        Some(Taken {
            port,
            last_use,
            early: !self.quarantine.has_rested(position, now),
        })
    }

    /// The port that [`PortPool::take`] gives next; `None` if all are in use. What it will read besides is asked for.
    #[inline]
    pub fn next_port(&self) -> Option<u16> {
        if self.head == self.tail {
            return None;
        }
        e2d2::prefetch(&self.last_uses[self.head_slot]);
        Some(self.ports[self.head_slot])
    }

    /// Gives a port back. It goes to the tail; `next_seq` and `next_tsval` come back with it when it is taken again.
    ///
    /// A release beyond the number of ports taken is ignored; in a build with assertions any port that is not taken panics.
    #[inline]
    pub fn release(&mut self, port: u16, next_seq: SeqNum, next_tsval: u32, now: Instant) {
        self.taken.remove(port);
        if self.free() == self.capacity() {
            return;
        }
        let slot = self.tail_slot;
        self.tail_slot = self.after(slot);
        self.ports[slot] = port;
        self.last_uses[slot] = (next_seq, next_tsval);
        self.quarantine.released(self.tail, now);
        self.tail += 1;
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.ports.len() { 0 } else { slot + 1 }
    }
}

/// Tells which ring positions have rested, without a time per port: positions are released in the order of time, so it is
/// enough to remember where the tail stood at the end of every part of the quarantine.
struct Quarantine {
    length: Duration,
    part: Duration,
    /// Positions below this one have rested.
    rested: u64,
    /// Closed parts that may not have rested, oldest first: (first position after the part, when its positions have rested).
    parts: std::collections::VecDeque<(u64, Instant)>,
    /// End of the part that releases go to now; its positions are those from the last closed part on.
    part_end: Instant,
    /// First position that was not released when last asked.
    tail: u64,
}

impl Quarantine {
    fn new(length: Duration, rested: u64) -> Quarantine {
        // One closed part per part's length, for the quarantine's length, and one closing at either end.
        let parts = std::collections::VecDeque::with_capacity(PARTS as usize + 3);
        Quarantine {
            length,
            part: length / PARTS,
            rested,
            parts,
            part_end: Instant::ZERO,
            tail: rested,
        }
    }

    fn memory(&self) -> usize {
        self.parts.capacity() * size_of::<(u64, Instant)>()
    }

    #[inline]
    fn released(&mut self, position: u64, now: Instant) {
        if now >= self.part_end {
            self.advance(now);
            self.part_end = now + self.part;
        }
        self.tail = position + 1;
    }

    #[inline]
    fn has_rested(&mut self, position: u64, now: Instant) -> bool {
        if position < self.rested {
            return true;
        }
        self.advance(now);
        position < self.rested
    }

    fn advance(&mut self, now: Instant) {
        let closed = self.parts.back().map_or(self.rested, |(end, _)| *end);
        if now >= self.part_end && self.tail > closed {
            self.parts.push_back((self.tail, self.part_end + self.length));
        }
        while let Some((end, _)) = self.parts.front().filter(|(_, rested_at)| *rested_at <= now) {
            self.rested = *end;
            self.parts.pop_front();
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

    fn give(pool: &mut PortPool, port: u16, seq: u32, now: Instant) {
        pool.release(port, SeqNum(seq), seq.wrapping_add(1), now);
    }

    #[test]
    fn the_next_port_is_told_beforehand() {
        let mut pool = PortPool::new([7, 8], SECOND);
        for _ in 0..5 {
            let told = pool.next_port();
            let taken = pool.take(at(0)).map(|taken| taken.port);
            assert!(told.is_some() && told == taken);
            assert_ne!(pool.next_port(), taken);
            pool.release(taken.unwrap_or_default(), SeqNum(1), 1, at(0));
        }
        let _ = (pool.take(at(0)), pool.take(at(0)));
        assert_eq!(pool.next_port(), None);
    }

    #[test]
    fn ports_come_in_the_order_given_and_then_as_released() {
        let mut pool = PortPool::new([7, 5, 0, 7, 9], SECOND);
        assert_eq!((pool.capacity(), pool.free()), (3, 3));
        let ports: Vec<_> = std::iter::from_fn(|| pool.take(at(0))).collect();
        assert_eq!(ports.iter().map(|taken| taken.port).collect::<Vec<_>>(), [7, 5, 9]);
        assert!(ports.iter().all(|taken| taken.last_use.is_none() && !taken.early));
        give(&mut pool, 9, 90, at(1));
        give(&mut pool, 7, 70, at(2));
        let last_use = Some(LastUse {
            next_seq: SeqNum(90),
            next_tsval: 91,
        });
        assert_eq!(
            pool.take(at(1500)),
            Some(Taken {
                port: 9,
                last_use,
                early: false
            })
        );
        assert_eq!(pool.take(at(1500)).map(|taken| taken.port), Some(7));
        assert_eq!(pool.take(at(1500)), None);
    }

    #[test]
    fn reuse_before_the_quarantine_ends_is_flagged() {
        let mut pool = PortPool::new([1], SECOND);
        pool.take(at(0)).unwrap();
        give(&mut pool, 1, 5, at(100));
        assert!(pool.take(at(1099)).unwrap().early, "one millisecond too early");
        give(&mut pool, 1, 5, at(2000));
        // One sixty-fourth late at most.
        assert!(!pool.take(at(3016)).unwrap().early);
    }

    #[test]
    fn an_early_port_does_not_make_the_next_one_rested() {
        let mut pool = PortPool::new([1, 2], SECOND);
        pool.take(at(0)).unwrap();
        pool.take(at(0)).unwrap();
        give(&mut pool, 1, 5, at(100));
        assert!(pool.take(at(200)).unwrap().early);
        give(&mut pool, 1, 5, at(300));
        give(&mut pool, 2, 5, at(300));
        assert!(pool.take(at(1200)).unwrap().early);
        assert!(!pool.take(at(1400)).unwrap().early);
    }

    #[test]
    fn without_quarantine_nothing_is_early() {
        let mut pool = PortPool::new([1], Duration::ZERO);
        for n in 0..100 {
            assert!(!pool.take(at(n / 2)).unwrap().early);
            give(&mut pool, 1, 5, at(n / 2));
        }
    }

    #[test]
    fn ten_bytes_per_port() {
        let fixed = PortPool::new([], SECOND).memory();
        assert_eq!(PortPool::new(1..=60_000, SECOND).memory() - fixed, 600_000);
        assert!(fixed < 2048, "{fixed}");
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "port 3 released but not taken")]
    fn a_port_released_twice_is_caught() {
        let mut pool = PortPool::new([3, 4], SECOND);
        pool.take(at(0)).unwrap();
        give(&mut pool, 3, 0, at(0));
        give(&mut pool, 3, 0, at(0));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Take,
        Release(usize),
        Wait(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let wait = prop_oneof![0u64..5, 0u64..100, 0u64..3000];
        prop_oneof![4 => Just(Op::Take), 4 => any::<usize>().prop_map(Op::Release), 2 => wait.prop_map(Op::Wait)]
    }

    proptest! {
        #[test]
        fn agrees_with_a_queue_of_times(
            count in 1u16..50,
            quarantine in 0u64..2000,
            ops in prop::collection::vec(op(), 1..800),
        ) {
            let mut pool = PortPool::new(100..100 + count, Duration::from_millis(quarantine));
            let mut free: VecDeque<_> = (100..100 + count).map(|port| (port, None)).collect();
            let mut out = Vec::new();
            let (mut now, mut seq) = (0u64, 0u32);
            for op in ops {
                match op {
                    Op::Wait(millis) => now += millis,
                    Op::Release(_) if out.is_empty() => {}
                    Op::Release(index) => {
                        let port = out.swap_remove(index % out.len());
                        seq += 7;
                        give(&mut pool, port, seq, at(now));
                        free.push_back((port, Some((seq, now))));
                    }
                    Op::Take => {
                        let (taken, expected) = (pool.take(at(now)), free.pop_front());
                        prop_assert_eq!(taken.map(|taken| taken.port), expected.map(|(port, _)| port));
                        let (Some(taken), Some((port, last))) = (taken, expected) else { continue };
                        prop_assert_eq!(taken.last_use.map(|last| last.next_seq.0), last.map(|(seq, _)| seq));
                        let rested = last.map_or(u64::MAX, |(_, released)| now - released);
                        // Early is exact below the quarantine, and may last one part longer.
                        prop_assert!(taken.early || rested >= quarantine, "rested {rested} of {quarantine}");
                        prop_assert!(!taken.early || rested <= quarantine + quarantine / 64 + 1);
                        out.push(port);
                    }
                }
                prop_assert_eq!((pool.free(), pool.in_use()), (free.len(), out.len()));
            }
        }
    }
}
