//! `proxy_protocol = { accept = "off" | "optional" | "required", from = [...] }` of a listener.

use std::collections::HashSet;

use ipnet::IpNet;

use super::pools::Pools;
use super::{choice, quoted};
use crate::config::model::{ListenAddress, ListenerConfig, PoolConfig};
use crate::config::raw::RawProxyIn;
use crate::config::source::{At, Source};
use crate::guard::as_ipv4;
use splice::ids::ServerId;
use splice::settings::{AcceptProxy, Bind};

/// Whether headers are taken, and from whom: a header is a claim, so nobody is trusted who is not named.
pub(super) fn check(source: &mut Source<'_>, at: &At, raw: Option<&RawProxyIn>) -> (AcceptProxy, Vec<IpNet>) {
    let Some(raw) = raw else {
        return (AcceptProxy::Off, Vec::new());
    };
    let accept = choice(
        source,
        &at.key("accept"),
        raw.accept.as_deref(),
        &[
            ("off", AcceptProxy::Off),
            ("optional", AcceptProxy::Optional),
            ("required", AcceptProxy::Required),
        ],
    );
    let places = raw.from.iter().enumerate();
    let mut trusted: Vec<_> = places
        .filter_map(|(i, text)| prefix(source, &at.key("from").index(i), text))
        .collect();
    if accept != AcceptProxy::Off && raw.from.is_empty() {
        source.complain(
            &at.key("from"),
            "is missing, expected the prefixes of those whose PROXY headers are to be believed: a header names any client \
             that its sender likes",
        );
    }
    if accept == AcceptProxy::Off && !raw.from.is_empty() {
        source.complain(
            &at.key("from"),
            "has no meaning without accept = \"optional\" or \"required\", expected none",
        );
        trusted.clear();
    }
    (accept, trusted)
}

/// An address or a prefix, or the complaint that it is neither.
pub(super) fn prefix(source: &mut Source<'_>, at: &At, text: &str) -> Option<IpNet> {
    match parsed(text) {
        Some(prefix) if prefix.trunc() == prefix => return Some(as_ipv4(prefix)),
        Some(prefix) => {
            let expected = format!("a prefix without host bits, such as \"{}\"", prefix.trunc());
            source.refuse(at, quoted(text), expected);
        }
        None => source.refuse(
            at,
            quoted(text),
            "an address or a prefix such as \"192.0.2.0/24\" or \"2001:db8::/32\"",
        ),
    }
    None
}

/// Complains about listeners whose clients' own addresses cannot be used towards their servers. With PROXY headers the
/// addresses may be of any family; those that do not fit are refused one by one.
pub(super) fn transparent_servers_fit(source: &mut Source<'_>, listeners: &[ListenerConfig], pools: &Pools) {
    for listener in listeners.iter().filter(|listener| listener.accept == AcceptProxy::Off) {
        let of_listener = listener.pools();
        let members = of_listener
            .iter()
            .flat_map(|pool| pools.pools[pool.index()].members.iter());
        let chosen: HashSet<ServerId> = members.map(|member| member.server).collect();
        let mut seen = HashSet::new();
        for place in pools.places.iter().filter(|place| chosen.contains(&place.server)) {
            let server = &pools.servers[place.server.index()];
            if !server.transparent || !seen.insert(place.server) {
                continue;
            }
            let crosses = |address: &&ListenAddress| address.ip.is_ipv6() != server.address.is_ipv6();
            if let Some(address) = listener.addresses.iter().find(crosses) {
                let own = At::root().key("listener").index(listener.id.index());
                let at = if place.own.is_of_answer() { &place.own } else { &own };
                source.complain(
                    at,
                    format!(
                        "leads clients of {address} to the transparent server \"{}\" ({}), expected servers of the clients' \
                         IP version: their addresses are to be the source towards it",
                        server.name, server.address
                    ),
                );
            }
        }
    }
}

/// Complains about listeners whose SYNs are passed on before a header can name the client that transparent servers are to
/// see.
pub(super) fn transparent_clients_are_known(source: &mut Source<'_>, listeners: &[ListenerConfig], pools: &Pools) {
    let comes_late = |listener: &&ListenerConfig| listener.accept != AcceptProxy::Off && listener.bind == Bind::Syn;
    for listener in listeners.iter().filter(comes_late) {
        let of_listener: Vec<&PoolConfig> = listener.pools().iter().map(|pool| &pools.pools[pool.index()]).collect();
        let members = of_listener.iter().flat_map(|pool| &pool.members);
        let servers = members.map(|member| &pools.servers[member.server.index()]);
        let transparent = servers.filter(|server| server.transparent).map(|server| &server.name);
        let names = of_listener.iter().flat_map(|pool| &pool.names);
        let named = names.filter(|named| named.transparent).map(|named| &named.name);
        if let Some(name) = named.chain(transparent).next() {
            source.complain(
                &At::root()
                    .key("listener")
                    .index(listener.id.index())
                    .key("proxy_protocol")
                    .key("accept"),
                format!(
                    "comes too late for the transparent server \"{name}\" with bind = \"syn\", expected \"handshake\": the SYN \
                     towards it goes out before a header can say from whom"
                ),
            );
        }
    }
}

/// An address stands for itself alone.
fn parsed(text: &str) -> Option<IpNet> {
    text.parse()
        .ok()
        .or_else(|| Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?)))
}
