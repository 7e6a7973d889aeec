//! The end: everything that belongs to a connection goes back to where it came from.

use super::ActionContext;
use crate::base::callbacks::SelectServer;
use crate::base::ids::ServerId;
use crate::base::output::NextHops;
use crate::proxy::routes::Endpoints;
use crate::proxy::{Incoming, Proxy};
use crate::session::connection::{Spliced, Stage};
use crate::session::handles::BufferId;
use crate::session::table::FlowRef;
use crate::time_wait::TimeWaitEntry;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::tcp::TcpOptions;
use netfcts::pool::LastUse;
use netfcts::record::Cause;
use netfcts::{FourTuple, Side};

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// Frees everything that belongs to the connection; if it was spliced, its translation stays for a while.
    #[inline(never)]
    pub(crate) fn end(&mut self, now: Instant, slot: u32, cause: Cause, scene: &ActionContext<P::Buffer>) {
        self.drop_rtx(slot);
        if let Some(opening) = self.opening_mut(slot) {
            let mut held = std::mem::replace(&mut opening.held, BufferId::NONE);
            let syn = opening.syn;
            self.reassembly.close(&mut held);
            self.handshake.forwarded_syns.remove(syn.into());
        }
        self.headers.received.forget(slot);
        self.timers.disarm(slot);
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let local = Endpoints::from(connection).source(&self.settings);
        let lasted = self.records.start(slot).map(|start| now.saturating_since(start));
        let bytes = (connection.bytes_to_server, connection.bytes_to_client);
        self.tally.note_end(connection.listener, bytes, lasted);
        self.records.end(slot, connection, (cause, local.1), now);
        if connection.spliced().is_some() {
            self.rest(now, slot, cause);
        } else if let Some(key) = self.key_of(FlowRef::client(slot)) {
            let hash = self.flows.hash(&key);
            self.remove_flow(hash, FlowRef::client(slot));
        }
        self.release_port(now, slot, scene.last_timestamps);
        self.end_inspection(slot);
        self.connections.free(slot);
    }

    /// Moves both legs of a spliced connection to the TIME-WAIT.
    fn rest(&mut self, now: Instant, slot: u32, cause: Cause) {
        while self.time_wait.next_slot().is_none() {
            self.look_ahead();
            self.evict_oldest_time_wait();
            self.time_wait.note_evicted();
        }
        let until = (now + self.settings.time_wait).as_millis() as u32;
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let hashes = self.leg_hashes(&Endpoints::from(connection));
        let is_cut_off = self.selector.inspects()
            && self.inspections.of(slot).is_some()
            && !matches!(cause, Cause::ActiveClose | Cause::PassiveClose);
        let Ok(resting) = self.time_wait.push(TimeWaitEntry::of(connection, is_cut_off, until)) else {
            return;
        };
        let [client, server] = hashes;
        for (hash, flow) in [(client, FlowRef::client(slot)), (server, FlowRef::server(slot))] {
            self.flows.replace(hash, flow, flow.in_time_wait(resting));
        }
    }

    /// The hashes of both legs. A leg without a server is in no table.
    fn leg_hashes(&self, ends: &Endpoints) -> [u64; 2] {
        let hash = |side| ends.key(&self.settings, side).map_or(0, |key| self.flows.hash(&key));
        [hash(Side::Client), hash(Side::Server)]
    }

    /// Asks for the table's lines of the oldest resting connections: they have not been touched for the whole rest.
    pub(crate) fn look_ahead(&mut self) {
        while let Some(rested) = self.time_wait.next_ahead() {
            let hashes = self.leg_hashes(&Endpoints::from(rested));
            hashes.iter().for_each(|&hash| self.flows.prefetch(hash));
            self.time_wait.note_ahead(hashes);
        }
    }

    /// Gives the source port back, with what the server may remember of it, and forgets the server leg unless it rests.
    pub(crate) fn release_port(&mut self, now: Instant, slot: u32, last: Option<(Side, (u32, u32))>) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        if connection.local_port == 0 {
            return;
        }
        let server = usize::from(connection.server);
        let (next_seq, next_tsval) = match &connection.stage {
            Stage::Opening(opening) => (
                opening.server_side_isn + 1,
                opening.client_tsval.wrapping_add(opening.tsval_shift),
            ),
            Stage::Spliced(spliced) => (
                spliced.to_server.end + spliced.client_seq_offset,
                newest_tsval(spliced, last, self.inspected_tsval(slot)),
            ),
        };
        let (local_address, local_port) = (connection.local_address, connection.local_port);
        let local = self.settings.servers[server]
            .locals
            .iter()
            .position(|local| local.address == local_address);
        if let Some(local) = local {
            let last = LastUse {
                next_seq: next_seq + 1,
                next_tsval: next_tsval.wrapping_add(1),
            };
            self.sources.ports.release((server, local), local_port, last, now);
        }
        if connection.opening().is_some()
            && let Some(key) = self.key_of(FlowRef::server(slot))
        {
            let hash = self.flows.hash(&key);
            self.remove_flow(hash, FlowRef::server(slot));
            // A spliced connection rests, and needs its source until the end of that.
            self.settings
                .addresses
                .borrowed_mut()
                .release(local_address, local_port);
        }
        if let Some(connection) = self.connections.get_mut(slot) {
            connection.local_port = 0;
            self.upstream.note_close(ServerId(connection.server));
        }
    }

    /// Who sent a segment of the connection in `slot`, and its timestamps.
    pub(crate) fn timestamps_of(
        &self,
        slot: u32,
        incoming: Option<&Incoming<P::Buffer>>,
    ) -> Option<(Side, (u32, u32))> {
        let incoming = incoming?;
        let options = TcpOptions::parse(incoming.segment.options(incoming.buffer.data()));
        let side = self.side_of(self.connections.get(slot)?, incoming.segment);
        options.timestamps.map(|values| (side, values))
    }

    /// Takes the oldest resting connection out. Returns false if there is none.
    pub(crate) fn evict_oldest_time_wait(&mut self) -> bool {
        let Some((slot, rested)) = self.time_wait.oldest() else {
            return false;
        };
        let legs = rested.legs;
        let (local_address, local_port) = (rested.local_address, rested.local_port);
        let hashes = match self.time_wait.ahead() {
            Some(hashes) => hashes,
            None => self.leg_hashes(&Endpoints::from(rested)),
        };
        let [client, server] = hashes;
        if legs.has(Side::Client) {
            self.remove_flow(client, FlowRef::client(0).in_time_wait(slot));
        }
        if legs.has(Side::Server) {
            self.remove_flow(server, FlowRef::server(0).in_time_wait(slot));
        }
        self.time_wait.pop();
        self.settings
            .addresses
            .borrowed_mut()
            .release(local_address, local_port);
        true
    }

    /// Makes room for a new connection with `key`: whatever rests there keeps only its other leg.
    pub(crate) fn free_key(&mut self, hash: u64, key: &FourTuple) {
        let Some(flow) = self.flows.find(hash, |flow| self.key_of(flow).as_ref() == Some(key)) else {
            return;
        };
        if !flow.is_time_wait() {
            return;
        }
        self.remove_flow(hash, flow);
        if let Some(rested) = self.time_wait.entry_mut(flow.slot()) {
            rested.legs = rested.legs.without(flow.side());
        }
    }

    pub(crate) fn remove_flow(&mut self, hash: u64, flow: FlowRef) {
        self.flows.remove(hash, flow);
    }
}

/// The newest TSval that the server has seen: the client's own, or the server's echo of it; `inspected` is that of an
/// inspected client.
fn newest_tsval(spliced: &Spliced, last: Option<(Side, (u32, u32))>, inspected: Option<u32>) -> u32 {
    match last {
        Some((Side::Client, (tsval, _))) => tsval.wrapping_add(spliced.client_ts_offset),
        Some((Side::Server, (_, tsecr))) => tsecr,
        None => inspected.map_or(0, |tsval| tsval.wrapping_add(spliced.client_ts_offset)),
    }
}
