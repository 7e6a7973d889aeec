//! How far apart two cores are: what a line of the cache takes from one to the other and back.
//!
//! Cores that share their last cache pass a line on and get it back within some 150 cycles; others take a thousand, and twice as
//! long for everything that two of them do together. On bare metal the difference is one of configuration. In a guest it
//! changes by itself: the host puts each virtual CPU where it has room, moves it every few seconds, and says nothing of it.
//!
//! A host can choose another place whenever a virtual CPU wakes up. So whoever wants two of them near each other lets both sleep
//! and one wake the other, and looks ([`Distance::bring_near`]): two that mostly slept were far in one look of a hundred, two that
//! never did for seconds at a time. It need not help, and it cannot keep them there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use e2d2::scheduler::pin_current_thread;

use crate::accounts::CycleCounter;

/// Times that the line goes there and back for one look: some 20 µs where cores are far from each other.
const ROUNDS: u64 = 64;

/// Rounds whose time is taken together, of which the shortest counts: neither core is away in that one.
const ROUNDS_TOGETHER: u64 = 8;

/// What the way there and back may take for cores that are near: between one shared cache (60 to 120 ns on today's
/// processors) and two (350 ns and more).
const NEAR: Duration = Duration::from_nanos(200);

/// Looks at most until the cores are near, some ten milliseconds of them: where they never are, they are measured as they are.
const MOST_LOOKS: u32 = 50;

/// What both sleep between two looks, so that the host may put them elsewhere.
const NAP: Duration = Duration::from_micros(200);

/// The line that goes there and back. Alone in its pair of lines, which processors may fetch together.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

impl Line {
    fn set(&self, number: u64) {
        self.0.store(number, Ordering::Release);
    }

    fn wait_for(&self, number: u64) {
        let mut looks = 0_u32;
        while self.0.load(Ordering::Acquire) != number {
            std::hint::spin_loop();
            looks = looks.wrapping_add(1);
            // Whoever is to set it may wait for this very CPU.
            if looks.is_multiple_of(1 << 16) {
                std::thread::yield_now();
            }
        }
    }
}

/// The distance between the core of the calling thread and another one, where a thread of this process sleeps until it is
/// asked for. Dropping it ends that thread.
pub struct Distance {
    line: Arc<Line>,
    calls: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Distance {
    /// Of the calling thread's core to this CPU.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn to(cpu: usize) -> std::io::Result<Distance> {
        let line = Arc::new(Line::default());
        let (calls, called) = channel();
        let there = line.clone();
        let thread = std::thread::Builder::new().name("distance".to_owned()).spawn(move || {
            // A thread that is not where it should be shows a distance of its own.
            if let Err(error) = pin_current_thread(cpu) {
                log::warn!("the distance between cores is not known: {error}");
            }
            while called.recv().is_ok() {
                answer(&there);
            }
        })?;
        Ok(Distance {
            line,
            calls: Some(calls),
            thread: Some(thread),
        })
    }

    /// Cycles that a line takes there and back now; more than any number if nobody is there. The other core should have nothing
    /// else to do.
    pub fn cycles(&self, counter: &impl CycleCounter) -> u64 {
        self.line.set(0);
        if self.calls.as_ref().is_none_or(|calls| calls.send(()).is_err()) {
            return u64::MAX;
        }
        // The first round is the thread's way out of bed.
        self.rally(0);
        let mut round = 1;
        let mut shortest = u64::MAX;
        while round + ROUNDS_TOGETHER <= ROUNDS {
            let before = counter.cycles();
            (round..round + ROUNDS_TOGETHER).for_each(|round| self.rally(round));
            shortest = shortest.min(counter.cycles().saturating_sub(before));
            round += ROUNDS_TOGETHER;
        }
        (round..ROUNDS).for_each(|round| self.rally(round));
        shortest / ROUNDS_TOGETHER
    }

    fn rally(&self, round: u64) {
        self.line.set(2 * round + 1);
        self.line.wait_for(2 * round + 2);
    }

    /// Gives the host occasions to put the two cores near each other until they are, or for some ten milliseconds; returns
    /// whether they are. The other core should have nothing else to do.
    pub fn bring_near(&self, counter: &impl CycleCounter) -> bool {
        (0..MOST_LOOKS).any(|look| {
            if look > 0 {
                std::thread::sleep(NAP);
            }
            self.is_near(counter)
        })
    }

    /// Whether they are near each other now.
    pub fn is_near(&self, counter: &impl CycleCounter) -> bool {
        u128::from(self.cycles(counter)) * 1_000_000_000 <= NEAR.as_nanos() * u128::from(counter.hz())
    }
}

/// The other side of [`Distance::cycles`].
fn answer(line: &Line) {
    for round in 0..ROUNDS {
        line.wait_for(2 * round + 1);
        line.set(2 * round + 2);
    }
}

impl Drop for Distance {
    fn drop(&mut self) {
        self.calls = None;
        if let Some(thread) = self.thread.take() {
            // It does nothing that could panic, and nobody waits for what it returns.
            let _ended = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use e2d2::time::{Clock, Instant};

    /// A counter that says what a test tells it to, a step for each look at it.
    struct Steps(std::cell::RefCell<Vec<u64>>, std::cell::Cell<u64>);

    impl CycleCounter for Steps {
        fn cycles(&self) -> u64 {
            self.1.set(self.1.get() + self.0.borrow_mut().pop().unwrap_or(0));
            self.1.get()
        }

        fn hz(&self) -> u64 {
            2_500_000_000
        }

        fn now(&self) -> Instant {
            Instant::ZERO
        }
    }

    /// A counter by which looks take so many cycles a round, one after the other, and none after that.
    fn looks(cycles: &[u64]) -> Steps {
        let mut steps = Vec::new();
        for cycles in cycles.iter().rev() {
            for _ in 0..(ROUNDS - 1) / ROUNDS_TOGETHER {
                steps.extend([cycles * ROUNDS_TOGETHER, 0]);
            }
        }
        Steps(steps.into(), 0.into())
    }

    #[test]
    fn a_line_takes_some_cycles_there_and_back() {
        let cycles = Distance::to(0).unwrap().cycles(&Clock::new());
        assert!(cycles > 1, "{cycles}");
    }

    #[test]
    fn it_is_looked_again_until_they_are_near_and_not_for_ever() {
        let distance = Distance::to(0).unwrap();
        // 200 ns are 500 cycles of this counter.
        let counter = looks(&[900, 501, 500, 900]);
        assert!(distance.bring_near(&counter));
        assert!(!distance.is_near(&counter));
        let far = looks(&[900; MOST_LOOKS as usize]);
        assert!(!distance.bring_near(&far));
        // It has looked so many times and no more: the steps are used up, and no time at all is near.
        assert!(distance.is_near(&far));
    }
}
