//! PROXY headers between the engine and proxies that nobody here wrote: HAProxy and nginx send them to it and take them from
//! it; and servers that see the client's own address without any header.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use rig::engine::EngineOptions;
use rig::process::{self, Process};
use rig::{Arms, Place, Rig, RigOptions};

use crate::setup::{LIMIT, Setup};

const STARTING: Duration = Duration::from_secs(20);

/// What listeners bind by.
const BINDINGS: [&str; 3] = ["payload", "handshake", "syn"];

/// The one that has no connection with a stranger who would have to send a header.
const SYN: usize = 2;

/// Who speaks to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    /// curl itself, without a header.
    Curl,
    /// `send-proxy`.
    HaproxyV1,
    /// `send-proxy-v2` with checksum and unique id.
    HaproxyV2,
    /// `proxy_protocol on` in `stream`.
    Nginx,
}

const FRONTS: [Front; 4] = [Front::Curl, Front::HaproxyV1, Front::HaproxyV2, Front::Nginx];

/// Whom the engine speaks to, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Back {
    HaproxyV1,
    HaproxyV2,
    NginxV1,
    NginxV2,
    /// nginx that expects no header, reached from the client's own address.
    Transparent,
}

const BACKS: [Back; 4] = [Back::HaproxyV1, Back::HaproxyV2, Back::NginxV1, Back::NginxV2];

impl Back {
    fn port(self) -> u16 {
        8080 + self as u16
    }

    /// The index of its server's host.
    fn host(self) -> usize {
        match self {
            Back::HaproxyV1 | Back::HaproxyV2 => 0,
            Back::NginxV1 | Back::NginxV2 | Back::Transparent => 1,
        }
    }

    fn pool(self) -> &'static str {
        match self {
            Back::HaproxyV1 | Back::NginxV1 => "proxy_protocol = { send = \"v1\" }",
            Back::HaproxyV2 | Back::NginxV2 => {
                "proxy_protocol = { send = \"v2\", tlvs = [\"incoming\", \"unique_id\", \"crc32c\"] }"
            }
            Back::Transparent => "transparent = true",
        }
    }
}

/// One way through the engine; it has a listener, and a port of each front that sends headers.
#[derive(Clone, Copy, Debug)]
struct Way {
    front: Front,
    back: Back,
    binding: usize,
    v6: bool,
}

impl Way {
    /// The port of the engine: those with and without headers need listeners of their own.
    fn engine_port(self) -> u16 {
        let accepts = u16::from(self.front != Front::Curl);
        20_000 + 100 * accepts + 10 * self.back as u16 + self.binding as u16
    }

    /// Where curl connects to.
    fn target(self, rig: &Rig) -> SocketAddr {
        match self.front {
            Front::Curl => SocketAddr::new(rig.engine_addresses()[usize::from(self.v6)], self.engine_port()),
            front => SocketAddr::new(
                front_addresses(rig)[usize::from(self.v6)],
                10_000 + self.engine_port() % 1000 + 1000 * front as u16,
            ),
        }
    }

    fn engine(self, rig: &Rig) -> SocketAddr {
        SocketAddr::new(rig.engine_addresses()[usize::from(self.v6)], self.engine_port())
    }

    /// A header that names the client would come too late for the SYN of a transparent server.
    fn is_possible(self) -> bool {
        !(self.back == Back::Transparent && self.binding == SYN && self.front != Front::Curl)
    }

    /// Every way between these ends.
    fn all(fronts: &[Front], backs: &[Back]) -> Vec<Way> {
        let mut ways = Vec::new();
        for (&front, &back) in fronts
            .iter()
            .flat_map(|front| backs.iter().map(move |back| (front, back)))
        {
            for (binding, v6) in (0..BINDINGS.len()).flat_map(|binding| [(binding, false), (binding, true)]) {
                ways.push(Way {
                    front,
                    back,
                    binding,
                    v6,
                });
            }
        }
        ways.retain(|way| way.is_possible());
        ways
    }
}

/// The addresses of the proxies on the clients' side: those whose headers the engine believes.
fn front_addresses(rig: &Rig) -> [IpAddr; 2] {
    [rig.client_v4(1).into(), rig.client_v6(1).into()]
}

/// The engine's listeners and pools.
fn tables(rig: &Rig, ways: &[Way]) -> String {
    let [trusted4, trusted6] = front_addresses(rig);
    let mut text = String::new();
    let mut done = Vec::new();
    for way in ways {
        let family = u8::from(way.v6);
        let name = format!("{:?}-{family}", way.back);
        if !done.contains(&name) {
            let server = SocketAddr::new(
                rig.server_addresses(way.back.host())[usize::from(family)],
                way.back.port(),
            );
            let _ = write!(
                text,
                "[[pool]]\nname = \"{name}\"\n{}\nservers = [{{ name = \"{name}\", address = \"{server}\" }}]\n",
                way.back.pool()
            );
            done.push(name.clone());
        }
        let listener = format!("{}-{family}", way.engine_port());
        if done.contains(&listener) {
            continue;
        }
        let accept = match way.front {
            Front::Curl => String::new(),
            _ => format!(
                "proxy_protocol = {{ accept = \"required\", from = [\"{trusted4}/32\", \"{trusted6}/128\"] }}\n"
            ),
        };
        let _ = write!(
            text,
            "[[listener]]\nname = \"l{listener}\"\naddresses = [\"{}\"]\nports = [\"clients\"]\nbind = \"{}\"\n\
             default = \"{name}\"\n{accept}",
            way.engine(rig),
            BINDINGS[way.binding]
        );
        done.push(listener);
    }
    text
}

/// HAProxy before the engine: it takes connections as they are and adds a header.
fn start_haproxy_front(rig: &Rig, ways: &[Way]) -> Process {
    let mut text = String::from(
        "global\n maxconn 500\ndefaults\n mode tcp\n timeout connect 10s\n timeout client 50s\n timeout server 50s\n \
         unique-id-format %ci_%cp\n",
    );
    let options = [
        (Front::HaproxyV1, "send-proxy"),
        (
            Front::HaproxyV2,
            "send-proxy-v2 proxy-v2-options crc32c,unique-id,ssl,authority",
        ),
    ];
    let mut listening = Vec::new();
    for (way, option) in ways.iter().flat_map(|way| {
        options
            .iter()
            .filter(|(front, _)| *front == way.front)
            .map(move |o| (way, o.1))
    }) {
        let (target, from) = (way.target(rig), front_addresses(rig)[usize::from(way.v6)]);
        let _ = writeln!(
            text,
            "listen f{}-{}\n bind {}\n server engine {} source {} {option}",
            target.port(),
            u8::from(way.v6),
            of_haproxy(target),
            of_haproxy(way.engine(rig)),
            of_haproxy(SocketAddr::new(from, 0)),
        );
        listening.push(target);
    }
    start_haproxy(rig, Place::Clients, "haproxy-front", &text, &listening)
}

/// HAProxy behind the engine: it wants a header and answers what it said.
fn start_haproxy_back(rig: &Rig) -> Process {
    let mut text = String::from(
        "global\n maxconn 500\ndefaults\n mode http\n timeout connect 10s\n timeout client 50s\n timeout server 50s\n",
    );
    let mut listening = Vec::new();
    for back in [Back::HaproxyV1, Back::HaproxyV2] {
        let addresses = rig
            .server_addresses(back.host())
            .map(|ip| SocketAddr::new(ip, back.port()));
        let [v4, v6] = addresses.map(of_haproxy);
        listening.extend(addresses);
        let _ = writeln!(
            text,
            "frontend b{}\n bind {v4} accept-proxy\n bind {v6} accept-proxy\n http-request return status 200 \
             content-type text/plain lf-string \"%[src] %[src_port] %[dst] %[dst_port] id=%[fc_pp_unique_id]\"",
            back.port()
        );
    }
    start_haproxy(rig, Place::Servers, "haproxy-back", &text, &listening)
}

fn start_haproxy(rig: &Rig, place: Place, name: &str, text: &str, listening: &[SocketAddr]) -> Process {
    let file = rig.file(&format!("{name}.cfg"));
    fs::write(&file, text).expect("written");
    let mut haproxy = rig
        .start(place, name, "haproxy", &["-db", "-f", &file.to_string_lossy()])
        .expect("haproxy starts");
    haproxy
        .wait_for_listeners(listening, STARTING)
        .expect("haproxy listens");
    haproxy
}

/// HAProxy parts address and port at the last colon, without brackets.
fn of_haproxy(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(v4) if v4.port() == 0 => v4.ip().to_string(),
        SocketAddr::V6(v6) if v6.port() == 0 => v6.to_string(),
        SocketAddr::V4(v4) => v4.to_string(),
        SocketAddr::V6(v6) => format!("{}:{}", v6.ip(), v6.port()),
    }
}

/// nginx before the engine, in `stream`: version 1 only.
fn start_nginx_front(rig: &Rig, ways: &[Way]) -> Process {
    let (mut servers, mut listening) = (String::new(), Vec::new());
    for way in ways.iter().filter(|way| way.front == Front::Nginx) {
        let (target, from) = (way.target(rig), front_addresses(rig)[usize::from(way.v6)]);
        let _ = writeln!(
            servers,
            "server {{ listen {target}; proxy_bind {from}; proxy_pass {}; proxy_protocol on; }}",
            way.engine(rig)
        );
        listening.push(target);
    }
    let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
    let text = format!(
        "load_module {module};\n{}stream {{\n{servers}}}\n",
        nginx_head(rig, "nginx-front")
    );
    start_nginx(rig, Place::Clients, "nginx-front", &text, &listening)
}

/// nginx behind the engine: it answers what the header said, or, on its last port, whom it sees itself.
fn start_nginx_back(rig: &Rig, backs: &[Back]) -> Process {
    let (mut servers, mut listening) = (String::new(), Vec::new());
    for back in backs.iter().filter(|back| back.host() == 1) {
        let addresses = rig.server_addresses(1).map(|ip| SocketAddr::new(ip, back.port()));
        let [v4, v6] = addresses;
        listening.extend(addresses);
        let (option, said) = if *back == Back::Transparent {
            ("", "$remote_addr $remote_port $server_addr $server_port")
        } else {
            (
                " proxy_protocol",
                "$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr $proxy_protocol_server_port",
            )
        };
        let _ = writeln!(
            servers,
            "server {{ listen {v4}{option}; listen [{}]:{}{option}; access_log {} own; location / {{ return 200 \"{said} \
             id=\"; }} }}",
            v6.ip(),
            v6.port(),
            rig.file("access.log").display()
        );
    }
    let text = format!(
        "{}http {{\nlog_format own '$remote_addr $remote_port';\ndefault_type text/plain;\n{servers}}}\n",
        nginx_head(rig, "nginx-back")
    );
    start_nginx(rig, Place::Servers, "nginx-back", &text, &listening)
}

fn nginx_head(rig: &Rig, name: &str) -> String {
    let folder = rig.file(name);
    fs::create_dir_all(&folder).expect("a folder");
    format!(
        "user root;\ndaemon off;\nmaster_process off;\npid {}/pid;\nerror_log stderr warn;\n\
         events {{ worker_connections 512; }}\n",
        folder.display()
    )
}

fn start_nginx(rig: &Rig, place: Place, name: &str, text: &str, listening: &[SocketAddr]) -> Process {
    let folder = rig.file(name);
    let file = folder.join("nginx.conf");
    fs::write(&file, text).expect("written");
    let (file, prefix) = (file.to_string_lossy(), folder.to_string_lossy());
    let mut nginx = rig
        .start(place, name, "nginx", &["-c", &file, "-p", &prefix, "-e", "stderr"])
        .expect("nginx starts");
    nginx.wait_for_listeners(listening, STARTING).expect("nginx listens");
    nginx
}

/// What a server answered: whom it was told of, what that one connected to, and the unique id.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    client: SocketAddr,
    destination: SocketAddr,
    id: String,
}

/// One request along a way: what the server was told, and the end point that curl had.
fn ask(rig: &Rig, way: Way) -> (Told, SocketAddr) {
    let me: IpAddr = if way.v6 {
        rig.client_v6(0).into()
    } else {
        rig.client_v4(0).into()
    };
    let url = format!("http://{}/", way.target(rig));
    let arguments = [
        "-sS",
        "--max-time",
        "30",
        "--interface",
        &me.to_string(),
        "-w",
        " %{local_ip} %{local_port}",
        &url,
    ];
    let output = rig.run(Place::Clients, "curl", &arguments, LIMIT);
    let answer = output.unwrap_or_else(|error| panic!("{way:?}: {error}")).text();
    let words: Vec<&str> = answer.split_whitespace().collect();
    let address = |at: usize| -> SocketAddr {
        let ip = words.get(at).and_then(|word| word.parse().ok());
        let port = words.get(at + 1).and_then(|word| word.parse().ok());
        match (ip, port) {
            (Some(ip), Some(port)) => SocketAddr::new(ip, port),
            _ => panic!("{way:?}: {answer}"),
        }
    };
    let id = words
        .get(4)
        .and_then(|word| word.strip_prefix("id="))
        .unwrap_or_else(|| panic!("{way:?}: {answer}"));
    let told = Told {
        client: address(0),
        destination: address(2),
        id: id.to_owned(),
    };
    (told, address(5))
}

/// Every request of a client arrives at a server that knows the client, whoever spoke before and behind the engine.
#[test]
fn haproxy_and_nginx_understand_us_and_we_them() {
    let ways = Way::all(&FRONTS, &BACKS);
    let tools = ["curl", "haproxy", "nginx"];
    let Some(rig) = Rig::for_test(RigOptions::default(), &tools) else {
        return;
    };
    let options = EngineOptions {
        services: Vec::new(),
        tables: tables(&rig, &ways),
        ..EngineOptions::default()
    };
    let setup = Setup::on(rig, &options, |rig| {
        vec![
            start_haproxy_front(rig, &ways),
            start_nginx_front(rig, &ways),
            start_haproxy_back(rig),
            start_nginx_back(rig, &BACKS),
        ]
    });
    let rig = &setup.rig;
    let check = |way: Way| {
        let (told, me) = ask(rig, way);
        assert_eq!((told.client, told.destination), (me, way.target(rig)), "{way:?}");
        match (way.front, way.back) {
            // Theirs is passed on.
            (Front::HaproxyV2, Back::HaproxyV2) => assert_eq!(told.id, format!("{}_{}", me.ip(), me.port())),
            // Core, start and port, in hexadecimal digits.
            (_, Back::HaproxyV2) => assert_eq!(told.id.len(), 22, "{told:?}"),
            _ => {}
        }
    };
    thread::scope(|scope| {
        for first in 0..4 {
            let ways = &ways;
            scope.spawn(move || ways.iter().skip(first).step_by(4).for_each(|way| check(*way)));
        }
    });
    // Who is not trusted is turned away at once.
    let strangers = ways
        .iter()
        .filter(|way| way.front == Front::Nginx && way.back == Back::NginxV1);
    let (mut refused, mut recorded) = (0, 0);
    for way in strangers {
        let me: IpAddr = if way.v6 {
            rig.client_v6(0).into()
        } else {
            rig.client_v4(0).into()
        };
        let url = format!("http://{}/", way.engine(rig));
        let arguments = ["-sS", "--max-time", "10", "--interface", &me.to_string(), &url];
        let error = rig
            .run(Place::Clients, "curl", &arguments, LIMIT)
            .expect_err("no stranger is served");
        // Reset: as soon as it is connected (7), while it sends (55), or afterwards (56).
        let text = error.to_string();
        let is_reset = [7, 55, 56].iter().any(|code| text.contains(&format!("curl: ({code})")));
        assert!(is_reset, "{text}");
        refused += 1;
        // A stranger's SYN goes nowhere: there never was a connection.
        recorded += usize::from(way.binding != SYN);
    }
    let front = front_addresses(rig);
    let (report, _rig) = setup.finish();
    assert_eq!((refused, recorded), (6, 4));
    assert_eq!(report.records.len(), ways.len() + recorded);
    let bad = report
        .records
        .iter()
        .filter(|record| record.client_cause == "BadProxyHeader");
    assert_eq!(bad.count(), recorded);
    let through_fronts = report.records.iter().filter_map(|record| record.peer);
    let through_fronts: Vec<IpAddr> = through_fronts.map(|peer| peer.ip()).collect();
    assert_eq!(through_fronts.len(), ways.len() / 4 * 3);
    assert!(through_fronts.iter().all(|peer| front.contains(peer)));
}

/// nginx sees, and logs, the address and port of the client itself; its answers come back through the engine.
#[test]
fn transparent_servers_see_and_log_the_client_itself() {
    let ways = Way::all(&[Front::Curl, Front::HaproxyV2], &[Back::Transparent]);
    let two_armed = RigOptions {
        arms: Arms::Two,
        ..RigOptions::default()
    };
    let Some(rig) = Rig::for_test(two_armed, &["curl", "haproxy", "nginx"]) else {
        return;
    };
    // The servers' way to the clients is the engine.
    for (engine, clients) in rig
        .engine_addresses_for_servers()
        .iter()
        .zip(["10.77.0.0/24", "fd77::/64"])
    {
        let engine = engine.to_string();
        let route = ["route", "replace", clients, "via", &engine];
        rig.run(Place::Servers, "ip", &route, LIMIT).expect("a route");
    }
    let options = EngineOptions {
        services: Vec::new(),
        tables: tables(&rig, &ways),
        ..EngineOptions::default()
    };
    let setup = Setup::on(rig, &options, |rig| {
        vec![
            start_haproxy_front(rig, &ways),
            start_nginx_back(rig, &[Back::Transparent]),
        ]
    });
    let rig = &setup.rig;
    let mut clients = Vec::new();
    for round in 0..10 {
        for way in &ways {
            let (told, me) = ask(rig, *way);
            assert_eq!(told.client, me, "{way:?}, round {round}");
            clients.push(format!("{} {}", me.ip(), me.port()));
        }
    }
    // nginx writes a line when its answer is on its way: the last may come after it.
    let read = || fs::read_to_string(rig.file("access.log")).unwrap_or_default();
    let complete = || read().lines().count() >= clients.len();
    process::wait_for("nginx's log", LIMIT, complete).unwrap_or_else(|error| panic!("{error} in\n{}", read()));
    let log = read();
    let logged: Vec<&str> = log.lines().collect();
    assert_eq!(logged, clients);
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), clients.len());
}
