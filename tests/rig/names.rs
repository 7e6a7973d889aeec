//! Servers by name with dnsmasq, whom the engine asks over its kernel's network: two servers of which one is withdrawn, a name server that is killed, lies and
//! comes back with another answer. curl gets an answer all the while.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rig::engine::EngineOptions;
use rig::process::{self, Process};
use rig::servers;
use rig::{Place, Rig, RigOptions, SERVERS};
use rustix::process::Signal;
use serde_json::Value;

use crate::setup::{LIMIT, Setup, binary};

const DNS: &str = "127.0.0.1:5353";
const WEB: &str = "web.example.net";
const SERVICE: &str = "_web._tcp.example.net";

fn tables(rig: &Rig) -> String {
    let (socket, journal) = (rig.file("control.sock"), rig.file("journal"));
    format!(
        r#"
[[listener]]
name = "web"
addresses = ["10.77.0.1:80"]
default = "web"

[[listener]]
name = "service"
addresses = ["10.77.0.1:81"]
default = "service"

[[pool]]
name = "web"
servers = [{{ name = "web", address = "{WEB}:80" }}]

[[pool]]
name = "service"
servers = [{{ name = "service", address = "{SERVICE}" }}]

[dns]
servers = ["{DNS}"]
timeout = "200ms"
retries = 1

[control]
socket = "{}"
journal = "{}"
"#,
        socket.display(),
        journal.display()
    )
}

/// The names' addresses, for a name server that is told to read them again.
struct Zone {
    hosts: PathBuf,
}

impl Zone {
    fn new(rig: &Rig) -> Self {
        let zone = Zone {
            hosts: rig.file("dns-hosts"),
        };
        let to_own_host = ["link", "set", "lo", "up"];
        rig.run(Place::Engine, "ip", &to_own_host, LIMIT)
            .expect("a loopback device");
        zone
    }

    /// What `web` is from now on; the service is always the third server.
    fn write(&self, servers: &[usize]) {
        let lines = servers.iter().map(|index| format!("10.77.0.{} {WEB}\n", 11 + index));
        let text = lines.collect::<String>() + "10.77.0.13 third.example.net\n";
        fs::write(&self.hosts, text).expect("written");
    }

    /// A dnsmasq, which answers for a second at a time; with more options, as a liar has them.
    fn start(&self, rig: &Rig, more: &[&str]) -> Process {
        let hosts = format!("--addn-hosts={}", self.hosts.display());
        let service = format!("--srv-host={SERVICE},third.example.net,80,0,5");
        let mut arguments = vec![
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--no-resolv",
            "--no-hosts",
            "--user=root",
            "--pid-file=",
            "--port=5353",
            "--listen-address=127.0.0.1",
            "--bind-interfaces",
            "--local=/example.net/",
            "--local-ttl=1",
            &hosts,
            &service,
        ];
        arguments.extend(more);
        let mut dnsmasq = rig
            .start(Place::Engine, "dnsmasq", "dnsmasq", &arguments)
            .expect("dnsmasq");
        let at = SocketAddr::from(([127, 0, 0, 1], 5353));
        dnsmasq.wait_for_listeners(&[at], LIMIT).expect("it listens");
        dnsmasq
    }
}

struct Named {
    setup: Setup,
    zone: Zone,
}

impl Named {
    /// What `ctl show` says.
    fn shown(&self, what: &str) -> Vec<Value> {
        let socket = self.setup.rig.file("control.sock");
        let arguments = ["ctl", "--socket", &socket.to_string_lossy(), "show", what, "--json"];
        let rig = &self.setup.rig;
        let output = rig.run(Place::Engine, &binary().to_string_lossy(), &arguments, LIMIT);
        let shown: Value = serde_json::from_str(&output.expect("ctl is answered").text()).expect("JSON");
        shown.as_array().expect("rows").clone()
    }

    /// The servers of `web` that get connections, in the order of their addresses.
    fn servers(&self) -> Vec<String> {
        let rows = self.shown("servers");
        let of_web = |pools: &str| pools.split(' ').any(|pool| pool == "web");
        let is_served = |row: &&Value| row["pools"].as_str().is_some_and(of_web) && row["state"] != "past";
        let rows = rows.iter().filter(is_served);
        let mut names: Vec<String> = rows
            .map(|row| row["name"].as_str().expect("a name").to_owned())
            .collect();
        names.sort();
        names
    }

    fn failures(&self) -> u64 {
        let rows = self.shown("names");
        let web = rows.iter().find(|row| row["name"] == WEB).expect("a row for the name");
        web["failures"].as_u64().expect("a number")
    }

    /// Who answers a client of the engine's.
    fn ask(&self, port: u16) -> usize {
        let url = format!("http://{}:{port}/", self.setup.rig.engine_v4());
        let arguments = ["-sS", "--fail", "--max-time", "30", &url];
        let answer = self.setup.rig.run(Place::Clients, "curl", &arguments, LIMIT);
        let text = answer.unwrap_or_else(|error| panic!("a client sees: {error}")).text();
        servers::named_in(&text).unwrap_or_else(|| panic!("no server: {text}"))
    }

    /// Clients are served by exactly these.
    fn assert_served_by(&self, expected: &[usize]) {
        let mut seen: Vec<usize> = (0..6).map(|_| self.ask(80)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, expected);
        assert_eq!(self.ask(81), 2, "the service");
    }

    /// Clients are served until these are the servers, within so long.
    fn wait_for(&self, servers: &[usize], limit: Duration) {
        let names: Vec<String> = servers
            .iter()
            .map(|index| format!("web@10.77.0.{}:80", 11 + index))
            .collect();
        let began = Instant::now();
        process::wait_for(&format!("{names:?}"), LIMIT, || {
            self.ask(80);
            self.servers() == names
        })
        .unwrap_or_else(|error| panic!("{error}: {:?}", self.servers()));
        assert!(began.elapsed() < limit, "{names:?} after {:?}", began.elapsed());
    }

    /// Clients are served for so long, and the servers stay.
    fn stay(&self, servers: &[usize], failures: u64) {
        let before = self.failures();
        process::wait_for("failures of DNS", LIMIT, || {
            self.ask(80);
            self.failures() >= before + failures
        })
        .unwrap_or_else(|error| panic!("{error}"));
        self.assert_served_by(servers);
    }
}

/// TTL, the second that is allowed beyond, and what a busy machine takes.
const SOON: Duration = Duration::from_secs(4);

#[test]
fn servers_come_and_go_with_the_answers_of_dnsmasq_and_stay_while_it_is_away_or_lies() {
    let tools = ["curl", "nginx", "dnsmasq"];
    let Some(rig) = Rig::for_test(RigOptions::default(), &tools) else {
        return;
    };
    let zone = Zone::new(&rig);
    zone.write(&[0, 1]);
    let mut dnsmasq = zone.start(&rig, &[]);
    let options = EngineOptions {
        services: Vec::new(),
        tables: tables(&rig),
        ..EngineOptions::default()
    };
    let start = |rig: &Rig| {
        (0..SERVERS)
            .map(|index| servers::start_nginx(rig, index).expect("nginx starts"))
            .collect()
    };
    let named = Named {
        setup: Setup::on(rig, &options, start),
        zone,
    };
    assert_eq!(
        named.servers(),
        ["web@10.77.0.11:80", "web@10.77.0.12:80"],
        "known before the first client"
    );
    named.assert_served_by(&[0, 1]);
    let kept = fs::read_to_string(named.setup.rig.file("journal.names")).expect("kept answers");
    assert!(kept.contains("10.77.0.12") && kept.contains(SERVICE), "{kept}");

    named.zone.write(&[1]);
    dnsmasq.signal(Signal::HUP);
    named.wait_for(&[1], SOON);
    named.assert_served_by(&[1]);

    dnsmasq.signal(Signal::KILL);
    dnsmasq.wait(LIMIT).expect("it is gone");
    named.stay(&[1], 2);
    // The first of these says that there is no such name, the second sends clients to themselves.
    for lie in ["--address=/web.example.net/", "--address=/web.example.net/127.0.0.1"] {
        named.zone.write(&[]);
        let mut liar = named.zone.start(&named.setup.rig, &[lie]);
        named.stay(&[1], 1);
        liar.signal(Signal::KILL);
        liar.wait(LIMIT).expect("it is gone");
    }

    named.zone.write(&[0, 1, 2]);
    let dnsmasq = named.zone.start(&named.setup.rig, &[]);
    // After a failure it is asked again within 5 s.
    named.wait_for(&[0, 1, 2], 5 * Duration::from_secs(1) + SOON);
    named.assert_served_by(&[0, 1, 2]);
    drop(dnsmasq);
    named.setup.finish();
}
