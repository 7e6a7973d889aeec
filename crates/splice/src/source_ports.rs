//! Source addresses and ports towards servers.

use crate::base::settings::{Server, Settings};
use netfcts::pool::PortPools;
use std::sync::Arc;

/// The source ports of one core.
pub(crate) struct SourcePorts {
    pub(crate) ports: PortPools,
    /// By server, the index of the local address that is next.
    pub(crate) next_local: Vec<usize>,
}

impl SourcePorts {
    pub(crate) fn new(settings: &Settings) -> Self {
        let port_sets = |server: &Server| {
            let sets = server.locals.iter().map(|local| Arc::clone(&local.ports));
            sets.collect::<Vec<_>>()
        };
        SourcePorts {
            ports: PortPools::new(settings.servers.iter().map(port_sets), settings.time_wait),
            next_local: vec![0; settings.servers.len()],
        }
    }
}
