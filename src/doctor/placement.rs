//! Whether ports and cores are on the same NUMA node.

use std::fmt;

use super::Root;
use crate::config::{Config, CoreId, Device};

/// A port and a core that are on different nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misplaced {
    /// The port's name.
    pub port: String,
    /// Its node.
    pub port_node: u32,
    /// The core.
    pub core: CoreId,
    /// The core's node, where its packet memory is, too.
    pub core_node: u32,
}

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "port {} is on node {}, core {} with its packet memory on node {}",
            self.port, self.port_node, self.core, self.core_node
        )
    }
}

/// Every pair of the configuration whose nodes are known and differ.
pub fn misplaced(root: &Root, config: &Config) -> Vec<Misplaced> {
    let mut found = Vec::new();
    for port in config.ports() {
        let device = match &port.device {
            Device::Pci { address, .. } => Some(address.to_string()),
            Device::Virtual { .. } => port.device.linux_interface().map(str::to_owned),
        };
        let Some(port_node) = device.and_then(|device| root.node_of_device(&device)) else {
            continue;
        };
        for core in &config.engine().cores {
            let Some(core_node) = root.node_of_core(*core) else {
                continue;
            };
            if core_node != port_node {
                found.push(Misplaced {
                    port: port.name.clone(),
                    port_node,
                    core: *core,
                    core_node,
                });
            }
        }
    }
    found
}
