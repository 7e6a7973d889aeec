//! Other servers and pools while the core runs: tables made by another thread, taken in by swapping.

use super::{Health, Memberships, Pool, Upstream};
use crate::base::difference::{Difference, put};
use crate::base::ids::ServerId;
use crate::base::limit::Limited;
use crate::base::settings::{UpstreamServer, UpstreamSettings};

/// What a core has to take in, and afterwards what it had.
pub(crate) struct UpstreamChange {
    servers: Vec<UpstreamServer>,
    /// Of new servers and of numbers that are nobody's.
    health: Vec<(u16, Option<Health>)>,
    limits: Vec<(u16, Option<u32>)>,
    pools: Vec<Pool>,
    /// By pool: its servers and weights are those that there were, and it goes on where it was.
    stays: Vec<bool>,
    /// Pools that nothing is known of yet.
    new_pools: Vec<u16>,
    memberships: Memberships,
}

impl UpstreamChange {
    /// Makes it for the worker with this index. New servers take no connection before they are [admitted](Upstream::admit)
    /// if they are asked first what they can do, unless their pool has no other.
    pub(crate) fn new(settings: &UpstreamSettings, worker: usize, difference: &Difference, are_asked: bool) -> Self {
        let all_limits = settings.limits();
        let limit_of = |id: u16| all_limits.get(usize::from(id)).copied().flatten();
        let health = |id| {
            let health = Health::new(limit_of(id));
            (id, Some(if are_asked { health.joining() } else { health }))
        };
        let mut stays = vec![true; settings.pools.len()];
        for &pool in &difference.pools {
            stays[usize::from(pool)] = false;
        }
        Self {
            servers: settings.servers.clone(),
            health: difference.replaced().map(health).collect(),
            limits: (difference.limits.iter()).map(|&id| (id, limit_of(id))).collect(),
            pools: (settings.pools.iter()).map(|pool| Pool::new(pool, worker)).collect(),
            stays,
            new_pools: difference.new_pools.clone(),
            memberships: Memberships::new(settings),
        }
    }
}

impl Upstream {
    /// Takes it in, and leaves in it what was there.
    pub(crate) fn adopt(&mut self, change: &mut UpstreamChange) {
        std::mem::swap(&mut self.servers, &mut change.servers);
        for (id, health) in &mut change.health {
            put(&mut self.health, *id, health);
            self.note_room(*id);
        }
        for &(id, limit) in &change.limits {
            if let Some(health) = self.health.get_mut(usize::from(id)) {
                // Connections to a server without a limit are not counted with those of others.
                let open = i64::from(health.open());
                let counted = |limit: Option<u32>| if limit.is_some() { open } else { 0 };
                let more = counted(limit) - counted(health.limit);
                self.meters.correct(Limited::Server, id, more);
                health.limit = limit;
                self.note_room(id);
            }
        }
        let pools = change.pools.iter_mut().zip(&mut self.pools).zip(&change.stays);
        for (number, ((new, old), stays)) in (0..).zip(pools) {
            if *stays {
                std::mem::swap(new, old);
            } else if change.new_pools.binary_search(&number).is_err() {
                std::mem::swap(&mut new.answers, &mut old.answers);
            }
        }
        std::mem::swap(&mut self.pools, &mut change.pools);
        std::mem::swap(&mut self.memberships, &mut change.memberships);
    }

    /// A new server takes connections from now on.
    pub(crate) fn admit(&mut self, server: ServerId) {
        if let Some(health) = self.health.get_mut(server.index()) {
            health.admit();
            self.note_room(server.0);
        }
    }
}
