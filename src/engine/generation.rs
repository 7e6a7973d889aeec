//! Other settings for cores that run, in two steps: every core holds them, then all use them.
//!
//! ```text
//!   main thread: makes a change for each core ─► ring ─► worker: holds it, says so
//!                all hold it: stores its number      ◄── says so, swaps it in, ─► ring ─► main thread frees what was
//! ```
//!
//! A worker looks at its ring and at the number once a round, between two. What it holds and what is never made valid goes
//! back when the next change comes. Everything is made and freed by the main thread.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rtrb::{Consumer, Producer, RingBuffer};
use splice::callbacks::SelectServer;
use splice::difference::Difference;
use splice::settings::{CoreSteering, Settings, SourceSets, UpstreamSettings};
use splice::tally::Tally;
use splice::{Change, Look};

use super::board::Board;
use crate::config::{AcceptProxy, Config, CoreId, ListenerConfig, LocalAddress, Named, Standing};
use crate::neighbour::{StationChange, Topology};
use crate::report::{CoreReport, CoreServer};

/// How long cores may take to hold a change, and how long to use it: far more than a round, less than anybody waits.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often that is looked at.
const PACE: Duration = Duration::from_micros(100);

/// Orders that wait in a ring: the next one is made when the one before is over, or was given up.
const RING: usize = 8;

/// Why a core does not go on with another version of the configuration.
#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    /// A worker does not come round.
    #[error("core {core} has not taken the new configuration within {PATIENCE:?}; no core uses it")]
    NotHeld {
        /// Its core.
        core: CoreId,
    },
    /// A server cannot be reached from a core.
    #[error("server \"{server}\": core {core} has no source port towards it; more of them in local_ports would help")]
    NoPorts {
        /// Its name.
        server: String,
        /// The core.
        core: CoreId,
    },
}

/// What one worker takes in at once.
pub(super) struct Update<S> {
    number: u64,
    pub(super) core: Change<S>,
    pub(super) station: StationChange,
    pub(super) config: Arc<Config>,
    pub(super) shown: (Arc<Board>, CoreReport),
}

/// What the main thread wants of one worker.
enum Order<S> {
    Update(Box<Update<S>>),
    Look(Box<Look>),
}

/// What a worker says of it.
#[derive(Debug, Default)]
struct Said {
    holds: AtomicU64,
    uses: AtomicU64,
}

/// The worker's end.
pub struct Desk<S> {
    orders: Consumer<Order<S>>,
    back: Producer<Order<S>>,
    said: Arc<Said>,
    valid: Arc<AtomicU64>,
    held: Option<Box<Update<S>>>,
    look: Option<Box<Look>>,
    first: Arc<Mutex<Option<First>>>,
}

/// What a core began with.
struct First {
    settings: Arc<Settings>,
    tally: Arc<Tally>,
}

impl<S> Desk<S> {
    /// Tells what the core begins with: before its first round.
    pub(super) fn begin(&self, settings: Arc<Settings>, tally: Arc<Tally>) {
        *self.first.lock().unwrap_or_else(PoisonError::into_inner) = Some(First { settings, tally });
    }

    /// Whether an order is there, or was and is not over.
    pub(super) fn is_busy(&self) -> bool {
        self.look.is_some() || self.held.is_some() || !self.orders.is_empty()
    }

    /// Looks at the orders, once a round. Returns an update that is to be used from this round on, and is then to be
    /// [given back](Self::give_back).
    pub(super) fn follow(&mut self) -> Option<Box<Update<S>>> {
        // What is held and valid comes first: the next one is made for those who use it.
        if let Some(valid) = self.take_valid() {
            return Some(valid);
        }
        match self.orders.pop() {
            Ok(Order::Update(update)) => {
                let number = update.number;
                if let Some(never_used) = self.held.replace(update) {
                    self.push(Order::Update(never_used));
                }
                self.said.holds.store(number, Ordering::Release);
            }
            Ok(Order::Look(look)) => {
                if let Some(unfinished) = self.look.replace(look) {
                    self.push(Order::Look(unfinished));
                }
            }
            Err(_) => {}
        }
        self.take_valid()
    }

    fn take_valid(&mut self) -> Option<Box<Update<S>>> {
        let held = self.held.as_ref()?;
        (self.valid.load(Ordering::Acquire) == held.number).then(|| self.held.take())?
    }

    /// An update has been swapped in: what was there before is in it.
    pub(super) fn give_back(&mut self, update: Box<Update<S>>) {
        let number = update.number;
        self.push(Order::Update(update));
        self.said.uses.store(number, Ordering::Release);
    }

    /// A look that is under way.
    pub(super) fn look(&mut self) -> Option<&mut Look> {
        self.look.as_deref_mut()
    }

    /// It is over.
    pub(super) fn end_look(&mut self) {
        if let Some(look) = self.look.take() {
            self.push(Order::Look(look));
        }
    }

    /// There is room: the main thread takes what comes back before it sends as much.
    fn push(&mut self, order: Order<S>) {
        let is_pushed = self.back.push(order).is_ok();
        debug_assert!(is_pushed, "the ring back is full");
    }
}

/// What all cores are to go on with.
pub(super) struct Next<'a> {
    pub(super) config: &'a Arc<Config>,
    pub(super) difference: &'a Difference,
    pub(super) topology: &'a Arc<Topology>,
    pub(super) before: &'a Topology,
    /// By core.
    pub(super) boards: Vec<(CoreId, Arc<Board>)>,
}

/// The main thread's ends, of cores whose selectors are of any type.
pub(super) trait Generations: Send {
    /// Has all cores go on with it; returns each core's board. Nothing has changed on any if that fails.
    fn change(&mut self, next: &Next<'_>) -> Result<Vec<(CoreId, Arc<Board>)>, GenerationError>;

    /// Which past numbers of the configuration that all cores use connections name, or may name, once all cores have looked; a look
    /// begins with the first call.
    fn look(&mut self, config: &Config) -> Option<Named>;
}

/// Makes a selector of another version of the configuration.
pub(super) type Remake<S> = Box<dyn Fn(&Config, CoreId) -> S + Send>;

/// The main thread's ends.
pub(super) struct Offices<S> {
    cores: Vec<Office<S>>,
    valid: Arc<AtomicU64>,
    number: u64,
    remake: Option<Remake<S>>,
    /// What was past when the look under way began, and has been since: of all else a connection may have begun where cores have
    /// looked already.
    looked_for: Named,
}

struct Office<S> {
    orders: Producer<Order<S>>,
    back: Consumer<Order<S>>,
    said: Arc<Said>,
    first: Arc<Mutex<Option<First>>>,
    sets: SourceSets,
    /// What the core has said of the last look.
    looked: Option<Box<Look>>,
    is_looking: bool,
}

/// Both ends for so many cores. Without `remake` they keep their selectors.
pub(super) fn offices<S>(cores: usize, remake: Option<Remake<S>>) -> (Offices<S>, Vec<Desk<S>>) {
    let valid = Arc::new(AtomicU64::new(0));
    let of_core = |_| {
        let (orders, to_desk) = RingBuffer::new(RING);
        let (back, from_desk) = RingBuffer::new(2 * RING);
        let (said, first) = (Arc::new(Said::default()), Arc::default());
        let desk = Desk {
            orders: to_desk,
            back,
            said: Arc::clone(&said),
            valid: Arc::clone(&valid),
            held: None,
            look: None,
            first: Arc::clone(&first),
        };
        let office = Office {
            orders,
            back: from_desk,
            said,
            first,
            sets: SourceSets::default(),
            looked: None,
            is_looking: false,
        };
        (office, desk)
    };
    let (cores, desks) = (0..cores).map(of_core).unzip();
    let offices = Offices {
        cores,
        valid: Arc::clone(&valid),
        number: 0,
        remake,
        looked_for: Named::default(),
    };
    (offices, desks)
}

impl<S: SelectServer> Offices<S> {
    fn update(
        &mut self,
        index: usize,
        next: &Next<'_>,
        upstream: &UpstreamSettings,
    ) -> Result<Box<Update<S>>, GenerationError> {
        let (core, board) = &next.boards[index];
        let office = &mut self.cores[index];
        let first = office.first.lock().unwrap_or_else(PoisonError::into_inner);
        // A core that has not begun is none that runs.
        let Some(first) = first.as_ref() else {
            return Err(GenerationError::NotHeld { core: *core });
        };
        let config = next.config;
        let settings = settings_of(config, next.topology, &first.settings, &mut office.sets);
        for (of, server) in config.servers().iter().zip(&settings.servers) {
            if of.standing == Standing::InFile && server.locals.iter().all(|local| local.ports.is_empty()) {
                let server = of.name.clone();
                return Err(GenerationError::NoPorts { server, core: *core });
            }
        }
        let selector = self.remake.as_ref().map(|remake| remake(config, *core));
        let difference = next.difference.clone();
        let change = Change::new(
            settings,
            (&first.settings, &first.tally),
            (upstream, index),
            selector,
            difference,
        );
        let mut report = board.read().0;
        report.servers.resize(config.servers().len(), CoreServer::default());
        for &id in next.difference.new_servers.iter().chain(&next.difference.past_servers) {
            report.servers[usize::from(id)] = CoreServer::default();
        }
        let board = Arc::new(Board::new(report.clone(), Some(Arc::clone(change.tally()))));
        Ok(Box::new(Update {
            number: self.number,
            station: StationChange::new(Arc::clone(next.topology), next.before),
            config: Arc::clone(config),
            core: change,
            shown: (board, report),
        }))
    }

    /// Frees what cores have given back, and keeps what they have seen.
    fn take_back(&mut self) {
        for office in &mut self.cores {
            while let Ok(order) = office.back.pop() {
                match order {
                    Order::Update(update) => drop(update),
                    Order::Look(look) if look.is_over() => office.looked = Some(look),
                    Order::Look(_) => {}
                }
            }
        }
    }

    /// The first core that has not said so in time.
    fn wait_for(&mut self, said: impl Fn(&Said) -> &AtomicU64) -> Option<usize> {
        let start = Instant::now();
        loop {
            let is_late = |office: &Office<S>| said(&office.said).load(Ordering::Acquire) < self.number;
            let late = self.cores.iter().position(is_late)?;
            if start.elapsed() >= PATIENCE {
                return Some(late);
            }
            thread::sleep(PACE);
        }
    }
}

impl<S: SelectServer> Generations for Offices<S> {
    fn change(&mut self, next: &Next<'_>) -> Result<Vec<(CoreId, Arc<Board>)>, GenerationError> {
        self.take_back();
        self.number += 1;
        let (cores, upstream) = (0..self.cores.len(), next.config.upstream_settings());
        let updates: Vec<_> = cores
            .map(|index| self.update(index, next, &upstream))
            .collect::<Result<_, _>>()?;
        let mut boards = Vec::with_capacity(updates.len());
        let mut begun = Vec::with_capacity(updates.len());
        for (index, (office, update)) in self.cores.iter_mut().zip(updates).enumerate() {
            let core = next.boards[index].0;
            boards.push((core, Arc::clone(&update.shown.0)));
            begun.push(First {
                settings: Arc::clone(update.core.settings()),
                tally: Arc::clone(update.core.tally()),
            });
            if office.orders.push(Order::Update(update)).is_err() {
                return Err(GenerationError::NotHeld { core });
            }
        }
        if let Some(late) = self.wait_for(|said| &said.holds) {
            return Err(GenerationError::NotHeld {
                core: next.boards[late].0,
            });
        }
        // From here on it holds for all: a core that does not come round any more uses it when it does.
        self.valid.store(self.number, Ordering::Release);
        for (office, first) in self.cores.iter().zip(begun) {
            *office.first.lock().unwrap_or_else(PoisonError::into_inner) = Some(first);
        }
        self.looked_for = self.looked_for.and(&next.config.past());
        if let Some(late) = self.wait_for(|said| &said.uses) {
            log::warn!("core {} has not come round for {PATIENCE:?}", next.boards[late].0);
        }
        self.take_back();
        Ok(boards)
    }

    fn look(&mut self, config: &Config) -> Option<Named> {
        self.take_back();
        let has_begun = |office: &Office<S>| office.looked.is_some() || office.is_looking;
        if !self.cores.iter().any(has_begun) {
            self.looked_for = config.past();
        }
        for office in &mut self.cores {
            if office.looked.is_none() && !office.is_looking {
                office.is_looking = office.orders.push(Order::Look(Box::default())).is_ok();
            }
        }
        if self.cores.iter().any(|office| office.looked.is_none()) {
            return None;
        }
        let mut named = Named::default();
        for office in &mut self.cores {
            office.is_looking = false;
            let Some(look) = office.looked.take() else { continue };
            named.listeners.extend(look.listeners());
            named.pools.extend(look.pools());
            named.servers.extend(look.servers());
        }
        named.add_others(&config.past(), &self.looked_for);
        Some(named)
    }
}

/// What a core has to know that has known `before`; the sets of ports are this core's.
fn settings_of(config: &Config, topology: &Topology, before: &Settings, sets: &mut SourceSets) -> Settings {
    let macs: Vec<_> = before.devices.iter().map(|device| device.mac).collect();
    let next_hop = |server: &_| (topology.next_hop_to(server)).map_or(usize::MAX, |next_hop| next_hop.index());
    let mut settings = config.core_settings(before.core, &macs, next_hop);
    settings.devices.clone_from(&before.devices);
    match &before.steering {
        Some(steering) => settings.among_others(steering_of(config, steering), sets),
        None => settings,
    }
}

/// The same plan with the addresses that are new; those that are no more keep their owner.
fn steering_of(config: &Config, before: &CoreSteering) -> CoreSteering {
    let mut plan = before.plan.without_services();
    let there = |listener: &&ListenerConfig| listener.standing != Standing::Nobody;
    for listener in config.listeners().iter().filter(there) {
        let is_transparent = super::steering::is_transparent(config, listener);
        for address in &listener.addresses {
            plan.add_service(netfcts::leg::mapped(address.ip), address.ports.clone(), is_transparent);
        }
    }
    for local in config.local_addresses() {
        plan.add_address(netfcts::leg::mapped(local.ip));
    }
    plan.set_called(called_from_listened(config));
    let accepts = (config.listeners().iter()).any(|listener| listener.accept != AcceptProxy::Off);
    CoreSteering {
        asks_around: accepts && plan.is_transparent(),
        plan: Arc::new(plan),
        core: before.core,
    }
}

/// The servers that connections may go to from ports of ours on which somebody listens, too.
fn called_from_listened(config: &Config) -> impl Iterator<Item = (u128, u16)> {
    let there = |listener: &&ListenerConfig| listener.standing != Standing::Nobody;
    let mut listened: HashMap<IpAddr, Vec<&RangeInclusive<u16>>> = HashMap::new();
    for address in config
        .listeners()
        .iter()
        .filter(there)
        .flat_map(|listener| &listener.addresses)
    {
        listened.entry(address.ip).or_default().push(&address.ports);
    }
    let is_called = move |local: &LocalAddress| {
        let mut ranges = listened.get(&local.ip).into_iter().flatten();
        ranges.any(|range| local.may_have(range))
    };
    let servers = config
        .servers()
        .iter()
        .filter(|server| server.standing != Standing::Nobody);
    // Most servers are called from where the one before is.
    let mut last: (&[LocalAddress], bool) = (&[], false);
    let called = servers.filter(move |server| {
        if server.local != last.0 {
            last = (&server.local, server.local.iter().any(&is_called));
        }
        last.1
    });
    called.map(|server| (netfcts::leg::mapped(server.address.ip()), server.address.port()))
}
