//! What has passed in one direction of a watched connection, as far as it says what a segment is that comes.

use e2d2::time::Instant;
use netfcts::legs::Sent;
use netfcts::seq::SeqNum;

/// Gaps that are remembered in one direction. Of more the oldest is forgotten, and what fills it counts as sent again.
const GAPS: usize = 4;

/// One direction, in its sender's numbers.
#[derive(Clone, Debug)]
pub(super) struct Passed {
    /// The highest SEQ+LEN that has passed.
    end: SeqNum,
    /// The highest ACK of the receiver.
    snd_una: SeqNum,
    /// What has not passed below `end` and is not acknowledged, in the order of the numbers; behind `gap_count` nothing.
    gaps: [Gap; GAPS],
    /// The end of the segment that is timed, and when it passed, in µs of the core's clock (wraps; only differences count).
    timed: Option<(SeqNum, u32)>,
    gap_count: u8,
    /// The sender's window is closed.
    has_closed: bool,
}

/// From the first to before the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Gap(SeqNum, SeqNum);

impl Passed {
    /// A direction in which everything before `end` has passed and is acknowledged.
    pub(super) fn new(end: SeqNum) -> Self {
        Passed {
            end,
            snd_una: end,
            gaps: [Gap::default(); GAPS],
            timed: None,
            gap_count: 0,
            has_closed: false,
        }
    }

    /// A segment from `seq` to `end`, which is not empty, passes at `now`. Returns what it is; nothing if it is a keep-alive.
    pub(super) fn note_sent(&mut self, (seq, end): (SeqNum, SeqNum), now: Instant) -> Option<Sent> {
        if seq.ge(self.end) {
            self.note_new((seq, end), now);
            return Some(Sent::New);
        }
        // RFC 6298 3: an ACK of what was sent again may be of either copy. What is filled in is acknowledged late.
        if self.timed.is_some_and(|(timed, _)| seq.lt(timed)) {
            self.timed = None;
        }
        let fills = self.fill(seq, end);
        let is_acknowledged = end.le(self.snd_una);
        self.end = self.end.later(end);
        if is_acknowledged {
            // RFC 9293 3.8.4: a keep-alive may have one byte, the last that was acknowledged.
            let is_keep_alive = end == seq + 1 && end == self.snd_una;
            return (!is_keep_alive).then_some(Sent::Duplicate);
        }
        Some(if fills { Sent::OutOfOrder } else { Sent::Retransmitted })
    }

    fn note_new(&mut self, (seq, end): (SeqNum, SeqNum), now: Instant) {
        if seq != self.end {
            self.push_gap(Gap(self.end, seq));
        }
        self.end = end;
        // Behind a gap the ACK waits until that is filled.
        if self.timed.is_none() && self.gap_count == 0 {
            self.timed = Some((end, micros(now)));
        }
    }

    /// The receiver acknowledges `ack` at `now`. Returns the round-trip time in µs if that ends one.
    pub(super) fn note_acknowledged(&mut self, ack: SeqNum, now: Instant) -> Option<u32> {
        if !(ack.gt(self.snd_una) && ack.le(self.end)) {
            return None;
        }
        self.snd_una = ack;
        if self.gap_count > 0 {
            // It has what has never passed here: another way, or what was forgotten.
            self.keep_gaps(|gap| {
                if gap.1.le(ack) {
                    None
                } else {
                    Some(Gap(gap.0.later(ack), gap.1))
                }
            });
        }
        let (_, at) = self.timed.take_if(|(end, _)| ack.ge(*end))?;
        Some(micros(now).wrapping_sub(at))
    }

    /// The sender says how much room it has. Returns true if there is none, and was some before.
    pub(super) fn note_window(&mut self, window: u16) -> bool {
        let closes = window == 0 && !self.has_closed;
        self.has_closed = window == 0;
        closes
    }

    fn push_gap(&mut self, gap: Gap) {
        if usize::from(self.gap_count) == GAPS {
            self.gaps.rotate_left(1);
            self.gap_count -= 1;
        }
        if let Some(place) = self.gaps.get_mut(usize::from(self.gap_count)) {
            *place = gap;
            self.gap_count += 1;
        }
    }

    /// Takes from `seq` to `end` out of the gaps. Returns true if any of it was in one.
    fn fill(&mut self, seq: SeqNum, end: SeqNum) -> bool {
        let overlaps = |gap: &Gap| seq.lt(gap.1) && end.gt(gap.0);
        let gaps = self.gaps.iter().take(usize::from(self.gap_count));
        let Some(first) = gaps.copied().position(|gap| overlaps(&gap)) else {
            return false;
        };
        let split = self.gaps[first];
        self.keep_gaps(|gap| {
            if !overlaps(&gap) {
                Some(gap)
            } else if gap.0.lt(seq) {
                Some(Gap(gap.0, seq))
            } else {
                end.lt(gap.1).then_some(Gap(end, gap.1))
            }
        });
        if split.0.lt(seq) && end.lt(split.1) {
            // Two are left of it, and the second goes behind the first.
            self.push_gap(Gap(end, split.1));
            let len = usize::from(self.gap_count);
            self.gaps[..len].sort_unstable_by(|one, other| (one.0 - other.0).cmp(&0));
        }
        true
    }

    /// Keeps what `keep` makes of each gap.
    fn keep_gaps(&mut self, keep: impl Fn(Gap) -> Option<Gap>) {
        let mut kept = 0;
        for index in 0..usize::from(self.gap_count) {
            if let Some(gap) = keep(self.gaps[index]) {
                self.gaps[kept] = gap;
                kept += 1;
            }
        }
        self.gap_count = kept as u8;
    }
}

/// A time in µs that wraps after 71 minutes.
fn micros(at: Instant) -> u32 {
    (at.as_nanos() / 1_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const FIRST: SeqNum = SeqNum(u32::MAX - 500);

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    fn sent(passed: &mut Passed, bytes: std::ops::Range<u32>, now: u64) -> Option<Sent> {
        passed.note_sent((FIRST + bytes.start, FIRST + bytes.end), at(now))
    }

    fn acknowledged(passed: &mut Passed, ack: u32, now: u64) -> Option<u32> {
        passed.note_acknowledged(FIRST + ack, at(now))
    }

    #[test]
    fn what_was_lost_where_is_told_by_what_has_passed() {
        let mut passed = Passed::new(FIRST);
        let segments = [
            (0..100, Sent::New),
            (200..300, Sent::New),
            (100..200, Sent::OutOfOrder),
            (100..200, Sent::Retransmitted),
            (250..400, Sent::Retransmitted),
            (500..600, Sent::New),
            (450..550, Sent::OutOfOrder),
            (440..450, Sent::OutOfOrder),
            (400..440, Sent::OutOfOrder),
            (400..600, Sent::Retransmitted),
        ];
        for (bytes, expected) in segments {
            assert_eq!(sent(&mut passed, bytes.clone(), 0), Some(expected), "{bytes:?}");
        }
        assert_eq!(acknowledged(&mut passed, 300, 7), Some(7));
        assert_eq!(sent(&mut passed, 200..300, 0), Some(Sent::Duplicate));
        assert_eq!(sent(&mut passed, 200..301, 0), Some(Sent::Retransmitted));
        assert_eq!(sent(&mut passed, 299..300, 0), None, "a keep-alive");
        assert_eq!(sent(&mut passed, 298..299, 0), Some(Sent::Duplicate));
    }

    #[test]
    fn one_segment_at_a_time_is_timed_and_none_that_was_sent_again() {
        let mut passed = Passed::new(FIRST);
        sent(&mut passed, 0..100, 1_000);
        sent(&mut passed, 100..200, 1_500);
        assert_eq!(acknowledged(&mut passed, 99, 2_000), None, "a part of it");
        assert_eq!(acknowledged(&mut passed, 200, 2_250), Some(1_250));
        assert_eq!(acknowledged(&mut passed, 200, 2_300), None, "the same again");
        // The clock wraps while one is on its way.
        sent(&mut passed, 200..300, (1 << 32) - 10);
        assert_eq!(acknowledged(&mut passed, 300, (1 << 32) + 20), Some(30));
        // RFC 6298 3.
        sent(&mut passed, 300..400, 0);
        sent(&mut passed, 300..400, 50);
        assert_eq!(acknowledged(&mut passed, 400, 60), None);
        // The ACK of what is behind a gap waits.
        sent(&mut passed, 500..600, 100);
        sent(&mut passed, 400..500, 200);
        assert_eq!(acknowledged(&mut passed, 600, 300), None);
        // An ACK of what has not passed is none.
        sent(&mut passed, 600..700, 400);
        assert_eq!(acknowledged(&mut passed, 701, 500), None);
        assert_eq!(acknowledged(&mut passed, 700, 600), Some(200));
    }

    #[test]
    fn a_window_closes_once_until_it_opens() {
        let mut passed = Passed::new(FIRST);
        let closes = [5, 0, 0, 1, 0].map(|window| passed.note_window(window));
        assert_eq!(closes, [false, true, false, false, true]);
    }

    proptest! {
        /// Against a set of all the bytes that have passed, as long as there are no more gaps than are remembered.
        #[test]
        fn agrees_with_a_set_of_bytes(ops in prop::collection::vec((0..3_u8, 0..120_u32, 1..20_u32), 1..80)) {
            let mut passed = Passed::new(FIRST);
            let mut bytes = BTreeSet::new();
            let (mut end, mut una) = (0, 0);
            for (kind, at, len) in ops {
                if kind == 0 {
                    // What is acknowledged has passed: the first that has not is the most.
                    let ack = at.min((0..).find(|byte| !bytes.contains(byte)).unwrap_or(0));
                    acknowledged(&mut passed, ack, 0);
                    una = una.max(ack);
                    continue;
                }
                let range = at..at + len;
                let is_new = range.start >= end;
                let fills = range.clone().any(|byte| byte < end && !bytes.contains(&byte));
                let expected = if is_new {
                    Some(Sent::New)
                } else if range.end <= una {
                    (len > 1 || range.end != una).then_some(Sent::Duplicate)
                } else if fills {
                    Some(Sent::OutOfOrder)
                } else {
                    Some(Sent::Retransmitted)
                };
                let would_end = end.max(range.end);
                let mut after = bytes.clone();
                after.extend(range.clone());
                let holes = (0..would_end).filter(|byte| !after.contains(byte) && (*byte == 0 || after.contains(&(byte - 1))));
                if holes.count() > GAPS {
                    return Ok(());
                }
                prop_assert_eq!(sent(&mut passed, range.clone(), 0), expected, "{:?}", range);
                (bytes, end) = (after, would_end);
            }
        }
    }
}
