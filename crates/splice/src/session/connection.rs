//! One connection, from the client's ACK to the last FIN: two cache lines.
//!
//! What every state needs stands in [`Connection`]; what only some need stands in the variants of [`State`], so that a number
//! cannot be read before it exists. Addresses of ours are indices: [`Settings`](crate::base::settings::Settings) holds them.

use crate::base::ids::PoolId;
pub use crate::session::attempts::Attempts;
use crate::session::close::Direction;
use crate::session::endpoints::Endpoints;
use crate::session::event::Event;
use crate::session::handles::RtxId;
use crate::session::limits::{ConnectionLimits, LimitKind};
use crate::session::phase::{FinState, Phase};
use crate::session::segment::Segment;
use crate::session::slab::Slab;
use crate::session::state::State;
use bitflags::bitflags;
use e2d2::time::Instant;
use e2d2::wire::tcp::TcpFlags;
use netfcts::Side;
use netfcts::seq::SeqNum;
use std::num::NonZeroU16;

/// A connection. It begins with a line, or it would stand in three.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Connection {
    /// Its end points.
    pub ends: Endpoints,
    /// Where it stands, and what it needs there.
    pub state: State,
    /// Payload bytes that the client has sent to the server, each sequence number once.
    pub bytes_to_server: u64,
    /// Payload bytes that the server has sent to the client, each sequence number once.
    pub bytes_to_client: u64,
    /// Packets accepted from the client.
    pub packets_from_client: u32,
    /// Packets accepted from the server.
    pub packets_from_server: u32,
    /// The listener.
    pub listener: u16,
    /// What it may still cause in this second.
    pub granted: ConnectionLimits,
}

const _: () = assert!(
    Slab::<Connection>::slot_size() == 128,
    "a connection and its slot fit two cache lines"
);

/// The state of a spliced connection.
#[derive(Clone, Copy, Debug)]
pub struct Spliced {
    /// Added to the client's SEQ towards the server.
    pub client_seq_offset: u32,
    /// Added to the server's SEQ towards the client.
    pub server_seq_offset: u32,
    /// Added to the client's TSval towards the server.
    pub client_ts_offset: u32,
    /// Added to the server's TSval towards the client.
    pub server_ts_offset: u32,
    /// Client → server, in the client's numbers.
    pub to_server: Direction,
    /// Server → client, in the server's numbers.
    pub to_client: Direction,
    /// When a packet was last accepted, in ms of the core's clock (wraps after 49 days; only differences count).
    pub last_seen: u32,
    /// What the server has not acknowledged of the engine's own bytes, and of those that it has acknowledged to the client.
    pub rtx: Option<RtxId>,
    /// The largest segment that the server takes, TCP options included (RFC 6691 3). The client may have been promised more.
    pub server_mss: u16,
    /// How windows are rescaled.
    pub scale: WindowScale,
    /// What else is true of it.
    pub flags: SplicedFlags,
    /// How far the direction client → server has closed.
    pub client_fin: FinState,
    /// How far the direction server → client has closed.
    pub server_fin: FinState,
    /// The pool that the server was chosen from, plus one.
    pub(crate) pool: Option<NonZeroU16>,
}

bitflags! {
    /// What is true of a spliced connection, or not.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SplicedFlags: u8 {
        /// The server declined SACK that the client was promised: its blocks are blanked.
        const BLANK_SACK = 1;
        /// The client was told of a window that the server's has not reached yet.
        const ADVERTISED_MORE = 1 << 1;
        /// The copy of the client's first bytes was evicted. Until they have passed it is as one whose first payload is awaited.
        const EVICTED = 1 << 2;
        /// Its legs are watched.
        const WATCHED = 1 << 3;
    }
}

impl Spliced {
    /// The pool that the server was chosen from; `None` if the selector named it.
    pub fn pool(&self) -> Option<PoolId> {
        self.pool.map(|pool| PoolId(pool.get() - 1))
    }

    /// With the pool that the server was chosen from.
    pub(crate) fn of_pool(mut self, pool: Option<PoolId>) -> Self {
        // No pool has the last number.
        self.pool = pool.and_then(|pool| NonZeroU16::new(pool.0.wrapping_add(1)));
        self
    }
}

/// The window shifts of a spliced connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowScale {
    /// The client's own shift.
    pub client: u8,
    /// The server's own shift.
    pub server: u8,
    /// The shift that the client believes the server to use.
    pub advertised: u8,
    /// The server knows the client's shift.
    pub server_scales: bool,
}

/// RFC 9293 3.7.1: what every host takes in one segment.
pub(crate) const SMALLEST_SEGMENT: u32 = 536;

impl WindowScale {
    /// The largest window that a sender can have been told, in bytes.
    #[inline]
    pub fn largest_window_for(self, sender: Side) -> u32 {
        let shift = match sender {
            Side::Client => self.server.max(self.advertised),
            Side::Server => self.client,
        };
        // RFC 7323 2.3: no shift is larger.
        0xffff << shift.min(14)
    }

    /// By how much the window fields that `to` gets are shifted.
    pub fn shift_for(self, to: Side) -> u8 {
        match to {
            Side::Client => self.advertised,
            Side::Server if self.server_scales => self.client,
            Side::Server => 0,
        }
    }

    /// The window field for the server, from the client's.
    #[inline]
    pub fn to_server(self, window: u16) -> u16 {
        if self.server_scales {
            return window;
        }
        (u32::from(window) << self.client).min(0xffff) as u16
    }

    /// The window field for the client, from the server's: not larger, or bytes that the server does not take would move
    /// back an edge that was offered (RFC 9293 3.8.6), and there are senders who never recover from that. So a window of
    /// less than the unit is closed; a server opens it with an update soon, as none offers less than a segment for long
    /// (3.8.6.2.2). Only where the unit is larger than the smallest segment is such a window rounded up.
    #[inline]
    pub fn to_client(self, window: u16) -> u16 {
        if self.server == self.advertised {
            return window;
        }
        let bytes = u32::from(window) << self.server;
        (bytes >> self.advertised).clamp(u32::from(bytes >= SMALLEST_SEGMENT), 0xffff) as u16
    }
}

impl Connection {
    /// A connection with the sender of `segment`, through the address of ours with the index `address`, that begins in `state`,
    /// without a server.
    pub(crate) fn new(segment: &Segment, (listener, address): (u16, u16), state: State) -> Self {
        Connection {
            ends: Endpoints {
                client: segment.key.remote.to_ne_bytes(),
                client_port: segment.key.remote_port,
                listener_port: segment.key.local_port,
                listener_address: address,
                leg: None,
                client_mac: segment.source_mac,
                client_device: segment.device,
            },
            state,
            bytes_to_server: 0,
            bytes_to_client: 0,
            packets_from_client: 0,
            packets_from_server: 0,
            listener,
            granted: ConnectionLimits::default(),
        }
    }

    /// Notes that a segment of `from` was accepted: its numbers are such as its sender may use. What a stranger makes up
    /// does not come here, and so keeps nothing alive.
    #[inline]
    pub(crate) fn note_accepted(&mut self, now: Instant, from: Side, segment: &Segment) {
        if let State::Spliced(spliced) = &mut self.state {
            spliced.last_seen = now.as_millis() as u32;
        }
        let packets = match from {
            Side::Client => &mut self.packets_from_client,
            Side::Server => &mut self.packets_from_server,
        };
        *packets = packets.saturating_add(1);
        if from == Side::Client && segment.source_mac != self.ends.client_mac {
            self.learn_client_mac(now, segment);
        }
    }

    /// The same before the splice, for an event that only the peer itself can have caused.
    #[inline]
    pub(crate) fn note_in_opening(&mut self, now: Instant, from: Side, event: Event, segment: &Segment) {
        if event.is_accepted_in_opening() {
            self.note_accepted(now, from, segment);
        }
    }

    /// Counts payload bytes of `from` that it had not sent before; wraps, so that one can be taken back.
    #[inline]
    pub(crate) fn count_bytes(&mut self, from: Side, bytes: i64) {
        let count = match from {
            Side::Client => &mut self.bytes_to_server,
            Side::Server => &mut self.bytes_to_client,
        };
        *count = count.wrapping_add_signed(bytes);
    }

    /// The way to the client leads over another station now: a router has taken the place of another (RFC 9568). Once a
    /// second, so that segments of two routers do not make it change with each.
    #[cold]
    fn learn_client_mac(&mut self, now: Instant, segment: &Segment) {
        if segment.device == self.ends.client_device && self.granted.take(LimitKind::ClientMac, now) {
            self.ends.client_mac = segment.source_mac;
        }
    }

    /// The label of its state.
    #[inline]
    pub const fn phase(&self) -> Phase {
        self.state.phase()
    }

    /// Whether its legs are watched.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        matches!(&self.state, State::Spliced(spliced) if spliced.flags.contains(SplicedFlags::WATCHED))
    }

    /// What is known if its packets pass.
    pub fn spliced(&self) -> Option<&Spliced> {
        match &self.state {
            State::Spliced(spliced) => Some(spliced),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub(crate) fn spliced_mut(&mut self) -> Option<&mut Spliced> {
        match &mut self.state {
            State::Spliced(spliced) => Some(spliced),
            _ => None,
        }
    }
}

impl Spliced {
    /// What is known of the direction that `side` sends in.
    pub fn direction(&self, side: Side) -> Direction {
        match side {
            Side::Client => self.to_server,
            Side::Server => self.to_client,
        }
    }

    /// The direction that `side` sends in.
    pub fn sent_by(&mut self, side: Side) -> &mut Direction {
        match side {
            Side::Client => &mut self.to_server,
            Side::Server => &mut self.to_client,
        }
    }

    /// `seq` of `side`'s numbering in that of its peer.
    #[inline]
    pub fn seq_for_peer(&self, side: Side, seq: SeqNum) -> SeqNum {
        match side {
            Side::Client => seq + self.client_seq_offset,
            Side::Server => seq + self.server_seq_offset,
        }
    }

    /// A number of `side`'s bytes as its peer sees it, back in `side`'s own numbering.
    pub fn seq_from_peer(&self, side: Side, seq: SeqNum) -> SeqNum {
        match side {
            Side::Client => seq - self.client_seq_offset,
            Side::Server => seq - self.server_seq_offset,
        }
    }

    /// TSval and TSecr of `side` as its peer gets to see them.
    pub fn timestamps_for_peer(&self, side: Side, (tsval, tsecr): (u32, u32)) -> (u32, u32) {
        let (own, peer) = match side {
            Side::Client => (self.client_ts_offset, self.server_ts_offset),
            Side::Server => (self.server_ts_offset, self.client_ts_offset),
        };
        (tsval.wrapping_add(own), tsecr.wrapping_sub(peer))
    }

    /// An ACK sent by `side`, in the numbering of the peer whose bytes it acknowledges.
    #[inline]
    pub fn ack_for_peer(&self, side: Side, ack: SeqNum) -> SeqNum {
        match side {
            Side::Client => ack - self.server_seq_offset,
            Side::Server => ack - self.client_seq_offset,
        }
    }

    /// Whether a segment of the server acknowledges what was sent to it with `ack`, in the client's numbering: not without the ACK
    /// flag (RFC 9293 3.1), nor what was never sent.
    #[inline]
    pub(crate) fn is_acknowledged_by(&self, segment: &Segment, ack: SeqNum) -> bool {
        segment.has(TcpFlags::ACK) && ack.le(self.to_server.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_case::test_case;

    #[test]
    fn attempts_are_counted_apart_and_none_runs_over() {
        let mut attempts = Attempts::default();
        for n in 1..=100_u16 {
            attempts.note_syn();
            attempts.note_retry();
            attempts.note_given_up();
            let counts = (attempts.syns(), attempts.retries(), attempts.given_up());
            assert_eq!(counts, (n.min(15) as u8, n.min(31) as u8, n.min(63)));
            assert!(!attempts.is_overdue());
        }
        attempts.note_overdue();
        assert!(attempts.is_overdue());
        attempts.begin_call();
        let counts = (attempts.syns(), attempts.retries(), attempts.given_up());
        assert_eq!((counts, attempts.is_overdue()), ((0, 31, 63), false));
    }

    #[test_case(7, 7, 500 => 500; "same shift")]
    #[test_case(0, 7, 64000 => 500; "server without scaling")]
    #[test_case(0, 7, 127 => 0; "less than the unit")]
    #[test_case(0, 7, 128 => 1; "the unit")]
    #[test_case(0, 14, 535 => 0; "less than a segment")]
    #[test_case(0, 14, 536 => 1; "a segment, though less than the unit")]
    #[test_case(0, 7, 0 => 0; "closed stays closed")]
    #[test_case(9, 7, 65535 => 65535; "never beyond the field")]
    fn window_to_client(server: u8, advertised: u8, window: u16) -> u16 {
        WindowScale {
            client: 7,
            server,
            advertised,
            server_scales: true,
        }
        .to_client(window)
    }

    #[test_case(true, 500 => 500; "server scales")]
    #[test_case(false, 500 => 64000; "server does not")]
    #[test_case(false, 512 => 65535; "largest that fits")]
    fn window_to_server(server_scales: bool, window: u16) -> u16 {
        WindowScale {
            client: 7,
            server: 7,
            advertised: 7,
            server_scales,
        }
        .to_server(window)
    }
}
