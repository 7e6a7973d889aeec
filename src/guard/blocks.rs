//! The set of an IPv4 address, from many ranges.
//!
//! ```text
//!   first 24 bits ──► a set, or the number of a group ──► last 8 bits ──► a set
//! ```
//!
//! Of 64 blocks that follow each other, a table stores what the first says, which ones say something else than the one before
//! them, and what those say: 20 bytes, and 4 for each change. A group is a line of the cache. So 100 000 prefixes take 8 MiB, of
//! which much stays in the caches, where an entry of two bytes for each block would take 32, and more for groups.

use e2d2::memory::LargeSlice;
use e2d2::prefetch;

use super::ranges::Ranges;

/// Addresses that have their first 24 bits in common.
const BLOCK: usize = 256;

/// The entry of a block: a set, or above these bits the number of a group, or of a crowded one.
const GROUP: u32 = 1 << 31;
const CROWDED: u32 = 1 << 30;

/// The sets of all IPv4 addresses.
pub(super) struct Blocks {
    /// By the first 24 bits.
    blocks: Runs,
    groups: LargeSlice<Group>,
    /// By crowded group and the last 8 bits.
    crowded: Runs,
}

/// Ranges of a group but the first.
const CHANGES: usize = 16;

/// A block whose addresses are in few sets.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Group {
    /// The last address before each range but the first, or 255 for no range.
    before: [u8; CHANGES],
    sets: [u16; 1 + CHANGES],
}

impl Group {
    /// `None` if these sets of a block's addresses change too often.
    fn of(sets: &[u16; BLOCK]) -> Option<Group> {
        let mut group = Group {
            before: [u8::MAX; CHANGES],
            sets: [sets[0]; 1 + CHANGES],
        };
        let mut changes = 0;
        for before in 0..BLOCK - 1 {
            if sets[before] != sets[before + 1] {
                *group.before.get_mut(changes)? = before as u8;
                changes += 1;
                group.sets[changes] = sets[before + 1];
            }
        }
        Some(group)
    }

    #[inline]
    fn set_of(&self, last: u8) -> u16 {
        self.sets[self.before.iter().filter(|before| **before < last).count()]
    }
}

impl Blocks {
    /// Of these ranges, whose starts have an address in their first 32 bits.
    pub(super) fn new(ranges: &Ranges) -> Self {
        let (mut blocks, mut crowded) = (RunsBuilder::default(), RunsBuilder::default());
        let (mut groups, mut crowded_groups) = (Vec::new(), 0);
        let mut range = 0;
        let mut set_of = |address: u128| {
            while ranges
                .starts
                .get(range + 1)
                .is_some_and(|start| *start <= address << 96)
            {
                range += 1;
            }
            (ranges.sets[range], ranges.starts.get(range + 1).copied())
        };
        for first in (0..1_u128 << 32).step_by(BLOCK) {
            let (set, next) = set_of(first);
            if next.is_none_or(|next| next >> 96 >= first + BLOCK as u128) {
                blocks.push(set.into());
                continue;
            }
            let sets = std::array::from_fn(|last| set_of(first + last as u128).0);
            match Group::of(&sets) {
                Some(group) => {
                    blocks.push(GROUP | groups.len() as u32);
                    groups.push(group);
                }
                None => {
                    blocks.push(GROUP | CROWDED | crowded_groups);
                    crowded_groups += 1;
                    sets.into_iter().for_each(|set| crowded.push(set.into()));
                }
            }
        }
        Blocks {
            blocks: blocks.finish(),
            groups: LargeSlice::from_fn(groups.len(), |group| groups[group]),
            crowded: crowded.finish(),
        }
    }

    #[inline]
    pub(super) fn set_of(&self, address: u32) -> u16 {
        self.set_in(self.blocks.get(block_of(address)), address)
    }

    /// The set of an address whose block has this entry.
    #[inline]
    pub(super) fn set_in(&self, entry: u32, address: u32) -> u16 {
        if entry & GROUP == 0 {
            entry as u16
        } else if entry & CROWDED == 0 {
            self.groups[group_of(entry)].set_of(address as u8)
        } else {
            self.crowded.get(place_of(entry, address)) as u16
        }
    }

    /// The first step of a look-up. Asks the processor for what the second reads, [`Self::go_on`].
    #[inline]
    pub(super) fn begin(&self, address: u32) -> u32 {
        let place = self.blocks.find(block_of(address));
        prefetch(&self.blocks.numbers[place as usize]);
        place
    }

    /// The second step, from what the first has found: the entry of the address's block. Asks for what the last reads,
    /// [`Self::set_in`].
    #[inline]
    pub(super) fn go_on(&self, place: u32, address: u32) -> u32 {
        let entry = self.blocks.numbers[place as usize];
        if entry & (GROUP | CROWDED) == GROUP {
            prefetch(&self.groups[group_of(entry)]);
        } else if entry & CROWDED != 0 {
            self.crowded.prefetch(place_of(entry, address));
        }
        entry
    }

    /// Asks the processor for what a look-up reads first.
    #[inline]
    pub(super) fn prefetch(&self, address: u32) {
        self.blocks.prefetch(block_of(address));
    }

    /// The memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.blocks.memory() + size_of_val(&*self.groups) + self.crowded.memory()
    }
}

#[inline]
fn block_of(address: u32) -> usize {
    (address >> 8) as usize
}

#[inline]
fn group_of(entry: u32) -> usize {
    (entry & !(GROUP | CROWDED)) as usize
}

#[inline]
fn place_of(entry: u32, address: u32) -> usize {
    group_of(entry) * BLOCK + (address & 0xff) as usize
}

/// Places of a stretch.
const STRETCH: usize = 64;

/// What places that follow each other say.
#[derive(Clone, Copy)]
struct Stretch {
    /// A bit for each place that says something else than the one before it, but for the first.
    changes: u64,
    /// Where in the table of numbers that of the first place is; behind it are those of the changes.
    start: u32,
}

/// A number for each place.
struct Runs {
    stretches: LargeSlice<Stretch>,
    numbers: LargeSlice<u32>,
}

impl Runs {
    #[inline]
    fn get(&self, place: usize) -> u32 {
        self.numbers[self.find(place) as usize]
    }

    /// Where in the table of numbers that of a place is. Without a branch, as nothing tells of the addresses of a flood which it is.
    #[inline]
    fn find(&self, place: usize) -> u32 {
        let stretch = &self.stretches[place / STRETCH];
        let until = stretch.changes << (STRETCH - 1 - place % STRETCH);
        stretch.start + until.count_ones()
    }

    /// Asks the processor for what is read first.
    #[inline]
    fn prefetch(&self, place: usize) {
        prefetch(&self.stretches[place / STRETCH]);
    }

    fn memory(&self) -> usize {
        size_of_val(&*self.stretches) + size_of_val(&*self.numbers)
    }
}

/// Takes the number of each place in turn.
#[derive(Default)]
struct RunsBuilder {
    stretches: Vec<Stretch>,
    numbers: Vec<u32>,
    /// Places of the last stretch that have their number.
    filled: usize,
}

impl RunsBuilder {
    fn push(&mut self, number: u32) {
        match self.stretches.last_mut().filter(|_| self.filled < STRETCH) {
            None => {
                self.filled = 0;
                self.stretches.push(Stretch {
                    changes: 0,
                    start: self.numbers.len() as u32,
                });
                self.numbers.push(number);
            }
            Some(stretch) if self.numbers.last() != Some(&number) => {
                stretch.changes |= 1 << self.filled;
                self.numbers.push(number);
            }
            Some(_) => {}
        }
        self.filled += 1;
    }

    fn finish(self) -> Runs {
        let Self { stretches, numbers, .. } = self;
        Runs {
            stretches: LargeSlice::from_fn(stretches.len(), |place| stretches[place]),
            numbers: LargeSlice::from_fn(numbers.len(), |place| numbers[place]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use e2d2::BURST;

    #[test]
    fn a_look_up_finds_what_a_search_among_the_ranges_finds() {
        // Lengths of every size, blocks with one change and with many, and changes at the first and last address.
        let mut seed = 7_u64;
        let mut random = || {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (seed >> 32) as u32
        };
        let mut starts = vec![0, u32::MAX];
        for _ in 0..3_000 {
            let start = random();
            let crowded = 0x0a00_0000 | start & 0xffff;
            starts.extend([start, start & 0xffff_ff00, crowded, crowded & 0xffff_ffc0]);
        }
        starts.sort_unstable();
        starts.dedup();
        let mut ranges = Ranges::default();
        for start in &starts {
            ranges.starts.push(u128::from(*start) << 96);
            ranges.sets.push(
                (ranges
                    .sets
                    .last()
                    .map_or(0, |last: &u16| last + 1 + random() as u16 % 5))
                    % 7,
            );
        }
        let blocks = Blocks::new(&ranges);
        let around = |start: &u32| [start.wrapping_sub(1), *start, start.wrapping_add(1)];
        let edges = starts.iter().flat_map(around).collect::<Vec<_>>();
        let all = edges
            .into_iter()
            .chain((0..100_000).map(|_| random()))
            .collect::<Vec<_>>();
        for some in all.chunks(BURST) {
            let begun = some.iter().map(|address| blocks.begin(*address)).collect::<Vec<_>>();
            for (address, place) in some.iter().zip(begun) {
                let entry = blocks.go_on(place, *address);
                let set = ranges.sets[starts.partition_point(|start| start <= address) - 1];
                assert_eq!(blocks.set_of(*address), set, "{address:#x}");
                assert_eq!(blocks.set_in(entry, *address), set, "{address:#x} in two steps");
                blocks.prefetch(*address);
            }
        }
        assert!(!blocks.groups.is_empty() && !blocks.crowded.stretches.is_empty());
    }
}
