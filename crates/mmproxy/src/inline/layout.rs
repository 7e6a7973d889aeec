//! The bytes of the maps that the programs share with us: `bpf/maps.h` in the same order.

use crate::inline::host::Host;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};

/// Bytes of a connection's key.
pub const FLOW_KEY: usize = 40;

/// Bytes of what is known of it.
pub const FLOW_VALUE: usize = 32;

/// Rules that a listener can have.
pub const MAX_RULES: usize = 16;

/// Longest header that the programs take off, in bytes.
pub const MAX_HEADER: usize = 536;

/// Names and meanings of what the programs count, in the order of `enum counter`.
pub const COUNTERS: [(&str, &str); 20] = [
    ("syn_answered", "SYNs answered with a cookie"),
    ("syn_passed", "SYNs left to the listening socket"),
    (
        "assigned",
        "connections handed to the server's socket, from their client",
    ),
    (
        "assigned_local",
        "connections handed to the server's socket without a client (LOCAL, UNKNOWN)",
    ),
    ("repeated", "first segments that came again before there was a socket"),
    ("port_changed", "connections whose client port was in use"),
    ("fall_back", "connections handed to mmproxy's own socket"),
    ("ack_dropped", "ACKs before the first data"),
    ("not_allowed", "packets of peers that are not in the allow-list"),
    ("claimed", "packets that carry a client's address themselves"),
    ("bad_cookie", "packets of no connection that was begun here lately"),
    ("duplicate", "connections closed because their client port was in use"),
    ("not_yet", "segments before the first one was taken"),
    ("flows_full", "connections for which there was no room"),
    ("unreadable", "packets of connections with IP options, or fragments"),
    ("failed", "packets that could not be changed or handed over"),
    ("packets_to_server", "packets translated towards servers"),
    ("packets_to_client", "packets translated towards balancers"),
    ("icmp", "ICMP errors translated"),
    ("ended", "connections forgotten after their socket has gone"),
];

/// A key and a value of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

/// A number that names a list of networks; 0 stands for everybody.
pub type ListId = u32;

/// A rule as the programs understand it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RuleEntry {
    /// The client is in this list; 0 for any.
    pub list: ListId,
    /// Allow rather than deny.
    pub allow: bool,
    /// It looks at TLVs, which is left to user space.
    pub tlv: bool,
}

/// A listener as the programs understand it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerEntry {
    /// What balancers connect to.
    pub local: SocketAddr,
    /// The server for IPv4 clients.
    pub target_v4: Option<SocketAddr>,
    /// The server for IPv6 clients.
    pub target_v6: Option<SocketAddr>,
    /// Who may send headers.
    pub trusted: ListId,
    /// CRC32Cs must be right.
    pub verify_checksum: bool,
    /// A client port that is in use closes the connection.
    pub drop_duplicate: bool,
    /// New connections are left to the listening socket.
    pub draining: bool,
    /// Seconds.
    pub slot: u32,
    /// Bytes.
    pub header_limit: u32,
    /// At most [`MAX_RULES`].
    pub rules: Vec<RuleEntry>,
}

/// An address as the programs keep it: IPv4 as ::ffff:a.b.c.d.
fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The key of a listener.
pub fn listener_key(local: SocketAddr) -> Vec<u8> {
    let mut key = address(local.ip()).to_vec();
    key.extend(local.port().to_be_bytes());
    key.extend([0; 2]);
    key
}

fn target(target: Option<SocketAddr>, out: &mut Vec<u8>) {
    out.extend(target.map_or([0; 16], |target| address(target.ip())));
    out.extend(target.map_or(0, |target| target.port()).to_be_bytes());
    out.extend([0; 2]);
}

/// A listener.
pub fn listener(entry: &ListenerEntry) -> Entry {
    let mut value = Vec::new();
    target(entry.target_v4, &mut value);
    target(entry.target_v6, &mut value);
    let flags =
        u32::from(entry.verify_checksum) | u32::from(entry.drop_duplicate) << 1 | u32::from(entry.draining) << 2;
    let rules = &entry.rules[..entry.rules.len().min(MAX_RULES)];
    for number in [entry.trusted, flags, entry.slot, entry.header_limit, rules.len() as u32] {
        value.extend(number.to_ne_bytes());
    }
    for rule in rules {
        value.extend(rule.list.to_ne_bytes());
        value.extend((u32::from(rule.allow) | u32::from(rule.tlv) << 1).to_ne_bytes());
    }
    value.resize(60 + 8 * MAX_RULES, 0);
    Entry {
        key: listener_key(entry.local),
        value,
    }
}

/// A network of a list.
pub fn network(list: ListId, network: IpNet) -> Entry {
    // The list's number is matched whole.
    let prefix_len = 32
        + match network {
            IpNet::V4(network) => 96 + u32::from(network.prefix_len()),
            IpNet::V6(network) => u32::from(network.prefix_len()),
        };
    let mut key = prefix_len.to_ne_bytes().to_vec();
    // Each family has a list of its own, or ::/0 would hold IPv4 as well.
    let v6 = matches!(network, IpNet::V6(_));
    key.extend((list << 1 | u32::from(v6)).to_ne_bytes());
    key.extend(address(network.addr()));
    Entry { key, value: vec![1] }
}

/// The list that a key of the networks belongs to.
pub fn list_of_network(key: &[u8]) -> Option<ListId> {
    Some(ListId::from_ne_bytes(*key.get(4..)?.first_chunk()?) >> 1)
}

/// What holds for all listeners.
pub fn settings(host: &Host, key: [u64; 2], own: ListId) -> Entry {
    let mut value: Vec<u8> = key.into_iter().flat_map(u64::to_ne_bytes).collect();
    let options = u32::from(host.window_scaling)
        | u32::from(host.timestamps) << 1
        | u32::from(host.sack) << 2
        | u32::from(host.ecn) << 3;
    for number in [own, options, host.window_scale, host.window] {
        value.extend(number.to_ne_bytes());
    }
    Entry { key: vec![0; 4], value }
}

/// The key of the cookies in settings.
pub fn cookie_key(settings: &[u8]) -> Option<[u64; 2]> {
    let word = |at: usize| Some(u64::from_ne_bytes(*settings.get(at..)?.first_chunk()?));
    Some([word(0)?, word(8)?])
}

/// The 1024 words of a bit for each port.
pub fn ports(ports: impl Iterator<Item = u16>) -> Vec<Entry> {
    let mut words = vec![0u64; 1024];
    ports.for_each(|port| words[usize::from(port) / 64] |= 1 << (port % 64));
    let entry = |(index, word): (usize, u64)| Entry {
        key: (index as u32).to_ne_bytes().to_vec(),
        value: word.to_ne_bytes().to_vec(),
    };
    words.into_iter().enumerate().map(entry).collect()
}

/// What one look at a part of the connections has found.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Entries that were looked at: two for each connection.
    pub entries: usize,
    /// Connections among them that were not forgotten; each is counted with one of its entries.
    pub active: usize,
    /// Where the next look begins; `None` if this was the end.
    pub next: Option<u32>,
}

/// Seconds for which a connection is kept without a socket: the segment that makes it may be under way.
const YOUNG: u16 = 2;

/// Whether the value of a connection is old enough for its socket to be looked for; `now` in seconds of `CLOCK_MONOTONIC`. Of these
/// the lower half is kept: for two seconds in 18 hours a connection without a socket looks young.
pub fn may_have_ended(value: &[u8], now: u32) -> bool {
    let born = value.get(24..).and_then(|bytes| bytes.first_chunk());
    born.is_some_and(|&born| (now as u16).wrapping_sub(u16::from_ne_bytes(born)) >= YOUNG)
}

/// Whether a key of a connection is of the way to the server.
pub fn is_to_server(key: &[u8]) -> bool {
    key.len() == FLOW_KEY && key.ends_with(&0u32.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_programs() {
        let entry = ListenerEntry {
            local: "0.0.0.0:8443".parse().expect("address"),
            target_v4: Some("127.0.0.1:443".parse().expect("address")),
            target_v6: None,
            trusted: 7,
            verify_checksum: true,
            drop_duplicate: false,
            draining: true,
            slot: 10,
            header_limit: 536,
            rules: vec![
                RuleEntry {
                    list: 9,
                    allow: true,
                    tlv: false
                };
                20
            ],
        };
        let entry = listener(&entry);
        assert_eq!((entry.key.len(), entry.value.len()), (20, 188));
        assert_eq!(
            entry.key,
            [&[0; 10][..], &[0xff, 0xff, 0, 0, 0, 0, 0x20, 0xfb, 0, 0]].concat()
        );
        assert_eq!(entry.value[44], 5, "flags");
        let networks = network(3, "10.0.0.0/8".parse().expect("network"));
        assert_eq!((networks.key.len(), networks.key[0]), (24, 136));
        assert_eq!(list_of_network(&networks.key), Some(3));
        let settings = settings(&Host::default(), [1, 2], 3).value;
        assert_eq!((settings.len(), cookie_key(&settings)), (32, Some([1, 2])));
        let ports = ports([443u16, 65535].into_iter());
        assert_eq!(ports[6].value, (1u64 << 59).to_ne_bytes());
        assert_eq!(ports[1023].value, (1u64 << 63).to_ne_bytes());
    }

    #[test]
    fn a_connection_is_looked_at_when_it_is_two_seconds_old() {
        let born = |second: u16| [&[0; 24][..], &second.to_ne_bytes(), &[0; 6]].concat();
        assert_eq!(born(0).len(), FLOW_VALUE);
        for (second, now, expected) in [
            (10, 11, false),
            (10, 12, true),
            (u16::MAX, 1 << 16, false),
            (u16::MAX, (1 << 16) + 1, true),
        ] {
            assert_eq!(may_have_ended(&born(second), now), expected, "{second} at {now}");
        }
    }
}
