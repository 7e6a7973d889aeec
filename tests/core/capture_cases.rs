//! What a capture says of frames that are easily taken for another connection's, or for nobody's.

use crate::capture::{FROM_CLIENT, FROM_SERVER, HEADERS, capture, groups};
use crate::harness::{Bench, CONFIG, Client, Server, close, nothing, only, spliced};
use crate::syn;
use e2d2::wire::tcp::TcpFlags;
use proxyengine::config::ServerId;
use splice::capture::{Choice, FrameKind, Wanted};
use splice::drop_reason::DropReason;
use splice::event::Event;
use splice::ids::RuleId;
use splice::phase::Phase;
use testkit::Segment;

/// A client that begins anew from the port of one that has closed.
fn again(port: u16) -> Client {
    Client {
        seq: 7_000_000,
        tsval: 900,
        ..Client::new(port)
    }
}

fn of_server(server: u16) -> Choice {
    Choice {
        server: Some(ServerId(server)),
        ..Choice::default()
    }
}

fn rested(bench: &mut Bench, port: u16) -> Client {
    let (mut client, mut server) = spliced(bench, port);
    close(bench, &mut client, &mut server);
    client
}

#[test]
fn a_port_that_is_used_again_is_captured_as_another_connection() {
    let mut bench = Bench::new();
    let mut reader = capture(&mut bench, Choice::default(), HEADERS);
    let before = rested(&mut bench, 1024);
    groups(&mut reader);
    let mut client = again(1024);
    let syn_ack = only(bench.receive(&client.syn()));
    let syn = groups(&mut reader);
    assert_eq!(syn[0].kinds(), [FROM_CLIENT, FrameKind::Own]);
    assert!(syn[0].done().facts.is_none(), "nothing is known of it: {syn:?}");
    // What is late is still of the one that rests.
    only(bench.receive(&before.segment(TcpFlags::ACK, b"")));
    let late = groups(&mut reader);
    assert_eq!(late[0].done().facts.expect("it rests").phase, Phase::TimeWait);
    client.take_syn_ack(&syn_ack);
    nothing(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    let made = groups(&mut reader);
    assert_eq!(made[0].kinds(), [FROM_CLIENT]);
    let facts = made[0].done().facts.expect("it is there");
    assert_eq!((facts.phase, facts.server), (Phase::AwaitPayload, None));
    drop(bench.proxy.swap_tap(None));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn of_a_port_that_is_used_again_only_what_is_wanted_is_captured() {
    let mut bench = Bench::new();
    let mut reader = capture(&mut bench, of_server(0), HEADERS);
    let wanted = rested(&mut bench, 1024);
    assert_eq!(groups(&mut reader).last().expect("an end").done().wanted, Wanted::Yes);
    // It is not known which server the next one gets.
    only(bench.receive(&again(1024).syn()));
    assert_eq!(groups(&mut reader)[0].done().wanted, Wanted::Unknown);
    only(bench.receive(&wanted.segment(TcpFlags::ACK, b"")));
    assert_eq!(groups(&mut reader)[0].done().wanted, Wanted::Yes);
    drop(bench.proxy.swap_tap(None));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn a_connection_behind_one_that_was_not_captured_is_captured_from_its_syn_on() {
    let mut bench = Bench::new();
    let before = rested(&mut bench, 1024);
    let mut reader = capture(&mut bench, Choice::default(), HEADERS);
    only(bench.receive(&before.segment(TcpFlags::ACK, b"")));
    assert!(groups(&mut reader).is_empty(), "late segments of another");
    let mut client = again(1024);
    client.connect(&mut bench);
    let begun = groups(&mut reader);
    let kinds: Vec<_> = begun.iter().map(|group| group.kinds()).collect();
    assert_eq!(kinds, [vec![FROM_CLIENT, FrameKind::Own], vec![FROM_CLIENT]]);
    assert!(begun.iter().all(|group| !group.done().is_elsewhere));
    assert_eq!(begun[0].connection, begun[1].connection);
    assert_eq!(begun[1].done().facts.expect("made").phase, Phase::AwaitPayload);
    drop(bench.proxy.swap_tap(None));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn a_syn_is_passed_when_it_has_come_and_of_our_own_making_when_the_next_server_gets_it() {
    let mut bench = syn::bench();
    // Of all clients with IPv4, so that it is to be found out of every connection whether it is captured.
    let choice = Choice {
        client: Some((0xffff_0000_0000, u128::MAX << 32)),
        ..Choice::default()
    };
    let mut reader = capture(&mut bench, choice, HEADERS);
    let (client, first) = syn::forwarded(&mut bench);
    assert_eq!(groups(&mut reader)[0].kinds(), [FROM_CLIENT, FrameKind::Passed]);
    let refusal = Segment {
        ack: first.seq.wrapping_add(1),
        flags: TcpFlags::RST | TcpFlags::ACK,
        window: 0,
        ..Segment::between(first.to, first.from)
    };
    let second = only(bench.receive(&refusal));
    assert_eq!(groups(&mut reader)[0].kinds(), [FROM_SERVER, FrameKind::Own]);
    only(bench.receive(&client.syn()));
    assert_eq!(groups(&mut reader)[0].kinds(), [FROM_CLIENT, FrameKind::Passed]);
    only(bench.receive(&Server::from_syn(&second).syn_ack()));
    assert_eq!(groups(&mut reader)[0].kinds(), [FROM_SERVER, FrameKind::Passed]);
    drop(bench.proxy.swap_tap(None));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn the_pieces_of_a_segment_are_that_segment_and_nothing_of_it_is_dropped() {
    let mut bench = Bench::new();
    let mut reader = capture(&mut bench, Choice::default(), HEADERS);
    let mut client = Client::new(1024);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"0 hello"));
    let mut server = Server::from_syn(&syn);
    server.options.mss = Some(536);
    server.accept(&mut bench);
    server.ack = server.ack.wrapping_add(7);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    groups(&mut reader);
    bench.receive_raw(&client.segment(TcpFlags::PSH, &[7; 1000]));
    let cut = groups(&mut reader);
    let kinds = cut[0].kinds();
    let passed = kinds.iter().filter(|kind| **kind == FrameKind::Passed);
    assert_eq!((kinds[0], passed.count()), (FROM_CLIENT, 2), "{kinds:?}");
    assert_eq!(cut[0].done().dropped, None);
    assert_eq!(bench.dropped(DropReason::Resegmented), 1);
    drop(bench.proxy.swap_tap(None));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn what_is_dropped_for_its_flags_is_in_the_capture_of_its_connection() {
    let mut bench = Bench::new();
    let mut reader = capture(&mut bench, Choice::default(), HEADERS);
    let (client, _) = spliced(&mut bench, 1024);
    let connection = groups(&mut reader)[0].connection;
    let nonsense = client.segment(TcpFlags::SYN | TcpFlags::FIN, b"");
    nothing(bench.receive(&nonsense));
    let dropped = groups(&mut reader);
    assert_eq!(
        (dropped[0].kinds(), dropped[0].connection),
        (vec![FROM_CLIENT], connection)
    );
    assert_eq!(dropped[0].done().dropped, Some(DropReason::BadFlags));
    assert_eq!(dropped[0].done().facts.expect("open").phase, Phase::SPLICED);
    // Of others nothing is said.
    drop(bench.proxy.swap_tap(None));
    let of_nobody = Choice {
        client: Some((0, u128::MAX)),
        ..Choice::default()
    };
    let mut reader = capture(&mut bench, of_nobody, HEADERS);
    nothing(bench.receive(&nonsense));
    assert!(groups(&mut reader).is_empty());
    assert_eq!(bench.dropped(DropReason::BadFlags), 2);
    drop(bench.proxy.swap_tap(None));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn one_that_was_there_before_and_waits_for_its_server_may_still_become_wanted() {
    let mut bench = Bench::new();
    let [mut called, mut not_called] = [1024, 1025].map(|port| {
        let mut client = Client::new(port);
        client.connect(&mut bench);
        client
    });
    let (mut other, _) = spliced(&mut bench, 1026);
    let mut reader = capture(&mut bench, of_server(1), HEADERS);
    let places = bench.proxy.places_used();
    bench.proxy.choose_open(&mut (0..places));
    only(called.send(&mut bench, b"1 hello"));
    let group = groups(&mut reader).pop().expect("a group");
    assert!(group.events().contains(&Event::Buffered), "{group:?}");
    assert_eq!(group.done().wanted, Wanted::Yes);
    let syn = only(not_called.send(&mut bench, b"0 hello"));
    assert_eq!(groups(&mut reader)[0].done().wanted, Wanted::Unknown);
    Server::from_syn(&syn).accept(&mut bench);
    assert_eq!(groups(&mut reader)[0].done().wanted, Wanted::No);
    only(other.send(&mut bench, b"more"));
    assert!(groups(&mut reader).is_empty(), "it has another server");
    drop(bench.proxy.swap_tap(None));
    // Which rule has chosen is not known of one whose server is called.
    let choice = Choice {
        rule: Some(RuleId(7)),
        ..Choice::default()
    };
    let mut waiting = Client::new(1027);
    waiting.connect(&mut bench);
    let mut reader = capture(&mut bench, choice, HEADERS);
    let places = bench.proxy.places_used();
    bench.proxy.choose_open(&mut (0..places));
    nothing(called.send(&mut bench, b"more"));
    only(other.send(&mut bench, b"more"));
    assert!(groups(&mut reader).is_empty());
    only(waiting.send(&mut bench, b"0 hello"));
    assert_eq!(groups(&mut reader).len(), 1, "it might have been this one");
    drop(bench.proxy.swap_tap(None));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn the_records_of_all_that_end_between_two_looks_find_room() {
    const MANY: u16 = 1_500;
    let mut bench = Bench::with_config(&CONFIG.replace("max_connections = 64", "max_connections = 2000"));
    for port in 0..MANY {
        Client::new(1024 + port).connect(&mut bench);
    }
    let mut reader = capture(&mut bench, Choice::default(), HEADERS);
    bench.finish();
    let mut records = 0;
    reader.records(|_| records += 1);
    assert_eq!((records, reader.lost()), (MANY, 0));
    assert_eq!(groups(&mut reader).len(), usize::from(MANY));
    drop(bench.proxy.swap_tap(None));
    bench.assert_all_returned();
}
