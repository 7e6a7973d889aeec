//! From a frame's bytes to its kind; see the module above.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::{IpVersion, Kind, ParseError, TcpLayout};
use crate::buffer::{ChecksumStatus, RxInfo};
use crate::wire::ethernet::{self, EthernetHeader, ethertype};
use crate::wire::ipv4::{self, Ipv4Header};
use crate::wire::ipv6::{self, Ipv6Header, is_extension_header};
use crate::wire::tcp::{self, TcpHeader};
use crate::wire::{checksum, protocol};

/// Where every IP header is: VLAN tags have been stripped before.
const L3: usize = ethernet::HEADER_LEN;

/// RFC 792, RFC 4443 2.1: type, code, checksum, and the four bytes that every message we act on has.
const ICMP_HEADER_LEN: u16 = 8;

/// Parses a frame of which the port said nothing; see [`parse_with`].
///
/// # Errors
/// See [`ParseError`].
#[inline]
pub fn parse(frame: &[u8]) -> Result<Kind, ParseError> {
    parse_with(frame, RxInfo::default())
}

/// Parses a frame, from its first Ethernet byte. An IPv4 header checksum that the port has verified is not computed
/// again.
///
/// # Errors
/// See [`ParseError`].
#[inline]
pub fn parse_with(frame: &[u8], rx_info: RxInfo) -> Result<Kind, ParseError> {
    if let Some(layout) = parse_usual(frame, rx_info.ip_checksum) {
        return Ok(Kind::Tcp(layout));
    }
    parse_unusual(frame, rx_info)
}

/// What nearly every packet is: TCP over IPv4 without options, not a fragment, between two stations and two hosts, and
/// sound. `None` says only that it needs a closer look.
#[inline(always)]
fn parse_usual(frame: &[u8], ip_checksum: ChecksumStatus) -> Option<TcpLayout> {
    const L4: usize = L3 + ipv4::HEADER_LEN;
    let headers = frame.first_chunk::<{ L4 + tcp::HEADER_LEN }>()?;
    let ip = Ipv4Header(headers[L3..].first_chunk::<{ ipv4::HEADER_LEN }>()?);
    let end = L3 + usize::from(ip.total_len());
    let payload = L4 + usize::from(headers[L4 + 12] >> 4) * 4;
    let is_usual = u16::from_be_bytes([headers[12], headers[13]]) == ethertype::IPV4
        && headers[L3] == 0x45
        && ip.protocol() == protocol::TCP
        && !ip.is_fragment()
        && (headers[0] | headers[6]) & 1 == 0
        && is_plain_ipv4(ip.src_addr())
        && is_plain_ipv4(ip.dst_addr())
        && (L4 + tcp::HEADER_LEN..=end).contains(&payload)
        && end <= frame.len().min(usize::from(u16::MAX))
        && (ip_checksum == ChecksumStatus::Good || ip_checksum == ChecksumStatus::Unknown && sums_up(ip.0));
    is_usual.then_some(TcpLayout {
        version: IpVersion::V4,
        l3: L3 as u16,
        l4: L4 as u16,
        payload: payload as u16,
        end: end as u16,
    })
}

/// The networks 1 to 126 and 128 to 223: no address in them is martian.
#[inline(always)]
fn is_plain_ipv4(address: Ipv4Addr) -> bool {
    let network = address.octets()[0];
    network.wrapping_sub(1) < 223 && network != 127
}

#[inline(never)]
fn parse_unusual(frame: &[u8], rx_info: RxInfo) -> Result<Kind, ParseError> {
    let link = EthernetHeader(frame.first_chunk::<L3>().ok_or(ParseError::TooShort)?);
    match link.ethertype() {
        ethertype::IPV4 => parse_ipv4(frame, rx_info.ip_checksum),
        ethertype::IPV6 => parse_ipv6(frame),
        ethertype::ARP => Ok(Kind::Arp),
        ethertype => Ok(Kind::Other { ethertype }),
    }
}

#[inline]
fn parse_ipv4(frame: &[u8], checksum: ChecksumStatus) -> Result<Kind, ParseError> {
    let headers = frame
        .first_chunk::<{ L3 + ipv4::HEADER_LEN }>()
        .ok_or(ParseError::TooShort)?;
    let ip = Ipv4Header(
        headers
            .last_chunk::<{ ipv4::HEADER_LEN }>()
            .ok_or(ParseError::TooShort)?,
    );
    if ip.version() != 4 {
        return Err(ParseError::BadVersion);
    }
    let (header_len, total_len) = (ip.header_len(), usize::from(ip.total_len()));
    if header_len < ipv4::HEADER_LEN || header_len > total_len {
        return Err(ParseError::BadHeaderLength);
    }
    let end = end_of_packet(frame, L3 + total_len)?;
    let is_sound = match checksum {
        ChecksumStatus::Good => true,
        ChecksumStatus::Bad => false,
        ChecksumStatus::Unknown if header_len == ipv4::HEADER_LEN => sums_up(ip.0),
        ChecksumStatus::Unknown => checksum::is_valid(checksum::sum(&frame[L3..L3 + header_len])),
    };
    if !is_sound {
        return Err(ParseError::BadIpChecksum);
    }
    if ip.is_fragment() {
        return Err(ParseError::Fragment);
    }

    let l4 = (L3 + header_len) as u16;
    match ip.protocol() {
        protocol::TCP => {
            check_ethernet_addresses(headers, Groups::Refuse)?;
            check_ipv4_addresses(ip)?;
            parse_tcp(frame, IpVersion::V4, l4, end)
        }
        protocol::ICMP => {
            check_ethernet_addresses(headers, Groups::Refuse)?;
            check_ipv4_addresses(ip)?;
            check_icmp_fits(l4, end)?;
            Ok(Kind::Icmpv4 { l3: L3 as u16, l4, end })
        }
        _ => Ok(Kind::Other {
            ethertype: ethertype::IPV4,
        }),
    }
}

#[inline]
fn parse_ipv6(frame: &[u8]) -> Result<Kind, ParseError> {
    let headers = frame
        .first_chunk::<{ L3 + ipv6::HEADER_LEN }>()
        .ok_or(ParseError::TooShort)?;
    let ip = Ipv6Header(
        headers
            .last_chunk::<{ ipv6::HEADER_LEN }>()
            .ok_or(ParseError::TooShort)?,
    );
    if ip.version() != 6 {
        return Err(ParseError::BadVersion);
    }
    // A jumbogram (RFC 2675) has 0 here and a hop-by-hop header, which is refused below.
    let end = end_of_packet(frame, L3 + ipv6::HEADER_LEN + usize::from(ip.payload_len()))?;

    let l4 = (L3 + ipv6::HEADER_LEN) as u16;
    match ip.next_header() {
        protocol::TCP => {
            check_ethernet_addresses(headers, Groups::Refuse)?;
            check_ipv6_addresses(ip, Groups::Refuse)?;
            parse_tcp(frame, IpVersion::V6, l4, end)
        }
        protocol::ICMPV6 => {
            check_ethernet_addresses(headers, Groups::Accept)?;
            check_ipv6_addresses(ip, Groups::Accept)?;
            check_icmp_fits(l4, end)?;
            Ok(Kind::Icmpv6 { l3: L3 as u16, l4, end })
        }
        protocol::IPV6_FRAGMENT => Err(ParseError::Fragment),
        other if is_extension_header(other) => Err(ParseError::ExtensionHeader),
        _ => Ok(Kind::Other {
            ethertype: ethertype::IPV6,
        }),
    }
}

#[inline(always)]
fn parse_tcp(frame: &[u8], version: IpVersion, l4: u16, end: u16) -> Result<Kind, ParseError> {
    let segment = frame
        .get(usize::from(l4)..usize::from(end))
        .ok_or(ParseError::TooShort)?;
    let header = TcpHeader(
        segment
            .first_chunk::<{ tcp::HEADER_LEN }>()
            .ok_or(ParseError::TooShort)?,
    );
    let header_len = header.header_len();
    if header_len < tcp::HEADER_LEN || header_len > segment.len() {
        return Err(ParseError::BadDataOffset);
    }
    let payload = l4 + header_len as u16;
    Ok(Kind::Tcp(TcpLayout {
        version,
        l3: L3 as u16,
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
    if end - l4 < ICMP_HEADER_LEN {
        Err(ParseError::TooShort)
    } else {
        Ok(())
    }
}

/// Whether a packet may go to a group. Neighbour discovery does, and may come from the unspecified address; nothing else
/// that we act on.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Groups {
    Accept,
    Refuse,
}

/// RFC 1122 3.3.6 and 4.2.3.10: what came as a link-layer broadcast is not answered.
#[inline]
fn check_ethernet_addresses<const N: usize>(headers: &[u8; N], groups: Groups) -> Result<(), ParseError> {
    // The lowest bit of an address's first byte tells groups from stations.
    if headers[6] & 1 != 0 {
        Err(ParseError::MartianSource)
    } else if headers[0] & 1 != 0 && groups == Groups::Refuse {
        Err(ParseError::MartianDestination)
    } else {
        Ok(())
    }
}

#[inline(always)]
fn check_ipv4_addresses(ip: Ipv4Header<&[u8; ipv4::HEADER_LEN]>) -> Result<(), ParseError> {
    if is_martian_ipv4(ip.src_addr()) {
        Err(ParseError::MartianSource)
    } else if is_martian_ipv4(ip.dst_addr()) {
        Err(ParseError::MartianDestination)
    } else {
        Ok(())
    }
}

#[inline]
fn check_ipv6_addresses(ip: Ipv6Header<&[u8; ipv6::HEADER_LEN]>, groups: Groups) -> Result<(), ParseError> {
    let (src, dst) = (ip.src_addr(), ip.dst_addr());
    let accepts_groups = groups == Groups::Accept;
    if is_martian_ipv6(src) && !(accepts_groups && src.is_unspecified()) {
        Err(ParseError::MartianSource)
    } else if is_martian_ipv6(dst) && !(accepts_groups && dst.is_multicast()) {
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
/// (RFC 4291 2.5.5.2: an IPv4 node inside a host; on the wire it could pass for one), multicast.
#[inline]
pub fn is_martian_ipv6(address: Ipv6Addr) -> bool {
    let bits = address.to_bits();
    bits >> 120 == 0xff || matches!(bits >> 32, 0 | 0xffff)
}

/// Whether a header without options adds up as one with a right checksum does.
///
/// Here and not by [`checksum::sum`], as the fixed length lets the compiler do all five words without a loop.
#[inline]
fn sums_up(header: &[u8; ipv4::HEADER_LEN]) -> bool {
    // Whole words: named one by one, the bytes are put together from those that were looked at before.
    let (Some(first), Some(second), Some(last)) = (
        header.first_chunk().copied().map(u64::from_ne_bytes),
        header[8..].first_chunk().copied().map(u64::from_ne_bytes),
        header.last_chunk().copied().map(u32::from_ne_bytes),
    ) else {
        return false;
    };
    let (sum, carry) = first.overflowing_add(second);
    let rest = u64::from(last) + u64::from(carry);
    // 2^16 ≡ 2^32 ≡ 2^64 ≡ 1 modulo 0xffff; the header is not all zeros, as it has a version.
    let sum = (sum >> 32) + (sum & 0xffff_ffff) + rest;
    sum.is_multiple_of(0xffff)
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use test_case::test_case;

    use super::*;
    use crate::buffer::{BufferPool, HeapPool, PacketBuffer};
    use crate::wire::tcp::{TcpFlags, TcpOptions, TcpRepr};
    use crate::wire::{Envelope, MacAddr};

    /// A SYN with 4 bytes of options and 5 of payload.
    fn tcp_frame(src_addr: IpAddr, dst_addr: IpAddr) -> Vec<u8> {
        let repr = TcpRepr {
            envelope: Envelope {
                src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
                dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
                src_addr,
                dst_addr,
                hop_limit: 64,
            },
            src_port: 1,
            dst_port: 2,
            seq: 3,
            ack: 4,
            flags: TcpFlags::SYN,
            window: 5,
            options: TcpOptions {
                mss: Some(1460),
                ..TcpOptions::NONE
            },
            sack_blocks: &[],
            payload: b"12345",
        };
        let mut buffer = HeapPool::new(1, 256).take().expect("fresh");
        repr.emit(&mut buffer).expect("fits");
        buffer.data().to_vec()
    }

    fn v4() -> Vec<u8> {
        tcp_frame([192, 0, 2, 1].into(), [192, 0, 2, 2].into())
    }

    fn v6() -> Vec<u8> {
        tcp_frame(IpAddr::V6([0x20; 16].into()), IpAddr::V6([0x21; 16].into()))
    }

    /// A sound frame but for the bytes that are patched; the IPv4 header checksum is made right again.
    fn patched(mut frame: Vec<u8>, patches: &[(usize, u8)]) -> Vec<u8> {
        for &(at, byte) in patches {
            frame[at] = byte;
        }
        if frame[12..14] == [8, 0] {
            let header_len = (usize::from(frame[14] & 0xf) * 4).clamp(20, frame.len() - 14);
            frame[24..26].fill(0);
            let checksum = checksum::internet(&frame[14..14 + header_len]);
            frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        }
        frame
    }

    const V4: TcpLayout = TcpLayout {
        version: IpVersion::V4,
        l3: 14,
        l4: 34,
        payload: 58,
        end: 63,
    };
    const V6: TcpLayout = TcpLayout {
        version: IpVersion::V6,
        l3: 14,
        l4: 54,
        payload: 78,
        end: 83,
    };

    #[test]
    fn sound_segments_are_laid_out() {
        assert_eq!(parse(&v4()), Ok(Kind::Tcp(V4)));
        assert_eq!(parse(&v6()), Ok(Kind::Tcp(V6)));
    }

    #[test]
    fn ethernet_padding_is_not_payload() {
        for (mut frame, layout) in [(v4(), V4), (v6(), V6)] {
            frame.extend([0xaa; 20]);
            assert_eq!(parse(&frame), Ok(Kind::Tcp(layout)));
        }
    }

    #[test]
    fn every_truncation_is_an_error() {
        for frame in [v4(), v6()] {
            for len in 0..frame.len() {
                let ip_header = if frame[12] == 8 { 34 } else { 54 };
                let expected = if len < ip_header {
                    ParseError::TooShort
                } else {
                    ParseError::BadTotalLength
                };
                assert_eq!(parse(&frame[..len]), Err(expected), "{len} of {}", frame.len());
            }
        }
    }

    #[test_case(&[(14, 0x65)], Err(ParseError::BadVersion); "version 6 under the EtherType of IPv4")]
    #[test_case(&[(14, 0x44)], Err(ParseError::BadHeaderLength); "header length below the least")]
    #[test_case(&[(14, 0x46), (38, 0), (42, 0), (43, 0), (50, 0x50)], Ok(Kind::Tcp(TcpLayout { l4: 38, payload: 58, ..V4 })); "options are passed over")]
    #[test_case(&[(14, 0x4d)], Err(ParseError::BadHeaderLength); "header length above the total length")]
    #[test_case(&[(14, 0x4c)], Err(ParseError::TooShort); "header length just below the total length")]
    #[test_case(&[(17, 19)], Err(ParseError::BadHeaderLength); "total length below the header")]
    #[test_case(&[(17, 20)], Err(ParseError::TooShort); "no payload")]
    #[test_case(&[(17, 39)], Err(ParseError::TooShort); "19 bytes of TCP")]
    #[test_case(&[(17, 40)], Err(ParseError::BadDataOffset); "options cut off")]
    #[test_case(&[(17, 43)], Err(ParseError::BadDataOffset); "options one byte short")]
    #[test_case(&[(17, 44)], Ok(Kind::Tcp(TcpLayout { end: 58, ..V4 })); "options just whole")]
    #[test_case(&[(17, 49)], Ok(Kind::Tcp(V4)); "total length as long as the frame")]
    #[test_case(&[(17, 50)], Err(ParseError::BadTotalLength); "total length beyond the frame")]
    #[test_case(&[(20, 0x20)], Err(ParseError::Fragment); "more fragments")]
    #[test_case(&[(21, 1)], Err(ParseError::Fragment); "fragment offset 1")]
    #[test_case(&[(20, 0x1f), (21, 0xff)], Err(ParseError::Fragment); "largest fragment offset")]
    #[test_case(&[(20, 0xc0)], Ok(Kind::Tcp(V4)); "reserved flag and do not fragment")]
    #[test_case(&[(20, 0)], Ok(Kind::Tcp(V4)); "may be fragmented but is not")]
    #[test_case(&[(46, 0x40)], Err(ParseError::BadDataOffset); "data offset 4")]
    #[test_case(&[(46, 0x50)], Ok(Kind::Tcp(TcpLayout { payload: 54, ..V4 })); "data offset 5")]
    #[test_case(&[(46, 0x70)], Ok(Kind::Tcp(TcpLayout { payload: 62, ..V4 })); "data offset 7")]
    #[test_case(&[(46, 0x80)], Err(ParseError::BadDataOffset); "data offset beyond the packet")]
    #[test_case(&[(23, 17)], Ok(Kind::Other { ethertype: 0x800 }); "udp")]
    #[test_case(&[(23, 1)], Ok(Kind::Icmpv4 { l3: 14, l4: 34, end: 63 }); "icmp")]
    #[test_case(&[(23, 1), (17, 28)], Ok(Kind::Icmpv4 { l3: 14, l4: 34, end: 42 }); "shortest icmp")]
    #[test_case(&[(23, 1), (17, 27)], Err(ParseError::TooShort); "icmp one byte short")]
    #[test_case(&[(12, 0x81)], Ok(Kind::Other { ethertype: 0x8100 }); "vlan tag")]
    #[test_case(&[(13, 6)], Ok(Kind::Arp); "arp")]
    #[test_case(&[(0, 0xff)], Err(ParseError::MartianDestination); "ethernet broadcast")]
    #[test_case(&[(0, 3)], Err(ParseError::MartianDestination); "ethernet multicast")]
    #[test_case(&[(6, 3)], Err(ParseError::MartianSource); "from an ethernet group")]
    #[test_case(&[(26, 0)], Err(ParseError::MartianSource); "from this network")]
    #[test_case(&[(26, 127)], Err(ParseError::MartianSource); "from loopback")]
    #[test_case(&[(26, 223)], Ok(Kind::Tcp(V4)); "from the last unicast block")]
    #[test_case(&[(26, 224)], Err(ParseError::MartianSource); "from the first group")]
    #[test_case(&[(26, 239)], Err(ParseError::MartianSource); "from the last block of groups")]
    #[test_case(&[(26, 240)], Ok(Kind::Tcp(V4)); "from reserved space")]
    #[test_case(&[(26, 255), (27, 255), (28, 255), (29, 255)], Err(ParseError::MartianSource); "from broadcast")]
    #[test_case(&[(30, 224)], Err(ParseError::MartianDestination); "to a group")]
    #[test_case(&[(30, 255), (31, 255), (32, 255), (33, 255)], Err(ParseError::MartianDestination); "to broadcast")]
    #[test_case(&[(30, 127)], Err(ParseError::MartianDestination); "to loopback")]
    fn ipv4(patches: &[(usize, u8)], expected: Result<Kind, ParseError>) {
        assert_eq!(parse(&patched(v4(), patches)), expected);
    }

    const ZEROS: [(usize, u8); 16] = address(22, [0; 16]);

    const fn address(at: usize, octets: [u8; 16]) -> [(usize, u8); 16] {
        let mut patches = [(0, 0); 16];
        let mut index = 0;
        while index < 16 {
            patches[index] = (at + index, octets[index]);
            index += 1;
        }
        patches
    }

    const LOOPBACK: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    const MAPPED: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];
    const TRANSLATED: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 192, 0, 2, 1];

    #[test_case(&[(14, 0x40)], Err(ParseError::BadVersion); "version 4 under the EtherType of IPv6")]
    #[test_case(&[(19, 0)], Err(ParseError::TooShort); "no payload")]
    #[test_case(&[(19, 19)], Err(ParseError::TooShort); "19 bytes of TCP")]
    #[test_case(&[(19, 23)], Err(ParseError::BadDataOffset); "options one byte short")]
    #[test_case(&[(19, 24)], Ok(Kind::Tcp(TcpLayout { end: 78, ..V6 })); "options just whole")]
    #[test_case(&[(19, 29)], Ok(Kind::Tcp(V6)); "as long as the frame")]
    #[test_case(&[(19, 30)], Err(ParseError::BadTotalLength); "beyond the frame")]
    #[test_case(&[(20, 0)], Err(ParseError::ExtensionHeader); "hop by hop")]
    #[test_case(&[(20, 43)], Err(ParseError::ExtensionHeader); "routing")]
    #[test_case(&[(20, 60)], Err(ParseError::ExtensionHeader); "destination options")]
    #[test_case(&[(20, 51)], Err(ParseError::ExtensionHeader); "authentication header")]
    #[test_case(&[(20, 44)], Err(ParseError::Fragment); "fragment")]
    #[test_case(&[(20, 17)], Ok(Kind::Other { ethertype: 0x86dd }); "udp")]
    #[test_case(&[(20, 59)], Ok(Kind::Other { ethertype: 0x86dd }); "no next header")]
    #[test_case(&[(20, 58)], Ok(Kind::Icmpv6 { l3: 14, l4: 54, end: 83 }); "icmpv6")]
    #[test_case(&[(20, 58), (19, 7)], Err(ParseError::TooShort); "icmpv6 one byte short")]
    #[test_case(&[(20, 58), (19, 8)], Ok(Kind::Icmpv6 { l3: 14, l4: 54, end: 62 }); "shortest icmpv6")]
    #[test_case(&[(0, 0x33)], Err(ParseError::MartianDestination); "tcp to an ethernet group")]
    #[test_case(&[(20, 58), (0, 0x33), (38, 0xff)], Ok(Kind::Icmpv6 { l3: 14, l4: 54, end: 83 }); "icmpv6 to a group")]
    #[test_case(&[(20, 58), (6, 0x33)], Err(ParseError::MartianSource); "icmpv6 from an ethernet group")]
    #[test_case(&[(22, 0xff)], Err(ParseError::MartianSource); "from a group")]
    #[test_case(&[(20, 58), (22, 0xff)], Err(ParseError::MartianSource); "icmpv6 from a group")]
    #[test_case(&[(38, 0xff)], Err(ParseError::MartianDestination); "tcp to a group")]
    #[test_case(&ZEROS, Err(ParseError::MartianSource); "from unspecified")]
    #[test_case(&address(38, [0; 16]), Err(ParseError::MartianDestination); "to unspecified")]
    #[test_case(&address(22, LOOPBACK), Err(ParseError::MartianSource); "from loopback")]
    #[test_case(&address(38, LOOPBACK), Err(ParseError::MartianDestination); "to loopback")]
    #[test_case(&address(22, MAPPED), Err(ParseError::MartianSource); "from a mapped address")]
    #[test_case(&address(38, MAPPED), Err(ParseError::MartianDestination); "to a mapped address")]
    #[test_case(&address(22, TRANSLATED), Ok(Kind::Tcp(V6)); "from a translated address")]
    fn ipv6(patches: &[(usize, u8)], expected: Result<Kind, ParseError>) {
        assert_eq!(parse(&patched(v6(), patches)), expected);
    }

    #[test]
    fn duplicate_address_detection_comes_from_the_unspecified_address() {
        let mut frame = patched(v6(), &ZEROS);
        frame[20] = protocol::ICMPV6;
        assert_eq!(
            parse(&frame),
            Ok(Kind::Icmpv6 {
                l3: 14,
                l4: 54,
                end: 83
            })
        );
        frame[38..54].fill(0);
        assert_eq!(parse(&frame), Err(ParseError::MartianDestination));
    }

    #[test]
    fn header_checksum_is_computed_unless_the_port_did() {
        let info = |ip_checksum| RxInfo {
            ip_checksum,
            ..RxInfo::default()
        };
        let good = v4();
        for bit in 0..160 {
            let mut bad = good.clone();
            bad[14 + bit / 8] ^= 0x80 >> (bit % 8);
            let parsed = parse(&bad);
            assert!(parsed.is_err(), "bit {bit}: {parsed:?}");
        }
        let mut bad = good.clone();
        bad[24] ^= 1;
        assert_eq!(parse(&bad), Err(ParseError::BadIpChecksum));
        assert_eq!(parse_with(&bad, info(ChecksumStatus::Good)), Ok(Kind::Tcp(V4)));
        assert_eq!(
            parse_with(&good, info(ChecksumStatus::Bad)),
            Err(ParseError::BadIpChecksum)
        );

        let mut with_options = patched(good, &[(14, 0x46), (50, 0x50)]);
        assert!(parse(&with_options).is_ok());
        with_options[37] ^= 1;
        assert_eq!(parse(&with_options), Err(ParseError::BadIpChecksum));
    }

    #[test]
    fn packets_longer_than_offsets_can_say_are_refused() {
        for (len, expected) in [(65_535, Ok(u16::MAX)), (65_536, Err(ParseError::BadTotalLength))] {
            let mut frame = v4();
            frame.resize(len, 0);
            let [high, low] = ((len - 14) as u16).to_be_bytes();
            let parsed = parse(&patched(frame, &[(16, high), (17, low)]));
            assert_eq!(parsed.map(|kind| kind.end().expect("TCP")), expected);
        }
    }
}
