//! Deadlines of sessions: a wheel with lazy entries.
//!
//! An entry is a key and nothing else; whether it is due, and when again, the owner says when the wheel brings it up.
//! So moving a deadline back costs nothing but a later second look, and a session that ends leaves an entry behind that
//! is thrown away when its turn comes. Arming and expiring are O(1).

use std::time::Duration;

/// Milliseconds since the worker started.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Millis(pub u64);

impl Millis {
    /// This time later; at least one millisecond.
    pub fn after(self, time: Duration) -> Self {
        Millis(
            self.0
                .saturating_add((time.as_millis().min(u128::from(u64::MAX / 2)) as u64).max(1)),
        )
    }
}

/// Width of a slot: deadlines here are seconds, and may be late by this much.
const SLOT: u64 = 64;

/// Slots: one turn is 65 s; later deadlines go round again.
const SLOTS: usize = 1024;

/// The wheel. `K` names what has a deadline.
#[derive(Debug)]
pub struct Wheel<K> {
    slots: Vec<Vec<K>>,
    /// Next slot to expire, counted from the start of time.
    next: u64,
    entries: usize,
    /// The slot under expiry, reused to avoid allocation.
    due: Vec<K>,
}

impl<K: Copy> Wheel<K> {
    /// An empty wheel.
    pub fn new() -> Self {
        Wheel {
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            next: 0,
            entries: 0,
            due: Vec::new(),
        }
    }

    /// Brings `key` up at the first look after `deadline`.
    pub fn arm(&mut self, key: K, deadline: Millis) {
        let slot = (deadline.0 / SLOT + 1).clamp(self.next, self.next + SLOTS as u64 - 1);
        self.slots[(slot % SLOTS as u64) as usize].push(key);
        self.entries += 1;
    }

    /// Calls `due` with every key whose slot has passed. It returns the deadline to arm the key with again, if any.
    pub fn expire(&mut self, now: Millis, mut due: impl FnMut(K) -> Option<Millis>) {
        let end = now.0 / SLOT;
        if self.entries == 0 {
            self.next = self.next.max(end + 1);
            return;
        }
        // After a long sleep one turn brings up everything.
        self.next = self.next.max((end + 1).saturating_sub(SLOTS as u64));
        while self.next <= end {
            let mut keys = std::mem::take(&mut self.due);
            std::mem::swap(&mut keys, &mut self.slots[(self.next % SLOTS as u64) as usize]);
            self.next += 1;
            self.entries -= keys.len();
            for key in keys.drain(..) {
                if let Some(again) = due(key) {
                    self.arm(key, again);
                }
            }
            self.due = keys;
        }
    }

    /// How long one may sleep without missing a deadline by much; `None` if there is none.
    pub fn sleep(&self, now: Millis) -> Option<Duration> {
        if self.entries == 0 {
            return None;
        }
        let ahead =
            (0..SLOTS as u64).find(|ahead| !self.slots[((self.next + ahead) % SLOTS as u64) as usize].is_empty())?;
        let at = (self.next + ahead) * SLOT;
        Some(Duration::from_millis(at.saturating_sub(now.0).max(1)))
    }
}

impl<K: Copy> Default for Wheel<K> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deadline_comes_up_once_and_not_early() {
        let mut wheel = Wheel::new();
        let deadlines = [1, 63, 64, 65, 1000, 65_000, 65_536, 70_000, 1_000_000];
        for deadline in deadlines {
            wheel.arm(deadline, Millis(deadline));
        }
        let mut seen = vec![];
        let mut now = 0;
        while now < 1_100_000 {
            wheel.expire(Millis(now), |key| {
                if key > now {
                    return Some(Millis(key));
                }
                assert!(now - key <= 3 * SLOT, "{key} came up at {now}");
                seen.push(key);
                None
            });
            now += wheel
                .sleep(Millis(now))
                .map_or(1000, |sleep| sleep.as_millis() as u64)
                .min(1000);
        }
        assert_eq!(seen, deadlines);
        assert_eq!(wheel.sleep(Millis(now)), None);
    }

    #[test]
    fn a_long_sleep_misses_nothing() {
        let mut wheel = Wheel::new();
        wheel.arm(1, Millis(100));
        wheel.arm(2, Millis(60_000));
        let mut seen = vec![];
        wheel.expire(Millis(10_000_000), |key| {
            seen.push(key);
            None
        });
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        wheel.arm(3, Millis(10_000_050));
        assert!(
            wheel
                .sleep(Millis(10_000_000))
                .is_some_and(|sleep| sleep <= Duration::from_millis(128))
        );
    }
}
