//! What a host owes its link: it answers for its own addresses (ARP, neighbour discovery, ping) and finds the Ethernet
//! address of the next hop.
//!
//! Servers send back to where a segment came from and need no resolution; a client waits with its load until every
//! target's next hop is known.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::{MacAddr, checksum};

use crate::client::Client;
use crate::output::Output;
use crate::server::Server;

/// How long to wait for an answer before asking again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];

/// RFC 826: Ethernet and IPv4, 6 and 4 bytes.
const ARP_FIXED: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;

const ECHO_REQUEST: u8 = 8;
const ECHO6_REQUEST: u8 = 128;
const ECHO6_REPLY: u8 = 129;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// RFC 4861 4.4: solicited and override.
const SOLICITED_OVERRIDE: u8 = 0x60;
/// RFC 4861 4.3 and 4.4: the only hop limit that is taken, since no router lets it through.
const ND_HOP_LIMIT: u8 = 255;

/// The way to other hosts.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LinkSettings {
    /// Prefixes on this link, as address and length; without a gateway all addresses are on the link.
    pub prefixes: Vec<(IpAddr, u8)>,
    /// Routers to everything else, at most one per IP version.
    pub gateways: Vec<IpAddr>,
    /// Ethernet address of every next hop, so that none is asked for.
    pub next_hop_mac: Option<MacAddr>,
}

impl LinkSettings {
    /// Where a packet for `target` goes on this link.
    fn next_hop(&self, target: IpAddr) -> IpAddr {
        let is_on_link = self
            .prefixes
            .iter()
            .any(|(prefix, len)| is_within(target, *prefix, *len));
        let gateway = self
            .gateways
            .iter()
            .find(|gateway| gateway.is_ipv4() == target.is_ipv4());
        match gateway {
            Some(gateway) if !is_on_link => *gateway,
            _ => target,
        }
    }
}

fn is_within(address: IpAddr, prefix: IpAddr, len: u8) -> bool {
    match (address, prefix) {
        (IpAddr::V4(address), IpAddr::V4(prefix)) => {
            let differing = address.to_bits() ^ prefix.to_bits();
            len == 0 || differing.checked_shr(32 - u32::from(len.min(32))).unwrap_or(0) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(prefix)) => {
            let differing = address.to_bits() ^ prefix.to_bits();
            len == 0 || differing.checked_shr(128 - u32::from(len.min(128))).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// See the module documentation.
pub(crate) struct Link {
    settings: LinkSettings,
    /// When to ask for unknown next hops, and whether there are any.
    ask_at: Option<Instant>,
}

/// The roles, for the addresses they have and look for.
pub(crate) struct Roles<'a> {
    pub(crate) client: Option<&'a mut Client>,
    pub(crate) server: Option<&'a Server>,
}

impl Roles<'_> {
    fn is_ours(&self, address: IpAddr) -> bool {
        self.client.as_ref().is_some_and(|client| client.is_source(address))
            || self.server.is_some_and(|server| server.is_listener(address))
    }

    /// Our address that asks for `target`.
    fn source(&self, target: IpAddr) -> Option<IpAddr> {
        let sources = &self.client.as_ref()?.settings().sources;
        sources
            .iter()
            .find(|range| range.is_ipv4() == target.is_ipv4())
            .map(|range| range.at(0))
    }
}

impl Link {
    pub(crate) fn new(settings: LinkSettings, client: Option<&mut Client>) -> Link {
        let mut ask_at = None;
        for (_, mac) in client.into_iter().flat_map(Client::targets_mut) {
            *mac = settings.next_hop_mac;
            if mac.is_none() {
                ask_at = Some(Instant::ZERO);
            }
        }
        Link { settings, ask_at }
    }

    /// Whether all next hops are known.
    pub(crate) fn is_ready(&self) -> bool {
        self.ask_at.is_none()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.ask_at
    }

    /// Asks for next hops that are not known, when it is time.
    pub(crate) fn ask<L: BufferPool>(&mut self, roles: &mut Roles<'_>, out: &mut Output<'_, L>) {
        if self.ask_at.is_none_or(|at| out.ticks.now < at) {
            return;
        }
        let Some(client) = &mut roles.client else { return };
        let mut unknown: Vec<IpAddr> = client
            .targets_mut()
            .filter(|(_, mac)| mac.is_none())
            .map(|(target, _)| self.settings.next_hop(target))
            .collect();
        unknown.sort_unstable();
        unknown.dedup();
        self.ask_at = (!unknown.is_empty()).then_some(out.ticks.now + ASK_AGAIN);
        for hop in unknown {
            match (hop, roles.source(hop)) {
                (IpAddr::V4(hop), Some(IpAddr::V4(source))) => ask_arp(hop, source, out),
                (IpAddr::V6(hop), Some(IpAddr::V6(source))) => ask_neighbour(hop, source, out),
                _ => {}
            }
        }
    }

    fn learn(&mut self, hop: IpAddr, mac: MacAddr, roles: &mut Roles<'_>) {
        let Some(client) = &mut roles.client else { return };
        if !mac.is_unicast() || self.settings.next_hop_mac.is_some() {
            return;
        }
        let mut all_known = true;
        for (target, known) in client.targets_mut() {
            if self.settings.next_hop(target) == hop {
                *known = Some(mac);
            }
            all_known &= known.is_some();
        }
        if all_known {
            self.ask_at = None;
        }
    }

    /// Works on an ARP frame.
    pub(crate) fn receive_arp<L: BufferPool>(&mut self, frame: &[u8], mut roles: Roles<'_>, out: &mut Output<'_, L>) {
        let Some(arp) = frame.get(14..).and_then(|arp| arp.first_chunk::<28>()) else {
            return;
        };
        if arp[..6] != ARP_FIXED || arp[6] != 0 {
            return;
        }
        let (sender_mac, sender) = (mac_at(arp, 8), ipv4_at(arp, 14));
        let target = ipv4_at(arp, 24);
        if !roles.is_ours(target.into()) {
            return;
        }
        self.learn(sender.into(), sender_mac, &mut roles);
        if arp[7] == ARP_REQUEST {
            let mac = out.mac;
            send_arp(ARP_REPLY, (mac, target), (sender_mac, sender), sender_mac, out);
        }
    }

    /// Works on an ICMP packet: answers an echo request.
    pub(crate) fn receive_icmp4<L: BufferPool>(
        &self,
        packet: IcmpPacket<'_>,
        roles: Roles<'_>,
        out: &mut Output<'_, L>,
    ) {
        let Some((ip, message)) = packet.parts() else { return };
        let (source, destination) = (ipv4_at(ip, 12), ipv4_at(ip, 16));
        if message[0] != ECHO_REQUEST || !roles.is_ours(destination.into()) || checksum::internet(message) != 0 {
            return;
        }
        let (mac, to) = (out.mac, mac_at(packet.frame, 6));
        out.send_with(|buffer| {
            let mut reply = message.to_vec();
            reply[0] = 0;
            reply[2..4].fill(0);
            let sum = checksum::internet(&reply);
            reply[2..4].copy_from_slice(&sum.to_be_bytes());
            let len = (20 + reply.len()) as u16;
            let mut header = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            header[2..4].copy_from_slice(&len.to_be_bytes());
            header[12..16].copy_from_slice(&destination.octets());
            header[16..].copy_from_slice(&source.octets());
            let sum = checksum::internet(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            write_frame(buffer, to, mac, ETHERTYPE_IPV4, &[&header, &reply])
        });
    }

    /// Works on an ICMPv6 packet: neighbour discovery and echo requests.
    pub(crate) fn receive_icmp6<L: BufferPool>(
        &mut self,
        packet: IcmpPacket<'_>,
        mut roles: Roles<'_>,
        out: &mut Output<'_, L>,
    ) {
        let Some((ip, message)) = packet.parts() else { return };
        let (source, destination) = (ipv6_at(ip, 8), ipv6_at(ip, 24));
        let pseudo = checksum::pseudo_header_v6(source, destination, 58, message.len() as u16);
        if !checksum::is_valid(pseudo + checksum::sum(message)) {
            return;
        }
        let from = mac_at(packet.frame, 6);
        match message[0] {
            ECHO6_REQUEST if roles.is_ours(destination.into()) => {
                let mut reply = message.to_vec();
                reply[0] = ECHO6_REPLY;
                send_icmp6(reply, (destination, source), from, 64, out);
            }
            SOLICITATION if ip[7] == ND_HOP_LIMIT && message.len() >= 24 => {
                let target = ipv6_at(message, 8);
                if roles.is_ours(target.into()) {
                    // RFC 4861 7.2.4: an answer to the unspecified address goes to all nodes, unsolicited.
                    let is_probe = source.is_unspecified();
                    let to = if is_probe {
                        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)
                    } else {
                        source
                    };
                    let to_mac = if is_probe { multicast_mac(to) } else { from };
                    let flags = if is_probe {
                        SOLICITED_OVERRIDE & 0x20
                    } else {
                        SOLICITED_OVERRIDE
                    };
                    let reply = nd_message(ADVERTISEMENT, flags, target, 2, out.mac);
                    send_icmp6(reply, (target, to), to_mac, ND_HOP_LIMIT, out);
                }
            }
            ADVERTISEMENT if ip[7] == ND_HOP_LIMIT && message.len() >= 24 => {
                // RFC 4861 4.4: the option may be left out of a unicast answer; the frame's source is as good.
                let mac = nd_option_mac(&message[24..], 2).unwrap_or(from);
                self.learn(ipv6_at(message, 8).into(), mac, &mut roles);
            }
            _ => {}
        }
    }
}

/// A parsed ICMP packet of either version.
#[derive(Clone, Copy)]
pub(crate) struct IcmpPacket<'a> {
    pub(crate) frame: &'a [u8],
    pub(crate) l3: u16,
    pub(crate) l4: u16,
    pub(crate) end: u16,
}

impl<'a> IcmpPacket<'a> {
    /// IP header and message; the parse made sure of at least 20 or 40, and 8 bytes.
    fn parts(&self) -> Option<(&'a [u8], &'a [u8])> {
        let ip = self.frame.get(usize::from(self.l3)..usize::from(self.l4))?;
        let message = self.frame.get(usize::from(self.l4)..usize::from(self.end))?;
        (ip.len() >= 20 && message.len() >= 8).then_some((ip, message))
    }
}

fn ask_arp<L: BufferPool>(hop: Ipv4Addr, source: Ipv4Addr, out: &mut Output<'_, L>) {
    let mac = out.mac;
    send_arp(
        ARP_REQUEST,
        (mac, source),
        (MacAddr::UNSPECIFIED, hop),
        MacAddr::BROADCAST,
        out,
    );
}

fn send_arp<L: BufferPool>(
    operation: u8,
    sender: (MacAddr, Ipv4Addr),
    target: (MacAddr, Ipv4Addr),
    to: MacAddr,
    out: &mut Output<'_, L>,
) {
    let mac = out.mac;
    out.send_with(|buffer| {
        let parts: [&[u8]; 6] = [
            &ARP_FIXED,
            &[0, operation],
            &sender.0.0,
            &sender.1.octets(),
            &target.0.0,
            &target.1.octets(),
        ];
        write_frame(buffer, to, mac, ETHERTYPE_ARP, &parts)
    });
}

fn ask_neighbour<L: BufferPool>(hop: Ipv6Addr, source: Ipv6Addr, out: &mut Output<'_, L>) {
    let message = nd_message(SOLICITATION, 0, hop, 1, out.mac);
    let group = solicited_node(hop);
    send_icmp6(message, (source, group), multicast_mac(group), ND_HOP_LIMIT, out);
}

/// RFC 4291 2.7.1.
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// RFC 2464 7.
fn multicast_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

/// A solicitation or advertisement with one link-layer address option.
fn nd_message(kind: u8, flags: u8, target: Ipv6Addr, option: u8, mac: MacAddr) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend(target.octets());
    message.extend([option, 1]);
    message.extend(mac.0);
    message
}

fn nd_option_mac(mut options: &[u8], wanted: u8) -> Option<MacAddr> {
    while let [kind, units, rest @ ..] = options {
        // RFC 4861 4.6: in units of eight bytes, never zero.
        let len = usize::from(*units) * 8;
        if len == 0 || len > options.len() {
            return None;
        }
        if *kind == wanted && rest.len() >= 6 {
            return Some(mac_at(rest, 0));
        }
        options = &options[len..];
    }
    None
}

/// Sends an ICMPv6 message, whose checksum field is filled in here, from the first to the second address.
fn send_icmp6<L: BufferPool>(
    mut message: Vec<u8>,
    addresses: (Ipv6Addr, Ipv6Addr),
    to: MacAddr,
    hop_limit: u8,
    out: &mut Output<'_, L>,
) {
    let mac = out.mac;
    message[2..4].fill(0);
    let pseudo = checksum::pseudo_header_v6(addresses.0, addresses.1, 58, message.len() as u16);
    let sum = checksum::finish(pseudo + checksum::sum(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut header = [0; 40];
    header[0] = 0x60;
    header[4..6].copy_from_slice(&(message.len() as u16).to_be_bytes());
    header[6..8].copy_from_slice(&[58, hop_limit]);
    header[8..24].copy_from_slice(&addresses.0.octets());
    header[24..].copy_from_slice(&addresses.1.octets());
    out.send_with(|buffer| write_frame(buffer, to, mac, ETHERTYPE_IPV6, &[&header, &message]));
}

fn write_frame<B: PacketBuffer>(
    buffer: &mut B,
    to: MacAddr,
    from: MacAddr,
    ethertype: [u8; 2],
    parts: &[&[u8]],
) -> bool {
    let len = 14 + parts.iter().map(|part| part.len()).sum::<usize>();
    if buffer.append(len).is_err() {
        return false;
    }
    let mut rest = buffer.data_mut();
    for part in [&to.0[..], &from.0, &ethertype].iter().chain(parts) {
        let (place, after) = rest.split_at_mut(part.len());
        place.copy_from_slice(part);
        rest = after;
    }
    true
}

/// The six bytes at an offset that the caller has made sure of.
fn mac_at(bytes: &[u8], at: usize) -> MacAddr {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .map_or(MacAddr::UNSPECIFIED, MacAddr)
}

fn ipv4_at(bytes: &[u8], at: usize) -> Ipv4Addr {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<4>())
        .copied()
        .map_or(Ipv4Addr::UNSPECIFIED, Ipv4Addr::from)
}

fn ipv6_at(bytes: &[u8], at: usize) -> Ipv6Addr {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<16>())
        .copied()
        .map_or(Ipv6Addr::UNSPECIFIED, Ipv6Addr::from)
}
