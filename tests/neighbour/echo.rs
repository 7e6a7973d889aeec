use std::time::Duration;

use proxyengine::neighbour::NeighbourDrop as Drop;
use proxyengine::neighbour::{ECHO_BURST, ECHO_PER_SECOND, NeighbourEvent, Verdict};
use test_case::test_case;

use crate::frames::{BROADCAST, Icmp4, Icmp6, checksum, icmp6_checksum, v4, v6};
use crate::world::{CLIENT_MAC, LEFT, OTHER_MAC, OUR_LINK_LOCAL, OUR_MAC, RIGHT, World};

fn ping() -> Icmp4 {
    Icmp4::echo(CLIENT_MAC, "10.0.0.5", OUR_MAC, "10.0.0.1", b"abcdefg")
}

fn ping6() -> Icmp6 {
    Icmp6::echo(CLIENT_MAC, "2001:db8::5", OUR_MAC, "2001:db8::1", b"abcdefg")
}

#[test_case(0; "empty")]
#[test_case(1; "odd")]
#[test_case(56; "as ping sends it")]
#[test_case(1472; "whole MTU")]
fn ping_is_answered_with_the_same_data(len: usize) {
    let payload: Vec<u8> = (0..len).map(|index| index as u8).collect();
    let request = Icmp4::echo(CLIENT_MAC, "10.0.0.5", OUR_MAC, "10.0.9.9", &payload).bytes();
    let answer = World::new().answer(LEFT, &request);
    assert_eq!(answer.len(), request.len());
    assert_eq!(answer[..14], [&CLIENT_MAC[..], &OUR_MAC[..], &[8, 0]].concat()[..]);
    assert_eq!(checksum(&answer[14..34]), 0, "header checksum");
    assert_eq!(answer[14 + 8], 64, "time to live");
    assert_eq!(answer[14 + 1], 0, "no congestion mark");
    assert_eq!(
        answer[26..34],
        [v4("10.0.9.9").octets(), v4("10.0.0.5").octets()].concat()[..]
    );
    assert_eq!(checksum(&answer[34..]), 0, "message checksum");
    assert_eq!(answer[34..36], [0, 0]);
    assert_eq!(answer[38..], request[38..], "identifier, sequence number and data");
}

#[test_case("2001:db8::1", 0; "port address")]
#[test_case("2001:db8::1", 1452; "whole MTU")]
#[test_case(OUR_LINK_LOCAL, 57; "link-local address")]
fn ping6_is_answered_with_the_same_data(dst: &str, len: usize) {
    let payload: Vec<u8> = (0..len).map(|index| index as u8).collect();
    let request = Icmp6::echo(CLIENT_MAC, "2001:db8::5", OUR_MAC, dst, &payload).bytes();
    let answer = World::new().answer(LEFT, &request);
    assert_eq!(answer.len(), request.len());
    assert_eq!(
        answer[..14],
        [&CLIENT_MAC[..], &OUR_MAC[..], &[0x86, 0xdd]].concat()[..]
    );
    assert_eq!(answer[14 + 7], 64, "hop limit");
    assert_eq!(
        answer[22..54],
        [v6(dst).octets(), v6("2001:db8::5").octets()].concat()[..]
    );
    assert_eq!(icmp6_checksum(v6(dst), v6("2001:db8::5"), &answer[54..]), 0);
    assert_eq!(answer[54..56], [129, 0]);
    assert_eq!(answer[58..], request[58..], "identifier, sequence number and data");
}

#[test]
fn padding_is_not_echoed() {
    let request = Icmp4 { padding: 11, ..ping() }.bytes();
    assert_eq!(World::new().answer(LEFT, &request).len(), request.len() - 11);
}

#[test]
fn ip_options_come_back_empty() {
    // Record route (RFC 791): 7, length 11, pointer 4, room for two addresses; then end of options.
    let options = vec![7, 11, 4, 9, 9, 9, 9, 9, 9, 9, 9, 0];
    let request = Icmp4 { options, ..ping() }.bytes();
    let answer = World::new().answer(LEFT, &request);
    assert_eq!(answer.len(), request.len());
    assert_eq!(answer[34..46], [0; 12]);
    assert_eq!(checksum(&answer[14..46]), 0);
    assert_eq!(checksum(&answer[46..]), 0);
}

fn icmp4_type(kind: u8, code: u8) -> Icmp4 {
    let mut packet = ping();
    packet.message[..2].copy_from_slice(&[kind, code]);
    packet
}

#[test_case(Icmp4 { checksum_error: 1, ..ping() }, Drop::BadChecksum; "checksum")]
#[test_case(Icmp4 { dst_mac: OTHER_MAC, ..ping() }, Drop::OtherStation; "to another station")]
#[test_case(Icmp4 { dst: v4("10.0.0.9"), ..ping() }, Drop::NotOurAddress; "to another host")]
#[test_case(Icmp4 { dst: v4("10.0.0.255"), ..ping() }, Drop::NotOurAddress; "to directed broadcast")]
#[test_case(Icmp4 { dst: v4("192.168.7.1"), ..ping() }, Drop::NotOurAddress; "to our address on the other port")]
#[test_case(Icmp4 { src: v4("10.0.0.255"), ..ping() }, Drop::BadSource; "from directed broadcast")]
#[test_case(Icmp4 { src: v4("10.0.9.9"), ..ping() }, Drop::OwnSource; "from ourselves")]
#[test_case(Icmp4 { src_mac: OUR_MAC, ..ping() }, Drop::OwnFrame; "own frame looped back")]
#[test_case(icmp4_type(0, 0), Drop::Unsupported; "reply")]
#[test_case(icmp4_type(8, 1), Drop::Unsupported; "code")]
#[test_case(icmp4_type(5, 0), Drop::Unsupported; "redirect")]
#[test_case(icmp4_type(13, 0), Drop::Unsupported; "time stamp request")]
fn what_is_no_ping_for_us_is_dropped(packet: Icmp4, reason: Drop) {
    assert_eq!(World::new().refuse(LEFT, &packet.bytes()), reason);
}

#[test_case(Icmp6 { checksum_error: 1, ..ping6() }, Drop::BadChecksum; "checksum")]
#[test_case(Icmp6 { dst: v6("ff02::1"), dst_mac: [0x33, 0x33, 0, 0, 0, 1], ..ping6() }, Drop::OtherStation; "to all nodes")]
#[test_case(Icmp6 { dst: v6("ff02::1"), ..ping6() }, Drop::NotOurAddress; "to all nodes in a unicast frame")]
#[test_case(Icmp6 { dst: v6("2001:db8::9"), ..ping6() }, Drop::NotOurAddress; "to another host")]
#[test_case(Icmp6 { src: v6("::"), ..ping6() }, Drop::BadSource; "from nobody")]
#[test_case(Icmp6 { src: v6("2001:db8::1"), ..ping6() }, Drop::OwnSource; "from ourselves")]
fn what_is_no_ping6_for_us_is_dropped(packet: Icmp6, reason: Drop) {
    assert_eq!(World::new().refuse(LEFT, &packet.bytes()), reason);
}

#[test]
fn errors_to_transparent_sources_go_to_the_proxy_and_pings_do_not() {
    let to_client = |packet: Icmp4| Icmp4 {
        dst: v4("203.0.113.5"),
        ..packet
    };
    let mut error = to_client(icmp4_type(3, 1)).bytes();
    assert_eq!(World::new().refuse(LEFT, &error), Drop::NotOurAddress);
    let (verdict, _) = World::transparent().receive(LEFT, &error);
    assert_eq!(verdict, Verdict::IcmpError);
    error[..6].copy_from_slice(&OTHER_MAC);
    assert_eq!(World::transparent().refuse(LEFT, &error), Drop::OtherStation);
    let ping = to_client(ping()).bytes();
    assert_eq!(World::transparent().refuse(LEFT, &ping), Drop::NotOurAddress);
}

/// The parse, which comes first, knows that broadcast frames are never TCP or ping.
#[test]
fn a_broadcast_ping_is_not_answered() {
    let (verdict, answer) = World::new().receive(
        LEFT,
        &Icmp4 {
            dst_mac: BROADCAST,
            ..ping()
        }
        .bytes(),
    );
    assert_eq!((verdict, answer), (Verdict::NotOurs, None));
}

#[test]
fn pings_are_answered_at_a_limited_rate() {
    let mut world = World::new();
    let request = ping().bytes();
    let answered = |world: &mut World, count: u32| {
        (0..count)
            .filter(|_| matches!(world.receive(LEFT, &request).0, Verdict::Answer(_)))
            .count() as u32
    };
    assert_eq!(answered(&mut world, ECHO_BURST + 50), ECHO_BURST);
    assert_eq!(world.station.counters().drops[Drop::RateLimited], 50);
    world.pass(Duration::from_millis(20));
    assert_eq!(answered(&mut world, 1000), ECHO_PER_SECOND as u32 / 50);
    assert_eq!(
        world.station.counters().events[NeighbourEvent::EchoAnswered],
        u64::from(ECHO_BURST) + 20
    );
}

#[test_case(3, 4; "fragmentation needed")]
#[test_case(11, 0; "time exceeded")]
#[test_case(12, 0; "parameter problem")]
fn icmp_errors_are_left_to_the_proxy(kind: u8, code: u8) {
    assert_eq!(
        World::new().receive(LEFT, &icmp4_type(kind, code).bytes()).0,
        Verdict::IcmpError
    );
    let broken = Icmp4 {
        checksum_error: 1,
        ..icmp4_type(kind, code)
    };
    assert_eq!(World::new().refuse(LEFT, &broken.bytes()), Drop::BadChecksum);
}

#[test_case(1; "destination unreachable")]
#[test_case(2; "packet too big")]
#[test_case(3; "time exceeded")]
#[test_case(4; "parameter problem")]
fn icmp6_errors_are_left_to_the_proxy(kind: u8) {
    let mut packet = ping6();
    packet.message[0] = kind;
    assert_eq!(World::new().receive(LEFT, &packet.bytes()).0, Verdict::IcmpError);
    assert_eq!(
        World::new().refuse(
            RIGHT,
            &Icmp6 {
                dst_mac: crate::world::OUR_RIGHT_MAC,
                ..packet
            }
            .bytes()
        ),
        Drop::NotOurAddress
    );
}
