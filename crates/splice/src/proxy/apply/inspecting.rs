//! Segments of inspected connections: each byte is shown once and in order (DECISIONS.md 23).
//!
//! Only the next segment in order is shown; others are dropped and answered by a duplicate ACK, so that their sender
//! repeats what is missing at once (RFC 5681 3.2). What follows from a verdict is in the direction's numbers
//! ([`InspectedDirection`](crate::inspect::direction::InspectedDirection)) and in what is kept; sending and repeating that is in
//! `inspect_send.rs`, and how an inspection begins in `inspect_start.rs`.

use crate::base::callbacks::{GUARANTEED_GROWTH, Payload, SelectServer, Towards, Verdict};
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::inspect::Inspection;
use crate::inspect::direction::AckNews;
use crate::proxy::apply::ActionContext;
use crate::proxy::{Incoming, Rooms};
use crate::session::classify;
use crate::session::close::RstCheck;
use crate::session::connection::Connection;
use crate::session::event::{Event, FinChange};
use crate::session::phase::FinState;
use crate::session::segment::Segment;
use crate::session::state::State;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::wire::checksum;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::Side;
use netfcts::leg::unmapped;
use netfcts::seq::SeqNum;

/// What the inspector has said, and what is still to be done for it.
pub(super) enum InspectOutcome {
    /// The bytes go on, changed in place or not.
    Passed { is_changed: bool },
    /// This many bytes, which stand in the scratch memory, go in their place.
    Replaced(usize),
    /// The connection ends.
    Rejected,
}

/// A segment that carries something, taken apart.
#[derive(Clone, Copy)]
struct Data {
    start: SeqNum,
    end: SeqNum,
    fin: bool,
}

impl Data {
    fn of(segment: &Segment) -> Self {
        Data {
            start: segment.seq,
            end: segment.seq + segment.payload_len(),
            fin: segment.has(TcpFlags::FIN),
        }
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Calls the inspector with the next bytes of `from`.
    pub(super) fn show(&mut self, slot: u32, from: Side, bytes: &mut [u8], is_last: bool) -> InspectOutcome {
        let room = self.inspections.room(slot, from);
        let mut scratch = std::mem::take(&mut self.inspections.scratch);
        let shown = self.show_with(slot, from, bytes, is_last, &mut scratch, room);
        self.inspections.scratch = scratch;
        shown.unwrap_or(InspectOutcome::Rejected)
    }

    fn show_with(
        &mut self,
        slot: u32,
        from: Side,
        bytes: &mut [u8],
        is_last: bool,
        scratch: &mut [u8],
        room: usize,
    ) -> Option<InspectOutcome> {
        let index = self.inspections.index(slot)?;
        let inspection = self.inspections.of_mut(slot)?;
        let info = inspection.info;
        let direction = inspection.sent_by_mut(from);
        let towards = match from {
            Side::Client => Towards::Server,
            Side::Server => Towards::Client,
        };
        let len = bytes.len();
        let end = room.min(scratch.len());
        let room = scratch.get_mut(..end)?;
        let mut payload = Payload::new(&info, (towards, direction.offset, is_last), bytes, room);
        direction.offset += len as u64;
        let verdict = self.selector.inspect(index, &mut payload);
        let (is_changed, written) = (payload.is_changed(), payload.written().len());
        Some(match verdict {
            Verdict::Pass => InspectOutcome::Passed { is_changed },
            Verdict::Replace => InspectOutcome::Replaced(written),
            Verdict::Reject => {
                self.emit.dropped(DropReason::Rejected);
                InspectOutcome::Rejected
            }
            Verdict::Done => {
                direction.done = true;
                InspectOutcome::Passed { is_changed }
            }
        })
    }

    /// Keeps the first `out_len` bytes of the scratch memory in the place of the next `in_len` bytes of `from`.
    pub(super) fn keep_scratch(&mut self, slot: u32, from: Side, in_len: u32, out_len: usize, now_ms: u32) -> bool {
        let scratch = std::mem::take(&mut self.inspections.scratch);
        let is_kept = scratch
            .get(..out_len)
            .is_some_and(|bytes| self.inspections.keep(slot, from, in_len, bytes, now_ms));
        self.inspections.scratch = scratch;
        is_kept
    }

    /// A segment of an inspected connection whose checksum is right. Returns what happens to the connection by it; a SYN
    /// stays in the context.
    pub(crate) fn handle_inspected(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        from: Side,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        let segment = context.incoming.as_ref()?.segment;
        if segment.has(TcpFlags::SYN) {
            return Some(classify::control_while_spliced(connection, from, segment));
        }
        let incoming = context.incoming.take()?;
        if segment.has(TcpFlags::RST) {
            return self.handle_inspected_reset(slot, connection, from, incoming, out);
        }
        let Some((news, acknowledges_fin)) = self.note_inspected(slot, connection, from, &incoming) else {
            self.emit.dropped(DropReason::OutOfWindow);
            return None;
        };
        connection.note_accepted(self.now, from, segment);
        let has_payload = segment.payload_len() > 0;
        let was_keeping = self.keeps_anything(slot);
        if news.repeat {
            self.retransmit_first_kept(slot, connection, from.peer(), out);
        }
        self.pump(slot, connection, from.peer(), out);
        let (fin, event) = if segment.len() == 0 {
            self.pass_ack(slot, connection, from, news, incoming, out);
            (false, None)
        } else {
            let data = Data::of(segment);
            let outcome = self.take_data(slot, connection, from, data, incoming, out);
            self.tell_news(slot, connection, from, news, out);
            outcome
        };
        if !was_keeping && self.keeps_anything(slot) {
            self.arm_spliced(slot, connection);
        }
        if event.is_some() {
            return event;
        }
        if self.inspections.of(slot).is_some_and(Inspection::is_done) {
            self.end_inspection(slot);
        }
        if fin || acknowledges_fin {
            return Some(Event::Segment {
                from,
                fin: FinChange::noted_if(fin),
                acknowledges_fin,
            });
        }
        self.records.count_passed(from, has_payload, None, false);
        None
    }

    fn keeps_anything(&self, slot: u32) -> bool {
        self.inspections
            .of(slot)
            .is_some_and(|inspection| inspection.deadline().is_some())
    }

    /// Notes what a segment says about the other direction, and its timestamp. `None` if its number is out of all
    /// windows. The second value tells whether it acknowledges its receiver's FIN.
    fn note_inspected(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        from: Side,
        incoming: &Incoming<P::Buffer>,
    ) -> Option<(AckNews, bool)> {
        let Incoming { buffer, segment } = incoming;
        let spliced = connection.spliced_mut()?;
        let (client, server, scales) = (spliced.client_fin, spliced.server_fin, spliced.scale);
        let inspection = self.inspections.of_mut(slot)?;
        // RFC 9293 3.10.7.4, first: before anything else, the number must be in the window, or just behind it.
        let own = spliced.sent_by(from);
        // What was told since the receiver spoke last counts: taking bytes away moves the edge, too.
        own.edge = own.edge.later(inspection.sent_by(from).advertised_edge);
        // RFC 5961 5.2: whoever makes up a segment has to guess both. What is passed on has an ACK that we make, and is believed.
        let is_taken = own.takes(segment.seq, scales.largest_window_for(from));
        let other = inspection.sent_by(from.peer());
        if !(is_taken && other.takes_ack(segment.ack, scales.largest_window_for(from.peer()))) {
            return None;
        }
        let (scale, peer_half) = match from {
            Side::Client => (scales.client, server),
            Side::Server => (scales.server, client),
        };
        let options = TcpOptions::parse(segment.options(buffer.data()));
        let sender = inspection.sent_by_mut(from);
        if let (Some((tsval, _)), Some(newest)) = (options.timestamps, &mut sender.tsval)
            && SeqNum(tsval).gt(SeqNum(*newest))
        {
            *newest = tsval;
        }
        let direction = inspection.sent_by_mut(from.peer());
        let window = u32::from(segment.window) << scale;
        let news = direction.note_ack(segment.ack, window, segment.len() == 0, self.now.as_millis() as u32);
        let (acknowledged, window) = (direction.acknowledged(), direction.window());
        let flow = spliced.sent_by(from.peer());
        flow.note_acknowledged(acknowledged, window);
        let acknowledges_fin = peer_half == FinState::FinSent && flow.is_fin_covered_by(acknowledged);
        self.inspections.release(slot, from.peer(), news.released);
        Some((news, acknowledges_fin))
    }

    /// RFC 5961 3.2, as for any splice; where bytes were changed, its number is made anew instead of translated.
    fn handle_inspected_reset(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        from: Side,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        let segment = incoming.segment;
        let spliced = connection.spliced_mut()?;
        let verdict = spliced.sent_by(from).judge_reset(segment.seq);
        let translated = spliced.seq_for_peer(from, segment.seq);
        match verdict {
            RstCheck::Exact => {
                self.reset(slot, connection, from.peer(), out);
                return Some(Event::Reset(from));
            }
            RstCheck::InWindow => {
                self.forward_inspected(slot, connection, from, incoming, translated, out);
                if self.may_challenge(connection, from) {
                    self.ask(slot, connection, from, out);
                }
            }
            RstCheck::OutOfWindow => self.emit.dropped(DropReason::OutOfWindowRst),
        }
        None
    }

    /// Deals with payload or FIN. Returns whether its FIN is accepted, and an event if the inspector ends the connection.
    fn take_data(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        from: Side,
        data: Data,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> (bool, Option<Event>) {
        let Some(direction) = self.inspections.sent_by(slot, from) else {
            self.emit.dropped(DropReason::ImpossibleTransition);
            return (false, None);
        };
        let (next, is_closed, done) = (direction.next_in, direction.fin, direction.done);
        let is_new = data.end.gt(next) || (data.fin && !is_closed && data.end == next);
        if data.start.lt(next) || !is_new {
            let repeats_fin = data.fin && is_closed && data.end + 1 == next;
            let end = data.end.earlier(next - u32::from(is_closed));
            if !is_new {
                self.pass_retransmission(slot, connection, from, (data.start, end, repeats_fin), incoming, out);
                return (repeats_fin, None);
            }
            self.retransmit_before_new(slot, connection, from, (data.start, end), &incoming, out);
        }
        // Behind a FIN there is nothing (RFC 9293 3.10.7.4, seventh).
        if is_closed {
            self.emit.dropped(DropReason::OutOfWindow);
            return (false, None);
        }
        if done {
            return (self.pass_unseen(slot, connection, from, data, incoming, out), None);
        }
        if data.start.gt(next) {
            self.emit.dropped(DropReason::OutOfOrder);
            self.answer(slot, connection, from, out);
            return (false, None);
        }
        self.take_next(slot, connection, from, data, incoming, out)
    }

    /// Bytes of a direction whose inspection is done, but whose changes are not all acknowledged.
    fn pass_unseen(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        from: Side,
        data: Data,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> bool {
        let Some(direction) = self.inspections.sent_by_mut(slot, from) else {
            self.emit.dropped(DropReason::ImpossibleTransition);
            return false;
        };
        if direction.has_backlog() {
            self.emit.dropped(DropReason::InspectBufferFull);
            self.answer(slot, connection, from, out);
            return false;
        }
        let (next, shift) = (direction.next_in, direction.shift());
        let end = data.end + u32::from(data.fin);
        direction.sent = direction.sent.later(end + shift);
        let start = data.start.later(next);
        let fin = self.note_accepted(slot, connection, from, (start, end), data.fin);
        self.pass_new(
            slot,
            connection,
            from,
            data.start,
            data.fin,
            (start, start + shift),
            incoming,
            out,
        );
        fin
    }

    /// The next bytes in order: shows them, and does what the inspector says.
    fn take_next(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        from: Side,
        data: Data,
        mut incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> (bool, Option<Event>) {
        let now_ms = self.now.as_millis() as u32;
        let Some(direction) = self.inspections.sent_by(slot, from) else {
            self.emit.dropped(DropReason::ImpossibleTransition);
            return (false, None);
        };
        let (next, at) = (direction.next_in, direction.next_out);
        let len = (data.end - next).max(0) as usize;
        let has_room = !direction.has_backlog()
            && direction.can_record()
            && self.inspections.room(slot, from) >= len + GUARANTEED_GROWTH;
        if !has_room {
            self.emit.dropped(DropReason::InspectBufferFull);
            self.answer(slot, connection, from, out);
            return (false, None);
        }
        let Some(path) = self.resolved(connection, from.peer()) else {
            return (false, None);
        };
        if self.tell_too_big(Some((connection, from)), &incoming, &path, out) {
            self.emit.dropped(DropReason::TooBig);
            return (false, None);
        }
        let layout = incoming.segment.layout;
        let skip = (next - data.start).max(0) as usize;
        let range = usize::from(layout.payload) + skip..usize::from(layout.end);
        let Some(bytes) = incoming.buffer.data_mut().get_mut(range.clone()) else {
            self.emit.dropped(DropReason::BadLayout);
            return (false, None);
        };
        let shown = self.show(slot, from, bytes, data.fin);
        let accepted = match shown {
            InspectOutcome::Rejected => false,
            InspectOutcome::Replaced(out_len) => self.keep_scratch(slot, from, len as u32, out_len, now_ms),
            InspectOutcome::Passed { is_changed: true } if len > 0 => {
                let is_kept = self.inspections.keep(slot, from, len as u32, bytes, now_ms);
                renew_checksum(&mut incoming);
                is_kept
            }
            InspectOutcome::Passed { .. } => true,
        };
        if !accepted {
            return (false, Some(Event::Rejected));
        }
        let passes = matches!(shown, InspectOutcome::Passed { .. });
        let is_kept = passes
            && self
                .inspections
                .of(slot)
                .is_some_and(|i| i.sent_by(from).next_in != next);
        if let Some(direction) = self.inspections.sent_by_mut(slot, from) {
            let unkept = if passes && !is_kept { len as u32 } else { 0 };
            direction.advance(unkept + u32::from(data.fin));
            direction.fin |= data.fin;
            if passes {
                direction.sent = direction.next_out;
            }
        }
        let end = data.end + u32::from(data.fin);
        let fin = self.note_accepted(slot, connection, from, (next, end), data.fin);
        if passes {
            self.pass_new(slot, connection, from, data.start, data.fin, (next, at), incoming, out);
        } else {
            self.pump(slot, connection, from, out);
        }
        (fin, None)
    }

    /// Notes numbers of `from` from `start` to `end` as sent. Returns true for a FIN.
    fn note_accepted(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        from: Side,
        (start, end): (SeqNum, SeqNum),
        fin: bool,
    ) -> bool {
        let Some(shift) = self
            .inspections
            .of(slot)
            .map(|inspection| inspection.sent_by(from).shift())
        else {
            return false;
        };
        connection.count_bytes(from, i64::from((end - start).max(0)) - i64::from(fin));
        let State::Spliced(spliced) = &mut connection.state else {
            return false;
        };
        match from {
            Side::Client => spliced.client_seq_offset = shift,
            Side::Server => spliced.server_seq_offset = shift,
        }
        spliced.sent_by(from).note_sent(start, end);
        fin
    }

    /// Ends an inspection, and the inspector's context with it.
    pub(super) fn end_inspection(&mut self, slot: u32) {
        if let Some(index) = self.inspections.close(slot) {
            self.selector.close_context(index);
        }
    }

    /// Whether something kept has to be repeated now, or has been often enough.
    pub(crate) fn kept_due(&self, slot: u32, now_ms: u32) -> Option<Event> {
        let inspection = self.inspections.of(slot)?;
        let deadline = inspection.deadline()?;
        if !SeqNum(now_ms).ge(SeqNum(deadline)) {
            return None;
        }
        Some(if inspection.is_given_up(now_ms) {
            Event::RetransmitLimit
        } else {
            Event::RetryDue
        })
    }
}

/// Makes the checksum of a segment afresh whose payload was changed, and whose old checksum was right.
fn renew_checksum<B: PacketBuffer>(incoming: &mut Incoming<B>) {
    let segment = incoming.segment;
    let (l4, end) = (usize::from(segment.layout.l4), usize::from(segment.layout.end));
    let Some(tcp) = incoming.buffer.data_mut().get_mut(l4..end) else {
        return;
    };
    let addresses = (unmapped(segment.key.remote), unmapped(segment.key.local));
    let Some(pseudo) = checksum::pseudo_header(addresses.0, addresses.1, 6, tcp.len() as u16) else {
        return;
    };
    if let Some(field) = tcp.get_mut(16..18) {
        field.fill(0);
    }
    let sum = checksum::finish(pseudo + checksum::sum(tcp));
    if let Some(field) = tcp.get_mut(16..18) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}
