//! Lists over the API: what is in each, how often somebody of it came, and changes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::query;
use crate::config::{Changed, Config, ListChange};
use crate::guard::prefix;

/// Has the list of this name go on with a change, and waits for what comes of that.
pub type ListDoor = Box<dyn Fn(&str, ListChange) -> Result<(), String> + Send + Sync>;

/// The longest time to live: a year. Whoever wants more writes it into the file.
const LONGEST: u64 = 366 * 24 * 3600;

/// A row for each.
pub(super) fn list(config: &Config) -> Value {
    let row = |list: &crate::config::ListConfig| {
        let count = |wanted: fn(&&Changed) -> bool| list.changes.values().filter(wanted).count();
        json!({
            "name": list.name,
            "file": list.file.as_ref().map(|file| file.display().to_string()),
            "prefixes": list.entries().count(),
            "classes": list.classes.len() - 1,
            "added": count(|changed| matches!(changed, Changed::Added { .. })),
            "removed": count(|changed| **changed == Changed::Removed),
            "hits": list.hits.sum(),
        })
    };
    config.lists().iter().map(row).collect()
}

/// A change, as a query says it: `list=`, `prefix=` with commas between several, and to add `class=` and `seconds=`.
///
/// # Errors
/// A sentence.
pub(super) fn read(adds: bool, query: &str) -> Result<(String, ListChange), String> {
    let (mut name, mut prefixes, mut class, mut until) = (None, Vec::new(), String::new(), None);
    query::read(query, &["prefix"], |key, value| {
        match key {
            "list" => name = Some(value.to_owned()),
            "prefix" => {
                for text in value.split(',') {
                    prefixes.push(prefix(text)?);
                }
            }
            "class" if adds => class = value.to_owned(),
            "seconds" if adds => {
                let seconds = value.parse().ok().filter(|seconds| (1..=LONGEST).contains(seconds));
                let seconds = seconds.ok_or_else(|| format!("`{key}={value}`: expected 1 to {LONGEST}"))?;
                until = Some(Instant::now() + Duration::from_secs(seconds));
            }
            _ => return Err(format!("`{key}`: expected list, prefix, and to add class or seconds")),
        }
        Ok(())
    })?;
    match name {
        Some(name) if !prefixes.is_empty() => Ok(match adds {
            true => (name, ListChange::Add { prefixes, class, until }),
            false => (name, ListChange::Remove(prefixes)),
        }),
        _ => Err("expected `list` and `prefix`".to_owned()),
    }
}
