//! Which addresses are ours on which port, and which neighbours we must reach.
//!
//! A [`Topology`] is built once at start, checked while it is built, and shared read-only by all cores. It holds no MAC
//! address that can change: those are in [`SharedNeighbours`](super::SharedNeighbours), one entry per [`NextHopId`].
//! Which neighbour leads to a destination is the configuration's affair ([`crate::config::Routes`]): its answer
//! is a port and an address, and [`Topology::next_hop_of`] turns that into the id.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};

use e2d2::port::PortId;
use e2d2::wire::MacAddr;
use e2d2::wire::frame::{is_martian_ipv4, is_martian_ipv6};
use ipnet::IpNet;

/// Upper bound of the next-hop table: an id must fit 16 bits, and entries are looked at one by one when a timer is due,
/// at most a hundred times a second. More servers than this are not on one link.
pub const MAX_NEXT_HOPS: usize = 16_384;

/// Index of an entry of the next-hop table; valid for the [`Topology`] that gave it out.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NextHopId(u16);

impl NextHopId {
    /// The position in the table.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The id of a position. A position beyond the table is "unresolved" wherever it is used.
    pub const fn from_index(index: u16) -> Self {
        Self(index)
    }
}

/// A port of the engine and the addresses that it answers for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The port.
    pub port: PortId,
    /// Its MAC address, the one in every frame it sends.
    pub mac: MacAddr,
    /// Its own addresses, each with the prefix that is reached directly through this port.
    pub addresses: Vec<IpNet>,
    /// More own addresses (listeners, local source addresses) that connect no prefix.
    pub aliases: Vec<IpAddr>,
}

/// A station on one of our links that frames are sent to: a server or a gateway.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The port whose link it is on.
    pub port: PortId,
    /// Its address.
    pub address: IpAddr,
    /// Fixed MAC address: never resolved, never overwritten.
    pub mac: Option<MacAddr>,
}

/// One entry of the next-hop table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The port whose link the neighbour is on.
    pub port: PortId,
    /// The neighbour's address.
    pub address: IpAddr,
    /// Our address that asks for it.
    pub source: IpAddr,
    /// The configured MAC address, if it is not to be resolved.
    pub static_mac: Option<MacAddr>,
    /// It leads to somewhere: the number of one that no longer does is free.
    pub is_used: bool,
}

impl NextHop {
    /// Whether it is the same neighbour, whichever address of ours asks for it.
    pub(super) fn is_same(&self, other: &NextHop) -> bool {
        let of = |hop: &NextHop| (hop.port, hop.address, hop.static_mac, hop.is_used);
        of(self) == of(other)
    }
}

/// Why the addresses do not make a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// An address that no station can have.
    #[error("{address} cannot be the address of a port, listener, gateway or server: it names no single station")]
    NotUnicast {
        /// The address.
        address: IpAddr,
    },
    /// The port that is to reach a neighbour has no address of its family.
    #[error("port {port} has no {family} address, so it cannot ask for the MAC address of {address}")]
    NoSource {
        /// Index of the port.
        port: u8,
        /// "IPv4" or "IPv6".
        family: &'static str,
        /// The neighbour.
        address: IpAddr,
    },
    /// One neighbour with two fixed MAC addresses.
    #[error("{address} has two different MAC addresses: {first} and {second}")]
    TwoMacs {
        /// The neighbour.
        address: IpAddr,
        /// The first MAC address.
        first: MacAddr,
        /// The other one.
        second: MacAddr,
    },
    /// A neighbour that is ourselves.
    #[error("{address} is one of the engine's own addresses and cannot be a server or gateway as well")]
    OwnAddress {
        /// The address.
        address: IpAddr,
    },
    /// More neighbours than the table holds.
    #[error("more than {MAX_NEXT_HOPS} different next hops; put servers behind a gateway")]
    TooManyNextHops,
}

/// The checked, immutable picture of the links around the engine.
#[derive(Debug)]
pub struct Topology {
    interfaces: Vec<Interface>,
    /// Own addresses, sorted, for binary search. An address may be ours on several ports.
    own: Vec<(IpAddr, PortId)>,
    hops: Vec<NextHop>,
    by_address: HashMap<(PortId, IpAddr), NextHopId>,
    /// Ids that are free, below those of `hops`.
    free: Vec<u16>,
    has_transparent_sources: bool,
    /// Own addresses that only listeners have, sorted.
    of_listeners: Vec<(IpAddr, PortId)>,
}

impl Topology {
    /// Checks the parts against each other and numbers the neighbours in the order given; one that is named twice is one.
    ///
    /// # Errors
    /// A [`TopologyError`] names the first address that does not fit.
    pub fn new(interfaces: Vec<Interface>, neighbours: &[Neighbour]) -> Result<Self, TopologyError> {
        Self::continued(interfaces, neighbours, &[])
    }

    /// The same with the numbers of the next hops that there were `before`, as far as they are still there.
    ///
    /// # Errors
    /// As [`Topology::new`].
    pub fn continued(
        interfaces: Vec<Interface>,
        neighbours: &[Neighbour],
        before: &[NextHop],
    ) -> Result<Self, TopologyError> {
        let own = own_addresses(&interfaces)?;
        let wanted: HashSet<(PortId, IpAddr)> = neighbours.iter().map(|of| (of.port, of.address)).collect();
        let goes_on = |hop: &NextHop| hop.is_used && wanted.contains(&(hop.port, hop.address));
        let numbered = || before.iter().zip(0_u16..);
        let mut topology = Self {
            interfaces,
            own,
            by_address: (numbered().filter(|(hop, _)| goes_on(hop)))
                .map(|(hop, id)| ((hop.port, hop.address), NextHopId(id)))
                .collect(),
            free: (0..before.len())
                .rev()
                .filter(|&id| !goes_on(&before[id]))
                .map(|id| id as u16)
                .collect(),
            hops: (before.iter())
                .map(|hop| NextHop {
                    static_mac: None,
                    is_used: goes_on(hop),
                    ..*hop
                })
                .collect(),
            has_transparent_sources: false,
            of_listeners: Vec::new(),
        };
        for neighbour in neighbours {
            topology.add(neighbour)?;
        }
        Ok(topology)
    }

    /// The same, for an engine that calls servers from its clients' own addresses (`transparent`), or does not.
    #[must_use]
    pub fn with_transparent_sources(self, has_transparent_sources: bool) -> Self {
        Self {
            has_transparent_sources,
            ..self
        }
    }

    /// The same, where these are addresses that another engine may answer for.
    #[must_use]
    pub fn with_listener_addresses(self, mut of_listeners: Vec<(IpAddr, PortId)>) -> Self {
        of_listeners.sort_unstable();
        Self { of_listeners, ..self }
    }

    /// Whether only listeners have an address of ours on this port.
    pub fn is_of_listeners(&self, port: PortId, address: IpAddr) -> bool {
        self.of_listeners.binary_search(&(address, port)).is_ok()
    }

    /// Whether an ICMP error to `address` on this port can be about a packet of ours.
    pub fn gets_errors_for(&self, port: PortId, address: IpAddr) -> bool {
        self.has_transparent_sources || self.owns(port, address)
    }

    /// The interface of a port.
    pub fn interface(&self, port: PortId) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.port == port)
    }

    /// Every interface, in the order given.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Whether `address` is ours on this port.
    pub fn owns(&self, port: PortId, address: IpAddr) -> bool {
        self.own.binary_search(&(address, port)).is_ok()
    }

    /// Whether `mac` is the MAC address of one of our ports.
    pub fn owns_mac(&self, mac: MacAddr) -> bool {
        self.interfaces.iter().any(|interface| interface.mac == mac)
    }

    /// Every own address of a port, the derived link-local one included.
    pub fn own_addresses(&self, port: PortId) -> impl Iterator<Item = IpAddr> + '_ {
        self.own
            .iter()
            .filter(move |(_, of)| *of == port)
            .map(|(address, _)| *address)
    }

    /// The table entry of a neighbour on a port's link.
    pub fn next_hop_of(&self, port: PortId, address: IpAddr) -> Option<NextHopId> {
        self.by_address.get(&(port, address)).copied()
    }

    /// One entry of the table.
    pub fn next_hop(&self, id: NextHopId) -> Option<&NextHop> {
        self.hops.get(id.index())
    }

    /// The table, in the order of the ids.
    pub fn next_hops(&self) -> &[NextHop] {
        &self.hops
    }

    /// Whether `address` is the broadcast address of one of the port's networks (RFC 919).
    pub(super) fn is_directed_broadcast(&self, port: PortId, address: IpAddr) -> bool {
        let networks = self
            .interface(port)
            .into_iter()
            .flat_map(|interface| &interface.addresses);
        networks
            .filter(|net| net.addr().is_ipv4() && net.prefix_len() < 31)
            .any(|net| net.broadcast() == address)
    }

    fn add(&mut self, neighbour: &Neighbour) -> Result<(), TopologyError> {
        let Neighbour { port, address, mac } = *neighbour;
        check_station(address)?;
        if self.own.iter().any(|(own, _)| *own == address) {
            return Err(TopologyError::OwnAddress { address });
        }
        if let Some(&id) = self.by_address.get(&(port, address)) {
            return merge_mac(&mut self.hops[id.index()], mac);
        }
        if self.hops.len() >= MAX_NEXT_HOPS && self.free.is_empty() {
            return Err(TopologyError::TooManyNextHops);
        }
        let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        let source = self.source_for(port, address);
        let source = source.ok_or(TopologyError::NoSource {
            port: port.0,
            family,
            address,
        })?;
        let hop = NextHop {
            port,
            address,
            source,
            static_mac: mac,
            is_used: true,
        };
        let id = match self.free.pop() {
            Some(free) => {
                self.hops[usize::from(free)] = hop;
                free
            }
            None => {
                self.hops.push(hop);
                (self.hops.len() - 1) as u16
            }
        };
        self.by_address.insert((port, address), NextHopId(id));
        Ok(())
    }

    /// Our address on `port` that a neighbour will believe: one in its own network before any other of its family.
    fn source_for(&self, port: PortId, neighbour: IpAddr) -> Option<IpAddr> {
        let interface = self.interface(port)?;
        let in_its_network = interface.addresses.iter().filter(|net| net.contains(&neighbour));
        in_its_network
            .max_by_key(|net| net.prefix_len())
            .map(IpNet::addr)
            .or_else(|| {
                self.own_addresses(port)
                    .find(|own| own.is_ipv4() == neighbour.is_ipv4())
            })
    }
}

/// RFC 4291 appendix A: the link-local address whose interface identifier is made of the MAC address.
pub fn link_local_of(mac: MacAddr) -> Ipv6Addr {
    let m = mac.0;
    Ipv6Addr::from([
        0xfe,
        0x80,
        0,
        0,
        0,
        0,
        0,
        0,
        m[0] ^ 2,
        m[1],
        m[2],
        0xff,
        0xfe,
        m[3],
        m[4],
        m[5],
    ])
}

/// Whether one station on a link can have this address.
pub(super) fn is_station(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !is_martian_ipv4(v4),
        IpAddr::V6(v6) => !is_martian_ipv6(v6),
    }
}

fn check_station(address: IpAddr) -> Result<(), TopologyError> {
    if is_station(address) {
        Ok(())
    } else {
        Err(TopologyError::NotUnicast { address })
    }
}

fn merge_mac(hop: &mut NextHop, mac: Option<MacAddr>) -> Result<(), TopologyError> {
    match (hop.static_mac, mac) {
        (Some(first), Some(second)) if first != second => Err(TopologyError::TwoMacs {
            address: hop.address,
            first,
            second,
        }),
        (known, mac) => {
            hop.static_mac = known.or(mac);
            Ok(())
        }
    }
}

fn own_addresses(interfaces: &[Interface]) -> Result<Vec<(IpAddr, PortId)>, TopologyError> {
    let mut own = Vec::new();
    for interface in interfaces {
        let connected = interface.addresses.iter().map(IpNet::addr);
        for address in connected.chain(interface.aliases.iter().copied()) {
            check_station(address)?;
            own.push((address, interface.port));
        }
        own.push((IpAddr::V6(link_local_of(interface.mac)), interface.port));
    }
    own.sort_unstable();
    own.dedup();
    Ok(own)
}
