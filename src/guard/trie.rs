//! The set of an address, from ranges: a trie whose nodes are as wide as what is below them is numerous.
//!
//! Where few ranges begin there is a leaf: one line of the cache that says where each begins and what its set is. A node takes as
//! many bits as leave half a leaf to each slot. Bits that all ranges below a node have in common are skipped in one step, where a
//! node would have one slot in use. So a look-up takes about the logarithm of the logarithm of the number of ranges, and a step
//! for each skip: two reads that depend on each other for IPv4, three for 100 000 prefixes of IPv6.
//!
//! ```text
//!   entry: 00 set                          all addresses below are of this set
//!          01 index:30                     a leaf
//!          10 bits:5  base:25              the slot `base` + the next so many bits of the address
//!          11 index:30                     all ranges begin in one small block: the address is in it, before or behind it
//! ```

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::memory::LargeSlice;
use e2d2::prefetch;

use super::leaf::{Address, Leaf};
use super::ranges::Ranges;

/// So many bits does a node take at least, if there are as many, and at most.
const NARROWEST: u32 = 2;
const WIDEST: u32 = 18;

const TAG: u32 = 30;
const SET_TAG: u32 = 0;
const LEAF_TAG: u32 = 1;
const NODE_TAG: u32 = 2;
const SKIP_TAG: u32 = 3;

/// Slots, and starts, that an entry can name.
const MOST: usize = 1 << 25;

/// Sets by address.
pub(super) struct Trie<A: Address> {
    root: u32,
    slots: LargeSlice<u32>,
    leaves: LargeSlice<A::Leaf>,
    skips: LargeSlice<Skip<A>>,
}

/// The only small block of a larger one in which ranges begin.
#[derive(Clone, Copy)]
struct Skip<A> {
    first: A,
    last: A,
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
    entry: u32,
    /// Bits of the address that nodes have not taken.
    left: u32,
}

/// Look-ups under way, and where the set of each is to be written.
pub(super) type Walks<'s, A> = ArrayVec<(A, Walk, &'s mut Option<u16>), BURST>;

impl<A: Address> Trie<A> {
    /// # Errors
    /// See [`TooLarge`].
    pub(super) fn new(ranges: &Ranges) -> Result<Self, TooLarge> {
        if ranges.starts.len() > MOST {
            return Err(TooLarge);
        }
        let mut builder = Builder {
            ranges,
            slots: Vec::new(),
            leaves: Vec::new(),
            skips: Vec::new(),
        };
        let root = builder.entry(0, A::BITS, 1, ranges.starts.len())?;
        let Builder {
            slots, leaves, skips, ..
        } = builder;
        Ok(Trie {
            root,
            slots: LargeSlice::from_fn(slots.len(), |slot| slots[slot]),
            leaves: LargeSlice::from_fn(leaves.len(), |leaf| leaves[leaf]),
            skips: LargeSlice::from_fn(skips.len(), |skip| skips[skip]),
        })
    }

    /// The set of an address.
    #[inline]
    pub(super) fn set_of(&self, address: A) -> u16 {
        let mut walk = self.begin();
        loop {
            if let Some(set) = self.go_on(&mut walk, address) {
                return set;
            }
        }
    }

    /// The first step of a look-up. Those that are not at their end go on [together](Self::go_on_together).
    #[inline]
    pub(super) fn look_up<'s>(&self, address: A, set: &'s mut Option<u16>, others: &mut Walks<'s, A>) {
        let mut walk = self.begin();
        *set = self.go_on(&mut walk, address);
        if set.is_none() {
            self.prefetch(walk, address);
            others.push((address, walk, set));
        }
    }

    /// Makes look-ups step by step, so that each waits for memory while the others do.
    #[inline]
    pub(super) fn go_on_together(&self, mut walks: Walks<'_, A>) {
        while !walks.is_empty() {
            let mut left = ArrayVec::new();
            for (address, mut walk, set) in walks.drain(..) {
                *set = self.go_on(&mut walk, address);
                if set.is_none() {
                    self.prefetch(walk, address);
                    left.push((address, walk, set));
                }
            }
            walks = left;
        }
    }

    #[inline]
    pub(super) fn begin(&self) -> Walk {
        Walk {
            entry: self.root,
            left: A::BITS,
        }
    }

    /// Prefetches what the next step reads.
    #[inline]
    pub(super) fn prefetch(&self, walk: Walk, address: A) {
        let tag = walk.entry >> TAG;
        if tag == LEAF_TAG {
            prefetch(&self.leaves[index(walk.entry)]);
        } else if tag == NODE_TAG {
            prefetch(&self.slots[slot(walk, address)]);
        }
    }

    /// The next step: the set, or none yet.
    #[inline]
    pub(super) fn go_on(&self, walk: &mut Walk, address: A) -> Option<u16> {
        let tag = walk.entry >> TAG;
        if tag == LEAF_TAG {
            return Some(self.leaves[index(walk.entry)].set_of(address));
        }
        if tag != NODE_TAG {
            return self.go_on_elsewhere(walk, address);
        }
        let next = self.slots[slot(*walk, address)];
        walk.left -= bits(walk.entry);
        walk.entry = next;
        (next >> TAG == SET_TAG).then_some(next as u16)
    }

    /// The same where few come.
    #[cold]
    fn go_on_elsewhere(&self, walk: &mut Walk, address: A) -> Option<u16> {
        if walk.entry >> TAG == SET_TAG {
            return Some(walk.entry as u16);
        }
        let skip = &self.skips[index(walk.entry)];
        if address < skip.first {
            return Some(skip.before);
        }
        if address > skip.last {
            return Some(skip.behind);
        }
        (walk.entry, walk.left) = (skip.entry, skip.left);
        None
    }

    /// The memory in bytes.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.slots) + size_of_val(&*self.leaves) + size_of_val(&*self.skips)
    }
}

#[inline]
fn index(entry: u32) -> usize {
    (entry & ((1 << TAG) - 1)) as usize
}

#[inline]
fn bits(entry: u32) -> u32 {
    entry >> 25 & 31
}

#[inline]
fn slot<A: Address>(walk: Walk, address: A) -> usize {
    let bits = bits(walk.entry);
    let next = address.behind(walk.left - bits) & ((1 << bits) - 1);
    (walk.entry & ((1 << 25) - 1)) as usize + next as usize
}

struct Builder<'a, A: Address> {
    ranges: &'a Ranges,
    slots: Vec<u32>,
    leaves: Vec<A::Leaf>,
    skips: Vec<Skip<A>>,
}

impl<A: Address> Builder<'_, A> {
    /// Bits of a start below those of an address.
    const BELOW: u32 = u128::BITS - A::BITS;

    /// The entry for the block of `left` bits from `first` on, in which the ranges `from..to` begin behind its first address.
    fn entry(&mut self, first: u128, left: u32, from: usize, to: usize) -> Result<u32, TooLarge> {
        let Ranges { starts, sets } = self.ranges;
        let count = to - from;
        if count == 0 {
            return Ok(sets[from - 1].into());
        }
        if let Some(leaf) = A::Leaf::of(&starts[from..to], &sets[from - 1..to]) {
            self.leaves.push(leaf);
            return Ok(LEAF_TAG << TAG | (self.leaves.len() - 1) as u32);
        }
        let slots = count / (A::Leaf::MOST_STARTS / 2);
        let bits = slots.max(1).ilog2().clamp(NARROWEST, WIDEST).min(left);
        let differ = (u128::BITS - (starts[from] ^ starts[to - 1]).leading_zeros()).saturating_sub(Self::BELOW);
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
            let first = first + ((child as u128) << left << Self::BELOW);
            let last = first + ((1 << left << Self::BELOW) - 1);
            // A range that begins with the block is what its first address is in.
            let is_first = from < to && starts[from] == first;
            from += usize::from(is_first);
            let inside = starts[from..to].partition_point(|start| *start <= last);
            self.slots[base + child] = self.entry(first, left, from, from + inside)?;
            from += inside;
        }
        Ok(NODE_TAG << TAG | bits << 25 | base as u32)
    }

    /// The entry for a block of which all but the last `left` bits are the same wherever the ranges `from..to` begin.
    fn skip(&mut self, left: u32, from: usize, to: usize) -> Result<u32, TooLarge> {
        let Ranges { starts, sets } = self.ranges;
        let size = 1 << left << Self::BELOW;
        let first = starts[from] / size * size;
        let (before, behind) = (sets[from - 1], sets[to - 1]);
        let is_first = starts[from] == first;
        let entry = self.entry(first, left, from + usize::from(is_first), to)?;
        self.skips.push(Skip {
            first: A::of_start(first),
            last: A::of_start(first + (size - 1)),
            left,
            entry,
            before,
            behind,
        });
        Ok(SKIP_TAG << TAG | (self.skips.len() - 1) as u32)
    }
}
