//! Calls to servers that take too long: they are given up for another server, which gets the same bytes.

use crate::harness::{Bench, CONFIG, Client, PROXY_MAC, Server, bound_with_syn, nothing, only};
use e2d2::wire::tcp::TcpFlags;
use netfcts::{Cause, Side};
use splice::drop_reason::DropReason;
use splice::upstream::CallEvent;
use std::net::SocketAddr;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A call of the pool.
fn call(bench: &mut Bench, port: u16) -> (Client, Segment) {
    let mut client = Client::new(port);
    client.connect(bench);
    let syn = only(client.send(bench, b"p hello"));
    assert_eq!(syn.flags, TcpFlags::SYN);
    (client, syn)
}

/// A pool with more lines in which a server has once answered after `usual`; a millisecond later.
fn bench_with(lines: &str, usual: Duration) -> Bench {
    let text = CONFIG.replace("name = \"all\"\n", &format!("name = \"all\"\n{lines}\n"));
    let mut bench = Bench::with_config(&text.replace("max_connections = 64", "max_connections = 4096"));
    answer_once(&mut bench, usual);
    bench
}

fn answer_once(bench: &mut Bench, usual: Duration) {
    let (client, syn) = call(bench, 39_999);
    nothing(bench.wait(usual));
    Server::from_syn(&syn).accept(bench);
    bench.receive(&client.segment(TcpFlags::RST, b""));
    bench.wait(millis(1));
    bench.records();
}

fn count(bench: &Bench, event: CallEvent) -> u64 {
    bench.proxy.calls()[event]
}

/// Lets time pass in milliseconds until something is sent, and returns how many and what.
fn next_sent(bench: &mut Bench) -> (u64, Segment) {
    (1..20_000)
        .find_map(|n| {
            let sent = bench.wait(millis(1));
            (!sent.is_empty()).then(|| (n, only(sent)))
        })
        .expect("something is sent")
}

/// Refuses a call; returns what comes of that.
fn refuse(bench: &mut Bench, syn: &Segment) -> Segment {
    only(bench.receive(&Segment {
        ack: syn.seq.wrapping_add(1),
        flags: TcpFlags::RST | TcpFlags::ACK,
        window: 0,
        ..Segment::between(syn.to, syn.from)
    }))
}

#[test_case(0, 50; "near servers: 50 ms")]
#[test_case(12, 50; "the farthest for which that holds")]
#[test_case(13, 52; "the first for which it is four times the usual")]
#[test_case(100, 400; "far ones")]
fn an_overdue_call_goes_to_another_server_with_the_same_bytes(usual: u64, bound: u64) {
    let mut bench = bench_with("", millis(usual));
    let (mut client, first) = call(&mut bench, 40_000);
    nothing(bench.wait(millis(bound - 1)));
    // The wheel's tick is a little longer than a millisecond.
    let second = only(bench.wait(millis(3)));
    assert_eq!(second.flags, TcpFlags::SYN);
    assert_ne!(second.to, first.to);
    assert_eq!(count(&bench, CallEvent::GivenUp), 1);
    let usage = bench.proxy.usage();
    assert_eq!((usage.connections, usage.ports), (1, 1), "one call at a time");
    // The late answer is refused, and changes nothing.
    let late = only(bench.receive(&Server::from_syn(&first).syn_ack()));
    assert_eq!(
        (late.flags, late.to, late.seq),
        (TcpFlags::RST, first.to, first.seq.wrapping_add(1))
    );
    let mut server = Server::from_syn(&second);
    let (_, held) = server.accept(&mut bench);
    assert_eq!(only(held).payload, b"p hello");
    server.ack = server.ack.wrapping_add(7);
    assert_eq!(only(server.send(&mut bench, b"answer")).to, client.me);
    client.ack = client.ack.wrapping_add(6);
    bench.receive(&client.segment(TcpFlags::RST, b""));
    let record = bench.records().pop().expect("a record");
    assert_eq!(
        (record.cause(Side::Client), record.servers_tried()),
        (Cause::ActiveRst, 2)
    );
    bench.assert_all_returned();
}

#[test]
fn an_answer_just_in_time_is_taken() {
    let mut bench = bench_with("", millis(0));
    let (_, syn) = call(&mut bench, 40_000);
    nothing(bench.wait(millis(49)));
    let (_, held) = Server::from_syn(&syn).accept(&mut bench);
    assert_eq!(only(held).payload, b"p hello");
    nothing(bench.wait(millis(500)));
    assert_eq!(count(&bench, CallEvent::GivenUp), 0);
}

#[test]
fn before_any_answer_the_syn_is_repeated_as_ever() {
    let mut bench = Bench::new();
    let (_, syn) = call(&mut bench, 40_000);
    let (after, again) = next_sent(&mut bench);
    assert!((1000..1003).contains(&after), "{after}");
    assert_eq!(again, syn);
    // Karn: nobody knows which SYN is answered, so nothing is known of the time.
    bench.wait(millis(10));
    Server::from_syn(&syn).accept(&mut bench);
    bench.wait(millis(1));
    let (_, syn) = call(&mut bench, 40_001);
    assert_eq!(next_sent(&mut bench).1, syn);
}

#[test]
fn as_soon_as_one_has_answered_those_that_wait_are_overdue() {
    let mut bench = Bench::new();
    let (_, silent) = call(&mut bench, 40_000);
    let (_, other) = call(&mut bench, 40_001);
    Server::from_syn(&other).accept(&mut bench);
    nothing(bench.wait(millis(49)));
    let moved = only(bench.wait(millis(3)));
    assert!(moved.flags == TcpFlags::SYN && moved.to != silent.to);
}

#[test]
fn a_server_that_was_named_is_waited_for() {
    let mut bench = bench_with("", millis(0));
    let mut client = Client::new(40_000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"1 hello"));
    nothing(bench.wait(millis(999)));
    assert_eq!(next_sent(&mut bench).1, syn);
}

#[test]
fn where_no_other_is_left_a_call_goes_on_until_connect_timeout() {
    let mut bench = bench_with("eject_after = 1\neject_for = \"1h\"\nretries = 0", millis(0));
    // Two refuse, and are out.
    let (client, mut syn) = call(&mut bench, 40_000);
    for _ in 0..2 {
        syn = refuse(&mut bench, &syn);
    }
    Server::from_syn(&syn).accept(&mut bench);
    bench.receive(&client.segment(TcpFlags::RST, b""));
    bench.wait(millis(1));
    let (_, syn) = call(&mut bench, 40_001);
    let mut times = Vec::new();
    let mut after = 0;
    let next = loop {
        let (more, sent) = next_sent(&mut bench);
        after += more;
        if sent.to != syn.to {
            break sent;
        }
        assert_eq!(sent, syn);
        times.push(after / 10 * 10);
    };
    assert_eq!((times, after / 10 * 10), (vec![1_000, 3_000, 7_000], 10_000));
    // Then even those that are out are asked.
    assert_eq!(next.flags, TcpFlags::SYN);
    assert_eq!(count(&bench, CallEvent::GivenUp) + count(&bench, CallEvent::MovedOn), 0);
}

#[test]
fn calls_given_up_use_up_no_tries() {
    let mut bench = bench_with("", millis(0));
    let (client, mut syn) = call(&mut bench, 40_000);
    let mut called = vec![syn.to];
    for _ in 0..8 {
        let (_, next) = next_sent(&mut bench);
        assert!(next.flags == TcpFlags::SYN && next.to != syn.to);
        called.push(next.to);
        syn = next;
    }
    assert!(called[1..].contains(&called[0]), "none is worn out: {called:?}");
    // Each of the three may still refuse.
    for _ in 0..2 {
        syn = refuse(&mut bench, &syn);
        assert_eq!(syn.flags, TcpFlags::SYN);
    }
    let reset = refuse(&mut bench, &syn);
    assert_eq!((reset.to, reset.seq), (client.me, client.ack));
    let record = bench.records().pop().expect("a record");
    assert_eq!(
        (record.cause(Side::Client), record.servers_tried()),
        (Cause::ServerRefused, 11)
    );
    bench.assert_all_returned();
}

#[test]
fn a_connection_is_given_up_at_last() {
    let mut bench = bench_with("eject_after = 0", millis(0));
    let (client, mut syn) = call(&mut bench, 40_000);
    let mut moves = 0;
    let (mut waited, mut sent) = next_sent(&mut bench);
    while sent.to != client.me {
        moves += u32::from(sent.to != syn.to);
        syn = sent;
        let next = next_sent(&mut bench);
        (waited, sent) = (waited + next.0, next.1);
    }
    assert!(sent.flags.contains(TcpFlags::RST));
    // 63 times after 50 ms, and then each of the three has its ten seconds, the last one twice.
    assert_eq!(moves, 63 + 2);
    assert!((43_000..44_000).contains(&waited), "{waited}");
    bench.assert_all_returned();
}

/// Calls one after the other at each millisecond, every second of which is answered at once: those of one server never.
/// Returns that server and the clients that wait for it.
fn calls_to_a_silent_server(bench: &mut Bench, count: u16) -> (SocketAddr, Vec<SocketAddr>) {
    let (_, first) = call(bench, 40_000);
    let silent = first.to.address;
    let mut waiting = vec![Client::new(40_000).me.address];
    for n in 1..count {
        bench.wait(millis(1));
        let (client, syn) = call(bench, 40_000 + n);
        if syn.to.address == silent {
            waiting.push(client.me.address);
        } else {
            Server::from_syn(&syn).accept(bench);
        }
    }
    (silent, waiting)
}

#[test]
fn what_is_under_way_to_a_server_that_gets_ejected_moves() {
    let mut bench = bench_with("", millis(0));
    let mut silent = None;
    let (mut calls, mut moved) = (0, 0);
    // 900 calls in 90 ms; all but the silent server's are answered at once.
    for tick in 0..91 {
        for n in 0..if tick < 90 { 10 } else { 0 } {
            let (_, syn) = call(&mut bench, 40_000 + tick * 10 + n);
            let address = *silent.get_or_insert(syn.to.address);
            if syn.to.address == address {
                calls += 1;
            } else {
                Server::from_syn(&syn).accept(&mut bench);
            }
        }
        for syn in bench.wait(millis(1)) {
            assert!(syn.flags == TcpFlags::SYN && Some(syn.to.address) != silent, "{syn:?}");
            moved += 1;
            Server::from_syn(&syn).accept(&mut bench);
        }
    }
    for syn in bench.wait(millis(52)) {
        assert!(syn.flags == TcpFlags::SYN && Some(syn.to.address) != silent, "{syn:?}");
        moved += 1;
    }
    assert!((150..200).contains(&calls), "a third of those in 51 ms: {calls}");
    assert_eq!(moved, calls, "each within its 50 ms");
    assert_eq!(count(&bench, CallEvent::EjectedBySilence), 1);
    assert_eq!(count(&bench, CallEvent::GivenUp), 4, "the fifth has ejected it");
    assert_eq!(count(&bench, CallEvent::MovedOn), calls - 4);
}

#[test]
fn of_a_server_that_is_not_ejected_few_calls_are_given_up() {
    let mut bench = bench_with("eject_after = 0", millis(0));
    let (silent, waiting) = calls_to_a_silent_server(&mut bench, 300);
    assert!(waiting.len() >= 95);
    // All are overdue now.
    bench.wait(millis(60));
    assert_eq!(count(&bench, CallEvent::GivenUp), 32);
    // The others are looked at again, and have their turn when a second is over.
    let syns = bench.wait(millis(1500));
    assert!(syns.iter().any(|syn| syn.to.address != silent));
    let given_up = count(&bench, CallEvent::GivenUp);
    assert!((33..=96).contains(&given_up), "{given_up}");
}

#[test]
fn when_all_are_silent_all_are_asked_and_the_first_answer_serves() {
    let mut bench = bench_with("", millis(0));
    for n in 0..60 {
        call(&mut bench, 40_000 + n);
        bench.wait(millis(1));
    }
    bench.wait(millis(60));
    assert_eq!(count(&bench, CallEvent::EjectedBySilence), 3);
    let moves = count(&bench, CallEvent::GivenUp) + count(&bench, CallEvent::MovedOn);
    bench.wait(millis(100));
    let stay = count(&bench, CallEvent::GivenUp) + count(&bench, CallEvent::MovedOn);
    assert_eq!(stay, moves, "nobody is left to go to");
    // Still called.
    let (_, syn) = call(&mut bench, 41_000);
    bench.wait(millis(200));
    let (_, held) = Server::from_syn(&syn).accept(&mut bench);
    assert_eq!(only(held).payload, b"p hello");
    assert!(bench.records().is_empty(), "nobody was reset");
}

#[test]
fn a_core_that_was_away_blames_nobody() {
    let mut bench = bench_with("", millis(0));
    let calls: Vec<_> = (0..30).map(|n| call(&mut bench, 40_000 + n)).collect();
    // It comes back after 100 ms to a queue in which the answers are, and deals with them a burst a round.
    bench.now += millis(100);
    for (_, syn) in &calls {
        bench.proxy.note_round(bench.now, true);
        bench.now += Duration::from_micros(10);
        nothing(bench.round().0);
        let (_, held) = Server::from_syn(syn).accept(&mut bench);
        assert_eq!(only(held).payload, b"p hello");
    }
    bench.proxy.note_round(bench.now, false);
    nothing(bench.wait(millis(100)));
    assert_eq!(count(&bench, CallEvent::EjectedBySilence), 0);
}

#[test]
fn a_queue_that_is_empty_again_has_been_heard() {
    let mut bench = bench_with("", millis(0));
    let (_, first) = call(&mut bench, 40_000);
    bench.proxy.note_round(bench.now, true);
    for _ in 0..100 {
        nothing(bench.wait(millis(1)));
        bench.proxy.note_round(bench.now, true);
    }
    bench.proxy.note_round(bench.now, false);
    let (after, second) = next_sent(&mut bench);
    assert!(after <= 52 && second.to != first.to, "{after} ms");
}

#[test]
fn a_forwarded_syn_goes_to_another_server_too() {
    let mut bench = Bench::for_pools(&bound_with_syn(""));
    let mut client = Client::new(39_999);
    let syn = only(bench.receive(&client.syn()));
    Server::from_syn(&syn).shake(&mut bench, &mut client);
    bench.wait(millis(1));
    let mut client = Client::new(40_000);
    let first = only(bench.receive(&client.syn()));
    nothing(bench.wait(millis(49)));
    let second = only(bench.wait(millis(3)));
    assert!(second.flags == TcpFlags::SYN && second.to != first.to);
    assert_eq!(second.options.mss, first.options.mss);
    let late = only(bench.receive(&Server::from_syn(&first).syn_ack()));
    assert_eq!((late.flags, late.to), (TcpFlags::RST, first.to));
    let mut server = Server::from_syn(&second);
    server.shake(&mut bench, &mut client);
    let ack = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!((ack.to, ack.ack), (second.to, server.seq));
}

#[test]
fn a_server_whose_next_hop_is_unknown_is_left_as_well() {
    let mut bench = bench_with("", millis(0));
    let unknown: Vec<usize> = vec![0, 1, 2];
    bench.hops.0.borrow_mut().extend(unknown);
    let mut client = Client::new(40_000);
    client.connect(&mut bench);
    nothing(client.send(&mut bench, b"p hello"));
    let before = bench.dropped(DropReason::NoNeighbour);
    nothing(bench.wait(millis(52)));
    assert_eq!(bench.dropped(DropReason::NoNeighbour), before + 1, "another was called");
    bench.hops.0.borrow_mut().clear();
    let (after, syn) = next_sent(&mut bench);
    assert!(after <= 52 && syn.from.mac.0[5] == PROXY_MAC[1], "{after}");
}

#[test]
fn syns_that_were_due_while_the_core_was_away_are_not_made_up_for() {
    let mut bench = Bench::new();
    let mut client = Client::new(40_000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"1 hello"));
    bench.now += millis(3500);
    assert_eq!(only(bench.round().0), syn);
    // As if those after one and three seconds had gone out.
    let (after, again) = next_sent(&mut bench);
    assert!((3499..3503).contains(&after), "{after}");
    assert_eq!(again, syn);
}
