//! Listeners that bind with the SYN: the two ends shake hands with each other, through us.

use crate::harness::{Bench, CLIENT_ISN, Client, SERVER_ISN, Server, bound_with_syn, nothing, only};
use e2d2::port::PortId;
use e2d2::wire::frame::{self, Kind};
use e2d2::wire::tcp::{TcpFlags, TcpOptions, TcpPacket};
use netfcts::{Cause, RecordFlags, Side, State};
use std::time::Duration;
use testkit::Segment;

pub const SYN_ACK: TcpFlags = TcpFlags::SYN.union(TcpFlags::ACK);

pub fn bench() -> Bench {
    Bench::for_pools(&bound_with_syn(""))
}

/// A bench with more lines for the pool of the IPv4 servers.
pub fn bench_with(lines: &str) -> Bench {
    Bench::for_pools(&bound_with_syn("").replace("name = \"all\"\n", &format!("name = \"all\"\n{lines}\n")))
}

/// The client's SYN as its server gets it.
pub fn forwarded(bench: &mut Bench) -> (Client, Segment) {
    let client = Client::new(40000);
    let syn = only(bench.receive(&client.syn()));
    (client, syn)
}

/// The SYN-ACK as the client gets it.
pub fn answered(bench: &mut Bench) -> (Client, Server, Segment) {
    let (mut client, syn) = forwarded(bench);
    let mut server = Server::from_syn(&syn);
    let syn_ack = server.shake(bench, &mut client);
    (client, server, syn_ack)
}

pub fn established(bench: &mut Bench) -> (Client, Server) {
    let (client, server, _) = answered(bench);
    let ack = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!((ack.flags, ack.to), (TcpFlags::ACK, server.me));
    assert_eq!((ack.seq, ack.ack), (server.ack, server.seq));
    (client, server)
}

/// A frame of `segment` with these very options.
fn with_options(segment: &Segment, raw: &[u8]) -> Vec<u8> {
    let bare = Segment {
        options: TcpOptions::NONE,
        payload: raw.to_vec(),
        ..segment.clone()
    };
    let mut frame = bare.frame();
    let Ok(Kind::Tcp(layout)) = frame::parse(&frame) else {
        panic!("the test's own frame")
    };
    let mut packet = TcpPacket::new_checked(&mut frame[usize::from(layout.l4)..]).expect("the test's own segment");
    packet.set_header_len(20 + raw.len());
    packet.fill_checksum(segment.from.address.ip(), segment.to.address.ip());
    frame
}

fn raw_options(frame: &[u8]) -> Vec<u8> {
    // Checks the checksums, too.
    Segment::read(frame);
    let Ok(Kind::Tcp(layout)) = frame::parse(frame) else {
        panic!("not TCP")
    };
    frame[usize::from(layout.l4) + 20..usize::from(layout.payload)].to_vec()
}

#[test]
fn the_two_ends_agree_with_each_other_and_talk() {
    let mut bench = bench();
    let (mut client, syn) = forwarded(&mut bench);
    assert_eq!((syn.flags, syn.window), (TcpFlags::SYN, client.syn().window));
    assert_eq!(syn.options, client.syn().options, "the client's own");
    assert_ne!(syn.seq, CLIENT_ISN, "the number is ours");
    let mut server = Server::from_syn(&syn);
    server.options = TcpOptions {
        mss: Some(1200),
        window_scale: Some(9),
        sack_permitted: false,
        timestamps: Some((90_000, 500)),
    };
    let syn_ack = only(bench.receive(&server.syn_ack()));
    assert_eq!((syn_ack.flags, syn_ack.window), (SYN_ACK, 65160));
    assert_ne!(syn_ack.seq, SERVER_ISN, "the number is ours");
    let (tsval, echo) = syn_ack.options.timestamps.expect("timestamps");
    assert_eq!(
        syn_ack.options,
        TcpOptions {
            timestamps: Some((tsval, 500)),
            ..server.options
        },
        "the server's own"
    );
    assert_eq!(echo, 500);
    server.seq = server.isn.wrapping_add(1);
    client.take_syn_ack(&syn_ack);
    let ack = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!((ack.seq, ack.ack, ack.window), (server.ack, server.seq, 502));
    assert_eq!(
        ack.options.timestamps,
        Some((501, 90_000)),
        "its echo is the server's own time stamp"
    );
    let banner = only(server.send(&mut bench, b"220 ready"));
    assert_eq!(
        (banner.payload.as_slice(), banner.seq, banner.ack),
        (&b"220 ready"[..], client.ack, client.seq)
    );
    assert_eq!(banner.window, 509, "no window is rescaled");
    client.ack = client.ack.wrapping_add(9);
    let hello = only(client.send(&mut bench, b"HELO"));
    assert_eq!((hello.seq, hello.ack), (server.ack, server.seq));
    assert!(
        bench
            .calls
            .lock()
            .expect("calls")
            .iter()
            .all(|(bytes, complete)| bytes.is_empty() && *complete)
    );
}

#[test]
fn the_record_tells_of_a_handshake_end_to_end() {
    let mut bench = bench();
    let (mut client, mut server) = established(&mut bench);
    only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    client.seq = client.seq.wrapping_add(1);
    server.ack = server.ack.wrapping_add(1);
    only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
    client.ack = client.ack.wrapping_add(1);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    let record = bench.records()[0];
    assert_eq!(record.cause(Side::Client), Cause::ActiveClose);
    assert!(!record.flags().contains(RecordFlags::COOKIE));
    assert_eq!(record.servers_tried(), 1);
    assert_eq!((record.packets_to_server, record.packets_to_client), (4, 2));
    let states: Vec<_> = record
        .changes()
        .filter(|change| change.side == Side::Client)
        .map(|change| change.state)
        .take(2)
        .collect();
    assert_eq!(states, [State::SynSent, State::Established]);
    bench.assert_all_returned();
}

#[test]
fn options_that_cannot_pass_are_taken_out_and_unknown_ones_stay() {
    // MSS 1460, fast open, experiment 253, MPTCP, SACK permitted, window scale; then MD5 in a segment of its own.
    let raw = [
        2, 4, 5, 0xb4, 34, 6, 1, 2, 3, 4, 253, 6, 9, 8, 7, 6, 30, 4, 0, 1, 4, 2, 3, 3, 7, 0, 0, 0,
    ];
    let passed = [
        2, 4, 5, 0xb4, 1, 1, 1, 1, 1, 1, 253, 6, 9, 8, 7, 6, 1, 1, 1, 1, 4, 2, 3, 3, 7, 0, 0, 0,
    ];
    let mut bench = bench();
    let client = Client::new(40000);
    let sent = bench.receive_bytes(PortId(0), &with_options(&client.syn(), &raw));
    assert_eq!(raw_options(&sent[0]), passed);
    let server = Server::from_syn(&Segment::read(&sent[0]));
    let sent = bench.receive_bytes(PortId(1), &with_options(&server.syn_ack(), &raw));
    assert_eq!(raw_options(&sent[0]), passed);

    let mut signed = vec![19, 18];
    signed.extend([7; 16]);
    signed.extend([29, 4, 1, 2, 1, 1]);
    let other = Client::new(40001);
    let sent = bench.receive_bytes(PortId(0), &with_options(&other.syn(), &signed));
    assert_eq!(raw_options(&sent[0]), [1; 24]);
    // Nothing at all stays nothing.
    let bare = Client::new(40002);
    let sent = bench.receive_bytes(PortId(0), &with_options(&bare.syn(), &[]));
    assert!(raw_options(&sent[0]).is_empty());
}

#[test]
fn an_mss_that_no_port_carries_is_lowered_on_both_ways() {
    let text = bound_with_syn("").replace("device = \"net_null1\"\n", "device = \"net_null1\"\nmtu = 1300\n");
    let mut bench = Bench::for_pools(&text);
    let (_, syn) = forwarded(&mut bench);
    assert_eq!(syn.options.mss, Some(1260));
    let syn_ack = only(bench.receive(&Server::from_syn(&syn).syn_ack()));
    assert_eq!(syn_ack.options.mss, Some(1260));
    let syn6 = only(bench.receive(&Client::new_v6(40000).syn()));
    assert_eq!(syn6.options.mss, Some(1240));
}

#[test]
fn what_is_said_of_ecn_passes() {
    let mut bench = bench();
    let client = Client::new(40000);
    let syn = only(bench.receive(&Segment {
        flags: TcpFlags::SYN | TcpFlags::ECE | TcpFlags::CWR,
        ..client.syn()
    }));
    assert_eq!(syn.flags, TcpFlags::SYN | TcpFlags::ECE | TcpFlags::CWR);
    let plain = Segment {
        flags: TcpFlags::SYN,
        ..syn
    };
    let server = Server::from_syn(&plain);
    let syn_ack = only(bench.receive(&Segment {
        flags: SYN_ACK | TcpFlags::ECE,
        ..server.syn_ack()
    }));
    assert_eq!(syn_ack.flags, SYN_ACK | TcpFlags::ECE);
}

#[test]
fn data_on_the_syn_are_left_to_the_client() {
    let mut bench = bench();
    let client = Client::new(40000);
    let syn = only(bench.receive(&Segment {
        payload: b"early".to_vec(),
        ..client.syn()
    }));
    assert!(syn.payload.is_empty());
    let server = Server::from_syn(&syn);
    let syn_ack = only(bench.receive(&server.syn_ack()));
    assert_eq!(syn_ack.ack, CLIENT_ISN.wrapping_add(1));
}

#[test]
fn without_scaling_on_one_side_no_window_is_scaled() {
    let mut bench = bench();
    let (mut client, syn) = forwarded(&mut bench);
    let mut server = Server::from_syn(&syn);
    server.options.window_scale = None;
    let syn_ack = only(bench.receive(&server.syn_ack()));
    assert_eq!(syn_ack.options.window_scale, None);
    server.seq = server.isn.wrapping_add(1);
    client.take_syn_ack(&syn_ack);
    let ack = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(ack.window, 502);
    // Beyond the window of the SYN, but not beyond one of 502 units of 128 bytes.
    let blind = Segment {
        seq: server.seq.wrapping_add(64_245),
        flags: TcpFlags::RST,
        ..server.segment(TcpFlags::RST, b"")
    };
    nothing(bench.receive(&blind));
    let window = only(server.send(&mut bench, b"x")).window;
    assert_eq!(window, 509);
}

#[test]
fn each_end_repeats_what_was_lost() {
    let mut bench = bench();
    let (client, syn) = forwarded(&mut bench);
    nothing(bench.wait(Duration::from_secs(5)));
    let again = only(bench.receive(&client.syn()));
    assert_eq!(again, syn);
    let server = Server::from_syn(&syn);
    let first = only(bench.receive(&server.syn_ack()));
    // The SYN-ACK was lost behind us: either end may ask for it.
    let again = only(bench.receive(&client.syn()));
    assert_eq!(again, syn);
    bench.wait(Duration::from_secs(1));
    let repeated = only(bench.receive(&Segment {
        options: TcpOptions {
            timestamps: Some((91_000, 500)),
            ..server.options
        },
        ..server.syn_ack()
    }));
    assert_eq!((repeated.seq, repeated.ack), (first.seq, first.ack));
    let difference = |segment: &Segment| segment.options.timestamps.expect("timestamps").0;
    assert_eq!(difference(&repeated).wrapping_sub(difference(&first)), 1000);
}

#[test]
fn a_lost_third_ack_is_made_good_by_data_or_by_the_servers_repetition() {
    let mut bench = bench();
    let (mut client, server, _) = answered(&mut bench);
    let hello = only(client.send(&mut bench, b"hello"));
    assert_eq!((hello.payload.as_slice(), hello.seq), (&b"hello"[..], server.ack));

    let mut other = Client::new(40001);
    let syn = only(bench.receive(&other.syn()));
    let mut server = Server::from_syn(&syn);
    server.shake(&mut bench, &mut other);
    // The first segment was lost as well, the second comes.
    let second = Segment {
        seq: other.seq.wrapping_add(5),
        ..other.segment(TcpFlags::FIN, b"world")
    };
    let passed = only(bench.receive(&second));
    assert_eq!(passed.seq, server.ack.wrapping_add(5));
    assert!(passed.flags.contains(TcpFlags::FIN));
}

#[test]
fn a_third_ack_that_is_lost_on_its_way_to_the_server_is_repeated_by_us() {
    let mut bench = bench();
    let (_, server) = established(&mut bench);
    let ack = only(bench.receive(&server.syn_ack()));
    assert_eq!((ack.flags, ack.to), (TcpFlags::ACK, server.me));
    assert_eq!((ack.seq, ack.ack), (server.ack, server.seq));
}

#[test]
fn a_server_that_has_started_anew_may_answer_with_another_number() {
    let mut bench = bench();
    let (mut client, syn) = forwarded(&mut bench);
    let mut server = Server::from_syn(&syn);
    let first = only(bench.receive(&server.syn_ack()));
    server.isn = 4242;
    let second = only(bench.receive(&server.syn_ack()));
    assert_eq!(second.seq, first.seq, "the client sees a repetition");
    server.seq = server.isn.wrapping_add(1);
    client.take_syn_ack(&first);
    let ack = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(ack.ack, 4243);
    assert_eq!(only(server.send(&mut bench, b"x")).seq, client.ack);
}

#[test]
fn the_header_follows_the_clients_ack() {
    let mut bench = bench_with("proxy_protocol = { send = \"v1\" }");
    let (mut client, mut server, _) = answered(&mut bench);
    let header = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    let text = b"PROXY TCP4 10.0.0.1 10.0.0.9 40000 80\r\n";
    assert_eq!(header.payload, text);
    assert_eq!(
        (header.seq, header.ack),
        (server.ack, server.seq),
        "it acknowledges the SYN"
    );
    // Lost: nobody but us can send it again.
    let again = only(bench.wait(Duration::from_millis(1100)));
    assert_eq!((again.seq, again.payload.as_slice()), (header.seq, &text[..]));
    // The server speaks first, and the client learns nothing of the header.
    server.ack = server.ack.wrapping_add(text.len() as u32);
    nothing(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    let banner = only(server.send(&mut bench, b"220"));
    assert_eq!((banner.seq, banner.ack), (client.ack, client.seq));
    client.ack = client.ack.wrapping_add(3);
    let hello = only(client.send(&mut bench, b"HELO"));
    assert_eq!((hello.seq, hello.ack), (server.ack, server.seq));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn the_header_goes_before_data_that_come_with_the_ack() {
    let mut bench = bench_with("proxy_protocol = { send = \"v2\" }");
    let (mut client, server, _) = answered(&mut bench);
    let sent = client.send(&mut bench, b"HELO");
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].seq, server.ack);
    assert_eq!(sent[1].payload, b"HELO");
    assert_eq!(sent[1].seq, server.ack.wrapping_add(sent[0].payload.len() as u32));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn all_of_it_over_ipv6() {
    let mut bench = bench();
    let mut client = Client::new_v6(40000);
    let syn = only(bench.receive(&client.syn()));
    assert_eq!(
        syn.options,
        TcpOptions {
            mss: Some(1440),
            ..client.syn().options
        }
    );
    let syn_ack = only(bench.receive(&Server::from_syn(&syn).syn_ack()));
    client.take_syn_ack(&syn_ack);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(only(client.send(&mut bench, b"hi")).payload, b"hi");
}

#[test]
fn from_ipv4_to_ipv6_and_back() {
    let mut bench = Bench::for_pools(&["0", "1", "2"].iter().fold(bound_with_syn(""), |text, n| {
        text.replace(&format!("10.1.0.10{n}:"), &format!("[fd01::20{n}]:"))
    }));
    let mut client = Client::new(40000);
    let syn = only(bench.receive(&client.syn()));
    assert!(syn.to.address.is_ipv6());
    assert_eq!(
        syn.options,
        TcpOptions {
            mss: Some(1440),
            ..client.syn().options
        }
    );
    let mut server = Server::from_syn(&syn);
    let syn_ack = only(bench.receive(&server.syn_ack()));
    assert_eq!(
        syn_ack.options.mss,
        Some(1440),
        "what fits the server's link with a longer header"
    );
    server.seq = server.isn.wrapping_add(1);
    client.take_syn_ack(&syn_ack);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(only(client.send(&mut bench, b"hi")).payload, b"hi");
    assert_eq!(only(server.send(&mut bench, b"220")).payload, b"220");
}
