//! curl over IPv6 to an nginx that has only IPv4, and the reverse: files arrive whole, and each side sees only its own
//! version of IP.

use std::net::IpAddr;
use std::time::Duration;

use rig::capture::{Capture, Segment, Tap};
use rig::engine::EngineOptions;
use rig::loss::{Direction, Loss};
use rig::servers::{self, HTTP};
use rig::{Arms, Place, Rig, RigOptions};

use crate::files::{hash, write_noise};
use crate::setup::{LIMIT, Setup, family_option};

const SIZE: u64 = 10_000_000;
/// One per cent each way, on a machine that does other things at the same time.
const LOSSY_LIMIT: Duration = Duration::from_secs(120);
/// The server with IPv4 only, and that with IPv6 only.
const ONLY: [usize; 2] = [0, 1];

/// IPv4 clients go to the server with IPv6, IPv6 clients to the one with IPv4.
fn options(rig: &RigOptions) -> EngineOptions {
    let segment = match rig.arms {
        Arms::One => ("10.77.0.11", "[fd77::12]"),
        Arms::Two => ("10.77.1.11", "[fd77:0:0:1::12]"),
    };
    let table = |name: &str, at: &str, server: &str| {
        format!(
            "[[listener]]\nname = \"{name}\"\naddresses = [\"{at}:{HTTP}\"]\ndefault = \"{name}\"\n\n\
             [[pool]]\nname = \"{name}\"\nservers = [{{ name = \"{name}\", address = \"{server}:{HTTP}\" }}]\n\n"
        )
    };
    EngineOptions {
        services: Vec::new(),
        tables: table("four-to-six", "10.77.0.1", segment.1) + &table("six-to-four", "[fd77::1]", segment.0),
        ..EngineOptions::default()
    }
}

fn with_nginx(rig: RigOptions) -> Option<Setup> {
    let start = |rig: &Rig| {
        let of = |index: usize, family: usize| {
            let address = rig.server_addresses(index)[family];
            servers::start_nginx_at(rig, Place::Servers, index, &[address]).expect("nginx starts")
        };
        vec![of(ONLY[0], 0), of(ONLY[1], 1)]
    };
    let engine = options(&rig);
    Setup::new(rig, &engine, &["curl", "nginx", "sha256sum", "tcpdump", "nft"], start)
}

/// Gets a file through the engine's `at` from the nginx that is server `index`, and stores another there.
pub(crate) fn there_and_back(setup: &Setup, at: (IpAddr, u16), index: usize, limit: Duration) {
    let (address, port) = at;
    let files = servers::files_of(&setup.rig, index);
    let curl = |name: &str, arguments: &[&str]| {
        let url = format!("http://one.test:{port}/files/{name}");
        let arguments = [&[family_option(address), "-sS", "--fail"], arguments, &[&url]].concat();
        setup
            .rig
            .run(Place::Clients, "curl", &arguments, limit)
            .expect("the file passes");
    };
    let here = setup.rig.file("here");
    let here_name = here.to_string_lossy().into_owned();
    write_noise(&files.join("down"), SIZE);
    curl("down", &["--output", &here_name]);
    assert_eq!(hash(&here), hash(&files.join("down")), "down from {at:?}");
    write_noise(&here, SIZE + 8);
    curl("up", &["--upload-file", &here_name]);
    assert_eq!(hash(&files.join("up")), hash(&here), "up to {at:?}");
}

fn check_records(setup: Setup) {
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 4);
    for record in &report.records {
        let server = record.server.expect("a server");
        assert_ne!(record.client.is_ipv4(), server.is_ipv4(), "{record:?}");
        assert!(record.bytes_to_client > SIZE || record.bytes_to_server > SIZE);
    }
    let from_v4 = report.records.iter().filter(|record| record.client.is_ipv4());
    assert_eq!(from_v4.count(), 2);
}

#[test]
fn curl_over_ipv6_reaches_an_ipv4_server_and_the_reverse() {
    let Some(setup) = with_nginx(RigOptions::default()) else {
        return;
    };
    for (address, index) in setup.rig.engine_addresses().into_iter().zip([ONLY[1], ONLY[0]]) {
        there_and_back(&setup, (address, HTTP), index, LIMIT);
    }
    check_records(setup);
}

#[test]
fn two_armed_each_cable_has_its_own_version() {
    let Some(setup) = with_nginx(RigOptions {
        arms: Arms::Two,
        ..RigOptions::default()
    }) else {
        return;
    };
    let setup = setup.knowing(&["four-to-six", "six-to-four"]);
    for (address, index) in setup.rig.engine_addresses().into_iter().zip([ONLY[1], ONLY[0]]) {
        let captures = [Tap::Clients, Tap::Servers].map(|tap| Capture::start(&setup.rig, tap).expect("tcpdump"));
        there_and_back(&setup, (address, HTTP), index, LIMIT);
        let [clients, servers] = captures.map(|capture| capture.finish().expect("a capture"));
        check_captures(&clients, &servers, address.is_ipv4());
    }
    check_records(setup);
}

/// Both sides agreed on the same options, on segments that fit IPv6, and no segment was too long for either.
fn check_captures(clients: &[Segment], servers: &[Segment], clients_have_v4: bool) {
    let is_of = |v4: bool| move |segment: &Segment| segment.from.is_ipv4() == v4 && segment.to.is_ipv4() == v4;
    assert!(clients.iter().all(is_of(clients_have_v4)));
    assert!(servers.iter().all(is_of(!clients_have_v4)));
    let answer = clients
        .iter()
        .find(|segment| segment.answers_open())
        .expect("a SYN-ACK");
    let syn = servers.iter().find(|segment| segment.opens()).expect("a SYN");
    for (segment, mss) in [(answer, 1440), (syn, 1440)] {
        assert_eq!(segment.mss, Some(mss), "{segment:?}");
        assert!(segment.sack_permitted && segment.window_scale.is_some() && segment.timestamps.is_some());
    }
    let largest = |segments: &[Segment]| segments.iter().map(|segment| segment.payload).max();
    // 1500 less 40 of IPv6, 20 of TCP, 12 of timestamps; over IPv4 no more.
    assert_eq!((largest(clients), largest(servers)), (Some(1428), Some(1428)));
}

#[test]
fn with_one_per_cent_lost_each_way_they_arrive_whole() {
    let Some(setup) = with_nginx(RigOptions::default()) else {
        return;
    };
    let loss = Loss::start(&setup.rig, &Direction::ALL, 10).expect("nftables");
    for (address, index) in setup.rig.engine_addresses().into_iter().zip([ONLY[1], ONLY[0]]) {
        there_and_back(&setup, (address, HTTP), index, LOSSY_LIMIT);
    }
    // 10 MB are at least 7 000 segments each way, of which two links each lose one in a hundred.
    assert!(loss.lost().expect("a counter") > 200);
    drop(loss);
    check_records(setup);
}
