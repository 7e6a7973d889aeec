//! Every translated field of a spliced segment, in both directions.

use crate::harness::{Bench, Client, Server, only};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use splice::drop_reason::DropReason;
use testkit::Segment;

fn spliced_with(bench: &mut Bench, options: impl FnOnce(&mut TcpOptions)) -> (Client, Server) {
    let mut client = Client::new(40000);
    client.connect(bench);
    let syn = only(client.send(bench, b"0 hello"));
    let mut server = Server::from_syn(&syn);
    options(&mut server.options);
    server.accept(bench);
    server.ack = server.ack.wrapping_add(7);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    (client, server)
}

#[test]
fn timestamps_follow_each_sides_clock() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced_with(&mut bench, |_| {});
    server.tsval += 10;
    let first = only(server.send(&mut bench, b"a"));
    server.tsval += 15;
    let second = only(server.send(&mut bench, b"b"));
    let (first, second) = (
        first.options.timestamps.expect("ts"),
        second.options.timestamps.expect("ts"),
    );
    assert_eq!(second.0.wrapping_sub(first.0), 15, "the server's clock, moved");
    assert!(
        (first.0.wrapping_sub(client.tsecr) as i32) >= 0,
        "never before our own SYN-ACK"
    );
    assert_eq!(first.1, client.tsval, "its own value comes back to the client");
    client.tsecr = second.0;
    client.ack = client.ack.wrapping_add(2);
    client.tsval += 3;
    let ack = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(ack.options.timestamps, Some((client.tsval, server.tsval)));
}

#[test]
fn sack_blocks_follow_the_numbers() {
    let mut bench = Bench::new();
    let (client, server) = spliced_with(&mut bench, |_| {});
    let shifted = |n: u32, of: u32| of.wrapping_add(n);
    let from_client = Segment {
        sack: vec![
            (shifted(1000, client.ack), shifted(2000, client.ack)),
            (shifted(3000, client.ack), shifted(4000, client.ack)),
        ],
        ..client.segment(TcpFlags::ACK, b"")
    };
    let passed = only(bench.receive(&from_client));
    assert_eq!(
        passed.sack,
        [
            (shifted(1000, server.seq), shifted(2000, server.seq)),
            (shifted(3000, server.seq), shifted(4000, server.seq))
        ]
    );
    let from_server = Segment {
        sack: vec![(shifted(5, server.ack), shifted(9, server.ack))],
        ..server.segment(TcpFlags::ACK, b"")
    };
    let passed = only(bench.receive(&from_server));
    assert_eq!(passed.sack, [(shifted(5, client.seq), shifted(9, client.seq))]);
}

#[test]
fn sack_that_the_server_declined_is_blanked() {
    let mut bench = Bench::new();
    let (client, _) = spliced_with(&mut bench, |options| options.sack_permitted = false);
    let ack = Segment {
        sack: vec![(client.ack.wrapping_add(1000), client.ack.wrapping_add(2000))],
        ..client.segment(TcpFlags::ACK, b"")
    };
    let passed = only(bench.receive(&ack));
    assert!(passed.sack.is_empty());
    assert!(passed.options.timestamps.is_some(), "only the blocks go");
}

#[test]
fn windows_are_rescaled_when_the_servers_shift_differs() {
    let mut bench = Bench::new();
    let (_, server) = spliced_with(&mut bench, |options| options.window_scale = Some(9));
    let passed = only(bench.receive(&Segment {
        window: 100,
        ..server.segment(TcpFlags::ACK, b"")
    }));
    assert_eq!(passed.window, 400, "the client shifts by seven, the server by nine");
}

#[test]
fn windows_are_rescaled_when_the_server_does_not_scale() {
    let mut bench = Bench::new();
    let (client, server) = spliced_with(&mut bench, |options| options.window_scale = None);
    let passed = only(bench.receive(&Segment {
        window: 64000,
        ..server.segment(TcpFlags::ACK, b"")
    }));
    assert_eq!(passed.window, 500);
    let passed = only(bench.receive(&Segment {
        window: 100,
        ..client.segment(TcpFlags::ACK, b"")
    }));
    assert_eq!(passed.window, 12800);
}

#[test]
fn a_packet_at_the_end_of_its_hops_goes_no_further() {
    let mut bench = Bench::new();
    let (client, _) = spliced_with(&mut bench, |_| {});
    let last = Segment {
        hop_limit: 1,
        ..client.segment(TcpFlags::ACK, b"")
    };
    assert!(bench.receive(&last).is_empty());
    assert_eq!(bench.dropped(DropReason::HopLimit), 1);
    let passed = only(bench.receive(&Segment {
        hop_limit: 2,
        ..client.segment(TcpFlags::ACK, b"")
    }));
    assert_eq!(passed.hop_limit, 1);
}

#[test]
fn a_keep_alive_passes_as_one() {
    let mut bench = Bench::new();
    let (client, server) = spliced_with(&mut bench, |_| {});
    let probe = Segment {
        seq: client.seq.wrapping_sub(1),
        ..client.segment(TcpFlags::ACK, b"")
    };
    let passed = only(bench.receive(&probe));
    assert_eq!(passed.seq, server.ack.wrapping_sub(1));
}

#[test]
fn a_damaged_payload_stays_damaged() {
    use e2d2::buffer::PacketBuffer;
    let mut bench = Bench::new();
    let (client, _) = spliced_with(&mut bench, |_| {});
    let mut frame = client.segment(TcpFlags::PSH, b"precious").emit(&mut bench.pool);
    let last = frame.len() - 1;
    frame.data_mut()[last] ^= 0x40;
    let sent = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        bench.receive_frame(e2d2::port::PortId(0), frame)
    }));
    assert!(
        sent.is_err(),
        "the frame that was sent must have a wrong checksum, which the harness finds"
    );
}

#[test]
fn a_damaged_fin_is_dropped_here() {
    use e2d2::buffer::PacketBuffer;
    let mut bench = Bench::new();
    let (client, _) = spliced_with(&mut bench, |_| {});
    let mut frame = client.segment(TcpFlags::FIN, b"precious").emit(&mut bench.pool);
    let last = frame.len() - 1;
    frame.data_mut()[last] ^= 0x40;
    assert!(bench.receive_frame(e2d2::port::PortId(0), frame).is_empty());
    assert_eq!(bench.dropped(DropReason::BadTcpChecksum), 1);
}
