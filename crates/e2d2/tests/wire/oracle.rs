//! Agreement with `etherparse`: it reads what we write, we read what it writes, and both accept the same frames but
//! for what we refuse on purpose.

use std::net::IpAddr;

use e2d2::wire::frame::{self, IpVersion, Kind, ParseError, TcpLayout};
use e2d2::wire::icmpv4::Icmpv4Repr;
use e2d2::wire::icmpv6::Icmpv6Repr;
use e2d2::wire::ipv6::Ipv6Header;
use e2d2::wire::tcp::{TcpFlags, TcpOptions, options};
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TcpOptionElement, TcpSlice, TransportSlice};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::arbitrary;

fn tcp_of<'a>(sliced: &SlicedPacket<'a>) -> Option<TcpSlice<'a>> {
    match &sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => Some(tcp.clone()),
        _ => None,
    }
}

/// The checksum that etherparse computes for a segment.
fn their_checksum(sliced: &SlicedPacket<'_>, tcp: &TcpSlice<'_>) -> u16 {
    match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()),
        Some(NetSlice::Ipv6(ip)) => tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()),
        other => panic!("TCP over {other:?}"),
    }
    .expect("short enough")
}

fn addresses(sliced: &SlicedPacket<'_>) -> (IpAddr, IpAddr) {
    match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        Some(NetSlice::Ipv6(ip)) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        other => panic!("TCP over {other:?}"),
    }
}

fn their_flags(tcp: &TcpSlice<'_>) -> TcpFlags {
    [
        (tcp.fin(), TcpFlags::FIN),
        (tcp.syn(), TcpFlags::SYN),
        (tcp.rst(), TcpFlags::RST),
        (tcp.psh(), TcpFlags::PSH),
        (tcp.ack(), TcpFlags::ACK),
        (tcp.urg(), TcpFlags::URG),
        (tcp.ece(), TcpFlags::ECE),
        (tcp.cwr(), TcpFlags::CWR),
    ]
    .into_iter()
    .filter_map(|(is_set, flag)| is_set.then_some(flag))
    .collect()
}

/// Both read the same fields out of a frame that both take for TCP.
fn assert_same_segment(bytes: &[u8], layout: TcpLayout) {
    let sliced = SlicedPacket::from_ethernet(bytes).expect("they accept what we accept");
    let theirs = tcp_of(&sliced).expect("they see TCP where we do");
    let ours = layout.split(bytes).expect("its own layout");
    assert_eq!((ours.ip.src_addr(), ours.ip.dst_addr()), addresses(&sliced));
    assert_eq!(
        (ours.tcp.src_port(), ours.tcp.dst_port()),
        (theirs.source_port(), theirs.destination_port())
    );
    assert_eq!(
        (ours.tcp.seq(), ours.tcp.ack()),
        (theirs.sequence_number(), theirs.acknowledgment_number())
    );
    assert_eq!(
        (ours.tcp.window(), ours.tcp.flags()),
        (theirs.window_size(), their_flags(&theirs))
    );
    assert_eq!(
        (ours.tcp.checksum(), ours.tcp.urgent()),
        (theirs.checksum(), theirs.urgent_pointer())
    );
    assert_eq!((ours.options, ours.payload), (theirs.options(), theirs.payload()));
    assert_eq!(
        layout.is_checksum_valid(bytes),
        their_checksum(&sliced, &theirs) == theirs.checksum()
    );
}

/// Etherparse's view of options, as ours: it stops at malformed ones, too.
fn their_options(raw: &[u8]) -> Option<(TcpOptions, Vec<(u32, u32)>)> {
    let mut header = TcpHeader::default();
    header.set_options_raw(raw).ok()?;
    let (mut options, mut blocks) = (TcpOptions::NONE, Vec::new());
    for element in header.options_iterator() {
        match element.ok()? {
            TcpOptionElement::Noop => {}
            TcpOptionElement::MaximumSegmentSize(mss) => options.mss = Some(mss),
            TcpOptionElement::WindowScale(shift) => options.window_scale = Some(shift.min(14)),
            TcpOptionElement::SelectiveAcknowledgementPermitted => options.sack_permitted = true,
            TcpOptionElement::SelectiveAcknowledgement(first, more) if blocks.is_empty() => {
                blocks.push(first);
                blocks.extend(more.into_iter().flatten());
            }
            TcpOptionElement::SelectiveAcknowledgement(..) => {}
            TcpOptionElement::Timestamp(value, echo) => options.timestamps = Some((value, echo)),
        }
    }
    Some((options, blocks))
}

/// Options that etherparse knows, in any order and at any alignment.
fn option_elements() -> impl Strategy<Value = Vec<TcpOptionElement>> {
    let element = prop_oneof![
        Just(TcpOptionElement::Noop),
        any::<u16>().prop_map(TcpOptionElement::MaximumSegmentSize),
        any::<u8>().prop_map(TcpOptionElement::WindowScale),
        Just(TcpOptionElement::SelectiveAcknowledgementPermitted),
        any::<(u32, u32)>().prop_map(|(value, echo)| TcpOptionElement::Timestamp(value, echo)),
        (any::<(u32, u32)>(), any::<Option<(u32, u32)>>())
            .prop_map(|(first, second)| TcpOptionElement::SelectiveAcknowledgement(first, [second, None, None])),
    ];
    vec(element, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn they_read_what_we_write(segment in arbitrary::segment()) {
        let bytes = segment.frame();
        let Ok(Kind::Tcp(layout)) = frame::parse(&bytes) else { panic!("{:?}", frame::parse(&bytes)) };
        assert_same_segment(&bytes, layout);
        let sliced = SlicedPacket::from_ethernet(&bytes).expect("sound");
        let theirs = tcp_of(&sliced).expect("TCP");
        prop_assert_eq!(their_checksum(&sliced, &theirs), theirs.checksum());
        prop_assert_eq!(their_flags(&theirs).bits(), segment.flags);
        let (options, blocks) = their_options(theirs.options()).expect("sound");
        prop_assert_eq!(options, segment.options);
        prop_assert_eq!(&blocks[..], &segment.sack_blocks[..blocks.len()]);
        if let Some(NetSlice::Ipv4(ip)) = &sliced.net {
            let header = ip.header().to_header();
            prop_assert_eq!(header.calc_header_checksum(), header.header_checksum);
            prop_assert!(header.dont_fragment && header.identification == 0);
        }
    }

    #[test]
    fn we_read_what_they_write(
        segment in arbitrary::segment(),
        elements in option_elements(),
        urgent in any::<u16>(),
    ) {
        let mut header = TcpHeader::new(segment.ports.0, segment.ports.1, segment.numbers.0, segment.window);
        (header.acknowledgment_number, header.urgent_pointer) = (segment.numbers.1, urgent);
        (header.syn, header.ack, header.urg) = (segment.flags & 1 != 0, segment.flags & 2 != 0, segment.flags & 4 != 0);
        prop_assume!(header.set_options(&elements).is_ok());
        let envelope = segment.envelope;
        let builder = PacketBuilder::ethernet2(envelope.src_mac.0, envelope.dst_mac.0);
        let builder = match (envelope.src_addr, envelope.dst_addr) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => builder.ipv4(src.octets(), dst.octets(), envelope.hop_limit),
            (IpAddr::V6(src), IpAddr::V6(dst)) => builder.ipv6(src.octets(), dst.octets(), envelope.hop_limit),
            other => panic!("{other:?}"),
        };
        let mut bytes = Vec::new();
        builder.tcp_header(header).write_to_vec(&mut bytes, &segment.payload).expect("fits");

        let Ok(Kind::Tcp(layout)) = frame::parse(&bytes) else { panic!("{:?}", frame::parse(&bytes)) };
        assert_same_segment(&bytes, layout);
        prop_assert!(layout.is_checksum_valid(&bytes));
        let raw = layout.options(&bytes).expect("its own layout");
        let (theirs, blocks) = their_options(raw).expect("sound");
        prop_assert_eq!(TcpOptions::parse(raw), theirs);
        prop_assert_eq!(&options::sack_blocks(raw)[..], &blocks[..]);
    }

    /// Whether a spoilt frame is TCP: we agree, or refused it for a reason that they do not have.
    #[test]
    fn both_accept_the_same_frames(bytes in arbitrary::spoilt_frame()) {
        let sliced = SlicedPacket::from_ethernet(&bytes);
        let is_tcp_to_them = sliced.as_ref().is_ok_and(|sliced| tcp_of(sliced).is_some() && sliced.link_exts.is_empty());
        match frame::parse(&bytes) {
            Ok(Kind::Tcp(layout)) => assert_same_segment(&bytes, layout),
            Ok(_) => prop_assert!(!is_tcp_to_them, "{:?}", frame::parse(&bytes)),
            Err(reason) => {
                let only_ours = matches!(
                    reason,
                    ParseError::BadIpChecksum
                        | ParseError::MartianSource
                        | ParseError::MartianDestination
                        | ParseError::ExtensionHeader
                        | ParseError::Fragment
                );
                // They take an IPv6 payload length of 0 for "as long as the frame", as a jumbogram would have.
                let is_jumbo = bytes.len() >= 54 && bytes[12..14] == [0x86, 0xdd] && bytes[18..20] == [0, 0];
                prop_assert!(!is_tcp_to_them || only_ours || is_jumbo, "{reason:?}");
            }
        }
    }

    #[test]
    fn both_read_the_same_options(raw in vec(prop_oneof![0..10u8, any::<u8>()], 0..=40)) {
        // They pad to whole words, as a header has them.
        let raw = &raw[..raw.len() / 4 * 4];
        // They stop at kinds that they do not know, where we go on; what both read must be the same.
        if let Some((theirs, blocks)) = their_options(raw) {
            prop_assert_eq!(TcpOptions::parse(raw), theirs);
            prop_assert_eq!(&options::sack_blocks(raw)[..], &blocks[..]);
        }
    }

    #[test]
    fn they_accept_our_icmp(four in arbitrary::icmpv4_frame(), six in arbitrary::icmpv6_frame()) {
        let sliced = SlicedPacket::from_ethernet(&four).expect("sound");
        let Some(TransportSlice::Icmpv4(icmp)) = &sliced.transport else { panic!("{sliced:?}") };
        let checksum = icmp.icmp_type().calc_checksum(icmp.payload());
        prop_assert_eq!(checksum, icmp.checksum());

        let sliced = SlicedPacket::from_ethernet(&six).expect("sound");
        let Some(TransportSlice::Icmpv6(icmp)) = &sliced.transport else { panic!("{sliced:?}") };
        let Some(NetSlice::Ipv6(ip)) = &sliced.net else { panic!("{sliced:?}") };
        prop_assert!(icmp.is_checksum_valid(ip.header().source(), ip.header().destination()));
    }

    #[test]
    fn we_accept_their_icmp(ident in any::<u16>(), seq in any::<u16>(), payload in vec(any::<u8>(), 0..100)) {
        let link = || PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let mut bytes = Vec::new();
        let builder = link().ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64).icmpv4_echo_request(ident, seq);
        builder.write_to_vec(&mut bytes, &payload).expect("fits");
        let Ok(Kind::Icmpv4 { l4, end, .. }) = frame::parse(&bytes) else { panic!("{:?}", frame::parse(&bytes)) };
        let read = Icmpv4Repr::parse(&bytes[usize::from(l4)..usize::from(end)]);
        prop_assert_eq!(read, Ok(Icmpv4Repr::EchoRequest { ident, seq, data: &payload }));

        let mut bytes = Vec::new();
        let builder = link().ipv6([0x20; 16], [0x21; 16], 64).icmpv6_echo_reply(ident, seq);
        builder.write_to_vec(&mut bytes, &payload).expect("fits");
        let Ok(Kind::Icmpv6 { l3, l4, end }) = frame::parse(&bytes) else { panic!("{:?}", frame::parse(&bytes)) };
        let ip = bytes[usize::from(l3)..].first_chunk().map(Ipv6Header).expect("parsed");
        let read = Icmpv6Repr::parse(ip, &bytes[usize::from(l4)..usize::from(end)]);
        prop_assert_eq!(read, Ok(Icmpv6Repr::EchoReply { ident, seq, data: &payload }));
    }
}

#[test]
fn versions_are_told_alike() {
    let segment = |src: IpAddr, dst: IpAddr| {
        let repr = e2d2::wire::tcp::TcpRepr {
            envelope: e2d2::wire::Envelope {
                src_mac: e2d2::wire::MacAddr([2, 0, 0, 0, 0, 1]),
                dst_mac: e2d2::wire::MacAddr([2, 0, 0, 0, 0, 2]),
                src_addr: src,
                dst_addr: dst,
                hop_limit: 1,
            },
            src_port: 1,
            dst_port: 2,
            seq: 3,
            ack: 4,
            flags: TcpFlags::RST,
            window: 0,
            options: TcpOptions::NONE,
            sack_blocks: &[],
            payload: &[],
        };
        arbitrary::emitted(|buffer| repr.emit(buffer).is_ok())
    };
    let four = segment([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let six = segment(IpAddr::V6([0x20; 16].into()), IpAddr::V6([0x21; 16].into()));
    for (bytes, expected) in [(four, IpVersion::V4), (six, IpVersion::V6)] {
        let Ok(Kind::Tcp(layout)) = frame::parse(&bytes) else {
            panic!("{:?}", frame::parse(&bytes))
        };
        assert_eq!(layout.version, expected);
        let is_ipv4 = SlicedPacket::from_ethernet(&bytes)
            .expect("sound")
            .net
            .is_some_and(|net| net.is_ipv4());
        assert_eq!(is_ipv4, expected == IpVersion::V4);
    }
}
