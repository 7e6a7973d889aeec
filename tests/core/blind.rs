//! Segments by somebody who knows a connection's addresses and ports, and guesses its numbers.

use crate::harness::{Bench, CONFIG, Client, PROXY_MAC, Server, close, nothing, only, spliced};
use crate::scribe;
use e2d2::buffer::PacketBuffer;
use e2d2::port::PortId;
use e2d2::wire::tcp::TcpFlags;
use netfcts::{Cause, Side};
use splice::drop_reason::DropReason;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

const SECOND: Duration = Duration::from_millis(1024);

/// Guesses for a peer whose next segment this is: numbers in the window with an ACK that is wrong, and far outside.
fn guesses(next: &Segment) -> Vec<Segment> {
    let far = [1 << 24, 1 << 30, 1 << 31, (1_u32 << 30).wrapping_neg()];
    let mut all = Vec::new();
    for flags in [
        TcpFlags::ACK,
        TcpFlags::ACK | TcpFlags::PSH,
        TcpFlags::ACK | TcpFlags::FIN,
        TcpFlags::SYN,
        TcpFlags::RST,
        TcpFlags::RST | TcpFlags::ACK,
    ] {
        let payload = match flags.contains(TcpFlags::PSH) {
            true => b"made up".to_vec(),
            false => Vec::new(),
        };
        let base = Segment {
            flags,
            payload,
            ..next.clone()
        };
        for off in far {
            let seq = base.seq.wrapping_add(off);
            // Even where the ACK is right.
            all.push(Segment { seq, ..base.clone() });
            if !flags.intersects(TcpFlags::SYN | TcpFlags::RST) {
                for within in [0, 3, 1000] {
                    let seq = base.seq.wrapping_add(within);
                    let ack = base.ack.wrapping_add(off);
                    all.push(Segment {
                        seq,
                        ack,
                        ..base.clone()
                    });
                }
            }
        }
    }
    all
}

/// Lets the core receive all guesses and asserts that each has at most one answer (a question to the one, or the segment
/// itself passed on to the other), and that they change no connection.
#[track_caller]
fn guess(bench: &mut Bench, next: &Segment) {
    let before = bench.proxy.usage();
    for guess in guesses(next) {
        let sent = bench.receive(&guess);
        assert!(sent.len() <= 1, "{guess:?}: {sent:#?}");
    }
    assert_eq!(bench.proxy.usage(), before);
}

#[test]
fn in_every_phase_the_connection_goes_on() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let of_client = |client: &Client| client.segment(TcpFlags::ACK, b"");
    // While the first payload is awaited.
    guess(&mut bench, &of_client(&client));
    let syn = only(client.send(&mut bench, b"0 hello"));
    let mut server = Server::from_syn(&syn);
    // While the server is called: neither side.
    guess(&mut bench, &of_client(&client));
    for wrong in [1, 1 << 30] {
        let made_up = Segment {
            ack: server.ack.wrapping_add(wrong),
            flags: TcpFlags::RST | TcpFlags::ACK,
            ..server.segment(TcpFlags::ACK, b"")
        };
        nothing(bench.receive(&made_up));
    }
    server.accept(&mut bench);
    server.ack = server.ack.wrapping_add(7);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    // Spliced, and each side has sent something.
    for _ in 0..3 {
        guess(&mut bench, &of_client(&client));
        guess(&mut bench, &server.segment(TcpFlags::ACK, b""));
        assert_eq!(only(client.send(&mut bench, b"more")).payload, b"more");
        server.ack = server.ack.wrapping_add(4);
        assert_eq!(only(server.send(&mut bench, b"answer")).payload, b"answer");
        client.ack = client.ack.wrapping_add(6);
        bench.now += SECOND;
    }
    // The client has closed.
    only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    client.seq = client.seq.wrapping_add(1);
    guess(&mut bench, &server.segment(TcpFlags::ACK, b""));
    server.ack = server.ack.wrapping_add(1);
    assert_eq!(only(server.send(&mut bench, b"the rest")).payload, b"the rest");
    client.ack = client.ack.wrapping_add(8);
    guess(&mut bench, &of_client(&client));
    guess(&mut bench, &server.segment(TcpFlags::ACK, b""));
    only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
    client.ack = client.ack.wrapping_add(1);
    only(bench.receive(&of_client(&client)));
    assert_eq!(bench.proxy.usage().connections, 0);
    bench.assert_all_returned();
    let record = &bench.records()[0];
    assert_eq!(record.cause(Side::Client), Cause::ActiveClose);
}

/// Guesses for a server that has been called, in the window and outside. None has the right ACK: whoever guesses that is
/// believed (RFC 9293 3.10.7.3).
fn guesses_of_server(server: &Server) -> Vec<Segment> {
    let mut all = guesses(&server.segment(TcpFlags::ACK, b""));
    all.retain(|guess| guess.ack != server.ack);
    for off in [1, 1000, 1 << 24, 1 << 31, (1_u32 << 30).wrapping_neg()] {
        for flags in [
            TcpFlags::RST,
            TcpFlags::RST | TcpFlags::ACK,
            TcpFlags::SYN | TcpFlags::ACK,
            TcpFlags::FIN | TcpFlags::ACK,
        ] {
            all.push(Segment {
                seq: server.isn.wrapping_add(1).wrapping_add(off),
                ack: server.ack.wrapping_add(off),
                flags,
                ..server.segment(TcpFlags::ACK, b"")
            });
        }
    }
    all
}

/// Guesses for a client whose SYN was passed on: RSTs in the window, and ACKs of numbers that nobody told it.
fn guesses_of_client(client: &Client) -> Vec<Segment> {
    let next = client.segment(TcpFlags::ACK, b"");
    let mut all = guesses(&next);
    for off in [1, 1000, 15_000] {
        all.extend(
            [
                TcpFlags::RST,
                TcpFlags::SYN,
                TcpFlags::ACK,
                TcpFlags::FIN | TcpFlags::ACK,
            ]
            .map(|flags| Segment {
                seq: next.seq.wrapping_add(off),
                ack: next.ack.wrapping_add(off),
                flags,
                ..next.clone()
            }),
        );
    }
    all
}

#[test]
fn while_a_syn_is_passed_on_and_answered_the_connection_goes_on() {
    let mut bench = crate::syn::bench();
    let (mut client, syn) = crate::syn::forwarded(&mut bench);
    let mut server = Server::from_syn(&syn);
    // Who guesses knows neither our number nor the server's, nor that none is known yet.
    let expected = Client {
        seq: client.seq.wrapping_add(1),
        ..Client::new(40000)
    };
    let before = bench.proxy.usage();
    for guess in guesses_of_client(&expected) {
        let sent = bench.receive(&guess);
        assert!(
            sent.len() <= 1 && sent.iter().all(|answer| answer.to == client.me),
            "{guess:?}: {sent:#?}"
        );
    }
    for guess in guesses_of_server(&server) {
        let sent = bench.receive(&guess);
        // RFC 9293 3.10.7.3: a RST, and the SYN again.
        assert!(
            sent.len() <= 2 && sent.iter().all(|answer| answer.to == server.me),
            "{guess:?}: {sent:#?}"
        );
    }
    assert_eq!(bench.proxy.usage(), before);
    server.shake(&mut bench, &mut client);
    for guess in [guesses_of_client(&client), guesses_of_server(&server)].concat() {
        let sent = bench.receive(&guess);
        assert!(sent.len() <= 1, "{guess:?}: {sent:#?}");
    }
    assert_eq!(bench.proxy.usage(), before);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(only(client.send(&mut bench, b"hello")).payload, b"hello");
    server.ack = server.ack.wrapping_add(5);
    assert_eq!(only(server.send(&mut bench, b"answer")).payload, b"answer");
    client.ack = client.ack.wrapping_add(6);
    close(&mut bench, &mut client, &mut server);
    bench.assert_all_returned();
    let record = &bench.records()[0];
    assert_eq!(record.cause(Side::Client), Cause::ActiveClose);
}

#[test]
fn the_last_ack_is_not_guessed() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let fin = client.segment(TcpFlags::FIN, b"");
    let answer = only(bench.receive(&fin));
    assert!(answer.flags.contains(TcpFlags::FIN));
    client.seq = client.seq.wrapping_add(1);
    for guess in guesses(&client.segment(TcpFlags::ACK, b"")) {
        assert!(bench.receive(&guess).len() <= 1);
        assert_eq!(bench.proxy.usage().connections, 1, "{guess:?}");
    }
    // A FIN that somebody makes up is no repetition: our FIN does not acknowledge its number, and the connection ends in its time.
    for _ in 0..3 {
        nothing(bench.wait(SECOND));
        for off in [1, 1 << 20, 1 << 31] {
            let made_up = Segment {
                seq: fin.seq.wrapping_add(off),
                ..fin.clone()
            };
            for challenge in bench.receive(&made_up) {
                assert_eq!((challenge.flags, challenge.ack), (TcpFlags::ACK, client.seq));
            }
        }
    }
    let again = only(bench.receive(&fin));
    assert_eq!((again.flags, again.ack), (answer.flags, answer.ack), "it was lost");
    bench.wait(Duration::from_secs(5));
    assert_eq!(bench.proxy.usage().connections, 0);
}

/// What an inspected connection passes on has an ACK of ours, which its receiver believes: neither a number nor a timestamp that
/// somebody makes up may get there.
#[test]
fn what_is_made_up_for_an_inspected_connection_goes_nowhere() {
    let (mut bench, scribe) = scribe::bench();
    let (mut client, mut server) = scribe::settled(&mut bench, b"0 hello");
    scribe.calls();
    for _ in 0..2 {
        for next in [client.segment(TcpFlags::ACK, b""), server.segment(TcpFlags::ACK, b"")] {
            let newer = next
                .options
                .timestamps
                .map(|(tsval, echo)| (tsval.wrapping_add(1 << 30), echo));
            for mut guess in guesses(&next) {
                guess.options.timestamps = newer;
                // Who sends a SYN is asked whether it is there (RFC 5961 4.2).
                let sent = bench.receive(&guess);
                assert!(
                    sent.iter().all(|sent| sent.to == next.from && sent.payload.is_empty()),
                    "{guess:?}: {sent:#?}"
                );
            }
            for (behind, payload) in [(1 << 20, &b""[..]), (3, b"made up")] {
                let mut guess = Segment {
                    seq: next.seq.wrapping_sub(behind),
                    ack: next.ack.wrapping_add(1 << 24),
                    payload: payload.to_vec(),
                    ..next.clone()
                };
                guess.options.timestamps = newer;
                nothing(bench.receive(&guess));
            }
        }
        assert_eq!(scribe.calls(), []);
        let request = only(client.send(&mut bench, b"more"));
        let told = client.segment(TcpFlags::ACK, b"").options.timestamps;
        assert_eq!(
            request.options.timestamps.map(|(tsval, _)| tsval),
            told.map(|(tsval, _)| tsval)
        );
        server.ack = server.ack.wrapping_add(4);
        assert_eq!(only(server.send(&mut bench, b"answer")).payload, b"answer");
        client.ack = client.ack.wrapping_add(6);
        bench.now += SECOND;
        scribe.calls();
    }
    assert!(bench.dropped(DropReason::OutOfWindow) > 0);
}

/// Review: four numbers that everybody can know defeated the idle timer.
#[test]
fn a_dead_connection_ends_in_its_time_whatever_is_made_up() {
    let mut bench = Bench::with_config(&format!("{CONFIG}\n[timeouts]\nidle = \"10m\"\n"));
    let (client, server) = spliced(&mut bench, 40000);
    for _ in 0..9 {
        bench.wait(Duration::from_secs(60));
        guess(&mut bench, &client.segment(TcpFlags::ACK, b""));
        guess(&mut bench, &server.segment(TcpFlags::ACK, b""));
        assert_eq!(bench.proxy.usage().connections, 1);
    }
    bench.wait(Duration::from_secs(61));
    assert_eq!(bench.proxy.usage().connections, 0);
    let record = bench.records()[0];
    assert_eq!(record.cause(Side::Client), Cause::IdleTimeout);
}

#[test]
fn what_is_made_up_is_not_counted_as_the_peers() {
    let packets = |is_guessed: bool| {
        let mut bench = Bench::new();
        let (mut client, mut server) = spliced(&mut bench, 40000);
        if is_guessed {
            guess(&mut bench, &client.segment(TcpFlags::ACK, b""));
            guess(&mut bench, &server.segment(TcpFlags::ACK, b""));
        }
        close(&mut bench, &mut client, &mut server);
        bench.wait(Duration::from_secs(6));
        let record = bench.records()[0];
        (record.packets_to_server, record.packets_to_client)
    };
    assert_eq!(packets(true), packets(false));
}

/// A FIN with a number in the window, and even with an ACK that is right, in one direction or both.
#[test_case(3; "just ahead")]
#[test_case(20_000; "far ahead, in the window")]
#[test_case(0_u32.wrapping_sub(3); "among what was sent")]
#[test_case(0_u32.wrapping_sub(20_000); "before what was sent, in a window of before")]
fn a_guessed_fin_in_the_window_closes_nothing(off: u32) {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    let fin = |segment: Segment| Segment {
        seq: segment.seq.wrapping_add(off),
        flags: TcpFlags::FIN | TcpFlags::ACK,
        ..segment
    };
    bench.receive(&fin(client.segment(TcpFlags::ACK, b"")));
    bench.receive(&fin(server.segment(TcpFlags::ACK, b"")));
    for _ in 0..30 {
        assert_eq!(only(client.send(&mut bench, &[b'c'; 1000])).payload.len(), 1000);
        server.ack = server.ack.wrapping_add(1000);
        assert_eq!(only(server.send(&mut bench, &[b's'; 1000])).payload.len(), 1000);
        client.ack = client.ack.wrapping_add(1000);
    }
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    bench.wait(Duration::from_secs(600));
    assert_eq!(bench.proxy.usage().connections, 1);
    assert_eq!(only(client.send(&mut bench, b"alive")).payload, b"alive");
    server.ack = server.ack.wrapping_add(5);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    close(&mut bench, &mut client, &mut server);
    assert_eq!(bench.proxy.usage().connections, 0, "a real FIN closes");
}

#[test]
fn a_fin_that_overtook_data_counts_and_so_does_one_that_is_repeated() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    let lost = client.segment(TcpFlags::PSH, b"lost once");
    client.seq = client.seq.wrapping_add(9);
    let fin = client.segment(TcpFlags::FIN, b"");
    only(bench.receive(&fin));
    only(bench.receive(&lost));
    only(bench.receive(&fin));
    client.seq = client.seq.wrapping_add(1);
    server.ack = server.ack.wrapping_add(10);
    only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
    client.ack = client.ack.wrapping_add(1);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.proxy.usage().connections, 0);
}

/// A frame of this segment with one bit of its TCP header wrong.
fn damaged(bench: &mut Bench, segment: &Segment, byte: usize, bit: u8) -> (PortId, e2d2::buffer::HeapBuffer) {
    let mut buffer = segment.emit(&mut bench.pool);
    let at = buffer.data().len() - segment.payload.len() - 32 + byte;
    buffer.data_mut()[at] ^= 1 << bit;
    let port = PortId(u8::from(segment.to.mac.0[5] == PROXY_MAC[1]));
    (port, buffer)
}

/// Fields of the TCP header, by their bytes.
const SEQ: usize = 7;
const ACK: usize = 11;
const WINDOW: usize = 14;

#[test_case(ACK, 1; "an ACK of more")]
#[test_case(WINDOW, 7; "a wider window")]
fn a_damaged_ack_moves_nothing(byte: usize, bit: u8) {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    // So many bytes that any one bit among the lowest six is an ACK of some of them.
    only(client.send(&mut bench, &[b'x'; 64]));
    let mut ack = server.segment(TcpFlags::ACK, b"");
    ack.ack = ack.ack.wrapping_add(64) & !0x3f;
    let (port, frame) = damaged(&mut bench, &ack, byte, bit);
    nothing(bench.receive_frame(port, frame));
    assert_eq!(bench.dropped(DropReason::BadTcpChecksum), 1);
    server.ack = server.ack.wrapping_add(64);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
}

#[test]
fn damaged_data_with_another_number_than_the_next_is_dropped() {
    let mut bench = Bench::new();
    let (client, _) = spliced(&mut bench, 40000);
    let data = client.segment(TcpFlags::PSH, b"payload");
    let (port, frame) = damaged(&mut bench, &data, SEQ - 1, 4);
    nothing(bench.receive_frame(port, frame));
    assert_eq!(bench.dropped(DropReason::BadTcpChecksum), 1);
}

/// RFC 1624: the error of what passes stays in its checksum; only its receiver verifies what comes next in a stream.
#[test]
fn data_that_comes_next_is_its_receivers_to_verify() {
    let mut bench = Bench::new();
    let (mut client, _) = spliced(&mut bench, 40000);
    only(client.send(&mut bench, b"first"));
    let data = client.segment(TcpFlags::PSH, b"payload");
    let (port, frame) = damaged(&mut bench, &data, 32, 0);
    assert_eq!(bench.receive_bytes(port, frame.data()).len(), 1);
    assert_eq!(bench.dropped(DropReason::BadTcpChecksum), 0);
}

/// In a dialogue data acknowledges exactly all that the other side has sent, with the window of before: that is verified by
/// its receiver. What acknowledges less, or offers another window, is verified here, and so is the ACK of a FIN.
#[test_case(0, 0, false, 0; "all, and the window of before")]
#[test_case(1, 0, false, 1; "less than all")]
#[test_case(0, 9, false, 1; "another window")]
#[test_case(0, 0, true, 1; "a FIN")]
fn damaged_data_that_acknowledges(less: u32, more_window: u16, has_fin: bool, dropped: u64) {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    only(client.send(&mut bench, b"request"));
    server.ack = server.ack.wrapping_add(7);
    // The windows of the dialogue.
    only(bench.receive(&server.segment(TcpFlags::PSH, b"")));
    let flags = if has_fin {
        TcpFlags::PSH | TcpFlags::FIN
    } else {
        TcpFlags::PSH
    };
    only(bench.receive(&client.segment(flags, b"again")));
    let mut data = server.segment(TcpFlags::PSH, b"response");
    data.ack = data.ack.wrapping_add(5 + u32::from(has_fin) - less);
    data.window += more_window;
    let (port, frame) = damaged(&mut bench, &data, 32, 0);
    let passed = bench.receive_bytes(port, frame.data()).len() as u64;
    assert_eq!(
        (passed, bench.dropped(DropReason::BadTcpChecksum)),
        (1 - dropped, dropped)
    );
}

#[test]
fn a_fin_that_was_lost_counts_when_it_comes_after_an_ack_of_the_number_behind_it() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    let fin = client.segment(TcpFlags::FIN, b"the end");
    client.seq = client.seq.wrapping_add(8);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    only(bench.receive(&fin));
    server.ack = server.ack.wrapping_add(8);
    only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
    client.ack = client.ack.wrapping_add(1);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.proxy.usage().connections, 0);
}

#[test]
fn fins_with_data_close() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    let fin = client.segment(TcpFlags::FIN, b"the end");
    only(bench.receive(&fin));
    client.seq = client.seq.wrapping_add(8);
    server.ack = server.ack.wrapping_add(8);
    only(bench.receive(&server.segment(TcpFlags::FIN, b"x")));
    client.ack = client.ack.wrapping_add(2);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.proxy.usage().connections, 0);
}
