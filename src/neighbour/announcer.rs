//! Tells the link of one port which addresses are ours: at the start, and once more a second later.
//!
//! For IPv4 an ARP announcement (RFC 5227 2.3), for IPv6 an unsolicited neighbour advertisement to all nodes (RFC 4861
//! 7.2.6): caches that still hold our address with another MAC address, and switches that have not learned the port,
//! are put right before the first client is.

use std::net::IpAddr;
use std::time::Duration;

use e2d2::port::PortId;
use e2d2::time::Instant;

use super::resolver::NO_BUFFER_PAUSE;
use super::topology::Topology;

/// RFC 5227 1.1: ANNOUNCE_NUM. RFC 4861 10 allows up to 3 advertisements.
const ROUNDS: u8 = 2;
/// The first announcement may be lost while the link settles; one second is RETRANS_TIMER of RFC 4861 10.
const PAUSE: Duration = Duration::from_secs(1);

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Announcer {
    addresses: Vec<IpAddr>,
    next: usize,
    rounds_left: u8,
    due: Instant,
    round_started: Instant,
}

impl Announcer {
    /// Announces every own address of `port`, starting at the first poll.
    pub(super) fn new(port: PortId, topology: &Topology) -> Self {
        let addresses: Vec<IpAddr> = topology.own_addresses(port).collect();
        let due = if addresses.is_empty() {
            Instant::MAX
        } else {
            Instant::ZERO
        };
        Self {
            addresses,
            next: 0,
            rounds_left: ROUNDS,
            due,
            round_started: Instant::ZERO,
        }
    }

    /// Starts again, after the link came up or an address moved here.
    pub(super) fn restart(&mut self, now: Instant) {
        if !self.addresses.is_empty() {
            (self.next, self.rounds_left, self.due) = (0, ROUNDS, now);
        }
    }

    /// When [`poll`](Self::poll) has something to do.
    pub(super) fn next_due(&self) -> Instant {
        self.due
    }

    /// Announces at most `budget` addresses; returns how many. `announce` says whether the frame could be sent.
    pub(super) fn poll(&mut self, now: Instant, budget: usize, announce: &mut impl FnMut(IpAddr) -> bool) -> usize {
        if now < self.due {
            return 0;
        }
        if self.next == 0 {
            self.round_started = now;
        }
        let mut sent = 0;
        while sent < budget {
            let Some(&address) = self.addresses.get(self.next) else {
                break;
            };
            if !announce(address) {
                self.due = now + NO_BUFFER_PAUSE;
                return sent;
            }
            self.next += 1;
            sent += 1;
        }
        if self.next == self.addresses.len() {
            self.next = 0;
            self.rounds_left = self.rounds_left.saturating_sub(1);
            self.due = if self.rounds_left == 0 {
                Instant::MAX
            } else {
                self.round_started + PAUSE
            };
        }
        sent
    }
}
