//! The whole graph of a core on heap memory: ports, parse, station, proxy, send.

use crate::graph_bench::GraphBench;
use crate::harness::{CONFIG, Client, PROXY_MAC, Receive, Server, only};
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use e2d2::fate::Traffic;
use e2d2::port::{Port, PortId};
use e2d2::wire::frame;
use e2d2::wire::icmpv4::Icmpv4Repr;
use e2d2::wire::icmpv6::Icmpv6Repr;
use e2d2::wire::tcp::TcpFlags;
use e2d2::wire::{EmitError, Envelope, MacAddr};
use std::net::IpAddr;
use std::time::Duration;
use testkit::Segment;

#[test]
fn a_connection_through_the_whole_graph() {
    let mut bench = GraphBench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"1 hello"));
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    assert_eq!(only(held).payload, b"1 hello");
    assert_eq!(only(server.send(&mut bench, b"answer")).payload, b"answer");
    bench.assert_all_returned("one connection");
}

/// More than a burst is waiting when the engine is told to end: what was taken ahead of the port is passed on first.
#[test]
fn segments_taken_ahead_when_the_engine_ends_are_passed_on() {
    let mut bench = GraphBench::new();
    let (client, _server) = crate::harness::spliced(&mut bench, 40000);
    let segment = client.segment(TcpFlags::PSH, b"more");
    let mut waiting: Vec<HeapBuffer> = (0..60).map(|_| segment.emit(&mut bench.core.pool)).collect();
    for chunk in [32, 28] {
        let mut burst: ArrayVec<HeapBuffer, BURST> = waiting.drain(..chunk).collect();
        assert_eq!(bench.core.far[0].transmit(&mut burst), chunk);
    }
    let before = bench.core.reader.traffic.snapshot()[Traffic::Received];
    let _worked = bench.core.task.run(bench.now);
    assert_eq!(
        bench.core.reader.traffic.snapshot()[Traffic::Received] - before,
        60,
        "some ahead"
    );
    bench.core.handle.finish();
    let sent = bench.exchange([]);
    let passed = sent.iter().filter(|frame| frame.data().ends_with(b"more")).count();
    assert_eq!(passed, 60);
    drop(sent);
    bench.assert_all_returned("ended with packets ahead");
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

#[test]
fn a_million_random_and_mutated_frames() {
    mutated_frames(CONFIG, 1_000_000);
}

/// The same where servers are called before clients have said anything.
#[test]
fn random_and_mutated_frames_to_listeners_that_bind_before_the_first_payload() {
    for bind in ["syn", "handshake"] {
        let rules =
            |pool: &str| format!("rules = [{{ first_number = true, pool = \"{pool}\" }}]\ndefault = \"reject\"");
        let bound = |pool: &str| format!("bind = \"{bind}\"\ndefault = \"{pool}\"");
        let text = CONFIG.replace(&rules("all"), &bound("all"));
        let text = text.replace(&rules("all6"), &bound("all6"));
        assert_eq!(text.matches(bind).count(), 2);
        mutated_frames(&text, 200_000);
    }
}

/// Real frames of real connections, one bit or byte or length wrong, mixed with noise, at random moments: no panic, no
/// leak, no loop, and never more than a bounded answer.
fn mutated_frames(text: &str, count: u32) {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(0x9e37_79b9);
    println!("SEED={seed}");
    let mut random = Random(seed);
    let mut bench = GraphBench::with_config(text);
    let mut corpus: Vec<(PortId, Vec<u8>)> = Vec::new();
    let mut n = 0;
    while n < count {
        if n % 8_000 == 0 {
            corpus = live_segments(&mut bench, (n / 8_000) as u16, &mut random);
            corpus.extend(control_frames(&corpus));
        }
        let mut frames = Vec::new();
        for _ in 0..8 {
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
            n += 1;
            let Some(mut buffer) = bench.core.pool.take() else {
                panic!("seed {seed}: a buffer leaked by frame {n}")
            };
            if buffer.append(bytes.len()).is_ok() {
                buffer.data_mut().copy_from_slice(&bytes);
                frames.push((port, buffer));
            }
        }
        let sent = bench.exchange(frames);
        assert!(
            sent.len() <= 8 * 40,
            "seed {seed}, frame {n}: {} frames for eight",
            sent.len()
        );
        for buffer in &sent {
            // Our own group reports have the one extension header that is meant for routers (RFC 3810 5).
            let parsed = frame::parse(buffer.data());
            let sound = matches!(parsed, Ok(_) | Err(frame::ParseError::ExtensionHeader));
            assert!(sound, "seed {seed}, frame {n}: {parsed:?}: {:02x?}", buffer.data());
        }
        drop(sent);
        if random.below(16) == 0 {
            bench.now += Duration::from_millis(random.below(500) as u64);
        }
        let usage = bench.core.handle.look(|proxy| proxy.usage());
        assert!(
            usage.connections <= 64 && usage.flows <= 2 * (64 + usage.time_wait),
            "seed {seed}: {usage:?}"
        );
    }
    bench.assert_all_returned(&format!("seed {seed}"));
}

/// ARP, ping, and ICMP errors of both versions that quote what the corpus holds.
fn control_frames(corpus: &[(PortId, Vec<u8>)]) -> Vec<(PortId, Vec<u8>)> {
    let mut pool = HeapPool::new(1, 2048);
    let mut frames = vec![(PortId(0), arp_request())];
    let envelope = |port: PortId, src_addr: IpAddr, dst_addr: IpAddr| Envelope {
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, PROXY_MAC[usize::from(port.0)]]),
        src_addr,
        dst_addr,
        hop_limit: 64,
    };
    let address = |text: &str| -> IpAddr { text.parse().expect("address") };
    let mut add = |port: PortId, emit: &dyn Fn(&mut HeapBuffer) -> Result<(), EmitError>| {
        let mut buffer = pool.take().expect("a buffer");
        emit(&mut buffer).expect("room");
        frames.push((port, buffer.data().to_vec()));
    };
    add(PortId(0), &|buffer| {
        let ping = Icmpv4Repr::EchoRequest {
            ident: 1,
            seq: 2,
            data: b"ping",
        };
        ping.emit(&envelope(PortId(0), address("10.0.0.1"), address("10.0.0.9")), buffer)
    });
    for &(port, ref frame) in corpus.iter().take(24) {
        let segment = Segment::read(frame);
        let (remote, local) = (segment.from.address.ip(), segment.to.address.ip());
        let envelope = envelope(port, remote, local);
        // As if it had been sent by us: the quote's end points are exchanged.
        let quoted = Segment {
            from: segment.to,
            to: segment.from,
            seq: segment.ack,
            ..segment
        };
        let quoted = quoted.frame();
        let original = &quoted[14..];
        for mtu in [0, 1300] {
            add(port, &|buffer| match (remote.is_ipv4(), mtu) {
                (true, _) => Icmpv4Repr::Unreachable {
                    code: if mtu == 0 { 1 } else { 4 },
                    next_hop_mtu: mtu,
                    original,
                }
                .emit(&envelope, buffer),
                (false, 0) => Icmpv6Repr::Unreachable { code: 3, original }.emit(&envelope, buffer),
                (false, _) => Icmpv6Repr::PacketTooBig {
                    mtu: mtu.into(),
                    original,
                }
                .emit(&envelope, buffer),
            });
        }
    }
    frames
}

fn arp_request() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 9]);
    frame
}

/// Segments of connections in every phase, so that mutations hit something.
fn live_segments(bench: &mut impl Receive, round: u16, random: &mut Random) -> Vec<(PortId, Vec<u8>)> {
    let mut frames = Vec::new();
    for n in 0..8_u16 {
        let port = 20_000 + round * 8 + n;
        let mut client = match random.below(3) {
            0 => Client::new_v6(port),
            _ => Client::new(port),
        };
        frames.push((PortId(0), client.syn().frame()));
        let mut sent = bench.receive(&client.syn());
        // A SYN that is passed on, and the server's answer to it.
        if let Some(syn) = sent.iter().find(|s| s.flags == TcpFlags::SYN) {
            let server = Server::from_syn(syn);
            frames.push((PortId(1), server.syn_ack().frame()));
            frames.push((PortId(1), server.segment(TcpFlags::RST, b"").frame()));
            if random.below(4) == 0 {
                continue;
            }
            sent = bench.receive(&server.syn_ack());
        }
        let is_answer = |s: &Segment| s.flags == TcpFlags::SYN | TcpFlags::ACK && s.to == client.me;
        let Some(syn_ack) = sent.into_iter().find(is_answer) else {
            continue;
        };
        client.take_syn_ack(&syn_ack);
        frames.push((PortId(0), client.segment(TcpFlags::ACK, b"").frame()));
        // Servers 0 to 2 have IPv4, 3 to 5 IPv6.
        let requests = [
            &b"0 to the server"[..],
            b"3 to the server",
            b"?half of it",
            b"pool",
            b"refused",
        ];
        let request = requests[random.below(requests.len())];
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
            let longer = if bytes.get(12..14) == Some(&[0x86, 0xdd]) {
                20
            } else {
                0
            };
            let field = [38, 42, 46, 47, 48][random.below(5)];
            if let Some(byte) = bytes.get_mut(field + longer) {
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
    let (l4, end) = (usize::from(layout.l4), usize::from(layout.end));
    let pseudo = layout.pseudo_header_sum(bytes).expect("its own layout");
    bytes[l4 + 16..l4 + 18].fill(0);
    let sum = checksum::finish(pseudo + checksum::sum(&bytes[l4..end]));
    bytes[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
}
