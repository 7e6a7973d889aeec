//! `send`: transmits each packet by the port it names; the end of a chain.

use std::rc::Rc;

use super::{Burst, Frame, Round, SharedPort, Source, Task, Work};
use crate::fate::{DropReason, GraphCounters, Traffic};
use crate::port::Port;
use crate::queue::Queue;
use crate::time::Instant;

/// See [`Source::send`].
pub struct SendTask<S, P: Port> {
    source: S,
    lanes: Vec<Lane<P>>,
    /// The lane of each port id; [`NO_LANE`] where there is none.
    lane_of: [u8; 256],
    counters: Rc<GraphCounters>,
}

/// A lane's index fits in 8 bits because port ids do; the last index is given up as the mark.
const NO_LANE: u8 = u8::MAX;

/// The way to one port. Packets leave in order: first those staged, then those of the backlog.
struct Lane<P: Port> {
    staged: Burst<P::Buffer>,
    backlog: Queue<P::Buffer>,
    /// Dropped last: a port keeps the memory of the packets above.
    port: SharedPort<P>,
}

impl<S: Source, P: Port> SendTask<S, P> {
    pub(super) fn new(
        source: S,
        ports: impl IntoIterator<Item = SharedPort<P>>,
        backlog: usize,
        counters: Rc<GraphCounters>,
    ) -> Self {
        let mut lanes = Vec::new();
        let mut lane_of = [NO_LANE; 256];
        for port in ports.into_iter().take(usize::from(NO_LANE)) {
            lane_of[usize::from(port.borrow().id().0)] = lanes.len() as u8;
            lanes.push(Lane {
                port,
                staged: Burst::new(),
                backlog: Queue::new(backlog),
            });
        }
        Self {
            source,
            lanes,
            lane_of,
            counters,
        }
    }
}

impl<P: Port> Lane<P> {
    #[inline]
    fn push(&mut self, round: &mut Round<'_>, buffer: P::Buffer) {
        if self.backlog.is_empty() && !self.staged.is_full() {
            self.staged.push(buffer);
        } else {
            self.push_behind(round, buffer);
        }
    }

    #[inline(never)]
    fn push_behind(&mut self, round: &mut Round<'_>, buffer: P::Buffer) {
        // A backlog means that the port has refused in this run: it is asked again at the end of it, not per packet.
        if self.backlog.is_empty() {
            self.flush(round);
        }
        if self.backlog.is_empty() && !self.staged.is_full() {
            self.staged.push(buffer);
        } else if let Err(buffer) = self.backlog.push(buffer) {
            round.discard(buffer, DropReason::TxRefused);
        }
    }

    /// Transmits until nothing is left or the port refuses.
    #[inline]
    fn flush(&mut self, round: &mut Round<'_>) {
        let mut port = self.port.borrow_mut();
        while !self.staged.is_empty() {
            let sent = port.transmit(&mut self.staged);
            round.count(Traffic::Sent, sent);
            round.add_work(sent);
            self.staged.extend(self.backlog.drain(self.staged.remaining_capacity()));
            if sent == 0 {
                break;
            }
        }
    }
}

impl<S: Source, P: Port> Task for SendTask<S, P>
where
    S::Item: Into<Frame<P::Buffer>>,
{
    fn run(&mut self, now: Instant) -> Work {
        let mut round = Round::new(now, &self.counters);
        let (lanes, lane_of) = (&mut self.lanes, &self.lane_of);
        // What was refused earlier goes first, and makes room for what comes now.
        for lane in lanes.iter_mut() {
            lane.flush(&mut round);
            round.note_congestion(2 * lane.backlog.len() > lane.backlog.capacity());
        }
        self.source.pull(&mut round, usize::MAX, |round, item| {
            let Frame { buffer, port } = item.into();
            match lanes.get_mut(usize::from(lane_of[usize::from(port.0)])) {
                Some(lane) => lane.push(round, buffer),
                None => round.discard(buffer, DropReason::UnknownPort),
            }
        });
        lanes.iter_mut().for_each(|lane| lane.flush(&mut round));
        round.work()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.source.next_deadline()
    }
}
