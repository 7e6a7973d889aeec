//! A router towards the clients takes the place of another: connections go on by the new one.

use crate::harness::{Bench, Client, Server, only, spliced};
use e2d2::wire::MacAddr;
use e2d2::wire::tcp::TcpFlags;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

const NEW: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x77]);
const SECOND: Duration = Duration::from_millis(1024);

fn by(mac: MacAddr, segment: Segment) -> Segment {
    Segment {
        from: testkit::Station { mac, ..segment.from },
        ..segment
    }
}

/// Where the core sends what the server says next.
fn way(bench: &mut Bench, server: &mut Server) -> MacAddr {
    only(server.send(bench, b"y")).to.mac
}

#[test]
fn an_established_connection_follows_its_client_to_another_router() {
    let mut bench = Bench::new();
    let (client, mut server) = spliced(&mut bench, 40000);
    assert_eq!(way(&mut bench, &mut server), client.me.mac);
    only(bench.receive(&by(NEW, client.segment(TcpFlags::ACK, b""))));
    assert_eq!(way(&mut bench, &mut server), NEW);
}

#[test]
fn so_does_one_that_waits_for_its_server() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    client.me.mac = NEW;
    let syn = only(client.send(&mut bench, b"0 hello"));
    let mut server = Server::from_syn(&syn);
    server.accept(&mut bench);
    server.ack = server.ack.wrapping_add(7);
    assert_eq!(only(bench.receive(&server.segment(TcpFlags::ACK, b""))).to.mac, NEW);
}

#[test_case(|s| Segment { flags: TcpFlags::SYN, ..s }; "SYN")]
#[test_case(|s| Segment { flags: TcpFlags::RST, seq: s.seq.wrapping_add(9), ..s }; "RST in the window")]
#[test_case(|s| Segment { seq: s.seq.wrapping_add(1 << 30), ..s }; "beyond the window")]
#[test_case(|s| Segment { seq: s.seq.wrapping_sub(1 << 30), ..s }; "before the window")]
#[test_case(|s| Segment { ack: s.ack.wrapping_add(1), ..s }; "ACK of what was not sent")]
#[test_case(|s| Segment { ack: s.ack.wrapping_sub(1 << 30), ..s }; "ACK of long ago")]
fn nobody_else_moves_it(change: fn(Segment) -> Segment) {
    let mut bench = Bench::new();
    let (client, mut server) = spliced(&mut bench, 40000);
    let guess = change(client.segment(TcpFlags::ACK, b"x"));
    bench.receive(&by(NEW, guess));
    assert_eq!(way(&mut bench, &mut server), client.me.mac);
}

#[test]
fn at_most_once_a_second() {
    let mut bench = Bench::new();
    let (client, mut server) = spliced(&mut bench, 40000);
    let ack = client.segment(TcpFlags::ACK, b"");
    let mut moved = 0;
    let mut last = client.me.mac;
    // Two routers take turns.
    for turn in 0..100 {
        let mac = if turn % 2 == 0 { NEW } else { client.me.mac };
        only(bench.receive(&by(mac, ack.clone())));
        let now = way(&mut bench, &mut server);
        moved += usize::from(now != last);
        last = now;
        bench.now += SECOND / 10;
    }
    assert!((5..=11).contains(&moved), "{moved} times in ten seconds");
}

#[test]
fn a_resting_connection_answers_by_the_last_router() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    only(bench.receive(&by(NEW, client.segment(TcpFlags::ACK, b""))));
    client.me.mac = NEW;
    crate::harness::close(&mut bench, &mut client, &mut server);
    assert_eq!(bench.proxy.usage().connections, 0);
    server.seq = server.seq.wrapping_sub(1);
    assert_eq!(only(bench.receive(&server.segment(TcpFlags::FIN, b""))).to.mac, NEW);
}
