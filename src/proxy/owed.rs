//! What we owe to a server: the PROXY header, and client bytes that we acknowledged before there was a server
//! (DESIGN: decisions 4 and 5).
//!
//! The client has forgotten them, so we repeat them until the server acknowledges: after RTO with back-off (RFC 6298
//! 5.4–5.6), and at once after three duplicate ACKs (RFC 5681 3.2). Until then ACKs towards the client never fall
//! below what it has been told already.

use super::announce::HeaderBytes;
use super::held::HeldId;
use netfcts::seq::SeqNum;

/// RFC 6298 2.1: before any measurement the retransmission time-out is one second.
pub(super) const FIRST_RTO_MS: u32 = 1000;

/// Repetitions of one debt before the server is given up: about two minutes of silence.
pub(super) const MAX_TRIES: u8 = 7;

/// RFC 5681 3.2.
const DUPLICATE_ACKS: u8 = 3;

/// One connection's debt, in the client's numbers.
#[derive(Clone, Debug)]
pub(super) struct Owed {
    /// Our own bytes, which end where `first` begins.
    pub header: HeaderBytes,
    /// The client's bytes; offset 0 is `first`.
    pub held: HeldId,
    /// The number of the client's first byte.
    pub first: SeqNum,
    /// The first number that is not owed.
    pub end: SeqNum,
    /// The largest segment for the server.
    pub mss: u16,
    /// TSval and TSecr for the server, if timestamps were agreed.
    pub timestamps: Option<(u32, u32)>,
    /// When to repeat, in ms of the core's clock.
    pub deadline: u32,
    /// The present time-out in ms.
    pub rto: u32,
    /// Repetitions since the last progress.
    pub tries: u8,
    /// The client's first bytes have been sent: when they come, it is a repetition.
    pub first_bytes_sent: bool,
    duplicates: u8,
    last_ack: SeqNum,
}

/// What an ACK of the server does to a debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payment {
    /// All is paid.
    Full,
    /// Nothing has been paid.
    Open,
    /// Something has been paid: the timer begins anew.
    Progress,
    /// The third duplicate: repeat now.
    Repeat,
}

impl Owed {
    pub(super) fn new(
        header: HeaderBytes,
        held: HeldId,
        first: SeqNum,
        end: SeqNum,
        mss: u16,
        timestamps: Option<(u32, u32)>,
        now_ms: u32,
    ) -> Self {
        let start = first - header.len() as u32;
        Owed {
            header,
            held,
            first,
            end,
            mss,
            timestamps,
            deadline: now_ms.wrapping_add(FIRST_RTO_MS),
            rto: FIRST_RTO_MS,
            tries: 0,
            first_bytes_sent: false,
            duplicates: 0,
            last_ack: start,
        }
    }

    /// Notes the server's ACK, in the client's numbers; `pure` is set when the segment carries nothing else.
    pub(super) fn note_ack(&mut self, ack: SeqNum, pure: bool, now_ms: u32) -> Payment {
        if ack.ge(self.end) {
            return Payment::Full;
        }
        if ack.gt(self.last_ack) {
            // RFC 6298 5.3: progress restarts the timer.
            self.last_ack = ack;
            (self.duplicates, self.tries, self.rto) = (0, 0, FIRST_RTO_MS);
            self.deadline = now_ms.wrapping_add(self.rto);
            return Payment::Progress;
        } else if ack == self.last_ack && pure {
            self.duplicates = self.duplicates.saturating_add(1);
            if self.duplicates == DUPLICATE_ACKS {
                return Payment::Repeat;
            }
        }
        Payment::Open
    }

    /// Notes the server's own TSval and TSecr. A client that has repeated what goes before these bytes has brought the
    /// server newer timestamps than theirs, and then it drops what is older than those (RFC 7323 5.3). It echoes the newest
    /// that it goes by.
    pub(super) fn note_timestamps(&mut self, said: Option<(u32, u32)>) {
        let is_newer = |new: u32, old: u32| new.wrapping_sub(old).cast_signed() > 0;
        if let (Some((ours, echo)), Some((theirs, echoed))) = (&mut self.timestamps, said) {
            if is_newer(echoed, *ours) {
                *ours = echoed;
            }
            if is_newer(theirs, *echo) {
                *echo = theirs;
            }
        }
    }

    /// Notes a repetition by the timer.
    pub(super) fn note_timeout(&mut self, now_ms: u32) {
        self.tries += 1;
        // RFC 6298 5.5.
        self.rto = (self.rto * 2).min(60_000);
        self.deadline = now_ms.wrapping_add(self.rto);
    }

    /// True if there is nothing of the client's in it.
    pub(super) fn is_header_only(&self) -> bool {
        self.end == self.first
    }

    /// The first byte that the server has not acknowledged.
    pub(super) fn next(&self) -> SeqNum {
        self.last_ack
    }
}

/// No debt.
pub(super) const NOTHING: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn owed() -> Owed {
        Owed::new(
            HeaderBytes::new(),
            HeldId::NONE,
            SeqNum(u32::MAX - 9),
            SeqNum(10),
            1460,
            None,
            0,
        )
    }

    #[test]
    fn is_paid_by_an_ack_of_its_end_and_not_before() {
        assert_eq!(owed().note_ack(SeqNum(9), true, 5), Payment::Progress);
        assert_eq!(owed().note_ack(SeqNum(10), true, 5), Payment::Full);
        assert_eq!(owed().note_ack(SeqNum(11), true, 5), Payment::Full);
    }

    #[test]
    fn third_duplicate_repeats_once() {
        let mut owed = owed();
        let verdicts: Vec<_> = (0..5).map(|_| owed.note_ack(SeqNum(u32::MAX - 9), true, 5)).collect();
        assert_eq!(verdicts.iter().filter(|v| **v == Payment::Repeat).count(), 1);
        assert_eq!(verdicts[2], Payment::Repeat);
        assert_eq!(owed.note_ack(SeqNum(u32::MAX - 9), false, 5), Payment::Open);
    }

    #[test]
    fn what_is_repeated_is_as_new_as_what_the_server_has_seen() {
        let mut owed = owed();
        owed.note_timestamps(Some((1, 1)));
        assert_eq!(owed.timestamps, None, "not agreed");
        owed.timestamps = Some((u32::MAX, 7));
        owed.note_timestamps(Some((6, u32::MAX - 1)));
        assert_eq!(owed.timestamps, Some((u32::MAX, 7)), "an old ACK");
        owed.note_timestamps(Some((9, 3)));
        assert_eq!(owed.timestamps, Some((3, 9)));
    }

    #[test]
    fn backs_off_and_recovers() {
        let mut owed = owed();
        owed.note_timeout(1000);
        assert_eq!((owed.rto, owed.deadline, owed.tries), (2000, 3000, 1));
        owed.note_ack(SeqNum(0), true, 1500);
        assert_eq!((owed.rto, owed.deadline, owed.tries), (1000, 2500, 0));
    }
}
