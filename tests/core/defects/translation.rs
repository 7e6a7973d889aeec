//! W13 to W22: what the ancestor wrote into headers, and what it kept of a connection.

use super::{assert_unharmed, close, spliced, talk};
use crate::graph_bench::GraphBench;
use crate::harness::{CONFIG, Client, PROXY_MAC, Receive, SERVER_ISN, Server, nothing, only};
use e2d2::buffer::PacketBuffer;
use e2d2::port::PortId;
use e2d2::wire::checksum;
use e2d2::wire::frame::{self, Kind};
use e2d2::wire::tcp::TcpFlags;
use netfcts::{Cause, Side};
use splice::drop_reason::DropReason;
use std::collections::HashSet;
use std::time::Duration;
use testkit::Segment;

/// Behind this port are the clients, behind the other one the servers.
const CLIENTS: PortId = PortId(0);

/// Theirs was a clock, the same for whoever asks at the same moment.
#[test]
fn w13_initial_numbers_cannot_be_guessed_from_others() {
    let numbers = |secret: u8| -> Vec<u32> {
        let mut bench = GraphBench::with_secret(CONFIG, secret);
        (0..64)
            .map(|n| only(bench.receive(&Client::new(40000 + n).syn())).seq)
            .collect()
    };
    let (first, second) = (numbers(6), numbers(7));
    let distinct: HashSet<u32> = first.iter().chain(&second).copied().collect();
    assert!(distinct.len() >= 127, "{} of 128 differ", distinct.len());
    let distances =
        |numbers: &[u32]| -> HashSet<u32> { numbers.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect() };
    assert!(
        distances(&first).len() >= 62,
        "one port further is not one step further"
    );
    let other_secret: HashSet<u32> = first.iter().zip(&second).map(|(a, b)| b.wrapping_sub(*a)).collect();
    assert!(other_secret.len() >= 63, "another secret is another sequence");
}

#[test]
fn w14_options_are_agreed_on_both_sides_and_stay_where_they_are() {
    let mut bench = GraphBench::new();
    let mut client = Client::new(40000);
    let syn_ack = only(bench.receive(&client.syn()));
    let offered = |segment: &Segment| {
        let options = segment.options;
        let has_timestamps = options.timestamps.is_some();
        (
            options.mss,
            options.window_scale,
            options.sack_permitted,
            has_timestamps,
        )
    };
    assert_eq!(offered(&syn_ack), (Some(1460), Some(7), true, true));
    client.take_syn_ack(&syn_ack);
    let syn = only(client.send(&mut bench, b"0 hello"));
    assert_eq!(offered(&syn), (Some(1460), Some(7), true, true));
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    assert!(only(held).options.timestamps.is_some());
    // The payload begins behind the options.
    assert_eq!(only(client.send(&mut bench, b"more")).payload, b"more");
    assert_unharmed(bench);
}

/// The PROXY header is what is inserted into every connection: a length that the SYN must not have, and that no number of
/// the client's may show.
#[test]
fn w15_inserted_bytes_are_in_no_syn_and_in_no_number_of_the_clients() {
    let announcing = "name = \"all\"\nproxy_protocol = { send = \"v1\" }\n";
    let mut bench = GraphBench::with_config(&CONFIG.replace("name = \"all\"\n", announcing));
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"0 hello"));
    assert!(syn.payload.is_empty(), "reading it back has checked its lengths");
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(&mut bench);
    let inserted = sent[0].payload.len() as u32;
    assert_eq!(
        (sent[1].payload.as_slice(), sent[1].seq),
        (&b"0 hello"[..], syn.seq.wrapping_add(1 + inserted))
    );
    server.ack = server.ack.wrapping_add(inserted + 7);
    for _ in 0..3 {
        assert_eq!(only(bench.receive(&server.segment(TcpFlags::ACK, b""))).ack, client.seq);
        let word = only(client.send(&mut bench, b"word"));
        assert_eq!(word.seq, server.ack);
        server.ack = server.ack.wrapping_add(4);
    }
    bench.assert_all_returned("with a header");
}

fn has_right_tcp_checksum(bytes: &[u8]) -> bool {
    let Ok(Kind::Tcp(layout)) = frame::parse(bytes) else {
        panic!("not a TCP packet: {bytes:02x?}")
    };
    let (l3, l4, end) = (usize::from(layout.l3), usize::from(layout.l4), usize::from(layout.end));
    let address = |at: usize| std::net::Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
    let pseudo = checksum::pseudo_header_v4(address(l3 + 12), address(l3 + 16), 6, (end - l4) as u16);
    checksum::finish(pseudo + checksum::sum(&bytes[l4..end])) == 0
}

#[test]
fn w16_a_damaged_segment_is_never_made_to_look_sound() {
    let mut bench = GraphBench::new();
    let (client, _) = spliced(&mut bench, 40000);
    let damaged = |segment: Segment, bench: &mut GraphBench| {
        let mut frame = segment.emit(&mut bench.core.pool);
        let last = frame.len() - 1;
        frame.data_mut()[last] ^= 0x40;
        bench.exchange([(CLIENTS, frame)])
    };
    let passed = damaged(client.segment(TcpFlags::PSH, b"precious"), &mut bench);
    let [passed] = &passed[..] else {
        panic!("data is for its receiver to judge: {passed:?}")
    };
    assert!(!has_right_tcp_checksum(passed.data()));
    // What we act upon ourselves is verified.
    assert!(damaged(Client::new(40001).syn(), &mut bench).is_empty());
    assert!(damaged(client.segment(TcpFlags::FIN, b"end"), &mut bench).is_empty());
    let mut opening = Client::new(40002);
    let syn_ack = only(bench.receive(&opening.syn()));
    opening.take_syn_ack(&syn_ack);
    assert!(damaged(opening.segment(TcpFlags::PSH, b"0 hello"), &mut bench).is_empty());
    assert_eq!(bench.dropped(DropReason::BadTcpChecksum), 3);
}

#[test]
fn w17_a_port_rests_and_comes_back_with_a_later_number() {
    let text = CONFIG.replace("name = \"all\"", "name = \"all\"\nlocal_ports = \"5000-5001\"");
    let mut bench = GraphBench::with_config(&text);
    let mut calls: Vec<(u16, u32)> = Vec::new();
    for round in 0..6 {
        let mut client = Client::new(41000 + round);
        client.connect(&mut bench);
        let first = client.seq;
        let syn = only(client.send(&mut bench, b"0 hello"));
        assert_ne!(syn.seq.wrapping_add(1), first, "not the client's own number");
        let (port, seq) = (syn.from.address.port(), syn.seq);
        if let [.., (before_last, old), (last, _)] = calls[..] {
            assert_eq!((port, port != last), (before_last, true), "the other one rests");
            // RFC 9293 3.6.1: so that a server in TIME-WAIT takes it.
            assert!((seq.wrapping_sub(old) as i32) > 0);
        }
        calls.push((port, seq));
        let mut server = Server::from_syn(&syn);
        server.accept(&mut bench);
        server.ack = server.ack.wrapping_add(7);
        only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
        close(&mut bench, &mut client, &mut server);
    }
    assert_eq!(bench.core.handle.look(|proxy| proxy.usage().time_wait), 6);
    bench.assert_all_returned("ports that rested");
}

/// As [`spliced`], with the request on the ACK of the handshake: without one there is no place for a client when they are few.
fn spliced_in_a_hurry(bench: &mut GraphBench, port: u16) -> (Client, Server) {
    let mut client = Client::new(port);
    let syn_ack = only(bench.receive(&client.syn()));
    client.take_syn_ack(&syn_ack);
    let syn = only(client.send(bench, b"0 hello"));
    let mut server = Server::from_syn(&syn);
    server.accept(bench);
    server.ack = server.ack.wrapping_add(7);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    (client, server)
}

/// A second SYN during the close began a second timer there, which ended the next connection at that place.
#[test]
fn w18_no_timer_outlives_its_connection() {
    // There is one place.
    let one = CONFIG.replace("max_connections = 64", "max_connections = 1");
    let mut bench = GraphBench::with_config(&format!("{one}\n[timeouts]\nidle = \"4s\"\n"));
    let (mut client, mut server) = spliced_in_a_hurry(&mut bench, 40000);
    only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    client.seq = client.seq.wrapping_add(1);
    server.ack = server.ack.wrapping_add(1);
    bench.receive(&Client::new(40000).syn());
    only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
    client.ack = client.ack.wrapping_add(1);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.core.handle.look(|proxy| proxy.usage().connections), 0);
    // The next one takes it.
    bench.wait(Duration::from_secs(3));
    let (mut client, mut server) = spliced_in_a_hurry(&mut bench, 40001);
    for _ in 0..4 {
        nothing(bench.wait(Duration::from_secs(3)));
        talk(&mut bench, &mut client, &mut server);
    }
    bench.assert_all_returned("one place");
}

#[test]
fn w19_answers_begin_with_hops_of_their_own_and_none_is_forwarded_without() {
    let mut bench = GraphBench::new();
    let far = Segment {
        hop_limit: 2,
        ..Client::new(40000).syn()
    };
    assert_eq!(only(bench.receive(&far)).hop_limit, 64);
    let (client, _) = spliced(&mut bench, 40001);
    for (hops, passes) in [(1, false), (2, true)] {
        let last = Segment {
            hop_limit: hops,
            ..client.segment(TcpFlags::ACK, b"")
        };
        let sent = bench.receive(&last);
        assert_eq!(
            sent.iter().map(|segment| segment.hop_limit).collect::<Vec<_>>(),
            vec![1; usize::from(passes)]
        );
    }
    assert_eq!(bench.dropped(DropReason::HopLimit), 1);
    assert_unharmed(bench);
}

/// They sent such a FIN back out as it had come.
#[test]
fn w21_a_fin_after_the_servers_end_is_translated_like_any_other() {
    let mut bench = GraphBench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    let server_fin = server.segment(TcpFlags::FIN, b"");
    only(bench.receive(&server_fin));
    server.seq = server.seq.wrapping_add(1);
    client.ack = client.ack.wrapping_add(1);
    let fin = client.segment(TcpFlags::FIN, b"");
    // At once, repeated, and once more when the connection rests.
    for _ in 0..2 {
        let passed = only(bench.receive(&fin));
        assert_eq!(
            (passed.from, passed.to, passed.seq),
            (server.proxy, server.me, server.ack)
        );
        assert_eq!(passed.from.mac.0[5], PROXY_MAC[1]);
    }
    server.ack = server.ack.wrapping_add(1);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.core.handle.look(|proxy| proxy.usage().time_wait), 1);
    let passed = only(bench.receive(&fin));
    assert_eq!((passed.from, passed.to), (server.proxy, server.me));
    assert_unharmed(bench);
}

#[test]
fn w22_one_port_serves_a_connection_to_each_server() {
    let text = CONFIG.replace("name = \"all\"", "name = \"all\"\nlocal_ports = \"5000-5000\"");
    let mut bench = GraphBench::with_config(&text);
    let mut servers = HashSet::new();
    for n in 0..3_u16 {
        let mut client = Client::new(40000 + n);
        client.connect(&mut bench);
        let syn = only(client.send(&mut bench, format!("{n} hello").as_bytes()));
        assert_eq!((syn.from.address.port(), syn.flags), (5000, TcpFlags::SYN));
        servers.insert(syn.to.address);
        let mut server = Server::from_syn(&syn);
        server.isn = SERVER_ISN.wrapping_add(u32::from(n) << 16);
        let (_, held) = server.accept(&mut bench);
        assert_eq!(only(held).payload, format!("{n} hello").as_bytes());
    }
    assert_eq!(servers.len(), 3);
    // To one of them a second time there is no way, and the client is told.
    let mut fourth = Client::new(40003);
    fourth.connect(&mut bench);
    let reset = only(fourth.send(&mut bench, b"0 hello"));
    assert!(reset.to == fourth.me && reset.flags.contains(TcpFlags::RST));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::NoPort);
    bench.assert_all_returned("three connections from one port");
}
