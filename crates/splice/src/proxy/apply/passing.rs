//! Segments of spliced connections on their way through.
//!
//! What a retransmission queue changes on the way is in `retransmitting.rs`; a resting connection's segments are passed in `ending.rs`.
//!
//! Segments may be longer than the server takes: its MSS was not known when the client was promised one. They are cut, so
//! that nothing is lost, and the client is told the MTU that its packets should have, so that it soon sends none of them any
//! more. Rare, and over with the slot in which the server was heard.

use super::ActionContext;
use super::retransmitting::AckHold;
use crate::admission::round_budget::has_room_for_data;
use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::base::path::Path;
use crate::base::stage::WorkStage;
use crate::proxy::{Incoming, Rooms, icmp, routes};
use crate::records::Fin;
use crate::rewrite::siit;
use crate::rewrite::translate::{self, Rewrite};
use crate::session::connection::{Connection, Spliced, SplicedFlags, WindowScale};
use crate::session::event::{Event, FinChange};
use crate::session::limits::LimitKind;
use crate::session::numbers::Control;
use crate::session::phase::{FinState, Phase};
use crate::session::segment::Segment;
use crate::time_wait::{Late, TimeWaitEntry};
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::wire::Checksums;
use e2d2::wire::frame::IpVersion;
use e2d2::wire::ipv4::Ipv4Header;
use e2d2::wire::ipv6::Ipv6Header;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::Side;
use netfcts::record::State;
use netfcts::seq::SeqNum;

/// Whether a segment, its TCP options included, is longer than `mss` (RFC 6691 3). A RST passes as it is: its payload is
/// for no one.
#[inline]
pub(super) fn is_too_long(segment: &Segment, mss: u16) -> bool {
    segment.layout.end - segment.layout.l4 > mss.saturating_add(20) && !segment.has(TcpFlags::RST)
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Passes on a segment that changes nothing but numbers.
    #[inline]
    pub(crate) fn forward_plain(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        from: Side,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        out.enter(WorkStage::Rewrite);
        self.records
            .count_passed(from, incoming.segment.payload_len() > 0, None, false);
        if let Some(incoming) = self.forward_fast(connection, from, incoming, out) {
            let context = &mut ActionContext::with(from, incoming);
            self.forward_adjusted(slot, connection, from, context, out);
        }
    }

    /// Drops a segment that its receiver should not take, and has the receiver answer in its place (RFC 9293 3.10.7.4, first):
    /// an end that has lost count learns the numbers so. The segment itself does not pass: a receiver whose window has opened
    /// meanwhile would take it, and its ACKs would be of bytes that were not noted, which nobody believes.
    ///
    /// A stranger who makes up segments makes both ends answer, so there is a limit (RFC 5961 7, 10).
    pub(crate) fn ask_receiver(
        &mut self,
        connection: &mut Connection,
        from: Side,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let (now, said) = (self.now, context.timestamps());
        let Some(incoming) = context.incoming.take() else {
            return;
        };
        // A damaged number is nobody's question.
        if !incoming.is_intact() {
            return self.emit.dropped(DropReason::BadTcpChecksum);
        }
        self.emit.dropped(DropReason::OutOfWindow);
        let is_granted = connection.granted.take(LimitKind::OutOfWindow(from), now);
        if is_granted && self.admission.limits.out_of_window.take(now) {
            let said = connection.spliced().zip(said);
            let timestamps = said.map(|(spliced, (from, said))| spliced.timestamps_for_peer(from, said));
            self.send_keep_alive(connection, from.peer(), timestamps, out);
        }
    }

    /// Passes a segment on.
    #[inline(never)]
    pub(crate) fn forward(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        from: Side,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let incoming = context.incoming.take();
        context.incoming = incoming.and_then(|incoming| self.forward_fast(connection, from, incoming, out));
        if context.incoming.is_some() {
            self.forward_adjusted(slot, connection, from, context, out);
        }
    }

    /// Passes a segment on, or gives it back if that takes more than new numbers. A part of its two callers, one of which
    /// does nothing else: what most packets go through is one function from the look-up to the outbox.
    #[inline(always)]
    fn forward_fast<'a>(
        &mut self,
        connection: &Connection,
        from: Side,
        mut incoming: Incoming<'a, P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Incoming<'a, P::Buffer>> {
        let Some(spliced) = connection.spliced() else {
            self.emit.dropped(DropReason::UnknownFlow);
            return None;
        };
        let segment = incoming.segment;
        let is_special = spliced.rtx.is_some()
            || spliced.flags.contains(SplicedFlags::ADVERTISED_MORE)
            || from == Side::Client && is_too_long(segment, spliced.server_mss);
        if is_special {
            return Some(incoming);
        }
        let ends = &connection.ends;
        let path = match from {
            Side::Client => routes::way_to_server(&self.settings, &self.transparent_sources, &self.next_hops, ends),
            Side::Server => Some(routes::way_to_client(&self.settings, ends)),
        };
        let Some(path) = path else {
            self.emit.dropped(DropReason::NoNeighbour);
            return None;
        };
        if path.version() != segment.layout.version || icmp::is_too_big(segment, path.mtu) {
            return Some(incoming);
        }
        let values = Offsets::of(spliced).rewrite(from, segment, &path, self.emit.next_ip_id());
        match translate::rewrite_here(incoming.buffer.data_mut(), segment.layout, &values) {
            Ok(()) => self.emit.pass(path.device, incoming.buffer, out),
            Err(reason) => self.emit.dropped(reason),
        }
        None
    }

    /// As [`Rooms::forward`], for connections that have a retransmission queue or have promised too much, for segments that must
    /// be cut or refused because they are too long, and between the two versions of IP.
    #[inline(never)]
    fn forward_adjusted(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        from: Side,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        if self.acks_all(connection, from, context) {
            // In most cases: the server's first segment acknowledges all, and passes like any other.
            self.drop_rtx(connection);
            return self.forward(slot, connection, from, context, out);
        }
        let Some(incoming) = context.incoming.take() else {
            return;
        };
        let segment = incoming.segment;
        let Some(spliced) = connection.spliced() else {
            return self.emit.dropped(DropReason::ImpossibleTransition);
        };
        let payload_len = segment.payload_len();
        let offsets = Offsets::of(spliced);
        let server_mss = spliced.server_mss;
        let ack = spliced.ack_for_peer(from, segment.ack);
        let Some(path) = self.resolved(connection, from.peer()) else {
            return;
        };
        let has_rtx_queue = spliced.rtx.is_some();
        let acks_all = has_rtx_queue && from == Side::Server && spliced.is_acknowledged_by(segment, ack);
        let advertised_more = spliced.flags.contains(SplicedFlags::ADVERTISED_MORE);
        let mut values = offsets.rewrite(from, segment, &path, self.emit.next_ip_id());
        if has_rtx_queue && from == Side::Client && payload_len > 0 {
            if self.begins_before_rtx_queue(connection, segment.seq) {
                // It repeats the header that it sent to us, in the place of ours, which the server may still lack.
                context.incoming = Some(incoming);
                return self.challenge(connection, context, out);
            }
            if self.repeats_first_bytes(connection, segment.seq) {
                // The client repeats its first bytes: what goes before them may be lost as well.
                self.send_rtx(connection, out);
            }
        }
        if from == Side::Client && is_too_long(segment, server_mss) {
            return self.resegment(connection, &incoming, (&values, server_mss), &path, out);
        }
        if acks_all {
            let pure = segment.len() == 0 && !segment.has(TcpFlags::RST);
            let said = TcpOptions::parse(segment.options(incoming.buffer.data())).timestamps;
            match self.on_server_ack(slot, connection, (ack, segment.window, pure), said, out) {
                AckHold::Nothing => {}
                AckHold::NoNews => return self.emit.dropped(DropReason::Consumed),
                AckHold::HeldUp(floor) => hold_up(&mut values, &offsets, segment.window, (floor - ack).max(0) as u32),
            }
        }
        if advertised_more && from == Side::Server {
            self.keep_promise(connection, &mut values);
        }
        self.forward_with(Some((connection, from)), incoming, &values, &path, out);
    }

    /// RFC 9293 3.8.6: a receiver should not move the right edge of its window to the left, and the client takes us for one.
    /// So until the server's own window reaches as far as was promised on its behalf, the promise is repeated. What the
    /// client sends too far the server refuses, and the client sends it again.
    fn keep_promise(&mut self, connection: &mut Connection, values: &mut Rewrite) {
        let Some(spliced) = connection.spliced_mut() else {
            return;
        };
        let told = (spliced.to_server.edge - SeqNum(values.ack)).max(0) as u32;
        let told = (told >> spliced.scale.advertised).min(0xffff) as u16;
        if values.window >= told {
            spliced.flags.remove(SplicedFlags::ADVERTISED_MORE);
        } else {
            values.window = told;
        }
    }

    /// Passes a segment on with these values, over either version of IP, or tells its sender that it is too big.
    pub(super) fn forward_with(
        &mut self,
        sender: Option<(&mut Connection, Side)>,
        mut incoming: Incoming<P::Buffer>,
        values: &Rewrite,
        path: &Path,
        out: &mut impl Output<P::Buffer>,
    ) {
        let layout = incoming.segment.layout;
        if self.tell_too_big(sender, &incoming, path, out) {
            return self.emit.dropped(DropReason::TooBig);
        }
        let rewritten = if path.version() == layout.version {
            translate::rewrite(incoming.buffer.data_mut(), &layout, values)
        } else {
            siit::rewrite(&mut incoming.buffer, &layout, values)
        };
        match rewritten {
            Ok(()) => self.emit.pass(path.device, incoming.buffer, out),
            Err(reason) => self.emit.dropped(reason),
        }
    }

    /// Tells the sender of a segment that does not fit the link it must leave by. Returns true if that is so.
    #[inline]
    pub(super) fn tell_too_big(
        &mut self,
        sender: Option<(&mut Connection, Side)>,
        incoming: &Incoming<P::Buffer>,
        path: &Path,
        out: &mut impl Output<P::Buffer>,
    ) -> bool {
        let layout = incoming.segment.layout;
        let mtu = self.settings.devices[usize::from(path.device.0)].mtu;
        let told = if path.version() == layout.version {
            icmp::is_too_big(incoming.segment, mtu).then_some(u32::from(mtu))
        } else {
            // The other leg has the other version of IP.
            let is_too_big = siit::packet_len(&layout) > u32::from(mtu);
            is_too_big.then(|| siit::mtu_for(layout.version, u32::from(mtu)))
        };
        let Some(mtu) = told else { return false };
        self.send_too_big(sender, incoming, mtu, out);
        true
    }

    /// Counts and records the closing of the halves.
    #[inline(never)]
    pub(crate) fn note_close(
        &mut self,
        slot: u32,
        before: Phase,
        event: Event,
        incoming: Option<&Incoming<P::Buffer>>,
    ) {
        let Event::Segment {
            from,
            fin,
            acknowledges_fin,
        } = event
        else {
            return;
        };
        let Phase::Spliced { client, server } = before else {
            return;
        };
        let fin = fin == FinChange::Noted;
        let (own, peer) = match from {
            Side::Client => (client, server),
            Side::Server => (server, client),
        };
        let is_news = fin && own == FinState::Open;
        let which = match (fin, peer) {
            (false, _) => None,
            (true, FinState::Open) => Some(Fin::First),
            (true, FinState::FinSent | FinState::FinAcknowledged) => Some(Fin::Second),
        };
        let payload = incoming.is_some_and(|incoming| incoming.segment.payload_len() > 0);
        self.records
            .count_passed(from, payload, which.filter(|_| is_news), acknowledges_fin);
        if is_news {
            let state = match peer {
                FinState::Open => State::FinWait1,
                FinState::FinSent if !acknowledges_fin => State::Closing,
                FinState::FinSent | FinState::FinAcknowledged => State::LastAck,
            };
            self.records.state(slot, from, state);
        }
        if acknowledges_fin && peer == FinState::FinSent && own == FinState::Open && !fin {
            (self.records).states(slot, [(from.peer(), State::FinWait2), (from, State::CloseWait)]);
        }
    }

    /// Passes a segment of the client on in pieces of `mss`, or less where the link is small, with the numbers that it would
    /// have had as one.
    #[cold]
    pub(super) fn resegment(
        &mut self,
        connection: &mut Connection,
        incoming: &Incoming<P::Buffer>,
        (values, mss): (&Rewrite, u16),
        path: &Path,
        out: &mut impl Output<P::Buffer>,
    ) {
        // Each piece gets a checksum of ours: what the sender's would reveal must be found here.
        if !incoming.is_intact() {
            return self.emit.dropped(DropReason::BadTcpChecksum);
        }
        // It goes on all the same: a capture is not told that it is dropped.
        self.emit.drops.add(DropReason::Resegmented, 1);
        let mss = mss.min(path.mtu - path.header_len());
        self.tell_mtu(connection, incoming, mss, out);
        let Incoming { buffer, segment } = incoming;
        let class = segment.layout.ip(buffer.data()).map_or(0, |ip| ip.traffic_class());
        let options = TcpOptions::parse(segment.options(buffer.data()));
        let timestamps = options.timestamps.map(|(tsval, tsecr)| {
            (
                tsval.wrapping_add(values.tsval_shift),
                tsecr.wrapping_sub(values.tsecr_shift),
            )
        });
        let payload = segment.payload(buffer.data());
        let (seq, ack) = (SeqNum(values.seq), SeqNum(values.ack));
        let control = Control::new(seq, ack, TcpFlags::empty(), values.window).timed(timestamps);
        let room = usize::from(mss).saturating_sub(control.options.encoded_len(0)).max(1);
        let pieces = payload.len().div_ceil(room);
        for (index, piece) in payload.chunks(room).enumerate() {
            if !has_room_for_data(out) {
                // The client has no ACK for the rest, and repeats it.
                return self.emit.dropped(DropReason::NoRoom);
            }
            let is_last = index + 1 == pieces;
            let mut flags =
                segment.flags & (TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN | TcpFlags::ECE | TcpFlags::CWR);
            if !is_last {
                flags.remove(TcpFlags::PSH | TcpFlags::FIN);
            }
            // RFC 3168 6.1.2: CWR is in the first segment behind a reduction.
            if index > 0 {
                flags.remove(TcpFlags::CWR);
            }
            let seq = seq + (index * room) as u32;
            let control = Control { seq, flags, ..control };
            match self.write_piece(path, &control, piece, class) {
                Ok(frame) => self.emit.pass(path.device, frame, out),
                Err(reason) => self.emit.dropped(reason),
            }
        }
    }

    /// A segment of our own in the place of a part of one with this traffic class, whose marks it has (RFC 3168 5).
    fn write_piece(
        &mut self,
        path: &Path,
        control: &Control,
        payload: &[u8],
        class: u8,
    ) -> Result<P::Buffer, DropReason> {
        let mut buffer = self.emit.pool.take().ok_or(DropReason::NoBuffer)?;
        let layout = (control.segment(path, payload))
            .emit_with(&mut buffer, path.checksums)
            .map_err(|_| DropReason::NoBuffer)?;
        let packet = (buffer.data_mut().get_mut(usize::from(layout.l3)..)).ok_or(DropReason::NoBuffer)?;
        match layout.version {
            IpVersion::V4 => {
                let mut header = Ipv4Header(packet.first_chunk_mut().ok_or(DropReason::NoBuffer)?);
                header.set_traffic_class(class);
                if path.checksums == Checksums::Software {
                    header.fill_checksum();
                }
            }
            IpVersion::V6 => {
                Ipv6Header(packet.first_chunk_mut().ok_or(DropReason::NoBuffer)?).set_traffic_class(class);
            }
        }
        Ok(buffer)
    }

    /// Tells the client the MTU with which its segments have the MSS that the server takes.
    fn tell_mtu(
        &mut self,
        connection: &mut Connection,
        incoming: &Incoming<P::Buffer>,
        mss: u16,
        out: &mut impl Output<P::Buffer>,
    ) {
        // Below these nobody believes it (RFC 791, RFC 8200 5), and the pieces have to do.
        let version = incoming.segment.layout.version;
        let mtu = mss.saturating_add(version.header_len_with_tcp());
        if mtu >= version.min_mtu() {
            self.send_too_big(Some((connection, Side::Client)), incoming, u32::from(mtu), out);
        }
    }
}

/// What the client was told stays true: its bytes are acknowledged, and the right edge of the window does not move.
fn hold_up(values: &mut Rewrite, offsets: &Offsets, window: u16, by: u32) {
    values.ack = values.ack.wrapping_add(by);
    let window = (u32::from(window) << offsets.scale.server).saturating_sub(by);
    values.window = (window >> offsets.scale.advertised).min(0xffff) as u16;
    // RFC 2018 8: blocks below the ACK would say nothing, and those above it may lie inside what the engine retransmits.
    values.blank_sack = true;
}

/// The constant differences of a connection, open or resting.
#[derive(Clone, Copy)]
pub(super) struct Offsets {
    client: u32,
    server: u32,
    client_tsval: u32,
    server_tsval: u32,
    scale: WindowScale,
    blank_sack: bool,
}

impl Offsets {
    #[inline(always)]
    pub(super) fn of(spliced: &Spliced) -> Self {
        Offsets {
            client: spliced.client_seq_offset,
            server: spliced.server_seq_offset,
            client_tsval: spliced.client_ts_offset,
            server_tsval: spliced.server_ts_offset,
            scale: spliced.scale,
            blank_sack: spliced.flags.contains(SplicedFlags::BLANK_SACK),
        }
    }

    pub(super) fn of_time_wait(rested: &TimeWaitEntry) -> Self {
        Offsets {
            client: rested.client_seq_offset,
            server: rested.server_seq_offset,
            client_tsval: rested.client_ts_offset,
            server_tsval: rested.server_ts_offset,
            scale: rested.scale,
            blank_sack: rested.late != Late::Whole,
        }
    }

    /// The values that a segment of `from` gets on its way to the other side.
    #[inline(always)]
    pub(super) fn rewrite(&self, from: Side, segment: &Segment, path: &Path, ip_id: u16) -> Rewrite {
        let (own, peer, own_tsval, peer_tsval) = match from {
            Side::Client => (self.client, self.server, self.client_tsval, self.server_tsval),
            Side::Server => (self.server, self.client, self.server_tsval, self.client_tsval),
        };
        Rewrite {
            source_mac: path.source_mac,
            destination_mac: path.destination_mac,
            source: path.source,
            destination: path.destination,
            source_port: path.source_port,
            destination_port: path.destination_port,
            seq: (segment.seq + own).0,
            ack: (segment.ack - peer).0,
            window: match from {
                Side::Client => self.scale.to_server(segment.window),
                Side::Server => self.scale.to_client(segment.window),
            },
            tsval_shift: own_tsval,
            tsecr_shift: peer_tsval,
            sack_shift: peer,
            blank_sack: self.blank_sack && from == Side::Client,
            ip_id,
        }
    }
}
