//! `proxyengine ctl`: asks a running engine over its control socket, and shows the answer as a table or as JSON.

use std::io::{self, Write};
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum};
use control::http::{Endpoint, client};
use serde_json::Value;
use splice::visit::STATES;

use super::capture::{self, CaptureCommand};
use super::leave::{Leave, OnOff, Subject};
use super::lists::{self, ListCommand};
use super::networks::by_network;
use super::shown::{as_toml, shown};
use super::{Exit, complain, print};

/// Where an engine listens that its unit file starts.
pub(super) const SOCKET: &str = "/run/proxyengine/control";

/// How often `--watch` asks.
const WATCH: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub(super) struct CtlArguments {
    /// The engine's socket: `[control] socket` of its configuration; or its `http` address.
    #[arg(long, value_name = "PATH", default_value = SOCKET, global = true)]
    socket: Endpoint,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Subcommand, Debug)]
enum CtlCommand {
    /// Show what the engine does now.
    Show(ShowArguments),
    /// End connections with a RST to both sides; for root and the engine's user.
    Kill {
        /// Which.
        #[command(subcommand)]
        command: KillCommand,
    },
    /// Have the engine read its configuration again, as SIGHUP does, and wait until all cores have it; for root and the engine's
    /// user.
    Reload {
        /// Has no effect: reload waits for all cores in any case.
        #[arg(long)]
        wait: bool,
    },
    /// Take a server, a pool's servers, a listener or the whole engine out of service: no new connections, open ones go on.
    Drain(Leave),
    /// The same, and servers are neither checked nor asked what they can do.
    Maint(Leave),
    /// Take it into service again.
    Ready(Subject),
    /// Show what a reload would change: + is new, - gone, ~ another; or why it would be refused; and what ctl has changed; for root and
    /// the engine's user.
    Diff,
    /// Answer for the addresses of listeners, or leave them to another engine; for root and the engine's user.
    Announce {
        /// From now on.
        #[arg(value_enum)]
        word: OnOff,
    },
    /// Forget what ctl has changed: servers, pools, listeners and the engine are in service again, the log, records and announcements
    /// as the file says; for root and the engine's user.
    Reset,
    /// Frames of connections as a pcapng file; for root and the engine's user.
    Capture {
        /// What to do.
        #[command(subcommand)]
        command: CaptureCommand,
    },
    /// Lists of prefixes; for root and the engine's user.
    List {
        /// What to do.
        #[command(subcommand)]
        command: ListCommand,
    },
    /// Session records; for root and the engine's user.
    Records {
        /// What to do.
        #[command(subcommand)]
        command: RecordsCommand,
    },
    /// Change what may be changed while the engine runs; for root and the engine's user.
    Set {
        /// What.
        #[command(subcommand)]
        command: SetCommand,
    },
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct ShowArguments {
    /// What of it.
    #[arg(required = true)]
    part: Option<Part>,
    /// As JSON, for programs.
    #[arg(long, global = true)]
    json: bool,
    /// Again every second, in the place of what was there, until Ctrl-C.
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    #[command(subcommand)]
    command: Option<ShowCommand>,
}

#[derive(Subcommand, Debug)]
enum ShowCommand {
    /// Open connections: those for which all is so that is said here.
    Connections(Box<Wanted>),
    /// One connection, with all that is known of both its legs.
    Connection {
        /// As `show connections` names it.
        id: String,
    },
}

#[derive(Args, Debug)]
struct Wanted {
    /// To this server.
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Of this listener.
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Of clients with this address or prefix.
    #[arg(long, value_name = "PREFIX")]
    client: Option<String>,
    /// That have lasted for so many seconds.
    #[arg(long, value_name = "SECONDS")]
    older_than: Option<u32>,
    /// In this state.
    #[arg(long, value_parser = PossibleValuesParser::new(STATES))]
    state: Option<String>,
    /// That have waited for their server for more than a second.
    #[arg(long)]
    slow: bool,
    /// Whose legs are watched, with what was seen of them.
    #[arg(long)]
    watched: bool,
    /// Of these, all put together by their clients' networks.
    #[arg(long, requires = "watched", conflicts_with = "limit")]
    by_network: bool,
    /// So many at most.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    limit: usize,
}

#[derive(Subcommand, Clone, Debug)]
enum KillCommand {
    /// One connection.
    Connection {
        /// As `show connections` names it.
        id: String,
    },
    /// All connections of a server that are open now; it may get new ones.
    Server {
        /// Its name in the configuration.
        name: String,
    },
}

#[derive(Subcommand, Clone, Copy, Debug)]
enum RecordsCommand {
    /// Open their file anew if its name no longer leads to it, as SIGUSR2 does.
    Reopen,
    /// Write them again.
    On,
    /// Write none until `on`; those that are left out are counted.
    Off,
}

#[derive(Subcommand, Clone, Debug)]
enum SetCommand {
    /// Which lines the log has from now on: as `RUST_LOG`, such as `debug` or `info,proxyengine::engine=debug`.
    LogLevel {
        /// The levels.
        levels: String,
    },
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Part {
    /// What is wrong now, the worst first.
    Wrong,
    /// Everything, as SIGUSR1 shows it.
    Stat,
    /// Servers: whether they are passed over, since when, and what came of calls to them.
    Servers,
    /// Round-trip times and losses of both legs of watched connections, by server.
    Legs,
    /// Pools: the same of all their servers.
    Pools,
    /// Listeners.
    Listeners,
    /// Rules of listeners, and their defaults: how many connections each has decided about.
    Rules,
    /// Lists of prefixes: how much is in them, and how many SYNs came from them.
    Lists,
    /// Limits and classes: how many connections there are, and how many were refused.
    Limits,
    /// Cores.
    Cores,
    /// Why frames were dropped.
    Drops,
    /// Ports.
    Ports,
    /// Next hops, and whether their MAC addresses are known.
    Neighbours,
    /// Names that DNS is asked for: how many addresses each has, and how old the answer is.
    Names,
    /// The file that the engine runs with, as it was read last, without comments and what may be a secret.
    Config,
}

impl Part {
    /// Its word on the command line, which is the end of its path, too.
    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// An answer as text for people.
    fn shown(self, answer: &str) -> Result<String, String> {
        match self {
            Self::Config => as_toml(answer),
            _ => shown(answer, false),
        }
    }
}

pub(super) fn ctl(arguments: &CtlArguments) -> Exit {
    let socket = &arguments.socket;
    let post = |path: &str| ask(socket, "POST", path).map(|_| ());
    let result = match &arguments.command {
        CtlCommand::Show(show) => self::show(socket, show),
        CtlCommand::Kill { command } => kill(socket, command),
        CtlCommand::Records { command } => post(match command {
            RecordsCommand::Reopen => "records/reopen",
            RecordsCommand::On => "records/on",
            RecordsCommand::Off => "records/off",
        }),
        CtlCommand::Set {
            command: SetCommand::LogLevel { levels },
        } => post(&format!("log?{}", escaped(levels))),
        CtlCommand::Reload { .. } => post("reload"),
        CtlCommand::Drain(leave) => post(&format!("drain/{}", leave.path())),
        CtlCommand::Maint(leave) => post(&format!("maint/{}", leave.path())),
        CtlCommand::Ready(subject) => post(&format!("ready/{}", subject.path())),
        CtlCommand::Announce { word } => post(match word {
            OnOff::On => "announce/on",
            OnOff::Off => "announce/off",
        }),
        CtlCommand::Reset => post("reset"),
        CtlCommand::Capture { command } => capture::capture(socket, command),
        CtlCommand::List { command } => lists::list(socket, command),
        CtlCommand::Diff => ask(socket, "GET", "diff").map(|lines| print(&lines)),
    };
    match result {
        Ok(()) => Exit::Success,
        Err(reason) => failed(&format!("{socket}: {reason}")),
    }
}

/// Ends when the engine no longer answers, or nobody reads.
fn watch(socket: &Endpoint, part: Part) -> Result<(), String> {
    loop {
        let text = ask(socket, "GET", &part.name()).and_then(|answer| part.shown(&answer))?;
        // To the corner, and everything away: ECMA-48 8.3.21 and 8.3.39.
        let screen = format!("\x1b[H\x1b[J{text}");
        if io::stdout().write_all(screen.as_bytes()).is_err() {
            return Ok(());
        }
        std::thread::sleep(WATCH);
    }
}

fn show(socket: &Endpoint, show: &ShowArguments) -> Result<(), String> {
    let answer = match (&show.command, show.part) {
        (Some(ShowCommand::Connections(wanted)), _) => connections(socket, wanted)?,
        (Some(ShowCommand::Connection { id }), _) => ask(socket, "GET", &query("connection", &[("id", id)]))?,
        (None, Some(part)) if show.watch => return watch(socket, part),
        (None, Some(part)) => ask(socket, "GET", &part.name())?,
        // clap asks for one of them.
        (None, None) => return Ok(()),
    };
    let text = match show.part.filter(|_| !show.json) {
        Some(part) => part.shown(&answer),
        None => shown(&answer, show.json),
    };
    text.map(|text| print(&text))
}

/// The rows of as many answers as it takes.
fn connections(socket: &Endpoint, wanted: &Wanted) -> Result<String, String> {
    let older = wanted.older_than.map(|seconds| seconds.to_string());
    let limit = wanted.limit.to_string();
    let filters = [
        ("server", &wanted.server),
        ("listener", &wanted.listener),
        ("client", &wanted.client),
        ("older", &older),
        ("state", &wanted.state),
        ("limit", &Some(limit)),
    ];
    let given = filters
        .iter()
        .filter_map(|(name, value)| Some((*name, value.as_deref()?)));
    let flags = [("slow", wanted.slow), ("watched", wanted.watched)];
    let set = flags.into_iter().filter(|(_, is_set)| *is_set);
    let filters: Vec<_> = given.chain(set.map(|(name, _)| (name, ""))).collect();
    let wants_more = |rows: &[Value]| wanted.by_network || rows.len() < wanted.limit;
    let mut rows = rows(socket, ("connections", "connections"), &filters, wants_more)?;
    if wanted.by_network {
        rows = by_network(&rows);
    }
    rows.truncate(wanted.limit);
    Ok(Value::Array(rows).to_string() + "\n")
}

fn kill(socket: &Endpoint, command: &KillCommand) -> Result<(), String> {
    let which = match command {
        KillCommand::Connection { id } => ("id", id.as_str()),
        KillCommand::Server { name } => ("server", name.as_str()),
    };
    let ended = end_connections(socket, which)?;
    print(&format!("{ended} connections ended\n"));
    match command {
        KillCommand::Connection { .. } if ended == 0 => Err("there is no such connection, or it is over".to_owned()),
        _ => Ok(()),
    }
}

/// Ends connections that are named so; how many.
pub(super) fn end_connections(socket: &Endpoint, which: (&str, &str)) -> Result<u64, String> {
    let mut ended = 0;
    pages(socket, "POST", "connections/end", &[which], |page| {
        ended += page["ended"].as_u64().unwrap_or(0);
        true
    })?;
    Ok(ended)
}

/// The rows under `key` of as many answers of `path` as it takes, or as those so far want.
pub(super) fn rows(
    socket: &Endpoint,
    (path, key): (&str, &str),
    filters: &[(&str, &str)],
    wants_more: impl Fn(&[Value]) -> bool,
) -> Result<Vec<Value>, String> {
    let mut rows = Vec::new();
    pages(socket, "GET", path, filters, |page| {
        if let Some(Value::Array(more)) = page.get_mut(key).map(Value::take) {
            rows.extend(more);
        }
        wants_more(&rows)
    })?;
    Ok(rows)
}

/// Asks again and again, each time from where the last answer ended, until there is no more or `take` wants none.
fn pages(
    socket: &Endpoint,
    method: &str,
    path: &str,
    filters: &[(&str, &str)],
    mut take: impl FnMut(&mut Value) -> bool,
) -> Result<(), String> {
    let mut from = None;
    loop {
        let from_there = from.as_deref().map(|from| ("from", from));
        let filters: Vec<_> = filters.iter().copied().chain(from_there).collect();
        let answer = ask(socket, method, &query(path, &filters))?;
        let mut page: Value =
            serde_json::from_str(&answer).map_err(|error| format!("the answer is no JSON: {error}"))?;
        if !take(&mut page) {
            return Ok(());
        }
        match page["next"].as_str() {
            Some(next) => from = Some(next.to_owned()),
            None => return Ok(()),
        }
    }
}

/// Text for a query (RFC 3986 2.1: what is not unreserved is escaped).
fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        // What a query may hold as it is (RFC 3986 3.4), but for what divides pairs.
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        b'-' | b'.' | b'_' | b'~' | b'/' | b':' | b',' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

/// A path with a query.
pub(super) fn query(path: &str, pairs: &[(&str, impl AsRef<str>)]) -> String {
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name}={}", escaped(value.as_ref())))
        .collect();
    format!("{path}?{}", pairs.join("&"))
}

/// How long whoever asks for a reload waits for its end: answers of DNS, making it, and both steps of a second.
pub(super) const RELOAD_PATIENCE: Duration = Duration::from_secs(30);

/// What the engine answers to a path of its API, or why there is no answer.
pub(super) fn ask(socket: &Endpoint, method: &str, path: &str) -> Result<String, String> {
    // A reload waits for DNS and for every core.
    let patience = RELOAD_PATIENCE + Duration::from_secs(1);
    match client::ask_within(socket, method, &format!("/api/v1/{path}"), patience) {
        Ok((200, body)) => Ok(body),
        Ok((status, body)) => Err(format!("{status} {}", body.trim_end())),
        Err(error) => Err(unanswered(&error)),
    }
}

/// What to look at when nobody answers.
pub(super) fn unanswered(error: &io::Error) -> String {
    format!("{error}; does the engine run, with `[control] socket` in its file? Another place is named by --socket")
}

fn failed(reason: &str) -> Exit {
    complain(&format!("proxyengine ctl: {reason}"));
    Exit::NotStarted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a page has any of those that are wanted or not.
    #[test]
    fn pages_are_asked_for_until_there_is_no_next() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = Endpoint::Unix(folder.path().join("control"));
        let mut server = control::http::Server::new();
        server.listen(&socket).expect("a socket");
        let answer = |request: &control::http::Request<'_>| {
            control::http::Answer::json(match (request.method, request.query) {
                ("POST", "server=b1") => r#"{"ended":2048,"next":"0-8192"}"#.to_owned(),
                ("POST", "server=b1&from=0-8192") => r#"{"ended":0,"next":"1-0"}"#.to_owned(),
                ("POST", "server=b1&from=1-0") => r#"{"ended":7,"next":null}"#.to_owned(),
                other => format!("{other:?}"),
            })
        };
        let _running = server.spawn("pages", answer).expect("a server");
        assert_eq!(end_connections(&socket, ("server", "b1")), Ok(2055));
    }

    #[test]
    fn what_is_asked_for_is_escaped() {
        assert_eq!(
            query("a", &[("server", "x y/%&"), ("b", "")]),
            "a?server=x%20y/%25%26&b="
        );
    }
}
