//! How fast the machine is while a bench runs.

use std::time::Duration;

use e2d2::time::Clock;

/// How fast the machine is at the moment: others share its cores and caches, so that the same work takes now twice the
/// cycles and now not. A fixed piece of work, arithmetic and loads that depend on each other, says how many; time is
/// counted as if it took as many as in the beginning.
///
/// A hypervisor stops the whole machine for some ten microseconds or for milliseconds, and no clock of the guest knows. The
/// fixed work is stopped as often as any other: how often it was says how many long rounds of a core are the machine's.
pub(super) struct Yardstick {
    memory: Vec<u32>,
    usual: f64,
    lately: f64,
    /// More cycles than usual by which work was stopped, not slow.
    stop: f64,
    /// Cycles that the fixed work took in all, and how often it was stopped.
    watched: f64,
    stops: u64,
}

impl Yardstick {
    /// 256 KiB, of which each step touches one line.
    const WORDS: usize = 1 << 16;
    const STEPS: usize = 500;

    /// How long the machine is watched at the beginning.
    const WATCH: Duration = Duration::from_secs(1);

    /// As many standard deviations more than expected are still the machine's stops: one run in a thousand has more.
    const DEVIATIONS: f64 = 3.0;

    /// Work is stopped when it takes so much longer than usual.
    pub(super) fn new(clock: &Clock, stop: Duration) -> Yardstick {
        let mut yardstick = Yardstick {
            memory: (0..Self::WORDS as u32)
                .map(|word| word.wrapping_mul(2_654_435_761))
                .collect(),
            usual: 0.0,
            lately: 0.0,
            stop: stop.as_secs_f64() * clock.tsc_hz() as f64,
            watched: 0.0,
            stops: 0,
        };
        let mut measured: Vec<f64> = (0..1_000).map(|_| yardstick.work(clock)).collect();
        measured.sort_by(f64::total_cmp);
        yardstick.usual = measured[measured.len() / 2];
        yardstick.lately = yardstick.usual;
        (yardstick.watched, yardstick.stops) = (0.0, 0);
        let enough = Self::WATCH.as_secs_f64() * clock.tsc_hz() as f64;
        while yardstick.watched < enough {
            yardstick.work_once(clock);
        }
        yardstick
    }

    /// Cycles of the work; done twice, for the first time brings it into the cache.
    fn work(&mut self, clock: &Clock) -> f64 {
        self.work_once(clock);
        self.work_once(clock)
    }

    fn work_once(&mut self, clock: &Clock) -> f64 {
        let before = clock.tsc();
        let mut at = 1u64;
        for _ in 0..Self::STEPS {
            let word = self.memory[at as usize % Self::WORDS];
            at = (at ^ u64::from(word))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23);
        }
        std::hint::black_box(at);
        let cycles = clock.tsc().saturating_sub(before) as f64;
        self.watched += cycles;
        self.stops += u64::from(cycles > self.usual + self.stop);
        cycles
    }

    /// How often the machine stops in so many cycles.
    pub(super) fn stops_in(&self, cycles: f64) -> f64 {
        self.stops as f64 * cycles / self.watched
    }

    /// True if the machine may have stopped more often than `count` times in so many cycles: the number of stops is that of
    /// events without memory, in what was watched as in these.
    pub(super) fn explains_more_than(&self, count: u64, cycles: f64) -> bool {
        let expected = self.stops_in(cycles);
        let deviation = (expected * (1.0 + cycles / self.watched)).sqrt();
        (count as f64) < expected + Self::DEVIATIONS * deviation
    }

    pub(super) fn measure(&mut self, clock: &Clock) {
        let cycles = self.work(clock);
        // Else it was interrupted.
        if cycles < 4.0 * self.usual {
            self.lately += (cycles - self.lately) / 16.0;
        }
    }

    /// True if the machine is now so slow that `cycles` of work would have been at most `limit` in the beginning.
    pub(super) fn excuses(&mut self, cycles: f64, limit: f64, clock: &Clock) -> bool {
        // The quickest of three: what interrupts this work says nothing about the other.
        let now = (0..3).map(|_| self.work(clock)).fold(f64::INFINITY, f64::min);
        cycles * self.usual / now.max(self.lately) <= limit
    }

    /// Cycles as they would have been in the beginning.
    pub(super) fn normal(&self, cycles: f64) -> f64 {
        cycles * self.usual / self.lately
    }
}
