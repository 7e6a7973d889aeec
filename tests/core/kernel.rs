//! A kernel behind the ports: which frames it gets, which it does not, and what it sends.

use crate::graph_bench::{FakeKernel, GraphBench};
use crate::harness::{CONFIG, Client, PROXY_MAC, Server, only};
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use e2d2::port::PortId;
use e2d2::wire::icmpv4::Icmpv4Repr;
use e2d2::wire::icmpv6::Icmpv6Repr;
use e2d2::wire::tcp::TcpFlags;
use e2d2::wire::{EmitError, Envelope, MacAddr, checksum};
use proxyengine::kernel::{KernelDrop, KernelEvent};
use proxyengine::neighbour::ECHO_BURST;
use splice::drop_reason::DropReason;
use std::net::IpAddr;
use std::time::Duration;
use testkit::{Segment, Station};

const CLIENTS: PortId = PortId(0);
const SERVERS: PortId = PortId(1);

/// The kernel shares the addresses of both ports, and has one more of its own on the first.
fn config() -> String {
    let extra =
        r#"kernel = { device = "pe-k0", addresses = ["10.0.0.9", "fd00::9", "10.0.0.50", "fd00::50"], rate = 1000 }"#;
    CONFIG
        .replace(
            "addresses = [\"10.0.0.9/24\", \"fd00::9/64\"]",
            &format!("addresses = [\"10.0.0.9/24\", \"fd00::9/64\"]\n{extra}"),
        )
        .replace(
            "addresses = [\"10.1.0.9/24\", \"fd01::9/64\"]",
            "addresses = [\"10.1.0.9/24\", \"fd01::9/64\"]\nkernel = { device = \"pe-k1\", local_ports = \"61000-61999\" }",
        )
}

fn bench() -> GraphBench {
    started(&config())
}

/// Past the announcements of the start.
fn started(text: &str) -> GraphBench {
    let mut bench = GraphBench::with_config(text);
    bench.wait(Duration::from_secs(60));
    bench
}

fn the_segment(sent: Vec<HeapBuffer>) -> Segment {
    let [buffer] = &sent[..] else {
        panic!("{} frames", sent.len())
    };
    Segment::read(buffer.data())
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// From a host on the port's link to one of our addresses.
fn envelope(port: PortId, from: &str, to: &str) -> Envelope {
    Envelope {
        src_mac: MacAddr([2, 0, 0, 0, 0, 0x33]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, PROXY_MAC[usize::from(port.0)]]),
        src_addr: address(from),
        dst_addr: address(to),
        hop_limit: 64,
    }
}

fn emitted(emit: impl FnOnce(&mut HeapBuffer) -> Result<(), EmitError>) -> Vec<u8> {
    let mut buffer = HeapPool::new(1, 2048).take().expect("a buffer");
    emit(&mut buffer).expect("room");
    buffer.data().to_vec()
}

fn ping(port: PortId, from: &str, to: &str) -> Vec<u8> {
    let (ident, seq, data) = (1, 2, &b"ping"[..]);
    let envelope = envelope(port, from, to);
    emitted(|buffer| match envelope.dst_addr {
        IpAddr::V4(_) => Icmpv4Repr::EchoRequest { ident, seq, data }.emit(&envelope, buffer),
        IpAddr::V6(_) => Icmpv6Repr::EchoRequest { ident, seq, data }.emit(&envelope, buffer),
    })
}

fn segment(port: PortId, from: &str, to: &str, flags: TcpFlags) -> Vec<u8> {
    let to = Station::new(PROXY_MAC[usize::from(port.0)], to);
    let mut segment = Segment::between(Station::new(0x33, from), to);
    segment.flags = flags;
    segment.frame()
}

fn udp(to: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, PROXY_MAC[0], 2, 0, 0, 0, 0, 0x33, 8, 0];
    frame.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 7]);
    frame.extend(to);
    let sum = checksum::internet(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend([0, 53, 0x80, 0, 0, 8, 0, 0]);
    frame
}

fn arp(operation: u8, to: MacAddr, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = to.0.to_vec();
    frame.extend([2, 0, 0, 0, 0, 0x33, 8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend([2, 0, 0, 0, 0, 0x33]);
    frame.extend(sender);
    frame.extend([0; 6]);
    frame.extend(target);
    frame
}

/// What the engine sends in answer, and what the kernel gets of a frame.
fn given(bench: &mut GraphBench, port: PortId, frame: &[u8]) -> (Vec<HeapBuffer>, Vec<Vec<u8>>) {
    let buffer = bench.core.pool.take_copy(frame).expect("a buffer");
    let sent = bench.exchange([(port, buffer)]);
    (sent, bench.kernel.received(port))
}

#[track_caller]
fn assert_kernels(bench: &mut GraphBench, port: PortId, frame: &[u8]) {
    let (sent, got) = given(bench, port, frame);
    assert!(sent.is_empty(), "the engine answers, too: {:02x?}", sent[0].data());
    assert_eq!(got, [frame], "as it came");
}

#[track_caller]
fn assert_engines(bench: &mut GraphBench, port: PortId, frame: &[u8]) -> Vec<HeapBuffer> {
    let (sent, got) = given(bench, port, frame);
    assert!(got.is_empty(), "the kernel gets it: {got:02x?}");
    sent
}

#[test]
fn segments_that_no_listener_takes_are_the_kernels() {
    let mut bench = bench();
    for (port, from, to) in [
        (CLIENTS, "10.0.0.7:5000", "10.0.0.9:22"),
        (CLIENTS, "10.0.0.7:5000", "10.0.0.9:81"),
        (CLIENTS, "[fd00::7]:5000", "[fd00::9]:179"),
        (CLIENTS, "10.0.0.7:5000", "10.0.0.50:80"),
        (SERVERS, "10.1.0.7:5000", "10.1.0.9:22"),
        (SERVERS, "10.1.0.7:179", "10.1.0.9:61000"),
        (SERVERS, "[fd01::7]:179", "[fd01::9]:61999"),
    ] {
        for flags in [
            TcpFlags::SYN,
            TcpFlags::ACK,
            TcpFlags::RST,
            TcpFlags::SYN | TcpFlags::ACK,
        ] {
            assert_kernels(&mut bench, port, &segment(port, from, to, flags));
        }
    }
    assert_eq!(bench.kernel.counted(KernelEvent::Passed), 28);
    bench.assert_all_returned("segments");
}

#[test]
fn the_engine_comes_first() {
    let mut bench = bench();
    let syn = segment(CLIENTS, "10.0.0.7:5000", "10.0.0.9:80", TcpFlags::SYN);
    let syn_ack = the_segment(assert_engines(&mut bench, CLIENTS, &syn));
    assert_eq!(syn_ack.flags, TcpFlags::SYN | TcpFlags::ACK);
    // A port that servers are called from, of no connection: as without a kernel, RST or nothing.
    for to in [
        "10.1.0.9:1024",
        "10.1.0.9:60999",
        "10.1.0.9:62000",
        "10.1.0.9:65535",
        "[fd01::9]:1024",
    ] {
        let from = if to.starts_with('[') {
            "[fd01::100]:8080"
        } else {
            "10.1.0.100:8080"
        };
        let stray = segment(SERVERS, from, to, TcpFlags::SYN | TcpFlags::ACK);
        let answer = the_segment(assert_engines(&mut bench, SERVERS, &stray));
        assert_eq!(answer.flags & TcpFlags::RST, TcpFlags::RST, "{to}");
    }
    // Nobody's address, another station's frame.
    let unknown = bench.dropped(DropReason::UnknownFlow);
    assert!(
        assert_engines(
            &mut bench,
            CLIENTS,
            &segment(CLIENTS, "10.0.0.7:1", "10.0.0.8:22", TcpFlags::SYN)
        )
        .is_empty()
    );
    assert_eq!(bench.dropped(DropReason::UnknownFlow), unknown + 1);
    let mut other = segment(CLIENTS, "10.0.0.7:1", "10.0.0.9:22", TcpFlags::SYN);
    other[5] ^= 1;
    assert!(assert_engines(&mut bench, CLIENTS, &other).is_empty());
    // From ourselves to ourselves.
    let land = segment(CLIENTS, "10.0.0.9:22", "10.0.0.9:22", TcpFlags::SYN);
    assert!(assert_engines(&mut bench, CLIENTS, &land).is_empty());
    assert_eq!(bench.dropped(DropReason::Land), 1);
    assert_eq!(bench.kernel.counted(KernelEvent::Passed), 0);
    bench.assert_all_returned("the engine's");
}

#[test]
fn a_connection_is_proxied_and_the_kernel_sees_nothing_of_it() {
    let mut bench = bench();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"1 hello"));
    let mut server = Server::from_syn(&syn);
    server.accept(&mut bench);
    assert_eq!(only(server.send(&mut bench, b"answer")).payload, b"answer");
    for port in [CLIENTS, SERVERS] {
        assert!(bench.kernel.received(port).is_empty());
    }
    bench.assert_all_returned("one connection");
}

#[test]
fn pings_and_udp_to_the_kernels_addresses_are_the_kernels() {
    let mut bench = bench();
    for (from, to) in [
        ("10.0.0.7", "10.0.0.9"),
        ("10.0.0.7", "10.0.0.50"),
        ("fd00::7", "fd00::9"),
        ("fd00::7", "fd00::50"),
        ("fe80::7", "fe80::ff:fe00:aa"),
    ] {
        let to = if to.starts_with("fe80") {
            proxyengine::neighbour::link_local_of(MacAddr([2, 0, 0, 0, 0, PROXY_MAC[0]])).to_string()
        } else {
            to.to_owned()
        };
        assert_kernels(&mut bench, CLIENTS, &ping(CLIENTS, from, &to));
    }
    assert_kernels(&mut bench, CLIENTS, &udp([10, 0, 0, 9]));
    assert_kernels(&mut bench, CLIENTS, &udp([10, 0, 0, 50]));
    // To another address, and to another station: nobody's.
    assert!(assert_engines(&mut bench, CLIENTS, &udp([10, 0, 0, 51])).is_empty());
    let mut other = udp([10, 0, 0, 9]);
    other[5] ^= 1;
    assert!(assert_engines(&mut bench, CLIENTS, &other).is_empty());
    assert_eq!(bench.kernel.dropped(KernelDrop::NotForKernel), 2);
    bench.assert_all_returned("pings");
}

#[test]
fn without_a_kernel_the_engine_answers_pings_and_drops_udp() {
    let mut bench = started(CONFIG);
    assert_eq!(
        assert_engines(&mut bench, CLIENTS, &ping(CLIENTS, "10.0.0.7", "10.0.0.9")).len(),
        1
    );
    assert!(assert_engines(&mut bench, CLIENTS, &udp([10, 0, 0, 9])).is_empty());
    assert_eq!(bench.graph_dropped(e2d2::fate::DropReason::NoSuchGroup), 1);
    let rst = segment(CLIENTS, "10.0.0.7:5000", "10.0.0.9:22", TcpFlags::SYN);
    let answer = the_segment(assert_engines(&mut bench, CLIENTS, &rst));
    assert!(answer.flags.contains(TcpFlags::RST));
}

#[test]
fn exactly_one_answers_for_an_address() {
    let mut bench = bench();
    let broadcast = MacAddr([0xff; 6]);
    let (host, shared, alone) = ([10, 0, 0, 7], [10, 0, 0, 9], [10, 0, 0, 50]);
    assert_eq!(
        assert_engines(&mut bench, CLIENTS, &arp(1, broadcast, host, shared))[0].data()[20..22],
        [0, 2]
    );
    assert_kernels(&mut bench, CLIENTS, &arp(1, broadcast, host, alone));
    assert!(assert_engines(&mut bench, CLIENTS, &arp(1, broadcast, host, [10, 0, 0, 51])).is_empty());
    // Somebody claims our address: the engine says so in the log, once.
    assert!(assert_engines(&mut bench, CLIENTS, &arp(1, broadcast, shared, shared)).is_empty());

    let solicit = |target: &str| {
        let target: std::net::Ipv6Addr = target.parse().expect("an address");
        let group = e2d2::wire::ipv6::solicited_node(target);
        let [.., a, b, c, d] = group.octets();
        let mut envelope = envelope(CLIENTS, "fd00::7", &group.to_string());
        envelope.dst_mac = MacAddr([0x33, 0x33, a, b, c, d]);
        envelope.hop_limit = 255;
        neighbour_message(135, &envelope, target, 1)
    };
    assert_eq!(
        assert_engines(&mut bench, CLIENTS, &solicit("fd00::9"))[0].data()[54],
        136
    );
    assert_kernels(&mut bench, CLIENTS, &solicit("fd00::50"));
    bench.assert_all_returned("addresses");
}

/// A solicitation or advertisement with one link-layer address option.
fn neighbour_message(kind: u8, envelope: &Envelope, target: std::net::Ipv6Addr, option: u8) -> Vec<u8> {
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (envelope.src_addr, envelope.dst_addr) else {
        panic!("IPv6 only");
    };
    let mut message = vec![kind, 0, 0, 0, if kind == 136 { 0x60 } else { 0 }, 0, 0, 0];
    message.extend(target.octets());
    message.extend([option, 1]);
    message.extend(envelope.src_mac.0);
    let pseudo = checksum::pseudo_header_v6(src, dst, 58, message.len() as u16);
    let sum = checksum::finish(pseudo + checksum::sum(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = envelope.dst_mac.0.to_vec();
    frame.extend(envelope.src_mac.0);
    frame.extend([
        0x86,
        0xdd,
        0x60,
        0,
        0,
        0,
        0,
        message.len() as u8,
        58,
        envelope.hop_limit,
    ]);
    frame.extend(src.octets());
    frame.extend(dst.octets());
    frame.extend(message);
    frame
}

#[test]
fn both_learn_from_answers_and_announcements() {
    let mut bench = bench();
    let ours = MacAddr([2, 0, 0, 0, 0, PROXY_MAC[0]]);
    let mut advertised = envelope(CLIENTS, "fd00::7", "fd00::9");
    advertised.hop_limit = 255;
    let frames = [
        arp(2, ours, [10, 0, 0, 7], [10, 0, 0, 9]),
        arp(1, MacAddr([0xff; 6]), [10, 0, 0, 7], [10, 0, 0, 7]),
        neighbour_message(136, &advertised, "fd00::7".parse().expect("an address"), 2),
    ];
    for frame in frames {
        let (sent, got) = given(&mut bench, CLIENTS, &frame);
        assert!(sent.is_empty());
        assert_eq!(got, [frame]);
    }
    assert_eq!(bench.kernel.counted(KernelEvent::Copied), 3);
    // An answer to another station, on a port that is given everything.
    let other = arp(2, MacAddr([2, 0, 0, 0, 0, 0x44]), [10, 0, 0, 7], [10, 0, 0, 8]);
    assert!(assert_engines(&mut bench, CLIENTS, &other).is_empty());
    bench.assert_all_returned("answers");
}

#[test]
fn an_error_goes_to_whose_packet_it_quotes() {
    let mut bench = bench();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"1 hello"));
    let mut server = Server::from_syn(&syn);
    server.accept(&mut bench);
    let quoted = only(client.send(&mut bench, b"more")).frame();
    let unreachable = |original: &[u8]| {
        let envelope = envelope(SERVERS, "10.1.0.254", "10.1.0.9");
        emitted(|buffer| {
            Icmpv4Repr::Unreachable {
                code: 4,
                next_hop_mtu: 1300,
                original,
            }
            .emit(&envelope, buffer)
        })
    };
    let told = assert_engines(&mut bench, SERVERS, &unreachable(&quoted[14..])).len();
    assert_eq!(told, 1, "the client hears of it");
    // The same about a connection of the kernel's, and about its UDP.
    let mut of_kernel = Segment::read(&quoted);
    of_kernel.from.address.set_port(61_000);
    assert_kernels(&mut bench, SERVERS, &unreachable(&of_kernel.frame()[14..]));
    let mut of_udp = quoted[14..].to_vec();
    of_udp[9] = 17;
    of_udp[10..12].fill(0);
    let sum = checksum::internet(&of_udp[..20]);
    of_udp[10..12].copy_from_slice(&sum.to_be_bytes());
    assert_kernels(&mut bench, SERVERS, &unreachable(&of_udp));
    bench.assert_all_returned("errors");
}

#[test]
fn what_the_kernel_sends_goes_out_of_its_port_as_it_is() {
    let mut bench = bench();
    let frames: Vec<_> = (0..100)
        .map(|n| ping(CLIENTS, "10.0.0.9", &format!("10.0.0.{}", n + 100)))
        .collect();
    for frame in &frames {
        bench.kernel.send(CLIENTS, frame);
    }
    let reply = ping(SERVERS, "10.1.0.9", "10.1.0.100");
    bench.kernel.send(SERVERS, &reply);
    let mut sent: Vec<_> = bench
        .exchange([])
        .iter()
        .map(|buffer| buffer.data().to_vec())
        .filter(|frame| frame[12..14] == [8, 0])
        .collect();
    sent.retain(|frame| frame[23] == 1);
    assert_eq!(sent.len(), 101);
    assert!(sent.contains(&reply));
    sent.retain(|frame| *frame != reply);
    assert_eq!(sent, frames, "in order");
    assert_eq!(bench.kernel.counted(KernelEvent::Sent), 101);
    bench.assert_all_returned("the kernel's");
}

#[test]
fn without_a_buffer_the_kernels_frame_is_dropped_and_counted() {
    let mut bench = bench();
    bench.exchange([]);
    let taken: Vec<_> = std::iter::from_fn(|| bench.core.pool.take()).collect();
    bench.kernel.send(CLIENTS, &ping(CLIENTS, "10.0.0.9", "10.0.0.7"));
    assert!(bench.exchange([]).is_empty());
    assert_eq!(bench.kernel.dropped(KernelDrop::NoBuffer), 1);
    drop(taken);
    bench.assert_all_returned("no buffer");
}

#[test]
fn the_rate_and_the_queue_are_bounded_and_counted() {
    let mut bench = bench();
    bench.exchange([]);
    // A tenth of a second's of 1000 a second pass at once; the station's own limit is not in the way.
    const { assert!(ECHO_BURST > 150) };
    let frame = ping(CLIENTS, "10.0.0.7", "10.0.0.9");
    let offer = |bench: &mut GraphBench, count: usize, frame: &[u8]| {
        for _ in 0..count {
            let buffer = bench.core.pool.take_copy(frame).expect("a buffer");
            bench.exchange([(CLIENTS, buffer)]);
        }
    };
    offer(&mut bench, 150, &frame);
    assert_eq!(bench.kernel.received(CLIENTS).len(), 100);
    assert_eq!(bench.kernel.dropped(KernelDrop::RateLimited), 50);
    bench.now += Duration::from_millis(10);
    offer(&mut bench, 20, &frame);
    assert_eq!(bench.kernel.received(CLIENTS).len(), 10);
    assert_eq!(bench.kernel.dropped(KernelDrop::RateLimited), 60);
    // Long frames that nobody takes out of the ring.
    bench.now += Duration::from_secs(1);
    let mut long = segment(CLIENTS, "10.0.0.7:5000", "10.0.0.9:22", TcpFlags::ACK);
    let mut payload = Segment::read(&long);
    payload.payload = vec![0; 1400];
    long = payload.frame();
    offer(&mut bench, 50, &long);
    let fit = FakeKernel::RING / (long.len() + 2);
    assert_eq!(bench.kernel.received(CLIENTS).len(), fit);
    assert_eq!(bench.kernel.dropped(KernelDrop::QueueFull), (50 - fit) as u64);
    bench.assert_all_returned("floods");
}

/// Frames of every kind with a few bits wrong: no panic, no leak, and the kernel gets nothing that is not to it.
#[test]
fn mutated_frames_end_somewhere() {
    let mut state = 0x5eed_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % below
    };
    let mut bench = bench();
    let corpus = [
        segment(CLIENTS, "10.0.0.7:5000", "10.0.0.9:22", TcpFlags::SYN),
        segment(CLIENTS, "10.0.0.7:5000", "10.0.0.9:80", TcpFlags::SYN),
        ping(CLIENTS, "10.0.0.7", "10.0.0.9"),
        ping(CLIENTS, "fd00::7", "fd00::50"),
        udp([10, 0, 0, 9]),
        arp(1, MacAddr([0xff; 6]), [10, 0, 0, 7], [10, 0, 0, 50]),
        arp(2, MacAddr([2, 0, 0, 0, 0, PROXY_MAC[0]]), [10, 0, 0, 7], [10, 0, 0, 9]),
    ];
    for n in 0..100_000 {
        let mut frame = corpus[random(corpus.len())].clone();
        for _ in 0..random(4) {
            let at = random(frame.len());
            frame[at] ^= 1 << random(8);
        }
        frame.truncate(frame.len().saturating_sub(random(8) * random(8)));
        let (sent, got) = given(&mut bench, CLIENTS, &frame);
        assert!(sent.len() <= 8 && got.len() <= 1, "frame {n}: {frame:02x?}");
        for frame in got {
            assert!(
                frame[0] & 1 != 0 || frame[..6] == [2, 0, 0, 0, 0, PROXY_MAC[0]],
                "{frame:02x?}"
            );
        }
        bench.now += Duration::from_micros(random(2000) as u64);
    }
    assert!(bench.kernel.counted(KernelEvent::Passed) > 1000);
    bench.assert_all_returned("mutations");
}

#[test]
fn the_station_goes_on_for_what_is_its_own() {
    // A kernel with an address of its own only: the engine keeps ping on the port's.
    let text = CONFIG.replace(
        "addresses = [\"10.0.0.9/24\", \"fd00::9/64\"]",
        "addresses = [\"10.0.0.9/24\", \"fd00::9/64\"]\nkernel = { device = \"pe-k0\", addresses = [\"10.0.0.50\"] }",
    );
    let mut bench = started(&text);
    assert_eq!(
        assert_engines(&mut bench, CLIENTS, &ping(CLIENTS, "10.0.0.7", "10.0.0.9")).len(),
        1
    );
    assert_kernels(&mut bench, CLIENTS, &ping(CLIENTS, "10.0.0.7", "10.0.0.50"));
    let rst = segment(CLIENTS, "10.0.0.7:5000", "10.0.0.9:22", TcpFlags::SYN);
    assert!(
        the_segment(assert_engines(&mut bench, CLIENTS, &rst))
            .flags
            .contains(TcpFlags::RST)
    );
    // The other port has none.
    assert_eq!(
        assert_engines(&mut bench, SERVERS, &ping(SERVERS, "10.1.0.7", "10.1.0.9")).len(),
        1
    );
    bench.assert_all_returned("the station's");
}
