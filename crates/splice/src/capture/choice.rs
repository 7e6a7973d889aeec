//! Which connections are captured, and how much of their frames.

use crate::base::ids::{ListenerId, RuleId, ServerId};
use e2d2::wire::headers::Headers;
use netfcts::leg::is_in;
use std::num::NonZeroU32;

/// Which connections a capture is of: those that are all that is said here.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Of clients whose address is the first in the bits of the second.
    pub client: Option<(u128, u128)>,
    /// Of this listener.
    pub listener: Option<ListenerId>,
    /// For which this server was called.
    pub server: Option<ServerId>,
    /// Whose server this rule has chosen.
    pub rule: Option<RuleId>,
    /// One of so many, by a keyed hash of their addresses and ports.
    pub one_in: NonZeroU32,
}

/// How much of a frame is copied.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Bytes at most.
    pub snaplen: u16,
    /// TCP payload as well: without, a copy ends with the TCP header, that which an ICMP error quotes included.
    pub payload: bool,
}

impl Default for Choice {
    /// All.
    fn default() -> Self {
        Self {
            client: None,
            listener: None,
            server: None,
            rule: None,
            one_in: NonZeroU32::MIN,
        }
    }
}

impl Choice {
    /// All that is known of a connection before it has a server: its client, its listener, and the hash of both.
    pub(super) fn may_want(&self, client: u128, listener: u16, hash: u64) -> bool {
        hash <= self.most_drawn()
            && self.listener.is_none_or(|wanted| wanted.0 == listener)
            && self.client.is_none_or(|prefix| is_in(client, prefix))
    }

    /// The largest hash of those that are in the sample.
    pub(super) fn most_drawn(&self) -> u64 {
        u64::MAX / u64::from(self.one_in.get())
    }

    /// Whether every connection is wanted.
    pub(super) fn is_all(&self) -> bool {
        self.client.is_none() && self.listener.is_none() && self.one_in == NonZeroU32::MIN && !self.waits()
    }

    /// Whether more has to be known than that.
    pub(super) fn waits(&self) -> bool {
        self.server.is_some() || self.rule.is_some()
    }
}

impl Extent {
    /// How much of `frame` is copied.
    pub(super) fn of(self, frame: &[u8]) -> usize {
        let whole = frame.len().min(usize::from(self.snaplen));
        if self.payload {
            whole
        } else {
            let payload = Headers::read(frame).and_then(|headers| headers.payload(frame));
            payload.map_or(whole, |at| whole.min(at))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_left_out_unless_asked_for_and_no_length_leads_astray() {
        let mut frame = [0_u8; 80];
        frame[12..14].copy_from_slice(&[8, 0]);
        (frame[14], frame[23], frame[46]) = (0x45, 6, 0x80);
        let of = |snaplen, payload, frame: &[u8]| Extent { snaplen, payload }.of(frame);
        assert_eq!((of(128, false, &frame), of(128, true, &frame)), (66, 80));
        assert_eq!((of(60, false, &frame), of(70, true, &frame)), (60, 70));
        for end in 0..frame.len() {
            assert!(of(128, false, &frame[..end]) <= end);
        }
        frame[46] = 0xf0;
        assert_eq!(of(128, false, &frame), 80, "a header that is longer than the frame");
    }

    #[test]
    fn all_of_ipv6_is_no_client_of_ipv4() {
        let choice = |client| Choice {
            client: Some(client),
            ..Choice::default()
        };
        let (v4, v6) = (0xffff_0a00_0001, 0xfd00 << 112 | 1);
        let of = |choice: Choice| [v4, v6].map(|client| choice.may_want(client, 0, 0));
        assert_eq!(of(choice((0, 0))), [false, true]);
        assert_eq!(of(choice((0xffff_0000_0000, u128::MAX << 32))), [true, false]);
    }

    #[test]
    fn one_of_many_is_chosen_by_its_hash() {
        let choice = Choice {
            one_in: NonZeroU32::new(1000).expect("not zero"),
            ..Choice::default()
        };
        let chosen = (0..100_000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let chosen = chosen.filter(|hash| choice.may_want(0, 0, *hash)).count();
        assert!((80..=120).contains(&chosen), "{chosen}");
        assert!(Choice::default().may_want(0, 0, u64::MAX));
    }
}
