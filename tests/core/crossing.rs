//! Clients of one version of IP and servers of the other: every field of a segment, both ways (RFC 7915), as `etherparse`
//! writes and reads it.

use crate::harness::{Bench, CONFIG, Client, SERVER_ISN, Server, nothing, only};
use crate::oracle::{self, Ip, Wire};
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::port::PortId;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use etherparse::{TcpHeader, TcpOptionElement};
use netfcts::{Cause, Side};
use splice::drop_reason::DropReason;
use std::time::Duration;
use test_case::test_case;
use testkit::{Segment, Station};

/// A client and the first byte by which the selector of [`CONFIG`] leads it to a server of the other version.
pub fn client_of(ipv6: bool) -> (Client, &'static [u8]) {
    if ipv6 {
        (Client::new_v6(40000), b"0 hello")
    } else {
        (Client::new(40000), b"3 hello")
    }
}

/// A connection between the versions: its request has been acknowledged.
pub fn crossed(bench: &mut Bench, client_is_v6: bool) -> (Client, Server) {
    let (mut client, request) = client_of(client_is_v6);
    client.connect(bench);
    let syn = only(client.send(bench, request));
    assert_ne!(syn.to.address.is_ipv6(), client_is_v6);
    assert_ne!(syn.from.address.is_ipv6(), client_is_v6);
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(bench);
    assert_eq!(only(held).payload, request);
    server.ack = server.ack.wrapping_add(request.len() as u32);
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(ack.to, client.me);
    (client, server)
}

/// The side that a segment of the tests below comes from, with the numbers of both.
struct Ends {
    port: PortId,
    from: Station,
    to: Station,
    passed_from: Station,
    passed_to: Station,
    seq: u32,
    ack: u32,
    passed_seq: u32,
    passed_ack: u32,
}

fn ends(client: &Client, server: &Server, from_client: bool) -> Ends {
    if from_client {
        Ends {
            port: PortId(0),
            from: client.me,
            to: client.proxy,
            passed_from: server.proxy,
            passed_to: server.me,
            seq: client.seq,
            ack: client.ack,
            passed_seq: server.ack,
            passed_ack: server.seq,
        }
    } else {
        Ends {
            port: PortId(1),
            from: server.me,
            to: server.proxy,
            passed_from: client.proxy,
            passed_to: client.me,
            seq: server.seq,
            ack: server.ack,
            passed_seq: client.ack,
            passed_ack: client.seq,
        }
    }
}

impl Ends {
    fn header(&self) -> TcpHeader {
        TcpHeader {
            sequence_number: self.seq,
            acknowledgment_number: self.ack,
            ack: true,
            window_size: 777,
            ..TcpHeader::default()
        }
    }

    fn send(&self, bench: &mut Bench, ip: &Ip, tcp: &TcpHeader, payload: &[u8]) -> Vec<Wire> {
        let frame = oracle::tcp_frame(self.from, self.to, ip, tcp, payload);
        let sent = bench.exchange(self.port, &frame);
        sent.iter().map(|frame| oracle::read_tcp(frame)).collect()
    }

    #[track_caller]
    fn pass(&self, bench: &mut Bench, ip: &Ip, tcp: &TcpHeader, payload: &[u8]) -> Wire {
        let mut sent = self.send(bench, ip, tcp, payload);
        assert_eq!(sent.len(), 1, "one packet for one");
        sent.remove(0)
    }
}

/// Which fields a header has, as its flags.
fn set_flags(tcp: &mut TcpHeader, flags: TcpFlags) {
    let has = |flag| flags.contains(flag);
    (tcp.fin, tcp.rst, tcp.psh) = (has(TcpFlags::FIN), has(TcpFlags::RST), has(TcpFlags::PSH));
    (tcp.urg, tcp.ece, tcp.cwr) = (has(TcpFlags::URG), has(TcpFlags::ECE), has(TcpFlags::CWR));
    tcp.urgent_pointer = if tcp.urg { 3 } else { 0 };
}

/// What the options of [`OPTIONS`] are when they come from `ends`, and what they must be when they leave.
fn options(which: usize, ends: &Ends) -> (Vec<TcpOptionElement>, Vec<TcpOptionElement>) {
    use TcpOptionElement::{Noop, SelectiveAcknowledgement};
    let block = |of: u32, n: u32| (of.wrapping_add(n), of.wrapping_add(n + 500));
    let sack = |of: u32, more: bool| {
        let rest = [1, 2].map(|n| more.then(|| block(of, 2000 * n)));
        [
            Noop,
            Noop,
            SelectiveAcknowledgement(block(of, 1000), [rest[0], rest[1], None]),
        ]
        .to_vec()
    };
    match which {
        0 => (vec![], vec![]),
        1 => (sack(ends.ack, false), sack(ends.passed_ack, false)),
        2 => (sack(ends.ack, true), sack(ends.passed_ack, true)),
        _ => (vec![Noop; 4], vec![Noop; 4]),
    }
}
const OPTIONS: std::ops::Range<usize> = 0..4;

#[test_case(false, true; "IPv4 client to IPv6 server")]
#[test_case(true, true; "IPv6 client to IPv4 server")]
#[test_case(true, false; "IPv4 server to IPv6 client")]
#[test_case(false, false; "IPv6 server to IPv4 client")]
fn every_flag_option_and_length(client_is_v6: bool, from_client: bool) {
    use TcpFlags as F;
    let some = [F::PSH, F::FIN, F::RST, F::URG, F::ECE, F::CWR];
    for combination in 0..64_usize {
        let flags: TcpFlags = (0..6)
            .filter(|bit| combination >> bit & 1 == 1)
            .map(|bit| some[bit])
            .collect();
        if flags.contains(F::FIN | F::RST) {
            continue;
        }
        for which in OPTIONS {
            let (mut bench, mut ends) = between(client_is_v6, from_client);
            for len in [0, 1, 2, 333, 1400] {
                if flags.intersects(F::FIN | F::RST) && len > 0 {
                    (bench, ends) = between(client_is_v6, from_client);
                }
                let mut tcp = ends.header();
                set_flags(&mut tcp, flags);
                let (given, expected) = options(which, &ends);
                tcp.set_options(&given).expect("room");
                let payload: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
                let ip = Ip {
                    class: (combination * 4 + which) as u8,
                    hop_limit: 2 + len as u8 % 9,
                    flow_label: if ends.from.address.is_ipv6() { 0x1_2345 } else { 0 },
                    ..Ip::default()
                };
                let passed = ends.pass(&mut bench, &ip, &tcp, &payload);
                let case = format!("{flags:?} options {which} length {len}");
                check_passed(&ends, &tcp, &ip, &passed, &case);
                let elements: Vec<_> = passed.tcp.options_iterator().map(|e| e.expect("sound")).collect();
                assert_eq!(elements, expected, "{case}");
                assert_eq!(passed.payload, payload, "{case}");
            }
        }
    }
}

fn between(client_is_v6: bool, from_client: bool) -> (Bench, Ends) {
    let mut bench = Bench::new();
    let (client, server) = crossed(&mut bench, client_is_v6);
    let ends = ends(&client, &server, from_client);
    (bench, ends)
}

#[track_caller]
fn check_passed(ends: &Ends, tcp: &TcpHeader, ip: &Ip, passed: &Wire, case: &str) {
    assert!(passed.tcp_checksum_is_right, "{case}");
    assert_eq!(
        (passed.source_mac, passed.destination_mac),
        (ends.passed_from.mac.0, ends.passed_to.mac.0),
        "{case}"
    );
    assert_eq!(
        (passed.source, passed.tcp.source_port),
        (ends.passed_from.address.ip(), ends.passed_from.address.port()),
        "{case}"
    );
    assert_eq!(
        (passed.destination, passed.tcp.destination_port),
        (ends.passed_to.address.ip(), ends.passed_to.address.port()),
        "{case}"
    );
    assert_eq!(
        (passed.ip.class, passed.ip.hop_limit, passed.ip.flow_label),
        (ip.class, ip.hop_limit - 1, 0),
        "{case}"
    );
    // Both sides shift by seven, so the window is as it was.
    let mut expected = tcp.clone();
    expected.sequence_number = ends.passed_seq;
    expected.acknowledgment_number = ends.passed_ack;
    expected.source_port = passed.tcp.source_port;
    expected.destination_port = passed.tcp.destination_port;
    expected.checksum = passed.tcp.checksum;
    expected.options = passed.tcp.options.clone();
    assert_eq!(passed.tcp, expected, "{case}");
}

#[test_case(false; "IPv4 client")]
#[test_case(true; "IPv6 client")]
fn timestamps_follow_each_sides_clock(client_is_v6: bool) {
    let mut bench = Bench::new();
    let (mut client, mut server) = crossed(&mut bench, client_is_v6);
    server.tsval += 10;
    let first = only(server.send(&mut bench, b"a"));
    let (tsval, tsecr) = first.options.timestamps.expect("agreed");
    assert_eq!(tsecr, client.tsval);
    (client.tsecr, client.ack, client.tsval) = (tsval, client.ack.wrapping_add(1), client.tsval + 3);
    let ack = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(ack.options.timestamps, Some((client.tsval, server.tsval)));
}

/// RFC 7915 5.1: up to 1260 bytes it may be fragmented, and then it has an identification of its own.
#[test_case(true; "from the client")]
#[test_case(false; "from the server")]
fn fragmentation_of_ipv4_is_allowed_where_ipv6_knows_no_smaller_packet(from_client: bool) {
    let mut bench = Bench::new();
    let (client, server) = crossed(&mut bench, from_client);
    let ends = ends(&client, &server, from_client);
    let mut identifications = Vec::new();
    for (payload, may_be) in [(0, true), (1220, true), (1220, true), (1221, false), (1400, false)] {
        let passed = ends.pass(&mut bench, &Ip::default(), &ends.header(), &vec![7; payload]);
        assert_eq!(passed.packet_len, 40 + payload);
        assert_eq!(passed.ip.dont_fragment, !may_be, "{payload}");
        match may_be {
            true => identifications.push(passed.ip.ident),
            false => assert_eq!(passed.ip.ident, 0, "RFC 6864 4.1"),
        }
    }
    let count = identifications.len();
    identifications.sort_unstable();
    identifications.dedup();
    assert_eq!(identifications.len(), count, "each its own: RFC 6864 4.3");
}

#[test]
fn what_only_ipv4_has_ends_here() {
    let mut bench = Bench::new();
    let (client, server) = crossed(&mut bench, false);
    let ends = ends(&client, &server, true);
    // Router alert, and a timestamp that has been filled in.
    let ip = Ip {
        dont_fragment: false,
        ident: 4711,
        options: vec![148, 4, 0, 0, 68, 8, 9, 0, 1, 2, 3, 4],
        ..Ip::default()
    };
    let passed = ends.pass(&mut bench, &ip, &ends.header(), b"odd");
    check_passed(&ends, &ends.header(), &ip, &passed, "options");
    assert_eq!(passed.packet_len, 40 + 20 + 3);
    assert_eq!(passed.payload, b"odd");
    let as_long_as_can_be = Ip {
        options: vec![1; 40],
        ..Ip::default()
    };
    let passed = ends.pass(&mut bench, &as_long_as_can_be, &ends.header(), b"odd");
    check_passed(&ends, &ends.header(), &as_long_as_can_be, &passed, "60 bytes of header");
}

/// RFC 7915 4.1.
#[test]
fn a_source_route_that_is_not_over_is_not_gone_on_with() {
    let mut bench = Bench::new();
    let (client, server) = crossed(&mut bench, false);
    let ends = ends(&client, &server, true);
    let route = |pointer: u8| Ip {
        options: vec![1, 131, 7, pointer, 10, 0, 0, 9],
        ..Ip::default()
    };
    assert!(ends.send(&mut bench, &route(4), &ends.header(), b"x").is_empty());
    assert_eq!(bench.dropped(DropReason::SourceRoute), 1);
    ends.pass(&mut bench, &route(8), &ends.header(), b"x");
}

#[test_case(false, true)]
#[test_case(true, true)]
#[test_case(false, false)]
#[test_case(true, false)]
fn hops_are_counted_across(client_is_v6: bool, from_client: bool) {
    let mut bench = Bench::new();
    let (client, server) = crossed(&mut bench, client_is_v6);
    let ends = ends(&client, &server, from_client);
    let with = |hop_limit| Ip {
        hop_limit,
        ..Ip::default()
    };
    assert!(ends.send(&mut bench, &with(1), &ends.header(), b"x").is_empty());
    assert!(ends.send(&mut bench, &with(0), &ends.header(), b"x").is_empty());
    assert_eq!(bench.dropped(DropReason::HopLimit), 2);
    assert_eq!(ends.pass(&mut bench, &with(2), &ends.header(), b"x").ip.hop_limit, 1);
}

/// An IPv4 ACK fills 54 bytes, a frame has at least 60.
#[test]
fn ethernet_padding_does_not_become_payload() {
    let mut bench = Bench::new();
    let (client, server) = crossed(&mut bench, false);
    let ends = ends(&client, &server, true);
    let mut frame = oracle::tcp_frame(ends.from, ends.to, &Ip::default(), &ends.header(), b"");
    assert_eq!(frame.len(), 54);
    frame.extend([0xee; 6]);
    let sent = bench.exchange(ends.port, &frame);
    let passed = oracle::read_tcp(&sent[0]);
    assert_eq!((sent[0].len(), passed.payload.len()), (74, 0));
    assert!(passed.tcp_checksum_is_right);
}

#[test_case(false, true)]
#[test_case(true, true)]
#[test_case(false, false)]
#[test_case(true, false)]
fn a_damaged_payload_stays_damaged(client_is_v6: bool, from_client: bool) {
    let mut bench = Bench::new();
    let (client, server) = crossed(&mut bench, client_is_v6);
    let ends = ends(&client, &server, from_client);
    let mut frame = oracle::tcp_frame(ends.from, ends.to, &Ip::default(), &ends.header(), b"precious");
    // Once as it was sent, so that the damaged copy has no news in its header.
    assert_eq!(bench.exchange(ends.port, &frame).len(), 1);
    *frame.last_mut().expect("bytes") ^= 0x40;
    let sent = bench.exchange(ends.port, &frame);
    let passed = oracle::read_tcp(&sent[0]);
    assert!(!passed.tcp_checksum_is_right, "only its sender can make it right");
}

#[test]
fn without_room_for_the_longer_header_it_is_dropped() {
    let mut bench = Bench::new();
    let (client, server) = crossed(&mut bench, false);
    let ends = ends(&client, &server, true);
    let frame = oracle::tcp_frame(ends.from, ends.to, &Ip::default(), &ends.header(), b"x");
    for (headroom, passes) in [(19, false), (20, true)] {
        let mut buffer = bench.pool.take().expect("free");
        buffer.prepend(buffer.headroom() - headroom).expect("all but this");
        buffer.truncate(0);
        buffer.append(frame.len()).expect("room");
        buffer.data_mut().copy_from_slice(&frame);
        assert_eq!(bench.exchange_buffer(ends.port, buffer).len(), usize::from(passes));
    }
    assert_eq!(bench.dropped(DropReason::NoHeadroom), 1);
}

#[test_case(false; "IPv4 client")]
#[test_case(true; "IPv6 client")]
fn a_whole_life(client_is_v6: bool) {
    let mut bench = Bench::new();
    let (mut client, mut server) = crossed(&mut bench, client_is_v6);
    let answer = only(server.send(&mut bench, b"the answer"));
    assert_eq!(
        (answer.seq, answer.payload.as_slice()),
        (client.ack, &b"the answer"[..])
    );
    client.ack = client.ack.wrapping_add(10);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    let fin = only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    client.seq = client.seq.wrapping_add(1);
    server.ack = fin.seq.wrapping_add(1);
    let fin = only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
    client.ack = fin.seq.wrapping_add(1);
    let last = client.segment(TcpFlags::ACK, b"");
    let passed = only(bench.receive(&last));
    assert_eq!(passed.to, server.me);
    // At rest, late segments still find their way.
    assert_eq!(only(bench.receive(&last)), passed);
    let repeated = only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
    assert_eq!(repeated, fin);
    let record = bench.records()[0];
    assert_eq!(record.cause(Side::Client), Cause::ActiveClose);
    assert_eq!(record.bytes_to_client(), 10);
    bench.assert_all_returned();
}

#[test_case(false; "IPv4 client")]
#[test_case(true; "IPv6 client")]
fn what_is_lost_on_the_way_comes_again(client_is_v6: bool) {
    let mut bench = Bench::new();
    let (mut client, request) = client_of(client_is_v6);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, request));
    // Our SYN is lost, then the server's answer, then the request.
    assert_eq!(only(bench.wait(Duration::from_millis(1100))), syn);
    let mut server = Server::from_syn(&syn);
    assert_eq!(server.accept(&mut bench).1.len(), 1);
    let again = only(bench.receive(&server.syn_ack()));
    assert_eq!(
        (again.seq, again.ack),
        (server.ack.wrapping_add(7), SERVER_ISN.wrapping_add(1))
    );
    client.seq = client.seq.wrapping_sub(7);
    let repeated = only(client.send(&mut bench, request));
    assert_eq!(
        (repeated.seq, repeated.payload.as_slice(), repeated.to),
        (server.ack, request, server.me)
    );
    server.ack = server.ack.wrapping_add(7);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    // Of three segments of the server the second is lost: the client's blocks name what it has.
    let sent: Vec<_> = [b"aa", b"bb", b"cc"]
        .map(|payload| only(server.send(&mut bench, payload)))
        .into();
    let third = (sent[2].seq, sent[2].seq.wrapping_add(2));
    client.ack = sent[1].seq;
    let ack = Segment {
        sack: vec![third],
        ..client.segment(TcpFlags::ACK, b"")
    };
    let told = only(bench.receive(&ack));
    let first_byte = SERVER_ISN.wrapping_add(1);
    assert_eq!(told.ack, first_byte.wrapping_add(2));
    assert_eq!(told.sack, [(first_byte.wrapping_add(4), first_byte.wrapping_add(6))]);
    server.seq = told.ack;
    assert_eq!(only(server.send(&mut bench, b"bb")), sent[1]);
}

/// `?` makes the selector want a line: what has been acknowledged before is ours to repeat, here to server 0 of IPv4.
#[test]
fn retransmissions_go_by_the_servers_version() {
    let mut bench = Bench::new();
    let mut client = Client::new_v6(40000);
    client.connect(&mut bench);
    only(client.send(&mut bench, b"?par"));
    let syn = only(client.send(&mut bench, b"tial\n"));
    assert!(syn.to.address.is_ipv4());
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    assert_eq!(only(held).payload, b"?partial\n");
    // What the client has been told that we have.
    let again = only(bench.wait(Duration::from_millis(1100)));
    assert_eq!((again.payload.as_slice(), again.to), (&b"?par"[..], server.me));
    server.ack = server.ack.wrapping_add(9);
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!((ack.to, ack.ack), (client.me, client.seq));
}

/// The header tells of the client's connection, whatever the server's own is made of.
#[test_case(false, "v1", b"PROXY TCP4 10.0.0.1 10.0.0.9 40000 80\r\n"; "IPv4 client")]
#[test_case(true, "v1", b"PROXY TCP6 fd00::1 fd00::9 40000 80\r\n"; "IPv6 client")]
fn the_proxy_header_has_the_clients_addresses(client_is_v6: bool, version: &str, expected: &[u8]) {
    let mut bench = Bench::with_config(&with_header(version));
    let (mut client, request) = client_of(client_is_v6);
    client.connect(&mut bench);
    let mut server = Server::from_syn(&only(client.send(&mut bench, request)));
    let (_, sent) = server.accept(&mut bench);
    let payloads: Vec<_> = sent.iter().map(|segment| segment.payload.as_slice()).collect();
    assert_eq!(payloads, [expected, request]);
    assert!(sent.iter().all(|segment| segment.to == server.me));
}

#[test_case(false, 12, 0x11; "IPv4 client")]
#[test_case(true, 36, 0x21; "IPv6 client")]
fn so_has_version_two(client_is_v6: bool, len: u8, family: u8) {
    let mut bench = Bench::with_config(&with_header("v2"));
    let (mut client, request) = client_of(client_is_v6);
    client.connect(&mut bench);
    let mut server = Server::from_syn(&only(client.send(&mut bench, request)));
    let (_, sent) = server.accept(&mut bench);
    let header = &sent[0].payload;
    assert_eq!(header[12..16], [0x21, family, 0, len]);
    let client_address: Vec<u8> = match client.me.address.ip() {
        std::net::IpAddr::V4(ip) => ip.octets().to_vec(),
        std::net::IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    assert_eq!(header[16..16 + client_address.len()], client_address);
}

fn with_header(version: &str) -> String {
    let send = format!("\nproxy_protocol = {{ send = \"{version}\" }}\nservers = [");
    CONFIG.replace("\nservers = [", &send)
}

/// A pool may have servers of both versions; each is tried from our address of its own.
#[test]
fn a_pool_of_both_versions_serves_clients_of_both() {
    let mixed = CONFIG.replace(
        "{ name = \"s2\", address = \"10.1.0.102:8080\" },",
        "{ name = \"s2\", address = \"[fd01::102]:8080\" },",
    );
    let mixed = mixed.replace("  { name = \"s5\", address = \"[fd01::102]:8080\" },\n", "");
    let mixed = mixed.replace("pool = \"all6\"", "pool = \"all\"");
    for mut client in [Client::new(40000), Client::new_v6(40000)] {
        let mut bench = Bench::with_config(&mixed);
        client.connect(&mut bench);
        // Pools have the numbers of their listeners here, so "p" means the first pool for a client of IPv4 only.
        let first = match client.me.address.is_ipv4() {
            true => only(client.send(&mut bench, b"p")),
            false => only(client.send(&mut bench, b"2")),
        };
        let mut seen = vec![first.to.address.ip()];
        assert_eq!(first.from.address.is_ipv4(), first.to.address.is_ipv4());
        if client.me.address.is_ipv6() {
            assert!(first.to.address.is_ipv6());
            continue;
        }
        let mut syn = first;
        while seen.len() < 3 {
            let refusal = Segment {
                ack: syn.seq.wrapping_add(1),
                flags: TcpFlags::RST | TcpFlags::ACK,
                ..Segment::between(syn.to, syn.from)
            };
            syn = only(bench.receive(&refusal));
            assert_eq!(syn.from.address.is_ipv4(), syn.to.address.is_ipv4());
            seen.push(syn.to.address.ip());
        }
        assert_eq!(seen.iter().filter(|ip| ip.is_ipv6()).count(), 1, "{seen:?}");
        let mut server = Server::from_syn(&syn);
        server.accept(&mut bench);
        assert_eq!(only(server.send(&mut bench, b"hello")).to, client.me);
    }
}

/// Client's MSS, MTUs of both ports, whether the client is of IPv6; what the client is told, and what the server.
#[test_case(false, 1460, 1500, 1500 => (1440, 1440); "IPv4 client: as much as IPv6 leaves")]
#[test_case(true, 1440, 1500, 1500 => (1440, 1440); "IPv6 client: never more than on its own leg")]
#[test_case(false, 1460, 1500, 1280 => (1220, 1220); "IPv4 client, a small link behind")]
#[test_case(true, 1440, 1500, 1280 => (1240, 1240); "IPv6 client, a small link behind")]
#[test_case(false, 1460, 1280, 1500 => (1240, 1240); "IPv4 client on a small link that it does not know")]
#[test_case(true, 1440, 1280, 1500 => (1220, 1220); "IPv6 client on a small link that it does not know")]
#[test_case(false, 8960, 9000, 9000 => (8940, 8940); "IPv4 client, jumbo frames")]
#[test_case(true, 8940, 9000, 9000 => (8940, 8940); "IPv6 client, jumbo frames")]
#[test_case(false, 536, 1500, 1500 => (1440, 536); "IPv4 client of the smallest kind")]
fn mss(client_is_v6: bool, offered: u16, client_mtu: u16, server_mtu: u16) -> (u16, u16) {
    let config = CONFIG
        .replace(
            "device = \"net_null0\"",
            &format!("device = \"net_null0\"\nmtu = {client_mtu}"),
        )
        .replace(
            "device = \"net_null1\"",
            &format!("device = \"net_null1\"\nmtu = {server_mtu}"),
        )
        .replace("pool = \"all\"", "pool = \"\"")
        .replace("pool = \"all6\"", "pool = \"all\"")
        .replace("pool = \"\"", "pool = \"all6\"");
    let mut bench = Bench::with_config(&config);
    let (mut client, request) = client_of(client_is_v6);
    let mut syn = client.syn();
    syn.options.mss = Some(offered);
    let syn_ack = only(bench.receive(&syn));
    client.take_syn_ack(&syn_ack);
    nothing(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    let syn = only(client.send(&mut bench, request));
    let TcpOptions { mss: to_client, .. } = syn_ack.options;
    (to_client.expect("an MSS"), syn.options.mss.expect("an MSS"))
}

/// Our own segments are cut to what the server's leg takes: here a request of 2 000 bytes for IPv6.
#[test]
fn held_bytes_are_cut_by_the_servers_version() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let request = [b"3".as_slice(), &[b'x'; 1399]].concat();
    let syn = only(client.send(&mut bench, &request));
    nothing(client.send(&mut bench, &[b'y'; 600]));
    let mut server = Server::from_syn(&syn);
    server.options.mss = Some(1460);
    let (_, sent) = server.accept(&mut bench);
    // 1500 less 40 of IPv6, 20 of TCP, 12 of timestamps.
    let lengths: Vec<_> = sent.iter().map(|segment| segment.payload.len()).collect();
    assert_eq!(lengths, [1428, 2000 - 1428]);
}
