//! Which listener an address and port belong to: asked for every SYN.

use std::net::{IpAddr, SocketAddr};

use super::ids::{ListenerId, PortIndex};
use super::model::ListenerConfig;

/// All listeners' addresses, sorted.
///
/// A look-up is a binary search: some 40 cycles for a handful of addresses, and no allocation.
#[derive(Clone, Debug, Default)]
pub struct ListenMap {
    /// By address, then first port. Ranges of one address are disjoint.
    ranges: Vec<Range>,
    /// By listener.
    ports: Vec<Vec<PortIndex>>,
}

#[derive(Clone, Debug)]
struct Range {
    ip: IpAddr,
    first: u16,
    last: u16,
    listener: ListenerId,
}

impl ListenMap {
    pub(super) fn new(listeners: &[ListenerConfig]) -> Self {
        let mut ranges: Vec<Range> = Vec::new();
        for listener in listeners {
            for address in &listener.addresses {
                let (first, last) = (*address.ports.start(), *address.ports.end());
                ranges.push(Range {
                    ip: address.ip,
                    first,
                    last,
                    listener: listener.id,
                });
            }
        }
        ranges.sort_by_key(|range| (range.ip, range.first));
        Self {
            ranges,
            ports: listeners.iter().map(|listener| listener.ports.clone()).collect(),
        }
    }

    /// The listener at `local` for what arrives on `port`.
    pub fn find(&self, local: SocketAddr, port: PortIndex) -> Option<ListenerId> {
        let after = self
            .ranges
            .partition_point(|range| (range.ip, range.first) <= (local.ip(), local.port()));
        let range = self.ranges.get(after.checked_sub(1)?)?;
        let holds = range.ip == local.ip() && local.port() <= range.last;
        (holds && self.ports[range.listener.index()].contains(&port)).then_some(range.listener)
    }
}
