//! Segments of spliced and resting connections on their way through, and what we owe to the server.

use super::{Scene, cutting};
use crate::callbacks::SelectServer;
use crate::proxy::action::Action;
use crate::proxy::connection::{Connection, Spliced, Stage, WindowScale};
use crate::proxy::crossing;
use crate::proxy::drop_reason::DropReason;
use crate::proxy::event::{Event, Side};
use crate::proxy::icmp;
use crate::proxy::log::Fin;
use crate::proxy::owed::{self, Payment};
use crate::proxy::phase::{Half, Phase};
use crate::proxy::quarantine::Rested;
use crate::proxy::segment::Segment;
use crate::proxy::send::{self};
use crate::proxy::step::step;
use crate::proxy::table::FlowRef;
use crate::proxy::translate::{self, Rewrite};
use crate::proxy::{Incoming, NextHops, Outbox, Proxy};
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::counters::TcpCounter;
use netfcts::record::{RecordFlags, State};
use netfcts::seq::SeqNum;

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// Looks after what we owe, now that the server has acknowledged `ack` with these timestamps; `pure` is set when its
    /// segment says nothing else.
    fn settle_debt(
        &mut self,
        now: Instant,
        slot: u32,
        (ack, pure): (SeqNum, bool),
        timestamps: Option<(u32, u32)>,
        out: &mut impl Outbox<P::Buffer>,
    ) -> Settlement {
        let index = self
            .connections
            .get(slot)
            .and_then(Connection::spliced)
            .map(|spliced| spliced.owed);
        let Some(debt) = index.and_then(|index| self.owed.get_mut(index)) else {
            return Settlement::Nothing;
        };
        let floor = debt.end;
        debt.note_timestamps(timestamps);
        // The client has never seen our header: an ACK of nothing else is news to nobody.
        let is_news = !(pure && debt.is_header_only() && ack.le(floor));
        match debt.note_ack(ack, pure, now.as_millis() as u32) {
            Payment::Full => self.forgive_debt(slot),
            Payment::Repeat => self.send_owed(slot, out),
            Payment::Progress => self.arm_spliced(now, slot),
            Payment::Open => {}
        }
        match is_news {
            false => Settlement::NoNews,
            true if ack.lt(floor) => Settlement::HeldUp(floor),
            true => Settlement::Nothing,
        }
    }

    /// True if the segment pays for all that is owed, and says nothing that its receiver must not hear of.
    #[inline]
    fn pays_all(&self, slot: u32, from: Side, scene: &Scene<P::Buffer>) -> bool {
        let (Some(incoming), Some(spliced)) = (
            &scene.incoming,
            self.connections.get(slot).and_then(Connection::spliced),
        ) else {
            return false;
        };
        let ack = spliced.ack_for_peer(from, incoming.segment.ack);
        // An ACK of what was never sent pays nothing.
        from == Side::Server
            && ack.le(spliced.to_server.end)
            && self.owed.get(spliced.owed).is_some_and(|debt| debt.is_paid_by(ack))
    }

    pub(in crate::proxy) fn forgive_debt(&mut self, slot: u32) {
        let Some(spliced) = self.spliced_mut(slot) else { return };
        let index = std::mem::replace(&mut spliced.owed, owed::NOTHING);
        if let Some(mut held) = self.owed.forget(index) {
            self.held.close(&mut held);
        }
    }

    pub(in crate::proxy) fn repeat_owed(&mut self, now: Instant, slot: u32, out: &mut impl Outbox<P::Buffer>) {
        let Some(index) = self
            .connections
            .get(slot)
            .and_then(Connection::spliced)
            .map(|spliced| spliced.owed)
        else {
            return;
        };
        self.repeat_kept(now, slot, out);
        if let Some(debt) = self.owed.get_mut(index) {
            debt.note_timeout(now.as_millis() as u32);
            self.log.flag(slot, RecordFlags::RETRANSMITTED);
            self.send_owed(slot, out);
        }
        self.arm_spliced(now, slot);
    }

    /// True if a segment of the client that begins at `seq` has bytes before its first one, where our header stands in the
    /// server's numbering, while the server has not acknowledged that.
    fn begins_before_debt(&self, slot: u32, seq: SeqNum) -> bool {
        let index = self.connections.get(slot).and_then(Connection::spliced);
        let debt = index.and_then(|spliced| self.owed.get(spliced.owed));
        debt.is_some_and(|debt| seq.lt(debt.first) && debt.next().lt(debt.first))
    }

    /// True if a segment of the client that begins at `seq` repeats its first bytes, while the server has not
    /// acknowledged the header before them.
    fn repeats_first_bytes(&mut self, slot: u32, seq: SeqNum) -> bool {
        let index = self.connections.get(slot).and_then(Connection::spliced);
        let Some(debt) = index.and_then(|spliced| self.owed.get_mut(spliced.owed)) else {
            return false;
        };
        seq == debt.first && debt.next().lt(debt.first) && std::mem::replace(&mut debt.first_bytes_sent, true)
    }

    /// Sends what is owed and unacknowledged: at most the window that every server was promised to take.
    fn send_owed(&mut self, slot: u32, out: &mut impl Outbox<P::Buffer>) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let Some(spliced) = connection.spliced() else { return };
        let Some((debt, header)) = self.owed.with_header(spliced.owed) else {
            return;
        };
        let path = match send::path_to_server(&self.settings, &self.neighbours, connection) {
            Ok(path) => path,
            Err(reason) => return self.drops.add(reason, 1),
        };
        let mut control = self.current_numbers(connection, Side::Server);
        control.options = send::timestamps(debt.timestamps);
        control.flags = TcpFlags::ACK | TcpFlags::PSH;
        let header_len = header.len();
        let start = debt.first - header_len as u32;
        let done = (debt.next() - start).max(0) as usize;
        let owed_bytes = (debt.end - debt.first).max(0) as usize;
        let header = header.get(done.min(header_len)..).unwrap_or_default();
        let held = self.held.in_order(debt.held);
        let bytes = held
            .get(done.saturating_sub(header_len)..owed_bytes)
            .unwrap_or_default();
        let mss = usize::from(debt.mss.max(1));
        let mut at = debt.next();
        for payload in header.chunks(mss).chain(bytes.chunks(mss)) {
            control.seq = at + spliced.client_shift;
            if let Err(reason) = send::emit_into(&mut self.pool, None, &path, &control, payload, out) {
                self.drops.add(reason, 1);
            }
            at += payload.len() as u32;
        }
    }

    /// Passes on a segment that changes nothing but numbers.
    #[inline]
    pub(in crate::proxy) fn forward_plain(
        &mut self,
        now: Instant,
        slot: u32,
        from: Side,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) {
        self.log
            .count_passed(from, incoming.segment.payload_len() > 0, None, false);
        let mut scene = Scene::with(incoming);
        self.forward(now, slot, from, &mut scene, out);
    }

    /// Passes on a segment that its receiver will not take, but answer (RFC 9293 3.10.7.4, first): an end that has lost count
    /// learns the numbers so. A stranger who makes up segments makes both ends answer, so there is a limit (RFC 5961 7).
    pub(in crate::proxy) fn forward_rarely(
        &mut self,
        now: Instant,
        slot: u32,
        from: Side,
        scene: &mut Scene<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) {
        if self.doubtful.take(now) {
            return self.forward(now, slot, from, scene, out);
        }
        if scene.incoming.take().is_some() {
            self.drops.add(DropReason::OutOfWindow, 1);
        }
    }

    /// Passes a segment on.
    #[inline(never)]
    pub(in crate::proxy) fn forward(
        &mut self,
        now: Instant,
        slot: u32,
        from: Side,
        scene: &mut Scene<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let Stage::Spliced(spliced) = &connection.stage else {
            return;
        };
        let Some(incoming) = &mut scene.incoming else { return };
        let segment = incoming.segment;
        let is_special = spliced.owed != owed::NOTHING
            || spliced.promised_more
            || from == Side::Client && cutting::is_too_long(segment, spliced.server_mss);
        if is_special {
            return self.forward_with_care(now, slot, from, scene, out);
        }
        let ends = send::Ends::from(&*connection);
        let path = match from {
            Side::Client => send::way_to_server(&self.settings, &self.neighbours, ends),
            Side::Server => Ok(send::way_to_client(&self.settings, ends)),
        };
        let path = match path {
            Ok(path) => path,
            Err(reason) => {
                scene.incoming = None;
                return self.drops.add(reason, 1);
            }
        };
        if path.version() != segment.layout.version || icmp::is_too_big(segment, path.mtu) {
            return self.forward_with_care(now, slot, from, scene, out);
        }
        self.ip_id = self.ip_id.wrapping_add(1);
        let values = Shifts::of(spliced).rewrite(from, segment, &path, self.ip_id);
        let payload_len = u64::from(segment.payload_len());
        let rewritten = translate::rewrite_here(incoming.buffer.data_mut(), segment.layout, &values);
        let Some(Incoming { buffer, .. }) = scene.incoming.take() else {
            return;
        };
        if let Err(reason) = rewritten {
            return self.drops.add(reason, 1);
        }
        match from {
            Side::Client => connection.bytes_to_server += payload_len,
            Side::Server => connection.bytes_to_client += payload_len,
        }
        out.send(path.device, buffer);
    }

    /// As [`Proxy::forward`], for connections that owe something or have promised too much, for segments that must be cut
    /// or refused because they are too long, and between the two versions of IP.
    #[inline(never)]
    fn forward_with_care(
        &mut self,
        now: Instant,
        slot: u32,
        from: Side,
        scene: &mut Scene<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) {
        if self.pays_all(slot, from, scene) {
            // By far the most debts: the server's first segment pays, and passes like any other.
            self.forgive_debt(slot);
            return self.forward(now, slot, from, scene, out);
        }
        let Some(mut incoming) = scene.incoming.take() else {
            return;
        };
        let segment = incoming.segment;
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let Some(spliced) = connection.spliced() else { return };
        let payload_len = segment.payload_len();
        let shifts = Shifts::of(spliced);
        let server_mss = spliced.server_mss;
        let ack = spliced.ack_for_peer(from, segment.ack);
        let path = match from {
            Side::Client => send::path_to_server(&self.settings, &self.neighbours, connection),
            Side::Server => Ok(send::path_to_client(&self.settings, connection)),
        };
        let path = match path {
            Ok(path) => path,
            Err(reason) => return self.drops.add(reason, 1),
        };
        // An ACK of what was never sent pays nothing.
        let pays = spliced.owed != owed::NOTHING && from == Side::Server && ack.le(spliced.to_server.end);
        let has_debt = spliced.owed != owed::NOTHING;
        let promised_more = spliced.promised_more;
        let mut values = shifts.rewrite(from, segment, &path, self.next_ip_id());
        if has_debt && from == Side::Client && payload_len > 0 {
            if self.begins_before_debt(slot, segment.seq) {
                // It repeats the header that it sent to us, in the place of ours, which the server may still lack.
                scene.incoming = Some(incoming);
                return self.challenge(now, slot, scene, out);
            }
            if self.repeats_first_bytes(slot, segment.seq) {
                // The client repeats its first bytes: what goes before them may be lost as well.
                self.send_owed(slot, out);
            }
        }
        if from == Side::Client && cutting::is_too_long(segment, server_mss) {
            return self.pass_in_pieces(slot, &incoming, (&values, server_mss), &path, out);
        }
        if pays {
            let pure = segment.len() == 0 && !segment.has(TcpFlags::RST);
            let said = TcpOptions::parse(segment.options(incoming.buffer.data())).timestamps;
            match self.settle_debt(now, slot, (ack, pure), said, out) {
                Settlement::Nothing => {}
                Settlement::NoNews => return self.drops.add(DropReason::Consumed, 1),
                Settlement::HeldUp(floor) => hold_up(&mut values, &shifts, segment.window, (floor - ack).max(0) as u32),
            }
        }
        if promised_more && from == Side::Server {
            self.keep_promise(slot, &mut values);
        }
        if let Err(reason) = self.pass(&mut incoming, &values, &path, out) {
            return self.drops.add(reason, 1);
        }
        if let Some(connection) = self.connections.get_mut(slot) {
            match from {
                Side::Client => connection.bytes_to_server += u64::from(payload_len),
                Side::Server => connection.bytes_to_client += u64::from(payload_len),
            }
        }
        out.send(path.device, incoming.buffer);
    }

    /// RFC 9293 3.8.6: a receiver should not move the right edge of its window to the left, and the client takes us for one.
    /// So until the server's own window reaches as far as was promised on its behalf, the promise is repeated. What the
    /// client sends too far the server refuses, and the client sends it again.
    fn keep_promise(&mut self, slot: u32, values: &mut Rewrite) {
        let Some(spliced) = self.spliced_mut(slot) else { return };
        let told = (spliced.to_server.edge - SeqNum(values.ack)).max(0) as u32;
        let told = (told >> spliced.scale.promised).min(0xffff) as u16;
        if values.window >= told {
            spliced.promised_more = false;
        } else {
            values.window = told;
        }
    }

    /// Asks who has sent a RST that proves nothing whether it is still there: if it is not, its answer is a RST that does,
    /// and if it is, an ACK (RFC 1122 4.2.3.6, a keep-alive). So a connection whose RST has overtaken lost data ends soon,
    /// and one about which a stranger has guessed does not.
    pub(in crate::proxy) fn probe(&mut self, now: Instant, slot: u32, whom: Side, out: &mut impl Outbox<P::Buffer>) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let Some(spliced) = connection.spliced() else { return };
        let path = match whom {
            Side::Client => Ok(send::path_to_client(&self.settings, connection)),
            Side::Server => send::path_to_server(&self.settings, &self.neighbours, connection),
        };
        let Ok(path) = path else { return };
        let (flow, shift) = match whom {
            Side::Client => (spliced.to_client, spliced.server_shift),
            Side::Server => (spliced.to_server, spliced.client_shift),
        };
        let mut control = self.current_numbers(connection, whom);
        control.seq = flow.acknowledged + shift - 1;
        if self.answers.take(now) {
            self.emit(None, &path, &control, &[], out);
        }
    }

    /// Which leg a segment came by: its source is the client, or it is the server.
    pub(in crate::proxy) fn side_of(&self, connection: &Connection, segment: &Segment) -> Side {
        let is_client = segment.key.remote_port == connection.client_port
            && segment.key.local_port == connection.listener_port
            && segment.key.remote == connection.client_address()
            && segment.key.local == self.settings.addresses.value(connection.listener_address);
        if is_client { Side::Client } else { Side::Server }
    }

    pub(in crate::proxy) fn pass(
        &mut self,
        incoming: &mut Incoming<P::Buffer>,
        values: &Rewrite,
        path: &send::Path,
        out: &mut impl Outbox<P::Buffer>,
    ) -> Result<(), DropReason> {
        let layout = incoming.segment.layout;
        if self.tell_too_big(incoming, path, out) {
            return Err(DropReason::TooBig);
        }
        if path.version() != layout.version {
            return crossing::rewrite(&mut incoming.buffer, &layout, values);
        }
        translate::rewrite(incoming.buffer.data_mut(), &layout, values)
    }

    /// Tells the sender of a segment that does not fit the link it must leave by. Returns true if that is so.
    #[inline]
    pub(super) fn tell_too_big(
        &mut self,
        incoming: &Incoming<P::Buffer>,
        path: &send::Path,
        out: &mut impl Outbox<P::Buffer>,
    ) -> bool {
        let layout = incoming.segment.layout;
        let mtu = self.settings.devices[usize::from(path.device.0)].mtu;
        let told = if path.version() == layout.version {
            icmp::is_too_big(incoming.segment, mtu).then_some(u32::from(mtu))
        } else {
            // The other leg has the other version of IP.
            let is_too_big = crossing::packet_len(&layout) > u32::from(mtu);
            is_too_big.then(|| crossing::mtu_for(layout.version, u32::from(mtu)))
        };
        let Some(mtu) = told else { return false };
        self.send_too_big(self.last_now, incoming, mtu, out);
        true
    }

    pub(in crate::proxy) fn next_ip_id(&mut self) -> u16 {
        self.ip_id = self.ip_id.wrapping_add(1);
        self.ip_id
    }

    /// RFC 5961 4.2 and 7: an ACK of the present numbers, within the limit for strangers.
    pub(in crate::proxy) fn challenge(
        &mut self,
        now: Instant,
        slot: u32,
        scene: &mut Scene<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) {
        let Some(Incoming { buffer, segment }) = scene.incoming.take() else {
            return;
        };
        if !self.answers.take(now) {
            return self.drops.add(DropReason::RateLimited, 1);
        }
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let to = self.side_of(connection, segment);
        let mut control = self.current_numbers(connection, to);
        // Its echo is the newest of our timestamps that it has seen, so that ours is not older (RFC 7323 5.3). A SYN
        // echoes nothing, and gets none.
        let options = TcpOptions::parse(segment.options(buffer.data()));
        control.options = send::timestamps(
            options
                .timestamps
                .filter(|&(_, echo)| echo != 0)
                .map(|(val, ecr)| (ecr, val)),
        );
        let path = self.path_back(segment);
        self.log.count(to, TcpCounter::Unexpected);
        self.log.count(to, TcpCounter::SentAck);
        self.emit(Some(buffer), &path, &control, &[], out);
    }

    /// Counts and records the closing of the halves.
    #[inline(never)]
    pub(in crate::proxy) fn note_close(
        &mut self,
        now: Instant,
        slot: u32,
        before: Phase,
        from: Side,
        (fin, acknowledges_fin): (bool, bool),
        incoming: Option<&Incoming<P::Buffer>>,
    ) {
        let Phase::Spliced { client, server } = before else {
            return;
        };
        let (own, peer) = match from {
            Side::Client => (client, server),
            Side::Server => (server, client),
        };
        let is_news = fin && own == Half::Open;
        let which = match (fin, peer) {
            (false, _) => None,
            (true, Half::Open) => Some(Fin::First),
            (true, Half::FinSent | Half::FinAcknowledged) => Some(Fin::Second),
        };
        let payload = incoming.is_some_and(|incoming| incoming.segment.payload_len() > 0);
        self.log
            .count_passed(from, payload, which.filter(|_| is_news), acknowledges_fin);
        if is_news {
            let state = match peer {
                Half::Open => State::FinWait1,
                Half::FinSent if !acknowledges_fin => State::Closing,
                Half::FinSent | Half::FinAcknowledged => State::LastAck,
            };
            self.log.state(slot, from, state, now);
        }
        if acknowledges_fin && peer == Half::FinSent && own == Half::Open && !fin {
            self.log.state(slot, from.peer(), State::FinWait2, now);
            self.log.state(slot, from, State::CloseWait, now);
        }
    }

    /// A segment of a resting connection.
    pub(in crate::proxy) fn drive_quarantined(
        &mut self,
        flow: FlowRef,
        event: Event,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) {
        for action in step(Phase::Quarantine, event).actions {
            match action {
                Action::Forward => return self.forward_rested(flow, incoming, out),
                Action::Drop(reason) => return self.drops.add(*reason, 1),
                _ => {}
            }
        }
        self.drops.add(DropReason::UnknownFlow, 1);
    }

    pub(in crate::proxy) fn forward_rested(
        &mut self,
        flow: FlowRef,
        mut incoming: Incoming<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) {
        let Some(rested) = self.quarantine.entry(flow.slot()).copied() else {
            return;
        };
        let from = flow.side();
        // The other leg's addresses and ports may be a new connection's by now. Its numbers can be near the old ones,
        // cookies of one slot always are: nothing of the old one may reach it.
        let is_alone = match from {
            Side::Client => !rested.legs.server,
            Side::Server => !rested.legs.client,
        };
        if is_alone {
            return self.drops.add(DropReason::UnknownFlow, 1);
        }
        let path = match from {
            Side::Client => send::path_to_server(&self.settings, &self.neighbours, &rested),
            Side::Server => Ok(send::path_to_client(&self.settings, &rested)),
        };
        let path = match path {
            Ok(path) => path,
            Err(reason) => return self.drops.add(reason, 1),
        };
        let id = self.next_ip_id();
        let values = Shifts::of_rested(&rested).rewrite(from, incoming.segment, &path, id);
        match self.pass(&mut incoming, &values, &path, out) {
            Ok(()) => out.send(path.device, incoming.buffer),
            Err(reason) => self.drops.add(reason, 1),
        }
    }
}

/// What an open debt does to a segment of the server.
enum Settlement {
    /// Nothing.
    Nothing,
    /// The client has been told more: up to here.
    HeldUp(SeqNum),
    /// The segment acknowledges only what the client knows nothing of.
    NoNews,
}

/// What the client was told stays true: its bytes are acknowledged, and the right edge of the window does not move.
fn hold_up(values: &mut Rewrite, shifts: &Shifts, window: u16, by: u32) {
    values.ack = values.ack.wrapping_add(by);
    let window = (u32::from(window) << shifts.scale.server).saturating_sub(by);
    values.window = (window >> shifts.scale.promised).min(0xffff) as u16;
    // RFC 2018 8: blocks below the ACK would say nothing, and those above it may lie inside what we owe.
    values.blank_sack = true;
}

/// The constant differences of a connection, open or resting.
#[derive(Clone, Copy)]
pub(super) struct Shifts {
    client: u32,
    server: u32,
    client_tsval: u32,
    server_tsval: u32,
    scale: WindowScale,
    blank_sack: bool,
}

impl Shifts {
    #[inline(always)]
    pub(super) fn of(spliced: &Spliced) -> Self {
        Shifts {
            client: spliced.client_shift,
            server: spliced.server_shift,
            client_tsval: spliced.client_tsval_shift,
            server_tsval: spliced.server_tsval_shift,
            scale: spliced.scale,
            blank_sack: spliced.blank_sack,
        }
    }

    fn of_rested(rested: &Rested) -> Self {
        Shifts {
            client: rested.client_shift,
            server: rested.server_shift,
            client_tsval: rested.client_tsval_shift,
            server_tsval: rested.server_tsval_shift,
            scale: rested.scale,
            blank_sack: rested.blank_sack,
        }
    }

    /// The values that a segment of `from` gets on its way to the other side.
    #[inline(always)]
    pub(super) fn rewrite(&self, from: Side, segment: &Segment, path: &send::Path, ip_id: u16) -> Rewrite {
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
