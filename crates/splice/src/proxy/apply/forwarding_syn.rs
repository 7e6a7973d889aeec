//! Listeners that bind with the SYN: it is passed on, and the two ends shake hands with each other.
//!
//! ```text
//!  client ── SYN ──────► remembered, server chosen ── SYN, client's options ──► server    SynForwarded
//!         ◄── SYN-ACK ── our number, server's options ◄───────────── SYN-ACK ──           SynAckForwarded
//!         ── ACK ──────► numbers taken over, PROXY header if wanted ── ACK ───►           Spliced
//! ```
//!
//! Each end repeats what is lost, as without us; we repeat nothing but the header. Only until the server has answered
//! can another take its place.
//!
//! Where a PROXY header comes before the client's bytes, the client's ACK ends here:
//!
//! ```text
//!  client ── ACK ──────► noted; the server still waits for it                               AwaitProxyHeader
//!         ── header ───► held, in any pieces, acknowledged by us and taken off
//!                        ── ACK, our header if wanted, what came behind theirs ──► server   Spliced
//! ```
//!
//! The server has answered a SYN and no more: its application hears nothing of a connection whose header is missing or
//! wrong, and no server speaks before it (proxy-protocol.txt 2: nothing is to be processed before the whole header). It
//! repeats its SYN-ACK meanwhile; so the wait, `select`, should be over before it gives up.

use super::connecting::SpliceParams;
use super::{ActionContext, first_payload};
use crate::base::callbacks::{MAX_FIRST_PAYLOAD, SelectServer};
use crate::base::drop_reason::DropReason;
use crate::base::ids::PoolId;
use crate::base::output::{NextHops, Output};
use crate::base::path::Path;
use crate::base::settings::AcceptProxy;
use crate::handshake::forwarded_syn::{self, ForwardedSyn, ServerSynAck};
use crate::handshake::syn_ack_options;
use crate::proxy::{Incoming, Proxy, Rooms};
use crate::proxy_header::send_proxy;
use crate::session::classify;
use crate::session::close::Direction;
use crate::session::connection::{Connection, Spliced, SplicedFlags, WindowScale};
use crate::session::event::Event;
use crate::session::numbers::Control;
use crate::session::options::Agreed;
use crate::session::phase::{FinState, Phase};
use crate::session::state::{Call, ClientSide, ServerSide, Stage, State};
use crate::session::table::FlowRef;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::wire::tcp::options::OptionBytes;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::Side;
use netfcts::counters::TcpCounter;
use netfcts::leg::ip_version;
use netfcts::record;
use netfcts::seq::SeqNum;
use std::ops::ControlFlow;

/// What the client has said last, and what it has been told.
pub(super) struct PeerNumbers {
    /// Its TSval and TSecr, in its own view.
    pub(super) timestamps: Option<(u32, u32)>,
    /// Its window field.
    pub(super) window: u16,
    /// The first window that it has offered to the server, in bytes.
    pub(super) window_bytes: u32,
    /// The first number that it has not been allowed to send.
    pub(super) told: SeqNum,
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// True while there is room to remember one more SYN. Past the high-water mark the listener answers SYNs itself, as one that
    /// binds at the handshake: with cookies, which cost no memory.
    pub(crate) fn has_room_for_syn(&self) -> bool {
        self.rooms.handshake.forwarded_syns.len() < self.rooms.handshake.forwarded_syns.capacity() / 4 * 3
            && self.connections.len() < self.connections.capacity() / 4 * 3
    }

    /// Makes a connection of a SYN and lets it choose its server.
    pub(crate) fn remember_syn(
        &mut self,
        (listener, address): (u16, u16),
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        if self.rooms.is_out(listener) {
            return self.rooms.emit.dropped(DropReason::Draining);
        }
        let segment = incoming.segment;
        let who = self.rooms.applicant(listener, segment);
        if let Err(excess) = self.rooms.may_count_in(who.as_ref()) {
            return self.rooms.refuse_excess(excess, incoming, out);
        }
        let frame = incoming.buffer.data();
        let is_awaited = self.rooms.settings.listeners[usize::from(listener)].accept != AcceptProxy::Off;
        let ends_here = is_awaited || self.rooms.selector.inspects();
        let syn = ForwardedSyn::of(segment, frame, ends_here);
        let Ok(place) = self.rooms.handshake.forwarded_syns.insert(syn) else {
            return self.rooms.emit.dropped(DropReason::ForwardedSynsFull);
        };
        let client = self.rooms.client_of_syn(&incoming);
        let state = State::Opening(client, Stage::SynForwarded(Call::new(None), place as u16));
        let mut connection = Connection::new(segment, (listener, address), state);
        connection.packets_from_client = 1;
        let Ok(slot) = self.connections.insert(connection) else {
            self.rooms.handshake.forwarded_syns.remove(place);
            return self.rooms.emit.dropped(DropReason::TableFull);
        };
        if let Err(refusal) = self.rooms.flows.insert(segment.hash, FlowRef::client(slot)) {
            self.connections.remove(slot);
            self.rooms.handshake.forwarded_syns.remove(place);
            return self.rooms.emit.dropped(refusal.into());
        }
        self.rooms.records.begin_with_syn(slot);
        self.rooms.tally.note_begin(listener);
        self.rooms.note_made(slot, segment, listener);
        self.drive_segment(
            slot,
            Event::Created,
            &mut ActionContext::with(Side::Client, incoming),
            out,
        );
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    fn client_of_syn(&self, incoming: &Incoming<P::Buffer>) -> ClientSide {
        let segment = incoming.segment;
        let offered = TcpOptions::parse(segment.options(incoming.buffer.data()));
        // RFC 6528 3: the number that the client gets is ours, so that it does not depend on the server whose answer
        // comes first, nor on what a server that has started anew answers to the same SYN.
        let numbers = (segment.seq, self.handshake.iss(self.now, &segment.key));
        // Nothing is agreed on before the server has answered.
        let agreed = Agreed {
            mss: syn_ack_options::mss_of(&offered, segment.layout.version),
            window_scale: None,
            sack: false,
        };
        ClientSide {
            tsval: offered.timestamps.map_or(0, |(tsval, _)| tsval),
            ..ClientSide::new(numbers, agreed, segment.window)
        }
    }

    /// Passes the client's SYN on to the chosen server. How long that may take counts from the first time: the client
    /// repeats it as it likes.
    pub(crate) fn send_forwarded_syn(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        out: &mut impl Output<P::Buffer>,
    ) {
        if let Some(call) = connection.state.call_mut() {
            call.attempts.note_syn();
            if call.attempts.syns() == 1 {
                self.arm_call(slot, connection);
            }
        }
        let (Some(client), Some(ours)) = (connection.state.client(), connection.state.server()) else {
            return;
        };
        let Some(syn) = connection
            .state
            .syn()
            .and_then(|syn| self.handshake.forwarded_syns.get(syn))
        else {
            return;
        };
        let Some(path) = self.path_to(Side::Server, connection) else {
            // The client's repetition tries again; by then the neighbour may have answered.
            return self.emit.dropped(DropReason::NoNeighbour);
        };
        let control = Control::new(ours.iss, SeqNum(0), syn.flags, syn.window);
        let largest = self.largest_mss([&path, &self.path_to_client(connection)]);
        let timestamps = (client.tsval.wrapping_add(ours.tsval_shift), 0);
        let options = forwarded_syn::translated(&syn.options, largest, Some(timestamps));
        self.records.count(Side::Server, TcpCounter::SentSyn);
        self.emit_with_options((Side::Client, None), &path, &control, &options, out);
    }

    /// Passes the server's SYN-ACK on to the client, with our number in place of the server's.
    pub(crate) fn pass_syn_ack(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let now = self.now;
        let Some(Incoming { buffer, segment }) = context.incoming.take() else {
            return;
        };
        let (Some(client), Some(ours)) = (connection.state.client().copied(), connection.state.server()) else {
            return self.emit.dropped(DropReason::ImpossibleTransition);
        };
        let clock = self.handshake.timestamp(now);
        let raw = forwarded_syn::passable(segment.options(buffer.data()));
        let options = TcpOptions::parse(&raw);
        let place = connection.state.syn();
        let Some(syn) = place.and_then(|place| self.handshake.forwarded_syns.get_mut(place)) else {
            return self.emit.dropped(DropReason::ImpossibleTransition);
        };
        // A server that has started anew, or that answers from SYN cookies, may come with another number the second
        // time. The client sees no difference; what it acknowledges is the server's latest.
        let known = syn.answer.filter(|answer| answer.isn == segment.seq);
        let answer = known.unwrap_or_else(|| ServerSynAck::of(segment, options, clock));
        let newest = options
            .timestamps
            .map(|(tsval, _)| tsval.wrapping_add(answer.tsval_shift));
        syn.answer = Some(ServerSynAck {
            newest_tsval: newest.unwrap_or(answer.newest_tsval),
            ..answer
        });
        self.records.count(Side::Server, TcpCounter::RecvSynAck);
        self.records.count(Side::Client, TcpCounter::SentSynAck);
        let path = self.path_to_client(connection);
        let largest = match self.path_to(Side::Server, connection) {
            Some(to_server) => self.largest_mss([&path, &to_server]),
            None => self.largest_mss([&path, &path]),
        };
        let timestamps = options.timestamps.map(|(tsval, tsecr)| {
            (
                tsval.wrapping_add(answer.tsval_shift),
                tsecr.wrapping_sub(ours.tsval_shift),
            )
        });
        let control = Control {
            seq: client.iss,
            ack: client.first_byte(),
            flags: TcpFlags::SYN | TcpFlags::ACK | forwarded_syn::ecn(segment),
            // Before the whole header we hold what the client sends.
            window: if self.settings.listeners[usize::from(connection.listener)].accept == AcceptProxy::Off {
                segment.window
            } else {
                segment.window.min(MAX_FIRST_PAYLOAD as u16)
            },
            options: TcpOptions::NONE,
        };
        let raw = forwarded_syn::translated(&raw, largest, timestamps);
        if let Some(&Stage::SynForwarded(call, syn)) = connection.state.stage() {
            connection.state.enter(Stage::SynAckForwarded(ours, syn));
            let select = self.settings.listeners[usize::from(connection.listener)].select;
            self.timers.arm(slot, now + select);
            self.note_answer(slot, &connection.ends, &call);
            if let Some(syn) = self.handshake.forwarded_syns.get_mut(syn.into()) {
                syn.pool = call.pool;
            }
        }
        self.emit_with_options((Side::Server, Some(buffer)), &path, &control, &raw, out);
    }

    /// The client has acknowledged the SYN-ACK that was passed on to it.
    fn note_forwarded_handshake(&self, slot: u32, listener: u16) {
        let answered = (Side::Server, record::State::Established);
        if let Some(took) = self.records.micros_since(slot, answered) {
            self.tally.note_handshake(listener, took);
        }
    }

    /// The client has acknowledged the server's SYN: both numberings are known.
    pub(crate) fn establish(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        context: &mut ActionContext<P::Buffer>,
    ) -> Option<()> {
        let Incoming { buffer, segment } = context.incoming.as_ref()?;
        let segment = *segment;
        let timestamps = TcpOptions::parse(segment.options(buffer.data())).timestamps;
        let State::Opening(mut client, Stage::SynAckForwarded(ours, syn)) = connection.state else {
            return None;
        };
        let syn = self.handshake.forwarded_syns.remove(syn.into())?;
        let answer = syn.answer?;
        agree(&mut client, &syn, &answer);
        // RFC 7323 3.2: whether there are any was agreed by the SYNs; the ACK has the newest of them, as it should.
        let known = (client.tsval, answer.newest_tsval);
        let newest = PeerNumbers {
            timestamps: client.timestamps.then(|| timestamps.unwrap_or(known)),
            window: segment.window,
            window_bytes: u32::from(syn.window),
            told: client.first_byte() + u32::from(answer.window),
        };
        let payload = segment.payload(buffer.data());
        let met = (client, ours, &answer, syn.pool);
        context.splice_params = Some(self.meet(slot, connection, met, newest, Some(payload))?);
        self.note_forwarded_handshake(slot, connection.listener);
        self.on_cookie_returned(segment.key.remote);
        self.records.state(slot, Side::Client, record::State::Established);
        Some(())
    }

    /// What the client's ACK of the server's SYN is in the new phase. Behind a splice the PROXY header goes out first, if there
    /// is one; a mere ACK behind that says nothing any more.
    pub(crate) fn reclassify(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        let segment = context.incoming.as_ref()?.segment;
        if let State::Opening(client, Stage::AwaitProxyHeader(..)) = &connection.state {
            let event = classify::from_client_while_opening(Phase::AwaitProxyHeader, client, || 0, segment);
            return (segment.len() > 0).then_some(event);
        }
        let splice_params = context.splice_params.take()?;
        let has_header = splice_params.header_len > 0;
        if has_header || self.selector.inspects() {
            if let Some(refused) = self.send_all(slot, connection, &splice_params, out) {
                return Some(refused);
            }
        } else {
            let _: bool = self.watch(slot, connection, &splice_params);
            self.arm_spliced(slot, connection);
        }
        if self.inspections.index(slot).is_some() {
            return self.handle_inspected(slot, connection, Side::Client, context, out);
        }
        // Its checksum is right: it was looked at before the splice.
        let event = classify::while_spliced(connection, self.now, Side::Client, segment, || true).ok()?;
        if connection.is_watched() && matches!(event, Event::Segment { .. }) {
            self.note_watched(slot, connection, Side::Client, segment);
        }
        let says_more = segment.len() > 0 || !has_header;
        says_more.then_some(event)
    }

    /// Both sides have accepted: the connection is spliced, with the differences of the two numberings.
    /// Returns what goes out before all else; `first` are the first bytes, if they are not held.
    pub(super) fn meet(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        (client, ours, answer, pool): (ClientSide, ServerSide, &ServerSynAck, Option<PoolId>),
        newest: PeerNumbers,
        first: Option<&[u8]>,
    ) -> Option<SpliceParams> {
        let server = connection.ends.server(&self.settings)?;
        let version = ip_version(server.address);
        let server_mss = syn_ack_options::mss_of(&answer.options, version);
        let largest = self.settings.devices[usize::from(server.device.0)].mtu - version.header_len_with_tcp();
        let is_inspected = self.selector.inspects();
        let ends = is_inspected.then(|| (self.client_of(slot, connection), self.destination_of(slot, connection)));
        let start = self.records.start(slot).unwrap_or(self.now);
        let first = first.unwrap_or_else(|| self.reassembly.in_order(client.held));
        // What a received header said is needed for the last time.
        let header_len = send_proxy::header(
            &self.settings,
            connection,
            (first, self.headers.received.kept(slot)),
            (self.settings.core, start),
            self.rtx.draft(),
        );
        self.headers.received.forget(slot);
        let announced = u32::from(header_len);
        // RFC 9293 3.8.6: what the client was told of the window stands, whatever the server offers, though a header takes
        // its part of it.
        let mut to_server = Direction::new(client.first_byte() - announced, u32::from(answer.window));
        let mut flags = SplicedFlags::empty();
        flags.set(SplicedFlags::BLANK_SACK, client.sack && !answer.options.sack_permitted);
        flags.set(SplicedFlags::ADVERTISED_MORE, newest.told.gt(to_server.edge));
        flags.set(SplicedFlags::EVICTED, client.is_evicted);
        to_server.edge = to_server.edge.later(newest.told);
        let scale = window_scale(&client, answer.options.window_scale);
        let spliced = Spliced {
            client_seq_offset: ((ours.iss - client.irs) as u32).wrapping_add(announced),
            server_seq_offset: (client.iss - answer.isn) as u32,
            client_ts_offset: ours.tsval_shift,
            server_ts_offset: answer.tsval_shift,
            to_server,
            to_client: Direction::new(answer.isn + 1, newest.window_bytes),
            last_seen: self.now.as_millis() as u32,
            rtx: None,
            server_mss,
            scale,
            flags,
            client_fin: FinState::Open,
            server_fin: FinState::Open,
            pool: None,
        };
        connection.state = State::Spliced(spliced.of_pool(pool));
        let translated = |(tsval, tsecr): (u32, u32)| {
            let tsval = tsval.wrapping_add(ours.tsval_shift);
            (tsval, tsecr.wrapping_sub(answer.tsval_shift))
        };
        Some(SpliceParams {
            client,
            iss: ours.iss,
            header_len,
            ends,
            // RFC 6691 3: the MSS does not count options.
            mss: server_mss.min(largest) - if newest.timestamps.is_some() { 12 } else { 0 },
            timestamps: newest.timestamps.map(translated),
            ack: answer.isn + 1,
            window: scale.to_server(newest.window),
        })
    }

    /// The largest segment, without options, that fits the ports of both paths.
    fn largest_mss(&self, paths: [&Path; 2]) -> u16 {
        let fits = |path: &Path| self.settings.devices[usize::from(path.device.0)].mtu - path.header_len();
        fits(paths[0]).min(fits(paths[1]))
    }

    /// Passes a SYN, or an answer to it, on from one side to the other; in this memory, if there is some.
    fn emit_with_options(
        &mut self,
        (from, memory): (Side, Option<P::Buffer>),
        path: &Path,
        control: &Control,
        options: &OptionBytes,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(mut buffer) = memory.or_else(|| self.emit.pool.take()) else {
            return self.emit.dropped(DropReason::NoBuffer);
        };
        match forwarded_syn::write(&mut buffer, path, control, options) {
            Ok(()) => self.emit.pass_anew(from, path.device, buffer, out),
            Err(reason) => self.emit.dropped(reason),
        }
    }

    /// The client has acknowledged the server's SYN. From here on it stands as one that we have shaken hands with
    /// ourselves, with what it has agreed on with the server.
    pub(crate) fn await_header(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        context: &ActionContext<P::Buffer>,
    ) -> Option<()> {
        let now = self.now;
        let incoming = context.incoming.as_ref()?;
        let select = self.settings.listeners.get(usize::from(connection.listener))?.select;
        let State::Opening(mut client, Stage::SynAckForwarded(ours, place)) = connection.state else {
            return None;
        };
        let syn = self.handshake.forwarded_syns.get(place.into())?;
        agree(&mut client, syn, &syn.answer?);
        first_payload::note_client(&mut client, 0, incoming.buffer.data(), incoming.segment);
        connection.state = State::Opening(client, Stage::AwaitProxyHeader(ours, place));
        self.headers.received.await_header(slot);
        self.timers.arm(slot, now + select);
        self.on_cookie_returned(incoming.segment.key.remote);
        self.note_forwarded_handshake(slot, connection.listener);
        self.records.state(slot, Side::Client, record::State::Established);
        Some(())
    }

    /// Looks for the header in what has come so far.
    pub(crate) fn read_header_behind_syn(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        match self.read_header(slot, connection, context, out) {
            // A check that closes behind its header asks the server, as every SYN of this listener does.
            ControlFlow::Continue(()) | ControlFlow::Break(Some(Event::ClientFin)) => Some(Event::HeaderDone),
            ControlFlow::Break(follows) => follows,
        }
    }
}

/// RFC 7323 2.2: both ends scale, or neither does.
fn window_scale(client: &ClientSide, server: Option<u8>) -> WindowScale {
    WindowScale {
        client: client.window_scale().unwrap_or(0),
        server: server.filter(|_| client.window_scale().is_some()).unwrap_or(0),
        advertised: client.advertised_scale,
        server_scales: client.window_scale().is_none() || server.is_some(),
    }
}

/// What client and server have agreed on, as if we had shaken hands with the client ourselves.
pub(super) fn agree(client: &mut ClientSide, syn: &ForwardedSyn, answer: &ServerSynAck) {
    let (asked, answered) = (TcpOptions::parse(&syn.options), answer.options);
    // RFC 7323 2.2: windows are scaled if both SYNs said so, and then by what each said itself.
    let scales = asked.window_scale.zip(answered.window_scale);
    *client = client.scaled(scales.map(|(client, _)| client));
    client.sack = asked.sack_permitted && answered.sack_permitted;
    client.timestamps = asked.timestamps.is_some() && answered.timestamps.is_some();
    client.advertised_scale = scales.map_or(0, |(_, server)| server);
    client.advertised_units = ClientSide::units_of_window(answer.window.min(MAX_FIRST_PAYLOAD as u16));
}
