//! Load and device on two cores: the figure beside the inline one.
//!
//! The load runs on a thread of its own, or in another process, and keeps the device busy; the device's rounds are charged as
//! inline, so what it costs to fetch packets from another core's cache is in, and idle rounds show where the load was not
//! enough.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use e2d2::buffer::BufferPool;
use e2d2::port::Port;
use e2d2::time::{Clock, Instant};

use crate::accounts::{Accounts, CycleCounter, DeviceUnderTest, RoundWork};
use crate::cps::{CpsResult, CpsSettings, cps_result};
use crate::distance::Distance;
use crate::inline::{Arm, Measured, SLICE, Sliced, Sum};
use crate::load::{Exchange, LoadOrders, LoadStatus, LoadTotals, RemoteLoad, drive};
use crate::undisturbed::{Absence, Watch};

/// What the two threads tell each other. All relaxed: numbers that stand for themselves.
#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    is_paused: AtomicBool,
    asks_system: AtomicBool,
    resets: AtomicU8,
    completed: AtomicU64,
    held: AtomicU64,
    in_motion: AtomicU64,
    disturbances: AtomicU64,
    contentions: AtomicU64,
}

/// The load's thread.
pub struct LoadThread {
    shared: Arc<Shared>,
    thread: JoinHandle<LoadTotals>,
}

impl LoadThread {
    /// Starts to poll the arms on a new thread, which calls `prepare` first and keeps what that returns.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start<P, L, G>(
        mut arms: Vec<Arm<P>>,
        mut pool: L,
        clock: Clock,
        prepare: impl FnOnce() -> G + Send + 'static,
    ) -> std::io::Result<LoadThread>
    where
        P: Port + Send + 'static,
        P::Buffer: Send,
        L: BufferPool<Buffer = P::Buffer> + Send + 'static,
    {
        let shared = Arc::new(Shared::default());
        let mut there = shared.clone();
        let thread = std::thread::Builder::new().name("load".to_owned()).spawn(move || {
            let _guard = prepare();
            let absences = drive(&mut arms, &mut pool, &clock, &mut there);
            LoadTotals {
                absences,
                ..LoadTotals::of(&arms)
            }
        })?;
        Ok(LoadThread { shared, thread })
    }
}

impl Exchange for Arc<Shared> {
    fn exchange(&mut self, status: LoadStatus) -> LoadOrders {
        self.completed.store(status.completed, Ordering::Relaxed);
        self.held.store(status.held, Ordering::Relaxed);
        self.in_motion.store(status.in_motion, Ordering::Relaxed);
        self.disturbances.store(status.disturbances, Ordering::Relaxed);
        self.contentions.store(status.contentions, Ordering::Relaxed);
        LoadOrders {
            is_paused: self.is_paused.load(Ordering::Relaxed),
            is_over: self.is_over.load(Ordering::Relaxed),
            resets: self.resets.load(Ordering::Relaxed),
            asks_system: self.asks_system.load(Ordering::Relaxed),
        }
    }
}

impl RemoteLoad for LoadThread {
    fn order(&mut self, orders: LoadOrders) {
        self.shared.is_paused.store(orders.is_paused, Ordering::Relaxed);
        self.shared.is_over.store(orders.is_over, Ordering::Relaxed);
        self.shared.resets.store(orders.resets, Ordering::Relaxed);
        self.shared.asks_system.store(orders.asks_system, Ordering::Relaxed);
    }

    fn status(&mut self) -> LoadStatus {
        LoadStatus {
            completed: self.shared.completed.load(Ordering::Relaxed),
            held: self.shared.held.load(Ordering::Relaxed),
            in_motion: self.shared.in_motion.load(Ordering::Relaxed),
            disturbances: self.shared.disturbances.load(Ordering::Relaxed),
            contentions: self.shared.contentions.load(Ordering::Relaxed),
        }
    }

    fn finish(self) -> Result<LoadTotals, String> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(totals) => Ok(totals),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// A device on this thread, its load elsewhere.
pub struct TwoCoreBench<D, R> {
    /// What is measured.
    pub device: D,
    load: R,
    clock: Clock,
    accounts: Accounts,
    orders: LoadOrders,
    watch: Watch,
    /// To the load's core, if that is watched.
    distance: Option<Distance>,
    /// What the last round did.
    last: RoundWork,
}

/// What [`TwoCoreBench::latencies`] has measured.
pub struct Waited<D> {
    /// What happened in the measured time.
    pub sum: Sum,
    /// When the device's core was away in it.
    pub absences: Vec<Absence>,
    /// The device.
    pub device: D,
    /// What the load has counted.
    pub load: LoadTotals,
}

impl<D: DeviceUnderTest, R: RemoteLoad> TwoCoreBench<D, R> {
    /// A bench of `device` under a load that has been started.
    pub fn new(device: D, load: R, clock: Clock) -> TwoCoreBench<D, R> {
        TwoCoreBench {
            device,
            load,
            clock,
            accounts: Accounts::default(),
            orders: LoadOrders::default(),
            watch: Watch::default(),
            distance: None,
            last: RoundWork::default(),
        }
    }

    /// The same bench, which sees to it that the two cores are near each other where it can: what is measured while they are
    /// not is no part of the figure of those that are alone.
    #[must_use]
    pub fn with_distance(self, distance: Distance) -> Self {
        TwoCoreBench {
            distance: Some(distance),
            ..self
        }
    }

    /// Opens the connections, waits until ports are used again, measures, ends the load; `mode` is the result's name for how
    /// the load is connected.
    ///
    /// Returns the device and what the load has counted, too.
    ///
    /// # Errors
    /// A sentence, if the load has ended by itself.
    pub fn cps(mut self, mode: &'static str, settings: &CpsSettings) -> Result<(CpsResult, D, LoadTotals), String> {
        self.orders.asks_system = true;
        self.load.order(self.orders);
        let open = u64::from(settings.open.saturating_sub(settings.open / 100 + 64));
        let open_by = self.clock.now() + settings.time_to_open();
        self.run_until(open_by, |status| status.held >= open);
        self.run_until(self.clock.now() + settings.time_wait * 3, |_| false);
        self.reset_latencies();
        let measured = self.measure(settings.length);
        let counts = self.device.counts();
        let totals = self.load.finish()?;
        let result =
            cps_result(mode, &totals, &counts, self.clock.tsc_hz(), settings, &measured).with_structures(&self.device);
        Ok((result, self.device, totals))
    }

    /// Lets an open-loop load go on for `warm_up` and measures its latencies for `length` after that.
    ///
    /// # Errors
    /// A sentence, if the load has ended by itself.
    pub fn latencies(mut self, warm_up: Duration, length: Duration) -> Result<Waited<D>, String> {
        let began = self.run_until(self.clock.now() + warm_up, |_| false);
        let (accounts, status) = (self.accounts, self.load.status());
        self.reset_latencies();
        self.watch.take();
        let ended = self.run_until(began + length, |_| false);
        let sum = Sum {
            accounts: self.accounts.since(&accounts),
            completed: self.load.status().completed - status.completed,
            time: ended - began,
            slices: 1,
        };
        Ok(Waited {
            sum,
            absences: self.watch.take(),
            device: self.device,
            load: self.load.finish()?,
        })
    }

    fn reset_latencies(&mut self) {
        self.orders.resets = self.orders.resets.wrapping_add(1);
        self.load.order(self.orders);
    }

    fn set_paused(&mut self, is_paused: bool) {
        self.orders.is_paused = is_paused;
        self.load.order(self.orders);
    }

    fn run_until(&mut self, end: Instant, is_enough: impl Fn(&LoadStatus) -> bool) -> Instant {
        loop {
            // Asking another process costs a system call, which is not the device's.
            for _ in 0..64 {
                let now = self.clock.now();
                self.watch.begin_turn(now, self.last.moved());
                self.last = self.accounts.charge_round(&mut self.device, &self.clock, now);
                if now >= end {
                    return now;
                }
            }
            if is_enough(&self.load.status()) {
                return self.clock.now();
            }
        }
    }

    /// As [`InlineBench::settle`](crate::InlineBench::settle).
    fn settle(&mut self) {
        self.set_paused(true);
        // The other side may have to get its turn from the system first.
        let end = self.clock.now() + Duration::from_secs(1);
        self.run_until(self.clock.now() + Duration::from_millis(20), |_| false);
        self.run_until(end, |status| status.in_motion == 0);
        self.run_until(self.clock.now() + Duration::from_millis(20), |_| false);
    }

    /// Measures in parts, between which the load rests and the cores are brought near each other.
    fn measure(&mut self, length: Duration) -> Measured {
        let slice = SLICE * SLICES_TOGETHER;
        let parts = length.div_duration_f64(PART).ceil().max(1.0) as u32;
        let mut measured = Measured::with_room((length * MOST_TIMES, slice));
        self.settle();
        for _ in 0..MOST_TIMES {
            for _ in 0..parts {
                self.measure_part(&mut measured, (length / parts, slice));
            }
            if measured.is_enough() {
                break;
            }
        }
        measured.finish()
    }

    /// From one settled state to the next.
    fn measure_part(&mut self, measured: &mut Measured, lengths: (Duration, Duration)) {
        let clock = self.clock;
        let began_near = self
            .distance
            .as_ref()
            .is_none_or(|distance| distance.bring_near(&clock));
        let (accounts, completed) = (self.accounts, self.load.status().completed);
        self.set_paused(false);
        let mut now = clock.now();
        let began = now;
        measured.go_on(self, &mut now, lengths);
        self.settle();
        let completed = self.load.status().completed - completed;
        let is_near = began_near && self.distance.as_ref().is_none_or(|distance| distance.is_near(&clock));
        measured.end_part((self.accounts.since(&accounts), completed, now - began), is_near);
    }
}

impl<D: DeviceUnderTest, R: RemoteLoad> Sliced for TwoCoreBench<D, R> {
    fn go_on(&mut self, end: Instant) -> Instant {
        self.run_until(end, |_| false)
    }

    fn so_far(&mut self) -> (Accounts, u64) {
        (self.accounts, self.load.status().completed)
    }

    /// Of both sides: a load that stands still leaves the device idle.
    fn disturbances(&mut self) -> u64 {
        self.clock.disturbances() + self.load.status().disturbances
    }

    fn contentions_of_load(&mut self) -> u64 {
        self.load.status().contentions
    }

    fn fixed_work(&self) -> u64 {
        self.clock.fixed_work()
    }
}

/// A measurement goes on for up to so many times its length while somebody else uses a core nearly always, or the host leaves the
/// cores far from each other, which it does for up to a minute.
const MOST_TIMES: u32 = 6;

/// How long the load goes on before it rests and it is looked where the host has put the cores: shorter than it leaves them
/// there.
const PART: Duration = Duration::from_millis(500);

/// The numbers of the other side arrive a little late: slices are longer than inline, so that it does not matter.
const SLICES_TOGETHER: u32 = 4;
