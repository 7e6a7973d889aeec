//! Frames that nobody answers: each is made from random numbers and forgotten.

use std::net::{IpAddr, SocketAddr};

use e2d2::buffer::PacketBuffer;
use e2d2::wire::ipv4::Ipv4Header;
use e2d2::wire::tcp::{TcpFlags, TcpOptions, TcpRepr};
use e2d2::wire::{Envelope, MacAddr, icmpv4::Icmpv4Repr};

use super::{AttackSettings, Kind, Random};

/// Where the IP header of an untagged frame begins.
const L3: usize = 14;

/// IPv4's flags and offset, from the beginning of its header.
const FRAGMENT_FIELD: usize = 6;

/// RFC 791 3.1: more fragments follow.
const MORE_FRAGMENTS: u16 = 0x2000;

/// Length of a data flood's payload.
const DATA: [u8; 100] = [b'x'; 100];

/// Writes the next frame; returns whether it was written.
pub(super) fn write<B: PacketBuffer>(
    settings: &AttackSettings,
    random: &mut Random,
    mac: MacAddr,
    buffer: &mut B,
) -> bool {
    let target = settings.targets[random.below(settings.targets.len() as u32) as usize];
    let source = match settings.kind {
        Kind::Land => target,
        _ => source(settings, random),
    };
    let segment = segment(settings, random, mac, (source, target));
    match settings.kind {
        Kind::Fragments => segment.emit(buffer).is_ok() && fragment(random, buffer),
        Kind::Icmp => complain(&segment, random, buffer),
        _ => segment.emit(buffer).is_ok(),
    }
}

fn source(settings: &AttackSettings, random: &mut Random) -> SocketAddr {
    match &settings.victims {
        Some(victims) => {
            let count = u32::from(victims.ports.end() - victims.ports.start()) + 1;
            let port = victims.ports.start() + random.below(count) as u16;
            SocketAddr::new(victims.addresses.at(random.below(victims.addresses.count())), port)
        }
        None => {
            let port = 1024 + random.below(64_512) as u16;
            SocketAddr::new(settings.sources.at(random.below(settings.sources.count())), port)
        }
    }
}

fn segment(
    settings: &AttackSettings,
    random: &mut Random,
    mac: MacAddr,
    (source, target): (SocketAddr, SocketAddr),
) -> TcpRepr<'static> {
    let numbers = random.next();
    let (flags, payload): (_, &'static [u8]) = match settings.kind {
        Kind::Syn | Kind::Land => (TcpFlags::SYN, b""),
        Kind::Rst => (TcpFlags::RST, b""),
        Kind::Fin => (TcpFlags::FIN | TcpFlags::ACK, b""),
        Kind::Data | Kind::Fragments => (TcpFlags::PSH | TcpFlags::ACK, &DATA),
        Kind::ChristmasTree if numbers & 1 == 0 => (TcpFlags::FIN | TcpFlags::PSH | TcpFlags::URG, b""),
        Kind::ChristmasTree => (TcpFlags::all(), b""),
        Kind::Ack | Kind::Icmp | Kind::Silent | Kind::Slow | Kind::Hoarder | Kind::Holder => (TcpFlags::ACK, b""),
    };
    let options = match settings.kind {
        Kind::Syn | Kind::Land => TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some((random.next() as u32, 0)),
        },
        _ => TcpOptions::NONE,
    };
    TcpRepr {
        envelope: Envelope {
            src_mac: mac,
            dst_mac: settings.next_hop,
            src_addr: source.ip(),
            dst_addr: target.ip(),
            hop_limit: 64,
        },
        src_port: source.port(),
        dst_port: target.port(),
        seq: numbers as u32,
        ack: if flags.contains(TcpFlags::ACK) {
            (numbers >> 32) as u32
        } else {
            0
        },
        flags,
        window: 64_240,
        options,
        sack_blocks: &[],
        payload,
    }
}

/// Makes a fragment of the packet: the first one, or one that begins 8 or 16 bytes later and so overlaps its TCP header
/// (RFC 1858 3 and 4).
fn fragment<B: PacketBuffer>(random: &mut Random, buffer: &mut B) -> bool {
    let draw = random.next();
    let field = match draw % 3 {
        0 => MORE_FRAGMENTS,
        1 => MORE_FRAGMENTS | 1,
        _ => 2,
    };
    let Some(header) = buffer.data_mut().get_mut(L3..) else {
        return false;
    };
    let Some(bytes) = header.get_mut(FRAGMENT_FIELD..FRAGMENT_FIELD + 2) else {
        return false;
    };
    bytes.copy_from_slice(&field.to_be_bytes());
    let Some((header, _)) = header.split_first_chunk_mut::<20>() else {
        return false;
    };
    let mut header = Ipv4Header(header);
    header.set_ident((draw >> 32) as u16 % 16);
    header.fill_checksum();
    true
}

/// Writes an ICMP error about the segment as if the target had sent it to the source.
fn complain<B: PacketBuffer>(segment: &TcpRepr<'_>, random: &mut Random, buffer: &mut B) -> bool {
    let (IpAddr::V4(us), IpAddr::V4(them)) = (segment.envelope.dst_addr, segment.envelope.src_addr) else {
        return false;
    };
    // RFC 792: the IP header and eight bytes of what followed it.
    let mut quote = [0; 28];
    let (header, tcp) = quote.split_at_mut(20);
    let Some(header) = header.first_chunk_mut::<20>() else {
        return false;
    };
    let mut header = Ipv4Header(header);
    header.init(40, 6, 63, us, them);
    header.fill_checksum();
    tcp[..2].copy_from_slice(&segment.dst_port.to_be_bytes());
    tcp[2..4].copy_from_slice(&segment.src_port.to_be_bytes());
    tcp[4..].copy_from_slice(&segment.seq.to_be_bytes());
    let original = &quote;
    let message = match random.below(6) {
        0 => Icmpv4Repr::Unreachable {
            code: 1,
            next_hop_mtu: 0,
            original,
        },
        1 => Icmpv4Repr::Unreachable {
            code: 3,
            next_hop_mtu: 0,
            original,
        },
        2 | 3 => Icmpv4Repr::Unreachable {
            code: 4,
            next_hop_mtu: 68 + random.below(1400) as u16,
            original,
        },
        4 => Icmpv4Repr::TimeExceeded { code: 0, original },
        _ => Icmpv4Repr::ParameterProblem {
            code: 0,
            pointer: 8,
            original,
        },
    };
    message.emit(&segment.envelope, buffer).is_ok()
}
