//! Hands packets over to the cores that [own](crate::steering) them.

use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::proxy::{Incoming, Proxy, Rooms};
use crate::session::segment::Segment;
use crate::steering::{SteeringEvent, SteeringTrouble};
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::counters::Counters;
use e2d2::time::Instant;
use e2d2::wire::frame::{Kind, Packet};
use e2d2::wire::tcp::TcpFlags;
use netfcts::FourTuple;

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// What was steered wrong, handed over and taken over; nothing on a core that is alone.
    pub fn steering(&self) -> Option<&Counters<SteeringEvent>> {
        self.rooms.steering.as_ref().map(|steering| &steering.counters)
    }

    /// What the ports have not done that they were told, if that is news: each kind once.
    pub fn take_steering_trouble(&mut self) -> Option<SteeringTrouble> {
        self.rooms.steering.as_mut()?.trouble.take()
    }

    /// Deals with packets that other cores have handed over, TCP and ICMP errors, and leaves the batch empty.
    pub fn take_over(
        &mut self,
        now: Instant,
        batch: &mut ArrayVec<Packet<P::Buffer>, BURST>,
        out: &mut impl Output<P::Buffer>,
    ) {
        // What was put off until now came in by ports here, and what is put off below did not.
        self.rooms.set_now(now);
        self.handle_put_off(out);
        let Some(steering) = &mut self.rooms.steering else {
            let drops = &mut self.rooms.emit.drops;
            drops.add(DropReason::HandoverRefused, batch.len() as u64);
            return batch.clear();
        };
        steering.taking_over = true;
        steering.counters.add(SteeringEvent::TakenOver, batch.len() as u64);
        let mut segments: ArrayVec<Packet<P::Buffer>, BURST> = ArrayVec::new();
        for packet in batch.drain(..) {
            if matches!(packet.kind, Kind::Tcp(_)) {
                segments.push(packet);
            } else {
                self.handle_icmp_error(now, packet, out);
            }
        }
        self.handle_batch(now, &mut segments, out);
        self.handle_put_off(out);
        if let Some(steering) = &mut self.rooms.steering {
            steering.taking_over = false;
        }
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Hands a segment of no flow that is known here to its owner. Gives it back if that is this core.
    #[inline]
    pub(crate) fn hand_over_segment<'a>(
        &mut self,
        incoming: Incoming<'a, P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Incoming<'a, P::Buffer>> {
        let Some(steering) = &mut self.steering else {
            return Some(incoming);
        };
        let key = &incoming.segment.key;
        let elsewhere = steering.elsewhere(key);
        if !steering.taking_over {
            let told = incoming.buffer.rx_info().rss_hash;
            steering.look_at(&incoming.segment.key, told, elsewhere);
        }
        let Some(to) = elsewhere else {
            return Some(incoming);
        };
        self.note_handed_over(incoming.segment);
        let Incoming { buffer, segment } = incoming;
        let packet = Packet {
            buffer,
            port: segment.device,
            kind: Kind::Tcp(segment.layout),
        };
        self.hand_over(to, packet, out);
        None
    }

    /// Counts what overload on this core is measured by, wherever the segment is dealt with: SYNs, and cookies that come back,
    /// whose key all cores have; each cookie once, however often it comes.
    fn note_handed_over(&mut self, segment: &Segment) {
        let is_syn = segment.has(TcpFlags::SYN) && !segment.has(TcpFlags::ACK);
        let may_return = segment.has(TcpFlags::ACK) && !segment.flags.intersects(TcpFlags::SYN | TcpFlags::RST);
        let returns = may_return && self.admission.overload.is_shedding() && self.opens_cookie(segment).is_some();
        let unused = if returns { self.unused(segment) } else { None };
        let has_cookie = unused.is_some();
        if let Some(unused) = unused {
            self.handshake.replay_filter.note(unused);
            let hash = self.flows.source_hash(segment.key.remote);
            self.admission.validated_clients.note(hash, self.now);
        }
        if let Some(steering) = &mut self.steering {
            steering.syns += u64::from(is_syn);
            steering.cookies += u64::from(has_cookie);
        }
    }

    /// Hands an ICMP error about a flow that is not known here to the owner of that flow. Gives it back if that is this
    /// core.
    pub(crate) fn hand_over_icmp_error(
        &mut self,
        key: &FourTuple,
        packet: Packet<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Packet<P::Buffer>> {
        let Some(steering) = &mut self.steering else {
            return Some(packet);
        };
        let Some(to) = steering.elsewhere(key) else {
            return Some(packet);
        };
        if !steering.taking_over {
            steering.counters.add(SteeringEvent::IcmpError, 1);
        }
        self.hand_over(to, packet, out);
        None
    }

    fn hand_over(&mut self, to: usize, packet: Packet<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        let Some(steering) = &mut self.steering else { return };
        match out.hand_over(to, packet) {
            Ok(()) if steering.taking_over => steering.counters.add(SteeringEvent::PassedOn, 1),
            Ok(()) => steering.counters.add(SteeringEvent::HandedOver, 1),
            Err(packet) => {
                drop(packet);
                self.emit.dropped(DropReason::HandoverRefused);
            }
        }
    }
}
