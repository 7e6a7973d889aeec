//! Late segments of connections that are over: translated as before, while their addresses and ports rest, or refused if they
//! have bytes that no inspector has seen.

use super::passing::Offsets;
use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::base::stage::WorkStage;
use crate::proxy::{Incoming, Proxy, routes};
use crate::session::action::Action;
use crate::session::event::Event;
use crate::session::phase::Phase;
use crate::session::step::step;
use crate::session::table::FlowRef;
use crate::time_wait::Late;
use e2d2::buffer::BufferPool;
use e2d2::time::Instant;
use e2d2::wire::tcp::TcpFlags;
use netfcts::Side;

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// A segment of a resting connection.
    pub(crate) fn drive_time_wait(
        &mut self,
        now: Instant,
        flow: FlowRef,
        event: Event,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        for action in step(Phase::TimeWait, event).actions {
            out.enter(WorkStage::from(*action));
            match action {
                Action::Forward => return self.forward_time_wait(now, flow, incoming, out),
                Action::Drop(reason) => return self.emit.drops.add(*reason, 1),
                _ => {}
            }
        }
        self.emit.dropped(DropReason::UnknownFlow);
    }

    fn forward_time_wait(
        &mut self,
        now: Instant,
        flow: FlowRef,
        mut incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(rested) = self.time_wait.entry(flow.slot()).copied() else {
            return;
        };
        let from = flow.side();
        // The other leg's addresses and ports may be a new connection's by now. Its numbers can be near the old ones:
        // nothing of the old one may reach it.
        if !rested.legs.has(from.peer()) {
            return self.emit.dropped(DropReason::UnknownFlow);
        }
        let has_payload = incoming.segment.payload_len() > 0;
        let is_reset = incoming.segment.has(TcpFlags::RST);
        // RFC 9293 3.10.7.4: a receiver believes an RST that begins at RCV.NXT, and keeps payload anywhere in its window.
        if rested.late == Late::Answered && from == Side::Server && (has_payload || is_reset) {
            return self.emit.dropped(DropReason::UnknownFlow);
        }
        if rested.late == Late::HeaderOnly && has_payload {
            // RFC 9293 3.10.7.1: what comes for a connection that does not exist gets RST, but a RST gets nothing.
            return if is_reset {
                self.emit.dropped(DropReason::UnknownFlow)
            } else {
                self.refuse(now, incoming, out)
            };
        }
        let path = match from {
            Side::Client => routes::path_to_server(&self.settings, &self.next_hops, &rested),
            Side::Server => Some(routes::path_to_client(&self.settings, &rested)),
        };
        let Some(path) = path else {
            return self.emit.dropped(DropReason::NoNeighbour);
        };
        let id = self.emit.next_ip_id();
        let values = Offsets::of_time_wait(&rested).rewrite(from, incoming.segment, &path, id);
        match self.pass(&mut incoming, &values, &path, out) {
            Ok(()) => out.send(path.device, incoming.buffer),
            Err(reason) => self.emit.dropped(reason),
        }
    }
}
