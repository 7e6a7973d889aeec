//! RFC 7323 3.2: once timestamps are agreed, every segment has them, those that the engine makes by itself, too. A receiver may
//! drop one without; one with a TSval that is too new makes it refuse all that follows.

use crate::harness::{Bench, Client, Server, bound_with_syn, nothing, only, spliced};
use e2d2::buffer::PacketBuffer;
use e2d2::port::PortId;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use splice::drop_reason::DropReason;
use std::time::Duration;
use testkit::Segment;

/// `segment` with these timestamps.
fn timed(segment: Segment, timestamps: (u32, u32)) -> Segment {
    Segment {
        options: TcpOptions {
            timestamps: Some(timestamps),
            ..segment.options
        },
        ..segment
    }
}

#[test]
fn before_there_is_a_server_ours_go_on_and_echo_the_newest_of_the_client() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    bench.now += Duration::from_millis(20);
    let ours = Some((client.tsecr + 20, client.tsval));
    // Of held bytes, of a keep-alive, and of a FIN behind nothing.
    let held = only(client.send(&mut bench, b"?"));
    assert_eq!((held.ack, held.options.timestamps), (client.seq, ours));
    let keep_alive = Segment {
        seq: client.seq.wrapping_sub(1),
        ..client.segment(TcpFlags::ACK, b"")
    };
    let forged = timed(keep_alive, (client.tsval + (1 << 30), client.tsecr + (1 << 30)));
    let challenge = only(bench.receive(&forged));
    assert_eq!((challenge.ack, challenge.options.timestamps), (client.seq, ours));

    let mut leaving = Client::new(40001);
    leaving.connect(&mut bench);
    let fin = only(bench.receive(&leaving.segment(TcpFlags::FIN, b"")));
    assert_eq!(fin.flags, TcpFlags::FIN | TcpFlags::ACK);
    assert_eq!(fin.options.timestamps, Some((leaving.tsecr, leaving.tsval)));
}

#[test]
fn a_server_gets_those_of_the_client_with_all_that_is_sent_and_repeated_for_it() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    only(client.send(&mut bench, b"?half"));
    let syn = only(client.send(&mut bench, b" and half\n"));
    let mut server = Server::from_syn(&syn);
    let expected = Some((server.tsecr, server.tsval));
    let (ack, held) = server.accept(&mut bench);
    let repeated = bench.wait(Duration::from_millis(1100));
    // Its SYN-ACK again: our ACK was lost.
    let again = only(bench.receive(&server.syn_ack()));
    assert_eq!((held.is_empty(), repeated.is_empty()), (false, false));
    for segment in held.iter().chain(&repeated).chain([&ack, &again]) {
        assert_eq!((segment.to, segment.options.timestamps), (server.me, expected));
    }
    // Somebody else's, whose numbers are guessed: its echo would be ours.
    bench.now += Duration::from_millis(1024);
    let forged = Segment {
        ack: server.ack.wrapping_add(1),
        ..timed(server.syn_ack(), (7, server.tsecr + (1 << 30)))
    };
    assert_eq!(only(bench.receive(&forged)).options.timestamps, None);
}

/// Timestamps, numbers and window are such as the receiver knows or will hear of soon.
#[test]
fn a_receiver_that_is_asked_gets_those_of_the_segment_in_the_place_of_which_it_is() {
    let mut bench = Bench::new();
    let (client, server) = spliced(&mut bench, 40000);
    let far = Segment {
        seq: client.seq.wrapping_add(1 << 24),
        ..timed(client.segment(TcpFlags::PSH, b"far"), (client.tsval + 9, client.tsecr))
    };
    let asked = only(bench.receive(&far));
    assert_eq!(
        (asked.to, asked.flags, asked.payload.len()),
        (server.me, TcpFlags::ACK, 0)
    );
    assert_eq!((asked.seq, asked.ack), (server.ack.wrapping_sub(1), server.seq));
    // What the client offers, as the server has heard it.
    assert_eq!(asked.window, 502);
    assert_eq!(asked.options.timestamps, Some((server.tsecr + 9, server.tsval)));

    let far = Segment {
        seq: server.seq.wrapping_add(1 << 24),
        ..timed(server.segment(TcpFlags::PSH, b"far"), (server.tsval + 9, server.tsecr))
    };
    let asked = only(bench.receive(&far));
    assert_eq!((asked.to, asked.flags, asked.window), (client.me, TcpFlags::ACK, 509));
    assert_eq!((asked.seq, asked.ack), (client.ack.wrapping_sub(1), client.seq));
    assert_eq!(asked.options.timestamps, Some((client.tsecr + 9, client.tsval)));
}

/// Seed 28000014069: a bit of an ACK was wrong, and its number out of the window. Nobody is asked because of it.
#[test]
fn a_damaged_segment_asks_nobody() {
    let mut bench = Bench::new();
    let (client, server) = spliced(&mut bench, 40000);
    for (segment, port) in [
        (client.segment(TcpFlags::ACK, b""), 0),
        (server.segment(TcpFlags::PSH, b"x"), 1),
    ] {
        let mut frame = segment.emit(&mut bench.pool);
        // The second highest bit of SEQ.
        frame.data_mut()[34 + 4] ^= 0x40;
        nothing(bench.receive_frame(PortId(port), frame));
    }
    assert_eq!(bench.dropped(DropReason::BadTcpChecksum), 2);
    assert_eq!(bench.dropped(DropReason::OutOfWindow), 0);
}

#[test]
fn who_may_have_sent_a_rst_is_asked_with_what_that_says() {
    let mut bench = Bench::new();
    let (client, server) = spliced(&mut bench, 40000);
    let reset = |with: Option<(u32, u32)>| Segment {
        flags: TcpFlags::RST | TcpFlags::ACK,
        seq: client.seq.wrapping_add(100),
        options: TcpOptions {
            timestamps: with,
            ..TcpOptions::NONE
        },
        ..client.segment(TcpFlags::RST, b"")
    };
    for with in [Some((client.tsval, client.tsecr)), None] {
        let sent = bench.receive(&reset(with));
        let [asked, passed] = sent.as_slice() else {
            panic!("a question and the RST, not {sent:#?}")
        };
        assert_eq!(
            (asked.to, asked.flags, asked.seq),
            (client.me, TcpFlags::ACK, client.ack.wrapping_sub(1))
        );
        assert_eq!(asked.options.timestamps, with.map(|(tsval, tsecr)| (tsecr, tsval)));
        assert_eq!((passed.to, passed.flags.contains(TcpFlags::RST)), (server.me, true));
        bench.now += Duration::from_millis(1024);
    }
}

/// The echo of a SYN of anybody's would be our TSval in a segment that its receiver believes.
#[test]
fn a_made_up_syn_brings_no_timestamps_into_a_connection() {
    let mut bench = Bench::new();
    let (client, server) = spliced(&mut bench, 40000);
    let forged = timed(client.syn(), (client.tsval, client.tsecr + (1 << 30)));
    for flags in [TcpFlags::SYN, TcpFlags::SYN | TcpFlags::ACK] {
        let segment = Segment {
            flags,
            seq: 12_345,
            ack: if flags.contains(TcpFlags::ACK) {
                client.ack.wrapping_sub(1)
            } else {
                0
            },
            ..forged.clone()
        };
        let challenge = only(bench.receive(&segment));
        assert_eq!(
            (challenge.to, challenge.seq, challenge.ack),
            (client.me, client.ack, client.seq)
        );
        assert_eq!(challenge.options.timestamps, None);
        bench.now += Duration::from_millis(1024);
    }
    // What the two say to each other passes.
    let segment = only(bench.receive(&server.segment(TcpFlags::PSH, b"on")));
    assert_eq!(segment.options.timestamps, Some((client.tsecr, client.tsval)));
}

/// What both SYNs say holds, whatever the client's ACK behind them has.
#[test]
fn a_header_behind_a_forwarded_syn_has_them_if_they_were_agreed() {
    for (are_agreed, has_some) in [(true, false), (false, true)] {
        let header = "name = \"all\"\nproxy_protocol = { send = \"v1\" }\n";
        let text = bound_with_syn("").replace("name = \"all\"\n", header);
        let mut bench = Bench::for_pools(&text);
        let mut client = Client::new(40000);
        let mut syn = client.syn();
        syn.options.timestamps = syn.options.timestamps.filter(|_| are_agreed);
        let mut server = Server::from_syn(&only(bench.receive(&syn)));
        server.options.timestamps = server.options.timestamps.filter(|_| are_agreed);
        let syn_ack = only(bench.receive(&server.syn_ack()));
        (client.seq, client.ack) = (syn_ack.ack, syn_ack.seq.wrapping_add(1));
        let mut ack = client.segment(TcpFlags::PSH, b"hello");
        ack.options.timestamps = has_some.then_some((client.tsval + 1, 7));
        let sent = bench.receive(&ack);
        assert!(sent[0].payload.starts_with(b"PROXY "), "{sent:?}");
        let expected = are_agreed.then_some((client.tsval, server.tsval));
        assert_eq!(sent[0].options.timestamps, expected);
    }
}
