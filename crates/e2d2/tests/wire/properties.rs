//! Nothing that a peer sends may panic, and what we write we read back.

use e2d2::buffer::{BufferPool, HeapPool, PacketBuffer};
use e2d2::wire::arp::{ArpPacket, ArpRepr};
use e2d2::wire::ethernet::EthernetFrame;
use e2d2::wire::frame::{self, IpVersion, Kind, TcpLayout};
use e2d2::wire::icmpv4::{Icmpv4Packet, Icmpv4Repr};
use e2d2::wire::icmpv6::{Icmpv6Packet, Icmpv6Repr};
use e2d2::wire::ipv4::Ipv4Packet;
use e2d2::wire::ipv6::{Ipv6Header, Ipv6Packet};
use e2d2::wire::tcp::{TcpOptions, TcpPacket, options};
use e2d2::wire::vlan::VlanTag;
use e2d2::wire::{MacAddr, quote};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::arbitrary;

/// Calls everything that reads bytes and everything that writes into them.
fn exercise(bytes: &[u8]) {
    let _ = (VlanTag::of(bytes), ArpRepr::parse(bytes), Icmpv4Repr::parse(bytes));
    let _ = (quote::parse(IpVersion::V4, bytes), quote::parse(IpVersion::V6, bytes));
    if let Ok(frame) = EthernetFrame::new_checked(bytes) {
        let _ = format!(
            "{:?} {:?} {} {:?}",
            frame.dst_mac(),
            frame.src_mac(),
            frame.ethertype(),
            frame.payload()
        );
    }
    if let Ok(packet) = ArpPacket::new_checked(bytes) {
        let _ = format!(
            "{:?} {:?} {:?}",
            packet.operation(),
            packet.sender_mac(),
            packet.target_addr()
        );
    }
    exercise_ip(bytes);
    exercise_tcp(bytes);
    if let Ok(mut packet) = Icmpv4Packet::new_checked(bytes.to_vec()) {
        packet.fill_checksum();
        assert!(packet.is_checksum_valid());
        let _ = packet.payload_mut().len();
        assert!(Icmpv4Repr::parse(&packet.into_inner()).is_ok());
    }
    if let (Some(ip), Ok(mut packet)) = (
        bytes.first_chunk().map(Ipv6Header),
        Icmpv6Packet::new_checked(bytes.to_vec()),
    ) {
        packet.fill_checksum(ip.src_addr(), ip.dst_addr());
        assert!(packet.is_checksum_valid(ip.src_addr(), ip.dst_addr()));
        let _ = Icmpv6Repr::parse(ip, &packet.into_inner());
    }
}

fn exercise_ip(bytes: &[u8]) {
    if let Ok(mut packet) = Ipv4Packet::new_checked(bytes.to_vec()) {
        assert!(packet.options().len() + packet.payload().len() + 20 == usize::from(packet.total_len()));
        let _ = (packet.is_checksum_valid(), packet.payload_mut().len());
        packet.set_total_len(u16::MAX);
        packet.header_mut().0[0] = 0x4f;
        let _ = (
            packet.options().len(),
            packet.payload().len(),
            packet.payload_mut().len(),
            packet.is_checksum_valid(),
        );
    }
    if let Ok(mut packet) = Ipv6Packet::new_checked(bytes.to_vec()) {
        assert_eq!(packet.payload().len(), usize::from(packet.payload_len()));
        packet.set_payload_len(u16::MAX);
        let _ = (packet.payload().len(), packet.payload_mut().len());
    }
}

fn exercise_tcp(bytes: &[u8]) {
    let Ok(mut packet) = TcpPacket::new_checked(bytes.to_vec()) else {
        return;
    };
    assert_eq!(20 + packet.options().len() + packet.payload().len(), bytes.len());
    let _ = (
        TcpOptions::parse(packet.options()),
        options::sack_blocks(packet.options()),
        packet.segment_len(),
    );
    let mut raw = packet.options().to_vec();
    let _ = options::blank(&mut raw, |kind| kind % 2 == 0);
    let _ = options::translate_sack(&mut raw, |left, right| (!left, !right));
    let (src, dst) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    packet.fill_checksum(src, dst);
    assert!(packet.is_checksum_valid(src, dst));
    packet.set_header_len(60);
    let _ = (packet.options().len(), packet.payload_mut().len());
}

/// What a layout promises.
fn assert_layout_holds(frame: &[u8], layout: TcpLayout) {
    let TcpLayout {
        version,
        l3,
        l4,
        payload,
        end,
    } = layout;
    assert_eq!(l3, 14);
    assert!(
        l4 + 20 <= payload && payload <= end && usize::from(end) <= frame.len(),
        "{layout:?}"
    );
    match version {
        IpVersion::V4 => assert!((34..=74).contains(&l4)),
        IpVersion::V6 => assert_eq!(l4, 54),
    }
    let parts = layout.split(frame).expect("a layout fits the frame it was made of");
    assert_eq!(parts.tcp.header_len(), usize::from(payload - l4));
    assert_eq!(parts.payload.len(), usize::from(layout.payload_len()));
    let _ = layout.is_checksum_valid(frame);
    exercise(&frame[usize::from(l4)..usize::from(end)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        exercise(&bytes);
        prop_assert!(frame::parse(&bytes).is_err() || bytes.len() >= 14);
        let mut buffer = HeapPool::new(1, 256).take_copy(&bytes).expect("fits");
        let tag = VlanTag::strip(&mut buffer);
        prop_assert_eq!(buffer.len(), bytes.len() - if tag.is_some() { 4 } else { 0 });
    }

    #[test]
    fn spoilt_frames_never_panic_and_accepted_ones_are_laid_out_right(bytes in arbitrary::spoilt_frame()) {
        exercise(&bytes);
        if let Some(packet) = bytes.get(14..) {
            exercise(packet);
        }
        match frame::parse(&bytes) {
            Ok(Kind::Tcp(layout)) => assert_layout_holds(&bytes, layout),
            Ok(Kind::Icmpv4 { l3, l4, end } | Kind::Icmpv6 { l3, l4, end }) => {
                prop_assert!(l3 < l4 && l4 + 8 <= end && usize::from(end) <= bytes.len());
                exercise(&bytes[usize::from(l4)..usize::from(end)]);
            }
            Ok(Kind::Arp | Kind::Other { .. }) | Err(_) => {}
        }
    }

    #[test]
    fn emitted_segments_read_back(segment in arbitrary::segment(), padding in 0..20usize) {
        let repr = segment.repr();
        let mut bytes = segment.frame();
        bytes.resize(bytes.len() + padding, 0xee);
        let Ok(Kind::Tcp(layout)) = frame::parse(&bytes) else { panic!("{:?}", frame::parse(&bytes)) };
        assert_layout_holds(&bytes, layout);
        prop_assert!(layout.is_checksum_valid(&bytes));
        let parts = layout.split(&bytes).expect("its own layout");
        prop_assert_eq!(parts.ethernet.src_mac(), repr.envelope.src_mac);
        prop_assert_eq!(parts.ethernet.dst_mac(), repr.envelope.dst_mac);
        prop_assert_eq!(parts.ip.src_addr(), repr.envelope.src_addr);
        prop_assert_eq!(parts.ip.dst_addr(), repr.envelope.dst_addr);
        prop_assert_eq!(parts.ip.hop_limit(), repr.envelope.hop_limit);
        prop_assert_eq!((parts.tcp.src_port(), parts.tcp.dst_port()), segment.ports);
        prop_assert_eq!((parts.tcp.seq(), parts.tcp.ack()), segment.numbers);
        prop_assert_eq!((parts.tcp.flags(), parts.tcp.window(), parts.tcp.urgent()), (repr.flags, repr.window, 0));
        prop_assert_eq!(TcpOptions::parse(parts.options), repr.options);
        let blocks = options::sack_blocks(parts.options);
        prop_assert_eq!(&blocks[..], &segment.sack_blocks[..blocks.len()]);
        prop_assert_eq!(parts.payload, repr.payload);
    }

    #[test]
    fn emitted_icmp_is_valid(four in arbitrary::icmpv4_frame(), six in arbitrary::icmpv6_frame()) {
        let Ok(Kind::Icmpv4 { l4, end, .. }) = frame::parse(&four) else { panic!("{:?}", frame::parse(&four)) };
        prop_assert!(Icmpv4Repr::parse(&four[usize::from(l4)..usize::from(end)]).is_ok());
        let Ok(Kind::Icmpv6 { l3, l4, end }) = frame::parse(&six) else { panic!("{:?}", frame::parse(&six)) };
        let ip = six[usize::from(l3)..].first_chunk().map(Ipv6Header).expect("parsed");
        prop_assert!(Icmpv6Repr::parse(ip, &six[usize::from(l4)..usize::from(end)]).is_ok());
    }

    #[test]
    fn options_stay_inside_and_in_order(raw in vec(any::<u8>(), 0..=40)) {
        let mut end = 0;
        for option in options::iter(&raw) {
            prop_assert!(option.offset >= end && option.kind == raw[option.offset] && option.kind > 1);
            end = option.offset + 2 + option.data.len();
            prop_assert!(end <= raw.len());
            prop_assert_eq!(option.data, &raw[option.offset + 2..end]);
        }
    }

    #[test]
    fn vlan_tags_come_off_as_they_went_on(bytes in vec(any::<u8>(), 14..100), control in any::<u16>()) {
        let mut buffer = HeapPool::new(1, 128).take_copy(&bytes).expect("fits");
        let tag = VlanTag::from_control(control);
        tag.insert(&mut buffer).expect("there is headroom");
        prop_assert_eq!(frame::parse(buffer.data()), Ok(Kind::Other { ethertype: 0x8100 }));
        prop_assert_eq!(VlanTag::strip(&mut buffer), Some(tag));
        prop_assert_eq!(buffer.data(), &bytes[..]);
    }

    #[test]
    fn mac_addresses_read_back_from_their_text(octets in any::<[u8; 6]>(), text in ".{0,20}") {
        prop_assert_eq!(MacAddr(octets).to_string().parse(), Ok(MacAddr(octets)));
        let _ = text.parse::<MacAddr>();
    }
}
