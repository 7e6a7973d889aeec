//! The rewriting of a spliced segment whose other leg has the other version of IP (RFC 7915, DECISIONS.md 21).
//!
//! A translator between networks maps addresses; here both legs have end points of their own, so what is left of
//! RFC 7915 is the exchange of one IP header for the other, in the buffer where the packet is: the frame begins 20 bytes
//! earlier or later, and TCP stays in its place. TCP's checksum is brought along incrementally as ever; of the pseudo
//! header only the addresses differ, for length and protocol sum up alike in both versions (RFC 8200 8.1).
//!
//! Budget: half as much again as [`translate::rewrite`], because a whole IP header is written. Nothing about the change of
//! addresses is kept: both pairs are at hand, and their sums cost less than a look-up. Source: `benches/core`.

use crate::base::drop_reason::DropReason;
use crate::rewrite::translate::{self, Rewrite};
use e2d2::buffer::PacketBuffer;
use e2d2::wire::checksum::{self, Delta};
use e2d2::wire::ethernet::ethertype;
use e2d2::wire::frame::{IpHeader, IpVersion, TcpLayout};
use e2d2::wire::{ethernet, ipv4, ipv6, protocol};
use netfcts::leg::mapped;

/// RFC 7915 5.1: an IPv4 packet up to this size may be fragmented, because its sender, being told that even less fits,
/// would not send less than the least MTU of IPv6.
const MAY_BE_FRAGMENTED: u16 = ipv6::MIN_MTU - GROWTH;

/// The difference between the two headers.
const GROWTH: u16 = (ipv6::HEADER_LEN - ipv4::HEADER_LEN) as u16;

/// The length of the packet after translation, without Ethernet header.
#[inline]
pub(crate) fn packet_len(layout: &TcpLayout) -> u32 {
    u32::from(layout.version.other().header_len()) + u32::from(layout.segment_len())
}

/// What a sender of version `from` must be told of a link of the other version that takes packets of `mtu` bytes.
pub(crate) fn mtu_for(from: IpVersion, mtu: u32) -> u32 {
    match from {
        IpVersion::V4 => mtu.saturating_sub(u32::from(GROWTH)),
        // RFC 7915 4.2: never less than every link of IPv6 takes.
        IpVersion::V6 => mtu.saturating_add(u32::from(GROWTH)).max(u32::from(ipv6::MIN_MTU)),
    }
}

/// The fields of the old IP header that have a place in the new one.
struct Kept {
    class: u8,
    hop_limit: u8,
    source: u128,
    destination: u128,
}

/// Rewrites the TCP packet in `buffer`, whose headers are where `layout` says, with an IP header of the other version;
/// the addresses in `values` are of that. IPv4 options end here (RFC 7915 4.1). After this `layout` no longer holds.
///
/// # Errors
/// [`DropReason::HopLimit`], [`DropReason::SourceRoute`] or [`DropReason::NoHeadroom`] if the packet cannot be passed on;
/// it is then as it was.
pub fn rewrite<B: PacketBuffer>(buffer: &mut B, layout: &TcpLayout, values: &Rewrite) -> Result<(), DropReason> {
    let kept = read(buffer.data(), layout)?;
    // Room for Ethernet and the new IP header, directly before TCP.
    let version = layout.version.other();
    let new = ethernet::HEADER_LEN + usize::from(version.header_len());
    let old = usize::from(layout.l4);
    if new > old {
        buffer.prepend(new - old).map_err(|_| DropReason::NoHeadroom)?;
    } else {
        buffer.trim_front(old - new);
    }
    // Ethernet padding would no longer be any: the packet may be longer or shorter than the least frame.
    buffer.truncate(new + usize::from(layout.segment_len()));

    let (headers, tcp) = buffer
        .data_mut()
        .split_at_mut_checked(new)
        .ok_or(DropReason::BadLayout)?;
    let (link, ip) = headers.split_first_chunk_mut().ok_or(DropReason::BadLayout)?;
    write_ethernet(link, version, values);
    match version {
        IpVersion::V4 => write_ipv4(ip, layout.segment_len(), &kept, values),
        IpVersion::V6 => write_ipv6(ip, layout.segment_len(), &kept, values),
    }
    let addresses = Delta::ZERO.replace32(
        sum_of(kept.source, kept.destination),
        sum_of(values.source, values.destination),
    );
    let header_len = usize::from(layout.payload - layout.l4);
    translate::rewrite_tcp(tcp, header_len, addresses, values);
    Ok(())
}

/// Reads what is kept, and whether the packet may be passed on at all.
fn read(frame: &[u8], layout: &TcpLayout) -> Result<Kept, DropReason> {
    let header = layout.ip(frame).ok_or(DropReason::BadLayout)?;
    // RFC 1812 5.3.1 and RFC 8200 3, which RFC 7915 4.1 and 5.1 repeat: no router counts down to zero and passes on.
    if header.hop_limit() <= 1 {
        return Err(DropReason::HopLimit);
    }
    if let IpHeader::V4(_) = header {
        let options = frame
            .get(usize::from(layout.l3) + ipv4::HEADER_LEN..usize::from(layout.l4))
            .unwrap_or_default();
        if has_unexpired_source_route(options) {
            return Err(DropReason::SourceRoute);
        }
    }
    Ok(Kept {
        class: header.traffic_class(),
        hop_limit: header.hop_limit() - 1,
        source: mapped(header.src_addr()),
        destination: mapped(header.dst_addr()),
    })
}

/// RFC 7915 4.1: a source route that has not come to its end cannot be gone on with in IPv6, and must not be ignored.
fn has_unexpired_source_route(mut options: &[u8]) -> bool {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const LOOSE_SOURCE_ROUTE: u8 = 131;
    const STRICT_SOURCE_ROUTE: u8 = 137;
    while let [kind, rest @ ..] = options {
        match (*kind, rest) {
            (END, _) => return false,
            (NO_OPERATION, _) => options = rest,
            // RFC 791 3.1: the route is over when the pointer is greater than the length.
            (LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE, [len, pointer, ..]) if pointer <= len => return true,
            // A length that includes neither kind nor itself leads nowhere.
            (_, [len, ..]) if *len >= 2 => options = options.get(usize::from(*len)..).unwrap_or_default(),
            _ => return false,
        }
    }
    false
}

fn write_ethernet(link: &mut [u8; ethernet::HEADER_LEN], version: IpVersion, values: &Rewrite) {
    let ethertype = match version {
        IpVersion::V4 => ethertype::IPV4,
        IpVersion::V6 => ethertype::IPV6,
    };
    link[..6].copy_from_slice(&values.destination_mac.0);
    link[6..12].copy_from_slice(&values.source_mac.0);
    link[12..].copy_from_slice(&ethertype.to_be_bytes());
}

/// RFC 7915 5.1.
fn write_ipv4(ip: &mut [u8], segment_len: u16, kept: &Kept, values: &Rewrite) {
    const DONT_FRAGMENT: u32 = 0x4000;
    let Some(header) = ip.first_chunk_mut::<{ ipv4::HEADER_LEN }>() else {
        return;
    };
    let total_len = ipv4::HEADER_LEN as u16 + segment_len;
    // RFC 6864 4.1: only what may be fragmented needs an identification of its own.
    let fragmentation = if total_len <= MAY_BE_FRAGMENTED {
        u32::from(values.ip_id) << 16
    } else {
        DONT_FRAGMENT
    };
    let mut words = [
        0x4500_0000 | u32::from(kept.class) << 16 | u32::from(total_len),
        fragmentation,
        u32::from(kept.hop_limit) << 24 | u32::from(protocol::TCP) << 16,
        values.source as u32,
        values.destination as u32,
    ];
    words[2] |= u32::from(checksum::finish(checksum::sum_values(words)));
    for (place, word) in header.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *place = word.to_be_bytes();
    }
}

/// RFC 7915 4.1, with a flow label of zero as in what we originate: one label for all of a connection.
fn write_ipv6(ip: &mut [u8], segment_len: u16, kept: &Kept, values: &Rewrite) {
    let Some(header) = ip.first_chunk_mut::<{ ipv6::HEADER_LEN }>() else {
        return;
    };
    let first = 0x6000_0000 | u32::from(kept.class) << 20;
    let second = u32::from(segment_len) << 16 | u32::from(protocol::TCP) << 8 | u32::from(kept.hop_limit);
    header[..4].copy_from_slice(&first.to_be_bytes());
    header[4..8].copy_from_slice(&second.to_be_bytes());
    header[8..24].copy_from_slice(&values.source.to_be_bytes());
    header[24..].copy_from_slice(&values.destination.to_be_bytes());
}

/// What two addresses are in the sum over the pseudo header. The prefix of a mapped IPv4 address counts for nothing: its
/// `ffff` is the other zero of this arithmetic.
#[inline]
fn sum_of(source: u128, destination: u128) -> u32 {
    let halves = |value: u128| {
        let (high, low) = ((value >> 64) as u64, value as u64);
        (high >> 32) + (high & 0xffff_ffff) + (low >> 32) + (low & 0xffff_ffff)
    };
    // Eight words of 32 bits need 35; two folds bring the carries home.
    let sum = halves(source) + halves(destination);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    ((sum >> 32) + (sum & 0xffff_ffff)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_case::test_case;

    #[test_case(&[] => false; "none")]
    #[test_case(&[1, 1, 1, 0] => false; "padding")]
    #[test_case(&[131, 7, 4, 10, 0, 0, 1, 0] => true; "loose, unexpired")]
    #[test_case(&[137, 7, 7, 10, 0, 0, 1, 0] => true; "strict, its last hop unexpired")]
    #[test_case(&[137, 7, 8, 10, 0, 0, 1, 0] => false; "expired")]
    #[test_case(&[148, 4, 0, 0, 131, 7, 4, 10, 0, 0, 1, 0] => true; "behind a router alert")]
    #[test_case(&[0, 131, 7, 4] => false; "behind the end")]
    #[test_case(&[7, 0, 131, 7, 4] => false; "behind an option without length")]
    #[test_case(&[7, 200] => false; "an option longer than the header")]
    #[test_case(&[131] => false; "cut off")]
    fn source_routes(options: &[u8]) -> bool {
        has_unexpired_source_route(options)
    }

    #[test_case(IpVersion::V4, 1500 => 1480; "an IPv4 sender before an IPv6 link")]
    #[test_case(IpVersion::V4, 1280 => 1260; "of the least MTU")]
    #[test_case(IpVersion::V6, 1480 => 1500; "an IPv6 sender before an IPv4 link")]
    #[test_case(IpVersion::V6, 1261 => 1281; "that takes a little more than the least of IPv6")]
    #[test_case(IpVersion::V6, 1260 => 1280; "exactly it")]
    #[test_case(IpVersion::V6, 576 => 1280; "far less")]
    fn mtus(sender: IpVersion, mtu: u32) -> u32 {
        mtu_for(sender, mtu)
    }

    #[test]
    fn sums_of_addresses_are_those_of_the_pseudo_header() {
        use std::net::IpAddr;
        let pairs: [(IpAddr, IpAddr); 4] = [
            ([10, 0, 0, 1].into(), [255, 255, 255, 255].into()),
            ([0, 0, 0, 0].into(), [192, 0, 2, 9].into()),
            (IpAddr::V6([0xff; 16].into()), IpAddr::V6([0xff; 16].into())),
            (IpAddr::V6([0x20; 16].into()), IpAddr::V6([0xfd; 16].into())),
        ];
        for (source, destination) in pairs {
            let ours = sum_of(mapped(source), mapped(destination));
            let theirs = checksum::pseudo_header(source, destination, 0, 0).expect("one family");
            assert_eq!(ours % 0xffff, theirs % 0xffff, "{source} {destination}");
        }
    }
}
