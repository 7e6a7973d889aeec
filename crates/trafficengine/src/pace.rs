//! When connections are to start: open loop (at given times, whatever happens) or closed loop (so many at once).

use std::time::Duration;

use e2d2::time::Instant;

/// Load as configured; all numbers have been checked.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// `rate` connections start per second, evenly spaced; a late start keeps its intended time.
    Open {
        /// Connections per second, above zero.
        rate: f64,
    },
    /// `open` connections are kept open; each that ends is followed by the next.
    Closed {
        /// Connections at once.
        open: u32,
    },
    /// `open` connections are kept open, and each waits with every request until it is drawn at random; the next is drawn
    /// as soon as few enough are in motion.
    Drawn {
        /// Connections at once.
        open: u32,
    },
}

impl Pace {
    /// Whether established connections wait to be drawn.
    pub(crate) fn is_drawn(&self) -> bool {
        matches!(self, Pace::Drawn { .. })
    }
}

/// When the load begins and ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    /// Time over which the rate or the number of connections grows linearly from nothing.
    pub ramp: Duration,
    /// Nothing starts later than this after the beginning.
    pub duration: Option<Duration>,
    /// No more connections than this start.
    pub total: Option<u64>,
}

/// Says how many connections may start now and when each should have.
pub(crate) struct Pacer {
    pace: Pace,
    span: Span,
    began: Option<Instant>,
    started: u64,
}

impl Pacer {
    pub(crate) fn new(pace: Pace, span: Span) -> Pacer {
        Pacer {
            pace,
            span,
            began: None,
            started: 0,
        }
    }

    /// The intended time of the next start if it has come, given the connections open now. The first call begins the load.
    pub(crate) fn next_start(&mut self, now: Instant, open: u32) -> Option<Instant> {
        let began = *self.began.get_or_insert(now);
        if self.span.total.is_some_and(|total| self.started >= total) {
            return None;
        }
        let intended = match self.pace {
            Pace::Open { rate } => began + self.open_loop_start(rate),
            Pace::Closed { open: limit } | Pace::Drawn { open: limit } => {
                if open >= self.ramped(limit, now - began) {
                    return None;
                }
                now
            }
        };
        let over = self.span.duration.is_some_and(|duration| intended >= began + duration);
        (intended <= now && !over).then_some(intended)
    }

    /// Counts the start that `next_start` allowed.
    pub(crate) fn started(&mut self) {
        self.started += 1;
    }

    /// Whether no connection will start any more.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        let Some(began) = self.began else { return false };
        let all = self.span.total.is_some_and(|total| self.started >= total);
        let late = match self.pace {
            // Starts that were due in time but had to wait are still made.
            Pace::Open { rate } => {
                self.span
                    .duration
                    .is_some_and(|duration| self.open_loop_start(rate) >= duration)
                    && now >= began
            }
            Pace::Closed { .. } | Pace::Drawn { .. } => {
                self.span.duration.is_some_and(|duration| now >= began + duration)
            }
        };
        all || late
    }

    /// The intended time of the next start, as a hint for sleeping; nothing for closed loops.
    pub(crate) fn next_intended(&self) -> Option<Instant> {
        match (self.pace, self.began) {
            (Pace::Open { rate }, Some(began)) => Some(began + self.open_loop_start(rate)),
            _ => None,
        }
    }

    /// Time from the beginning to the intended start of the connection `started`.
    ///
    /// In the ramp the rate is `rate·t/ramp`, so `n = rate·t²/(2·ramp)` have started by `t`; after it, `n = rate·(t - ramp/2)`.
    fn open_loop_start(&self, rate: f64) -> Duration {
        let (n, ramp) = (self.started as f64, self.span.ramp.as_secs_f64());
        let seconds = if n < rate * ramp / 2.0 {
            (2.0 * n * ramp / rate).sqrt()
        } else {
            ramp / 2.0 + n / rate
        };
        // The configuration keeps rates above one per day: far within range.
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    fn ramped(&self, open: u32, elapsed: Duration) -> u32 {
        if elapsed >= self.span.ramp {
            return open;
        }
        let share = elapsed.as_secs_f64() / self.span.ramp.as_secs_f64();
        ((f64::from(open) * share) as u32).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn span(ramp: u64, duration: Option<u64>, total: Option<u64>) -> Span {
        Span {
            ramp: SECOND * ramp as u32,
            duration: duration.map(Duration::from_secs),
            total,
        }
    }

    fn at(seconds: f64) -> Instant {
        Instant::ZERO + Duration::from_secs_f64(seconds)
    }

    /// Starts all that is allowed at `now`; returns the intended times.
    fn start(pacer: &mut Pacer, now: Instant) -> Vec<Instant> {
        let mut intended = Vec::new();
        while let Some(at) = pacer.next_start(now, 0) {
            intended.push(at);
            pacer.started();
        }
        intended
    }

    #[test]
    fn open_loop_is_evenly_spaced_and_keeps_intended_times() {
        let mut pacer = Pacer::new(Pace::Open { rate: 4.0 }, span(0, Some(3), None));
        assert_eq!(start(&mut pacer, at(0.0)), [at(0.0)]);
        assert_eq!(start(&mut pacer, at(0.2)), []);
        // A pause of a second: what should have started in it starts late, with its own time.
        assert_eq!(
            start(&mut pacer, at(1.25)),
            [at(0.25), at(0.5), at(0.75), at(1.0), at(1.25)]
        );
        assert!(!pacer.is_over(at(1.25)));
        assert_eq!(start(&mut pacer, at(9.0)).len(), 6);
        assert!(pacer.is_over(at(9.0)));
    }

    #[test]
    fn ramp_grows_linearly() {
        let mut pacer = Pacer::new(Pace::Open { rate: 1000.0 }, span(2, None, None));
        let by = |pacer: &mut Pacer, seconds| {
            start(pacer, at(seconds));
            pacer.started
        };
        by(&mut pacer, 0.0);
        // 1000·t²/4 within the ramp, then 1000 per second.
        for (seconds, expected) in [(0.5, 62.5), (1.0, 250.0), (2.0, 1000.0), (3.0, 2000.0)] {
            let started = by(&mut pacer, seconds) as f64;
            assert!((started - expected).abs() <= 1.0, "{started} by {seconds} s");
        }
    }

    #[test]
    fn total_ends_the_load() {
        let mut pacer = Pacer::new(Pace::Open { rate: 10.0 }, span(0, None, Some(3)));
        start(&mut pacer, at(0.0));
        assert_eq!(start(&mut pacer, at(100.0)).len(), 2);
        assert!(pacer.is_over(at(100.0)));
    }

    #[test]
    fn closed_loop_follows_the_number_open() {
        let mut pacer = Pacer::new(Pace::Closed { open: 10 }, span(2, Some(5), None));
        assert_eq!(
            pacer.next_start(at(0.0), 0),
            Some(at(0.0)),
            "the first starts at once, ramp or not"
        );
        assert_eq!(pacer.next_start(at(1.0), 4), Some(at(1.0)));
        assert_eq!(pacer.next_start(at(1.0), 5), None);
        assert_eq!(pacer.next_start(at(2.0), 9), Some(at(2.0)));
        assert_eq!(pacer.next_start(at(2.0), 10), None);
        assert_eq!((pacer.next_start(at(5.0), 0), pacer.is_over(at(5.0))), (None, true));
    }
}
