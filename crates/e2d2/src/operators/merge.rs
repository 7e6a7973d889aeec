//! `merge`: joins several sources into one, in turn or by priority.

use super::{Round, Source};
use crate::time::Instant;

/// Several sources of the same kind of packet: an array, a vector, or a tuple where their types differ.
pub trait Sources {
    /// What comes out of each of them.
    type Item;

    /// How many they are.
    fn count(&self) -> usize;

    /// Pulls the source `index`, which is less than [`Sources::count`]; see [`Source::pull`].
    fn pull_one(
        &mut self,
        index: usize,
        round: &mut Round<'_>,
        max: usize,
        each: impl FnMut(&mut Round<'_>, Self::Item),
    ) -> usize;

    /// The earliest deadline of all of them.
    fn next_deadline(&self) -> Option<Instant>;
}

/// See [`merge`] and [`merge_by_priority`].
pub struct Merge<M> {
    sources: M,
    first: usize,
    /// How far the first turn moves from one pull to the next: 0 keeps the order of priority.
    step: usize,
}

/// Joins sources in turn: each pull begins with the next of them, so each is the first to be asked equally often.
pub fn merge<M: Sources>(sources: M) -> Merge<M> {
    Merge {
        sources,
        first: 0,
        step: 1,
    }
}

/// Joins sources by priority: a source is only asked for what those before it leave of `max`.
///
/// A source before it that always has `max` packets starves it; put what is rare and urgent first.
pub fn merge_by_priority<M: Sources>(sources: M) -> Merge<M> {
    Merge {
        sources,
        first: 0,
        step: 0,
    }
}

impl<M: Sources> Source for Merge<M> {
    type Item = M::Item;

    #[inline]
    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, Self::Item)) -> usize {
        let count = self.sources.count();
        let mut pulled = 0;
        let mut index = self.first;
        for _ in 0..count {
            if pulled == max {
                break;
            }
            pulled += self.sources.pull_one(index, round, max - pulled, &mut each);
            index = if index + 1 == count { 0 } else { index + 1 };
        }
        self.first += self.step;
        if self.first >= count {
            self.first = 0;
        }
        pulled
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.sources.next_deadline()
    }
}

macro_rules! sources_in_a_row {
    ($([$($generics:tt)*] $type:ty),+) => {$(
        impl<S: Source, $($generics)*> Sources for $type {
            type Item = S::Item;

            fn count(&self) -> usize {
                self.len()
            }

            #[inline]
            fn pull_one(
                &mut self,
                index: usize,
                round: &mut Round<'_>,
                max: usize,
                each: impl FnMut(&mut Round<'_>, Self::Item),
            ) -> usize {
                self[index].pull(round, max, each)
            }

            fn next_deadline(&self) -> Option<Instant> {
                self.iter().filter_map(Source::next_deadline).min()
            }
        }
    )+};
}
sources_in_a_row!([const N: usize] [S; N], [] Vec<S>);

macro_rules! sources_in_a_tuple {
    ($count:literal: $first:ident 0, $($other:ident $index:tt),+) => {
        impl<$first: Source, $($other: Source<Item = $first::Item>),+> Sources for ($first, $($other),+) {
            type Item = $first::Item;

            fn count(&self) -> usize {
                $count
            }

            #[inline]
            fn pull_one(
                &mut self,
                index: usize,
                round: &mut Round<'_>,
                max: usize,
                each: impl FnMut(&mut Round<'_>, Self::Item),
            ) -> usize {
                match index {
                    $( $index => self.$index.pull(round, max, each), )+
                    _ => self.0.pull(round, max, each),
                }
            }

            fn next_deadline(&self) -> Option<Instant> {
                [self.0.next_deadline(), $( self.$index.next_deadline() ),+].into_iter().flatten().min()
            }
        }
    };
}
sources_in_a_tuple!(2: A 0, B 1);
sources_in_a_tuple!(3: A 0, B 1, C 2);
sources_in_a_tuple!(4: A 0, B 1, C 2, D 3);
sources_in_a_tuple!(5: A 0, B 1, C 2, D 3, E 4);
