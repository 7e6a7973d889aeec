//! The three proxies and how each is set up: one thread on one CPU, four servers behind it.
//!
//! HAProxy and nginx do not look at the payload here: they take servers in turn, which costs them less than choosing by the
//! request, as proxyengine does, would.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rig::process::Process;
use serde::Serialize;

use super::BoxError;
use super::cable::{Cable, End};

/// How long a proxy may take to be ready.
const STARTING: Duration = Duration::from_secs(20);

/// Where clients connect to.
pub(super) const LISTENER: &str = "10.80.0.1:8080";

/// The servers, played by the load.
pub(super) const SERVERS: [&str; 4] = ["10.80.2.1:80", "10.80.2.2:80", "10.80.2.3:80", "10.80.2.4:80"];

/// A proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum System {
    Proxyengine,
    /// The same, built without a profile, as Debian builds the others.
    #[serde(rename = "proxyengine_no_pgo")]
    ProxyengineNoPgo,
    Haproxy,
    Nginx,
}

impl System {
    pub(super) const ALL: [System; 4] = [
        System::Proxyengine,
        System::ProxyengineNoPgo,
        System::Haproxy,
        System::Nginx,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            System::Proxyengine => "proxyengine",
            System::ProxyengineNoPgo => "proxyengine_no_pgo",
            System::Haproxy => "haproxy",
            System::Nginx => "nginx",
        }
    }

    /// Whether it works on Linux's TCP.
    pub(super) fn uses_kernel_stack(self) -> bool {
        !matches!(self, System::Proxyengine | System::ProxyengineNoPgo)
    }

    /// Starts it at the proxy's end and waits until it listens.
    pub(super) fn start(self, cable: &Cable, cpu: usize, engine: &Path, folder: &Path) -> Result<Process, BoxError> {
        let log = folder.join(format!("{}.log", self.name()));
        let file = folder.join(format!("{}.conf", self.name()));
        let path = file.to_string_lossy().into_owned();
        match self {
            System::Proxyengine | System::ProxyengineNoPgo => {
                fs::write(&file, proxyengine(cpu))?;
                let mut process = cable.start(End::Proxy, engine, &["run", &path], &log)?;
                process.wait_for("running", STARTING, |process| process.printed().contains("running;"))?;
                if !cable.pin_napi(End::Proxy)? {
                    return Err("proxy0 has no NAPI thread: its receive work would be done on the load's CPU".into());
                }
                Ok(process)
            }
            System::Haproxy => {
                fs::write(&file, haproxy())?;
                let mut process = cable.start(End::Proxy, &program("haproxy")?, &["-db", "-f", &path], &log)?;
                process.wait_for_listeners(&[LISTENER.parse()?], STARTING)?;
                Ok(process)
            }
            System::Nginx => {
                fs::write(&file, nginx(folder))?;
                let mut process = cable.start(End::Proxy, &program("nginx")?, &["-c", &path], &log)?;
                process.wait_for_listeners(&[LISTENER.parse()?], STARTING)?;
                Ok(process)
            }
        }
    }
}

/// The program of that name; Debian's are in sbin, which not everyone has on the path.
pub(super) fn program(name: &str) -> Result<PathBuf, BoxError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.push("/usr/sbin".into());
    let found = folders
        .iter()
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    found.ok_or_else(|| format!("the program {name} is missing: ./build.sh bench peers installs it").into())
}

fn proxyengine(cpu: usize) -> String {
    let servers: Vec<String> = (0..)
        .zip(SERVERS)
        .map(|(index, address)| format!("  {{ name = \"s{index}\", address = \"{address}\" }},\n"))
        .collect();
    format!(
        r#"
[engine]
name = "pepeers-{pid}"
cores = [{cpu}]
memory_mib = 256
idle = "adaptive"
max_connections = 300000

[[port]]
name = "proxy"
device = "net_af_xdp0,iface={interface}"
mtu = 1500
addresses = ["10.80.0.1/16"]
checksum_offload = false

[[listener]]
name = "bench"
addresses = ["{LISTENER}"]
rules = [{{ first_number = true, pool = "servers" }}]
default = "reject"

[timeouts]
time_wait = "1s"

# A probe would count as a failed connection of the servers.
[syn_ack]
probe = false

[[pool]]
name = "servers"
local_addresses = ["10.80.0.10", "10.80.0.11"]
servers = [
{servers}]
"#,
        pid = std::process::id(),
        interface = End::Proxy.interface(),
        servers = servers.concat(),
    )
}

fn haproxy() -> String {
    let servers: Vec<String> = (0..)
        .zip(SERVERS)
        .map(|(index, address)| format!("    server s{index} {address}\n"))
        .collect();
    format!(
        r"
global
    nbthread 1
    maxconn 7900
defaults
    mode tcp
    # Its better setting for bulk: payload goes from socket to socket through a pipe where that pays.
    option splice-auto
    maxconn 7900
    backlog 65535
    timeout connect 10s
    timeout client 30s
    timeout server 30s
listen bench
    bind {LISTENER}
    balance roundrobin
{}",
        servers.concat()
    )
}

fn nginx(folder: &Path) -> String {
    let servers: Vec<String> = SERVERS
        .iter()
        .map(|address| format!("        server {address};\n"))
        .collect();
    format!(
        r"
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off;
user root;
worker_processes 1;
worker_rlimit_nofile 20000;
pid {folder}/nginx.pid;
error_log {folder}/nginx.err;
events {{
    worker_connections 16000;
    use epoll;
    multi_accept on;
    accept_mutex off;
}}
stream {{
    upstream servers {{
{servers}    }}
    server {{
        listen {LISTENER} backlog=65535;
        proxy_pass servers;
        proxy_connect_timeout 10s;
        proxy_timeout 30s;
    }}
}}
",
        folder = folder.display(),
        servers = servers.concat(),
    )
}
