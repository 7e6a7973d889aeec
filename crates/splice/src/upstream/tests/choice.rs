//! Choices by keys and by the connections of all cores.

use std::sync::Arc;

use super::*;
use crate::base::limit::Limits;
use crate::base::server_state::CheckFailure;
use crate::base::settings::HashKey;
use crate::base::settings::Seeker;
use crate::base::standby::{Service, Standby};
use crate::upstream::health::Health;

fn hashed(policy: Policy, servers: usize, hash: HashSettings) -> UpstreamSettings {
    let mut settings = by(policy, &vec![1; servers]);
    let members = settings.pools[0].members.clone();
    settings.pools[0] = PoolSettings::new((policy, hash), members, 100, address_of);
    settings
}

const HASHES: [Policy; 2] = [Policy::ClientHash, Policy::Maglev];

#[test]
fn clients_of_one_prefix_have_one_server() {
    for policy in HASHES {
        let hash = HashSettings {
            prefix_v4: 24,
            prefix_v6: 56,
            ..HashSettings::default()
        };
        let mut upstream = Upstream::new(&hashed(policy, 50, hash), 0);
        let mut server = |client: &str| upstream.pick(POOL, client.parse::<IpAddr>().expect("an address"), NOW);
        assert_eq!(server("192.0.2.1"), server("192.0.2.255"));
        assert_eq!(server("2001:db8::1"), server("2001:db8:0:ff:1::2"));
        let others: Vec<_> = (0..20).map(|net| server(&format!("192.0.{net}.1"))).collect();
        assert!(
            others.iter().any(|other| *other != others[0]),
            "other prefixes have others"
        );
    }
}

#[test]
fn what_is_said_decides_and_who_says_nothing_goes_by_address() {
    for policy in HASHES {
        let hash = HashSettings {
            key: HashKey::Sni,
            ..HashSettings::default()
        };
        let mut upstream = Upstream::new(&hashed(policy, 50, hash), 0);
        assert_eq!(upstream.said_key(POOL), Some(HashKey::Sni));
        let mut server = |n, said| {
            upstream.pick(
                POOL,
                Seeker {
                    client: client(n),
                    said,
                },
                NOW,
            )
        };
        let of_name: Vec<_> = (0..20).map(|n| server(n, Some(0x1234_5678_9abc_def0))).collect();
        assert!(of_name.iter().all(|other| *other == of_name[0]));
        let of_address: Vec<_> = (0..20).map(|n| server(n, None)).collect();
        assert!(of_address.iter().any(|other| *other != of_address[0]));
    }
    let by_client = Upstream::new(&by(Policy::ClientHash, &[1, 1]), 0);
    assert_eq!(by_client.said_key(POOL), None);
}

#[test]
fn all_cores_have_the_same_second_choice_and_the_same_last() {
    for policy in HASHES {
        let settings = by(policy, &[1, 2, 3, 1, 2, 3]);
        let mut cores: Vec<_> = (0..3).map(|core| Upstream::new(&settings, core)).collect();
        for n in 0..200 {
            let mut tried = Vec::new();
            for _ in 0..6 {
                let mut next = cores
                    .iter_mut()
                    .map(|core| core.next_after(POOL, client(n), NOW, &tried));
                let first = next.next().flatten().expect("a server");
                assert!(next.all(|other| other == Some(first)), "{policy:?}: {tried:?}");
                tried.push(first);
            }
        }
    }
}

/// So many cores that know of each other's connections.
fn cores(settings: &UpstreamSettings, count: usize) -> Vec<Upstream> {
    let standby: Arc<Standby> = Arc::default();
    let of = |core| Upstream::new(settings, core).with_standby(Arc::clone(&standby));
    (0..count).map(of).collect()
}

/// The connections of all cores by server after each has opened so many, in turns; every round takes 100 µs.
fn filled(mut cores: Vec<Upstream>, each: u32, servers: u16, client_of: impl Fn(u32) -> u32) -> Vec<u32> {
    let mut now = NOW;
    for n in 0..each {
        now += Duration::from_micros(100);
        for (core, k) in cores.iter_mut().zip(0..) {
            core.publish_due(&Limits::default(), now);
            let picked = core.pick(POOL, client(client_of(n * 64 + k)), now).expect("a server");
            core.note_open(picked, now);
        }
    }
    let all = |server| cores.iter().map(|core| core.open_connections(ServerId(server))).sum();
    (0..servers).map(all).collect()
}

#[test]
fn the_fewest_connections_are_those_of_all_cores() {
    for count in [1, 8] {
        let settings = by(Policy::LeastConnections, &[1; 100]);
        let open = filled(cores(&settings, count), 24_000 / count as u32, 100, |n| n);
        let fullest = *open.iter().max().expect("servers");
        // 240 on average. Two draws of n balls are within log log n; what is not yet published adds to that.
        assert!(fullest <= 252, "{count} cores: {fullest} of 240");
    }
    let settings = by(Policy::LeastConnections, &[1, 1, 2]);
    let open = filled(cores(&settings, 8), 1_000, 3, |n| n);
    assert!(
        open[0].abs_diff(2_000) < 100 && open[2].abs_diff(4_000) < 100,
        "{open:?}"
    );
}

#[test]
fn nobody_has_more_than_the_factor_of_the_mean() {
    for policy in HASHES {
        let hash = HashSettings {
            balance_factor: Some(125),
            ..HashSettings::default()
        };
        let bounded = filled(cores(&hashed(policy, 20, hash), 2), 10_000, 20, |n| n % 40);
        let fullest = *bounded.iter().max().expect("servers");
        // 1 000 on average, of 40 clients on 20 servers; the mean is as old as 20 picks.
        assert!(fullest <= 1_265, "{policy:?}: {fullest}");
        let free = filled(cores(&by(policy, &[1; 20]), 2), 10_000, 20, |n| n % 40);
        assert!(
            *free.iter().max().expect("servers") > 1_500,
            "{policy:?}: without a bound"
        );
    }
}

/// Bar: the mean is that of those who share the load.
#[test]
fn the_mean_is_that_of_the_servers_that_may_be_asked() {
    for policy in HASHES {
        let hash = HashSettings {
            balance_factor: Some(125),
            ..HashSettings::default()
        };
        for out in [0, 10] {
            let cores = cores(&hashed(policy, 20, hash), 2);
            for server in 0..out {
                let standby = &cores[0].standby;
                match server % 3 {
                    0 => standby.set_server(server, Service::Drained, Instant::ZERO),
                    _ => check_fails(standby, server, true, NOW),
                }
            }
            // One key for all.
            let open = filled(cores, 5_000, 20, |_| 7);
            let mean = 10_000 / u32::from(20 - out);
            let fullest = *open.iter().max().expect("servers");
            assert!(open[..usize::from(out)].iter().all(|open| *open == 0));
            // The mean is as old as 20 picks of each core.
            assert!(fullest <= mean * 5 / 4 + 40, "{policy:?}, {out} out: {open:?}");
        }
    }
}

#[test]
fn who_is_counted_when_the_policy_changes_is_counted_from_then_on() {
    let mut settings = by(Policy::RoundRobin, &[1, 1]);
    assert_eq!(settings.limits(), [None, None]);
    settings.servers[1].max_connections = Some(7);
    settings.pools[0].policy = Policy::LeastConnections;
    assert_eq!(settings.limits(), [Some(u32::MAX), Some(7)]);
}

/// A pool of four, the last two of which are backups.
fn with_backups(policy: Policy, change: impl Fn(&mut PoolSettings)) -> (Upstream, Arc<Standby>) {
    let mut settings = by(policy, &[1; 4]);
    let mut members = settings.pools[0].members.clone();
    members[2..].iter_mut().for_each(|member| member.backup = true);
    settings.pools[0] = PoolSettings::new((policy, HashSettings::default()), members, 100, address_of);
    change(&mut settings.pools[0]);
    let standby: Arc<Standby> = Arc::default();
    (Upstream::new(&settings, 0).with_standby(Arc::clone(&standby)), standby)
}

/// The servers that so many clients get, sorted, each once.
fn reached(upstream: &mut Upstream, now: Instant) -> Vec<u16> {
    let mut servers: Vec<u16> = (0..200)
        .filter_map(|n| upstream.pick(POOL, client(n), now))
        .map(|id| id.0)
        .collect();
    servers.sort_unstable();
    servers.dedup();
    servers
}

fn check_fails(standby: &Standby, server: u16, fails: bool, now: Instant) {
    let result = if fails { Err(CheckFailure::Refused) } else { Ok(()) };
    standby.server(server).note_check(result, (1, 1), now);
}

#[test]
fn backups_are_asked_when_none_of_the_others_may_be() {
    for policy in POLICIES {
        let (mut upstream, standby) = with_backups(policy, |_| {});
        assert_eq!(reached(&mut upstream, NOW), [0, 1], "{policy:?}");
        check_fails(&standby, 0, true, NOW);
        assert_eq!(reached(&mut upstream, NOW), [1], "{policy:?}");
        check_fails(&standby, 1, true, NOW);
        assert_eq!(reached(&mut upstream, NOW), [2, 3], "{policy:?}");
        check_fails(&standby, 2, true, NOW);
        assert_eq!(reached(&mut upstream, NOW), [3], "{policy:?}");
        check_fails(&standby, 3, true, NOW);
        assert_eq!(
            reached(&mut upstream, NOW),
            [0, 1],
            "{policy:?}: when all are down, they are asked all the same"
        );
        check_fails(&standby, 0, false, NOW);
        assert_eq!(reached(&mut upstream, NOW), [0], "{policy:?}");
    }
}

#[test]
fn a_server_that_is_back_gets_its_weight_little_by_little() {
    for policy in [Policy::RoundRobin, Policy::ClientHash, Policy::Maglev] {
        let slow = |pool: &mut PoolSettings| pool.slow_start = Duration::from_secs(10);
        let (mut upstream, standby) = with_backups(policy, slow);
        check_fails(&standby, 0, true, NOW);
        check_fails(&standby, 0, false, NOW);
        let mut part = |after| {
            let picks = (0..4_000).map(|n| upstream.pick(POOL, client(n), NOW + Duration::from_millis(after)));
            picks.filter(|picked| *picked == Some(ServerId(0))).count() as f64 / 4_000.0
        };
        let parts = [1, 5_000, 10_000].map(&mut part);
        // A weight of a twentieth, a half, and one, beside one of one: whose turn is passed over leaves it to the next, and whose key
        // is leaves only that.
        let meant = match policy {
            Policy::RoundRobin => [0.05 / 1.05, 0.5 / 1.5, 0.5],
            _ => [0.025, 0.25, 0.5],
        };
        for (part, meant) in parts.into_iter().zip(meant) {
            assert!((part - meant).abs() < 0.04, "{policy:?}: {parts:?}");
        }
        check_fails(&standby, 1, true, NOW);
        assert_eq!(part(1), 1.0, "{policy:?}: the only one that is left has no slow start");
    }
}

/// A pool of so many servers, none of which is a backup.
fn with_panic(policy: Policy, servers: usize, below: u8) -> (Upstream, Arc<Standby>) {
    let mut settings = by(policy, &vec![1; servers]);
    settings.pools[0].panic_below = below;
    let standby: Arc<Standby> = Arc::default();
    (Upstream::new(&settings, 0).with_standby(Arc::clone(&standby)), standby)
}

#[test]
fn when_too_few_are_fit_all_are_asked() {
    for policy in POLICIES {
        let (mut upstream, standby) = with_panic(policy, 2, 60);
        check_fails(&standby, 0, true, NOW);
        // One of two is looked at each time.
        _ = reached(&mut upstream, NOW);
        assert_eq!(reached(&mut upstream, NOW), [0, 1], "{policy:?}");
        check_fails(&standby, 0, false, NOW);
        _ = reached(&mut upstream, NOW);
        check_fails(&standby, 1, true, NOW);
        standby.set_server(0, Service::Drained, Instant::ZERO);
        _ = reached(&mut upstream, NOW);
        assert_eq!(
            reached(&mut upstream, NOW),
            [1],
            "{policy:?}: who is drained is not asked"
        );
    }
}

#[test]
fn servers_that_are_drained_cause_no_panic() {
    for policy in POLICIES {
        let (mut upstream, standby) = with_panic(policy, 5, 50);
        (0..3).for_each(|server| standby.set_server(server, Service::Drained, Instant::ZERO));
        check_fails(&standby, 3, true, NOW);
        _ = reached(&mut upstream, NOW);
        // One of two is 50 per cent.
        assert_eq!(reached(&mut upstream, NOW), [4], "{policy:?}");
    }
}

#[test]
fn there_is_no_panic_while_a_backup_may_be_asked() {
    for policy in POLICIES {
        let (mut upstream, standby) = with_backups(policy, |pool| pool.panic_below = 60);
        check_fails(&standby, 0, true, NOW);
        _ = reached(&mut upstream, NOW);
        assert_eq!(reached(&mut upstream, NOW), [1], "{policy:?}");
        check_fails(&standby, 1, true, NOW);
        _ = reached(&mut upstream, NOW);
        assert_eq!(reached(&mut upstream, NOW), [2, 3], "{policy:?}");
        [2, 3]
            .into_iter()
            .for_each(|server| check_fails(&standby, server, true, NOW));
        assert_eq!(reached(&mut upstream, NOW), [0, 1], "{policy:?}");
    }
}

#[test]
fn new_servers_whose_probe_is_not_over_are_asked_before_those_that_are_out() {
    for policy in POLICIES {
        let (mut upstream, standby) = with_panic(policy, 3, 0);
        upstream.health[1] = Health::new(None).joining();
        upstream.note_room(1);
        assert_eq!(reached(&mut upstream, NOW), [0, 2], "{policy:?}");
        check_fails(&standby, 0, true, NOW);
        assert_eq!(reached(&mut upstream, NOW), [2], "{policy:?}");
        check_fails(&standby, 2, true, NOW);
        assert_eq!(reached(&mut upstream, NOW), [1], "{policy:?}");
        // That one as well, which is the last then.
        check_fails(&standby, 1, true, NOW);
        assert_eq!(reached(&mut upstream, NOW), [0, 2], "{policy:?}");
        let tried = [ServerId(0), ServerId(2)];
        assert_eq!(upstream.next_after(POOL, client(1), NOW, &tried), Some(ServerId(1)));
    }
}
