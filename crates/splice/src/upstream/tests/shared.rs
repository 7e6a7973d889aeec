//! Several cores: what one sees counts for all, and how many servers they may eject together.

use super::{NOW, POOL, address_of, at, by, client, config, config_with, seconds, with_one_ejected};
use crate::base::ids::{PoolId, ServerId};
use crate::base::settings::{HashSettings, Member, Policy, PoolSettings, UpstreamSettings};
use crate::base::standby::Standby;
use crate::upstream::{CallEvent, Upstream};
use e2d2::time::Instant;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const A: ServerId = ServerId(0);
const B: ServerId = ServerId(1);

/// So many cores.
fn cores(settings: &UpstreamSettings, count: usize) -> Vec<Upstream> {
    let standby = Arc::<Standby>::default();
    let of = |core| Upstream::new(settings, core).with_standby(Arc::clone(&standby));
    (0..count).map(of).collect()
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn events(cores: &[Upstream], event: CallEvent) -> u64 {
    cores.iter().map(|core| core.events()[event]).sum()
}

#[test]
fn the_third_failure_of_the_engine_ejects_for_all_cores() {
    let mut cores = cores(&config(&[1, 1]), 4);
    for core in &mut cores[..3] {
        assert!(!core.is_ejected(A, NOW));
        core.note_failure(A, NOW);
    }
    for core in &mut cores {
        assert!(core.is_ejected(A, NOW));
        assert_eq!(core.pick(POOL, client(1), NOW), Some(B));
        let told = core.health(A).expect("a server");
        assert_eq!((told.is_out, told.since), (true, NOW));
    }
    assert_eq!(events(&cores, CallEvent::EjectedByFailure), 1);
}

#[test]
fn an_answer_to_any_core_begins_the_count_anew() {
    let mut cores = cores(&config(&[1, 1]), 3);
    cores[0].note_failure(A, NOW);
    cores[1].note_failure(A, NOW);
    cores[2].note_success(A, NOW);
    cores[0].note_failure(A, NOW);
    cores[1].note_failure(A, NOW);
    assert!(!cores[2].is_ejected(A, NOW));
    cores[2].note_failure(A, NOW);
    assert!(cores[0].is_ejected(A, NOW));
}

#[test]
fn one_call_of_one_core_tries_it_and_what_comes_of_that_is_for_all() {
    let mut cores = cores(&config(&[1, 1]), 4);
    (0..3).for_each(|core| cores[core].note_failure(A, NOW));
    let tries = |cores: &mut Vec<Upstream>, now| {
        let tried = |core: &mut Upstream| (0..2).any(|_| core.pick(POOL, client(1), now) == Some(A));
        cores.iter_mut().map(tried).collect::<Vec<_>>()
    };
    assert_eq!(tries(&mut cores, seconds(5)), [true, false, false, false]);
    // Older calls of others say nothing new, nor does their failing.
    cores[1].note_failure(A, seconds(5));
    cores[2].note_overdue(A, NOW, seconds(5));
    assert!(!cores[0].is_ejected(A, seconds(16)));
    cores[0].note_failure(A, seconds(6));
    assert!(cores[3].is_ejected(A, seconds(15)) && !cores[3].is_ejected(A, seconds(16)));
    cores[3].note_success(A, seconds(7));
    assert!(cores.iter().all(|core| !core.is_ejected(A, seconds(7))));
    assert_eq!(cores[0].health(A).expect("a server").since, seconds(7));
}

#[test]
fn five_overdue_calls_of_all_cores_together_eject() {
    let mut cores = cores(&config(&[1, 1]), 5);
    let began = |n: u64| NOW + millis(n);
    for (n, core) in (1..).zip(&mut cores[..4]) {
        core.note_overdue(A, began(n), NOW + millis(55));
    }
    // One answer to another core, after they began.
    cores[4].note_success(A, NOW + millis(56));
    cores[4].note_overdue(A, began(5), NOW + millis(57));
    assert!(!cores[4].is_ejected(A, NOW + millis(57)));
    for (n, core) in (57..).zip(&mut cores) {
        assert!(!core.is_ejected(A, NOW + millis(150)));
        core.note_overdue(A, began(n), NOW + millis(150));
    }
    assert!(cores.iter().all(|core| core.is_ejected(A, NOW + millis(349))));
    assert!(cores.iter().all(|core| !core.is_ejected(A, NOW + millis(350))));
    assert_eq!(events(&cores, CallEvent::EjectedBySilence), 1);
}

#[test]
fn an_answer_changes_nothing_where_nothing_stands() {
    let mut cores = cores(&config(&[1, 1]), 2);
    cores[0].note_success(A, NOW);
    let before = cores[0].standby().server(0).answered_at();
    for n in 0..7 {
        cores[1].note_success(A, NOW + millis(n));
    }
    assert_eq!(cores[0].standby().server(0).answered_at(), before);
    cores[1].note_success(A, NOW + millis(8));
    assert_eq!(cores[0].standby().server(0).answered_at(), NOW + millis(8));
}

#[test]
fn when_the_one_that_was_kept_answers_the_others_are_tried_at_once() {
    let mut upstream = with_one_ejected();
    (0..2).for_each(|_| upstream.note_failure(ServerId(1), NOW));
    upstream.note_success(ServerId(1), NOW);
    assert!(!upstream.health(ServerId(1)).expect("a server").is_out);
    let tried = at(&mut upstream, NOW, 4);
    assert_eq!(tried.iter().filter(|server| **server == 0).count(), 1, "{tried:?}");
    // Whose time begins anew.
    upstream.note_failure(ServerId(0), NOW);
    assert!(upstream.is_ejected(ServerId(0), seconds(9)) && !upstream.is_ejected(ServerId(0), seconds(10)));
}

/// Pools over twelve servers, most of which are in several, and the most percent that may be ejected in each.
fn overlapping() -> impl Strategy<Value = Vec<(Vec<u16>, u8)>> {
    let members = prop::collection::btree_set(0..12_u16, 1..10).prop_map(|all| all.into_iter().collect());
    prop::collection::vec((members, 1..=100_u8), 1..5)
}

fn settings(pools: &[(Vec<u16>, u8)]) -> UpstreamSettings {
    let member = |server: &u16| Member {
        server: ServerId(*server),
        weight: 1,
        backup: false,
    };
    let pool = |(members, eject_most): &(Vec<u16>, u8)| {
        let members = members.iter().map(member).collect();
        PoolSettings::new(
            (Policy::RoundRobin, HashSettings::default()),
            members,
            *eject_most,
            address_of,
        )
    };
    UpstreamSettings {
        workers: 3,
        pools: pools.iter().map(pool).collect(),
        servers: by(Policy::RoundRobin, &[1; 12]).servers,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Bar: whatever fails, no more than that share is ejected, counted after it, and nobody's last server.
    #[test]
    fn no_pattern_of_failures_ejects_more_than_may_be(
        pools in overlapping(),
        history in prop::collection::vec((0..3_usize, 0..12_u16, 0..100_u8, 0..4000_u64), 1..300),
    ) {
        let mut cores = cores(&settings(&pools), 3);
        let mut now = NOW;
        for (core, server, what, wait) in history {
            let id = ServerId(server);
            match what {
                0..=59 => cores[core].note_failure(id, now),
                60..=79 => cores[core].note_overdue(id, now, now + millis(60)),
                80..=85 => cores[core].note_success(id, now),
                _ => now += millis(wait),
            }
            for pool in 0..pools.len() {
                let picked = cores[core].pick(PoolId(pool as u16), client(1), now);
                prop_assert!(picked.is_some());
            }
            for (members, percent) in &pools {
                let state = |server: &u16| cores[0].standby().server(*server).word();
                let out = members.iter().filter(|server| state(server).is_ejected()).count();
                let share = (members.len() * usize::from(*percent) / 100).max(1);
                prop_assert!(out <= share, "{} of {} at {} %", out, members.len(), percent);
                prop_assert!(out < members.len(), "all of {}", members.len());
            }
        }
    }
}

#[test]
fn cores_that_eject_at_once_leave_one_server() {
    for _ in 0..200 {
        let settings = config_with(&[1, 1, 1], Policy::RoundRobin, |server| server.eject_after = 1);
        let mut cores = cores(&settings, 3);
        let standby = cores[0].standby.clone();
        std::thread::scope(|scope| {
            for (server, core) in (0..).zip(&mut cores) {
                scope.spawn(move || core.note_failure(ServerId(server), Instant::from_millis(5)));
            }
        });
        let out = (0..3)
            .filter(|server| standby.server(*server).word().is_ejected())
            .count();
        assert!(out <= 2, "{out}");
    }
}
