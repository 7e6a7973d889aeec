//! W1 to W22: what the ancestor did wrong to connections that nobody attacked.

use super::{assert_unharmed, close, padded, spliced};
use crate::graph_bench::GraphBench;
use crate::harness::{CONFIG, Client, PROXY_MAC, Receive, SERVER_ISN, Server, nothing, only};
use e2d2::buffer::PacketBuffer;
use e2d2::port::PortId;
use e2d2::wire::checksum;
use e2d2::wire::frame::{self, Kind};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::record::{Cause, Side};
use proxyengine::proxy::drop_reason::DropReason;
use std::collections::HashSet;
use std::time::Duration;
use testkit::Segment;

/// Behind this port are the clients, behind the other one the servers.
const CLIENTS: PortId = PortId(0);

fn idle(time: &str) -> GraphBench {
    GraphBench::with_config(&format!("{CONFIG}\n[timeouts]\nidle = \"{time}\"\n"))
}

/// The client sends a word, which passes and is acknowledged.
fn talk(bench: &mut GraphBench, client: &mut Client, server: &mut Server) {
    assert_eq!(only(client.send(bench, b"word")).payload, b"word");
    server.ack = server.ack.wrapping_add(4);
    assert_eq!(only(bench.receive(&server.segment(TcpFlags::ACK, b""))).ack, client.seq);
}

#[test]
fn w01_a_connection_in_use_has_no_end_and_an_idle_one_is_told() {
    let mut bench = idle("2s");
    let (mut client, mut server) = spliced(&mut bench, 40000);
    for _ in 0..10 {
        nothing(bench.wait(Duration::from_millis(1_900)));
        talk(&mut bench, &mut client, &mut server);
    }
    let told: HashSet<_> = bench
        .wait(Duration::from_millis(2_100))
        .iter()
        .map(|reset| reset.to.address)
        .collect();
    assert_eq!(told, HashSet::from([client.me.address, server.me.address]));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::IdleTimeout);
    assert_unharmed(bench);
}

/// Their wheel was 10.01 s long.
#[test]
fn w02_a_timer_may_be_longer_than_the_wheel() {
    let mut bench = idle("10m");
    let (client, server) = spliced(&mut bench, 40000);
    nothing(bench.wait(Duration::from_secs(599)));
    let resets = bench.wait(Duration::from_secs(2));
    assert!(resets.iter().all(|segment| segment.flags.contains(TcpFlags::RST)));
    assert!(resets.iter().any(|reset| reset.to == client.me) && resets.iter().any(|reset| reset.to == server.me));
    assert_unharmed(bench);
}

#[test]
fn w03_a_syn_whose_answer_was_lost_is_answered_again() {
    let mut bench = GraphBench::new();
    let client = Client::new(40000);
    let lost = only(bench.receive(&client.syn()));
    bench.wait(Duration::from_secs(1));
    let again = only(bench.receive(&client.syn()));
    assert_eq!((again.flags, again.ack), (lost.flags, lost.ack));
    assert_unharmed(bench);
}

#[test]
fn w04_a_lost_syn_to_the_server_is_repeated() {
    let mut bench = GraphBench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let lost = only(client.send(&mut bench, b"0 hello"));
    let again = only(bench.wait(Duration::from_millis(1_100)));
    assert_eq!(again, lost);
    let (_, held) = Server::from_syn(&again).accept(&mut bench);
    assert_eq!(only(held).payload, b"0 hello");
    assert_unharmed(bench);
}

#[test]
fn w05_every_segment_of_a_request_reaches_the_server() {
    let mut bench = GraphBench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let request: Vec<u8> = (0..4_000_u32).map(|n| b'0' + (n % 10) as u8).collect();
    let mut pieces = request.chunks(1_448);
    let syn = only(client.send(&mut bench, pieces.next().expect("the first")));
    for piece in pieces {
        nothing(client.send(&mut bench, piece));
    }
    let (_, held) = Server::from_syn(&syn).accept(&mut bench);
    let sent: Vec<u8> = held.into_iter().flat_map(|segment| segment.payload).collect();
    assert!(sent == request, "{} of {} bytes", sent.len(), request.len());
    assert_unharmed(bench);
}

#[test]
fn w06_the_ack_of_the_handshake_is_read_whole() {
    let mut bench = GraphBench::new();
    let answered = |bench: &mut GraphBench, port: u16| {
        let mut client = Client::new(port);
        let syn_ack = only(bench.receive(&client.syn()));
        client.take_syn_ack(&syn_ack);
        client
    };
    // Its data is kept.
    let mut client = answered(&mut bench, 40000);
    let syn = only(client.send(&mut bench, b"0 hello"));
    let (_, held) = Server::from_syn(&syn).accept(&mut bench);
    assert_eq!(only(held).payload, b"0 hello");
    // Its number is checked.
    let mut client = answered(&mut bench, 40001);
    client.ack = client.ack.wrapping_add(1 << 31);
    assert_eq!(
        only(client.send(&mut bench, b"0 hello")).to,
        client.me,
        "a RST, no SYN to a server"
    );
    // A RST is no ACK.
    let client = answered(&mut bench, 40002);
    nothing(bench.receive(&client.segment(TcpFlags::RST, b"")));
    assert_eq!(bench.handle.look(|proxy| proxy.usage().connections), 1);
    // Nor is a FIN only one.
    let client = answered(&mut bench, 40003);
    let answer = only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    assert_eq!((answer.to, answer.ack), (client.me, client.seq.wrapping_add(1)));
    assert_unharmed(bench);
}

#[test]
fn w07_an_ack_is_no_payload() {
    let mut bench = GraphBench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let ack = Segment {
        options: TcpOptions::NONE,
        ..client.segment(TcpFlags::ACK, b"")
    };
    // Its padding is none either.
    for frame in [ack.frame(), padded(ack.frame())] {
        nothing(bench.receive_bytes(CLIENTS, &frame));
    }
    assert!(
        bench.calls.lock().expect("one thread").is_empty(),
        "no server is chosen"
    );
    let syn = only(client.send(&mut bench, b"1 hello"));
    assert_eq!(syn.to.address, "10.1.0.101:8080".parse().expect("an address"));
    assert_unharmed(bench);
}

#[test]
fn w08_a_refusal_reaches_the_client_and_a_reset_ends_the_connection() {
    let mut bench = GraphBench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"1 hello"));
    let refusal = Segment {
        ack: syn.seq.wrapping_add(1),
        flags: TcpFlags::RST | TcpFlags::ACK,
        ..Segment::between(syn.to, syn.from)
    };
    let told = only(bench.receive(&refusal));
    assert!(told.to == client.me && told.flags.contains(TcpFlags::RST));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::ServerRefused);

    let (client, server) = spliced(&mut bench, 40001);
    let told = only(bench.receive(&server.segment(TcpFlags::RST, b"")));
    assert!(told.to == client.me && told.flags.contains(TcpFlags::RST));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::PassiveRst);
    assert_eq!(bench.handle.look(|proxy| proxy.usage().connections), 0);
    assert_unharmed(bench);
}

/// They sent the payload of an early FIN back to the client, and told the server nothing.
#[test]
fn w09_an_early_fin_reaches_the_server_with_its_data() {
    let mut bench = GraphBench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"0 hello"));
    nothing(bench.receive(&client.segment(TcpFlags::FIN | TcpFlags::PSH, b" and bye")));
    client.seq = client.seq.wrapping_add(9);
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    let last = held.last().expect("the request");
    assert!(last.flags.contains(TcpFlags::FIN) && last.to == server.me);
    let heard: Vec<u8> = held.iter().flat_map(|segment| segment.payload.clone()).collect();
    assert_eq!(heard, b"0 hello and bye");
    server.ack = server.ack.wrapping_add(16);
    assert_eq!(only(bench.receive(&server.segment(TcpFlags::FIN, b""))).to, client.me);
    client.ack = client.ack.wrapping_add(1);
    let end = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(
        (end.to, end.ack),
        (server.me, server.seq.wrapping_add(1)),
        "to the server that it had"
    );
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::ActiveClose);
    assert_unharmed(bench);
}

#[test]
fn w10_a_fin_with_data_closes_when_both_are_acknowledged() {
    let mut bench = GraphBench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    only(bench.receive(&client.segment(TcpFlags::FIN | TcpFlags::PSH, b"last words")));
    client.seq = client.seq.wrapping_add(11);
    server.ack = server.ack.wrapping_add(10);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert!(bench.records().is_empty(), "the data, not the FIN");
    server.ack = server.ack.wrapping_add(1);
    only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
    client.ack = client.ack.wrapping_add(1);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::ActiveClose);
    assert_unharmed(bench);
}

#[test]
fn w11_numbers_wrap_and_what_was_acknowledged_may_come_again() {
    let mut bench = GraphBench::new();
    // Its first byte is the last before the wrap.
    let (mut client, mut server) = spliced(&mut bench, 40000);
    assert!(client.seq < 16, "it has wrapped");
    let repeated = Segment {
        seq: client.seq.wrapping_sub(7),
        ..client.segment(TcpFlags::PSH, b"0 hello")
    };
    talk(&mut bench, &mut client, &mut server);
    // The server's ACK was lost on its way to the client: the copy must reach the server, which repeats it.
    assert_eq!(only(bench.receive(&repeated)).to, server.me);
    let probe = Segment {
        seq: client.seq.wrapping_sub(1),
        ..client.segment(TcpFlags::ACK, b"")
    };
    let probe = only(bench.receive(&probe));
    assert_eq!(
        (probe.to, probe.seq),
        (server.me, server.ack.wrapping_sub(1)),
        "a keep-alive passes"
    );
    assert_unharmed(bench);
}

#[test]
fn w12_a_blind_segment_changes_nothing() {
    let mut bench = GraphBench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    for distance in [1 << 17, 1 << 24, 1 << 30] {
        let reset = Segment {
            seq: client.seq.wrapping_add(distance),
            flags: TcpFlags::RST,
            ..client.segment(TcpFlags::RST, b"")
        };
        nothing(bench.receive(&reset));
        // Data far ahead may pass, as through a router; it moves nothing that we know.
        let data = Segment {
            seq: client.seq.wrapping_add(distance),
            ..client.segment(TcpFlags::PSH | TcpFlags::FIN, b"forged")
        };
        bench.receive(&data);
    }
    assert_eq!(bench.dropped(DropReason::BlindReset), 3);
    talk(&mut bench, &mut client, &mut server);
    close(&mut bench, &mut client, &mut server);
    assert_eq!(
        bench.records()[0].cause(Side::Client),
        Cause::ActiveClose,
        "by the true FINs"
    );
    assert_unharmed(bench);
}

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
        let mut frame = segment.emit(&mut bench.pool);
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
    assert_eq!(bench.handle.look(|proxy| proxy.usage().resting), 6);
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
    assert_eq!(bench.handle.look(|proxy| proxy.usage().connections), 0);
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
    assert_eq!(bench.handle.look(|proxy| proxy.usage().resting), 1);
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
