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
//! Where a PROXY header comes before the client's bytes the client's ACK ends here, and [`awaiting`](super::awaiting) goes on.

use super::ActionContext;
use super::calling::SpliceParams;
use crate::base::callbacks::{MAX_FIRST_PAYLOAD, SelectServer};
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::base::path::Path;
use crate::base::settings::AcceptProxy;
use crate::handshake::forwarded_syn::{self, ForwardedSyn, ForwardedSynAck};
use crate::handshake::syn_ack_options;
use crate::proxy::{Incoming, Proxy, routes};
use crate::proxy_header::send_proxy;
use crate::retransmit::rtx;
use crate::session::classify;
use crate::session::close::Direction;
use crate::session::connection::{Attempts, Connection, NO_SERVER, Opening, Spliced, Stage, WindowScale};
use crate::session::event::Event;
use crate::session::handles::BufferId;
use crate::session::numbers::Control;
use crate::session::options::Agreed;
use crate::session::phase::Phase;
use crate::session::table::FlowRef;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::frame::IpVersion;
use e2d2::wire::tcp::options::OptionBytes;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::Side;
use netfcts::counters::TcpCounter;
use netfcts::leg::ip_version;
use netfcts::record::{Cause, State};
use netfcts::seq::SeqNum;

/// What the client has said last, and what it has been told.
pub(super) struct PeerNumbers {
    /// Its TSval and TSecr, in its own view.
    pub(super) timestamps: Option<(u32, u32)>,
    /// Its window field.
    pub(super) window: u16,
    /// The first number that it has not been allowed to send.
    pub(super) told: SeqNum,
}

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// True while there is room to remember one more SYN. Past the mark the listener answers SYNs itself, as one that
    /// binds at the handshake: with cookies, which cost no memory.
    pub(crate) fn has_room_for_syn(&self) -> bool {
        self.handshake.forwarded_syns.len() < self.handshake.forwarded_syns.capacity() / 4 * 3
            && self.connections.len() < self.connections.capacity() / 4 * 3
    }

    /// Makes a connection of a SYN and lets it choose its server.
    pub(crate) fn remember_syn(
        &mut self,
        now: Instant,
        (listener, address): (u16, u16),
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        if self.shutdown.is_draining {
            return self.emit.dropped(DropReason::Draining);
        }
        let segment = incoming.segment;
        let frame = incoming.buffer.data();
        let is_awaited = self.settings.listeners[usize::from(listener)].accept != AcceptProxy::Off;
        let Ok(place) = self
            .handshake
            .forwarded_syns
            .insert(ForwardedSyn::of(segment, frame, is_awaited))
        else {
            return self.emit.dropped(DropReason::ForwardedSynsFull);
        };
        let opening = self.opening_of_syn(now, place as u16, &incoming);
        let mut connection = Connection::new(
            (segment.key.remote, segment.key.remote_port),
            segment.source_mac,
            segment.device,
            (listener, address, segment.key.local_port),
            opening,
        );
        connection.phase = Phase::SynForwarded;
        connection.packets_from_client = 1;
        let Ok(slot) = self.connections.insert(connection) else {
            self.handshake.forwarded_syns.remove(place);
            return self.emit.dropped(DropReason::TableFull);
        };
        if let Err(refusal) = self.flows.insert(segment.hash, FlowRef::client(slot)) {
            self.connections.remove(slot);
            self.handshake.forwarded_syns.remove(place);
            return self.emit.drops.add(refusal.into(), 1);
        }
        self.records.begin_with_syn(slot, now);
        self.tally.note_begin(listener);
        self.drive(now, slot, Event::Ready, Some(incoming), out);
    }

    fn opening_of_syn(&self, now: Instant, place: u16, incoming: &Incoming<P::Buffer>) -> Opening {
        let segment = incoming.segment;
        let offered = TcpOptions::parse(segment.options(incoming.buffer.data()));
        Opening {
            client_isn: segment.seq,
            // RFC 6528 3: the number that the client gets is ours, so that it does not depend on the server whose answer
            // comes first, nor on what a server that has started anew answers to the same SYN.
            cookie: self.handshake.isn.isn(
                now,
                (&segment.key.local.to_be_bytes(), segment.key.local_port),
                (&segment.key.remote.to_be_bytes(), segment.key.remote_port),
            ),
            client_tsval: offered.timestamps.map_or(0, |(tsval, _)| tsval),
            acknowledged: segment.seq + 1,
            held: BufferId::NONE,
            server_side_isn: SeqNum(0),
            tsval_shift: 0,
            called_at: 0,
            pool: Opening::NO_POOL,
            // Nothing is, before the server has answered.
            agreed: Agreed {
                mss: syn_ack_options::mss_of(&offered, segment.layout.version),
                window_scale: None,
                sack: false,
            },
            client_window: segment.window,
            fin_offset: Opening::NO_FIN,
            advertised_scale: 0,
            advertised_units: 0,
            timestamps: false,
            attempts: Attempts::default(),
            tried: [NO_SERVER; Opening::MAX_TRIED],
            failure: Cause::NoServer,
            syn: place,
        }
    }

    /// Passes the client's SYN on to the chosen server. How long that may take counts from the first time: the client
    /// repeats it as it likes.
    pub(crate) fn send_passed_syn(&mut self, now: Instant, slot: u32, out: &mut impl Output<P::Buffer>) {
        let Some(opening) = self.opening_mut(slot) else { return };
        opening.attempts.note_syn();
        let opening = *opening;
        if opening.attempts.syns() == 1 {
            self.arm_call(now, slot);
        }
        let (Some(connection), Some(syn)) = (
            self.connections.get(slot),
            self.handshake.forwarded_syns.get(opening.syn.into()),
        ) else {
            return;
        };
        let Some(path) = routes::path_to_server(&self.settings, &self.next_hops, connection) else {
            // The client's repetition tries again; by then the neighbour may have answered.
            return self.emit.dropped(DropReason::NoNeighbour);
        };
        let control = Control {
            seq: opening.server_side_isn,
            ack: SeqNum(0),
            flags: syn.flags,
            window: syn.window,
            options: TcpOptions::NONE,
        };
        let largest = self.largest_mss([&path, &routes::path_to_client(&self.settings, connection)]);
        let timestamps = (opening.client_tsval.wrapping_add(opening.tsval_shift), 0);
        let options = forwarded_syn::translated(&syn.options, largest, Some(timestamps));
        self.records.count(Side::Server, TcpCounter::SentSyn);
        self.emit_with_options(None, &path, &control, &options, out);
    }

    /// Passes the server's SYN-ACK on to the client, with our number in place of the server's.
    pub(crate) fn pass_syn_ack(
        &mut self,
        now: Instant,
        slot: u32,
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(Incoming { buffer, segment }) = scene.incoming.take() else {
            return;
        };
        let Some((opening, server)) = self.opening_with_server(slot) else {
            return;
        };
        let clock = self.handshake.timestamp(now);
        let raw = forwarded_syn::passable(segment.options(buffer.data()));
        let options = TcpOptions::parse(&raw);
        let Some(syn) = self.handshake.forwarded_syns.get_mut(opening.syn.into()) else {
            return;
        };
        let is_first = syn.answer.is_none();
        // A server that has started anew, or that answers from SYN cookies, may come with another number the second
        // time. The client sees no difference; what it acknowledges is the server's latest.
        let known = syn.answer.filter(|answer| answer.isn == segment.seq);
        let answer = known.unwrap_or(ForwardedSynAck {
            isn: segment.seq,
            window: segment.window,
            options,
            tsval_shift: options.timestamps.map_or(0, |(tsval, _)| clock.wrapping_sub(tsval)),
            newest_tsval: 0,
        });
        let newest = options
            .timestamps
            .map(|(tsval, _)| tsval.wrapping_add(answer.tsval_shift));
        syn.answer = Some(ForwardedSynAck {
            newest_tsval: newest.unwrap_or(answer.newest_tsval),
            ..answer
        });
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        self.records.count(Side::Server, TcpCounter::RecvSynAck);
        self.records.count(Side::Client, TcpCounter::SentSynAck);
        let path = routes::path_to_client(&self.settings, connection);
        let largest = match routes::path_to_server(&self.settings, &self.next_hops, connection) {
            Some(to_server) => self.largest_mss([&path, &to_server]),
            None => self.largest_mss([&path, &path]),
        };
        let timestamps = options.timestamps.map(|(tsval, tsecr)| {
            (
                tsval.wrapping_add(answer.tsval_shift),
                tsecr.wrapping_sub(opening.tsval_shift),
            )
        });
        let control = Control {
            seq: opening.cookie,
            ack: opening.first_byte(),
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
        if is_first {
            let select = self.settings.listeners[usize::from(connection.listener)].select;
            self.timers.arm(slot, now + select);
            self.note_answer(now, slot, server, &opening);
            self.records.state(slot, Side::Server, State::Established, now);
        }
        self.emit_with_options(Some(buffer), &path, &control, &raw, out);
    }

    /// The client has acknowledged the server's SYN: both numberings are known, and the PROXY header goes out, if there
    /// is one. The segment is then one of a spliced connection; but a mere ACK behind a header says nothing any more.
    pub(crate) fn establish(
        &mut self,
        now: Instant,
        slot: u32,
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        let Incoming { buffer, segment } = scene.incoming.as_ref()?;
        let segment = *segment;
        let timestamps = TcpOptions::parse(segment.options(buffer.data())).timestamps;
        let connection = self.connections.get(slot)?;
        let mut opening = *connection.opening()?;
        let syn = self.handshake.forwarded_syns.remove(opening.syn.into())?;
        opening.syn = forwarded_syn::NONE;
        let answer = syn.answer?;
        let start = self.records.start(slot).unwrap_or(now);
        let payload = segment.payload(buffer.data());
        let header_len = send_proxy::header(
            &self.settings,
            connection,
            (payload, None),
            (self.settings.core, start),
            self.rtx.draft(),
        );
        let has_header = header_len > 0;
        let newest = PeerNumbers {
            timestamps,
            window: segment.window,
            told: opening.first_byte() + u32::from(answer.window),
        };
        let (spliced, handoff) = self.meet(connection, (opening, &syn, &answer), header_len, newest);
        self.connections.get_mut(slot)?.stage = Stage::Spliced(spliced);
        self.on_cookie_returned(now, segment.key.remote);
        self.records.state(slot, Side::Client, State::Established, now);
        if has_header || self.selector.inspects() {
            scene.handoff = Some(handoff);
            if let Some(refused) = self.send_held(now, slot, scene, out) {
                return Some(refused);
            }
        } else {
            self.arm_spliced(now, slot);
        }
        if self.inspections.index(slot).is_some() {
            let incoming = scene.incoming.take()?;
            self.handle_inspected(now, slot, Side::Client, incoming, out);
            return None;
        }
        // Its checksum is right: it was looked at before the splice.
        let connection = self.connections.get_mut(slot)?;
        let event = classify::while_spliced(connection, now, Side::Client, segment, || true).ok()?;
        let says_more = segment.len() > 0 || !has_header;
        says_more.then_some(event)
    }

    /// What is known when the two ends have shaken hands: how their numbers differ, and what goes out before all else.
    pub(super) fn meet(
        &self,
        connection: &Connection,
        (opening, syn, answer): (Opening, &ForwardedSyn, &ForwardedSynAck),
        header_len: u16,
        newest: PeerNumbers,
    ) -> (Spliced, SpliceParams) {
        let announced = u32::from(header_len);
        let server = self.settings.servers.get(usize::from(connection.server));
        let version = server.map_or(IpVersion::V4, |server| ip_version(server.address));
        let server_mss = syn_ack_options::mss_of(&answer.options, version);
        // RFC 9293 3.8.6: what the client was told of the window stands, though the header takes its part of it.
        let mut to_server = Direction::new(opening.first_byte() - announced, u32::from(answer.window));
        let advertised_more = newest.told.gt(to_server.edge);
        to_server.edge = to_server.edge.later(newest.told);
        let spliced = Spliced {
            client_seq_offset: ((opening.server_side_isn - opening.client_isn) as u32).wrapping_add(announced),
            server_seq_offset: (opening.cookie - answer.isn) as u32,
            client_ts_offset: opening.tsval_shift,
            server_ts_offset: answer.tsval_shift,
            to_server,
            to_client: Direction::new(answer.isn + 1, u32::from(syn.window)),
            last_seen: self.now.as_millis() as u32,
            owed: rtx::NOTHING,
            server_mss,
            scale: scale_between(TcpOptions::parse(&syn.options), answer.options),
            // What the two have agreed on, they have agreed on with each other.
            blank_sack: false,
            beginning: Spliced::beginning(advertised_more, opening.held == BufferId::GIVEN_UP),
        };
        let path = routes::path_to_server(&self.settings, &self.next_hops, connection);
        let largest = path.map_or(IpVersion::V4.default_mss(), |path| self.largest_mss([&path, &path]));
        let handoff = SpliceParams {
            opening,
            header_len,
            ends: None,
            // RFC 6691 3: the MSS does not count options.
            mss: server_mss.min(largest) - if newest.timestamps.is_some() { 12 } else { 0 },
            timestamps: newest.timestamps.map(|(tsval, tsecr)| {
                (
                    tsval.wrapping_add(opening.tsval_shift),
                    tsecr.wrapping_sub(answer.tsval_shift),
                )
            }),
            ack: answer.isn + 1,
            window: newest.window,
        };
        (spliced, handoff)
    }

    /// What the connection in `slot` is opening with, and the number of its server.
    fn opening_with_server(&self, slot: u32) -> Option<(Opening, u16)> {
        let connection = self.connections.get(slot)?;
        Some((*connection.opening()?, connection.server))
    }

    /// The largest segment, without options, that fits the ports of both paths.
    fn largest_mss(&self, paths: [&Path; 2]) -> u16 {
        let fits = |path: &Path| self.settings.devices[usize::from(path.device.0)].mtu - path.header_len();
        fits(paths[0]).min(fits(paths[1]))
    }

    fn emit_with_options(
        &mut self,
        memory: Option<P::Buffer>,
        path: &Path,
        control: &Control,
        options: &OptionBytes,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(mut buffer) = memory.or_else(|| self.emit.pool.take()) else {
            return self.emit.dropped(DropReason::NoBuffer);
        };
        match forwarded_syn::write(&mut buffer, path, control, options) {
            Ok(()) => out.send(path.device, buffer),
            Err(reason) => self.emit.dropped(reason),
        }
    }
}

/// RFC 7323 2.2: windows are scaled if both SYNs said so, and then by what each said itself.
pub(super) fn scale_between(client: TcpOptions, server: TcpOptions) -> WindowScale {
    let (client, server) = client.window_scale.zip(server.window_scale).unwrap_or((0, 0));
    WindowScale {
        client,
        server,
        advertised: server,
        server_scales: true,
    }
}
