//! Cookies that have made a connection already.
//!
//! A cookie lives for up to 16 s, a connection may be over in a millisecond. Without this memory a late copy of the
//! client's ACK, or of its request, would make a second connection and give the server the request again. Eight bytes a
//! cookie, in lines of eight: a look-up reads one cache line. A line that is full forgets its oldest, which needs more
//! new connections within 16 s than the set has room for.

use super::cookie;
use e2d2::memory::prefer_large_pages;
use e2d2::time::Instant;
use netfcts::seq::SeqNum;

const WAYS: usize = 8;

/// 48 bits of fingerprint and 16 of the slot it was used in; zero is free.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; WAYS]);

/// The cookies used lately.
pub(super) struct UsedCookies {
    lines: Box<[Line]>,
}

impl UsedCookies {
    /// Room for about `capacity` cookies, allocated now.
    pub(super) fn new(capacity: usize) -> Self {
        let lines = capacity.div_ceil(WAYS).next_power_of_two();
        let lines = vec![Line([0; WAYS]); lines].into_boxed_slice();
        prefer_large_pages(&lines);
        UsedCookies { lines }
    }

    /// True if the flow with `flow_hash` has used `cookie`.
    pub(super) fn contains(&self, flow_hash: u64, cookie: SeqNum, now: Instant) -> bool {
        let slot = cookie::CookieJar::slot(now);
        let fingerprint = fingerprint(flow_hash, cookie);
        let age = |entry: u64| (slot as u16).wrapping_sub(entry as u16);
        // A cookie made in slot s is valid in s and s + 1, so a use can be repeated at most one slot later.
        let line = &self.lines[self.place(flow_hash)].0;
        line.iter()
            .any(|&entry| entry != 0 && entry & !0xffff == fingerprint && age(entry) <= 1)
    }

    /// Notes the use of `cookie` by the flow with `flow_hash`. Returns false if it had been used before.
    pub(super) fn note(&mut self, flow_hash: u64, cookie: SeqNum, now: Instant) -> bool {
        if self.contains(flow_hash, cookie, now) {
            return false;
        }
        let slot = cookie::CookieJar::slot(now);
        let fingerprint = fingerprint(flow_hash, cookie);
        let age = |entry: u64| (slot as u16).wrapping_sub(entry as u16);
        let at = self.place(flow_hash);
        let line = &mut self.lines[at].0;
        let oldest = (0..WAYS)
            .max_by_key(|&way| if line[way] == 0 { u16::MAX } else { age(line[way]) })
            .unwrap_or(0);
        line[oldest] = fingerprint | u64::from(slot as u16);
        true
    }

    /// Asks the processor for the line that [`UsedCookies::note`] will read for this flow.
    pub(super) fn prefetch(&self, flow_hash: u64) {
        e2d2::prefetch(&self.lines[self.place(flow_hash)]);
    }

    fn place(&self, flow_hash: u64) -> usize {
        (flow_hash >> 7) as usize & (self.lines.len() - 1)
    }

    /// The memory of the set in bytes.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.lines)
    }
}

fn fingerprint(flow_hash: u64, cookie: SeqNum) -> u64 {
    let mixed = (flow_hash ^ u64::from(cookie.0) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed & !0xffff
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_cookie_is_good_for_one_connection() {
        let mut used = UsedCookies::new(64);
        let now = Instant::ZERO + Duration::from_secs(80);
        assert!(used.note(1, SeqNum(5), now));
        assert!(!used.note(1, SeqNum(5), now));
        assert!(!used.note(1, SeqNum(5), now + Duration::from_secs(15)));
        assert!(used.note(1, SeqNum(6), now));
        assert!(used.note(2, SeqNum(5), now));
    }

    #[test]
    fn an_expired_entry_makes_room() {
        let mut used = UsedCookies::new(8);
        let now = Instant::ZERO + Duration::from_secs(80);
        for n in 0..8 {
            assert!(used.note(0, SeqNum(n), now));
        }
        let later = now + cookie::LIFETIME;
        assert!(used.note(0, SeqNum(100), later));
        assert!(!used.note(0, SeqNum(100), later));
    }
}
