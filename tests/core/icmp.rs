//! ICMP errors about either leg: who caused the packet hears of it, in its own numbers.

use crate::harness::{Bench, CONFIG, Client, Server, only};
use crate::oracle;
use e2d2::buffer::{BufferPool, HeapPool, PacketBuffer};
use e2d2::port::PortId;
use e2d2::wire::frame::IpVersion;
use e2d2::wire::icmpv4::{Icmpv4Repr, unreachable_code};
use e2d2::wire::icmpv6::Icmpv6Repr;
use e2d2::wire::ipv6::Ipv6Header;
use e2d2::wire::quote::{self, QuotedTcp};
use e2d2::wire::tcp::TcpFlags;
use e2d2::wire::{Envelope, MacAddr};
use splice::drop_reason::DropReason;
use testkit::{Segment, Station};

/// The error of a router on the way of `packet`, which the proxy sent.
pub fn error_about(packet: &Segment, mtu: Option<u16>) -> (PortId, Vec<u8>) {
    let original = packet.frame();
    let envelope = Envelope {
        src_mac: packet.to.mac,
        dst_mac: packet.from.mac,
        src_addr: if packet.to.address.is_ipv4() {
            "10.9.9.9"
        } else {
            "fd09::9"
        }
        .parse()
        .expect("a router"),
        dst_addr: packet.from.address.ip(),
        hop_limit: 60,
    };
    let mut buffer = HeapPool::new(1, 2048).take().expect("a buffer");
    let original = &original[14..];
    if packet.to.address.is_ipv4() {
        let error = match mtu {
            Some(next_hop_mtu) => Icmpv4Repr::Unreachable {
                code: unreachable_code::FRAGMENTATION_NEEDED,
                next_hop_mtu,
                original,
            },
            None => Icmpv4Repr::Unreachable {
                code: unreachable_code::HOST,
                next_hop_mtu: 0,
                original,
            },
        };
        error.emit(&envelope, &mut buffer).expect("room");
    } else {
        let error = match mtu {
            Some(mtu) => Icmpv6Repr::PacketTooBig {
                mtu: u32::from(mtu),
                original,
            },
            None => Icmpv6Repr::Unreachable { code: 3, original },
        };
        error.emit(&envelope, &mut buffer).expect("room");
    }
    (
        PortId(u8::from(packet.from.mac == MacAddr([2, 0, 0, 0, 0, 0xa1]))),
        buffer.data().to_vec(),
    )
}

/// What an ICMP error says: the path MTU, if any, and the quoted segment.
pub fn read(frame: &[u8]) -> (Option<u32>, QuotedTcp) {
    match e2d2::wire::frame::parse(frame).expect("a sound frame") {
        e2d2::wire::frame::Kind::Icmpv4 { l4, end, .. } => {
            let message = &frame[usize::from(l4)..usize::from(end)];
            let Ok(Icmpv4Repr::Unreachable {
                code,
                next_hop_mtu,
                original,
            }) = Icmpv4Repr::parse(message)
            else {
                panic!("not an error with a right checksum: {message:02x?}")
            };
            let mtu = (code == unreachable_code::FRAGMENTATION_NEEDED).then_some(u32::from(next_hop_mtu));
            (
                mtu,
                quote::parse(IpVersion::V4, original).expect("a quote").expect("of TCP"),
            )
        }
        e2d2::wire::frame::Kind::Icmpv6 { l3, l4, end } => {
            let header = Ipv6Header(frame[usize::from(l3)..].first_chunk().expect("a header"));
            match Icmpv6Repr::parse(header, &frame[usize::from(l4)..usize::from(end)]) {
                Ok(Icmpv6Repr::PacketTooBig { mtu, original }) => (
                    Some(mtu),
                    quote::parse(IpVersion::V6, original).expect("a quote").expect("of TCP"),
                ),
                Ok(Icmpv6Repr::Unreachable { original, .. }) => (
                    None,
                    quote::parse(IpVersion::V6, original).expect("a quote").expect("of TCP"),
                ),
                other => panic!("not an error: {other:?}"),
            }
        }
        other => panic!("not ICMP: {other:?}"),
    }
}

#[track_caller]
fn one(mut frames: Vec<Vec<u8>>) -> Vec<u8> {
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

fn spliced(bench: &mut Bench, mut client: Client, payload: &[u8]) -> (Client, Server) {
    client.connect(bench);
    let syn = only(client.send(bench, payload));
    let mut server = Server::from_syn(&syn);
    server.accept(bench);
    server.ack = server.ack.wrapping_add(payload.len() as u32);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    (client, server)
}

#[test]
fn a_too_big_segment_of_the_client_is_told_to_the_client_in_its_own_numbers() {
    for (client, payload) in [(Client::new(40000), b"0 hello"), (Client::new_v6(40000), b"3 hello")] {
        let mut bench = Bench::new();
        let (client, _) = spliced(&mut bench, client, payload);
        let sent = client.segment(TcpFlags::PSH, &[b'x'; 1400]);
        let passed = only(bench.receive(&sent));
        let (port, error) = error_about(&passed, Some(1300));
        let frame = one(bench.receive_icmp(port, &error));
        let (mtu, quoted) = read(&frame);
        assert_eq!(mtu, Some(1300));
        assert_eq!(quoted.seq, sent.seq);
        assert_eq!(
            (quoted.src_addr, quoted.src_port),
            (client.me.address.ip(), client.me.address.port())
        );
        assert_eq!(
            (quoted.dst_addr, quoted.dst_port),
            (client.proxy.address.ip(), client.proxy.address.port())
        );
        assert_eq!(&frame[..6], &client.me.mac.0);
    }
}

#[test]
fn a_too_big_segment_of_the_server_is_told_to_the_server() {
    let mut bench = Bench::new();
    let (_, mut server) = spliced(&mut bench, Client::new(40000), b"0 hello");
    let sent = server.segment(TcpFlags::PSH, &[b'x'; 1400]);
    let passed = only(server.send(&mut bench, &[b'x'; 1400]));
    let (port, error) = error_about(&passed, Some(1280));
    let (mtu, quoted) = read(&one(bench.receive_icmp(port, &error)));
    assert_eq!((mtu, quoted.seq), (Some(1280), sent.seq));
    assert_eq!(
        (quoted.src_addr, quoted.src_port),
        (server.me.address.ip(), server.me.address.port())
    );
    assert_eq!(
        (quoted.dst_addr, quoted.dst_port),
        (server.proxy.address.ip(), server.proxy.address.port())
    );
}

#[test]
fn an_unbelievable_mtu_is_raised_to_the_floor() {
    let mut bench = Bench::new();
    let (client, _) = spliced(&mut bench, Client::new(40000), b"0 hello");
    let passed = only(bench.receive(&client.segment(TcpFlags::PSH, &[b'x'; 1400])));
    let (port, error) = error_about(&passed, Some(68));
    assert_eq!(read(&one(bench.receive_icmp(port, &error))).0, Some(576));
}

#[test]
fn an_error_about_nothing_in_flight_is_not_believed() {
    let mut bench = Bench::new();
    let (client, _) = spliced(&mut bench, Client::new(40000), b"0 hello");
    let passed = only(bench.receive(&client.segment(TcpFlags::PSH, b"hello")));
    for (seq, reason) in [
        (passed.seq.wrapping_add(6), DropReason::IcmpNotInFlight),
        (passed.seq.wrapping_sub(1), DropReason::IcmpNotInFlight),
    ] {
        let (port, error) = error_about(&Segment { seq, ..passed.clone() }, Some(1300));
        assert!(bench.receive_icmp(port, &error).is_empty());
        assert!(bench.dropped(reason) > 0);
    }
    // About a flow that is not ours.
    let mut stranger = passed.clone();
    stranger.from.address.set_port(9);
    let (port, error) = error_about(&stranger, Some(1300));
    assert!(bench.receive_icmp(port, &error).is_empty());
    assert_eq!(bench.dropped(DropReason::IcmpUnwanted), 1);
    assert_eq!(bench.proxy.usage().connections, 1);
}

#[test]
fn an_unreachable_server_is_passed_over() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"p hello"));
    let (port, error) = error_about(&syn, None);
    let next = Segment::read(&one(bench.receive_icmp(port, &error)));
    assert_eq!(next.flags, TcpFlags::SYN);
    assert_ne!(next.to, syn.to);
    // An error about another segment than our SYN says nothing.
    let (port, error) = error_about(
        &Segment {
            seq: next.seq.wrapping_add(1),
            ..next
        },
        None,
    );
    assert!(bench.receive_icmp(port, &error).is_empty());
}

#[test]
fn a_segment_too_big_for_our_own_port_is_answered() {
    let mut bench = Bench::with_config(&CONFIG.replace("device = \"net_null1\"", "device = \"net_null1\"\nmtu = 1400"));
    let (client, _) = spliced(&mut bench, Client::new(40000), b"0 hello");
    let fits = client.segment(TcpFlags::PSH, &[b'x'; 1400 - 52]);
    only(bench.receive(&fits));
    let big = client.segment(TcpFlags::PSH, &[b'x'; 1400 - 51]);
    let (mtu, quoted) = read(&one(bench.receive_raw(&big)));
    assert_eq!((mtu, quoted.seq), (Some(1400), big.seq));
    assert_eq!(bench.dropped(DropReason::TooBig), 1);
}

/// What a router says about `passed`, and what is told to its sender.
fn told(bench: &mut Bench, passed: &Segment, says: (u8, u8, u32)) -> oracle::IcmpError {
    let router = match passed.to.address.is_ipv4() {
        true => Station::new(9, "10.9.9.9:0"),
        false => Station::new(9, "[fd09::9]:0"),
    };
    let frame = oracle::icmp_frame(router, passed.from, says, &passed.frame()[14..]);
    oracle::read_icmp(&one(bench.receive_icmp(PortId(1), &frame)))
}

#[test]
fn a_parameter_problem_is_told_as_it_is() {
    for (client, payload, says) in [
        (Client::new(40000), b"0 hello", (12, 0, 0x0900_0000)),
        (Client::new_v6(40000), b"3 hello", (4, 1, 6)),
    ] {
        let mut bench = Bench::new();
        let (client, _) = spliced(&mut bench, client, payload);
        let passed = only(bench.receive(&client.segment(TcpFlags::PSH, b"x")));
        let heard = told(&mut bench, &passed, says);
        assert_eq!((heard.says, heard.destination), (says, client.me.address.ip()));
    }
}

/// RFC 1191 5: the plateau below the 1 452 bytes of the packet.
#[test]
fn for_a_router_that_names_no_mtu_a_likely_one_is_named() {
    let mut bench = Bench::new();
    let (client, _) = spliced(&mut bench, Client::new(40000), b"0 hello");
    let passed = only(bench.receive(&client.segment(TcpFlags::PSH, &[b'x'; 1400])));
    assert_eq!(told(&mut bench, &passed, (3, 4, 0)).says, (3, 4, 1006));
}
