//! The open connections and the rate of each client: one table of fixed size for all cores.
//!
//! A place is two words: a tag of the client's [hash](ClientKey) above the number of its open connections, and the time at which
//! its rate's bucket is full. A client's place is one of eight in two cache lines. Cores change the counts at once, so these
//! are exact; two cores contend for a line only while both serve clients that have places in it. Of a rate two cores may count one
//! connection where both have one of the same client within nanoseconds.
//!
//! ```text
//!   word 0   bits 0–27   open connections
//!                 28–63  the tag, not zero; a word of zero is a free place
//!   word 1               the time at which the bucket is full, in ns
//! ```
//!
//! A client without open connections and with a full bucket keeps its place until another client needs it. A place with open
//! connections is never taken. If all eight are taken, the client's connection is admitted uncounted, and the table counts how many
//! were.

use crate::base::hash::{KeyWords, PairHash};
use e2d2::time::Instant;
use netfcts::leg::is_mapped;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Places of a line of the cache.
const PLACES: usize = 4;

/// A place.
type Words = [AtomicU64; 2];

type Line = [Words; PLACES];

/// Lines of a page of memory. Both lines of a client are in one: their address is translated once.
const PAGE_LINES: usize = 64;

const _: () = assert!(PAGE_LINES.is_power_of_two());

const PAGE: usize = PAGE_LINES * size_of::<Line>();

const OPEN_BITS: u32 = 28;
const OPEN: u64 = (1 << OPEN_BITS) - 1;
const TAG: u64 = u64::MAX >> OPEN_BITS;

/// Lines that 28 bits can name.
const MOST_LINES: usize = 1 << 28;

/// The counts of all clients. Relaxed accesses: they guard no other data.
#[derive(Debug)]
pub(crate) struct ClientCounts {
    /// The lines begin where the first whole page does. Zeroed memory of the allocator begins anywhere, and aligned memory would be
    /// touched to be zeroed.
    places: Box<[Words]>,
    /// Places in front of the first line.
    before: usize,
    line_count: usize,
    /// One core has all clients: its additions need not be atomic, which would wait for all its stores before them.
    has_one_core: bool,
    of_v6: PairHash,
    of_key: PairHash,
    /// Connections that were not counted because there was no place.
    uncounted: AtomicU64,
}

/// A client: a prefix of an address, at one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientKey {
    /// The prefix, all other bits zero; IPv4 in its mapped form.
    pub(crate) prefix: u128,
    pub(crate) listener: u16,
    /// Length of the prefix in bits, of the mapped form for IPv4.
    pub(crate) bits: u8,
}

/// Where a client may have its place: two cache lines, and the tag of its places there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLines {
    lines: [u32; 2],
    tag: u64,
}

/// The place of a client in the table: its number, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientPlace(NonZeroU32);

impl ClientPlace {
    /// That of this index.
    #[inline]
    fn of_index(index: u32) -> Self {
        ClientPlace(NonZeroU32::MIN.saturating_add(index))
    }

    #[inline]
    fn index(self) -> usize {
        (self.0.get() - 1) as usize
    }

    /// Its number.
    #[inline]
    pub(crate) fn number(self) -> u32 {
        self.0.get()
    }

    /// The place with this number; `None` for 0.
    #[inline]
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(ClientPlace)
    }
}

impl ClientCounts {
    /// An empty table with two places for each of `connections` of so many cores, whose memory is taken now if it is used from the start.
    pub(crate) fn new((connections, cores): (usize, usize), is_used: bool, secret: [u64; 2]) -> Self {
        let mut words = KeyWords::new(secret);
        let line_count = match (2 * connections).div_ceil(PLACES).clamp(2, MOST_LINES) {
            few @ ..PAGE_LINES => few.next_power_of_two(),
            many => many.next_multiple_of(PAGE_LINES),
        };
        let mut places: Box<[Words]> = bytemuck::zeroed_slice_box(line_count * PLACES + PAGE / size_of::<Words>() - 1);
        if is_used {
            e2d2::memory::take_in_large_pages(&mut places);
        }
        ClientCounts {
            before: (places.as_ptr().addr().wrapping_neg() % PAGE) / size_of::<Words>(),
            places,
            line_count,
            has_one_core: cores == 1,
            of_v6: PairHash::new(&mut words),
            of_key: PairHash::new(&mut words),
            uncounted: AtomicU64::new(0),
        }
    }

    /// Connections that were not counted because there was no place.
    pub(crate) fn uncounted(&self) -> u64 {
        self.uncounted.load(Relaxed)
    }

    /// Clients that have open connections. Reads the whole table.
    pub(crate) fn in_use(&self) -> usize {
        let places = self.lines().iter().flatten();
        places.filter(|place| place[0].load(Relaxed) & OPEN != 0).count()
    }

    /// Counts one more open connection of a client; returns its place and how many were open before, `None` if no place is free.
    pub(crate) fn enter(&self, client: &ClientLines, now: Instant) -> Option<(ClientPlace, u64)> {
        let tag = client.tag;
        // Another core may take the place at the same moment.
        for _ in 0..PLACES {
            match self.find(client, now) {
                Found::Theirs(place) => {
                    let before = self.add(place, 1);
                    if before >> OPEN_BITS == tag {
                        return Some((place, before & OPEN));
                    }
                    self.leave(place);
                }
                Found::Free(place, word) => {
                    if self.exchange(place, word, tag << OPEN_BITS | 1) {
                        return Some((place, 0));
                    }
                }
                Found::Full => break,
            }
        }
        self.uncounted.fetch_add(1, Relaxed);
        None
    }

    /// A client's open connections, and when its bucket is full; `None` if it has no place.
    pub(crate) fn of(&self, client: &ClientLines, now: Instant) -> Option<(u64, u64)> {
        match self.find(client, now) {
            Found::Theirs(place) => Some((self.word(place, 0).load(Relaxed) & OPEN, self.due(place))),
            Found::Free(..) | Found::Full => None,
        }
    }

    /// Asks the processor for the lines in which a client may have its place.
    #[inline]
    pub(crate) fn prefetch(&self, client: &ClientLines) {
        client
            .lines
            .into_iter()
            .for_each(|line| e2d2::prefetch(&self.lines()[line as usize]));
    }

    /// Asks for the line of a place.
    #[inline]
    pub(crate) fn prefetch_place(&self, place: ClientPlace) {
        e2d2::prefetch(self.word(place, 0));
    }

    /// Counts one open connection less.
    pub(crate) fn leave(&self, place: ClientPlace) {
        self.add(place, u64::MAX);
    }

    /// Adds to a place's first word, and returns what it was.
    #[inline]
    fn add(&self, place: ClientPlace, number: u64) -> u64 {
        let word = self.word(place, 0);
        if !self.has_one_core {
            return word.fetch_add(number, Relaxed);
        }
        let before = word.load(Relaxed);
        word.store(before.wrapping_add(number), Relaxed);
        before
    }

    /// Sets a place's first word, if it is still `before`.
    #[inline]
    fn exchange(&self, place: ClientPlace, before: u64, after: u64) -> bool {
        let word = self.word(place, 0);
        if self.has_one_core {
            word.store(after, Relaxed);
            return true;
        }
        word.compare_exchange(before, after, Relaxed, Relaxed).is_ok()
    }

    /// When the bucket of the client in this place is full.
    #[inline]
    pub(crate) fn due(&self, place: ClientPlace) -> u64 {
        self.word(place, 1).load(Relaxed)
    }

    /// Sets the time at which the bucket is full to what `after` returns for the present one.
    ///
    /// Cores that do so for one client within nanoseconds may all count as one: an exchange that is atomic would wait for all stores
    /// before it, with each connection.
    pub(crate) fn take(&self, place: ClientPlace, after: impl Fn(u64) -> u64) {
        self.word(place, 1).store(after(self.due(place)), Relaxed);
    }

    /// Sets the time at which the bucket is full to `most`, if it is later.
    pub(crate) fn forgive(&self, place: ClientPlace, most: u64) {
        if self.due(place) > most {
            self.word(place, 1).store(most, Relaxed);
        }
    }

    /// Where a client may have its place.
    ///
    /// The upper half of the hash chooses the first line. Its lower 36 bits are the tag, whose upper bits choose the second line in the
    /// same page. Two clients are taken for one if they have a tag and a line in common: a chance of 2^-36 times three in the number of
    /// lines.
    #[inline]
    pub(crate) fn lines_of(&self, key: ClientKey) -> ClientLines {
        let prefix = if is_mapped(key.prefix) {
            u64::from(key.prefix as u32)
        } else {
            self.of_v6.of_wide(key.prefix)
        };
        let what = u64::from(key.listener) << 8 | u64::from(key.bits);
        let hash = self.of_key.of(prefix, what);
        let tag = (hash & TAG).max(1);
        let first = ((hash >> 32) * self.line_count as u64) >> 32;
        // As many as a power of two, so that the first line with some of its bits changed is another one of its page.
        let of_page = self.line_count.min(PAGE_LINES) as u64;
        let second = first ^ (1 + ((tag * (of_page - 1)) >> (u64::BITS - OPEN_BITS)));
        ClientLines {
            lines: [first as u32, second as u32],
            tag,
        }
    }

    fn find(&self, client: &ClientLines, now: Instant) -> Found {
        let ClientLines { lines, tag } = *client;
        let mut free = Found::Full;
        for line in lines {
            for (place, [word, due]) in self.lines()[line as usize].iter().enumerate() {
                let word = word.load(Relaxed);
                let place = || ClientPlace::of_index(line * PLACES as u32 + place as u32);
                if word >> OPEN_BITS == tag {
                    return Found::Theirs(place());
                }
                if word & OPEN == 0 && matches!(free, Found::Full) && due.load(Relaxed) <= now.as_nanos() {
                    free = Found::Free(place(), word);
                }
            }
        }
        free
    }

    #[inline]
    fn lines(&self) -> &[Line] {
        self.places[self.before..].as_chunks().0
    }

    #[inline]
    fn word(&self, place: ClientPlace, word: usize) -> &AtomicU64 {
        &self.places[self.before + place.index()][word]
    }
}

/// What a look for a client finds.
enum Found {
    /// Its place.
    Theirs(ClientPlace),
    /// It has none; this place is free, with this in its first word.
    Free(ClientPlace, u64),
    /// Nowhere, and there is no place.
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::time::Duration;

    const NOW: Instant = Instant::from_millis(1_000);

    fn key(n: u32) -> ClientKey {
        ClientKey {
            prefix: 0xffff_0000_0000 | u128::from(n),
            listener: 0,
            bits: 128,
        }
    }

    impl ClientCounts {
        fn enter_key(&self, key: ClientKey, now: Instant) -> Option<(ClientPlace, u64)> {
            self.enter(&self.lines_of(key), now)
        }

        fn of_key(&self, key: ClientKey, now: Instant) -> Option<(u64, u64)> {
            self.of(&self.lines_of(key), now)
        }
    }

    #[test]
    fn the_lines_of_a_client_are_two_of_one_page() {
        for connections in [1, 100, 1_000, 10_000] {
            let counts = ClientCounts::new((connections, 1), false, [1, 2]);
            assert_eq!(counts.lines().as_ptr().addr() % PAGE, 0);
            for n in 0..1_000 {
                let [first, second] = counts.lines_of(key(n)).lines.map(|line| line as usize);
                assert_ne!(first, second);
                assert_eq!(first / PAGE_LINES, second / PAGE_LINES);
                assert!(first.max(second) < counts.line_count);
            }
        }
    }

    #[test]
    fn a_client_is_another_for_each_listener_and_length() {
        let counts = ClientCounts::new((1_000, 2), false, [1, 2]);
        let all = [
            key(1),
            ClientKey { listener: 1, ..key(1) },
            ClientKey { bits: 127, ..key(1) },
        ];
        assert!(
            all.iter()
                .all(|key| counts.enter_key(*key, NOW).is_some_and(|(_, open)| open == 0))
        );
        assert!(all.iter().all(|key| counts.of_key(*key, NOW) == Some((1, 0))));
        assert_eq!(counts.in_use(), 3);
    }

    #[test]
    fn a_full_table_counts_no_new_client_and_forgets_none_with_connections() {
        let counts = ClientCounts::new((64, 2), false, [1, 2]);
        let places: HashMap<u32, ClientPlace> = (0..1_000)
            .filter_map(|n| Some((n, counts.enter_key(key(n), NOW)?.0)))
            .collect();
        assert!((100..=128).contains(&places.len()), "{}", places.len());
        assert_eq!(counts.uncounted(), 1_000 - places.len() as u64);
        for n in places.keys() {
            assert_eq!(counts.of_key(key(*n), NOW), Some((1, 0)), "{n}");
            assert_eq!(counts.enter_key(key(*n), NOW), Some((places[n], 1)));
        }
        places.values().for_each(|place| {
            counts.leave(*place);
            counts.leave(*place);
        });
        assert_eq!(counts.in_use(), 0);
        let others = (2_000..2_064)
            .filter(|n| counts.enter_key(key(*n), NOW).is_some())
            .count();
        assert_eq!(others, 64, "who has left makes room");
    }

    #[test]
    fn who_owes_something_keeps_his_place_until_his_bucket_is_full() {
        let counts = ClientCounts::new((1, 2), false, [1, 2]);
        let (place, _) = counts.enter_key(key(1), NOW).expect("a place");
        let later = NOW + Duration::from_secs(1);
        counts.take(place, |_| later.as_nanos());
        counts.leave(place);
        let others = |from: u32, now| {
            (from..from + 100)
                .filter(|n| counts.enter_key(key(*n), now).is_some())
                .count()
        };
        let taken = others(10, NOW);
        assert_eq!(counts.of_key(key(1), NOW), Some((0, later.as_nanos())));
        assert_eq!((taken, others(200, later)), (7, 1));
    }

    #[test]
    fn what_many_cores_count_at_once_is_right() {
        let counts = ClientCounts::new((64, 2), false, [1, 2]);
        std::thread::scope(|scope| {
            for core in 0..4 {
                let counts = &counts;
                scope.spawn(move || {
                    let mut open = Vec::new();
                    for n in 0..20_000_u32 {
                        open.extend(
                            counts
                                .enter_key(key(n.wrapping_mul(7 + core) % 90), NOW)
                                .map(|(place, _)| place),
                        );
                        if n % 3 != 0
                            && let Some(place) = open.pop()
                        {
                            counts.leave(place);
                        }
                    }
                    open.iter().for_each(|place| counts.leave(*place));
                });
            }
        });
        assert_eq!(counts.in_use(), 0);
        assert!((0..90).all(|n| counts.of_key(key(n), NOW).is_none_or(|counted| counted == (0, 0))));
    }
}
