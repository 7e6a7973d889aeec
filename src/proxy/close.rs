//! What is known of one direction of a spliced connection, and what follows for FIN and RST.
//!
//! A splicer has no receive queue and so no RCV.NXT. It sees what one side sends and what the other acknowledges, and
//! judges by these two alone (DESIGN: decision 12). All numbers are the sender's own.

use netfcts::seq::SeqNum;

/// One direction: what its sender has sent, and what its receiver has said about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The highest SEQ+LEN that was inside the receiver's window.
    pub end: SeqNum,
    /// The receiver's last ACK.
    pub acknowledged: SeqNum,
    /// The first number beyond the receiver's window.
    pub edge: SeqNum,
    /// SEQ+LEN of the segment with FIN; meaningful only after a FIN.
    fin: SeqNum,
}

/// How far a RST can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetVerdict {
    /// Its number is the receiver's last ACK or the end of what was sent.
    Proven,
    /// In the window: only the receiver can tell.
    Doubtful,
    /// Outside the window.
    Blind,
}

impl Flow {
    /// A direction whose next number is `next` and whose receiver offers `window` bytes.
    pub fn new(next: SeqNum, window: u32) -> Self {
        Flow {
            end: next,
            acknowledged: next,
            edge: next + window,
            fin: next,
        }
    }

    /// True if a segment that begins at `seq` may mean something to the receiver: it begins in its window, or repeats bytes
    /// that were sent in some window before, none of which was larger than `largest_window`. A sender's oldest byte without
    /// an ACK is at most a window behind what its receiver has acknowledged, and one byte before that is a keep-alive.
    ///
    /// A stranger who can guess no number does not pass here.
    #[inline]
    pub fn takes(&self, seq: SeqNum, largest_window: u32) -> bool {
        seq.le(self.edge) && seq.ge(self.acknowledged - (largest_window + 1))
    }

    /// Notes a segment that is [taken](Self::takes) and ends at `end` (FIN counted). Returns true if it has its sender's FIN.
    ///
    /// Where it ends does not matter: a probe of a closed window (RFC 9293 3.8.6.1), a FIN, or the segment that
    /// straddles the edge may be taken by a receiver whose window has opened meanwhile, and its ACK must be believed.
    #[inline]
    pub fn note_taken(&mut self, end: SeqNum, fin: bool) -> bool {
        if end.gt(self.end) {
            self.end = end;
        }
        if fin {
            self.fin = end;
        }
        fin
    }

    /// Notes a segment from `seq` to `end` if it may be [taken](Self::takes), however large the window was. Returns true if
    /// its FIN, when it has one, is to be believed.
    #[inline]
    pub fn note_sent(&mut self, seq: SeqNum, end: SeqNum, fin: bool) -> bool {
        self.takes(seq, LARGEST_WINDOW) && self.note_taken(end, fin)
    }

    /// Notes the receiver's ACK and window (scaled, in bytes). An ACK of what was never sent is not believed.
    #[inline]
    pub fn note_acknowledged(&mut self, ack: SeqNum, window: u32) {
        // Asked this way round, as a number 2^31 away is neither before nor behind.
        if !(ack.ge(self.acknowledged) && ack.le(self.end)) {
            return;
        }
        self.acknowledged = ack;
        let edge = ack + window;
        if edge.gt(self.edge) {
            self.edge = edge;
        }
    }

    /// True if `ack` covers the FIN noted before.
    #[inline]
    pub fn is_fin_covered_by(&self, ack: SeqNum) -> bool {
        ack.ge(self.fin) && ack.le(self.end)
    }

    /// Judges a RST with number `seq` sent in this direction.
    pub fn judge_reset(&self, seq: SeqNum) -> ResetVerdict {
        if seq == self.acknowledged || seq == self.end {
            ResetVerdict::Proven
        } else if seq.ge(self.acknowledged) && seq.lt(self.edge) {
            ResetVerdict::Doubtful
        } else {
            ResetVerdict::Blind
        }
    }
}

/// The largest window there is (RFC 7323 2.3).
const LARGEST_WINDOW: u32 = 0xffff << 14;

#[cfg(test)]
mod tests {
    use super::*;
    use test_case::test_case;

    fn flow() -> Flow {
        let mut flow = Flow::new(SeqNum(u32::MAX - 99), 1000);
        flow.note_sent(SeqNum(u32::MAX - 99), SeqNum(100), false);
        flow.note_acknowledged(SeqNum(0), 1000);
        flow
    }

    #[test_case(0 => ResetVerdict::Proven; "the receiver's last ACK")]
    #[test_case(100 => ResetVerdict::Proven; "the end of what was sent")]
    #[test_case(1 => ResetVerdict::Doubtful; "just above the ACK")]
    #[test_case(999 => ResetVerdict::Doubtful; "last in the window")]
    #[test_case(1000 => ResetVerdict::Blind; "first beyond the window")]
    #[test_case(u32::MAX => ResetVerdict::Blind; "just below the ACK")]
    fn reset(seq: u32) -> ResetVerdict {
        flow().judge_reset(SeqNum(seq))
    }

    #[test]
    fn a_blind_segment_does_not_move_the_end() {
        let mut flow = flow();
        assert!(!flow.note_sent(SeqNum(1001), SeqNum(1002), true));
        assert_eq!(flow.end, SeqNum(100));
        assert!(flow.note_sent(SeqNum(1000), SeqNum(1001), true));
        assert_eq!(flow.end, SeqNum(1001));
    }

    #[test]
    fn what_is_taken_begins_in_a_window_of_now_or_before() {
        let flow = Flow::new(SeqNum(100), 1000);
        let takes = |seq: u32| flow.takes(SeqNum(seq), 0xffff);
        assert!(takes(100) && takes(1100), "a probe of the edge is the last");
        assert!(!takes(1101));
        let oldest = 100u32.wrapping_sub(0x1_0000);
        assert!(takes(oldest) && !takes(oldest.wrapping_sub(1)));
    }

    #[test]
    fn the_ack_of_a_window_probe_is_believed() {
        let mut flow = Flow::new(SeqNum(0), 1000);
        flow.note_sent(SeqNum(0), SeqNum(1000), false);
        flow.note_acknowledged(SeqNum(1000), 0);
        flow.note_sent(SeqNum(1000), SeqNum(1001), false);
        flow.note_acknowledged(SeqNum(1001), 4000);
        assert_eq!((flow.acknowledged, flow.edge), (SeqNum(1001), SeqNum(5001)));
    }

    #[test]
    fn an_ack_of_unsent_bytes_changes_nothing() {
        let mut flow = flow();
        flow.note_acknowledged(SeqNum(101), 5000);
        assert_eq!((flow.acknowledged, flow.edge), (SeqNum(0), SeqNum(1000)));
        flow.note_acknowledged(SeqNum(100), 5000);
        assert_eq!((flow.acknowledged, flow.edge), (SeqNum(100), SeqNum(5100)));
    }

    #[test]
    fn an_ack_from_the_other_end_of_the_numbers_changes_nothing() {
        let mut flow = Flow::new(SeqNum(100), 1000);
        let before = flow;
        for far in [1 << 31, (1 << 31) - 1, (1 << 31) + 1] {
            flow.note_acknowledged(SeqNum(100) + far, 5000);
            flow.note_sent(SeqNum(100) + far, SeqNum(110) + far, false);
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
    fn fin_is_covered_only_by_an_ack_beyond_it() {
        let mut flow = flow();
        flow.note_sent(SeqNum(100), SeqNum(151), true);
        assert!(!flow.is_fin_covered_by(SeqNum(150)));
        assert!(flow.is_fin_covered_by(SeqNum(151)));
        assert!(!flow.is_fin_covered_by(SeqNum(152)));
    }
}
