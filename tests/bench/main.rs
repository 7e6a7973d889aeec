//! `bench cps` in small: the engine's own core program between the generator's two ends, on ring ports. Asserts that the
//! result is valid (packets, servers, nothing lost), never how fast it is.

use std::time::Duration;

use trafficengine::bench::CpsSettings;

#[path = "../../benches/device/mod.rs"]
mod device;

use device::{Conditions, Host};

#[test]
fn a_short_bench_is_valid() {
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
    let result = inline.cps(&settings);
    assert!(
        result.valid,
        "{:?}\n{:#?}",
        result.invalid_because,
        inline.device.counters()
    );
    assert!(result.connections > 100, "{result:#?}");
    assert!((430..=500).contains(&result.open_connections), "{result:#?}");
    assert!(
        result.mean_burst >= 1.0 && result.bytes_per_connection_state > 100.0,
        "{result:#?}"
    );
}
