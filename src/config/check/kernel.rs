//! `kernel` of a `[[port]]`: what of its addresses is shared with the Linux kernel, and how.

use std::collections::HashSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use e2d2::tap::{MAX_NAME, is_name};
use ipnet::IpNet;

use super::{ip, listeners, number, quoted};
use crate::config::defaults;
use crate::config::device::Device;
use crate::config::model::{KernelConfig, ListenerConfig, PortConfig};
use crate::config::raw::{RawKernel, RawPort};
use crate::config::source::{At, Source};

/// What is said of one port; `port` has everything else already.
pub(super) fn check(source: &mut Source<'_>, at: &At, raw: &RawKernel, port: &PortConfig) -> KernelConfig {
    let at = at.key("kernel");
    if !is_name(&raw.device) {
        let expected = format!("the name of an interface to be made: 1 to {MAX_NAME} letters, digits or \"-\"");
        source.refuse(&at.key("device"), quoted(&raw.device), expected);
    }
    if let Some(namespace) = &raw.namespace
        && (namespace.is_empty() || namespace.starts_with('.') || namespace.contains('/'))
    {
        let expected = "the name of a network namespace as `ip netns` shows it";
        source.refuse(&at.key("namespace"), quoted(namespace), expected);
    }
    // A packet socket gets copies: the kernel of the interface's namespace has every frame already, and if the address
    // were its own it would answer once more, and refuse what it knows nothing of.
    if let Device::Virtual { name, .. } = &port.device
        && ["net_af_packet", "net_pcap"]
            .iter()
            .any(|driver| name.starts_with(driver))
        && raw.namespace.is_none()
    {
        let sentence = "has no \"namespace\", expected one: the kernel sees what comes in by this device as well, and would \
                        answer it itself";
        source.complain(&at, sentence);
    }
    let addresses = addresses(source, &at.key("addresses"), raw, port);
    if addresses.is_empty() && source.problem_count() == 0 {
        let sentence = "gives the kernel no address, expected \"addresses\" here or for the port";
        source.complain(&at, sentence);
    }
    KernelConfig {
        device: raw.device.clone(),
        namespace: raw.namespace.clone(),
        addresses,
        rate: number(
            source,
            &at.key("rate"),
            raw.rate,
            defaults::KERNEL_RATE,
            &defaults::KERNEL_RATE_RANGE,
        ) as u32,
        local_ports: local_ports(source, &at.key("local_ports"), raw),
    }
}

/// Those that are named, each with the prefix of the port that it is in, or else all of the port's own.
fn addresses(source: &mut Source<'_>, at: &At, raw: &RawKernel, port: &PortConfig) -> Vec<IpNet> {
    let Some(named) = &raw.addresses else {
        return port.addresses.clone();
    };
    let mut nets: Vec<IpNet> = Vec::with_capacity(named.len());
    for (i, text) in named.iter().enumerate() {
        let at = at.index(i);
        let Some(address) = ip(source, &at, text) else { continue };
        if nets.iter().any(|other| other.addr() == address) {
            source.refuse(&at, quoted(text), "an address that is given only once");
        }
        let prefix = port.addresses.iter().find(|net| net.contains(&address));
        // One that is in no prefix has to be a listener's, which is looked at when they are known.
        let length = prefix.map_or(if address.is_ipv4() { 32 } else { 128 }, IpNet::prefix_len);
        nets.extend(IpNet::new(address, length).ok());
    }
    nets
}

fn local_ports(source: &mut Source<'_>, at: &At, raw: &RawKernel) -> Option<RangeInclusive<u16>> {
    let text = raw.local_ports.as_deref()?;
    let range = listeners::port_range(text).filter(|range| *range.start() >= 1024);
    if range.is_none() {
        source.refuse(
            at,
            quoted(text),
            "a range of ports from 1024 on such as \"61000-61999\"",
        );
    }
    range
}

/// What can only be seen when everything else is known: each device is one port's, each address one that frames for it
/// come in by, and no port of the kernel's own connections is a listener's.
pub(super) fn fits_the_rest(
    source: &mut Source<'_>,
    raw: &[RawPort],
    ports: &[PortConfig],
    listeners: &[ListenerConfig],
) {
    let mut devices = HashSet::new();
    for port in ports {
        let Some(kernel) = &port.kernel else { continue };
        let at = At::root().key("port").index(usize::from(port.id.0)).key("kernel");
        let is_linux = |other: &PortConfig| other.device.linux_interface() == Some(kernel.device.as_str());
        if !devices.insert(&kernel.device) || ports.iter().any(is_linux) {
            let expected = "an interface that is no other port's";
            source.refuse(&at.key("device"), quoted(&kernel.device), expected);
        }
        let on_listener = |address: IpAddr| {
            let mut served = listeners.iter().filter(|listener| listener.ports.contains(&port.id));
            served.any(|listener| listener.addresses.iter().any(|of| of.ip == address))
        };
        let named = raw
            .get(usize::from(port.id.0))
            .and_then(|raw| raw.kernel.as_ref()?.addresses.as_ref());
        for (i, net) in kernel.addresses.iter().enumerate().filter(|_| named.is_some()) {
            if !port.is_on_link(net.addr()) && !on_listener(net.addr()) {
                let expected = "an address in a prefix of the port, or of a listener there";
                source.refuse(&at.key("addresses").index(i), quoted(net.addr()), expected);
            }
        }
        let Some(range) = &kernel.local_ports else { continue };
        let shared = |address: &IpAddr| kernel.addresses.iter().any(|net| net.addr() == *address);
        let mut listened = listeners.iter().flat_map(|listener| &listener.addresses);
        let clash =
            listened.find(|of| shared(&of.ip) && of.ports.start() <= range.end() && range.start() <= of.ports.end());
        if let Some(of) = clash {
            let text = format!("\"{}-{}\"", range.start(), range.end());
            let expected = format!("ports on which no listener serves {}", of.ip);
            source.refuse(&at.key("local_ports"), text, expected);
        }
    }
}
