//! What an operator has taken out of service: words that any thread writes, and every core reads before it takes a connection.

use crate::base::difference::MOST_LISTENERS;
use crate::base::server_state::{ServerState, ServerStates};
use std::sync::atomic::{AtomicBool, Ordering};

/// Servers, listeners and the engine as a whole: each takes new connections, or does not. All cores have the same. Relaxed
/// accesses: they guard no other data.
#[derive(Debug)]
pub struct Standby {
    servers: ServerStates,
    listeners: Box<[AtomicBool]>,
    engine: AtomicBool,
}

impl Default for Standby {
    fn default() -> Self {
        Standby {
            servers: ServerStates::default(),
            listeners: bytemuck::zeroed_slice_box(MOST_LISTENERS),
            engine: AtomicBool::new(false),
        }
    }
}

impl Standby {
    /// What is known of a server, this and what its checks say.
    #[inline]
    pub fn server(&self, server: u16) -> ServerState<'_> {
        self.servers.of(server)
    }

    /// Whether an operator has taken a server out of service.
    #[inline]
    pub fn has_server(&self, server: u16) -> bool {
        self.server(server).word().is_drained()
    }

    /// Whether a listener takes no new connection: it, or the engine, is out of service.
    #[inline]
    pub fn has_listener(&self, listener: u16) -> bool {
        let word = self.listeners.get(usize::from(listener));
        self.has_engine() || word.is_some_and(|word| word.load(Ordering::Relaxed))
    }

    /// Whether the engine takes none.
    #[inline]
    pub fn has_engine(&self) -> bool {
        self.engine.load(Ordering::Relaxed)
    }

    /// Takes a server out of service, or back.
    pub fn set_server(&self, server: u16, out: bool) {
        self.server(server).set_drained(out);
    }

    /// The number of a server is another's from now on, or nobody's: it is in service, and nothing is known of it.
    pub fn forget_server(&self, server: u16) {
        self.server(server).forget();
    }

    /// Takes a listener out of service, or back.
    pub fn set_listener(&self, listener: u16, out: bool) {
        if let Some(word) = self.listeners.get(usize::from(listener)) {
            word.store(out, Ordering::Relaxed);
        }
    }

    /// The same with all of the engine.
    pub fn set_engine(&self, out: bool) {
        self.engine.store(out, Ordering::Relaxed);
    }
}
