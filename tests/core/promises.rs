//! What clients are promised by what was learned from servers, and that it is kept.

use crate::harness::{Bench, CONFIG, Client, Server, only};
use crate::probes::{ABLE, answer_probes, bench_with, counted, number, options, promise, syn_ack};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use proxyengine::config::ServerId;
use splice::ProbeEvent;
use splice::syn_ack_options::ServerCaps;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

fn next_slot(bench: &mut Bench) -> Vec<Segment> {
    let now = bench.now.as_millis();
    bench.wait(Duration::from_millis(8_000 - now % 8_000))
}

#[test_case(ABLE => (Some(1460), Some(7), true, true, 16384); "all servers can do everything")]
#[test_case(ServerCaps { timestamps: false, ..ABLE } => (Some(1460), Some(7), true, false, 16384); "no timestamps")]
#[test_case(ServerCaps { sack: false, ..ABLE } => (Some(1460), Some(7), false, true, 16384); "no SACK")]
#[test_case(ServerCaps { window_scale: None, ..ABLE } => (Some(1460), Some(0), true, true, 16384); "no window scaling")]
#[test_case(ServerCaps { window_scale: Some(3), ..ABLE } => (Some(1460), Some(3), true, true, 16384); "a smaller shift")]
#[test_case(ServerCaps { window_scale: Some(9), ..ABLE } => (Some(1460), Some(7), true, true, 16384); "a larger shift")]
#[test_case(ServerCaps { mss: 536, ..ABLE } => (Some(536), Some(7), true, true, 16384); "a small MSS")]
#[test_case(ServerCaps { mss: 9000, ..ABLE } => (Some(1460), Some(7), true, true, 16384); "an MSS beyond our MTU")]
#[test_case(ServerCaps { mss: 0, ..ABLE } => (Some(88), Some(7), true, true, 16384); "an impossible MSS")]
#[test_case(ServerCaps { window: 1000, ..ABLE } => (Some(1460), Some(7), true, true, 1000); "a small window")]
#[test_case(ServerCaps { window: 16383, ..ABLE } => (Some(1460), Some(7), true, true, 16383); "a window just below ours")]
#[test_case(ServerCaps { window: 0, ..ABLE } => (Some(1460), Some(7), true, true, 536); "a closed window")]
fn the_promise_is_the_least_of_all_servers(first: ServerCaps) -> (Option<u16>, Option<u8>, bool, bool, u16) {
    let mut bench = bench_with(CONFIG, first);
    let syn_ack = promise(&mut bench, 40000);
    let TcpOptions {
        mss,
        window_scale,
        sack_permitted,
        timestamps,
    } = syn_ack.options;
    (mss, window_scale, sack_permitted, timestamps.is_some(), syn_ack.window)
}

#[test]
fn the_mss_fits_the_servers_legs_and_the_clients() {
    for (client_mtu, server_mtu, server_mss, told) in [
        (9000, 1500, 8960, 1460),
        (1500, 9000, 8960, 1460),
        (9000, 9000, 8960, 8960),
        (1280, 9000, 8960, 1240),
    ] {
        let text = CONFIG
            .replace(
                "device = \"net_null0\"",
                &format!("device = \"net_null0\"\nmtu = {client_mtu}"),
            )
            .replace(
                "device = \"net_null1\"",
                &format!("device = \"net_null1\"\nmtu = {server_mtu}"),
            );
        let mut bench = bench_with(
            &text,
            ServerCaps {
                mss: server_mss,
                ..ABLE
            },
        );
        // All three servers: the others would bring it down to 1460.
        let mut able = Bench::probing(&text);
        answer_probes(&mut able, |_| {
            Some(ServerCaps {
                mss: server_mss,
                ..ABLE
            })
        });
        assert_eq!(
            promise(&mut able, 40000).options.mss,
            Some(told),
            "{client_mtu} {server_mtu}"
        );
        assert_eq!(promise(&mut bench, 40000).options.mss, Some(told.min(1460)));
        let mut client = Client::new_v6(40000);
        client.tsval += 1;
        let over_ipv6 = only(able.receive(&client.syn()));
        assert_eq!(over_ipv6.options.mss, Some(told - 20), "{client_mtu} {server_mtu}");
    }
}

#[test]
fn no_listener_is_bound_by_servers_that_its_rules_do_not_reach() {
    let mut bench = Bench::probing(CONFIG);
    let none = ServerCaps {
        mss: 536,
        window_scale: None,
        sack: false,
        timestamps: false,
        window: 1000,
    };
    answer_probes(&mut bench, |server| Some(if server < 3 { none } else { ABLE }));
    let v4 = promise(&mut bench, 40000);
    assert_eq!(
        v4.options,
        TcpOptions {
            mss: Some(536),
            ..TcpOptions::NONE
        }
    );
    let v6 = only(bench.receive(&Client::new_v6(40000).syn()));
    assert_eq!(
        (v6.options.mss, v6.options.window_scale, v6.window),
        (Some(1440), Some(7), 16384)
    );
    assert!(v6.options.sack_permitted && v6.options.timestamps.is_some());
}

#[test]
fn timestamps_are_not_promised_before_the_first_probes_are_over() {
    let mut bench = Bench::probing(CONFIG);
    let first = promise(&mut bench, 40000);
    assert_eq!(
        (first.options.window_scale, first.options.sack_permitted),
        (Some(7), true)
    );
    assert_eq!(first.options.timestamps, None, "nobody has shown any");
    // One of three answers; the two others stay silent until they are given up.
    answer_probes(&mut bench, |server| (server == 1).then_some(ABLE));
    next_slot(&mut bench);
    assert!(
        promise(&mut bench, 40001).options.timestamps.is_some(),
        "the silent ones serve nobody"
    );
}

#[test]
fn a_server_that_is_still_asked_may_have_none() {
    let mut bench = Bench::probing(CONFIG);
    answer_probes(&mut bench, |server| (server == 1).then_some(ABLE));
    assert_eq!(promise(&mut bench, 40001).options.timestamps, None);
}

#[test]
fn pinned_values_hold_whatever_the_servers_can_do() {
    let none = ServerCaps {
        mss: 536,
        window_scale: None,
        sack: false,
        timestamps: false,
        window: 1000,
    };
    let promised = |lines: &str| {
        let mut bench = Bench::probing(&format!("{CONFIG}\n[syn_ack]\n{lines}\n"));
        answer_probes(&mut bench, |_| Some(none));
        let syn_ack = promise(&mut bench, 40000);
        (syn_ack.options, syn_ack.window)
    };
    let least = TcpOptions {
        mss: Some(536),
        ..TcpOptions::NONE
    };
    assert_eq!(promised(""), (least, 1000));
    let mss = TcpOptions {
        mss: Some(1400),
        ..least
    };
    assert_eq!(promised("mss = 1400"), (mss, 1000));
    let scale = TcpOptions {
        window_scale: Some(5),
        ..least
    };
    assert_eq!(promised("window_scale = 5"), (scale, 1000));
    let sack = TcpOptions {
        sack_permitted: true,
        ..least
    };
    assert_eq!(promised("sack = true"), (sack, 1000));
    assert!(promised("timestamps = true").0.timestamps.is_some());
    assert_eq!(promised("window = 4000"), (least, 4000));
}

/// A client that has its SYN-ACK, and has not yet answered it.
fn called(bench: &mut Bench, port: u16) -> (Client, Segment) {
    let mut client = Client::new(port);
    let syn_ack = only(bench.receive(&client.syn()));
    client.seq = syn_ack.ack;
    client.ack = syn_ack.seq.wrapping_add(1);
    client.tsecr = syn_ack.options.timestamps.map_or(0, |(value, _)| value);
    (client, syn_ack)
}

fn request(client: &mut Client, syn_ack: &Segment, bytes: &[u8]) -> Segment {
    let mut segment = client.segment(TcpFlags::PSH, bytes);
    if syn_ack.options.timestamps.is_none() {
        segment.options = TcpOptions::NONE;
    }
    client.seq = client.seq.wrapping_add(bytes.len() as u32);
    segment
}

#[test]
fn a_handshake_in_flight_keeps_the_promise_of_its_slot() {
    let mut bench = bench_with(CONFIG, ABLE);
    bench.wait(Duration::from_millis(3_800));
    // At the end of a slot two clients are told a shift of seven, and timestamps.
    let (mut early, told) = called(&mut bench, 40000);
    let (mut other, told_other) = called(&mut bench, 40001);
    assert_eq!(told.options.window_scale, Some(7));
    // One is quick; its server has been restarted without options.
    let syn = only(bench.receive(&request(&mut other, &told_other, b"1 hello")));
    let weak = ServerCaps {
        window_scale: None,
        sack: false,
        timestamps: true,
        ..ABLE
    };
    bench.receive(&syn_ack(&syn, weak));
    assert_eq!(counted(&bench, ProbeEvent::LearnedLess), 1);
    // Within the slot nothing changes.
    let same = promise(&mut bench, 40002);
    assert_eq!(
        (same.options.window_scale, same.options.sack_permitted),
        (Some(7), true)
    );
    next_slot(&mut bench);
    let (mut late, told_late) = called(&mut bench, 40003);
    assert_eq!(
        (told_late.options.window_scale, told_late.options.sack_permitted),
        (Some(0), false)
    );
    // Now both come: each with what it was told.
    let syn = only(bench.receive(&request(&mut early, &told, b"0 hello")));
    assert_eq!((syn.options.window_scale, syn.options.sack_permitted), (Some(7), true));
    let mut server = Server::from_syn(&syn);
    server.options = options(&syn, weak);
    server.accept(&mut bench);
    server.ack = server.ack.wrapping_add(7);
    let update = Segment {
        window: 12800,
        ..server.segment(TcpFlags::ACK, b"")
    };
    assert_eq!(only(bench.receive(&update)).window, 100, "told a shift of seven");

    let syn = only(bench.receive(&request(&mut late, &told_late, b"0 hello")));
    assert_eq!((syn.options.window_scale, syn.options.sack_permitted), (Some(7), false));
    let mut server = Server::from_syn(&syn);
    server.options = options(&syn, weak);
    server.accept(&mut bench);
    server.ack = server.ack.wrapping_add(7);
    let update = Segment {
        window: 12800,
        ..server.segment(TcpFlags::ACK, b"")
    };
    assert_eq!(only(bench.receive(&update)).window, 12800, "told a shift of zero");
}

#[test]
fn a_cookie_of_the_slot_before_carries_its_timestamps() {
    let mut bench = bench_with(CONFIG, ABLE);
    bench.wait(Duration::from_millis(3_800));
    let (mut early, told) = called(&mut bench, 40000);
    let (mut other, told_other) = called(&mut bench, 40001);
    let syn = only(bench.receive(&request(&mut other, &told_other, b"1 hello")));
    let without = ServerCaps {
        timestamps: false,
        ..ABLE
    };
    let sent = bench.receive(&syn_ack(&syn, without));
    assert!(sent[0].flags.contains(TcpFlags::RST), "passed over: {sent:?}");
    next_slot(&mut bench);
    assert_eq!(promise(&mut bench, 40002).options.timestamps, None);
    // The SYN that goes to the server offers what its own client was told.
    let syn = only(bench.receive(&request(&mut early, &told, b"0 hello")));
    assert!(syn.options.timestamps.is_some());
    let (ack, _) = Server::from_syn(&syn).accept(&mut bench);
    assert!(ack.options.timestamps.is_some());
}

#[test]
fn a_server_restarted_without_timestamps_is_passed_over_and_then_served_without() {
    let mut bench = bench_with(CONFIG, ABLE);
    let (mut client, told) = called(&mut bench, 40000);
    let first = only(bench.receive(&request(&mut client, &told, b"p hello")));
    let without = ServerCaps {
        timestamps: false,
        ..ABLE
    };
    let sent = bench.receive(&syn_ack(&first, without));
    assert_eq!(sent.len(), 2, "RST, and the next server: {sent:#?}");
    assert_ne!(sent[1].to, first.to);
    let failing = number(&first);
    assert_eq!(bench.proxy.server_caps(ServerId(failing as u16)), Some(without));
    // Meanwhile it is probed: still without.
    let probes = next_slot(&mut bench);
    let (probe, _): (Vec<&Segment>, Vec<&Segment>) = probes.iter().partition(|segment| {
        segment.flags == TcpFlags::SYN && segment.options.timestamps.is_some() && number(segment) == failing
    });
    assert!(!probe.is_empty(), "{probes:#?}");
    only(bench.receive(&syn_ack(probe[0], without)));

    let (mut client, told) = called(&mut bench, 40001);
    assert_eq!(told.options.timestamps, None);
    let text = format!("{failing} hello");
    let syn = only(bench.receive(&request(&mut client, &told, text.as_bytes())));
    assert_eq!(syn.options.timestamps, None);
    let mut server = Server::from_syn(&syn);
    server.options = options(&syn, without);
    let (ack, held) = server.accept(&mut bench);
    assert_eq!(ack.options.timestamps, None);
    assert_eq!(only(held).payload, text.as_bytes());

    // It is restarted again, with timestamps. Connections do not offer them any more; a probe finds out.
    let mut promised = false;
    for _ in 0..100 {
        for segment in bench.wait(Duration::from_secs(4)) {
            let is_probe = segment.flags == TcpFlags::SYN && segment.options.timestamps.is_some();
            if is_probe && number(&segment) == failing {
                only(bench.receive(&syn_ack(&segment, ABLE)));
            }
        }
        promised |= promise(&mut bench, 41000).options.timestamps.is_some();
        bench.wait(Duration::from_secs(5));
    }
    assert!(promised, "what it can do again is promised again");
}

#[test]
fn the_window_of_live_answers_is_kept_to() {
    let mut bench = bench_with(CONFIG, ABLE);
    let (mut client, told) = called(&mut bench, 40000);
    assert_eq!(told.window, 16384);
    let syn = only(bench.receive(&request(&mut client, &told, b"0 hello")));
    bench.receive(&syn_ack(&syn, ServerCaps { window: 1000, ..ABLE }));
    next_slot(&mut bench);
    assert_eq!(promise(&mut bench, 40001).window, 1000);
}

#[test]
fn a_server_that_repeats_the_clients_mss_says_nothing_about_its_own() {
    let mut bench = bench_with(CONFIG, ABLE);
    let mut client = Client::new(40000);
    let small = Segment {
        options: TcpOptions {
            mss: Some(536),
            ..client.syn().options
        },
        ..client.syn()
    };
    let told = only(bench.receive(&small));
    client.take_syn_ack(&told);
    let syn = only(client.send(&mut bench, b"0 hello"));
    assert_eq!(syn.options.mss, Some(536));
    bench.receive(&syn_ack(&syn, ServerCaps { mss: 536, ..ABLE }));
    next_slot(&mut bench);
    let (mut client, told) = called(&mut bench, 40001);
    assert_eq!(told.options.mss, Some(1460));
    // One that is less than was offered is its own.
    let syn = only(bench.receive(&request(&mut client, &told, b"0 hello")));
    bench.receive(&syn_ack(&syn, ServerCaps { mss: 1000, ..ABLE }));
    next_slot(&mut bench);
    assert_eq!(promise(&mut bench, 40002).options.mss, Some(1000));
}

#[test]
fn a_repeated_syn_ack_says_what_the_first_one_said() {
    let rules = "rules = [{ first_number = true, pool = \"all\" }]\ndefault = \"reject\"";
    let text = CONFIG.replacen(rules, "bind = \"handshake\"\ndefault = \"all\"", 1);
    let mut bench = Bench::probing(&text);
    let first = promise(&mut bench, 40000);
    let weak = ServerCaps {
        mss: 536,
        window_scale: None,
        sack: false,
        window: 1000,
        ..ABLE
    };
    answer_probes(&mut bench, |_| Some(weak));
    bench.wait(Duration::from_millis(3_900));
    next_slot(&mut bench);
    let second = promise(&mut bench, 40001);
    assert_ne!(second.options, first.options);
    let repeated = bench.wait(Duration::from_millis(7_000));
    let again = repeated.iter().filter(|segment| segment.to == first.to);
    let mut count = 0;
    for again in again {
        assert_eq!(
            (again.options, again.window, again.seq),
            (first.options, first.window, first.seq)
        );
        count += 1;
    }
    assert!(count >= 1, "{repeated:#?}");
}
