//! Which address belongs to which socket.
//!
//! Indexed by descriptor, so that it never has more entries than the process may have descriptors, and named by the
//! socket's cookie, which the kernel never gives twice: an entry whose socket is gone is not found, and is overwritten
//! when its descriptor is used again.

use crate::lock::Lock;
use std::net::SocketAddr;

/// What a header said.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The client.
    pub(crate) peer: SocketAddr,
    /// What it connected to.
    pub(crate) destination: SocketAddr,
}

#[derive(Copy, Clone)]
struct Entry {
    cookie: u64,
    claim: Claim,
}

/// A bound in case descriptors are numbered wildly (`F_DUPFD`): nobody has more.
const MOST: usize = 1 << 20;

pub(crate) static TABLE: Lock<Table> = Lock::new(Table { entries: Vec::new() });

pub(crate) struct Table {
    entries: Vec<Option<Entry>>,
}

impl Table {
    /// Notes what a socket's header said.
    pub(crate) fn insert(&mut self, fd: i32, cookie: u64, claim: Claim) {
        let Some(index) = usize::try_from(fd).ok().filter(|&index| index < MOST) else {
            return;
        };
        if self.entries.len() <= index {
            self.entries.resize(index + 1, None);
        }
        self.entries[index] = Some(Entry { cookie, claim });
    }

    /// What this socket's header said. A duplicate that was not seen being made is found by a search.
    pub(crate) fn find(&self, fd: i32, cookie: u64) -> Option<Claim> {
        let own = usize::try_from(fd)
            .ok()
            .and_then(|index| self.entries.get(index).copied().flatten());
        let fits = |entry: &Entry| entry.cookie == cookie;
        let found = own
            .filter(fits)
            .or_else(|| self.entries.iter().flatten().copied().find(fits));
        found.map(|entry| entry.claim)
    }

    /// Whether anything was ever noted: most processes that are preloaded never accept.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
