//! ICMP errors about packets that we have passed on or made: who caused the packet hears of it.
//!
//! An error names our end point of one leg; its quote is translated to the packet as the other side sent it, and the
//! error goes there (RFC 5508 4.2). So path-MTU discovery works from end to end, although no path is seen from end to
//! end by anyone. Nothing is believed whose quoted sequence number is not in flight (RFC 5927 4.1), and no error ends
//! anything here: both ends have a TCP that decides (RFC 1122 4.2.3.9). Only our own SYN, which nobody else waits for,
//! makes us try the next server.

use super::connection::Stage;
use super::drop_reason::DropReason;
use super::event::{Event, Side};
use super::segment::{Segment, address_of, address_value};
use super::send::{self, Path};
use super::table::FlowKey;
use super::{Incoming, NextHops, Outbox, Proxy};
use crate::callbacks::SelectServer;
use arrayvec::ArrayVec;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::frame::{IpVersion, Kind, Packet};
use e2d2::wire::icmpv4::{Icmpv4Repr, unreachable_code};
use e2d2::wire::icmpv6::Icmpv6Repr;
use e2d2::wire::ipv6::Ipv6Header;
use e2d2::wire::quote::{self, QuotedTcp};
use e2d2::wire::{EmitError, Envelope};
use netfcts::seq::SeqNum;

/// The smallest path MTUs that are believed: what every IPv4 host must take (RFC 791), and the minimum link of IPv6
/// (RFC 8200 5). Anything below is an attack or a mistake.
const MTU_FLOOR: [u32; 2] = [576, 1280];

/// The longest quote that is passed on: an IP header with options and the eight bytes of TCP that name a segment.
const MAX_QUOTE: usize = 60 + 8;

/// What an error says, in either version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Complaint {
    /// Destination unreachable, with its code.
    Unreachable(u8),
    /// The packet does not fit a link of this MTU.
    TooBig(u32),
    /// The hop limit was used up.
    TimeExceeded(u8),
}

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// An ICMP or ICMPv6 error to one of our addresses, whose own checksums are right.
    pub fn handle_icmp_error(&mut self, now: Instant, packet: Packet<P::Buffer>, out: &mut impl Outbox<P::Buffer>) {
        self.last_now = now;
        if let Err(reason) = self.pass_icmp_error(now, packet, out) {
            self.drops.add(reason, 1);
        }
    }

    fn pass_icmp_error(
        &mut self,
        now: Instant,
        packet: Packet<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) -> Result<(), DropReason> {
        let (version, complaint, original) = read(packet.buffer.data(), packet.kind).ok_or(DropReason::IcmpUnwanted)?;
        let quoted = quote::parse(version, original)
            .ok()
            .flatten()
            .ok_or(DropReason::IcmpUnwanted)?;
        let key = FlowKey {
            remote: address_value(quoted.dst_addr),
            local: address_value(quoted.src_addr),
            remote_port: quoted.dst_port,
            local_port: quoted.src_port,
        };
        let hash = self.table.hash(&key);
        let flow = self
            .table
            .find(hash, |flow| self.key_of(flow) == Some(key))
            .ok_or(DropReason::IcmpUnwanted)?;
        if flow.is_quarantined() {
            return Err(DropReason::IcmpUnwanted);
        }
        let (slot, towards) = (flow.slot(), flow.side());
        let connection = self.connections.get(slot).ok_or(DropReason::IcmpUnwanted)?;
        match &connection.stage {
            Stage::Opening(opening) => {
                let is_our_syn = towards == Side::Server && SeqNum(quoted.seq) == opening.server_side_isn;
                if !is_our_syn || !matches!(complaint, Complaint::Unreachable(_)) {
                    return Err(DropReason::IcmpUnwanted);
                }
                self.drive(now, slot, Event::ServerUnreachable, None, out);
                Ok(())
            }
            Stage::Spliced(spliced) => {
                // The quote is in the numbers of the receiver; the flow is kept in those of the sender.
                let seq = spliced.seq_from_peer(towards.peer(), SeqNum(quoted.seq));
                let flow = match towards {
                    Side::Server => spliced.to_server,
                    Side::Client => spliced.to_client,
                };
                if !(seq.ge(flow.acknowledged) && seq.le(flow.end)) {
                    return Err(DropReason::IcmpNotInFlight);
                }
                if !self.answers.take(now) {
                    return Err(DropReason::RateLimited);
                }
                let path = match towards {
                    Side::Server => send::path_to_client(&self.settings, connection),
                    Side::Client => send::path_to_server(&self.settings, &self.neighbours, connection)?,
                };
                let quote = translate_quote(version, original, &quoted, &path, seq).ok_or(DropReason::IcmpUnwanted)?;
                self.lower_debt(slot, towards, complaint);
                self.emit_icmp(&path.envelope(), complaint, &quote, path.device, out)
            }
        }
    }

    /// What we owe is cut into segments by us: they must fit the path, too.
    fn lower_debt(&mut self, slot: u32, towards: Side, complaint: Complaint) {
        let (Complaint::TooBig(mtu), Side::Server) = (complaint, towards) else {
            return;
        };
        let owed = self
            .connections
            .get(slot)
            .and_then(|connection| connection.spliced())
            .map(|spliced| spliced.owed);
        if let Some(debt) = owed.and_then(|index| self.owed.get_mut(index)) {
            let options = if debt.timestamps.is_some() { 12 } else { 0 };
            let mtu = mtu.max(MTU_FLOOR[0]).min(u32::from(u16::MAX)) as u16;
            debt.mss = debt.mss.min(mtu - 60 - options);
        }
    }

    /// Tells the sender of a packet that the link it must leave by is too small (RFC 1191 4, RFC 8201 4).
    pub(super) fn send_too_big(
        &mut self,
        now: Instant,
        incoming: &Incoming<P::Buffer>,
        mtu: u16,
        out: &mut impl Outbox<P::Buffer>,
    ) {
        let layout = incoming.segment.layout;
        let Some(original) = incoming
            .buffer
            .data()
            .get(usize::from(layout.l3)..usize::from(layout.end))
        else {
            return;
        };
        let may_be_fragmented =
            layout.version == IpVersion::V4 && original.get(6).is_some_and(|flags| flags & 0x40 == 0);
        if may_be_fragmented {
            return;
        }
        if !self.answers.take(now) {
            return self.drops.add(DropReason::RateLimited, 1);
        }
        let path = self.path_back(&incoming.segment);
        let complaint = Complaint::TooBig(u32::from(mtu));
        if let Err(reason) = self.emit_icmp(&path.envelope(), complaint, original, path.device, out) {
            self.drops.add(reason, 1);
        }
    }

    fn emit_icmp(
        &mut self,
        envelope: &Envelope,
        complaint: Complaint,
        original: &[u8],
        device: e2d2::port::PortId,
        out: &mut impl Outbox<P::Buffer>,
    ) -> Result<(), DropReason> {
        let mut buffer = self.pool.take().ok_or(DropReason::NoBuffer)?;
        write(envelope, complaint, original, &mut buffer).map_err(|_| DropReason::NoBuffer)?;
        out.send(device, buffer);
        Ok(())
    }
}

/// What an ICMP packet says and about which packet.
fn read(frame: &[u8], kind: Kind) -> Option<(IpVersion, Complaint, &[u8])> {
    match kind {
        Kind::Icmpv4 { l4, end, .. } => {
            let message = frame.get(usize::from(l4)..usize::from(end))?;
            let (complaint, original) = match Icmpv4Repr::parse(message).ok()? {
                Icmpv4Repr::Unreachable {
                    code: unreachable_code::FRAGMENTATION_NEEDED,
                    next_hop_mtu,
                    original,
                } => (Complaint::TooBig(u32::from(next_hop_mtu).max(MTU_FLOOR[0])), original),
                Icmpv4Repr::Unreachable { code, original, .. } => (Complaint::Unreachable(code), original),
                Icmpv4Repr::TimeExceeded { code, original } => (Complaint::TimeExceeded(code), original),
                _ => return None,
            };
            Some((IpVersion::V4, complaint, original))
        }
        Kind::Icmpv6 { l3, l4, end } => {
            let header = Ipv6Header(frame.get(usize::from(l3)..)?.first_chunk()?);
            let message = frame.get(usize::from(l4)..usize::from(end))?;
            let (complaint, original) = match Icmpv6Repr::parse(header, message).ok()? {
                Icmpv6Repr::PacketTooBig { mtu, original } => (Complaint::TooBig(mtu.max(MTU_FLOOR[1])), original),
                Icmpv6Repr::Unreachable { code, original } => (Complaint::Unreachable(code), original),
                Icmpv6Repr::TimeExceeded { code, original } => (Complaint::TimeExceeded(code), original),
                _ => return None,
            };
            Some((IpVersion::V6, complaint, original))
        }
        Kind::Tcp(_) | Kind::Arp | Kind::Other { .. } => None,
    }
}

fn write<B: PacketBuffer>(
    envelope: &Envelope,
    complaint: Complaint,
    original: &[u8],
    buffer: &mut B,
) -> Result<(), EmitError> {
    if envelope.dst_addr.is_ipv4() {
        let repr = match complaint {
            Complaint::Unreachable(code) => Icmpv4Repr::Unreachable {
                code,
                next_hop_mtu: 0,
                original,
            },
            Complaint::TooBig(mtu) => Icmpv4Repr::Unreachable {
                code: unreachable_code::FRAGMENTATION_NEEDED,
                next_hop_mtu: mtu.min(u32::from(u16::MAX)) as u16,
                original,
            },
            Complaint::TimeExceeded(code) => Icmpv4Repr::TimeExceeded { code, original },
        };
        return repr.emit(envelope, buffer);
    }
    let repr = match complaint {
        Complaint::Unreachable(code) => Icmpv6Repr::Unreachable { code, original },
        Complaint::TooBig(mtu) => Icmpv6Repr::PacketTooBig { mtu, original },
        Complaint::TimeExceeded(code) => Icmpv6Repr::TimeExceeded { code, original },
    };
    repr.emit(envelope, buffer)
}

/// The quoted packet as the receiver of `path` sent it: its addresses, ports and number, and no more of TCP than that.
fn translate_quote(
    version: IpVersion,
    original: &[u8],
    quoted: &QuotedTcp,
    path: &Path,
    seq: SeqNum,
) -> Option<ArrayVec<u8, MAX_QUOTE>> {
    let l4 = usize::from(quoted.l4);
    let mut copy: ArrayVec<u8, MAX_QUOTE> = original.get(..l4 + 8)?.try_into().ok()?;
    let tcp = copy.get_mut(l4..)?.first_chunk_mut::<8>()?;
    tcp[..2].copy_from_slice(&path.destination_port.to_be_bytes());
    tcp[2..4].copy_from_slice(&path.source_port.to_be_bytes());
    tcp[4..].copy_from_slice(&seq.0.to_be_bytes());
    // The path leads to who sent the packet: its source is the path's destination.
    let (source, destination) = (address_of(path.destination), address_of(path.source));
    match (version, source, destination) {
        (IpVersion::V4, std::net::IpAddr::V4(source), std::net::IpAddr::V4(destination)) => {
            let header = copy.get_mut(..l4)?;
            header.get_mut(12..16)?.copy_from_slice(&source.octets());
            header.get_mut(16..20)?.copy_from_slice(&destination.octets());
            header.get_mut(10..12)?.fill(0);
            let sum = e2d2::wire::checksum::internet(header);
            header.get_mut(10..12)?.copy_from_slice(&sum.to_be_bytes());
        }
        (IpVersion::V6, std::net::IpAddr::V6(source), std::net::IpAddr::V6(destination)) => {
            copy.get_mut(8..24)?.copy_from_slice(&source.octets());
            copy.get_mut(24..40)?.copy_from_slice(&destination.octets());
        }
        _ => return None,
    }
    Some(copy)
}

/// The sender of a segment that is too big hears of it at most this often: it shares the limit for strangers.
pub(super) fn is_too_big(segment: &Segment, mtu: u16) -> bool {
    segment.layout.end - segment.layout.l3 > mtu
}
