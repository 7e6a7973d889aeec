//! The loop that alternates load and device.

use std::time::Duration;

use e2d2::buffer::BufferPool;
use e2d2::port::Port;
use e2d2::time::Instant;

use super::accounts::{Accounts, CycleCounter, DeviceUnderTest};
use crate::generator::Generator;

/// A generator and the port it loads.
pub struct Arm<P: Port> {
    /// The load.
    pub generator: Generator<P::Buffer>,
    /// Its end of the cable to the device.
    pub port: P,
}

/// Length of the pieces that a measurement consists of; those in which the core was taken away are left out. Shorter than
/// the system's time slices, so that undisturbed ones are left on a busy machine; asking about it takes some 20 µs.
pub(super) const SLICE: Duration = Duration::from_millis(1);

/// Load and device in one thread.
pub struct InlineBench<D, P: Port, L, C> {
    /// What is measured.
    pub device: D,
    /// The client's arm and the server's, or one arm with both roles.
    pub arms: Vec<Arm<P>>,
    /// Where the arms take packets from.
    pub pool: L,
    /// The time and the cycles.
    pub counter: C,
    accounts: Accounts,
}

/// What happened in some slices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// The device's rounds.
    pub accounts: Accounts,
    /// Connections completed.
    pub completed: u64,
    /// Time.
    pub time: Duration,
    /// Slices.
    pub slices: u32,
}

/// What was measured between two points in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Everything between the two settled states, so that whole connections are counted: for packets.
    pub all: Sum,
    /// The slices in which the core was not taken away: for cycles. Everything, if it was in each.
    pub quiet: Sum,
    /// Slices in which the core was taken away.
    pub disturbed: u32,
    /// Busy cycles per connection of each undisturbed slice, in order of time.
    pub cycles_of_slices: Vec<u32>,
}

impl Measured {
    /// Nothing yet, with room for as many slices of length `slice` as `length` has: memory is not asked for meanwhile.
    pub(super) fn for_slices(length: Duration, slice: Duration) -> Self {
        let slices = length.as_nanos().div_ceil(slice.as_nanos()) as usize;
        Measured {
            cycles_of_slices: Vec::with_capacity(slices),
            ..Measured::default()
        }
    }

    /// Adds an undisturbed slice.
    pub(super) fn add_quiet(&mut self, slice: &Sum) {
        self.quiet.add(slice);
        if let Some(cycles) = slice.accounts.busy_cycles.checked_div(slice.completed) {
            self.cycles_of_slices.push(cycles.min(u64::from(u32::MAX)) as u32);
        }
    }
}

impl<D, P, L, C> InlineBench<D, P, L, C>
where
    D: DeviceUnderTest,
    P: Port,
    L: BufferPool<Buffer = P::Buffer>,
    C: CycleCounter,
{
    /// A bench that has not begun.
    pub fn new(device: D, arms: Vec<Arm<P>>, pool: L, counter: C) -> InlineBench<D, P, L, C> {
        InlineBench {
            device,
            arms,
            pool,
            counter,
            accounts: Accounts::default(),
        }
    }

    /// Takes the bench apart, to put the load on another core.
    pub fn into_parts(self) -> (D, Vec<Arm<P>>, L, C) {
        (self.device, self.arms, self.pool, self.counter)
    }

    /// One turn: every arm moves a burst, then the device has its round.
    pub fn turn(&mut self) -> Instant {
        let now = self.counter.now();
        for arm in &mut self.arms {
            let _load_is_not_measured = arm.generator.poll(now, &mut arm.port, &mut self.pool);
        }
        self.accounts.charge_round(&mut self.device, &self.counter, now);
        now
    }

    /// Turns until `end`, or until `is_enough` says so; returns the time.
    pub fn run_until(&mut self, end: Instant, is_enough: impl Fn(&[Arm<P>]) -> bool) -> Instant {
        loop {
            let now = self.turn();
            if now >= end || is_enough(&self.arms) {
                return now;
            }
        }
    }

    /// Draws nothing more and turns until every connection is held, so that the bench can be left alone for a while.
    pub fn settle(&mut self) {
        self.arms.iter_mut().for_each(|arm| arm.generator.set_paused(true));
        // Some turns more than it takes packets to pass; a device that loses them is not waited for.
        let end = self.counter.now() + Duration::from_secs(1);
        self.run_until(end, |arms| {
            let open = |arm: &Arm<P>| arm.generator.open().0.saturating_sub(arm.generator.held());
            arms.iter().all(|arm| open(arm) == 0)
        });
        for _ in 0..64 {
            self.turn();
        }
        self.arms.iter_mut().for_each(|arm| arm.generator.set_paused(false));
    }

    /// Connections that the clients have completed.
    pub fn completed(&self) -> u64 {
        let stats = self.arms.iter().filter_map(|arm| arm.generator.client_stats());
        stats.map(|stats| stats.connections.completed).sum()
    }

    /// The device's rounds since the beginning.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Runs for `length`, from one settled state to another, and adds up what happened in undisturbed slices.
    pub fn measure(&mut self, length: Duration) -> Measured {
        self.settle();
        let (accounts, completed) = (self.accounts, self.completed());
        let mut measured = Measured::for_slices(length, SLICE);
        let mut now = self.counter.now();
        let (began, end) = (now, now + length);
        while now < end {
            let slice = self.slice(&mut now, end);
            measured.all.slices += 1;
            match slice {
                Some(slice) => measured.add_quiet(&slice),
                None => measured.disturbed += 1,
            }
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

    /// One slice; nothing if the core was taken away in it.
    fn slice(&mut self, now: &mut Instant, end: Instant) -> Option<Sum> {
        let (began, accounts, completed) = (*now, self.accounts, self.completed());
        let disturbances = self.counter.disturbances();
        *now = self.run_until(end.min(began + SLICE), |_| false);
        let sum = Sum {
            accounts: self.accounts.since(&accounts),
            completed: self.completed() - completed,
            time: *now - began,
            slices: 1,
        };
        (self.counter.disturbances() == disturbances).then_some(sum)
    }
}

impl Sum {
    pub(super) fn add(&mut self, other: &Sum) {
        self.accounts.add(&other.accounts);
        self.completed += other.completed;
        self.time += other.time;
        self.slices += other.slices;
    }
}
