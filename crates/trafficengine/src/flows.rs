//! Finds a connection by its 4-tuple: an open-addressing table of ids, for the server side.
//!
//! The table holds 8 bytes per slot at a load of at most one half; keys stay in the connections. Deletion shifts back, so
//! there are no tombstones and look-ups stay short however long the table lives.

/// Id that stands for an empty slot.
const EMPTY: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Slot {
    hash: u32,
    id: u32,
}

/// Ids by hash. The caller says which of the ids with the right hash is meant.
pub(crate) struct FlowTable {
    slots: Box<[Slot]>,
    mask: u32,
    len: usize,
}

impl FlowTable {
    /// A table for `capacity` ids.
    pub(crate) fn new(capacity: usize) -> FlowTable {
        let slots = (capacity.max(1) * 2).next_power_of_two();
        FlowTable {
            slots: vec![Slot { hash: 0, id: EMPTY }; slots].into_boxed_slice(),
            mask: (slots - 1) as u32,
            len: 0,
        }
    }

    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// The id with this hash that `is_it` confirms.
    #[inline]
    pub(crate) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = hash & self.mask;
        loop {
            let slot = self.slots[at as usize];
            if slot.id == EMPTY {
                return None;
            }
            if slot.hash == hash && is_it(slot.id) {
                return Some(slot.id);
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Asks the processor for the place where an id with this hash is.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u32) {
        e2d2::prefetch(&self.slots[(hash & self.mask) as usize]);
    }

    /// The id that `find` most likely finds, unchecked: what to prefetch next.
    #[inline]
    pub(crate) fn guess(&self, hash: u32) -> Option<u32> {
        self.find(hash, |_| true)
    }

    /// Puts an id in that is not there. Returns whether there was room.
    #[inline]
    pub(crate) fn insert(&mut self, hash: u32, id: u32) -> bool {
        if self.len * 2 >= self.slots.len() {
            return false;
        }
        let mut at = hash & self.mask;
        while self.slots[at as usize].id != EMPTY {
            at = (at + 1) & self.mask;
        }
        self.slots[at as usize] = Slot { hash, id };
        self.len += 1;
        true
    }

    /// Takes an id out; nothing happens if it is not there.
    #[inline]
    pub(crate) fn remove(&mut self, hash: u32, id: u32) {
        let mut at = hash & self.mask;
        while self.slots[at as usize].id != id {
            if self.slots[at as usize].id == EMPTY {
                return;
            }
            at = (at + 1) & self.mask;
        }
        self.len -= 1;
        // Close the gap: move up whatever would not be found across it.
        let mut gap = at;
        loop {
            at = (at + 1) & self.mask;
            let slot = self.slots[at as usize];
            if slot.id == EMPTY {
                break;
            }
            let home = slot.hash & self.mask;
            if (at.wrapping_sub(home) & self.mask) >= (at.wrapping_sub(gap) & self.mask) {
                self.slots[gap as usize] = slot;
                gap = at;
            }
        }
        self.slots[gap as usize].id = EMPTY;
    }
}

/// Hash of a remote address and port and a number for the local side. Not keyed: a generator's peers are its own.
#[inline]
pub(crate) fn flow_hash(remote: &[u8; 16], remote_port: u16, local: u32) -> u32 {
    let bits = u128::from_ne_bytes(*remote);
    let mut mixed = (bits as u64 ^ (bits >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= (u64::from(remote_port) << 32 | u64::from(local)).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    mixed = (mixed ^ mixed >> 32).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn full_table_refuses() {
        let mut table = FlowTable::new(4);
        assert_eq!(
            (0..6).map(|id| table.insert(1, id)).collect::<Vec<_>>(),
            [true, true, true, true, false, false]
        );
        assert_eq!(table.find(1, |id| id == 3), Some(3));
        table.remove(1, 9);
        table.remove(1, 0);
        assert!(table.insert(1, 9));
    }

    #[test]
    fn tuples_that_differ_in_one_part_spread() {
        let mut seen = HashMap::new();
        for host in 0..50u8 {
            for port in 0..200u16 {
                let mut remote = [0; 16];
                remote[15] = host;
                *seen.entry(flow_hash(&remote, 1024 + port, 0) % 1024).or_insert(0) += 1;
            }
        }
        // 10 000 into 1024 slots: about 10 each; Poisson's tail ends well before 40.
        assert!(seen.len() > 1000 && seen.values().all(|count| *count < 40));
    }

    proptest! {
        #[test]
        fn agrees_with_a_map(ops in prop::collection::vec((any::<bool>(), 0u32..40, 0u32..8), 1..400)) {
            let mut table = FlowTable::new(40);
            let mut model: HashMap<u32, u32> = HashMap::new();
            for (insert, id, hash) in ops {
                // Hashes collide on purpose, at the wrap of the table too.
                let hash = hash.wrapping_sub(4);
                if insert && !model.contains_key(&id) {
                    prop_assert!(table.insert(hash, id));
                    model.insert(id, hash);
                } else if let Some(hash) = model.remove(&id) {
                    table.remove(hash, id);
                }
                for (id, hash) in &model {
                    prop_assert_eq!(table.find(*hash, |found| found == *id), Some(*id));
                    // Which of those with this hash does not matter.
                    let guess = table.guess(*hash);
                    prop_assert!(guess.is_some_and(|guess| model.get(&guess) == Some(hash)));
                }
                prop_assert_eq!(table.len, model.len());
            }
        }
    }
}
