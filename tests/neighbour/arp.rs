use proxyengine::neighbour::NeighbourDrop as Drop;
use proxyengine::neighbour::NeighbourEvent as Event;
use test_case::test_case;

use crate::frames::{Arp, BROADCAST};
use crate::world::{CLIENT_MAC, LEFT, OTHER_MAC, OUR_MAC, OUR_RIGHT_MAC, RIGHT, SERVER_MAC, STATIC_MAC, World};

#[test_case("10.0.0.1"; "port address")]
#[test_case("10.0.9.9"; "listener address")]
fn a_request_for_an_own_address_is_answered(target: &str) {
    let mut world = World::new();
    let answer = world.answer(LEFT, &Arp::request(CLIENT_MAC, "10.0.0.5", target).bytes());
    assert_eq!(answer, Arp::reply(OUR_MAC, target, CLIENT_MAC, "10.0.0.5").bytes());
    assert_eq!(world.station.counters().events[Event::ArpAnswered], 1);
}

#[test]
fn a_padded_request_is_answered_without_the_padding() {
    let frame = [Arp::request(CLIENT_MAC, "10.0.0.5", "10.0.0.1").bytes(), vec![0; 18]].concat();
    assert_eq!(World::new().answer(LEFT, &frame).len(), 42);
}

#[test]
fn a_unicast_request_is_answered() {
    let request = Arp {
        dst: OUR_MAC,
        ..Arp::request(CLIENT_MAC, "10.0.0.5", "10.0.0.1")
    };
    World::new().answer(LEFT, &request.bytes());
}

#[test]
fn each_port_answers_for_its_own_addresses_only() {
    let mut world = World::new();
    let for_left = Arp::request(CLIENT_MAC, "192.168.7.5", "10.0.0.1").bytes();
    assert_eq!(world.refuse(RIGHT, &for_left), Drop::NotOurAddress);
    let for_right = Arp::request(CLIENT_MAC, "192.168.7.5", "192.168.7.1").bytes();
    let answer = world.answer(RIGHT, &for_right);
    assert_eq!(
        answer,
        Arp::reply(OUR_RIGHT_MAC, "192.168.7.1", CLIENT_MAC, "192.168.7.5").bytes()
    );
}

/// RFC 5227 2.1.1: the prober has no address yet; the reply goes to its MAC address.
#[test]
fn a_probe_for_an_own_address_is_answered() {
    let answer = World::new().answer(LEFT, &Arp::request(CLIENT_MAC, "0.0.0.0", "10.0.0.1").bytes());
    assert_eq!(answer, Arp::reply(OUR_MAC, "10.0.0.1", CLIENT_MAC, "0.0.0.0").bytes());
}

fn request() -> Arp {
    Arp::request(CLIENT_MAC, "10.0.0.5", "10.0.0.1")
}

fn head(head: [u8; 6]) -> Arp {
    Arp { head, ..request() }
}

#[test_case(Arp { dst: OTHER_MAC, ..request() }, Drop::OtherStation; "to another station")]
#[test_case(Arp { dst: [0x33, 0x33, 0, 0, 0, 1], ..request() }, Drop::OtherStation; "to a group")]
#[test_case(Arp { src: OUR_MAC, ..request() }, Drop::OwnFrame; "own frame looped back")]
#[test_case(Arp { src: OUR_RIGHT_MAC, ..request() }, Drop::OwnFrame; "frame of our other port")]
#[test_case(Arp { src: BROADCAST, ..request() }, Drop::BadSource; "from broadcast")]
#[test_case(Arp { sender_mac: BROADCAST, ..request() }, Drop::BadSource; "sender mac broadcast")]
#[test_case(Arp { sender_mac: [0; 6], ..request() }, Drop::BadSource; "sender mac zero")]
#[test_case(Arp { sender_mac: [3, 0, 0, 0, 0, 1], ..request() }, Drop::BadSource; "sender mac group")]
#[test_case(Arp { sender_mac: OUR_MAC, ..request() }, Drop::OwnFrame; "sender mac ours")]
#[test_case(Arp { sender: crate::frames::v4("224.0.0.1"), ..request() }, Drop::BadSource; "sender multicast")]
#[test_case(Arp { sender: crate::frames::v4("255.255.255.255"), ..request() }, Drop::BadSource; "sender broadcast")]
#[test_case(Arp { sender: crate::frames::v4("10.0.0.255"), ..request() }, Drop::BadSource; "sender directed broadcast")]
#[test_case(Arp { sender: crate::frames::v4("127.0.0.1"), ..request() }, Drop::BadSource; "sender loopback")]
#[test_case(Arp::request(CLIENT_MAC, "10.0.0.5", "10.0.0.6"), Drop::NotOurAddress; "for another host")]
#[test_case(Arp::request(CLIENT_MAC, "10.0.0.5", "10.0.0.5"), Drop::NotOurAddress; "strangers announcement")]
#[test_case(Arp { operation: 3, ..request() }, Drop::Unsupported; "reverse arp")]
#[test_case(Arp { operation: 0, ..request() }, Drop::Unsupported; "no operation")]
#[test_case(head([0, 6, 8, 0, 6, 4]), Drop::Malformed; "hardware type")]
#[test_case(head([0, 1, 0x86, 0xdd, 6, 4]), Drop::Malformed; "protocol type")]
#[test_case(head([0, 1, 8, 0, 8, 4]), Drop::Malformed; "hardware length")]
#[test_case(head([0, 1, 8, 0, 6, 16]), Drop::Malformed; "protocol length")]
#[test_case(Arp::reply(OTHER_MAC, "10.0.0.66", OUR_MAC, "10.0.0.1"), Drop::UnknownNeighbour; "reply of a stranger")]
#[test_case(Arp::reply(OTHER_MAC, "224.0.0.1", OUR_MAC, "10.0.0.1"), Drop::BadSource; "reply from a group")]
fn bogus_messages_are_dropped(message: Arp, reason: Drop) {
    let mut world = World::new();
    assert_eq!(world.refuse(LEFT, &message.bytes()), reason);
    assert_eq!(world.shared.resolved(), 1, "only the fixed entry");
}

#[test]
fn a_truncated_message_is_dropped() {
    let frame = request().bytes();
    for len in 14..42 {
        assert_eq!(World::new().refuse(LEFT, &frame[..len]), Drop::Malformed, "{len} bytes");
    }
}

#[test_case(Arp::request(OTHER_MAC, "10.0.0.1", "10.0.0.1"); "announcement")]
#[test_case(Arp::request(OTHER_MAC, "10.0.0.1", "10.0.0.7"); "request to another")]
#[test_case(Arp::request(OTHER_MAC, "10.0.9.9", "10.0.0.1"); "request to us as our listener")]
#[test_case(Arp::reply(OTHER_MAC, "10.0.0.1", CLIENT_MAC, "10.0.0.5"); "reply overheard as broadcast")]
fn a_duplicate_of_our_address_is_noticed_and_not_answered(message: Arp) {
    let mut world = World::new();
    let message = if message.operation == 2 {
        Arp {
            dst: BROADCAST,
            ..message
        }
    } else {
        message
    };
    assert_eq!(world.used(LEFT, &message.bytes()), Event::DuplicateAddress);
}

#[test]
fn the_answer_to_our_question_is_learned() {
    let mut world = World::new();
    world.poll();
    assert_eq!(world.mac_of("10.0.0.20"), None);
    let event = world.used(LEFT, &Arp::reply(SERVER_MAC, "10.0.0.20", OUR_MAC, "10.0.0.1").bytes());
    assert_eq!((event, world.mac_of("10.0.0.20")), (Event::Confirmed, Some(SERVER_MAC)));
}

#[test]
fn a_neighbour_is_known_on_its_own_port_only() {
    let mut world = World::new();
    let reply = Arp::reply(SERVER_MAC, "10.0.0.20", OUR_RIGHT_MAC, "192.168.7.1").bytes();
    assert_eq!(world.refuse(RIGHT, &reply), Drop::UnknownNeighbour);
    assert_eq!(world.mac_of("10.0.0.20"), None);
}

/// RFC 826: an entry that exists is updated by whatever the neighbour sends, whomever it asks.
#[test_case(Arp::request(OTHER_MAC, "10.0.0.20", "10.0.0.20"), Event::MacChanged; "announcement with another mac")]
#[test_case(Arp::request(OTHER_MAC, "10.0.0.20", "10.0.0.77"), Event::MacChanged; "request with another mac")]
#[test_case(Arp::reply(OTHER_MAC, "10.0.0.20", BROADCAST, "10.0.0.20"), Event::MacChanged; "unasked reply")]
#[test_case(Arp::request(SERVER_MAC, "10.0.0.20", "10.0.0.77"), Event::Unchanged; "request with the known mac")]
fn a_known_neighbour_is_merged(message: Arp, expected: Event) {
    let mut world = World::new();
    world.poll();
    world.used(LEFT, &Arp::reply(SERVER_MAC, "10.0.0.20", OUR_MAC, "10.0.0.1").bytes());
    assert_eq!(world.used(LEFT, &message.bytes()), expected);
    assert_eq!(world.mac_of("10.0.0.20"), Some(message.sender_mac));
}

#[test]
fn a_neighbour_that_asks_us_is_learned_and_answered() {
    let mut world = World::new();
    world.answer(LEFT, &Arp::request(SERVER_MAC, "10.0.0.20", "10.0.0.1").bytes());
    assert_eq!(world.mac_of("10.0.0.20"), Some(SERVER_MAC));
    assert_eq!(world.station.counters().events[Event::Learned], 1);
}

#[test_case(Arp::request(OTHER_MAC, "10.0.0.30", "10.0.0.30"); "announcement")]
#[test_case(Arp::reply(OTHER_MAC, "10.0.0.30", OUR_MAC, "10.0.0.1"); "reply")]
fn a_fixed_entry_is_never_overwritten(message: Arp) {
    let mut world = World::new();
    assert_eq!(world.used(LEFT, &message.bytes()), Event::StaticKept);
    assert_eq!(world.mac_of("10.0.0.30"), Some(STATIC_MAC));
}
