//! `receive`: takes bursts from a port.

use super::{Burst, Frame, Round, SharedPort, Source};
use crate::buffer::PacketBuffer;
use crate::fate::Traffic;
use crate::port::{Port, PortId};
use crate::time::Instant;

/// See [`receive`].
pub struct Receive<P: Port> {
    port: SharedPort<P>,
    id: PortId,
    burst: Burst<P::Buffer>,
    /// The port gave as much as was asked of it the last time, so that it may hold more.
    is_backlogged: bool,
}

/// A source of the frames that come in at `port`, each tagged with the port's id.
///
/// The port is always asked for a whole burst, for vector drivers deliver nothing into less; if fewer packets are pulled
/// than came, the rest is given first the next time, and the port is asked when that is not enough.
pub fn receive<P: Port>(port: &SharedPort<P>) -> Receive<P> {
    let id = port.borrow().id();
    Receive {
        port: SharedPort::clone(port),
        id,
        burst: Burst::new(),
        is_backlogged: false,
    }
}

impl<P: Port> Receive<P> {
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
        // What was left the last time goes first. Then the port is asked all the same: with two busy ports every second
        // round would have to do with the leftovers otherwise.
        let mut given = 0;
        if !self.burst.is_empty() {
            given = self.give(round, max, &mut each);
        }
        if given < max {
            let received = self.port.borrow_mut().receive(&mut self.burst);
            self.is_backlogged = received == crate::BURST;
            if received > 0 {
                round.count(Traffic::Received, received);
                // All loads start before the first packet is looked at: they overlap instead of adding up.
                self.burst.iter().for_each(PacketBuffer::prefetch);
                given += self.give(round, max - given, &mut each);
            }
        }
        round.note_backlog(self.is_backlogged);
        given
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}
