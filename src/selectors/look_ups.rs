//! Look-ups of clients' addresses that are made for a whole batch.

use arrayvec::ArrayVec;
use e2d2::BURST;

use crate::guard::ClientTable;

/// The sets of those of a batch's addresses that are looked up in a trie, which the selector keeps for life.
#[derive(Clone, Debug, Default)]
pub(super) struct Ahead {
    peers: ArrayVec<u128, BURST>,
    sets: ArrayVec<u16, BURST>,
    next: usize,
    /// The address that was asked for last, and its set.
    last: Option<(u128, u16)>,
}

impl Ahead {
    pub(super) fn fill(&mut self, peers: impl Iterator<Item = u128>, table: &ClientTable) {
        self.peers.clear();
        self.next = 0;
        let in_trie = peers.filter(|peer| !table.prefetch_next(*peer));
        self.peers.extend(in_trie.take(BURST));
        if !self.peers.is_empty() {
            table.sets_in_trie(&self.peers, &mut self.sets);
        }
    }

    /// The set of an address.
    #[inline]
    pub(super) fn set_of(&mut self, peer: u128, table: &ClientTable) -> u16 {
        let set = match table.set_in_blocks(peer) {
            Some(set) => set,
            None => self.set_in_trie(peer, table),
        };
        self.last = Some((peer, set));
        set
    }

    /// The set of an address, which is usually the next of those that were looked up.
    #[inline]
    fn set_in_trie(&mut self, peer: u128, table: &ClientTable) -> u16 {
        match self.peers.get(self.next).zip(self.sets.get(self.next)) {
            Some((of, set)) if *of == peer => {
                self.next += 1;
                *set
            }
            _ => self.find(peer, table),
        }
    }

    /// The same of one that is not: some may not be asked for.
    #[cold]
    fn find(&mut self, peer: u128, table: &ClientTable) -> u16 {
        let mut left = self.peers.iter().zip(&self.sets).enumerate().skip(self.next);
        match left.find(|(_, (of, _))| **of == peer) {
            Some((place, (_, set))) => {
                self.next = place + 1;
                *set
            }
            None => table.set_of(peer),
        }
    }

    /// The set of an address, which is usually the one asked for last.
    #[inline]
    pub(super) fn set_again(&self, peer: u128, table: &ClientTable) -> u16 {
        match self.last {
            Some((last, set)) if last == peer => set,
            _ => table.set_of(peer),
        }
    }
}
