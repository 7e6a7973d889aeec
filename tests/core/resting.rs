//! Connections that are over against a list of them: who still gets late segments, what they look like, who makes room,
//! what a new connection from the same ports begins with.
//!
//! The model knows nothing of the memory behind it: packets, time and [`Usage`] are all that is compared. `SEED=n` tries one
//! seed.

use crate::harness::{Bench, CONFIG, Client, Server, only};
use e2d2::time::Instant;
use e2d2::wire::tcp::TcpFlags;
use splice::Usage;
use splice::drop_reason::DropReason;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use testkit::sim::Random;
use testkit::{Segment, Station};

const SEEDS: u64 = 60;
const STEPS: u64 = 400;
/// Both ends scale by 7.
const LARGEST_WINDOW: u32 = 0xffff << 7;
const TIME_WAIT: Duration = Duration::from_secs(4);
/// Source ports towards each server, and the most open connections to one: at least one is always free.
const PORTS: u16 = 6;

/// A segment and what came out at the other side.
#[derive(Clone, Debug)]
struct Passed {
    sent: Segment,
    seen: Segment,
}

/// A connection as both of its ends see it.
struct Open {
    client: Client,
    server: Server,
    /// What was passed in both directions.
    passed: Vec<Passed>,
}

/// A connection that is over.
struct Over {
    client: Station,
    /// The server, and our end of its leg.
    server: [Station; 2],
    passed: Vec<Passed>,
    until: Instant,
    /// The number that follows what the client has sent.
    client_end: u32,
    /// Whether late segments of the client and of the server are still taken for this connection's.
    legs: [bool; 2],
}

/// What a server has seen last from one of our ports.
#[derive(Clone, Copy)]
struct Remembered {
    end: u32,
    tsval: u32,
}

struct Model {
    seed: u64,
    random: Random,
    bench: Bench,
    room: usize,
    open: Vec<Open>,
    over: VecDeque<Over>,
    /// Free source ports towards each server, the one that has rested longest first.
    ports: [VecDeque<u16>; 6],
    /// By the server's number and our port.
    remembered: BTreeMap<(usize, u16), Remembered>,
    /// Who has called, and when.
    calls: Vec<(Station, Instant)>,
    seen: Seen,
}

/// How often something happened that the test is about.
#[derive(Default, Debug)]
struct Seen {
    late: u32,
    one_leg: u32,
    made_room: u32,
    expired: u32,
    taken_over: u32,
    next: u32,
}

fn config() -> String {
    let ports = format!("local_ports = \"5000-{}\"", 5000 + PORTS - 1);
    let mut text = CONFIG.replace("max_connections = 64", "max_connections = 4096\nleg_sample = 1");
    text = text.replace("name = \"all\"\n", &format!("name = \"all\"\n{ports}\n"));
    text = text.replace("name = \"all6\"\n", &format!("name = \"all6\"\n{ports}\n"));
    format!(
        "{text}\n[timeouts]\ntime_wait = \"{}s\"\nidle = \"24h\"\n",
        TIME_WAIT.as_secs()
    )
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let room = random.one_of(&[1, 3, 8, 40]);
        let quiet = |settings: &mut splice::settings::Settings| settings.capacity.time_wait = room;
        Model {
            seed,
            bench: Bench::make_with(&config(), false, quiet, |selector| selector),
            random,
            room,
            open: Vec::new(),
            over: VecDeque::new(),
            ports: std::array::from_fn(|_| (5000..5000 + PORTS).collect()),
            remembered: BTreeMap::new(),
            calls: Vec::new(),
            seen: Seen::default(),
        }
    }

    fn step(&mut self) {
        match self.random.within(0..=99) {
            0..=24 => self.call(),
            25..=44 => self.talk(),
            45..=64 => self.end(),
            65..=89 => self.say_late(),
            _ => self.wait(),
        }
        self.check();
    }

    /// A client calls: one of ten end points of either version of IP, if it has no connection.
    fn call(&mut self) {
        let port = 40000 + self.random.within(0..=4) as u16;
        let mut client = if self.random.chance(500) {
            Client::new(port)
        } else {
            Client::new_v6(port)
        };
        let which = self.random.within(0..=5) as usize;
        let is_open = self.open.iter().any(|open| open.client.me == client.me);
        // Flows share lines of twelve used cookies, which are remembered for their life of 16 s: of eight for each flow none is
        // forgotten. A late copy of a forgotten one would call again.
        let (now, life) = (self.bench.now, Duration::from_secs(16));
        self.calls.retain(|(_, at)| now - *at < life);
        let calls = self.calls.iter().filter(|(caller, _)| *caller == client.me).count();
        if is_open || calls == 8 || self.ports[which].is_empty() {
            return;
        }
        self.calls.push((client.me, now));
        client.seq = self.random.bits() as u32;
        client.tsval = self.random.bits() as u32;
        client.connect(&mut self.bench);
        self.takes_over(0, client.me, client.proxy);
        let request = client.segment(TcpFlags::PSH, format!("{which} hello").as_bytes());
        let syn = only(client.send(&mut self.bench, &request.payload));
        self.expect_syn(which, &syn);
        let mut server = Server::from_syn(&syn);
        (server.isn, server.tsval) = (self.random.bits() as u32, self.random.bits() as u32);
        server.options.timestamps = Some((server.tsval, server.tsecr));
        self.takes_over(1, server.me, server.proxy);
        let (_, held) = server.accept(&mut self.bench);
        let mut open = Open {
            client,
            server,
            passed: Vec::new(),
        };
        // What was held leaves in a packet of our own, what comes late is passed.
        let seen = Segment {
            hop_limit: request.hop_limit - 1,
            ..only(held)
        };
        open.note(request, seen);
        let ack = open.server.segment(TcpFlags::ACK, b"");
        let seen = only(self.bench.receive(&ack));
        open.note(ack, seen);
        self.open.push(open);
    }

    /// The longest rested port, and numbers that a server in TIME-WAIT takes (RFC 6191 2).
    fn expect_syn(&mut self, which: usize, syn: &Segment) {
        let port = syn.from.address.port();
        assert_eq!(self.ports[which].pop_front(), Some(port), "seed {}", self.seed);
        let Some(last) = self.remembered.get(&(which, port)) else {
            return;
        };
        let tsval = syn.options.timestamps.expect("timestamps are promised").0;
        let is_later = |new: u32, old: u32| new.wrapping_sub(old) as i32 > 0;
        assert!(
            is_later(syn.seq, last.end) && is_later(tsval, last.tsval),
            "seed {}: {syn:?} after the end {} and TSval {}",
            self.seed,
            last.end,
            last.tsval
        );
    }

    /// A new connection has this leg: what rests there keeps its other leg only.
    fn takes_over(&mut self, leg: usize, peer: Station, ours: Station) {
        for over in &mut self.over {
            let is_it = match leg {
                0 => over.client == peer,
                _ => over.server == [peer, ours],
            };
            if is_it && over.legs[leg] {
                over.legs[leg] = false;
                self.seen.taken_over += 1;
            }
        }
    }

    /// One end of an open connection says something.
    fn talk(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let n = self.random.within(0..=self.open.len() as u64 - 1) as usize;
        let open = &mut self.open[n];
        let payload = vec![b'x'; self.random.within(0..=50) as usize];
        let flags = self.random.one_of(&[TcpFlags::ACK, TcpFlags::PSH]);
        let from_client = self.random.chance(500);
        open.say(&mut self.bench, from_client, flags, &payload);
    }

    /// A connection ends by FINs of both, or by the RST of one.
    fn end(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let n = self.random.within(0..=self.open.len() as u64 - 1) as usize;
        let mut open = self.open.swap_remove(n);
        let first = self.random.chance(500);
        if self.random.chance(300) {
            open.say(&mut self.bench, first, TcpFlags::RST, b"");
        } else {
            open.say(&mut self.bench, first, TcpFlags::FIN, b"");
            open.say(&mut self.bench, !first, TcpFlags::FIN, b"");
            open.say(&mut self.bench, first, TcpFlags::ACK, b"");
        }
        let which = server_number(open.server.me);
        let port = open.server.proxy.address.port();
        self.ports[which].push_back(port);
        let last = Remembered {
            end: open.server.ack,
            tsval: open.server.tsecr,
        };
        self.remembered.insert((which, port), last);
        if self.over.len() == self.room {
            self.over.pop_front();
            self.seen.made_room += 1;
        }
        self.over.push_back(Over {
            client: open.client.me,
            server: [open.server.me, open.server.proxy],
            passed: open.passed,
            until: self.bench.now + TIME_WAIT,
            client_end: open.client.seq,
            legs: [true; 2],
        });
    }

    /// A segment of a connection that is over comes late: one that was sent before, or one that nobody has seen.
    fn say_late(&mut self) {
        if self.over.is_empty() {
            return;
        }
        let n = self.random.within(0..=self.over.len() as u64 - 1) as usize;
        let passed = &self.over[n].passed;
        let mut late = passed[self.random.within(0..=passed.len() as u64 - 1) as usize].clone();
        if self.random.chance(500) {
            vary(&mut self.random, &mut late);
        }
        let over = &self.over[n];
        let side = usize::from(late.sent.from != over.client);
        if !over.legs[side] {
            // Whoever has the leg now judges by its own numbers. Nobody has it: see `forgotten`.
            return;
        }
        let young = self.bench.dropped(DropReason::BadCookie);
        let answers = self.bench.receive(&late.sent);
        let over = &self.over[n];
        if self.bench.dropped(DropReason::BadCookie) > young {
            // It may be of a connection that is about to begin: what cannot be the client's in this one.
            let behind = over.client_end.wrapping_sub(late.sent.seq);
            let is_reset = late.sent.flags.contains(TcpFlags::RST);
            assert!(
                side == 0 && !is_reset && behind > LARGEST_WINDOW,
                "seed {}: {late:?}",
                self.seed
            );
            assert_eq!(answers, [], "seed {}", self.seed);
            self.seen.next += 1;
        } else if over.legs == [true; 2] {
            assert_eq!(answers, [late.seen], "seed {}", self.seed);
            self.seen.late += 1;
        } else {
            // The other leg is another's: nothing may reach it.
            assert_eq!(answers, [], "seed {}", self.seed);
            self.seen.one_leg += 1;
        }
    }

    /// Some time passes; what was forgotten meanwhile translates nothing any more.
    fn wait(&mut self) {
        let time = Duration::from_micros(self.random.magnitude(100..=6_000_000));
        let sent = self.bench.wait(time);
        assert_eq!(sent, [], "seed {}: nobody is owed anything", self.seed);
        let now = self.bench.now;
        let (gone, left): (Vec<Over>, Vec<Over>) = self
            .over
            .drain(..)
            .partition(|over| over.until.as_millis() <= now.as_millis());
        self.over = left.into();
        for over in gone {
            self.seen.expired += 1;
            self.forgotten(&over);
        }
    }

    /// Whoever still speaks of a connection that is forgotten is reset or not heard; no other peer gets anything.
    fn forgotten(&mut self, over: &Over) {
        for leg in [0, 1] {
            let Some(late) = over
                .passed
                .iter()
                .find(|late| (late.sent.from == over.client) == (leg == 0))
            else {
                continue;
            };
            let from = late.sent.from;
            let is_open = |open: &Open| match leg {
                0 => open.client.me == from,
                _ => [open.server.me, open.server.proxy] == over.server,
            };
            let rests = |other: &Over| match leg {
                0 => other.legs[0] && other.client == from,
                _ => other.legs[1] && other.server == over.server,
            };
            if self.open.iter().any(is_open) || self.over.iter().any(rests) {
                continue;
            }
            for answer in self.bench.receive(&late.sent) {
                assert!(
                    answer.to == from && answer.flags.contains(TcpFlags::RST),
                    "seed {}: {answer:?} to {:?}",
                    self.seed,
                    late.sent
                );
            }
        }
    }

    /// Every connection, leg and port is accounted for, and nothing else is taken.
    fn check(&self) {
        let legs: usize = self
            .over
            .iter()
            .map(|over| over.legs.iter().filter(|leg| **leg).count())
            .sum();
        let expected = Usage {
            connections: self.open.len(),
            time_wait: self.over.len(),
            flows: 2 * self.open.len() + legs,
            ports: self.open.len(),
            watched: self.open.len(),
            timers: self.bench.proxy.usage().timers,
            ..Usage::default()
        };
        assert_eq!(self.bench.proxy.usage(), expected, "seed {}", self.seed);
        assert_eq!(self.bench.proxy.time_wait_evicted(), u64::from(self.seen.made_room));
        assert!(expected.timers <= self.open.len(), "seed {}: {expected:?}", self.seed);
    }
}

impl Open {
    fn note(&mut self, sent: Segment, seen: Segment) {
        let from_client = sent.from == self.client.me;
        let end = sent.seq.wrapping_add(sent.len());
        let (seen_end, timestamps) = (seen.seq.wrapping_add(seen.len()), seen.options.timestamps);
        let tsval = timestamps.expect("timestamps were agreed").0;
        if from_client {
            (self.client.seq, self.server.ack, self.server.tsecr) = (end, seen_end, tsval);
            assert_eq!((seen.from, seen.to), (self.server.proxy, self.server.me));
        } else {
            (self.server.seq, self.client.ack, self.client.tsecr) = (end, seen_end, tsval);
            assert_eq!(seen.to, self.client.me);
        }
        assert_eq!((seen.flags, &seen.payload), (sent.flags, &sent.payload));
        self.passed.push(Passed { sent, seen });
    }

    /// Lets one end send a segment, and the other see it.
    fn say(&mut self, bench: &mut Bench, from_client: bool, flags: TcpFlags, payload: &[u8]) {
        let segment = if from_client {
            self.client.tsval = self.client.tsval.wrapping_add(1);
            self.client.segment(flags, payload)
        } else {
            self.server.tsval = self.server.tsval.wrapping_add(1);
            self.server.segment(flags, payload)
        };
        let seen = only(bench.receive(&segment));
        self.note(segment, seen);
    }
}

/// Makes of a segment and its translation another one and its: all numbers move alike on both sides.
fn vary(random: &mut Random, late: &mut Passed) {
    let moves: [u32; 6] = std::array::from_fn(|_| random.bits() as u32);
    let blocks = random.within(0..=2) as u32;
    let flags = random.one_of(&[
        TcpFlags::ACK,
        TcpFlags::ACK | TcpFlags::FIN,
        TcpFlags::ACK | TcpFlags::RST,
    ]);
    let payload = vec![b'y'; random.within(0..=20) as usize];
    for segment in [&mut late.sent, &mut late.seen] {
        segment.seq = segment.seq.wrapping_add(moves[0]);
        segment.ack = segment.ack.wrapping_add(moves[1]);
        let move_both = |(tsval, tsecr): (u32, u32)| (tsval.wrapping_add(moves[2]), tsecr.wrapping_add(moves[3]));
        segment.options.timestamps = segment.options.timestamps.map(move_both);
        let edge = |n: u32| {
            segment
                .ack
                .wrapping_add(moves[4])
                .wrapping_add(n.wrapping_mul(moves[5]))
        };
        segment.sack = (0..blocks).map(|n| (edge(2 * n), edge(2 * n + 1))).collect();
        segment.flags = flags;
        segment.payload.clone_from(&payload);
    }
}

/// The number of one of the servers of [`CONFIG`].
fn server_number(server: Station) -> usize {
    let text = server.address.ip().to_string();
    let last = text
        .chars()
        .last()
        .and_then(|digit| digit.to_digit(10))
        .expect("a digit");
    last as usize + if server.address.is_ipv6() { 3 } else { 0 }
}

#[test]
fn agrees_with_a_list_of_ended_connections() {
    let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds: Vec<u64> = given.map_or_else(|| (0..SEEDS).collect(), |seed| vec![seed]);
    let mut sum = Seen::default();
    for seed in seeds {
        println!("SEED={seed}");
        let mut model = Model::new(seed);
        for _ in 0..STEPS {
            model.step();
        }
        while !model.open.is_empty() {
            model.end();
            model.check();
        }
        model.bench.assert_all_returned();
        let Seen {
            late,
            one_leg,
            made_room,
            expired,
            taken_over,
            next,
        } = model.seen;
        sum.late += late;
        sum.one_leg += one_leg;
        sum.made_room += made_room;
        sum.expired += expired;
        sum.taken_over += taken_over;
        sum.next += next;
    }
    println!("{sum:?}");
    if given.is_none() {
        let Seen {
            late,
            one_leg,
            made_room,
            expired,
            taken_over,
            next,
        } = sum;
        let counts = [late, one_leg, made_room, expired, taken_over, next];
        assert!(
            counts.iter().all(|count| *count > 100),
            "everything has happened: {sum:?}"
        );
    }
}
