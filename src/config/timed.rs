//! `[control] timed_servers`: the servers for which times and legs are counted one by one.

use super::check::quoted;
use super::raw::RawControl;
use super::source::{At, Source};
use super::{Config, PoolConfig, ServerConfig, Standing};
use std::collections::HashSet;

/// A core writes the times of each of its connections into the table of the server: of so many the tables fit into its cache.
const MOST: usize = 64;

/// Reads the names: those of servers, or of entries that name their servers.
pub(super) fn check(
    source: &mut Source<'_>,
    raw: &RawControl,
    pools: &[PoolConfig],
    servers: &[ServerConfig],
) -> Option<Vec<String>> {
    let named = raw.timed_servers.as_ref()?;
    let at = At::root().key("control").key("timed_servers");
    if named.len() > MOST {
        source.complain(&at, format!("has {} names, expected at most {MOST}", named.len()));
    }
    let entries = pools.iter().flat_map(|pool| &pool.names).map(|entry| &entry.name);
    let known: HashSet<&String> = servers.iter().map(|server| &server.name).chain(entries).collect();
    for (index, name) in named.iter().enumerate().filter(|(_, name)| !known.contains(name)) {
        source.refuse(&at.index(index), quoted(name), "the name of a server");
    }
    Some(named.clone())
}

impl Config {
    /// Their numbers: of the servers of this file that are named, or the first of them.
    pub(super) fn timed_servers(&self) -> Vec<u16> {
        let is_named = |server: &&ServerConfig| {
            // A server of an entry that DNS resolves is called NAME@ADDRESS.
            let entry = server.name.split('@').next();
            let named = |names: &Vec<String>| {
                let is_it = |name: &String| *name == server.name || entry == Some(name);
                names.iter().any(is_it)
            };
            server.standing == Standing::InFile && self.timed_servers.as_ref().is_none_or(named)
        };
        let numbers = self.servers.iter().filter(is_named).map(|server| server.id.0);
        numbers.take(MOST).collect()
    }
}
