//! Clients that have bytes held and say no more: the pool is shared, and who has waited longest gives way.

use crate::harness::{Bench, CONFIG, Client, Server, only};
use e2d2::wire::tcp::TcpFlags;
use netfcts::{Cause, Side};
use splice::drop_reason::DropReason;
use std::time::Duration;
use testkit::{Segment, Station};

/// A MiB is 56 chunks, each of 16 KiB and what is known of its 32 blocks of 512 bytes; at fifteen sixteenths someone gives way.
const MARK: usize = 56 * 32 * 15 / 16;

/// A quarter of them.
const SHARE: usize = 56 * 32 / 4;

const SETTING: &str = "max_connections = 4096\nreassembly_memory = 1";

fn bench() -> Bench {
    Bench::with_config(&CONFIG.replace("max_connections = 64", SETTING))
}

/// A client of another host.
fn client(address: &str, port: u16) -> Client {
    let v6 = address.contains(':');
    let mut client = if v6 { Client::new_v6(port) } else { Client::new(port) };
    let text = if v6 {
        format!("[{address}]:{port}")
    } else {
        format!("{address}:{port}")
    };
    client.me = Station::new(1, &text);
    client
}

/// Lets a host hold something on connections from these ports; returns how many were refused.
fn hoard(bench: &mut Bench, address: &str, ports: std::ops::Range<u16>, payload: &[u8]) -> usize {
    let refusals =
        |bench: &Bench| bench.dropped(DropReason::ReassemblyQuota) + bench.dropped(DropReason::ReassemblyFull);
    let before = refusals(bench);
    for port in ports {
        let mut client = client(address, port);
        client.connect(bench);
        for piece in payload.chunks(1024) {
            client.send(bench, piece);
        }
    }
    (refusals(bench) - before) as usize
}

/// An honest client of another host is served.
#[track_caller]
fn assert_served(bench: &mut Bench, address: &str, port: u16, request: &[u8]) {
    let mut client = client(address, port);
    client.connect(bench);
    let mut sent = Vec::new();
    for piece in request.chunks(1024) {
        sent = client.send(bench, piece);
        sent.retain(|segment| segment.flags == TcpFlags::SYN);
    }
    let (_, held) = Server::from_syn(&only(sent)).accept(bench);
    let got: Vec<u8> = held.into_iter().flat_map(|segment| segment.payload).collect();
    assert_eq!(got, request);
}

#[test]
fn one_source_has_its_share_and_no_more() {
    let mut bench = bench();
    assert_eq!(hoard(&mut bench, "10.0.0.1", 1000..1000 + SHARE as u16, b"?"), 0);
    assert_eq!(bench.proxy.usage().held, SHARE);
    assert_eq!(hoard(&mut bench, "10.0.0.1", 5000..5010, b"?"), 10);
    assert_eq!(bench.proxy.usage().held, SHARE);
    assert_eq!(
        bench.dropped(DropReason::ConnectionEvicted),
        0,
        "a share alone presses nobody"
    );
    for n in 0..20 {
        assert_served(&mut bench, "10.0.0.2", 2000 + n, b"0 honest");
    }
    // What was given back can be had again.
    bench.wait(Duration::from_secs(31));
    assert_eq!(bench.proxy.usage().held, 0);
    assert_eq!(hoard(&mut bench, "10.0.0.1", 20_000..20_000 + SHARE as u16, b"?"), 0);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn at_the_mark_the_longest_waiting_gives_way() {
    let mut bench = bench();
    let first = {
        let mut client = client("10.0.0.1", 999);
        client.connect(&mut bench);
        only(client.send(&mut bench, b"?"));
        client
    };
    for host in 1..=3 {
        hoard(
            &mut bench,
            &format!("10.0.0.{host}"),
            1000..1000 + SHARE as u16 - 1,
            b"?",
        );
    }
    let rest = MARK - 1 - 3 * (SHARE - 1);
    hoard(&mut bench, "10.0.0.5", 1000..1000 + rest as u16, b"?");
    assert_eq!(bench.proxy.usage().held, MARK);
    assert_eq!(bench.dropped(DropReason::ConnectionEvicted), 0);
    let mut late = client("10.0.0.4", 1000);
    late.connect(&mut bench);
    let sent = late.send(&mut bench, b"?");
    let (resets, acks): (Vec<Segment>, _) = sent.into_iter().partition(|s| s.flags.contains(TcpFlags::RST));
    assert_eq!(only(acks).to, late.me, "the late one is heard");
    let reset = only(resets);
    assert_eq!((reset.to, reset.seq), (first.me, first.ack));
    let record = bench.records()[0];
    assert_eq!((record.client_port, record.cause(Side::Client)), (999, Cause::HeldFull));
    assert_eq!(bench.dropped(DropReason::ConnectionEvicted), 1);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn honest_connections_get_through_while_many_hoard() {
    let mut bench = bench();
    for round in 0..4_u16 {
        for host in 0..5 {
            let ports = 1000 + round * 1000..1000 + round * 1000 + 440;
            hoard(&mut bench, &format!("10.0.0.1{host}"), ports, b"?");
        }
        assert_served(&mut bench, "10.0.0.2", 1000 + round, b"0 honest");
        let long = [&b"?"[..], &[b'x'; 5000], b"\n"].concat();
        assert_served(&mut bench, "10.0.0.2", 2000 + round, &long);
    }
    assert_eq!(bench.dropped(DropReason::ReassemblyFull), 0);
    assert!(bench.dropped(DropReason::ConnectionEvicted) > 1000);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn long_requests_use_the_same_memory() {
    let mut bench = bench();
    let long = [&b"?"[..], &[b'x'; 5000]].concat();
    for host in 0..5 {
        assert_eq!(hoard(&mut bench, &format!("10.0.0.1{host}"), 1000..1013, &long), 0);
    }
    assert_eq!(
        bench.dropped(DropReason::ConnectionEvicted),
        5 * 13 - 52,
        "fifteen sixteenths of 56 chunks"
    );
    let request = [&long[..], b"\n"].concat();
    assert_served(&mut bench, "10.0.0.2", 1000, &request);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn a_network_of_ipv6_is_one_source() {
    let mut bench = bench();
    assert_eq!(hoard(&mut bench, "fd00::1", 1000..1200, b"?"), 0);
    assert_eq!(hoard(&mut bench, "fd00::2", 1000..1000 + (SHARE - 200) as u16, b"?"), 0);
    assert_eq!(hoard(&mut bench, "fd00::3", 1000..1005, b"?"), 5);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn what_is_retransmitted_to_a_server_does_not_wait() {
    let mut bench = bench();
    let mut client = client("10.0.0.2", 1000);
    client.connect(&mut bench);
    only(client.send(&mut bench, b"?half"));
    let syn = only(client.send(&mut bench, b"\n"));
    let server = Server::from_syn(&syn);
    only(
        bench
            .receive(&server.syn_ack())
            .into_iter()
            .filter(|s| !s.payload.is_empty())
            .collect(),
    );
    for host in 0..4 {
        hoard(&mut bench, &format!("10.0.0.1{host}"), 1000..1440, b"?");
    }
    assert!(bench.dropped(DropReason::ConnectionEvicted) > 0);
    assert!(
        bench
            .records()
            .iter()
            .all(|record| record.client_port != 1000 || record.client() != client.me.address.ip())
    );
    bench.finish();
    bench.assert_all_returned();
}

const BEHIND: &str = "proxy_protocol = { accept = \"required\", from = [\"10.0.0.1\"] }\n";

/// A balancer opens a connection for a client of its own and passes on what that one says.
fn balance(bench: &mut Bench, port: u16, source: &str, payload: &[u8]) -> (Client, Vec<Segment>) {
    let mut balancer = client("10.0.0.1", port);
    balancer.connect(bench);
    let header = format!("PROXY TCP4 {source} 198.51.100.9 5000 443\r\n");
    let sent = balancer.send(bench, &[header.as_bytes(), payload].concat());
    (balancer, sent)
}

/// A bench whose web clients come through a balancer, and all that the client 192.0.2.66 may have held: far from what
/// presses anyone.
fn hoarded_behind_balancer() -> (Bench, Vec<Client>) {
    let text = CONFIG.replace("max_connections = 64", SETTING).replacen(
        "name = \"web\"\n",
        &format!("name = \"web\"\n{BEHIND}"),
        1,
    );
    let mut bench = Bench::with_config(&text);
    let long = [&b"?"[..], &[b'x'; 1200]].concat();
    let hoarders = (0..SHARE as u16 / 8).map(|n| {
        let (mut hoarder, sent) = balance(&mut bench, 1000 + n, "192.0.2.66", &long);
        assert_eq!(only(sent).ack, hoarder.seq);
        only(hoarder.send(&mut bench, &long));
        hoarder
    });
    let hoarders = hoarders.collect();
    assert_eq!(bench.dropped(DropReason::ReassemblyQuota), 0);
    (bench, hoarders)
}

#[test]
fn behind_a_balancer_each_client_has_a_share_of_its_own() {
    let (mut bench, hoarders) = hoarded_behind_balancer();
    // No more of that one: the header is taken, what is behind it is not acknowledged.
    let (hoarder, sent) = balance(&mut bench, 5000, "192.0.2.66", b"?");
    assert_eq!(only(sent).ack, hoarder.seq.wrapping_sub(1));
    assert_eq!(bench.proxy.usage().held, hoarders.len());
    assert_eq!(bench.dropped(DropReason::ReassemblyQuota), 1);
    let again = Segment {
        seq: hoarder.seq.wrapping_sub(1),
        ..hoarder.segment(TcpFlags::PSH, b"?")
    };
    assert!(bench.receive(&again).is_empty());
    assert_eq!(bench.dropped(DropReason::ReassemblyQuota), 2);
    // The others behind the same balancer are served.
    for n in 0..20 {
        let (_, mut sent) = balance(&mut bench, 6000 + n, "192.0.2.7", b"0 honest");
        let syn = sent.pop().expect("a SYN");
        let (_, held) = Server::from_syn(&syn).accept(&mut bench);
        assert_eq!(only(held).payload, b"0 honest");
    }
    // What was given back can be had again.
    bench.wait(Duration::from_secs(31));
    assert_eq!(bench.proxy.usage().held, 0);
    let (last, sent) = balance(&mut bench, 7000, "192.0.2.66", b"?");
    assert_eq!(only(sent).ack, last.seq);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn what_a_used_up_share_made_us_forget_is_taken_when_there_is_room() {
    let (mut bench, hoarders) = hoarded_behind_balancer();
    // With its FIN: that is forgotten as well, or the request would seem to be at its end.
    let header = b"PROXY TCP4 192.0.2.66 198.51.100.9 5000 443\r\n";
    let mut late = client("10.0.0.1", 5000);
    late.connect(&mut bench);
    let whole = [&header[..], b"0 late"].concat();
    let ack = only(bench.receive(&late.segment(TcpFlags::FIN, &whole)));
    late.seq = late.seq.wrapping_add(header.len() as u32);
    assert_eq!((ack.ack, ack.flags), (late.seq, TcpFlags::ACK));
    bench.receive(&hoarders[0].segment(TcpFlags::RST, b""));
    let syn = only(bench.receive(&late.segment(TcpFlags::FIN, b"0 late")));
    let (_, held) = Server::from_syn(&syn).accept(&mut bench);
    let last = only(held);
    assert_eq!(last.payload, b"0 late");
    assert!(last.flags.contains(TcpFlags::FIN));
    bench.finish();
    bench.assert_all_returned();
}
