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
//! What lives here: the start. What does not: what a running engine does (`engine/running.rs`), signals and exit codes
//! (`main.rs`), the graph of a core (`pipeline.rs`), DPDK (`engine/native.rs`, behind the feature `dpdk`).

mod board;
mod core;
mod crew;
mod generation;
mod links;
pub mod machine;
#[cfg(feature = "dpdk")]
mod native;
mod port;
mod reloader;
mod running;
mod server_watch;
mod sides;
mod slow_servers;
pub mod steering;
mod watch;
mod worker;

use std::sync::{Arc, Mutex, PoisonError};

use e2d2::handover;
use e2d2::port::{Port, PortId};
use e2d2::scheduler::{IdleMode, Task};
use e2d2::time::Clock;
use e2d2::wire::MacAddr;
use netfcts::ring::{RecordReceiver, RecordSender, record_ring};

use crate::checks::{CheckLine, CheckThread, check_line};
use crate::commands::{CommandEnd, command_ring};
use crate::config::{Config, CoreId, Idle};
use crate::kernel::{self, KernelEnd, KernelError};
use crate::log_ring::{LOG_RING, LogReceiver, LogSender, LogWriter, log_ring};
use crate::neighbour::{SharedNeighbours, Topology, TopologyError};
use crate::pipeline::{CoreLinks, HANDOVER_RING};
use crate::records::{OpenError, RING_CAPACITY, RecordKeeper};
use crate::selectors::RuleSelector;
use crate::stages::{Off, Stages};
use splice::callbacks::{SelectServer, SelectorFactory};
use splice::settings::CoreSteering;
use splice::standby::Standby;

use self::core::Seeds;
use crew::Crew;
use generation::Remake;
pub use generation::{Desk, GenerationError};
use links::LinkWatch;
use machine::{CoreParts, Machine, MachineError, Opened};
use steering::SteeringError;

#[cfg(feature = "dpdk")]
pub use native::{BoxedCore, DpdkMachine, EngineQueue};
pub use reloader::Reloader;
use running::names_of;
pub use running::{Outcome, ReloadError, RunningEngine};
use server_watch::ServerWatch;
pub use slow_servers::SlowServer;
use slow_servers::SlowWatch;
pub use watch::{CaptureClaim, NotReady, Services, Subject, Watch};
use worker::Parts;
pub use worker::{Program, Shown};

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
    /// The thread that makes checks with content could not be made.
    #[error("the thread that makes checks could not be started: {0}")]
    Checks(std::io::Error),
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

/// What is to be done once there is an engine to look at, and before any of its cores runs: to take out of service what is not to
/// serve from the first packet on.
pub type Prepare<'a> = &'a dyn Fn(&Watch);

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
    /// Who makes its checks with content, if anybody does.
    pub checks: Option<CheckLine>,
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
        Self::start_reloadable(config, None, &|_| {}, move |start, desk| {
            core::build::<M, F, Off>(start, &seeds, &*selectors, Some(desk))
        })
    }

    /// The same by the rules of the configuration, and of each that it is reloaded with. `prepare` is called before a core runs.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left open.
    pub fn start_on_by_rules<M: Machine + 'static>(
        config: Config,
        prepare: Prepare<'_>,
    ) -> Result<RunningEngine<M>, StartError> {
        let seeds = Seeds::draw().map_err(StartError::NoRandomness)?;
        let rules = Arc::new(RuleSelector::new(&config));
        let remake: Remake<RuleSelector> = Box::new(|config, core| RuleSelector::new(config).selector(core));
        Self::start_reloadable(config, Some(remake), prepare, move |start, desk| {
            core::build::<M, RuleSelector, Off>(start, &seeds, &*rules, Some(desk))
        })
    }

    /// An engine whose cores can go on with another configuration: `make` gives each of them its end of the way there.
    fn start_reloadable<M, S, P, T, F>(
        config: Config,
        remake: Option<Remake<S>>,
        prepare: Prepare<'_>,
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
        let mut engine = Self::start_prepared(config, prepare, move |start: CoreStart<M>| {
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
        Self::start_prepared(config, &|_| {}, make)
    }

    fn start_prepared<M, P, T, F>(config: Config, prepare: Prepare<'_>, make: F) -> Result<RunningEngine<M>, StartError>
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
        neighbours.set_announces(config.engine().announce, []);
        let (links, ends) = kernel::connect(&config, &machine.macs(), cores.len(), &clock)?;
        let rings = cores.iter().map(|_| record_ring(RING_CAPACITY));
        let (senders, receivers): (Vec<RecordSender>, Vec<RecordReceiver>) = rings.unzip();
        let records = RecordKeeper::start(receivers, config.records(), names_of(&config, &clock))?;
        let rings = cores.iter().map(|_| log_ring(LOG_RING));
        let (logs, receivers): (Vec<LogSender>, Vec<LogReceiver>) = rings.unzip();
        let log = LogWriter::start(receivers, Arc::clone(&config)).map_err(StartError::Log)?;

        let rings = cores.iter().map(|_| command_ring());
        let (commanders, commands): (Vec<_>, Vec<_>) = rings.unzip();
        let (check_lines, lines) = cores.iter().map(|_| check_line()).unzip::<_, _, Vec<_>, Vec<_>>();
        let checks = CheckThread::start(lines, Arc::clone(&config), clock).map_err(StartError::Checks)?;
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
            slow: SlowWatch::default(),
            topology: Arc::clone(&topology),
            names: Vec::new(),
            generations: None,
            services: None,
            expiry_put_off: None,
            _kernel: links,
            checks,
            records,
            log,
            config: Arc::clone(&config),
            links: LinkWatch::new(&config),
            machine,
            pools,
            neighbours,
            clock,
        };
        prepare(&engine.watch);
        let (idle, standby) = (idle_mode(&config), engine.watch.standby());
        let ends = ends.into_iter().zip(commands).zip(check_lines);
        let places = senders.into_iter().zip(logs).zip(others).zip(ends);
        for (index, (parts, (((records, log), others), ((kernel, commands), checks)))) in
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
                checks: Some(checks),
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
