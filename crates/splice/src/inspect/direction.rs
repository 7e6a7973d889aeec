//! One direction of an inspected connection: two numberings of one stream, and the ranges in which they differ.
//!
//! ```text
//!   sender's numbers    ──────────┬────────┬──────────────┬────┬─────────► next_in
//!                       passed    │changed │   passed     │new │ passed
//!   receiver's numbers  ──────────┬─────────────┬─────────┴─┬──┴─────────► next_out
//!                             acknowledged               range
//! ```
//!
//! Ranges stand for bytes that the receiver has not acknowledged wholly; their replacement is kept. Between them the
//! numberings run in step, and the sender repeats what is lost. What is before the first range has been acknowledged, or
//! runs in step with it.
//!
//! Pure: numbers in, numbers out. Nothing here knows a packet.

use super::kept::{Kept, LIMIT};
use crate::base::callbacks::GUARANTEED_GROWTH;
use crate::retransmit::rtx_timer::RtxTimer;
use arrayvec::ArrayVec;
use netfcts::seq::SeqNum;

/// The most ranges of one direction. One more than fits is made one with its neighbour, or waits.
pub(crate) const MAX_RANGES: usize = 32;

/// Bytes of the window that are left for segments that grow more than others.
const MARGIN: usize = 4 * 1024;

/// Repetitions without any progress before the receiver is given up.
pub(crate) const MAX_TRIES: u8 = 8;

/// Bytes that were changed: of the sender's numbers these, of the receiver's those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub in_start: SeqNum,
    pub in_end: SeqNum,
    pub out_start: SeqNum,
    pub out_end: SeqNum,
}

impl Range {
    fn out_len(&self) -> usize {
        (self.out_end - self.out_start).max(0) as usize
    }

    /// Changed, but not in length: numbers inside it correspond.
    fn is_in_step(&self) -> bool {
        self.in_end - self.in_start == self.out_end - self.out_start
    }
}

/// A part of what a sender repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// It went on as it came, and does again, at `out`.
    Passed { start: SeqNum, end: SeqNum, out: SeqNum },
    /// Its replacement is kept.
    Kept { start: SeqNum, end: SeqNum },
}

/// What an ACK of the receiver means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct AckNews {
    /// It acknowledges more than those before.
    pub advanced: bool,
    /// It moves the edge of the window.
    pub edge_moved: bool,
    /// It repeats the last one and so asks for bytes that are kept.
    pub asks_for_kept: bool,
    /// What is kept at the receiver's next number is to be repeated now.
    pub repeat: bool,
    /// Kept bytes that need not be kept any more.
    pub released: usize,
}

/// One direction.
#[derive(Debug)]
pub(crate) struct InspectedDirection {
    /// The next number of the sender's that has not been shown.
    pub next_in: SeqNum,
    /// The receiver's number for it.
    pub next_out: SeqNum,
    /// The sender has been told that we have everything before this, whatever the receiver says.
    pub floor: SeqNum,
    /// The receiver's last ACK.
    pub acked: SeqNum,
    /// The end of the receiver's window.
    pub edge: SeqNum,
    /// Up to here the receiver has been sent everything once.
    pub sent: SeqNum,
    /// Changed and not acknowledged.
    pub ranges: ArrayVec<Range, MAX_RANGES>,
    /// The receiver's bytes of all ranges.
    pub kept: Kept,
    /// Bytes shown so far.
    pub offset: u64,
    /// The sender's newest TSval, if timestamps were agreed.
    pub tsval: Option<u32>,
    /// The largest segment for the receiver.
    pub mss: u16,
    /// What the sender was last told: the ACK number and the window field.
    pub advertised: (SeqNum, u16),
    /// The furthest edge of a window that the sender was ever told.
    pub advertised_edge: SeqNum,
    /// The sender's FIN is the last number before `next_in`.
    pub fin: bool,
    /// Nothing more is shown: numbers run in step from `next_in` on.
    pub done: bool,
    /// Something has been changed once.
    alters: bool,
    /// How many bytes were changed, and how many they became.
    made: (u64, u64),
    /// When to repeat what is kept; means nothing while nothing is kept. The sender measures, and its repetitions make us
    /// repeat, so that this is for what no sender repeats.
    pub timer: RtxTimer,
    /// After a time-out: every ACK below this brings the next repetition (RFC 6582 3.2 in the small).
    recover: Option<SeqNum>,
}

impl InspectedDirection {
    /// A direction whose first number is `next_in`, `next_out` for the receiver, who takes bytes up to `edge`.
    pub(crate) fn new(next_in: SeqNum, next_out: SeqNum, edge: SeqNum, mss: u16, tsval: Option<u32>) -> Self {
        InspectedDirection {
            next_in,
            next_out,
            floor: next_in,
            acked: next_out,
            edge,
            sent: next_out,
            ranges: ArrayVec::new(),
            kept: Kept::EMPTY,
            offset: 0,
            tsval,
            mss: mss.max(1),
            advertised: (next_in, 0),
            advertised_edge: next_in,
            fin: false,
            done: false,
            alters: false,
            made: (0, 0),
            timer: RtxTimer::new(0),
            recover: None,
        }
    }

    /// What is added to new numbers of the sender.
    pub(crate) fn shift(&self) -> u32 {
        (self.next_out - self.next_in) as u32
    }

    /// The end of the receiver's bytes so far, without the FIN.
    pub(crate) fn data_end(&self) -> SeqNum {
        self.next_out - u32::from(self.fin)
    }

    /// True if kept bytes, or the FIN behind them, wait for the receiver's window.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.done_in_step() && self.sent.lt(self.next_out)
    }

    /// True if the numberings run in step and nothing more is shown: an ordinary direction.
    pub(crate) fn done_in_step(&self) -> bool {
        self.done && self.ranges.is_empty()
    }

    /// What the sender may be told to have been received.
    pub(crate) fn acknowledged(&self) -> SeqNum {
        self.floor.later(self.to_in(self.acked))
    }

    /// The sender's number for one of the receiver's that is not before its last ACK; inside a changed range its start
    /// (RFC 9293 3.4: an acknowledgement covers whole bytes of the sender's, never a part of what became of them).
    pub(crate) fn to_in(&self, out: SeqNum) -> SeqNum {
        self.translate_back(out, |range| range.in_start)
    }

    /// The same for the left edge of a SACK block: inside a changed range its end, as only what follows is all there.
    pub(crate) fn to_in_rounded_up(&self, out: SeqNum) -> SeqNum {
        self.translate_back(out, |range| range.in_end)
    }

    fn translate_back(&self, out: SeqNum, inside: impl Fn(&Range) -> SeqNum) -> SeqNum {
        for range in &self.ranges {
            if out.le(range.out_start) {
                return range.in_start - (range.out_start - out) as u32;
            }
            if out.lt(range.out_end) {
                return if range.is_in_step() {
                    range.in_start + (out - range.out_start) as u32
                } else {
                    inside(range)
                };
            }
        }
        out - self.shift()
    }

    /// The window for the sender in bytes behind [`InspectedDirection::acknowledged`]: the receiver's, less what changed ranges
    /// have grown by, and never more than can be kept.
    pub(crate) fn window(&self) -> u32 {
        let mut edge = self.edge - self.shift();
        if self.alters && !self.done {
            // What is under way grows as what came before it did: the last of it must still find its guaranteed room.
            let room = LIMIT.saturating_sub(GUARANTEED_GROWTH + MARGIN + self.kept.len()) as u64;
            let room = match self.made {
                (from, to) if to > from && from > 0 => room * from / to,
                _ => room,
            };
            edge = edge.earlier(self.next_in + room as u32);
        }
        (edge - self.acknowledged()).max(0) as u32
    }

    /// True if one more change can be remembered.
    pub(crate) fn can_record(&self) -> bool {
        !self.ranges.is_full() || self.ranges.last().is_some_and(|last| last.in_end == self.next_in)
    }

    /// The next `in_len` bytes of the sender become `out_len` bytes, which the caller has kept; `now_ms` starts the timer.
    pub(crate) fn record(&mut self, in_len: u32, out_len: u32, now_ms: u32) {
        let new = Range {
            in_start: self.next_in,
            in_end: self.next_in + in_len,
            out_start: self.next_out,
            out_end: self.next_out + out_len,
        };
        let is_full = self.ranges.is_full();
        if self.kept.len() == out_len as usize {
            self.timer.restart(now_ms);
        }
        match self.ranges.last_mut() {
            // One range is as good as two where nothing lies between and both run in step; and one is better than none.
            Some(last) if last.in_end == new.in_start && (is_full || last.is_in_step() && new.is_in_step()) => {
                (last.in_end, last.out_end) = (new.in_end, new.out_end);
            }
            _ => {
                let recorded = self.ranges.try_push(new);
                debug_assert!(recorded.is_ok(), "the caller asks can_record first");
            }
        }
        self.alters = true;
        self.made = (self.made.0 + u64::from(in_len), self.made.1 + u64::from(out_len));
        (self.next_in, self.next_out) = (new.in_end, new.out_end);
        self.drop_acknowledged();
    }

    /// The next `len` numbers of the sender pass as they are.
    pub(crate) fn advance(&mut self, len: u32) {
        self.next_in += len;
        self.next_out += len;
    }

    /// Takes ranges out that the receiver has acknowledged; returns how many kept bytes they had.
    fn drop_acknowledged(&mut self) -> usize {
        let mut released = 0;
        while let Some(range) = self.ranges.first_mut() {
            if range.out_end.le(self.acked) {
                released += range.out_len();
                self.ranges.remove(0);
                continue;
            }
            if range.is_in_step() && range.out_start.lt(self.acked) {
                let count = (self.acked - range.out_start) as u32;
                range.in_start += count;
                range.out_start += count;
                released += count as usize;
            }
            break;
        }
        released
    }

    /// True if an ACK may be one that the receiver sends now, or has sent with a segment that is late by a window (RFC 5961 5.2).
    pub(crate) fn takes_ack(&self, ack: SeqNum, largest_window: u32) -> bool {
        ack.le(self.sent) && ack.ge(self.acked - (largest_window + 1))
    }

    /// Notes the receiver's ACK and window; `pure` is set when its segment says nothing else. An ACK of what was never
    /// sent is not believed.
    pub(crate) fn note_ack(&mut self, ack: SeqNum, window: u32, pure: bool, now_ms: u32) -> AckNews {
        let mut news = AckNews::default();
        if !(ack.ge(self.acked) && ack.le(self.sent)) {
            return news;
        }
        let edge = ack + window;
        news.edge_moved = edge != self.edge;
        self.edge = edge;
        if ack.gt(self.acked) {
            news.advanced = true;
            self.acked = ack;
            news.released = self.drop_acknowledged();
            self.timer.on_progress(now_ms);
            match self.recover {
                Some(recover) if ack.lt(recover) => news.repeat = self.keeps(ack),
                _ => self.recover = None,
            }
            return news;
        }
        if window == 0 {
            self.timer.on_zero_window();
        }
        if pure && !news.edge_moved && ack.lt(self.sent) && self.keeps(ack) {
            news.asks_for_kept = true;
            if self.timer.on_duplicate_ack() && self.recover.is_none() {
                news.repeat = true;
                self.recover = Some(self.sent);
            }
        }
        news
    }

    /// True if the receiver's byte `out` is kept.
    fn keeps(&self, out: SeqNum) -> bool {
        self.ranges
            .iter()
            .any(|range| out.ge(range.out_start) && out.lt(range.out_end))
    }

    /// The longest segment of kept bytes at `at`: a PROXY header, which no byte of the sender became, is a segment of its
    /// own (DECISIONS.md 14).
    pub(crate) fn longest_segment(&self, at: SeqNum) -> u32 {
        let mss = u32::from(self.mss);
        match self.ranges.first() {
            Some(range) if range.in_start == range.in_end && at.lt(range.out_end) => {
                mss.min((range.out_end - at).max(0) as u32)
            }
            _ => mss,
        }
    }

    /// Where the first kept byte that is not acknowledged stands, and where the run of kept bytes ends that it begins.
    pub(crate) fn first_kept(&self) -> Option<(SeqNum, SeqNum)> {
        let mut ranges = self.ranges.iter().filter(|range| range.out_end.gt(range.out_start));
        let first = ranges.find(|range| range.out_end.gt(self.acked))?;
        let start = first.out_start.later(self.acked);
        let mut end = first.out_end;
        for next in ranges {
            if next.out_start != end {
                break;
            }
            end = next.out_end;
        }
        Some((start, end))
    }

    /// Where in the queue of kept bytes the receiver's byte `out` is.
    pub(crate) fn place_of(&self, out: SeqNum) -> Option<usize> {
        let mut before = 0;
        for range in &self.ranges {
            if out.ge(range.out_start) && out.lt(range.out_end) {
                return Some(before + (out - range.out_start) as usize);
            }
            before += range.out_len();
        }
        None
    }

    /// What became of the sender's bytes from `start` to `end`, none of them acknowledged and all of them shown.
    pub(crate) fn pieces(&self, start: SeqNum, end: SeqNum) -> ArrayVec<Piece, { 2 * MAX_RANGES + 1 }> {
        let mut pieces = ArrayVec::new();
        let mut at = start;
        for range in &self.ranges {
            let is_inserted = range.in_start == range.in_end;
            // Bytes that only the receiver gets go with those of the sender before and behind them.
            let is_outside = range.in_end.lt(start) || range.in_start.gt(end);
            if is_outside || !is_inserted && (range.in_end == start || range.in_start == end) {
                continue;
            }
            if at.lt(range.in_start) {
                pieces.push(Piece::Passed {
                    start: at,
                    end: range.in_start,
                    out: range.out_start - (range.in_start - at) as u32,
                });
            }
            at = at.later(range.in_end);
            let (mut first, mut behind) = (range.out_start, range.out_end);
            if range.is_in_step() {
                first += (start - range.in_start).max(0) as u32;
                behind -= (range.in_end - end).max(0) as u32;
            }
            if first.lt(behind) {
                pieces.push(Piece::Kept {
                    start: first,
                    end: behind,
                });
            }
        }
        if at.lt(end) {
            let next = self.ranges.iter().find(|range| range.in_start.ge(end));
            let out = next.map_or(self.next_out - (self.next_in - at) as u32, |next| {
                next.out_start - (next.in_start - at) as u32
            });
            pieces.push(Piece::Passed { start: at, end, out });
        }
        pieces
    }

    /// Notes a repetition by the timer.
    pub(crate) fn note_timeout(&mut self, now_ms: u32) {
        self.timer.on_timeout(now_ms);
        self.recover = Some(self.sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_case::test_case;

    /// Numbers that wrap: 100 passed, 10 that became 30, 50 passed, 20 changed in place, 8 that went, 40 passed.
    fn direction() -> InspectedDirection {
        let mut direction = InspectedDirection::new(SeqNum(u32::MAX - 99), SeqNum(1000), SeqNum(60_000), 1000, None);
        direction.advance(100);
        direction.record(10, 30, 0);
        direction.advance(50);
        direction.record(20, 20, 0);
        direction.advance(5);
        direction.record(8, 0, 0);
        direction.advance(40);
        direction.sent = direction.next_out;
        direction
    }

    #[test_case(1000 => u32::MAX - 99; "nothing")]
    #[test_case(1050 => u32::MAX - 49; "inside what passed")]
    #[test_case(1100 => 0; "the start of a range")]
    #[test_case(1129 => 0; "inside a range: its start")]
    #[test_case(1130 => 10; "its end")]
    #[test_case(1140 => 20; "between ranges")]
    #[test_case(1185 => 65; "inside a range in step")]
    #[test_case(1205 => 93; "what was taken away is acknowledged with what was before it")]
    #[test_case(1206 => 94; "behind the last range")]
    #[test_case(1245 => 133; "everything")]
    fn acknowledgement(ack: u32) -> u32 {
        let mut direction = direction();
        direction.note_ack(SeqNum(ack), 5000, true, 0);
        direction.acknowledged().0
    }

    #[test]
    fn ranges_leave_with_their_acknowledgement_and_release_their_bytes() {
        let mut direction = direction();
        let released =
            |direction: &mut InspectedDirection, ack| direction.note_ack(SeqNum(ack), 5000, true, 0).released;
        assert_eq!(released(&mut direction, 1129), 0);
        assert_eq!(released(&mut direction, 1130), 30);
        assert_eq!(released(&mut direction, 1187), 7);
        assert_eq!(released(&mut direction, 1200), 13);
        assert_eq!(direction.ranges.len(), 1);
        assert_eq!(released(&mut direction, 1245), 0);
        assert!(direction.ranges.is_empty());
        assert_eq!(released(&mut direction, 1246), 0, "never sent");
        assert_eq!(direction.acknowledged(), direction.next_in);
    }

    #[test]
    fn sack_blocks_cover_only_what_is_all_there() {
        let direction = direction();
        assert_eq!(direction.to_in_rounded_up(SeqNum(1110)), SeqNum(10));
        assert_eq!(direction.to_in(SeqNum(1110)), SeqNum(0));
        assert_eq!(direction.to_in_rounded_up(SeqNum(1185)), SeqNum(65));
    }

    #[test]
    fn the_window_is_less_by_what_was_added() {
        let mut direction = InspectedDirection::new(SeqNum(0), SeqNum(1000), SeqNum(6000), 1000, None);
        assert_eq!(direction.window(), 5000);
        direction.record(100, 300, 0);
        assert_eq!(direction.window(), 4800);
        direction.record(50, 0, 0);
        assert_eq!(direction.window(), 4850);
        direction.edge = SeqNum(1000);
        assert_eq!(direction.window(), 0);
        direction.edge = SeqNum(1_000_000);
        // 150 bytes, none of them acknowledged, became 300.
        let room = (LIMIT - GUARANTEED_GROWTH - MARGIN) as u32;
        assert_eq!(direction.window(), 150 + room / 2);
    }

    #[test]
    fn what_a_sender_repeats_is_cut_at_the_ranges() {
        let direction = direction();
        let kept = |start, end| Piece::Kept {
            start: SeqNum(start),
            end: SeqNum(end),
        };
        let passed = |start, end, out| Piece::Passed {
            start: SeqNum(start),
            end: SeqNum(end),
            out: SeqNum(out),
        };
        let pieces = |start: u32, end: u32| direction.pieces(SeqNum(start), SeqNum(end)).to_vec();
        assert_eq!(
            pieces(u32::MAX - 99, 133),
            [
                passed(u32::MAX - 99, 0, 1000),
                kept(1100, 1130),
                passed(10, 60, 1130),
                kept(1180, 1200),
                passed(80, 85, 1200),
                passed(93, 133, 1205),
            ]
        );
        assert_eq!(pieces(5, 20), [kept(1100, 1130), passed(10, 20, 1130)]);
        assert_eq!(pieces(20, 30), [passed(20, 30, 1140)]);
        assert_eq!(pieces(65, 70), [kept(1185, 1190)]);
        assert_eq!(pieces(86, 90), []);
        assert_eq!(pieces(100, 110), [passed(100, 110, 1212)]);
    }

    #[test]
    fn more_changes_than_are_remembered_become_one() {
        let mut direction = InspectedDirection::new(SeqNum(0), SeqNum(0), SeqNum(60_000), 1000, None);
        for _ in 0..2 * MAX_RANGES {
            assert!(direction.can_record());
            direction.record(10, 11, 0);
        }
        assert_eq!(direction.ranges.len(), MAX_RANGES);
        assert_eq!(direction.next_out, SeqNum(22 * MAX_RANGES as u32));
        direction.sent = direction.next_out;
        direction.advance(1);
        assert!(!direction.can_record(), "what passed lies between");
        direction.note_ack(SeqNum(11), 1000, true, 0);
        assert!(direction.can_record());
    }

    #[test]
    fn third_duplicate_and_every_step_after_it_repeats() {
        let mut direction = direction();
        direction.note_ack(SeqNum(1100), 5000, true, 0);
        let repeats: Vec<_> = (0..5)
            .map(|_| direction.note_ack(SeqNum(1100), 5000, true, 0).repeat)
            .collect();
        assert_eq!(repeats, [false, false, true, false, false]);
        assert!(
            !direction.note_ack(SeqNum(1140), 5000, true, 0).repeat,
            "the sender's own"
        );
        assert!(direction.note_ack(SeqNum(1185), 5000, true, 0).repeat);
        assert!(!direction.note_ack(SeqNum(1245), 5000, true, 0).repeat);
    }
}
