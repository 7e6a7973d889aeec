//! `bench cps` in small: the engine's own core program between the generator's two ends, on ring ports. Asserts that the
//! result is valid (packets, servers, nothing lost), never how fast it is.

use std::time::Duration;

use trafficengine::bench::{CpsResult, CpsSettings};

#[path = "../../benches/device/mod.rs"]
mod device;

use device::{Conditions, Host};

#[test]
fn a_short_bench_is_valid_inline_and_on_two_cores() {
    let settings = CpsSettings {
        open: 500,
        length: Duration::from_millis(500),
        time_wait: Duration::from_millis(100),
    };
    let host = Host::start(1, 1500).expect("DPDK starts");
    let conditions = Conditions {
        records: true,
        capacity: 200_000,
        ..Conditions::new(settings)
    };
    let mut inline = host.open('t', &conditions).expect("the bench opens");
    check(&inline.cps(&settings), &inline.device);
    drop(inline);

    let inline = host.open('u', &conditions).expect("the bench opens");
    let two_core = host.part(inline, None).expect("a thread");
    let (mut result, device, _totals) = two_core.cps("two-core", &settings).expect("a load that stays");
    // On a machine that is busy with other tests the load may stand still while the proxy turns: not what is asked here.
    result
        .invalid_because
        .retain(|reason| !reason.contains("times the busy"));
    result.valid = result.invalid_because.is_empty();
    check(&result, &device);
}

fn check(result: &CpsResult, device: &device::ProxyDevice) {
    assert!(result.valid, "{:?}\n{:#?}", result.invalid_because, device.counters());
    assert!(result.connections > 100, "{result:#?}");
    assert!((430..=500).contains(&result.open_connections), "{result:#?}");
    assert!(
        result.mean_burst >= 1.0 && result.bytes_per_connection_state > 100.0,
        "{result:#?}"
    );
}
