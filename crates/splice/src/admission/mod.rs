//! Who is served when there is more than a core can do: overload, limits, and what timers may do in a round.

pub(crate) mod limits;
pub(crate) mod overload;
pub(crate) mod quotas;
pub mod round_budget;
#[cfg(test)]
mod tests;
pub(crate) mod validated_clients;

use crate::base::output::Output;
use crate::base::settings::{Secrets, Settings};
use crate::base::standby::Standby;
use e2d2::time::Instant;
use limits::CoreLimits;
use netfcts::rate::RateLimiter;
use overload::Overload;
use quotas::Quotas;
use round_budget::{CONGESTED_FOR, RoundBudget};
use std::sync::Arc;
use validated_clients::ValidatedClients;

/// What one core grants, and to whom.
pub(crate) struct Admission {
    pub(crate) limits: CoreLimits,
    /// ICMP errors about no flow of this core that are handed over in an overload.
    pub(crate) shed_errors: RateLimiter,
    pub(crate) overload: Overload,
    pub(crate) validated_clients: ValidatedClients,
    pub(crate) quotas: Quotas,
    /// Since when timers wait for a port to take frames.
    congested_since: Option<Instant>,
}

impl Admission {
    pub(crate) fn new(settings: &Settings, standby: &Standby, secrets: &Secrets, now: Instant) -> Self {
        let replies = settings.replies_per_second;
        let connections = settings.capacity.connections;
        let (_, cores) = settings.place();
        let is_used = settings.limits.are_any;
        let clients = standby.clients((connections * cores, cores), is_used, secrets.table);
        Admission {
            limits: CoreLimits::new(replies, secrets.isn, now),
            shed_errors: RateLimiter::new(u64::from(replies), replies.div_ceil(10).max(1), now),
            overload: Overload::new(settings.overload_after, now),
            validated_clients: ValidatedClients::new(connections, now),
            quotas: Quotas::new((connections, is_used), Arc::clone(clients)),
            congested_since: None,
        }
    }

    /// What timers may do in this round. Where places for connections are short, those whose time is over go first.
    pub(crate) fn round_budget<B>(&mut self, now: Instant, has_places: bool, out: &impl Output<B>) -> RoundBudget {
        if out.is_congested() {
            let since = *self.congested_since.get_or_insert(now);
            if now.saturating_since(since) < CONGESTED_FOR {
                return RoundBudget::NONE;
            }
        } else {
            self.congested_since = None;
        }
        RoundBudget::new(self.overload.is_behind() && has_places, out)
    }
}
