//! `bench cps`: proxied connections per second, and the cycles of one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::port::Port;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use hdrhistogram::Histogram;
use serde::Serialize;
use trafficengine::{
    AddressRange, ClientSettings, Close, Format, Generator, GeneratorSettings, LinkSettings, Listener, Pace,
    ServerSettings, Span, TcpSettings,
};

use crate::accounts::{CycleCounter, DeviceCounts, DeviceUnderTest};
use crate::inline::{Arm, Coverage, InlineBench, Measured, Sum};
use crate::load::LoadTotals;
use crate::verdict::unwanted;

/// Above this ratio of all cycles to busy ones the device works without saying so.
pub const MAX_SATURATED_TO_BUSY: f64 = 1.15;

/// Packets of one connection on the device's receiving and on its sending side.
const PACKETS: f64 = 7.0;

/// How far the mean number of packets may be from seven: only whole connections are counted, so one packet in a thousand
/// connections is one too many.
const PACKETS_TOLERANCE: f64 = 0.001;

/// Packets of a device that belong to no connection: announcements and questions for neighbours, some per second.
const OWN_PACKETS: f64 = 100.0;

/// Conditions of the bench.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpsSettings {
    /// Connections open at once, each waiting for its request to be drawn.
    pub open: u32,
    /// How long to measure.
    pub length: Duration,
    /// How long the device lets ports rest; measuring begins after three times that.
    pub time_wait: Duration,
}

impl Default for CpsSettings {
    fn default() -> CpsSettings {
        CpsSettings {
            open: 10_000,
            length: Duration::from_secs(10),
            time_wait: Duration::from_secs(1),
        }
    }
}

impl CpsSettings {
    /// How long opening may take: a million take some seconds; a device that opens none would keep us for ever.
    pub(super) fn time_to_open(&self) -> Duration {
        Duration::from_secs(30 + u64::from(self.open / 50_000))
    }
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyMicros {
    /// Half of the connections.
    pub p50: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1000.
    pub p999: f64,
}

impl LatencyMicros {
    /// Of a histogram in nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> LatencyMicros {
        let quantile = |q| histogram.value_at_quantile(q) as f64 / 1e3;
        LatencyMicros {
            p50: quantile(0.5),
            p99: quantile(0.99),
            p999: quantile(0.999),
        }
    }
}

/// Busy cycles per connection of single slices: where the core's other thread or the host disturbs without taking the core
/// away, most of them say more than the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SliceCycles {
    /// One slice of ten takes less.
    pub p10: u32,
    /// Half of the slices.
    pub p50: u32,
    /// Nine of ten.
    pub p90: u32,
}

impl SliceCycles {
    /// Of the slices of a measurement; zeroes without any.
    fn of(cycles: impl Iterator<Item = u32>) -> SliceCycles {
        let mut sorted: Vec<u32> = cycles.collect();
        sorted.sort_unstable();
        let tenth = |tenths: usize| sorted.get(sorted.len() * tenths / 10).copied().unwrap_or_default();
        SliceCycles {
            p10: tenth(1),
            p50: tenth(5),
            p90: tenth(9),
        }
    }
}

/// What the bench found. Field names are those of its JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(
    missing_docs,
    reason = "the names say it, with their units; those that do not are documented"
)]
pub struct CpsResult {
    pub mode: &'static str,
    /// In the slices that count: those in which the core was the bench's alone, and the load's, too, and near, if they are
    /// enough.
    pub busy_cycles_per_connection: f64,
    /// The same in all slices but the disturbed.
    pub busy_cycles_all_slices: f64,
    /// The same of single slices of either kind.
    pub busy_cycles_of_slices: SliceCycles,
    /// What one core does that spends all its cycles on it.
    pub connections_per_second: f64,
    pub rx_packets_per_connection: f64,
    pub tx_packets_per_connection: f64,
    pub mean_burst: f64,
    pub saturated_cycles_per_connection: f64,
    pub tsc_hz: u64,
    pub open_connections: u64,
    pub time_wait_ms: u64,
    pub lost: u64,
    pub retransmitted: u64,
    pub wrong_server: u64,
    pub failed: u64,
    pub records_lost: u64,
    /// From a request's turn to the end of its connection, both ends and the device in one thread.
    pub latency_us: LatencyMicros,
    pub bytes_per_connection_state: f64,
    /// The same by structure of the device.
    pub bytes_by_structure: BTreeMap<&'static str, f64>,
    pub connections: u64,
    pub seconds: f64,
    /// Slices that `busy_cycles_per_connection` is of, and their part of all: those in which the core was the bench's alone, or
    /// more if they are too few.
    #[serde(flatten)]
    pub coverage: Coverage,
    /// Slices in which Linux took the core away: they are in no figure of cycles.
    pub disturbed_slices: u32,
    /// Slices in which the core was the bench's alone, and the load's, too, and near.
    pub slices_alone: u32,
    /// Slices in which it was far from the load's: in `busy_cycles_all_slices` only, unless too few others are left.
    pub slices_far: u32,
    pub valid: bool,
    /// Why the result is not valid.
    pub invalid_because: Vec<String>,
}

/// The client of the bench: the ancestors' connection (16 bytes asked, 8 answered with FIN), keys for `servers` servers.
pub fn cps_client(settings: &CpsSettings, sources: AddressRange, listener: SocketAddr, servers: u8) -> ClientSettings {
    ClientSettings {
        sources: vec![sources],
        ports: 1024..=65535,
        targets: vec![listener],
        format: Format::Text,
        rounds: 1,
        request: 16,
        response: 8,
        close: Close::Server,
        keys: 1000,
        servers,
        check: true,
        pace: Pace::Drawn { open: settings.open },
        span: Span {
            ramp: Duration::ZERO,
            duration: None,
            total: None,
        },
        max_open: settings.open + 1024,
        // Two bursts: one under way to the device and one to the servers.
        depth: 64,
        idle: Duration::from_secs(60),
        tcp: [patient(1460), patient(1440)],
        seed: 1,
    }
}

/// Nothing is lost on rings: a retransmission only says that the machine stood still for so long.
fn patient(mss: u16) -> TcpSettings {
    TcpSettings {
        mss,
        rto_initial: Duration::from_secs(3),
        rto_min: Duration::from_secs(2),
        ack_delay: Duration::from_millis(500),
        ..TcpSettings::default()
    }
}

/// The servers of the bench, numbered in their order.
pub fn cps_server(client: &ClientSettings, addresses: &[SocketAddr]) -> ServerSettings {
    let listener = |(id, address): (u8, &SocketAddr)| Listener { address: *address, id };
    ServerSettings {
        listeners: (0..).zip(addresses).map(listener).collect(),
        format: client.format.clone(),
        request: client.request,
        response: client.response,
        check: true,
        proxy_header: false,
        max_open: client.max_open,
        idle: client.idle,
        tcp: client.tcp.clone(),
        seed: 2,
    }
}

/// A role, or both, that sends everything to `next_hop`.
pub fn cps_generator<B: PacketBuffer>(
    client: Option<ClientSettings>,
    server: Option<ServerSettings>,
    next_hop: MacAddr,
    now: Instant,
) -> Generator<B> {
    let link = LinkSettings {
        next_hop_mac: Some(next_hop),
        ..LinkSettings::default()
    };
    let settings = GeneratorSettings {
        link,
        client,
        server,
        verify_checksums: true,
    };
    Generator::new(settings, now)
}

/// Both ends of the load, the clients' first; they reach each other, or the device, at these addresses.
pub fn cps_arms<P: Port>(
    client: ClientSettings,
    server: ServerSettings,
    next_hops: &[MacAddr; 2],
    [client_end, server_end]: [P; 2],
    now: Instant,
) -> Vec<Arm<P>> {
    vec![
        Arm {
            generator: cps_generator(Some(client), None, next_hops[0], now),
            port: client_end,
        },
        Arm {
            generator: cps_generator(None, Some(server), next_hops[1], now),
            port: server_end,
        },
    ]
}

impl<D, P, L, C> InlineBench<D, P, L, C>
where
    D: DeviceUnderTest,
    P: Port,
    L: BufferPool<Buffer = P::Buffer>,
    C: CycleCounter,
{
    /// Opens the connections, waits until ports are used again, measures.
    pub fn cps(&mut self, settings: &CpsSettings) -> CpsResult {
        self.warm_up(settings);
        let measured = self.measure(settings.length);
        self.result(settings, &measured)
    }

    /// Opens the connections and goes on until ports are used again.
    pub fn warm_up(&mut self, settings: &CpsSettings) {
        let begin = self.counter.now();
        let open_by = begin + settings.time_to_open();
        let open = settings.open.saturating_sub(settings.open / 100 + 64);
        self.run_until(open_by, |arms| {
            arms.iter().map(|arm| arm.generator.held()).sum::<u32>() >= open
        });
        self.run_until(self.counter.now() + settings.time_wait * 3, |_| false);
        self.arms.iter_mut().for_each(|arm| arm.generator.reset_latencies());
    }

    /// What a measurement means.
    pub fn result(&self, settings: &CpsSettings, measured: &Measured) -> CpsResult {
        cps_result(
            "inline",
            &LoadTotals::of(&self.arms),
            &self.device.counts(),
            self.counter.hz(),
            settings,
            measured,
        )
        .with_structures(&self.device)
    }
}

/// What a measurement of a device under a load means.
pub(super) fn cps_result(
    mode: &'static str,
    load: &LoadTotals,
    device: &DeviceCounts,
    hz: u64,
    settings: &CpsSettings,
    measured: &Measured,
) -> CpsResult {
    let (all, quiet, counted) = (&measured.all, &measured.quiet, &measured.counted);
    let per_connection = |count: u64, sum: &Sum| count as f64 / sum.completed.max(1) as f64;
    let busy = per_connection(counted.accounts.busy_cycles, counted);
    let mut result = CpsResult {
        mode,
        busy_cycles_per_connection: busy,
        busy_cycles_all_slices: per_connection(quiet.accounts.busy_cycles, quiet),
        busy_cycles_of_slices: SliceCycles::of(measured.cycles_of_slices()),
        connections_per_second: hz as f64 / busy.max(1.0),
        rx_packets_per_connection: per_connection(all.accounts.received, all),
        tx_packets_per_connection: per_connection(all.accounts.sent, all),
        mean_burst: all.accounts.received as f64 / all.accounts.receiving_rounds.max(1) as f64,
        saturated_cycles_per_connection: per_connection(counted.accounts.all_cycles, counted),
        tsc_hz: hz,
        open_connections: device.open,
        time_wait_ms: settings.time_wait.as_millis() as u64,
        lost: device.lost + load.not_sent,
        retransmitted: load.retransmitted,
        wrong_server: load.wrong_server,
        failed: load.failed,
        records_lost: device.records_lost,
        latency_us: LatencyMicros::of(&load.latencies.whole),
        bytes_per_connection_state: device.state_bytes as f64 / device.open.max(1) as f64,
        bytes_by_structure: BTreeMap::new(),
        connections: all.completed,
        seconds: all.time.as_secs_f64(),
        coverage: measured.coverage(),
        disturbed_slices: measured.disturbed,
        slices_alone: measured.slices_alone,
        slices_far: measured.far,
        valid: false,
        invalid_because: Vec::new(),
    };
    result.invalid_because = result.reasons_against(settings);
    result.valid = result.invalid_because.is_empty();
    result
}

impl CpsResult {
    /// The result with what each structure of `device` takes for an open connection.
    pub(super) fn with_structures(mut self, device: &impl DeviceUnderTest) -> Self {
        let open = self.open_connections.max(1) as f64;
        let share = |(name, bytes)| (name, bytes as f64 / open);
        self.bytes_by_structure = device.state_by_structure().into_iter().map(share).collect();
        self
    }

    /// Bytes for an open connection by structure, the largest first, those below half a byte left out.
    pub fn structures(&self) -> String {
        let mut parts: Vec<_> = self
            .bytes_by_structure
            .iter()
            .filter(|(_, bytes)| **bytes >= 0.5)
            .collect();
        parts.sort_by(|one, other| other.1.total_cmp(one.1));
        let part = |(name, bytes): (&&str, &f64)| format!("{name} {bytes:.1}");
        parts.into_iter().map(part).collect::<Vec<_>>().join(", ")
    }

    /// Everything that keeps the result from being valid.
    fn reasons_against(&self, settings: &CpsSettings) -> Vec<String> {
        let mut reasons = Vec::new();
        // Those in motion are counted when they are settled or about to be.
        let least = u64::from(settings.open - settings.open / 20).saturating_sub(512);
        if self.open_connections < least {
            reasons.push(format!(
                "{} connections are open of {}",
                self.open_connections, settings.open
            ));
        }
        if self.connections == 0 {
            reasons.push("no connection was completed".to_owned());
        }
        reasons.extend(unwanted([
            ("lost", self.lost),
            ("retransmitted", self.retransmitted),
            ("wrong_server", self.wrong_server),
            ("failed", self.failed),
            ("records_lost", self.records_lost),
        ]));
        for (side, packets) in [
            ("rx", self.rx_packets_per_connection),
            ("tx", self.tx_packets_per_connection),
        ] {
            let tolerance = PACKETS_TOLERANCE + OWN_PACKETS / self.connections.max(1) as f64;
            if (packets - PACKETS).abs() > tolerance {
                reasons.push(format!("{packets:.3} {side} packets per connection, not {PACKETS}"));
            }
        }
        reasons.extend(self.coverage.reason_against());
        let ratio = self.saturated_cycles_per_connection / self.busy_cycles_per_connection.max(1.0);
        if ratio > MAX_SATURATED_TO_BUSY {
            reasons.push(format!(
                "all cycles are {ratio:.2} times the busy ones, above {MAX_SATURATED_TO_BUSY}"
            ));
        }
        reasons
    }
}
