//! What all benches of the proxy take from the command line and do with a result.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use super::BoxError;

/// Flags of every bench.
#[derive(clap::Args)]
pub(crate) struct Common {
    /// Where to write the result.
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
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
        let Some(path) = &self.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(result)? + "\n";
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
    }

    /// The file of a plot.
    pub(crate) fn plot(&self, name: &str) -> PathBuf {
        Path::new(&self.plots).join(name)
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
