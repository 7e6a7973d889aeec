//! Inspected connections in trouble: windows that close, bytes that are lost, peers that fall silent or lie, memory that
//! runs out.

use crate::harness::{CONFIG, nothing, only};
use crate::scribe::{KEEPABLE, bench, bench_with, connect, settled, take};
use e2d2::buffer::PacketBuffer;
use e2d2::port::PortId;
use e2d2::wire::tcp::TcpFlags;
use netfcts::{Cause, Side};
use splice::drop_reason::DropReason;
use std::time::Duration;
use testkit::Segment;

#[test]
fn a_refused_connection_gets_rst_on_both_sides_and_a_cause() {
    for (first, later) in [(&b"0!"[..], None), (b"0 hello", Some(&b"!"[..]))] {
        let (mut bench, scribe) = bench();
        let (mut client, server, mut sent) = connect(&mut bench, 40000, first);
        if let Some(later) = later {
            sent = client.send(&mut bench, later);
        }
        let resets = |to| {
            sent.iter()
                .filter(move |s| s.to == to && s.flags.contains(TcpFlags::RST))
                .map(|s| s.seq)
                .collect::<Vec<_>>()
        };
        assert!(resets(client.me).contains(&client.ack));
        assert!(resets(server.me).contains(&server.ack), "{sent:?}");
        assert_eq!(sent.len(), resets(client.me).len() + resets(server.me).len());
        assert_eq!(bench.records()[0].cause(Side::Client), Cause::SelectorReject);
        assert_eq!((bench.dropped(DropReason::Rejected), scribe.open()), (1, 0));
        bench.assert_all_returned();
    }
}

#[test]
fn more_than_a_segment_is_split_and_never_sent_beyond_the_window() {
    let (mut bench, _) = bench();
    let (mut client, mut server) = settled(&mut bench, b"0 hello");
    server.me.address.set_port(8080);
    let mut small = server.segment(TcpFlags::ACK, b"");
    small.window = 32; // 4096 bytes
    bench.receive(&small);
    // 100 bytes become 5000.
    let mut order = vec![b'a'; 100];
    order[0] = b'#';
    let sent = client.send(&mut bench, &order);
    let to_server: Vec<_> = sent.iter().filter(|segment| segment.to == server.me).cloned().collect();
    assert!(to_server.iter().all(|segment| segment.payload.len() <= 1448));
    let mut got = take(&mut server, &to_server);
    assert_eq!(got.len(), 4096);
    // While bytes wait, nothing new is taken.
    let refused = only(client.send(&mut bench, b"more"));
    assert_eq!((refused.ack, refused.window), (client.seq.wrapping_sub(104), 0));
    assert_eq!(bench.dropped(DropReason::InspectBufferFull), 1);
    client.seq = client.seq.wrapping_sub(4);
    let answers = bench.receive(&server.segment(TcpFlags::ACK, b""));
    let (rest, to_client): (Vec<_>, Vec<_>) = answers.into_iter().partition(|segment| segment.to == server.me);
    got.extend(take(&mut server, &rest));
    assert_eq!(got, order.repeat(50));
    for ack in to_client {
        assert_eq!(ack.ack, client.seq.wrapping_sub(100));
    }
    let done = bench.receive(&server.segment(TcpFlags::ACK, b""));
    assert_eq!(done.last().expect("an ACK").ack, client.seq);
    assert!(done.last().expect("an ACK").window > 0);
    let more = only(client.send(&mut bench, b"more"));
    assert_eq!(more.seq, server.ack);
}

#[test]
fn no_more_than_64_kib_are_kept_and_the_window_says_so() {
    let (mut bench, _) = bench();
    let (mut client, mut server) = settled(&mut bench, b"0 hello");
    let mut open = server.segment(TcpFlags::ACK, b"");
    open.window = 4000; // 512 000 bytes
    bench.receive(&open);
    let mut order = vec![b'a'; 1000];
    order[0] = b'+';
    let mut taken = 0;
    loop {
        let answer = client.send(&mut bench, &order);
        if bench.dropped(DropReason::InspectBufferFull) > 0 {
            let refusal = only(answer);
            assert_eq!(refusal.to, client.me);
            // What is under way, and no more.
            assert_eq!(u32::from(refusal.window) << 7, 1000 * taken / 128 * 128);
            break;
        }
        taken += 1;
        assert!(taken < 40, "the limit is never reached");
    }
    // What is not taken leaves 8 KiB and itself of the 64.
    assert_eq!(taken, (64 * 1024 - 8 * 1024 - 1000) / 2000 + 1);
    client.seq = client.seq.wrapping_sub(1000);
    server.ack = server.ack.wrapping_add(2000 * taken);
    let reopened = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!((reopened.ack, bench.proxy.usage().kept), (client.seq, 0));
    assert!(u32::from(reopened.window) << 7 > 26_000, "{}", reopened.window);
    assert_eq!(client.send(&mut bench, &order).len(), 2);
}

/// Seen on the rig: what was offered while the server said nothing was dropped as out of the window.
#[test]
fn what_was_offered_is_taken_although_the_receiver_says_nothing() {
    let (mut bench, _) = bench();
    let (mut client, server) = settled(&mut bench, b"0 hello");
    let mut order = vec![b'a'; 1400];
    order[0] = b'-';
    for _ in 0..200 {
        let told = only(client.send(&mut bench, &order));
        assert_eq!((told.to, told.ack), (client.me, client.seq));
        assert!(u32::from(told.window) << 7 > 50_000);
    }
    let fin = only(bench.receive(&client.segment(TcpFlags::FIN, b"end")));
    assert_eq!(
        (fin.to, fin.seq, fin.payload.as_slice()),
        (server.me, server.ack, &b"end"[..])
    );
    assert_eq!(bench.dropped(DropReason::OutOfWindow), 0);
}

#[test]
fn kept_bytes_are_repeated_after_three_duplicates_and_step_by_step() {
    let (mut bench, _) = bench();
    let (mut client, mut server) = settled(&mut bench, b"0 hello");
    let mut order = vec![b'a'; 100];
    order[0] = b'#';
    let sent = client.send(&mut bench, &order);
    assert_eq!(sent.len(), 4);
    let start = server.ack;
    let duplicates: Vec<usize> = (0..4)
        .map(|_| bench.receive(&server.segment(TcpFlags::ACK, b"")).len())
        .collect();
    // The first is a window update to us; then three.
    assert_eq!(duplicates.iter().sum::<usize>(), 1, "{duplicates:?}");
    for at in [1448, 2 * 1448, 3 * 1448] {
        server.ack = start.wrapping_add(at);
        let next: Vec<_> = bench
            .receive(&server.segment(TcpFlags::ACK, b""))
            .into_iter()
            .filter(|segment| segment.to == server.me)
            .collect();
        assert_eq!(only(next).seq, server.ack, "each step asks for the next");
    }
    server.ack = start.wrapping_add(5000);
    let told = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(told.ack, client.seq);
}

#[test]
fn a_receiver_that_never_answers_ends_the_connection() {
    let (mut bench, _) = bench();
    let (mut client, _) = settled(&mut bench, b"0 hello");
    client.send(&mut bench, b"+abc");
    let sent = bench.wait(Duration::from_secs(600));
    let repeated = sent.iter().filter(|segment| segment.payload == b"+abc+abc").count();
    assert_eq!(repeated, 8);
    assert!(sent.iter().any(|segment| segment.flags.contains(TcpFlags::RST)));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::RetransmitLimit);
    bench.assert_all_returned();
}

/// The last wait is a minute, however short that of the other direction is.
#[test]
fn a_receiver_has_all_its_time_whatever_the_other_is_sent() {
    let (mut bench, _) = bench();
    let (mut client, mut server) = settled(&mut bench, b"0 hello");
    client.send(&mut bench, b"+abc");
    // Repeated after 1, 2, 4, 8, 16, 32, 60 and 60 s: the eighth time after 183 s.
    let sent = bench.wait(Duration::from_millis(182_500));
    assert_eq!(sent.iter().filter(|sent| sent.payload == b"+abc+abc").count(), 7);
    server.send(&mut bench, b"+de");
    let sent = bench.wait(Duration::from_secs(2));
    let payloads: Vec<_> = sent.iter().map(|sent| &sent.payload[..]).collect();
    assert_eq!(payloads, [&b"+abc+abc"[..], b"+de+de"], "and no RST");
    let sent = bench.wait(Duration::from_secs(60));
    assert!(sent.iter().any(|sent| sent.flags.contains(TcpFlags::RST)));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::RetransmitLimit);
}

#[test]
fn probes_and_keep_alives_reach_who_can_answer_them() {
    let (mut bench, scribe) = bench();
    let (mut client, mut server) = settled(&mut bench, b"0+hello");
    scribe.calls();
    for payload in [&b""[..], b"x"] {
        let mut alive = client.segment(TcpFlags::ACK, payload);
        alive.seq = client.seq.wrapping_sub(1);
        let passed = only(bench.receive(&alive));
        assert_eq!((passed.to, passed.seq), (server.me, server.ack.wrapping_sub(1)));
        let answer = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
        assert_eq!((answer.to, answer.ack), (client.me, client.seq));
    }
    assert_eq!(scribe.calls(), []);
    // The server closes its window; one byte of the client's tries it.
    let mut closed = server.segment(TcpFlags::ACK, b"");
    closed.window = 0;
    assert_eq!(only(bench.receive(&closed)).window, 0);
    let probe = only(client.send(&mut bench, b"p"));
    assert_eq!((probe.to, probe.seq), (server.me, server.ack));
    let refused = only(bench.receive(&closed));
    assert_eq!((refused.ack, refused.window), (client.seq.wrapping_sub(1), 0));
    let mut again = client.segment(TcpFlags::PSH, b"p");
    again.seq = client.seq.wrapping_sub(1);
    assert_eq!(only(bench.receive(&again)).payload, b"p");
    server.ack = server.ack.wrapping_add(1);
    let open = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!((open.ack, open.window), (client.seq, KEEPABLE));
}

#[test]
fn a_changed_probe_of_a_closed_window_is_repeated_until_it_opens() {
    let (mut bench, _) = bench();
    let (mut client, mut server) = settled(&mut bench, b"0 hello");
    let mut closed = server.segment(TcpFlags::ACK, b"");
    closed.window = 0;
    bench.receive(&closed);
    for segment in client.send(&mut bench, b"+") {
        assert_eq!(segment.to, client.me, "nothing is sent into a closed window");
    }
    for _ in 0..12 {
        // Far more than are allowed without an answer.
        let probes = bench.wait(Duration::from_secs(61));
        assert!(!probes.is_empty() && probes.iter().all(|probe| probe.payload == b"++"));
        bench.receive(&closed);
    }
    let got = bench.receive(&server.segment(TcpFlags::ACK, b""));
    assert!(got.iter().all(|segment| !segment.flags.contains(TcpFlags::RST)));
    server.ack = server.ack.wrapping_add(2);
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(ack.ack, client.seq);
}

#[test]
fn a_reset_has_the_numbers_that_its_receiver_expects() {
    let (mut bench, scribe) = bench();
    let (mut client, server) = settled(&mut bench, b"0 hello");
    client.send(&mut bench, b"+abc");
    let resets = bench.receive(&Segment {
        flags: TcpFlags::RST,
        ..client.segment(TcpFlags::RST, b"")
    });
    let numbers: Vec<u32> = resets.iter().map(|segment| segment.seq).collect();
    assert!(resets.iter().all(|segment| segment.to == server.me));
    assert_eq!(numbers, [server.ack.wrapping_add(8), server.ack]);
    assert_eq!((bench.proxy.usage().connections, scribe.open()), (0, 0));
    bench.assert_all_returned();
}

#[test]
fn who_resets_ahead_of_lost_bytes_is_asked() {
    let (mut bench, _) = bench();
    let (mut client, server) = settled(&mut bench, b"0 hello");
    client.send(&mut bench, b"+abc");
    let expected = client.seq;
    client.seq = client.seq.wrapping_add(100);
    let sent = bench.receive(&Segment {
        flags: TcpFlags::RST,
        ..client.segment(TcpFlags::RST, b"")
    });
    assert_eq!((sent[0].to, sent[0].seq), (server.me, server.ack.wrapping_add(108)));
    assert_eq!((sent[1].to, sent[1].seq), (client.me, client.ack.wrapping_sub(1)));
    // Nothing is there any more: the answer has the number that was asked about.
    client.seq = sent[1].ack;
    assert_eq!(client.seq, expected.wrapping_sub(4));
    bench.receive(&Segment {
        flags: TcpFlags::RST,
        ..client.segment(TcpFlags::RST, b"")
    });
    assert_eq!(bench.proxy.usage().connections, 0);
    bench.assert_all_returned();
}

/// Seed 9400003233: the client's RST overtook its last segment, which went to the server as it was.
#[test]
fn late_bytes_of_a_reset_connection_are_not_passed_unseen() {
    let (mut bench, _) = bench();
    let (mut client, server) = settled(&mut bench, b"0 hello");
    let late = client.segment(TcpFlags::PSH | TcpFlags::ACK, b"secret");
    client.seq = client.seq.wrapping_add(6);
    bench.receive(&client.segment(TcpFlags::RST | TcpFlags::ACK, b""));
    // Ahead of what the engine knows: it asks, and the answer has the number that was asked about.
    let reset = Segment {
        flags: TcpFlags::RST,
        seq: late.seq,
        ..client.segment(TcpFlags::RST, b"")
    };
    bench.receive(&reset);
    assert_eq!(bench.proxy.usage().connections, 0);
    let unseen = server.segment(TcpFlags::PSH | TcpFlags::ACK, b"seen by nobody");
    for (late, sender) in [(late, client.me), (unseen, server.me)] {
        let answer = only(bench.receive(&late));
        assert_eq!((answer.to, answer.seq), (sender, late.ack));
        assert!(answer.flags.contains(TcpFlags::RST) && answer.payload.is_empty());
    }
    // What has no bytes passes.
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(ack.to, client.me);
    bench.assert_all_returned();
}

#[test]
fn sack_blocks_are_cut_to_what_is_all_there() {
    let (mut bench, _) = bench();
    let (mut client, server) = settled(&mut bench, b"0 hello");
    let base = client.seq;
    client.send(&mut bench, b"first");
    client.send(&mut bench, b"+grow");
    client.send(&mut bench, b"third");
    // The server has everything but the first; its block ends inside the third.
    let mut ack = server.segment(TcpFlags::ACK, b"");
    ack.sack = vec![(server.ack.wrapping_add(5), server.ack.wrapping_add(18))];
    let told = only(bench.receive(&ack));
    assert_eq!(told.sack, [(base.wrapping_add(5), base.wrapping_add(13))]);
    // And with only a part of the grown bytes: cut to nothing, so nothing is said.
    ack.sack = vec![(server.ack.wrapping_add(8), server.ack.wrapping_add(12))];
    assert_eq!(only(bench.receive(&ack)).sack, []);
    ack.sack = vec![(server.ack.wrapping_add(8), server.ack.wrapping_add(20))];
    assert_eq!(
        only(bench.receive(&ack)).sack,
        [(base.wrapping_add(10), base.wrapping_add(15))]
    );
}

#[test]
fn without_room_to_inspect_a_connection_it_ends() {
    let (mut bench, scribe) = bench_with(CONFIG, |settings| settings.capacity.inspected = 1, "");
    let (_client, _server, _) = connect(&mut bench, 40000, b"0 hello");
    let (other, server, sent) = connect(&mut bench, 40001, b"0 hello");
    assert!(sent.iter().all(|segment| segment.flags.contains(TcpFlags::RST)));
    assert!(sent.iter().any(|segment| segment.to == other.me) && sent.iter().any(|segment| segment.to == server.me));
    assert_eq!((bench.dropped(DropReason::InspectFull), scribe.open()), (1, 1));
    bench.finish();
    bench.assert_all_returned();

    let (mut bench, scribe) = bench_with(CONFIG, |settings| settings.capacity.kept_blocks = 4, "");
    let (_, _, sent) = connect(&mut bench, 40000, b"0 hello");
    assert!(sent.iter().all(|segment| segment.flags.contains(TcpFlags::RST)));
    assert_eq!((bench.dropped(DropReason::InspectFull), scribe.open()), (1, 0));
    bench.assert_all_returned();
}

#[test]
fn a_wrong_checksum_is_never_shown() {
    let (mut bench, scribe) = bench();
    let (client, _) = settled(&mut bench, b"0 hello");
    scribe.calls();
    let mut frame = client.segment(TcpFlags::PSH, b"wrong").emit(&mut bench.pool);
    *frame.data_mut().last_mut().expect("a byte") ^= 1;
    nothing(bench.receive_frame(PortId(0), frame));
    assert_eq!((bench.dropped(DropReason::BadTcpChecksum), scribe.calls()), (1, vec![]));
}

#[test]
fn shutting_down_and_falling_silent_end_contexts() {
    let (mut bench, scribe) = bench();
    let (mut client, server) = settled(&mut bench, b"0 hello");
    client.send(&mut bench, b"+under way");
    let resets = bench.finish();
    assert!(resets.iter().any(|s| s.to == server.me && s.seq == server.ack));
    assert_eq!(scribe.open(), 0);
    bench.assert_all_returned();

    let (mut bench, scribe) = crate::scribe::bench();
    settled(&mut bench, b"0 hello");
    let text_idle = Duration::from_secs(60 * 60 * 24);
    bench.now += text_idle;
    bench.wait(Duration::from_secs(60));
    assert_eq!((bench.proxy.usage().connections, scribe.open()), (0, 0));
}

#[test]
fn a_path_that_takes_less_is_heard_of_by_the_sender_and_by_what_is_kept() {
    let (mut bench, _) = bench();
    let (mut client, server) = settled(&mut bench, b"0 hello");
    let mut order = vec![b'a'; 100];
    order[0] = b'#';
    let sent = client.send(&mut bench, &order);
    // The second of four segments, in the middle of what became of the client's one.
    let (port, error) = crate::icmp::error_about(&sent[1], Some(1000));
    let told = bench.receive_icmp(port, &error).remove(0);
    let (mtu, quoted) = crate::icmp::read(&told);
    assert_eq!((mtu, quoted.seq), (Some(1000), client.seq.wrapping_sub(100)));
    let repeated = only(bench.wait(Duration::from_millis(1100)));
    assert_eq!((repeated.seq, repeated.payload.len()), (server.ack, 1000 - 60 - 12));
}

/// Segments around the numbers of live connections, from both sides, with orders for the inspector among their bytes.
#[test]
fn nothing_that_peers_send_breaks_an_inspection() {
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut random = move |n: u32| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as u32 % n
    };
    for round in 0..150_u16 {
        let (mut bench, scribe) = bench_with(CONFIG, |_| {}, if round % 3 == 0 { "bye" } else { "" });
        let (mut client, mut server, _) = connect(
            &mut bench,
            40000 + round,
            [&b"0 hello"[..], b"0+x", b"0-", b"0^a"][random(4) as usize],
        );
        for _ in 0..200 {
            let payload: Vec<u8> = match random(3) {
                0 => Vec::new(),
                _ => (0..random(60)).map(|_| b"+-^.#abc"[random(8) as usize]).collect(),
            };
            let mut segment = if random(2) == 0 {
                client.segment(TcpFlags::ACK, &payload)
            } else {
                server.segment(TcpFlags::ACK, &payload)
            };
            match random(40) {
                0 => segment.flags |= TcpFlags::FIN,
                1 => segment.flags |= TcpFlags::RST,
                2 => segment.flags |= TcpFlags::SYN,
                _ => {}
            }
            segment.seq = segment.seq.wrapping_add(random(200)).wrapping_sub(100);
            segment.ack = segment.ack.wrapping_add(random(400)).wrapping_sub(100);
            segment.window = [0, 1, 7, 500, u16::MAX][random(5) as usize];
            if random(4) == 0 {
                let left = segment.ack.wrapping_add(random(300));
                segment.sack = vec![(left, left.wrapping_add(random(300)))];
            }
            // Sometimes a peer goes on from there, sometimes from what it has been sent.
            if random(2) == 0 {
                match segment.from == client.me {
                    true => client.seq = segment.seq.wrapping_add(segment.len()),
                    false => server.seq = segment.seq.wrapping_add(segment.len()),
                }
            }
            for answer in bench.receive(&segment) {
                match answer.to == client.me {
                    true => (client.ack, client.seq) = (answer.seq.wrapping_add(answer.len()), answer.ack),
                    false => (server.ack, server.seq) = (answer.seq.wrapping_add(answer.len()), answer.ack),
                }
            }
            if random(10) == 0 {
                bench.wait(Duration::from_millis(u64::from(random(3000))));
            }
            assert!(bench.proxy.usage().kept <= 2 * 33);
        }
        bench.finish();
        assert_eq!(scribe.open(), 0);
        bench.assert_all_returned();
    }
}
