//! `./build.sh bench generator`: how many connections per second the generator makes by itself.
//!
//! Two processes of `trafficengine`, the client's role on one CPU and the server's on another, joined by memif: seven packets per
//! connection, every byte checked, no proxy. Several short turns; the best counts, because on a machine with other work each
//! core stands still now and then, and then so does the other.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use benchkit::{PGO, ResultFile, unwanted, verdict};
use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::Serialize;
use serde_json::Value;
use trafficengine::plot;

mod cores;

type BoxError = Box<dyn Error + Send + Sync>;

const BINARY: &str = env!("CARGO_BIN_EXE_trafficengine");

/// How long a process may take to start or end.
const LIMIT: Duration = Duration::from_secs(30);

/// The generator against itself.
#[derive(Parser)]
struct Arguments {
    /// Turns; the best counts. With --cores each is a ratio.
    #[arg(long, default_value_t = 7)]
    turns: u32,
    /// Seconds of each turn.
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Connections at once.
    #[arg(long, default_value_t = 512)]
    open: u32,
    /// CPU of the client's role; by default the first.
    #[arg(long)]
    client_cpu: Option<usize>,
    /// CPU of the server's role; by default the last.
    #[arg(long)]
    server_cpu: Option<usize>,
    /// Instead of two processes: one with so many cores, each with clients and servers of its own on a pair of rings, by one core.
    #[arg(long, value_parser = clap::value_parser!(u8).range(2..=16))]
    cores: Option<u8>,
    #[command(flatten)]
    file: ResultFile,
    /// Folder for the plots.
    #[arg(long, default_value = "target/bench")]
    plots: PathBuf,
    /// `cargo bench` says this to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Names are those of the JSON.
#[derive(Serialize)]
struct GeneratorResult {
    /// Of the best turn.
    connections_per_second: f64,
    connections_per_second_by_turn: Vec<f64>,
    connections: u64,
    retransmitted: u64,
    failed: u64,
    lost: u64,
    client_cpu: usize,
    server_cpu: usize,
    /// Whether it was built with a profile.
    pgo: bool,
    /// No retransmission, loss or failure in any turn.
    valid: bool,
    invalid_because: Vec<String>,
}

/// Both roles of one turn, summed.
#[derive(Default)]
struct Turn {
    connections_per_second: f64,
    connections: u64,
    retransmitted: u64,
    failed: u64,
    lost: u64,
}

/// Ends a process, however the turn ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench generator: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    if !(1..=100).contains(&arguments.turns) || !(1..=600).contains(&arguments.seconds) {
        return Err("--turns: expected 1 to 100; --seconds: expected 1 to 600".into());
    }
    let allowed = sched_getaffinity(None)?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let (first, last) = (cpus.next().unwrap_or(0), cpus.next_back().unwrap_or(0));
    let (client, server) = (
        arguments.client_cpu.unwrap_or(first),
        arguments.server_cpu.unwrap_or(last),
    );
    if client == server {
        return Err(format!("each role needs a CPU of its own, and there is only CPU {client} for both").into());
    }
    if let Some(count) = arguments.cores {
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
        let of_bench = cpus
            .get(..usize::from(count))
            .ok_or_else(|| format!("--cores {count}: there are {} CPUs", cpus.len()))?;
        return cores::measure(arguments, of_bench);
    }
    let mut turns = Vec::new();
    for number in 1..=arguments.turns {
        let turn = take_turn(arguments, client, server)?;
        println!(
            "turn {number}: {:.0} connections/s, {} retransmitted, {} failed, {} lost",
            turn.connections_per_second, turn.retransmitted, turn.failed, turn.lost
        );
        turns.push(turn);
    }
    let sum = |of: fn(&Turn) -> u64| turns.iter().map(of).sum::<u64>();
    let rates: Vec<f64> = turns.iter().map(|turn| turn.connections_per_second).collect();
    let (retransmitted, failed, lost) = (
        sum(|turn| turn.retransmitted),
        sum(|turn| turn.failed),
        sum(|turn| turn.lost),
    );
    let invalid_because = unwanted([("retransmitted", retransmitted), ("failed", failed), ("lost", lost)]);
    let result = GeneratorResult {
        connections_per_second: rates.iter().copied().fold(0.0, f64::max),
        connections: sum(|turn| turn.connections),
        retransmitted,
        failed,
        lost,
        client_cpu: client,
        server_cpu: server,
        pgo: PGO,
        valid: invalid_because.is_empty(),
        invalid_because,
        connections_per_second_by_turn: rates,
    };
    println!(
        "best of {}: {:.0} connections/s over memif, client on CPU {client}, server on CPU {server}; {}",
        turns.len(),
        result.connections_per_second,
        verdict(&result.invalid_because),
    );
    arguments.file.write(&result)?;
    let names: Vec<String> = (1..=turns.len()).map(|number| number.to_string()).collect();
    let bars: Vec<(&str, f64)> = names
        .iter()
        .map(String::as_str)
        .zip(turns.iter().map(|turn| turn.connections_per_second))
        .collect();
    plot::bars(
        &arguments.plots.join("generator.svg"),
        "the generator against itself over memif: connections per second by turn",
        &bars,
    )?;
    Ok(result.valid)
}

fn take_turn(arguments: &Arguments, client_cpu: usize, server_cpu: usize) -> Result<Turn, BoxError> {
    let folder = std::env::temp_dir().join(format!("trafficengine-generator-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let turn = roles(arguments, client_cpu, server_cpu, &folder);
    fs::remove_dir_all(&folder)?;
    turn
}

fn roles(arguments: &Arguments, client_cpu: usize, server_cpu: usize, folder: &Path) -> Result<Turn, BoxError> {
    let port = |role: &str, cpu: usize, mac: u8| {
        format!(
            "[port]\ndevice = \"net_memif0,role={role},socket={}/memif,socket-abstract=no,rsize=11\"\n\
             mac = \"02:00:00:00:00:{mac:02x}\"\ncore = {cpu}\nmemory_mib = 256\nidle = \"poll\"\n\
             # A core that the system takes away for long is no loss.\n\
             [tcp]\nrto_initial = \"5s\"\nrto_min = \"5s\"\n[script]\nkeys = 1000\nservers = 1\n",
            folder.display()
        )
    };
    let server = port("server", server_cpu, 2) + "[server]\nlisten = [\"10.2.0.1:80\"]\n";
    let client = port("client", client_cpu, 1)
        + &format!(
            "[link]\nnext_hop_mac = \"02:00:00:00:00:02\"\n[client]\naddresses = [\"10.1.0.1-10.1.0.16\"]\n\
             targets = [\"10.2.0.1:80\"]\n[load]\nmode = \"closed\"\nopen = {}\nduration = \"{}s\"\n",
            arguments.open, arguments.seconds
        );
    let mut server_process = start(folder, "server", &server)?;
    wait_for("the server's socket", || {
        folder.join("memif").exists() || !is_running(&mut server_process)
    })?;
    let mut client_process = start(folder, "client", &client)?;
    let ends_by = LIMIT + Duration::from_secs(u64::from(arguments.seconds));
    wait(&mut client_process, ends_by)?;
    kill_process(Pid::from_child(&server_process.0), Signal::INT)?;
    wait(&mut server_process, LIMIT)?;
    let (client, server) = (report(folder, "client")?, report(folder, "server")?);
    let mut turn = Turn {
        connections_per_second: client["connections_per_second"].as_f64().unwrap_or(0.0),
        connections: client["client"]["completed"].as_u64().unwrap_or(0),
        ..Turn::default()
    };
    for (name, report) in [("client", &client), ("server", &server)] {
        let role = &report[name];
        turn.retransmitted += role["retransmitted"].as_u64().unwrap_or(0);
        turn.failed += role["failed"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(_, count)| count.as_u64())
            .sum::<u64>();
        turn.lost += report["packets_not_sent"].as_u64().unwrap_or(0);
    }
    Ok(turn)
}

fn start(folder: &Path, role: &str, configuration: &str) -> Result<Running, BoxError> {
    let file = folder.join(format!("{role}.toml"));
    fs::write(&file, configuration)?;
    let log = fs::File::create(folder.join(format!("{role}.log")))?;
    let child = Command::new(BINARY)
        .arg("run")
        .arg(&file)
        .args(["--quiet", "--json"])
        .arg(folder.join(format!("{role}.json")))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()?;
    Ok(Running(child))
}

fn is_running(process: &mut Running) -> bool {
    matches!(process.0.try_wait(), Ok(None))
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) -> Result<(), BoxError> {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        if Instant::now() >= deadline {
            return Err(format!("{what} is not there after {LIMIT:?}").into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Waits for the end of a process; a failure of connections is in its report.
fn wait(process: &mut Running, limit: Duration) -> Result<(), BoxError> {
    let deadline = Instant::now() + limit;
    while is_running(process) {
        if Instant::now() >= deadline {
            return Err(format!("a role has not ended after {limit:?}").into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn report(folder: &Path, role: &str) -> Result<Value, BoxError> {
    let log = || fs::read_to_string(folder.join(format!("{role}.log"))).unwrap_or_default();
    let text = fs::read_to_string(folder.join(format!("{role}.json")))
        .map_err(|error| format!("the {role} has made no report: {error}\n{}", log()))?;
    Ok(serde_json::from_str(&text)?)
}
