//! What a core logs of its neighbours: few lines, and how many more there would have been.

use e2d2::time::Instant;
use netfcts::rate::RateLimiter;

use crate::log_ring::{LogEvent, SharedLog, log_ring};

/// Lines that a core logs per second about neighbours: more would be a way to fill a disk.
const LOG_LINES_PER_SECOND: u64 = 1;
/// At once about what others send unasked.
const CLAIM_LINES: u32 = 10;
/// At once about next hops that are found or lost, as many are at a start or when a link fails.
const NEXT_HOP_LINES: u32 = 100;

/// The log, with limits, and how many events these have held back.
pub(super) struct NeighbourLog {
    ring: SharedLog,
    claims: RateLimiter,
    next_hops: RateLimiter,
    unsaid: u32,
}

impl NeighbourLog {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            ring: log_ring(0).0.shared(),
            claims: RateLimiter::new(LOG_LINES_PER_SECOND, CLAIM_LINES, now),
            next_hops: RateLimiter::new(LOG_LINES_PER_SECOND, NEXT_HOP_LINES, now),
            unsaid: 0,
        }
    }

    /// There is a log from now on.
    pub(super) fn set_ring(&mut self, ring: SharedLog) {
        self.ring = ring;
    }

    /// Sends an event, and before it how many were held back; or holds it back.
    pub(super) fn send(&mut self, now: Instant, event: LogEvent) {
        let is_claim = matches!(
            event,
            LogEvent::NeighbourMoved { .. } | LogEvent::DuplicateAddress { .. }
        );
        let limit = if is_claim {
            &mut self.claims
        } else {
            &mut self.next_hops
        };
        if !limit.take(now) {
            self.unsaid = self.unsaid.saturating_add(1);
            return;
        }
        let mut ring = self.ring.borrow_mut();
        if self.unsaid > 0 {
            ring.send(LogEvent::NeighboursUnsaid(std::mem::take(&mut self.unsaid)));
        }
        ring.send(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use e2d2::port::PortId;
    use e2d2::wire::MacAddr;

    #[test]
    fn events_beyond_the_limit_are_counted_and_the_count_is_sent_before_the_next() {
        let (sender, mut receiver) = log_ring(1000);
        let mut now = Instant::from_millis(5000);
        let mut log = NeighbourLog::new(now);
        log.set_ring(sender.shared());
        let (address, port) = (IpAddr::V4(Ipv4Addr::LOCALHOST), PortId(0));
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let claim = LogEvent::DuplicateAddress { address, mac, port };
        let lost = LogEvent::NeighbourLost { address, port };
        let found = LogEvent::NeighbourFound { address, mac, port };
        (0..CLAIM_LINES + 3).for_each(|_| log.send(now, claim));
        let sent =
            |receiver: &mut crate::log_ring::LogReceiver| std::iter::from_fn(|| receiver.take()).collect::<Vec<_>>();
        assert_eq!(sent(&mut receiver), vec![claim; CLAIM_LINES as usize]);
        // What others send takes no line from next hops.
        log.send(now, lost);
        assert_eq!(sent(&mut receiver), [LogEvent::NeighboursUnsaid(3), lost]);
        (0..NEXT_HOP_LINES + 4).for_each(|_| log.send(now, found));
        assert_eq!(sent(&mut receiver).len(), NEXT_HOP_LINES as usize - 1);
        now += Duration::from_secs(1);
        log.send(now, claim);
        assert_eq!(sent(&mut receiver), [LogEvent::NeighboursUnsaid(5), claim]);
    }
}
