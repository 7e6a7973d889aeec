//! One read-only table for all cores: what an address is in, of all lists and of all prefixes that rules name.
//!
//! ```text
//!   address ──► set, by a trie for each family
//!   set ──────► which conditions of rules it meets: one bit each; and which lists it is in
//! ```
//!
//! So the cost of a look-up does not depend on how many lists, prefixes and rules there are. The look-ups of a batch are made
//! together, step by step, so that each waits for memory while the others do.
//!
//! Budget, for each of 200 000 prefixes at random: 26 bytes for a host of IPv4, 42 for a /48 of IPv6, 79 for a /64 or a host of it, which
//! have a line of their own. Lists as registries have them take 7 MB for 100 000 prefixes of each family, 31 MB for 500 000.

use std::fmt;

use arrayvec::ArrayVec;
use e2d2::BURST;
use ipnet::IpNet;
use netfcts::leg::is_mapped;

use super::ranges::{Block, Ranges, Sets, TooManySets};
use super::trie::{TooLarge, Trie};

/// Why there is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// See [`TooManySets`].
    #[error(transparent)]
    Sets(#[from] TooManySets),
    /// See [`TooLarge`].
    #[error(transparent)]
    Size(#[from] TooLarge),
    /// More lists, classes and conditions than can be numbered.
    #[error("there are more than 65 534 classes of lists and conditions of rules")]
    Labels,
}

/// A prefix of a list, and its class in that list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Without host bits.
    pub prefix: IpNet,
    /// The number of its class, less than the number of the list's classes.
    pub class: u16,
}

/// A list as the table is made of it.
#[derive(Debug)]
pub struct Source {
    /// In any order, no prefix twice.
    pub entries: Vec<Entry>,
    /// How many classes it has; at least one.
    pub classes: usize,
}

/// What a rule asks of an address: one of these is enough.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Prefixes without host bits.
    pub prefixes: Vec<IpNet>,
    /// Lists by their place among the sources, with the number of a class, or any.
    pub lists: Vec<(usize, Option<u16>)>,
}

/// The lists that an address is in, by their places.
#[derive(Debug, PartialEq, Eq)]
pub struct Lists {
    /// For an address in no list, the place behind the last one, so that counting takes the same branches for all.
    pub first: u16,
    /// Of most addresses there is none.
    pub others: Box<[u16]>,
}

impl Lists {
    /// Those that have one of these labels, where each has labels from its own first one on.
    fn of(labels: &[u16], first_labels: &[usize]) -> Lists {
        let list_of = |label: &u16| first_labels.partition_point(|first| *first <= usize::from(*label)) - 1;
        let mut lists = labels.iter().map(|label| list_of(label) as u16);
        Lists {
            first: lists.next().unwrap_or(first_labels.len() as u16),
            others: lists.collect(),
        }
    }
}

/// Sets of addresses and what they mean.
pub struct ClientTable {
    v4: Trie<u32>,
    v6: Trie<u128>,
    /// Words of a row.
    words: usize,
    /// By set: a bit for each condition.
    rows: Vec<u64>,
    /// By set: the lists that it is in.
    lists: Vec<Lists>,
}

impl fmt::Debug for ClientTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTable")
            .field("sets", &self.sets())
            .finish_non_exhaustive()
    }
}

/// It follows from the lists and rules that stand beside it, which are compared.
impl PartialEq for ClientTable {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ClientTable {}

/// The place of an IPv4 address in a space of 128 bits: its bits come first, as a prefix has it.
fn key_of_v4(address: u128) -> u128 {
    address << 96
}

impl ClientTable {
    /// The table of these lists, for rules that ask these things.
    ///
    /// # Errors
    /// See [`TableError`].
    pub fn new(sources: &[Source], asked: &[Asked]) -> Result<Self, TableError> {
        let mut first_label = 0;
        let mut labels_of = Vec::with_capacity(sources.len());
        for source in sources {
            labels_of.push(first_label);
            first_label += source.classes;
        }
        let all = first_label + asked.len();
        if all >= usize::from(u16::MAX) {
            return Err(TableError::Labels);
        }
        let mut v4 = Vec::new();
        let mut v6 = Vec::new();
        for (source, first) in sources.iter().zip(&labels_of) {
            let blocks = source
                .entries
                .iter()
                .map(|entry| (entry.prefix, *first as u16 + entry.class));
            push(blocks, (&mut v4, &mut v6));
        }
        // What a rule names by itself is as a list without a name.
        for (of, label) in asked.iter().zip(first_label as u16..) {
            push(of.prefixes.iter().map(|prefix| (*prefix, label)), (&mut v4, &mut v6));
        }
        let mut sets = Sets::new();
        let v4 = Ranges::of(v4, &mut sets)?;
        let v6 = Ranges::of(v6, &mut sets)?;
        let is_asked = |of: &Asked, own: usize, label: usize| {
            label == own
                || of.lists.iter().any(|(list, class)| {
                    let first = labels_of[*list];
                    match class {
                        Some(class) => label == first + usize::from(*class),
                        None => (first..first + sources[*list].classes).contains(&label),
                    }
                })
        };
        let words = asked.len().div_ceil(64);
        let labels = sets.into_labels();
        let mut rows = vec![0_u64; words * labels.len()];
        for (set, labels) in labels.iter().enumerate() {
            for (number, of) in asked.iter().enumerate() {
                let is_met = labels
                    .iter()
                    .any(|label| is_asked(of, first_label + number, usize::from(*label)));
                rows[set * words + number / 64] |= u64::from(is_met) << (number % 64);
            }
        }
        // What a rule names by itself is in none.
        let in_lists = |labels: &[u16]| labels.partition_point(|label| usize::from(*label) < first_label);
        let lists = labels
            .iter()
            .map(|labels| Lists::of(&labels[..in_lists(labels)], &labels_of))
            .collect();
        Ok(ClientTable {
            v4: Trie::new(&v4)?,
            v6: Trie::new(&v6)?,
            words,
            rows,
            lists,
        })
    }

    /// The number of the set that an address is in, IPv4 in its mapped form.
    #[inline(never)]
    pub fn set_of(&self, address: u128) -> u16 {
        if is_mapped(address) {
            self.v4.set_of(address as u32)
        } else {
            self.v6.set_of(address)
        }
    }

    /// Prefetches what a look-up reads first.
    #[inline]
    pub fn prefetch(&self, address: u128) {
        if is_mapped(address) {
            self.v4.prefetch(self.v4.begin(), address as u32);
        } else {
            self.v6.prefetch(self.v6.begin(), address);
        }
    }

    /// The sets of several addresses, [`BURST`] at most, IPv4 in its mapped form: each is written behind its address.
    pub fn look_ahead<'s>(&self, addresses: impl Iterator<Item = (u128, &'s mut Option<u16>)>) {
        let mut v4 = ArrayVec::new();
        let mut v6 = ArrayVec::new();
        for (address, set) in addresses.take(BURST) {
            if is_mapped(address) {
                self.v4.look_up(address as u32, set, &mut v4);
            } else {
                self.v6.look_up(address, set, &mut v6);
            }
        }
        self.v4.go_on_together(v4);
        self.v6.go_on_together(v6);
    }

    /// How many sets there are.
    pub fn sets(&self) -> usize {
        self.lists.len()
    }

    /// Whether the addresses of a set are what the rules' condition with this number asks for.
    #[inline]
    pub fn meets(&self, set: u16, condition: u16) -> bool {
        let (word, bit) = (usize::from(condition) / 64, condition % 64);
        let row = self.rows.get(usize::from(set) * self.words + word);
        row.is_some_and(|row| row >> bit & 1 != 0)
    }

    /// The lists that the addresses of a set are in.
    #[inline]
    pub fn lists_of(&self, set: u16) -> Option<&Lists> {
        self.lists.get(usize::from(set))
    }

    /// The memory in bytes.
    pub fn memory(&self) -> usize {
        self.v4.memory() + self.v6.memory() + size_of_val(&*self.rows)
    }
}

/// Adds the blocks of one list to those of each family.
fn push(entries: impl Iterator<Item = (IpNet, u16)>, (v4, v6): (&mut Vec<Vec<Block>>, &mut Vec<Vec<Block>>)) {
    let (mut four, mut six) = (Vec::new(), Vec::new());
    for (prefix, label) in entries {
        match prefix {
            IpNet::V4(prefix) => four.push(Block {
                first: key_of_v4(u32::from(prefix.network()).into()),
                length: prefix.prefix_len(),
                label,
            }),
            IpNet::V6(prefix) => six.push(Block {
                first: prefix.network().into(),
                length: prefix.prefix_len(),
                label,
            }),
        }
    }
    v4.push(four);
    v6.push(six);
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
