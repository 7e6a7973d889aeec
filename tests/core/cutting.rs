//! Servers with a smaller MSS than their clients were promised.

use crate::harness::{Bench, Client, PROXY_MAC, Server, nothing, only};
use e2d2::buffer::PacketBuffer;
use e2d2::port::PortId;
use e2d2::wire::frame::{self, Kind};
use e2d2::wire::icmpv4::Icmpv4Repr;
use e2d2::wire::icmpv6::Icmpv6Repr;
use e2d2::wire::ipv6::Ipv6Header;
use e2d2::wire::tcp::TcpFlags;
use splice::drop_reason::DropReason;
use splice::round_budget::KEPT_FOR_CONTROL;
use test_case::test_case;
use testkit::Segment;

fn spliced(bench: &mut Bench, mut client: Client, payload: &[u8], mss: u16) -> (Client, Server) {
    client.connect(bench);
    let syn = only(client.send(bench, payload));
    let mut server = Server::from_syn(&syn);
    server.options.mss = Some(mss);
    server.accept(bench);
    server.ack = server.ack.wrapping_add(payload.len() as u32);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    (client, server)
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// What is sent in answer to a frame: TCP segments, and the MTUs of too-big messages to the client.
fn split(frames: Vec<Vec<u8>>) -> (Vec<Segment>, Vec<u32>) {
    let (mut segments, mut mtus) = (Vec::new(), Vec::new());
    for bytes in frames {
        match frame::parse(&bytes).expect("our own frame") {
            Kind::Tcp(_) => segments.push(Segment::read(&bytes)),
            Kind::Icmpv4 { l4, end, .. } => {
                let message = &bytes[usize::from(l4)..usize::from(end)];
                let Ok(Icmpv4Repr::Unreachable {
                    code: 4,
                    next_hop_mtu,
                    original,
                }) = Icmpv4Repr::parse(message)
                else {
                    panic!("{message:02x?}")
                };
                assert_eq!(
                    &original[12..20],
                    &[10, 0, 0, 1, 10, 0, 0, 9],
                    "the client's own packet"
                );
                mtus.push(u32::from(next_hop_mtu));
            }
            Kind::Icmpv6 { l3, l4, end } => {
                let header = Ipv6Header(bytes[usize::from(l3)..].first_chunk().expect("a header"));
                let message = Icmpv6Repr::parse(header, &bytes[usize::from(l4)..usize::from(end)]);
                let Ok(Icmpv6Repr::PacketTooBig { mtu, .. }) = message else {
                    panic!("{message:02x?}")
                };
                mtus.push(mtu);
            }
            other => panic!("{other:?}"),
        }
    }
    (segments, mtus)
}

#[test]
fn a_segment_that_is_too_long_arrives_in_pieces_and_its_sender_hears_of_it() {
    let mut bench = Bench::new();
    let (mut client, server) = spliced(&mut bench, Client::new(40000), b"0 hello", 536);
    client.tsval += 7;
    let payload = bytes(1400);
    let segment = client.segment(TcpFlags::PSH | TcpFlags::FIN, &payload);
    let (pieces, mtus) = split(bench.receive_raw(&segment));
    assert_eq!(mtus, [576], "the MSS and its headers");
    // 536 with 12 bytes of options.
    assert_eq!(
        pieces.iter().map(|piece| piece.payload.len()).collect::<Vec<_>>(),
        [524, 524, 352]
    );
    let mut expected = server.ack;
    let mut received = Vec::new();
    for (i, piece) in pieces.iter().enumerate() {
        assert_eq!(
            (piece.seq, piece.ack, piece.to, piece.window),
            (expected, server.seq, server.me, 502)
        );
        assert_eq!(piece.options.timestamps, Some((client.tsval, server.tsval)));
        let last = TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN;
        assert_eq!(piece.flags, if i == 2 { last } else { TcpFlags::ACK });
        expected = expected.wrapping_add(piece.payload.len() as u32);
        received.extend_from_slice(&piece.payload);
    }
    assert_eq!(received, payload);
    assert_eq!(bench.dropped(DropReason::Resegmented), 1);
}

#[test_case(536, 524 => 1; "as long as it takes")]
#[test_case(536, 525 => 2; "one byte more")]
#[test_case(1460, 1448 => 1; "all that Ethernet takes")]
#[test_case(88, 1400 => 19; "the least there is")]
#[test_case(0, 1400 => 19; "less than that")]
fn pieces(mss: u16, payload: usize) -> usize {
    let mut bench = Bench::new();
    let (client, _) = spliced(&mut bench, Client::new(40000), b"0 hello", mss);
    let (pieces, _) = split(bench.receive_raw(&client.segment(TcpFlags::PSH, &bytes(payload))));
    assert!(
        pieces
            .iter()
            .all(|piece| piece.payload.len() + 12 <= usize::from(mss.max(88)))
    );
    pieces.len()
}

/// Nobody believes an MTU below the least of its version of IP: the pieces have to do.
#[test]
fn no_mtu_is_told_that_nobody_believes() {
    let mut bench = Bench::new();
    let (client, _) = spliced(&mut bench, Client::new(40000), b"0 hello", 535);
    let (pieces, mtus) = split(bench.receive_raw(&client.segment(TcpFlags::PSH, &bytes(1000))));
    assert_eq!((pieces.len(), mtus.as_slice()), (2, &[][..]));
    let (client, _) = spliced(&mut bench, Client::new_v6(40001), b"3 hello", 1220);
    let (pieces, mtus) = split(bench.receive_raw(&client.segment(TcpFlags::PSH, &bytes(1400))));
    assert_eq!((pieces.len(), mtus.as_slice()), (2, &[1280][..]));
    let (client, _) = spliced(&mut bench, Client::new_v6(40002), b"3 hello", 1219);
    let (pieces, mtus) = split(bench.receive_raw(&client.segment(TcpFlags::PSH, &bytes(1400))));
    assert_eq!((pieces.len(), mtus.as_slice()), (2, &[][..]));
}

#[test]
fn a_damaged_segment_is_not_cut() {
    let mut bench = Bench::new();
    let (client, _) = spliced(&mut bench, Client::new(40000), b"0 hello", 536);
    let mut frame = client.segment(TcpFlags::PSH, &bytes(1400)).emit(&mut bench.pool);
    let last = frame.len() - 1;
    frame.data_mut()[last] ^= 0x40;
    nothing(bench.receive_frame(PortId(0), frame));
    assert_eq!(bench.dropped(DropReason::BadTcpChecksum), 1);
}

/// RFC 3168 6.1.2 and 6.1.3: an echo of congestion is in every segment until it is answered, the answer in one; and each piece
/// is of the packet's class, with its mark.
#[test]
fn pieces_say_of_congestion_what_the_segment_says() {
    for (client, mss, payload) in [
        (Client::new(40000), 536, &b"0 hello"[..]),
        (Client::new_v6(40001), 1220, b"3 hello"),
    ] {
        let mut bench = Bench::new();
        let (client, server) = spliced(&mut bench, client, payload, mss);
        let segment = client.segment(TcpFlags::PSH | TcpFlags::ECE | TcpFlags::CWR, &bytes(1400));
        let mut frame = segment.frame();
        // AF11 and CE. In IPv4 the sum of the header changes with the class.
        if client.me.address.is_ipv4() {
            frame[15] = 0x2b;
            let sum = u16::from_be_bytes([frame[24], frame[25]]) - 0x2b;
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        } else {
            (frame[14], frame[15]) = (0x62, 0xb0);
        }
        let mut sent = bench.exchange(PortId(0), &frame);
        sent.retain(|frame| matches!(frame::parse(frame), Ok(Kind::Tcp(_))));
        assert!(sent.len() > 1);
        for (index, frame) in sent.iter().enumerate() {
            let Ok(Kind::Tcp(layout)) = frame::parse(frame) else {
                panic!("not TCP")
            };
            assert_eq!(layout.ip(frame).map(|ip| ip.traffic_class()), Some(0x2b));
            let piece = Segment::read(frame);
            let congestion = piece.flags & (TcpFlags::ECE | TcpFlags::CWR);
            let expected = if index == 0 {
                TcpFlags::ECE | TcpFlags::CWR
            } else {
                TcpFlags::ECE
            };
            assert_eq!((piece.to, congestion), (server.me, expected));
        }
    }
}

/// The server may take more than the link to it.
#[test]
fn pieces_fit_the_link_that_they_leave_by() {
    let text = crate::harness::CONFIG.replace("device = \"net_null1\"", "device = \"net_null1\"\nmtu = 1280");
    let mut bench = Bench::with_config(&text);
    let (client, _) = spliced(&mut bench, Client::new(40000), b"0 hello", 1300);
    let (pieces, mtus) = split(bench.receive_raw(&client.segment(TcpFlags::PSH, &bytes(1400))));
    let lengths: Vec<_> = pieces.iter().map(|piece| piece.payload.len()).collect();
    assert_eq!((lengths, mtus), (vec![1240 - 12, 172], vec![1280]));
}

/// Of more than there is room for the client gets no ACK, and repeats it.
#[test]
fn pieces_leave_room_for_what_cannot_wait() {
    let mut bench = Bench::new();
    bench.ignores_icmp = true;
    let (client, _) = spliced(&mut bench, Client::new(40000), b"0 hello", 536);
    let segment = client.segment(TcpFlags::PSH, &bytes(1400));
    let room = KEPT_FOR_CONTROL + 2;
    assert_eq!(
        bench.receive_all(&[segment], room).len(),
        1,
        "beside the message to the client"
    );
    assert_eq!(bench.dropped(DropReason::NoRoom), 1);
}

/// What was held before the server was known goes out in segments that it takes.
#[test]
fn held_bytes_fit_the_server() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let mut payload = bytes(1400);
    payload[0] = b'0';
    let syn = only(client.send(&mut bench, &payload));
    let mut server = Server::from_syn(&syn);
    server.options.mss = Some(536);
    let (_, held) = server.accept(&mut bench);
    assert_eq!(
        held.iter().map(|piece| piece.payload.len()).collect::<Vec<_>>(),
        [524, 524, 352]
    );
}

/// The other way the server knows what the client takes.
#[test]
fn a_server_is_told_what_fits_the_client_and_both_legs() {
    let text = crate::harness::CONFIG.replace("device = \"net_null0\"", "device = \"net_null0\"\nmtu = 1280");
    let mut bench = Bench::with_config(&text);
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"0 hello"));
    assert_eq!(syn.options.mss, Some(1240), "the leg to the client takes no more");
    assert_eq!(syn.from.mac.0[5], PROXY_MAC[1]);
}
