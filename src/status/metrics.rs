//! The engine's metrics: one table of families, from which the text is made. `docs/operation.md` lists them; a test compares.
//!
//! Names follow Prometheus' rules: one prefix, base units, `_total` for what only grows. Labels are few and bounded by the
//! configuration: no client's address, and no core but for what is a core's own. Sums over cores are made here, once a scrape.

use control::metrics::{Exposition, Family, Format, Kind, Values};

use splice::tally::{Distribution, Histogram, ListenerTally, PoolTally};

use super::{DROP_GROUPS, distribution};
use crate::engine::Watch;
use crate::report::{CounterGroup, PortReport, Report, ServerReport, TCP_CLIENT, TCP_SERVER, WAITING};

/// Groups of counters that count events other than drops.
const EVENT_GROUPS: [&str; 6] = ["calls", "probes", "steering", "neighbour", "kernel", "time_wait"];

/// What is told of one family: its values are added to it.
type Tell = fn(&Seen<'_>, &mut Values<'_>);

/// What a scrape sees.
struct Seen<'a> {
    report: &'a Report,
    watch: &'a Watch,
}

/// Upper bounds of times in microseconds, as powers of two: from 128 µs to 33.6 s, each four times the last.
const TIME_BOUNDS: [u32; 10] = [7, 9, 11, 13, 15, 17, 19, 21, 23, 25];

/// Upper bounds of numbers of bytes, as powers of two: from 256 B to 4 GiB.
const BYTE_BOUNDS: [u32; 9] = [8, 11, 14, 17, 20, 23, 26, 29, 32];

const fn counter(name: &'static str, help: &'static str) -> Family<'static> {
    let kind = Kind::Counter;
    Family { name, kind, help }
}

const fn gauge(name: &'static str, help: &'static str) -> Family<'static> {
    let kind = Kind::Gauge;
    Family { name, kind, help }
}

const fn histogram(name: &'static str, help: &'static str) -> Family<'static> {
    let kind = Kind::Histogram;
    Family { name, kind, help }
}

/// Every family, in the order of the text.
const TABLE: [(Family<'_>, Tell); 40] = [
    (
        Family {
            name: "proxyengine_build",
            kind: Kind::Info,
            help: "The engine's version",
        },
        |seen, values| _ = values.add(&[("version", seen.report.version)], 1),
    ),
    (
        gauge("proxyengine_uptime_seconds", "Time since the start"),
        |seen, values| _ = values.add(&[], seconds_of_ms(seen.report.uptime_ms)),
    ),
    (
        gauge("proxyengine_ready", "1 if the engine takes connections, as /ready says"),
        |seen, values| _ = values.add(&[], u8::from(seen.watch.is_ready().is_ok())),
    ),
    (
        gauge("proxyengine_connections_open", "Connections now"),
        |seen, values| _ = values.add(&[], seen.report.connections_open),
    ),
    (
        counter("proxyengine_segments", "TCP segments by side and meaning"),
        segments,
    ),
    (
        counter(
            "proxyengine_packets",
            "Packets through the graph, by what became of them",
        ),
        |seen, values| {
            of_group(seen, "traffic", &mut |name, count| {
                _ = values.add(&[("event", name)], count)
            })
        },
    ),
    (
        counter(
            "proxyengine_drops",
            "Frames that were not passed on, by the part that dropped them and the reason",
        ),
        |seen, values| of_groups(seen, &DROP_GROUPS, "reason", values),
    ),
    (
        counter(
            "proxyengine_events",
            "Events that are no drops, by the part that counts them",
        ),
        |seen, values| of_groups(seen, &EVENT_GROUPS, "event", values),
    ),
    (
        gauge("proxyengine_entries", "Entries in use, by structure"),
        |seen, values| {
            of_group(seen, "usage", &mut |name, count| {
                _ = values.add(&[("structure", name)], count)
            })
        },
    ),
    (
        gauge(
            "proxyengine_waiting_frames",
            "Frames that wait now, as far as drivers tell",
        ),
        |seen, values| {
            of_group(seen, WAITING, &mut |name, count| {
                _ = values.add(&[("where", name)], count)
            })
        },
    ),
    (
        counter("proxyengine_records", "Session records written"),
        |seen, values| _ = values.add(&[], seen.report.records),
    ),
    (
        counter("proxyengine_records_lost", "Session records lost"),
        |seen, values| _ = values.add(&[], seen.report.records_lost),
    ),
    (
        counter(
            "proxyengine_log_lines_lost",
            "Lines of the log lost, for nobody reads them fast enough",
        ),
        |seen, values| _ = values.add(&[], seen.report.log_lost),
    ),
    (
        gauge(
            "proxyengine_next_hops",
            "Next hops by whether their MAC address is known",
        ),
        next_hops,
    ),
    (
        gauge("proxyengine_pool_buffers", "Packet buffers of a pool"),
        |seen, values| {
            let pools = seen.report.buffers.pools.iter();
            pools.for_each(|pool| _ = values.add(&[("pool", &pool.name)], pool.capacity));
        },
    ),
    (
        gauge(
            "proxyengine_pool_buffers_free",
            "Packet buffers of a pool that are free now",
        ),
        |seen, values| {
            let pools = seen.report.buffers.pools.iter();
            pools.for_each(|pool| _ = values.add(&[("pool", &pool.name)], pool.available_after));
        },
    ),
    (
        gauge("proxyengine_core_connections_open", "Connections of a core now"),
        |seen, values| of_cores(seen, values, |core| core.connections_open.to_string()),
    ),
    (
        counter(
            "proxyengine_core_busy_seconds",
            "Time of a core in rounds that did something",
        ),
        |seen, values| of_cores(seen, values, |core| (core.busy_ns as f64 / 1e9).to_string()),
    ),
    (
        counter(
            "proxyengine_core_rounds",
            "Rounds of a core, by whether they did something",
        ),
        core_rounds,
    ),
    (
        gauge(
            "proxyengine_core_age_seconds",
            "Time since a core has last written its counters",
        ),
        |seen, values| {
            let ages = seen.watch.ages();
            ages.for_each(|(core, age)| _ = values.add(&[("core", &core.to_string())], age.as_secs_f64()));
        },
    ),
    (
        counter("proxyengine_port_received_packets", "Packets that a port has received"),
        |seen, values| of_ports(seen, values, |port| port.rx_packets),
    ),
    (
        counter("proxyengine_port_received_bytes", "Bytes that a port has received"),
        |seen, values| of_ports(seen, values, |port| port.rx_bytes),
    ),
    (
        counter("proxyengine_port_sent_packets", "Packets that a port has sent"),
        |seen, values| of_ports(seen, values, |port| port.tx_packets),
    ),
    (
        counter("proxyengine_port_sent_bytes", "Bytes that a port has sent"),
        |seen, values| of_ports(seen, values, |port| port.tx_bytes),
    ),
    (
        counter(
            "proxyengine_port_errors",
            "Packets that a device lost, by the reason that it gives",
        ),
        port_errors,
    ),
    (
        gauge(
            "proxyengine_port_up",
            "1 if a port's link is up, where its device tells",
        ),
        |seen, values| {
            let told = seen
                .report
                .ports
                .iter()
                .filter_map(|port| Some((&port.name, port.link_up? && !port.removed)));
            told.for_each(|(name, is_up)| _ = values.add(&[("port", name)], u8::from(is_up)));
        },
    ),
    (
        counter("proxyengine_port_link_downs", "Times that a port's link has gone down"),
        |seen, values| of_ports(seen, values, |port| port.link_downs),
    ),
    (
        gauge("proxyengine_server_connections_open", "Connections to a server now"),
        |seen, values| of_servers(seen, values, |server| server.connections_open),
    ),
    (
        counter("proxyengine_server_calls", "Calls to a server"),
        |seen, values| of_servers(seen, values, |server| server.calls),
    ),
    (
        counter(
            "proxyengine_server_failures",
            "Calls that a server refused or did not answer",
        ),
        |seen, values| of_servers(seen, values, |server| server.failures),
    ),
    (
        gauge("proxyengine_server_out_cores", "Cores that pass a server over now"),
        |seen, values| of_servers(seen, values, |server| server.cores_out),
    ),
    (
        counter(
            "proxyengine_listener_connections",
            "Connections that a listener has had",
        ),
        |seen, values| {
            let listeners = of_listeners(seen, |listener| listener.connections.get());
            listeners.for_each(|(name, count)| _ = values.add(&[("listener", name)], count));
        },
    ),
    (
        gauge("proxyengine_listener_connections_open", "Connections of a listener now"),
        |seen, values| {
            let open = |listener: &ListenerTally| listener.connections.get().saturating_sub(listener.ended.get());
            of_listeners(seen, open).for_each(|(name, count)| _ = values.add(&[("listener", name)], count));
        },
    ),
    (
        counter(
            "proxyengine_listener_bytes",
            "Payload bytes of connections that have ended, by direction",
        ),
        listener_bytes,
    ),
    (
        histogram(
            "proxyengine_choice_seconds",
            "Time from the beginning of a connection to the choice of its server, where records are kept",
        ),
        |seen, values| times_of_listeners(seen, values, |listener| &listener.choice),
    ),
    (
        histogram(
            "proxyengine_first_byte_seconds",
            "Time from the SYN-ACK of a server, when the request goes to it, to its first byte, where records are kept",
        ),
        |seen, values| times_of_listeners(seen, values, |listener| &listener.first_byte),
    ),
    (
        histogram(
            "proxyengine_connection_seconds",
            "Time from the beginning of a connection to its end, where records are kept",
        ),
        |seen, values| times_of_listeners(seen, values, |listener| &listener.duration),
    ),
    (
        histogram(
            "proxyengine_connection_bytes",
            "Payload bytes of a connection in both directions",
        ),
        connection_bytes,
    ),
    (
        counter("proxyengine_pool_connections", "Connections that a pool was chosen for"),
        |seen, values| {
            for (name, sum) in of_pools(seen, |pool| pool.chosen.get()) {
                values.add(&[("pool", name)], sum);
            }
        },
    ),
    (
        histogram(
            "proxyengine_connect_seconds",
            "Time from the SYN to a server of a pool to its SYN-ACK, of calls with one SYN",
        ),
        connect_times,
    ),
];

/// All of them as text.
pub fn text(watch: &Watch, format: Format) -> String {
    let report = &watch.report();
    let seen = Seen { report, watch };
    let mut text = Exposition::new(format);
    for (family, tell) in &TABLE {
        tell(&seen, &mut text.family(family));
    }
    text.finish()
}

fn seconds_of_ms(ms: u64) -> f64 {
    ms as f64 / 1e3
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

fn next_hops(seen: &Seen<'_>, values: &mut Values<'_>) {
    let next_hops = seen.report.next_hops;
    let unresolved = next_hops.total - next_hops.resolved;
    values
        .add(&[("state", "resolved")], next_hops.resolved)
        .add(&[("state", "unresolved")], unresolved);
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
    for server in &seen.report.servers {
        values.add(&[("server", &server.name)], of(server));
    }
}

/// A sum over the cores for each listener, with its name.
fn of_listeners<'a>(seen: &'a Seen<'_>, of: impl Fn(&ListenerTally) -> u64) -> impl Iterator<Item = (&'a str, u64)> {
    let listeners = seen.watch.config().listeners().iter().enumerate();
    listeners.map(move |(index, listener)| {
        let of_cores = seen.watch.tallies().filter_map(|tally| tally.listeners().get(index));
        (listener.name.as_str(), of_cores.map(&of).sum())
    })
}

/// The same for each pool.
fn of_pools<'a>(seen: &'a Seen<'_>, of: impl Fn(&PoolTally) -> u64) -> impl Iterator<Item = (&'a str, u64)> {
    let pools = seen.watch.config().pools().iter().enumerate();
    pools.map(move |(index, pool)| {
        let of_cores = seen.watch.tallies().filter_map(|tally| tally.pools().get(index));
        (pool.name.as_str(), of_cores.map(&of).sum())
    })
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

fn times_of_listeners(seen: &Seen<'_>, values: &mut Values<'_>, of: fn(&ListenerTally) -> &Histogram) {
    for (index, listener) in seen.watch.config().listeners().iter().enumerate() {
        let all = distribution(seen.watch, |tally| tally.listeners().get(index).map(of));
        add_times(values, ("listener", &listener.name), &all);
    }
}

fn connect_times(seen: &Seen<'_>, values: &mut Values<'_>) {
    for (index, pool) in seen.watch.config().pools().iter().enumerate() {
        let all = distribution(seen.watch, |tally| tally.pools().get(index).map(|pool| &pool.connect));
        add_times(values, ("pool", &pool.name), &all);
    }
}

fn add_times(values: &mut Values<'_>, label: (&str, &str), all: &Distribution) {
    let seconds = |micros: u64| micros as f64 / 1e6;
    let buckets = TIME_BOUNDS.map(|log| (seconds(1 << log), all.below(1 << log)));
    values.add_histogram(&[label], buckets, (all.count(), seconds(all.sum())));
}

fn connection_bytes(seen: &Seen<'_>, values: &mut Values<'_>) {
    for (index, listener) in seen.watch.config().listeners().iter().enumerate() {
        let all = distribution(seen.watch, |tally| {
            tally.listeners().get(index).map(|listener| &listener.bytes)
        });
        let buckets = BYTE_BOUNDS.map(|log| ((1_u64 << log) as f64, all.below(1 << log)));
        let whole = (all.count(), all.sum() as f64);
        values.add_histogram(&[("listener", &listener.name)], buckets, whole);
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
    fn names_follow_the_rules_and_are_documented() {
        let document = include_str!("../../docs/operation.md");
        let mut seen = HashSet::new();
        for (family, _) in &TABLE {
            let Family { name, kind, help } = family;
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
            let shown = format!("`{name}{}`", kind.suffix());
            assert!(document.contains(&shown), "docs/operation.md does not list {shown}");
        }
    }
}
