//! How many packet buffers each core's pool needs.

use std::collections::BTreeSet;

use e2d2::native::{PoolDemand, PortConfig as DpdkPortConfig};

use crate::config::{Config, PortConfig};
use crate::pipeline::{HANDOVER_RING, frames_held};

/// What the configuration says, or more if ports and rings can hold more than it thinks. `core` is the core's place among the
/// workers: what comes in through software NICs is all in the buffers of the first.
pub(super) fn of_core(config: &Config, ports: &[DpdkPortConfig], core: usize) -> u32 {
    let cores = config.engine().cores.len();
    let is_shared = core == 0 && config.ports().iter().any(|port| port.software_nic.is_some());
    let of_port = |(port, named): (&DpdkPortConfig, &PortConfig)| {
        let (rx, tx) = (u32::from(port.rx_descriptors), u32::from(port.tx_descriptors));
        let rings = match named.software_nic {
            None => 0,
            // What it has received may be in any ring, each way.
            Some(software) if core == 0 => u32::from(software.queues) * (rx + tx),
            // What its graph has made itself is in its own ring to the device.
            Some(_) => tx,
        };
        port.buffers() + rings
    };
    let queues = ports.iter().zip(config.ports()).map(of_port).sum();
    // What a core has received may be in its graph, and wait for every other core; behind a software NIC any core may have it.
    let holders = if is_shared { cores } else { 1 };
    let held = holders * (frames_held(ports.len()) + cores.saturating_sub(1) * HANDOVER_RING);
    // Any worker, and any core that moves packets for software NICs, may free what another has received. The main thread
    // frees what closed devices still held, without being registered.
    let movers = config.ports().iter().filter_map(|port| port.software_nic?.core);
    let threads = cores + movers.collect::<BTreeSet<_>>().len();
    let demand = PoolDemand {
        queues,
        held: u32::try_from(held).unwrap_or(u32::MAX),
        threads: u32::try_from(threads).unwrap_or(u32::MAX),
    };
    let least = demand.buffers();
    let asked = config.engine().buffers;
    if asked < least {
        let core = config.engine().cores[core];
        log::info!("core {core}: {least} packet buffers in place of {asked}: queues and rings can hold {queues}");
    }
    asked.max(least)
}
