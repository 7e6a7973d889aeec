//! From what is written to what can be relied on.
//!
//! Each part complains to the [`Source`] and goes on with something harmless, so that one run finds as much as possible;
//! nothing leaves this module as long as there is a complaint. The order is that of the references: ports, then pools
//! (whose servers are behind ports), then listeners (whose rules name pools).

mod accept;
mod choosing;
mod covers;
mod engine;
mod kernel;
mod limits;
mod listeners;
mod lists;
pub(crate) mod names;
mod places;
mod pools;
mod ports;
mod probing;
mod records;
mod rules;
mod small;
mod software_nic;
mod who;

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use e2d2::wire::MacAddr;
use humantime_serde::re::humantime;
use ipnet::IpNet;

use super::Config;
use super::ancestor;
use super::choosing::ChoiceTables;
use super::error::ConfigError;
use super::names::{Answers, Origin, Outside};
use super::raw::{RawConfig, RawPort, SECTIONS};
use super::rule_numbers;
use super::source::{At, Source};
use super::timed;

pub(super) use pools::Place;

/// Checks everything. Also says where servers stand.
pub(super) fn check(source: &mut Source<'_>, outside: &Outside<'_>) -> Result<(Config, Vec<Place>), ConfigError> {
    let raw = read(source)?;
    let timeouts = small::timeouts(source, &raw.timeouts);
    let mut ports = ports::check(source, &raw.ports);
    let routes = ports::routes(source, &raw.ports, &ports);
    let mut pools = pools::check(source, &raw.pools, &ports, &routes, &timeouts, outside);
    let lists = match outside.lists {
        Some(lists) => lists.to_vec(),
        None => lists::check(source, &raw.lists),
    };
    let classes = limits::classes(source, &raw.classes, &raw.listeners);
    let named = (&pools, &lists[..], &classes[..]);
    let mut listeners = listeners::check(source, &raw.listeners, &ports, named, &timeouts);
    rule_numbers::give(&mut listeners);
    if source.problem_count() == 0 {
        // These compare one part with another and would only repeat what was said of either.
        listeners::keep_apart(source, &listeners);
        kernel::fits_the_rest(source, &raw.ports, &ports, &listeners);
        places::reserve_ports(source, &mut pools, &listeners, &ports);
        places::one_mac_each(source, &pools);
        accept::transparent_servers_fit(source, &listeners, &pools);
        accept::transparent_clients_are_known(source, &listeners, &pools);
        own_addresses_are_our_own(source, &raw.ports, &ports, &pools, &listeners);
    }
    let records = records::check(source, &raw.records, &listeners, &pools);
    let dns = names::dns(source, &raw.dns, &raw.pools, &ports);
    let engine = engine::check(source, &raw.engine, &ports);
    software_nic::check(source, &raw.ports, &engine, &mut ports);
    let mut config = Config {
        engine,
        syn_ack: small::syn_ack(source, &raw.syn_ack, &ports),
        log_level: small::log_level(source, &raw.log),
        control: small::control(source, &raw.control),
        timed_servers: timed::check(source, &raw.control, &pools.pools, &pools.servers),
        records,
        servers: pools.servers,
        pools: pools.pools,
        ports,
        routes,
        listeners,
        choice_tables: ChoiceTables::default(),
        lists,
        classes,
        client_table: None,
        timeouts,
        warnings: Vec::new(),
        address_order: Vec::new(),
        dns,
        answers: Answers::new(),
        origin: Origin::default(),
        writable: None,
    };
    source.checked()?;
    config.warnings = source.take_warnings();
    Ok((config, pools.places))
}

fn read(source: &mut Source<'_>) -> Result<RawConfig, ConfigError> {
    if ancestor::is_recognised(source) {
        return ancestor::read(source);
    }
    for key in source.top_level() {
        if !SECTIONS.contains(&key.as_str()) {
            let expected = choices(SECTIONS);
            source.complain(
                &At::root().key(&key),
                format!("is no section of this file, expected {expected}"),
            );
        }
    }
    let raw = RawConfig {
        engine: source.table("engine"),
        ports: source.tables("port"),
        listeners: source.tables("listener"),
        pools: source.tables("pool"),
        timeouts: source.table("timeouts"),
        syn_ack: source.table("syn_ack"),
        records: source.table_or_tables("records"),
        log: source.table("log"),
        control: source.table("control"),
        lists: source.tables("list"),
        classes: source.tables("class"),
        dns: source.table("dns"),
    };
    source.checked()?;
    Ok(raw)
}

/// An address of the engine cannot at the same time be someone else's: frames to it would never leave.
fn own_addresses_are_our_own(
    source: &mut Source<'_>,
    raw_ports: &[RawPort],
    ports: &[super::PortConfig],
    pools: &pools::Pools,
    listeners: &[super::ListenerConfig],
) {
    let on_ports = ports
        .iter()
        .flat_map(|port| port.addresses.iter().map(|net| (net.addr(), "port", &port.name)));
    let on_listeners = listeners.iter().flat_map(|listener| {
        listener
            .addresses
            .iter()
            .map(|address| (address.ip, "listener", &listener.name))
    });
    let local = pools.servers.iter().flat_map(|server| {
        server
            .local
            .iter()
            .map(|local| (local.ip, "local address towards", &server.name))
    });
    let of_kernel = ports.iter().filter_map(|port| Some((port.kernel.as_ref()?, port)));
    let of_kernel = of_kernel.flat_map(|(kernel, port)| {
        let addresses = kernel.addresses.iter().map(IpNet::addr);
        addresses.map(move |ip| (ip, "kernel's on port", &port.name))
    });
    let mut own = HashMap::new();
    for (ip, what, name) in on_ports.chain(on_listeners).chain(local).chain(of_kernel) {
        own.entry(ip).or_insert((what, name));
    }
    let mut others: Vec<(At, IpAddr)> = Vec::new();
    for place in &pools.places {
        let server = &pools.servers[place.server.index()];
        others.push((place.own.key("address"), server.address.ip()));
    }
    for (i, port) in raw_ports.iter().enumerate() {
        let at = At::root().key("port").index(i);
        let gateways = port
            .gateways
            .iter()
            .enumerate()
            .map(|(j, ip)| (at.key("gateways").index(j), ip));
        let routes = port
            .routes
            .iter()
            .enumerate()
            .map(|(j, route)| (at.key("routes").index(j).key("via"), &route.via));
        let neighbours = port.neighbours.iter().enumerate();
        let neighbours = neighbours.map(|(j, neighbour)| (at.key("neighbours").index(j).key("ip"), &neighbour.ip));
        for (at, ip) in gateways.chain(routes).chain(neighbours) {
            // What is no address has been complained about, and then nothing is compared.
            others.extend(ip.parse().ok().map(|ip| (at, ip)));
        }
    }
    for (at, ip) in others {
        if let Some((what, name)) = own.get(&ip) {
            source.refuse(
                &at,
                ip,
                format!("an address of another host; this one is the engine's own ({what} \"{name}\")"),
            );
        }
    }
}

/// A number within a range, or the complaint and the default.
fn number(source: &mut Source<'_>, at: &At, value: Option<i64>, default: i64, range: &RangeInclusive<i64>) -> i64 {
    match value {
        Some(value) if !range.contains(&value) => {
            source.refuse(at, value, format!("{} to {}", range.start(), range.end()));
            default
        }
        Some(value) => value,
        None => default,
    }
}

/// A duration such as "4s" or "2h 4m" within a range, or the complaint and the default.
fn duration(
    source: &mut Source<'_>,
    at: &At,
    value: Option<&str>,
    default: Duration,
    range: &RangeInclusive<Duration>,
) -> Duration {
    let Some(value) = value else { return default };
    match humantime::parse_duration(value) {
        Ok(duration) if range.contains(&duration) => return duration,
        Ok(_) => {
            let (least, most) = (
                humantime::format_duration(*range.start()),
                humantime::format_duration(*range.end()),
            );
            source.refuse(at, quoted(value), format!("\"{least}\" to \"{most}\""));
        }
        Err(_) => source.refuse(at, quoted(value), "a duration such as \"500ms\", \"4s\" or \"2h 4m\""),
    }
    default
}

/// One of several words, or the complaint and the first of them.
fn choice<T: Copy>(source: &mut Source<'_>, at: &At, value: Option<&str>, choices_: &[(&str, T)]) -> T {
    if let Some(value) = value {
        match choices_.iter().find(|(word, _)| *word == value) {
            Some((_, choice)) => return *choice,
            None => {
                let words: Vec<&str> = choices_.iter().map(|(word, _)| *word).collect();
                source.refuse(at, quoted(value), choices(&words));
            }
        }
    }
    choices_[0].1
}

/// A name that can stand in records, logs and metrics, and that is not `taken` yet; from now on it is.
fn name(source: &mut Source<'_>, at: &At, name: &str, taken: &mut HashSet<String>) {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > 64 || !name.bytes().all(is_plain) {
        source.refuse(at, quoted(name), "1 to 64 letters, digits, \"-\", \"_\" or \".\"");
    } else if !taken.insert(name.to_owned()) {
        source.refuse(at, quoted(name), "a name that is used only once");
    }
}

fn mac(source: &mut Source<'_>, at: &At, value: &str) -> Option<MacAddr> {
    let mac = value.parse::<MacAddr>().ok().filter(|mac| mac.is_unicast());
    if mac.is_none() {
        source.refuse(at, quoted(value), "a unicast MAC address such as \"02:00:00:00:00:01\"");
    }
    mac
}

/// A unicast address that a host can have.
fn ip(source: &mut Source<'_>, at: &At, value: &str) -> Option<IpAddr> {
    match value.parse::<IpAddr>() {
        Ok(ip) => match why_no_host(ip) {
            None => return Some(ip),
            Some(why) => source.refuse(
                at,
                quoted(value),
                format!("the unicast address of a host; this is {why}"),
            ),
        },
        Err(_) => source.refuse(
            at,
            quoted(value),
            "an IP address such as \"192.0.2.1\" or \"2001:db8::1\"",
        ),
    }
    None
}

/// Why no host on a network has the address; `None` when one can.
pub(crate) fn why_no_host(ip: IpAddr) -> Option<&'static str> {
    match ip {
        _ if ip.is_unspecified() => Some("the unspecified address"),
        _ if ip.is_multicast() => Some("a multicast address"),
        _ if ip.is_loopback() => Some("a loopback address"),
        // RFC 1122 3.2.1.3: 0.0.0.0/8 names this network; RFC 1112 section 4: class E is reserved.
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("an address of \"this network\""),
        IpAddr::V4(v4) if v4.octets()[0] >= 240 => Some("a reserved or broadcast address"),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Some("an IPv4-mapped address, write it as IPv4"),
        _ => None,
    }
}

pub(super) fn quoted(value: impl Display) -> String {
    format!("\"{value}\"")
}

/// `"a", "b" or "c"`
fn choices<S: Display>(words: &[S]) -> String {
    let mut text = String::new();
    for (i, word) in words.iter().enumerate() {
        let separator = match i {
            0 => "",
            _ if i + 1 == words.len() => " or ",
            _ => ", ",
        };
        text.push_str(&format!("{separator}\"{word}\""));
    }
    text
}
