//! Segments that repeat what is held, and segments from before the first byte, while a client has no server.

use crate::harness::{Bench, Client, Server, nothing, only};
use e2d2::wire::tcp::TcpFlags;
use splice::drop_reason::DropReason;
use testkit::Segment;

fn asked(bench: &Bench) -> usize {
    bench.calls.lock().expect("calls").len()
}

/// A segment of this client that begins so many bytes before its next one.
fn earlier(client: &Client, by: u32, flags: TcpFlags, payload: &[u8]) -> Segment {
    Segment {
        seq: client.seq.wrapping_sub(by),
        ..client.segment(flags, payload)
    }
}

/// A short segment costs no look at up to 16 KiB.
#[test]
fn the_selector_is_not_asked_again_about_the_same_bytes() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    only(client.send(&mut bench, b"?held"));
    assert_eq!(asked(&bench), 1);
    for (by, payload) in [(5, &b"?held"[..]), (3, b"eld"), (3, b"el")] {
        let ack = only(bench.receive(&earlier(&client, by, TcpFlags::PSH, payload)));
        assert_eq!((ack.flags, ack.ack), (TcpFlags::ACK, client.seq));
    }
    // Behind a gap there is nothing that it could judge.
    client.seq = client.seq.wrapping_add(1);
    let ack = only(client.send(&mut bench, b"later"));
    assert_eq!(ack.ack, client.seq.wrapping_sub(6));
    assert_eq!(asked(&bench), 1);
    let syn = only(bench.receive(&earlier(&client, 6, TcpFlags::PSH, b"\n")));
    assert_eq!((syn.flags, asked(&bench)), (TcpFlags::SYN, 2));
    let calls = bench.calls.lock().expect("calls");
    assert_eq!(calls[1].0, b"?held\nlater");
}

#[test]
fn a_fin_behind_the_same_bytes_is_judged() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    only(client.send(&mut bench, b"?held"));
    let reset = only(bench.receive(&earlier(&client, 5, TcpFlags::FIN, b"?held")));
    assert!(reset.flags.contains(TcpFlags::RST), "no more comes: {reset:?}");
    let calls = bench.calls.lock().expect("calls");
    assert_eq!(calls[1], (b"?held".to_vec(), true));
}

/// RFC 9293 3.10.7.4, first: what lies before the window is cut off, a FIN too.
#[test]
fn a_fin_before_the_first_byte_is_none() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let ack = only(bench.receive(&earlier(&client, 3, TcpFlags::FIN, b"ab")));
    assert_eq!((ack.flags, ack.ack), (TcpFlags::ACK, client.seq));
    assert_eq!(asked(&bench), 0);
    let syn = only(client.send(&mut bench, b"0 hello"));
    bench.receive(&earlier(&client, 10, TcpFlags::FIN, b"ab"));
    let (_, held) = Server::from_syn(&syn).accept(&mut bench);
    let held = only(held);
    assert_eq!(
        (&held.payload[..], held.flags),
        (&b"0 hello"[..], TcpFlags::ACK | TcpFlags::PSH)
    );
}

/// RFC 9293 3.10.7.4: a window is taken from a segment that is not older than the one before (SND.WL1).
#[test]
fn an_old_segment_does_not_change_the_window() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"0 hello"));
    let with_window = |segment: Segment, window: u16| Segment { window, ..segment };
    nothing(bench.receive(&with_window(client.segment(TcpFlags::ACK, b""), 700)));
    bench.receive(&with_window(earlier(&client, 7, TcpFlags::PSH, b"0 hello"), 100));
    let (ack, _) = Server::from_syn(&syn).accept(&mut bench);
    assert_eq!(ack.window, 700);
    assert_eq!(bench.dropped(DropReason::Duplicate), 0, "an ACK repeats nothing");
}
