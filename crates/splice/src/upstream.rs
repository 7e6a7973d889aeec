//! One core's view of the servers: which of a pool's servers is next, and how they are doing.
//!
//! - `round_robin` is smooth weighted round robin, as nginx does it: over any sum-of-weights picks each server gets exactly
//!   its weight, and a heavy server's turns are spread between the others' (5:1:1 is a a b a c a a, not a a a a a b c).
//! - `least_connections` draws two servers by weight and picks the one with fewer open connections of all cores for its weight;
//!   of up to four servers it compares all, and takes turns among equals.
//! - `client_hash` is weighted rendezvous hashing of 65 536 rows of keys with the servers' addresses: without any state a
//!   client gets the same server from every core, every start and every engine with the same pool. A server that comes takes
//!   its share from all others, one that goes leaves its clients to all others, and nobody else moves.
//! - `maglev` is the same more evenly, but when a server goes, a few others move.
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
//! Cost of a pick: a look into a [table](crate::base::choice_table) ([`choice`], measured by `bench choice`), no allocation. Every core
//! has its own instance, which starts at another place of the round, so that few connections over many cores still reach every
//! server. Connections and failed calls are counted over all cores.

mod answers;
mod change;
mod choice;
mod ejection;
mod health;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use change::UpstreamChange;
use choice::Pool;
use e2d2::counters::Counters;
use e2d2::time::Instant;
use ejection::Memberships;
use health::Health;
pub use health::ServerHealth;

use crate::base::difference::MOST_SERVERS;
use crate::base::ids::{PoolId, ServerId};
use crate::base::limit::{Limited, Limits};
use crate::base::meter::CoreMeters;
use crate::base::server_state::{ServerState, ServerWord, Why};
use crate::base::settings::{HashKey, Seeker, UpstreamServer, UpstreamSettings};
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
    /// By server: its [room](Health::room), which each pick asks for. Memory is touched as it is used.
    rooms: Box<[u32]>,
    pools: Vec<Pool>,
    memberships: Memberships,
    standby: Arc<Standby>,
    meters: CoreMeters,
    events: Counters<CallEvent>,
}

impl Upstream {
    /// The servers and pools for the worker with this index.
    pub fn new(settings: &UpstreamSettings, worker: usize) -> Self {
        let mut health = Vec::with_capacity(MOST_SERVERS);
        health.extend(settings.limits().into_iter().map(Health::new));
        let standby: Arc<Standby> = Arc::default();
        let mut upstream = Self {
            health,
            rooms: bytemuck::zeroed_slice_box(MOST_SERVERS + 1),
            servers: settings.servers.clone(),
            pools: (settings.pools.iter()).map(|pool| Pool::new(pool, worker)).collect(),
            memberships: Memberships::new(settings),
            meters: CoreMeters::new(Arc::clone(standby.meters())),
            standby,
            events: Counters::default(),
        };
        (0..upstream.health.len() as u16).for_each(|server| upstream.note_room(server));
        upstream
    }

    /// A server's room may have changed.
    fn note_room(&mut self, server: u16) {
        if let Some(health) = self.health.get(usize::from(server)) {
            self.rooms[usize::from(server)] = health.room();
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

    /// Has the other cores see what this one has counted, if it is time for that.
    pub fn publish_due(&mut self, limits: &Limits, now: Instant) {
        self.meters.publish_due(limits, now);
    }

    /// What the core counts with all others.
    pub(crate) fn meters(&mut self) -> &mut CoreMeters {
        &mut self.meters
    }

    /// What an operator has taken out of service.
    pub(crate) fn standby(&self) -> &Standby {
        &self.standby
    }

    /// The server of `pool` that a connection of `seeker` goes to; `None` when all are full, or when there is no such pool:
    /// the number may come from a program's own selector.
    pub fn pick(&mut self, pool: PoolId, seeker: impl Into<Seeker>, now: Instant) -> Option<ServerId> {
        self.next_after(pool, seeker, now, &[])
    }

    /// The same among those not `tried` yet; `None` also when all have been.
    pub fn next_after(
        &mut self,
        pool: PoolId,
        seeker: impl Into<Seeker>,
        now: Instant,
        tried: &[ServerId],
    ) -> Option<ServerId> {
        self.choose(pool, &seeker.into(), now, tried)
    }

    fn choose(&mut self, id: PoolId, seeker: &Seeker, now: Instant, tried: &[ServerId]) -> Option<ServerId> {
        let pool = self.pools.get_mut(id.index())?;
        if tried.is_empty() {
            let servers = Servers::new(&self.rooms, &self.standby, &self.meters, &[]);
            let first = pool.pick_first(seeker, &self.meters, |server| servers.is_ready(server));
            if first.is_some() {
                return first;
            }
        }
        let picked = self.choose_further(id, seeker, now, tried)?;
        if self.standby.server(picked.0).word().is_ejected() {
            self.begin_trial(id, picked, now);
        }
        Some(picked)
    }

    /// The choice where the first candidate is not ready, or more than its own state matters.
    #[cold]
    fn choose_further(&mut self, pool: PoolId, seeker: &Seeker, now: Instant, tried: &[ServerId]) -> Option<ServerId> {
        let pool = self.pools.get_mut(pool.index())?;
        let (standby, meters) = (&self.standby, &self.meters);
        let servers = Servers::new(&self.rooms, standby, meters, tried);
        let may_be_asked = |server| servers.may_be_asked(server, now);
        let may_be_tried = |server| servers.has_room(server) && !servers.word(server).is_drained();
        // One that has not answered its probe yet may answer a call, where all others of the pool are out. If it lacks what
        // its client was promised, it is reset, and the next is asked.
        let may_be_joined = |server: ServerId| {
            self.health.get(server.index()).is_some_and(|health| {
                health.is_joining_with_room(|most| meters.are_fewer_than(Limited::Server, server.0, most))
            }) && !tried.contains(&server)
                && !servers.word(server).is_drained()
        };
        let may_join = |server| may_be_joined(server) && servers.word(server).may_be_asked(now);
        let holds_back = pool.holds_back(now);
        let is_fresh = |server: ServerId| {
            let since = || standby.server(server.0).since();
            holds_back.as_ref().is_some_and(|holds_back| holds_back(since()))
        };
        let picked = if pool.panics(|server| servers.word(server), now) && !pool.has_backup(may_be_asked) {
            None
        } else {
            pool.pick(seeker, meters, |server| may_be_asked(server) && !is_fresh(server))
                .or_else(|| {
                    holds_back
                        .as_ref()
                        .and_then(|_| pool.pick(seeker, meters, may_be_asked))
                })
                .or_else(|| pool.pick_backup(may_be_asked))
                .or_else(|| pool.pick(seeker, meters, may_join))
                .or_else(|| pool.pick_backup(may_join))
        };
        picked
            .or_else(|| pool.pick(seeker, meters, may_be_tried))
            .or_else(|| pool.pick_backup(may_be_tried))
            .or_else(|| pool.pick(seeker, meters, may_be_joined))
            .or_else(|| pool.pick_backup(may_be_joined))
    }

    /// `picked` is ejected: if its time is over, the call to it is a trial.
    fn begin_trial(&mut self, pool: PoolId, picked: ServerId, now: Instant) {
        // A trial that is overdue is over; one whose client has left ends without a word.
        let patience = self.servers[picked.index()].connect_timeout;
        let pool = self
            .pools
            .get(pool.index())
            .filter(|pool| pool.answers.usual().is_some());
        let overdue = pool.and_then(bound);
        let patience = overdue.map_or(patience, |bound| patience.min(2 * bound));
        self.health[picked.index()].note_picked(self.standby.server(picked.0), now, patience);
    }

    /// After how long a call of this pool is looked at first, to see whether it is overdue: four times what its servers
    /// usually take to answer, at least 50 ms. `None` if there is no other server to call.
    #[inline]
    pub fn bound(&self, pool: PoolId) -> Option<Duration> {
        bound(self.pools.get(pool.index())?)
    }

    /// Whether a call of this pool that has waited for so long is overdue. None is before the pool's first answer.
    pub fn is_overdue(&self, pool: PoolId, waited: Duration) -> bool {
        let pool = self.pools.get(pool.index());
        let pool = pool.filter(|pool| pool.answers.usual().is_some());
        pool.and_then(bound).is_some_and(|bound| waited >= bound)
    }

    /// Whether a call to `server` that is overdue may be given up: there is another server that is not ejected, has not been
    /// `tried` and has room, and `server` is ejected or not too many were given up in the last second.
    pub fn may_give_up(&mut self, pool: PoolId, server: ServerId, now: Instant, tried: &[ServerId]) -> bool {
        let Some(pool) = self.pools.get_mut(pool.index()) else {
            return false;
        };
        let servers = Servers::new(&self.rooms, &self.standby, &self.meters, tried);
        (!self.standby.server(server.0).word().is_fit() || pool.answers.may_give_up(now))
            && pool.members.iter().any(|member| servers.is_left(member.server, server))
    }

    /// Gives such a call up: the server to call instead. `None` if it [may not be](Self::may_give_up).
    pub fn give_up(
        &mut self,
        pool: PoolId,
        seeker: impl Into<Seeker>,
        server: ServerId,
        now: Instant,
        tried: &[ServerId],
    ) -> Option<ServerId> {
        if !self.may_give_up(pool, server, now, tried) {
            return None;
        }
        let pool = self.pools.get_mut(pool.index())?;
        let servers = Servers::new(&self.rooms, &self.standby, &self.meters, tried);
        let is_left = |other| servers.is_left(other, server);
        let next = (pool.pick(&seeker.into(), &self.meters, is_left)).or_else(|| pool.pick_backup(is_left))?;
        let event = if self.standby.server(server.0).word().is_fit() {
            pool.answers.note_given_up(now);
            CallEvent::GivenUp
        } else {
            CallEvent::MovedOn
        };
        self.events.add(event, 1);
        Some(next)
    }

    /// What of a client's first bytes a server of `pool` is chosen by; `None` if none are asked for.
    #[inline]
    pub(crate) fn said_key(&self, pool: PoolId) -> Option<HashKey> {
        self.pools.get(pool.index())?.said_key()
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
        let servers = Servers::new(&self.rooms, &self.standby, &self.meters, &[]);
        self.health.len() > server.index() && servers.has_room(server) && !self.standby.has_server(server.0)
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

/// The servers, as a choice looks at one after the other.
struct Servers<'a> {
    rooms: &'a [u32],
    standby: &'a Standby,
    meters: &'a CoreMeters,
    tried: &'a [ServerId],
}

impl<'a> Servers<'a> {
    #[inline(always)]
    fn new(rooms: &'a [u32], standby: &'a Standby, meters: &'a CoreMeters, tried: &'a [ServerId]) -> Self {
        Servers {
            rooms,
            standby,
            meters,
            tried,
        }
    }

    /// It takes any call: nothing is said against it, and it has room.
    #[inline(always)]
    fn is_ready(&self, server: ServerId) -> bool {
        self.word(server).is_plain() && self.takes_more(server)
    }

    #[inline(always)]
    fn takes_more(&self, server: ServerId) -> bool {
        let most = self.rooms[server.index()];
        // The highest limit only has connections counted.
        most == u32::MAX || self.meters.are_fewer_than(Limited::Server, server.0, most)
    }

    #[inline(always)]
    fn word(&self, server: ServerId) -> ServerWord {
        self.standby.server(server.0).word()
    }

    /// It has not been tried yet, and has room.
    fn has_room(&self, server: ServerId) -> bool {
        self.takes_more(server) && !self.tried.contains(&server)
    }

    /// The same, and it is in service, and not ejected or due for a trial.
    fn may_be_asked(&self, server: ServerId, now: Instant) -> bool {
        self.word(server).may_be_asked(now) && self.has_room(server)
    }

    /// Whether an overdue call to `server` can go to this one: to those that are not ejected. A trial is for those who have not
    /// waited yet.
    fn is_left(&self, other: ServerId, server: ServerId) -> bool {
        other != server && self.word(other).is_fit() && self.has_room(other)
    }
}

/// See [`Upstream::bound`].
#[inline]
fn bound(pool: &Pool) -> Option<Duration> {
    (pool.members.len() > 1).then(|| pool.answers.bound())
}

#[cfg(test)]
mod tests;
