//! The device's side: takes bursts from the port and spreads them, collects from the queues and sends.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use arrayvec::ArrayVec;
use rtrb::{Consumer, Producer};

use super::tuple::Tuple;
use super::{NicEvent, Shared};
use crate::BURST;
use crate::buffer::PacketBuffer;
use crate::counters::CounterWriter;
use crate::flow::RuleIndex;
use crate::port::Port;
use crate::rss::Toeplitz;
use crate::scheduler::{Task, Work};
use crate::time::Instant;

/// Bursts that one run takes from the port at most: as many packets as four queues' workers take in one round.
const BURSTS: usize = 4;

/// The device's ends of a queue's rings, and what of a burst is for it.
pub(super) struct End<B> {
    to_queue: Producer<B>,
    from_queue: Consumer<B>,
    staged: ArrayVec<B, BURST>,
}

impl<B> End<B> {
    pub(super) fn new(to_queue: Producer<B>, from_queue: Consumer<B>) -> Self {
        Self {
            to_queue,
            from_queue,
            staged: ArrayVec::new(),
        }
    }

    /// Puts what is staged into the ring; returns how many did not fit and were dropped.
    fn flush(&mut self) -> usize {
        let count = self.to_queue.slots().min(self.staged.len());
        if let Ok(room) = self.to_queue.write_chunk_uninit(count) {
            room.fill_from_iter(self.staged.drain(..count));
        }
        let missed = self.staged.len();
        self.staged.clear();
        missed
    }

    /// Whether its worker still has it, or has left something in it.
    fn is_in_use(&self) -> bool {
        !self.from_queue.is_abandoned() || self.from_queue.slots() > 0
    }
}

/// The task that moves a [`SoftwareNic`](super::SoftwareNic)'s packets. One thread runs it: that of the first worker beside its
/// graph, or one of its own.
pub struct NicSide<P: Port> {
    toeplitz: Toeplitz,
    /// Of a power of two entries.
    reta: Vec<u16>,
    rules: Arc<RuleIndex>,
    version: u32,
    ends: Vec<End<P::Buffer>>,
    /// The end from which the next run sends first.
    next: usize,
    /// What the port has refused; goes first.
    refused: ArrayVec<P::Buffer, BURST>,
    shared: Arc<Shared>,
    counts: CounterWriter<NicEvent>,
    /// Dropped last: a port keeps the memory of the packets above.
    port: P,
}

impl<P: Port> NicSide<P> {
    pub(super) fn new(
        port: P,
        toeplitz: Toeplitz,
        reta: Vec<u16>,
        ends: Vec<End<P::Buffer>>,
        shared: Arc<Shared>,
        counts: CounterWriter<NicEvent>,
    ) -> Self {
        Self {
            toeplitz,
            reta,
            rules: Arc::default(),
            version: 0,
            ends,
            next: 0,
            refused: ArrayVec::new(),
            shared,
            counts,
            port,
        }
    }

    /// The port in front of which it is.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// Whether workers other than the one with the queue `own` still have queues, or packets wait to be sent. Whoever runs the
    /// task goes on with it until then, lest the others' last packets stay in their rings.
    pub fn is_needed_beside(&self, own: Option<u16>) -> bool {
        let is_own = |index: usize| own.is_some_and(|own| usize::from(own) == index);
        let mut ends = self.ends.iter().enumerate();
        !self.refused.is_empty()
            || ends.any(|(index, end)| {
                if is_own(index) {
                    end.from_queue.slots() > 0
                } else {
                    end.is_in_use()
                }
            })
    }

    /// Takes up new rules, if there are any.
    fn follow_rules(&mut self) {
        let version = self.shared.version.load(Ordering::Acquire);
        if version != self.version {
            let rules = self.shared.rules.lock().unwrap_or_else(PoisonError::into_inner);
            (self.rules, self.version) = (Arc::clone(&rules), version);
        }
    }

    /// Receives bursts and spreads them; returns how many packets came.
    fn receive(&mut self) -> usize {
        let mut total = 0;
        let mut received = ArrayVec::new();
        for _ in 0..BURSTS {
            let count = self.port.receive(&mut received);
            total += count;
            received.iter().for_each(PacketBuffer::prefetch);
            for packet in received.drain(..) {
                self.stage(packet);
            }
            self.flush();
            if count < BURST {
                break;
            }
        }
        total
    }

    /// Notes the packet for its queue.
    fn stage(&mut self, mut packet: P::Buffer) {
        let tuple = Tuple::read(packet.data());
        let hash = tuple.map(|tuple| tuple.hash(&self.toeplitz));
        packet.set_rss_hash(hash);
        let by_rule = match tuple {
            Some(tuple) if !self.rules.is_empty() => self.rules.find(tuple.destination(), tuple.destination_port()),
            _ => None,
        };
        let (queue, event) = match (by_rule, hash) {
            (Some(queue), _) => (queue, NicEvent::ByRule),
            (None, Some(hash)) => (self.reta[hash as usize & (self.reta.len() - 1)], NicEvent::ByHash),
            (None, None) => (0, NicEvent::ByDefault),
        };
        self.counts.add(event, 1);
        // Rules and table name queues that there are, and each end has room for a whole burst.
        self.ends[usize::from(queue)].staged.push(packet);
    }

    fn flush(&mut self) {
        for end in &mut self.ends {
            if end.staged.is_empty() {
                continue;
            }
            let lost = end.flush() as u64;
            if lost > 0 {
                self.counts.add(NicEvent::Missed, lost);
            }
        }
    }

    /// Sends what waits, a burst of each queue at most, until the port refuses; returns how many packets went.
    fn transmit(&mut self) -> usize {
        let count = self.ends.len();
        let mut sent = 0;
        for step in 0..count {
            if self.refused.is_empty() {
                let from = &mut self.ends[(self.next + step) % count].from_queue;
                let waiting = from.slots().min(BURST);
                if let Ok(packets) = from.read_chunk(waiting) {
                    self.refused.extend(packets);
                }
            }
            if self.refused.is_empty() {
                continue;
            }
            sent += self.port.transmit(&mut self.refused);
            if !self.refused.is_empty() {
                break;
            }
        }
        self.next = (self.next + 1) % count.max(1);
        self.counts.add(NicEvent::Sent, sent as u64);
        sent
    }
}

impl<P: Port> Task for NicSide<P> {
    fn run(&mut self, _now: Instant) -> Work {
        self.follow_rules();
        let sent = self.transmit();
        Work::units(sent + self.receive())
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

impl<P: Port> fmt::Debug for NicSide<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NicSide")
            .field("port", &self.port.id())
            .field("queues", &self.ends.len())
            .finish_non_exhaustive()
    }
}
