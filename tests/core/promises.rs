//! What servers are asked, what is learned from them, and what clients are promised then.

use crate::harness::{Bench, CONFIG, Client, Server, nothing, only};
use e2d2::port::PortId;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use proxyengine::config::ServerId;
use proxyengine::proxy::ProbeEvent;
use proxyengine::proxy::drop_reason::DropReason;
use proxyengine::proxy::promises::Abilities;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

/// A server that can do everything.
const ABLE: Abilities = Abilities {
    mss: 1460,
    window_scale: Some(7),
    sack: true,
    timestamps: true,
    window: 65160,
};

/// The number of the server that a segment is for.
fn number(segment: &Segment) -> usize {
    match segment.to.address.ip() {
        std::net::IpAddr::V4(v4) => usize::from(v4.octets()[3] - 100),
        std::net::IpAddr::V6(v6) => usize::from(v6.octets()[15]) + 3,
    }
}

fn syn_ack(syn: &Segment, can: Abilities) -> Segment {
    let mut server = Server::from_syn(syn);
    server.options = options(syn, can);
    Segment {
        window: can.window,
        ..server.syn_ack()
    }
}

/// The options of a server's answer: what both ends can do.
fn options(syn: &Segment, can: Abilities) -> TcpOptions {
    TcpOptions {
        mss: Some(can.mss),
        window_scale: can.window_scale.filter(|_| syn.options.window_scale.is_some()),
        sack_permitted: can.sack && syn.options.sack_permitted,
        timestamps: syn
            .options
            .timestamps
            .filter(|_| can.timestamps)
            .map(|(value, _)| (90_000, value)),
    }
}

/// Answers the probes of all servers that have an answer; the others stay silent.
fn answer_probes(bench: &mut Bench, can: impl Fn(usize) -> Option<Abilities>) {
    for syn in bench.wait(Duration::from_millis(50)) {
        assert_eq!(syn.flags, TcpFlags::SYN);
        if let Some(can) = can(number(&syn)) {
            let reset = only(bench.receive(&syn_ack(&syn, can)));
            assert_eq!(
                (reset.flags, reset.seq, reset.to),
                (TcpFlags::RST, syn.seq.wrapping_add(1), syn.to)
            );
        }
    }
}

/// The first SYN to each server.
fn probes(bench: &mut Bench) -> Vec<Segment> {
    let mut syns = bench.wait(Duration::from_millis(50));
    syns.sort_by_key(number);
    syns
}

/// A bench whose first server can do so much, and all others everything.
fn bench_with(text: &str, first: Abilities) -> Bench {
    let mut bench = Bench::probing(text);
    answer_probes(&mut bench, |server| Some(if server % 3 == 0 { first } else { ABLE }));
    bench
}

/// The SYN-ACK for a client at this port.
fn promise(bench: &mut Bench, port: u16) -> Segment {
    only(bench.receive(&Client::new(port).syn()))
}

fn counted(bench: &Bench, event: ProbeEvent) -> u64 {
    bench.proxy.probes()[event]
}

fn next_slot(bench: &mut Bench) -> Vec<Segment> {
    let now = bench.now.as_millis();
    bench.wait(Duration::from_millis(8_000 - now % 8_000))
}

#[test]
fn every_server_is_asked_once_and_then_left_alone() {
    let mut bench = Bench::probing(CONFIG);
    let syns = probes(&mut bench);
    assert_eq!(syns.len(), 6);
    for (n, syn) in syns.iter().enumerate() {
        assert_eq!((syn.flags, number(syn)), (TcpFlags::SYN, n));
        let options = syn.options;
        assert_eq!(options.mss, Some(if n < 3 { 1460 } else { 1440 }));
        assert!(options.window_scale.is_some() && options.sack_permitted && options.timestamps.is_some());
        assert_ne!(syn.from.address.port(), 80);
        let reset = only(bench.receive(&syn_ack(syn, ABLE)));
        assert_eq!((reset.flags, reset.seq), (TcpFlags::RST, syn.seq.wrapping_add(1)));
    }
    assert_eq!(bench.proxy.abilities(ServerId(4)), Some(ABLE));
    assert_eq!(counted(&bench, ProbeEvent::SynSent), 6);
    assert_eq!(counted(&bench, ProbeEvent::Answered), 6);
    nothing(bench.wait(Duration::from_secs(1200)));
    bench.assert_all_returned();
}

#[test]
fn what_was_learned_is_told_once() {
    let mut bench = bench_with(CONFIG, ABLE);
    let mut told = Vec::new();
    while let Some((server, abilities)) = bench.proxy.take_news(bench.now) {
        assert_eq!(abilities, ABLE);
        told.push(server.0);
    }
    told.sort_unstable();
    assert_eq!(told, [0, 1, 2, 3, 4, 5]);
    bench.wait(Duration::from_secs(20));
    assert_eq!(bench.proxy.take_news(bench.now), None);
}

#[test_case(ABLE => (Some(1460), Some(7), true, true, 16384); "all servers can do everything")]
#[test_case(Abilities { timestamps: false, ..ABLE } => (Some(1460), Some(7), true, false, 16384); "no timestamps")]
#[test_case(Abilities { sack: false, ..ABLE } => (Some(1460), Some(7), false, true, 16384); "no SACK")]
#[test_case(Abilities { window_scale: None, ..ABLE } => (Some(1460), Some(0), true, true, 16384); "no window scaling")]
#[test_case(Abilities { window_scale: Some(3), ..ABLE } => (Some(1460), Some(3), true, true, 16384); "a smaller shift")]
#[test_case(Abilities { window_scale: Some(9), ..ABLE } => (Some(1460), Some(7), true, true, 16384); "a larger shift")]
#[test_case(Abilities { mss: 536, ..ABLE } => (Some(536), Some(7), true, true, 16384); "a small MSS")]
#[test_case(Abilities { mss: 9000, ..ABLE } => (Some(1460), Some(7), true, true, 16384); "an MSS beyond our MTU")]
#[test_case(Abilities { mss: 0, ..ABLE } => (Some(88), Some(7), true, true, 16384); "an impossible MSS")]
#[test_case(Abilities { window: 1000, ..ABLE } => (Some(1460), Some(7), true, true, 1000); "a small window")]
#[test_case(Abilities { window: 16383, ..ABLE } => (Some(1460), Some(7), true, true, 16383); "a window just below ours")]
#[test_case(Abilities { window: 0, ..ABLE } => (Some(1460), Some(7), true, true, 536); "a closed window")]
fn the_promise_is_the_least_of_all_servers(first: Abilities) -> (Option<u16>, Option<u8>, bool, bool, u16) {
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
            Abilities {
                mss: server_mss,
                ..ABLE
            },
        );
        // All three servers: the others would bring it down to 1460.
        let mut able = Bench::probing(&text);
        answer_probes(&mut able, |_| {
            Some(Abilities {
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
    let none = Abilities {
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
    let none = Abilities {
        mss: 536,
        window_scale: None,
        sack: false,
        timestamps: false,
        window: 1000,
    };
    let promised = |lines: &str| {
        let mut bench = Bench::probing(&format!("{CONFIG}\n[promise]\n{lines}\n"));
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

#[test_case("probe = false"; "switched off")]
#[test_case("mss = 1460\nwindow_scale = 7\nsack = true\ntimestamps = true\nwindow = 16384"; "nothing left to learn")]
fn nobody_is_asked(lines: &str) {
    let mut bench = Bench::probing(&format!("{CONFIG}\n[promise]\n{lines}\n"));
    nothing(bench.wait(Duration::from_secs(100)));
    let syn_ack = promise(&mut bench, 40000);
    assert_eq!(
        (syn_ack.options.mss, syn_ack.options.window_scale),
        (Some(1460), Some(7))
    );
    assert!(syn_ack.options.sack_permitted && syn_ack.options.timestamps.is_some());
    assert_eq!(syn_ack.window, 16384);
}

/// When the SYNs of a silent server come, in ms.
fn times_of_probes(bench: &mut Bench, for_how_long: Duration, mut meet: impl FnMut(&mut Bench, &Segment)) -> Vec<u64> {
    let start = bench.now;
    let mut times = Vec::new();
    while bench.now - start < for_how_long {
        for syn in bench.wait(Duration::from_millis(50)) {
            match number(&syn) {
                0 => {
                    times.push((bench.now - start).as_millis() as u64);
                    meet(bench, &syn);
                }
                _ => drop(bench.receive(&syn_ack(&syn, ABLE))),
            }
        }
    }
    times
}

#[test]
fn a_lost_probe_is_repeated() {
    let mut bench = Bench::probing(CONFIG);
    let mut seen: Vec<Segment> = Vec::new();
    let times = times_of_probes(&mut bench, Duration::from_secs(30), |bench, syn| {
        seen.push(syn.clone());
        if seen.len() == 3 {
            only(bench.receive(&syn_ack(syn, ABLE)));
        }
    });
    // The wheel never fires early, and the harness looks every fifty.
    assert_eq!(times, [50, 600, 1650], "half a second, then one");
    assert!(seen.iter().all(|syn| *syn == seen[0]));
    assert_eq!(bench.proxy.abilities(ServerId(0)), Some(ABLE));
    bench.assert_all_returned();
}

#[test]
fn a_silent_server_is_asked_ever_more_seldom() {
    let mut bench = Bench::probing(CONFIG);
    let times = times_of_probes(&mut bench, Duration::from_secs(1800), |_, _| {});
    // Three SYNs a round; the time to the next round doubles from two seconds.
    let rounds: Vec<u64> = times.iter().step_by(3).copied().collect();
    let waits: Vec<u64> = rounds
        .windows(2)
        .map(|pair| (pair[1] - pair[0] - 3_500).div_ceil(1_000))
        .collect();
    let expected = [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300];
    let close = |(wait, expected): (&u64, &u64)| wait.abs_diff(*expected) <= 1 + expected / 8;
    assert!(waits.iter().zip(&expected).all(close), "{waits:?}");
    assert!(waits.len() >= 10, "{waits:?}");
    assert_eq!(bench.proxy.abilities(ServerId(0)), None);
}

#[test]
fn a_server_that_refuses_is_asked_again() {
    let mut bench = Bench::probing(CONFIG);
    let mut refused = 0;
    let times = times_of_probes(&mut bench, Duration::from_secs(10), |bench, syn| {
        let refusal = Segment {
            ack: syn.seq.wrapping_add(1),
            flags: TcpFlags::RST | TcpFlags::ACK,
            ..Segment::between(syn.to, syn.from)
        };
        if refused < 2 {
            nothing(bench.receive(&refusal));
            refused += 1;
        } else {
            only(bench.receive(&syn_ack(syn, ABLE)));
        }
    });
    assert_eq!(times.len(), 3, "{times:?}");
    assert_eq!(counted(&bench, ProbeEvent::Refused), 2);
    assert_eq!(bench.proxy.abilities(ServerId(0)), Some(ABLE));
    bench.assert_all_returned();
}

#[test]
fn a_server_behind_an_unknown_next_hop_is_asked_when_that_is_known() {
    let mut bench = Bench::probing(CONFIG);
    bench.hops.0.borrow_mut().push(0);
    answer_probes(&mut bench, |_| Some(ABLE));
    nothing(bench.wait(Duration::from_millis(500)));
    bench.hops.0.borrow_mut().clear();
    let syn = only(bench.wait(Duration::from_millis(100)));
    assert_eq!(number(&syn), 0);
    // Never known, it is silent like any other.
    let mut bench = Bench::probing(CONFIG);
    bench.hops.0.borrow_mut().push(0);
    answer_probes(&mut bench, |_| Some(ABLE));
    bench.wait(Duration::from_secs(7));
    assert_eq!(counted(&bench, ProbeEvent::Unanswered), 1);
    assert!(promise(&mut bench, 40000).options.timestamps.is_some());
    bench.assert_all_returned();
}

#[test]
fn an_answer_counts_only_with_the_number_of_the_syn() {
    let mut bench = Bench::probing(CONFIG);
    let syn = &probes(&mut bench)[0];
    let good = syn_ack(syn, ABLE);
    for wrong in [0, 2, 1 << 31] {
        let forged = Segment {
            ack: syn.seq.wrapping_add(wrong),
            ..good.clone()
        };
        // RFC 9293 3.10.7.3: that number is what our RST says.
        let reset = only(bench.receive(&forged));
        assert_eq!((reset.flags, reset.seq), (TcpFlags::RST, forged.ack));
    }
    let blind = Segment {
        flags: TcpFlags::RST,
        ack: 0,
        ..good.clone()
    };
    nothing(bench.receive(&blind));
    nothing(bench.receive(&Segment {
        flags: TcpFlags::SYN,
        ack: 0,
        ..good.clone()
    }));
    nothing(bench.receive(&Segment {
        flags: TcpFlags::ACK,
        ..good.clone()
    }));
    assert_eq!(bench.proxy.abilities(ServerId(0)), None);
    assert_eq!(counted(&bench, ProbeEvent::Refused), 0);
    assert_eq!(bench.dropped(DropReason::BlindReset), 1);
    assert_eq!(bench.dropped(DropReason::NotAnAnswer), 2);
    // From elsewhere it is a stranger's.
    let elsewhere = Segment {
        from: good.from.with_port(9999),
        ..good.clone()
    };
    bench.receive(&elsewhere);
    assert_eq!(bench.proxy.abilities(ServerId(0)), None);
    // A damaged one says nothing.
    let mut frame = good.emit(&mut bench.pool);
    use e2d2::buffer::PacketBuffer;
    let last = frame.len() - 1;
    frame.data_mut()[last] ^= 1;
    nothing(bench.receive_frame(PortId(1), frame));
    assert_eq!(bench.proxy.abilities(ServerId(0)), None);
    only(bench.receive(&good));
    assert_eq!(bench.proxy.abilities(ServerId(0)), Some(ABLE));
}

#[test]
fn a_server_that_remembers_an_older_connection_is_reset_and_asked_again() {
    let mut bench = Bench::probing(CONFIG);
    let syn = probes(&mut bench).remove(0);
    let stale = Segment {
        seq: 77,
        ack: 12345,
        ..Segment::between(syn.to, syn.from)
    };
    let reset = only(bench.receive(&stale));
    assert_eq!((reset.flags, reset.seq), (TcpFlags::RST, 12345));
    assert_eq!(counted(&bench, ProbeEvent::StaleConnection), 1);
    let again = bench.wait(Duration::from_millis(550));
    assert!(again.contains(&syn), "its timer repeats the SYN");
    only(bench.receive(&syn_ack(&syn, ABLE)));
    assert_eq!(bench.proxy.abilities(ServerId(0)), Some(ABLE));
}

#[test]
fn the_end_of_the_engine_is_the_end_of_its_probes() {
    let mut bench = Bench::probing(CONFIG);
    assert_eq!(bench.wait(Duration::from_millis(50)).len(), 6);
    assert_eq!(bench.proxy.usage().probes, 6);
    nothing(bench.finish());
    nothing(bench.wait(Duration::from_secs(700)));
    bench.assert_all_returned();
}

#[test]
fn the_last_port_is_left_to_connections() {
    let text = CONFIG.replace("name = \"all\"", "name = \"all\"\nlocal_ports = \"5000-5001\"");
    let mut bench = Bench::probing(&text);
    bench.wait(Duration::from_millis(50));
    let mut client = Client::new(40000);
    let syn_ack = only(bench.receive(&client.syn()));
    client.seq = syn_ack.ack;
    client.ack = syn_ack.seq.wrapping_add(1);
    let request = Segment {
        options: TcpOptions::NONE,
        ..client.segment(TcpFlags::PSH, b"0 hello")
    };
    let syn = only(bench.receive(&request));
    assert_eq!(syn.flags, TcpFlags::SYN, "one probe, one connection");
    // Both are taken when the next round would begin.
    let again = bench.wait(Duration::from_secs(7));
    let ports: Vec<u16> = again
        .iter()
        .filter(|s| number(s) == 0)
        .map(|s| s.from.address.port())
        .collect();
    assert!(!ports.is_empty());
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
    let weak = Abilities {
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
    let without = Abilities {
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
    let without = Abilities {
        timestamps: false,
        ..ABLE
    };
    let sent = bench.receive(&syn_ack(&first, without));
    assert_eq!(sent.len(), 2, "RST, and the next server: {sent:#?}");
    assert_ne!(sent[1].to, first.to);
    let failing = number(&first);
    assert_eq!(bench.proxy.abilities(ServerId(failing as u16)), Some(without));
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
    bench.receive(&syn_ack(&syn, Abilities { window: 1000, ..ABLE }));
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
    bench.receive(&syn_ack(&syn, Abilities { mss: 536, ..ABLE }));
    next_slot(&mut bench);
    let (mut client, told) = called(&mut bench, 40001);
    assert_eq!(told.options.mss, Some(1460));
    // One that is less than was offered is its own.
    let syn = only(bench.receive(&request(&mut client, &told, b"0 hello")));
    bench.receive(&syn_ack(&syn, Abilities { mss: 1000, ..ABLE }));
    next_slot(&mut bench);
    assert_eq!(promise(&mut bench, 40002).options.mss, Some(1000));
}

#[test]
fn a_repeated_syn_ack_says_what_the_first_one_said() {
    let rules = "rules = [{ first_number = true, pool = \"all\" }]\ndefault = \"reject\"";
    let text = CONFIG.replacen(rules, "bind = \"handshake\"\ndefault = \"all\"", 1);
    let mut bench = Bench::probing(&text);
    let first = promise(&mut bench, 40000);
    let weak = Abilities {
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

#[test]
fn many_servers_are_asked_a_few_dozen_at_a_time() {
    let servers: Vec<String> = (1..=150)
        .map(|n| format!("{{ name = \"m{n}\", address = \"10.1.1.{n}:80\" }}"))
        .collect();
    let pool = format!("\n[[pool]]\nname = \"many\"\nservers = [{}]\n", servers.join(", "));
    let text = CONFIG
        .replace("10.1.0.9/24", "10.1.0.9/16")
        .replacen("default = \"reject\"", "default = \"many\"", 1);
    let mut bench = Bench::probing(&(text + &pool));
    // Nobody answers the first second.
    let mut asked = 0;
    for _ in 0..20 {
        asked += bench.wait(Duration::from_millis(50)).len();
        assert!(bench.proxy.usage().probes <= 64);
    }
    assert!((64..=128).contains(&asked), "{asked} SYNs, repetitions included");
    for _ in 0..400 {
        for syn in bench.wait(Duration::from_millis(50)) {
            only(bench.receive(&syn_ack(&syn, ABLE)));
        }
        assert!(bench.proxy.usage().probes <= 64);
    }
    let known = (0..156).filter(|&server| bench.proxy.abilities(ServerId(server)).is_some());
    assert_eq!(known.count(), 156);
    bench.assert_all_returned();
}
