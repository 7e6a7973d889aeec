//! `mmproxy-bench preload --library FILE`: what the preloaded library costs a server.
//!
//! The server is this program itself (`mmproxy-bench serve-echo PORT`), as a process of its own, with the library and
//! without, in turns. Its clients send headers in both cases; without the library they are echoed like the rest. The
//! ratios are with the library to without: of the rate, and of the server's CPU time.

use crate::stats::{Median, median};
use crate::systems::{self, Running};
use crate::tally::Tally;
use crate::tcp::{self, Load};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PORT: u16 = 1127;

const COLUMNS: [(&str, Load); 3] = [
    ("stream", Load::Stream { connections: 50 }),
    ("rr50", Load::Requests { connections: 50 }),
    ("cps", Load::Connections { at_once: 50 }),
];

/// What to measure, and how often.
pub(crate) struct Options {
    pub(crate) library: PathBuf,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) json: Option<String>,
}

/// Measures and reports.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let mut object = serde_json::Map::new();
    for (column, load) in COLUMNS {
        let (mut rates, mut costs) = (Vec::new(), Vec::new());
        for round in 0..options.rounds {
            let mut pair = [(0.0, 0.0); 2];
            for turn in 0..2 {
                let preloaded = (round + turn) % 2;
                pair[preloaded] = measure(options, load, preloaded == 1)?;
            }
            let [(rate, cost), (preloaded_rate, preloaded_cost)] = pair;
            rates.push(preloaded_rate / rate);
            costs.push(preloaded_cost / cost);
            eprintln!(
                "round {} {column:7} rate {:.3} cpu {:.3}",
                round + 1,
                rates[round],
                costs[round]
            );
        }
        for (suffix, values) in [("", rates), ("_cpu", costs)] {
            if let Some(Median { value, low, high }) = median(&values) {
                println!("{column}{suffix}: {value:.3} [{low:.3} {high:.3}]");
                object.insert(format!("{column}{suffix}"), value.into());
                object.insert(format!("{column}{suffix}_interval"), vec![low, high].into());
            }
        }
    }
    object.insert("rounds".into(), options.rounds.into());
    let Some(path) = &options.json else { return Ok(()) };
    let text = serde_json::to_string_pretty(&object).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n").map_err(|error| format!("{path}: {error}"))
}

/// Units per second, and the server's CPU time per unit.
fn measure(options: &Options, load: Load, preloaded: bool) -> Result<(f64, f64), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command
        .args(["serve-echo", &PORT.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    if preloaded {
        command
            .env("LD_PRELOAD", &options.library)
            .env("LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER", "1");
    }
    let server = Running {
        child: command.spawn().map_err(|error| error.to_string())?,
    };
    systems::wait_until_listening(PORT)?;
    let target = SocketAddr::from(([127, 0, 0, 1], PORT));
    let (tally, stop) = (Arc::new(Tally::default()), Arc::new(AtomicBool::new(false)));
    let client = {
        let (tally, stop) = (Arc::clone(&tally), Arc::clone(&stop));
        std::thread::spawn(move || tcp::generate(load, target, preloaded, &tally, &stop))
    };
    std::thread::sleep(Duration::from_millis(300));
    let before = (
        Instant::now(),
        tally.units.load(Ordering::Relaxed),
        server.cpu_seconds(),
    );
    std::thread::sleep(Duration::from_secs_f64(options.seconds));
    let after = (
        Instant::now(),
        tally.units.load(Ordering::Relaxed),
        server.cpu_seconds(),
    );
    stop.store(true, Ordering::Relaxed);
    client
        .join()
        .map_err(|_| "the load generator failed")?
        .map_err(|error| error.to_string())?;
    let units = (after.1 - before.1) as f64;
    if units == 0.0 {
        return Err("nothing came through".into());
    }
    Ok((units / (after.0 - before.0).as_secs_f64(), (after.2 - before.2) / units))
}
