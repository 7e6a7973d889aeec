//! What a running engine shows over HTTP, on a Unix socket or an address: `[control]`, `docs/operation.md`.
//!
//! | path | shows |
//! |---|---|
//! | `/` | a page for browsers |
//! | `/metrics` | every counter, as Prometheus or OpenMetrics text ([`metrics`]) |
//! | `/healthz` | 200 as long as every worker goes on, else 503 with the reason |
//! | `/ready` | the same, and that the engine takes connections: no drain, no port down |
//! | `/api/v1/status` | what the page shows: all below, of one moment |
//! | `/api/v1/stat` | the report, as SIGUSR1 prints it, as JSON |
//! | `/api/v1/{servers,legs,pools,listeners,rules,lists,limits,cores,drops,ports,neighbours,names}` | parts of it, each an array of flat objects |
//! | `/api/v1/wrong` | what is wrong now, the worst first ([`wrong`]) |
//! | `/api/v1/connections`, `connection` | open connections ([`connections`]), over a Unix socket unless `show_clients`: they name clients |
//! | `POST /api/v1/connections/end` | ends those of a server, or one |
//! | `POST /api/v1/records/{reopen,on,off}` | the first as SIGUSR2 |
//! | `POST /api/v1/log` | other log levels |
//! | `POST /api/v1/announce/{on,off}` | answer for listeners' addresses, or leave them to another engine |
//! | `POST /api/v1/reset` | forget what was changed here: all that is kept in the [journal](crate::journal) |
//! | `POST /api/v1/capture` | a pcapng file, as long as somebody reads it ([`capture`](crate::capture)) |
//! | `/api/v1/diff` | what a reload would change, or why it would be refused; for those who may change something |
//! | `POST /api/v1/reload` | as SIGHUP; answers when all cores have it, or 409 with the reason |
//! | `POST /api/v1/{drain,maint,ready}/{server,pool,listener}/NAME`, `…/engine` | no new connections, or again ([`service`]) |
//!
//! What is posted changes something: for root and the engine's own user, over a Unix socket. Packet threads do nothing but
//! for connections, which they look at a few at a time ([`commands`](crate::commands)); for the rest see [`Watch`].

mod change;
pub(crate) mod connections;
mod legs;
mod limits;
mod lists;
pub mod metrics;
pub(crate) mod query;
mod rules;
mod service;
mod state;
mod times;
mod wrong;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use control::http::{Answer, Hosts, Peer, Request, Running, Server};
use e2d2::counters::Reason as _;
use e2d2::wire::MacAddr;
use serde_json::{Value, json};
use splice::drop_reason::DropReason;
use splice::settings::Member;
use splice::tally::{Histogram, ListenerTally, PoolTally, ServerTally};

use crate::config::{ControlConfig, ListenerConfig, PoolConfig, ServerConfig, Standing};
use crate::engine::{NotReady, Watch};
use crate::journal::Journal;
use crate::log_levels::LogLevels;
use crate::neighbour::NextHop;
use crate::report::{CoreReport, CounterGroup, Report, ServerReport};
use state::{OUT, PARTLY_OUT, check_of, state_in, state_of};
use times::{distribution, percentiles};

pub use self::lists::ListDoor;

/// Groups of counters that count frames which were not passed on, by reason.
pub const DROP_GROUPS: [&str; 5] = [
    "proxy_drops",
    "graph_drops",
    "neighbour_drops",
    "queue_drops",
    "kernel_drops",
];

/// Reasons under which nothing is lost: it was for the engine, or has gone on in pieces.
const WITHOUT_LOSS: [DropReason; 2] = [DropReason::Consumed, DropReason::Resegmented];

/// The page: it shows `/api/v1/status`, and asks for nothing else.
const PAGE: &str = include_str!("status/page.html");

/// The parts of the API, by the end of their path.
pub const PARTS: [&str; 14] = [
    "wrong",
    "stat",
    "servers",
    "legs",
    "pools",
    "listeners",
    "rules",
    "lists",
    "limits",
    "cores",
    "drops",
    "ports",
    "neighbours",
    "names",
];

/// Listens where the configuration says so; nothing is answered before [`serve`]. `None` if it names no place.
///
/// # Errors
/// A place cannot be listened on: it is told with the reason.
pub fn listen(config: &ControlConfig) -> Result<Option<Server>, (String, io::Error)> {
    let mut server = Server::new();
    server.allow_hosts(Hosts::Named(config.hosts.clone()));
    let places = [&config.socket, &config.http];
    for endpoint in places.into_iter().flatten() {
        server.listen(endpoint).map_err(|error| (endpoint.to_string(), error))?;
    }
    Ok(places.iter().any(|place| place.is_some()).then_some(server))
}

/// What the thread that owns an engine does for others.
pub struct Doors {
    /// The configuration's file.
    pub file: PathBuf,
    /// Has a list go on with a change, and waits for what comes of that.
    pub list: ListDoor,
    /// Has it read again, and waits for what comes of that.
    pub reload: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// Where changes are kept.
    pub journal: Journal,
}

/// Answers until what it returns is dropped. Without doors the configuration stays as it is.
///
/// # Errors
/// The thread cannot be made.
pub fn serve(server: Server, watch: Watch, levels: LogLevels, doors: Option<Doors>) -> io::Result<Running> {
    let doors = doors.map(Arc::new);
    server.spawn("control", move |request| {
        answer(request, &watch, &levels, doors.as_ref())
    })
}

fn answer(request: &Request<'_>, watch: &Watch, levels: &LogLevels, doors: Option<&Arc<Doors>>) -> Answer {
    if request.method != "GET" {
        return change::change(request, watch, levels, doors);
    }
    if let ("/api/v1/diff", Some(doors)) = (request.path, doors) {
        return change::diff(request.peer, watch, doors);
    }
    let may_see_clients = || matches!(request.peer, Peer::Local { .. }) || watch.config().control().show_clients;
    match request.path {
        "/metrics" => {
            let format = request.format();
            Answer::of(format.media_type(), metrics::text(watch, format))
        }
        "/" => Answer::of("text/html; charset=utf-8", PAGE.to_owned()),
        "/api/v1/status" => Answer::json(whole(watch).to_string() + "\n"),
        "/api/v1/connections" | "/api/v1/connection" if !may_see_clients() => Answer::refusal(
            403,
            "connections name clients: over a Unix socket, or with [control] show_clients\n",
        ),
        "/api/v1/connections" => told(connections::list(request.query, watch)),
        "/api/v1/connection" => told(connections::one(request.query, watch)),
        "/healthz" => verdict(watch.is_alive()),
        "/ready" => verdict(watch.is_ready()),
        path => path
            .strip_prefix("/api/v1/")
            .and_then(|part| part_of(part, &watch.report(), watch))
            .map_or_else(not_found, |part| Answer::json(part.to_string() + "\n")),
    }
}

fn told(result: Result<Value, connections::Refusal>) -> Answer {
    match result {
        Ok(value) => Answer::json(value.to_string() + "\n"),
        Err((status, sentence)) => Answer::refusal(status, &format!("{sentence}\n")),
    }
}

fn not_found() -> Answer {
    let parts = PARTS.join(",");
    Answer::not_found(&format!("/, /metrics, /healthz, /ready, /api/v1/{{status,{parts}}}\n"))
}

fn verdict(state: Result<(), NotReady>) -> Answer {
    match state {
        Ok(()) => Answer::text("ok\n"),
        Err(reason) => Answer::refusal(503, &format!("{reason}\n")),
    }
}

/// All parts of one moment, and why the engine is not ready if it is not.
fn whole(watch: &Watch) -> Value {
    let report = watch.report();
    let part = |part: &str| part_of(part, &report, watch).map(|value| (part.to_owned(), value));
    let mut all: serde_json::Map<String, Value> = PARTS.into_iter().filter_map(part).collect();
    let not_ready = watch.is_ready().err().map(|reason| reason.to_string());
    all.insert("not_ready".to_owned(), not_ready.into());
    Value::Object(all)
}

/// A part of the API; `None` if there is no such part.
fn part_of(part: &str, report: &Report, watch: &Watch) -> Option<Value> {
    match part {
        // A report always is JSON.
        "stat" => serde_json::to_value(report).ok(),
        "wrong" => Some(wrong::list(report, watch)),
        "servers" => Some(legs::beside(servers(report, watch), watch)),
        "legs" => Some(legs::list(watch)),
        "pools" => Some(pools(report, watch)),
        "listeners" => Some(listeners(watch)),
        "lists" => Some(lists::list(&watch.config())),
        "limits" => Some(limits::list(&watch.config(), &watch.standby())),
        "rules" => Some(rules::list(&watch.config(), &watch.tallies())),
        "cores" => Some(cores(report)),
        "drops" => Some(drops(report)),
        "ports" => serde_json::to_value(&report.ports).ok(),
        "names" => serde_json::to_value(&report.names).ok(),
        "neighbours" => Some(neighbours(watch)),
        _ => None,
    }
}

fn servers(report: &Report, watch: &Watch) -> Value {
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
        let since_ms = standby
            .server(server.id.0)
            .down()
            .map_or(told.since_ms, |(_, since)| since.as_millis());
        json!({
            "name": server.name,
            "pools": pools.join(" "),
            "address": server.address.to_string(),
            "state": state_in(server, told, report, &standby),
            "for_s": report.uptime_ms.saturating_sub(since_ms) / 1000,
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
fn pools(report: &Report, watch: &Watch) -> Value {
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

fn listeners(watch: &Watch) -> Value {
    let (config, tallies) = (watch.config(), watch.tallies());
    let of = |(index, listener): (usize, &ListenerConfig)| {
        let addresses = listener.addresses.iter().map(|address| {
            let (first, last) = (address.ports.start(), address.ports.end());
            let first_address = SocketAddr::new(address.ip, *first);
            if first == last {
                first_address.to_string()
            } else {
                format!("{first_address}-{last}")
            }
        });
        let of_cores = || tallies.iter().filter_map(|tally| tally.listener(index));
        let sum = |of: fn(&ListenerTally) -> u64| of_cores().map(of).sum::<u64>();
        json!({
            "name": listener.name,
            "addresses": addresses.collect::<Vec<_>>().join(" "),
            "open": sum(|listener| listener.connections.get().saturating_sub(listener.ended.get())),
            "connections": sum(|listener| listener.connections.get()),
            "bytes_to_server": sum(|listener| listener.bytes_to_server.get()),
            "bytes_to_client": sum(|listener| listener.bytes_to_client.get()),
        })
    };
    let there = |(_, listener): &(usize, &ListenerConfig)| listener.standing != Standing::Nobody;
    config.listeners().iter().enumerate().filter(there).map(of).collect()
}

fn cores(report: &Report) -> Value {
    let of = |core: &CoreReport| {
        let traffic = |name| core.counters.group("traffic").and_then(|group| group.count(name));
        json!({
            "core": core.core,
            "open": core.connections_open,
            "busy_rounds": core.busy_rounds,
            "idle_rounds": core.idle_rounds,
            "busy_ms": core.busy_ns / 1_000_000,
            "received": traffic("received"),
            "sent": traffic("sent"),
            "dropped": DROP_GROUPS.iter().filter_map(|name| core.counters.group(name)).map(CounterGroup::total).sum::<u64>(),
        })
    };
    report.cores.iter().map(of).collect()
}

fn neighbours(watch: &Watch) -> Value {
    let config = watch.config();
    let ports = config.ports();
    let of = |(hop, mac): (NextHop, Option<MacAddr>)| {
        json!({
            "address": hop.address.to_string(),
            "port": ports.get(usize::from(hop.port.0)).map(|port| port.name.as_str()),
            "mac": mac.map(|mac| mac.to_string()),
            "configured": hop.static_mac.is_some(),
        })
    };
    watch.next_hops().into_iter().map(of).collect()
}

/// Only reasons that have happened: the report has all.
fn drops(report: &Report) -> Value {
    let groups = DROP_GROUPS
        .iter()
        .filter_map(|name| Some((*name, report.counters.group(name)?)));
    let of_group = |(name, group): (&'static str, &CounterGroup)| -> Vec<Value> {
        let counted = group.iter().filter(|(_, count)| *count > 0);
        counted
            .map(|(reason, count)| {
                let is_loss = WITHOUT_LOSS.iter().all(|of| of.name() != reason);
                json!({ "group": name, "reason": reason, "count": count, "loss": is_loss })
            })
            .collect()
    };
    groups.flat_map(of_group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_brings_everything_with_it() {
        for foreign in ["http:", "https:", "src=", "@import", "url(", "innerHTML", "\u{feff}"] {
            assert!(!PAGE.contains(foreign), "{foreign}");
        }
        assert_eq!(
            PAGE.matches("fetch(").count(),
            PAGE.matches("fetch(\"/api/v1/status\"").count()
        );
    }
}
