//! Ping: an echo request for one of our addresses becomes the reply in its own buffer (RFC 792, RFC 4443 4).
//!
//! A reply is never longer than the request, goes back to the station that the request came from, and only to a source
//! that names one host; requests to broadcast and multicast addresses are not answered (RFC 1122 3.2.2.6 allows that,
//! and it is what keeps a network from being used to amplify).

use std::net::IpAddr;

use e2d2::buffer::PacketBuffer;
use e2d2::wire::MacAddr;
use e2d2::wire::checksum::{self, Delta};
use e2d2::wire::ethernet::{self, EthernetHeader};
use e2d2::wire::ipv4::{self, Ipv4Header};
use e2d2::wire::ipv6::{self, Ipv6Header};

use super::reason::{NeighbourDrop, NeighbourEvent};
use super::station::{Arrival, Station, Verdict, check_source};

/// Hop limit of the reply: RFC 1700's default.
const HOP_LIMIT: u8 = 64;

const V4_ECHO_REPLY: u8 = 0;
const V4_UNREACHABLE: u8 = 3;
const V4_ECHO_REQUEST: u8 = 8;
const V4_TIME_EXCEEDED: u8 = 11;
const V4_PARAMETER_PROBLEM: u8 = 12;
/// RFC 4443: echo request.
pub(super) const V6_ECHO_REQUEST: u8 = 128;
const V6_ECHO_REPLY: u8 = 129;

/// Where an ICMP packet is in its frame; from [`e2d2::wire::frame::Kind`].
#[derive(Copy, Clone, Debug)]
pub(super) struct Span {
    /// The IP header.
    pub(super) l3: u16,
    /// The ICMP header.
    pub(super) l4: u16,
    /// The end of the IP packet.
    pub(super) end: u16,
}

impl Span {
    /// The frame without padding, if it is as long as the offsets say.
    pub(super) fn frame(self, data: &[u8]) -> Result<&[u8], NeighbourDrop> {
        data.get(..usize::from(self.end)).ok_or(NeighbourDrop::Malformed)
    }

    /// The ICMP message.
    pub(super) fn message(self, frame: &[u8]) -> Result<&[u8], NeighbourDrop> {
        frame
            .get(usize::from(self.l4)..)
            .filter(|message| message.len() >= 8)
            .ok_or(NeighbourDrop::Malformed)
    }
}

/// Handles an ICMP packet over IPv4.
pub(super) fn handle_v4<B: PacketBuffer>(
    station: &mut Station,
    arrival: Arrival,
    span: Span,
    buffer: &mut B,
) -> Result<Verdict, NeighbourDrop> {
    let frame = span.frame(buffer.data())?;
    let link = EthernetHeader(chunk::<{ ethernet::HEADER_LEN }>(frame, 0)?);
    let ip = Ipv4Header(chunk::<{ ipv4::HEADER_LEN }>(frame, span.l3)?);
    let (src, dst) = (IpAddr::V4(ip.src_addr()), IpAddr::V4(ip.dst_addr()));
    check_stations(station, arrival, link.src_mac(), link.dst_mac())?;
    check_ip_source(station, arrival, src)?;
    let message = span.message(frame)?;
    let is_error = matches!(message[0], V4_UNREACHABLE | V4_TIME_EXCEEDED | V4_PARAMETER_PROBLEM);
    check_destination(station, arrival, dst, is_error)?;
    if !checksum::is_valid(checksum::sum(message)) {
        return Err(NeighbourDrop::BadChecksum);
    }
    match (message[0], message[1]) {
        (V4_ECHO_REQUEST, 0) => {}
        _ if is_error => return Ok(Verdict::IcmpError),
        _ => return Err(NeighbourDrop::Unsupported),
    }
    if !station.echo_allowed(arrival.now) {
        return Err(NeighbourDrop::RateLimited);
    }
    turn_round_v4(arrival.mac, span, buffer)?;
    Ok(Verdict::Answer(NeighbourEvent::EchoAnswered))
}

/// Handles an echo request over IPv6 whose checksum has been verified.
pub(super) fn handle_v6_request<B: PacketBuffer>(
    station: &mut Station,
    arrival: Arrival,
    span: Span,
    buffer: &mut B,
) -> Result<Verdict, NeighbourDrop> {
    let frame = span.frame(buffer.data())?;
    let link = EthernetHeader(chunk::<{ ethernet::HEADER_LEN }>(frame, 0)?);
    let ip = Ipv6Header(chunk::<{ ipv6::HEADER_LEN }>(frame, span.l3)?);
    let (src, dst) = (IpAddr::V6(ip.src_addr()), IpAddr::V6(ip.dst_addr()));
    check_stations(station, arrival, link.src_mac(), link.dst_mac())?;
    check_destination(station, arrival, dst, false)?;
    check_ip_source(station, arrival, src)?;
    if span.message(frame)?[1] != 0 {
        return Err(NeighbourDrop::Unsupported);
    }
    if !station.echo_allowed(arrival.now) {
        return Err(NeighbourDrop::RateLimited);
    }
    turn_round_v6(arrival.mac, span, buffer)?;
    Ok(Verdict::Answer(NeighbourEvent::EchoAnswered))
}

/// Fails unless the frame came from another station to us alone.
pub(super) fn check_stations(
    station: &Station,
    arrival: Arrival,
    src_mac: MacAddr,
    dst_mac: MacAddr,
) -> Result<(), NeighbourDrop> {
    if dst_mac != arrival.mac {
        return Err(NeighbourDrop::OtherStation);
    }
    station.check_source_mac(src_mac)
}

/// Fails unless the packet is to an address of ours, or, if it `is_error`, to one that we send packets from.
pub(super) fn check_destination(
    station: &Station,
    arrival: Arrival,
    dst: IpAddr,
    is_error: bool,
) -> Result<(), NeighbourDrop> {
    let topology = station.topology();
    if topology.owns(arrival.port, dst) || is_error && topology.gets_errors_for(arrival.port, dst) {
        Ok(())
    } else {
        Err(NeighbourDrop::NotOurAddress)
    }
}

/// Fails if the source is no single host, or is ourselves.
pub(super) fn check_ip_source(station: &Station, arrival: Arrival, src: IpAddr) -> Result<(), NeighbourDrop> {
    check_source(src)?;
    if station.topology().owns(arrival.port, src) {
        return Err(NeighbourDrop::OwnSource);
    }
    if station.topology().is_directed_broadcast(arrival.port, src) {
        return Err(NeighbourDrop::BadSource);
    }
    Ok(())
}

/// The `N` bytes at an offset of the frame.
pub(super) fn chunk<const N: usize>(frame: &[u8], at: u16) -> Result<&[u8; N], NeighbourDrop> {
    frame
        .get(usize::from(at)..)
        .and_then(|rest| rest.first_chunk())
        .ok_or(NeighbourDrop::Malformed)
}

fn turn_round_v4<B: PacketBuffer>(mac: MacAddr, span: Span, buffer: &mut B) -> Result<(), NeighbourDrop> {
    buffer.truncate(usize::from(span.end));
    let frame = buffer.data_mut();
    turn_link_round(mac, frame)?;
    let header = frame
        .get_mut(usize::from(span.l3)..usize::from(span.l4))
        .ok_or(NeighbourDrop::Malformed)?;
    let (fixed, options) = header.split_first_chunk_mut().ok_or(NeighbourDrop::Malformed)?;
    // End of options: a route or time stamps recorded on the way here mean nothing on the way back.
    options.fill(0);
    let mut ip = Ipv4Header(fixed);
    let (src, dst) = (ip.src_addr(), ip.dst_addr());
    ip.set_src_addr(dst);
    ip.set_dst_addr(src);
    ip.set_hop_limit(HOP_LIMIT);
    // RFC 3168: an answer made here carries no congestion mark of the question.
    ip.set_traffic_class(ip.traffic_class() & 0xfc);
    ip.fill_checksum();
    turn_message_round(V4_ECHO_REQUEST, V4_ECHO_REPLY, span, frame)
}

fn turn_round_v6<B: PacketBuffer>(mac: MacAddr, span: Span, buffer: &mut B) -> Result<(), NeighbourDrop> {
    buffer.truncate(usize::from(span.end));
    let frame = buffer.data_mut();
    turn_link_round(mac, frame)?;
    let header = frame
        .get_mut(usize::from(span.l3)..)
        .and_then(|rest| rest.first_chunk_mut());
    let mut ip = Ipv6Header(header.ok_or(NeighbourDrop::Malformed)?);
    let (src, dst) = (ip.src_addr(), ip.dst_addr());
    ip.set_src_addr(dst);
    ip.set_dst_addr(src);
    ip.set_hop_limit(HOP_LIMIT);
    ip.set_traffic_class(ip.traffic_class() & 0xfc);
    ip.set_flow_label(0);
    turn_message_round(V6_ECHO_REQUEST, V6_ECHO_REPLY, span, frame)
}

fn turn_link_round(mac: MacAddr, frame: &mut [u8]) -> Result<(), NeighbourDrop> {
    let mut link = EthernetHeader(frame.first_chunk_mut().ok_or(NeighbourDrop::Malformed)?);
    link.set_dst_mac(link.src_mac());
    link.set_src_mac(mac);
    Ok(())
}

/// Only the type changes, and exchanging the addresses leaves the pseudo header's sum as it is.
fn turn_message_round(request: u8, reply: u8, span: Span, frame: &mut [u8]) -> Result<(), NeighbourDrop> {
    let message = frame
        .get_mut(usize::from(span.l4)..)
        .and_then(|rest| rest.first_chunk_mut::<4>());
    let message = message.ok_or(NeighbourDrop::Malformed)?;
    let delta = Delta::ZERO.replace16(u16::from_be_bytes([request, 0]), u16::from_be_bytes([reply, 0]));
    let field = delta.apply(u16::from_be_bytes([message[2], message[3]]));
    message[0] = reply;
    message[2..].copy_from_slice(&field.to_be_bytes());
    Ok(())
}
