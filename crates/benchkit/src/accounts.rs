//! Who is charged for which cycles.

use e2d2::time::{Clock, Instant};

use crate::contention::cycles_of_fixed_work;
use crate::quiet::involuntary_switches;

/// What a device did in one round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RoundWork {
    /// Packets received.
    pub received: u32,
    /// Packets transmitted.
    pub sent: u32,
    /// Timers, hand-overs, deferred work and anything else.
    pub other: u32,
}

impl RoundWork {
    /// Packets that came and went, and whatever else was done.
    pub const fn moved(self) -> u32 {
        self.received + self.sent + self.other
    }

    /// Whether the round counts as busy.
    pub const fn is_busy(self) -> bool {
        self.received > 0 || self.sent > 0 || self.other > 0
    }
}

/// What a device has counted since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceCounts {
    /// Packets dropped that should not have been: no buffer, a full queue, a full table.
    pub lost: u64,
    /// Session records lost.
    pub records_lost: u64,
    /// Connections open now.
    pub open: u64,
    /// Bytes of all structures that hold connections, empty places included.
    pub state_bytes: u64,
}

/// A proxy, or anything else that passes the load on.
pub trait DeviceUnderTest {
    /// Does one round: receives at most a burst per port, handles it, sends, works on timers.
    fn round(&mut self, now: Instant) -> RoundWork;

    /// What it has counted so far.
    fn counts(&self) -> DeviceCounts;

    /// Bytes of each structure that holds connections, empty places included; nothing if the device does not say.
    fn state_by_structure(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Where cycles are read. The bench's is the time stamp counter; a test has its own.
pub trait CycleCounter {
    /// Cycles since some start.
    fn cycles(&self) -> u64;

    /// Cycles per second.
    fn hz(&self) -> u64;

    /// The time.
    fn now(&self) -> Instant;

    /// How often the core has been taken away from this thread; what was measured across a change is not the device's.
    fn disturbances(&self) -> u64 {
        0
    }

    /// Cycles that a fixed piece of work takes just now: more than else while somebody uses the core's other thread.
    fn fixed_work(&self) -> u64 {
        0
    }
}

impl CycleCounter for Clock {
    #[inline]
    fn cycles(&self) -> u64 {
        self.tsc()
    }

    fn hz(&self) -> u64 {
        self.tsc_hz()
    }

    #[inline]
    fn now(&self) -> Instant {
        Clock::now(self)
    }

    fn disturbances(&self) -> u64 {
        // Where the system does not say, nothing is left out.
        involuntary_switches().unwrap_or(0)
    }

    fn fixed_work(&self) -> u64 {
        cycles_of_fixed_work(self)
    }
}

/// The sum over many rounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Accounts {
    /// Rounds.
    pub rounds: u64,
    /// Rounds in which packets were received.
    pub receiving_rounds: u64,
    /// Cycles of the rounds in which anything was done.
    pub busy_cycles: u64,
    /// Cycles of all rounds.
    pub all_cycles: u64,
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
}

impl Accounts {
    /// Has the device do one round and charges it; returns what it did. Reading the counter itself is charged, too.
    #[inline]
    pub fn charge_round<D: DeviceUnderTest, C: CycleCounter>(
        &mut self,
        device: &mut D,
        counter: &C,
        now: Instant,
    ) -> RoundWork {
        let before = counter.cycles();
        let work = device.round(now);
        // Another core's counter may lag a little behind after a migration.
        let cycles = counter.cycles().saturating_sub(before);
        self.rounds += 1;
        self.all_cycles += cycles;
        self.received += u64::from(work.received);
        self.sent += u64::from(work.sent);
        if work.received > 0 {
            self.receiving_rounds += 1;
        }
        if work.is_busy() {
            self.busy_cycles += cycles;
        }
        work
    }

    /// What came after `earlier`.
    pub fn since(&self, earlier: &Accounts) -> Accounts {
        Accounts {
            rounds: self.rounds - earlier.rounds,
            receiving_rounds: self.receiving_rounds - earlier.receiving_rounds,
            busy_cycles: self.busy_cycles - earlier.busy_cycles,
            all_cycles: self.all_cycles - earlier.all_cycles,
            received: self.received - earlier.received,
            sent: self.sent - earlier.sent,
        }
    }

    /// Adds another sum.
    pub fn add(&mut self, other: &Accounts) {
        self.rounds += other.rounds;
        self.receiving_rounds += other.receiving_rounds;
        self.busy_cycles += other.busy_cycles;
        self.all_cycles += other.all_cycles;
        self.received += other.received;
        self.sent += other.sent;
    }
}
