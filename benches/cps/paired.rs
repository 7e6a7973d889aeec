//! What a PROXY header towards the server costs a connection: two proxies in one process, one with and one without, take
//! turns, so that whatever else the machine does hits both alike; each pair of turns gives a ratio.

use std::time::Duration;

use serde::Serialize;
use trafficengine::bench::{Coverage, Measured};

use crate::device::cli::Common;
use crate::device::{BoxError, Conditions, Host, InlineProxy};

/// Names are those of the JSON.
#[derive(Serialize)]
struct PairedResult {
    mode: &'static str,
    /// Median over the pairs: cycles of a connection with header by cycles without.
    ratio: f64,
    /// Where that median lies with 95 % confidence, whatever the distribution: by the order of the ratios.
    interval: [f64; 2],
    /// The ratio that must not be exceeded (issue: 12 % more).
    limit: f64,
    cycles_with: f64,
    cycles_without: f64,
    tx_packets_with: f64,
    tx_packets_without: f64,
    #[serde(flatten)]
    coverage: Coverage,
    pairs: usize,
    lost: u64,
    retransmitted: u64,
    failed: u64,
    valid: bool,
}

/// At most an eighth more: a header may cost no more than one packet of eight.
const LIMIT: f64 = 1.12;

/// One turn of one proxy.
struct Turn {
    measured: Measured,
    cycles: f64,
    tx_packets: f64,
}

/// Returns whether the result is valid, and the ratio within its limit.
pub(crate) fn run(conditions: &Conditions, pairs: u32, common: &Common) -> Result<bool, BoxError> {
    if pairs < 6 {
        return Err(format!("--pairs {pairs}: expected at least 6, or there is no interval").into());
    }
    let settings = conditions.settings;
    let length = settings.length / (2 * pairs);
    let host = Host::start(2, 1500)?;
    let mut without = host.open('a', conditions)?;
    let with_header = Conditions {
        proxy_out: true,
        ..*conditions
    };
    let mut with = host.open('b', &with_header)?;
    for inline in [&mut without, &mut with] {
        inline.warm_up(&settings);
        inline.settle();
    }
    let mut turns = Vec::new();
    for pair in 0..pairs {
        // Who begins changes, so that a drift of the machine favours neither.
        if pair % 2 == 0 {
            let first = turn(&mut without, length);
            turns.push((first, turn(&mut with, length)));
        } else {
            let first = turn(&mut with, length);
            turns.push((turn(&mut without, length), first));
        }
    }
    let mut ratios: Vec<f64> = turns
        .iter()
        .map(|(without, with)| with.cycles / without.cycles)
        .collect();
    ratios.sort_by(f64::total_cmp);
    let median = |of: fn(&(Turn, Turn)) -> f64| {
        let mut values: Vec<f64> = turns.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        middle(&values)
    };
    let reports = [&without, &with].map(|inline| inline.result(&settings, &Measured::default()));
    let sum = |of: fn(&trafficengine::bench::CpsResult) -> u64| reports.iter().map(of).sum::<u64>();
    let (lost, retransmitted, failed) = (sum(|r| r.lost), sum(|r| r.retransmitted), sum(|r| r.failed));
    let coverage = Coverage::of(turns.iter().flat_map(|(one, other)| [&one.measured, &other.measured]));
    let result = PairedResult {
        mode: "inline, paired",
        ratio: middle(&ratios),
        interval: interval(&ratios),
        limit: LIMIT,
        cycles_with: median(|(_, with)| with.cycles),
        cycles_without: median(|(without, _)| without.cycles),
        tx_packets_with: median(|(_, with)| with.tx_packets),
        tx_packets_without: median(|(without, _)| without.tx_packets),
        coverage,
        pairs: turns.len(),
        lost,
        retransmitted,
        failed,
        valid: lost + retransmitted + failed == 0 && coverage.is_enough(),
    };
    println!(
        "a PROXY header costs {:.1} % ({:.1} to {:.1} %, at most {:.0} %): {:.0} cycles per connection with, {:.0} \
         without; {:.2} and {:.2} packets out; {}",
        (result.ratio - 1.0) * 100.0,
        (result.interval[0] - 1.0) * 100.0,
        (result.interval[1] - 1.0) * 100.0,
        (LIMIT - 1.0) * 100.0,
        result.cycles_with,
        result.cycles_without,
        result.tx_packets_with,
        result.tx_packets_without,
        if result.valid { "valid" } else { "NOT VALID" },
    );
    common.write(&result)?;
    Ok(result.valid && result.ratio <= LIMIT)
}

/// The turn's first tenth brings caches back from the other proxy.
fn turn(inline: &mut InlineProxy, length: Duration) -> Turn {
    let end = inline.counter.now() + length / 10;
    inline.run_until(end, |_| false);
    let measured = inline.measure(length);
    let completed = measured.counted.completed.max(1) as f64;
    Turn {
        cycles: measured.counted.accounts.busy_cycles as f64 / completed,
        tx_packets: measured.counted.accounts.sent as f64 / completed,
        measured,
    }
}

fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[half]
    } else {
        (sorted[half - 1] + sorted[half]) / 2.0
    }
}

/// The order statistics that enclose the median with 95 %: each value lies above it with even chances.
fn interval(sorted: &[f64]) -> [f64; 2] {
    let count = sorted.len() as f64;
    let margin = 1.96 * count.sqrt() / 2.0;
    let below = (count / 2.0 - margin).floor().max(0.0) as usize;
    [sorted[below], sorted[sorted.len() - 1 - below]]
}
