//! Servers and pools: what state they are in, since when and why, and what comes of calls to them.

use serde_json::{Value, json};
use splice::settings::Member;
use splice::tally::{Histogram, PoolTally, ServerTally};

use super::state::{OUT, PARTLY_OUT, State, check_of, last_failure, state_of};
use super::times::{distribution, percentiles};
use crate::config::{PoolConfig, ServerConfig, Standing};
use crate::engine::Watch;
use crate::report::{Report, ServerReport};

pub(super) fn list(report: &Report, watch: &Watch) -> Value {
    let (config, tallies, standby) = (watch.config(), watch.tallies(), watch.standby());
    let mut pools_of = vec![Vec::new(); config.servers().len()];
    for pool in config.pools() {
        for member in &pool.members {
            pools_of[member.server.index()].push(pool.name.as_str());
        }
    }
    let of = |((server, told), pools): ((&ServerConfig, &ServerReport), Vec<&str>)| {
        let times = |of: fn(&ServerTally) -> Histogram<'_>| {
            percentiles(&distribution(&tallies, |tally| tally.server(server.id.index()).map(of)))
        };
        let ([connect_p50, connect_p99], [byte_p50, byte_p99]) =
            (times(ServerTally::connect), times(ServerTally::first_byte));
        let state = State::of(server, told, report, &standby);
        json!({
            "name": server.name,
            "pools": pools.join(" "),
            "address": server.address.to_string(),
            "state": state.word,
            "for_s": state.seconds(report),
            "why": state.why,
            "last_failure": last_failure(server, told, &standby),
            "check": check_of(server, &standby),
            "open": told.connections_open,
            "calls": told.calls,
            "failures": told.failures,
            "ejections": told.ejected_by_failure + told.ejected_by_silence,
            "mss": told.abilities.map(|abilities| abilities.mss),
            "connect_ms_p50": connect_p50,
            "connect_ms_p99": connect_p99,
            "first_byte_ms_p50": byte_p50,
            "first_byte_ms_p99": byte_p99,
        })
    };
    let servers = config.servers().iter().zip(&report.servers);
    let there = servers
        .zip(pools_of)
        .filter(|((server, _), _)| server.standing != Standing::Nobody);
    there.map(of).collect()
}

/// Of their servers, which other pools may have, too.
pub(super) fn pools(report: &Report, watch: &Watch) -> Value {
    let (config, tallies, standby) = (watch.config(), watch.tallies(), watch.standby());
    let of = |(index, pool): (usize, &PoolConfig)| {
        let members = pool.members.iter();
        let is_down = |member: &&Member| standby.server(member.server.0).down().is_some();
        let down = members.clone().filter(is_down).count();
        let servers: Vec<_> = members
            .filter_map(|member| report.servers.get(member.server.index()))
            .collect();
        let count = |state| {
            servers
                .iter()
                .filter(|server| state_of(server, report) == state)
                .count()
        };
        let sum = |of: fn(&ServerReport) -> u64| servers.iter().map(|server| of(server)).sum::<u64>();
        let of_cores = tallies.iter().filter_map(|tally| tally.pool(index));
        let chosen = of_cores.map(|pool| pool.chosen.get()).sum::<u64>();
        let times = |of: fn(&PoolTally) -> Histogram<'_>| {
            percentiles(&distribution(&tallies, |tally| tally.pool(index).map(of)))
        };
        let [choice_p50, choice_p99] = times(PoolTally::choice);
        let [connect_p50, connect_p99] = times(PoolTally::connect);
        let [byte_p50, byte_p99] = times(PoolTally::first_byte);
        json!({
            "name": pool.name,
            "servers": pool.members.len(),
            "out": count(OUT),
            "partly_out": count(PARTLY_OUT),
            "down": down,
            "open": sum(|server| server.connections_open),
            "calls": sum(|server| server.calls),
            "failures": sum(|server| server.failures),
            "connections": chosen,
            "choice_ms_p50": choice_p50,
            "choice_ms_p99": choice_p99,
            "connect_ms_p50": connect_p50,
            "connect_ms_p99": connect_p99,
            "first_byte_ms_p50": byte_p50,
            "first_byte_ms_p99": byte_p99,
        })
    };
    let in_file = |(_, pool): &(usize, &PoolConfig)| pool.standing == Standing::InFile;
    config.pools().iter().enumerate().filter(in_file).map(of).collect()
}
