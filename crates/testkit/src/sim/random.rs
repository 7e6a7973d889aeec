//! Random numbers from a seed, the same on every machine and with every version of every library.

use std::ops::RangeInclusive;

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast, and any seed is a good one.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// An independent sequence for the part of a simulation with this `name`: drawing more in one part changes nothing
    /// in the others.
    #[must_use]
    pub fn fork(&self, name: &str) -> Self {
        let mixed = name.bytes().fold(self.0, |state, byte| {
            (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut child = Random(mixed);
        child.bits();
        child
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `range`, each equally likely (the bias of the remainder is below 2⁻³² for the ranges used here).
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = range.into_inner();
        low + self.bits() % (high - low + 1)
    }

    /// A number in `range`, each order of magnitude equally likely.
    pub fn magnitude(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = range.into_inner();
        let span = (high as f64 / low as f64).ln();
        let at = (self.bits() >> 11) as f64 / (1_u64 << 53) as f64;
        ((low as f64 * (span * at).exp()) as u64).clamp(low, high)
    }

    /// True in `per_mille` of 1000 cases.
    pub fn chance(&mut self, per_mille: u16) -> bool {
        self.within(0..=999) < u64::from(per_mille)
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// If there is none.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.within(0..=choices.len() as u64 - 1) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_numbers_are_those_of_the_reference() {
        // The reference implementation's first outputs for seed 1234567.
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.bits()).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn ranges_reach_both_ends() {
        let mut random = Random::new(7);
        let drawn: Vec<u64> = (0..1000).map(|_| random.within(3..=5)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&5)));
        let sizes: Vec<u64> = (0..100_000).map(|_| random.magnitude(1..=200_000)).collect();
        assert_eq!(sizes.iter().min(), Some(&1));
        assert!(sizes.iter().any(|&size| size > 190_000) && sizes.iter().all(|&size| size <= 200_000));
    }

    #[test]
    fn forks_differ_from_each_other_and_repeat() {
        let random = Random::new(1);
        assert_eq!(random.fork("a").bits(), random.fork("a").bits());
        assert_ne!(random.fork("a").bits(), random.fork("b").bits());
    }
}
