//! Drawn pools under drawn changes: whoever is picked may be picked, and nobody is missed. The model knows no turns, tables
//! or chances.

use super::*;
use crate::base::choice_table::mix;
use crate::base::server_state::CheckFailure;
use crate::base::standby::{Service, Standby};
use crate::upstream::health::Health;
use std::sync::Arc;

/// Numbers from a seed.
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % count
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// What is known of a server without asking.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Known {
    is_backup: bool,
    is_drained: bool,
    is_down: bool,
    is_joining: bool,
    most: Option<u32>,
    open: u32,
}

struct Pool {
    seed: u64,
    drawn: Drawn,
    upstream: Upstream,
    standby: Arc<Standby>,
    panic_below: usize,
    known: Vec<Known>,
    now: Instant,
    /// Which primaries were fit at each of the last picks, for as long as that has not changed.
    steady: (Vec<Option<bool>>, usize),
}

impl Pool {
    fn new(seed: u64) -> Self {
        let mut drawn = Drawn(seed);
        let weights: Vec<u16> = (0..1 + drawn.below(9)).map(|_| drawn.of(&[1, 1, 2, 7])).collect();
        let (policy, percent) = (drawn.of(&POLICIES), drawn.of(&[None, Some(101), Some(125), Some(300)]));
        let mut settings = config_with(&weights, policy, |server| server.eject_after = 2);
        let hash = HashSettings {
            balance_factor: percent.filter(|_| policy.is_hash()),
            ..HashSettings::default()
        };
        let mut members = settings.pools[0].members.clone();
        // They come last, as in every pool.
        let backups = drawn.below(members.len() as u64 + 1) as usize / 2;
        let first = members.len() - backups;
        members[first..].iter_mut().for_each(|member| member.backup = true);
        let known = |member: &Member| Known {
            is_backup: member.backup,
            most: drawn.of(&[None, Some(2), Some(20)]),
            ..Known::default()
        };
        let known: Vec<Known> = members.iter().map(known).collect();
        for (server, known) in settings.servers.iter_mut().zip(&known) {
            server.max_connections = known.most;
        }
        let mut pool = PoolSettings::new((policy, hash), members, 100, address_of);
        pool.slow_start = Duration::from_secs(drawn.of(&[0, 0, 10]));
        pool.panic_below = drawn.of(&[0, 1, 50, 100]);
        let panic_below = usize::from(pool.panic_below);
        settings.pools[0] = pool;
        let standby: Arc<Standby> = Arc::default();
        Pool {
            seed,
            upstream: Upstream::new(&settings, 0).with_standby(Arc::clone(&standby)),
            drawn,
            standby,
            panic_below,
            known,
            now: NOW,
            steady: (Vec::new(), 0),
        }
    }

    /// Something becomes of a server.
    fn change(&mut self) {
        let number = self.drawn.below(self.known.len() as u64) as u16;
        let (id, known) = (ServerId(number), &mut self.known[usize::from(number)]);
        match self.drawn.below(7) {
            0 => {
                known.is_drained = !known.is_drained;
                let service = if known.is_drained {
                    Service::Drained
                } else {
                    Service::In
                };
                self.standby.set_server(number, service, Instant::ZERO);
            }
            1 | 2 => {
                known.is_down = !known.is_down;
                let result = if known.is_down {
                    Err(CheckFailure::Refused)
                } else {
                    Ok(())
                };
                self.standby.server(number).note_check(result, (1, 1), self.now);
            }
            3 if known.open == 0 => {
                known.is_joining = true;
                self.upstream.health[id.index()] = Health::new(self.upstream.health[id.index()].limit).joining();
                self.upstream.note_room(number);
            }
            3 | 4 => {
                known.is_joining = false;
                self.upstream.admit(id);
            }
            5 => (0..2).for_each(|_| self.upstream.note_failure(id, self.now)),
            _ => self.now += Duration::from_millis(self.drawn.below(20_000)),
        }
    }

    /// The servers that are left, by kind, in the order in which the kinds are asked; from the fifth on with those that are out.
    fn orders(&self, tried: &[ServerId]) -> Vec<Vec<u16>> {
        let is_out = |server: u16| !self.standby.server(server).word().may_be_asked(self.now);
        let all = |may_be: &dyn Fn(u16, &Known) -> bool| -> Vec<u16> {
            let may_be = |(server, known): &(u16, &Known)| {
                !tried.contains(&ServerId(*server))
                    && !known.is_drained
                    && known.most.is_none_or(|most| known.open < most)
                    && may_be(*server, known)
            };
            (0..)
                .zip(&self.known)
                .filter(may_be)
                .map(|(server, _)| server)
                .collect()
        };
        vec![
            all(&|server, known| !known.is_joining && !known.is_backup && !is_out(server)),
            all(&|server, known| !known.is_joining && known.is_backup && !is_out(server)),
            all(&|server, known| known.is_joining && !known.is_backup && !is_out(server)),
            all(&|server, known| known.is_joining && known.is_backup && !is_out(server)),
            all(&|_, known| !known.is_joining && !known.is_backup),
            all(&|_, known| !known.is_joining && known.is_backup),
            all(&|_, known| !known.is_backup),
            all(&|_, known| known.is_backup),
        ]
    }

    /// Whether so few are fit that all are asked; `None` if that has changed too lately to tell.
    fn panics(&mut self) -> Option<bool> {
        let is_fit = |(server, known): (u16, &Known)| {
            let may_be = self.standby.server(server).word().may_be_asked(self.now);
            (!known.is_drained).then_some(may_be)
        };
        let primaries = (0..).zip(&self.known).filter(|(_, known)| !known.is_backup);
        let fit: Vec<Option<bool>> = primaries.map(is_fit).collect();
        let is_same = self.steady.0 == fit;
        self.steady = (fit, if is_same { self.steady.1 + 1 } else { 0 });
        let counted: Vec<bool> = self.steady.0.iter().copied().flatten().collect();
        let share = counted.iter().filter(|is_fit| **is_fit).count() * 100;
        let panics = share < self.panic_below * counted.len();
        (self.panic_below == 0 || self.steady.1 > 2 * self.steady.0.len()).then_some(panics)
    }

    fn pick(&mut self) {
        let tried: Vec<ServerId> = match self.drawn.below(3) {
            0 => (0..self.drawn.below(4))
                .map(|_| ServerId(self.drawn.below(9) as u16))
                .collect(),
            _ => Vec::new(),
        };
        let panics = self.panics();
        let orders = self.orders(&tried);
        let by_rule = orders.iter().find(|order| !order.is_empty());
        // Not while a backup may be asked.
        let in_panic = orders[4..].iter().find(|order| !order.is_empty());
        let in_panic = if orders[1].is_empty() { in_panic } else { by_rule };
        let allowed: Vec<u16> = match panics {
            Some(false) => by_rule.into_iter().flatten().copied().collect(),
            Some(true) => in_panic.into_iter().flatten().copied().collect(),
            None => by_rule.into_iter().chain(in_panic).flatten().copied().collect(),
        };
        let seeker = client(self.drawn.below(30) as u32);
        let picked = self.upstream.next_after(POOL, seeker, self.now, &tried);
        let seed = self.seed;
        let what = || format!("{allowed:?} without {tried:?}, panic {panics:?}: {:?}", self.known);
        assert_eq!(picked.is_none(), allowed.is_empty(), "seed {seed}: of {}", what());
        let Some(picked) = picked else { return };
        assert!(allowed.contains(&picked.0), "seed {seed}: {picked:?} of {}", what());
        self.upstream.note_open(picked, self.now);
        self.known[picked.index()].open += 1;
        let closes = self.drawn.below(self.known.len() as u64) as u16;
        if self.drawn.one_in(2) && self.known[usize::from(closes)].open > 0 {
            self.upstream.note_close(ServerId(closes), self.now);
            self.known[usize::from(closes)].open -= 1;
        }
    }
}

#[test]
fn whoever_is_picked_from_a_drawn_pool_may_be_picked_and_nobody_is_missed() {
    let seeds = 26_000..26_100;
    println!("seeds {seeds:?}");
    for seed in seeds {
        let mut pool = Pool::new(seed);
        for _ in 0..200 {
            (0..pool.drawn.below(4)).for_each(|_| pool.change());
            (0..pool.drawn.of(&[2, 40])).for_each(|_| pool.pick());
        }
    }
}
