//! The `mmproxy` command: arguments, log, exit codes. Exit 0: done; 1: cannot run; 2: arguments not understood.

use mmproxy::cli::{self, Command, RouteOptions, Source};
use mmproxy::daemon::{self, Daemon};
use mmproxy::{netsetup, status};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = match cli::parse(words(std::env::args())) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("mmproxy: {error}");
            return ExitCode::from(2);
        }
    };
    let result = match command {
        Command::Help => print(cli::HELP),
        Command::Version => print(concat!("mmproxy ", env!("CARGO_PKG_VERSION"), "\n")),
        Command::Run(source) => run(source),
        Command::Setup(options) => netsetup::setup(&options)
            .map(|report| show(&report))
            .map_err(|error| error.to_string()),
        Command::Teardown(options) => netsetup::teardown(&options)
            .map(|report| show(&report))
            .map_err(|error| error.to_string()),
        Command::Check(options) => check(&options),
        Command::Status(metrics) => status::status(metrics)
            .map_err(|error| format!("{metrics}: {error}"))
            .and_then(|text| print(&text)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mmproxy: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The command line without the program's name. A link that is called `udppp` says which program's options follow.
fn words(arguments: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    let mut arguments = arguments;
    let program = arguments.next().unwrap_or_default();
    let is_udppp = program.rsplit('/').next() == Some("udppp");
    is_udppp.then(|| "udppp".to_owned()).into_iter().chain(arguments)
}

fn print(text: &str) -> Result<(), String> {
    // A closed pipe (`mmproxy --help | head`) is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn show(report: &[String]) {
    for line in report {
        println!("{line}");
    }
}

fn check(options: &RouteOptions) -> Result<(), String> {
    let (report, good) = netsetup::check(options).map_err(|error| error.to_string())?;
    show(&report);
    if good {
        Ok(())
    } else {
        Err("not everything is as it should be".into())
    }
}

fn run(source: Source) -> Result<(), String> {
    let config = source.load().map_err(|error| error.to_string())?;
    let level = match config.verbosity {
        0 => log::LevelFilter::Warn,
        1 => log::LevelFilter::Info,
        _ => log::LevelFilter::Debug,
    };
    env_logger::Builder::new()
        .filter_level(level)
        .parse_default_env()
        .init();
    // From here on signals wait for the daemon, so that none is lost while it starts.
    let mut signals = daemon::signals().map_err(|error| error.to_string())?;
    let listeners = config.listeners.len();
    let daemon = Daemon::start(source, config, &signals).map_err(|error| error.to_string())?;
    log::info!("serving {listeners} listeners");
    daemon.obey(&mut signals).map_err(|error| error.to_string())
}
