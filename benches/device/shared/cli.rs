//! What all benches of the proxy take from the command line and do with a result.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use benchkit::{CpsSettings, PGO, ResultFile};
use clap::Parser;
use proxyengine::report::CounterGroups;
use serde::Serialize;
use serde_json::Value;

use super::BoxError;

/// Flags of every bench.
#[derive(clap::Args)]
pub(crate) struct Common {
    #[command(flatten)]
    file: ResultFile,
    /// Folder for the plots.
    #[arg(long, default_value = "target/bench")]
    pub(crate) plots: PathBuf,
    /// CPU to run on.
    #[arg(long)]
    pub(crate) cpu: Option<usize>,
    /// `cargo bench` says this to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Common {
    /// Goes to the CPU asked for.
    pub(crate) fn pin(&self) -> Result<(), BoxError> {
        self.cpu
            .map_or(Ok(()), |cpu| Ok(e2d2::scheduler::pin_current_thread(cpu)?))
    }

    /// Writes the JSON if asked for.
    pub(crate) fn write(&self, result: &impl Serialize) -> Result<(), BoxError> {
        Ok(self.file.write(&told(result)?)?)
    }

    /// The file of a plot.
    pub(crate) fn plot(&self, name: &str) -> PathBuf {
        Path::new(&self.plots).join(name)
    }
}

/// Flags of benches whose turns are compared in pairs.
#[derive(clap::Args)]
pub(crate) struct Turns {
    /// Connections open at once in each proxy.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) open: u32,
    /// Pairs of turns, of each kind.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) pairs: u32,
    /// Length of a turn in seconds.
    #[arg(long, default_value_t = 0.2)]
    turn: f64,
}

impl Turns {
    /// How long a turn is.
    pub(crate) fn length(&self) -> Duration {
        Duration::from_secs_f64(self.turn)
    }

    /// The bench's settings with so many connections open.
    pub(crate) fn settings(&self, open: u32) -> CpsSettings {
        CpsSettings {
            open,
            length: self.length(),
            ..CpsSettings::default()
        }
    }
}

/// A result, or each of several, with what all of them say besides: whether the bench was built with a profile.
pub(crate) fn told(result: &impl Serialize) -> Result<Value, BoxError> {
    let mut value = serde_json::to_value(result)?;
    let results = match &mut value {
        Value::Array(results) => results.iter_mut().collect(),
        one => vec![one],
    };
    for result in results.into_iter().filter_map(Value::as_object_mut) {
        result.insert("pgo".to_owned(), PGO.into());
    }
    Ok(value)
}

/// Where proxy and load run when they have a core each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TwoCpus {
    /// The proxy's.
    pub(crate) proxy: usize,
    /// The load's.
    pub(crate) load: usize,
}

impl TwoCpus {
    /// Those asked for; by default the last CPU that this process may use for the proxy and the first for the load.
    pub(crate) fn choose(proxy: Option<usize>, load: Option<usize>) -> Result<TwoCpus, BoxError> {
        let allowed = rustix::thread::sched_getaffinity(None)?;
        let mut cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        let (first, last) = (cpus.next().unwrap_or(0), cpus.next_back());
        let (proxy, load) = (proxy.or(last), load.unwrap_or(first));
        match proxy {
            Some(proxy) if proxy != load => Ok(TwoCpus { proxy, load }),
            _ => Err(format!("proxy and load need a CPU each, and there is only CPU {load} for both").into()),
        }
    }

    /// Moves this thread to the proxy's CPU.
    pub(crate) fn pin_proxy(self) -> Result<(), BoxError> {
        Ok(e2d2::scheduler::pin_current_thread(self.proxy)?)
    }

    /// Moves this thread to the load's CPU.
    pub(crate) fn pin_load(self) -> Result<(), BoxError> {
        Ok(e2d2::scheduler::pin_current_thread(self.load)?)
    }
}

/// Runs a bench; `run` says whether its result is valid.
pub(crate) fn main(name: &str, run: impl FnOnce() -> Result<bool, BoxError>) -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("error")).init();
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench {name}: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs one of the benches of a program, that of the first argument. Says which there are if there is none, as `cargo bench` calls every
/// program: all of them would take an hour.
pub(crate) fn one_of<B: Parser>(run: impl FnOnce(B) -> Result<bool, BoxError>) -> ExitCode {
    let named = std::env::args().nth(1).filter(|name| name != "--bench");
    main(&named.clone().unwrap_or_default(), || match named {
        Some(_) => run(B::parse()),
        None => {
            B::command().print_help()?;
            Ok(true)
        }
    })
}

/// Prints what the proxy has counted and is not zero, for a look at what went wrong.
pub(crate) fn print_counters(groups: &CounterGroups) {
    let Ok(Value::Object(groups)) = serde_json::to_value(groups) else {
        return;
    };
    for (name, group) in groups {
        let counts = group.as_object().into_iter().flatten();
        let counts: Vec<String> = counts
            .filter(|(_, count)| count.as_u64() != Some(0))
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        if !counts.is_empty() {
            println!("{name}: {}", counts.join(", "));
        }
    }
}
