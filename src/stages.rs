//! Where a core's cycles go, stage by stage: `run --stage-cycles`, `bench cps --stage-cycles`.
//!
//! The graph of a core is generic over [`Stages`]. [`Off`] has no size and does nothing, so that a graph without it is what it
//! would be if this file did not exist. [`Timed`] reads the time stamp counter at each change of stage in one round of
//! [`ROUNDS_PER_LOOK`]; in the others the proxy's node runs the code of [`Off`], and only changes at the ports cost a look at
//! a flag. What reading the counter takes is measured at the start and taken off.
//!
//! ```text
//!   receive ─► parse ─► checksum ─► look_up ─► classify ─► action_… │ rewrite ─► send
//! ```

mod breakdown;

use std::cell::Cell;
use std::rc::Rc;

use e2d2::counters::Reason;
use e2d2::time::Clock;

use crate::report::CounterGroups;
use splice::stage::WorkStage;

pub use breakdown::{Breakdown, Second};

/// One round of so many is timed, in the mean: the distances are random, for what packets a round has may go to and fro with the
/// rounds before it.
pub const ROUNDS_PER_LOOK: u64 = 64;

/// The group of counters of the cycles by stage, in the timed rounds.
pub const CYCLES: &str = "stage_cycles";

/// The group of counters that says what was timed.
pub const LOOKS: &str = "stage_looks";

/// Whether and how cycles are counted by stage. Clones are the same; they belong to one core.
pub trait Stages: Clone + 'static {
    /// For a core with this clock.
    fn new(clock: &Clock) -> Self;

    /// A round begins.
    fn begin_round(&self);

    /// Whether the stages of this round are timed: in others [`Off`] may take the place of these.
    fn is_timed(&self) -> bool;

    /// The stage before has ended, this one begins.
    fn enter(&self, stage: WorkStage);

    /// So many packets have come in.
    fn received(&self, packets: usize);

    /// The round has ended.
    fn end_round(&self);

    /// Adds what was counted to the groups [`CYCLES`] and [`LOOKS`]; nothing if nothing is.
    fn count(&self, groups: &mut CounterGroups);
}

/// Nothing is counted.
#[derive(Clone, Copy, Debug)]
pub struct Off;

impl Stages for Off {
    #[inline(always)]
    fn new(_clock: &Clock) -> Off {
        Off
    }

    #[inline(always)]
    fn begin_round(&self) {}

    #[inline(always)]
    fn is_timed(&self) -> bool {
        false
    }

    #[inline(always)]
    fn enter(&self, _stage: WorkStage) {}

    #[inline(always)]
    fn received(&self, _packets: usize) {}

    #[inline(always)]
    fn end_round(&self) {}

    fn count(&self, _groups: &mut CounterGroups) {}
}

/// One round of [`ROUNDS_PER_LOOK`] is timed.
#[derive(Clone, Debug)]
pub struct Timed(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    /// Cycles that reading the counter takes.
    reading: u64,
    is_timed: Cell<bool>,
    /// Rounds until the next that is timed.
    left: Cell<u64>,
    random: Cell<u64>,
    since: Cell<u64>,
    stage: Cell<WorkStage>,
    /// Of the round that is timed.
    round: [Cell<u64>; WorkStage::COUNT],
    /// Of the timed rounds in which packets came.
    cycles: [Cell<u64>; WorkStage::COUNT],
    /// Rounds in which packets came, all of them, and those that were timed.
    busy_rounds: Cell<u64>,
    timed_rounds: Cell<u64>,
    /// Packets received in this round.
    of_round: Cell<u64>,
    /// Packets received, in all of them and in those that were timed.
    packets: Cell<u64>,
    timed_packets: Cell<u64>,
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

impl Timed {
    /// Rounds to the next that is timed: 1 to 127, 64 in the mean.
    fn draw_distance(&self) -> u64 {
        // xorshift64: never zero.
        let mut random = self.0.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.0.random.set(random);
        1 + random % (2 * ROUNDS_PER_LOOK - 1)
    }

    /// The stage before has ended at `now`.
    fn charge(&self, now: u64) {
        let inner = &*self.0;
        let passed = now.saturating_sub(inner.since.get()).saturating_sub(inner.reading);
        if let Some(cell) = inner.round.get(inner.stage.get().index()) {
            add(cell, passed);
        }
        inner.since.set(now);
    }
}

impl Stages for Timed {
    fn new(clock: &Clock) -> Timed {
        let reading = (0..1000).map(|_| {
            let before = clock.tsc();
            clock.tsc().saturating_sub(before)
        });
        Timed(Rc::new(Inner {
            clock: *clock,
            reading: reading.min().unwrap_or_default(),
            is_timed: Cell::new(false),
            left: Cell::new(ROUNDS_PER_LOOK),
            random: Cell::new(0x9e37_79b9_7f4a_7c15),
            since: Cell::new(0),
            stage: Cell::new(WorkStage::Rest),
            round: std::array::from_fn(|_| Cell::new(0)),
            cycles: std::array::from_fn(|_| Cell::new(0)),
            busy_rounds: Cell::new(0),
            timed_rounds: Cell::new(0),
            of_round: Cell::new(0),
            packets: Cell::new(0),
            timed_packets: Cell::new(0),
        }))
    }

    #[inline]
    fn begin_round(&self) {
        let inner = &*self.0;
        let left = inner.left.get() - 1;
        inner.left.set(left);
        if left > 0 {
            return;
        }
        inner.left.set(self.draw_distance());
        inner.is_timed.set(true);
        inner.round.iter().for_each(|cell| cell.set(0));
        inner.stage.set(WorkStage::Rest);
        inner.since.set(inner.clock.tsc());
    }

    #[inline]
    fn is_timed(&self) -> bool {
        self.0.is_timed.get()
    }

    #[inline]
    fn enter(&self, stage: WorkStage) {
        if self.is_timed() {
            self.charge(self.0.clock.tsc());
            self.0.stage.set(stage);
        }
    }

    #[inline]
    fn received(&self, packets: usize) {
        add(&self.0.of_round, packets as u64);
    }

    #[inline]
    fn end_round(&self) {
        let inner = &*self.0;
        let is_timed = inner.is_timed.replace(false);
        let packets = inner.of_round.replace(0);
        // A round without packets says where nothing goes.
        if packets == 0 {
            return;
        }
        add(&inner.busy_rounds, 1);
        add(&inner.packets, packets);
        if is_timed {
            self.charge(inner.clock.tsc());
            add(&inner.timed_rounds, 1);
            add(&inner.timed_packets, packets);
            for (sum, of_round) in inner.cycles.iter().zip(&inner.round) {
                add(sum, of_round.get());
            }
        }
    }

    fn count(&self, groups: &mut CounterGroups) {
        let inner = &*self.0;
        let cycles = WorkStage::ALL.iter().zip(&inner.cycles);
        groups.count(CYCLES, cycles.map(|(stage, cycles)| (stage.name(), cycles.get())));
        groups.count(
            LOOKS,
            [
                ("rounds", inner.busy_rounds.get()),
                ("timed_rounds", inner.timed_rounds.get()),
                ("packets", inner.packets.get()),
                ("timed_packets", inner.timed_packets.get()),
            ],
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_in_so_many_is_timed_whatever_goes_to_and_fro() {
        const ROUNDS: u64 = 100 * ROUNDS_PER_LOOK;
        let stages = Timed::new(&Clock::new());
        for round in 0..ROUNDS {
            stages.begin_round();
            stages.enter(WorkStage::Receive);
            // Three kinds of rounds in turn, one of them without packets.
            stages.received([5, 5, 0][(round % 3) as usize]);
            stages.enter([WorkStage::Parse, WorkStage::Rewrite, WorkStage::Timers][(round % 3) as usize]);
            std::thread::yield_now();
            stages.end_round();
        }
        let mut groups = CounterGroups::default();
        stages.count(&mut groups);
        let count = |group, name| {
            groups
                .group(group)
                .and_then(|group| group.count(name))
                .unwrap_or_default()
        };
        let look = |name| count(LOOKS, name);
        let with_packets = ROUNDS.div_ceil(3) + (ROUNDS - 1).div_ceil(3);
        assert_eq!((look("rounds"), look("packets")), (with_packets, 5 * with_packets));
        assert_eq!(look("timed_packets"), 5 * look("timed_rounds"));
        let expected = with_packets / ROUNDS_PER_LOOK;
        assert!(
            (expected / 2..expected * 2).contains(&look("timed_rounds")),
            "{groups:?}"
        );
        for stage in ["parse", "rewrite"] {
            assert!(count(CYCLES, stage) > 0, "yielding takes time: {stage}");
        }
        // Rounds without packets are not charged.
        assert_eq!(count(CYCLES, "timers"), 0);
    }

    #[test]
    fn off_has_no_size() {
        assert_eq!(size_of::<Off>(), 0);
        let mut groups = CounterGroups::default();
        Off.count(&mut groups);
        assert_eq!(groups, CounterGroups::default());
    }
}
