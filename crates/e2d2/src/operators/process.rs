//! `process`: a user's node in the graph, which takes whole batches and emits any number of packets.

use std::cell::RefCell;
use std::rc::Rc;

use super::{Burst, Round, Source};
use crate::fate::{DropReason, Traffic};
use crate::time::Instant;

/// What a user puts into the graph: a proxy core, a neighbour table, a generator.
pub trait Node {
    /// What it takes.
    type Input;
    /// What it emits.
    type Output;

    /// Handles a batch of at most [`crate::BURST`] packets; the batch is empty if only time has passed.
    ///
    /// It is called once in each round in which its outbox has been emptied, so timers are its own business: look at
    /// `round.now()`, and report timers that fired with `round.add_work`. It may go over the batch several times, to
    /// prefetch what it looks up. It must take every packet out of `batch` (`drain`, `pop`): what it leaves is dropped as
    /// [`DropReason::LeftByNode`]. What it takes counts as [`Traffic::Consumed`], whether it comes out again or not.
    fn process(&mut self, round: &mut Round<'_>, batch: &mut Burst<Self::Input>, out: &mut Outbox<Self::Output>);

    /// When it wants to be called even if no packet comes; nothing if it waits for packets only.
    fn next_deadline(&self) -> Option<Instant>;
}

/// A node that something else on the same core looks into between rounds, such as commands and statistics.
impl<N: Node> Node for Rc<RefCell<N>> {
    type Input = N::Input;
    type Output = N::Output;

    #[inline]
    fn process(&mut self, round: &mut Round<'_>, batch: &mut Burst<N::Input>, out: &mut Outbox<N::Output>) {
        self.borrow_mut().process(round, batch, out);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.borrow().next_deadline()
    }
}

/// Where a [`Node`] puts what it emits. Bounded; empty whenever the node is called.
pub struct Outbox<T> {
    /// Filled, then emptied from the front, as a rule all at once: a plain vector is faster than a ring.
    packets: Vec<T>,
    capacity: usize,
}

impl<T> Outbox<T> {
    /// An empty outbox for `capacity` packets. [`Source::process`] makes it; so do tests of a node.
    pub fn new(capacity: usize) -> Self {
        Self {
            packets: Vec::with_capacity(capacity),
            capacity,
        }
    }

    /// Emits `packet`.
    ///
    /// # Errors
    /// Gives it back if the outbox is full.
    #[inline]
    pub fn push(&mut self, packet: T) -> Result<(), T> {
        // The second condition never holds alone; it shows the compiler that the vector does not grow.
        if self.packets.len() >= self.capacity || self.packets.len() == self.packets.capacity() {
            return Err(packet);
        }
        self.packets.push(packet);
        Ok(())
    }

    /// Emits `packet`, or drops it as [`DropReason::OutboxFull`].
    #[inline]
    pub fn emit(&mut self, round: &mut Round<'_>, packet: T) {
        if let Err(packet) = self.push(packet) {
            round.count(Traffic::Emitted, 1);
            round.discard(packet, DropReason::OutboxFull);
        }
    }

    /// How many more packets fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.capacity - self.packets.len()
    }

    /// Takes out what was emitted, at most `max` packets. [`Source::process`] does it; so do tests of a node.
    #[inline]
    pub fn take(&mut self, max: usize) -> impl Iterator<Item = T> + '_ {
        let count = max.min(self.packets.len());
        self.packets.drain(..count)
    }
}

/// See [`Source::process`].
pub struct Process<S: Source, N: Node> {
    source: S,
    node: N,
    batch: Burst<S::Item>,
    outbox: Outbox<N::Output>,
}

impl<S: Source, N: Node<Input = S::Item>> Process<S, N> {
    pub(super) fn new(source: S, node: N, outbox: usize) -> Self {
        Self {
            source,
            node,
            batch: Burst::new(),
            outbox: Outbox::new(outbox),
        }
    }

    #[inline]
    fn run_node(&mut self, round: &mut Round<'_>) {
        let batch = &mut self.batch;
        // `pull` gives no more than asked for, and the batch is empty here.
        let got = self.source.pull(round, batch.capacity(), |_, item| batch.push(item));
        self.node.process(round, &mut self.batch, &mut self.outbox);
        round.count(Traffic::Consumed, got - self.batch.len());
        for left in self.batch.drain(..) {
            round.discard(left, DropReason::LeftByNode);
        }
        // It was empty before; what did not fit has been counted by `Outbox::emit`.
        round.count(Traffic::Emitted, self.outbox.packets.len());
    }
}

impl<S: Source, N: Node<Input = S::Item>> Source for Process<S, N> {
    type Item = N::Output;

    #[inline]
    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, Self::Item)) -> usize {
        if self.outbox.packets.is_empty() {
            self.run_node(round);
        }
        let mut passed = 0;
        for packet in self.outbox.take(max) {
            passed += 1;
            each(round, packet);
        }
        round.add_work(passed);
        passed
    }

    fn next_deadline(&self) -> Option<Instant> {
        let own = self.node.next_deadline();
        [own, self.source.next_deadline()].into_iter().flatten().min()
    }
}
