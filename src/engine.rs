//! Starts and stops the worker cores, and collects what they have counted.
//!
//! ```text
//!   Config ─► Machine::open ─► one thread per core: Program in a Scheduler ─► Message ─┐
//!               devices, pools       ▲                                                 ▼
//!                Board ─► Report     └── Control (drain, end) ◄────────────── RunningEngine
//! ```
//!
//! [`Engine::start_with`] opens everything and returns when every worker runs, or with a sentence that says what is
//! missing. [`RunningEngine`] is then asked for reports, told to drain and at last to end: connections get RST, records
//! are written, devices closed, and the buffers counted. A worker that panics ends alone; the engine learns of it at the
//! next call and the [`Outcome`] says so.
//!
//! What lives here: threads, orders, totals. What does not: signals and exit codes (`main.rs`), the graph of a core
//! (`pipeline.rs`), DPDK (`engine/native.rs`, behind the feature `dpdk`).

mod board;
mod core;
mod crew;
mod generation;
mod links;
pub mod machine;
#[cfg(feature = "dpdk")]
mod native;
mod port;
mod server_watch;
mod sides;
pub mod steering;
mod watch;
mod worker;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use e2d2::handover;
use e2d2::port::{Port, PortId};
use e2d2::scheduler::{IdleMode, Task};
use e2d2::time::Clock;
use e2d2::wire::MacAddr;
use netfcts::format::{NameTable, Named};
use netfcts::ring::{RecordReceiver, RecordSender, record_ring};

use crate::commands::{CommandEnd, command_ring};
use crate::config::{self, Config, ConfigError, CoreId, Idle, Standing};
use crate::kernel::{self, KernelEnd, KernelError, KernelLinks};
use crate::log_ring::{LOG_RING, LogReceiver, LogSender, LogWriter, log_ring};
use crate::neighbour::{SharedNeighbours, Topology, TopologyError};
use crate::pipeline::{CoreLinks, HANDOVER_RING};
use crate::records::{OpenError, RING_CAPACITY, RecordKeeper, RecordWatch};
use crate::report::{Buffers, CoreReport, NextHopTotals, PortReport, Report, ServerReport};
use crate::selectors::RuleSelector;
use crate::stages::{Off, Stages};
use splice::callbacks::{SelectServer, SelectorFactory};
use splice::difference::Difference;
use splice::settings::CoreSteering;
use splice::standby::Standby;

use self::core::Seeds;
use crew::Crew;
pub use generation::GenerationError;
use generation::{Desk, Generations, Next, Remake};
use links::LinkWatch;
use machine::{CoreParts, Machine, MachineError, Opened, WatchedPool};
use steering::SteeringError;

#[cfg(feature = "dpdk")]
pub use native::{BoxedCore, DpdkMachine, EngineQueue};
use server_watch::ServerWatch;
use watch::Noted;
pub use watch::{CaptureClaim, NotReady, Watch};
use worker::Parts;
pub use worker::{Program, Shown};

/// Why an engine goes on with the configuration that it has.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file has an error, or differs in what needs a restart.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The addresses do not make a network.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The cores.
    #[error(transparent)]
    Cores(#[from] GenerationError),
    /// The engine was started by a program that has cores of its own.
    #[error("the cores of this engine keep the settings that they began with")]
    Fixed,
}

/// How often a draining engine looks whether connections are left.
const DRAIN_PACE: Duration = Duration::from_millis(20);

/// Why the engine did not start. Every message is a sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The addresses of the configuration do not make a network.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A device or its memory.
    #[error(transparent)]
    Machine(MachineError),
    /// Several cores, and packets that could not find theirs.
    #[error(transparent)]
    Steering(#[from] SteeringError),
    /// The way to the kernel.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The session records.
    #[error(transparent)]
    Records(#[from] OpenError),
    /// The thread that writes the log could not be made.
    #[error("the thread that writes the log could not be started: {0}")]
    Log(std::io::Error),
    /// The kernel gives no secret numbers.
    #[error("/dev/urandom cannot be read: {0}; the engine needs secret numbers for its cookies")]
    NoRandomness(std::io::Error),
    /// A thread could not be made.
    #[error("the thread of core {core} could not be started: {source}")]
    Thread {
        /// The core.
        core: CoreId,
        /// What the system said.
        source: std::io::Error,
    },
    /// A worker gave up before its first round.
    #[error("core {core}: {reason}")]
    Worker {
        /// The core.
        core: CoreId,
        /// Its reason.
        reason: String,
    },
}

/// Everything that a core's program is made of; given to the worker thread that makes it.
pub struct CoreStart<M: Machine> {
    /// The core's place in the configuration.
    pub index: usize,
    /// The configuration.
    pub config: Arc<Config>,
    /// Ports and buffers.
    pub parts: CoreParts<M>,
    /// Own addresses and next hops.
    pub topology: Arc<Topology>,
    /// The next hops' MAC addresses.
    pub neighbours: Arc<SharedNeighbours>,
    /// The ports whose announcements and questions this core sends.
    pub leads: Vec<PortId>,
    /// The core's end of the way to the kernel, if some port has one.
    pub kernel: Option<KernelEnd>,
    /// Where session records go.
    pub records: RecordSender,
    /// Where what is for the log goes.
    pub log: LogSender,
    /// Its place among several cores, and the rings between them; nothing for a core that is alone.
    pub others: Option<Others<<M::Port as Port>::Buffer>>,
    /// Where commands to it come from, if anybody may give them.
    pub commands: Option<CommandEnd>,
    /// The clock that all cores share.
    pub clock: Clock,
    /// What an operator takes out of service.
    pub standby: Arc<Standby>,
}

/// What a core of several has to do with the others.
pub struct Others<B> {
    /// Which of them owns what.
    pub steering: CoreSteering,
    /// The ways to and from them.
    pub links: CoreLinks<B>,
}

/// Starts engines.
pub struct Engine;

/// An engine whose workers run. Dropping it ends them without a report.
pub struct RunningEngine<M: Machine> {
    // In this order: the workers' ports and buffers go before the devices and pools.
    crew: Crew,
    _kernel: KernelLinks,
    records: RecordKeeper,
    log: LogWriter,
    config: Arc<Config>,
    links: LinkWatch,
    machine: M,
    pools: Vec<WatchedPool<M::Pool>>,
    neighbours: Arc<SharedNeighbours>,
    clock: Clock,
    watch: Watch,
    servers: ServerWatch,
    topology: Arc<Topology>,
    /// Nothing where cores keep the settings that they began with.
    generations: Option<Box<dyn Generations>>,
}

/// How an engine has ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The final counts.
    pub report: Report,
    /// What went wrong, one sentence per worker that did not end in order.
    pub failures: Vec<String>,
}

impl Engine {
    /// Starts the proxy that a configuration describes on a machine, with one selector per core.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left open.
    pub fn start_on<M, F>(config: Config, selectors: F) -> Result<RunningEngine<M>, StartError>
    where
        M: Machine + 'static,
        F: SelectorFactory,
    {
        let seeds = Seeds::draw().map_err(StartError::NoRandomness)?;
        let selectors = Arc::new(selectors);
        Self::start_reloadable(config, None, move |start, desk| {
            core::build::<M, F, Off>(start, &seeds, &*selectors, Some(desk))
        })
    }

    /// The same by the rules of the configuration, and of each that it is reloaded with.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left open.
    pub fn start_on_by_rules<M: Machine + 'static>(config: Config) -> Result<RunningEngine<M>, StartError> {
        let seeds = Seeds::draw().map_err(StartError::NoRandomness)?;
        let rules = Arc::new(RuleSelector::new(&config));
        let remake: Remake<RuleSelector> = Box::new(|config, _| RuleSelector::new(config));
        Self::start_reloadable(config, Some(remake), move |start, desk| {
            core::build::<M, RuleSelector, Off>(start, &seeds, &*rules, Some(desk))
        })
    }

    /// An engine whose cores can go on with another configuration: `make` gives each of them its end of the way there.
    fn start_reloadable<M, S, P, T, F>(
        config: Config,
        remake: Option<Remake<S>>,
        make: F,
    ) -> Result<RunningEngine<M>, StartError>
    where
        M: Machine + 'static,
        S: SelectServer,
        P: Program,
        T: Task + 'static,
        F: Fn(CoreStart<M>, Desk<S>) -> Result<(P, T), String> + Clone + Send + 'static,
    {
        let (offices, desks) = generation::offices(config.engine().cores.len(), remake);
        let desks: Arc<Mutex<Vec<_>>> = Arc::new(Mutex::new(desks.into_iter().map(Some).collect()));
        let mut engine = Self::start_with(config, move |start: CoreStart<M>| {
            let mut desks = desks.lock().unwrap_or_else(PoisonError::into_inner);
            let desk = desks.get_mut(start.index).and_then(Option::take);
            drop(desks);
            make(start, desk.ok_or("a core began twice")?)
        })?;
        engine.generations = Some(Box::new(offices));
        Ok(engine)
    }

    /// What each of `cores` cores has to do with the others, steered as the configuration and the machine's ports allow:
    /// nothing for one that is alone. [`start_with`](Self::start_with) does it; so do benches that run cores themselves.
    ///
    /// # Errors
    /// See [`SteeringError`].
    pub fn steer<M: Machine>(config: &Config, machine: &mut M, cores: usize) -> Result<Vec<OthersOf<M>>, StartError> {
        others_of_each(config, machine, cores)
    }

    /// Builds the program and the task of one core without a thread for them: whoever calls runs the rounds, as benches
    /// do that measure each of them.
    ///
    /// # Errors
    /// A sentence: the kernel gives no secret numbers, or the ports do not fit the configuration.
    pub fn core_program<M, F>(
        start: CoreStart<M>,
        selectors: &F,
    ) -> Result<(impl Program + use<M, F>, impl Task + 'static + use<M, F>), String>
    where
        M: Machine + 'static,
        F: SelectorFactory,
    {
        Self::core_program_staged::<M, F, Off>(start, selectors)
    }

    /// The same, with its cycles counted by stage if that is what `C` does.
    ///
    /// # Errors
    /// The same.
    pub fn core_program_staged<M, F, C>(
        start: CoreStart<M>,
        selectors: &F,
    ) -> Result<(impl Program + use<M, F, C>, impl Task + 'static + use<M, F, C>), String>
    where
        M: Machine + 'static,
        F: SelectorFactory,
        C: Stages,
    {
        let seeds = Seeds::draw().map_err(|error| format!("no secret numbers from /dev/urandom: {error}"))?;
        core::build::<M, F, C>(start, &seeds, selectors, None)
    }

    /// Opens the machine's ports and starts one worker per core; `make` builds each core's program and
    /// the task that runs it, on the core's own thread.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left open.
    pub fn start_with<M, P, T, F>(config: Config, make: F) -> Result<RunningEngine<M>, StartError>
    where
        M: Machine + 'static,
        P: Program,
        T: Task + 'static,
        F: Fn(CoreStart<M>) -> Result<(P, T), String> + Clone + Send + 'static,
    {
        check_topology(&config)?;
        let config = Arc::new(config);
        let clock = Clock::new();
        let opened = M::open(&config).map_err(StartError::Machine)?;
        let Opened {
            mut machine,
            cores,
            pools,
        } = opened;
        let others = others_of_each(&config, &mut machine, cores.len())?;
        let topology = Arc::new(Topology::from_config(&config, &machine.macs())?);
        let neighbours = Arc::new(SharedNeighbours::new(&topology));
        let (links, ends) = kernel::connect(&config, &machine.macs(), cores.len(), &clock)?;
        let rings = cores.iter().map(|_| record_ring(RING_CAPACITY));
        let (senders, receivers): (Vec<RecordSender>, Vec<RecordReceiver>) = rings.unzip();
        let records = RecordKeeper::start(receivers, config.records(), names_of(&config, &clock))?;
        let rings = cores.iter().map(|_| log_ring(LOG_RING));
        let (logs, receivers): (Vec<LogSender>, Vec<LogReceiver>) = rings.unzip();
        let log = LogWriter::start(receivers, Arc::clone(&config)).map_err(StartError::Log)?;

        let rings = cores.iter().map(|_| command_ring());
        let (commanders, commands): (Vec<_>, Vec<_>) = rings.unzip();
        let watch = Watch::new(
            Arc::clone(&config),
            Vec::new(),
            (Arc::clone(&neighbours), Arc::clone(&topology)),
            (clock, commanders),
            records.watch(),
        );
        let mut engine = RunningEngine {
            crew: Crew::new(),
            watch,
            servers: ServerWatch::default(),
            topology: Arc::clone(&topology),
            generations: None,
            _kernel: links,
            records,
            log,
            config: Arc::clone(&config),
            links: LinkWatch::new(&config),
            machine,
            pools,
            neighbours,
            clock,
        };
        let (idle, standby) = (idle_mode(&config), engine.watch.standby());
        let places = senders.into_iter().zip(logs).zip(others).zip(ends).zip(commands);
        for (index, (parts, ((((records, log), others), kernel), commands))) in
            cores.into_iter().zip(places).enumerate()
        {
            let core = parts.core;
            let leads = if index == 0 {
                config.ports().iter().map(|port| port.id).collect()
            } else {
                vec![]
            };
            let start = CoreStart {
                index,
                config: Arc::clone(&config),
                parts,
                topology: Arc::clone(&topology),
                neighbours: Arc::clone(&engine.neighbours),
                leads,
                kernel,
                records,
                log,
                others,
                commands: Some(commands),
                clock,
                standby: Arc::clone(&standby),
            };
            let (handle, make) = (engine.machine.handle(), make.clone());
            engine.crew.spawn(core, clock, idle, move || {
                let guard = M::enter_thread(&handle).map_err(|error| error.to_string())?;
                let (program, task) = make(start)?;
                Ok(Parts { guard, program, task })
            })?;
        }
        engine.crew.wait_until_ready()?;
        let (config, boards) = (Arc::clone(&engine.config), engine.crew.boards());
        engine.watch.go_on_with(config, boards, topology);
        engine.look_at_links();
        Ok(engine)
    }
}

/// What a core of this machine has to do with the others; nothing if it is alone.
pub type OthersOf<M> = Option<Others<<<M as Machine>::Port as Port>::Buffer>>;

/// For each core what it has to do with the others: nothing if it is alone.
fn others_of_each<M: Machine>(config: &Config, machine: &mut M, cores: usize) -> Result<Vec<OthersOf<M>>, StartError> {
    if cores < 2 {
        return Ok((0..cores).map(|_| None).collect());
    }
    let seed: [u8; 8] = core::random().map_err(StartError::NoRandomness)?;
    let chosen = steering::choose(config, machine, cores, u64::from_ne_bytes(seed))?;
    let links = handover::mesh(cores, HANDOVER_RING);
    let of_core = |(core, links)| {
        Some(Others {
            steering: CoreSteering {
                plan: Arc::clone(&chosen.plan),
                core,
                asks_around: chosen.asks_around,
            },
            links,
        })
    };
    Ok(links.into_iter().enumerate().map(of_core).collect())
}

impl<M: Machine> RunningEngine<M> {
    /// Looks at the links of all ports: logs and counts those that went down or came up, and announces the addresses of ports
    /// whose link came up. A port whose device is taken away is logged, and no longer looked at. Logs servers that are passed
    /// over or back. To be called a few times a second, by a thread that handles no packets: some devices take a millisecond
    /// to answer.
    pub fn look_at_links(&mut self) {
        let Self {
            links,
            machine,
            neighbours,
            ..
        } = self;
        let came_up = |port: usize| {
            // Ports are numbered with eight bits.
            if let Ok(port) = u8::try_from(port) {
                neighbours.announce(PortId(port));
            }
        };
        links.look_for_removed(|port| machine.is_removed(port));
        links.look(|port| machine.is_link_up(port), came_up);
        self.note();
        let report = self.watch.report();
        self.servers.look(&report.servers, report.cores.len(), report.uptime_ms);
    }

    /// Notes for the watch what only this thread can ask for.
    fn note(&self) {
        self.watch.note(Noted {
            log_lost: self.log.lost(),
            ports: self.links.add_to(self.machine.port_reports()),
            buffers: Buffers::of(self.pools.iter().map(WatchedPool::report).collect(), false),
        });
    }

    /// Goes on with another version of the configuration's file. Open connections go on; new ones are served by it.
    ///
    /// # Errors
    /// The file has an error, or differs in what needs a restart, or a core does not come round: all goes on as before.
    pub fn reload(&mut self, path: &Path) -> Result<(), ReloadError> {
        let (config, difference) = self.config.reload(path)?;
        self.go_on_with(config, &difference)
    }

    /// The configuration that it runs with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Forgets listeners, pools and servers that the file no longer has, as soon as no connection names them. To be called
    /// now and then.
    pub fn forget_past(&mut self) {
        if !self.config.has_past() {
            return;
        }
        let named = self.generations.as_mut().and_then(|generations| generations.look());
        if let Some((config, difference)) = named.and_then(|named| self.config.without_past(&named))
            && let Err(error) = self.go_on_with(config, &difference)
        {
            log::warn!("what is past is not forgotten: {error}");
        }
    }

    fn go_on_with(&mut self, config: Config, difference: &Difference) -> Result<(), ReloadError> {
        let Some(generations) = &mut self.generations else {
            return Err(ReloadError::Fixed);
        };
        let config = Arc::new(config);
        let macs = self.machine.macs();
        let before = Arc::clone(&self.topology);
        let topology = Arc::new(Topology::from_config_after(&config, &macs, before.next_hops())?);
        self.neighbours.go_on_with(&topology, before.next_hops());
        let boards = generations.change(&Next {
            config: &config,
            difference,
            topology: &topology,
            before: &before,
            boards: self.crew.boards(),
        })?;
        self.crew.set_boards(&boards);
        // Who comes next by these numbers is in service.
        let standby = self.watch.standby();
        for &server in difference.new_servers.iter().chain(&difference.past_servers) {
            standby.set_server(server, false);
        }
        for &(listener, _) in &difference.new_listeners {
            standby.set_listener(listener, false);
        }
        self.records.set_names(names_of(&config, &self.clock));
        self.log.set_config(Arc::clone(&config));
        self.watch
            .go_on_with(Arc::clone(&config), boards, Arc::clone(&topology));
        (self.config, self.topology) = (config, topology);
        Ok(())
    }

    /// A view of the engine for other threads.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// The counts now; waits until every worker has written its own once more, a second at most.
    pub fn report(&mut self) -> Report {
        self.crew.refresh();
        self.note();
        self.watch.report()
    }

    /// Connections open now, on all cores.
    pub fn open_connections(&mut self) -> u64 {
        self.crew.refresh();
        self.crew.reports().iter().map(|core| core.connections_open).sum()
    }

    /// What has gone wrong so far: one sentence per worker that has stopped without being told to.
    pub fn failures(&mut self) -> Vec<String> {
        self.crew.failures()
    }

    /// Takes no more connections, and waits until the open ones have ended, for `limit` at most. Ends early when `stop`
    /// says so or a worker has failed. Returns the number of connections left.
    pub fn drain(&mut self, limit: Duration, mut stop: impl FnMut() -> bool) -> u64 {
        self.crew.drain();
        self.watch.note_drain();
        let start = std::time::Instant::now();
        loop {
            let open = self.open_connections();
            if open == 0 || start.elapsed() >= limit || stop() || !self.failures().is_empty() {
                return open;
            }
            thread::sleep(DRAIN_PACE.min(limit.saturating_sub(start.elapsed())));
        }
    }

    /// Ends all connections with RST, the workers, the devices and the records, and counts the buffers.
    pub fn shutdown(self) -> Outcome {
        let Self {
            mut crew,
            _kernel: kernel,
            records,
            log,
            config,
            links,
            machine,
            pools,
            neighbours,
            clock,
            watch,
            servers: _,
            topology: _,
            generations: _,
        } = self;
        watch.note_drain();
        crew.end();
        drop(kernel);
        let failures = crew.failures();
        let ports = links.add_to(machine.port_reports());
        let records = records.finish();
        let parts = (crew.reports(), &records, ports);
        drop((crew, machine));
        let buffers = Buffers::of(pools.iter().map(WatchedPool::report).collect(), true);
        let report = Report {
            log_lost: log.lost(),
            servers: servers_of(&config),
            ..report(&clock, &neighbours, parts, buffers)
        };
        Outcome {
            report: report.summed(),
            failures,
        }
    }
}

/// How all threads wait for packets.
fn idle_mode(config: &Config) -> IdleMode {
    match config.engine().idle {
        Idle::Adaptive => IdleMode::ADAPTIVE,
        Idle::Poll => IdleMode::Poll,
    }
}

/// What [`Engine::start_with`] refuses before it opens a port; `check` asks for no more than this.
///
/// # Errors
/// See [`TopologyError`].
pub fn check_topology(config: &Config) -> Result<(), TopologyError> {
    let any: Vec<MacAddr> = config
        .ports()
        .iter()
        .map(|port| MacAddr([2, 0, 0, 0, 0, port.id.0]))
        .collect();
    Topology::from_config(config, &any).map(|_| ())
}

fn report(
    clock: &Clock,
    neighbours: &SharedNeighbours,
    (cores, records, ports): (Vec<CoreReport>, &RecordWatch, Vec<PortReport>),
    buffers: Buffers,
) -> Report {
    let totals = records.totals();
    Report {
        version: env!("CARGO_PKG_VERSION"),
        uptime_ms: clock.now().as_millis(),
        records: totals.written,
        records_lost: totals.lost,
        records_left_out: totals.left_out,
        record_sinks: records.sinks(),
        next_hops: NextHopTotals {
            resolved: neighbours.resolved() as u64,
            total: neighbours.len() as u64,
        },
        buffers,
        cores,
        ports,
        ..Report::default()
    }
}

/// The servers, of which nothing is known yet.
fn servers_of(config: &Config) -> Vec<ServerReport> {
    let name = |server: &config::ServerConfig| match server.standing {
        Standing::Nobody => String::new(),
        Standing::InFile | Standing::Past => server.name.clone(),
    };
    let unknown = |server: &config::ServerConfig| ServerReport {
        name: name(server),
        ..ServerReport::default()
    };
    config.servers().iter().map(unknown).collect()
}

/// What the numbers in the records mean.
fn names_of(config: &Config, clock: &Clock) -> NameTable {
    let named = |name: &str, address: SocketAddr| Named {
        name: name.to_owned(),
        address,
    };
    // A listener has many addresses; the first stands for it.
    let listener = |listener: &config::ListenerConfig| {
        let first = listener.addresses.first();
        let address = first.map(|address| SocketAddr::new(address.ip, *address.ports.start()));
        named(
            &listener.name,
            address.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0))),
        )
    };
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    NameTable {
        listeners: config.listeners().iter().map(listener).collect(),
        servers: config
            .servers()
            .iter()
            .map(|server| named(&server.name, server.address))
            .collect(),
        local_addresses: config.addresses(),
        epoch_ns: u64::try_from(since_1970)
            .unwrap_or(u64::MAX)
            .saturating_sub(clock.now().as_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netfcts::leg::unmapped;
    use std::net::IpAddr;

    #[test]
    fn records_and_cores_number_our_addresses_alike() {
        let text = r#"
            [[port]]
            name = "left"
            device = "net_ring0"
            addresses = ["10.0.0.1/24", "2001:db8::1/64"]
            [[listener]]
            name = "a"
            addresses = ["10.0.0.7:80", "10.0.0.1:80-90", "10.0.0.7:443"]
            default = "four"
            [[listener]]
            name = "b"
            addresses = ["[2001:db8::7]:80"]
            default = "six"
            [[pool]]
            name = "four"
            local_addresses = ["10.0.0.9", "10.0.0.1"]
            servers = [{ name = "s4", address = "10.0.0.20:80" }]
            [[pool]]
            name = "six"
            local_addresses = ["2001:db8::9", "2001:db8::7"]
            servers = [{ name = "s6", address = "[2001:db8::20]:80" }]
        "#;
        let config = Config::parse(text, "test.toml").unwrap_or_else(|error| panic!("{error}"));
        let addresses = config.core_settings(0, &[MacAddr::default()], |_| 0).addresses;
        let of_cores: Vec<IpAddr> = (0..addresses.len() as u16)
            .map(|index| unmapped(addresses.value(index)))
            .collect();
        assert_eq!(config.addresses(), of_cores);
        assert_eq!(of_cores.len(), 5, "{of_cores:?}");
    }
}
