//! `bench cps` in small: the engine's own core program between the generator's two ends, on ring ports. Asserts that the
//! result is valid (packets, servers, nothing lost), never how fast it is.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use trafficengine::bench::{CpsResult, CpsSettings, LoadProcess, TwoCoreBench, serve_load};

#[path = "../../benches/device/mod.rs"]
mod device;

use device::{Conditions, Host};

#[test]
fn a_short_bench_is_valid_inline_over_either_ip_on_two_cores_and_over_memif() {
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

    let over_ipv6 = Conditions {
        ipv6: true,
        ..conditions
    };
    let mut inline = host.open('s', &over_ipv6).expect("the bench opens");
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
    drop(device);

    // One process has one DPDK: all of it is one test.
    over_memif(&host);
}

/// Where the process of the load finds the bench.
const FOLDER: &str = "PROXYENGINE_BENCH_FOLDER";

fn memif_conditions() -> Conditions {
    let settings = CpsSettings {
        open: 500,
        length: Duration::from_millis(500),
        time_wait: Duration::from_millis(100),
    };
    Conditions {
        capacity: 200_000,
        depth: 128,
        ..Conditions::new(settings)
    }
}

fn over_memif(host: &Host) {
    let (folder, conditions) = (tempfile::tempdir().expect("a folder"), memif_conditions());
    let opened = host.open_memif(folder.path(), &conditions, || {
        let mut load = Command::new(std::env::current_exe()?);
        load.args(["--ignored", "--exact", "--nocapture", "load_of_the_bench_over_memif"]);
        Ok(LoadProcess::start(load.env(FOLDER, folder.path()), folder.path())?)
    });
    let (device, load, clock) = opened.expect("two processes on a memif");
    let bench = TwoCoreBench::new(device, load, clock);
    let (mut result, device, _totals) = bench.cps("memif", &conditions.settings).expect("a load that stays");
    result
        .invalid_because
        .retain(|reason| !reason.contains("times the busy"));
    result.valid = result.invalid_because.is_empty();
    check(&result, &device);
}

/// Not a test: the other process of the bench over memif, which is this program once more.
#[test]
#[ignore = "the test of the bench runs it as a process of its own"]
fn load_of_the_bench_over_memif() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("the test of the bench starts it"));
    let host = Host::start(1, 1500).expect("DPDK starts");
    let (arms, pool, clock) = host
        .load_memif(&folder, &memif_conditions())
        .expect("the bench is there");
    let counted = serve_load(arms, pool, &clock, &folder).expect("the bench stays");
    println!("\n{counted}");
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
