//! The configuration: a TOML file, checked into [`Config`].
//!
//! Every complaint names file, key, value and what was expected; a load that cannot be is refused with the arithmetic.

mod ancestor;
mod check;
mod raw;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2d2::scheduler::IdleMode;
use e2d2::wire::MacAddr;

use crate::generator::GeneratorSettings;

/// A checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The port.
    pub port: PortSettings,
    /// What is done on it.
    pub generator: GeneratorSettings,
    /// How long connections that are open when the load ends may go on.
    pub grace: Duration,
    /// Where results go.
    pub report: ReportSettings,
    /// One sentence for each key of an ancestor's file that has no meaning here.
    pub warnings: Vec<String>,
}

/// The port as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct PortSettings {
    /// DPDK device: a PCI address or a virtual device with its arguments.
    pub device: String,
    /// Its Ethernet address; none: its own.
    pub mac: Option<MacAddr>,
    /// Largest IP packet.
    pub mtu: u16,
    /// CPU to run on; none: wherever the system puts us.
    pub core: Option<usize>,
    /// Packet memory.
    pub memory_mib: u32,
    /// Descriptors each way.
    pub descriptors: u16,
    /// Whether the device computes checksums if it can.
    pub checksum_offload: bool,
    /// What to do without packets.
    pub idle: IdleMode,
}

/// Where results go.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ReportSettings {
    /// JSON file.
    pub json: Option<PathBuf>,
    /// SVG file.
    pub svg: Option<PathBuf>,
    /// Whether a line per second is printed.
    pub progress: bool,
}

/// What a command line may put in place of what the file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// `load.rate`.
    pub rate: Option<f64>,
    /// `load.open`.
    pub open: Option<u32>,
    /// `load.duration`, as text.
    pub duration: Option<String>,
    /// `load.total`.
    pub total: Option<u64>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{file}: {reason}")]
    Read {
        /// The file.
        file: String,
        /// What the system says.
        reason: String,
    },
    /// The file is no TOML, or has a key that does not exist, or lacks one.
    #[error("{file}: {reason}")]
    Syntax {
        /// The file.
        file: String,
        /// Place and reason.
        reason: String,
    },
    /// A value is not what its key can hold.
    #[error("{file}: {key} is {value}, expected {expected}")]
    Value {
        /// The file.
        file: String,
        /// The key with its table.
        key: &'static str,
        /// The value found.
        value: String,
        /// What it may be.
        expected: String,
    },
    /// The values are each possible, but not together.
    #[error("{file}: {key}: {arithmetic}")]
    Impossible {
        /// The file.
        file: String,
        /// The key that asks for too much.
        key: &'static str,
        /// Why it cannot be.
        arithmetic: String,
    },
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(path: &Path, overrides: &Overrides) -> Result<Config, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Read {
            file: file.clone(),
            reason: error.to_string(),
        })?;
        Config::parse(&text, &file, overrides)
    }

    /// Checks the text of a file; `file` is its name in complaints.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn parse(text: &str, file: &str, overrides: &Overrides) -> Result<Config, ConfigError> {
        let wrong = |error: toml::de::Error| ConfigError::Syntax {
            file: file.to_owned(),
            reason: error.to_string(),
        };
        let (mut raw, warnings) = match toml::from_str::<toml::Table>(text) {
            Ok(table) if ancestor::is_recognised(&table) => ancestor::read(table, file)?,
            // With the text itself the place of what is wrong is known.
            _ => (toml::from_str::<raw::RawConfig>(text).map_err(wrong)?, Vec::new()),
        };
        if let Some(load) = &mut raw.load {
            load.rate = overrides.rate.or(load.rate);
            load.open = overrides.open.or(load.open);
            load.total = overrides.total.or(load.total);
            if overrides.duration.is_some() {
                load.duration.clone_from(&overrides.duration);
            }
        }
        let config = check::Checker { file }.config(raw)?;
        Ok(Config { warnings, ..config })
    }
}

/// Whether both addresses are of the same IP version.
fn same_version(one: IpAddr, other: IpAddr) -> bool {
    one.is_ipv4() == other.is_ipv4()
}

#[cfg(test)]
mod tests;
