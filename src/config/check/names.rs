//! Servers by name, and `[dns]`.

use std::net::{IpAddr, SocketAddr};

use super::pools::{Common, Own, Reader, server_at};
use super::{duration, number, quoted, why_no_host};
use crate::config::defaults;
use crate::config::model::PortConfig;
use crate::config::names::{DnsConfig, Found, NamedServers, Outside, Question};
use crate::config::raw::{RawDns, RawPool, RawServer};
use crate::config::source::{At, Source};
use splice::settings::Member;

/// The port of DNS (RFC 1035 4.2).
pub(crate) const PORT: u16 = 53;

/// `[dns]`
pub(super) fn dns(source: &mut Source<'_>, raw: &RawDns, pools: &[RawPool], ports: &[PortConfig]) -> DnsConfig {
    let at = At::root().key("dns");
    let mut servers = Vec::new();
    for (i, text) in raw.servers.iter().flatten().enumerate() {
        let at = at.key("servers").index(i);
        let address = text.parse::<SocketAddr>();
        match address.or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PORT))) {
            Ok(address) if address.port() == 0 || address.ip().is_unspecified() || address.ip().is_multicast() => {
                source.refuse(&at, quoted(text), "the address of a host, and a port of 1 to 65535");
            }
            Ok(address) => servers.push(address),
            Err(_) => source.refuse(
                &at,
                quoted(text),
                "an IP address such as \"192.0.2.53\", with or without its port",
            ),
        }
    }
    if raw.servers.as_ref().is_some_and(Vec::is_empty) {
        let complaint = "is empty, expected a name server, or no such key for those of /etc/resolv.conf";
        source.complain(&at.key("servers"), complaint);
    }
    let of_pools = pools.iter().flat_map(|pool| &pool.local_addresses);
    let named = of_pools.filter_map(|text| text.parse::<IpAddr>().ok());
    let local: Vec<IpAddr> = ports
        .iter()
        .flat_map(|port| &port.addresses)
        .map(|net| net.addr())
        .chain(named)
        .collect();
    DnsConfig {
        servers,
        timeout: duration(
            source,
            &at.key("timeout"),
            raw.timeout.as_deref(),
            defaults::DNS_TIMEOUT,
            &defaults::DNS_TIMEOUT_RANGE,
        ),
        retries: number(
            source,
            &at.key("retries"),
            raw.retries,
            defaults::DNS_RETRIES,
            &defaults::DNS_RETRIES_RANGE,
        ) as u8,
        asks_v4: local.iter().any(IpAddr::is_ipv4),
        asks_v6: local.iter().any(IpAddr::is_ipv6),
    }
}

/// What `address` asks, and the port with it: `web.example.net:80`, or `_ldap._tcp.example.net`. None if it is no name.
pub(super) fn question(text: &str) -> Option<(Question, Option<u16>)> {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port.parse().ok().filter(|port| *port != 0)?)),
        None => (text, None),
    };
    let name = host_name(name)?;
    // RFC 2782: the names of service and protocol begin with an underscore.
    let is_service = name.split('.').take(2).filter(|label| label.starts_with('_')).count() == 2;
    (is_service == port.is_none()).then_some((Question { name, is_service }, port))
}

/// A name in lower case without the last dot, if hosts or services can have it (RFC 1123 2.1, RFC 2181 11).
pub(crate) fn host_name(text: &str) -> Option<String> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // What ends in a number is an address, or was meant to be one.
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_name = name.len() <= 253 && name.split('.').all(is_label) && !last.bytes().all(|byte| byte.is_ascii_digit());
    is_name.then_some(name)
}

/// An entry that names its servers, which were not asked for yet.
pub(super) fn entry(
    source: &mut Source<'_>,
    at: &At,
    raw: &RawServer,
    (question, port): (Question, Option<u16>),
    common: &Common<'_>,
) -> NamedServers {
    if raw.mac.is_some() {
        let complaint = "has no meaning for a name, expected none: each of its addresses has a MAC address of its own";
        source.complain(&at.key("mac"), complaint);
    }
    if question.is_service && raw.weight.is_some() {
        let complaint = "has no meaning for a service, expected none: SRV records have weights of their own";
        source.complain(&at.key("weight"), complaint);
    }
    NamedServers {
        name: raw.name.clone(),
        question,
        port,
        transparent: common.transparent,
        announce: common.announce,
        local: common.most_local(),
        used: Vec::new(),
        unusable: Vec::new(),
    }
}

/// An entry that is read, until its servers follow.
pub(super) struct Entry {
    /// Where it is.
    pub(super) at: At,
    pub(super) pool: usize,
    /// Of those in its pool.
    pub(super) number: usize,
    pub(super) own: Own,
    pub(super) weight: u16,
    pub(super) is_backup: bool,
}

impl Reader {
    /// The servers of all entries, behind those that have an address: no answer changes what the file says of these.
    pub(super) fn fill(&mut self, source: &mut Source<'_>, commons: &[Common<'_>], outside: &Outside<'_>) {
        for (number, entry) in std::mem::take(&mut self.entries).into_iter().enumerate() {
            let pool = &mut self.found.pools[entry.pool];
            let mut named = pool.names[entry.number].clone();
            outside.fill(number, &pool.name, &mut named);
            let weights = weights(&named, entry.weight);
            let least = named.used.first().map_or(0, |found| found.priority);
            for (found, weight) in named.used.iter().zip(weights) {
                let address = named.address_of(found);
                let at = entry.at.of_answer(number, address);
                let name = format!("{}@{address}", named.name);
                if !self.is_usable(source, &at, entry.pool, address) {
                    continue;
                }
                let server = server_at(source, &at, (name, address), &entry.own, &commons[entry.pool]);
                let Some(server) = server else { continue };
                let server = self.number(source, &at, server);
                self.found.pools[entry.pool].members.push(Member {
                    server,
                    weight,
                    backup: entry.is_backup || found.priority > least,
                });
                self.found.place(entry.pool, at, server);
            }
            self.found.pools[entry.pool].names[entry.number] = named;
        }
    }

    /// Whether a pool can have a server at this address, which it has not yet.
    fn is_usable(&self, source: &mut Source<'_>, at: &At, pool: usize, address: SocketAddr) -> bool {
        if let Some(why) = why_no_host(address.ip()) {
            source.complain(
                at,
                format!("is {address}, expected the unicast address of a host; this is {why}"),
            );
            return false;
        }
        let members = &self.found.pools[pool].members;
        let mut servers = members.iter().map(|member| &self.found.servers[member.server.index()]);
        servers.all(|server| server.address != address)
    }
}

/// Weights as the pool has them: those of SRV records in proportion (RFC 2782), and 0 as the least.
fn weights(named: &NamedServers, of_entry: u16) -> Vec<u16> {
    let most = *defaults::WEIGHT_RANGE.end() as u32;
    let largest = named
        .used
        .iter()
        .map(|found| u32::from(found.weight))
        .max()
        .unwrap_or(0)
        .max(most);
    let scaled = |found: &Found| match named.question.is_service {
        true => (u32::from(found.weight) * most / largest).max(1) as u16,
        false => of_entry,
    };
    named.used.iter().map(scaled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_addresses_and_from_mistakes() {
        let read = |text: &str| question(text).map(|(question, port)| (question.name, question.is_service, port));
        let host = |name: &str, port| Some((name.to_owned(), false, Some(port)));
        assert_eq!(read("Web.Example.net.:80"), host("web.example.net", 80));
        assert_eq!(read("db:5432"), host("db", 5432));
        assert_eq!(read("_db.example.net:1"), host("_db.example.net", 1));
        let service = Some(("_ldap._tcp.example.net".to_owned(), true, None));
        assert_eq!(read("_ldap._tcp.Example.net"), service);
        let long = format!("{}.net:80", "a".repeat(64));
        for wrong in [
            "web.example.net",
            "web.example.net:0",
            "web.example.net:65536",
            "web.example.net:http",
            "_ldap._tcp.example.net:389",
            "10.0.0.300:80",
            "1.2.3:80",
            "web..net:80",
            "-web.net:80",
            "web-.net:80",
            ":80",
            "",
            "we b.net:80",
            "a:b:80",
            &long,
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
