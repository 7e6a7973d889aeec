//! `group_by`: splits a source into one source for each group.
//!
//! The groups share the source above them. The group that pulls it keeps its own packets flowing and puts those of the
//! others into a queue for each; so the group that is asked first in a round costs nothing, and the others get their
//! packets in the same round. Each of them pulls the shared source only if no other has since its own last turn: ports are
//! asked once per round, not once per group.
//!
//! The source is pulled only while every queue has room for a whole burst, so nothing is lost between a slow group and a
//! fast one: the slow one holds up both until it is pulled.

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
    /// [`Splitter::visits`] at the end of this group's last turn.
    visits_seen: u64,
}

struct Splitter<S: Source, G: Reason, F> {
    source: S,
    classify: F,
    /// How often the source has been pulled.
    visits: u64,
    /// `None` for a group that nobody takes packets from.
    queues: G::Array<Option<Queue<S::Item>>>,
}

impl<S: Source, G: Reason, F> Groups<S, G, F> {
    pub(super) fn new(source: S, classify: F) -> Self {
        Self {
            splitter: Rc::new(RefCell::new(Splitter {
                source,
                classify,
                visits: 0,
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
            visits_seen: splitter.visits,
        }
    }
}

impl<S: Source, G: Reason, F: FnMut(&S::Item) -> G> Splitter<S, G, F> {
    /// Pulls the source once: gives the packets of `group` to `each` and queues the others.
    #[inline]
    fn pull_and_sort(
        &mut self,
        group: G,
        round: &mut Round<'_>,
        max: usize,
        mut each: impl FnMut(&mut Round<'_>, S::Item),
    ) -> usize {
        let queues = self.queues.as_mut();
        if queues.iter().flatten().any(|queue| queue.room() < BURST) {
            return 0;
        }
        self.visits += 1;
        let classify = &mut self.classify;
        let mut passed = 0;
        self.source.pull(round, max.min(BURST), |round, item| {
            let to = classify(&item);
            if to == group {
                passed += 1;
                each(round, item);
                return;
            }
            match &mut queues[to.index()] {
                Some(queue) => {
                    if let Err(item) = queue.push(item) {
                        round.discard(item, DropReason::QueueFull);
                    }
                }
                None => round.discard(item, DropReason::NoSuchGroup),
            }
        });
        passed
    }
}

impl<S: Source, G: Reason, F: FnMut(&S::Item) -> G> Source for Group<S, G, F> {
    type Item = S::Item;

    #[inline]
    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, Self::Item)) -> usize {
        // No closure that packets are given to can pull, so nobody else holds this borrow.
        let mut splitter = self.splitter.borrow_mut();
        let splitter = &mut *splitter;
        let mut passed = 0;
        if let Some(queue) = &mut splitter.queues.as_mut()[self.group.index()]
            && !queue.is_empty()
        {
            passed = max.min(queue.len());
            round.add_work(passed);
            queue.drain(passed).for_each(|item| each(round, item));
        } else if splitter.visits == self.visits_seen {
            passed = splitter.pull_and_sort(self.group, round, max, each);
        }
        self.visits_seen = splitter.visits;
        passed
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.splitter.borrow().source.next_deadline()
    }
}
