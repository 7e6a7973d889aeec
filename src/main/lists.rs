//! `proxyengine ctl list`: shows and changes lists of the running engine.

use clap::Subcommand;
use control::http::{Endpoint, MOST_REQUEST};
use humantime_serde::re::humantime;
use serde_json::Value;
use std::time::Duration;

use super::ctl::{ask, end_connections, query, rows};
use super::print;
use super::shown::shown;

/// The longest path of a request: a change goes with one, and holds as a whole or not at all.
const LONGEST_PATH: usize = MOST_REQUEST - 256;

#[derive(Subcommand, Clone, Debug)]
pub(super) enum ListCommand {
    /// Show all lists: where they come from, how much is in them, and how many SYNs came from them. Or of one what was added and taken
    /// out while the engine runs.
    Show {
        /// Its name in the configuration.
        list: Option<String>,
        /// As JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Add addresses or prefixes to a list, whatever its file says.
    Add {
        /// Its name in the configuration.
        list: String,
        /// What is added.
        #[arg(required = true, value_name = "PREFIX")]
        prefixes: Vec<String>,
        /// With this class.
        #[arg(long)]
        class: Option<String>,
        /// For so long, such as 90s or 2h; without it until the engine ends or they are taken out.
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        ttl: Option<Duration>,
        /// And end the connections that clients with these addresses have open, with a RST to both sides.
        #[arg(long)]
        kill: bool,
    },
    /// Take addresses or prefixes out of a list: what its file says, until that is read again.
    Del {
        /// Its name in the configuration.
        list: String,
        /// What is taken out, as it stands in the list.
        #[arg(required = true, value_name = "PREFIX")]
        prefixes: Vec<String>,
    },
}

pub(super) fn list(socket: &Endpoint, command: &ListCommand) -> Result<(), String> {
    let change = |order: &str, list: &str, prefixes: &[String], more: &[(&str, String)]| {
        let mut pairs = vec![("list", list.to_owned()), ("prefix", prefixes.join(","))];
        pairs.extend(more.iter().cloned());
        let path = query(&format!("lists/{order}"), &pairs);
        if path.len() > LONGEST_PATH {
            let count = prefixes.len();
            return Err(format!(
                "{count} prefixes are more than one change can have, some 400: nothing has changed; put them \
                 into the list's file and reload"
            ));
        }
        ask(socket, "POST", &path).map(drop)
    };
    match command {
        ListCommand::Show { list, json } => {
            let answer = match list {
                None => ask(socket, "GET", "lists")?,
                Some(list) => {
                    let rows = rows(socket, ("list", "changes"), &[("list", list)], |_| true)?;
                    Value::Array(rows).to_string() + "\n"
                }
            };
            shown(&answer, *json).map(|text| print(&text))
        }
        ListCommand::Add {
            list,
            prefixes,
            class,
            ttl,
            kill,
        } => {
            let class = class.iter().map(|class| ("class", class.clone()));
            let seconds = ttl.iter().map(|ttl| ("seconds", ttl.as_secs().to_string()));
            let more: Vec<_> = class.chain(seconds).collect();
            change("add", list, prefixes, &more)?;
            if !kill {
                return Ok(());
            }
            let mut ended = 0;
            for prefix in prefixes {
                ended += end_connections(socket, ("client", prefix))?;
            }
            print(&format!("{ended} connections ended\n"));
            Ok(())
        }
        ListCommand::Del { list, prefixes } => change("remove", list, prefixes, &[]),
    }
}
