//! Strangers: the cookie SYN-ACK, the ACK that redeems it, and the refusal of everything else.
//!
//! Nothing here remembers anything: what a stranger sends costs cycles and at most one frame, no larger than its own
//! plus options (DECISIONS.md 8).

use crate::admission::quotas::Applicant;
use crate::admission::round_budget::RoundBudget;
use crate::base::callbacks::{Refusal, SelectServer};
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::base::path::Path;
use crate::base::settings::{AcceptProxy, Bind, Listener};
use crate::base::stage::WorkStage;
use crate::handshake::cookie::{self, Agreed, Opened};
use crate::handshake::half_open::HalfOpen;
use crate::handshake::replay_filter::Unused;
use crate::handshake::syn_ack_options::{self, AdvertisedOptions};
use crate::proxy::apply::ActionContext;
use crate::proxy::{Incoming, Proxy, Rooms};
use crate::session::action::Action;
use crate::session::connection::Connection;
use crate::session::event::Event;
use crate::session::numbers::Control;
use crate::session::phase::Phase;
use crate::session::segment::{Returned, Segment};
use crate::session::state::{ClientSide, Stage, State};
use crate::session::step::{Step, step};
use crate::session::table::FlowRef;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::Side;
use netfcts::counters::TcpCounter;
use netfcts::record;
use netfcts::seq::SeqNum;

/// One place in so many is kept for clients whose first segment has payload.
const RESERVED: usize = 16;

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// A segment to one of our addresses, from a flow without a live connection.
    pub(crate) fn on_no_connection(
        &mut self,
        (phase, mut event): (Phase, Event),
        (address, listener): (u16, Option<u16>),
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let (mut opened, mut class, mut who) = (None, None, None);
        if event == Event::CookieAck && !incoming.is_intact() {
            return self.rooms.emit.dropped(DropReason::BadTcpChecksum);
        }
        if let Some(listener) = listener {
            match self.rooms.admit(listener, event, incoming.segment) {
                Ok(of) => class = of,
                Err(refusal) => event = self.rooms.barred((event, refusal), listener, incoming.segment),
            }
        }
        if event == Event::CookieAck {
            // What counts it is on its way from memory while its cookie is opened.
            who = listener.and_then(|listener| self.rooms.applicant_of_class((listener, class), incoming.segment));
            match self.rooms.opens_cookie(incoming.segment) {
                Some(cookie) => match self.rooms.unused(incoming.segment) {
                    Some(unused) => opened = Some((cookie, unused)),
                    None => {
                        // The connection that it made is over: who goes on with it has missed the end.
                        self.rooms.emit.dropped(DropReason::CookieReplayed);
                        event = Event::ClientAck;
                    }
                },
                None => event = self.rooms.without_cookie(listener, &incoming),
            }
            if matches!(event, Event::ClientAck | Event::ClientData) && self.rooms.is_silenced(incoming.segment) {
                event = Event::Barred(Refusal::Drop);
            }
            if phase == Phase::Closed
                && matches!(event, Event::ClientAck | Event::ClientData)
                && let Some(excess) = self.rooms.tarpitting(who.as_ref())
            {
                return self.rooms.refuse_excess(excess, incoming, out);
            }
        }
        if matches!(event, Event::Syn | Event::SynToForward) {
            self.rooms.records.count(Side::Client, TcpCounter::RecvSyn);
        }
        let Step::Go {
            actions: [action],
            ask: None,
            ..
        } = step(phase, event)
        else {
            return self.rooms.impossible(phase, event);
        };
        out.enter(WorkStage::from(*action));
        match (action, listener, opened) {
            (Action::SendCookie, Some(listener), _) => self.rooms.send_cookie(listener, incoming, out),
            (Action::StoreSyn, Some(listener), _) => {
                self.remember_syn((listener, address), incoming, out);
            }
            (Action::CreateConnection, Some(listener), Some(opened)) => {
                let connection = (opened, phase == Phase::TimeWait, who.as_ref());
                self.create((listener, address), connection, incoming, out);
            }
            (Action::Drop(reason), _, _) => self.rooms.emit.dropped(*reason),
            (Action::RejectByRule, _, _) => self.rooms.reject_by_rule(incoming, out),
            (Action::Tarpit, _, _) => self.rooms.tarpit(incoming, out),
            _ => self
                .rooms
                .refuse(why_refused(event, listener, incoming.segment), incoming, out),
        }
    }

    /// Repeats the SYN-ACKs that are due, unless the client has come meanwhile. Returns true if any was due.
    pub(crate) fn retransmit_syn_acks(&mut self, budget: &mut RoundBudget, out: &mut impl Output<P::Buffer>) -> bool {
        let now = self.rooms.now;
        let now_ms = now.as_millis() as u32;
        let mut worked = false;
        while budget.affords_one(out)
            && let Some((repetitions, entry)) = self.rooms.handshake.half_open.pop_due(now_ms)
        {
            *budget.moves() -= 1;
            budget.note_fired();
            worked = true;
            let key = entry.key();
            let hash = self.rooms.flows.hash(&key);
            // What rests there is the connection before, unless its cookie was this one. A client that was refused, or has sent a RST, does
            // not come.
            let is_known = self.find_key(hash, &key);
            let returned = Returned {
                seq: entry.client_isn + 1,
                ack: entry.cookie + 1,
            };
            let has_come = is_known.is_some_and(|flow| !flow.is_time_wait())
                || self.rooms.handshake.replay_filter.contains(hash, returned, now);
            let is_given_up = || {
                self.rooms
                    .handshake
                    .given_up
                    .contains(handshake_of(hash, returned.seq), now)
            };
            if self.rooms.is_finishing || has_come || is_given_up() {
                continue;
            }
            let address = self.rooms.settings.addresses.index(key.local);
            let listener = address
                .and_then(|address| (self.rooms.settings.addresses).listener(address, key.local_port, entry.device));
            let Some(listener) = listener else { continue };
            // A SYN-ACK that is repeated says what it said: the cookie shows of which slot it is.
            let promise = self.rooms.handshake.syn_ack_options.of_cookie(listener, entry.cookie);
            let path = self.rooms.settings.path(&key, entry.mac, entry.device);
            let numbers = (entry.cookie, entry.client_isn);
            let control = self.rooms.syn_ack(&path, promise, numbers, entry.tsval, entry.agreed);
            self.rooms.records.count(Side::Client, TcpCounter::SentSynAck);
            self.rooms.begin_strangers_group(hash, key.remote, listener);
            self.rooms.emit.send(None, &path, &control, &[], out);
            self.rooms.end_strangers_group();
            self.rooms.handshake.half_open.push_again(repetitions, entry, now_ms);
        }
        worked
    }

    fn create(
        &mut self,
        (listener, address): (u16, u16),
        ((opened, unused), resting, who): ((Opened, Unused), bool, Option<&Applicant>),
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let segment = incoming.segment;
        // A drain gives no more cookies, so those that clients have are redeemed for two slots at most.
        if self.rooms.is_finishing {
            return self.rooms.refuse(DropReason::UnknownFlow, incoming, out);
        }
        // The last places are for those who also have something to say.
        let capacity = self.connections.capacity();
        if segment.payload_len() == 0 && self.connections.len() >= capacity - capacity / RESERVED {
            return self.rooms.emit.dropped(DropReason::Pressure);
        }
        if self.connections.len() == capacity {
            return self.rooms.emit.dropped(DropReason::TableFull);
        }
        let counted = match self.rooms.count_in(who) {
            Ok(counted) => counted,
            Err(excess) => {
                self.rooms.give_up_half_open(listener, segment);
                return self.rooms.refuse_excess(excess, incoming, out);
            }
        };
        let (client, shook_hands_in) = self.rooms.new_opening(listener, opened, &incoming);
        let connection = Connection::new(
            segment,
            (listener, address),
            State::Opening(client, Stage::AwaitPayload),
        );
        if resting {
            self.rooms.free_key(segment.hash, &segment.key);
        }
        let Ok(slot) = self.connections.insert(connection) else {
            self.rooms.count_out(listener, counted);
            return self.rooms.emit.dropped(DropReason::TableFull);
        };
        if let Err(refusal) = self.rooms.flows.insert(segment.hash, FlowRef::client(slot)) {
            self.connections.remove(slot);
            self.rooms.count_out(listener, counted);
            return self.rooms.emit.dropped(refusal.into());
        }
        self.rooms.admission.quotas.keep(slot, counted);
        // Not before: the client of a connection that was not made may bring its cookie again.
        self.rooms.handshake.replay_filter.note(unused);
        self.rooms.on_cookie_returned(segment.key.remote);
        self.rooms.records.begin(slot);
        self.rooms.tally.note_begin(listener);
        if let Some(ms) = shook_hands_in {
            self.rooms.tally.note_handshake(listener, u64::from(ms) * 1_000);
        }
        self.rooms.note_made(slot, segment, listener);
        self.await_first_bytes(slot, listener, out);
        if segment.len() == 0 {
            if let Some(connection) = self.connections.get_mut(slot) {
                connection.packets_from_client = 1;
            }
            return self.rooms.emit.dropped(DropReason::Consumed);
        }
        self.handle_connection(FlowRef::client(slot), incoming, out);
    }

    /// Waits for what a client says that has shaken hands with us, or asks for its server at once.
    fn await_first_bytes(&mut self, slot: u32, listener: u16, out: &mut impl Output<P::Buffer>) {
        let Listener {
            select,
            inspect_delay,
            accept,
            bind,
            ..
        } = self.rooms.settings.listeners[usize::from(listener)];
        if accept != AcceptProxy::Off {
            self.rooms.headers.received.await_header(slot);
        }
        let first = inspect_delay.filter(|_| accept != AcceptProxy::Required);
        self.rooms.timers.arm(slot, self.rooms.now + first.unwrap_or(select));
        if bind != Bind::Payload {
            self.drive_segment(slot, Event::Created, &mut ActionContext::nothing(), out);
        }
    }

    /// The client of a SYN that was passed on has shaken hands with us. What it has heard from us cannot be made true of the
    /// server that got its SYN: that one is reset, and one is called as for any client of the handshake.
    pub(crate) fn fall_back_to_cookie(
        &mut self,
        slot: u32,
        (opened, unused): (Opened, Unused),
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let listener = connection.listener;
        let (client, _) = self.rooms.new_opening(listener, opened, &incoming);
        let mut context = ActionContext::nothing();
        context.client = Some(client);
        self.drive_segment(slot, Event::CookieAck, &mut context, out);
        self.rooms.handshake.replay_filter.note(unused);
        self.rooms.on_cookie_returned(incoming.segment.key.remote);
        self.rooms.count_late(slot, listener, incoming.segment);
        self.await_first_bytes(slot, listener, out);
        if incoming.segment.len() == 0 {
            return self.rooms.emit.dropped(DropReason::Consumed);
        }
        self.handle_connection(FlowRef::client(slot), incoming, out);
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// What a segment is that opens no cookie. If the segments before it were lost, with the ACK that would have opened
    /// it, then the client will send them again, and must not be reset until it has: its ACK number could be a cookie of
    /// the last 16 s. Without timestamps of that age there is one chance in two that an older one looks so, too; a client
    /// that goes on with a connection we know nothing of is reset 16 s later at most.
    fn without_cookie(&self, listener: Option<u16>, incoming: &Incoming<P::Buffer>) -> Event {
        let now = self.now;
        let segment = incoming.segment;
        let promised = listener.map(|listener| self.handshake.syn_ack_options.of_cookie(listener, segment.ack - 1));
        let options = TcpOptions::parse(segment.options(incoming.buffer.data()));
        let echoes_us_lately = |(_, echo): (u32, u32)| {
            u128::from(self.handshake.timestamp(now).wrapping_sub(echo))
                <= crate::handshake::cookie::LIFETIME.as_millis()
        };
        let is_young = self.handshake.cookies.may_be_live(segment.ack - 1, now)
            && options
                .timestamps
                .filter(|_| promised.is_none_or(|promise| promise.timestamps))
                .is_none_or(echoes_us_lately);
        if is_young { Event::ClientData } else { Event::ClientAck }
    }

    /// What becomes of an event that a rule refuses. Whoever was answered before is not asked for his ACK again.
    #[cold]
    fn barred(&mut self, (event, refusal): (Event, Refusal), listener: u16, segment: &Segment) -> Event {
        if event == Event::CookieAck {
            self.give_up_half_open(listener, segment);
        }
        Event::Barred(refusal)
    }

    /// RFC 9293 3.10.7.4, second: a RST ends a connection in SYN-RECEIVED. Its SYN-ACK is not sent again, if its listener does that.
    pub(super) fn give_up_half_open(&mut self, listener: u16, segment: &Segment) {
        if self.settings.listeners[usize::from(listener)].serves_silence() {
            self.handshake
                .given_up
                .note(handshake_of(segment.hash, segment.seq), self.now);
        }
    }

    /// The cookie that a segment acknowledges, if it is one of ours and still good.
    pub(crate) fn opens_cookie(&self, segment: &Segment) -> Option<Opened> {
        self.handshake
            .cookies
            .open(&segment.key, segment.seq - 1, segment.ack - 1, self.now)
    }

    fn send_cookie(&mut self, listener: u16, incoming: Incoming<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        let now = self.now;
        if self.is_out(listener) {
            return self.emit.dropped(DropReason::Draining);
        }
        let Incoming { buffer, segment } = incoming;
        let offered = TcpOptions::parse(segment.options(buffer.data()));
        let promise = self.handshake.syn_ack_options.freeze(listener, now);
        let agreed = Agreed {
            mss: syn_ack_options::mss_of(&offered, segment.layout.version),
            window_scale: offered.window_scale.filter(|_| promise.window_scale.is_some()),
            sack: offered.sack_permitted && promise.sack,
        };
        let tsval = offered
            .timestamps
            .filter(|_| promise.timestamps)
            .map(|(tsval, _)| tsval);
        let cookie = self.handshake.cookies.bake(&segment.key, segment.seq, agreed, now);
        // Who may stay silent must be asked again if its ACK is lost.
        if self.settings.listeners[usize::from(listener)].serves_silence() {
            let entry = HalfOpen::new(segment, cookie, tsval, agreed);
            if !self.handshake.half_open.push(entry, now.as_millis() as u32) {
                self.emit.dropped(DropReason::HalfOpenFull);
            }
        }
        let path = self.path_back(segment);
        let control = self.syn_ack(&path, promise, (cookie, segment.seq), tsval, agreed);
        self.records.count(Side::Client, TcpCounter::SentSynAck);
        self.emit.send(Some(buffer), &path, &control, &[], out);
    }

    /// The SYN-ACK of a listener with our number `cookie` for a client's number.
    fn syn_ack(
        &self,
        path: &Path,
        promise: AdvertisedOptions,
        (cookie, client_isn): (SeqNum, SeqNum),
        tsval: Option<u32>,
        agreed: Agreed,
    ) -> Control {
        let mtu = self.settings.devices[usize::from(path.device.0)].mtu;
        Control {
            seq: cookie,
            // RFC 9293 3.10.7.2: data on a SYN is not acknowledged; the client sends it again.
            ack: client_isn + 1,
            flags: TcpFlags::SYN | TcpFlags::ACK,
            window: promise.window,
            options: TcpOptions {
                mss: Some(promise.mss(path.version(), mtu)),
                window_scale: promise.window_scale.filter(|_| agreed.window_scale.is_some()),
                sack_permitted: agreed.sack,
                timestamps: tsval.map(|tsval| (self.handshake.timestamp(self.now), tsval)),
            },
        }
    }

    /// Goes on with the client as if its SYN had not been passed on.
    pub(crate) fn fall_back(&mut self, slot: u32, connection: &mut Connection, client: Option<ClientSide>) {
        if let Some(syn) = connection.state.syn() {
            self.handshake.forwarded_syns.remove(syn);
        }
        if let Some(client) = client {
            connection.state = State::Opening(client, Stage::AwaitPayload);
        }
        let state = record::State::Established;
        self.records.state(slot, Side::Client, state);
    }

    /// The cookie that a client acknowledges whose SYN has been passed on, if it was made for that very SYN. An earlier copy
    /// came while the last connection from that port rested, or when there was no room for it: it was answered by us, and
    /// the copy that was passed on came when that was over.
    pub(crate) fn opens_own_answer(&self, connection: &Connection, segment: &Segment) -> Option<(Opened, Unused)> {
        let is_passed = matches!(
            connection.state.stage(),
            Some(Stage::SynForwarded(..) | Stage::SynAckForwarded(..))
        );
        let is_same_syn = segment.has(TcpFlags::ACK) && segment.seq == connection.state.client()?.first_byte();
        if !is_passed || !is_same_syn {
            return None;
        }
        let opened = self.opens_cookie(segment)?;
        Some((opened, self.unused(segment)?))
    }

    /// That the cookie which a segment returns has made no connection, to be noted when it has.
    pub(crate) fn unused(&self, segment: &Segment) -> Option<Unused> {
        let filter = &self.handshake.replay_filter;
        filter.find_unused(segment.hash, segment.returned_cookie(), self.now)
    }

    /// What a cookie tells of its client, and how many milliseconds its handshake took. The cookie has no time in it that would
    /// say so, but a client with timestamps returns that of our SYN-ACK (RFC 7323 3.2).
    fn new_opening(&self, listener: u16, opened: Opened, incoming: &Incoming<P::Buffer>) -> (ClientSide, Option<u32>) {
        let segment = incoming.segment;
        let promise = self.handshake.syn_ack_options.of_cookie(listener, segment.ack - 1);
        let options = TcpOptions::parse(segment.options(incoming.buffer.data()));
        let timestamps = options.timestamps.filter(|_| promise.timestamps);
        let scaled = opened.agreed.window_scale.is_some();
        let numbers = (segment.seq - 1, segment.ack - 1);
        let took = timestamps.map(|(_, echo)| self.handshake.timestamp(self.now).wrapping_sub(echo));
        // Whatever else it returns is made up.
        let took = took.filter(|ms| u128::from(*ms) <= cookie::LIFETIME.as_millis());
        let client = ClientSide {
            tsval: timestamps.map_or(0, |(tsval, _)| tsval),
            advertised_units: ClientSide::units_of_window(promise.window),
            advertised_scale: promise.window_scale.filter(|_| scaled).unwrap_or(0),
            timestamps: timestamps.is_some(),
            ..ClientSide::new(numbers, opened.agreed, segment.window)
        };
        (client, took)
    }

    /// The way back to the sender of a segment that belongs to no connection.
    pub(crate) fn path_back(&self, segment: &Segment) -> Path {
        self.settings.path(&segment.key, segment.source_mac, segment.device)
    }
}

/// Why a segment of no connection is refused. The only SYN that a listener refuses is one whose header would not be believed.
fn why_refused(event: Event, listener: Option<u16>, segment: &Segment) -> DropReason {
    if event == Event::StraySyn && listener.is_some() && !segment.has(TcpFlags::ACK) {
        return DropReason::HeaderUntrusted;
    }
    DropReason::UnknownFlow
}

/// One handshake of a flow, by the client's number behind its SYN: another one of the same flow is another.
fn handshake_of(hash: u64, first: SeqNum) -> u64 {
    hash ^ u64::from(first.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
