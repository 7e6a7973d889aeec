//! What servers are asked, when, and what counts as an answer.

use crate::harness::{Bench, CONFIG, Client, Server, nothing, only};
use crate::reload;
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use proxyengine::config::ServerId;
use splice::ProbeEvent;
use splice::drop_reason::DropReason;
use splice::standby::Service;
use splice::syn_ack_options::ServerCaps;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

/// A server that can do everything.
pub const ABLE: ServerCaps = ServerCaps {
    mss: 1460,
    window_scale: Some(7),
    sack: true,
    timestamps: true,
    window: 65160,
};

/// The number of the server that a segment is for.
pub fn number(segment: &Segment) -> usize {
    match segment.to.address.ip() {
        std::net::IpAddr::V4(v4) => usize::from(v4.octets()[3] - 100),
        std::net::IpAddr::V6(v6) => usize::from(v6.octets()[15]) + 3,
    }
}

pub fn syn_ack(syn: &Segment, can: ServerCaps) -> Segment {
    let mut server = Server::from_syn(syn);
    server.options = options(syn, can);
    Segment {
        window: can.window,
        ..server.syn_ack()
    }
}

/// The options of a server's answer: what both ends can do.
pub fn options(syn: &Segment, can: ServerCaps) -> TcpOptions {
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
pub fn answer_probes(bench: &mut Bench, can: impl Fn(usize) -> Option<ServerCaps>) {
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
pub fn bench_with(text: &str, first: ServerCaps) -> Bench {
    let mut bench = Bench::probing(text);
    answer_probes(&mut bench, |server| Some(if server % 3 == 0 { first } else { ABLE }));
    bench
}

/// The SYN-ACK for a client at this port.
pub fn promise(bench: &mut Bench, port: u16) -> Segment {
    only(bench.receive(&Client::new(port).syn()))
}

pub fn counted(bench: &Bench, event: ProbeEvent) -> u64 {
    bench.proxy.probes()[event]
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
    assert_eq!(bench.proxy.server_caps(ServerId(4)), Some(ABLE));
    assert_eq!(counted(&bench, ProbeEvent::SynSent), 6);
    assert_eq!(counted(&bench, ProbeEvent::Answered), 6);
    nothing(bench.wait(Duration::from_secs(1200)));
    bench.assert_all_returned();
}

#[test]
fn a_server_in_maintenance_is_not_asked_until_it_is_back() {
    let mut bench = Bench::probing(CONFIG);
    bench.standby.set_server(1, Service::InMaintenance, Instant::ZERO);
    let asked: Vec<usize> = probes(&mut bench).iter().map(number).collect();
    assert_eq!(asked, [0, 2, 3, 4, 5]);
    let later = bench.wait(Duration::from_secs(600));
    assert!(!later.is_empty() && later.iter().all(|syn| number(syn) != 1));
    bench.standby.set_server(1, Service::Drained, Instant::ZERO);
    let syns = bench.wait(Duration::from_secs(2));
    assert!(syns.iter().any(|syn| number(syn) == 1), "who is drained is asked");
    // What is under way ends, and gives its port back.
    bench.standby.set_engine(Service::InMaintenance);
    bench.wait(Duration::from_secs(600));
    nothing(bench.wait(Duration::from_secs(600)));
    bench.assert_all_returned();
}

#[test]
fn what_was_learned_is_told_once() {
    let mut bench = bench_with(CONFIG, ABLE);
    let mut told = Vec::new();
    while let Some((server, server_caps)) = bench.proxy.take_caps_change(bench.now) {
        assert_eq!(server_caps, ABLE);
        told.push(server.0);
    }
    told.sort_unstable();
    assert_eq!(told, [0, 1, 2, 3, 4, 5]);
    bench.wait(Duration::from_secs(20));
    assert_eq!(bench.proxy.take_caps_change(bench.now), None);
}

#[test_case("probe = false"; "switched off")]
#[test_case("mss = 1460\nwindow_scale = 7\nsack = true\ntimestamps = true\nwindow = 16384"; "nothing left to learn")]
fn nobody_is_asked(lines: &str) {
    let mut bench = Bench::probing(&format!("{CONFIG}\n[syn_ack]\n{lines}\n"));
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
    assert_eq!(bench.proxy.server_caps(ServerId(0)), Some(ABLE));
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
    assert_eq!(bench.proxy.server_caps(ServerId(0)), None);
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
    assert_eq!(bench.proxy.server_caps(ServerId(0)), Some(ABLE));
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
    assert_eq!(bench.proxy.server_caps(ServerId(0)), None);
    assert_eq!(counted(&bench, ProbeEvent::Refused), 0);
    assert_eq!(bench.dropped(DropReason::OutOfWindowRst), 1);
    assert_eq!(bench.dropped(DropReason::NotAnAnswer), 2);
    // From elsewhere it is a stranger's.
    let elsewhere = Segment {
        from: good.from.with_port(9999),
        ..good.clone()
    };
    bench.receive(&elsewhere);
    assert_eq!(bench.proxy.server_caps(ServerId(0)), None);
    // A damaged one says nothing.
    let mut frame = good.emit(&mut bench.pool);
    use e2d2::buffer::PacketBuffer;
    let last = frame.len() - 1;
    frame.data_mut()[last] ^= 1;
    nothing(bench.receive_frame(PortId(1), frame));
    assert_eq!(bench.proxy.server_caps(ServerId(0)), None);
    only(bench.receive(&good));
    assert_eq!(bench.proxy.server_caps(ServerId(0)), Some(ABLE));
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
    assert_eq!(bench.proxy.server_caps(ServerId(0)), Some(ABLE));
}

/// Promises are live, and with them whether servers are asked at all.
#[test]
fn servers_are_asked_and_no_longer_asked_by_a_reload() {
    let mut bench = Bench::with_config(CONFIG);
    // A second before the next slot.
    bench.skip(Duration::from_secs(3));
    let unasked = promise(&mut bench, 9_000);
    assert!(unasked.options.timestamps.is_some());
    bench.probes = true;
    bench.reload(CONFIG, |_| None);
    bench.wait(Duration::from_millis(0));
    answer_probes(&mut bench, |server| {
        (server != 1).then_some(ServerCaps { mss: 1200, ..ABLE })
    });
    assert_eq!(counted(&bench, ProbeEvent::Answered), 5);
    // The SYN-ACKs of a slot say the same; in the next one server 1 is still asked and may have no timestamps.
    let same_slot = promise(&mut bench, 9_001).options;
    assert_eq!(
        (same_slot.mss, same_slot.timestamps.is_some()),
        (unasked.options.mss, true)
    );
    bench.skip(Duration::from_secs(1));
    let asked = promise(&mut bench, 9_002).options;
    assert_eq!((asked.mss, asked.timestamps), (Some(1200), None));
    assert_eq!(bench.proxy.usage().probes, 1);
    // Who is asked no longer has nothing known of it, and its port is free.
    bench.probes = false;
    bench.reload(CONFIG, |_| None);
    assert_eq!(bench.proxy.usage().probes, 0);
    assert_eq!(bench.proxy.server_caps(ServerId(0)), None);
    nothing(bench.wait(Duration::from_secs(700)));
    assert_eq!(promise(&mut bench, 9_003).options.mss, unasked.options.mss);
    bench.assert_all_returned();
}

/// A server that came while servers were asked is not asked any more: it takes connections.
#[test]
fn a_server_that_waits_for_its_probe_is_called_when_servers_are_no_longer_asked() {
    let mut bench = reload::bench(&reload::with_servers(&[(0, 1)]));
    bench.probes = true;
    let both = reload::with_servers(&[(0, 1), (1, 1)]);
    bench.reload(&both, reload::rules);
    bench.probes = false;
    bench.reload(&both, reload::rules);
    let called = [5_000, 5_001, 5_002].map(|port| reload::connect(&mut bench, port).1.me.address.ip().to_string());
    assert!(called.contains(&"10.1.0.101".to_owned()), "{called:?}");
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
    let known = (0..156).filter(|&server| bench.proxy.server_caps(ServerId(server)).is_some());
    assert_eq!(known.count(), 156);
    bench.assert_all_returned();
}
