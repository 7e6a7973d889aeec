//! How much memory what a configuration describes takes, as far as that depends on how many servers there are; and what the
//! memory for held requests carries.

use super::names::MOST_SERVERS;
use super::{Config, LocalAddress};
use netfcts::pool::{PortPools, PortSet};
use splice::reassembly;

/// Bytes for the source ports towards all servers, of all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortMemory {
    /// When the engine has started.
    pub at_start: u64,
    /// When every port was used.
    pub at_most: u64,
}

/// How many requests one core can hold while their servers have not answered, before copies of them are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestsCarried {
    /// Of up to 512 bytes each.
    pub short: usize,
    /// Of up to 2 KiB each.
    pub long: usize,
}

impl Config {
    /// What `reassembly_memory` carries. Each of these can be a connection, too.
    pub fn requests_carried(&self) -> RequestsCarried {
        let carried = |bytes| {
            let room = reassembly::requests_in(self.engine.reassembly_memory as usize, bytes);
            room.min(self.engine.max_connections as usize)
        };
        RequestsCarried {
            short: carried(512),
            long: carried(2048),
        }
    }

    /// Memory for source ports. It grows with the ports that are in use at once, and stays.
    pub fn port_memory(&self) -> PortMemory {
        let cores = self.engine.cores.len().max(1);
        // Cores share a server's ports; which are whose may differ from server to server.
        let sets = if cores > 1 { PortSet::MEMORY } else { 0 };
        let mut memory = PortMemory {
            at_start: PortSet::MEMORY as u64,
            at_most: PortSet::MEMORY as u64,
        };
        let mut add = |local: &LocalAddress, at_start: usize, at_most: usize| {
            let own = local.ports.len().div_ceil(cores);
            memory.at_start += (at_start * cores * (PortPools::empty() + sets)) as u64;
            memory.at_most += (at_most * cores * (PortPools::largest(own) + sets)) as u64;
        };
        let servers = self.servers.iter();
        servers
            .flat_map(|server| &server.local)
            .for_each(|local| add(local, 1, 1));
        // What a name may become beside what it is.
        for (_, named) in self.names() {
            let more = MOST_SERVERS.saturating_sub(named.used.len());
            named.local.iter().for_each(|local| add(local, 0, more));
        }
        memory
    }
}
