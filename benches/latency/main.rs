//! `./build.sh bench latency`: how long a connection takes through the proxy at 10, 50 and 90 % of its maximum.
//!
//! First the maximum is measured (a closed loop on two cores), then connections start at fixed times, and each latency counts
//! from the time at which its connection should have started: a proxy or a load that is late cannot hide it (no coordinated
//! omission). Nothing is left out, not even what the operating system took the cores away for; how often it did stands
//! beside.
//!
//! Proxy and load have a core each and poll. The load's thread plays clients and servers, so that every latency contains
//! its turns; the same load without a proxy, its ends joined by a ring, shows how much that is.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use e2d2::time::Clock;
use serde::Serialize;
use trafficengine::bench::{CpsSettings, CycleCounter, LatencyMicros, LoadTotals, Sum, TwoCoreBench};
use trafficengine::plot;
use trafficengine::stats::Latencies;

#[path = "../device/mod.rs"]
mod device;

use device::cli::{self, Common, TwoCpus};
use device::{BoxError, Conditions, Host, NoDevice};

/// Latencies of connections through the proxy of one core.
#[derive(Parser)]
struct Arguments {
    /// CPU of the load; by default the first, and the proxy's is the last.
    #[arg(long)]
    load_cpu: Option<usize>,
    /// Shares of the maximum, in percent; 50 must be among them.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 50, 90])]
    shares: Vec<u8>,
    /// The maximum in connections per second, if it is not to be measured.
    #[arg(long)]
    maximum: Option<f64>,
    /// Turns of each share, interleaved with those without a proxy.
    #[arg(long, default_value_t = 3)]
    turns: u32,
    /// How long each turn measures.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

/// How long ports rest: short, so that a turn soon is what any later one would be.
const TIME_WAIT: Duration = Duration::from_millis(250);

/// Long rings: what waits while the system has taken a core away counts as latency, and is not lost.
const DESCRIPTORS: u16 = 16_383;

/// Names are those of the JSON.
#[derive(Serialize)]
struct LatencyResult {
    /// At half of the maximum, from the intended start to the first byte of the response: 99 of 100 connections.
    p99_us_at_half: f64,
    /// The same less the same without a proxy.
    added_p99_us_at_half: f64,
    maximum_connections_per_second: f64,
    levels: Vec<Level>,
    pinning: String,
    disturbances: u64,
    valid: bool,
    invalid_because: Vec<String>,
}

/// One share of the maximum.
#[derive(Serialize)]
struct Level {
    percent: u8,
    asked_connections_per_second: f64,
    connections_per_second: f64,
    connections: u64,
    /// To the first byte of the response, as below.
    p50: f64,
    p99: f64,
    p999: f64,
    connect_us: LatencyMicros,
    first_byte_us: LatencyMicros,
    whole_us: LatencyMicros,
    /// To the first byte without a proxy.
    direct_first_byte_us: LatencyMicros,
    max_behind_us: f64,
    lost: u64,
    retransmitted: u64,
    failed: u64,
}

fn main() -> ExitCode {
    cli::main("latency", || run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    check(arguments)?;
    let cpus = TwoCpus::choose(arguments.common.cpu, arguments.load_cpu)?;
    let host = Host::start_on(6, 1500, &[cpus.proxy, cpus.load])?;
    cpus.pin_proxy()?;
    let mut bench = Bench {
        host,
        cpus,
        // Rings need a name of their own each time.
        names: ('A'..='Z').chain('a'..='z').collect(),
        length: Duration::from_secs_f64(arguments.seconds),
    };
    let disturbances = Clock::new().disturbances();
    let maximum = match arguments.maximum {
        Some(maximum) => maximum,
        None => bench.maximum()?,
    };
    println!("maximum: {maximum:.0} connections/s");
    let mut levels: Vec<Gathered> = arguments.shares.iter().map(|percent| Gathered::new(*percent)).collect();
    for _ in 0..arguments.turns {
        for level in &mut levels {
            let rate = maximum * f64::from(level.percent) / 100.0;
            bench.turn(rate, level)?;
        }
    }
    let disturbances = Clock::new().disturbances() - disturbances;
    let result = evaluate(&levels, maximum, cpus, disturbances);
    print(&result);
    arguments.common.write(&result)?;
    let half = levels.iter().find(|level| level.percent == 50);
    plot::draw(
        &arguments.common.plot("latency.svg"),
        &[],
        half.map(|level| &level.latencies),
    )?;
    let names: Vec<String> = result
        .levels
        .iter()
        .map(|level| format!("{} %", level.percent))
        .collect();
    let bars: Vec<(&str, f64)> = names
        .iter()
        .zip(&result.levels)
        .map(|(name, level)| (name.as_str(), level.p99))
        .collect();
    plot::bars(
        &arguments.common.plot("latency-p99.svg"),
        "p99 to the first byte in µs by share of the maximum",
        &bars,
    )?;
    Ok(result.valid)
}

fn check(arguments: &Arguments) -> Result<(), BoxError> {
    if !(0.1..=600.0).contains(&arguments.seconds) {
        return Err(format!("--seconds {}: expected 0.1 to 600", arguments.seconds).into());
    }
    let shares = &arguments.shares;
    if shares.iter().any(|share| !(1..=100).contains(share)) || !shares.contains(&50) {
        return Err(format!("--shares {shares:?}: expected percentages from 1 to 100, 50 among them").into());
    }
    // Each turn opens rings twice, the maximum once; there are 52 names for them.
    let opened = arguments.turns as usize * shares.len() * 2 + 1;
    if arguments.turns == 0 || opened > 52 {
        return Err(format!(
            "--turns {} × {} shares × 2 + 1 = {opened}: expected 3 to 52 in all",
            arguments.turns,
            shares.len()
        )
        .into());
    }
    if arguments.maximum.is_some_and(|rate| !(100.0..=1e8).contains(&rate)) {
        return Err("--maximum: expected 100 to 10^8 connections per second".into());
    }
    Ok(())
}

/// What turns of one share have brought together.
struct Gathered {
    percent: u8,
    asked: f64,
    completed: u64,
    time: Duration,
    latencies: Latencies,
    direct: Latencies,
    max_behind_us: f64,
    lost: u64,
    retransmitted: u64,
    failed: u64,
}

impl Gathered {
    fn new(percent: u8) -> Gathered {
        Gathered {
            percent,
            asked: 0.0,
            completed: 0,
            time: Duration::ZERO,
            latencies: Latencies::default(),
            direct: Latencies::default(),
            max_behind_us: 0.0,
            lost: 0,
            retransmitted: 0,
            failed: 0,
        }
    }

    fn add(&mut self, sum: &Sum, totals: &LoadTotals, lost: u64) {
        self.completed += sum.completed;
        self.time += sum.time;
        self.latencies.add(&totals.latencies);
        self.max_behind_us = self.max_behind_us.max(totals.max_behind_us);
        self.count(totals, lost);
    }

    fn count(&mut self, totals: &LoadTotals, lost: u64) {
        self.lost += lost + totals.not_sent;
        self.retransmitted += totals.retransmitted;
        self.failed += totals.failed;
    }
}

struct Bench {
    host: Host,
    cpus: TwoCpus,
    names: Vec<char>,
    length: Duration,
}

impl Bench {
    fn name(&mut self) -> Result<char, BoxError> {
        self.names.pop().ok_or_else(|| "no name is left for rings".into())
    }

    /// Connections per second with always enough of them under way.
    fn maximum(&mut self) -> Result<f64, BoxError> {
        let settings = CpsSettings {
            length: Duration::from_secs(3),
            time_wait: TIME_WAIT,
            ..CpsSettings::default()
        };
        let conditions = Conditions {
            depth: 512,
            ..Conditions::new(settings)
        };
        let name = self.name()?;
        let inline = self.host.open(name, &conditions)?;
        let bench = self.host.part(inline, Some(self.cpus.load))?;
        let (result, ..) = bench.cps("two-core", &settings)?;
        Ok(result.connections as f64 / result.seconds)
    }

    /// Once with the proxy and once without.
    fn turn(&mut self, rate: f64, level: &mut Gathered) -> Result<(), BoxError> {
        let settings = CpsSettings {
            // Not held, but allowed at once, should the proxy fall behind.
            open: 100_000,
            length: self.length,
            time_wait: TIME_WAIT,
        };
        let conditions = Conditions {
            rate: Some(rate),
            descriptors: DESCRIPTORS,
            ..Conditions::new(settings)
        };
        level.asked = rate;
        let warm_up = TIME_WAIT * 3;
        let (name, direct) = (self.name()?, self.name()?);
        let inline = self.host.open(name, &conditions)?;
        let bench = self.host.part(inline, Some(self.cpus.load))?;
        let (sum, device, totals) = bench.latencies(warm_up, self.length)?;
        level.add(&sum, &totals, device.lost());
        drop(device);
        let (arms, pool) = self.host.open_direct(direct, &conditions)?;
        let load = self.host.start_load(arms, pool, Some(self.cpus.load))?;
        let (_, _, totals) = TwoCoreBench::new(NoDevice, load, Clock::new()).latencies(warm_up / 3, self.length / 2)?;
        level.direct.add(&totals.latencies);
        level.count(&totals, 0);
        Ok(())
    }
}

fn evaluate(levels: &[Gathered], maximum: f64, cpus: TwoCpus, disturbances: u64) -> LatencyResult {
    let mut invalid_because = Vec::new();
    for level in levels {
        let percent = level.percent;
        for (what, count) in [
            ("lost", level.lost),
            ("retransmitted", level.retransmitted),
            ("failed", level.failed),
        ] {
            if count > 0 {
                invalid_because.push(format!("at {percent} %: {what} is {count}"));
            }
        }
        let rate = level.completed as f64 / level.time.as_secs_f64();
        if rate < 0.98 * level.asked {
            let asked = level.asked;
            invalid_because.push(format!(
                "at {percent} %: {rate:.0} connections/s, asked were {asked:.0}"
            ));
        }
    }
    let levels: Vec<Level> = levels.iter().map(report).collect();
    let half = levels.iter().find(|level| level.percent == 50);
    let (p99, direct) = half.map_or((f64::NAN, f64::NAN), |half| (half.p99, half.direct_first_byte_us.p99));
    LatencyResult {
        p99_us_at_half: p99,
        added_p99_us_at_half: p99 - direct,
        maximum_connections_per_second: maximum,
        levels,
        pinning: format!(
            "proxy polls on CPU {}, load (clients and servers in one thread) polls on CPU {}; neither is isolated from the system",
            cpus.proxy, cpus.load
        ),
        disturbances,
        valid: invalid_because.is_empty(),
        invalid_because,
    }
}

fn report(level: &Gathered) -> Level {
    let first_byte = LatencyMicros::of(&level.latencies.first_byte);
    Level {
        percent: level.percent,
        asked_connections_per_second: level.asked,
        connections_per_second: level.completed as f64 / level.time.as_secs_f64(),
        connections: level.completed,
        p50: first_byte.p50,
        p99: first_byte.p99,
        p999: first_byte.p999,
        connect_us: LatencyMicros::of(&level.latencies.connect),
        first_byte_us: first_byte,
        whole_us: LatencyMicros::of(&level.latencies.whole),
        direct_first_byte_us: LatencyMicros::of(&level.direct.first_byte),
        max_behind_us: level.max_behind_us,
        lost: level.lost,
        retransmitted: level.retransmitted,
        failed: level.failed,
    }
}

fn print(result: &LatencyResult) {
    println!("to the first byte of the response, from the intended start, in µs (p50, p99, p99.9):");
    for level in &result.levels {
        let direct = &level.direct_first_byte_us;
        println!(
            "{:3} %: {:>9.0} connections/s: {:.1}, {:.1}, {:.1}; without a proxy {:.1}, {:.1}, {:.1}",
            level.percent,
            level.connections_per_second,
            level.p50,
            level.p99,
            level.p999,
            direct.p50,
            direct.p99,
            direct.p999,
        );
    }
    println!("{}", result.pinning);
    println!(
        "the system took the proxy's core away {} times; {}",
        result.disturbances,
        match result.valid {
            true => "valid".to_owned(),
            false => format!("NOT VALID: {}", result.invalid_because.join("; ")),
        }
    );
}
