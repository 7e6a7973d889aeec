//! How long an answer usually takes: a median that is followed in small steps.

use std::time::Duration;

/// The least that is told apart: times are kept in milliseconds.
const LEAST: Duration = Duration::from_millis(1);

/// One step, as a part of the median: 40 answers are a factor of ten.
const STEP: u32 = 16;

/// The median of some times, as far as they have shown it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsualTime(Option<Duration>);

impl UsualTime {
    /// Nothing is known.
    pub(crate) const NONE: Self = UsualTime(None);

    /// `None` before the first.
    pub(crate) fn value(self) -> Option<Duration> {
        self.0
    }

    /// One more time: half of them take the median up by a sixteenth, half take it down, however long each is.
    pub(crate) fn note(&mut self, took: Duration) {
        let usual = match self.0 {
            None => took,
            Some(usual) if took > usual => usual + usual / STEP,
            Some(usual) => usual - usual / STEP,
        };
        self.0 = Some(usual.max(LEAST));
    }
}
