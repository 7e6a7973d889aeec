//! What a generator counts and measures.

use std::time::Duration;

use e2d2::buffer::PacketBuffer;
use e2d2::time::Instant;
use hdrhistogram::Histogram;
use netfcts::TcpCounters;

use crate::generator::{Generator, PortStats};

/// Longest latency that is told from longer ones: one hour, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;

/// Why a connection did not end as it should.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Failure {
    /// RST in answer to SYN.
    Refused,
    /// RST later.
    Reset,
    /// What was sent remained without an answer.
    Timeout,
    /// Everything sent was acknowledged, but the peer did nothing more.
    Stalled,
    /// The peer closed before the last response was complete.
    ClosedEarly,
    /// The response came from another server than the key's.
    WrongServer,
    /// A byte of a request or response was wrong, or there were too many.
    WrongBytes,
    /// The load ended and the connection did not in the time granted.
    Unfinished,
}

impl Failure {
    /// Number of failures.
    pub const COUNT: usize = 8;

    /// All of them, in the order of the counters.
    pub const ALL: [Failure; Failure::COUNT] = [
        Failure::Refused,
        Failure::Reset,
        Failure::Timeout,
        Failure::Stalled,
        Failure::ClosedEarly,
        Failure::WrongServer,
        Failure::WrongBytes,
        Failure::Unfinished,
    ];

    /// The name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Failure::Refused => "refused",
            Failure::Reset => "reset",
            Failure::Timeout => "timeout",
            Failure::Stalled => "stalled",
            Failure::ClosedEarly => "closed_early",
            Failure::WrongServer => "wrong_server",
            Failure::WrongBytes => "wrong_bytes",
            Failure::Unfinished => "unfinished",
        }
    }
}

/// Connections of one role.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Connections {
    /// SYN sent, or accepted.
    pub started: u64,
    /// Handshake complete.
    pub established: u64,
    /// All rounds done and closed as agreed.
    pub completed: u64,
    failures: [u64; Failure::COUNT],
}

impl Connections {
    /// How many ended this way.
    pub fn failed(&self, failure: Failure) -> u64 {
        self.failures[failure as usize]
    }

    /// How many ended in any of these ways.
    pub fn failed_in_all(&self) -> u64 {
        self.failures.iter().sum()
    }

    fn add(&mut self, other: &Connections) {
        self.started += other.started;
        self.established += other.established;
        self.completed += other.completed;
        for (ours, others) in self.failures.iter_mut().zip(&other.failures) {
            *ours += others;
        }
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failures[failure as usize] += 1;
    }

    /// Connections that are open.
    pub fn open(&self) -> u64 {
        self.started - self.completed - self.failed_in_all()
    }
}

/// Segments and bytes of one role.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Segments sent.
    pub segments_sent: u64,
    /// Segments received.
    pub segments_received: u64,
    /// Payload sent, repeated bytes included.
    pub bytes_sent: u64,
    /// Payload received in order, each byte once.
    pub bytes_received: u64,
    /// Segments sent again: SYN, payload or FIN.
    pub retransmitted: u64,
    /// Segments received that had been received before.
    pub duplicates: u64,
    /// Segments received with a wrong TCP checksum.
    pub bad_checksums: u64,
    /// Segments that were to be sent while no packet buffer was left, or the queue to the port was full.
    pub not_sent: u64,
}

impl Traffic {
    fn add(&mut self, other: &Traffic) {
        self.segments_sent += other.segments_sent;
        self.segments_received += other.segments_received;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.retransmitted += other.retransmitted;
        self.duplicates += other.duplicates;
        self.bad_checksums += other.bad_checksums;
        self.not_sent += other.not_sent;
    }
}

/// Latencies in nanoseconds, each from the time at which the connection should have started.
///
/// Measuring from the intended start and not from the SYN keeps a slow peer from hiding its slowness by delaying the
/// load (coordinated omission).
#[derive(Clone, Debug)]
pub struct Latencies {
    /// To the SYN-ACK.
    pub connect: Histogram<u64>,
    /// To the first byte of the first response.
    pub first_byte: Histogram<u64>,
    /// To the end of the connection.
    pub whole: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Latencies {
        // Three digits: 0.1 %; 40 KiB each. The bounds are constants that the library accepts.
        let histogram =
            || Histogram::new_with_bounds(1, LONGEST, 3).expect("1 to an hour with three digits is possible");
        Latencies {
            connect: histogram(),
            first_byte: histogram(),
            whole: histogram(),
        }
    }
}

impl Latencies {
    /// Forgets everything measured so far.
    pub fn reset(&mut self) {
        [&mut self.connect, &mut self.first_byte, &mut self.whole]
            .into_iter()
            .for_each(Histogram::reset);
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Latencies) {
        let ours = [&mut self.connect, &mut self.first_byte, &mut self.whole];
        for (histogram, (_, others)) in ours.into_iter().zip(other.iter()) {
            // Both have the same bounds and precision, so that every value has its place.
            let added = histogram.add(others);
            debug_assert!(added.is_ok());
        }
    }

    /// Names and histograms in the order of a connection's life.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Histogram<u64>)> {
        [
            ("connect", &self.connect),
            ("first_byte", &self.first_byte),
            ("whole", &self.whole),
        ]
        .into_iter()
    }
}

/// Counts a latency.
pub fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    histogram.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
}

/// When a connection should have started, and when its first byte came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Life {
    /// When it should have started.
    pub intended: Instant,
    /// When the first byte of the first response came.
    pub first_byte: Instant,
}

/// What the client role has done.
#[derive(Clone, Debug, Default)]
pub struct ClientStats {
    /// Connections.
    pub connections: Connections,
    /// Segments and bytes.
    pub traffic: Traffic,
    /// The eighteen counters.
    pub tcp: TcpCounters,
    /// Latencies.
    pub latencies: Latencies,
    /// What `latencies.first_byte` counts one by one, up to the capacity; none by default.
    pub lives: Vec<Life>,
    /// Open loop: starts that are due and wait for an end point or their turn, at most so far.
    pub max_behind: Duration,
    /// Most connections open at once.
    pub max_open: u32,
}

/// What the server role has done.
#[derive(Clone, Debug, Default)]
pub struct ServerStats {
    /// Connections.
    pub connections: Connections,
    /// Segments and bytes.
    pub traffic: Traffic,
    /// The eighteen counters.
    pub tcp: TcpCounters,
    /// SYNs that were ignored because all connections were in use.
    pub no_room: u64,
    /// Most connections open at once.
    pub max_open: u32,
}

impl ClientStats {
    /// Adds those of a client elsewhere. The most open at once were not at the same time: their sum is a bound.
    fn add(&mut self, other: &ClientStats) {
        self.connections.add(&other.connections);
        self.traffic.add(&other.traffic);
        self.tcp += &other.tcp;
        self.latencies.add(&other.latencies);
        self.lives.extend(&other.lives);
        self.max_behind = self.max_behind.max(other.max_behind);
        self.max_open += other.max_open;
    }
}

impl ServerStats {
    /// Likewise.
    fn add(&mut self, other: &ServerStats) {
        self.connections.add(&other.connections);
        self.traffic.add(&other.traffic);
        self.tcp += &other.tcp;
        self.no_room += other.no_room;
        self.max_open += other.max_open;
    }
}

/// What one or more generators have done together.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Their clients.
    pub client: Option<ClientStats>,
    /// Their servers.
    pub server: Option<ServerStats>,
    /// Their ports.
    pub port: PortStats,
}

impl Totals {
    /// Of one generator.
    pub fn of<B: PacketBuffer>(generator: &Generator<B>) -> Totals {
        Totals {
            client: generator.client_stats().cloned(),
            server: generator.server_stats().cloned(),
            port: generator.port_stats().clone(),
        }
    }

    /// Adds those of others.
    pub fn add(&mut self, other: &Totals) {
        if let Some(client) = &other.client {
            self.client.get_or_insert_default().add(client);
        }
        if let Some(server) = &other.server {
            self.server.get_or_insert_default().add(server);
        }
        let (ours, others) = (&mut self.port, &other.port);
        ours.received += others.received;
        ours.sent += others.sent;
        ours.not_sent += others.not_sent;
        ours.malformed += others.malformed;
        ours.bad_checksums += others.bad_checksums;
        ours.not_ours += others.not_ours;
    }

    /// Connections completed: the client decides what one is; servers alone count their own.
    pub fn completed(&self) -> u64 {
        let client = self.client.as_ref().map(|stats| stats.connections.completed);
        let server = self.server.as_ref().map(|stats| stats.connections.completed);
        client.or(server).unwrap_or(0)
    }
}
