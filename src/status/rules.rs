//! How many connections each rule has decided about: of a listener its rules in their order, then its default.

use std::sync::Arc;

use serde_json::{Value, json};
use splice::tally::Tally;

use crate::config::{BY_DEFAULT, Config, Fallback, ListenerConfig, PoolId, Standing};

/// A row.
pub(super) struct Chosen<'a> {
    /// Its name, or its place.
    pub(super) rule: String,
    /// Where it leads to; a rule may refuse, and a default reject.
    pool: Option<&'a str>,
    /// By all cores.
    pub(super) connections: u64,
}

/// The rows of a listener; the default's is the last.
pub(super) fn of_listener<'a>(
    listener: &'a ListenerConfig,
    config: &'a Config,
    tallies: &'a [Arc<Tally>],
) -> impl Iterator<Item = Chosen<'a>> {
    let pool = |pool: PoolId| Some(config.pool(pool).name.as_str());
    let rules = listener.rules.iter().enumerate().map(move |(place, rule)| {
        let of_cores = tallies.iter().filter_map(|tally| tally.rule(rule.id));
        Chosen {
            rule: rule.shown_as(place),
            pool: rule.pool().and_then(pool),
            connections: of_cores.map(|rule| rule.chosen.get()).sum(),
        }
    });
    let of_cores = tallies.iter().filter_map(|tally| tally.listener(listener.id.index()));
    let default = Chosen {
        rule: BY_DEFAULT.to_owned(),
        pool: match listener.default {
            Fallback::Pool(of) => pool(of),
            Fallback::Reject => None,
        },
        connections: of_cores.map(|listener| listener.by_default.get()).sum(),
    };
    rules.chain([default])
}

/// All of them, of the listeners that the file has.
pub(super) fn list(config: &Config, tallies: &[Arc<Tally>]) -> Value {
    let listeners = config.listeners().iter();
    let in_file = listeners.filter(|listener| listener.standing == Standing::InFile);
    let rows = in_file.flat_map(|listener| {
        of_listener(listener, config, tallies).map(|chosen| {
            json!({
                "listener": listener.name,
                "rule": chosen.rule,
                "pool": chosen.pool,
                "connections": chosen.connections,
            })
        })
    });
    rows.collect()
}
