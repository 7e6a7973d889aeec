//! `proxyengine ctl`: asks a running engine over its control socket, and shows the answer as a table or as JSON.

use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use control::http::{Endpoint, client};
use serde_json::Value;

use super::{Exit, complain, print};

/// Where an engine listens that its unit file starts.
const SOCKET: &str = "/run/proxyengine/control";

/// Columns that say what a row is of: they come before the others, which are in the order of the alphabet.
const FIRST: [&str; 5] = ["name", "core", "group", "reason", "state"];

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
    Show {
        /// What of it.
        part: Part,
        /// As JSON, for programs.
        #[arg(long)]
        json: bool,
        /// Again every second, in the place of what was there, until Ctrl-C.
        #[arg(long, conflicts_with = "json")]
        watch: bool,
    },
    /// Session records.
    Records {
        /// What to do.
        #[command(subcommand)]
        command: RecordsCommand,
    },
}

#[derive(Subcommand, Clone, Copy, Debug)]
enum RecordsCommand {
    /// Open their file anew if its name no longer leads to it, as SIGUSR2 does; for root and the engine's user.
    Reopen,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Part {
    /// Everything, as SIGUSR1 shows it.
    Stat,
    /// Servers: whether they are passed over, since when, and what came of calls to them.
    Servers,
    /// Pools: the same of all their servers.
    Pools,
    /// Listeners.
    Listeners,
    /// Cores.
    Cores,
    /// Why frames were dropped.
    Drops,
    /// Ports.
    Ports,
    /// Next hops, and whether their MAC addresses are known.
    Neighbours,
}

impl Part {
    /// Its word on the command line, which is the end of its path, too.
    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

pub(super) fn ctl(arguments: &CtlArguments) -> Exit {
    let socket = &arguments.socket;
    let result = match &arguments.command {
        CtlCommand::Show { part, watch: true, .. } => watch(socket, *part),
        CtlCommand::Show { part, json, .. } => {
            ask(socket, "GET", &part.name()).and_then(|answer| shown(&answer, *json).map(|text| print(&text)))
        }
        CtlCommand::Records {
            command: RecordsCommand::Reopen,
        } => ask(socket, "POST", "records/reopen").map(|_| ()),
    };
    match result {
        Ok(()) => Exit::Success,
        Err(reason) => failed(&format!("{socket}: {reason}")),
    }
}

/// Ends when the engine no longer answers, or nobody reads.
fn watch(socket: &Endpoint, part: Part) -> Result<(), String> {
    loop {
        let text = ask(socket, "GET", &part.name()).and_then(|answer| shown(&answer, false))?;
        // To the corner, and everything away: ECMA-48 8.3.21 and 8.3.39.
        let screen = format!("\x1b[H\x1b[J{text}");
        if io::stdout().write_all(screen.as_bytes()).is_err() {
            return Ok(());
        }
        std::thread::sleep(WATCH);
    }
}

fn ask(socket: &Endpoint, method: &str, path: &str) -> Result<String, String> {
    match client::ask(socket, method, &format!("/api/v1/{path}")) {
        Ok((200, body)) => Ok(body),
        Ok((status, body)) => Err(format!("{status} {}", body.trim_end())),
        Err(error) => Err(format!(
            "{error}; does the engine run, with `[control] socket` in its file?"
        )),
    }
}

fn shown(answer: &str, json: bool) -> Result<String, String> {
    match serde_json::from_str(answer) {
        Ok(_) if json => Ok(answer.to_owned()),
        Ok(Value::Array(rows)) => Ok(table(&rows)),
        Ok(whole) => Ok(pairs("", &whole).join("\n") + "\n"),
        Err(error) => Err(format!("the answer is no JSON: {error}")),
    }
}

fn failed(reason: &str) -> Exit {
    complain(&format!("proxyengine ctl: {reason}"));
    Exit::NotStarted
}

/// A line of names and a line for each row, in columns; numbers to the right.
fn table(rows: &[Value]) -> String {
    let first = rows.first().and_then(Value::as_object);
    let mut names: Vec<&String> = first.into_iter().flat_map(serde_json::Map::keys).collect();
    names.sort_by_key(|name| FIRST.iter().position(|first| first == name).unwrap_or(FIRST.len()));
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| names.iter().map(|name| word(&row[*name])).collect())
        .collect();
    let width = |column: usize| {
        cells
            .iter()
            .map(|row| row[column].chars().count())
            .chain([names[column].len()])
            .max()
    };
    let widths: Vec<usize> = (0..names.len()).filter_map(width).collect();
    let is_number = |column: usize| {
        rows.iter()
            .all(|row| row[names[column]].is_number() || row[names[column]].is_null())
    };
    let line = |row: &[String]| {
        let cell = |(column, text): (usize, &String)| {
            let width = widths[column];
            if is_number(column) {
                format!("{text:>width$}")
            } else {
                format!("{text:<width$}")
            }
        };
        let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    let heading: Vec<String> = names.iter().map(|name| (*name).clone()).collect();
    std::iter::once(heading)
        .filter(|row| !row.is_empty())
        .chain(cells.iter().cloned())
        .map(|row| line(&row))
        .collect()
}

/// `name value`, a line for each number or word in `whole`, whose own name begins with `path`.
fn pairs(path: &str, whole: &Value) -> Vec<String> {
    let below = |name: &str, value: &Value| {
        let path = if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        };
        pairs(&path, value)
    };
    match whole {
        Value::Object(map) => map.iter().flat_map(|(name, value)| below(name, value)).collect(),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .flat_map(|(index, value)| below(&index.to_string(), value))
            .collect(),
        other => vec![format!("{path} {}", word(other))],
    }
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arrays_are_tables_and_the_rest_is_pairs() {
        let rows = [
            json!({"name": "b1", "open": 5, "mss": null}),
            json!({"name": "server-2", "open": 17, "mss": 1460}),
        ];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let column = |name: &str| words(lines[0]).iter().position(|word| word == name).expect("a column");
        assert_eq!(words(lines[1])[column("mss")], "-");
        assert_eq!(words(lines[2])[column("open")], "17");
        assert_eq!((column("name"), column("mss"), column("open")), (0, 1, 2));
        assert_eq!(table(&[]), "");
        assert_eq!(pairs("", &json!({"a": {"b": [1, "x"]}})), ["a.b.0 1", "a.b.1 x"]);
    }
}
