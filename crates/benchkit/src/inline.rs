//! The loop that alternates load and device.

use std::time::Duration;

use e2d2::buffer::BufferPool;
use e2d2::port::Port;
use e2d2::time::Instant;
use serde::Serialize;
use trafficengine::Generator;

use crate::accounts::{Accounts, CycleCounter, DeviceUnderTest};
use crate::contention::most_if_alone;

/// A generator and the port it loads.
pub struct Arm<P: Port> {
    /// The load.
    pub generator: Generator<P::Buffer>,
    /// Its end of the cable to the device.
    pub port: P,
}

/// Length of the pieces that a measurement consists of; those in which the core was taken away, or somebody else used it, are
/// left out. Shorter than the system's time slices, so that undisturbed ones are left on a busy machine; asking about it
/// takes some 40 µs.
pub(super) const SLICE: Duration = Duration::from_millis(1);

/// A measurement goes on for up to so many times its length while somebody else uses the core nearly always.
const MOST_TIMES: u32 = 3;

/// The part of all slices that a figure must rest on to be valid.
pub const LEAST_SHARE: f64 = 0.1;

/// Fewer slices (or less than a tenth of all) are no figure: the load may have stood still in some of them, as a host that
/// takes a core away tells nobody.
const FEWEST: usize = 20;

/// How often it is looked whether somebody else uses the core: as shortly as they do, but not so often that it costs much.
const LOOK_EVERY: Duration = Duration::from_micros(200);

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

/// On how many slices a figure rests. Field names are those of the JSON of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Coverage {
    /// All slices, those in which the core was taken away included.
    pub slices: u32,
    /// Those that the figure is of.
    pub slices_counted: u32,
    /// Their part of all; 0 without any.
    pub slices_counted_share: f64,
}

impl Coverage {
    /// Of several measurements together.
    pub fn of<'a>(measured: impl IntoIterator<Item = &'a Measured>) -> Coverage {
        let mut sum = Coverage::default();
        for one in measured {
            sum.slices += one.all.slices;
            // Where all were disturbed the figure is of those, and rests on none.
            sum.slices_counted += one.counted.slices.min(one.all.slices.saturating_sub(one.disturbed));
        }
        sum.slices_counted_share = f64::from(sum.slices_counted) / f64::from(sum.slices.max(1));
        sum
    }

    /// Whether the figure rests on enough slices to be judged: a tenth of them.
    pub fn is_enough(&self) -> bool {
        self.slices_counted_share >= LEAST_SHARE
    }
}

/// What was measured between two points in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Everything between the two settled states, so that whole connections are counted: for packets.
    pub all: Sum,
    /// The slices in which the core was not taken away. Everything, if it was in each.
    pub quiet: Sum,
    /// Of these, the slices that count for cycles: those in which nobody else used the core or the load's, and that was near; if
    /// these are too few to say anything, all in which it was near, and if these are, too, all.
    pub counted: Sum,
    /// Slices in which nobody else used the core or the load's, and that was near.
    pub slices_alone: u32,
    /// Slices in which the core was taken away.
    pub disturbed: u32,
    /// Slices at whose part's beginning or end the load's core was far.
    pub far: u32,
    slices: Vec<Slice>,
    /// The slices of parts that have ended.
    ended: usize,
}

/// A slice in which the core was not taken away.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slice {
    sum: Sum,
    /// The most that the fixed work took before, in between and after.
    fixed_work: u64,
    /// Whether the load's core was near.
    is_near: bool,
    /// Whether nobody else was found to use the load's core.
    is_load_alone: bool,
}

/// A bench as slices see it: here with the load in turn, elsewhere with the load on another core.
pub(super) trait Sliced {
    /// Goes on until `end`; returns the time.
    fn go_on(&mut self, end: Instant) -> Instant;

    /// The device's rounds and the connections that the clients have completed, since the beginning.
    fn so_far(&mut self) -> (Accounts, u64);

    /// How often a core that matters has been taken away.
    fn disturbances(&mut self) -> u64;

    /// How often somebody else was found to use the load's core, if it is another.
    fn contentions_of_load(&mut self) -> u64 {
        0
    }

    /// Cycles that the fixed work takes just now on the device's core.
    fn fixed_work(&self) -> u64;
}

impl Slice {
    /// What `bench` does from `now` until `end`, which moves the time on; nothing if the core was taken away in it.
    fn of(bench: &mut impl Sliced, now: &mut Instant, end: Instant) -> Option<Slice> {
        let (disturbances, contentions) = (bench.disturbances(), bench.contentions_of_load());
        let mut fixed_work = bench.fixed_work();
        // A load on another core goes on during the fixed work: both looks at what it has completed come after one.
        let began = *now;
        let (accounts, completed) = bench.so_far();
        while *now < end {
            *now = bench.go_on(end.min(*now + LOOK_EVERY));
            fixed_work = fixed_work.max(bench.fixed_work());
        }
        let (accounts_then, completed_then) = bench.so_far();
        let sum = Sum {
            accounts: accounts_then.since(&accounts),
            completed: completed_then - completed,
            time: *now - began,
            slices: 1,
        };
        (bench.disturbances() == disturbances).then_some(Slice {
            sum,
            fixed_work,
            is_near: true,
            is_load_alone: bench.contentions_of_load() == contentions,
        })
    }
}

impl Measured {
    /// Nothing yet, with room for all slices of length `slice` in `length`: memory is not asked for while it is measured.
    pub(super) fn with_room((length, slice): (Duration, Duration)) -> Measured {
        Measured {
            slices: Vec::with_capacity(length.as_nanos().div_ceil(slice.as_nanos()) as usize),
            ..Measured::default()
        }
    }

    /// Measures slices of length `slice` for `length` from `now` on, which moves the time on.
    pub(super) fn go_on(&mut self, bench: &mut impl Sliced, now: &mut Instant, (length, slice): (Duration, Duration)) {
        let end = *now + length;
        while *now < end {
            self.all.slices += 1;
            let slice_ends = end.min(*now + slice);
            match Slice::of(bench, now, slice_ends) {
                Some(slice) => self.add_quiet(slice),
                None => self.disturbed += 1,
            }
        }
    }

    /// Ends a part that began in a settled state and ended in one: what came of it between the two, and whether the load's
    /// core was near.
    pub(super) fn end_part(&mut self, (accounts, completed, time): (Accounts, u64, Duration), is_near: bool) {
        self.all.accounts.add(&accounts);
        self.all.completed += completed;
        self.all.time += time;
        let slices = &mut self.slices[self.ended..];
        slices.iter_mut().for_each(|slice| slice.is_near = is_near);
        self.far += if is_near { 0 } else { slices.len() as u32 };
        self.ended = self.slices.len();
    }

    fn add_quiet(&mut self, slice: Slice) {
        self.quiet.add(&slice.sum);
        self.slices.push(slice);
    }

    /// All that was measured.
    pub(super) fn finish(mut self) -> Measured {
        if self.quiet.slices == 0 {
            self.quiet = self.all;
        }
        let alone = Sum::of(self.slices_alone());
        let near = Sum::of(self.slices.iter().filter(|slice| slice.is_near));
        let least = FEWEST.min(self.slices.len() / 10).max(1) as u32;
        let enough = [alone, near].into_iter().find(|sum| sum.slices >= least);
        self.counted = enough.unwrap_or(self.quiet);
        self.slices_alone = alone.slices;
        self
    }

    /// Whether enough slices had the core to themselves to say what it takes.
    pub(super) fn is_enough(&self) -> bool {
        self.slices_alone().count() as f64 >= f64::from(self.all.slices) * LEAST_SHARE
    }

    /// How many slices the figures rest on.
    pub fn coverage(&self) -> Coverage {
        Coverage::of([self])
    }

    fn slices_alone(&self) -> impl Iterator<Item = &Slice> {
        let least = self.slices.iter().map(|slice| slice.fixed_work).min();
        let most = most_if_alone(least.unwrap_or_default());
        let slices = self.slices.iter();
        slices.filter(move |slice| slice.is_near && slice.is_load_alone && slice.fixed_work <= most)
    }

    /// Busy cycles per connection of each slice in which the core was not taken away, in order of time.
    pub fn cycles_of_slices(&self) -> impl Iterator<Item = u32> + '_ {
        self.slices.iter().filter_map(|Slice { sum, .. }| {
            let cycles = sum.accounts.busy_cycles.checked_div(sum.completed)?;
            Some(cycles.min(u64::from(u32::MAX)) as u32)
        })
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

    /// Runs for `length`, from one settled state to another, and adds up what happened in undisturbed slices. Up to three
    /// times as long, if somebody else nearly always uses the core.
    pub fn measure(&mut self, length: Duration) -> Measured {
        self.settle();
        let (accounts, completed) = (self.accounts, self.completed());
        let mut now = self.counter.now();
        let began = now;
        let mut measured = Measured::with_room((length * MOST_TIMES, SLICE));
        for _ in 0..MOST_TIMES {
            measured.go_on(self, &mut now, (length, SLICE));
            if measured.is_enough() {
                break;
            }
        }
        self.settle();
        let completed = self.completed() - completed;
        measured.end_part((self.accounts.since(&accounts), completed, now - began), true);
        measured.finish()
    }
}

impl<D, P, L, C> Sliced for InlineBench<D, P, L, C>
where
    D: DeviceUnderTest,
    P: Port,
    L: BufferPool<Buffer = P::Buffer>,
    C: CycleCounter,
{
    fn go_on(&mut self, end: Instant) -> Instant {
        self.run_until(end, |_| false)
    }

    fn so_far(&mut self) -> (Accounts, u64) {
        (self.accounts, self.completed())
    }

    fn disturbances(&mut self) -> u64 {
        self.counter.disturbances()
    }

    fn fixed_work(&self) -> u64 {
        self.counter.fixed_work()
    }
}

impl Sum {
    fn of<'a>(slices: impl Iterator<Item = &'a Slice>) -> Sum {
        let mut sum = Sum::default();
        slices.for_each(|slice| sum.add(&slice.sum));
        sum
    }

    pub(super) fn add(&mut self, other: &Sum) {
        self.accounts.add(&other.accounts);
        self.completed += other.completed;
        self.time += other.time;
        self.slices += other.slices;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` slices of ten connections each.
    fn slices(count: usize, cycles: u64, (is_near, is_load_alone): (bool, bool)) -> impl Iterator<Item = Slice> {
        let accounts = Accounts {
            busy_cycles: 10 * cycles,
            ..Accounts::default()
        };
        let sum = Sum {
            accounts,
            completed: 10,
            time: SLICE,
            slices: 1,
        };
        std::iter::repeat_n(
            Slice {
                sum,
                fixed_work: 100,
                is_near,
                is_load_alone,
            },
            count,
        )
    }

    #[test]
    fn slices_count_that_are_enough_to_say_something() {
        let (alone, near, far) = ((true, true), (true, false), (false, true));
        // Alone, near and beside others, far; what counts, and its cycles for each connection.
        for (counts, counted, cycles) in [
            ([20, 500, 400], 20, 2_000),
            ([19, 500, 400], 519, 2_963),
            ([1, 4, 20], 5, 2_800),
            ([0, 18, 400], 418, 3_956),
            ([0, 0, 3], 3, 4_000),
            ([1, 0, 5], 1, 2_000),
            ([10, 0, 0], 10, 2_000),
        ] {
            let mut measured = Measured::default();
            for (count, cycles, kind) in [
                (counts[0], 2_000, alone),
                (counts[1], 3_000, near),
                (counts[2], 4_000, far),
            ] {
                slices(count, cycles, kind).for_each(|slice| measured.add_quiet(slice));
            }
            let measured = measured.finish();
            assert_eq!(measured.slices_alone as usize, counts[0], "{counts:?}");
            assert_eq!(measured.counted.slices, counted, "{counts:?}");
            let found = measured.counted.accounts.busy_cycles / measured.counted.completed;
            assert_eq!(found, cycles, "{counts:?}");
        }
    }

    #[test]
    fn without_a_quiet_slice_everything_counts() {
        let mut measured = Measured::default();
        measured.all.completed = 7;
        (measured.all.slices, measured.disturbed) = (4, 4);
        let measured = measured.finish();
        assert_eq!(measured.counted.completed, 7);
        assert_eq!(
            (measured.coverage().slices_counted, measured.coverage().is_enough()),
            (0, false)
        );
    }
}
