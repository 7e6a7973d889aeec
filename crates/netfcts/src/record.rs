//! The session record: what is known about one proxied connection, both halves, in two cache lines, and in a third what was seen
//! of its legs, if it is of the [sample](crate::legs).
//!
//! While a connection is open only its [`Progress`](crate::progress) is kept; the record is made of it by whoever takes it out of
//! the [ring](crate::ring).
//! Addresses that the configuration knows (listener, server, local address) are indices; the writer's
//! [`NameTable`](crate::format::NameTable) turns them into addresses, so that IPv6 fits.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use bitflags::bitflags;
use e2d2::time::Instant;

use crate::leg::Side;
use crate::legs::Legs;
use crate::progress::Ends;
pub use u48::U48;

mod u48;

/// State changes that a record holds.
pub const STAMPS: usize = 12;

/// Slots never given up when more changes come: the opening of the connection. The others keep the latest changes.
pub(crate) const KEPT_FIRST: usize = 8;

const STAMP_BYTES: usize = 5;

/// Where in the flags stands how many times a server was called, and the most that has room there.
const TRIED_SHIFT: u32 = 11;
const MOST_TRIED: u8 = 31;

const _: () = assert!(RecordFlags::all().bits() >> TRIED_SHIFT == 0);

/// State changes that the record of a connection with an incoming PROXY header holds; the address and port of the peer
/// that sent it stand in the place of the last four.
pub const PROXIED_STAMPS: usize = 8;

/// Of those, the ones never given up.
pub(crate) const PROXIED_KEPT_FIRST: usize = 4;

/// Where the peer stands among the stamps: 16 bytes of address, two of port.
const PEER_AT: usize = PROXIED_STAMPS * STAMP_BYTES;

/// Longest time that a stamp can hold: 2^40 - 1 µs, 12.7 days. Later changes carry this value.
pub const MAX_STAMP: Duration = Duration::from_micros((1 << (8 * STAMP_BYTES)) - 1);

/// `local_address` of a connection that uses the client's own address towards the server.
pub const TRANSPARENT: u16 = u16::MAX;

/// `server` of a connection that ended before one was chosen.
pub const NO_SERVER: u16 = u16::MAX;

/// `class` of a client that is in none.
pub const NO_CLASS: u16 = u16::MAX;

/// State of one end point as the proxy sees it. The first ten have ProxyEngine's names and numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum State {
    /// Waiting for a SYN; where the server side begins.
    Listen = 0,
    /// SYN received.
    SynReceived = 1,
    /// SYN sent.
    SynSent = 2,
    /// Handshake complete.
    Established = 3,
    /// FIN received and not answered with one.
    CloseWait = 4,
    /// FIN sent in answer to one.
    LastAck = 5,
    /// FIN sent first.
    FinWait1 = 6,
    /// FINs crossed.
    Closing = 7,
    /// FIN sent first and acknowledged.
    FinWait2 = 8,
    /// Nothing more to come.
    Closed = 9,
    /// Closed, the port rests.
    TimeWait = 10,
    /// The first payload has come; the selector is asked.
    Payload = 11,
    /// The selector has chosen the server.
    Selected = 12,
    /// The first byte of the server has come.
    Answered = 13,
}

impl State {
    const ALL: [State; 14] = [
        State::Listen,
        State::SynReceived,
        State::SynSent,
        State::Established,
        State::CloseWait,
        State::LastAck,
        State::FinWait1,
        State::Closing,
        State::FinWait2,
        State::Closed,
        State::TimeWait,
        State::Payload,
        State::Selected,
        State::Answered,
    ];

    /// The name as written.
    pub const fn name(self) -> &'static str {
        match self {
            State::Listen => "Listen",
            State::SynReceived => "SynReceived",
            State::SynSent => "SynSent",
            State::Established => "Established",
            State::CloseWait => "CloseWait",
            State::LastAck => "LastAck",
            State::FinWait1 => "FinWait1",
            State::Closing => "Closing",
            State::FinWait2 => "FinWait2",
            State::Closed => "Closed",
            State::TimeWait => "TimeWait",
            State::Payload => "Payload",
            State::Selected => "Selected",
            State::Answered => "Answered",
        }
    }
}

/// Why one side of a connection ended. The first six have ProxyEngine's names and numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Cause {
    /// Not ended, or not known.
    #[default]
    Unknown = 0,
    /// A timer of no named phase.
    Timeout = 1,
    /// The other side closed first.
    PassiveClose = 2,
    /// This side closed first.
    ActiveClose = 3,
    /// The other side sent RST.
    PassiveRst = 4,
    /// This side sent RST.
    ActiveRst = 5,
    /// The client did not complete its handshake.
    HandshakeTimeout = 6,
    /// The selector did not get enough payload in time.
    SelectorTimeout = 7,
    /// Neither side sent anything for too long.
    IdleTimeout = 8,
    /// One side had closed and the other did not follow in time.
    HalfCloseTimeout = 9,
    /// The selector or a callback refused the connection.
    SelectorReject = 10,
    /// All servers tried answered the SYN with RST or an ICMP error.
    ServerRefused = 11,
    /// No server tried answered the SYN.
    ServerTimeout = 12,
    /// The selector named a pool without a usable server.
    NoServer = 13,
    /// No source port was left towards the server.
    NoPort = 14,
    /// The table of connections was full.
    TableFull = 15,
    /// The memory for held payload ran short and this connection had waited longest, or it held too much.
    HeldFull = 16,
    /// The incoming PROXY header was missing or wrong.
    BadProxyHeader = 17,
    /// What we had to retransmit was never acknowledged.
    RetransmitLimit = 18,
    /// A new connection took over the addresses and ports.
    Replaced = 19,
    /// The engine was shut down, or somebody ended the connection.
    Shutdown = 20,
}

impl Cause {
    /// All, by their numbers.
    pub const ALL: [Cause; 21] = [
        Cause::Unknown,
        Cause::Timeout,
        Cause::PassiveClose,
        Cause::ActiveClose,
        Cause::PassiveRst,
        Cause::ActiveRst,
        Cause::HandshakeTimeout,
        Cause::SelectorTimeout,
        Cause::IdleTimeout,
        Cause::HalfCloseTimeout,
        Cause::SelectorReject,
        Cause::ServerRefused,
        Cause::ServerTimeout,
        Cause::NoServer,
        Cause::NoPort,
        Cause::TableFull,
        Cause::HeldFull,
        Cause::BadProxyHeader,
        Cause::RetransmitLimit,
        Cause::Replaced,
        Cause::Shutdown,
    ];

    /// What the server's side sees happen to it when the client's side ends for this: the one's act is the other's fate.
    fn seen_from_server(self) -> Cause {
        match self {
            Cause::ActiveClose => Cause::PassiveClose,
            Cause::PassiveClose => Cause::ActiveClose,
            Cause::ActiveRst => Cause::PassiveRst,
            Cause::PassiveRst => Cause::ActiveRst,
            other => other,
        }
    }

    /// Whether anything but the FINs of both sides ends the connection: a RST of either side or of the engine's own, or a rule that drops
    /// it without one.
    pub const fn is_reset(self) -> bool {
        !matches!(self, Cause::Unknown | Cause::ActiveClose | Cause::PassiveClose)
    }

    /// The name as written.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Unknown => "Unknown",
            Cause::Timeout => "Timeout",
            Cause::PassiveClose => "PassiveClose",
            Cause::ActiveClose => "ActiveClose",
            Cause::PassiveRst => "PassiveRst",
            Cause::ActiveRst => "ActiveRst",
            Cause::HandshakeTimeout => "HandshakeTimeout",
            Cause::SelectorTimeout => "SelectorTimeout",
            Cause::IdleTimeout => "IdleTimeout",
            Cause::HalfCloseTimeout => "HalfCloseTimeout",
            Cause::SelectorReject => "SelectorReject",
            Cause::ServerRefused => "ServerRefused",
            Cause::ServerTimeout => "ServerTimeout",
            Cause::NoServer => "NoServer",
            Cause::NoPort => "NoPort",
            Cause::TableFull => "TableFull",
            Cause::HeldFull => "HeldFull",
            Cause::BadProxyHeader => "BadProxyHeader",
            Cause::RetransmitLimit => "RetransmitLimit",
            Cause::Replaced => "Replaced",
            Cause::Shutdown => "Shutdown",
        }
    }
}

bitflags! {
    /// What else happened.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct RecordFlags: u16 {
        /// The client's handshake was completed by cookie.
        const COOKIE = 1;
        /// The source port was used again before its quarantine ended.
        const EARLY_PORT = 1 << 1;
        /// The selector asked for more than the first segment.
        const NEED_MORE = 1 << 2;
        /// The server was chosen as fallback, not by payload.
        const FALLBACK = 1 << 3;
        /// A PROXY header came with the connection and named its client: see [`SessionRecord::peer`].
        const PROXY_IN = 1 << 4;
        /// A PROXY header was sent to the server.
        const PROXY_OUT = 1 << 5;
        /// A callback changed payload.
        const REWRITTEN = 1 << 6;
        /// The proxy retransmitted something of its own (SYN, header, held payload).
        const RETRANSMITTED = 1 << 7;
        /// State changes between the kept ones were left out.
        const STATES_DROPPED = 1 << 8;
        /// Held bytes were given up for want of memory; the client repeated them.
        const COPY_GIVEN_UP = 1 << 9;
        /// Its legs were watched: see [`SessionRecord::legs`].
        const SAMPLED = 1 << 10;
    }
}

/// One state change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateChange {
    /// Whose state.
    pub side: Side,
    /// The state entered.
    pub state: State,
    /// Time since the start of the record, in steps of 1 µs.
    pub after: Duration,
}

/// One proxied connection: 192 bytes, of which the last 64 are for those whose legs were watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct SessionRecord {
    start_ns: u64,
    client_addr: [u8; 16],
    /// Segments from client to server, passed on.
    pub packets_to_server: u32,
    /// Segments from server to client, passed on.
    pub packets_to_client: u32,
    bytes_to_server: [u8; 6],
    bytes_to_client: [u8; 6],
    /// The client's port.
    pub client_port: u16,
    /// Our port towards the server; 0 before there is one.
    pub local_port: u16,
    /// Index of our address towards the server, or [`TRANSPARENT`].
    pub local_address: u16,
    /// Index of the listener.
    pub listener: u16,
    /// Index of the server, or [`NO_SERVER`].
    pub server: u16,
    /// Flags, and in the upper five bits how many times a server was called.
    flags: u16,
    /// Twelve side bits, then the number of changes in the upper four.
    sides_and_count: u16,
    client_cause: Cause,
    /// The core that owned the connection.
    pub core: u8,
    /// The port that the client called.
    pub called_port: u16,
    states: [u8; STAMPS / 2],
    stamps: [u8; STAMPS * STAMP_BYTES],
    /// What was seen of its legs, if they were watched: that has the flag [`RecordFlags::SAMPLED`].
    pub legs: Option<Legs>,
    /// Index of the class that its client was in, or [`NO_CLASS`].
    pub class: u16,
    /// Index of our address that the client called.
    pub called_address: u16,
}

const _: () = assert!(size_of::<SessionRecord>() == 192 && align_of::<SessionRecord>() == 8);

impl SessionRecord {
    /// The record of a connection that began at `start_ns` and has ended; without state changes yet.
    #[inline]
    pub(crate) fn of(start_ns: u64, ends: &Ends, flags: u16, servers_tried: u8) -> SessionRecord {
        SessionRecord {
            start_ns,
            client_addr: ends.client.to_be_bytes(),
            packets_to_server: ends.packets.0,
            packets_to_client: ends.packets.1,
            bytes_to_server: ends.bytes.0.to_le_bytes(),
            bytes_to_client: ends.bytes.1.to_le_bytes(),
            client_port: ends.client_port,
            local_port: ends.local.1,
            local_address: ends.local.0,
            listener: ends.listener,
            server: ends.server,
            flags: flags | u16::from(servers_tried.min(MOST_TRIED)) << TRIED_SHIFT,
            sides_and_count: 0,
            client_cause: ends.cause,
            core: ends.core,
            called_port: ends.called.1,
            states: [0; STAMPS / 2],
            stamps: [0; STAMPS * STAMP_BYTES],
            legs: None,
            class: ends.class,
            called_address: ends.called.0,
        }
    }

    /// Whoever has connected becomes the peer, and the client is who a PROXY header has named.
    pub(crate) fn set_peer_and_client(&mut self, (client_addr, client_port): ([u8; 16], u16)) {
        self.stamps[PEER_AT..PEER_AT + 16].copy_from_slice(&self.client_addr);
        self.stamps[PEER_AT + 16..PEER_AT + 18].copy_from_slice(&self.client_port.to_le_bytes());
        (self.client_addr, self.client_port) = (client_addr, client_port);
    }

    /// Writes the change with number `index`, the next one, at `micros` after the start.
    #[inline]
    pub(crate) fn put_change(&mut self, index: usize, side: u16, state: u8, micros: u64) {
        self.stamps[index * STAMP_BYTES..][..STAMP_BYTES].copy_from_slice(&micros.to_le_bytes()[..STAMP_BYTES]);
        self.set_side_and_state(index, side, state);
        self.sides_and_count = self.sides_and_count & 0xfff | (index as u16 + 1) << 12;
    }

    /// When the connection began.
    pub fn start(&self) -> Instant {
        Instant::from_nanos(self.start_ns)
    }

    /// The client's address; an IPv4-mapped one as IPv4.
    pub fn client(&self) -> IpAddr {
        Ipv6Addr::from(self.client_addr).to_canonical()
    }

    /// Who connected to us, if a PROXY header said that it spoke for another client.
    pub fn peer(&self) -> Option<(IpAddr, u16)> {
        if !self.flags().contains(RecordFlags::PROXY_IN) {
            return None;
        }
        let mut address = [0; 16];
        address.copy_from_slice(&self.stamps[PEER_AT..PEER_AT + 16]);
        let port = u16::from_le_bytes([self.stamps[PEER_AT + 16], self.stamps[PEER_AT + 17]]);
        Some((Ipv6Addr::from(address).to_canonical(), port))
    }

    /// Payload bytes from client to server, each once however often it was sent.
    pub fn bytes_to_server(&self) -> u64 {
        U48::from_le_bytes(self.bytes_to_server).get()
    }

    /// Payload bytes from server to client, each once however often it was sent.
    pub fn bytes_to_client(&self) -> u64 {
        U48::from_le_bytes(self.bytes_to_client).get()
    }

    /// The flags set so far.
    pub fn flags(&self) -> RecordFlags {
        RecordFlags::from_bits_truncate(self.flags)
    }

    /// How many times a server was called for the connection, up to 31, repetitions of a SYN not counted; a server that was called
    /// anew counts again.
    pub fn servers_tried(&self) -> u8 {
        (self.flags >> TRIED_SHIFT) as u8
    }

    /// Why the side ended.
    pub fn cause(&self, side: Side) -> Cause {
        match side {
            Side::Client => self.client_cause,
            Side::Server if self.server == NO_SERVER => Cause::Unknown,
            Side::Server => self.client_cause.seen_from_server(),
        }
    }

    /// Number of state changes held.
    pub fn state_count(&self) -> usize {
        usize::from(self.sides_and_count >> 12)
    }

    /// The state changes held, in the order in which they happened.
    pub fn changes(&self) -> impl DoubleEndedIterator<Item = StateChange> + '_ {
        (0..self.state_count().min(STAMPS)).map(|index| self.change(index))
    }

    /// Time from the start to the last state change.
    pub fn duration(&self) -> Duration {
        self.changes().next_back().map_or(Duration::ZERO, |change| change.after)
    }

    fn change(&self, index: usize) -> StateChange {
        let mut stamp = [0; 8];
        stamp[..STAMP_BYTES].copy_from_slice(&self.stamps[index * STAMP_BYTES..][..STAMP_BYTES]);
        let state = usize::from(self.state_bits(index));
        StateChange {
            side: if self.sides_and_count >> index & 1 == 0 {
                Side::Client
            } else {
                Side::Server
            },
            // Only `put_change` writes these bits, and is given a state: they always name one.
            state: State::ALL.get(state).copied().unwrap_or(State::Closed),
            after: Duration::from_micros(u64::from_le_bytes(stamp)),
        }
    }

    fn state_bits(&self, index: usize) -> u8 {
        self.states[index / 2] >> (index % 2 * 4) & 0xf
    }

    fn set_side_and_state(&mut self, index: usize, side: u16, state: u8) {
        self.sides_and_count = self.sides_and_count & !(1 << index) | side << index;
        let shift = index % 2 * 4;
        let pair = &mut self.states[index / 2];
        *pair = *pair & !(0xf << shift) | state << shift;
    }
}

impl TryFrom<u8> for State {
    type Error = u8;

    fn try_from(number: u8) -> Result<State, u8> {
        State::ALL.get(usize::from(number)).copied().ok_or(number)
    }
}

impl TryFrom<u8> for Cause {
    type Error = u8;

    fn try_from(number: u8) -> Result<Cause, u8> {
        Cause::ALL.get(usize::from(number)).copied().ok_or(number)
    }
}

#[cfg(test)]
mod tests;
