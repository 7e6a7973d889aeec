//! Checks while the configuration changes: what is known of servers stays, and what begins or ends does so at once.

use crate::checks::{DEFAULT, Farm, Mood, SECOND, checked, millis};
use crate::harness::{CONFIG, only, spliced};
use crate::probes::{ABLE, number, syn_ack};
use e2d2::time::Instant;
use splice::CheckEvent;
use std::collections::HashSet;
use std::time::Duration;

fn reload(farm: &mut Farm, text: &str) {
    farm.bench.reload(text, |_| None);
}

#[test]
fn a_thousand_reloads_in_the_middle_of_checks_change_nothing_of_them() {
    let text = checked(DEFAULT);
    let heavy = text.replacen("\"10.1.0.102:8080\"", "\"10.1.0.102:8080\", weight = 2", 1);
    let seen = |reloads: bool| {
        let mut farm = Farm::new(&text);
        farm.far = millis(4);
        for turn in 0..1000 {
            farm.moods[0] = if turn % 500 < 250 { Mood::Alive } else { Mood::Silent };
            farm.run(millis(11));
            if reloads {
                reload(&mut farm, if turn % 2 == 0 { &heavy } else { &text });
            }
        }
        let counts: Vec<u64> = farm.bench.proxy.checks().iter().map(|(_, count)| count).collect();
        let down = farm.bench.standby.server(0).down();
        farm.assert_all_returned();
        (farm.syns, counts, down)
    };
    let without = seen(false);
    assert!(without.1.iter().sum::<u64>() > 60);
    assert_eq!(seen(true), without);
}

#[test]
fn checks_begin_and_end_with_a_reload() {
    let mut farm = Farm::new(CONFIG);
    farm.run(Duration::from_secs(3));
    assert!(farm.syns.is_empty());
    reload(&mut farm, &checked(DEFAULT));
    farm.run(Duration::from_secs(3));
    assert_eq!(farm.syns.len(), 9);
    farm.moods[0] = Mood::Silent;
    farm.time_until(true);
    // Another pace for the same servers: it is not asked anew whether they live.
    reload(&mut farm, &checked("{ kind = \"tcp\", interval = \"10s\" }"));
    assert!(farm.is_down(0));
    farm.run(SECOND);
    let before = farm.syns.len();
    farm.run(Duration::from_secs(20));
    assert_eq!(farm.syns.len() - before, 6);
    // In the middle of one.
    while farm.bench.proxy.usage().probes == 0 {
        farm.step();
    }
    reload(&mut farm, CONFIG);
    farm.run(SECOND);
    let before = farm.syns.len();
    farm.run(Duration::from_secs(20));
    assert_eq!(farm.syns.len(), before);
    farm.assert_all_returned();
}

#[test]
fn a_server_that_is_gone_is_checked_no_more_and_one_that_comes_is() {
    let all = checked(DEFAULT);
    let without = all.replacen("  { name = \"s1\", address = \"10.1.0.101:8080\" },\n", "", 1);
    let mut farm = Farm::new(&all);
    farm.moods[1] = Mood::Silent;
    while farm.syns_to(1).is_empty() {
        farm.step();
    }
    reload(&mut farm, &without);
    assert!(farm.bench.forget_past(|_| None), "in the middle of its check");
    farm.bench.standby.forget_server(1, Instant::ZERO);
    farm.syns.clear();
    farm.run(Duration::from_secs(3));
    assert!(farm.syns_to(1).is_empty());
    farm.moods[1] = Mood::Alive;
    reload(&mut farm, &all);
    farm.run(Duration::from_secs(3));
    assert_eq!(farm.syns_to(1).len(), 3);
    assert!(!farm.is_down(1));
    farm.assert_all_returned();
}

/// Servers at other ports of s0's address, whose checks go to s0's own port, or to one at which there is no server.
fn with_others(text: &str, port: u16) -> String {
    let others: String = (1..=3)
        .map(|n| format!("{{ name = \"o{n}\", address = \"10.1.0.100:900{n}\" }}, "))
        .collect();
    let check = format!("{{ kind = \"tcp\", port = {port}, interval = \"100ms\" }}");
    let ports = "local_ports = \"5000-5015\"\n";
    let text = text.replacen("name = \"all\"\n", &format!("name = \"all\"\n{ports}"), 1);
    format!("{text}\n[[pool]]\nname = \"others\"\n{ports}check = {check}\nservers = [{others}]\n")
}

#[test]
fn checks_at_anothers_port_do_not_use_the_ports_of_its_connections() {
    let mut farm = Farm::new(&with_others(CONFIG, 8080));
    let mut open: Vec<u16> = (0..8)
        .map(|n| spliced(&mut farm.bench, 40_000 + n).1.proxy.address.port())
        .collect();
    for _ in 0..2_000 {
        for syn in farm.bench.wait(millis(1)) {
            assert_eq!((number(&syn), syn.to.address.port()), (0, 8080));
            assert!(
                !open.contains(&syn.from.address.port()),
                "the check has a connection's port"
            );
            only(farm.bench.receive(&syn_ack(&syn, ABLE)));
        }
    }
    assert!(farm.bench.proxy.checks()[CheckEvent::Passed] > 50);
    open.sort_unstable();
    open.dedup();
    assert_eq!(open.len(), 8);
    farm.bench.finish();
    farm.bench.assert_all_returned();
}

#[test]
fn checks_at_a_port_that_is_no_servers_do_not_share_one_of_ours() {
    let mut farm = Farm::new(&with_others(CONFIG, 9999));
    let mut ports = HashSet::new();
    for _ in 0..90 {
        for syn in farm.bench.wait(millis(1)) {
            assert_eq!(syn.to.address.port(), 9999);
            assert!(ports.insert(syn.from.address.port()), "two checks with one port");
        }
    }
    assert_eq!(ports.len(), 3);
    farm.assert_all_returned();
}

#[test]
fn a_check_ends_with_the_server_whose_ports_it_uses() {
    let (with, without) = (
        with_others(CONFIG, 8080),
        with_others(
            &CONFIG.replacen("  { name = \"s0\", address = \"10.1.0.100:8080\" },\n", "", 1),
            8080,
        ),
    );
    let mut farm = Farm::new(&with);
    farm.moods[0] = Mood::Silent;
    for text in [&without, &with, &without] {
        while farm.bench.proxy.usage().probes < 2 {
            farm.step();
        }
        reload(&mut farm, text);
        farm.bench.forget_past(|_| None);
    }
    farm.moods[0] = Mood::Alive;
    farm.run(SECOND);
    assert!(farm.bench.proxy.checks()[CheckEvent::Passed] > 20);
    farm.assert_all_returned();
}
