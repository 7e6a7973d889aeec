//! State that all cores share: what an operator has taken out of service, which one thread writes and every core reads before it
//! takes a connection; and the counts of connections that have limits.

use crate::base::client_counts::ClientCounts;
use crate::base::difference::{MOST_LISTENERS, MOST_SERVERS};
use crate::base::limit::Limited;
use crate::base::meter::{Metered, Meters};
use crate::base::server_state::{ServerState, ServerStates};
use e2d2::time::Instant;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Whether a server, a listener or the engine takes new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// It does.
    #[default]
    In,
    /// It does not; all else goes on.
    Drained,
    /// Nor is it probed or checked.
    InMaintenance,
}

/// Closings that there can be at a time; their numbers are from 1 to this.
pub const MOST_CLOSINGS: u8 = 63;

/// Servers, listeners and the engine as a whole: whether each takes new connections, and which closing ends its open ones. All
/// cores have the same. Relaxed accesses: they guard no other data.
#[derive(Debug)]
pub struct Standby {
    /// What is known of servers, also whether they are in service.
    servers: ServerStates,
    /// By server: the number of a closing, or 0.
    closings: Box<[AtomicU8]>,
    /// By server: since when its service, or its place in the configuration, is what it is, in ms.
    changed_at: Box<[AtomicU64]>,
    listeners: Box<[Word]>,
    engine: Word,
    /// The counts over all cores.
    meters: Arc<Meters>,
    clients: OnceLock<Arc<ClientCounts>>,
}

/// A [`Service`] in the lowest two bits, the number of a closing or 0 above.
#[derive(Debug, Default)]
struct Word(AtomicU8);

impl Word {
    fn service(&self) -> Service {
        match self.0.load(Ordering::Relaxed) & 3 {
            0 => Service::In,
            1 => Service::Drained,
            _ => Service::InMaintenance,
        }
    }

    /// What is out stays in its closing; what is back is in none.
    fn set(&self, service: Service) {
        let closing = if service == Service::In { 0 } else { self.closing() };
        self.0.store(service as u8 | closing << 2, Ordering::Relaxed);
    }

    fn closing(&self) -> u8 {
        self.0.load(Ordering::Relaxed) >> 2
    }

    fn close(&self, number: u8) {
        self.0.store(self.service() as u8 | number << 2, Ordering::Relaxed);
    }
}

impl Default for Standby {
    fn default() -> Self {
        Standby {
            servers: ServerStates::default(),
            closings: bytemuck::zeroed_slice_box(MOST_SERVERS),
            changed_at: bytemuck::zeroed_slice_box(MOST_SERVERS),
            listeners: (0..MOST_LISTENERS).map(|_| Word::default()).collect(),
            engine: Word::default(),
            meters: Arc::default(),
            clients: OnceLock::new(),
        }
    }
}

impl Standby {
    /// What is known of a server, this and what its checks say.
    #[inline]
    pub fn server(&self, server: u16) -> ServerState<'_> {
        self.servers.of(server)
    }

    /// The counts of one thing over all cores, at most 10 ms old.
    pub fn metered(&self, kind: Limited, id: u16) -> Metered {
        self.meters.of(kind, id)
    }

    /// Forgets what was counted of who had this number before, of whom nothing is open.
    pub fn forget_metered(&self, kind: Limited, id: u16) {
        self.meters.forget(kind, id);
    }

    /// Clients that have open connections which are counted by client. Reads the whole table, 32 bytes for each connection that
    /// there is room for.
    pub fn counted_clients(&self) -> usize {
        self.clients.get().map_or(0, |clients| clients.in_use())
    }

    /// Connections admitted uncounted because the table of clients had no free place.
    pub fn uncounted_clients(&self) -> u64 {
        self.clients.get().map_or(0, |clients| clients.uncounted())
    }

    pub(crate) fn meters(&self) -> &Arc<Meters> {
        &self.meters
    }

    /// The table of clients; the first core that calls this makes it, with room for the connections of all cores.
    pub(crate) fn clients(&self, of_all: (usize, usize), is_used: bool, secret: [u64; 2]) -> &Arc<ClientCounts> {
        self.clients
            .get_or_init(|| Arc::new(ClientCounts::new(of_all, is_used, secret)))
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
        self.has_engine() || word.is_some_and(|word| word.service() != Service::In)
    }

    /// Whether the engine takes none.
    #[inline]
    pub fn has_engine(&self) -> bool {
        self.engine.service() != Service::In
    }

    /// What was said of a server.
    pub fn of_server(&self, server: u16) -> Service {
        self.server(server).word().service()
    }

    /// What was said of a listener.
    pub fn of_listener(&self, listener: u16) -> Service {
        let word = self.listeners.get(usize::from(listener));
        word.map_or(Service::In, Word::service)
    }

    /// Whether a server is not to be asked anything: it, or the engine, is in maintenance.
    pub fn is_in_maintenance(&self, server: u16) -> bool {
        [self.of_server(server), self.engine.service()].contains(&Service::InMaintenance)
    }

    /// Takes a server out of service, or back; a closing of it is over.
    pub fn set_server(&self, server: u16, service: Service, now: Instant) {
        if self.of_server(server) != service {
            self.note_change(server, now);
        }
        self.server(server).set_service(service);
        if service == Service::In {
            self.close_server(server, 0);
        }
    }

    /// The number of a server is another's from now on, or nobody's: it is in service, and nothing is known of it.
    pub fn forget_server(&self, server: u16, now: Instant) {
        self.close_server(server, 0);
        self.server(server).forget();
        self.note_change(server, now);
    }

    /// A server's service, or its place in the configuration, is another from now on.
    pub fn note_change(&self, server: u16, now: Instant) {
        if let Some(changed_at) = self.changed_at.get(usize::from(server)) {
            changed_at.store(now.as_millis(), Ordering::Relaxed);
        }
    }

    /// Since when a server's service, and its place in the configuration, is what it is.
    pub fn changed_at(&self, server: u16) -> Instant {
        let changed_at = self.changed_at.get(usize::from(server));
        changed_at.map_or(Instant::ZERO, |changed_at| {
            Instant::from_millis(changed_at.load(Ordering::Relaxed))
        })
    }

    /// Takes a listener out of service, or back.
    pub fn set_listener(&self, listener: u16, service: Service) {
        if let Some(word) = self.listeners.get(usize::from(listener)) {
            word.set(service);
        }
    }

    /// The same with all of the engine.
    pub fn set_engine(&self, service: Service) {
        self.engine.set(service);
    }

    /// The closing of this number ends a server's connections.
    pub fn close_server(&self, server: u16, number: u8) {
        if let Some(closing) = self.closings.get(usize::from(server)) {
            closing.store(number, Ordering::Relaxed);
        }
    }

    /// The same with a listener's.
    pub fn close_listener(&self, listener: u16, number: u8) {
        if let Some(word) = self.listeners.get(usize::from(listener)) {
            word.close(number);
        }
    }

    /// The same with all.
    pub fn close_engine(&self, number: u8) {
        self.engine.close(number);
    }

    /// Whether the closing of this number ends connections of this listener, or to this server.
    pub(crate) fn closes(&self, number: u8, listener: u16, server: Option<u16>) -> bool {
        let listener = self.listeners.get(usize::from(listener)).map(Word::closing);
        let server = server.and_then(|server| self.closings.get(usize::from(server)));
        let server = server.map(|closing| closing.load(Ordering::Relaxed));
        [Some(self.engine.closing()), listener, server].contains(&Some(number))
    }
}
