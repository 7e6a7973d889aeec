//! The whole engine, its real graph and proxy included, between a scripted client and a scripted server.

use std::fs;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::time::Duration;

use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use proxyengine::config::Config;
use proxyengine::engine::{Engine, RunningEngine, Watch};
use proxyengine::report::Report;
use tempfile::TempDir;
use test_case::test_case;
use testkit::{Segment, Station};

use crate::wire::{Wire, WireMachine, arp_request, assert_in_order, wire};

/// The engine on a wire of which it uses one VLAN or no tags.
pub(crate) struct Bench {
    pub(crate) engine: RunningEngine<WireMachine>,
    pub(crate) ends: Ends,
    pub(crate) directory: TempDir,
}

/// Client and server on that wire.
#[derive(Clone)]
pub(crate) struct Ends {
    pub(crate) wire: Wire,
    vlan: Option<u16>,
}

impl Deref for Bench {
    type Target = Ends;

    fn deref(&self) -> &Ends {
        &self.ends
    }
}

impl Bench {
    /// One that asks nobody anything: its server answers what a test lets it.
    pub(crate) fn start(name: &str, vlan: Option<u16>) -> Self {
        Self::start_with(name, vlan, "", "probe = false")
    }

    /// The same with these rules before the default.
    pub(crate) fn start_by(name: &str, rules: &str) -> Self {
        Self::start_with(name, None, rules, "probe = false")
    }

    /// One that shows connections over TCP, too.
    pub(crate) fn start_showing_clients(name: &str) -> Self {
        Self::start_with(name, None, "", "probe = false\n[control]\nshow_clients = true")
    }

    /// One with a list that is empty.
    pub(crate) fn start_with_list(name: &str) -> Self {
        Self::start_with(name, None, "", "probe = false\n[[list]]\nname = \"noticed\"")
    }

    /// One that has a listener at an address of its own, 10.0.0.7, too, and is prepared by `prepare`.
    pub(crate) fn start_prepared(name: &str, prepare: &dyn Fn(&Watch)) -> Self {
        let more = "probe = false\n[[listener]]\nname = \"more\"\naddresses = [\"10.0.0.7:80\"]\ndefault = \"pool\"";
        Self::start_as((name, None), "", more, prepare)
    }

    fn start_with(name: &str, vlan: Option<u16>, rules: &str, promise: &str) -> Self {
        Self::start_as((name, vlan), rules, promise, &|_| {})
    }

    fn start_as((name, vlan): (&str, Option<u16>), rules: &str, promise: &str, prepare: &dyn Fn(&Watch)) -> Self {
        let directory = tempfile::tempdir().expect("temporary directory");
        let vlan_key = vlan.map(|vlan| format!("vlan = {vlan}")).unwrap_or_default();
        let text = format!(
            r#"
            [engine]
            name = "{name}"
            cores = [0]
            leg_sample = 1
            [records]
            file = "{}"
            format = "json"
            [[port]]
            name = "left"
            device = "net_ring0"
            addresses = ["10.0.0.1/24"]
            neighbours = [{{ ip = "10.0.0.9", mac = "02:00:00:00:00:09" }}]
            {vlan_key}
            [[listener]]
            name = "web"
            addresses = ["10.0.0.1:80"]
            default = "pool"
            limit = {{ connections = 100000 }}
            rules = [{{ client = ["10.0.0.0/8"], class = "all" }}, {rules}]
            [[pool]]
            name = "pool"
            servers = [{{ name = "one", address = "10.0.0.9:8080" }}]
            [syn_ack]
            {promise}
            "#,
            directory.path().join("records").display()
        );
        fs::write(directory.path().join("engine.toml"), &text).expect("a file");
        let config = Config::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}"));
        let wire = wire(&config);
        let engine = Engine::start_on_by_rules(config, prepare).unwrap_or_else(|error| panic!("{error}"));
        Self {
            engine,
            ends: Ends { wire, vlan },
            directory,
        }
    }
}

impl Ends {
    pub(crate) fn send(&self, frame: &[u8]) {
        match self.vlan {
            None => self.wire.send(frame),
            Some(vlan) => {
                let tag = [&[0x81, 0][..], &vlan.to_be_bytes()].concat();
                self.wire.send(&[&frame[..12], &tag, &frame[12..]].concat());
            }
        }
    }

    /// The next frame that is `wanted`, without the tag that all frames must have.
    pub(crate) fn wait_for(&self, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let untag = |frame: &[u8]| match self.vlan {
            None => frame.to_vec(),
            Some(vlan) => {
                assert_eq!(
                    frame[12..16],
                    [[0x81, 0], vlan.to_be_bytes()].concat()[..],
                    "every frame has the tag"
                );
                [&frame[..12], &frame[16..]].concat()
            }
        };
        untag(&self.wire.wait_for(|frame| wanted(&untag(frame))))
    }

    pub(crate) fn segment_to(&self, station: Station) -> Segment {
        let is_tcp_to_it = |frame: &[u8]| frame[12..14] == [8, 0] && frame[23] == 6 && frame[..6] == station.mac.0;
        Segment::read(&self.wait_for(is_tcp_to_it))
    }

    /// Opens a connection from `client` and lets the server accept it; both ends as they are then.
    pub(crate) fn open(&self, client: Station) -> (Segment, Segment) {
        self.open_to(client, &[Station::new(9, "10.0.0.9:8080")])
    }

    /// The same to whichever of these servers is called.
    pub(crate) fn open_to(&self, client: Station, servers: &[Station]) -> (Segment, Segment) {
        let to_proxy = Segment::between(client, Station::new(1, "10.0.0.1:80"));
        self.send(
            &Segment {
                seq: 1_000,
                flags: TcpFlags::SYN,
                ..to_proxy.clone()
            }
            .frame(),
        );
        let syn_ack = self.segment_to(client);
        assert_eq!((syn_ack.flags, syn_ack.ack), (TcpFlags::SYN | TcpFlags::ACK, 1_001));
        let open = Segment {
            seq: 1_001,
            ack: syn_ack.seq.wrapping_add(1),
            ..to_proxy
        };
        self.send(&open.frame());
        self.send(
            &Segment {
                payload: b"hello".to_vec(),
                ..open.clone()
            }
            .frame(),
        );

        let is_to_server = |frame: &[u8]| {
            let is_tcp = frame[12..14] == [8, 0] && frame[23] == 6;
            is_tcp && servers.iter().any(|server| frame[..6] == server.mac.0)
        };
        let syn = loop {
            let segment = Segment::read(&self.wait_for(is_to_server));
            if segment.flags == TcpFlags::SYN {
                break segment;
            }
            // Late segments of connections before.
            assert!(!segment.flags.contains(TcpFlags::SYN), "{segment:?}");
        };
        let server = *servers
            .iter()
            .find(|server| server.address == syn.to.address)
            .expect("a server");
        let accept = Segment {
            seq: 7_000,
            ack: syn.seq.wrapping_add(1),
            flags: TcpFlags::SYN | TcpFlags::ACK,
            ..Segment::between(server, syn.from)
        };
        self.send(&accept.frame());
        let request = loop {
            let segment = self.segment_to(server);
            if !segment.payload.is_empty() {
                break segment;
            }
        };
        assert_eq!((request.payload.as_slice(), request.ack), (&b"hello"[..], 7_001));
        let server_end = Segment {
            seq: 7_001,
            ack: request.seq.wrapping_add(5),
            ..Segment::between(server, request.from)
        };
        let client_end = Segment { seq: 1_006, ..open };
        (client_end, server_end)
    }
}

pub(crate) fn count(report: &Report, group: &str, name: &str) -> u64 {
    let count = report.counters.group(group).and_then(|group| group.count(name));
    count.unwrap_or_else(|| panic!("no counter {group} {name}"))
}

/// A port that fills in checksums gets the engine's own frames without; what passes has its own, and a VLAN's frames get a tag
/// that the port does not know of.
#[test_case("proxy-offload", None => true; "a port that can")]
#[test_case("proxy-offload-vlan", Some(5) => false; "behind a tag")]
#[test_case("proxy-no-help", None => false; "a port that cannot")]
fn own_checksums_are_left_to_ports_that_can(name: &str, vlan: Option<u16>) -> bool {
    let bench = Bench::start(name, vlan);
    let (client, server) = bench.open(Station::new(5, "10.0.0.5:50000"));
    let own = bench.wire.offloaded.load(Ordering::SeqCst);
    let data = Segment {
        payload: b"answer".to_vec(),
        ..server
    };
    bench.send(&data.frame());
    while bench.segment_to(client.from).payload.is_empty() {}
    assert_eq!(bench.wire.offloaded.load(Ordering::SeqCst), own, "what passes");
    assert_in_order(&bench.engine.shutdown());
    own > 0
}

#[test]
fn what_a_server_can_do_is_learned_at_the_start_and_reported() {
    let mut bench = Bench::start_with("proxy-probe", None, "", "");
    let server = Station::new(9, "10.0.0.9:8080");
    let silent = bench.engine.report();
    assert_eq!((silent.servers.len(), &silent.servers[0].abilities), (1, &None));
    assert!(silent.to_string().contains("server one: not heard of\n"), "{silent}");

    let syn = bench.segment_to(server);
    assert_eq!((syn.flags, syn.to.address), (TcpFlags::SYN, server.address));
    let answer = Segment {
        seq: 7_000,
        ack: syn.seq.wrapping_add(1),
        flags: TcpFlags::SYN | TcpFlags::ACK,
        window: 1_000,
        options: TcpOptions {
            mss: Some(1_400),
            sack_permitted: true,
            ..TcpOptions::NONE
        },
        ..Segment::between(server, syn.from)
    };
    bench.send(&answer.frame());
    let reset = loop {
        let segment = bench.segment_to(server);
        if segment.flags != TcpFlags::SYN {
            break segment;
        }
    };
    assert_eq!((reset.flags, reset.seq), (TcpFlags::RST, syn.seq.wrapping_add(1)));
    let report = bench.engine.report();
    assert!(count(&report, "probes", "syn_sent") >= 1);
    assert_eq!(count(&report, "probes", "answered"), 1);
    let line = "server one: MSS 1400, no window scale, SACK, no timestamps, window 1000\n";
    assert!(report.to_string().contains(line), "{report}");
    assert!(report.to_json().contains("\"mss\": 1400"));
    let outcome = bench.engine.shutdown();
    assert_eq!(
        (outcome.failures.as_slice(), outcome.report.buffers.leaked),
        (&[][..], Some(0))
    );
}

#[test_case("proxy-plain", None; "untagged")]
#[test_case("proxy-vlan", Some(77); "in a VLAN")]
fn a_connection_passes_and_is_recorded(name: &str, vlan: Option<u16>) {
    let mut bench = Bench::start(name, vlan);
    bench.send(&arp_request());
    bench.wait_for(|frame| frame[12..14] == [8, 6] && frame[21] == 2);

    let client = Station::new(5, "10.0.0.5:40000");
    let (client_end, server_end) = bench.open(client);
    bench.send(
        &Segment {
            payload: b"world!".to_vec(),
            ..server_end
        }
        .frame(),
    );
    let answer = loop {
        let segment = bench.segment_to(client);
        if !segment.payload.is_empty() {
            break segment;
        }
    };
    assert_eq!(
        (answer.payload.as_slice(), answer.seq),
        (&b"world!"[..], client_end.ack)
    );
    assert_eq!(bench.engine.open_connections(), 1);
    let report = bench.engine.report();
    assert_eq!(count(&report, "tcp_client", "RecvSyn"), 1);
    assert_eq!(count(&report, "tcp_server", "SentSyn"), 1);
    assert_eq!(count(&report, "neighbour", "arp_answered"), 1);

    // It does not end by itself: after the drain both ends get RST.
    assert_eq!(bench.engine.drain(Duration::from_millis(50), || false), 1);
    let Bench {
        engine,
        ends: Ends { wire, vlan },
        directory,
    } = bench;
    let outcome = engine.shutdown();
    assert_in_order(&outcome);
    assert_eq!((outcome.report.records, outcome.report.records_lost), (1, 0));
    assert_eq!(outcome.report.connections_open, 0);
    let skip = if vlan.is_some() { 4 } else { 0 };
    let is_reset = |frame: &[u8]| frame.len() >= 54 + skip && frame[47 + skip] & 4 != 0;
    for station in [5, 9] {
        wire.wait_for(|frame| frame[5] == station && is_reset(frame));
    }
    let records = fs::read_to_string(directory.path().join("records")).expect("records");
    let record: serde_json::Value = serde_json::from_str(&records).unwrap_or_else(|error| panic!("{error}: {records}"));
    assert_eq!((&record["listener"], &record["server"]), (&"web".into(), &"one".into()));
    assert_eq!(
        (&record["client"], &record["client_port"]),
        (&"10.0.0.5".into(), &40_000.into())
    );
    assert_eq!(
        (&record["bytes_to_server"], &record["bytes_to_client"]),
        (&5.into(), &6.into())
    );
    assert_eq!(record["local_address"], "10.0.0.1");
    assert_eq!(record["client_cause"], "Shutdown");
}

#[test]
fn frames_of_another_vlan_are_dropped_and_counted() {
    let mut bench = Bench::start("other-vlan", Some(77));
    bench.wire.send(&arp_request());
    bench.send(&arp_request());
    bench.wait_for(|frame| frame[12..14] == [8, 6] && frame[21] == 2);
    assert_eq!(count(&bench.engine.report(), "graph_drops", "vlan_mismatch"), 1);
    assert_in_order(&bench.engine.shutdown());
}

#[test]
fn no_connection_is_taken_while_draining() {
    let mut bench = Bench::start("draining", None);
    bench.open(Station::new(5, "10.0.0.5:40000"));
    assert_eq!(bench.engine.drain(Duration::ZERO, || false), 1);
    let late = Segment::between(Station::new(6, "10.0.0.6:40001"), Station::new(1, "10.0.0.1:80"));
    bench.send(
        &Segment {
            seq: 1,
            flags: TcpFlags::SYN,
            ..late
        }
        .frame(),
    );
    while count(&bench.engine.report(), "traffic", "received") < 5 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let report = bench.engine.report();
    assert_eq!(
        count(&report, "tcp_client", "SentSynAck"),
        1,
        "for the first connection only"
    );
    assert_in_order(&bench.engine.shutdown());
}

/// The names of all that a JSON text has, each behind those that it is in; of a list, those of its first.
fn keys(value: &serde_json::Value, path: &str, into: &mut String) {
    match value {
        serde_json::Value::Object(members) => members.iter().for_each(|(name, member)| {
            let path = format!("{path}.{name}");
            into.push_str(path.trim_start_matches('.'));
            into.push('\n');
            keys(member, &path, into);
        }),
        serde_json::Value::Array(members) => members.iter().take(1).for_each(|member| keys(member, path, into)),
        _ => {}
    }
}

/// The names are an interface: what reads them must not look for one that is gone. After a deliberate change:
/// `UPDATE_GOLDEN=1 cargo test --test engine names_of_the_report`, and a line in CHANGELOG.md.
#[test]
fn names_of_the_report_stay() {
    let mut bench = Bench::start("proxy-names", None);
    let report: serde_json::Value = serde_json::from_str(&bench.engine.report().to_json()).expect("JSON");
    let mut found = String::new();
    keys(&report, "", &mut found);
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/report_keys.txt");
    if std::env::var("UPDATE_GOLDEN").is_ok_and(|set| set == "1") {
        std::fs::write(&path, &found).expect("the golden file is written");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        golden == found,
        "{} differs; if that is meant, UPDATE_GOLDEN=1",
        path.display()
    );
    assert_in_order(&bench.engine.shutdown());
}
