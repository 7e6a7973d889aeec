//! `./build.sh bench training`: the load that a build learns from.
//!
//! `scripts/profile.sh` builds this with counters at every branch, runs it, and builds the programs with the counts: what is often
//! taken together then stands together, and what is not taken is out of the way. So it does a little of everything that
//! the packet path is there for, most of what is measured most. By itself it measures nothing that another bench does not.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use trafficengine::bench::CpsSettings;

#[path = "../device/mod.rs"]
mod device;

use device::cli::{self, Common};
use device::{BoxError, Conditions, Host};

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

const TURNS: [Turn; 6] = [
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
    Turn {
        name: "connections with a PROXY header",
        length: 1.0,
        adjust: |usual| Conditions {
            proxy_out: true,
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

/// Returns whether all turns went well.
fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    arguments.common.pin()?;
    if !(0.05..=3600.0).contains(&arguments.turn) {
        return Err(format!("--turn {}: expected 0.05 to 3600", arguments.turn).into());
    }
    let host = Host::start(TURNS.len() as u32, 1500)?;
    let mut results = Vec::new();
    for (turn, name) in TURNS.iter().zip('a'..) {
        let settings = CpsSettings {
            length: Duration::from_secs_f64(arguments.turn * turn.length),
            time_wait: Duration::from_millis(200),
            ..CpsSettings::default()
        };
        let conditions = (turn.adjust)(Conditions::new(settings));
        let mut inline = host.open(name, &conditions)?;
        let result = inline.cps(&settings);
        println!(
            "{}: {} connections, {} failed, {} packets lost",
            turn.name, result.connections, result.failed, result.lost
        );
        results.push(result);
    }
    arguments.common.write(&results)?;
    Ok(results.iter().all(|result| result.failed + result.lost == 0))
}
