//! The engine on the software rig as ProxyEngine's tests find it: their file, their addresses, their records.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rig::process::Process;
use rig::{Place, Rig, RigOptions};
use rustix::process::Signal;
use serde_json::Value;

use crate::setup::{LIMIT, binary};

/// The second port of their machine has this address; clients and servers are both behind it.
const SERVERS: &str = "192.168.222.32";
/// Here clients are a machine of their own.
const CLIENTS: &str = "192.168.222.101";
/// The network of their `ipnet`.
const NETWORK: &str = "192.168.222.0/24";
/// `ipnet` and `engine.port` of their files.
const PROXY: &str = "192.168.222.1:999";

/// One engine at a time: each has two workers, and segments are counted exactly, none of which may be sent again for want of a core.
static ALONE: Mutex<()> = Mutex::new(());

/// A proxy at work.
pub(crate) struct Proxy {
    // Dropped in this order: nothing runs in a namespace that is gone.
    process: Process,
    rig: Rig,
    _alone: MutexGuard<'static, ()>,
}

impl Proxy {
    /// Raises a rig and starts the engine with the ancestors' file of this name; `None` when this machine cannot.
    ///
    /// Four words of the file are replaced. The NIC is a port of the rig; its core is the last one that this machine has; the namespace
    /// of its addresses is one of the test's own, as all files name the same and tests run beside each other; and the time from SYN to end
    /// is longer than that of a retransmission. Two cores stay two. One word is added: their card is imitated, for the rig's port has one
    /// queue and no Flow Director.
    pub(crate) fn start(name: &str) -> Option<Self> {
        Some(Self::start_before(name, 0)?.0)
    }

    /// The same before so many servers, which listen when it begins: it asks them at once what they can do.
    pub(crate) fn start_before(name: &str, servers: usize) -> Option<(Self, Servers)> {
        // A test that has failed leaves nothing behind.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let rig = Rig::for_test(RigOptions::default(), &[])?;
        for (place, address) in [(Place::Servers, SERVERS), (Place::Clients, CLIENTS)] {
            let add = ["address", "add", &format!("{address}/24"), "dev", "eth0"];
            rig.run(place, "ip", &add, LIMIT).expect("an address");
            // Payload is counted, so none is to be sent again because the machine does other things for 200 ms.
            let patient = [
                "route", "replace", NETWORK, "dev", "eth0", "src", address, "rto_min", "10s",
            ];
            rig.run(place, "ip", &patient, LIMIT).expect("a route");
        }
        let servers = Servers::start(&rig, servers);
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/ancestors/{name}.toml"));
        let text = fs::read_to_string(&shipped).expect("their file");
        let core = thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
        assert!(text.contains("\"7:00.0\"") && text.contains("cores = [1"));
        let text = text
            .replace("\"7:00.0\"", "\"dpdk:net_af_packet0,iface=pe-eng0\"")
            .replace("cores = [1, 2]", "cores = [0, 1]")
            .replace("\"nsvirtio00\"", &format!("\"{}\"", namespace_of(&rig)))
            .replace("{ name = \"dpdk:", "{ software_nic = \"82599\", name = \"dpdk:")
            .replace("cores = [1]", &format!("cores = [{core}]"))
            // Longer than `rto_min` above.
            .replace("established = 1800", "established = 25000");
        let file = rig.file("proxy.toml");
        fs::write(&file, text).expect("written");
        let mut command = rig.command(Place::Engine, &binary().to_string_lossy());
        // Its records go to `c_records.txt` in the folder where it runs.
        command
            .arg("run")
            .arg(&file)
            .args(["--report", "report.json"])
            .current_dir(rig.folder());
        let mut process = Process::start(&mut command, &rig.file("proxy.log")).expect("it starts");
        let ping = ["-n", "-q", "-c", "1", "-W", "1", "192.168.222.1"];
        // Of the servers' machine, too: a client whose server has no MAC address yet would be refused.
        let answers = |_: &Process| {
            let pings = |place| rig.run(place, "ping", &ping, LIMIT).is_ok();
            pings(Place::Clients) && pings(Place::Servers)
        };
        process
            .wait_for("answers to pings", LIMIT, answers)
            .unwrap_or_else(|error| panic!("{error}"));
        let proxy = Self {
            process,
            rig,
            _alone: alone,
        };
        Some((proxy, servers))
    }

    /// A client that connects to it and writes `words` at once.
    pub(crate) fn say(&self, words: &str) -> TcpStream {
        let connect = || {
            let mut stream = TcpStream::connect(PROXY)?;
            stream.write_all(words.as_bytes())?;
            Ok::<_, std::io::Error>(stream)
        };
        self.rig.at(Place::Clients, connect).expect("there").expect("connected")
    }

    /// Ends it and returns its counters and records, in the order in which the clients came.
    pub(crate) fn stop(mut self) -> (Counters, Vec<Record>) {
        self.process.signal(Signal::INT);
        let status = self.process.wait(LIMIT).expect("it ends");
        assert!(status.success(), "{status}: {}", self.process.printed());
        let report = fs::read_to_string(self.rig.file("report.json")).expect("a report");
        let report: Value = serde_json::from_str(&report).expect("JSON");
        for pointer in ["/buffers/leaked", "/records_lost"] {
            assert_eq!(report.pointer(pointer), Some(&Value::from(0)), "{pointer} in {report}");
        }
        let text = fs::read_to_string(self.rig.file("c_records.txt")).expect("records");
        let lines: Vec<&str> = text.lines().collect();
        let mut records: Vec<Record> = lines.chunks(2).map(Record::read).collect();
        records.sort_by_key(|record| record.start);
        (Counters(report), records)
    }
}

/// The engine has a mount namespace of its own: what it removes there leaves the name of its network namespace here.
impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = fs::remove_file(Path::new("/run/netns").join(namespace_of(&self.rig)));
    }
}

/// The network namespace of the engine's addresses.
fn namespace_of(rig: &Rig) -> String {
    format!("{}-kernel", rig.prefix())
}

/// What the engine has counted.
#[derive(Debug)]
pub(crate) struct Counters(Value);

impl Counters {
    /// A TCP counter of one side, under the name that it has there, too.
    pub(crate) fn count(&self, side: &str, name: &str) -> u64 {
        let number = self.0["counters"][side][name].as_u64();
        number.unwrap_or_else(|| panic!("no {side} {name} in {}", self.0["counters"]))
    }
}

/// What two lines of `c_records.txt` say.
#[derive(Debug)]
pub(crate) struct Record {
    /// Address and port.
    pub(crate) client: String,
    /// Name, address and port; `None` when none was chosen.
    pub(crate) server: Option<String>,
    /// Bytes to the server and to the client.
    pub(crate) bytes: [usize; 2],
    pub(crate) client_states: Vec<String>,
    pub(crate) server_states: Vec<String>,
    causes: [String; 2],
    start: u64,
}

impl Record {
    fn read(lines: &[&str]) -> Self {
        let [client, server] = lines else {
            panic!("half a record: {lines:?}")
        };
        let (_, client) = client.split_once("(Client, ").expect("the client's half");
        let (_, server) = server.split_once("(Server, ").expect("the server's half");
        let (head, client_states, client_tail) = split_states(client);
        let (_, server_states, server_tail) = split_states(server);
        let [address, _listener, _local, chosen, to_server, to_client, ..] = head.split(", ").collect::<Vec<_>>()[..]
        else {
            panic!("too little: {head}")
        };
        // "3/24 to server": packets and bytes.
        let bytes = |field: &str| {
            let count = field.split(['/', ' ']).nth(1).expect("bytes");
            count.parse().expect("a number")
        };
        let (client_cause, rest) = client_tail.split_once(", ").expect("a cause");
        let (server_cause, _) = server_tail.split_once(", ").expect("a cause");
        Self {
            client: address.to_owned(),
            server: (chosen != "-").then(|| chosen.to_owned()),
            bytes: [bytes(to_server), bytes(to_client)],
            client_states,
            server_states,
            causes: [client_cause, server_cause].map(str::to_owned),
            start: rest
                .split(", ")
                .next()
                .and_then(|start| start.parse().ok())
                .expect("a time"),
        }
    }

    pub(crate) fn client_cause(&self) -> &str {
        &self.causes[0]
    }

    pub(crate) fn server_cause(&self) -> &str {
        &self.causes[1]
    }
}

/// What stands before, in and behind the first brackets.
fn split_states(half: &str) -> (&str, Vec<String>, &str) {
    let (head, rest) = half.split_once('[').expect("states");
    let (states, tail) = rest.split_once("], ").expect("the end of the states");
    (head, states.split(", ").map(str::to_owned).collect(), tail)
}

/// Their listeners, one after the other from port 12345: each reads once, thanks in its name and closes.
pub(crate) struct Servers(Arc<Mutex<Vec<(usize, String)>>>);

impl Servers {
    fn start(rig: &Rig, count: usize) -> Self {
        let heard = Arc::default();
        for index in 0..count {
            let at = SocketAddr::new(SERVERS.parse().expect("an address"), 12345 + index as u16);
            let bind = || TcpListener::bind(at);
            let listener = rig.at(Place::Servers, bind).expect("there").expect("bound");
            let heard = Arc::clone(&heard);
            // Ends with the test program.
            thread::spawn(move || serve(&listener, index, &heard));
        }
        Self(heard)
    }

    /// Which server was told what, in order.
    pub(crate) fn heard(&self) -> Vec<(usize, String)> {
        self.0.lock().expect("no server has panicked").clone()
    }
}

fn serve(listener: &TcpListener, index: usize, heard: &Mutex<Vec<(usize, String)>>) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
        let mut words = [0; 256];
        let Ok(length) = stream.read(&mut words) else { continue };
        let words = String::from_utf8_lossy(&words[..length]).into_owned();
        heard.lock().expect("no server has panicked").push((index, words));
        let _ = stream.write_all(format!("Thank You from server {}", index + 1).as_bytes());
    }
}
