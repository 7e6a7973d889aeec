use std::sync::Arc;
use std::time::Duration;

use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use proxyengine::neighbour::{Interface, NeighbourDrop, NeighbourEvent, SharedNeighbours, Station, Topology};

use crate::frames::{Arp, Icmp6, Mac, icmp6_checksum, v6};
use crate::world::{LEFT, OUR_LINK_LOCAL, OUR_MAC, OUR_RIGHT_MAC, RIGHT, World};

const ALL_NODES: Mac = [0x33, 0x33, 0, 0, 0, 1];

fn expected_left() -> Vec<Vec<u8>> {
    let arp = |address| Arp::request(OUR_MAC, address, address).bytes();
    let nd = |address| Icmp6::advertisement(OUR_MAC, address, ALL_NODES, "ff02::1", 0x20).bytes();
    let mut frames = vec![arp("10.0.0.1"), arp("10.0.9.9"), nd("2001:db8::1"), nd(OUR_LINK_LOCAL)];
    frames.sort();
    frames
}

fn announcements(frames: Vec<(u64, e2d2::port::PortId, Vec<u8>)>, port: e2d2::port::PortId) -> Vec<(u64, Vec<u8>)> {
    let is_announcement = |frame: &[u8]| match frame[12..14] {
        [8, 6] => frame[28..32] == frame[38..42],
        _ => frame[20] == 58 && frame[54] == 136,
    };
    let of_port = frames
        .into_iter()
        .filter(|(_, of, frame)| *of == port && is_announcement(frame));
    of_port.map(|(at, _, frame)| (at, frame)).collect()
}

#[test]
fn every_own_address_is_announced_at_start_and_once_more_after_a_second() {
    let mut world = World::new();
    let sent = world.run_until(Instant::from_millis(20_000));
    let left = announcements(sent.clone(), LEFT);
    for (at, expected) in [(0, expected_left()), (1000, expected_left())] {
        let mut frames: Vec<_> = left
            .iter()
            .filter(|(when, _)| *when == at)
            .map(|(_, frame)| frame.clone())
            .collect();
        frames.sort();
        assert_eq!(frames, expected, "at {at} ms");
    }
    assert_eq!(left.len(), 8, "and never again");
    let right = announcements(sent, RIGHT);
    assert_eq!(right.len(), 4, "one IPv4 address and the link-local one, twice");
    assert!(
        right
            .iter()
            .any(|(_, frame)| *frame == Arp::request(OUR_RIGHT_MAC, "192.168.7.1", "192.168.7.1").bytes())
    );
    assert_eq!(world.station.counters().events[NeighbourEvent::Announced], 12);
}

/// RFC 3810 5.2, byte by byte: the groups of 2001:db8::1 and of the link-local address, which are one.
#[test]
fn solicited_node_groups_are_reported_at_start_and_once_a_minute() {
    let report = |record: u8| {
        let group = v6("ff02::1:ff00:1").octets();
        let mut message = [&[143, 0, 0, 0, 0, 0, 0, 1, record, 0, 0, 0][..], &group].concat();
        let (src, dst) = (v6(OUR_LINK_LOCAL), v6("ff02::16"));
        let sum = icmp6_checksum(src, dst, &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let link = [&[0x33, 0x33, 0, 0, 0, 0x16][..], &OUR_MAC, &[0x86, 0xdd]].concat();
        let ip = [&[0x60, 0, 0, 0, 0, 36, 0, 1][..], &src.octets(), &dst.octets()].concat();
        [&link[..], &ip, &[58, 0, 5, 2, 0, 0, 1, 0], &message].concat()
    };
    let mut world = World::leading(&[LEFT]);
    let sent = world.run_until(Instant::from_millis(130_000));
    let at = |wanted: Vec<u8>| -> Vec<u64> {
        sent.iter()
            .filter(|(_, _, frame)| *frame == wanted)
            .map(|(at, _, _)| *at)
            .collect()
    };
    assert_eq!((at(report(4)), at(report(2))), (vec![0, 1_000], vec![61_000, 121_000]));
    assert_eq!(world.station.counters().events[NeighbourEvent::GroupsReported], 4);
}

#[test]
fn many_groups_take_several_reports() {
    let addresses = (1..=40u16).map(|host| format!("2001:db8::{host:x}:{host:x}/64").parse().expect("network"));
    let interface = Interface {
        port: LEFT,
        mac: MacAddr(OUR_MAC),
        addresses: addresses.collect(),
        aliases: vec![],
    };
    let topology = Arc::new(Topology::new(vec![interface], &[]).expect("topology"));
    let shared = Arc::new(SharedNeighbours::new(&topology));
    let mut station = Station::new(topology, shared, &[LEFT], 1, Instant::ZERO);
    let mut reported = Vec::new();
    while station.poll(Instant::ZERO, &mut |_, frame| {
        if frame[20] == 0 {
            reported.push((usize::from(frame[14 + 40 + 8 + 7]), frame.len()));
        }
        true
    }) > 0
    {}
    // Forty, and that of the link-local address.
    assert_eq!(reported, [(32, 70 + 32 * 20), (9, 70 + 9 * 20)]);
}

#[test]
fn a_core_announces_only_the_ports_it_leads() {
    let mut world = World::leading(&[RIGHT]);
    let sent = world.run_until(Instant::from_millis(5_000));
    assert!(!sent.is_empty() && sent.iter().all(|(_, port, _)| *port == RIGHT));
    let mut idle = World::leading(&[]);
    assert_eq!(idle.run_until(Instant::from_millis(5_000)), vec![]);
}

#[test]
fn announcing_again_sends_two_more_rounds() {
    let mut world = World::new();
    world.run_until(Instant::from_millis(5_000));
    world.shared.announce(LEFT);
    let sent = world.run_until(Instant::from_millis(20_000));
    assert_eq!(announcements(sent.clone(), RIGHT), vec![]);
    assert_eq!(announcements(sent, LEFT).len(), 8);
}

#[test]
fn without_a_buffer_nothing_is_lost_but_time() {
    let mut world = World::new();
    let mut tried = 0;
    for _ in 0..10 {
        world.station.poll(world.now, &mut |_, _| {
            tried += 1;
            false
        });
    }
    assert!(
        tried > 0 && tried < 20,
        "{tried} attempts without a buffer at the same instant"
    );
    assert_eq!(world.station.counters().drops[NeighbourDrop::NoBuffer], tried);
    world.pass(Duration::from_millis(10));
    let sent = world.poll();
    let asked = world.station.counters().events[NeighbourEvent::Asked];
    assert_eq!(
        (sent.len() as u64, asked),
        (11, 3),
        "six addresses, two reports of groups and three next hops"
    );
}
