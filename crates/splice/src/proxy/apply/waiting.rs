//! Before there is a server: bytes are held, the selector is asked, the client may leave.

use super::ActionContext;
use crate::base::callbacks::{FirstPayload, MAX_FIRST_PAYLOAD, SelectServer, Selection};
use crate::base::ids::ListenerId;
use crate::base::output::{NextHops, Output};
use crate::base::settings::Bind;
use crate::proxy::{Incoming, Proxy, routes};
use crate::reassembly::source_quota::Quota;
use crate::session::connection::{Connection, Opening, Stage};
use crate::session::event::Event;
use crate::session::numbers::{self, Control};
use crate::session::phase::Phase;
use crate::session::segment::Segment;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::Side;
use netfcts::counters::TcpCounter;
use netfcts::leg::unmapped;
use netfcts::record::{RecordFlags, State};
use netfcts::seq::SeqNum;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::Duration;

/// How long the client's last ACK is waited for when it left without a word.
const LAST_ACK_WAIT: Duration = Duration::from_secs(4);

/// Whether more of the first payload would be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PayloadWait {
    Left,
    Over,
}

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// Keeps the client's bytes. The segment stays in the scene: an acknowledgement may use its memory.
    #[inline(never)]
    pub(crate) fn hold(
        &mut self,
        slot: u32,
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
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
        let room = MAX_FIRST_PAYLOAD.saturating_sub(offset);
        let fresh = fresh.get(..fresh.len().min(room)).unwrap_or_default();
        let acknowledged_before = segment.end().le(opening.acknowledged);
        if let Err(reason) = self.keep_held(slot, offset, fresh, out) {
            self.emit.dropped(reason);
            scene.incoming = None;
            // Nothing new for the selector.
            return None;
        }
        // Our acknowledgement was lost: the client repeats what it no longer owes.
        if acknowledged_before && self.is_called(slot) {
            self.acknowledge_held(slot, scene, out);
        }
        None
    }

    /// Whose share of the memory a connection uses: its client's, whoever brings it. Until a header has named that it is
    /// its peer's.
    pub(super) fn share_of(&self, slot: u32, connection: &Connection) -> Quota {
        let carried = self.headers.received.get(slot);
        let client = carried.map_or_else(|| connection.client_address(), |carried| carried.source.0);
        Quota::of(self.flows.source_hash(client))
    }

    #[inline(never)]
    pub(super) fn ask_selector(
        &mut self,
        now: Instant,
        slot: u32,
        patience: PayloadWait,
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        if let ControlFlow::Break(follows) = self.read_header(slot, scene, out) {
            return follows;
        }
        let connection = self.connections.get_mut(slot)?;
        let Stage::Opening(opening) = &mut connection.stage else {
            return None;
        };
        let bytes = self.reassembly.in_order(opening.held);
        let listener = self.settings.listeners.get(usize::from(connection.listener))?;
        // Only those that bind by payload are asked with any.
        let complete = listener.bind != Bind::Payload
            || patience == PayloadWait::Over
            || bytes.len() == usize::from(opening.fin_offset)
            // The client may send no more.
            || numbers::room_as_window(opening, bytes.len()) == 0;
        if bytes.is_empty() && !complete {
            // Our acknowledgement of the PROXY header was lost: the client repeats it.
            let repeats = |incoming: &Incoming<_>| incoming.segment.end().le(opening.acknowledged);
            if scene.incoming.as_ref().is_some_and(repeats) {
                self.acknowledge_held(slot, scene, out);
            }
            return None;
        }
        let peer = SocketAddr::new(unmapped(connection.client_address()), connection.client_port);
        let connection = self.connections.get(slot)?;
        let payload = FirstPayload::new(
            self.client_of(slot)?,
            self.destination_of(slot)?,
            ListenerId(connection.listener),
            bytes,
            complete,
        )
        .with_peer(peer);
        let mut selection = self.selector.select(&payload);
        if patience == PayloadWait::Over {
            self.records.flag(slot, RecordFlags::FALLBACK);
            if selection == Selection::NeedMore {
                let Some(pool) = listener.default else {
                    return Some(Event::TimedOut);
                };
                selection = Selection::Pool(pool);
            }
        }
        let (server, pool) = match selection {
            Selection::Server(server) => (server, Opening::NO_POOL),
            Selection::Pool(pool) => match self.upstream.pick(pool, payload.client.ip(), now) {
                Some(server) => (server, pool.0),
                None if self.upstream.has_pool(pool) => return Some(Event::NoServer),
                // A selector of the user's may name what does not exist.
                None => return Some(Event::Rejected),
            },
            Selection::NeedMore if !complete => {
                self.records.flag(slot, RecordFlags::NEED_MORE);
                return Some(Event::NeedMore);
            }
            Selection::NeedMore | Selection::Reject => return Some(Event::Rejected),
        };
        if usize::from(server.0) >= self.settings.servers.len() {
            return Some(Event::Rejected);
        }
        if !self.upstream.has_room(server) {
            return Some(Event::NoServer);
        }
        let connection = self.connections.get_mut(slot)?;
        let Stage::Opening(opening) = &mut connection.stage else {
            return None;
        };
        opening.pool = pool;
        let (listener, is_first) = (connection.listener, connection.phase == Phase::AwaitPayload);
        let has_asked = opening.acknowledged.gt(opening.first_byte());
        connection.server = server.0;
        if is_first {
            self.records.state(slot, Side::Client, State::Payload, now);
        }
        let took = self.records.start(slot).map(|start| now - start);
        self.tally.note_choice(listener, pool, took);
        if has_asked {
            self.claim_of_called(slot);
        }
        Some(Event::Selected)
    }

    pub(crate) fn acknowledge_held(
        &mut self,
        slot: u32,
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let Stage::Opening(opening) = &mut connection.stage else {
            return;
        };
        let in_order = self.reassembly.in_order(opening.held).len();
        opening.acknowledged = opening.first_byte() + in_order as u32;
        self.renew_claim(slot);
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let Stage::Opening(opening) = &mut connection.stage else {
            return;
        };
        let window = numbers::opening_window(opening);
        let (seq, ack) = (opening.cookie + 1, opening.acknowledged);
        let timestamps = opening.timestamps.then_some(opening.client_tsval);
        // RFC 7323 5.3: the server's clock goes on where a passed SYN-ACK has left it, so ours must not run ahead of that.
        let passed = self
            .handshake
            .forwarded_syns
            .get(opening.syn.into())
            .and_then(|syn| syn.answer);
        let path = routes::path_to_client(&self.settings, &*connection);
        let tsval = passed.map_or_else(|| self.handshake.timestamp(self.now), |answer| answer.newest_tsval);
        let options = numbers::timestamps(timestamps.map(|echo| (tsval, echo)));
        let control = Control {
            seq,
            ack,
            flags: TcpFlags::ACK,
            window,
            options,
        };
        let memory = scene.incoming.take().map(|incoming| incoming.buffer);
        self.records.count(Side::Client, TcpCounter::SentAck);
        self.emit.send(memory, &path, &control, &[], out);
    }

    pub(crate) fn close_client(
        &mut self,
        now: Instant,
        slot: u32,
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(incoming) = scene.incoming.take() else { return };
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let Stage::Opening(opening) = &mut connection.stage else {
            return;
        };
        opening.acknowledged = incoming.segment.end();
        note_client(opening, incoming.buffer.data(), incoming.segment);
        let timestamps = opening.timestamps.then_some(opening.client_tsval);
        let window = numbers::opening_window(opening);
        let (seq, ack) = (opening.cookie + 1, opening.acknowledged);
        let path = routes::path_to_client(&self.settings, &*connection);
        let options = numbers::timestamps(timestamps.map(|echo| (self.handshake.timestamp(now), echo)));
        let control = Control {
            seq,
            ack,
            flags: TcpFlags::FIN | TcpFlags::ACK,
            window,
            options,
        };
        self.records.count(Side::Client, TcpCounter::RecvFin);
        self.records.count(Side::Client, TcpCounter::SentFinPssv);
        self.records.state(slot, Side::Client, State::FinWait1, now);
        self.timers.arm(slot, now + LAST_ACK_WAIT);
        self.emit.send(Some(incoming.buffer), &path, &control, &[], out);
    }
}

/// Notes what every segment of the client tells: its window and its newest timestamp.
pub(super) fn note_client(opening: &mut Opening, frame: &[u8], segment: &Segment) {
    opening.client_window = segment.window;
    let options = TcpOptions::parse(segment.options(frame));
    if let Some((tsval, _)) = options.timestamps
        && SeqNum(tsval).gt(SeqNum(opening.client_tsval))
    {
        opening.client_tsval = tsval;
    }
}
