//! `discard`: the end of a chain that drops everything under one reason.

use std::rc::Rc;

use super::{Round, Source, Task, Work};
use crate::fate::{DropReason, GraphCounters};
use crate::time::Instant;

/// See [`Source::discard`].
pub struct DiscardTask<S> {
    source: S,
    reason: DropReason,
    counters: Rc<GraphCounters>,
}

impl<S> DiscardTask<S> {
    pub(super) fn new(source: S, reason: DropReason, counters: Rc<GraphCounters>) -> Self {
        Self {
            source,
            reason,
            counters,
        }
    }
}

impl<S: Source> Task for DiscardTask<S> {
    fn run(&mut self, now: Instant) -> Work {
        let mut round = Round::new(now, &self.counters);
        let reason = self.reason;
        self.source
            .pull(&mut round, usize::MAX, |round, item| round.discard(item, reason));
        round.work()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.source.next_deadline()
    }
}
