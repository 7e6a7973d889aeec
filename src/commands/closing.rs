//! Ends the connections of what is out of service, as many a second as are even over the time that was given.
//!
//! Each closing has a number, which [`Standby`](splice::standby::Standby) has beside the servers, listeners or engine that it is of. A core
//! first counts their connections, then goes round its places and ends one whenever the count's share of the time that has gone by is
//! more than it has ended. Without a time it ends them as fast as a round's bound lets it. It is over when a whole round finds none.

use std::ops::Range;
use std::time::Duration;

use e2d2::buffer::BufferPool;
use e2d2::time::Instant;
use splice::callbacks::SelectServer;
use splice::standby::MOST_CLOSINGS;
use splice::visit::ConnectionFilter;
use splice::{NextHops, Output, Proxy};

use super::PACE;

/// What is to be closed.
#[derive(Clone, Copy, Debug)]
pub struct Closing {
    /// The number that servers, listeners or the engine have.
    pub number: u8,
    /// Over so much time; none ends all as fast as can be.
    pub over: Duration,
}

/// The closings of one core, by their numbers.
pub(super) struct Closings {
    all: [Option<Course>; MOST_CLOSINGS as usize + 1],
    /// How many there are.
    count: usize,
    /// The number that is looked at next.
    next: usize,
}

/// How far one is.
#[derive(Clone)]
struct Course {
    over: Duration,
    /// The places that are left of this round.
    places: Range<u32>,
    /// Connections that there were, counted so far; then how many of them are ended since when.
    counted: u32,
    ending: Option<Ending>,
    due: Instant,
}

#[derive(Clone, Copy)]
struct Ending {
    began: Instant,
    ended: u32,
    /// So many of them in this round through the places.
    ended_in_round: u32,
}

impl Default for Closings {
    fn default() -> Self {
        Self {
            all: [const { None }; MOST_CLOSINGS as usize + 1],
            count: 0,
            next: 0,
        }
    }
}

impl Closings {
    /// Begins one; an earlier one of that number is over.
    pub(super) fn begin(&mut self, closing: Closing, now: Instant) {
        let Some(place) = self.all.get_mut(usize::from(closing.number)) else {
            return;
        };
        let course = Course {
            over: closing.over,
            places: 0..u32::MAX,
            counted: 0,
            ending: None,
            due: now,
        };
        if place.replace(course).is_none() {
            self.count += 1;
        }
    }

    /// When there is something to do at the earliest.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if self.count == 0 {
            return None;
        }
        self.all.iter().flatten().map(|course| course.due).min()
    }

    /// Does a part of one that is due; whether there was one.
    #[inline]
    pub(super) fn work<P, S, N>(
        &mut self,
        now: Instant,
        proxy: &mut Proxy<P, S, N>,
        out: &mut impl Output<P::Buffer>,
    ) -> bool
    where
        P: BufferPool,
        S: SelectServer,
        N: NextHops,
    {
        self.count > 0 && self.go_on(now, proxy, out)
    }

    #[cold]
    fn go_on<P, S, N>(&mut self, now: Instant, proxy: &mut Proxy<P, S, N>, out: &mut impl Output<P::Buffer>) -> bool
    where
        P: BufferPool,
        S: SelectServer,
        N: NextHops,
    {
        let numbers = self.all.len();
        let mut in_turn = (0..numbers).map(|step| (self.next + step) % numbers);
        let is_due = |number: &usize| self.all[*number].as_ref().is_some_and(|course| course.due <= now);
        let Some(number) = in_turn.find(is_due) else {
            return false;
        };
        self.next = (number + 1) % numbers;
        if let Some(course) = &mut self.all[number]
            && course.go_on(number as u8, now, proxy, out)
        {
            self.all[number] = None;
            self.count -= 1;
        }
        true
    }
}

impl Course {
    /// Does a part of it; whether it is over.
    fn go_on<P, S, N>(
        &mut self,
        number: u8,
        now: Instant,
        proxy: &mut Proxy<P, S, N>,
        out: &mut impl Output<P::Buffer>,
    ) -> bool
    where
        P: BufferPool,
        S: SelectServer,
        N: NextHops,
    {
        let filter = ConnectionFilter {
            closing: Some(number),
            ..ConnectionFilter::default()
        };
        self.due = now + PACE;
        self.places.end = proxy.places_used();
        let Some(ending) = &mut self.ending else {
            if !self.over.is_zero() {
                let counted = &mut self.counted;
                proxy.look_at(now, &mut self.places, &filter, |_| {
                    *counted += 1;
                    true
                });
            }
            if self.over.is_zero() || self.places.is_empty() {
                self.places = 0..u32::MAX;
                self.ending = Some(Ending {
                    began: now,
                    ended: 0,
                    ended_in_round: 0,
                });
            }
            return false;
        };
        let may_end = may_end(now - ending.began, self.over, self.counted).saturating_sub(ending.ended);
        if may_end == 0 {
            return self.counted == 0;
        }
        let ended = proxy.end_wanted(now, &mut self.places, (&filter, may_end), out);
        ending.ended = ending.ended.saturating_add(ended);
        ending.ended_in_round += ended;
        if !self.places.is_empty() {
            return false;
        }
        self.places = 0..u32::MAX;
        std::mem::take(&mut ending.ended_in_round) == 0
    }
}

/// How many of so many connections are ended after `time`.
fn may_end(time: Duration, over: Duration, counted: u32) -> u32 {
    if time >= over {
        return u32::MAX;
    }
    let share = u128::from(counted) * time.as_nanos() / over.as_nanos();
    u32::try_from(share).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_may_end_as_are_even() {
        let minute = Duration::from_secs(60);
        let after = |seconds| may_end(Duration::from_secs(seconds), minute, 600);
        assert_eq!([0, 1, 30, 59].map(after), [0, 10, 300, 590]);
        assert_eq!(after(60), u32::MAX, "all that is left");
        assert_eq!(may_end(Duration::ZERO, Duration::ZERO, 0), u32::MAX);
    }
}
