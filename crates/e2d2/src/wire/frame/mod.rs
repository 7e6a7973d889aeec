//! The one parse of a received frame.
//!
//! [`parse`] decides once whether a frame is sound enough to work with, and hands out offsets that have been checked
//! against the frame's length. Everything after it reads fields at those offsets.
//!
//! A frame that is not ours to handle is [`Kind::Other`], not an error: it may be meant for the host's own stack. An
//! error means that no one should handle it; each [`ParseError`] is one counted reason to drop.
//!
//! Budget: ≤ 20 cycles for a TCP segment whose headers are in L1, IPv4 header checksum included; 14 (IPv4) and 16 (IPv6)
//! on a 2.6 GHz EPYC. Taking a frame apart for writing ([`TcpLayout::split_mut`]) costs 4 (`benches/wire.rs`).

use crate::port::PortId;
use crate::wire::{ipv4, ipv6, tcp};

mod layout;
mod parse;

pub use layout::{IpHeader, TcpLayout, TcpParts, TcpPartsMut};
pub use parse::{is_martian_ipv4, is_martian_ipv6, parse, parse_with};

/// Which IP a packet is of.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum IpVersion {
    /// RFC 791.
    V4,
    /// RFC 8200.
    V6,
}

impl IpVersion {
    /// The version that this one is not.
    #[inline]
    pub const fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }

    /// Bytes of an IP header without options.
    #[inline]
    pub const fn header_len(self) -> u16 {
        match self {
            Self::V4 => ipv4::HEADER_LEN as u16,
            Self::V6 => ipv6::HEADER_LEN as u16,
        }
    }

    /// Bytes of an IP header and a TCP header, both without options.
    #[inline]
    pub const fn header_len_with_tcp(self) -> u16 {
        self.header_len() + tcp::HEADER_LEN as u16
    }

    /// The least path MTU that is believed: what every IPv4 host takes (RFC 791), and what every IPv6 link carries
    /// (RFC 8200 5). Anything below is an attack or a mistake.
    #[inline]
    pub const fn min_mtu(self) -> u16 {
        match self {
            Self::V4 => 576,
            Self::V6 => ipv6::MIN_MTU,
        }
    }

    /// RFC 9293 3.7.1: the MSS of a peer that names none.
    #[inline]
    pub const fn default_mss(self) -> u16 {
        self.min_mtu() - self.header_len_with_tcp()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_both_versions() {
        let sizes = |version: IpVersion| {
            let headers = (version.header_len(), version.header_len_with_tcp());
            (headers, version.min_mtu(), version.default_mss())
        };
        assert_eq!(sizes(IpVersion::V4), ((20, 40), 576, 536));
        assert_eq!(sizes(IpVersion::V6), ((40, 60), 1280, 1220));
    }

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
