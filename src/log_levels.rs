//! Which lines of the log are written, by target: as the configuration and `RUST_LOG` say, until somebody says otherwise.
//!
//! No packet thread logs: what cores have to say comes by rings ([`log_ring`](crate::log_ring)).

use std::sync::{Arc, PoisonError, RwLock};

use env_filter::Filter;
use log::{LevelFilter, Log, Metadata, Record};

/// The levels that hold now. Clones are the same.
#[derive(Clone, Debug)]
pub struct LogLevels(Arc<RwLock<Filter>>);

/// A log whose lines are left out as the levels say.
struct Sifted<L> {
    log: L,
    levels: LogLevels,
}

impl Default for LogLevels {
    fn default() -> Self {
        Self::new(LevelFilter::Off, None)
    }
}

impl LogLevels {
    /// This level for all targets, but for what `directives` say, such as `info,proxyengine::engine=debug`.
    pub fn new(level: LevelFilter, directives: Option<&str>) -> Self {
        let mut builder = env_filter::Builder::new();
        builder.filter_level(level);
        if let Some(directives) = directives {
            builder.parse(directives);
        }
        Self(Arc::new(RwLock::new(builder.build())))
    }

    /// Other levels in the place of all.
    ///
    /// # Errors
    /// A sentence: these are none.
    pub fn set(&self, directives: &str) -> Result<(), String> {
        let mut builder = env_filter::Builder::new();
        let parsed = builder.try_parse(directives).map_err(|error| error.to_string());
        let filter = parsed?.build();
        if directives.is_empty() {
            return Err(
                "expected a level, such as debug, or levels by target, such as info,proxyengine::engine=debug"
                    .to_owned(),
            );
        }
        log::set_max_level(filter.filter());
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = filter;
        Ok(())
    }

    /// Makes `log` the program's, with what these levels leave of it.
    ///
    /// # Errors
    /// The program has one.
    pub fn install(&self, log: impl Log + 'static) -> Result<(), log::SetLoggerError> {
        let levels = self.clone();
        log::set_boxed_logger(Box::new(Sifted { log, levels }))?;
        log::set_max_level(self.0.read().unwrap_or_else(PoisonError::into_inner).filter());
        Ok(())
    }
}

impl<L: Log> Log for Sifted<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let levels = self.levels.0.read().unwrap_or_else(PoisonError::into_inner);
        levels.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.log.log(record);
        }
    }

    fn flush(&self) {
        self.log.flush();
    }
}
