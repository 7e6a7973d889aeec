//! `./build.sh bench records`: what session records cost.
//!
//! Two proxies, one with records and one without, take turns of a second; each pair of turns gives a ratio, and the pairs
//! their mean with an interval, so that what else happens on the machine hits both alike. Records are taken by another
//! thread, which hands them to three sinks if asked to.

use std::net::UdpSocket;
use std::time::Duration;

use benchkit::{CpsSettings, Measured, verdict};
use serde::Serialize;
use trafficengine::plot;

mod writing;

use crate::device::cli::{Common, TwoCpus};
use crate::device::pairs::{self, Pairs};
use crate::device::{BoxError, Conditions, Host};
use writing::Rates;

/// The share of a connection that its record costs.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Connections open at once in each proxy.
    #[arg(long, default_value_t = 10_000)]
    open: u32,
    /// Pairs of turns.
    #[arg(long, default_value_t = 50)]
    pairs: u32,
    /// Length of a turn in seconds.
    #[arg(long, default_value_t = 0.2)]
    turn: f64,
    /// Records go to three sinks: `/dev/null` as JSON, syslog and IPFIX over loopback.
    #[arg(long)]
    sinks: bool,
    #[command(flatten)]
    common: Common,
}

/// Names are those of the JSON.
#[derive(Serialize)]
struct RecordsResult {
    /// Cycles with records by cycles without.
    #[serde(flatten)]
    paired: Pairs,
    cycles_with: f64,
    cycles_without: f64,
    /// Records a second that one thread makes lines of and writes into a file, by format.
    written_per_second_file: Rates,
    /// The same into `/dev/null`: without what the file system takes.
    written_per_second_null: Rates,
    pairs: usize,
    records_lost: u64,
    lost: u64,
    retransmitted: u64,
    failed: u64,
    valid: bool,
    invalid_because: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    // Whoever takes the records has the other CPUs.
    TwoCpus::choose(arguments.common.cpu, None)?.pin_proxy()?;
    if arguments.pairs < 2 {
        return Err(format!(
            "--pairs {}: expected at least 2, or there is no interval",
            arguments.pairs
        )
        .into());
    }
    let length = Duration::from_secs_f64(arguments.turn);
    let settings = CpsSettings {
        open: arguments.open,
        length,
        ..CpsSettings::default()
    };
    let host = Host::start(2, 1500)?;
    let conditions = Conditions::new(settings);
    // What nobody reads is dropped when their buffers are full.
    let collectors = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    let ports = [collectors[0].local_addr()?.port(), collectors[1].local_addr()?.port()];
    let mut without = host.open('a', &conditions)?;
    let mut with = host.open(
        'b',
        &Conditions {
            records: true,
            sinks: arguments.sinks.then_some(ports),
            ..conditions
        },
    )?;
    for inline in [&mut without, &mut with] {
        inline.warm_up(&settings);
        inline.settle();
    }
    let turns = pairs::take(arguments.pairs, |is_with| {
        pairs::turn_of(if is_with { &mut with } else { &mut without }, length)
    });
    let paired = Pairs::of(&turns);
    let reports = [&without, &with].map(|inline| inline.result(&settings, &Measured::default()));
    let sum = |of: fn(&benchkit::CpsResult) -> u64| reports.iter().map(of).sum::<u64>();
    let (lost, retransmitted, failed) = (sum(|r| r.lost), sum(|r| r.retransmitted), sum(|r| r.failed));
    let records_lost = sum(|r| r.records_lost);
    let [written_per_second_file, written_per_second_null] = writing::measure(Duration::from_secs_f64(arguments.turn))?;
    let invalid_because = paired.reasons_against([
        ("lost", lost),
        ("retransmitted", retransmitted),
        ("failed", failed),
        ("records_lost", records_lost),
    ]);
    let result = RecordsResult {
        written_per_second_file,
        written_per_second_null,
        paired,
        cycles_with: paired.cycles[0],
        cycles_without: paired.cycles[1],
        pairs: turns.len(),
        records_lost,
        lost,
        retransmitted,
        failed,
        valid: invalid_because.is_empty(),
        invalid_because,
    };
    println!(
        "records cost {:.1} % ({:.1} to {:.1} %): {:.0} cycles per connection with, {:.0} without; \
         {}; {}",
        (paired.ratio - 1.0) * 100.0,
        (paired.interval[0] - 1.0) * 100.0,
        (paired.interval[1] - 1.0) * 100.0,
        result.cycles_with,
        result.cycles_without,
        paired.rests_on(),
        verdict(&result.invalid_because),
    );
    for (name, to_file) in &result.written_per_second_file {
        let to_null = result.written_per_second_null.get(name).copied().unwrap_or_default();
        println!("one thread writes as {name}: {to_file:.0} records a second into a file, {to_null:.0} into /dev/null");
    }
    arguments.common.write(&result)?;
    let bars = [("without", result.cycles_without), ("with", result.cycles_with)];
    plot::bars(
        &arguments.common.plot("records.svg"),
        "busy cycles per connection without and with records",
        &bars,
    )?;
    Ok(result.valid)
}
