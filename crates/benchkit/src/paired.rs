//! What pairs of measurements say together: on a machine whose speed drifts only a ratio of neighbours means anything.

/// How often the pairs are drawn anew for an interval.
const RESAMPLES: usize = 10_000;

/// The share of resamples below and above the interval together.
const OUTSIDE: f64 = 0.05;

/// A median ratio and where it lies with 95 % confidence.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ratio {
    /// The median of the pairs' ratios: a turn in which the host was somebody else's does not move it.
    pub median: f64,
    /// Lower and upper bound.
    pub interval: [f64; 2],
}

impl Ratio {
    /// First by second of each pair, with a percentile bootstrap over the pairs (B. Efron, R. Tibshirani, An Introduction
    /// to the Bootstrap, chapter 13) from a fixed seed, so that the same pairs say the same twice.
    ///
    /// Pairs with a value that is not above zero say nothing and are left out; with none left the ratio is not a number.
    pub fn of(pairs: &[(f64, f64)]) -> Ratio {
        let is_positive = |(first, second): &&(f64, f64)| *first > 0.0 && *second > 0.0;
        let logs: Vec<f64> = pairs
            .iter()
            .filter(is_positive)
            .map(|(first, second)| (first / second).ln())
            .collect();
        let count = logs.len();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = || {
            // xorshift64
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 11) as usize % count
        };
        let mut medians: Vec<f64> = match count {
            0 => vec![f64::NAN],
            _ => (0..RESAMPLES)
                .map(|_| median(&(0..count).map(|_| logs[draw()]).collect::<Vec<_>>()))
                .collect(),
        };
        medians.sort_by(f64::total_cmp);
        let at = |share: f64| medians[(share * (medians.len() - 1) as f64).round() as usize].exp();
        Ratio {
            median: median(&logs).exp(),
            interval: [at(OUTSIDE / 2.0), at(1.0 - OUTSIDE / 2.0)],
        }
    }
}

/// The middle value, or the mean of the two; not a number for none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ratios_have_no_width() {
        let ratio = Ratio::of(&[(2.0, 1.0), (20.0, 10.0), (3.0, 1.5)]);
        for value in [ratio.median, ratio.interval[0], ratio.interval[1]] {
            assert!((value - 2.0).abs() < 1e-9, "{ratio:?}");
        }
    }

    #[test]
    fn the_interval_lies_around_the_median_and_within_the_pairs() {
        let pairs: Vec<(f64, f64)> = (0..9).map(|n| (1.0 + f64::from(n) / 10.0, 1.0)).collect();
        let ratio = Ratio::of(&pairs);
        let [low, high] = ratio.interval;
        assert!(
            1.0 < low && low < ratio.median && ratio.median < high && high < 1.8,
            "{ratio:?}"
        );
        // By the binomial distribution, from the second or third of nine values that are 0.1 apart to the second or third last.
        assert!((0.35..0.65).contains(&(high - low)), "{ratio:?}");
        assert_eq!(Ratio::of(&pairs), ratio, "the same again");
    }

    #[test]
    fn a_ratio_and_its_inverse_agree() {
        let pairs = [(1.0, 2.0), (3.0, 5.0), (4.0, 4.0), (9.0, 8.0)];
        let inverse = pairs.map(|(first, second)| (second, first));
        assert!((Ratio::of(&pairs).median * Ratio::of(&inverse).median - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_pair_that_was_disturbed_moves_little() {
        let pairs = |last| [(1.02, 1.0), (1.01, 1.0), (1.03, 1.0), (1.02, 1.0), (last, 1.0)];
        assert_eq!(Ratio::of(&pairs(1.02)).median, Ratio::of(&pairs(3.0)).median);
    }

    #[test]
    fn nothing_says_nothing() {
        assert!(Ratio::of(&[]).median.is_nan());
        assert!(Ratio::of(&[(0.0, 1.0)]).median.is_nan());
        assert_eq!(Ratio::of(&[(0.0, 1.0), (3.0, 1.0)]).median, 3.0_f64.ln().exp());
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
