//! The operators that a graph is made of, one per file.
//!
//! A graph is a chain of [`Source`]s that ends in a [`Task`]. The task pulls: each time the scheduler runs it, it asks its
//! source for packets, that one asks its own source, and so on up to the ports. Each operator hands every packet it gets
//! to the closure that the operator behind it passed up, so a whole chain compiles into one loop over the received
//! burst: no packet is stored between `receive` and `send` but where an operator says so.
//!
//! ```text
//!   port 0 ─► receive ─┐                       ┌─► Tcp ───────► process ─┐
//!                      ├─► merge ─► parse ─► group_by               merge ─► send ─┬─► port 0
//!   port 1 ─► receive ─┘                       └─► Neighbour ─► process ─┘         └─► port 1
//! ```
//!
//! | operator | what it does |
//! |---|---|
//! | [`receive`] | takes a burst from a port |
//! | [`Source::parse`] | checks the headers once; drops what no host should send |
//! | [`Source::filter`] | keeps what a predicate wants, drops the rest |
//! | [`Source::map`] | changes each packet |
//! | [`Source::group_by`] | splits by what a packet is, into one source for each group |
//! | [`merge`], [`merge_by_priority`] | join several sources into one |
//! | [`Source::process`] | a user's [`Node`]: a whole batch in, any number of packets out |
//! | [`Source::send`] | transmits by the port that each packet names; the end of a chain |
//!
//! A packet is owned by exactly one operator at a time: it moves into the closure, and whoever drops it does so through
//! [`Round::discard`], which counts the reason. What a node takes, it must count itself.
//!
//! **Back-pressure, not loss, inside a graph.** An operator that stores packets (`group_by`, `process`) does not ask for
//! more until there is room for a whole burst; what is not asked for waits in the port, which counts what it loses.
//! Packets are dropped only for what they are, by a node that emits more than its outbox holds, and at a port that refuses.
//!
//! Budget, in cycles per packet beyond what the ports cost, for bursts of 32 in the cache: 10 for receive → send, 10 more
//! for a node, 10 more for groups and their merge. Measured at 2.6 GHz: 7, 8, and 1 where the merge asks the group with
//! the most packets first, as [`merge_by_priority`] does, or 5 in turn (`benches/graph.rs`).

mod filter;
mod group_by;
mod map;
mod merge;
mod parse;
mod process;
mod receive;
mod send;

use std::cell::RefCell;
use std::rc::Rc;

use arrayvec::ArrayVec;

use crate::BURST;
use crate::buffer::PacketBuffer;
use crate::counters::Reason;
use crate::fate::{DropReason, GraphCounters, Traffic};
use crate::port::{Port, PortId};
use crate::time::Instant;
use crate::wire::frame::Packet;

pub use crate::scheduler::{Task, Work};
pub use filter::Filter;
pub use group_by::{Group, Groups};
pub use map::Map;
pub use merge::{Merge, Sources, merge, merge_by_priority};
pub use parse::Parse;
pub use process::{Node, Outbox, Process};
pub use receive::{Receive, receive};
pub use send::SendTask;

/// What moves at once: at most [`BURST`] items.
pub type Burst<T> = ArrayVec<T, BURST>;

/// A port that several operators of one core use: one receives from it, another sends to it.
pub type SharedPort<P> = Rc<RefCell<P>>;

/// Makes a port usable by several operators of one core.
pub fn share<P: Port>(port: P) -> SharedPort<P> {
    Rc::new(RefCell::new(port))
}

/// A frame and a port: the one that received it, and later the one that is to send it.
#[derive(Debug)]
pub struct Frame<B> {
    /// The frame.
    pub buffer: B,
    /// Where it came from or is to go.
    pub port: PortId,
}

impl<B> From<Packet<B>> for Frame<B> {
    #[inline]
    fn from(packet: Packet<B>) -> Self {
        Self {
            buffer: packet.buffer,
            port: packet.port,
        }
    }
}

/// One run of a task: what its operators need to know and what they report.
pub struct Round<'a> {
    now: Instant,
    counters: &'a GraphCounters,
    work: Work,
    is_backlogged: bool,
    is_congested: bool,
}

impl<'a> Round<'a> {
    /// A run at `now` that counts into `counters`. Tasks make it; so do tests of an operator.
    pub fn new(now: Instant, counters: &'a GraphCounters) -> Self {
        Self {
            now,
            counters,
            work: Work::NONE,
            is_backlogged: false,
            is_congested: false,
        }
    }

    /// The time of this run: one value for all packets of it.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Drops a packet and counts why.
    #[inline]
    pub fn discard<T>(&mut self, packet: T, reason: DropReason) {
        self.counters.discard(packet, reason);
    }

    /// Counts packets that came or went.
    #[inline]
    pub fn count(&mut self, traffic: Traffic, packets: usize) {
        self.counters.traffic.add(traffic, packets as u64);
    }

    /// Reports work: packets received, timers that fired, anything that makes this round a busy one.
    #[inline]
    pub fn add_work(&mut self, units: usize) {
        self.work += Work::units(units);
    }

    /// Reports whether a port has given as many packets as it was asked for, so that more may be waiting in it.
    #[inline]
    pub fn note_backlog(&mut self, is_backlogged: bool) {
        self.is_backlogged |= is_backlogged;
    }

    /// True if more packets than this round has taken may be waiting in some port.
    #[inline]
    pub fn is_backlogged(&self) -> bool {
        self.is_backlogged
    }

    /// Reports that what waits for some port fills more than half of its backlog.
    #[inline]
    pub fn note_congestion(&mut self, is_congested: bool) {
        self.is_congested |= is_congested;
    }

    /// True if what is emitted now may find no room in front of its port: what can wait should.
    #[inline]
    pub fn is_congested(&self) -> bool {
        self.is_congested
    }

    /// What was reported so far.
    pub fn work(&self) -> Work {
        self.work
    }
}

/// Something that packets can be pulled from: a port, a queue, or an operator with its sources.
pub trait Source: Sized {
    /// What comes out.
    type Item;

    /// Gives at most `max` packets to `each`, in order; returns how many.
    ///
    /// One call is one visit: each port and queue above is looked at once, so a call ends even if packets come in faster
    /// than they are handled. Fewer than `max` does not mean that there are no more.
    fn pull(&mut self, round: &mut Round<'_>, max: usize, each: impl FnMut(&mut Round<'_>, Self::Item)) -> usize;

    /// When a node above wants to run even if no packet comes; nothing if none does.
    fn next_deadline(&self) -> Option<Instant>;

    /// Checks each frame once; see [`crate::wire::frame::parse_with`].
    fn parse<B: PacketBuffer>(self) -> Parse<Self>
    where
        Self: Source<Item = Frame<B>>,
    {
        Parse::new(self)
    }

    /// Keeps what `wanted` returns true for and drops the rest as [`DropReason::Filtered`].
    fn filter<F: FnMut(&Self::Item) -> bool>(self, wanted: F) -> Filter<Self, F> {
        Filter::new(self, wanted)
    }

    /// Replaces each packet by what `change` makes of it. For nothing or for many, use [`Source::process`].
    fn map<T, F: FnMut(Self::Item) -> T>(self, change: F) -> Map<Self, F> {
        Map::new(self, change)
    }

    /// Splits by the group that `classify` names; take each group's source from the result.
    fn group_by<G: Reason, F: FnMut(&Self::Item) -> G>(self, classify: F) -> Groups<Self, G, F> {
        Groups::new(self, classify)
    }

    /// Hands whole batches to `node`, which may emit `outbox` packets before the first of them is taken from it.
    fn process<N: Node<Input = Self::Item>>(self, node: N, outbox: usize) -> Process<Self, N> {
        Process::new(self, node, outbox)
    }

    /// Ends the chain at `ports`: each packet leaves by the one it names. What a port refuses waits, in order, in a queue
    /// of `backlog` packets for each port; what does not fit into it is dropped.
    fn send<P: Port>(
        self,
        ports: impl IntoIterator<Item = SharedPort<P>>,
        backlog: usize,
        counters: Rc<GraphCounters>,
    ) -> SendTask<Self, P>
    where
        Self::Item: Into<Frame<P::Buffer>>,
    {
        SendTask::new(self, ports, backlog, counters)
    }
}
