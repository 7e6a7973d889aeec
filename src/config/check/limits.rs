//! `limit` and `client_limit`, and `[[class]]`.

use std::collections::HashSet;
use std::num::NonZeroU64;

use super::{choice, name, number, quoted};
use crate::config::defaults;
use crate::config::limits::ClassConfig;
use crate::config::raw::{RawClass, RawClientLimit, RawLimit, RawListener};
use crate::config::source::{At, Source};
use splice::callbacks::Refusal;
use splice::limit::{ClientLimit, Limit, Rank, Rate};
use splice::settings::AcceptProxy;

/// The most classes of a file.
const MOST_CLASSES: usize = 1024;

/// The words of `beyond`, and of a rule's `action`.
pub(super) const REFUSALS: [(&str, Refusal); 3] = [
    ("reject", Refusal::Reject),
    ("drop", Refusal::Drop),
    ("tarpit", Refusal::Tarpit),
];

/// `limit = { connections, rate, burst, beyond }`
pub(super) fn limit(source: &mut Source<'_>, at: &At, raw: Option<&RawLimit>) -> Option<Limit> {
    let raw = raw?;
    if raw.connections.is_none() && raw.rate.is_none() {
        source.complain(at, "limits nothing, expected connections, rate, or both");
    }
    let most = raw.connections.map(|most| {
        let at = at.key("connections");
        number(source, &at, Some(most), 1, &defaults::LIMIT_CONNECTIONS_RANGE) as u32
    });
    if raw.burst.is_some() && raw.rate.is_none() {
        source.complain(&at.key("burst"), "means nothing without rate, expected both");
    }
    let beyond = choice(source, &at.key("beyond"), raw.beyond.as_deref(), &REFUSALS);
    Some(Limit {
        connections: most,
        rate: raw.rate.map(|rate| self::rate(source, at, rate, raw.burst)),
        beyond,
    })
}

fn rate(source: &mut Source<'_>, at: &At, rate: f64, burst: Option<i64>) -> Rate {
    let range = defaults::LIMIT_RATE_RANGE;
    if !range.contains(&rate) {
        let expected = format!("{} to {} new connections a second", range.start(), range.end());
        source.refuse(&at.key("rate"), rate, expected);
    }
    let rate = rate.clamp(*range.start(), *range.end());
    let of_a_second = rate.ceil() as i64;
    let burst = number(
        source,
        &at.key("burst"),
        burst,
        of_a_second,
        &defaults::LIMIT_BURST_RANGE,
    );
    Rate {
        interval_ns: NonZeroU64::new((1e9 / rate).round() as u64).unwrap_or(NonZeroU64::MIN),
        burst: burst as u32,
    }
}

/// The limit of a pool: its connections are established, so it cannot tarpit.
pub(super) fn of_pool(source: &mut Source<'_>, at: &At, raw: Option<&RawLimit>) -> Option<Limit> {
    let limit = limit(source, at, raw)?;
    if limit.beyond == Refusal::Tarpit {
        source.refuse(
            &at.key("beyond"),
            quoted("tarpit"),
            "\"reject\" or \"drop\": when a pool is chosen, the client's first bytes have been taken",
        );
    }
    Some(limit)
}

/// `client_limit`: a limit, and the lengths of prefixes.
pub(super) fn of_clients(
    source: &mut Source<'_>,
    at: &At,
    raw: Option<&RawClientLimit>,
    accept: AcceptProxy,
) -> Option<ClientLimit> {
    let raw = raw?;
    if accept != AcceptProxy::Off {
        source.complain(
            at,
            "counts those who shake hands, which are proxies where PROXY headers are accepted; expected none",
        );
    }
    let mut prefix =
        |key: &str, value, (default, most)| number(source, &at.key(key), value, default, &(1..=most)) as u8;
    let prefix_v4 = prefix("prefix_v4", raw.prefix_v4, defaults::LIMIT_PREFIX_V4);
    let prefix_v6 = prefix("prefix_v6", raw.prefix_v6, defaults::LIMIT_PREFIX_V6);
    let of_each = RawLimit {
        connections: raw.connections,
        rate: raw.rate,
        burst: raw.burst,
        beyond: raw.beyond.clone(),
    };
    Some(ClientLimit {
        limit: limit(source, at, Some(&of_each))?,
        prefix_v4,
        prefix_v6,
    })
}

/// The classes of `[[class]]`, then those that only rules name.
pub(super) fn classes(source: &mut Source<'_>, raw: &[RawClass], listeners: &[RawListener]) -> Vec<ClassConfig> {
    let all = At::root().key("class");
    let rules = listeners.iter().flat_map(|listener| &listener.rules);
    let given: Vec<&str> = rules.filter_map(|rule| rule.class.as_deref()).collect();
    let mut names = HashSet::new();
    let mut classes = Vec::with_capacity(raw.len());
    for (i, raw) in raw.iter().enumerate() {
        let at = all.index(i);
        name(source, &at.key("name"), &raw.name, &mut names);
        if !given.contains(&raw.name.as_str()) {
            source.refuse(
                &at.key("name"),
                quoted(&raw.name),
                format!(
                    "a class that a rule gives: {{ client = [...], class = \"{}\" }}",
                    raw.name
                ),
            );
        }
        let ranks = [("usual", Rank::Usual), ("first", Rank::First), ("last", Rank::Last)];
        classes.push(ClassConfig {
            name: raw.name.clone(),
            limit: limit(source, &at.key("limit"), raw.limit.as_ref()),
            rank: choice(source, &at.key("rank"), raw.rank.as_deref(), &ranks),
        });
    }
    for name in given {
        if classes.iter().all(|class| class.name != name) {
            classes.push(ClassConfig::named(name));
        }
    }
    if classes.len() > MOST_CLASSES {
        source.complain(
            &all,
            format!("there are more than {MOST_CLASSES} classes, expected fewer"),
        );
    }
    classes
}

/// The number of the class that a rule gives.
pub(super) fn class(source: &mut Source<'_>, at: &At, text: &str, classes: &[ClassConfig]) -> Option<u16> {
    name(source, at, text, &mut HashSet::new());
    // `classes` has every name that a rule gives.
    let place = classes.iter().position(|class| class.name == text);
    place.map(|place| place as u16)
}
