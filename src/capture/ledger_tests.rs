//! What a ledger writes of groups that cores say, what it forgets, and what it says of that.

use super::*;
use e2d2::port::PortId;
use e2d2::wire::tcp::TcpFlags;
use netfcts::format::Named;
use netfcts::leg::mapped;
use rig::tshark;
use splice::action::Action;
use splice::capture::{Choice, Extent, Frame, FrameKind, Stepped, capture_ring};
use splice::event::Event;
use splice::ids::ServerId;
use std::net::IpAddr;

const MANY: Bounds = Bounds {
    connections: 100,
    groups: 100,
    bytes: 1 << 20,
};

/// Those that were reset, of each the last two groups.
fn reset() -> Ending {
    Ending {
        causes: vec![Cause::ActiveRst, Cause::PassiveRst],
        slower_than: None,
        last: 2,
    }
}

fn any() -> Ending {
    Ending {
        causes: Vec::new(),
        ..reset()
    }
}

fn named(name: &str) -> NameTable {
    let named = |name: &str| Named {
        name: name.to_owned(),
        address: ([10, 1, 0, 1], 80).into(),
    };
    NameTable {
        listeners: vec!["web".to_owned()],
        servers: vec![named(name)],
        ..NameTable::default()
    }
}

/// The same as [`file`] behind the file's head.
fn ledger(ending: Ending, bounds: Bounds) -> Ledger {
    let mut ledger = file(ending, bounds);
    ledger.out.clear();
    ledger
}

/// A ledger of two cores and one port: interface 0 is its legs to clients, 1 those to servers.
fn file(ending: Ending, bounds: Bounds) -> Ledger {
    let extent = Extent {
        snaplen: 128,
        payload: false,
    };
    let reader = |core| (core, capture_ring(Choice::default(), extent, 1, 1).1);
    Ledger::new(
        vec![reader(0), reader(1)],
        (ending, bounds),
        (named("b1"), RuleNames::new(), &["left".to_owned()]),
        ("", 128),
        (Instant::ZERO, u64::MAX),
    )
}

/// A frame from the client 10.0.0.1 with this port, or to its server.
fn frame(port: u16, seq: u32, payload: u16) -> Vec<u8> {
    let mut frame = vec![0; 54];
    frame[12..14].copy_from_slice(&[8, 0]);
    (frame[14], frame[23], frame[46]) = (0x45, 6, 0x50);
    frame[16..18].copy_from_slice(&(40 + payload).to_be_bytes());
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 9]);
    frame[34..36].copy_from_slice(&port.to_be_bytes());
    frame[38..42].copy_from_slice(&seq.to_be_bytes());
    frame[47] = TcpFlags::ACK.bits();
    frame
}

/// A group of the client with this port, in which its frame came in.
fn group(port: u16, packet: u64) -> (Group, Done) {
    let group = Group {
        packet,
        key: (0, u64::from(port)),
        at: Instant::ZERO + Duration::from_millis(packet),
        frames: Vec::new(),
        steps: Vec::new(),
    };
    let done = Done {
        facts: None,
        dropped: None,
        wanted: Wanted::Yes,
        is_over: false,
        is_elsewhere: false,
    };
    let mut said = (group, done);
    add(&mut said, FrameKind::Received(Side::Client), frame(port, 0, 0));
    said
}

fn add((group, _): &mut (Group, Done), kind: FrameKind, bytes: Vec<u8>) {
    let frame = Frame {
        kind,
        port: PortId(0),
        length: bytes.len() as u16,
        captured: bytes.len() as u16,
    };
    group.frames.push((frame, bytes));
}

fn facts(port: u16, phase: Phase) -> splice::capture::Facts {
    splice::capture::Facts {
        phase,
        client: mapped(IpAddr::from([10, 0, 0, 1])).to_ne_bytes(),
        client_port: port,
        listener: Some(0),
        server: Some(ServerId(0)),
        rule: None,
        offsets: (phase == Phase::SPLICED).then_some([1000, 0, 0, 0]),
    }
}

/// The same of one that is in this phase then.
fn in_phase(phase: Phase, port: u16, packet: u64) -> (Group, Done) {
    let (group, mut done) = group(port, packet);
    done.facts = Some(facts(port, phase));
    (group, done)
}

fn open(port: u16, packet: u64) -> (Group, Done) {
    in_phase(Phase::SPLICED, port, packet)
}

/// The group that ends one, by a RST of its server or otherwise.
fn end(port: u16, packet: u64, cause: &'static [Action]) -> (Group, Done) {
    let (mut group, mut done) = group(port, packet);
    group.steps.push(Stepped {
        before: Phase::SPLICED,
        event: Event::Reset(Side::Server),
        after: Phase::TimeWait,
        actions: cause,
        failure: None,
    });
    done.is_over = true;
    (group, done)
}

const BY_RESET: &[Action] = &[Action::EnterTimeWait(Cause::PassiveRst)];
const BY_CLOSE: &[Action] = &[Action::EnterTimeWait(Cause::ActiveClose)];

fn tell(ledger: &mut Ledger, (group, done): (Group, Done)) {
    ledger.settle(group, &done);
}

/// A packet of the file: its interface, its comment, and how many were lost before it.
#[derive(Debug)]
struct Said {
    interface: u32,
    comment: String,
    lost: u64,
}

impl Said {
    fn word(&self, key: &str) -> Option<&str> {
        let mut words = self.comment.split(' ').filter_map(|word| word.split_once('='));
        words.find(|(name, _)| *name == key).map(|(_, value)| value)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("four bytes")) as usize
}

/// The options from `at` on (draft-ietf-opsawg-pcapng 3.5).
fn options(block: &[u8], mut at: usize) -> Vec<(usize, Vec<u8>)> {
    let mut options = Vec::new();
    loop {
        let (code, length) = (u32_at(block, at) & 0xffff, u32_at(block, at) >> 16);
        if code == 0 {
            return options;
        }
        options.push((code, block[at + 4..at + 4 + length].to_vec()));
        at += 4 + length.next_multiple_of(4);
    }
}

fn number(options: &[(usize, Vec<u8>)], code: usize) -> u64 {
    let value = options.iter().find(|(found, _)| *found == code);
    value.map_or(0, |(_, value)| {
        u64::from_le_bytes(*value.first_chunk().expect("eight bytes"))
    })
}

fn blocks(ledger: &mut Ledger) -> Vec<Vec<u8>> {
    let mut out = std::mem::take(&mut ledger.out);
    let mut blocks = Vec::new();
    while !out.is_empty() {
        let rest = out.split_off(u32_at(&out, 4));
        blocks.push(std::mem::replace(&mut out, rest));
    }
    blocks
}

/// The packets that are in the file since this was asked last (4.3).
fn written(ledger: &mut Ledger) -> Vec<Said> {
    let packets = blocks(ledger).into_iter().filter(|block| u32_at(block, 0) == 6);
    let said = |block: Vec<u8>| {
        let options = options(&block, 28 + u32_at(&block, 20).next_multiple_of(4));
        let comment = options.iter().find(|(code, _)| *code == 1).expect("a comment");
        Said {
            interface: u32_at(&block, 8) as u32,
            comment: String::from_utf8(comment.1.clone()).expect("text"),
            lost: number(&options, 4),
        }
    };
    packets.map(said).collect()
}

/// By interface: the packets that are in the file or lost, and those that are lost (4.6), and what is said there.
fn statistics(ledger: &mut Ledger, why: Option<&str>) -> Vec<(u64, u64, Option<String>)> {
    ledger.finish(Instant::ZERO, why);
    let blocks = blocks(ledger).into_iter().filter(|block| u32_at(block, 0) == 5);
    let of = |block: Vec<u8>| {
        let options = options(&block, 20);
        let comment = options.iter().find(|(code, _)| *code == 1);
        let comment = comment.map(|(_, text)| String::from_utf8_lossy(text).into_owned());
        (number(&options, 4), number(&options, 5), comment)
    };
    blocks.map(of).collect()
}

fn packets(said: &[Said]) -> Vec<&str> {
    said.iter().filter_map(|said| said.word("pkt")).collect()
}

#[test]
fn the_last_groups_of_one_that_ends_so_are_written_and_nothing_of_others() {
    let mut ledger = ledger(reset(), MANY);
    for packet in 1..5 {
        tell(&mut ledger, open(1024, packet));
        tell(&mut ledger, open(1025, 100 + packet));
    }
    assert!(written(&mut ledger).is_empty());
    tell(&mut ledger, end(1025, 105, BY_CLOSE));
    tell(&mut ledger, end(1024, 5, BY_RESET));
    let said = written(&mut ledger);
    assert_eq!(packets(&said), ["0-4", "0-5"], "{said:?}");
    assert_eq!(
        (said[1].word("end"), said[1].word("conn")),
        (Some("PassiveRst"), Some("1"))
    );
    // Late segments go where the others went.
    tell(&mut ledger, in_phase(Phase::TimeWait, 1024, 6));
    tell(&mut ledger, in_phase(Phase::TimeWait, 1025, 106));
    assert_eq!(packets(&written(&mut ledger)), ["0-6"]);
    // What was left out by a choice is not lost.
    assert_eq!((ledger.totals().written, ledger.totals().lost), (3, 0));
}

#[test]
fn one_whose_server_is_slow_is_written_and_one_whose_is_not_is_not() {
    let slow = Ending {
        causes: Vec::new(),
        slower_than: Some(Duration::from_millis(10)),
        last: 9,
    };
    for (answered_at, count) in [(Some(11), 0), (Some(12), 3), (None, 2)] {
        let mut ledger = ledger(slow.clone(), MANY);
        let mut request = open(1024, 1);
        request.0.frames[0].1 = frame(1024, 0, 9);
        tell(&mut ledger, request);
        if let Some(at) = answered_at {
            let mut answer = open(1024, at);
            answer.0.frames.clear();
            add(&mut answer, FrameKind::Received(Side::Server), frame(80, 0, 9));
            tell(&mut ledger, answer);
        }
        tell(&mut ledger, end(1024, 13, BY_CLOSE));
        assert_eq!(written(&mut ledger).len(), count, "{answered_at:?}");
    }
}

#[test]
fn those_that_are_over_are_forgotten_first_then_strangers_then_the_oldest() {
    let bounds = Bounds { connections: 3, ..MANY };
    let mut ledger = ledger(reset(), bounds);
    tell(&mut ledger, open(1, 1));
    tell(&mut ledger, group(2, 2));
    tell(&mut ledger, open(3, 3));
    tell(&mut ledger, end(3, 4, BY_RESET));
    assert_eq!(written(&mut ledger).len(), 2);
    // A place is needed: the third is over, then the second is a stranger, and so are those that come.
    for port in 4..9 {
        tell(&mut ledger, group(port, u64::from(port)));
    }
    tell(&mut ledger, in_phase(Phase::TimeWait, 3, 10));
    assert!(written(&mut ledger).is_empty(), "what has become of it is not known");
    tell(&mut ledger, end(1, 11, BY_RESET));
    let said = written(&mut ledger);
    assert_eq!((packets(&said), said[0].word("conn")), (vec!["0-1", "0-11"], Some("1")));
    assert_eq!(said[0].word("client"), Some("10.0.0.1:1"));
    let totals = ledger.totals();
    assert_eq!((totals.forgotten, totals.forgotten_frames, totals.lost), (4, 4, 4));
}

#[test]
fn connections_by_the_million_leave_nothing_behind_that_grows() {
    let bounds = Bounds { connections: 8, ..MANY };
    let mut ledger = ledger(any(), bounds);
    for port in 0..1000 {
        tell(&mut ledger, group(port, 1));
        tell(&mut ledger, open(port, 2));
        tell(&mut ledger, end(port, 3, BY_CLOSE));
    }
    assert!(ledger.places.size() <= 3 * 2 * 8 + 8, "{}", ledger.places.size());
    assert_eq!((ledger.totals().written, ledger.totals().lost), (3000, 0));
}

#[test]
fn what_is_kept_is_bounded_by_groups_and_by_bytes_and_what_is_forgotten_is_told_by_interface() {
    let (groups, bytes) = (Bounds { groups: 4, ..MANY }, Bounds { bytes: 2100, ..MANY });
    for bounds in [groups, bytes] {
        let mut ledger = ledger(Ending { last: 9, ..reset() }, bounds);
        for packet in 1..4 {
            let mut passed = open(1, packet);
            add(&mut passed, FrameKind::Passed, frame(5000, 1000, 0));
            tell(&mut ledger, passed);
        }
        tell(&mut ledger, open(2, 4));
        tell(&mut ledger, open(2, 5));
        // Both stay known; of the older nothing is kept any more.
        tell(&mut ledger, end(2, 6, BY_RESET));
        tell(&mut ledger, end(1, 7, BY_RESET));
        let said = written(&mut ledger);
        assert_eq!(packets(&said), ["0-4", "0-5", "0-6", "0-7"], "{bounds:?}");
        assert_eq!((said[0].word("conn"), said[3].word("conn")), (Some("2"), Some("1")));
        assert!(said.iter().all(|said| said.interface == 0));
        let before: u64 = said.iter().map(|said| said.lost).sum();
        assert_eq!((said[0].lost, before), (3, 3), "those of the same interface");
        let totals = ledger.totals();
        assert_eq!((totals.lost, totals.forgotten_frames, totals.forgotten), (6, 6, 1));
        let at_the_end = statistics(&mut ledger, None);
        let counts: Vec<_> = at_the_end
            .iter()
            .map(|(received, lost, _)| (*received, *lost))
            .collect();
        assert_eq!(counts, [(7, 3), (3, 3), (0, 0)], "all that were lost");
    }
}

#[test]
fn groups_of_all_cores_are_written_in_the_order_of_time() {
    let mut ledger = ledger(any(), MANY);
    let of_other = |port, packet| {
        let (mut group, done) = open(port, packet);
        group.key.0 = 1;
        (group, done)
    };
    ledger.settle_all(vec![open(1, 1), open(1, 4), of_other(1, 2), of_other(1, 3)]);
    let said = written(&mut ledger);
    assert_eq!(packets(&said), ["0-1", "1-2", "1-3", "0-4"]);
    let connections: Vec<_> = said.iter().filter_map(|said| said.word("conn")).collect();
    assert_eq!(connections, ["1", "2", "2", "1"]);
}

#[test]
fn a_port_that_is_used_again_is_another_connection_even_if_the_end_of_the_first_was_lost() {
    for is_end_lost in [false, true] {
        let mut ledger = ledger(any(), MANY);
        tell(&mut ledger, open(1, 1));
        if !is_end_lost {
            tell(&mut ledger, end(1, 2, BY_CLOSE));
        }
        written(&mut ledger);
        tell(&mut ledger, group(1, 3));
        tell(&mut ledger, in_phase(Phase::AwaitPayload, 1, 4));
        let said = written(&mut ledger);
        assert!(said.iter().all(|said| said.word("conn") == Some("2")), "{said:?}");
        assert_eq!(said[0].word("server"), None, "{said:?}");
    }
}

#[test]
fn what_was_held_names_the_packets_in_which_it_came() {
    let mut ledger = ledger(any(), MANY);
    for (packet, seq) in [(1, 100), (2, 110), (3, 120)] {
        let mut part = in_phase(Phase::AwaitPayload, 1, packet);
        part.0.frames[0].1 = frame(1, seq, 10);
        tell(&mut ledger, part);
    }
    let mut answer = open(1, 4);
    answer.0.frames.clear();
    add(&mut answer, FrameKind::Received(Side::Server), frame(80, 0, 0));
    add(&mut answer, FrameKind::Own, frame(5000, 1100, 0));
    add(&mut answer, FrameKind::Held, frame(5000, 1100, 15));
    add(&mut answer, FrameKind::Held, frame(5000, 1115, 15));
    tell(&mut ledger, answer);
    let said = written(&mut ledger);
    let came: Vec<_> = said[3..]
        .iter()
        .map(|said| (said.word("kind"), said.word("of")))
        .collect();
    assert_eq!(
        came,
        [
            (Some("received"), None),
            (Some("own"), None),
            (Some("held"), Some("0-1,0-2")),
            (Some("held"), Some("0-2,0-3"))
        ]
    );
}

#[test]
fn names_are_those_of_the_time_and_a_file_that_ends_early_says_why() {
    let mut ledger = ledger(any(), MANY);
    tell(&mut ledger, open(1, 1));
    ledger.rename(named("b2"), RuleNames::new());
    tell(&mut ledger, open(1, 2));
    let said = written(&mut ledger);
    let servers: Vec<_> = said.iter().map(|said| said.word("server")).collect();
    assert_eq!(servers, [Some("b1"), Some("b2")]);
    let ends = statistics(&mut ledger, Some("ended by a reload"));
    assert_eq!(ends[0].2.as_deref(), Some("ended by a reload"));
}

/// Of the frames of the first connection three are forgotten; the second ends by a timer that sends nothing.
#[test]
fn tshark_reads_how_many_frames_were_lost_and_what_was_done_without_a_frame() {
    if !tshark::is_there("capture::lost_frames") {
        return;
    }
    let mut ledger = file(Ending { last: 9, ..reset() }, Bounds { groups: 4, ..MANY });
    (1..4).for_each(|packet| tell(&mut ledger, open(1, packet)));
    tell(&mut ledger, open(2, 4));
    tell(&mut ledger, open(2, 5));
    let (mut timer, done) = end(2, 6, BY_RESET);
    timer.frames.clear();
    tell(&mut ledger, (timer, done));
    tell(&mut ledger, end(1, 7, BY_RESET));
    ledger.finish(Instant::ZERO, None);
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("lost.pcapng");
    std::fs::write(&path, &ledger.out).expect("write");
    let names = ["frame.interface_name", "frame.drop_count"];
    let told: Vec<String> = tshark::fields(&path, &[], &names)
        .iter()
        .map(|fields| fields.join(" "))
        .collect();
    assert_eq!(told, ["left.client 3", "left.client ", "engine ", "left.client "]);
    let kinds: Vec<_> = tshark::frames(&path)
        .iter()
        .map(|frame| frame.word("kind").map(str::to_owned))
        .collect();
    assert_eq!(kinds[2].as_deref(), Some("event"), "{kinds:?}");
}
