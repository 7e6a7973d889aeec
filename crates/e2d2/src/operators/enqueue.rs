//! `enqueue` and `dequeue`: the two ends of a bounded queue between tasks of one core.

use std::rc::Rc;

use super::{Round, Source, Task, Work};
use crate::BURST;
use crate::fate::{DropReason, GraphCounters, Traffic};
use crate::queue::SharedQueue;
use crate::time::Instant;

/// See [`Source::enqueue`].
pub struct EnqueueTask<S: Source> {
    source: S,
    queue: SharedQueue<S::Item>,
    counters: Rc<GraphCounters>,
}

impl<S: Source> EnqueueTask<S> {
    pub(super) fn new(source: S, queue: SharedQueue<S::Item>, counters: Rc<GraphCounters>) -> Self {
        Self {
            source,
            queue,
            counters,
        }
    }
}

impl<S: Source> Task for EnqueueTask<S> {
    fn run(&mut self, now: Instant) -> Work {
        let mut round = Round::new(now, &self.counters);
        let mut queue = self.queue.borrow_mut();
        let mut queued = 0;
        self.source
            .pull(&mut round, usize::MAX, |round, item| match queue.push(item) {
                Ok(()) => queued += 1,
                Err(item) => round.discard(item, DropReason::QueueFull),
            });
        round.count(Traffic::ToQueue, queued);
        round.work()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.source.next_deadline()
    }
}

/// See [`dequeue`].
pub struct Dequeue<T> {
    queue: SharedQueue<T>,
}

/// A source of what other tasks of this core put into `queue`: at most a burst at each pull.
///
/// A task must not enqueue into the queue that it takes from.
pub fn dequeue<T>(queue: &SharedQueue<T>) -> Dequeue<T> {
    Dequeue {
        queue: Rc::clone(queue),
    }
}

impl<T> Source for Dequeue<T> {
    type Item = T;

    #[inline]
    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, T)) -> usize {
        let mut queue = self.queue.borrow_mut();
        let count = max.min(BURST).min(queue.len());
        round.count(Traffic::FromQueue, count);
        round.add_work(count);
        queue.drain(count).for_each(|item| each(round, item));
        count
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}
