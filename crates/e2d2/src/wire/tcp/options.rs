//! TCP options: read them all into a [`TcpOptions`], walk over them, change them in place, write them.
//!
//! Nothing here fails on what a peer sends: RFC 9293 3.1 (MUST-7) wants malformed options survived. Reading stops at the
//! first option whose length is impossible; what stands before it counts, what follows does not.

use arrayvec::ArrayVec;

use super::MAX_OPTIONS_LEN;
use crate::wire::checksum::Delta;

/// Option kinds (IANA, TCP Option Kind Numbers).
pub mod kind {
    /// End of the option list (RFC 9293).
    pub const END: u8 = 0;
    /// No operation (RFC 9293).
    pub const NOP: u8 = 1;
    /// Maximum segment size (RFC 9293).
    pub const MSS: u8 = 2;
    /// Window scale (RFC 7323).
    pub const WINDOW_SCALE: u8 = 3;
    /// SACK permitted (RFC 2018).
    pub const SACK_PERMITTED: u8 = 4;
    /// SACK blocks (RFC 2018).
    pub const SACK: u8 = 5;
    /// Timestamps (RFC 7323).
    pub const TIMESTAMPS: u8 = 8;
    /// MD5 signature (RFC 2385).
    pub const MD5: u8 = 19;
    /// User timeout (RFC 5482).
    pub const USER_TIMEOUT: u8 = 28;
    /// Authentication (RFC 5925).
    pub const AUTHENTICATION: u8 = 29;
    /// Multipath TCP (RFC 8684).
    pub const MULTIPATH: u8 = 30;
    /// Fast open cookie (RFC 7413).
    pub const FAST_OPEN: u8 = 34;
}

/// RFC 7323 2.3: a larger shift must be used as this one.
pub const MAX_WINDOW_SCALE: u8 = 14;

/// The SACK blocks of a segment, `(left, right)` edges; no more than four fit.
pub type SackBlocks = ArrayVec<(u32, u32), 4>;

/// Options as bytes, padded to a multiple of four.
pub type OptionBytes = ArrayVec<u8, MAX_OPTIONS_LEN>;

/// The options that matter to a connection.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TcpOptions {
    /// The largest segment that the sender takes; meant only in a SYN.
    pub mss: Option<u16>,
    /// The shift of the sender's window, at most [`MAX_WINDOW_SCALE`]; meant only in a SYN.
    pub window_scale: Option<u8>,
    /// Whether the sender takes SACK blocks; meant only in a SYN.
    pub sack_permitted: bool,
    /// TSval and TSecr.
    pub timestamps: Option<(u32, u32)>,
}

impl TcpOptions {
    /// No options.
    pub const NONE: Self = Self {
        mss: None,
        window_scale: None,
        sack_permitted: false,
        timestamps: None,
    };

    /// Reads the raw options of a header. Of an option that comes twice the last one counts, as in Linux.
    #[inline]
    pub fn parse(raw: &[u8]) -> Self {
        if let Some(at) = aligned_timestamps(raw) {
            return Self {
                timestamps: read_timestamps(raw, at),
                ..Self::NONE
            };
        }
        Self::parse_linux_syn(raw).unwrap_or_else(|| Self::parse_any(raw))
    }

    /// The options of a SYN in the order and padding of Linux, which [`TcpOptions::encode`] uses as well.
    #[inline]
    fn parse_linux_syn(raw: &[u8]) -> Option<Self> {
        let &[
            kind::MSS,
            4,
            high,
            low,
            kind::SACK_PERMITTED,
            2,
            kind::TIMESTAMPS,
            10,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            kind::NOP,
            kind::WINDOW_SCALE,
            3,
            shift,
        ] = raw
        else {
            return None;
        };
        Some(Self {
            mss: Some(u16::from_be_bytes([high, low])),
            window_scale: Some(shift.min(MAX_WINDOW_SCALE)),
            sack_permitted: true,
            timestamps: read_timestamps(raw, 6),
        })
    }

    fn parse_any(raw: &[u8]) -> Self {
        let mut options = Self::NONE;
        for option in iter(raw) {
            match (option.kind, option.data) {
                (kind::MSS, &[high, low]) => options.mss = Some(u16::from_be_bytes([high, low])),
                (kind::WINDOW_SCALE, &[shift]) => options.window_scale = Some(shift.min(MAX_WINDOW_SCALE)),
                (kind::SACK_PERMITTED, []) => options.sack_permitted = true,
                (kind::TIMESTAMPS, data) if data.len() == 8 => {
                    options.timestamps = read_timestamps(raw, option.offset);
                }
                _ => {}
            }
        }
        options
    }

    /// Bytes that [`TcpOptions::encode`] makes of these options and so many SACK blocks.
    #[inline]
    pub fn encoded_len(&self, sack_blocks: usize) -> usize {
        let timestamps = if self.timestamps.is_some() { 12 } else { 0 };
        let sack_permitted = if self.sack_permitted && self.timestamps.is_none() {
            4
        } else {
            0
        };
        let sack = if sack_blocks > 0 { 4 + 8 * sack_blocks } else { 0 };
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let window_scale = if self.window_scale.is_some() { 4 } else { 0 };
        mss + timestamps + sack_permitted + window_scale + sack
    }

    /// Writes the options in Linux's order and padding: MSS, timestamps (behind SACK permitted or two NOPs, so that both
    /// values are aligned), window scale, SACK blocks. Blocks that do not fit any more are left out, last first.
    pub fn encode(&self, sack_blocks: &[(u32, u32)]) -> OptionBytes {
        let mut bytes = OptionBytes::new();
        self.for_each_word(sack_blocks, |word| {
            let fits = bytes.try_extend_from_slice(&word);
            debug_assert!(
                fits.is_ok(),
                "20 bytes of fixed options and as many blocks as fit behind them"
            );
        });
        bytes
    }

    /// How many of so many SACK blocks fit behind these options.
    #[inline]
    pub(super) fn fitting_blocks(&self, sack_blocks: usize) -> usize {
        if sack_blocks == 0 {
            return 0;
        }
        sack_blocks.min((MAX_OPTIONS_LEN - self.encoded_len(0)).saturating_sub(4) / 8)
    }

    /// What [`TcpOptions::encode`] writes, four bytes at a time.
    #[inline(always)]
    pub(super) fn for_each_word(&self, sack_blocks: &[(u32, u32)], mut put: impl FnMut([u8; 4])) {
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            put([kind::MSS, 4, high, low]);
        }
        if let Some((value, echo)) = self.timestamps {
            let [first, second] = if self.sack_permitted {
                [kind::SACK_PERMITTED, 2]
            } else {
                [kind::NOP; 2]
            };
            put([first, second, kind::TIMESTAMPS, 10]);
            put(value.to_be_bytes());
            put(echo.to_be_bytes());
        } else if self.sack_permitted {
            put([kind::NOP, kind::NOP, kind::SACK_PERMITTED, 2]);
        }
        if let Some(shift) = self.window_scale {
            put([kind::NOP, kind::WINDOW_SCALE, 3, shift]);
        }
        let blocks = &sack_blocks[..self.fitting_blocks(sack_blocks.len())];
        if !blocks.is_empty() {
            put([kind::NOP, kind::NOP, kind::SACK, 2 + 8 * blocks.len() as u8]);
            for (left, right) in blocks {
                put(left.to_be_bytes());
                put(right.to_be_bytes());
            }
        }
    }
}

/// One option that is not padding.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RawOption<'a> {
    /// See [`kind`].
    pub kind: u8,
    /// Where the kind byte is, from the first byte of options. The data begins two bytes later.
    pub offset: usize,
    /// What follows kind and length.
    pub data: &'a [u8],
}

/// Walks over the options up to END or to one whose length is impossible. NOPs are passed over.
pub fn iter(raw: &[u8]) -> Iter<'_> {
    Iter { raw, offset: 0 }
}

/// See [`iter`].
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    raw: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = RawOption<'a>;

    #[inline]
    fn next(&mut self) -> Option<RawOption<'a>> {
        let raw = self.raw;
        while raw.get(self.offset) == Some(&kind::NOP) {
            self.offset += 1;
        }
        let offset = self.offset;
        let found = match raw.get(offset..)? {
            // A length below 2 would not even cover kind and length.
            &[kind, len, ..] if kind != kind::END && len >= 2 => raw
                .get(offset + 2..offset + usize::from(len))
                .map(|data| RawOption { kind, offset, data }),
            _ => None,
        };
        self.offset = found.map_or(raw.len(), |option| offset + 2 + option.data.len());
        found
    }
}

/// Where the timestamps option is (its kind byte), if there is one of the right length.
#[inline]
pub fn find_timestamps(raw: &[u8]) -> Option<usize> {
    aligned_timestamps(raw).or_else(|| {
        iter(raw)
            .filter(|option| option.kind == kind::TIMESTAMPS && option.data.len() == 8)
            .last()
            .map(|it| it.offset)
    })
}

/// RFC 7323 appendix A: nearly every segment of a connection has exactly NOP, NOP, timestamps.
#[inline]
fn aligned_timestamps(raw: &[u8]) -> Option<usize> {
    match *raw {
        [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10, _, _, _, _, _, _, _, _] => Some(2),
        _ => None,
    }
}

/// TSval and TSecr of the timestamps option at `offset`, as [`find_timestamps`] gives it.
#[inline]
pub fn read_timestamps(raw: &[u8], offset: usize) -> Option<(u32, u32)> {
    let values = raw.get(offset + 2..)?.first_chunk::<8>()?;
    let [a, b, c, d, e, f, g, h] = *values;
    Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])))
}

/// Overwrites TSval and TSecr of the option at `offset`, as [`find_timestamps`] gives it; returns what that does to the
/// checksum.
#[inline]
pub fn write_timestamps(raw: &mut [u8], offset: usize, value: u32, echo: u32) -> Delta {
    write_pair(raw, offset + 2, value, echo)
}

/// Replaces TSval and TSecr of options that are NOP, NOP and timestamps, as nearly every segment's are (RFC 7323 appendix A),
/// by what `translate` makes of them; returns what that does to the checksum. `None` if there is anything else: then
/// nothing has happened, and there may still be timestamps.
#[inline]
pub fn replace_only_timestamps(raw: &mut [u8], translate: impl FnOnce(u32, u32) -> (u32, u32)) -> Option<Delta> {
    let options: &mut [u8; 12] = raw.try_into().ok()?;
    let (head, values) = options.split_first_chunk_mut::<4>()?;
    if *head != [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10] {
        return None;
    }
    let values: &mut [u8; 8] = values.try_into().ok()?;
    let old = u64::from_be_bytes(*values);
    let (old_value, old_echo) = ((old >> 32) as u32, old as u32);
    let (value, echo) = translate(old_value, old_echo);
    *values = ((u64::from(value) << 32) | u64::from(echo)).to_be_bytes();
    Some(Delta::ZERO.replace32(old_value, value).replace32(old_echo, echo))
}

/// The SACK blocks of a segment; empty if there are none or the option is malformed.
pub fn sack_blocks(raw: &[u8]) -> SackBlocks {
    let Some(option) = find_sack(raw) else {
        return SackBlocks::new();
    };
    let (blocks, _) = option.data.as_chunks::<8>();
    blocks
        .iter()
        .take(4)
        .map(|&[a, b, c, d, e, f, g, h]| (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])))
        .collect()
}

/// Replaces every SACK block by what `translate` makes of its edges; returns what that does to the checksum. No stack
/// sends the option twice, but which of the two a receiver would believe differs: all are translated.
pub fn translate_sack(raw: &mut [u8], mut translate: impl FnMut(u32, u32) -> (u32, u32)) -> Delta {
    let mut delta = Delta::ZERO;
    let mut offset = 0;
    while let Some(option) = (Iter { raw, offset }).next() {
        let (start, end) = (option.offset + 2, option.offset + 2 + option.data.len());
        offset = end;
        if !is_sack(&option) {
            continue;
        }
        for at in (start..end).step_by(8) {
            let Some(&[a, b, c, d, e, f, g, h]) = raw.get(at..).and_then(|tail| tail.first_chunk::<8>()) else {
                break;
            };
            let (left, right) = translate(u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
            delta += write_pair(raw, at, left, right);
        }
    }
    delta
}

fn find_sack(raw: &[u8]) -> Option<RawOption<'_>> {
    iter(raw).find(is_sack)
}

/// RFC 2018 3: a length of 8n + 2, at least one block.
fn is_sack(option: &RawOption<'_>) -> bool {
    option.kind == kind::SACK && !option.data.is_empty() && option.data.len().is_multiple_of(8)
}

/// Overwrites with NOPs every option for which `is_unwanted` says so by its kind; returns what that does to the checksum.
pub fn blank(raw: &mut [u8], mut is_unwanted: impl FnMut(u8) -> bool) -> Delta {
    let mut delta = Delta::ZERO;
    let mut offset = 0;
    while let Some(option) = (Iter { raw, offset }).next() {
        let (start, end) = (option.offset, option.offset + 2 + option.data.len());
        if is_unwanted(option.kind)
            && let Some(bytes) = raw.get_mut(start..end)
        {
            let nops = [kind::NOP; MAX_OPTIONS_LEN];
            // A header has no more than 40 bytes of options; a longer slice is none.
            let nops = &nops[..bytes.len().min(MAX_OPTIONS_LEN)];
            delta = delta.replace_bytes(start, &bytes[..nops.len()], nops);
            bytes[..nops.len()].copy_from_slice(nops);
        }
        offset = end;
    }
    delta
}

/// Overwrites two 32-bit values; nothing happens where there are no 8 bytes. Options start at an even offset of the
/// segment, so the parity of `at` is that in the checksummed data.
#[inline]
fn write_pair(raw: &mut [u8], at: usize, first: u32, second: u32) -> Delta {
    let Some(bytes) = raw.get_mut(at..).and_then(|tail| tail.first_chunk_mut::<8>()) else {
        return Delta::ZERO;
    };
    let [a, b, c, d, e, f, g, h] = *bytes;
    let (old_first, old_second) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
    *bytes = ((u64::from(first) << 32) | u64::from(second)).to_be_bytes();
    Delta::ZERO
        .replace32_at(at, old_first, first)
        .replace32_at(at, old_second, second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::checksum;

    /// The SYN of a Linux 6.1 client.
    const LINUX_SYN: [u8; 20] = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 1, 3, 3, 7];

    const OF_LINUX_SYN: TcpOptions = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some((7, 0)),
    };

    #[test]
    fn the_short_ways_read_what_the_long_one_reads() {
        let only_timestamps = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
        for raw in [&LINUX_SYN[..], &only_timestamps] {
            for (at, byte) in (0..raw.len()).flat_map(|at| (0..=255).map(move |byte| (at, byte))) {
                let mut changed = raw.to_vec();
                changed[at] = byte;
                assert_eq!(
                    TcpOptions::parse(&changed),
                    TcpOptions::parse_any(&changed),
                    "{changed:?}"
                );
            }
        }
    }

    #[test]
    fn options_of_a_linux_syn_are_read_and_written_alike() {
        assert_eq!(TcpOptions::parse(&LINUX_SYN), OF_LINUX_SYN);
        assert_eq!(OF_LINUX_SYN.encode(&[])[..], LINUX_SYN);
    }

    #[test]
    fn every_combination_round_trips_aligned_and_as_long_as_announced() {
        let blocks = [(1, 2), (3, 4), (5, 6), (u32::MAX, 0)];
        for bits in 0..16u32 {
            for count in 0..=4 {
                let options = TcpOptions {
                    mss: (bits & 1 != 0).then_some(536),
                    window_scale: (bits & 2 != 0).then_some(14),
                    sack_permitted: bits & 4 != 0,
                    timestamps: (bits & 8 != 0).then_some((0x0102_0304, u32::MAX)),
                };
                let bytes = options.encode(&blocks[..count]);
                assert_eq!(bytes.len() % 4, 0);
                assert_eq!(TcpOptions::parse(&bytes), options);
                let found = sack_blocks(&bytes);
                assert_eq!(found[..], blocks[..found.len()]);
                assert_eq!(bytes.len(), options.encoded_len(found.len()));
                let one_more_fits = options.encoded_len(found.len() + 1) <= MAX_OPTIONS_LEN;
                assert!(found.len() == count || !one_more_fits, "{options:?} {count}");
                if let Some(at) = find_timestamps(&bytes) {
                    assert_eq!((at + 2) % 4, 0, "{options:?}");
                }
            }
        }
    }

    #[test]
    fn malformed_tails_are_ignored_and_what_is_before_them_counts() {
        let mss = TcpOptions {
            mss: Some(1460),
            ..TcpOptions::NONE
        };
        for (raw, expected) in [
            (&[][..], TcpOptions::NONE),
            (&[2, 4, 5, 0xb4, 3, 0, 7], mss),    // length 0 would loop for ever
            (&[2, 4, 5, 0xb4, 3, 1, 7], mss),    // length 1 is inside the option's own head
            (&[2, 4, 5, 0xb4, 3, 4, 7], mss),    // one byte beyond the end
            (&[2, 4, 5, 0xb4, 3], mss),          // kind without length
            (&[2, 4, 5, 0xb4, 0, 3, 3, 7], mss), // behind END
            (
                &[2, 3, 5, 3, 3, 7],
                TcpOptions {
                    window_scale: Some(7),
                    ..TcpOptions::NONE
                },
            ), // wrong length: passed over
            (&[4, 3, 0, 2, 4, 5, 0xb4], mss),
            (&[1, 1, 1, 1, 2, 4, 5, 0xb4], mss),
            (&[2, 4, 0, 1, 2, 4, 5, 0xb4], mss), // the last one counts
            (
                &[3, 3, 15, 0],
                TcpOptions {
                    window_scale: Some(14),
                    ..TcpOptions::NONE
                },
            ),
            (
                &[3, 3, 255, 0],
                TcpOptions {
                    window_scale: Some(14),
                    ..TcpOptions::NONE
                },
            ),
        ] {
            assert_eq!(TcpOptions::parse(raw), expected, "{raw:?}");
        }
    }

    #[test]
    fn iteration_tells_where_options_are() {
        let found: Vec<_> = iter(&LINUX_SYN)
            .map(|option| (option.kind, option.offset, option.data.len()))
            .collect();
        assert_eq!(found, [(2, 0, 2), (4, 4, 0), (8, 6, 8), (3, 17, 1)]);
        assert_eq!(iter(&LINUX_SYN).next().map(|option| option.data), Some(&[5, 0xb4][..]));
    }

    #[test]
    fn timestamps_are_found_wherever_they_stand() {
        let mut raw = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(find_timestamps(&raw), Some(2));
        assert_eq!(read_timestamps(&raw, 2), Some((0x0102_0304, 0x0506_0708)));
        raw[3] = 9;
        assert_eq!(find_timestamps(&raw), None);
        assert_eq!(find_timestamps(&[1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 0]), Some(1));
        assert_eq!(find_timestamps(&LINUX_SYN), Some(6));
        assert_eq!(read_timestamps(&LINUX_SYN, 13), None);
    }

    /// Runs a change and compares its delta with the difference of the sums.
    fn assert_delta_is_right(raw: &[u8], change: impl FnOnce(&mut [u8]) -> Delta) -> Vec<u8> {
        let mut changed = raw.to_vec();
        let delta = change(&mut changed);
        // Something constant besides the options, as the rest of a segment is.
        let (before, after) = (checksum::sum(raw) + 0x1234, checksum::sum(&changed) + 0x1234);
        assert_eq!(
            delta.apply(checksum::finish(before)),
            checksum::finish(after),
            "{raw:?} to {changed:?}"
        );
        changed
    }

    #[test]
    fn changes_in_place_keep_the_checksum_right_at_even_and_odd_offsets() {
        for lead in 0..4 {
            let mut raw = vec![kind::NOP; lead];
            raw.extend([8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
            let changed = assert_delta_is_right(&raw, |raw| write_timestamps(raw, lead, 0xa1b2_c3d4, 0xfffe_fdfc));
            assert_eq!(TcpOptions::parse(&changed).timestamps, Some((0xa1b2_c3d4, 0xfffe_fdfc)));

            let mut raw = vec![kind::NOP; lead];
            raw.extend([5, 18, 0, 0, 0, 9, 0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 3]);
            let changed = assert_delta_is_right(&raw, |raw| {
                translate_sack(raw, |left, right| {
                    (left.wrapping_add(0x1234_5678), right.wrapping_add(0x1234_5678))
                })
            });
            assert_eq!(
                sack_blocks(&changed)[..],
                [(0x1234_5681, 0x1234_5778), (0x1234_5677, 0x1234_567b)]
            );
        }
    }

    #[test]
    fn timestamps_by_themselves_are_replaced_at_once_and_others_are_left_alone() {
        let raw = [1, 1, 8, 10, 1, 2, 3, 4, 0xff, 0xff, 0xff, 0xfe];
        let changed = assert_delta_is_right(&raw, |raw| {
            replace_only_timestamps(raw, |value, echo| (value - 1, echo.wrapping_add(3))).expect("timestamps")
        });
        assert_eq!(changed, [1, 1, 8, 10, 1, 2, 3, 3, 0, 0, 0, 1]);
        let others: [&[u8]; 5] = [
            &[],
            &raw[..11],
            &[1, 1, 1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8],
            &[8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1],
            &[1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        ];
        for other in others {
            let mut bytes = other.to_vec();
            assert_eq!(replace_only_timestamps(&mut bytes, |_, _| (0, 0)), None);
            assert_eq!(bytes, other);
        }
    }

    #[test]
    fn blocks_of_a_second_option_are_translated_too() {
        let mut raw = vec![5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 4, 2, 5, 10, 0, 0, 0, 3, 0, 0, 0, 4];
        raw.extend([5, 9, 0, 0, 0, 5, 0, 0, 0]);
        let changed = assert_delta_is_right(&raw, |raw| translate_sack(raw, |left, right| (left + 16, right + 16)));
        let mut expected = vec![5, 10, 0, 0, 0, 17, 0, 0, 0, 18, 4, 2, 5, 10, 0, 0, 0, 19, 0, 0, 0, 20];
        expected.extend([5, 9, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(changed, expected, "and none of one with an impossible length");
    }

    #[test]
    fn unwanted_options_become_nops_and_the_others_stay() {
        for lead in 0..2 {
            let mut raw = vec![kind::NOP; lead];
            raw.extend([34, 6, 1, 2, 3, 4, 2, 4, 5, 0xb4, 30, 4, 0, 1, 3, 3, 7]);
            let unwanted = |kind| matches!(kind, kind::FAST_OPEN | kind::MULTIPATH);
            let changed = assert_delta_is_right(&raw, |raw| blank(raw, unwanted));
            let kinds: Vec<_> = iter(&changed).map(|option| option.kind).collect();
            assert_eq!(kinds, [kind::MSS, kind::WINDOW_SCALE]);
            assert_eq!(changed.len(), raw.len());
            assert_eq!(changed[lead..lead + 6], [kind::NOP; 6]);
        }
        assert_eq!(blank(&mut [1, 1, 3, 3, 7, 0], |kind| kind == kind::MSS), Delta::ZERO);
    }

    #[test]
    fn sack_option_of_a_wrong_length_is_no_sack_option() {
        for raw in [
            &[5, 2][..],
            &[5, 9, 0, 0, 0, 0, 0, 0, 0],
            &[5, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert!(sack_blocks(raw).is_empty(), "{raw:?}");
        }
    }
}
