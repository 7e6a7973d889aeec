//! One worker thread: a scheduler that runs one core's program and obeys the engine's orders between its rounds.
//!
//! Orders come as an atomic that the worker looks at once per round ([`Control`]); what it has counted stands on its
//! [`Board`]; its start and its end are told through a channel ([`Message`]). A worker that panics says so and ends; it takes
//! no other thread with it.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use e2d2::scheduler::{IdleMode, Priority, Scheduler, Task, Usage, pin_current_thread};
use e2d2::time::{Clock, Instant};
use splice::tally::Tally;

use super::board::{self, Board};
use crate::config::CoreId;
use crate::report::{CoreReport, CoreServer, CounterGroups};

/// How long a worker goes on after all connections have ended, so that what it has sent last gets out of its queues.
const FLUSH: Duration = Duration::from_millis(5);

/// How long a worker that others need waits for them after its own end; they end as it does.
const LINGER: Duration = Duration::from_secs(2);

/// How long ending all connections may take: sixteen in each round, and four RSTs for each that the port must take.
const FINISH: Duration = Duration::from_secs(20);

/// What runs on a core, as its thread sees it between two rounds. The task that does the work stands beside it.
pub trait Program {
    /// Takes no more connections from now on.
    fn begin_drain(&mut self);

    /// Begins to end all connections, in the rounds that follow.
    fn finish(&mut self);

    /// Whether all connections have ended since [`finish`](Self::finish).
    fn is_finished(&self) -> bool;

    /// Whether other workers still need this one, to send what they have sent. It is not let go until then.
    fn is_needed(&self) -> bool {
        false
    }

    /// Connections open now.
    fn open_connections(&self) -> u64;

    /// Bytes of all structures that hold connections, empty places included, by structure.
    fn state_bytes(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Of these, bytes that came into use since the start and are kept.
    fn state_grown(&self) -> u64 {
        0
    }

    /// The part of them that is taken.
    fn state_in_use(&self) -> u64 {
        0
    }

    /// How many servers it knows something of.
    fn server_count(&self) -> usize {
        0
    }

    /// Writes what it knows of the servers from this one on, in the order of the configuration, as many as there is room for.
    fn servers(&self, first: usize, known: &mut [CoreServer]) {
        let _knows_none = (first, known);
    }

    /// What it counts by listener, pool and server while others read it.
    fn tally(&self) -> Option<Arc<Tally>> {
        None
    }

    /// Counts there from now on, and leaves where it has counted until now ([`Proxy::swap_tally`](splice::Proxy::swap_tally)).
    fn swap_tally(&mut self, _other: &mut Arc<Tally>) {}

    /// Looks whether it is to go on with other settings, which may have another board; called after every round. Whether an
    /// order was there.
    fn follow(&mut self, _now: Instant, _shown: &mut Shown) -> bool {
        false
    }

    /// Sends to the log what it has learned since; called after every round.
    fn tell_news(&mut self, now: Instant) {
        let _nothing_new = now;
    }

    /// Packets that it has received from its ports, and packets that it has sent by them.
    fn packets(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Adds everything it has counted: the same names in the same order each time, so that groups that were filled before need no
    /// memory.
    fn count(&self, groups: &mut CounterGroups);

    /// Everything it has counted.
    fn counters(&self) -> CounterGroups {
        let mut groups = CounterGroups::default();
        self.count(&mut groups);
        groups
    }
}

/// What a worker thread is made of.
pub(super) struct Parts<G, P, T> {
    /// Outlives the others.
    pub(super) guard: G,
    /// What the worker talks to.
    pub(super) program: P,
    /// What it schedules.
    pub(super) task: T,
}

/// What the engine wants of all workers.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Phase {
    /// Serve.
    Run = 0,
    /// Serve what is open.
    Drain = 1,
    /// End.
    End = 2,
}

/// The engine's orders. Relaxed accesses: they guard no other data.
#[derive(Debug, Default)]
pub(super) struct Control {
    phase: AtomicU8,
}

impl Control {
    /// Orders only ever go forward.
    pub(super) fn order(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }
}

/// What a worker says when it starts and when it ends.
#[derive(Debug)]
pub(super) enum Message {
    /// It is about to run its first round. From then on its numbers are here.
    Ready(Arc<Board>),
    /// It could not start, for the reason in the sentence.
    Failed(String),
    /// It has ended in order; its ports and buffers are free, and its last numbers are on its board.
    Ended,
    /// It has panicked.
    Panicked(String),
}

/// What a worker is.
#[derive(Clone)]
pub(super) struct Identity {
    /// Its place among the workers.
    pub(super) index: usize,
    /// The core it is tied to.
    pub(super) core: CoreId,
}

/// Runs a worker to its end on the calling thread. `make` builds its parts on this thread, tied to its core.
pub(super) fn run<G, P: Program, T: Task + 'static>(
    identity: &Identity,
    clock: &Clock,
    idle: IdleMode,
    control: &Control,
    messages: &Sender<(usize, Message)>,
    make: impl FnOnce() -> Result<Parts<G, P, T>, String>,
) {
    // A receiver that is gone has ended the engine already: there is nobody left to tell.
    let tell = |message| _ = messages.send((identity.index, message));
    let body = || {
        pin_current_thread(identity.core.index()).map_err(|error| error.to_string())?;
        let Parts { guard, program, task } = make()?;
        let mut scheduler = Scheduler::new(idle);
        scheduler.add(Priority::PACKETS, task);
        let shown = Shown::new(identity.core, clock, &program);
        tell(Message::Ready(shown.board()));
        serve(clock, control, scheduler, program, shown);
        drop(guard);
        Ok(())
    };
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => tell(Message::Ended),
        Ok(Err(reason)) => tell(Message::Failed(reason)),
        Err(panic) => tell(Message::Panicked(message_of(&*panic))),
    }
}

fn serve<P: Program>(clock: &Clock, control: &Control, mut scheduler: Scheduler, mut program: P, mut shown: Shown) {
    let stop = AtomicBool::new(false);
    let mut followed = Followed::default();
    scheduler.run(clock, &stop, |now, usage| {
        if followed.follow(now, control.phase.load(Ordering::Relaxed), &mut program) {
            stop.store(true, Ordering::Relaxed);
        }
        program.follow(now, &mut shown);
        program.tell_news(now);
        shown.write_if_due(now, usage, &program);
    });
    shown.write(clock.now(), scheduler.usage(), &program);
}

/// A core's numbers as others see them, which are written anew every 5 ms. A worker does that by itself; who runs a core's
/// program without one, as benches do, does it in the worker's place.
pub struct Shown {
    core: CoreId,
    tsc_hz: u64,
    board: Arc<Board>,
    /// Filled in place: it has room for all.
    report: CoreReport,
    /// The server that is written next.
    next_server: usize,
    due: Instant,
    longest: LongestRound,
}

/// The longest round of the last one to two seconds: a reader that looks once a second misses none.
#[derive(Debug, Default)]
struct LongestRound {
    of_this_second: Duration,
    of_last_second: Duration,
    until: Instant,
}

impl LongestRound {
    /// With the longest since this was called last.
    fn with(&mut self, longest: Duration, now: Instant) -> Duration {
        if now >= self.until {
            self.of_last_second = std::mem::take(&mut self.of_this_second);
            self.until = now + Duration::from_secs(1);
        }
        self.of_this_second = self.of_this_second.max(longest);
        self.of_this_second.max(self.of_last_second)
    }
}

impl Shown {
    /// The numbers of a program before its first round.
    pub fn new(core: CoreId, clock: &Clock, program: &(impl Program + ?Sized)) -> Self {
        let mut report = CoreReport {
            core: core.0,
            servers: vec![CoreServer::default(); program.server_count()],
            ..CoreReport::default()
        };
        fill(&mut report, &Usage::default(), clock.tsc_hz(), program);
        program.servers(0, &mut report.servers);
        Self {
            core,
            tsc_hz: clock.tsc_hz(),
            board: Arc::new(Board::new(report.clone(), program.tally())),
            report,
            next_server: 0,
            due: Instant::ZERO,
            longest: LongestRound::default(),
        }
    }

    /// Writes them if it is time, but of servers only those whose turn it is.
    pub fn write_if_due(&mut self, now: Instant, usage: &mut Usage, program: &(impl Program + ?Sized)) {
        if now < self.due {
            return;
        }
        let longest = self.longest.with(usage.take_longest(), now);
        self.report.longest_round_ns = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        let count = self.report.servers.len();
        let first = if self.next_server < count { self.next_server } else { 0 };
        self.next_server = count.min(first + board::SERVERS_AT_ONCE);
        self.write_with(first..self.next_server, now, usage, program);
    }

    /// Writes them all.
    pub fn write(&mut self, now: Instant, usage: &Usage, program: &(impl Program + ?Sized)) {
        self.write_with(0..self.report.servers.len(), now, usage, program);
    }

    fn write_with(&mut self, servers: Range<usize>, now: Instant, usage: &Usage, program: &(impl Program + ?Sized)) {
        fill(&mut self.report, usage, self.tsc_hz, program);
        let known = self.report.servers.get_mut(servers.clone());
        program.servers(servers.start, known.unwrap_or_default());
        self.board.write(&self.report, servers, now);
        self.due = now + board::PACE;
    }

    /// Goes on with another board and the room for what stands on it, and leaves there what it had.
    pub(super) fn renew(&mut self, (board, report): &mut (Arc<Board>, CoreReport)) {
        std::mem::swap(&mut self.board, board);
        std::mem::swap(&mut self.report, report);
        (self.next_server, self.due) = (0, Instant::ZERO);
    }

    pub(super) fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    pub(super) fn core(&self) -> CoreId {
        self.core
    }
}

/// How far a worker has followed the orders.
#[derive(Debug, Default)]
struct Followed {
    phase: u8,
    end_by: Option<Instant>,
    flushed_by: Option<Instant>,
}

impl Followed {
    /// Follows the order of this round; whether the worker is to stop.
    fn follow<P: Program>(&mut self, now: Instant, phase: u8, program: &mut P) -> bool {
        if phase == Phase::Run as u8 {
            return false;
        }
        if self.phase == Phase::Run as u8 {
            program.begin_drain();
        }
        self.phase = phase;
        if phase == Phase::Drain as u8 {
            return false;
        }
        let end_by = *self.end_by.get_or_insert_with(|| {
            program.finish();
            now + FINISH
        });
        if self.flushed_by.is_none() && (program.is_finished() || now >= end_by) {
            self.flushed_by = Some(now + FLUSH);
        }
        let flushed = self.flushed_by.filter(|flushed_by| now >= *flushed_by);
        flushed.is_some_and(|flushed_by| !program.is_needed() || now >= flushed_by + LINGER)
    }
}

/// Writes a worker's numbers into a report, but for its servers. One that was filled before has room for them.
fn fill(report: &mut CoreReport, usage: &Usage, tsc_hz: u64, program: &(impl Program + ?Sized)) {
    report.busy_rounds = usage.busy_rounds;
    report.idle_rounds = usage.rounds - usage.busy_rounds;
    report.busy_cycles = usage.busy_cycles(tsc_hz);
    report.busy_ns = u64::try_from(usage.busy.as_nanos()).unwrap_or(u64::MAX);
    report.connections_open = program.open_connections();
    report.counters.set_to_zero();
    program.count(&mut report.counters);
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_round_is_told_for_a_second_at_least_and_two_at_most() {
        let mut longest = LongestRound::default();
        let mut at = |ms, micros| {
            longest
                .with(Duration::from_micros(micros), Instant::from_millis(ms))
                .as_micros()
        };
        assert_eq!((at(0, 5), at(5, 90), at(10, 7), at(999, 7)), (5, 90, 90, 90));
        assert_eq!((at(1000, 8), at(1995, 8)), (90, 90));
        assert_eq!((at(2000, 6), at(3000, 6)), (8, 6));
    }
}
