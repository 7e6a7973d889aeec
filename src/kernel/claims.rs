//! Who gets which frame: the engine, the kernel, or both. A pure function of the frame and the configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use e2d2::port::PortId;
use e2d2::wire::MacAddr;
use e2d2::wire::ethernet::ethertype;
use e2d2::wire::frame::{IpVersion, Kind};
use e2d2::wire::quote;
use netfcts::PortSet;
use netfcts::leg::mapped;

use crate::config::{Config, PortConfig};
use crate::neighbour::link_local_of;
use splice::settings::ExceptionPath;

/// Whose a frame is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Share {
    /// The engine's.
    Engine,
    /// The kernel's.
    Kernel,
    /// The engine's; the kernel gets a copy.
    Both,
    /// Nobody's.
    Nobody,
}

/// What the kernel has of each port.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    ports: Vec<(PortId, MacAddr)>,
    addresses: Vec<Claim>,
    /// The TCP ports of these.
    tcp: ExceptionPath,
}

/// One address of the kernel's.
#[derive(Clone, Debug)]
struct Claim {
    port: PortId,
    value: u128,
    /// The engine answers for it, too, and so it alone answers ARP and neighbour discovery.
    is_shared: bool,
}

impl Claims {
    /// What the configuration leaves to the kernel on ports that have these MAC addresses, in the order of the ports.
    pub fn new(config: &Config, macs: &[MacAddr]) -> Self {
        let mut claims = Self::default();
        for (port, mac) in config.ports().iter().zip(macs) {
            let Some(kernel) = &port.kernel else { continue };
            claims.ports.push((port.id, *mac));
            let named = kernel.addresses.iter().map(ipnet::IpNet::addr);
            let has_v6 = kernel.addresses.iter().any(|net| net.addr().is_ipv6());
            // Linux makes itself the same one from the same MAC address (RFC 4291 appendix A).
            let link_local = has_v6.then(|| IpAddr::V6(link_local_of(*mac)));
            for address in named.chain(link_local) {
                let value = mapped(address);
                claims.tcp.add(port.id, value, engine_ports(config, port, address));
                claims.addresses.push(Claim {
                    port: port.id,
                    value,
                    is_shared: link_local == Some(address) || config.own_addresses(port.id).contains(&address),
                });
            }
        }
        claims
    }

    /// Whether there is no kernel behind any port.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// What the core has to know of it.
    pub fn into_exception_path(self) -> ExceptionPath {
        self.tcp
    }

    /// Whose a frame is that is no TCP segment; those are the engine's until the proxy knows better.
    pub fn share(&self, port: PortId, kind: Kind, frame: &[u8]) -> Share {
        let Some((_, mac)) = self.ports.iter().find(|(of, _)| *of == port) else {
            return Share::Engine;
        };
        let is_to_us = frame.starts_with(&mac.0);
        // The lowest bit of an address's first byte tells groups from stations.
        let is_to_group = frame.first().is_some_and(|byte| byte & 1 != 0);
        let shared = match kind {
            Kind::Other { ethertype } => {
                let is_kernels = is_to_us && self.is_to_kernel(port, ethertype, frame);
                return if is_kernels { Share::Kernel } else { Share::Nobody };
            }
            // Another station's, on a port that is given everything.
            _ if !is_to_us && !is_to_group => return Share::Engine,
            Kind::Tcp(_) => None,
            Kind::Arp => self.share_arp(port, frame),
            Kind::Icmpv4 { l3, l4, .. } => self.share_icmpv4(port, l3.into(), l4.into(), frame),
            Kind::Icmpv6 { l3, l4, .. } => self.share_icmpv6(port, l3.into(), l4.into(), frame),
        };
        // What is too short or strange is looked at, and counted, by the engine.
        shared.unwrap_or(Share::Engine)
    }

    fn claim(&self, port: PortId, value: u128) -> Option<&Claim> {
        self.addresses
            .iter()
            .find(|claim| claim.value == value && claim.port == port)
    }

    /// RFC 826: operation at 20, sender's address at 28, target's at 38.
    fn share_arp(&self, port: PortId, frame: &[u8]) -> Option<Share> {
        let operation = u16::from_be_bytes(bytes(frame, 20)?);
        let sender: [u8; 4] = bytes(frame, 28)?;
        let target: [u8; 4] = bytes(frame, 38)?;
        let claim = self.claim(port, v4(target));
        Some(match operation {
            // Answers to questions: either may have asked.
            2 => Share::Both,
            // RFC 5227 3: an announcement, after which whoever knows the sender by another MAC address has to learn. One
            // of an address that we have is a conflict, which the engine reports.
            1 if sender == target && claim.is_none() => Share::Both,
            1 if claim.is_some_and(|claim| !claim.is_shared) => Share::Kernel,
            _ => Share::Engine,
        })
    }

    fn share_icmpv4(&self, port: PortId, l3: usize, l4: usize, frame: &[u8]) -> Option<Share> {
        let destination: [u8; 4] = bytes(frame, l3 + 16)?;
        let claim = self.claim(port, v4(destination))?;
        // RFC 792: unreachable, time exceeded, parameter problem.
        let is_error = matches!(frame.get(l4)?, 3 | 11 | 12);
        Some(self.share_error(claim, is_error, IpVersion::V4, frame.get(l4 + 8..)?))
    }

    fn share_icmpv6(&self, port: PortId, l3: usize, l4: usize, frame: &[u8]) -> Option<Share> {
        let kind = *frame.get(l4)?;
        // RFC 4861 4.3, 4.4: the target is at 8.
        let is_discovery = matches!(kind, 135 | 136);
        if is_discovery {
            let target: [u8; 16] = bytes(frame, l4 + 8)?;
            let claim = self.claim(port, v6(target));
            return Some(match kind {
                136 => Share::Both,
                _ if claim.is_some_and(|claim| !claim.is_shared) => Share::Kernel,
                _ => Share::Engine,
            });
        }
        let destination: [u8; 16] = bytes(frame, l3 + 24)?;
        let claim = self.claim(port, v6(destination))?;
        // RFC 4443 2.1: errors have types below 128. Router advertisements, redirects and group management stay with the
        // engine, which ignores them: the kernel's routes are those of the configuration.
        match kind {
            1..=4 => Some(self.share_error(claim, true, IpVersion::V6, frame.get(l4 + 8..)?)),
            128 | 129 => Some(Share::Kernel),
            _ => None,
        }
    }

    fn is_to_kernel(&self, port: PortId, of: u16, frame: &[u8]) -> bool {
        let destination = match of {
            ethertype::IPV4 => bytes(frame, 14 + 16).map(v4),
            ethertype::IPV6 => bytes(frame, 14 + 24).map(v6),
            _ => None,
        };
        destination.is_some_and(|destination| self.claim(port, destination).is_some())
    }

    /// An error is about the engine's connections if it quotes a segment that came from a port of the engine's.
    fn share_error(&self, claim: &Claim, is_error: bool, version: IpVersion, quoted: &[u8]) -> Share {
        let quoted = is_error.then(|| quote::parse(version, quoted).ok().flatten()).flatten();
        let is_engines = |quoted: quote::QuotedTcp| {
            mapped(quoted.src_addr) == claim.value && !self.tcp.takes_tcp(claim.port, claim.value, quoted.src_port)
        };
        if quoted.is_some_and(is_engines) {
            Share::Engine
        } else {
            Share::Kernel
        }
    }
}

/// The ports that listeners serve there, and those that the engine connects from.
fn engine_ports(config: &Config, port: &PortConfig, address: IpAddr) -> PortSet {
    let listeners = config.listeners().iter();
    let served = listeners
        .filter(|listener| listener.ports.contains(&port.id))
        .flat_map(|listener| &listener.addresses)
        .filter(|of| of.ip == address)
        .flat_map(|of| of.ports.clone());
    let locals = config.servers().iter().flat_map(|server| &server.local);
    let local = locals
        .filter(|local| local.ip == address)
        .flat_map(|local| local.ports.iter());
    served.chain(local).collect()
}

fn bytes<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(at..)?.first_chunk().copied()
}

fn v4(octets: [u8; 4]) -> u128 {
    mapped(Ipv4Addr::from(octets).into())
}

fn v6(octets: [u8; 16]) -> u128 {
    mapped(Ipv6Addr::from(octets).into())
}
