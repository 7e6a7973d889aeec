//! Hosts that open connections and then abuse them.
//!
//! They know as much TCP as that takes: a SYN, the ACK of its answer, bytes in order, an ACK of whatever comes. They
//! repeat nothing: what is lost costs the attacker a connection.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use e2d2::buffer::PacketBuffer;
use e2d2::time::Instant;
use e2d2::wire::tcp::{TcpFlags, TcpOptions, TcpRepr};
use e2d2::wire::{Envelope, MacAddr};

use super::{AttackSettings, AttackStats, Kind, Random};
use crate::payload::{Close, Format, RequestId};
use crate::received::Incoming;

/// Time between two bytes of a slow request.
const BYTE_EVERY: Duration = Duration::from_millis(100);

/// Ports of a source, from this one on.
const FIRST_PORT: u16 = 1024;
const PORTS: u32 = 64_512;

/// Bytes of a request.
const REQUEST: u32 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Closed,
    SynSent,
    Open,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    state: State,
    target: u16,
    seq: u32,
    ack: u32,
    /// Bytes of the request sent so far.
    sent: u8,
}

/// A segment to be sent.
pub(super) struct Outgoing {
    source: SocketAddr,
    target: SocketAddr,
    mac: MacAddr,
    seq: u32,
    ack: u32,
    flags: TcpFlags,
    /// Whose request, and which bytes of it.
    payload: (u32, std::ops::Range<u8>),
}

impl Outgoing {
    /// Writes the frame; returns whether it was written.
    pub(super) fn write<B: PacketBuffer>(&self, settings: &AttackSettings, buffer: &mut B) -> bool {
        let mut bytes = [0; REQUEST as usize];
        let (peer, range) = (self.payload.0, self.payload.1.clone());
        fill(settings.kind, peer, &mut bytes);
        let is_syn = self.flags.contains(TcpFlags::SYN);
        let repr = TcpRepr {
            envelope: Envelope {
                src_mac: self.mac,
                dst_mac: settings.next_hop,
                src_addr: self.source.ip(),
                dst_addr: self.target.ip(),
                hop_limit: 64,
            },
            src_port: self.source.port(),
            dst_port: self.target.port(),
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: 64_240,
            options: TcpOptions {
                mss: is_syn.then_some(1460),
                ..TcpOptions::NONE
            },
            sack_blocks: &[],
            payload: &bytes[usize::from(range.start)..usize::from(range.end)],
        };
        repr.emit(buffer).is_ok()
    }
}

/// The request of a peer: a real one that leaves the connection open, or a number without an end, which says no server.
fn fill(kind: Kind, peer: u32, bytes: &mut [u8]) {
    if matches!(kind, Kind::Hoarder | Kind::Slow) {
        return bytes.fill(b'1');
    }
    let id = RequestId {
        key: (peer % 1000) as u16,
        tag: peer,
        close: Close::Open,
    };
    Format::Text.fill_request(id, 0, bytes.len() as u32, 0, bytes);
}

/// See the module documentation.
pub(super) struct Peers {
    peers: Vec<Peer>,
    next: u32,
    open: u32,
    outgoing: VecDeque<Outgoing>,
    /// Peers that send a byte at that time: all wait equally long, so the earliest is in front.
    slow: VecDeque<(Instant, u32)>,
    /// Peers before this one have been told to give up.
    given_up: Option<u32>,
}

impl Peers {
    pub(super) fn new(settings: &AttackSettings) -> Peers {
        let most = settings.sources.count().saturating_mul(PORTS);
        let count = if settings.kind.is_blind() {
            0
        } else {
            settings.peers.min(most)
        };
        let closed = Peer {
            state: State::Closed,
            target: 0,
            seq: 0,
            ack: 0,
            sent: 0,
        };
        Peers {
            peers: vec![closed; count as usize],
            next: 0,
            open: 0,
            outgoing: VecDeque::new(),
            slow: VecDeque::new(),
            given_up: None,
        }
    }

    pub(super) fn open(&self) -> u32 {
        self.open
    }

    /// Peers are numbered by source first, so that neighbours in time have different addresses.
    fn source(settings: &AttackSettings, index: u32) -> SocketAddr {
        let sources = settings.sources.count();
        SocketAddr::new(
            settings.sources.at(index % sources),
            FIRST_PORT + (index / sources) as u16,
        )
    }

    fn index(&self, settings: &AttackSettings, address: SocketAddr) -> Option<u32> {
        let source = settings.sources.index_of(address.ip())?;
        let port = u64::from(address.port().checked_sub(FIRST_PORT)?);
        let index = port * u64::from(settings.sources.count()) + u64::from(source);
        (index < self.peers.len() as u64).then_some(index as u32)
    }

    /// Has the next peer that is closed send its SYN.
    pub(super) fn connect(&mut self, settings: &AttackSettings, random: &mut Random, mac: MacAddr) {
        let index = self.next;
        let count = self.peers.len() as u32;
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return;
        };
        self.next = (index + 1) % count;
        if peer.state == State::Open {
            return;
        }
        let isn = random.next() as u32;
        *peer = Peer {
            state: State::SynSent,
            target: (index as usize % settings.targets.len()) as u16,
            seq: isn.wrapping_add(1),
            ack: 0,
            sent: 0,
        };
        self.outgoing.push_back(Outgoing {
            source: Self::source(settings, index),
            target: settings.targets[usize::from(peer.target)],
            mac,
            seq: isn,
            ack: 0,
            flags: TcpFlags::SYN,
            payload: (index, 0..0),
        });
    }

    pub(super) fn receive(
        &mut self,
        settings: &AttackSettings,
        now: Instant,
        mac: MacAddr,
        incoming: &Incoming<'_>,
        stats: &mut AttackStats,
    ) {
        let address = SocketAddr::new(incoming.dst_addr, incoming.dst_port);
        let Some(index) = self.index(settings, address) else {
            return;
        };
        let segment = &incoming.segment;
        let peer = &mut self.peers[index as usize];
        if segment.flags.contains(TcpFlags::RST) {
            if peer.state == State::Open {
                self.open -= 1;
                stats.reset += 1;
            }
            peer.state = State::Closed;
            return;
        }
        match peer.state {
            State::SynSent if segment.flags.contains(TcpFlags::SYN | TcpFlags::ACK) && segment.ack.0 == peer.seq => {
                peer.state = State::Open;
                peer.ack = segment.seq.0.wrapping_add(1);
                self.open += 1;
                stats.connected += 1;
                let first = match settings.kind {
                    Kind::Hoarder => 1,
                    Kind::Holder => REQUEST as u8,
                    _ => 0,
                };
                if first > 0 {
                    // Its bytes carry the ACK of the handshake.
                    self.say(settings, mac, index, first);
                } else {
                    self.acknowledge(settings, mac, index);
                }
                if settings.kind == Kind::Slow {
                    self.slow.push_back((now + BYTE_EVERY, index));
                }
            }
            State::Open if segment.sequence_len() > 0 && segment.seq.0 == peer.ack => {
                peer.ack = peer.ack.wrapping_add(segment.sequence_len());
                self.acknowledge(settings, mac, index);
            }
            State::Open | State::SynSent | State::Closed => {}
        }
    }

    /// Sends slow bytes that are due, and resets when it is over.
    pub(super) fn act(&mut self, settings: &AttackSettings, now: Instant, mac: MacAddr) {
        while let Some(&(_, index)) = self.slow.front().filter(|(at, _)| *at <= now) {
            self.slow.pop_front();
            let peer = self.peers[index as usize];
            if peer.state == State::Open && u32::from(peer.sent) < REQUEST {
                self.say(settings, mac, index, 1);
                self.slow.push_back((now + BYTE_EVERY, index));
            }
        }
        let Some(begin) = self.given_up else { return };
        let end = (begin + 64).min(self.peers.len() as u32);
        for index in begin..end {
            if self.peers[index as usize].state == State::Open {
                self.open -= 1;
                self.push(settings, mac, index, TcpFlags::RST | TcpFlags::ACK, 0..0);
            }
            self.peers[index as usize].state = State::Closed;
        }
        self.given_up = (end < self.peers.len() as u32).then_some(end);
    }

    pub(super) fn give_up(&mut self) {
        self.slow.clear();
        self.given_up = Some(0);
    }

    pub(super) fn next_segment(&mut self) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }

    fn acknowledge(&mut self, settings: &AttackSettings, mac: MacAddr, index: u32) {
        self.push(settings, mac, index, TcpFlags::ACK, 0..0);
    }

    fn say(&mut self, settings: &AttackSettings, mac: MacAddr, index: u32, count: u8) {
        let peer = &mut self.peers[index as usize];
        let from = peer.sent;
        peer.sent += count;
        self.push(settings, mac, index, TcpFlags::PSH | TcpFlags::ACK, from..from + count);
        let peer = &mut self.peers[index as usize];
        peer.seq = peer.seq.wrapping_add(u32::from(count));
    }

    fn push(
        &mut self,
        settings: &AttackSettings,
        mac: MacAddr,
        index: u32,
        flags: TcpFlags,
        bytes: std::ops::Range<u8>,
    ) {
        let peer = self.peers[index as usize];
        self.outgoing.push_back(Outgoing {
            source: Self::source(settings, index),
            target: settings.targets[usize::from(peer.target)],
            mac,
            seq: peer.seq,
            ack: peer.ack,
            flags,
            payload: (index, bytes),
        });
    }
}
