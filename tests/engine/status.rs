//! What a running engine shows of itself.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use control::metrics::{Format, Kind};
use e2d2::wire::tcp::TcpFlags;
use proxyengine::config::{Config, ListChange};
use proxyengine::engine::Engine;
use proxyengine::selectors::RuleSelector;
use proxyengine::status::metrics;
use serde_json::Value;
use testkit::{Segment, Station};

use crate::proxy::Bench;
use crate::wire::{WireMachine, assert_in_order, wire};

/// A scrape is read every few seconds, and kept: 300 bytes for each server are what there is room for.
const BYTES_OF_1000_SERVERS: usize = 300_000;

/// The values of a metric's family, by their labels.
fn values(text: &str, name: &str) -> Vec<(String, f64)> {
    let of_line = |line: &str| {
        let (labels, value) = line.strip_prefix(name)?.rsplit_once(' ')?;
        Some((labels.to_owned(), value.parse().ok()?))
    };
    text.lines().filter_map(of_line).collect()
}

#[test]
fn a_scrape_shows_what_happens_and_two_after_the_end_are_equal() {
    let mut bench = Bench::start("proxy-scraped", None);
    let watch = bench.engine.watch();
    let scrape = || metrics::text(&watch, Format::Text);
    let wait_for_open = |open: f64| {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while values(&scrape(), "proxyengine_connections_open") != [(String::new(), open)] {
            assert!(std::time::Instant::now() < deadline, "never {open} open: {}", scrape());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let (client, _) = bench.open(Station::new(5, "10.0.0.5:50000"));
    wait_for_open(1.0);
    let reset = Segment {
        flags: TcpFlags::RST,
        ..client
    };
    bench.send(&reset.frame());
    wait_for_open(0.0);
    bench.engine.look_at_links();
    let segments = |text: &str| values(text, "proxyengine_segments_total");
    let (first, second) = (scrape(), scrape());
    assert_eq!(segments(&first), segments(&second));
    // What was counted of one connection is the same wherever it is told, and none is missing.
    for (name, labels) in [
        ("proxyengine_listener_connections_total", "{listener=\"web\"}"),
        (
            "proxyengine_rule_connections_total",
            "{listener=\"web\",rule=\"default\"}",
        ),
        ("proxyengine_pool_connections_total", "{pool=\"pool\"}"),
        ("proxyengine_choice_seconds_count", "{pool=\"pool\"}"),
        ("proxyengine_connect_seconds_count", "{pool=\"pool\"}"),
        ("proxyengine_server_connect_seconds_count", "{server=\"one\"}"),
        ("proxyengine_connection_seconds_count", "{pool=\"pool\"}"),
        ("proxyengine_connection_bytes_sum", "{pool=\"pool\"}"),
    ] {
        let wanted = if name.ends_with("bytes_sum") { 5.0 } else { 1.0 };
        assert_eq!(values(&second, name), [(labels.to_owned(), wanted)], "{name}");
    }
    let open = values(&second, "proxyengine_listener_connections_open");
    assert_eq!(open, [("{listener=\"web\"}".to_owned(), 0.0)]);
    let report = bench.engine.report();
    for (label, group) in [("client", "tcp_client"), ("server", "tcp_server")] {
        for (event, count) in report.counters.group(group).expect("counted").iter() {
            let labels = format!("{{side=\"{label}\",event=\"{event}\"}}");
            assert!(
                segments(&first).contains(&(labels.clone(), count as f64)),
                "{labels} {count} in {first}"
            );
        }
    }
    assert_eq!(values(&first, "proxyengine_ready").len(), 1);
    assert_eq!(
        values(&first, "proxyengine_port_up").len(),
        0,
        "this device does not tell"
    );
    assert_in_order(&bench.engine.shutdown());
}

/// Of a connection only the SYN is one.
#[test]
fn a_served_connection_is_one_hit_of_its_list() {
    let mut bench = Bench::start_with_list("proxy-hits");
    let add = ListChange::Add {
        prefixes: vec!["10.0.0.5/32".parse().expect("a prefix")],
        class: String::new(),
        until: None,
    };
    bench.engine.change_list("noticed", add).expect("a change");
    bench.open(Station::new(5, "10.0.0.5:50000"));
    assert_eq!(bench.engine.config().lists()[0].hits.sum(), 1);
    let text = metrics::text(&bench.engine.watch(), Format::Text);
    for line in [
        "proxyengine_list_hits_total{list=\"noticed\"} 1",
        "proxyengine_list_prefixes{list=\"noticed\"} 1",
        "proxyengine_limit_uncounted_total 0",
    ] {
        assert!(text.lines().any(|of| of == line), "{line}\n{text}");
    }
    assert_in_order(&bench.engine.shutdown());
}

/// What the documents and the dashboard are made of.
fn labels_are_those_of_the_table(text: &str) {
    for (family, labels) in metrics::families() {
        let (end, bound) = match family.kind {
            Kind::Histogram => ("_bucket", Some("le")),
            kind => (kind.suffix(), None),
        };
        let wanted: Vec<&str> = labels.iter().copied().chain(bound).collect();
        let name = format!("{}{end}", family.name);
        let lines = text.lines().filter_map(|line| line.strip_prefix(&name));
        let mut told = lines.filter(|rest| rest.starts_with(['{', ' ']));
        let of_line = |rest: &str| {
            let names = rest
                .split("=\"")
                .map(|part| part.rsplit(['{', ',']).next().unwrap_or_default().to_owned());
            let names: Vec<String> = names.collect();
            names[..names.len() - 1].to_vec()
        };
        // This device says nothing of its link and of frames that wait in it; no server is checked, and none has a
        // name that DNS is asked for.
        let Some(first) = told.next() else {
            let untold = [
                "proxyengine_port_up",
                "proxyengine_waiting_frames",
                "proxyengine_server_check_down",
                "proxyengine_name_addresses",
                "proxyengine_name_answer_age_seconds",
                "proxyengine_name_failures",
            ];
            assert!(untold.contains(&family.name), "{name}");
            continue;
        };
        assert!(
            of_line(first) == wanted && told.all(|rest| of_line(rest) == wanted),
            "{name} {wanted:?}: {first}"
        );
    }
}

/// Prometheus' own tool reads both what it has to and how it likes names to be.
#[test]
fn promtool_finds_nothing_wrong_with_the_metrics() {
    let mut bench = Bench::start_with_list("proxy-promtool");
    // A drop, so that there is one with a count.
    bench.send(&[0; 20]);
    bench.engine.look_at_links();
    let text = metrics::text(&bench.engine.watch(), Format::Text);
    assert_in_order(&bench.engine.shutdown());
    labels_are_those_of_the_table(&text);
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = match promtool {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return rig::skip("engine::promtool", "no promtool (Debian package prometheus)");
        }
        other => other.expect("promtool"),
    };
    let mut input = promtool.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("read by promtool");
    drop(input);
    let output = promtool.wait_with_output().expect("promtool");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn a_server_that_refuses_three_times_is_shown_as_out() {
    let mut bench = Bench::start("proxy-refused", None);
    let server = Station::new(9, "10.0.0.9:8080");
    for client in ["10.0.0.5:50000", "10.0.0.5:50001", "10.0.0.5:50002"] {
        assert_eq!(bench.engine.report().servers[0].cores_out, 0);
        let client = Station::new(5, client);
        let to_proxy = Segment::between(client, Station::new(1, "10.0.0.1:80"));
        let syn = Segment {
            seq: 1_000,
            flags: TcpFlags::SYN,
            ..to_proxy.clone()
        };
        bench.send(&syn.frame());
        let request = Segment {
            seq: 1_001,
            ack: bench.segment_to(client).seq.wrapping_add(1),
            payload: b"hello".to_vec(),
            ..to_proxy
        };
        bench.send(&request.frame());
        let call = bench.segment_to(server);
        assert_eq!(call.flags, TcpFlags::SYN);
        let refusal = Segment {
            seq: 0,
            ack: call.seq.wrapping_add(1),
            flags: TcpFlags::RST | TcpFlags::ACK,
            ..Segment::between(server, call.from)
        };
        bench.send(&refusal.frame());
        while !bench.segment_to(client).flags.contains(TcpFlags::RST) {}
    }
    let report = bench.engine.report();
    let told = &report.servers[0];
    assert_eq!((told.calls, told.failures, told.connections_open), (3, 3, 0));
    assert_eq!(
        (told.ejected_by_failure, told.ejected_by_silence, told.cores_out),
        (1, 0, 1)
    );
    let metrics = metrics::text(&bench.engine.watch(), Format::Text);
    let out = values(&metrics, "proxyengine_server_out_cores");
    assert_eq!(out, [("{server=\"one\"}".to_owned(), 1.0)]);
    assert_in_order(&bench.engine.shutdown());
}

#[test]
fn a_scrape_of_a_thousand_servers_and_rules_is_small() {
    let rules: Vec<String> = (0..1000)
        .map(|n| format!("{{ http_host = \"host-{n:03}.example\", pool = \"pool\" }}"))
        .collect();
    let servers: Vec<String> = (0..1000)
        .map(|n| {
            format!(
                "{{ name = \"server-{n:03}\", address = \"10.0.{}.{}:8080\" }}",
                1 + n / 250,
                1 + n % 250
            )
        })
        .collect();
    let text = format!(
        r#"
        [engine]
        name = "scrape-1000"
        cores = [0]
        [records]
        enabled = false
        [[port]]
        name = "left"
        device = "net_ring0"
        addresses = ["10.0.0.1/16"]
        [[listener]]
        name = "web"
        addresses = ["10.0.0.1:80"]
        default = "pool"
        rules = [{}]
        [[pool]]
        name = "pool"
        servers = [{}]
        [syn_ack]
        probe = false
        "#,
        rules.join(", "),
        servers.join(", ")
    );
    let config = Config::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}"));
    let _wire = wire(&config);
    let rules = RuleSelector::new(&config);
    let engine = Engine::start_on::<WireMachine, _>(config, rules).unwrap_or_else(|error| panic!("{error}"));
    let text = metrics::text(&engine.watch(), Format::Text);
    assert_eq!(values(&text, "proxyengine_server_calls_total").len(), 1000);
    // The first hundred, the others together, and the default.
    let of_rules = values(&text, "proxyengine_rule_connections_total");
    assert_eq!(of_rules.len(), 102, "{of_rules:?}");
    assert_eq!(of_rules[99].0, "{listener=\"web\",rule=\"99\"}");
    assert!(text.len() <= BYTES_OF_1000_SERVERS, "{} bytes", text.len());
    assert_in_order(&engine.shutdown());
}

/// An engine that answers on a socket.
pub(crate) struct Served {
    pub(crate) bench: Bench,
    pub(crate) socket: control::http::Endpoint,
    running: control::http::Running,
    _folder: tempfile::TempDir,
}

/// Serves what an engine shows as `[control]` says.
fn serve(bench: &Bench, config: &proxyengine::config::ControlConfig) -> control::http::Running {
    let server = proxyengine::status::listen(config)
        .expect("a socket")
        .expect("a server");
    let levels = proxyengine::log_levels::LogLevels::default();
    proxyengine::status::serve(server, bench.engine.watch(), levels, None).expect("a thread")
}

impl Served {
    pub(crate) fn start(name: &str) -> Self {
        Self::start_by(name, "")
    }

    /// With these rules of its listener.
    pub(crate) fn start_by(name: &str, rules: &str) -> Self {
        let bench = Bench::start_by(name, rules);
        let folder = tempfile::tempdir().expect("a folder");
        let socket = control::http::Endpoint::Unix(folder.path().join("control"));
        let config = proxyengine::config::ControlConfig {
            socket: Some(socket.clone()),
            ..Default::default()
        };
        let running = serve(&bench, &config);
        Self {
            bench,
            socket,
            running,
            _folder: folder,
        }
    }

    /// Asks over the socket, as `ctl` does.
    pub(crate) fn ask(&self, path: &str) -> (u16, Value) {
        self.answer("GET", path)
    }

    pub(crate) fn change(&self, path: &str) -> (u16, Value) {
        self.answer("POST", path)
    }

    fn answer(&self, method: &str, path: &str) -> (u16, Value) {
        let asked = control::http::client::ask(&self.socket, method, &format!("/api/v1/{path}"));
        let (status, body) = asked.expect("an answer");
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    pub(crate) fn end(self) {
        drop(self.running);
        assert_in_order(&self.bench.engine.shutdown());
    }
}

#[test]
fn a_server_is_shown_with_why_and_since_its_last_change() {
    let served = Served::start("proxy-since");
    std::thread::sleep(Duration::from_millis(2_100));
    let server = || served.ask("servers").1[0].clone();
    let for_s = |server: &Value| server["for_s"].as_u64().expect("a number");
    let before = server();
    assert!(
        before["state"] == "up" && before["why"].is_null() && for_s(&before) >= 2,
        "{before}"
    );
    for (change, state, why) in [
        ("drain/server/one", "drained", Value::from("operator")),
        ("maint/server/one", "maint", Value::from("operator")),
        ("ready/server/one", "up", Value::Null),
    ] {
        assert_eq!(served.change(change).0, 200);
        let after = server();
        assert!(
            after["state"] == state && after["why"] == why && for_s(&after) < 2,
            "{after}"
        );
        assert!(after["last_failure"].is_null(), "{after}");
    }
    served.end();
}

#[test]
fn the_configuration_is_shown_over_the_socket() {
    let served = Served::start("proxy-shows-config");
    let (status, config) = served.ask("config");
    assert_eq!(status, 200);
    assert_eq!(config["listener"][0]["name"], "web");
    assert_eq!(config["pool"][0]["servers"][0]["name"], "one");
    served.end();
}

#[test]
fn clients_are_shown_over_tcp_only_if_the_file_says_so_and_the_configuration_never() {
    let asked = |bench: Bench| {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let http = control::http::Endpoint::Tcp(free.local_addr().expect("bound"));
        drop(free);
        let config = proxyengine::config::ControlConfig {
            http: Some(http.clone()),
            ..Default::default()
        };
        let running = serve(&bench, &config);
        bench.open(Station::new(5, "10.0.0.5:50000"));
        let ask = |path: &str| control::http::client::ask(&http, "GET", path).expect("an answer");
        let answers = [ask("/api/v1/connections"), ask("/api/v1/list?list=none")];
        let config = ask("/api/v1/config");
        assert!(config.0 == 403 && !config.1.contains("one"), "{config:?}");
        drop(running);
        assert_in_order(&bench.engine.shutdown());
        answers
    };
    for (status, said) in asked(Bench::start_by("proxy-hides-clients", "")) {
        assert!(status == 403 && said.contains("show_clients"), "{said}");
    }
    let [connections, list] = asked(Bench::start_showing_clients("proxy-shows-clients"));
    assert!(
        connections.0 == 200 && connections.1.contains("10.0.0.5:50000"),
        "{connections:?}"
    );
    assert_eq!(list, (404, "there is no list \"none\"\n".to_owned()));
}

#[test]
fn connections_are_listed_and_looked_into_over_the_socket() {
    let served = Served::start("proxy-connections");
    let ask = |path: &str| served.ask(path);
    served.bench.open(Station::new(5, "10.0.0.5:50000"));
    served.bench.open(Station::new(6, "10.0.0.6:50001"));
    let (status, all) = ask("connections");
    let rows = all["connections"].as_array().expect("rows");
    assert_eq!((status, rows.len(), &all["next"]), (200, 2, &Value::Null), "{all}");
    assert_eq!(rows[0]["client"], "10.0.0.5:50000");
    assert_eq!(
        (&rows[0]["state"], &rows[0]["server"]),
        (&"spliced".into(), &"one".into()),
        "{all}"
    );
    assert_eq!(rows[0]["bytes_to_server"], 5);
    let (_, some) = ask("connections?client=10.0.0.6%2F32&listener=web&state=spliced&limit=5");
    assert_eq!(some["connections"].as_array().map(Vec::len), Some(1), "{some}");
    let id = rows[0]["id"].as_str().expect("a name");
    let (status, one) = ask(&format!("connection?id={id}"));
    // The server has not acknowledged the request.
    assert_eq!((status, &one["client_leg"]["in_flight"]), (200, &5.into()), "{one}");
    assert_eq!(one["server_leg"]["sent_up_to"], 7_001);
    // All are watched. What was held is none of what has passed.
    assert_eq!(
        (&one["legs_of_one_in"], &one["client_leg"]["segments"]),
        (&1.into(), &0.into())
    );
    assert_eq!(
        (&one["server_leg"]["rtts"], &one["server_leg"]["rtt_ms"]),
        (&0.into(), &Value::Null)
    );
    let (_, watched) = ask("connections?watched");
    assert_eq!(watched["connections"][1]["client_leg_lost"], 0, "{watched}");
    let (_, legs) = ask("legs");
    assert_eq!(
        (&legs[0]["name"], &legs[0]["connections"]),
        (&"one".into(), &2.into()),
        "{legs}"
    );
    assert_eq!(
        (&legs[0]["one_in"], &legs[0]["client_leg_lost_percent"]),
        (&1.into(), &Value::Null)
    );
    for wrong in [
        "x=1",
        "server=two",
        "client=10",
        "state=open",
        "id=1",
        "from=1",
        "limit=x",
        "server=%f",
    ] {
        assert_eq!(ask(&format!("connections?{wrong}")).0, 400, "{wrong}");
    }
    assert_eq!((ask("connection").0, ask("connections?from=7-0").0), (400, 404));
    served.end();
}

#[test]
fn connections_are_ended_over_the_socket() {
    let served = Served::start("proxy-killed");
    let change = |path: &str| served.change(path);
    let station = Station::new(5, "10.0.0.5:50000");
    served.bench.open(station);
    served.bench.open(Station::new(6, "10.0.0.6:50001"));
    let (_, all) = served.ask("connections?client=10.0.0.5");
    let id = all["connections"][0]["id"].as_str().expect("a name");
    assert_eq!((change("connections/end").0, change("connections/all").0), (400, 405));
    assert_eq!(
        ["x=y=z", "", "%2", "info", "info%2C%20x%3Ddebug"].map(|levels| change(&format!("log?{levels}")).0),
        [400, 400, 400, 200, 200]
    );
    let (status, ended) = change(&format!("connections/end?id={id}"));
    assert_eq!((status, &ended["ended"]), (200, &1.into()), "{ended}");
    // Segments of its handshake are still on the wire.
    while !served.bench.segment_to(station).flags.contains(TcpFlags::RST) {}
    assert_eq!(served.ask(&format!("connection?id={id}")).0, 404);
    assert_eq!(change(&format!("connections/end?id={id}")).1["ended"], 0);
    assert_eq!(change("connections/end?server=one").1["ended"], 1);
    for switch in ["off", "on", "reopen"] {
        assert_eq!(change(&format!("records/{switch}")).0, 200);
    }
    served.end();
}
