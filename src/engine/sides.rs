//! The device's sides of ports whose queues are made in software: tasks that a core runs beside its graph.

use std::cell::RefCell;
use std::rc::Rc;

use e2d2::operators::Task;
use e2d2::scheduler::Work;
use e2d2::time::Instant;

use super::machine::DeviceSide;
use crate::stages::Stages;

/// All that one thread runs. Clones are the same: one is scheduled, another is asked.
#[derive(Clone)]
pub(super) struct Sides(Rc<RefCell<Vec<Box<dyn DeviceSide>>>>);

impl Sides {
    /// Nothing if there are none.
    pub(super) fn new(sides: Vec<Box<dyn DeviceSide>>) -> Option<Self> {
        (!sides.is_empty()).then(|| Self(Rc::new(RefCell::new(sides))))
    }

    /// Whether other threads still count on any of them.
    pub(super) fn is_needed(&self) -> bool {
        self.0.borrow().iter().any(|side| side.is_needed())
    }
}

impl Task for Sides {
    fn run(&mut self, now: Instant) -> Work {
        let mut work = Work::NONE;
        for side in self.0.borrow_mut().iter_mut() {
            work += side.run(now);
        }
        work
    }

    fn next_deadline(&self) -> Option<Instant> {
        let sides = self.0.borrow();
        sides.iter().filter_map(|side| side.next_deadline()).min()
    }
}

/// A core's graph, and before it in each round the sides that it runs, if any.
pub(super) struct CoreTask<T, C> {
    pub(super) sides: Option<Sides>,
    pub(super) graph: T,
    pub(super) stages: C,
}

impl<T: Task, C: Stages> Task for CoreTask<T, C> {
    #[inline]
    fn run(&mut self, now: Instant) -> Work {
        let mut work = self.sides.as_mut().map_or(Work::NONE, |sides| sides.run(now));
        self.stages.begin_round();
        work += self.graph.run(now);
        self.stages.end_round();
        work
    }

    fn next_deadline(&self) -> Option<Instant> {
        let sides = self.sides.as_ref().and_then(Sides::next_deadline);
        [sides, self.graph.next_deadline()].into_iter().flatten().min()
    }
}
