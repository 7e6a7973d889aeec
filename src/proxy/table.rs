//! The flow table of one core: which connection a packet belongs to, and from which side it comes.
//!
//! Open addressing with linear probing and backward-shift deletion: no tombstones, so that look-ups stay short however
//! long the core runs. An entry is eight bytes (31 bits of the hash, the leg, the slot); the key itself is in the
//! connection, compared only when those bits match. Two entries a connection, one for each leg.
//!
//! The hash is keyed with random numbers, so that nobody outside can choose flows that collide.
//!
//! Budget: 8 bytes an entry at a load of at most three fifths; look-up of a prefetched line about 20 cycles.
//! Source: `benches/core`.

use super::event::Side;
use e2d2::memory::prefer_large_pages;

/// What identifies one leg: the peer's end point and ours. IPv4 addresses are in their IPv4-mapped form
/// (RFC 4291 2.5.5.2), which a checked packet never carries as IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The peer's address.
    pub remote: u128,
    /// Our address.
    pub local: u128,
    /// The peer's port.
    pub remote_port: u16,
    /// Our port.
    pub local_port: u16,
}

impl FlowKey {
    /// The key as 36 bytes, for keyed hashes.
    pub fn to_bytes(&self) -> [u8; 36] {
        let mut bytes = [0; 36];
        bytes[..16].copy_from_slice(&self.remote.to_be_bytes());
        bytes[16..32].copy_from_slice(&self.local.to_be_bytes());
        bytes[32..34].copy_from_slice(&self.remote_port.to_be_bytes());
        bytes[34..].copy_from_slice(&self.local_port.to_be_bytes());
        bytes
    }
}

/// What an entry points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowRef(u32);

impl FlowRef {
    const SERVER_LEG: u32 = 1 << 31;
    const QUARANTINED: u32 = 1 << 30;

    /// The number of slots that can be told apart.
    pub const MAX_SLOTS: usize = 1 << 30;

    /// The client leg of a live connection.
    pub const fn client(slot: u32) -> Self {
        FlowRef(slot)
    }

    /// The server leg of a live connection.
    pub const fn server(slot: u32) -> Self {
        FlowRef(slot | Self::SERVER_LEG)
    }

    /// The same leg of a connection in quarantine.
    pub const fn quarantined(self, slot: u32) -> Self {
        FlowRef(self.0 & Self::SERVER_LEG | Self::QUARANTINED | slot)
    }

    /// True for the server leg.
    pub const fn is_server_leg(self) -> bool {
        self.0 & Self::SERVER_LEG != 0
    }

    /// The peer at the other end of the leg.
    #[inline]
    pub const fn side(self) -> Side {
        if self.is_server_leg() {
            Side::Server
        } else {
            Side::Client
        }
    }

    /// True when `slot` is one of the quarantine.
    pub const fn is_quarantined(self) -> bool {
        self.0 & Self::QUARANTINED != 0
    }

    /// The index of the connection, or of the quarantine entry.
    pub const fn slot(self) -> u32 {
        self.0 & !(Self::SERVER_LEG | Self::QUARANTINED)
    }
}

/// A full table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the flow table is full")]
pub struct TableFull;

/// One entry: `tag` is zero when it is free; its other bits are those of the hash that also say where its home is.
#[derive(Clone, Copy)]
struct Entry {
    tag: u32,
    flow: FlowRef,
}

const FREE: Entry = Entry {
    tag: 0,
    flow: FlowRef(0),
};

/// Which connection owns a flow.
pub struct FlowTable {
    entries: Box<[Entry]>,
    used: usize,
    limit: usize,
    keys: [u64; 3],
}

impl FlowTable {
    /// A table for `flows` flows (two a connection), hashed with the secret `keys`.
    pub fn new(flows: usize, keys: [u64; 3]) -> Self {
        // Three fifths full at most: by Knuth's formulas for linear probing 1.8 probes for a hit and 3.6 for a miss.
        let size = flows.max(8) * 5 / 3 + 1;
        // An even key would lose the low bits of the product.
        let keys = [keys[0] | 1, keys[1] | 1, keys[2] | 1];
        let entries = vec![FREE; size].into_boxed_slice();
        prefer_large_pages(&entries);
        FlowTable {
            entries,
            used: 0,
            limit: flows.max(8),
            keys,
        }
    }

    /// The hash of a key; computed once for a packet.
    #[inline]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        let ports = u64::from(key.remote_port) << 16 | u64::from(key.local_port);
        let remote = fold(
            key.remote as u64 ^ self.keys[0],
            (key.remote >> 64) as u64 ^ self.keys[1],
        );
        let local = fold(key.local as u64 ^ self.keys[1], (key.local >> 64) as u64 ^ self.keys[2]);
        fold(remote ^ ports ^ self.keys[2], local ^ self.keys[0])
    }

    /// Asks the processor for the line that a look-up of `hash` will read.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        e2d2::prefetch(&self.entries[self.home(tag_of(hash))]);
    }

    /// The flow with this `hash` for which `is_it` holds (it compares the key in the connection).
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(FlowRef) -> bool) -> Option<FlowRef> {
        let tag = tag_of(hash);
        let mut at = self.home(tag_of(hash));
        loop {
            let entry = self.entries[at];
            if entry.tag == tag && is_it(entry.flow) {
                return Some(entry.flow);
            }
            if entry.tag == 0 {
                return None;
            }
            at = self.after(at);
        }
    }

    /// The most likely flow with this `hash`, unchecked: what to prefetch next.
    #[inline]
    pub fn guess(&self, hash: u64) -> Option<FlowRef> {
        let entry = self.entries[self.home(tag_of(hash))];
        (entry.tag == tag_of(hash)).then_some(entry.flow)
    }

    /// Adds a flow that is not in the table.
    ///
    /// # Errors
    /// [`TableFull`] when the table holds as many flows as it was made for.
    pub fn insert(&mut self, hash: u64, flow: FlowRef) -> Result<(), TableFull> {
        if self.used == self.limit {
            return Err(TableFull);
        }
        let mut at = self.home(tag_of(hash));
        while self.entries[at].tag != 0 {
            at = self.after(at);
        }
        self.entries[at] = Entry {
            tag: tag_of(hash),
            flow,
        };
        self.used += 1;
        Ok(())
    }

    /// Makes the entry of `old` point to `new`. Returns false if there is none.
    pub fn replace(&mut self, hash: u64, old: FlowRef, new: FlowRef) -> bool {
        match self.position(hash, old) {
            Some(at) => {
                self.entries[at].flow = new;
                true
            }
            None => false,
        }
    }

    /// Takes `flow` out. Returns false if it was not there.
    pub fn remove(&mut self, hash: u64, flow: FlowRef) -> bool {
        let Some(mut gap) = self.position(hash, flow) else {
            return false;
        };
        self.used -= 1;
        let mut at = gap;
        loop {
            at = self.after(at);
            let entry = self.entries[at];
            if entry.tag == 0 {
                break;
            }
            // An entry may move back into the gap unless that would put it before its home.
            let home = self.home(entry.tag);
            if self.distance(home, at) >= self.distance(gap, at) {
                self.entries[gap] = entry;
                gap = at;
            }
        }
        self.entries[gap] = FREE;
        true
    }

    /// The number of flows in the table.
    pub fn len(&self) -> usize {
        self.used
    }

    /// True when no flow is in the table.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The memory of the table in bytes, empty entries included.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.entries)
    }

    #[inline]
    fn home(&self, tag: u32) -> usize {
        // The tag scaled to the size: no division, and any size will do.
        ((u64::from(tag) * self.entries.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }

    /// How many steps of [`FlowTable::after`] lead from one place to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from {
            to - from
        } else {
            to + self.entries.len() - from
        }
    }

    fn position(&self, hash: u64, flow: FlowRef) -> Option<usize> {
        let tag = tag_of(hash);
        let mut at = self.home(tag_of(hash));
        loop {
            let entry = self.entries[at];
            if entry.tag == tag && entry.flow == flow {
                return Some(at);
            }
            if entry.tag == 0 {
                return None;
            }
            at = self.after(at);
        }
    }
}

/// The upper half of the hash with its lowest bit set: never zero, which means "free".
#[inline]
fn tag_of(hash: u64) -> u32 {
    (hash >> 32) as u32 | 1
}

/// The two halves of a 128-bit product, folded: every input bit reaches every output bit.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn key(n: u64) -> FlowKey {
        FlowKey {
            remote: u128::from(n) | 0xffff_0000_0000,
            local: 5,
            remote_port: n as u16,
            local_port: 80,
        }
    }

    #[test]
    fn finds_what_was_put_in_through_any_sequence_of_changes() {
        let mut table = FlowTable::new(512, [1, 2, 3]);
        let mut model: HashMap<u32, FlowKey> = HashMap::new();
        let mut state = 42_u64;
        for _ in 0..200_000 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let slot = (state >> 40) as u32 % 700;
            let flow = FlowRef::client(slot);
            let hash = table.hash(&key(u64::from(slot)));
            if model.remove(&slot).is_some() {
                assert!(table.remove(hash, flow));
                assert_eq!(table.find(hash, |found| found == flow), None);
            } else if model.len() < 512 {
                table.insert(hash, flow).expect("room");
                model.insert(slot, key(u64::from(slot)));
            } else {
                assert_eq!(table.insert(hash, flow), Err(TableFull));
            }
            assert_eq!(table.len(), model.len());
        }
        for (&slot, key) in &model {
            let flow = FlowRef::client(slot);
            assert_eq!(table.find(table.hash(key), |found| found == flow), Some(flow));
        }
    }

    #[test]
    fn both_legs_and_quarantine_are_told_apart() {
        let flow = FlowRef::server(77);
        assert!(flow.is_server_leg() && !flow.is_quarantined());
        let closed = flow.quarantined(78);
        assert!(closed.is_server_leg() && closed.is_quarantined());
        assert_eq!((flow.slot(), closed.slot()), (77, 78));
    }

    #[test]
    fn hash_depends_on_every_part_of_the_key() {
        let table = FlowTable::new(8, [11, 22, 33]);
        let base = key(1);
        let hash = table.hash(&base);
        let others = [
            FlowKey {
                remote: base.remote ^ 1 << 127,
                ..base
            },
            FlowKey {
                remote: base.remote ^ 1,
                ..base
            },
            FlowKey {
                local: base.local ^ 1,
                ..base
            },
            FlowKey {
                local: base.local ^ 1 << 100,
                ..base
            },
            FlowKey {
                remote_port: base.remote_port ^ 1,
                ..base
            },
            FlowKey {
                local_port: base.local_port ^ 1,
                ..base
            },
        ];
        for other in others {
            assert_ne!(table.hash(&other), hash, "{other:?}");
        }
    }
}
