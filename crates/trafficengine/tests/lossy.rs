//! Both roles over cables that lose, repeat and reorder.

mod common;

use std::time::Duration;

use common::{Rig, Roughness, client_settings, server_settings};
use trafficengine::{ClientSettings, Close, Pace, Span};

const STEP: Duration = Duration::from_millis(1);
const LIMIT: Duration = Duration::from_secs(6000);

fn run(client: ClientSettings, roughness: Roughness, seed: u64) -> Rig {
    let mut server = server_settings(&client);
    // Enough tries for any seed: what is tested is that loss is survived, not when one gives up.
    server.tcp.iter_mut().for_each(|tcp| tcp.retries = 30);
    let mut client = client;
    client.tcp = server.tcp.clone();
    client
        .tcp
        .iter_mut()
        .for_each(|tcp| tcp.rto_max = Duration::from_secs(2));
    server.tcp = client.tcp.clone();
    client.idle = Duration::from_secs(1000);
    let mut rig = Rig::new(client, server, roughness, seed);
    rig.run(STEP, LIMIT);
    rig
}

#[test]
fn every_close_survives_loss_in_every_step() {
    for seed in 0..4 {
        for close in [Close::Client, Close::Server, Close::Both] {
            let roughness = Roughness {
                lost: 150,
                repeated: 30,
                reordered: 50,
            };
            let rig = run(
                ClientSettings {
                    close,
                    rounds: 2,
                    ..client_settings()
                },
                roughness,
                seed,
            );
            let dropped = rig.client_port.dropped + rig.server_port.dropped;
            let (client, server) = (rig.client_stats().clone(), rig.server_stats().clone());
            assert_eq!(
                client.connections.completed, 100,
                "seed {seed} {close:?} {:?}",
                client.connections
            );
            assert_eq!(client.connections.failed_in_all(), 0, "seed {seed} {close:?}");
            let retransmitted = client.traffic.retransmitted + server.traffic.retransmitted;
            assert!(
                retransmitted > 0 && dropped > 0,
                "seed {seed}: {retransmitted} for {dropped} lost"
            );
            assert_eq!(rig.client.open(), (0, 0));
            assert_eq!(server.traffic.bytes_received, 100 * 2 * 16, "each byte once");
            assert_eq!(client.traffic.bytes_received, 100 * 2 * 8, "each byte once");
        }
    }
}

#[test]
fn bulk_survives_loss_with_and_without_reordering() {
    for (seed, reordered) in [(1, 0), (2, 0), (3, 100), (4, 100)] {
        let client = ClientSettings {
            pace: Pace::Closed { open: 2 },
            span: Span {
                ramp: Duration::ZERO,
                duration: None,
                total: Some(4),
            },
            request: 50_000,
            response: 500_000,
            ..client_settings()
        };
        let rig = run(
            client,
            Roughness {
                lost: 20,
                repeated: 10,
                reordered,
            },
            seed,
        );
        let (client, server) = (rig.client_stats(), rig.server_stats());
        assert_eq!(
            (client.connections.completed, client.connections.failed_in_all()),
            (4, 0),
            "seed {seed}"
        );
        assert_eq!(
            (client.traffic.bytes_received, server.traffic.bytes_received),
            (2_000_000, 200_000)
        );
        assert!(server.traffic.retransmitted > 0);
        assert!(client.traffic.duplicates > 0, "repetitions are seen");
    }
}

#[test]
fn without_loss_nothing_is_retransmitted_and_with_it_the_count_is_what_was_sent_again() {
    let rig = run(client_settings(), Roughness::default(), 1);
    assert_eq!(
        rig.client_stats().traffic.retransmitted + rig.server_stats().traffic.retransmitted,
        0
    );

    // One way only, so that each loss makes the client repeat one segment: SYN, request or FIN; a lost pure ACK is
    // repaired by the next segment.
    let client = ClientSettings {
        pace: Pace::Closed { open: 1 },
        ..client_settings()
    };
    let server = server_settings(&client);
    let mut rig = Rig::new(client, server, Roughness::default(), 7);
    rig.server_port = {
        let (client_end, server_end) =
            e2d2::ports::LoopbackPort::pair(e2d2::port::PortId(0), e2d2::port::PortId(1), 64);
        rig.client_port = common::Rough::new(client_end, 7, Roughness::default());
        common::Rough::new(
            server_end,
            7,
            Roughness {
                lost: 100,
                repeated: 0,
                reordered: 0,
            },
        )
    };
    rig.run(STEP, LIMIT);
    let (lost, retransmitted) = (rig.server_port.dropped, rig.client_stats().traffic.retransmitted);
    assert!(
        lost > 10 && retransmitted > 0 && retransmitted <= lost,
        "{retransmitted} for {lost}"
    );
    assert_eq!(rig.client_stats().connections.completed, 100);
}
