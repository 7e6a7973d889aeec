//! PROXY headers in and out under whatever a client and its network do to the segments, with every binding: what a server
//! gets is our header and the client's payload, each byte at its place, and nothing of it before the whole header.

use crate::harness::{Bench, CONFIG, Client, Server};
use e2d2::wire::tcp::TcpFlags;
use proxy_protocol::{Parsed, parse};
use splice::drop_reason::DropReason;
use std::time::Duration;
use testkit::Segment;

/// A small generator of our own, so that a seed means the same for ever.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n as u64) as usize
    }
}

const HEADERS: [&[u8]; 4] = [
    b"PROXY TCP4 192.0.2.7 198.51.100.9 5000 443\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x15\xc0\0\x02\x07\xc6\x33\x64\x09\x13\x88\x01\xbb\x02\0\x06a.test",
    b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\x03\x04\0\0",
    b"PROXY UNKNOWN\r\n",
];

const BINDINGS: [&str; 3] = ["payload", "handshake", "syn"];

/// One client, one server, and what was seen of both.
struct World {
    bench: Bench,
    client: Client,
    server: Option<Server>,
    /// Header and payload, and where the payload begins.
    stream: Vec<u8>,
    header: usize,
    first: u32,
    /// The end of what the client has sent, the largest ACK and right edge of a window that it has heard.
    sent: usize,
    acked: usize,
    edge: i64,
    /// The bytes that have come to the server, and how many of them it has acknowledged.
    got: Vec<Option<u8>>,
    taken: usize,
    announces: bool,
    seed: u64,
}

fn config(binding: usize, announces: bool) -> String {
    let accept = "proxy_protocol = { accept = \"required\", from = [\"10.0.0.0/8\"] }";
    let send = "proxy_protocol = { send = \"v2\", tlvs = [\"incoming\", \"unique_id\", \"crc32c\"] }";
    CONFIG
        .replace(
            "rules = [{ first_number = true, pool = \"all\" }]\ndefault = \"reject\"",
            &format!("bind = \"{}\"\ndefault = \"all\"\n{accept}", BINDINGS[binding]),
        )
        .replace(
            "name = \"all\"\n",
            &format!("name = \"all\"\n{}\n", if announces { send } else { "" }),
        )
}

impl World {
    fn new(seed: u64, random: &mut Random) -> Self {
        let announces = random.below(2) == 0;
        let mut bench = Bench::for_pools(&config(random.below(3), announces));
        let header = HEADERS[random.below(HEADERS.len())];
        let payload = (0..1 + random.below(3000)).map(|at| (at * 7 + at / 251) as u8);
        let mut client = Client::new(40000);
        let answers = bench.receive(&client.syn());
        assert_eq!(answers.len(), 1, "seed {seed}");
        let mut server = None;
        let mut answer = answers[0].clone();
        if answer.flags == TcpFlags::SYN {
            let mut called = Server::from_syn(&answer);
            answer = bench.receive(&called.syn_ack())[0].clone();
            called.seq = called.isn.wrapping_add(1);
            server = Some(called);
        }
        client.take_syn_ack(&answer);
        World {
            first: client.seq,
            edge: i64::from(answer.window),
            bench,
            client,
            server,
            stream: header.iter().copied().chain(payload).collect(),
            header: header.len(),
            sent: 0,
            acked: 0,
            got: Vec::new(),
            taken: 0,
            announces,
            seed,
        }
    }

    /// The client sends these bytes of its stream.
    fn send(&mut self, from: usize, to: usize) {
        self.client.tsval += 1;
        let segment = Segment {
            seq: self.first.wrapping_add(from as u32),
            ..self.client.segment(TcpFlags::PSH, &self.stream[from..to])
        };
        self.sent = self.sent.max(to);
        let answers = self.bench.receive(&segment);
        self.take(answers);
    }

    /// The server acknowledges what it has without a gap.
    fn acknowledge(&mut self) {
        let whole = self.got.iter().position(Option::is_none).unwrap_or(self.got.len());
        let Some(server) = &self.server else { return };
        self.taken = whole;
        let ack = Segment {
            ack: server.ack.wrapping_add(whole as u32),
            ..server.segment(TcpFlags::ACK, b"")
        };
        let answers = self.bench.receive(&ack);
        self.take(answers);
    }

    fn repeat_syn_ack(&mut self) {
        let Some(server) = &self.server else { return };
        let answers = self.bench.receive(&server.syn_ack());
        self.take(answers);
    }

    fn take(&mut self, segments: Vec<Segment>) {
        for segment in segments {
            let seed = self.seed;
            assert!(!segment.flags.contains(TcpFlags::RST), "seed {seed}: {segment:?}");
            if segment.to == self.client.me {
                self.hear(&segment);
            } else if segment.flags == TcpFlags::SYN {
                assert!(self.sent >= self.header, "seed {seed}: called before the whole header");
                let mut server = Server::from_syn(&segment);
                let answers = self.bench.receive(&server.syn_ack());
                server.seq = server.isn.wrapping_add(1);
                self.server = Some(server);
                self.take(answers);
            } else {
                self.arrive(&segment);
            }
        }
    }

    fn hear(&mut self, segment: &Segment) {
        let seed = self.seed;
        assert!(segment.payload.is_empty(), "seed {seed}: {segment:?}");
        if segment.flags.contains(TcpFlags::SYN) {
            // Repeated, by us or the server, as long as nothing has shown that the client has had it.
            assert_eq!((segment.ack, self.acked), (self.first, 0), "seed {seed}: {segment:?}");
            return;
        }
        let ack = segment.ack.wrapping_sub(self.first) as usize;
        assert!(ack <= self.sent, "seed {seed}: an ACK of what was never sent");
        if ack < self.acked {
            return;
        }
        self.acked = ack;
        // RFC 9293 3.8.6, but for what a scaled window cannot say.
        let edge = ack as i64 + (i64::from(segment.window) << 7);
        assert!(
            edge >= self.edge - 127,
            "seed {seed}: the edge moves from {} to {edge}",
            self.edge
        );
        self.edge = self.edge.max(edge);
    }

    fn arrive(&mut self, segment: &Segment) {
        let (seed, server) = (self.seed, self.server.as_ref().expect("it was called"));
        let at = segment.seq.wrapping_sub(server.ack) as i32;
        assert!(
            self.sent >= self.header,
            "seed {seed}: before the whole header: {segment:?}"
        );
        assert_eq!(segment.ack, server.seq, "seed {seed}");
        for (place, &byte) in (i64::from(at)..).zip(&segment.payload) {
            // What it has had, or lies before its first byte, the server knows by its number: the client repeats its header.
            let Ok(place) = usize::try_from(place) else { continue };
            if place < self.taken {
                continue;
            }
            assert!(place < 8000, "seed {seed}: {segment:?}");
            if self.got.len() <= place {
                self.got.resize(place + 1, None);
            }
            let known = self.got[place].replace(byte);
            assert!(
                known.is_none_or(|known| known == byte),
                "seed {seed}: byte {place} has changed"
            );
        }
    }

    /// What has come is our header, if there is to be one, and the payload.
    fn check(&mut self) {
        let seed = self.seed;
        let got: Vec<u8> = self.got.iter().map(|byte| byte.expect("no gap is left")).collect();
        let mut ours = 0;
        if self.announces {
            let Ok(Parsed::Complete { header, length }) = parse(&got) else {
                panic!("seed {seed}: no header")
            };
            let named = [0, 1].contains(&HEADERS.iter().position(|h| self.stream.starts_with(h)).expect("one"));
            let client = if named { "192.0.2.7:5000" } else { "10.0.0.1:40000" };
            assert_eq!(
                header.source(),
                Some(client.parse().expect("an address")),
                "seed {seed}"
            );
            ours = length;
        }
        assert_eq!(got[ours..], self.stream[self.header..], "seed {seed}");
        assert_eq!(self.acked, self.stream.len(), "seed {seed}");
    }
}

#[test]
fn whatever_becomes_of_segments_servers_get_the_stream_behind_our_header() {
    let first = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = first.map_or(1..1001_u64, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut world = World::new(seed, &mut random);
        for _ in 0..random.below(40) {
            let (length, near) = (world.stream.len(), world.acked.min(world.stream.len() - 1));
            match random.below(8) {
                // Around what is awaited, in pieces of any size; or anywhere.
                0..=3 => {
                    let from = near.saturating_sub(random.below(20)) + random.below(30);
                    let from = from.min(length - 1);
                    world.send(from, length.min(from + 1 + random.below(60)));
                }
                4 => {
                    let from = random.below(length);
                    world.send(from, length.min(from + 1 + random.below(1400)));
                }
                5 => world.acknowledge(),
                6 => world.repeat_syn_ack(),
                _ => {
                    let time = Duration::from_millis(random.below(1500) as u64);
                    let answers = world.bench.wait(time.min(Duration::from_millis(600)));
                    world.take(answers);
                }
            }
        }
        // At last everything comes through, as TCP sees to it.
        for _ in 0..40 {
            if world.acked == world.stream.len() {
                break;
            }
            let from = world.acked;
            world.send(from, world.stream.len().min(from + 1400));
            world.acknowledge();
            let answers = world.bench.wait(Duration::from_millis(1100));
            world.take(answers);
            world.acknowledge();
        }
        world.check();
        assert_eq!(world.bench.dropped(DropReason::HeaderMalformed), 0);
        world.bench.finish();
        world.bench.assert_all_returned();
    }
}
