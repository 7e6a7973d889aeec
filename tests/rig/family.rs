//! Client → engine → the PROXY protocol family on the server's host → nginx, which knows nothing of it and yet says, and
//! logs, who the client is: once with mmproxy before it, once with the library preloaded into it.
//!
//! The engine binds late (by the host of the request) and sends a version 2 header with a unique id and a checksum.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use rig::engine::{Engine, EngineOptions, configuration};
use rig::process::Process;
use rig::{HOSTS, Place, Rig, RigOptions, process, servers};
use rustix::process::Signal;

use crate::setup::{LIMIT, assert_accounts_are_settled, binary, family_option};

/// Where headers are expected; the engine connects to it.
const PROXIED: u16 = 8443;
/// Where nginx listens when mmproxy stands before it.
const PLAIN: u16 = 8080;
/// Requests, by all client addresses and both address families in turn.
const REQUESTS: usize = 40;
/// Addresses of the clients, in each family.
const CLIENTS: usize = 4;
const _: () = assert!(REQUESTS.is_multiple_of(2 * CLIENTS), "each address has its turn");

/// Something that another package of the workspace builds, built by the cargo that runs this test; with mmproxy's inline mode where
/// there is what that is built with, as `build.sh test` builds it.
pub(crate) fn built(file: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        build
            .args(["build", "--quiet", "-p", "mmproxy", "-p", "libproxyproto"])
            .args(["--bin", "mmproxy", "--lib"])
            .args(rig::features_of_mmproxy());
        let status = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        assert!(status.is_ok_and(|status| status.success()), "the family does not build");
    });
    // The engine of this test is in target/PROFILE; cargo build without a profile makes the other in target/debug.
    let profile = binary().parent().expect("a folder");
    let path = profile.with_file_name("debug").join(file);
    assert!(path.exists(), "no {}", path.display());
    path
}

/// The engine's configuration: HTTP for the first host, to the first server's [`PROXIED`] port.
fn engine_options(rig: &Rig) -> EngineOptions {
    let mut tables = String::new();
    let pairs = rig.engine_addresses().into_iter().zip(rig.server_addresses(0));
    for (number, (engine, server)) in pairs.enumerate() {
        let (engine, server) = (SocketAddr::new(engine, servers::HTTP), SocketAddr::new(server, PROXIED));
        tables += &format!(
            "[[listener]]\nname = \"http{number}\"\naddresses = [\"{engine}\"]\nports = [\"clients\"]\n\
             rules = [{{ http_host = \"{}\", pool = \"family{number}\" }}]\n\n\
             [[pool]]\nname = \"family{number}\"\nproxy_protocol = {{ send = \"v2\", tlvs = [\"unique_id\", \"crc32c\"] }}\n\
             servers = [{{ name = \"family{number}\", address = \"{server}\" }}]\n\n",
            HOSTS[0]
        );
    }
    EngineOptions {
        services: Vec::new(),
        tables,
        ..EngineOptions::default()
    }
}

/// nginx as a distribution has it: a master and workers. It answers and logs the client's address and port.
fn start_nginx(rig: &Rig, listen: &[SocketAddr], preload: Option<&Path>) -> Process {
    let folder = rig.file("nginx");
    fs::create_dir_all(&folder).expect("a folder");
    let shown = folder.display();
    let directives: String = listen.iter().map(|at| format!("listen {at} backlog=1024;\n")).collect();
    let configuration = folder.join("nginx.conf");
    let text = format!(
        "user root; daemon off; worker_processes 2; pid {shown}/pid; error_log stderr warn;\n\
         env LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER; env LIBPROXYPROTO_ALLOWED;\n\
         events {{ worker_connections 256; }}\n\
         http {{\n log_format client '$remote_addr $remote_port $request_uri';\n access_log {shown}/access client;\n\
         client_body_temp_path {shown}; proxy_temp_path {shown}; fastcgi_temp_path {shown}; uwsgi_temp_path {shown};\n\
         scgi_temp_path {shown};\n server {{ {directives} return 200 '$remote_addr $remote_port\\n'; }}\n}}\n"
    );
    fs::write(&configuration, text).expect("a configuration");
    let mut command = rig.command(Place::Servers, "nginx");
    command.arg("-p").arg(&folder).arg("-c").arg(&configuration);
    if let Some(library) = preload {
        let trusted: Vec<_> = rig.engine_addresses_for_servers().map(|ip| ip.to_string()).into();
        command
            .env("LD_PRELOAD", library)
            .env("LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER", "1")
            .env("LIBPROXYPROTO_ALLOWED", trusted.join(","));
    }
    let mut nginx = Process::start(&mut command, &rig.file("nginx.log")).expect("nginx starts");
    nginx.wait_for_listeners(listen, LIMIT).expect("nginx listens");
    nginx
}

/// Routing and mmproxy on the server's host, as its documentation says.
fn start_mmproxy(rig: &Rig) -> Process {
    let program = built("mmproxy");
    let setup = rig.run(Place::Servers, &program.to_string_lossy(), &["setup"], LIMIT);
    setup.expect("routing rules");
    let file = rig.file("mmproxy.toml");
    let servers = rig.server_addresses(0).map(|ip| SocketAddr::new(ip, PROXIED));
    let [server4, server6] = servers;
    let [engine4, engine6] = rig.engine_addresses_for_servers();
    let text = format!(
        "[[listener]]\nlisten = [\"{server4}\", \"{server6}\"]\ntarget_v4 = \"127.0.0.1:{PLAIN}\"\n\
         target_v6 = \"[::1]:{PLAIN}\"\nallowed = [\"{engine4}\", \"{engine6}\"]\n"
    );
    fs::write(&file, text).expect("a configuration");
    let mut command = rig.command(Place::Servers, &program.to_string_lossy());
    command.arg("--config").arg(&file);
    let mut mmproxy = Process::start(&mut command, &rig.file("mmproxy.log")).expect("mmproxy starts");
    mmproxy.wait_for_listeners(&servers, LIMIT).expect("mmproxy listens");
    mmproxy
}

/// A request from this client address; returns `address port` as the client itself knows them, after checking that nginx
/// has answered the same.
fn request(rig: &Rig, number: usize) -> String {
    let (index, v6) = (number / 2 % CLIENTS, number % 2 == 1);
    let (client, engine): (IpAddr, IpAddr) = if v6 {
        (rig.client_v6(index).into(), rig.engine_v6().into())
    } else {
        (rig.client_v4(index).into(), rig.engine_v4().into())
    };
    let url = format!("http://{}/number/{number}", HOSTS[0]);
    let interface = client.to_string();
    let own = "%{local_ip} %{local_port}\n";
    let arguments = [
        family_option(engine),
        "-sS",
        "--max-time",
        "30",
        "--interface",
        &interface,
        "-w",
        own,
        &url,
    ];
    let answer = rig
        .run(Place::Clients, "curl", &arguments, LIMIT)
        .expect("curl is answered")
        .text();
    let (seen, own) = answer.split_once('\n').expect("two lines");
    assert_eq!(seen, own.trim_end(), "what nginx says, and what curl knows");
    assert!(seen.starts_with(&format!("{interface} ")), "{seen}");
    seen.to_owned()
}

/// All requests, then nginx's log: the same addresses and ports, and no other.
fn check(rig: &Rig) {
    let mut wanted: Vec<String> = (0..REQUESTS)
        .map(|number| format!("{} /number/{number}", request(rig, number)))
        .collect();
    wanted.sort();
    let log = rig.file("nginx").join("access");
    let read = || {
        let mut lines: Vec<String> = fs::read_to_string(&log)
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    };
    let complete = || read().len() >= wanted.len();
    process::wait_for("nginx's log", Duration::from_secs(10), complete).expect("every request is logged");
    assert_eq!(read(), wanted);
}

fn with_rig(test: &str, start: impl FnOnce(&Rig) -> Vec<Process>) {
    let tools = ["curl", "nginx"];
    let Some(rig) = Rig::for_test(RigOptions::default(), &tools) else {
        return;
    };
    let _servers = start(&rig);
    let records = rig.file("records.jsonl");
    let text = configuration(&rig, &engine_options(&rig), &records);
    let engine =
        Engine::start_with(&rig, binary(), &text, records).unwrap_or_else(|error| panic!("{test}: no engine: {error}"));
    check(&rig);
    let report = engine.stop(Signal::INT).expect("an orderly end");
    assert_accounts_are_settled(&report);
    assert_eq!(report.records.len(), REQUESTS, "one record for each connection");
}

#[test]
fn mmproxy_shows_nginx_the_engines_clients() {
    with_rig("mmproxy", |rig| {
        let loopback = [
            SocketAddr::from(([127, 0, 0, 1], PLAIN)),
            SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, PLAIN)),
        ];
        vec![start_nginx(rig, &loopback, None), start_mmproxy(rig)]
    });
}

#[test]
fn the_preloaded_library_shows_nginx_the_engines_clients() {
    with_rig("libproxyproto", |rig| {
        let listen = rig.server_addresses(0).map(|ip| SocketAddr::new(ip, PROXIED));
        vec![start_nginx(rig, &listen, Some(&built("libproxyproto.so")))]
    });
}
