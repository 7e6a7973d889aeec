//! A running engine as others may look at it, from any thread and at any time: no worker does anything for that, and one that
//! hangs keeps nobody waiting.
//!
//! What workers count stands on their boards ([`Board`]). What only the main thread can ask for, which is what devices and
//! pools say and how many records were written, it notes here a few times a second ([`Noted`]).

mod service;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use e2d2::time::{Clock, Instant};
use e2d2::wire::MacAddr;
use netfcts::format::NameTable;
use splice::capture::Tap;
use splice::standby::Standby;
use splice::tally::Tally;
use splice::visit::ConnectionView;

use service::ClosingNumbers;
pub use service::{Services, Subject};

use super::board::Board;
use super::running::{names_of, report, servers_of};
use super::slow_servers::SlowServer;
use super::worker::Shown;
use crate::capture::Totals;
use crate::commands::{Commander, Unanswered, Visit, Visited};
use crate::config::{Config, CoreId};
use crate::neighbour::{NextHop, NextHopId, SharedNeighbours, Topology};
use crate::records::RecordWatch;
use crate::report::{Buffers, NameReport, PortReport, Report};

/// For how long a worker may write nothing and still count as going on: an idle one writes every few milliseconds.
const SILENCE: Duration = Duration::from_millis(200);

/// What only the main thread can ask for.
#[derive(Clone, Debug, Default)]
pub(super) struct Noted {
    pub(super) log_lost: u64,
    pub(super) names: Vec<NameReport>,
    pub(super) ports: Vec<PortReport>,
    pub(super) buffers: Buffers,
}

/// A view of a running engine. Clones see the same.
#[derive(Clone)]
pub struct Watch {
    shared: Arc<Shared>,
}

struct Shared {
    view: Mutex<Arc<View>>,
    neighbours: Arc<SharedNeighbours>,
    clock: Clock,
    /// By core, in the order of the boards.
    commanders: Vec<Mutex<Commander>>,
    is_draining: AtomicBool,
    noted: Mutex<Noted>,
    records: RecordWatch,
    standby: Arc<Standby>,
    closings: Mutex<ClosingNumbers>,
    is_capturing: AtomicBool,
    captured: Mutex<Totals>,
    slow: Mutex<Vec<SlowServer>>,
}

/// The right to capture: one at a time has it.
pub struct CaptureClaim(Watch);

impl Drop for CaptureClaim {
    fn drop(&mut self) {
        self.0.shared.is_capturing.store(false, Ordering::Relaxed);
    }
}

/// What a reload replaces.
struct View {
    config: Arc<Config>,
    boards: Vec<(CoreId, Arc<Board>)>,
    topology: Arc<Topology>,
}

/// Why an engine takes no connections, or may not pass what it has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// It drains, or has ended.
    Draining,
    /// A worker has not come round for this time.
    Silent {
        /// Its core.
        core: CoreId,
        /// Since its numbers were written last.
        since: Duration,
    },
    /// A port's link is down, or its device was taken away.
    Down {
        /// The name of the port.
        port: String,
    },
}

impl Watch {
    pub(super) fn new(
        config: Arc<Config>,
        boards: Vec<(CoreId, Arc<Board>)>,
        (neighbours, topology): (Arc<SharedNeighbours>, Arc<Topology>),
        (clock, commanders): (Clock, Vec<Commander>),
        records: RecordWatch,
    ) -> Self {
        let view = View {
            config,
            boards,
            topology,
        };
        let shared = Shared {
            view: Mutex::new(Arc::new(view)),
            neighbours,
            clock,
            commanders: commanders.into_iter().map(Mutex::new).collect(),
            is_draining: AtomicBool::new(false),
            noted: Mutex::default(),
            records,
            standby: Arc::default(),
            closings: Mutex::default(),
            is_capturing: AtomicBool::new(false),
            captured: Mutex::default(),
            slow: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// A view of cores that whoever runs them shows himself, without devices, records and a log.
    pub fn over(
        config: Arc<Config>,
        cores: &[&Shown],
        neighbours: (Arc<SharedNeighbours>, Arc<Topology>),
        clock_and_commanders: (Clock, Vec<Commander>),
    ) -> Self {
        let boards = cores.iter().map(|shown| (shown.core(), shown.board()));
        Self::new(
            config,
            boards.collect(),
            neighbours,
            clock_and_commanders,
            RecordWatch::default(),
        )
    }

    /// The configuration that the engine runs with.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.view().config)
    }

    /// What an operator has taken out of service.
    pub fn standby(&self) -> Arc<Standby> {
        Arc::clone(&self.shared.standby)
    }

    /// Answers for the addresses of listeners from now on, and announces them; or leaves them to another engine.
    pub fn announce(&self, announces: bool) {
        let config = self.config();
        let ports = config.ports().iter().map(|port| port.id);
        self.shared.neighbours.set_announces(announces, ports);
    }

    /// Where the cores show themselves.
    pub(super) fn boards(&self) -> Vec<(CoreId, Arc<Board>)> {
        self.view().boards.clone()
    }

    fn view(&self) -> Arc<View> {
        Arc::clone(&self.shared.view.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The engine goes on with these.
    pub(super) fn go_on_with(&self, config: Arc<Config>, boards: Vec<(CoreId, Arc<Board>)>, topology: Arc<Topology>) {
        let view = View {
            config,
            boards,
            topology,
        };
        *self.shared.view.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
    }

    /// For whoever changes what becomes of session records.
    pub fn records(&self) -> &RecordWatch {
        &self.shared.records
    }

    pub(super) fn note(&self, noted: Noted) {
        *self.shared.noted.lock().unwrap_or_else(PoisonError::into_inner) = noted;
    }

    pub(super) fn note_drain(&self) {
        self.shared.is_draining.store(true, Ordering::Relaxed);
    }

    /// The counts: those of the workers at most 5 ms old unless one hangs, those of ports and buffers at most as old
    /// as the main thread's last look at the links.
    pub fn report(&self) -> Report {
        let noted = self.shared.noted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let view = self.view();
        let cores = view.boards.iter().map(|(_, board)| board.read().0).collect();
        let parts = (cores, &self.shared.records, noted.ports);
        Report {
            log_lost: noted.log_lost,
            servers: servers_of(&view.config),
            names: noted.names,
            ..report(&self.shared.clock, &self.shared.neighbours, parts, noted.buffers)
        }
        .summed()
    }

    /// The cores, in the order in which [`visit`](Self::visit) counts them.
    pub fn cores(&self) -> impl Iterator<Item = CoreId> {
        let cores: Vec<CoreId> = self.view().boards.iter().map(|(core, _)| *core).collect();
        cores.into_iter()
    }

    /// Has one core look for connections, and waits for it; those shown go to `each`. Others who ask it wait for this.
    ///
    /// # Errors
    /// The core does not come round, or there is none of that index.
    pub fn visit(&self, core: usize, visit: Visit, each: impl FnMut(ConnectionView)) -> Result<Visited, Unanswered> {
        let commander = self.shared.commanders.get(core).ok_or(Unanswered::Deaf)?;
        let mut commander = commander.lock().unwrap_or_else(PoisonError::into_inner);
        commander.visit(visit, SILENCE, each)
    }

    /// Has one core go on with this tap of a capture, or none, and returns the one before.
    ///
    /// # Errors
    /// As [`Watch::visit`].
    pub fn capture(&self, core: usize, tap: Option<Box<Tap>>) -> Result<Option<Box<Tap>>, Unanswered> {
        let commander = self.shared.commanders.get(core).ok_or(Unanswered::Deaf)?;
        let mut commander = commander.lock().unwrap_or_else(PoisonError::into_inner);
        commander.capture(tap, SILENCE)
    }

    /// Waits for a capture that is under way to end with its cores, at most so long: its file has its sums at the end.
    pub(super) fn wait_for_capture(&self, most: Duration) {
        let deadline = self.now() + most;
        while self.shared.is_capturing.load(Ordering::Relaxed) && self.now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The right to capture, until it is dropped; `None` while somebody else has it.
    pub fn claim_capture(&self) -> Option<CaptureClaim> {
        let is_free = !self.shared.is_capturing.swap(true, Ordering::Relaxed);
        is_free.then(|| CaptureClaim(self.clone()))
    }

    /// What has become of the frames of all captures so far.
    pub fn captured(&self) -> Totals {
        *self.shared.captured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That is more than was noted of a capture before.
    pub(crate) fn note_captured(&self, more: Totals) {
        *self.shared.captured.lock().unwrap_or_else(PoisonError::into_inner) += more;
    }

    /// The servers that were slower than others of their pool at the main thread's last look.
    pub fn slow_servers(&self) -> Vec<SlowServer> {
        let slow = self.shared.slow.lock().unwrap_or_else(PoisonError::into_inner);
        slow.clone()
    }

    pub(super) fn note_slow(&self, slow: Vec<SlowServer>) {
        *self.shared.slow.lock().unwrap_or_else(PoisonError::into_inner) = slow;
    }

    /// What the numbers of listeners and servers mean, and when the cores' clock began.
    pub fn names(&self) -> NameTable {
        names_of(&self.config(), &self.shared.clock)
    }

    /// The time as cores have it, from the start on.
    pub fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// What each worker has counted by listener, pool and server, up to this moment.
    pub fn tallies(&self) -> Vec<Arc<Tally>> {
        let view = self.view();
        view.boards.iter().filter_map(|(_, board)| board.tally()).collect()
    }

    /// The next hops, with the MAC address of each that is known.
    pub fn next_hops(&self) -> Vec<(NextHop, Option<MacAddr>)> {
        let mac = |index: usize| {
            let id = NextHopId::from_index(u16::try_from(index).ok()?);
            self.shared.neighbours.mac(id)
        };
        let view = self.view();
        let hops = view.topology.next_hops().iter().enumerate();
        let used = hops.filter(|(_, hop)| hop.is_used);
        used.map(|(index, hop)| (*hop, mac(index))).collect()
    }

    /// For each core how long ago its worker wrote its numbers.
    pub fn ages(&self) -> Vec<(CoreId, Duration)> {
        let age = |written: Instant| self.shared.clock.now().saturating_since(written);
        let view = self.view();
        let of = |(core, board): &(CoreId, Arc<Board>)| (*core, age(board.written_at()));
        view.boards.iter().map(of).collect()
    }

    /// Whether every worker goes on.
    ///
    /// # Errors
    /// One has been silent for 200 ms.
    pub fn is_alive(&self) -> Result<(), NotReady> {
        let silent = self.ages().into_iter().find(|(_, since)| *since > SILENCE);
        silent.map_or(Ok(()), |(core, since)| Err(NotReady::Silent { core, since }))
    }

    /// Whether the engine takes connections: no drain, every worker goes on, no port is down.
    ///
    /// # Errors
    /// The first of these that is not so.
    pub fn is_ready(&self) -> Result<(), NotReady> {
        if self.shared.is_draining.load(Ordering::Relaxed) || self.shared.standby.has_engine() {
            return Err(NotReady::Draining);
        }
        self.is_alive()?;
        let noted = self.shared.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let down = noted
            .ports
            .iter()
            .find(|port| port.removed || port.link_up == Some(false));
        down.map_or(Ok(()), |port| {
            Err(NotReady::Down {
                port: port.name.clone(),
            })
        })
    }
}

impl std::fmt::Display for NotReady {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Draining => f.write_str("it takes no more connections"),
            Self::Silent { core, since } => write!(f, "core {core} has not come round for {} ms", since.as_millis()),
            Self::Down { port } => write!(f, "port {port} is down"),
        }
    }
}
