//! How many connections each client has, and how many begin: one table of fixed size for all cores.
//!
//! A place is two words: a tag of the client's [hash](ClientKey) above the number of its open connections, and when the bucket of
//! its rate is full again. A client has one of the eight places of two lines. Every core changes the words as it counts, so that
//! they are exact; the cores that take a place's line from each other are those that serve the same client at the same time.
//!
//! ```text
//!   word 0   bits 0–27   open connections
//!                 28–63  the tag, not zero; of nobody if the word is
//!   word 1               when the bucket is full again, in ns
//! ```
//!
//! Who has nothing open and a full bucket keeps his place until another wants it; that he has one says no more than that he was
//! there lately. A place with open connections is never taken. If all eight are in use, the client is not counted, and it is counted that
//! he is not.

use crate::base::hash::{KeyWords, PairHash};
use e2d2::time::Instant;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Places of a line of the cache.
const PLACES: usize = 4;

type Line = [[AtomicU64; 2]; PLACES];

const OPEN_BITS: u32 = 28;
const OPEN: u64 = (1 << OPEN_BITS) - 1;

/// The counts of all clients. Relaxed accesses: they guard no other data.
#[derive(Debug)]
pub(crate) struct ClientCounts {
    lines: Box<[Line]>,
    /// For the lines, and for the tag.
    hashes: [[PairHash; 2]; 2],
    /// Connections that were not counted because there was no place.
    uncounted: AtomicU64,
}

/// Who is counted: some bits of an address, for one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientKey {
    /// The address, without the bits behind the prefix; IPv4 in its mapped form.
    pub(crate) prefix: u128,
    pub(crate) listener: u16,
    /// How many bits of it are the prefix.
    pub(crate) bits: u8,
}

/// Where a client is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientPlace(u32);

impl ClientPlace {
    /// As a number that is not zero.
    pub(crate) fn number(self) -> u32 {
        self.0 + 1
    }

    /// The place with this number, if it is not zero.
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        number.checked_sub(1).map(ClientPlace)
    }
}

impl ClientCounts {
    /// Nobody is counted; with room for the clients of `connections`, and as many again.
    pub(crate) fn new(connections: usize, secret: [u64; 2]) -> Self {
        let mut words = KeyWords::new(secret);
        let mut hash = || PairHash::new(&mut words);
        let lines = (2 * connections).div_ceil(PLACES).clamp(2, u32::MAX as usize / PLACES);
        ClientCounts {
            lines: bytemuck::zeroed_slice_box(lines),
            hashes: [[hash(), hash()], [hash(), hash()]],
            uncounted: AtomicU64::new(0),
        }
    }

    /// Connections that were not counted because there was no place.
    pub(crate) fn uncounted(&self) -> u64 {
        self.uncounted.load(Relaxed)
    }

    /// Clients that have a place now. Reads the whole table.
    pub(crate) fn in_use(&self) -> usize {
        let places = self.lines.iter().flatten();
        places.filter(|place| place[0].load(Relaxed) & OPEN != 0).count()
    }

    /// One more connection of a client is open: where it is counted, and how many there were. Nothing if there is no place.
    pub(crate) fn enter(&self, key: ClientKey, now: Instant) -> Option<(ClientPlace, u64)> {
        let (lines, tag) = self.lines_of(key);
        // Another core may take the place at the same moment.
        for _ in 0..PLACES {
            match self.find(lines, tag, now) {
                Found::Theirs(place) => {
                    let before = self.word(place, 0).fetch_add(1, Relaxed);
                    if before >> OPEN_BITS == tag {
                        return Some((place, before & OPEN));
                    }
                    self.word(place, 0).fetch_sub(1, Relaxed);
                }
                Found::Free(place, word) => {
                    let taken = tag << OPEN_BITS | 1;
                    if (self.word(place, 0).compare_exchange(word, taken, Relaxed, Relaxed)).is_ok() {
                        return Some((place, 0));
                    }
                }
                Found::Full => break,
            }
        }
        self.uncounted.fetch_add(1, Relaxed);
        None
    }

    /// How many connections of a client are open, and when its bucket is full again; nothing if it has no place.
    pub(crate) fn of(&self, key: ClientKey, now: Instant) -> Option<(u64, u64)> {
        let (lines, tag) = self.lines_of(key);
        match self.find(lines, tag, now) {
            Found::Theirs(place) => Some((self.word(place, 0).load(Relaxed) & OPEN, self.due(place))),
            Found::Free(..) | Found::Full => None,
        }
    }

    /// One connection fewer is open.
    pub(crate) fn leave(&self, place: ClientPlace) {
        self.word(place, 0).fetch_sub(1, Relaxed);
    }

    /// When the bucket of a client is full again.
    pub(crate) fn due(&self, place: ClientPlace) -> u64 {
        self.word(place, 1).load(Relaxed)
    }

    /// Something is taken from the bucket, by a function of when it would be full that says when it is then; or nothing, if that
    /// says so. Returns whether it was.
    pub(crate) fn take(&self, place: ClientPlace, after: impl Fn(u64) -> Option<u64>) -> bool {
        self.word(place, 1).fetch_update(Relaxed, Relaxed, after).is_ok()
    }

    /// The lines of a client, and its tag.
    fn lines_of(&self, key: ClientKey) -> ([usize; 2], u64) {
        let what = u64::from(key.listener) << 8 | u64::from(key.bits);
        let [places, tag] = [0, 1].map(|which| {
            let [of_prefix, of_both]: &[PairHash; 2] = &self.hashes[which];
            of_both.of(of_prefix.of_wide(key.prefix), what)
        });
        let scaled = |half: u64| (((half & 0xffff_ffff) * self.lines.len() as u64) >> 32) as usize;
        ([scaled(places >> 32), scaled(places)], (tag >> OPEN_BITS).max(1))
    }

    fn find(&self, lines: [usize; 2], tag: u64, now: Instant) -> Found {
        let mut free = Found::Full;
        for place in lines.iter().flat_map(|line| line * PLACES..(line + 1) * PLACES) {
            let place = ClientPlace(place as u32);
            let word = self.word(place, 0).load(Relaxed);
            if word >> OPEN_BITS == tag {
                return Found::Theirs(place);
            }
            if word & OPEN == 0 && matches!(free, Found::Full) && self.due(place) <= now.as_nanos() {
                free = Found::Free(place, word);
            }
        }
        free
    }

    fn word(&self, place: ClientPlace, word: usize) -> &AtomicU64 {
        let place = place.0 as usize;
        &self.lines[place / PLACES][place % PLACES][word]
    }
}

/// Where a client is, or could be.
enum Found {
    /// Here.
    Theirs(ClientPlace),
    /// Nowhere, but this place is nobody's, with this in its first word.
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

    #[test]
    fn a_client_is_another_for_each_listener_and_length() {
        let counts = ClientCounts::new(1_000, [1, 2]);
        let all = [
            key(1),
            ClientKey { listener: 1, ..key(1) },
            ClientKey { bits: 127, ..key(1) },
        ];
        assert!(
            all.iter()
                .all(|key| counts.enter(*key, NOW).is_some_and(|(_, open)| open == 0))
        );
        assert!(all.iter().all(|key| counts.of(*key, NOW) == Some((1, 0))));
        assert_eq!(counts.in_use(), 3);
    }

    #[test]
    fn a_full_table_counts_no_new_client_and_forgets_none_with_connections() {
        let counts = ClientCounts::new(64, [1, 2]);
        let places: HashMap<u32, ClientPlace> = (0..1_000)
            .filter_map(|n| Some((n, counts.enter(key(n), NOW)?.0)))
            .collect();
        assert!((100..=128).contains(&places.len()), "{}", places.len());
        assert_eq!(counts.uncounted(), 1_000 - places.len() as u64);
        for n in places.keys() {
            assert_eq!(counts.of(key(*n), NOW), Some((1, 0)), "{n}");
            assert_eq!(counts.enter(key(*n), NOW), Some((places[n], 1)));
        }
        places.values().for_each(|place| {
            counts.leave(*place);
            counts.leave(*place);
        });
        assert_eq!(counts.in_use(), 0);
        let others = (2_000..2_064).filter(|n| counts.enter(key(*n), NOW).is_some()).count();
        assert_eq!(others, 64, "who has left makes room");
    }

    #[test]
    fn who_owes_something_keeps_his_place_until_his_bucket_is_full() {
        let counts = ClientCounts::new(1, [1, 2]);
        let (place, _) = counts.enter(key(1), NOW).expect("a place");
        let later = NOW + Duration::from_secs(1);
        assert!(counts.take(place, |_| Some(later.as_nanos())));
        counts.leave(place);
        let others = |from: u32, now| {
            (from..from + 100)
                .filter(|n| counts.enter(key(*n), now).is_some())
                .count()
        };
        let taken = others(10, NOW);
        assert_eq!(counts.of(key(1), NOW), Some((0, later.as_nanos())));
        assert_eq!((taken, others(200, later)), (7, 1));
    }

    #[test]
    fn what_many_cores_count_at_once_is_right() {
        let counts = ClientCounts::new(64, [1, 2]);
        std::thread::scope(|scope| {
            for core in 0..4 {
                let counts = &counts;
                scope.spawn(move || {
                    let mut open = Vec::new();
                    for n in 0..20_000_u32 {
                        open.extend(
                            counts
                                .enter(key(n.wrapping_mul(7 + core) % 90), NOW)
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
        assert!((0..90).all(|n| counts.of(key(n), NOW).is_none_or(|counted| counted == (0, 0))));
    }
}
