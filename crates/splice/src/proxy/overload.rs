//! What a core does with packets while it is [overloaded](crate::admission::overload).

use crate::admission::overload::{Sender, sender_of_syn};
use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::limit::Rank;
use crate::base::output::{NextHops, Output};
use crate::proxy::refusing::arrival;
use crate::proxy::{Proxy, Rooms};
use crate::session::segment::Header;
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::frame::{Kind, Packet};
use netfcts::Side;
use netfcts::counters::TcpCounter;

/// Who has sent a SYN.
#[derive(Clone, Copy, Debug)]
struct Source {
    /// The hash of its address.
    hash: u64,
    /// That of its class.
    rank: Rank,
}

/// When a packet has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// With the segments of connections.
    First,
    /// Behind them, if there is something left to pay for it.
    Last,
    /// It is dropped.
    Never,
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// A round begins; `is_full` says that a port gave as much as was asked of it, so that more may be waiting. To be
    /// called before the round's batch is handled, also if that is empty.
    #[inline]
    pub fn note_round(&mut self, now: Instant, is_full: bool) {
        if self.rooms.admission.overload.wants(is_full) {
            let handed_over = self.rooms.steering.as_ref().map_or(0, |steering| steering.cookies);
            let returned = self.rooms.records.counters(Side::Client)[TcpCounter::RecvSynAck2] + handed_over;
            let overload = &mut self.rooms.admission.overload;
            overload.note((self.rooms.now, now), is_full, returned);
        }
    }

    /// As [`Proxy::handle_batch`], SYNs last and only as many as can be afforded.
    ///
    /// Where nine of ten packets are dropped, a batch has three segments of connections, and each would wait alone for its
    /// lines from memory. So they are put off until there is a burst of them, or for a few rounds.
    pub(crate) fn handle_overloaded(
        &mut self,
        batch: &mut ArrayVec<Packet<P::Buffer>, BURST>,
        out: &mut impl Output<P::Buffer>,
    ) {
        // While all of them could be SYNs and be answered, nobody has to give way to anybody.
        if self.rooms.admission.overload.affords_all() {
            self.handle_put_off(out);
            return self.handle_all(batch, out);
        }
        if self.rooms.admission.overload.affordable(Sender::Stranger, batch.len()) == batch.len() {
            self.handle_put_off(out);
            return self.handle_paid(batch, out);
        }
        let affords_strangers = self.rooms.admission.overload.affordable(Sender::Stranger, 1) > 0;
        let sources = self.sources_of_syns(batch);
        let (mut strangers, mut dropped) = (ArrayVec::new(), 0);
        for (packet, source) in batch.drain(..).zip(sources) {
            match self.turn_of(source, affords_strangers) {
                Turn::First => self.put_off(packet, out),
                Turn::Last => strangers.push(packet),
                Turn::Never => dropped += 1,
            }
        }
        if self.rooms.admission.overload.is_due() || self.rooms.admission.overload.keeps_up() || !strangers.is_empty() {
            self.handle_put_off(out);
        }
        dropped += self.answer_strangers(&mut strangers, out);
        if dropped > 0 {
            self.rooms.admission.overload.note_drop(self.rooms.now);
            self.rooms.emit.drops.add(DropReason::Overload, dropped);
        }
    }

    /// The source of each packet that is a SYN. Prefetches the line of each source among the validated clients: to wait for each of
    /// them alone costs more than an answer.
    fn sources_of_syns(&mut self, batch: &[Packet<P::Buffer>]) -> ArrayVec<Option<Source>, BURST> {
        let have_ranks = self.rooms.settings.limits.have_ranks;
        let source_of = |packet| {
            let hash = self.rooms.flows.source_hash(sender_of_syn(packet)?);
            if !self.rooms.admission.overload.is_open_to(hash) {
                self.rooms.admission.validated_clients.prefetch(hash);
            }
            let rank = if have_ranks {
                self.rooms.rank_of(packet)
            } else {
                Rank::Usual
            };
            Some(Source { hash, rank })
        };
        batch.iter().map(source_of).collect()
    }

    /// Says when a packet has its turn, by the hash of its sender if it is a SYN. While the queue fills, those of clients who are
    /// known pay for theirs here, answered or not.
    fn turn_of(&mut self, source: Option<Source>, affords_strangers: bool) -> Turn {
        let Some(Source { hash, rank }) = source else {
            return Turn::First;
        };
        if rank != Rank::Last && self.rooms.admission.overload.is_open_to(hash) {
            return Turn::First;
        }
        let is_known = || self.rooms.admission.validated_clients.contains(hash);
        if rank == Rank::First || rank == Rank::Usual && is_known() {
            if self.rooms.admission.overload.keeps_up() {
                return Turn::First;
            }
            if self.rooms.admission.overload.affordable(Sender::Known, 1) == 0 {
                return Turn::Never;
            }
            self.rooms.admission.overload.pay(1);
            return Turn::First;
        }
        if affords_strangers { Turn::Last } else { Turn::Never }
    }

    /// Keeps a segment until there are more, or deals with those that there are.
    fn put_off(&mut self, packet: Packet<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        if self.deferred.is_full() {
            self.handle_put_off(out);
        }
        self.deferred.push(packet);
    }

    /// Deals with the segments that were put off.
    pub(crate) fn handle_put_off(&mut self, out: &mut impl Output<P::Buffer>) {
        if !self.deferred.is_empty() {
            let mut due = std::mem::take(&mut self.deferred);
            self.handle_all(&mut due, out);
        }
    }

    /// Answers SYNs as long as there is something earned to pay for it; returns how many were not. Only an answer is paid
    /// for: what is dropped for what it is, or belongs to a connection, takes nobody's place.
    fn answer_strangers(
        &mut self,
        syns: &mut ArrayVec<Packet<P::Buffer>, BURST>,
        out: &mut impl Output<P::Buffer>,
    ) -> u64 {
        while !syns.is_empty() {
            let affordable = self.rooms.admission.overload.affordable(Sender::Stranger, syns.len());
            if affordable == 0 {
                break;
            }
            let mut now_due: ArrayVec<_, BURST> = syns.drain(..affordable).collect();
            self.handle_paid(&mut now_due, out);
        }
        syns.len() as u64
    }

    /// Deals with a batch whose SYNs can be afforded, and pays for those that were answered, here or by another core.
    fn handle_paid(&mut self, batch: &mut ArrayVec<Packet<P::Buffer>, BURST>, out: &mut impl Output<P::Buffer>) {
        let answered = self.rooms.syns();
        self.handle_all(batch, out);
        let answered = self.rooms.syns() - answered;
        self.rooms.admission.overload.pay(answered);
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// SYNs so far that an answer was made for, or that were handed over for one.
    fn syns(&self) -> u64 {
        let handed_over = self.steering.as_ref().map_or(0, |steering| steering.syns);
        self.records.counters(Side::Client)[TcpCounter::RecvSyn] + handed_over
    }

    /// The rank of the class that the sender of a SYN is in.
    fn rank_of(&mut self, packet: &Packet<P::Buffer>) -> Rank {
        let Kind::Tcp(layout) = packet.kind else {
            return Rank::Usual;
        };
        let key = Header::read(packet.buffer.data(), layout).map(|header| header.key);
        let class = key.and_then(|key| {
            let addresses = &self.settings.addresses;
            let listener = addresses.listener(addresses.index(key.local)?, key.local_port, packet.port)?;
            self.selector.class(&arrival(listener, &key))
        });
        let class = class.and_then(|class| self.settings.limits.classes.get(usize::from(class)));
        class.map_or(Rank::Usual, |class| class.rank)
    }

    /// A client has come back with the number that it was told.
    #[inline]
    pub(crate) fn on_cookie_returned(&mut self, client: u128) {
        self.records.count(Side::Client, TcpCounter::RecvSynAck2);
        let hash = self.flows.source_hash(client);
        self.admission.validated_clients.note(hash, self.now);
    }
}
