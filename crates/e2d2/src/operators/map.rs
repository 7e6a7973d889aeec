//! `map`: replaces each packet by what a function makes of it.

use super::{Round, Source};
use crate::time::Instant;

/// See [`Source::map`].
pub struct Map<S, F> {
    source: S,
    change: F,
}

impl<S, F> Map<S, F> {
    pub(super) fn new(source: S, change: F) -> Self {
        Self { source, change }
    }
}

impl<S: Source, T, F: FnMut(S::Item) -> T> Source for Map<S, F> {
    type Item = T;

    #[inline]
    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, T)) -> usize {
        let change = &mut self.change;
        self.source.pull(round, max, |round, item| each(round, change(item)))
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.source.next_deadline()
    }
}
