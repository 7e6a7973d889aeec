//! Carrying out what [`step`](super::step::step) asks for: the only place that changes a connection.
//!
//! This file lets events happen; what an action does is in the file of its part of a connection's life:
//! `waiting` for the first payload, and its memory; `shaking` hands end to end, with or without a header behind that;
//! `calling` the server; `passing` segments, also those that are too long; `owing` the server bytes; `ending`, and
//! TIME-WAIT after that.

mod calling;
mod ending;
mod heading;
mod inspecting;
mod introducing;
mod owing;
mod passing;
mod repeating;
mod shaking;
mod waiting;

use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::ids::PoolId;
use crate::base::output::{NextHops, Output};
use crate::base::stage::WorkStage;
use crate::proxy::{Incoming, Proxy, Rooms};
use crate::session::action::Action;
use crate::session::connection::Connection;
use crate::session::event::Event;
use crate::session::phase::Phase;
use crate::session::step::{Step, step};
use calling::SpliceParams;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::wire::tcp::TcpOptions;
use netfcts::Side;
use netfcts::record::Cause;
use waiting::PayloadWait;

/// What the actions of one event share.
pub(crate) struct ActionContext<'a, B> {
    /// The segment that caused it, until an action has used it up.
    pub incoming: Option<Incoming<'a, B>>,
    /// Who sent that; means nothing without.
    pub from: Side,
    /// The pool from which the selector's server was picked, for its call.
    pool: Option<PoolId>,
    /// What [`Action::Splice`] leaves for the actions after it.
    handoff: Option<SpliceParams>,
    /// Who sent the last segment of a connection, and its TSval and TSecr: the segment itself has gone on when the port
    /// is given back.
    last_timestamps: Option<(Side, (u32, u32))>,
}

impl<'a, B> ActionContext<'a, B> {
    /// That of a segment of `from`.
    #[inline]
    pub(crate) fn with(from: Side, incoming: Incoming<'a, B>) -> Self {
        ActionContext {
            incoming: Some(incoming),
            from,
            ..Self::nothing()
        }
    }

    /// That of a timer, or of anything else that is no segment.
    #[inline]
    pub(crate) fn nothing() -> Self {
        ActionContext {
            incoming: None,
            from: Side::Client,
            pool: None,
            handoff: None,
            last_timestamps: None,
        }
    }

    /// Who sent the segment, and its timestamps.
    fn timestamps(&self) -> Option<(Side, (u32, u32))>
    where
        B: PacketBuffer,
    {
        let incoming = self.incoming.as_ref()?;
        let options = TcpOptions::parse(incoming.segment.options(incoming.buffer.data()));
        options.timestamps.map(|values| (self.from, values))
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// Lets `event` happen to the connection in `slot`, and whatever follows from it.
    pub(super) fn drive(
        &mut self,
        slot: u32,
        event: Event,
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let Some(connection) = self.connections.get_mut(slot) else {
                break;
            };
            let before = connection.phase();
            let (after, actions) = match step(before, event) {
                Step::Go { next, actions } => (next, actions),
                Step::Ignore => break,
                Step::Impossible => return self.rooms.impossible(before, event),
            };
            if let (Phase::Spliced { client, server }, Some(spliced)) = (after, connection.spliced_mut()) {
                (spliced.client_fin, spliced.server_fin) = (client, server);
            }
            if after == Phase::TimeWait {
                scene.last_timestamps = scene.timestamps();
            }
            if let Event::Segment { .. } = event {
                self.rooms.note_close(slot, before, event, scene.incoming.as_ref());
            }
            for &action in actions {
                out.enter(WorkStage::from(action));
                next = match action {
                    // Others may have to give way.
                    Action::Hold => self.hold(slot, scene, out),
                    // The client's own source may be that of another connection.
                    Action::ConnectServer => self.connect_server(slot, scene, out),
                    _ => self.apply(slot, (action, event), scene, out),
                };
                if next.is_some() {
                    break;
                }
            }
            out.enter(WorkStage::Classify);
            // The connection of a client whose cookie comes back begins anew behind its row.
            let is_where_expected = |connection: &Connection| connection.phase() == after || event == Event::CookieAck;
            debug_assert!(next.is_some() || self.connections.get(slot).is_none_or(is_where_expected));
            if before != after
                && matches!(before, Phase::Spliced { .. })
                && let Some(connection) = self.connections.get(slot)
            {
                self.rooms.arm_closing(slot, connection, before);
            }
        }
        if scene.incoming.take().is_some() {
            self.rooms.emit.dropped(DropReason::Consumed);
        }
    }

    #[inline]
    fn apply(
        &mut self,
        slot: u32,
        (action, event): (Action, Event),
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        let connection = self.connections.get_mut(slot)?;
        let follows = self.rooms.apply(slot, connection, (action, event), scene, out);
        if action.ends_connection() {
            self.connections.free(slot);
        }
        follows
    }

    /// Calls the chosen server. Whether the client's own address and port are free there is a question to the flow table,
    /// so it comes before the connection is changed.
    fn connect_server(
        &mut self,
        slot: u32,
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        let source = self.rooms.client_source(slot, self.connections.get(slot)?);
        let is_taken = source.is_some_and(|key| {
            let flow = self.find_key(self.rooms.flows.hash(&key), &key);
            flow.is_some_and(|flow| !flow.is_time_wait())
        });
        let connection = self.connections.get_mut(slot)?;
        self.rooms.connect_server(slot, connection, is_taken, scene, out)
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Counts an event that the table excludes; the connection stays as it is.
    ///
    /// # Panics
    ///
    /// With debug assertions.
    #[cold]
    pub(crate) fn impossible(&mut self, phase: Phase, event: Event) {
        debug_assert!(false, "{phase} × {event} is impossible");
        self.emit.dropped(DropReason::ImpossibleTransition);
    }

    fn apply(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        (action, event): (Action, Event),
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        match action {
            Action::AskSelector => return self.ask_selector(slot, connection, PayloadWait::Left, scene, out),
            Action::Splice => return self.splice(slot, connection, scene),
            Action::AcknowledgeServer => self.acknowledge_server(connection, scene, out),
            Action::SendBuffered => return self.send_held(slot, connection, scene, out),
            Action::Forward => {
                if let Event::Segment { from, .. } | Event::Reset(from) | Event::InWindowRst(from) = event {
                    self.forward(slot, connection, from, scene, out);
                }
            }
            Action::EnterTimeWait(cause) => {
                let cause = self.cause_of_silence(slot, connection, cause);
                self.end(slot, connection, cause, scene);
            }
            // What does not happen to every connection.
            _ => return self.apply_seldom(slot, connection, (action, event), scene, out),
        }
        None
    }

    #[inline(never)]
    fn apply_seldom(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        (action, event): (Action, Event),
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        match action {
            Action::AskAtLast => return self.ask_selector(slot, connection, PayloadWait::Over, scene, out),
            Action::EvictUnacked => self.give_up_copy(slot, connection),
            Action::AckBuffered => self.acknowledge_held(connection, scene, out),
            Action::RetransmitSyn => self.send_syn(slot, connection, None, true, out),
            Action::NextServer => return self.next_server(slot, connection, event),
            Action::MoveToNextServer => return self.give_call_up(slot, connection),
            Action::ResetStaleServer => self.reset_stale(scene, out),
            Action::ForwardSynAck => self.pass_syn_ack(slot, connection, scene, out),
            Action::AwaitProxyHeader => return self.await_header(slot, connection, scene),
            Action::ReadHeader => return self.read_header_behind_syn(slot, connection, scene, out),
            Action::Establish => return self.establish(slot, connection, scene, out),
            Action::Retransmit => self.on_rtx_timeout(slot, connection, out),
            Action::AskReceiver => {
                if let Event::OutOfWindow(from) = event {
                    self.ask_receiver(connection, from, scene, out);
                }
            }
            Action::SendKeepAlive => {
                if let Event::InWindowRst(from) = event {
                    self.probe(connection, from, out);
                }
            }
            Action::CloseClient => self.close_client(slot, connection, scene, out),
            Action::ChallengeAck => self.challenge(connection, scene, out),
            Action::ResetClient => self.reset(slot, connection, Side::Client, out),
            Action::ResetServer => self.reset(slot, connection, Side::Server, out),
            Action::Forget(cause) => self.end(slot, connection, cause, scene),
            Action::ForgetWithFailure => {
                let cause = connection.state.call().map_or(Cause::NoServer, |call| call.failure);
                self.end(slot, connection, cause, scene);
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
}
