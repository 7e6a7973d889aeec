//! What a NIC reads of a TCP packet to choose its queue.

use std::net::IpAddr;

use crate::rss::Toeplitz;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
const TCP: u8 = 6;

/// Addresses and ports of a TCP packet that is no fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tuple {
    V4 {
        src: [u8; 4],
        dst: [u8; 4],
        sport: u16,
        dport: u16,
    },
    V6 {
        src: [u8; 16],
        dst: [u8; 16],
        sport: u16,
        dport: u16,
    },
}

impl Tuple {
    /// Of a frame with two VLAN tags at most. Nothing for anything but TCP, for fragments (whose ports are not in all of them),
    /// behind IPv6 extension headers, and where the frame ends too early. Checksums do not matter: the packet is only put
    /// somewhere.
    pub(super) fn read(frame: &[u8]) -> Option<Self> {
        let (mut ethertype, mut packet) = (word(frame, 12)?, frame.get(14..)?);
        for _ in 0..2 {
            if ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_QINQ {
                (ethertype, packet) = (word(packet, 2)?, packet.get(4..)?);
            }
        }
        match ethertype {
            ETHERTYPE_IPV4 => Self::read_ipv4(packet),
            ETHERTYPE_IPV6 => Self::read_ipv6(packet),
            _ => None,
        }
    }

    fn read_ipv4(packet: &[u8]) -> Option<Self> {
        let header: &[u8; 20] = packet.first_chunk()?;
        let length = usize::from(header[0] & 0x0f) * 4;
        // RFC 791 3.1: more fragments, or an offset.
        let is_fragment = word(header, 6)? & 0x3fff != 0;
        if header[0] >> 4 != 4 || length < 20 || is_fragment || header[9] != TCP {
            return None;
        }
        let tcp = packet.get(length..)?;
        Some(Self::V4 {
            src: *header[12..].first_chunk()?,
            dst: *header[16..].first_chunk()?,
            sport: word(tcp, 0)?,
            dport: word(tcp, 2)?,
        })
    }

    fn read_ipv6(packet: &[u8]) -> Option<Self> {
        let header: &[u8; 40] = packet.first_chunk()?;
        if header[0] >> 4 != 6 || header[6] != TCP {
            return None;
        }
        Some(Self::V6 {
            src: *header[8..].first_chunk()?,
            dst: *header[24..].first_chunk()?,
            sport: word(packet, 40)?,
            dport: word(packet, 42)?,
        })
    }

    pub(super) fn hash(&self, toeplitz: &Toeplitz) -> u32 {
        match *self {
            Self::V4 { src, dst, sport, dport } => toeplitz.tcp4(src, dst, sport, dport),
            Self::V6 { src, dst, sport, dport } => toeplitz.tcp6(src, dst, sport, dport),
        }
    }

    pub(super) fn destination(&self) -> IpAddr {
        match *self {
            Self::V4 { dst, .. } => IpAddr::from(dst),
            Self::V6 { dst, .. } => IpAddr::from(dst),
        }
    }

    pub(super) fn destination_port(&self) -> u16 {
        match *self {
            Self::V4 { dport, .. } | Self::V6 { dport, .. } => dport,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}
