//! The shell: one [`Proxy`] looks a connection up, asks [`step`](crate::session::step), and does it with the other rooms.
//!
//! Methods of [`Proxy`] are those that look up, make, free or choose connections. All else is a method of [`Rooms`], which gets
//! the connection as a `&mut Connection` and cannot reach another.

mod apply;
mod batch;
mod capture;
mod change;
mod check;
mod handshake;
mod icmp;
mod named;
mod overload;
mod probe;
mod refusing;
mod routes;
mod send;
mod steering;
mod timeout;
mod usage;
pub mod visit;

pub use change::Change;
pub use named::Look;
pub use usage::Usage;

use self::apply::ActionContext;
use crate::admission::Admission;
use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::ids::PoolId;
use crate::base::output::{NextHops, Output};
use crate::base::settings::{AcceptProxy, Bind, Secrets, Settings};
use crate::base::transparent_sources::TransparentSources;
use crate::emit::Emitter;
use crate::handshake::Handshake;
use crate::inspect::Inspections;
use crate::legs::WatchedLegs;
use crate::probe::{Checks, Probes};
use crate::proxy_header::ProxyHeaders;
use crate::reassembly::ReassemblyPool;
use crate::records::{Log, RecordSink};
use crate::retransmit::rtx::RtxQueues;
use crate::session::connection::{Connection, SplicedFlags};
use crate::session::event::{Event, FinChange};
use crate::session::phase::Phase;
use crate::session::segment::Segment;
use crate::session::slab::Slab;
use crate::session::state::{Stage, State};
use crate::session::table::{FlowRef, FlowTable};
use crate::session::{classify, step};
use crate::source_ports::SourcePorts;
use crate::steering::Steering;
use crate::tally::Tally;
use crate::time_wait::TimeWaitRing;
use crate::upstream::Upstream;
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::frame::Packet;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::Side;
use netfcts::counters::TcpCounter;
use netfcts::leg::unmapped;
use netfcts::wheel::TimerWheel;
use std::sync::Arc;

/// A packet being dealt with: its memory may become the answer. What was read of it stays where it was read to, so that
/// passing it on from hand to hand moves two pointers.
pub(crate) struct Incoming<'a, B> {
    buffer: B,
    segment: &'a Segment,
}

/// The TCP proxy of one core.
pub struct Proxy<P: BufferPool, S, N> {
    connections: Slab<Connection>,
    /// Segments that came in while the core was overloaded, until there are more of them.
    deferred: ArrayVec<Packet<P::Buffer>, BURST>,
    /// The slot that the engine's end looks into next.
    end_cursor: u32,
    rooms: Rooms<P, S, N>,
}

/// All that a core has beside its connections: passed beside one of them, which is looked up once for that.
struct Rooms<P: BufferPool, S, N> {
    settings: Arc<Settings>,
    now: Instant,
    /// The core is about to stop: no SYN is answered.
    is_draining: bool,
    /// It stops: what is open is ended, and nothing begins.
    is_finishing: bool,
    flows: FlowTable,
    timers: TimerWheel,
    selector: S,
    next_hops: N,
    handshake: Handshake,
    reassembly: ReassemblyPool,
    headers: ProxyHeaders,
    /// Clients' addresses that PROXY headers have named, as sources towards servers.
    transparent_sources: TransparentSources,
    rtx: RtxQueues,
    inspections: Inspections,
    time_wait: TimeWaitRing,
    sources: SourcePorts,
    upstream: Upstream,
    probes: Probes,
    checks: Checks,
    admission: Admission,
    /// Nothing on a core that is alone.
    steering: Option<Steering>,
    records: Log,
    legs: WatchedLegs,
    tally: Arc<Tally>,
    emit: Emitter<P>,
}

/// What a core is made of.
pub struct CoreParts<'a, P, S, N> {
    /// What the core has to know.
    pub settings: Settings,
    /// Where buffers for the core's own frames come from.
    pub pool: P,
    /// Chooses servers.
    pub selector: S,
    /// Resolves next hops to MAC addresses.
    pub next_hops: N,
    /// The servers and how they are doing.
    pub upstream: Upstream,
    /// Where records go.
    pub records: RecordSink,
    /// The core's secrets.
    pub secrets: &'a Secrets,
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// A core of these parts, all of whose memory is reserved.
    pub fn new(parts: CoreParts<'_, P, S, N>, now: Instant) -> Self {
        let CoreParts {
            settings,
            mut selector,
            secrets,
            ..
        } = parts;
        let capacity = settings.capacity;
        let (mut inspected, mut kept_blocks) = (0, 0);
        if selector.inspects() {
            (inspected, kept_blocks) = (capacity.inspected, capacity.kept_blocks);
            selector.reserve_contexts(inspected);
        }
        let flows = 2 * (capacity.connections + capacity.time_wait);
        let transparent_sources = if settings.has_sources_of_headers() {
            TransparentSources::new(capacity.connections + capacity.time_wait)
        } else {
            TransparentSources::default()
        };
        let rooms = Rooms {
            now,
            is_draining: false,
            is_finishing: false,
            flows: FlowTable::new(flows, secrets.table),
            timers: TimerWheel::new(capacity.connections, now),
            selector,
            next_hops: parts.next_hops,
            handshake: Handshake::new(&settings, secrets),
            reassembly: ReassemblyPool::new(capacity.reassembly_memory, capacity.reassembly_quota),
            headers: ProxyHeaders::new(&settings),
            transparent_sources,
            rtx: RtxQueues::new(capacity.rtx_queues, settings.writes_headers()),
            inspections: Inspections::new(capacity.connections, inspected, kept_blocks),
            time_wait: TimeWaitRing::new(capacity.time_wait),
            sources: SourcePorts::new(&settings),
            tally: Arc::new(Tally::new(&settings, parts.upstream.pool_count())),
            admission: Admission::new(&settings, parts.upstream.standby(), secrets, now),
            upstream: parts.upstream,
            probes: Probes::new(&settings, now),
            checks: Checks::new(&settings, secrets.table[0], now),
            steering: settings.steering.as_ref().map(Steering::new),
            records: Log::new(parts.records, &settings),
            legs: WatchedLegs::new(settings.leg_sample, capacity.connections),
            emit: Emitter::new(parts.pool),
            settings: Arc::new(settings),
        };
        Proxy {
            connections: Slab::new(capacity.connections),
            deferred: ArrayVec::new(),
            end_cursor: 0,
            rooms,
        }
    }

    /// Deals with a batch of TCP packets and leaves it empty. Packets of other protocols must not come here; they are
    /// dropped and counted.
    pub fn handle_batch(
        &mut self,
        now: Instant,
        batch: &mut ArrayVec<Packet<P::Buffer>, BURST>,
        out: &mut impl Output<P::Buffer>,
    ) {
        self.rooms.set_now(now);
        if self.rooms.admission.overload.is_shedding() || !self.deferred.is_empty() {
            self.handle_overloaded(batch, out);
        } else {
            self.handle_all(batch, out);
        }
        self.rooms.admission.quotas.settle();
    }

    #[inline(never)]
    fn handle_unbound(&mut self, incoming: Incoming<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        let Some(incoming) = self.rooms.hand_over_segment(incoming, out) else {
            return;
        };
        let segment = incoming.segment;
        let key = &segment.key;
        // RFC 9293 3.9.2.3: a segment from ourselves to ourselves (LAND) would make us answer ourselves for ever.
        if self.rooms.settings.addresses.index(key.remote).is_some() {
            self.rooms.emit.dropped(DropReason::Land);
            return;
        }
        let address = self.rooms.settings.addresses.index(key.local);
        let listener = address.and_then(|address| self.rooms.listener(address, segment));
        let (Some(address), Some(listener)) = (address, listener) else {
            let sent_before = self.rooms.emit.sent;
            self.handle_without_listener(address, incoming, out);
            return self.rooms.emit.note_no_listener(sent_before);
        };
        let event = if segment.has(TcpFlags::RST) {
            Event::OutOfWindowRst(Side::Client)
        } else if segment.has(TcpFlags::SYN) && segment.has(TcpFlags::ACK) {
            Event::StraySyn
        } else if segment.has(TcpFlags::SYN) {
            self.classify_syn(listener, key.remote)
        } else {
            Event::CookieAck
        };
        self.on_no_connection((Phase::Closed, event), (address, Some(listener)), incoming, out);
    }

    /// A segment of no connection that no listener wants, for this one of our addresses or none: the answer to a probe, the kernel's,
    /// or nobody's.
    fn handle_without_listener(
        &mut self,
        address: Option<u16>,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Incoming { segment, .. } = incoming;
        let key = &segment.key;
        if address.is_some()
            && let Some(probe) = self.rooms.find_probe(key)
        {
            return self.rooms.handle_probe_answer(probe, incoming, out);
        }
        let kernel = &self.rooms.settings.kernel;
        if kernel.takes_tcp(segment.device, key.local, key.local_port) {
            return out.pass_to_kernel(self.rooms.now, segment.device, incoming.buffer);
        }
        let Some(address) = address else {
            return self.rooms.emit.dropped(DropReason::UnknownFlow);
        };
        let event = if segment.has(TcpFlags::RST) {
            Event::OutOfWindowRst(Side::Client)
        } else {
            Event::StraySyn
        };
        self.on_no_connection((Phase::Closed, event), (address, None), incoming, out);
    }

    /// What becomes of a SYN to a listener.
    fn classify_syn(&mut self, listener: u16, peer: u128) -> Event {
        let of_listener = &self.rooms.settings.listeners[usize::from(listener)];
        if of_listener.bind != Bind::Syn {
            return Event::Syn;
        }
        // Whose header would not be believed can be told at once, and the server need not hear of it.
        if of_listener.accept == AcceptProxy::Required && !self.rooms.settings.trusts(listener, unmapped(peer)) {
            return Event::StraySyn;
        }
        if self.has_room_for_syn() {
            return Event::SynToForward;
        }
        self.rooms.emit.dropped(DropReason::ForwardedSynsFull);
        Event::Syn
    }

    #[inline(never)]
    fn on_time_wait(&mut self, flow: FlowRef, incoming: Incoming<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        let from = flow.side();
        let segment = incoming.segment;
        let mut event = classify::while_in_time_wait(from, segment);
        let address = self.rooms.settings.addresses.index(segment.key.local);
        let listener = address.and_then(|address| self.rooms.listener(address, segment));
        if from == Side::Client && matches!(event, Event::Segment { .. }) {
            event = self.rooms.classify_time_wait(flow, segment).unwrap_or(event);
        }
        if matches!(event, Event::Syn | Event::CookieAck | Event::ClientData) {
            self.rooms.emit.note_anew();
        }
        match (event, address) {
            (Event::Syn | Event::CookieAck, Some(address)) => {
                let answered = self.rooms.records.counters(Side::Client)[TcpCounter::SentSynAck];
                self.on_no_connection((Phase::TimeWait, event), (address, listener), incoming, out);
                if self.rooms.records.counters(Side::Client)[TcpCounter::SentSynAck] != answered
                    && let Some(rested) = self.rooms.time_wait.entry_mut(flow.slot())
                {
                    rested.note_answered();
                }
            }
            _ => self.rooms.drive_time_wait(flow, event, incoming, out),
        }
    }

    #[inline(never)]
    fn handle_connection(&mut self, flow: FlowRef, incoming: Incoming<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        let now = self.rooms.now;
        let slot = flow.slot();
        let from = flow.side();
        let Some(connection) = self.connections.get_mut(slot) else {
            // It was made by this segment, and is over: there is no server for it.
            return self.rooms.emit.dropped(DropReason::Consumed);
        };
        let segment = incoming.segment;
        self.rooms.records.count_received(from, segment);
        // What is held, and what acknowledges it, must be right: the receiver of a wrong segment will not be asked.
        let is_inspected = self.rooms.selector.inspects() && self.rooms.inspections.index(slot).is_some();
        let awaits_first_byte = from == Side::Server && connection.bytes_to_client == 0;
        let (acts_on_it, is_watched) = match &connection.state {
            State::Spliced(spliced) => {
                let acts_on_it = is_inspected || from == Side::Server && spliced.rtx.is_some();
                (acts_on_it, spliced.flags.contains(SplicedFlags::WATCHED))
            }
            _ => (true, false),
        };
        if acts_on_it && !incoming.is_intact() {
            self.rooms.emit.dropped(DropReason::BadTcpChecksum);
            return;
        }
        if is_inspected {
            let mut context = ActionContext::with(from, incoming);
            let event = self.rooms.handle_inspected(slot, connection, from, &mut context, out);
            if awaits_first_byte {
                self.rooms.note_first_byte(slot, connection);
            }
            if let Some(event) = event {
                self.drive_segment(slot, event, &mut context, out);
            }
            return;
        }
        let event = match (&connection.state, connection.state.client(), from) {
            (State::Spliced(_), ..) | (_, None, _) => {
                match classify::while_spliced(connection, now, from, segment, || incoming.is_intact()) {
                    Ok(event) => {
                        if awaits_first_byte {
                            self.rooms.note_first_byte(slot, connection);
                        }
                        if is_watched && matches!(event, Event::Segment { .. }) {
                            self.rooms.note_watched(slot, connection, from, segment);
                        }
                        event
                    }
                    Err(reason) => return self.rooms.emit.dropped(reason),
                }
            }
            (_, Some(client), Side::Client) => {
                let in_order = || self.rooms.reassembly.in_order(client.held).len();
                let event = classify::from_client_while_opening(connection.phase(), client, in_order, segment);
                let is_first =
                    event == Event::ClientAck && matches!(connection.state.stage(), Some(Stage::SynAckForwarded(..)));
                let accept = self.rooms.settings.listeners[usize::from(connection.listener)].accept;
                let is_one_too_many = is_first.then(|| self.rooms.count_in_behind_syn(slot, connection, segment));
                if let Some(event) = is_one_too_many.flatten() {
                    event
                } else if is_first && accept == AcceptProxy::Off {
                    // It is noted as a segment of the splice that it makes.
                    event
                } else {
                    let event = if is_first { Event::HeaderAwaited } else { event };
                    connection.note_in_opening(now, from, event, segment);
                    event
                }
            }
            (state, Some(client), Side::Server) => {
                let options = TcpOptions::parse(segment.options(incoming.buffer.data()));
                let syn = state.syn().and_then(|syn| self.rooms.handshake.forwarded_syns.get(syn));
                let answered = syn.and_then(|syn| syn.answer).map(|answer| answer.isn);
                let ours = (state.server().unwrap_or_default().iss, client.timestamps);
                let event = classify::from_server_in_handshake(ours, answered, segment, &options);
                let tells_caps = matches!(event, Event::ServerSynAck | Event::ServerLacksOption);
                let leg = connection.ends.leg.filter(|_| tells_caps);
                let offered = |_| send::offered(&self.rooms.settings, connection, client, syn);
                let told = leg.map(|leg| (leg.server.0, offered(leg)));
                connection.note_in_opening(now, from, event, segment);
                if let Some(told) = told {
                    self.rooms.learn_server_caps(told, segment, &options);
                }
                event
            }
        };
        if let Event::Segment {
            from,
            fin: FinChange::Unchanged,
            acknowledges_fin: false,
        } = event
            && step::is_plain_forward(connection.phase(), event)
        {
            // By far the most segments: they change no phase and are passed on.
            return self.rooms.forward_plain(slot, connection, from, incoming, out);
        }
        if matches!(event, Event::Unacceptable)
            && let Some(cookie) = self.rooms.opens_own_answer(connection, segment)
        {
            return self.fall_back_to_cookie(slot, cookie, incoming, out);
        }
        self.drive_segment(slot, event, &mut ActionContext::with(from, incoming), out);
    }

    /// The core is about to stop: no SYN is answered from now on. All else goes on, also what clients begin who have a SYN-ACK.
    pub fn begin_drain(&mut self) {
        self.rooms.is_draining = true;
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Sets the time of what is handled from now on.
    #[inline]
    fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.records.set_now(now);
    }

    /// Counts the first byte of the connection's server, if there is one now and was none before.
    fn note_first_byte(&mut self, slot: u32, connection: &Connection) {
        if connection.bytes_to_client > 0
            && let Some(leg) = connection.ends.leg
            && let Some(took) = self.records.answered(slot)
        {
            self.tally
                .note_first_byte(self.pool_of(&connection.state), leg.server.0, took);
        }
    }

    /// The pool that the server of a connection was chosen from, if there is one.
    fn pool_of(&self, state: &State) -> Option<PoolId> {
        let of_syn = |syn| self.handshake.forwarded_syns.get(syn)?.pool;
        match state {
            State::Spliced(spliced) => spliced.pool(),
            _ => state
                .call()
                .and_then(|call| call.pool)
                .or_else(|| state.syn().and_then(of_syn)),
        }
    }

    /// Whether a listener takes no new connection.
    fn is_out(&self, listener: u16) -> bool {
        self.is_draining || self.upstream.standby().has_listener(listener)
    }

    /// The listener on one of our addresses that a segment is for.
    fn listener(&self, address: u16, segment: &Segment) -> Option<u16> {
        let addresses = &self.settings.addresses;
        addresses.listener(address, segment.key.local_port, segment.device)
    }

    /// What a segment from the client of a resting connection is if it belongs to another, which is about to begin.
    fn classify_time_wait(&self, flow: FlowRef, segment: &Segment) -> Option<Event> {
        let now = self.now;
        if self.opens_cookie(segment).is_some() {
            // A cookie that has made a connection makes no other: a late copy is translated like any late segment.
            let is_used = self
                .handshake
                .replay_filter
                .contains(segment.hash, segment.returned_cookie(), now);
            return (!is_used).then_some(Event::CookieAck);
        }
        let rested = self.time_wait.entry(flow.slot())?;
        let is_young = self.handshake.cookies.may_be_live(segment.ack - 1, now);
        (is_young && !rested.may_have_sent(segment.seq)).then_some(Event::ClientData)
    }
}
