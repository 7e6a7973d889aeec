//! What the simulation of `tests/sim` has found: the packets that showed each defect.

use crate::harness::{Bench, CLIENT_ISN, CONFIG, Client, Server, bound_with_syn, close, nothing, only, spliced};
use e2d2::buffer::PacketBuffer;
use e2d2::port::PortId;
use e2d2::wire::tcp::TcpFlags;
use netfcts::{Cause, Side};
use splice::drop_reason::DropReason;
use std::time::Duration;
use testkit::Segment;

/// Both FINs and their ACKs; the connection must be at rest then.
fn close_to_rest(bench: &mut Bench, client: &mut Client, server: &mut Server) {
    close(bench, client, server);
    assert_eq!((bench.proxy.usage().connections, bench.proxy.usage().time_wait), (0, 1));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::ActiveClose);
    bench.assert_all_returned();
}

/// The same, and the rest is not over afterwards.
fn close_and_stay(bench: &mut Bench, client: &mut Client, server: &mut Server) {
    close(bench, client, server);
    assert_eq!((bench.proxy.usage().connections, bench.proxy.usage().time_wait), (0, 1));
    assert_eq!(bench.records().len(), 1);
}

/// The client sends as much as the server's window takes, which are so many bytes.
fn fill_window(bench: &mut Bench, client: &mut Client) -> usize {
    let window = 509 << 7;
    for chunk in vec![b'x'; window].chunks(1400) {
        only(client.send(bench, chunk));
    }
    window
}

/// The server's window is closed, the client probes with a byte beyond it, and the server, whose window has opened
/// meanwhile, takes it. Its ACK was not believed, nor any later one, and no FIN was seen any more.
#[test]
fn a_byte_beyond_the_window_that_the_server_takes_is_seen() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    let window = fill_window(&mut bench, &mut client);
    server.ack = server.ack.wrapping_add(window as u32);
    only(bench.receive(&Segment {
        window: 0,
        ..server.segment(TcpFlags::ACK, b"")
    }));
    only(client.send(&mut bench, b"?"));
    server.ack = server.ack.wrapping_add(1);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    only(client.send(&mut bench, b"more"));
    server.ack = server.ack.wrapping_add(4);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    close_to_rest(&mut bench, &mut client, &mut server);
}

/// The last segment that a client sends straddles the edge of the window; the server takes the part inside.
#[test]
fn a_segment_across_the_edge_of_the_window_is_seen() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    only(bench.receive(&Segment {
        window: 0,
        ..server.segment(TcpFlags::ACK, b"")
    }));
    let window = 509 << 7;
    let start = client.seq;
    for chunk in vec![b'x'; window - 100].chunks(1400) {
        only(client.send(&mut bench, chunk));
    }
    only(client.send(&mut bench, &[b'y'; 1400]));
    server.ack = server.ack.wrapping_add(window as u32);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    // The rest again, and all of it acknowledged.
    client.seq = start.wrapping_add(window as u32);
    only(client.send(&mut bench, &[b'y'; 1300]));
    server.ack = server.ack.wrapping_add(1300);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    close_to_rest(&mut bench, &mut client, &mut server);
}

/// A client goes on beyond the window that is known, one segment after the other, and the server takes them: the ACK that
/// had opened its window was lost. Its later ACKs were not believed, and passed only now and then, until `idle` was over.
#[test]
fn segments_beyond_the_window_that_the_server_takes_are_seen() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    let window = fill_window(&mut bench, &mut client);
    let beyond = 5 * 1400;
    for chunk in vec![b'y'; beyond].chunks(1400) {
        only(client.send(&mut bench, chunk));
    }
    // What comes after a hole there is not of what the client has sent so far.
    let far = Segment {
        seq: client.seq.wrapping_add(1),
        ..client.segment(TcpFlags::ACK, b"far")
    };
    only(bench.receive(&far));
    nothing(bench.receive(&far));
    assert_eq!(bench.dropped(DropReason::OutOfWindow), 2);
    server.ack = server.ack.wrapping_add((window + beyond) as u32);
    for _ in 0..10 {
        only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    }
    close_to_rest(&mut bench, &mut client, &mut server);
}

/// A client goes far beyond the window that is known, and one of its segments is lost (seed 26000001035). The next used to be
/// passed on for its receiver to answer, and was taken, as its window had opened; but it had not been noted, no ACK of it was
/// believed, and nothing passed any more until `idle` was over.
#[test]
fn what_is_beyond_the_window_does_not_pass_and_the_server_tells_where_it_stands() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    let window = fill_window(&mut bench, &mut client);
    // It acknowledges all of that, and its ACK is on the way.
    server.ack = server.ack.wrapping_add(window as u32);
    let beyond = Segment {
        seq: client.seq.wrapping_add(1400),
        ..client.segment(TcpFlags::PSH, &[b'z'; 1400])
    };
    let asked = only(bench.receive(&beyond));
    assert_eq!(
        (asked.to, asked.flags, asked.payload.len()),
        (server.me, TcpFlags::ACK, 0)
    );
    assert!(
        (asked.seq.wrapping_sub(server.ack) as i32) < 0,
        "it is answered, and nothing of it is taken"
    );
    // The answer tells the client, which repeats from there.
    let answer = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!((answer.to, answer.ack), (client.me, client.seq));
    only(client.send(&mut bench, &[b'y'; 1400]));
    only(client.send(&mut bench, &[b'z'; 1400]));
    server.ack = server.ack.wrapping_add(2800);
    let all = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(all.ack, client.seq);
    close_to_rest(&mut bench, &mut client, &mut server);
}

/// A bare ACK whose data offset is wrong: its options were taken for bytes, the end of the stream was noted too far ahead,
/// and so the FIN did not count, or no longer.
#[test]
fn options_that_a_wrong_data_offset_makes_payload_are_not_seen_as_sent() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    let spoilt = |bench: &mut Bench, segment: Segment, port| {
        let mut frame = segment.emit(&mut bench.pool);
        // 32 bytes of header become 24.
        frame.data_mut()[34 + 12] = 6 << 4;
        nothing(bench.receive_frame(PortId(port), frame));
    };
    spoilt(&mut bench, client.segment(TcpFlags::ACK, b""), 0);
    spoilt(&mut bench, server.segment(TcpFlags::ACK, b""), 1);
    assert_eq!(bench.dropped(DropReason::BadTcpChecksum), 2);
    only(bench.receive(&client.segment(TcpFlags::ACK | TcpFlags::FIN, b"")));
    client.seq = client.seq.wrapping_add(1);
    server.ack = server.ack.wrapping_add(1);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    spoilt(&mut bench, client.segment(TcpFlags::ACK, b""), 0);
    only(bench.receive(&server.segment(TcpFlags::ACK | TcpFlags::FIN, b"")));
    client.ack = client.ack.wrapping_add(1);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!((bench.proxy.usage().connections, bench.proxy.usage().time_wait), (0, 1));
    bench.assert_all_returned();
}

/// One bit of an ACK number is wrong, the highest. Data segments are not verified, and 2^31 is neither before nor behind.
#[test]
fn an_ack_number_with_its_highest_bit_wrong_is_not_believed() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    for segment in [client.segment(TcpFlags::ACK, b""), server.segment(TcpFlags::ACK, b"")] {
        only(bench.receive(&Segment {
            ack: segment.ack ^ 1 << 31,
            ..segment
        }));
    }
    close_to_rest(&mut bench, &mut client, &mut server);
}

/// The same for bytes that are held: they would lie at the start of the request.
#[test]
fn bytes_from_the_other_end_of_the_numbers_are_not_held() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let far = Segment {
        seq: client.seq ^ 1 << 31,
        ..client.segment(TcpFlags::PSH, b"1 other server")
    };
    let challenge = only(bench.receive(&far));
    assert_eq!((challenge.flags, challenge.ack), (TcpFlags::ACK, client.seq));
    assert!(bench.calls.lock().expect("calls").is_empty());
    let syn = only(client.send(&mut bench, b"0 this one"));
    let (_, held) = Server::from_syn(&syn).accept(&mut bench);
    assert_eq!(only(held).payload, b"0 this one");
}

/// An ACK ends retransmission only if it is right: a spoilt one, or one of bytes that were never sent, made us forget bytes
/// that the client had forgotten, too.
#[test]
fn a_wrong_ack_ends_no_retransmission() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    only(client.send(&mut bench, b"?half"));
    let syn = only(client.send(&mut bench, b" and half\n"));
    let mut server = Server::from_syn(&syn);
    server.accept(&mut bench);
    let held = bench.proxy.usage().held;

    let mut frame = {
        let ack = Segment {
            ack: server.ack.wrapping_add(15),
            ..server.segment(TcpFlags::ACK, b"")
        };
        ack.emit(&mut bench.pool)
    };
    // The ACK number without its checksum.
    let at = frame.len() - 32 + 11;
    frame.data_mut()[at] ^= 1;
    nothing(bench.receive_frame(PortId(1), frame));
    assert_eq!(bench.dropped(DropReason::BadTcpChecksum), 1);

    for far in [16, 1 << 20, 1 << 31] {
        bench.receive(&Segment {
            ack: server.ack.wrapping_add(far),
            ..server.segment(TcpFlags::ACK, b"")
        });
    }
    assert_eq!(bench.proxy.usage().held, held);
    let repeated = bench.wait(Duration::from_millis(1100));
    assert!(
        repeated.iter().any(|segment| segment.payload == b"?half"),
        "{repeated:?}"
    );
    server.ack = server.ack.wrapping_add(15);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.proxy.usage().held, 0);
}

/// A window is promised in units of 16 KiB. After the first byte there was less than a unit left, and so no window.
#[test]
fn a_large_unit_does_not_close_the_window_for_held_bytes() {
    let mut bench = Bench::with_config(&format!("{CONFIG}\n[syn_ack]\nwindow_scale = 14\n"));
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let ack = only(client.send(&mut bench, b"?"));
    assert_eq!((ack.flags, ack.window), (TcpFlags::ACK, 1));
    let syn = only(client.send(&mut bench, b" there is more\n"));
    assert_eq!(syn.flags, TcpFlags::SYN);
}

/// With units of a segment or less a window is rounded down; when less than a unit is left, no more can come.
#[test]
fn a_request_that_leaves_less_than_a_unit_is_complete() {
    let mut bench = Bench::with_config(&format!("{CONFIG}\n[syn_ack]\nwindow_scale = 9\n"));
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    for n in 0..31 {
        let piece = [&[if n == 0 { b'?' } else { b'x' }][..], &[b'x'; 511]].concat();
        let ack = only(client.send(&mut bench, &piece));
        assert_eq!((ack.flags, ack.window), (TcpFlags::ACK, 31 - n));
    }
    let reset = only(client.send(&mut bench, b"x"));
    assert!(
        reset.flags.contains(TcpFlags::RST),
        "the selector wants more than there can be: {reset:?}"
    );
    assert!(
        bench
            .calls
            .lock()
            .expect("calls")
            .last()
            .is_some_and(|(bytes, complete)| *complete && bytes.len() == 15_873)
    );
}

/// A server without window scaling offers less than a unit of what the client was promised. Rounded up, the client sends
/// more than the server takes, and sees the edge of the window move back: there are senders who never recover.
#[test]
fn the_client_is_never_offered_more_than_the_server_takes() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"0 hello"));
    let mut server = Server::from_syn(&syn);
    server.options.window_scale = None;
    server.accept(&mut bench);
    server.ack = server.ack.wrapping_add(7);
    for window in [0, 6, 127, 128, 1000, 65535] {
        let seen = only(bench.receive(&Segment {
            window,
            ..server.segment(TcpFlags::ACK, b"")
        }));
        assert_eq!(seen.window, window >> 7);
    }
}

/// A client has begun a new connection from the port of a resting one. The old server still talks: what it says would
/// reach the new connection, whose numbers may be near.
#[test]
fn a_resting_connection_does_not_reach_into_the_one_that_took_its_place() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    client.seq = client.seq.wrapping_add(1);
    server.ack = server.ack.wrapping_add(1);
    only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
    let last = client.segment(TcpFlags::ACK, b"");
    client.ack = client.ack.wrapping_add(1);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.proxy.usage().time_wait, 1);
    // Until the new one is there, a late segment of the server passes.
    assert_eq!(only(bench.receive(&server.segment(TcpFlags::FIN, b""))).to, client.me);

    let mut next = Client {
        seq: last.seq.wrapping_add(100_000),
        ..Client::new(40000)
    };
    next.connect(&mut bench);
    for flags in [TcpFlags::FIN, TcpFlags::ACK, TcpFlags::RST] {
        nothing(bench.receive(&server.segment(flags, b"")));
    }
    let syn = only(next.send(&mut bench, b"1 again"));
    let mut other = Server::from_syn(&syn);
    other.accept(&mut bench);
    nothing(bench.receive(&server.segment(TcpFlags::RST, b"")));
    assert_eq!(bench.proxy.usage().connections, 1);
}

/// Seed 9700010567: a new connection has begun from the port of a resting one, and its client has its SYN-ACK already. The old
/// server's RST came to it with a number in its window.
#[test]
fn a_reset_of_a_resting_connection_does_not_pass_once_a_new_one_is_answered() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    close_and_stay(&mut bench, &mut client, &mut server);
    let reset = only(bench.receive(&server.segment(TcpFlags::RST, b"")));
    assert_eq!(reset.to, client.me, "before it is");

    let next = Client {
        seq: client.seq.wrapping_add(100_000),
        ..Client::new(40000)
    };
    let answer = only(bench.receive(&next.syn()));
    assert_eq!(answer.flags, TcpFlags::SYN | TcpFlags::ACK);
    nothing(bench.receive(&server.segment(TcpFlags::RST, b"")));
    nothing(bench.receive(&server.segment(TcpFlags::RST | TcpFlags::ACK, b"")));
    nothing(bench.receive(&server.segment(TcpFlags::ACK, b"late")));
    // Its last FIN is for who may be the old client still: the SYN can be a late copy.
    let fin = only(bench.receive(&server.segment(TcpFlags::FIN | TcpFlags::ACK, b"")));
    assert_eq!(fin.to, client.me);
    let ack = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(ack.to, server.me);
}

/// The server has reset the connection and the client has missed it: it repeats its request, which carries a cookie that
/// was good once. The server's answer to the copy is what tells the client.
#[test]
fn a_repeated_first_segment_of_a_resting_connection_reaches_the_server() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let request = client.segment(TcpFlags::PSH, b"0 hello");
    let syn = only(client.send(&mut bench, b"0 hello"));
    let mut server = Server::from_syn(&syn);
    server.accept(&mut bench);
    server.ack = server.ack.wrapping_add(7);
    only(bench.receive(&server.segment(TcpFlags::RST, b"")));
    assert_eq!(bench.proxy.usage().time_wait, 1);
    let copy = only(bench.receive(&request));
    assert_eq!((copy.to, copy.payload.as_slice()), (server.me, &b"0 hello"[..]));
    let reset = only(bench.receive(&Segment {
        flags: TcpFlags::RST,
        seq: copy.ack,
        ack: 0,
        ..server.segment(TcpFlags::RST, b"")
    }));
    assert_eq!((reset.to, reset.flags), (client.me, TcpFlags::RST));
    // Afterwards it is our own RST that does.
    bench.wait(Duration::from_secs(5));
    let reset = only(bench.receive(&request));
    assert_eq!((reset.flags, reset.seq), (TcpFlags::RST, client.ack));
}

/// The first segment of a new connection is lost, which would have opened its cookie, and the second arrives while the last
/// connection from that port rests. It was taken for a late one of that: the old server answered by a RST whose number the
/// client believed.
#[test]
fn a_segment_of_the_next_connection_does_not_reach_the_server_of_the_last() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    close_and_stay(&mut bench, &mut client, &mut server);
    let late = client.segment(TcpFlags::ACK, b"");
    let mut next = Client {
        seq: CLIENT_ISN.wrapping_add(0x1234_5678),
        ..Client::new(40000)
    };
    let syn_ack = only(bench.receive(&next.syn()));
    next.take_syn_ack(&syn_ack);
    let first = next.segment(TcpFlags::PSH, b"0 first");
    next.seq = next.seq.wrapping_add(7);
    nothing(bench.receive(&next.segment(TcpFlags::PSH, b" second")));
    assert_eq!(bench.dropped(DropReason::BadCookie), 1);
    // What is of the last connection still passes: the first byte, the end, and a FIN again.
    assert_eq!(only(bench.receive(&late)).to, server.me);
    let again = Segment {
        seq: late.seq.wrapping_sub(1),
        flags: TcpFlags::FIN | TcpFlags::ACK,
        ..late.clone()
    };
    assert_eq!(only(bench.receive(&again)).to, server.me);
    let oldest = Segment {
        seq: CLIENT_ISN.wrapping_add(1),
        payload: b"0 hello".to_vec(),
        ..late
    };
    assert_eq!(only(bench.receive(&oldest)).to, server.me);
    // The client repeats what was lost.
    let syn = only(bench.receive(&first));
    assert_eq!((syn.flags, bench.proxy.usage().connections), (TcpFlags::SYN, 1));
}

/// A SYN is answered by us while the last connection from that port rests, and a copy of it comes when that is over, and is
/// passed on. Client and server waited for each other for a minute.
#[test]
fn a_client_that_has_taken_our_own_answer_is_served_though_its_syn_was_passed_on() {
    for is_answered in [false, true] {
        let mut bench =
            Bench::for_pools(&bound_with_syn("").replace("[records]", "[timeouts]\ntime_wait = \"4s\"\n\n[records]"));
        let mut client = Client::new(40000);
        let mut server = Server::from_syn(&only(bench.receive(&client.syn())));
        server.shake(&mut bench, &mut client);
        only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
        close_and_stay(&mut bench, &mut client, &mut server);
        nothing(bench.wait(Duration::from_millis(3_900)));
        let mut next = Client {
            seq: CLIENT_ISN.wrapping_add(100_000),
            ..Client::new(40000)
        };
        let copy = next.syn();
        let syn_ack = only(bench.receive(&copy));
        next.take_syn_ack(&syn_ack);
        nothing(bench.wait(Duration::from_millis(200)));
        let passed = only(bench.receive(&copy));
        assert_eq!(passed.flags, TcpFlags::SYN, "it is passed on");
        let asked = Server::from_syn(&passed);
        if is_answered {
            // The client is connected, and challenges (RFC 5961 4.2).
            assert_ne!(only(bench.receive(&asked.syn_ack())).seq, syn_ack.seq);
        }
        let sent = bench.receive(&next.segment(TcpFlags::ACK, b""));
        let [reset, syn] = sent.as_slice() else {
            panic!("a RST and a SYN, not {sent:#?}")
        };
        assert_eq!((reset.flags, reset.to, reset.seq), (TcpFlags::RST, asked.me, asked.ack));
        let mut server = Server::from_syn(syn);
        let (_, held) = server.accept(&mut bench);
        nothing(held);
        let hello = only(next.send(&mut bench, b"hello"));
        assert_eq!((hello.payload.as_slice(), hello.to), (&b"hello"[..], server.me));
        let banner = only(server.send(&mut bench, b"ready"));
        assert_eq!((banner.seq, banner.to), (next.ack, next.me));
        server.ack = server.ack.wrapping_add(5);
        next.ack = next.ack.wrapping_add(5);
        close(&mut bench, &mut next, &mut server);
        assert_eq!(bench.records().len(), 1, "one connection, one record");
        bench.assert_all_returned();
    }
}

/// The same with data on the first segment, whose ACK was lost.
#[test]
fn data_that_come_with_that_acknowledgement_are_held() {
    let mut bench =
        Bench::for_pools(&bound_with_syn("").replace("[records]", "[timeouts]\ntime_wait = \"4s\"\n\n[records]"));
    let mut client = Client::new(40000);
    let mut server = Server::from_syn(&only(bench.receive(&client.syn())));
    server.shake(&mut bench, &mut client);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    close_and_stay(&mut bench, &mut client, &mut server);
    nothing(bench.wait(Duration::from_millis(3_900)));
    let mut next = Client {
        seq: CLIENT_ISN.wrapping_add(100_000),
        ..Client::new(40000)
    };
    let copy = next.syn();
    next.take_syn_ack(&only(bench.receive(&copy)));
    nothing(bench.wait(Duration::from_millis(200)));
    only(bench.receive(&copy));
    let sent = next.send(&mut bench, b"hello");
    let mut server = Server::from_syn(sent.last().expect("a SYN"));
    let (_, held) = server.accept(&mut bench);
    assert_eq!(only(held).payload, b"hello");
}
