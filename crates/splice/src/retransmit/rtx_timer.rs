//! When bytes that the engine answers for are retransmitted: RTO with back-off (RFC 6298 5) and duplicate ACKs (RFC 5681 3.2).
//!
//! One timer serves one direction: that of a [queue](crate::retransmit::rtx) towards a server, or that of [inspected
//! bytes](crate::inspect::direction). What is retransmitted, and how often before the receiver is given up, is up to these.
//! Nothing is measured: RTO begins with one second after each progress.

use netfcts::seq::SeqNum;

/// RFC 6298 2.1: before any measurement the retransmission time-out is one second.
const FIRST_RTO_MS: u32 = 1000;

/// RFC 6298 2.5.
const LONGEST_RTO_MS: u32 = 60_000;

/// RFC 5681 3.2.
const DUPLICATE_ACKS: u8 = 3;

/// The retransmission timer of one direction; times are in ms of the core's clock and wrap.
#[derive(Clone, Debug)]
pub(crate) struct RtxTimer {
    deadline: u32,
    rto: u32,
    /// Retransmissions since the last progress.
    tries: u8,
    duplicates: u8,
}

impl RtxTimer {
    /// A timer that is due an RTO after `now_ms`.
    pub(crate) fn new(now_ms: u32) -> Self {
        RtxTimer {
            deadline: now_ms.wrapping_add(FIRST_RTO_MS),
            rto: FIRST_RTO_MS,
            tries: 0,
            duplicates: 0,
        }
    }

    /// Bytes are out where none were before.
    pub(crate) fn restart(&mut self, now_ms: u32) {
        let duplicates = self.duplicates;
        *self = RtxTimer {
            duplicates,
            ..Self::new(now_ms)
        };
    }

    /// An ACK of something new has come.
    pub(crate) fn on_progress(&mut self, now_ms: u32) {
        // RFC 6298 5.3.
        *self = Self::new(now_ms);
    }

    /// An ACK that says nothing new has come. True with the third of them: the segment that they ask for is lost.
    pub(crate) fn on_duplicate_ack(&mut self) -> bool {
        self.duplicates = self.duplicates.saturating_add(1);
        self.duplicates == DUPLICATE_ACKS
    }

    /// RTO is over, and something is retransmitted.
    pub(crate) fn on_timeout(&mut self, now_ms: u32) {
        self.tries = self.tries.saturating_add(1);
        // RFC 6298 5.5.
        self.rto = (self.rto * 2).min(LONGEST_RTO_MS);
        self.deadline = now_ms.wrapping_add(self.rto);
    }

    /// The receiver answers, though it takes nothing: it is not given up for that (RFC 9293 3.8.6.1).
    pub(crate) fn on_zero_window(&mut self) {
        self.tries = 0;
    }

    /// When RTO is over, in ms of the core's clock.
    pub(crate) fn deadline(&self) -> u32 {
        self.deadline
    }

    /// True if RTO is over.
    pub(crate) fn is_due(&self, now_ms: u32) -> bool {
        SeqNum(now_ms).ge(SeqNum(self.deadline))
    }

    /// True after so many retransmissions without progress.
    pub(crate) fn has_tried(&self, times: u8) -> bool {
        self.tries >= times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backs_off_up_to_a_minute_and_progress_begins_anew() {
        let mut timer = RtxTimer::new(u32::MAX - 999);
        assert!(timer.is_due(0) && !timer.is_due(u32::MAX), "the clock wraps");
        for wait in [2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000] {
            timer.on_timeout(5);
            assert_eq!(timer.deadline(), 5 + wait);
        }
        assert!(timer.has_tried(7) && !timer.has_tried(8));
        timer.on_progress(1500);
        assert_eq!(timer.deadline(), 2500);
        assert!(!timer.has_tried(1));
    }

    #[test]
    fn the_third_duplicate_counts_once_until_there_is_progress() {
        let mut timer = RtxTimer::new(0);
        let thirds = |timer: &mut RtxTimer| (0..5).map(|_| timer.on_duplicate_ack()).collect::<Vec<_>>();
        assert_eq!(thirds(&mut timer), [false, false, true, false, false]);
        timer.restart(3);
        assert_eq!(thirds(&mut timer), [false; 5]);
        timer.on_progress(4);
        assert_eq!(thirds(&mut timer), [false, false, true, false, false]);
    }

    #[test]
    fn a_receiver_that_answers_with_a_zero_window_is_waited_for() {
        let mut timer = RtxTimer::new(0);
        (0..8).for_each(|_| timer.on_timeout(0));
        timer.on_zero_window();
        assert!(!timer.has_tried(1));
        assert_eq!(timer.deadline(), 60_000, "and probed no more often than before");
    }
}
