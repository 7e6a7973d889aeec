//! `[[pool]]` and its servers.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::names::{self, Entry};
use super::{choice, choosing, duration, ip, mac, name, number, probing, quoted, why_no_host};
use crate::config::defaults;
use crate::config::local_address::LocalAddress;
use crate::config::model::{PoolConfig, PortConfig, ServerConfig, Timeouts};
use crate::config::names::{MOST_SERVERS, Outside, Question};
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
    pub(super) places: Vec<Place>,
}

/// Where a server stands.
pub(in crate::config) struct Place {
    /// Its pool.
    pub(in crate::config) pool: At,
    /// The entry in `servers`.
    pub(in crate::config) own: At,
    pub(in crate::config) server: ServerId,
}

impl Pools {
    /// A server stands at `own`, too, in a pool.
    pub(super) fn place(&mut self, pool: usize, own: At, server: ServerId) {
        let pool = At::root().key("pool").index(pool);
        self.places.push(Place { pool, own, server });
    }
}

/// What the servers of a pool have in common.
pub(super) struct Common<'c> {
    ports: &'c [PortConfig],
    routes: &'c Routes,
    local_addresses: Vec<IpAddr>,
    local_ports: RangeInclusive<u16>,
    connect_timeout: Duration,
    syn_retry: Duration,
    retries: u8,
    eject_after: u32,
    eject_for: Duration,
    pub(super) announce: SendProxy,
    pub(super) transparent: bool,
    check: Option<(Check, Option<CheckContent>)>,
}

impl Common<'_> {
    /// The local addresses of a server whose address is not known yet, if it is of the family that has more of them.
    pub(super) fn most_local(&self) -> Vec<LocalAddress> {
        let of_family = |is_v6| self.local_addresses.iter().filter(move |ip| ip.is_ipv6() == is_v6);
        let named = [false, true].map(|is_v6| of_family(is_v6).copied().collect::<Vec<_>>());
        let most = named.into_iter().max_by_key(Vec::len).filter(|ips| !ips.is_empty());
        let of_port = || {
            self.ports
                .iter()
                .find_map(|port| port.address(false).or(port.address(true)))
        };
        let ips = most.unwrap_or_else(|| of_port().into_iter().collect());
        let local = |ip| LocalAddress::new(ip, self.local_ports.clone());
        ips.into_iter().map(local).collect()
    }
}

/// What an entry of `servers` says of its own.
pub(super) struct Own {
    mac: Option<e2d2::wire::MacAddr>,
    max_connections: Option<u32>,
    check: Option<(Check, Option<CheckContent>)>,
}

/// What is known while the pools are read one after the other.
pub(super) struct Reader {
    pub(super) found: Pools,
    pool_names: HashSet<String>,
    server_names: HashSet<String>,
    by_address: HashMap<SocketAddr, ServerId>,
    /// Entries that name their servers, and what they ask by their names.
    pub(super) entries: Vec<Entry>,
    asked: HashMap<String, (Question, Option<u16>)>,
}

pub(super) fn check(
    source: &mut Source<'_>,
    raw: &[RawPool],
    ports: &[PortConfig],
    routes: &Routes,
    timeouts: &Timeouts,
    outside: &Outside<'_>,
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
        entries: Vec::new(),
        asked: HashMap::new(),
    };
    let all = raw.iter().flat_map(|pool| &pool.servers);
    let most = |server: &RawServer| names::question(&server.address).map_or(1, |_| MOST_SERVERS);
    let servers: usize = all.map(most).sum();
    if raw.len().max(servers) > usize::from(u16::MAX) {
        let complaint = format!(
            "has too many entries, expected at most 65535 pools and servers, of which a name may be {MOST_SERVERS}"
        );
        source.complain(&At::root().key("pool"), complaint);
        return reader.found;
    }
    let mut commons = Vec::with_capacity(raw.len());
    for (i, raw) in raw.iter().enumerate() {
        let at = At::root().key("pool").index(i);
        let common = common(source, &at, raw, ports, routes, timeouts);
        reader.pool(source, &at, raw, &common);
        commons.push(common);
    }
    reader.fill(source, &commons, outside);
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
        let index = self.found.pools.len();
        let mut pool = choosing::pool(source, at, raw, PoolId(index as u16));
        let mut in_pool = HashSet::new();
        let is_backup = |server: &RawServer| server.backup.unwrap_or(false);
        if !raw.servers.is_empty() && raw.servers.iter().all(is_backup) {
            source.complain(&at.key("servers"), "are all backups, expected one that is none");
        }
        for (j, raw) in raw.servers.iter().enumerate() {
            let at = at.key("servers").index(j);
            let weight = number(
                source,
                &at.key("weight"),
                raw.weight,
                defaults::WEIGHT,
                &defaults::WEIGHT_RANGE,
            );
            let own = own(source, &at, raw, common);
            let asked = match raw.address.parse::<SocketAddr>() {
                Ok(_) => None,
                Err(_) => names::question(&raw.address),
            };
            if let Some(question) = asked {
                self.entry_name(source, &at, raw, &question);
                pool.names.push(names::entry(source, &at, raw, question, common));
                self.entries.push(Entry {
                    at,
                    pool: index,
                    number: pool.names.len() - 1,
                    own,
                    weight: weight as u16,
                    is_backup: is_backup(raw),
                });
                continue;
            }
            let address = socket_address(source, &at.key("address"), &raw.address);
            let named = address.map(|address| (raw.name.clone(), address));
            let server = named.and_then(|named| server_at(source, &at, named, &own, common));
            let Some(server) = server else { continue };
            if !in_pool.insert(server.address) {
                let expected = "a server that is in the pool only once";
                source.refuse(&at.key("address"), quoted(&raw.address), expected);
                continue;
            }
            let server = self.number(source, &at, server);
            pool.members.push(Member {
                server,
                weight: weight as u16,
                backup: is_backup(raw),
            });
            self.found.place(index, at, server);
        }
        self.found.pools.push(pool);
    }

    /// Pools may ask for the same by the same name, as they may have the same server.
    fn entry_name(&mut self, source: &mut Source<'_>, at: &At, raw: &RawServer, asked: &(Question, Option<u16>)) {
        if self.asked.get(&raw.name) != Some(asked) {
            name(source, &at.key("name"), &raw.name, &mut self.server_names);
            self.asked.insert(raw.name.clone(), asked.clone());
        }
    }

    /// The number of a server: that of an earlier pool's if it is the same, otherwise the next.
    ///
    /// A server is its address and port, whatever number of pools it is in, because the local ports towards it are shared
    /// out among all connections that go there. So all pools must say the same of it.
    pub(super) fn number(&mut self, source: &mut Source<'_>, at: &At, mut server: ServerConfig) -> ServerId {
        let Some(id) = self.by_address.get(&server.address).copied() else {
            if !at.is_of_answer() {
                name(source, &at.key("name"), &server.name, &mut self.server_names);
            }
            server.id = ServerId(self.found.servers.len() as u16);
            self.by_address.insert(server.address, server.id);
            self.found.servers.push(server);
            return ServerId(self.found.servers.len() as u16 - 1);
        };
        let known = &self.found.servers[id.index()];
        server.id = id;
        if at.is_of_answer() {
            // What DNS calls by two names has the first.
            server.name.clone_from(&known.name);
        }
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

fn own(source: &mut Source<'_>, at: &At, raw: &RawServer, common: &Common<'_>) -> Own {
    let mac = raw.mac.as_deref().and_then(|text| mac(source, &at.key("mac"), text));
    let max_connections = raw.max_connections.map(|value| {
        let at = at.key("max_connections");
        number(source, &at, Some(value), 1, &defaults::SERVER_CONNECTIONS_RANGE) as u32
    });
    let check = match &raw.check {
        Some(own) => probing::check(source, &at.key("check"), Some(own)),
        None => common.check.clone(),
    };
    Own {
        mac,
        max_connections,
        check,
    }
}

/// A server of this name at this address; complains if there is no way to it.
pub(super) fn server_at(
    source: &mut Source<'_>,
    at: &At,
    (name, address): (String, SocketAddr),
    own: &Own,
    common: &Common<'_>,
) -> Option<ServerConfig> {
    let (check, content) = own
        .check
        .clone()
        .map_or((None, None), |(check, content)| (Some(check), content));
    let next_hop = next_hop(source, &at.key("address"), address.ip(), own.mac.is_some(), common)?;
    Some(ServerConfig {
        standing: Standing::InFile,
        group: 0,
        id: ServerId(0),
        name,
        address,
        next_hop,
        mac: own.mac,
        local: local(source, at, address, next_hop, common)?,
        connect_timeout: common.connect_timeout,
        syn_retry: common.syn_retry,
        retries: common.retries,
        max_connections: own.max_connections,
        eject_after: common.eject_after,
        eject_for: common.eject_for,
        announce: common.announce,
        transparent: common.transparent,
        content,
        check,
    })
}

fn socket_address(source: &mut Source<'_>, at: &At, text: &str) -> Option<SocketAddr> {
    let expected = "an address with its port, such as \"192.0.2.1:80\" or \"[2001:db8::1]:80\", a name with its port, such as \
                    \"web.example.net:80\", or the name of a service, such as \"_ldap._tcp.example.net\"";
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
    let local = |ip| LocalAddress::new(ip, common.local_ports.clone());
    Some(ips.into_iter().map(local).collect())
}
