//! `build.sh demo`: real clients, the engine and real servers, what each client asked for and where it ended up.
//!
//! The engine runs with `config/demo.toml`; a request is right when the server that answered is the one its first bytes
//! ask for, and when the engine's own session record says the same.

mod changes;
mod requests;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::engine::{Driver, Engine, Record};
use crate::process::{self, Process};
use crate::servers::{self, Certificates};
use crate::{HOSTS, Rig, RigError, RigOptions, SERVERS, requirements};

use changes::Shown;
use requests::{Outcome, Request};

/// The demo's rig is always called so, to be found by a person when it is kept.
const NAME: &str = "pedemo";
/// Records are written when a connection has ended on both sides.
const RECORDS_WRITTEN: Duration = Duration::from_secs(10);

/// The socket that the engine answers `ctl` and `top` on, in the rig's folder.
const SOCKET: &str = "control";
/// Where it shows its page, in its own namespace, which has no other service.
const PAGE: &str = "127.0.0.1:9180";

/// What the demo is asked to do.
#[derive(Debug, clap::Args)]
pub struct DemoOptions {
    /// The engine's program.
    #[arg(long, value_name = "FILE")]
    engine: PathBuf,
    /// The engine's configuration.
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/demo.toml"))]
    config: PathBuf,
    /// Write the totals to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Leave rig, engine and servers running at the end, and say how to try them.
    #[arg(long)]
    keep: bool,
    /// Have the engine count its cycles by stage: show the table, and draw it into this file.
    #[arg(long, value_name = "SVG", num_args = 0..=1, require_equals = true, default_missing_value = "stage-cycles.svg", conflicts_with = "keep")]
    stage_cycles: Option<PathBuf>,
    /// Use AF_XDP in place of AF_PACKET.
    #[arg(long)]
    af_xdp: bool,
    /// Use the rig of this name that `prepNet.sh up` has raised, for example with a NIC, and leave it up; the port's device
    /// is the configuration's.
    #[arg(long, value_name = "NAME", conflicts_with = "af_xdp")]
    on: Option<String>,
}

/// What the demo has shown, as `--json` writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Totals {
    requests: usize,
    wrong_server: usize,
    failed: usize,
    records: usize,
    /// Unknown as long as the engine runs.
    buffers_leaked: Option<u64>,
}

impl Totals {
    fn of(outcomes: &[Outcome], shown: Shown, records: usize, buffers_leaked: Option<u64>) -> Self {
        let wrong_server = outcomes.iter().filter(|outcome| outcome.is_wrong_server()).count();
        let right = outcomes.iter().filter(|outcome| outcome.is_right()).count();
        let failed = outcomes.len() - right - wrong_server;
        Self {
            requests: outcomes.len() + shown.requests,
            wrong_server,
            failed: failed + shown.failed,
            records,
            buffers_leaked,
        }
    }

    fn are_good(&self) -> bool {
        self.wrong_server == 0
            && self.failed == 0
            && self.records == self.requests
            && self.buffers_leaked.is_none_or(|leaked| leaked == 0)
    }

    fn to_json(self) -> String {
        let Self {
            requests,
            wrong_server,
            failed,
            records,
            buffers_leaked,
        } = self;
        let leaked = buffers_leaked.map_or_else(|| "null".to_owned(), |leaked| leaked.to_string());
        format!(
            "{{\"requests\":{requests},\"wrong_server\":{wrong_server},\"failed\":{failed},\
             \"records\":{records},\"buffers_leaked\":{leaked}}}"
        )
    }
}

/// Runs the demo; true when every request reached the right server and nothing was lost.
///
/// # Errors
/// A sentence about what kept it from running.
pub fn run(options: &DemoOptions) -> Result<bool, String> {
    let tools: Vec<&str> = [servers::TOOLS, &["curl"]].concat();
    requirements(&tools)?;
    run_on_rig(options).map_err(|error| error.to_string())
}

/// Runs it on the rig `name` that `prepNet.sh up` has raised, and leaves that up; the port's device is the configuration's.
/// True when every request reached the right server and nothing was lost.
///
/// # Errors
/// A sentence about what kept it from running.
pub fn on_rig(name: &str, engine: &Path, config: &Path, json: &Path) -> Result<bool, String> {
    run(&DemoOptions {
        engine: engine.to_owned(),
        config: config.to_owned(),
        json: Some(json.to_owned()),
        keep: false,
        af_xdp: false,
        on: Some(name.to_owned()),
        stage_cycles: None,
    })
}

fn run_on_rig(options: &DemoOptions) -> Result<bool, RigError> {
    let rig = match &options.on {
        Some(name) => Rig::adopt(name, RigOptions::default().mtu)?,
        None => Rig::new(RigOptions {
            name: Some(NAME.into()),
            ..RigOptions::default()
        })?,
    };
    println!(
        "demo: clients, servers and the engine's port are connected on rig {}",
        rig.prefix()
    );
    let certificates = Certificates::make(&rig)?;
    let mut servers = start_servers(&rig, &certificates)?;
    println!("demo: three servers are up, each with nginx, openssl s_server and socat");

    let device = match (&options.on, options.af_xdp) {
        (Some(_), _) => None,
        (None, true) => Some(Driver::AfXdp.device(0)),
        (None, false) => Some(Driver::AfPacket.device(0)),
    };
    let records = rig.file("records.jsonl");
    let configuration = configuration_for(&options.config, &records, &rig.file(SOCKET), device.as_deref())?;
    let picture = options
        .stage_cycles
        .as_ref()
        .map(|path| format!("--stage-cycles={}", path.display()));
    let more: Vec<&str> = picture.iter().map(String::as_str).collect();
    let engine = Engine::start_with_options(&rig, &options.engine, (&configuration, records), &more)?;
    let file = options.config.canonicalize().unwrap_or_else(|_| options.config.clone());
    let device = device.as_deref().unwrap_or("its own device");
    println!("demo: the engine is up: {} on {device}", file.display());

    let mut outcomes: Vec<Outcome> = requests::plan()
        .into_iter()
        .map(|request: Request| request.perform(&rig))
        .collect();
    let shown = show_changes(&rig, options, &mut servers)?;
    let mut stages = String::new();
    let (records, buffers_leaked, still_running) = if options.keep {
        let expected = outcomes.len() + shown.requests;
        let written = || engine.records().is_ok_and(|records| records.len() >= expected);
        // Too few of them show in the totals.
        let _ = process::wait_for("session records", RECORDS_WRITTEN, written);
        (engine.records()?, None, Some(engine))
    } else {
        let report = engine.stop(Signal::INT)?;
        let leaked = report.number("/buffers/leaked");
        stages = table_of_stages(&report.log);
        (report.records, Some(leaked), None)
    };
    assign(&mut outcomes, &records);
    table::print(&outcomes);
    if let Some(path) = &options.stage_cycles {
        println!("\n{stages}\ndrawn in {}", path.display());
    }
    let totals = Totals::of(&outcomes, shown, records.len(), buffers_leaked);
    let good = conclude(&totals, &outcomes, options.json.as_deref())?;
    if let Some(engine) = still_running {
        keep(rig, &options.engine, engine, servers, &certificates);
    }
    Ok(good)
}

/// A reload, a killed server and a refused client; on a rig of others nothing is killed.
fn show_changes(rig: &Rig, options: &DemoOptions, servers: &mut [Process]) -> Result<Shown, RigError> {
    if options.on.is_some() {
        return Ok(Shown::default());
    }
    let nginx = &mut servers[changes::KILLED];
    let shown = changes::show(rig, &options.engine, &rig.file(SOCKET), nginx)?;
    *nginx = servers::start_nginx(rig, changes::KILLED)?;
    Ok(shown)
}

/// The table of cycles by stage in what the engine has printed at its end.
fn table_of_stages(printed: &str) -> String {
    let from_table = printed.lines().skip_while(|line| !line.starts_with("cycles by stage:"));
    let is_row = |(index, line): &(usize, &str)| *index == 0 || line.starts_with("  ");
    let lines: Vec<&str> = from_table
        .enumerate()
        .take_while(is_row)
        .map(|(_, line)| line)
        .collect();
    lines.join("\n")
}

fn start_servers(rig: &Rig, certificates: &Certificates) -> Result<Vec<Process>, RigError> {
    // The nginx come first, in the order of the servers.
    let nginx = (0..SERVERS).map(|index| servers::start_nginx(rig, index));
    let mut processes = nginx.collect::<Result<Vec<_>, _>>()?;
    for index in 0..SERVERS {
        processes.extend(servers::start_tls(rig, index, certificates)?);
        processes.extend(servers::start_numbers(rig, index)?);
    }
    Ok(processes)
}

/// The configuration of the file, with its records as JSON lines in `records`, what it shows at `socket` and [`PAGE`], and its
/// port on `device` where one is given.
fn configuration_for(path: &Path, records: &Path, socket: &Path, device: Option<&str>) -> Result<String, RigError> {
    let text = fs::read_to_string(path).map_err(RigError::io(format!("reading {}", path.display())))?;
    let mut table: toml::Table = text.parse().map_err(|error: toml::de::Error| RigError::Unreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    let file = records.to_string_lossy().into_owned();
    table.insert("records".into(), toml::toml! { file = file format = "json" }.into());
    let socket = socket.to_string_lossy().into_owned();
    table.insert("control".into(), toml::toml! { socket = socket http = PAGE }.into());
    let port = table.get_mut("port").and_then(|ports| ports.get_mut(0));
    if let (Some(port), Some(device)) = (port.and_then(toml::Value::as_table_mut), device) {
        port.insert("device".into(), device.into());
    }
    Ok(table.to_string())
}

/// Gives each request the record of its connection.
fn assign(outcomes: &mut [Outcome], records: &[Record]) {
    for outcome in outcomes {
        outcome.record = records
            .iter()
            .find(|record| Some(record.client) == outcome.client)
            .cloned();
    }
}

fn keep(rig: Rig, program: &Path, engine: Engine, servers: Vec<Process>, certificates: &Certificates) {
    let prefix = rig.prefix().to_owned();
    let (clients, [one, two, three]) = (format!("ip netns exec {prefix}-clients"), HOSTS);
    let engines = format!("ip netns exec {prefix}-engine");
    let (program, socket) = (program.display(), rig.file(SOCKET));
    let socket = socket.display();
    let trusted = certificates.trusted();
    engine.release();
    servers.into_iter().for_each(Process::release);
    let folder = rig.keep();
    println!(
        "\ndemo: everything is left running. Try, as root:
    {clients} curl http://{one}/anything
    {clients} curl -6 http://{two}/anything
    {clients} curl --cacert {} https://{three}/whoami
    {clients} sh -c 'echo 17 bottles | socat -t5 - TCP:{one}:{}'
what the engine does, on this terminal:
    {program} top --socket {socket}
    {program} ctl --socket {socket} show servers
    {program} ctl --socket {socket} show rules
    {engines} curl http://{PAGE}/metrics
and as a page, http://{PAGE}/ in a browser on this machine while this runs:
    socat TCP-LISTEN:9180,bind=127.0.0.1,reuseaddr,fork EXEC:'\"{engines} socat STDIO TCP:{PAGE}\"'
logs, records and the configuration: {}
take it down with: ./prepNet.sh down --prefix {prefix}",
        trusted.display(),
        servers::NUMBERS,
        folder.display(),
    );
}

/// Writes and says what came out of it.
fn conclude(totals: &Totals, outcomes: &[Outcome], json: Option<&Path>) -> Result<bool, RigError> {
    for outcome in outcomes.iter().filter(|outcome| !outcome.is_right()) {
        println!("demo: {outcome}");
    }
    if let Some(path) = json {
        fs::write(path, totals.to_json() + "\n").map_err(RigError::io(format!("writing {}", path.display())))?;
    }
    println!(
        "demo: {} requests, {} at the wrong server, {} failed; {} session records; buffers leaked: {}",
        totals.requests,
        totals.wrong_server,
        totals.failed,
        totals.records,
        totals.buffers_leaked.map_or_else(
            || "not known while the engine runs".to_owned(),
            |leaked| leaked.to_string()
        ),
    );
    Ok(totals.are_good())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Totals = Totals {
        requests: 72,
        wrong_server: 0,
        failed: 0,
        records: 72,
        buffers_leaked: Some(0),
    };

    #[test]
    fn totals_are_good_only_without_any_fault() {
        assert!(GOOD.are_good());
        assert!(
            Totals {
                buffers_leaked: None,
                ..GOOD
            }
            .are_good()
        );
        for bad in [
            Totals {
                wrong_server: 1,
                ..GOOD
            },
            Totals { failed: 1, ..GOOD },
            Totals { records: 71, ..GOOD },
            Totals {
                buffers_leaked: Some(1),
                ..GOOD
            },
        ] {
            assert!(!bad.are_good(), "{bad:?}");
        }
    }

    #[test]
    fn totals_are_written_as_agreed() {
        assert_eq!(
            GOOD.to_json(),
            r#"{"requests":72,"wrong_server":0,"failed":0,"records":72,"buffers_leaked":0}"#
        );
        let running = Totals {
            buffers_leaked: None,
            ..GOOD
        };
        assert!(running.to_json().ends_with(r#""buffers_leaked":null}"#));
    }
}
