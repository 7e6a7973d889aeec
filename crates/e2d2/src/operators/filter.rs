//! `filter`: keeps what a predicate wants and drops the rest under one reason.

use super::{Round, Source};
use crate::fate::DropReason;
use crate::time::Instant;

/// See [`Source::filter`].
pub struct Filter<S, F> {
    source: S,
    reason: DropReason,
    wanted: F,
}

impl<S, F> Filter<S, F> {
    pub(super) fn new(source: S, reason: DropReason, wanted: F) -> Self {
        Self { source, reason, wanted }
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
                round.discard(item, self.reason);
            }
        });
        passed
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.source.next_deadline()
    }
}
