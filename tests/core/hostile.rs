//! Frames that nobody should send: nothing panics, nothing leaks, and strangers get at most one small answer.

use crate::harness::{Bench, CONFIG, Client, Server, nothing, only};
use arrayvec::ArrayVec;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::port::PortId;
use e2d2::wire::frame::{self, Packet};
use e2d2::wire::tcp::TcpFlags;
use proxyengine::proxy::drop_reason::DropReason;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

#[test]
fn a_segment_from_ourselves_to_ourselves_gets_no_answer() {
    let mut bench = Bench::new();
    let client = Client::new(80);
    let land = Segment {
        from: testkit::Station {
            mac: client.me.mac,
            ..client.proxy
        },
        ..client.syn()
    };
    nothing(bench.receive(&land));
    assert_eq!(bench.dropped(DropReason::Land), 1);
}

#[test_case(TcpFlags::empty(); "no flag")]
#[test_case(TcpFlags::SYN | TcpFlags::FIN; "SYN and FIN")]
#[test_case(TcpFlags::SYN | TcpFlags::RST; "SYN and RST")]
#[test_case(TcpFlags::FIN | TcpFlags::RST | TcpFlags::ACK; "FIN and RST")]
#[test_case(TcpFlags::FIN | TcpFlags::PSH | TcpFlags::URG; "christmas tree")]
#[test_case(TcpFlags::all(); "all flags")]
fn impossible_flags_get_no_answer(flags: TcpFlags) {
    let mut bench = Bench::new();
    nothing(bench.receive(&Segment {
        flags,
        ..Client::new(40000).syn()
    }));
    assert_eq!(bench.dropped(DropReason::BadFlags), 1);
}

#[test]
fn a_closed_port_answers_within_a_rate() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.proxy.address.set_port(81);
    let reset = only(bench.receive(&client.syn()));
    assert_eq!(
        (reset.flags, reset.ack),
        (TcpFlags::RST | TcpFlags::ACK, client.seq.wrapping_add(1))
    );
    let answered = (0..5000).filter(|_| !bench.receive(&client.syn()).is_empty()).count();
    assert!(answered < 1000, "{answered} answers in no time");
    // A RST is never answered.
    nothing(bench.receive(&Segment {
        flags: TcpFlags::RST,
        ..client.syn()
    }));
}

#[test]
fn silence_if_configured() {
    let mut bench =
        Bench::with_config(&CONFIG.replace("max_connections", "unknown_flows = \"silent\"\nmax_connections"));
    let mut client = Client::new(40000);
    client.proxy.address.set_port(81);
    nothing(bench.receive(&client.syn()));
}

#[test]
fn a_listener_serves_only_the_ports_that_it_names() {
    let mut bench = Bench::with_config(&CONFIG.replace("name = \"web\"", "name = \"web\"\nports = [\"client\"]"));
    let client = Client::new(40000);
    let mut buffer = client.syn().emit(&mut bench.pool);
    // The same SYN by the servers' port.
    buffer.data_mut()[..6].copy_from_slice(&[2, 0, 0, 0, 0, crate::harness::PROXY_MAC[1]]);
    let reset = only(bench.receive_frame(PortId(1), buffer));
    assert!(reset.flags.contains(TcpFlags::RST));
    assert_eq!(only(bench.receive(&client.syn())).flags, TcpFlags::SYN | TcpFlags::ACK);
}

#[test]
fn a_flood_of_syns_leaves_nothing_behind() {
    let mut bench = Bench::new();
    let before = bench.proxy.memory();
    for n in 0..100_000_u32 {
        let mut client = Client::new(n as u16);
        client.seq = n.wrapping_mul(2_654_435_761);
        let answer = only(bench.receive(&client.syn()));
        assert_eq!(answer.flags, TcpFlags::SYN | TcpFlags::ACK);
    }
    assert_eq!(bench.proxy.usage(), proxyengine::proxy::Usage::default());
    assert_eq!(bench.proxy.memory(), before);
}

/// A small generator of our own, so that a seed means the same for ever.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) % n as u64) as usize
    }
}

/// Real segments of real connections, one bit or byte or length wrong, mixed with noise, at random moments.
#[test]
fn a_million_random_and_mutated_frames() {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(0x9e37_79b9);
    println!("SEED={seed}");
    let mut random = Random(seed);
    let mut bench = Bench::new();
    let mut corpus: Vec<(PortId, Vec<u8>)> = Vec::new();
    for n in 0..1_000_000 {
        if n % 10_000 == 0 {
            corpus = live_segments(&mut bench, (n / 10_000) as u16, &mut random);
        }
        let (port, mut bytes) = if random.below(20) == 0 {
            let length = random.below(200);
            (
                PortId(random.below(2) as u8),
                (0..length).map(|_| random.next() as u8).collect(),
            )
        } else {
            corpus[random.below(corpus.len())].clone()
        };
        for _ in 0..random.below(4) {
            mutate(&mut bytes, &mut random);
        }
        let Some(mut buffer) = bench.pool.take() else {
            panic!("seed {seed}: a buffer leaked by frame {n}")
        };
        if buffer.append(bytes.len()).is_err() {
            continue;
        }
        buffer.data_mut().copy_from_slice(&bytes);
        let Ok(kind) = frame::parse(buffer.data()) else {
            continue;
        };
        if let Some(end) = kind.end() {
            buffer.truncate(usize::from(end));
        }
        let mut batch = ArrayVec::new();
        batch.push(Packet { buffer, port, kind });
        let mut sent = Count::default();
        bench.proxy.handle_batch(bench.now, &mut batch, &mut sent);
        assert!(
            sent.frames <= 40,
            "seed {seed}, frame {n}: {} frames for one",
            sent.frames
        );
        if random.below(100) == 0 {
            bench.now = bench.now + Duration::from_millis(random.below(500) as u64);
            bench.proxy.poll_timers(bench.now, &mut sent);
        }
        let usage = bench.proxy.usage();
        assert!(
            usage.connections <= 64 && usage.flows <= 2 * (64 + usage.resting),
            "seed {seed}: {usage:?}"
        );
    }
    let mut sent = Count::default();
    while !bench.proxy.finish(bench.now, 64, &mut sent) {}
    bench.now = bench.now + Duration::from_secs(60);
    bench.proxy.poll_timers(bench.now, &mut sent);
    assert_eq!(bench.proxy.usage(), proxyengine::proxy::Usage::default(), "seed {seed}");
    assert_eq!(bench.pool.available(), bench.pool.capacity(), "seed {seed}");
}

#[derive(Default)]
struct Count {
    frames: usize,
}

impl<B> proxyengine::proxy::Outbox<B> for Count {
    fn send(&mut self, _: PortId, _: B) {
        self.frames += 1;
    }
}

/// Segments of connections in every phase, so that mutations hit something.
fn live_segments(bench: &mut Bench, round: u16, random: &mut Random) -> Vec<(PortId, Vec<u8>)> {
    let mut frames = Vec::new();
    for n in 0..8_u16 {
        let mut client = Client::new(20_000 + round * 8 + n);
        frames.push((PortId(0), client.syn().frame()));
        let sent = bench.receive(&client.syn());
        let Some(syn_ack) = sent.into_iter().find(|s| s.flags.contains(TcpFlags::SYN)) else {
            continue;
        };
        client.take_syn_ack(&syn_ack);
        frames.push((PortId(0), client.segment(TcpFlags::ACK, b"").frame()));
        let request: &[u8] = [&b"0 to the server"[..], b"?half of it", b"pool", b"refused"][random.below(4)];
        frames.push((PortId(0), client.segment(TcpFlags::PSH, request).frame()));
        let sent = client.send(bench, request);
        frames.push((PortId(0), client.segment(TcpFlags::FIN, b"").frame()));
        frames.push((PortId(0), client.segment(TcpFlags::RST, b"").frame()));
        let Some(syn) = sent.into_iter().find(|s| s.flags == TcpFlags::SYN) else {
            continue;
        };
        let mut server = Server::from_syn(&syn);
        frames.push((PortId(1), server.syn_ack().frame()));
        if random.below(2) == 0 {
            continue;
        }
        bench.receive(&server.syn_ack());
        server.seq = server.isn.wrapping_add(1);
        for flags in [TcpFlags::ACK, TcpFlags::PSH, TcpFlags::FIN, TcpFlags::RST] {
            frames.push((PortId(1), server.segment(flags, b"answer").frame()));
            frames.push((PortId(0), client.segment(flags, b"").frame()));
        }
    }
    if frames.is_empty() {
        frames.push((PortId(0), Client::new(1).syn().frame()));
    }
    frames
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => bytes.extend((0..random.below(40)).map(|_| 0xff)),
        // The fields that matter most, with a checksum made right again so that they are believed.
        _ => {
            let field = [38, 42, 46, 47, 48][random.below(5)];
            if let Some(byte) = bytes.get_mut(field) {
                *byte = byte.wrapping_add(random.next() as u8);
            }
            mend_checksum(bytes);
        }
    }
}

fn mend_checksum(bytes: &mut [u8]) {
    use e2d2::wire::checksum;
    let Ok(frame::Kind::Tcp(layout)) = frame::parse(bytes) else {
        return;
    };
    if layout.version != frame::IpVersion::V4 {
        return;
    }
    let (l4, end) = (usize::from(layout.l4), usize::from(layout.end));
    let ip = |at: usize| std::net::Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
    let pseudo = checksum::pseudo_header_v4(ip(26), ip(30), 6, (end - l4) as u16);
    bytes[l4 + 16..l4 + 18].fill(0);
    let sum = checksum::finish(pseudo + checksum::sum(&bytes[l4..end]));
    bytes[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
}
