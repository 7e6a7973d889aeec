//! Servers that are slower than the others of their pool, found by the main thread: what cores have counted of their times since the
//! last look, side by side.
//!
//! Histograms are of the whole run, which hides a server that became slow an hour ago. Only servers whose times are kept are
//! compared ([`Tally::server`]), and only those that were called often enough; the only server of a pool is never slow.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use splice::tally::{Distribution, Tally};

use crate::config::{Config, PoolConfig, Standing};

/// How far two looks are apart.
const PACE_MS: u64 = 10_000;

/// Which part of the times, how it is called, and of how many at least: of a few the 99th percentile is the longest.
const PARTS: [(f64, &str, u64); 2] = [(0.5, "half", 20), (0.99, "one in a hundred", 500)];

/// How many times as long as the others' is slow.
const TIMES: u64 = 4;

/// And by so many microseconds: a client does not notice less.
const MARGIN: u64 = 5_000;

/// Of a server: from the SYN to the SYN-ACK, and from there to the first byte.
type Times = [Distribution; 2];

/// What was counted at the last look.
#[derive(Debug, Default)]
pub(super) struct SlowWatch {
    /// By number, of the servers that are timed.
    last: HashMap<usize, Times>,
    looked_ms: Option<u64>,
}

/// A server that is slow, and how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowServer {
    /// Its name.
    pub server: String,
    pool: String,
    is_first_byte: bool,
    part: &'static str,
    micros: u64,
    of_others: u64,
}

impl fmt::Display for SlowServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |micros: u64| micros as f64 / 1e3;
        let (what, these) = match self.is_first_byte {
            true => ("answer", "first bytes"),
            false => ("connect", "SYN-ACKs"),
        };
        let (part, pool, seconds) = (self.part, &self.pool, PACE_MS / 1000);
        write!(
            f,
            "slow to {what}: within {seconds} s {part} of its {these} took {:.1} ms or more, of the others in pool {pool} {:.1} ms",
            ms(self.micros),
            ms(self.of_others)
        )
    }
}

impl SlowWatch {
    /// Which servers are slow, by what cores have counted; none of it while the last look is not long ago. `now_ms` is the
    /// time since the start.
    pub(super) fn look(&mut self, config: &Config, tallies: &[Arc<Tally>], now_ms: u64) -> Option<Vec<SlowServer>> {
        if self.looked_ms.is_some_and(|last| now_ms.saturating_sub(last) < PACE_MS) {
            return None;
        }
        let is_first = self.looked_ms.replace(now_ms).is_none();
        let times = |server: usize| {
            let mut all = Times::default();
            for counted in tallies.iter().filter_map(|tally| tally.server(server)) {
                all[0].add(counted.connect());
                all[1].add(counted.first_byte());
            }
            all
        };
        let is_kept = |server: &usize| tallies.iter().any(|tally| tally.server(*server).is_some());
        let kept = (0..config.servers().len()).filter(is_kept);
        let now: HashMap<usize, Times> = kept.map(|server| (server, times(server))).collect();
        let last = std::mem::replace(&mut self.last, now);
        if is_first {
            return Some(Vec::new());
        }
        let since = |(server, now): (&usize, &Times)| {
            let since = match last.get(server) {
                Some(last) => [now[0].since(&last[0]), now[1].since(&last[1])],
                None => now.clone(),
            };
            (*server, since)
        };
        let recent: HashMap<usize, Times> = self.last.iter().map(since).collect();
        Some(slow_servers(config, &recent))
    }
}

/// Each of the servers that are slow in a pool once.
fn slow_servers(config: &Config, recent: &HashMap<usize, Times>) -> Vec<SlowServer> {
    let mut found: Vec<SlowServer> = Vec::new();
    for pool in config.pools().iter().filter(|pool| pool.standing == Standing::InFile) {
        for member in &pool.members {
            let name = &config.servers()[member.server.index()].name;
            if found.iter().all(|slow| slow.server != *name) {
                found.extend(slow_in(pool, (member.server.index(), name), recent));
            }
        }
    }
    found
}

/// How a server is slow among those of a pool: by its first bytes before its SYN-ACKs, by half of them before a few.
fn slow_in(pool: &PoolConfig, (server, name): (usize, &str), recent: &HashMap<usize, Times>) -> Option<SlowServer> {
    for which in [1, 0] {
        for (part, words, least) in PARTS {
            let time_of = |server: usize| {
                let times = &recent.get(&server)?[which];
                times.quantile(part).filter(|_| times.count() >= least)
            };
            let others = pool.members.iter().map(|member| member.server.index());
            let mut others: Vec<u64> = others.filter(|other| *other != server).filter_map(time_of).collect();
            others.sort_unstable();
            // Of two the faster one.
            let usual = others.get(others.len().saturating_sub(1) / 2).copied();
            if let (Some(micros), Some(of_others)) = (time_of(server), usual)
                && micros > TIMES * of_others
                && micros > of_others + MARGIN
            {
                return Some(SlowServer {
                    server: name.to_owned(),
                    pool: pool.name.clone(),
                    is_first_byte: which == 1,
                    part: words,
                    micros,
                    of_others,
                });
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [[port]]
        name = "left"
        device = "net_ring0"
        addresses = ["10.0.0.1/24"]
        [[listener]]
        name = "web"
        addresses = ["10.0.0.1:80"]
        default = "web"
        [[pool]]
        name = "web"
        servers = [
          { name = "a", address = "10.0.0.11:80" },
          { name = "b", address = "10.0.0.12:80" },
          { name = "c", address = "10.0.0.13:80" },
        ]
        [[pool]]
        name = "alone"
        servers = [{ name = "d", address = "10.0.0.14:80" }]
    "#;

    /// So many times of so many microseconds each.
    fn times(of: &[(u64, u64)]) -> Distribution {
        let all = of.iter().flat_map(|(count, micros)| (0..*count).map(|_| *micros));
        all.collect()
    }

    fn found(connect: [&[(u64, u64)]; 4], first_byte: [&[(u64, u64)]; 4]) -> Vec<String> {
        let config = Config::parse(FILE, "test.toml").unwrap_or_else(|error| panic!("{error}"));
        let recent: HashMap<usize, Times> = (0..4)
            .map(|of| (of, [times(connect[of]), times(first_byte[of])]))
            .collect();
        let slow = slow_servers(&config, &recent);
        slow.iter().map(|slow| format!("{} is {slow}", slow.server)).collect()
    }

    #[test]
    fn a_server_is_slow_beside_the_others_of_its_pool() {
        let none: [&[(u64, u64)]; 4] = [&[]; 4];
        let told = found(
            none,
            [&[(20, 1_000)], &[(20, 50_000)], &[(20, 1_200)], &[(20, 900_000)]],
        );
        assert_eq!(told.len(), 1, "{told:?}");
        let (head, rest) = told[0].split_once(": ").expect("a sentence");
        assert_eq!(head, "b is slow to answer");
        assert!(
            rest.starts_with("within 10 s half of its first bytes took 5")
                && rest.contains(" ms or more, of the others in pool web 1."),
            "{rest}"
        );
        let told = found([&[(20, 1_000)], &[], &[(20, 9_000)], &[]], none);
        assert!(
            told[0].starts_with("c is slow to connect: within 10 s half of its SYN-ACKs"),
            "{told:?}"
        );
    }

    #[test]
    fn few_times_little_more_and_nobody_beside_it_are_not_slow() {
        let none: [&[(u64, u64)]; 4] = [&[]; 4];
        for first_byte in [
            [&[(20, 1_000)][..], &[(19, 500_000)], &[], &[]],
            [&[(20, 100)], &[(20, 4_000)], &[], &[]],
            [&[(20, 100_000)], &[(20, 300_000)], &[], &[]],
            [&[(19, 1_000)], &[(20, 500_000)], &[], &[]],
        ] {
            assert_eq!(found(none, first_byte), [""; 0]);
        }
    }

    #[test]
    fn one_in_a_hundred_is_told_where_there_are_hundreds() {
        let none: [&[(u64, u64)]; 4] = [&[]; 4];
        let told = found(none, [&[(600, 1_000)], &[(580, 1_000), (20, 300_000)], &[], &[]]);
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("one in a hundred of its first bytes"), "{told:?}");
        assert_eq!(
            found(none, [&[(600, 1_000)], &[(400, 1_000), (20, 300_000)], &[], &[]]),
            [""; 0]
        );
    }
}
