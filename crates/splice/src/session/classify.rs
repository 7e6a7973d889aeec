//! From a segment to an event: the questions of RFC 9293 3.10.7, asked from between the two peers.
//!
//! Nothing is decided here about what to do; a segment that means nothing gets a reason to be dropped.

use crate::base::callbacks::MAX_FIRST_PAYLOAD;
use crate::base::drop_reason::DropReason;
use crate::session::close::RstCheck;
use crate::session::connection::Connection;
use crate::session::event::{Event, FinChange};
use crate::session::phase::{FinState, Phase};
use crate::session::segment::Segment;
use crate::session::state::{ClientSide, State};
use e2d2::buffer::ChecksumStatus;
use e2d2::time::Instant;
use e2d2::wire::tcp::{MAX_OPTIONS_LEN, TcpFlags, TcpOptions};
use netfcts::Side;
use netfcts::seq::SeqNum;

/// Flag combinations that no TCP sends: nothing at all, or SYN or RST or FIN together.
#[inline]
pub(crate) fn check_flags(flags: TcpFlags) -> Result<(), DropReason> {
    let control = flags & (TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST);
    // RFC 9293 3.5.3 and 3.10.7.4: a segment in a connection has ACK, or is a RST, or is the SYN that begins it.
    let sensible = if control.intersects(TcpFlags::SYN | TcpFlags::RST) {
        control == TcpFlags::SYN || control == TcpFlags::RST
    } else {
        flags.contains(TcpFlags::ACK)
    };
    if sensible { Ok(()) } else { Err(DropReason::BadFlags) }
}

/// A segment from the client of a connection that has no server yet. `in_order` tells the number of held bytes without a
/// hole before them.
#[inline]
pub(crate) fn from_client_while_opening(
    phase: Phase,
    client: &ClientSide,
    in_order: impl Fn() -> usize,
    segment: &Segment,
) -> Event {
    let is_forwarding_syn = matches!(phase, Phase::SynForwarded | Phase::SynAckForwarded);
    if segment.has(TcpFlags::RST) {
        let expected = client.first_byte() + in_order() as u32;
        return match judge_reset(client, expected, segment.seq) {
            RstCheck::Exact => Event::Reset(Side::Client),
            RstCheck::InWindow => Event::InWindowRst(Side::Client),
            RstCheck::OutOfWindow => Event::OutOfWindowRst(Side::Client),
        };
    }
    if segment.has(TcpFlags::SYN) {
        let is_again = is_forwarding_syn && segment.seq == client.irs && !segment.has(TcpFlags::ACK);
        return if is_again {
            Event::SynRetransmit
        } else {
            Event::StraySyn
        };
    }
    if is_forwarding_syn {
        // RFC 9293 3.10.7.4, first and fifth: our number was sent with the server's SYN-ACK and not before, and no window
        // on a SYN is larger than its field.
        let is_answer = phase == Phase::SynAckForwarded
            && segment.ack == client.iss + 1
            && segment.seq.in_window(client.first_byte(), 0xffff);
        return if is_answer {
            Event::ClientAck
        } else {
            Event::Unacceptable
        };
    }
    if phase == Phase::LastAck {
        return from_client_in_last_ack(client, segment);
    }
    // RFC 9293 3.10.7.4, fifth: we have sent our SYN and nothing else.
    if segment.ack != client.iss + 1 {
        return Event::Unacceptable;
    }
    if segment.len() == 0 {
        // RFC 9293 3.10.7.4, first: an empty segment at the left of the window is a keep-alive and wants an answer.
        let is_keep_alive = segment.seq.lt(client.last_ack_sent);
        return if is_keep_alive {
            Event::Unacceptable
        } else {
            Event::ClientAck
        };
    }
    let beyond = client.first_byte() + MAX_FIRST_PAYLOAD as u32;
    // A number 2^31 away is neither before nor behind: what is not known to be in the window is outside.
    if !segment.end().le(beyond + 1) || segment.end().le(client.last_ack_sent) && segment.payload_len() <= 1 {
        return Event::Unacceptable;
    }
    let nothing_held = client.held.is_none();
    if segment.payload_len() == 0 && nothing_held && segment.seq == client.first_byte() {
        return Event::ClientFin;
    }
    Event::ClientData
}

fn from_client_in_last_ack(client: &ClientSide, segment: &Segment) -> Event {
    // Our FIN follows our SYN.
    let acknowledges_fin = segment.ack == client.iss + 2;
    let has_fin = segment.has(TcpFlags::FIN);
    // RFC 9293 3.10.7.4, first, and RFC 5961 5.2: its FIN again has the number of before, and our SYN is acknowledged.
    let repeats_fin = has_fin && segment.end() == client.last_ack_sent && segment.ack == client.iss + 1;
    if acknowledges_fin || repeats_fin {
        return Event::Segment {
            from: Side::Client,
            fin: FinChange::noted_if(has_fin),
            acknowledges_fin,
        };
    }
    if has_fin { Event::Unacceptable } else { Event::ClientAck }
}

fn judge_reset(client: &ClientSide, expected: SeqNum, seq: SeqNum) -> RstCheck {
    if seq == expected || seq == client.last_ack_sent {
        RstCheck::Exact
    } else if seq.in_window(client.last_ack_sent, MAX_FIRST_PAYLOAD as u32) {
        RstCheck::InWindow
    } else {
        RstCheck::OutOfWindow
    }
}

/// A segment from the server that we have sent a SYN with the number `iss` to, having agreed on `timestamps` with the client or
/// not; `answered` is its number, if it has answered and the client has not
/// yet heard of it for certain.
pub(crate) fn from_server_in_handshake(
    (iss, timestamps): (SeqNum, bool),
    answered: Option<SeqNum>,
    segment: &Segment,
    options: &TcpOptions,
) -> Event {
    let acknowledges_syn = segment.has(TcpFlags::ACK) && segment.ack == iss + 1;
    if segment.has(TcpFlags::RST) {
        // RFC 9293 3.10.7.3: in SYN-SENT a RST counts only if it acknowledges the SYN. Afterwards its number says enough.
        return if acknowledges_syn || answered.is_some_and(|isn| segment.seq == isn + 1) {
            Event::Reset(Side::Server)
        } else {
            Event::OutOfWindowRst(Side::Server)
        };
    }
    if !segment.has(TcpFlags::ACK) {
        return Event::ServerStray;
    }
    if !acknowledges_syn {
        return Event::ServerStaleAck;
    }
    if !segment.has(TcpFlags::SYN) {
        return Event::ServerStray;
    }
    // RFC 7323 3.2: once agreed, every segment carries timestamps. A server that declines what the client was promised
    // cannot be hidden from the client.
    if timestamps && options.timestamps.is_none() {
        return Event::ServerLacksOption;
    }
    Event::ServerSynAck
}

/// A segment of a spliced connection. Notes what it sends and acknowledges, and that it was accepted.
///
/// `is_intact` verifies the checksum, and is asked only where a damaged number would be believed: when the segment
/// acknowledges something or widens the window, or sends anything but what comes next. In a stream the data is none of
/// that, and its ACKs are header only; a wrong number is one that was not the next. In a dialogue data acknowledges all that
/// the other side has sent, and offers the window of before: that is [expected](crate::session::close::Direction::expects), too, unless it
/// acknowledges a FIN. The options of a bare ACK with a wrong data offset look like a little data without PSH, and are
/// verified, too.
///
/// # Errors
/// [`DropReason::BadTcpChecksum`] if it had to be intact and is not.
#[inline]
pub(crate) fn while_spliced(
    connection: &mut Connection,
    now: Instant,
    from: Side,
    segment: &Segment,
    is_intact: impl FnOnce() -> bool,
) -> Result<Event, DropReason> {
    if segment.flags.intersects(TcpFlags::SYN | TcpFlags::RST) {
        return Ok(control_while_spliced(connection, from, segment));
    }
    let State::Spliced(spliced) = &mut connection.state else {
        return Ok(Event::ServerStray);
    };
    let (client, server) = (spliced.client_fin, spliced.server_fin);
    let acknowledged = spliced.ack_for_peer(from, segment.ack);
    let scale = spliced.scale;
    // The window as the other side gets to see it: that is what it acts on.
    let (window, own_half, peer_half) = match from {
        Side::Client => (u32::from(segment.window) << scale.client, client, server),
        Side::Server => (
            u32::from(scale.to_client(segment.window)) << scale.advertised,
            server,
            client,
        ),
    };
    let (sent, received) = match from {
        Side::Client => (&mut spliced.to_server, &mut spliced.to_client),
        Side::Server => (&mut spliced.to_client, &mut spliced.to_server),
    };
    let end = segment.end();
    // RFC 9293 3.10.7.4, first, and RFC 5961 5.2. Nearly always a segment is the next, and its ACK not behind the last one.
    let is_taken = segment.seq == sent.end || sent.takes(segment.seq, scale.largest_window_for(from));
    let is_believed = received.is_acknowledgeable(acknowledged)
        || received.takes_ack(acknowledged, scale.largest_window_for(from.peer()));
    if !(is_taken && is_believed) {
        return Ok(Event::OutOfWindow(from));
    }
    if segment.checksum != ChecksumStatus::Good {
        // In a dialogue.
        let is_answer =
            || segment.payload_len() > 0 && peer_half == FinState::Open && received.expects(acknowledged, window);
        // A sender that has nothing more to send sets PSH (RFC 9293 3.9.1.2); a bare ACK has none. Data beyond a FIN revokes it.
        let may_be_options = || segment.payload_len() <= MAX_OPTIONS_LEN as u32 && !segment.has(TcpFlags::PSH);
        let must_be_intact = received.would_acknowledge(acknowledged, window) && !is_answer()
            || sent.would_jump(segment.seq, end)
            || end.gt(sent.end) && (own_half != FinState::Open || may_be_options());
        if must_be_intact && !is_intact() {
            return Err(DropReason::BadTcpChecksum);
        }
    }
    let before = sent.end;
    let fin = sent.note_taken(end, segment.has(TcpFlags::FIN), own_half != FinState::Open);
    // A FIN is no byte (RFC 9293 3.4), and where one was noted before there was none.
    let without_fin = match fin {
        FinChange::Unchanged => 0,
        FinChange::Noted => i64::from(own_half != FinState::Open) - 1,
        FinChange::Revoked => 1,
    };
    let bytes = i64::from(sent.end - before) + without_fin;
    received.note_acknowledged(acknowledged, window);
    let acknowledges_fin = peer_half == FinState::FinSent && received.is_fin_covered_by(acknowledged);
    connection.note_accepted(now, from, segment);
    if bytes != 0 {
        connection.count_bytes(from, bytes);
    }
    Ok(Event::Segment {
        from,
        fin,
        acknowledges_fin,
    })
}

/// A SYN or RST of a spliced connection.
pub(crate) fn control_while_spliced(connection: &mut Connection, from: Side, segment: &Segment) -> Event {
    let State::Spliced(spliced) = &mut connection.state else {
        return Event::ServerStray;
    };
    if segment.has(TcpFlags::RST) {
        return match spliced.sent_by(from).judge_reset(segment.seq) {
            RstCheck::Exact => Event::Reset(from),
            RstCheck::InWindow => Event::InWindowRst(from),
            RstCheck::OutOfWindow => Event::OutOfWindowRst(from),
        };
    }
    // The server's SYN-ACK again: our ACK of it was lost. Whatever its numbers, the answer is the ACK of its SYN-ACK.
    if from == Side::Server && segment.has(TcpFlags::ACK) {
        Event::ServerSynAck
    } else {
        Event::StraySyn
    }
}

/// A segment of a connection that is over.
pub(crate) fn while_in_time_wait(from: Side, segment: &Segment) -> Event {
    if segment.has(TcpFlags::SYN) {
        return match from {
            Side::Client if !segment.has(TcpFlags::ACK) => Event::Syn,
            Side::Client => Event::StraySyn,
            Side::Server => Event::ServerStray,
        };
    }
    if segment.has(TcpFlags::RST) {
        return Event::InWindowRst(from);
    }
    Event::Segment {
        from,
        fin: FinChange::noted_if(segment.has(TcpFlags::FIN)),
        acknowledges_fin: false,
    }
}
