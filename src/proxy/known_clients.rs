//! Clients that have come back with a cookie lately: who they say they are, they are.
//!
//! A flood of SYNs comes from addresses that nobody answers from; who has once returned a cookie has shown that packets
//! reach him. That is worth a place in front when there is not enough for all ([`overload`](super::overload)). It is no
//! right: an attacker who has addresses can get known too, so those who are known still have a budget.
//!
//! One bit for the [hash of a source](super::table::FlowTable::source_hash), in two generations: who has come in this one
//! or the one before is known. A generation ends after ten minutes, or when a quarter of its bits are set, so that of those
//! who never came less than half pass for known. Memory: a byte for each connection that there is room for. Cost: a hash
//! and a store for each connection, never a wait for either.

use e2d2::memory::prefer_large_pages;
use e2d2::time::Instant;
use std::time::Duration;

/// How long a generation lasts.
const GENERATION: Duration = Duration::from_secs(600);

/// Bits of a generation for each connection that there is room for.
const BITS_PER_CONNECTION: usize = 4;

/// Who has come back of late.
pub(super) struct KnownClients {
    /// Of this generation, and of the one before.
    bits: [Box<[u64]>; 2],
    set: usize,
    began: Instant,
}

impl KnownClients {
    /// Nobody is known; room for some `capacity` clients in a generation.
    pub(super) fn new(capacity: usize, now: Instant) -> Self {
        let bits = || {
            let words = vec![0u64; (capacity * BITS_PER_CONNECTION).div_ceil(64).max(64)].into_boxed_slice();
            prefer_large_pages(&words);
            words
        };
        KnownClients {
            bits: [bits(), bits()],
            set: 0,
            began: now,
        }
    }

    /// Notes the client whose source has this hash.
    #[inline]
    pub(super) fn note(&mut self, hash: u64, now: Instant) {
        let (word, bit) = self.place(hash);
        let word = &mut self.bits[0][word];
        if *word & bit == 0 {
            *word |= bit;
            self.set += 1;
            self.end_generation(now);
        }
    }

    /// True for a client that was noted in this generation or the one before, and for a few that were not.
    #[inline]
    pub(super) fn contains(&self, hash: u64) -> bool {
        let (word, bit) = self.place(hash);
        (self.bits[0][word] | self.bits[1][word]) & bit != 0
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.bits.iter().map(|bits| size_of_val(&**bits)).sum()
    }

    fn end_generation(&mut self, now: Instant) {
        let is_full = self.set > self.bits[0].len() * 64 / 4;
        if is_full || now.saturating_since(self.began) >= GENERATION {
            self.bits.swap(0, 1);
            self.bits[0].fill(0);
            (self.set, self.began) = (0, now);
        }
    }

    /// Word and bit of a hash.
    #[inline]
    fn place(&self, hash: u64) -> (usize, u64) {
        let word = (u128::from(hash) * self.bits[0].len() as u128) >> 64;
        (word as usize, 1 << (hash & 63))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_millis(1);

    /// Hashes as they come: even chances for each bit.
    fn hash_of(n: u64) -> u64 {
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n.wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(32)
    }

    #[test]
    fn who_was_noted_is_known_and_hardly_anyone_else() {
        let mut known = KnownClients::new(10_000, START);
        (0..1_000).for_each(|n| known.note(hash_of(n), START));
        assert!((0..1_000).all(|n| known.contains(hash_of(n))));
        let mistaken = (1_000..101_000).filter(|&n| known.contains(hash_of(n))).count();
        assert!((1_500..4_000).contains(&mistaken), "1 000 of 40 000 bits: {mistaken}");
    }

    #[test]
    fn is_forgotten_in_the_second_generation() {
        let mut known = KnownClients::new(10_000, START);
        known.note(hash_of(1), START);
        let later = START + GENERATION;
        known.note(hash_of(2), later);
        assert!(known.contains(hash_of(1)) && known.contains(hash_of(2)));
        known.note(hash_of(3), later + GENERATION);
        assert!(!known.contains(hash_of(1)));
        assert!(known.contains(hash_of(3)));
    }

    #[test]
    fn however_many_come_most_strangers_stay_strangers() {
        let mut known = KnownClients::new(10_000, START);
        (0..1_000_000).for_each(|n| known.note(hash_of(n), START));
        let mistaken = (1_000_000..1_100_000).filter(|&n| known.contains(hash_of(n))).count();
        assert!(mistaken < 50_000, "{mistaken}");
        assert!(
            (999_000..1_000_000).all(|n| known.contains(hash_of(n))),
            "the last are known"
        );
    }
}
