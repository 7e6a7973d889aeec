//! W1 to W12: what the ancestor did wrong with the events of a connection.

use super::{assert_unharmed, close, padded, spliced, talk};
use crate::graph_bench::GraphBench;
use crate::harness::{CONFIG, Client, Receive, Server, nothing, only};
use e2d2::port::PortId;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::{Cause, Side};
use splice::drop_reason::DropReason;
use std::collections::HashSet;
use std::time::Duration;
use testkit::Segment;

/// Behind this port are the clients, behind the other one the servers.
const CLIENTS: PortId = PortId(0);

fn idle(time: &str) -> GraphBench {
    GraphBench::with_config(&format!("{CONFIG}\n[timeouts]\nidle = \"{time}\"\n"))
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
    assert_eq!(bench.core.handle.look(|proxy| proxy.usage().connections), 1);
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
    assert_eq!(bench.core.handle.look(|proxy| proxy.usage().connections), 0);
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
    assert_eq!(bench.dropped(DropReason::OutOfWindowRst), 3);
    talk(&mut bench, &mut client, &mut server);
    close(&mut bench, &mut client, &mut server);
    assert_eq!(
        bench.records()[0].cause(Side::Client),
        Cause::ActiveClose,
        "by the true FINs"
    );
    assert_unharmed(bench);
}
