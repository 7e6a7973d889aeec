//! What can go wrong on the rig, with what one needs to see why.

use std::path::PathBuf;
use std::time::Duration;

/// Why something on the rig failed.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, with its object.
        doing: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A command ended with an error.
    #[error("`{command}` ended with {status}:\n{output}")]
    Failed {
        /// The command line.
        command: String,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// The end of what it printed.
        output: String,
    },
    /// A command or a condition took too long.
    #[error("{what} took more than {limit:?}:\n{output}")]
    TimedOut {
        /// The command line or the condition.
        what: String,
        /// How long it was given.
        limit: Duration,
        /// The end of what was printed until then.
        output: String,
    },
    /// A capture or a report is not what it should be.
    #[error("{path}: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl RigError {
    /// Wraps a system call's error with what was being done.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
