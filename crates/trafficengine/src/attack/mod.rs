//! Hostile load: what a proxy must survive while it serves others.
//!
//! An [`Attacker`] owns a port, as a [`Generator`](crate::Generator) does, and like it reads no clock: frames and the
//! time go in, frames come out, all of it from a seed. It paces what it sends against the time that it is told, so that
//! an attack is so many packets per second whatever the machine does meanwhile.
//!
//! | kinds | what they need |
//! |---|---|
//! | floods ([`Kind::is_blind`]) | nothing: each frame is made from random numbers and forgotten (`flood.rs`) |
//! | peers | connections of their own, which they open and then abuse (`peers.rs`) |
//!
//! Blind TCP floods go against nothing, or, with [`Victims`], bear the addresses and ports of somebody's live
//! connections.

mod flood;
mod peers;

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::port::Port;
use e2d2::scheduler::Work;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use e2d2::wire::frame::{Kind as FrameKind, parse_with};

use crate::endpoints::AddressRange;
use crate::received::Incoming;
use peers::Peers;

/// Frames that one call sends at most.
const PER_CALL: u64 = 256;

/// A frame that is not sent within so many of its successors is not sent at all: an attack that was held up does not make
/// up for it with one blow.
const MOST_BEHIND: u64 = 1 << 16;

/// What an attacker does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// SYNs from random addresses and ports, with the options of a host.
    Syn,
    /// ACKs with random numbers.
    Ack,
    /// RSTs with random numbers.
    Rst,
    /// FINs with random numbers.
    Fin,
    /// Segments of 100 bytes with random numbers.
    Data,
    /// SYNs whose source is their destination.
    Land,
    /// Segments with FIN, PSH and URG and nothing else, or with every flag.
    ChristmasTree,
    /// Fragments of TCP segments that overlap the one before, the header included.
    Fragments,
    /// ICMP errors with a quote of random numbers: unreachable, too big, time exceeded, parameter problem.
    Icmp,
    /// Connects and never sends.
    Silent,
    /// Connects and sends its request byte by byte.
    Slow,
    /// Connects, sends one byte that decides nothing, and waits.
    Hoarder,
    /// Connects, has its request answered, and stays.
    Holder,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 13] = [
        Kind::Syn,
        Kind::Ack,
        Kind::Rst,
        Kind::Fin,
        Kind::Data,
        Kind::Land,
        Kind::ChristmasTree,
        Kind::Fragments,
        Kind::Icmp,
        Kind::Silent,
        Kind::Slow,
        Kind::Hoarder,
        Kind::Holder,
    ];

    /// The name in configurations and results.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Syn => "syn",
            Kind::Ack => "ack",
            Kind::Rst => "rst",
            Kind::Fin => "fin",
            Kind::Data => "data",
            Kind::Land => "land",
            Kind::ChristmasTree => "christmas-tree",
            Kind::Fragments => "fragments",
            Kind::Icmp => "icmp",
            Kind::Silent => "silent",
            Kind::Slow => "slow",
            Kind::Hoarder => "hoarder",
            Kind::Holder => "holder",
        }
    }

    /// Whether its frames are answered by nobody: each is made and forgotten.
    pub const fn is_blind(self) -> bool {
        !matches!(self, Kind::Silent | Kind::Slow | Kind::Hoarder | Kind::Holder)
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        Kind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let names = Kind::ALL.map(Kind::name).join(", ");
            format!("`{text}` is no attack; there are {names}")
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Connections of others that a blind attack pretends to be part of.
#[derive(Clone, PartialEq, Debug)]
pub struct Victims {
    /// Their clients.
    pub addresses: AddressRange,
    /// Their clients' ports.
    pub ports: RangeInclusive<u16>,
}

/// An attack, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct AttackSettings {
    /// What it does.
    pub kind: Kind,
    /// Frames per second of a blind attack, new connections per second of one with peers; above zero. Infinite: a burst
    /// with every call.
    pub rate: f64,
    /// Whose segments the frames pretend to be; without, those of `sources`.
    pub victims: Option<Victims>,
    /// Addresses that the frames come from, of the targets' IP version. Peers answer from them.
    pub sources: AddressRange,
    /// What is attacked, in turn. Not empty.
    pub targets: Vec<SocketAddr>,
    /// Ethernet address of the next hop.
    pub next_hop: MacAddr,
    /// Connections that peers have open at once at most; at most 64 512 for each source.
    pub peers: u32,
    /// Start of all random numbers.
    pub seed: u64,
}

/// What an attacker did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AttackStats {
    /// Frames sent.
    pub sent: u64,
    /// Frames that the port refused, or for which no buffer was left.
    pub not_sent: u64,
    /// Frames received.
    pub received: u64,
    /// Connections of peers that were opened.
    pub connected: u64,
    /// Those that were reset.
    pub reset: u64,
}

/// Random numbers from a seed: xorshift64*.
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        (((self.next() >> 32) * u64::from(limit)) >> 32) as u32
    }

    /// True for so many of a thousand.
    pub fn chance(&mut self, of_thousand: u16) -> bool {
        self.below(1000) < u32::from(of_thousand)
    }
}

/// When frames are due.
struct Pacer {
    rate: f64,
    began: Option<Instant>,
    /// Frames that were sent or left out.
    passed: u64,
}

impl Pacer {
    /// How many frames are due at `now`; the first call begins the attack.
    fn due(&mut self, now: Instant) -> u64 {
        if self.rate.is_infinite() {
            return BURST as u64;
        }
        let began = *self.began.get_or_insert(now);
        // Far below 2^53: exact.
        let all = ((now - began).as_secs_f64() * self.rate) as u64;
        self.passed = self.passed.max(all.saturating_sub(MOST_BEHIND));
        (all - self.passed.min(all)).min(PER_CALL)
    }
}

/// A hostile host, or many of them, on one port.
pub struct Attacker<B: PacketBuffer> {
    settings: AttackSettings,
    random: Random,
    pacer: Pacer,
    peers: Peers,
    is_over: bool,
    outgoing: ArrayVec<B, BURST>,
    incoming: ArrayVec<B, BURST>,
    stats: AttackStats,
}

impl<B: PacketBuffer> Attacker<B> {
    /// An attacker that begins with its first poll.
    pub fn new(settings: AttackSettings) -> Attacker<B> {
        Attacker {
            random: Random::new(settings.seed),
            pacer: Pacer {
                rate: settings.rate,
                began: None,
                passed: 0,
            },
            peers: Peers::new(&settings),
            is_over: false,
            outgoing: ArrayVec::new(),
            incoming: ArrayVec::new(),
            stats: AttackStats::default(),
            settings,
        }
    }

    /// Receives a burst, answers what its peers must, and sends what is due.
    pub fn poll<P, L>(&mut self, now: Instant, port: &mut P, pool: &mut L) -> Work
    where
        P: Port<Buffer = B>,
        L: BufferPool<Buffer = B>,
    {
        let mut units = port.receive(&mut self.incoming);
        self.stats.received += units as u64;
        let mac = port.mac();
        for buffer in std::mem::take(&mut self.incoming) {
            let frame = buffer.data();
            if let Ok(FrameKind::Tcp(layout)) = parse_with(frame, buffer.rx_info())
                && let Some(incoming) = Incoming::new(frame, &layout)
            {
                self.peers.receive(&self.settings, now, mac, &incoming, &mut self.stats);
            }
        }
        let due = if self.is_over { 0 } else { self.pacer.due(now) };
        for _ in 0..due {
            self.pacer.passed += 1;
            if self.settings.kind.is_blind() {
                let (settings, random) = (&self.settings, &mut self.random);
                let write = |buffer: &mut B| flood::write(settings, random, mac, buffer);
                send(&mut self.outgoing, port, pool, &mut self.stats, write);
            } else {
                self.peers.connect(&self.settings, &mut self.random, mac);
            }
        }
        units += due as usize;
        if !self.settings.kind.is_blind() {
            self.peers.act(&self.settings, now, mac);
            while let Some(segment) = self.peers.next_segment() {
                units += 1;
                let write = |buffer: &mut B| segment.write(&self.settings, buffer);
                send(&mut self.outgoing, port, pool, &mut self.stats, write);
            }
        }
        flush(&mut self.outgoing, port, &mut self.stats);
        Work::units(units)
    }

    /// Ends the attack: nothing new is sent. Peers reset the connections that they still have, if told to.
    pub fn stop(&mut self, resets: bool) {
        self.is_over = true;
        if resets {
            self.peers.give_up();
        }
    }

    /// What it did so far.
    pub fn stats(&self) -> AttackStats {
        self.stats
    }

    /// Addresses that its frames come from.
    pub fn sources(&self) -> AddressRange {
        self.settings.sources
    }

    /// Connections of its peers now.
    pub fn open(&self) -> u32 {
        self.peers.open()
    }
}

/// Has `write` fill a buffer and puts it on its way.
fn send<P: Port, L: BufferPool<Buffer = P::Buffer>>(
    outgoing: &mut ArrayVec<P::Buffer, BURST>,
    port: &mut P,
    pool: &mut L,
    stats: &mut AttackStats,
    write: impl FnOnce(&mut P::Buffer) -> bool,
) {
    if outgoing.is_full() {
        flush(outgoing, port, stats);
    }
    let Some(mut buffer) = pool.take() else {
        stats.not_sent += 1;
        return;
    };
    if write(&mut buffer) {
        outgoing.push(buffer);
    } else {
        stats.not_sent += 1;
    }
}

/// What the port does not take is lost, as on a wire.
fn flush<P: Port>(outgoing: &mut ArrayVec<P::Buffer, BURST>, port: &mut P, stats: &mut AttackStats) {
    let sent = port.transmit(outgoing);
    stats.sent += sent as u64;
    stats.not_sent += outgoing.len() as u64;
    outgoing.clear();
}
