//! What is asked of DNS, and what becomes of answers: in virtual time, with name servers that are away, lie and come back.

mod messages;
mod world;

use std::collections::BTreeSet;
use std::time::Duration;

use domain::base::iana::Rcode;
use proxyengine::config::{Found, Question};
use proxyengine::names::Heard;

use world::*;

#[test]
fn an_answer_holds_as_long_as_it_says_and_a_new_one_is_used_at_once() {
    let mut world = World::new(vec![Does::Answers(web(30, &["10.0.0.1", "10.0.0.2"]))], &[host(WEB)]);
    assert!(!world.resolver.is_settled());
    world.run(SECOND);
    assert!(world.resolver.is_settled());
    assert_eq!(world.addresses(&host(WEB)), [ip("10.0.0.1"), ip("10.0.0.2")]);
    let asked = world.asked;
    world.servers = vec![Does::Answers(web(30, &["10.0.0.3", "10.0.0.2"]))];
    world.run(28 * SECOND);
    assert_eq!(
        world.addresses(&host(WEB)),
        [ip("10.0.0.1"), ip("10.0.0.2")],
        "it still holds"
    );
    world.run(2 * SECOND);
    assert_eq!(world.addresses(&host(WEB)), [ip("10.0.0.2"), ip("10.0.0.3")]);
    assert!(
        world.asked - asked <= 8,
        "it is asked for when it is over: {}",
        world.asked - asked
    );
}

#[test]
fn times_are_within_a_second_and_an_hour() {
    for (ttl, every) in [(0, 1), (1, 1), (60, 60), (3600, 3600), (u32::MAX >> 1, 3600)] {
        let mut zone = web(ttl, &["10.0.0.1"]);
        zone.extend(web(ttl, &["2001:db8::1"]));
        let mut world = World::new(vec![Does::Answers(zone)], &[host(WEB)]);
        world.run(Duration::from_millis(500));
        let before = world.asked;
        world.run(Duration::from_secs(10 * every));
        assert_eq!(world.asked - before, 20, "{ttl}: ten times both families");
    }
}

#[test]
fn name_servers_that_are_away_for_an_hour_take_no_server_away() {
    let zone = web(5, &["10.0.0.1", "2001:db8::1"]);
    let away = [
        Does::IsAway,
        Does::IsGone,
        Does::Refuses(Rcode::SERVFAIL),
        Does::Refuses(Rcode::REFUSED),
        Does::Refuses(Rcode::NXDOMAIN),
        Does::Answers(Vec::new()),
        Does::Answers(web(5, &["127.0.0.1", "0.0.0.0", "224.0.0.1", "::1"])),
        Does::Lies(zone.clone(), |message| message[0] ^= 1),
        Does::Lies(zone.clone(), |message| message[13] ^= 1),
        Does::Lies(zone.clone(), |message| message[2] &= 0x7f),
        Does::Lies(zone.clone(), |message| message.truncate(message.len() - 3)),
        Does::Lies(zone.clone(), Vec::clear),
    ];
    for (place, away) in away.into_iter().enumerate() {
        let mut world = World::new(vec![Does::Answers(zone.clone())], &[host(WEB)]);
        world.run(SECOND);
        let (before, asked) = (world.addresses(&host(WEB)), world.asked);
        assert_eq!(before.len(), 2);
        world.servers = vec![away];
        world.run(3600 * SECOND);
        assert_eq!(world.addresses(&host(WEB)), before, "{place}");
        assert!(world.failures() > 100, "{place}: {}", world.failures());
        assert!(
            world.asked - asked < 10_000,
            "{place}: {} questions in an hour",
            world.asked - asked
        );
        world.servers = vec![Does::Answers(web(5, &["10.0.0.9"]))];
        world.run(10 * SECOND);
        assert_eq!(world.addresses(&host(WEB)), [ip("10.0.0.9")], "{place}: it is back");
    }
}

#[test]
fn a_stranger_is_counted_and_the_answer_is_waited_for() {
    let mut world = World::new(vec![Does::IsAway], &[host(WEB)]);
    let asks = world.resolver.poll(world.now);
    let zone = web(60, &["10.0.0.1", "2001:db8::1"]);
    for ask in &asks {
        let right = answer(&ask.message, &zone, Rcode::NOERROR);
        let mut wrong = answer(&ask.message, &web(60, &["10.6.6.6"]), Rcode::NOERROR);
        wrong[1] ^= 1;
        assert_eq!(world.resolver.hear(ask.token, Heard::Message(&wrong), world.now), None);
        assert_eq!(
            world.resolver.hear(ask.token, Heard::Message(&ask.message), world.now),
            None,
            "a question"
        );
        assert!(world.resolver.is_waiting(ask.token));
        assert_eq!(world.resolver.hear(ask.token, Heard::Message(&right), world.now), None);
        assert!(!world.resolver.is_waiting(ask.token));
        // What comes twice is heard once.
        assert_eq!(world.resolver.hear(ask.token, Heard::Message(&wrong), world.now), None);
    }
    assert_eq!((asks.len(), world.refused()), (2, 4));
    assert_eq!(world.addresses(&host(WEB)), [ip("10.0.0.1"), ip("2001:db8::1")]);
}

#[test]
fn the_second_name_server_answers_for_the_first_and_is_asked_first_from_then_on() {
    let zone = web(10, &["10.0.0.1", "2001:db8::1"]);
    let mut world = World::new(vec![Does::IsAway, Does::Answers(zone)], &[host(WEB)]);
    world.run(Duration::from_millis(900));
    assert!(world.addresses(&host(WEB)).is_empty());
    world.run(Duration::from_millis(200));
    assert_eq!(world.addresses(&host(WEB)).len(), 2);
    world.servers[1] = Does::Answers(web(10, &["10.0.0.2", "2001:db8::1"]));
    world.run(10 * SECOND);
    assert_eq!(
        world.addresses(&host(WEB))[0],
        ip("10.0.0.2"),
        "no time is lost with the first"
    );
    assert_eq!(world.failures(), 0);
}

#[test]
fn what_is_too_long_for_a_datagram_comes_over_tcp() {
    let addresses: Vec<String> = (1..=200).map(|last| format!("10.0.0.{last}")).collect();
    let zone = web(60, &addresses.iter().map(String::as_str).collect::<Vec<_>>());
    let mut world = World::new(vec![Does::Truncates(zone)], &[host(WEB)]);
    world.run(SECOND);
    assert_eq!(world.addresses(&host(WEB)).len(), 200);
    let many: Vec<String> = (0..300).map(|n| format!("10.0.{}.{}", n / 200, n % 200 + 1)).collect();
    let zone = web(60, &many.iter().map(String::as_str).collect::<Vec<_>>());
    let mut world = World::new(vec![Does::Answers(zone)], &[host(WEB)]);
    world.run(SECOND);
    assert!(world.addresses(&host(WEB)).is_empty(), "a pool has no 300 servers");
    assert!(world.failures() > 0);
}

#[test]
fn a_family_that_fails_keeps_its_servers_and_one_that_is_withdrawn_goes() {
    let both = web(5, &["10.0.0.1", "2001:db8::1"]);
    let mut world = World::new(vec![Does::Answers(both)], &[host(WEB)]);
    world.run(SECOND);
    // Questions for AAAA records go unanswered: the bytes behind the name.
    let only_v4: fn(&mut Vec<u8>) = |message| {
        if message[12 + WEB.len() + 2 + 1] == 28 {
            message[3] = message[3] & 0xf0 | 2;
        }
    };
    world.servers = vec![Does::Lies(web(5, &["10.0.0.2"]), only_v4)];
    world.run(60 * SECOND);
    assert_eq!(world.addresses(&host(WEB)), [ip("10.0.0.2"), ip("2001:db8::1")]);
    world.servers = vec![Does::Answers(web(5, &["10.0.0.2"]))];
    world.run(10 * SECOND);
    assert_eq!(world.addresses(&host(WEB)), [ip("10.0.0.2")]);
    world.servers = vec![Does::Answers(web(5, &["2001:db8::2"]))];
    world.run(70 * SECOND);
    assert_eq!(
        world.addresses(&host(WEB)),
        [ip("2001:db8::2")],
        "from one family to the other"
    );
}

#[test]
fn a_service_is_the_addresses_of_its_targets() {
    let zone = ldap(
        &[
            (0, 3, 389, "a.example.net"),
            (0, 1, 1389, "b.example.net"),
            (9, 0, 389, "c.example.net"),
            (0, 1, 0, "."),
        ],
        &[
            ("a.example.net", "10.0.0.1"),
            ("b.example.net", "10.0.0.2"),
            ("b.example.net", "2001:db8::2"),
            ("c.example.net", "10.0.0.3"),
        ],
    );
    let mut world = World::new(vec![Does::Answers(zone.clone())], &[service(LDAP)]);
    world.run(SECOND);
    let found: Vec<Found> = world.resolver.answers()[&service(LDAP)].iter().cloned().collect();
    let parts: Vec<_> = found
        .iter()
        .map(|found| (found.priority, found.weight, found.port, found.ip))
        .collect();
    assert_eq!(
        parts,
        [
            (0, 3, 389, ip("10.0.0.1")),
            (0, 1, 1389, ip("10.0.0.2")),
            (0, 1, 1389, ip("2001:db8::2")),
            (9, 0, 389, ip("10.0.0.3")),
        ]
    );
    // The order in which they come says nothing.
    let before = world.resolver.answers().clone();
    world.servers = vec![Does::Answers(zone.into_iter().rev().collect())];
    world.run(60 * SECOND);
    assert_eq!(*world.resolver.answers(), before);
}

#[test]
fn a_service_changes_when_its_new_targets_are_known() {
    let old = ldap(&[(0, 1, 389, "a.example.net")], &[("a.example.net", "10.0.0.1")]);
    let mut world = World::new(vec![Does::Answers(old.clone())], &[service(LDAP)]);
    world.run(SECOND);
    assert_eq!(world.addresses(&service(LDAP)), [ip("10.0.0.1")]);
    // A target without an address, or that nobody answers for, is no reason to lose the others.
    world.servers = vec![Does::Answers(ldap(&[(0, 1, 389, "b.example.net")], &[]))];
    world.run(30 * SECOND);
    assert_eq!(world.addresses(&service(LDAP)), [ip("10.0.0.1")]);
    let new = ldap(&[(0, 1, 389, "b.example.net")], &[("b.example.net", "10.0.0.2")]);
    world.servers = vec![Does::Answers(new)];
    world.run(20 * SECOND);
    assert_eq!(world.addresses(&service(LDAP)), [ip("10.0.0.2")]);
    world.servers = vec![Does::Answers(old)];
    world.run(11 * SECOND);
    assert_eq!(world.addresses(&service(LDAP)), [ip("10.0.0.1")]);
}

#[test]
fn what_was_known_before_the_start_holds_until_there_is_an_answer() {
    let mut world = World::new(
        vec![Does::Answers(
            [
                web(9, &["10.0.0.1", "2001:db8::1"]),
                ldap(&[(0, 1, 389, "a.example.net")], &[("a.example.net", "10.0.0.2")]),
            ]
            .concat(),
        )],
        &[host(WEB), service(LDAP)],
    );
    world.run(SECOND);
    let known = world.resolver.answers().clone();
    assert_eq!(known.len(), 2);
    let mut world = World::knowing(
        known.clone(),
        vec![Does::IsAway],
        &[host(WEB), service(LDAP), host("new.example.net")],
    );
    assert!(!world.resolver.is_settled());
    world.run(3600 * SECOND);
    assert!(world.resolver.is_settled());
    assert_eq!(*world.resolver.answers(), known);
    world.servers = vec![Does::Answers(web(9, &["10.0.0.7"]))];
    world.run(20 * SECOND);
    assert_eq!(world.addresses(&host(WEB)), [ip("10.0.0.7")]);
    assert_eq!(
        world.addresses(&service(LDAP)),
        [ip("10.0.0.2")],
        "of which there is no answer"
    );
}

/// A target that has moved since the start, leaves the service and is named again, is where it was answered to be last.
#[test]
fn a_target_that_comes_back_is_not_where_it_was_before_the_start() {
    let (a, b) = ((0, 1, 389, "a.example.net"), (0, 1, 389, "b.example.net"));
    let zone = |targets: &[_], b: &'static str| {
        Does::Answers(ldap(targets, &[("a.example.net", "10.0.0.1"), ("b.example.net", b)]))
    };
    let mut world = World::new(vec![zone(&[a, b], "10.0.0.2")], &[service(LDAP)]);
    world.run(SECOND);
    let known = world.resolver.answers().clone();
    let mut world = World::knowing(known, vec![zone(&[a, b], "10.0.0.9")], &[service(LDAP)]);
    world.run(30 * SECOND);
    assert_eq!(world.addresses(&service(LDAP)), [ip("10.0.0.1"), ip("10.0.0.9")]);
    world.servers = vec![zone(&[a], "10.0.0.9")];
    world.run(30 * SECOND);
    assert_eq!(world.addresses(&service(LDAP)), [ip("10.0.0.1")]);
    world.servers = vec![zone(&[a, b], "10.0.0.9")];
    for _ in 0..3_000 {
        world.run(SECOND / 100);
        let addresses = world.addresses(&service(LDAP));
        assert!(!addresses.contains(&ip("10.0.0.2")), "{addresses:?}");
    }
    assert_eq!(world.addresses(&service(LDAP)), [ip("10.0.0.1"), ip("10.0.0.9")]);
}

#[test]
fn questions_come_and_go_and_many_are_asked_a_few_at_a_time() {
    let names: Vec<String> = (0..500).map(|number| format!("h{number}.example.net")).collect();
    let questions: BTreeSet<Question> = names.iter().map(|name| host(name)).collect();
    let mut world = World::new(vec![Does::IsAway], &[host(WEB)]);
    world
        .resolver
        .set_questions(dns(), vec![FIRST], questions.clone(), world.now);
    assert_eq!(world.resolver.poll(world.now).len(), 64);
    world.run(60 * SECOND);
    assert!(world.resolver.is_settled());
    assert_eq!(world.resolver.report(world.now).len(), 500);
    world
        .resolver
        .set_questions(dns(), vec![FIRST], BTreeSet::new(), world.now);
    assert!(world.resolver.next_due().is_none() && world.resolver.report(world.now).is_empty());
    assert!(world.now > world.began);
    // Without a name server nothing is asked, and nothing turns in a circle.
    world.resolver.set_questions(dns(), Vec::new(), questions, world.now);
    assert!(world.resolver.poll(world.now).is_empty());
}
