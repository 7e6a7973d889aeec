//! Limits and classes: their open connections, and how many were refused.

use serde_json::{Value, json};
use splice::limit::{Limit, Limited};
use splice::standby::Standby;

use crate::config::{Config, Standing};

/// A thing with a limit, or a class.
pub(super) struct Row<'a> {
    /// Its kind.
    pub(super) kind: &'static str,
    pub(super) name: &'a str,
    /// Where it is counted.
    pub(super) of: (Limited, u16),
    limit: Option<Limit>,
}

/// Everything that has a limit, and all classes.
pub(super) fn rows(config: &Config) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    let mut add = |kind, name, of, limit| rows.push(Row { kind, name, of, limit });
    let listeners = config.listeners().iter();
    for listener in listeners.filter(|listener| listener.standing == Standing::InFile) {
        let (name, id) = (listener.name.as_str(), listener.id.0);
        if listener.limit.is_some() {
            add("listener", name, (Limited::Listener, id), listener.limit);
        }
        if let Some(of_each) = listener.client_limit {
            add("client", name, (Limited::Clients, id), Some(of_each.limit));
        }
    }
    for (class, id) in config.classes().iter().zip(0..) {
        add("class", &class.name, (Limited::Class, id), class.limit);
    }
    let in_file = |pool: &&crate::config::PoolConfig| pool.standing == Standing::InFile && pool.limit.is_some();
    for pool in config.pools().iter().filter(in_file) {
        add("pool", &pool.name, (Limited::Pool, pool.id.0), pool.limit);
    }
    rows
}

/// A row for each. Connections that were admitted uncounted are those of all listeners.
pub(super) fn list(config: &Config, standby: &Standby) -> Value {
    let uncounted = standby.uncounted_clients();
    let row = |row: Row<'_>| {
        let counted = standby.metered(row.of.0, row.of.1);
        let is_of_clients = row.of.0 == Limited::Clients;
        let own = |count: u64| (!is_of_clients).then_some(count);
        json!({
            "kind": row.kind,
            "name": row.name,
            "connections": row.limit.and_then(|limit| limit.connections),
            "rate": row.limit.and_then(|limit| limit.rate).map(|rate| 1e9 / rate.interval_ns.get() as f64),
            "burst": row.limit.and_then(|limit| limit.rate).map(|rate| rate.burst),
            "open": own(counted.open),
            "begun": own(counted.begun),
            "refused": counted.refused,
            "uncounted": is_of_clients.then_some(uncounted),
        })
    };
    rows(config).into_iter().map(row).collect()
}
