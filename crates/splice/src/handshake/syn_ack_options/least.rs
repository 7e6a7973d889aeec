//! What the servers of a pool can do, all of them: lowered at once when one can do less, and found again, a few servers a
//! round, when one can do more or has left.

use super::{AdvertisedOptions, Known, LEAST_WINDOW, Ring};
use crate::base::callbacks::MAX_FIRST_PAYLOAD;
use crate::base::settings::SynAck;

/// Servers that a round looks at, at most: a cache line each. A pool counts as one, too.
const LOOKED_AT_PER_ROUND: usize = 64;

/// What every pool can do, at least as long as nobody has looked again.
pub(super) struct PoolsLeast {
    pools: Vec<PoolLeast>,
    /// So many are stale.
    stale: usize,
    /// Where the next one that is stale is looked for.
    next: usize,
    under_way: Option<UnderWay>,
}

#[derive(Clone, Copy)]
struct PoolLeast {
    least: Least,
    /// One of its servers may be able to do more than when it was looked at.
    is_stale: bool,
    /// The most that listeners have offered which reach it.
    offered: Ring,
}

/// A pool that is looked at.
struct UnderWay {
    pool: usize,
    /// How many of its servers were.
    members: usize,
    /// What these can do.
    least: Least,
}

impl PoolsLeast {
    /// So many, without servers; `unknown` is what is offered when nothing is known of any.
    pub(super) fn new(pools: usize, unknown: AdvertisedOptions) -> Self {
        let without_servers = PoolLeast {
            least: Least::NOTHING,
            is_stale: false,
            offered: Ring::new(unknown),
        };
        PoolsLeast {
            pools: vec![without_servers; pools],
            stale: 0,
            next: 0,
            under_way: None,
        }
    }

    /// What all servers of these pools can do.
    pub(super) fn of_all(&self, pools: &[u16]) -> Least {
        let pools = pools.iter().filter_map(|&pool| self.pools.get(usize::from(pool)));
        pools.map(|pool| pool.least).fold(Least::NOTHING, Least::with)
    }

    /// A listener that reaches these pools offers this in a slot.
    pub(super) fn note_offered(&mut self, pools: &[u16], slot: u64, offer: AdvertisedOptions) {
        for &pool in pools {
            if let Some(of_pool) = self.pools.get_mut(usize::from(pool)) {
                of_pool.offered.freeze_more(slot, offer);
            }
        }
    }

    /// A listener that has offered this reaches a pool from now on.
    pub(super) fn join_offers(&mut self, pool: u16, of_listener: &Ring) {
        if let Some(of_pool) = self.pools.get_mut(usize::from(pool)) {
            of_pool.offered.join_offers(of_listener);
        }
    }

    /// The most that listeners have offered which reach a pool.
    pub(super) fn offered(&self, pool: u16) -> Option<&Ring> {
        self.pools.get(usize::from(pool)).map(|pool| &pool.offered)
    }

    /// A pool has a server that can do this.
    pub(super) fn lower(&mut self, pool: u16, own: Least) {
        if let Some(of_pool) = self.pools.get_mut(usize::from(pool)) {
            of_pool.least = of_pool.least.with(own);
            if let Some(under_way) = &mut self.under_way
                && under_way.pool == usize::from(pool)
            {
                under_way.least = under_way.least.with(own);
            }
            self.set_stale(usize::from(pool));
        }
    }

    /// Goes on as `new`, which is left with what was here: pools that there were can do what they could, and these are to be
    /// looked at again.
    pub(super) fn adopt(&mut self, new: &mut PoolsLeast, changed: &[u16]) {
        for (new, old) in new.pools.iter_mut().zip(&self.pools) {
            *new = *old;
        }
        (new.stale, new.next) = (self.stale, 0);
        std::mem::swap(self, new);
        // Those that are no more, if there are fewer.
        let is_stale = |pool: &&PoolLeast| pool.is_stale;
        let gone = new.pools.get(self.pools.len()..).unwrap_or_default();
        self.stale -= gone.iter().filter(is_stale).count();
        let under_way = new.under_way.take().map(|under_way| under_way.pool);
        for pool in changed.iter().map(|&pool| usize::from(pool)).chain(under_way) {
            self.set_stale(pool);
        }
    }

    /// What was heard of all servers is forgotten, and all are being asked for the first time, or none is.
    pub(super) fn forget(&mut self, is_asked: bool) {
        self.under_way = None;
        for pool in 0..self.pools.len() {
            let least = &mut self.pools[pool].least;
            (least.is_heard, least.is_asked) = (false, is_asked);
            self.set_stale(pool);
        }
    }

    /// Whether a pool is to be looked at again.
    pub(super) fn is_stale(&self) -> bool {
        self.stale > 0 || self.under_way.is_some()
    }

    /// Looks at a round's part of the servers of pools that are stale; `members` are those of each pool.
    pub(super) fn look_again(&mut self, members: &[Vec<u16>], servers: &[Known]) {
        for _ in 0..LOOKED_AT_PER_ROUND {
            let Some(under_way) = &mut self.under_way else {
                if self.stale == 0 {
                    return;
                }
                self.begin_next();
                continue;
            };
            let pool = under_way.pool;
            match members.get(pool).and_then(|members| members.get(under_way.members)) {
                Some(&server) => {
                    under_way.members += 1;
                    let known = servers.get(usize::from(server)).filter(|known| !known.is_joining);
                    under_way.least = known.map_or(under_way.least, |known| under_way.least.with(Least::of(known)));
                }
                None => {
                    self.pools[pool].least = under_way.least;
                    self.under_way = None;
                }
            }
        }
    }

    /// The memory in bytes.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.pools)
    }

    /// Begins with the next pool if it is stale.
    fn begin_next(&mut self) {
        let pool = self.next;
        self.next = (pool + 1) % self.pools.len().max(1);
        if let Some(of_pool) = self.pools.get_mut(pool)
            && std::mem::take(&mut of_pool.is_stale)
        {
            self.stale -= 1;
            self.under_way = Some(UnderWay {
                pool,
                members: 0,
                least: Least::NOTHING,
            });
        }
    }

    fn set_stale(&mut self, pool: usize) {
        if let Some(pool) = self.pools.get_mut(pool) {
            self.stale += usize::from(!pool.is_stale);
            pool.is_stale = true;
        }
    }
}

/// What several servers can do, all of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Least {
    /// One of them has answered.
    is_heard: bool,
    /// One of them is being asked for the first time.
    is_asked: bool,
    mss: u16,
    leg_mss: u16,
    /// The smallest shift; no scaling is a shift of 0.
    shift: u8,
    /// One of them scales.
    scales: bool,
    sack: bool,
    timestamps: bool,
    window: u16,
}

impl Least {
    pub(super) const NOTHING: Least = Least {
        is_heard: false,
        is_asked: false,
        mss: u16::MAX,
        leg_mss: u16::MAX,
        shift: u8::MAX,
        scales: false,
        sack: true,
        timestamps: true,
        window: u16::MAX,
    };

    pub(super) fn of(known: &Known) -> Least {
        let alone = Least {
            is_asked: known.is_asked,
            mss: known.leg_mss,
            leg_mss: known.leg_mss,
            ..Least::NOTHING
        };
        known.server_caps.map_or(alone, |server_caps| Least {
            is_heard: true,
            mss: server_caps.mss.min(known.leg_mss),
            shift: server_caps.window_scale.unwrap_or(0),
            scales: server_caps.window_scale.is_some(),
            sack: server_caps.sack,
            timestamps: server_caps.timestamps,
            window: server_caps.window,
            ..alone
        })
    }

    pub(super) fn with(self, other: Least) -> Least {
        Least {
            is_heard: self.is_heard | other.is_heard,
            is_asked: self.is_asked | other.is_asked,
            mss: self.mss.min(other.mss),
            leg_mss: self.leg_mss.min(other.leg_mss),
            shift: self.shift.min(other.shift),
            scales: self.scales | other.scales,
            sack: self.sack & other.sack,
            timestamps: self.timestamps & other.timestamps,
            window: self.window.min(other.window),
        }
    }

    pub(super) fn promise(self, settings: &SynAck) -> AdvertisedOptions {
        let SynAck { probe, pinned, .. } = *settings;
        let heard = probe && self.is_heard;
        AdvertisedOptions {
            // A pinned value holds but for the legs, which it cannot widen.
            mss: if pinned.mss { self.leg_mss } else { self.mss },
            pinned_mss: settings.mss,
            window_scale: if heard && !pinned.window_scale {
                // A server without scaling is met with a shift of 0, which takes nothing from the others' clients.
                self.scales.then_some(self.shift)
            } else {
                settings.window_scale
            },
            sack: if heard && !pinned.sack {
                self.sack
            } else {
                settings.sack
            },
            timestamps: if probe && !pinned.timestamps {
                heard && !self.is_asked && self.timestamps
            } else {
                settings.timestamps
            },
            window: if heard && !pinned.window {
                self.window.clamp(LEAST_WINDOW, MAX_FIRST_PAYLOAD as u16)
            } else {
                settings.window
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ServerCaps;
    use super::*;

    const POOLS: usize = 7;
    const SERVERS: usize = 300;

    fn known(mss: u16, timestamps: bool) -> Known {
        Known {
            server_caps: Some(ServerCaps {
                mss,
                window_scale: Some(7),
                sack: true,
                timestamps,
                window: u16::MAX,
            }),
            is_asked: false,
            is_news: false,
            told_in: 0,
            leg_mss: 9_000,
            is_joining: false,
        }
    }

    fn unknown() -> AdvertisedOptions {
        AdvertisedOptions {
            mss: 1460,
            pinned_mss: None,
            window_scale: Some(7),
            sack: true,
            timestamps: false,
            window: 16_384,
        }
    }

    fn looked(pools: &mut PoolsLeast, members: &[Vec<u16>], servers: &[Known]) -> usize {
        let mut rounds = 0;
        while pools.is_stale() {
            pools.look_again(members, servers);
            rounds += 1;
        }
        rounds
    }

    #[test]
    fn a_pool_is_lowered_at_once_and_raised_within_bounded_rounds() {
        let members = [(0..10_000).collect::<Vec<u16>>()];
        let mut servers = vec![known(1460, true); 10_000];
        let mut pools = PoolsLeast::new(1, unknown());
        pools.lower(0, Least::of(&servers[0]));
        looked(&mut pools, &members, &servers);
        servers[9_999] = known(536, false);
        pools.lower(0, Least::of(&servers[9_999]));
        let least = pools.of_all(&[0]);
        assert_eq!((least.mss, least.timestamps), (536, false));
        servers[9_999] = known(1460, true);
        pools.lower(0, Least::of(&servers[9_999]));
        assert_eq!(pools.of_all(&[0]).mss, 536, "nobody has looked yet");
        let rounds = looked(&mut pools, &members, &servers);
        assert_eq!(rounds, 10_003_usize.div_ceil(LOOKED_AT_PER_ROUND));
        let least = pools.of_all(&[0]);
        assert_eq!((least.mss, least.timestamps), (1460, true));
    }

    /// Whatever changes while pools are looked at, they never seem to do more than their servers, and in the end as much.
    #[test]
    fn what_changes_meanwhile_is_not_missed() {
        let mut state = 1_u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let members: Vec<Vec<u16>> = (0..POOLS)
            .map(|pool| {
                (0..SERVERS as u16)
                    .filter(|&server| usize::from(server) % (pool + 1) == 0)
                    .collect()
            })
            .collect();
        let mut servers = vec![known(1460, true); SERVERS];
        let mut pools = PoolsLeast::new(POOLS, unknown());
        (0..POOLS as u16).for_each(|pool| pools.lower(pool, Least::of(&servers[0])));
        let all = |members: &[u16], servers: &[Known]| {
            let servers = members.iter().map(|&server| Least::of(&servers[usize::from(server)]));
            servers.fold(Least::NOTHING, Least::with)
        };
        for _ in 0..20_000 {
            let server = random(SERVERS);
            servers[server] = known(500 + random(3) as u16, random(100) > 0);
            for pool in (0..POOLS).filter(|pool| server % (pool + 1) == 0) {
                pools.lower(pool as u16, Least::of(&servers[server]));
            }
            if random(3) == 0 {
                pools.look_again(&members, &servers);
            }
            if random(50) == 0 {
                let mut new = PoolsLeast::new(POOLS, unknown());
                pools.adopt(&mut new, &[random(POOLS) as u16]);
            }
            let pool = random(POOLS);
            let (seems, can) = (pools.of_all(&[pool as u16]), all(&members[pool], &servers));
            assert!(seems.mss <= can.mss && seems.timestamps <= can.timestamps);
        }
        looked(&mut pools, &members, &servers);
        for (pool, members) in members.iter().enumerate() {
            let (seems, can) = (pools.of_all(&[pool as u16]), all(members, &servers));
            assert_eq!((seems.mss, seems.timestamps), (can.mss, can.timestamps));
        }
    }
}
