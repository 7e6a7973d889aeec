//! What tables hold: turns by weight, draws by weight, rows of which only a removed server's change.

use super::*;
use std::collections::HashMap;

fn address_of(server: ServerId) -> SocketAddr {
    SocketAddr::from(([10, 0, (server.0 >> 8) as u8, server.0 as u8], 80))
}

fn members(servers: impl IntoIterator<Item = u16>, weight_of: impl Fn(u16) -> u16) -> Vec<Member> {
    let member = |server| Member {
        server: ServerId(server),
        weight: weight_of(server),
        backup: false,
    };
    servers.into_iter().map(member).collect()
}

fn table(policy: Policy, members: &[Member]) -> ChoiceTable {
    ChoiceTable::new((policy, 0), members, address_of)
}

/// The first and the second server of each key that is at a row's or entry's beginning.
fn choices(policy: Policy, members: &[Member]) -> Vec<[ServerId; 2]> {
    let table = table(policy, members);
    let count = if policy == Policy::Maglev { ENTRIES } else { ROWS };
    let key = |entry: usize| ((((entry as u128) << 64) + (1 << 63)) / count as u128) as u64;
    (0..count)
        .map(|entry| {
            let first = table.first_of(key(entry), |_| true).expect("a server");
            let second = table.first_of(key(entry), |place| place != first);
            let second = second.or_else(|| table.first_of_all(key(entry), |place| place != first));
            [first, second.expect("another")].map(|place| members[usize::from(place)].server)
        })
        .collect()
}

/// The part of all keys that each server has.
fn parts(choices: &[[ServerId; 2]]) -> HashMap<ServerId, f64> {
    let mut parts = HashMap::new();
    for [first, _] in choices {
        *parts.entry(*first).or_default() += 1.0 / choices.len() as f64;
    }
    parts
}

#[test]
fn who_loses_its_server_goes_to_its_second_and_nobody_else_moves() {
    for weights in [(|_| 1) as fn(u16) -> u16, |server| server % 7 + 1] {
        let all = choices(Policy::ClientHash, &members(0..100, weights));
        for removed in [0, 17, 99] {
            let left = (0..100).filter(|server| *server != removed);
            let after = choices(Policy::ClientHash, &members(left, weights));
            for ([first, second], [now, _]) in all.iter().zip(after) {
                assert_eq!(now, if first.0 == removed { *second } else { *first });
            }
        }
    }
}

#[test]
fn neither_the_order_of_the_file_nor_the_numbers_matter() {
    for policy in [Policy::ClientHash, Policy::Maglev] {
        let one = members(0..20, |server| server % 3 + 1);
        let mut other = one.clone();
        other.reverse();
        assert_eq!(choices(policy, &one), choices(policy, &other), "{policy:?}");
    }
}

#[test]
fn another_seed_is_another_choice() {
    for policy in [Policy::ClientHash, Policy::Maglev] {
        let members = members(0..10, |_| 1);
        let of = |seed| ChoiceTable::new((policy, seed), &members, address_of);
        let (one, other) = (of(1), of(2));
        let keys = (0..1000_u64).map(|key| mix(key + 1));
        let same = keys.filter(|key| one.first_of(*key, |_| true) == other.first_of(*key, |_| true));
        assert!((60..140).contains(&same.count()), "{policy:?}: one in ten by chance");
    }
}

#[test]
fn a_changed_weight_moves_its_difference_only() {
    let before = choices(Policy::ClientHash, &members(0..10, |_| 10));
    let after = choices(
        Policy::ClientHash,
        &members(0..10, |server| if server == 3 { 15 } else { 10 }),
    );
    let moved: Vec<_> = before
        .iter()
        .zip(&after)
        .filter(|(before, after)| before[0] != after[0])
        .collect();
    assert!(moved.iter().all(|(_, after)| after[0] == ServerId(3)));
    // From 10 in 100 to 15 in 105 of all rows; five standard deviations are less than half a percent.
    let expected = 15.0 / 105.0 - 0.1;
    let part = moved.len() as f64 / ROWS as f64;
    assert!((part - expected).abs() < 0.005, "{part} for {expected}");
}

#[test]
fn maglev_gives_each_its_weight_and_moves_few_others() {
    let weights = |server: u16| server % 4 + 1;
    let all = members(0..100, weights);
    let before = choices(Policy::Maglev, &all);
    for (server, part) in parts(&before) {
        let expected = f64::from(weights(server.0)) / 250.0;
        assert!((part / expected - 1.0).abs() < 0.05, "{server}: {part} for {expected}");
    }
    let after = choices(Policy::Maglev, &members(1..100, weights));
    let moved = before
        .iter()
        .zip(&after)
        .filter(|(before, after)| before[0] != after[0] && before[0].0 != 0);
    let part = moved.count() as f64 / ENTRIES as f64;
    assert!(part < 0.02, "{part}");
}

#[test]
fn of_a_hundred_alike_none_that_goes_moves_more_than_six_in_a_thousand_others() {
    let before = table(Policy::Maglev, &members(0..100, |_| 1));
    let Table::Entries(before) = &before.table else {
        panic!("no table of Maglev");
    };
    let mean = ENTRIES as f64 / 100.0;
    for server in 0..100 {
        let count = before.iter().filter(|place| **place == server).count() as f64;
        assert!((count / mean - 1.0).abs() <= 0.01, "{server} has {count} entries");
        let left = table(Policy::Maglev, &members((0..100).filter(|of| *of != server), |_| 1));
        let Table::Entries(after) = &left.table else {
            panic!("no table of Maglev");
        };
        let now = after.iter().map(|place| place + Place::from(*place >= server));
        let moved = before
            .iter()
            .zip(now)
            .filter(|(before, now)| **before != server && **before != *now);
        let part = moved.count() as f64 / ENTRIES as f64;
        assert!(part <= 0.006, "without {server}: {part}");
    }
}

#[test]
fn draws_are_by_weight() {
    let weights = [1_u16, 2, 5, 100, 42];
    let members = members(0..5, |server| weights[usize::from(server)]);
    let table = table(Policy::LeastConnections, &members);
    let mut counts = [0; 5];
    for n in 1..=150_000_u64 {
        counts[usize::from(table.draw(mix(n)).expect("a server"))] += 1;
    }
    for (count, weight) in counts.iter().zip(weights) {
        let expected = f64::from(weight) * 1_000.0;
        // Five standard deviations of a binomial distribution.
        assert!(
            (f64::from(*count) - expected).abs() < 5.0 * expected.sqrt(),
            "{counts:?}"
        );
    }
}

/// The same by the longest way.
fn smooth(weights: &[u16]) -> Vec<Place> {
    let mut credits = vec![0_i64; weights.len()];
    let sum: u16 = weights.iter().sum();
    (0..sum)
        .map(|_| {
            credits
                .iter_mut()
                .zip(weights)
                .for_each(|(credit, weight)| *credit += i64::from(*weight));
            let most = credits.iter().max().expect("a server");
            let next = credits.iter().position(|credit| credit == most).expect("it is there");
            credits[next] -= i64::from(sum);
            next as Place
        })
        .collect()
}

#[test]
fn turns_are_those_of_smooth_weighted_round_robin() {
    for weights in [&[5, 1, 1][..], &[1; 9], &[3, 4, 3, 4, 9, 1, 256, 4], &[7], &[255, 256]] {
        let members = members(0..weights.len() as u16, |server| weights[usize::from(server)]);
        let table = table(Policy::RoundRobin, &members);
        let all = smooth(weights);
        // Weights with a common divisor have a shorter order, which is gone through as many times.
        let turns: Vec<Place> = table.turns().iter().copied().cycle().take(all.len()).collect();
        assert_eq!(turns, all, "{weights:?}");
    }
    let alike = members(0..3, |_| 6);
    assert_eq!(
        table(Policy::RoundRobin, &alike).turns(),
        [0, 1, 2],
        "equal weights have no common divisor left"
    );
}

#[test]
fn a_pool_of_nobody_has_nobody() {
    for policy in [
        Policy::RoundRobin,
        Policy::LeastConnections,
        Policy::ClientHash,
        Policy::Maglev,
    ] {
        let table = table(policy, &[]);
        assert!(table.turns().is_empty());
        assert_eq!(
            (
                table.draw(7),
                table.first_of(7, |_| true),
                table.first_of_all(7, |_| true)
            ),
            (None, None, None)
        );
    }
}
