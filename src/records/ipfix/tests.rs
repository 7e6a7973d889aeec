//! What two decoders that nobody here wrote make of the messages: tshark of each datagram, nfdump's collector of the flows.

use super::*;
use crate::config::{Destination, RecordsConfig};
use crate::records::RecordKeeper;
use e2d2::time::Instant as At;
use netfcts::format::{Named, RecordFormat};
use netfcts::progress::{Ended, Ends, Micros, Progress};
use netfcts::record::{NO_SERVER, State};
use netfcts::ring::record_ring;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output};

/// Connections of each pair of families: several messages.
const EACH: u16 = 100;

fn names() -> NameTable {
    let named = |address: &str| Named {
        name: address.replace(':', "-"),
        address: address.parse().expect("address"),
    };
    NameTable {
        listeners: vec!["of both families".to_owned()],
        servers: vec![named("198.51.100.5:8080"), named("[2001:db8:1::5]:8080")],
        local_addresses: vec![
            "198.51.100.1".parse().expect("address"),
            "2001:db8:1::1".parse().expect("address"),
            "192.0.2.1".parse().expect("address"),
            "2001:db8::1".parse().expect("address"),
        ],
        classes: Vec::new(),
        epoch_ns: 1_700_000_000_000_000_000,
    }
}

/// Of each template so many connections, all of them different.
fn connections() -> Vec<Ended> {
    let mut all = Vec::new();
    for (port, client) in [(1_u16, "203.0.113.7"), (2, "2001:db8:9::7")] {
        for server in [NO_SERVER, 0, 1] {
            for number in 0..EACH {
                let client = match client.parse().expect("address") {
                    IpAddr::V4(client) => client.to_ipv6_mapped(),
                    IpAddr::V6(client) => client,
                };
                let mut progress = Progress::NONE;
                progress.begin(Side::Client, State::Established, Micros::default());
                progress.push_state(Side::Client, State::Closed, At::from_nanos(250_000_000).into());
                let is_called = server != NO_SERVER;
                all.push(Ended {
                    progress,
                    ends: Ends {
                        client: client.to_bits(),
                        client_port: 10_000 * port + 1_000 * (server % 3) + number,
                        called: (1 + port, 8_000 + port),
                        server,
                        local: if is_called { (server, 5_000 + number) } else { (0, 0) },
                        packets: (7, 6),
                        bytes: ((1_000 + u64::from(number)).into(), (1 << 33).into()),
                        cause: if is_called {
                            Cause::PassiveClose
                        } else {
                            Cause::NoServer
                        },
                        at: At::from_nanos(250_000_000).into(),
                        ..Ends::default()
                    },
                });
            }
        }
    }
    all
}

/// Sends them all to a collector on loopback.
fn export(to: SocketAddr) {
    let sink = RecordsConfig::all(Destination::Ipfix(to), RecordFormat::JsonLines);
    let (mut sender, receiver) = record_ring(1_024);
    let keeper = RecordKeeper::start(vec![receiver], &[sink], names()).expect("start");
    let connections = connections();
    let count = connections.len() as u64;
    connections.into_iter().for_each(|ended| sender.send(|| ended));
    let totals = keeper.finish().totals();
    assert_eq!((totals.written, totals.lost), (count, 0));
}

fn is_here(program: &str, version: &str) -> bool {
    Command::new(program).arg(version).output().is_ok()
}

/// A capture with IPv4 and UDP headers before each message, as tshark wants it.
fn capture_of(messages: &[Vec<u8>]) -> Vec<u8> {
    const RAW_IP: u32 = 101;
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, RAW_IP] {
        file.extend_from_slice(&u32::to_le_bytes(word));
    }
    for message in messages {
        let length = message.len() as u32 + 28;
        for word in [1_700_000_000, 0, length, length] {
            file.extend_from_slice(&u32::to_le_bytes(word));
        }
        file.extend_from_slice(&[0x45, 0]);
        file.extend_from_slice(&(length as u16).to_be_bytes());
        file.extend_from_slice(&[0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 9, 192, 0, 2, 10]);
        file.extend_from_slice(&4_739_u16.to_be_bytes());
        file.extend_from_slice(&4_739_u16.to_be_bytes());
        file.extend_from_slice(&(length as u16 - 20).to_be_bytes());
        file.extend_from_slice(&[0, 0]);
        file.extend_from_slice(message);
    }
    file
}

/// What tshark reads of some elements in each message: a line each, with cells between tabs.
fn fields_of(path: &Path) -> Output {
    const FIELDS: [&str; 19] = [
        "cflow.srcaddr",
        "cflow.srcaddrv6",
        "cflow.srcport",
        "cflow.post_natsource_ipv4_address",
        "cflow.post_nat_source_ipv6_address",
        "_ws.expert.message",
        "_ws.malformed",
        "cflow.dstaddr",
        "cflow.dstaddrv6",
        "cflow.dstport",
        "cflow.post_natdestination_ipv4_address",
        "cflow.post_nat_destination_ipv6_address",
        "cflow.post_naptsource_transport_port",
        "cflow.post_naptdestination_transport_port",
        "cflow.octets",
        "cflow.packets",
        "cflow.flow_end_reason",
        "cflow.biflow_direction",
        "cflow.sampling_probability",
    ];
    let arguments = [
        "-n",
        "-d",
        "udp.port==4739,cflow",
        "-T",
        "fields",
        "-E",
        "occurrence=a",
        "-r",
    ];
    let mut command = Command::new("tshark");
    command.args(arguments).arg(path);
    command.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    command.output().expect("tshark")
}

#[test]
fn tshark_reads_every_message() {
    if !is_here("tshark", "--version") {
        return rig::skip("ipfix::tshark", "no tshark (Debian package tshark)");
    }
    let collector = UdpSocket::bind("127.0.0.1:0").expect("bind");
    export(collector.local_addr().expect("address"));
    collector.set_nonblocking(true).expect("nonblocking");
    let mut buffer = [0; 65_536];
    let messages: Vec<Vec<u8>> =
        std::iter::from_fn(|| collector.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec())).collect();
    assert!(messages.len() > 10 && messages.iter().all(|message| message.len() <= LARGEST_MESSAGE));
    // RFC 7011 3.1: the data records sent before.
    let sequence = |message: &[u8]| u32::from_be_bytes(message[8..12].try_into().expect("four bytes"));
    assert_eq!(sequence(&messages[0]), 0);
    assert!(messages.windows(2).all(|pair| sequence(&pair[0]) < sequence(&pair[1])));

    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("ipfix.pcap");
    fs::write(&path, capture_of(&messages)).expect("write");
    let output = fields_of(&path);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let column = |number: usize| -> Vec<String> {
        let cells = text.lines().filter_map(|line| line.split('\t').nth(number));
        cells
            .flat_map(|cell| cell.split(','))
            .filter(|value| !value.is_empty())
            .map(str::to_owned)
            .collect()
    };
    assert_eq!((column(5), column(6)), (vec![], vec![]), "{text}");
    let expected: BTreeSet<String> = connections()
        .iter()
        .map(|ended| ended.ends.client_port.to_string())
        .collect();
    let ports = column(2);
    assert_eq!(
        (ports.len(), ports.into_iter().collect()),
        (6 * usize::from(EACH), expected)
    );
    let count = |number: usize, value: &str| column(number).iter().filter(|found| *found == value).count();
    let (three, two) = (3 * usize::from(EACH), 2 * usize::from(EACH));
    assert_eq!((count(0, "203.0.113.7"), count(1, "2001:db8:9::7")), (three, three));
    assert_eq!((count(3, "198.51.100.1"), count(4, "2001:db8:1::1")), (two, two));
    // Both are of one listener.
    assert_eq!((count(7, "192.0.2.1"), count(8, "2001:db8::1")), (three, three));
    assert_eq!((count(9, "8001"), count(9, "8002")), (three, three));
    // Each pair of families has its server; connections without one have no port of it.
    assert_eq!((count(10, "198.51.100.5"), count(11, "2001:db8:1::5")), (two, two));
    assert_eq!((count(13, "8080"), count(13, "0")), (2 * two, two));
    let local: Vec<u64> = column(12).iter().map(|port| port.parse().expect("port")).collect();
    let of_all: u64 = connections().iter().map(|ended| u64::from(ended.ends.local.1)).sum();
    assert_eq!((local.len(), local.iter().sum::<u64>()), (3 * two, of_all));
    let sum = |number: usize| -> u64 {
        column(number)
            .iter()
            .map(|value| value.parse::<u64>().expect("a number"))
            .sum()
    };
    let both_ways = |of: fn(&Ends) -> u64| connections().iter().map(|ended| of(&ended.ends)).sum::<u64>();
    assert_eq!(sum(14), both_ways(|ends| ends.bytes.0.get() + ends.bytes.1.get()));
    assert_eq!(
        sum(15),
        both_ways(|ends| u64::from(ends.packets.0) + u64::from(ends.packets.1))
    );
    // flowEndReason: end of flow detected, or lack of resources; biflowDirection: the initiator; samplingProbability: all.
    assert_eq!((count(16, "3"), count(16, "5")), (2 * two, two));
    assert_eq!((count(17, "1"), count(18, "1")), (3 * two, 3 * two));
}

/// A collector that ends with the test.
struct Collector(Child);

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nfdump_has_every_flow() {
    if !is_here("nfcapd", "-V") || !is_here("nfdump", "-V") {
        return rig::skip("ipfix::nfdump", "no nfcapd (Debian package nfdump)");
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    // A port that is free now.
    let port = UdpSocket::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .expect("port")
        .port();
    let mut collector = Collector(
        Command::new("nfcapd")
            .args(["-b", "127.0.0.1", "-B", "4000000", "-p", &port.to_string(), "-w"])
            .arg(dir.path())
            .spawn()
            .expect("nfcapd"),
    );
    wait_until_bound(port);
    export(([127, 0, 0, 1], port).into());
    // It reads what is in its socket before it ends.
    std::thread::sleep(Duration::from_millis(500));
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&collector.0),
        rustix::process::Signal::TERM,
    )
    .expect("signal");
    collector.0.wait().expect("end");
    let flows = flows_in(dir.path());
    assert_eq!(flows.len(), 6 * usize::from(EACH));
    let ports: BTreeSet<u64> = flows
        .iter()
        .map(|flow| flow["src_port"].as_u64().expect("port"))
        .collect();
    let expected: BTreeSet<u64> = connections()
        .iter()
        .map(|ended| ended.ends.client_port.into())
        .collect();
    assert_eq!(ports, expected);
    for flow in &flows {
        assert_eq!(
            (flow["proto"].as_u64(), flow["in_packets"].as_u64()),
            (Some(6), Some(7)),
            "{flow}"
        );
        let called = (
            flow["dst4_addr"].as_str().or(flow["dst6_addr"].as_str()),
            flow["dst_port"].as_u64(),
        );
        let of_v4 = (Some("192.0.2.1"), Some(8_001));
        assert!(
            called == of_v4 || called == (Some("2001:db8::1"), Some(8_002)),
            "{flow}"
        );
        let number = |name: &str| flow[name].as_u64().expect("a number");
        let payload = 1_000 + number("src_port") % 1_000;
        assert_eq!(
            (number("in_bytes"), number("out_bytes"), number("out_packets")),
            (payload, 1 << 33, 6),
            "{flow}"
        );
        let translated = ["src_xlt_port", "dst_xlt_port"].map(|name| flow[name].as_str());
        let local = (5_000 + number("src_port") % 1_000).to_string();
        assert!(
            [[Some("0"); 2], [Some(&*local), Some("8080")]].contains(&translated),
            "{flow}"
        );
        let first = flow["first"].as_str().expect("time");
        assert!(first.starts_with("2023-11-14T"), "{flow}");
    }
}

fn wait_until_bound(port: u16) {
    let local = format!(":{port:04X} ");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !fs::read_to_string("/proc/net/udp").is_ok_and(|table| table.contains(&local)) {
        assert!(Instant::now() < deadline, "the collector does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn flows_in(dir: &Path) -> Vec<serde_json::Value> {
    let output = Command::new("nfdump")
        .arg("-R")
        .arg(dir)
        .args(["-o", "json"])
        .output()
        .expect("nfdump");
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// flowEndReason 3 is a signal of the connection's own, and 4 one from outside (IANA's list of elements, 136).
#[test]
fn a_reset_of_either_side_is_a_detected_end() {
    let reasons = [Cause::ActiveRst, Cause::PassiveRst, Cause::Shutdown, Cause::IdleTimeout].map(end_reason);
    assert_eq!(reasons, [3, 3, 4, 1]);
}
