//! A hierarchical timer wheel over small integers.
//!
//! Ids are slots of a table that somebody else owns (connections, say); each has at most one timer. The wheel is four
//! levels of 256 slots; an entry is linked into the slot that its deadline falls into and moves down a level when time
//! reaches the slot, at most three times, so everything is O(1). A bitmap per level finds the next occupied slot, hence
//! a far clock jump costs as much as the entries it passes, not as the ticks.
//!
//! ```text
//! level 0  one slot = 1 tick          256 ticks   (0.27 s at 1.05 ms)
//! level 1  one slot = 256 ticks       65 536      (69 s)
//! level 2  one slot = 65 536 ticks    16.8 M      (4.9 h)
//! level 3  one slot = 16.8 M ticks    4.3 G       (52 days)
//! ```
//!
//! Never early: deadlines are rounded up to a tick and the clock down. Late by less than one tick when called that often.
//!
//! A tick is a power of two nanoseconds, so that no division stands between an [`Instant`] and its slot.
//!
//! Budget: 12 bytes per id, allocated once; arming or disarming touches the entry and its neighbours in the list.
//! Re-arming to a later time writes the entry only: it stays where it is and is moved when its old slot comes up.
//! An entry has room for a deadline less than 2^32 ticks ahead ([`TimerWheel::longest`], 52 days); a later one is cut
//! off there, so that nothing is allocated after the start.

use std::time::Duration;

use e2d2::memory::LargeSlice;
use e2d2::time::Instant;

const NIL: u32 = u32::MAX;
/// Marks a `prev` that is not an entry but the head of a slot's list: `HEAD | level << 8 | slot`.
const HEAD: u32 = 1 << 31;

const LEVELS: usize = 4;
const SLOT_BITS: u32 = 8;
const SLOTS: usize = 1 << SLOT_BITS;
const TOP: usize = LEVELS - 1;

/// Entries that one call of [`TimerWheel::expire`] fires or moves: small enough that a burst of packets does not wait
/// long behind it, large enough that a busy core (a few timers per burst) never falls behind.
pub const DEFAULT_BUDGET: usize = 64;

/// 2^20 ns: fine enough for the shortest timer in use (20 ms between two tries), and what one round may take anyway.
const DEFAULT_TICK: Duration = Duration::from_nanos(1 << 20);

#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    next: u32,
    /// `NIL` when not armed, else the entry before or `HEAD | …`.
    prev: u32,
    /// The lower half of the deadline in ticks since the wheel's epoch. The deadline is never before the cursor, nor is the
    /// entry's slot later than it.
    deadline: u32,
}

const _: () = assert!(size_of::<Entry>() == 12);

const IDLE: Entry = Entry {
    next: NIL,
    prev: NIL,
    deadline: 0,
};

/// Timers for the ids `0..capacity`. See the module documentation.
///
/// Owned by one core.
pub struct TimerWheel {
    entries: LargeSlice<Entry>,
    heads: Box<[[u32; SLOTS]; LEVELS]>,
    occupied: [[u64; SLOTS / 64]; LEVELS],
    /// Every tick before this one is done; entries of this tick may still be linked.
    cursor: u64,
    /// A tick is `1 << tick_shift` nanoseconds.
    tick_shift: u32,
    /// Start of the tick after `cursor`: before it, and with the current slots empty, there is nothing to do.
    next_tick_at: u64,
    /// Above level 0, slots that the cursor stands in may be occupied: nothing is linked there, but it may have been there when the
    /// cursor came.
    may_have_reached: bool,
    armed: usize,
    budget: usize,
}

/// The next slot that something is linked in.
#[derive(Clone, Copy)]
struct Event {
    level: usize,
    slot: usize,
    /// First tick of the slot, not before the cursor.
    start: u64,
}

impl TimerWheel {
    /// A wheel for ids below `capacity` with a tick of about 1 ms (2^20 ns), its clock at `now`.
    ///
    /// # Panics
    /// If `capacity` is 2^31 or more.
    pub fn new(capacity: usize, now: Instant) -> TimerWheel {
        TimerWheel::with_tick(capacity, now, DEFAULT_TICK)
    }

    /// A wheel with another resolution: `tick`, rounded up to a power of two nanoseconds.
    ///
    /// # Panics
    /// If `capacity` is 2^31 or more.
    pub fn with_tick(capacity: usize, now: Instant, tick: Duration) -> TimerWheel {
        assert!(
            capacity < HEAD as usize,
            "a timer wheel for {capacity} ids: at most 2^31 - 1 are possible"
        );
        // A tick of more than a day (2^47 ns) serves nobody; the limit keeps the arithmetic below in range.
        let tick_shift = tick.as_nanos().next_power_of_two().trailing_zeros().min(47);
        let cursor = now.as_nanos() >> tick_shift;
        TimerWheel {
            entries: LargeSlice::of(IDLE, capacity),
            heads: Box::new([[NIL; SLOTS]; LEVELS]),
            occupied: [[0; SLOTS / 64]; LEVELS],
            cursor,
            tick_shift,
            next_tick_at: 0,
            may_have_reached: false,
            armed: 0,
            budget: DEFAULT_BUDGET,
        }
    }

    /// Changes how many entries one call of [`expire`](Self::expire) may fire or move (at least one).
    #[cfg(test)]
    fn set_budget(&mut self, budget: usize) {
        self.budget = budget.max(1);
    }

    /// How far ahead a deadline can be: 2^32 - 1 ticks.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.start_of(u64::from(u32::MAX)).as_nanos())
    }

    /// Number of ids.
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Number of armed timers.
    pub fn len(&self) -> usize {
        self.armed
    }

    /// Whether no timer is armed.
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// Bytes of memory held, for the budget per connection.
    pub fn memory(&self) -> usize {
        size_of::<TimerWheel>() + size_of_val(&*self.entries) + size_of_val(&*self.heads)
    }

    /// Asks the processor for the entry of `id`.
    #[inline]
    pub fn prefetch(&self, id: u32) {
        if let Some(entry) = self.entries.get(id as usize) {
            e2d2::prefetch(entry);
        }
    }

    /// Asks for what stands beside the entry of `id` in its list, which [`arm`](Self::arm) writes to if it makes the
    /// deadline an earlier one, and [`disarm`](Self::disarm) always. The entry itself should be in the cache.
    #[inline]
    pub fn prefetch_neighbours(&self, id: u32) {
        if let Some(&Entry { next, prev, .. }) = self.entries.get(id as usize) {
            // A head and the end of a list are no ids.
            self.prefetch(next);
            self.prefetch(prev);
        }
    }

    /// Whether the timer of `id` is armed.
    #[inline]
    pub fn is_armed(&self, id: u32) -> bool {
        self.entries.get(id as usize).is_some_and(|entry| entry.prev != NIL)
    }

    /// When the timer of `id` fires (rounded up to a tick), if it is armed.
    #[cfg(test)]
    fn deadline(&self, id: u32) -> Option<Instant> {
        let entry = self.entries.get(id as usize)?;
        (entry.prev != NIL).then(|| self.start_of(self.deadline_of(entry)))
    }

    /// Arms the timer of `id`, or moves it if it is armed. A deadline that has passed fires with the next `expire`, one
    /// farther ahead than [`longest`](Self::longest) when that is over.
    ///
    /// Moving it later is one write; moving it earlier unlinks it first.
    ///
    /// # Panics
    /// If `id` is not below the capacity.
    #[inline]
    pub fn arm(&mut self, id: u32, deadline: Instant) {
        let latest = self.cursor + u64::from(u32::MAX);
        let deadline = self.tick_at_or_after(deadline).clamp(self.cursor, latest);
        let entry = self.entries[id as usize];
        if entry.prev != NIL {
            if deadline >= self.deadline_of(&entry) {
                self.entries[id as usize].deadline = deadline as u32;
                return;
            }
            self.unlink(id);
        } else {
            self.armed += 1;
        }
        self.link(id, deadline);
    }

    /// Disarms the timer of `id`; nothing happens if it is not armed.
    #[inline]
    pub fn disarm(&mut self, id: u32) {
        if self.is_armed(id) {
            self.unlink(id);
            self.armed -= 1;
        }
    }

    /// Fires the timers whose deadline is not after `now`: each is disarmed and its id given to `fire`, in the order of
    /// their ticks, those of one tick in any order. Work per call is bounded by the budget.
    ///
    /// Returns whether due work was left over; call again soon then. A `now` before an earlier one fires nothing.
    #[inline]
    pub fn expire(&mut self, now: Instant, fire: &mut impl FnMut(u32)) -> bool {
        let mut budget = self.budget;
        while let Some(id) = self.pop_expired(now, &mut budget) {
            fire(id);
        }
        let target = now.as_nanos() >> self.tick_shift;
        budget == 0 && self.next_due(target).is_some()
    }

    /// Fires at most one timer and returns its id: for callers that arm timers while they handle expired ones.
    ///
    /// Each entry that it fires or moves takes one from `budget`; at zero it does nothing. `None` with something left of
    /// the budget says that nothing else is due.
    #[inline]
    pub fn pop_expired(&mut self, now: Instant, budget: &mut usize) -> Option<u32> {
        if now.as_nanos() < self.next_tick_at && !self.has_current() {
            return None;
        }
        let target = now.as_nanos() >> self.tick_shift;
        while *budget > 0 {
            let event = self.next_due(target)?;
            *budget -= 1;
            if let Some(id) = self.take_one(event) {
                return Some(id);
            }
        }
        None
    }

    /// A lower bound of the next deadline: nothing fires before it, and calling `expire` then makes progress.
    ///
    /// `None` if no timer is armed.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.next_event().map(|event| self.start_of(event.start))
    }

    /// The next slot to work on if it is due at `target`. Moves the cursor to it, or to `target` if nothing is due.
    fn next_due(&mut self, target: u64) -> Option<Event> {
        if target < self.cursor {
            return None;
        }
        if self.may_have_reached {
            let reached = self.reached();
            if reached.is_some() {
                return reached;
            }
            self.may_have_reached = false;
        }
        let event = self.next_ahead().filter(|event| event.start <= target);
        self.set_cursor(event.map_or(target, |event| event.start));
        event
    }

    /// Takes the first entry out of the event's slot. It fires (its id is returned) or is linked anew where it belongs.
    fn take_one(&mut self, event: Event) -> Option<u32> {
        let id = self.heads[event.level][event.slot];
        let entry = &mut self.entries[id as usize];
        let (head, next) = (entry.prev, entry.next);
        entry.prev = NIL;
        let deadline = self.deadline_of(&self.entries[id as usize]);
        self.set_head(event.level, event.slot, next);
        if next != NIL {
            self.entries[next as usize].prev = head;
        }
        if deadline <= self.cursor {
            self.armed -= 1;
            return Some(id);
        }
        self.link(id, deadline);
        None
    }

    /// The whole deadline of an armed entry: it is not before the cursor, and less than 2^32 ticks ahead.
    #[inline]
    fn deadline_of(&self, entry: &Entry) -> u64 {
        self.cursor + u64::from(entry.deadline.wrapping_sub(self.cursor as u32))
    }

    fn set_cursor(&mut self, cursor: u64) {
        self.may_have_reached |= (cursor ^ self.cursor) >> SLOT_BITS != 0;
        self.cursor = cursor;
        self.next_tick_at = self.start_of(cursor + 1).as_nanos();
    }

    fn tick_at_or_after(&self, instant: Instant) -> u64 {
        let nanos = instant.as_nanos();
        let part = nanos & ((1 << self.tick_shift) - 1);
        (nanos >> self.tick_shift) + u64::from(part != 0)
    }

    fn start_of(&self, tick: u64) -> Instant {
        Instant::from_nanos(tick.saturating_mul(1 << self.tick_shift))
    }

    /// Whether one of the slots that the cursor stands in is occupied.
    fn has_current(&self) -> bool {
        self.is_occupied(0, slot_of(self.cursor, 0)) || self.may_have_reached && self.reached().is_some()
    }

    /// The earliest occupied slot.
    ///
    /// Entries are linked at the lowest level where deadline and cursor differ, so what is linked at one level lies
    /// within the cursor's slot of the level above: lower levels come first. Slots above level 0 that the cursor itself
    /// stands in have just been reached and are emptied before anything else.
    fn next_event(&self) -> Option<Event> {
        self.reached().or_else(|| self.next_ahead())
    }

    /// The lowest slot above level 0 that the cursor stands in and is not empty yet.
    fn reached(&self) -> Option<Event> {
        (1..LEVELS).find_map(|level| {
            let slot = slot_of(self.cursor, level);
            self.is_occupied(level, slot).then_some(Event {
                level,
                slot,
                start: self.cursor,
            })
        })
    }

    /// The earliest occupied slot, if those are empty.
    fn next_ahead(&self) -> Option<Event> {
        for level in 0..TOP {
            let current = slot_of(self.cursor, level);
            if let Some(slot) = self.first_occupied(level, current) {
                let block = self.cursor & (u64::MAX << (SLOT_BITS * (level as u32 + 1)));
                let start = block | (slot as u64) << (SLOT_BITS * level as u32);
                return Some(Event {
                    level,
                    slot,
                    start: start.max(self.cursor),
                });
            }
        }
        // The top level is a ring: slots before the cursor's belong to the next turn.
        let current = slot_of(self.cursor, TOP);
        let slot = self
            .first_occupied(TOP, current)
            .or_else(|| self.first_occupied(TOP, 0))?;
        let ahead = (slot + SLOTS - current) % SLOTS;
        let shift = SLOT_BITS * TOP as u32;
        Some(Event {
            level: TOP,
            slot,
            start: ((self.cursor >> shift) + ahead as u64) << shift,
        })
    }

    fn is_occupied(&self, level: usize, slot: usize) -> bool {
        self.occupied[level][slot / 64] & (1 << (slot % 64)) != 0
    }

    /// The first occupied slot of `level` at or after `from`.
    fn first_occupied(&self, level: usize, from: usize) -> Option<usize> {
        let words = &self.occupied[level];
        let mut word = words[from / 64] & (u64::MAX << (from % 64));
        for index in from / 64..SLOTS / 64 {
            if word != 0 {
                return Some(index * 64 + word.trailing_zeros() as usize);
            }
            word = *words.get(index + 1)?;
        }
        None
    }

    /// Level and slot for a deadline that is not before the cursor.
    fn place(&self, deadline: u64) -> (usize, usize) {
        let differing = (deadline ^ self.cursor) | 1;
        let level = ((63 - differing.leading_zeros()) / SLOT_BITS) as usize;
        if level < TOP {
            return (level, slot_of(deadline, level));
        }
        let shift = SLOT_BITS * TOP as u32;
        let ahead = (deadline >> shift) - (self.cursor >> shift);
        // Beyond the horizon: the farthest slot, from where it is placed again.
        let ahead = ahead.min(SLOTS as u64 - 1) as usize;
        (TOP, (slot_of(self.cursor, TOP) + ahead) % SLOTS)
    }

    fn link(&mut self, id: u32, deadline: u64) {
        let (level, slot) = self.place(deadline);
        let head = &mut self.heads[level][slot];
        let next = *head;
        *head = id;
        self.occupied[level][slot / 64] |= 1 << (slot % 64);
        if next != NIL {
            self.entries[next as usize].prev = id;
        }
        let prev = HEAD | (level << SLOT_BITS | slot) as u32;
        let entry = &mut self.entries[id as usize];
        *entry = Entry {
            next,
            prev,
            deadline: deadline as u32,
        };
    }

    fn unlink(&mut self, id: u32) {
        let Entry { next, prev, .. } = self.entries[id as usize];
        self.entries[id as usize].prev = NIL;
        if next != NIL {
            self.entries[next as usize].prev = prev;
        }
        if prev & HEAD == 0 {
            self.entries[prev as usize].next = next;
            return;
        }
        self.set_head((prev & !HEAD) as usize >> SLOT_BITS, prev as usize % SLOTS, next);
    }

    /// What is behind the first entry of a slot, which goes, is the first now.
    fn set_head(&mut self, level: usize, slot: usize, next: u32) {
        self.heads[level][slot] = next;
        if next == NIL {
            self.occupied[level][slot / 64] &= !(1 << (slot % 64));
        }
    }
}

#[inline]
fn slot_of(tick: u64, level: usize) -> usize {
    (tick >> (SLOT_BITS * level as u32)) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const TICK: u64 = 1 << 20;

    fn at(tick: u64) -> Instant {
        Instant::from_nanos(tick * TICK)
    }

    fn expired(wheel: &mut TimerWheel, now: Instant) -> Vec<u32> {
        let mut fired = Vec::new();
        while wheel.expire(now, &mut |id| fired.push(id)) {}
        fired
    }

    #[test]
    fn fires_at_the_deadline_and_not_a_nanosecond_before() {
        for ticks in [
            1,
            255,
            256,
            257,
            65_535,
            65_536,
            1 << 24,
            (1 << 24) + 1,
            1 << 31,
            (1 << 32) - 1,
        ] {
            for start in [0, 1, 255, 256, (1 << 24) - 1, (1 << 32) - 1, (1 << 40) + 12_345] {
                let mut wheel = TimerWheel::new(1, at(start));
                let deadline = at(start + ticks);
                wheel.arm(0, deadline);
                assert_eq!(
                    expired(&mut wheel, deadline - Duration::from_nanos(1)),
                    [0; 0],
                    "{start} + {ticks}"
                );
                assert_eq!(expired(&mut wheel, deadline), [0], "{start} + {ticks}");
                assert!(wheel.is_empty() && !wheel.is_armed(0));
            }
        }
    }

    #[test]
    fn deadline_between_ticks_is_rounded_up() {
        let mut wheel = TimerWheel::new(1, Instant::ZERO);
        wheel.arm(0, Instant::from_nanos(TICK + 1));
        assert_eq!(wheel.deadline(0), Some(at(2)));
        assert!(expired(&mut wheel, Instant::from_nanos(2 * TICK - 1)).is_empty());
        assert_eq!(expired(&mut wheel, at(2)), [0]);
    }

    #[test]
    fn passed_deadline_fires_at_once() {
        let mut wheel = TimerWheel::new(2, at(1000));
        wheel.arm(0, Instant::ZERO);
        wheel.arm(1, at(1000));
        let mut fired = expired(&mut wheel, at(1000));
        fired.sort();
        assert_eq!(fired, [0, 1]);
        // Also after the tick has been worked on.
        wheel.arm(1, at(7));
        assert_eq!(expired(&mut wheel, at(1000)), [1]);
    }

    #[test]
    fn later_deadline_is_only_stored_and_earlier_one_moves() {
        let mut wheel = TimerWheel::new(1, Instant::ZERO);
        wheel.arm(0, at(10));
        wheel.arm(0, at(1_000_000));
        assert_eq!(
            wheel.next_deadline(),
            Some(at(10)),
            "a lower bound: the entry has not moved"
        );
        assert!(expired(&mut wheel, at(999_999)).is_empty());
        wheel.arm(0, at(1_000_001));
        wheel.arm(0, at(999_999));
        assert_eq!(expired(&mut wheel, at(999_999)), [0]);
        assert!(expired(&mut wheel, at(2_000_000)).is_empty());
    }

    #[test]
    fn far_jump_costs_the_entries_passed_not_the_ticks() {
        let mut wheel = TimerWheel::new(100, Instant::ZERO);
        for id in 0..100 {
            wheel.arm(id, at(1 + u64::from(id) * 20_000_000));
        }
        // 2^43 ticks: a loop over them would not end in this century.
        let far = at(1 << 43);
        let mut calls = 1;
        let mut fired = 0;
        while wheel.expire(far, &mut |_| fired += 1) {
            calls += 1;
        }
        assert_eq!(fired, 100);
        assert!(calls <= 100 * LEVELS / DEFAULT_BUDGET + 1, "{calls} calls");
        wheel.arm(0, far + Duration::from_secs(1));
        assert!(expired(&mut wheel, far + Duration::from_millis(999)).is_empty());
        assert_eq!(expired(&mut wheel, far + Duration::from_millis(1002)), [0]);
    }

    #[test]
    fn a_clock_that_goes_back_fires_nothing() {
        let mut wheel = TimerWheel::new(1, at(100));
        expired(&mut wheel, at(500));
        wheel.arm(0, at(400));
        assert!(expired(&mut wheel, at(300)).is_empty());
        assert_eq!(expired(&mut wheel, at(500)), [0]);
    }

    #[test]
    fn work_per_call_is_bounded() {
        let mut wheel = TimerWheel::new(1000, Instant::ZERO);
        wheel.set_budget(10);
        for id in 0..1000 {
            wheel.arm(id, at(300));
        }
        let (mut fired, mut calls) = (0, 0);
        loop {
            let before = fired;
            let more = wheel.expire(at(300), &mut |_| fired += 1);
            calls += 1;
            assert!(fired - before <= 10);
            if !more {
                break;
            }
            // Arming in between must not get lost or fire early.
            if calls == 50 {
                wheel.arm(0, at(301));
            }
        }
        assert_eq!(
            (fired, calls),
            (999, 200),
            "1000 moves down a level and 999 shots, 10 per call"
        );
        assert_eq!(expired(&mut wheel, at(301)), [0]);
    }

    /// Entries that were fired or moved until nothing more is due, in calls of at most `budget` each.
    fn steps(wheel: &mut TimerWheel, now: Instant, budget: usize) -> (usize, usize) {
        let (mut fired, mut taken) = (0, 0);
        loop {
            let mut left = budget;
            while wheel.pop_expired(now, &mut left).is_some() {
                fired += 1;
            }
            taken += budget - left;
            if left > 0 {
                return (fired, taken);
            }
        }
    }

    #[test]
    fn a_million_timers_of_one_tick_cost_a_few_steps_in_each_call() {
        const COUNT: u32 = 1_000_000;
        let mut wheel = TimerWheel::new(COUNT as usize, Instant::ZERO);
        // From the third level down: two moves and the shot, for each.
        (0..COUNT).for_each(|id| wheel.arm(id, at(100_000)));
        let mut left = 128;
        assert_eq!(
            wheel.pop_expired(at(100_000), &mut left),
            None,
            "all of it goes into moves"
        );
        assert_eq!((left, wheel.len()), (0, COUNT as usize));
        assert_eq!(wheel.pop_expired(at(100_000), &mut 0), None);
        let (fired, taken) = steps(&mut wheel, at(100_000), 128);
        assert_eq!((fired, taken + 128), (COUNT as usize, 3 * COUNT as usize));
        // Of one tick and due: each call fires what it may.
        (0..COUNT).for_each(|id| wheel.arm(id, at(100_000)));
        assert_eq!(steps(&mut wheel, at(100_000), 16), (COUNT as usize, COUNT as usize));
    }

    #[test]
    fn a_deadline_beyond_the_longest_fires_when_that_is_over() {
        let mut wheel = TimerWheel::new(2, at(7));
        let longest = wheel.longest();
        assert_eq!(longest, Duration::from_nanos(u64::from(u32::MAX) * TICK));
        wheel.arm(0, at(7) + longest);
        wheel.arm(1, at(7) + 2 * longest);
        assert_eq!(wheel.deadline(0), wheel.deadline(1));
        assert!(expired(&mut wheel, at(6) + longest).is_empty());
        let mut both = expired(&mut wheel, at(7) + longest);
        both.sort_unstable();
        assert_eq!(both, [0, 1]);
    }

    #[test]
    fn timers_can_be_armed_while_they_are_popped() {
        let mut wheel = TimerWheel::new(2, Instant::ZERO);
        wheel.arm(0, at(5));
        let mut order = Vec::new();
        while let Some(id) = wheel.pop_expired(at(20), &mut 100) {
            order.push(id);
            if order.len() < 4 {
                wheel.arm(1 - id, at(5 + 5 * order.len() as u64));
            }
        }
        assert_eq!(order, [0, 1, 0, 1]);
    }

    #[test]
    fn memory_is_twelve_bytes_per_id_and_a_fixed_part() {
        let fixed = TimerWheel::new(0, Instant::ZERO).memory();
        assert_eq!(TimerWheel::new(1000, Instant::ZERO).memory() - fixed, 12_000);
        assert!(fixed < 8192, "{fixed}");
    }

    #[derive(Clone, Debug)]
    enum Op {
        Arm(u32, u64),
        Disarm(u32),
        Advance(u64),
    }

    fn span() -> impl Strategy<Value = u64> {
        // Ticks of every level, and what lies around a level's border.
        prop_oneof![
            0u64..4,
            0u64..600,
            65_000u64..66_000,
            0u64..(1 << 25),
            (1u64 << 31)..(1 << 33)
        ]
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0u32..64, span()).prop_map(|(id, after)| Op::Arm(id, after)),
            1 => (0u32..64).prop_map(Op::Disarm),
            3 => span().prop_map(Op::Advance),
        ]
    }

    /// The model: a map from id to deadline in ticks.
    fn check_against_model(start: u64, budget: usize, ops: &[Op]) -> Result<(), TestCaseError> {
        let mut now = start;
        let mut wheel = TimerWheel::new(64, at(now));
        wheel.set_budget(budget);
        let mut model = BTreeMap::new();
        for op in ops {
            match *op {
                Op::Arm(id, after) => {
                    wheel.arm(id, at(now + after));
                    model.insert(id, now + after.min(u64::from(u32::MAX)));
                }
                Op::Disarm(id) => {
                    wheel.disarm(id);
                    model.remove(&id);
                }
                Op::Advance(ticks) => {
                    let earliest = model.values().min().copied();
                    let bound = wheel.next_deadline();
                    prop_assert_eq!(bound.is_some(), earliest.is_some());
                    if let (Some(bound), Some(earliest)) = (bound, earliest) {
                        prop_assert!(bound <= at(earliest), "{bound:?} is not a lower bound of {earliest}");
                    }
                    now += ticks;
                    let mut last = 0;
                    let mut wrong = None;
                    let mut fire = |id| match model.remove(&id) {
                        Some(deadline) if deadline <= now && deadline >= last => last = deadline,
                        other => wrong = Some((id, other)),
                    };
                    while wheel.expire(at(now), &mut fire) {}
                    prop_assert_eq!(wrong, None, "fired at {}", now);
                    let late = model.values().find(|deadline| **deadline <= now);
                    prop_assert_eq!(late, None, "not fired at {}", now);
                }
            }
            prop_assert_eq!(wheel.len(), model.len());
            for id in 0..64 {
                prop_assert_eq!(wheel.deadline(id), model.get(&id).map(|tick| at(*tick)));
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn agrees_with_an_ordered_map(
            start in prop_oneof![0u64..1000, (1u64 << 24) - 500..(1 << 24), (1u64 << 32) - 500..(1 << 32)],
            budget in 1usize..70,
            ops in prop::collection::vec(op(), 1..3000),
        ) {
            check_against_model(start, budget, &ops)?;
        }
    }
}
