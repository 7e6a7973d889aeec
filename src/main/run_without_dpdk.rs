//! Stands in for `run.rs` in a program that was built without DPDK: it can check configurations only.

use proxyengine::config::Config;
use proxyengine::log_levels::LogLevels;

use super::{Exit, RunArguments, complain};

pub(super) fn run(_config: Config, _levels: LogLevels, _arguments: &RunArguments) -> Exit {
    complain(
        "proxyengine did not start: this program was built without DPDK and has no ports; build it with the feature \
         `dpdk`, which is on by default",
    );
    Exit::NotStarted
}
