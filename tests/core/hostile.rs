//! Frames that nobody should send: nothing panics, nothing leaks, and strangers get at most one small answer.

use crate::harness::{Bench, CONFIG, Client, nothing, only};
use e2d2::buffer::PacketBuffer;
use e2d2::port::PortId;
use e2d2::wire::tcp::TcpFlags;
use splice::drop_reason::DropReason;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

#[test]
fn a_segment_from_ourselves_to_ourselves_gets_no_answer() {
    let mut bench = Bench::new();
    let client = Client::new(80);
    let land = Segment {
        from: testkit::Station {
            mac: client.me.mac,
            ..client.proxy
        },
        ..client.syn()
    };
    nothing(bench.receive(&land));
    assert_eq!(bench.dropped(DropReason::Land), 1);
}

#[test_case(TcpFlags::empty(); "no flag")]
#[test_case(TcpFlags::SYN | TcpFlags::FIN; "SYN and FIN")]
#[test_case(TcpFlags::SYN | TcpFlags::RST; "SYN and RST")]
#[test_case(TcpFlags::FIN | TcpFlags::RST | TcpFlags::ACK; "FIN and RST")]
#[test_case(TcpFlags::FIN | TcpFlags::PSH | TcpFlags::URG; "christmas tree")]
#[test_case(TcpFlags::all(); "all flags")]
fn impossible_flags_get_no_answer(flags: TcpFlags) {
    let mut bench = Bench::new();
    nothing(bench.receive(&Segment {
        flags,
        ..Client::new(40000).syn()
    }));
    assert_eq!(bench.dropped(DropReason::BadFlags), 1);
}

#[test]
fn a_closed_port_answers_within_a_rate() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.proxy.address.set_port(81);
    let reset = only(bench.receive(&client.syn()));
    assert_eq!(
        (reset.flags, reset.ack),
        (TcpFlags::RST | TcpFlags::ACK, client.seq.wrapping_add(1))
    );
    let answered = (0..5000).filter(|_| !bench.receive(&client.syn()).is_empty()).count();
    assert!(answered < 1000, "{answered} answers in no time");
    // A RST is never answered.
    nothing(bench.receive(&Segment {
        flags: TcpFlags::RST,
        ..client.syn()
    }));
}

#[test]
fn segments_out_of_every_window_make_their_receiver_answer_at_a_rate() {
    let mut bench = Bench::new();
    let (client, server) = crate::harness::spliced(&mut bench, 40000);
    let mut passed = [0, 0];
    for n in 1..=3_000u32 {
        // Half of the numbers away, where no window is.
        let far = (1 << 30) + n * 600_000;
        let mut stranger = client.segment(TcpFlags::PSH, b"x");
        stranger.seq = stranger.seq.wrapping_add(far);
        passed[0] += bench.receive(&stranger).len();
        let mut stranger = server.segment(TcpFlags::FIN, b"");
        stranger.seq = stranger.seq.wrapping_sub(far);
        passed[1] += bench.receive(&stranger).len();
    }
    assert_eq!(passed, [1, 1], "one a second for each side");
    assert_eq!(bench.dropped(DropReason::OutOfWindow), 6_000);
    bench.now += Duration::from_millis(1024);
    let mut stranger = client.segment(TcpFlags::PSH, b"x");
    stranger.seq = stranger.seq.wrapping_add(1 << 31);
    let asked = only(bench.receive(&stranger));
    assert_eq!(
        (asked.to, asked.flags, asked.seq, asked.payload.len()),
        (server.me, TcpFlags::ACK, server.ack.wrapping_sub(1), 0),
        "RFC 9293 3.10.7.4: its receiver answers"
    );
    // Neither ends what the two say to each other.
    for n in 0..2_000u32 {
        let mut repeated = client.segment(TcpFlags::PSH, b"more");
        repeated.seq = repeated.seq.wrapping_sub(n % 7);
        assert_eq!(bench.receive(&repeated).len(), 1, "what was in some window passes");
        assert_eq!(bench.receive(&server.segment(TcpFlags::PSH, b"answer")).len(), 1);
    }
}

#[test]
fn silence_if_configured() {
    let mut bench =
        Bench::with_config(&CONFIG.replace("max_connections", "unknown_flows = \"silent\"\nmax_connections"));
    let mut client = Client::new(40000);
    client.proxy.address.set_port(81);
    nothing(bench.receive(&client.syn()));
}

#[test]
fn a_listener_serves_only_the_ports_that_it_names() {
    let mut bench = Bench::with_config(&CONFIG.replace("name = \"web\"", "name = \"web\"\nports = [\"client\"]"));
    let client = Client::new(40000);
    let mut buffer = client.syn().emit(&mut bench.pool);
    // The same SYN by the servers' port.
    buffer.data_mut()[..6].copy_from_slice(&[2, 0, 0, 0, 0, crate::harness::PROXY_MAC[1]]);
    let reset = only(bench.receive_frame(PortId(1), buffer));
    assert!(reset.flags.contains(TcpFlags::RST));
    assert_eq!(only(bench.receive(&client.syn())).flags, TcpFlags::SYN | TcpFlags::ACK);
}

#[test]
fn a_flood_of_syns_leaves_nothing_behind() {
    let mut bench = Bench::new();
    let before = bench.proxy.memory();
    for n in 0..100_000_u32 {
        let mut client = Client::new(n as u16);
        client.seq = n.wrapping_mul(2_654_435_761);
        let answer = only(bench.receive(&client.syn()));
        assert_eq!(answer.flags, TcpFlags::SYN | TcpFlags::ACK);
    }
    assert_eq!(bench.proxy.usage(), splice::Usage::default());
    assert_eq!(bench.proxy.memory(), before);
}
