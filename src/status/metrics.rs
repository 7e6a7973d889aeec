//! The engine's metrics: one table of families ([`table`]), from which the text is made, and from which tests make
//! `docs/reference/metrics.md`, a dashboard and what its alert rules may ask for (`packaging/monitoring/`).
//!
//! Names follow Prometheus' rules: one prefix, base units, `_total` for what only grows. Labels are few and bounded by the
//! configuration: no client's address, and no core but for what is a core's own. Sums over cores are made here, once a scrape.

mod table;

use std::collections::HashSet;
use std::sync::Arc;

use control::metrics::{Exposition, Family, Format, Kind, Values};

use netfcts::Side;
use splice::limit::Limited;
use splice::meter::Metered;
use splice::tally::{Distribution, Histogram, ListenerTally, PoolTally, ServerTally, Tally};

use super::limits::{self, Row};
use super::times::distribution;
use super::{DROP_GROUPS, rules};
use crate::config::{Config, ListConfig, ListenerConfig, OTHER_RULES, PoolConfig, Standing};
use crate::engine::Watch;
use crate::report::{CounterGroup, NameReport, PortReport, Report, ServerReport, TCP_CLIENT, TCP_SERVER, WAITING};
use table::TABLE;

/// What a scrape sees.
struct Seen<'a> {
    report: &'a Report,
    watch: &'a Watch,
    config: Arc<Config>,
    tallies: Vec<Arc<Tally>>,
}

/// A family, and the names of its labels in their order.
type Listed = (Family<'static>, &'static [&'static str]);

/// What is told of one family: its values are added to it.
type Tell = fn(&Seen<'_>, &mut Values<'_>);

const fn info(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Listed {
    let kind = Kind::Info;
    (Family { name, kind, help }, labels)
}

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Listed {
    let kind = Kind::Counter;
    (Family { name, kind, help }, labels)
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Listed {
    let kind = Kind::Gauge;
    (Family { name, kind, help }, labels)
}

const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Listed {
    let kind = Kind::Histogram;
    (Family { name, kind, help }, labels)
}

/// Upper bounds of times in microseconds, as powers of two: from 128 µs to 33.6 s, each four times the last.
const TIME_BOUNDS: [u32; 10] = [7, 9, 11, 13, 15, 17, 19, 21, 23, 25];

/// Upper bounds of numbers of bytes, as powers of two: from 256 B to 4 GiB.
const BYTE_BOUNDS: [u32; 9] = [8, 11, 14, 17, 20, 23, 26, 29, 32];

/// Rules of a listener that have values of their own: thousands of them are no use in a graph, and a burden for who keeps it.
const MOST_RULES: usize = 100;

/// Groups of counters that count events other than drops.
const EVENT_GROUPS: [&str; 7] = [
    "calls",
    "probes",
    "checks",
    "steering",
    "neighbour",
    "kernel",
    "time_wait",
];

/// All of them as text.
pub fn text(watch: &Watch, format: Format) -> String {
    let report = &watch.report();
    let (config, tallies) = (watch.config(), watch.tallies());
    let seen = Seen {
        report,
        watch,
        config,
        tallies,
    };
    let mut text = Exposition::new(format);
    for ((family, _), tell) in TABLE {
        tell(&seen, &mut text.family(family));
    }
    text.finish()
}

/// Every family, with the names of its labels.
pub fn families() -> impl Iterator<Item = (&'static Family<'static>, &'static [&'static str])> {
    TABLE.iter().map(|((family, labels), _)| (family, *labels))
}

fn seconds_of_ms(ms: u64) -> f64 {
    ms as f64 / 1e3
}

fn seconds_of_micros(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn of_group(seen: &Seen<'_>, name: &str, tell: &mut dyn FnMut(&'static str, u64)) {
    let counts = seen
        .report
        .counters
        .group(name)
        .into_iter()
        .flat_map(CounterGroup::iter);
    counts.for_each(|(name, count)| tell(name, count));
}

fn of_group_by(seen: &Seen<'_>, group: &str, label: &str, values: &mut Values<'_>) {
    of_group(seen, group, &mut |name, count| _ = values.add(&[(label, name)], count));
}

fn of_groups(seen: &Seen<'_>, groups: &[&str], label: &str, values: &mut Values<'_>) {
    for &group in groups {
        of_group(seen, group, &mut |name, count| {
            _ = values.add(&[("group", group), (label, name)], count)
        });
    }
}

fn segments(seen: &Seen<'_>, values: &mut Values<'_>) {
    for (side, group) in [("client", TCP_CLIENT), ("server", TCP_SERVER)] {
        of_group(seen, group, &mut |name, count| {
            _ = values.add(&[("side", side), ("event", name)], count)
        });
    }
}

fn records_by_sink(seen: &Seen<'_>, values: &mut Values<'_>) {
    for sink in &seen.report.record_sinks {
        let fates = [
            ("written", sink.written),
            ("lost", sink.lost),
            ("left_out", sink.left_out),
        ];
        for (fate, count) in fates {
            values.add(&[("sink", &sink.to), ("fate", fate)], count);
        }
    }
}

fn next_hops(seen: &Seen<'_>, values: &mut Values<'_>) {
    let next_hops = seen.report.next_hops;
    let unresolved = next_hops.total - next_hops.resolved;
    values
        .add(&[("state", "resolved")], next_hops.resolved)
        .add(&[("state", "unresolved")], unresolved);
}

/// A name can be asked for its addresses and for its services: one of them has values.
fn of_names(seen: &Seen<'_>, values: &mut Values<'_>, of: impl Fn(&NameReport) -> Option<f64>) {
    let mut told = HashSet::new();
    for name in seen.report.names.iter().filter(|name| told.insert(&name.name)) {
        if let Some(value) = of(name) {
            values.add(&[("name", &name.name)], value);
        }
    }
}

fn of_cores(seen: &Seen<'_>, values: &mut Values<'_>, of: impl Fn(&crate::report::CoreReport) -> String) {
    for core in &seen.report.cores {
        values.add(&[("core", &core.core.to_string())], of(core));
    }
}

fn core_rounds(seen: &Seen<'_>, values: &mut Values<'_>) {
    for core in &seen.report.cores {
        let number = core.core.to_string();
        values.add(&[("core", &number), ("kind", "busy")], core.busy_rounds);
        values.add(&[("core", &number), ("kind", "idle")], core.idle_rounds);
    }
}

fn of_ports(seen: &Seen<'_>, values: &mut Values<'_>, of: impl Fn(&PortReport) -> u64) {
    for port in &seen.report.ports {
        values.add(&[("port", &port.name)], of(port));
    }
}

fn of_servers(seen: &Seen<'_>, values: &mut Values<'_>, of: impl Fn(&ServerReport) -> u64) {
    let servers = seen.config.servers().iter().zip(&seen.report.servers);
    for (_, server) in servers.filter(|(of, _)| of.standing == Standing::InFile) {
        values.add(&[("server", &server.name)], of(server));
    }
}

fn checks(seen: &Seen<'_>, values: &mut Values<'_>) {
    let (servers, standby) = (seen.config.servers().iter(), seen.watch.standby());
    for server in servers.filter(|of| of.standing == Standing::InFile && of.check.is_some()) {
        let is_down = standby.server(server.id.0).down().is_some();
        values.add(&[("server", &server.name)], u8::from(is_down));
    }
}

/// The listeners of the file, by number.
fn listeners<'a>(seen: &'a Seen<'_>) -> impl Iterator<Item = (usize, &'a ListenerConfig)> {
    let listeners = seen.config.listeners().iter().enumerate();
    listeners.filter(|(_, listener)| listener.standing == Standing::InFile)
}

/// The pools of the file, likewise.
fn pools<'a>(seen: &'a Seen<'_>) -> impl Iterator<Item = (usize, &'a PoolConfig)> {
    let pools = seen.config.pools().iter().enumerate();
    pools.filter(|(_, pool)| pool.standing == Standing::InFile)
}

/// A sum over the cores for each listener, with its name.
fn of_listeners<'a>(seen: &'a Seen<'_>, of: impl Fn(&ListenerTally) -> u64) -> impl Iterator<Item = (&'a str, u64)> {
    listeners(seen).map(move |(index, listener)| {
        let of_cores = seen.tallies.iter().filter_map(|tally| tally.listener(index));
        (listener.name.as_str(), of_cores.map(&of).sum())
    })
}

/// The same for each pool.
fn of_pools<'a>(seen: &'a Seen<'_>, of: impl Fn(&PoolTally) -> u64) -> impl Iterator<Item = (&'a str, u64)> {
    pools(seen).map(move |(index, pool)| {
        let of_cores = seen.tallies.iter().filter_map(|tally| tally.pool(index));
        (pool.name.as_str(), of_cores.map(&of).sum())
    })
}

/// Rules of a listener beyond the first [`MOST_RULES`] together.
fn of_rules(seen: &Seen<'_>, values: &mut Values<'_>) {
    for (_, listener) in listeners(seen) {
        let mut add = |rule: &str, count| _ = values.add(&[("listener", &listener.name), ("rule", rule)], count);
        let mut others = None;
        let rows = rules::of_listener(listener, &seen.config, &seen.tallies).enumerate();
        for (place, chosen) in rows {
            if place < MOST_RULES || place == listener.rules.len() {
                add(&chosen.rule, chosen.connections);
            } else {
                *others.get_or_insert(0) += chosen.connections;
            }
        }
        if let Some(others) = others {
            add(OTHER_RULES, others);
        }
    }
}

/// Of all limits and classes, those of one kind by the name of what they are of.
fn of_limits(seen: &Seen<'_>, mut add: impl FnMut(&Row<'_>, Metered)) {
    let standby = seen.watch.standby();
    for row in limits::rows(&seen.config) {
        add(&row, standby.metered(row.of.0, row.of.1));
    }
}

fn of_classes(seen: &Seen<'_>, values: &mut Values<'_>, of: impl Fn(Metered) -> u64) {
    of_limits(seen, |row, counted| {
        if row.of.0 == Limited::Class {
            values.add(&[("class", row.name)], of(counted));
        }
    });
}

fn refused_by_limits(seen: &Seen<'_>, values: &mut Values<'_>) {
    of_limits(seen, |row, counted| {
        _ = values.add(&[("kind", row.kind), ("name", row.name)], counted.refused)
    });
}

fn of_lists(seen: &Seen<'_>, values: &mut Values<'_>, of: impl Fn(&ListConfig) -> u64) {
    for list in seen.config.lists() {
        values.add(&[("list", &list.name)], of(list));
    }
}

fn listener_bytes(seen: &Seen<'_>, values: &mut Values<'_>) {
    let to_server = of_listeners(seen, |listener| listener.bytes_to_server.get());
    let to_client = of_listeners(seen, |listener| listener.bytes_to_client.get());
    for ((name, to_server), (_, to_client)) in to_server.zip(to_client) {
        values
            .add(&[("listener", name), ("direction", "to_server")], to_server)
            .add(&[("listener", name), ("direction", "to_client")], to_client);
    }
}

fn handshake_times(seen: &Seen<'_>, values: &mut Values<'_>) {
    for (index, listener) in listeners(seen) {
        let all = distribution(&seen.tallies, |tally| {
            tally.listener(index).map(ListenerTally::handshake)
        });
        add_times(values, &[("listener", &listener.name)], &all);
    }
}

/// What all cores have counted for each pool, with its name; behind them what is of none, if there is anything, with an empty one.
fn distributions_of_pools<'a>(
    seen: &'a Seen<'_>,
    of: fn(&PoolTally) -> Histogram<'_>,
) -> impl Iterator<Item = (&'a str, Distribution)> {
    let of_none = distribution(&seen.tallies, |tally| tally.no_pool().map(of));
    let of_none = Some(("", of_none)).filter(|(_, all)| all.count() > 0);
    let of_pool = move |(index, pool): (usize, &'a PoolConfig)| {
        let all = distribution(&seen.tallies, |tally| tally.pool(index).map(of));
        (pool.name.as_str(), all)
    };
    pools(seen).map(of_pool).chain(of_none)
}

fn times_of_pools(seen: &Seen<'_>, values: &mut Values<'_>, of: fn(&PoolTally) -> Histogram<'_>) {
    for (pool, all) in distributions_of_pools(seen, of) {
        add_times(values, &[("pool", pool)], &all);
    }
}

/// Of the servers whose times are kept, without bounds: those of all would make a scrape half as long again. `ctl show servers` has
/// the quantiles.
fn times_of_servers(seen: &Seen<'_>, values: &mut Values<'_>, of: fn(&ServerTally) -> Histogram<'_>) {
    let servers = seen.config.servers().iter();
    for server in servers.filter(|server| server.standing == Standing::InFile) {
        let index = server.id.index();
        if seen.tallies.iter().any(|tally| tally.server(index).is_some()) {
            let all = distribution(&seen.tallies, |tally| tally.server(index).map(of));
            let whole = (all.count(), seconds_of_micros(all.sum()));
            values.add_histogram(&[("server", &server.name)], [], whole);
        }
    }
}

/// The two sides, by the name of their label.
const SIDES: [(&str, Side); 2] = [("client", Side::Client), ("server", Side::Server)];

fn round_trip_times(seen: &Seen<'_>, values: &mut Values<'_>) {
    for (index, pool) in pools(seen) {
        for (name, side) in SIDES {
            let all = distribution(&seen.tallies, |tally| {
                tally.pool(index).map(|pool| pool.legs.of(side).rtt())
            });
            add_times(values, &[("pool", &pool.name), ("side", name)], &all);
        }
    }
}

fn watched_segments(seen: &Seen<'_>, values: &mut Values<'_>) {
    for (name, side) in SIDES {
        let all = of_pools(seen, |pool| pool.legs.of(side).segments.get());
        let again = of_pools(seen, |pool| pool.legs.of(side).retransmitted.get());
        let late = of_pools(seen, |pool| pool.legs.of(side).out_of_order.get());
        let twice = of_pools(seen, |pool| pool.legs.of(side).duplicate.get());
        for ((((pool, all), (_, again)), (_, late)), (_, twice)) in all.zip(again).zip(late).zip(twice) {
            let new = all.saturating_sub(again + late + twice);
            let kinds = [
                ("new", new),
                ("retransmitted", again),
                ("out_of_order", late),
                ("duplicate", twice),
            ];
            for (kind, count) in kinds {
                values.add(&[("pool", pool), ("side", name), ("kind", kind)], count);
            }
        }
    }
}

fn watched_zero_windows(seen: &Seen<'_>, values: &mut Values<'_>) {
    for (name, side) in SIDES {
        for (pool, count) in of_pools(seen, |pool| pool.legs.of(side).zero_windows.get()) {
            values.add(&[("pool", pool), ("side", name)], count);
        }
    }
}

fn add_times(values: &mut Values<'_>, labels: &[(&str, &str)], all: &Distribution) {
    let buckets = TIME_BOUNDS.map(|log| (seconds_of_micros(1 << log), all.below(1 << log)));
    values.add_histogram(labels, buckets, (all.count(), seconds_of_micros(all.sum())));
}

fn connection_bytes(seen: &Seen<'_>, values: &mut Values<'_>) {
    for (pool, all) in distributions_of_pools(seen, PoolTally::bytes) {
        let buckets = BYTE_BOUNDS.map(|log| ((1_u64 << log) as f64, all.below(1 << log)));
        let whole = (all.count(), all.sum() as f64);
        values.add_histogram(&[("pool", pool)], buckets, whole);
    }
}

fn port_errors(seen: &Seen<'_>, values: &mut Values<'_>) {
    for port in &seen.report.ports {
        let kinds = [
            ("rx_missed", port.rx_missed),
            ("rx_error", port.rx_errors),
            ("rx_no_buffer", port.rx_no_buffer),
            ("tx_error", port.tx_errors),
        ];
        for (kind, count) in kinds {
            values.add(&[("port", &port.name), ("kind", kind)], count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_follow_the_rules() {
        let mut seen = HashSet::new();
        for (family, labels) in families() {
            let Family { name, help, .. } = family;
            assert!(!labels.contains(&"le"), "{name}");
            assert!(seen.insert(name), "{name} twice");
            assert!(name.starts_with("proxyengine_"), "{name}");
            assert!(
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{name}"
            );
            assert!(
                !["_total", "_info", "_count", "_sum", "_bucket"]
                    .iter()
                    .any(|end| name.ends_with(end)),
                "{name}"
            );
            assert!(!help.is_empty() && !help.contains(['\\', '\n', '"']), "{name}: {help}");
        }
    }
}
