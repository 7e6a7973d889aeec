//! A NIC in software: several queues, RSS and flow rules in front of a port that has one queue.
//!
//! ```text
//!                      ┌─► ring ─► NicQueue 0 (a port of worker 0)
//!   port ◄─► NicSide ──┼─► ring ─► NicQueue 1 (a port of worker 1)      and back by as many rings
//!            (a task)  └─► …
//! ```
//!
//! The device's side classifies each packet as the card would: by [rules](crate::flow) first, else TCP by its hash through the
//! redirection table, and all else at queue 0. It says the hash in [`RxInfo::rss_hash`](crate::buffer::RxInfo). A card's limits
//! are imitated strictly ([`RuleTable`]), so that every way of steering runs, and fails, as it would on the card.
//!
//! Rings are bounded. A packet for a full ring is dropped and counted, as a NIC does without free descriptors; a full ring to
//! the device refuses packets to the worker, which keeps them. Packets of one queue stay in order, both ways.
//!
//! What it costs: a parse and a hash for each packet received, and two ring operations for each burst and queue, on the core
//! that runs [`NicSide`].

mod queue;
mod side;
mod tuple;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rtrb::RingBuffer;

pub use queue::NicQueue;
pub use side::NicSide;

use crate::counters::{self, CounterReader, Counters};
use crate::flow::{FlowError, FlowRule, NicModel, RuleIndex, RuleTable};
use crate::port::{Capabilities, Port};
use crate::rss::{DEFAULT_KEY, Rss, Toeplitz, even_reta};

/// What a software NIC is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// The card whose limits it has.
    pub model: NicModel,
    /// How many queue pairs.
    pub queues: u16,
    /// Packets that each queue's ring from the device holds.
    pub rx_ring: usize,
    /// Packets that each queue's ring to the device holds.
    pub tx_ring: usize,
    /// The RSS key; cut or repeated to what the card has.
    pub key: Vec<u8>,
}

impl NicConfig {
    /// Rings of 1024 packets and the default key.
    pub fn new(model: NicModel, queues: u16) -> Self {
        Self {
            model,
            queues,
            rx_ring: 1024,
            tx_ring: 1024,
            key: DEFAULT_KEY.to_vec(),
        }
    }
}

/// Why there is no such software NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NicError {
    /// No queues, or more than the card spreads over.
    #[error("a software NIC of model {} spreads over 1 to {most} queues, and {asked} are asked for", model.name())]
    Queues {
        /// The card.
        model: NicModel,
        /// How many were asked for.
        asked: u16,
        /// How many it has.
        most: u16,
    },
    /// A ring for nothing.
    #[error("a software NIC needs rings of one packet at least")]
    NoRing,
}

crate::reasons! {
    /// What became of the packets that a software NIC moved.
    pub enum NicEvent {
        /// Received from the port, for the queue that a rule says.
        ByRule = "by_rule",
        /// Received, for the queue that its hash says.
        ByHash = "by_hash",
        /// Received, neither matched by a rule nor hashed: for queue 0.
        ByDefault = "by_default",
        /// One of the above, and dropped: its queue's ring was full.
        Missed = "missed",
        /// Taken from a queue and sent by the port.
        Sent = "sent",
    }
}

/// The owner's hold on a software NIC: rules and counts. It may be on any thread, and be dropped before the rest.
#[derive(Debug)]
pub struct SoftwareNic {
    rss: Rss,
    table: RuleTable,
    shared: Arc<Shared>,
    counts: CounterReader<NicEvent>,
}

/// The parts of a software NIC.
pub struct NicParts<P: Port> {
    /// What its owner keeps.
    pub nic: SoftwareNic,
    /// The task that moves packets.
    pub side: NicSide<P>,
    /// Its queues, one for each worker.
    pub queues: Vec<NicQueue<P::Buffer>>,
}

/// What the threads share beside the rings; only rules ever change, and those by version.
#[derive(Debug)]
struct Shared {
    version: AtomicU32,
    rules: Mutex<Arc<RuleIndex>>,
}

impl SoftwareNic {
    /// Puts a software NIC in front of `port`. It is started.
    ///
    /// # Errors
    /// The card has fewer queues, or a ring has no room.
    pub fn open<P: Port>(port: P, config: &NicConfig) -> Result<NicParts<P>, NicError> {
        let NicConfig { model, queues, .. } = *config;
        let most = model.most_queues();
        if !(1..=most).contains(&queues) {
            return Err(NicError::Queues {
                model,
                asked: queues,
                most,
            });
        }
        if config.rx_ring == 0 || config.tx_ring == 0 {
            return Err(NicError::NoRing);
        }
        let key: Vec<u8> = config.key.iter().copied().cycle().take(model.key_length()).collect();
        let rss = Rss::new(&key, even_reta(model.reta_entries(), queues));
        let shared = Arc::new(Shared {
            version: AtomicU32::new(0),
            rules: Mutex::default(),
        });
        let mut table = RuleTable::new(&format!("port {}", port.id().0), model, queues);
        table.start();
        let capabilities = Capabilities {
            rss_hash: true,
            ..port.capabilities()
        };
        let mut ends = Vec::new();
        let queues = (0..queues).map(|index| {
            let (to_queue, rx) = RingBuffer::new(config.rx_ring);
            let (tx, from_queue) = RingBuffer::new(config.tx_ring);
            ends.push(side::End::new(to_queue, from_queue));
            NicQueue::new(&port, capabilities, index, (rx, tx))
        });
        let queues = queues.collect();
        let (writer, counts) = counters::shared();
        Ok(NicParts {
            side: NicSide::new(
                port,
                Toeplitz::new(&key),
                rss.reta.clone(),
                ends,
                Arc::clone(&shared),
                writer,
            ),
            nic: Self {
                rss,
                table,
                shared,
                counts,
            },
            queues,
        })
    }

    /// How it spreads TCP over its queues.
    pub fn rss(&self) -> &Rss {
        &self.rss
    }

    /// The rules in force.
    pub fn rules(&self) -> &[FlowRule] {
        self.table.rules()
    }

    /// Has it follow all of `rules` or none, besides those that it has. They hold from the next burst on.
    ///
    /// # Errors
    /// What the card would refuse or weaken.
    pub fn install(&mut self, rules: &[FlowRule]) -> Result<(), FlowError> {
        self.table.install(rules)?;
        self.publish();
        Ok(())
    }

    /// Removes all rules; what the card remembers of them it remembers.
    pub fn remove_rules(&mut self) {
        self.table.clear();
        self.publish();
    }

    /// What became of the packets so far.
    pub fn counts(&self) -> Counters<NicEvent> {
        self.counts.snapshot()
    }

    fn publish(&self) {
        let index = Arc::new(RuleIndex::new(self.table.rules()));
        *self.shared.rules.lock().unwrap_or_else(PoisonError::into_inner) = index;
        self.shared.version.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
