//! Times of all cores together, as a few figures.

use std::sync::Arc;

use splice::tally::{Distribution, Histogram, Tally};

/// What all cores have counted in their histograms of one thing.
pub(super) fn distribution<'a>(
    tallies: &'a [Arc<Tally>],
    of: impl Fn(&'a Tally) -> Option<Histogram<'a>>,
) -> Distribution {
    let mut all = Distribution::default();
    (tallies.iter().filter_map(|tally| of(tally))).for_each(|counted| all.add(counted));
    all
}

/// Microseconds as milliseconds, in three figures: a histogram has no more.
fn in_ms(micros: u64) -> f64 {
    let unit = 10_u64.pow(micros.checked_ilog10().unwrap_or(0).saturating_sub(2));
    (micros.saturating_add(unit / 2) / unit * unit) as f64 / 1e3
}

/// Half of the times and 99 % of them are not above these, in ms; none of none.
pub(super) fn percentiles(times: &Distribution) -> [Option<f64>; 2] {
    [0.5, 0.99].map(|part| times.quantile(part).map(in_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_three_figures() {
        for (micros, ms) in [
            (0, 0.0),
            (7, 0.007),
            (999, 0.999),
            (1_234, 1.23),
            (846_926, 847.0),
            (4_660_337, 4_660.0),
        ] {
            assert_eq!(in_ms(micros), ms, "{micros}");
        }
        assert_eq!(in_ms(u64::MAX), 18_400_000_000_000_000.0);
    }
}
