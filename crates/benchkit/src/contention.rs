//! Tells whether somebody else uses the core: its other hardware thread, which may be another guest's, takes cycles away
//! that no system counts.
//!
//! What tells it is a fixed piece of work that keeps most of the core's units busy and needs nothing but them and 8 KiB of
//! the nearest cache. Where the core is one's own it takes the same number of cycles each time, within half a per cent;
//! beside somebody else up to twice as many. It knows nothing of what is measured between, so it cannot flatter it.

use crate::accounts::CycleCounter;

/// Numbers that the chains are led through: 8 KiB.
const WORDS: usize = 2048;

/// Chains of arithmetic and loads of which each waits for itself only: as many as keep a core of today busy.
const CHAINS: usize = 10;

/// Some 7 µs: long enough to tell one thread beside it from none, short enough for nothing to overflow meanwhile.
const STEPS: usize = 2_000;

/// How much longer than at best, in per cent, the work may take where nobody else uses the core.
const TOLERANCE: u64 = 5;

const TABLE: [u32; WORDS] = {
    let mut table = [0; WORDS];
    let mut at = 0;
    while at < WORDS {
        table[at] = (at as u32).wrapping_mul(2_654_435_761);
        at += 1;
    }
    table
};

/// A copy in memory, for a constant might be worked out by the compiler.
static WORK: [u32; WORDS] = TABLE;

/// Cycles that the fixed work takes just now.
pub(super) fn cycles_of_fixed_work(counter: &impl CycleCounter) -> u64 {
    let words = std::hint::black_box(&WORK);
    let before = counter.cycles();
    let mut chains: [u64; CHAINS] = std::array::from_fn(|chain| chain as u64);
    for _ in 0..STEPS {
        for at in &mut chains {
            let word = words[*at as usize % WORDS];
            *at = (*at ^ u64::from(word))
                .wrapping_add(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23);
        }
    }
    std::hint::black_box(chains);
    counter.cycles().saturating_sub(before)
}

/// How often somebody else was found to use the core of the calling thread.
#[derive(Debug, Default)]
pub(super) struct Contentions {
    least: Option<u64>,
    /// See above.
    pub(super) found: u64,
}

impl Contentions {
    /// Looks once more.
    pub(super) fn look(&mut self, counter: &impl CycleCounter) {
        let cycles = counter.fixed_work();
        let least = self.least.map_or(cycles, |least| least.min(cycles));
        self.found += u64::from(cycles > most_if_alone(least));
        self.least = Some(least);
    }
}

/// What the fixed work may take where the core is one's own, by the least that it took.
pub(super) fn most_if_alone(least: u64) -> u64 {
    least + least * TOLERANCE / 100
}

#[cfg(test)]
mod tests {
    use super::*;
    use e2d2::time::{Clock, Instant};
    use std::cell::Cell;

    /// A counter whose fixed work takes what a test says.
    struct Told(Cell<u64>);

    impl CycleCounter for Told {
        fn cycles(&self) -> u64 {
            0
        }

        fn hz(&self) -> u64 {
            1
        }

        fn now(&self) -> Instant {
            Instant::ZERO
        }

        fn fixed_work(&self) -> u64 {
            self.0.get()
        }
    }

    #[test]
    fn what_takes_longer_than_the_least_so_far_is_somebody_else() {
        let (counter, mut contentions) = (Told(Cell::new(0)), Contentions::default());
        let mut found_after = |cycles| {
            counter.0.set(cycles);
            contentions.look(&counter);
            contentions.found
        };
        // The first may be beside somebody else already; it is known with the first that is not.
        assert_eq!(
            [1500, 1000, 1050, 1051, 1000, 1500].map(&mut found_after),
            [0, 0, 0, 1, 1, 2]
        );
    }

    #[test]
    fn the_work_takes_cycles_and_the_bound_is_above_the_least() {
        let cycles = cycles_of_fixed_work(&Clock::new());
        // No core of today does more than a step of a chain in a quarter of a cycle.
        assert!(cycles > (STEPS * CHAINS / 16) as u64, "{cycles}");
        assert!(most_if_alone(cycles) > cycles);
        assert_eq!(most_if_alone(0), 0);
    }
}
