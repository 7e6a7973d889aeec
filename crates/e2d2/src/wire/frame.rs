//! The one parse of a received frame.
//!
//! [`parse`] decides once whether a frame is sound enough to work with, and hands out offsets that have been checked
//! against the frame's length. Everything after it reads fields at those offsets.
//!
//! A frame that is not ours to handle is [`Kind::Other`], not an error: it may be meant for the host's own stack. An
//! error means that no one should handle it; each [`ParseError`] is one counted reason to drop.
//!
//! Budget: ≤ 20 cycles for a TCP segment whose headers are in L1, IPv4 header checksum included
//! (`benches/wire.rs`).

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::buffer::{ChecksumStatus, RxInfo};
use crate::port::PortId;

const ETHERNET_HEADER: usize = 14;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_HEADER: usize = 20;
const ICMP_HEADER: usize = 8;

/// Which IP a packet is of.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum IpVersion {
    /// RFC 791.
    V4,
    /// RFC 8200.
    V6,
}

/// Where the parts of a TCP packet begin, in bytes from the start of the frame.
///
/// From [`parse`] it always holds that `14 = l3`, `l3 + IP header = l4`, `l4 + 20 ≤ payload ≤ end ≤ frame.len()`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct TcpLayout {
    /// The IP version.
    pub version: IpVersion,
    /// The IP header.
    pub l3: u16,
    /// The TCP header.
    pub l4: u16,
    /// The TCP payload: behind the TCP options.
    pub payload: u16,
    /// The end of the IP packet (`l3` + total length). What follows in the frame is Ethernet padding.
    pub end: u16,
}

impl TcpLayout {
    /// Bytes of TCP payload.
    #[inline]
    pub const fn payload_len(&self) -> u16 {
        self.end.saturating_sub(self.payload)
    }
}

/// What a frame carries.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// TCP over IPv4 or IPv6. The TCP checksum has not been looked at.
    Tcp(TcpLayout),
    /// ARP. Nothing but the EtherType has been looked at.
    Arp,
    /// ICMP over IPv4, at least 8 bytes. The ICMP checksum has not been looked at.
    Icmpv4 {
        /// Offset of the IP header.
        l3: u16,
        /// Offset of the ICMP header.
        l4: u16,
        /// End of the IP packet.
        end: u16,
    },
    /// ICMPv6, at least 8 bytes. The ICMP checksum has not been looked at.
    Icmpv6 {
        /// Offset of the IP header.
        l3: u16,
        /// Offset of the ICMP header.
        l4: u16,
        /// End of the IP packet.
        end: u16,
    },
    /// Anything else: another EtherType (a VLAN tag, too), or another protocol over a sound IP header.
    Other {
        /// The EtherType, or the length if it is an IEEE 802.3 frame.
        ethertype: u16,
    },
}

impl Kind {
    /// The end of the IP packet in the frame, if it is one that has been looked into.
    pub const fn end(&self) -> Option<u16> {
        match *self {
            Self::Tcp(TcpLayout { end, .. }) | Self::Icmpv4 { end, .. } | Self::Icmpv6 { end, .. } => Some(end),
            Self::Arp | Self::Other { .. } => None,
        }
    }
}

/// Why a frame is not handled by anyone.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ParseError {
    /// The frame or the IP payload ends inside a header.
    #[error("the frame ends inside a header")]
    TooShort,
    /// The EtherType and the version in the IP header differ.
    #[error("the IP version is not what the EtherType says")]
    BadVersion,
    /// The IPv4 header length is below 20 or above the total length.
    #[error("the IPv4 header length is below 20 or above the total length")]
    BadHeaderLength,
    /// The IP length goes beyond the frame.
    #[error("the IP length goes beyond the frame")]
    BadTotalLength,
    /// The IPv4 header checksum is wrong.
    #[error("the IPv4 header checksum is wrong")]
    BadIpChecksum,
    /// A fragment; this engine does not reassemble.
    #[error("the packet is a fragment")]
    Fragment,
    /// An IPv6 extension header other than a fragment header.
    #[error("the packet has an IPv6 extension header")]
    ExtensionHeader,
    /// The TCP data offset is below 5 or beyond the packet.
    #[error("the TCP data offset is below 5 or beyond the packet")]
    BadDataOffset,
    /// No host can have this source address (Ethernet or IP): group, unspecified, loopback, IPv4-mapped.
    #[error("no host can have this source address")]
    MartianSource,
    /// The destination address (Ethernet or IP) names no single host, or one that must not appear on a link.
    #[error("the destination address names no single host on a link")]
    MartianDestination,
}

impl ParseError {
    /// Every reason, in the order of [`ParseError::index`].
    pub const ALL: [Self; 10] = [
        Self::TooShort,
        Self::BadVersion,
        Self::BadHeaderLength,
        Self::BadTotalLength,
        Self::BadIpChecksum,
        Self::Fragment,
        Self::ExtensionHeader,
        Self::BadDataOffset,
        Self::MartianSource,
        Self::MartianDestination,
    ];

    /// How many reasons there are.
    pub const COUNT: usize = Self::ALL.len();

    /// Its place among all reasons, for an array of counters.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in counters and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooShort => "too_short",
            Self::BadVersion => "bad_ip_version",
            Self::BadHeaderLength => "bad_ip_header_length",
            Self::BadTotalLength => "bad_ip_total_length",
            Self::BadIpChecksum => "bad_ip_checksum",
            Self::Fragment => "fragment",
            Self::ExtensionHeader => "ipv6_extension_header",
            Self::BadDataOffset => "bad_tcp_data_offset",
            Self::MartianSource => "martian_source",
            Self::MartianDestination => "martian_destination",
        }
    }
}

/// A received packet after the parse: its buffer without Ethernet padding, the port it came from and what it is.
#[derive(Debug)]
pub struct Packet<B> {
    /// The frame, cut at [`Kind::end`].
    pub buffer: B,
    /// The port that received it.
    pub port: PortId,
    /// What it carries.
    pub kind: Kind,
}

/// Parses a frame of which the port said nothing; see [`parse_with`].
///
/// # Errors
/// See [`ParseError`].
#[inline]
pub fn parse(frame: &[u8]) -> Result<Kind, ParseError> {
    parse_with(frame, RxInfo::default())
}

/// Parses a frame, from its first Ethernet byte. An IPv4 header checksum that the port has verified is not computed again.
///
/// # Errors
/// See [`ParseError`].
#[inline]
pub fn parse_with(frame: &[u8], rx_info: RxInfo) -> Result<Kind, ParseError> {
    let Some(ethernet) = frame.first_chunk::<ETHERNET_HEADER>() else {
        return Err(ParseError::TooShort);
    };
    match u16::from_be_bytes([ethernet[12], ethernet[13]]) {
        0x0800 => parse_ipv4(frame, rx_info.ip_checksum),
        0x86dd => parse_ipv6(frame),
        0x0806 => Ok(Kind::Arp),
        ethertype => Ok(Kind::Other { ethertype }),
    }
}

#[inline]
fn parse_ipv4(frame: &[u8], checksum: ChecksumStatus) -> Result<Kind, ParseError> {
    let Some(headers) = frame.first_chunk::<{ ETHERNET_HEADER + IPV4_HEADER }>() else {
        return Err(ParseError::TooShort);
    };
    let Some(ip) = headers.last_chunk::<IPV4_HEADER>() else {
        return Err(ParseError::TooShort);
    };
    if ip[0] >> 4 != 4 {
        return Err(ParseError::BadVersion);
    }
    let header_len = usize::from(ip[0] & 0x0f) * 4;
    let total_len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    if header_len < IPV4_HEADER || header_len > total_len {
        return Err(ParseError::BadHeaderLength);
    }
    let end = end_of_packet(frame, ETHERNET_HEADER + total_len)?;
    let is_good = match checksum {
        ChecksumStatus::Good => true,
        ChecksumStatus::Bad => false,
        ChecksumStatus::Unknown => ipv4_header_sums_up(&frame[ETHERNET_HEADER..ETHERNET_HEADER + header_len]),
    };
    if !is_good {
        return Err(ParseError::BadIpChecksum);
    }
    // RFC 791: more-fragments flag and fragment offset; the reserved and don't-fragment flags do not matter here.
    if u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0 {
        return Err(ParseError::Fragment);
    }

    let l4 = (ETHERNET_HEADER + header_len) as u16;
    match ip[9] {
        6 => {
            check_ethernet_unicast(headers[0], headers[6])?;
            check_ipv4_addresses(ip)?;
            parse_tcp(frame, IpVersion::V4, l4, end)
        }
        1 => {
            check_ethernet_unicast(headers[0], headers[6])?;
            check_ipv4_addresses(ip)?;
            check_icmp_fits(l4, end)?;
            Ok(Kind::Icmpv4 {
                l3: ETHERNET_HEADER as u16,
                l4,
                end,
            })
        }
        _ => Ok(Kind::Other { ethertype: 0x0800 }),
    }
}

#[inline]
fn parse_ipv6(frame: &[u8]) -> Result<Kind, ParseError> {
    let Some(headers) = frame.first_chunk::<{ ETHERNET_HEADER + IPV6_HEADER }>() else {
        return Err(ParseError::TooShort);
    };
    let Some(ip) = headers.last_chunk::<IPV6_HEADER>() else {
        return Err(ParseError::TooShort);
    };
    if ip[0] >> 4 != 6 {
        return Err(ParseError::BadVersion);
    }
    // A jumbogram (RFC 2675) has 0 here and a hop-by-hop header, which is refused below.
    let payload_len = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    let end = end_of_packet(frame, ETHERNET_HEADER + IPV6_HEADER + payload_len)?;

    let l4 = (ETHERNET_HEADER + IPV6_HEADER) as u16;
    match ip[6] {
        6 => {
            check_ethernet_unicast(headers[0], headers[6])?;
            check_ipv6_addresses(ip, false)?;
            parse_tcp(frame, IpVersion::V6, l4, end)
        }
        58 => {
            // Neighbour discovery goes to groups and starts from the unspecified address; all else is as for TCP.
            check_ethernet_unicast(0, headers[6])?;
            check_ipv6_addresses(ip, true)?;
            check_icmp_fits(l4, end)?;
            Ok(Kind::Icmpv6 {
                l3: ETHERNET_HEADER as u16,
                l4,
                end,
            })
        }
        44 => Err(ParseError::Fragment),
        // IANA's list of extension headers: hop-by-hop, routing, ESP, AH, destination options, mobility, HIP, shim6,
        // and the two for experiments.
        0 | 43 | 50 | 51 | 60 | 135 | 139 | 140 | 253 | 254 => Err(ParseError::ExtensionHeader),
        _ => Ok(Kind::Other { ethertype: 0x86dd }),
    }
}

#[inline]
fn parse_tcp(frame: &[u8], version: IpVersion, l4: u16, end: u16) -> Result<Kind, ParseError> {
    let Some(segment) = frame.get(usize::from(l4)..usize::from(end)) else {
        return Err(ParseError::TooShort);
    };
    let Some(header) = segment.first_chunk::<TCP_HEADER>() else {
        return Err(ParseError::TooShort);
    };
    let header_len = usize::from(header[12] >> 4) * 4;
    if header_len < TCP_HEADER || header_len > segment.len() {
        return Err(ParseError::BadDataOffset);
    }
    let payload = l4 + header_len as u16;
    Ok(Kind::Tcp(TcpLayout {
        version,
        l3: ETHERNET_HEADER as u16,
        l4,
        payload,
        end,
    }))
}

/// Offsets are 16 bits wide: the last 14 lengths that an IPv4 header can express do not fit behind an Ethernet header.
#[inline]
fn end_of_packet(frame: &[u8], end: usize) -> Result<u16, ParseError> {
    if end > frame.len() {
        return Err(ParseError::BadTotalLength);
    }
    u16::try_from(end).map_err(|_| ParseError::BadTotalLength)
}

#[inline]
fn check_icmp_fits(l4: u16, end: u16) -> Result<(), ParseError> {
    if usize::from(end - l4) < ICMP_HEADER {
        Err(ParseError::TooShort)
    } else {
        Ok(())
    }
}

/// RFC 1122 3.3.6 and 4.2.3.10: what came as a link-layer broadcast is not answered. Takes the addresses' first bytes.
#[inline]
fn check_ethernet_unicast(destination: u8, source: u8) -> Result<(), ParseError> {
    if source & 1 != 0 {
        Err(ParseError::MartianSource)
    } else if destination & 1 != 0 {
        Err(ParseError::MartianDestination)
    } else {
        Ok(())
    }
}

#[inline]
fn check_ipv4_addresses(ip: &[u8; IPV4_HEADER]) -> Result<(), ParseError> {
    if is_martian_ipv4(Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15])) {
        Err(ParseError::MartianSource)
    } else if is_martian_ipv4(Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19])) {
        Err(ParseError::MartianDestination)
    } else {
        Ok(())
    }
}

#[inline]
fn check_ipv6_addresses(ip: &[u8; IPV6_HEADER], is_icmp: bool) -> Result<(), ParseError> {
    let (Some(source), Some(destination)) = (ip[8..].first_chunk::<16>(), ip[24..].first_chunk::<16>()) else {
        return Err(ParseError::TooShort);
    };
    let (source, destination) = (Ipv6Addr::from(*source), Ipv6Addr::from(*destination));
    if is_martian_ipv6(source) && !(is_icmp && source.is_unspecified()) {
        Err(ParseError::MartianSource)
    } else if is_martian_ipv6(destination) && !(is_icmp && destination.is_multicast()) {
        Err(ParseError::MartianDestination)
    } else {
        Ok(())
    }
}

/// Whether no single host on a link has the address: `0.0.0.0/8`, `127.0.0.0/8` (RFC 1122 3.2.1.3), multicast and
/// limited broadcast. Reserved space (`240.0.0.0/4`) passes, as it does in Linux.
#[inline]
pub fn is_martian_ipv4(address: Ipv4Addr) -> bool {
    let bits = address.to_bits();
    matches!(bits >> 24, 0 | 127) || bits >> 28 == 0xe || bits == u32::MAX
}

/// Whether no single host on a link has the address: unspecified, loopback and the rest of `::/96`, IPv4-mapped
/// (which would collide with the engine's form of IPv4 addresses), multicast.
#[inline]
pub fn is_martian_ipv6(address: Ipv6Addr) -> bool {
    let bits = address.to_bits();
    bits >> 120 == 0xff || matches!(bits >> 32, 0 | 0xffff)
}

/// Whether an IPv4 header, options included, adds up to 0xffff as a right one does.
#[inline]
fn ipv4_header_sums_up(header: &[u8]) -> bool {
    let sum: u64 = header
        .chunks_exact(4)
        .map(|word| u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]])))
        .sum();
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    // A ones-complement sum is all ones exactly if it is a multiple of 0xffff (and not of nothing but zeros).
    sum != 0 && sum.is_multiple_of(0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_in_order_and_named_apart() {
        let mut names: Vec<_> = ParseError::ALL.iter().map(|reason| reason.name()).collect();
        for (index, reason) in ParseError::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ParseError::COUNT);
    }
}
