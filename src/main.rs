//! The command line: arguments → configuration → engine → signals → report, and the only place that exits.
//!
//! Standard output is for what was asked for: session records if the configuration says `-`, the answer of `check`, and
//! the counters if no records go there. The log goes to standard error.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use log::LevelFilter;
use proxyengine::config::Config;
use proxyengine::devices;
use proxyengine::doctor;
use proxyengine::engine::check_topology;
use proxyengine::log_levels::LogLevels;

#[path = "main/capture.rs"]
mod capture;
#[path = "main/ctl.rs"]
mod ctl;
#[path = "main/leave.rs"]
mod leave;
#[path = "main/lists.rs"]
mod lists;
#[path = "main/mmdb.rs"]
mod mmdb;
#[path = "main/networks.rs"]
mod networks;
#[cfg_attr(feature = "dpdk", path = "main/run.rs")]
#[cfg_attr(not(feature = "dpdk"), path = "main/run_without_dpdk.rs")]
mod run;
#[path = "main/shown.rs"]
mod shown;
#[path = "main/top/mod.rs"]
mod top;

/// A user-space TCP proxy on DPDK: the first payload names the server, then packets are spliced.
#[derive(Parser, Debug)]
#[command(
    name = "proxyengine",
    version,
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true
)]
#[command(after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Option<RunArguments>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the engine until SIGINT or SIGTERM; the same as naming the file alone. SIGHUP reads the file again, SIGUSR1 prints the counters.
    Run(RunArguments),
    /// Load and check a configuration without opening a port.
    Check {
        /// The configuration, a TOML file.
        file: PathBuf,
    },
    /// Look at the machine: what is in the engine's way, why it matters, and the command that mends it.
    Doctor(DoctorArguments),
    /// Make the machine ready for a configuration, as root: reserve hugepages, bind the PCI devices that it names.
    Devices(DevicesArguments),
    /// Ask a running engine what it does.
    Ctl(ctl::CtlArguments),
    /// Watch a running engine in a terminal: servers, pools, listeners, rules, cores and drops, each second.
    #[command(after_help = top::KEYS)]
    Top(top::TopArguments),
    /// Write the prefixes of a GeoIP or ASN database as the file of a list: to standard output, each with its class.
    Mmdb(mmdb::MmdbArguments),
    /// Write manual pages and completions to a folder, for packages.
    #[command(hide = true)]
    Generate {
        /// The folder.
        folder: PathBuf,
    },
}

#[derive(Args, Debug)]
struct DevicesArguments {
    /// The configuration, a TOML file.
    file: PathBuf,
    /// Print the steps, do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Read and write the machine's files below this directory instead of `/`.
    #[arg(long, value_name = "DIRECTORY", default_value = "/", hide = true)]
    root: PathBuf,
}

#[derive(Args, Debug)]
struct DoctorArguments {
    /// The configuration whose cores and ports are looked at; without one, all network devices are.
    file: Option<PathBuf>,
    /// Print what was found as JSON.
    #[arg(long)]
    json: bool,
    /// Read the machine's files below this directory instead of `/`.
    #[arg(long, value_name = "DIRECTORY", default_value = "/", hide = true)]
    root: PathBuf,
}

#[derive(Args, Debug)]
struct RunArguments {
    /// The configuration, a TOML file.
    file: PathBuf,
    /// Write the counters to this file as JSON, at the end and on SIGUSR1.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print a line of totals every second.
    #[arg(long)]
    progress: bool,
    /// Count each core's cycles by stage: a table at the end, and a picture in this file.
    #[arg(long, value_name = "SVG", num_args = 0..=1, require_equals = true, default_missing_value = "stage-cycles.svg")]
    stage_cycles: Option<PathBuf>,
}

/// How the process ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "dpdk"),
    allow(dead_code, reason = "without ports nothing runs that could end like this")
)]
enum Exit {
    /// Ended by a signal, everything in order; or `check` found nothing wrong, or `devices` has made everything ready.
    Success = 0,
    /// The engine could not be started; `doctor` found something wrong; `devices` could not do what it is for; `ctl` or `top` got no answer; `mmdb` found no prefix.
    NotStarted = 1,
    /// The arguments or the configuration are wrong; no port was opened.
    Refused = 2,
    /// Packet buffers are missing at the end.
    Leaked = 3,
    /// A worker panicked or did not end.
    WorkerFailed = 4,
    /// The report could not be written.
    NoReport = 5,
    /// A port's device was taken away.
    DeviceRemoved = 6,
}

const EXIT_CODES: &str = "\
Exit codes: 0 ended by a signal, all in order; 1 not started, or `doctor` has found something (a warning, too), `devices` has failed, `ctl` or `top` got no answer, or `mmdb` found no prefix; 2 arguments or configuration wrong, no port was opened;
3 packet buffers missing at the end; 4 a worker panicked; 5 the report could not be written;
6 a device was taken away while the engine ran.";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        // Fieldless, with the numbers above.
        Self::from(exit as u8)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let exit = match (arguments.command, arguments.run) {
        (Some(Command::Check { file }), _) => check(&file),
        (Some(Command::Doctor(arguments)), _) => look(&arguments),
        (Some(Command::Devices(arguments)), _) => make_ready(&arguments),
        (Some(Command::Generate { folder }), _) => generate(&folder),
        (Some(Command::Ctl(arguments)), _) => ctl::ctl(&arguments),
        (Some(Command::Top(arguments)), _) => top::top(&arguments),
        (Some(Command::Mmdb(arguments)), _) => convert(&arguments),
        (Some(Command::Run(run)), _) | (None, Some(run)) => run_file(&run),
        // `arg_required_else_help`: clap has printed the help and ended the process.
        (None, None) => Exit::Refused,
    };
    exit.into()
}

const MIB: u64 = 1 << 20;

fn check(file: &Path) -> Exit {
    match load(file) {
        Ok(config) => {
            let ports = config.port_memory();
            let requests = config.requests_carried();
            print(&format!(
                "{}: ok: {}\nsource ports take {} MiB at start, and {} MiB when each has been used\n\
                 each core carries {} requests of up to 512 bytes while their servers have not answered, or {} of up to 2 KiB: \
                 with servers 100 ms away {} or {} a second\n",
                file.display(),
                Summary(&config),
                ports.at_start.div_ceil(MIB),
                ports.at_most.div_ceil(MIB),
                requests.short,
                requests.long,
                10 * requests.short,
                10 * requests.long,
            ));
            Exit::Success
        }
        Err(complaint) => refuse(&complaint),
    }
}

/// What `mmdb` does.
fn convert(arguments: &mmdb::MmdbArguments) -> Exit {
    match mmdb::mmdb(arguments) {
        Ok(()) => Exit::Success,
        Err(complaint) => {
            complain(&complaint);
            Exit::NotStarted
        }
    }
}

/// What `doctor` does: it opens nothing and needs no DPDK.
fn look(arguments: &DoctorArguments) -> Exit {
    let config = match arguments.file.as_deref().map(load).transpose() {
        Ok(config) => config,
        Err(complaint) => return refuse(&complaint),
    };
    let name = arguments.file.as_deref().unwrap_or(Path::new("")).display().to_string();
    let config = config.as_ref().map(|config| (config, name.as_str()));
    let diagnosis = doctor::examine(&doctor::Root::at(&arguments.root), config);
    if arguments.json {
        print(&diagnosis.to_json());
    } else {
        print(&diagnosis.to_string());
    }
    if diagnosis.is_well() {
        Exit::Success
    } else {
        Exit::NotStarted
    }
}

/// What `devices` does, step by step; the steps that were done stay done if one fails.
fn make_ready(arguments: &DevicesArguments) -> Exit {
    let config = match load(&arguments.file) {
        Ok(config) => config,
        Err(complaint) => return refuse(&complaint),
    };
    let root = doctor::Root::at(&arguments.root);
    let done = devices::plan(&root, &config).and_then(|steps| {
        if steps.is_empty() {
            print("nothing to do\n");
        }
        steps.iter().try_for_each(|step| {
            print(&format!("{step}\n"));
            if arguments.dry_run {
                Ok(())
            } else {
                devices::take(&root, step)
            }
        })
    });
    match done {
        Ok(()) => Exit::Success,
        Err(error) => {
            complain(&format!("proxyengine devices: {error}"));
            Exit::NotStarted
        }
    }
}

fn generate(folder: &Path) -> Exit {
    match pages::write(Arguments::command(), folder) {
        Ok(()) => Exit::Success,
        Err(error) => {
            complain(&format!("proxyengine generate: {}: {error}", folder.display()));
            Exit::NotStarted
        }
    }
}

fn run_file(arguments: &RunArguments) -> Exit {
    let config = match load(&arguments.file) {
        Ok(config) => config,
        Err(complaint) => return refuse(&complaint),
    };
    let levels = start_log(config.log_level());
    log::info!("{}: {}", arguments.file.display(), Summary(&config));
    run::run(config, levels, arguments)
}

/// A configuration that everything but the machine has agreed to.
fn load(file: &Path) -> Result<Config, String> {
    let config = Config::load(file).map_err(|error| error.to_string())?;
    for warning in config.warnings() {
        complain(&format!("warning: {warning}"));
    }
    check_topology(&config).map_err(|error| format!("{}: {error}", file.display()))?;
    fits_into(&config, machine_memory()).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(config)
}

/// Bytes of memory that the machine has, if it says so.
fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Refuses what the machine could not give when every source port has been used.
fn fits_into(config: &Config, memory: Option<u64>) -> Result<(), String> {
    let needed = config.port_memory().at_most;
    match memory {
        Some(memory) if needed > memory => Err(format!(
            "the source ports towards {} servers take up to {} MiB, and this machine has {} MiB: give pools fewer \
             `local_ports`",
            config.servers().len(),
            needed / MIB,
            memory / MIB,
        )),
        _ => Ok(()),
    }
}

fn refuse(complaint: &str) -> Exit {
    complain(complaint);
    Exit::Refused
}

/// `RUST_LOG` overrides the configuration, as usual.
fn start_log(level: LevelFilter) -> LogLevels {
    let levels = LogLevels::new(level, std::env::var("RUST_LOG").ok().as_deref());
    let log = env_logger::Builder::new()
        .filter_level(LevelFilter::Trace)
        .parse_write_style(&std::env::var("RUST_LOG_STYLE").unwrap_or_default())
        .format_target(false)
        .build();
    // Nobody else has made one.
    let _ = levels.install(log);
    levels
}

/// Writes to standard output; a reader that has gone away is no reason to stop.
fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// Writes a line to standard error; here, too, nobody may be listening.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{}", text.trim_end());
}

/// What a configuration describes, in one line.
struct Summary<'a>(&'a Config);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |count: usize, name: &str| format!("{count} {name}{}", if count == 1 { "" } else { "s" });
        let config = self.0;
        let parts = [
            count(config.engine().cores.len(), "core"),
            count(config.ports().len(), "port"),
            count(config.listeners().len(), "listener"),
            count(config.pools().len(), "pool"),
            count(config.servers().len(), "server"),
        ];
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_source_ports_than_the_machine_has_memory_for_are_refused() {
        let config = Config::load(Path::new("config/demo.toml")).unwrap_or_else(|error| panic!("{error}"));
        let needed = config.port_memory().at_most;
        assert!(fits_into(&config, None).is_ok() && fits_into(&config, Some(needed)).is_ok());
        let complaint = fits_into(&config, Some(needed - 1)).expect_err("a byte is missing");
        assert!(complaint.contains("local_ports"), "{complaint}");
        assert!(machine_memory().is_none_or(|memory| memory > MIB));
    }
}
