//! Which server a pool picks: turns, open connections, clients; who is full, and who has failed too often.

mod choice;
mod drawn;
mod overdue;
mod shared;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use e2d2::time::Instant;
use proptest::prelude::*;

use super::Upstream;
use crate::base::ids::{PoolId, ServerId};
use crate::base::settings::{HashSettings, Member, Policy, PoolSettings, UpstreamServer, UpstreamSettings};

/// One pool with servers of these weights, picked by this policy and changed by `change`; what is left is as a configuration
/// has it that says no more.
fn config_with(weights: &[u16], policy: Policy, change: impl Fn(&mut UpstreamServer)) -> UpstreamSettings {
    let number = |i: usize| ServerId(u16::try_from(i).expect("few servers"));
    let members = weights.iter().enumerate().map(|(i, &weight)| Member {
        server: number(i),
        weight,
        backup: false,
    });
    let server = |i| {
        let mut server = UpstreamServer {
            address: address_of(number(i)),
            max_connections: None,
            connect_timeout: Duration::from_secs(10),
            eject_after: 3,
            eject_for: Duration::from_secs(5),
        };
        change(&mut server);
        server
    };
    UpstreamSettings {
        workers: 1,
        pools: vec![PoolSettings::new(
            (policy, HashSettings::default()),
            members.collect(),
            100,
            address_of,
        )],
        servers: (0..weights.len()).map(server).collect(),
    }
}

fn by(policy: Policy, weights: &[u16]) -> UpstreamSettings {
    config_with(weights, policy, |_| {})
}

fn config(weights: &[u16]) -> UpstreamSettings {
    by(Policy::RoundRobin, weights)
}

const POLICIES: [Policy; 4] = [
    Policy::RoundRobin,
    Policy::LeastConnections,
    Policy::ClientHash,
    Policy::Maglev,
];

/// The server's address as [`config_with`] gives it.
fn address_of(server: ServerId) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, server.0 as u8 + 2], 80))
}

const NOW: Instant = Instant::from_millis(1_000_000);
const POOL: PoolId = PoolId(0);

fn client(n: u32) -> IpAddr {
    IpAddr::V4((0xc000_0200 + n).into())
}

fn pick(upstream: &mut Upstream) -> Option<u16> {
    upstream.pick(POOL, client(1), NOW).map(|server| server.0)
}

fn picks(upstream: &mut Upstream, count: usize) -> Vec<u16> {
    (0..count).map(|_| pick(upstream).expect("a server")).collect()
}

#[test]
fn turns_are_smooth() {
    let mut upstream = Upstream::new(&config(&[5, 1, 1]), 0);
    assert_eq!(picks(&mut upstream, 14), [0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0]);
}

#[test]
fn every_server_gets_its_weight() {
    let weights = [256, 1, 17, 3];
    let sum: u16 = weights.iter().sum();
    let mut upstream = Upstream::new(&config(&weights), 0);
    for round in 0..3 {
        let picked = picks(&mut upstream, usize::from(sum));
        for (server, weight) in weights.iter().enumerate() {
            let turns = picked.iter().filter(|pick| usize::from(**pick) == server).count();
            assert_eq!(turns, usize::from(*weight), "server {server} in round {round}");
        }
    }
}

#[test]
fn workers_start_at_different_servers() {
    let config = config(&[1, 1, 1]);
    let first = |worker| pick(&mut Upstream::new(&config, worker)).expect("a server");
    assert_eq!([first(0), first(1), first(2), first(3)], [0, 1, 2, 0]);
}

#[test]
fn fail_over_tries_each_server_once() {
    for policy in POLICIES {
        let config = by(policy, &[1, 7, 1, 1]);
        let mut upstream = Upstream::new(&config, 0);
        assert_eq!(upstream.pick(PoolId(1), client(1), NOW), None, "no such pool");
        for n in 0..10 {
            let mut tried = Vec::new();
            while let Some(next) = upstream.next_after(POOL, client(n), NOW, &tried) {
                assert!(!tried.contains(&next));
                tried.push(next);
            }
            assert_eq!(tried.len(), 4);
        }
    }
}

#[test]
fn what_a_failed_server_would_have_got_is_shared_by_weight() {
    let mut upstream = Upstream::new(&config(&[1, 2, 1]), 0);
    let mut turns = [0; 3];
    for _ in 0..300 {
        let next = upstream.next_after(POOL, client(1), NOW, &[ServerId(0)]);
        turns[next.expect("a server").index()] += 1;
    }
    assert_eq!(turns, [0, 200, 100]);
}

#[test]
fn servers_are_known_by_number() {
    let config = config(&[1, 1]);
    assert_eq!(config.servers[1].address, "10.0.0.3:80".parse().unwrap());
    assert_eq!(config.servers[1].address, address_of(ServerId(1)));
    let upstream = Upstream::new(&config, 0);
    assert!(!upstream.has_room(ServerId(2)) && upstream.open_connections(ServerId(2)) == 0);
}

#[test]
fn least_connections_are_in_proportion_to_the_weights() {
    let config = by(Policy::LeastConnections, &[1, 2, 5]);
    let mut upstream = Upstream::new(&config, 0);
    for _ in 0..800 {
        let picked = ServerId(pick(&mut upstream).expect("a server"));
        upstream.note_open(picked, NOW);
    }
    assert_eq!(
        [0, 1, 2].map(|i| upstream.open_connections(ServerId(i))),
        [100, 200, 500]
    );
    // Whoever loses connections gets the next ones.
    for _ in 0..30 {
        upstream.note_close(ServerId(1), NOW);
    }
    for _ in 0..30 {
        assert_eq!(pick(&mut upstream), Some(1));
        upstream.note_open(ServerId(1), NOW);
    }
}

#[test]
fn among_equals_turns_are_taken() {
    let config = by(Policy::LeastConnections, &[1, 1, 1]);
    let mut upstream = Upstream::new(&config, 0);
    let mut turns = [0; 3];
    for _ in 0..30 {
        let picked = ServerId(pick(&mut upstream).expect("a server"));
        turns[picked.index()] += 1;
        upstream.note_open(picked, NOW);
        upstream.note_close(picked, NOW);
    }
    assert_eq!(turns, [10, 10, 10], "short connections do not all go to the first");
}

/// The server's address of each of ten thousand clients.
fn servers_of_clients(upstream: &mut Upstream) -> Vec<SocketAddr> {
    (0..10_000)
        .map(|n| {
            let picked = upstream.pick(POOL, client(n), NOW).expect("a server");
            address_of(picked)
        })
        .collect()
}

fn by_hash(weights: &[u16]) -> Upstream {
    Upstream::new(&by(Policy::ClientHash, weights), 0)
}

#[test]
fn a_client_keeps_its_server_and_all_cores_agree() {
    let config = by(Policy::ClientHash, &[1, 3, 2]);
    let first = servers_of_clients(&mut Upstream::new(&config, 0));
    let mut other = Upstream::new(&config, 7);
    assert_eq!(servers_of_clients(&mut other), first);
    assert_eq!(servers_of_clients(&mut other), first);
    // What other versions and engines choose for 192.0.2.1 to 192.0.2.8: this must never change.
    let known = [1, 2, 3, 4, 5, 6, 7, 8].map(|n| other.pick(POOL, client(n), NOW).expect("a server").0);
    assert_eq!(known, [2, 1, 2, 0, 2, 2, 1, 1]);
    let v6 = other.pick(POOL, "2001:db8::1".parse::<IpAddr>().unwrap(), NOW);
    assert_eq!(v6, other.pick(POOL, "2001:db8::1".parse::<IpAddr>().unwrap(), NOW));
}

#[test]
fn clients_are_spread_by_weight() {
    let servers = servers_of_clients(&mut by_hash(&[1, 3, 6]));
    for (server, expected) in [("10.0.0.2:80", 1000), ("10.0.0.3:80", 3000), ("10.0.0.4:80", 6000)] {
        let count = servers.iter().filter(|ip| ip.to_string() == server).count();
        // Four standard deviations of the binomial distribution with 10 000 clients are less than 200.
        assert!(count.abs_diff(expected) < 200, "{server}: {count}");
    }
}

#[test]
fn only_those_of_a_changed_server_move() {
    let three = servers_of_clients(&mut by_hash(&[2, 2, 2]));
    let four = servers_of_clients(&mut by_hash(&[2, 2, 2, 2]));
    let heavy = servers_of_clients(&mut by_hash(&[2, 2, 4]));
    let fourth: SocketAddr = "10.0.0.5:80".parse().unwrap();
    let third: SocketAddr = "10.0.0.4:80".parse().unwrap();
    let moved = |after: &[SocketAddr], to| {
        let moved = three.iter().zip(after).filter(|(before, after)| before != after);
        assert!(moved.clone().all(|(_, after)| *after == to));
        moved.count()
    };
    assert!(moved(&four, fourth).abs_diff(2500) < 200);
    // From a third to a half of all.
    assert!(moved(&heavy, third).abs_diff(1667) < 200);
    // Without its server a client goes to the one it would have if that server did not exist.
    let mut upstream = by_hash(&[2, 2, 2, 2]);
    for n in 0..1000 {
        let next = upstream
            .next_after(POOL, client(n), NOW, &[ServerId(3)])
            .expect("a server");
        assert_eq!(address_of(next), three[n as usize]);
    }
}

#[test]
fn a_full_server_is_passed_over() {
    for policy in POLICIES {
        let config = config_with(&[1, 9], policy, |server| server.max_connections = Some(3));
        let mut upstream = Upstream::new(&config, 0);
        for n in 0..6 {
            let picked = upstream.pick(POOL, client(n), NOW).expect("room");
            assert!(upstream.has_room(picked));
            upstream.note_open(picked, NOW);
        }
        assert_eq!([0, 1].map(|i| upstream.open_connections(ServerId(i))), [3, 3]);
        assert_eq!(pick(&mut upstream), None, "{policy:?}: all are full");
        upstream.note_close(ServerId(0), NOW);
        assert_eq!(pick(&mut upstream), Some(0));
    }
}

/// A pool of two whose first server has just failed as often as it takes.
fn with_one_ejected() -> Upstream {
    let config = config_with(&[1, 1], Policy::RoundRobin, |server| {
        server.eject_after = 2;
        server.eject_for = Duration::from_secs(10);
    });
    let mut upstream = Upstream::new(&config, 0);
    upstream.note_failure(ServerId(0), NOW);
    assert!(!upstream.is_ejected(ServerId(0), NOW), "once is not enough");
    upstream.note_failure(ServerId(0), NOW);
    assert!(upstream.is_ejected(ServerId(0), NOW));
    upstream
}

fn seconds(seconds: u64) -> Instant {
    NOW + Duration::from_secs(seconds)
}

fn at(upstream: &mut Upstream, now: Instant, count: usize) -> Vec<u16> {
    (0..count)
        .map(|_| upstream.pick(POOL, client(1), now).expect("a server").0)
        .collect()
}

#[test]
fn a_server_that_fails_is_passed_over_for_a_while_and_then_tried_once() {
    let mut upstream = with_one_ejected();
    assert_eq!(at(&mut upstream, NOW, 3), [1, 1, 1]);
    assert_eq!(at(&mut upstream, seconds(10) - Duration::from_nanos(1), 2), [1, 1]);
    let tried = at(&mut upstream, seconds(10), 4);
    assert_eq!(tried.iter().filter(|server| **server == 0).count(), 1, "{tried:?}");
    upstream.note_success(ServerId(0), NOW);
    let after = at(&mut upstream, seconds(10), 4);
    assert_eq!(after.iter().filter(|server| **server == 0).count(), 2, "{after:?}");
    upstream.note_failure(ServerId(0), seconds(11));
    assert!(!upstream.is_ejected(ServerId(0), seconds(11)), "the count began anew");
}

#[test]
fn the_time_doubles_up_to_a_limit() {
    let mut upstream = with_one_ejected();
    let mut now = NOW;
    let mut waits = Vec::new();
    for _ in 0..8 {
        let start = now;
        while upstream.is_ejected(ServerId(0), now) {
            now += Duration::from_secs(1);
        }
        waits.push((now - start).as_secs());
        while at(&mut upstream, now, 1) != [0] {}
        upstream.note_failure(ServerId(0), now);
        upstream.note_failure(ServerId(0), now);
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300, 300]);
}

#[test]
fn a_trial_that_ends_without_a_word_is_repeated() {
    let mut upstream = with_one_ejected();
    assert!(at(&mut upstream, seconds(10), 2).contains(&0));
    assert!(!at(&mut upstream, seconds(19), 2).contains(&0));
    assert!(
        at(&mut upstream, seconds(20), 2).contains(&0),
        "connect_timeout is 10 s"
    );
}

#[test]
fn the_last_one_is_never_ejected_and_the_others_are_asked_all_the_same_when_it_has_been_tried() {
    let mut upstream = with_one_ejected();
    for _ in 0..20 {
        upstream.note_failure(ServerId(1), NOW);
    }
    assert_eq!(at(&mut upstream, NOW, 2), [1, 1]);
    let told = upstream.health(ServerId(1)).expect("a server");
    assert_eq!((told.is_out, told.ejected_by_failure), (true, 1), "it is told of once");
    assert_eq!(
        upstream.next_after(POOL, client(1), NOW, &[ServerId(1)]),
        Some(ServerId(0))
    );
    upstream.note_success(ServerId(0), NOW);
    assert!(!upstream.is_ejected(ServerId(0), NOW));
}

#[test]
fn zero_is_never() {
    let config = config_with(&[1, 1], Policy::RoundRobin, |server| server.eject_after = 0);
    let mut upstream = Upstream::new(&config, 0);
    for _ in 0..1000 {
        upstream.note_failure(ServerId(0), NOW);
    }
    assert!(!upstream.is_ejected(ServerId(0), NOW));
}

/// What may happen to a pool of four servers.
#[derive(Clone, Debug)]
enum Happening {
    Pick(u32, Vec<u16>),
    Close(prop::sample::Index),
    Success(u16),
    Failure(u16),
    Wait(u64),
}

fn happenings() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => (0..50_u32, prop::collection::vec(0..4_u16, 0..4)).prop_map(|(n, tried)| Happening::Pick(n, tried)),
        2 => any::<prop::sample::Index>().prop_map(Happening::Close),
        1 => (0..4_u16).prop_map(Happening::Success),
        3 => (0..4_u16).prop_map(Happening::Failure),
        1 => (0..40_000_u64).prop_map(Happening::Wait),
    ]
}

/// The rules in prose, by the longest way: histories instead of states.
#[derive(Default)]
struct Model {
    open: [u32; 4],
    failures: [u32; 4],
    /// How often out, until when, and whether someone is trying since.
    out: [Option<(u32, Instant, bool)>; 4],
    /// It was the last one, and has answered no call since.
    kept: [bool; 4],
}

impl Model {
    fn has_room(&self, server: usize) -> bool {
        self.open[server] < 5
    }

    fn is_out(&self, server: usize, now: Instant) -> bool {
        self.out[server].is_some_and(|(_, until, _)| now < until)
    }

    fn fail(&mut self, server: usize, now: Instant) {
        let times = match self.out[server] {
            None => {
                self.failures[server] += 1;
                if self.failures[server] < 2 {
                    return;
                }
                self.failures[server] = 0;
                if self.out.iter().flatten().count() == 3 {
                    self.kept[server] = true;
                    return;
                }
                self.kept[server] = false;
                0
            }
            Some((_, _, false)) => return,
            Some((times, _, true)) => times,
        };
        let wait = (1_000_u64 << times.min(20)).min(300_000);
        self.out[server] = Some((times + 1, now + Duration::from_millis(wait), false));
    }

    fn succeed(&mut self, server: usize, now: Instant) {
        (self.failures[server], self.out[server]) = (0, None);
        if std::mem::take(&mut self.kept[server]) {
            let still_out = self.out.iter_mut().flatten().filter(|(_, until, _)| *until > now);
            still_out.for_each(|out| *out = (0, now, false));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn nobody_gets_a_full_server_or_one_that_is_out_while_others_are_left(
        policy in prop::sample::select(POLICIES.to_vec()),
        history in prop::collection::vec(happenings(), 1..200),
    ) {
        let config = config_with(&[1, 2, 3, 4], policy, |server| {
            server.max_connections = Some(5);
            server.eject_after = 2;
            server.eject_for = Duration::from_secs(1);
            server.connect_timeout = Duration::from_secs(5);
        });
        let mut upstream = Upstream::new(&config, 0);
        let mut model = Model::default();
        let mut open: Vec<usize> = Vec::new();
        let mut now = NOW;
        for happening in history {
            match happening {
                Happening::Pick(n, tried) => {
                    let tried: Vec<ServerId> = tried.into_iter().map(ServerId).collect();
                    let left = |server: &usize| !tried.contains(&ServerId(*server as u16)) && model.has_room(*server);
                    let with_room: Vec<usize> = (0..4).filter(left).collect();
                    let fit: Vec<usize> = with_room.iter().copied().filter(|s| !model.is_out(*s, now)).collect();
                    let allowed = if fit.is_empty() { with_room } else { fit };
                    let picked = upstream.next_after(POOL, client(n), now, &tried).map(ServerId::index);
                    prop_assert_eq!(picked.is_none(), allowed.is_empty());
                    let Some(picked) = picked else { continue };
                    prop_assert!(allowed.contains(&picked), "{} of {:?}", picked, allowed);
                    if let Some((times, until, _)) = model.out[picked] && until <= now {
                        model.out[picked] = Some((times, now + Duration::from_secs(5), true));
                    }
                    upstream.note_open(ServerId(picked as u16), NOW);
                    model.open[picked] += 1;
                    open.push(picked);
                }
                Happening::Close(which) if !open.is_empty() => {
                    let server = open.swap_remove(which.index(open.len()));
                    upstream.note_close(ServerId(server as u16), NOW);
                    model.open[server] -= 1;
                }
                Happening::Close(_) => (),
                Happening::Success(server) => {
                    upstream.note_success(ServerId(server), now);
                    model.succeed(usize::from(server), now);
                }
                Happening::Failure(server) => {
                    upstream.note_failure(ServerId(server), now);
                    model.fail(usize::from(server), now);
                }
                Happening::Wait(millis) => now += Duration::from_millis(millis),
            }
            for server in 0..4 {
                let id = ServerId(server as u16);
                prop_assert_eq!(upstream.open_connections(id), model.open[server]);
                prop_assert_eq!(upstream.is_ejected(id, now), model.is_out(server, now));
                prop_assert!(model.out.iter().flatten().count() < 4);
            }
        }
    }
}
