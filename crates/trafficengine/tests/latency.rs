//! Histograms against delays that are known, in virtual time.

mod common;

use std::time::Duration;

use common::{Rig, Roughness, client_settings, server_settings};
use trafficengine::{ClientSettings, Pace, Span};

const MILLI: Duration = Duration::from_millis(1);
const STEP: Duration = Duration::from_micros(100);

fn rig(pace: Pace, total: u64, one_way: Duration) -> Rig {
    let client = ClientSettings {
        pace,
        span: Span {
            ramp: Duration::ZERO,
            duration: None,
            total: Some(total),
        },
        ..client_settings()
    };
    let server = server_settings(&client);
    let mut rig = Rig::new(client, server, Roughness::default(), 1);
    (rig.client_port.delay, rig.server_port.delay) = (one_way, one_way);
    rig
}

#[track_caller]
fn assert_near(nanos: u64, expected: Duration, tolerance: Duration) {
    let is = Duration::from_nanos(nanos);
    assert!(
        is.abs_diff(expected) <= tolerance,
        "{is:?}, expected {expected:?} ± {tolerance:?}"
    );
}

#[test]
fn round_trips_add_up() {
    let mut rig = rig(Pace::Closed { open: 5 }, 200, 5 * MILLI);
    rig.run(STEP, Duration::from_secs(60));
    rig.assert_clean(200);
    let latencies = &rig.client_stats().latencies;
    // One round trip to connect, two to the first byte, three to the acknowledgement of our FIN; each hop is seen at the
    // next step of the polls.
    for (histogram, trips) in [
        (&latencies.connect, 1),
        (&latencies.first_byte, 2),
        (&latencies.whole, 3),
    ] {
        assert_eq!(histogram.len(), 200);
        for quantile in [0.0, 0.5, 0.99, 1.0] {
            assert_near(
                histogram.value_at_quantile(quantile),
                trips * 10 * MILLI,
                trips * 3 * STEP,
            );
        }
    }
}

#[test]
fn an_open_loop_counts_from_the_intended_start() {
    // 1000 per second for 2 s, but nothing is polled for the second half of the first second.
    let mut rig = rig(Pace::Open { rate: 1000.0 }, 2000, Duration::ZERO);
    for _ in 0..5_000 {
        rig.step(STEP);
    }
    rig.step(Duration::from_millis(500));
    rig.run(STEP, Duration::from_secs(60));
    rig.assert_clean(2000);
    let connect = &rig.client_stats().latencies.connect;
    assert_eq!(connect.len(), 2000);
    // 500 starts were late by 0 to 500 ms, evenly: a quarter of all. A closed view would show none of it.
    assert_near(
        connect.value_at_quantile(0.5),
        Duration::from_micros(150),
        Duration::from_micros(150),
    );
    assert_near(connect.value_at_quantile(0.875), 250 * MILLI, 10 * MILLI);
    assert_near(connect.max(), 500 * MILLI, 5 * MILLI);
    assert!(
        rig.client_stats().max_behind >= 499 * MILLI,
        "{:?}",
        rig.client_stats().max_behind
    );
}

#[test]
fn the_open_loop_keeps_its_rate() {
    let mut rig = rig(Pace::Open { rate: 20_000.0 }, 100_000, Duration::ZERO);
    let mut by_second = Vec::new();
    for _ in 0..4 {
        let before = rig.client_stats().connections.started;
        for _ in 0..10_000 {
            rig.step(STEP);
        }
        by_second.push(rig.client_stats().connections.started - before);
    }
    assert!(
        by_second.iter().all(|count| (19_990..=20_010).contains(count)),
        "{by_second:?}"
    );
}

#[test]
fn lives_are_kept_one_by_one_up_to_their_number() {
    let mut rig = rig(Pace::Open { rate: 1000.0 }, 200, 5 * MILLI);
    rig.client.keep_lives(150);
    rig.run(STEP, Duration::from_secs(60));
    rig.assert_clean(200);
    let stats = rig.client_stats();
    assert_eq!((stats.lives.len(), stats.latencies.first_byte.len()), (150, 200));
    for life in &stats.lives {
        let latency = life.first_byte - life.intended;
        assert_near(latency.as_nanos() as u64, 20 * MILLI, 6 * STEP);
    }
    let intended = |index: usize| stats.lives[index].intended;
    assert_near((intended(149) - intended(0)).as_nanos() as u64, 149 * MILLI, MILLI);
    rig.client.reset_latencies();
    assert_eq!(rig.client_stats().lives, []);
}

#[test]
fn no_life_is_kept_unasked() {
    let mut rig = rig(Pace::Closed { open: 5 }, 20, MILLI);
    rig.run(STEP, Duration::from_secs(60));
    rig.assert_clean(20);
    assert_eq!(rig.client_stats().lives, []);
}
