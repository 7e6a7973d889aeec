//! How much a core holds and has counted, for whoever reports it.

use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::ids::ServerId;
use crate::base::output::NextHops;
use crate::proxy::Proxy;
use crate::records::Log;
use crate::tally::Tally;
use crate::time_wait::TimeWaitEntry;
use crate::upstream::{CallEvent, ServerHealth};
use e2d2::buffer::BufferPool;
use e2d2::counters::Counters;
use netfcts::pool::PortPools;
use std::sync::Arc;

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// What the core holds at the moment.
    pub fn usage(&self) -> Usage {
        Usage {
            connections: self.connections.len(),
            time_wait: self.rooms.time_wait.len(),
            half_open: self.rooms.handshake.half_open.len(),
            forwarded_syns: self.rooms.handshake.forwarded_syns.len(),
            flows: self.rooms.flows.len(),
            held: self.rooms.reassembly.in_use(),
            held_bytes: self.rooms.reassembly.bytes_in_use(),
            rtx_queues: self.rooms.rtx.len(),
            inspected: self.rooms.inspections.len(),
            watched: self.rooms.legs.len(),
            kept: self.rooms.inspections.kept.in_use(),
            probes: self.rooms.probes.len() + self.rooms.checks.len(),
            headers: self.rooms.headers.received.len(),
            transparent_sources: self.rooms.transparent_sources.len(),
            timers: self.rooms.timers.len(),
            ports: self.rooms.sources.in_use(),
        }
    }

    /// Counts and times by listener, pool and server, which go on to grow: any thread may read them.
    pub fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.rooms.tally)
    }

    /// Counts in `other` from now on, which then is where it has counted until now; with [`Tally::none`] it counts nothing of that and
    /// draws no connection to watch its legs. For a bench of what that costs (`bench cockpit`).
    pub fn swap_tally(&mut self, other: &mut Arc<Tally>) {
        std::mem::swap(&mut self.rooms.tally, other);
        let is_none = self.rooms.tally.is_none();
        self.rooms
            .legs
            .draw_one_in(if is_none { 0 } else { self.rooms.settings.leg_sample });
    }

    /// Connections whose rest ended before `time_wait`, because others needed its place.
    pub fn time_wait_evicted(&self) -> u64 {
        self.rooms.time_wait.evicted()
    }

    /// Bytes of [`memory`](Self::memory) that were not in use at the start, and are from now on: for source ports, held bytes,
    /// retransmission queues and headers.
    pub fn memory_grown(&self) -> usize {
        self.rooms.sources.grown()
            + self.rooms.reassembly.grown()
            + self.rooms.rtx.memory()
            + self.rooms.headers.received.grown()
    }

    /// The memory of all per-connection structures in bytes, empty slots included; of those that grow what has been touched
    /// so far, as that is all the machine has given.
    pub fn memory(&self) -> usize {
        self.memory_by_structure().iter().map(|(_, bytes)| bytes).sum()
    }

    /// The same, by structure.
    pub fn memory_by_structure(&self) -> [(&'static str, usize); 12] {
        let strangers = self.rooms.handshake.half_open.memory()
            + self.rooms.handshake.forwarded_syns.memory()
            + self.rooms.admission.validated_clients.memory()
            + self.rooms.admission.quotas.memory();
        let servers =
            self.rooms.handshake.syn_ack_options.memory() + self.rooms.probes.memory() + self.rooms.checks.memory();
        [
            ("connections", self.connections.memory()),
            ("table", self.rooms.flows.memory()),
            ("quarantine", self.rooms.time_wait.memory()),
            ("timers", self.rooms.timers.memory()),
            ("ports", self.rooms.sources.memory()),
            (
                "used_cookies",
                self.rooms.handshake.replay_filter.memory()
                    + self.rooms.handshake.silenced.memory()
                    + self.rooms.handshake.given_up.memory(),
            ),
            ("held", self.rooms.reassembly.memory() + self.rooms.rtx.memory()),
            ("records", self.rooms.records.memory()),
            ("watched_legs", self.rooms.legs.memory()),
            ("inspections", self.rooms.inspections.memory()),
            (
                "headers",
                self.rooms.headers.received.memory() + self.rooms.transparent_sources.memory(),
            ),
            ("strangers_and_servers", strangers + servers),
        ]
    }

    /// Bytes of all places that are taken: by connections open and at rest, their flows, timers, ports, held and kept
    /// bytes, retransmission queues, headers, records, and by SYNs that are remembered. Zero when nothing is.
    ///
    /// Not in it are structures that are overwritten in turn and never full: the fingerprints of used cookies and of dropped flows, promises.
    pub fn memory_in_use(&self) -> usize {
        let (rooms, places, open) = (&self.rooms, self.connections.capacity(), self.connections.len());
        let (capacity, transparent_sources) = (rooms.settings.capacity, &rooms.transparent_sources);
        let (timers, inspections) = (&rooms.timers, &rooms.inspections);
        let (half_open, syns) = (&rooms.handshake.half_open, &rooms.handshake.forwarded_syns);
        let ports = rooms.sources.in_use();
        let sources = capacity.connections + capacity.time_wait;
        share(self.connections.memory(), open, places)
            + share(rooms.records.memory(), open, places)
            + share(rooms.legs.memory(), rooms.legs.len(), rooms.legs.capacity())
            + share(timers.memory(), timers.len(), timers.capacity())
            + rooms.flows.len() * 8
            + rooms.time_wait.len() * size_of::<TimeWaitEntry>()
            + rooms.reassembly.bytes_in_use()
            + rooms.rtx.bytes_in_use()
            + share(inspections.memory(), inspections.len(), capacity.inspected)
            + rooms.headers.received.bytes_in_use()
            + share(transparent_sources.memory(), transparent_sources.len(), sources)
            + share(half_open.memory(), half_open.len(), 3 * capacity.half_open)
            + share(syns.memory(), syns.len(), syns.capacity())
            + ports * PortPools::BYTES_PER_PORT
    }

    /// Dropped packets by reason.
    pub fn drops(&self) -> &Counters<DropReason> {
        &self.rooms.emit.drops
    }

    /// Calls to servers that were given up, and servers that were ejected.
    pub fn calls(&self) -> &Counters<CallEvent> {
        self.rooms.upstream.events()
    }

    /// How a server is doing, if there is such a server.
    pub fn server_health(&self, server: ServerId) -> Option<ServerHealth> {
        self.rooms.upstream.health(server)
    }

    /// TCP counters and lost records.
    pub fn log(&self) -> &Log {
        &self.rooms.records
    }

    /// The pool that the core takes its own packets from.
    pub fn pool(&self) -> &P {
        &self.rooms.emit.pool
    }

    /// The same pool, for others on this core who make packets.
    pub fn pool_mut(&mut self) -> &mut P {
        &mut self.rooms.emit.pool
    }
}

/// How much of a core's memory is taken. All zero once every connection has ended and rested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// Open connections.
    pub connections: usize,
    /// Resting connections.
    pub time_wait: usize,
    /// SYN-ACKs that may have to be repeated.
    pub half_open: usize,
    /// SYNs that were passed on and whose client has not acknowledged the answer.
    pub forwarded_syns: usize,
    /// Entries of the flow table.
    pub flows: usize,
    /// Blocks of held bytes.
    pub held: usize,
    /// Bytes of these blocks and of their bookkeeping.
    pub held_bytes: usize,
    /// Connections with bytes to retransmit to their server.
    pub rtx_queues: usize,
    /// Inspected connections.
    pub inspected: usize,
    /// Connections whose legs are watched.
    pub watched: usize,
    /// Blocks of bytes that inspectors have put in the place of others.
    pub kept: usize,
    /// Servers that are being asked what they can do, or whether they are there.
    pub probes: usize,
    /// PROXY headers of clients whose server is not connected yet.
    pub headers: usize,
    /// Clients' addresses from PROXY headers that are sources towards servers.
    pub transparent_sources: usize,
    /// Armed timers.
    pub timers: usize,
    /// Source ports in use.
    pub ports: usize,
}

/// The part of `memory` that `taken` of `all` places are.
fn share(memory: usize, taken: usize, all: usize) -> usize {
    // No structure has 2^32 places or bytes times places beyond 64 bits.
    (memory as u64 * taken as u64 / all.max(1) as u64) as usize
}
