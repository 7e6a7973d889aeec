//! Runs generators on real ports until their load is done: on this thread, or a thread for each core, with one result.
//!
//! A core has a [`Seat`], and at it one or more [`Station`]s: a generator, its port, and where it takes packets from. Seats share
//! two counters: how many clients' loads go on, which servers wait for, and how many seats still have to do with others. So all
//! end together, and a packet that is still under way finds its receiver there.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use e2d2::buffer::BufferPool;
use e2d2::port::Port;
use e2d2::scheduler::{IdleMode, IdlePolicy, Pause, Work};
use e2d2::time::{Clock, Instant};

use crate::generator::Generator;
use crate::report::{PortReport, Report, Second};
use crate::stats::Totals;

/// How a run goes and ends.
#[derive(Clone, Copy, Debug)]
pub struct RunSettings {
    /// How long connections that are open when the load ends may go on.
    pub grace: Duration,
    /// What to do without packets.
    pub idle: IdleMode,
}

/// A generator at its port.
pub struct Station<P: Port, L> {
    /// Names the port in the result.
    pub name: String,
    /// The load, or those who serve it.
    pub generator: Generator<P::Buffer>,
    /// Where its packets come and go.
    pub port: P,
    /// Where it takes packets from.
    pub pool: L,
}

/// What one core runs.
pub struct Seat<P: Port, L> {
    /// CPU to run on; none: wherever the system puts it.
    pub core: Option<usize>,
    /// What it polls, in turn.
    pub stations: Vec<Station<P, L>>,
    /// How it goes and ends.
    pub settings: RunSettings,
}

/// What all seats know of each other. All relaxed: numbers that stand for themselves.
struct Shared<'a> {
    stop: &'a AtomicBool,
    /// Whether there is a client at all: a server alone runs until `stop`.
    has_clients: bool,
    /// Stations whose client still starts connections.
    clients: AtomicUsize,
    /// Seats with connections, or with a load that goes on.
    at_work: AtomicUsize,
}

/// What a seat leaves.
struct Left {
    totals: Totals,
    ports: Vec<PortReport>,
    began: Instant,
    ended: Instant,
    by_second: Vec<Second>,
    is_ready: bool,
}

/// How a run has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The sum over all seats, and each port's part of it.
    pub report: Report,
    /// All that was counted.
    pub totals: Totals,
    /// Whether every generator has found its next hops.
    pub is_ready: bool,
}

/// Runs all seats until their loads are done and their connections too, or `stop` is set; `each_second` sees the sums of every
/// second. Each seat has a thread of its own, which calls `prepare` first and keeps what that returns.
///
/// Servers run until every client is done; without a client, until `stop`. The time counts from when the first load could begin
/// to the end of the last.
///
/// # Errors
/// A sentence: a thread could not be made, was not `prepare`d, or has panicked.
pub fn run<P, L, G>(
    seats: Vec<Seat<P, L>>,
    clock: &Clock,
    stop: &AtomicBool,
    prepare: impl Fn(Option<usize>) -> Result<G, String> + Sync,
    mut each_second: impl FnMut(&Second),
) -> Result<Ended, String>
where
    P: Port + Send,
    P::Buffer: Send,
    L: BufferPool<Buffer = P::Buffer> + Send,
{
    let stations = || seats.iter().flat_map(|seat| &seat.stations);
    let clients = stations().filter(|station| station.generator.client_stats().is_some());
    let clients = clients.count();
    let shared = Shared {
        stop,
        has_clients: clients > 0,
        clients: AtomicUsize::new(clients),
        at_work: AtomicUsize::new(seats.len()),
    };
    let (shared, prepare, count) = (&shared, &prepare, seats.len());
    let (tell, told) = mpsc::channel();
    let left: Vec<Result<Left, String>> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, seat) in seats.into_iter().enumerate() {
            let tell = tell.clone();
            let body = move || {
                let prepared = prepare(seat.core).inspect_err(|_| {
                    // Nobody waits for one that has never begun.
                    shared.stop.store(true, Ordering::Relaxed);
                    shared.at_work.fetch_sub(1, Ordering::Relaxed);
                });
                let _guard = prepared?;
                Ok(sit(seat, clock, shared, &tell))
            };
            let spawned = thread::Builder::new()
                .name(format!("load-{index}"))
                .spawn_scoped(scope, body);
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    shared.at_work.fetch_sub(1, Ordering::Relaxed);
                    log::error!("a thread for a core could not be made: {error}");
                }
            }
        }
        drop(tell);
        let mut passed = Passed::new(count);
        for said in told {
            passed.add(said, &mut each_second);
        }
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Left, String>>| {
            let joined = thread.join();
            joined.unwrap_or_else(|_| Err("a core's thread has panicked".to_owned()))
        };
        threads.into_iter().map(join).collect()
    });
    if left.len() < count {
        return Err("the system has no thread for each core".to_owned());
    }
    sum(left.into_iter().collect::<Result<_, _>>()?)
}

fn sum(left: Vec<Left>) -> Result<Ended, String> {
    let began = left.iter().map(|left| left.began).min();
    let ended = left.iter().map(|left| left.ended).max();
    let (Some(began), Some(ended)) = (began, ended) else {
        return Err("there is no core to run on".to_owned());
    };
    let mut totals = Totals::default();
    let (mut ports, mut by_second, mut is_ready) = (Vec::new(), Vec::<Second>::new(), true);
    for left in left {
        totals.add(&left.totals);
        ports.extend(left.ports);
        is_ready &= left.is_ready;
        for (index, second) in left.by_second.iter().enumerate() {
            match by_second.get_mut(index) {
                Some(sum) => sum.add(second),
                None => by_second.push(*second),
            }
        }
    }
    Ok(Ended {
        report: Report::new(&totals, ended - began, by_second, ports),
        totals,
        is_ready,
    })
}

/// Polls the stations of a seat until all seats are done.
fn sit<P, L>(seat: Seat<P, L>, clock: &Clock, shared: &Shared<'_>, tell: &Sender<Said>) -> Left
where
    P: Port,
    L: BufferPool<Buffer = P::Buffer>,
{
    let Seat {
        mut stations, settings, ..
    } = seat;
    let mut policy = IdlePolicy::new(settings.idle);
    let mut seconds = Seconds::new(clock.now());
    let mut ending = Ending::new(stations.len(), settings.grace);
    let mut now;
    loop {
        now = clock.now();
        let mut work = Work::NONE;
        for Station {
            generator, port, pool, ..
        } in &mut stations
        {
            work += generator.poll(now, port, pool);
        }
        if stations.iter().any(|station| !station.generator.is_ready()) {
            seconds.begin(now);
        }
        if let Some(second) = seconds.tick(now, &stations) {
            // Who listens is there as long as a seat is.
            let _unheard = tell.send(Said::Second(second));
        }
        if ending.is_over(now, &mut stations, shared) {
            break;
        }
        let deadline = || {
            let deadlines = stations.iter().map(|station| station.generator.next_deadline());
            deadlines.flatten().min()
        };
        match policy.after_round(clock.now(), work, deadline) {
            Pause::None => {}
            Pause::Spin => std::hint::spin_loop(),
            Pause::Sleep(length) => thread::sleep(length),
        }
    }
    let _unheard = tell.send(Said::Ended);
    let is_ready = stations.iter().all(|station| station.generator.is_ready());
    let began = seconds.began;
    let by_second = seconds.finish(now, &stations);
    let mut totals = Totals::default();
    let mut ports = Vec::new();
    for Station {
        name,
        generator,
        port,
        pool,
    } in &mut stations
    {
        generator.abort(now, port, pool);
        let of_one = Totals::of(generator);
        ports.push(PortReport::new(name, seat.core, &of_one));
        totals.add(&of_one);
    }
    Left {
        totals,
        ports,
        began,
        ended: now,
        by_second,
        is_ready,
    }
}

/// How far the end of a seat is.
struct Ending {
    /// Whether each station's own load is over.
    is_over: Vec<bool>,
    grace: Duration,
    give_up_at: Option<Instant>,
    is_at_work: bool,
}

impl Ending {
    fn new(stations: usize, grace: Duration) -> Ending {
        Ending {
            is_over: vec![false; stations],
            grace,
            give_up_at: None,
            is_at_work: true,
        }
    }

    /// Whether the seat may be left: everything of its own is over, and no other seat has anything to do; or nothing more is
    /// waited for.
    fn is_over<P: Port, L>(&mut self, now: Instant, stations: &mut [Station<P, L>], shared: &Shared<'_>) -> bool {
        let is_stopped = shared.stop.load(Ordering::Relaxed);
        let served = shared.has_clients && shared.clients.load(Ordering::Relaxed) == 0;
        for (station, was_over) in stations.iter_mut().zip(&mut self.is_over) {
            let generator = &mut station.generator;
            let is_client = generator.client_stats().is_some();
            if is_stopped || served && !is_client {
                generator.stop();
            }
            if !*was_over && generator.is_over(now) {
                *was_over = true;
                if is_client {
                    shared.clients.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        if !self.is_over.iter().all(|is_over| *is_over) {
            return false;
        }
        let give_up_at = *self.give_up_at.get_or_insert(now + self.grace);
        // The servers' connections, too: a proxy between ends its own after the client's.
        if self.is_at_work && stations.iter().all(|station| station.generator.open() == (0, 0)) {
            self.is_at_work = false;
            shared.at_work.fetch_sub(1, Ordering::Relaxed);
        }
        let is_done = shared.at_work.load(Ordering::Relaxed) == 0;
        if now >= give_up_at && self.is_at_work {
            self.is_at_work = false;
            shared.at_work.fetch_sub(1, Ordering::Relaxed);
        }
        is_done || now >= give_up_at
    }
}

/// What a seat says while it runs.
enum Said {
    Second(Second),
    Ended,
}

/// The seconds of which not every seat has spoken.
struct Passed {
    seats: usize,
    /// By number: how many seats have spoken, and their sum.
    waiting: Vec<(usize, Second)>,
    /// Numbers that have been passed on.
    done: usize,
}

impl Passed {
    fn new(seats: usize) -> Passed {
        Passed {
            seats,
            waiting: Vec::new(),
            done: 0,
        }
    }

    fn add(&mut self, said: Said, each_second: &mut impl FnMut(&Second)) {
        match said {
            Said::Second(second) => {
                let index = (second.second as usize).saturating_sub(1);
                while self.waiting.len() <= index {
                    self.waiting.push((0, Second::default()));
                }
                let (spoken, sum) = &mut self.waiting[index];
                *spoken += 1;
                sum.add(&second);
            }
            Said::Ended => self.seats -= 1,
        }
        while let Some((spoken, sum)) = self.waiting.get(self.done)
            && *spoken >= self.seats.max(1)
        {
            each_second(sum);
            self.done += 1;
        }
    }
}

/// Differences by second.
struct Seconds {
    began: Instant,
    next: Instant,
    before: Second,
    passed: Vec<Second>,
}

impl Seconds {
    fn new(now: Instant) -> Seconds {
        Seconds {
            began: now,
            next: now + Duration::from_secs(1),
            before: Second::default(),
            passed: Vec::new(),
        }
    }

    fn begin(&mut self, now: Instant) {
        (self.began, self.next) = (now, now + Duration::from_secs(1));
    }

    fn tick<P: Port, L>(&mut self, now: Instant, stations: &[Station<P, L>]) -> Option<Second> {
        if now < self.next {
            return None;
        }
        self.next += Duration::from_secs(1);
        Some(self.take(stations))
    }

    fn finish<P: Port, L>(mut self, now: Instant, stations: &[Station<P, L>]) -> Vec<Second> {
        // Of the last second only a part has passed, unless nothing has.
        if now + Duration::from_secs(1) > self.next {
            self.take(stations);
        }
        self.passed
    }

    fn take<P: Port, L>(&mut self, stations: &[Station<P, L>]) -> Second {
        let mut sum = Second::default();
        stations.iter().for_each(|station| sum.add(&so_far(&station.generator)));
        let before = std::mem::replace(&mut self.before, sum);
        let second = Second {
            second: self.passed.len() as u64 + 1,
            started: sum.started - before.started,
            completed: sum.completed - before.completed,
            accepted: sum.accepted - before.accepted,
            failed: sum.failed - before.failed,
            open: sum.open,
            retransmitted: sum.retransmitted - before.retransmitted,
            bytes: sum.bytes - before.bytes,
        };
        self.passed.push(second);
        second
    }
}

fn so_far<B: e2d2::buffer::PacketBuffer>(generator: &Generator<B>) -> Second {
    let mut sum = Second::default();
    if let Some(stats) = generator.client_stats() {
        sum.started = stats.connections.started;
        sum.completed = stats.connections.completed;
        sum.failed = stats.connections.failed_in_all();
        sum.open = stats.connections.open();
        sum.retransmitted = stats.traffic.retransmitted;
        sum.bytes = stats.traffic.bytes_received;
    }
    if let Some(stats) = generator.server_stats() {
        sum.accepted = stats.connections.started;
        sum.failed += stats.connections.failed_in_all();
        sum.open += stats.connections.open();
        sum.retransmitted += stats.traffic.retransmitted;
        sum.bytes += stats.traffic.bytes_received;
    }
    sum
}
