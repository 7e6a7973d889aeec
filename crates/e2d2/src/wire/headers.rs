//! What the headers of a frame say as far as they are there: for those who look at frames that were cut off, or that nobody has
//! parsed.
//!
//! Nothing is verified but that a field is within the bytes. Whoever acts on a received frame asks [`frame::parse`](super::frame::parse).

use core::net::IpAddr;

use super::frame::IpVersion;
use super::ipv4::{self, Ipv4Header};
use super::ipv6::{self, Ipv6Header};
use super::tcp::{self, TcpHeader};
use super::{ethernet, protocol, quote};

/// The length of an IEEE 802.1Q tag.
const TAG_LEN: usize = 4;

/// The IP header of a frame, behind at most two VLAN tags.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Which IP.
    pub version: IpVersion,
    /// Who sent it.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
    /// What is in it; an extension header of IPv6 is not looked behind.
    pub protocol: u8,
    /// Whether it is a part of a packet (RFC 791); of IPv6, `protocol` says so.
    pub is_fragment: bool,
    /// Offset of the IP header in the frame.
    pub l3: usize,
    /// Offset of what is behind the IP header. It may be beyond the frame.
    pub l4: usize,
    /// Where the packet ends by its IP header. It may be beyond the frame, or before `l4`.
    pub end: usize,
}

/// Where TCP is in a frame, and from port to port.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TcpPorts {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub destination: u16,
    /// Offset of the payload, by the data offset. It may be beyond the frame.
    pub payload: usize,
}

impl Headers {
    /// Reads `frame`, from its first Ethernet byte; nothing if it is not IP, or ends inside the IP header.
    pub fn read(frame: &[u8]) -> Option<Self> {
        let kind_at = |offset: usize| Some(u16::from_be_bytes(*frame.get(offset..)?.first_chunk::<2>()?));
        let mut l3 = ethernet::HEADER_LEN;
        let mut kind = kind_at(l3 - 2)?;
        for _ in 0..2 {
            if matches!(kind, ethernet::ethertype::VLAN | ethernet::ethertype::SERVICE_VLAN) {
                l3 += TAG_LEN;
                kind = kind_at(l3 - 2)?;
            }
        }
        let packet = frame.get(l3..)?;
        match kind {
            ethernet::ethertype::IPV4 => {
                let ip = Ipv4Header(packet.first_chunk::<{ ipv4::HEADER_LEN }>()?);
                (ip.version() == 4).then(|| Self {
                    version: IpVersion::V4,
                    source: ip.src_addr().into(),
                    destination: ip.dst_addr().into(),
                    protocol: ip.protocol(),
                    is_fragment: ip.is_fragment(),
                    l3,
                    l4: l3 + ip.header_len(),
                    end: l3 + usize::from(ip.total_len()),
                })
            }
            ethernet::ethertype::IPV6 => {
                let ip = Ipv6Header(packet.first_chunk::<{ ipv6::HEADER_LEN }>()?);
                (ip.version() == 6).then(|| Self {
                    version: IpVersion::V6,
                    source: ip.src_addr().into(),
                    destination: ip.dst_addr().into(),
                    protocol: ip.next_header(),
                    is_fragment: false,
                    l3,
                    l4: l3 + ipv6::HEADER_LEN,
                    end: l3 + ipv6::HEADER_LEN + usize::from(ip.payload_len()),
                })
            }
            _ => None,
        }
    }

    /// The TCP header of the same `frame`; nothing if that has none, or not the fixed part of it.
    pub fn tcp(&self, frame: &[u8]) -> Option<TcpPorts> {
        let is_first = self.protocol == protocol::TCP && !self.is_fragment;
        let header = TcpHeader(is_first.then(|| frame.get(self.l4..)?.first_chunk::<{ tcp::HEADER_LEN }>())??);
        Some(TcpPorts {
            source: header.src_port(),
            destination: header.dst_port(),
            payload: self.l4 + header.header_len(),
        })
    }

    /// Where what people have said begins in the same `frame`: the payload of TCP, or that of a TCP segment which an ICMP error
    /// quotes. It may be beyond the frame. Nothing if the headers do not tell.
    pub fn payload(&self, frame: &[u8]) -> Option<usize> {
        /// RFC 792 and RFC 4443: what stands before the quote.
        const ICMP_HEADER_LEN: usize = 8;
        match self.protocol {
            protocol::TCP => self.tcp(frame).map(|tcp| tcp.payload),
            protocol::ICMP | protocol::ICMPV6 => {
                let at = self.l4 + ICMP_HEADER_LEN;
                let quoted = frame.get(at..)?;
                let tcp = usize::from(quote::parse(self.version, quoted).ok()??.l4);
                let header = quoted.get(tcp..)?.first_chunk::<{ tcp::HEADER_LEN }>();
                // A quote that ends inside the header has no payload.
                Some(header.map_or(frame.len(), |header| at + tcp + TcpHeader(header).header_len()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with this many tags, an IPv4 header of 24 bytes and a TCP header of 32.
    fn v4(tags: usize) -> Vec<u8> {
        let mut frame = vec![2; 12];
        (0..tags).for_each(|tag| frame.extend_from_slice(&[[0x88, 0xa8, 0, 7], [0x81, 0, 0, 7]][tag + 2 - tags]));
        frame.extend_from_slice(&[8, 0]);
        let mut ip = [0; ipv4::HEADER_LEN];
        Ipv4Header(&mut ip).init(
            24 + 32 + 5,
            protocol::TCP,
            64,
            [10, 0, 0, 1].into(),
            [10, 0, 0, 9].into(),
        );
        ip[0] = 0x46;
        frame.extend_from_slice(&ip);
        frame.extend_from_slice(&[1; 4]);
        let mut tcp = [0; 32];
        tcp[..4].copy_from_slice(&[4, 0, 0, 80]);
        tcp[12] = 0x80;
        frame.extend_from_slice(&tcp);
        frame.extend_from_slice(b"hello");
        frame
    }

    /// An ICMPv6 error that quotes a TCP segment.
    fn error(data_offset: u8) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend_from_slice(&[0x86, 0xdd]);
        let mut ip = [0; ipv6::HEADER_LEN];
        Ipv6Header(&mut ip).init(
            8 + 40 + 20 + 5,
            protocol::ICMPV6,
            64,
            [0x20; 16].into(),
            [0x21; 16].into(),
        );
        frame.extend_from_slice(&ip);
        frame.extend_from_slice(&[2, 0, 0, 0, 0, 0, 5, 0]);
        Ipv6Header(&mut ip).init(25, protocol::TCP, 64, [0x21; 16].into(), [0x22; 16].into());
        frame.extend_from_slice(&ip);
        let mut tcp = [0; 20];
        tcp[12] = data_offset << 4;
        frame.extend_from_slice(&tcp);
        frame.extend_from_slice(b"hello");
        frame
    }

    #[test]
    fn tags_and_options_are_passed_over() {
        for tags in 0..=2 {
            let frame = v4(tags);
            let headers = Headers::read(&frame).expect("they are there");
            assert_eq!(headers.source, IpAddr::from([10, 0, 0, 1]));
            assert_eq!((headers.l4, headers.end), (38 + 4 * tags, frame.len()));
            let tcp = headers.tcp(&frame).expect("it is there");
            assert_eq!((tcp.source, tcp.destination), (1024, 80));
            assert_eq!(
                (tcp.payload, headers.payload(&frame)),
                (frame.len() - 5, Some(frame.len() - 5))
            );
        }
        let mut three = v4(2);
        three.splice(12..12, [0x81, 0, 0, 7]);
        assert_eq!(Headers::read(&three), None);
    }

    #[test]
    fn the_payload_of_a_quote_begins_behind_its_headers() {
        let frame = error(5);
        let headers = Headers::read(&frame).expect("they are there");
        assert_eq!(
            (headers.tcp(&frame), headers.payload(&frame)),
            (None, Some(frame.len() - 5))
        );
        // Of the TCP header the ports and SEQ are there, as routers quote them.
        assert_eq!(headers.payload(&frame[..frame.len() - 17]), Some(frame.len() - 17));
    }

    #[test]
    fn no_length_leads_beyond_what_is_there() {
        for frame in [v4(0), v4(2), error(15)] {
            for end in 0..frame.len() {
                let headers = Headers::read(&frame[..end]);
                assert!(headers.is_none_or(|headers| headers.l3 < end));
                if let Some(headers) = headers {
                    let _tells_or_not = (headers.tcp(&frame[..end]), headers.payload(&frame[..end]));
                }
            }
        }
        let mut fragment = v4(0);
        fragment[21] = 1;
        let headers = Headers::read(&fragment).expect("they are there");
        assert_eq!((headers.is_fragment, headers.tcp(&fragment)), (true, None));
    }
}
