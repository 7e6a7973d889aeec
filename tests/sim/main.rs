//! Two peers that no one here wrote talk through the real graph over links that misbehave, in virtual time.
//!
//! smoltcp's TCP end points are the clients and the servers. A scenario is drawn from a seed ([`scenario`]), run
//! ([`world`]) and judged ([`check`]): every byte stream complete and equal, or ended by a cause that its record names
//! and the scenario explains; everything given back at the end.
//!
//! ```text
//!   clients ─► link ─►┐                                    ┌─► link ─► servers
//!                     │ port 0 ─► graph of the engine ─► port 1 │
//!           ◄─ link ◄─┘                                    └◄─ link ◄─
//! ```
//!
//! Environment, for the ignored test `long` and for looking into one seed:
//!
//! | variable | meaning |
//! |---|---|
//! | `SEED` | the first seed; with it alone, the only one |
//! | `SEEDS` | how many; `long` then ends with them |
//! | `MINUTES` | `long` goes on for so long, whatever `SEEDS` says |
//! | `FAILURES` | so many failures end it; 3 if not given |
//! | `CAPTURE` | the frames at the engine's ports go to this file (pcapng), those of the last seed |
//!
//! `SEED=17 cargo test --test sim sweep` runs one seed again.
//! `MINUTES=10 cargo test --test sim -- --ignored --nocapture long` draws new seeds for ten minutes.

#![allow(unreachable_pub)] // modules of one test program

mod check;
mod ends;
mod engine;
mod frames;
mod headers;
mod legs;
mod scenario;
mod shrink;
mod trouble;
mod world;

use check::Report;
use rustix::time::{ClockId, clock_gettime};
use scenario::{Binding, Scenario};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Connections of one seed.
const CONNECTIONS: usize = 100;

/// Seeds after which a long run tells what it has come to.
const TOLD_EVERY: u64 = 250;

/// Seeds of the sweep in `cargo test`.
const SWEEP: u64 = 200;

/// Seeds of the sweep with an inspector.
const REWRITTEN: u64 = 60;

/// Seeds of the sweeps that bind before the first payload.
const BOUND: u64 = 50;

/// Which scenario a seed stands for.
#[derive(Clone, Copy)]
enum Kind {
    /// Bound by the first payload.
    Payload,
    /// Bound before that.
    Bound(Binding),
    /// Every connection is inspected and rewritten, both ways.
    Rewritten(Binding),
    /// Any of these, by the seed.
    Any,
}

impl Kind {
    fn draw(self, seed: u64) -> Scenario {
        let plain = |binding, count| match binding {
            Binding::Payload => Scenario::from_seed(seed, count),
            Binding::Handshake | Binding::Syn => Scenario::bound(seed, count, binding),
        };
        match self {
            Kind::Payload => plain(Binding::Payload, CONNECTIONS),
            Kind::Bound(binding) => plain(binding, CONNECTIONS),
            Kind::Rewritten(binding) => Scenario {
                is_rewritten: true,
                headers: headers::Headers::default(),
                ..plain(binding, CONNECTIONS / 2)
            },
            Kind::Any => match seed % 8 {
                0 => Kind::Rewritten(Binding::Payload).draw(seed),
                1 => Kind::Rewritten(Binding::Syn).draw(seed),
                2 => Kind::Bound(Binding::Handshake).draw(seed),
                3 | 4 => Kind::Bound(Binding::Syn).draw(seed),
                _ => Kind::Payload.draw(seed),
            },
        }
    }

    /// How one seed is tried again.
    fn again(self, seed: u64) -> String {
        let test = match self {
            Kind::Payload => "sweep",
            Kind::Bound(Binding::Syn) => "syn_sweep",
            Kind::Bound(_) => "handshake_sweep",
            Kind::Rewritten(_) => "rewritten_sweep",
            Kind::Any => return format!("./build.sh fuzz sim --seed {seed}"),
        };
        format!("SEED={seed} cargo test --no-default-features --test sim -- --exact {test}")
    }
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} must be a number, not {text}")),
    )
}

/// What many simulations came to.
#[derive(Default)]
struct Total {
    seeds: u64,
    connections: usize,
    complete: usize,
    ordinary: usize,
    ordinary_complete: usize,
    excused: usize,
    unrepeated_fins: usize,
    neglected: usize,
    bytes: u64,
    seconds: u64,
    causes: BTreeMap<String, usize>,
    drops: BTreeMap<&'static str, u64>,
    failures: Vec<String>,
}

impl Total {
    fn add(&mut self, seed: u64, report: Report, failure: Option<String>) {
        self.seeds += 1;
        self.connections += report.connections;
        self.complete += report.complete;
        self.ordinary += report.ordinary;
        self.ordinary_complete += report.ordinary_complete;
        for what in &report.hindered {
            println!("seed {seed}: untouched and not complete: {what}");
        }
        self.excused += report.excused;
        self.unrepeated_fins += report.unrepeated_fins;
        self.neglected += report.neglected;
        self.bytes += report.bytes;
        self.seconds += report.seconds;
        for (cause, count) in report.causes {
            *self.causes.entry(cause).or_default() += count;
        }
        for (reason, count) in report.drops {
            *self.drops.entry(reason).or_default() += count;
        }
        if let Some(failure) = failure {
            println!("seed {seed} fails: {}\n{failure}", report.faults[0]);
            self.failures.push(failure);
        }
    }

    fn print(&self, since: Instant) {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_seconds = used.tv_sec as f64 + used.tv_nsec as f64 / 1e9;
        println!(
            "{} seeds, {} connections, {} complete ({} of {} that nothing touched), {} excused, {} without a last FIN, {} given up by smoltcp, {} bytes compared, {} virtual seconds in {:.1} s; {cpu_seconds:.1} CPU seconds, {:.0} connections each",
            self.seeds,
            self.connections,
            self.complete,
            self.ordinary_complete,
            self.ordinary,
            self.excused,
            self.unrepeated_fins,
            self.neglected,
            self.bytes,
            self.seconds,
            since.elapsed().as_secs_f64(),
            self.connections as f64 / cpu_seconds
        );
        println!("causes {:?}", self.causes);
        println!("drops {:?}", self.drops);
    }

    #[track_caller]
    fn assert_well(&self) {
        assert!(self.failures.is_empty(), "{}", self.failures.join("\n\n"));
        let (fins, neglected, connections) = (self.unrepeated_fins, self.neglected, self.connections);
        assert!(
            fins <= 3 + connections / 1000,
            "{fins} FINs were lost for good on {connections} connections"
        );
        assert!(
            neglected <= 3 + connections / 1000,
            "smoltcp gave up {neglected} of {connections} connections"
        );
        // What nothing touches comes to its end, but for what the two bounds above count.
        let lacking = self.ordinary - self.ordinary_complete;
        assert!(
            lacking <= 3 + self.ordinary / 1000,
            "{lacking} of {} connections are not complete that nothing touched",
            self.ordinary
        );
    }
}

/// Runs `count` seeds from `first`, or as many as there is time for, on every processor. Some failures end it.
fn run_seeds(first: u64, count: Option<u64>, until: Option<Instant>, kind: Kind) -> Total {
    let since = Instant::now();
    let most_failures = variable("FAILURES").unwrap_or(3) as usize;
    let capture = std::env::var_os("CAPTURE").map(PathBuf::from);
    let next = AtomicU64::new(first);
    let total = Mutex::new(Total::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let is_over = count.is_some_and(|count| seed - first >= count)
                || until.is_some_and(|until| Instant::now() >= until)
                || total.lock().expect("no panic").failures.len() >= most_failures;
            if is_over {
                return;
            }
            let scenario = kind.draw(seed);
            let report = shrink::run(&scenario, capture.as_deref());
            let failure = (!report.faults.is_empty())
                .then(|| format!("again: {}\n{}", kind.again(seed), shrink::explain(&scenario)));
            let mut total = total.lock().expect("no panic");
            total.add(seed, report, failure);
            if until.is_some() && total.seeds.is_multiple_of(TOLD_EVERY) {
                total.print(since);
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let total = total.into_inner().expect("no panic");
    total.print(since);
    total
}

/// The seeds that the environment asks for, or `usual` of them.
fn sweep_of(kind: Kind, usual: u64) -> Total {
    let first = variable("SEED").unwrap_or(1);
    let count = variable("SEEDS").unwrap_or(if variable("SEED").is_some() { 1 } else { usual });
    println!("seeds {first}..{}", first + count);
    let total = run_seeds(first, Some(count), None, kind);
    total.assert_well();
    assert!(
        total.complete > total.connections / 2,
        "most connections must come to their end"
    );
    total
}

#[test]
fn sweep() {
    let total = sweep_of(Kind::Payload, SWEEP);
    assert_eq!(total.connections as u64, total.seeds * CONNECTIONS as u64);
}

/// Servers speak first, and are chosen before a client has said anything.
#[test]
fn handshake_sweep() {
    sweep_of(Kind::Bound(Binding::Handshake), BOUND);
}

/// Both ends shake hands with each other.
#[test]
fn syn_sweep() {
    sweep_of(Kind::Bound(Binding::Syn), BOUND);
}

/// Every connection is inspected and rewritten, both ways; what the ends read is compared with what they must read.
#[test]
fn rewritten_sweep() {
    let total = sweep_of(Kind::Rewritten(Binding::Payload), REWRITTEN);
    let dropped = |name: &str| total.drops.get(name).copied().unwrap_or(0);
    assert!(
        dropped("out_of_order") > 0,
        "segments out of order must have been refused"
    );
}

/// What `fuzz sim` has found, each with the connection that had the fault.
#[test]
fn seeds_that_had_a_fault() {
    let seeds = [
        // 81: a segment beyond the window passed, was taken, and no ACK was believed any more.
        26_000_001_035,
        // 64: a late ACK with a closed window overtook a FIN, which smoltcp then never repeats; its client had all.
        26_000_006_179,
        // 80: a header came behind the wait for it, to a server that is told no client, and began with 80, a `P`.
        27_000_005_132,
        // 76: a damaged ACK had its receiver asked, and smoltcp, which had ceased to send in a window that was once closed, was not
        // seen to: an acknowledgement that it does not look at counted as taken.
        28_000_014_069,
        // 24: a late RST of the connection before had a number in the window of the next from that port, and smoltcp believed it.
        29_000_008_859,
        // Two hosts whose connection was over answered each other's RSTs by RSTs, without end.
        1_882_961_163_059_320,
        // 60: the only ACK of the server's last segment came with bytes that it had, so it was not looked at, and smoltcp, whose
        // window had been closed once, did not repeat that segment.
        1_882_963_993_166_554,
        // 83: a RST that answered a late segment of the connection before passed for one of the next, whose host then took every
        // RST for a question.
        1_882_985_935_676_365,
        // 47: smoltcp ceased to repeat behind a window that was closed once; the RST of the idle timeout, lost at one end, had it
        // go on at the other.
        1_882_987_310_354_525,
        // 64: its server was switched off when it had acknowledged all, and its application had not read all.
        1_883_249_470_090_659,
        // 2: its copy was given up, its server's SYN-ACK was lost for 15 s, and then one of its repetitions.
        1_883_261_118_721_318,
        // 22: all that its server repeated for 300 s was lost, and so was the RST to its client, which gave up much later.
        1_882_987_821_014_099,
    ];
    for seed in seeds {
        run_seeds(seed, Some(1), None, Kind::Any).assert_well();
    }
}

#[test]
#[ignore = "as long as MINUTES says"]
fn long() {
    let minutes = variable("MINUTES").unwrap_or(1);
    let first = variable("SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1_000_000, |now| now.as_secs() << 20)
    });
    println!("seeds from {first}");
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    let count = variable("SEEDS");
    run_seeds(first, count, Some(until).filter(|_| count.is_none()), Kind::Any).assert_well();
}

#[test]
fn one_seed_gives_one_course_of_events() {
    let scenario = Scenario::from_seed(7, 20);
    let (first, second) = (world::run(&scenario, None), world::run(&scenario, None));
    assert_eq!(first.digest, second.digest);
    let other = world::run(&Scenario::from_seed(8, 20), None);
    assert_ne!(first.digest, other.digest);
}

#[test]
fn every_way_between_the_address_families_is_tried() {
    use scenario::Families;
    let drawn: Vec<_> = (1..=SWEEP).map(|seed| Scenario::from_seed(seed, 1).families).collect();
    for families in [Families::Own, Families::Other, Families::Both] {
        let share = drawn.iter().filter(|one| **one == families).count();
        assert!(share as u64 > SWEEP / 5, "{families:?} in {share} of {SWEEP}");
    }
}
