//! One load on one proxy: `trafficengine` as client and server on the other end of the cable.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::BoxError;
use super::cable::{Cable, End};
use super::cpu::Sample;
use super::systems::{LISTENER, SERVERS};

/// What is asked of the proxy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The ancestors' connection: 16 bytes asked, 8 answered.
    Connections,
    /// Large responses.
    Bytes,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Connections => "connections",
            Kind::Bytes => "bytes",
        }
    }
}

/// What came of it, in the seconds that count.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(super) struct Outcome {
    pub(super) connections_per_second: f64,
    pub(super) connections_per_busy_second: f64,
    pub(super) gbit_per_second: f64,
    pub(super) gbit_per_busy_second: f64,
    /// Of the proxy's CPU.
    pub(super) busy_share: f64,
    pub(super) retransmitted: u64,
    pub(super) failed: u64,
}

/// The programs and places that a load needs.
pub(super) struct Loader<'a> {
    pub(super) cable: &'a Cable,
    pub(super) program: &'a Path,
    pub(super) folder: &'a Path,
    pub(super) load_cpu: usize,
    pub(super) proxy_cpu: usize,
    /// Connections at once.
    pub(super) open: u32,
    /// Seconds that count; one more goes before.
    pub(super) seconds: u32,
    /// Set when the bench is to end.
    pub(super) interrupted: &'a AtomicBool,
}

/// Ends the generator, however the load ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

impl Loader<'_> {
    /// Runs the load and measures.
    pub(super) fn run(&self, kind: Kind) -> Result<Outcome, BoxError> {
        let file = self.folder.join(format!("{}.toml", kind.name()));
        let json = self.folder.join("load.json");
        fs::write(&file, self.configuration(kind))?;
        let arguments = ["run", &file.to_string_lossy(), "--json", &json.to_string_lossy()];
        let log = fs::File::create(self.folder.join("load.log"))?;
        let child = self
            .cable
            .command(End::Load, self.program, &arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let mut running = Running(child);
        let stdout = running.0.stdout.take().ok_or("no output of the load")?;
        // One sample at the end of each second; the load says when that is.
        let mut samples = Vec::new();
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            if self.interrupted.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
            if line.starts_with("roles:") && !self.cable.pin_napi(End::Load)? {
                return Err("load0 has no NAPI thread: its receive work would be done on the proxy's CPU".into());
            }
            if line.contains(" started  ") {
                samples.push(Sample::take(self.proxy_cpu)?);
            }
        }
        let status = running.0.wait()?;
        let report =
            fs::read_to_string(&json).map_err(|error| self.failure(&format!("{status}; no report: {error}")))?;
        self.evaluate(&serde_json::from_str(&report)?, &samples)
    }

    fn failure(&self, what: &str) -> String {
        let log = fs::read_to_string(self.folder.join("load.log")).unwrap_or_default();
        format!("the load has failed: {what}\n{log}")
    }

    fn evaluate(&self, report: &Value, samples: &[Sample]) -> Result<Outcome, BoxError> {
        let seconds = self.seconds as usize;
        let (Some(first), Some(last)) = (samples.first(), samples.get(seconds)) else {
            return Err(self
                .failure(&format!("{} seconds seen of {}", samples.len(), seconds + 1))
                .into());
        };
        let counted = report["by_second"].as_array().and_then(|all| all.get(1..=seconds));
        let counted = counted.ok_or("the load's report has too few seconds")?;
        let sum = |key: &str| counted.iter().filter_map(|second| second[key].as_u64()).sum::<u64>() as f64;
        let of_roles = |key: &str| {
            ["client", "server"]
                .iter()
                .filter_map(|role| report[role][key].as_u64())
                .sum()
        };
        let failures = |role: &str| -> u64 {
            let failed = report[role]["failed"].as_object().into_iter().flatten();
            failed.filter_map(|(_, count)| count.as_u64()).sum()
        };
        let (time, busy) = first.until(last);
        let (time, busy) = (time.as_secs_f64(), busy.as_secs_f64().max(1e-6));
        let (connections, gbit) = (sum("completed"), sum("bytes") * 8e-9);
        Ok(Outcome {
            connections_per_second: connections / time,
            connections_per_busy_second: connections / busy,
            gbit_per_second: gbit / time,
            gbit_per_busy_second: gbit / busy,
            busy_share: busy / time,
            retransmitted: of_roles("retransmitted"),
            failed: failures("client") + failures("server"),
        })
    }

    fn configuration(&self, kind: Kind) -> String {
        let (response, open, sources) = match kind {
            Kind::Connections => (8, self.open, "10.80.1.1-10.80.1.16"),
            // Long enough for a full window, short enough that connections end within the measured seconds.
            Kind::Bytes => (1_000_000, self.open.min(32), "10.80.3.1-10.80.3.16"),
        };
        format!(
            r#"
[port]
device = "net_af_xdp0,iface={interface}"
core = {cpu}
memory_mib = 256
mtu = 1500
checksum_offload = false
idle = "adaptive"
[script]
request = 16
response = {response}
keys = 1000
servers = 1
[client]
addresses = ["{sources}"]
targets = ["{LISTENER}"]
[load]
mode = "closed"
open = {open}
duration = "{seconds}s"
grace = "5s"
[server]
listen = {SERVERS:?}
same_id = true
"#,
            interface = End::Load.interface(),
            cpu = self.load_cpu,
            // Half a second more, so that the last line of a whole second is printed.
            seconds = f64::from(self.seconds) + 1.5,
        )
    }

    /// The share of the proxy's CPU that others use while nothing of ours runs.
    pub(super) fn background(proxy_cpu: usize) -> Result<f64, BoxError> {
        let before = Sample::take(proxy_cpu)?;
        std::thread::sleep(Duration::from_millis(300));
        let (time, busy) = before.until(&Sample::take(proxy_cpu)?);
        Ok(busy.as_secs_f64() / time.as_secs_f64())
    }
}
