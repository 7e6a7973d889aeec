//! Load and device on two cores: the figure beside the inline one.
//!
//! The load runs on a thread of its own and keeps the device busy; the device's rounds are charged as inline, so what it
//! costs to fetch packets from another core's cache is in, and idle rounds show where the load was not enough.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use e2d2::buffer::BufferPool;
use e2d2::port::Port;
use e2d2::time::{Clock, Instant};

use super::accounts::{Accounts, CycleCounter, DeviceUnderTest};
use super::cps::{CpsResult, CpsSettings, cps_result};
use super::inline::{Arm, Measured, SLICE, Sum};

/// What the two threads tell each other. All relaxed: numbers that stand for themselves.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    pause: AtomicBool,
    completed: AtomicU64,
    held: AtomicU64,
    in_motion: AtomicU64,
    disturbances: AtomicU64,
    reset_latencies: AtomicBool,
}

/// The load's thread.
pub struct LoadThread<P: Port> {
    shared: Arc<Shared>,
    thread: JoinHandle<Vec<Arm<P>>>,
}

impl<P> LoadThread<P>
where
    P: Port + Send + 'static,
    P::Buffer: Send,
{
    /// Starts to poll the arms on a new thread, which calls `prepare` first and keeps what that returns.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start<L, G>(
        arms: Vec<Arm<P>>,
        pool: L,
        clock: Clock,
        prepare: impl FnOnce() -> G + Send + 'static,
    ) -> std::io::Result<LoadThread<P>>
    where
        L: BufferPool<Buffer = P::Buffer> + Send + 'static,
    {
        let shared = Arc::new(Shared::default());
        let there = shared.clone();
        let thread = std::thread::Builder::new().name("load".to_owned()).spawn(move || {
            let _guard = prepare();
            drive(arms, pool, &clock, &there)
        })?;
        Ok(LoadThread { shared, thread })
    }
}

fn drive<P: Port, L: BufferPool<Buffer = P::Buffer>>(
    mut arms: Vec<Arm<P>>,
    mut pool: L,
    clock: &Clock,
    shared: &Shared,
) -> Vec<Arm<P>> {
    let mut turns = 0u32;
    while !shared.stop.load(Ordering::Relaxed) {
        let now = clock.now();
        for arm in &mut arms {
            let _load_is_not_measured = arm.generator.poll(now, &mut arm.port, &mut pool);
        }
        turns = turns.wrapping_add(1);
        // Seldom enough that the shared cache line does not matter.
        if turns.is_multiple_of(64) {
            publish(&mut arms, shared);
        }
        if turns.is_multiple_of(8192) {
            shared.disturbances.store(clock.disturbances(), Ordering::Relaxed);
        }
    }
    arms
}

fn publish<P: Port>(arms: &mut [Arm<P>], shared: &Shared) {
    let (mut completed, mut held, mut open) = (0, 0, 0);
    let (pause, reset) = (
        shared.pause.load(Ordering::Relaxed),
        shared.reset_latencies.swap(false, Ordering::Relaxed),
    );
    for arm in arms {
        arm.generator.set_paused(pause);
        if reset {
            arm.generator.reset_latencies();
        }
        completed += arm
            .generator
            .client_stats()
            .map_or(0, |stats| stats.connections.completed);
        held += u64::from(arm.generator.held());
        open += u64::from(arm.generator.open().0);
    }
    shared.completed.store(completed, Ordering::Relaxed);
    shared.held.store(held, Ordering::Relaxed);
    // A held connection that was reset leaves the list when it is drawn.
    shared.in_motion.store(open.saturating_sub(held), Ordering::Relaxed);
}

/// A device on this thread, its load on another.
pub struct TwoCoreBench<D, P: Port> {
    /// What is measured.
    pub device: D,
    load: LoadThread<P>,
    clock: Clock,
    accounts: Accounts,
}

impl<D: DeviceUnderTest, P: Port> TwoCoreBench<D, P> {
    /// A bench of `device` under a load that has been started.
    pub fn new(device: D, load: LoadThread<P>, clock: Clock) -> TwoCoreBench<D, P> {
        TwoCoreBench {
            device,
            load,
            clock,
            accounts: Accounts::default(),
        }
    }

    /// Opens the connections, waits until ports are used again, measures, ends the load.
    ///
    /// Returns the device and the arms, too, for what else they have counted.
    pub fn cps(mut self, settings: &CpsSettings) -> (CpsResult, D, Vec<Arm<P>>) {
        let open = u64::from(settings.open.saturating_sub(settings.open / 100 + 64));
        let open_by = self.clock.now() + Duration::from_secs(30);
        self.run_until(open_by, |shared| shared.held.load(Ordering::Relaxed) >= open);
        self.run_until(self.clock.now() + settings.time_wait * 3, |_| false);
        self.load.shared.reset_latencies.store(true, Ordering::Relaxed);
        let measured = self.measure(settings.length);
        let counts = self.device.counts();
        self.load.shared.stop.store(true, Ordering::Relaxed);
        let arms = match self.load.thread.join() {
            Ok(arms) => arms,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        (
            cps_result("two-core", &arms, &counts, self.clock.tsc_hz(), settings, &measured),
            self.device,
            arms,
        )
    }

    fn run_until(&mut self, end: Instant, is_enough: impl Fn(&Shared) -> bool) -> Instant {
        loop {
            let now = self.clock.now();
            self.accounts.charge_round(&mut self.device, &self.clock, now);
            if now >= end || is_enough(&self.load.shared) {
                return now;
            }
        }
    }

    /// As [`InlineBench::settle`](super::InlineBench::settle).
    fn settle(&mut self) {
        self.load.shared.pause.store(true, Ordering::Relaxed);
        // The other thread may have to get its turn from the system first.
        let end = self.clock.now() + Duration::from_secs(1);
        self.run_until(self.clock.now() + Duration::from_millis(20), |_| false);
        self.run_until(end, |shared| shared.in_motion.load(Ordering::Relaxed) == 0);
        self.run_until(self.clock.now() + Duration::from_millis(20), |_| false);
    }

    fn measure(&mut self, length: Duration) -> Measured {
        self.settle();
        let (accounts, completed) = (self.accounts, self.completed());
        self.load.shared.pause.store(false, Ordering::Relaxed);
        let mut measured = Measured::default();
        let mut now = self.clock.now();
        let (began, end) = (now, now + length);
        while now < end {
            let disturbances = self.disturbances();
            let (slice_began, accounts, completed) = (now, self.accounts, self.completed());
            now = self.run_until(end.min(now + SLICE * SLICES_TOGETHER), |_| false);
            measured.all.slices += 1;
            if self.disturbances() != disturbances {
                measured.disturbed += 1;
                continue;
            }
            measured.quiet.add(&Sum {
                accounts: self.accounts.since(&accounts),
                completed: self.completed() - completed,
                time: now - slice_began,
                slices: 1,
            });
        }
        self.settle();
        measured.all.accounts = self.accounts.since(&accounts);
        measured.all.completed = self.completed() - completed;
        measured.all.time = now - began;
        if measured.quiet.slices == 0 {
            measured.quiet = measured.all;
        }
        measured
    }

    fn completed(&self) -> u64 {
        self.load.shared.completed.load(Ordering::Relaxed)
    }

    /// Of both threads: a load that stands still leaves the device idle.
    fn disturbances(&self) -> u64 {
        self.clock.disturbances() + self.load.shared.disturbances.load(Ordering::Relaxed)
    }
}

/// The numbers of the other thread arrive a little late: slices are longer than inline, so that it does not matter.
const SLICES_TOGETHER: u32 = 20;
