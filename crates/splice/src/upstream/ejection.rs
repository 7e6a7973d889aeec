//! How many servers of a pool may be ejected: counted after each ejection, which is taken back if it is one too many.
//!
//! A server that calls have failed is ejected first; then each pool that it is in is counted. Of those of its servers that are
//! neither drained nor down, at most `eject_most` percent may be ejected, one in any case, and one is left in any case. If that
//! does not hold, the server is *kept*: it is in again, and has to fail as often before that is tried once more. Two cores that
//! eject two servers at the same time count both, so at worst both are kept.
//!
//! A pool of which a server is kept has most likely no trouble of its own, but lies behind one that all its servers share. When the
//! kept server answers, that is over, and each of those that are out is tried at once.

use e2d2::time::Instant;

use super::{CallEvent, Upstream};
use crate::base::ids::ServerId;
use crate::base::server_state::Why;
use crate::base::settings::{PoolSettings, UpstreamSettings};

/// The pools that each server is in.
#[derive(Clone, Debug)]
pub(super) struct Memberships {
    /// By server: where its pools begin. One more, where the last ones end.
    starts: Vec<u32>,
    pools: Vec<u16>,
}

impl Memberships {
    pub(super) fn new(settings: &UpstreamSettings) -> Self {
        let members = |pool: &PoolSettings| pool.members.iter().map(|member| member.server).collect::<Vec<_>>();
        let mut all: Vec<(ServerId, u16)> = (0..)
            .zip(&settings.pools)
            .flat_map(|(pool, of)| members(of).into_iter().map(move |server| (server, pool)))
            .collect();
        all.sort_unstable();
        let before = |server: usize| all.partition_point(|(of, _)| of.index() < server) as u32;
        Memberships {
            starts: (0..=settings.servers.len()).map(before).collect(),
            pools: all.iter().map(|(_, pool)| *pool).collect(),
        }
    }

    fn of(&self, server: ServerId) -> &[u16] {
        let bounds = self.starts.get(server.index()).zip(self.starts.get(server.index() + 1));
        let pools = bounds.and_then(|(&start, &end)| self.pools.get(start as usize..end as usize));
        pools.unwrap_or_default()
    }
}

impl Upstream {
    /// Calls to `server` have failed or are overdue, as many as it takes: it is ejected, if enough others are left.
    pub(super) fn eject(&mut self, server: ServerId, why: Why, now: Instant) {
        let state = self.standby.server(server.0);
        let Some((health, settings)) = self
            .health
            .get_mut(server.index())
            .zip(self.servers.get(server.index()))
        else {
            return;
        };
        let Some(ejection) = health.eject(state, why, settings, now) else {
            return;
        };
        let is_kept = ejection.is_new && self.has_one_too_many_out(server) && state.keep(&ejection);
        if is_kept && ejection.was_kept {
            return;
        }
        if let Some(health) = self.health.get_mut(server.index()) {
            health.count_ejection(why);
        }
        let event = match why {
            Why::Failure => CallEvent::EjectedByFailure,
            Why::Silence => CallEvent::EjectedBySilence,
        };
        self.events.add(event, 1);
    }

    /// Whether in one of the pools of `server`, which has just been ejected, more are out than may be.
    fn has_one_too_many_out(&self, server: ServerId) -> bool {
        let pools = self.memberships.of(server).iter();
        let mut pools = pools.filter_map(|pool| self.pools.get(usize::from(*pool)));
        pools.any(|pool| {
            let (mut count, mut out) = (0, 0);
            for member in &pool.members {
                let word = self.standby.server(member.server.0).settled_word();
                count += usize::from(word.is_in_service());
                out += usize::from(word.is_in_service() && word.is_ejected());
            }
            out > most_out(count, pool.eject_most)
        })
    }

    /// A server that was kept has answered: the others of its pools are tried at once.
    pub(super) fn try_all_beside(&self, server: ServerId, now: Instant) {
        for pool in self.memberships.of(server) {
            let members = self.pools.get(usize::from(*pool)).map_or(&[][..], |pool| &pool.members);
            members
                .iter()
                .for_each(|member| self.standby.server(member.server.0).end_ejection(now));
        }
    }
}

/// Of so many servers that are in service, how many may be ejected.
pub(super) fn most_out(count: usize, percent: u8) -> usize {
    let share = count * usize::from(percent) / 100;
    share.max(1).min(count.saturating_sub(1))
}
