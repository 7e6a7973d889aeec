//! Everything before there is a server: cookies, the first payload, the client's early end.

use crate::harness::{Bench, CONFIG, Client, Server, nothing, only};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::{Cause, Side};
use splice::Usage;
use splice::drop_reason::DropReason;
use std::time::Duration;
use testkit::Segment;

#[test]
fn a_syn_is_answered_and_forgotten() {
    let mut bench = Bench::new();
    let client = Client::new(40000);
    let first = only(bench.receive(&client.syn()));
    assert_eq!(first.window, 16384);
    assert_eq!(first.options.mss, Some(1460));
    assert_eq!(first.options.window_scale, Some(7));
    assert!(first.options.sack_permitted);
    assert_eq!(first.options.timestamps.map(|(_, echo)| echo), Some(500));
    assert_eq!(bench.proxy.usage(), Usage::default());
    // A repeated SYN gets the same number: the cookie is a function of the SYN and the slot.
    let again = only(bench.receive(&client.syn()));
    assert_eq!(again.seq, first.seq);
}

#[test]
fn promises_no_option_that_was_not_offered() {
    let mut bench = Bench::new();
    let bare = Segment {
        options: TcpOptions::NONE,
        ..Client::new(40000).syn()
    };
    let syn_ack = only(bench.receive(&bare));
    assert_eq!(
        syn_ack.options,
        TcpOptions {
            mss: Some(1460),
            ..TcpOptions::NONE
        }
    );
}

#[test]
fn ecn_is_never_agreed_by_a_cookie() {
    let mut bench = Bench::new();
    let syn = Segment {
        flags: TcpFlags::SYN | TcpFlags::ECE | TcpFlags::CWR,
        ..Client::new(40000).syn()
    };
    assert_eq!(only(bench.receive(&syn)).flags, TcpFlags::SYN | TcpFlags::ACK);
}

#[test]
fn data_on_a_syn_is_not_acknowledged() {
    let mut bench = Bench::new();
    let client = Client::new(40000);
    let syn = Segment {
        payload: b"0 early".to_vec(),
        ..client.syn()
    };
    let syn_ack = only(bench.receive(&syn));
    assert_eq!(syn_ack.ack, client.seq.wrapping_add(1));
    assert!(bench.calls.lock().expect("calls").is_empty());
}

#[test]
fn data_on_the_third_ack_is_kept() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    let syn_ack = only(bench.receive(&client.syn()));
    client.take_syn_ack(&syn_ack);
    let syn = only(client.send(&mut bench, b"0 data"));
    let (_, held) = Server::from_syn(&syn).accept(&mut bench);
    assert_eq!(only(held).payload, b"0 data");
}

#[test]
fn a_lost_third_ack_is_made_good_by_the_data() {
    data_on_the_third_ack_is_kept();
}

#[test]
fn the_same_ack_twice_makes_one_connection() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    nothing(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.proxy.usage().connections, 1);
}

#[test]
fn an_expired_cookie_gets_a_reset() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    let syn_ack = only(bench.receive(&client.syn()));
    client.take_syn_ack(&syn_ack);
    bench.wait(Duration::from_secs(16));
    let reset = only(client.send(&mut bench, b"0 late"));
    assert_eq!((reset.flags, reset.seq), (TcpFlags::RST, client.ack));
    assert_eq!(bench.proxy.usage(), Usage::default());
}

#[test]
fn a_wrong_cookie_gets_a_reset() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    let syn_ack = only(bench.receive(&client.syn()));
    client.take_syn_ack(&syn_ack);
    // The slot of a cookie that has long expired.
    client.ack ^= 2 << 30;
    let reset = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!((reset.flags, reset.seq), (TcpFlags::RST, client.ack));
    // The right slot, but an echo of a timestamp that is older than any cookie.
    client.ack ^= 2 << 30 | 1 << 5;
    client.tsecr = client.tsecr.wrapping_sub(16_001);
    let reset = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!((reset.flags, reset.seq), (TcpFlags::RST, client.ack));
    assert_eq!(bench.proxy.usage(), Usage::default());
}

/// Found by the simulation: the ACK of the handshake and the first segment of a request are lost, the second segment
/// arrives. A RST would kill a connection that the client's retransmission makes good.
#[test]
fn a_later_segment_whose_forerunners_were_lost_is_met_with_silence() {
    for with_timestamps in [true, false] {
        let mut bench = Bench::new();
        let mut client = Client::new(40000);
        let mut syn = client.syn();
        if !with_timestamps {
            syn.options.timestamps = None;
        }
        let syn_ack = only(bench.receive(&syn));
        (client.seq, client.ack) = (syn_ack.ack, syn_ack.seq.wrapping_add(1));
        client.tsecr = syn_ack.options.timestamps.map_or(0, |(tsval, _)| tsval);
        let mut first = client.segment(TcpFlags::ACK, b"0 first ");
        let mut second = Segment {
            seq: client.seq.wrapping_add(8),
            ..client.segment(TcpFlags::PSH, b"second")
        };
        let mut fin = Segment {
            seq: client.seq.wrapping_add(14),
            ..client.segment(TcpFlags::FIN, b"")
        };
        if !with_timestamps {
            for segment in [&mut first, &mut second, &mut fin] {
                segment.options.timestamps = None;
            }
        }
        nothing(bench.receive(&second));
        nothing(bench.receive(&fin));
        assert_eq!(bench.dropped(DropReason::BadCookie), 2);
        assert_eq!(bench.proxy.usage(), Usage::default());
        let syn = only(bench.receive(&first));
        assert_eq!(syn.flags, TcpFlags::SYN);
        // Who never repeats the first segment is told when no cookie can be meant any more.
        let mut other = Client::new(40001);
        let syn_ack = only(bench.receive(&other.syn()));
        other.take_syn_ack(&syn_ack);
        other.seq = other.seq.wrapping_add(8);
        bench.wait(Duration::from_secs(17));
        let reset = only(bench.receive(&other.segment(TcpFlags::PSH, b"late")));
        assert_eq!((reset.flags, reset.seq), (TcpFlags::RST, other.ack));
    }
}

#[test]
fn a_request_in_pieces_out_of_order_reaches_the_server_in_order() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let request: Vec<u8> = b"0".iter().copied().chain((0..5000_u32).map(|n| n as u8)).collect();
    let piece = |from: usize, to: usize| Segment {
        seq: client.seq.wrapping_add(from as u32),
        ..client.segment(TcpFlags::PSH, &request[from..to])
    };
    nothing(bench.receive(&piece(2900, 4400)));
    nothing(bench.receive(&piece(1448, 2900)));
    nothing(bench.receive(&piece(2900, 4400)));
    assert!(bench.calls.lock().expect("calls").is_empty(), "no byte in order yet");
    let syn = only(bench.receive(&piece(0, 1448)));
    nothing(bench.receive(&piece(4400, 5001)));
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    let sent: Vec<u8> = held.iter().flat_map(|segment| segment.payload.clone()).collect();
    assert_eq!(sent, request);
    assert!(
        held.iter().all(|segment| segment.payload.len() <= 1448),
        "never over the server's MSS"
    );
    let mut next = server.ack;
    for segment in &held {
        assert_eq!(segment.seq, next);
        next = next.wrapping_add(segment.payload.len() as u32);
    }
    assert!(held.last().expect("some").flags.contains(TcpFlags::PSH));
}

#[test]
fn need_more_acknowledges_and_the_bytes_are_ours_until_the_server_has_them() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let ack = only(client.send(&mut bench, b"?half"));
    assert_eq!((ack.flags, ack.ack, ack.seq), (TcpFlags::ACK, client.seq, client.ack));
    // The right edge that the SYN-ACK offered does not move to the left.
    let edge = client.seq.wrapping_add(u32::from(ack.window) << 7);
    assert!(edge.wrapping_sub(client.seq.wrapping_sub(5)) >= 16384 - 128, "{ack:?}");
    let syn = only(client.send(&mut bench, b" and half\n"));
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    assert_eq!(only(held).payload, b"?half and half\n");

    // The server saw nothing: what was acknowledged is repeated by us, and only that.
    let repeated = only(bench.wait(Duration::from_millis(1100)));
    assert_eq!((repeated.payload.as_slice(), repeated.seq), (&b"?half"[..], server.ack));
    // An ACK of a part of it never reaches the client as a smaller ACK than it had.
    server.ack = server.ack.wrapping_add(3);
    let held_up = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(held_up.ack, client.seq.wrapping_sub(10));
    let repeated = bench.wait(Duration::from_millis(2100));
    assert_eq!(
        repeated.first().map(|segment| segment.payload.as_slice()),
        Some(&b"lf"[..])
    );
    // Paid in full: no more repetitions, nothing held.
    server.ack = server.ack.wrapping_add(12);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    nothing(bench.wait(Duration::from_secs(200)));
    assert_eq!(bench.proxy.usage().held, 0);
}

#[test]
fn three_duplicate_acks_retransmit_at_once() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    client.send(&mut bench, b"?first");
    let syn = only(client.send(&mut bench, b"rest\n"));
    let mut server = Server::from_syn(&syn);
    server.accept(&mut bench);
    let mut repeated = Vec::new();
    for _ in 0..3 {
        let sent = bench.receive(&server.segment(TcpFlags::ACK, b""));
        repeated.extend(sent.into_iter().filter(|segment| segment.to == server.me));
    }
    assert_eq!(only(repeated).payload, b"?first");
}

#[test]
fn a_lost_acknowledgement_of_held_bytes_is_repeated() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let segment = client.segment(TcpFlags::PSH, b"?half");
    let first = only(bench.receive(&segment));
    let second = only(bench.receive(&segment));
    assert_eq!((first.ack, first.flags), (second.ack, second.flags));
}

#[test]
fn a_refused_payload_gets_a_reset_that_is_believed() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let reset = only(client.send(&mut bench, b"garbage"));
    assert!(reset.flags.contains(TcpFlags::RST));
    assert_eq!(reset.seq, client.ack);
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::SelectorReject);
    bench.assert_all_returned();
}

#[test]
fn a_silent_client_is_reset_after_its_time() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    nothing(bench.wait(Duration::from_millis(29_900)));
    let reset = only(bench.wait(Duration::from_millis(200)));
    assert!(reset.flags.contains(TcpFlags::RST));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::SelectorTimeout);
    bench.assert_all_returned();
}

#[test]
fn a_client_that_leaves_without_a_word_is_let_go_politely() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let fin_ack = only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    assert_eq!(fin_ack.flags, TcpFlags::FIN | TcpFlags::ACK);
    assert_eq!((fin_ack.seq, fin_ack.ack), (client.ack, client.seq.wrapping_add(1)));
    // Its FIN again: ours was lost.
    let again = only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    assert_eq!((again.flags, again.seq), (fin_ack.flags, fin_ack.seq));
    client.seq = client.seq.wrapping_add(1);
    client.ack = client.ack.wrapping_add(1);
    nothing(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::ActiveClose);
    bench.assert_all_returned();
}

#[test]
fn a_fin_with_the_request_reaches_the_server_with_it() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let syn = only(bench.receive(&client.segment(TcpFlags::FIN | TcpFlags::PSH, b"0 bye")));
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    let last = only(held);
    assert_eq!(last.payload, b"0 bye");
    assert!(last.flags.contains(TcpFlags::FIN));
    server.ack = server.ack.wrapping_add(6);
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(ack.ack, client.seq.wrapping_add(6));
}

#[test]
fn a_fin_behind_an_undecided_request_makes_it_complete() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    only(client.send(&mut bench, b"?never"));
    let reset = only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    assert!(reset.flags.contains(TcpFlags::RST));
    assert_eq!(
        bench.calls.lock().expect("calls").last(),
        Some(&(b"?never".to_vec(), true))
    );
    bench.assert_all_returned();
}

#[test]
fn a_client_reset_frees_everything_at_once() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    client.send(&mut bench, b"?half");
    let reset = Segment {
        flags: TcpFlags::RST,
        ..client.segment(TcpFlags::RST, b"")
    };
    nothing(bench.receive(&reset));
    assert_eq!(bench.proxy.usage(), Usage::default());
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::ActiveRst);
}

#[test]
fn a_full_request_of_16_kib_is_complete() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let mut refused = Vec::new();
    for n in 0..16 {
        let piece = if n == 0 {
            [&b"?"[..], &[b'x'; 1023]].concat()
        } else {
            vec![b'x'; 1024]
        };
        refused = client.send(&mut bench, &piece);
    }
    assert!(only(refused).flags.contains(TcpFlags::RST));
    let calls = bench.calls.lock().expect("calls").clone();
    assert_eq!(
        calls.last().map(|(bytes, complete)| (bytes.len(), *complete)),
        Some((16384, true))
    );
    assert!(!calls[14].1);
    bench.assert_all_returned();
}

#[test]
fn a_cookie_makes_one_connection_even_after_its_end() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let ack = client.segment(TcpFlags::ACK, b"");
    nothing(bench.receive(&Segment {
        flags: TcpFlags::RST,
        ..ack.clone()
    }));
    assert_eq!(bench.proxy.usage(), Usage::default());
    // Who goes on with a connection that is over has missed its end.
    let reset = only(bench.receive(&ack));
    assert_eq!((reset.flags, reset.seq), (TcpFlags::RST, ack.ack));
    assert_eq!(bench.dropped(DropReason::CookieReplayed), 1);
    assert_eq!(bench.proxy.usage(), Usage::default());
}

#[test]
fn under_pressure_only_clients_with_payload_get_a_place() {
    let mut bench = Bench::new();
    // A sixteenth of the 64 places is theirs.
    for port in 0..60 {
        Client::new(1000 + port).connect(&mut bench);
    }
    let mut late = Client::new(5000);
    let syn_ack = only(bench.receive(&late.syn()));
    late.take_syn_ack(&syn_ack);
    nothing(bench.receive(&late.segment(TcpFlags::ACK, b"")));
    assert_eq!(
        (bench.proxy.usage().connections, bench.dropped(DropReason::Pressure)),
        (60, 1)
    );
    let syn = only(late.send(&mut bench, b"0 hello"));
    assert_eq!(syn.flags, TcpFlags::SYN);
    bench.finish();
    bench.assert_all_returned();
}

/// The first number beyond the window that a segment to the client offers, which is scaled by 7.
fn edge_of(segment: &Segment) -> u32 {
    segment.ack.wrapping_add(u32::from(segment.window) << 7)
}

/// What the client was allowed to send is not taken back, however small the window of the server that it gets.
#[test]
fn the_right_edge_does_not_move_back_at_the_splice() {
    for promised in [16_384_u32, 4_096] {
        let mut bench = Bench::with_config(&format!("{CONFIG}\n[syn_ack]\nwindow = {promised}\n"));
        let mut client = Client::new(40000);
        client.connect(&mut bench);
        let first = client.seq;
        let ack = only(client.send(&mut bench, b"?half"));
        let told = edge_of(&ack).wrapping_sub(first);
        assert!(told > promised - 128 && told <= promised + 5, "{told}");
        let syn = only(client.send(&mut bench, b" and half\n"));
        let mut server = Server::from_syn(&syn);
        let small = Segment {
            window: 2_048,
            ..server.syn_ack()
        };
        bench.receive(&small);
        server.seq = server.isn.wrapping_add(1);
        for paid in [0, 3, 5, 15] {
            let ack = Segment {
                ack: server.ack.wrapping_add(paid),
                window: 16,
                ..server.segment(TcpFlags::ACK, b"")
            };
            let passed = only(bench.receive(&ack).into_iter().filter(|s| s.to == client.me).collect());
            let edge = edge_of(&passed).wrapping_sub(first);
            assert!(
                edge > told - 128 && edge <= promised + 5,
                "{edge} after {told}, {paid} paid"
            );
        }
        // As soon as the server's own window reaches as far, it is passed on as it is.
        server.ack = server.ack.wrapping_add(15);
        assert_eq!(only(bench.receive(&server.segment(TcpFlags::ACK, b""))).window, 509);
        let smaller = Segment {
            window: 100,
            ..server.segment(TcpFlags::ACK, b"")
        };
        assert_eq!(
            only(bench.receive(&smaller)).window,
            100,
            "that is the server's own affair"
        );
    }
}

/// DECISIONS.md 3: without an acknowledgement of what is there, a client whose first window is full, or whose
/// TCP waits for news before it repeats, never sends what is missing.
#[test]
fn half_a_tls_hello_whose_middle_segment_is_lost_gets_through() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    // The selector of the harness wants a line; the pieces are those of a hello of three segments.
    let hello = [&b"?"[..], &[0x16; 3_998], b"\n"].concat();
    let piece = |client: &Client, from: usize, to: usize| Segment {
        seq: client.seq.wrapping_add(from as u32),
        ..client.segment(TcpFlags::PSH, &hello[from..to])
    };
    let first = only(bench.receive(&piece(&client, 0, 1_448)));
    assert_eq!(first.ack, client.seq.wrapping_add(1_448), "the client may go on");
    // The second is lost. The third brings a duplicate ACK: news for the client's fast retransmission.
    let duplicate = only(bench.receive(&piece(&client, 2_896, 4_000)));
    assert_eq!(duplicate.ack, first.ack);
    let syn = only(bench.receive(&piece(&client, 1_448, 2_896)));
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    let got: Vec<u8> = held.iter().flat_map(|segment| segment.payload.clone()).collect();
    assert_eq!(got, hello);
}
