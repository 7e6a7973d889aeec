//! One core's view of the servers: which of a pool's servers is next, how they are doing, and what is needed to connect to
//! them.
//!
//! - `round_robin` is smooth weighted round robin, as nginx does it: over any sum-of-weights picks each server gets exactly
//!   its weight, and a heavy server's turns are spread between the others' (5:1:1 is a a b a c a a, not a a a a a b c).
//! - `least_connections` picks the server with the fewest open connections for its weight, and takes turns among equals.
//! - `client_hash` is weighted rendezvous hashing of the client's address with the servers' addresses: without any state a
//!   client gets the same server from every core, every start and every engine with the same pool. A server that comes takes
//!   its share from all others, one that goes leaves its clients to all others, and nobody else moves.
//!
//! Servers that are full (`max_connections`) are passed over. So are those that failed several times in a row, for a time
//! that doubles with each further failure: then one connection tries them, and by its success or failure they are back or
//! out for longer. When all that are left are out, they are asked all the same: an attempt may succeed, RST never does.
//!
//! Cost of a pick: a few operations per server of the pool (a logarithm with `client_hash`), no allocation. Every core has
//! its own instance and counts its own connections and failures only; it starts at another place of the round, so that few
//! connections over many cores still reach every server.

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use e2d2::time::Instant;
use siphasher::sip::SipHasher13;

use crate::config::{Config, Policy, PoolConfig, PoolId, ServerConfig, ServerId};

/// The longest time that a server is passed over, unless `eject_for` is longer.
const LONGEST_EJECTION: Duration = Duration::from_secs(300);

/// The servers and pools of one core.
#[derive(Clone, Debug)]
pub struct Backends {
    servers: Vec<ServerConfig>,
    /// By server.
    health: Vec<Health>,
    pools: Vec<Pool>,
}

/// What this core knows of a server's state.
#[derive(Clone, Debug)]
struct Health {
    /// Connections of this core, from our SYN to the end.
    open: u32,
    /// This core's share of `max_connections`.
    limit: u32,
    fitness: Fitness,
    /// How often it has been ejected since it last accepted a connection.
    ejections: u32,
}

/// Whether a server may be asked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Fitness {
    /// It may, having failed this many times in a row.
    Fit { failures: u32 },
    /// Not before this time; then by one connection.
    Ejected { until: Instant },
    /// One connection is trying. When it has said nothing until this time, another may try.
    OnTrial { until: Instant },
}

#[derive(Clone, Debug)]
struct Pool {
    policy: Policy,
    turns: Vec<Turn>,
}

/// A server's turn in its pool.
#[derive(Copy, Clone, Debug)]
struct Turn {
    server: ServerId,
    weight: i64,
    /// Grows by the weight at each pick, shrinks by the sum of weights when it is this server's turn: no other figure than
    /// that sum, and in 64 bits never an overflow whichever servers are left out on the way.
    credit: i64,
    /// Of its address: for rendezvous hashing.
    hash: u64,
}

impl Backends {
    /// The servers and pools of `config` for the worker with this index.
    pub fn new(config: &Config, worker: usize) -> Self {
        let pool = |pool: &PoolConfig| Pool {
            policy: pool.policy,
            turns: pool
                .members
                .iter()
                .map(|member| Turn {
                    server: member.server,
                    weight: i64::from(member.weight),
                    credit: 0,
                    hash: hash_of_server(config.server(member.server).address),
                })
                .collect(),
        };
        let workers = config.engine().cores.len();
        let health = |server: &ServerConfig| Health {
            open: 0,
            limit: server
                .max_connections
                .map_or(u32::MAX, |all| share(all, worker, workers)),
            fitness: Fitness::Fit { failures: 0 },
            ejections: 0,
        };
        let mut backends = Self {
            health: config.servers().iter().map(health).collect(),
            servers: config.servers().to_vec(),
            pools: config.pools().iter().map(pool).collect(),
        };
        for pool in &mut backends.pools {
            for _ in 0..worker % pool.turns.len() {
                pool.round_robin(|_| true);
            }
        }
        backends
    }

    /// What is known of a server.
    ///
    /// # Panics
    /// When `id` is from another configuration with more servers.
    pub fn server(&self, id: ServerId) -> &ServerConfig {
        &self.servers[id.index()]
    }

    /// The server of `pool` that a connection of `client` goes to; `None` when all are full, or when there is no such pool:
    /// the number may come from a program's own selector.
    pub fn pick(&mut self, pool: PoolId, client: IpAddr, now: Instant) -> Option<ServerId> {
        self.next_after(pool, client, now, &[])
    }

    /// The same among those not `tried` yet; `None` also when all have been.
    pub fn next_after(&mut self, pool: PoolId, client: IpAddr, now: Instant, tried: &[ServerId]) -> Option<ServerId> {
        let pool = self.pools.get_mut(pool.index())?;
        let health = &self.health;
        let has_room = |server: ServerId| !tried.contains(&server) && health[server.index()].has_room();
        let is_fit = |server: ServerId| has_room(server) && health[server.index()].may_be_asked(now);
        let picked = pool
            .pick(client, health, is_fit)
            .or_else(|| pool.pick(client, health, has_room))?;
        self.note_picked(picked, now);
        Some(picked)
    }

    /// Whether there is such a pool.
    pub fn has_pool(&self, pool: PoolId) -> bool {
        pool.index() < self.pools.len()
    }

    /// Whether a server that is there has room for one more connection: for servers that a selector names itself.
    pub fn has_room(&self, server: ServerId) -> bool {
        self.health.get(server.index()).is_some_and(Health::has_room)
    }

    /// A connection to `server` begins: our SYN is about to go out.
    ///
    /// Of this and the notes below, those about a server that is not there say nothing.
    pub fn note_open(&mut self, server: ServerId) {
        if let Some(health) = self.health.get_mut(server.index()) {
            health.open += 1;
        }
    }

    /// A connection that [began](Self::note_open) is over, or never came to be.
    pub fn note_close(&mut self, server: ServerId) {
        if let Some(health) = self.health.get_mut(server.index()) {
            health.open = health.open.saturating_sub(1);
        }
    }

    /// `server` has accepted a connection.
    pub fn note_success(&mut self, server: ServerId) {
        if let Some(health) = self.health.get_mut(server.index()) {
            health.fitness = Fitness::Fit { failures: 0 };
            health.ejections = 0;
        }
    }

    /// `server` has refused a connection, was unreachable, or said nothing in time.
    pub fn note_failure(&mut self, server: ServerId, now: Instant) {
        let Some((health, config)) = self
            .health
            .get_mut(server.index())
            .zip(self.servers.get(server.index()))
        else {
            return;
        };
        let out = match &mut health.fitness {
            Fitness::Fit { failures } => {
                *failures = failures.saturating_add(1);
                config.eject_after != 0 && *failures >= config.eject_after
            }
            // What began before says nothing new.
            Fitness::Ejected { .. } => false,
            Fitness::OnTrial { .. } => true,
        };
        if out {
            let longest = LONGEST_EJECTION.max(config.eject_for);
            let doubled = 1_u32.checked_shl(health.ejections).unwrap_or(u32::MAX);
            let time = config.eject_for.saturating_mul(doubled).min(longest);
            health.fitness = Fitness::Ejected { until: now + time };
            health.ejections = health.ejections.saturating_add(1);
        }
    }

    /// Connections of this core to `server` that are open.
    pub fn open_connections(&self, server: ServerId) -> u32 {
        self.health.get(server.index()).map_or(0, |health| health.open)
    }

    /// Whether `server` is passed over because of its failures.
    pub fn is_ejected(&self, server: ServerId, now: Instant) -> bool {
        self.health
            .get(server.index())
            .is_some_and(|health| !health.may_be_asked(now))
    }

    fn note_picked(&mut self, server: ServerId, now: Instant) {
        let patience = self.servers[server.index()].connect_timeout;
        let health = &mut self.health[server.index()];
        match health.fitness {
            Fitness::Ejected { until } | Fitness::OnTrial { until } if until <= now => {
                health.fitness = Fitness::OnTrial { until: now + patience };
            }
            Fitness::Fit { .. } | Fitness::Ejected { .. } | Fitness::OnTrial { .. } => (),
        }
    }
}

impl Health {
    fn has_room(&self) -> bool {
        self.open < self.limit
    }

    fn may_be_asked(&self, now: Instant) -> bool {
        match self.fitness {
            Fitness::Fit { .. } => true,
            Fitness::Ejected { until } | Fitness::OnTrial { until } => until <= now,
        }
    }
}

impl Pool {
    fn pick(&mut self, client: IpAddr, health: &[Health], may_be: impl Fn(ServerId) -> bool) -> Option<ServerId> {
        match self.policy {
            Policy::RoundRobin => self.round_robin(may_be),
            Policy::LeastConnections => self.least_connections(health, may_be),
            Policy::ClientHash => self.by_client(client, may_be),
        }
    }

    /// Smooth weighted round robin among the servers that `may_be`; the others' credit does not change.
    fn round_robin(&mut self, may_be: impl Fn(ServerId) -> bool) -> Option<ServerId> {
        self.take_turns(|turn| may_be(turn.server))
    }

    fn take_turns(&mut self, may_be: impl Fn(&Turn) -> bool) -> Option<ServerId> {
        let mut sum = 0;
        let mut best: Option<usize> = None;
        for i in 0..self.turns.len() {
            let turn = &mut self.turns[i];
            if !may_be(turn) {
                continue;
            }
            sum += turn.weight;
            turn.credit += turn.weight;
            let credit = turn.credit;
            if best.is_none_or(|best| credit > self.turns[best].credit) {
                best = Some(i);
            }
        }
        let best = &mut self.turns[best?];
        best.credit -= sum;
        Some(best.server)
    }

    /// The fewest connections for its weight, the one to be made included; turns among equals.
    fn least_connections(&mut self, health: &[Health], may_be: impl Fn(ServerId) -> bool) -> Option<ServerId> {
        // A fraction, (open + 1) / weight; compared crosswise, no product exceeds 2^41.
        let load = |turn: &Turn| (i64::from(health[turn.server.index()].open) + 1, turn.weight);
        let candidates = self.turns.iter().filter(|turn| may_be(turn.server));
        let least = candidates.map(load).min_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)))?;
        let is_least = |turn: &Turn| {
            let (open, weight) = load(turn);
            open * least.1 == least.0 * weight
        };
        self.take_turns(|turn| may_be(turn.server) && is_least(turn))
    }

    /// Weighted rendezvous hashing: each server draws a time from an exponential distribution of its weight's rate, by
    /// chance that the two addresses decide; the earliest wins. Source: Schindelhauer and Schomaker, "Weighted distributed
    /// hash tables", SPAA 2005 (the logarithmic method).
    fn by_client(&self, client: IpAddr, may_be: impl Fn(ServerId) -> bool) -> Option<ServerId> {
        let client = hash_of_client(client);
        let time = |turn: &Turn| -uniform(mix(client ^ turn.hash)).ln() / turn.weight as f64;
        let candidates = self.turns.iter().filter(|turn| may_be(turn.server));
        let first = candidates.min_by(|a, b| time(a).total_cmp(&time(b)))?;
        Some(first.server)
    }
}

/// A worker's share of what all have together; at least one.
fn share(all: u32, worker: usize, workers: usize) -> u32 {
    let workers = workers.max(1) as u32;
    let rest = u32::from((worker as u32) < all % workers);
    (all / workers + rest).max(1)
}

/// Without a secret: other engines, and this one after a restart, choose the same. Who picks its own address picks its
/// server; what protects the server is `max_connections`.
fn hash_of_client(client: IpAddr) -> u64 {
    hash_of(client, 0)
}

/// By its address, so that neither its name nor its place in the file matters.
fn hash_of_server(server: SocketAddr) -> u64 {
    hash_of(server.ip(), server.port())
}

fn hash_of(ip: IpAddr, port: u16) -> u64 {
    let mut hasher = SipHasher13::new();
    match ip {
        IpAddr::V4(ip) => hasher.write(&ip.octets()),
        IpAddr::V6(ip) => hasher.write(&ip.octets()),
    }
    hasher.write(&port.to_be_bytes());
    hasher.finish()
}

/// The finalizer of SplitMix64: each bit of the sum of two hashes changes every bit of the result with even chances.
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Between 0 and 1, without either.
fn uniform(x: u64) -> f64 {
    ((x >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_shared_out() {
        let shares: Vec<u32> = (0..4).map(|worker| share(10, worker, 4)).collect();
        assert_eq!(shares, [3, 3, 2, 2]);
        assert_eq!(share(2, 3, 4), 1, "none is left without");
    }
}
