//! Look-ups of clients' addresses that are made for a whole batch.

use arrayvec::ArrayVec;
use e2d2::BURST;

use crate::guard::{Ahead, ClientTable};

/// The look-ups of a batch's addresses, which the selector keeps for life.
#[derive(Clone, Debug, Default)]
pub(super) struct LookUps {
    peers: ArrayVec<u128, BURST>,
    made: ArrayVec<Ahead, BURST>,
    next: usize,
    /// The address that was asked for last, and its set.
    last: Option<(u128, u16)>,
}

impl LookUps {
    pub(super) fn fill(&mut self, peers: impl Iterator<Item = u128>, table: &ClientTable) {
        self.peers.clear();
        self.next = 0;
        self.peers.extend(peers.take(BURST));
        table.look_ahead(&self.peers, &mut self.made);
    }

    /// The set of an address, which is usually the next of those that were looked up.
    #[inline]
    pub(super) fn set_of(&mut self, peer: u128, table: &ClientTable) -> u16 {
        let set = match self.peers.get(self.next).zip(self.made.get(self.next)) {
            Some((of, ahead)) if *of == peer => {
                self.next += 1;
                table.set(*ahead, peer)
            }
            _ => self.find(peer, table),
        };
        self.last = Some((peer, set));
        set
    }

    /// The same of one that is not: some may not be asked for.
    #[cold]
    fn find(&mut self, peer: u128, table: &ClientTable) -> u16 {
        let mut left = self.peers.iter().zip(&self.made).enumerate().skip(self.next);
        match left.find(|(_, (of, _))| **of == peer) {
            Some((place, (_, ahead))) => {
                self.next = place + 1;
                table.set(*ahead, peer)
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
