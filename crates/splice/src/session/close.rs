//! The sequence space of one direction of a spliced connection as the splicer sees it, and the checks of FIN and RST.
//!
//! A splicer has no receive queue and so no RCV.NXT. It sees what one side sends and what the other acknowledges, and
//! judges by these two alone (DECISIONS.md 9). All numbers are the sender's own.

use crate::session::event::FinChange;
use netfcts::seq::SeqNum;

/// One direction: what its sender has sent, and what its receiver has said about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direction {
    /// The highest SEQ+LEN that was inside the receiver's window. Where a FIN was noted, it is the FIN's: what is beyond a
    /// FIN revokes it.
    pub end: SeqNum,
    /// The receiver's last ACK.
    pub snd_una: SeqNum,
    /// The first number beyond the receiver's window.
    pub edge: SeqNum,
}

/// How far a RST can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RstCheck {
    /// Its number is the receiver's last ACK or the end of what was sent.
    Exact,
    /// In the window: only the receiver can tell.
    InWindow,
    /// Outside the window.
    OutOfWindow,
}

impl Direction {
    /// A direction whose next number is `next` and whose receiver offers `window` bytes.
    pub fn new(next: SeqNum, window: u32) -> Self {
        Direction {
            end: next,
            snd_una: next,
            edge: next + window,
        }
    }

    /// True if a segment that begins at `seq` may mean something to the receiver: it begins in its window, or repeats bytes
    /// that were sent in some window before, none of which was larger than `largest_window`. A sender's oldest byte without
    /// an ACK is at most a window behind what its receiver has acknowledged, and one byte before that is a keep-alive.
    ///
    /// What goes on where the last segment ended is taken beyond the window, too: some senders overshoot, and a receiver
    /// whose window has opened meanwhile takes it. Its ACKs would not be believed if this had not been seen.
    ///
    /// A stranger who can guess no number does not pass here.
    #[inline]
    pub fn takes(&self, seq: SeqNum, largest_window: u32) -> bool {
        (seq.le(self.edge) || seq.le(self.end)) && seq.ge(self.snd_una - (largest_window + 1))
    }

    /// True if an ACK may be one that the receiver sends now, or has sent with a segment that is late by a window
    /// (RFC 5961 5.2: SND.UNA - MAX.SND.WND =< SEG.ACK =< SND.NXT). A stranger must guess this as well as the number.
    #[inline]
    pub fn takes_ack(&self, ack: SeqNum, largest_window: u32) -> bool {
        ack.le(self.end) && ack.ge(self.snd_una - (largest_window + 1))
    }

    /// True if an ACK is of what was sent, and not behind the last one: [takes_ack](Self::takes_ack) takes it.
    #[inline]
    pub fn is_acknowledgeable(&self, ack: SeqNum) -> bool {
        ack.le(self.end) && ack.ge(self.snd_una)
    }

    /// True if a segment from `seq` to `end` moves [`Direction::end`] elsewhere than from where it was: past a hole, or from the
    /// middle of what was sent.
    #[inline]
    pub fn would_jump(&self, seq: SeqNum, end: SeqNum) -> bool {
        end.gt(self.end) && seq != self.end
    }

    /// True if [`Direction::note_acknowledged`] would change anything.
    #[inline]
    pub fn would_acknowledge(&self, ack: SeqNum, window: u32) -> bool {
        ack.ge(self.snd_una) && (ack != self.snd_una || (ack + window).gt(self.edge))
    }

    /// True if an ACK and window are those of a receiver that has taken all that was sent and has as much room as before:
    /// a damaged segment does not say that, but for one damage in some thousand millions.
    #[inline]
    pub fn expects(&self, ack: SeqNum, window: u32) -> bool {
        ack == self.end && self.edge == self.snd_una + window
    }

    /// Notes a segment that is [taken](Self::takes) and ends at `end` (FIN counted); `has_fin` tells that it has a FIN,
    /// `is_closed` that one was noted before.
    ///
    /// A FIN counts only where nothing was sent beyond it, and data beyond it shows that it was none: who makes up a FIN
    /// would have to guess where the sender will end.
    ///
    /// Where it ends does not matter: a probe of a closed window (RFC 9293 3.8.6.1), a FIN, or the segment that
    /// straddles the edge may be taken by a receiver whose window has opened meanwhile, and its ACK must be believed.
    #[inline]
    pub fn note_taken(&mut self, end: SeqNum, has_fin: bool, is_closed: bool) -> FinChange {
        let is_beyond = end.gt(self.end);
        if is_beyond {
            self.end = end;
        }
        match (has_fin, is_closed) {
            (true, _) if is_beyond => FinChange::Noted,
            // The FIN was lost, and an ACK has come since whose number is the one behind it.
            (true, false) if end == self.end => FinChange::Noted,
            (false, true) if is_beyond => FinChange::Revoked,
            (true | false, true | false) => FinChange::Unchanged,
        }
    }

    /// Notes that a segment of ours from `seq` to `end` was sent, if it may be [taken](Self::takes), however large the
    /// window was.
    #[inline]
    pub fn note_sent(&mut self, seq: SeqNum, end: SeqNum) {
        if self.takes(seq, LARGEST_WINDOW) {
            self.end = self.end.later(end);
        }
    }

    /// Notes the receiver's ACK and window (scaled, in bytes). An ACK of what was never sent is not believed.
    #[inline]
    pub fn note_acknowledged(&mut self, ack: SeqNum, window: u32) {
        // Asked this way round, as a number 2^31 away is neither before nor behind.
        if !(ack.ge(self.snd_una) && ack.le(self.end)) {
            return;
        }
        self.snd_una = ack;
        let edge = ack + window;
        if edge.gt(self.edge) {
            self.edge = edge;
        }
    }

    /// True if `ack` covers the FIN noted before, which ends all that was sent.
    #[inline]
    pub fn is_fin_covered_by(&self, ack: SeqNum) -> bool {
        ack == self.end
    }

    /// Judges a RST with number `seq` sent in this direction.
    pub fn judge_reset(&self, seq: SeqNum) -> RstCheck {
        if seq == self.snd_una || seq == self.end {
            RstCheck::Exact
        } else if seq.ge(self.snd_una) && seq.lt(self.edge) {
            RstCheck::InWindow
        } else {
            RstCheck::OutOfWindow
        }
    }
}

/// The largest window there is (RFC 7323 2.3).
const LARGEST_WINDOW: u32 = 0xffff << 14;

#[cfg(test)]
mod tests {
    use super::*;
    use test_case::test_case;

    fn flow() -> Direction {
        let mut flow = Direction::new(SeqNum(u32::MAX - 99), 1000);
        flow.note_sent(SeqNum(u32::MAX - 99), SeqNum(100));
        flow.note_acknowledged(SeqNum(0), 1000);
        flow
    }

    #[test_case(0 => RstCheck::Exact; "the receiver's last ACK")]
    #[test_case(100 => RstCheck::Exact; "the end of what was sent")]
    #[test_case(1 => RstCheck::InWindow; "just above the ACK")]
    #[test_case(999 => RstCheck::InWindow; "last in the window")]
    #[test_case(1000 => RstCheck::OutOfWindow; "first beyond the window")]
    #[test_case(u32::MAX => RstCheck::OutOfWindow; "just below the ACK")]
    fn reset(seq: u32) -> RstCheck {
        flow().judge_reset(SeqNum(seq))
    }

    #[test]
    fn a_blind_segment_does_not_move_the_end() {
        let mut flow = flow();
        flow.note_sent(SeqNum(1001), SeqNum(1002));
        assert_eq!(flow.end, SeqNum(100));
        flow.note_sent(SeqNum(1000), SeqNum(1001));
        assert_eq!(flow.end, SeqNum(1001));
    }

    #[test]
    fn what_is_taken_begins_in_a_window_of_now_or_before() {
        let flow = Direction::new(SeqNum(100), 1000);
        let takes = |seq: u32| flow.takes(SeqNum(seq), 0xffff);
        assert!(takes(100) && takes(1100), "a probe of the edge is the last");
        assert!(!takes(1101));
        let oldest = 100u32.wrapping_sub(0x1_0000);
        assert!(takes(oldest) && !takes(oldest.wrapping_sub(1)));
    }

    #[test]
    fn the_ack_of_a_window_probe_is_believed() {
        let mut flow = Direction::new(SeqNum(0), 1000);
        flow.note_sent(SeqNum(0), SeqNum(1000));
        flow.note_acknowledged(SeqNum(1000), 0);
        flow.note_sent(SeqNum(1000), SeqNum(1001));
        flow.note_acknowledged(SeqNum(1001), 4000);
        assert_eq!((flow.snd_una, flow.edge), (SeqNum(1001), SeqNum(5001)));
    }

    #[test]
    fn an_ack_of_unsent_bytes_changes_nothing() {
        let mut flow = flow();
        flow.note_acknowledged(SeqNum(101), 5000);
        assert_eq!((flow.snd_una, flow.edge), (SeqNum(0), SeqNum(1000)));
        flow.note_acknowledged(SeqNum(100), 5000);
        assert_eq!((flow.snd_una, flow.edge), (SeqNum(100), SeqNum(5100)));
    }

    #[test]
    fn an_ack_from_the_other_end_of_the_numbers_changes_nothing() {
        let mut flow = Direction::new(SeqNum(100), 1000);
        let before = flow;
        for far in [1 << 31, (1 << 31) - 1, (1 << 31) + 1] {
            flow.note_acknowledged(SeqNum(100) + far, 5000);
            flow.note_sent(SeqNum(100) + far, SeqNum(110) + far);
        }
        assert_eq!(flow, before);
    }

    #[test]
    fn a_window_that_shrinks_keeps_the_edge_that_was_offered() {
        let mut flow = flow();
        flow.note_acknowledged(SeqNum(50), 10);
        assert_eq!(flow.edge, SeqNum(1000));
    }

    #[test]
    fn a_fin_counts_where_nothing_was_sent_beyond_it() {
        for (end, expected) in [
            (99, FinChange::Unchanged),
            (100, FinChange::Noted),
            (101, FinChange::Noted),
        ] {
            assert_eq!(flow().note_taken(SeqNum(end), true, false), expected, "{end}");
        }
    }

    #[test]
    fn data_beyond_a_fin_revokes_it_and_what_is_repeated_does_not() {
        let mut flow = flow();
        assert_eq!(flow.note_taken(SeqNum(101), true, false), FinChange::Noted);
        assert_eq!(flow.note_taken(SeqNum(101), true, true), FinChange::Unchanged);
        assert_eq!(flow.note_taken(SeqNum(101), false, true), FinChange::Unchanged);
        assert_eq!(flow.note_taken(SeqNum(102), false, true), FinChange::Revoked);
        assert!(!flow.is_fin_covered_by(SeqNum(101)));
        assert_eq!(flow.note_taken(SeqNum(103), true, false), FinChange::Noted);
        assert!(flow.is_fin_covered_by(SeqNum(103)));
    }

    #[test]
    fn an_ack_is_taken_from_a_window_back_to_the_end_of_what_was_sent() {
        let flow = flow();
        let taken = |ack: u32| flow.takes_ack(SeqNum(ack), 1000);
        assert!(taken(100) && taken(0) && taken(0_u32.wrapping_sub(1001)));
        assert!(!taken(101) && !taken(0_u32.wrapping_sub(1002)) && !taken(1 << 31));
    }

    #[test]
    fn only_what_moves_a_number_by_itself_has_to_be_proven() {
        let flow = flow();
        let jumps = |seq: u32, end: u32| flow.would_jump(SeqNum(seq), SeqNum(end));
        assert!(!jumps(100, 150) && !jumps(0, 100) && !jumps(100, 100));
        assert!(jumps(101, 150) && jumps(99, 101));
        let moves = |ack: u32, window: u32| flow.would_acknowledge(SeqNum(ack), window);
        assert!(!moves(0, 1000) && !moves(0, 10) && !moves(u32::MAX, 2000));
        assert!(moves(0, 1001) && moves(1, 10));
    }

    #[test]
    fn fin_is_covered_only_by_an_ack_beyond_it() {
        let mut flow = flow();
        flow.note_taken(SeqNum(151), true, false);
        assert!(!flow.is_fin_covered_by(SeqNum(150)));
        assert!(flow.is_fin_covered_by(SeqNum(151)));
        assert!(!flow.is_fin_covered_by(SeqNum(152)));
    }
}
