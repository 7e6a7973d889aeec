//! Refusals: of senders without a connection, by rules for addresses or for payloads, and by limits.
//!
//! Nothing is stored about a sender without a connection; it gets at most one frame, from a budget of its purpose. A connection that
//! a rule has dropped leaves eight bytes, which expire ([`SilencedFlows`](crate::handshake::silenced::SilencedFlows)).

use crate::admission::quotas::{Applicant, Counted, Excess};
use crate::base::callbacks::{Arrival, Refusal, SelectServer, Selection};
use crate::base::drop_reason::DropReason;
use crate::base::ids::{ListenerId, PoolId, RuleId};
use crate::base::limit::Limited;
use crate::base::output::{NextHops, Output};
use crate::base::settings::UnknownFlows;
use crate::proxy::{Incoming, Rooms};
use crate::session::connection::Connection;
use crate::session::event::Event;
use crate::session::numbers::Control;
use crate::session::segment::Segment;
use crate::session::state::Stage;
use e2d2::buffer::BufferPool;
use e2d2::wire::tcp::TcpFlags;
use netfcts::counters::TcpCounter;
use netfcts::seq::SeqNum;
use netfcts::{FourTuple, Side};

/// What lies at most between our number and the client's in a segment of a connection that is kept at a window of zero: no
/// client is told of a larger one.
const TARPIT_WINDOW: u32 = 0xffff;

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Whether the selector admits the sender of a segment that belongs to no connection, and the class of one who may begin a connection
    /// with it. A RST ends a handshake, and is not answered.
    ///
    /// # Errors
    /// How the sender is refused.
    #[inline]
    pub(crate) fn admit(&mut self, listener: u16, event: Event, segment: &Segment) -> Result<Option<u16>, Refusal> {
        if matches!(event, Event::OutOfWindowRst(_)) {
            self.give_up_half_open(listener, segment);
            return Ok(None);
        }
        let arrival = arrival_of(listener, segment);
        if event == Event::CookieAck {
            return self.selector.admit_to_class(&arrival);
        }
        let admitted = self.selector.admit(&arrival);
        // Each attempt is counted once: what follows a SYN belongs to it.
        if admitted.is_err() && segment.has(TcpFlags::SYN) {
            self.tally.note_refusal(self.rule());
        }
        admitted.map(|()| None)
    }

    /// The rule that made the selector's last answer, by the number that it has now.
    pub(crate) fn rule(&self) -> Option<RuleId> {
        let renumbered = &self.settings.renumbered_rules;
        let rule = self.selector.rule()?;
        renumbered.binary_search(&rule.0).is_err().then_some(rule)
    }

    /// RFC 9293 3.10.7.1: the RST of a closed port, with numbers that its sender believes.
    pub(crate) fn refuse(
        &mut self,
        reason: DropReason,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        self.emit.dropped(reason);
        if self.settings.unknown_flows == UnknownFlows::Silent {
            return;
        }
        if !self.admission.limits.rst.take(self.now) {
            return self.emit.dropped(DropReason::RateLimited);
        }
        self.reset_stranger(incoming, out);
    }

    /// The same to somebody whom a rule rejects, whatever strangers get.
    pub(crate) fn reject_by_rule(&mut self, incoming: Incoming<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        self.emit.dropped(DropReason::RuleRejected);
        self.reject(incoming, out);
    }

    fn reject(&mut self, incoming: Incoming<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        if !self.admission.limits.rejected.take(self.now) {
            return self.emit.dropped(DropReason::RateLimited);
        }
        self.reset_stranger(incoming, out);
    }

    fn reset_stranger(&mut self, incoming: Incoming<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        let Incoming { buffer, segment } = incoming;
        let path = self.path_back(segment);
        let (seq, ack, flags) = if segment.has(TcpFlags::ACK) {
            (segment.ack, SeqNum(0), TcpFlags::RST)
        } else {
            (SeqNum(0), segment.end(), TcpFlags::RST | TcpFlags::ACK)
        };
        let control = Control::new(seq, ack, flags, 0);
        self.emit.send(Some(buffer), &path, &control, &[], out);
    }

    /// RFC 9293 3.8.6.1: with a window of zero, the receiver still says which number it expects. Ours is the client's own in a
    /// SYN-ACK, so that in all that follows it is the client's acknowledgement number: nothing is stored, and no key is needed,
    /// for there is nothing that a third party could get at. Neither answer has options: none is larger than its cause.
    pub(crate) fn tarpit(&mut self, incoming: Incoming<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        self.emit.dropped(DropReason::RuleTarpitted);
        self.keep_waiting(incoming, out);
    }

    fn keep_waiting(&mut self, incoming: Incoming<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        let Incoming { buffer, segment } = incoming;
        let is_syn = segment.has(TcpFlags::SYN);
        // A SYN-ACK or a window of zero may come from another tarpit: the two would answer each other for ever.
        if is_syn && segment.has(TcpFlags::ACK) || !is_syn && segment.window == 0 {
            return;
        }
        if !self.admission.limits.tarpit.take(self.now) {
            return self.emit.dropped(DropReason::RateLimited);
        }
        let control = if is_syn {
            let flags = TcpFlags::SYN | TcpFlags::ACK;
            self.records.count(Side::Client, TcpCounter::SentSynAck);
            Control::new(segment.seq, segment.seq + 1, flags, 0)
        } else {
            // What was sent before the engine knew of the connection has other numbers: nothing of it is acknowledged.
            let first = segment.ack - 1;
            let is_ours = segment.seq.in_window(first, TARPIT_WINDOW);
            let expected = if is_ours { segment.ack } else { segment.seq };
            Control::new(segment.ack, expected, TcpFlags::ACK, 0)
        };
        let path = self.path_back(segment);
        self.emit.send(Some(buffer), &path, &control, &[], out);
    }

    /// Counts a connection that begins; of nobody where nothing is counted.
    ///
    /// # Errors
    /// A limit is exceeded.
    #[inline]
    pub(crate) fn count_in(&mut self, who: Option<&Applicant>) -> Result<Counted, Excess> {
        let Some(who) = who else {
            return Ok(Counted::default());
        };
        let limits = (&self.settings.limits, self.upstream.meters());
        self.admission.quotas.admit(limits, who, self.now)
    }

    /// Whether the limits admit one more connection; counts nothing.
    ///
    /// # Errors
    /// A limit is exceeded.
    pub(crate) fn may_count_in(&mut self, who: Option<&Applicant>) -> Result<(), Excess> {
        let Some(who) = who else { return Ok(()) };
        let limits = (&self.settings.limits, &*self.upstream.meters());
        self.admission.quotas.has_room(limits, who, self.now)
    }

    /// The limit that tarpits the sender of a segment without a connection or a valid cookie, as its next connection would be beyond
    /// it: of what has been tarpitted nothing is stored.
    pub(crate) fn tarpitting(&mut self, who: Option<&Applicant>) -> Option<Excess> {
        let excess = self.may_count_in(who).err()?;
        (excess.refusal == Refusal::Tarpit).then_some(excess)
    }

    /// Counts a connection whose SYN was passed on, when its client acknowledges the SYN-ACK; an event that ends it, if it is beyond a
    /// limit.
    pub(crate) fn count_in_behind_syn(
        &mut self,
        slot: u32,
        connection: &Connection,
        segment: &Segment,
    ) -> Option<Event> {
        let who = self.applicant(connection.listener, segment);
        match self.count_in(who.as_ref()) {
            Ok(counted) => {
                self.admission.quotas.keep(slot, counted);
                let syn = connection.state.syn();
                let syn = syn.and_then(|syn| self.handshake.forwarded_syns.get(syn));
                let pool = syn.and_then(|syn| syn.pool)?;
                self.refuse_by_pool((slot, pool), connection)
            }
            Err(excess) => {
                self.emit.dropped(reason_of(excess.of));
                Some(match excess.refusal {
                    Refusal::Reject => Event::Rejected,
                    Refusal::Drop | Refusal::Tarpit => self.silence(connection),
                })
            }
        }
    }

    /// Counts a connection whose client has shaken hands with us though its SYN was passed on.
    pub(crate) fn count_late(&mut self, slot: u32, listener: u16, segment: &Segment) {
        if let Some(who) = self.applicant(listener, segment) {
            let limits = (&self.settings.limits, self.upstream.meters());
            let counted = self.admission.quotas.admit_late(limits, &who, self.now);
            self.admission.quotas.keep(slot, counted);
        }
    }

    /// Takes back the counts of a connection that was not made.
    #[cold]
    pub(crate) fn count_out(&mut self, listener: u16, counted: Counted) {
        let limits = (&self.settings.limits, self.upstream.meters());
        (self.admission.quotas).take_back(limits, (listener, counted), self.now);
    }

    /// The sender of a segment as its connection is counted, if anything is.
    pub(crate) fn applicant(&mut self, listener: u16, segment: &Segment) -> Option<Applicant> {
        if !self.settings.limits.are_any {
            return None;
        }
        let class = if self.settings.limits.classes.is_empty() {
            None
        } else {
            self.selector.class(&arrival_of(listener, segment))
        };
        self.applicant_of_class((listener, class), segment)
    }

    /// The same of a sender whose class is known.
    #[inline]
    pub(crate) fn applicant_of_class(&self, of: (u16, Option<u16>), segment: &Segment) -> Option<Applicant> {
        let limits = &self.settings.limits;
        (limits.are_any).then(|| self.admission.quotas.applicant(limits, of, segment.key.remote))
    }

    /// Refuses a connection as the exceeded limit says. A client that gets no answer repeats its segment, and is admitted by
    /// it if there is room by then and its cookie is still valid.
    #[cold]
    pub(crate) fn refuse_excess(
        &mut self,
        excess: Excess,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        self.emit.dropped(reason_of(excess.of));
        match excess.refusal {
            Refusal::Reject => self.reject(incoming, out),
            Refusal::Drop => {}
            Refusal::Tarpit => self.keep_waiting(incoming, out),
        }
    }

    /// Counts a connection for the pool that is chosen for it; refuses it if the pool's limit is exceeded. One whose client has not
    /// shaken hands yet is not counted: its SYN may be forged.
    #[inline]
    pub(crate) fn refuse_by_pool(&mut self, (slot, pool): (u32, PoolId), connection: &Connection) -> Option<Event> {
        if !self.settings.limits.are_any {
            return None;
        }
        let limits = (&self.settings.limits, self.upstream.meters());
        let quotas = &mut self.admission.quotas;
        let excess = match connection.state.stage() {
            Some(Stage::SynForwarded(..)) => quotas.has_room_in_pool(limits, pool.0, self.now),
            _ => quotas.choose(limits, (slot, pool.0), self.now),
        };
        let excess = excess.err()?;
        self.emit.dropped(DropReason::PoolLimit);
        if excess.refusal == Refusal::Reject {
            return Some(Event::Rejected);
        }
        Some(self.silence(connection))
    }

    /// Notes that the selector refuses a connection by what its client has said, and says what becomes of it.
    #[cold]
    pub(crate) fn note_refused(&mut self, connection: &Connection, selection: Selection) -> Event {
        let rule = self.rule();
        self.tally.note_choice(connection.listener, (rule, None), None);
        if selection != Selection::Drop {
            if rule.is_some() {
                self.emit.dropped(DropReason::RuleRejected);
            }
            return Event::Rejected;
        }
        self.emit.dropped(DropReason::RuleDropped);
        self.silence(connection)
    }

    /// Forgets a connection, and remembers not to answer what its client still sends.
    fn silence(&mut self, connection: &Connection) -> Event {
        if let Some(key) = connection
            .ends
            .key(&self.settings, &self.transparent_sources, Side::Client)
        {
            self.handshake.silenced.note(self.flows.hash(&key), self.now);
        }
        Event::Silenced
    }

    /// True for what follows a connection that was dropped.
    pub(crate) fn is_silenced(&self, segment: &Segment) -> bool {
        self.handshake.silenced.contains(segment.hash, self.now)
    }
}

#[inline]
fn arrival_of(listener: u16, segment: &Segment) -> Arrival {
    arrival(listener, &segment.key)
        .with_looked_up(segment.looked_up)
        .with_syn(segment.has(TcpFlags::SYN))
}

/// What the selector is told of the sender of a segment that belongs to no connection.
#[inline]
pub(super) fn arrival(listener: u16, key: &FourTuple) -> Arrival {
    Arrival::of_mapped(key.remote, key.local_port, ListenerId(listener))
}

/// Why a connection is dropped that is beyond a limit of this kind.
fn reason_of(limited: Limited) -> DropReason {
    match limited {
        Limited::Class => DropReason::ClassLimit,
        Limited::Listener => DropReason::ListenerLimit,
        Limited::Pool => DropReason::PoolLimit,
        Limited::Clients | Limited::Server => DropReason::ClientLimit,
    }
}
