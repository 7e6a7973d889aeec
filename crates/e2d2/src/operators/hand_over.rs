//! `hand_over` and `from_cores`: the two ends of the rings between cores ([`crate::handover`]).

use super::{Round, Source};
use crate::BURST;
use crate::fate::{DropReason, Traffic};
use crate::handover::{Incoming, Outgoing};
use crate::time::Instant;

/// See [`Source::hand_over`].
pub struct HandOver<S: Source, F> {
    source: S,
    outgoing: Outgoing<S::Item>,
    owner: F,
}

impl<S: Source, F> HandOver<S, F> {
    pub(super) fn new(source: S, outgoing: Outgoing<S::Item>, owner: F) -> Self {
        Self {
            source,
            outgoing,
            owner,
        }
    }
}

impl<S: Source, F: FnMut(&S::Item) -> usize> Source for HandOver<S, F> {
    type Item = S::Item;

    #[inline]
    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, Self::Item)) -> usize {
        let (mut passed, mut handed) = (0, 0);
        self.source.pull(round, max, |round, item| {
            let owner = (self.owner)(&item);
            if owner == self.outgoing.core() {
                passed += 1;
                each(round, item);
                return;
            }
            match self.outgoing.push(owner, item) {
                Ok(()) => handed += 1,
                Err(item) => round.discard(item, DropReason::HandoverRefused),
            }
        });
        round.count(Traffic::ToQueue, handed);
        passed
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.source.next_deadline()
    }
}

/// See [`from_cores`].
pub struct FromCores<T> {
    incoming: Incoming<T>,
}

/// A source of what the other cores hand over to this one: at most a burst at each pull.
pub fn from_cores<T: Send>(incoming: Incoming<T>) -> FromCores<T> {
    FromCores { incoming }
}

impl<T: Send> Source for FromCores<T> {
    type Item = T;

    #[inline]
    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, T)) -> usize {
        let taken = self.incoming.take(max.min(BURST), |item| each(round, item));
        round.count(Traffic::FromQueue, taken);
        round.add_work(taken);
        taken
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}
