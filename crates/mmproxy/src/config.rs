//! The checked configuration: what the workers run on. It comes from a command line ([`crate::cli`]) or a file
//! ([`crate::file`]), and is made anew at every reload.

use crate::access::{Networks, Rule, SourceKind};
use crate::address::Target;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Transport of a listener.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP, header in every datagram.
    Udp,
}

/// Whether a connection begins with a header.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeaderMode {
    /// Always; what has none is closed.
    Required,
    /// From allowed peers perhaps; what begins otherwise, or comes from other peers, is the client itself.
    Optional,
    /// Never: the peer is the client.
    Off,
}

/// Which header the server gets.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SendHeader {
    /// None.
    Off,
    /// Version 1.
    V1,
    /// Version 2, with the TLVs that came in.
    V2,
    /// The Simple Proxy Protocol (UDP only).
    Spp,
}

/// Which source port the server sees.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourcePort {
    /// The client's own.
    Keep,
    /// One that the kernel chooses.
    Random,
}

/// What happens when the client's address and port are in use towards the same target.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Duplicate {
    /// Keep the address, let the kernel choose a port.
    RandomPort,
    /// Close the connection.
    Drop,
}

/// Whether the kernel takes the header off, so that the server's own socket has the client as its peer.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Inline {
    /// No: two sockets.
    #[default]
    Off,
    /// If this kernel and this listener can; else two sockets.
    Auto,
    /// Yes, or the daemon does not start.
    On,
}

/// Where a listening socket comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bind {
    /// Opened here.
    Address(SocketAddr),
    /// Passed by the service manager, as this descriptor.
    Passed(i32, Option<SocketAddr>),
}

/// One listening address and what happens to what arrives there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Name for logs and metrics.
    pub name: String,
    /// Where the socket comes from.
    pub bind: Bind,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Whether headers come in.
    pub header: HeaderMode,
    /// How long a peer may take for its header.
    pub header_timeout: Duration,
    /// Longest header that is accepted, in bytes.
    pub header_limit: usize,
    /// Refuse headers whose CRC32C is wrong.
    pub verify_checksum: bool,
    /// Who may connect (or, with an optional header, send one); `None` for everybody.
    pub allowed: Option<Networks>,
    /// Rules over the header, the first that fits decides.
    pub rules: Vec<Rule>,
    /// Target of IPv4 clients.
    pub target_v4: Option<Target>,
    /// Target of IPv6 clients.
    pub target_v6: Option<Target>,
    /// Connect to the destination in the header, if it is in one of these networks.
    pub dynamic: Option<Networks>,
    /// Connect from the client's address.
    pub spoof: bool,
    /// Which port to connect from.
    pub source_port: SourcePort,
    /// What to do when address and port are in use.
    pub duplicate: Duplicate,
    /// Dangerous kinds of sources that are let through nevertheless.
    pub allow_sources: Vec<SourceKind>,
    /// `SO_MARK` of connections to the target; 0 for none.
    pub mark: u32,
    /// Header that the target gets.
    pub send: SendHeader,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// TCP: close after so long without a byte in either direction; `None` for never. UDP: end of a session.
    pub idle_timeout: Option<Duration>,
    /// TCP keep-alive after so long; `None` for off.
    pub keepalive: Option<Duration>,
    /// `IP_TRANSPARENT` on the listening socket, for TPROXY.
    pub transparent: bool,
    /// Length of the queue of connections not yet accepted.
    pub backlog: i32,
    /// TCP Fast Open on the listening socket: length of its queue, 0 for off.
    pub fast_open: u32,
    /// Multipath TCP on the listening socket.
    pub multipath: bool,
    /// TCP congestion control towards clients and the target, by the kernel's name; `None` for the system's, except where a
    /// connection cannot leave this host (see [`sockets`](crate::sockets)).
    pub congestion: Option<String>,
    /// UDP: most sessions at a time, over all workers.
    pub max_sessions: usize,
    /// UDP: most sessions at a time from one client address.
    pub max_sessions_per_client: usize,
    /// TCP: whether the kernel takes the header off.
    pub inline: Inline,
}

impl Default for Listener {
    fn default() -> Self {
        Listener {
            name: String::new(),
            bind: Bind::Address(SocketAddr::from(([0, 0, 0, 0], 8443))),
            protocol: Protocol::Tcp,
            header: HeaderMode::Required,
            // Over three retransmission timeouts of a lost first segment, and what go-proxyproto settled on.
            header_timeout: Duration::from_secs(10),
            // The longest that version 2 can say.
            header_limit: proxy_protocol::V2_MAX_LEN,
            verify_checksum: true,
            allowed: None,
            rules: vec![],
            target_v4: None,
            target_v6: None,
            dynamic: None,
            spoof: true,
            source_port: SourcePort::Keep,
            duplicate: Duplicate::RandomPort,
            allow_sources: vec![],
            mark: 0,
            send: SendHeader::Off,
            connect_timeout: Duration::from_secs(5),
            idle_timeout: None,
            keepalive: Some(Duration::from_secs(60)),
            transparent: false,
            backlog: 4096,
            fast_open: 0,
            multipath: false,
            congestion: None,
            max_sessions: 100_000,
            max_sessions_per_client: 10_000,
            inline: Inline::Off,
        }
    }
}

impl Listener {
    /// The UDP session timeout: go-mmproxy's and mmproxy-rs's default unless set.
    pub fn udp_idle(&self) -> Duration {
        self.idle_timeout.unwrap_or(Duration::from_secs(60))
    }

    /// Whether two configurations can share a socket: everything that is set when it is opened is the same.
    pub fn same_socket(&self, other: &Listener) -> bool {
        let key = |this: &Listener| {
            (
                this.protocol,
                this.transparent,
                this.backlog,
                this.fast_open,
                this.multipath,
                this.keepalive,
            )
        };
        self.bind == other.bind && self.congestion == other.congestion && key(self) == key(other)
    }

    /// The target for clients of this address' family.
    pub fn target(&self, client: IpAddr) -> Option<&Target> {
        if client.to_canonical().is_ipv4() {
            self.target_v4.as_ref()
        } else {
            self.target_v6.as_ref()
        }
    }
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Config {
    /// Worker threads.
    pub workers: usize,
    /// Where metrics are served over HTTP.
    pub metrics: Option<SocketAddr>,
    /// Most TCP connections at a time; `None` for what the descriptor limit allows.
    pub max_connections: Option<usize>,
    /// How many connections of one peer may fail for want of a good header within ten seconds before it is refused at
    /// once for the rest of them; 0 for no limit.
    pub max_header_failures: u32,
    /// How long connections may finish after SIGTERM.
    pub drain: Duration,
    /// User to change to after the sockets are open.
    pub user: Option<String>,
    /// Group to change to.
    pub group: Option<String>,
    /// Restrict system calls after start.
    pub sandbox: bool,
    /// Install `ip rule` and `ip route` entries at start and remove them at the end.
    pub routes: bool,
    /// Keep each worker on a CPU of its own, among those the process may use.
    pub cpu_affinity: bool,
    /// Folder in a BPF file system in which inline connections outlive the process.
    pub pin: Option<PathBuf>,
    /// Interfaces that the balancers of inline listeners come in on, and that their clients are reached by.
    pub interfaces: Vec<String>,
    /// 0: errors; 1: each failed connection; 2: each connection.
    pub verbosity: u8,
    /// What is listened on.
    pub listeners: Vec<Arc<Listener>>,
}

/// A thread for each CPU.
fn default_workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Default for Config {
    fn default() -> Self {
        Config {
            workers: default_workers(),
            metrics: None,
            max_connections: None,
            max_header_failures: 1000,
            drain: Duration::from_secs(10),
            user: None,
            group: None,
            sandbox: true,
            routes: false,
            cpu_affinity: false,
            pin: None,
            interfaces: vec![],
            verbosity: 0,
            listeners: vec![],
        }
    }
}

/// Why there is no configuration to run on.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The command line.
    #[error("{0}")]
    Arguments(String),
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is not TOML, or has a key or type that is not known.
    #[error("{}: {source}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A value that cannot be used.
    #[error("{place}: {key}: {reason}")]
    Value {
        /// File and listener, or the command line.
        place: String,
        /// The key or option.
        key: &'static str,
        /// What is wrong and what was expected.
        reason: String,
    },
}
