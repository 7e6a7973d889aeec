//! nginx, PostgreSQL, slapd, redis and `openssl s_server` under checks of their protocols, and socat under SYNs: silent, killed and lying, with a
//! second one of each in its pool.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rig::engine::EngineOptions;
use rig::loss::{Direction, Loss};
use rig::process::{self, Process};
use rig::servers::{self, Certificates, HTTP, LDAP, NUMBERS, POSTGRES, REDIS, TLS};
use rig::{Place, Rig, RigOptions};
use rustix::process::Signal;
use serde_json::Value;

use crate::setup::{LIMIT, Setup, binary};

/// The file whose absence nginx answers with 404.
const HEALTH: &str = "health";

/// Each service: its name, its port and its check.
const CHECKED: [(&str, u16, &str); 6] = [
    (
        "web",
        HTTP,
        "kind = \"http\", path = \"/files/health\", body = \"fine\"",
    ),
    ("database", POSTGRES, "kind = \"postgres\""),
    ("directory", LDAP, "kind = \"ldap\""),
    ("cache", REDIS, "kind = \"redis\""),
    (
        "shop",
        TLS,
        "kind = \"https\", path = \"/whoami\", server_name = \"shop.example.org\"",
    ),
    ("numbers", NUMBERS, "kind = \"tcp\""),
];

fn tables(socket: &str) -> String {
    let of_service = |(name, port, check): (&str, u16, &str)| {
        let pace = "interval = \"200ms\", fast_interval = \"50ms\", timeout = \"500ms\"";
        format!(
            r#"
[[listener]]
name = "{name}"
addresses = ["10.77.0.1:{port}"]
default = "{name}"

[[pool]]
name = "{name}"
check = {{ {check}, {pace} }}
servers = [
  {{ name = "{name}-1", address = "10.77.0.11:{port}" }},
  {{ name = "{name}-2", address = "10.77.0.12:{port}" }},
]
"#
        )
    };
    let services: String = CHECKED.into_iter().map(of_service).collect();
    format!("{services}\n[control]\nsocket = \"{socket}\"\n")
}

/// The engine with two servers of each kind.
struct Checked {
    setup: Setup,
    /// The first server of each service, in their order.
    first: Vec<Process>,
    socket: PathBuf,
}

impl Checked {
    fn start() -> Option<Self> {
        let postgres = servers::postgres_program();
        let tools = [
            "curl",
            "nginx",
            "nft",
            "openssl",
            "psql",
            "setpriv",
            "socat",
            &postgres.to_string_lossy(),
            "ldapsearch",
            "slapd",
            "slapadd",
            "redis-server",
            "redis-cli",
        ];
        let rig = Rig::for_test(RigOptions::default(), &tools)?;
        let socket = rig.file("control.sock");
        let options = EngineOptions {
            services: Vec::new(),
            tables: tables(&socket.to_string_lossy()),
            ..EngineOptions::default()
        };
        let mut first = Vec::new();
        let setup = Setup::on(rig, &options, |rig| {
            let certificates = Certificates::make(rig).expect("certificates");
            let mut databases = servers::start_postgres(rig, &certificates).expect("PostgreSQL starts");
            let mut second = vec![databases.remove(1)];
            for (index, all) in [&mut first, &mut second].into_iter().enumerate() {
                all.push(servers::start_nginx(rig, index).expect("nginx starts"));
                all.push(servers::start_slapd(rig, index).expect("slapd starts"));
                all.push(servers::start_redis(rig, index).expect("redis starts"));
                all.extend(servers::start_tls(rig, index, &certificates).expect("openssl starts"));
                all.extend(servers::start_numbers(rig, index).expect("socat starts"));
                fs::write(servers::files_of(rig, index).join(HEALTH), "fine\n").expect("written");
            }
            first.insert(1, databases.remove(0));
            second
        });
        let checked = Self { setup, first, socket };
        checked.wait_for("passed", "up");
        Some(checked)
    }

    fn rig(&self) -> &Rig {
        &self.setup.rig
    }

    /// State and check of a server, as `ctl` shows them.
    fn shown(&self, name: &str) -> (String, String) {
        let arguments = [
            "ctl",
            "--socket",
            &self.socket.to_string_lossy(),
            "show",
            "servers",
            "--json",
        ];
        let output = self
            .rig()
            .run(Place::Engine, &binary().to_string_lossy(), &arguments, LIMIT);
        let shown: Value = serde_json::from_str(&output.expect("ctl is answered").text()).expect("JSON");
        let server = shown
            .as_array()
            .and_then(|all| all.iter().find(|server| server["name"] == name));
        let of = |key: &str| {
            server
                .and_then(|server| server[key].as_str())
                .unwrap_or_default()
                .to_owned()
        };
        (of("state"), of("check"))
    }

    fn wait_for_server(&self, name: &str, check: &str, state: &str) {
        let expected = (state.to_owned(), check.to_owned());
        process::wait_for(&format!("{name} {state}: {check}"), LIMIT, || {
            self.shown(name) == expected
        })
        .unwrap_or_else(|error| panic!("{error}; it is {:?}", self.shown(name)));
    }

    /// Until the first server of each service is shown so.
    fn wait_for(&self, check: &str, state: &str) {
        for (name, _, _) in CHECKED {
            self.wait_for_server(&format!("{name}-1"), check, state);
        }
    }

    /// Three requests to each service, in turn: more than one of them is the first server's turn. Each is served.
    fn assert_clients_are_served(&self) {
        for _ in 0..3 {
            for service in 0..CHECKED.len() {
                self.ask(service);
            }
        }
    }

    /// One request to a service of the engine's, which is served; by whom, if the server says it.
    fn ask(&self, service: usize) -> Option<usize> {
        let name = CHECKED[service].0;
        let (program, arguments) = request_to(service, self.rig().engine_v4());
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let answer = self.rig().run(Place::Clients, program, &arguments, LIMIT);
        let text = answer
            .unwrap_or_else(|error| panic!("a client of {name} sees: {error}"))
            .text();
        let server = servers::named_in(&text);
        assert!(server.is_some() || text.trim() == "PONG", "{name}: {text}");
        server
    }
}

/// A client and its arguments for a request to a service at this address.
fn request_to(service: usize, at: Ipv4Addr) -> (&'static str, Vec<String>) {
    let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    match service {
        0 => ("curl", words(format!("-sS --fail --max-time 30 http://{at}:{HTTP}/"))),
        1 => {
            let mut arguments = words("--no-psqlrc --tuples-only --no-align --command".to_owned());
            arguments.push("SHOW cluster_name".to_owned());
            arguments.push(format!("{} connect_timeout=30", database_at(at)));
            ("psql", arguments)
        }
        2 => (
            "ldapsearch",
            words(format!(
                "-x -LLL -o nettimeout=30 -H ldap://{at}:{LDAP} -b dc=example,dc=org -s base o"
            )),
        ),
        3 => ("redis-cli", words(format!("-h {at} -p {REDIS} PING"))),
        4 => (
            "curl",
            words(format!("-sS --fail --insecure --max-time 30 https://{at}/whoami")),
        ),
        _ => {
            let asked = format!("echo ready | socat -t 30 - TCP:{at}:{NUMBERS},connect-timeout=30");
            ("sh", vec!["-c".to_owned(), asked])
        }
    }
}

fn database_at(host: Ipv4Addr) -> String {
    format!("host={host} sslmode=disable dbname=shop user=alice")
}

#[test]
fn no_client_sees_an_error_of_servers_that_fall_silent_or_are_killed() {
    let Some(mut checked) = Checked::start() else { return };
    checked.assert_clients_are_served();

    let silence = format!("ip daddr {}", checked.rig().server_v4(0));
    let loss = Loss::of(&checked.setup.rig, &[Direction::FromEngine], &silence).expect("nftables");
    checked.assert_clients_are_served();
    checked.wait_for("unanswered", "down");
    checked.assert_clients_are_served();
    drop(loss);
    checked.wait_for("passed", "up");
    checked.assert_clients_are_served();

    for server in &mut checked.first {
        server.signal(Signal::KILL);
        server.wait(LIMIT).expect("it is gone");
    }
    checked.assert_clients_are_served();
    checked.wait_for("refused", "down");
    checked.assert_clients_are_served();

    let Checked { setup, .. } = checked;
    let (report, _rig) = setup.finish();
    assert!(report.number("/counters/checks/passed") > 0);
}

#[test]
fn servers_that_listen_and_do_not_serve_are_down() {
    let Some(checked) = Checked::start() else { return };
    let rig = checked.rig();
    // nginx says 404 from now on.
    fs::remove_file(servers::files_of(rig, 0).join(HEALTH)).expect("removed");
    checked.wait_for_server("web-1", "wrong", "down");
    // PostgreSQL shuts down and waits for this session: to all others it says so.
    let database = database_at(rig.server_v4(0));
    let session = ["--no-psqlrc", "-c", "SELECT pg_sleep(600)", &database];
    let mut session = rig.start(Place::Clients, "session", "psql", &session).expect("psql");
    thread::sleep(Duration::from_secs(1));
    assert!(session.is_running());
    checked.first[1].signal(Signal::TERM);
    checked.wait_for_server("database-1", "wrong", "down");
    // redis answers nobody for some seconds.
    let at = rig.server_v4(0).to_string();
    let pause = ["-h", &at, "-p", &REDIS.to_string(), "CLIENT", "PAUSE", "4000", "ALL"];
    let paused = rig.run(Place::Clients, "redis-cli", &pause, LIMIT).expect("redis-cli");
    assert_eq!(paused.text().trim(), "OK");
    checked.wait_for_server("cache-1", "unanswered", "down");
    assert_ne!(checked.ask(3), Some(0));
    checked.wait_for_server("cache-1", "passed", "up");
    // The kernel still accepts for these.
    for (server, name) in [(2, "directory-1"), (3, "cache-1"), (4, "shop-1")] {
        checked.first[server].signal(Signal::STOP);
        checked.wait_for_server(name, "unanswered", "down");
    }
    // A SYN says nothing about what the last service answers.
    for (service, (name, ..)) in CHECKED.iter().enumerate().take(5) {
        for _ in 0..4 {
            assert_ne!(checked.ask(service), Some(0), "{name}");
        }
    }
    for server in [2, 3, 4] {
        checked.first[server].signal(Signal::CONT);
    }
    fs::write(servers::files_of(rig, 0).join(HEALTH), "fine\n").expect("written");
    for name in ["web-1", "directory-1", "cache-1", "shop-1"] {
        checked.wait_for_server(name, "passed", "up");
    }
    drop(session);
    let Checked { setup, .. } = checked;
    let (report, _rig) = setup.finish();
    assert!(report.number("/counters/checks/wrong") > 0);
}

#[test]
fn servers_that_answer_with_an_error_are_down() {
    let Some(mut checked) = Checked::start() else { return };
    // redis has no place for one more client, and says so.
    let at = checked.rig().server_v4(0).to_string();
    let port = REDIS.to_string();
    let cli = ["-h", &at, "-p", &port];
    let listening = [&cli[..], &["SUBSCRIBE", "nothing"]].concat();
    let listening = checked
        .rig()
        .start(Place::Clients, "listening", "redis-cli", &listening);
    let listening = listening.expect("redis-cli");
    let subscribes = || {
        let list = [&cli[..], &["CLIENT", "LIST"]].concat();
        let said = checked.rig().run(Place::Clients, "redis-cli", &list, LIMIT);
        said.is_ok_and(|said| said.text().contains("sub=1"))
    };
    process::wait_for("a subscriber", LIMIT, subscribes).expect("it has the only place");
    let places = |count: &str| {
        let set = [&cli[..], &["CONFIG", "SET", "maxclients", count]].concat();
        let said = checked.rig().run(Place::Clients, "redis-cli", &set, LIMIT);
        said.is_ok_and(|said| said.text().trim() == "OK")
    };
    assert!(places("1"));
    checked.wait_for_server("cache-1", "wrong", "down");
    checked.assert_clients_are_served();
    drop(listening);
    // Checks take the only place, too.
    process::wait_for("places for clients of redis", LIMIT, || places("1000")).expect("redis answers");
    checked.wait_for_server("cache-1", "passed", "up");

    // A TLS server without a certificate ends each handshake with an alert.
    checked.first[4].signal(Signal::KILL);
    checked.first[4].wait(LIMIT).expect("it is gone");
    checked.wait_for_server("shop-1", "refused", "down");
    let accept = format!("{at}:{TLS}");
    let arguments = [
        "s_server", "-quiet", "-4", "-accept", &accept, "-nocert", "-psk", "c0ffee", "-tls1_2",
    ];
    let alerting = checked.rig().start(Place::Servers, "alerting", "openssl", &arguments);
    let _alerting = alerting.expect("openssl starts");
    checked.wait_for_server("shop-1", "wrong", "down");
    checked.assert_clients_are_served();

    let Checked { setup, .. } = checked;
    let (report, _rig) = setup.finish();
    assert!(report.number("/counters/checks/wrong") > 1);
}
