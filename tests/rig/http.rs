//! curl to three nginx by host name.

use std::collections::HashSet;
use std::thread;

use rig::engine::{Driver, EngineOptions};
use rig::loss::{Direction, Loss};
use rig::{Arms, HOSTS, Place, RigOptions, SERVERS, servers};
use rustix::process::Signal;

use crate::setup::{LIMIT, Setup, family_option};

/// Clients at the same time.
const AT_ONCE: usize = 4;

fn with_nginx(rig: RigOptions, engine: &EngineOptions) -> Option<Setup> {
    let start = |rig: &rig::Rig| {
        (0..SERVERS)
            .map(|index| servers::start_nginx(rig, index).expect("nginx starts"))
            .collect()
    };
    Setup::new(rig, engine, &["curl", "nginx", "nft"], start)
}

/// Runs `count` curls, each for the next host and the other address family, and checks who has answered each.
fn fetch(setup: &Setup, count: usize, at_once: usize) {
    let one = |number: usize| {
        let address = setup.rig.engine_addresses()[number / SERVERS % 2];
        let (wanted, host) = (number % SERVERS, HOSTS[number % SERVERS]);
        let url = format!("http://{host}/number/{number}");
        let arguments = [family_option(address), "-sS", "--max-time", "50", &url];
        let answer = setup
            .rig
            .run(Place::Clients, "curl", &arguments, LIMIT)
            .expect("curl is answered")
            .text();
        assert_eq!(
            answer,
            format!("{} {host} /number/{number}\n", servers::name_of(wanted))
        );
    };
    thread::scope(|scope| {
        for first in 0..at_once {
            scope.spawn(move || (first..count).step_by(at_once).for_each(one));
        }
    });
}

/// Stops the engine and checks that it has recorded `count` connections, each to the server that nginx says it reached.
fn check_records(setup: Setup, count: usize) {
    let server_addresses: Vec<_> = (0..SERVERS).map(|index| setup.rig.server_addresses(index)).collect();
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), count, "one record for each connection");
    let clients: HashSet<_> = report.records.iter().map(|record| record.client).collect();
    assert_eq!(clients.len(), count, "each of its own");
    for addresses in server_addresses {
        let served = report.records.iter().filter(|record| {
            record
                .server
                .is_some_and(|server| addresses.contains(&server.ip()) && server.port() == servers::HTTP)
        });
        let served: Vec<_> = served.collect();
        assert!(
            served.len() >= count / SERVERS,
            "{} of {count} to {addresses:?}",
            served.len()
        );
        assert!(
            served
                .iter()
                .all(|record| record.bytes_to_server > 60 && record.bytes_to_client > 100)
        );
    }
}

#[test]
fn two_hundred_curls_reach_the_server_of_their_host() {
    let Some(setup) = with_nginx(RigOptions::default(), &EngineOptions::default()) else {
        return;
    };
    fetch(&setup, 200, AT_ONCE);
    check_records(setup, 200);
}

#[test]
fn two_armed_the_engine_stands_between_clients_and_servers() {
    let options = RigOptions {
        arms: Arms::Two,
        ..RigOptions::default()
    };
    let Some(setup) = with_nginx(options, &EngineOptions::default()) else {
        return;
    };
    fetch(&setup, 60, AT_ONCE);
    check_records(setup, 60);
}

#[test]
fn over_af_xdp_the_same() {
    if !kernel_has_af_xdp() {
        return rig::lacking("http::over_af_xdp_the_same", "this kernel has no AF_XDP sockets");
    }
    let options = EngineOptions {
        driver: Driver::AfXdp,
        ..EngineOptions::default()
    };
    let Some(setup) = with_nginx(RigOptions::default(), &options) else {
        return;
    };
    fetch(&setup, 60, AT_ONCE);
    check_records(setup, 60);
}

fn kernel_has_af_xdp() -> bool {
    use rustix::net::{AddressFamily, SocketType, socket};
    socket(AddressFamily::XDP, SocketType::RAW, None).is_ok()
}

/// Lets two curls, one for each version of IP, fetch two thousand pages, each over a connection of its own, while `per_mille`
/// of the frames are lost each way on both links; compares every body.
fn fetch_under_loss(per_mille: u16) {
    const PAGES: usize = 334;
    const COUNT: usize = 2 * SERVERS * PAGES;
    let Some(setup) = with_nginx(RigOptions::default(), &EngineOptions::default()) else {
        return;
    };
    let loss = Loss::start(&setup.rig, &Direction::ALL, per_mille).expect("nftables");
    let one = |address: std::net::IpAddr| {
        let folder = setup.rig.file(&format!("pages{}", family_option(address)));
        std::fs::create_dir_all(&folder).expect("a folder");
        let url = format!("http://{{{}}}/number/[1-{PAGES}]", HOSTS.join(","));
        let name = format!("{}/#1-#2", folder.display());
        let limit = "100";
        let arguments = [
            family_option(address),
            "--http1.0",
            "-sS",
            "--fail",
            "--parallel",
            "--parallel-immediate",
            "--parallel-max",
            "60",
            "--connect-timeout",
            limit,
            "--max-time",
            limit,
            "-o",
            &name,
            &url,
        ];
        let output = setup.rig.run(Place::Clients, "curl", &arguments, 3 * LIMIT);
        output.unwrap_or_else(|error| panic!("a connection has failed or is stuck: {error}"));
        for (index, host) in HOSTS.iter().enumerate() {
            for page in 1..=PAGES {
                let body = std::fs::read(folder.join(format!("{host}-{page}"))).expect("a page that was fetched");
                let right = format!("{} {host} /number/{page}\n", servers::name_of(index));
                assert!(body == right.as_bytes(), "{host} {page}: {body:02x?}");
            }
        }
    };
    thread::scope(|scope| {
        for address in setup.rig.engine_addresses() {
            scope.spawn(move || one(address));
        }
    });
    // Ten segments a connection over two links each way, at the very least.
    let (lost, sent) = (loss.lost().expect("a counter"), 20 * COUNT as u64);
    assert!(lost > sent * u64::from(per_mille) / 2_000, "{lost} frames were lost");
    drop(loss);
    let (report, _rig) = setup.finish();
    assert!(report.records.len() >= COUNT, "{} records", report.records.len());
}

/// SYN, third ACK, first payload, FIN: at these rates each kind is lost now and then.
#[test]
fn two_thousand_short_connections_survive_one_per_cent_of_loss() {
    fetch_under_loss(10);
}

#[test]
fn two_thousand_short_connections_survive_five_per_cent_of_loss() {
    fetch_under_loss(50);
}

#[test]
fn sigusr1_writes_the_counters_and_the_engine_goes_on() {
    let Some(mut setup) = with_nginx(RigOptions::default(), &EngineOptions::default()) else {
        return;
    };
    fetch(&setup, 6, AT_ONCE);
    setup.engine.process().signal(Signal::USR1);
    let shown = |process: &rig::process::Process| process.printed().contains("RecvPayload");
    setup
        .engine
        .process()
        .wait_for("the counters", LIMIT, shown)
        .expect("counters are printed");
    fetch(&setup, 6, AT_ONCE);
    check_records(setup, 12);
}

#[test]
fn an_unknown_host_is_turned_away_and_leaves_a_record() {
    let Some(setup) = with_nginx(RigOptions::default(), &EngineOptions::default()) else {
        return;
    };
    for address in setup.rig.engine_addresses() {
        let url = format!("http://{}/", std::net::SocketAddr::new(address, servers::HTTP));
        let arguments = ["-sS", "--max-time", "10", "-H", "Host: four.test", &url];
        let error = setup
            .rig
            .run(Place::Clients, "curl", &arguments, LIMIT)
            .expect_err("no server has this name");
        // 56: failure with receiving network data, here the reset.
        assert!(error.to_string().contains("curl: (56)"), "{error}");
    }
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 2);
    assert!(
        report
            .records
            .iter()
            .all(|record| record.server.is_none() && record.client_cause == "SelectorReject")
    );
}
