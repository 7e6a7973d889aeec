//! Two reference peers (`testkit::reference`) through the whole graph, in virtual time, over links that lose, repeat and
//! reorder, with what smoltcp does not do: SACK, PAWS, path-MTU messages, any window shift, ACK storms, closed windows,
//! urgent data, old connections of servers. `SEED=n` tries one seed.

#![allow(dead_code, unreachable_pub)] // modules shared with another test program

#[path = "../core/graph_bench.rs"]
mod graph_bench;
#[path = "../core/harness.rs"]
mod harness;
mod ways;

use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::frame::{self, Kind};
use e2d2::wire::icmpv4::Icmpv4Repr;
use e2d2::wire::{Envelope, MacAddr};
use graph_bench::GraphBench;
use harness::{PROXY_MAC, Selector};
use proxyengine::callbacks::Inspected;
use std::time::Duration;
use testkit::Segment;
use testkit::reference::{Greeting, Habits, Peer, Seen};
use testkit::sim::{Impairment, Link, Random};
use ways::{Rewriter, Way};

const SEEDS: u64 = 300;

/// Seeds that have found a defect: what is owed was too old for the server's PAWS.
const FAILED: [u64; 1] = [536];
const STEP: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(240);

/// One connection between two peers, and the links to both.
struct World {
    seed: u64,
    random: Random,
    bench: GraphBench<Inspected<Selector, Rewriter>>,
    way: Way,
    client: Peer,
    server: Option<Peer>,
    habits: [Habits; 2],
    /// Towards the client, towards the server; from the client, from the server.
    links: [Link; 4],
    /// Frames on their way: when, to whom or from whom (the link's index), and the frame.
    flying: Vec<(Instant, usize, Vec<u8>)>,
    /// The longest IP packet towards the client and the server.
    mtu: [usize; 2],
    /// Path-MTU messages that reached a peer.
    obeyed: u32,
    request: u32,
    /// No frame overtakes another.
    is_in_order: bool,
    /// `TRACE` is set: every segment is printed.
    is_traced: bool,
}

fn habits(random: &mut Random) -> Habits {
    Habits {
        mss: random.one_of(&[536, 1000, 1400, 1460]),
        window_scale: Some(random.within(0..=15) as u8).filter(|shift| *shift <= 14),
        sack: random.chance(800),
        timestamps: random.chance(700),
        // A unit of the largest shift is 16 KiB.
        buffer: random.one_of(&[16_384, 49_152, 200_000]),
        ack_every: random.within(1..=4) as u32,
        ack_copies: random.one_of(&[1, 1, 1, 3, 20]),
        sleeps_ms: random.one_of(&[0, 0, 0, 300, 700]),
        greeting: random.one_of(&[Greeting::Accept, Greeting::Accept, Greeting::OldAck]),
        urgent: random.fork("urgent").chance(300),
    }
}

fn bytes(random: &mut Random, most: u64) -> Vec<u8> {
    let length = random.magnitude(1..=most) as usize;
    (0..length).map(|_| random.bits() as u8).collect()
}

impl World {
    fn new(seed: u64, way: Way) -> Self {
        let mut random = Random::new(seed);
        let bench = GraphBench::with_selector(&way.config(), 6, way.selector());
        let plan = Impairment {
            loss: random.one_of(&[0, 0, 10, 50, 100]),
            duplicate: random.one_of(&[0, 20]),
            reorder: random.one_of(&[0, 0, 20, 100]),
            delay_us: random.magnitude(100..=50_000),
            jitter_us: random.within(0..=2_000),
            lag_us: 30_000,
            ..Impairment::default()
        };
        let is_in_order = plan.reorder == 0 && plan.duplicate == 0;
        let links = ["0", "1", "2", "3"].map(|name| Link::new(plan.clone(), random.fork(name), bench.now));
        let mut habits = [habits(&mut random), habits(&mut random)];
        // They are promised to the client, and a server that breaks the promise is left.
        habits[1].timestamps |= !way.is_syn;
        // The first byte names the server, at once or after a line.
        let mut request = bytes(&mut random, 4_000);
        if random.chance(300) {
            request.retain(|byte| *byte != b'\n');
            request.insert(0, b'?');
            request.push(b'\n');
        } else {
            request.insert(0, if way.server_v6 { b'3' } else { b'0' });
        }
        // Half a line leads to the first server, which has IPv4.
        if way.server_v6 && request[0] == b'?' {
            request[0] = b'3';
        }
        let first = request.len() as u32;
        request.extend(bytes(&mut random, 100_000));
        let isn = random.one_of(&[u32::MAX - 5_000, 0x7fff_f000, 1, random.clone().bits() as u32]);
        let (me, proxy) = way.client();
        let client = Peer::client(me, proxy, habits[0], isn, request, bench.now);
        let mut mtu = [0, 1].map(|_| random.one_of(&[1500, 1500, 1500, 1300, 900]));
        if !way.has_small_links() {
            mtu = [1500; 2];
        }
        World {
            seed,
            random,
            bench,
            way,
            client,
            server: None,
            habits,
            links,
            flying: Vec::new(),
            mtu,
            obeyed: 0,
            request: first,
            is_in_order,
            is_traced: std::env::var_os("TRACE").is_some(),
        }
    }

    fn put(&mut self, link: usize, frame: Vec<u8>) {
        if self.is_traced
            && let Ok(Kind::Tcp(_)) = frame::parse(&frame)
        {
            let segment = Segment::read(&frame);
            let way = ["engine to client", "engine to server", "client", "server"][link];
            let (at, length) = (self.bench.now, segment.payload.len());
            println!(
                "{at:?} {way}: {:?} {}+{length} ack {} window {} sack {:?} {:?}",
                segment.flags, segment.seq, segment.ack, segment.window, segment.sack, segment.options.timestamps
            );
        }
        let flying = &mut self.flying;
        self.links[link].send(self.bench.now, frame, |at, frame| flying.push((at, link, frame)));
    }

    /// Lets the graph take frames, and what it sends fly.
    fn engine(&mut self, frames: Vec<(PortId, HeapBuffer)>) {
        for buffer in self.bench.exchange(frames) {
            let frame = buffer.data();
            // Port 1's own MAC address is the sender's.
            let side = usize::from(frame[11] == PROXY_MAC[1]);
            if !matches!(frame::parse(frame), Ok(Kind::Tcp(_) | Kind::Icmpv4 { .. })) {
                continue;
            }
            if frame.len() - 14 > self.mtu[side] {
                let complaint = complaint(frame, self.mtu[side] as u16, side);
                self.put(2 + side, complaint);
            } else {
                let frame = frame.to_vec();
                self.put(side, frame);
            }
        }
    }

    fn step(&mut self) {
        self.bench.now += STEP;
        let now = self.bench.now;
        let (mut due, rest): (Vec<_>, Vec<_>) = self.flying.drain(..).partition(|(at, ..)| *at <= now);
        self.flying = rest;
        due.sort_by_key(|(at, ..)| *at);
        let mut inbound = Vec::new();
        for (_, link, frame) in due {
            match link {
                0 | 1 => self.arrive(link, &frame),
                _ => {
                    let buffer = self
                        .bench
                        .core
                        .pool
                        .take_copy(&frame)
                        .expect("a buffer that nobody has kept");
                    inbound.push((PortId(link as u8 - 2), buffer));
                }
            }
        }
        self.engine(inbound);
        for segment in self.client.poll(now) {
            self.put(2, segment.frame());
        }
        let sent = self.server.as_mut().map(|server| server.poll(now));
        for segment in sent.into_iter().flatten() {
            self.put(3, segment.frame());
        }
    }

    /// A frame reaches a peer.
    fn arrive(&mut self, side: usize, frame: &[u8]) {
        if let Ok(Kind::Icmpv4 { .. }) = frame::parse(frame) {
            return self.complain(side, frame);
        }
        let segment = Segment::read(frame);
        let now = self.bench.now;
        if side == 0 {
            self.check_blocks(&segment);
            return self.client.handle(now, &segment);
        }
        if self.server.is_none() && segment.flags == e2d2::wire::tcp::TcpFlags::SYN {
            let data = bytes(&mut self.random.fork("answer"), 200_000);
            let isn = self.random.fork("isn").bits() as u32;
            self.server = Some(Peer::server(&segment, self.habits[1], isn, data, now));
            return;
        }
        let World { server, client, .. } = self;
        let Some(server) = server else { return };
        if !segment.flags.contains(e2d2::wire::tcp::TcpFlags::SYN) {
            for &(left, right) in &segment.sack {
                let range = (server.own_offset(left), server.own_offset(right));
                let is_known = self.way.is_rewritten || client.holds(range);
                assert!(is_known, "the client has no {range:?}: {segment:?}");
            }
        }
        server.handle(now, &segment);
    }

    /// What the client is told of its bytes: once the engine holds none of them, the server has them.
    fn check_blocks(&self, segment: &Segment) {
        let Some(server) = &self.server else { return };
        if self.way.is_rewritten || self.client.acknowledged() <= self.request {
            return;
        }
        for &(left, right) in &segment.sack {
            let range = (self.client.own_offset(left), self.client.own_offset(right));
            assert!(server.holds(range), "the server has no {range:?}: {segment:?}");
        }
    }

    /// A path-MTU message reaches a peer, which believes it if it quotes what the peer has sent (RFC 5927 4.1).
    fn complain(&mut self, side: usize, frame: &[u8]) {
        let peer = match side {
            0 => Some(&mut self.client),
            _ => self.server.as_mut(),
        };
        let peer = peer.expect("nobody has sent anything yet");
        assert_eq!(frame[34..36], [3, 4], "fragmentation needed: {frame:02x?}");
        let mtu = u16::from_be_bytes([frame[40], frame[41]]);
        let quote = &frame[42..];
        let number = |at: usize| u16::from_be_bytes([quote[at], quote[at + 1]]);
        assert_eq!(
            (number(20), number(22)),
            (peer.me.address.port(), peer.other.address.port())
        );
        let seq = u32::from(number(24)) << 16 | u32::from(number(26));
        assert!(
            peer.own_offset(seq) < 1 << 20,
            "a quote of what was not sent: {frame:02x?}"
        );
        peer.obey_mtu(mtu);
        self.obeyed += 1;
    }

    /// Both streams to their ends.
    fn run(&mut self) -> [Seen; 2] {
        let end = self.bench.now + PATIENCE;
        loop {
            self.step();
            let server = self.server.as_ref();
            assert!(
                !self.client.is_reset() && !server.is_some_and(Peer::is_reset),
                "seed {}: reset: {:?}",
                self.seed,
                self.way
            );
            if self.client.is_done() && server.is_some_and(Peer::is_done) {
                break;
            }
            assert!(
                self.bench.now < end,
                "seed {}: stuck: {:?}: client has {} bytes, its own acknowledged to {}; server {:?}; {:?}",
                self.seed,
                self.way,
                self.client.received().len(),
                self.client.acknowledged(),
                server.map(|server| (server.received().len(), server.acknowledged())),
                self.habits
            );
        }
        let server = self.server.as_ref().expect("a server that is done");
        assert!(
            self.client.received() == self.way.made_of(server.data()),
            "seed {}: wrong bytes to the client",
            self.seed
        );
        assert!(
            server.received() == self.way.made_of(self.client.data()),
            "seed {}: wrong bytes to the server",
            self.seed
        );
        let seen = [self.client.seen, server.seen];
        let dropped = seen.map(|seen| seen.new_bytes_dropped);
        assert!(
            !self.is_in_order || self.way.is_rewritten || dropped == [0, 0],
            "seed {}: PAWS dropped new bytes",
            self.seed
        );
        let misplaced = seen.map(|seen| seen.misplaced_urgent);
        assert!(
            self.way.is_rewritten || misplaced == [0, 0],
            "seed {}: an urgent pointer leads elsewhere",
            self.seed
        );
        self.bench.assert_all_returned(&format!("seed {}", self.seed));
        seen
    }
}

/// What a router says to the sender of a frame that is too long for its next link.
fn complaint(frame: &[u8], mtu: u16, side: usize) -> Vec<u8> {
    let envelope = Envelope {
        src_mac: MacAddr([2, 0, 0, 0, 0, if side == 0 { 1 } else { 0x50 }]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, PROXY_MAC[side]]),
        src_addr: if side == 0 { "10.0.0.77" } else { "10.1.0.77" }
            .parse()
            .expect("address"),
        dst_addr: std::net::Ipv4Addr::new(frame[26], frame[27], frame[28], frame[29]).into(),
        hop_limit: 64,
    };
    let message = Icmpv4Repr::Unreachable {
        code: 4,
        next_hop_mtu: mtu,
        original: &frame[14..],
    };
    let mut buffer = HeapPool::new(1, 2048).take().expect("a buffer");
    message.emit(&envelope, &mut buffer).expect("room for an error");
    buffer.data().to_vec()
}

/// With IPv6 at either end or both, bound with the SYN, with all bytes rewritten, and any two of these.
#[test]
fn they_do_so_by_every_way() {
    let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds: Vec<u64> = given.map_or_else(|| (0..SEEDS).collect(), |seed| vec![seed]);
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for seed in seeds {
        let way = Way::draw(&mut Random::new(seed).fork("way"));
        println!("SEED={seed} {way:?}");
        World::new(seed, way).run();
        *seen.entry(format!("{way:?}")).or_default() += 1;
    }
    if given.is_none() {
        assert_eq!(seen.len(), 16, "every way was gone: {seen:?}");
    }
}

#[test]
fn two_reference_peers_get_every_byte() {
    let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds: Vec<u64> = given.map_or_else(|| (0..SEEDS).chain(FAILED).collect(), |seed| vec![seed]);
    let mut sum = Seen::default();
    let mut obeyed = 0;
    for seed in seeds {
        println!("SEED={seed}");
        let mut world = World::new(seed, Way::default());
        for seen in world.run() {
            sum.old_timestamps += seen.old_timestamps;
            sum.without_timestamps += seen.without_timestamps;
            sum.early_echoes += seen.early_echoes;
            sum.new_bytes_dropped += seen.new_bytes_dropped;
            sum.blocks += seen.blocks;
            sum.filled_holes += seen.filled_holes;
            sum.timeouts += seen.timeouts;
            sum.closed_windows += seen.closed_windows;
            sum.urgent += seen.urgent;
        }
        obeyed += world.obeyed;
    }
    println!("{sum:?}, {obeyed} path-MTU messages obeyed");
    if given.is_none() {
        let Seen {
            old_timestamps,
            blocks,
            filled_holes,
            timeouts,
            closed_windows,
            urgent,
            ..
        } = sum;
        for (count, of) in [
            (old_timestamps, "old timestamps"),
            (blocks, "SACK blocks"),
            (filled_holes, "holes filled"),
            (timeouts, "time-outs"),
            (closed_windows, "closed windows"),
            (urgent, "urgent pointers"),
            (obeyed, "path-MTU messages"),
        ] {
            assert!(count > 0, "no {of} in {SEEDS} seeds");
        }
    }
}
