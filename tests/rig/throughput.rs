//! iperf3 through the engine, in both directions and over both address families.

use std::net::IpAddr;

use rig::engine::{Engine, EngineOptions};
use rig::process::{self, Process};
use rig::{Place, RigOptions, servers};

use crate::setup::{LIMIT, Setup, binary, control};

/// Far below what the slowest machine does; a stuck transfer is below it.
const LEAST_BYTES: u64 = 5_000_000;
const SECONDS: &str = "2";

fn with_iperf() -> Option<Setup> {
    let start = |rig: &rig::Rig| vec![servers::start_iperf(rig).expect("iperf3 starts")];
    Setup::new(RigOptions::default(), &EngineOptions::default(), &["iperf3"], start)
}

/// Runs iperf3 and returns its own account of it.
fn measure(setup: &Setup, to: IpAddr, options: &[&str]) -> serde_json::Value {
    let (to, port) = (to.to_string(), servers::IPERF.to_string());
    let arguments = [
        &["--client", &to, "--port", &port, "--time", SECONDS, "--json"],
        options,
    ]
    .concat();
    let output = setup
        .rig
        .run(Place::Clients, "iperf3", &arguments, LIMIT)
        .expect("iperf3 runs to its end");
    serde_json::from_slice(&output.stdout).expect("iperf3 reports in JSON")
}

fn received(account: &serde_json::Value, sum: &str) -> u64 {
    account["end"][sum]["bytes"]
        .as_u64()
        .unwrap_or_else(|| panic!("no {sum} in {account}"))
}

#[test]
fn iperf3_fills_the_pipe_from_client_to_server() {
    let Some(setup) = with_iperf() else { return };
    for address in setup.rig.engine_addresses() {
        let account = measure(&setup, address, &[]);
        assert!(received(&account, "sum_received") > LEAST_BYTES, "{account}");
    }
    setup.finish();
}

#[test]
fn iperf3_fills_the_pipe_from_server_to_client() {
    let Some(setup) = with_iperf() else { return };
    for address in setup.rig.engine_addresses() {
        let account = measure(&setup, address, &["--reverse"]);
        assert!(received(&account, "sum_received") > LEAST_BYTES, "{account}");
    }
    setup.finish();
}

#[test]
fn iperf3_fills_the_pipe_both_ways_at_once_on_several_connections() {
    let Some(setup) = with_iperf() else { return };
    for address in setup.rig.engine_addresses() {
        let account = measure(&setup, address, &["--bidir", "--parallel", "3"]);
        assert!(received(&account, "sum_received") > LEAST_BYTES, "{account}");
        assert!(
            received(&account, "sum_received_bidir_reverse") > LEAST_BYTES,
            "{account}"
        );
    }
    setup.finish();
}

/// iperf3 towards the servers, beside the test.
fn start(setup: &Setup, seconds: &str) -> Process {
    let [to, _] = setup.rig.engine_addresses().map(|address| address.to_string());
    let port = servers::IPERF.to_string();
    let arguments = ["--client", &to, "--port", &port, "--time", seconds, "--json"];
    let iperf = setup.rig.start(Place::Clients, "iperf-client", "iperf3", &arguments);
    let iperf = iperf.expect("iperf3 starts");
    // One connection for orders, one for bytes.
    process::wait_for("iperf3's connections", LIMIT, || open(setup) == 2).expect("they are open");
    iperf
}

fn open(setup: &Setup) -> u64 {
    let shown = setup.ctl(&["show", "servers", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let servers = shown.as_array().expect("servers");
    let open = servers.iter().filter_map(|server| server["open"].as_u64());
    open.sum()
}

/// Whether iperf3 gets through with a connection of its own.
fn gets_in(setup: &Setup) -> bool {
    let [to, _] = setup.rig.engine_addresses().map(|address| address.to_string());
    let port = servers::IPERF.to_string();
    let arguments = [
        "--client",
        &to,
        "--port",
        &port,
        "--time",
        "1",
        "--connect-timeout",
        "2000",
    ];
    setup.rig.run(Place::Clients, "iperf3", &arguments, LIMIT).is_ok()
}

#[test]
fn iperf3_goes_on_through_a_drain_and_ends_with_what_is_closed() {
    let iperf = |rig: &rig::Rig| vec![servers::start_iperf(rig).expect("iperf3 starts")];
    let engine = |rig: &rig::Rig| {
        let options = EngineOptions {
            tables: control(rig),
            ..EngineOptions::default()
        };
        Engine::start(rig, binary(), &options)
    };
    let Some(setup) = Setup::with(RigOptions::default(), &["iperf3"], iperf, engine) else {
        return;
    };
    for what in [["server", "iperf4-1"], ["pool", "iperf4"], ["listener", "iperf4"]] {
        let mut running = start(&setup, "4");
        setup.ctl(&[&["drain"], &what[..]].concat());
        assert!(!gets_in(&setup), "{what:?} takes connections");
        let status = running.wait(LIMIT).expect("it ends");
        assert!(status.success(), "{what:?}: {}", running.printed());
        let account = serde_json::from_str(&running.printed()).expect("iperf3 reports in JSON");
        assert!(received(&account, "sum_received") > LEAST_BYTES, "{account}");
        setup.ctl(&[&["ready"], &what[..]].concat());
    }
    let mut running = start(&setup, "60");
    setup.ctl(&["drain", "server", "iperf4-1", "--close-over", "2s"]);
    running.wait(LIMIT / 2).expect("it ends long before its time");
    // In JSON it reports an error and exits as if there were none.
    assert!(running.printed().contains("\"error\""), "{}", running.printed());
    process::wait_for("both connections to end", LIMIT, || open(&setup) == 0).expect("they end");
    setup.ctl(&["ready", "server", "iperf4-1"]);
    process::wait_for("iperf3's server to be free", LIMIT, || gets_in(&setup)).expect("in service");
    setup.finish();
}
