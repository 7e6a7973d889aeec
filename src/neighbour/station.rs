//! What one core does with the frames that are neither TCP nor about it, and with the timers of the ports it leads.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use e2d2::buffer::PacketBuffer;
use e2d2::counters::{CounterReader, CounterWriter, Counters, shared as shared_counters};
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use e2d2::wire::frame::Kind;
use netfcts::rate::RateLimiter;

use super::log_lines::NeighbourLog;
use super::membership::{self, Membership};
use super::reason::{NeighbourDrop, NeighbourEvent};
use super::resolver::{Ask, Resolver};
use super::rounds::{Rounds, announcements, memberships};
use super::shared::{Learned, News, SharedNeighbours};
use super::topology::{Interface, NextHop, NextHopId, Topology, is_station};
use super::{arp, discovery, echo};
use crate::log_ring::{LogEvent, SharedLog};

/// Echo requests that a core answers per second on the average: Linux' `icmp_msgs_per_sec`.
pub const ECHO_PER_SECOND: u64 = 1000;
/// Echo requests that a core answers at once.
pub const ECHO_BURST: u32 = 200;
/// Most frames of its own that one poll sends: half a burst, so that they never crowd out packets.
pub const FRAMES_PER_POLL: usize = 16;

/// What became of a frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The buffer holds the answer: send it on the port that the request came from.
    Answer(NeighbourEvent),
    /// The frame was used; free the buffer.
    Used(NeighbourEvent),
    /// The frame was dropped, and that was counted; free the buffer.
    Dropped(NeighbourDrop),
    /// An ICMP error about a packet of ours: the proxy's affair. The buffer is unchanged, checksums have been verified.
    IcmpError,
    /// Neither ARP nor ICMP. The buffer is unchanged.
    NotOurs,
}

/// What a core's [`Station`] has counted.
#[derive(Clone, Debug, Default)]
pub struct NeighbourCounters {
    /// Frames that ended here.
    pub drops: Counters<NeighbourDrop>,
    /// What the others led to.
    pub events: Counters<NeighbourEvent>,
}

/// The reading end of a station's counters, for any thread.
#[derive(Clone)]
pub struct NeighbourCounterReader {
    drops: CounterReader<NeighbourDrop>,
    events: CounterReader<NeighbourEvent>,
}

impl NeighbourCounterReader {
    /// The counts as they are now.
    pub fn snapshot(&self) -> NeighbourCounters {
        NeighbourCounters {
            drops: self.drops.snapshot(),
            events: self.events.snapshot(),
        }
    }
}

/// One core's part of the engine as a station; see the module documentation of [`crate::neighbour`].
pub struct Station {
    topology: Arc<Topology>,
    shared: Arc<SharedNeighbours>,
    leads: Vec<Lead>,
    next_due: Instant,
    echo_limit: RateLimiter,
    log: NeighbourLog,
    counters: Writers,
    readers: NeighbourCounterReader,
}

struct Writers {
    drops: CounterWriter<NeighbourDrop>,
    events: CounterWriter<NeighbourEvent>,
}

/// Other addresses and next hops for a station that runs: made by another thread, taken in by swapping.
pub struct StationChange {
    topology: Arc<Topology>,
    /// Next hops that are new.
    new: Vec<NextHopId>,
    /// What each port says of its addresses, if these are others.
    said: Vec<(PortId, Rounds<IpAddr>, Rounds<Vec<Ipv6Addr>>)>,
}

impl StationChange {
    /// From the topology `before` to another.
    pub fn new(topology: Arc<Topology>, before: &Topology) -> Self {
        let hops = topology.next_hops().iter().zip(0_u16..);
        let had = |index: u16| before.next_hops().get(usize::from(index));
        let is_new = |(hop, index): &(&NextHop, u16)| !had(*index).is_some_and(|before| before.is_same(hop));
        let new = hops
            .filter(is_new)
            .map(|(_, index)| NextHopId::from_index(index))
            .collect();
        let ports = topology.interfaces().iter().map(|interface| interface.port);
        let differs = |port: &PortId| !topology.own_addresses(*port).eq(before.own_addresses(*port));
        let said = ports
            .filter(differs)
            .map(|port| (port, announcements(port, &topology), memberships(port, &topology)))
            .collect();
        Self { topology, new, said }
    }
}

/// A port whose timers this core keeps.
struct Lead {
    mac: MacAddr,
    announcements: Rounds<IpAddr>,
    memberships: Rounds<Vec<Ipv6Addr>>,
    resolver: Resolver,
}

/// What a neighbour's word about its MAC address is worth.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The answer to a question, sent to us.
    Answer,
    /// Something it said unasked; a known address is replaced and then asked for.
    Unasked,
    /// As `Answer` or `Unasked`, but it does not want a known address replaced (RFC 4861 7.2.5, override flag clear).
    Modest {
        /// Whether it came as an answer.
        solicited: bool,
    },
}

/// The port and time of a frame that is being handled.
#[derive(Copy, Clone, Debug)]
pub(super) struct Arrival {
    pub(super) now: Instant,
    pub(super) port: PortId,
    /// Our MAC address on that port.
    pub(super) mac: MacAddr,
}

impl Station {
    /// The part of one core. `leads` are the ports whose announcements and questions this core sends: over all cores,
    /// each port exactly once. `seed` spreads the refreshes over time.
    pub fn new(
        topology: Arc<Topology>,
        shared: Arc<SharedNeighbours>,
        leads: &[PortId],
        seed: u64,
        now: Instant,
    ) -> Self {
        let lead = |interface: &Interface| Lead {
            mac: interface.mac,
            announcements: announcements(interface.port, &topology),
            memberships: memberships(interface.port, &topology),
            resolver: Resolver::new(interface.port, &topology, seed ^ u64::from(interface.port.0)),
        };
        let led = topology
            .interfaces()
            .iter()
            .filter(|interface| leads.contains(&interface.port));
        let leads: Vec<Lead> = led.map(lead).collect();
        let ((drops, drops_read), (events, events_read)) = (shared_counters(), shared_counters());
        Self {
            shared,
            leads,
            next_due: Instant::ZERO,
            echo_limit: RateLimiter::new(ECHO_PER_SECOND, ECHO_BURST, now),
            log: NeighbourLog::new(now),
            counters: Writers { drops, events },
            readers: NeighbourCounterReader {
                drops: drops_read,
                events: events_read,
            },
            topology,
        }
    }

    /// Goes on with another topology, and leaves in `change` what there was.
    pub fn adopt(&mut self, change: &mut StationChange) {
        std::mem::swap(&mut self.topology, &mut change.topology);
        for lead in &mut self.leads {
            lead.resolver.go_on_with(&self.topology, &change.new);
            let port = lead.resolver.port();
            if let Some((_, announcements, memberships)) = change.said.iter_mut().find(|said| said.0 == port) {
                std::mem::swap(&mut lead.announcements, announcements);
                std::mem::swap(&mut lead.memberships, memberships);
            }
        }
        self.next_due = Instant::ZERO;
    }

    /// Sends what is for the log there; without it, there is no log.
    pub fn logging_to(mut self, log: SharedLog) -> Self {
        self.log.set_ring(log);
        self
    }

    /// Handles a received frame that [`e2d2::wire::frame::parse`] said to be of `kind`. At most one answer, in the same
    /// buffer; never longer than an echo request, 42 bytes for ARP and 86 for neighbour discovery.
    pub fn handle<B: PacketBuffer>(&mut self, now: Instant, port: PortId, kind: Kind, buffer: &mut B) -> Verdict {
        if matches!(kind, Kind::Tcp(_) | Kind::Other { .. }) {
            return Verdict::NotOurs;
        }
        let Some(interface) = self.topology.interface(port) else {
            return Verdict::NotOurs;
        };
        let arrival = Arrival {
            now,
            port,
            mac: interface.mac,
        };
        let outcome = match kind {
            Kind::Arp => arp::handle(self, arrival, buffer),
            Kind::Icmpv4 { l3, l4, end } => echo::handle_v4(self, arrival, echo::Span { l3, l4, end }, buffer),
            Kind::Icmpv6 { l3, l4, end } => discovery::handle(self, arrival, echo::Span { l3, l4, end }, buffer),
            Kind::Tcp(_) | Kind::Other { .. } => Ok(Verdict::NotOurs),
        };
        match outcome {
            Ok(verdict) => {
                if let Verdict::Answer(event) | Verdict::Used(event) = verdict {
                    self.counters.events.add(event, 1);
                }
                verdict
            }
            Err(reason) => {
                self.counters.drops.add(reason, 1);
                Verdict::Dropped(reason)
            }
        }
    }

    /// Sends what is due, at most [`FRAMES_PER_POLL`] frames; returns how many. `send` copies a frame into a buffer for
    /// the port, and says `false` if it has none: the frame is then tried again later.
    ///
    /// To be called in every round; costs a few loads when nothing is due.
    pub fn poll(&mut self, now: Instant, send: &mut dyn FnMut(PortId, &[u8]) -> bool) -> usize {
        let due = now >= self.next_due;
        if !due && !self.leads.iter().any(|lead| self.shared.has_news(lead.resolver.port())) {
            return 0;
        }
        let mut sent = 0;
        for lead in &mut self.leads {
            if self.shared.take_announce(lead.resolver.port()) {
                lead.announcements.restart(now);
                lead.memberships.restart(now);
            }
            sent += lead.poll(
                now,
                FRAMES_PER_POLL - sent,
                &self.topology,
                &self.shared,
                (&self.counters, &mut self.log),
                send,
            );
        }
        self.next_due = self.leads.iter().map(Lead::next_due).min().unwrap_or(Instant::MAX);
        sent
    }

    /// When [`poll`](Self::poll) has something to do, unless another core asks for something earlier.
    pub fn next_deadline(&self) -> Instant {
        self.next_due
    }

    /// The reading end of this core's counters.
    pub fn counter_reader(&self) -> NeighbourCounterReader {
        self.readers.clone()
    }

    /// What was counted so far.
    pub fn counters(&self) -> NeighbourCounters {
        self.readers.snapshot()
    }

    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Whether `address` is ours on this port, and is not left to another engine.
    pub(super) fn answers_for(&self, port: PortId, address: IpAddr) -> bool {
        self.topology.owns(port, address) && (self.shared.announces() || !self.topology.is_of_listeners(port, address))
    }

    pub(super) fn echo_allowed(&mut self, now: Instant) -> bool {
        self.echo_limit.take(now)
    }

    /// Fails if the frame was sent by ourselves or by no single station.
    pub(super) fn check_source_mac(&self, source: MacAddr) -> Result<(), NeighbourDrop> {
        if !source.is_unicast() {
            Err(NeighbourDrop::BadSource)
        } else if self.topology.owns_mac(source) {
            Err(NeighbourDrop::OwnFrame)
        } else {
            Ok(())
        }
    }

    /// Counts something that happened beside the verdict.
    pub(super) fn count(&self, event: NeighbourEvent) {
        self.counters.events.add(event, 1);
    }

    /// The MAC address of a next hop on the link that the frame came from.
    pub(super) fn known_mac(&self, arrival: Arrival, address: IpAddr) -> Option<MacAddr> {
        self.shared.mac(self.topology.next_hop_of(arrival.port, address)?)
    }

    /// Someone else speaks as one of our addresses.
    pub(super) fn log_duplicate(&mut self, arrival: Arrival, address: IpAddr, mac: MacAddr) {
        let port = arrival.port;
        self.log
            .send(arrival.now, LogEvent::DuplicateAddress { address, mac, port });
    }

    /// Takes what a station says about its own MAC address for what it is worth (RFC 826 "merge", RFC 4861 7.2.5).
    ///
    /// # Errors
    /// [`NeighbourDrop::UnknownNeighbour`] if it is nobody we must reach.
    pub(super) fn hear(
        &mut self,
        arrival: Arrival,
        address: IpAddr,
        mac: MacAddr,
        claim: Claim,
    ) -> Result<NeighbourEvent, NeighbourDrop> {
        let id = self
            .topology
            .next_hop_of(arrival.port, address)
            .ok_or(NeighbourDrop::UnknownNeighbour)?;
        let known = self.shared.mac(id);
        if self.shared.is_static(id) {
            let keeps = known == Some(mac);
            return Ok(if keeps {
                NeighbourEvent::Unchanged
            } else {
                NeighbourEvent::StaticKept
            });
        }
        let is_answer = match claim {
            Claim::Answer => true,
            Claim::Unasked => false,
            Claim::Modest { .. } if known.is_some_and(|known| known != mac) => {
                self.shared.tell(id, News::DOUBTED);
                return Ok(NeighbourEvent::Doubted);
            }
            Claim::Modest { solicited } => solicited,
        };
        Ok(self.learn(arrival, id, mac, is_answer))
    }

    fn learn(&mut self, arrival: Arrival, id: NextHopId, mac: MacAddr, is_answer: bool) -> NeighbourEvent {
        let learned = self.shared.learn(id, mac);
        let news = if is_answer { News::CONFIRMED } else { News::DOUBTED };
        match learned {
            Learned::Static => return NeighbourEvent::StaticKept,
            Learned::Same if !is_answer => return NeighbourEvent::Unchanged,
            Learned::Same => {}
            Learned::New => self.log_neighbour(arrival, id, mac, None),
            Learned::Changed(old) => self.log_neighbour(arrival, id, mac, Some(old)),
        }
        self.shared.tell(id, news);
        match learned {
            Learned::Changed(_) => NeighbourEvent::MacChanged,
            _ if is_answer => NeighbourEvent::Confirmed,
            _ => NeighbourEvent::Learned,
        }
    }

    fn log_neighbour(&mut self, arrival: Arrival, id: NextHopId, mac: MacAddr, old: Option<MacAddr>) {
        let Some(hop) = self.topology.next_hop(id) else { return };
        let (address, port) = (hop.address, hop.port);
        let event = match old {
            None => LogEvent::NeighbourFound { address, mac, port },
            Some(old) => LogEvent::NeighbourMoved {
                address,
                old,
                mac,
                port,
            },
        };
        self.log.send(arrival.now, event);
    }
}

impl Lead {
    fn next_due(&self) -> Instant {
        self.announcements
            .next_due()
            .min(self.memberships.next_due())
            .min(self.resolver.next_due())
    }

    fn poll(
        &mut self,
        now: Instant,
        budget: usize,
        topology: &Topology,
        shared: &SharedNeighbours,
        (counters, log): (&Writers, &mut NeighbourLog),
        send: &mut dyn FnMut(PortId, &[u8]) -> bool,
    ) -> usize {
        let (port, mac) = (self.resolver.port(), self.mac);
        let mut no_buffer = 0;
        let mut send = |frame: &[u8]| {
            let is_sent = send(port, frame);
            no_buffer += u64::from(!is_sent);
            is_sent
        };
        let mut left_out = 0;
        let announced = self.announcements.poll(now, budget, &mut |address, _| match *address {
            address if !shared.announces() && topology.is_of_listeners(port, address) => {
                left_out += 1;
                true
            }
            IpAddr::V4(address) => send(&arp::announcement(mac, address)),
            IpAddr::V6(address) => send(&discovery::announcement(mac, address)),
        });
        let announced = announced - left_out;
        let reported = self.memberships.poll(now, budget - announced, &mut |groups, round| {
            let membership = if round < 2 {
                Membership::Begins
            } else {
                Membership::Goes
            };
            send(&membership::report(mac, membership, groups))
        });
        let mut lost = |id| {
            if let Some(hop) = topology.next_hop(id) {
                let address = hop.address;
                log.send(now, LogEvent::NeighbourLost { address, port });
            }
        };
        let mut ask = |id, ask| {
            let Some(hop) = topology.next_hop(id) else { return true };
            let to = match ask {
                Ask::Everyone => None,
                Ask::Only(mac) => Some(mac),
            };
            match (hop.source, hop.address) {
                (IpAddr::V4(source), IpAddr::V4(target)) => send(&arp::request(mac, source, to, target)),
                (IpAddr::V6(source), IpAddr::V6(target)) => send(&discovery::solicitation(mac, source, to, target)),
                // `Topology::new` gives every next hop a source of its own family.
                _ => true,
            }
        };
        let round = self
            .resolver
            .poll(now, shared, budget - announced - reported, &mut ask, &mut lost);
        counters.events.add(NeighbourEvent::Announced, announced as u64);
        counters.events.add(NeighbourEvent::GroupsReported, reported as u64);
        counters.events.add(NeighbourEvent::Asked, round.asked as u64);
        counters.events.add(NeighbourEvent::Lost, round.lost as u64);
        counters.drops.add(NeighbourDrop::NoBuffer, no_buffer);
        announced + reported + round.asked
    }
}

/// Whether an IP address can be a neighbour's.
pub(super) fn check_source(address: IpAddr) -> Result<(), NeighbourDrop> {
    if is_station(address) {
        Ok(())
    } else {
        Err(NeighbourDrop::BadSource)
    }
}
