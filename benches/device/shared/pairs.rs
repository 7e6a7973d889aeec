//! Two measurements in turns: what one costs by the other, and on how much of the run that rests.
//!
//! A machine's speed drifts, so that only neighbours are compared: each pair of turns gives a ratio, and the pairs their median with
//! an interval.

use std::convert::Infallible;
use std::time::Duration;

use benchkit::{Coverage, Measured, Ratio, Sum, unwanted, verdict};
use serde::Serialize;

use super::InlineProxy;

/// What one side of a pair has measured: one core, or several at once.
pub(crate) type Turn = Vec<Measured>;

/// How long the connections that are open may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks at how many connections are over.
const AT_ONCE: Duration = Duration::from_millis(5);

/// Takes turns in pairs; which of a pair is taken first alternates, so that a drift of the machine favours neither. `turn` is told
/// whether it is the first of its pair in the result.
pub(crate) fn take(pairs: u32, mut turn: impl FnMut(bool) -> Turn) -> Vec<(Turn, Turn)> {
    match try_take(pairs, |is_first| Ok::<_, Infallible>(turn(is_first))) {
        Ok(turns) => turns,
        Err(never) => match never {},
    }
}

/// The same of turns that may fail.
pub(crate) fn try_take<E>(pairs: u32, mut turn: impl FnMut(bool) -> Result<Turn, E>) -> Result<Vec<(Turn, Turn)>, E> {
    let mut pair = |number: u32| {
        if number.is_multiple_of(2) {
            let second = turn(false)?;
            Ok((turn(true)?, second))
        } else {
            Ok((turn(true)?, turn(false)?))
        }
    };
    (0..pairs).map(&mut pair).collect()
}

/// A turn of one proxy. Its first tenth is not measured: it brings caches back from the other proxy. The turn ends with nothing under
/// way that would be sent again in the next one.
pub(crate) fn turn_of(inline: &mut InlineProxy, length: Duration) -> Turn {
    go_on(inline, length / 10);
    vec![inline.measure(length)]
}

/// Has a proxy do its work for so long, which is not measured.
pub(crate) fn go_on(inline: &mut InlineProxy, length: Duration) {
    let end = inline.counter.now() + length;
    inline.run_until(end, |_| false);
}

/// Has a proxy, which has `open` connections, do its work until they are over and others have come.
pub(crate) fn renew(inline: &mut InlineProxy, open: u32) {
    let end = inline.counter.now() + PATIENCE;
    let last = inline.completed() + 2 * u64::from(open);
    while inline.completed() < last && inline.counter.now() < end {
        go_on(inline, AT_ONCE);
    }
}

/// What pairs of turns say. Field names are those of the JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Pairs {
    /// Busy cycles of a connection in the first of each pair by those in the second, in the slices that count: median of the pairs.
    pub(crate) ratio: f64,
    /// Where that lies with 95 % confidence.
    pub(crate) interval: [f64; 2],
    /// The same ratio in all slices but the disturbed.
    pub(crate) ratio_all_slices: f64,
    /// Of all turns of both.
    #[serde(flatten)]
    pub(crate) coverage: Coverage,
    /// Busy cycles of a connection in the first and in the second, in the slices that count: means of the turns.
    #[serde(skip)]
    pub(crate) cycles: [f64; 2],
}

impl Pairs {
    /// First and second turn of each pair, whichever was taken first.
    pub(crate) fn of(turns: &[(Turn, Turn)]) -> Pairs {
        let cycles = |sum: fn(&Measured) -> &Sum| -> Vec<(f64, f64)> {
            let pair = |(first, second): &(Turn, Turn)| (per_connection(first, sum), per_connection(second, sum));
            turns.iter().map(pair).collect()
        };
        let counted = cycles(|measured| &measured.counted);
        let ratio = Ratio::of(&counted);
        let mean = |side: fn(&(f64, f64)) -> f64| counted.iter().map(side).sum::<f64>() / counted.len().max(1) as f64;
        Pairs {
            ratio: ratio.median,
            interval: ratio.interval,
            ratio_all_slices: Ratio::of(&cycles(|measured| &measured.quiet)).median,
            coverage: Coverage::of(turns.iter().flat_map(|(first, second)| first.iter().chain(second))),
            cycles: [mean(|pair| pair.0), mean(|pair| pair.1)],
        }
    }

    /// Everything that keeps it from being valid: what must not have happened, and that it rests on too few slices.
    pub(crate) fn reasons_against<'a>(&self, counts: impl IntoIterator<Item = (&'a str, u64)>) -> Vec<String> {
        let mut reasons = unwanted(counts);
        reasons.extend(self.coverage.reason_against());
        reasons
    }

    /// The verdict for people, where the ratio must not exceed a limit.
    pub(crate) fn verdict(&self, limit: f64, invalid_because: &[String]) -> String {
        let verdict = verdict(invalid_because);
        match self.ratio <= limit {
            true => verdict,
            false => format!("{verdict}, and ABOVE ITS LIMIT"),
        }
    }

    /// Two clauses for people.
    pub(crate) fn rests_on(&self) -> String {
        format!(
            "{:.3} times in all slices but the disturbed, {:.0} % of {} count",
            self.ratio_all_slices,
            self.coverage.slices_counted_share * 100.0,
            self.coverage.slices,
        )
    }
}

/// Mean of the cores of a turn.
fn per_connection(turn: &Turn, sum: fn(&Measured) -> &Sum) -> f64 {
    let of_one = |measured: &Measured| {
        let sum = sum(measured);
        sum.accounts.busy_cycles as f64 / sum.completed.max(1) as f64
    };
    turn.iter().map(of_one).sum::<f64>() / turn.len().max(1) as f64
}
