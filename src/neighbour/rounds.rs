//! What a port says without being asked, in rounds: its addresses, and the multicast groups that it listens to.
//!
//! **Addresses**, at the start and once more a second later: for IPv4 an ARP announcement (RFC 5227 2.3), for IPv6 an
//! unsolicited neighbour advertisement to all nodes (RFC 4861 7.2.6). Caches that still hold our address with another MAC
//! address, and switches that have not learned the port, are put right before the first client is.
//!
//! **Groups**, the solicited-node groups of our IPv6 addresses: at the same times, and then once a minute. A switch that
//! snoops on MLD passes a neighbour solicitation only to those who have reported its group (RFC 4861 7.2.1 asks for it).

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::ipv6::solicited_node;

use super::membership::GROUPS_PER_REPORT;
use super::resolver::NO_BUFFER_PAUSE;
use super::topology::Topology;

/// Between the first round, which may be lost while the link settles, and the second: RETRANS_TIMER of RFC 4861 10,
/// ANNOUNCE_INTERVAL of RFC 5227 1.1 is two seconds, RFC 3810 9.11 says one.
const SECOND_ROUND: Duration = Duration::from_secs(1);

/// RFC 3810 9.4: a group is forgotten 260 s after its last report. A host reports when it is queried; queries have an
/// extension header, which the graph does not let in, so the reports come often enough without.
const GROUP_REFRESH: Duration = Duration::from_secs(60);

/// Sends a list of things again and again, each round a given time after the one before.
#[derive(Debug)]
pub(super) struct Rounds<T> {
    items: Vec<T>,
    next: usize,
    round: u32,
    due: Instant,
    started: Instant,
    pause_after: fn(u32) -> Option<Duration>,
}

/// The announcements of every own address of `port`; the first poll starts them.
pub(super) fn announcements(port: PortId, topology: &Topology) -> Rounds<IpAddr> {
    // RFC 5227 1.1: ANNOUNCE_NUM is 2; RFC 4861 10 allows up to 3 advertisements.
    let pause_after = |round| (round == 0).then_some(SECOND_ROUND);
    Rounds::new(topology.own_addresses(port).collect(), pause_after)
}

/// The reports of all groups of `port`, as many to a report as it holds; the first poll starts them.
pub(super) fn memberships(port: PortId, topology: &Topology) -> Rounds<Vec<Ipv6Addr>> {
    let group = |address: IpAddr| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(solicited_node(address)),
    };
    let mut groups: Vec<Ipv6Addr> = topology.own_addresses(port).filter_map(group).collect();
    groups.sort_unstable();
    groups.dedup();
    // RFC 3810 9.1: a change is reported as often as the robustness variable says, twice.
    let pause_after = |round| Some(if round == 0 { SECOND_ROUND } else { GROUP_REFRESH });
    Rounds::new(
        groups.chunks(GROUPS_PER_REPORT).map(<[_]>::to_vec).collect(),
        pause_after,
    )
}

impl<T> Rounds<T> {
    fn new(items: Vec<T>, pause_after: fn(u32) -> Option<Duration>) -> Self {
        let due = if items.is_empty() { Instant::MAX } else { Instant::ZERO };
        Self {
            items,
            next: 0,
            round: 0,
            due,
            started: Instant::ZERO,
            pause_after,
        }
    }

    /// Starts again with the first round, after the link came up or an address moved here.
    pub(super) fn restart(&mut self, now: Instant) {
        if !self.items.is_empty() {
            (self.next, self.round, self.due) = (0, 0, now);
        }
    }

    /// When [`poll`](Self::poll) has something to do.
    pub(super) fn next_due(&self) -> Instant {
        self.due
    }

    /// Sends at most `budget` items; returns how many. `send` says whether the frame could be sent.
    pub(super) fn poll(&mut self, now: Instant, budget: usize, send: &mut impl FnMut(&T, u32) -> bool) -> usize {
        if now < self.due {
            return 0;
        }
        if self.next == 0 {
            self.started = now;
        }
        let mut sent = 0;
        while sent < budget {
            let Some(item) = self.items.get(self.next) else { break };
            if !send(item, self.round) {
                self.due = now + NO_BUFFER_PAUSE;
                return sent;
            }
            self.next += 1;
            sent += 1;
        }
        if self.next == self.items.len() {
            self.due = (self.pause_after)(self.round).map_or(Instant::MAX, |pause| self.started + pause);
            self.next = 0;
            self.round = self.round.saturating_add(1);
        }
        sent
    }
}
