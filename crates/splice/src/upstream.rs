//! One core's view of the servers: which of a pool's servers is next, and how they are doing.
//!
//! - `round_robin` is smooth weighted round robin, as nginx does it: over any sum-of-weights picks each server gets exactly
//!   its weight, and a heavy server's turns are spread between the others' (5:1:1 is a a b a c a a, not a a a a a b c).
//! - `least_connections` picks the server with the fewest open connections for its weight, and takes turns among equals.
//! - `client_hash` is weighted rendezvous hashing of the client's address with the servers' addresses: without any state a
//!   client gets the same server from every core, every start and every engine with the same pool. A server that comes takes
//!   its share from all others, one that goes leaves its clients to all others, and nobody else moves.
//!
//! Servers that are full (`max_connections`) are passed over. So are those that their checks call down
//! ([`server_state`](crate::base::server_state)), and those that are *ejected*, because calls to them have
//! failed several times in a row or several in a row were overdue, for a time that doubles with each further time: then one
//! connection tries them, and by its success or failure they are back or out for longer ([`health`]). When all that are left
//! are out, they are asked all the same: an attempt may succeed, RST never does.
//!
//! A call that takes four times as long as its pool's servers usually do ([`answers`]) is *overdue*. It may be given up for
//! another server that is not ejected, if not too many are.
//!
//! Cost of a pick: a few operations per server of the pool (a logarithm with `client_hash`), no allocation. Every core has
//! its own instance and counts its own connections; what comes of calls counts over all cores. It starts at another place of the round, so that few
//! connections over many cores still reach every server.

mod answers;
mod change;
mod ejection;
mod health;

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use answers::Answers;
pub(crate) use change::UpstreamChange;
use e2d2::counters::Counters;
use e2d2::time::Instant;
use ejection::Memberships;
pub use health::ServerHealth;
use health::{Health, Why};
use siphasher::sip::SipHasher13;

use crate::base::difference::MOST_SERVERS;
use crate::base::ids::{PoolId, ServerId};
use crate::base::limit::Limited;
use crate::base::meter::CoreMeters;
use crate::base::server_state::ServerState;
use crate::base::settings::{Member, Policy, PoolSettings, UpstreamServer, UpstreamSettings};
use crate::base::standby::Standby;

e2d2::reasons! {
    /// What becomes of calls to servers and of servers that do not answer them.
    pub enum CallEvent {
        /// A call was overdue and given up for another server: one of the few in a hundred that may be.
        GivenUp = "given_up",
        /// An overdue call left a server that was ejected.
        MovedOn = "moved_on",
        /// A server was ejected because calls to it had failed.
        EjectedByFailure = "ejected_by_failure",
        /// A server was ejected because calls to it were overdue.
        EjectedBySilence = "ejected_by_silence",
    }
}

/// The servers and pools of one core.
#[derive(Clone, Debug)]
pub struct Upstream {
    servers: Vec<UpstreamServer>,
    /// By server.
    health: Vec<Health>,
    pools: Vec<Pool>,
    memberships: Memberships,
    standby: Arc<Standby>,
    meters: CoreMeters,
    events: Counters<CallEvent>,
}

#[derive(Clone, Debug)]
struct Pool {
    policy: Policy,
    turns: Vec<Turn>,
    answers: Answers,
    /// How many of a hundred servers may be ejected.
    eject_most: u8,
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

impl Upstream {
    /// The servers and pools for the worker with this index.
    pub fn new(settings: &UpstreamSettings, worker: usize) -> Self {
        let mut health = Vec::with_capacity(MOST_SERVERS);
        health.extend((settings.servers.iter()).map(|server| Health::new(server.max_connections)));
        let standby: Arc<Standby> = Arc::default();
        Self {
            health,
            servers: settings.servers.clone(),
            pools: (settings.pools.iter())
                .map(|pool| Pool::new(pool, settings, worker))
                .collect(),
            memberships: Memberships::new(settings),
            meters: CoreMeters::new(Arc::clone(standby.meters())),
            standby,
            events: Counters::default(),
        }
    }

    /// The same, where an operator may have taken servers out of service.
    #[must_use]
    pub fn with_standby(self, standby: Arc<Standby>) -> Self {
        Self {
            meters: CoreMeters::new(Arc::clone(standby.meters())),
            standby,
            ..self
        }
    }

    /// What the core counts with all others.
    pub(crate) fn meters(&mut self) -> &mut CoreMeters {
        &mut self.meters
    }

    /// What an operator has taken out of service.
    pub(crate) fn standby(&self) -> &Standby {
        &self.standby
    }

    /// The server of `pool` that a connection of `client` goes to; `None` when all are full, or when there is no such pool:
    /// the number may come from a program's own selector.
    pub fn pick(&mut self, pool: PoolId, client: IpAddr, now: Instant) -> Option<ServerId> {
        self.next_after(pool, client, now, &[])
    }

    /// The same among those not `tried` yet; `None` also when all have been.
    pub fn next_after(&mut self, pool: PoolId, client: IpAddr, now: Instant, tried: &[ServerId]) -> Option<ServerId> {
        let pool = self.pools.get_mut(pool.index())?;
        let (health, standby, meters) = (&self.health, &self.standby, &self.meters);
        let word = |server: ServerId| standby.server(server.0).word();
        let has_room = |server: ServerId| !tried.contains(&server) && health[server.index()].has_room(server, meters);
        let may_be_asked = |server: ServerId| has_room(server) && word(server).may_be_asked(now);
        let has_room = |server: ServerId| has_room(server) && !word(server).is_drained();
        let picked = pool
            .pick(client, health, may_be_asked)
            .or_else(|| pool.pick(client, health, has_room))?;
        // A trial that is overdue is over; one whose client has left ends without a word.
        let patience = self.servers[picked.index()].connect_timeout;
        let overdue = pool.bound().filter(|_| pool.answers.usual().is_some());
        let patience = overdue.map_or(patience, |bound| patience.min(2 * bound));
        self.health[picked.index()].note_picked(standby.server(picked.0), now, patience);
        Some(picked)
    }

    /// After how long a call of this pool is looked at first, to see whether it is overdue: four times what its servers
    /// usually take to answer, at least 50 ms. `None` if there is no other server to call.
    #[inline]
    pub fn bound(&self, pool: PoolId) -> Option<Duration> {
        self.pools.get(pool.index())?.bound()
    }

    /// Whether a call of this pool that has waited for so long is overdue. None is before the pool's first answer.
    pub fn is_overdue(&self, pool: PoolId, waited: Duration) -> bool {
        let pool = self.pools.get(pool.index());
        let pool = pool.filter(|pool| pool.answers.usual().is_some());
        pool.and_then(Pool::bound).is_some_and(|bound| waited >= bound)
    }

    /// Whether a call to `server` that is overdue may be given up: there is another server that is not ejected, has not been
    /// `tried` and has room, and `server` is ejected or not too many were given up in the last second.
    pub fn may_give_up(&mut self, pool: PoolId, server: ServerId, now: Instant, tried: &[ServerId]) -> bool {
        let Some(pool) = self.pools.get_mut(pool.index()) else {
            return false;
        };
        let is_left = others((&self.health, &self.standby, &self.meters), server, tried);
        (!self.standby.server(server.0).word().is_fit() || pool.answers.may_give_up(now))
            && pool.turns.iter().any(|turn| is_left(turn.server))
    }

    /// Gives such a call up: the server to call instead. `None` if it [may not be](Self::may_give_up).
    pub fn give_up(
        &mut self,
        pool: PoolId,
        client: IpAddr,
        server: ServerId,
        now: Instant,
        tried: &[ServerId],
    ) -> Option<ServerId> {
        if !self.may_give_up(pool, server, now, tried) {
            return None;
        }
        let pool = self.pools.get_mut(pool.index())?;
        let others = others((&self.health, &self.standby, &self.meters), server, tried);
        let next = pool.pick(client, &self.health, others)?;
        let event = if self.standby.server(server.0).word().is_fit() {
            pool.answers.note_given_up(now);
            CallEvent::GivenUp
        } else {
            CallEvent::MovedOn
        };
        self.events.add(event, 1);
        Some(next)
    }

    /// How many pools there are.
    pub(crate) fn pool_count(&self) -> usize {
        self.pools.len()
    }

    /// Whether there is such a pool.
    pub fn has_pool(&self, pool: PoolId) -> bool {
        pool.index() < self.pools.len()
    }

    /// Whether a server that is there has room for one more connection: for servers that a selector names itself.
    pub fn has_room(&self, server: ServerId) -> bool {
        let health = self.health.get(server.index());
        health.is_some_and(|health| health.has_room(server, &self.meters)) && !self.standby.has_server(server.0)
    }

    /// A connection to `server` begins: our SYN is about to go out.
    ///
    /// Of this and the notes below, those about a server that is not there say nothing.
    pub fn note_open(&mut self, server: ServerId, now: Instant) {
        if let Some(health) = self.health.get_mut(server.index()) {
            health.note_open();
            if let Some(most) = health.limit {
                self.meters.begin((Limited::Server, server.0), (Some(most), None), now);
            }
        }
    }

    /// A connection that [began](Self::note_open) is over, or never came to be.
    pub fn note_close(&mut self, server: ServerId, now: Instant) {
        if let Some(health) = self.health.get_mut(server.index())
            && health.note_close()
            && let Some(most) = health.limit
        {
            self.meters.end((Limited::Server, server.0), Some(most), now);
        }
    }

    /// A server of `pool` is called.
    #[inline]
    pub fn note_call(&mut self, pool: PoolId, now: Instant) {
        if let Some(pool) = self.pools.get_mut(pool.index()) {
            pool.answers.note_call(now);
        }
    }

    /// A call of `pool` has been answered after this time. Of calls whose SYN was repeated nobody can tell.
    #[inline]
    pub fn note_answer_time(&mut self, pool: PoolId, took: Duration) {
        if let Some(pool) = self.pools.get_mut(pool.index()) {
            pool.answers.note_time(took);
        }
    }

    /// `server` has accepted a connection.
    pub fn note_success(&mut self, server: ServerId, now: Instant) {
        let state = self.standby.server(server.0);
        if let Some(health) = self.health.get_mut(server.index())
            && health.note_answer(state, now)
        {
            self.try_all_beside(server, now);
        }
    }

    /// `server` has refused a connection, was unreachable, or said nothing in time.
    pub fn note_failure(&mut self, server: ServerId, now: Instant) {
        if let Some((state, health, settings)) = self.state_of(server)
            && health.note_failure(state, settings)
        {
            self.eject(server, Why::Failure, now);
        }
    }

    /// A call to `server` that began at `began` is overdue: to be said once of each call.
    pub fn note_overdue(&mut self, server: ServerId, began: Instant, now: Instant) {
        if let Some((state, health, settings)) = self.state_of(server)
            && health.note_overdue(state, settings, began)
        {
            self.eject(server, Why::Silence, now);
        }
    }

    /// How long the servers of `pool` usually take to answer a call; `None` before the first answer.
    #[cfg(test)]
    fn usual_answer_time(&self, pool: PoolId) -> Option<Duration> {
        self.pools.get(pool.index())?.answers.usual()
    }

    /// What became of calls.
    pub fn events(&self) -> &Counters<CallEvent> {
        &self.events
    }

    /// How `server` is doing, if there is such a server.
    pub fn health(&self, server: ServerId) -> Option<ServerHealth> {
        let health = self.health.get(server.index())?;
        Some(health.seen(self.standby.server(server.0)))
    }

    /// Connections of this core to `server` that are open.
    #[cfg(test)]
    fn open_connections(&self, server: ServerId) -> u32 {
        self.health.get(server.index()).map_or(0, Health::open)
    }

    /// Whether `server` is passed over because of its failures or its silence.
    #[cfg(test)]
    fn is_ejected(&self, server: ServerId, now: Instant) -> bool {
        !self.standby.server(server.0).word().may_be_asked(now)
    }

    fn state_of(&mut self, server: ServerId) -> Option<(ServerState<'_>, &mut Health, &UpstreamServer)> {
        let health = self.health.get_mut(server.index())?;
        let settings = self.servers.get(server.index())?;
        Some((self.standby.server(server.0), health, settings))
    }
}

/// Says of a server whether an overdue call to `server` can go there: to those that are not ejected. A trial is for those who
/// have not waited yet.
fn others(
    (health, standby, meters): (&[Health], &Standby, &CoreMeters),
    server: ServerId,
    tried: &[ServerId],
) -> impl Fn(ServerId) -> bool {
    move |other| {
        let has_room = health[other.index()].has_room(other, meters);
        other != server && standby.server(other.0).word().is_fit() && has_room && !tried.contains(&other)
    }
}

impl Pool {
    /// At the worker's place of the round.
    fn new(pool: &PoolSettings, settings: &UpstreamSettings, worker: usize) -> Self {
        let turn = |member: &Member| Turn {
            server: member.server,
            weight: i64::from(member.weight),
            credit: 0,
            hash: hash_of_server(settings.servers[member.server.index()].address),
        };
        let mut pool = Pool {
            policy: pool.policy,
            turns: pool.members.iter().map(turn).collect(),
            answers: Answers::new(),
            eject_most: pool.eject_most,
        };
        for _ in 0..worker.checked_rem(pool.turns.len()).unwrap_or(0) {
            pool.round_robin(|_| true);
        }
        pool
    }

    /// See [`Upstream::bound`].
    #[inline]
    fn bound(&self) -> Option<Duration> {
        (self.turns.len() > 1).then(|| self.answers.bound())
    }

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
        let load = |turn: &Turn| (i64::from(health[turn.server.index()].open()) + 1, turn.weight);
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
mod tests;
