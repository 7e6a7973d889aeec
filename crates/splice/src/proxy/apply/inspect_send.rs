//! What an inspected connection sends: segments passed on in two numberings, kept bytes, their repetition, and ACKs.
//!
//! Every segment that leaves says what is true when it leaves: its ACK and window come from the directions, never from
//! the segment that caused it. So an ACK is held up as long as the replacement of what it would acknowledge is under way,
//! and nothing that was said is taken back.

use super::passing::Offsets;
use crate::admission::round_budget::has_room_for_data;
use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::inspect::direction::{AckNews, InspectedDirection, Piece};
use crate::proxy::{Incoming, Rooms};
use crate::session::connection::{Connection, SMALLEST_SEGMENT, WindowScale};
use crate::session::numbers::Control;
use crate::session::segment::Segment;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::wire::checksum::Delta;
use e2d2::wire::tcp::{TcpFlags, options};
use netfcts::Side;
use netfcts::record::RecordFlags;
use netfcts::seq::SeqNum;

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Passes a segment on with the number `seq` for its receiver.
    pub(super) fn forward_inspected(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        from: Side,
        mut incoming: Incoming<P::Buffer>,
        seq: SeqNum,
        out: &mut impl Output<P::Buffer>,
    ) {
        let id = self.emit.next_ip_id();
        let Some(path) = self.resolved(connection, from.peer()) else {
            return;
        };
        let (Some(spliced), Some(direction)) = (connection.spliced(), self.inspections.sent_by_mut(slot, from.peer()))
        else {
            return self.emit.dropped(DropReason::ImpossibleTransition);
        };
        let offsets = Offsets::of(spliced);
        let mut values = offsets.rewrite(from, incoming.segment, &path, id);
        note_advertised(spliced.scale, from.peer(), direction);
        values.seq = seq.0;
        values.ack = direction.advertised.0.0;
        values.window = direction.advertised.1;
        if !direction.done_in_step() {
            values.blank_sack |= !translate_sack(&mut incoming, direction, values.sack_shift);
        }
        self.forward_with(Some((connection, from)), incoming, &values, &path, out);
    }

    /// Passes new bytes on that are not to be changed, from `start` at `at`: the whole segment, unless it begins with
    /// bytes that are known.
    #[expect(clippy::too_many_arguments, reason = "where the bytes are, in both numberings")]
    pub(super) fn pass_new(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        from: Side,
        begins_at: SeqNum,
        fin: bool,
        (start, at): (SeqNum, SeqNum),
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        if start == begins_at {
            return self.forward_inspected(slot, connection, from, incoming, at, out);
        }
        let mut flags = TcpFlags::ACK | TcpFlags::PSH;
        flags.set(TcpFlags::FIN, fin);
        let payload = incoming.segment.payload(incoming.buffer.data());
        let fresh = payload.get((start - begins_at).max(0) as usize..).unwrap_or_default();
        self.emit_to(slot, connection, from.peer(), (at, flags), fresh, out);
    }

    /// A segment without payload: an ACK, a window update, a keep-alive.
    pub(super) fn pass_ack(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        from: Side,
        news: AckNews,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let scale = connection.spliced().map(|s| s.scale);
        let (Some(scale), Some(inspection)) = (scale, self.inspections.of(slot)) else {
            return self.emit.dropped(DropReason::ImpossibleTransition);
        };
        let (own, other) = (inspection.sent_by(from), inspection.sent_by(from.peer()));
        let says = (other.acknowledged(), window_field(scale, from.peer(), other));
        // It asks for what is kept here, or acknowledges only what its receiver has never heard of.
        let is_no_news = news.asks_for_kept || news.advanced && says == other.advertised;
        if is_no_news {
            return self.emit.dropped(DropReason::Consumed);
        }
        let seq = pure_number(own, incoming.segment);
        self.forward_inspected(slot, connection, from, incoming, seq, out);
    }

    /// What a sender repeats, it gets an answer to: bytes that its receiver lacks go there again, as they are or as they
    /// became. `fin` is set when it repeats its FIN.
    pub(super) fn pass_retransmission(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        from: Side,
        (start, end, fin): (SeqNum, SeqNum, bool),
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(direction) = self.inspections.sent_by(slot, from) else {
            return self.emit.dropped(DropReason::ImpossibleTransition);
        };
        let acknowledged = direction.acknowledged();
        let lacks_fin = fin && direction.acked.lt(direction.next_out);
        if end.le(acknowledged) && !lacks_fin {
            // RFC 9293 3.8.4: a keep-alive asks the receiver, who alone can answer; anything else is an ACK that was lost.
            let is_keep_alive = acknowledged == direction.next_in && start + 1 == acknowledged;
            if is_keep_alive {
                let seq = direction.sent - 1;
                return self.forward_inspected(slot, connection, from, incoming, seq, out);
            }
            self.emit.dropped(DropReason::Duplicate);
            return self.answer(slot, connection, from, out);
        }
        self.records.flag(slot, RecordFlags::RETRANSMITTED);
        let from_here = start.later(acknowledged);
        let pieces = direction.pieces(from_here, end);
        // By far the most: nothing in it was changed.
        if let [Piece::Passed { out: seq, .. }] = pieces[..]
            && from_here == start
            && incoming.segment.has(TcpFlags::FIN) == fin
        {
            return self.forward_inspected(slot, connection, from, incoming, seq, out);
        }
        self.send_pieces(slot, connection, from, (start, &pieces), &incoming, out);
        if lacks_fin {
            self.send_fin(slot, connection, from, out);
        }
    }

    /// The first part of a segment repeats what is known, the second is new: this is for the first.
    pub(super) fn retransmit_before_new(
        &mut self,
        slot: u32,
        connection: &Connection,
        from: Side,
        (start, end): (SeqNum, SeqNum),
        incoming: &Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(direction) = self.inspections.sent_by(slot, from) else {
            return;
        };
        let from_here = start.later(direction.acknowledged());
        if from_here.lt(end) {
            let pieces = direction.pieces(from_here, end);
            self.send_pieces(slot, connection, from, (start, &pieces), incoming, out);
        }
    }

    fn send_pieces(
        &mut self,
        slot: u32,
        connection: &Connection,
        from: Side,
        (begins_at, pieces): (SeqNum, &[Piece]),
        incoming: &Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let payload = incoming.segment.payload(incoming.buffer.data());
        for piece in pieces {
            match *piece {
                Piece::Kept { start, end } => self.send_kept(slot, connection, from, start, end, out),
                Piece::Passed { start, end, out: at } => {
                    let range = (start - begins_at).max(0) as usize..(end - begins_at).max(0) as usize;
                    let Some(bytes) = payload.get(range) else { continue };
                    self.emit_to(
                        slot,
                        connection,
                        from.peer(),
                        (at, TcpFlags::ACK | TcpFlags::PSH),
                        bytes,
                        out,
                    );
                }
            }
        }
    }

    /// Sends kept bytes that have been sent before.
    fn send_kept(
        &mut self,
        slot: u32,
        connection: &Connection,
        from: Side,
        start: SeqNum,
        end: SeqNum,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(direction) = self.inspections.sent_by(slot, from) else {
            return;
        };
        let (mss, end) = (direction.longest_segment(start), end.earlier(direction.sent));
        let mut at = start;
        while at.lt(end) {
            if !has_room_for_data(out) {
                return self.emit.dropped(DropReason::NoRoom);
            }
            let count = mss.min((end - at) as u32);
            self.send_kept_segment(slot, connection, from, at, count, out);
            at += count;
        }
    }

    /// Sends one segment of kept bytes, with the FIN if it ends there.
    fn send_kept_segment(
        &mut self,
        slot: u32,
        connection: &Connection,
        from: Side,
        at: SeqNum,
        count: u32,
        out: &mut impl Output<P::Buffer>,
    ) {
        let mut scratch = std::mem::take(&mut self.inspections.scratch);
        let (mut flags, mut filled) = (TcpFlags::ACK | TcpFlags::PSH, 0);
        if let Some(direction) = self.inspections.sent_by(slot, from) {
            flags.set(TcpFlags::FIN, direction.fin && at + count == direction.data_end());
            if let (Some(place), Some(room)) = (direction.place_of(at), scratch.get_mut(..count as usize)) {
                filled = self.inspections.kept.copy(&direction.kept, place, room);
            }
        }
        if filled == count as usize {
            self.emit_to(
                slot,
                connection,
                from.peer(),
                (at, flags),
                scratch.get(..filled).unwrap_or_default(),
                out,
            );
        }
        self.inspections.scratch = scratch;
    }

    fn send_fin(&mut self, slot: u32, connection: &Connection, from: Side, out: &mut impl Output<P::Buffer>) {
        let Some(direction) = self.inspections.sent_by(slot, from) else {
            return;
        };
        let at = direction.data_end();
        self.emit_to(
            slot,
            connection,
            from.peer(),
            (at, TcpFlags::ACK | TcpFlags::FIN),
            &[],
            out,
        );
    }

    /// Sends what has not been sent yet, as far as the receiver's window goes.
    pub(super) fn pump(&mut self, slot: u32, connection: &Connection, from: Side, out: &mut impl Output<P::Buffer>) {
        while let Some(direction) = self.inspections.sent_by(slot, from) {
            // What finds no room follows with the next ACK, or with the timer.
            if !direction.has_backlog() || !has_room_for_data(out) {
                return;
            }
            let (at, end) = (direction.sent, direction.data_end());
            let room = (direction.edge.earlier(end) - at).max(0) as u32;
            let count = room.min(direction.longest_segment(at));
            if count == 0 && at.lt(end) {
                return;
            }
            let next = if at + count == end {
                direction.next_out
            } else {
                at + count
            };
            if count > 0 {
                self.send_kept_segment(slot, connection, from, at, count, out);
            } else {
                self.send_fin(slot, connection, from, out);
            }
            if let Some(direction) = self.inspections.sent_by_mut(slot, from) {
                direction.sent = next;
            }
        }
    }

    /// Repeats the first of what is kept and not acknowledged: one segment. If nothing is under way it is a probe of the
    /// receiver's window (RFC 9293 3.8.6.1).
    pub(super) fn retransmit_first_kept(
        &mut self,
        slot: u32,
        connection: &Connection,
        from: Side,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(direction) = self.inspections.sent_by_mut(slot, from) else {
            return;
        };
        let Some((start, end)) = direction.first_kept() else {
            return;
        };
        let count = direction.longest_segment(start).min((end - start).max(0) as u32);
        let behind = start + count;
        if behind.gt(direction.sent) {
            direction.sent = if behind == direction.data_end() {
                direction.next_out
            } else {
                behind
            };
        }
        self.records.flag(slot, RecordFlags::RETRANSMITTED);
        self.send_kept_segment(slot, connection, from, start, count, out);
    }

    /// The timer: repeats what is kept in each direction that has waited long enough.
    pub(super) fn retransmit_kept(&mut self, slot: u32, connection: &Connection, out: &mut impl Output<P::Buffer>) {
        let now_ms = self.now.as_millis() as u32;
        for from in [Side::Client, Side::Server] {
            let Some(direction) = self.inspections.sent_by_mut(slot, from) else {
                return;
            };
            if direction.kept.len() > 0 && direction.timer.is_due(now_ms) {
                direction.note_timeout(now_ms);
                self.retransmit_first_kept(slot, connection, from, out);
            }
        }
    }

    /// An ACK of ours to `to`: it has sent what is not the next, or cannot be taken now (RFC 9293 3.10.7.4, first).
    pub(super) fn answer(&mut self, slot: u32, connection: &Connection, to: Side, out: &mut impl Output<P::Buffer>) {
        let Some(direction) = self.inspections.sent_by(slot, to.peer()) else {
            return;
        };
        let seq = direction.sent;
        self.emit_to(slot, connection, to, (seq, TcpFlags::ACK), &[], out);
    }

    /// Asks `to` by a keep-alive whether it is still there, after a RST that proves nothing (RFC 1122 4.2.3.6): its answer
    /// ends the connection, or goes on with it.
    pub(super) fn ask(&mut self, slot: u32, connection: &Connection, to: Side, out: &mut impl Output<P::Buffer>) {
        let Some(direction) = self.inspections.sent_by(slot, to.peer()) else {
            return;
        };
        let seq = direction.acked - 1;
        self.emit_to(slot, connection, to, (seq, TcpFlags::ACK), &[], out);
    }

    /// Tells `to` if more of what it sends is acknowledged than it knows: bytes that were taken away need no receiver.
    pub(super) fn tell(&mut self, slot: u32, connection: &Connection, to: Side, out: &mut impl Output<P::Buffer>) {
        let direction = self.inspections.sent_by(slot, to);
        if direction.is_some_and(|direction| direction.acknowledged().gt(direction.advertised.0)) {
            self.answer(slot, connection, to, out);
        }
    }

    /// After a segment of `from` with payload: tells both sides what no segment has told them.
    pub(super) fn tell_news(
        &mut self,
        slot: u32,
        connection: &Connection,
        from: Side,
        news: AckNews,
        out: &mut impl Output<P::Buffer>,
    ) {
        self.tell(slot, connection, from, out);
        if news.advanced {
            self.tell(slot, connection, from.peer(), out);
        }
        if !news.edge_moved {
            return;
        }
        let Some(scale) = connection.spliced().map(|s| s.scale) else {
            return;
        };
        let direction = self.inspections.sent_by(slot, from.peer());
        if direction.is_some_and(|direction| window_field(scale, from.peer(), direction) != direction.advertised.1) {
            self.answer(slot, connection, from.peer(), out);
        }
    }

    /// Sends a segment of our own to `to` with the newest of all numbers.
    fn emit_to(
        &mut self,
        slot: u32,
        connection: &Connection,
        to: Side,
        (seq, flags): (SeqNum, TcpFlags),
        payload: &[u8],
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(path) = self.resolved(connection, to) else {
            return;
        };
        let (Some(spliced), Some(inspection)) = (connection.spliced(), self.inspections.of_mut(slot)) else {
            return;
        };
        // RFC 7323 3.2: the newest TSval of the other side, echoing the newest of this one.
        let shift = match to {
            Side::Client => spliced.server_ts_offset,
            Side::Server => spliced.client_ts_offset,
        };
        let tsval = inspection
            .sent_by(to.peer())
            .tsval
            .map(|tsval| tsval.wrapping_add(shift));
        let sender = inspection.sent_by_mut(to);
        note_advertised(spliced.scale, to, sender);
        let (ack, window) = sender.advertised;
        let control = Control::new(seq, ack, flags, window).timed(tsval.zip(sender.tsval));
        self.emit.send(None, &path, &control, payload, out);
    }
}

/// The window field for the sender `to` of a direction, in the unit that it expects; as in [`WindowScale::to_client`] no
/// window of a segment or more is rounded down to nothing.
fn window_field(scale: WindowScale, to: Side, direction: &InspectedDirection) -> u16 {
    let bytes = direction.window();
    (bytes >> scale.shift_for(to)).clamp(u32::from(bytes >= SMALLEST_SEGMENT), 0xffff) as u16
}

/// Notes what a segment that leaves now tells `to` of the direction it sends in.
fn note_advertised(scale: WindowScale, to: Side, direction: &mut InspectedDirection) {
    direction.advertised = (direction.acknowledged(), window_field(scale, to, direction));
    let window = u32::from(direction.advertised.1) << scale.shift_for(to);
    direction.advertised_edge = direction.advertised_edge.later(direction.advertised.0 + window);
}

/// The number of a segment without payload, for its receiver.
fn pure_number(direction: &InspectedDirection, segment: &Segment) -> SeqNum {
    if direction.done_in_step() {
        return segment.seq + direction.shift();
    }
    // A keep-alive stands just before what is expected, and must do so for its receiver. Everything else says what is
    // next; and next for the receiver is what it has not been sent.
    let is_keep_alive = segment.seq + 1 == direction.next_in && direction.acknowledged() == direction.next_in;
    direction.sent - u32::from(is_keep_alive)
}

/// Translates SACK blocks so that the common shift, which is still to come, makes them right: blocks are cut to ranges
/// that are all there. Returns false if a block says nothing then; they must be blanked (RFC 2018 8: they are advice).
fn translate_sack<B: PacketBuffer>(incoming: &mut Incoming<B>, direction: &InspectedDirection, shift: u32) -> bool {
    let (l4, payload) = (
        usize::from(incoming.segment.layout.l4),
        usize::from(incoming.segment.layout.payload),
    );
    let Some(header) = incoming.buffer.data_mut().get_mut(l4..payload) else {
        return false;
    };
    let Some((header, raw)) = header.split_first_chunk_mut::<20>() else {
        return false;
    };
    let translate = |left: u32, right: u32| {
        let edges = (SeqNum(left), SeqNum(right));
        let is_plausible = edges.0.ge(direction.acked) && edges.0.lt(edges.1) && edges.1.le(direction.sent);
        let edges = (direction.to_in_rounded_up(edges.0), direction.to_in(edges.1));
        (is_plausible && edges.0.lt(edges.1)).then_some(edges)
    };
    let blocks = options::sack_blocks(raw);
    if blocks.iter().any(|&(left, right)| translate(left, right).is_none()) {
        return false;
    }
    let delta = options::translate_sack(raw, |left, right| match translate(left, right) {
        Some((left, right)) => (left.0.wrapping_add(shift), right.0.wrapping_add(shift)),
        None => (left, right),
    });
    if delta != Delta::ZERO {
        let checksum = delta.apply(u16::from_be_bytes([header[16], header[17]]));
        header[16..18].copy_from_slice(&checksum.to_be_bytes());
    }
    true
}
