//! How much of a pool each source has, without a list of sources.
//!
//! Two rows of counters; a keyed hash of the source names one in each, and the smaller of the two is what it has at most (a
//! count-min sketch: Cormode and Muthukrishnan, "An improved data stream summary", 2005). A source shares both counters with
//! a hoarder once in 16 million, and nobody outside can choose to. Memory and time are the same however many sources there
//! are.

/// Counters of a row.
const ROW: usize = 4096;

/// Where the counters of a source are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quota([u16; 2]);

impl Quota {
    /// The share of a source that has no hash: for tests.
    #[cfg(test)]
    pub(crate) const NOBODY: Quota = Quota([0; 2]);

    /// The share of the source with this hash, all of whose bits must be even chances.
    pub fn of(hash: u64) -> Self {
        Quota([hash as u16, (hash >> 32) as u16].map(|place| place % ROW as u16))
    }
}

/// What every source has.
pub(crate) struct SourceQuotas {
    rows: [Box<[u32]>; 2],
    limit: u32,
}

impl SourceQuotas {
    /// Nobody has anything, and each may have `limit`.
    pub(crate) fn new(limit: u32) -> Self {
        let row = || vec![0; ROW].into_boxed_slice();
        SourceQuotas {
            rows: [row(), row()],
            limit,
        }
    }

    /// Gives `amount` to a source. Returns false, and gives nothing, if that were more than it may have.
    pub(crate) fn give(&mut self, share: Quota, amount: u32) -> bool {
        let [first, second] = self.counters(share);
        if (*first).min(*second).saturating_add(amount) > self.limit {
            return false;
        }
        self.add(share, amount);
        true
    }

    /// Gives a part of what was taken back a moment ago: it is within the limit.
    pub(crate) fn add(&mut self, share: Quota, amount: u32) {
        self.counters(share)
            .into_iter()
            .for_each(|counter| *counter = counter.saturating_add(amount));
    }

    /// Takes back what was given.
    pub(crate) fn take(&mut self, share: Quota, amount: u32) {
        self.counters(share)
            .into_iter()
            .for_each(|counter| *counter = counter.saturating_sub(amount));
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        self.rows.iter().map(|row| size_of_val(&**row)).sum()
    }

    fn counters(&mut self, share: Quota) -> [&mut u32; 2] {
        let [first, second] = &mut self.rows;
        [
            &mut first[usize::from(share.0[0]) % ROW],
            &mut second[usize::from(share.0[1]) % ROW],
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_may_have_the_limit_and_no_more() {
        let mut shares = SourceQuotas::new(10);
        let (one, other) = (Quota([1, 2]), Quota([1, 3]));
        assert!(shares.give(one, 10));
        assert!(!shares.give(one, 1));
        assert!(shares.give(other, 10), "one counter in common does not matter");
        shares.take(one, 4);
        assert!(shares.give(one, 4));
        assert!(!shares.give(one, u32::MAX));
        shares.take(one, 10);
        shares.take(other, 10);
        assert!(shares.rows.iter().all(|row| row.iter().all(|&counter| counter == 0)));
    }
}
