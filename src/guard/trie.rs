//! The set of an address of 128 bits, from ranges: a trie whose nodes are as wide as what is below them is numerous.
//!
//! A node takes as many bits as halve its ranges to one or two a slot, 16 at most; where eight or fewer are left there is no
//! node, but the places where they begin. Bits that all ranges below have in common are skipped in one step, where a node would
//! have one slot in use. So a look-up takes about the logarithm of the logarithm of the number of ranges, and a step for each
//! skip: three reads that depend on each other for a million ranges at random; and an only list of four prefixes takes one line.
//!
//! ```text
//!   entry: 00 set                          all addresses below are of this set
//!          01 count:4 index:26             compare with so many starts from there on
//!          10 bits:5  base:25              the slot `base` + the next so many bits of the address
//!          11 index:30                     all ranges begin in one small block: the address is in it, before or behind it
//! ```

use e2d2::memory::LargeSlice;
use e2d2::prefetch;

use super::ranges::Ranges;

/// So many starts are compared one by one.
const RUN: usize = 8;

/// So many bits does a node take at most.
const WIDEST: u32 = 16;

const TAG: u32 = 30;
const RUN_TAG: u32 = 1;
const NODE_TAG: u32 = 2;
const SKIP_TAG: u32 = 3;

/// Slots, and starts, that an entry can name.
const MOST: usize = 1 << 25;

/// Sets by address.
pub(super) struct Trie {
    root: u32,
    slots: LargeSlice<u32>,
    skips: LargeSlice<Skip>,
    starts: LargeSlice<u128>,
    sets: LargeSlice<u16>,
}

/// The only small block of a larger one in which ranges begin.
#[derive(Clone, Copy)]
struct Skip {
    first: u128,
    /// The bits in which its addresses differ.
    left: u32,
    /// The entry for it.
    entry: u32,
    /// The sets of the addresses before it, and behind it.
    before: u16,
    behind: u16,
}

/// The tables of a trie would be larger than its entries can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the prefixes take a table of more than {MOST} places")]
pub struct TooLarge;

/// A look-up under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    key: u128,
    entry: u32,
    /// Bits of the key that nodes have not taken.
    left: u32,
}

impl Trie {
    /// # Errors
    /// See [`TooLarge`].
    pub(super) fn new(ranges: &Ranges) -> Result<Trie, TooLarge> {
        if ranges.starts.len() > MOST {
            return Err(TooLarge);
        }
        let mut builder = Builder {
            ranges,
            slots: Vec::new(),
            skips: Vec::new(),
        };
        let root = builder.entry(0, u128::BITS, 1, ranges.starts.len())?;
        let Builder { slots, skips, .. } = builder;
        Ok(Trie {
            root,
            skips: LargeSlice::from_fn(skips.len(), |skip| skips[skip]),
            slots: LargeSlice::from_fn(slots.len(), |slot| slots[slot]),
            starts: LargeSlice::from_fn(ranges.starts.len(), |start| ranges.starts[start]),
            sets: LargeSlice::from_fn(ranges.sets.len(), |set| ranges.sets[set]),
        })
    }

    /// The set of an address.
    #[inline]
    pub(super) fn set_of(&self, key: u128) -> u16 {
        let mut walk = self.begin(key);
        loop {
            if let Some(set) = self.go_on(&mut walk) {
                return set;
            }
        }
    }

    /// Begins a look-up that goes on in steps, so that others have their turn while memory answers.
    #[inline]
    pub(super) fn begin(&self, key: u128) -> Walk {
        Walk {
            key,
            entry: self.root,
            left: u128::BITS,
        }
    }

    /// Asks the processor for what the next step reads.
    #[inline]
    pub(super) fn prefetch(&self, walk: &Walk) {
        match walk.entry >> TAG {
            RUN_TAG => {
                let (first, count) = run(walk.entry);
                prefetch(&self.starts[first]);
                prefetch(&self.starts[first + count - 1]);
                prefetch(&self.sets[first]);
            }
            NODE_TAG => prefetch(&self.slots[slot(walk)]),
            SKIP_TAG => prefetch(&self.skips[skip(walk.entry)]),
            _ => {}
        }
    }

    /// The next step: the set, or none yet.
    #[inline]
    pub(super) fn go_on(&self, walk: &mut Walk) -> Option<u16> {
        match walk.entry >> TAG {
            RUN_TAG => {
                let (first, count) = run(walk.entry);
                let starts = &self.starts[first..first + count];
                let behind = starts.iter().filter(|start| **start <= walk.key).count();
                // Before the first of them, it is the one before.
                Some(self.sets[first + behind - 1])
            }
            NODE_TAG => {
                let next = self.slots[slot(walk)];
                walk.left -= bits(walk.entry);
                walk.entry = next;
                None
            }
            SKIP_TAG => {
                let skip = &self.skips[skip(walk.entry)];
                if (walk.key ^ skip.first) >> skip.left == 0 {
                    (walk.entry, walk.left) = (skip.entry, skip.left);
                    return None;
                }
                Some(if walk.key < skip.first {
                    skip.before
                } else {
                    skip.behind
                })
            }
            _ => Some(walk.entry as u16),
        }
    }

    /// The memory in bytes.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.slots) + size_of_val(&*self.skips) + size_of_val(&*self.starts) + size_of_val(&*self.sets)
    }
}

#[inline]
fn run(entry: u32) -> (usize, usize) {
    ((entry & ((1 << 26) - 1)) as usize, (entry >> 26 & 15) as usize)
}

#[inline]
fn skip(entry: u32) -> usize {
    (entry & ((1 << TAG) - 1)) as usize
}

#[inline]
fn bits(entry: u32) -> u32 {
    entry >> 25 & 31
}

#[inline]
fn slot(walk: &Walk) -> usize {
    let bits = bits(walk.entry);
    let next = (walk.key >> (walk.left - bits)) as u32 & ((1 << bits) - 1);
    (walk.entry & ((1 << 25) - 1)) as usize + next as usize
}

struct Builder<'a> {
    ranges: &'a Ranges,
    slots: Vec<u32>,
    skips: Vec<Skip>,
}

impl Builder<'_> {
    /// The entry for the block of `left` bits from `first` on, in which the ranges `from..to` begin behind its first address.
    fn entry(&mut self, first: u128, left: u32, from: usize, to: usize) -> Result<u32, TooLarge> {
        let count = to - from;
        if count == 0 {
            return Ok(self.ranges.sets[from - 1].into());
        }
        if count <= RUN {
            return Ok(RUN_TAG << TAG | (count as u32) << 26 | from as u32);
        }
        // More than eight addresses take more than three bits.
        let bits = count.ilog2().clamp(1, WIDEST).min(left);
        let differ = u128::BITS - (self.ranges.starts[from] ^ self.ranges.starts[to - 1]).leading_zeros();
        if differ + bits <= left {
            return self.skip(differ, from, to);
        }
        let base = self.slots.len();
        if base + (1 << bits) > MOST {
            return Err(TooLarge);
        }
        self.slots.resize(base + (1 << bits), 0);
        let left = left - bits;
        let mut from = from;
        for child in 0..1_usize << bits {
            let first = first + ((child as u128) << left);
            let last = first + ((1 << left) - 1);
            // A range that begins with the block is what its first address is in.
            let is_first = from < to && self.ranges.starts[from] == first;
            from += usize::from(is_first);
            let inside = self.ranges.starts[from..to].partition_point(|start| *start <= last);
            self.slots[base + child] = self.entry(first, left, from, from + inside)?;
            from += inside;
        }
        Ok(NODE_TAG << TAG | bits << 25 | base as u32)
    }

    /// The entry for a block of which all but the last `left` bits are the same wherever the ranges `from..to` begin.
    fn skip(&mut self, left: u32, from: usize, to: usize) -> Result<u32, TooLarge> {
        let Ranges { starts, sets } = self.ranges;
        let first = starts[from] >> left << left;
        let (before, behind) = (sets[from - 1], sets[to - 1]);
        let is_first = starts[from] == first;
        let entry = self.entry(first, left, from + usize::from(is_first), to)?;
        self.skips.push(Skip {
            first,
            left,
            entry,
            before,
            behind,
        });
        Ok(SKIP_TAG << TAG | (self.skips.len() - 1) as u32)
    }
}
