//! `filter`: keeps what a predicate wants and drops the rest.

use super::{Round, Source};
use crate::fate::DropReason;
use crate::time::Instant;

/// See [`Source::filter`].
pub struct Filter<S, F> {
    source: S,
    wanted: F,
}

impl<S, F> Filter<S, F> {
    pub(super) fn new(source: S, wanted: F) -> Self {
        Self { source, wanted }
    }
}

impl<S: Source, F: FnMut(&S::Item) -> bool> Source for Filter<S, F> {
    type Item = S::Item;

    #[inline]
    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, Self::Item)) -> usize {
        let mut passed = 0;
        self.source.pull(round, max, |round, item| {
            if (self.wanted)(&item) {
                passed += 1;
                each(round, item);
            } else {
                round.discard(item, DropReason::Filtered);
            }
        });
        passed
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.source.next_deadline()
    }
}
