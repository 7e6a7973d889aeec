//! Both roles against each other over a good cable.

mod common;

use std::time::Duration;

use common::{Rig, Roughness, client_settings, server_settings};
use e2d2::time::Instant;
use netfcts::TcpCounter;
use trafficengine::stats::Failure;
use trafficengine::{ClientSettings, Close, Format, LinkSettings, Listener, Pace, Span, TcpSettings};

const STEP: Duration = Duration::from_micros(50);
const LIMIT: Duration = Duration::from_secs(600);

fn run(client: ClientSettings) -> Rig {
    let server = server_settings(&client);
    let mut rig = Rig::new(client, server, Roughness::default(), 1);
    rig.run(STEP, LIMIT);
    rig
}

#[test]
fn the_ancestors_connection_is_seven_packets() {
    let mut rig = run(client_settings());
    rig.assert_clean(100);
    let (client, server) = (rig.client_stats(), rig.server_stats());
    // SYN, ACK, request, FIN one way; SYN-ACK, response with FIN, ACK the other.
    assert_eq!((client.traffic.segments_sent, server.traffic.segments_sent), (400, 300));
    assert_eq!(
        (client.traffic.segments_received, server.traffic.segments_received),
        (300, 400)
    );
    assert_eq!((client.traffic.retransmitted, server.traffic.retransmitted), (0, 0));
    assert_eq!((client.traffic.bytes_sent, client.traffic.bytes_received), (1600, 800));
    assert_eq!((server.traffic.bytes_sent, server.traffic.bytes_received), (800, 1600));
    for (counter, of_client, of_server) in [
        (TcpCounter::SentSyn, 100, 0),
        (TcpCounter::RecvSyn, 0, 100),
        (TcpCounter::SentSynAck, 0, 100),
        (TcpCounter::SentSynAck2, 100, 0),
        (TcpCounter::RecvSynAck2, 0, 100),
        (TcpCounter::SentPayload, 100, 100),
        (TcpCounter::RecvPayload, 100, 100),
        (TcpCounter::SentFin, 0, 100),
        (TcpCounter::SentFinPssv, 100, 0),
        (TcpCounter::RecvFin, 100, 0),
        (TcpCounter::RecvFinPssv, 0, 100),
        (TcpCounter::RecvAck4Fin, 100, 100),
        (TcpCounter::Unexpected, 0, 0),
    ] {
        assert_eq!(
            (client.tcp[counter], server.tcp[counter]),
            (of_client, of_server),
            "{counter:?}"
        );
    }
}

#[test]
fn every_way_to_close_ends_both_sides() {
    for close in [Close::Client, Close::Server, Close::Both, Close::Reset] {
        for rounds in [1, 3] {
            let mut rig = run(ClientSettings {
                close,
                rounds,
                ..client_settings()
            });
            rig.assert_clean(100);
            assert_eq!(rig.client_stats().traffic.retransmitted, 0, "{close:?}");
        }
    }
}

#[test]
fn connections_without_a_request_open_and_close() {
    for close in [Close::Client, Close::Reset] {
        let mut rig = Rig::new(
            ClientSettings {
                close,
                rounds: 0,
                ..client_settings()
            },
            server_settings(&client_settings()),
            Roughness::default(),
            1,
        );
        rig.run(STEP, LIMIT);
        let client = &rig.client_stats().connections;
        assert_eq!((client.completed, client.failed_in_all()), (100, 0), "{close:?}");
        assert_eq!(rig.server.open(), (0, 0));
    }
}

#[test]
fn large_messages_cross_whole_in_both_versions() {
    for (target, source) in [("10.0.0.1:80", "10.0.0.10"), ("[fd00::1]:80", "fd00::10")] {
        let client = ClientSettings {
            sources: vec![source.parse().unwrap()],
            targets: vec![target.parse().unwrap()],
            request: 100_000,
            response: 1_000_000,
            rounds: 2,
            span: Span {
                ramp: Duration::ZERO,
                duration: None,
                total: Some(4),
            },
            ..client_settings()
        };
        let mut rig = run(client);
        rig.assert_clean(4);
        assert_eq!(rig.client_stats().traffic.bytes_received, 8_000_000);
        assert_eq!(rig.server_stats().traffic.bytes_received, 800_000);
        assert_eq!(rig.server_stats().traffic.retransmitted, 0);
    }
}

#[test]
fn http_and_every_set_of_options() {
    let http = Format::Http {
        domain: "example".to_owned(),
    };
    for bits in 0..8u8 {
        let tcp = |mss| TcpSettings {
            mss,
            timestamps: bits & 1 != 0,
            sack: bits & 2 != 0,
            window_scale: (bits & 4 != 0).then_some(7),
            ..TcpSettings::default()
        };
        let client = ClientSettings {
            format: http.clone(),
            request: 300,
            response: 5_000,
            tcp: [tcp(1460), tcp(1440)],
            ..client_settings()
        };
        run(client).assert_clean(100);
    }
}

#[test]
fn a_small_window_is_respected() {
    let mut client = ClientSettings {
        response: 200_000,
        ..client_settings()
    };
    client.span.total = Some(5);
    let mut server = server_settings(&client);
    client.tcp[0] = TcpSettings {
        window: 3000,
        window_scale: None,
        ..TcpSettings::default()
    };
    server.tcp[0].window_scale = None;
    let mut rig = Rig::new(client, server, Roughness::default(), 1);
    rig.run(STEP, LIMIT);
    rig.assert_clean(5);
    assert_eq!(rig.server_stats().traffic.retransmitted, 0);
}

#[test]
fn keys_go_to_all_servers_and_a_wrong_server_is_noticed() {
    let targets: Vec<_> = ["10.0.0.1:80".parse().unwrap(), "10.0.0.2:80".parse().unwrap()].into();
    // The client expects server 0 for even keys and 1 for odd ones but goes to both in turn: nothing selects here.
    let client = ClientSettings {
        targets: targets.clone(),
        keys: 100,
        servers: 2,
        ..client_settings()
    };
    let mut server = server_settings(&client);
    server.listeners = vec![
        Listener {
            address: targets[0],
            id: 0,
        },
        Listener {
            address: targets[1],
            id: 1,
        },
    ];
    let mut rig = Rig::new(client, server, Roughness::default(), 1);
    rig.run(STEP, LIMIT);
    let connections = &rig.client_stats().connections;
    let wrong = connections.failed(Failure::WrongServer);
    assert!((30..70).contains(&wrong), "about half of 100: {connections:?}");
    assert_eq!(connections.completed + wrong, 100);
    assert_eq!(rig.server.open(), (0, 0), "given up by reset");
}

#[test]
fn wrong_bytes_are_noticed_by_either_side() {
    let client = client_settings();
    let server = trafficengine::ServerSettings {
        format: Format::Http { domain: "x".to_owned() },
        ..server_settings(&client)
    };
    let mut rig = Rig::new(client.clone(), server, Roughness::default(), 1);
    rig.run(STEP, LIMIT);
    assert_eq!(rig.server_stats().connections.failed(Failure::WrongBytes), 100);
    assert_eq!(rig.client_stats().connections.failed(Failure::Reset), 100);

    // A longer response than agreed.
    let server = trafficengine::ServerSettings {
        response: 9,
        ..server_settings(&client)
    };
    let mut rig = Rig::new(client, server, Roughness::default(), 1);
    rig.run(STEP, LIMIT);
    assert_eq!(rig.client_stats().connections.failed(Failure::WrongBytes), 100);
}

#[test]
fn a_server_that_stays_silent_times_out() {
    let mut client = client_settings();
    client.targets = vec!["10.0.0.1:81".parse().unwrap()];
    client.tcp[0].retries = 3;
    let server = server_settings(&client_settings());
    let mut rig = Rig::new(client, server, Roughness::default(), 1);
    rig.run(Duration::from_millis(1), LIMIT);
    // No listener on that port: the server role does not answer for it.
    assert_eq!(rig.client_stats().connections.failed(Failure::Timeout), 100);
    assert_eq!(rig.client_stats().traffic.retransmitted, 300);
}

#[test]
fn a_response_that_is_too_short_is_noticed() {
    let idle = Duration::from_secs(1);
    for (close, failure) in [(Close::Server, Failure::ClosedEarly), (Close::Client, Failure::Stalled)] {
        let client = ClientSettings {
            response: 20,
            close,
            idle,
            ..client_settings()
        };
        let server = trafficengine::ServerSettings {
            response: 8,
            check: false,
            ..server_settings(&client)
        };
        let mut rig = Rig::new(client, server, Roughness::default(), 1);
        rig.run(Duration::from_millis(1), LIMIT);
        let connections = &rig.client_stats().connections;
        assert_eq!(
            (connections.failed(failure), connections.failed(Failure::WrongBytes)),
            (100, 0),
            "{connections:?}"
        );
    }
}

#[test]
fn gateways_are_asked_for_in_both_versions() {
    // The server stands in for the gateway: it answers for all its listeners' addresses.
    for (target, source, gateway) in [
        ("10.0.0.1:80", "10.9.0.10", "10.0.0.1"),
        ("[fd00::1]:80", "fd01::10", "fd00::1"),
    ] {
        let link = LinkSettings {
            prefixes: vec![(source.parse().unwrap(), 24)],
            gateways: vec![gateway.parse().unwrap()],
            next_hop_mac: None,
        };
        let client = ClientSettings {
            sources: vec![source.parse().unwrap()],
            targets: vec![target.parse().unwrap()],
            ..client_settings()
        };
        let server = server_settings(&client);
        let mut rig = Rig::with_link(client, server, link, Roughness::default(), 1);
        assert!(!rig.client.is_ready());
        rig.run(STEP, LIMIT);
        rig.assert_clean(100);
        assert!(rig.client.is_ready());
    }
}

#[test]
fn drawn_connections_stay_open_until_their_turn() {
    let mut client = ClientSettings {
        pace: Pace::Drawn { open: 500 },
        depth: 8,
        ..client_settings()
    };
    client.span.total = Some(3000);
    let server = server_settings(&client);
    let mut rig = Rig::new(client, server, Roughness::default(), 1);
    let mut open_seen = 0;
    while rig.client_stats().connections.started < 2900 {
        rig.step(STEP);
        let stats = &rig.client_stats().connections;
        if stats.completed > 0 {
            assert!(rig.client.held() >= 500 - 8 - 32, "{}", rig.client.held());
            open_seen = open_seen.max(rig.client.open().0);
        }
    }
    assert!(open_seen >= 500);
    rig.run(STEP, LIMIT);
    rig.assert_clean(3000);
}

#[test]
fn drawn_connections_are_held_before_every_request_and_acknowledge_in_time() {
    // Few are drawn at a time, so that most acknowledgements wait for their timer and some for the next request; responses
    // of one and of several segments.
    for response in [64, 1460, 5000] {
        let mut client = ClientSettings {
            pace: Pace::Drawn { open: 200 },
            depth: 2,
            rounds: 5,
            response,
            ..client_settings()
        };
        client.span.total = Some(400);
        let server = server_settings(&client);
        let mut rig = Rig::new(client, server, Roughness::default(), 1);
        rig.run(Duration::from_micros(500), LIMIT);
        rig.assert_clean(400);
        let (client, server) = (&rig.client_stats().traffic, &rig.server_stats().traffic);
        assert_eq!(
            (client.retransmitted, server.retransmitted, client.duplicates),
            (0, 0, 0),
            "{response} bytes"
        );
        assert_eq!(client.bytes_received, 400 * 5 * u64::from(response));
    }
}

#[test]
fn what_is_taken_ahead_is_answered_with_the_next_poll() {
    let client = ClientSettings {
        pace: Pace::Closed { open: 80 },
        ..client_settings()
    };
    let server = server_settings(&client);
    let link = LinkSettings {
        next_hop_mac: Some("02:00:00:00:00:01".parse().unwrap()),
        ..LinkSettings::default()
    };
    let mut rig = Rig::with_link(client, server, link, Roughness::default(), 1);
    for _ in 0..3 {
        let _work = rig.client.poll(rig.now, &mut rig.client_port, &mut rig.pool);
    }
    // Two whole bursts, after each of which more is taken, and what is left of the third.
    for (answered, is_more_taken) in [(32, true), (64, true), (80, false)] {
        let _work = rig.server.poll(rig.now, &mut rig.server_port, &mut rig.pool);
        assert_eq!(rig.server_stats().connections.started, answered);
        assert_eq!(rig.server.port_stats().received, answered);
        // Nobody sleeps on what has been taken.
        assert_eq!(
            rig.server.next_deadline() == Some(Instant::ZERO),
            is_more_taken,
            "{answered}"
        );
    }
}
