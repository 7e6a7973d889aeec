//! The run-to-completion scheduler of one core.
//!
//! A [`Scheduler`] owns the [`Task`]s of its core and runs them in rounds; a task does a bounded piece of work and returns.
//! There is no preemption, no other thread on the core, and one clock read per round: the round's time goes down to every
//! packet as an argument.
//!
//! ```text
//!   loop: stop? ─► commands ─► round: tasks, higher priority first ─► clock ─► usage ─► idle policy: spin or sleep
//! ```
//!
//! **Priority.** In a round the tasks run in the order of their priority, and in the order in which they were added where it
//! is the same. A task is passed over if one of strictly higher priority found work in this round, but at most
//! [`PATIENCE`] times in a row: then it runs. So background work yields to packets while there are any, and still gets at
//! least every ninth round: it never starves, and it never delays a packet by more than one run of its own.
//!
//! **Busy.** A round is busy if any task reported work; all of its time counts as busy. What is left is idle: spinning or
//! asleep. Idle policies are in [`IdlePolicy`], which is pure and tested in virtual time.

mod affinity;
mod idle;

use core::ops::AddAssign;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use crate::time::{Clock, Instant};

pub use affinity::{PinError, pin_current_thread};
pub use idle::{IdleLimits, IdleMode, IdlePolicy, Pause};

/// How many rounds in a row a task waits at most for tasks of higher priority that are busy.
///
/// Eight rounds of a full burst are some 20 µs on a core at its limit: short for anything in the background, and long
/// enough that a background task costs no more than a ninth of the rounds.
pub const PATIENCE: u8 = 8;

/// What a task did in one run: units of work such as packets and timers, only ever compared with none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use = "the scheduler must know whether the round was busy"]
pub struct Work(u32);

impl Work {
    /// Nothing was to be done.
    pub const NONE: Self = Self(0);

    /// `units` packets, timers or other things were handled.
    #[inline]
    pub const fn units(units: usize) -> Self {
        // Truncation could turn work into none; more than the maximum is as good as the maximum.
        Self(if units > u32::MAX as usize {
            u32::MAX
        } else {
            units as u32
        })
    }

    /// How many packets, timers or other things were handled.
    #[inline]
    pub const fn count(self) -> u32 {
        self.0
    }

    /// Whether nothing was done.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl AddAssign for Work {
    #[inline]
    fn add_assign(&mut self, more: Self) {
        self.0 = self.0.saturating_add(more.0);
    }
}

/// A piece of a core's work: a graph, a timer, a writer of records.
pub trait Task {
    /// Does what is there to be done now, but no more than a few bursts, and says whether that was anything.
    fn run(&mut self, now: Instant) -> Work;

    /// When it wants to run even if nothing comes in; nothing if it waits for input only.
    ///
    /// Asked in idle rounds only. A lower bound is fine: running too early finds nothing to do.
    fn next_deadline(&self) -> Option<Instant>;
}

/// Which task goes first; higher first. Only the order matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Priority(pub u8);

impl Priority {
    /// What may wait: statistics, probes, writing records.
    pub const BACKGROUND: Self = Self(0);
    /// The packet path.
    pub const PACKETS: Self = Self(128);
}

/// How a core spent its time. Differences between two readings give the load in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Rounds.
    pub rounds: u64,
    /// Rounds in which a task reported work.
    pub busy_rounds: u64,
    /// Time in busy rounds.
    pub busy: Duration,
    /// Time in rounds that found nothing.
    pub spinning: Duration,
    /// Time asleep.
    pub asleep: Duration,
    /// How often it went to sleep.
    pub sleeps: u64,
    /// The longest round since it was [taken](Self::take_longest) last.
    pub longest: Duration,
}

impl Usage {
    /// Accounts a round that took `duration`.
    #[inline]
    pub fn add_round(&mut self, duration: Duration, work: Work) {
        self.rounds += 1;
        self.longest = self.longest.max(duration);
        if work.is_none() {
            self.spinning += duration;
        } else {
            self.busy_rounds += 1;
            self.busy += duration;
        }
    }

    /// The longest round since this was asked last.
    pub fn take_longest(&mut self) -> Duration {
        core::mem::take(&mut self.longest)
    }

    /// Accounts a sleep that took `duration`.
    pub fn add_sleep(&mut self, duration: Duration) {
        self.sleeps += 1;
        self.asleep += duration;
    }

    /// The busy time in cycles of a counter that runs at `tsc_hz` ([`Clock::tsc_hz`]).
    pub fn busy_cycles(&self, tsc_hz: u64) -> u64 {
        let cycles = self.busy.as_nanos().saturating_mul(u128::from(tsc_hz)) / 1_000_000_000;
        u64::try_from(cycles).unwrap_or(u64::MAX)
    }
}

struct Slot {
    task: Box<dyn Task>,
    priority: Priority,
    passed_over: u8,
}

/// Runs the tasks of one core; see the module's description.
pub struct Scheduler {
    slots: Vec<Slot>,
    idle: IdlePolicy,
    usage: Usage,
}

impl Scheduler {
    /// A scheduler without tasks.
    pub fn new(mode: IdleMode) -> Self {
        Self {
            slots: Vec::new(),
            idle: IdlePolicy::new(mode),
            usage: Usage::default(),
        }
    }

    /// Adds a task; behind those of the same priority that are already there.
    pub fn add(&mut self, priority: Priority, task: impl Task + 'static) {
        let place = self.slots.partition_point(|slot| slot.priority >= priority);
        let slot = Slot {
            task: Box::new(task),
            priority,
            passed_over: 0,
        };
        self.slots.insert(place, slot);
    }

    /// Runs one round at `now` and returns what its tasks did.
    ///
    /// [`Scheduler::run`] does this; tests, simulations and benches that own the time call it themselves.
    #[inline]
    pub fn round(&mut self, now: Instant) -> Work {
        let mut total = Work::NONE;
        let mut busy_priority = None;
        for slot in &mut self.slots {
            let is_outranked = busy_priority.is_some_and(|busy| busy > slot.priority);
            if is_outranked && slot.passed_over < PATIENCE {
                slot.passed_over += 1;
                continue;
            }
            slot.passed_over = 0;
            let work = slot.task.run(now);
            if !work.is_none() && busy_priority.is_none() {
                busy_priority = Some(slot.priority);
            }
            total += work;
        }
        total
    }

    /// Runs rounds until `stop` is set, and then returns at once: what the tasks hold is freed with the scheduler.
    ///
    /// `commands` is called once per round, before it, with the time and the usage so far: it looks into a channel and
    /// publishes numbers. It is part of the packet path, so it must not block, and cost a few cycles when nothing is
    /// asked for. A core that sleeps looks at `stop` and at its commands when it wakes: after 500 µs at the latest.
    pub fn run(&mut self, clock: &Clock, stop: &AtomicBool, mut commands: impl FnMut(Instant, &mut Usage)) {
        affinity::ask_for_precise_sleeps();
        let mut start = clock.now();
        while !stop.load(Ordering::Relaxed) {
            commands(start, &mut self.usage);
            let work = self.round(start);
            let end = clock.now();
            self.usage.add_round(end - start, work);
            let slots = &self.slots;
            let deadline = || slots.iter().filter_map(|slot| slot.task.next_deadline()).min();
            start = match self.idle.after_round(end, work, deadline) {
                Pause::None => end,
                Pause::Spin => {
                    core::hint::spin_loop();
                    end
                }
                Pause::Sleep(duration) => {
                    std::thread::sleep(duration);
                    let woken = clock.now();
                    self.usage.add_sleep(woken - end);
                    woken
                }
            };
        }
    }

    /// How the core spent its time in [`Scheduler::run`].
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// The earliest time at which a task wants to run even if nothing comes in.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.slots.iter().filter_map(|slot| slot.task.next_deadline()).min()
    }
}

#[cfg(test)]
mod tests;
