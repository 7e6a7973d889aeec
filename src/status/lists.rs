//! Lists over the API: what is in each, how many SYNs came from it, and changes.

use std::ops::Bound;
use std::time::{Duration, Instant, SystemTime};

use humantime_serde::re::humantime::format_rfc3339_seconds;
use ipnet::IpNet;
use serde_json::{Value, json};

use super::connections::Refusal;
use super::query;
use crate::config::{Changed, Config, Kept, ListChange, ListConfig};
use crate::guard::{NO_CLASS, prefix};

/// Has the list of this name go on with a change, and waits for what comes of that.
pub type ListDoor = Box<dyn Fn(&str, ListChange) -> Result<(), String> + Send + Sync>;

/// The longest time to live: a year. Whoever wants more writes it into the file.
const LONGEST: u64 = 366 * 24 * 3600;

/// Prefixes whose changes one answer shows.
const MOST: usize = 1000;

/// A row for each.
pub(super) fn list(config: &Config) -> Value {
    let row = |list: &ListConfig| {
        let added = list.changes.values().filter_map(Changed::class).count();
        json!({
            "name": list.name,
            "file": list.file.as_ref().map(|file| file.display().to_string()),
            "prefixes": list.prefixes(),
            "classes": list.classes.len() - 1,
            "added": added,
            "removed": list.changes.len() - added,
            "hits": list.hits.sum(),
        })
    };
    config.lists().iter().map(row).collect()
}

/// A page of what has been added to a list and taken out while the engine runs, and where the next begins.
///
/// # Errors
/// See [`Refusal`].
pub(super) fn changes(query: &str, config: &Config) -> Result<Value, Refusal> {
    let (mut name, mut from) = (None, Bound::Unbounded);
    let taken = query::read(query, &[], |key, value| {
        match key {
            "list" => name = Some(value.to_owned()),
            "from" => from = Bound::Included(prefix(value).map_err(|complaint| format!("`from` {complaint}"))?),
            _ => return Err(format!("`{key}`: expected list or from")),
        }
        Ok(())
    });
    taken.map_err(|sentence| (400, sentence))?;
    let name = name.ok_or_else(|| (400, "expected `list`".to_owned()))?;
    let list = config.lists().iter().find(|list| list.name == name);
    let list = list.ok_or_else(|| (404, format!("there is no list \"{name}\"")))?;
    let now = (Instant::now(), SystemTime::now());
    let mut left = list.changes.range((from, Bound::Unbounded));
    let page = left.by_ref().take(MOST);
    let rows: Vec<Value> = page
        .flat_map(|(prefix, changed)| rows(list, prefix, changed, now))
        .collect();
    let next = left.next().map(|(prefix, _)| prefix.to_string());
    Ok(json!({ "changes": rows, "next": next }))
}

/// What holds of a prefix until a time, and what holds for good and after it.
fn rows(
    list: &ListConfig,
    prefix: &IpNet,
    changed: &Changed,
    (now, clock): (Instant, SystemTime),
) -> impl Iterator<Item = Value> {
    let for_now = changed.for_now.map(|(class, until)| (Some(class), Some(until)));
    let for_good = changed.kept.map(|kept| match kept {
        Kept::Added(class) => (Some(class), None),
        Kept::Removed => (None, None),
    });
    for_now.into_iter().chain(for_good).map(move |(class, until)| {
        let left = until.map(|until| until.saturating_duration_since(now));
        let name = class.and_then(|class| list.classes.get(usize::from(class)));
        json!({
            "prefix": prefix.to_string(),
            "change": if class.is_some() { "added" } else { "removed" },
            "class": name.filter(|name| *name != NO_CLASS),
            "until": left.map(|left| format_rfc3339_seconds(clock + left).to_string()),
            "left_s": left.map(|left| left.as_secs()),
        })
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [engine]
        cores = [0]
        [[port]]
        name = "p"
        device = "net_ring0"
        addresses = ["10.0.0.1/24"]
        [[listener]]
        name = "l"
        addresses = ["10.0.0.1:80"]
        default = "s"
        [[list]]
        name = "noticed"
        [[pool]]
        name = "s"
        servers = [{ name = "one", address = "10.0.0.21:80" }]"#;

    fn added(config: &Config, prefixes: Vec<IpNet>, class: &str, until: Option<Instant>) -> Config {
        let class = class.to_owned();
        let change = ListChange::Add { prefixes, class, until };
        config.with_list("noticed", change).expect("a change")
    }

    #[test]
    fn what_was_added_is_shown_with_its_class_and_until_when() {
        let config = Config::parse(FILE, "test").expect("a configuration");
        assert_eq!(
            changes("list=noticed", &config),
            Ok(json!({ "changes": [], "next": null }))
        );
        let prefix = || vec!["192.0.2.7/32".parse().expect("a prefix")];
        let config = added(&config, prefix(), "", None);
        let until = Instant::now() + Duration::from_secs(3600);
        let config = added(&config, prefix(), "scanner", Some(until));
        let shown = changes("list=noticed", &config).expect("changes");
        let [first, second] = shown["changes"].as_array().expect("rows").as_slice() else {
            panic!("{shown}");
        };
        let expected = json!({
            "prefix": "192.0.2.7/32", "change": "added", "class": null, "until": null, "left_s": null,
        });
        assert_eq!((second, &shown["next"]), (&expected, &Value::Null));
        assert_eq!(
            (&first["change"], &first["class"]),
            (&"added".into(), &"scanner".into())
        );
        assert!(
            (3590..=3600).contains(&first["left_s"].as_u64().expect("seconds")),
            "{first}"
        );
        let until = first["until"].as_str().expect("a time");
        assert!(until.len() == 20 && until.ends_with('Z'), "{until}");
        let row = &list(&config)[0];
        assert_eq!([&row["added"], &row["removed"], &row["prefixes"]], [1, 0, 1]);
    }

    #[test]
    fn an_answer_is_bounded_and_names_the_next() {
        let config = Config::parse(FILE, "test").expect("a configuration");
        let prefixes = (0..2_001_u32).map(|n| IpNet::from(std::net::IpAddr::from(std::net::Ipv4Addr::from(n))));
        let config = added(&config, prefixes.collect(), "", None);
        let (mut rows, mut from, mut pages) = (0, String::new(), 0);
        loop {
            let page = changes(&format!("list=noticed{from}"), &config).expect("a page");
            rows += page["changes"].as_array().expect("rows").len();
            pages += 1;
            let Some(next) = page["next"].as_str() else { break };
            from = format!("&from={next}");
        }
        assert_eq!((rows, pages), (2_001, 3));
    }

    #[test]
    fn what_asks_for_no_list_is_refused() {
        let config = Config::parse(FILE, "test").expect("a configuration");
        for (query, status) in [
            ("", 400),
            ("list=noticed&from=x", 400),
            ("list=noticed&x=1", 400),
            ("list=other", 404),
        ] {
            let refused = changes(query, &config).expect_err(query);
            assert_eq!(refused.0, status, "{query}: {}", refused.1);
        }
    }
}
