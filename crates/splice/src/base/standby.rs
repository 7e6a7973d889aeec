//! What an operator has taken out of service: words that any thread writes, and every core reads before it takes a connection.

use crate::base::difference::{MOST_LISTENERS, MOST_SERVERS};
use std::sync::atomic::{AtomicBool, Ordering};

/// Servers, listeners and the engine as a whole: each takes new connections, or does not. All cores have the same. Relaxed
/// accesses: they guard no other data.
#[derive(Debug)]
pub struct Standby {
    servers: Box<[AtomicBool]>,
    listeners: Box<[AtomicBool]>,
    engine: AtomicBool,
}

impl Default for Standby {
    fn default() -> Self {
        let none = |count| (0..count).map(|_| AtomicBool::new(false)).collect();
        Standby {
            servers: none(MOST_SERVERS),
            listeners: none(MOST_LISTENERS),
            engine: AtomicBool::new(false),
        }
    }
}

impl Standby {
    /// Whether no new connection goes to a server.
    #[inline]
    pub fn has_server(&self, server: u16) -> bool {
        is_set(self.servers.get(usize::from(server)))
    }

    /// Whether a listener takes no new connection: it, or the engine, is out of service.
    #[inline]
    pub fn has_listener(&self, listener: u16) -> bool {
        self.has_engine() || is_set(self.listeners.get(usize::from(listener)))
    }

    /// Whether the engine takes none.
    #[inline]
    pub fn has_engine(&self) -> bool {
        self.engine.load(Ordering::Relaxed)
    }

    /// Takes a server out of service, or back.
    pub fn set_server(&self, server: u16, out: bool) {
        set(self.servers.get(usize::from(server)), out);
    }

    /// The same with a listener.
    pub fn set_listener(&self, listener: u16, out: bool) {
        set(self.listeners.get(usize::from(listener)), out);
    }

    /// The same with all of the engine.
    pub fn set_engine(&self, out: bool) {
        self.engine.store(out, Ordering::Relaxed);
    }
}

fn is_set(word: Option<&AtomicBool>) -> bool {
    word.is_some_and(|word| word.load(Ordering::Relaxed))
}

fn set(word: Option<&AtomicBool>, out: bool) {
    if let Some(word) = word {
        word.store(out, Ordering::Relaxed);
    }
}
