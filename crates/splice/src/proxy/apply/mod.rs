//! Carrying out what [`step`](super::step::step) asks for: the only place that changes a connection.
//!
//! This file lets events happen; what an action does is in the file of its part of a connection's life:
//! `waiting` for the first payload, `relieving` the memory for it, `shaking` hands end to end, `awaiting` a header behind that, `calling` the server,
//! `passing` segments, `owing` the server bytes, `cutting` segments that are too long, `challenging` an end in doubt,
//! `ending`, and `resting` after that.

mod awaiting;
mod calling;
mod challenging;
mod cutting;
mod ending;
mod heading;
mod inspecting;
mod introducing;
mod owing;
mod passing;
mod relieving;
mod repeating;
mod resting;
mod shaking;
mod waiting;

use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::base::stage::WorkStage;
use crate::proxy::{Incoming, Proxy};
use crate::session::action::Action;
use crate::session::connection::{Opening, Spliced, Stage};
use crate::session::event::{Event, FinChange};
use crate::session::phase::Phase;
use crate::session::step::step;
use calling::SpliceParams;
use e2d2::buffer::BufferPool;
use e2d2::time::Instant;
use netfcts::Side;
use netfcts::record::Cause;
use waiting::PayloadWait;

/// What the actions of one event share.
pub(crate) struct ActionContext<'a, B> {
    /// The segment that caused it, until an action has used it up.
    pub incoming: Option<Incoming<'a, B>>,
    /// What [`Action::Splice`] leaves for the actions after it.
    handoff: Option<SpliceParams>,
    /// Who sent the last segment of a connection, and its TSval and TSecr: the segment itself has gone on when the port
    /// is given back.
    last_timestamps: Option<(Side, (u32, u32))>,
}

impl<'a, B> ActionContext<'a, B> {
    pub(crate) fn with(incoming: Incoming<'a, B>) -> Self {
        ActionContext {
            incoming: Some(incoming),
            handoff: None,
            last_timestamps: None,
        }
    }
}

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// Lets `event` happen to the connection in `slot`, and whatever follows from it.
    pub(super) fn drive(
        &mut self,
        now: Instant,
        slot: u32,
        event: Event,
        incoming: Option<Incoming<P::Buffer>>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let mut scene = ActionContext {
            incoming,
            handoff: None,
            last_timestamps: None,
        };
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let Some(connection) = self.connections.get_mut(slot) else {
                break;
            };
            let before = connection.phase;
            let transition = step(before, event);
            connection.phase = transition.next;
            if transition.next == Phase::TimeWait {
                scene.last_timestamps = self.timestamps_of(slot, scene.incoming.as_ref());
            }
            if let Event::Segment {
                from,
                fin,
                acknowledges_fin,
            } = event
            {
                self.note_close(
                    now,
                    slot,
                    before,
                    from,
                    (fin == FinChange::Noted, acknowledges_fin),
                    scene.incoming.as_ref(),
                );
            }
            for &action in transition.actions {
                out.enter(WorkStage::from(action));
                if let Some(follows) = self.apply(now, slot, (action, event), &mut scene, out) {
                    next = Some(follows);
                    break;
                }
            }
            out.enter(WorkStage::Classify);
            if before != transition.next && before.is_spliced() {
                self.arm_closing(now, slot, before);
            }
        }
        if scene.incoming.is_some() {
            self.emit.dropped(DropReason::Consumed);
        }
    }

    fn apply(
        &mut self,
        now: Instant,
        slot: u32,
        (action, event): (Action, Event),
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        match action {
            Action::Hold => return self.hold(slot, scene, out),
            Action::AskSelector => return self.ask_selector(now, slot, PayloadWait::Left, scene, out),
            Action::ConnectServer => return self.connect_server(now, slot, scene, out),
            Action::Splice => return self.splice(now, slot, scene),
            Action::AcknowledgeServer => self.acknowledge_server(now, slot, scene, out),
            Action::SendBuffered => return self.send_held(now, slot, scene, out),
            Action::Forward => {
                if let Event::Segment { from, .. } | Event::Reset(from) | Event::InWindowRst(from) = event {
                    self.forward(now, slot, from, scene, out);
                }
            }
            Action::EnterTimeWait(cause) => {
                let cause = self.cause_of_silence(slot, cause);
                self.end(now, slot, cause, scene);
            }
            // What does not happen to every connection.
            _ => return self.apply_seldom(now, slot, (action, event), scene, out),
        }
        None
    }

    #[inline(never)]
    fn apply_seldom(
        &mut self,
        now: Instant,
        slot: u32,
        (action, event): (Action, Event),
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        match action {
            Action::AskAtLast => return self.ask_selector(now, slot, PayloadWait::Over, scene, out),
            Action::EvictUnacked => self.give_up_copy(slot),
            Action::AckBuffered => self.acknowledge_held(slot, scene, out),
            Action::RetransmitSyn => self.send_syn(now, slot, None, true, out),
            Action::NextServer => return self.next_server(now, slot, event),
            Action::MoveToNextServer => return self.give_call_up(now, slot),
            Action::ResetStaleServer => self.reset_stale(scene, out),
            Action::ForwardSynAck => self.pass_syn_ack(now, slot, scene, out),
            Action::AwaitProxyHeader => return self.await_header(now, slot, scene),
            Action::ReadHeader => return self.read_header_behind_syn(slot, scene, out),
            Action::SpliceAnswered => return self.splice_answered(now, slot, scene),
            Action::Establish => return self.establish(now, slot, scene, out),
            Action::Retransmit => self.on_rtx_timeout(now, slot, out),
            Action::ForwardLimited => {
                if let Event::OutOfWindow(from) = event {
                    self.forward_rarely(now, slot, from, scene, out);
                }
            }
            Action::SendKeepAlive => {
                if let Event::InWindowRst(from) = event {
                    self.probe(now, slot, from, out);
                }
            }
            Action::CloseClient => self.close_client(now, slot, scene, out),
            Action::ChallengeAck => self.challenge(now, slot, scene, out),
            Action::ResetClient => self.reset(slot, Side::Client, out),
            Action::ResetServer => self.reset(slot, Side::Server, out),
            Action::Forget(cause) => self.end(now, slot, cause, scene),
            Action::ForgetWithFailure => {
                let cause = self
                    .opening_mut(slot)
                    .map_or(Cause::NoServer, |opening| opening.failure);
                self.end(now, slot, cause, scene);
            }
            Action::Drop(reason) => {
                if scene.incoming.take().is_some() {
                    self.emit.dropped(reason);
                }
            }
            // Those of `apply`, and those of flows without a connection, which `on_no_connection` deals with.
            Action::Hold
            | Action::AskSelector
            | Action::ConnectServer
            | Action::Splice
            | Action::AcknowledgeServer
            | Action::SendBuffered
            | Action::Forward
            | Action::EnterTimeWait(_)
            | Action::SendCookie
            | Action::CreateConnection
            | Action::StoreSyn
            | Action::Refuse => {}
        }
        None
    }

    pub(super) fn opening_mut(&mut self, slot: u32) -> Option<&mut Opening> {
        match &mut self.connections.get_mut(slot)?.stage {
            Stage::Opening(opening) => Some(opening),
            Stage::Spliced(_) => None,
        }
    }

    fn spliced_mut(&mut self, slot: u32) -> Option<&mut Spliced> {
        match &mut self.connections.get_mut(slot)?.stage {
            Stage::Spliced(spliced) => Some(spliced),
            Stage::Opening(_) => None,
        }
    }
}
