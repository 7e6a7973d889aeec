//! The engine's metrics: one table of families, from which the text is made. `docs/operation.md` lists them; a test compares.
//!
//! Names follow Prometheus' rules: one prefix, base units, `_total` for what only grows. Labels are few and bounded by the
//! configuration: no client's address, and no core but for what is a core's own. Sums over cores are made here, once a scrape.

use control::metrics::{Exposition, Family, Format, Kind, Values};

use super::DROP_GROUPS;
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

const fn counter(name: &'static str, help: &'static str) -> Family<'static> {
    let kind = Kind::Counter;
    Family { name, kind, help }
}

const fn gauge(name: &'static str, help: &'static str) -> Family<'static> {
    let kind = Kind::Gauge;
    Family { name, kind, help }
}

/// Every family, in the order of the text.
const TABLE: [(Family<'_>, Tell); 31] = [
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
