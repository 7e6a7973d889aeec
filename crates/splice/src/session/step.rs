//! The heart: what every event does in every phase.
//!
//! [`step`] is pure and total: no packet, no clock, no randomness. Each phase names what can happen in it; what it does not name
//! is [impossible](Step::Impossible). The whole (phase × event) matrix is in `tests/golden/step.txt`, so that a changed cell, or
//! one that is no longer named, is seen in review.
//!
//! Read it top-down as the life of a connection: a SYN is answered by a cookie and forgotten; the ACK of that cookie
//! makes the connection; bytes are held until the selector names a server; the server is called; its SYN-ACK splices
//! the two; segments then pass until both directions have closed, a RST ends them, or they fall silent.

use crate::base::callbacks::Refusal;
use crate::base::drop_reason::DropReason;
use crate::session::action::Action::{self, *};
use crate::session::action::Ask::{self, *};
use crate::session::action::PayloadWait;
use crate::session::event::{Event, FinChange};
use crate::session::phase::{FinState, Phase};
use netfcts::Side;
use netfcts::record::Cause;

/// What an event does to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something is to be done.
    Go {
        /// The phase after the event.
        next: Phase,
        /// What to do, in order. Static: a step costs no memory.
        actions: &'static [Action],
        /// What is asked behind them, if anything: the answer is the next event.
        ask: Option<Ask>,
    },
    /// It may happen, and means nothing here.
    Ignore,
    /// It cannot happen here: whoever says that it has is wrong. It is counted, and changes nothing.
    Impossible,
}

const fn go(next: Phase, actions: &'static [Action], ask: Option<Ask>) -> Step {
    Step::Go { next, actions, ask }
}

const fn to(next: Phase, actions: &'static [Action]) -> Step {
    go(next, actions, None)
}

const fn then(next: Phase, actions: &'static [Action], ask: Ask) -> Step {
    go(next, actions, Some(ask))
}

/// Ends both legs by a RST, for this cause.
macro_rules! end_both {
    (TimeWait, $cause:ident) => {
        to(
            Phase::TimeWait,
            &[ResetClient, ResetServer, EnterTimeWait(Cause::$cause)],
        )
    };
    (Closed, $cause:ident) => {
        to(Phase::Closed, &[ResetClient, ResetServer, Forget(Cause::$cause)])
    };
}

/// Decides what `event` does to a connection in `phase`. Inlined, for a call returns the row through memory: some 40
/// instructions for each of a connection's ten rows (callgrind over bench cps).
#[inline(always)]
pub const fn step(phase: Phase, event: Event) -> Step {
    match phase {
        Phase::Closed => closed(event),
        Phase::AwaitPayload => await_payload(event),
        Phase::ServerSynSent => server_syn_sent(event),
        Phase::SynForwarded => syn_forwarded(event),
        Phase::SynAckForwarded => syn_ack_forwarded(event),
        Phase::AwaitProxyHeader => await_proxy_header(event),
        Phase::Spliced { client, server } => spliced(client, server, event),
        Phase::LastAck => last_ack(event),
        Phase::TimeWait => time_wait(event),
    }
}

/// True if all that `event` does in a spliced phase is to pass the segment on: what the table says of by far the most.
#[inline(always)]
pub(crate) fn is_plain_forward(phase: Phase, event: Event) -> bool {
    let Phase::Spliced { client, server } = phase else {
        return false;
    };
    match spliced(client, server, event) {
        Step::Go {
            next,
            actions: [Forward],
            ask: None,
        } => next == phase,
        _ => false,
    }
}

/// No connection: only a SYN, or the ACK of a cookie, means anything.
const fn closed(event: Event) -> Step {
    match event {
        // RFC 4987 3.6: the state of a half-open connection is in our sequence number, not in our memory.
        Event::Syn => to(Phase::Closed, &[SendCookie]),
        Event::SynToForward => to(Phase::SynForwarded, &[StoreSyn]),
        Event::CookieAck => to(Phase::AwaitPayload, &[CreateConnection]),
        // What came before it, and would have opened its cookie, may have been lost.
        Event::ClientData => to(Phase::Closed, &[Drop(DropReason::BadCookie)]),
        // RFC 9293 3.10.7.1: CLOSED answers everything but a RST with a RST.
        Event::StraySyn | Event::ClientAck => to(Phase::Closed, &[Refuse]),
        Event::OutOfWindowRst(Side::Client) => to(Phase::Closed, &[Drop(DropReason::UnknownFlow)]),
        Event::Barred(refusal) => barred(Phase::Closed, refusal),
        _ => Step::Impossible,
    }
}

/// Whom the selector does not admit: whatever is there stays as it is.
const fn barred(here: Phase, refusal: Refusal) -> Step {
    match refusal {
        Refusal::Reject => to(here, &[RejectByRule]),
        Refusal::Drop => to(here, &[Drop(DropReason::RuleDropped)]),
        Refusal::Tarpit => to(here, &[Tarpit]),
    }
}

/// The client is connected to us; its first bytes decide.
const fn await_payload(event: Event) -> Step {
    const HERE: Phase = Phase::AwaitPayload;
    match event {
        Event::ClientData => then(HERE, &[], Buffer),
        Event::Created | Event::Buffered | Event::HeaderDone => then(HERE, &[], Select(PayloadWait::Left)),
        Event::WaitOver => then(HERE, &[], Select(PayloadWait::Over)),
        Event::Selected => then(Phase::ServerSynSent, &[BeginCall], TakePort),
        // A client that waits for an ACK (Nagle, a full window, a lost middle segment) never completes its request without one;
        // once they are acknowledged, the engine retransmits these bytes.
        Event::NeedMore => to(HERE, &[AckBuffered]),
        Event::Rejected => to(Phase::Closed, &[ResetClient, Forget(Cause::SelectorReject)]),
        Event::Silenced => to(Phase::Closed, &[Forget(Cause::SelectorReject)]),
        Event::NoServer => to(Phase::Closed, &[ResetClient, ForgetWithFailure]),
        // proxy-protocol.txt 2: the connection of a sender who breaks the rules is aborted.
        Event::BadHeader => to(Phase::Closed, &[ResetClient, Forget(Cause::BadProxyHeader)]),
        Event::ClientAck => to(HERE, &[NoteClient]),
        // RFC 9293 3.10.7.4: a FIN in ESTABLISHED; we have nothing to send either, so our FIN goes with its ACK.
        Event::ClientFin => to(Phase::LastAck, &[CloseClient]),
        // RFC 5961 4.2: a SYN inside a connection is answered by an ACK of what we expect, whatever its number.
        Event::StraySyn | Event::Unacceptable | Event::InWindowRst(Side::Client) => to(HERE, &[ChallengeAck]),
        Event::Reset(Side::Client) => to(Phase::Closed, &[Forget(Cause::ActiveRst)]),
        Event::OutOfWindowRst(Side::Client) => to(HERE, &[Drop(DropReason::OutOfWindowRst)]),
        Event::SelectTimeout => to(Phase::Closed, &[ResetClient, Forget(Cause::SelectorTimeout)]),
        // Nobody has an ACK for these bytes: the client repeats them.
        Event::UnackedEvicted => to(HERE, &[EvictUnacked]),
        Event::ConnectionEvicted => to(Phase::Closed, &[ResetClient, Forget(Cause::HeldFull)]),
        Event::Shutdown => to(Phase::Closed, &[ResetClient, Forget(Cause::Shutdown)]),
        _ => Step::Impossible,
    }
}

/// Why a server was given up.
const REFUSED: Option<Cause> = Some(Cause::ServerRefused);
const SILENT: Option<Cause> = Some(Cause::ServerTimeout);

/// What becomes of a forwarded SYN when its client has taken an earlier SYN-ACK of ours.
const FALL_BACK: &[Action] = &[ResetServer, ReleaseServer(None), FallBackToCookie];

/// Our SYN is out; the client's bytes stay buffered.
const fn server_syn_sent(event: Event) -> Step {
    const HERE: Phase = Phase::ServerSynSent;
    match event {
        Event::ServerSynAck => then(Phase::SPLICED, &[Splice, AcknowledgeServer], SendBuffered),
        Event::ClientData | Event::ClientFin => then(HERE, &[], Buffer),
        Event::Buffered => Step::Ignore,
        Event::ClientAck => to(HERE, &[NoteClient]),
        Event::RetryDue => to(HERE, &[RetransmitSyn]),
        Event::ServerLacksOption => then(HERE, &[ResetServer, ReleaseServer(None)], NextServer),
        // The client repeats what it has no ACK for, here or when the server has answered. What is acknowledged is
        // kept for the server that is called.
        Event::UnackedEvicted => to(HERE, &[EvictUnacked]),
        _ => before_syn_ack(HERE, event),
    }
}

/// The client's own SYN is out, and the client waits for its answer.
const fn syn_forwarded(event: Event) -> Step {
    const HERE: Phase = Phase::SynForwarded;
    match event {
        Event::Created => then(HERE, &[], Select(PayloadWait::Left)),
        Event::Rejected => to(Phase::Closed, &[ResetClient, Forget(Cause::SelectorReject)]),
        Event::Silenced => to(Phase::Closed, &[Forget(Cause::SelectorReject)]),
        // The client repeats what was lost; nobody else has to.
        Event::SynRetransmit => to(HERE, &[RetransmitSyn]),
        Event::ServerSynAck => to(Phase::SynAckForwarded, &[ForwardSynAck]),
        // We have answered an earlier copy of this SYN ourselves, and the client has taken that for its connection.
        Event::CookieAck => to(Phase::AwaitPayload, FALL_BACK),
        _ => before_syn_ack(HERE, event),
    }
}

/// What is the same whoever's SYN is out.
const fn before_syn_ack(here: Phase, event: Event) -> Step {
    match event {
        Event::Selected => then(here, &[], TakePort),
        Event::PortTaken => to(here, &[SendSyn]),
        // The client has heard of no server yet, and no byte of it has been given away: another can have the SYN.
        Event::Reset(Side::Server) | Event::ServerUnreachable => then(here, &[ReleaseServer(REFUSED)], NextServer),
        Event::ConnectTimeout => then(here, &[ReleaseServer(SILENT)], NextOrSameServer),
        Event::NoPort => then(here, &[], NextServer),
        Event::CallOverdue => then(here, &[], OtherServer),
        Event::Replaced => then(here, &[ReleaseServer(None)], TakePort),
        Event::NoServer => to(Phase::Closed, &[ResetClient, ForgetWithFailure]),
        // RFC 9293 3.10.7.3: an unacceptable ACK in SYN-SENT is answered by a RST with its own number.
        Event::ServerStaleAck => to(here, &[ResetStaleServer]),
        Event::ServerStray => to(here, &[Drop(DropReason::NotAnAnswer)]),
        Event::Reset(Side::Client) => to(Phase::Closed, &[ResetServer, Forget(Cause::ActiveRst)]),
        // RFC 5961 4.2: a client that has begun anew answers with a RST that we believe.
        Event::StraySyn | Event::Unacceptable | Event::InWindowRst(Side::Client) => to(here, &[ChallengeAck]),
        Event::OutOfWindowRst(_) => to(here, &[Drop(DropReason::OutOfWindowRst)]),
        Event::Shutdown => end_both!(Closed, Shutdown),
        _ => Step::Impossible,
    }
}

/// The server's SYN-ACK is out, and both ends repeat what is lost.
const fn syn_ack_forwarded(event: Event) -> Step {
    const HERE: Phase = Phase::SynAckForwarded;
    match event {
        Event::ClientAck => then(Phase::SPLICED, &[Establish], Reclassify),
        // proxy-protocol.txt 2: nothing is processed before the whole header. Until then the server waits for this ACK.
        Event::HeaderAwaited => then(Phase::AwaitProxyHeader, &[AwaitProxyHeader], Reclassify),
        // RFC 9293 3.8.1: the server repeats its SYN-ACK until it is acknowledged, and again when it gets the SYN again.
        Event::ServerSynAck => to(HERE, &[ForwardSynAck]),
        Event::SynRetransmit => to(HERE, &[RetransmitSyn]),
        Event::Reset(Side::Client) => to(Phase::Closed, &[ResetServer, Forget(Cause::ActiveRst)]),
        // The client has been told this server's options: no other can take its place.
        Event::Reset(Side::Server) => to(Phase::Closed, &[ResetClient, Forget(Cause::PassiveRst)]),
        Event::CookieAck => to(Phase::AwaitPayload, FALL_BACK),
        // Now that the client has shown that it is there, it is counted, and may be one too many.
        Event::Rejected => end_both!(Closed, SelectorReject),
        Event::Silenced => to(Phase::Closed, &[ResetServer, Forget(Cause::SelectorReject)]),
        Event::StraySyn | Event::Unacceptable | Event::InWindowRst(Side::Client) => to(HERE, &[ChallengeAck]),
        Event::OutOfWindowRst(_) => to(HERE, &[Drop(DropReason::OutOfWindowRst)]),
        Event::HandshakeTimeout => end_both!(Closed, HandshakeTimeout),
        Event::Shutdown => end_both!(Closed, Shutdown),
        Event::ServerStray | Event::ServerStaleAck => to(HERE, &[Drop(DropReason::NotAnAnswer)]),
        // It has answered meanwhile.
        Event::ServerUnreachable => Step::Ignore,
        _ => Step::Impossible,
    }
}

/// The client shakes hands with a server that is not to hear of it before it has said, by its PROXY header, for whom.
const fn await_proxy_header(event: Event) -> Step {
    const HERE: Phase = Phase::AwaitProxyHeader;
    match event {
        Event::ClientData | Event::ClientFin => then(HERE, &[], Buffer),
        Event::Buffered => then(HERE, &[], ReadHeader),
        // These bytes are for us, whatever follows: who cannot send more until it is acknowledged goes on.
        Event::NeedMore => to(HERE, &[AckBuffered]),
        Event::HeaderDone => then(Phase::SPLICED, &[Splice, AcknowledgeServer], SendBuffered),
        // proxy-protocol.txt 2: the connection of a sender who breaks the rules is aborted. The server has not accepted yet.
        Event::BadHeader => end_both!(Closed, BadProxyHeader),
        // RFC 9293 3.8.1: the server repeats its SYN-ACK until it is acknowledged; the client has had it.
        Event::ClientAck | Event::ServerSynAck => to(HERE, &[Drop(DropReason::Duplicate)]),
        Event::Reset(Side::Client) => to(Phase::Closed, &[ResetServer, Forget(Cause::ActiveRst)]),
        Event::Reset(Side::Server) => to(Phase::Closed, &[ResetClient, Forget(Cause::PassiveRst)]),
        Event::StraySyn | Event::Unacceptable | Event::InWindowRst(Side::Client) => to(HERE, &[ChallengeAck]),
        Event::OutOfWindowRst(_) => to(HERE, &[Drop(DropReason::OutOfWindowRst)]),
        Event::SelectTimeout => end_both!(Closed, SelectorTimeout),
        Event::UnackedEvicted => to(HERE, &[EvictUnacked]),
        Event::ConnectionEvicted => end_both!(Closed, HeldFull),
        Event::Shutdown => end_both!(Closed, Shutdown),
        Event::ServerStray | Event::ServerLacksOption | Event::ServerStaleAck => {
            to(HERE, &[Drop(DropReason::NotAnAnswer)])
        }
        // It has answered meanwhile.
        Event::ServerUnreachable => Step::Ignore,
        _ => Step::Impossible,
    }
}

/// Both sides are connected: everything passes, and only FIN, RST and silence change anything here.
#[inline(always)]
const fn spliced(client: FinState, server: FinState, event: Event) -> Step {
    let phase = Phase::Spliced { client, server };
    let is_open = matches!(phase, Phase::SPLICED);
    match event {
        Event::Segment {
            from,
            fin,
            acknowledges_fin,
        } => {
            let next = Phase::after_segment(client, server, from, fin, acknowledges_fin);
            if !next.is_over() {
                return to(next, &[Forward]);
            }
            // The side that acknowledges the last FIN is the one that closed first.
            match from {
                Side::Client => to(Phase::TimeWait, &[Forward, EnterTimeWait(Cause::ActiveClose)]),
                Side::Server => to(Phase::TimeWait, &[Forward, EnterTimeWait(Cause::PassiveClose)]),
            }
        }
        Event::Reset(Side::Client) => to(Phase::TimeWait, &[Forward, EnterTimeWait(Cause::ActiveRst)]),
        Event::Reset(Side::Server) => to(Phase::TimeWait, &[Forward, EnterTimeWait(Cause::PassiveRst)]),
        // RFC 5961 3.2: only the receiver knows RCV.NXT. It gets the segment, and answers with a challenge ACK or dies.
        Event::InWindowRst(_) => to(phase, &[SendKeepAlive, Forward]),
        Event::OutOfWindowRst(_) => to(phase, &[Drop(DropReason::OutOfWindowRst)]),
        // RFC 9293 3.10.7.4, first: not acceptable, but answered, by who knows RCV.NXT.
        Event::OutOfWindow(_) => to(phase, &[AskReceiver]),
        // Our ACK of its SYN-ACK was lost.
        Event::ServerSynAck => to(phase, &[AcknowledgeServer]),
        Event::StraySyn => to(phase, &[ChallengeAck]),
        Event::IdleTimeout if is_open => end_both!(TimeWait, IdleTimeout),
        // The copy of the client's first bytes was given up, and the client has not repeated them.
        Event::SelectTimeout if is_open => end_both!(TimeWait, SelectorTimeout),
        Event::HalfCloseTimeout if !is_open => end_both!(TimeWait, HalfCloseTimeout),
        Event::RetransmitLimit => end_both!(TimeWait, RetransmitLimit),
        Event::Shutdown => end_both!(TimeWait, Shutdown),
        // An inspector refuses what it was shown.
        Event::Rejected => end_both!(TimeWait, SelectorReject),
        // The server has not acknowledged bytes that are acknowledged to the client.
        Event::RetryDue => to(phase, &[Retransmit]),
        _ => Step::Impossible,
    }
}

/// The client left without a word: our FIN waits for its ACK.
const fn last_ack(event: Event) -> Step {
    const HERE: Phase = Phase::LastAck;
    match event {
        // RFC 9293 3.10.7.4: LAST-ACK ends with the ACK of our FIN.
        Event::Segment {
            from: Side::Client,
            acknowledges_fin: true,
            ..
        } => to(Phase::Closed, &[Forget(Cause::ActiveClose)]),
        // Its FIN again: ours, or our ACK of it, was lost.
        Event::Segment {
            from: Side::Client,
            fin: FinChange::Noted,
            ..
        } => to(HERE, &[CloseClient]),
        Event::ClientAck => to(HERE, &[Drop(DropReason::Duplicate)]),
        Event::Reset(Side::Client) => to(Phase::Closed, &[Forget(Cause::ActiveRst)]),
        Event::StraySyn | Event::Unacceptable | Event::InWindowRst(Side::Client) => to(HERE, &[ChallengeAck]),
        Event::OutOfWindowRst(Side::Client) => to(HERE, &[Drop(DropReason::OutOfWindowRst)]),
        Event::LastAckTimeout => to(Phase::Closed, &[Forget(Cause::ActiveClose)]),
        Event::Shutdown => to(Phase::Closed, &[ResetClient, Forget(Cause::Shutdown)]),
        _ => Step::Impossible,
    }
}

/// Over. Late segments still find their way; a new SYN is a new beginning.
const fn time_wait(event: Event) -> Step {
    const HERE: Phase = Phase::TimeWait;
    match event {
        Event::Segment { .. } | Event::InWindowRst(_) => to(HERE, &[Forward]),
        // The cookie's ACK is what proves that the client means it: until then the old translation stands.
        Event::Syn => to(HERE, &[SendCookie]),
        Event::CookieAck => to(Phase::AwaitPayload, &[CreateConnection]),
        // It is not of the connection that rests here, but may be of one that is about to begin: the segment that opens its
        // cookie is lost or late. The old server, if it got this, would end it by a RST.
        Event::ClientData => to(HERE, &[Drop(DropReason::BadCookie)]),
        Event::ClientAck => to(HERE, &[Refuse]),
        Event::Barred(refusal) => barred(HERE, refusal),
        // A SYN-ACK of the client begins no connection.
        Event::StraySyn => to(HERE, &[Drop(DropReason::UnknownFlow)]),
        Event::ServerStray => to(HERE, &[Drop(DropReason::NotAnAnswer)]),
        _ => Step::Impossible,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_no_fin_is_passed_on_by_the_row_of_every_spliced_phase_and_by_none_else() {
        let spliced = FinState::ALL.map(|client| FinState::ALL.map(|server| Phase::Spliced { client, server }));
        let others = [Phase::LastAck, Phase::TimeWait];
        let mut plain = 0;
        for phase in spliced
            .into_iter()
            .flatten()
            .chain(others)
            .filter(|phase| !phase.is_over())
        {
            for from in [Side::Client, Side::Server] {
                let event = Event::Segment {
                    from,
                    fin: FinChange::Unchanged,
                    acknowledges_fin: false,
                };
                let is_row = step(phase, event) == to(phase, &[Forward]);
                let is_spliced = matches!(phase, Phase::Spliced { .. });
                assert_eq!(
                    is_plain_forward(phase, event),
                    is_row && is_spliced,
                    "{phase} × {event:?}"
                );
                assert!(is_row || !is_spliced, "{phase} × {event:?}");
                plain += u32::from(is_spliced);
            }
        }
        assert_eq!(plain, 16);
    }
}
