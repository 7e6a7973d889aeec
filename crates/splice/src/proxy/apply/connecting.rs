//! The server's handshake: a port, a SYN, its repetition, the next server, and at last the splice.

use super::ActionContext;
use super::inspect_start::InspectStart;
use crate::admission::round_budget::has_room_for_data;
use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::ids::ServerId;
use crate::base::output::{NextHops, Output};
use crate::base::path::Path;
use crate::capture::FrameKind::{self, Held, Own};
use crate::emit::Emitter;
use crate::handshake::forwarded_syn::ServerSynAck;
use crate::proxy::apply::forwarding_syn::PeerNumbers;
use crate::proxy::{Incoming, Rooms, send, timeout};
use crate::reassembly::{BufferId, EvictionClass};
use crate::retransmit::rtx::RtxQueue;
use crate::retransmit::rtx_timer::RtxTimer;
use crate::session::connection::Connection;
use crate::session::endpoints::{Endpoints, ServerLeg};
use crate::session::event::{Event, FinChange};
use crate::session::numbers::{self, Control};
use crate::session::segment::Segment;
use crate::session::state::{Call, ClientSide, ServerSide, Stage, State};
use crate::session::table::{FlowRef, Mark, NoPlace};
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::counters::TcpCounter;
use netfcts::pool::Taken;
use netfcts::record::{self, Cause, RecordFlags};
use netfcts::seq::SeqNum;
use netfcts::{FourTuple, Side};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;

/// Sources from which a server is called in turn while the flow table has no place for the flow of one: each has another
/// hash.
const SOURCES_TRIED: usize = 4;

/// The end of the handshake: what is needed once more and then never again.
pub(super) struct SpliceParams {
    pub(super) client: ClientSide,
    /// Our initial sequence number towards the server.
    pub(super) iss: SeqNum,
    /// The length of the PROXY header, as it is drafted in the retransmission queue.
    pub(super) header_len: u16,
    /// The client and whom it called, by the PROXY header that came before its bytes if there was one.
    pub(super) ends: Option<(SocketAddr, SocketAddr)>,
    pub(super) mss: u16,
    pub(super) timestamps: Option<(u32, u32)>,
    pub(super) ack: SeqNum,
    pub(super) window: u16,
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Begins the call to the server that the selector has chosen.
    #[inline(never)]
    pub(crate) fn begin_call(&mut self, connection: &mut Connection, context: &ActionContext<P::Buffer>) {
        connection.state.enter(Stage::ServerSynSent(Call::new(context.pool)));
    }

    /// Takes a source port towards the chosen server; `is_taken` says that the client's own source is another connection's.
    #[inline(never)]
    pub(crate) fn take_port(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        is_taken: bool,
        context: &mut ActionContext<P::Buffer>,
    ) -> Option<Event> {
        let server = context.server?;
        // The source towards a transparent server is the client's own, and there is no other.
        let is_transparent = self.settings.servers.get(usize::from(server.0))?.transparent;
        let tries = if is_transparent { 1 } else { SOURCES_TRIED };
        for _ in 0..tries {
            match self.call_from_source(slot, connection, server, is_taken) {
                None => break,
                Some(Err(refusal)) => {
                    self.emit.dropped(refusal.into());
                    self.release_port(slot, connection, None);
                }
                Some(Ok(())) => {
                    self.records.called(slot);
                    if let Some(tap) = self.emit.concerned_tap() {
                        tap.note_call(slot, server);
                    }
                    return Some(Event::PortTaken);
                }
            }
        }
        context.given_up = Some(server);
        connection.state.call_mut()?.failure = Cause::NoPort;
        Some(Event::NoPort)
    }

    /// Takes a source towards `server` and puts its flow into the table; `None` if no source is left. If the table refuses the
    /// flow, the source is still the connection's, and to be given back.
    #[inline]
    fn call_from_source(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        server: ServerId,
        is_taken: bool,
    ) -> Option<Result<(), NoPlace>> {
        let now = self.now;
        let settings = self.settings.servers.get(usize::from(server.0))?;
        let server_end = (settings.address, settings.port);
        let (local_address, taken) = self.take_source(slot, connection, usize::from(server.0), is_taken)?;
        let local_port = NonZeroU16::new(taken.port)?;
        if taken.early {
            self.records.flag(slot, RecordFlags::EARLY_PORT);
        }
        let tsval = connection.state.client()?.tsval;
        let leg = ServerLeg {
            server,
            local_address,
            local_port,
        };
        connection.ends.leg = Some(leg);
        let client = connection.ends.client_address();
        let key = FourTuple::new(
            server_end,
            leg.source(client, &self.settings, &self.transparent_sources),
        );
        // The line is on its way while the numbers are made.
        let hash = self.flows.hash(&key);
        self.flows.prefetch(hash);
        // RFC 6528 3, and never behind what the server may remember of this port's last connection.
        let clock = self.handshake.iss(now, &key);
        // RFC 7323 5.5 and RFC 6191 2: nor may the timestamps go back.
        let behind = taken.last_use.map_or(0, |last| last.next_tsval.wrapping_sub(tsval));
        let call = connection.state.call_mut()?;
        call.side = ServerSide {
            iss: taken.last_use.map_or(clock, |last| clock.later(last.next_seq)),
            tsval_shift: if (behind as i32) > 0 { behind } else { 0 },
        };
        call.attempts.begin_call();
        call.called_at = timeout::milliseconds_after(now);
        let pool = call.pool;
        // Until the port is given back: see `release_port`.
        self.upstream.note_open(server, self.now);
        self.free_key(hash, &key);
        let is_captured = self.emit.concerned_tap().is_some_and(|tap| tap.has(slot));
        let flow = FlowRef::server(slot).marked_if(is_captured, Mark::Captured);
        if let Err(refusal) = self.flows.insert(hash, flow) {
            return Some(Err(refusal));
        }
        if let Some(pool) = pool {
            self.upstream.note_call(pool, now);
        }
        Some(Ok(()))
    }

    /// Takes an address, by its index, and a port towards `server`, with what the server may remember of them.
    fn take_source(
        &mut self,
        slot: u32,
        connection: &Connection,
        server: usize,
        is_taken: bool,
    ) -> Option<(u16, Taken)> {
        let settings = self.settings.servers.get(server)?;
        if settings.transparent {
            let reserved = self.reserve_client_source(slot, connection, settings.address, is_taken);
            let (local_address, port) = reserved.map_err(|reason| self.emit.dropped(reason)).ok()?;
            let taken = Taken {
                port,
                last_use: None,
                early: false,
                next: None,
            };
            return Some((local_address, taken));
        }
        // Addresses take turns, so that each has its ports rest as long as possible.
        let locals = settings.locals.len();
        let after = |local: usize| if local + 1 < locals { local + 1 } else { 0 };
        let mut local = self.sources.next_local(server);
        let mut taken = None;
        for _ in 0..locals {
            let from = (local, &settings.locals[local]);
            taken = self.sources.take(server, from, self.now);
            if taken.is_some() {
                break;
            }
            local = after(local);
        }
        let taken = taken?;
        self.sources.set_next_local(server, after(local));
        let address = settings.locals[local].address;
        if let Some(next) = taken.next {
            self.prefetch_next(server, (address, next));
        }
        Some((address, taken))
    }

    /// Asks for the line of the flow table that the next connection from this pool of ports will be put into: it is too far
    /// away to be asked for when it is needed.
    #[inline]
    fn prefetch_next(&self, server: usize, (address, port): (u16, u16)) {
        let server = &self.settings.servers[server];
        let source = (self.settings.addresses.value(address), port);
        let key = FourTuple::new((server.address, server.port), source);
        self.flows.prefetch(self.flows.hash(&key));
    }

    /// Sends our SYN, with what was agreed with the client and no more, and waits for its answer.
    #[inline(never)]
    pub(crate) fn send_syn(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        memory: Option<P::Buffer>,
        again: bool,
        out: &mut impl Output<P::Buffer>,
    ) {
        let now = self.now;
        let Some(Stage::ServerSynSent(call)) = connection.state.stage_mut() else {
            return self.send_forwarded_syn(slot, connection, out);
        };
        let Some(server) = connection.ends.server(&self.settings) else {
            return;
        };
        call.attempts.note_syn();
        if again {
            // Those that were due while the core was away are not made up for.
            let waited = timeout::time_since(now, call.called_at);
            while timeout::next_syn_after(server, call.attempts) <= waited {
                call.attempts.note_syn();
            }
            self.arm_call(slot, connection);
        } else {
            // As `arm_call` for a call that begins.
            let overdue = call
                .pool
                .and_then(|pool| self.upstream.bound(pool))
                .unwrap_or(Duration::MAX);
            self.timers
                .arm(slot, now + server.syn_retry.min(server.connect_timeout).min(overdue));
        }
        // Read where they are: a copy of what has just been written waits for that.
        let State::Opening(client, Stage::ServerSynSent(Call { side, .. })) = &connection.state else {
            return;
        };
        if again {
            self.records.flag(slot, RecordFlags::RETRANSMITTED);
        }
        let Some(path) = self.resolved(connection, Side::Server) else {
            // The timer tries again; by then the neighbour may have answered.
            return;
        };
        let offered = send::offered(&self.settings, connection, client, None);
        let control = Control {
            seq: side.iss,
            ack: SeqNum(0),
            flags: TcpFlags::SYN,
            // RFC 7323 2.2: the window of a SYN is never scaled.
            window: client.window_bytes().min(0xffff) as u16,
            options: TcpOptions {
                mss: Some(offered.mss),
                window_scale: client.window_scale(),
                sack_permitted: client.sack,
                timestamps: client
                    .timestamps
                    .then(|| (client.tsval.wrapping_add(side.tsval_shift), 0)),
            },
        };
        self.records.count(Side::Server, TcpCounter::SentSyn);
        self.emit.send(memory, &path, &control, &[], out);
    }

    /// Leaves the server that is called, and notes why if it has failed.
    pub(crate) fn release_server(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        failure: Option<Cause>,
        context: &mut ActionContext<P::Buffer>,
    ) {
        context.given_up = connection.ends.leg.map(|leg| leg.server);
        self.release_port(slot, connection, None);
        if let (Some(failure), Some(server), Some(call)) = (failure, context.given_up, connection.state.call_mut()) {
            call.failure = failure;
            self.upstream.note_failure(server, self.now);
        }
    }

    /// The next server of the pool, or, if `may_retry`, the one that was given up.
    pub(crate) fn next_server(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        may_retry: bool,
        context: &mut ActionContext<P::Buffer>,
    ) -> Option<Event> {
        let given_up = context.given_up?;
        let call = connection.state.call_mut()?;
        let has_places = call.note_tried(given_up);
        let pool = call.pool.filter(|_| has_places);
        context.server = pool.and_then(|pool| {
            let seeker = self.seeker_again(slot, connection, pool);
            let call = connection.state.call()?;
            self.upstream.next_after(pool, seeker, self.now, call.tried())
        });
        let call = connection.state.call_mut()?;
        if context.server.is_some() {
            return Some(Event::Selected);
        }
        // Silence may be nothing but loss; a refusal is an answer.
        let allowed = self.settings.servers.get(usize::from(given_up.0))?.retries;
        if !may_retry || call.attempts.retries() >= allowed {
            return Some(Event::NoServer);
        }
        call.attempts.note_retry();
        context.server = Some(given_up);
        Some(Event::Selected)
    }

    /// The call is overdue: another server gets it, if there is one. This costs none of the connection's tries, and says
    /// nothing against the server that is left: it may be called again.
    pub(crate) fn other_server(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        context: &mut ActionContext<P::Buffer>,
    ) -> Option<Event> {
        let call = connection.state.call()?;
        let server = connection.ends.leg?.server;
        let give_up = |pool| {
            let seeker = self.seeker_again(slot, connection, pool);
            (self.upstream).give_up(pool, seeker, server, self.now, call.tried())
        };
        let Some(next) = call.pool.and_then(give_up) else {
            self.arm_call(slot, connection);
            return None;
        };
        connection.state.call_mut()?.attempts.note_given_up();
        context.server = Some(next);
        Some(Event::Replaced)
    }

    /// The server has answered this call of a connection.
    pub(super) fn note_answer(&mut self, slot: u32, ends: &Endpoints, call: &Call) {
        let now = self.now;
        let Some(ServerLeg { server, .. }) = ends.leg else {
            return;
        };
        self.upstream.note_success(server, now);
        // Karn's algorithm (RFC 6298 3): nobody knows which of several SYNs was answered.
        if call.attempts.syns() == 1 {
            let took = timeout::time_since(now, call.called_at);
            if let Some(pool) = call.pool {
                self.upstream.note_answer_time(pool, took);
            }
            let called = (Side::Server, record::State::SynReceived);
            let exact = self.records.micros_since(slot, called);
            let took = exact.unwrap_or(took.as_micros() as u64);
            self.tally.note_connect(call.pool, server.0, took);
        }
        self.records.state(slot, Side::Server, record::State::Established);
    }

    /// The server answers our SYN out of an older connection, or somebody in its place: a RST ends that, and the SYN goes out again, once a
    /// second (RFC 5961 10).
    pub(super) fn reset_stale_server(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(Incoming { buffer, segment }) = context.incoming.take() else {
            return;
        };
        if !self.may_challenge(connection, Side::Server) {
            return self.emit.dropped(DropReason::RateLimited);
        }
        self.reset_sender(segment, buffer, out);
        self.send_syn(slot, connection, None, true, out);
    }

    /// RFC 9293 3.10.7.3: `<SEQ=SEG.ACK><CTL=RST>`.
    pub(crate) fn reset_sender(&mut self, segment: &Segment, buffer: P::Buffer, out: &mut impl Output<P::Buffer>) {
        let path = self.path_back(segment);
        let control = Control::new(segment.ack, SeqNum(0), TcpFlags::RST, 0);
        self.emit.send(Some(buffer), &path, &control, &[], out);
    }

    /// The server has accepted: from here on the two numberings are known, and their differences are all that is kept.
    #[inline(never)]
    pub(crate) fn splice(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        context: &mut ActionContext<P::Buffer>,
    ) -> Option<()> {
        let (client, ours, answer, window_bytes, pool) = match connection.state {
            State::Opening(client, Stage::ServerSynSent(call)) => {
                let Incoming { buffer, segment } = context.incoming.as_ref()?;
                let mut options = TcpOptions::parse(segment.options(buffer.data()));
                options.timestamps = options.timestamps.filter(|_| client.timestamps);
                self.note_answer(slot, &connection.ends, &call);
                self.records.count(Side::Server, TcpCounter::RecvSynAck);
                let answer = ServerSynAck::of(segment, options, self.handshake.timestamp(self.now));
                (client, call.side, answer, client.window_bytes(), call.pool)
            }
            // A PROXY header is whole, or will not come.
            State::Opening(client, Stage::AwaitProxyHeader(ours, syn)) => {
                let syn = self.handshake.forwarded_syns.remove(syn.into())?;
                (client, ours, syn.answer?, u32::from(syn.window), syn.pool)
            }
            _ => return None,
        };
        let newest = PeerNumbers {
            timestamps: client.timestamps.then_some((client.tsval, answer.newest_tsval)),
            window: client.window,
            window_bytes,
            told: numbers::advertised_edge(&client),
        };
        context.splice_params = Some(self.meet(slot, connection, (client, ours, &answer, pool), newest, None)?);
        // The timer is set when it is known what is unacknowledged: see `queue_unacked`.
        Some(())
    }

    #[inline(never)]
    pub(crate) fn acknowledge_server(
        &mut self,
        connection: &mut Connection,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        // A repetition is answered like any segment out of place: rate limited.
        let Some(splice_params) = context.splice_params.as_ref() else {
            return self.challenge(connection, context, out);
        };
        let Some(path) = self.resolved(connection, Side::Server) else {
            return;
        };
        let control = splice_params.control(splice_params.start(), TcpFlags::ACK);
        let memory = context.incoming.take().map(|incoming| incoming.buffer);
        self.records.count(Side::Server, TcpCounter::SentSynAck2);
        self.emit.send(memory, &path, &control, &[], out);
    }

    /// Sends everything held, in segments that the server takes; what the client has no ACK for is then forgotten here.
    pub(super) fn send_all(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        splice_params: &SpliceParams,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        if self.selector.inspects() {
            match self.begin_inspection(slot, connection, splice_params) {
                InspectStart::Ordinary => {}
                InspectStart::Inspected => return self.send_first(slot, connection, splice_params, out),
                InspectStart::NoRoom => return self.refuse_inspection(splice_params),
            }
        }
        let is_watched = self.watch(slot, connection, splice_params);
        let (client, mss) = (&splice_params.client, splice_params.mss);
        // A neighbour that is gone for a while loses what is sent, as any link may; what is unacknowledged is repeated.
        let path = self.path_to(Side::Server, connection);
        let spliced = connection.spliced_mut()?;
        let header = self.rtx.drafted(splice_params.header_len);
        let is_joined = splice_params.joins(self.reassembly.in_order(client.held), mss);
        let alone = if is_joined { &[] } else { header };
        for (index, payload) in alone.chunks(usize::from(mss.max(1))).enumerate() {
            let at = splice_params.start() + (index * usize::from(mss.max(1))) as u32;
            let control = splice_params.control(at, TcpFlags::ACK | TcpFlags::PSH);
            emit_on(&mut self.emit, path.as_ref(), (Own, &control), (&[], payload), out);
        }
        let first = client.first_byte();
        spliced.to_server.edge = spliced.to_server.edge.later(first);
        spliced.to_server.note_sent(splice_params.start(), first);
        let sends_first_bytes = !self.reassembly.in_order(client.held).is_empty();
        let fin_at = client.fin_offset();
        let mut fin_sent = false;
        for (start, run) in self.reassembly.runs(client.held) {
            let end = start + run.len();
            for (index, payload) in run.chunks(usize::from(mss.max(1))).enumerate() {
                let at = start + index * usize::from(mss.max(1));
                let is_last = at + payload.len() == end;
                let mut flags = TcpFlags::ACK;
                flags.set(TcpFlags::PSH, is_last);
                flags.set(TcpFlags::FIN, is_last && fin_at == Some(end));
                fin_sent |= flags.contains(TcpFlags::FIN);
                let (seq, front) = match at {
                    0 if is_joined => (splice_params.start(), header),
                    _ => (first + at as u32, &[][..]),
                };
                let control = splice_params.control(seq, flags);
                self.records.count(Side::Server, TcpCounter::SentPayload);
                emit_on(&mut self.emit, path.as_ref(), (Held, &control), (front, payload), out);
            }
            let last = first + end as u32 + u32::from(fin_at == Some(end));
            // The window was promised before it was known: what was held is sent whatever the server offers.
            spliced.to_server.edge = spliced.to_server.edge.later(last);
            spliced.to_server.note_sent(first + start as u32, last);
        }
        if fin_at == Some(0) && !fin_sent {
            // The client has closed without a byte.
            fin_sent = true;
            let control = splice_params.control(first, TcpFlags::ACK | TcpFlags::FIN);
            emit_on(&mut self.emit, path.as_ref(), (Held, &control), (&[], &[]), out);
            spliced.to_server.note_sent(first, first + 1);
        }
        let bytes = i64::from(spliced.to_server.end - first) - i64::from(fin_sent);
        connection.count_bytes(Side::Client, bytes);
        if is_watched {
            self.note_held(slot, connection, splice_params);
        }
        self.queue_unacked(slot, connection, splice_params, sends_first_bytes);
        fin_sent.then_some(CLIENT_FIN)
    }

    /// Notes what was sent and is ours to repeat: the header, and client bytes that were acknowledged. The rest of what was
    /// held is the client's again.
    fn queue_unacked(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        splice_params: &SpliceParams,
        first_bytes_sent: bool,
    ) {
        let client = &splice_params.client;
        let mut kept = client.held;
        let has_acknowledged = client.acknowledged_len() > 0;
        if has_acknowledged {
            self.reassembly.set_claim(kept, EvictionClass::Pinned);
        } else {
            self.reassembly.close(&mut kept);
        }
        if has_acknowledged || splice_params.header_len > 0 {
            self.push_rtx(slot, connection, splice_params, (kept, first_bytes_sent));
        }
        self.arm_spliced(slot, connection);
    }

    fn push_rtx(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        splice_params: &SpliceParams,
        (kept, first_bytes_sent): (Option<BufferId>, bool),
    ) {
        if splice_params.header_len > 0 {
            self.records.flag(slot, RecordFlags::PROXY_OUT);
        }
        let client = &splice_params.client;
        let first = client.first_byte();
        let is_shut = (connection.spliced()).is_some_and(|spliced| spliced.to_server.edge.le(first));
        let queue = RtxQueue {
            header_len: splice_params.header_len,
            held: kept,
            first,
            end: client.last_ack_sent,
            mss: splice_params.mss,
            timestamps: splice_params.timestamps,
            timer: RtxTimer::new(self.now.as_millis() as u32),
            first_bytes_sent,
            is_shut,
            snd_una: splice_params.start(),
            last_window: None,
        };
        match (self.rtx.insert(queue), connection.spliced_mut()) {
            (Ok(id), Some(spliced)) => spliced.rtx = Some(id),
            // Sent, but not to be repeated: if it is lost, the server's own timer ends the connection.
            (Ok(_), None) => {}
            (Err(mut queue), _) => {
                self.reassembly.close(&mut queue.held);
                self.emit.dropped(DropReason::RtxFull);
            }
        }
    }
}

/// The client's FIN, held until there was a server.
const CLIENT_FIN: Event = Event::Segment {
    from: Side::Client,
    fin: FinChange::Noted,
    acknowledges_fin: false,
};

/// The most of a header and the bytes behind it that goes out as one segment: what an Ethernet frame of 1500 bytes holds.
const MAX_JOINED: usize = 1460;

impl SpliceParams {
    /// The first number of what the server gets, in the client's numbering.
    pub(super) fn start(&self) -> SeqNum {
        self.client.first_byte() - u32::from(self.header_len)
    }

    /// True if header and first bytes go out as one segment, because there are both and they fit: one packet less each way.
    /// What of it is lost is repeated as if they had gone apart, the header by us and the bytes by whom they belong to.
    fn joins(&self, first_bytes: &[u8], mss: u16) -> bool {
        let length = usize::from(self.header_len) + first_bytes.len();
        self.header_len > 0 && !first_bytes.is_empty() && length <= MAX_JOINED.min(usize::from(mss))
    }

    /// A segment to the server at `seq` of the client's numbering.
    fn control(&self, seq: SeqNum, flags: TcpFlags) -> Control {
        let shift = ((self.iss - self.client.irs) as u32).wrapping_add(self.header_len.into());
        Control::new(seq + shift, self.ack, flags, self.window).timed(self.timestamps)
    }
}

/// Sends a segment with bytes from two places, if there is a way and room. What is not sent is repeated like what was lost:
/// by its timer if it is acknowledged to the client, else by the client.
fn emit_on<P: BufferPool>(
    emit: &mut Emitter<P>,
    path: Option<&Path>,
    (kind, control): (FrameKind, &Control),
    (front, payload): (&[u8], &[u8]),
    out: &mut impl Output<P::Buffer>,
) {
    let sent = match path {
        None => Err(DropReason::NoNeighbour),
        Some(_) if !has_room_for_data(out) => Err(DropReason::NoRoom),
        Some(path) => emit.send_as(kind, None, path, control, (front, payload), out),
    };
    if let Err(reason) = sent {
        emit.dropped(reason);
    }
}
