use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::*;

/// Notes its name at each run and reports work while it has any.
struct Noting {
    name: char,
    work: Rc<Cell<usize>>,
    log: Rc<RefCell<String>>,
    deadline: Option<Instant>,
}

impl Task for Noting {
    fn run(&mut self, _now: Instant) -> Work {
        self.log.borrow_mut().push(self.name);
        let left = self.work.get();
        self.work.set(left.saturating_sub(1));
        Work::units(left.min(1))
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

struct Bench {
    scheduler: Scheduler,
    log: Rc<RefCell<String>>,
}

impl Bench {
    fn new() -> Self {
        Self {
            scheduler: Scheduler::new(IdleMode::Poll),
            log: Rc::default(),
        }
    }

    /// Adds a task that finds work in its first `busy_runs` runs.
    fn add(&mut self, name: char, priority: u8, busy_runs: usize) -> Rc<Cell<usize>> {
        let work = Rc::new(Cell::new(busy_runs));
        let task = Noting {
            name,
            work: Rc::clone(&work),
            log: Rc::clone(&self.log),
            deadline: None,
        };
        self.scheduler.add(Priority(priority), task);
        work
    }

    fn rounds(&mut self, count: usize) -> String {
        self.log.borrow_mut().clear();
        for _ in 0..count {
            let _ = self.scheduler.round(Instant::ZERO);
            self.log.borrow_mut().push(' ');
        }
        self.log.borrow().trim_end().to_owned()
    }
}

#[test]
fn idle_tasks_run_in_every_round_by_priority_and_then_by_age() {
    let mut bench = Bench::new();
    for (name, priority) in [('a', 1), ('b', 2), ('c', 1), ('d', 3), ('e', 2)] {
        bench.add(name, priority, 0);
    }
    assert_eq!(bench.rounds(2), "dbeac dbeac");
}

#[test]
fn busy_task_makes_lower_ones_wait_but_not_its_equals() {
    let mut bench = Bench::new();
    bench.add('h', 2, 3);
    bench.add('e', 2, 0);
    bench.add('l', 1, 0);
    assert_eq!(bench.rounds(5), "he he he hel hel");
}

#[test]
fn low_priority_gets_every_ninth_round_at_worst() {
    let mut bench = Bench::new();
    bench.add('h', 2, usize::MAX);
    bench.add('l', 1, usize::MAX);
    let log = bench.rounds(27);
    let lengths: Vec<_> = log.split(' ').map(str::len).collect();
    for (round, length) in (1..).zip(lengths) {
        assert_eq!(length, if round % 9 == 0 { 2 } else { 1 }, "round {round} of {log}");
    }
}

#[test]
fn three_levels_that_are_all_busy_all_run() {
    let mut bench = Bench::new();
    bench.add('h', 3, usize::MAX);
    bench.add('m', 2, usize::MAX);
    bench.add('l', 1, usize::MAX);
    let log = bench.rounds(90);
    let runs = |name| log.chars().filter(|&c| c == name).count();
    assert_eq!((runs('h'), runs('m'), runs('l')), (90, 10, 10));
}

#[test]
fn round_reports_the_work_of_all_tasks() {
    let mut bench = Bench::new();
    bench.add('a', 1, 1);
    bench.add('b', 1, 1);
    assert_eq!(bench.scheduler.round(Instant::ZERO), Work::units(2));
    assert!(bench.scheduler.round(Instant::ZERO).is_none());
}

#[test]
fn earliest_deadline_counts() {
    let mut scheduler = Scheduler::new(IdleMode::Poll);
    assert_eq!(scheduler.next_deadline(), None);
    for millis in [None, Some(30), Some(10), Some(20)] {
        let task = Noting {
            name: 't',
            work: Rc::default(),
            log: Rc::default(),
            deadline: millis.map(Instant::from_millis),
        };
        scheduler.add(Priority::PACKETS, task);
    }
    assert_eq!(scheduler.next_deadline(), Some(Instant::from_millis(10)));
}

#[test]
fn usage_tells_busy_from_idle() {
    let mut usage = Usage::default();
    usage.add_round(Duration::from_micros(3), Work::units(32));
    usage.add_round(Duration::from_micros(1), Work::NONE);
    usage.add_sleep(Duration::from_micros(20));
    usage.add_round(Duration::from_micros(2), Work::units(1));
    assert_eq!((usage.rounds, usage.busy_rounds, usage.sleeps), (3, 2, 1));
    assert_eq!(usage.busy_cycles(2_600_000_000), 5 * 2_600);
    assert_eq!(
        (usage.spinning, usage.asleep),
        (Duration::from_micros(1), Duration::from_micros(20))
    );
}

#[test]
fn work_beyond_the_largest_number_is_still_work() {
    let mut work = Work::units(1 << 32);
    assert!(!work.is_none());
    work += Work::units(1);
    assert!(!work.is_none());
}

/// The whole loop on a real clock: it stops, polls commands, sleeps when idle, and accounts for all of its time.
#[test]
fn running_core_stops_when_told_and_accounts_for_its_time() {
    let clock = Clock::new();
    let stop = Arc::new(AtomicBool::new(false));
    let core_stop = Arc::clone(&stop);
    let core = std::thread::spawn(move || {
        let mut bench = Bench::new();
        bench.scheduler = Scheduler::new(IdleMode::ADAPTIVE);
        bench.add('a', 1, 100);
        let mut polled = 0;
        let start = clock.now();
        bench.scheduler.run(&clock, &core_stop, |_, _| polled += 1);
        (*bench.scheduler.usage(), polled, clock.now() - start)
    });
    std::thread::sleep(Duration::from_millis(30));
    stop.store(true, Ordering::Relaxed);
    let (usage, polled, total) = core.join().expect("core");

    assert_eq!(polled, usage.rounds);
    assert_eq!(usage.busy_rounds, 100);
    assert!(usage.sleeps > 5, "{usage:?}");
    assert!(usage.asleep > usage.busy + usage.spinning, "{usage:?}");
    let unaccounted = total.saturating_sub(usage.busy + usage.spinning + usage.asleep);
    assert!(unaccounted < Duration::from_millis(1), "{unaccounted:?} of {total:?}");
}
