//! What an ancestor's file says of receive-flow steering: which addresses and ports each core has towards the servers.

use std::net::{IpAddr, Ipv4Addr};

use crate::config::raw::RawServer;
use crate::config::source::{At, Source};

/// Their first core uses the highest ports.
const LOWEST: u16 = 1024;

/// How servers are reached from, and how their answers find the cores.
#[derive(Default)]
pub(super) struct Steering {
    /// `[engine] steering`, where there are several cores.
    pub(super) mode: Option<&'static str>,
    /// `[engine] port_mask`, where it steers.
    pub(super) port_mask: Option<i64>,
    pub(super) local_addresses: Vec<IpAddr>,
    pub(super) local_ports: Option<String>,
}

/// Reads `flow_steering` and `dst_port_mask` for `cores` cores of a proxy with the address `base`.
pub(super) fn read(
    source: &mut Source<'_>,
    steering: Option<&(At, String)>,
    mask: Option<u16>,
    base: IpAddr,
    cores: usize,
    targets: &[RawServer],
) -> Steering {
    let by_address = match steering {
        None => false,
        Some((_, mode)) if mode == "Port" => false,
        Some((_, mode)) if mode == "Ip" => true,
        Some((at, mode)) => {
            source.refuse(at, format!("\"{mode}\""), "\"Ip\" or \"Port\"");
            return Steering::default();
        }
    };
    // With "Port" each core has the part below that of the one before; with "Ip" all have the ports from the mask on.
    let parts = if by_address { 1 } else { cores.max(1) };
    let first = mask.map(|mask| {
        let size = u32::from(!mask) + 1;
        let below = (parts as u32 - 1).saturating_mul(size);
        (u32::from(mask).saturating_sub(below) as u16).max(LOWEST)
    });
    let local_addresses = match steering {
        Some((at, _)) if by_address => addresses(source, at, base, cores.max(1), targets),
        _ => Vec::new(),
    };
    let is_partial = |mask: &u16| *mask != u16::MAX;
    let (mode, port_mask) = match steering {
        Some(_) if cores < 2 => (None, None),
        Some(_) if by_address => (Some("ip"), None),
        Some(_) => (Some("port"), mask.filter(is_partial).map(i64::from)),
        None => (None, None),
    };
    Steering {
        mode,
        port_mask,
        local_addresses,
        local_ports: first.map(|first| format!("{first}-65535")),
    }
}

/// With "Ip" each of their cores has an address of its own towards the servers, the first the one after the proxy's.
fn addresses(source: &mut Source<'_>, at: &At, base: IpAddr, cores: usize, targets: &[RawServer]) -> Vec<IpAddr> {
    let IpAddr::V4(base) = base else { return Vec::new() };
    let target_at = |address: Ipv4Addr| {
        let has_it = |target: &&RawServer| target.address.split(':').next() == Some(address.to_string().as_str());
        targets.iter().find(has_it)
    };
    let (mut addresses, mut taken) = (Vec::with_capacity(cores), None);
    // There are fewer targets than addresses, so there is an end.
    let mut next = base;
    while addresses.len() < cores {
        next = Ipv4Addr::from(u32::from(next).wrapping_add(1));
        match target_at(next) {
            None => addresses.push(IpAddr::V4(next)),
            Some(target) => _ = taken.get_or_insert((next, &target.name)),
        }
    }
    if let Some((address, name)) = taken {
        let instead: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let sentence = format!(
            "would make {address} the address towards the servers, but target \"{name}\" has it: the engine takes {}",
            instead.join(", ")
        );
        source.warn(at, sentence);
    }
    addresses
}
