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

    /// One pool with servers of these weights, and more lines of its table.
    fn config_with(weights: &[u16], lines: &str, more: &str) -> Config {
        let servers: String = (0..weights.len())
            .map(|i| {
                format!(
                    "{{ name = \"s{i}\", address = \"10.0.0.{}:80\", weight = {}{more} }},",
                    i + 2,
                    weights[i]
                )
            })
            .collect();
        let text = format!(
            "[[port]]\nname = \"p\"\ndevice = \"net_ring0\"\naddresses = [\"10.0.0.1/24\"]\n\
             [[listener]]\nname = \"l\"\naddresses = [\"10.0.0.1:80\"]\ndefault = \"pool\"\n\
             [[pool]]\nname = \"pool\"\n{lines}\nservers = [{servers}]\n"
        );
        Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"))
    }

    fn config(weights: &[u16]) -> Config {
        config_with(weights, "", "")
    }

    const NOW: Instant = Instant::from_millis(1_000_000);
    const POOL: PoolId = PoolId(0);

    fn client(n: u32) -> IpAddr {
        IpAddr::V4((0xc000_0200 + n).into())
    }

    fn pick(backends: &mut Backends) -> Option<u16> {
        backends.pick(POOL, client(1), NOW).map(|server| server.0)
    }

    fn picks(backends: &mut Backends, count: usize) -> Vec<u16> {
        (0..count).map(|_| pick(backends).expect("a server")).collect()
    }

    #[test]
    fn turns_are_smooth() {
        let mut backends = Backends::new(&config(&[5, 1, 1]), 0);
        assert_eq!(picks(&mut backends, 14), [0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn every_server_gets_its_weight() {
        let weights = [256, 1, 17, 3];
        let sum: u16 = weights.iter().sum();
        let mut backends = Backends::new(&config(&weights), 0);
        for round in 0..3 {
            let picked = picks(&mut backends, usize::from(sum));
            for (server, weight) in weights.iter().enumerate() {
                let turns = picked.iter().filter(|pick| usize::from(**pick) == server).count();
                assert_eq!(turns, usize::from(*weight), "server {server} in round {round}");
            }
        }
    }

    #[test]
    fn workers_start_at_different_servers() {
        let config = config(&[1, 1, 1]);
        let first = |worker| pick(&mut Backends::new(&config, worker)).expect("a server");
        assert_eq!([first(0), first(1), first(2), first(3)], [0, 1, 2, 0]);
    }

    #[test]
    fn fail_over_tries_each_server_once() {
        for policy in ["round_robin", "least_connections", "client_hash"] {
            let config = config_with(&[1, 7, 1, 1], &format!("policy = \"{policy}\""), "");
            let mut backends = Backends::new(&config, 0);
            assert_eq!(backends.pick(PoolId(1), client(1), NOW), None, "no such pool");
            for n in 0..10 {
                let mut tried = Vec::new();
                while let Some(next) = backends.next_after(POOL, client(n), NOW, &tried) {
                    assert!(!tried.contains(&next));
                    tried.push(next);
                }
                assert_eq!(tried.len(), 4);
            }
        }
    }

    #[test]
    fn what_a_failed_server_would_have_got_is_shared_by_weight() {
        let mut backends = Backends::new(&config(&[1, 2, 1]), 0);
        let mut turns = [0; 3];
        for _ in 0..300 {
            let next = backends.next_after(POOL, client(1), NOW, &[ServerId(0)]);
            turns[next.expect("a server").index()] += 1;
        }
        assert_eq!(turns, [0, 200, 100]);
    }

    #[test]
    fn servers_are_known_by_number() {
        let backends = Backends::new(&config(&[1, 1]), 0);
        assert_eq!(backends.server(ServerId(1)).address, "10.0.0.3:80".parse().unwrap());
        assert!(!backends.has_room(ServerId(2)) && backends.open_connections(ServerId(2)) == 0);
    }

    #[test]
    fn least_connections_are_in_proportion_to_the_weights() {
        let config = config_with(&[1, 2, 5], "policy = \"least_connections\"", "");
        let mut backends = Backends::new(&config, 0);
        for _ in 0..800 {
            let picked = ServerId(pick(&mut backends).expect("a server"));
            backends.note_open(picked);
        }
        assert_eq!(
            [0, 1, 2].map(|i| backends.open_connections(ServerId(i))),
            [100, 200, 500]
        );
        // Whoever loses connections gets the next ones.
        for _ in 0..30 {
            backends.note_close(ServerId(1));
        }
        for _ in 0..30 {
            assert_eq!(pick(&mut backends), Some(1));
            backends.note_open(ServerId(1));
        }
    }

    #[test]
    fn among_equals_turns_are_taken() {
        let config = config_with(&[1, 1, 1], "policy = \"least_connections\"", "");
        let mut backends = Backends::new(&config, 0);
        let mut turns = [0; 3];
        for _ in 0..30 {
            let picked = ServerId(pick(&mut backends).expect("a server"));
            turns[picked.index()] += 1;
            backends.note_open(picked);
            backends.note_close(picked);
        }
        assert_eq!(turns, [10, 10, 10], "short connections do not all go to the first");
    }

    /// The server's address of each of ten thousand clients.
    fn servers_of_clients(backends: &mut Backends) -> Vec<SocketAddr> {
        (0..10_000)
            .map(|n| {
                let picked = backends.pick(POOL, client(n), NOW).expect("a server");
                backends.server(picked).address
            })
            .collect()
    }

    fn by_hash(weights: &[u16]) -> Backends {
        Backends::new(&config_with(weights, "policy = \"client_hash\"", ""), 0)
    }

    #[test]
    fn a_client_keeps_its_server_and_all_cores_agree() {
        let config = config_with(&[1, 3, 2], "policy = \"client_hash\"", "");
        let first = servers_of_clients(&mut Backends::new(&config, 0));
        let mut other = Backends::new(&config, 7);
        assert_eq!(servers_of_clients(&mut other), first);
        assert_eq!(servers_of_clients(&mut other), first);
        // What other versions and engines choose for 192.0.2.1 to 192.0.2.8: this must never change.
        let known = [1, 2, 3, 4, 5, 6, 7, 8].map(|n| other.pick(POOL, client(n), NOW).expect("a server").0);
        assert_eq!(known, [2, 1, 2, 1, 0, 1, 1, 2]);
        let v6 = other.pick(POOL, "2001:db8::1".parse().unwrap(), NOW);
        assert_eq!(v6, other.pick(POOL, "2001:db8::1".parse().unwrap(), NOW));
    }

    #[test]
    fn clients_are_spread_by_weight() {
        let servers = servers_of_clients(&mut by_hash(&[1, 3, 6]));
        for (server, expected) in [("10.0.0.2:80", 1000), ("10.0.0.3:80", 3000), ("10.0.0.4:80", 6000)] {
            let count = servers.iter().filter(|ip| ip.to_string() == server).count();
            // Four standard deviations of the binomial distribution with 10 000 clients are less than 200.
            assert!(count.abs_diff(expected) < 200, "{server}: {count}");
        }
    }

    #[test]
    fn only_those_of_a_changed_server_move() {
        let three = servers_of_clients(&mut by_hash(&[2, 2, 2]));
        let four = servers_of_clients(&mut by_hash(&[2, 2, 2, 2]));
        let heavy = servers_of_clients(&mut by_hash(&[2, 2, 4]));
        let fourth: SocketAddr = "10.0.0.5:80".parse().unwrap();
        let third: SocketAddr = "10.0.0.4:80".parse().unwrap();
        let moved = |after: &[SocketAddr], to| {
            let moved = three.iter().zip(after).filter(|(before, after)| before != after);
            assert!(moved.clone().all(|(_, after)| *after == to));
            moved.count()
        };
        assert!(moved(&four, fourth).abs_diff(2500) < 200);
        // From a third to a half of all.
        assert!(moved(&heavy, third).abs_diff(1667) < 200);
        // Without its server a client goes to the one it would have if that server did not exist.
        let mut backends = by_hash(&[2, 2, 2, 2]);
        for n in 0..1000 {
            let next = backends
                .next_after(POOL, client(n), NOW, &[ServerId(3)])
                .expect("a server");
            assert_eq!(backends.server(next).address, three[n as usize]);
        }
    }

    #[test]
    fn a_full_server_is_passed_over() {
        for policy in ["round_robin", "least_connections", "client_hash"] {
            let config = config_with(&[1, 9], &format!("policy = \"{policy}\""), ", max_connections = 3");
            let mut backends = Backends::new(&config, 0);
            for n in 0..6 {
                let picked = backends.pick(POOL, client(n), NOW).expect("room");
                assert!(backends.has_room(picked));
                backends.note_open(picked);
            }
            assert_eq!([0, 1].map(|i| backends.open_connections(ServerId(i))), [3, 3]);
            assert_eq!(pick(&mut backends), None, "{policy}: all are full");
            backends.note_close(ServerId(0));
            assert_eq!(pick(&mut backends), Some(0));
        }
    }

    #[test]
    fn the_limit_is_shared_out() {
        let shares: Vec<u32> = (0..4).map(|worker| share(10, worker, 4)).collect();
        assert_eq!(shares, [3, 3, 2, 2]);
        assert_eq!(share(2, 3, 4), 1, "none is left without");
    }

    /// A pool of two whose first server has just failed as often as it takes.
    fn with_one_ejected() -> Backends {
        let mut backends = Backends::new(&config_with(&[1, 1], "eject_after = 2\neject_for = \"10s\"", ""), 0);
        backends.note_failure(ServerId(0), NOW);
        assert!(!backends.is_ejected(ServerId(0), NOW), "once is not enough");
        backends.note_failure(ServerId(0), NOW);
        assert!(backends.is_ejected(ServerId(0), NOW));
        backends
    }

    fn seconds(seconds: u64) -> Instant {
        NOW + Duration::from_secs(seconds)
    }

    fn at(backends: &mut Backends, now: Instant, count: usize) -> Vec<u16> {
        (0..count)
            .map(|_| backends.pick(POOL, client(1), now).expect("a server").0)
            .collect()
    }

    #[test]
    fn a_server_that_fails_is_passed_over_for_a_while_and_then_tried_once() {
        let mut backends = with_one_ejected();
        assert_eq!(at(&mut backends, NOW, 3), [1, 1, 1]);
        assert_eq!(at(&mut backends, seconds(10) - Duration::from_nanos(1), 2), [1, 1]);
        let tried = at(&mut backends, seconds(10), 4);
        assert_eq!(tried.iter().filter(|server| **server == 0).count(), 1, "{tried:?}");
        backends.note_success(ServerId(0));
        let after = at(&mut backends, seconds(10), 4);
        assert_eq!(after.iter().filter(|server| **server == 0).count(), 2, "{after:?}");
        backends.note_failure(ServerId(0), seconds(11));
        assert!(!backends.is_ejected(ServerId(0), seconds(11)), "the count began anew");
    }

    #[test]
    fn the_time_doubles_up_to_a_limit() {
        let mut backends = with_one_ejected();
        let mut now = NOW;
        let mut waits = Vec::new();
        for _ in 0..8 {
            let start = now;
            while backends.is_ejected(ServerId(0), now) {
                now = now + Duration::from_secs(1);
            }
            waits.push((now - start).as_secs());
            while at(&mut backends, now, 1) != [0] {}
            backends.note_failure(ServerId(0), now);
            backends.note_failure(ServerId(0), now);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300, 300]);
    }

    #[test]
    fn a_trial_that_ends_without_a_word_is_repeated() {
        let mut backends = with_one_ejected();
        assert!(at(&mut backends, seconds(10), 2).contains(&0));
        assert!(!at(&mut backends, seconds(14), 2).contains(&0));
        assert!(at(&mut backends, seconds(15), 2).contains(&0), "connect_timeout is 5 s");
    }

    #[test]
    fn when_all_are_out_they_are_asked_all_the_same() {
        let mut backends = with_one_ejected();
        for _ in 0..2 {
            backends.note_failure(ServerId(1), NOW);
        }
        let mut picked = at(&mut backends, NOW, 2);
        picked.sort_unstable();
        assert_eq!(picked, [0, 1]);
        // That one which is left has been tried brings back the other.
        assert_eq!(
            backends.next_after(POOL, client(1), NOW, &[ServerId(1)]),
            Some(ServerId(0))
        );
        backends.note_success(ServerId(0));
        assert!(!backends.is_ejected(ServerId(0), NOW) && backends.is_ejected(ServerId(1), NOW));
    }

    #[test]
    fn zero_is_never() {
        let mut backends = Backends::new(&config_with(&[1, 1], "eject_after = 0", ""), 0);
        for _ in 0..1000 {
            backends.note_failure(ServerId(0), NOW);
        }
        assert!(!backends.is_ejected(ServerId(0), NOW));
    }

    mod model {
        use super::*;
        use proptest::prelude::*;

        /// What may happen to a pool of four servers.
        #[derive(Clone, Debug)]
        enum Happening {
            Pick(u32, Vec<u16>),
            Close(prop::sample::Index),
            Success(u16),
            Failure(u16),
            Wait(u64),
        }

        fn happenings() -> impl Strategy<Value = Happening> {
            prop_oneof![
                4 => (0..50_u32, prop::collection::vec(0..4_u16, 0..4)).prop_map(|(n, tried)| Happening::Pick(n, tried)),
                2 => any::<prop::sample::Index>().prop_map(Happening::Close),
                1 => (0..4_u16).prop_map(Happening::Success),
                3 => (0..4_u16).prop_map(Happening::Failure),
                1 => (0..40_000_u64).prop_map(Happening::Wait),
            ]
        }

        /// The rules in prose, by the longest way: histories instead of states.
        #[derive(Default)]
        struct Model {
            open: [u32; 4],
            failures: [u32; 4],
            /// How often out, until when, and whether someone is trying since.
            out: [Option<(u32, Instant, bool)>; 4],
        }

        impl Model {
            fn has_room(&self, server: usize) -> bool {
                self.open[server] < 5
            }

            fn is_out(&self, server: usize, now: Instant) -> bool {
                self.out[server].is_some_and(|(_, until, _)| now < until)
            }

            fn fail(&mut self, server: usize, now: Instant) {
                let times = match self.out[server] {
                    None => {
                        self.failures[server] += 1;
                        if self.failures[server] < 2 {
                            return;
                        }
                        0
                    }
                    Some((_, _, false)) => return,
                    Some((times, _, true)) => times,
                };
                let wait = (1_000_u64 << times.min(20)).min(300_000);
                self.out[server] = Some((times + 1, now + Duration::from_millis(wait), false));
            }
        }

        proptest! {
            #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

            #[test]
            fn nobody_gets_a_full_server_or_one_that_is_out_while_others_are_left(
                policy in prop::sample::select(vec!["round_robin", "least_connections", "client_hash"]),
                history in prop::collection::vec(happenings(), 1..200),
            ) {
                let lines = format!("policy = \"{policy}\"\neject_after = 2\neject_for = \"1s\"\nconnect_timeout = \"5s\"");
                let mut backends = Backends::new(&config_with(&[1, 2, 3, 4], &lines, ", max_connections = 5"), 0);
                let mut model = Model::default();
                let mut open: Vec<usize> = Vec::new();
                let mut now = NOW;
                for happening in history {
                    match happening {
                        Happening::Pick(n, tried) => {
                            let tried: Vec<ServerId> = tried.into_iter().map(ServerId).collect();
                            let left = |server: &usize| !tried.contains(&ServerId(*server as u16)) && model.has_room(*server);
                            let with_room: Vec<usize> = (0..4).filter(left).collect();
                            let fit: Vec<usize> = with_room.iter().copied().filter(|s| !model.is_out(*s, now)).collect();
                            let allowed = if fit.is_empty() { with_room } else { fit };
                            let picked = backends.next_after(POOL, client(n), now, &tried).map(ServerId::index);
                            prop_assert_eq!(picked.is_none(), allowed.is_empty());
                            let Some(picked) = picked else { continue };
                            prop_assert!(allowed.contains(&picked), "{} of {:?}", picked, allowed);
                            if let Some((times, until, _)) = model.out[picked] && until <= now {
                                model.out[picked] = Some((times, now + Duration::from_secs(5), true));
                            }
                            backends.note_open(ServerId(picked as u16));
                            model.open[picked] += 1;
                            open.push(picked);
                        }
                        Happening::Close(which) if !open.is_empty() => {
                            let server = open.swap_remove(which.index(open.len()));
                            backends.note_close(ServerId(server as u16));
                            model.open[server] -= 1;
                        }
                        Happening::Close(_) => (),
                        Happening::Success(server) => {
                            backends.note_success(ServerId(server));
                            model.failures[usize::from(server)] = 0;
                            model.out[usize::from(server)] = None;
                        }
                        Happening::Failure(server) => {
                            backends.note_failure(ServerId(server), now);
                            model.fail(usize::from(server), now);
                        }
                        Happening::Wait(millis) => now = now + Duration::from_millis(millis),
                    }
                    for server in 0..4 {
                        let id = ServerId(server as u16);
                        prop_assert_eq!(backends.open_connections(id), model.open[server]);
                        prop_assert_eq!(backends.is_ejected(id, now), model.is_out(server, now));
                    }
                }
            }
        }
    }
}
