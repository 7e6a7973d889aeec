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
}

/// A source of the frames that come in at `port`, each tagged with the port's id.
///
/// The port is always asked for a whole burst, for vector drivers deliver nothing into less; if fewer packets are pulled
/// than came, the rest is given first the next time and the port is not asked.
pub fn receive<P: Port>(port: &SharedPort<P>) -> Receive<P> {
    let id = port.borrow().id();
    Receive {
        port: SharedPort::clone(port),
        id,
        burst: Burst::new(),
    }
}

impl<P: Port> Source for Receive<P> {
    type Item = Frame<P::Buffer>;

    #[inline]
    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, Self::Item)) -> usize {
        if self.burst.is_empty() {
            let received = self.port.borrow_mut().receive(&mut self.burst);
            if received == 0 {
                return 0;
            }
            round.count(Traffic::Received, received);
            // All loads start before the first packet is looked at: they overlap instead of adding up.
            self.burst.iter().for_each(PacketBuffer::prefetch);
        }
        let count = max.min(self.burst.len());
        round.add_work(count);
        for buffer in self.burst.drain(..count) {
            each(round, Frame { buffer, port: self.id });
        }
        count
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}
