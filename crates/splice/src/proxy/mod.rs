//! The shell: one [`Proxy`] looks a connection up, asks [`step`](crate::session::step), and does it with the other rooms.

mod apply;
mod batch;
mod budget;
mod handshake;
mod icmp;
mod in_use;
mod overload;
mod probe;
mod routes;
mod send;
mod steering;
mod timeout;
mod usage;

pub use usage::Usage;

use crate::admission::limits::CoreLimits;
use crate::admission::overload::Overload;
use crate::admission::validated_clients::ValidatedClients;
use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::base::settings::{self, AcceptProxy, Bind, Secrets, SendProxyFields, Settings};
use crate::handshake::cookie::CookieJar;
use crate::handshake::replay_filter::ReplayFilter;
use crate::handshake::syn_ack_options::SynAckOptions;
use crate::handshake::{forwarded_syn, half_open};
use crate::inspect::Inspections;
use crate::probe::Probes;
use crate::proxy_header::received_headers;
use crate::reassembly::ReassemblyPool;
use crate::records::{Log, RecordSink};
use crate::retransmit::rtx;
use crate::session::connection::{Connection, Stage};
use crate::session::event::{Event, FinChange};
use crate::session::phase::Phase;
use crate::session::segment::Segment;
use crate::session::slab::Slab;
use crate::session::table::{FlowRef, FlowTable};
use crate::session::{classify, step};
use crate::steering::Steering;
use crate::time_wait::TimeWaitRing;
use crate::upstream::Backends;
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::counters::Counters;
use e2d2::time::Instant;
use e2d2::wire::frame::Packet;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::Side;
use netfcts::isn::IsnGenerator;
use netfcts::leg::unmapped;
use netfcts::pool::PortPools;
use netfcts::rate::RateLimiter;
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
    settings: Settings,
    pool: P,
    selector: S,
    neighbours: N,
    backends: Backends,
    cookies: CookieJar,
    replay_filter: ReplayFilter,
    isn: IsnGenerator,
    timestamp_base: u32,
    table: FlowTable,
    connections: Slab<Connection>,
    time_wait: TimeWaitRing,
    reassembly: ReassemblyPool,
    rtx: rtx::RtxQueues,
    inspections: Inspections,
    received_headers: received_headers::ReceivedHeaders,
    /// What the first bytes of clients tell for the PROXY headers of servers.
    payload_fields: SendProxyFields,
    wheel: TimerWheel,
    ports: PortPools,
    next_local: Vec<usize>,
    half_open: half_open::HalfOpenTable,
    forwarded_syns: Slab<forwarded_syn::ForwardedSyn>,
    syn_ack_options: SynAckOptions,
    probes: Probes,
    limits: CoreLimits,
    /// ICMP errors that are looked at in the middle of an overload.
    shed_errors: RateLimiter,
    overload: Overload,
    validated_clients: ValidatedClients,
    /// Segments that came in while the core was overloaded, until there are more of them.
    deferred: ArrayVec<Packet<P::Buffer>, BURST>,
    log: Log,
    /// Nothing on a core that is alone.
    steering: Option<Steering>,
    drops: Counters<DropReason>,
    ip_id: u16,
    last_now: Instant,
    finish_cursor: u32,
    /// Since when timers wait for a port to take frames.
    congested_since: Option<Instant>,
    draining: bool,
}

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// A core that takes buffers for its own packets from `pool` and writes records to `records`.
    #[expect(clippy::too_many_arguments, reason = "each part of a core, once, at its start")]
    pub fn new(
        mut settings: Settings,
        pool: P,
        selector: S,
        neighbours: N,
        backends: Backends,
        records: RecordSink,
        secrets: &Secrets,
        now: Instant,
    ) -> Self {
        let capacity = settings.capacity;
        let (mut selector, mut inspected, mut kept_blocks) = (selector, 0, 0);
        if selector.inspects() {
            (inspected, kept_blocks) = (capacity.inspected, capacity.kept_blocks);
            selector.reserve_contexts(inspected);
        }
        let port_sets = |server: &settings::Server| {
            let sets = server.locals.iter().map(|local| Arc::clone(&local.ports));
            sets.collect::<Vec<_>>()
        };
        let flows = 2 * (capacity.connections + capacity.time_wait);
        let answers = settings.replies_per_second;
        let payload_fields = settings.fields_from_payload();
        let finds_fields = payload_fields != SendProxyFields::default();
        if settings.borrows_carried_addresses() {
            settings.addresses.reserve(capacity.connections + capacity.time_wait);
        }
        Proxy {
            pool,
            selector,
            neighbours,
            backends,
            cookies: CookieJar::new(secrets.cookie),
            replay_filter: ReplayFilter::new(capacity.connections),
            isn: IsnGenerator::new(secrets.isn),
            timestamp_base: secrets.timestamp,
            table: FlowTable::new(flows, secrets.table),
            connections: Slab::new(capacity.connections),
            time_wait: TimeWaitRing::new(capacity.time_wait),
            reassembly: ReassemblyPool::new(capacity.reassembly_memory, capacity.reassembly_quota),
            rtx: rtx::RtxQueues::new(capacity.debts, settings.writes_headers()),
            inspections: Inspections::new(capacity.connections, inspected, kept_blocks),
            received_headers: if settings.accepts_headers() || finds_fields {
                received_headers::ReceivedHeaders::new(capacity.connections, capacity.debts)
            } else {
                received_headers::ReceivedHeaders::new(0, 0)
            },
            payload_fields,
            wheel: TimerWheel::new(capacity.connections, now),
            ports: PortPools::new(settings.servers.iter().map(port_sets), settings.time_wait),
            next_local: vec![0; settings.servers.len()],
            half_open: half_open::HalfOpenTable::new(capacity.half_open),
            forwarded_syns: Slab::new(capacity.passed_syns.min(forwarded_syn::MOST)),
            syn_ack_options: SynAckOptions::new(&settings),
            probes: Probes::new(&settings, now),
            limits: CoreLimits::new(answers, secrets.isn, now),
            shed_errors: RateLimiter::new(u64::from(answers), answers.div_ceil(10).max(1), now),
            overload: Overload::new(settings.overload_after, now),
            validated_clients: ValidatedClients::new(capacity.connections, now),
            deferred: ArrayVec::new(),
            log: Log::new(records, settings.records.then_some(capacity.connections), settings.core),
            steering: settings.steering.as_ref().map(Steering::new),
            drops: Counters::default(),
            ip_id: 0,
            last_now: now,
            finish_cursor: 0,
            congested_since: None,
            draining: false,
            settings,
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
        self.last_now = now;
        if self.overload.is_shedding() || !self.deferred.is_empty() {
            return self.handle_overloaded(now, batch, out);
        }
        self.handle_all(now, batch, out);
    }

    #[inline(never)]
    fn handle_unbound(&mut self, now: Instant, incoming: Incoming<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        let Some(incoming) = self.hand_over_segment(incoming, out) else {
            return;
        };
        let segment = incoming.segment;
        let key = &segment.key;
        // RFC 9293 3.9.2.3: a segment from ourselves to ourselves (LAND) would make us answer ourselves for ever.
        if self.settings.addresses.index(key.remote).is_some() {
            self.drops.add(DropReason::Land, 1);
            return;
        }
        let is_kernels = || {
            let kernel = &self.settings.kernel;
            kernel.takes_tcp(segment.device, key.local, key.local_port)
        };
        let Some(address) = self.settings.addresses.index(key.local) else {
            if is_kernels() {
                return out.pass_to_kernel(now, segment.device, incoming.buffer);
            }
            self.drops.add(DropReason::UnknownFlow, 1);
            return;
        };
        let listener = self
            .settings
            .addresses
            .listener(address, key.local_port, segment.device);
        // What nobody listens for may be the answer to a probe.
        if listener.is_none()
            && let Some(probe) = self.probes.find(&self.settings, key)
        {
            return self.handle_probe_answer(now, probe, incoming, out);
        }
        if listener.is_none() && is_kernels() {
            return out.pass_to_kernel(now, segment.device, incoming.buffer);
        }
        let event = match listener {
            None if segment.has(TcpFlags::RST) => Event::OutOfWindowRst(Side::Client),
            None => Event::StraySyn,
            Some(_) if segment.has(TcpFlags::RST) => Event::OutOfWindowRst(Side::Client),
            Some(listener) if segment.has(TcpFlags::SYN) && !segment.has(TcpFlags::ACK) => {
                self.classify_syn(listener, key.remote)
            }
            Some(_) if segment.has(TcpFlags::SYN) => Event::StraySyn,
            Some(_) => Event::CookieAck,
        };
        self.on_no_connection(now, (Phase::Closed, event), (address, listener), incoming, out);
    }

    /// What becomes of a SYN to a listener.
    fn classify_syn(&mut self, listener: u16, peer: u128) -> Event {
        let of_listener = &self.settings.listeners[usize::from(listener)];
        if of_listener.bind != Bind::Syn {
            return Event::Syn;
        }
        // Whose header would not be believed can be told at once, and the server need not hear of it.
        if of_listener.accept == AcceptProxy::Required && !self.settings.trusts(listener, unmapped(peer)) {
            self.drops.add(DropReason::HeaderUntrusted, 1);
            return Event::StraySyn;
        }
        if self.has_room_for_syn() {
            return Event::SynToForward;
        }
        self.drops.add(DropReason::ForwardedSynsFull, 1);
        Event::Syn
    }

    #[inline(never)]
    fn on_time_wait(
        &mut self,
        now: Instant,
        flow: FlowRef,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let from = flow.side();
        let segment = incoming.segment;
        let mut event = classify::while_in_time_wait(from, segment);
        let address = self.settings.addresses.index(segment.key.local);
        let listener = address.and_then(|address| {
            self.settings
                .addresses
                .listener(address, segment.key.local_port, segment.device)
        });
        if from == Side::Client && matches!(event, Event::Segment { .. }) {
            event = self.classify_time_wait(now, flow, segment).unwrap_or(event);
        }
        match (event, address) {
            (Event::Syn | Event::CookieAck, Some(address)) => {
                self.on_no_connection(now, (Phase::TimeWait, event), (address, listener), incoming, out);
                if event == Event::Syn
                    && let Some(rested) = self.time_wait.entry_mut(flow.slot())
                {
                    rested.note_answered();
                }
            }
            _ => self.drive_time_wait(now, flow, event, incoming, out),
        }
    }

    /// What a segment from the client of a resting connection is if it belongs to another, which is about to begin.
    fn classify_time_wait(&self, now: Instant, flow: FlowRef, segment: &Segment) -> Option<Event> {
        if self.opens_cookie(now, segment).is_some() {
            // A cookie that has made a connection makes no other: a late copy is translated like any late segment.
            let is_used = self
                .replay_filter
                .contains(segment.hash, segment.returned_cookie(), now);
            return (!is_used).then_some(Event::CookieAck);
        }
        let rested = self.time_wait.entry(flow.slot())?;
        let is_young = self.cookies.may_be_live(segment.ack - 1, now);
        (is_young && !rested.may_have_sent(segment.seq)).then_some(Event::ClientData)
    }

    #[inline(never)]
    fn handle_connection(
        &mut self,
        now: Instant,
        flow: FlowRef,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let slot = flow.slot();
        let from = flow.side();
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let segment = incoming.segment;
        self.log.count_received(from, segment);
        // What is held, and what pays for it, must be right: the receiver of a wrong segment will not be asked.
        let is_inspected = self.selector.inspects() && self.inspections.index(slot).is_some();
        let acts_on_it = match &connection.stage {
            Stage::Opening(_) => true,
            Stage::Spliced(spliced) => is_inspected || from == Side::Server && spliced.owed != rtx::NOTHING,
        };
        if acts_on_it && !incoming.is_intact() {
            self.drops.add(DropReason::BadTcpChecksum, 1);
            return;
        }
        if is_inspected {
            return self.handle_inspected(now, slot, from, incoming, out);
        }
        let event = match (&connection.stage, from) {
            (Stage::Spliced(_), _) => {
                match classify::while_spliced(connection, now, from, segment, || incoming.is_intact()) {
                    Ok(event) => event,
                    Err(reason) => return self.drops.add(reason, 1),
                }
            }
            (Stage::Opening(opening), Side::Client) => {
                let in_order = || self.reassembly.in_order(opening.held).len();
                let event = classify::from_client_while_opening(connection.phase, opening, in_order, segment);
                let is_first = matches!(event, Event::ClientAck) && connection.phase == Phase::SynAckForwarded;
                let accept = self.settings.listeners[usize::from(connection.listener)].accept;
                if is_first && accept == AcceptProxy::Off {
                    // It is noted as a segment of the splice that it makes.
                    event
                } else {
                    let event = if is_first { Event::HeaderAwaited } else { event };
                    connection.note_in_opening(now, from, event, segment);
                    event
                }
            }
            (Stage::Opening(opening), Side::Server) => {
                let options = TcpOptions::parse(segment.options(incoming.buffer.data()));
                let syn = self.forwarded_syns.get(opening.syn.into());
                let answered = syn.and_then(|syn| syn.answer).map(|answer| answer.isn);
                let event = classify::from_server_in_handshake(opening, answered, segment, &options);
                if matches!(event, Event::ServerSynAck | Event::ServerLacksOption) {
                    let offered = send::offered(&self.settings, connection, opening, syn);
                    let server = connection.server;
                    connection.note_in_opening(now, from, event, segment);
                    self.learn_server_caps(now, (server, offered), segment, &options);
                } else {
                    connection.note_in_opening(now, from, event, segment);
                }
                event
            }
        };
        if let Event::Segment {
            from,
            fin: FinChange::Unchanged,
            acknowledges_fin: false,
        } = event
        {
            // By far the most segments: they change no phase and are passed on.
            debug_assert!(
                self.connections
                    .get(slot)
                    .is_none_or(|c| step::is_plain_forward(c.phase, event))
            );
            return self.forward_plain(now, slot, from, incoming, out);
        }
        if matches!(event, Event::Unacceptable)
            && let Some(cookie) = self.opens_own_answer(now, slot, segment)
        {
            return self.fall_back_to_cookie(now, slot, cookie, incoming, out);
        }
        self.drive(now, slot, event, Some(incoming), out);
    }

    /// The core is about to stop: no new connection from now on.
    pub fn begin_drain(&mut self) {
        self.draining = true;
    }
}
