//! Clients' own addresses as our source towards a server (`transparent = true`).
//!
//! A connection names its source towards the server by the index of an address of ours and a port, four bytes together.
//! Two ranges of that index mean something else: [`CLIENT`] is the client that connected to us, whose address the
//! connection has anyway; the indices from [`FIRST`] on are, with the port, the number of an entry here: the address and
//! port that a PROXY header named. An entry is kept until the last late segment can have come.

/// The source is the client that connected to us.
pub const CLIENT: u16 = u16::MAX;

/// The first index that names an entry here; addresses of ours have smaller ones.
pub const FIRST: u16 = 0xc000;

/// Ports are 1 to 65535: 0 stands for no port at all.
const PORTS: u32 = u16::MAX as u32;

/// Addresses and ports by number.
#[derive(Clone, Debug, Default)]
pub struct TransparentSources {
    entries: Box<[(u128, u16)]>,
    free: Vec<u32>,
}

impl TransparentSources {
    /// Room for `capacity` sources, allocated now.
    pub fn new(capacity: usize) -> Self {
        let most = usize::from(CLIENT - FIRST) * PORTS as usize;
        let capacity = capacity.min(most);
        TransparentSources {
            entries: vec![(0, 0); capacity].into_boxed_slice(),
            free: (0..capacity as u32).rev().collect(),
        }
    }

    /// Takes an entry for a source; returns the index and port that stand for it, or nothing if all are taken.
    pub fn take(&mut self, source: (u128, u16)) -> Option<(u16, u16)> {
        let number = self.free.pop()?;
        self.entries[number as usize] = source;
        Some((FIRST + (number / PORTS) as u16, (number % PORTS) as u16 + 1))
    }

    /// Gives an entry back; anything that names none is left alone.
    pub fn release(&mut self, index: u16, port: u16) {
        if let Some(number) = number(index, port).filter(|&number| (number as usize) < self.entries.len()) {
            self.free.push(number);
        }
    }

    /// The source that an index and port stand for, if they name an entry.
    pub fn entry(&self, index: u16, port: u16) -> Option<(u128, u16)> {
        self.entries.get(number(index, port)? as usize).copied()
    }

    /// The number of entries taken.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// True if none is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory of all entries in bytes.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.entries) + self.free.capacity() * size_of::<u32>()
    }
}

fn number(index: u16, port: u16) -> Option<u32> {
    let high = index.checked_sub(FIRST).filter(|_| index != CLIENT)?;
    Some(u32::from(high) * PORTS + u32::from(port.checked_sub(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_beyond_the_first_65535_have_names_of_their_own() {
        let mut sources = TransparentSources::new(70_000);
        let names: Vec<_> = (0..70_000_u32)
            .map(|n| sources.take((u128::from(n), 7)).expect("room"))
            .collect();
        assert_eq!(sources.take((0, 0)), None);
        for (n, &(index, port)) in (0_u32..).zip(&names) {
            assert!(index >= FIRST && index != CLIENT && port != 0);
            assert_eq!(sources.entry(index, port), Some((u128::from(n), 7)));
        }
        names.iter().for_each(|&(index, port)| sources.release(index, port));
        assert!(sources.is_empty());
    }

    #[test]
    fn what_names_no_entry_is_left_alone() {
        let mut sources = TransparentSources::new(1);
        for (index, port) in [(0, 80), (CLIENT, 80), (FIRST, 0), (FIRST, 2)] {
            sources.release(index, port);
            assert_eq!(sources.entry(index, port), None);
        }
        assert!(sources.take((1, 1)).is_some() && sources.take((2, 2)).is_none());
    }
}
