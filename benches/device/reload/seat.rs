//! A proxy and its load on a thread of their own, at full speed or paced.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use benchkit::LoadTotals;
use proxyengine::engine::Watch;
use trafficengine::stats::{Connections, Failure};

use crate::device::proxy::Reloads;
use crate::device::{BoxError, Conditions, InlineProxy, Member};

/// How long a resting proxy's rounds are apart.
const REST: Duration = Duration::from_micros(50);

/// What a thread is asked.
enum Order {
    /// Complete as many connections as can be, for so long.
    Hurry(Duration),
    /// Complete so many a second, until it is told otherwise.
    Pace(f64),
    /// Complete none, until it is told otherwise, and then say what there was.
    Rest,
    End,
}

/// What it answers.
enum Answer {
    Ready(Box<Watch>),
    PerSecond(f64),
    Ended(Box<Ending>),
    Failed(String),
}

/// What came of all connections, and of the rounds with an order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending {
    pub(crate) completed: u64,
    /// Connections a second, while it was paced.
    pub(crate) per_second: f64,
    pub(crate) failed: u64,
    pub(crate) reset: u64,
    pub(crate) lost: u64,
    pub(crate) retransmitted: u64,
    /// Of the rounds until it rested.
    pub(crate) reloads: Reloads,
    /// Of those since.
    pub(crate) at_rest: Reloads,
}

pub(crate) struct Seat {
    orders: Sender<Order>,
    answers: Receiver<Answer>,
    thread: thread::JoinHandle<()>,
}

impl Seat {
    pub(crate) fn take(
        member: Member,
        name: char,
        cpu: usize,
        conditions: Conditions,
    ) -> Result<(Seat, Watch), BoxError> {
        let (orders, to_do) = mpsc::channel();
        let (tell, answers) = mpsc::channel();
        let body = move || {
            if let Err(error) = sit(member, (name, cpu), &conditions, &to_do, &tell) {
                // Who does not listen any more has failed itself.
                let _unheard = tell.send(Answer::Failed(error.to_string()));
            }
        };
        let thread = thread::Builder::new().name(format!("core-{cpu}")).spawn(body)?;
        let seat = Seat {
            orders,
            answers,
            thread,
        };
        match seat.answers.recv()? {
            Answer::Ready(watch) => Ok((seat, *watch)),
            other => Err(other.unexpected()),
        }
    }

    fn order(&self, order: Order) -> Result<(), BoxError> {
        Ok(self.orders.send(order).map_err(|_| "a proxy's thread has ended")?)
    }

    pub(crate) fn hurry(&self, length: Duration) -> Result<(), BoxError> {
        self.order(Order::Hurry(length))
    }

    /// How many connections a second that were.
    pub(crate) fn per_second(&self) -> Result<f64, BoxError> {
        match self.answers.recv()? {
            Answer::PerSecond(per_second) => Ok(per_second),
            other => Err(other.unexpected()),
        }
    }

    pub(crate) fn pace(&self, per_second: f64) -> Result<(), BoxError> {
        self.order(Order::Pace(per_second))
    }

    pub(crate) fn rest(&self) -> Result<(), BoxError> {
        self.order(Order::Rest)
    }

    pub(crate) fn end(self) -> Result<Ending, BoxError> {
        self.order(Order::End)?;
        let answer = self.answers.recv()?;
        self.thread.join().map_err(|_| "a proxy's thread has panicked")?;
        match answer {
            Answer::Ended(ending) => Ok(*ending),
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
            Answer::Ready(_) | Answer::PerSecond(_) => "a proxy's thread answers what was not asked".into(),
        }
    }
}

/// The life of a proxy's thread.
fn sit(
    member: Member,
    (name, cpu): (char, usize),
    conditions: &Conditions,
    orders: &Receiver<Order>,
    tell: &Sender<Answer>,
) -> Result<(), BoxError> {
    e2d2::scheduler::pin_current_thread(cpu)?;
    let (_thread, mut inline) = member.open(name, conditions)?;
    inline.warm_up(&conditions.settings);
    let watch = inline.device.watch().ok_or("a proxy that shows nothing")?;
    tell.send(Answer::Ready(Box::new(watch)))?;
    let (mut paced, mut reloads) = ((0, Duration::ZERO), Reloads::default());
    let mut next = None;
    loop {
        set_paused(&mut inline, true);
        let Some(order) = next.take().or_else(|| orders.try_recv().ok()) else {
            inline.turn();
            thread::sleep(REST);
            continue;
        };
        match order {
            Order::Hurry(length) => tell.send(Answer::PerSecond(hurry(&mut inline, length)))?,
            Order::Pace(per_second) => {
                let ((completed, time), order) = pace(&mut inline, per_second, orders);
                paced = (paced.0 + completed, paced.1 + time);
                next = Some(order);
            }
            Order::Rest => reloads = inline.device.take_reloads(),
            Order::End => {
                tell.send(Answer::Ended(Box::new(ending(&mut inline, paced, reloads))))?;
                return Ok(());
            }
        }
    }
}

fn set_paused(inline: &mut InlineProxy, is_paused: bool) {
    inline
        .arms
        .iter_mut()
        .for_each(|arm| arm.generator.set_paused(is_paused));
}

fn hurry(inline: &mut InlineProxy, length: Duration) -> f64 {
    set_paused(inline, false);
    let (began, completed) = (inline.counter.now(), inline.completed());
    let ended = inline.run_until(began + length, |_| false);
    (inline.completed() - completed) as f64 / (ended - began).as_secs_f64()
}

/// Draws no more connections than `per_second` allows, until there is another order; how many were completed in what time.
fn pace(inline: &mut InlineProxy, per_second: f64, orders: &Receiver<Order>) -> ((u64, Duration), Order) {
    let (began, before) = (inline.counter.now(), inline.completed());
    loop {
        let time = inline.turn() - began;
        let completed = inline.completed() - before;
        set_paused(inline, completed as f64 > per_second * time.as_secs_f64());
        if let Ok(order) = orders.try_recv() {
            return ((completed, time), order);
        }
    }
}

fn ending(inline: &mut InlineProxy, (completed, time): (u64, Duration), reloads: Reloads) -> Ending {
    inline.settle();
    let totals = LoadTotals::of(&inline.arms);
    let of_clients = inline.arms.iter().filter_map(|arm| arm.generator.client_stats());
    let of_servers = inline.arms.iter().filter_map(|arm| arm.generator.server_stats());
    let connections = of_clients
        .map(|stats| &stats.connections)
        .chain(of_servers.map(|stats| &stats.connections));
    let resets = |connections: &Connections| connections.failed(Failure::Reset) + connections.failed(Failure::Refused);
    Ending {
        completed,
        per_second: completed as f64 / time.as_secs_f64().max(1e-9),
        failed: totals.failed,
        reset: connections.map(resets).sum(),
        lost: inline.device.lost(),
        retransmitted: totals.retransmitted,
        reloads,
        at_rest: inline.device.take_reloads(),
    }
}
