//! The same listeners in trouble: headers that are wrong, cut off or late, strangers, and ends that give up while the header
//! is awaited.

use crate::harness::{Bench, Client, Server, nothing, only};
use crate::proxy_header_in::V1;
use crate::proxy_header_syn::{OPTIONAL, OPTIONAL_STRANGERS, REQUIRED, bench, waiting};
use e2d2::wire::tcp::TcpFlags;
use netfcts::{Cause, Side};
use splice::Usage;
use splice::drop_reason::DropReason;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

const STRANGERS: &str = "proxy_protocol = { accept = \"required\", from = [\"10.0.0.2\"] }";

/// Both ends are told, and nothing is left.
#[track_caller]
fn assert_ended(bench: &mut Bench, (client, server): (&Client, &Server), sent: &[Segment], reason: DropReason) {
    let resets: Vec<&Segment> = sent.iter().filter(|s| s.flags.contains(TcpFlags::RST)).collect();
    assert_eq!(resets.len(), 2, "{sent:#?}");
    assert_eq!((resets[0].to, resets[0].seq), (client.me, client.ack));
    assert_eq!((resets[1].to, resets[1].seq), (server.me, server.ack));
    assert_eq!(bench.dropped(reason), 1);
    let record = bench.records()[0];
    assert_eq!(record.cause(Side::Client), Cause::BadProxyHeader);
    assert_eq!(record.client().to_string(), "10.0.0.1");
    assert_eq!(bench.proxy.usage(), Usage::default());
    bench.assert_all_returned();
}

#[test_case(b"GET / HTTP/1.0\r\n", REQUIRED, DropReason::HeaderMalformed; "none")]
#[test_case(b"PROXY TCP4 192.0.2.7 2001:db8::1 1 2\r\n", REQUIRED, DropReason::HeaderMalformed; "mixed families")]
#[test_case(b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c", REQUIRED, DropReason::HeaderMalformed; "version 3")]
#[test_case(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x40\0", REQUIRED, DropReason::HeaderMalformed; "longer than is held")]
#[test_case(b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0cabcdefghijkl", REQUIRED, DropReason::HeaderMalformed; "of a datagram")]
#[test_case(b"PROXY TCP5 1.2.3.4", OPTIONAL, DropReason::HeaderMalformed; "optional and wrong")]
#[test_case(V1, OPTIONAL_STRANGERS, DropReason::HeaderUntrusted; "optional from a stranger")]
fn a_bad_header_ends_both_legs(bytes: &[u8], listener: &str, reason: DropReason) {
    let mut bench = bench(listener, "");
    let (mut client, server) = waiting(&mut bench);
    let sent = client.send(&mut bench, bytes);
    assert_ended(&mut bench, (&client, &server), &sent, reason);
    // In pieces, too.
    let mut bench = self::bench(listener, "");
    let (mut client, server) = waiting(&mut bench);
    let mut sent = Vec::new();
    for byte in bytes {
        sent = client.send(&mut bench, &[*byte]);
        assert_eq!(
            sent.iter()
                .filter(|s| s.to == server.me && s.flags != TcpFlags::RST)
                .count(),
            0
        );
        if sent.iter().any(|segment| segment.flags.contains(TcpFlags::RST)) {
            break;
        }
    }
    assert_ended(&mut bench, (&client, &server), &sent, reason);
}

#[test_case(b"", DropReason::HeaderMissing; "nothing")]
#[test_case(b"PROXY TCP4 192.0.", DropReason::HeaderMalformed; "a part")]
#[test_case(b"\r\n\r\n\0\r\nQUIT\n", DropReason::HeaderMalformed; "the signature")]
#[test_case(b"\r\n\r\n\0\r\nQUIT\n\x21", DropReason::HeaderMalformed; "13 bytes")]
#[test_case(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0", DropReason::HeaderMalformed; "15 bytes")]
#[test_case(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", DropReason::HeaderMalformed; "16 bytes")]
fn a_client_that_closes_before_the_end_of_its_header_is_refused(part: &[u8], reason: DropReason) {
    let mut bench = bench(REQUIRED, "");
    let (client, server) = waiting(&mut bench);
    let sent = bench.receive(&client.segment(TcpFlags::FIN, part));
    assert_ended(&mut bench, (&client, &server), &sent, reason);
}

#[test_case(b"", REQUIRED; "nothing")]
#[test_case(b"PROXY TCP4 192.0.", REQUIRED; "a part")]
#[test_case(b"PROXY TCP4 192.0.", OPTIONAL; "a part of what need not come")]
#[test_case(b"PROX", OPTIONAL; "a part of the first word of what need not come")]
#[test_case(b"\r", OPTIONAL; "the first byte of what need not come, seed 9700000531 of the simulation")]
fn a_header_that_does_not_come_in_time_ends_both_legs(part: &[u8], listener: &str) {
    let mut bench = bench(listener, "");
    let (mut client, server) = waiting(&mut bench);
    if !part.is_empty() {
        only(client.send(&mut bench, part));
    }
    let sent = bench.wait(Duration::from_secs(31));
    assert_ended(&mut bench, (&client, &server), &sent, DropReason::HeaderMissing);
}

/// Seed 46 of the simulation's `syn_sweep`: the first five bytes of a header were lost, what followed was not, and when the
/// time was over the header went to the server as payload.
#[test_case(TcpFlags::ACK, b"4 192.0.2.7 198.51.100.9 1 2\r\n"; "its end")]
#[test_case(TcpFlags::FIN, b""; "a FIN")]
fn bytes_behind_a_gap_may_follow_a_header_that_need_not_come(flags: TcpFlags, behind: &[u8]) {
    let mut bench = bench(OPTIONAL, "");
    let (client, server) = waiting(&mut bench);
    let mut late = client.segment(flags | TcpFlags::ACK, behind);
    late.seq = client.seq.wrapping_add(9);
    for answer in bench.receive(&late) {
        assert_eq!((answer.to, answer.ack), (client.me, client.seq));
    }
    let sent = bench.wait(Duration::from_secs(31));
    assert_ended(&mut bench, (&client, &server), &sent, DropReason::HeaderMissing);
}

#[test]
fn the_syn_of_a_stranger_goes_nowhere_where_a_header_must_come() {
    let mut bench = bench(STRANGERS, "");
    let client = Client::new(40000);
    let reset = only(bench.receive(&client.syn()));
    assert_eq!(
        (reset.to, reset.flags, reset.ack),
        (client.me, TcpFlags::RST | TcpFlags::ACK, client.seq.wrapping_add(1))
    );
    assert_eq!(bench.dropped(DropReason::HeaderUntrusted), 1);
    assert_eq!(bench.dropped(DropReason::UnknownFlow), 0, "counted once");
    assert_eq!(bench.proxy.usage(), Usage::default());
    // Nothing was made of it, and no flood of them can fill the disk.
    assert!(bench.records().is_empty());
}

#[test]
fn who_gives_up_while_the_header_is_awaited_takes_the_other_along() {
    let mut bench = bench(REQUIRED, "");
    let (mut client, server) = waiting(&mut bench);
    only(client.send(&mut bench, &V1[..9]));
    let blind = client.segment(TcpFlags::RST, b"");
    nothing(bench.receive(&Segment {
        seq: client.seq.wrapping_sub(10),
        ..blind.clone()
    }));
    let reset = only(bench.receive(&blind));
    assert_eq!(
        (reset.to, reset.flags, reset.seq),
        (server.me, TcpFlags::RST, server.ack)
    );
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::ActiveRst);
    assert_eq!(bench.proxy.usage(), Usage::default());

    let (mut client, server) = waiting(&mut bench);
    only(client.send(&mut bench, &V1[..9]));
    let reset = Segment {
        seq: server.seq,
        flags: TcpFlags::RST,
        ..Segment::between(server.me, server.proxy)
    };
    let passed = only(bench.receive(&reset));
    assert_eq!((passed.to, passed.seq, passed.ack), (client.me, client.ack, client.seq));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::PassiveRst);
    bench.assert_all_returned();
}

#[test]
fn a_syn_in_the_wait_is_challenged_and_shutdown_tells_both() {
    let mut bench = bench(REQUIRED, "");
    let (mut client, server) = waiting(&mut bench);
    only(client.send(&mut bench, &V1[..9]));
    let challenge = only(bench.receive(&Client::new(40000).syn()));
    assert_eq!(
        (challenge.flags, challenge.seq, challenge.ack),
        (TcpFlags::ACK, client.ack, client.seq)
    );
    let resets = bench.finish();
    assert_eq!(resets.len(), 2);
    assert_eq!((resets[0].to, resets[0].seq), (client.me, client.ack));
    assert_eq!((resets[1].to, resets[1].seq), (server.me, server.ack));
    bench.assert_all_returned();
}
