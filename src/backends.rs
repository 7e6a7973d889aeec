//! One core's view of the servers: which of a pool's servers is next, and what is needed to connect to it.
//!
//! A pool picks by smooth weighted round robin, as nginx does: over any sum-of-weights picks each server gets exactly its
//! weight, and a heavy server's turns are spread between the others' (5:1:1 is a a b a c a a, not a a a a a b c).
//!
//! Cost of a pick: one addition and comparison per server of the pool, no allocation. Every core has its own instance and
//! starts at another place, so that few connections over many cores still reach every server.

use crate::config::{Config, Policy, PoolId, ServerConfig, ServerId};

/// The servers and pools of one core.
#[derive(Clone, Debug)]
pub struct Backends {
    servers: Vec<ServerConfig>,
    pools: Vec<Pool>,
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
}

impl Backends {
    /// The servers and pools of `config` for the worker with this index.
    pub fn new(config: &Config, worker: usize) -> Self {
        let turns = |pool: &crate::config::PoolConfig| {
            let turn = |member: &crate::config::Member| Turn {
                server: member.server,
                weight: i64::from(member.weight),
                credit: 0,
            };
            pool.members.iter().map(turn).collect()
        };
        let pools = config
            .pools()
            .iter()
            .map(|pool| Pool {
                policy: pool.policy,
                turns: turns(pool),
            })
            .collect();
        let mut backends = Self {
            servers: config.servers().to_vec(),
            pools,
        };
        for pool in config.pools() {
            for _ in 0..worker % pool.members.len() {
                backends.pick(pool.id);
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

    /// The server of `pool` whose turn it is.
    ///
    /// # Panics
    /// When `pool` is from another configuration with more pools.
    pub fn pick(&mut self, pool: PoolId) -> ServerId {
        let pool = &mut self.pools[pool.index()];
        // A checked configuration has no pool without servers.
        pool.pick(|_| true).unwrap_or(pool.turns[0].server)
    }

    /// The server of `pool` whose turn it is among those not `tried` yet; `None` when all have been, or when there is no such
    /// pool: with nothing tried this is the [`pick`](Self::pick) for numbers that come from a program's own selector.
    pub fn next_after(&mut self, pool: PoolId, tried: &[ServerId]) -> Option<ServerId> {
        self.pools
            .get_mut(pool.index())?
            .pick(|server| !tried.contains(&server))
    }
}

impl Pool {
    fn pick(&mut self, may_be: impl Fn(ServerId) -> bool) -> Option<ServerId> {
        match self.policy {
            Policy::RoundRobin => self.round_robin(may_be),
        }
    }

    /// Smooth weighted round robin among the servers that `may_be`; the others' credit does not change.
    fn round_robin(&mut self, may_be: impl Fn(ServerId) -> bool) -> Option<ServerId> {
        let mut sum = 0;
        let mut best: Option<usize> = None;
        for i in 0..self.turns.len() {
            let turn = &mut self.turns[i];
            if !may_be(turn.server) {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One pool with servers of these weights.
    fn config(weights: &[u16]) -> Config {
        let servers: String = (0..weights.len())
            .map(|i| {
                format!(
                    "{{ name = \"s{i}\", address = \"10.0.0.{}:80\", weight = {} }},",
                    i + 2,
                    weights[i]
                )
            })
            .collect();
        let text = format!(
            "[[port]]\nname = \"p\"\ndevice = \"net_ring0\"\naddresses = [\"10.0.0.1/24\"]\n\
             [[listener]]\nname = \"l\"\naddresses = [\"10.0.0.1:80\"]\ndefault = \"pool\"\n\
             [[pool]]\nname = \"pool\"\nservers = [{servers}]\n"
        );
        Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"))
    }

    fn picks(backends: &mut Backends, count: usize) -> Vec<u16> {
        (0..count).map(|_| backends.pick(PoolId(0)).0).collect()
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
        let first = |worker| Backends::new(&config, worker).pick(PoolId(0)).0;
        assert_eq!([first(0), first(1), first(2), first(3)], [0, 1, 2, 0]);
    }

    #[test]
    fn fail_over_tries_each_server_once() {
        let mut backends = Backends::new(&config(&[1, 7, 1, 1]), 0);
        assert_eq!(backends.next_after(PoolId(1), &[]), None, "no such pool");
        for _ in 0..10 {
            let mut tried = vec![backends.pick(PoolId(0))];
            while let Some(next) = backends.next_after(PoolId(0), &tried) {
                assert!(!tried.contains(&next));
                tried.push(next);
            }
            assert_eq!(tried.len(), 4);
        }
    }

    #[test]
    fn what_a_failed_server_would_have_got_is_shared_by_weight() {
        let mut backends = Backends::new(&config(&[1, 2, 1]), 0);
        let mut turns = [0; 3];
        for _ in 0..300 {
            turns[backends.next_after(PoolId(0), &[ServerId(0)]).unwrap().index()] += 1;
        }
        assert_eq!(turns, [0, 200, 100]);
    }

    #[test]
    fn servers_are_known_by_number() {
        let backends = Backends::new(&config(&[1, 1]), 0);
        assert_eq!(backends.server(ServerId(1)).address, "10.0.0.3:80".parse().unwrap());
    }
}
