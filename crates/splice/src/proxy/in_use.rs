//! How much of a core's memory is taken, in bytes.
//!
//! All of it was set aside at start, and most of it touched ([`Proxy::memory`](crate::proxy::Proxy::memory)); what a peer can do is
//! take places in it.
//! Called by reports and benches, never for a packet.

use crate::proxy::Proxy;
use crate::time_wait::TimeWaitEntry;
use e2d2::buffer::BufferPool;
use netfcts::pool::{PortPool, PortPools};

/// The part of `memory` that `taken` of `all` places are.
fn share(memory: usize, taken: usize, all: usize) -> usize {
    // No structure has 2^32 places or bytes times places beyond 64 bits.
    (memory as u64 * taken as u64 / all.max(1) as u64) as usize
}

impl<P: BufferPool, S, N> Proxy<P, S, N> {
    /// Bytes of all places that are taken: by connections open and at rest, their flows, timers, ports, held and kept
    /// bytes, debts, headers, records, and by SYNs that are remembered. Zero when nothing is.
    ///
    /// Not in it are structures that are overwritten in turn and never full: the fingerprints of used cookies, promises.
    pub fn memory_in_use(&self) -> usize {
        let capacity = self.settings.capacity;
        let places = self.connections.capacity();
        let open = self.connections.len();
        let ports: usize = self.sources.ports.iter().map(PortPool::in_use).sum();
        share(self.connections.memory(), open, places)
            + share(self.records.memory(), open, places)
            + share(self.timers.memory(), self.timers.len(), self.timers.capacity())
            + self.flows.len() * 8
            + self.time_wait.len() * size_of::<TimeWaitEntry>()
            + self.reassembly.bytes_in_use()
            + self.rtx.bytes_in_use()
            + share(self.inspections.memory(), self.inspections.len(), capacity.inspected)
            + self.headers.received.bytes_in_use()
            + share(
                self.settings.addresses.borrowed().memory(),
                self.settings.addresses.borrowed().len(),
                capacity.connections + capacity.time_wait,
            )
            + share(
                self.handshake.half_open.memory(),
                self.handshake.half_open.len(),
                3 * capacity.half_open,
            )
            + share(
                self.handshake.forwarded_syns.memory(),
                self.handshake.forwarded_syns.len(),
                self.handshake.forwarded_syns.capacity(),
            )
            + ports * PortPools::BYTES_PER_PORT
    }
}
