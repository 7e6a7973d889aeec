//! `[[port]]`, and the routes that their prefixes and gateways make.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{ip, mac, name, number, quoted, why_no_host};
use crate::config::defaults;
use crate::config::device::Device;
use crate::config::model::PortConfig;
use crate::config::raw::RawPort;
use crate::config::routes::{Route, Routes};
use crate::config::source::{At, Source};
use splice::ids::PortIndex;

pub(super) fn check(source: &mut Source<'_>, raw: &[RawPort]) -> Vec<PortConfig> {
    let mut ports: Vec<PortConfig> = Vec::with_capacity(raw.len());
    if raw.len() > defaults::PORTS {
        source.complain(
            &At::root().key("port"),
            format!("has {} entries, expected at most {}", raw.len(), defaults::PORTS),
        );
        return ports;
    }
    let mut names = HashSet::new();
    for (i, raw) in raw.iter().enumerate() {
        let at = At::root().key("port").index(i);
        name(source, &at.key("name"), &raw.name, &mut names);
        let addresses = addresses(source, &at.key("addresses"), raw, &ports);
        let mtu = number(source, &at.key("mtu"), raw.mtu, defaults::MTU, &defaults::MTU_RANGE);
        if mtu < defaults::MTU_IPV6 && addresses.iter().any(|address| address.addr().is_ipv6()) {
            source.refuse(
                &at.key("mtu"),
                mtu,
                "at least 1280 on a port with an IPv6 address (RFC 8200 section 5)",
            );
        }
        let vlan = raw
            .vlan
            .map(|vlan| number(source, &at.key("vlan"), Some(vlan), 1, &defaults::VLAN_RANGE) as u16);
        let mut port = PortConfig {
            id: e2d2::port::PortId(i as u8),
            name: raw.name.clone(),
            device: device(source, &at.key("device"), &raw.device, &ports),
            mac: raw.mac.as_deref().and_then(|text| mac(source, &at.key("mac"), text)),
            mtu: mtu as u16,
            vlan,
            addresses,
            neighbours: Vec::new(),
            rx_descriptors: descriptors(source, &at.key("rx_descriptors"), raw.rx_descriptors),
            tx_descriptors: descriptors(source, &at.key("tx_descriptors"), raw.tx_descriptors),
            checksum_offload: raw.checksum_offload.unwrap_or(true),
            software_nic: None,
            kernel: None,
        };
        port.neighbours = neighbours(source, &at.key("neighbours"), raw, &port);
        port.kernel = (raw.kernel.as_ref()).map(|raw| super::kernel::check(source, &at, raw, &port));
        ports.push(port);
    }
    ports
}

fn device(source: &mut Source<'_>, at: &At, text: &str, others: &[PortConfig]) -> Device {
    let device = text.parse::<Device>().unwrap_or_else(|expected| {
        source.refuse(at, quoted(text), expected);
        // Stands for what was refused; its name is no other's.
        Device::Virtual {
            name: format!("refused{}", others.len()),
            arguments: String::new(),
        }
    });
    for other in others {
        if other.device.key() == device.key() {
            source.refuse(
                at,
                quoted(text),
                format!("a device of its own; port \"{}\" has this one", other.name),
            );
        } else if device.linux_interface().is_some() && device.linux_interface() == other.device.linux_interface() {
            source.refuse(
                at,
                quoted(text),
                format!("an interface of its own; port \"{}\" has this one", other.name),
            );
        }
    }
    device
}

fn descriptors(source: &mut Source<'_>, at: &At, value: Option<i64>) -> u16 {
    let value = number(source, at, value, defaults::DESCRIPTORS, &defaults::DESCRIPTORS_RANGE);
    if value % defaults::DESCRIPTORS_STEP != 0 {
        source.refuse(at, value, format!("a multiple of {}", defaults::DESCRIPTORS_STEP));
    }
    value as u16
}

fn addresses(source: &mut Source<'_>, at: &At, raw: &RawPort, others: &[PortConfig]) -> Vec<IpNet> {
    let mut nets: Vec<IpNet> = Vec::with_capacity(raw.addresses.len());
    for (i, text) in raw.addresses.iter().enumerate() {
        let at = at.index(i);
        let Ok(net) = text.parse::<IpNet>() else {
            source.refuse(
                &at,
                quoted(text),
                "an address with its prefix, such as \"192.0.2.1/24\" or \"2001:db8::1/64\"",
            );
            continue;
        };
        if let Some(why) = why_no_port_address(net) {
            source.refuse(
                &at,
                quoted(text),
                format!("the address of a host in its prefix; this is {why}"),
            );
        }
        if nets.iter().any(|other| other.addr() == net.addr()) {
            source.refuse(&at, quoted(text), "an address that is given only once");
        }
        for other in others {
            let overlaps = |theirs: &IpNet| theirs.contains(&net.trunc()) || net.contains(&theirs.trunc());
            if let Some(theirs) = other.addresses.iter().find(|theirs| overlaps(theirs)) {
                source.refuse(
                    &at,
                    quoted(text),
                    format!(
                        "a prefix that overlaps none of another port; port \"{}\" has {theirs}, and which of them \
                             leads to a host would be undecided",
                        other.name
                    ),
                );
            }
        }
        nets.push(net);
    }
    nets
}

fn why_no_port_address(net: IpNet) -> Option<&'static str> {
    if let IpNet::V4(net) = net {
        // RFC 3021: in /31 and /32 every address is a host's.
        if net.prefix_len() < 31 && net.addr() == net.network() {
            return Some("the address of the network itself");
        }
        if net.prefix_len() < 31 && net.addr() == net.broadcast() {
            return Some("its broadcast address");
        }
    }
    if net.prefix_len() == 0 {
        return Some("no prefix but everything, for which \"gateways\" are meant");
    }
    why_no_host(net.addr())
}

fn neighbours(
    source: &mut Source<'_>,
    at: &At,
    raw: &RawPort,
    port: &PortConfig,
) -> Vec<(IpAddr, e2d2::wire::MacAddr)> {
    let mut neighbours: Vec<(IpAddr, _)> = Vec::with_capacity(raw.neighbours.len());
    for (i, neighbour) in raw.neighbours.iter().enumerate() {
        let at = at.index(i);
        let address = on_link(source, &at.key("ip"), &neighbour.ip, port);
        let mac = mac(source, &at.key("mac"), &neighbour.mac);
        let (Some(address), Some(mac)) = (address, mac) else {
            continue;
        };
        if neighbours.iter().any(|(other, _)| *other == address) {
            source.refuse(&at.key("ip"), quoted(address), "a neighbour that is given only once");
        }
        neighbours.push((address, mac));
    }
    neighbours
}

/// An address in one of the port's prefixes that is not its own.
fn on_link(source: &mut Source<'_>, at: &At, text: &str, port: &PortConfig) -> Option<IpAddr> {
    let address = ip(source, at, text)?;
    if !port.is_on_link(address) {
        source.refuse(
            at,
            quoted(text),
            format!("an address in a prefix of port \"{}\" (its \"addresses\")", port.name),
        );
        return None;
    }
    if port.addresses.iter().any(|own| own.addr() == address) {
        source.refuse(
            at,
            quoted(text),
            format!("a neighbour; this is port \"{}\" itself", port.name),
        );
        return None;
    }
    Some(address)
}

/// The on-link prefixes, gateways and routes of all ports.
pub(super) fn routes(source: &mut Source<'_>, raw: &[RawPort], ports: &[PortConfig]) -> Routes {
    let mut routes: Vec<Route> = Vec::new();
    for port in ports {
        for net in &port.addresses {
            let on_link = Route {
                to: net.trunc(),
                port: port.id,
                via: None,
            };
            if !routes.contains(&on_link) {
                routes.push(on_link);
            }
        }
    }
    for (i, (raw, port)) in raw.iter().zip(ports).enumerate() {
        let at = At::root().key("port").index(i);
        for (j, gateway) in raw.gateways.iter().enumerate() {
            let at = at.key("gateways").index(j);
            if let Some(via) = on_link(source, &at, gateway, port) {
                let all: IpNet = if via.is_ipv6() {
                    everything_v6()
                } else {
                    everything_v4()
                };
                add(
                    source,
                    &at,
                    &mut routes,
                    Route {
                        to: all,
                        port: port.id,
                        via: Some(via),
                    },
                    ports,
                );
            }
        }
        for (j, route) in raw.routes.iter().enumerate() {
            let at = at.key("routes").index(j);
            let via = on_link(source, &at.key("via"), &route.via, port);
            match route.to.parse::<IpNet>() {
                Err(_) => source.refuse(&at.key("to"), quoted(&route.to), "a prefix such as \"10.9.0.0/16\""),
                Ok(to) if to.trunc() != to => {
                    source.refuse(
                        &at.key("to"),
                        quoted(to),
                        format!("a prefix without host bits: \"{}\"", to.trunc()),
                    );
                }
                Ok(to) => {
                    let Some(via) = via else { continue };
                    if via.is_ipv6() != to.addr().is_ipv6() {
                        source.refuse(
                            &at.key("via"),
                            quoted(via),
                            "a gateway of the same address family as \"to\"",
                        );
                    }
                    add(
                        source,
                        &at.key("to"),
                        &mut routes,
                        Route {
                            to,
                            port: port.id,
                            via: Some(via),
                        },
                        ports,
                    );
                }
            }
        }
    }
    Routes::new(routes)
}

fn add(source: &mut Source<'_>, at: &At, routes: &mut Vec<Route>, route: Route, ports: &[PortConfig]) {
    if let Some(other) = routes.iter().find(|other| other.to == route.to) {
        let port = &ports[usize::from(other.port.0)].name;
        source.complain(
            at,
            format!(
                "leads to {}, expected one way to it only; port \"{port}\" has another",
                route.to
            ),
        );
    }
    routes.push(route);
}

fn everything_v4() -> IpNet {
    IpNet::V4(ipnet::Ipv4Net::default())
}

fn everything_v6() -> IpNet {
    IpNet::V6(ipnet::Ipv6Net::default())
}

/// The ports that serve addresses nobody assigned to ports explicitly.
pub(super) fn ports_of(ports: &[PortConfig], addresses: impl Iterator<Item = IpAddr>) -> Option<Vec<PortIndex>> {
    if let [only] = ports {
        return Some(vec![only.id]);
    }
    let mut found = Vec::new();
    for address in addresses {
        let port = ports.iter().find(|port| port.is_on_link(address))?;
        if !found.contains(&port.id) {
            found.push(port.id);
        }
    }
    Some(found)
}
