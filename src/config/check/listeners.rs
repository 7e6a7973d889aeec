//! `[[listener]]`.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use humantime_serde::re::humantime;

use super::pools::Pools;
use super::rules::Basis;
use super::{accept, choice, choices, duration, limits, name, quoted, rules, small, why_no_host};
use crate::config::Standing;
use crate::config::defaults;
use crate::config::limits::ClassConfig;
use crate::config::lists::ListConfig;
use crate::config::model::{Fallback, ListenAddress, ListenerConfig, ListenerTimeouts, PortConfig, Timeouts};
use crate::config::raw::RawListener;
use crate::config::source::{At, Source};
use splice::ids::{ListenerId, PoolId, PortIndex};
use splice::settings::Bind;

pub(super) fn check(
    source: &mut Source<'_>,
    raw: &[RawListener],
    ports: &[PortConfig],
    (pools, lists, classes): (&Pools, &[ListConfig], &[ClassConfig]),
    timeouts: &Timeouts,
) -> Vec<ListenerConfig> {
    let mut listeners: Vec<ListenerConfig> = Vec::with_capacity(raw.len());
    let all = At::root().key("listener");
    if raw.is_empty() {
        source.complain(&At::root(), "there is no [[listener]], expected at least one");
    }
    if raw.len() > usize::from(u16::MAX) {
        source.complain(&all, "has too many entries, expected at most 65535");
        return listeners;
    }
    let mut names = HashSet::new();
    for (i, raw) in raw.iter().enumerate() {
        let at = all.index(i);
        name(source, &at.key("name"), &raw.name, &mut names);
        let addresses = addresses(source, &at.key("addresses"), raw);
        if raw.rules.iter().all(|rule| rule.class.is_some()) && raw.default.is_none() {
            source.complain(
                &at,
                "has neither rules nor a default, expected either, or default = \"reject\" when a program of its own \
                 chooses the servers",
            );
        }
        let timeouts = small::listener_timeouts(source, &at.key("timeouts"), &raw.timeouts, timeouts);
        let (accept, trusted) = accept::check(source, &at.key("proxy_protocol"), raw.proxy_protocol.as_ref());
        let bind = choice(
            source,
            &at.key("bind"),
            raw.bind.as_deref(),
            &[
                ("payload", Bind::Payload),
                ("handshake", Bind::Handshake),
                ("syn", Bind::Syn),
            ],
        );
        let basis = Basis {
            bind,
            accept,
            lists,
            classes,
        };
        let (rules, classes) = rules::check(source, &at.key("rules"), &raw.rules, basis, pools);
        listeners.push(ListenerConfig {
            standing: Standing::InFile,
            accept,
            trusted,
            id: ListenerId(i as u16),
            name: raw.name.clone(),
            ports: ports_of(source, &at.key("ports"), raw, ports, &addresses),
            addresses,
            bind,
            rules,
            classes,
            limit: limits::limit(source, &at.key("limit"), raw.limit.as_ref()),
            client_limit: limits::of_clients(source, &at.key("client_limit"), raw.client_limit.as_ref(), accept),
            default: default(source, &at.key("default"), raw.default.as_deref(), pools),
            inspect_delay: inspect_delay(source, &at.key("inspect_delay"), raw, &timeouts),
            timeouts,
        });
    }
    listeners
}

/// The wait for the first payload: only where there is one, and shorter than what ends the connection.
fn inspect_delay(source: &mut Source<'_>, at: &At, raw: &RawListener, timeouts: &ListenerTimeouts) -> Option<Duration> {
    let text = raw.inspect_delay.as_deref()?;
    if let Some(bind @ ("handshake" | "syn")) = raw.bind.as_deref() {
        source.complain(
            at,
            format!("means nothing with bind = \"{bind}\", where no payload is waited for; expected none"),
        );
        return None;
    }
    let delay = duration(
        source,
        at,
        Some(text),
        *defaults::TIMEOUT_RANGE.start(),
        &defaults::TIMEOUT_RANGE,
    );
    if delay >= timeouts.select {
        let select = humantime::format_duration(timeouts.select);
        source.refuse(
            at,
            quoted(text),
            format!("less than `select`, \"{select}\", after which the client gets RST"),
        );
    }
    Some(delay)
}

/// Complains about addresses and ports that are listened on twice.
pub(super) fn keep_apart(source: &mut Source<'_>, listeners: &[ListenerConfig]) {
    let mut all: Vec<(&ListenAddress, usize, usize)> = Vec::new();
    for (i, listener) in listeners.iter().enumerate() {
        all.extend(
            listener
                .addresses
                .iter()
                .enumerate()
                .map(|(j, address)| (address, i, j)),
        );
    }
    all.sort_by_key(|(address, i, j)| (address.ip, *address.ports.start(), *i, *j));
    // Sorted by their first ports, each can only overlap the one that reaches furthest among those before it.
    let mut furthest: Option<(&ListenAddress, usize, usize)> = None;
    for entry in all {
        if let Some(before) = furthest.filter(|before| before.0.overlaps(entry.0)) {
            let (earlier, later) = if (before.1, before.2) < (entry.1, entry.2) {
                (before, entry)
            } else {
                (entry, before)
            };
            let at = At::root()
                .key("listener")
                .index(later.1)
                .key("addresses")
                .index(later.2);
            let expected = if earlier.1 == later.1 {
                "addresses and ports that are given only once".to_owned()
            } else {
                let other = &listeners[earlier.1].name;
                format!("addresses and ports that no other listener has; \"{other}\" listens there")
            };
            source.refuse(&at, quoted(later.0), expected);
        }
        let reaches_further = |before: (&ListenAddress, usize, usize)| {
            before.0.ip != entry.0.ip || before.0.ports.end() < entry.0.ports.end()
        };
        if furthest.is_none_or(reaches_further) {
            furthest = Some(entry);
        }
    }
}

fn addresses(source: &mut Source<'_>, at: &At, raw: &RawListener) -> Vec<ListenAddress> {
    let mut addresses: Vec<ListenAddress> = Vec::with_capacity(raw.addresses.len());
    if raw.addresses.is_empty() {
        source.complain(at, "is empty, expected at least one address such as \"192.0.2.1:80\"");
    }
    for (i, text) in raw.addresses.iter().enumerate() {
        let at = at.index(i);
        let Some(address) = listen_address(text) else {
            source.refuse(
                &at,
                quoted(text),
                "an address with a port or a range of ports, such as \"192.0.2.1:80\", \"192.0.2.1:8000-8099\" or \
                 \"[2001:db8::1]:80\"",
            );
            continue;
        };
        if let Some(why) = why_no_host(address.ip) {
            source.refuse(&at, quoted(text), format!("a unicast address; this is {why}"));
        }
        addresses.push(address);
    }
    addresses
}

fn listen_address(text: &str) -> Option<ListenAddress> {
    let (ip, ports) = text.rsplit_once(':')?;
    // The standard parser decides what an address in front of a port looks like, brackets included.
    let ip: IpAddr = format!("{ip}:1").parse::<SocketAddr>().ok()?.ip();
    Some(ListenAddress {
        ip,
        ports: port_range(ports)?,
    })
}

/// `80` or `8000-8099`, without 0 and not empty.
pub(super) fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let port = |text: &str| {
        let is_plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u16>().ok().filter(|port| is_plain && *port != 0)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = port(first)?..=port(last)?;
    (!range.is_empty()).then_some(range)
}

fn ports_of(
    source: &mut Source<'_>,
    at: &At,
    raw: &RawListener,
    ports: &[PortConfig],
    addresses: &[ListenAddress],
) -> Vec<PortIndex> {
    let Some(names) = &raw.ports else {
        return super::ports::ports_of(ports, addresses.iter().map(|address| address.ip)).unwrap_or_else(|| {
            source.complain(
                at,
                "is missing, expected the names of the ports on which these addresses are served, because not all of \
                 them are in the prefix of a port",
            );
            Vec::new()
        });
    };
    if names.is_empty() {
        source.complain(at, "is empty, expected the name of at least one port");
    }
    let mut found = Vec::with_capacity(names.len());
    for (i, wanted) in names.iter().enumerate() {
        match ports.iter().find(|port| port.name == *wanted) {
            Some(port) if found.contains(&port.id) => {
                source.refuse(&at.index(i), quoted(wanted), "a port that is named only once");
            }
            Some(port) => found.push(port.id),
            None => {
                let names: Vec<_> = ports.iter().map(|port| &port.name).collect();
                source.refuse(
                    &at.index(i),
                    quoted(wanted),
                    format!("the name of a port: {}", choices(&names)),
                );
            }
        }
    }
    found
}

fn default(source: &mut Source<'_>, at: &At, name: Option<&str>, pools: &Pools) -> Fallback {
    match name {
        None | Some("reject") => Fallback::Reject,
        Some(name) => pool(source, at, name, pools).map_or(Fallback::Reject, Fallback::Pool),
    }
}

/// The pool of that name.
pub(super) fn pool(source: &mut Source<'_>, at: &At, name: &str, pools: &Pools) -> Option<PoolId> {
    let found = pools.pools.iter().find(|pool| pool.name == name);
    if found.is_none() {
        let names: Vec<_> = pools.pools.iter().map(|pool| &pool.name).collect();
        let names = if names.is_empty() {
            "there is none".to_owned()
        } else {
            choices(&names)
        };
        source.refuse(at, quoted(name), format!("the name of a pool: {names}"));
    }
    found.map(|pool| pool.id)
}
