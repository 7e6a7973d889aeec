//! The timers of the next hops of one port: when to ask whom.
//!
//! ```text
//!             answer                    reachable time over (30 s ± half)
//!   Asking ──────────────► Reachable ───────────────────────────────────► Probing
//!     ▲                        ▲                    answer                   │ 3 unicast requests,
//!     │                        └─────────────────────────────────────────────┤ one per second
//!     └──────────────────────────────────────────────────────────────────────┘ no answer: MAC forgotten
//! ```
//!
//! `Asking` asks everyone on the link after 0, 1, 2, 4 … 60 s; a waiting packet ([`super::SharedNeighbours::request`])
//! makes it ask at once, but never twice within a second. `Probing` still lets packets use the old address, so a
//! neighbour that answers is never interrupted. States and numbers are those of RFC 4861 10 (for ARP as well: RFC 1122
//! 2.3.2.1 asks for a unicast poll), but for the back-off, which the RFC leaves to the upper layer.
//!
//! One core runs this for a port; what other cores learn reaches it through [`super::SharedNeighbours`].

use std::time::Duration;

use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;

use super::shared::{News, SharedNeighbours};
use super::topology::{MAX_NEXT_HOPS, NextHop, NextHopId, Topology};

/// RFC 4861 10: REACHABLE_TIME; used times a random factor between 0.5 and 1.5 (RFC 4861 6.3.2).
pub const REACHABLE_TIME: Duration = Duration::from_secs(30);
/// RFC 4861 10: RETRANS_TIMER; RFC 1122 2.3.2.1: at most one ARP request per second and destination.
pub const RETRANSMIT: Duration = Duration::from_secs(1);
/// RFC 4861 10: MAX_UNICAST_SOLICIT.
pub const UNICAST_PROBES: u8 = 3;
/// The longest pause between questions after a neighbour that does not answer.
pub const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// When to try again after a frame could not be sent for want of a buffer.
pub(super) const NO_BUFFER_PAUSE: Duration = Duration::from_millis(10);

/// How fine the timers are; bounds how often the whole table is gone through.
const GRAIN: Duration = Duration::from_millis(10);

/// Whom to ask.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// ARP broadcast, or the neighbour's solicited-node multicast group.
    Everyone,
    /// The MAC address that we have.
    Only(MacAddr),
}

/// What a round of the resolver did besides asking.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Round {
    /// Questions sent.
    pub(super) asked: usize,
    /// Neighbours that were given up.
    pub(super) lost: usize,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum State {
    Asking { pause: Duration },
    Reachable,
    Probing { left: u8 },
}

#[derive(Copy, Clone, Debug)]
struct Entry {
    next_hop: NextHopId,
    state: State,
    due: Instant,
    /// No question before this time.
    not_before: Instant,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Resolver {
    port: PortId,
    entries: Vec<Entry>,
    random: SplitMix,
    next_due: Instant,
}

impl Resolver {
    /// A resolver for every next hop of `port` that has no fixed MAC address. It asks for all of them at once.
    pub(super) fn new(port: PortId, topology: &Topology, seed: u64) -> Self {
        let hops = topology.next_hops().iter().enumerate();
        let is_asked = |hop: &NextHop| hop.port == port && hop.is_used && hop.static_mac.is_none();
        let of_port = hops.filter(|(_, hop)| is_asked(hop));
        let mut entries = Vec::with_capacity(MAX_NEXT_HOPS);
        entries.extend(of_port.map(|(index, _)| Entry::new(NextHopId::from_index(index as u16))));
        let next_due = if entries.is_empty() {
            Instant::MAX
        } else {
            Instant::ZERO
        };
        Self {
            port,
            entries,
            random: SplitMix(seed),
            next_due,
        }
    }

    /// Goes on with the next hops of another topology, of which those that are `new` are asked at once. There is room for all.
    pub(super) fn go_on_with(&mut self, topology: &Topology, new: &[NextHopId]) {
        let is_asked = |id: NextHopId| {
            let hop = topology.next_hop(id);
            hop.is_some_and(|hop| hop.port == self.port && hop.is_used && hop.static_mac.is_none())
        };
        self.entries
            .retain(|entry| is_asked(entry.next_hop) && new.binary_search(&entry.next_hop).is_err());
        self.entries
            .extend(new.iter().copied().filter(|id| is_asked(*id)).map(Entry::new));
        self.next_due = Instant::ZERO;
    }

    /// The port whose neighbours these are.
    pub(super) fn port(&self) -> PortId {
        self.port
    }

    /// When [`poll`](Self::poll) has something to do, as far as is known without looking at the news.
    pub(super) fn next_due(&self) -> Instant {
        self.next_due
    }

    /// Takes the news and asks what is due, at most `budget` questions. `ask` says whether the frame could be sent, `lost`
    /// hears of neighbours that are given up.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        shared: &SharedNeighbours,
        budget: usize,
        ask: &mut impl FnMut(NextHopId, Ask) -> bool,
        lost: &mut impl FnMut(NextHopId),
    ) -> Round {
        let mut round = Round::default();
        let news = shared.begin_news(self.port);
        if !news && now < self.next_due {
            return round;
        }
        let mut next_due = Instant::MAX;
        for entry in &mut self.entries {
            if news {
                entry.hear(now, shared.take_news(entry.next_hop), &mut self.random);
            }
            if entry.due <= now && round.asked < budget {
                let had_answered = !matches!(entry.state, State::Asking { .. });
                let whom = entry.whom_to_ask(shared);
                if had_answered && whom == Ask::Everyone {
                    round.lost += 1;
                    lost(entry.next_hop);
                }
                if ask(entry.next_hop, whom) {
                    entry.asked(now);
                    round.asked += 1;
                } else {
                    entry.due = now + NO_BUFFER_PAUSE;
                }
            }
            next_due = next_due.min(entry.due);
        }
        // Timers that are due within the same grain are dealt with together; what the budget has left over is due already.
        self.next_due = if next_due <= now {
            next_due
        } else {
            next_due.max(now + GRAIN)
        };
        round
    }
}

impl Entry {
    /// One that is to be asked at once.
    fn new(next_hop: NextHopId) -> Self {
        Self {
            next_hop,
            state: State::Asking { pause: RETRANSMIT },
            due: Instant::ZERO,
            not_before: Instant::ZERO,
        }
    }

    fn hear(&mut self, now: Instant, news: News, random: &mut SplitMix) {
        if news.is_empty() {
            return;
        }
        if news.has(News::DOUBTED) {
            // Also if it was confirmed in the same round: which came last is not known.
            self.state = State::Probing { left: UNICAST_PROBES };
            self.due = self.not_before.max(now);
        } else if news.has(News::CONFIRMED) {
            self.state = State::Reachable;
            self.due = now + random.half_to_one_and_a_half(REACHABLE_TIME);
        } else if matches!(self.state, State::Asking { .. }) {
            self.due = self.due.min(self.not_before.max(now));
        }
    }

    /// Decides the question that is due now.
    fn whom_to_ask(&mut self, shared: &SharedNeighbours) -> Ask {
        let known = shared.mac(self.next_hop);
        match (self.state, known) {
            (State::Reachable, Some(mac)) => {
                self.state = State::Probing { left: UNICAST_PROBES };
                Ask::Only(mac)
            }
            (State::Probing { left: 1.. }, Some(mac)) => Ask::Only(mac),
            (State::Probing { .. }, Some(mac)) => {
                shared.forget(self.next_hop, mac);
                self.state = State::Asking { pause: RETRANSMIT };
                Ask::Everyone
            }
            (State::Asking { .. }, _) => Ask::Everyone,
            (State::Reachable | State::Probing { .. }, None) => {
                self.state = State::Asking { pause: RETRANSMIT };
                Ask::Everyone
            }
        }
    }

    fn asked(&mut self, now: Instant) {
        self.not_before = now + RETRANSMIT;
        match &mut self.state {
            State::Asking { pause } => {
                self.due = now + *pause;
                *pause = (*pause * 2).min(MAX_BACKOFF);
            }
            State::Probing { left } => {
                self.due = now + RETRANSMIT;
                *left = left.saturating_sub(1);
            }
            State::Reachable => {}
        }
    }
}

/// Steele, Lea and Flood's SplitMix64: jitter needs spread, not secrecy.
#[derive(Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn half_to_one_and_a_half(&mut self, base: Duration) -> Duration {
        let nanos = base.as_nanos() as u64;
        Duration::from_nanos(nanos / 2 + self.next() % nanos.max(1))
    }
}
