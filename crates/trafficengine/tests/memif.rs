//! Two processes of the binary on the two ends of a memif: DPDK without a NIC, without root, without hugepages.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_trafficengine");
const LIMIT: Duration = Duration::from_secs(60);

/// Ends the server, however the test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn write(folder: &Path, role: &str, text: &str) -> PathBuf {
    let path = folder.join(format!("{role}.toml"));
    let socket = folder.join("memif.sock");
    let device = format!(
        "net_memif0,role={role},socket={},socket-abstract=no,rsize=11",
        socket.display()
    );
    // A machine that stands still for long is no loss.
    let common = "memory_mib = 128\n[tcp]\nrto_initial = \"5s\"\nrto_min = \"5s\"\n";
    std::fs::write(
        &path,
        format!("[port]\ndevice = \"{device}\"\nmac = \"{}\"\n{common}{text}", mac(role)),
    )
    .expect("a file");
    path
}

fn mac(role: &str) -> &'static str {
    if role == "server" {
        "02:00:00:00:02:01"
    } else {
        "02:00:00:00:01:01"
    }
}

fn start(file: &Path, json: &Path) -> Child {
    start_all(&[file.to_owned()], json)
}

/// One process with a port for each file.
fn start_all(files: &[PathBuf], json: &Path) -> Child {
    Command::new(BINARY)
        .arg("run")
        .args(files)
        .args(["--quiet", "--json"])
        .arg(json)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the binary starts")
}

fn wait(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("not ended after {LIMIT:?}");
}

fn report(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a report")).expect("JSON")
}

#[test]
fn client_and_server_complete_every_connection_without_retransmission() {
    let folder = std::env::temp_dir().join(format!("trafficengine-memif-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let server_file = write(
        &folder,
        "server",
        "[script]\nkeys = 4\n[server]\nlisten = [\"10.2.0.1:80\"]\n",
    );
    let client_file = write(
        &folder,
        "client",
        "[link]\nnext_hop_mac = \"02:00:00:00:02:01\"\n[script]\nkeys = 4\n[client]\naddresses = [\"10.1.0.1-10.1.0.4\"]\n\
         targets = [\"10.2.0.1:80\"]\n[load]\nmode = \"closed\"\nopen = 100\ntotal = 20000\n",
    );
    let [server_json, client_json] = ["server", "client"].map(|role| folder.join(format!("{role}.json")));
    let mut server = Server(start(&server_file, &server_json));
    let deadline = Instant::now() + LIMIT;
    while !folder.join("memif.sock").exists() {
        assert!(
            Instant::now() < deadline && server.0.try_wait().expect("a child").is_none(),
            "no server"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(wait(&mut start(&client_file, &client_json)), Some(0));
    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a signal");
    assert_eq!(wait(&mut server.0), Some(0));
    let (client, server) = (report(&client_json), report(&server_json));
    for (role, report) in [("client", &client), ("server", &server)] {
        assert_eq!(report[role]["completed"], 20_000, "{report:#}");
        assert_eq!(
            (&report[role]["retransmitted"], &report["packets_not_sent"]),
            (&0.into(), &0.into()),
            "{report:#}"
        );
    }
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}

/// Two ports for each process, on two cores each: one result, whose counts are the ports' together.
#[test]
fn two_ports_and_cores_of_a_process_have_one_result() {
    let folder = std::env::temp_dir().join(format!("trafficengine-two-ports-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = |role: &str, port: u8, text: &str| {
        let path = folder.join(format!("{role}{port}.toml"));
        let (socket, number) = (
            folder.join(format!("{port}.sock")),
            if role == "server" { 2 } else { 1 },
        );
        let text = format!(
            "[port]\ndevice = \"net_memif{port},role={role},socket={},socket-abstract=no,rsize=11\"\n\
             mac = \"02:00:00:00:0{number}:0{port}\"\nmemory_mib = 128\n\
             [tcp]\nrto_initial = \"5s\"\nrto_min = \"5s\"\n[script]\nkeys = 4\n{text}",
            socket.display()
        );
        std::fs::write(&path, text).expect("a file");
        path
    };
    let totals = [12_000_u64, 8_000];
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for (port, total) in (0..).zip(totals) {
        servers.push(file(
            "server",
            port,
            &format!("[server]\nlisten = [\"10.2.{port}.1:80\"]\n"),
        ));
        let client = format!(
            "[link]\nnext_hop_mac = \"02:00:00:00:02:0{port}\"\n[client]\naddresses = [\"10.1.{port}.1-10.1.{port}.4\"]\n\
             targets = [\"10.2.{port}.1:80\"]\n[load]\nmode = \"closed\"\nopen = 100\ntotal = {total}\n"
        );
        clients.push(file("client", port, &client));
    }
    let [server_json, client_json] = ["server", "client"].map(|role| folder.join(format!("{role}.json")));
    let mut server = Server(start_all(&servers, &server_json));
    let deadline = Instant::now() + LIMIT;
    while !(folder.join("0.sock").exists() && folder.join("1.sock").exists()) {
        assert!(Instant::now() < deadline, "no server");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(wait(&mut start_all(&clients, &client_json)), Some(0));
    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a signal");
    assert_eq!(wait(&mut server.0), Some(0));
    for (role, json) in [("client", &client_json), ("server", &server_json)] {
        let report = report(json);
        assert_eq!(report[role]["completed"], 20_000, "{report:#}");
        assert_eq!(report[role]["retransmitted"], 0, "{report:#}");
        let ports = report["by_port"].as_array().expect("the ports");
        for (port, total) in ports.iter().zip(totals) {
            assert_eq!(port[format!("{role}_completed")], total, "{report:#}");
        }
        for count in ["packets_received", "packets_sent", "packets_not_sent"] {
            let sum: u64 = ports.iter().filter_map(|port| port[count].as_u64()).sum();
            assert_eq!(report[count], sum, "{count}: {report:#}");
        }
        let seconds = report["by_second"].as_array().expect("seconds");
        let key = if role == "client" { "completed" } else { "accepted" };
        let by_second: u64 = seconds.iter().filter_map(|second| second[key].as_u64()).sum();
        assert_eq!((ports.len(), by_second), (2, 20_000), "{report:#}");
    }
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}

/// Clients and servers in one process on rings of their own, each on a thread: servers end when the clients have.
#[test]
fn a_process_with_both_roles_ends_by_itself() {
    let folder = std::env::temp_dir().join(format!("trafficengine-rings-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let files = [0, 1].map(|port| {
        let path = folder.join(format!("{port}.toml"));
        let text = format!(
            "[port]\ndevice = \"net_ring{port}\"\nmemory_mib = 128\n[link]\nnext_hop_mac = \"02:00:00:00:00:01\"\n\
             [tcp]\nrto_initial = \"5s\"\nrto_min = \"5s\"\n[script]\nkeys = 4\n\
             [client]\naddresses = [\"10.1.{port}.1\"]\ntargets = [\"10.2.{port}.1:80\"]\n\
             [load]\nmode = \"closed\"\nopen = 50\ntotal = 3000\n[server]\nlisten = [\"10.2.{port}.1:80\"]\n"
        );
        std::fs::write(&path, text).expect("a file");
        path
    });
    let json = folder.join("result.json");
    assert_eq!(wait(&mut start_all(&files, &json)), Some(0));
    let report = report(&json);
    assert_eq!(
        (&report["client"]["completed"], &report["server"]["completed"]),
        (&6000.into(), &6000.into()),
        "{report:#}"
    );
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}
