//! The proxies that are compared: how each is started, and what it costs.

use crate::place::Place;
use crate::{Column, Load};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A proxy.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum System {
    Mmproxy,
    /// mmproxy's inline mode: the header is taken off in the kernel.
    Inline,
    GoMmproxy,
    MmproxyRs,
    Haproxy,
    Nginx,
    /// Another build of mmproxy, to compare with.
    Build(&'static Build),
}

/// A program and what to call it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Build {
    name: String,
    program: PathBuf,
}

impl System {
    pub(crate) const ALL: [System; 6] = [
        System::Mmproxy,
        System::Inline,
        System::GoMmproxy,
        System::MmproxyRs,
        System::Haproxy,
        System::Nginx,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            System::Mmproxy => "mmproxy",
            System::Inline => "inline",
            System::GoMmproxy => "go-mmproxy",
            System::MmproxyRs => "mmproxy-rs",
            System::Haproxy => "haproxy",
            System::Nginx => "nginx",
            System::Build(build) => &build.name,
        }
    }

    /// Another build of mmproxy. It is named once, and stays until the process ends.
    pub(crate) fn build(name: &str, file: &str) -> Result<Self, String> {
        if name == "no-proxy" || Self::ALL.iter().any(|system| system.name() == name) {
            return Err(format!("--build: {name} is another system's name"));
        }
        let program = std::fs::canonicalize(file).map_err(|error| format!("--build {file}: {error}"))?;
        let name = name.to_owned();
        Ok(System::Build(Box::leak(Box::new(Build { name, program }))))
    }

    fn program(self) -> Option<PathBuf> {
        match self {
            // Built beside this program; tests and benches are in a folder below.
            System::Mmproxy | System::Inline => {
                let own = std::env::current_exe().ok()?;
                let beside = own.with_file_name("mmproxy");
                if beside.exists() {
                    Some(beside)
                } else {
                    own.ancestors().nth(2).map(|folder| folder.join("mmproxy"))
                }
            }
            System::MmproxyRs => std::env::var_os("MMPROXY_RS").map(PathBuf::from),
            System::Build(build) => Some(build.program.clone()),
            System::GoMmproxy | System::Haproxy | System::Nginx => {
                let path = std::env::var_os("PATH")?;
                std::env::split_paths(&path)
                    .chain([PathBuf::from("/usr/sbin")])
                    .map(|directory| directory.join(self.name()))
                    .find(|program| program.exists())
            }
        }
        .filter(|program| program.exists())
    }

    pub(crate) fn is_installed(self) -> bool {
        self.program().is_some() && (self != System::Inline || cfg!(inline_built))
    }

    /// Whether it is measured in this column: not all relay datagrams, and the veth pair is for what is compared with no proxy.
    pub(crate) fn does(self, column: Column) -> bool {
        let udp = matches!(column.load, Load::Udp(_));
        match self {
            System::Inline => !udp,
            System::Haproxy | System::Nginx => !udp && column.place == Place::Loopback,
            System::GoMmproxy | System::MmproxyRs => column.place == Place::Loopback,
            System::Mmproxy | System::Build(_) => true,
        }
    }

    /// Whether it has done what its name says: inline mode leaves a connection to two sockets where it must.
    pub(crate) fn check(self) -> Result<(), String> {
        if self != System::Inline {
            return Ok(());
        }
        let value = |name: &str| {
            let line = format!("mmproxy_inline_{name}_total ");
            let text = metrics().map_err(|error| format!("metrics: {error}"))?;
            let value = text
                .lines()
                .find_map(|text| text.strip_prefix(&line)?.parse::<u64>().ok());
            value.ok_or_else(|| format!("no {line}among the metrics"))
        };
        // mmproxy reads them once a second.
        for _ in 0..20 {
            if value("assigned")? > 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        match (value("assigned")?, value("fall_back")?) {
            (1.., 0..10) => Ok(()),
            (assigned, fallen) => Err(format!("{assigned} connections inline, {fallen} by two sockets")),
        }
    }

    /// How it is started between these addresses.
    fn command(self, place: Place, listen: SocketAddr, target: SocketAddr, udp: bool) -> Result<Command, String> {
        let program = self
            .program()
            .ok_or_else(|| format!("{} is not installed", self.name()))?;
        let directory = directory();
        std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        let (listen_text, target_text) = (listen.to_string(), target.to_string());
        match self {
            System::Mmproxy | System::Inline | System::GoMmproxy | System::MmproxyRs | System::Build(_) => {
                let protocol = if udp { "udp" } else { "tcp" };
                let target_v6 = format!("[::1]:{}", target.port());
                command.args(["-l", &listen_text, "-4", &target_text, "-6", &target_v6, "-p", protocol]);
                // One log line for each connection is mmproxy-rs's default; without it, it is faster.
                command.env("RUST_LOG", "off");
                if self == System::Inline {
                    command.args([
                        "--inline",
                        "--interface",
                        place.interface(),
                        "--metrics",
                        &METRICS.to_string(),
                    ]);
                }
            }
            System::Haproxy => {
                let text = format!(
                    "global\n maxconn 4000\n nbthread 2\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n \
                     timeout server 60s\nlisten bench\n bind {listen_text} accept-proxy\n source 0.0.0.0 usesrc client\n \
                     server one {target_text}\n"
                );
                let file = directory.join("haproxy.cfg");
                std::fs::write(&file, text).map_err(|error| error.to_string())?;
                command.arg("-db").arg("-f").arg(file);
            }
            System::Nginx => {
                let text = format!(
                    "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off; user root; worker_processes 2;\n\
                     pid {0}/pid; error_log /dev/null crit;\nevents {{ worker_connections 8192; }}\n\
                     stream {{ server {{ listen {listen_text} proxy_protocol reuseport backlog=4096; proxy_pass {target_text};\n\
                     proxy_bind $proxy_protocol_addr:$proxy_protocol_port transparent; proxy_buffer_size 64k; }} }}\n",
                    directory.display()
                );
                let file = directory.join("nginx.conf");
                std::fs::write(&file, text).map_err(|error| error.to_string())?;
                command.arg("-c").arg(file);
            }
        }
        Ok(command)
    }

    /// Starts it between these addresses, and waits until it listens.
    pub(crate) fn start(
        self,
        place: Place,
        listen: SocketAddr,
        target: SocketAddr,
        udp: bool,
    ) -> Result<Running, String> {
        let child = self
            .command(place, listen, target, udp)?
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut running = Running {
            child: child.map_err(|error| format!("{}: {error}", self.name()))?,
        };
        let begin = Instant::now();
        loop {
            if running.child.try_wait().is_ok_and(|status| status.is_some()) {
                return Err(format!("{} ended at once", self.name()));
            }
            let ready = match self {
                // Metrics are answered when all the rest stands.
                System::Inline => metrics().is_ok(),
                _ if udp => begin.elapsed() > Duration::from_millis(300),
                _ => TcpStream::connect(listen).is_ok(),
            };
            if ready {
                return Ok(running);
            }
            if begin.elapsed() > Duration::from_secs(5) {
                return Err(format!("{} does not listen", self.name()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What the inline mode counts is asked for here, in the namespace of the measurement.
const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1128);

fn metrics() -> std::io::Result<String> {
    let mut connection = TcpStream::connect(METRICS)?;
    connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    connection.read_to_string(&mut text)?;
    Ok(text)
}

/// Where configuration files of the proxies are written.
pub(crate) fn directory() -> PathBuf {
    std::env::temp_dir().join(format!("mmproxy-bench-{}", std::process::id()))
}

/// Waits for a server on a port of loopback.
pub(crate) fn wait_until_listening(port: u16) -> Result<(), String> {
    let begin = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if begin.elapsed() > Duration::from_secs(5) {
            return Err(format!("nobody listens on port {port}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A proxy that runs; it ends when this is dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
}

impl Running {
    /// CPU time of the process, its children and all their threads so far.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        tree(self.child.id()).into_iter().map(process_seconds).sum()
    }

    /// Ends what the process has started, and gives it a moment to notice.
    pub(crate) fn end_descendants(&self) {
        for pid in tree(self.child.id()).into_iter().skip(1) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(2) {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process and its descendants.
fn tree(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name, in parentheses, may hold anything: what counts comes after the last one.
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut all = vec![root];
    let mut next = 0;
    while next < all.len() {
        all.extend(children.remove(&all[next]).unwrap_or_default());
        next += 1;
    }
    all
}

/// CPU time of all threads of a process, to the nanosecond.
fn process_seconds(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let nanoseconds = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    nanoseconds.sum::<u64>() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_a_busy_grandchild_is_counted() {
        let script = "sh -c 'while :; do :; done'";
        let child = Command::new("sh")
            .args(["-c", &format!("{script} & wait")])
            .spawn()
            .expect("shell");
        let running = Running { child };
        std::thread::sleep(Duration::from_millis(500));
        let grandchildren = tree(running.child.id());
        let seconds = running.cpu_seconds();
        for pid in grandchildren.into_iter().skip(1) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        // On a machine with other work it gets less than the half second; the shells alone take a few milliseconds.
        assert!((0.01..0.7).contains(&seconds), "{seconds}");
    }
}
