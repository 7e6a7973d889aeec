//! `mmproxy-bench`: compares mmproxy with its peers, and with no proxy at all.
//!
//! Everything runs over loopback or a veth pair ([`place`]), each measurement in network namespaces of its own: tens of thousands of connections in
//! TIME-WAIT, which one measurement leaves, would slow the next down. In each round every system is measured in every
//! column, the order turning from round to round; a system's figure is divided by that of no proxy in the same round, and
//! the median of these ratios is reported with the interval that holds it with 95 % (by order statistics). Beside each
//! column stands the CPU time of the proxy's processes: seconds per GB, or microseconds per operation or datagram.
//!
//! Load generator and server are threads of this process ([`mod@tcp`], [`mod@udp`]); the proxies are processes ([`systems`]).

mod machine;
mod measure;
mod place;
mod preload;
mod report;
mod stats;
mod systems;
mod tally;
mod tcp;
mod udp;

use place::Place;
use serde::{Deserialize, Serialize};
use stats::Samples;
use std::net::SocketAddr;
use std::process::ExitCode;
use systems::System;

/// Servers' ports. The proxies listen on [`PROXY`] and connect to one of these.
const ECHO: u16 = 1123;
const SOURCE: u16 = 1124;
const UDP_ECHO: u16 = 1125;
const UDP_SINK: u16 = 1126;
const PROXY: u16 = 1122;

/// What is measured.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Column {
    name: &'static str,
    place: Place,
    load: Load,
    port: u16,
    /// CPU time is given in seconds per 10⁹ bytes that the proxy moves, or else in microseconds per operation.
    per_gigabyte: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Load {
    Tcp(tcp::Load),
    Udp(udp::Load),
}

const fn tcp(place: Place, name: &'static str, load: tcp::Load, port: u16, per_gigabyte: bool) -> Column {
    Column {
        name,
        place,
        load: Load::Tcp(load),
        port,
        per_gigabyte,
    }
}

const fn udp(name: &'static str, load: udp::Load, port: u16) -> Column {
    Column {
        name,
        place: Place::Loopback,
        load: Load::Udp(load),
        port,
        per_gigabyte: false,
    }
}

const STREAM: tcp::Load = tcp::Load::Stream { connections: 50 };
const RR1: tcp::Load = tcp::Load::Requests { connections: 1 };
const RR50: tcp::Load = tcp::Load::Requests { connections: 50 };
const CPS: tcp::Load = tcp::Load::Connections { at_once: 50 };
const BULK1: tcp::Load = tcp::Load::Download { connections: 1 };
const BULK4: tcp::Load = tcp::Load::Download { connections: 4 };

const COLUMNS: [Column; 14] = [
    tcp(Place::Loopback, "stream", STREAM, ECHO, true),
    tcp(Place::Loopback, "rr1", RR1, ECHO, false),
    tcp(Place::Loopback, "rr50", RR50, ECHO, false),
    tcp(Place::Loopback, "cps", CPS, ECHO, false),
    tcp(Place::Loopback, "bulk1", BULK1, SOURCE, true),
    tcp(Place::Loopback, "bulk4", BULK4, SOURCE, true),
    udp("udp_rr64", udp::Load::Requests { flows: 64, payload: 64 }, UDP_ECHO),
    udp("udp_flood64", udp::Load::Flood { flows: 64, payload: 64 }, UDP_SINK),
    tcp(Place::Veth, "veth_stream", STREAM, ECHO, true),
    tcp(Place::Veth, "veth_rr1", RR1, ECHO, false),
    tcp(Place::Veth, "veth_rr50", RR50, ECHO, false),
    tcp(Place::Veth, "veth_cps", CPS, ECHO, false),
    tcp(Place::Veth, "veth_bulk1", BULK1, SOURCE, true),
    tcp(Place::Veth, "veth_bulk4", BULK4, SOURCE, true),
];

impl Column {
    /// What the ratio of inline mode to no proxy must reach: only where client and server stand apart.
    fn bar(&self) -> Option<f64> {
        let bar = if self.load == Load::Tcp(CPS) { 0.95 } else { 0.97 };
        (self.place == Place::Veth).then_some(bar)
    }
}

/// The congestion control of the reader's namespace.
const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Those that need no privilege, which are what another namespace may be given.
const ALLOWED_CONGESTION: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

struct Options {
    rounds: usize,
    seconds: f64,
    json: Option<String>,
    columns: Vec<Column>,
    systems: Vec<System>,
    congestion: Option<String>,
    merge: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            // Many short ones: what a machine does beside changes within seconds, and each round is a pair.
            rounds: 15,
            seconds: 1.0,
            json: None,
            columns: COLUMNS.to_vec(),
            // What is compared has to be there; its peers are compared where they are installed.
            systems: System::ALL
                .into_iter()
                .filter(|&system| system == System::Mmproxy || system.is_installed())
                .collect(),
            congestion: None,
            merge: None,
        }
    }
}

const HELP: &str = "\
mmproxy-bench preload --library libproxyproto.so [--rounds N] [--seconds S] [--json FILE]
mmproxy-bench [--rounds N] [--seconds S] [--json FILE] [--columns A,B] [--systems A,B] [--build NAME=FILE]
  --congestion NAME: the congestion control of all sockets that choose none (with preload, too): by default cubic where the
    kernel has it, else reno; `system` leaves the system's
  --merge FILE: add to the rounds of an earlier run (its --json), as where a machine is quiet for minutes only
  columns: stream rr1 rr50 cps bulk1 bulk4 udp_rr64 udp_flood64 (over loopback), veth_stream veth_rr1 veth_rr50 veth_cps
    veth_bulk1 veth_bulk4 (client and server in two namespaces, joined by a veth pair: no-proxy, mmproxy, inline)
  systems: mmproxy inline go-mmproxy mmproxy-rs haproxy nginx (those that are installed); no-proxy is always there
  --build: measure another build of mmproxy as well, under this name; as often as there are such
  mmproxy-rs is found as $MMPROXY_RS, for instance after `cargo install mmproxy --locked --root DIR`
";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    match words.peek().map(String::as_str) {
        Some("serve-echo") => return serve_echo(words.nth(1)),
        Some("preload") => {
            words.next();
            return preload(words);
        }
        _ => {}
    }
    let options = match options(words) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("mmproxy-bench: {error}");
            return ExitCode::from(2);
        }
    };
    let result = run(&options);
    let _ = std::fs::remove_dir_all(systems::directory());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mmproxy-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The server of `preload`, as a process of its own.
fn serve_echo(port: Option<String>) -> ExitCode {
    let address = port.and_then(|port| Some(SocketAddr::from(([127, 0, 0, 1], port.parse().ok()?))));
    match address.map(tcp::serve_echo) {
        Some(Ok(_server)) => loop {
            std::thread::park();
        },
        _ => ExitCode::FAILURE,
    }
}

fn preload(words: impl Iterator<Item = String>) -> ExitCode {
    match preload_options(words).and_then(|options| preload::run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mmproxy-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn preload_options(mut words: impl Iterator<Item = String>) -> Result<preload::Options, String> {
    let mut options = preload::Options {
        library: "".into(),
        rounds: 15,
        seconds: 2.0,
        json: None,
        congestion: None,
    };
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--library" => options.library = value.into(),
            "--rounds" => options.rounds = value.parse().map_err(|_| "--rounds needs a number")?,
            "--seconds" => options.seconds = value.parse().map_err(|_| "--seconds needs a number")?,
            "--json" => options.json = Some(value),
            "--congestion" => options.congestion = Some(value),
            _ => return Err(format!("unknown option {word}")),
        }
    }
    options.congestion = chosen_congestion(options.congestion);
    if options.library.exists() {
        Ok(options)
    } else {
        Err(format!("no library {}", options.library.display()))
    }
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options::default();
    let mut builds = Vec::new();
    while let Some(word) = words.next() {
        if word == "--help" {
            return Ok(None);
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = |text: &str| text.parse::<f64>().ok().filter(|&number| number > 0.0);
        match word.as_str() {
            "--rounds" => options.rounds = number(&value).ok_or("--rounds needs a number")? as usize,
            "--seconds" => options.seconds = number(&value).ok_or("--seconds needs a number")?,
            "--json" => options.json = Some(value),
            "--congestion" => options.congestion = Some(value),
            "--merge" => options.merge = Some(value),
            "--columns" => {
                let find = |name: &str| COLUMNS.into_iter().find(|column| column.name == name);
                let found = value
                    .split(',')
                    .map(|name| find(name).ok_or_else(|| format!("no column {name}")));
                options.columns = found.collect::<Result<_, _>>()?;
            }
            "--systems" => {
                let find = |name: &str| System::ALL.into_iter().find(|system| system.name() == name);
                let found = value.split(',').map(|name| {
                    let system = find(name).ok_or_else(|| format!("no system {name}"))?;
                    if system.is_installed() {
                        Ok(system)
                    } else {
                        Err(format!("{name} is not installed"))
                    }
                });
                options.systems = found.collect::<Result<_, _>>()?;
            }
            "--build" => {
                let (name, file) = value.split_once('=').ok_or("--build needs NAME=FILE")?;
                builds.push(System::build(name, file)?);
            }
            _ => return Err(format!("unknown option {word}")),
        }
    }
    options.systems.extend(builds);
    options.congestion = chosen_congestion(options.congestion);
    Ok(Some(options))
}

/// One measurement: units per second, the proxy's CPU time, and how long operations took.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Sample {
    rate: f64,
    cpu: Option<f64>,
    /// Busy time of the whole machine by unit, less what it is busy with while nothing is measured: clients, servers, proxy,
    /// and whatever the kernel does for nobody.
    machine_cpu: Option<f64>,
    /// Milliseconds that 99 of 100 operations did not exceed.
    p99: Option<f64>,
}

fn run(options: &Options) -> Result<(), String> {
    let mut samples = match &options.merge {
        Some(path) => report::read(path, options)?,
        None => Samples::default(),
    };
    for round in 0..options.rounds {
        let idle = measure::idle(options);
        for &column in &options.columns {
            let mut order: Vec<Option<System>> = std::iter::once(None)
                .chain(options.systems.iter().copied().map(Some))
                .filter(|system| system.is_none_or(|system| system.does(column)))
                .collect();
            let places = order.len();
            order.rotate_left(round % places);
            for system in order {
                let name = system.map_or("no-proxy", System::name);
                let mut sample = measure::measure(column, system, options, idle)?;
                if sample.is_none() && matches!(system, None | Some(System::Mmproxy)) {
                    // Peers may fail; without these two there is nothing to compare.
                    sample = measure::measure(column, system, options, idle)?;
                    if sample.is_none() {
                        return Err(format!("{name} fails in column {}", column.name));
                    }
                }
                if let Some(sample) = sample {
                    eprintln!(
                        "round {} {:12} {:12} {:14.0}/s  cpu {:.3?}",
                        round + 1,
                        column.name,
                        name,
                        sample.rate,
                        sample.cpu
                    );
                }
                let of_column = samples.entry(column.name.to_owned()).or_default();
                of_column.entry(name.to_owned()).or_default().push(sample);
            }
        }
    }
    let columns: Vec<Column> = COLUMNS
        .into_iter()
        .filter(|column| samples.contains_key(column.name))
        .collect();
    let summary = stats::summarise(&columns, &samples);
    print!("{}", summary.table());
    report::write(options, &summary, &samples)
}

/// The same for every system that is compared: Cubic where the kernel lets a namespace have it, else Reno, as a control that
/// paces says more about loopback than about a proxy. `None` leaves the system's.
fn chosen_congestion(asked: Option<String>) -> Option<String> {
    if let Some(name) = asked {
        return (name != "system").then_some(name);
    }
    let allowed = std::fs::read_to_string(ALLOWED_CONGESTION).unwrap_or_default();
    let has_cubic = allowed.split_whitespace().any(|name| name == "cubic");
    Some(if has_cubic { "cubic" } else { "reno" }.to_owned())
}

/// The congestion control of sockets that choose none.
fn congestion(asked: Option<&str>) -> String {
    let system = || {
        std::fs::read_to_string(CONGESTION)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    asked.map_or_else(system, str::to_owned)
}
