//! A new engine over servers that still have the connections of the one before, and servers in TIME-WAIT.
//!
//! The server here answers SYNs by the RFCs and nothing else: it knows no engine.

use crate::harness::{Bench, CONFIG, Client, nothing, only};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use std::collections::BTreeMap;
use std::time::Duration;
use testkit::Segment;

/// What a server remembers of a client's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Established { snd_nxt: u32, rcv_nxt: u32 },
    TimeWait { snd_nxt: u32, rcv_nxt: u32, ts_recent: u32 },
}

#[derive(Default)]
struct RealServer {
    ports: BTreeMap<u16, Memory>,
    challenges: usize,
    accepted: usize,
    isn: u32,
}

fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl RealServer {
    /// What a segment of the engine is answered with.
    fn receive(&mut self, segment: &Segment) -> Option<Segment> {
        let port = segment.from.address.port();
        let memory = self.ports.get(&port).copied();
        if segment.flags.contains(TcpFlags::RST) {
            // RFC 5961 3.2: only its exact RCV.NXT ends a connection. TIME-WAIT ends, too (RFC 9293 3.10.7.4).
            if let Some(Memory::Established { rcv_nxt, .. } | Memory::TimeWait { rcv_nxt, .. }) = memory
                && segment.seq == rcv_nxt
            {
                self.ports.remove(&port);
            }
            return None;
        }
        if segment.flags != TcpFlags::SYN {
            return None;
        }
        let challenge = |snd_nxt: u32, rcv_nxt: u32| Segment {
            seq: snd_nxt,
            ack: rcv_nxt,
            flags: TcpFlags::ACK,
            ..Segment::between(segment.to, segment.from)
        };
        match memory {
            // RFC 5961 4.2.
            Some(Memory::Established { snd_nxt, rcv_nxt }) => {
                self.challenges += 1;
                return Some(challenge(snd_nxt, rcv_nxt));
            }
            // RFC 6191 2: a newer timestamp makes room, without timestamps a later number does.
            Some(Memory::TimeWait {
                snd_nxt,
                rcv_nxt,
                ts_recent,
            }) => {
                let makes_room = match segment.options.timestamps {
                    Some((tsval, _)) => before(ts_recent, tsval) || ts_recent == tsval && before(rcv_nxt, segment.seq),
                    None => before(rcv_nxt, segment.seq),
                };
                if !makes_room {
                    self.challenges += 1;
                    return Some(challenge(snd_nxt, rcv_nxt));
                }
            }
            None => {}
        }
        self.accepted += 1;
        self.isn = self.isn.wrapping_add(64_000);
        let established = Memory::Established {
            snd_nxt: self.isn.wrapping_add(1),
            rcv_nxt: segment.seq.wrapping_add(1),
        };
        self.ports.insert(port, established);
        Some(Segment {
            seq: self.isn,
            ack: segment.seq.wrapping_add(1),
            flags: TcpFlags::SYN | TcpFlags::ACK,
            window: 65160,
            options: TcpOptions {
                mss: Some(1460),
                window_scale: segment.options.window_scale.map(|_| 7),
                sack_permitted: segment.options.sack_permitted,
                timestamps: segment.options.timestamps.map(|(tsval, _)| (90_000, tsval)),
            },
            ..Segment::between(segment.to, segment.from)
        })
    }

    /// Lets both talk until nobody has anything to say; what the engine sends that is no part of a handshake.
    fn talk(&mut self, bench: &mut Bench, first: Vec<Segment>) -> Vec<Segment> {
        let mut to_server = first;
        let mut rest = Vec::new();
        for _ in 0..20 {
            let answers: Vec<Segment> = to_server.iter().filter_map(|segment| self.receive(segment)).collect();
            rest.extend(to_server.drain(..).filter(|segment| !segment.payload.is_empty()));
            if answers.is_empty() {
                return rest;
            }
            for answer in answers {
                to_server.extend(bench.receive(&answer));
            }
        }
        panic!("the two never come to an end: {to_server:#?}");
    }

    /// The last bytes that came were acknowledged, and this side has closed first.
    fn rests(&mut self, port: u16, sent: u32, ts_recent: u32) {
        if let Some(Memory::Established { snd_nxt, rcv_nxt }) = self.ports.get(&port).copied() {
            let rests = Memory::TimeWait {
                snd_nxt: snd_nxt.wrapping_add(1),
                rcv_nxt: rcv_nxt.wrapping_add(sent),
                ts_recent,
            };
            self.ports.insert(port, rests);
        }
    }
}

const PORTS: u16 = 4;

fn config() -> String {
    let with_ports = format!("name = \"all\"\nlocal_ports = \"5000-{}\"", 5000 + PORTS - 1);
    format!(
        "{}\n[timeouts]\ntime_wait = \"0s\"\n",
        CONFIG.replace("name = \"all\"", &with_ports)
    )
}

/// A request of a new client through the engine to the server.
fn request(bench: &mut Bench, server: &mut RealServer, port: u16, options: bool) -> Vec<Segment> {
    let mut client = Client::new(port);
    client.seq = client.seq.wrapping_add(u32::from(port));
    let syn = client.syn();
    let syn = if options {
        syn
    } else {
        Segment {
            options: TcpOptions::NONE,
            ..syn
        }
    };
    let syn_ack = only(bench.receive(&syn));
    client.seq = syn_ack.ack;
    client.ack = syn_ack.seq.wrapping_add(1);
    client.tsecr = syn_ack.options.timestamps.map_or(0, |(value, _)| value);
    let mut segment = client.segment(TcpFlags::PSH, b"0 hello");
    if !options {
        segment.options = TcpOptions::NONE;
    }
    let sent = bench.receive(&segment);
    server.talk(bench, sent)
}

/// The engine has gone without a word; the next one uses the same addresses and ports, and other secrets.
#[test]
fn a_new_engine_over_a_server_with_the_old_connections_serves_every_request_at_once() {
    for options in [true, false] {
        let mut server = RealServer::default();
        let mut old = Bench::with_config(&config());
        for n in 0..PORTS {
            assert_eq!(
                only(request(&mut old, &mut server, 40000 + n, options)).payload,
                b"0 hello"
            );
        }
        assert_eq!((server.ports.len(), server.challenges), (usize::from(PORTS), 0));
        drop(old);
        for epoch in 1..=3_u16 {
            let mut new = Bench::restarted(&config(), epoch as u8);
            for n in 0..PORTS {
                let sent = request(&mut new, &mut server, 41000 + epoch * 100 + n, options);
                assert_eq!(only(sent).payload, b"0 hello", "epoch {epoch}, connection {n}");
            }
            // Each was answered with an ACK of the old connection, reset, and called again without a wait.
            assert_eq!(server.challenges, usize::from(epoch * PORTS));
            assert_eq!(server.accepted, usize::from((epoch + 1) * PORTS));
            nothing(new.wait(Duration::from_millis(900)));
        }
    }
}

/// A new engine's clock and numbers may be behind those that a server in TIME-WAIT remembers, or before them.
#[test]
fn a_new_engine_over_servers_in_time_wait_serves_every_request_at_once() {
    for options in [true, false] {
        for later in [0_u32, 1 << 20, 1 << 30, 3 << 30] {
            let mut server = RealServer::default();
            for port in 5000..5000 + PORTS {
                let resting = Memory::TimeWait {
                    snd_nxt: 77,
                    rcv_nxt: later,
                    ts_recent: later,
                };
                server.ports.insert(port, resting);
            }
            let mut new = Bench::restarted(&config(), 1);
            for n in 0..PORTS {
                let sent = request(&mut new, &mut server, 41000 + n, options);
                assert_eq!(only(sent).payload, b"0 hello", "{options} {later} {n}");
            }
            assert_eq!(server.accepted, usize::from(PORTS));
        }
    }
}

/// RFC 6191: our own ports come round to a server that has closed first and is in TIME-WAIT. Whatever the clock of the
/// next client, its SYN is taken at once, without a challenge.
#[test]
fn a_server_in_time_wait_takes_the_next_connection_of_the_port_at_once() {
    for options in [true, false] {
        let mut server = RealServer::default();
        let mut bench = Bench::with_config(&config());
        for round in 0..6 * PORTS {
            let mut client = Client::new(40000 + round);
            // Each client's clock is behind the one before.
            client.tsval = 1_000_000 - 1000 * u32::from(round);
            client.seq = client.seq.wrapping_sub(u32::from(round) << 24);
            let mut syn = client.syn();
            if !options {
                syn.options = TcpOptions::NONE;
            }
            let syn_ack = only(bench.receive(&syn));
            client.seq = syn_ack.ack;
            client.ack = syn_ack.seq.wrapping_add(1);
            client.tsecr = syn_ack.options.timestamps.map_or(0, |(value, _)| value);
            let with = |mut segment: Segment| {
                if !options {
                    segment.options = TcpOptions::NONE;
                }
                segment
            };
            let sent = bench.receive(&with(client.segment(TcpFlags::PSH, b"0 hello")));
            let tsval = sent[0].options.timestamps.map_or(0, |(tsval, _)| tsval);
            let port = sent[0].from.address.port();
            only(server.talk(&mut bench, sent));
            client.seq = client.seq.wrapping_add(7);
            // The client resets: the engine forgets, and the server, which had closed first, rests.
            only(bench.receive(&with(client.segment(TcpFlags::RST, b""))));
            server.rests(port, 7, tsval);
            bench.wait(Duration::from_millis(100));
        }
        assert_eq!(server.accepted, usize::from(6 * PORTS));
        assert_eq!(server.challenges, 0, "with timestamps: {options}");
    }
}
