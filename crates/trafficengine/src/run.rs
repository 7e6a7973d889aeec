//! Runs a generator on a real port until its load is done.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2d2::buffer::BufferPool;
use e2d2::port::Port;
use e2d2::scheduler::{IdleMode, IdlePolicy, Pause};
use e2d2::time::{Clock, Instant};

use crate::generator::Generator;
use crate::report::{Report, Second};

/// How a run goes and ends.
#[derive(Clone, Copy, Debug)]
pub struct RunSettings {
    /// How long connections that are open when the load ends may go on.
    pub grace: Duration,
    /// What to do without packets.
    pub idle: IdleMode,
}

/// Runs until the load is done and its connections too, or `stop` is set; `each_second` sees the numbers of every second.
///
/// A server without a client's load runs until `stop`. The time counts from when the load could begin.
pub fn run<P, L>(
    generator: &mut Generator<P::Buffer>,
    port: &mut P,
    pool: &mut L,
    clock: &Clock,
    settings: RunSettings,
    stop: &AtomicBool,
    mut each_second: impl FnMut(&Second),
) -> Report
where
    P: Port,
    L: BufferPool<Buffer = P::Buffer>,
{
    let mut policy = IdlePolicy::new(settings.idle);
    let mut seconds = Seconds::new(clock.now());
    let mut give_up_at: Option<Instant> = None;
    let mut now;
    loop {
        now = clock.now();
        let work = generator.poll(now, port, pool);
        if !generator.is_ready() {
            seconds.begin(now);
        }
        if let Some(second) = seconds.tick(now, generator) {
            each_second(&second);
        }
        if stop.load(Ordering::Relaxed) {
            generator.stop();
        }
        let is_over = generator.is_over(now);
        if is_over {
            let give_up_at = *give_up_at.get_or_insert(now + settings.grace);
            // The servers' connections, too: a proxy between ends its own after the client's.
            if generator.open() == (0, 0) || now >= give_up_at {
                break;
            }
        }
        match policy.after_round(clock.now(), work, || generator.next_deadline()) {
            Pause::None => {}
            Pause::Spin => std::hint::spin_loop(),
            Pause::Sleep(length) => std::thread::sleep(length),
        }
    }
    let took = now - seconds.began;
    let by_second = seconds.finish(now, generator);
    generator.abort(now, port, pool);
    Report::new(generator, took, by_second)
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

    fn tick<B: e2d2::buffer::PacketBuffer>(&mut self, now: Instant, generator: &Generator<B>) -> Option<Second> {
        if now < self.next {
            return None;
        }
        self.next += Duration::from_secs(1);
        Some(self.take(generator))
    }

    fn finish<B: e2d2::buffer::PacketBuffer>(mut self, now: Instant, generator: &Generator<B>) -> Vec<Second> {
        // Of the last second only a part has passed, unless nothing has.
        if now + Duration::from_secs(1) > self.next {
            self.take(generator);
        }
        self.passed
    }

    fn take<B: e2d2::buffer::PacketBuffer>(&mut self, generator: &Generator<B>) -> Second {
        let sum = totals(generator);
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

fn totals<B: e2d2::buffer::PacketBuffer>(generator: &Generator<B>) -> Second {
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
