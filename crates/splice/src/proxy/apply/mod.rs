//! Carrying out what [`step`](super::step::step) asks for: the only place that changes a connection.
//!
//! This file lets events happen; what an action does is in the file of its part of a connection's life:
//! `first_payload` is held and shown to the selector, behind a `received_header`; `forwarding_syn` leaves the handshake to both
//! ends; `connecting` to the server `choosing` has found; `passing` segments, also those that are too long; `watching` some of them;
//! `retransmitting` to the server; `inspecting`, with `inspect_start` and `inspect_send`; `ending`, and TIME-WAIT after that.

mod choosing;
mod connecting;
mod ending;
mod first_payload;
mod forwarding_syn;
mod inspect_send;
mod inspect_start;
mod inspecting;
mod passing;
mod received_header;
mod retransmitting;
mod watching;

use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::ids::{PoolId, ServerId};
use crate::base::output::{NextHops, Output};
use crate::base::stage::WorkStage;
use crate::emit::Telling;
use crate::proxy::{Incoming, Proxy, Rooms};
use crate::session::action::{Action, Ask};
use crate::session::connection::Connection;
use crate::session::event::Event;
use crate::session::phase::Phase;
use crate::session::state::ClientSide;
use crate::session::step::{Step, step};
use connecting::SpliceParams;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::wire::tcp::TcpOptions;
use netfcts::Side;
use netfcts::record::Cause;

/// What the actions of one event share.
pub(crate) struct ActionContext<'a, B> {
    /// The segment that caused it, until an action has used it up.
    pub incoming: Option<Incoming<'a, B>>,
    /// Who sent that; means nothing without.
    pub from: Side,
    /// The server that an ask has chosen.
    server: Option<ServerId>,
    /// The pool that the selector has chosen it from, for its call.
    pool: Option<PoolId>,
    /// The server that was left last.
    pub(crate) given_up: Option<ServerId>,
    /// What [`Action::FallBackToCookie`] goes on with.
    pub(crate) client: Option<ClientSide>,
    /// What [`Action::Splice`] leaves for the actions after it.
    splice_params: Option<SpliceParams>,
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
            server: None,
            pool: None,
            given_up: None,
            client: None,
            splice_params: None,
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
    /// Lets `event` happen to the connection in `slot`, and whatever follows from it: a row is its actions, and then the ask
    /// whose answer is the next event.
    #[inline]
    pub(super) fn drive(
        &mut self,
        slot: u32,
        event: Event,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        // Asked once: a turn is captured or not.
        match &self.rooms.emit.tap {
            Some(tap) if tap.concerns(slot) => self.drive_captured(slot, event, context, out),
            _ => self.take_steps(slot, event, false, context, out),
        }
    }

    /// The same for the connection whose segment is dealt with: whether that is captured is known.
    #[inline]
    pub(super) fn drive_segment(
        &mut self,
        slot: u32,
        event: Event,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        if self.rooms.emit.telling == Telling::All {
            self.drive(slot, event, context, out);
        } else {
            self.take_steps(slot, event, false, context, out);
        }
    }

    /// As a turn of its own, if it is no part of what a capture is told already.
    #[cold]
    #[inline(never)]
    fn drive_captured(
        &mut self,
        slot: u32,
        event: Event,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let (turn, is_captured) = self.begin_turn(slot);
        self.take_steps(slot, event, is_captured, context, out);
        self.end_turn(slot, turn);
    }

    #[inline(never)]
    fn take_steps(
        &mut self,
        slot: u32,
        mut event: Event,
        is_captured: bool,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        while let Some(connection) = self.connections.get_mut(slot) {
            let before = connection.phase();
            let (after, actions, ask) = match step(before, event) {
                Step::Go { next, actions, ask } => (next, actions, ask),
                Step::Ignore => break,
                Step::Impossible => return self.rooms.impossible(before, event),
            };
            if is_captured {
                let failure = connection.state.call().map(|call| call.failure);
                self.rooms
                    .emit
                    .note_step(slot, (before, event, failure), (after, actions));
            }
            let was_spliced = matches!(before, Phase::Spliced { .. });
            let is_closing = was_spliced && before != after;
            if is_closing && let (Phase::Spliced { client, server }, Some(spliced)) = (after, connection.spliced_mut())
            {
                (spliced.client_fin, spliced.server_fin) = (client, server);
            }
            if after == Phase::TimeWait {
                context.last_timestamps = context.timestamps();
            }
            if was_spliced && let Event::Segment { .. } = event {
                self.rooms.note_close(slot, before, event, context.incoming.as_ref());
            }
            for &action in actions {
                out.enter(WorkStage::from(action));
                self.rooms.apply(slot, connection, (action, event), context, out);
            }
            out.enter(WorkStage::Classify);
            if after.has_no_connection() {
                self.connections.free(slot);
                break;
            }
            debug_assert!(
                connection.phase() == after,
                "{before} × {event:?} leads to {}",
                connection.phase()
            );
            if is_closing {
                self.rooms.arm_closing(slot, connection, before);
            }
            let Some(ask) = ask else { break };
            out.enter(WorkStage::from(ask));
            let Some(answer) = self.resolve(slot, ask, context, out) else {
                break;
            };
            event = answer;
            out.enter(WorkStage::Classify);
        }
        if context.incoming.take().is_some() {
            self.rooms.emit.dropped(DropReason::Consumed);
        }
    }

    #[inline]
    fn resolve(
        &mut self,
        slot: u32,
        ask: Ask,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        match ask {
            // Others may have to give way.
            Ask::Buffer => self.buffer(slot, context, out),
            // The client's own source may be that of another connection.
            Ask::TakePort => self.take_port(slot, context),
            _ => {
                let connection = self.connections.get_mut(slot)?;
                self.rooms.resolve(slot, connection, ask, context, out)
            }
        }
    }

    /// Takes a source port towards the chosen server. Whether the client's own address and port are free there is a question to
    /// the flow table, so it comes before the connection is changed.
    fn take_port(&mut self, slot: u32, context: &mut ActionContext<P::Buffer>) -> Option<Event> {
        let source = self
            .rooms
            .client_source(slot, self.connections.get(slot)?, context.server?);
        let is_taken = source.is_some_and(|key| {
            let flow = self.find_key(self.rooms.flows.hash(&key), &key);
            flow.is_some_and(|flow| !flow.is_time_wait())
        });
        let connection = self.connections.get_mut(slot)?;
        self.rooms.take_port(slot, connection, is_taken, context)
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
        debug_assert!(false, "{phase} × {event:?} is impossible");
        self.emit.dropped(DropReason::ImpossibleTransition);
    }

    #[inline]
    fn resolve(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        ask: Ask,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        match ask {
            Ask::Select(wait) => self.ask_selector(slot, connection, wait, context, out),
            Ask::SendBuffered => self.send_all(slot, connection, context.splice_params.as_ref()?, out),
            _ => self.resolve_seldom(slot, connection, ask, context, out),
        }
    }

    /// The asks that few connections make. Out of the loop over rows, whose frame they would enlarge.
    #[inline(never)]
    fn resolve_seldom(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        ask: Ask,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        match ask {
            Ask::Reclassify => self.reclassify(slot, connection, context, out),
            Ask::ReadHeader => self.read_header_behind_syn(slot, connection, context, out),
            Ask::NextServer => self.next_server(slot, connection, false, context),
            Ask::NextOrSameServer => self.next_server(slot, connection, true, context),
            Ask::OtherServer => self.other_server(slot, connection, context),
            // Those of `resolve`, and what takes other connections to answer.
            Ask::Select(_) | Ask::SendBuffered | Ask::Buffer | Ask::TakePort => None,
        }
    }

    fn apply(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        (action, event): (Action, Event),
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        match action {
            Action::BeginCall => self.begin_call(connection, context),
            Action::SendSyn => {
                // The request is buffered: our SYN may have its memory.
                let memory = context.incoming.take().map(|incoming| incoming.buffer);
                self.send_syn(slot, connection, memory, false, out);
            }
            Action::Splice => _ = self.splice(slot, connection, context),
            Action::AcknowledgeServer => self.acknowledge_server(connection, context, out),
            Action::Forward => {
                if let Event::Segment { from, .. } | Event::Reset(from) | Event::InWindowRst(from) = event {
                    self.forward(slot, connection, from, context, out);
                }
            }
            Action::EnterTimeWait(cause) => self.end(slot, connection, cause, context),
            // What does not happen to every connection.
            _ => self.apply_seldom(slot, connection, (action, event), context, out),
        }
    }

    #[inline(never)]
    fn apply_seldom(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        (action, event): (Action, Event),
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        match action {
            Action::EvictUnacked => self.give_up_copy(slot, connection),
            Action::AckBuffered => self.acknowledge_held(connection, context, out),
            Action::RetransmitSyn => self.send_syn(slot, connection, None, true, out),
            Action::ReleaseServer(failure) => self.release_server(slot, connection, failure, context),
            Action::ResetStaleServer => self.reset_stale_server(slot, connection, context, out),
            Action::NoteClient => self.note_window(connection, context),
            Action::ForwardSynAck => self.pass_syn_ack(slot, connection, context, out),
            Action::AwaitProxyHeader => _ = self.await_header(slot, connection, context),
            Action::Establish => _ = self.establish(slot, connection, context),
            Action::FallBackToCookie => self.fall_back(slot, connection, context.client),
            Action::Retransmit => self.on_rtx_timeout(slot, connection, out),
            Action::AskReceiver => {
                if let Event::OutOfWindow(from) = event {
                    self.ask_receiver(connection, from, context, out);
                }
            }
            Action::SendKeepAlive => {
                if let Event::InWindowRst(from) = event {
                    let said = context.timestamps().map(|(_, said)| said);
                    self.probe(connection, from, said, out);
                }
            }
            Action::CloseClient => self.close_client(slot, connection, context, out),
            Action::ChallengeAck => self.challenge(connection, context, out),
            Action::ResetClient => self.reset(slot, connection, Side::Client, out),
            Action::ResetServer => self.reset(slot, connection, Side::Server, out),
            Action::Forget(cause) => self.end(slot, connection, cause, context),
            Action::ForgetWithFailure => {
                let cause = connection.state.call().map_or(Cause::NoServer, |call| call.failure);
                self.end(slot, connection, cause, context);
            }
            Action::Drop(reason) => {
                if context.incoming.take().is_some() {
                    self.emit.dropped(reason);
                }
            }
            // Those of `apply`, and those of flows without a connection, which `on_no_connection` deals with.
            Action::BeginCall
            | Action::SendSyn
            | Action::Splice
            | Action::AcknowledgeServer
            | Action::Forward
            | Action::EnterTimeWait(_)
            | Action::SendCookie
            | Action::CreateConnection
            | Action::StoreSyn
            | Action::Refuse
            | Action::RejectByRule
            | Action::Tarpit => {}
        }
    }
}
