//! `receive`: takes bursts from a port.

use super::{Burst, Frame, Round, SharedPort, Source};
use crate::BURST;
use crate::buffer::PacketBuffer;
use crate::fate::Traffic;
use crate::port::{Port, PortId};
use crate::time::Instant;

/// See [`receive`].
pub struct Receive<P: Port> {
    id: PortId,
    /// What the port gave and nobody has pulled yet: left by the last pull, or taken ahead.
    burst: Burst<P::Buffer>,
    /// A whole burst was there for the last pull that asked, so that the port may hold more.
    is_backlogged: bool,
    /// Dropped last: a port keeps the memory of the packets above.
    port: SharedPort<P>,
}

/// A source of the frames that come in at `port`, each tagged with the port's id.
///
/// The port is always asked for a whole burst, for vector drivers deliver nothing into less; if fewer packets are pulled
/// than came, the rest is given first the next time, and the port is asked when that is not enough.
///
/// Where a whole burst was there, the next is taken before the present one is worked on, so that its headers are on their
/// way to the cache meanwhile: at most a burst, which the next pull gives first. What is there for a pull is what it would be
/// without that, and so is [`Round::is_backlogged`]; a round in which packets are taken ahead has given others, so that it is
/// a busy one and the next follows at once.
pub fn receive<P: Port>(port: &SharedPort<P>) -> Receive<P> {
    let id = port.borrow().id();
    Receive {
        id,
        burst: Burst::new(),
        is_backlogged: false,
        port: SharedPort::clone(port),
    }
}

impl<P: Port> Receive<P> {
    /// Asks the port for a burst, for which there must be room; returns how many packets came.
    #[inline]
    fn ask(&mut self, round: &mut Round<'_>) -> usize {
        let received = self.port.borrow_mut().receive(&mut self.burst);
        if received > 0 {
            round.count(Traffic::Received, received);
            // All loads start before the first packet is looked at: they overlap instead of adding up.
            self.burst.iter().for_each(PacketBuffer::prefetch);
        }
        received
    }

    /// Gives packets that have been received, at most `max`; returns how many.
    #[inline]
    fn give(
        &mut self,
        round: &mut Round<'_>,
        max: usize,
        each: &mut impl FnMut(&mut Round<'_>, Frame<P::Buffer>),
    ) -> usize {
        let count = max.min(self.burst.len());
        round.add_work(count);
        for buffer in self.burst.drain(..count) {
            each(round, Frame { buffer, port: self.id });
        }
        count
    }
}

impl<P: Port> Source for Receive<P> {
    type Item = Frame<P::Buffer>;

    #[inline]
    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, Self::Item)) -> usize {
        // What is here already goes first. Then the port is asked all the same: with two busy ports every second round
        // would have to do with the leftovers otherwise.
        let here = self.burst.len();
        let mut given = 0;
        if here > 0 {
            // Asked for when they were taken: what has been worked on since may have driven them out of the first-level cache.
            self.burst.iter().for_each(PacketBuffer::prefetch);
            given = self.give(round, max, &mut each);
        }
        if given < max {
            let received = self.ask(round);
            self.is_backlogged = here + received >= BURST;
            given += self.give(round, max - given, &mut each);
        }
        // Noted before packets are taken ahead: that the port has fewer than a burst more says nothing of this round.
        round.note_backlog(self.is_backlogged);
        if self.is_backlogged && self.burst.is_empty() {
            self.ask(round);
        }
        given
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}
