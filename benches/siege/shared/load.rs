//! The load around the proxy: honest clients, newcomers and attackers begin and end, and what came of them.

use std::time::Duration;

use benchkit::cps_generator;
use e2d2::native::Mbuf;
use trafficengine::attack::{AttackSettings, Attacker, Kind, Victims};
use trafficengine::stats::{Connections, Failure};
use trafficengine::{ClientSettings, Generator, Pace};

use super::{Field, Hosts, MOST_OPEN, STEADY, STEADY_PORTS, range, tcp};
use crate::device::LISTENER;
use crate::device::load::roles;

/// Honest clients, whose connections come and go.
const HONEST: &str = "10.1.16.1-10.1.31.254";

/// Addresses of each load of clients who have never been here: more than connect in five seconds.
const NEWCOMERS: u32 = 1 << 22;

/// Of these, at once: as many as a flood lets wait for the repetition of a SYN.
const NEWCOMERS_OPEN: u32 = 1 << 21;

/// First octets of such loads' addresses.
const NEWCOMERS_FROM: std::ops::Range<u32> = 20..120;

/// Where floods come from: a million addresses.
const SPOOFED: &str = "11.0.0.0-11.15.255.255";

/// Hosts of attackers who have connections.
const PEERS: &str = "10.1.2.1-10.1.2.16";

impl Field {
    /// Honest clients begin; those before are gone.
    pub(crate) fn begin_honest(&mut self, pace: Pace, change: impl FnOnce(&mut ClientSettings)) {
        let (mut client, _) = roles(&self.conditions);
        client.tcp = [tcp(1460), tcp(1440)];
        client.sources = vec![range(HONEST)];
        client.idle = Duration::from_secs(10);
        client.max_open = MOST_OPEN;
        client.pace = pace;
        self.seed += 1;
        client.seed = self.seed;
        change(&mut client);
        self.honest_from = client.sources.clone();
        let port = self.clients.house(&client.sources);
        let hosts = cps_generator(Some(client), None, self.macs[0], self.now);
        self.honest = Some(Hosts { hosts, port });
    }

    /// The same, each connection from an address that has not been here before: a hundred loads of four million.
    pub(crate) fn begin_newcomers(&mut self, pace: Pace) {
        let octet = NEWCOMERS_FROM.start + self.loads_of_newcomers % NEWCOMERS_FROM.len() as u32;
        self.loads_of_newcomers += 1;
        let first = octet << 24;
        let [first, last] = [first, first + NEWCOMERS - 1].map(std::net::Ipv4Addr::from);
        self.begin_honest(pace, |client| {
            client.sources = vec![range(&format!("{first}-{last}"))];
            client.ports = 40_000..=40_000;
            client.max_open = NEWCOMERS_OPEN;
        });
    }

    /// Honest clients start no more connections.
    pub(crate) fn stop_honest(&mut self) {
        if let Some(honest) = &mut self.honest {
            honest.hosts.stop();
        }
    }

    /// The honest clients.
    pub(crate) fn honest(&self) -> Option<&Generator<Mbuf>> {
        self.honest.as_ref().map(|honest| &honest.hosts)
    }

    /// Connections that honest clients have completed.
    pub(crate) fn completed(&self) -> u64 {
        let stats = self.honest().and_then(Generator::client_stats);
        stats.map_or(0, |stats| stats.connections.completed)
    }

    /// Segments that honest clients sent again.
    pub(crate) fn honest_retransmitted(&self) -> u64 {
        let stats = self.honest().and_then(Generator::client_stats);
        stats.map_or(0, |stats| stats.traffic.retransmitted)
    }

    /// Answers with wrong bytes or of wrong servers that honest clients got.
    pub(crate) fn wrong_of_honest(&self) -> u64 {
        wrong(
            self.honest()
                .and_then(Generator::client_stats)
                .map(|stats| &stats.connections),
        )
    }

    /// The same of the connections that stay, and requests with wrong bytes that servers got.
    pub(crate) fn wrong_of_others(&self) -> u64 {
        wrong(self.steady.hosts.client_stats().map(|stats| &stats.connections))
            + wrong(self.server.hosts.server_stats().map(|stats| &stats.connections))
    }

    /// Connections that were to stay and have failed.
    pub(crate) fn steady_failed(&self) -> u64 {
        let stats = self.steady.hosts.client_stats();
        stats.map_or(0, |stats| stats.connections.failed_in_all())
    }

    /// An attack of this kind.
    pub(crate) fn attack_settings(&mut self, kind: Kind, rate: f64, on_victims: bool, peers: u32) -> AttackSettings {
        self.seed += 1;
        AttackSettings {
            kind,
            rate,
            victims: on_victims.then(|| Victims {
                addresses: range(STEADY),
                ports: STEADY_PORTS,
            }),
            sources: range(if kind.is_blind() { SPOOFED } else { PEERS }),
            targets: vec![(LISTENER, 8080).into()],
            next_hop: self.macs[0],
            peers,
            seed: self.seed,
        }
    }

    /// Attackers begin.
    pub(crate) fn begin_attack(&mut self, settings: AttackSettings) {
        let port = self.clients.house(&[settings.sources]);
        self.attacker = Some(Hosts {
            hosts: Attacker::new(settings),
            port,
        });
    }

    /// Attackers end: blind ones vanish, others reset their connections and stay until [`remove_attack`](Self::remove_attack).
    pub(crate) fn stop_attack(&mut self) {
        if let Some(attacker) = &mut self.attacker {
            attacker.hosts.stop(true);
        }
    }

    /// Attackers begin nothing new, and keep what they have.
    pub(crate) fn hush_attack(&mut self) {
        if let Some(attacker) = &mut self.attacker {
            attacker.hosts.stop(false);
        }
    }

    /// Attackers are gone.
    pub(crate) fn remove_attack(&mut self) {
        if let Some(attacker) = self.attacker.take() {
            self.clients.remove(&[attacker.hosts.sources()]);
        }
    }

    /// The attackers.
    pub(crate) fn attacker(&self) -> Option<&Attacker<Mbuf>> {
        self.attacker.as_ref().map(|attacker| &attacker.hosts)
    }
}

fn wrong(connections: Option<&Connections>) -> u64 {
    connections.map_or(0, |connections| {
        connections.failed(Failure::WrongBytes) + connections.failed(Failure::WrongServer)
    })
}
