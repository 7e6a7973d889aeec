//! DPDK as the machine that the engine runs on.

use std::sync::Arc;

use e2d2::native::PortConfig as DpdkPortConfig;
use e2d2::native::{
    Device, DpdkPort, DpdkQueue, Eal, EalConfig, MbufPool, PoolDemand, PoolError, RegisteredThread, data_room,
};
use e2d2::wire::MacAddr;

use super::machine::{CoreParts, Machine, MachineError, Opened, WatchedPool};
use super::{Engine, RunningEngine, StartError};
use crate::callbacks::SelectorFactory;
use crate::config::{Config, CoreId, PortConfig};
use crate::pipeline::frames_held;
use crate::report::PortReport;

/// DPDK's environment and the open ports.
pub struct DpdkMachine {
    names: Vec<String>,
    ports: Vec<DpdkPort>,
    eal: Arc<Eal>,
}

impl Engine {
    /// Starts the proxy that a configuration describes on DPDK's ports, with one selector per core. Once per process.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left open.
    pub fn start<F: SelectorFactory>(config: Config, selectors: F) -> Result<RunningEngine<DpdkMachine>, StartError> {
        Self::start_on(config, selectors)
    }
}

impl Machine for DpdkMachine {
    type Port = DpdkQueue;
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
        let buffers = buffers_per_core(config, &ports);
        let mut pools = Vec::new();
        for core in &config.engine().cores {
            let pool = MbufPool::new(
                &eal,
                &format!("core{core}"),
                buffers,
                data_room(mtu),
                numa_node_of(*core),
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
            names: Vec::new(),
            ports: Vec::new(),
            eal,
        };
        let pools: Vec<&MbufPool> = pools.iter().collect();
        for (port, named) in ports.iter().zip(config.ports()) {
            let (opened, queues) = DpdkPort::open(&machine.eal, port, &pools)?;
            log_port(&opened, &named.name);
            machine.ports.push(opened);
            machine.names.push(named.name.clone());
            for (core, queue) in cores.iter_mut().zip(queues) {
                core.ports.push(queue);
            }
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
        self.ports.iter().map(DpdkPort::mac).collect()
    }

    fn queue_drops(port: &DpdkQueue) -> Vec<(&'static str, u64)> {
        port.counters().drops().into()
    }

    fn port_reports(&self) -> Vec<PortReport> {
        self.names
            .iter()
            .zip(&self.ports)
            .map(|(name, port)| port_report(name, port))
            .collect()
    }
}

fn port_config(port: &PortConfig, device: Device) -> DpdkPortConfig {
    DpdkPortConfig {
        mtu: port.mtu,
        rx_descriptors: port.rx_descriptors,
        tx_descriptors: port.tx_descriptors,
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

/// What the configuration says, or more if the devices can hold more than it thinks.
fn buffers_per_core(config: &Config, ports: &[DpdkPortConfig]) -> u32 {
    let queues = ports.iter().map(DpdkPortConfig::buffers).sum();
    // The main thread frees what closed devices still held, without being registered; the worker is the one that is.
    let held = u32::try_from(frames_held(ports.len())).unwrap_or(u32::MAX);
    let demand = PoolDemand {
        queues,
        held,
        threads: 1,
    };
    let least = demand.buffers();
    let asked = config.engine().buffers;
    if asked < least {
        log::info!("{least} packet buffers per core in place of {asked}: the ports' queues can hold {queues}");
    }
    asked.max(least)
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

/// The node whose memory is next to a core, from sysfs; none where there is only one.
fn numa_node_of(core: CoreId) -> Option<u32> {
    let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}")).ok()?;
    let node_of = |name: String| name.strip_prefix("node")?.parse().ok();
    entries
        .flatten()
        .find_map(|entry| node_of(entry.file_name().into_string().ok()?))
}

fn log_port(port: &DpdkPort, name: &str) {
    let (rx, tx) = port.descriptors();
    let offloads = port.capabilities();
    log::info!(
        "port {name}: {} at {}, {rx}/{tx} descriptors, checksums in hardware: rx {}, tx {}, link {}",
        port.driver(),
        port.mac(),
        offloads.rx_checksum,
        offloads.tx_checksum,
        if port.is_link_up() {
            "up"
        } else {
            "DOWN: check the cable or the interface at its other end"
        },
    );
}

fn port_report(name: &str, port: &DpdkPort) -> PortReport {
    let stats = port.stats();
    PortReport {
        name: name.to_owned(),
        rx_packets: stats.rx_packets,
        rx_bytes: stats.rx_bytes,
        tx_packets: stats.tx_packets,
        tx_bytes: stats.tx_bytes,
        rx_missed: stats.rx_missed,
        rx_errors: stats.rx_errors,
        rx_no_buffer: stats.rx_no_buffer,
        tx_errors: stats.tx_errors,
    }
}
