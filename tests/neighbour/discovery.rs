use proxyengine::neighbour::NeighbourDrop as Drop;
use proxyengine::neighbour::NeighbourEvent as Event;
use test_case::test_case;

use crate::frames::{Icmp6, Mac, icmp6_checksum, link_address, v6};
use crate::world::{CLIENT_MAC, LEFT, OTHER_MAC, OUR_LINK_LOCAL, OUR_MAC, RIGHT, SERVER_MAC, World};

const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

fn solicitation() -> Icmp6 {
    Icmp6::solicitation(CLIENT_MAC, "2001:db8::5", "2001:db8::1")
}

fn advertisement(flags: u8) -> Icmp6 {
    Icmp6::advertisement(SERVER_MAC, "2001:db8::20", OUR_MAC, "2001:db8::1", flags)
}

#[test_case("2001:db8::1"; "port address")]
#[test_case(OUR_LINK_LOCAL; "link-local address of the mac")]
fn a_solicitation_for_an_own_address_is_answered(target: &str) {
    let mut world = World::new();
    let answer = world.answer(LEFT, &Icmp6::solicitation(CLIENT_MAC, "2001:db8::5", target).bytes());
    let expected = Icmp6::advertisement(OUR_MAC, target, CLIENT_MAC, "2001:db8::5", SOLICITED | OVERRIDE);
    assert_eq!(answer, expected.bytes());
    assert_eq!(world.station.counters().events[Event::SolicitationAnswered], 1);
}

#[test]
fn a_unicast_solicitation_without_option_is_answered_where_it_came_from() {
    let mut probe = Icmp6 {
        dst_mac: OUR_MAC,
        dst: v6("2001:db8::1"),
        ..solicitation()
    };
    probe.message.truncate(24);
    let answer = World::new().answer(LEFT, &probe.bytes());
    let expected = Icmp6::advertisement(OUR_MAC, "2001:db8::1", CLIENT_MAC, "2001:db8::5", SOLICITED | OVERRIDE);
    assert_eq!(answer, expected.bytes());
}

/// RFC 4861 7.2.4: duplicate address detection is answered to all nodes, not as solicited.
#[test]
fn duplicate_address_detection_is_answered_to_all_nodes() {
    let probe = Icmp6::solicitation(OTHER_MAC, "::", "2001:db8::1");
    let answer = World::new().answer(LEFT, &probe.bytes());
    let expected = Icmp6::advertisement(OUR_MAC, "2001:db8::1", ALL_NODES_MAC, "ff02::1", OVERRIDE);
    assert_eq!(answer, expected.bytes());
}

#[test]
fn a_group_frame_that_a_switch_made_unicast_is_answered() {
    World::new().answer(
        LEFT,
        &Icmp6 {
            dst_mac: OUR_MAC,
            ..solicitation()
        }
        .bytes(),
    );
}

#[test]
fn the_right_port_only() {
    assert_eq!(
        World::new().refuse(
            RIGHT,
            &Icmp6 {
                dst_mac: [0x33, 0x33, 0xff, 0, 0, 1],
                ..solicitation()
            }
            .bytes()
        ),
        Drop::NotOurAddress
    );
}

fn with_message(mut packet: Icmp6, change: impl FnOnce(&mut Vec<u8>)) -> Icmp6 {
    change(&mut packet.message);
    packet
}

fn own_probe() -> Icmp6 {
    Icmp6::solicitation(OTHER_MAC, "::", "2001:db8::1")
}

#[test_case(Icmp6 { hop_limit: 254, ..solicitation() }, Drop::BadHopLimit; "forwarded by a router")]
#[test_case(Icmp6 { checksum_error: 1, ..solicitation() }, Drop::BadChecksum; "checksum")]
#[test_case(with_message(solicitation(), |m| m[1] = 1), Drop::Malformed; "code")]
#[test_case(with_message(solicitation(), |m| m.truncate(16)), Drop::Malformed; "short")]
#[test_case(with_message(solicitation(), |m| m[25] = 0), Drop::Malformed; "empty option")]
#[test_case(with_message(solicitation(), |m| m[25] = 2), Drop::Malformed; "option beyond the end")]
#[test_case(with_message(solicitation(), |m| m.push(1)), Drop::Malformed; "half an option")]
#[test_case(with_message(solicitation(), |m| m[8..24].copy_from_slice(&v6("ff02::1").octets())), Drop::BadTarget; "target multicast")]
#[test_case(with_message(solicitation(), |m| m[8..24].copy_from_slice(&v6("::").octets())), Drop::BadTarget; "target unspecified")]
#[test_case(with_message(solicitation(), |m| m[8..24].copy_from_slice(&v6("2001:db8::77").octets())), Drop::BadTarget; "target of another group")]
#[test_case(Icmp6::solicitation(CLIENT_MAC, "2001:db8::5", "2001:db8::77"), Drop::NotOurAddress; "for another host")]
#[test_case(Icmp6 { dst_mac: OTHER_MAC, ..solicitation() }, Drop::OtherStation; "to another station")]
#[test_case(Icmp6 { dst_mac: ALL_NODES_MAC, ..solicitation() }, Drop::OtherStation; "group mac of another group")]
#[test_case(Icmp6 { src_mac: OUR_MAC, ..solicitation() }, Drop::OwnFrame; "own frame looped back")]
#[test_case(with_message(own_probe(), |m| m.extend(link_address(1, OTHER_MAC))), Drop::BadSource; "probe with an option")]
#[test_case(Icmp6 { dst: v6("2001:db8::1"), dst_mac: OUR_MAC, ..own_probe() }, Drop::BadSource; "unicast probe")]
#[test_case(with_message(solicitation(), |m| m[26..].copy_from_slice(&[0xff; 6])), Drop::BadSource; "option broadcast")]
#[test_case(with_message(solicitation(), |m| m[26..].copy_from_slice(&OUR_MAC)), Drop::OwnFrame; "option with our mac")]
#[test_case(with_message(solicitation(), |m| m[0] = 133), Drop::Unsupported; "router solicitation")]
#[test_case(with_message(solicitation(), |m| m[0] = 134), Drop::Unsupported; "router advertisement")]
#[test_case(with_message(solicitation(), |m| m[0] = 137), Drop::Unsupported; "redirect")]
#[test_case(Icmp6 { hop_limit: 64, ..advertisement(SOLICITED) }, Drop::BadHopLimit; "advertisement forwarded by a router")]
#[test_case(Icmp6 { dst: v6("ff02::1"), dst_mac: ALL_NODES_MAC, ..advertisement(SOLICITED) }, Drop::Malformed; "solicited to all")]
#[test_case(Icmp6 { dst: v6("2001:db8::2"), ..advertisement(SOLICITED) }, Drop::NotOurAddress; "advertisement to another")]
#[test_case(Icmp6::advertisement(OTHER_MAC, "2001:db8::66", OUR_MAC, "2001:db8::1", SOLICITED | OVERRIDE), Drop::UnknownNeighbour; "advertisement of a stranger")]
#[test_case(with_message(advertisement(SOLICITED), |m| m[26..].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1])), Drop::BadSource; "advertised group mac")]
#[test_case(with_message(advertisement(SOLICITED), |m| m.truncate(24)), Drop::UnknownNeighbour; "no option and nothing known")]
fn bogus_messages_are_dropped(message: Icmp6, reason: Drop) {
    let mut world = World::new();
    assert_eq!(world.refuse(LEFT, &message.bytes()), reason);
    assert_eq!(world.mac_of("2001:db8::20"), None);
}

#[test]
fn foreign_options_are_skipped() {
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
    let message = with_message(solicitation(), |m| m.splice(24..24, nonce).for_each(drop));
    World::new().answer(LEFT, &message.bytes());
}

#[test_case(Icmp6::advertisement(OTHER_MAC, "2001:db8::1", ALL_NODES_MAC, "ff02::1", OVERRIDE); "advertisement of our address")]
#[test_case(Icmp6::solicitation(OTHER_MAC, "2001:db8::1", OUR_LINK_LOCAL); "solicitation from our address")]
fn a_duplicate_of_our_address_is_noticed_and_not_answered(message: Icmp6) {
    assert_eq!(World::new().used(LEFT, &message.bytes()), Event::DuplicateAddress);
}

/// RFC 4861 7.2.5 and appendix C, for an entry without and with a MAC address.
#[test_case(None, SERVER_MAC, SOLICITED | OVERRIDE, Event::Confirmed, SERVER_MAC; "first answer")]
#[test_case(None, SERVER_MAC, SOLICITED, Event::Confirmed, SERVER_MAC; "first answer without override")]
#[test_case(None, SERVER_MAC, 0, Event::Learned, SERVER_MAC; "first unsolicited")]
#[test_case(Some(SERVER_MAC), OTHER_MAC, SOLICITED | OVERRIDE, Event::MacChanged, OTHER_MAC; "answer with override")]
#[test_case(Some(SERVER_MAC), OTHER_MAC, OVERRIDE, Event::MacChanged, OTHER_MAC; "unsolicited override")]
#[test_case(Some(SERVER_MAC), OTHER_MAC, SOLICITED, Event::Doubted, SERVER_MAC; "answer without override")]
#[test_case(Some(SERVER_MAC), OTHER_MAC, 0, Event::Doubted, SERVER_MAC; "unsolicited without override")]
#[test_case(Some(SERVER_MAC), SERVER_MAC, SOLICITED, Event::Confirmed, SERVER_MAC; "same without override")]
#[test_case(Some(SERVER_MAC), SERVER_MAC, 0, Event::Unchanged, SERVER_MAC; "same unsolicited")]
fn advertisements_follow_the_override_rules(known: Option<Mac>, from: Mac, flags: u8, event: Event, after: Mac) {
    let mut world = World::new();
    if let Some(mac) = known {
        let first = Icmp6::advertisement(mac, "2001:db8::20", OUR_MAC, "2001:db8::1", SOLICITED | OVERRIDE);
        world.used(LEFT, &first.bytes());
    }
    let message = Icmp6::advertisement(from, "2001:db8::20", OUR_MAC, "2001:db8::1", flags);
    assert_eq!(world.used(LEFT, &message.bytes()), event);
    assert_eq!(world.mac_of("2001:db8::20"), Some(after));
}

#[test]
fn an_answer_without_option_confirms_what_is_known() {
    let mut world = World::new();
    world.used(LEFT, &advertisement(SOLICITED | OVERRIDE).bytes());
    let bare = with_message(advertisement(SOLICITED | OVERRIDE), |m| m.truncate(24));
    assert_eq!(world.used(LEFT, &bare.bytes()), Event::Confirmed);
}

#[test]
fn a_solicitation_from_a_next_hop_teaches_its_mac() {
    let mut world = World::new();
    world.answer(
        LEFT,
        &Icmp6::solicitation(SERVER_MAC, "2001:db8::20", "2001:db8::1").bytes(),
    );
    assert_eq!(world.mac_of("2001:db8::20"), Some(SERVER_MAC));
}

/// The oracle of the other tests, against a sum made by hand.
#[test]
fn the_checksum_of_test_frames_is_right() {
    let message = [128, 0, 0, 0, 0, 1, 0, 1];
    // Twice ::1, length 8, next header 58, 0x8000, identifier 1 and sequence number 1: 0x8046, to be inverted.
    assert_eq!(icmp6_checksum(v6("::1"), v6("::1"), &message), !0x8046);
}
