//! Latencies of the connections during whose life neither core was away.
//!
//! A host that takes a guest's cores away for milliseconds, hundreds of times a minute, is all that high quantiles tell of. So
//! beside the figures that leave nothing out there are others, of the connections that no absence touched: neither from the
//! intended start to the first byte, nor by the queue that it left behind.
//!
//! *What an absence is.* Load and device poll. A turn of such a loop that took longer than [`AT_ONCE`] and [`PER_MOVE`] for each
//! packet that it received or sent was interrupted: that is two to three times what a packet costs, more than it does beside
//! a busy hyperthread of the same core, and 20 µs besides, while an empty turn takes less than one. Less than that counts, whoever
//! is to blame. So work of our own that takes long is not left out but beyond these bounds, and a bench shows that it was not ours
//! by the absences of the same core while nothing but the loop runs.
//!
//! *The queue it left behind.* Where a core is used to the share ρ, what came in during an absence of length d is worked off within
//! d · ρ / (1 − ρ). A connection needs the core more than once: d / (1 − ρ) is taken. It is a matter of the absence alone, so
//! that an engine which is slow to catch up has its figures spoilt by that.

use std::time::Duration;

use e2d2::time::Instant;
use hdrhistogram::Histogram;
use trafficengine::stats::{Latencies, Life, record};

/// What a turn may take, whatever it did.
const AT_ONCE: Duration = Duration::from_micros(20);

/// What it may take for each packet received, packet sent and timer beyond that.
const PER_MOVE: Duration = Duration::from_nanos(250);

/// A core was away from a polling loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Absence {
    /// The beginning of the turn that took too long.
    pub from: Instant,
    /// Its end.
    pub to: Instant,
}

/// Finds the absences of a polling loop: turns that took longer than 20 µs, and 250 ns for each packet
/// received, packet sent and timer.
#[derive(Debug, Default)]
pub struct Watch {
    last: Option<Instant>,
    absences: Vec<Absence>,
}

impl Watch {
    /// A turn begins; the one before has received, sent and timed out so many.
    #[inline]
    pub fn begin_turn(&mut self, now: Instant, moved: u32) {
        if let Some(from) = self.last.replace(now)
            && now - from > AT_ONCE
            && now - from > AT_ONCE + PER_MOVE * moved
        {
            self.absences.push(Absence { from, to: now });
        }
    }

    /// The absences since the last call.
    pub fn take(&mut self) -> Vec<Absence> {
        std::mem::take(&mut self.absences)
    }
}

/// The latencies of the connections that no absence of a core has touched, and how many others there were.
///
/// A connection at the share ρ of what a core can do is touched by an absence of length d from its beginning until
/// d / (1 − ρ) after its end. What an absence is, [`Watch`] says.
#[derive(Clone, Debug)]
pub struct Undisturbed {
    /// From the intended start to the first byte.
    pub first_byte: Histogram<u64>,
    /// Connections that an absence touched.
    pub left_out: u64,
}

impl Default for Undisturbed {
    fn default() -> Self {
        Undisturbed {
            first_byte: Latencies::default().first_byte,
            left_out: 0,
        }
    }
}

impl Undisturbed {
    /// Adds the connections of a load at the `share` of what the slower core can do, with the absences of both cores.
    pub fn add(&mut self, lives: &[Life], absences: &[Absence], share: f64) {
        let touched = touched(absences, share);
        for life in lives {
            // The first that ends after the connection should have started; those are in order, and apart.
            let next = touched.partition_point(|absence| absence.to < life.intended);
            if touched.get(next).is_some_and(|absence| absence.from <= life.first_byte) {
                self.left_out += 1;
            } else {
                record(&mut self.first_byte, life.first_byte - life.intended);
            }
        }
    }

    /// The share of connections that were left out, from 0 to 1; 1 if there was none at all.
    pub fn left_out_share(&self) -> f64 {
        let all = self.first_byte.len() + self.left_out;
        if all == 0 {
            1.0
        } else {
            self.left_out as f64 / all as f64
        }
    }
}

/// The times that absences have touched, in order and apart from each other.
fn touched(absences: &[Absence], share: f64) -> Vec<Absence> {
    let with_queue = |absence: &Absence| {
        let queue = (absence.to - absence.from).as_secs_f64() / (1.0 - share).max(0.0);
        // With nothing to spare the queue stays for ever.
        let queue = Duration::try_from_secs_f64(queue).unwrap_or(Duration::MAX);
        Absence {
            from: absence.from,
            to: absence.to + queue,
        }
    };
    let mut touched: Vec<Absence> = absences.iter().map(with_queue).collect();
    touched.sort_by_key(|absence| absence.from);
    touched.dedup_by(|later, earlier| {
        let overlaps = later.from <= earlier.to;
        if overlaps {
            earlier.to = earlier.to.max(later.to);
        }
        overlaps
    });
    touched
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(at: u64) -> Instant {
        Instant::from_nanos(at * 1000)
    }

    fn away(from: u64, to: u64) -> Absence {
        Absence {
            from: micros(from),
            to: micros(to),
        }
    }

    fn life(intended: u64, first_byte: u64) -> Life {
        Life {
            intended: micros(intended),
            first_byte: micros(first_byte),
        }
    }

    /// The absences of a loop whose turns take so long and move so many packets.
    fn watch(turns: &[(u64, u32)]) -> Vec<Absence> {
        let (mut watch, mut now) = (Watch::default(), 1_000);
        watch.begin_turn(micros(now), 0);
        for &(took, moved) in turns {
            now += took;
            watch.begin_turn(micros(now), moved);
        }
        watch.take()
    }

    #[test]
    fn turn_that_took_longer_than_its_work_can_is_an_absence() {
        assert_eq!(watch(&[(1, 0), (20, 0), (5, 32)]), []);
        assert_eq!(watch(&[(1, 0), (21, 0), (5, 32)]), [away(1_001, 1_022)]);
    }

    #[test]
    fn long_turn_with_much_work_is_ours() {
        assert_eq!(watch(&[(28, 32), (36, 64), (45, 100)]), []);
        assert_eq!(watch(&[(29, 32), (36, 63)]), [away(1_000, 1_029), away(1_029, 1_065)]);
    }

    /// Whether lives are left out, at half load: the queue is twice as long as the absence.
    fn left_out(absences: &[Absence], lives: &[Life]) -> Vec<bool> {
        let is_left_out = |life: &Life| {
            let mut undisturbed = Undisturbed::default();
            undisturbed.add(std::slice::from_ref(life), absences, 0.5);
            assert_eq!(undisturbed.first_byte.len() + undisturbed.left_out, 1);
            undisturbed.left_out == 1
        };
        lives.iter().map(is_left_out).collect()
    }

    #[test]
    fn what_an_absence_or_its_queue_touches_is_left_out() {
        let lives = [
            life(10, 99),
            life(90, 100),
            life(150, 160),
            life(10, 900),
            life(390, 395),
            life(400, 410),
            life(401, 410),
        ];
        // From 100 to 200, and twice as long for the queue.
        let expected = [false, true, true, true, true, true, false];
        assert_eq!(left_out(&[away(100, 200)], &lives), expected);
    }

    #[test]
    fn slow_connection_without_an_absence_counts() {
        let mut undisturbed = Undisturbed::default();
        undisturbed.add(&[life(0, 5_000), life(7_000, 7_010)], &[away(6_000, 6_100)], 0.5);
        assert_eq!((undisturbed.left_out, undisturbed.first_byte.len()), (0, 2));
        assert!(undisturbed.first_byte.max() >= 5_000_000);
    }

    #[test]
    fn absences_of_both_cores_are_joined_in_any_order() {
        let absences = [away(500, 530), away(100, 130), away(120, 200), away(105, 110)];
        // To 190 and 360; the third covers the second and the fourth.
        let joined = [away(100, 360), away(500, 590)];
        assert_eq!(touched(&absences, 0.5), joined);
        let lives = [life(361, 499), life(591, 600), life(361, 500), life(0, 99)];
        assert_eq!(left_out(&absences, &lives), [false, false, true, false]);
    }

    #[test]
    fn share_of_those_left_out_is_told() {
        let mut undisturbed = Undisturbed::default();
        assert_eq!(undisturbed.left_out_share(), 1.0);
        let lives = [life(0, 10), life(50, 60), life(400, 410), life(500, 510)];
        undisturbed.add(&lives, &[away(55, 80)], 0.5);
        assert_eq!(undisturbed.left_out_share(), 0.25);
        undisturbed.add(&lives, &[], 0.5);
        assert_eq!(undisturbed.left_out_share(), 0.125);
    }

    #[test]
    fn without_a_reserve_all_that_comes_later_is_left_out() {
        let mut undisturbed = Undisturbed::default();
        undisturbed.add(&[life(0, 10), life(900_000, 900_010)], &[away(50, 80)], 1.0);
        assert_eq!((undisturbed.left_out, undisturbed.first_byte.len()), (1, 1));
    }
}
