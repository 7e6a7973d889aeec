//! The next server of a pool: a look into the pool's [table](crate::base::choice_table), and from there to the first server
//! that may be chosen.
//!
//! `may_be` is called for one candidate after the other. Slow start refuses a first candidate at random there, so tables do not
//! change with the state of servers.

use std::hint::select_unpredictable;
use std::sync::Arc;
use std::time::Duration;

use e2d2::time::Instant;

use super::answers::Answers;
use crate::base::choice_table::{ChoiceTable, Place, hash_of_client, mix};
use crate::base::ids::ServerId;
use crate::base::limit::Limited;
use crate::base::meter::CoreMeters;
use crate::base::server_state::ServerWord;
use crate::base::settings::{HashKey, HashSettings, Member, Policy, PoolSettings, Seeker};

/// Turns that are tried for a server that may be chosen: all of them in a pool with weights of usual size.
const MOST_TURNS: usize = 4096;

/// In pools of up to this many servers all are compared by their connections; in larger ones two that are drawn.
const FEW: usize = 4;

/// Draws for two servers that may be chosen, before all are compared.
const MOST_DRAWS: usize = 16;

/// A random number times this is another one. Source: Steele, Vigna, "Computationally easy, spectrally good multipliers for
/// congruential pseudorandom number generators", Software: Practice and Experience 52 (2022).
const SECOND: u64 = 0xd134_2543_de82_ef95;

/// A server that has just come back gets its weight divided by this.
const FIRST_PART: u32 = 20;

/// A pool, as one core picks from it.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    policy: Policy,
    pub(super) members: Vec<Member>,
    /// The number of those that are no backups; they come first.
    primaries: usize,
    /// The next backup in turn.
    backup_turn: usize,
    /// See [`Pool::asks_more`].
    asks_more: bool,
    slow_start: Duration,
    panic: Panic,
    table: Arc<ChoiceTable>,
    hash: HashSettings,
    /// The next turn of the table's order.
    turn: usize,
    /// The state of the random numbers.
    draws: u64,
    mean: Mean,
    pub(super) answers: Answers,
    /// The share of the servers that may be ejected, in per cent.
    pub(super) eject_most: u8,
}

/// The mean of the connections, for a weight of 1, of the servers that may be chosen. Each pick looks at one server, so the sums
/// are up to one round of the pool old.
#[derive(Clone, Debug, Default)]
struct Mean {
    next: usize,
    sums: Sums,
    /// Those of the last complete round.
    last: Sums,
}

/// Of the servers that have been looked at and may be chosen.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    open: i64,
    weights: i64,
}

impl Mean {
    fn look(&mut self, members: &[Member], meters: &CoreMeters, may_be: impl Fn(ServerId) -> bool) {
        if self.next >= members.len() {
            (self.last, self.sums, self.next) = (self.sums, Sums::default(), 0);
        }
        if let Some(member) = members.get(self.next) {
            if may_be(member.server) {
                self.sums.open += meters.open_of(Limited::Server, member.server.0);
                self.sums.weights += i64::from(member.weight);
            }
            self.next += 1;
        }
    }

    /// Whether a server with `open` connections may get one more, if none may have more than `percent` of the mean.
    fn allows(&self, open: i64, weight: u16, percent: u16) -> bool {
        // (open + 1) / weight <= percent / 100 × (sum + weights) / weights: with a mean below one no server is over it.
        let most = i64::from(percent) * (self.last.open + self.last.weights) * i64::from(weight);
        (open + 1) * 100 * self.last.weights <= most
    }
}

/// The share of the servers in service that may be asked, counted in rounds likewise.
#[derive(Clone, Debug, Default)]
struct Panic {
    /// Per cent of the last complete round.
    below: u8,
    next: usize,
    in_service: usize,
    fit: usize,
    is_on: bool,
}

impl Panic {
    fn look(&mut self, members: &[Member], word_of: impl Fn(ServerId) -> ServerWord, now: Instant) -> bool {
        if let Some(member) = members.get(self.next) {
            let word = word_of(member.server);
            self.in_service += usize::from(!word.is_drained());
            self.fit += usize::from(word.may_be_asked(now));
            self.next += 1;
        }
        if self.next >= members.len() {
            self.is_on = self.fit * 100 < usize::from(self.below) * self.in_service;
            (self.next, self.in_service, self.fit) = (0, 0, 0);
        }
        self.is_on
    }
}

impl Pool {
    /// Starts at the worker's place of the round.
    pub(super) fn new(pool: &PoolSettings, worker: usize) -> Self {
        let primaries = pool.members.iter().filter(|member| !member.backup);
        Pool {
            policy: pool.policy,
            members: pool.members.clone(),
            primaries: pool.members.iter().filter(|member| !member.backup).count(),
            backup_turn: 0,
            asks_more: Pool::asks_more(pool.slow_start, pool.panic_below, &pool.hash),
            slow_start: pool.slow_start,
            panic: Panic {
                below: pool.panic_below,
                ..Panic::default()
            },
            table: Arc::clone(&pool.table),
            hash: pool.hash,
            turn: worker.checked_rem(pool.table.len()).unwrap_or(0),
            draws: mix(worker as u64),
            mean: Mean {
                last: Sums {
                    open: 0,
                    weights: primaries.map(|member| i64::from(member.weight)).sum(),
                },
                ..Mean::default()
            },
            answers: Answers::new(),
            eject_most: pool.eject_most,
        }
    }

    /// The key that is hashed from a client's payload; `None` if the pool hashes the address, or nothing.
    #[inline]
    pub(super) fn said_key(&self) -> Option<HashKey> {
        (self.policy.is_hash() && self.hash.key != HashKey::Client).then_some(self.hash.key)
    }

    /// Whether more than its own state decides whether a server may be chosen: how long it is back, how many others are out, or
    /// how many connections all have.
    fn asks_more(slow_start: Duration, panic_below: u8, hash: &HashSettings) -> bool {
        !slow_start.is_zero() || panic_below > 0 || hash.balance_factor.is_some()
    }

    /// The policy's first candidate, if it is ready, and nothing else has to be looked at. That is nearly always so.
    #[inline]
    pub(super) fn pick_first(
        &mut self,
        seeker: &Seeker,
        meters: &CoreMeters,
        is_ready: impl Fn(ServerId) -> bool,
    ) -> Option<ServerId> {
        if self.asks_more {
            return None;
        }
        match self.policy {
            Policy::RoundRobin => {
                let server = self.in_turn().filter(|server| is_ready(*server))?;
                self.end_turn();
                Some(server)
            }
            Policy::LeastConnections => self.least_of_ready(meters, is_ready),
            Policy::ClientHash | Policy::Maglev => {
                let place = self.table.first(self.key_of(seeker))?;
                let server = self.members.get(usize::from(place))?.server;
                is_ready(server).then_some(server)
            }
        }
    }

    /// A server that `may_be`, by the policy; `None` if none of those that are no backups may.
    pub(super) fn pick(
        &mut self,
        seeker: &Seeker,
        meters: &CoreMeters,
        may_be: impl Fn(ServerId) -> bool,
    ) -> Option<ServerId> {
        match self.policy {
            Policy::RoundRobin => self.round_robin(may_be),
            Policy::LeastConnections => self.least_connections(meters, may_be),
            Policy::ClientHash | Policy::Maglev => {
                let key = self.key_of(seeker);
                self.by_hash(key, meters, may_be)
            }
        }
    }

    /// Smooth weighted round robin; servers that may not be chosen lose their turn.
    fn round_robin(&mut self, may_be: impl Fn(ServerId) -> bool) -> Option<ServerId> {
        for _ in 0..self.table.turns().len().min(MOST_TURNS) {
            let server = self.in_turn()?;
            self.end_turn();
            if may_be(server) {
                return Some(server);
            }
        }
        // No server of these turns may be chosen.
        self.rotated(self.turn)
            .map(|(_, member)| member.server)
            .find(|server| may_be(*server))
    }

    /// The server whose turn it is.
    #[inline]
    fn in_turn(&self) -> Option<ServerId> {
        let turns = self.table.turns();
        let place = turns.get(self.turn).or(turns.first())?;
        self.members.get(usize::from(*place)).map(|member| member.server)
    }

    /// The next turn is another's.
    #[inline]
    fn end_turn(&mut self) {
        let has_more = self.turn + 1 < self.table.turns().len();
        self.turn = if has_more { self.turn + 1 } else { 0 };
    }

    /// The members that are no backups.
    fn primaries(&self) -> &[Member] {
        self.members.get(..self.primaries).unwrap_or_default()
    }

    /// The next backup that `may_be`, in turn.
    #[cold]
    pub(super) fn pick_backup(&mut self, may_be: impl Fn(ServerId) -> bool) -> Option<ServerId> {
        let backups = self
            .members
            .get(self.primaries..)
            .filter(|backups| !backups.is_empty())?;
        let from = self.backup_turn % backups.len();
        let turns = backups.iter().enumerate().cycle().skip(from).take(backups.len());
        let (place, next) = turns.into_iter().find(|(_, member)| may_be(member.server))?;
        self.backup_turn = place + 1;
        Some(next.server)
    }

    /// Whether there is a backup that `may_be`.
    pub(super) fn has_backup(&self, may_be: impl Fn(ServerId) -> bool) -> bool {
        let backups = self.members.get(self.primaries..).unwrap_or_default();
        backups.iter().any(|member| may_be(member.server))
    }

    /// Whether less than `panic_below` of the servers in service may be asked, so that all are. Looks at one server each
    /// time: the answer is up to one round of the pool old.
    #[inline]
    pub(super) fn panics(&mut self, word_of: impl Fn(ServerId) -> ServerWord, now: Instant) -> bool {
        let primaries = self.members.get(..self.primaries).unwrap_or_default();
        self.panic.below > 0 && self.panic.look(primaries, word_of, now)
    }

    /// Whether slow start passes over a server that is back since this time.
    pub(super) fn holds_back(&mut self, now: Instant) -> Option<impl Fn(Instant) -> bool + use<>> {
        if self.slow_start.is_zero() {
            return None;
        }
        let (slow_start, chance) = (self.slow_start, self.number() >> 32);
        Some(move |since: Instant| {
            let back_for = now.saturating_since(since);
            let part = u128::from(u32::MAX) * back_for.as_nanos() / slow_start.as_nanos().max(1);
            since != Instant::ZERO && u128::from(chance) > part.max(u128::from(u32::MAX / FIRST_PART))
        })
    }

    /// All members but backups with their places, beginning with place `from`.
    fn rotated(&self, from: usize) -> impl Iterator<Item = (usize, &Member)> {
        let primaries = self.primaries();
        let count = primaries.len();
        let from = from.checked_rem(count).unwrap_or(0);
        let members = primaries.iter().enumerate();
        members.cycle().skip(from).take(count)
    }

    /// What [`least_connections`](Self::least_connections) picks, if that is ready; of up to [`FEW`] servers, if all are.
    #[inline]
    fn least_of_ready(&mut self, meters: &CoreMeters, is_ready: impl Fn(ServerId) -> bool) -> Option<ServerId> {
        if self.primaries <= FEW {
            let mut all = self.primaries().iter();
            return (all.all(|member| is_ready(member.server)))
                .then(|| self.least_of_all(meters, |_| true))
                .flatten();
        }
        let number = self.number();
        let second = self.table.draw(number.wrapping_mul(SECOND))?;
        let first = self.table.draw(number)?;
        // Who is drawn twice is compared with the next.
        let next = if usize::from(first) + 1 < self.primaries {
            first + 1
        } else {
            0
        };
        let second = select_unpredictable(first == second, next, second);
        let [first, second] = [first, second].map(|place| self.members.get(usize::from(place)));
        let (first, second) = first.zip(second)?;
        let least = Load::of(second, meters).or_less(Load::of(first, meters)).server;
        is_ready(least).then_some(least)
    }

    /// Any server, by weight.
    fn draw(&mut self) -> Option<Place> {
        let number = self.number();
        self.table.draw(number)
    }

    /// The next random number.
    #[inline]
    fn number(&mut self) -> u64 {
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.draws)
    }

    /// The one with fewer connections for its weight of two drawn by weight; in small pools of all. Source:
    /// Mitzenmacher, "The power of two choices in randomized load balancing", IEEE TPDS 12 (2001).
    fn least_connections(&mut self, meters: &CoreMeters, may_be: impl Fn(ServerId) -> bool) -> Option<ServerId> {
        let mut first: Option<Load> = None;
        let draws = if self.primaries > FEW { MOST_DRAWS } else { 0 };
        for _ in 0..draws {
            let place = self.draw()?;
            let load = Load::of(self.members.get(usize::from(place))?, meters);
            if !may_be(load.server) || first.is_some_and(|first| first.server == load.server) {
                continue;
            }
            match first {
                Some(first) => return Some(load.or_less(first).server),
                None => first = Some(load),
            }
        }
        match first {
            Some(first) => Some(first.server),
            None => self.least_of_all(meters, may_be),
        }
    }

    /// The server with the fewest connections for its weight, including the one to be made; equals take turns.
    fn least_of_all(&mut self, meters: &CoreMeters, may_be: impl Fn(ServerId) -> bool) -> Option<ServerId> {
        let candidates = self.rotated(self.turn).filter(|(_, member)| may_be(member.server));
        let loads = candidates.map(|(place, member)| (place, Load::of(member, meters)));
        let (place, least) = loads.reduce(|least, next| if next.1.is_less_than(&least.1) { next } else { least })?;
        self.turn = place + 1;
        Some(least.server)
    }

    /// The key's first server that `may_be` and is below `balance_factor`; if none is, as the mean is a round old, the one with
    /// the fewest connections of those that `may_be`.
    fn by_hash(&mut self, key: u64, meters: &CoreMeters, may_be: impl Fn(ServerId) -> bool) -> Option<ServerId> {
        let Some(percent) = self.hash.balance_factor else {
            return self.first_of(key, |member| may_be(member.server));
        };
        let primaries = self.members.get(..self.primaries).unwrap_or_default();
        self.mean.look(primaries, meters, &may_be);
        let is_below = |member: &Member| {
            let open = meters.open_of(Limited::Server, member.server.0);
            self.mean.allows(open, member.weight, percent) && may_be(member.server)
        };
        let below = self.first_of(key, is_below);
        below.or_else(|| self.least_of_all(meters, may_be))
    }

    #[inline]
    fn first_of(&self, key: u64, may_be: impl Fn(&Member) -> bool) -> Option<ServerId> {
        let members = &self.members;
        let may_be = |place| members.get(usize::from(place)).is_some_and(&may_be);
        let place = match self.table.first_of(key, may_be) {
            Some(place) => place,
            None => self.table.first_of_all(key, may_be)?,
        };
        members.get(usize::from(place)).map(|member| member.server)
    }

    #[inline]
    fn key_of(&self, seeker: &Seeker) -> u64 {
        let hash = &self.hash;
        let of_client = || hash_of_client(seeker.client, (hash.prefix_v4, hash.prefix_v6), hash.seed);
        seeker.said.map_or_else(of_client, |said| mix(said ^ hash.seed))
    }
}

/// The load of a server: (open + 1) / weight.
#[derive(Clone, Copy)]
struct Load {
    server: ServerId,
    open: i64,
    weight: i64,
}

impl Load {
    #[inline]
    fn of(member: &Member, meters: &CoreMeters) -> Self {
        Load {
            server: member.server,
            open: meters.open_of(Limited::Server, member.server.0) + 1,
            weight: i64::from(member.weight),
        }
    }

    /// This one if it is less, else the other.
    #[inline]
    fn or_less(self, other: Load) -> Load {
        if self.is_less_than(&other) { self } else { other }
    }

    /// Compared by cross products, which are below 2^41.
    #[inline]
    fn is_less_than(&self, other: &Load) -> bool {
        self.open * other.weight < other.open * self.weight
    }
}
