//! Counts of open and new connections over all cores, for each thing that has a limit.
//!
//! Cores add to [`Meters`], which all share. With a high limit a core does not add each connection at once, as cores would contend
//! for the cache line: it keeps up to a thousandth of the limit, or what the rate grants in 10 ms, for at most 10 ms
//! ([`CoreMeters`]), and counts its own at once. A limit is exceeded by at most what the other cores have begun in the last
//! 10 ms, a rate by at most 1 + rate × 10 ms of each core.

use crate::base::limit::{Limit, Limited, Limits, Rate};
use e2d2::time::Instant;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long a core keeps a count before it publishes it.
pub(crate) const PUBLISHED_EVERY: Duration = Duration::from_millis(10);

/// A core keeps at most the limit divided by this.
const KEPT_PART: u32 = 1024;

/// Things of which a core keeps a count at a time; counts of further ones are published at once.
const MOST_KEPT: usize = 256;

/// Numbers that things of one kind can have.
const NUMBERS: usize = 1 << 16;

/// Words of a meter: a cache line, so that no two meters share one.
const WORDS: usize = 8;
const OPEN: usize = 0;
const BEGUN: usize = 1;
const REFUSED: usize = 2;
/// The word with the time at which the bucket of its rate is full, in ns.
const DUE: usize = 3;

/// The counts of one thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metered {
    /// Open connections.
    pub open: u64,
    /// Connections that have begun.
    pub begun: u64,
    /// Connections refused by the limit.
    pub refused: u64,
}

/// The counts of all cores, by kind and number. Relaxed accesses: they guard no other data. Memory is touched as it is
/// used.
#[derive(Debug)]
pub struct Meters(Box<[[AtomicU64; WORDS]]>);

impl Default for Meters {
    fn default() -> Self {
        Meters(bytemuck::zeroed_slice_box(Limited::ALL.len() * NUMBERS))
    }
}

impl Meters {
    /// What all cores have published of one thing.
    pub fn of(&self, kind: Limited, id: u16) -> Metered {
        let meter = &self.0[place(kind, id)];
        let [open, begun, refused] = [OPEN, BEGUN, REFUSED].map(|word| meter[word].load(Relaxed));
        Metered { open, begun, refused }
    }

    /// Forgets what was counted of who had this number before, of whom nothing is open.
    pub(crate) fn forget(&self, kind: Limited, id: u16) {
        let meter = &self.0[place(kind, id)];
        [BEGUN, REFUSED, DUE]
            .into_iter()
            .for_each(|word| meter[word].store(0, Relaxed));
    }
}

fn place(kind: Limited, id: u16) -> usize {
    kind as usize * NUMBERS + usize::from(id)
}

/// What a core has counted of one thing and not published.
///
/// What a connection adds to when it begins lies apart: added together, in one wider word, both would wait for the store of an end
/// before.
type Kept = [i32; 4];
const KEPT_OPEN: usize = 0;
const KEPT_REFUSED: usize = 1;
const KEPT_BEGUN: usize = 2;
/// Not zero while the thing is in the list of those that have a count to publish.
const IS_LISTED: usize = 3;

/// One core's view of the meters: the shared ones, and what it has not yet published.
#[derive(Clone, Debug)]
pub struct CoreMeters {
    shared: Arc<Meters>,
    /// By kind and number. Memory is touched as it is used.
    kept: Box<[Kept]>,
    /// Things that have a count to publish.
    listed: Vec<u32>,
    publish_at: Instant,
}

impl CoreMeters {
    /// The view of a core that has counted nothing.
    pub(crate) fn new(shared: Arc<Meters>) -> Self {
        CoreMeters {
            shared,
            kept: bytemuck::zeroed_slice_box(Limited::ALL.len() * NUMBERS),
            listed: Vec::with_capacity(MOST_KEPT),
            publish_at: Instant::ZERO,
        }
    }

    /// Whether a limit admits one more, by what this core knows.
    #[inline]
    pub(crate) fn has_room(&self, kind: Limited, id: u16, limit: &Limit, now: Instant) -> bool {
        let place = place(kind, id);
        limit.connections.is_none_or(|most| self.open(place) < i64::from(most))
            && limit.rate.is_none_or(|rate| {
                let kept = self.kept[place][KEPT_BEGUN] as u32;
                let due = rate.after(self.shared.0[place][DUE].load(Relaxed), kept, now);
                rate.has_left(due, now)
            })
    }

    /// Takes off what is owed to an earlier rate beyond the bucket of the present one, which is empty then.
    pub(crate) fn forgive(&self, limits: &Limits, now: Instant) {
        for (kind, id, rate) in limits.rates() {
            self.shared.0[place(kind, id)][DUE].fetch_min(rate.fullest(now), Relaxed);
        }
    }

    /// Whether fewer than `most` are open, by what this core knows.
    #[inline]
    pub(crate) fn are_fewer_than(&self, kind: Limited, id: u16, most: u32) -> bool {
        self.open(place(kind, id)) < i64::from(most)
    }

    /// Open connections, by what this core knows.
    #[inline]
    pub(crate) fn open_of(&self, kind: Limited, id: u16) -> i64 {
        self.open(place(kind, id))
    }

    #[inline]
    fn open(&self, place: usize) -> i64 {
        let published = self.shared.0[place][OPEN].load(Relaxed) as i64;
        published + i64::from(self.kept[place][KEPT_OPEN])
    }

    /// Counts a connection that begins, under this limit.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        (kind, id): (Limited, u16),
        (most, rate): (Option<u32>, Option<Rate>),
        now: Instant,
    ) {
        let place = place(kind, id);
        let kept = &mut self.kept[place];
        kept[KEPT_OPEN] += 1;
        kept[KEPT_BEGUN] += 1;
        let is_many = most.is_some_and(|most| kept[KEPT_OPEN] > (most / KEPT_PART) as i32)
            || rate.is_some_and(|rate| rate.is_less_in(PUBLISHED_EVERY, kept[KEPT_BEGUN] as u32));
        if is_many || !self.list(place, now) {
            self.publish_one(place, rate, now);
        }
    }

    /// Counts the end of a connection.
    #[inline]
    pub(crate) fn end(&mut self, (kind, id): (Limited, u16), most: Option<u32>, now: Instant) {
        let place = place(kind, id);
        let kept = &mut self.kept[place];
        kept[KEPT_OPEN] -= 1;
        let is_many = most.is_some_and(|most| -kept[KEPT_OPEN] > (most / KEPT_PART) as i32);
        if is_many || !self.list(place, now) {
            publish(&self.shared.0[place][OPEN], &mut self.kept[place][KEPT_OPEN]);
        }
    }

    /// Adds to, or takes from, the count of open connections; for those that were open before they were counted.
    pub(crate) fn correct(&mut self, kind: Limited, id: u16, more: i64) {
        self.shared.0[place(kind, id)][OPEN].fetch_add(more as u64, Relaxed);
    }

    /// Counts a refusal.
    pub(crate) fn refuse(&mut self, kind: Limited, id: u16, now: Instant) {
        let place = place(kind, id);
        self.kept[place][KEPT_REFUSED] += 1;
        if !self.list(place, now) {
            publish(&self.shared.0[place][REFUSED], &mut self.kept[place][KEPT_REFUSED]);
        }
    }

    /// Lists a thing for publication. Returns false if the list is full.
    fn list(&mut self, place: usize, now: Instant) -> bool {
        if self.kept[place][IS_LISTED] != 0 {
            return true;
        }
        if self.listed.is_empty() {
            self.publish_at = now + PUBLISHED_EVERY;
        }
        let has_room = self.listed.len() < MOST_KEPT;
        if has_room {
            self.kept[place][IS_LISTED] = 1;
            self.listed.push(place as u32);
        }
        has_room
    }

    /// Publishes the counts that were kept for long enough.
    #[inline]
    pub(crate) fn publish_due(&mut self, limits: &Limits, now: Instant) {
        if !self.listed.is_empty() && now >= self.publish_at {
            self.publish_all(limits, now);
        }
    }

    fn publish_all(&mut self, limits: &Limits, now: Instant) {
        while let Some(place) = self.listed.pop() {
            let place = place as usize;
            let rate = Limited::ALL
                .get(place / NUMBERS)
                .and_then(|kind| limits.of(*kind, (place % NUMBERS) as u16))
                .and_then(|limit| limit.rate);
            self.kept[place][IS_LISTED] = 0;
            self.publish_one(place, rate, now);
        }
    }

    fn publish_one(&mut self, place: usize, rate: Option<Rate>, now: Instant) {
        let (meter, kept) = (&self.shared.0[place], &mut self.kept[place]);
        if let Some(rate) = rate
            && kept[KEPT_BEGUN] != 0
        {
            let after = |due| Some(rate.after(due, kept[KEPT_BEGUN] as u32, now));
            _ = meter[DUE].fetch_update(Relaxed, Relaxed, after);
        }
        publish(&meter[OPEN], &mut kept[KEPT_OPEN]);
        publish(&meter[BEGUN], &mut kept[KEPT_BEGUN]);
        publish(&meter[REFUSED], &mut kept[KEPT_REFUSED]);
    }
}

/// Adds a kept count, which may be negative; the sum over all cores is not.
fn publish(word: &AtomicU64, kept: &mut i32) {
    if *kept != 0 {
        word.fetch_add(i64::from(std::mem::take(kept)) as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::callbacks::Refusal;
    use std::num::NonZeroU64;

    const NOW: Instant = Instant::from_millis(1_000);
    const OF: (Limited, u16) = (Limited::Pool, 7);

    fn limits(connections: Option<u32>, rate: Option<Rate>) -> Limits {
        let limit = Limit {
            connections,
            rate,
            beyond: Refusal::Drop,
        };
        Limits::new((Vec::new(), Vec::new()), vec![Some(limit); 8], Vec::new())
    }

    #[test]
    fn what_is_kept_is_published_after_ten_milliseconds() {
        let (shared, limits) = (Arc::<Meters>::default(), limits(Some(10_240), None));
        let mut core = CoreMeters::new(Arc::clone(&shared));
        for n in 1..=10 {
            core.begin(OF, (Some(10_240), None), NOW);
            assert_eq!(shared.of(OF.0, OF.1).open, 0, "{n}");
        }
        assert!(!core.are_fewer_than(OF.0, OF.1, 10) && core.are_fewer_than(OF.0, OF.1, 11));
        core.publish_due(&limits, NOW + PUBLISHED_EVERY / 2);
        assert_eq!(shared.of(OF.0, OF.1).open, 0);
        core.publish_due(&limits, NOW + PUBLISHED_EVERY);
        let all = Metered {
            open: 10,
            begun: 10,
            refused: 0,
        };
        assert_eq!(shared.of(OF.0, OF.1), all);
        (0..11).for_each(|_| core.begin(OF, (Some(10_240), None), NOW));
        assert_eq!(shared.of(OF.0, OF.1).open, 21, "more than a thousandth");
    }

    #[test]
    fn a_small_limit_is_published_at_once_in_both_directions() {
        let shared = Arc::<Meters>::default();
        let mut cores = [0, 1].map(|_| CoreMeters::new(Arc::clone(&shared)));
        cores[0].begin(OF, (Some(2), None), NOW);
        assert!(!cores[1].are_fewer_than(OF.0, OF.1, 1));
        cores[0].end(OF, Some(2), NOW);
        assert!(cores[1].are_fewer_than(OF.0, OF.1, 1));
    }

    #[test]
    fn more_things_than_the_list_holds_are_published_at_once() {
        let (shared, limits) = (Arc::<Meters>::default(), limits(None, None));
        let mut core = CoreMeters::new(Arc::clone(&shared));
        let all = 0..2 * MOST_KEPT as u16;
        all.clone()
            .for_each(|id| core.begin((Limited::Class, id), (None, None), NOW));
        let begun = || {
            all.clone()
                .filter(|id| shared.of(Limited::Class, *id).begun == 1)
                .count()
        };
        assert_eq!(begun(), MOST_KEPT);
        core.publish_due(&limits, NOW + PUBLISHED_EVERY);
        assert_eq!(begun(), 2 * MOST_KEPT);
    }

    #[test]
    fn a_rate_is_one_for_all_cores() {
        let rate = Rate {
            interval_ns: NonZeroU64::new(100_000_000).expect("not zero"),
            burst: 3,
        };
        let limits = limits(None, Some(rate));
        let limit = *limits.of(OF.0, OF.1).expect("a limit");
        let shared = Arc::<Meters>::default();
        let mut cores = [0, 1].map(|_| CoreMeters::new(Arc::clone(&shared)));
        for n in 0..3 {
            let core = &mut cores[n % 2];
            assert!(core.has_room(OF.0, OF.1, &limit, NOW));
            core.begin(OF, (None, Some(rate)), NOW);
        }
        assert!(cores.iter().all(|core| !core.has_room(OF.0, OF.1, &limit, NOW)));
        let later = NOW + Duration::from_millis(100);
        assert!(cores.iter().all(|core| core.has_room(OF.0, OF.1, &limit, later)));
    }
}
