//! Listeners that bind at the handshake: the server speaks first.

use crate::harness::{Bench, CONFIG, Client, Server, nothing, only};
use e2d2::time::Instant;
use e2d2::wire::tcp::TcpFlags;
use netfcts::{Cause, Side};
use splice::Usage;
use splice::drop_reason::DropReason;
use splice::standby::Service;
use std::time::Duration;
use testkit::Segment;

fn bench() -> Bench {
    let rules = "rules = [{ first_number = true, pool = \"all\" }]\ndefault = \"reject\"";
    Bench::for_pools(&CONFIG.replacen(rules, "bind = \"handshake\"\ndefault = \"all\"", 1))
}

#[test]
fn the_server_is_called_at_once_and_speaks_first() {
    let mut bench = bench();
    let mut client = Client::new(40000);
    let syn_ack = only(bench.receive(&client.syn()));
    client.take_syn_ack(&syn_ack);
    let syn = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(syn.flags, TcpFlags::SYN);
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    nothing(held);
    let banner = only(server.send(&mut bench, b"220 ready"));
    assert_eq!((banner.payload.as_slice(), banner.seq), (&b"220 ready"[..], client.ack));
    client.ack = client.ack.wrapping_add(9);
    let command = only(client.send(&mut bench, b"HELO"));
    assert_eq!(
        (command.payload.as_slice(), command.seq, command.ack),
        (&b"HELO"[..], server.ack, server.seq)
    );
}

#[test]
fn a_client_that_speaks_before_the_server_answers_is_heard() {
    let mut bench = bench();
    let mut client = Client::new(40000);
    let syn_ack = only(bench.receive(&client.syn()));
    client.take_syn_ack(&syn_ack);
    let syn = only(client.send(&mut bench, b"early"));
    nothing(client.send(&mut bench, b" bird"));
    let (_, held) = Server::from_syn(&syn).accept(&mut bench);
    assert_eq!(only(held).payload, b"early bird");
}

#[test]
fn a_client_that_leaves_before_the_server_answers_takes_its_fin_along() {
    let mut bench = bench();
    let mut client = Client::new(40000);
    let syn_ack = only(bench.receive(&client.syn()));
    client.take_syn_ack(&syn_ack);
    let syn = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    nothing(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    let fin = only(held);
    assert_eq!(
        (fin.flags, fin.payload.len(), fin.seq),
        (TcpFlags::FIN | TcpFlags::ACK, 0, server.ack)
    );
    server.ack = server.ack.wrapping_add(1);
    only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
    client.seq = client.seq.wrapping_add(1);
    client.ack = client.ack.wrapping_add(1);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::ActiveClose);
    bench.assert_all_returned();
}

#[test]
fn a_lost_ack_of_a_silent_client_is_asked_for_again() {
    let mut bench = bench();
    let client = Client::new(40000);
    let first = only(bench.receive(&client.syn()));
    let start = bench.now;
    let mut times = Vec::new();
    while bench.now - start < Duration::from_secs(20) {
        for again in bench.wait(Duration::from_millis(50)) {
            assert_eq!((again.flags, again.seq, again.ack), (first.flags, first.seq, first.ack));
            times.push((bench.now - start).as_millis());
        }
    }
    assert_eq!(times, [1000, 3000, 7000]);
    assert_eq!(bench.proxy.usage(), Usage::default());
    // While its cookie lives, its ACK is good.
    let mut client_again = Client::new(40001);
    let syn_ack = only(bench.receive(&client_again.syn()));
    only(bench.wait(Duration::from_millis(1050)));
    client_again.take_syn_ack(&syn_ack);
    only(bench.receive(&client_again.segment(TcpFlags::ACK, b"")));
    let repeated = bench.wait(Duration::from_millis(2100));
    assert!(
        repeated.iter().all(|segment| segment.flags == TcpFlags::SYN),
        "only the server is called again"
    );
}

#[test]
fn half_open_entries_are_bounded() {
    let mut bench = bench();
    let memory = bench.proxy.memory();
    for n in 0..1000_u16 {
        only(bench.receive(&Client::new(n).syn()));
    }
    assert_eq!(
        bench.proxy.usage().half_open,
        12,
        "three quarters of a quarter of the connections"
    );
    assert_eq!(bench.proxy.memory(), memory);
    bench.wait(Duration::from_secs(8));
    bench.assert_all_returned();
}

/// RFC 9293 3.10.7.4, second: a RST ends a connection in SYN-RECEIVED. The SYN-ACK of another handshake of the flow is sent again.
#[test]
fn a_syn_ack_that_was_reset_is_not_sent_again() {
    let mut bench = bench();
    let client = Client::new(40000);
    let syn_ack = only(bench.receive(&client.syn()));
    let reset = Segment {
        seq: syn_ack.ack,
        flags: TcpFlags::RST,
        window: 0,
        ..Segment::between(syn_ack.to, syn_ack.from)
    };
    nothing(bench.receive(&reset));
    nothing(bench.wait(Duration::from_secs(10)));
    let again = Client {
        seq: client.seq.wrapping_add(1 << 20),
        ..client
    };
    only(bench.receive(&again.syn()));
    assert!(!bench.wait(Duration::from_secs(10)).is_empty());
}

/// Each segment has a reason to be dropped, also one whose connection ends with its beginning.
#[test]
fn data_that_comes_with_the_handshake_is_counted_where_there_is_no_server() {
    let mut bench = bench();
    (0..8).for_each(|server| bench.standby.set_server(server, Service::Drained, Instant::ZERO));
    let mut client = Client::new(40000);
    let syn_ack = only(bench.receive(&client.syn()));
    client.take_syn_ack(&syn_ack);
    let before = bench.dropped(DropReason::Consumed);
    let reset = only(client.send(&mut bench, b"hello"));
    assert!(reset.flags.contains(TcpFlags::RST));
    assert_eq!(bench.dropped(DropReason::Consumed), before + 1);
}
