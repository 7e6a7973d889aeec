//! What is left of a [round's part](crate::admission::round_budget).

use crate::admission::round_budget::{CONGESTED_FOR, RoundBudget};
use crate::base::callbacks::SelectServer;
use crate::base::output::{NextHops, Output};
use crate::proxy::Proxy;
use e2d2::buffer::BufferPool;
use e2d2::time::Instant;

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// What timers may do in this round.
    pub(crate) fn budget(&mut self, now: Instant, out: &impl Output<P::Buffer>) -> RoundBudget {
        if out.is_congested() {
            let since = *self.congested_since.get_or_insert(now);
            if now.saturating_since(since) < CONGESTED_FOR {
                return RoundBudget::NONE;
            }
        } else {
            self.congested_since = None;
        }
        // Where places for connections are short, those whose time is over go first.
        let has_places = self.connections.len() < self.connections.capacity() / 4 * 3;
        RoundBudget::new(self.overload.is_behind() && has_places, out)
    }
}
