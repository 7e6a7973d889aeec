//! The binary: `trafficengine run FILE` plays what files say on DPDK ports; the only place that prints and exits.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use trafficengine::config::{Config, Overrides};

#[cfg(feature = "dpdk")]
mod dpdk;

/// TCP clients and servers on DPDK ports, from one connection to millions.
#[derive(Parser)]
#[command(name = "trafficengine", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Plays what configuration files say, one for each port, with one result.
    Run(RunArguments),
    /// Reads a configuration file and says whether it can be played.
    Check {
        /// The files, one for each port.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Writes manual pages and completions to a folder, for packages.
    #[command(hide = true)]
    Generate {
        /// The folder.
        folder: PathBuf,
    },
}

#[derive(clap::Args)]
struct RunArguments {
    /// The files, one for each port, each with a core of its own if it names one; config/traffic.toml shows every key. The first
    /// says where results go.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Connections per second, in place of load.rate.
    #[arg(long)]
    rate: Option<f64>,
    /// Connections at once, in place of load.open.
    #[arg(long)]
    open: Option<u32>,
    /// How long to start connections, in place of load.duration.
    #[arg(long)]
    duration: Option<String>,
    /// How many connections to start, in place of load.total.
    #[arg(long)]
    total: Option<u64>,
    /// Where to write the result as JSON, in place of report.json.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Where to draw the result, in place of report.svg.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// No line per second.
    #[arg(long)]
    quiet: bool,
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let outcome = match Arguments::parse().command {
        Command::Check { files } => files.iter().try_fold(ExitCode::SUCCESS, |_, file| check(file)),
        Command::Run(arguments) => run(arguments),
        Command::Generate { folder } => pages::write(Arguments::command(), &folder)
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into),
    };
    outcome.unwrap_or_else(|error| {
        log::error!("{error}");
        ExitCode::from(2)
    })
}

type Outcome = Result<ExitCode, Box<dyn std::error::Error>>;

fn check(file: &std::path::Path) -> Outcome {
    let config = Config::load(file, &Overrides::default())?;
    warn(&config);
    say(&format!("{} can be played on {}", file.display(), config.port.device));
    Ok(ExitCode::SUCCESS)
}

fn run(arguments: RunArguments) -> Outcome {
    let RunArguments {
        files,
        rate,
        open,
        duration,
        total,
        json,
        svg,
        quiet,
    } = arguments;
    let overrides = Overrides {
        rate,
        open,
        duration,
        total,
    };
    let configs = files.iter().map(|file| Config::load(file, &overrides));
    let mut configs = configs.collect::<Result<Vec<Config>, _>>()?;
    configs.iter().for_each(warn);
    if let Some(Config { report, .. }) = configs.first_mut() {
        report.json = json.or(report.json.take());
        report.svg = svg.or(report.svg.take());
        report.progress &= !quiet;
    }
    play(configs)
}

/// What a file says that means nothing here.
fn warn(config: &Config) {
    for warning in &config.warnings {
        log::warn!("{warning}");
    }
}

#[cfg(feature = "dpdk")]
use dpdk::play;

/// Without DPDK there is no port to play on.
#[cfg(not(feature = "dpdk"))]
fn play(_configs: Vec<Config>) -> Outcome {
    Err("built without the feature `dpdk`: there is no port to run on".into())
}

/// A line for people on standard output. A reader that has gone is not told.
fn say(text: &str) {
    let _gone = writeln!(std::io::stdout(), "{text}");
}
