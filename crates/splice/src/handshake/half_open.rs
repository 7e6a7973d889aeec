//! SYN-ACKs that are repeated because the client may stay silent (DECISIONS.md 15).
//!
//! A client of a listener that binds at the handshake waits for the server to speak. If its ACK is lost, it believes to
//! be connected and says nothing, and a cookie alone would never know. So these SYNs are remembered, in queues of fixed
//! size, and their SYN-ACK is repeated after 1, 2 and 4 s unless the connection has come into being. Past three quarters of
//! the room no more are taken: cookies alone, and that is counted.

use crate::session::options::Agreed;
use crate::session::segment::Segment;
use e2d2::port::PortId;
use e2d2::wire::MacAddr;
use netfcts::FourTuple;
use netfcts::seq::SeqNum;
use std::collections::VecDeque;

/// The waits between SYN-ACKs in ms (RFC 6298 2.1 and 5.5: one second, doubled).
const WAITS_MS: [u32; 3] = [1000, 2000, 4000];

/// A SYN that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfOpen {
    remote: [u64; 2],
    local: [u64; 2],
    remote_port: u16,
    local_port: u16,
    /// The client's initial sequence number.
    pub client_isn: SeqNum,
    /// Ours.
    pub cookie: SeqNum,
    /// The client's TSval, if timestamps were agreed.
    pub tsval: Option<u32>,
    /// What was agreed.
    pub agreed: Agreed,
    /// Where its frames come from.
    pub mac: MacAddr,
    /// The port that it is on.
    pub device: PortId,
}

impl HalfOpen {
    pub(crate) fn new(segment: &Segment, cookie: SeqNum, tsval: Option<u32>, agreed: Agreed) -> Self {
        let split = |address: u128| [(address >> 64) as u64, address as u64];
        HalfOpen {
            remote: split(segment.key.remote),
            local: split(segment.key.local),
            remote_port: segment.key.remote_port,
            local_port: segment.key.local_port,
            client_isn: segment.seq,
            cookie,
            tsval,
            agreed,
            mac: segment.source_mac,
            device: segment.device,
        }
    }

    pub(crate) fn key(&self) -> FourTuple {
        let join = |[high, low]: [u64; 2]| u128::from(high) << 64 | u128::from(low);
        FourTuple {
            remote: join(self.remote),
            local: join(self.local),
            remote_port: self.remote_port,
            local_port: self.local_port,
        }
    }
}

/// The half-open connections of one core: one queue for each wait, so that the next that is due is always in front.
pub(crate) struct HalfOpenTable {
    queues: [VecDeque<(u32, HalfOpen)>; WAITS_MS.len()],
    capacity: usize,
}

impl HalfOpenTable {
    /// Room for `capacity` of them, allocated now.
    pub(crate) fn new(capacity: usize) -> Self {
        HalfOpenTable {
            queues: std::array::from_fn(|_| VecDeque::with_capacity(capacity)),
            capacity,
        }
    }

    /// Remembers a SYN-ACK that was sent at `now_ms`. Returns false past the high-water mark: it will not be repeated.
    pub(crate) fn push(&mut self, entry: HalfOpen, now_ms: u32) -> bool {
        if self.len() >= self.capacity / 4 * 3 {
            return false;
        }
        self.queues[0].push_back((now_ms.wrapping_add(WAITS_MS[0]), entry));
        true
    }

    /// Takes an entry whose SYN-ACK is due, with the number of repetitions it has had.
    pub(crate) fn pop_due(&mut self, now_ms: u32) -> Option<(usize, HalfOpen)> {
        for (repetitions, queue) in self.queues.iter_mut().enumerate() {
            if queue
                .front()
                .is_some_and(|(due, _)| now_ms.wrapping_sub(*due) as i32 >= 0)
            {
                return queue.pop_front().map(|(_, entry)| (repetitions, entry));
            }
        }
        None
    }

    /// Puts an entry back whose SYN-ACK has just been repeated; after the last repetition it is forgotten.
    pub(crate) fn push_again(&mut self, repetitions: usize, entry: HalfOpen, now_ms: u32) {
        let next = repetitions + 1;
        if let (Some(queue), Some(wait)) = (self.queues.get_mut(next), WAITS_MS.get(next)) {
            queue.push_back((now_ms.wrapping_add(*wait), entry));
        }
    }

    /// When the next is due, in ms of the core's clock.
    pub(crate) fn next_due(&self, now_ms: u32) -> Option<u32> {
        let due = self
            .queues
            .iter()
            .filter_map(|queue| queue.front().map(|(due, _)| *due));
        due.min_by_key(|due| due.wrapping_sub(now_ms) as i32)
    }

    pub(crate) fn len(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    pub(crate) fn clear(&mut self) {
        self.queues.iter_mut().for_each(VecDeque::clear);
    }

    pub(crate) fn memory(&self) -> usize {
        self.queues
            .iter()
            .map(|queue| queue.capacity() * size_of::<(u32, HalfOpen)>())
            .sum()
    }
}
