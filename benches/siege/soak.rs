//! `./build.sh bench soak --minutes M`: honest load, loss and attacks for a long time, and nothing left of them.
//!
//! The engine's own core inline, in the time of its own work (`benches/siege`). Fails on any leak (buffers, connections,
//! ports, timers, held bytes, retransmission queues), wrong byte, stuck connection or growing memory; a line each ten seconds.

use std::time::{Duration, Instant};

use crate::device::cli::Common;
use crate::device::{BoxError, Host};
use crate::siege;
use crate::siege::soak::{MESSAGES, Soak, WARM_UP};

/// A long run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long, in minutes of the clock; at least one turn of each attack and one more.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Start of all random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    common: Common,
}

/// How often a line says how far it is.
const INTERVAL: Duration = Duration::from_secs(10);

/// Returns whether nothing was left and no byte wrong.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    if !(0.0..=100_000.0).contains(&arguments.minutes) {
        return Err(format!("--minutes {}: expected 0 to 100000", arguments.minutes).into());
    }
    arguments.common.pin()?;
    let host = Host::start(1, 1500)?;
    let field = siege::open(&host, 'a', arguments.seed, MESSAGES)?;
    let mut soak = Soak::new(field, arguments.seed);
    let began = Instant::now();
    let length = Duration::from_secs_f64(arguments.minutes * 60.0);
    let mut said = began;
    loop {
        soak.turn();
        let result = soak.result();
        if !result.valid && !result.left.is_empty() {
            break;
        }
        if began.elapsed() >= length && result.turns > WARM_UP {
            break;
        }
        if said.elapsed() >= INTERVAL {
            said = Instant::now();
            println!("{:>6.0} s: {result}", began.elapsed().as_secs_f64());
        }
    }
    let result = soak.result();
    println!(
        "{result}\n{} (seed {})",
        if result.valid { "valid" } else { "NOT VALID" },
        arguments.seed
    );
    arguments.common.write(&result)?;
    Ok(result.valid)
}
