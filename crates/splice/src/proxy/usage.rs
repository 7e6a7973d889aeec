//! How much a core holds and has counted, for whoever reports it.

use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::ids::ServerId;
use crate::base::output::NextHops;
use crate::proxy::Proxy;
use crate::records::Log;
use crate::tally::Tally;
use crate::upstream::{CallEvent, ServerHealth};
use e2d2::buffer::BufferPool;
use e2d2::counters::Counters;
use netfcts::Side;
use netfcts::pool::PortPool;
use netfcts::record::State;
use std::sync::Arc;

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// What the core holds at the moment.
    pub fn usage(&self) -> Usage {
        Usage {
            connections: self.connections.len(),
            time_wait: self.time_wait.len(),
            half_open: self.handshake.half_open.len(),
            passed_syns: self.handshake.forwarded_syns.len(),
            flows: self.flows.len(),
            held: self.reassembly.in_use(),
            debts: self.rtx.len(),
            inspected: self.inspections.len(),
            kept: self.inspections.kept.in_use(),
            probes: self.probes.len(),
            headers: self.headers.received.len(),
            borrowed: self.settings.addresses.borrowed().len(),
            timers: self.timers.len(),
            ports: self.sources.ports.iter().map(PortPool::in_use).sum(),
        }
    }

    /// Counts and times by listener, pool and server, which go on to grow: any thread may read them.
    pub fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.tally)
    }

    /// Counts the first byte of the connection's server, if there is one now and was none before.
    pub(super) fn note_first_byte(&self, slot: u32) {
        if let Some(connection) = self.connections.get(slot)
            && connection.bytes_to_client > 0
            && let Some(took) = self
                .records
                .time_since(slot, (Side::Server, State::Established), self.now)
        {
            self.tally.note_first_byte(connection.listener, connection.server, took);
        }
    }

    /// Connections whose rest ended before `time_wait`, because others needed its place.
    pub fn time_wait_evicted(&self) -> u64 {
        self.time_wait.evicted()
    }

    /// Bytes of [`memory`](Self::memory) that were not in use at the start, and are from now on: for source ports, held bytes,
    /// debts and headers.
    pub fn memory_grown(&self) -> usize {
        self.sources.ports.grown() + self.reassembly.grown() + self.rtx.memory() + self.headers.received.grown()
    }

    /// The memory of all per-connection structures in bytes, empty slots included; of those that grow what has been touched
    /// so far, as that is all the machine has given.
    pub fn memory(&self) -> usize {
        self.memory_by_structure().iter().map(|(_, bytes)| bytes).sum()
    }

    /// The same, by structure.
    pub fn memory_by_structure(&self) -> [(&'static str, usize); 11] {
        let strangers = self.handshake.half_open.memory()
            + self.handshake.forwarded_syns.memory()
            + self.admission.validated_clients.memory();
        let servers = self.handshake.syn_ack_options.memory() + self.probes.memory();
        [
            ("connections", self.connections.memory()),
            ("table", self.flows.memory()),
            ("quarantine", self.time_wait.memory()),
            ("timers", self.timers.memory()),
            ("ports", self.sources.ports.memory()),
            ("used_cookies", self.handshake.replay_filter.memory()),
            ("held", self.reassembly.memory() + self.rtx.memory()),
            ("records", self.records.memory()),
            ("inspections", self.inspections.memory()),
            (
                "headers",
                self.headers.received.memory() + self.settings.addresses.borrowed().memory(),
            ),
            ("strangers_and_servers", strangers + servers),
        ]
    }

    /// Dropped packets by reason.
    pub fn drops(&self) -> &Counters<DropReason> {
        &self.emit.drops
    }

    /// Calls to servers that were given up, and servers that were ejected.
    pub fn calls(&self) -> &Counters<CallEvent> {
        self.upstream.events()
    }

    /// How a server is doing, if there is such a server.
    pub fn server_health(&self, server: ServerId) -> Option<&ServerHealth> {
        self.upstream.health(server)
    }

    /// TCP counters and lost records.
    pub fn log(&self) -> &Log {
        &self.records
    }

    /// The pool that the core takes its own packets from.
    pub fn pool(&self) -> &P {
        &self.emit.pool
    }

    /// The same pool, for others on this core who make packets.
    pub fn pool_mut(&mut self) -> &mut P {
        &mut self.emit.pool
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
    pub passed_syns: usize,
    /// Entries of the flow table.
    pub flows: usize,
    /// Blocks of held bytes.
    pub held: usize,
    /// Connections that owe their server something.
    pub debts: usize,
    /// Inspected connections.
    pub inspected: usize,
    /// Blocks of bytes that inspectors have put in the place of others.
    pub kept: usize,
    /// Servers that are being asked what they can do.
    pub probes: usize,
    /// PROXY headers of clients whose server is not connected yet.
    pub headers: usize,
    /// Addresses of clients that are used towards servers.
    pub borrowed: usize,
    /// Armed timers.
    pub timers: usize,
    /// Source ports in use.
    pub ports: usize,
}
