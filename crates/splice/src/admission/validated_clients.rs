//! Clients that have come back with a cookie lately: who they say they are, they are.
//!
//! A flood of SYNs comes from addresses that nobody answers from; who has once returned a cookie has shown that packets
//! reach him. That is worth a place in front when there is not enough for all ([`overload`](crate::admission::overload)). It is no
//! right: an attacker who has addresses can get known too, so those who are known still have a budget.
//!
//! One bit for the [hash of a source](crate::session::table::FlowTable::source_hash), in two generations: who has come in this one
//! or the one before is known. A generation ends after ten minutes, or when a quarter of its bits are set, so that of those
//! who never came less than half pass for known. Nothing is cleared when it ends: each line says whose bits it has, and
//! older ones count as not set. Memory: a byte for each connection that there is room for. Cost: a hash and a store for
//! each connection, never a wait for either.

use e2d2::memory::LargeSlice;
use e2d2::time::Instant;
use std::time::Duration;

/// How long a generation lasts.
const GENERATION: Duration = Duration::from_secs(600);

/// Bits of a generation for each connection that there is room for.
const BITS_PER_CONNECTION: usize = 4;

/// Words of bits in a line.
const WORDS: usize = 15;

/// Bits in a line.
const LINE_BITS: usize = WORDS * 32;

/// A line of the cache.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    /// The generation whose bits they are.
    generation: u32,
    bits: [u32; WORDS],
}

const _: () = assert!(size_of::<Line>() == 64);

/// Who has come back of late.
pub(crate) struct ValidatedClients {
    /// Generations take turns: of two that follow each other each has its own lines.
    lines: [LargeSlice<Line>; 2],
    generation: u32,
    /// Bits set in this generation.
    set: usize,
    began: Instant,
}

/// Where the bit of a hash is.
struct Place {
    line: usize,
    word: usize,
    bit: u32,
}

impl ValidatedClients {
    /// Nobody is known; room for some `capacity` clients in a generation.
    pub(crate) fn new(capacity: usize, now: Instant) -> Self {
        let lines = || {
            let empty = Line {
                generation: 0,
                bits: [0; WORDS],
            };
            let count = (capacity * BITS_PER_CONNECTION).div_ceil(LINE_BITS).max(8);
            LargeSlice::of(empty, count)
        };
        ValidatedClients {
            lines: [lines(), lines()],
            generation: 1,
            set: 0,
            began: now,
        }
    }

    /// Notes the client whose source has this hash.
    #[inline]
    pub(crate) fn note(&mut self, hash: u64, now: Instant) {
        let Place { line, word, bit } = self.place(hash);
        let generation = self.generation;
        let line = &mut self.lines[generation as usize % 2][line];
        if line.generation != generation {
            *line = Line {
                generation,
                bits: [0; WORDS],
            };
        }
        if line.bits[word] & bit == 0 {
            line.bits[word] |= bit;
            self.set += 1;
            self.end_generation(now);
        }
    }

    /// True for a client that was noted in this generation or the one before, and for a few that were not.
    #[inline]
    pub(crate) fn contains(&self, hash: u64) -> bool {
        let Place { line, word, bit } = self.place(hash);
        let is_noted_in = |generation: u32| {
            let line = &self.lines[generation as usize % 2][line];
            line.generation == generation && line.bits[word] & bit != 0
        };
        is_noted_in(self.generation) || is_noted_in(self.generation.wrapping_sub(1))
    }

    /// Asks the processor for what [`contains`](Self::contains) will read.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        let Place { line, .. } = self.place(hash);
        self.lines.iter().for_each(|lines| e2d2::prefetch(&lines[line]));
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        self.lines.iter().map(|lines| size_of_val(&**lines)).sum()
    }

    fn end_generation(&mut self, now: Instant) {
        let is_full = self.set > self.lines[0].len() * LINE_BITS / 4;
        if is_full || now.saturating_since(self.began) >= GENERATION {
            self.generation = self.generation.wrapping_add(1);
            (self.set, self.began) = (0, now);
        }
    }

    #[inline]
    fn place(&self, hash: u64) -> Place {
        // The upper half of the product names the line, the lower half is as good as random within it.
        let product = u128::from(hash) * self.lines[0].len() as u128;
        let bit = ((product as u64 >> 32) as usize * LINE_BITS) >> 32;
        Place {
            line: (product >> 64) as usize,
            word: bit / 32,
            bit: 1 << (bit % 32),
        }
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
        let mut known = ValidatedClients::new(10_000, START);
        (0..1_000).for_each(|n| known.note(hash_of(n), START));
        assert!((0..1_000).all(|n| known.contains(hash_of(n))));
        let mistaken = (1_000..101_000).filter(|&n| known.contains(hash_of(n))).count();
        assert!((1_500..4_000).contains(&mistaken), "1 000 of 40 000 bits: {mistaken}");
    }

    #[test]
    fn is_forgotten_in_the_second_generation() {
        let mut known = ValidatedClients::new(10_000, START);
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
        let mut known = ValidatedClients::new(10_000, START);
        (0..1_000_000).for_each(|n| known.note(hash_of(n), START));
        let mistaken = (1_000_000..1_100_000).filter(|&n| known.contains(hash_of(n))).count();
        assert!(mistaken < 50_000, "{mistaken}");
        assert!(
            (999_000..1_000_000).all(|n| known.contains(hash_of(n))),
            "the last are known"
        );
    }
}
