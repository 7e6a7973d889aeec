//! What can happen to a connection: the one vocabulary of [`step`](crate::session::step::step).
//!
//! A segment becomes an event in [`classify`](crate::session::classify); the selector's answer, a timer and the engine's
//! shutdown are events too. An event carries only what decides the transition; numbers and bytes stay in the segment.

use crate::base::callbacks::Refusal;
use netfcts::Side;

/// What a segment says about its sender's FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinChange {
    /// Nothing new: no FIN, one noted before, or one that cannot be the end of what was sent.
    Unchanged,
    /// Its sender's FIN, at the end of all that was sent.
    Noted,
    /// Its sender has sent data beyond what was taken for its FIN.
    Revoked,
}

impl FinChange {
    /// That of a segment with a FIN that counts, or without.
    pub(crate) const fn noted_if(has_fin: bool) -> FinChange {
        if has_fin {
            FinChange::Noted
        } else {
            FinChange::Unchanged
        }
    }
}

/// What happened. `repr(u8)` keeps the variant in a byte of its own: read from a niche of the fields it costs four instructions more for
/// each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Event {
    /// A SYN to a listener from a flow without a connection, or one that is over.
    Syn,
    /// The same to a listener that passes SYNs on, while there is room to remember it.
    SynToForward,
    /// The SYN that a connection began with, again.
    SynRetransmit,
    /// An ACK to a listener whose acknowledgement number is a valid cookie.
    CookieAck,
    /// Any segment but a RST to a listener, of no connection and from somebody whom the selector does not admit; a SYN or an
    /// ACK of a connection that is over; what follows a connection that was dropped.
    Barred(Refusal),
    /// The connection is made and its listener binds at once, without waiting for payload.
    Created,
    /// A SYN inside a live connection.
    StraySyn,
    /// A segment from the client without bytes that are new to us and without FIN; of a connection that began with a
    /// forwarded SYN, the first that acknowledges the server's.
    ClientAck,
    /// The first that acknowledges the server's SYN from a client whose stream may have to begin with a PROXY header.
    HeaderAwaited,
    /// A segment from the client, before the splice, that no receiver would accept: old, beyond the window, or with
    /// an ACK of what was never sent.
    Unacceptable,
    /// Bytes from the client, in order or not, with or without FIN, while they are held.
    ClientData,
    /// The client's FIN with nothing before it that we lack, and nothing held.
    ClientFin,
    /// The client's bytes are in the reassembly pool.
    Buffered,
    /// The PROXY header has been taken off, or will not come.
    HeaderDone,
    /// A server is chosen: by the selector, or the next of its pool.
    Selected,
    /// Another server is chosen for an overdue call.
    Replaced,
    /// A source port towards the chosen server is ours.
    PortTaken,
    /// The selector wants more bytes and more may come.
    NeedMore,
    /// The selector refuses the connection, or cannot decide with all there will be; or an inspector refuses it.
    Rejected,
    /// The selector drops the connection.
    Silenced,
    /// The client's stream does not begin with the PROXY header that it must begin with.
    BadHeader,
    /// Every source port towards the chosen server is taken.
    NoPort,
    /// No server is left to try.
    NoServer,
    /// A SYN-ACK from the server: in the handshake, the awaited one; later, a repetition.
    ServerSynAck,
    /// The server's SYN-ACK lacks an option that the client was promised and that cannot be translated away.
    ServerLacksOption,
    /// The server answers our SYN with an ACK of something else: it still remembers an older connection.
    ServerStaleAck,
    /// An ICMP error says that our SYN cannot reach the server.
    ServerUnreachable,
    /// A segment that is none of the answers to our SYN.
    ServerStray,
    /// A segment of a spliced connection or one in TIME-WAIT, to be passed on.
    Segment {
        /// Who sent it.
        from: Side,
        /// What it changes about its sender's FIN.
        fin: FinChange,
        /// It acknowledges the FIN of the other side.
        acknowledges_fin: bool,
    },
    /// A segment of a spliced connection that begins outside its receiver's window, or whose ACK is outside of RFC 5961 5.2.
    OutOfWindow(Side),
    /// A RST whose sequence number proves that its sender follows the connection.
    Reset(Side),
    /// A RST in the receiver's window that does not prove it: the receiver decides, we do not.
    InWindowRst(Side),
    /// A RST outside the window.
    OutOfWindowRst(Side),
    /// A retransmission is due, of our SYN or of bytes of a retransmission queue; tries are left.
    RetryDue,
    /// The server has not answered our SYN for much longer than its pool usually takes, and another can have the call.
    CallOverdue,
    /// The first payload has been waited for as long as the listener wants to.
    WaitOver,
    /// The client has not sent what its server is chosen by, or chosen for.
    SelectTimeout,
    /// The server has not answered our SYN.
    ConnectTimeout,
    /// The client has not acknowledged the server's SYN-ACK.
    HandshakeTimeout,
    /// No side of a spliced connection has sent anything.
    IdleTimeout,
    /// The same, while one direction is closed.
    HalfCloseTimeout,
    /// The client has not acknowledged our FIN.
    LastAckTimeout,
    /// A receiver has not acknowledged what was retransmitted as often as allowed.
    RetransmitLimit,
    /// The memory for held bytes is nearly used up, and of the copies that a client would repeat this one has waited longest.
    UnackedEvicted,
    /// The memory for held bytes is nearly used up by connections that have asked for more, and this one has waited longest.
    ConnectionEvicted,
    /// The engine stops.
    Shutdown,
}

impl Event {
    /// True for what only the peer itself can have sent, as it acknowledges a number of ours exactly: before the splice all
    /// that is not refused.
    pub(crate) const fn is_accepted_in_opening(self) -> bool {
        matches!(
            self,
            Event::ClientAck
                | Event::HeaderAwaited
                | Event::ClientData
                | Event::ClientFin
                | Event::ServerSynAck
                | Event::ServerLacksOption
                | Event::Segment { .. }
        )
    }
}
