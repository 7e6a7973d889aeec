//! How often a number was how large: cells that grow with what they are for, four to each power of two.
//!
//! A cell is from `4 + m` to `5 + m` times a power of two, `m` from 0 to 3, and numbers below four have cells of their own. So
//! what is said of a number by its cell alone is wrong by at most one ninth. Source of the form: HdrHistogram.

use super::Count;

/// Cells of each power of two, as a power of two.
const FINE_BITS: u32 = 2;

/// From nothing to 2^42: a microsecond to 51 days, or a byte to 4 TiB. The last cell has all that is more.
pub const CELLS: usize = 164;

/// Where one core counts. The sum of the numbers stands elsewhere, beside other sums: a line for all of them.
#[derive(Debug)]
pub(super) struct Cells([Count; CELLS]);

impl Default for Cells {
    fn default() -> Cells {
        Cells(std::array::from_fn(|_| Count::default()))
    }
}

impl Cells {
    /// Counts a number, as the one thread that counts here, and adds it to `sum`.
    #[inline]
    pub(super) fn add(&self, value: u64, sum: &Count) {
        self.0[cell_of(value).min(CELLS - 1)].add(1);
        sum.add(value);
    }

    /// With the sum of what was counted.
    pub(super) fn with_sum(&self, sum: u64) -> Histogram<'_> {
        Histogram { cells: &self.0, sum }
    }
}

/// What one core has counted.
#[derive(Clone, Copy, Debug)]
pub struct Histogram<'a> {
    cells: &'a [Count; CELLS],
    sum: u64,
}

/// What several cores have counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    cells: [u64; CELLS],
    sum: u64,
}

impl Default for Distribution {
    fn default() -> Distribution {
        Distribution {
            cells: [0; CELLS],
            sum: 0,
        }
    }
}

impl FromIterator<u64> for Distribution {
    fn from_iter<I: IntoIterator<Item = u64>>(values: I) -> Distribution {
        let (cells, sum) = (Cells::default(), Count::default());
        values.into_iter().for_each(|value| cells.add(value, &sum));
        let mut all = Distribution::default();
        all.add(cells.with_sum(sum.get()));
        all
    }
}

impl Distribution {
    /// Adds what a core has counted until now.
    pub fn add(&mut self, counted: Histogram<'_>) {
        for (all, cell) in self.cells.iter_mut().zip(counted.cells) {
            *all += cell.get();
        }
        self.sum = self.sum.wrapping_add(counted.sum);
    }

    /// What has come since this was `before`, which is none of what has begun anew.
    pub fn since(&self, before: &Distribution) -> Distribution {
        let mut cells = self.cells.iter().zip(&before.cells);
        if cells.any(|(now, before)| now < before) {
            return self.clone();
        }
        let mut since = self.clone();
        since
            .cells
            .iter_mut()
            .zip(&before.cells)
            .for_each(|(cell, before)| *cell -= before);
        since.sum = self.sum.wrapping_sub(before.sum);
        since
    }

    /// How many numbers there were.
    pub fn count(&self) -> u64 {
        self.cells.iter().sum()
    }

    /// Their sum, exact but for numbers that are added in this moment.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// How many were below `limit`, which is a power of two and not one or two.
    pub fn below(&self, limit: u64) -> u64 {
        self.cells.iter().take(cell_of(limit)).sum()
    }

    /// The number that this part of all does not exceed, at most a ninth wrong; none of none. A half is the median.
    pub fn quantile(&self, part: f64) -> Option<u64> {
        let rank = (self.count() as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        let cell = self.cells.iter().position(|cell| {
            seen += cell;
            seen >= rank
        })?;
        Some(middle_of(cell))
    }
}

/// The cell of a number, if there were as many as that takes.
#[inline]
fn cell_of(value: u64) -> usize {
    // Without a branch, which no processor predicts: numbers below four are shifted by nothing.
    let shift = (value | 1 << FINE_BITS).ilog2() - FINE_BITS;
    // From four on what is left has its highest bit set, which counts as one power of two.
    (u64::from(shift << FINE_BITS) + (value >> shift)) as usize
}

/// What is nearest to all numbers of a cell, in proportion: as far above its least as below its end.
fn middle_of(cell: usize) -> u64 {
    let first = |cell: usize| {
        let power = (cell >> FINE_BITS).saturating_sub(1);
        let fine = if power == 0 { cell } else { (cell & 3) | 4 };
        (fine as u64) << power
    };
    let (first, end) = (first(cell), first(cell + 1));
    if end - first <= 1 {
        return first;
    }
    (2 * u128::from(first) * u128::from(end) / u128::from(first + end)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: &[u64]) -> Distribution {
        values.iter().copied().collect()
    }

    #[test]
    fn cells_follow_each_other_without_a_gap() {
        assert_eq!((0..10).map(cell_of).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]);
        for value in 1..100_000 {
            let step = cell_of(value) - cell_of(value - 1);
            assert!(step <= 1, "{value}");
        }
        assert_eq!(cell_of((1 << 42) - 1), CELLS - 1);
        assert_eq!(histogram(&[(1 << 42) - 1, 1 << 42, u64::MAX]).cells[CELLS - 1], 3);
        for log in 2..42 {
            assert_eq!(cell_of(1 << log), cell_of((1 << log) - 1) + 1, "{log}");
        }
    }

    #[test]
    fn what_a_cell_says_is_a_ninth_wrong_at_most() {
        for value in (1..5000).chain((0..38).flat_map(|log| [5 << log, (8 << log) - 1, 8 << log])) {
            let said = middle_of(cell_of(value));
            assert!(said.abs_diff(value) * 9 <= value, "{value} is said to be {said}");
        }
    }

    /// Against the exact quantiles of numbers over six powers of ten.
    #[test]
    fn quantiles_are_a_ninth_wrong_at_most() {
        let mut state = 1_u64;
        let mut values: Vec<u64> = (0..20_000)
            .map(|_| {
                // Knuth's MMIX generator.
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let log = (state >> 40) as f64 / f64::from(1 << 24) * 6.0;
                10_f64.powf(log) as u64
            })
            .collect();
        let all = histogram(&values);
        values.sort_unstable();
        assert_eq!((all.count(), all.sum()), (20_000, values.iter().sum()));
        for part in [0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let rank = (values.len() as f64 * part).ceil() as usize;
            let exact = values[rank - 1];
            let said = all.quantile(part).expect("numbers");
            assert!(said.abs_diff(exact) * 9 <= exact, "{part}: {said} for {exact}");
        }
        for log in 2..20 {
            let exact = values.iter().filter(|value| **value < 1 << log).count() as u64;
            assert_eq!(all.below(1 << log), exact, "{log}");
        }
    }

    #[test]
    fn nothing_has_no_quantile_and_cores_are_added() {
        assert_eq!(histogram(&[]).quantile(0.5), None);
        let mut all = Distribution::default();
        for value in [3, 1000] {
            let (core, sum) = (Cells::default(), Count::default());
            core.add(value, &sum);
            all.add(core.with_sum(sum.get()));
        }
        assert_eq!((all.count(), all.sum(), all.quantile(0.5)), (2, 1003, Some(3)));
    }

    #[test]
    fn what_has_come_since_is_the_difference_and_all_of_what_begins_anew() {
        let (before, now) = (histogram(&[3, 1000]), histogram(&[3, 1000, 7, 7]));
        assert_eq!(now.since(&before), histogram(&[7, 7]));
        assert_eq!(before.since(&now), before);
    }
}
