//! Calling the server: retries, the next server, stale answers.

use crate::harness::{Bench, Client, Server, nothing, only};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::record::{Cause, Side};
use std::time::Duration;
use testkit::Segment;

fn called(bench: &mut Bench, payload: &[u8]) -> (Client, Segment) {
    let mut client = Client::new(40000);
    client.connect(bench);
    let syn = only(client.send(bench, payload));
    (client, syn)
}

fn refusal(syn: &Segment) -> Segment {
    Segment {
        ack: syn.seq.wrapping_add(1),
        flags: TcpFlags::RST | TcpFlags::ACK,
        window: 0,
        ..Segment::between(syn.to, syn.from)
    }
}

#[test]
fn an_unanswered_syn_is_repeated_with_back_off() {
    let mut bench = Bench::new();
    let (_, syn) = called(&mut bench, b"0 hello");
    let mut times = Vec::new();
    let start = bench.now;
    while bench.now - start < Duration::from_millis(2900) {
        for again in bench.wait(Duration::from_millis(50)) {
            assert_eq!(again, syn);
            times.push((bench.now - start).as_millis());
        }
    }
    // The wheel's tick is a millisecond, the harness looks every fifty.
    assert_eq!(times, [1050], "one second, then two");
}

#[test]
fn all_servers_silent_ends_in_a_reset_to_the_client() {
    let mut bench = Bench::new();
    let (client, first) = called(&mut bench, b"p hello");
    let mut seen = vec![first.to];
    let sent = bench.wait(Duration::from_secs(120));
    for segment in &sent {
        if segment.flags == TcpFlags::SYN && !seen.contains(&segment.to) {
            seen.push(segment.to);
        }
    }
    assert_eq!(seen.len(), 3, "every server of the pool is tried: {seen:?}");
    let reset = sent.last().expect("a reset");
    assert!(reset.flags.contains(TcpFlags::RST));
    assert_eq!((reset.to, reset.seq), (client.me, client.ack));
    let record = bench.records()[0];
    assert_eq!(
        (record.cause(Side::Client), record.servers_tried),
        (Cause::ServerTimeout, 3)
    );
    bench.assert_all_returned();
}

#[test]
fn a_refused_connection_goes_to_the_next_server_with_the_same_bytes() {
    let mut bench = Bench::new();
    let (_, first) = called(&mut bench, b"p hello");
    let second = only(bench.receive(&refusal(&first)));
    assert_eq!(second.flags, TcpFlags::SYN);
    assert_ne!(second.to, first.to);
    let (_, held) = Server::from_syn(&second).accept(&mut bench);
    assert_eq!(only(held).payload, b"p hello");
}

#[test]
fn all_servers_refusing_ends_in_a_reset_to_the_client() {
    let mut bench = Bench::new();
    let (client, mut syn) = called(&mut bench, b"p hello");
    for _ in 0..2 {
        syn = only(bench.receive(&refusal(&syn)));
    }
    let reset = only(bench.receive(&refusal(&syn)));
    assert_eq!((reset.to, reset.seq), (client.me, client.ack));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::ServerRefused);
    bench.assert_all_returned();
}

#[test]
fn a_server_that_the_selector_named_is_the_only_one() {
    let mut bench = Bench::new();
    let (client, syn) = called(&mut bench, b"1 hello");
    let reset = only(bench.receive(&refusal(&syn)));
    assert_eq!(reset.to, client.me);
    assert!(reset.flags.contains(TcpFlags::RST));
    bench.assert_all_returned();
}

#[test]
fn a_blind_refusal_is_not_believed() {
    let mut bench = Bench::new();
    let (_, syn) = called(&mut bench, b"0 hello");
    let blind = Segment {
        ack: syn.seq,
        ..refusal(&syn)
    };
    nothing(bench.receive(&blind));
    let without_ack = Segment {
        flags: TcpFlags::RST,
        ack: 0,
        ..refusal(&syn)
    };
    nothing(bench.receive(&without_ack));
    Server::from_syn(&syn).accept(&mut bench);
}

#[test]
fn a_time_wait_server_is_reset_and_called_again() {
    let mut bench = Bench::new();
    let (_, syn) = called(&mut bench, b"0 hello");
    let stale = Segment {
        seq: 77,
        ack: 12345,
        ..Segment::between(syn.to, syn.from)
    };
    let sent = bench.receive(&stale);
    assert_eq!(sent.len(), 2);
    assert_eq!((sent[0].flags, sent[0].seq), (TcpFlags::RST, 12345));
    assert_eq!(sent[1], syn);
}

#[test]
fn a_server_without_promised_timestamps_is_passed_over() {
    let mut bench = Bench::new();
    let (_, syn) = called(&mut bench, b"p hello");
    let mut server = Server::from_syn(&syn);
    server.options.timestamps = None;
    let sent = bench.receive(&server.syn_ack());
    assert_eq!(sent.len(), 2, "{sent:#?}");
    assert!(sent[0].flags.contains(TcpFlags::RST) && sent[0].to == syn.to);
    assert!(sent[1].flags == TcpFlags::SYN && sent[1].to != syn.to);
}

#[test]
fn a_repeated_syn_ack_is_acknowledged_again() {
    let mut bench = Bench::new();
    let (_, syn) = called(&mut bench, b"0 hello");
    let mut server = Server::from_syn(&syn);
    server.accept(&mut bench);
    let again = only(bench.receive(&server.syn_ack()));
    assert_eq!(again.flags, TcpFlags::ACK);
    assert_eq!(again.ack, server.seq);
}

#[test]
fn an_unknown_next_hop_is_waited_for() {
    let mut bench = Bench::new();
    bench.hops.0.borrow_mut().push(0);
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    nothing(client.send(&mut bench, b"0 hello"));
    bench.hops.0.borrow_mut().clear();
    let syn = only(bench.wait(Duration::from_millis(1050)));
    assert_eq!(syn.flags, TcpFlags::SYN);
}

#[test]
fn the_syn_carries_what_was_agreed_and_no_more() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    let bare = Segment {
        options: TcpOptions {
            mss: Some(1000),
            ..TcpOptions::NONE
        },
        ..client.syn()
    };
    let syn_ack = only(bench.receive(&bare));
    client.seq = syn_ack.ack;
    client.ack = syn_ack.seq.wrapping_add(1);
    let request = Segment {
        options: TcpOptions::NONE,
        ..client.segment(TcpFlags::PSH, b"0 hello")
    };
    let syn = only(bench.receive(&request));
    assert_eq!(
        syn.options,
        TcpOptions {
            mss: Some(536),
            ..TcpOptions::NONE
        }
    );
}

#[test]
fn a_port_is_not_used_again_while_it_rests_and_numbers_never_go_back() {
    let mut bench = Bench::with_config(
        &crate::harness::CONFIG.replace("name = \"all\"", "name = \"all\"\nlocal_ports = \"5000-5001\""),
    );
    let mut seen: Vec<(u16, u32)> = Vec::new();
    for round in 0..6 {
        let mut client = Client::new(41000 + round);
        client.tsval += u32::from(round) * 10;
        client.connect(&mut bench);
        let syn = only(client.send(&mut bench, b"0 hello"));
        let (port, seq) = (syn.from.address.port(), syn.seq);
        if let Some((_, last)) = seen.iter().rev().find(|(used, _)| *used == port) {
            assert!(
                (seq.wrapping_sub(*last) as i32) > 0,
                "sequence numbers of port {port} went back"
            );
        }
        seen.push((port, seq));
        let mut server = Server::from_syn(&syn);
        server.accept(&mut bench);
        let reset = Segment {
            flags: TcpFlags::RST,
            ..client.segment(TcpFlags::RST, b"")
        };
        only(bench.receive(&reset));
    }
    assert_eq!(
        seen.iter()
            .map(|(port, _)| *port)
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        2
    );
    assert_eq!(seen[0].0, seen[2].0, "the port that has rested longest comes first");
    bench.assert_all_returned();
}
