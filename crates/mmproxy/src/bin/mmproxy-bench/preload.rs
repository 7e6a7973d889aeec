//! `mmproxy-bench preload --library FILE`: what the preloaded library costs a server.
//!
//! The server is this program itself (`mmproxy-bench serve-echo PORT`), as a process of its own, with the library and
//! without, in turns. Its clients send headers in both cases; without the library they are echoed like the rest. The
//! ratios are with the library to without: of the rate, and of the server's CPU time.

use crate::place::Place;
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
    pub(crate) congestion: Option<String>,
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
    match system_calls(options) {
        Ok(calls) => {
            let [without, with] = calls;
            println!("system calls per request: {with:.3} with, {without:.3} without");
            object.insert("calls_per_request".into(), with.into());
            object.insert("calls_per_request_without".into(), without.into());
            // Start and connection cost some, divided by however many requests there were; one for each would be 1.
            if with > without + 0.5 {
                return Err("the library adds system calls to requests".into());
            }
        }
        Err(error) => eprintln!("system calls are not counted: {error}"),
    }
    object.insert("rounds".into(), options.rounds.into());
    object.insert(
        "congestion".into(),
        crate::congestion(options.congestion.as_deref()).into(),
    );
    let Some(path) = &options.json else { return Ok(()) };
    let text = serde_json::to_string_pretty(&object).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n").map_err(|error| format!("{path}: {error}"))
}

/// Adds the server and its arguments to a command, or to one that traces it.
fn serve(mut command: Command, options: &Options, preloaded: bool) -> Result<Running, String> {
    command
        .args(["serve-echo", &PORT.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    if preloaded {
        command
            .env("LD_PRELOAD", &options.library)
            .env("LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER", "1");
    }
    let child = command.spawn().map_err(|error| error.to_string())?;
    // Killed when dropped, if it does not listen.
    let server = Running { child };
    systems::wait_until_listening(PORT)?;
    Ok(server)
}

/// System calls of the server for one request and its answer, counted by strace over a second of them on one
/// connection: without the library, and with it.
fn system_calls(options: &Options) -> Result<[f64; 2], String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let file = std::env::temp_dir().join(format!("mmproxy-bench-strace-{}", std::process::id()));
    let mut calls = [0.0; 2];
    for preloaded in [false, true] {
        let _site = Place::Loopback.enter(options.congestion.as_deref())?;
        let mut command = Command::new("strace");
        command
            .args(["-f", "-c", "-U", "calls,name", "-o"])
            .arg(&file)
            .arg(&program);
        let server = serve(command, options, preloaded).map_err(|error| format!("strace: {error}"))?;
        let (tally, stop) = (Tally::default(), AtomicBool::new(false));
        let load = Load::Requests { connections: 1 };
        let target = SocketAddr::from(([127, 0, 0, 1], PORT));
        std::thread::scope(|scope| {
            let client = scope.spawn(|| tcp::generate(load, target, preloaded, &tally, &stop));
            std::thread::sleep(Duration::from_secs(1));
            stop.store(true, Ordering::Relaxed);
            client.join()
        })
        .map_err(|_| "the load generator failed")?
        .map_err(|error| error.to_string())?;
        // strace ends with what it traces, and writes its counts.
        server.end_descendants();
        drop(server);
        let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
        let _ = std::fs::remove_file(&file);
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            let count: u64 = words.next()?.parse().ok()?;
            words.next().filter(|name| *name != "total").map(|_| count)
        };
        let all: u64 = text.lines().filter_map(line).sum();
        let requests = tally.units.load(Ordering::Relaxed);
        if all == 0 || requests == 0 {
            return Err("nothing was counted".into());
        }
        calls[usize::from(preloaded)] = all as f64 / requests as f64;
    }
    Ok(calls)
}

/// Units per second, and the server's CPU time per unit.
fn measure(options: &Options, load: Load, preloaded: bool) -> Result<(f64, f64), String> {
    let _site = Place::Loopback.enter(options.congestion.as_deref())?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let server = serve(Command::new(program), options, preloaded)?;
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
