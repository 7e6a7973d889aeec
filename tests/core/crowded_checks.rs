//! More checks with content than can be made at once, most of them of servers that are silent: everybody has a turn.

use crate::checks::{SECOND, checked, millis};
use crate::content_checks::{Farm, GOOD, Lie};
use crate::harness::{Bench, CONFIG, nothing};
use proxyengine::checks::{MOST_AT_ONCE, check_line};
use splice::CheckEvent;
use splice::checks::{CheckEnd, CheckId};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

/// So many servers at each of the three addresses, all of them checked.
fn crowd(check: &str, counts: [usize; 3]) -> String {
    let server = |(ip, port): (usize, usize)| {
        let address = format!("10.1.0.{}:{}", 100 + ip, 10_000 + port);
        format!("{{ name = \"c{ip}-{port}\", address = \"{address}\" }},\n")
    };
    let all = (0..3).flat_map(|ip| (0..counts[ip]).map(move |port| (ip, port)));
    let servers: String = all.map(server).collect();
    let three: String = (0..3)
        .map(|n| format!("  {{ name = \"s{n}\", address = \"10.1.0.{}:8080\" }},\n", 100 + n))
        .collect();
    let text = checked(check).replace(&three, &servers);
    assert!(text.contains("c0-0") && text != CONFIG);
    text
}

/// How often each server was checked: a SYN that is repeated has the same number.
fn calls(farm: &Farm) -> HashMap<SocketAddr, usize> {
    let syns: HashSet<_> = farm.syns.iter().map(|(_, to, seq)| (*to, *seq)).collect();
    let mut calls = HashMap::new();
    for (to, _) in syns {
        *calls.entry(to).or_insert(0) += 1;
    }
    calls
}

#[test]
fn a_server_that_dies_beside_three_hundred_silent_ones_is_found() {
    let mut farm = Farm::new(&crowd("{ kind = \"http\" }", [300, 49, 1]));
    farm.lies = [Lie::Silent, Lie::Says(GOOD), Lie::Says(GOOD)];
    farm.run(Duration::from_secs(8));
    assert_eq!((0..300).filter(|server| farm.is_down(*server).is_none()).count(), 0);
    assert_eq!((300..350).filter(|server| farm.is_down(*server).is_some()).count(), 0);
    farm.syns.clear();
    farm.run(Duration::from_secs(10));
    let calls = calls(&farm);
    assert_eq!(calls.len(), 350, "each has its turn");
    for (server, calls) in calls {
        let least = if server.ip().to_string().ends_with("100") { 6 } else { 9 };
        assert!(calls >= least, "{server}: {calls}");
    }
    farm.lies[2] = Lie::Refusing;
    let start = farm.bench.now;
    while farm.is_down(349).is_none() {
        assert!(farm.bench.now - start < millis(1400), "it is not found");
        farm.run(millis(1));
    }
    // And one of the silent ones when it is back.
    (farm.lies[0], farm.may_be_late) = (Lie::Says(GOOD), true);
    farm.run(Duration::from_secs(5));
    assert_eq!((0..349).filter(|server| farm.is_down(*server).is_some()).count(), 0);
    farm.assert_all_returned();
}

#[test]
fn of_a_thousand_silent_servers_each_is_asked_in_its_turn() {
    let mut farm = Farm::new(&crowd("{ kind = \"http\" }", [1000, 0, 0]));
    farm.lies = [Lie::Silent; 3];
    // 256 at once, and 224 when they are down, for a second each.
    farm.run(Duration::from_secs(20));
    farm.syns.clear();
    farm.run(Duration::from_secs(20));
    let calls = calls(&farm);
    assert_eq!(calls.len(), 1000);
    assert!(calls.values().all(|calls| (4..=5).contains(calls)), "{calls:?}");
    assert!(calls.values().sum::<usize>() <= 20 * MOST_AT_ONCE);
    farm.assert_all_returned();
}

/// How long an answer usually takes says nothing of how many others are asked.
#[test]
fn the_time_that_a_check_waits_for_its_turn_is_not_the_servers() {
    let mut bench = Bench::with_config(&checked("{ kind = \"http\" }"));
    let (line, _thread) = check_line();
    bench.set_check_line(line);
    for _ in 0..30 {
        nothing(bench.wait(millis(900)));
        for (server, turn) in (0..3).flat_map(|server| (1..200).map(move |turn| (server, turn))) {
            let end = CheckEnd {
                result: Some(Ok(())),
                next_seq: 1,
                waited: millis(850),
            };
            bench.proxy.end_check(bench.now, CheckId { server, turn }, end);
        }
    }
    assert!(bench.proxy.checks()[CheckEvent::Passed] > 3);
    // Nobody reports the next ones: after the least timeout, and what is added to it, they are over.
    let before = bench.proxy.checks()[CheckEvent::NotMade];
    nothing(bench.wait(2 * SECOND + 3 * SECOND));
    assert!(bench.proxy.checks()[CheckEvent::NotMade] >= before + 3);
}
