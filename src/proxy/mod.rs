//! The core: one worker's TCP proxy as a function of time and packets.
//!
//! `(now, packets)` in, packets out. No I/O, no clock, no thread, no unsafe: the same code runs on a NIC and in
//! `cargo test`. One [`Proxy`] belongs to one core and shares nothing with others.
//!
//! ```text
//!  batch ─► read ─► look up ─► classify     ─► step ─► apply  ─► outbox
//!           batch.rs table.rs   classify.rs    step.rs  apply/
//! ```
//!
//! Read [`phase`], then [`step`]: they are the design. [`classify`] says what a segment means, `apply` does what
//! [`step`](step::step) asks for, [`translate`] rewrites what passes.
//!
//! Budget (cycles, one connection of 7 + 7 packets): SipHash 200, look-ups 300, rewriting 200, make and free with timer
//! and port 250. Memory: two cache lines a connection, 16 bytes a flow-table entry pair at full load, 12 a timer.

pub mod action;
pub mod addresses;
mod allowance;
mod announce;
mod apply;
mod batch;
pub mod borrowed;
pub mod budget;
mod carried;
mod classify;
pub mod close;
mod complaint;
pub mod connection;
pub mod cookie;
pub mod crossing;
pub mod drop_reason;
pub mod event;
mod half_open;
mod handshake;
pub mod hash;
pub mod held;
mod icmp;
pub mod ids;
mod in_use;
mod inspect;
mod known_clients;
mod log;
mod overload;
mod owed;
mod passed_syn;
pub mod phase;
mod probe;
pub mod promises;
pub mod quarantine;
mod segment;
mod send;
pub mod settings;
pub mod shares;
mod slots;
pub mod stage;
pub mod steering;
pub mod step;
pub mod table;
mod timeout;
pub mod translate;
mod usage;
mod used_cookies;

use crate::backends::Backends;
use crate::callbacks::SelectServer;
use allowance::Budgets;
use arrayvec::ArrayVec;
use connection::{Connection, Stage};
use cookie::CookieJar;
use drop_reason::DropReason;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::counters::Counters;
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use e2d2::wire::frame::Packet;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use event::{Event, SentFin};
use held::HeldPool;
use known_clients::KnownClients;
use log::Log;
use netfcts::Side;
use netfcts::isn::IsnGenerator;
use netfcts::leg::unmapped;
use netfcts::pool::PortPools;
use netfcts::rate::RateLimiter;
use netfcts::wheel::TimerWheel;
use overload::Overload;
use phase::Phase;
use probe::Probes;
use promises::Promises;
use quarantine::QuarantineRing;
use segment::Segment;
use settings::{Accept, AnnounceFields, Bind, Settings};
use slots::Slots;
use stage::WorkStage;
use std::sync::Arc;
use table::{FlowRef, FlowTable};
use used_cookies::UsedCookies;

pub use log::RecordSink;
pub use probe::ProbeEvent;
pub use usage::Usage;

/// Where frames go that the core sends.
pub trait Outbox<B> {
    /// Takes a frame for `port`. An outbox that is full drops it and counts that; the core does not wait.
    fn send(&mut self, port: PortId, frame: B);

    /// How many more frames it takes before it is full.
    fn room(&self) -> usize;

    /// True while frames wait for some port until there is hardly room for more: what can wait should.
    fn is_congested(&self) -> bool {
        false
    }

    /// Takes a packet for another core, which owns it.
    ///
    /// # Errors
    /// Gives it back if there is no such core or the way there is full.
    fn hand_over(&mut self, core: usize, packet: Packet<B>) -> Result<(), Packet<B>> {
        let _there_is_no_other = core;
        Err(packet)
    }

    /// Says what is done from now on, to whoever counts the core's time by stage; nobody does by default.
    #[inline(always)]
    fn enter(&mut self, stage: WorkStage) {
        let _nobody_counts = stage;
    }

    /// Takes a frame that `port` has received and that is the Linux kernel's; only of ports with a kernel behind them
    /// (see [`crate::kernel`]).
    fn pass_to_kernel(&mut self, now: Instant, port: PortId, frame: B);
}

/// Who knows the MAC addresses of next hops.
pub trait NextHops {
    /// The MAC address of the next hop with this index; `None` if it is not resolved. Asking makes it be resolved.
    fn mac(&self, next_hop: usize) -> Option<MacAddr>;
}

/// Secret random numbers of one core, drawn at start.
#[derive(Clone)]
pub struct Secrets {
    /// For cookies. The same on all cores that share addresses.
    pub cookie: [u64; 2],
    /// For the keys of the flow table's hashes.
    pub table: [u64; 2],
    /// For initial sequence numbers towards servers.
    pub isn: [u8; 16],
    /// The start of the timestamp clock towards clients.
    pub timestamp: u32,
}

/// A packet being dealt with: its memory may become the answer. What was read of it stays where it was read to, so that
/// passing it on from hand to hand moves two pointers.
struct Incoming<'a, B> {
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
    used_cookies: UsedCookies,
    isn: IsnGenerator,
    timestamp_base: u32,
    table: FlowTable,
    connections: Slots<Connection>,
    quarantine: QuarantineRing,
    held: HeldPool,
    owed: owed::Debts,
    inspections: inspect::Inspections,
    carried: carried::CarriedTable,
    /// What the first bytes of clients tell for the PROXY headers of servers.
    found_fields: AnnounceFields,
    wheel: TimerWheel,
    ports: PortPools,
    next_local: Vec<usize>,
    half_open: half_open::HalfOpenTable,
    passed_syns: Slots<passed_syn::PassedSyn>,
    promises: Promises,
    probes: Probes,
    budgets: Budgets,
    /// ICMP errors that are looked at in the middle of an overload.
    shed_errors: RateLimiter,
    overload: Overload,
    known_clients: KnownClients,
    /// Segments that came in while the core was overloaded, until there are more of them.
    put_off: ArrayVec<Packet<P::Buffer>, BURST>,
    log: Log,
    /// Nothing on a core that is alone.
    steering: Option<steering::Steering>,
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
        let flows = 2 * (capacity.connections + capacity.resting);
        let answers = settings.answers_per_second;
        let found_fields = settings.fields_from_payload();
        let finds_fields = found_fields != AnnounceFields::default();
        if settings.borrows_carried_addresses() {
            settings.addresses.lend(capacity.connections + capacity.resting);
        }
        Proxy {
            pool,
            selector,
            neighbours,
            backends,
            cookies: CookieJar::new(secrets.cookie),
            used_cookies: UsedCookies::new(capacity.connections),
            isn: IsnGenerator::new(secrets.isn),
            timestamp_base: secrets.timestamp,
            table: FlowTable::new(flows, secrets.table),
            connections: Slots::new(capacity.connections),
            quarantine: QuarantineRing::new(capacity.resting),
            held: HeldPool::new(capacity.held_memory, capacity.held_share),
            owed: owed::Debts::new(capacity.debts, settings.writes_headers()),
            inspections: inspect::Inspections::new(capacity.connections, inspected, kept_blocks),
            carried: if settings.accepts_headers() || finds_fields {
                carried::CarriedTable::new(capacity.connections, capacity.debts)
            } else {
                carried::CarriedTable::new(0, 0)
            },
            found_fields,
            wheel: TimerWheel::new(capacity.connections, now),
            ports: PortPools::new(settings.servers.iter().map(port_sets), settings.time_wait),
            next_local: vec![0; settings.servers.len()],
            half_open: half_open::HalfOpenTable::new(capacity.half_open),
            passed_syns: Slots::new(capacity.passed_syns.min(passed_syn::MOST)),
            promises: Promises::new(&settings),
            probes: Probes::new(&settings, now),
            budgets: Budgets::new(answers, secrets.isn, now),
            shed_errors: RateLimiter::new(u64::from(answers), answers.div_ceil(10).max(1), now),
            overload: Overload::new(settings.overload_after, now),
            known_clients: KnownClients::new(capacity.connections, now),
            put_off: ArrayVec::new(),
            log: Log::new(records, settings.records.then_some(capacity.connections), settings.core),
            steering: settings.steering.as_ref().map(steering::Steering::new),
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
        out: &mut impl Outbox<P::Buffer>,
    ) {
        self.last_now = now;
        if self.overload.is_shedding() || !self.put_off.is_empty() {
            return self.handle_overloaded(now, batch, out);
        }
        self.handle_all(now, batch, out);
    }

    #[inline(never)]
    fn handle_unbound(&mut self, now: Instant, incoming: Incoming<P::Buffer>, out: &mut impl Outbox<P::Buffer>) {
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
            None if segment.has(TcpFlags::RST) => Event::BlindReset(Side::Client),
            None => Event::StraySyn,
            Some(_) if segment.has(TcpFlags::RST) => Event::BlindReset(Side::Client),
            Some(listener) if segment.has(TcpFlags::SYN) && !segment.has(TcpFlags::ACK) => {
                self.met_syn(listener, key.remote)
            }
            Some(_) if segment.has(TcpFlags::SYN) => Event::StraySyn,
            Some(_) => Event::CookieAck,
        };
        self.meet_stranger(now, (Phase::Unbound, event), (address, listener), incoming, out);
    }

    /// What becomes of a SYN to a listener.
    fn met_syn(&mut self, listener: u16, peer: u128) -> Event {
        let of_listener = &self.settings.listeners[usize::from(listener)];
        if of_listener.bind != Bind::Syn {
            return Event::Syn;
        }
        // Whose header would not be believed can be told at once, and the server need not hear of it.
        if of_listener.accept == Accept::Required && !self.settings.trusts(listener, unmapped(peer)) {
            self.drops.add(DropReason::HeaderUntrusted, 1);
            return Event::StraySyn;
        }
        if self.has_room_for_syn() {
            return Event::SynToPass;
        }
        self.drops.add(DropReason::SynsFull, 1);
        Event::Syn
    }

    #[inline(never)]
    fn handle_quarantined(
        &mut self,
        now: Instant,
        flow: FlowRef,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) {
        let from = flow.side();
        let segment = incoming.segment;
        let mut event = classify::while_quarantined(from, segment);
        let address = self.settings.addresses.index(segment.key.local);
        let listener = address.and_then(|address| {
            self.settings
                .addresses
                .listener(address, segment.key.local_port, segment.device)
        });
        if from == Side::Client && matches!(event, Event::Segment { .. }) {
            event = self.met_at_rest(now, flow, segment).unwrap_or(event);
        }
        match (event, address) {
            (Event::Syn | Event::CookieAck, Some(address)) => {
                self.meet_stranger(now, (Phase::Quarantine, event), (address, listener), incoming, out);
                if event == Event::Syn
                    && let Some(rested) = self.quarantine.entry_mut(flow.slot())
                {
                    rested.note_answered();
                }
            }
            _ => self.drive_quarantined(now, flow, event, incoming, out),
        }
    }

    /// What a segment from the client of a resting connection is if it belongs to another, which is about to begin.
    fn met_at_rest(&self, now: Instant, flow: FlowRef, segment: &Segment) -> Option<Event> {
        if self.opens_cookie(now, segment).is_some() {
            // A cookie that has made a connection makes no other: a late copy is translated like any late segment.
            let is_used = self.used_cookies.contains(segment.hash, segment.returned_cookie(), now);
            return (!is_used).then_some(Event::CookieAck);
        }
        let rested = self.quarantine.entry(flow.slot())?;
        let is_young = self.cookies.may_be_live(segment.ack - 1, now);
        (is_young && !rested.may_have_sent(segment.seq)).then_some(Event::ClientData)
    }

    #[inline(never)]
    fn handle_connection(
        &mut self,
        now: Instant,
        flow: FlowRef,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
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
            Stage::Spliced(spliced) => is_inspected || from == Side::Server && spliced.owed != owed::NOTHING,
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
                let in_order = || self.held.in_order(opening.held).len();
                let event = classify::from_client_while_opening(connection.phase, opening, in_order, segment);
                let is_first = matches!(event, Event::ClientAck) && connection.phase == Phase::SynAnswered;
                let accept = self.settings.listeners[usize::from(connection.listener)].accept;
                if is_first && accept == Accept::Off {
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
                let syn = self.passed_syns.get(opening.syn.into());
                let answered = syn.and_then(|syn| syn.answer).map(|answer| answer.isn);
                let event = classify::from_server_in_handshake(opening, answered, segment, &options);
                if matches!(event, Event::ServerSynAck | Event::ServerLacksOption) {
                    let offered = send::offered(&self.settings, connection, opening, syn);
                    let server = connection.server;
                    connection.note_in_opening(now, from, event, segment);
                    self.listen_to_server(now, (server, offered), segment, &options);
                } else {
                    connection.note_in_opening(now, from, event, segment);
                }
                event
            }
        };
        if let Event::Segment {
            from,
            fin: SentFin::Unchanged,
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
            return self.shake_hands_after_all(now, slot, cookie, incoming, out);
        }
        self.drive(now, slot, event, Some(incoming), out);
    }

    /// The core is about to stop: no new connection from now on.
    pub fn begin_drain(&mut self) {
        self.draining = true;
    }
}
