//! ARP for IPv4 over Ethernet: RFC 826, with the checks and the conflict detection of RFC 5227.

use std::net::{IpAddr, Ipv4Addr};

use e2d2::buffer::PacketBuffer;
use e2d2::wire::MacAddr;
use e2d2::wire::ethernet::{self, EthernetHeader, ethertype};

use super::reason::{NeighbourDrop, NeighbourEvent};
use super::station::{Arrival, Claim, Station, Verdict, check_source};

/// Bytes of a message with its Ethernet header; the port pads the frame where the medium wants more.
pub(super) const FRAME_LEN: usize = ethernet::HEADER_LEN + MESSAGE_LEN;
const MESSAGE_LEN: usize = 28;

/// Hardware type Ethernet, protocol type IPv4, address lengths 6 and 4.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Operation {
    Request,
    Reply,
}

#[derive(Copy, Clone, Debug)]
struct Message {
    operation: Operation,
    sender_mac: MacAddr,
    sender: Ipv4Addr,
    target_mac: MacAddr,
    target: Ipv4Addr,
}

/// Handles a frame of EtherType ARP: at most one answer, in the same buffer.
pub(super) fn handle<B: PacketBuffer>(
    station: &mut Station,
    arrival: Arrival,
    buffer: &mut B,
) -> Result<Verdict, NeighbourDrop> {
    let frame: &[u8; FRAME_LEN] = buffer.data().first_chunk().ok_or(NeighbourDrop::Malformed)?;
    let (link, message) = frame.split_at(ethernet::HEADER_LEN);
    let link = EthernetHeader(link.first_chunk().ok_or(NeighbourDrop::Malformed)?);
    let (src_mac, dst_mac) = (link.src_mac(), link.dst_mac());
    if dst_mac != arrival.mac && !dst_mac.is_broadcast() {
        return Err(NeighbourDrop::OtherStation);
    }
    station.check_source_mac(src_mac)?;
    let message = Message::parse(message)?;
    station.check_source_mac(message.sender_mac)?;
    let sender = IpAddr::V4(message.sender);
    if station.answers_for(arrival.port, sender) {
        // RFC 5227 2.4: any ARP packet whose sender address is ours and whose sender MAC address is not.
        station.log_duplicate(arrival, sender, message.sender_mac);
        return Ok(Verdict::Used(NeighbourEvent::DuplicateAddress));
    }
    if station.topology().is_directed_broadcast(arrival.port, sender) {
        return Err(NeighbourDrop::BadSource);
    }
    match message.operation {
        Operation::Request => handle_request(station, arrival, message, buffer),
        Operation::Reply => handle_reply(station, arrival, message, dst_mac),
    }
}

fn handle_request<B: PacketBuffer>(
    station: &mut Station,
    arrival: Arrival,
    message: Message,
    buffer: &mut B,
) -> Result<Verdict, NeighbourDrop> {
    let Message {
        sender_mac,
        sender,
        target,
        ..
    } = message;
    // RFC 5227 2.1.1: a probe has no sender address yet; there is nothing to learn from it.
    let heard = if sender.is_unspecified() {
        Err(NeighbourDrop::UnknownNeighbour)
    } else {
        check_source(sender.into())?;
        station.hear(arrival, sender.into(), sender_mac, Claim::Unasked)
    };
    if !station.answers_for(arrival.port, target.into()) {
        // RFC 826: the merge comes before the question whether we are the target.
        return heard.map(Verdict::Used).map_err(|_| NeighbourDrop::NotOurAddress);
    }
    if let Ok(event) = heard {
        station.count(event);
    }
    let reply = Message {
        operation: Operation::Reply,
        sender_mac: arrival.mac,
        sender: target,
        target_mac: sender_mac,
        target: sender,
    };
    write(buffer, &reply.frame(sender_mac))?;
    Ok(Verdict::Answer(NeighbourEvent::ArpAnswered))
}

fn handle_reply(
    station: &mut Station,
    arrival: Arrival,
    message: Message,
    dst_mac: MacAddr,
) -> Result<Verdict, NeighbourDrop> {
    let sender = IpAddr::V4(message.sender);
    check_source(sender)?;
    let is_to_us = dst_mac == arrival.mac
        && message.target_mac == arrival.mac
        && station.topology().owns(arrival.port, message.target.into());
    let claim = if is_to_us { Claim::Answer } else { Claim::Unasked };
    station
        .hear(arrival, sender, message.sender_mac, claim)
        .map(Verdict::Used)
}

/// Asks who has `target`: everyone, or only the station at `to` whether it still has it (RFC 1122 2.3.2.1).
pub(super) fn request(mac: MacAddr, source: Ipv4Addr, to: Option<MacAddr>, target: Ipv4Addr) -> [u8; FRAME_LEN] {
    let message = Message {
        operation: Operation::Request,
        sender_mac: mac,
        sender: source,
        target_mac: MacAddr::UNSPECIFIED,
        target,
    };
    message.frame(to.unwrap_or(MacAddr::BROADCAST))
}

/// Says that `address` is ours. RFC 5227 3: a request, as some stations do not look at unasked replies.
pub(super) fn announcement(mac: MacAddr, address: Ipv4Addr) -> [u8; FRAME_LEN] {
    request(mac, address, None, address)
}

impl Message {
    fn parse(bytes: &[u8]) -> Result<Self, NeighbourDrop> {
        let bytes: &[u8; MESSAGE_LEN] = bytes.first_chunk().ok_or(NeighbourDrop::Malformed)?;
        if bytes[..6] != ETHERNET_IPV4 {
            return Err(NeighbourDrop::Malformed);
        }
        let operation = match u16::from_be_bytes([bytes[6], bytes[7]]) {
            1 => Operation::Request,
            2 => Operation::Reply,
            _ => return Err(NeighbourDrop::Unsupported),
        };
        let mac = |at: usize| {
            MacAddr([
                bytes[at],
                bytes[at + 1],
                bytes[at + 2],
                bytes[at + 3],
                bytes[at + 4],
                bytes[at + 5],
            ])
        };
        let address = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        Ok(Self {
            operation,
            sender_mac: mac(8),
            sender: address(14),
            target_mac: mac(18),
            target: address(24),
        })
    }

    fn frame(&self, to: MacAddr) -> [u8; FRAME_LEN] {
        let mut frame = [0; FRAME_LEN];
        frame[..6].copy_from_slice(&to.0);
        frame[6..12].copy_from_slice(&self.sender_mac.0);
        frame[12..14].copy_from_slice(&ethertype::ARP.to_be_bytes());
        frame[14..20].copy_from_slice(&ETHERNET_IPV4);
        let operation: u16 = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        frame[20..22].copy_from_slice(&operation.to_be_bytes());
        frame[22..28].copy_from_slice(&self.sender_mac.0);
        frame[28..32].copy_from_slice(&self.sender.octets());
        frame[32..38].copy_from_slice(&self.target_mac.0);
        frame[38..42].copy_from_slice(&self.target.octets());
        frame
    }
}

/// Puts a whole frame in the place of the request.
pub(super) fn write<B: PacketBuffer>(buffer: &mut B, frame: &[u8]) -> Result<(), NeighbourDrop> {
    buffer.truncate(0);
    buffer.append(frame.len()).map_err(|_| NeighbourDrop::NoRoom)?;
    buffer.data_mut().copy_from_slice(frame);
    Ok(())
}
