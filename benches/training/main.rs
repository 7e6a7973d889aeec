//! `./build.sh bench training`: the load that a build learns from.
//!
//! `scripts/profile.sh` builds this with counters at every branch, runs it, and builds the programs with the counts: what is often
//! taken together then stands together, and what is not taken is out of the way. So it does a little of everything that
//! the packet path is there for, most of what is measured most. By itself it measures nothing that another bench does not.

use std::process::ExitCode;
use std::time::Duration;

use benchkit::{CpsResult, CpsSettings};
use clap::Parser;
use trafficengine::Pace;
use trafficengine::attack::Kind;

#[path = "../device/shared/mod.rs"]
mod device;
#[path = "../core/guard/prefixes.rs"]
mod prefixes;
#[path = "../device/capture/reader.rs"]
mod reader;
#[path = "../siege/shared/mod.rs"]
mod siege;

use device::cli::{self, Common};
use device::{BoxError, Conditions, Host};
use prefixes::Prefixes;
use reader::{Pace as Reading, Reader};

/// Every kind of load for a while.
#[derive(Parser)]
struct Arguments {
    /// Length of a turn in seconds; connections without anything else get four.
    #[arg(long, default_value_t = 1.0)]
    turn: f64,
    #[command(flatten)]
    common: Common,
}

/// A kind of load.
struct Turn {
    name: &'static str,
    /// Its length, in turns.
    length: f64,
    adjust: fn(Conditions) -> Conditions,
}

const TURNS: [Turn; 8] = [
    Turn {
        name: "connections",
        length: 4.0,
        adjust: |usual| usual,
    },
    Turn {
        name: "connections with records",
        length: 1.0,
        adjust: |usual| Conditions { records: true, ..usual },
    },
    // Another instance of the graph, which would be laid out as if it never ran.
    Turn {
        name: "connections timed by stage",
        length: 1.0,
        adjust: |usual| Conditions {
            stage_cycles: true,
            ..usual
        },
    },
    Turn {
        name: "connections with a PROXY header",
        length: 1.0,
        adjust: |usual| Conditions {
            proxy_out: true,
            ..usual
        },
    },
    Turn {
        name: "connections beside checks of servers",
        length: 1.0,
        adjust: |usual| Conditions {
            checked: 2_000,
            ..usual
        },
    },
    Turn {
        name: "connections over IPv6",
        length: 1.0,
        adjust: |usual| Conditions { ipv6: true, ..usual },
    },
    Turn {
        name: "small requests and responses",
        length: 1.0,
        adjust: |usual| Conditions {
            rounds: 50,
            request: 64,
            response: 64,
            verify_all: false,
            ..usual
        },
    },
    Turn {
        name: "large requests and responses, IPv6",
        length: 1.0,
        adjust: |usual| Conditions {
            rounds: 50,
            request: 1400,
            response: 1400,
            ipv6: true,
            verify_all: false,
            ..usual
        },
    },
];

fn main() -> ExitCode {
    cli::main("training", || run(&Arguments::parse()))
}

/// Honest connections at once in a flood: more than the core has time for.
const HONEST_IN_FLOOD: u32 = 512;

/// SYNs of a flood per second of the core's own time: more than it can answer, with counters or without.
const FLOOD: f64 = 8e6;

/// Prefixes of each family in the list that clients are looked for in.
const PREFIXES: usize = 10_000;

/// Returns whether all turns went well.
fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    arguments.common.pin()?;
    if !(0.05..=3600.0).contains(&arguments.turn) {
        return Err(format!("--turn {}: expected 0.05 to 3600", arguments.turn).into());
    }
    let reader = device::drain::apart(Reader::start)??;
    let host = Host::start(TURNS.len() as u32 + 4, 1500)?;
    let (mut results, mut names) = (Vec::new(), 'a'..);
    for (turn, name) in TURNS.iter().zip(names.by_ref()) {
        let result = connections(&host, name, turn, Duration::from_secs_f64(arguments.turn * turn.length))?;
        println!(
            "{}: {} connections, {} failed, {} packets lost",
            turn.name, result.connections, result.failed, result.lost
        );
        results.push(result);
    }
    let mut next_name = || names.next().ok_or("more turns than letters");
    let length = Duration::from_secs_f64(arguments.turn);
    results.push(guarded(&host, next_name()?, length)?);
    results.push(captured(&host, next_name()?, length, &reader, Capture::SAMPLE)?);
    results.push(captured(&host, next_name()?, length, &reader, Capture::LOST)?);
    let names = ["guarded", "sampled by a capture", "captured for a slow reader"];
    for (name, result) in names.iter().zip(&results[TURNS.len()..]) {
        println!(
            "connections {name}: {}, {} failed, {} packets lost",
            result.connections, result.failed, result.lost
        );
    }
    let name = next_name()?;
    let completed = flood(&host, name, length)?;
    println!("connections in a flood of SYNs: {completed}");
    arguments.common.write(&results)?;
    Ok(completed > 0 && results.iter().all(|result| result.failed + result.lost == 0))
}

/// A turn of undisturbed connections.
fn connections(host: &Host, name: char, turn: &Turn, length: Duration) -> Result<CpsResult, BoxError> {
    let settings = settings(length);
    let conditions = (turn.adjust)(Conditions::new(settings));
    let mut inline = host.open(name, &conditions)?;
    let mut result = inline.cps(&settings);
    // To the load's servers a check is a connection that fails: it is reset. The last RSTs may be on their way.
    let counters = inline.device.counters();
    let passed = counters.group("checks").and_then(|checks| checks.count("passed"));
    result.failed = result.failed.saturating_sub(passed.unwrap_or(0));
    Ok(result)
}

/// What has the core's counters read by others, as a worker's are.
fn shown(length: Duration) -> Conditions {
    Conditions {
        shown: true,
        ..Conditions::new(settings(length))
    }
}

fn settings(length: Duration) -> CpsSettings {
    CpsSettings {
        length,
        time_wait: Duration::from_millis(200),
        ..CpsSettings::default()
    }
}

/// A turn with a list and limits.
fn guarded(host: &Host, name: char, length: Duration) -> Result<CpsResult, BoxError> {
    let folder = tempfile::TempDir::new()?;
    let list = Prefixes::new(PREFIXES).file_without_clients(folder.path())?;
    let conditions = Conditions {
        guarded_by: Some(list),
        ..shown(length)
    };
    Ok(host.open(name, &conditions)?.cps(&conditions.settings))
}

/// What is captured, and how it is read.
struct Capture(&'static str, Reading);

impl Capture {
    /// One connection in 1 000, so that both ways of a frame are taken.
    const SAMPLE: Capture = Capture("sample=1/1000", Reading::Fast);
    /// All, most of which is lost.
    const LOST: Capture = Capture("", Reading::Tenth);
}

/// A turn under a capture.
fn captured(
    host: &Host,
    name: char,
    length: Duration,
    reader: &Reader,
    Capture(which, pace): Capture,
) -> Result<CpsResult, BoxError> {
    let conditions = shown(length);
    let mut inline = host.open(name, &conditions)?;
    reader.look_at(inline.device.watch().ok_or("a proxy that shows nothing")?)?;
    reader.begin(which, pace);
    reader.turn_until_answered(&mut inline);
    reader.answered()?;
    let result = inline.cps(&conditions.settings);
    reader.end();
    reader.turn_until_answered(&mut inline);
    reader.finished()?;
    Ok(result)
}

/// Honest connections while more SYNs come than the core can answer, for so much of its time; returns how many completed.
fn flood(host: &Host, name: char, length: Duration) -> Result<u64, BoxError> {
    let mut field = siege::open(host, name, 1, (16, 8))?;
    let pace = Pace::Closed { open: HONEST_IN_FLOOD };
    field.begin_honest(pace, |_| ());
    let syns = field.attack_settings(Kind::Syn, FLOOD, false, 0);
    field.begin_attack(syns);
    field.run(length);
    Ok(field.completed())
}
