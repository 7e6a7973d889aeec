//! `./build.sh bench records`: what session records cost.
//!
//! One proxy takes turns with records and without: it goes on with another version of its configuration in between, as two proxies
//! would differ by where their memory lies. Each pair of turns gives a ratio, and the pairs their median with an interval, so that what
//! else happens on the machine hits both alike. Records are taken by another thread, which hands them to three sinks if asked to.

use std::net::UdpSocket;

use benchkit::verdict;
use serde::Serialize;
use trafficengine::plot;

mod switched;
mod writing;

use crate::device::cli::{Common, Turns, TwoCpus};
use crate::device::pairs::{self, Pairs};
use crate::device::{BoxError, Conditions, Host};
use switched::Switched;
use writing::Rates;

/// The share of a connection that its record costs.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    turns: Turns,
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
    let host = Host::start(1, 1500)?;
    // What nobody reads is dropped when their buffers are full.
    let collectors = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    let ports = [collectors[0].local_addr()?.port(), collectors[1].local_addr()?.port()];
    let conditions = Conditions {
        shown: true,
        records: true,
        sinks: arguments.sinks.then_some(ports),
        ..Conditions::new(arguments.turns.settings(arguments.turns.open))
    };
    let mut proxy = Switched::open(&host, &conditions)?;
    let turns = pairs::try_take(arguments.turns.pairs, |has_records| proxy.turn(has_records))?;
    let (paired, unwanted) = (Pairs::of(&turns), proxy.result());
    let invalid_because = paired.reasons_against([
        ("lost", unwanted.lost),
        ("retransmitted", unwanted.retransmitted),
        ("failed", unwanted.failed),
        ("records_lost", unwanted.records_lost),
    ]);
    let [written_per_second_file, written_per_second_null] = writing::measure(arguments.turns.length())?;
    let result = RecordsResult {
        written_per_second_file,
        written_per_second_null,
        paired,
        cycles_with: paired.cycles[0],
        cycles_without: paired.cycles[1],
        pairs: turns.len(),
        records_lost: unwanted.records_lost,
        lost: unwanted.lost,
        retransmitted: unwanted.retransmitted,
        failed: unwanted.failed,
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
