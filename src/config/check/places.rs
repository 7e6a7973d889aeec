//! Servers beside each other and beside listeners: ports that are taken, and MAC addresses of hosts.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::pools::Pools;
use crate::config::local_address::{LocalAddress, PortRanges};
use crate::config::model::{ListenerConfig, PortConfig};
use crate::config::source::Source;

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
    for place in &pools.places {
        let server = &mut pools.servers[place.server.index()];
        for local in &mut server.local {
            let Some(taken) = listen.get(&local.ip) else { continue };
            let left = reserved.entry(local.clone()).or_insert_with(|| {
                let mut ports = local.ports.clone();
                taken.iter().for_each(|taken| ports.remove(taken));
                ports
            });
            if left.is_empty() {
                source.complain(
                    &place.own.key("address"),
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
    for place in &pools.places {
        let server = &pools.servers[place.server.index()];
        let Some(mac) = server.mac else { continue };
        let (first, name) = *macs.entry(server.address.ip()).or_insert((mac, &server.name));
        if first != mac {
            let expected = format!("the same mac as server \"{name}\", which is on the same host");
            let at = place.own.key("address");
            source.refuse(&at, format!("{} at {mac}", server.address), expected);
        }
    }
}
