//! Checks with content: the core, the checker's end points, and servers that answer wrongly, in virtual time.

use crate::checks::{SECOND, checked, millis};
use crate::harness::{Bench, CONFIG, nothing};
use crate::probes::number;
use e2d2::time::Instant;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use proxyengine::checks::{Checker, MOST_AT_ONCE, check_line};
use splice::CheckEvent;
use splice::drop_reason::DropReason;
use splice::server_state::CheckFailure;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use test_case::test_case;
use testkit::{Segment, Station};

const HTTP: &str = "{ kind = \"http\", path = \"/health\", body = \"fine\" }";
pub const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall is fine";

/// What a server does with a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lie {
    /// Answers the request with these bytes.
    Says(&'static [u8]),
    /// Answers no SYN.
    Silent,
    /// Answers SYNs with RST.
    Refusing,
    /// Accepts, and says nothing.
    Mute,
    /// Accepts, and ends the connection behind these bytes.
    Ends(&'static [u8]),
    /// Accepts, and resets the connection when it has the request.
    Resets,
    /// Says these bytes once, and then the others every millisecond.
    Endless(&'static [u8], &'static [u8]),
    /// Says a byte of these every second.
    Drips(&'static [u8]),
}

/// A server's end of a connection.
struct Peer {
    ours: Station,
    theirs: Station,
    next: u32,
    expected: u32,
    request: Vec<u8>,
    said: usize,
    said_at: Instant,
    has_ended: bool,
}

pub struct Farm {
    pub bench: Bench,
    checker: Checker,
    pub lies: [Lie; 3],
    peers: HashMap<(SocketAddr, SocketAddr), Peer>,
    /// When each SYN came, for whom, and its number.
    pub syns: Vec<(Instant, SocketAddr, u32)>,
    pub requests: Vec<(usize, Vec<u8>)>,
    resets: usize,
    /// A SYN-ACK may come when its check is over: it is reset.
    pub may_be_late: bool,
}

impl Farm {
    pub fn new(text: &str) -> Self {
        let mut bench = Bench::with_config(text);
        let (line, theirs) = check_line();
        bench.set_check_line(line);
        let checker = Checker::new(vec![theirs], Arc::new(bench.config.clone()));
        Farm {
            bench,
            checker,
            lies: [Lie::Says(GOOD); 3],
            peers: HashMap::new(),
            syns: Vec::new(),
            requests: Vec::new(),
            resets: 0,
            may_be_late: false,
        }
    }

    pub fn run(&mut self, time: Duration) {
        let end = self.bench.now + time;
        while self.bench.now < end {
            self.step();
        }
    }

    /// A millisecond.
    fn step(&mut self) {
        let mut sent = self.bench.wait(millis(1));
        for _ in 0..8 {
            self.checker.round(self.bench.now);
            sent.extend(self.bench.work_checks());
            for segment in std::mem::take(&mut sent) {
                self.answer(&segment);
            }
        }
        self.speak();
    }

    fn send(&mut self, segment: &Segment) {
        let sent = self.bench.receive(segment);
        let is_late = self.may_be_late && segment.flags == TcpFlags::SYN | TcpFlags::ACK;
        assert!(is_late || sent.is_empty(), "nothing expected: {sent:#?}");
    }

    fn answer(&mut self, segment: &Segment) {
        let key = (segment.from.address, segment.to.address);
        let lie = self.lies[number(segment)];
        if segment.flags.contains(TcpFlags::RST) {
            self.resets += 1;
            self.peers.remove(&key);
        } else if segment.flags.contains(TcpFlags::SYN) {
            self.syns.push((self.bench.now, segment.to.address, segment.seq));
            self.accept(segment, lie);
        } else if let Some(peer) = self.peers.get_mut(&key) {
            assert_eq!(segment.seq, peer.expected, "nothing is lost here");
            peer.expected = peer.expected.wrapping_add(segment.len());
            if segment.payload.is_empty() {
                return;
            }
            peer.request.extend_from_slice(&segment.payload);
            peer.said_at = self.bench.now;
            self.requests.push((number(segment), segment.payload.clone()));
            self.reply(key, lie);
        }
    }

    fn accept(&mut self, syn: &Segment, lie: Lie) {
        let answer = Segment {
            seq: u32::MAX - 5,
            ack: syn.seq.wrapping_add(1),
            flags: TcpFlags::SYN | TcpFlags::ACK,
            options: TcpOptions {
                mss: Some(1460),
                ..TcpOptions::NONE
            },
            ..Segment::between(syn.to, syn.from)
        };
        match lie {
            Lie::Silent => return,
            Lie::Refusing => {
                return self.send(&Segment {
                    seq: 0,
                    flags: TcpFlags::RST | TcpFlags::ACK,
                    options: TcpOptions::NONE,
                    ..answer
                });
            }
            _ => {}
        }
        let peer = Peer {
            ours: syn.to,
            theirs: syn.from,
            next: answer.seq.wrapping_add(1),
            expected: answer.ack,
            request: Vec::new(),
            said: 0,
            said_at: self.bench.now,
            has_ended: false,
        };
        self.peers.insert((syn.from.address, syn.to.address), peer);
        self.send(&answer);
    }

    fn reply(&mut self, key: (SocketAddr, SocketAddr), lie: Lie) {
        match lie {
            Lie::Says(bytes) | Lie::Endless(bytes, _) => self.say(key, bytes, TcpFlags::ACK),
            Lie::Ends(bytes) => self.say(key, bytes, TcpFlags::ACK | TcpFlags::FIN),
            Lie::Resets => self.say(key, b"", TcpFlags::ACK | TcpFlags::RST),
            _ => self.say(key, b"", TcpFlags::ACK),
        }
    }

    fn say(&mut self, key: (SocketAddr, SocketAddr), bytes: &[u8], flags: TcpFlags) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let segment = Segment {
            seq: peer.next,
            ack: peer.expected,
            flags,
            payload: bytes.to_vec(),
            ..Segment::between(peer.ours, peer.theirs)
        };
        peer.next = peer.next.wrapping_add(segment.len());
        peer.has_ended |= flags != TcpFlags::ACK;
        if flags.contains(TcpFlags::RST) {
            self.peers.remove(&key);
        }
        self.send(&segment);
    }

    /// What servers say without being asked.
    fn speak(&mut self) {
        let now = self.bench.now;
        let keys: Vec<_> = self.peers.keys().copied().collect();
        for key in keys {
            let peer = self.peers.get_mut(&key).expect("its own key");
            let server = usize::from(key.1.ip().to_string().ends_with('1'))
                + 2 * usize::from(key.1.ip().to_string().ends_with('2'));
            if peer.request.is_empty() || peer.has_ended {
                continue;
            }
            match self.lies[server] {
                Lie::Endless(_, bytes) => self.say(key, bytes, TcpFlags::ACK),
                Lie::Drips(bytes) if now - peer.said_at >= SECOND && peer.said < bytes.len() => {
                    let part = &bytes[peer.said..=peer.said];
                    (peer.said, peer.said_at) = (peer.said + 1, now);
                    self.say(key, part, TcpFlags::ACK);
                }
                _ => {}
            }
        }
    }

    pub fn counted(&self, event: CheckEvent) -> u64 {
        self.bench.proxy.checks()[event]
    }

    pub fn is_down(&self, server: u16) -> Option<CheckFailure> {
        Some(self.bench.standby.server(server).down()?.0)
    }

    fn time_until(&mut self, down: bool) -> Duration {
        let start = self.bench.now;
        while self.is_down(0).is_some() != down {
            assert!(self.bench.now - start < Duration::from_secs(60), "never");
            self.step();
        }
        self.bench.now - start
    }

    #[track_caller]
    pub fn assert_all_returned(&mut self) {
        nothing(self.bench.finish());
        self.bench.assert_all_returned();
    }
}

#[test]
fn a_server_that_answers_as_it_should_is_checked_once_an_interval() {
    let mut farm = Farm::new(&checked(HTTP));
    farm.run(Duration::from_secs(10));
    assert_eq!(farm.syns.len(), 30);
    assert_eq!(farm.requests.len(), 30);
    assert_eq!(farm.resets, 30, "each is ended");
    let request = String::from_utf8(farm.requests[0].1.clone()).expect("text");
    assert!(
        request.starts_with("GET /health HTTP/1.0\r\nHost: 10.1.0.10"),
        "{request}"
    );
    assert_eq!(
        (farm.counted(CheckEvent::ContentBegun), farm.counted(CheckEvent::Passed)),
        (30, 30)
    );
    assert_eq!(farm.counted(CheckEvent::SynSent), 0);
    assert_eq!(farm.bench.proxy.drops()[DropReason::UnknownFlow], 0);
    farm.assert_all_returned();
}

#[test_case(Lie::Says(b"HTTP/1.1 503 Service Unavailable\r\n\r\n"), CheckFailure::Wrong, 1300; "503")]
#[test_case(Lie::Says(b"SSH-2.0-OpenSSH_9.2\r\n"), CheckFailure::Wrong, 1300; "another protocol")]
#[test_case(Lie::Ends(b"HTTP/1.1 200 OK\r\n\r\nnot so"), CheckFailure::Wrong, 1300; "a body without the text")]
#[test_case(Lie::Ends(b""), CheckFailure::Wrong, 1300; "an end and no answer")]
#[test_case(Lie::Resets, CheckFailure::Wrong, 1300; "a reset and no answer")]
#[test_case(Lie::Endless(b"HTTP/1.1 200 OK\r\n\r\n", &[b'x'; 1000]), CheckFailure::Wrong, 1400; "an answer without end")]
#[test_case(Lie::Endless(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), CheckFailure::Wrong, 8000; "a head without end")]
#[test_case(Lie::Drips(b"HTTP/1.1 200 OK\r\n\r\nfine"), CheckFailure::Unanswered, 4200; "a byte a second")]
#[test_case(Lie::Mute, CheckFailure::Unanswered, 4200; "accepted and mute")]
#[test_case(Lie::Silent, CheckFailure::Unanswered, 4200; "silent")]
#[test_case(Lie::Refusing, CheckFailure::Refused, 1300; "refusing")]
fn a_server_that_lies_is_down_in_time_and_up_when_it_tells_the_truth(lie: Lie, failure: CheckFailure, most: u64) {
    let mut farm = Farm::new(&checked(HTTP));
    farm.run(Duration::from_secs(2));
    farm.lies[0] = lie;
    let took = farm.time_until(true);
    assert!(took <= millis(most), "{took:?}");
    assert_eq!(farm.is_down(0), Some(failure));
    assert_eq!((farm.is_down(1), farm.is_down(2)), (None, None));
    farm.lies[0] = Lie::Says(GOOD);
    let took = farm.time_until(false);
    assert!(took <= millis(2300), "{took:?}");
    farm.run(SECOND);
    assert!(farm.peers.is_empty(), "no server is left with a connection");
    farm.assert_all_returned();
}

#[test_case("postgres", b"R\0\0\0\x08\0\0\0\x0a", true; "postgres asks for a password")]
#[test_case("postgres", b"E\0\0\0\x1dSFATAL\0C57P03\0Mstarting\0\0", false; "postgres starts up")]
#[test_case("ldap", b"\x30\x0c\x02\x01\x01\x65\x07\x0a\x01\x00\x04\x00\x04\x00", true; "ldap finds nothing")]
#[test_case("ldap", b"\x30\x0c\x02\x01\x01\x65\x07\x0a\x01\x34\x04\x00\x04\x00", false; "ldap is unavailable")]
#[test_case("redis", b"+PONG\r\n", true; "redis")]
#[test_case("redis", b"-LOADING Redis is loading the dataset in memory\r\n", false; "redis loads")]
fn each_kind_reads_its_protocol(kind: &str, answer: &'static [u8], is_right: bool) {
    let mut farm = Farm::new(&checked(&format!("{{ kind = \"{kind}\" }}")));
    farm.lies = [Lie::Says(answer); 3];
    farm.run(Duration::from_secs(2));
    let expected = (!is_right).then_some(CheckFailure::Wrong);
    assert_eq!((farm.is_down(0), farm.is_down(1)), (expected, expected));
    assert!(
        farm.counted(if is_right {
            CheckEvent::Passed
        } else {
            CheckEvent::Wrong
        }) >= 6
    );
    farm.assert_all_returned();
}

#[test_case("off", b"PING\r\n"; "no header")]
#[test_case("v1", b"PROXY TCP4 10.1.0.9 10.1.0.100 "; "version 1")]
#[test_case("v2", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0PING\r\n"; "version 2 local")]
fn a_check_begins_with_the_proxy_header_that_connections_begin_with(version: &str, first: &[u8]) {
    let check = "{ kind = \"redis\" }";
    let text = checked(check).replacen(
        "check =",
        &format!("proxy_protocol = {{ send = \"{version}\" }}\ncheck ="),
        1,
    );
    let text = if version == "off" { checked(check) } else { text };
    let mut farm = Farm::new(&text);
    farm.lies = [Lie::Says(b"+PONG\r\n"); 3];
    farm.run(SECOND);
    assert_eq!(farm.requests.len(), 3);
    for (server, request) in farm.requests.iter().filter(|(server, _)| *server == 0) {
        assert!(request.starts_with(first), "{server}: {}", request.escape_ascii());
        assert!(request.ends_with(b"PING\r\n"));
    }
    assert_eq!(farm.counted(CheckEvent::Passed), 3);
    farm.assert_all_returned();
}

#[test]
fn another_port_is_asked_if_the_check_names_one() {
    let mut farm = Farm::new(&checked(
        "{ kind = \"send\", send = \"hello\", expect = \"fine\", port = 9000 }",
    ));
    farm.run(SECOND);
    assert_eq!(farm.syns.len(), 3);
    assert!(farm.syns.iter().all(|(_, to, _)| to.port() == 9000));
    assert_eq!(farm.counted(CheckEvent::Passed), 3);
    farm.assert_all_returned();
}

#[test]
fn numbers_are_above_those_that_the_port_has_used_before() {
    let one_port = checked(HTTP).replace("name = \"all\"\n", "name = \"all\"\nlocal_ports = \"5000-5001\"\n");
    let mut farm = Farm::new(&one_port);
    farm.run(Duration::from_secs(20));
    let isns: Vec<u32> = farm
        .syns
        .iter()
        .filter(|(_, to, _)| to.ip().to_string() == "10.1.0.100")
        .map(|syn| syn.2)
        .collect();
    assert!(isns.len() >= 18, "{}", isns.len());
    // Two ports in turn: what a server remembers of one is older.
    for pair in isns.iter().step_by(2).zip(isns.iter().step_by(2).skip(1)) {
        assert!((pair.1.wrapping_sub(*pair.0) as i32) > 0, "{isns:?}");
    }
    farm.assert_all_returned();
}

#[test]
fn who_makes_checks_and_does_not_come_round_says_nothing_about_a_server() {
    let mut farm = Farm::new(&checked(HTTP));
    farm.run(Duration::from_secs(2));
    let passed = farm.counted(CheckEvent::Passed);
    for _ in 0..20 {
        nothing(farm.bench.wait(SECOND));
    }
    assert!(farm.counted(CheckEvent::NotMade) > 0);
    assert_eq!(farm.is_down(0), None);
    farm.run(Duration::from_secs(4));
    assert!(farm.counted(CheckEvent::Passed) >= passed + 9);
    farm.assert_all_returned();
}

#[test]
fn as_many_as_may_be_under_way_are_and_the_others_come_later() {
    let servers: String = (0..600)
        .map(|n| format!("{{ name = \"c{n}\", address = \"10.1.0.100:{}\" }},\n", 10_000 + n))
        .collect();
    let text = checked("{ kind = \"redis\", timeout = \"5s\" }").replace(
        "  { name = \"s0\", address = \"10.1.0.100:8080\" },\n  { name = \"s1\", address = \"10.1.0.101:8080\" },\n  { name = \"s2\", address = \"10.1.0.102:8080\" },\n",
        &servers,
    );
    assert_ne!(text, CONFIG);
    let mut farm = Farm::new(&text);
    farm.lies = [Lie::Silent; 3];
    farm.run(Duration::from_secs(2));
    let mut called: Vec<SocketAddr> = farm.syns.iter().map(|(_, to, _)| *to).collect();
    called.sort_unstable();
    called.dedup();
    assert_eq!(called.len(), MOST_AT_ONCE);
    assert!(farm.counted(CheckEvent::NotMade) > 300);
    farm.lies = [Lie::Says(b"+PONG\r\n"); 3];
    farm.run(Duration::from_secs(10));
    assert!(farm.counted(CheckEvent::Passed) > 600);
    farm.assert_all_returned();
}

#[test]
fn a_segment_that_is_damaged_or_too_much_harms_no_check() {
    let mut farm = Farm::new(&checked(HTTP));
    farm.lies = [Lie::Mute; 3];
    farm.run(SECOND);
    let (&(ours, theirs), peer) = farm.peers.iter().next().expect("a check under way");
    let flood = Segment {
        seq: peer.next,
        ack: peer.expected,
        payload: vec![b'x'; 1400],
        ..Segment::between(peer.ours, peer.theirs)
    };
    let mut broken = flood.frame();
    *broken.last_mut().expect("bytes") ^= 1;
    let sent = farm.bench.receive_bytes(e2d2::port::PortId(1), &broken);
    assert!(sent.is_empty());
    assert_eq!(farm.bench.proxy.drops()[DropReason::BadTcpChecksum], 1);
    for _ in 0..200 {
        farm.send(&flood);
    }
    assert!(
        farm.bench.proxy.drops()[DropReason::CheckQueueFull] > 50,
        "{ours} {theirs}"
    );
    farm.lies = [Lie::Says(GOOD); 3];
    farm.run(Duration::from_secs(5));
    assert_eq!(farm.is_down(0), None);
    farm.assert_all_returned();
}

#[test]
fn reloads_in_the_middle_of_checks_change_nothing_of_them() {
    let text = checked(HTTP);
    let heavy = text.replacen("\"10.1.0.102:8080\"", "\"10.1.0.102:8080\", weight = 2", 1);
    let seen = |reloads: bool| {
        let mut farm = Farm::new(&text);
        for turn in 0..500 {
            farm.lies[0] = match turn % 250 {
                0..125 => Lie::Says(GOOD),
                _ => Lie::Says(b"HTTP/1.1 503 Service Unavailable\r\n\r\n"),
            };
            farm.run(millis(23));
            if reloads {
                let text = if turn % 2 == 0 { &heavy } else { &text };
                farm.bench.reload(text, |_| None);
                farm.checker.set_config(Arc::new(farm.bench.config.clone()));
            }
        }
        let counts: Vec<u64> = farm.bench.proxy.checks().iter().map(|(_, count)| count).collect();
        let down = farm.bench.standby.server(0).down();
        let syns: Vec<_> = farm.syns.iter().map(|(at, server, _)| (*at, *server)).collect();
        farm.run(SECOND);
        farm.assert_all_returned();
        (syns, counts, down)
    };
    let without = seen(false);
    assert!(without.1.iter().sum::<u64>() > 60);
    assert_eq!(seen(true), without);
}
