//! `./build.sh bench scale`: `bench cps` with ever more connections open, for what a cache miss more costs.

use std::time::Duration;

use benchkit::{CpsResult, CpsSettings, verdict};
use serde_json::{Value, json};
use trafficengine::plot;

use crate::device::cli::Common;
use crate::device::{BoxError, Conditions, Host};

/// Cycles of a connection by the number that is open.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Connections open at once, one run for each.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 100_000, 1_000_000, 4_000_000])]
    open: Vec<u32>,
    /// How long to measure each.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    arguments.common.pin()?;
    if arguments.open.is_empty() || arguments.open.len() > 10 {
        return Err(format!("--open names {} numbers, expected 1 to 10", arguments.open.len()).into());
    }
    let host = Host::start(1, 1500)?;
    let mut results: Vec<(u32, CpsResult)> = Vec::new();
    let mut entries: Vec<Value> = Vec::new();
    for (name, open) in ('a'..).zip(&arguments.open) {
        if let Some(reason) = too_little_memory(*open) {
            println!("{open:>8} open: skipped: {reason}");
            entries.push(json!({ "open_connections": open, "skipped": reason, "valid": false }));
            continue;
        }
        let length = Duration::from_secs_f64(arguments.seconds);
        let settings = CpsSettings {
            open: *open,
            length,
            ..CpsSettings::default()
        };
        // Dropped before the next is opened: one alone may take gigabytes.
        let result = host.open(name, &Conditions::new(settings))?.cps(&settings);
        println!(
            "{open:>8} open: {:.0} busy cycles per connection, {:.0} bytes of state ({}); {}",
            result.busy_cycles_per_connection,
            result.bytes_per_connection_state,
            result.structures(),
            verdict(&result.invalid_because),
        );
        entries.push(serde_json::to_value(&result)?);
        results.push((*open, result));
    }
    arguments.common.write(&entries)?;
    let bar = |(open, result): &(u32, CpsResult)| (format!("{open}"), result.busy_cycles_per_connection);
    let bars: Vec<(String, f64)> = results.iter().map(bar).collect();
    let bars: Vec<(&str, f64)> = bars.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    plot::bars(
        &arguments.common.plot("scale.svg"),
        "busy cycles per connection by connections open",
        &bars,
    )?;
    Ok(results.iter().all(|(_, result)| result.valid))
}

/// Proxy, clients and servers together, for each open connection: measured, and some more.
const BYTES_PER_CONNECTION: u64 = 1_200;

/// Packets, tables for what rests, and what the rest of the machine is left.
const BYTES_BESIDE: u64 = 2 << 30;

/// Why so many connections cannot be open on this machine now.
fn too_little_memory(open: u32) -> Option<String> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let available = line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024;
    let needed = u64::from(open) * BYTES_PER_CONNECTION + BYTES_BESIDE;
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    (available < needed).then(|| {
        format!(
            "{open} connections × {BYTES_PER_CONNECTION} bytes and {:.0} GiB beside are {:.1} GiB of memory; {:.1} GiB are available",
            gib(BYTES_BESIDE),
            gib(needed),
            gib(available)
        )
    })
}
