//! The table of the engine's metrics.

use splice::tally::{ListenerTally, PoolTally, ServerTally};

use super::{
    DROP_GROUPS, EVENT_GROUPS, Listed, Tell, WAITING, checks, connection_bytes, core_rounds, counter, gauge,
    handshake_times, histogram, info, listener_bytes, next_hops, of_classes, of_cores, of_group_by, of_groups,
    of_listeners, of_lists, of_names, of_pools, of_ports, of_rules, of_servers, port_errors, records_by_sink,
    refused_by_limits, round_trip_times, seconds_of_ms, segments, times_of_pools, times_of_servers, watched_segments,
    watched_zero_windows,
};

/// Every family, in the order of the text.
pub(super) static TABLE: &[(Listed, Tell)] = &[
    (
        info("proxyengine_build", &["version"], "The engine's version"),
        |seen, values| _ = values.add(&[("version", seen.report.version)], 1),
    ),
    (
        gauge("proxyengine_uptime_seconds", &[], "Time since the start"),
        |seen, values| _ = values.add(&[], seconds_of_ms(seen.report.uptime_ms)),
    ),
    (
        gauge("proxyengine_ready", &[], "1 if /ready says that it is"),
        |seen, values| _ = values.add(&[], u8::from(seen.watch.is_ready().is_ok())),
    ),
    (
        gauge("proxyengine_connections_open", &[], "Connections now"),
        |seen, values| _ = values.add(&[], seen.report.connections_open),
    ),
    (
        counter("proxyengine_segments", &["side", "event"], "TCP segments by meaning"),
        segments,
    ),
    (
        counter(
            "proxyengine_packets",
            &["event"],
            "Packets through the graph, by what became of them",
        ),
        |seen, values| of_group_by(seen, "traffic", "event", values),
    ),
    (
        counter(
            "proxyengine_drops",
            &["group", "reason"],
            "Frames that were not passed on, by the part that dropped them and the reason",
        ),
        |seen, values| of_groups(seen, &DROP_GROUPS, "reason", values),
    ),
    (
        counter(
            "proxyengine_events",
            &["group", "event"],
            "Events that are no drops, by the part that counts them",
        ),
        |seen, values| of_groups(seen, &EVENT_GROUPS, "event", values),
    ),
    (
        gauge("proxyengine_entries", &["structure"], "Entries in use, by structure"),
        |seen, values| of_group_by(seen, "usage", "structure", values),
    ),
    (
        gauge(
            "proxyengine_waiting_frames",
            &["where"],
            "Frames that wait now, as far as drivers tell",
        ),
        |seen, values| of_group_by(seen, WAITING, "where", values),
    ),
    (
        counter(
            "proxyengine_records",
            &[],
            "Session records written, to all sinks together",
        ),
        |seen, values| _ = values.add(&[], seen.report.records),
    ),
    (
        counter(
            "proxyengine_records_by_sink",
            &["sink", "fate"],
            "Session records by sink: written, lost, or left out by its filter and sample",
        ),
        records_by_sink,
    ),
    (
        counter("proxyengine_records_lost", &[], "Session records lost"),
        |seen, values| _ = values.add(&[], seen.report.records_lost),
    ),
    (
        counter(
            "proxyengine_records_left_out",
            &[],
            "Session records not written because `ctl records off` has said so",
        ),
        |seen, values| _ = values.add(&[], seen.report.records_left_out),
    ),
    (
        counter(
            "proxyengine_captured_frames",
            &["fate"],
            "Frames of captures: written, or lost because a core's rings or the places for what is kept were full",
        ),
        |seen, values| {
            let captured = seen.watch.captured();
            for (fate, count) in [("written", captured.written), ("lost", captured.lost)] {
                _ = values.add(&[("fate", fate)], count);
            }
        },
    ),
    (
        counter(
            "proxyengine_log_lines_lost",
            &[],
            "Lines of the log lost, for nobody reads them fast enough",
        ),
        |seen, values| _ = values.add(&[], seen.report.log_lost),
    ),
    (
        gauge(
            "proxyengine_next_hops",
            &["state"],
            "Next hops by whether their MAC address is known",
        ),
        next_hops,
    ),
    (
        gauge("proxyengine_pool_buffers", &["pool"], "Packet buffers of a pool"),
        |seen, values| {
            let pools = seen.report.buffers.pools.iter();
            pools.for_each(|pool| _ = values.add(&[("pool", &pool.name)], pool.capacity));
        },
    ),
    (
        gauge(
            "proxyengine_pool_buffers_free",
            &["pool"],
            "Packet buffers of a pool that are free now",
        ),
        |seen, values| {
            let pools = seen.report.buffers.pools.iter();
            pools.for_each(|pool| _ = values.add(&[("pool", &pool.name)], pool.available_after));
        },
    ),
    (
        gauge(
            "proxyengine_core_connections_open",
            &["core"],
            "Connections of a core now",
        ),
        |seen, values| of_cores(seen, values, |core| core.connections_open.to_string()),
    ),
    (
        counter(
            "proxyengine_core_busy_seconds",
            &["core"],
            "Time of a core in rounds that did something",
        ),
        |seen, values| of_cores(seen, values, |core| (core.busy_ns as f64 / 1e9).to_string()),
    ),
    (
        counter(
            "proxyengine_core_rounds",
            &["core", "kind"],
            "Rounds of a core, by whether they did something",
        ),
        core_rounds,
    ),
    (
        gauge(
            "proxyengine_core_age_seconds",
            &["core"],
            "Time since a core has last written its counters",
        ),
        |seen, values| {
            let ages = seen.watch.ages();
            ages.into_iter()
                .for_each(|(core, age)| _ = values.add(&[("core", &core.to_string())], age.as_secs_f64()));
        },
    ),
    (
        counter(
            "proxyengine_port_received_packets",
            &["port"],
            "Packets that a port has received",
        ),
        |seen, values| of_ports(seen, values, |port| port.rx_packets),
    ),
    (
        counter(
            "proxyengine_port_received_bytes",
            &["port"],
            "Bytes that a port has received",
        ),
        |seen, values| of_ports(seen, values, |port| port.rx_bytes),
    ),
    (
        counter(
            "proxyengine_port_sent_packets",
            &["port"],
            "Packets that a port has sent",
        ),
        |seen, values| of_ports(seen, values, |port| port.tx_packets),
    ),
    (
        counter("proxyengine_port_sent_bytes", &["port"], "Bytes that a port has sent"),
        |seen, values| of_ports(seen, values, |port| port.tx_bytes),
    ),
    (
        counter(
            "proxyengine_port_errors",
            &["port", "kind"],
            "Packets that a device lost, by the reason that it gives",
        ),
        port_errors,
    ),
    (
        gauge(
            "proxyengine_port_up",
            &["port"],
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
        counter(
            "proxyengine_port_link_downs",
            &["port"],
            "Times that a port's link has gone down",
        ),
        |seen, values| of_ports(seen, values, |port| port.link_downs),
    ),
    (
        gauge(
            "proxyengine_server_connections_open",
            &["server"],
            "Connections to a server now",
        ),
        |seen, values| of_servers(seen, values, |server| server.connections_open),
    ),
    (
        counter("proxyengine_server_calls", &["server"], "Calls to a server"),
        |seen, values| of_servers(seen, values, |server| server.calls),
    ),
    (
        counter(
            "proxyengine_server_failures",
            &["server"],
            "Calls that a server refused or did not answer",
        ),
        |seen, values| of_servers(seen, values, |server| server.failures),
    ),
    (
        gauge(
            "proxyengine_server_out_cores",
            &["server"],
            "Cores that pass a server over now",
        ),
        |seen, values| of_servers(seen, values, |server| server.cores_out),
    ),
    (
        gauge(
            "proxyengine_server_check_down",
            &["server"],
            "1 if a server that is checked is down because of that",
        ),
        checks,
    ),
    (
        counter(
            "proxyengine_listener_connections",
            &["listener"],
            "Connections that a listener has had",
        ),
        |seen, values| {
            let listeners = of_listeners(seen, |listener| listener.connections.get());
            listeners.for_each(|(name, count)| _ = values.add(&[("listener", name)], count));
        },
    ),
    (
        gauge(
            "proxyengine_listener_connections_open",
            &["listener"],
            "Connections of a listener now",
        ),
        |seen, values| {
            let open = |listener: &ListenerTally| listener.connections.get().saturating_sub(listener.ended.get());
            of_listeners(seen, open).for_each(|(name, count)| _ = values.add(&[("listener", name)], count));
        },
    ),
    (
        counter(
            "proxyengine_listener_bytes",
            &["listener", "direction"],
            "Payload bytes of connections that have ended, by direction",
        ),
        listener_bytes,
    ),
    (
        histogram(
            "proxyengine_choice_seconds",
            &["pool"],
            "Time from the beginning of a connection to the choice of its server, which may be of no pool",
        ),
        |seen, values| times_of_pools(seen, values, PoolTally::choice),
    ),
    (
        histogram(
            "proxyengine_first_byte_seconds",
            &["pool"],
            "Time from the SYN-ACK of a server, when the request goes to it, to its first byte",
        ),
        |seen, values| times_of_pools(seen, values, PoolTally::first_byte),
    ),
    (
        histogram(
            "proxyengine_connection_seconds",
            &["pool"],
            "Time from the beginning of a connection to its end, of no pool if no server was chosen",
        ),
        |seen, values| times_of_pools(seen, values, PoolTally::duration),
    ),
    (
        histogram(
            "proxyengine_connection_bytes",
            &["pool"],
            "Payload bytes of a connection in both directions",
        ),
        connection_bytes,
    ),
    (
        counter(
            "proxyengine_rule_connections",
            &["listener", "rule"],
            "Connections whose server a rule of the listener has chosen, or its default",
        ),
        of_rules,
    ),
    (
        counter(
            "proxyengine_class_connections",
            &["class"],
            "Connections of clients of a class",
        ),
        |seen, values| of_classes(seen, values, |counted| counted.begun),
    ),
    (
        gauge(
            "proxyengine_class_connections_open",
            &["class"],
            "Open connections of clients of a class",
        ),
        |seen, values| of_classes(seen, values, |counted| counted.open),
    ),
    (
        counter(
            "proxyengine_limit_refused",
            &["kind", "name"],
            "Connections refused by a limit of a listener, its clients, a class or a pool",
        ),
        refused_by_limits,
    ),
    (
        counter(
            "proxyengine_limit_uncounted",
            &[],
            "Connections admitted beside limits of clients, as their table had no place",
        ),
        |seen, values| _ = values.add(&[], seen.watch.standby().uncounted_clients()),
    ),
    (
        counter("proxyengine_list_hits", &["list"], "SYNs of clients in a list"),
        |seen, values| of_lists(seen, values, |list| list.hits.sum()),
    ),
    (
        gauge("proxyengine_list_prefixes", &["list"], "Prefixes in a list now"),
        |seen, values| of_lists(seen, values, |list| list.prefixes() as u64),
    ),
    (
        counter(
            "proxyengine_pool_connections",
            &["pool"],
            "Connections that a pool was chosen for",
        ),
        |seen, values| {
            for (name, sum) in of_pools(seen, |pool| pool.chosen.get()) {
                values.add(&[("pool", name)], sum);
            }
        },
    ),
    (
        histogram(
            "proxyengine_connect_seconds",
            &["pool"],
            "Time from the SYN to a server of a pool to its SYN-ACK, of calls with one SYN",
        ),
        |seen, values| times_of_pools(seen, values, PoolTally::connect),
    ),
    (
        histogram(
            "proxyengine_server_connect_seconds",
            &["server"],
            "Time from the SYN to a server to its SYN-ACK, of calls with one SYN: sum and count, of the timed servers",
        ),
        |seen, values| times_of_servers(seen, values, ServerTally::connect),
    ),
    (
        histogram(
            "proxyengine_server_first_byte_seconds",
            &["server"],
            "Time from the SYN-ACK of a server to its first byte: sum and count, of the timed servers",
        ),
        |seen, values| times_of_servers(seen, values, ServerTally::first_byte),
    ),
    (
        histogram(
            "proxyengine_client_handshake_seconds",
            &["listener"],
            "Time from a SYN-ACK to the client's ACK of it, to the millisecond: of clients with timestamps, or whose SYN was passed on",
        ),
        handshake_times,
    ),
    (
        gauge(
            "proxyengine_sampled_one_in",
            &[],
            "Connections of which one is watched for the sampled figures; 0 if none is",
        ),
        |seen, values| _ = values.add(&[], seen.config.engine().leg_sample),
    ),
    (
        counter(
            "proxyengine_sampled_connections",
            &["pool"],
            "Sampled: connections to a pool that were watched",
        ),
        |seen, values| {
            for (name, sum) in of_pools(seen, |pool| pool.legs.connections.get()) {
                values.add(&[("pool", name)], sum);
            }
        },
    ),
    (
        histogram(
            "proxyengine_sampled_rtt_seconds",
            &["pool", "side"],
            "Sampled: round-trip times between the engine and the client or server, with the receiver's delay of its ACK",
        ),
        round_trip_times,
    ),
    (
        counter(
            "proxyengine_sampled_segments",
            &["pool", "side", "kind"],
            "Sampled: segments with data that a side has sent, by whether their bytes had passed, filled a gap, or were acknowledged",
        ),
        watched_segments,
    ),
    (
        counter(
            "proxyengine_sampled_zero_windows",
            &["pool", "side"],
            "Sampled: times that a side has closed its window",
        ),
        watched_zero_windows,
    ),
    (
        gauge("proxyengine_name_addresses", &["name"], "Addresses that DNS tells"),
        |seen, values| of_names(seen, values, |name| Some(name.addresses as f64)),
    ),
    (
        gauge(
            "proxyengine_name_answer_age_seconds",
            &["name"],
            "Time since the last good answer of DNS for a name; not there before the first",
        ),
        |seen, values| of_names(seen, values, |name| Some(seconds_of_ms(name.age_ms?))),
    ),
    (
        counter("proxyengine_name_failures", &["name"], "Failed questions to DNS"),
        |seen, values| of_names(seen, values, |name| Some(name.failures as f64)),
    ),
];
