//! An engine that leaves the addresses of its listeners to another, and takes them over.

use e2d2::time::Instant;
use proxyengine::neighbour::{NeighbourDrop, NeighbourEvent};

use crate::frames::{Arp, BROADCAST, Icmp6, Mac};
use crate::world::{CLIENT_MAC, LEFT, OTHER_MAC, OUR_MAC, RIGHT, World, topology};

const VIRTUAL: &str = "10.0.9.9";
const VIRTUAL_V6: &str = "2001:db8::1";

/// As if the port had its IPv6 address for a listener only.
fn standby() -> World {
    let of_listeners = [VIRTUAL, VIRTUAL_V6].map(|address| (address.parse().expect("an address"), LEFT));
    let world = World::of(
        topology().with_listener_addresses(of_listeners.to_vec()),
        &[LEFT, RIGHT],
    );
    world.shared.set_announces(false, []);
    world
}

fn asked(address: &str) -> Vec<u8> {
    match address.contains(':') {
        false => Arp::request(CLIENT_MAC, "10.0.0.5", address).bytes(),
        true => Icmp6::solicitation(CLIENT_MAC, "2001:db8::5", address).bytes(),
    }
}

/// When each of both was announced.
fn announced(world: &mut World, until: u64) -> Vec<u64> {
    let of_v4 = Arp::request(OUR_MAC, VIRTUAL, VIRTUAL).bytes();
    let all_nodes: Mac = [0x33, 0x33, 0, 0, 0, 1];
    let of_v6 = Icmp6::advertisement(OUR_MAC, VIRTUAL_V6, all_nodes, "ff02::1", 0x20).bytes();
    // What is asked for by another thread is found in the next round.
    let now = world.now.as_millis();
    let at_once = world.poll().into_iter().map(|(port, frame)| (now, port, frame));
    let mut sent: Vec<_> = at_once.collect();
    sent.extend(world.run_until(Instant::from_millis(until)));
    let of_both = sent.iter().filter(|(_, _, frame)| [&of_v4, &of_v6].contains(&frame));
    of_both.map(|(at, ..)| *at).collect()
}

#[test]
fn addresses_that_another_engine_answers_for_are_neither_announced_nor_answered_nor_disputed() {
    let mut world = standby();
    assert_eq!(announced(&mut world, 5_000), Vec::<u64>::new());
    // Six at two times, without one of each version.
    assert_eq!(world.station.counters().events[NeighbourEvent::Announced], 8);
    for address in [VIRTUAL, VIRTUAL_V6] {
        assert_eq!(
            world.refuse(LEFT, &asked(address)),
            NeighbourDrop::NotOurAddress,
            "{address}"
        );
    }
    world.answer(LEFT, &asked("10.0.0.1"));
    // The other one says that they are its own.
    let theirs = Arp {
        dst: BROADCAST,
        ..Arp::request(OTHER_MAC, VIRTUAL, VIRTUAL)
    };
    assert_eq!(world.refuse(LEFT, &theirs.bytes()), NeighbourDrop::NotOurAddress);
    assert_eq!(world.station.counters().events[NeighbourEvent::DuplicateAddress], 0);
}

#[test]
fn who_takes_them_over_announces_them_twice_and_answers() {
    let mut world = standby();
    world.run_until(Instant::from_millis(5_000));
    world.shared.set_announces(true, [LEFT, RIGHT]);
    assert_eq!(announced(&mut world, 20_000), [5_000, 5_000, 6_000, 6_000]);
    for address in [VIRTUAL, VIRTUAL_V6] {
        world.answer(LEFT, &asked(address));
    }
    // Said again, it is no news.
    world.shared.set_announces(true, [LEFT, RIGHT]);
    assert_eq!(announced(&mut world, 40_000), Vec::<u64>::new());
    world.shared.set_announces(false, [LEFT, RIGHT]);
    assert_eq!(world.refuse(LEFT, &asked(VIRTUAL)), NeighbourDrop::NotOurAddress);
}
