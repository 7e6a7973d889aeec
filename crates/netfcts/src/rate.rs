//! Token bucket in virtual time.

use e2d2::time::Instant;

/// One token, in units of a billionth: what a rate of one per second earns in a nanosecond.
const TOKEN: u64 = 1_000_000_000;

/// Lets through `rate` events per second on average and `burst` at once.
///
/// Integer arithmetic without rounding: over any span exactly `rate × seconds + burst` pass at most.
#[derive(Clone, Debug)]
pub struct RateLimiter {
    rate: u64,
    /// In billionths of a token.
    capacity: u64,
    level: u64,
    filled_at: Instant,
}

impl RateLimiter {
    /// A full bucket. A rate of zero lets the first `burst` events through and then none; `burst` is limited to 10^9.
    pub fn new(rate_per_second: u64, burst: u32, now: Instant) -> RateLimiter {
        let capacity = u64::from(burst).min(1_000_000_000) * TOKEN;
        RateLimiter {
            rate: rate_per_second,
            capacity,
            level: capacity,
            filled_at: now,
        }
    }

    /// Takes a token if there is one.
    #[inline]
    pub fn take(&mut self, now: Instant) -> bool {
        self.take_up_to(1, now) == 1
    }

    /// Takes as many tokens as there are, at most `wanted`, and returns their number.
    #[inline]
    pub fn take_up_to(&mut self, wanted: u32, now: Instant) -> u32 {
        self.fill(now);
        // Never above `wanted`, hence a u32.
        let taken = (self.level / TOKEN).min(u64::from(wanted)) as u32;
        self.level -= u64::from(taken) * TOKEN;
        taken
    }

    fn fill(&mut self, now: Instant) {
        if now <= self.filled_at {
            return;
        }
        let elapsed = (now - self.filled_at).as_nanos() as u64;
        self.filled_at = now;
        let earned = elapsed.saturating_mul(self.rate);
        self.level = self.level.saturating_add(earned).min(self.capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn burst_first_then_the_rate_exactly() {
        let mut limiter = RateLimiter::new(3, 5, Instant::ZERO);
        assert_eq!(limiter.take_up_to(100, Instant::ZERO), 5);
        // A third of a second is not a whole number of nanoseconds: the remainder is not lost.
        let mut passed = 0;
        for nanos in (0..=10_000_000_000u64).step_by(1_000_003) {
            passed += u32::from(limiter.take(Instant::from_nanos(nanos)));
        }
        assert_eq!(passed, 29, "the thirtieth comes at exactly 10 s, which no step meets");
        assert!(limiter.take(Instant::from_nanos(10_000_000_000)));
        assert!(!limiter.take(Instant::from_nanos(10_000_000_000)));
    }

    #[test]
    fn fills_up_to_the_burst_only() {
        let mut limiter = RateLimiter::new(u64::MAX, 4, Instant::ZERO);
        limiter.take_up_to(4, Instant::ZERO);
        assert_eq!(limiter.take_up_to(9, Instant::ZERO + Duration::from_secs(1 << 33)), 4);
    }

    #[test]
    fn time_going_back_earns_nothing() {
        let mut limiter = RateLimiter::new(1, 1, Instant::from_nanos(TOKEN));
        assert!(limiter.take(Instant::from_nanos(TOKEN)));
        assert!(!limiter.take(Instant::ZERO));
        assert!(!limiter.take(Instant::from_nanos(2 * TOKEN - 1)));
        assert!(limiter.take(Instant::from_nanos(2 * TOKEN)));
    }

    #[test]
    fn zero_rate_stops_after_the_burst() {
        let mut limiter = RateLimiter::new(0, 1, Instant::ZERO);
        assert!(limiter.take(Instant::ZERO));
        assert!(!limiter.take(Instant::from_nanos(u64::MAX)));
    }
}
