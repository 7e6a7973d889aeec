//! Counters of the workers, and how they are read: `/metrics` for Prometheus, `/stats` as JSON, `/healthz`.

use crate::inline::layout;
use control::http::{Answer, Hosts, Request, Running, Server};
use control::metrics::{Exposition, Family, Format, Kind};
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a connection or datagram was not relayed, or not to its end.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The peer is not in the allow-list.
    NotAllowed,
    /// The peer failed too often lately.
    RateLimited,
    /// What came is no valid header.
    BadHeader,
    /// The header was not whole in time.
    HeaderTimeout,
    /// Descriptors or memory were needed, and of all peers without a whole header it had waited longest.
    HeaderCrowded,
    /// The peer closed before the header was whole.
    HeaderEnd,
    /// The header is for the other transport.
    WrongTransport,
    /// A rule denies it.
    Denied,
    /// The source is of a kind that gains trust or cannot be spoofed.
    DangerousSource,
    /// There is no target for the client's family, or the destination in the header is not allowed.
    NoTarget,
    /// The destination in the header is one of our own listeners.
    Loop,
    /// The target did not take the connection.
    ConnectFailed,
    /// The target did not answer in time.
    ConnectTimeout,
    /// The client's address and port are in use, and falling back is off.
    Duplicate,
    /// The client's address cannot be used as source: capability or routing is missing.
    SpoofFailed,
    /// No descriptors or no memory.
    NoResources,
    /// Nothing moved for the idle time.
    Idle,
    /// Too many UDP sessions, all in all or of one client.
    SessionLimit,
    /// The datagram could not be sent on.
    SendFailed,
    /// The daemon ends.
    Shutdown,
}

impl Reason {
    /// All, with the name that metrics and logs show.
    pub const ALL: [(Reason, &str); 20] = [
        (Reason::NotAllowed, "not_allowed"),
        (Reason::RateLimited, "rate_limited"),
        (Reason::BadHeader, "bad_header"),
        (Reason::HeaderTimeout, "header_timeout"),
        (Reason::HeaderCrowded, "header_crowded"),
        (Reason::HeaderEnd, "header_end"),
        (Reason::WrongTransport, "wrong_transport"),
        (Reason::Denied, "denied"),
        (Reason::DangerousSource, "dangerous_source"),
        (Reason::NoTarget, "no_target"),
        (Reason::Loop, "loop"),
        (Reason::ConnectFailed, "connect_failed"),
        (Reason::ConnectTimeout, "connect_timeout"),
        (Reason::Duplicate, "duplicate"),
        (Reason::SpoofFailed, "spoof_failed"),
        (Reason::NoResources, "no_resources"),
        (Reason::Idle, "idle"),
        (Reason::SessionLimit, "session_limit"),
        (Reason::SendFailed, "send_failed"),
        (Reason::Shutdown, "shutdown"),
    ];

    /// The name that metrics and logs show.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// A number that one thread changes and others read.
#[derive(Debug, Default)]
pub struct Cell(AtomicU64);

impl Cell {
    /// Adds. Only the owning worker may call it: a load and a store cost less than an atomic addition.
    pub fn add(&self, amount: u64) {
        self.0
            .store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Subtracts, as [`add`](Self::add).
    pub fn sub(&self, amount: u64) {
        self.add(amount.wrapping_neg());
    }

    /// The value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one worker counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// TCP connections accepted.
    pub accepted: Cell,
    /// TCP connections that reached their target.
    pub connected: Cell,
    /// TCP connections now.
    pub active: Cell,
    /// Connections from an address of this host, because the header says LOCAL or nothing.
    pub unspoofed: Cell,
    /// Connections whose client port was in use, so that another was taken.
    pub port_changed: Cell,
    /// Bytes relayed to servers.
    pub bytes_to_server: Cell,
    /// Bytes relayed to clients.
    pub bytes_to_client: Cell,
    /// Directions that were handed to `splice`.
    pub spliced: Cell,
    /// Times that accepting paused for want of descriptors.
    pub accept_pauses: Cell,
    /// UDP datagrams to servers.
    pub datagrams_to_server: Cell,
    /// UDP datagrams to clients.
    pub datagrams_to_client: Cell,
    /// UDP sessions begun.
    pub sessions_started: Cell,
    /// UDP sessions now.
    pub sessions: Cell,
    /// ICMP errors from UDP servers that were survived.
    pub server_errors: Cell,
    /// By [`Reason`].
    pub refused: [Cell; Reason::ALL.len()],
}

impl Counters {
    /// Counts a reason.
    pub fn refuse(&self, reason: Reason) {
        self.refused[reason as usize].add(1);
    }
}

/// What the programs of inline mode have counted, as of the last second.
#[derive(Debug, Default)]
pub struct InlineCounters {
    values: [AtomicU64; layout::COUNTERS.len()],
    active: AtomicU64,
}

impl InlineCounters {
    /// Takes over what was read: the counters in their order, and connections now.
    pub fn set(&self, values: &[u64], active: u64) {
        for (cell, value) in self.values.iter().zip(values) {
            cell.store(*value, Ordering::Relaxed);
        }
        self.active.store(active, Ordering::Relaxed);
    }

    /// Names, meanings and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let values = self.values.iter().map(|cell| cell.load(Ordering::Relaxed));
        layout::COUNTERS
            .iter()
            .zip(values)
            .map(|((name, help), value)| (*name, *help, value))
    }

    /// Connections now.
    pub fn active(&self) -> u64 {
        self.active.load(Ordering::Relaxed)
    }

    fn write(&self, out: &mut Exposition) {
        for (name, help, value) in self.iter() {
            write(out, &format!("inline_{name}"), Kind::Counter, help, value);
        }
        write(out, "inline_active", Kind::Gauge, "connections now", self.active());
    }

    fn json(&self) -> serde_json::Value {
        let mut object: serde_json::Map<_, _> = self
            .iter()
            .map(|(name, _, value)| (name.to_owned(), value.into()))
            .collect();
        object.insert("active".into(), self.active().into());
        object.into()
    }
}

type Field = (&'static str, Kind, &'static str, fn(&Counters) -> &Cell);

const FIELDS: [Field; 14] = [
    ("tcp_accepted", Kind::Counter, "TCP connections accepted", |c| {
        &c.accepted
    }),
    (
        "tcp_connected",
        Kind::Counter,
        "TCP connections that reached their target",
        |c| &c.connected,
    ),
    ("tcp_active", Kind::Gauge, "TCP connections now", |c| &c.active),
    (
        "unspoofed",
        Kind::Counter,
        "connections without a client address (LOCAL, UNKNOWN)",
        |c| &c.unspoofed,
    ),
    (
        "port_changed",
        Kind::Counter,
        "connections whose client port was in use",
        |c| &c.port_changed,
    ),
    ("bytes_to_server", Kind::Counter, "TCP bytes relayed to servers", |c| {
        &c.bytes_to_server
    }),
    ("bytes_to_client", Kind::Counter, "TCP bytes relayed to clients", |c| {
        &c.bytes_to_client
    }),
    ("spliced", Kind::Counter, "directions handed to splice", |c| &c.spliced),
    (
        "accept_pauses",
        Kind::Counter,
        "pauses of accepting for want of descriptors",
        |c| &c.accept_pauses,
    ),
    (
        "udp_datagrams_to_server",
        Kind::Counter,
        "UDP datagrams relayed to servers",
        |c| &c.datagrams_to_server,
    ),
    (
        "udp_datagrams_to_client",
        Kind::Counter,
        "UDP datagrams relayed to clients",
        |c| &c.datagrams_to_client,
    ),
    ("udp_sessions_started", Kind::Counter, "UDP sessions begun", |c| {
        &c.sessions_started
    }),
    ("udp_sessions", Kind::Gauge, "UDP sessions now", |c| &c.sessions),
    (
        "udp_server_errors",
        Kind::Counter,
        "ICMP errors from UDP servers",
        |c| &c.server_errors,
    ),
];

fn total<'a>(workers: impl Iterator<Item = &'a Counters>, cell: impl Fn(&Counters) -> &Cell) -> u64 {
    workers.fold(0, |sum, counters| sum.wrapping_add(cell(counters).value()))
}

fn write(out: &mut Exposition, name: &str, kind: Kind, help: &str, value: u64) {
    let name = &format!("mmproxy_{name}");
    out.family(&Family { name, kind, help }).add(&[], value);
}

/// The sums over all workers as text, with those of inline mode if there is one.
pub fn text<'a>(
    workers: impl Iterator<Item = &'a Counters> + Clone,
    inline: Option<&InlineCounters>,
    format: Format,
) -> String {
    let mut out = Exposition::new(format);
    for (name, kind, help, cell) in FIELDS {
        write(&mut out, name, kind, help, total(workers.clone(), cell));
    }
    let mut refused = out.family(&REFUSED);
    for (reason, name) in Reason::ALL {
        let value = total(workers.clone(), |counters| &counters.refused[reason as usize]);
        refused.add(&[("reason", name)], value);
    }
    if let Some(inline) = inline {
        inline.write(&mut out);
    }
    out.finish()
}

const REFUSED: Family<'_> = Family {
    name: "mmproxy_refused",
    kind: Kind::Counter,
    help: "connections and datagrams not relayed, by reason",
};

/// The sums over all workers as a JSON object, with those of inline mode if there is one.
pub fn json<'a>(workers: impl Iterator<Item = &'a Counters> + Clone, inline: Option<&InlineCounters>) -> String {
    let mut object = serde_json::Map::new();
    for (name, _, _, cell) in FIELDS {
        object.insert(name.into(), total(workers.clone(), cell).into());
    }
    let refused: serde_json::Map<_, _> = Reason::ALL
        .iter()
        .map(|&(reason, name)| {
            (
                name.to_owned(),
                total(workers.clone(), |counters| &counters.refused[reason as usize]).into(),
            )
        })
        .collect();
    object.insert("refused".into(), refused.into());
    if let Some(inline) = inline {
        object.insert("inline".into(), inline.json());
    }
    serde_json::Value::Object(object).to_string()
}

/// Connections of readers at once: descriptors are for sessions.
const READERS: usize = 1;

/// Serves the counters until what it returns is dropped. On loopback, requests have to name an address or `localhost` as their
/// host; elsewhere a name is how one gets there.
///
/// # Errors
/// The thread cannot be made.
pub fn serve(
    listener: TcpListener,
    workers: Vec<Arc<Counters>>,
    inline: Option<Arc<InlineCounters>>,
) -> io::Result<Running> {
    let mut server = Server::new();
    server.allow_connections(READERS);
    if !listener.local_addr()?.ip().is_loopback() {
        server.allow_hosts(Hosts::Any);
    }
    server.listen_on(listener)?;
    server.spawn("metrics", move |request| answer(request, &workers, inline.as_deref()))
}

fn answer(request: &Request<'_>, workers: &[Arc<Counters>], inline: Option<&InlineCounters>) -> Answer {
    let counters = workers.iter().map(Arc::as_ref);
    match (request.method, request.path) {
        ("GET", "/metrics") => {
            let format = request.format();
            Answer::of(format.media_type(), text(counters, inline, format))
        }
        ("GET", "/stats") => Answer::json(json(counters, inline)),
        ("GET", "/healthz") => Answer::text("ok\n"),
        ("GET", _) => Answer::not_found("/metrics, /stats, /healthz\n"),
        _ => Answer::refusal(405, "GET only\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_names() {
        let workers = [Counters::default(), Counters::default()];
        workers[0].accepted.add(2);
        workers[1].accepted.add(3);
        workers[1].active.add(5);
        workers[1].active.sub(1);
        workers[0].refuse(Reason::HeaderTimeout);
        let text = text(workers.iter(), None, Format::Text);
        for line in [
            "mmproxy_tcp_accepted_total 5",
            "mmproxy_tcp_active 4",
            "mmproxy_refused_total{reason=\"header_timeout\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let json: serde_json::Value = serde_json::from_str(&json(workers.iter(), None)).expect("JSON");
        assert_eq!(json["tcp_accepted"], 5);
        assert_eq!(json["refused"]["header_timeout"], 1);
        assert!(
            Reason::ALL
                .iter()
                .enumerate()
                .all(|(index, (reason, _))| *reason as usize == index)
        );
    }
}
