//! The whole graph of a core on heap memory: ports, parse, station, proxy, send.

use crate::graph_bench::GraphBench;
use crate::harness::{Client, PROXY_MAC, Receive, Server, only};
use e2d2::buffer::{BufferPool, HeapPool, PacketBuffer};
use e2d2::port::PortId;
use e2d2::wire::MacAddr;
use e2d2::wire::frame;
use e2d2::wire::tcp::TcpFlags;
use std::time::Duration;

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

/// Real frames of real connections, one bit or byte or length wrong, mixed with noise, at random moments: no panic, no
/// leak, no loop, and never more than a bounded answer.
#[test]
fn a_million_random_and_mutated_frames() {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(0x9e37_79b9);
    println!("SEED={seed}");
    let mut random = Random(seed);
    let mut bench = GraphBench::new();
    let mut corpus: Vec<(PortId, Vec<u8>)> = Vec::new();
    let mut n = 0;
    while n < 1_000_000 {
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
            let Some(mut buffer) = bench.pool.take() else {
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
        let usage = bench.handle.look(|proxy| proxy.usage());
        assert!(
            usage.connections <= 64 && usage.flows <= 2 * (64 + usage.resting),
            "seed {seed}: {usage:?}"
        );
    }
    bench.assert_all_returned(&format!("seed {seed}"));
}

/// ARP, neighbour discovery, ping, and ICMP errors that quote what the corpus holds.
fn control_frames(corpus: &[(PortId, Vec<u8>)]) -> Vec<(PortId, Vec<u8>)> {
    use e2d2::wire::Envelope;
    use e2d2::wire::icmpv4::Icmpv4Repr;
    let mut pool = HeapPool::new(1, 2048);
    let mut frames = Vec::new();
    let envelope = Envelope {
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, PROXY_MAC[0]]),
        src_addr: "10.0.0.1".parse().expect("address"),
        dst_addr: "10.0.0.9".parse().expect("address"),
        hop_limit: 64,
    };
    let mut add = |repr: Icmpv4Repr<'_>| {
        let mut buffer = pool.take().expect("a buffer");
        repr.emit(&envelope, &mut buffer).expect("room");
        frames.push((PortId(0), buffer.data().to_vec()));
    };
    add(Icmpv4Repr::EchoRequest {
        ident: 1,
        seq: 2,
        data: b"ping",
    });
    for (_, frame) in corpus.iter().take(8) {
        // As if it had been sent by us: the quote's addresses are exchanged.
        let mut quoted = frame[14..].to_vec();
        let (source, rest) = quoted[12..].split_at_mut(4);
        source.swap_with_slice(&mut rest[..4]);
        let (source, rest) = rest[4..].split_at_mut(2);
        source.swap_with_slice(&mut rest[..2]);
        add(Icmpv4Repr::Unreachable {
            code: 4,
            next_hop_mtu: 1300,
            original: &quoted,
        });
        add(Icmpv4Repr::Unreachable {
            code: 1,
            next_hop_mtu: 0,
            original: &quoted,
        });
    }
    frames.push((PortId(0), arp_request()));
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
