//! The station among Linux stacks, beyond ping: a bridge that snoops on multicast, a server whose MAC address changes, a
//! host with our address. And the second signal, which needs a connection that somebody holds.
#![cfg(feature = "dpdk")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rig::engine::{Engine, EngineOptions};
use rig::{Place, Rig, RigOptions, servers};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(30);

fn start(test_engine: &str) -> Option<(Engine, Rig)> {
    let rig = Rig::for_test(RigOptions::default(), &["bridge"])?;
    let options = EngineOptions {
        engine: test_engine.to_owned(),
        ..EngineOptions::default()
    };
    let binary = Path::new(env!("CARGO_BIN_EXE_proxyengine"));
    let engine = Engine::start(&rig, binary, &options).unwrap_or_else(|error| panic!("no engine: {error}"));
    Some((engine, rig))
}

fn run(rig: &Rig, place: Place, command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = rig.run(place, words[0], &words[1..], LIMIT);
    output.unwrap_or_else(|error| panic!("{command}: {error}")).text()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Opens a connection to server 0 through the engine and sends its first payload; both ends.
fn connect(rig: &Rig, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let at = SocketAddr::new(rig.engine_v4().into(), servers::NUMBERS);
    let client = rig
        .at(Place::Clients, || TcpStream::connect_timeout(&at, LIMIT))
        .expect("there");
    let mut client = client.expect("connected");
    client.set_read_timeout(Some(LIMIT)).expect("a limit");
    client.write_all(b"0\n").expect("sent");
    let (mut server, _) = listener.accept().expect("accepted");
    server.set_read_timeout(Some(LIMIT)).expect("a limit");
    server.read_exact(&mut [0; 2]).expect("received");
    (client, server)
}

fn listen(rig: &Rig) -> TcpListener {
    let at = SocketAddr::new(rig.server_v4(0).into(), servers::NUMBERS);
    rig.at(Place::Servers, || TcpListener::bind(at))
        .expect("there")
        .expect("bound")
}

fn end(engine: Engine) -> rig::engine::Report {
    let report = engine
        .stop(Signal::TERM)
        .unwrap_or_else(|error| panic!("no orderly end: {error}"));
    assert_eq!(report.number("/buffers/leaked"), 0, "{}", report.totals);
    report
}

/// With a querier on the link, a Linux bridge passes solicitations to the ports that have reported the group only.
#[test]
fn a_bridge_that_snoops_learns_our_groups() {
    let Some(rig) = Rig::for_test(RigOptions::default(), &["bridge"]) else {
        return;
    };
    run(&rig, Place::Switch, "sysctl -qw net.ipv6.conf.br0.disable_ipv6=0");
    // In hundredths of a second: a query every two seconds, and the querier is believed after one.
    let querier = "ip link set br0 type bridge mcast_snooping 1 mcast_querier 1 mcast_query_interval 200 \
                   mcast_query_response_interval 100";
    run(&rig, Place::Switch, querier);
    let binary = Path::new(env!("CARGO_BIN_EXE_proxyengine"));
    let engine = Engine::start(&rig, binary, &EngineOptions::default());
    let engine = engine.unwrap_or_else(|error| panic!("no engine: {error}"));
    wait_until("the groups of the engine's two addresses in the bridge's table", || {
        let table = run(&rig, Place::Switch, "bridge mdb show");
        let ours: Vec<&str> = table.lines().filter(|line| line.contains("port engine0")).collect();
        ["ff02::1:ff00:1 ", "ff02::1:ff77:1 "]
            .iter()
            .all(|group| ours.iter().any(|line| line.contains(group)))
    });
    // The bridge snoops in earnest once the first query has been waited for.
    std::thread::sleep(Duration::from_secs(3));
    run(&rig, Place::Clients, "ip -6 neighbour flush dev eth0");
    let address = IpAddr::from(rig.engine_v6());
    run(&rig, Place::Clients, &format!("ping -n -c 1 -W 5 {address}"));
    end(engine);
}

#[test]
fn a_server_that_moves_to_another_mac_address_is_followed() {
    let Some((engine, rig)) = start("drain = \"1s\"\n") else {
        return;
    };
    let listener = listen(&rig);
    drop(connect(&rig, &listener));
    run(&rig, Place::Servers, "ip link set eth0 address 02:00:00:77:aa:aa");
    // The kernel announces its addresses when the link comes up with `arp_notify`; here the ping's request does.
    let server = rig.server_v4(0);
    run(&rig, Place::Servers, "ip neighbour flush dev eth0");
    run(
        &rig,
        Place::Servers,
        &format!("ping -n -c 1 -W 5 -I {server} {}", rig.engine_v4()),
    );
    drop(connect(&rig, &listener));
    let report = end(engine);
    assert!(
        report.number("/counters/neighbour/mac_changed") >= 1,
        "{}",
        report.totals
    );
    assert!(report.log.contains("has moved from"), "{}", report.log);
}

#[test]
fn a_host_with_our_address_is_noticed() {
    let Some((engine, rig)) = start("drain = \"1s\"\n") else {
        return;
    };
    for address in [IpAddr::from(rig.engine_v4()), IpAddr::from(rig.engine_v6())] {
        let option = if address.is_ipv4() { "/32" } else { "/128 nodad" };
        run(
            &rig,
            Place::Servers,
            &format!("ip address add {address}{option} dev eth0"),
        );
    }
    // Whoever speaks from the address is a duplicate: another host asks for it, or it asks for another.
    let [v4, v6] = [rig.client_v4(0).to_string(), rig.client_v6(0).to_string()];
    for (from, to) in [(rig.engine_v4().to_string(), v4), (rig.engine_v6().to_string(), v6)] {
        let words = ["-n", "-c", "1", "-W", "1", "-I", from.as_str(), to.as_str()];
        // The answer goes to the engine or to the duplicate: no matter.
        let _ = rig.run(Place::Servers, "ping", &words, LIMIT);
    }
    let report = end(engine);
    assert!(
        report.number("/counters/neighbour/duplicate_address") >= 1,
        "{}",
        report.totals
    );
    assert!(report.log.contains("uses our address"), "{}", report.log);
}

#[test]
fn a_second_signal_ends_at_once() {
    let Some((mut engine, rig)) = start("drain = \"60s\"\n") else {
        return;
    };
    let listener = listen(&rig);
    let (mut client, mut server) = connect(&rig, &listener);
    engine.process().signal(Signal::TERM);
    wait_until("draining", || {
        engine.process().printed().contains("no more connections")
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(engine.process().is_running(), "it drains for a minute");
    let asked = Instant::now();
    let report = end(engine);
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    for stream in [&mut client, &mut server] {
        let error = stream.read(&mut [0; 8]).expect_err("reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert_eq!(report.records.len(), 1);
    assert_eq!(report.records[0].client_cause, "Shutdown");
}
