//! `./build.sh bench latency`: how long a connection takes through the proxy at 10, 50 and 90 % of its maximum.
//!
//! First the maximum is measured (a closed loop on two cores), then connections start at fixed times, and each latency counts
//! from the time at which its connection should have started: a proxy or a load that is late cannot hide it (no coordinated
//! omission). Nothing is left out, not even what system and host took the cores away for; how often the system did stands
//! beside.
//!
//! The figures that begin with `undisturbed` are of the connections that no absence of a core touched, and say how many were left
//! out for that: what an absence is, and how far it reaches, is said in `benchkit::Undisturbed`. That absences are not
//! work of our own shows by how often the proxy's core was away while it did nothing but poll.
//!
//! Proxy and load have a core each and poll. The load's thread plays clients and servers, so that every latency contains
//! its turns; the same load without a proxy, its ends joined by a ring, shows how much that is.

use std::time::Duration;

use benchkit::{CpsSettings, CycleCounter, LatencyMicros, LoadTotals, TwoCoreBench, Undisturbed, Waited};
use e2d2::time::Clock;
use serde::Serialize;
use trafficengine::plot;
use trafficengine::stats::Latencies;

mod printed;

use crate::device::cli::{Common, TwoCpus};
use crate::device::{BoxError, Conditions, Host, NoDevice, ProxyDevice};

/// Latencies of connections through the proxy of one core.
#[derive(clap::Args)]
pub(crate) struct Arguments {
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
    /// As the two above, of the connections during whose life no core was away.
    undisturbed_p99_us_at_half: f64,
    undisturbed_added_p99_us_at_half: f64,
    /// Connections at half of the maximum that these are of, and their part of all: what slices are to other benches.
    connections_counted: u64,
    connections_counted_share: f64,
    /// The share of connections that are not in these, the larger of with and without a proxy.
    left_out_share: f64,
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
    /// Both of the connections during whose life no core was away.
    undisturbed_first_byte_us: LatencyMicros,
    undisturbed_direct_first_byte_us: LatencyMicros,
    /// Connections that the first of these is of, and their part of all.
    connections_counted: u64,
    connections_counted_share: f64,
    /// The share of connections that are not in these.
    left_out_share: f64,
    direct_left_out_share: f64,
    /// How often the proxy's core was away, and how often while there was no proxy on it.
    absences_per_second: f64,
    direct_absences_per_second: f64,
    /// For how long, by the time measured.
    away_share: f64,
    direct_away_share: f64,
    max_behind_us: f64,
    lost: u64,
    retransmitted: u64,
    failed: u64,
}

/// No more than this share of the connections may be left out of the undisturbed figures.
const MOST_LEFT_OUT: f64 = 0.25;

/// A proxy's core may be away so much more often than one that only polls, and so many times a second besides: they are few,
/// and hosts are moody. More would be work of ours.
const MORE_ABSENCES: (f64, f64) = (1.5, 10.0);

pub(crate) fn run(arguments: &Arguments) -> Result<bool, BoxError> {
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
    printed::print(&result);
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
    undisturbed: Calm,
    direct_undisturbed: Calm,
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
            undisturbed: Calm::default(),
            direct_undisturbed: Calm::default(),
            max_behind_us: 0.0,
            lost: 0,
            retransmitted: 0,
            failed: 0,
        }
    }

    fn add(&mut self, waited: &Waited<ProxyDevice>) {
        let totals = &waited.load;
        self.completed += waited.sum.completed;
        self.time += waited.sum.time;
        self.latencies.add(&totals.latencies);
        self.undisturbed.add(waited, self.share());
        self.max_behind_us = self.max_behind_us.max(totals.max_behind_us);
        self.count(totals, waited.device.lost());
    }

    fn add_direct(&mut self, waited: &Waited<NoDevice>) {
        self.direct.add(&waited.load.latencies);
        self.direct_undisturbed.add(waited, self.share());
        self.count(&waited.load, 0);
    }

    fn share(&self) -> f64 {
        f64::from(self.percent) / 100.0
    }

    fn count(&mut self, totals: &LoadTotals, lost: u64) {
        self.lost += lost + totals.not_sent;
        self.retransmitted += totals.retransmitted;
        self.failed += totals.failed;
    }
}

/// What turns have brought together without the connections that absences touched.
#[derive(Default)]
struct Calm {
    lives: Undisturbed,
    /// Of the core that is the proxy's.
    absences: usize,
    away: Duration,
    time: Duration,
}

impl Calm {
    fn add<D>(&mut self, waited: &Waited<D>, share: f64) {
        self.absences += waited.absences.len();
        self.away += waited
            .absences
            .iter()
            .map(|absence| absence.to - absence.from)
            .sum::<Duration>();
        self.time += waited.sum.time;
        let absences = [&waited.absences[..], &waited.load.absences].concat();
        self.lives.add(&waited.load.lives, &absences, share);
        self.lives.left_out += waited.load.latencies.first_byte.len() - waited.load.lives.len() as u64;
    }

    fn absences_per_second(&self) -> f64 {
        self.absences as f64 / self.time.as_secs_f64()
    }

    fn away_share(&self) -> f64 {
        self.away.as_secs_f64() / self.time.as_secs_f64()
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
            one_pool: true,
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
            one_pool: true,
            ..Conditions::new(settings)
        };
        level.asked = rate;
        let warm_up = TIME_WAIT * 3;
        let (name, direct) = (self.name()?, self.name()?);
        // Half as many again: a load that was held up makes up for it.
        let lives = (rate * self.length.as_secs_f64() * 1.5) as usize;
        let mut inline = self.host.open(name, &conditions)?;
        inline.arms.iter_mut().for_each(|arm| arm.generator.keep_lives(lives));
        let bench = self.host.part(inline, Some(self.cpus.load))?;
        level.add(&bench.latencies(warm_up, self.length)?);
        let clock = Clock::new();
        let (mut arms, pool) = self.host.open_direct(direct, &conditions, &clock)?;
        arms.iter_mut().for_each(|arm| arm.generator.keep_lives(lives));
        let load = self.host.start_load(arms, pool, clock, Some(self.cpus.load))?;
        let bench = TwoCoreBench::new(NoDevice, load, clock);
        level.add_direct(&bench.latencies(warm_up / 3, self.length / 2)?);
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
    let calm = half.map_or((f64::NAN, f64::NAN), |half| {
        let (through, direct) = (&half.undisturbed_first_byte_us, &half.undisturbed_direct_first_byte_us);
        (through.p99, direct.p99)
    });
    let left_out_share = half.map_or(1.0, |half| half.left_out_share.max(half.direct_left_out_share));
    invalid_because.extend(half.into_iter().flat_map(Level::reasons_against_undisturbed));
    LatencyResult {
        p99_us_at_half: p99,
        added_p99_us_at_half: p99 - direct,
        undisturbed_p99_us_at_half: calm.0,
        undisturbed_added_p99_us_at_half: calm.0 - calm.1,
        connections_counted: half.map_or(0, |half| half.connections_counted),
        connections_counted_share: half.map_or(0.0, |half| half.connections_counted_share),
        left_out_share,
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

impl Level {
    /// Why its undisturbed figures say nothing.
    fn reasons_against_undisturbed(&self) -> Vec<String> {
        let (percent, mut reasons) = (self.percent, Vec::new());
        let left_out = self.left_out_share.max(self.direct_left_out_share);
        if left_out > MOST_LEFT_OUT {
            reasons.push(format!(
                "at {percent} %: {left_out:.3} of the connections are left out of the undisturbed ones, above {MOST_LEFT_OUT}"
            ));
        }
        let (away, polling) = (self.absences_per_second, self.direct_absences_per_second);
        if away > polling * MORE_ABSENCES.0 + MORE_ABSENCES.1 {
            reasons.push(format!(
                "at {percent} %: {away:.0} absences a second, while it only polled {polling:.0}: work of the proxy's"
            ));
        }
        reasons
    }
}

fn report(level: &Gathered) -> Level {
    let first_byte = LatencyMicros::of(&level.latencies.first_byte);
    let (calm, direct) = (&level.undisturbed, &level.direct_undisturbed);
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
        undisturbed_first_byte_us: LatencyMicros::of(&calm.lives.first_byte),
        undisturbed_direct_first_byte_us: LatencyMicros::of(&direct.lives.first_byte),
        connections_counted: calm.lives.first_byte.len(),
        connections_counted_share: 1.0 - calm.lives.left_out_share(),
        left_out_share: calm.lives.left_out_share(),
        direct_left_out_share: direct.lives.left_out_share(),
        absences_per_second: calm.absences_per_second(),
        direct_absences_per_second: direct.absences_per_second(),
        away_share: calm.away_share(),
        direct_away_share: direct.away_share(),
        max_behind_us: level.max_behind_us,
        lost: level.lost,
        retransmitted: level.retransmitted,
        failed: level.failed,
    }
}
