//! The end: everything that belongs to a connection goes back to where it came from.
//!
//! Late segments of connections that are over: translated as before, while their addresses and ports rest, or refused if they
//! have bytes that no inspector has seen.

use super::ActionContext;
use super::passing::Offsets;
use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::base::stage::WorkStage;
use crate::emit::Telling;
use crate::proxy::{Incoming, Rooms};
use crate::session::action::Action;
use crate::session::connection::{Connection, Spliced};
use crate::session::endpoints::Endpoints;
use crate::session::event::Event;
use crate::session::phase::Phase;
use crate::session::state::State;
use crate::session::step::{Step, step};
use crate::session::table::{FlowRef, Mark};
use crate::time_wait::{Late, TimeWaitEntry};
use e2d2::buffer::BufferPool;
use e2d2::wire::tcp::TcpFlags;
use netfcts::pool::LastUse;
use netfcts::record::Cause;
use netfcts::{FourTuple, Side};

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Frees everything that belongs to the connection but its slot; if it was spliced, its translation stays for a while.
    #[inline(never)]
    pub(crate) fn end(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        cause: Cause,
        context: &ActionContext<P::Buffer>,
    ) {
        let pool = self.pool_of(&connection.state);
        self.drop_rtx(connection);
        if let Some(client) = connection.state.client_mut() {
            self.reassembly.close(&mut client.held);
        }
        if let Some(syn) = connection.state.syn() {
            self.handshake.forwarded_syns.remove(syn);
        }
        self.headers.received.forget(slot);
        self.timers.disarm(slot);
        let source = connection.ends.source(&self.settings, &self.transparent_sources);
        let local_port = source.map_or(0, |(_, port)| port);
        let lasted = self.records.age(slot);
        let bytes = (connection.bytes_to_server, connection.bytes_to_client);
        self.tally.note_end(connection.listener, pool, bytes, lasted);
        let class = self.admission.quotas.class(slot);
        let end = (cause, local_port, context.given_up, class);
        let tap = self.emit.concerned_tap().and_then(|tap| tap.records(slot));
        let legs = connection.is_watched().then(|| self.legs.end(slot)).flatten();
        self.records.end(slot, connection, (end, legs.as_ref()), tap);
        if let State::Spliced(spliced) = connection.state {
            self.rest(slot, connection, &spliced, cause);
        } else {
            self.forget_leg(FlowRef::client(slot), connection);
        }
        self.release_port(slot, connection, context.last_timestamps);
        self.end_inspection(slot);
        let limits = (&self.settings.limits, self.upstream.meters());
        (self.admission.quotas).end(limits, (slot, connection.listener), self.now);
    }

    /// Moves both legs of a spliced connection to the TIME-WAIT.
    fn rest(&mut self, slot: u32, connection: &Connection, spliced: &Spliced, cause: Cause) {
        while self.time_wait.next_slot().is_none() {
            self.look_ahead();
            self.evict_oldest_time_wait();
            self.time_wait.note_evicted();
        }
        let until = (self.now + self.settings.time_wait).as_millis() as u32;
        let hashes = self.leg_hashes(&connection.ends);
        let is_cut_off = self.selector.inspects()
            && self.inspections.of(slot).is_some()
            && !matches!(cause, Cause::ActiveClose | Cause::PassiveClose);
        let Ok(resting) = self
            .time_wait
            .push(TimeWaitEntry::of(connection.ends, spliced, is_cut_off, until))
        else {
            return;
        };
        let may_be = self.emit.telling != Telling::Nothing;
        let is_captured = (self.emit.tap.as_mut()).is_some_and(|tap| tap.note_rest(slot, resting, may_be));
        let [client, server] = hashes;
        for (hash, flow) in [(client, FlowRef::client(slot)), (server, FlowRef::server(slot))] {
            let rested = flow.in_time_wait(resting).marked_if(is_captured, Mark::Captured);
            self.flows.replace(hash, flow, rested);
        }
    }

    /// The hashes of both legs. A leg without a server is in no table.
    pub(crate) fn leg_hashes(&self, ends: &Endpoints) -> [u64; 2] {
        let hash = |side| {
            ends.key(&self.settings, &self.transparent_sources, side)
                .map_or(0, |key| self.flows.hash(&key))
        };
        [hash(Side::Client), hash(Side::Server)]
    }

    /// Asks for the table's lines of the oldest resting connections: they have not been touched for the whole rest.
    pub(crate) fn look_ahead(&mut self) {
        while let Some(rested) = self.time_wait.next_ahead() {
            let hashes = self.leg_hashes(&rested.ends);
            hashes.iter().for_each(|&hash| self.flows.prefetch(hash));
            self.time_wait.note_ahead(hashes);
        }
    }

    /// Gives the source port back, with what the server may remember of it, and forgets the server leg unless it rests.
    pub(crate) fn release_port(&mut self, slot: u32, connection: &mut Connection, last: Option<(Side, (u32, u32))>) {
        let Some(leg) = connection.ends.leg else {
            return;
        };
        let server = usize::from(leg.server.0);
        let inspected = self.inspections.of(slot).and_then(|of| of.to_server.tsval);
        let (next_seq, next_tsval) = match (&connection.state, connection.state.client(), connection.state.server()) {
            (State::Spliced(spliced), ..) => (
                spliced.to_server.end + spliced.client_seq_offset,
                newest_tsval(spliced, last, inspected),
            ),
            (_, Some(client), Some(ours)) => (ours.iss + 1, client.tsval.wrapping_add(ours.tsval_shift)),
            _ => return,
        };
        let (local_address, local_port) = (leg.local_address, leg.local_port.get());
        let local = self.settings.servers[server]
            .locals
            .iter()
            .position(|local| local.address == local_address);
        if let Some(local) = local {
            let last = LastUse {
                next_seq: next_seq + 1,
                next_tsval: next_tsval.wrapping_add(1),
            };
            self.sources.release((server, local), local_port, last, self.now);
        }
        if connection.spliced().is_none() {
            self.forget_leg(FlowRef::server(slot), connection);
            // A spliced connection rests, and needs its source until the end of that.
            self.transparent_sources.release(local_address, local_port);
        }
        connection.ends.leg = None;
        self.upstream.note_close(leg.server, self.now);
    }

    /// Takes one leg of a connection out of the flow table.
    fn forget_leg(&mut self, flow: FlowRef, connection: &Connection) {
        if let Some(key) = connection
            .ends
            .key(&self.settings, &self.transparent_sources, flow.side())
        {
            self.flows.remove(self.flows.hash(&key), flow);
        }
    }

    /// Takes the oldest resting connection out. Returns false if there is none.
    pub(crate) fn evict_oldest_time_wait(&mut self) -> bool {
        let Some((slot, rested)) = self.time_wait.oldest() else {
            return false;
        };
        let legs = rested.legs;
        let leg = rested.ends.leg;
        let hashes = match self.time_wait.ahead() {
            Some(hashes) => hashes,
            None => self.leg_hashes(&rested.ends),
        };
        let [client, server] = hashes;
        if legs.has(Side::Client) {
            self.flows.remove(client, FlowRef::client(0).in_time_wait(slot));
        }
        if legs.has(Side::Server) {
            self.flows.remove(server, FlowRef::server(0).in_time_wait(slot));
        }
        self.time_wait.pop();
        if let Some(leg) = leg {
            self.transparent_sources
                .release(leg.local_address, leg.local_port.get());
        }
        true
    }

    /// Makes room for a new connection with `key`: whatever rests there keeps only its other leg.
    pub(crate) fn free_key(&mut self, hash: u64, key: &FourTuple) {
        let rests = |flow: FlowRef| flow.is_time_wait() && self.key_at_rest(flow).as_ref() == Some(key);
        let Some(flow) = self.flows.find(hash, rests) else {
            return;
        };
        self.flows.remove(hash, flow);
        if let Some(rested) = self.time_wait.entry_mut(flow.slot()) {
            rested.legs = rested.legs.without(flow.side());
        }
    }

    /// The key of a resting flow.
    pub(crate) fn key_at_rest(&self, flow: FlowRef) -> Option<FourTuple> {
        (self.time_wait.entry(flow.slot())?.ends).key(&self.settings, &self.transparent_sources, flow.side())
    }

    /// A segment of a resting connection.
    pub(crate) fn drive_time_wait(
        &mut self,
        flow: FlowRef,
        event: Event,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Step::Go {
            actions: [action],
            ask: None,
            ..
        } = step(Phase::TimeWait, event)
        else {
            return self.impossible(Phase::TimeWait, event);
        };
        out.enter(WorkStage::from(*action));
        match action {
            Action::Forward => self.forward_time_wait(flow, incoming, out),
            Action::Drop(reason) => self.emit.dropped(*reason),
            _ => self.emit.dropped(DropReason::UnknownFlow),
        }
    }

    fn forward_time_wait(&mut self, flow: FlowRef, incoming: Incoming<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        let Some(rested) = self.time_wait.entry(flow.slot()).copied() else {
            return self.emit.dropped(DropReason::ImpossibleTransition);
        };
        let from = flow.side();
        // The other leg's addresses and ports may be a new connection's by self.now. Its numbers can be near the old ones:
        // nothing of the old one may reach it.
        if !rested.legs.has(from.peer()) {
            return self.emit.dropped(DropReason::UnknownFlow);
        }
        let has_payload = incoming.segment.payload_len() > 0;
        let is_reset = incoming.segment.has(TcpFlags::RST);
        // RFC 9293 3.10.7.4: a receiver believes an RST that begins at RCV.NXT, and keeps payload anywhere in its window.
        if rested.late == Late::Answered && from == Side::Server && (has_payload || is_reset) {
            return self.emit.dropped(DropReason::UnknownFlow);
        }
        if rested.late == Late::HeaderOnly && has_payload {
            // RFC 9293 3.10.7.1: what comes for a connection that does not exist gets RST, but a RST gets nothing.
            return if is_reset {
                self.emit.dropped(DropReason::UnknownFlow)
            } else {
                self.refuse(DropReason::UnknownFlow, incoming, out)
            };
        }
        let path = self.path_of(from.peer(), &rested.ends);
        let Some(path) = path else {
            return self.emit.dropped(DropReason::NoNeighbour);
        };
        let id = self.emit.next_ip_id();
        let values = Offsets::of_time_wait(&rested).rewrite(from, incoming.segment, &path, id);
        self.forward_with(None, incoming, &values, &path, out);
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
