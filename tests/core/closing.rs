//! The end of a connection: every order of FINs, RSTs, late segments, silence.

use crate::harness::{Bench, Client, Server, nothing, only, spliced};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::{Cause, Side};
use splice::drop_reason::DropReason;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

#[derive(Clone, Copy, Debug)]
enum Step {
    ClientFin,
    ServerFin,
    ClientAcks,
    ServerAcks,
}
use Step::{ClientAcks, ClientFin, ServerAcks, ServerFin};

#[test_case(&[ClientFin, ServerAcks, ServerFin, ClientAcks], Cause::ActiveClose; "client first")]
#[test_case(&[ServerFin, ClientAcks, ClientFin, ServerAcks], Cause::PassiveClose; "server first")]
#[test_case(&[ClientFin, ServerFin, ClientAcks], Cause::ActiveClose; "the server's FIN acknowledges the client's")]
#[test_case(&[ServerFin, ClientFin, ServerAcks], Cause::PassiveClose; "the client's FIN acknowledges the server's")]
fn every_order_of_fins_ends_it(steps: &[Step], cause: Cause) {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    for step in steps {
        assert_eq!(bench.proxy.usage().connections, 1, "still open before {step:?}");
        match step {
            ClientFin => {
                let fin = only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
                assert!(fin.flags.contains(TcpFlags::FIN) && fin.to == server.me);
                client.seq = client.seq.wrapping_add(1);
                server.ack = server.ack.wrapping_add(1);
            }
            ServerFin => {
                let fin = only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
                assert!(fin.flags.contains(TcpFlags::FIN) && fin.to == client.me);
                server.seq = server.seq.wrapping_add(1);
                client.ack = client.ack.wrapping_add(1);
            }
            ClientAcks => drop(only(bench.receive(&client.segment(TcpFlags::ACK, b"")))),
            ServerAcks => drop(only(bench.receive(&server.segment(TcpFlags::ACK, b"")))),
        }
    }
    assert_eq!((bench.proxy.usage().connections, bench.proxy.usage().time_wait), (0, 1));
    assert_eq!(bench.records()[0].cause(Side::Client), cause);
    bench.assert_all_returned();
}

#[test]
fn simultaneous_close_ends_when_both_fins_are_acknowledged() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    let (from_client, from_server) = (client.segment(TcpFlags::FIN, b""), server.segment(TcpFlags::FIN, b""));
    only(bench.receive(&from_client));
    only(bench.receive(&from_server));
    for number in [&mut client.seq, &mut client.ack, &mut server.seq, &mut server.ack] {
        *number = number.wrapping_add(1);
    }
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.proxy.usage().connections, 1);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.proxy.usage().connections, 0);
    bench.assert_all_returned();
}

#[test]
fn an_ack_of_the_data_before_a_fin_does_not_close() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    only(bench.receive(&client.segment(TcpFlags::FIN | TcpFlags::PSH, b"last words")));
    client.seq = client.seq.wrapping_add(11);
    server.ack = server.ack.wrapping_add(10);
    only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
    server.seq = server.seq.wrapping_add(1);
    client.ack = client.ack.wrapping_add(1);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(
        bench.proxy.usage().connections,
        1,
        "the client's FIN is not acknowledged"
    );
    server.ack = server.ack.wrapping_add(1);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.proxy.usage().connections, 0);
}

#[test]
fn a_half_closed_connection_carries_data_for_hours() {
    let mut bench = Bench::with_config(&format!(
        "{}\n[timeouts]\nhalf_close = \"12h\"\n",
        crate::harness::CONFIG
    ));
    let (mut client, mut server) = spliced(&mut bench, 40000);
    only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    client.seq = client.seq.wrapping_add(1);
    server.ack = server.ack.wrapping_add(1);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    for _ in 0..3 {
        nothing(bench.wait(Duration::from_secs(3 * 3600)));
        let data = only(server.send(&mut bench, b"more"));
        assert_eq!((data.payload.as_slice(), data.seq), (&b"more"[..], client.ack));
        client.ack = client.ack.wrapping_add(4);
    }
}

/// Whichever of the two times is the shorter.
#[test]
fn a_half_closed_connection_ends_when_its_own_time_is_over() {
    for (idle, half_close, last) in [("1h", "10m", 600), ("10m", "1h", 3600), ("30m", "30m", 1800)] {
        let timeouts = format!("[timeouts]\nidle = \"{idle}\"\nhalf_close = \"{half_close}\"\n");
        let mut bench = Bench::with_config(&format!("{}\n{timeouts}", crate::harness::CONFIG));
        let (client, mut server) = spliced(&mut bench, 40000);
        nothing(bench.wait(Duration::from_secs(300)));
        only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
        server.ack = server.ack.wrapping_add(1);
        nothing(bench.wait(Duration::from_secs(100)));
        only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
        nothing(bench.wait(Duration::from_secs(last - 1)));
        assert_eq!(
            bench.proxy.usage().connections,
            1,
            "idle {idle}, half_close {half_close}"
        );
        assert!(!bench.wait(Duration::from_secs(3)).is_empty(), "both are told");
        assert_eq!(
            bench.proxy.usage().connections,
            0,
            "idle {idle}, half_close {half_close}"
        );
        bench.finish();
        bench.assert_all_returned();
    }
}

#[test]
fn late_segments_are_still_translated_after_the_end() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    let client_fin = client.segment(TcpFlags::FIN, b"");
    let first = only(bench.receive(&client_fin));
    client.seq = client.seq.wrapping_add(1);
    server.ack = server.ack.wrapping_add(1);
    let server_fin = server.segment(TcpFlags::FIN, b"");
    only(bench.receive(&server_fin));
    client.ack = client.ack.wrapping_add(1);
    server.seq = server.seq.wrapping_add(1);
    let last_ack = client.segment(TcpFlags::ACK, b"");
    only(bench.receive(&last_ack));
    assert_eq!(bench.proxy.usage().connections, 0);
    // The last ACK was lost beyond us: the server repeats its FIN, the client its ACK.
    let again = only(bench.receive(&server_fin));
    assert_eq!((again.to, again.flags), (client.me, server_fin.flags));
    let again = only(bench.receive(&last_ack));
    assert_eq!((again.to, again.seq), (server.me, server.ack));
    let again = only(bench.receive(&client_fin));
    assert_eq!(again, first);
    // When the rest is over, nobody knows it any more.
    bench.wait(Duration::from_secs(5));
    let reset = only(bench.receive(&server_fin));
    assert_eq!((reset.to, reset.flags), (server.me, TcpFlags::RST));
}

#[test]
fn a_new_connection_from_a_resting_client_port_gets_a_cookie_and_lives() {
    let mut bench = Bench::new();
    let (client, _) = spliced(&mut bench, 40000);
    only(bench.receive(&Segment {
        flags: TcpFlags::RST,
        ..client.segment(TcpFlags::RST, b"")
    }));
    assert_eq!(bench.proxy.usage().time_wait, 1);
    let mut next = Client::new(40000);
    next.seq = client.seq.wrapping_add(100_000);
    next.connect(&mut bench);
    let syn = only(next.send(&mut bench, b"0 again"));
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    assert_eq!(only(held).payload, b"0 again");
    assert_eq!((bench.proxy.usage().connections, bench.proxy.usage().time_wait), (1, 1));
    bench.wait(Duration::from_secs(5));
    assert_eq!((bench.proxy.usage().connections, bench.proxy.usage().flows), (1, 2));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn a_reset_with_the_expected_number_ends_both() {
    for from_client in [true, false] {
        let mut bench = Bench::new();
        let (client, server) = spliced(&mut bench, 40000);
        let (reset, other, cause) = match from_client {
            true => (client.segment(TcpFlags::RST, b""), server.me, Cause::ActiveRst),
            false => (server.segment(TcpFlags::RST, b""), client.me, Cause::PassiveRst),
        };
        let passed = only(bench.receive(&Segment {
            flags: TcpFlags::RST | TcpFlags::ACK,
            ..reset
        }));
        assert_eq!(passed.to, other);
        assert_eq!(bench.records()[0].cause(Side::Client), cause);
        bench.assert_all_returned();
    }
}

#[test_case(1, true; "first in the window")]
#[test_case(60_000, true; "last in the window")]
#[test_case(70_000, false; "beyond the window")]
#[test_case(u32::MAX, false; "before the window")]
fn a_reset_in_the_window_is_the_receivers_affair(offset: u32, passes: bool) {
    let mut bench = Bench::new();
    let (client, server) = spliced(&mut bench, 40000);
    let guess = Segment {
        seq: client.seq.wrapping_add(offset),
        flags: TcpFlags::RST,
        ..client.segment(TcpFlags::RST, b"")
    };
    let sent = bench.receive(&guess);
    let (passed, probes): (Vec<Segment>, Vec<Segment>) = sent.into_iter().partition(|segment| segment.to == server.me);
    assert_eq!(passed.len(), usize::from(passes));
    assert_eq!(bench.proxy.usage().connections, 1, "it changes nothing here");
    assert_eq!(probes.len(), usize::from(passes));
    for probe in probes {
        // What a live client answers with an ACK, and a dead one with a RST of this very number.
        assert_eq!(
            (probe.to, probe.flags, probe.payload.len()),
            (client.me, TcpFlags::ACK, 0)
        );
        assert_eq!((probe.seq, probe.ack), (client.ack.wrapping_sub(1), client.seq));
    }
}

#[test]
fn a_reset_ahead_of_lost_data_ends_the_connection_when_its_sender_is_asked() {
    for side in [Side::Client, Side::Server] {
        let mut bench = Bench::new();
        let (client, server) = spliced(&mut bench, 40000);
        let (me, seq) = match side {
            Side::Client => (client.segment(TcpFlags::ACK, b""), client.seq),
            Side::Server => (server.segment(TcpFlags::ACK, b""), server.seq),
        };
        let reset = |seq: u32| Segment {
            seq,
            ack: 0,
            flags: TcpFlags::RST,
            options: TcpOptions::NONE,
            ..me.clone()
        };
        // A segment of 100 bytes was lost before it.
        let sent = bench.receive(&reset(seq.wrapping_add(100)));
        let probe = sent.iter().find(|segment| segment.to == me.from).expect("a probe");
        // RFC 9293 3.10.7.1: CLOSED answers with the number that was acknowledged.
        only(bench.receive(&reset(probe.ack)));
        assert_eq!(bench.proxy.usage().connections, 0);
        bench.assert_all_returned();
    }
}

#[test]
fn who_answers_the_question_after_a_guessed_reset_lives_on() {
    let mut bench = Bench::new();
    let (mut client, server) = spliced(&mut bench, 40000);
    let guess = Segment {
        seq: client.seq.wrapping_add(100),
        flags: TcpFlags::RST,
        ..client.segment(TcpFlags::RST, b"")
    };
    for _ in 0..3 {
        assert_eq!(bench.receive(&guess).len(), 2);
        // RFC 5961 10: the next question is a second away.
        assert_eq!(bench.receive(&guess).len(), 1);
        only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
        bench.wait(Duration::from_millis(1024));
    }
    bench.wait(Duration::from_secs(600));
    assert_eq!(only(client.send(&mut bench, b"alive")).to, server.me);
}

#[test]
fn a_blind_fin_does_not_close() {
    let mut bench = Bench::new();
    let (client, server) = spliced(&mut bench, 40000);
    let blind = Segment {
        seq: client.seq.wrapping_add(1 << 20),
        ..client.segment(TcpFlags::FIN, b"")
    };
    bench.receive(&blind);
    let mut server = server;
    server.ack = server.ack.wrapping_add(1);
    bench.receive(&server.segment(TcpFlags::FIN, b""));
    bench.receive(&client.segment(TcpFlags::ACK, b""));
    assert_eq!(bench.proxy.usage().connections, 1);
}

#[test]
fn a_syn_inside_a_connection_gets_a_challenge_ack() {
    let mut bench = Bench::new();
    let (client, _) = spliced(&mut bench, 40000);
    let mut reborn = Client::new(40000);
    reborn.seq = 12345;
    let challenge = only(bench.receive(&reborn.syn()));
    assert_eq!((challenge.flags, challenge.to), (TcpFlags::ACK, client.me));
    assert_eq!((challenge.seq, challenge.ack), (client.ack, client.seq));
    // A client that really forgot answers with a RST of that number, which ends the old connection.
    let reset = Segment {
        seq: challenge.ack,
        flags: TcpFlags::RST,
        ..client.segment(TcpFlags::RST, b"")
    };
    only(bench.receive(&reset));
    assert_eq!(bench.proxy.usage().connections, 0);
    assert_eq!(only(bench.receive(&reborn.syn())).flags, TcpFlags::SYN | TcpFlags::ACK);
}

#[test]
fn challenge_acks_are_rate_limited() {
    let mut bench = Bench::new();
    spliced(&mut bench, 40000);
    let mut reborn = Client::new(40000);
    reborn.seq = 12345;
    let syn = reborn.syn();
    let answered = (0..5000).filter(|_| !bench.receive(&syn).is_empty()).count();
    assert_eq!((answered, bench.dropped(DropReason::RateLimited)), (1, 4999));
    bench.now += Duration::from_millis(1024);
    only(bench.receive(&syn));
}

#[test]
fn silence_ends_a_connection_and_both_sides_are_told() {
    let mut bench = Bench::with_config(&format!("{}\n[timeouts]\nidle = \"10m\"\n", crate::harness::CONFIG));
    let (client, mut server) = spliced(&mut bench, 40000);
    nothing(bench.wait(Duration::from_secs(590)));
    only(server.send(&mut bench, b"x"));
    nothing(bench.wait(Duration::from_secs(590)));
    let resets = bench.wait(Duration::from_secs(20));
    assert!(resets.iter().all(|segment| segment.flags.contains(TcpFlags::RST)));
    // The byte that the client has not acknowledged: its next number is one or the other.
    let to_client: Vec<u32> = resets.iter().filter(|s| s.to == client.me).map(|s| s.seq).collect();
    assert_eq!(to_client, [client.ack.wrapping_add(1), client.ack]);
    let to_server: Vec<u32> = resets.iter().filter(|s| s.to == server.me).map(|s| s.seq).collect();
    assert_eq!(to_server, [server.ack]);
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::IdleTimeout);
    bench.assert_all_returned();
}
