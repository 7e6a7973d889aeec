//! The topology that a configuration describes.

use std::collections::HashMap;
use std::net::IpAddr;

use e2d2::port::PortId;
use e2d2::wire::MacAddr;

use super::topology::{Interface, Neighbour, NextHop, NextHopId, Topology, TopologyError};
use crate::config::{Config, ServerConfig, Standing};

impl Topology {
    /// The addresses and neighbours of a configuration whose ports have these MAC addresses, in the order of the ports.
    ///
    /// # Errors
    /// A [`TopologyError`]; which one does not depend on the MAC addresses, so `check` can pass any.
    pub fn from_config(config: &Config, macs: &[MacAddr]) -> Result<Self, TopologyError> {
        Self::from_config_after(config, macs, &[])
    }

    /// The same with the numbers of the next hops that there were `before`.
    ///
    /// # Errors
    /// The same.
    pub fn from_config_after(config: &Config, macs: &[MacAddr], before: &[NextHop]) -> Result<Self, TopologyError> {
        let interfaces = config
            .ports()
            .iter()
            .zip(macs)
            .map(|(port, mac)| interface(config, port.id, *mac))
            .collect();
        let has_transparent_sources = config.servers().iter().any(|server| server.transparent);
        let of_listeners = config.ports().iter().flat_map(|port| {
            let addresses = config.listener_addresses(port.id);
            addresses.into_iter().map(|address| (address, port.id))
        });
        let topology = Self::continued(interfaces, &neighbours(config), before)?;
        Ok(
            (topology.with_transparent_sources(has_transparent_sources))
                .with_listener_addresses(of_listeners.collect()),
        )
    }

    /// Where frames to a server go: its own entry if it has a fixed MAC address or is on a link of ours, its gateway's
    /// otherwise. `None` if the topology was not made from the server's configuration.
    pub fn next_hop_to(&self, server: &ServerConfig) -> Option<NextHopId> {
        let (port, address) = key_of(server);
        self.next_hop_of(port, address)
    }
}

fn interface(config: &Config, port: PortId, mac: MacAddr) -> Interface {
    let addresses = config.port(port).addresses.clone();
    let mut aliases = config.own_addresses(port);
    aliases.retain(|address| !addresses.iter().any(|net| net.addr() == *address));
    Interface {
        port,
        mac,
        addresses,
        aliases,
    }
}

fn key_of(server: &ServerConfig) -> (PortId, IpAddr) {
    let address = if server.mac.is_some() {
        server.address.ip()
    } else {
        server.next_hop.ip
    };
    (server.next_hop.port, address)
}

/// Servers, gateways, and the entries made by hand. A server's own MAC address goes before an entry of its address, and what the
/// file says of a host before what it has said.
fn neighbours(config: &Config) -> Vec<Neighbour> {
    let mut neighbours: Vec<Neighbour> = Vec::new();
    let mut macs: HashMap<(PortId, IpAddr), Option<MacAddr>> = HashMap::new();
    for standing in [Standing::InFile, Standing::Past] {
        for server in config.servers().iter().filter(|server| server.standing == standing) {
            let (port, address) = key_of(server);
            let known = *macs.entry((port, address)).or_insert(server.mac);
            let mac = if standing == Standing::InFile {
                server.mac
            } else {
                known
            };
            neighbours.push(Neighbour { port, address, mac });
        }
    }
    for route in config.routes().iter() {
        let gateway = route.via.map(|address| Neighbour {
            port: route.port,
            address,
            mac: None,
        });
        neighbours.extend(gateway);
    }
    for port in config.ports() {
        for (address, mac) in &port.neighbours {
            let has_own = |of: &Neighbour| of.port == port.id && of.address == *address && of.mac.is_some();
            if !neighbours.iter().any(has_own) {
                neighbours.push(Neighbour {
                    port: port.id,
                    address: *address,
                    mac: Some(*mac),
                });
            }
        }
    }
    neighbours
}
