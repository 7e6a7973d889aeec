//! The engine as a process on the rig: its configuration written, started, waited for, stopped, its report read.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::process::Process;
use crate::servers::{HTTP, IPERF, NUMBERS, TLS};
use crate::{Arms, HOSTS, Place, Rig, RigError, SERVERS};

/// DPDK takes about a second to start; a machine with other work takes longer, and an emulated one beside it much longer.
const STARTING: Duration = Duration::from_secs(120);
/// Drain time, and what a loaded machine needs on top of it.
const STOPPING: Duration = Duration::from_secs(20);

/// How the engine reaches its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Driver {
    /// Works on every kernel.
    #[default]
    AfPacket,
    /// Faster; one queue on veth.
    AfXdp,
}

impl Driver {
    /// The device of port `number`, as DPDK names it.
    pub fn device(self, number: usize) -> String {
        let driver = match self {
            Self::AfPacket => "net_af_packet",
            Self::AfXdp => "net_af_xdp",
        };
        format!("{driver}{number},iface=pe-eng{number}")
    }
}

/// How a listener chooses among the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// By the host of an HTTP request: [`HOSTS`] in the order of the servers.
    HttpHost,
    /// By the server name of a ClientHello: likewise.
    TlsSni,
    /// The first number of the payload, modulo the number of servers.
    FirstNumber,
    /// Everything to this server.
    Always(usize),
    /// Everything to this server as soon as the client's handshake is complete: the server speaks first.
    AtHandshake(usize),
    /// Everything to this server, which gets the client's own SYN.
    AtSyn(usize),
}

/// A listening port of the engine, for both address families, and the port of the servers behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name in the configuration.
    pub name: &'static str,
    /// The engine's port and the servers' port.
    pub port: u16,
    /// Which server gets what.
    pub choice: Choice,
}

/// A service for each of the programs in [`crate::servers`].
pub const SERVICES: [Service; 4] = [
    Service {
        name: "http",
        port: HTTP,
        choice: Choice::HttpHost,
    },
    Service {
        name: "tls",
        port: TLS,
        choice: Choice::TlsSni,
    },
    Service {
        name: "numbers",
        port: NUMBERS,
        choice: Choice::FirstNumber,
    },
    Service {
        name: "iperf",
        port: IPERF,
        choice: Choice::Always(0),
    },
];

/// What the engine's configuration is written from.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Its ports' driver.
    pub driver: Driver,
    /// Its listeners.
    pub services: Vec<Service>,
    /// Lines for the `[engine]` table.
    pub engine: String,
    /// Lines for the `[[port]]` table of the port that the servers are behind.
    pub server_port: String,
    /// Tables for the end of the file.
    pub tables: String,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            driver: Driver::default(),
            services: SERVICES.to_vec(),
            engine: "drain = \"1s\"\n".into(),
            server_port: String::new(),
            tables: String::new(),
        }
    }
}

/// The engine at work. Dropping it kills it; [`Engine::stop`] ends it as an operator would.
#[derive(Debug)]
pub struct Engine {
    process: Process,
    report: PathBuf,
    records: PathBuf,
}

impl Engine {
    /// Writes the configuration, starts the engine and waits until it answers pings on both address families.
    ///
    /// # Errors
    /// When it ends instead, or does not answer in time; with what it printed.
    pub fn start(rig: &Rig, binary: &Path, options: &EngineOptions) -> Result<Self, RigError> {
        let records = rig.file("records.jsonl");
        let text = configuration(rig, options, &records);
        Self::start_with(rig, binary, &text, records)
    }

    /// The same with a configuration that is there, which writes its records to the file `records` as JSON lines.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_with(rig: &Rig, binary: &Path, configuration: &str, records: PathBuf) -> Result<Self, RigError> {
        Self::start_with_options(rig, binary, (configuration, records), &[])
    }

    /// The same with more options of `proxyengine run`.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_with_options(
        rig: &Rig,
        binary: &Path,
        (configuration, records): (&str, PathBuf),
        options: &[&str],
    ) -> Result<Self, RigError> {
        let words = [&["run"], options].concat();
        Self::launch(rig, binary, &words, configuration, records)
    }

    /// As [`Engine::start`], for a program of its own that takes the configuration as its first argument.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_program(rig: &Rig, program: &Path, options: &EngineOptions) -> Result<Self, RigError> {
        let records = rig.file("records.jsonl");
        let text = configuration(rig, options, &records);
        Self::launch(rig, program, &[], &text, records)
    }

    fn launch(
        rig: &Rig,
        binary: &Path,
        command_words: &[&str],
        configuration: &str,
        records: PathBuf,
    ) -> Result<Self, RigError> {
        let (file, report) = (rig.file("engine.toml"), rig.file("report.json"));
        fs::write(&file, configuration).map_err(RigError::io(format!("writing {}", file.display())))?;
        let mut command = rig.command(Place::Engine, &binary.to_string_lossy());
        command
            .args(command_words)
            .arg(&file)
            .arg("--report")
            .arg(&report)
            .env("RUST_BACKTRACE", "1");
        let mut process = Process::start(&mut command, &rig.file("engine.log"))?;
        let addresses = rig.engine_addresses();
        process.wait_for("answers to pings", STARTING, |_| {
            addresses.iter().all(|&address| answers(rig, address))
        })?;
        Ok(Self {
            process,
            report,
            records,
        })
    }

    /// The process, for signals and its log.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Waits until the engine has told what it has learned of each of these servers, by its name in the configuration. It
    /// serves before that, but promises clients less (`[syn_ack]` in docs/configuration.md).
    ///
    /// # Errors
    /// When it ends instead, or does not tell in time; with what it printed.
    pub fn wait_until_known(&mut self, servers: &[&str]) -> Result<(), RigError> {
        self.process.wait_for("what its servers can do", STARTING, |process| {
            let printed = process.printed();
            servers
                .iter()
                .all(|server| printed.contains(&format!("server {server}: MSS")))
        })
    }

    /// Ends the engine with `signal` and waits for it.
    ///
    /// # Errors
    /// When it does not end in time, ends with an error, or leaves no readable report.
    pub fn stop(self, signal: Signal) -> Result<Report, RigError> {
        self.process.signal(signal);
        self.finish()
    }

    /// Waits for the end of an engine that has been told to end.
    ///
    /// # Errors
    /// As [`Engine::stop`].
    pub fn finish(mut self) -> Result<Report, RigError> {
        let status = self.process.wait(STOPPING)?;
        if !status.success() {
            let output = self.process.printed();
            return Err(RigError::Failed {
                command: "proxyengine run".into(),
                status,
                output,
            });
        }
        Ok(Report {
            totals: read_json(&self.report)?,
            records: read_records(&self.records)?,
            log: self.process.printed(),
        })
    }

    /// The records written so far.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn records(&self) -> Result<Vec<Record>, RigError> {
        read_records(&self.records)
    }

    /// Leaves the engine running when this value is gone.
    pub fn release(self) {
        self.process.release();
    }
}

fn answers(rig: &Rig, address: IpAddr) -> bool {
    let answered = rig.run(
        Place::Clients,
        "ping",
        &["-n", "-q", "-c", "1", "-W", "1", &address.to_string()],
        Duration::from_secs(5),
    );
    if answered.is_err() {
        thread::sleep(Duration::from_millis(100));
    }
    answered.is_ok()
}

/// What a stopped engine has left.
#[derive(Debug)]
pub struct Report {
    /// The file of `--report`.
    pub totals: Value,
    /// The session records.
    pub records: Vec<Record>,
    /// What it printed.
    pub log: String,
}

impl Report {
    /// A number of the report, by its JSON pointer (RFC 6901): `/buffers/leaked`.
    ///
    /// # Panics
    /// When there is no number.
    pub fn number(&self, pointer: &str) -> u64 {
        let number = self.totals.pointer(pointer).and_then(Value::as_u64);
        number.unwrap_or_else(|| panic!("the report has no number at {pointer}: {}", self.totals))
    }
}

/// One session record, as far as the rig looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The client.
    pub client: SocketAddr,
    /// Who spoke for it with a PROXY header, if anyone did.
    pub peer: Option<SocketAddr>,
    /// The server's address; `None` when none was chosen.
    pub server: Option<SocketAddr>,
    /// How many servers were called, the last of which is `server`.
    pub servers_tried: u64,
    /// Payload bytes from client to server.
    pub bytes_to_server: u64,
    /// Payload bytes from server to client.
    pub bytes_to_client: u64,
    /// States that the client side went through.
    pub client_states: Vec<String>,
    /// States that the server side went through.
    pub server_states: Vec<String>,
    /// Why it ended, by the client side.
    pub client_cause: String,
    /// Why it ended, by the server side.
    pub server_cause: String,
}

impl Record {
    fn from_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value[name].as_str();
        let states = |side: &str| {
            let of_side = value["states"].as_array()?.iter().filter(|state| state["side"] == side);
            of_side
                .map(|state| state["state"].as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>()
        };
        let client: IpAddr = text("client")?.parse().ok()?;
        Some(Self {
            client: SocketAddr::new(client, u16::try_from(value["client_port"].as_u64()?).ok()?),
            peer: match text("peer") {
                Some(peer) => {
                    let port = u16::try_from(value["peer_port"].as_u64()?).ok()?;
                    Some(SocketAddr::new(peer.parse().ok()?, port))
                }
                None => None,
            },
            server: match text("server_address") {
                Some(address) => Some(address.parse().ok()?),
                None => None,
            },
            servers_tried: value["servers_tried"].as_u64()?,
            bytes_to_server: value["bytes_to_server"].as_u64()?,
            bytes_to_client: value["bytes_to_client"].as_u64()?,
            client_states: states("Client")?,
            server_states: states("Server")?,
            client_cause: text("client_cause")?.to_owned(),
            server_cause: text("server_cause")?.to_owned(),
        })
    }
}

fn read_json(path: &Path) -> Result<Value, RigError> {
    let text = fs::read(path).map_err(RigError::io(format!("reading {}", path.display())))?;
    serde_json::from_slice(&text).map_err(|error| RigError::Unreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

fn read_records(path: &Path) -> Result<Vec<Record>, RigError> {
    let text = fs::read_to_string(path).map_err(RigError::io(format!("reading {}", path.display())))?;
    let record_of = |line: &str| {
        let value = serde_json::from_str(line).ok();
        value
            .as_ref()
            .and_then(Record::from_json)
            .ok_or_else(|| RigError::Unreadable {
                path: path.to_owned(),
                reason: format!("not a session record: {line}"),
            })
    };
    text.lines().map(record_of).collect()
}

/// The engine's configuration for this rig.
pub fn configuration(rig: &Rig, options: &EngineOptions, records: &Path) -> String {
    let core = thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
    let mut text = format!(
        "[engine]\nname = \"{}\"\ncores = [{core}]\n{}\n",
        rig.prefix(),
        options.engine
    );
    let segments = match rig.options().arms {
        Arms::One => vec![("clients", rig.engine_addresses())],
        Arms::Two => vec![
            ("clients", rig.engine_addresses()),
            ("servers", rig.engine_addresses_for_servers()),
        ],
    };
    for (number, (name, [v4, v6])) in segments.into_iter().enumerate() {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "[[port]]\nname = \"{name}\"\ndevice = \"{}\"\nmtu = {}\naddresses = [\"{v4}/24\", \"{v6}/64\"]",
            options.driver.device(number),
            rig.options().mtu
        );
    }
    // Lines now belong to the table of the last port.
    text += &options.server_port;
    text.push('\n');
    for service in &options.services {
        for (family, address) in ["4", "6"].into_iter().zip(rig.engine_addresses()) {
            text += &listener(rig, *service, family, address);
        }
    }
    let _ = writeln!(text, "[records]\nfile = \"{}\"\nformat = \"json\"\n", records.display());
    text + &options.tables
}

/// One listener with its pools: the servers of its own address family.
fn listener(rig: &Rig, service: Service, family: &str, address: IpAddr) -> String {
    let Service { name, port, choice } = service;
    let name = format!("{name}{family}");
    let server = |index: usize| {
        let [v4, v6] = rig.server_addresses(index);
        let at = SocketAddr::new(if address.is_ipv4() { v4 } else { v6 }, port);
        format!("{{ name = \"{name}-{}\", address = \"{at}\" }}", index + 1)
    };
    let each_its_own = |key: &str| {
        let rule = |index| {
            format!(
                "    {{ {key} = \"{}\", pool = \"{name}-{}\" }},\n",
                HOSTS[index],
                index + 1
            )
        };
        let pool = |index| {
            format!(
                "[[pool]]\nname = \"{name}-{}\"\nservers = [{}]\n\n",
                index + 1,
                server(index)
            )
        };
        let rules = format!("rules = [\n{}]\n", (0..SERVERS).map(rule).collect::<String>());
        (rules, (0..SERVERS).map(pool).collect::<String>())
    };
    let one_pool =
        |servers: Vec<String>| format!("[[pool]]\nname = \"{name}\"\nservers = [{}]\n\n", servers.join(", "));
    let (rules, pools) = match choice {
        Choice::HttpHost => each_its_own("http_host"),
        Choice::TlsSni => each_its_own("tls_sni"),
        Choice::FirstNumber => (
            format!("rules = [{{ first_number = true, pool = \"{name}\" }}]\n"),
            one_pool((0..SERVERS).map(server).collect()),
        ),
        Choice::Always(index) => (format!("default = \"{name}\"\n"), one_pool(vec![server(index)])),
        Choice::AtHandshake(index) => (
            format!("bind = \"handshake\"\ndefault = \"{name}\"\n"),
            one_pool(vec![server(index)]),
        ),
        Choice::AtSyn(index) => (
            format!("bind = \"syn\"\ndefault = \"{name}\"\n"),
            one_pool(vec![server(index)]),
        ),
    };
    let at = SocketAddr::new(address, port);
    format!("[[listener]]\nname = \"{name}\"\naddresses = [\"{at}\"]\nports = [\"clients\"]\n{rules}\n{pools}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"start_ns":1500,"client":"fd77::101","client_port":40000,"listener":"http6",
        "listener_address":"[fd77::1]:80","local_address":"fd77::1","local_port":5000,"server":"http6-2",
        "server_address":"[fd77::12]:80","servers_tried":1,"core":1,"packets_to_server":7,"bytes_to_server":74,
        "packets_to_client":6,"bytes_to_client":160,"client_cause":"PassiveClose","server_cause":"ActiveClose",
        "flags":["cookie"],"states":[{"side":"Client","state":"SynReceived","us":0},
        {"side":"Server","state":"SynSent","us":35},{"side":"Client","state":"Closed","us":95}]}"#;

    #[test]
    fn a_session_record_is_read() {
        let record = Record::from_json(&serde_json::from_str(RECORD).expect("JSON")).expect("a record");
        assert_eq!(record.client, "[fd77::101]:40000".parse().expect("an address"));
        assert_eq!(record.server, Some("[fd77::12]:80".parse().expect("an address")));
        assert_eq!((record.bytes_to_server, record.bytes_to_client), (74, 160));
        assert_eq!(record.servers_tried, 1);
        assert_eq!(record.client_states, ["SynReceived", "Closed"]);
        assert_eq!(record.server_states, ["SynSent"]);
    }

    #[test]
    fn a_record_without_a_server_is_read_and_one_without_a_client_is_not() {
        let mut value: Value = serde_json::from_str(RECORD).expect("JSON");
        value["server_address"] = Value::Null;
        assert_eq!(Record::from_json(&value).expect("a record").server, None);
        value["client"] = Value::Null;
        assert_eq!(Record::from_json(&value), None);
    }
}
