//! IPv6 neighbour discovery (RFC 4861): solicitations and advertisements; router messages and redirects are ignored, as
//! routes come from the configuration.

use std::net::Ipv6Addr;

use e2d2::buffer::PacketBuffer;
use e2d2::wire::ethernet::{self, EthernetHeader, ethertype};
use e2d2::wire::ipv6::{self, Ipv6Header, solicited_node};
use e2d2::wire::{MacAddr, checksum, protocol};

use super::arp::write;
use super::echo::{self, Span, check_ip_source, chunk};
use super::reason::{NeighbourDrop, NeighbourEvent};
use super::station::{Arrival, Claim, Station, Verdict, check_source};

/// Bytes of a solicitation or advertisement with one link-layer address option, from the Ethernet header on.
pub(super) const FRAME_LEN: usize = MESSAGE_AT + MESSAGE_LEN;
const MESSAGE_AT: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;
const MESSAGE_LEN: usize = TARGET_END + 8;
const TARGET_END: usize = 24;

/// RFC 4861 7.1: nothing that a router has forwarded is neighbour discovery.
const HOP_LIMIT: u8 = 255;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The addresses of a received message.
#[derive(Copy, Clone, Debug)]
struct Ends {
    src_mac: MacAddr,
    dst_mac: MacAddr,
    src: Ipv6Addr,
    dst: Ipv6Addr,
}

/// Handles an ICMPv6 packet: at most one answer, in the same buffer.
pub(super) fn handle<B: PacketBuffer>(
    station: &mut Station,
    arrival: Arrival,
    span: Span,
    buffer: &mut B,
) -> Result<Verdict, NeighbourDrop> {
    let frame = span.frame(buffer.data())?;
    let link = EthernetHeader(chunk::<{ ethernet::HEADER_LEN }>(frame, 0)?);
    let ip = Ipv6Header(chunk::<{ ipv6::HEADER_LEN }>(frame, span.l3)?);
    let ends = Ends {
        src_mac: link.src_mac(),
        dst_mac: link.dst_mac(),
        src: ip.src_addr(),
        dst: ip.dst_addr(),
    };
    check_link(station, arrival, ends)?;
    let message = span.message(frame)?;
    let pseudo = checksum::pseudo_header_v6(ends.src, ends.dst, protocol::ICMPV6, message.len() as u16);
    if !checksum::is_valid(pseudo + checksum::sum(message)) {
        return Err(NeighbourDrop::BadChecksum);
    }
    match message[0] {
        SOLICITATION => {
            let solicitation = Message::parse(message, ip.hop_limit(), SOURCE_LINK_ADDRESS)?;
            handle_solicitation(station, arrival, ends, solicitation, buffer)
        }
        ADVERTISEMENT => {
            let advertisement = Message::parse(message, ip.hop_limit(), TARGET_LINK_ADDRESS)?;
            handle_advertisement(station, arrival, ends, advertisement)
        }
        echo::V6_ECHO_REQUEST => echo::handle_v6_request(station, arrival, span, buffer),
        // RFC 4443 3: destination unreachable, packet too big, time exceeded, parameter problem.
        1..=4 => {
            echo::check_stations(station, arrival, ends.src_mac, ends.dst_mac)?;
            echo::check_destination(station, arrival, ends.dst.into(), true)?;
            check_ip_source(station, arrival, ends.src.into())?;
            Ok(Verdict::IcmpError)
        }
        _ => Err(NeighbourDrop::Unsupported),
    }
}

/// RFC 2464 7: a frame to a group carries the group's last four bytes. Some switches turn it into one to us alone.
fn check_link(station: &Station, arrival: Arrival, ends: Ends) -> Result<(), NeighbourDrop> {
    let is_to_us = ends.dst_mac == arrival.mac;
    let is_to_group = ends.dst.is_multicast() && ends.dst_mac == group_mac(ends.dst);
    if !is_to_us && !is_to_group {
        return Err(NeighbourDrop::OtherStation);
    }
    station.check_source_mac(ends.src_mac)
}

/// What both messages have.
#[derive(Copy, Clone, Debug)]
struct Message {
    flags: u8,
    target: Ipv6Addr,
    link_address: Option<MacAddr>,
}

impl Message {
    /// RFC 4861 7.1.1 and 7.1.2, as far as they are the same; the checksum has been verified.
    fn parse(message: &[u8], hop_limit: u8, option: u8) -> Result<Self, NeighbourDrop> {
        if hop_limit != HOP_LIMIT {
            return Err(NeighbourDrop::BadHopLimit);
        }
        let fixed: &[u8; TARGET_END] = message.first_chunk().ok_or(NeighbourDrop::Malformed)?;
        let target: [u8; 16] = *fixed.last_chunk().ok_or(NeighbourDrop::Malformed)?;
        let target = Ipv6Addr::from(target);
        if fixed[1] != 0 {
            return Err(NeighbourDrop::Malformed);
        }
        check_source(target.into()).map_err(|_| NeighbourDrop::BadTarget)?;
        let options = message.get(TARGET_END..).unwrap_or_default();
        Ok(Self {
            flags: fixed[4],
            target,
            link_address: find_link_address(options, option)?,
        })
    }
}

/// The MAC address in the first option of this kind. Every option must be whole, and none empty.
fn find_link_address(mut options: &[u8], wanted: u8) -> Result<Option<MacAddr>, NeighbourDrop> {
    let mut found = None;
    while !options.is_empty() {
        let (&kind, rest) = options.split_first().ok_or(NeighbourDrop::Malformed)?;
        let len = rest.first().map_or(0, |units| usize::from(*units) * 8);
        if len == 0 {
            return Err(NeighbourDrop::Malformed);
        }
        let (option, after) = options.split_at_checked(len).ok_or(NeighbourDrop::Malformed)?;
        // Another length is another link layer's address (RFC 2464 6: one unit for Ethernet).
        if kind == wanted && found.is_none() && option.len() == 8 {
            found = option.last_chunk().map(|mac: &[u8; 6]| MacAddr(*mac));
        }
        options = after;
    }
    Ok(found)
}

fn handle_solicitation<B: PacketBuffer>(
    station: &mut Station,
    arrival: Arrival,
    ends: Ends,
    solicitation: Message,
    buffer: &mut B,
) -> Result<Verdict, NeighbourDrop> {
    let Message {
        target, link_address, ..
    } = solicitation;
    if ends.dst != target && ends.dst != solicited_node(target) {
        return Err(NeighbourDrop::BadTarget);
    }
    if !station.answers_for(arrival.port, target.into()) {
        return Err(NeighbourDrop::NotOurAddress);
    }
    // RFC 4861 7.1.1: who has no address yet asks the group, and does not say where it is.
    let is_probe = ends.src.is_unspecified();
    if is_probe && (!ends.dst.is_multicast() || link_address.is_some()) {
        return Err(NeighbourDrop::BadSource);
    }
    if is_probe {
        let to = Ends {
            src_mac: arrival.mac,
            dst_mac: group_mac(ALL_NODES),
            src: target,
            dst: ALL_NODES,
        };
        write(buffer, &frame(to, ADVERTISEMENT, OVERRIDE, target))?;
        return Ok(Verdict::Answer(NeighbourEvent::SolicitationAnswered));
    }
    if station.answers_for(arrival.port, ends.src.into()) {
        station.log_duplicate(arrival, ends.src.into(), ends.src_mac);
        return Ok(Verdict::Used(NeighbourEvent::DuplicateAddress));
    }
    check_source(ends.src.into())?;
    if let Some(mac) = link_address {
        station.check_source_mac(mac)?;
        if let Ok(event) = station.hear(arrival, ends.src.into(), mac, Claim::Unasked) {
            station.count(event);
        }
    }
    let dst_mac = link_address.unwrap_or(ends.src_mac);
    let back = Ends {
        src_mac: arrival.mac,
        dst_mac,
        src: target,
        dst: ends.src,
    };
    write(buffer, &frame(back, ADVERTISEMENT, SOLICITED | OVERRIDE, target))?;
    Ok(Verdict::Answer(NeighbourEvent::SolicitationAnswered))
}

fn handle_advertisement(
    station: &mut Station,
    arrival: Arrival,
    ends: Ends,
    advertisement: Message,
) -> Result<Verdict, NeighbourDrop> {
    let Message {
        flags,
        target,
        link_address,
    } = advertisement;
    let solicited = flags & SOLICITED != 0;
    check_source(ends.src.into())?;
    if ends.dst.is_multicast() {
        // RFC 4861 7.1.2: an answer goes to the one who asked.
        if solicited {
            return Err(NeighbourDrop::Malformed);
        }
    } else if !station.topology().owns(arrival.port, ends.dst.into()) {
        return Err(NeighbourDrop::NotOurAddress);
    }
    if let Some(mac) = link_address {
        station.check_source_mac(mac)?;
    }
    if station.answers_for(arrival.port, target.into()) {
        station.log_duplicate(arrival, target.into(), link_address.unwrap_or(ends.src_mac));
        return Ok(Verdict::Used(NeighbourEvent::DuplicateAddress));
    }
    // RFC 4861 7.2.5: without an option it can only confirm what is known.
    let known = station.known_mac(arrival, target.into());
    let mac = link_address.or(known).ok_or(NeighbourDrop::UnknownNeighbour)?;
    let claim = match (flags & OVERRIDE != 0, solicited) {
        (false, solicited) => Claim::Modest { solicited },
        (true, true) => Claim::Answer,
        (true, false) => Claim::Unasked,
    };
    station.hear(arrival, target.into(), mac, claim).map(Verdict::Used)
}

/// Asks who has `target`: its solicited-node group, or only the station at `to` whether it still has it.
pub(super) fn solicitation(mac: MacAddr, source: Ipv6Addr, to: Option<MacAddr>, target: Ipv6Addr) -> [u8; FRAME_LEN] {
    let group = solicited_node(target);
    let (dst_mac, dst) = to.map_or((group_mac(group), group), |mac| (mac, target));
    frame(
        Ends {
            src_mac: mac,
            dst_mac,
            src: source,
            dst,
        },
        SOLICITATION,
        0,
        target,
    )
}

/// Says to all nodes that `address` is ours (RFC 4861 7.2.6).
pub(super) fn announcement(mac: MacAddr, address: Ipv6Addr) -> [u8; FRAME_LEN] {
    let ends = Ends {
        src_mac: mac,
        dst_mac: group_mac(ALL_NODES),
        src: address,
        dst: ALL_NODES,
    };
    frame(ends, ADVERTISEMENT, OVERRIDE, address)
}

/// A message with our MAC address in its option, which is the source's or the target's depending on the type.
fn frame(ends: Ends, kind: u8, flags: u8, target: Ipv6Addr) -> [u8; FRAME_LEN] {
    let mut message = [0; MESSAGE_LEN];
    message[0] = kind;
    message[4] = flags;
    message[8..TARGET_END].copy_from_slice(&target.octets());
    message[TARGET_END] = if kind == SOLICITATION {
        SOURCE_LINK_ADDRESS
    } else {
        TARGET_LINK_ADDRESS
    };
    message[TARGET_END + 1] = 1;
    message[TARGET_END + 2..].copy_from_slice(&ends.src_mac.0);
    let pseudo = checksum::pseudo_header_v6(ends.src, ends.dst, protocol::ICMPV6, MESSAGE_LEN as u16);
    let field = checksum::finish(pseudo + checksum::sum(&message));
    message[2..4].copy_from_slice(&field.to_be_bytes());

    let mut ip = [0; ipv6::HEADER_LEN];
    Ipv6Header(&mut ip).init(MESSAGE_LEN as u16, protocol::ICMPV6, HOP_LIMIT, ends.src, ends.dst);
    let mut frame = [0; FRAME_LEN];
    frame[..6].copy_from_slice(&ends.dst_mac.0);
    frame[6..12].copy_from_slice(&ends.src_mac.0);
    frame[12..14].copy_from_slice(&ethertype::IPV6.to_be_bytes());
    frame[14..MESSAGE_AT].copy_from_slice(&ip);
    frame[MESSAGE_AT..].copy_from_slice(&message);
    frame
}

/// RFC 2464 7.
pub(super) fn group_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}
