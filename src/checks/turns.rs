//! Whose check is next, where more are ordered than can be made at once.
//!
//! Whose last turn was longest ago is next, however often it has ordered since. An order waits for [`PATIENCE`] at most; the
//! core orders anew then, and the server keeps its place. Most checks that take long are of servers that are down and silent:
//! some places are not theirs, so that however many they are, the checks of others go on.

use std::collections::{BTreeMap, HashMap, VecDeque};

use e2d2::time::Instant;
use splice::checks::{CheckOrder, PATIENCE};

use super::MOST_AT_ONCE;

/// Places that servers which are down do not take. With answers in 10 ms that is 3 200 checks a second of the others.
const KEPT_FREE: usize = 32;

/// Orders that wait at most: one of each server.
const MOST_WAITING: usize = 1 << 16;

/// An order that waits, and the line that it came on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) line: usize,
    pub(super) order: CheckOrder,
    pub(super) since: Instant,
}

/// The place of an order: the server's last turn, 0 if it had none, and the order's number.
type Place = (u64, u64);

/// The orders that wait.
#[derive(Default)]
pub(super) struct Turns {
    /// Of servers that are up, and of those that are down.
    waiting: [BTreeMap<Place, Waiting>; 2],
    /// All orders of the last [`PATIENCE`], as they came, also those that have had their turn.
    arrivals: VecDeque<(Instant, bool, Place)>,
    /// By line and server; at most one for each server that was checked.
    last_turns: HashMap<(usize, u16), u64>,
    /// Orders and turns so far.
    count: u64,
}

impl Turns {
    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.iter().all(BTreeMap::is_empty)
    }

    /// An order has come. Returns false if too many wait.
    pub(super) fn add(&mut self, line: usize, order: CheckOrder, now: Instant) -> bool {
        let waiting: usize = self.waiting.iter().map(BTreeMap::len).sum();
        if waiting >= MOST_WAITING {
            return false;
        }
        self.count += 1;
        let last = self.last_turns.get(&(line, order.check.server));
        let place = (last.copied().unwrap_or(0), self.count);
        let since = now;
        self.waiting[usize::from(order.is_down)].insert(place, Waiting { line, order, since });
        self.arrivals.push_back((now + PATIENCE, order.is_down, place));
        true
    }

    /// The next order whose check can be made, if so many are under way, of which so many are of servers that are down.
    pub(super) fn next(&mut self, under_way: usize, of_down: usize) -> Option<Waiting> {
        let has_room = [under_way < MOST_AT_ONCE, of_down < MOST_AT_ONCE - KEPT_FREE];
        if !has_room[0] {
            return None;
        }
        let first = |kind: usize| self.waiting[kind].first_key_value().map(|(place, _)| (*place, kind));
        let firsts = [0, 1].into_iter().filter(|kind| has_room[*kind]).filter_map(first);
        let (_, kind) = firsts.min()?;
        let (_, next) = self.waiting[kind].pop_first()?;
        self.count += 1;
        self.last_turns.insert((next.line, next.order.check.server), self.count);
        Some(next)
    }

    /// The next order that has waited for too long.
    pub(super) fn pop_overdue(&mut self, now: Instant) -> Option<Waiting> {
        while let Some(&(until, is_down, place)) = self.arrivals.front()
            && until <= now
        {
            self.arrivals.pop_front();
            let overdue = self.waiting[usize::from(is_down)].remove(&place);
            if overdue.is_some() {
                return overdue;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netfcts::FourTuple;
    use splice::checks::CheckId;
    use std::collections::HashSet;
    use std::time::Duration;

    const NOW: Instant = Instant::from_millis(1_000_000);

    fn order(server: u16, is_down: bool) -> CheckOrder {
        CheckOrder {
            check: CheckId { server, turn: 0 },
            key: FourTuple {
                remote: 1,
                remote_port: 2,
                local: 3,
                local_port: 4,
            },
            isn: 0,
            mtu: 1500,
            timeout: Duration::from_secs(1),
            is_down,
        }
    }

    fn next(turns: &mut Turns, under_way: usize, of_down: usize) -> Option<u16> {
        Some(turns.next(under_way, of_down)?.order.check.server)
    }

    #[test]
    fn who_has_waited_longest_is_next_and_an_order_that_was_given_up_keeps_its_place() {
        let mut turns = Turns::default();
        (0..3).for_each(|server| assert!(turns.add(0, order(server, false), NOW)));
        assert_eq!(next(&mut turns, 0, 0), Some(0));
        // Server 0 orders again before the others, who have to order anew.
        assert!(turns.add(0, order(0, false), NOW));
        let later = NOW + PATIENCE;
        let overdue: Vec<_> = std::iter::from_fn(|| turns.pop_overdue(later)).collect();
        assert_eq!(
            overdue.iter().map(|of| of.order.check.server).collect::<Vec<_>>(),
            [1, 2, 0]
        );
        assert!(turns.is_empty());
        for server in [0, 2, 1] {
            assert!(turns.add(0, order(server, false), later));
        }
        assert_eq!([0; 3].map(|_| next(&mut turns, 0, 0)), [Some(2), Some(1), Some(0)]);
        assert_eq!(next(&mut turns, 0, 0), None);
        assert!(turns.pop_overdue(later + PATIENCE).is_none(), "all had their turn");
    }

    #[test]
    fn servers_that_are_down_leave_some_places_to_the_others() {
        let mut turns = Turns::default();
        turns.add(0, order(0, true), NOW);
        turns.add(0, order(1, false), NOW);
        let most = MOST_AT_ONCE - KEPT_FREE;
        assert_eq!(next(&mut turns, MOST_AT_ONCE, most - 1), None);
        assert_eq!(next(&mut turns, most, most), Some(1));
        assert_eq!(next(&mut turns, most, most), None);
        assert_eq!(next(&mut turns, MOST_AT_ONCE - 1, most - 1), Some(0));
    }

    #[test]
    fn every_server_has_its_turn_however_many_are_silent() {
        let mut turns = Turns::default();
        let mut had = HashSet::new();
        // Each of a thousand orders every second time, and gives up, while a place is free now and then.
        for round in 0..2_000_u64 {
            let now = NOW + 2 * PATIENCE * round as u32;
            (0..1_000).for_each(|server| _ = turns.add(0, order(server, true), now));
            had.extend(next(&mut turns, 100, 100));
            while turns.pop_overdue(now + PATIENCE).is_some() {}
            assert_eq!(had.len() as u64, (round + 1).min(1_000));
        }
    }
}
