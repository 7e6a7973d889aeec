//! `./build.sh bench guard`: what lists cost each SYN, and how long it takes to make a table of them and to go on with it.
//!
//! Two cores in turns, in one thread, with memory of their own: one with a rule that asks who the client is, one without. Both get
//! the same SYNs, from addresses at random, half of them in the list, and answer all of them, as the rule is for a class that
//! hardly any address has. Counted are the cycles of the time stamp counter in which a core handles a batch; frames are made
//! before. Another core tarpits whoever comes, and tells what it holds for them.

use std::process::ExitCode;
use std::time::Instant as Time;

use benchkit::ResultFile;
use clap::Parser;
use e2d2::BURST;
use e2d2::time::Clock;
use serde::Serialize;

mod alone;
mod one_core;
mod prefixes;

use one_core::Core;
use prefixes::{Prefixes, Random};

/// SYNs of a flood, which a core answers without a pause.
const FLOOD: usize = 64 * BURST;

/// Cores that go on with another table.
const CORES: usize = 8;

/// Clients that are kept in the tarpit at once.
const TARPITTED: u32 = 100_000;

/// What lists cost.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    file: ResultFile,
    /// Pairs of turns.
    #[arg(long, default_value_t = 15)]
    pairs: usize,
    /// Rounds of a turn: in each, either core answers the same flood.
    #[arg(long, default_value_t = 32)]
    rounds: usize,
    /// `cargo bench` says this to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The names are those of the JSON.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    /// With 100 000 prefixes of each family: cycles more for an IPv4 SYN; the median of the pairs.
    acl_cycles_per_syn: f64,
    /// The same for IPv6.
    acl_cycles_per_syn_v6: f64,
    /// With 1 000 000 in all, half of each family, as many as lists are made for.
    acl_cycles_per_syn_1m: f64,
    /// The same for IPv6.
    acl_cycles_per_syn_v6_1m: f64,
    /// The lower and the upper quartile of each, in that order.
    quartiles: [[f64; 2]; 4],
    /// Cycles of a SYN without lists, IPv4 and IPv6.
    syn_cycles: [f64; 2],
    /// From a file of 1 000 000 lines, half of each family, to a table.
    build_ms_1m: f64,
    /// From a table to the last of eight cores that uses it, the slowest of the runs: what the main thread makes for each core, and
    /// each core's swap, one after the other. Not in it is how long cores take to come round, for which the engine looks every
    /// 100 µs: `bench reload` has that in `ms_to_last_ack_p99`.
    swap_ms: f64,
    /// Bytes that a core holds for each of 100 000 tarpitted clients, which have shaken hands and say something, more than before them.
    tarpit_bytes_per_source: f64,
    /// Bytes of the table with 100 000 prefixes of each family, and with 500 000.
    table_bytes: [usize; 2],
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench guard: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let mut outcome = Outcome::default();
    let clock = Clock::new();
    for (size, count) in [100_000, 500_000].into_iter().enumerate() {
        let prefixes = Prefixes::new(count);
        let folder = tempfile::TempDir::new()?;
        let file = folder.path().join("list.txt");
        std::fs::write(&file, prefixes.text())?;
        let mut with = Core::new(Some(&file))?;
        let mut without = Core::new(None)?;
        outcome.table_bytes[size] = with.table_bytes();
        outcome.swap_ms = outcome.swap_ms.max(one_core::swap(&file, CORES)?);
        for is_v6 in [false, true] {
            let turns = arguments.pairs;
            let mut more = Vec::with_capacity(turns);
            for turn in 0..turns {
                let mut random = Random::new(turn as u64 + 1);
                let mut cycles = [Vec::new(), Vec::new()];
                for round in 0..arguments.rounds {
                    let peers: Vec<_> = (0..FLOOD).map(|_| prefixes.address(is_v6, &mut random)).collect();
                    // Which is first alternates, so that what the machine does meanwhile hits both alike.
                    for core in [round % 2, 1 - round % 2] {
                        let of = if core == 0 { &mut with } else { &mut without };
                        of.flood(&peers, &clock, &mut cycles[core])?;
                    }
                }
                // In most batches: the host takes the core away in some.
                let [with, without] = cycles.map(|mut batches| {
                    batches.sort_unstable();
                    batches[batches.len() / 2] as f64 / BURST as f64
                });
                more.push(with - without);
                outcome.syn_cycles[usize::from(is_v6)] = without;
            }
            more.sort_by(f64::total_cmp);
            let place = 2 * size + usize::from(is_v6);
            outcome.quartiles[place] = [more[turns / 4], more[turns - 1 - turns / 4]];
            let median = more[turns / 2];
            *[
                &mut outcome.acl_cycles_per_syn,
                &mut outcome.acl_cycles_per_syn_v6,
                &mut outcome.acl_cycles_per_syn_1m,
                &mut outcome.acl_cycles_per_syn_v6_1m,
            ][place] = median;
            println!(
                "{count:>8} prefixes, IPv{}: {median:6.1} cycles more for each SYN",
                if is_v6 { 6 } else { 4 }
            );
        }
    }
    outcome.build_ms_1m = build_ms(500_000)?;
    outcome.tarpit_bytes_per_source = one_core::tarpit(TARPITTED)?;
    println!("{outcome:#?}");
    Ok(arguments.file.write(&outcome)?)
}

/// From the file to the table, with so many prefixes of each family.
fn build_ms(count: usize) -> Result<f64, Box<dyn std::error::Error>> {
    let folder = tempfile::TempDir::new()?;
    let file = folder.path().join("list.txt");
    std::fs::write(&file, Prefixes::new(count).text())?;
    let start = Time::now();
    let core = one_core::config(Some(&file))?;
    let took = start.elapsed().as_secs_f64() * 1e3;
    drop(core);
    Ok(took)
}
