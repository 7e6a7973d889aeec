//! Results: a table for people, JSON for programs, and the numbers behind the plot.

use std::fmt::{self, Write as _};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::stats::{ClientStats, Connections, Failure, ServerStats, Totals, Traffic};

/// Latencies of one kind, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "names of quantiles")]
pub struct Quantiles {
    pub count: u64,
    pub mean: f64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Quantiles {
    /// Of a histogram in nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Quantiles {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let quantile = |q| micros(histogram.value_at_quantile(q));
        Quantiles {
            count: histogram.len(),
            mean: histogram.mean() / 1e3,
            min: micros(histogram.min()),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: micros(histogram.max()),
        }
    }
}

/// One role.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "as in `Connections` and `Traffic`")]
pub struct RoleReport {
    pub started: u64,
    pub established: u64,
    pub completed: u64,
    /// Connections that failed, by reason.
    pub failed: serde_json::Map<String, serde_json::Value>,
    pub max_open: u32,
    pub segments_sent: u64,
    pub segments_received: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub retransmitted: u64,
    pub duplicates: u64,
    pub not_sent: u64,
    /// The eighteen counters.
    pub tcp: serde_json::Map<String, serde_json::Value>,
}

/// One second of a run.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Second {
    pub second: u64,
    pub started: u64,
    pub completed: u64,
    pub accepted: u64,
    pub failed: u64,
    pub open: u64,
    pub retransmitted: u64,
    /// Payload received by both roles, in bytes.
    pub bytes: u64,
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Report {
    pub seconds: f64,
    pub connections_per_second: f64,
    pub client: Option<RoleReport>,
    pub server: Option<RoleReport>,
    pub latency_us: Option<LatencyReport>,
    /// How far an open loop was behind its schedule at most.
    pub max_behind_us: Option<f64>,
    pub packets_received: u64,
    pub packets_sent: u64,
    pub packets_not_sent: u64,
    pub malformed: u64,
    pub bad_checksums: u64,
    pub not_ours: u64,
    /// Each port's part of it.
    pub by_port: Vec<PortReport>,
    pub by_second: Vec<Second>,
}

/// What went through one port of several.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct PortReport {
    pub device: String,
    /// CPU that it was polled on, if it was to be a certain one.
    pub core: Option<usize>,
    pub client_completed: u64,
    pub server_completed: u64,
    pub packets_received: u64,
    pub packets_sent: u64,
    pub packets_not_sent: u64,
}

impl PortReport {
    /// Of the generator at this port.
    pub fn new(device: &str, core: Option<usize>, totals: &Totals) -> PortReport {
        PortReport {
            device: device.to_owned(),
            core,
            client_completed: (totals.client.as_ref()).map_or(0, |stats| stats.connections.completed),
            server_completed: (totals.server.as_ref()).map_or(0, |stats| stats.connections.completed),
            packets_received: totals.port.received,
            packets_sent: totals.port.sent,
            packets_not_sent: totals.port.not_sent,
        }
    }
}

impl Second {
    /// Adds the same second elsewhere.
    pub(crate) fn add(&mut self, other: &Second) {
        self.second = self.second.max(other.second);
        self.started += other.started;
        self.completed += other.completed;
        self.accepted += other.accepted;
        self.failed += other.failed;
        self.open += other.open;
        self.retransmitted += other.retransmitted;
        self.bytes += other.bytes;
    }
}

/// The three latencies of a client's connections.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "as in `Latencies`")]
pub struct LatencyReport {
    pub connect: Quantiles,
    pub first_byte: Quantiles,
    pub whole: Quantiles,
}

fn role(
    connections: &Connections,
    traffic: &Traffic,
    tcp: impl Iterator<Item = (&'static str, u64)>,
    max_open: u32,
) -> RoleReport {
    let failed = Failure::ALL
        .iter()
        .map(|failure| (failure.name().to_owned(), connections.failed(*failure).into()));
    RoleReport {
        started: connections.started,
        established: connections.established,
        completed: connections.completed,
        failed: failed.collect(),
        max_open,
        segments_sent: traffic.segments_sent,
        segments_received: traffic.segments_received,
        bytes_sent: traffic.bytes_sent,
        bytes_received: traffic.bytes_received,
        retransmitted: traffic.retransmitted,
        duplicates: traffic.duplicates,
        not_sent: traffic.not_sent,
        tcp: tcp.map(|(name, value)| (name.to_owned(), value.into())).collect(),
    }
}

impl Report {
    /// What generators have done together in `took`.
    pub fn new(totals: &Totals, took: Duration, by_second: Vec<Second>, by_port: Vec<PortReport>) -> Report {
        let (client, server) = (totals.client.as_ref(), totals.server.as_ref());
        let of_client =
            |stats: &ClientStats| role(&stats.connections, &stats.traffic, stats.tcp.iter(), stats.max_open);
        let of_server =
            |stats: &ServerStats| role(&stats.connections, &stats.traffic, stats.tcp.iter(), stats.max_open);
        let port = &totals.port;
        Report {
            seconds: took.as_secs_f64(),
            connections_per_second: totals.completed() as f64 / took.as_secs_f64().max(1e-9),
            client: client.map(of_client),
            server: server.map(of_server),
            latency_us: client.map(|stats| LatencyReport {
                connect: Quantiles::of(&stats.latencies.connect),
                first_byte: Quantiles::of(&stats.latencies.first_byte),
                whole: Quantiles::of(&stats.latencies.whole),
            }),
            max_behind_us: client.map(|stats| stats.max_behind.as_nanos() as f64 / 1e3),
            packets_received: port.received,
            packets_sent: port.sent,
            packets_not_sent: port.not_sent,
            malformed: port.malformed,
            bad_checksums: port.bad_checksums,
            not_ours: port.not_ours,
            by_port,
            by_second,
        }
    }

    /// Whether every connection ended as it should.
    pub fn is_clean(&self) -> bool {
        let failures = |role: &RoleReport| role.failed.values().any(|count| count.as_u64() != Some(0));
        !self.client.iter().chain(&self.server).any(failures)
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        // Maps with text keys and numbers that are finite or null: nothing that the writer refuses.
        serde_json::to_string_pretty(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

/// The table.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:.3} s, {:.0} connections/s completed",
            self.seconds, self.connections_per_second
        )?;
        for (name, role) in [("client", &self.client), ("server", &self.server)] {
            let Some(role) = role else { continue };
            let failed: u64 = role.failed.values().filter_map(serde_json::Value::as_u64).sum();
            writeln!(f, "\n{name}")?;
            write_row(
                f,
                "connections",
                &[
                    ("started", role.started),
                    ("established", role.established),
                    ("completed", role.completed),
                    ("failed", failed),
                    ("open at most", u64::from(role.max_open)),
                ],
            )?;
            if failed > 0 {
                let failures = role
                    .failed
                    .iter()
                    .filter_map(|(name, count)| Some((name.as_str(), count.as_u64()?)));
                write_row(
                    f,
                    "failed",
                    &failures.filter(|(_, count)| *count > 0).collect::<Vec<_>>(),
                )?;
            }
            write_row(
                f,
                "segments",
                &[
                    ("sent", role.segments_sent),
                    ("received", role.segments_received),
                    ("retransmitted", role.retransmitted),
                    ("duplicates", role.duplicates),
                ],
            )?;
            write_row(
                f,
                "payload bytes",
                &[("sent", role.bytes_sent), ("received", role.bytes_received)],
            )?;
        }
        if let Some(latency) = &self.latency_us {
            let header = ["µs", "mean", "p50", "p90", "p99", "p99.9", "max"];
            writeln!(f)?;
            writeln!(
                f,
                "{:14}{}",
                header[0],
                header[1..]
                    .iter()
                    .fold(String::new(), |line, name| line + &format!("{name:>12}"))
            )?;
            for (name, q) in [
                ("connect", &latency.connect),
                ("first byte", &latency.first_byte),
                ("whole", &latency.whole),
            ] {
                let mut line = format!("{name:14}");
                for value in [q.mean, q.p50, q.p90, q.p99, q.p999, q.max] {
                    write!(line, "{value:12.1}")?;
                }
                writeln!(f, "{line}")?;
            }
        }
        writeln!(f)?;
        if self.by_port.len() > 1 {
            for port in &self.by_port {
                let counts = [
                    ("clients'", port.client_completed),
                    ("servers'", port.server_completed),
                    ("received", port.packets_received),
                    ("sent", port.packets_sent),
                    ("not sent", port.packets_not_sent),
                ];
                writeln!(f, "{}", port.device)?;
                write_row(f, "", &counts)?;
            }
        }
        write_row(
            f,
            if self.by_port.len() > 1 { "all ports" } else { "port" },
            &[
                ("received", self.packets_received),
                ("sent", self.packets_sent),
                ("not sent", self.packets_not_sent),
                ("malformed", self.malformed),
                ("bad checksums", self.bad_checksums),
                ("not ours", self.not_ours),
            ],
        )
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, title: &str, values: &[(&str, u64)]) -> fmt::Result {
    write!(f, "{title:14}")?;
    for (index, (name, value)) in values.iter().enumerate() {
        write!(f, "{}{value} {name}", if index > 0 { ", " } else { "" })?;
    }
    writeln!(f)
}

impl fmt::Display for Second {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Second {
            second,
            started,
            completed,
            accepted,
            failed,
            open,
            retransmitted,
            bytes,
        } = self;
        write!(
            f,
            "{second:5} s  {started} started  {completed} completed  {accepted} accepted  {open} open"
        )?;
        write!(
            f,
            "  {failed} failed  {retransmitted} retransmitted  {:.1} Mbit/s",
            *bytes as f64 * 8e-6
        )
    }
}
