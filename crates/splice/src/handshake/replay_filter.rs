//! Cookies that have made a connection already.
//!
//! A cookie lives for up to 16 s, a connection may be over in a millisecond. Without this memory a late copy of the
//! client's ACK, or of its request, would make a second connection and give the server the request again. A copy has the
//! numbers of its original; a new connection from the same port has another initial sequence number, even if its cookie
//! should be the same by chance (2^-22 within a slot). Five bytes a cookie, in lines of twelve: a look-up reads one cache
//! line. A line that is full forgets its oldest, which needs more new connections within 16 s than the set has room for.
//! One fresh cookie in ten thousand million looks like a used one; its client is reset.

use crate::handshake::cookie;
use crate::session::segment::Returned;
use e2d2::memory::LargeSlice;
use e2d2::time::Instant;

const WAYS: usize = 12;

/// Slots that are told apart. An older use looks like a late one again, which takes the same cookie for the same initial
/// sequence number to matter.
const SLOTS: u8 = 4;

/// Fingerprints, zero where a place is free, and what is compared only when one of them is the same: six bits more, above
/// the lowest two of the slot that the cookie was used in. Places are taken in turn: the one whose turn it is holds the
/// oldest.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    fingerprints: [u32; WAYS],
    rests: [u8; WAYS],
    turn: u8,
}

const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    const EMPTY: Line = Line {
        fingerprints: [0; WAYS],
        rests: [0; WAYS],
        turn: 0,
    };

    /// True if a cookie with this fingerprint has been used so lately that it could be repeated: a cookie made in slot s
    /// is valid in s and s + 1, so a use can be repeated at most one slot later.
    #[inline]
    fn has(&self, cookie: &Unused) -> bool {
        // All places at once, and no branch among them: nearly always it is none.
        let is_known = (self.fingerprints.iter()).fold(false, |known, &used| known | (used == cookie.fingerprint));
        is_known && self.has_lately(cookie)
    }

    #[cold]
    fn has_lately(&self, cookie: &Unused) -> bool {
        let mut used = self.fingerprints.iter().zip(self.rests);
        used.any(|(&fingerprint, rest)| {
            let slots_ago = cookie.rest.wrapping_sub(rest) % SLOTS;
            fingerprint == cookie.fingerprint && rest / SLOTS == cookie.rest / SLOTS && slots_ago <= 1
        })
    }

    fn push(&mut self, cookie: &Unused) {
        let way = usize::from(self.turn);
        self.fingerprints[way] = cookie.fingerprint;
        self.rests[way] = cookie.rest;
        self.turn = if way + 1 == WAYS { 0 } else { self.turn + 1 };
    }
}

/// A cookie that has not been used, and where its use is noted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unused {
    place: usize,
    fingerprint: u32,
    rest: u8,
}

/// The cookies used lately.
pub(crate) struct ReplayFilter {
    lines: LargeSlice<Line>,
}

impl ReplayFilter {
    /// Room for about `capacity` cookies, allocated now.
    pub(crate) fn new(capacity: usize) -> Self {
        ReplayFilter {
            lines: LargeSlice::of(Line::EMPTY, capacity.div_ceil(WAYS).max(1)),
        }
    }

    /// True if the flow with `flow_hash` has used `cookie`.
    pub(crate) fn contains(&self, flow_hash: u64, cookie: Returned, now: Instant) -> bool {
        self.find_unused(flow_hash, cookie, now).is_none()
    }

    /// What [`note`](Self::note) has to know of `cookie`, unless the flow with `flow_hash` has used it.
    #[inline]
    pub(crate) fn find_unused(&self, flow_hash: u64, cookie: Returned, now: Instant) -> Option<Unused> {
        let slot = cookie::CookieJar::slot(now) as u8 % SLOTS;
        let (fingerprint, more) = fingerprint(flow_hash, cookie);
        let unused = Unused {
            place: self.place(flow_hash),
            fingerprint,
            rest: more * SLOTS + slot,
        };
        (!self.lines[unused.place].has(&unused)).then_some(unused)
    }

    /// Notes the use of a cookie that has just been found unused.
    pub(crate) fn note(&mut self, cookie: Unused) {
        if let Some(line) = self.lines.get_mut(cookie.place) {
            line.push(&cookie);
        }
    }

    /// Asks the processor for the line that [`ReplayFilter::find_unused`] will read for this flow.
    pub(crate) fn prefetch(&self, flow_hash: u64) {
        e2d2::prefetch(&self.lines[self.place(flow_hash)]);
    }

    fn place(&self, flow_hash: u64) -> usize {
        // The lower half of the hash scaled to the size; the upper one is the flow table's.
        (((flow_hash & 0xffff_ffff) * self.lines.len() as u64) >> 32) as usize
    }

    /// The memory of the set in bytes.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.lines)
    }
}

/// 31 bits, never zero, which means "free", and six more.
fn fingerprint(flow_hash: u64, cookie: Returned) -> (u32, u8) {
    let numbers = u64::from(cookie.ack.0) << 32 | u64::from(cookie.seq.0);
    let mixed = (flow_hash ^ numbers).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // The six are the next best bits of the product; they share their octet with the slot.
    ((mixed >> 32) as u32 | 1, (mixed >> 26) as u8 % (u8::MAX / SLOTS + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netfcts::seq::SeqNum;
    use std::time::Duration;

    fn returned(ack: u32) -> Returned {
        Returned {
            seq: SeqNum(1),
            ack: SeqNum(ack),
        }
    }

    /// Uses a cookie, unless it has been.
    fn note(used: &mut ReplayFilter, flow_hash: u64, cookie: Returned, now: Instant) -> bool {
        let unused = used.find_unused(flow_hash, cookie, now);
        assert_eq!(unused.is_none(), used.contains(flow_hash, cookie, now));
        unused.is_some_and(|unused| {
            used.note(unused);
            true
        })
    }

    #[test]
    fn a_cookie_is_good_for_one_connection() {
        let mut used = ReplayFilter::new(64);
        let now = Instant::ZERO + Duration::from_secs(80);
        assert!(note(&mut used, 1, returned(5), now));
        assert!(!note(&mut used, 1, returned(5), now));
        assert!(!note(&mut used, 1, returned(5), now + Duration::from_secs(15)));
        assert!(note(&mut used, 1, returned(6), now));
        assert!(note(&mut used, 2, returned(5), now));
    }

    #[test]
    fn the_same_cookie_for_another_initial_sequence_number_is_another() {
        let mut used = ReplayFilter::new(64);
        let now = Instant::ZERO + Duration::from_secs(80);
        assert!(note(&mut used, 1, returned(5), now));
        let next = Returned {
            seq: SeqNum(1001),
            ..returned(5)
        };
        assert!(!used.contains(1, next, now));
        assert!(note(&mut used, 1, next, now));
        assert!(!note(&mut used, 1, returned(5), now) && !note(&mut used, 1, next, now));
    }

    /// With 31 bits alone one fresh cookie in 180 million was taken for a used one, and its client reset.
    #[test]
    fn half_a_fingerprint_alike_is_not_the_same_cookie() {
        let flow = |n: u64| siphasher::sip::SipHasher13::new().hash(&n.to_le_bytes());
        let mut seen = std::collections::HashMap::new();
        let alike = (0..1 << 20).find_map(|n| {
            let (half, more) = fingerprint(flow(n), returned(5));
            let (before, more_before) = seen.insert(half, (n, more))?;
            (more != more_before).then_some([before, n])
        });
        let [first, second] = alike.expect("two of a million with 31 bits alike").map(flow);
        let mut used = ReplayFilter::new(WAYS);
        let now = Instant::ZERO + Duration::from_secs(80);
        assert!(note(&mut used, first, returned(5), now));
        assert!(note(&mut used, second, returned(5), now));
        assert!(!note(&mut used, first, returned(5), now) && !note(&mut used, second, returned(5), now));
    }

    #[test]
    fn an_expired_entry_makes_room() {
        let mut used = ReplayFilter::new(8);
        let now = Instant::ZERO + Duration::from_secs(80);
        for n in 0..8 {
            assert!(note(&mut used, 0, returned(n), now));
        }
        let later = now + cookie::LIFETIME;
        assert!(note(&mut used, 0, returned(100), later));
        assert!(!note(&mut used, 0, returned(100), later));
    }

    #[test]
    fn a_full_line_forgets_its_oldest() {
        let mut used = ReplayFilter::new(WAYS);
        let now = Instant::ZERO + Duration::from_secs(80);
        let cookie = |n: usize| returned(n as u32);
        (0..=WAYS).for_each(|n| assert!(note(&mut used, 0, cookie(n), now)));
        assert!((1..=WAYS).all(|n| used.contains(0, cookie(n), now)));
        assert!(!used.contains(0, cookie(0), now));
    }
}
