//! A link with MTU 1280 behind the engine, of which neither end knows: uploads complete by path-MTU discovery through
//! the engine, whatever versions of IP the client and the server have.

use std::net::IpAddr;

use rig::engine::EngineOptions;
use rig::process::Process;
use rig::{FAR_HOST, FAR_NETWORKS, Place, Rig, RigOptions, servers};

use crate::families::there_and_back;
use crate::setup::{LIMIT, Setup, family_option};

const SMALL: u16 = 1280;
/// The engine's port that leads to the far host by its IPv4 address, and by IPv6.
const PORTS: [u16; 2] = [8004, 8006];
/// nginx's number on the rig.
const INDEX: usize = 2;

fn options() -> EngineOptions {
    let [v4, v6] = FAR_HOST;
    let tables = ["10.77.0.1", "[fd77::1]"].map(|at| {
        let name = if at.starts_with('[') { "six" } else { "four" };
        let [by_v4, by_v6] = PORTS;
        format!(
            "[[listener]]\nname = \"{name}-to-four\"\naddresses = [\"{at}:{by_v4}\"]\ndefault = \"four\"\n\n\
             [[listener]]\nname = \"{name}-to-six\"\naddresses = [\"{at}:{by_v6}\"]\ndefault = \"six\"\n\n"
        )
    });
    let http = servers::HTTP;
    let pools = format!(
        "[[pool]]\nname = \"four\"\nservers = [{{ name = \"far4\", address = \"{v4}:{http}\" }}]\n\n\
         [[pool]]\nname = \"six\"\nservers = [{{ name = \"far6\", address = \"[{v6}]:{http}\" }}]\n\n"
    );
    let [to_v4, to_v6] = FAR_NETWORKS;
    EngineOptions {
        services: Vec::new(),
        // By way of the first server's addresses, whose namespace is the router.
        server_port: format!(
            "routes = [{{ to = \"{to_v4}\", via = \"10.77.0.11\" }}, {{ to = \"{to_v6}\", via = \"fd77::11\" }}]\n"
        ),
        tables: tables.concat() + &pools,
        ..EngineOptions::default()
    }
}

fn start(rig: &Rig) -> Vec<Process> {
    rig.add_far_host(SMALL).expect("a far host");
    vec![servers::start_nginx_at(rig, Place::Far, INDEX, &FAR_HOST).expect("nginx starts")]
}

/// What the clients' Linux has learnt about the way to the engine.
fn path_mtu(setup: &Setup, engine: IpAddr) -> Option<u16> {
    let arguments = [family_option(engine), "route", "get", &engine.to_string()];
    let route = setup
        .rig
        .run(Place::Clients, "ip", &arguments, LIMIT)
        .expect("ip")
        .text();
    let mut words = route.split_whitespace().skip_while(|word| *word != "mtu");
    words.nth(1).map(|mtu| mtu.parse().expect("a number"))
}

fn forget_path_mtus(setup: &Setup) {
    for family in ["-4", "-6"] {
        let arguments = [family, "route", "flush", "cache"];
        setup.rig.run(Place::Clients, "ip", &arguments, LIMIT).expect("ip");
    }
}

#[test]
fn transfers_complete_by_path_mtu_discovery() {
    let tools = ["curl", "nginx", "sha256sum"];
    let Some(setup) = Setup::new(RigOptions::default(), &options(), &tools, start) else {
        return;
    };
    let [v4, v6] = setup.rig.engine_addresses();
    let [by_v4, by_v6] = PORTS;
    // What the client's own packets may have: twenty bytes more or less where the versions differ.
    for (engine, port, expected) in [
        (v4, by_v4, SMALL),
        (v6, by_v6, SMALL),
        (v4, by_v6, SMALL - 20),
        (v6, by_v4, SMALL + 20),
    ] {
        assert_eq!(path_mtu(&setup, engine), None, "nothing is known at first");
        there_and_back(&setup, (engine, port), INDEX, LIMIT);
        assert_eq!(path_mtu(&setup, engine), Some(expected), "{engine} port {port}");
        forget_path_mtus(&setup);
    }
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 8);
}
