//! `./build.sh bench peers`: proxyengine, HAProxy and nginx in turn between the same clients and servers.
//!
//! Each turn lays a fresh cable (a veth pair between two namespaces, MTU 1500, all offloads off), starts one proxy pinned to
//! one CPU, and loads it with `trafficengine` as client and server on AF_XDP from the other. proxyengine is on AF_XDP, too;
//! the others on Linux's TCP. What counts is connections per second in which the proxy's CPU was busy, softirqs and all, from
//! `/proc/stat`; proxyengine runs with adaptive idle, so that it can be idle. Turns are interleaved in rounds, and ratios
//! taken within a round, so that a drift of the machine favours nobody.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use benchkit::{CpsResult, CpsSettings, Ratio, median};
use clap::Parser;
use serde::Serialize;
use serde_json::{Map, Value, json};
use trafficengine::plot;

mod cable;
mod cpu;
#[path = "../device/shared/mod.rs"]
mod device;
mod load;
mod systems;

use cable::Cable;
use device::cli::{self, Common, TwoCpus};
use device::{BoxError, Conditions, Host};
use load::{Kind, Loader, Outcome};
use systems::System;

/// proxyengine beside HAProxy and nginx.
#[derive(Parser)]
struct Arguments {
    /// The engine's program; `./build.sh bench peers` builds it and says where it is.
    #[arg(long)]
    proxyengine: PathBuf,
    /// The same built without a profile, to stand in the table as well.
    #[arg(long)]
    proxyengine_no_pgo: Option<PathBuf>,
    /// The load's program; likewise.
    #[arg(long)]
    trafficengine: PathBuf,
    /// Rounds; in each every proxy has one turn. Fewer than 7 give no valid result.
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Seconds that each turn counts connections, and half as many bytes.
    #[arg(long, default_value_t = 4)]
    seconds: u32,
    /// Connections at once.
    #[arg(long, default_value_t = 256)]
    open: u32,
    /// CPU of the load; by default the first, and the proxy's (--cpu) is the last.
    #[arg(long)]
    load_cpu: Option<usize>,
    #[command(flatten)]
    common: Common,
}

/// Rounds below which an interval says little.
const LEAST_ROUNDS: u32 = 7;

/// Share of the proxy's CPU that others may use.
const MOST_BACKGROUND: f64 = 0.05;

/// One proxy in one round.
#[derive(Clone, Copy, Serialize)]
struct Turn {
    round: u32,
    system: System,
    background_share: f64,
    connections: Outcome,
    bytes: Outcome,
}

fn main() -> ExitCode {
    cli::main("peers", || run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    if arguments.rounds == 0 || arguments.rounds > 100 || !(2..=60).contains(&arguments.seconds) {
        return Err("--rounds: expected 1 to 100; --seconds: expected 2 to 60".into());
    }
    if !(1..=4000).contains(&arguments.open) {
        return Err(format!("--open {}: expected 1 to 4000", arguments.open).into());
    }
    if !rustix::process::geteuid().is_root() {
        return Err("needs root, to make network namespaces".into());
    }
    let cpus = TwoCpus::choose(arguments.common.cpu, arguments.load_cpu)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    let mut turns = Vec::new();
    for round in 1..=arguments.rounds {
        let systems = arguments.systems();
        for place in 0..systems.len() {
            // Who begins changes from round to round.
            let system = systems[(place + round as usize) % systems.len()];
            let turn = take_turn(arguments, cpus, round, system, &interrupted)?;
            println!(
                "round {round}, {:<18}: {:>7.0} connections per busy second ({:.0} per second, {:.0} % busy), {:.2} Gbit/s",
                system.name(),
                turn.connections.connections_per_busy_second,
                turn.connections.connections_per_second,
                turn.connections.busy_share * 100.0,
                turn.bytes.gbit_per_second,
            );
            turns.push(turn);
        }
    }
    let ring = ring_figure(cpus)?;
    let result = evaluate(arguments, cpus, &turns, &ring);
    print(&result);
    arguments.common.write(&result)?;
    let bars: Vec<(&str, f64)> = arguments
        .systems()
        .iter()
        .map(|system| {
            (
                system.name(),
                middle(&turns, *system, |turn| turn.connections.connections_per_busy_second),
            )
        })
        .collect();
    plot::bars(
        &arguments.common.plot("peers.svg"),
        "connections per busy second of one CPU, over veth",
        &bars,
    )?;
    Ok(result["valid"] == true)
}

fn take_turn(
    arguments: &Arguments,
    cpus: TwoCpus,
    round: u32,
    system: System,
    interrupted: &AtomicBool,
) -> Result<Turn, BoxError> {
    let folder = tempfile::tempdir()?;
    let cable = Cable::lay(cpus, system.uses_kernel_stack())?;
    let background_share = Loader::background(cpus.proxy)?;
    // Dropped, hence ended, before the cable.
    let _proxy = system.start(&cable, cpus.proxy, arguments.engine(system), folder.path())?;
    let loader = |seconds| Loader {
        cable: &cable,
        program: &arguments.trafficengine,
        folder: folder.path(),
        load_cpu: cpus.load,
        proxy_cpu: cpus.proxy,
        open: arguments.open,
        seconds,
        interrupted,
    };
    let connections = loader(arguments.seconds).run(Kind::Connections);
    let bytes = loader(arguments.seconds.div_ceil(2)).run(Kind::Bytes);
    let named = |error: BoxError| -> BoxError { format!("{} in round {round}: {error}", system.name()).into() };
    Ok(Turn {
        round,
        system,
        background_share,
        connections: connections.map_err(named)?,
        bytes: bytes.map_err(named)?,
    })
}

/// What the same engine does on rings, where there is no kernel: `bench cps`, shorter.
fn ring_figure(cpus: TwoCpus) -> Result<CpsResult, BoxError> {
    let host = Host::start_on(1, 1500, &[cpus.proxy])?;
    cpus.pin_proxy()?;
    let settings = CpsSettings {
        length: Duration::from_secs(5),
        ..CpsSettings::default()
    };
    Ok(host.open('a', &Conditions::new(settings))?.cps(&settings))
}

fn of_system(turns: &[Turn], system: System, value: fn(&Turn) -> f64) -> Vec<f64> {
    turns.iter().filter(|turn| turn.system == system).map(value).collect()
}

fn middle(turns: &[Turn], system: System, value: fn(&Turn) -> f64) -> f64 {
    median(&of_system(turns, system, value))
}

impl Arguments {
    /// Those that there are.
    fn systems(&self) -> Vec<System> {
        let is_there = |system: &System| *system != System::ProxyengineNoPgo || self.proxyengine_no_pgo.is_some();
        System::ALL.into_iter().filter(is_there).collect()
    }

    /// The engine's program that a system is.
    fn engine(&self, system: System) -> &std::path::Path {
        match (system, &self.proxyengine_no_pgo) {
            (System::ProxyengineNoPgo, Some(program)) => program,
            _ => &self.proxyengine,
        }
    }
}

fn by_system(turns: &[Turn], value: fn(&Turn) -> f64) -> Value {
    let has_turns = |system: &&System| turns.iter().any(|turn| turn.system == **system);
    let entry = |system: &System| (system.name().to_owned(), json!(middle(turns, *system, value)));
    Value::Object(System::ALL.iter().filter(has_turns).map(entry).collect::<Map<_, _>>())
}

/// proxyengine by the peer that is best in the middle of all rounds, each round a pair.
fn ratio_to_best_peer(turns: &[Turn], value: fn(&Turn) -> f64) -> (System, Ratio) {
    let peers = [System::Haproxy, System::Nginx];
    let best = peers.into_iter().max_by(|one, other| {
        let (one, other) = (middle(turns, *one, value), middle(turns, *other, value));
        one.total_cmp(&other)
    });
    let best = best.unwrap_or(System::Haproxy);
    let (ours, theirs) = (
        of_system(turns, System::Proxyengine, value),
        of_system(turns, best, value),
    );
    let pairs: Vec<(f64, f64)> = ours.into_iter().zip(theirs).collect();
    (best, Ratio::of(&pairs))
}

/// What proxyengine is beside a peer: `ahead` or `behind` only where the ratio's whole interval is.
fn verdict(ratio: &Ratio) -> &'static str {
    match ratio.interval {
        [low, _] if low > 1.0 => "ahead",
        [_, high] if high < 1.0 => "behind",
        _ => "equal",
    }
}

/// Names are those of the JSON.
fn evaluate(arguments: &Arguments, cpus: TwoCpus, turns: &[Turn], ring: &CpsResult) -> Value {
    let on_rings = |reason: &String| format!("the figure on rings: {reason}");
    let mut invalid_because: Vec<String> = ring.invalid_because.iter().map(on_rings).collect();
    if arguments.rounds < LEAST_ROUNDS {
        invalid_because.push(format!("{} rounds, fewer than {LEAST_ROUNDS}", arguments.rounds));
    }
    let background = median(&turns.iter().map(|turn| turn.background_share).collect::<Vec<_>>());
    if background > MOST_BACKGROUND {
        let percent = background * 100.0;
        invalid_because.push(format!("others use {percent:.0} % of the proxy's CPU"));
    }
    for turn in turns
        .iter()
        .filter(|turn| turn.connections.failed + turn.bytes.failed > 0)
    {
        let failed = turn.connections.failed + turn.bytes.failed;
        let (system, round) = (turn.system.name(), turn.round);
        invalid_because.push(format!(
            "{failed} connections through {system} have failed in round {round}"
        ));
    }
    let (best, ratio) = ratio_to_best_peer(turns, |turn| turn.connections.connections_per_busy_second);
    let (best_for_bytes, ratio_for_bytes) = ratio_to_best_peer(turns, |turn| turn.bytes.gbit_per_busy_second);
    json!({
        "connections_per_busy_second": by_system(turns, |turn| turn.connections.connections_per_busy_second),
        "connections_per_second": by_system(turns, |turn| turn.connections.connections_per_second),
        "busy_share": by_system(turns, |turn| turn.connections.busy_share),
        "best_peer": best.name(),
        "ratio_to_best_peer": ratio.median,
        "ratio_to_best_peer_interval": ratio.interval,
        "verdict": verdict(&ratio),
        "gbit_per_second": by_system(turns, |turn| turn.bytes.gbit_per_second),
        "gbit_per_busy_second": by_system(turns, |turn| turn.bytes.gbit_per_busy_second),
        "best_peer_for_bytes": best_for_bytes.name(),
        "gbit_ratio_to_best_peer": ratio_for_bytes.median,
        "gbit_ratio_to_best_peer_interval": ratio_for_bytes.interval,
        "gbit_verdict": verdict(&ratio_for_bytes),
        "congestion": cable::congestion(),
        "ring_connections_per_busy_second": ring.connections_per_second,
        "ring_slices": ring.coverage.slices,
        "ring_slices_counted_share": ring.coverage.slices_counted_share,
        "rounds": arguments.rounds,
        "open_connections": arguments.open,
        "proxy_cpu": cpus.proxy,
        "load_cpu": cpus.load,
        "background_share": background,
        "turns": turns,
        "valid": invalid_because.is_empty(),
        "invalid_because": invalid_because,
    })
}

fn print(result: &Value) {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    println!();
    for system in System::ALL {
        let name = system.name();
        if result["connections_per_busy_second"][name].is_null() {
            continue;
        }
        println!(
            "{name:<18}: {:>7.0} connections per busy second, {:.2} Gbit/s ({:.2} per busy second)",
            number(&result["connections_per_busy_second"][name]),
            number(&result["gbit_per_second"][name]),
            number(&result["gbit_per_busy_second"][name]),
        );
    }
    println!(
        "proxyengine by the best peer, {}: {:.2} ({:.2} to {:.2}), {}; bytes, {}: {:.2} ({:.2} to {:.2}), {}",
        result["best_peer"].as_str().unwrap_or("-"),
        number(&result["ratio_to_best_peer"]),
        number(&result["ratio_to_best_peer_interval"][0]),
        number(&result["ratio_to_best_peer_interval"][1]),
        result["verdict"].as_str().unwrap_or("-"),
        result["best_peer_for_bytes"].as_str().unwrap_or("-"),
        number(&result["gbit_ratio_to_best_peer"]),
        number(&result["gbit_ratio_to_best_peer_interval"][0]),
        number(&result["gbit_ratio_to_best_peer_interval"][1]),
        result["gbit_verdict"].as_str().unwrap_or("-"),
    );
    println!(
        "on rings, without a kernel: {:.0} connections per busy second, by division of the clock by busy cycles",
        number(&result["ring_connections_per_busy_second"])
    );
    match result["invalid_because"].as_array() {
        Some(reasons) if !reasons.is_empty() => {
            let reasons: Vec<&str> = reasons.iter().filter_map(Value::as_str).collect();
            println!("NOT VALID: {}", reasons.join("; "));
        }
        _ => println!("valid"),
    }
}
