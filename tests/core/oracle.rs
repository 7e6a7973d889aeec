//! Packets made and read by `etherparse`, which knows nothing of this repository: every length, every checksum.

use e2d2::wire::MacAddr;
use etherparse::{
    IpHeaders, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6FlowLabel, Ipv6Header, NetSlice, PacketBuilder,
    PacketBuilderStep, SlicedPacket, TcpHeader, TransportSlice, ip_number,
};
use std::net::IpAddr;
use testkit::Station;

/// What of an IP header may differ between packets of one connection.
#[derive(Clone, Debug)]
pub struct Ip {
    pub class: u8,
    pub hop_limit: u8,
    /// Of IPv4 only.
    pub dont_fragment: bool,
    pub ident: u16,
    pub options: Vec<u8>,
    /// Of IPv6 only.
    pub flow_label: u32,
}

impl Default for Ip {
    fn default() -> Self {
        Ip {
            class: 0,
            hop_limit: 64,
            dont_fragment: true,
            ident: 0,
            options: Vec::new(),
            flow_label: 0,
        }
    }
}

/// A TCP packet as it is on the wire.
#[derive(Clone, Debug)]
pub struct Wire {
    pub source_mac: [u8; 6],
    pub destination_mac: [u8; 6],
    pub source: IpAddr,
    pub destination: IpAddr,
    pub ip: Ip,
    /// IP header, options, and all that follows.
    pub packet_len: usize,
    pub tcp: TcpHeader,
    pub payload: Vec<u8>,
    pub tcp_checksum_is_right: bool,
}

fn network(from: Station, to: Station, ip: &Ip) -> PacketBuilderStep<IpHeaders> {
    let link = PacketBuilder::ethernet2(from.mac.0, to.mac.0);
    match (from.address.ip(), to.address.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = Ipv4Header::new(0, ip.hop_limit, ip_number::TCP, source.octets(), destination.octets())
                .expect("an empty packet is short enough");
            header.dscp = (ip.class >> 2).try_into().expect("six bits");
            header.ecn = (ip.class & 3).try_into().expect("two bits");
            header.dont_fragment = ip.dont_fragment;
            header.identification = ip.ident;
            header.options = ip.options.as_slice().try_into().expect("whole words");
            link.ip(IpHeaders::Ipv4(header, Ipv4Extensions::default()))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = Ipv6Header {
                traffic_class: ip.class,
                flow_label: Ipv6FlowLabel::try_new(ip.flow_label).expect("20 bits"),
                hop_limit: ip.hop_limit,
                source: source.octets(),
                destination: destination.octets(),
                ..Ipv6Header::default()
            };
            link.ip(IpHeaders::Ipv6(header, Ipv6Extensions::default()))
        }
        other => panic!("two families: {other:?}"),
    }
}

/// A TCP frame.
pub fn tcp_frame(from: Station, to: Station, ip: &Ip, tcp: &TcpHeader, payload: &[u8]) -> Vec<u8> {
    let mut tcp = tcp.clone();
    (tcp.source_port, tcp.destination_port) = (from.address.port(), to.address.port());
    let mut frame = Vec::new();
    network(from, to, ip)
        .tcp_header(tcp)
        .write(&mut frame, payload)
        .expect("a vector takes it");
    frame
}

/// An ICMP or ICMPv6 frame from a router at `from.address`: type, code, second word, and the quote.
pub fn icmp_frame(from: Station, to: Station, (kind, code, word): (u8, u8, u32), quote: &[u8]) -> Vec<u8> {
    let network = network(from, to, &Ip::default());
    let mut frame = Vec::new();
    let written = if from.address.is_ipv4() {
        network
            .icmpv4_raw(kind, code, word.to_be_bytes())
            .write(&mut frame, quote)
    } else {
        network
            .icmpv6_raw(kind, code, word.to_be_bytes())
            .write(&mut frame, quote)
    };
    written.expect("a vector takes it");
    frame
}

/// Reads a TCP frame and asserts that all its lengths and, of IPv4, the header checksum are right.
#[track_caller]
pub fn read_tcp(frame: &[u8]) -> Wire {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap_or_else(|error| panic!("{error}: {frame:02x?}"));
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else {
        panic!("not TCP: {sliced:?}")
    };
    let (source, destination, ip, packet_len, checksum) = read_network(&sliced, |source, destination| {
        match (source, destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => tcp.calc_checksum_ipv4(s.octets(), d.octets()),
            (IpAddr::V6(s), IpAddr::V6(d)) => tcp.calc_checksum_ipv6(s.octets(), d.octets()),
            other => panic!("two families: {other:?}"),
        }
        .expect("short enough")
    });
    assert_eq!(
        packet_len,
        frame.len() - 14,
        "no padding, nothing cut off: {frame:02x?}"
    );
    Wire {
        destination_mac: frame[..6].try_into().expect("6 bytes"),
        source_mac: frame[6..12].try_into().expect("6 bytes"),
        source,
        destination,
        ip,
        packet_len,
        tcp: tcp.to_header(),
        payload: tcp.payload().to_vec(),
        tcp_checksum_is_right: checksum == tcp.checksum(),
    }
}

/// An error as it is on the wire.
#[derive(Clone, Debug)]
pub struct IcmpError {
    pub destination_mac: MacAddr,
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Type, code, second word.
    pub says: (u8, u8, u32),
    pub quote: Vec<u8>,
}

/// Reads an ICMP or ICMPv6 frame and asserts that its checksums are right.
#[track_caller]
pub fn read_icmp(frame: &[u8]) -> IcmpError {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap_or_else(|error| panic!("{error}: {frame:02x?}"));
    let (source, destination, _, packet_len, ()) = read_network(&sliced, |_, _| ());
    assert_eq!(packet_len, frame.len() - 14);
    let (says, quote) = match (&sliced.transport, source, destination) {
        (Some(TransportSlice::Icmpv4(icmp)), ..) => {
            let expected = icmp.icmp_type().calc_checksum(icmp.payload());
            assert_eq!(icmp.checksum(), expected, "the ICMP checksum");
            let word = u32::from_be_bytes(icmp.bytes5to8());
            ((icmp.type_u8(), icmp.code_u8(), word), icmp.payload())
        }
        (Some(TransportSlice::Icmpv6(icmp)), IpAddr::V6(source), IpAddr::V6(destination)) => {
            let is_right = icmp.is_checksum_valid(source.octets(), destination.octets());
            assert!(is_right, "the ICMPv6 checksum");
            let word = u32::from_be_bytes(icmp.bytes5to8());
            ((icmp.type_u8(), icmp.code_u8(), word), icmp.payload())
        }
        other => panic!("not ICMP: {other:?}"),
    };
    IcmpError {
        destination_mac: MacAddr(frame[..6].try_into().expect("6 bytes")),
        source,
        destination,
        says,
        quote: quote.to_vec(),
    }
}

/// What an error quotes: addresses, ports, number, and the length that the packet had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quoted {
    pub source: (IpAddr, u16),
    pub destination: (IpAddr, u16),
    pub seq: u32,
    pub packet_len: usize,
    pub class: u8,
}

/// Reads a quote of an IP header and eight bytes of TCP.
#[track_caller]
pub fn read_quote(quote: &[u8]) -> Quoted {
    let (source, destination, packet_len, class, tcp): (IpAddr, IpAddr, _, _, _) = if quote[0] >> 4 == 4 {
        let (ip, tcp) = Ipv4Header::from_slice(quote).expect("an IPv4 header");
        assert_eq!(
            ip.header_checksum,
            ip.calc_header_checksum(),
            "the quoted header's checksum"
        );
        assert_eq!(ip.protocol, ip_number::TCP);
        let class = ip.dscp.value() << 2 | ip.ecn.value();
        (
            ip.source.into(),
            ip.destination.into(),
            usize::from(ip.total_len),
            class,
            tcp,
        )
    } else {
        let (ip, tcp) = Ipv6Header::from_slice(quote).expect("an IPv6 header");
        assert_eq!(ip.next_header, ip_number::TCP);
        let len = 40 + usize::from(ip.payload_length);
        (ip.source.into(), ip.destination.into(), len, ip.traffic_class, tcp)
    };
    let half = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    Quoted {
        source: (source, half(0)),
        destination: (destination, half(2)),
        seq: u32::from(half(4)) << 16 | u32::from(half(6)),
        packet_len,
        class,
    }
}

#[track_caller]
fn read_network<T>(
    sliced: &SlicedPacket<'_>,
    checksum: impl FnOnce(IpAddr, IpAddr) -> T,
) -> (IpAddr, IpAddr, Ip, usize, T) {
    match sliced.net.as_ref().expect("an IP header") {
        NetSlice::Ipv4(slice) => {
            let header = slice.header().to_header();
            assert_eq!(
                header.header_checksum,
                header.calc_header_checksum(),
                "the IPv4 header's checksum"
            );
            assert!(!header.more_fragments && header.fragment_offset.value() == 0);
            let ip = Ip {
                class: header.dscp.value() << 2 | header.ecn.value(),
                hop_limit: header.time_to_live,
                dont_fragment: header.dont_fragment,
                ident: header.identification,
                options: header.options.to_vec(),
                flow_label: 0,
            };
            let (source, destination) = (header.source.into(), header.destination.into());
            let sum = checksum(source, destination);
            (source, destination, ip, usize::from(header.total_len), sum)
        }
        NetSlice::Ipv6(slice) => {
            let header = slice.header().to_header();
            let ip = Ip {
                class: header.traffic_class,
                hop_limit: header.hop_limit,
                flow_label: header.flow_label.value(),
                ..Ip::default()
            };
            let (source, destination) = (header.source.into(), header.destination.into());
            let sum = checksum(source, destination);
            (source, destination, ip, 40 + usize::from(header.payload_length), sum)
        }
        other => panic!("not IP: {other:?}"),
    }
}
