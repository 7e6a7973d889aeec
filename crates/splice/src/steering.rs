//! What a core among several does with packets that are not its own: they go to the core that owns them.
//!
//! A packet of a connection that this core knows is never asked about: its owner is whoever has it. Only what is in no
//! table here (a client's first segments, an answer to another core's SYN, noise) is held against the
//! [plan](netfcts::steering::SteeringPlan), which says the same to every core. So the SYN and the ACK that opens its cookie always meet the
//! same core, whose promises are then those that the client was told, and two cores never answer for one end point.
//!
//! Addresses that PROXY headers name are the exception: the header comes when its connection has an owner already, and
//! nobody can tell that owner from the server's answer. Such packets go round from core to core until one knows them, or
//! all have been asked.

use crate::base::settings::CoreSteering;
use e2d2::counters::Counters;
use netfcts::FourTuple;

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
        PassedOn = "passed_on",
        /// The hash that a port names for a packet is the one it was told to use.
        HashRight = "hash_right",
        /// It is another: what it steers by is not what it was told.
        HashWrong = "hash_wrong",
    }
}

/// What a core among several keeps of it.
pub(crate) struct Steering {
    pub(crate) settings: CoreSteering,
    /// The packets that are being dealt with come from another core.
    pub(crate) taking_over: bool,
    /// SYNs, and the ACKs of cookies in overload, that were handed over.
    pub(crate) syns: u64,
    pub(crate) cookies: u64,
    /// The ports have not done what they were told, and nobody has been told.
    pub(crate) trouble: Option<SteeringTrouble>,
    pub(crate) counters: Counters<SteeringEvent>,
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
    pub(crate) fn new(settings: &CoreSteering) -> Self {
        Steering {
            settings: settings.clone(),
            taking_over: false,
            syns: 0,
            cookies: 0,
            trouble: None,
            counters: Counters::default(),
        }
    }

    /// Compares the hash that a port has `told` of a packet, and that it brought it here, with what the plan says.
    pub(crate) fn look_at(&mut self, key: &FourTuple, told: Option<u32>, elsewhere: Option<usize>) {
        let plan = &self.settings.plan;
        let expected = plan.rss_hash(key);
        if let (Some(told), Some(expected)) = (told, expected) {
            if told == expected {
                self.counters.add(SteeringEvent::HashRight, 1);
            } else {
                self.counters.add(SteeringEvent::HashWrong, 1);
                self.note(SteeringTrouble::Hash { told, expected });
            }
        }
        let plan = &self.settings.plan;
        if let Some(owner) = elsewhere.filter(|_| plan.is_ours(key.local)) {
            let is_unforeseen = expected.is_some() && !plan.is_transparent();
            self.counters.add(SteeringEvent::MisSteered, 1);
            if is_unforeseen {
                self.note(SteeringTrouble::Queue { owner });
            }
        }
    }

    /// The first of a kind is enough: the counters have the rest.
    pub(crate) fn note(&mut self, trouble: SteeringTrouble) {
        let count = match trouble {
            SteeringTrouble::Hash { .. } => self.counters[SteeringEvent::HashWrong],
            SteeringTrouble::Queue { .. } => self.counters[SteeringEvent::MisSteered],
        };
        if count == 1 {
            self.trouble.get_or_insert(trouble);
        }
    }

    /// The core that a packet is to go to that nobody here knows; nothing if it is to be dealt with here.
    pub(crate) fn elsewhere(&self, key: &FourTuple) -> Option<usize> {
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
