//! Whose turn it is: whether a host still repeats what it was asked for.
//!
//! RFC 9293 3.8.1 and 3.10.8: who has sent bytes that were not acknowledged repeats the oldest of them until they are. A
//! connection that no longer moves is the fault of the host that does not, whatever lies between the two ends.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use e2d2::time::Instant;
use netfcts::SeqNum;

/// A connection as its host sees it: its own port, and the other end.
pub type Ends = (u16, (IpAddr, u16));

/// No retransmission time-out is longer than a minute here. Less than the time after which who is between both gives up.
const LONGEST_SILENCE: Duration = Duration::from_secs(240);

/// The sequence fields of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// Sequence number of the first byte.
    pub seq: u32,
    /// Bytes of payload, SYN and FIN counted.
    pub len: u32,
    /// The acknowledgement, if there is one.
    pub ack: Option<u32>,
    /// It opens a connection.
    pub is_syn: bool,
    /// It ends one.
    pub is_rst: bool,
}

/// What one connection of a host still has to repeat.
#[derive(Clone, Copy, Debug)]
struct Duty {
    /// The oldest byte that is not acknowledged.
    oldest: SeqNum,
    /// The end of what was sent.
    newest: SeqNum,
    /// When `oldest` moved or was sent last.
    since: Instant,
    /// It has ceased to repeat, if only until something else came.
    has_ceased: bool,
    /// RCV.NXT, as the host has told it last.
    told: Option<SeqNum>,
    /// The end of what the host has got: RCV.NXT is no later.
    heard: Option<SeqNum>,
}

/// The duties of a host's connections.
#[derive(Debug, Default)]
pub(super) struct Duties(BTreeMap<Ends, Duty>);

impl Duties {
    /// The host sends a segment. The number of a RST is none of the connection's: it may answer a late segment of another.
    pub(super) fn sent(&mut self, now: Instant, ends: Ends, numbers: Numbers) {
        let (first, end) = (SeqNum(numbers.seq), SeqNum(numbers.seq) + numbers.len);
        if numbers.is_syn {
            let duty = Duty {
                oldest: first,
                newest: end,
                since: now,
                has_ceased: false,
                told: numbers.ack.map(SeqNum),
                heard: numbers.ack.map(SeqNum),
            };
            self.0.insert(ends, duty);
        } else if let Some(duty) = self.0.get_mut(&ends).filter(|_| !numbers.is_rst) {
            if let Some(ack) = numbers.ack.map(SeqNum)
                && duty.told.is_none_or(|told| told < ack)
            {
                duty.told = Some(ack);
            }
            if first <= duty.oldest && duty.oldest < end {
                duty.move_on(now);
            }
            if end > duty.newest {
                duty.newest = end;
            }
        }
    }

    /// The host gets an intact segment. A keep-alive and one that ends before RCV.NXT are answered, and their acknowledgement is not
    /// looked at (RFC 9293 3.10.7.4, first).
    pub(super) fn received(&mut self, now: Instant, ends: Ends, numbers: Numbers) {
        let end = SeqNum(numbers.seq) + numbers.len;
        if let (Some(duty), Some(ack)) = (self.0.get_mut(&ends), numbers.ack.map(SeqNum))
            && ack >= duty.oldest
            && ack <= duty.newest
            && duty.heard.is_none_or(|heard| heard < end)
        {
            duty.heard = Some(end);
        }
        let last = end - u32::from(numbers.len > 0);
        if let (Some(duty), Some(ack)) = (self.0.get_mut(&ends), numbers.ack.map(SeqNum))
            && duty.told.is_none_or(|told| last >= told)
            && ack > duty.oldest
            && ack <= duty.newest
        {
            duty.move_on(now);
            duty.oldest = ack;
        }
    }

    /// What a host that goes by RFC 9293 3.10.7.4, second, sees in a RST with this number, if it is not the next that it expects:
    /// a question, to which it says where it stands. smoltcp 0.14 believes any in its window. Returns SEQ and ACK of such.
    pub(super) fn question_in_place_of_rst(&self, ends: Ends, seq: SeqNum) -> Option<(SeqNum, SeqNum)> {
        let duty = self.0.get(&ends)?;
        let (told, heard) = (duty.told?, duty.heard?);
        (seq > heard).then_some((told - 1, duty.oldest))
    }

    /// True if there is something to repeat and the host has long ceased to, or once had.
    pub(super) fn is_neglected(&self, now: Instant, ends: Ends) -> bool {
        self.0
            .get(&ends)
            .is_some_and(|duty| duty.has_ceased || duty.is_neglected(now))
    }
}

impl Duty {
    fn is_neglected(&self, now: Instant) -> bool {
        self.oldest < self.newest && now - self.since > LONGEST_SILENCE
    }

    /// The oldest byte is sent or acknowledged.
    fn move_on(&mut self, now: Instant) {
        self.has_ceased |= self.is_neglected(now);
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: Ends = (1, (IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 2));

    fn numbers(seq: u32, len: u32) -> Numbers {
        Numbers {
            seq,
            len,
            ack: None,
            is_syn: false,
            is_rst: false,
        }
    }

    #[test]
    fn who_repeats_the_newest_byte_only_neglects_the_oldest() {
        let (start, mut duties) = (Instant::ZERO, Duties::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        let syn = Numbers {
            is_syn: true,
            ..numbers(u32::MAX, 1)
        };
        duties.sent(start, ENDS, syn);
        let ack = |number| Numbers {
            ack: Some(number),
            ..numbers(9, 0)
        };
        duties.received(start, ENDS, ack(0));
        duties.sent(start, ENDS, numbers(0, 100));
        duties.sent(start, ENDS, numbers(100, 100));
        duties.sent(at(200), ENDS, numbers(0, 100));
        duties.sent(at(400), ENDS, numbers(199, 1));
        assert!(!duties.is_neglected(at(440), ENDS));
        assert!(duties.is_neglected(at(441), ENDS));
        let asked = |seq| Numbers { seq, ..ack(200) };
        let told = |number| Numbers {
            ack: Some(number),
            ..numbers(200, 0)
        };
        duties.sent(at(441), ENDS, told(9));
        duties.sent(at(441), ENDS, told(5));
        duties.received(at(441), ENDS, asked(8));
        assert!(duties.is_neglected(at(441), ENDS), "a keep-alive acknowledges nothing");
        let repeated = Numbers { len: 4, ..asked(5) };
        duties.received(at(441), ENDS, repeated);
        assert!(duties.is_neglected(at(441), ENDS), "nor do bytes that are all there");
        duties.received(at(510), ENDS, asked(9));
        assert!(
            duties.is_neglected(at(510), ENDS),
            "it had ceased, and only then was it heard"
        );

        duties.sent(at(600), ENDS, syn);
        duties.received(at(600), ENDS, ack(0));
        duties.sent(at(600), ENDS, numbers(0, 200));
        duties.received(at(600), ENDS, ack(200));
        assert!(!duties.is_neglected(at(1_000), ENDS), "nothing is left to repeat");
        duties.received(at(1_000), ENDS, ack(201));
        duties.sent(at(2_000), ENDS, numbers(200, 1));
        assert!(
            !duties.is_neglected(at(2_000), ENDS),
            "an ACK of what was never sent is none"
        );
    }

    /// Seed 29000008859: the RST of the connection before came late, with a number in the window of the next.
    #[test]
    fn a_rst_beyond_all_that_has_come_is_a_question() {
        let (now, mut duties) = (Instant::ZERO, Duties::default());
        assert_eq!(asked(&duties, 7), None, "of no connection");
        let syn = Numbers {
            is_syn: true,
            ..numbers(u32::MAX, 1)
        };
        duties.sent(now, ENDS, syn);
        let got = |seq, len| Numbers {
            ack: Some(0),
            ..numbers(seq, len)
        };
        duties.received(
            now,
            ENDS,
            Numbers {
                is_syn: true,
                ..got(99, 1)
            },
        );
        duties.sent(
            now,
            ENDS,
            Numbers {
                ack: Some(100),
                ..numbers(0, 0)
            },
        );
        duties.received(now, ENDS, got(100, 15));
        for next in [100, 115] {
            assert_eq!(asked(&duties, next), None, "{next}: it may be the next");
        }
        assert_eq!(asked(&duties, 116), Some((99, 0)));
        let late = Numbers {
            ack: Some(5_000),
            ..numbers(700, 0)
        };
        duties.received(now, ENDS, late);
        assert_eq!(
            asked(&duties, 700),
            Some((99, 0)),
            "what another connection has said is not heard"
        );
    }

    /// Seed 1882985935676365: a late segment of the connection before is answered by a RST with the number that it asks for.
    #[test]
    fn what_a_rst_answers_is_not_of_the_connection() {
        let (now, mut duties) = (Instant::ZERO, Duties::default());
        let syn = Numbers {
            is_syn: true,
            ..numbers(1_000, 1)
        };
        duties.sent(now, ENDS, syn);
        let reset = Numbers {
            is_rst: true,
            ..numbers(2_000_000, 0)
        };
        duties.sent(now, ENDS, reset);
        let late = Numbers {
            ack: Some(2_000_000),
            ..numbers(70, 5)
        };
        duties.received(now, ENDS, late);
        let syn_ack = Numbers {
            is_syn: true,
            ack: Some(1_001),
            ..numbers(5_000, 1)
        };
        duties.received(now, ENDS, syn_ack);
        let established = Numbers {
            ack: Some(5_001),
            ..numbers(1_001, 0)
        };
        duties.sent(now, ENDS, established);
        assert_eq!(asked(&duties, 5_001), None, "it is the next number");
        assert_eq!(asked(&duties, 5_002), Some((5_000, 1_001)));
    }

    fn asked(duties: &Duties, seq: u32) -> Option<(u32, u32)> {
        let numbers = duties.question_in_place_of_rst(ENDS, SeqNum(seq));
        numbers.map(|(seq, ack)| (seq.0, ack.0))
    }
}
