//! Before there is a server: bytes are held, the selector is asked, the client may leave.
//!
//! When memory for held bytes is short, copies are given up, and only when there are none connections that have asked for more
//! (DECISIONS.md 28).
//!
//! Bytes without an ACK are the client's: it repeats them. So the copy of a connection whose server is called is worth one
//! retransmission time-out of its client, and not the connection.

use super::ActionContext;
use crate::base::callbacks::{FirstPayload, MAX_FIRST_PAYLOAD, SelectServer, Selection};
use crate::base::drop_reason::DropReason;
use crate::base::ids::ListenerId;
use crate::base::output::{NextHops, Output};
use crate::base::settings::{Bind, SendProxyFields};
use crate::proxy::{Incoming, Proxy, Rooms};
use crate::proxy_header::send_proxy;
use crate::reassembly::source_quota::Quota;
use crate::reassembly::{EvictionClass, Owner, ReassemblyError};
use crate::session::action::PayloadWait;
use crate::session::connection::Connection;
use crate::session::event::Event;
use crate::session::numbers::{self};
use crate::session::segment::Segment;
use crate::session::state::{ClientSide, Stage, State};
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::Side;
use netfcts::counters::TcpCounter;
use netfcts::leg::unmapped;
use netfcts::record::{self, RecordFlags};
use netfcts::seq::SeqNum;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::Duration;

/// How long the client's last ACK is waited for when it left without a word.
const LAST_ACK_WAIT: Duration = Duration::from_secs(4);

/// How many give way at most when someone new is held: one more than comes, so that the pressure ends.
const GIVE_WAY_AT_ONCE: usize = 2;

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// Keeps the client's bytes, and sees that others find room after it.
    #[inline(never)]
    pub(super) fn buffer(
        &mut self,
        slot: u32,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        let connection = self.connections.get_mut(slot)?;
        let is_called = is_called(connection);
        let mut held = self.rooms.hold(slot, connection, context, out);
        if held == Err(ReassemblyError::Exhausted) && !is_called {
            self.empty_chunk(slot, out);
            held = self.rooms.hold(slot, self.connections.get_mut(slot)?, context, out);
        }
        match held {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                // The client repeats them. There is nothing new for the selector.
                self.rooms.emit.dropped(error.into());
                context.incoming = None;
                return None;
            }
        }
        if !is_called {
            self.relieve(slot, out);
        }
        Some(Event::Buffered)
    }

    /// While the memory is nearly full: those who have waited longest give way, copies first, unless nobody else waits.
    fn relieve(&mut self, but: u32, out: &mut impl Output<P::Buffer>) {
        for _ in 0..GIVE_WAY_AT_ONCE {
            if !self.rooms.reassembly.is_pressed() {
                return;
            }
            if let Some(longest) = self.rooms.reassembly.longest(EvictionClass::Unacked, but) {
                self.drive(longest, Event::UnackedEvicted, &mut ActionContext::nothing(), out);
            } else if let Some(longest) = self.rooms.reassembly.longest(EvictionClass::Acked, but) {
                self.rooms.emit.dropped(DropReason::ConnectionEvicted);
                self.drive(longest, Event::ConnectionEvicted, &mut ActionContext::nothing(), out);
            } else {
                return;
            }
        }
    }

    /// There is no block of the size that is needed, though there may be small ones: all copies beside the longest-waiting
    /// give way.
    #[cold]
    fn empty_chunk(&mut self, but: u32, out: &mut impl Output<P::Buffer>) {
        for slot in self.rooms.reassembly.beside_longest() {
            if slot != but {
                self.drive(slot, Event::UnackedEvicted, &mut ActionContext::nothing(), out);
            }
        }
        self.relieve(but, out);
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Keeps the client's bytes. The segment stays in the context, unless an acknowledgement has used its memory. True if the
    /// selector has anything new to look at.
    ///
    /// # Errors
    /// Why they are not kept; what is noted of the segment may be noted again.
    #[inline(never)]
    fn hold(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Result<bool, ReassemblyError> {
        let (is_called, share) = (is_called(connection), self.share_of(slot, connection));
        let (Some(Incoming { buffer, segment }), Some(client)) = (&context.incoming, connection.state.client_mut())
        else {
            return Ok(false);
        };
        note_client(client, self.reassembly.end(client.held), buffer.data(), segment);
        let payload = segment.payload(buffer.data());
        // Bytes before the first one have been in no window of ours: what is left of the segment counts.
        let before = (client.first_byte() - segment.seq).max(0) as usize;
        let fresh = payload.get(before..).unwrap_or_default();
        let offset = (segment.seq + before as u32 - client.first_byte()).max(0) as usize;
        // RFC 9293 3.10.7.4, first: what is before the window is cut off, a FIN too.
        if segment.has(TcpFlags::FIN) && before <= payload.len() {
            client.set_fin(Some(offset + fresh.len()));
        }
        // RFC 9293 3.4: bytes beyond our window are not taken; the client sends them again.
        let room = MAX_FIRST_PAYLOAD.saturating_sub(offset);
        let fresh = fresh.get(..fresh.len().min(room)).unwrap_or_default();
        if is_called && self.reassembly.is_pressed() && offset + fresh.len() > client.acknowledged_len() {
            return Err(ReassemblyError::Exhausted);
        }
        self.reassembly
            .insert(&mut client.held, offset, fresh, Owner { slot, share })?;
        client.is_evicted &= client.held.is_none();
        // Our ACK was lost: the client retransmits what is acknowledged.
        let is_repeated = segment.end().le(client.last_ack_sent);
        if is_called {
            self.renew_claim(connection, true);
            if is_repeated {
                self.acknowledge_held(connection, context, out);
            }
        } else if client.acknowledged_len() > 0 {
            // What is acknowledged has been looked at, and more of it was wanted.
            let in_order = self.reassembly.in_order(client.held).len();
            if in_order <= client.acknowledged_len() && client.fin_offset() != Some(in_order) {
                // RFC 5681 4.2: a segment behind a gap is acknowledged at once; so is what was lost with our ACK.
                self.acknowledge_held(connection, context, out);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whose share of the memory a connection uses: its client's, whoever brings it. Until a header has named that it is
    /// its peer's.
    pub(super) fn share_of(&self, slot: u32, connection: &Connection) -> Quota {
        Quota::of(self.flows.source_hash(self.source_of(slot, connection).0))
    }

    #[inline(never)]
    pub(super) fn ask_selector(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        patience: PayloadWait,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        let now = self.now;
        if let ControlFlow::Break(follows) = self.read_header(slot, connection, context, out) {
            return follows;
        }
        let client = connection.state.client()?;
        let bytes = self.reassembly.in_order(client.held);
        let listener = self.settings.listeners.get(usize::from(connection.listener))?;
        // Only those that bind by payload are asked with any.
        let complete = listener.bind != Bind::Payload
            || patience == PayloadWait::Over
            || client.fin_offset() == Some(bytes.len())
            // The client may send no more.
            || numbers::room_as_window(client, bytes.len()) == 0;
        if bytes.is_empty() && !complete {
            // Our acknowledgement of the PROXY header was lost: the client repeats it.
            let repeats = |incoming: &Incoming<_>| incoming.segment.end().le(client.last_ack_sent);
            if context.incoming.as_ref().is_some_and(repeats) {
                self.acknowledge_held(connection, context, out);
            }
            return None;
        }
        let peer = SocketAddr::new(unmapped(connection.ends.client_address()), connection.ends.client_port);
        let payload = FirstPayload::new(
            self.client_of(slot, connection),
            self.destination_of(slot, connection),
            ListenerId(connection.listener),
            bytes,
            complete,
        )
        .with_peer(peer);
        let mut selection = self.selector.select(&payload);
        let rule = self.rule();
        if let Some(tap) = self.emit.concerned_tap()
            && matches!(selection, Selection::Server(_) | Selection::Pool(_))
        {
            tap.note_rule(slot, rule);
        }
        if patience == PayloadWait::Over {
            self.records.flag(slot, RecordFlags::FALLBACK);
            if selection == Selection::NeedMore {
                let Some(pool) = listener.default else {
                    return Some(Event::SelectTimeout);
                };
                selection = Selection::Pool(pool);
            }
        }
        let (server, pool) = match selection {
            Selection::Server(server) => (server, None),
            Selection::Pool(pool) => {
                let seeker = self.seeker(pool, payload.client.ip(), bytes);
                match self.upstream.pick(pool, seeker, now) {
                    Some(server) => (server, Some(pool)),
                    None if self.upstream.has_pool(pool) => return Some(Event::NoServer),
                    // A selector of the user's may name what does not exist.
                    None => return Some(Event::Rejected),
                }
            }
            Selection::NeedMore if !complete => {
                self.records.flag(slot, RecordFlags::NEED_MORE);
                return Some(Event::NeedMore);
            }
            Selection::NeedMore | Selection::Reject | Selection::Drop => {
                return Some(self.note_refused(connection, selection));
            }
        };
        if usize::from(server.0) >= self.settings.servers.len() {
            return Some(Event::Rejected);
        }
        // A pool has picked one that has.
        if pool.is_none() && !self.upstream.has_room(server) {
            return Some(Event::NoServer);
        }
        if let Some(pool) = pool
            && let Some(refused) = self.refuse_by_pool((slot, pool), connection)
        {
            return Some(refused);
        }
        let listener = connection.listener;
        let has_asked = client.acknowledged_len() > 0;
        (context.server, context.pool) = (Some(server), pool);
        match connection.state.stage_mut() {
            Some(Stage::AwaitPayload) => self.records.state(slot, Side::Client, record::State::Payload),
            Some(Stage::SynForwarded(call, _)) => call.pool = pool,
            _ => {}
        }
        let took = self.records.age(slot);
        self.tally.note_choice(listener, (rule, pool), took);
        if has_asked {
            self.renew_claim(connection, true);
        }
        Some(Event::Selected)
    }

    pub(crate) fn acknowledge_held(
        &mut self,
        connection: &mut Connection,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let tsval = self.tsval_for_client(connection);
        let Some(client) = connection.state.client_mut() else {
            return;
        };
        let in_order = self.reassembly.in_order(client.held).len();
        client.last_ack_sent = client.first_byte() + in_order as u32;
        let control = numbers::ack_of_held(client, TcpFlags::ACK, tsval);
        self.renew_claim(connection, is_called(connection));
        let path = self.path_to_client(connection);
        let memory = context.incoming.take().map(|incoming| incoming.buffer);
        self.records.count(Side::Client, TcpCounter::SentAck);
        self.emit.send(memory, &path, &control, &[], out);
    }

    /// An ACK of the client while its bytes are held: the server is told of the window that it has by then (RFC 9293 3.10.7.4, fifth).
    pub(super) fn note_window(&mut self, connection: &mut Connection, context: &mut ActionContext<P::Buffer>) {
        if let (Some(Incoming { buffer, segment }), Some(client)) =
            (context.incoming.take(), connection.state.client_mut())
            && segment.seq.in_window(client.last_ack_sent, MAX_FIRST_PAYLOAD as u32)
        {
            note_client(client, self.reassembly.end(client.held), buffer.data(), segment);
        }
        self.emit.dropped(DropReason::Consumed);
    }

    pub(crate) fn close_client(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let now = self.now;
        let Some(incoming) = context.incoming.take() else {
            return;
        };
        let State::Opening(client, stage) = &mut connection.state else {
            return;
        };
        client.last_ack_sent = incoming.segment.end();
        note_client(client, 0, incoming.buffer.data(), incoming.segment);
        // What came behind the FIN was none of the stream.
        self.reassembly.close(&mut client.held);
        *stage = Stage::LastAck;
        let client = *client;
        let tsval = self.handshake.timestamp(now);
        let control = numbers::ack_of_held(&client, TcpFlags::FIN | TcpFlags::ACK, tsval);
        let path = self.path_to_client(connection);
        self.records.count(Side::Client, TcpCounter::RecvFin);
        self.records.count(Side::Client, TcpCounter::SentFinPssv);
        self.records.state(slot, Side::Client, record::State::FinWait1);
        self.timers.arm(slot, now + LAST_ACK_WAIT);
        self.emit.send(Some(incoming.buffer), &path, &control, &[], out);
    }

    /// Forgets what is held beyond what the client has been told to have arrived, and a FIN behind it.
    pub(crate) fn give_up_copy(&mut self, slot: u32, connection: &mut Connection) {
        let is_kept_elsewhere = !is_called(connection) || self.keep_found_fields(slot, connection);
        let Some(client) = connection.state.client_mut() else {
            return;
        };
        let acknowledged = client.acknowledged_len();
        if !is_kept_elsewhere || !self.reassembly.shorten(&mut client.held, acknowledged) {
            // Not to be asked again.
            return self.reassembly.set_claim(client.held, EvictionClass::Pinned);
        }
        client.is_evicted = client.held.is_none();
        client.set_fin(client.fin_offset().filter(|&offset| offset <= acknowledged));
        self.emit.dropped(DropReason::ReassemblyEvicted);
        self.records.flag(slot, RecordFlags::COPY_GIVEN_UP);
    }

    /// Keeps what the server's PROXY header is to say of the bytes. Returns false if there is no room for that.
    fn keep_found_fields(&mut self, slot: u32, connection: &Connection) -> bool {
        if self.headers.payload_fields == SendProxyFields::default() {
            return true;
        }
        let Some(client) = connection.state.client() else {
            return false;
        };
        let Some(found) = send_proxy::found(
            &self.settings,
            self.headers.payload_fields,
            self.reassembly.in_order(client.held),
        ) else {
            return false;
        };
        let client = (connection.ends.client_address(), connection.ends.client_port);
        let address = self.settings.addresses.value(connection.ends.listener_address);
        let ends = [client, (address, connection.ends.listener_port)];
        // What was found the first time stands, if they are given up again before they were whole.
        found.is_empty() || self.headers.received.keep_found(slot, &found, ends)
    }

    /// Says what can be done about a connection's bytes: when its server is called, those without an ACK can be given up, if the
    /// others fit a smaller block; before that, what is acknowledged is gone only with the connection.
    fn renew_claim(&mut self, connection: &Connection, is_called: bool) {
        let Some(client) = connection.state.client() else {
            return;
        };
        let (held, acknowledged) = (client.held, client.acknowledged_len());
        let claim = match is_called {
            true if self.reassembly.is_smaller_without_rest(held, acknowledged) => EvictionClass::Unacked,
            true => EvictionClass::Pinned,
            false if acknowledged > 0 => EvictionClass::Acked,
            false => return,
        };
        self.reassembly.set_claim(held, claim);
    }
}

/// Notes what every segment of the client tells: its newest timestamp, and its window, unless it begins before the end of what
/// has come, `held` bytes.
pub(super) fn note_client(client: &mut ClientSide, held: usize, frame: &[u8], segment: &Segment) {
    // RFC 9293 3.10.7.4, fifth (SND.WL1): an older segment has an older window. All of them acknowledge the same.
    if segment.seq.ge(client.first_byte() + held as u32) {
        client.window = segment.window;
    }
    let options = TcpOptions::parse(segment.options(frame));
    if let Some((tsval, _)) = options.timestamps
        && SeqNum(tsval).gt(SeqNum(client.tsval))
    {
        client.tsval = tsval;
    }
}

/// Its server is called: there is room for it only while nobody has to give way.
pub(super) fn is_called(connection: &Connection) -> bool {
    matches!(connection.state.stage(), Some(Stage::ServerSynSent(_)))
}
