//! `./build.sh bench generator --cores 2`: what several cores do at once in one process, by what one of them does.
//!
//! Each core has clients and servers of its own, on the two ends of a pair of rings, and the process has one result. A turn is one core
//! alone and then all of them, or the other way round; each turn gives a ratio.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use benchkit::{PGO, Ratio, unwanted, verdict};
use e2d2::native::{DpdkPort, DpdkQueue, Eal, EalConfig, MbufPool, PoolDemand, data_room, ring_pair};
use e2d2::port::PortId;
use e2d2::scheduler::{IdleMode, pin_current_thread};
use e2d2::time::Clock;
use serde::Serialize;
use trafficengine::Generator;
use trafficengine::config::{Config, Overrides};
use trafficengine::run::{Ended, RunSettings, Seat, Station, run};

use super::{Arguments, BoxError};

/// Packets that a ring holds.
const DESCRIPTORS: u16 = 2047;

/// What so many cores make at least of one core's rate: two make 1.8.
const LEAST_OF_A_CORE: f64 = 0.9;

/// Names are those of the JSON.
#[derive(Serialize)]
struct CoresResult {
    cores: usize,
    turns: usize,
    /// Connections per second of all cores by those of one: mean over the turns.
    ratio: f64,
    /// Where it lies with 95 % confidence.
    interval: [f64; 2],
    /// The least that it should be.
    limit: f64,
    connections_per_second_one: f64,
    connections_per_second_all: f64,
    /// Cycles of a core for a connection on all cores by those on one.
    cycles_ratio: f64,
    cycles_per_connection_one: f64,
    cycles_per_connection_all: f64,
    retransmitted: u64,
    failed: u64,
    lost: u64,
    /// Whether it was built with a profile.
    pgo: bool,
    /// Nothing was retransmitted, lost or failed, and each port's counts add up to the result's.
    valid: bool,
    invalid_because: Vec<String>,
}

/// Ports of a seat; they are closed after its thread has ended.
type Ports = [DpdkPort; 2];

/// Returns whether the result is valid, and the ratio within its limit.
pub(crate) fn measure(arguments: &Arguments, cpus: &[usize]) -> Result<bool, BoxError> {
    let eal = Eal::start(&EalConfig {
        memory_mib: 128 + 128 * cpus.len() as u32,
        packet_cores: cpus.to_vec(),
        ..EalConfig::default()
    })?;
    let clock = Clock::new();
    let mut pairs = Vec::new();
    let (mut retransmitted, mut failed, mut lost, mut adds_up) = (0, 0, 0, true);
    for turn in 0..arguments.turns {
        let mut rate = |cpus: &[usize], name: &str| -> Result<f64, BoxError> {
            let ended = play(&eal, &clock, arguments, cpus, &format!("{name}{turn}"))?;
            let roles = || {
                ended
                    .totals
                    .client
                    .iter()
                    .map(|stats| (&stats.connections, &stats.traffic))
            };
            let servers = ended
                .totals
                .server
                .iter()
                .map(|stats| (&stats.connections, &stats.traffic));
            for (connections, traffic) in roles().chain(servers) {
                failed += connections.failed_in_all();
                retransmitted += traffic.retransmitted;
            }
            lost += ended.totals.port.not_sent;
            let by_port = ended.report.by_port.iter().map(|port| port.client_completed);
            adds_up &= by_port.sum::<u64>() == ended.totals.completed() && ended.totals.completed() > 0;
            Ok(ended.report.connections_per_second)
        };
        // Who begins changes, so that a drift of the machine favours neither.
        let (one, all) = if turn % 2 == 0 {
            let one = rate(&cpus[..1], "o")?;
            (one, rate(cpus, "a")?)
        } else {
            let all = rate(cpus, "a")?;
            (rate(&cpus[..1], "o")?, all)
        };
        println!(
            "turn {}: {one:.0} connections/s on one core, {all:.0} on {}",
            turn + 1,
            cpus.len()
        );
        pairs.push((all, one));
    }
    let ratio = Ratio::of(&pairs);
    let mean = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / pairs.len() as f64;
    let (all, one) = (mean(|pair| pair.0), mean(|pair| pair.1));
    let cycles = |rate: f64, cores: usize| clock.tsc_hz() as f64 * cores as f64 / rate.max(1.0);
    let mut invalid_because = unwanted([("retransmitted", retransmitted), ("failed", failed), ("lost", lost)]);
    if !adds_up {
        invalid_because.push("the ports' counts do not add up to the result's".to_owned());
    }
    let result = CoresResult {
        cores: cpus.len(),
        turns: pairs.len(),
        ratio: ratio.median,
        interval: ratio.interval,
        limit: LEAST_OF_A_CORE * cpus.len() as f64,
        connections_per_second_one: one,
        connections_per_second_all: all,
        cycles_ratio: cpus.len() as f64 / ratio.median,
        cycles_per_connection_one: cycles(one, 1),
        cycles_per_connection_all: cycles(all, cpus.len()),
        retransmitted,
        failed,
        lost,
        pgo: PGO,
        valid: invalid_because.is_empty(),
        invalid_because,
    };
    println!(
        "{} cores make {:.2} times the connections of one ({:.2} to {:.2}, at least {:.2}): {all:.0}/s and {one:.0}/s; a connection \
         takes {:.2} times the cycles, {:.0} and {:.0}; {}",
        result.cores,
        result.ratio,
        result.interval[0],
        result.interval[1],
        result.limit,
        result.cycles_ratio,
        result.cycles_per_connection_all,
        result.cycles_per_connection_one,
        verdict(&result.invalid_because),
    );
    arguments.file.write(&result)?;
    Ok(result.valid && result.ratio >= result.limit)
}

/// One run on these cores at once.
fn play(eal: &Eal, clock: &Clock, arguments: &Arguments, cpus: &[usize], name: &str) -> Result<Ended, BoxError> {
    let (mut ports, mut seats) = (Vec::<Ports>::new(), Vec::new());
    for (index, cpu) in cpus.iter().enumerate() {
        let (of_seat, stations) = open(eal, clock, arguments, &format!("{name}{index}"), index as u8)?;
        ports.push(of_seat);
        seats.push(Seat {
            core: Some(*cpu),
            stations,
            settings: RunSettings {
                grace: Duration::from_secs(5),
                idle: IdleMode::Poll,
            },
        });
    }
    let prepare = |core: Option<usize>| {
        core.map_or(Ok(()), pin_current_thread)
            .map_err(|error| error.to_string())?;
        eal.register_thread().map_err(|error| error.to_string())
    };
    Ok(run(seats, clock, &AtomicBool::new(false), prepare, |_| ())?)
}

/// Clients and servers of a core, and the rings between them.
fn open(
    eal: &Eal,
    clock: &Clock,
    arguments: &Arguments,
    name: &str,
    core: u8,
) -> Result<(Ports, Vec<Station<DpdkQueue, MbufPool>>), BoxError> {
    let demand = PoolDemand {
        queues: 4 * u32::from(DESCRIPTORS + 1),
        held: 2 * 8_192,
        threads: 1,
    };
    let pool = MbufPool::new(eal, name, demand.buffers(), data_room(1500), None)?;
    let ids = [PortId(2 * core), PortId(2 * core + 1)];
    let [(near, near_queues), (far, far_queues)] = ring_pair(eal, name, ids, DESCRIPTORS, 1500, [&[&pool], &[&pool]])?;
    let common = "[port]\ndevice = \"net_ring\"\n[link]\nnext_hop_mac = \"02:00:00:00:00:01\"\n\
                  [tcp]\nrto_initial = \"5s\"\nrto_min = \"5s\"\n[script]\nkeys = 1000\nservers = 1\n";
    let client = format!(
        "{common}[client]\naddresses = [\"10.1.{core}.1-10.1.{core}.16\"]\ntargets = [\"10.2.{core}.1:80\"]\n\
         [load]\nmode = \"closed\"\nopen = {}\nduration = \"{}s\"\n",
        arguments.open, arguments.seconds
    );
    let server = format!("{common}[server]\nlisten = [\"10.2.{core}.1:80\"]\n");
    let roles = [("clients", client), ("servers", server)];
    let queues = near_queues.into_iter().chain(far_queues);
    let stations = roles.into_iter().zip(queues).map(|((role, text), port)| {
        let config = Config::parse(&text, "bench", &Overrides::default())?;
        Ok(Station {
            name: format!("{role} of core {core}"),
            generator: Generator::new(config.generator, clock.now()),
            port,
            pool: pool.clone(),
        })
    });
    Ok(([near, far], stations.collect::<Result<_, BoxError>>()?))
}
