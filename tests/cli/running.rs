//! The engine from its start to its report, on DPDK's rings.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use control::http::{Endpoint, client};

use crate::watching::{served, served_with, socket};
use crate::{GOOD, Place, code, stderr};

/// A program that runs, killed if the test fails.
pub(crate) struct Running {
    child: Child,
}

impl Running {
    pub(crate) fn start(place: &Place, arguments: &[&str]) -> Self {
        Self::start_in(place, arguments, &[])
    }

    /// With more in its environment.
    fn start_in(place: &Place, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = place.command(arguments);
        command
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(place.path("stderr")).expect("create"));
        Self {
            child: command.spawn().expect("start the program"),
        }
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args(["-s", signal, &self.child.id().to_string()])
            .status();
        assert!(status.expect("kill").success());
    }

    /// Waits for the end; gives exit code and standard output.
    pub(crate) fn wait(mut self) -> (i32, String) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.child.try_wait().expect("wait").is_none() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut said = String::new();
        self.child
            .stdout
            .take()
            .expect("pipe")
            .read_to_string(&mut said)
            .expect("read");
        let status = self.child.wait().expect("wait");
        (
            status.code().unwrap_or_else(|| panic!("ended by a signal: {status}")),
            said,
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if it has ended, which is what it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn wait_until(what: &str, place: &Place, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        let said = fs::read_to_string(place.path("stderr")).unwrap_or_default();
        assert!(Instant::now() < deadline, "not {what}: {said}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn wait_until_running(place: &Place) {
    wait_until("running", place, || says(place, "running; SIGINT"));
}

pub(crate) fn says(place: &Place, text: &str) -> bool {
    fs::read_to_string(place.path("stderr")).is_ok_and(|said| said.contains(text))
}

fn json(path: &Path) -> serde_json::Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

#[test]
fn sigterm_and_sigint_end_it_in_order_with_a_report() {
    for signal in ["TERM", "INT"] {
        let place = Place::new(GOOD);
        let program = Running::start(&place, &["engine.toml", "--report", "report.json"]);
        wait_until_running(&place);
        program.signal(signal);
        let (code, said) = program.wait();
        assert_eq!(
            code,
            0,
            "{signal}: {}",
            fs::read_to_string(place.path("stderr")).unwrap_or_default()
        );
        assert!(said.contains("none lost") && said.contains("SentSynAck"), "{said}");
        let report = json(&place.path("report.json"));
        assert_eq!((&report["records"], &report["records_lost"]), (&0.into(), &0.into()));
        let buffers = &report["buffers"];
        assert_eq!(buffers["leaked"], 0);
        assert_eq!(buffers["available_before"], buffers["available_after"]);
        assert!(buffers["capacity"].as_u64() >= Some(4096), "{buffers}");
        assert_eq!(
            report["counters"]["tcp_client"].as_object().expect("counters").len(),
            18
        );
        assert_eq!(
            report["counters"]["tcp_server"].as_object().expect("counters").len(),
            18
        );
        assert_eq!(report["ports"][0]["name"], "left");
        assert_eq!(fs::read_to_string(place.path("records.json")).expect("records"), "");
    }
}

/// The ring gives back what the engine sends: its own announcements, which it must know and drop.
#[test]
fn sigusr1_shows_the_counters_and_goes_on() {
    let place = Place::new(GOOD);
    let program = Running::start(&place, &["run", "engine.toml", "--report", "report.json"]);
    wait_until_running(&place);
    // Until all that it says at its start has come back to it.
    let mut reports = 0;
    let report = loop {
        program.signal("USR1");
        wait_until("reported", &place, || place.path("report.json").exists());
        let report = json(&place.path("report.json"));
        reports += 1;
        let own = report["counters"]["neighbour_drops"]["own_frame"].as_u64();
        // Three announcements and a question; a report of groups does not parse.
        if own >= Some(4) {
            break report;
        }
        assert!(reports < 1_000, "{report}");
        fs::remove_file(place.path("report.json")).expect("one that was read");
    };
    assert_eq!(report["buffers"]["leaked"], serde_json::Value::Null);
    // Said again after a second.
    let announced = &report["counters"]["neighbour"]["announced"];
    assert!([3, 6].iter().any(|count| announced == count), "{announced}");
    assert_eq!(report["next_hops"]["total"], 1);
    wait_until("pictured", &place, || {
        says(&place, "INFO ] core 0   load ") || says(&place, "INFO  core 0   load ")
    });
    assert!(report["cores"][0]["busy_ns"].as_u64() > Some(0), "{report}");
    assert!(report["counters"]["waiting"]["rx"].is_u64() || report["counters"]["waiting"].is_null());
    program.signal("TERM");
    let (code, said) = program.wait();
    assert_eq!(code, 0);
    assert_eq!(
        said.matches("next hops 0/1").count(),
        reports + 1,
        "one more at the end: {said}"
    );
}

#[test]
fn progress_is_a_line_a_second() {
    let place = Place::new(GOOD);
    let program = Running::start(&place, &["engine.toml", "--progress"]);
    wait_until("in progress", &place, || says(&place, " s  open 0  records 0"));
    wait_until("a line for the core", &place, || says(&place, "core 0   load "));
    assert!(!says(&place, "imbalance"), "there is one core");
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
}

#[test]
fn counters_make_way_for_records_on_standard_output() {
    let place = Place::new(&GOOD.replace("RECORDS", "-").replace("\"json\"", "\"csv\""));
    let program = Running::start(&place, &["engine.toml"]);
    wait_until_running(&place);
    program.signal("TERM");
    let (code, said) = program.wait();
    assert_eq!(code, 0);
    assert!(
        said.starts_with("start_ns,client,") && said.lines().count() == 1,
        "{said}"
    );
    assert!(says(&place, "none lost"));
}

#[test]
fn a_missing_interface_is_a_sentence_that_says_what_to_do() {
    let output = Place::new(&GOOD.replace("net_ring0", "net_af_packet0,iface=no-such-if0")).output(&["engine.toml"]);
    assert_eq!(code(&output), 1);
    let said = stderr(&output);
    assert!(
        said.contains("did not start") && said.contains("no-such-if0") && said.contains("ip link"),
        "{said}"
    );
}

#[test]
fn too_little_memory_names_the_key() {
    let output = Place::new(&GOOD.replace("buffers = 4096", "buffers = 200000")).output(&["engine.toml"]);
    assert_eq!(code(&output), 1);
    assert!(
        stderr(&output).contains("memory_mib in [engine] is 64, and "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_core_that_is_not_there_is_named() {
    let output = Place::new(&GOOD.replace("cores = [0]", "cores = [4000]")).output(&["engine.toml"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("core 4000"), "{}", stderr(&output));
}

#[test]
fn records_that_cannot_be_written_are_a_sentence() {
    let place = Place::new(&GOOD.replace("RECORDS", "/nonexistent/records"));
    let output = place.output(&["engine.toml"]);
    assert_eq!(code(&output), 1);
    assert!(
        stderr(&output).contains("cannot be written to /nonexistent/records"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_report_that_cannot_be_written_is_an_exit_code() {
    let place = Place::new(GOOD);
    let program = Running::start(&place, &["engine.toml", "--report", "/nonexistent/report"]);
    wait_until_running(&place);
    program.signal("TERM");
    assert_eq!(program.wait().0, 5);
    assert!(says(&place, "/nonexistent/report"));
}

#[test]
fn a_running_engine_answers_on_its_socket_and_takes_it_away() {
    let sockets = "[control]\nsocket = \"PLACE/control\"\nhttp = \"PLACE/http\"\n[records]";
    let place = Place::new(GOOD);
    let folder = place.path("").display().to_string();
    let config = fs::read_to_string(place.path("engine.toml")).expect("read");
    let config = config.replace("[records]", &sockets.replace("PLACE/", &folder));
    fs::write(place.path("engine.toml"), config).expect("write");
    let socket = place.path("control").display().to_string();
    let ctl = |arguments: &[&str]| place.output(&[&["ctl", "--socket", &socket, "show"], arguments].concat());
    assert_eq!(code(&ctl(&["stat"])), 1, "nobody is there");

    let program = Running::start(&place, &["engine.toml"]);
    wait_until_running(&place);
    let mode = fs::metadata(&socket).expect("socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    for part in proxyengine::status::PARTS {
        let output = ctl(&[part, "--json"]);
        assert_eq!(code(&output), 0, "{part}: {}", stderr(&output));
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(said.is_array() || part == "stat", "{said}");
    }
    let servers = String::from_utf8(ctl(&["servers"]).stdout).expect("text");
    assert!(
        servers.lines().count() == 2 && servers.contains("10.0.0.9:80"),
        "{servers}"
    );
    let neighbours = String::from_utf8(ctl(&["neighbours"]).stdout).expect("text");
    assert!(neighbours.contains("10.0.0.9"), "{neighbours}");
    let ask = |method, path| client::ask(&Endpoint::Unix(place.path("http")), method, path).expect("an answer");
    wait_until("ready", &place, || ask("GET", "/ready").0 == 200);
    wait_until("healthy", &place, || ask("GET", "/healthz") == (200, "ok\n".to_owned()));
    let (status, page) = ask("GET", "/");
    assert!(status == 200 && page.starts_with("<!doctype html>"), "{page}");
    let whole: serde_json::Value = serde_json::from_str(&ask("GET", "/api/v1/status").1).expect("JSON");
    assert_eq!(
        (&whole["pools"][0]["out"], &whole["servers"][0]["state"]),
        (&0.into(), &"up".into())
    );
    assert_eq!((ask("POST", "/ready").0, ask("GET", "/other").0), (405, 404));
    let (status, metrics) = ask("GET", "/metrics");
    assert!(
        status == 200 && metrics.contains("\nproxyengine_connections_open 0\n"),
        "{metrics}"
    );

    fs::rename(place.path("records.json"), place.path("records.1")).expect("rename");
    let reopened = place.output(&["ctl", "--socket", &socket, "records", "reopen"]);
    assert_eq!(code(&reopened), 0, "{}", stderr(&reopened));
    wait_until("opened again", &place, || place.path("records.json").exists());

    // A second engine finds the place taken, and says so before it opens a port.
    let second = place.output(&["engine.toml"]);
    assert!(
        code(&second) == 1 && stderr(&second).contains("[control]"),
        "{}",
        stderr(&second)
    );
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
    assert!(!place.path("control").exists() && !place.path("http").exists());
}

#[test]
fn the_service_manager_is_told() {
    let place = Place::new(GOOD);
    let path = place.path("notify");
    let manager = UnixDatagram::bind(&path).expect("socket");
    manager
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("timeout");
    let heard = |wanted: &str| {
        let mut bytes = [0; 512];
        loop {
            let length = match manager.recv(&mut bytes) {
                Ok(length) => length,
                // signal(7): a wait with a time limit is not begun again after a stop.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => panic!("never {wanted}: {error}"),
            };
            if String::from_utf8_lossy(&bytes[..length]).contains(wanted) {
                return;
            }
        }
    };
    let path = path.display().to_string();
    let environment = [("NOTIFY_SOCKET", path.as_str()), ("WATCHDOG_USEC", "2000000")];
    let program = Running::start_in(&place, &["engine.toml"], &environment);
    heard("READY=1");
    heard("STATUS=0 connections open");
    heard("WATCHDOG=1");
    heard("WATCHDOG=1");
    program.signal("HUP");
    heard("WATCHDOG_USEC=32000000");
    heard("WATCHDOG_USEC=2000000");
    program.signal("TERM");
    heard("STOPPING=1");
    assert_eq!(program.wait().0, 0);
}

/// A line of proc_pid_status(5).
fn status(thread: &Path, field: &str) -> String {
    let text = fs::read_to_string(thread.join("status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.unwrap_or_default().trim().to_owned()
}

#[test]
fn threads_give_up_what_they_do_not_need() {
    const FILTERED: &str = "2";
    /// CAP_DAC_OVERRIDE: capabilities(7).
    const DAC_OVERRIDE: u64 = 1 << 1;
    /// With CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN and CAP_BPF.
    const OF_MAIN: u64 = DAC_OVERRIDE | 1 << 12 | 1 << 13 | 1 << 21 | 1 << 39;
    // Nobody answers there, at once.
    let names = "[[pool]]\nname = \"named\"\nservers = [{ name = \"n\", address = \"n.example.net:80\" }]\n\
                 [dns]\nservers = [\"127.0.0.1:9\"]\ntimeout = \"50ms\"\n";
    let (place, program) = served_with(names);
    // It answers when it has begun.
    assert_eq!(
        code(&place.output(&["ctl", "--socket", &socket(&place), "show", "stat"])),
        0
    );
    let process = Path::new("/proc").join(program.child.id().to_string());
    let number = |of: &Path, name: &str| u64::from_str_radix(&status(of, name), 16).expect("a number");
    // DPDK's own thread gives them up in its time.
    wait_until("without capabilities", &place, || {
        threads_of(&process).all(|thread| number(&thread, "CapPrm") & !OF_MAIN == 0)
    });
    let mut seen = Vec::new();
    for thread in threads_of(&process) {
        let name = status(&thread, "Name");
        assert_eq!(status(&thread, "Seccomp"), FILTERED, "{name}");
        let allowed = match name.as_str() {
            "control" | "log" | "record sink" => DAC_OVERRIDE,
            "signals" | "records" | "checks" | "resolver" => 0,
            name if name.starts_with("core-") => 0,
            _ => OF_MAIN,
        };
        assert_eq!(number(&thread, "CapPrm") & !allowed, 0, "{name}");
        assert_eq!(number(&thread, "CapEff") & !allowed, 0, "{name}");
        if allowed != OF_MAIN {
            assert_eq!(status(&thread, "NoNewPrivs"), "1", "{name}");
        }
        seen.push(name);
    }
    for name in [
        "checks",
        "control",
        "core-0",
        "log",
        "record sink",
        "records",
        "resolver",
        "signals",
    ] {
        assert!(seen.iter().any(|seen| seen == name), "no {name} among {seen:?}");
    }
    let filters = |thread: &Path| status(thread, "Seccomp_filters").parse::<u32>().expect("a number");
    let more = |name| threads_of(&process).any(|of| status(&of, "Name") == name && filters(&of) > filters(&process));
    wait_until("restricted", &place, || more("resolver") && more("checks"));
    wait_until("failed", &place, || {
        let shown = place.output(&["ctl", "--socket", &socket(&place), "show", "names", "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        shown[0]["name"] == "n.example.net" && shown[0]["failures"].as_u64() > Some(1)
    });
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
    assert!(!says(&place, "not permitted") && !says(&place, "panicked"));
}

/// What reads the bytes of strangers has filters of its own behind those of all: it answers, writes its journal, lends a capture's
/// thread, and its calls that are none of a server's fail.
#[test]
fn who_answers_strangers_makes_the_calls_of_a_server_only() {
    let (place, program) = served();
    let process = Path::new("/proc").join(program.child.id().to_string());
    let socket = socket(&place);
    let ctl = |arguments: &[&str]| {
        let output = place.output(&[&["ctl", "--socket", &socket], arguments].concat());
        assert_eq!(code(&output), 0, "{arguments:?}: {}", stderr(&output));
    };
    for asked in [
        &["show", "stat"][..],
        &["show", "wrong"],
        &["show", "ports"],
        &["diff"],
        &["show", "connections"],
        &["drain", "server", "one"],
        &["ready", "server", "one"],
        &["set", "log-level", "info, proxyengine=debug"],
        &["records", "reopen"],
        &["reload"],
    ] {
        ctl(asked);
    }
    assert!(place.path("journal").exists(), "no journal is written");
    let filters = |thread: &Path| status(thread, "Seccomp_filters").parse::<u32>().expect("a number");
    let control = threads_of(&process).find(|thread| status(thread, "Name") == "control");
    assert!(filters(&control.expect("a thread that answers")) > filters(&process));
    let captured = place.path("captured.pcapng");
    let captured = captured.to_str().expect("a path in UTF-8");
    ctl(&["capture", "start", "--file", captured, "--duration", "100ms"]);
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
    assert!(!Path::new(&socket).exists(), "the socket is left");
    let said = fs::read_to_string(place.path("stderr")).expect("read");
    assert!(!said.contains("not permitted") && !said.contains("denied"), "{said}");
}

fn threads_of(process: &Path) -> impl Iterator<Item = PathBuf> {
    let threads = fs::read_dir(process.join("task")).expect("its threads");
    threads.map(|thread| thread.expect("a thread").path())
}

#[test]
fn sigusr2_opens_the_records_again() {
    let place = Place::new(GOOD);
    let program = Running::start(&place, &["engine.toml"]);
    wait_until_running(&place);
    fs::rename(place.path("records.json"), place.path("records.1")).expect("rename");
    program.signal("USR2");
    wait_until("opened again", &place, || place.path("records.json").exists());
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
}

/// A driver that never returns holds the main thread: `net_pcap` opens a pipe that nobody writes to. Signals are not lost on it.
#[test]
fn a_start_that_hangs_in_a_driver_is_ended_by_the_second_signal() {
    let place = Place::new(GOOD);
    let pipe = place.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let device = format!(
        "net_pcap0,rx_pcap={},tx_pcap={}",
        pipe.display(),
        place.path("sent.pcap").display()
    );
    let config = fs::read_to_string(place.path("engine.toml")).expect("read");
    fs::write(place.path("engine.toml"), config.replace("net_ring0", &device)).expect("write");
    let program = Running::start(&place, &["engine.toml"]);
    wait_until("opening", &place, || says(&place, "port left: opening"));
    program.signal("INT");
    wait_until("told of the first", &place, || {
        says(&place, "a second one ends at once")
    });
    program.signal("TERM");
    let (code, _) = program.wait();
    assert_eq!(code, 1);
    assert!(says(&place, "ended while a port was being opened"));
}
