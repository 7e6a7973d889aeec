//! What a load generator counts: units, and how long each operation took.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of each doubling: a quantile is right within a sixteenth.
const STEPS: usize = 16;

/// Doublings from 1 µs on: up to 67 s, in which the rest is counted as well.
const DOUBLINGS: usize = 26;

/// Units and times, written by the generator and read by who measures.
pub(crate) struct Tally {
    /// Bytes, answers or connections.
    pub(crate) units: AtomicU64,
    times: Vec<AtomicU32>,
}

impl Default for Tally {
    fn default() -> Self {
        Tally {
            units: AtomicU64::new(0),
            times: (0..STEPS * DOUBLINGS).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl Tally {
    /// An operation took so long.
    pub(crate) fn took(&self, time: Duration) {
        self.times[bucket(time)].fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets the times so far.
    pub(crate) fn forget_times(&self) {
        for bucket in &self.times {
            bucket.store(0, Ordering::Relaxed);
        }
    }

    /// The time in seconds that this share (0 to 1) of the operations did not exceed; `None` without operations.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        let counts: Vec<u64> = self
            .times
            .iter()
            .map(|count| count.load(Ordering::Relaxed).into())
            .collect();
        let all: u64 = counts.iter().sum();
        let wanted = (all as f64 * share).ceil().max(1.0) as u64;
        let mut below = 0;
        let reached = |count: &u64| {
            below += count;
            below >= wanted
        };
        counts.iter().position(reached).map(|bucket| upper(bucket) / 1e6)
    }
}

fn bucket(time: Duration) -> usize {
    let micros = (time.as_nanos() as f64 / 1e3).max(1.0);
    ((micros.log2() * STEPS as f64) as usize).min(STEPS * DOUBLINGS - 1)
}

/// The end of a bucket in microseconds.
fn upper(bucket: usize) -> f64 {
    ((bucket + 1) as f64 / STEPS as f64).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_within_a_sixteenth() {
        let tally = Tally::default();
        assert_eq!(tally.quantile(0.99), None);
        for micros in 1..=10_000 {
            tally.took(Duration::from_micros(micros));
        }
        for (share, seconds) in [(0.5, 5e-3), (0.99, 9.9e-3), (1.0, 10e-3)] {
            let found = tally.quantile(share).expect("there are times");
            assert!((1.0..1.07).contains(&(found / seconds)), "{share}: {found}");
        }
        tally.took(Duration::from_secs(1000));
        assert!(tally.quantile(1.0).is_some_and(|longest| longest > 60.0));
        tally.forget_times();
        assert_eq!(tally.quantile(0.5), None);
    }
}
