//! `./build.sh bench scaling`: what a connection costs on one core, and on each of two at once that share what the cores of an
//! engine share. Nothing that one core writes on the packet path is in a cache line that the other writes or reads, so it must
//! cost the same but for what the machine itself shares: caches, memory, and the rest of its work.
//!
//! Each round measures the first alone, the second alone, and both at once, in changing order; a round gives a ratio.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use benchkit::{CpsSettings, Measured};
use proxyengine::report::CounterGroups;
use serde::Serialize;

use crate::device::cli::{Common, TwoCpus};
use crate::device::pairs::{Pairs, Turn};
use crate::device::{BoxError, Conditions, Host, InlineProxy, Member};

/// The proxy of one core and of two at once.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Connections open at once on each core.
    #[arg(long, default_value_t = 10_000)]
    open: u32,
    /// Rounds.
    #[arg(long, default_value_t = 15)]
    rounds: u32,
    /// How long each of the three measurements of a round takes.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// CPU of the second proxy; by default the first, and the first proxy's is the last.
    #[arg(long)]
    second_cpu: Option<usize>,
    #[command(flatten)]
    common: Common,
}

/// Names are those of the JSON.
#[derive(Serialize)]
struct Scaling {
    /// Cycles of a connection on two cores at once by cycles on one, of all slices but the disturbed: what one core's work does to
    /// the other's is what is measured, and no slice is left out for it.
    #[serde(flatten)]
    paired: Pairs,
    /// The ratio that must not be exceeded.
    limit: f64,
    cycles_one: f64,
    cycles_two: f64,
    rounds: usize,
    mis_steered: u64,
    handed_over: u64,
    lost: u64,
    retransmitted: u64,
    failed: u64,
    valid: bool,
    invalid_because: Vec<String>,
}

/// A twentieth more for what the cores of a processor share.
const LIMIT: f64 = 1.05;

/// What a thread is asked.
enum Order {
    Measure(Duration),
    End,
}

/// What it answers.
enum Answer {
    Ready,
    Measured(Box<Measured>),
    Failed(String),
    Ended(Ending),
}

/// What has to be nothing, at the end.
#[derive(Default)]
struct Ending {
    mis_steered: u64,
    handed_over: u64,
    lost: u64,
    retransmitted: u64,
    failed: u64,
}

/// A proxy and its load on a thread of their own.
struct Seat {
    orders: Sender<Order>,
    answers: Receiver<Answer>,
    thread: thread::JoinHandle<()>,
}

/// Returns whether the result is valid, and the ratio within its limit.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    if arguments.rounds < 6 || !(0.05..=60.0).contains(&arguments.seconds) {
        return Err("expected at least 6 --rounds, and --seconds from 0.05 to 60".into());
    }
    let settings = CpsSettings {
        open: arguments.open,
        ..CpsSettings::default()
    };
    let conditions = Conditions::new(settings);
    let cpus = TwoCpus::choose(arguments.common.cpu, arguments.second_cpu)?;
    let host = Host::start_on(2, 1500, &[cpus.proxy, cpus.load])?;
    let mut seats = Vec::new();
    for ((member, name), cpu) in host
        .members(2, &conditions)?
        .into_iter()
        .zip('a'..)
        .zip([cpus.proxy, cpus.load])
    {
        let seat = Seat::take(member, name, cpu, conditions)?;
        // One after the other: each opens rings.
        seat.ready()?;
        seats.push(seat);
    }
    let length = Duration::from_secs_f64(arguments.seconds);
    let mut rounds = Vec::new();
    for round in 0..arguments.rounds {
        rounds.push(measure_round(&seats, length, round % 2 == 0)?);
    }
    let mut ending = Ending::default();
    for seat in seats {
        let of_one = seat.end()?;
        ending.mis_steered += of_one.mis_steered;
        ending.handed_over += of_one.handed_over;
        ending.lost += of_one.lost;
        ending.retransmitted += of_one.retransmitted;
        ending.failed += of_one.failed;
    }
    report(arguments, &rounds, &ending)
}

/// Both cores at once, and one after the other.
fn measure_round(seats: &[Seat], length: Duration, both_first: bool) -> Result<(Turn, Turn), BoxError> {
    let both = || -> Result<Turn, BoxError> {
        for seat in seats {
            seat.order(length)?;
        }
        seats.iter().map(Seat::answer).collect()
    };
    let alone = || -> Result<Turn, BoxError> {
        let measure = |seat: &Seat| {
            seat.order(length)?;
            seat.answer()
        };
        seats.iter().map(measure).collect()
    };
    // Who begins changes, so that a drift of the machine favours neither.
    if both_first {
        let two = both()?;
        return Ok((two, alone()?));
    }
    let one = alone()?;
    Ok((both()?, one))
}

fn report(arguments: &Arguments, rounds: &[(Turn, Turn)], ending: &Ending) -> Result<bool, BoxError> {
    let paired = Pairs::of(rounds);
    let Ending {
        mis_steered,
        handed_over,
        lost,
        retransmitted,
        failed,
    } = *ending;
    let invalid_because = paired.reasons_against([
        ("mis_steered", mis_steered),
        ("handed_over", handed_over),
        ("lost", lost),
        ("retransmitted", retransmitted),
        ("failed", failed),
    ]);
    let scaling = Scaling {
        paired,
        limit: LIMIT,
        cycles_one: paired.cycles[1],
        cycles_two: paired.cycles[0],
        rounds: rounds.len(),
        mis_steered,
        handed_over,
        lost,
        retransmitted,
        failed,
        valid: invalid_because.is_empty(),
        invalid_because,
    };
    println!(
        "a connection costs {:.3} times as much on two cores at once ({:.3} to {:.3}, at most {LIMIT}): {:.0} cycles, and {:.0} on \
         one; {}; {}",
        paired.ratio,
        paired.interval[0],
        paired.interval[1],
        scaling.cycles_two,
        scaling.cycles_one,
        paired.rests_on(),
        paired.verdict(LIMIT, &scaling.invalid_because),
    );
    arguments.common.write(&scaling)?;
    Ok(scaling.valid && paired.ratio <= LIMIT)
}

impl Seat {
    fn take(member: Member, name: char, cpu: usize, conditions: Conditions) -> Result<Seat, BoxError> {
        let (orders, to_do) = mpsc::channel();
        let (tell, answers) = mpsc::channel();
        let body = move || {
            if let Err(error) = sit(member, name, cpu, &conditions, &to_do, &tell) {
                // Who does not listen any more has failed itself.
                let _unheard = tell.send(Answer::Failed(error.to_string()));
            }
        };
        let thread = thread::Builder::new().name(format!("core-{cpu}")).spawn(body)?;
        Ok(Seat {
            orders,
            answers,
            thread,
        })
    }

    fn order(&self, length: Duration) -> Result<(), BoxError> {
        Ok(self
            .orders
            .send(Order::Measure(length))
            .map_err(|_| "a proxy's thread has ended")?)
    }

    /// Waits until the proxy is open.
    fn ready(&self) -> Result<(), BoxError> {
        match self.answers.recv()? {
            Answer::Ready => Ok(()),
            other => Err(other.unexpected()),
        }
    }

    /// What was measured.
    fn answer(&self) -> Result<Measured, BoxError> {
        match self.answers.recv()? {
            Answer::Measured(measured) => Ok(*measured),
            other => Err(other.unexpected()),
        }
    }

    fn end(self) -> Result<Ending, BoxError> {
        // If it has failed it says so below.
        let _is_gone = self.orders.send(Order::End);
        let answer = self.answers.recv()?;
        self.thread.join().map_err(|_| "a proxy's thread has panicked")?;
        match answer {
            Answer::Ended(ending) => Ok(ending),
            other => Err(other.unexpected()),
        }
    }
}

impl Answer {
    /// Why this is no answer to what was asked.
    fn unexpected(self) -> BoxError {
        match self {
            Answer::Failed(sentence) => sentence.into(),
            Answer::Ended(_) => "a proxy's thread has ended".into(),
            Answer::Ready | Answer::Measured(_) => "a proxy's thread answers what was not asked".into(),
        }
    }
}

/// The life of a proxy's thread.
fn sit(
    member: Member,
    name: char,
    cpu: usize,
    conditions: &Conditions,
    orders: &Receiver<Order>,
    tell: &Sender<Answer>,
) -> Result<(), BoxError> {
    e2d2::scheduler::pin_current_thread(cpu)?;
    let (_thread, mut inline) = member.open(name, conditions)?;
    inline.warm_up(&conditions.settings);
    inline.settle();
    tell.send(Answer::Ready)?;
    while let Order::Measure(length) = orders.recv()? {
        // The first tenth brings caches back.
        let end = inline.counter.now() + length / 10;
        inline.run_until(end, |_| false);
        let mut measured = inline.measure(length);
        // The other core's work is no disturbance here.
        measured.counted = measured.quiet;
        tell.send(Answer::Measured(Box::new(measured)))?;
    }
    tell.send(Answer::Ended(ending(&inline, conditions)))?;
    Ok(())
}

fn ending(inline: &InlineProxy, conditions: &Conditions) -> Ending {
    let counters: CounterGroups = inline.device.counters();
    let count = |name| {
        counters
            .group("steering")
            .and_then(|group| group.count(name))
            .unwrap_or(0)
    };
    let result = inline.result(&conditions.settings, &Measured::default());
    Ending {
        mis_steered: count("mis_steered"),
        handed_over: count("handed_over"),
        lost: result.lost,
        retransmitted: result.retransmitted,
        failed: result.failed,
    }
}
