//! Listeners that bind at the handshake: the server speaks first.

use crate::harness::{Bench, CONFIG, Client, Server, nothing, only};
use e2d2::wire::tcp::TcpFlags;
use netfcts::{Cause, Side};
use splice::Usage;
use std::time::Duration;

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
