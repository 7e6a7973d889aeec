//! A checksum carried along is the checksum computed anew, for every field that is ever changed.

use std::net::IpAddr;

use e2d2::wire::checksum::{self, Delta};
use e2d2::wire::frame::{self, IpHeader, Kind, TcpLayout};
use e2d2::wire::tcp::{TcpFlags, options};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::arbitrary::{self, Segment};

fn laid_out(segment: &Segment) -> (Vec<u8>, TcpLayout) {
    let bytes = segment.frame();
    match frame::parse(&bytes) {
        Ok(Kind::Tcp(layout)) => (bytes, layout),
        other => panic!("{other:?}"),
    }
}

/// Not only valid: the same 16 bits that a computation from nothing gives.
fn assert_computed_anew_is_the_same(bytes: &[u8], layout: TcpLayout) {
    let carried = layout.tcp(bytes).expect("its own layout").checksum();
    let mut segment = bytes[usize::from(layout.l4)..usize::from(layout.end)].to_vec();
    segment[16..18].fill(0);
    let pseudo = layout.pseudo_header_sum(bytes).expect("its own layout");
    assert_eq!(carried, checksum::finish(pseudo + checksum::sum(&segment)));
    // The IPv4 header's, too.
    assert_eq!(frame::parse(bytes), Ok(Kind::Tcp(layout)));
}

/// Values at which carries and the two zeros of ones-complement arithmetic meet.
fn edgy16() -> impl Strategy<Value = u16> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(0x7fff),
        Just(0x8000),
        Just(0xfffe),
        Just(0xffff),
        any::<u16>()
    ]
}

fn edgy32() -> impl Strategy<Value = u32> {
    (edgy16(), edgy16()).prop_map(|(high, low)| u32::from(high) << 16 | u32::from(low))
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// What splicing rewrites.
#[derive(Clone, Debug)]
struct Rewrite {
    ports: (u16, u16),
    numbers: (u32, u32),
    window: u16,
    flags: u8,
    urgent: u16,
    timestamps: (u32, u32),
    sack_shift: u32,
    hop_limit: u8,
}

fn rewrite() -> impl Strategy<Value = Rewrite> {
    (
        (edgy16(), edgy16()),
        (edgy32(), edgy32()),
        edgy16(),
        any::<u8>(),
        edgy16(),
        (edgy32(), edgy32()),
        edgy32(),
        any::<u8>(),
    )
        .prop_map(
            |(ports, numbers, window, flags, urgent, timestamps, sack_shift, hop_limit)| Rewrite {
                ports,
                numbers,
                window,
                flags,
                urgent,
                timestamps,
                sack_shift,
                hop_limit,
            },
        )
}

/// Rewrites everything at once and carries the checksums along.
fn apply(rewrite: &Rewrite, bytes: &mut [u8], layout: TcpLayout, src: IpAddr, dst: IpAddr) {
    let mut parts = layout.split_mut(bytes).expect("its own layout");
    let mut delta = parts
        .ip
        .readdress(src, dst, rewrite.hop_limit)
        .expect("of the same version");
    let tcp = &mut parts.tcp;
    delta = delta
        .replace16(tcp.src_port(), rewrite.ports.0)
        .replace16(tcp.dst_port(), rewrite.ports.1)
        .replace32(tcp.seq(), rewrite.numbers.0)
        .replace32(tcp.ack(), rewrite.numbers.1)
        .replace16(tcp.window(), rewrite.window)
        .replace16(tcp.flags().bits().into(), rewrite.flags.into())
        .replace16(tcp.urgent(), rewrite.urgent);
    tcp.set_src_port(rewrite.ports.0);
    tcp.set_dst_port(rewrite.ports.1);
    tcp.set_seq(rewrite.numbers.0);
    tcp.set_ack(rewrite.numbers.1);
    tcp.set_window(rewrite.window);
    tcp.set_flags(TcpFlags::from_bits_retain(rewrite.flags));
    tcp.set_urgent(rewrite.urgent);
    if let Some(at) = options::find_timestamps(parts.options) {
        delta += options::write_timestamps(parts.options, at, rewrite.timestamps.0, rewrite.timestamps.1);
    }
    let shift = |edge: u32| edge.wrapping_add(rewrite.sack_shift);
    delta += options::translate_sack(parts.options, |left, right| (shift(left), shift(right)));
    parts.tcp.adjust_checksum(delta);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_field_at_once(
        segment in arbitrary::segment(),
        rewrite in rewrite(),
        four in (arbitrary::ipv4_addr(), arbitrary::ipv4_addr()),
        six in (arbitrary::ipv6_addr(), arbitrary::ipv6_addr()),
    ) {
        let (mut bytes, layout) = laid_out(&segment);
        let (src, dst) = if segment.envelope.src_addr.is_ipv4() {
            (four.0.into(), four.1.into())
        } else {
            (six.0.into(), six.1.into())
        };
        apply(&rewrite, &mut bytes, layout, src, dst);
        assert_computed_anew_is_the_same(&bytes, layout);
        let parts = layout.split(&bytes).expect("its own layout");
        prop_assert_eq!((parts.ip.src_addr(), parts.ip.dst_addr(), parts.ip.hop_limit()), (src, dst, rewrite.hop_limit));
    }

    #[test]
    fn wrong_checksums_stay_wrong_by_as_much(
        segment in arbitrary::segment(),
        rewrite in rewrite(),
        error in 1..0xffffu16,
    ) {
        let (good, layout) = laid_out(&segment);
        let mut bad = good.clone();
        let mut parts = layout.split_mut(&mut bad).expect("its own layout");
        let wrong = Delta::ZERO.replace16(0, error).apply(parts.tcp.checksum());
        parts.tcp.set_checksum(wrong);
        prop_assert!(!layout.is_checksum_valid(&bad));

        let (src, dst) = (segment.envelope.dst_addr, segment.envelope.src_addr);
        let mut rewritten = good;
        apply(&rewrite, &mut rewritten, layout, src, dst);
        apply(&rewrite, &mut bad, layout, src, dst);
        prop_assert!(!layout.is_checksum_valid(&bad));
        let good = layout.tcp(&rewritten).expect("its own layout").checksum();
        let bad = layout.tcp(&bad).expect("its own layout").checksum();
        prop_assert_eq!(bad, Delta::ZERO.replace16(0, error).apply(good));
    }

    /// The pseudo header's sum is all that changes when a segment goes from one IP version to the other.
    #[test]
    fn segments_that_change_the_ip_version(
        segment in arbitrary::segment(),
        four in (arbitrary::ipv4_addr(), arbitrary::ipv4_addr()),
        six in (arbitrary::ipv6_addr(), arbitrary::ipv6_addr()),
    ) {
        let old = segment.envelope;
        let new: (IpAddr, IpAddr) =
            if old.src_addr.is_ipv4() { (six.0.into(), six.1.into()) } else { (four.0.into(), four.1.into()) };
        let delta = Delta::ZERO
            .replace_bytes(0, &octets(old.src_addr), &octets(new.0))
            .replace_bytes(0, &octets(old.dst_addr), &octets(new.1));
        let (bytes, layout) = laid_out(&segment);
        let carried = delta.apply(layout.tcp(&bytes).expect("its own layout").checksum());

        let mut translated = segment.clone();
        (translated.envelope.src_addr, translated.envelope.dst_addr) = new;
        let (bytes, layout) = laid_out(&translated);
        prop_assert_eq!(carried, layout.tcp(&bytes).expect("its own layout").checksum());
    }

    #[test]
    fn replaced_bytes_at_any_offset(
        mut data in vec(any::<u8>(), 1..120),
        new in vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 1..60),
        at in any::<prop::sample::Index>(),
    ) {
        // Something that is never zero, as a pseudo header is.
        let constant = 0x1234;
        let at = at.index(data.len());
        let len = new.len().min(data.len() - at);
        let before = checksum::finish(constant + checksum::sum(&data));
        let delta = Delta::ZERO.replace_bytes(at, &data[at..at + len], &new[..len]);
        data[at..at + len].copy_from_slice(&new[..len]);
        prop_assert_eq!(delta.apply(before), checksum::finish(constant + checksum::sum(&data)));
    }

    #[test]
    fn single_fields_at_the_corners(old in edgy16(), new in edgy16(), rest in 1..=u16::MAX) {
        let sum = |field: u16| u32::from(field) + u32::from(rest);
        let carried = Delta::ZERO.replace16(old, new).apply(checksum::finish(sum(old)));
        prop_assert_eq!(carried, checksum::finish(sum(new)));
    }

    #[test]
    fn kept_deltas_add_up(fields in vec((edgy32(), edgy32()), 1..10), checksum in any::<u16>()) {
        let at_once = fields.iter().fold(Delta::ZERO, |delta, (old, new)| delta.replace32(*old, *new));
        let added = fields.iter().map(|(old, new)| Delta::ZERO.replace32(*old, *new)).fold(Delta::ZERO, |a, b| a + b);
        prop_assert_eq!(at_once.apply(checksum), added.apply(checksum));
    }

    #[test]
    fn hop_limit_alone(segment in arbitrary::segment(), hop_limit in any::<u8>()) {
        let (mut bytes, layout) = laid_out(&segment);
        let mut parts = layout.split_mut(&mut bytes).expect("its own layout");
        let (src, dst) = (segment.envelope.src_addr, segment.envelope.dst_addr);
        parts.ip.readdress(src, dst, hop_limit).expect("of the same version");
        assert_computed_anew_is_the_same(&bytes, layout);
        let is_right = match layout.ip(&bytes).expect("its own layout") {
            IpHeader::V4(ip) => ip.hop_limit() == hop_limit,
            IpHeader::V6(ip) => ip.hop_limit() == hop_limit,
        };
        prop_assert!(is_right);
    }
}
