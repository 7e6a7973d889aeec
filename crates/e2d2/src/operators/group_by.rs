//! `group_by`: splits a source into one source for each group.
//!
//! The groups share the source above them and a queue for each group. A group that is pulled with an empty queue pulls the
//! shared source once and sorts what comes into the queues; it does so only while every queue has room for a whole burst,
//! so nothing is lost between a slow group and a fast one: the slow one holds up both until it is pulled.

use std::cell::RefCell;
use std::rc::Rc;

use super::{Round, Source};
use crate::BURST;
use crate::counters::Reason;
use crate::fate::DropReason;
use crate::queue::Queue;
use crate::time::Instant;

/// Two bursts: one that waits while the next is sorted.
const QUEUE_CAPACITY: usize = 2 * BURST;

/// The groups of a source; see [`Source::group_by`].
pub struct Groups<S: Source, G: Reason, F> {
    splitter: Rc<RefCell<Splitter<S, G, F>>>,
}

/// The source of one group's packets.
pub struct Group<S: Source, G: Reason, F> {
    splitter: Rc<RefCell<Splitter<S, G, F>>>,
    group: G,
}

struct Splitter<S: Source, G: Reason, F> {
    source: S,
    classify: F,
    /// `None` for a group that nobody takes packets from.
    queues: G::Array<Option<Queue<S::Item>>>,
}

impl<S: Source, G: Reason, F> Groups<S, G, F> {
    pub(super) fn new(source: S, classify: F) -> Self {
        Self {
            splitter: Rc::new(RefCell::new(Splitter {
                source,
                classify,
                queues: G::array(|_| None),
            })),
        }
    }

    /// The source of the packets of `group`.
    ///
    /// Packets of a group for which this was never called, or whose source is gone, are dropped as
    /// [`DropReason::NoSuchGroup`]. Every source that was taken must be pulled by some task, or its full queue stops the
    /// other groups. Taking a group twice splits its packets at random between the two.
    pub fn group(&self, group: G) -> Group<S, G, F> {
        let mut splitter = self.splitter.borrow_mut();
        splitter.queues.as_mut()[group.index()].get_or_insert_with(|| Queue::new(QUEUE_CAPACITY));
        Group {
            splitter: Rc::clone(&self.splitter),
            group,
        }
    }
}

impl<S: Source, G: Reason, F: FnMut(&S::Item) -> G> Splitter<S, G, F> {
    fn pull_and_sort(&mut self, round: &mut Round<'_>) {
        let queues = self.queues.as_mut();
        if queues.iter().flatten().any(|queue| queue.room() < BURST) {
            return;
        }
        let classify = &mut self.classify;
        self.source
            .pull(round, BURST, |round, item| match &mut queues[classify(&item).index()] {
                Some(queue) => {
                    if let Err(item) = queue.push(item) {
                        round.discard(item, DropReason::QueueFull);
                    }
                }
                None => round.discard(item, DropReason::NoSuchGroup),
            });
    }
}

impl<S: Source, G: Reason, F: FnMut(&S::Item) -> G> Source for Group<S, G, F> {
    type Item = S::Item;

    #[inline]
    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, Self::Item)) -> usize {
        // No closure that packets are given to can pull, so nobody else holds this borrow.
        let mut splitter = self.splitter.borrow_mut();
        let index = self.group.index();
        if splitter.queues.as_ref()[index].as_ref().is_none_or(Queue::is_empty) {
            splitter.pull_and_sort(round);
        }
        let Some(queue) = &mut splitter.queues.as_mut()[index] else {
            return 0;
        };
        let count = max.min(queue.len());
        round.add_work(count);
        queue.drain(count).for_each(|item| each(round, item));
        count
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.splitter.borrow().source.next_deadline()
    }
}
