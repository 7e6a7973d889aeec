//! Carrying out what [`step`](super::step::step) asks for: the only place that changes a connection.

use super::action::Action;
use super::close::Flow;
use super::connection::{Connection, NO_SERVER, Opening, Spliced, Stage, WindowScale};
use super::drop_reason::DropReason;
use super::event::{Event, Side};
use super::held::{self, HeldId, HoldError};
use super::log::Fin;
use super::owed::{self, Owed, Payment};
use super::phase::{Half, Phase};
use super::quarantine::Rested;
use super::segment::{Segment, address_of};
use super::send::{self, Control};
use super::step::step;
use super::table::{FlowKey, FlowRef};
use super::translate::{self, Rewrite};
use super::{Incoming, NextHops, Outbox, Proxy};
use crate::callbacks::{FirstPayload, SelectServer, Selection};
use crate::config::{ListenerId, PoolId, ServerId};
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::frame::IpVersion;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::counters::TcpCounter;
use netfcts::record::{Cause, RecordFlags, State};
use netfcts::seq::SeqNum;
use std::net::SocketAddr;
use std::time::Duration;

/// How long the client's last ACK is waited for when it left without a word.
const LAST_ACK_WAIT: Duration = Duration::from_secs(4);

/// What the actions of one event share.
pub(super) struct Scene<B> {
    /// The segment that caused it, until an action has used it up.
    pub incoming: Option<Incoming<B>>,
    /// What [`Action::Splice`] leaves for the actions after it.
    handoff: Option<Handoff>,
}

/// The end of the handshake: what is needed once more and then never again.
#[derive(Clone, Copy)]
struct Handoff {
    opening: Opening,
    mss: u16,
    timestamps: Option<(u32, u32)>,
    ack: SeqNum,
    window: u16,
}

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// Lets `event` happen to the connection in `slot`, and whatever follows from it.
    pub(super) fn drive(
        &mut self,
        now: Instant,
        slot: u32,
        event: Event,
        incoming: Option<Incoming<P::Buffer>>,
        out: &mut impl Outbox<P::Buffer>,
    ) {
        let mut scene = Scene {
            incoming,
            handoff: None,
        };
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let Some(connection) = self.connections.get_mut(slot) else {
                break;
            };
            let before = connection.phase;
            let transition = step(before, event);
            connection.phase = transition.next;
            if let Event::Segment {
                from,
                fin,
                acknowledges_fin,
            } = event
            {
                self.note_close(
                    now,
                    slot,
                    before,
                    from,
                    (fin, acknowledges_fin),
                    scene.incoming.as_ref(),
                );
            }
            for &action in transition.actions {
                if let Some(follows) = self.apply(now, slot, (action, event), &mut scene, out) {
                    next = Some(follows);
                    break;
                }
            }
            if before != transition.next && before.is_spliced() {
                self.arm_spliced(now, slot);
            }
        }
        if scene.incoming.is_some() {
            self.drops.add(DropReason::Consumed, 1);
        }
    }

    fn apply(
        &mut self,
        now: Instant,
        slot: u32,
        (action, event): (Action, Event),
        scene: &mut Scene<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) -> Option<Event> {
        match action {
            Action::Hold => return self.hold(slot, scene, out),
            Action::AskSelector => return self.ask_selector(now, slot),
            Action::AcknowledgeHeld => self.acknowledge_held(slot, scene, out),
            Action::ConnectServer => return self.connect_server(now, slot, out),
            Action::RepeatSyn => self.send_syn(now, slot, true, out),
            Action::NextServer => return self.next_server(now, slot, event),
            Action::ResetStaleServer => self.reset_stale(scene, out),
            Action::Splice => return self.splice(now, slot, scene),
            Action::AcknowledgeServer => self.acknowledge_server(now, slot, scene, out),
            Action::SendHeld => return self.send_held(now, slot, scene, out),
            Action::SendOwed => self.repeat_owed(now, slot, out),
            Action::Forward => {
                if let Event::Segment { from, .. } | Event::Reset(from) | Event::DoubtfulReset(from) = event {
                    self.forward(now, slot, from, scene, out);
                }
            }
            Action::CloseClient => self.close_client(now, slot, scene, out),
            Action::ChallengeAck => self.challenge(now, slot, scene, out),
            Action::ResetClient => self.reset(slot, Side::Client, out),
            Action::ResetServer => self.reset(slot, Side::Server, out),
            Action::Quarantine(cause) => {
                let cause = self.cause_of_silence(slot, cause);
                self.end(now, slot, cause, scene);
            }
            Action::Forget(cause) => self.end(now, slot, cause, scene),
            Action::ForgetUnserved => {
                let cause = self
                    .opening_mut(slot)
                    .map_or(Cause::NoServer, |opening| opening.failure);
                self.end(now, slot, cause, scene);
            }
            Action::Drop(reason) => {
                if scene.incoming.take().is_some() {
                    self.drops.add(reason, 1);
                }
            }
            // These concern flows without a connection, which `meet_stranger` deals with.
            Action::SendCookie | Action::CreateConnection | Action::Refuse => {}
        }
        None
    }

    pub(super) fn opening_mut(&mut self, slot: u32) -> Option<&mut Opening> {
        match &mut self.connections.get_mut(slot)?.stage {
            Stage::Opening(opening) => Some(opening),
            Stage::Spliced(_) => None,
        }
    }

    fn spliced_mut(&mut self, slot: u32) -> Option<&mut Spliced> {
        match &mut self.connections.get_mut(slot)?.stage {
            Stage::Spliced(spliced) => Some(spliced),
            Stage::Opening(_) => None,
        }
    }

    // ---- before there is a server ----

    /// Keeps the client's bytes. The segment stays in the scene: an acknowledgement may use its memory.
    fn hold(&mut self, slot: u32, scene: &mut Scene<P::Buffer>, out: &mut impl Outbox<P::Buffer>) -> Option<Event> {
        let Incoming { buffer, segment } = scene.incoming.as_ref()?;
        let Some(Stage::Opening(opening)) = self.connections.get_mut(slot).map(|connection| &mut connection.stage)
        else {
            return None;
        };
        note_client(opening, buffer.data(), segment);
        let payload = segment.payload(buffer.data());
        // Bytes before the first one have been in no window of ours: what is left of the segment counts.
        let before = (opening.first_byte() - segment.seq).max(0) as usize;
        let fresh = payload.get(before..).unwrap_or_default();
        let offset = (segment.seq + before as u32 - opening.first_byte()).max(0) as usize;
        if segment.has(TcpFlags::FIN) {
            let end = offset + fresh.len();
            opening.fin_offset = u16::try_from(end).unwrap_or(Opening::NO_FIN);
        }
        // RFC 9293 3.4: bytes beyond our window are not taken; the client sends them again.
        let room = held::LARGE.saturating_sub(offset);
        let fresh = fresh.get(..fresh.len().min(room)).unwrap_or_default();
        let acknowledged_before = segment.end().le(opening.acknowledged);
        let refused = match self.held.insert(&mut opening.held, offset, fresh) {
            Ok(_) => None,
            Err(HoldError::Exhausted) => Some(DropReason::HeldFull),
            Err(HoldError::BeyondWindow) => Some(DropReason::OutOfWindow),
            Err(HoldError::TooManyHoles) => Some(DropReason::TooManyHoles),
        };
        if let Some(reason) = refused {
            self.drops.add(reason, 1);
            scene.incoming = None;
            // Nothing new for the selector.
            return None;
        }
        // Our acknowledgement was lost: the client repeats what it no longer owes.
        let waits_for_server = self
            .connections
            .get(slot)
            .is_some_and(|c| c.phase == Phase::ServerHandshake);
        if acknowledged_before && waits_for_server {
            self.acknowledge_held(slot, scene, out);
        }
        None
    }

    fn ask_selector(&mut self, now: Instant, slot: u32) -> Option<Event> {
        let connection = self.connections.get_mut(slot)?;
        let Stage::Opening(opening) = &mut connection.stage else {
            return None;
        };
        let bytes = self.held.in_order(opening.held);
        let complete = bytes.len() == usize::from(opening.fin_offset) || bytes.len() >= held::LARGE;
        if bytes.is_empty() && !complete {
            return None;
        }
        let payload = FirstPayload::new(
            SocketAddr::new(address_of(connection.client_address()), connection.client_port),
            SocketAddr::new(
                address_of(self.settings.addresses.value(connection.listener_address)),
                connection.listener_port,
            ),
            ListenerId(connection.listener),
            bytes,
            complete,
        );
        let Stage::Opening(opening) = &mut connection.stage else {
            return None;
        };
        let (server, pool) = match self.selector.select(&payload) {
            Selection::Server(server) => (server, Opening::NO_POOL),
            Selection::Pool(pool) => (self.backends.pick(pool), pool.0),
            Selection::NeedMore if !complete => {
                self.log.flag(slot, RecordFlags::NEED_MORE);
                return Some(Event::NeedMore);
            }
            Selection::NeedMore | Selection::Reject => return Some(Event::Rejected),
        };
        // A selector of the user's may name what does not exist.
        if usize::from(server.0) >= self.settings.servers.len() {
            return Some(Event::Rejected);
        }
        opening.pool = pool;
        connection.server = server.0;
        self.log.state(slot, Side::Client, State::Payload, now);
        Some(Event::Selected)
    }

    fn acknowledge_held(&mut self, slot: u32, scene: &mut Scene<P::Buffer>, out: &mut impl Outbox<P::Buffer>) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let Stage::Opening(opening) = &mut connection.stage else {
            return;
        };
        let in_order = self.held.in_order(opening.held).len();
        opening.acknowledged = opening.first_byte() + in_order as u32;
        let window = send::opening_window(opening);
        let (seq, ack) = (opening.cookie + 1, opening.acknowledged);
        let timestamps = opening.timestamps.then_some(opening.client_tsval);
        let path = send::path_to_client(&self.settings, &*connection);
        let options = send::timestamps(timestamps.map(|echo| (self.timestamp(self.last_now), echo)));
        let control = Control {
            seq,
            ack,
            flags: TcpFlags::ACK,
            window,
            options,
        };
        let memory = scene.incoming.take().map(|incoming| incoming.buffer);
        self.log.count(Side::Client, TcpCounter::SentAck);
        self.emit(memory, &path, &control, &[], out);
    }

    fn close_client(
        &mut self,
        now: Instant,
        slot: u32,
        scene: &mut Scene<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) {
        let Some(incoming) = scene.incoming.take() else { return };
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let Stage::Opening(opening) = &mut connection.stage else {
            return;
        };
        opening.acknowledged = incoming.segment.end();
        note_client(opening, incoming.buffer.data(), &incoming.segment);
        let timestamps = opening.timestamps.then_some(opening.client_tsval);
        let (seq, ack, window) = (opening.cookie + 1, opening.acknowledged, send::opening_window(opening));
        let path = send::path_to_client(&self.settings, &*connection);
        let options = send::timestamps(timestamps.map(|echo| (self.timestamp(now), echo)));
        let control = Control {
            seq,
            ack,
            flags: TcpFlags::FIN | TcpFlags::ACK,
            window,
            options,
        };
        self.log.count(Side::Client, TcpCounter::RecvFin);
        self.log.count(Side::Client, TcpCounter::SentFinPssv);
        self.log.state(slot, Side::Client, State::FinWait1, now);
        self.wheel.arm(slot, now + LAST_ACK_WAIT);
        self.emit(Some(incoming.buffer), &path, &control, &[], out);
    }

    // ---- the server's handshake ----

    fn connect_server(&mut self, now: Instant, slot: u32, out: &mut impl Outbox<P::Buffer>) -> Option<Event> {
        let connection = self.connections.get_mut(slot)?;
        let server = usize::from(connection.server);
        let Stage::Opening(opening) = &mut connection.stage else {
            return None;
        };
        let settings = self.settings.servers.get(server)?;
        // Addresses take turns, so that each has its ports rest as long as possible.
        let locals = settings.locals.len();
        let start = self.next_local[server];
        let taken = (0..locals)
            .map(|i| (start + i) % locals)
            .find_map(|local| self.ports[server][local].take(now).map(|taken| (local, taken)));
        let Some((local, taken)) = taken else {
            opening.failure = Cause::NoPort;
            return Some(Event::NoPort);
        };
        self.next_local[server] = (local + 1) % locals;
        if taken.early {
            self.log.flag(slot, RecordFlags::EARLY_PORT);
        }
        let local_address = settings.locals[local].address;
        let key = FlowKey {
            remote: settings.address,
            local: self.settings.addresses.value(local_address),
            remote_port: settings.port,
            local_port: taken.port,
        };
        // RFC 6528 3, and never behind what the server may remember of this port's last connection.
        let clock = self.isn.isn(
            now,
            (&key.local.to_be_bytes(), key.local_port),
            (&key.remote.to_be_bytes(), key.remote_port),
        );
        opening.server_side_isn = taken.last_use.map_or(clock, |last| clock.later(last.next_seq));
        // RFC 7323 5.5 and RFC 6191 2: nor may the timestamps go back.
        let behind = taken
            .last_use
            .map_or(0, |last| last.next_tsval.wrapping_sub(opening.client_tsval));
        opening.tsval_shift = if (behind as i32) > 0 { behind } else { 0 };
        opening.tries = 0;
        connection.local_address = local_address;
        connection.local_port = taken.port;
        let hash = self.table.hash(&key);
        self.free_key(hash, &key);
        if self.table.insert(hash, FlowRef::server(slot)).is_err() {
            // The table is sized for every connection's two legs; were it full, the next server would not help.
            self.drops.add(DropReason::TableFull, 1);
        }
        self.log.tried_server(slot);
        self.log.state(slot, Side::Server, State::SynReceived, now);
        self.send_syn(now, slot, false, out);
        None
    }

    /// Sends our SYN, with what was agreed with the client and no more, and waits for its answer.
    fn send_syn(&mut self, now: Instant, slot: u32, again: bool, out: &mut impl Outbox<P::Buffer>) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let Stage::Opening(opening) = &mut connection.stage else {
            return;
        };
        let Some(server) = self.settings.servers.get(usize::from(connection.server)) else {
            return;
        };
        opening.tries = opening.tries.saturating_add(1);
        let opening = *opening;
        let wait = super::timeout::syn_wait(server, opening.tries);
        self.wheel.arm(slot, now + wait);
        if again {
            self.log.flag(slot, RecordFlags::RETRANSMITTED);
        }
        let path = match send::path_to_server(&self.settings, &self.neighbours, &*connection) {
            Ok(path) => path,
            // The timer tries again; by then the neighbour may have answered.
            Err(reason) => return self.drops.add(reason, 1),
        };
        let headers = if path.envelope.dst_addr.is_ipv4() { 40 } else { 60 };
        let mtu = self.settings.devices[usize::from(path.device.0)].mtu;
        let control = Control {
            seq: opening.server_side_isn,
            ack: SeqNum(0),
            flags: TcpFlags::SYN,
            // RFC 7323 2.2: the window of a SYN is never scaled.
            window: opening.client_window_bytes().min(0xffff) as u16,
            options: TcpOptions {
                mss: Some(opening.agreed.mss.min(mtu - headers)),
                window_scale: opening.agreed.window_scale,
                sack_permitted: opening.agreed.sack,
                timestamps: opening
                    .timestamps
                    .then(|| (opening.client_tsval.wrapping_add(opening.tsval_shift), 0)),
            },
        };
        self.log.count(Side::Server, TcpCounter::SentSyn);
        self.emit(None, &path, &control, &[], out);
    }

    fn next_server(&mut self, now: Instant, slot: u32, event: Event) -> Option<Event> {
        self.release_port(now, slot, None);
        let connection = self.connections.get_mut(slot)?;
        let given_up = connection.server;
        let Stage::Opening(opening) = &mut connection.stage else {
            return None;
        };
        match event {
            Event::Reset(_) => opening.failure = Cause::ServerRefused,
            Event::TimedOut => opening.failure = Cause::ServerTimeout,
            _ => {}
        }
        let Some(place) = opening.tried.iter_mut().find(|tried| **tried == NO_SERVER) else {
            return Some(Event::NoServer);
        };
        *place = given_up;
        if opening.pool == Opening::NO_POOL || opening.tried.last() != Some(&NO_SERVER) {
            return Some(Event::NoServer);
        }
        let tried = opening.tried.map(ServerId);
        let next = self.backends.next_after(PoolId(opening.pool), &tried);
        let Some(next) = next else { return Some(Event::NoServer) };
        connection.server = next.0;
        Some(Event::Selected)
    }

    /// RFC 9293 3.10.7.3: `<SEQ=SEG.ACK><CTL=RST>`.
    fn reset_stale(&mut self, scene: &mut Scene<P::Buffer>, out: &mut impl Outbox<P::Buffer>) {
        let Some(Incoming { buffer, segment }) = scene.incoming.take() else {
            return;
        };
        let path = self.path_back(&segment);
        let control = Control {
            seq: segment.ack,
            ack: SeqNum(0),
            flags: TcpFlags::RST,
            window: 0,
            options: send::timestamps(None),
        };
        self.emit(Some(buffer), &path, &control, &[], out);
    }

    /// The server has accepted: from here on the two numberings are known, and their differences are all that is kept.
    fn splice(&mut self, now: Instant, slot: u32, scene: &mut Scene<P::Buffer>) -> Option<Event> {
        let Incoming { buffer, segment } = scene.incoming.as_ref()?;
        let options = TcpOptions::parse(segment.options(buffer.data()));
        let clock = self.timestamp(now);
        let connection = self.connections.get_mut(slot)?;
        let Stage::Opening(opening) = connection.stage else {
            return None;
        };
        let device = self.settings.servers.get(usize::from(connection.server))?.device;
        let headers = if segment.layout.version == IpVersion::V4 {
            40
        } else {
            60
        };
        let mtu = self.settings.devices[usize::from(device.0)].mtu;
        let first_byte = opening.first_byte();
        let server_window = u32::from(segment.window).max(u32::from(self.settings.promise.window));
        let server_tsval = options
            .timestamps
            .filter(|_| opening.timestamps)
            .map(|(tsval, _)| tsval);
        let scale = WindowScale {
            client: opening.agreed.window_scale.unwrap_or(0),
            // RFC 7323 2.2: both ends scale, or neither does.
            server: options
                .window_scale
                .filter(|_| opening.agreed.window_scale.is_some())
                .unwrap_or(0),
            promised: opening.promised_scale,
            server_scales: opening.agreed.window_scale.is_none() || options.window_scale.is_some(),
        };
        let spliced = Spliced {
            client_shift: (opening.server_side_isn - opening.client_isn) as u32,
            server_shift: (opening.cookie - segment.seq) as u32,
            client_tsval_shift: opening.tsval_shift,
            server_tsval_shift: server_tsval.map_or(0, |tsval| clock.wrapping_sub(tsval)),
            to_server: Flow::new(first_byte, server_window),
            to_client: Flow::new(segment.seq + 1, opening.client_window_bytes()),
            owed: owed::NOTHING,
            scale,
            blank_sack: opening.agreed.sack && !options.sack_permitted,
        };
        scene.handoff = Some(Handoff {
            opening,
            // RFC 6691 3: the MSS does not count options.
            mss: options.mss.unwrap_or(536).min(mtu - headers) - if opening.timestamps { 12 } else { 0 },
            timestamps: server_tsval.map(|tsval| (opening.client_tsval.wrapping_add(opening.tsval_shift), tsval)),
            ack: segment.seq + 1,
            window: scale.to_server(opening.client_window),
        });
        connection.stage = Stage::Spliced(spliced);
        self.log.count(Side::Server, TcpCounter::RecvSynAck);
        self.log.state(slot, Side::Server, State::Established, now);
        self.arm_spliced(now, slot);
        None
    }

    fn acknowledge_server(
        &mut self,
        now: Instant,
        slot: u32,
        scene: &mut Scene<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) {
        // A repetition is answered like any segment out of place: rate limited.
        let Some(handoff) = scene.handoff else {
            return self.challenge(now, slot, scene, out);
        };
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let path = match send::path_to_server(&self.settings, &self.neighbours, &*connection) {
            Ok(path) => path,
            Err(reason) => return self.drops.add(reason, 1),
        };
        let control = handoff.control(handoff.opening.first_byte(), TcpFlags::ACK);
        let memory = scene.incoming.take().map(|incoming| incoming.buffer);
        self.log.count(Side::Server, TcpCounter::SentSynAck2);
        self.emit(memory, &path, &control, &[], out);
    }

    /// Sends everything held, in segments that the server takes; what the client still owes is then forgotten here.
    fn send_held(
        &mut self,
        now: Instant,
        slot: u32,
        scene: &mut Scene<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) -> Option<Event> {
        let Handoff {
            mut opening,
            mss,
            timestamps,
            ..
        } = scene.handoff?;
        let handoff = scene.handoff?;
        let connection = self.connections.get_mut(slot)?;
        let path = match send::path_to_server(&self.settings, &self.neighbours, &*connection) {
            Ok(path) => path,
            Err(reason) => {
                self.drops.add(reason, 1);
                return None;
            }
        };
        let fin_at = (opening.fin_offset != Opening::NO_FIN).then_some(usize::from(opening.fin_offset));
        let mut fin_sent = false;
        for (start, run) in self.held.runs(opening.held) {
            connection.bytes_to_server += run.len() as u64;
            let end = start + run.len();
            for (index, payload) in run.chunks(usize::from(mss.max(1))).enumerate() {
                let at = start + index * usize::from(mss.max(1));
                let is_last = at + payload.len() == end;
                let mut flags = TcpFlags::ACK;
                flags.set(TcpFlags::PSH, is_last);
                flags.set(TcpFlags::FIN, is_last && fin_at == Some(end));
                fin_sent |= flags.contains(TcpFlags::FIN);
                let control = handoff.control(opening.first_byte() + at as u32, flags);
                self.log.count(Side::Server, TcpCounter::SentPayload);
                if let Err(reason) = send::emit_into(&mut self.pool, None, &path, &control, payload, out) {
                    self.drops.add(reason, 1);
                }
            }
            let Stage::Spliced(spliced) = &mut connection.stage else {
                return None;
            };
            let last = opening.first_byte() + end as u32 + u32::from(fin_at == Some(end));
            // The window was promised before it was known: what was held is sent whatever the server offers.
            spliced.to_server.edge = spliced.to_server.edge.later(last);
            spliced
                .to_server
                .note_sent(opening.first_byte() + start as u32, last, fin_at == Some(end));
        }
        if opening.acknowledged.gt(opening.first_byte()) {
            let debt = Owed::new(
                opening.held,
                opening.first_byte(),
                opening.acknowledged,
                mss,
                timestamps,
                now.as_millis() as u32,
            );
            if let Ok(index) = self.owed.insert(debt)
                && let Stage::Spliced(spliced) = &mut connection.stage
            {
                spliced.owed = index;
            }
            self.arm_spliced(now, slot);
        } else {
            self.held.close(&mut opening.held);
        }
        fin_sent.then_some(Event::Segment {
            from: Side::Client,
            fin: true,
            acknowledges_fin: false,
        })
    }

    // ---- after it ----

    /// Looks after what we owe: returns how ACKs towards the client are held up, if anything is open.
    fn settle_debt(
        &mut self,
        now: Instant,
        slot: u32,
        ack: SeqNum,
        pure: bool,
        out: &mut impl Outbox<P::Buffer>,
    ) -> Option<SeqNum> {
        let index = self.connections.get(slot)?.spliced()?.owed;
        let debt = self.owed.get_mut(index)?;
        let floor = debt.end;
        match debt.note_ack(ack, pure, now.as_millis() as u32) {
            Payment::Full => {
                self.forgive_debt(slot);
                return None;
            }
            Payment::Repeat => self.send_owed(slot, out),
            Payment::Open => {}
        }
        Some(floor)
    }

    fn forgive_debt(&mut self, slot: u32) {
        let Some(spliced) = self.spliced_mut(slot) else { return };
        let index = std::mem::replace(&mut spliced.owed, owed::NOTHING);
        if let Some(mut debt) = self.owed.remove(index) {
            self.held.close(&mut debt.held);
        }
    }

    fn repeat_owed(&mut self, now: Instant, slot: u32, out: &mut impl Outbox<P::Buffer>) {
        let Some(index) = self
            .connections
            .get(slot)
            .and_then(Connection::spliced)
            .map(|spliced| spliced.owed)
        else {
            return;
        };
        if let Some(debt) = self.owed.get_mut(index) {
            debt.note_timeout(now.as_millis() as u32);
            self.log.flag(slot, RecordFlags::RETRANSMITTED);
            self.send_owed(slot, out);
        }
        self.arm_spliced(now, slot);
    }

    /// Sends what is owed and unacknowledged: at most the window that every server was promised to take.
    fn send_owed(&mut self, slot: u32, out: &mut impl Outbox<P::Buffer>) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let Some(spliced) = connection.spliced() else { return };
        let Some(debt) = self.owed.get(spliced.owed) else {
            return;
        };
        let path = match send::path_to_server(&self.settings, &self.neighbours, &*connection) {
            Ok(path) => path,
            Err(reason) => return self.drops.add(reason, 1),
        };
        let mut control = self.current_numbers(connection, Side::Server);
        control.options = send::timestamps(debt.timestamps);
        let from = (debt.next() - debt.first).max(0) as usize;
        let to = (debt.end - debt.first).max(0) as usize;
        let bytes = self.held.in_order(debt.held).get(from..to).unwrap_or_default();
        let mut at = debt.next();
        for payload in bytes.chunks(usize::from(debt.mss.max(1))) {
            control.seq = at + spliced.client_shift;
            control.flags = TcpFlags::ACK | TcpFlags::PSH;
            if let Err(reason) = send::emit_into(&mut self.pool, None, &path, &control, payload, out) {
                self.drops.add(reason, 1);
            }
            at = at + payload.len() as u32;
        }
    }

    fn forward(
        &mut self,
        now: Instant,
        slot: u32,
        from: Side,
        scene: &mut Scene<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) {
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
        let ack = spliced.ack_for_peer(from, segment.ack);
        let path = match from {
            Side::Client => send::path_to_server(&self.settings, &self.neighbours, &*connection),
            Side::Server => Ok(send::path_to_client(&self.settings, &*connection)),
        };
        let path = match path {
            Ok(path) => path,
            Err(reason) => return self.drops.add(reason, 1),
        };
        let has_debt = spliced.owed != owed::NOTHING;
        let mut values = shifts.rewrite(from, &segment, &path, self.next_ip_id());
        if has_debt
            && from == Side::Server
            && let Some(floor) = self.settle_debt(now, slot, ack, payload_len == 0, out)
        {
            // What the client was told stays true: its bytes are acknowledged, and the right edge does not move.
            let held_up = (floor - ack).max(0) as u32;
            values.ack = values.ack.wrapping_add(held_up);
            let window = (u32::from(segment.window) << shifts.scale.server).saturating_sub(held_up);
            values.window = (window >> shifts.scale.promised).min(0xffff) as u16;
            // RFC 2018 8: blocks below the ACK would say nothing, and those above it may lie inside what we owe.
            values.blank_sack = true;
        }
        if let Err(reason) = self.pass(&mut incoming, &values, &path) {
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

    /// Which leg a segment came by: its source is the client, or it is the server.
    fn side_of(&self, connection: &Connection, segment: &Segment) -> Side {
        let is_client = segment.key.remote_port == connection.client_port
            && segment.key.local_port == connection.listener_port
            && segment.key.remote == connection.client_address()
            && segment.key.local == self.settings.addresses.value(connection.listener_address);
        if is_client { Side::Client } else { Side::Server }
    }

    fn pass(
        &mut self,
        incoming: &mut Incoming<P::Buffer>,
        values: &Rewrite,
        path: &send::Path,
    ) -> Result<(), DropReason> {
        let layout = incoming.segment.layout;
        let mtu = self.settings.devices[usize::from(path.device.0)].mtu;
        if layout.end - layout.l3 > mtu {
            return Err(DropReason::TooBig);
        }
        translate::rewrite(incoming.buffer.data_mut(), &layout, values)
    }

    fn next_ip_id(&mut self) -> u16 {
        self.ip_id = self.ip_id.wrapping_add(1);
        self.ip_id
    }

    /// RFC 5961 4.2 and 7: an ACK of the present numbers, within the limit for strangers.
    fn challenge(&mut self, now: Instant, slot: u32, scene: &mut Scene<P::Buffer>, out: &mut impl Outbox<P::Buffer>) {
        let Some(Incoming { buffer, segment }) = scene.incoming.take() else {
            return;
        };
        if !self.answers.take(now) {
            return self.drops.add(DropReason::RateLimited, 1);
        }
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let to = self.side_of(connection, &segment);
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
        let path = self.path_back(&segment);
        self.log.count(to, TcpCounter::Unexpected);
        self.log.count(to, TcpCounter::SentAck);
        self.emit(Some(buffer), &path, &control, &[], out);
    }

    /// Counts and records the closing of the halves.
    fn note_close(
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

    // ---- the end ----

    /// Frees everything that belongs to the connection; if it was spliced, its translation stays for a while.
    fn end(&mut self, now: Instant, slot: u32, cause: Cause, scene: &Scene<P::Buffer>) {
        self.forgive_debt(slot);
        if let Some(opening) = self.opening_mut(slot) {
            let mut held = std::mem::replace(&mut opening.held, HeldId::NONE);
            self.held.close(&mut held);
        }
        self.wheel.disarm(slot);
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        self.log.end(slot, connection, cause, now);
        let client = self.key_of(FlowRef::client(slot));
        let spliced = connection.spliced().is_some();
        if spliced {
            self.rest(now, slot);
        } else if let Some(key) = client {
            let hash = self.table.hash(&key);
            self.remove_flow(hash, FlowRef::client(slot));
        }
        self.release_port(now, slot, scene.incoming.as_ref());
        self.connections.remove(slot);
    }

    /// Moves both legs of a spliced connection to the quarantine.
    fn rest(&mut self, now: Instant, slot: u32) {
        let keys = [FlowRef::client(slot), FlowRef::server(slot)].map(|flow| (flow, self.key_of(flow)));
        while self.quarantine.next_slot().is_none() {
            self.end_oldest_rest();
        }
        let until = (now + self.settings.time_wait).as_millis() as u32;
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let Ok(resting) = self.quarantine.push(Rested::of(connection, until)) else {
            return;
        };
        for (flow, key) in keys {
            if let Some(key) = key {
                let hash = self.table.hash(&key);
                self.table.replace(hash, flow, flow.quarantined(resting));
            }
        }
    }

    /// Gives the source port back, with what the server may remember of it, and forgets the server leg unless it rests.
    fn release_port(&mut self, now: Instant, slot: u32, last: Option<&Incoming<P::Buffer>>) {
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
                spliced.to_server.end + spliced.client_shift,
                self.newest_tsval(connection, spliced, last),
            ),
        };
        let (local_address, local_port) = (connection.local_address, connection.local_port);
        let local = self.settings.servers[server]
            .locals
            .iter()
            .position(|local| local.address == local_address);
        if let Some(local) = local {
            self.ports[server][local].release(local_port, next_seq + 1, next_tsval.wrapping_add(1), now);
        }
        if connection.opening().is_some()
            && let Some(key) = self.key_of(FlowRef::server(slot))
        {
            let hash = self.table.hash(&key);
            self.remove_flow(hash, FlowRef::server(slot));
        }
        if let Some(connection) = self.connections.get_mut(slot) {
            connection.local_port = 0;
        }
    }

    /// The newest TSval that the server has seen: the client's own, or the server's echo of it.
    fn newest_tsval(&self, connection: &Connection, spliced: &Spliced, last: Option<&Incoming<P::Buffer>>) -> u32 {
        let timestamps = last.and_then(|incoming| {
            let options = TcpOptions::parse(incoming.segment.options(incoming.buffer.data()));
            options
                .timestamps
                .map(|values| (self.side_of(connection, &incoming.segment), values))
        });
        match timestamps {
            Some((Side::Client, (tsval, _))) => tsval.wrapping_add(spliced.client_tsval_shift),
            Some((Side::Server, (_, tsecr))) => tsecr,
            None => 0,
        }
    }

    /// Takes the oldest resting connection out. Returns false if there is none.
    pub(super) fn end_oldest_rest(&mut self) -> bool {
        let Some((slot, rested)) = self.quarantine.oldest() else {
            return false;
        };
        let legs = rested.legs;
        for (known, flow) in [(legs.client, FlowRef::client(0)), (legs.server, FlowRef::server(0))] {
            let flow = flow.quarantined(slot);
            if known && let Some(key) = self.key_of(flow) {
                let hash = self.table.hash(&key);
                self.remove_flow(hash, flow);
            }
        }
        self.quarantine.pop();
        true
    }

    /// Makes room for a new connection with `key`: whatever rests there keeps only its other leg.
    pub(super) fn free_key(&mut self, hash: u64, key: &FlowKey) {
        let Some(flow) = self.table.find(hash, |flow| self.key_of(flow).as_ref() == Some(key)) else {
            return;
        };
        if !flow.is_quarantined() {
            return;
        }
        self.remove_flow(hash, flow);
        if let Some(rested) = self.quarantine.entry_mut(flow.slot()) {
            match flow.is_server_leg() {
                true => rested.legs.server = false,
                false => rested.legs.client = false,
            }
        }
    }

    fn remove_flow(&mut self, hash: u64, flow: FlowRef) {
        self.table.remove(hash, flow);
    }

    /// A segment of a resting connection.
    pub(super) fn drive_quarantined(
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

    fn forward_rested(&mut self, flow: FlowRef, mut incoming: Incoming<P::Buffer>, out: &mut impl Outbox<P::Buffer>) {
        let Some(rested) = self.quarantine.entry(flow.slot()).copied() else {
            return;
        };
        let from = flow.side();
        let path = match from {
            Side::Client => send::path_to_server(&self.settings, &self.neighbours, &rested),
            Side::Server => Ok(send::path_to_client(&self.settings, &rested)),
        };
        let path = match path {
            Ok(path) => path,
            Err(reason) => return self.drops.add(reason, 1),
        };
        let id = self.next_ip_id();
        let values = Shifts::of_rested(&rested).rewrite(from, &incoming.segment, &path, id);
        match self.pass(&mut incoming, &values, &path) {
            Ok(()) => out.send(path.device, incoming.buffer),
            Err(reason) => self.drops.add(reason, 1),
        }
    }
}

impl Handoff {
    /// A segment to the server at `seq` of the client's numbering.
    fn control(&self, seq: SeqNum, flags: TcpFlags) -> Control {
        let shift = (self.opening.server_side_isn - self.opening.client_isn) as u32;
        Control {
            seq: seq + shift,
            ack: self.ack,
            flags,
            window: self.window,
            options: send::timestamps(self.timestamps),
        }
    }
}

/// Notes what every segment of the client tells: its window and its newest timestamp.
fn note_client(opening: &mut Opening, frame: &[u8], segment: &Segment) {
    opening.client_window = segment.window;
    let options = TcpOptions::parse(segment.options(frame));
    if let Some((tsval, _)) = options.timestamps
        && SeqNum(tsval).gt(SeqNum(opening.client_tsval))
    {
        opening.client_tsval = tsval;
    }
}

/// The constant differences of a connection, open or resting.
#[derive(Clone, Copy)]
struct Shifts {
    client: u32,
    server: u32,
    client_tsval: u32,
    server_tsval: u32,
    scale: WindowScale,
    blank_sack: bool,
}

impl Shifts {
    fn of(spliced: &Spliced) -> Self {
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
    fn rewrite(&self, from: Side, segment: &Segment, path: &send::Path, ip_id: u16) -> Rewrite {
        let (own, peer, own_tsval, peer_tsval) = match from {
            Side::Client => (self.client, self.server, self.client_tsval, self.server_tsval),
            Side::Server => (self.server, self.client, self.server_tsval, self.client_tsval),
        };
        Rewrite {
            source_mac: path.envelope.src_mac,
            destination_mac: path.envelope.dst_mac,
            source: super::address_value(path.envelope.src_addr),
            destination: super::address_value(path.envelope.dst_addr),
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
