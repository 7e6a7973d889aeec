//! How long a pool's servers usually take to answer a call, how many calls there are, and how many were given up because
//! of that.

use std::time::Duration;

use crate::base::usual_time::UsualTime;
use e2d2::time::Instant;

/// A call is overdue after this many times the usual.
const TIMES_USUAL: u32 = 4;

/// No call is overdue before this: a host that is paused for its neighbours, or repeats an ARP request, is back by then.
const LEAST_BOUND: Duration = Duration::from_millis(50);

/// Of a second's calls, one in this many may be given up.
const ONE_IN: u32 = 20;

/// But this many may in any case: where there are few calls one in twenty is none.
const AT_LEAST: u32 = 32;

/// What calls to a pool's servers have come to lately.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    usual: UsualTime,
    calls: LastSecond,
    given_up: LastSecond,
}

impl Answers {
    pub(super) fn new() -> Self {
        Answers {
            usual: UsualTime::NONE,
            calls: LastSecond::default(),
            given_up: LastSecond::default(),
        }
    }

    /// How long an answer takes usually; `None` before the first.
    pub(super) fn usual(&self) -> Option<Duration> {
        self.usual.value()
    }

    /// After how long a call is overdue, if anything is known of that.
    pub(super) fn bound(&self) -> Duration {
        self.usual()
            .map_or(LEAST_BOUND, |usual| (usual * TIMES_USUAL).max(LEAST_BOUND))
    }

    /// A call has been answered after this time, and its SYN was sent once (Karn's algorithm, RFC 6298 3).
    pub(super) fn note_time(&mut self, took: Duration) {
        self.usual.note(took);
    }

    pub(super) fn note_call(&mut self, now: Instant) {
        self.calls.add(now);
    }

    pub(super) fn note_given_up(&mut self, now: Instant) {
        self.given_up.add(now);
    }

    /// Whether one more call may be given up.
    pub(super) fn may_give_up(&mut self, now: Instant) -> bool {
        self.given_up.count(now) < (self.calls.count(now) / ONE_IN).max(AT_LEAST)
    }
}

/// Counts what happened in the last second, or up to 67 ms more.
#[derive(Clone, Debug, Default)]
struct LastSecond {
    /// By part of a second, modulo their number.
    parts: [u32; LastSecond::PARTS as usize],
    /// Of all parts.
    sum: u32,
    /// The part that is counted now.
    part: u64,
}

impl LastSecond {
    const PARTS: u64 = 16;
    /// A part is 2^26 ns: fifteen are longer than a second, and no division is needed.
    const PART_SHIFT: u32 = 26;

    fn add(&mut self, now: Instant) {
        self.advance(now);
        self.parts[(self.part % Self::PARTS) as usize] += 1;
        self.sum += 1;
    }

    fn count(&mut self, now: Instant) -> u32 {
        self.advance(now);
        self.sum
    }

    /// Forgets what is over.
    fn advance(&mut self, now: Instant) {
        let part = now.as_nanos() >> Self::PART_SHIFT;
        if part <= self.part {
            return;
        }
        for over in (self.part + 1..=part).take(Self::PARTS as usize) {
            let count = std::mem::take(&mut self.parts[(over % Self::PARTS) as usize]);
            self.sum -= count;
        }
        self.part = part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_case::test_case;

    const NOW: Instant = Instant::from_millis(1_000_000);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn after(times: impl IntoIterator<Item = u64>) -> Answers {
        let mut answers = Answers::new();
        times.into_iter().for_each(|time| answers.note_time(millis(time)));
        answers
    }

    #[test_case(0 => millis(50); "at once")]
    #[test_case(12 => millis(50); "the last that the least bound covers")]
    #[test_case(13 => millis(52); "the first that it does not")]
    #[test_case(100 => millis(400); "far away")]
    fn the_bound_is_four_times_the_usual_time_but_at_least_50_ms(usual: u64) -> Duration {
        after([usual]).bound()
    }

    #[test]
    fn outliers_do_not_move_the_usual_time() {
        let mut answers = after([20]);
        for n in 0..1000 {
            answers.note_time(millis(if n % 10 == 0 { 900 } else { 19 + n % 3 }));
        }
        let usual = answers.usual().expect("answers");
        assert!((millis(17)..=millis(24)).contains(&usual), "{usual:?}");
    }

    #[test]
    fn a_pool_that_becomes_slow_is_believed_after_some_eighty_answers() {
        let mut answers = after([1]);
        let needed = (1..).find(|_| {
            answers.note_time(millis(100));
            answers.bound() >= millis(360)
        });
        assert_eq!(needed, Some(75));
        let needed = (1..).find(|_| {
            answers.note_time(millis(1));
            answers.bound() == millis(50)
        });
        assert_eq!(needed, Some(32), "and quick again sooner");
    }

    #[test]
    fn one_call_in_twenty_may_be_given_up_and_32_in_any_case() {
        for (calls, most) in [(0, 32), (659, 32), (660, 33), (50_000, 2_500)] {
            let mut answers = Answers::new();
            (0..calls).for_each(|_| answers.note_call(NOW));
            let given_up = (0..calls.max(100)).take_while(|_| {
                let may = answers.may_give_up(NOW);
                answers.note_given_up(NOW);
                may
            });
            assert_eq!(given_up.count(), most, "{calls} calls");
        }
    }

    #[test]
    fn a_second_is_not_shorter_than_that() {
        for start in (0..70).map(|n| NOW + millis(n)) {
            let mut counter = LastSecond::default();
            counter.add(start);
            assert_eq!(counter.count(start + millis(1000)), 1);
            assert_eq!(counter.count(start + millis(1074)), 0);
            counter.add(start + Duration::from_secs(1 << 30));
            assert_eq!(counter.sum, 1);
        }
    }
}
