//! `./build.sh bench steering`: whether every packet of a million connections meets its core, in every mode and with 1, 2,
//! 4 and 8 queues.
//!
//! Engine, clients, servers and the software NICs between them run in one thread; what is counted depends on no timing.
//! `rss`, `port` and `ip` are right when not one packet came in on the wrong core; `software` when every one that did was
//! handed over. No connection may fail in any.

use std::process::ExitCode;

use benchkit::ResultFile;
use clap::Parser;

mod field;

use field::{BoxError, MODES};

/// Connections through several cores.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    file: ResultFile,
    /// Connections in each mode and with each number of queues.
    #[arg(long, default_value_t = 1_000_000)]
    connections: u64,
    /// Numbers of queues, each with as many cores.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    queues: Vec<usize>,
    /// Only this mode: rss, port, ip or software.
    #[arg(long)]
    mode: Option<String>,
    /// `cargo bench` says this to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench steering: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether everything was right.
fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    let is_wanted = |mode: &&(&str, _)| arguments.mode.as_deref().is_none_or(|wanted| wanted == mode.0);
    let modes: Vec<_> = MODES.iter().filter(is_wanted).collect();
    if modes.is_empty() || arguments.connections == 0 || arguments.queues.iter().any(|queues| !(1..=8).contains(queues))
    {
        return Err("expected --mode rss, port, ip or software, 1 to 8 --queues, and some --connections".into());
    }
    let mut outcomes = Vec::new();
    println!(
        "{:>9} {:>7} {:>12} {:>12} {:>12} {:>7}",
        "mode", "queues", "connections", "mis-steered", "handed over", "failed"
    );
    for mode in modes {
        for &queues in &arguments.queues {
            let outcome = field::run(*mode, queues, arguments.connections)?;
            println!(
                "{:>9} {:>7} {:>12} {:>12} {:>12} {:>7}{}",
                outcome.mode,
                outcome.queues,
                outcome.connections,
                outcome.mis_steered,
                outcome.handed_over,
                outcome.failed,
                if outcome.is_right() { "" } else { "   WRONG" },
            );
            outcomes.push(outcome);
        }
    }
    arguments.file.write(&outcomes)?;
    Ok(outcomes.iter().all(field::Outcome::is_right))
}
