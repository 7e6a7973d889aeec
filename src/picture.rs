//! What each core does right now: two reports, and what has happened between them.
//!
//! Printed by `--progress` every second and logged on SIGUSR1. A line per core:
//!
//! ```text
//! core 2  load  41.3 %  open    12345  rx    812000/s  tx    811900/s  mis-steered 0/s  handed over 0/s  waiting 12
//! core 3  load  39.8 %  open    12290  rx    809000/s  tx    808950/s  mis-steered 0/s  handed over 0/s  waiting 9
//! imbalance 1.02
//! ```
//!
//! *Load* is the time in rounds that did something; *waiting* are frames in the receive queues and hand-over rings. What the
//! drivers do not tell, and what an engine of one core does not count, is left out. *Imbalance* is the load of the busiest
//! core over the mean of all: 1.00 is even, the number of cores is one core doing everything.

use std::fmt;
use std::time::Duration;

use crate::report::{CoreReport, Report, WAITING};

/// Counters that are shown as a rate if a core has them, wherever they are: the name in the report, and here.
const RATES: [(&str, &str); 2] = [("mis_steered", "mis-steered"), ("handed_over", "handed over")];

/// What one core did in a span of time.
#[derive(Clone, Debug, PartialEq)]
pub struct CorePicture {
    /// The core as Linux numbers it.
    pub core: u16,
    /// Share of the time in rounds that did something: 0 to 1.
    pub load: f64,
    /// Connections open at the end.
    pub open: u64,
    /// Packets received in a second.
    pub received: f64,
    /// Packets sent in a second.
    pub sent: f64,
    /// Other counts in a second that the core has, with their names.
    pub rates: Vec<(&'static str, f64)>,
    /// Frames that wait in the core's receive queues and rings, as far as that is known.
    pub waiting: Option<u64>,
}

/// What all cores did in a span of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// Each core, in the order of the report.
    pub cores: Vec<CorePicture>,
}

impl Picture {
    /// From the report at the beginning of the span and the one at its end, in which the same cores are.
    pub fn between(before: &Report, now: &Report) -> Self {
        let span = Duration::from_millis(now.uptime_ms.saturating_sub(before.uptime_ms));
        let nothing = CoreReport::default();
        let of = |now: &CoreReport| {
            let before = before.cores.iter().find(|before| before.core == now.core);
            of_core(before.unwrap_or(&nothing), now, span)
        };
        Self {
            cores: now.cores.iter().map(of).collect(),
        }
    }

    /// The load of the busiest core over the mean; none for one core, or if nobody did anything.
    pub fn imbalance(&self) -> Option<f64> {
        let loads = || self.cores.iter().map(|core| core.load);
        let mean = loads().sum::<f64>() / self.cores.len().max(1) as f64;
        (self.cores.len() > 1 && mean > 0.0).then(|| loads().fold(0.0, f64::max) / mean)
    }
}

fn of_core(before: &CoreReport, now: &CoreReport, span: Duration) -> CorePicture {
    // Two reports within a millisecond show no rates.
    let seconds = span.as_secs_f64();
    let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let traffic = |core: &CoreReport, name: &str| {
        let group = core.counters.group("traffic");
        group.and_then(|group| group.count(name)).unwrap_or(0)
    };
    let rate = |name: &str| per_second(traffic(now, name).saturating_sub(traffic(before, name)));
    let other = |&(name, shown): &(&str, &'static str)| {
        let earlier = before.counters.find(name).unwrap_or(0);
        Some((shown, per_second(now.counters.find(name)?.saturating_sub(earlier))))
    };
    let busy = Duration::from_nanos(now.busy_ns.saturating_sub(before.busy_ns));
    CorePicture {
        core: now.core,
        // Reports are a moment apart from the clock that dates them.
        load: per_second(busy.as_nanos() as u64).min(1e9) / 1e9,
        open: now.connections_open,
        received: rate("received"),
        sent: rate("sent"),
        rates: RATES.iter().filter_map(other).collect(),
        waiting: now.counters.group(WAITING).map(|group| group.total()),
    }
}

impl fmt::Display for CorePicture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "core {:<3} load {:5.1} %  open {:8}  rx {:9.0}/s  tx {:9.0}/s",
            self.core,
            self.load * 100.0,
            self.open,
            self.received,
            self.sent
        )?;
        for (name, rate) in &self.rates {
            write!(f, "  {name} {rate:.0}/s")?;
        }
        match self.waiting {
            Some(waiting) => write!(f, "  waiting {waiting}"),
            None => Ok(()),
        }
    }
}

/// A line per core, and one with the imbalance; each ends in a newline.
impl fmt::Display for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for core in &self.cores {
            writeln!(f, "{core}")?;
        }
        match self.imbalance() {
            Some(imbalance) => writeln!(f, "imbalance {imbalance:.2}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CounterGroup;

    fn core(number: u16, busy_ms: u64, received: u64, extra: &[(&'static str, u64)]) -> CoreReport {
        let mut core = CoreReport {
            core: number,
            busy_ns: busy_ms * 1_000_000,
            connections_open: 7,
            ..CoreReport::default()
        };
        let traffic = [("received", received), ("sent", received / 2)];
        core.counters.add("traffic", &CounterGroup::new(traffic));
        if !extra.is_empty() {
            core.counters.add("steering", &CounterGroup::new(extra.iter().copied()));
        }
        core
    }

    fn report(uptime_ms: u64, cores: Vec<CoreReport>) -> Report {
        Report {
            uptime_ms,
            cores,
            ..Report::default()
        }
    }

    #[test]
    fn a_core_by_itself_has_load_and_rates_and_nothing_that_is_not_counted() {
        let before = report(1000, vec![core(2, 100, 5000, &[])]);
        let now = report(3000, vec![core(2, 600, 25_000, &[])]);
        let picture = Picture::between(&before, &now);
        assert_eq!(picture.imbalance(), None);
        assert_eq!(
            picture.to_string(),
            "core 2   load  25.0 %  open        7  rx     10000/s  tx      5000/s\n"
        );
    }

    #[test]
    fn several_cores_show_where_packets_went_and_how_uneven_it_is() {
        let steering = |mis_steered, handed_over| [("mis_steered", mis_steered), ("handed_over", handed_over)];
        let before = report(
            0,
            vec![core(2, 0, 0, &steering(10, 10)), core(3, 0, 0, &steering(0, 0))],
        );
        let mut busy = core(2, 900, 900, &steering(30, 12));
        let waiting = [("rx", 5), ("handover", 3)];
        busy.counters.add(WAITING, &CounterGroup::new(waiting));
        let now = report(1000, vec![busy, core(3, 300, 300, &steering(0, 0))]);
        let picture = Picture::between(&before, &now);
        assert_eq!(picture.imbalance(), Some(1.5));
        assert_eq!(
            picture.to_string(),
            "core 2   load  90.0 %  open        7  rx       900/s  tx       450/s  mis-steered 20/s  handed over 2/s  waiting 8\n\
             core 3   load  30.0 %  open        7  rx       300/s  tx       150/s  mis-steered 0/s  handed over 0/s\n\
             imbalance 1.50\n"
        );
    }

    #[test]
    fn odd_spans_give_no_odd_numbers() {
        let now = report(1000, vec![core(2, 5000, 10, &[]), core(3, 0, 0, &[])]);
        let same = Picture::between(&now, &now);
        assert_eq!((same.cores[0].load, same.cores[0].received), (0.0, 0.0));
        assert_eq!(same.imbalance(), None, "nobody did anything");
        // More busy time than there was, for the clocks differ a little; a core that was not there before.
        let picture = Picture::between(&report(0, vec![]), &now);
        assert_eq!(picture.cores[0].load, 1.0);
        assert_eq!(picture.imbalance(), Some(2.0));
        // A report that is older than the one before it.
        let back = Picture::between(&now, &report(500, vec![core(2, 0, 0, &[])]));
        assert_eq!(back.cores[0].load, 0.0);
    }
}
