//! Two workers behind one Linux interface, in every way of steering: veth, AF_PACKET with one queue, a NIC in software before
//! it; and AF_PACKET with two queues, over which the kernel spreads as it likes.
//!
//! Ten thousand Linux connections each, so that a packet that now and then misses its core is noticed.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rig::engine::{Driver, Engine, Report};
use rig::servers::name_of;
use rig::{Arms, Place, Rig, RigOptions, SERVERS};
use rustix::process::Signal;

use crate::setup::{LIMIT, assert_accounts_are_settled, binary};

/// Clients at the same time.
const AT_ONCE: usize = 8;
const PORT: u16 = 7000;

/// How two workers are to share the interface.
struct Way {
    steering: &'static str,
    cores: &'static str,
    /// Lines for each port: its software NIC. Without one the interface has two queues.
    nic: &'static str,
    arms: Arms,
    connections: usize,
    /// Flow Director of the 82599 has no IPv6.
    ipv6: bool,
    /// Source addresses besides the port's own.
    addresses: bool,
}

impl Way {
    /// Two workers and one port, both address families, no address besides the port's.
    fn new(steering: &'static str, nic: &'static str) -> Self {
        Self {
            steering,
            cores: "[0, 1]",
            nic,
            arms: Arms::One,
            connections: 10_000,
            ipv6: true,
            addresses: false,
        }
    }
}

fn configuration(rig: &Rig, way: &Way) -> String {
    let mut text = format!(
        "[engine]\nname = \"{}\"\ncores = {}\nsteering = \"{}\"\ndrain = \"1s\"\n",
        rig.prefix(),
        way.cores,
        way.steering
    );
    let mut ports = vec![("clients", rig.engine_addresses())];
    if way.arms == Arms::Two {
        ports.push(("servers", rig.engine_addresses_for_servers()));
    }
    for (number, (name, [v4, v6])) in ports.into_iter().enumerate() {
        let device = Driver::AfPacket.device(number);
        let nic = way.nic;
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "\n[[port]]\nname = \"{name}\"\ndevice = \"{device}\"\naddresses = [\"{v4}/24\", \"{v6}/64\"]\n{nic}"
        );
    }
    for address in listeners(rig, way) {
        let name = if address.is_ipv4() { "v4" } else { "v6" };
        let at = SocketAddr::new(address, PORT);
        let _ = writeln!(
            text,
            "\n[[listener]]\nname = \"{name}\"\naddresses = [\"{at}\"]\nports = [\"clients\"]\nrules = [{{ first_number = true, pool = \"{name}\" }}]"
        );
        let _ = writeln!(text, "\n[[pool]]\nname = \"{name}\"");
        if way.addresses {
            let own: [IpAddr; 2] = match address {
                IpAddr::V4(_) => [2, 3].map(|last| Ipv4Addr::new(10, 77, 0, last).into()),
                IpAddr::V6(_) => [2, 3].map(|last| Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last).into()),
            };
            let _ = writeln!(text, "local_addresses = [\"{}\", \"{}\"]", own[0], own[1]);
        }
        text += "servers = [\n";
        for index in 0..SERVERS {
            let server = rig.server_addresses(index)[usize::from(address.is_ipv6())];
            let server = SocketAddr::new(server, PORT);
            let _ = writeln!(text, "  {{ name = \"{name}-{}\", address = \"{server}\" }},", index + 1);
        }
        text += "]\n";
    }
    text + &format!(
        "\n[records]\nfile = \"{}\"\nformat = \"json\"\n",
        rig.file("records.jsonl").display()
    )
}

fn listeners(rig: &Rig, way: &Way) -> Vec<IpAddr> {
    let addresses = rig.engine_addresses();
    addresses[..if way.ipv6 { 2 } else { 1 }].to_vec()
}

/// Answers each line with it and its own name, and closes, until `stop`.
fn serve(listener: &TcpListener, name: &str, stop: &AtomicBool) {
    for stream in listener.incoming() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let mut stream = stream.expect("a connection");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        let mut line = String::new();
        // A client that is gone has said so itself.
        if BufReader::new(&stream).read_line(&mut line).is_ok() {
            let _ = stream.write_all(format!("{name} read: {line}").as_bytes());
        }
    }
}

/// One client after the other, each with the next number, every so many.
fn ask(addresses: &[IpAddr], first: usize, connections: usize) {
    for number in (first..connections).step_by(AT_ONCE) {
        let at = SocketAddr::new(addresses[number / SERVERS % addresses.len()], PORT);
        let mut stream = TcpStream::connect_timeout(&at, LIMIT).expect("connected");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        stream.write_all(format!("{number} stars\n").as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer and the end");
        let expected = format!("{} read: {number} stars\n", name_of(number % SERVERS));
        assert_eq!(answer, expected, "connection {number} to {at}");
    }
}

/// Raises the rig, lets all clients ask, and ends the engine.
fn run(way: &Way) -> Option<Report> {
    let options = RigOptions {
        arms: way.arms,
        ..RigOptions::default()
    };
    let rig = Rig::for_test(options, &[])?;
    let stop = AtomicBool::new(false);
    let listen = |index: usize| {
        rig.server_addresses(index)
            .map(|address| (index, SocketAddr::new(address, PORT)))
    };
    let ends: Vec<(usize, SocketAddr)> = (0..SERVERS).flat_map(listen).collect();
    let bind = || {
        ends.iter()
            .map(|(index, at)| (*index, TcpListener::bind(at).expect("bound")))
            .collect::<Vec<_>>()
    };
    let servers = rig.at(Place::Servers, bind).expect("the servers' namespace");
    let text = configuration(&rig, way);
    let engine = Engine::start_with(&rig, binary(), &text, rig.file("records.jsonl"));
    let engine = engine.unwrap_or_else(|error| panic!("no engine: {error}"));
    let addresses = listeners(&rig, way);
    thread::scope(|scope| {
        for (index, listener) in &servers {
            scope.spawn(|| serve(listener, &name_of(*index), &stop));
        }
        let clients: Vec<_> = (0..AT_ONCE)
            .map(|first| {
                let (rig, addresses) = (&rig, &addresses);
                scope.spawn(move || {
                    rig.at(Place::Clients, || ask(addresses, first, way.connections))
                        .expect("the clients' namespace")
                })
            })
            .collect();
        let asked: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        let wake = || ends.iter().for_each(|(_, at)| _ = TcpStream::connect(at));
        rig.at(Place::Servers, wake).expect("the servers' namespace");
        asked
            .into_iter()
            .for_each(|asked| asked.expect("every client got its answers"));
    });
    let report = engine
        .stop(Signal::INT)
        .unwrap_or_else(|error| panic!("no orderly end: {error}"));
    assert_accounts_are_settled(&report);
    Some(report)
}

/// Each connection has its record, and something has passed both ways.
fn check_records(report: &Report, way: &Way) {
    assert_eq!(report.records.len(), way.connections);
    let is_complete = |record: &&rig::engine::Record| {
        record.server.is_some() && record.bytes_to_server > 7 && record.bytes_to_client > 20
    };
    assert_eq!(report.records.iter().filter(is_complete).count(), way.connections);
}

/// What holds in every way: each connection has its record, both workers have had their share, nothing was lost between them.
fn check(report: &Report, way: &Way) {
    check_records(report, way);
    let says = format!("steering: {} for 2 cores", way.steering);
    assert!(report.log.contains(&says), "the way that was asked for: {}", report.log);
    for core in 0..2 {
        let bound = report.number(&format!("/cores/{core}/counters/tcp_server/SentSyn"));
        assert!(
            bound > way.connections as u64 / 10,
            "core {core} has bound {bound} connections"
        );
    }
    let steering = |name: &str| report.number(&format!("/counters/steering/{name}"));
    assert_eq!(
        steering("handed_over"),
        steering("taken_over"),
        "what is handed over arrives"
    );
    assert_eq!(steering("hash_wrong"), 0);
    if way.steering == "software" {
        assert!(steering("mis_steered") > 0, "else nothing has been tried");
        assert_eq!(
            steering("handed_over"),
            steering("mis_steered") + steering("icmp_errors")
        );
    } else {
        assert_eq!(steering("mis_steered"), 0);
        assert!(steering("hash_right") > 0);
    }
}

#[test]
fn two_workers_take_source_ports_whose_answers_come_back_to_them() {
    let way = Way::new("rss", "software_nic = { queues = 2 }");
    let Some(report) = run(&way) else { return };
    check(&report, &way);
}

#[test]
fn two_workers_between_clients_and_servers_take_such_ports_too() {
    let way = Way {
        arms: Arms::Two,
        connections: 3_000,
        ..Way::new("rss", "software_nic = { queues = 2, model = \"x710\" }")
    };
    let Some(report) = run(&way) else { return };
    check(&report, &way);
}

#[test]
fn two_workers_have_parts_of_the_ports_as_on_an_82599() {
    let way = Way {
        ipv6: false,
        ..Way::new("port", "software_nic = { queues = 2, model = \"82599\" }")
    };
    let Some(report) = run(&way) else { return };
    check(&report, &way);
}

#[test]
fn two_workers_have_addresses_of_their_own_as_on_an_x710() {
    let way = Way {
        addresses: true,
        ..Way::new("ip", "software_nic = { queues = 2, model = \"x710\" }")
    };
    let Some(report) = run(&way) else { return };
    check(&report, &way);
}

#[test]
fn two_workers_hand_over_what_a_nic_spreads_its_own_way() {
    let way = Way::new("software", "software_nic = { queues = 2 }");
    let Some(report) = run(&way) else { return };
    check(&report, &way);
}

#[test]
fn two_workers_hand_over_what_the_kernel_spreads_its_own_way() {
    let way = Way::new("software", "");
    let Some(report) = run(&way) else { return };
    check(&report, &way);
}

/// There are two CPUs: one is the worker's, the other receives and sends for it.
#[test]
fn a_core_of_its_own_moves_the_packets_of_a_software_nic() {
    let way = Way {
        cores: "[0]",
        connections: 1_000,
        ..Way::new("auto", "software_nic = { core = 1 }")
    };
    let Some(report) = run(&way) else { return };
    check_records(&report, &way);
}

/// Neither would the card: the sentence says so, and nothing is served in another way without a word.
#[test]
fn a_way_that_the_card_does_not_have_is_given_up_with_the_reason() {
    let way = Way {
        ipv6: false,
        connections: 300,
        ..Way::new("port", "software_nic = { queues = 2, model = \"x710\" }")
    };
    let Some(report) = run(&way) else { return };
    check_records(&report, &way);
    for part in ["not \"port\"", "would take the rule", "steering: rss for 2 cores"] {
        assert!(report.log.contains(part), "{part} in {}", report.log);
    }
}
