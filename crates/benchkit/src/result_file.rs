//! Where a bench writes its result.

use std::io::{Error, Result};
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The option of every bench.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ResultFile {
    /// Where to write the result as JSON: a file, or standard output if none is named.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

impl ResultFile {
    /// Writes the result if asked for.
    ///
    /// # Errors
    /// The file cannot be written; names it.
    pub fn write(&self, result: &impl Serialize) -> Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(result)?;
        if path == Path::new("-") {
            println!("{text}");
            return Ok(());
        }
        std::fs::write(path, text + "\n")
            .map_err(|error| Error::new(error.kind(), format!("{}: {error}", path.display())))
    }
}
