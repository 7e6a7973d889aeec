//! Look-ups of clients' addresses that are made for a whole batch.

use arrayvec::ArrayVec;
use e2d2::BURST;

use crate::guard::ClientTable;

/// The sets of a batch's addresses in one table, which the selector keeps for life.
#[derive(Clone, Debug, Default)]
pub(super) struct Ahead {
    peers: ArrayVec<u128, BURST>,
    sets: ArrayVec<u16, BURST>,
    next: usize,
    /// The address that was asked for last, and its set.
    last: Option<(u128, u16)>,
}

impl Ahead {
    pub(super) fn fill(&mut self, peers: &[u128], table: &ClientTable) {
        self.peers.clear();
        self.peers.extend(peers.iter().take(BURST).copied());
        table.sets_of(&self.peers, &mut self.sets);
        self.next = 0;
    }

    /// The set of an address, which is usually the next of the batch.
    #[inline]
    pub(super) fn set_of(&mut self, peer: u128, table: &ClientTable) -> u16 {
        // Some may not be asked for.
        let mut left = self.peers.iter().zip(&self.sets).enumerate().skip(self.next);
        let set = match left.find(|(_, (of, _))| **of == peer) {
            Some((place, (_, set))) => {
                self.next = place + 1;
                *set
            }
            None => table.set_of(peer),
        };
        self.last = Some((peer, set));
        set
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
