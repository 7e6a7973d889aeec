//! How many frames of our own a sender without a connection can cause: limits of each connection, and limits of the core.
//!
//! Each purpose has a budget of its own, so that what one kind of segment causes leaves the others untouched. What a
//! live connection may cause is limited by the connection first ([`ConnectionLimits`](crate::session::limits::ConnectionLimits)):
//! segments forged for one connection take at most one frame a second from the budget that all share. The limits themselves are
//! random from second to second ([`RandomizedLimit`]). Together these close the side channel of CVE-2016-5696: counting challenge
//! ACKs on one's own connection does not reveal whether a forged segment has hit another one (RFC 5961 10 asks for the limit; Linux
//! has drawn it at random since 4.7 and limits each connection since 4.0).

use e2d2::time::Instant;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// So many events a second, give or take a half: how many are allowed is drawn anew for each second.
///
/// Drawn from SipHash of the second's number under a secret key: who sees the counts of some seconds cannot tell that of
/// another.
#[derive(Clone, Debug)]
pub(crate) struct RandomizedLimit {
    mean: u32,
    key: [u64; 2],
    second: u64,
    left: u32,
}

impl RandomizedLimit {
    /// A budget of `mean` events a second on average; a mean of 0 allows none.
    pub(crate) fn new(mean: u32, key: [u64; 2], now: Instant) -> Self {
        let mut budget = RandomizedLimit {
            mean,
            key,
            second: second_of(now),
            left: 0,
        };
        budget.left = budget.draw();
        budget
    }

    /// Takes one of what is left for this second.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let second = second_of(now);
        if second != self.second {
            self.second = second;
            self.left = self.draw();
        }
        let is_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_left
    }

    /// From half the mean to one and a half of it, each number as likely as any other.
    fn draw(&self) -> u32 {
        let mut hasher = SipHasher13::new_with_keys(self.key[0], self.key[1]);
        hasher.write_u64(self.second);
        let half = self.mean / 2;
        let numbers = u64::from(half) * 2 + 1;
        let drawn = (u128::from(hasher.finish()) * u128::from(numbers)) >> 64;
        (self.mean - half).saturating_add(drawn as u32)
    }
}

fn second_of(now: Instant) -> u64 {
    now.as_nanos() / 1_000_000_000
}

/// The limits of one core.
pub(crate) struct CoreLimits {
    /// Resets to those who have neither a connection nor a valid cookie.
    pub(crate) rst: RandomizedLimit,
    /// Resets to servers that answer a probe out of an older connection.
    pub(crate) probes: RandomizedLimit,
    /// Challenge ACKs, and questions after a doubtful RST.
    pub(crate) challenges: RandomizedLimit,
    /// Resets to those whom a rule rejects.
    pub(crate) rejected: RandomizedLimit,
    /// Windows of zero to those whom a rule tarpits.
    pub(crate) tarpit: RandomizedLimit,
    /// Questions to receivers of segments that are out of every window of their connection.
    pub(crate) out_of_window: RandomizedLimit,
    /// Too Big, to senders of late segments of connections that are over.
    pub(crate) late_too_big: RandomizedLimit,
}

impl CoreLimits {
    /// Limits of `per_second` events each; `secret` is the core's own.
    pub(crate) fn new(per_second: u32, secret: [u8; 16], now: Instant) -> Self {
        // Keys that say nothing of each other, nor of the secret, which others use as well.
        let word = |number: u64| {
            let mut hasher = SipHasher13::new_with_key(&secret);
            hasher.write(b"budgets");
            hasher.write_u64(number);
            hasher.finish()
        };
        let budget = |number: u64| RandomizedLimit::new(per_second, [word(2 * number), word(2 * number + 1)], now);
        CoreLimits {
            rst: budget(0),
            challenges: budget(1),
            out_of_window: budget(2),
            probes: budget(3),
            rejected: budget(4),
            tarpit: budget(5),
            late_too_big: budget(6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_budget_allows_between_half_of_its_mean_and_one_and_a_half() {
        for mean in [0, 1, 2, 3, 10, 1000] {
            let mut budget = RandomizedLimit::new(mean, [3, 5], at(0));
            let counts: Vec<u32> = (0..2000u64)
                .map(|second| (0..2000).map(|_| u32::from(budget.take(at(second * 1000)))).sum())
                .collect();
            let range = mean - mean / 2..=mean + mean / 2;
            assert!(counts.iter().all(|count| range.contains(count)), "{mean}");
            for bound in [*range.start(), *range.end()] {
                assert!(mean > 10 || counts.contains(&bound), "{bound} of {mean}");
            }
            let sum: u32 = counts.iter().sum();
            // Four standard deviations of the mean of 2 000 draws.
            let deviation = 4.0 * f64::from(mean) / 12_f64.sqrt() / 2000_f64.sqrt();
            assert!(
                (f64::from(sum) / 2000.0 - f64::from(mean)).abs() <= deviation,
                "{mean}: {sum}"
            );
        }
    }

    #[test]
    fn budgets_of_one_secret_say_nothing_of_each_other() {
        let mut limits = CoreLimits::new(1000, [9; 16], at(0));
        let mut count = |pick: fn(&mut CoreLimits) -> &mut RandomizedLimit| {
            let budget = pick(&mut limits);
            let mut of = |second: u64| (0..2000).filter(|_| budget.take(at(second * 1000))).count();
            [of(1), of(2), of(3)]
        };
        let strangers = count(|limits| &mut limits.rst);
        let challenges = count(|limits| &mut limits.challenges);
        let out_of_window = count(|limits| &mut limits.out_of_window);
        assert!(strangers != challenges && challenges != out_of_window && out_of_window != strangers);
    }
}
