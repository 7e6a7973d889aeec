//! A server dies while a connection to it is being set up: the next one serves the request, and curl sees nothing of it.

use std::net::IpAddr;
use std::thread;

use rig::engine::{EngineOptions, Record};
use rig::loss::{Direction, Loss};
use rig::process::{self, Process};
use rig::servers::{self, HTTP};
use rig::{Place, Rig, RigOptions, SERVERS};
use rustix::process::Signal;

use crate::setup::{LIMIT, Setup};

/// Who is to die.
const DOOMED: usize = 1;
/// Enough that the doomed one's turn comes at least twice.
const REQUESTS: usize = 2 * SERVERS;

/// All three servers can stand for one another and are picked in turn; who does not answer in time is given up. None
/// is passed over for its failures, so that each turn shows the same.
fn options(connect: &str) -> EngineOptions {
    let tables = |family: &str, engine: &str, servers: [&str; SERVERS]| {
        let servers = (1..)
            .zip(servers)
            .map(|(number, at)| format!("    {{ name = \"web{family}-{number}\", address = \"{at}:{HTTP}\" }},\n"));
        format!(
            "[[listener]]\nname = \"web{family}\"\naddresses = [\"{engine}:{HTTP}\"]\ndefault = \"web{family}\"\n\n\
             [[pool]]\nname = \"web{family}\"\nconnect_timeout = \"{connect}\"\neject_after = 0\nservers = [\n{}]\n\n",
            servers.collect::<String>()
        )
    };
    EngineOptions {
        services: Vec::new(),
        tables: tables("4", "10.77.0.1", ["10.77.0.11", "10.77.0.12", "10.77.0.13"])
            + &tables("6", "[fd77::1]", ["[fd77::11]", "[fd77::12]", "[fd77::13]"]),
        ..EngineOptions::default()
    }
}

/// The rig with three nginx, of which the test holds the doomed one itself.
fn with_nginx(connect: &str) -> Option<(Setup, Process)> {
    let mut doomed = None;
    let start = |rig: &Rig| {
        let mut nginx: Vec<_> = (0..SERVERS)
            .map(|index| servers::start_nginx(rig, index).expect("nginx starts"))
            .collect();
        doomed = Some(nginx.remove(DOOMED));
        nginx
    };
    let setup = Setup::new(
        RigOptions::default(),
        &options(connect),
        &["curl", "nginx", "nft"],
        start,
    )?;
    Some((setup, doomed?))
}

/// One request; returns which server has answered it with 200.
fn fetch(rig: &Rig, engine: IpAddr) -> usize {
    let url = format!("http://{}/", std::net::SocketAddr::new(engine, HTTP));
    let arguments = ["-sS", "--fail", "--max-time", "50", "--write-out", "%{http_code}", &url];
    let answer = rig
        .run(Place::Clients, "curl", &arguments, LIMIT)
        .expect("curl is answered")
        .text();
    assert!(answer.ends_with("200"), "{answer}");
    servers::named_in(&answer).expect("a name")
}

/// As many requests to an address of the engine as bring the doomed server's turn twice: others serve them.
fn assert_others_serve(rig: &Rig, engine: IpAddr) {
    for _ in 0..REQUESTS {
        assert_ne!(fetch(rig, engine), DOOMED);
    }
}

/// Every request to both addresses has its record, and those of the doomed server's turns show two servers: every second one, as
/// whoever is called in its place has had its own turn so.
fn assert_passed_on(records: &[Record]) {
    let passed_on = records.iter().filter(|record| record.servers_tried == 2).count();
    assert_eq!((records.len(), passed_on), (2 * REQUESTS, REQUESTS), "{records:?}");
}

/// Linux answers for a process that is gone: with RST.
#[test]
fn a_killed_server_is_passed_over() {
    let Some((setup, mut doomed)) = with_nginx("10s") else {
        return;
    };
    doomed.signal(Signal::KILL);
    doomed.wait(LIMIT).expect("it is gone");
    for engine in setup.rig.engine_addresses() {
        assert_others_serve(&setup.rig, engine);
    }
    let (report, _rig) = setup.finish();
    assert_passed_on(&report.records);
}

/// The SYN is on its way and lost, and the server dies: the repeated SYN finds nobody.
#[test]
fn a_server_killed_while_it_is_being_called_is_passed_over() {
    // Longer than this test takes, so that only the refusal can be what ends the call.
    let Some((setup, mut doomed)) = with_nginx("1m") else {
        return;
    };
    let rig = &setup.rig;
    for (engine, server) in rig.engine_addresses().into_iter().zip(rig.server_addresses(DOOMED)) {
        let family = if server.is_ipv4() { "ip" } else { "ip6" };
        let syns = format!("{family} daddr {server} tcp flags syn");
        let loss = Loss::of(rig, &[Direction::FromEngine], &syns).expect("nftables");
        thread::scope(|scope| {
            let requests = scope.spawn(|| (0..SERVERS).map(|_| fetch(rig, engine)).collect::<Vec<_>>());
            let called = || loss.lost().is_ok_and(|lost| lost > 0);
            process::wait_for("the lost call", LIMIT, called).expect("its turn comes");
            doomed.signal(Signal::KILL);
            doomed.wait(LIMIT).expect("it is gone");
            drop(loss);
            let served = requests.join().expect("all are served");
            assert!(!served.contains(&DOOMED), "{served:?}");
        });
        doomed = servers::start_nginx(rig, DOOMED).expect("it comes back");
    }
    let (report, _rig) = setup.finish();
    let tried: Vec<u64> = report.records.iter().map(|record| record.servers_tried).collect();
    assert_eq!(
        (tried.len(), tried.iter().filter(|&&tried| tried == 2).count()),
        (2 * SERVERS, 2),
        "{tried:?}"
    );
}

/// Whatever is sent to it is lost: only time can tell.
#[test]
fn a_silent_server_is_passed_over_after_its_time() {
    let Some((setup, _doomed)) = with_nginx("3s") else {
        return;
    };
    let rig = &setup.rig;
    for (engine, server) in rig.engine_addresses().into_iter().zip(rig.server_addresses(DOOMED)) {
        let family = if server.is_ipv4() { "ip" } else { "ip6" };
        let _loss = Loss::of(rig, &[Direction::FromEngine], &format!("{family} daddr {server}")).expect("nftables");
        assert_others_serve(rig, engine);
    }
    let (report, _rig) = setup.finish();
    assert_passed_on(&report.records);
}

/// The machine is gone with its addresses: nobody answers ARP or neighbour discovery for it.
#[test]
fn a_server_whose_addresses_are_gone_is_passed_over_after_its_time() {
    let Some((setup, _doomed)) = with_nginx("3s") else {
        return;
    };
    let rig = &setup.rig;
    for (address, length) in rig.server_addresses(DOOMED).into_iter().zip([24, 64]) {
        let delete = ["address", "delete", &format!("{address}/{length}"), "dev", "eth0"];
        rig.run(Place::Servers, "ip", &delete, LIMIT)
            .expect("no such address any more");
    }
    for engine in rig.engine_addresses() {
        assert_others_serve(rig, engine);
    }
    let (report, _rig) = setup.finish();
    assert_passed_on(&report.records);
}
