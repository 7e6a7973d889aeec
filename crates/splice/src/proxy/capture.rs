//! A capture's way through the core: which frames and timers are of connections that are captured.

use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::capture::{Facts, Interrupted, Tap, Whose};
use crate::emit::Telling;
use crate::proxy::{Incoming, Proxy, Rooms};
use crate::session::connection::Connection;
use crate::session::phase::Phase;
use crate::session::segment::Segment;
use crate::session::table::{FlowRef, Mark};
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::port::PortId;
use e2d2::wire::frame::Packet;
use e2d2::wire::tcp::TcpFlags;
use netfcts::Side;
use std::ops::Range;

/// Places that a round looks at for open connections that a new capture is of.
const CHOSEN_PER_ROUND: usize = super::visit::LOOKED_AT_PER_ROUND;

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// Goes on with another tap, or none, and returns the one before.
    pub fn swap_tap(&mut self, tap: Option<Box<Tap>>) -> Option<Box<Tap>> {
        self.rooms.emit.telling = match tap {
            None => Telling::Nothing,
            Some(_) => Telling::All,
        };
        std::mem::replace(&mut self.rooms.emit.tap, tap)
    }

    /// Captures the open connections in the next of `places` that the capture is of; a round's part of them.
    pub fn choose_open(&mut self, places: &mut Range<u32>) {
        if self.rooms.emit.tap.is_none() {
            return;
        }
        for slot in places.by_ref().take(CHOSEN_PER_ROUND) {
            let Some(connection) = self.connections.get(slot) else {
                continue;
            };
            let ends = &connection.ends;
            let hashes = self.rooms.leg_hashes(ends);
            let of = (ends.client_address(), connection.listener);
            let called = (ends.leg.map(|leg| leg.server), connection.spliced().is_some());
            // Those that have begun since the tap is there have been chosen, or not.
            if let Some(tap) = &mut self.rooms.emit.tap
                && !tap.has(slot)
                && tap.choose_open(slot, of, called, hashes[0])
            {
                self.rooms.mark_legs(slot, hashes, Mark::Captured);
            }
        }
    }

    /// Whether one of these segments is captured, for what the flow table said of it when it was read.
    #[inline(never)]
    pub(super) fn is_one_captured(&self, segments: &[Segment]) -> bool {
        // Flows keep the mark of a capture that is over.
        self.rooms.emit.tap.is_some() && (segments.iter()).any(|segment| self.is_captured(segment.guess, segment))
    }

    /// Deals with a batch of which something is captured: each frame of a captured connection begins a group, unless the whole batch
    /// is lost.
    #[inline(never)]
    pub(super) fn handle_tapped(
        &mut self,
        buffers: &mut ArrayVec<P::Buffer, BURST>,
        segments: &mut [Segment],
        out: &mut impl Output<P::Buffer>,
    ) {
        let now = self.rooms.now;
        let is_shut = self.rooms.emit.tap.as_mut().is_some_and(|tap| tap.begin_batch(now));
        if is_shut && self.rooms.emit.tap.as_ref().is_some_and(|tap| tap.has_all()) {
            self.lose_batch(buffers, segments, out);
        } else {
            self.handle_groups(is_shut, buffers, segments, out);
        }
        if let Some(tap) = &mut self.rooms.emit.tap {
            tap.end_batch();
        }
    }

    fn handle_groups(
        &mut self,
        is_shut: bool,
        buffers: &mut ArrayVec<P::Buffer, BURST>,
        segments: &mut [Segment],
        out: &mut impl Output<P::Buffer>,
    ) {
        for (turn, buffer) in buffers.drain(..).enumerate() {
            self.ask_while_at(turn, segments);
            let Some(segment) = segments.get_mut(turn) else { break };
            let found = self.find(segment);
            let is_captured = self.is_captured(found, segment);
            let sent_before = self.rooms.emit.sent;
            if is_captured && !is_shut {
                self.open_group(found, segment.hash, (segment.device, buffer.data()));
            }
            match self.verify(segment, buffer.data()) {
                Ok(()) => self.handle_found(found, Incoming { buffer, segment }, out),
                Err(reason) => self.rooms.emit.dropped(reason),
            }
            if is_captured && is_shut {
                self.lose(1 + self.rooms.emit.sent - sent_before);
            } else if is_captured {
                self.end_group(found);
            }
        }
    }

    /// A batch of a capture of everything that has no room: all is lost, but what is for no listener.
    fn lose_batch(
        &mut self,
        buffers: &mut ArrayVec<P::Buffer, BURST>,
        segments: &mut [Segment],
        out: &mut impl Output<P::Buffer>,
    ) {
        let (sent, without_listener) = (self.rooms.emit.sent, self.rooms.emit.without_listener);
        self.rooms.emit.telling = Telling::Connections;
        let frames = segments.len() as u64;
        self.handle_each(buffers, segments, out);
        let emit = &mut self.rooms.emit;
        emit.telling = Telling::All;
        let frames = frames + (emit.sent - sent) - (emit.without_listener - without_listener);
        self.lose(frames);
    }

    fn lose(&mut self, frames: u64) {
        if let Some(tap) = &mut self.rooms.emit.tap {
            tap.lose(frames);
        }
    }

    /// A segment of another connection, or none, than was told when its batch was read. If that one is captured the rest of the batch
    /// is not dealt with quietly.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_unforeseen(
        &mut self,
        found: Option<FlowRef>,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        if self.is_losing_batch() || !self.is_captured(found, incoming.segment) {
            return self.handle_found(found, incoming, out);
        }
        let Incoming { segment, buffer } = &incoming;
        self.rooms.emit.telling = Telling::All;
        self.open_group(found, segment.hash, (segment.device, buffer.data()));
        self.handle_found(found, incoming, out);
        self.end_group(found);
        self.tell_lost();
    }

    /// Drops a segment for this reason: its checksum is wrong, or its flags are.
    #[cold]
    #[inline(never)]
    pub(super) fn drop_damaged(&mut self, segment: &Segment, frame: &[u8], reason: DropReason) {
        if self.rooms.emit.tap.is_none() {
            return self.rooms.emit.dropped(reason);
        }
        let found = self.find(segment);
        let is_captured = self.is_captured(found, segment);
        if self.is_losing_batch() {
            if found.is_none() && !is_captured {
                self.rooms.emit.note_no_listener(self.rooms.emit.sent);
            }
        } else if is_captured {
            self.rooms.emit.telling = Telling::All;
            self.open_group(found, segment.hash, (segment.device, frame));
            self.rooms.emit.dropped(reason);
            self.end_group(found);
            return self.tell_lost();
        }
        self.rooms.emit.dropped(reason);
    }

    /// Drops a packet for what its headers say.
    #[cold]
    #[inline(never)]
    pub(super) fn drop_unread(&mut self, packet: &Packet<P::Buffer>, reason: DropReason) {
        let mut read: ArrayVec<Segment, 1> = ArrayVec::new();
        if self.rooms.emit.tap.is_some()
            && self.read(packet, |_| Ok(()), &mut read).is_ok()
            && let Some(segment) = read.first()
        {
            return self.drop_damaged(segment, packet.buffer.data(), reason);
        }
        self.rooms.emit.dropped(reason);
    }

    fn is_losing_batch(&self) -> bool {
        self.rooms.emit.tap.as_ref().is_some_and(|tap| tap.is_shut())
    }

    /// Whether a frame is of a connection that is captured.
    #[inline]
    fn is_captured(&self, found: Option<FlowRef>, segment: &Segment) -> bool {
        match (&self.rooms.emit.tap, found) {
            (None, _) => false,
            (Some(tap), Some(flow)) if !flow.is_time_wait() => tap.has(flow.slot()),
            (Some(tap), Some(flow)) => tap.has_resting(flow.slot()) || self.may_begin(flow, segment),
            (Some(_), None) => self.may_want(segment),
        }
    }

    /// Whether a segment where a connection rests may be one of another, about to begin, that is captured.
    #[inline(never)]
    fn may_begin(&self, resting: FlowRef, segment: &Segment) -> bool {
        let is_of_another = || segment.has(TcpFlags::SYN) || self.rooms.classify_time_wait(resting, segment).is_some();
        resting.side() == Side::Client && self.may_want(segment) && is_of_another()
    }

    #[inline]
    fn may_want(&self, segment: &Segment) -> bool {
        let tap = self.rooms.emit.tap.as_ref();
        tap.is_some_and(|tap| tap.is_drawn(segment.hash)) && self.may_want_drawn(segment)
    }

    #[inline(never)]
    fn may_want_drawn(&self, segment: &Segment) -> bool {
        let address = self.rooms.settings.addresses.index(segment.key.local);
        let listener = address.and_then(|address| self.rooms.listener(address, segment));
        let tap = self.rooms.emit.tap.as_ref();
        listener
            .zip(tap)
            .is_some_and(|(listener, tap)| tap.may_want(segment.key.remote, listener, segment.hash))
    }

    /// Begins the group of an ICMP error about a leg that has this hash, if its connection is captured.
    pub(super) fn begin_error_group(&mut self, flow: FlowRef, hash: u64, error: (PortId, &[u8])) {
        let tap = self.rooms.emit.tap.as_ref();
        if tap.is_some_and(|tap| tap.has(flow.slot())) {
            self.open_group(Some(flow), hash, error);
        }
    }

    /// Ends it, if there is one.
    pub(super) fn end_error_group(&mut self) {
        if self.rooms.emit.tap.is_some() {
            self.end_group(None);
            self.tell_lost();
        }
    }

    fn tell_lost(&mut self) {
        if let Some(tap) = &mut self.rooms.emit.tap {
            tap.tell_lost();
        }
    }

    #[inline(never)]
    fn open_group(&mut self, found: Option<FlowRef>, hash_of_leg: u64, (port, frame): (PortId, &[u8])) {
        let side = found.map_or(Side::Client, FlowRef::side);
        let Rooms {
            emit,
            now,
            settings,
            transparent_sources,
            flows,
            time_wait,
            ..
        } = &mut self.rooms;
        let Some(tap) = &mut emit.tap else { return };
        let whose = match found {
            None => Whose::Stranger,
            Some(flow) if !flow.is_time_wait() => Whose::Open(flow.slot()),
            Some(flow) if tap.has_resting(flow.slot()) => Whose::Resting,
            Some(_) => Whose::Uncaptured,
        };
        let connections = &self.connections;
        // That of the client's leg, whichever leg it is.
        let hash = || {
            let slot = found.filter(|_| side == Side::Server).map(FlowRef::slot);
            let ends = slot.and_then(|slot| match whose {
                Whose::Open(_) => connections.get(slot).map(|connection| connection.ends),
                Whose::Resting | Whose::Uncaptured | Whose::Stranger => time_wait.entry(slot).map(|rested| rested.ends),
            });
            ends.map_or(hash_of_leg, |ends| {
                let key = ends.key(settings, transparent_sources, Side::Client);
                key.map_or(0, |key| flows.hash(&key))
            })
        };
        tap.begin(whose, *now, hash);
        tap.note_received(side, port, frame);
    }

    #[inline]
    fn end_group(&mut self, found: Option<FlowRef>) {
        match &mut self.rooms.emit.tap {
            Some(tap) if tap.is_losing() => tap.end(None),
            _ => self.end_told_group(found),
        }
    }

    #[inline(never)]
    fn end_told_group(&mut self, found: Option<FlowRef>) {
        let Some(tap) = &self.rooms.emit.tap else { return };
        let facts = match (tap.current(), found) {
            (Some(slot), _) => self.facts(slot),
            (None, Some(flow)) if tap.is_of_resting() => self.facts_at_rest(flow),
            (None, _) => None,
        };
        if let Some(tap) = &mut self.rooms.emit.tap {
            tap.end(facts);
        }
    }

    /// It is the turn of the connection in `slot`; whether that is captured.
    #[inline(never)]
    pub(super) fn begin_turn(&mut self, slot: u32) -> (Interrupted, bool) {
        let Rooms {
            emit,
            now,
            settings,
            transparent_sources,
            flows,
            ..
        } = &mut self.rooms;
        let Some(tap) = &mut emit.tap else {
            return (Interrupted::Nothing, false);
        };
        emit.telling = Telling::All;
        let connection = self.connections.get(slot);
        let key = || connection.and_then(|connection| connection.ends.key(settings, transparent_sources, Side::Client));
        let interrupted = tap.enter(slot, *now, || key().map_or(0, |key| flows.hash(&key)));
        (interrupted, tap.current() == Some(slot))
    }

    /// The turn that has begun with `interrupted` is over.
    #[cold]
    #[inline(never)]
    pub(super) fn end_turn(&mut self, slot: u32, interrupted: Interrupted) {
        if matches!(interrupted, Interrupted::Nothing) {
            return;
        }
        let facts = self.facts(slot);
        if let Some(tap) = &mut self.rooms.emit.tap {
            tap.leave(interrupted, facts);
        }
    }

    fn facts(&self, slot: u32) -> Option<Facts> {
        let connection: &Connection = self.connections.get(slot)?;
        let ends = &connection.ends;
        let offsets = connection.spliced().map(|spliced| {
            [
                spliced.client_seq_offset,
                spliced.server_seq_offset,
                spliced.client_ts_offset,
                spliced.server_ts_offset,
            ]
        });
        Some(Facts {
            phase: connection.phase(),
            client: ends.client,
            client_port: ends.client_port,
            listener: Some(connection.listener),
            server: ends.leg.map(|leg| leg.server),
            rule: self.rooms.emit.tap.as_ref().and_then(|tap| tap.rule(slot)),
            offsets,
        })
    }

    fn facts_at_rest(&self, flow: FlowRef) -> Option<Facts> {
        let rested = self.rooms.time_wait.entry(flow.slot())?;
        Some(Facts {
            phase: Phase::TimeWait,
            client: rested.ends.client,
            client_port: rested.ends.client_port,
            listener: None,
            server: rested.ends.leg.map(|leg| leg.server),
            rule: None,
            offsets: Some([
                rested.client_seq_offset,
                rested.server_seq_offset,
                rested.client_ts_offset,
                rested.server_ts_offset,
            ]),
        })
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// A connection is made by a segment to this listener.
    #[inline]
    pub(super) fn note_made(&mut self, slot: u32, by: &Segment, listener: u16) {
        if self.emit.note_made(slot, by, listener) {
            self.flows.mark(by.hash, FlowRef::client(slot), Mark::Captured);
        }
    }

    /// Marks both legs, which have these hashes, of the connection in `slot`.
    pub(super) fn mark_legs(&mut self, slot: u32, [client, server]: [u64; 2], mark: Mark) {
        self.flows.mark(client, FlowRef::client(slot), mark);
        self.flows.mark(server, FlowRef::server(slot), mark);
    }

    /// What is sent now is for a client that has no connection yet.
    pub(super) fn begin_strangers_group(&mut self, hash: u64, client: u128, listener: u16) {
        if let Some(tap) = &mut self.emit.tap
            && tap.may_want(client, listener, hash)
        {
            tap.begin(Whose::Stranger, self.now, || hash);
        }
    }

    /// It was sent.
    pub(super) fn end_strangers_group(&mut self) {
        if let Some(tap) = &mut self.emit.tap {
            tap.end(None);
            tap.tell_lost();
        }
    }
}
