use std::time::Duration;

use e2d2::port::PortId;
use e2d2::time::Instant;
use proxyengine::neighbour::{MAX_BACKOFF, NeighbourEvent as Event, REACHABLE_TIME, SharedNeighbours};

use crate::frames::{Arp, Icmp6};
use crate::world::{LEFT, OTHER_MAC, OUR_MAC, OUR_RIGHT_MAC, RIGHT, SERVER_MAC, World, topology};

fn question() -> Vec<u8> {
    Arp::request(OUR_MAC, "10.0.0.1", "10.0.0.20").bytes()
}

fn probe() -> Vec<u8> {
    Arp {
        dst: SERVER_MAC,
        ..Arp::request(OUR_MAC, "10.0.0.1", "10.0.0.20")
    }
    .bytes()
}

fn reply() -> Vec<u8> {
    Arp::reply(SERVER_MAC, "10.0.0.20", OUR_MAC, "10.0.0.1").bytes()
}

/// When frames equal to `wanted` were sent, in ms.
fn times(sent: &[(u64, PortId, Vec<u8>)], wanted: &[u8]) -> Vec<u64> {
    sent.iter()
        .filter(|(_, _, frame)| frame == wanted)
        .map(|(at, _, _)| *at)
        .collect()
}

#[test]
fn every_next_hop_without_a_fixed_mac_is_asked_for_at_start() {
    let mut world = World::new();
    let sent: Vec<_> = world.poll();
    assert!(sent.contains(&(LEFT, question())));
    assert!(sent.contains(&(
        RIGHT,
        Arp::request(OUR_RIGHT_MAC, "192.168.7.1", "192.168.7.254").bytes()
    )));
    assert!(sent.contains(&(
        LEFT,
        Icmp6::solicitation(OUR_MAC, "2001:db8::1", "2001:db8::20").bytes()
    )));
    assert!(
        sent.iter().all(|(_, frame)| !frame.ends_with(&[10, 0, 0, 30])),
        "the fixed one is not asked for"
    );
    assert_eq!(world.station.counters().events[Event::Asked], 3);
}

#[test]
fn a_silent_neighbour_is_asked_at_doubling_intervals_up_to_a_minute() {
    let mut world = World::new();
    let sent = world.run_until(Instant::from_millis(250_000));
    assert_eq!(
        times(&sent, &question()),
        [
            0, 1_000, 3_000, 7_000, 15_000, 31_000, 63_000, 123_000, 183_000, 243_000
        ]
    );
    assert_eq!(MAX_BACKOFF, Duration::from_secs(60));
}

#[test]
fn a_waiting_packet_makes_it_ask_at_once_but_not_twice_a_second() {
    let mut world = World::new();
    world.run_until(Instant::from_millis(20_000));
    let hop = world.hop(LEFT, "10.0.0.20");
    let mut asked = 0;
    for _ in 0..1000 {
        world.shared.request(hop);
        asked += world.poll().iter().filter(|(_, frame)| *frame == question()).count();
        world.pass(Duration::from_millis(10));
    }
    assert!((10..=11).contains(&asked), "{asked} questions in 10 s");
}

#[test]
fn requests_for_a_resolved_neighbour_send_nothing() {
    let mut world = World::new();
    world.poll();
    world.used(LEFT, &reply());
    world.shared.request(world.hop(LEFT, "10.0.0.20"));
    assert_eq!(world.poll(), vec![]);
}

#[test]
fn a_reachable_neighbour_is_probed_by_unicast_within_the_reachable_time() {
    let mut world = World::new();
    world.poll();
    world.used(LEFT, &reply());
    let mut sent = Vec::new();
    while times(&sent, &probe()).is_empty() {
        let next = world.station.next_deadline();
        assert!(next <= Instant::ZERO + REACHABLE_TIME * 3 / 2, "{next:?}");
        sent.extend(world.run_until(next));
    }
    assert!(world.now >= Instant::ZERO + REACHABLE_TIME / 2, "{:?}", world.now);
    assert_eq!(times(&sent, &question()), Vec::<u64>::new());
    assert_eq!(world.mac_of("10.0.0.20"), Some(SERVER_MAC), "packets may still use it");
}

#[test]
fn a_neighbour_that_answers_probes_is_never_interrupted() {
    let mut world = World::new();
    world.poll();
    world.used(LEFT, &reply());
    let mut probed = 0;
    for second in 1..600 {
        let sent = world.run_until(Instant::from_millis(second * 1000));
        assert_eq!(times(&sent, &question()), Vec::<u64>::new());
        if !times(&sent, &probe()).is_empty() {
            probed += 1;
            world.used(LEFT, &reply());
        }
        assert!(world.mac_of("10.0.0.20").is_some());
    }
    assert!((13..=40).contains(&probed), "{probed} probes in 600 s");
}

#[test]
fn the_refresh_is_spread_over_time() {
    let mut world = World::new();
    world.poll();
    let mut intervals = Vec::new();
    for _ in 0..8 {
        world.used(LEFT, &reply());
        let start = world.now;
        let due = loop {
            world.poll();
            let asked = world.run_until(world.station.next_deadline());
            if let Some(at) = times(&asked, &probe()).first() {
                break *at;
            }
        };
        intervals.push(due - start.as_millis());
    }
    assert!(
        intervals.iter().all(|ms| (15_000..=45_000).contains(ms)),
        "{intervals:?}"
    );
    intervals.sort_unstable();
    intervals.dedup();
    assert!(intervals.len() > 4, "{intervals:?}");
}

#[test]
fn a_neighbour_that_stops_answering_is_forgotten_after_three_probes() {
    let mut world = World::new();
    world.poll();
    world.used(LEFT, &reply());
    let mut sent = Vec::new();
    while world.mac_of("10.0.0.20").is_some() {
        sent.extend(world.run_until(world.station.next_deadline()));
        assert!(world.now < Instant::from_millis(120_000));
    }
    let probes = times(&sent, &probe());
    assert_eq!(probes.len(), 3);
    assert_eq!(probes[2] - probes[0], 2_000);
    assert_eq!(times(&sent, &question()), [probes[2] + 1_000], "then everyone is asked");
    assert_eq!(world.station.counters().events[Event::Lost], 1);
    world.used(LEFT, &reply());
    assert!(world.mac_of("10.0.0.20").is_some(), "and an answer brings it back");
}

#[test]
fn a_mac_that_was_not_asked_for_is_verified_at_once() {
    let mut world = World::new();
    world.poll();
    world.used(LEFT, &reply());
    world.run_until(Instant::from_millis(5_000));
    let claim = Arp::request(OTHER_MAC, "10.0.0.20", "10.0.0.20").bytes();
    assert_eq!(world.used(LEFT, &claim), Event::MacChanged);
    let verification = Arp {
        dst: OTHER_MAC,
        ..Arp::request(OUR_MAC, "10.0.0.1", "10.0.0.20")
    }
    .bytes();
    assert_eq!(world.poll(), vec![(LEFT, verification)]);
}

#[test]
fn a_claim_without_override_makes_it_ask_the_known_mac() {
    let mut world = World::new();
    world.poll();
    world.used(
        LEFT,
        &Icmp6::advertisement(SERVER_MAC, "2001:db8::20", OUR_MAC, "2001:db8::1", 0x60).bytes(),
    );
    world.run_until(Instant::from_millis(5_000));
    let modest = Icmp6::advertisement(OTHER_MAC, "2001:db8::20", OUR_MAC, "2001:db8::1", 0x40);
    assert_eq!(world.used(LEFT, &modest.bytes()), Event::Doubted);
    let probe = Icmp6 {
        dst_mac: SERVER_MAC,
        dst: "2001:db8::20".parse().expect("address"),
        ..Icmp6::solicitation(OUR_MAC, "2001:db8::1", "2001:db8::20")
    };
    assert_eq!(world.poll(), vec![(LEFT, probe.bytes())]);
}

#[test]
fn an_answer_that_another_core_received_counts_for_all() {
    let mut leader = World::new();
    let mut other = leader.other_core(&[]);
    leader.run_until(Instant::from_millis(2_000));
    other.now = leader.now;
    assert_eq!(other.used(LEFT, &reply()), Event::Confirmed);
    assert_eq!(leader.mac_of("10.0.0.20"), Some(SERVER_MAC));
    let sent = leader.run_until(Instant::from_millis(14_000));
    assert_eq!(
        times(&sent, &question()),
        Vec::<u64>::new(),
        "the leader has heard of it"
    );
    assert_eq!(
        other.run_until(Instant::from_millis(14_000)),
        vec![],
        "the other core sends nothing"
    );
}

#[test]
fn a_request_of_another_core_reaches_the_leader_of_the_port() {
    let mut left = World::leading(&[LEFT]);
    let mut right = left.other_core(&[RIGHT]);
    left.run_until(Instant::from_millis(20_000));
    right.run_until(Instant::from_millis(20_000));
    left.shared.request(left.hop(RIGHT, "192.168.7.254"));
    assert_eq!(left.poll(), vec![]);
    assert_eq!(right.poll().len(), 1);
}

#[test]
fn two_engines_find_each_other() {
    use e2d2::wire::MacAddr;
    use proxyengine::neighbour::{Interface, Neighbour, Station, Topology};
    use std::sync::Arc;

    let engine = |mac: u8, own: [&str; 2], other: [&str; 2]| {
        let interface = Interface {
            port: LEFT,
            mac: MacAddr([2, 0, 0, 0, 0, mac]),
            addresses: own.map(|text| text.parse().expect("network")).to_vec(),
            aliases: vec![],
        };
        let neighbours = other.map(|text| Neighbour {
            port: LEFT,
            address: text.parse().expect("address"),
            mac: None,
        });
        let topology = Arc::new(Topology::new(vec![interface], &neighbours).expect("topology"));
        let shared = Arc::new(SharedNeighbours::new(&topology));
        let mut world = World::new();
        world.station = Station::new(Arc::clone(&topology), Arc::clone(&shared), &[LEFT], 1, Instant::ZERO);
        (world.topology, world.shared) = (topology, shared);
        world
    };
    let mut one = engine(1, ["10.0.0.1/24", "2001:db8::1/64"], ["10.0.0.2", "2001:db8::2"]);
    let mut two = engine(2, ["10.0.0.2/24", "2001:db8::2/64"], ["10.0.0.1", "2001:db8::1"]);
    for (_, frame) in one.poll() {
        if let (_, Some(answer)) = two.receive(LEFT, &frame) {
            one.receive(LEFT, &answer);
        }
    }
    assert_eq!((one.shared.resolved(), two.shared.resolved()), (2, 2));
    assert_eq!(
        one.shared.mac(one.hop(LEFT, "2001:db8::2")),
        Some(MacAddr([2, 0, 0, 0, 0, 2]))
    );
}

#[test]
fn an_id_of_another_table_is_unresolved_and_harmless() {
    let shared = SharedNeighbours::new(&topology());
    let foreign = proxyengine::neighbour::NextHopId::from_index(4095);
    shared.request(foreign);
    assert_eq!(shared.mac(foreign), None);
    assert_eq!((shared.len(), shared.resolved()), (4, 1));
}
