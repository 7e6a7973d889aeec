//! What a capture sees of chosen connections: both legs, what was decided, and what it costs those who are not chosen.

use crate::harness::{Bench, CONFIG, Client, Server, TABLE_SECRET, close, nothing, only, spliced};
use crate::icmp::error_about;
use e2d2::port::PortId;
use e2d2::wire::tcp::TcpFlags;
use netfcts::leg::mapped;
use netfcts::record::Cause;
use netfcts::{FourTuple, Side};
use proxyengine::config::ServerId;
use splice::action::Action;
use splice::capture::{CaptureReader, Choice, Done, ENTRIES, Extent, FrameKind, Stepped, Wanted, What, capture_ring};
use splice::drop_reason::DropReason;
use splice::event::Event;
use splice::ids::RuleId;
use splice::phase::Phase;
use splice::table::{FlowRef, FlowTable};
use std::num::NonZeroU32;
use std::time::Duration;
use testkit::{Segment, Station};

pub const HEADERS: Extent = Extent {
    snaplen: 128,
    payload: false,
};

/// What one group says.
#[derive(Debug, Default)]
pub struct Group {
    packet: u64,
    pub connection: u64,
    frames: Vec<(FrameKind, Vec<u8>)>,
    steps: Vec<Stepped>,
    done: Option<Done>,
}

impl Group {
    pub fn kinds(&self) -> Vec<FrameKind> {
        self.frames.iter().map(|(kind, _)| *kind).collect()
    }

    pub fn done(&self) -> &Done {
        self.done.as_ref().expect("every group has an end")
    }

    pub fn events(&self) -> Vec<Event> {
        self.steps.iter().map(|step| step.event).collect()
    }
}

/// Begins a capture.
pub fn capture(bench: &mut Bench, choice: Choice, extent: Extent) -> CaptureReader {
    let settings = bench.proxy.settings();
    let (places, resting) = (settings.capacity.connections, settings.capacity.time_wait);
    let (tap, reader) = capture_ring(choice, extent, places, resting);
    assert!(bench.proxy.swap_tap(Some(tap)).is_none());
    reader
}

/// The groups that have ended, each of which has to.
pub fn groups(reader: &mut CaptureReader) -> Vec<Group> {
    let (mut open, mut ended): (Vec<Group>, Vec<Group>) = (Vec::new(), Vec::new());
    let place_of = |open: &mut Vec<Group>, packet| {
        let place = open.iter().position(|group| group.packet == packet);
        place.unwrap_or_else(|| {
            open.push(Group {
                packet,
                ..Group::default()
            });
            open.len() - 1
        })
    };
    loop {
        let entry = reader.next(|packet, frame, bytes| {
            let place = place_of(&mut open, packet);
            open[place].frames.push((frame.kind, bytes));
        });
        let Some(entry) = entry else { break };
        let place = place_of(&mut open, entry.packet);
        open[place].connection = entry.connection;
        match entry.what {
            What::Step(step) => open[place].steps.push(step),
            What::Done(done) => {
                open[place].done = Some(done);
                ended.push(open.remove(place));
            }
        }
    }
    assert!(open.is_empty(), "{open:?}");
    ended
}

pub const FROM_CLIENT: FrameKind = FrameKind::Received(Side::Client);
pub const FROM_SERVER: FrameKind = FrameKind::Received(Side::Server);

#[test]
fn both_legs_of_a_connection_are_paired_from_its_syn_to_its_record() {
    let mut bench = Bench::new();
    let mut reader = capture(&mut bench, Choice::default(), HEADERS);
    let (mut client, mut server) = spliced(&mut bench, 1024);
    only(server.send(&mut bench, b"hello, client"));
    client.ack = client.ack.wrapping_add(13);
    close(&mut bench, &mut client, &mut server);
    let groups = groups(&mut reader);
    let kinds: Vec<_> = groups.iter().map(Group::kinds).collect();
    let expected: [&[FrameKind]; 9] = [
        &[FROM_CLIENT, FrameKind::Own],
        &[FROM_CLIENT],
        // Its request, for which its server is called, and the answer, behind which the request follows.
        &[FROM_CLIENT, FrameKind::Own],
        &[FROM_SERVER, FrameKind::Own, FrameKind::Held],
        &[FROM_SERVER, FrameKind::Passed],
        &[FROM_SERVER, FrameKind::Passed],
        &[FROM_CLIENT, FrameKind::Passed],
        &[FROM_SERVER, FrameKind::Passed],
        &[FROM_CLIENT, FrameKind::Passed],
    ];
    assert_eq!(kinds, expected);
    assert!(groups.iter().all(|group| group.connection == groups[0].connection));
    assert!(groups.windows(2).all(|two| two[0].packet + 1 == two[1].packet));
    let events = groups[2].events();
    assert_eq!(
        events,
        [Event::ClientData, Event::Buffered, Event::Selected, Event::PortTaken]
    );
    assert_eq!(groups[3].steps[0].after, Phase::SPLICED);
    let facts = groups[4].done().facts.expect("it is open");
    assert_eq!((facts.server, facts.client_port), (Some(ServerId(0)), 1024));
    let [client_seq, ..] = facts.offsets.expect("it is spliced");
    let (_, received) = &groups[6].frames[0];
    let (_, passed) = &groups[6].frames[1];
    let seq = |frame: &[u8]| u32::from_be_bytes(*frame[38..].first_chunk().expect("a TCP header"));
    assert_eq!(seq(received).wrapping_add(client_seq), seq(passed));
    // Neither the request nor the answer is in it.
    assert!(
        groups
            .iter()
            .flat_map(|group| &group.frames)
            .all(|(_, frame)| frame.len() <= 74)
    );
    let last = groups.last().expect("there are some");
    assert!(last.done().is_over && last.done().wanted == Wanted::Yes);
    let actions = last.steps.last().expect("a step").actions;
    assert_eq!(actions.last(), Some(&Action::EnterTimeWait(Cause::ActiveClose)));
    let mut records = Vec::new();
    reader.records(|record| records.push(*record));
    assert_eq!(records, bench.records());
    // The last ACK again finds a connection at rest.
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    let late = self::groups(&mut reader);
    assert_eq!(late[0].kinds(), [FROM_CLIENT, FrameKind::Passed]);
    assert_eq!(late[0].done().facts.expect("it rests").phase, Phase::TimeWait);
    assert_eq!(reader.lost(), 0);
    drop(bench.proxy.swap_tap(None));
    assert!(reader.is_abandoned());
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn a_frame_that_is_dropped_says_why_and_a_timer_is_a_group() {
    let mut bench = Bench::new();
    let mut reader = capture(&mut bench, Choice::default(), HEADERS);
    let (client, _) = spliced(&mut bench, 1024);
    groups(&mut reader);
    let beyond = Segment {
        seq: client.seq.wrapping_add(0x4000_0000),
        flags: TcpFlags::RST,
        ..client.segment(TcpFlags::RST, b"")
    };
    nothing(bench.receive(&beyond));
    let dropped = &groups(&mut reader)[0];
    assert_eq!(dropped.kinds(), [FROM_CLIENT]);
    assert_eq!(dropped.done().dropped, Some(DropReason::OutOfWindowRst));
    let mut waiting = Client::new(1025);
    waiting.connect(&mut bench);
    only(waiting.send(&mut bench, b"1 hello"));
    groups(&mut reader);
    bench.wait(Duration::from_secs(4));
    let of_timers = groups(&mut reader);
    assert!(!of_timers.is_empty());
    for group in &of_timers {
        assert_eq!(
            (group.kinds(), group.events()),
            (vec![FrameKind::Own], vec![Event::RetryDue])
        );
    }
    bench.finish();
    let ends = groups(&mut reader);
    assert_eq!(ends.len(), 2);
    assert!(
        ends.iter()
            .all(|group| group.events() == [Event::Shutdown] && group.done().is_over)
    );
    drop(bench.proxy.swap_tap(None));
    bench.assert_all_returned();
}

#[test]
fn only_what_is_chosen_is_captured() {
    let mut bench = Bench::new();
    let other = |port| Client {
        me: Station::new(1, "10.0.0.77:1026").with_port(port),
        ..Client::new(port)
    };
    let choice = Choice {
        client: Some((0xffff_0a00_004d, u128::MAX)),
        ..Choice::default()
    };
    let mut reader = capture(&mut bench, choice, HEADERS);
    spliced(&mut bench, 1024);
    assert!(groups(&mut reader).is_empty());
    other(1025).connect(&mut bench);
    assert_eq!(groups(&mut reader).len(), 2);
    drop(bench.proxy.swap_tap(None));
    // One of the server that is wanted is known to be when that is called, any other when it is connected.
    let choice = Choice {
        server: Some(ServerId(1)),
        ..Choice::default()
    };
    let mut reader = capture(&mut bench, choice, HEADERS);
    let (mut unwanted, _) = spliced(&mut bench, 1030);
    let of_unwanted: Vec<_> = groups(&mut reader).iter().map(|group| group.done().wanted).collect();
    assert_eq!(
        of_unwanted,
        [Wanted::Unknown, Wanted::Unknown, Wanted::Unknown, Wanted::No]
    );
    only(unwanted.send(&mut bench, b"more"));
    assert!(groups(&mut reader).is_empty());
    let mut wanted = Client::new(1031);
    wanted.connect(&mut bench);
    let syn = only(wanted.send(&mut bench, b"1 hello"));
    Server::from_syn(&syn).accept(&mut bench);
    let of_wanted: Vec<_> = groups(&mut reader).iter().map(|group| group.done().wanted).collect();
    assert_eq!(of_wanted, [Wanted::Unknown, Wanted::Unknown, Wanted::Yes, Wanted::Yes]);
    // No rule of the configuration has chosen it.
    drop(bench.proxy.swap_tap(None));
    let choice = Choice {
        rule: Some(RuleId(0)),
        ..Choice::default()
    };
    let mut reader = capture(&mut bench, choice, HEADERS);
    spliced(&mut bench, 1032);
    assert_eq!(groups(&mut reader).last().expect("a group").done().wanted, Wanted::No);
    drop(bench.proxy.swap_tap(None));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn connections_that_were_there_before_are_captured_from_then_on() {
    let mut bench = Bench::new();
    let (mut client, server) = spliced(&mut bench, 1024);
    let choice = Choice {
        server: Some(ServerId(0)),
        ..Choice::default()
    };
    let mut reader = capture(&mut bench, choice, HEADERS);
    only(client.send(&mut bench, b"before"));
    assert!(groups(&mut reader).is_empty());
    let mut places = 0..bench.proxy.places_used();
    bench.proxy.choose_open(&mut places);
    assert!(places.is_empty());
    only(client.send(&mut bench, b"after"));
    only(bench.receive(&server.segment(TcpFlags::ACK, b"answer")));
    let groups = groups(&mut reader);
    for (group, from) in groups.iter().zip([FROM_CLIENT, FROM_SERVER]) {
        assert_eq!(
            (group.kinds(), group.done().wanted),
            (vec![from, FrameKind::Passed], Wanted::Yes)
        );
    }
    assert_eq!(groups.len(), 2);
    drop(bench.proxy.swap_tap(None));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn what_finds_no_room_is_counted_and_groups_that_have_begun_end() {
    let mut bench = Bench::new();
    let whole = Extent {
        snaplen: 2048,
        payload: true,
    };
    let mut reader = capture(&mut bench, Choice::default(), whole);
    let (mut client, _) = spliced(&mut bench, 1024);
    let before: usize = groups(&mut reader).iter().map(|group| group.frames.len()).sum();
    assert_eq!(before, 10);
    let sent = ENTRIES;
    for _ in 0..sent {
        only(client.send(&mut bench, &[7; 100]));
        client.seq = client.seq.wrapping_sub(100);
    }
    // What would not be captured is not lost: a segment that nobody listens for, whatever its checksum, and the RST to it.
    let lost = reader.lost();
    let mut syn = client.syn();
    syn.to = syn.to.with_port(9_999);
    syn.from = syn.from.with_port(2_000);
    only(bench.receive(&syn));
    let mut damaged = syn.frame();
    *damaged.last_mut().expect("a byte") ^= 1;
    assert!(bench.receive_bytes(PortId(0), &damaged).is_empty());
    assert_eq!(reader.lost(), lost);
    let kept = groups(&mut reader);
    let frames: usize = kept.iter().map(|group| group.frames.len()).sum();
    assert_eq!(frames as u64 + reader.lost(), 2 * sent as u64);
    assert!(reader.lost() > sent as u64 / 2);
    assert!(
        kept.iter()
            .all(|group| group.frames.len() == 2 && group.frames.iter().all(|(_, frame)| frame.len() == 166)),
        "whole or not at all"
    );
    // There is room again, which is seen a little later.
    bench.wait(Duration::from_millis(1));
    only(client.send(&mut bench, b"more"));
    assert_eq!(groups(&mut reader)[0].kinds(), [FROM_CLIENT, FrameKind::Passed]);
    drop(bench.proxy.swap_tap(None));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn one_of_many_is_captured_whole_or_not_at_all() {
    let mut bench = Bench::with_config(&CONFIG.replace("max_connections = 64", "max_connections = 1000"));
    let choice = Choice {
        one_in: NonZeroU32::new(10).expect("not zero"),
        ..Choice::default()
    };
    let mut reader = capture(&mut bench, choice, HEADERS);
    let (mut chosen, all) = (0, 300);
    for port in 0..all {
        let (mut client, mut server) = spliced(&mut bench, 1024 + port);
        let begun = groups(&mut reader);
        assert!(begun.is_empty() || begun.len() == 5, "{begun:?}");
        let is_chosen = !begun.is_empty();
        chosen += u16::from(is_chosen);
        // Both legs, and also where they rest.
        close(&mut bench, &mut client, &mut server);
        groups(&mut reader);
        let late = [client.segment(TcpFlags::ACK, b""), server.segment(TcpFlags::ACK, b"")];
        late.iter().for_each(|segment| _ = only(bench.receive(segment)));
        assert_eq!(groups(&mut reader).len(), if is_chosen { 2 } else { 0 });
    }
    assert!((10..=60).contains(&chosen), "{chosen} of {all}");
    drop(bench.proxy.swap_tap(None));
    bench.finish();
    bench.assert_all_returned();
}

/// Two clients for whose segments the flow table, if the first is in it, guesses the first.
fn clients_of_one_guess(bench: &Bench) -> [Client; 2] {
    let capacity = bench.proxy.settings().capacity;
    let mut table = FlowTable::new(2 * (capacity.connections + capacity.time_wait), TABLE_SECRET);
    let hash = |table: &FlowTable, host: u8, port| {
        table.hash(&FourTuple {
            remote: 0xffff_0a00_0000 | u128::from(host),
            local: 0xffff_0a00_0009,
            remote_port: port,
            local_port: 80,
        })
    };
    let first = FlowRef::client(0);
    table.insert(hash(&table, 10, 1024), first).expect("it is empty");
    let others = (11..200).flat_map(|host| (1024..u16::MAX).map(move |port| (host, port)));
    let of_one_guess = |&(host, port): &(u8, u16)| table.guess(hash(&table, host, port)) == Some(first);
    let second = others.into_iter().find(of_one_guess).expect("one of millions");
    [(10, 1024), second].map(|(host, port)| Client {
        me: Station::new(1, &format!("10.0.0.{host}:{port}")),
        ..Client::new(port)
    })
}

#[test]
fn a_wrong_guess_of_the_flow_table_hides_nothing_from_a_capture() {
    let mut bench = Bench::new();
    let mut clients = clients_of_one_guess(&bench);
    let address = mapped(clients[1].me.address.ip());
    for client in &mut clients {
        client.connect(&mut bench);
        let syn = only(client.send(&mut bench, b"0 hello"));
        Server::from_syn(&syn).accept(&mut bench);
    }
    let choice = Choice {
        client: Some((address, u128::MAX)),
        ..Choice::default()
    };
    let mut reader = capture(&mut bench, choice, HEADERS);
    let places = bench.proxy.places_used();
    bench.proxy.choose_open(&mut (0..places));
    let [uncaptured, captured] = clients.map(|client| client.segment(TcpFlags::ACK, b"more"));
    for batch in [
        [&uncaptured, &captured, &uncaptured],
        [&captured, &uncaptured, &captured],
        [&uncaptured, &uncaptured, &captured],
    ] {
        let batch: Vec<Segment> = batch.into_iter().cloned().collect();
        assert_eq!(bench.receive_all(&batch, 64).len(), 3);
        let of_captured = batch.iter().filter(|segment| segment.from == captured.from);
        let groups = groups(&mut reader);
        assert_eq!(groups.len(), of_captured.count());
        assert!((groups.iter()).all(|group| group.kinds() == [FROM_CLIENT, FrameKind::Passed]));
    }
    assert_eq!(reader.lost(), 0);
    drop(bench.proxy.swap_tap(None));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn an_icmp_error_about_a_captured_connection_is_captured_without_what_it_quotes_of_payload() {
    let mut bench = Bench::new();
    let mut reader = capture(&mut bench, Choice::default(), HEADERS);
    let (mut client, _) = spliced(&mut bench, 1024);
    let passed = only(client.send(&mut bench, &[b'x'; 1400]));
    groups(&mut reader);
    let (port, error) = error_about(&passed, Some(1300));
    assert_eq!(bench.receive_icmp(port, &error).len(), 1);
    let told = groups(&mut reader);
    let [group] = &told[..] else { panic!("{told:?}") };
    assert_eq!(group.kinds(), [FROM_SERVER, FrameKind::Own]);
    assert_eq!(group.done().dropped, None);
    // Ethernet, IP, ICMP, and of the quote IP and TCP: all of its header from the router, its first eight bytes from us.
    let headers = 14 + 20 + 8 + 20;
    let [(_, received), (_, own)] = &group.frames[..] else {
        panic!("{group:?}")
    };
    assert_eq!(received.len(), headers + usize::from(received[headers + 12] >> 4) * 4);
    assert_eq!(own.len(), headers + 8);
    // One that is not believed says why.
    let late = Segment {
        seq: passed.seq.wrapping_sub(100_000),
        ..passed
    };
    let (port, error) = error_about(&late, Some(1300));
    assert!(bench.receive_icmp(port, &error).is_empty());
    let told = groups(&mut reader);
    assert_eq!(told[0].kinds(), [FROM_SERVER]);
    assert_eq!(told[0].done().dropped, Some(DropReason::IcmpNotInFlight));
    // Of a connection that is not captured nothing is said.
    drop(bench.proxy.swap_tap(None));
    let of_nobody = Choice {
        client: Some((0, u128::MAX)),
        ..Choice::default()
    };
    let mut reader = capture(&mut bench, of_nobody, HEADERS);
    let (port, error) = error_about(&late, Some(1300));
    assert!(bench.receive_icmp(port, &error).is_empty());
    assert!(groups(&mut reader).is_empty());
    drop(bench.proxy.swap_tap(None));
    bench.finish();
    bench.assert_all_returned();
}
