//! The Internet checksum: computed in one go (RFC 1071) and kept right across changes (RFC 1624).
//!
//! A sum here is the plain ones-complement sum, not yet inverted, as a `u32` below 2^16, so that a few of them can be
//! added with `+`; [`finish`] inverts it. Sums are values as on the wire (big-endian), whatever the machine.
//!
//! Budget: [`sum`] of 64 bytes ≤ 15 cycles, of 1460 bytes ≤ 200; 7 and 86 on a 2.6 GHz EPYC. A [`Delta`] of a kept part,
//! SEQ and ACK, applied, ≤ 10; 4 there (`benches/wire.rs`).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::{Add, AddAssign};

/// The ones-complement sum of `bytes` as 16-bit words, an odd last byte padded with zero.
///
/// Source: RFC 1071 1 and 2(B): the sum may be taken in the machine's byte order and in wider words.
#[inline]
pub fn sum(bytes: &[u8]) -> u32 {
    u32::from(u16::from_be(fold(add_up(bytes))))
}

/// The share of `bytes` that begin `offset` bytes behind the start of the checksummed data in its sum.
///
/// Source: RFC 1071 2(B): at an odd offset the octets of each word change places, and so do those of the sum.
#[inline]
pub fn sum_at(offset: usize, bytes: &[u8]) -> u32 {
    let sum = u16::from_be(fold(add_up(bytes)));
    u32::from(if offset & 1 == 0 { sum } else { sum.swap_bytes() })
}

/// What adds up to the sum of `bytes` in the machine's byte order, modulo 2^16 − 1.
#[inline(always)]
fn add_up(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut total = sum_words(words);
    let (words, rest) = rest.as_chunks::<4>();
    if let [word] = words {
        total += u64::from(u32::from_ne_bytes(*word));
    }
    let (words, rest) = rest.as_chunks::<2>();
    if let [word] = words {
        total += u64::from(u16::from_ne_bytes(*word));
    }
    if let [byte] = rest {
        total += u64::from(u16::from_ne_bytes([*byte, 0]));
    }
    total
}

/// The sum of 32-bit values as they are written on the wire.
///
/// For headers that are made from values: to write them and then [`sum`] them with wider loads would wait for the stores.
#[inline]
pub fn sum_values<const N: usize>(values: [u32; N]) -> u32 {
    u32::from(fold(values.into_iter().map(u64::from).sum()))
}

/// Up to so many words are added with carry, one by one; more are worth the way into vector registers.
const FEW_WORDS: usize = 16;

/// Each step adds two 32-bit halves to a 64-bit total, which cannot overflow below 2^31 steps (16 GiB).
#[inline]
fn sum_words(words: &[[u8; 8]]) -> u64 {
    if words.len() <= FEW_WORDS {
        let total: u128 = words.iter().map(|word| u128::from(u64::from_ne_bytes(*word))).sum();
        return halves(total as u64) + (total >> 64) as u64;
    }
    words.iter().map(|word| halves(u64::from_ne_bytes(*word))).sum()
}

#[inline(always)]
fn halves(word: u64) -> u64 {
    (word >> 32) + (word & 0xffff_ffff)
}

/// Adds the carries back in until 16 bits are left.
#[inline]
const fn fold(total: u64) -> u16 {
    fold32((total.wrapping_add(total.rotate_left(32)) >> 32) as u32)
}

/// The carry of the lower halves goes into the upper ones, where the sum with its carry is left.
#[inline(always)]
const fn fold32(total: u32) -> u16 {
    (total.wrapping_add(total.rotate_left(16)) >> 16) as u16
}

/// The checksum field that belongs to a sum: folded and inverted.
#[inline]
pub fn finish(sum: u32) -> u16 {
    !fold32(sum)
}

/// As [`finish`], for many sums and 32-bit values added up: each counts modulo 2^16 − 1, of which 2^32 − 1 is a multiple.
#[inline]
pub fn finish_wide(sum: u64) -> u16 {
    !fold(sum)
}

/// Whether a sum over data that includes its checksum field says that nothing was changed.
#[inline]
pub fn is_valid(sum: u32) -> bool {
    fold32(sum) == 0xffff
}

/// Whether `bytes`, which include a checksum field, and the values that add up to `rest` say that nothing was changed.
/// `rest` must not be 0, as it never is for a pseudo header.
#[inline(always)]
pub fn is_valid_with(rest: u32, bytes: &[u8]) -> bool {
    let total = add_up(bytes);
    let [low, high] = [rest as u16, (rest >> 16) as u16].map(|half| u64::from(half.to_be()));
    // 2^16 ≡ 2^32 ≡ 1 modulo 0xffff, whichever way the octets of a word stand.
    (total + low + high).is_multiple_of(0xffff)
}

/// The checksum field of `bytes`, whose own checksum field must hold zero.
#[inline]
pub fn internet(bytes: &[u8]) -> u16 {
    finish(sum(bytes))
}

/// The sum of the IPv4 pseudo header (RFC 9293 3.1); `len` is the length of the TCP segment.
#[inline]
pub fn pseudo_header_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u16) -> u32 {
    u32::from(fold(wide_pseudo_header_v4(src, dst, protocol, len)))
}

#[inline(always)]
fn wide_pseudo_header_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u16) -> u64 {
    u64::from(src.to_bits()) + u64::from(dst.to_bits()) + u64::from(protocol) + u64::from(len)
}

/// The sum of the IPv6 pseudo header (RFC 8200 8.1); `len` is the length of the upper-layer packet.
#[inline]
pub fn pseudo_header_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, len: u16) -> u32 {
    u32::from(fold(wide_pseudo_header_v6(src, dst, protocol, len)))
}

#[inline(always)]
fn wide_pseudo_header_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, len: u16) -> u64 {
    let words = |address: Ipv6Addr| {
        let bits = address.to_bits();
        halves((bits >> 64) as u64) + halves(bits as u64)
    };
    words(src) + words(dst) + u64::from(protocol) + u64::from(len)
}

/// The sum of the pseudo header, or nothing if the addresses are of two families.
#[inline]
pub fn pseudo_header(src: IpAddr, dst: IpAddr, protocol: u8, len: u16) -> Option<u32> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(pseudo_header_v4(src, dst, protocol, len)),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Some(pseudo_header_v6(src, dst, protocol, len)),
        _ => None,
    }
}

/// As [`pseudo_header`], for [`finish_wide`]: not folded, and below 2^36.
#[inline(always)]
pub fn wide_pseudo_header(src: IpAddr, dst: IpAddr, protocol: u8, len: u16) -> Option<u64> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(wide_pseudo_header_v4(src, dst, protocol, len)),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Some(wide_pseudo_header_v6(src, dst, protocol, len)),
        _ => None,
    }
}

/// What a set of changes to checksummed data does to the checksum.
///
/// Changes are collected first and applied once. A wrong checksum stays wrong by as much as it was, so the receiver still
/// finds an error that happened before us. A delta of changes that are always the same (addresses, ports of a connection)
/// can be kept and added to others.
///
/// Source: RFC 1624 3, equation 3: `HC' = ~(~HC + ~m + m')`. It holds `Σ(~m + m')` as it is: 2^30 changes fit before it
/// could overflow, and what it is applied to counts modulo 2^16 − 1. Unlike equation 4 it yields 0x0000 where a
/// recomputation does, never 0xffff.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Delta(u64);

impl Delta {
    /// No change.
    pub const ZERO: Self = Self(0);

    /// Adds the change of a 16-bit field.
    #[inline]
    #[must_use]
    pub const fn replace16(self, old: u16, new: u16) -> Self {
        self.plus((!old).to_be() as u32).plus(new.to_be() as u32)
    }

    /// Adds the change of a 32-bit field.
    #[inline]
    #[must_use]
    pub const fn replace32(self, old: u32, new: u32) -> Self {
        self.plus((!old).to_be()).plus(new.to_be())
    }

    /// Adds the change of a 32-bit field that starts `offset` bytes behind the start of the checksummed data.
    ///
    /// At an odd offset its bytes count in the other half of their 16-bit words: 256 times as much, which in this
    /// arithmetic is a rotation by 8 (RFC 1071 2(B)). TCP options may put a field there.
    #[inline]
    #[must_use]
    pub const fn replace32_at(self, offset: usize, old: u32, new: u32) -> Self {
        let rotation = (offset as u32 & 1) * 8;
        self.replace32(old.rotate_left(rotation), new.rotate_left(rotation))
    }

    /// Adds the change of a 128-bit field.
    #[inline]
    #[must_use]
    pub const fn replace128(self, old: u128, new: u128) -> Self {
        self.replace32((old >> 96) as u32, (new >> 96) as u32)
            .replace32((old >> 64) as u32, (new >> 64) as u32)
            .replace32((old >> 32) as u32, (new >> 32) as u32)
            .replace32(old as u32, new as u32)
    }

    /// Adds the change of some bytes, `offset` bytes behind the start of the checksummed data.
    ///
    /// Where one is longer, the data must grow or shrink at its end.
    #[inline]
    #[must_use]
    pub fn replace_bytes(self, offset: usize, old: &[u8], new: &[u8]) -> Self {
        let rotation = (offset as u32 & 1) * 8;
        self.replace32(sum(old).rotate_left(rotation), sum(new).rotate_left(rotation))
    }

    /// The checksum field after the changes.
    #[inline]
    #[must_use]
    pub const fn apply(self, checksum: u16) -> u16 {
        u16::from_be(!fold(self.plus((!checksum).to_be() as u32).0))
    }

    /// In the order of the wire: what was read from a frame or will be written there is added as it stands (RFC 1071 2(B)).
    #[inline(always)]
    const fn plus(self, value: u32) -> Self {
        Self(self.0 + value as u64)
    }
}

impl Add for Delta {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Delta {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071 1, word by word: slow, obvious.
    fn reference_sum(bytes: &[u8]) -> u16 {
        let mut sum = 0u64;
        for pair in bytes.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }

    /// RFC 1071 2: a sum counts modulo 2^16 − 1, and what is not nothing never folds to nothing.
    #[test]
    fn folding_keeps_the_remainder() {
        let halves = [
            0,
            1,
            0xfffe,
            0xffff,
            0x1_0000,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_0000,
            0xffff_ffff,
        ];
        for total in halves
            .iter()
            .flat_map(|high: &u64| halves.iter().map(move |low| high << 32 | low))
        {
            let folded = fold(total);
            assert_eq!(u64::from(folded) % 0xffff, total % 0xffff, "{total:#x}");
            assert_eq!(folded == 0, total == 0, "{total:#x}");
        }
    }

    #[test]
    fn sums_the_example_of_rfc_1071() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(internet(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0x220d);
    }

    #[test]
    fn validity_is_that_of_the_sum() {
        let mut bytes: Vec<u8> = (0..200u32).map(|i| (i * 167 + 13) as u8).collect();
        for len in 2..bytes.len() {
            for rest in [1, 6, 0xffff, 0x1_0005, 0xffff_ffff] {
                bytes[..2].fill(0);
                let checksum = finish(fold32(rest).into()).to_be_bytes();
                let partly = u32::from(!u16::from_be_bytes(checksum)) + sum(&bytes[..len]);
                let field = finish(partly);
                bytes[..2].copy_from_slice(&field.to_be_bytes());
                assert!(is_valid_with(rest, &bytes[..len]), "{len} {rest}");
                for at in 0..len {
                    bytes[at] ^= 0x10;
                    assert!(!is_valid_with(rest, &bytes[..len]), "{len} {rest} {at}");
                    bytes[at] ^= 0x10;
                }
            }
        }
    }

    #[test]
    fn sums_values_as_the_bytes_they_are_written_as() {
        let values = [0x0102_0304, u32::MAX, 0xfffe_0001, 0, 0x8000_0000];
        let bytes: Vec<u8> = values.iter().flat_map(|value: &u32| value.to_be_bytes()).collect();
        assert_eq!(sum_values(values), sum(&bytes));
    }

    #[test]
    fn sums_every_length_and_alignment() {
        let bytes: Vec<u8> = (0..200u32).map(|i| (i * 167 + 13) as u8).collect();
        for start in 0..9 {
            for end in start..bytes.len() {
                let part = &bytes[start..end];
                assert_eq!(sum(part), u32::from(reference_sum(part)), "{start}..{end}");
            }
        }
    }

    #[test]
    fn sums_of_parts_add_up_to_that_of_the_whole() {
        let bytes: Vec<u8> = (0..61u32).map(|i| (i * 151 + 7) as u8).collect();
        for cut in 0..=bytes.len() {
            let (front, rest) = bytes.split_at(cut);
            assert_eq!(finish(sum(front) + sum_at(cut, rest)), internet(&bytes), "cut at {cut}");
        }
    }

    #[test]
    fn carries_are_not_lost_in_the_largest_sums() {
        for len in [0, 1, 2, 7, 8, 9, 1460, 65_535] {
            let ones = vec![0xff; len];
            assert_eq!(sum(&ones), u32::from(reference_sum(&ones)), "{len}");
        }
    }

    /// RFC 1624 4: where RFC 1141's equation gives 0xffff, equation 3 gives the 0x0000 of a recomputation.
    #[test]
    fn corner_case_of_rfc_1624() {
        assert_eq!(Delta::ZERO.replace16(0x5555, 0x3285).apply(0xdd2f), 0x0000);
    }

    #[test]
    fn no_change_leaves_every_checksum_alone() {
        for checksum in 0..=u16::MAX {
            assert_eq!(Delta::ZERO.apply(checksum), checksum);
        }
        // Only all-zero data has 0xffff, and 0x0000 means the same then.
        for checksum in 0..u16::MAX {
            assert_eq!(Delta::ZERO.replace16(0x1234, 0x1234).apply(checksum), checksum);
        }
    }

    #[test]
    fn delta_of_many_changes_does_not_overflow() {
        let mut delta = Delta::ZERO;
        for _ in 0..100_000 {
            delta = delta.replace32(0, u32::MAX).replace16(u16::MAX, 0);
        }
        // Both changes are multiples of 0xffff: the checksum stays.
        assert_eq!(delta.apply(0x1234), 0x1234);
    }

    #[test]
    fn pseudo_headers_sum_as_their_bytes_do() {
        let (src, dst) = (Ipv4Addr::new(192, 0, 2, 255), Ipv4Addr::new(255, 254, 0, 9));
        let mut bytes = [src.octets(), dst.octets()].concat();
        bytes.extend([0, 6, 0x12, 0x34]);
        assert_eq!(pseudo_header_v4(src, dst, 6, 0x1234), sum(&bytes));
        assert_eq!(pseudo_header(src.into(), dst.into(), 6, 0x1234), Some(sum(&bytes)));

        let (src, dst) = (
            Ipv6Addr::from([0xfe; 16]),
            "2001:db8::ffff:1".parse::<Ipv6Addr>().expect("address"),
        );
        let mut bytes = [src.octets(), dst.octets()].concat();
        bytes.extend([0, 0, 0xff, 0xf0, 0, 0, 0, 58]);
        assert_eq!(pseudo_header_v6(src, dst, 58, 0xfff0), sum(&bytes));
        assert_eq!(pseudo_header(src.into(), IpAddr::V4(Ipv4Addr::LOCALHOST), 6, 0), None);
    }
}
