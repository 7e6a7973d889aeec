//! What is handed out: the program is started as its unit says (the Debian package is tests/package's affair); the static binary
//! is built and started where there is nothing else; the command of the compose file is understood (the image is
//! tests/package's, too).

mod rig;

use rig::{Proxy, greeting, in_bare_namespace, tcp_server, v1, wait_for};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging");

/// What is built here for the static binary stays, so that a second run takes seconds.
const BUILT: &str = env!("CARGO_TARGET_TMPDIR");

fn run(command: &mut Command) -> String {
    let output = command.output().expect("it can be run");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

#[test]
fn what_the_unit_starts_serves() {
    in_bare_namespace(|_| {
        let folder = tempfile::tempdir().expect("a folder");
        let unit = std::fs::read_to_string(format!("{FOLDER}/mmproxy.service")).expect("the unit");
        let lines = |key: &str| -> Vec<Vec<String>> {
            let of_key = unit
                .lines()
                .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            of_key
                .map(|line| line.trim_start_matches('+').split(' ').map(str::to_owned).collect())
                .collect()
        };
        let command = |words: &[String]| {
            assert_eq!(words[0], "/usr/bin/mmproxy");
            let mut command = Command::new(env!("CARGO_BIN_EXE_mmproxy"));
            command.args(words[1..].iter().filter(|word| !word.ends_with(".toml")));
            command
        };
        let [before, start, after] = ["ExecStartPre", "ExecStart", "ExecStopPost"].map(|key| lines(key).remove(0));
        run(&mut command(&before));

        // The configuration of the unit is the administrator's; here it is as short as can be.
        assert_eq!(start.last().map(String::as_str), Some("/etc/mmproxy/mmproxy.toml"));
        let config = folder.path().join("mmproxy.toml");
        let text =
            "metrics = \"127.0.0.1:9110\"\n[[listener]]\nlisten = \"127.0.0.1:8443\"\ntarget = \"127.0.0.1:443\"\n";
        std::fs::write(&config, text).expect("written");
        tcp_server("127.0.0.1:443");
        let mut daemon = command(&start);
        daemon.arg(&config);
        let mut proxy = Proxy::spawn(daemon, "127.0.0.1:9110");
        proxy.address = "127.0.0.1:8443".parse().expect("address");
        let mut client = proxy.send(&v1("203.0.113.7:4001", "198.51.100.9:443"));
        assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:4001");
        drop((client, proxy));
        run(&mut command(&after));
    });
}

#[test]
fn the_unit_file_is_one_that_systemd_takes() {
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        return rig::skip("systemd-analyze (package systemd) is not installed");
    };
    assert!(version.status.success());
    let folder = tempfile::tempdir().expect("a folder");
    let unit = std::fs::read_to_string(format!("{FOLDER}/mmproxy.service")).expect("the unit");
    // The program is not installed here.
    let unit = unit.replace("/usr/bin/mmproxy", env!("CARGO_BIN_EXE_mmproxy"));
    let path = folder.path().join("mmproxy.service");
    std::fs::write(&path, unit).expect("written");
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&path)
        .output()
        .expect("run");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("mmproxy.service")).collect();
    assert!(ours.is_empty(), "{said}");
}

/// Starts a proxy that sees no service manager, and waits until it listens.
fn start(mut command: Command, address: &str) -> Proxy {
    let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut proxy = Proxy {
        child: child.expect("the proxy starts"),
        address: address.parse().expect("an address"),
    };
    wait_for("the proxy listens", || {
        assert!(proxy.is_alive(), "the proxy ended");
        TcpStream::connect(proxy.address).is_ok()
    });
    proxy
}

/// A client with a header gets through, and the server sees its address.
fn serves(proxy: &Proxy) {
    let mut client = proxy.send(&v1("203.0.113.7:4001", "198.51.100.9:443"));
    assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:4001");
}

#[test]
fn the_static_binary_serves_where_nothing_else_is() {
    let library = Command::new("cc").arg("-print-file-name=libc.a").output();
    let library = library.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    if !library.is_ok_and(|path| Path::new(&path).is_absolute()) {
        return rig::skip("there is no static C library (package libc6-dev)");
    }
    in_bare_namespace(|_| {
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let built = Path::new(BUILT).join("static");
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build", "--quiet", "--locked", "-p", "mmproxy", "--bin", "mmproxy", "--target",
        ]);
        build.arg(&target).arg("--target-dir").arg(&built);
        build.env("RUSTFLAGS", "-C target-feature=+crt-static");
        run(build.current_dir(env!("CARGO_MANIFEST_DIR")));

        let root = tempfile::tempdir().expect("a folder");
        let program = built.join(target).join("debug/mmproxy");
        std::fs::copy(program, root.path().join("mmproxy")).expect("the program");
        let in_root = |words: &[&str]| {
            let mut command = Command::new("chroot");
            command.arg(root.path()).arg("/mmproxy").args(words);
            command
        };
        tcp_server("127.0.0.1:443");
        let words = ["-l", "127.0.0.1:8443", "-4", "127.0.0.1:443", "-6", "", "--routes"];
        serves(&start(in_root(&words), "127.0.0.1:8443"));
        run(&mut in_root(&["teardown"]));
    });
}

/// The compose file's value of a key of mmproxy, which is written as a list in one line.
fn composed(key: &str) -> Vec<String> {
    let compose = std::fs::read_to_string(format!("{FOLDER}/compose.yaml")).expect("the file");
    let line = compose
        .lines()
        .find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "))
        .unwrap_or_else(|| panic!("no {key}"));
    let items = line.trim_start_matches('[').trim_end_matches(']').split(',');
    items.map(|item| item.trim().trim_matches('"').to_owned()).collect()
}

#[test]
fn the_containers_command_is_understood() {
    let parsed = mmproxy::cli::parse(composed("command")).expect("understood");
    let mmproxy::cli::Command::Run(source) = parsed else {
        panic!("{parsed:?}")
    };
    let config = source.load().expect("a configuration");
    assert!(config.routes && config.listeners[0].target_v6.is_none());
}

#[test]
fn commands_in_the_manual_are_understood() {
    let mut tried = 0;
    for name in ["mmproxy", "tasks", "troubleshooting", "containers", "start"] {
        let text = std::fs::read_to_string(format!("{FOLDER}/../../../docs/{name}.md")).expect("a document");
        for words in pages::commands(&text, "mmproxy") {
            let parsed = mmproxy::cli::parse(words.clone());
            assert!(parsed.is_ok(), "docs/{name}.md: mmproxy {words:?}: {:?}", parsed.err());
            tried += 1;
        }
    }
    assert!(tried > 8, "{tried} commands");
}

#[test]
fn who_has_a_busy_port_is_a_command_away() {
    let busy = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = busy.local_addr().expect("its address");
    let mut start = Command::new(env!("CARGO_BIN_EXE_mmproxy"));
    start.args(["-l", &address.to_string(), "-4", "127.0.0.1:9", "-6", ""]);
    let output = start.stdin(Stdio::null()).output().expect("it ends by itself");
    let said = String::from_utf8_lossy(&output.stderr);
    let command = format!("ss -lntup sport = :{}", address.port());
    assert!(!output.status.success() && said.contains(&command), "{said}");
}
