//! What a core among several does with packets that are not its own: they go to the core that owns them.
//!
//! A packet of a connection that this core knows is never asked about: its owner is whoever has it. Only what is in no
//! table here (a client's first segments, an answer to another core's SYN, noise) is held against the
//! [plan](SteeringPlan), which says the same to every core. So the SYN and the ACK that opens its cookie always meet the
//! same core, whose promises are then those that the client was told, and two cores never answer for one end point.
//!
//! Addresses that PROXY headers name are the exception: the header comes when its connection has an owner already, and
//! nobody can tell that owner from the server's answer. Such packets go round from core to core until one knows them, or
//! all have been asked.

use super::drop_reason::DropReason;
use super::{Incoming, NextHops, Output, Proxy};
use crate::callbacks::SelectServer;
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::counters::Counters;
use e2d2::time::Instant;
use e2d2::wire::frame::{Kind, Packet};
use netfcts::FourTuple;
use netfcts::steering::SteeringPlan;
use std::sync::Arc;

e2d2::reasons! {
    /// What steering has seen and done on a core.
    pub enum SteeringEvent {
        /// A TCP packet came in by a port here and is another core's.
        MisSteered = "mis_steered",
        /// An ICMP error came in by a port here about another core's connection; no port steers those.
        IcmpError = "icmp_errors",
        /// A packet was handed over to another core.
        HandedOver = "handed_over",
        /// A packet was taken over from another core.
        TakenOver = "taken_over",
        /// A packet to a client's address was passed on: this core did not know it, nor did the one before.
        AskedAround = "asked_around",
        /// The hash that a port names for a packet is the one it was told to use.
        HashRight = "hash_right",
        /// It is another: what it steers by is not what it was told.
        HashWrong = "hash_wrong",
    }
}

/// A core's place among several.
#[derive(Clone, Debug)]
pub struct CoreSteering {
    /// Who owns what.
    pub plan: Arc<SteeringPlan>,
    /// Which of them this core is.
    pub core: usize,
    /// Sources towards servers can be addresses that PROXY headers name.
    pub asks_around: bool,
}

/// What a core among several keeps of it.
pub(super) struct Steering {
    settings: CoreSteering,
    /// The packets that are being dealt with come from another core.
    taking_over: bool,
    /// The ports have not done what they were told, and nobody has been told.
    trouble: Option<SteeringTrouble>,
    counters: Counters<SteeringEvent>,
}

/// What ports have not done that they were told. Connections go on all the same: packets are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteeringTrouble {
    /// The hash that came with a packet is not that of the key that the port was given, or told of.
    Hash {
        /// As the port has it.
        told: u32,
        /// As it should be.
        expected: u32,
    },
    /// A packet came in on this core, though port and plan should have brought it to another.
    Queue {
        /// The other.
        owner: usize,
    },
}

impl Steering {
    pub(super) fn new(settings: &CoreSteering) -> Self {
        Steering {
            settings: settings.clone(),
            taking_over: false,
            trouble: None,
            counters: Counters::default(),
        }
    }

    /// Compares what a port did with a packet that it brought here with what the plan says.
    fn look_at<B: PacketBuffer>(&mut self, incoming: &Incoming<B>, elsewhere: Option<usize>) {
        let key = &incoming.segment.key;
        let plan = &self.settings.plan;
        let expected = plan.rss_hash(key);
        if let (Some(told), Some(expected)) = (incoming.buffer.rx_info().rss_hash, expected) {
            if told == expected {
                self.counters.add(SteeringEvent::HashRight, 1);
            } else {
                self.counters.add(SteeringEvent::HashWrong, 1);
                self.note(SteeringTrouble::Hash { told, expected });
            }
        }
        let plan = &self.settings.plan;
        if let Some(owner) = elsewhere.filter(|_| plan.is_ours(key.local)) {
            let is_unforeseen = expected.is_some() && !plan.lends();
            self.counters.add(SteeringEvent::MisSteered, 1);
            if is_unforeseen {
                self.note(SteeringTrouble::Queue { owner });
            }
        }
    }

    /// The first of a kind is enough: the counters have the rest.
    fn note(&mut self, trouble: SteeringTrouble) {
        let count = match trouble {
            SteeringTrouble::Hash { .. } => self.counters[SteeringEvent::HashWrong],
            SteeringTrouble::Queue { .. } => self.counters[SteeringEvent::MisSteered],
        };
        if count == 1 {
            self.trouble.get_or_insert(trouble);
        }
    }

    /// The core that a packet is to go to that nobody here knows; nothing if it is to be dealt with here.
    fn elsewhere(&self, key: &FourTuple) -> Option<usize> {
        let CoreSteering {
            plan,
            core,
            asks_around,
        } = &self.settings;
        let owner = plan.owner(key)?;
        let goes_round = *asks_around && !plan.is_ours(key.local);
        let next = if core + 1 == plan.cores() { 0 } else { core + 1 };
        match (self.taking_over, goes_round) {
            (false, _) if owner != *core => Some(owner),
            (false, true) => Some(next),
            // Round it goes from the owner on, until it would come to the owner again.
            (true, true) => (next != owner).then_some(next),
            (_, false) => None,
        }
    }
}

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// What was steered wrong, handed over and taken over; nothing on a core that is alone.
    pub fn steering(&self) -> Option<&Counters<SteeringEvent>> {
        self.steering.as_ref().map(|steering| &steering.counters)
    }

    /// What the ports have not done that they were told, if that is news: each kind once.
    pub fn take_steering_trouble(&mut self) -> Option<SteeringTrouble> {
        self.steering.as_mut()?.trouble.take()
    }

    /// Deals with packets that other cores have handed over, TCP and ICMP errors, and leaves the batch empty.
    pub fn take_over(
        &mut self,
        now: Instant,
        batch: &mut ArrayVec<Packet<P::Buffer>, BURST>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(steering) = &mut self.steering else {
            self.drops.add(DropReason::HandoverRefused, batch.len() as u64);
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
        if let Some(steering) = &mut self.steering {
            steering.taking_over = false;
        }
    }

    /// Hands a segment of no flow that is known here to its owner. Gives it back if that is this core.
    #[inline]
    pub(super) fn hand_over_segment<'a>(
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
            steering.look_at(&incoming, elsewhere);
        }
        let Some(to) = elsewhere else {
            return Some(incoming);
        };
        let Incoming { buffer, segment } = incoming;
        let packet = Packet {
            buffer,
            port: segment.device,
            kind: Kind::Tcp(segment.layout),
        };
        self.hand_over(to, packet, out);
        None
    }

    /// Hands an ICMP error about a flow that is not known here to the owner of that flow. Gives it back if that is this
    /// core.
    pub(super) fn hand_over_icmp_error(
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
            Ok(()) if steering.taking_over => steering.counters.add(SteeringEvent::AskedAround, 1),
            Ok(()) => steering.counters.add(SteeringEvent::HandedOver, 1),
            Err(packet) => {
                drop(packet);
                self.drops.add(DropReason::HandoverRefused, 1);
            }
        }
    }
}
