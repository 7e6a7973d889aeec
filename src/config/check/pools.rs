//! `[[pool]]` and its servers.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{choice, choosing, duration, ip, mac, name, number, probing, quoted, why_no_host};
use crate::config::defaults;
use crate::config::model::{ListenerConfig, LocalAddress, PoolConfig, PortConfig, PortRanges, ServerConfig, Timeouts};
use crate::config::raw::{RawPool, RawProxyOut, RawServer};
use crate::config::routes::{NextHop, Routes};
use crate::config::source::{At, Source};
use crate::config::{CheckContent, Standing};
use splice::checks::Check;
use splice::ids::{PoolId, ServerId};
use splice::settings::{Member, SendProxy, SendProxyFields};

/// The pools, their servers, and where in the file each server stands.
pub(super) struct Pools {
    pub(super) pools: Vec<PoolConfig>,
    pub(super) servers: Vec<ServerConfig>,
    pub(super) places: Vec<(At, ServerId)>,
}

/// What the servers of a pool have in common.
struct Common<'c> {
    ports: &'c [PortConfig],
    routes: &'c Routes,
    local_addresses: Vec<IpAddr>,
    local_ports: RangeInclusive<u16>,
    connect_timeout: Duration,
    syn_retry: Duration,
    retries: u8,
    eject_after: u32,
    eject_for: Duration,
    announce: SendProxy,
    transparent: bool,
    check: Option<(Check, Option<CheckContent>)>,
}

/// What is known while the pools are read one after the other.
struct Reader {
    found: Pools,
    pool_names: HashSet<String>,
    server_names: HashSet<String>,
    by_address: HashMap<SocketAddr, ServerId>,
}

pub(super) fn check(
    source: &mut Source<'_>,
    raw: &[RawPool],
    ports: &[PortConfig],
    routes: &Routes,
    timeouts: &Timeouts,
) -> Pools {
    let mut reader = Reader {
        found: Pools {
            pools: Vec::with_capacity(raw.len()),
            servers: Vec::new(),
            places: Vec::new(),
        },
        pool_names: HashSet::new(),
        server_names: HashSet::new(),
        by_address: HashMap::new(),
    };
    let servers: usize = raw.iter().map(|pool| pool.servers.len()).sum();
    if raw.len().max(servers) > usize::from(u16::MAX) {
        let complaint = "has too many entries, expected at most 65535 pools and servers";
        source.complain(&At::root().key("pool"), complaint);
        return reader.found;
    }
    for (i, raw) in raw.iter().enumerate() {
        let at = At::root().key("pool").index(i);
        let common = common(source, &at, raw, ports, routes, timeouts);
        reader.pool(source, &at, raw, &common);
    }
    reader.found
}

fn common<'c>(
    source: &mut Source<'_>,
    at: &At,
    raw: &RawPool,
    ports: &'c [PortConfig],
    routes: &'c Routes,
    timeouts: &Timeouts,
) -> Common<'c> {
    Common {
        ports,
        routes,
        local_addresses: local_addresses(source, &at.key("local_addresses"), raw),
        local_ports: local_ports(source, &at.key("local_ports"), raw),
        connect_timeout: duration(
            source,
            &at.key("connect_timeout"),
            raw.connect_timeout.as_deref(),
            timeouts.connect,
            &defaults::TIMEOUT_RANGE,
        ),
        syn_retry: duration(
            source,
            &at.key("syn_retry"),
            raw.syn_retry.as_deref(),
            defaults::SYN_RETRY,
            &defaults::SYN_RETRY_RANGE,
        ),
        retries: number(
            source,
            &at.key("retries"),
            raw.retries,
            defaults::RETRIES,
            &defaults::RETRIES_RANGE,
        ) as u8,
        eject_after: number(
            source,
            &at.key("eject_after"),
            raw.eject_after,
            defaults::EJECT_AFTER,
            &defaults::EJECT_AFTER_RANGE,
        ) as u32,
        eject_for: duration(
            source,
            &at.key("eject_for"),
            raw.eject_for.as_deref(),
            defaults::EJECT_FOR,
            &defaults::EJECT_FOR_RANGE,
        ),
        announce: announce(source, &at.key("proxy_protocol"), raw.proxy_protocol.as_ref()),
        transparent: transparent(source, at, raw),
        check: probing::check(source, &at.key("check"), raw.check.as_ref()),
    }
}

/// `transparent = true`: addresses and ports are the client's, so there are none to name.
fn transparent(source: &mut Source<'_>, at: &At, raw: &RawPool) -> bool {
    let transparent = raw.transparent.unwrap_or(false);
    let named = [
        ("local_addresses", !raw.local_addresses.is_empty()),
        ("local_ports", raw.local_ports.is_some()),
    ];
    for (key, _) in named.into_iter().filter(|(_, is_there)| transparent && *is_there) {
        source.complain(
            &at.key(key),
            "has no meaning with transparent = true, expected none: these servers are connected to from the clients' own \
             addresses and ports",
        );
    }
    transparent
}

impl Reader {
    fn pool(&mut self, source: &mut Source<'_>, at: &At, raw: &RawPool, common: &Common<'_>) {
        name(source, &at.key("name"), &raw.name, &mut self.pool_names);
        if raw.name == "reject" {
            let expected = "another name: as a default this one means to reject";
            source.refuse(&at.key("name"), quoted(&raw.name), expected);
        }
        if raw.servers.is_empty() {
            source.complain(&at.key("servers"), "is empty, expected at least one server");
        }
        let mut pool = choosing::pool(source, at, raw, PoolId(self.found.pools.len() as u16));
        let mut in_pool = HashSet::new();
        for (j, raw) in raw.servers.iter().enumerate() {
            let at = at.key("servers").index(j);
            let weight = number(
                source,
                &at.key("weight"),
                raw.weight,
                defaults::WEIGHT,
                &defaults::WEIGHT_RANGE,
            );
            let Some(server) = server(source, &at, raw, common) else {
                continue;
            };
            if !in_pool.insert(server.address) {
                let expected = "a server that is in the pool only once";
                source.refuse(&at.key("address"), quoted(&raw.address), expected);
                continue;
            }
            let server = self.number(source, &at, server);
            pool.members.push(Member {
                server,
                weight: weight as u16,
                backup: raw.backup.unwrap_or(false),
            });
            self.found.places.push((at.key("address"), server));
        }
        if !pool.members.is_empty() && pool.members.iter().all(|member| member.backup) {
            source.complain(&at.key("servers"), "are all backups, expected one that is none");
        }
        self.found.pools.push(pool);
    }

    /// The number of a server: that of an earlier pool's if it is the same, otherwise the next.
    ///
    /// A server is its address and port, whatever number of pools it is in, because the local ports towards it are shared
    /// out among all connections that go there. So all pools must say the same of it.
    fn number(&mut self, source: &mut Source<'_>, at: &At, mut server: ServerConfig) -> ServerId {
        let Some(id) = self.by_address.get(&server.address).copied() else {
            name(source, &at.key("name"), &server.name, &mut self.server_names);
            server.id = ServerId(self.found.servers.len() as u16);
            self.by_address.insert(server.address, server.id);
            self.found.servers.push(server);
            return ServerId(self.found.servers.len() as u16 - 1);
        };
        let known = &self.found.servers[id.index()];
        server.id = id;
        if server != *known {
            source.complain(
                at,
                format!(
                    "is {}, which another pool has as well (\"{}\"), expected the same name, mac, \
                     max_connections, local addresses and ports, connect_timeout, syn_retry, retries, eject_after, \
                     eject_for, proxy_protocol, transparent and check in both",
                    known.address, known.name
                ),
            );
        }
        id
    }
}

/// `proxy_protocol = { send = "off" | "v1" | "v2", tlvs = [...] }`.
fn announce(source: &mut Source<'_>, at: &At, raw: Option<&RawProxyOut>) -> SendProxy {
    let Some(raw) = raw else { return SendProxy::Off };
    let mut fields = SendProxyFields::default();
    for (i, text) in raw.tlvs.iter().enumerate() {
        let field = match text.as_str() {
            "authority" => &mut fields.authority,
            "alpn" => &mut fields.alpn,
            "unique_id" => &mut fields.unique_id,
            "crc32c" => &mut fields.crc32c,
            "incoming" => &mut fields.incoming,
            _ => {
                let at = at.key("tlvs").index(i);
                source.refuse(
                    &at,
                    quoted(text),
                    "\"authority\", \"alpn\", \"unique_id\", \"crc32c\" or \"incoming\"",
                );
                continue;
            }
        };
        *field = true;
    }
    let announce = choice(
        source,
        &at.key("send"),
        raw.send.as_deref(),
        &[
            ("off", SendProxy::Off),
            ("v1", SendProxy::V1),
            ("v2", SendProxy::V2(fields)),
        ],
    );
    if !matches!(announce, SendProxy::V2(_)) && !raw.tlvs.is_empty() {
        source.complain(
            &at.key("tlvs"),
            "can only be sent with version 2, expected send = \"v2\"",
        );
    }
    announce
}

fn local_addresses(source: &mut Source<'_>, at: &At, raw: &RawPool) -> Vec<IpAddr> {
    let mut addresses = Vec::with_capacity(raw.local_addresses.len());
    for (i, text) in raw.local_addresses.iter().enumerate() {
        let at = at.index(i);
        let Some(address) = ip(source, &at, text) else { continue };
        if addresses.contains(&address) {
            source.refuse(&at, quoted(text), "an address that is given only once");
        }
        addresses.push(address);
    }
    addresses
}

fn local_ports(source: &mut Source<'_>, at: &At, raw: &RawPool) -> RangeInclusive<u16> {
    let Some(text) = raw.local_ports.as_deref() else {
        return defaults::LOCAL_PORTS;
    };
    super::listeners::port_range(text).unwrap_or_else(|| {
        source.refuse(at, quoted(text), "a range of TCP ports such as \"1024-65535\"");
        defaults::LOCAL_PORTS
    })
}

fn server(source: &mut Source<'_>, at: &At, raw: &RawServer, common: &Common<'_>) -> Option<ServerConfig> {
    let address = socket_address(source, &at.key("address"), &raw.address);
    let mac = raw.mac.as_deref().and_then(|text| mac(source, &at.key("mac"), text));
    let max_connections = raw.max_connections.map(|value| {
        let at = at.key("max_connections");
        number(source, &at, Some(value), 1, &defaults::SERVER_CONNECTIONS_RANGE) as u32
    });
    let check = match &raw.check {
        Some(own) => probing::check(source, &at.key("check"), Some(own)),
        None => common.check.clone(),
    };
    let (check, content) = check.map_or((None, None), |(check, content)| (Some(check), content));
    let address = address?;
    let next_hop = next_hop(source, &at.key("address"), address.ip(), mac.is_some(), common)?;
    Some(ServerConfig {
        standing: Standing::InFile,
        group: 0,
        id: ServerId(0),
        name: raw.name.clone(),
        address,
        next_hop,
        mac,
        local: local(source, at, address, next_hop, common)?,
        connect_timeout: common.connect_timeout,
        syn_retry: common.syn_retry,
        retries: common.retries,
        max_connections,
        eject_after: common.eject_after,
        eject_for: common.eject_for,
        announce: common.announce,
        transparent: common.transparent,
        content,
        check,
    })
}

fn socket_address(source: &mut Source<'_>, at: &At, text: &str) -> Option<SocketAddr> {
    let expected = "an address with its port, such as \"192.0.2.1:80\" or \"[2001:db8::1]:80\"";
    match text.parse::<SocketAddr>() {
        Ok(address) => match why_no_host(address.ip()) {
            None if address.port() != 0 => return Some(address),
            None => source.refuse(at, quoted(text), "a port of 1 to 65535"),
            Some(why) => source.refuse(
                at,
                quoted(text),
                format!("the unicast address of a host; this is {why}"),
            ),
        },
        Err(_) => source.refuse(at, quoted(text), expected),
    }
    None
}

fn next_hop(source: &mut Source<'_>, at: &At, ip: IpAddr, has_mac: bool, common: &Common<'_>) -> Option<NextHop> {
    if let Some(next_hop) = common.routes.next_hop(ip) {
        return Some(next_hop);
    }
    if let (true, [only]) = (has_mac, common.ports) {
        return Some(NextHop { port: only.id, ip });
    }
    source.refuse(
        at,
        ip,
        "an address in a prefix of a port, or a gateway or route of a port that leads to it",
    );
    None
}

fn local(
    source: &mut Source<'_>,
    at: &At,
    server: SocketAddr,
    next_hop: NextHop,
    common: &Common<'_>,
) -> Option<Vec<LocalAddress>> {
    let mut ips = common.local_addresses.clone();
    if ips.is_empty() {
        let port = common.ports.get(usize::from(next_hop.port.0))?;
        ips.extend(port.address(server.is_ipv6()));
    }
    ips.retain(|ip| ip.is_ipv6() == server.is_ipv6());
    if ips.is_empty() {
        let family = if server.is_ipv6() { "IPv6" } else { "IPv4" };
        source.complain(
            at,
            format!("has no {family} address to be reached from, expected one in \"local_addresses\" or on the port"),
        );
        return None;
    }
    let local = |ip| LocalAddress {
        ip,
        ports: PortRanges::new(common.local_ports.clone()),
    };
    Some(ips.into_iter().map(local).collect())
}

/// Takes the ports on which an address listens out of those it connects from: a segment to such a port would otherwise
/// belong to a client and to a server at the same time.
pub(super) fn reserve_ports(
    source: &mut Source<'_>,
    pools: &mut Pools,
    listeners: &[ListenerConfig],
    ports: &[PortConfig],
) {
    let mut listen: HashMap<IpAddr, Vec<&RangeInclusive<u16>>> = HashMap::new();
    for address in listeners.iter().flat_map(|listener| &listener.addresses) {
        listen.entry(address.ip).or_default().push(&address.ports);
    }
    for kernel in ports.iter().filter_map(|port| port.kernel.as_ref()) {
        for address in &kernel.addresses {
            listen.entry(address.addr()).or_default().extend(&kernel.local_ports);
        }
    }
    // Most servers have the same local address and ports.
    let mut reserved: HashMap<LocalAddress, PortRanges> = HashMap::new();
    for (at, id) in &pools.places {
        let server = &mut pools.servers[id.index()];
        for local in &mut server.local {
            let Some(taken) = listen.get(&local.ip) else { continue };
            let left = reserved.entry(local.clone()).or_insert_with(|| {
                let mut ports = local.ports.clone();
                taken.iter().for_each(|taken| ports.remove(taken));
                ports
            });
            if left.is_empty() {
                source.complain(
                    at,
                    format!(
                        "has no port left to be reached from at {}, expected \"local_ports\" other than those that \
                         listeners and the kernel have there",
                        local.ip
                    ),
                );
            }
            local.ports = left.clone();
        }
    }
}

/// A host has one MAC address, whatever number of servers it runs.
pub(super) fn one_mac_each(source: &mut Source<'_>, pools: &Pools) {
    let mut macs = HashMap::new();
    for (at, id) in &pools.places {
        let server = &pools.servers[id.index()];
        let Some(mac) = server.mac else { continue };
        let (first, name) = *macs.entry(server.address.ip()).or_insert((mac, &server.name));
        if first != mac {
            let expected = format!("the same mac as server \"{name}\", which is on the same host");
            source.refuse(at, format!("{} at {mac}", server.address), expected);
        }
    }
}
