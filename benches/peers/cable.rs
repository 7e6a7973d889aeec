//! Two namespaces joined by a veth pair: the load in one, the proxy in the other. Removed when dropped.
//!
//! veth does a receiver's work on the sender's CPU unless it is told otherwise. Here it is: the kernel's backlog goes to the
//! owner's CPU (RPS), and so does the NAPI thread that a device with an XDP program has, so that each side pays for what it
//! receives.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rig::process::{self, Process};

use super::BoxError;
use super::device::cli::TwoCpus;

/// Namespaces are called `pepeers<process id>-load` and `-proxy`: who has made them, and whether that still runs.
const PREFIX: &str = "pepeers";

/// A step of making the cable.
const STEP: Duration = Duration::from_secs(10);

/// Which end of the cable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Load,
    Proxy,
}

impl End {
    /// The interface at this end.
    pub(super) fn interface(self) -> &'static str {
        match self {
            End::Load => "load0",
            End::Proxy => "proxy0",
        }
    }

    fn cpu(self, cpus: TwoCpus) -> usize {
        match self {
            End::Load => cpus.load,
            End::Proxy => cpus.proxy,
        }
    }

    fn namespace(self, pid: u32) -> String {
        match self {
            End::Load => format!("{PREFIX}{pid}-load"),
            End::Proxy => format!("{PREFIX}{pid}-proxy"),
        }
    }
}

/// The cable.
pub(super) struct Cable {
    cpus: TwoCpus,
}

/// Settings of the proxy's namespace: what an operator of a busy TCP proxy sets.
const SETTINGS: [&str; 6] = [
    "net.ipv4.ip_local_port_range=1024 65535",
    "net.ipv4.tcp_tw_reuse=1",
    "net.ipv4.tcp_max_syn_backlog=65535",
    "net.core.somaxconn=65535",
    "net.ipv4.tcp_max_tw_buckets=2000000",
    "net.ipv4.tcp_fin_timeout=5",
];

/// The congestion controls that a namespace may be given.
const ALLOWED_CONGESTION: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// What all that use Linux's TCP get: Cubic where the kernel lets a namespace have it, else Reno. BBR, which is some systems'
/// default, sends by a timer, which costs CPU time and buys nothing on a cable without delay or loss.
pub(super) fn congestion() -> &'static str {
    let allowed = std::fs::read_to_string(ALLOWED_CONGESTION).unwrap_or_default();
    match allowed.split_whitespace().any(|name| name == "cubic") {
        true => "cubic",
        false => "reno",
    }
}

/// Address of the proxy with the length of the prefix that all share.
const PROXY_ADDRESS: &str = "10.80.0.1/16";

impl Cable {
    /// Lays it; `kernel_stack` gives the proxy's end to Linux, with an address.
    pub(super) fn lay(cpus: TwoCpus, kernel_stack: bool) -> Result<Cable, BoxError> {
        remove_stale();
        let pid = std::process::id();
        // From here on dropping it removes what has been made.
        let cable = Cable { cpus };
        for end in [End::Load, End::Proxy] {
            let namespace = end.namespace(pid);
            ip(&["netns", "add", &namespace])?;
            ip(&["-n", &namespace, "link", "set", "lo", "up"])?;
        }
        let (load, proxy) = (End::Load.namespace(pid), End::Proxy.namespace(pid));
        let words = ["netns", &load, "type", "veth", "peer", "name", End::Proxy.interface()];
        let words = [&["link", "add", End::Load.interface()], &words[..], &["netns", &proxy]].concat();
        ip(&words)?;
        for end in [End::Load, End::Proxy] {
            let (namespace, interface) = (end.namespace(pid), end.interface());
            let off = "tx off rx off sg off tso off gso off gro off";
            let offloads: Vec<&str> = off.split(' ').collect();
            cable.run(end, "ethtool", &[&["-K", interface], &offloads[..]].concat())?;
            cable.run(
                end,
                "sysctl",
                &["-qw", &format!("net.ipv6.conf.{interface}.disable_ipv6=1")],
            )?;
            let mask = format!("{:x}", 1_u64 << end.cpu(cpus));
            cable.write(end, &format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus"), &mask)?;
            ip(&["-n", &namespace, "link", "set", interface, "mtu", "1500", "up"])?;
        }
        if kernel_stack {
            let congestion = format!("net.ipv4.tcp_congestion_control={}", congestion());
            for setting in SETTINGS.into_iter().chain([congestion.as_str()]) {
                cable.run(End::Proxy, "sysctl", &["-qw", setting])?;
            }
            ip(&[
                "-n",
                &proxy,
                "addr",
                "add",
                PROXY_ADDRESS,
                "dev",
                End::Proxy.interface(),
            ])?;
        }
        Ok(cable)
    }

    /// A command at one end, on that end's CPU.
    pub(super) fn command(&self, end: End, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        let cpu = end.cpu(self.cpus).to_string();
        command.args([
            "netns",
            "exec",
            &end.namespace(std::process::id()),
            "taskset",
            "-c",
            &cpu,
        ]);
        command.arg(program).args(arguments);
        command
    }

    /// Starts a program at one end; it ends with the returned value.
    pub(super) fn start(&self, end: End, program: &Path, arguments: &[&str], log: &Path) -> Result<Process, BoxError> {
        Ok(Process::start(&mut self.command(end, program, arguments), log)?)
    }

    /// Has the device's NAPI, if it has one, run in a thread of its own on the owner's CPU; returns whether it has one.
    ///
    /// A veth device has it only with an XDP program, hence once DPDK has opened it.
    pub(super) fn pin_napi(&self, end: End) -> Result<bool, BoxError> {
        let interface = end.interface();
        self.write(end, &format!("/sys/class/net/{interface}/threaded"), "1")?;
        let name = format!("napi/{interface}-");
        let mut found = false;
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let pid = entry.file_name().into_string().unwrap_or_default();
            let comm = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            // Linux cuts names of threads to 15 bytes.
            if pid.parse::<u32>().is_ok() && comm.trim_end().starts_with(&name[..name.len().min(15)]) {
                let cpu = end.cpu(self.cpus).to_string();
                run(Command::new("taskset").args(["-p", "-c", &cpu, &pid]))?;
                // As a softirq would, it goes before programs; a veth ring of 256 packets overflows while it waits its turn.
                run(Command::new("chrt").args(["-f", "-p", "1", &pid]))?;
                found = true;
            }
        }
        Ok(found)
    }

    fn run(&self, end: End, program: &str, arguments: &[&str]) -> Result<(), BoxError> {
        run(&mut self.command(end, Path::new(program), arguments))
    }

    /// Writes a file of this end's sysfs, which is another one in each namespace.
    fn write(&self, end: End, path: &str, text: &str) -> Result<(), BoxError> {
        self.run(end, "sh", &["-c", &format!("echo {text} > {path}")])
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        remove(std::process::id());
    }
}

fn run(command: &mut Command) -> Result<(), BoxError> {
    process::run(command, b"", STEP)?;
    Ok(())
}

fn ip(arguments: &[&str]) -> Result<(), BoxError> {
    run(Command::new("ip").args(arguments))
}

/// Removes the namespaces of a process; the veth pair goes with them.
fn remove(pid: u32) {
    for end in [End::Load, End::Proxy] {
        let namespace = end.namespace(pid);
        if Path::new("/run/netns").join(&namespace).exists()
            && let Err(error) = ip(&["netns", "delete", &namespace])
        {
            eprintln!("namespace {namespace} may not be gone: {error}");
        }
    }
}

/// Removes what a killed bench has left.
fn remove_stale() {
    let Ok(namespaces) = std::fs::read_dir("/run/netns") else {
        return;
    };
    let maker = |name: &str| -> Option<u32> { name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok() };
    for entry in namespaces.flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        if let Some(pid) = maker(&name).filter(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(pid);
        }
    }
}
