//! The whole engine with a selector of one's own, as a program: that of `custom_selector.rs`.
//!
//! ```text
//! cargo run --release --example engine_with_selector -- FILE
//! ```
//!
//! FILE is an engine's configuration with a pool `shards`, as `custom_selector.rs` shows it; its ports are opened, so this
//! needs root, and DPDK. SIGINT or SIGTERM ends it: open connections may go on for the configured time, the rest is reset,
//! and the counters are printed.

#[allow(dead_code, unreachable_pub)] // the other example's own program
#[path = "custom_selector.rs"]
mod custom_selector;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proxyengine::config::Config;
use proxyengine::engine::Engine;
use signal_hook::consts::{SIGINT, SIGTERM};

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which configuration?")?;
    let config = Config::load(path)?;
    if custom_selector::TenantSelector::new(&config, "shards").is_none() {
        return Err("the configuration has no pool \"shards\"".into());
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }

    // Each core gets its own selector from the factory.
    let selectors = custom_selector::factory(&config);
    let drain = config.engine().drain;
    let mut engine = Engine::start(config, selectors)?;
    while !ended.load(Ordering::Relaxed) && engine.failures().is_empty() {
        std::thread::sleep(Duration::from_millis(100));
    }
    engine.drain(drain, || false);
    let outcome = engine.shutdown();
    println!("{}", outcome.report);
    match outcome.failures.first() {
        Some(failure) => Err(failure.clone().into()),
        None => Ok(()),
    }
}
