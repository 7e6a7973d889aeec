//! DPDK as the machine that the engine runs on.

mod buffers;
mod queue;
mod side_core;

use std::collections::BTreeMap;
use std::sync::Arc;

use e2d2::flow::{FlowError, FlowRule};
use e2d2::native::PortConfig as DpdkPortConfig;
use e2d2::native::{Device, DpdkPort, Eal, EalConfig, MbufPool, PoolError, PortError, RegisteredThread, data_room};
use e2d2::ports::{NicConfig, NicEvent, NicParts, SoftwareNic};
use e2d2::rss::Rss;
use e2d2::scheduler::Task;
use e2d2::wire::MacAddr;

pub use queue::EngineQueue;
use queue::{Side, SideDrops};
use side_core::SideCore;

use super::core::{self, Seeds};
use super::generation::{Desk, Remake};
use super::machine::{CoreParts, DeviceSide, Machine, MachineError, Opened, WatchedPool};
use super::{CoreStart, Engine, Prepare, Program, RunningEngine, StartError, idle_mode};
use crate::config::{Config, CoreId, PortConfig, SoftwareNicConfig};
use crate::doctor::{Root, misplaced};
use crate::privileges::Limits;
use crate::report::PortReport;
use crate::selectors::RuleSelector;
use crate::stages::{Off, Stages, Timed};
use splice::callbacks::SelectorFactory;

/// DPDK's environment and the open ports.
pub struct DpdkMachine {
    // In this order: the threads that use ports go before these.
    side_cores: Vec<SideCore>,
    ports: Vec<MachinePort>,
    eal: Arc<Eal>,
}

/// An open port of the configuration.
struct MachinePort {
    name: String,
    device: DpdkPort,
    software: Option<Software>,
}

/// The owner's end of a software NIC.
struct Software {
    nic: SoftwareNic,
    drops: Arc<SideDrops>,
}

/// The program of a core, and the task that runs it.
pub type BoxedCore = (Box<dyn Program>, Box<dyn Task>);

impl Engine {
    /// Starts the proxy that a configuration describes on DPDK's ports, with one selector per core. Once per process.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left open.
    pub fn start<F: SelectorFactory>(config: Config, selectors: F) -> Result<RunningEngine<DpdkMachine>, StartError> {
        Self::start_on(config, selectors)
    }

    /// The same by the rules of the configuration, with packet threads that give up what they do not need: what the program
    /// `proxyengine` runs. `prepare` is called before a core runs.
    ///
    /// Neither this nor [`core_by_rules`](Self::core_by_rules) is generic, so the engine is compiled here, once: what a
    /// bench measures, and what a build learns from a run of it (`scripts/profile.sh`), is what the program runs.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left open.
    pub fn start_by_rules(
        config: Config,
        limits: Limits,
        prepare: Prepare<'_>,
    ) -> Result<RunningEngine<DpdkMachine>, StartError> {
        Self::start_limited::<Off>(config, limits, prepare)
    }

    /// The same with each core's cycles counted by stage ([`crate::stages`]): `proxyengine run --stage-cycles`.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left open.
    pub fn start_timed_by_rules(
        config: Config,
        limits: Limits,
        prepare: Prepare<'_>,
    ) -> Result<RunningEngine<DpdkMachine>, StartError> {
        Self::start_limited::<Timed>(config, limits, prepare)
    }

    fn start_limited<C: Stages>(
        config: Config,
        limits: Limits,
        prepare: Prepare<'_>,
    ) -> Result<RunningEngine<DpdkMachine>, StartError> {
        let seeds = Seeds::draw().map_err(StartError::NoRandomness)?;
        let rules = Arc::new(RuleSelector::new(&config));
        let remake: Remake<RuleSelector> = Box::new(|config, core| RuleSelector::new(config).selector(core));
        let of_driver = limits.clone();
        let engine = Self::start_reloadable(config, Some(remake), prepare, move |start, desk| {
            let core = core::build::<DpdkMachine, _, C>(start, &seeds, &*rules, Some(desk))?;
            limits
                .enter_packet_thread()
                .map_err(|error| format!("privileges: {error}"))?;
            Ok(core)
        })?;
        let of_driver = move || {
            if let Err(error) = of_driver.enter_driver_thread() {
                log::warn!("DPDK's thread keeps its privileges: {error}");
            }
        };
        if let Err(error) = engine.machine.eal.run_on_interrupt_thread(of_driver) {
            log::warn!("DPDK's thread keeps its privileges: {error}");
        }
        Ok(engine)
    }

    /// A core of that engine: `bench cps --stage-cycles`.
    ///
    /// # Errors
    /// The same as of [`core_by_rules`](Self::core_by_rules).
    pub fn timed_core_by_rules(start: CoreStart<DpdkMachine>) -> Result<BoxedCore, String> {
        let rules = RuleSelector::new(&start.config);
        let (program, task) = Self::core_program_staged::<_, _, Timed>(start, &rules)?;
        Ok((Box::new(program), Box::new(task)))
    }

    /// [`core_program`](Self::core_program) for one of that engine's cores; with a desk it goes on with other versions of its
    /// configuration, as a [`Reloader`](super::Reloader) says.
    ///
    /// # Errors
    /// The same.
    pub fn core_by_rules(start: CoreStart<DpdkMachine>, desk: Option<Desk<RuleSelector>>) -> Result<BoxedCore, String> {
        let rules = RuleSelector::new(&start.config);
        let seeds = Seeds::draw().map_err(|error| format!("no secret numbers from /dev/urandom: {error}"))?;
        let (program, task) = core::build::<_, _, Off>(start, &seeds, &rules, desk)?;
        Ok((Box::new(program), Box::new(task)))
    }
}

impl Machine for DpdkMachine {
    type Port = EngineQueue;
    type Pool = MbufPool;
    type Thread = RegisteredThread;
    type Handle = Arc<Eal>;

    fn open(config: &Config) -> Result<Opened<Self>, MachineError> {
        let devices = config
            .ports()
            .iter()
            .map(|port| port.device.to_string().parse::<Device>());
        let devices = devices.collect::<Result<Vec<Device>, _>>()?;
        let ports: Vec<DpdkPortConfig> = config
            .ports()
            .iter()
            .zip(devices)
            .map(|(port, device)| port_config(port, device))
            .collect();
        let eal = Arc::new(Eal::start(&eal_config(config, &ports))?);

        let mtu = config.ports().iter().map(|port| port.mtu).max().unwrap_or(1500);
        let root = Root::system();
        for place in misplaced(&root, config) {
            log::warn!("{place}: every packet crosses the interconnect; choose `cores` on the port's node");
        }
        let mut pools = Vec::new();
        for (index, core) in config.engine().cores.iter().enumerate() {
            let pool = MbufPool::new(
                &eal,
                &format!("core{core}"),
                buffers::of_core(config, &ports, index),
                data_room(mtu),
                root.node_of_core(*core),
            );
            pools.push(pool.map_err(|error| pool_error(config, &error))?);
        }
        let named = config.engine().cores.iter().zip(&pools);
        let watched = named
            .map(|(core, pool)| WatchedPool::new(format!("core {core}"), pool.clone()))
            .collect();

        let mut cores: Vec<CoreParts<Self>> = Vec::new();
        for (core, pool) in config.engine().cores.iter().zip(&pools) {
            cores.push(CoreParts {
                core: *core,
                ports: Vec::new(),
                pool: pool.clone(),
            });
        }
        let mut machine = Self {
            side_cores: Vec::new(),
            ports: Vec::new(),
            eal,
        };
        let pools: Vec<&MbufPool> = pools.iter().collect();
        let mut sides: BTreeMap<u16, Vec<Side>> = BTreeMap::new();
        for (port, named) in ports.iter().zip(config.ports()) {
            log::info!("port {}: opening {}", named.name, named.device);
            let (opened, queues) = machine.open_port(port, named, &pools)?;
            log_port(&opened);
            machine.ports.push(opened);
            for (core, mut queue) in cores.iter_mut().zip(queues) {
                if let Some(core) = named.software_nic.and_then(|software| software.core) {
                    sides
                        .entry(core.0)
                        .or_default()
                        .extend(queue.take_side().map(|side| *side));
                }
                core.ports.push(queue);
            }
        }
        let idle = idle_mode(config);
        for (core, sides) in sides {
            machine
                .side_cores
                .push(SideCore::start(CoreId(core), sides, idle, &machine.eal)?);
        }
        Ok(Opened {
            machine,
            cores,
            pools: watched,
        })
    }

    fn handle(&self) -> Arc<Eal> {
        Arc::clone(&self.eal)
    }

    fn enter_thread(eal: &Arc<Eal>) -> Result<RegisteredThread, MachineError> {
        Ok(eal.register_thread()?)
    }

    fn macs(&self) -> Vec<MacAddr> {
        self.ports.iter().map(|port| port.device.mac()).collect()
    }

    fn rss(&self, port: usize) -> Option<Rss> {
        let port = self.ports.get(port)?;
        match &port.software {
            Some(software) => Some(software.nic.rss().clone()),
            None => port.device.rss().cloned(),
        }
    }

    fn install(&mut self, port: usize, rules: &[FlowRule]) -> Result<(), FlowError> {
        let Some(port) = self.ports.get_mut(port) else {
            return Err(FlowError::no_rules(&format!("port {port}")));
        };
        match &mut port.software {
            Some(software) => {
                software.nic.remove_rules();
                software.nic.install(rules)
            }
            None => {
                port.device.remove_rules();
                port.device.install(rules)
            }
        }
    }

    fn waiting(port: &EngineQueue) -> Option<u64> {
        port.waiting()
    }

    fn queue_drops(port: &EngineQueue) -> impl Iterator<Item = (&'static str, u64)> {
        port.drops()
    }

    fn take_side(port: &mut EngineQueue) -> Option<Box<dyn DeviceSide>> {
        port.take_side().map(|side| side as Box<dyn DeviceSide>)
    }

    fn is_link_up(&self, port: usize) -> Option<bool> {
        Some(self.ports.get(port)?.device.is_link_up())
    }

    fn is_removed(&self, port: usize) -> bool {
        self.ports.get(port).is_some_and(|port| port.device.is_removed())
    }

    fn port_reports(&self) -> Vec<PortReport> {
        self.ports.iter().map(MachinePort::report).collect()
    }
}

impl DpdkMachine {
    /// Opens a port with a queue pair for each pool, be it the device's own or a software NIC's.
    fn open_port(
        &self,
        port: &DpdkPortConfig,
        named: &PortConfig,
        pools: &[&MbufPool],
    ) -> Result<(MachinePort, Vec<EngineQueue>), MachineError> {
        let name = named.name.clone();
        let Some(software) = named.software_nic else {
            let (device, queues) = DpdkPort::open(&self.eal, port, pools).map_err(|error| port_error(named, error))?;
            let queues = queues.into_iter().map(EngineQueue::from).collect();
            let software = None;
            return Ok((MachinePort { name, device, software }, queues));
        };
        // What comes in is in the first core's buffers, whoever gets it.
        let first = &pools[..pools.len().min(1)];
        let (device, queues) = DpdkPort::open(&self.eal, port, first).map_err(|error| port_error(named, error))?;
        let Some(queue) = queues.into_iter().next() else {
            return Err(format!("port {name} has no queue").into());
        };
        let NicParts { nic, side, queues } = SoftwareNic::open(queue, &nic_config(port, software))?;
        let side = Side::new(side, software.core.is_none().then_some(0));
        let drops = side.drops();
        let mut side = Some(side);
        let queues = queues
            .into_iter()
            .map(|queue| EngineQueue::of_software(queue, side.take()))
            .collect();
        let software = Some(Software { nic, drops });
        Ok((MachinePort { name, device, software }, queues))
    }
}

/// Its rings are as long as the device's.
fn nic_config(port: &DpdkPortConfig, software: SoftwareNicConfig) -> NicConfig {
    NicConfig {
        rx_ring: usize::from(port.rx_descriptors),
        tx_ring: usize::from(port.tx_descriptors),
        key: port.rss_key.clone(),
        ..NicConfig::new(software.model, software.queues)
    }
}

/// The sentence with the key that helps.
fn port_error(port: &PortConfig, error: PortError) -> MachineError {
    match error {
        PortError::Queues { asked, .. } if port.software_nic.is_none() => format!(
            "port {}: {error}; `software_nic = {{ queues = {asked} }}` makes them in software",
            port.name
        )
        .into(),
        PortError::QueueArgument { .. } if port.software_nic.is_some() => {
            format!("port {}: {error}; behind its software_nic it is one", port.name).into()
        }
        error => error.into(),
    }
}

fn port_config(port: &PortConfig, device: Device) -> DpdkPortConfig {
    DpdkPortConfig {
        mtu: port.mtu,
        rx_descriptors: port.rx_descriptors,
        tx_descriptors: port.tx_descriptors,
        vlan: port.vlan,
        mac: port.mac,
        checksum_offload: port.checksum_offload,
        ..DpdkPortConfig::new(port.id, device)
    }
}

fn eal_config(config: &Config, ports: &[DpdkPortConfig]) -> EalConfig {
    let engine = config.engine();
    EalConfig {
        file_prefix: engine.name.clone(),
        packet_cores: engine.cores.iter().map(|core| core.index()).collect(),
        memory_mib: engine.memory_mib,
        pci: ports.iter().filter_map(|port| port.device.as_pci()).collect(),
        ..EalConfig::default()
    }
}

/// The sentence with the key that it is about.
fn pool_error(config: &Config, error: &PoolError) -> String {
    let memory_mib = u64::from(config.engine().memory_mib);
    match error {
        PoolError::NoMemory { mib, .. } => {
            let enough = memory_mib + mib;
            format!("{error}; memory_mib in [engine] is {memory_mib}, and {enough} is enough; or lower `buffers`")
        }
        PoolError::Refused { .. } => error.to_string(),
    }
}

fn log_port(port: &MachinePort) {
    let MachinePort { name, device, software } = port;
    let (rx, tx) = device.descriptors();
    let offloads = device.capabilities();
    log::info!(
        "port {name}: {} at {}, {rx}/{tx} descriptors, checksums in hardware: rx {}, tx {}, link {}",
        device.driver(),
        device.mac(),
        offloads.rx_checksum,
        offloads.tx_checksum,
        if device.is_link_up() {
            "up"
        } else {
            "DOWN: check the cable or the interface at its other end"
        },
    );
    let rss = software.as_ref().map(|software| software.nic.rss()).or(device.rss());
    if let Some(rss) = rss {
        log::info!(
            "port {name}: spreads TCP{} by a key of {} bytes and a table of {}",
            if software.is_some() { " in software" } else { "" },
            rss.key.len(),
            rss.reta.len()
        );
    }
}

impl MachinePort {
    fn report(&self) -> PortReport {
        let stats = self.device.stats();
        let mut report = PortReport {
            name: self.name.clone(),
            rx_packets: stats.rx_packets,
            rx_bytes: stats.rx_bytes,
            tx_packets: stats.tx_packets,
            tx_bytes: stats.tx_bytes,
            rx_missed: stats.rx_missed,
            rx_errors: stats.rx_errors,
            rx_no_buffer: stats.rx_no_buffer,
            tx_errors: stats.tx_errors,
            ..PortReport::default()
        };
        if let Some(software) = &self.software {
            let (rx, tx) = software.drops.rx_and_tx();
            report.rx_missed += software.nic.counts()[NicEvent::Missed];
            report.rx_errors += rx;
            report.tx_errors += tx;
        }
        report
    }
}
