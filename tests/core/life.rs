//! The life of a connection when nothing goes wrong: the seven packets each way.

use crate::harness::{Bench, CLIENT_ISN, Client, SERVER_ISN, Server, nothing, only};
use e2d2::wire::tcp::TcpFlags;
use netfcts::{Cause, Side, State};
use testkit::Segment;

#[test]
fn seven_packets_each_way() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);

    // The first payload names server 1.
    let syn = only(client.send(&mut bench, b"1 hello"));
    assert_eq!(syn.to.address, "10.1.0.101:8080".parse().expect("address"));
    assert_eq!(
        syn.from.address.ip(),
        "10.1.0.9".parse::<std::net::IpAddr>().expect("address")
    );
    assert_eq!(syn.options.mss, Some(1460));
    assert_eq!(syn.options.window_scale, Some(7));
    assert!(syn.options.sack_permitted);
    let mut server = Server::from_syn(&syn);
    let (ack, held) = server.accept(&mut bench);
    assert_eq!(ack.options.timestamps, Some((client.tsval, 90_000)));
    let payload = only(held);
    assert_eq!(payload.payload, b"1 hello");
    assert_eq!((payload.seq, payload.ack), (server.ack, server.seq));
    assert_eq!(payload.flags, TcpFlags::ACK | TcpFlags::PSH);

    // The answer and the server's FIN in one segment.
    server.ack = server.ack.wrapping_add(7);
    let to_client = only(bench.receive(&server.segment(TcpFlags::FIN | TcpFlags::PSH, b"answer")));
    assert_eq!(to_client.payload, b"answer");
    assert_eq!((to_client.seq, to_client.ack), (client.ack, client.seq));
    assert_eq!(to_client.from, client.proxy);
    assert_eq!(to_client.hop_limit, 63);
    server.seq = server.seq.wrapping_add(7);
    client.ack = client.ack.wrapping_add(7);

    // The client's FIN acknowledges the server's; the server's last ACK ends it.
    let fin = only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    assert_eq!((fin.seq, fin.ack), (server.ack, server.seq));
    client.seq = client.seq.wrapping_add(1);
    server.ack = server.ack.wrapping_add(1);
    let last = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!((last.seq, last.ack), (client.ack, client.seq));

    let usage = bench.proxy.usage();
    assert_eq!((usage.connections, usage.time_wait, usage.flows), (0, 1, 2));
    let records = bench.records();
    assert_eq!(records.len(), 1);
    let record = &records[0];
    assert_eq!((record.bytes_to_server(), record.bytes_to_client()), (7, 6));
    assert_eq!((record.server, record.client_port), (1, 40000));
    assert_eq!(record.cause(Side::Client), Cause::PassiveClose);
    assert_eq!(record.cause(Side::Server), Cause::ActiveClose);
    let states = |side| {
        record
            .changes()
            .filter(|c| c.side == side)
            .map(|c| c.state)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        states(Side::Client),
        [
            State::SynSent,
            State::Established,
            State::Payload,
            State::LastAck,
            State::Closed
        ]
    );
    assert_eq!(
        states(Side::Server),
        [
            State::SynReceived,
            State::Established,
            State::Answered,
            State::FinWait1,
            State::Closed
        ]
    );
    bench.assert_all_returned();
}

#[test]
fn works_over_ipv6_and_wraps() {
    let mut bench = Bench::new();
    let mut client = Client::new_v6(40001);
    assert_eq!(client.seq, CLIENT_ISN);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"4 hello"));
    let mut server = Server::from_syn(&syn);
    server.isn = u32::MAX;
    let (_, held) = server.accept(&mut bench);
    assert_eq!(only(held).payload, b"4 hello");
    let answer = only(server.send(&mut bench, b"answer"));
    assert_eq!((answer.seq, answer.payload.as_slice()), (client.ack, &b"answer"[..]));
    assert_ne!(SERVER_ISN, server.isn);
    nothing(bench.wait(std::time::Duration::from_secs(1)));
}

/// Review: bytes that were held, and bytes that their sender repeats, were counted twice.
#[test]
fn a_record_counts_each_byte_once_however_often_it_is_sent() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let hello = client.segment(TcpFlags::PSH, b"0 hello");
    let syn = only(client.send(&mut bench, b"0 hello"));
    // Held behind a hole.
    let fourth = Segment {
        seq: client.seq.wrapping_add(10),
        ..client.segment(TcpFlags::PSH, b"four.")
    };
    nothing(bench.receive(&fourth));
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    assert_eq!(held.len(), 2);
    // What was held comes again, and what was missing.
    only(bench.receive(&hello));
    only(bench.receive(&fourth));
    assert_eq!(only(client.send(&mut bench, b"two..three")).payload, b"two..three");
    client.seq = client.seq.wrapping_add(5);
    // 22 bytes so far. The last 6 with the FIN are lost behind us and come again, in pieces and as a whole.
    let end = client.segment(TcpFlags::FIN, b"ending");
    only(bench.receive(&end));
    only(bench.receive(&client.segment(TcpFlags::PSH, b"end")));
    only(bench.receive(&end));
    client.seq = client.seq.wrapping_add(7);
    server.ack = client.seq.wrapping_sub(hello.seq).wrapping_add(server.ack);
    for payload in [&b"answer"[..], b"", b"more"] {
        let segment = server.segment(TcpFlags::PSH, payload);
        only(bench.receive(&segment));
        only(bench.receive(&segment));
        server.seq = server.seq.wrapping_add(payload.len() as u32);
    }
    // The FIN overtakes the last byte, which the number behind it gave away before.
    let last = server.segment(TcpFlags::PSH, b"!");
    server.seq = server.seq.wrapping_add(1);
    let fin = server.segment(TcpFlags::FIN, b"");
    only(bench.receive(&fin));
    only(bench.receive(&last));
    only(bench.receive(&fin));
    client.ack = server
        .seq
        .wrapping_sub(SERVER_ISN.wrapping_add(1))
        .wrapping_add(client.ack)
        .wrapping_add(1);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.proxy.usage().connections, 0);
    let record = &bench.records()[0];
    assert_eq!((record.bytes_to_server(), record.bytes_to_client()), (28, 11));
}
