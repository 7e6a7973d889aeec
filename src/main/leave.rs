//! What `proxyengine ctl drain`, `maint`, `ready` and `announce` are about.

use std::time::Duration;

use clap::{Args, ValueEnum};

/// Servers, a listener or the engine.
#[derive(Args, Clone, Debug)]
pub(super) struct Subject {
    /// What it is.
    what: What,
    /// Its name in the configuration; none for the engine.
    #[arg(required_if_eq_any([("what", "server"), ("what", "pool"), ("what", "listener")]))]
    name: Option<String>,
}

/// What goes out of service, and what becomes of its connections.
#[derive(Args, Clone, Debug)]
pub(super) struct Leave {
    #[command(flatten)]
    subject: Subject,
    /// End its open connections evenly over this time, such as 10m, with a RST to both sides.
    #[arg(long, value_name = "TIME", value_parser = humantime_serde::re::humantime::parse_duration)]
    close_over: Option<Duration>,
    /// End its open connections now.
    #[arg(long, conflicts_with = "close_over")]
    kill: bool,
}

impl Leave {
    /// The end of its path, and a query if there has to be one.
    pub(super) fn path(&self) -> String {
        let path = self.subject.path();
        match self.close_over {
            Some(over) => format!("{path}?close_over={}", over.as_secs()),
            None if self.kill => format!("{path}?kill"),
            None => path,
        }
    }
}

/// A switch.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(super) enum OnOff {
    /// It is so.
    On,
    /// It is not.
    Off,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A server.
    Server,
    /// All servers of a pool.
    Pool,
    /// A listener.
    Listener,
    /// All of the engine: `/ready` says so.
    Engine,
}

impl Subject {
    /// The end of its path.
    pub(super) fn path(&self) -> String {
        let what = self.what.to_possible_value();
        let what = what.map_or_else(String::new, |value| value.get_name().to_owned());
        match &self.name {
            Some(name) => format!("{what}/{name}"),
            None => what,
        }
    }
}
