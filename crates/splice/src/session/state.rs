//! The state of a connection: one enum whose variants carry the data that exists in them, and nothing else does.
//!
//! [`State::phase`] is its label, by which [`step`](crate::session::step::step) decides. Actions lead from one variant to the
//! next: what a variant has not got is not there to be read.

use crate::base::ids::{PoolId, ServerId};
use crate::session::attempts::Attempts;
use crate::session::connection::Spliced;
use crate::session::handles::BufferId;
use crate::session::options::Agreed;
use crate::session::phase::Phase;
use netfcts::record::Cause;
use netfcts::seq::SeqNum;
use std::num::{NonZeroU8, NonZeroU16};

/// Where a connection stands. Neither `Closed` nor `TimeWait` is a state: such a flow has no connection.
#[derive(Clone, Copy, Debug)]
pub enum State {
    /// We are the client's peer. Its side stays where it is from stage to stage: it is not copied.
    Opening(ClientSide, Stage),
    /// Packets pass.
    Spliced(Spliced),
}

/// What is waited for before the splice, and after it if there is none. The number behind a call or an answer is that of the client's
/// SYN, where it is passed on, in the table of [forwarded SYNs](crate::handshake::forwarded_syn).
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// The client's handshake is complete; the selector has not yet decided.
    AwaitPayload,
    /// The server is chosen and our SYN to it is out.
    ServerSynSent(Call),
    /// The client's own SYN is on its way to a server.
    SynForwarded(Call, u16),
    /// The server's SYN-ACK is on its way to the client.
    SynAckForwarded(ServerSide, u16),
    /// The client has acknowledged it and is to begin with a PROXY header.
    AwaitProxyHeader(ServerSide, u16),
    /// Our FIN to the client is out: nothing was asked for.
    LastAck,
}

impl State {
    /// The label of the state.
    #[inline]
    pub const fn phase(&self) -> Phase {
        match self {
            State::Opening(_, Stage::AwaitPayload) => Phase::AwaitPayload,
            State::Opening(_, Stage::ServerSynSent(_)) => Phase::ServerSynSent,
            State::Opening(_, Stage::SynForwarded(..)) => Phase::SynForwarded,
            State::Opening(_, Stage::SynAckForwarded(..)) => Phase::SynAckForwarded,
            State::Opening(_, Stage::AwaitProxyHeader(..)) => Phase::AwaitProxyHeader,
            State::Opening(_, Stage::LastAck) => Phase::LastAck,
            State::Spliced(spliced) => Phase::Spliced {
                client: spliced.client_fin,
                server: spliced.server_fin,
            },
        }
    }

    /// The client's side, as long as we are the client's peer.
    #[inline]
    pub const fn client(&self) -> Option<&ClientSide> {
        match self {
            State::Opening(client, _) => Some(client),
            State::Spliced(_) => None,
        }
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) const fn client_mut(&mut self) -> Option<&mut ClientSide> {
        match self {
            State::Opening(client, _) => Some(client),
            State::Spliced(_) => None,
        }
    }

    /// What is waited for, as long as we are the client's peer.
    #[inline]
    pub(crate) const fn stage(&self) -> Option<&Stage> {
        match self {
            State::Opening(_, stage) => Some(stage),
            State::Spliced(_) => None,
        }
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) const fn stage_mut(&mut self) -> Option<&mut Stage> {
        match self {
            State::Opening(_, stage) => Some(stage),
            State::Spliced(_) => None,
        }
    }

    /// Goes on to another stage, unless it is spliced.
    #[inline]
    pub(crate) const fn enter(&mut self, next: Stage) {
        if let State::Opening(_, stage) = self {
            *stage = next;
        }
    }

    /// The call to a server that is under way.
    pub const fn call(&self) -> Option<&Call> {
        match self {
            State::Opening(_, Stage::ServerSynSent(call) | Stage::SynForwarded(call, _)) => Some(call),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub(crate) const fn call_mut(&mut self) -> Option<&mut Call> {
        match self {
            State::Opening(_, Stage::ServerSynSent(call) | Stage::SynForwarded(call, _)) => Some(call),
            _ => None,
        }
    }

    /// Our numbers towards a server that is called, or has answered and waits for the client.
    pub(crate) const fn server(&self) -> Option<ServerSide> {
        match self.stage() {
            Some(Stage::ServerSynSent(call) | Stage::SynForwarded(call, _)) => Some(call.side),
            Some(Stage::SynAckForwarded(side, _) | Stage::AwaitProxyHeader(side, _)) => Some(*side),
            _ => None,
        }
    }

    /// The client's SYN in the table of forwarded SYNs.
    pub(crate) fn syn(&self) -> Option<u32> {
        match self.stage()? {
            Stage::SynForwarded(_, syn) | Stage::SynAckForwarded(_, syn) | Stage::AwaitProxyHeader(_, syn) => {
                Some(u32::from(*syn))
            }
            _ => None,
        }
    }
}

/// Our TCP state towards the client before the splice.
#[derive(Clone, Copy, Debug)]
pub struct ClientSide {
    /// The client's initial sequence number; behind a PROXY header that was taken off, the number of its last byte.
    pub irs: SeqNum,
    /// Ours towards the client: the cookie.
    pub iss: SeqNum,
    /// The client's newest TSval, if timestamps were agreed.
    pub tsval: u32,
    /// Last.ACK.sent of RFC 7323 4.3, or the end of a header that was cut off, which the next segment acknowledges. The bytes before
    /// it are the engine's to retransmit.
    pub last_ack_sent: SeqNum,
    /// Its bytes.
    pub held: Option<BufferId>,
    /// The largest segment the client takes.
    pub mss: u16,
    /// The client's window shift, plus one; `None` without window scaling.
    pub(crate) window_scale: Option<NonZeroU8>,
    /// Bytes of it were forgotten, and none has come since: the client repeats them.
    pub is_evicted: bool,
    /// The client's last window field, as sent.
    pub window: u16,
    /// Where the client's FIN is, plus one.
    pub(crate) fin: Option<NonZeroU16>,
    /// SACK is permitted in both directions.
    pub sack: bool,
    /// Timestamps were agreed.
    pub timestamps: bool,
    /// The window shift that we promised to the client.
    pub advertised_scale: u8,
    /// The window that our SYN-ACK promised; see [`ClientSide::advertised_window`].
    pub advertised_units: u8,
}

impl ClientSide {
    /// A handshake with a client: the numbers of both SYNs, what is agreed so far, and the client's window field.
    pub(crate) fn new((irs, iss): (SeqNum, SeqNum), agreed: Agreed, window: u16) -> Self {
        ClientSide {
            irs,
            iss,
            tsval: 0,
            last_ack_sent: irs + 1,
            held: None,
            mss: agreed.mss,
            window_scale: None,
            is_evicted: false,
            window,
            fin: None,
            sack: agreed.sack,
            timestamps: false,
            advertised_scale: 0,
            advertised_units: 0,
        }
        .scaled(agreed.window_scale)
    }

    /// The same with this window shift of the client's.
    pub(crate) fn scaled(mut self, shift: Option<u8>) -> Self {
        self.window_scale = shift.and_then(|shift| NonZeroU8::new(shift.saturating_add(1)));
        self
    }

    /// The client's window shift; `None` without window scaling.
    pub fn window_scale(&self) -> Option<u8> {
        self.window_scale.map(|shift| shift.get() - 1)
    }

    /// The number of the client's first byte.
    pub fn first_byte(&self) -> SeqNum {
        self.irs + 1
    }

    /// How many of the client's bytes are acknowledged.
    pub(crate) fn acknowledged_len(&self) -> usize {
        (self.last_ack_sent - self.first_byte()).max(0) as usize
    }

    /// How many bytes come before the client's FIN, if that has come.
    pub(crate) fn fin_offset(&self) -> Option<usize> {
        self.fin.map(|fin| usize::from(fin.get()) - 1)
    }

    /// Notes where the client's FIN is; one that is beyond all that can be held has not come.
    pub(crate) fn set_fin(&mut self, offset: Option<usize>) {
        self.fin = offset.and_then(|offset| NonZeroU16::new(u16::try_from(offset + 1).ok()?));
    }

    /// A window that a SYN-ACK promises, in one byte: in units of 128, rounded down. None is larger than
    /// [`MAX_FIRST_PAYLOAD`](crate::base::callbacks::MAX_FIRST_PAYLOAD).
    pub fn units_of_window(window: u16) -> u8 {
        (window / 128).min(255) as u8
    }

    /// The window in bytes that our SYN-ACK promised, or up to 127 less: as much as any scaled window is inexact by
    /// (RFC 7323 2.4).
    pub fn advertised_window(&self) -> u32 {
        u32::from(self.advertised_units) * 128
    }

    /// The client's window in bytes.
    pub fn window_bytes(&self) -> u32 {
        u32::from(self.window) << self.window_scale().unwrap_or(0)
    }
}

/// Our numbers towards a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerSide {
    /// Our initial sequence number.
    pub iss: SeqNum,
    /// What is added to the client's TSval.
    pub tsval_shift: u32,
}

/// The call to a server, and those before it.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Our numbers in it.
    pub side: ServerSide,
    /// When the present server was called, in ms of the core's clock, rounded up (wraps after 49 days; only differences
    /// count).
    pub called_at: u32,
    /// The pool that the server was chosen from; `None` if the selector named it: there is no other to try.
    pub pool: Option<PoolId>,
    /// How often servers were called.
    pub attempts: Attempts,
    /// Why the last of them was given up.
    pub failure: Cause,
    tried: [ServerId; Call::MAX_TRIED],
    tried_count: u8,
}

impl Call {
    /// How many servers of a pool are tried for one connection, retries of the last one not counted.
    const MAX_TRIED: usize = 4;

    /// The first one, to a server of `pool`.
    pub(crate) fn new(pool: Option<PoolId>) -> Self {
        Call {
            side: ServerSide::default(),
            called_at: 0,
            pool,
            attempts: Attempts::default(),
            failure: Cause::NoServer,
            tried: [ServerId(0); Call::MAX_TRIED],
            tried_count: 0,
        }
    }

    /// The servers that were given up, the first few.
    pub(crate) fn tried(&self) -> &[ServerId] {
        &self.tried[..usize::from(self.tried_count)]
    }

    /// Notes one more. Returns true if another may be tried.
    pub(crate) fn note_tried(&mut self, server: ServerId) -> bool {
        if !self.tried().contains(&server)
            && let Some(place) = self.tried.get_mut(usize::from(self.tried_count))
        {
            *place = server;
            self.tried_count += 1;
        }
        usize::from(self.tried_count) < Call::MAX_TRIED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fin_has_come_or_not_wherever_it_is() {
        let agreed = Agreed {
            mss: 1460,
            window_scale: Some(7),
            sack: true,
        };
        let mut client = ClientSide::new((SeqNum(u32::MAX), SeqNum(9)), agreed, 500);
        assert_eq!((client.fin_offset(), client.window_bytes()), (None, 64_000));
        for offset in [0, 1, 16_384, 65_534] {
            client.set_fin(Some(offset));
            assert_eq!(client.fin_offset(), Some(offset));
        }
        client.set_fin(Some(65_535));
        assert_eq!(client.fin_offset(), None, "beyond all that can be held");
    }

    #[test]
    fn each_server_is_tried_once_and_only_a_few_are() {
        let mut call = Call::new(Some(PoolId(3)));
        let more: Vec<bool> = [7, 7, 8, 9, 0, 5]
            .map(|server| call.note_tried(ServerId(server)))
            .to_vec();
        assert_eq!(more, [true, true, true, true, false, false]);
        assert_eq!(call.tried(), [7, 8, 9, 0].map(ServerId));
    }
}
