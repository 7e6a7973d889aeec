//! The program as a person runs it: what it says, and how it ends. Ports are DPDK's rings: no root, no interface.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

mod mmdb;
#[cfg(feature = "dpdk")]
mod reloading;
#[cfg(feature = "dpdk")]
mod running;
#[cfg(feature = "dpdk")]
mod watching;

const GOOD: &str = r#"
[engine]
name = "cli-test"
cores = [0]
memory_mib = 64
buffers = 4096
drain = "200ms"

[records]
file = "RECORDS"
format = "json"

[[port]]
name = "left"
device = "net_ring0"
mac = "02:00:00:00:00:01"
addresses = ["10.0.0.1/24", "2001:db8::1/64"]

[[listener]]
name = "web"
addresses = ["10.0.0.1:80"]
default = "pool"

[[pool]]
name = "pool"
servers = [{ name = "one", address = "10.0.0.9:80" }]
"#;

/// A directory with a configuration in it.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new(config: &str) -> Self {
        let directory = tempfile::tempdir().expect("temporary directory");
        let records = directory.path().join("records.json");
        let text = config.replace("RECORDS", records.to_str().expect("a path in UTF-8"));
        fs::write(directory.path().join("engine.toml"), text).expect("write");
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proxyengine"));
        command
            .current_dir(self.directory.path())
            .args(arguments)
            .env_remove("RUST_LOG");
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("run the program")
    }
}

fn code(output: &Output) -> i32 {
    output
        .status
        .code()
        .unwrap_or_else(|| panic!("ended by a signal: {output:?}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn check_says_what_the_file_describes() {
    let output = Place::new(GOOD).output(&["check", "engine.toml"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines[0],
        "engine.toml: ok: 1 core, 1 port, 1 listener, 1 pool, 1 server"
    );
    // What it takes and carries: the ports' memory, and the requests that 64 MiB hold.
    assert!(lines[1].contains("source ports") && lines[1].contains("MiB"), "{said}");
    assert!(lines[2].contains("109140") && lines[2].contains("512 bytes"), "{said}");
    assert_eq!(lines.len(), 3, "{said}");
}

#[test]
fn a_file_of_the_ancestor_is_checked_with_warnings() {
    let output = Place::new(include_str!("../ancestors/timeout.toml")).output(&["check", "engine.toml"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let said = stderr(&output);
    assert!(
        !said.is_empty() && said.lines().all(|line| line.starts_with("warning: engine.toml:")),
        "{said}"
    );
    assert!(said.contains(": netbricks.master_core has no meaning here: "), "{said}");
    let summary = String::from_utf8_lossy(&output.stdout).into_owned();
    let first = summary.lines().next();
    assert_eq!(
        first,
        Some("engine.toml: ok: 1 core, 1 port, 1 listener, 1 pool, 2 servers")
    );
}

#[test]
fn check_opens_nothing() {
    let place = Place::new(&GOOD.replace("net_ring0", "net_af_packet0,iface=no-such-if0"));
    assert_eq!(code(&place.output(&["check", "engine.toml"])), 0);
    assert!(!place.path("records.json").exists());
}

#[test]
fn a_wrong_value_is_named_with_file_key_and_line() {
    let wrong = GOOD.replace("\"10.0.0.1:80\"", "\"10.0.0.1:eighty\"");
    for arguments in [&["check", "engine.toml"][..], &["engine.toml"], &["run", "engine.toml"]] {
        let place = Place::new(&wrong);
        let output = place.output(arguments);
        assert_eq!(code(&output), 2, "{arguments:?}");
        let said = stderr(&output);
        for part in ["engine.toml", "listener", "addresses", "10.0.0.1:eighty"] {
            assert!(said.contains(part), "no `{part}` in {said}");
        }
        assert!(!place.path("records.json").exists(), "nothing was opened");
    }
}

#[test]
fn a_network_that_cannot_be_is_refused_by_check_and_run() {
    let servers: Vec<String> = (0..=16_384u32)
        .map(|index| {
            format!(
                "{{ name = \"s{index}\", address = \"{}:80\" }}",
                std::net::Ipv4Addr::from(0x0a01_0000 + index)
            )
        })
        .collect();
    let many = GOOD.replace("10.0.0.1/24", "10.0.0.1/8").replace(
        "servers = [",
        &format!("local_ports = \"1024-1030\"\nservers = [{}, ", servers.join(",")),
    );
    for arguments in [&["check", "engine.toml"][..], &["engine.toml"]] {
        let output = Place::new(&many).output(arguments);
        assert_eq!(code(&output), 2);
        let said = stderr(&output);
        assert!(
            said.starts_with("engine.toml: ") && said.contains("next hops"),
            "{said}"
        );
    }
}

#[test]
fn a_file_that_is_not_there_is_a_sentence() {
    for arguments in [&["check", "missing.toml"][..], &["missing.toml"]] {
        let output = Place::new(GOOD).output(arguments);
        assert_eq!(code(&output), 2);
        assert!(
            stderr(&output).contains("missing.toml: the file cannot be read"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn wrong_arguments_are_explained() {
    for arguments in [
        &[][..],
        &["--nonsense"],
        &["check"],
        &["a.toml", "b.toml"],
        &["--report"],
    ] {
        let output = Place::new(GOOD).output(arguments);
        assert_eq!(code(&output), 2, "{arguments:?}");
        assert!(stderr(&output).contains("--help"), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn the_version_is_the_packages() {
    let output = Place::new(GOOD).output(&["--version"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        (code(&output), said),
        (0, format!("proxyengine {}\n", env!("CARGO_PKG_VERSION")))
    );
}

#[cfg(not(feature = "dpdk"))]
#[test]
fn without_dpdk_running_is_refused_in_a_sentence() {
    let output = Place::new(GOOD).output(&["engine.toml"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("built without DPDK"), "{}", stderr(&output));
}

/// What it says of this machine is this machine's affair; that it opens nothing and ends as it has spoken is not.
#[test]
fn doctor_says_what_is_wrong_and_ends_accordingly() {
    for arguments in [&["doctor"][..], &["doctor", "engine.toml"]] {
        let output = Place::new(GOOD).output(arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_well = said.contains("0 errors, 0 warnings, ");
        assert_eq!(code(&output), i32::from(!is_well), "{said}");
        assert_eq!(
            said.matches("\n         fix: ").count(),
            said.matches("\n         why: ").count()
        );
        assert_eq!(is_well, !said.contains("fix: "), "{said}");
    }
    let place = Place::new(GOOD);
    std::fs::create_dir(place.path("nothing")).expect("an empty machine");
    let output = place.output(&["doctor", "engine.toml", "--json", "--root", "nothing"]);
    assert_eq!(code(&output), 1);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let ids: Vec<_> = said["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|of| &of["id"])
        .collect();
    for id in ["dpdk-libraries", "hugepages", "hugetlbfs", "isolated-cores"] {
        assert!(ids.contains(&&serde_json::Value::from(id)), "{id} in {said}");
    }
    let wrong = Place::new(&GOOD.replace("cores = [0]", "cores = []")).output(&["doctor", "engine.toml"]);
    assert_eq!(code(&wrong), 2, "{}", stderr(&wrong));
}

#[test]
fn devices_has_nothing_to_do_where_no_port_needs_anything_and_refuses_a_wrong_file() {
    let place = Place::new(GOOD);
    std::fs::create_dir(place.path("nothing")).expect("an empty machine");
    let output = place.output(&["devices", "engine.toml", "--root", "nothing"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(output.stdout, b"nothing to do\n");

    let on_pci = Place::new(&GOOD.replace("net_ring0", "0000:07:00.0"));
    std::fs::create_dir(on_pci.path("nothing")).expect("an empty machine");
    let output = on_pci.output(&["devices", "engine.toml", "--dry-run", "--root", "nothing"]);
    assert_eq!(code(&output), 1);
    let said = "proxyengine devices: port left: there is no PCI device at 0000:07:00.0; `lspci -D` lists them\n";
    assert_eq!(stderr(&output), said);
    let wrong = Place::new(&GOOD.replace("cores = [0]", "cores = []")).output(&["devices", "engine.toml"]);
    assert_eq!(code(&wrong), 2, "{}", stderr(&wrong));
}

#[test]
fn manual_pages_say_what_the_command_line_takes() {
    let place = Place::new(GOOD);
    let output = place.output(&["generate", "pages"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let read = |name: &str| fs::read_to_string(place.path("pages").join(name)).expect(name);
    assert!(read("man/proxyengine.1").contains("Exit codes: 0 ended by a signal"));
    assert!(read("man/proxyengine-devices.1").contains("reserve hugepages"));
    assert!(read("man/proxyengine-top.1").contains("q, F10"));
    assert!(read("bash/proxyengine.bash").contains("--dry-run"));
    assert!(!place.path("pages/man/proxyengine-generate.1").exists());
}

#[test]
fn a_port_that_is_taken_is_told_with_the_command_that_says_by_whom() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let place = Place::new(&GOOD.replace("[records]", &format!("[control]\nhttp = \"{address}\"\n[records]")));
    let output = place.output(&["engine.toml"]);
    let who = format!(
        "{address} cannot be listened on: Address already in use (os error 98); who has it: ss -ltnp sport = :{}",
        address.port()
    );
    assert!(
        code(&output) == 1 && stderr(&output).contains(&who),
        "{}",
        stderr(&output)
    );
}
