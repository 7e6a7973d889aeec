//! Calling the server: retries, the next server, stale answers.

use crate::harness::{Bench, CONFIG, Client, Server, assert_reset_and_called_again, nothing, only};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::{Cause, Side};
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
        (record.cause(Side::Client), record.servers_tried()),
        (Cause::ServerTimeout, 4),
        "the last one is tried once more"
    );
    bench.assert_all_returned();
}

/// The SYNs among what the core sends while this time passes, each number once.
fn calls(bench: &mut Bench, time: Duration) -> (Vec<Segment>, Vec<Segment>) {
    let (mut syns, others): (Vec<_>, Vec<_>) = bench
        .wait(time)
        .into_iter()
        .partition(|segment| segment.flags == TcpFlags::SYN);
    syns.dedup();
    (syns, others)
}

#[test]
fn the_only_server_is_called_anew_when_it_was_silent() {
    let mut bench = bench_with("retries = 2", "");
    let (_, first) = called(&mut bench, b"1 hello");
    let (syns, others) = calls(&mut bench, Duration::from_secs(25));
    nothing(others);
    assert_eq!(syns.len(), 3, "{syns:#?}");
    let ports: Vec<u16> = syns.iter().map(|syn| syn.from.address.port()).collect();
    assert!(
        ports[0] != ports[1] && ports[1] != ports[2] && ports[0] != ports[2],
        "{ports:?}"
    );
    assert!(
        syns.iter()
            .all(|syn| syn.to == first.to && syn.seq != first.seq || *syn == first)
    );
    // The answer to a call that was given up ends nothing; the last call's is taken.
    let late = Server::from_syn(&first).syn_ack();
    let refused = only(bench.receive(&late));
    assert_eq!((refused.flags, refused.to), (TcpFlags::RST, first.to));
    let (_, held) = Server::from_syn(&syns[2]).accept(&mut bench);
    assert_eq!(only(held).payload, b"1 hello");
    bench.finish();
    assert_eq!(bench.records()[0].servers_tried(), 3);
    bench.assert_all_returned();
}

#[test]
fn retries_are_counted_and_a_refusal_ends_them() {
    for (retries, seconds) in [(0, 10), (1, 20), (2, 30)] {
        let mut bench = bench_with(&format!("retries = {retries}"), "");
        let (client, _) = called(&mut bench, b"1 hello");
        let (_, others) = calls(&mut bench, Duration::from_millis(seconds * 1000 - 100));
        nothing(others);
        // The harness looks every 50 ms, and each SYN waits for it.
        let reset = only(bench.wait(Duration::from_millis(800)));
        assert_eq!((reset.to, reset.seq), (client.me, client.ack));
        assert_eq!(bench.records()[0].servers_tried(), retries + 1);
        bench.assert_all_returned();
    }
    let mut bench = bench_with("retries = 2", "");
    let (client, _) = called(&mut bench, b"1 hello");
    let (syns, _) = calls(&mut bench, Duration::from_secs(11));
    let reset = only(bench.receive(&refusal(syns.last().expect("a second call"))));
    assert_eq!((reset.to, reset.seq), (client.me, client.ack));
    let record = bench.records()[0];
    assert_eq!(
        (record.cause(Side::Client), record.servers_tried()),
        (Cause::ServerRefused, 2)
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
    assert_reset_and_called_again(&mut bench, &syn);
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
fn a_next_hop_that_is_lost_before_the_request_is_sent_costs_nothing_but_time() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    only(client.send(&mut bench, b"?half"));
    let syn = only(client.send(&mut bench, b" and half\n"));
    let mut server = Server::from_syn(&syn);
    bench.hops.0.borrow_mut().push(0);
    nothing(bench.receive(&server.syn_ack()));
    server.seq = server.isn.wrapping_add(1);
    bench.hops.0.borrow_mut().clear();
    // The engine repeats what it owes, the client the rest.
    assert_eq!(only(bench.wait(Duration::from_millis(1100))).payload, b"?half");
    server.ack = server.ack.wrapping_add(5);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    client.seq = client.seq.wrapping_sub(10);
    assert_eq!(only(client.send(&mut bench, b" and half\n")).payload, b" and half\n");
    bench.finish();
    bench.assert_all_returned();
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
    let mut bench =
        Bench::with_config(&CONFIG.replace("name = \"all\"", "name = \"all\"\nlocal_ports = \"5000-5001\""));
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

/// The pool with more lines, and with more keys of each server.
fn bench_with(lines: &str, keys: &str) -> Bench {
    let text = CONFIG
        .replace("name = \"all\"\n", &format!("name = \"all\"\n{lines}\n"))
        .replace(":8080\" }", &format!(":8080\"{keys} }}"));
    Bench::with_config(&text)
}

/// What the proxy sends when a client at this port has sent its first bytes.
fn answer(bench: &mut Bench, port: u16, payload: &[u8]) -> Segment {
    let mut client = Client::new(port);
    client.connect(bench);
    only(client.send(bench, payload))
}

#[test]
fn servers_that_are_full_get_no_more() {
    let mut bench = bench_with("", ", max_connections = 1");
    let mut called: Vec<_> = (0..3).map(|i| answer(&mut bench, 40000 + i, b"p hello").to).collect();
    called.sort_by_key(|station| station.address);
    called.dedup();
    assert_eq!(called.len(), 3, "one for each");
    for (port, payload) in [(40010, b"p hello"), (40011, b"1 hello")] {
        let reset = answer(&mut bench, port, payload);
        assert!(
            reset.flags.contains(TcpFlags::RST) && reset.to.address.port() == port,
            "{reset:?}"
        );
        assert_eq!(bench.records()[0].cause(Side::Client), Cause::NoServer);
    }
}

/// Ends a connection of a client whose server has been sent this SYN.
type Ending = fn(&mut Bench, &mut Client, &Segment);

#[test]
fn however_a_connection_ends_its_server_has_room_again() {
    let endings: [(&str, Ending); 5] = [
        ("refused", |bench, _, syn| drop(bench.receive(&refusal(syn)))),
        ("silence", |bench, _, _| drop(bench.wait(Duration::from_secs(21)))),
        ("the client leaves early", |bench, client, _| {
            drop(bench.receive(&client.segment(TcpFlags::RST, b"")));
        }),
        ("the client resets", |bench, client, syn| {
            Server::from_syn(syn).accept(bench);
            drop(bench.receive(&client.segment(TcpFlags::RST, b"")));
        }),
        ("the server lacks an option", |bench, _, syn| {
            let mut server = Server::from_syn(syn);
            server.options.timestamps = None;
            drop(bench.receive(&server.syn_ack()));
        }),
    ];
    for (how, end) in endings {
        let mut bench = bench_with("eject_after = 0", ", max_connections = 1");
        for round in 0..3 {
            let mut client = Client::new(40000 + round);
            client.connect(&mut bench);
            let syn = only(client.send(&mut bench, b"0 hello"));
            assert_eq!(syn.flags, TcpFlags::SYN, "{how}, round {round}");
            let full = answer(&mut bench, 41000 + round, b"0 hello");
            assert!(full.flags.contains(TcpFlags::RST), "{how}, round {round}");
            end(&mut bench, &mut client, &syn);
        }
        bench.assert_all_returned();
    }
}

#[test]
fn a_server_that_refuses_is_passed_over_and_later_tried_again() {
    let mut bench = bench_with("eject_after = 2\neject_for = \"3s\"", "");
    let first = answer(&mut bench, 40000, b"0 hello");
    let failing = first.to;
    bench.receive(&refusal(&first));
    let again = answer(&mut bench, 40001, b"0 hello");
    bench.receive(&refusal(&again));
    let called = |bench: &mut Bench, ports: std::ops::Range<u16>| {
        let calls = ports.map(|port| answer(bench, port, b"p hello"));
        calls.filter(|syn| syn.to == failing).collect::<Vec<_>>()
    };
    assert!(called(&mut bench, 42000..42006).is_empty(), "it is out");
    bench.wait(Duration::from_secs(3));
    let trial = called(&mut bench, 43000..43006);
    assert_eq!(trial.len(), 1, "one connection tries");
    Server::from_syn(&trial[0]).accept(&mut bench);
    assert!(called(&mut bench, 44000..44009).len() >= 2, "it is back");
}

#[test]
fn policies_reach_the_wire() {
    let servers = |policy: &str| {
        let mut bench = bench_with(&format!("policy = \"{policy}\""), "");
        let mut counts = std::collections::BTreeMap::new();
        for port in 40000..40009 {
            *counts
                .entry(answer(&mut bench, port, b"p hello").to.address)
                .or_insert(0) += 1;
        }
        counts.into_values().collect::<Vec<_>>()
    };
    assert_eq!(servers("round_robin"), [3, 3, 3]);
    assert_eq!(servers("least_connections"), [3, 3, 3]);
    assert_eq!(servers("client_hash"), [9], "one client address, one server");
}

/// Who makes up segments of a server that is called causes a RST and a SYN in a second, and the SYN is repeated by its timer all the same.
#[test]
fn stale_answers_are_answered_once_a_second() {
    let mut bench = Bench::new();
    let (_, syn) = called(&mut bench, b"0 hello");
    let stale = Segment {
        seq: 77,
        ack: 12345,
        ..Segment::between(syn.to, syn.from)
    };
    let sent: usize = (0..1000).map(|_| bench.receive(&stale).len()).sum();
    assert_eq!(sent, 2);
    assert!(bench.wait(Duration::from_millis(3500)).contains(&syn));
}

/// What a client says of its window while its server is called is what the server hears.
#[test]
fn a_window_that_opens_during_the_call_is_the_servers() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let closed = Segment {
        window: 0,
        ..client.segment(TcpFlags::PSH, b"0 hello")
    };
    let syn = only(bench.receive(&closed));
    client.seq = client.seq.wrapping_add(7);
    let open = client.segment(TcpFlags::ACK, b"");
    assert!(open.window > 0);
    nothing(bench.receive(&open));
    let (_, held) = Server::from_syn(&syn).accept(&mut bench);
    let held = only(held);
    assert_eq!((held.payload.as_slice(), held.window), (&b"0 hello"[..], open.window));
}
