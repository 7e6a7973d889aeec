//! `./build.sh bench cps`: what one proxied connection costs, and how many a core does in a second.
//!
//! Load and proxy alternate in one thread, and the cycle counter stands around the proxy's rounds alone: see
//! `benchkit`. The connection is the ancestors': three packets to open, 16 bytes asked, 8 answered together
//! with the server's FIN, two more to close; 10 000 connections are open, and the next to ask is drawn at random.
//!
//! After it, in the same run, come the floor (the same packets only received and sent) and the parts (what no engine can do
//! without, by themselves): the ratios to them mean the same on any machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use benchkit::{CpsResult, CpsSettings, Distance, LoadProcess, LoadTotals, PGO, TwoCoreBench, serve_load, verdict};
use e2d2::time::Clock;
use proxyengine::report::CounterGroups;
use proxyengine::stages::Breakdown;
use trafficengine::plot;
use trafficengine::stats::Latencies;

mod paired;
#[path = "../../core/guard/prefixes.rs"]
mod prefixes;

use crate::device::cli::{self, Common, TwoCpus};
use crate::device::compared::Compared;
use crate::device::floor::{self, Floor};
use crate::device::{BoxError, Conditions, Host, Inspect, Rules, parts};

/// Connections through the proxy of one core.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Load and proxy alternate in one thread (the default).
    #[arg(long, conflicts_with_all = ["two_core", "memif"])]
    inline: bool,
    /// The load runs on another core, connected by rings.
    #[arg(long, conflicts_with = "memif")]
    two_core: bool,
    /// The load runs in another process on another core, connected by memif.
    #[arg(long)]
    memif: bool,
    /// CPU of the load with --two-core and --memif; by default the first, and the proxy's is the last.
    #[arg(long)]
    load_cpu: Option<usize>,
    /// This is the process of the load for the bench in this folder.
    #[arg(long, hide = true)]
    load_for: Option<PathBuf>,
    /// And that is the floor, not the proxy.
    #[arg(long, hide = true)]
    of_floor: bool,
    /// Connections open at once.
    #[arg(long, default_value_t = 10_000)]
    open: u32,
    /// Keep a record of each connection, and drain them on another thread.
    #[arg(long)]
    records: bool,
    /// Two proxies take turns, one whose servers get a PROXY header and one without: what the header costs.
    #[arg(long, conflicts_with = "two_core")]
    proxy_out: bool,
    /// Two proxies take turns, one with a list of 200 000 prefixes and limits on each client and a class, and one without.
    #[arg(long, conflicts_with_all = ["two_core", "proxy_out"])]
    guarded: bool,
    /// What the servers are chosen by.
    #[arg(long, value_enum, default_value = "number")]
    rules: Rules,
    /// An inspector that looks at all bytes, or writes each again.
    #[arg(long, value_enum)]
    inspect: Option<Inspect>,
    /// Count the proxy's cycles by stage: a table, and stages.svg among the plots.
    #[arg(long, conflicts_with_all = ["inspect", "proxy_out"])]
    stage_cycles: bool,
    /// IPv6 on both sides.
    #[arg(long)]
    ipv6: bool,
    /// Pairs of turns, with --proxy-out or --guarded.
    #[arg(long, default_value_t = 15)]
    pairs: u32,
    /// How long to measure; with --proxy-out or --guarded shared out among all turns.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// How long the proxy lets a port rest, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    time_wait: u64,
    /// Room for connections in the proxy; as many again may rest. By default enough for 1.5 million per second,
    /// with half a million open or more for a million.
    #[arg(long)]
    capacity: Option<u32>,
    #[command(flatten)]
    common: Common,
}

/// Returns whether the result is valid.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    if !(0.05..=3600.0).contains(&arguments.seconds) {
        return Err(format!("--seconds {}: expected 0.05 to 3600", arguments.seconds).into());
    }
    if arguments.open == 0 || arguments.open > 4_000_000 {
        return Err(format!(
            "--open {}: expected 1 to 4000000, the number of end points less those that rest",
            arguments.open
        )
        .into());
    }
    let settings = CpsSettings {
        open: arguments.open,
        length: Duration::from_secs_f64(arguments.seconds),
        time_wait: Duration::from_millis(arguments.time_wait),
    };
    let mut conditions = Conditions {
        records: arguments.records,
        ipv6: arguments.ipv6,
        rules: arguments.rules,
        inspect: arguments.inspect,
        stage_cycles: arguments.stage_cycles,
        ..Conditions::new(settings)
    };
    if arguments.two_core || arguments.memif {
        conditions.depth = 512;
    }
    conditions.one_pool = arguments.two_core;
    conditions.capacity = arguments.capacity.unwrap_or(conditions.capacity);
    if let Some(folder) = &arguments.load_for {
        return serve(arguments, folder, &conditions);
    }
    if arguments.proxy_out {
        arguments.common.pin()?;
        return paired::run(&conditions, paired::What::Header, arguments.pairs, &arguments.common);
    }
    if arguments.guarded {
        arguments.common.pin()?;
        return paired::run(&conditions, paired::What::Guard, arguments.pairs, &arguments.common);
    }
    let Run {
        result,
        drops,
        latencies,
        floor,
    } = if arguments.memif {
        over_memif(arguments, &conditions)?
    } else if arguments.two_core {
        on_two_cores(arguments, &conditions)?
    } else {
        inline(arguments, &conditions)?
    };
    let compared = Compared::new(result, floor, parts::measure(&Clock::new())).with_stages(Breakdown::of(&drops));
    println!("{}", summary(&compared));
    if !compared.result.valid {
        cli::print_counters(&drops);
    }
    if let Some(stages) = &compared.breakdown {
        println!("\n{stages}");
        let path = arguments.common.plot("stages.svg");
        std::fs::create_dir_all(&arguments.common.plots)?;
        std::fs::write(&path, stages.to_svg(&[]))?;
    }
    arguments.common.write(&compared)?;
    plot::draw(&arguments.common.plot("cps.svg"), &[], Some(&latencies))?;
    Ok(compared.result.valid)
}

/// What was measured.
struct Run {
    result: CpsResult,
    drops: CounterGroups,
    latencies: Latencies,
    floor: Floor,
}

/// Proxy and load in one thread, and after them the floor.
fn inline(arguments: &Arguments, conditions: &Conditions) -> Result<Run, BoxError> {
    arguments.common.pin()?;
    let host = Host::start(2, 1500)?;
    let mut inline = host.open('a', conditions)?;
    let result = inline.cps(&conditions.settings);
    let (drops, totals) = (inline.device.counters(), LoadTotals::of(&inline.arms));
    // Millions of connections take gigabytes.
    drop(inline);
    let of_floor = floor::conditions(conditions);
    let floor = host.open_floor('f', &of_floor, Duration::ZERO)?.cps(&of_floor.settings);
    Ok(Run {
        result,
        drops,
        latencies: totals.latencies,
        floor: Floor::of(&floor, false),
    })
}

/// The load on another core, the proxy's and then the floor's.
fn on_two_cores(arguments: &Arguments, conditions: &Conditions) -> Result<Run, BoxError> {
    let cpus = TwoCpus::choose(arguments.common.cpu, arguments.load_cpu)?;
    cpus.pin_proxy()?;
    let host = Host::start(2, 1500)?;
    let bench = host.part(host.open('a', conditions)?, Some(cpus.load))?;
    let (result, device, totals) = bench.cps("two-core", &conditions.settings)?;
    let drops = device.counters();
    drop(device);
    let of_floor = floor::conditions(conditions);
    let inline = host.open_floor('f', &of_floor, floor::pause_of(&result))?;
    let (floor, ..) = host.part(inline, Some(cpus.load))?.cps("floor", &of_floor.settings)?;
    Ok(Run {
        result,
        drops,
        latencies: totals.latencies,
        floor: Floor::of(&floor, true),
    })
}

/// The proxy here, the load in a process of its own, and the same with the floor.
fn over_memif(arguments: &Arguments, conditions: &Conditions) -> Result<Run, BoxError> {
    let cpus = TwoCpus::choose(arguments.common.cpu, arguments.load_cpu)?;
    let host = Host::start_on(2, 1500, &[cpus.proxy])?;
    let start_load = |folder: &Path, of_floor: bool| {
        let mut load = Command::new(std::env::current_exe()?);
        load.args(std::env::args_os().skip(1)).arg("--load-for").arg(folder);
        if of_floor {
            load.arg("--of-floor");
        }
        Ok(LoadProcess::start(&mut load, folder)?)
    };
    let folder = tempfile::tempdir()?;
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let (device, load, clock) = host.open_memif(folder.path(), conditions, || start_load(folder.path(), false))?;
    // Not before the other process has inherited where it may run.
    cpus.pin_proxy()?;
    let distance = || Distance::to(cpus.load);
    let bench = TwoCoreBench::new(device, load, clock).with_distance(distance()?);
    let (result, device, totals) = bench.cps("memif", &conditions.settings)?;
    let (folder, of_floor) = (tempfile::tempdir()?, floor::conditions(conditions));
    rustix::thread::sched_setaffinity(None, &allowed)?;
    let pause = floor::pause_of(&result);
    let (floor, load, clock) =
        host.open_memif_floor(folder.path(), &of_floor, pause, || start_load(folder.path(), true))?;
    cpus.pin_proxy()?;
    let bench = TwoCoreBench::new(floor, load, clock).with_distance(distance()?);
    let (floor, ..) = bench.cps("floor", &of_floor.settings)?;
    Ok(Run {
        result,
        drops: device.counters(),
        latencies: totals.latencies,
        floor: Floor::of(&floor, true),
    })
}

/// The process of the load.
fn serve(arguments: &Arguments, folder: &Path, conditions: &Conditions) -> Result<bool, BoxError> {
    let of_floor = floor::conditions(conditions);
    let conditions = if arguments.of_floor { &of_floor } else { conditions };
    let cpus = TwoCpus::choose(arguments.common.cpu, arguments.load_cpu)?;
    let host = Host::start_on(1, 1500, &[cpus.load])?;
    cpus.pin_load()?;
    let (arms, pool, clock) = host.load_memif(folder, conditions, arguments.of_floor)?;
    println!("{}", serve_load(arms, pool, &clock, folder)?);
    Ok(true)
}

fn summary(compared: &Compared) -> String {
    let result = &compared.result;
    let verdict = verdict(&result.invalid_because);
    format!(
        "{:.0} busy cycles per connection ({:.0} with idle rounds), {:.0} connections/s by division of {:.2} GHz by them; {}\n\
         {:.0} in all slices but the disturbed, {} or less in a tenth of them, {} in half, {} in nine tenths\n{}\n\
         {:.3} packets in and {:.3} out per connection, bursts of {:.1}; {} open, {:.0} bytes of state for each: {}\n\
         {} connections in {:.2} s; {} slices, of which {} count ({:.0} %), {} had the core to themselves, {} were disturbed, \
         {} far from the load's core; p50 {:.0} µs, p99 {:.0} µs\n{verdict}",
        result.busy_cycles_per_connection,
        result.saturated_cycles_per_connection,
        result.connections_per_second,
        result.tsc_hz as f64 / 1e9,
        if PGO {
            "built with a profile"
        } else {
            "built without a profile"
        },
        result.busy_cycles_all_slices,
        result.busy_cycles_of_slices.p10,
        result.busy_cycles_of_slices.p50,
        result.busy_cycles_of_slices.p90,
        compared.summary(),
        result.rx_packets_per_connection,
        result.tx_packets_per_connection,
        result.mean_burst,
        result.open_connections,
        result.bytes_per_connection_state,
        result.structures(),
        result.connections,
        result.seconds,
        result.coverage.slices,
        result.coverage.slices_counted,
        result.coverage.slices_counted_share * 100.0,
        result.slices_alone,
        result.disturbed_slices,
        result.slices_far,
        result.latency_us.p50,
        result.latency_us.p99,
    )
}
