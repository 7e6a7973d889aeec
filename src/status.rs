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
//! | `/api/v1/config` | the file that the engine runs with, without secrets; over a Unix socket only |
//! | `/api/v1/connections`, `connection` | open connections ([`connections`]), over a Unix socket unless `show_clients`: they name clients |
//! | `/api/v1/list` | what was added to a list and taken out while the engine runs, likewise |
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
mod servers;
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
use splice::tally::ListenerTally;

use crate::config::{ControlConfig, ListenerConfig, Standing};
use crate::engine::{NotReady, Watch};
use crate::journal::Journal;
use crate::log_levels::LogLevels;
use crate::neighbour::NextHop;
use crate::report::{CoreReport, CounterGroup, Report};

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
    let is_local = matches!(request.peer, Peer::Local { .. });
    let may_see_clients = || is_local || watch.config().control().show_clients;
    match request.path {
        "/metrics" => {
            let format = request.format();
            Answer::of(format.media_type(), metrics::text(watch, format))
        }
        "/" => Answer::of("text/html; charset=utf-8", PAGE.to_owned()),
        "/api/v1/status" => Answer::json(whole(watch).to_string() + "\n"),
        "/api/v1/connections" | "/api/v1/connection" | "/api/v1/list" if !may_see_clients() => Answer::refusal(
            403,
            "this names clients: over a Unix socket, or with [control] show_clients\n",
        ),
        "/api/v1/config" if !is_local => Answer::refusal(403, "the configuration is shown over a Unix socket only\n"),
        "/api/v1/config" => Answer::json(watch.config().without_secrets().to_string() + "\n"),
        "/api/v1/connections" => told(connections::list(request.query, watch)),
        "/api/v1/connection" => told(connections::one(request.query, watch)),
        "/api/v1/list" => told(lists::changes(request.query, &watch.config())),
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
        "servers" => Some(legs::beside(servers::list(report, watch), watch)),
        "legs" => Some(legs::list(watch)),
        "pools" => Some(servers::pools(report, watch)),
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
            "longest_round_us": core.longest_round_ns / 1000,
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
