//! `./build.sh bench choice`: the time of a pick, the clients that move when a server goes, the load of the fullest server, and the
//! cost of a check by SYN.

use std::error::Error;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant as Time};

use benchkit::ResultFile;
use clap::Parser;
use e2d2::time::Instant;
use serde::Serialize;
use splice::choice_table::hash_of_said;
use splice::ids::{PoolId, ServerId};
use splice::limit::Limits;
use splice::settings::{HashSettings, Member, Policy, PoolSettings, Seeker, UpstreamServer, UpstreamSettings};
use splice::standby::Standby;
use splice::upstream::Upstream;

#[path = "guard/alone.rs"]
mod alone;
mod check;

/// How servers are chosen.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    file: ResultFile,
    /// Picks of each measurement.
    #[arg(long, default_value_t = 1_000_000)]
    picks: u32,
    /// `cargo bench` says this to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The names are those of the JSON.
#[derive(Debug, Serialize)]
struct Outcome {
    picks: Vec<Picks>,
    /// The hash of a client's address, which is a part of `pick_ns` of policies that hash, unless it is known.
    key_hash_ns: f64,
    moved: Vec<Moved>,
    spread: Vec<Spread>,
    cycles_per_tcp_check: f64,
}

/// Of one policy and size: the median of nine turns.
#[derive(Debug, Serialize)]
struct Picks {
    policy: &'static str,
    servers: u16,
    pick_ns: f64,
}

/// Of 100 servers the worst of removing each: clients that move from a server that stays, in per cent of all.
#[derive(Debug, Serialize)]
struct Moved {
    policy: &'static str,
    moved_extra_percent: f64,
}

/// Of 100 servers, how many connections the fullest has by what all have on average, 1 000 each.
#[derive(Debug, Serialize)]
struct Spread {
    policy: &'static str,
    cores: usize,
    fullest_by_mean: f64,
}

const POLICIES: [(&str, Policy); 4] = [
    ("round_robin", Policy::RoundRobin),
    ("least_connections", Policy::LeastConnections),
    ("client_hash", Policy::ClientHash),
    ("maglev", Policy::Maglev),
];

const POOL: PoolId = PoolId(0);

/// Turns of a measurement.
const TURNS: usize = 9;

/// Clients that are asked for when a server goes.
const CLIENTS: u32 = 1 << 18;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench choice: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let mut outcome = Outcome {
        picks: Vec::new(),
        key_hash_ns: key_hash(arguments.picks),
        moved: Vec::new(),
        spread: Vec::new(),
        cycles_per_tcp_check: check::cycles()?,
    };
    for (name, policy) in POLICIES {
        for servers in [10, 100, 1000] {
            outcome.picks.push(Picks {
                policy: name,
                servers,
                pick_ns: picks(&settings(policy, 0..servers), arguments.picks),
            });
        }
        if policy.is_hash() {
            outcome.moved.push(Moved {
                policy: name,
                moved_extra_percent: moved_at_worst(policy),
            });
        }
        for cores in [1, 8] {
            outcome.spread.push(Spread {
                policy: name,
                cores,
                fullest_by_mean: fullest(policy, cores),
            });
        }
    }
    println!("{outcome:#?}");
    Ok(arguments.file.write(&outcome)?)
}

/// A pool of these servers, each of which has an address of its own, whatever others there are.
fn settings(policy: Policy, servers: impl Iterator<Item = u16>) -> UpstreamSettings {
    let address = |n: u16| SocketAddr::from((Ipv4Addr::from(0x0a02_0000 + u32::from(n)), 80));
    let addresses: Vec<SocketAddr> = servers.map(address).collect();
    let server = |address: &SocketAddr| UpstreamServer {
        address: *address,
        max_connections: None,
        connect_timeout: Duration::from_secs(1),
        eject_after: 3,
        eject_for: Duration::from_secs(5),
    };
    let member = |n: usize| Member {
        server: ServerId(n as u16),
        weight: 1,
        backup: false,
    };
    let members = (0..addresses.len()).map(member).collect();
    let pool = PoolSettings::new((policy, HashSettings::default()), members, 100, |id| {
        addresses[id.index()]
    });
    UpstreamSettings {
        workers: 1,
        pools: vec![pool],
        servers: addresses.iter().map(server).collect(),
    }
}

fn client(n: u32) -> IpAddr {
    IpAddr::V4((0x0a00_0000 | n.wrapping_mul(0x9e37_79b1) >> 8).into())
}

fn median(mut turns: Vec<f64>) -> f64 {
    turns.sort_by(f64::total_cmp);
    turns[turns.len() / 2]
}

/// Nanoseconds of a pick whose key is hashed already.
fn picks(settings: &UpstreamSettings, count: u32) -> f64 {
    let mut upstream = Upstream::new(settings, 0);
    let now = Instant::ZERO + Duration::from_secs(100);
    let client = client(1);
    let mut turn = || {
        let start = Time::now();
        for n in 0..count {
            let said = Some(u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            black_box(upstream.pick(POOL, Seeker { client, said }, now));
        }
        start.elapsed().as_nanos() as f64 / f64::from(count)
    };
    median((0..TURNS).map(|_| turn()).collect())
}

/// The same of hashing an address.
fn key_hash(count: u32) -> f64 {
    let turn = || {
        let start = Time::now();
        for n in 0..count {
            black_box(hash_of_said(&black_box(n).to_be_bytes()));
        }
        start.elapsed().as_nanos() as f64 / f64::from(count)
    };
    median((0..TURNS).map(|_| turn()).collect())
}

/// Where each client goes; a server by the number of its address.
fn chosen(policy: Policy, servers: &[u16]) -> Vec<u16> {
    let mut upstream = Upstream::new(&settings(policy, servers.iter().copied()), 0);
    let now = Instant::ZERO + Duration::from_secs(100);
    let of = |n| {
        let picked = upstream.pick(POOL, client(n), now);
        picked.map_or(u16::MAX, |id| servers[id.index()])
    };
    (0..CLIENTS).map(of).collect()
}

fn moved_at_worst(policy: Policy) -> f64 {
    let all: Vec<u16> = (0..100).collect();
    let before = chosen(policy, &all);
    let moved = |gone: u16| {
        let left: Vec<u16> = all.iter().copied().filter(|server| *server != gone).collect();
        let after = chosen(policy, &left);
        let extra = before
            .iter()
            .zip(&after)
            .filter(|(before, after)| **before != gone && before != after);
        extra.count() as f64 / f64::from(CLIENTS) * 100.0
    };
    all.iter().map(|gone| moved(*gone)).fold(0.0, f64::max)
}

fn fullest(policy: Policy, cores: usize) -> f64 {
    const SERVERS: u16 = 100;
    let settings = settings(policy, 0..SERVERS);
    let standby: Arc<Standby> = Arc::default();
    let core = |core| Upstream::new(&settings, core).with_standby(Arc::clone(&standby));
    let mut upstreams: Vec<Upstream> = (0..cores).map(core).collect();
    let mut open = vec![0_u32; usize::from(SERVERS)];
    let mut now = Instant::ZERO + Duration::from_secs(100);
    for n in 0..u32::from(SERVERS) * 1_000 {
        // A connection a core and 10 µs.
        let upstream = &mut upstreams[n as usize % cores];
        if (n as usize).is_multiple_of(cores) {
            now += Duration::from_micros(10);
        }
        upstream.publish_due(&Limits::default(), now);
        if let Some(picked) = upstream.pick(POOL, client(n), now) {
            upstream.note_open(picked, now);
            open[picked.index()] += 1;
        }
    }
    f64::from(open.iter().copied().max().unwrap_or(0)) / 1_000.0
}
