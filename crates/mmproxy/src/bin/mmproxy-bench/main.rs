//! `mmproxy-bench`: compares mmproxy with its peers, and with no proxy at all.
//!
//! Everything runs over loopback, each measurement in a network namespace of its own: tens of thousands of connections in
//! TIME-WAIT, which one measurement leaves, would slow the next down. In each round every system is measured in every
//! column, the order turning from round to round; a system's figure is divided by that of no proxy in the same round, and
//! the median of these ratios is reported with the interval that holds it with 95 % (by order statistics). Beside each
//! column stands the CPU time of the proxy's processes: seconds per GB, or microseconds per operation or datagram.
//!
//! Load generator and server are threads of this process ([`tcp`], [`udp`]); the proxies are processes ([`systems`]).

mod machine;
mod preload;
mod stats;
mod systems;
mod tally;
mod tcp;
mod udp;

use stats::Summary;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use systems::{Running, System};
use tally::Tally;

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

const fn column(name: &'static str, load: Load, port: u16, per_gigabyte: bool) -> Column {
    Column {
        name,
        load,
        port,
        per_gigabyte,
    }
}

const COLUMNS: [Column; 8] = [
    column("stream", Load::Tcp(tcp::Load::Stream { connections: 50 }), ECHO, true),
    column("rr1", Load::Tcp(tcp::Load::Requests { connections: 1 }), ECHO, false),
    column("rr50", Load::Tcp(tcp::Load::Requests { connections: 50 }), ECHO, false),
    column("cps", Load::Tcp(tcp::Load::Connections { at_once: 50 }), ECHO, false),
    column("bulk1", Load::Tcp(tcp::Load::Download { connections: 1 }), SOURCE, true),
    column("bulk4", Load::Tcp(tcp::Load::Download { connections: 4 }), SOURCE, true),
    column(
        "udp_rr64",
        Load::Udp(udp::Load::Requests { flows: 64, payload: 64 }),
        UDP_ECHO,
        false,
    ),
    column(
        "udp_flood64",
        Load::Udp(udp::Load::Flood { flows: 64, payload: 64 }),
        UDP_SINK,
        false,
    ),
];

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
}

const HELP: &str = "\
mmproxy-bench preload --library libproxyproto.so [--rounds N] [--seconds S] [--json FILE]
mmproxy-bench [--rounds N] [--seconds S] [--json FILE] [--columns A,B] [--systems A,B] [--build NAME=FILE]
  --congestion NAME: the congestion control of all sockets that choose none (with preload, too): by default cubic where the
    kernel has it, else reno; `system` leaves the system's
  columns: stream rr1 rr50 cps bulk1 bulk4 udp_rr64 udp_flood64
  systems: mmproxy go-mmproxy mmproxy-rs haproxy nginx (those that are installed); no-proxy is always there
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
    match port.and_then(|port| port.parse().ok()).map(tcp::serve_echo) {
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
    let mut options = Options {
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
    };
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

/// Moves this thread, and all that it starts from now on, to a new namespace with loopback and routing. The namespace goes
/// when the last of them has gone. What chooses no `congestion` control of its own gets this one, or the system's.
fn enter_namespace(congestion: Option<&str>) -> Result<(), String> {
    let name = format!("mmproxy-bench-{}", std::process::id());
    let command = |arguments: &[&str]| {
        let status = Command::new("ip")
            .args(arguments)
            .status()
            .map_err(|error| format!("ip: {error}"))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("ip {}: {status}; root is needed", arguments.join(" ")))
        }
    };
    command(&["netns", "add", &name])?;
    let file = std::fs::File::open(format!("/run/netns/{name}")).map_err(|error| error.to_string())?;
    // Only the name.
    command(&["netns", "del", &name])?;
    let kind = rustix::thread::ThreadNameSpaceType::NETWORK;
    rustix::thread::move_into_thread_name_spaces(file.as_fd(), kind).map_err(|error| error.to_string())?;
    command(&["link", "set", "lo", "up"])?;
    if let Some(name) = congestion {
        // This namespace's, as this thread is in it. Linux lets it have those only that need no privilege.
        std::fs::write(CONGESTION, name).map_err(|error| format!("--congestion {name}: {error}"))?;
    }
    let options = mmproxy::cli::RouteOptions::default();
    mmproxy::netsetup::setup(&options).map_err(|error| error.to_string())?;
    mmproxy::privileges::raise_descriptor_limit();
    Ok(())
}

/// One measurement: units per second, the proxy's CPU time, and how long operations took.
#[derive(Copy, Clone, Debug)]
struct Sample {
    rate: f64,
    cpu: Option<f64>,
    /// Busy time of the whole machine by unit: clients, servers, proxy, and whatever the kernel does for nobody.
    machine_cpu: Option<f64>,
    /// Milliseconds that 99 of 100 operations did not exceed.
    p99: Option<f64>,
}

fn run(options: &Options) -> Result<(), String> {
    let mut samples: BTreeMap<(&str, &str), Vec<Option<Sample>>> = BTreeMap::new();
    for round in 0..options.rounds {
        for &column in &options.columns {
            let mut order: Vec<Option<System>> = std::iter::once(None)
                .chain(options.systems.iter().copied().map(Some))
                .collect();
            let places = order.len();
            order.rotate_left(round % places);
            for system in order {
                let name = system.map_or("no-proxy", System::name);
                let mut sample = measure(column, system, options)?;
                if sample.is_none() && matches!(system, None | Some(System::Mmproxy)) {
                    // Peers may fail; without these two there is nothing to compare.
                    sample = measure(column, system, options)?;
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
                samples.entry((column.name, name)).or_default().push(sample);
            }
        }
    }
    let summary = stats::summarise(
        &options.columns.iter().map(|column| column.name).collect::<Vec<_>>(),
        &samples,
    );
    print!("{}", summary.table());
    write_json(options, &summary)
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

fn write_json(options: &Options, summary: &Summary) -> Result<(), String> {
    let Some(path) = &options.json else { return Ok(()) };
    let mut object = summary.json(options.rounds, options.seconds);
    object.insert("congestion".into(), congestion(options.congestion.as_deref()).into());
    let text = serde_json::to_string_pretty(&object).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n").map_err(|error| format!("{path}: {error}"))
}

/// Starts the server of a column; what the sink gets is counted in `sink`.
fn start_server(port: u16, sink: &Arc<AtomicU64>) -> Result<tcp::Server, String> {
    let server = match port {
        ECHO => tcp::serve_echo(port),
        SOURCE => tcp::serve_source(port),
        UDP_ECHO => udp::serve_echo(port),
        _ => udp::serve_sink(port, Arc::clone(sink)),
    };
    server.map_err(|error| format!("server on port {port}: {error}"))
}

/// Measures one system in one column; `None` if it cannot do this, or does not work.
fn measure(column: Column, system: Option<System>, options: &Options) -> Result<Option<Sample>, String> {
    enter_namespace(options.congestion.as_deref())?;
    let sink = Arc::new(AtomicU64::new(0));
    let _server = start_server(column.port, &sink)?;
    let udp = matches!(column.load, Load::Udp(_));
    let running: Option<Running> = match system {
        None => None,
        Some(system) if udp && !system.does_udp() => return Ok(None),
        Some(system) => match system.start(PROXY, column.port, udp) {
            Ok(running) => Some(running),
            Err(error) => {
                eprintln!("{} {}: {error}", column.name, system.name());
                return Ok(None);
            }
        },
    };
    let port = if running.is_some() { PROXY } else { column.port };
    let target = SocketAddr::from(([127, 0, 0, 1], port));
    let (tally, count) = (Arc::new(Tally::default()), Arc::new(AtomicU64::new(0)));
    let counted = || match column.load {
        Load::Tcp(_) => tally.units.load(Ordering::Relaxed),
        Load::Udp(_) if column.port == UDP_SINK => sink.load(Ordering::Relaxed),
        Load::Udp(_) => count.load(Ordering::Relaxed),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let client = {
        let (tally, count) = (Arc::clone(&tally), Arc::clone(&count));
        let (stop, with_header) = (Arc::clone(&stop), running.is_some());
        std::thread::spawn(move || match column.load {
            Load::Tcp(load) => tcp::generate(load, target, with_header, &tally, &stop),
            Load::Udp(load) => udp::generate(load, target, with_header, &count, &stop),
        })
    };
    // Until all connections stand: a queue of one, as a peer has, takes a second for each few of them.
    let begin = Instant::now();
    let idle = counted();
    while counted() == idle && begin.elapsed() < Duration::from_secs(40) && !client.is_finished() {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(400));
    let cpu = || running.as_ref().map(Running::cpu_seconds);
    tally.forget_times();
    let busy_before = machine::busy_seconds();
    let before = (Instant::now(), counted(), cpu());
    std::thread::sleep(Duration::from_secs_f64(options.seconds));
    let after = (Instant::now(), counted(), cpu());
    let busy_after = machine::busy_seconds();
    let p99 = tally.quantile(0.99).map(|seconds| seconds * 1e3);
    stop.store(true, Ordering::Relaxed);
    let name = system.map_or("no-proxy", System::name);
    if let Err(error) = client.join().map_err(|_| "the load generator failed")? {
        // A proxy that fails in one column is still compared in the others.
        eprintln!("{} {name}: {error}", column.name);
        return Ok(None);
    }
    drop(running);
    let units = after.1.wrapping_sub(before.1) as f64;
    let rate = units / (after.0 - before.0).as_secs_f64();
    if units == 0.0 {
        eprintln!("{} {name}: nothing came through", column.name);
        return Ok(None);
    }
    // An echo passes the proxy twice.
    let passes = if matches!(column.load, Load::Tcp(tcp::Load::Stream { .. })) {
        2.0
    } else {
        1.0
    };
    let scale = if column.per_gigabyte { 1e9 / passes } else { 1e6 };
    let by_unit = |before: Option<f64>, after: Option<f64>| Some((after? - before?) / units * scale);
    Ok(Some(Sample {
        rate,
        cpu: by_unit(before.2, after.2),
        machine_cpu: by_unit(busy_before, busy_after),
        p99,
    }))
}
