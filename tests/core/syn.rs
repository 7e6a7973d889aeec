//! Listeners that bind with the SYN: the two ends shake hands with each other, through us.

use crate::harness::{Bench, CLIENT_ISN, CONFIG, Client, SERVER_ISN, Server, nothing, only};
use e2d2::port::PortId;
use e2d2::wire::frame::{self, Kind};
use e2d2::wire::tcp::{TcpFlags, TcpOptions, TcpPacket};
use netfcts::record::{Cause, RecordFlags, Side, State};
use proxyengine::proxy::Usage;
use proxyengine::proxy::drop_reason::DropReason;
use std::time::Duration;
use testkit::Segment;

const RULES: &str = "rules = [{ first_number = true, pool = \"all\" }]\ndefault = \"reject\"";
const SYN_ACK: TcpFlags = TcpFlags::SYN.union(TcpFlags::ACK);
const RST_ACK: TcpFlags = TcpFlags::RST.union(TcpFlags::ACK);

fn text() -> String {
    let text = CONFIG.replacen(RULES, "bind = \"syn\"\ndefault = \"all\"", 1);
    let rules6 = "rules = [{ first_number = true, pool = \"all6\" }]\ndefault = \"reject\"";
    text.replacen(rules6, "bind = \"syn\"\ndefault = \"all6\"", 1)
}

fn bench() -> Bench {
    Bench::for_pools(&text())
}

/// A bench with more lines for the pool of the IPv4 servers.
fn bench_with(lines: &str) -> Bench {
    Bench::for_pools(&text().replace("name = \"all\"\n", &format!("name = \"all\"\n{lines}\n")))
}

/// The client's SYN as its server gets it.
fn forwarded(bench: &mut Bench) -> (Client, Segment) {
    let client = Client::new(40000);
    let syn = only(bench.receive(&client.syn()));
    (client, syn)
}

/// The SYN-ACK as the client gets it.
fn answered(bench: &mut Bench) -> (Client, Server, Segment) {
    let (mut client, syn) = forwarded(bench);
    let mut server = Server::from_syn(&syn);
    let syn_ack = only(bench.receive(&server.syn_ack()));
    server.seq = server.isn.wrapping_add(1);
    client.take_syn_ack(&syn_ack);
    (client, server, syn_ack)
}

fn established(bench: &mut Bench) -> (Client, Server) {
    let (client, server, _) = answered(bench);
    let ack = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!((ack.flags, ack.to), (TcpFlags::ACK, server.me));
    assert_eq!((ack.seq, ack.ack), (server.ack, server.seq));
    (client, server)
}

fn refusal(syn: &Segment) -> Segment {
    Segment {
        ack: syn.seq.wrapping_add(1),
        flags: RST_ACK,
        window: 0,
        ..Segment::between(syn.to, syn.from)
    }
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
    assert_eq!(record.servers_tried, 1);
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
    let text = text().replace("device = \"net_null1\"\n", "device = \"net_null1\"\nmtu = 1300\n");
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
    let syn_ack = only(bench.receive(&server.syn_ack()));
    server.seq = server.isn.wrapping_add(1);
    other.take_syn_ack(&syn_ack);
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
fn a_refused_syn_goes_to_the_next_server_and_at_last_the_client_is_told() {
    let mut bench = bench();
    let (client, first) = forwarded(&mut bench);
    let second = only(bench.receive(&refusal(&first)));
    let third = only(bench.receive(&refusal(&second)));
    for next in [&second, &third] {
        assert_eq!((next.flags, next.options), (TcpFlags::SYN, first.options));
    }
    let mut tried = [first.to, second.to, third.to].map(|station| station.address);
    tried.sort();
    assert!(tried[0] != tried[1] && tried[1] != tried[2]);
    let reset = only(bench.receive(&refusal(&third)));
    // RFC 9293 3.10.7.1.
    assert_eq!((reset.flags, reset.to), (RST_ACK, client.me));
    assert_eq!((reset.seq, reset.ack), (0, CLIENT_ISN.wrapping_add(1)));
    let record = bench.records()[0];
    assert_eq!(
        (record.cause(Side::Client), record.servers_tried),
        (Cause::ServerRefused, 3)
    );
    assert_eq!(bench.proxy.usage(), Usage::default());
    bench.assert_all_returned();
}

#[test]
fn silent_servers_are_passed_over_without_the_clients_help() {
    let mut bench = bench_with("retries = 1");
    let (client, first) = forwarded(&mut bench);
    let sent = bench.wait(Duration::from_millis(10_100));
    let second = only(sent);
    assert_ne!(second.to, first.to);
    // Its repetition goes to whom it is now meant for.
    assert_eq!(only(bench.receive(&client.syn())), second);
    let mut sent = bench.wait(Duration::from_secs(31));
    let reset = sent.pop().expect("a reset");
    assert_eq!((reset.flags, reset.to), (RST_ACK, client.me));
    assert_eq!((reset.seq, reset.ack), (0, CLIENT_ISN.wrapping_add(1)));
    assert_eq!(sent.len(), 2, "the third, and once more the last: {sent:#?}");
    let record = bench.records()[0];
    assert_eq!(
        (record.cause(Side::Client), record.servers_tried),
        (Cause::ServerTimeout, 4)
    );
    bench.assert_all_returned();
}

#[test]
fn a_fail_over_still_leads_to_a_connection() {
    let mut bench = bench();
    let (mut client, first) = forwarded(&mut bench);
    let second = only(bench.receive(&refusal(&first)));
    let mut server = Server::from_syn(&second);
    let syn_ack = only(bench.receive(&server.syn_ack()));
    server.seq = server.isn.wrapping_add(1);
    client.take_syn_ack(&syn_ack);
    let hello = only(client.send(&mut bench, b"hello"));
    assert_eq!((hello.to, hello.seq, hello.ack), (server.me, server.ack, server.seq));
}

#[test]
fn a_server_in_time_wait_is_reset_and_called_again() {
    let mut bench = bench();
    let (_, syn) = forwarded(&mut bench);
    let stale = Segment {
        seq: 77,
        ack: 12345,
        ..Segment::between(syn.to, syn.from)
    };
    let sent = bench.receive(&stale);
    assert_eq!(sent.len(), 2);
    assert_eq!((sent[0].flags, sent[0].seq), (TcpFlags::RST, 12345));
    assert_eq!(sent[1], syn);
}

#[test]
fn a_client_that_gives_up_takes_the_server_along() {
    for is_answered in [false, true] {
        let mut bench = bench();
        let (mut client, syn) = forwarded(&mut bench);
        client.seq = CLIENT_ISN.wrapping_add(1);
        if is_answered {
            only(bench.receive(&Server::from_syn(&syn).syn_ack()));
        }
        let blind = Segment {
            seq: client.seq.wrapping_sub(1),
            flags: TcpFlags::RST,
            ..client.segment(TcpFlags::RST, b"")
        };
        nothing(bench.receive(&blind));
        let doubtful = Segment {
            seq: client.seq.wrapping_add(1),
            ..blind.clone()
        };
        assert_eq!(only(bench.receive(&doubtful)).flags, TcpFlags::ACK, "a challenge");
        let reset = only(bench.receive(&Segment {
            seq: client.seq,
            ..blind
        }));
        assert_eq!((reset.flags, reset.to), (TcpFlags::RST, syn.to));
        assert_eq!(reset.seq, syn.seq.wrapping_add(1));
        assert_eq!(bench.records()[0].cause(Side::Client), Cause::ActiveRst);
        assert_eq!(bench.proxy.usage(), Usage::default());
        bench.assert_all_returned();
    }
}

#[test]
fn a_server_that_gives_up_after_its_answer_ends_the_connection() {
    for by_number in [false, true] {
        let mut bench = bench();
        let (client, server, _) = answered(&mut bench);
        let reset = Segment {
            seq: if by_number { server.seq } else { 0 },
            ack: if by_number { 0 } else { server.ack },
            flags: if by_number { TcpFlags::RST } else { RST_ACK },
            ..Segment::between(server.me, server.proxy)
        };
        let blind = Segment {
            seq: server.seq.wrapping_add(1),
            flags: TcpFlags::RST,
            ack: 0,
            ..reset.clone()
        };
        nothing(bench.receive(&blind));
        let passed = only(bench.receive(&reset));
        assert_eq!((passed.to, passed.seq, passed.ack), (client.me, client.ack, client.seq));
        assert!(passed.flags.contains(TcpFlags::RST));
        assert_eq!(bench.records()[0].cause(Side::Client), Cause::PassiveRst);
        bench.assert_all_returned();
    }
}

#[test]
fn a_client_that_begins_anew_is_challenged_and_then_believed() {
    let mut bench = bench();
    let (client, _) = forwarded(&mut bench);
    let mut fresh = Client::new(40000);
    fresh.seq = 900_000;
    let challenge = only(bench.receive(&fresh.syn()));
    assert_eq!(
        (challenge.flags, challenge.ack),
        (TcpFlags::ACK, CLIENT_ISN.wrapping_add(1))
    );
    // RFC 9293 3.10.7.3: its SYN-SENT answers with the number that was acknowledged.
    let reset = Segment {
        seq: challenge.ack,
        ack: 0,
        flags: TcpFlags::RST,
        options: TcpOptions::NONE,
        ..Segment::between(client.me, client.proxy)
    };
    only(bench.receive(&reset));
    let syn = only(bench.receive(&fresh.syn()));
    assert_eq!(syn.flags, TcpFlags::SYN);
}

#[test]
fn only_the_ack_of_the_syn_ack_opens() {
    let mut bench = bench();
    let (client, server, _) = answered(&mut bench);
    let good = client.segment(TcpFlags::ACK, b"");
    let wrong_ack = Segment {
        ack: good.ack.wrapping_add(1),
        ..good.clone()
    };
    let old = Segment {
        seq: good.seq.wrapping_sub(1),
        ..good.clone()
    };
    let beyond = Segment {
        seq: good.seq.wrapping_add(0xffff),
        ..good.clone()
    };
    for bad in [wrong_ack, old, beyond] {
        let challenge = only(bench.receive(&bad));
        assert_eq!(
            (challenge.to, challenge.seq, challenge.ack),
            (client.me, client.ack, client.seq)
        );
    }
    // Nor does anything of the server's pass before.
    nothing(bench.receive(&server.segment(TcpFlags::PSH, b"too early")));
    assert_eq!(bench.dropped(DropReason::NotAnAnswer), 1);
    only(bench.receive(&good));
}

#[test]
fn a_client_that_never_acknowledges_is_let_go() {
    let mut bench = bench();
    let (client, server, _) = answered(&mut bench);
    nothing(bench.wait(Duration::from_millis(29_900)));
    let resets = bench.wait(Duration::from_millis(300));
    assert_eq!(resets.len(), 2);
    assert_eq!((resets[0].to, resets[0].seq), (client.me, client.ack));
    assert_eq!((resets[1].to, resets[1].seq), (server.me, server.ack));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::HandshakeTimeout);
    bench.assert_all_returned();
}

#[test]
fn past_the_mark_clients_are_answered_by_cookie_and_memory_does_not_grow() {
    let mut bench = bench();
    let memory = bench.proxy.memory();
    let mut answers = Vec::new();
    for n in 0..1000_u16 {
        answers.push(only(bench.receive(&Client::new(n).syn())));
    }
    let passed = answers.iter().filter(|answer| answer.flags == TcpFlags::SYN).count();
    assert_eq!(passed, 12, "three quarters of a quarter of the connections");
    assert_eq!(bench.proxy.usage().passed_syns, 12);
    assert_eq!(bench.dropped(DropReason::SynsFull), 988);
    assert_eq!(bench.proxy.memory(), memory);
    // Who was answered by cookie is served all the same.
    let mut late = Client::new(999);
    late.take_syn_ack(answers.last().expect("an answer"));
    let syn = only(bench.receive(&late.segment(TcpFlags::ACK, b"")));
    let mut server = Server::from_syn(&syn);
    server.accept(&mut bench);
    assert_eq!(only(server.send(&mut bench, b"220 ready")).payload, b"220 ready");
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn while_the_last_connection_rests_a_syn_gets_a_cookie() {
    let mut bench = bench();
    let (mut client, _) = established(&mut bench);
    only(bench.receive(&client.segment(TcpFlags::RST, b"")));
    client.seq = 50_000_000;
    let syn_ack = only(bench.receive(&client.syn()));
    assert_eq!((syn_ack.flags, syn_ack.to), (SYN_ACK, client.me));
    client.take_syn_ack(&syn_ack);
    let syn = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(syn.flags, TcpFlags::SYN);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn a_cookie_whose_ack_is_lost_is_repeated_though_the_last_connection_rests() {
    let mut bench = bench();
    let (mut client, _) = established(&mut bench);
    only(bench.receive(&client.segment(TcpFlags::RST, b"")));
    client.seq = 50_000_000;
    let syn_ack = only(bench.receive(&client.syn()));
    // The client waits for the server to speak. Its ACK never comes.
    let again = only(bench.wait(Duration::from_millis(1_100)));
    assert_eq!((again.flags, again.seq, again.to), (SYN_ACK, syn_ack.seq, client.me));
    client.take_syn_ack(&again);
    let syn = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(syn.flags, TcpFlags::SYN);
    // It has come, and is over: nothing is repeated to it.
    let refused = bench.receive(&refusal(&syn));
    let syn = only(refused);
    let refused = bench.receive(&refusal(&syn));
    let syn = only(refused);
    assert_eq!(only(bench.receive(&refusal(&syn))).to, client.me);
    nothing(bench.wait(Duration::from_secs(10)));
    bench.assert_all_returned();
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
fn shutdown_tells_both_ends_whatever_they_know() {
    let mut bench = bench();
    let (client, syn) = forwarded(&mut bench);
    let resets = bench.finish();
    assert_eq!(resets.len(), 2);
    assert_eq!(
        (resets[0].to, resets[0].seq, resets[0].ack),
        (client.me, 0, CLIENT_ISN.wrapping_add(1))
    );
    assert_eq!((resets[1].to, resets[1].seq), (syn.to, syn.seq.wrapping_add(1)));
    bench.assert_all_returned();

    let mut bench = self::bench();
    let (client, server, _) = answered(&mut bench);
    let resets = bench.finish();
    assert_eq!((resets[0].to, resets[0].seq), (client.me, client.ack));
    assert_eq!((resets[1].to, resets[1].seq), (server.me, server.ack));
    bench.assert_all_returned();
    // And a core that drains takes none.
    let mut bench = self::bench();
    bench.proxy.begin_drain();
    nothing(bench.receive(&Client::new(40000).syn()));
    assert_eq!(bench.dropped(DropReason::Draining), 1);
}

#[test]
fn an_unknown_next_hop_is_waited_for_by_the_client() {
    let mut bench = bench();
    bench.hops.0.borrow_mut().extend([0, 1, 2]);
    let client = Client::new(40000);
    nothing(bench.receive(&client.syn()));
    bench.hops.0.borrow_mut().clear();
    let syn = only(bench.receive(&client.syn()));
    assert_eq!(syn.flags, TcpFlags::SYN);
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
    let mut bench = Bench::for_pools(&["0", "1", "2"].iter().fold(text(), |text, n| {
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
