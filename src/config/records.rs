//! `[[records]]`: where records of ended connections go, which of them, and how.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use netfcts::format::RecordFormat;
use netfcts::record::Cause;

/// One sink of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordsConfig {
    /// Where they go.
    pub to: Destination,
    /// How lines are written; IPFIX has a form of its own.
    pub format: RecordFormat,
    /// Which connections' records go there.
    pub only: RecordFilter,
    /// One connection in so many; 1 is all.
    pub sample: u32,
    /// When a file is put aside and a new one begun.
    pub rotation: Rotation,
}

impl RecordsConfig {
    /// A sink that gets every record and never puts a file aside while it writes.
    pub fn all(to: Destination, format: RecordFormat) -> RecordsConfig {
        RecordsConfig {
            to,
            format,
            only: RecordFilter::default(),
            sample: 1,
            rotation: Rotation {
                size: None,
                every: None,
                keep: 1,
            },
        }
    }
}

/// Where records go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Lines to standard output.
    Stdout,
    /// Lines to a file.
    File(PathBuf),
    /// Lines to a Unix stream socket that somebody listens on.
    Stream(PathBuf),
    /// A datagram each to a Unix socket.
    Datagram(PathBuf),
    /// Syslog messages (RFC 5424), a datagram each.
    Syslog(Endpoint),
    /// IPFIX messages (RFC 7011) over UDP to a collector.
    Ipfix(SocketAddr),
}

/// Where syslog listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix datagram socket, such as `/dev/log`.
    Unix(PathBuf),
    /// UDP (RFC 5426).
    Udp(SocketAddr),
}

impl Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Stdout => f.write_str("-"),
            Destination::File(path) => path.display().fmt(f),
            Destination::Stream(path) => write!(f, "stream {}", path.display()),
            Destination::Datagram(path) => write!(f, "datagram {}", path.display()),
            Destination::Syslog(Endpoint::Unix(path)) => write!(f, "syslog {}", path.display()),
            Destination::Syslog(Endpoint::Udp(address)) => write!(f, "syslog {address}"),
            Destination::Ipfix(address) => write!(f, "ipfix {address}"),
        }
    }
}

/// Which records a sink gets: those that all of these name. An empty list names all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordFilter {
    /// Names of listeners.
    pub listeners: Vec<String>,
    /// Names of servers.
    pub servers: Vec<String>,
    /// Why the client's side ended.
    pub causes: Vec<Cause>,
    /// Least time from the handshake to the last change of state.
    pub longer_than: Duration,
}

/// When a file is put aside as `NAME.1`, and `NAME.1` as `NAME.2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// When it has so many bytes.
    pub size: Option<u64>,
    /// When it is so old.
    pub every: Option<Duration>,
    /// How many are kept beside the one that is written.
    pub keep: u8,
}
