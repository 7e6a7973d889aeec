//! What is seen of the legs of watched connections: against what has passed.

use std::time::Duration;

use crate::harness::{Bench, CONFIG, Client, Server, bound_with_syn, close, nothing, only};
use e2d2::wire::tcp::TcpFlags;
use netfcts::legs::LegFigures;
use netfcts::record::{RecordFlags, SessionRecord};
use splice::tally::{Distribution, Histogram, LegTally};
use testkit::Segment;

/// [`CONFIG`], and one connection in so many is watched.
fn watching(one_in: u32, text: &str) -> String {
    text.replacen("[engine]", &format!("[engine]\nleg_sample = {one_in}"), 1)
}

fn bench() -> Bench {
    Bench::for_pools(&watching(1, CONFIG))
}

fn micros(bench: &mut Bench, time: u64) {
    nothing(bench.wait(Duration::from_micros(time)));
}

fn of(histogram: Histogram<'_>) -> (u64, u64) {
    let mut all = Distribution::default();
    all.add(histogram);
    (all.count(), all.sum())
}

/// A connection whose request is with the server.
fn asked(bench: &mut Bench, port: u16) -> (Client, Server) {
    let mut client = Client::new(port);
    client.connect(bench);
    let syn = only(client.send(bench, b"p hello"));
    let mut server = Server::from_syn(&syn);
    server.accept(bench);
    server.ack = server.ack.wrapping_add(7);
    (client, server)
}

fn client_ack(bench: &mut Bench, client: &mut Client, bytes: u32) {
    client.ack = client.ack.wrapping_add(bytes);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
}

/// The only record there is, with its legs.
fn record(bench: &mut Bench) -> SessionRecord {
    let mut records = bench.records();
    assert_eq!(records.len(), 1);
    let record = records.remove(0);
    assert!(record.flags().contains(RecordFlags::SAMPLED));
    record
}

fn figures(record: &SessionRecord) -> (LegFigures, LegFigures) {
    let legs = record.legs.expect("a watched connection");
    assert_eq!(legs.one_in.get(), 1);
    (legs.client, legs.server)
}

/// Server, pool and record tell the same.
fn assert_counted(bench: &Bench, figures: (LegFigures, LegFigures)) {
    let tally = bench.proxy.tally();
    let server = &tally.server(0).expect("a server").legs;
    let pool = &tally.pool(0).expect("a pool").legs;
    for legs in [server, pool] {
        assert_eq!(legs.connections.get(), 1);
        for (leg, figures) in [(&legs.client, figures.0), (&legs.server, figures.1)] {
            let LegTally {
                segments,
                retransmitted,
                out_of_order,
                duplicate,
                zero_windows,
                ..
            } = leg;
            assert_eq!(of(leg.rtt()).0, u64::from(figures.rtts));
            let counts = [segments, retransmitted, out_of_order, duplicate, zero_windows].map(|count| count.get());
            let expected = [
                figures.segments,
                figures.retransmitted,
                figures.out_of_order,
                figures.duplicate,
                figures.zero_windows.into(),
            ];
            assert_eq!(counts, expected.map(u64::from));
        }
    }
}

#[test]
fn both_legs_have_their_own_round_trip_times() {
    let mut bench = bench();
    let (mut client, mut server) = asked(&mut bench, 40_000);
    // The request, which the engine has sent, and its answer.
    micros(&mut bench, 900);
    only(server.send(&mut bench, b"answer"));
    micros(&mut bench, 35_000);
    client_ack(&mut bench, &mut client, 6);
    // What the client sends, and the ACK of it.
    only(client.send(&mut bench, b"more"));
    micros(&mut bench, 1_700);
    server.ack = server.ack.wrapping_add(4);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    close(&mut bench, &mut client, &mut server);
    let record = record(&mut bench);
    let (to_client, to_server) = figures(&record);
    // The FINs are timed, too, and take no time here.
    assert_eq!((to_client.rtts, to_client.least_rtt), (2, 0));
    assert_eq!(to_client.smoothed_rtt, 35_000 * 7 / 8);
    assert_eq!((to_server.rtts, to_server.least_rtt), (3, 0));
    assert_eq!(to_server.smoothed_rtt, (900 * 7 + 1_700) / 8 * 7 / 8);
    assert_eq!((to_client.segments, to_server.segments), (2, 2), "{record:?}");
    let tally = bench.proxy.tally();
    let legs = &tally.server(0).expect("a server").legs;
    assert_eq!(
        (of(legs.client.rtt()), of(legs.server.rtt())),
        ((2, 35_000), (3, 2_600))
    );
    assert_counted(&bench, (to_client, to_server));
    bench.assert_all_returned();
}

#[test]
fn what_was_lost_where_is_told_by_direction() {
    let mut bench = bench();
    let (mut client, mut server) = asked(&mut bench, 40_000);
    let data = |server: &Server, at: u32, len: usize| Segment {
        seq: server.seq.wrapping_add(at),
        ..server.segment(TcpFlags::PSH, &vec![7; len])
    };
    // Bytes 100 to 200 of the server are lost before us, those from 200 to 300 behind us.
    for at in [0, 200, 300] {
        only(bench.receive(&data(&server, at, 100)));
    }
    client_ack(&mut bench, &mut client, 100);
    only(bench.receive(&data(&server, 100, 100)));
    only(bench.receive(&data(&server, 200, 100)));
    client_ack(&mut bench, &mut client, 300);
    // The ACK is lost before the server.
    only(bench.receive(&data(&server, 300, 100)));
    server.seq = server.seq.wrapping_add(400);
    // The client's window closes twice, and is asked for meanwhile.
    for window in [0, 0, 12, 0, 502] {
        only(bench.receive(&Segment {
            window,
            ..client.segment(TcpFlags::ACK, b"")
        }));
    }
    // One byte of the client's comes again without an ACK of it.
    let again = client.segment(TcpFlags::PSH, b"x");
    only(bench.receive(&again));
    only(bench.receive(&again));
    client.seq = client.seq.wrapping_add(1);
    server.ack = server.ack.wrapping_add(1);
    // A keep-alive of either kind is nothing that was sent.
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    let keep_alive = Segment {
        seq: client.seq.wrapping_sub(1),
        ..client.segment(TcpFlags::ACK, b"x")
    };
    only(bench.receive(&keep_alive));
    close(&mut bench, &mut client, &mut server);
    let told = figures(&record(&mut bench));
    let (to_client, to_server) = told;
    assert_eq!((to_server.segments, to_server.retransmitted), (7, 1));
    assert_eq!(
        (to_server.out_of_order, to_server.duplicate, to_server.zero_windows),
        (1, 1, 0)
    );
    assert_eq!((to_client.segments, to_client.retransmitted), (3, 1));
    assert_eq!(
        (to_client.out_of_order, to_client.duplicate, to_client.zero_windows),
        (0, 0, 2)
    );
    assert_counted(&bench, told);
    bench.assert_all_returned();
}

/// RFC 6298 3: of what was sent again nobody knows which copy is acknowledged.
#[test]
fn what_was_sent_again_is_not_timed() {
    let mut bench = bench();
    let (mut client, mut server) = asked(&mut bench, 40_000);
    let answer = server.segment(TcpFlags::PSH, b"answer");
    only(bench.receive(&answer));
    micros(&mut bench, 30_000);
    only(bench.receive(&answer));
    server.seq = server.seq.wrapping_add(6);
    micros(&mut bench, 10);
    client_ack(&mut bench, &mut client, 6);
    // Nor is a segment that a stranger has made up, with the ACK of what nobody has sent.
    only(server.send(&mut bench, b"more"));
    micros(&mut bench, 10);
    let made_up = Segment {
        ack: client.ack.wrapping_add(5),
        ..client.segment(TcpFlags::ACK, b"")
    };
    bench.receive(&made_up);
    micros(&mut bench, 490);
    client_ack(&mut bench, &mut client, 4);
    close(&mut bench, &mut client, &mut server);
    let (to_client, _) = figures(&record(&mut bench));
    assert_eq!((to_client.rtts, to_client.smoothed_rtt), (2, 500 * 7 / 8));
    bench.assert_all_returned();
}

/// Seven in eight connections are not watched: their records have nothing, and the sums are of the others.
#[test]
fn one_connection_in_so_many_is_watched() {
    const CONNECTIONS: u16 = 400;
    let mut bench = Bench::for_pools(&watching(8, CONFIG));
    let mut records = Vec::new();
    for port in 0..CONNECTIONS {
        let (mut client, mut server) = asked(&mut bench, 40_000 + port);
        only(server.send(&mut bench, b"answer"));
        client_ack(&mut bench, &mut client, 6);
        close(&mut bench, &mut client, &mut server);
        records.extend(bench.records());
    }
    let watched: Vec<_> = records.iter().filter_map(|record| record.legs).collect();
    assert_eq!(records.len(), usize::from(CONNECTIONS));
    assert!((20..=90).contains(&watched.len()), "{}", watched.len());
    assert!(
        watched
            .iter()
            .all(|legs| legs.one_in.get() == 8 && legs.server.segments == 2)
    );
    let tally = bench.proxy.tally();
    let legs = &tally.pool(0).expect("a pool").legs;
    let all = watched.len() as u64;
    assert_eq!((legs.connections.get(), legs.server.segments.get()), (all, 2 * all));
    bench.assert_all_returned();
}

#[test]
fn nobody_is_watched_if_nobody_asks() {
    let mut bench = Bench::for_pools(&watching(0, CONFIG));
    let (mut client, mut server) = asked(&mut bench, 40_000);
    only(server.send(&mut bench, b"answer"));
    client_ack(&mut bench, &mut client, 6);
    close(&mut bench, &mut client, &mut server);
    assert_eq!(bench.records()[0].legs, None);
    bench.assert_all_returned();
}

#[test]
fn a_reload_says_how_many_are_watched_from_then_on() {
    let mut bench = Bench::for_pools(&watching(1_000_000, CONFIG));
    for (port, one_in) in [(40_000, None), (40_001, Some(1)), (40_002, None)] {
        let (mut client, mut server) = asked(&mut bench, port);
        only(server.send(&mut bench, b"answer"));
        // What the open one is: its end is not the reload's.
        let next = if port == 40_000 { 1 } else { 0 };
        bench.reload(&watching(next, CONFIG), |_| None);
        client_ack(&mut bench, &mut client, 6);
        close(&mut bench, &mut client, &mut server);
        let legs = bench.records().remove(0).legs;
        assert_eq!(legs.map(|legs| legs.one_in.get()), one_in, "{port}");
        assert!(legs.is_none_or(|legs| legs.server.segments == 2), "{legs:?}");
    }
    bench.assert_all_returned();
}

/// The handshake of a client that has timestamps, and of one whose SYN was passed on.
#[test]
fn how_long_the_client_takes_for_its_ack_is_known_of_all() {
    let mut bench = Bench::for_pools(&watching(0, CONFIG));
    for (port, ms) in [(40_000, 0), (40_001, 35), (40_002, 150)] {
        let mut client = Client::new(port);
        let syn_ack = only(bench.receive(&client.syn()));
        client.take_syn_ack(&syn_ack);
        micros(&mut bench, ms * 1_000);
        nothing(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    }
    let tally = bench.proxy.tally();
    assert_eq!(of(tally.listener(0).expect("a listener").handshake()), (3, 185_000));

    let mut bench = Bench::for_pools(&watching(1, &bound_with_syn("")));
    let mut client = Client::new(40_000);
    let mut server = Server::from_syn(&only(bench.receive(&client.syn())));
    server.shake(&mut bench, &mut client);
    micros(&mut bench, 12_345);
    only(client.send(&mut bench, b"hello"));
    micros(&mut bench, 800);
    server.ack = server.ack.wrapping_add(5);
    only(server.send(&mut bench, b"answer"));
    client_ack(&mut bench, &mut client, 6);
    close(&mut bench, &mut client, &mut server);
    let tally = bench.proxy.tally();
    assert_eq!(of(tally.listener(0).expect("a listener").handshake()), (1, 12_345));
    let told = figures(&record(&mut bench));
    assert_eq!((told.0.segments, told.1.segments), (2, 2));
    assert_eq!(told.1.smoothed_rtt, 800 * 7 / 8);
    assert_counted(&bench, told);
    bench.assert_all_returned();
}
