//! What a core does when there is nothing to do. Pure: time is an argument, sleeping is the caller's.

use core::time::Duration;

use super::Work;
use crate::time::Instant;

/// How a core waits for packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdleMode {
    /// Never sleeps: for cores that are isolated for this. Lowest latency, always 100 % of the core.
    Poll,
    /// Spins for a while, then sleeps for longer and longer.
    Adaptive(IdleLimits),
}

/// The times of [`IdleMode::Adaptive`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdleLimits {
    /// How long rounds may be empty before the first sleep.
    pub spin: Duration,
    /// The first sleep; each next one is twice as long.
    pub shortest_sleep: Duration,
    /// No sleep is longer.
    pub longest_sleep: Duration,
}

impl IdleLimits {
    /// 50 µs of spinning bridge the gaps in any traffic worth the name; 20 µs is about the shortest sleep that a kernel
    /// can keep; 500 µs is the most that the first packet after a pause is delayed, and fills no receive ring: 512
    /// descriptors at 1 M packets per second.
    pub const DEFAULT: Self = Self {
        spin: Duration::from_micros(50),
        shortest_sleep: Duration::from_micros(20),
        longest_sleep: Duration::from_micros(500),
    };
}

impl Default for IdleLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl IdleMode {
    /// [`IdleMode::Adaptive`] with [`IdleLimits::DEFAULT`].
    pub const ADAPTIVE: Self = Self::Adaptive(IdleLimits::DEFAULT);
}

/// What to do before the next round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pause {
    /// Go on: there was work.
    None,
    /// Go on, but tell the CPU that this is a waiting loop.
    Spin,
    /// Sleep, for no longer than this.
    Sleep(Duration),
}

/// Decides after each round whether the core goes on or sleeps.
#[derive(Clone, Debug)]
pub struct IdlePolicy {
    mode: IdleMode,
    /// The end of the first of the empty rounds since the last busy one.
    idle_since: Option<Instant>,
    next_sleep: Duration,
}

impl IdlePolicy {
    /// A sleep shorter than this is spun instead: going to sleep and waking up takes the kernel about as long.
    pub const SHORTEST_NAP: Duration = Duration::from_micros(5);

    /// A policy that has seen no round yet.
    pub fn new(mode: IdleMode) -> Self {
        Self {
            mode,
            idle_since: None,
            next_sleep: Duration::ZERO,
        }
    }

    /// What to do after a round that ended `now` and did `work`.
    ///
    /// `next_deadline` is only called if the policy would sleep otherwise; no sleep lasts beyond it.
    #[inline]
    pub fn after_round(&mut self, now: Instant, work: Work, next_deadline: impl FnOnce() -> Option<Instant>) -> Pause {
        if !work.is_none() {
            self.idle_since = None;
            return Pause::None;
        }
        let IdleMode::Adaptive(limits) = self.mode else {
            return Pause::Spin;
        };
        let Some(since) = self.idle_since else {
            self.idle_since = Some(now);
            self.next_sleep = limits.shortest_sleep;
            return Pause::Spin;
        };
        if now - since < limits.spin {
            return Pause::Spin;
        }
        let left = next_deadline().map_or(Duration::MAX, |deadline| deadline - now);
        let sleep = self.next_sleep.min(limits.longest_sleep).min(left);
        if sleep < Self::SHORTEST_NAP {
            return Pause::Spin;
        }
        self.next_sleep = (self.next_sleep * 2).min(limits.longest_sleep);
        Pause::Sleep(sleep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Work = Work::units(1);

    /// Runs the policy in virtual time: rounds take 1 µs, sleeps take what was asked for.
    struct Simulation {
        policy: IdlePolicy,
        now: Instant,
        deadline: Option<Instant>,
    }

    impl Simulation {
        fn new(mode: IdleMode) -> Self {
            Self {
                policy: IdlePolicy::new(mode),
                now: Instant::ZERO,
                deadline: None,
            }
        }

        fn round(&mut self, work: Work) -> Pause {
            self.now += Duration::from_micros(1);
            let deadline = self.deadline;
            let pause = self.policy.after_round(self.now, work, || deadline);
            if let Pause::Sleep(duration) = pause {
                self.now += duration;
            }
            pause
        }

        /// The next `count` sleeps in µs, and how many µs were spun before the first.
        fn sleeps(&mut self, count: usize) -> (u64, Vec<u64>) {
            let (start, mut spun, mut sleeps) = (self.now, 0, Vec::new());
            while sleeps.len() < count {
                match self.round(Work::NONE) {
                    Pause::Sleep(duration) => sleeps.push(duration.as_micros() as u64),
                    Pause::Spin if sleeps.is_empty() => spun = (self.now - start).as_micros() as u64,
                    Pause::Spin => {}
                    Pause::None => panic!("no pause after an empty round"),
                }
            }
            (spun, sleeps)
        }
    }

    #[test]
    fn sleeps_double_up_to_the_limit_after_50_us_of_nothing() {
        let mut simulation = Simulation::new(IdleMode::ADAPTIVE);
        assert_eq!(simulation.round(WORK), Pause::None);
        let (spun, sleeps) = simulation.sleeps(8);
        assert_eq!(spun, 50);
        assert_eq!(sleeps, [20, 40, 80, 160, 320, 500, 500, 500]);
    }

    #[test]
    fn any_work_starts_over() {
        let mut simulation = Simulation::new(IdleMode::ADAPTIVE);
        simulation.sleeps(6);
        assert_eq!(simulation.round(WORK), Pause::None);
        assert_eq!(simulation.sleeps(2), (50, vec![20, 40]));
    }

    #[test]
    fn sleep_ends_at_the_next_timer() {
        let mut simulation = Simulation::new(IdleMode::ADAPTIVE);
        simulation.sleeps(5);
        // The next sleep would be 500 µs; its round ends 1 µs from now.
        simulation.deadline = Some(simulation.now + Duration::from_micros(124));
        assert_eq!(simulation.sleeps(1).1, [123]);
        assert_eq!(Some(simulation.now), simulation.deadline);
    }

    #[test]
    fn timer_that_is_due_or_about_to_be_keeps_the_core_awake() {
        for micros_away in [0, 1, 5] {
            let mut simulation = Simulation::new(IdleMode::ADAPTIVE);
            simulation.sleeps(1);
            simulation.deadline = Some(simulation.now + Duration::from_micros(micros_away));
            assert_eq!(simulation.round(Work::NONE), Pause::Spin, "{micros_away} µs");
        }
        let mut simulation = Simulation::new(IdleMode::ADAPTIVE);
        simulation.sleeps(1);
        simulation.deadline = Some(simulation.now + Duration::from_micros(6));
        assert_eq!(simulation.round(Work::NONE), Pause::Sleep(IdlePolicy::SHORTEST_NAP));
    }

    #[test]
    fn polling_never_sleeps() {
        let mut simulation = Simulation::new(IdleMode::Poll);
        for _ in 0..10_000 {
            assert_eq!(simulation.round(Work::NONE), Pause::Spin);
        }
    }

    #[test]
    fn deadline_is_not_looked_up_while_there_is_work() {
        let mut policy = IdlePolicy::new(IdleMode::ADAPTIVE);
        for micros in 0..50 {
            let work = if micros % 2 == 0 { WORK } else { Work::NONE };
            let pause = policy.after_round(Instant::from_nanos(micros * 1_000), work, || panic!("looked up"));
            assert!(!matches!(pause, Pause::Sleep(_)));
        }
    }
}
