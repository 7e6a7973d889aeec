//! iperf3 through the engine, in both directions and over both address families.

use std::net::IpAddr;

use rig::engine::EngineOptions;
use rig::{Place, RigOptions, servers};

use crate::setup::{LIMIT, Setup};

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
