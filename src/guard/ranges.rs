//! From prefixes to ranges: who is in which lists, address by address.
//!
//! Within one list the longest prefix that contains an address gives its class. Over all lists an address is in a *set* of
//! labels, one at most of each list; equal sets have one number, and 0 is that of the empty set.

use std::collections::HashMap;

/// A label, or none.
const NONE: u16 = u16::MAX;

/// More sets than these cannot be numbered.
pub(super) const MOST_SETS: usize = 1 << 16;

/// All addresses that begin with these bits, in a space of 128 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// The first of them.
    pub(super) first: u128,
    /// How many bits are the same.
    pub(super) length: u8,
    /// What they are called.
    pub(super) label: u16,
}

impl Block {
    fn last(&self) -> u128 {
        self.first | u128::MAX.checked_shr(self.length.into()).unwrap_or(0)
    }
}

/// Sets by their numbers.
#[derive(Debug)]
pub(super) struct Sets {
    numbers: HashMap<Box<[u16]>, u16>,
    labels: Vec<Box<[u16]>>,
}

/// There are more sets than can be numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lists and the rules' prefixes overlap in more than {MOST_SETS} ways")]
pub struct TooManySets;

impl Sets {
    /// With the empty one.
    pub(super) fn new() -> Self {
        let mut sets = Sets {
            numbers: HashMap::new(),
            labels: Vec::new(),
        };
        sets.numbers.insert(Box::default(), 0);
        sets.labels.push(Box::default());
        sets
    }

    fn number(&mut self, labels: &[u16]) -> Result<u16, TooManySets> {
        if let Some(number) = self.numbers.get(labels) {
            return Ok(*number);
        }
        if self.labels.len() == MOST_SETS {
            return Err(TooManySets);
        }
        let number = self.labels.len() as u16;
        self.numbers.insert(labels.into(), number);
        self.labels.push(labels.into());
        Ok(number)
    }

    /// Labels by the number of their set, ascending.
    pub(super) fn into_labels(self) -> Vec<Box<[u16]>> {
        self.labels
    }
}

/// Ranges that follow each other over the whole space: where each begins, and the set of its addresses.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// Ascending; the first is 0.
    pub(super) starts: Vec<u128>,
    /// As many.
    pub(super) sets: Vec<u16>,
}

impl Ranges {
    /// The ranges that these lists make together.
    ///
    /// # Errors
    /// See [`TooManySets`].
    pub(super) fn of(lists: Vec<Vec<Block>>, sets: &mut Sets) -> Result<Ranges, TooManySets> {
        let count = lists.len();
        let mut changes: Vec<(u128, u32, u16)> = Vec::new();
        for (list, blocks) in lists.into_iter().enumerate() {
            changes.extend(flatten(blocks).into_iter().map(|(at, label)| (at, list as u32, label)));
        }
        // Of one list there is one change at most at a place.
        changes.sort_unstable_by_key(|(at, list, _)| (*at, *list));
        let mut ranges = Ranges {
            starts: vec![0],
            sets: vec![0],
        };
        let (mut current, mut labels) = (vec![NONE; count], Vec::with_capacity(count));
        for at_once in changes.chunk_by(|a, b| a.0 == b.0) {
            for (_, list, label) in at_once {
                current[*list as usize] = *label;
            }
            labels.clear();
            labels.extend(current.iter().filter(|label| **label != NONE));
            ranges.push(at_once[0].0, sets.number(&labels)?);
        }
        Ok(ranges)
    }

    fn push(&mut self, start: u128, set: u16) {
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.sets.pop();
        }
        if self.sets.last() != Some(&set) {
            self.starts.push(start);
            self.sets.push(set);
        }
    }
}

/// Where the label changes in one list, and to what: each place once, ascending.
fn flatten(mut blocks: Vec<Block>) -> Vec<(u128, u16)> {
    blocks.sort_unstable_by_key(|block| (block.first, block.length));
    let mut changes: Vec<(u128, u16)> = Vec::with_capacity(2 * blocks.len());
    let mut change = |at, label| {
        if changes.last().is_some_and(|last| last.0 == at) {
            changes.pop();
        }
        changes.push((at, label));
    };
    // Blocks contain each other or have nothing in common: those around the current place, the smallest last.
    let mut around: Vec<Block> = Vec::new();
    for block in blocks {
        while around.last().is_some_and(|outer| outer.last() < block.first) {
            leave(&mut around, &mut change);
        }
        change(block.first, block.label);
        around.push(block);
    }
    while !around.is_empty() {
        leave(&mut around, &mut change);
    }
    changes
}

/// Behind the smallest block the label is that of the next larger one, if any.
fn leave(around: &mut Vec<Block>, change: &mut impl FnMut(u128, u16)) {
    let left = around.pop();
    if let Some(behind) = left.and_then(|block| block.last().checked_add(1)) {
        change(behind, around.last().map_or(NONE, |outer| outer.label));
    }
}
