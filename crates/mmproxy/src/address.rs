//! Addresses as a user writes them: what to listen on and where to connect to, with port ranges.
//!
//! | written | means |
//! |---|---|
//! | `0.0.0.0:8443`, `[::]:8443` | one port |
//! | `0.0.0.0:1000-1999` | a range of ports |
//! | `localhost:443`, `db.internal:5432` | a host name, resolved at start and at every reload |
//! | `127.0.0.1:2000-2999` (target) | the ports of the listening range, one to one |
//! | `[::1]:22` (target of IPv4 clients) | `127.0.0.1:22`: a server on `[::]` serves both families |
//! | `127.0.0.1` (target) | the port that the client came in on |
//! | `unix:/run/app.sock` (target) | a UNIX stream socket |
//! | `systemd`, `systemd:NAME` (listen) | a socket that systemd passed, by `FileDescriptorName=` |

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// An address that cannot be understood or used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AddressError {
    /// Not in one of the forms above.
    #[error("`{0}` is not HOST:PORT, HOST:FIRST-LAST, [V6]:PORT{1}")]
    Form(String, &'static str),
    /// A port that is none.
    #[error("`{0}` is not a port or a range of ports (1 to 65535, first before last)")]
    Port(String),
    /// The resolver does not know the name, or has no address of the family.
    #[error("cannot resolve `{name}`: {reason}")]
    Resolve {
        /// The host name.
        name: String,
        /// What the resolver said.
        reason: String,
    },
    /// The target's range cannot be laid over the listening range.
    #[error("{listening} listening ports cannot be mapped one to one to {target} target ports")]
    Ranges {
        /// Ports listened on.
        listening: usize,
        /// Ports of the target.
        target: usize,
    },
}

/// Which family of addresses a name shall be resolved to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// Whichever the resolver names first.
    Any,
}

impl Family {
    /// The family of an address; IPv4-mapped addresses count as IPv4.
    pub fn of(ip: IpAddr) -> Self {
        if ip.to_canonical().is_ipv4() {
            Family::V4
        } else {
            Family::V6
        }
    }

    fn accepts(self, ip: IpAddr) -> bool {
        self == Family::Any || self == Family::of(ip)
    }
}

/// What to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenSpec {
    /// An address and its ports.
    Inet {
        /// Local address.
        ip: IpAddr,
        /// Its ports.
        ports: RangeInclusive<u16>,
    },
    /// A socket passed by the service manager; all of them if there is no name.
    Systemd(Option<String>),
}

impl ListenSpec {
    /// Reads the forms in the module's table.
    ///
    /// # Errors
    /// If it is none of them, or a name cannot be resolved.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("systemd") {
            Some("") => return Ok(ListenSpec::Systemd(None)),
            Some(name) if name.starts_with(':') => return Ok(ListenSpec::Systemd(Some(name[1..].to_owned()))),
            _ => {}
        }
        let form = || AddressError::Form(text.to_owned(), " or systemd:NAME");
        let (host, ports) = split(text).ok_or_else(form)?;
        let ports = parse_ports(ports.ok_or_else(form)?)?;
        // `:8443`, as Go writes it, is every address.
        let host = if host.is_empty() { "::" } else { host };
        Ok(ListenSpec::Inet {
            ip: resolve(host, Family::Any)?,
            ports,
        })
    }
}

/// Where to connect to, as written: not yet resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSpec {
    /// A host, and its ports unless they are those of the listener.
    Host {
        /// Address or name.
        host: String,
        /// Its ports; `None` for the port that the client came in on.
        ports: Option<RangeInclusive<u16>>,
    },
    /// A UNIX stream socket.
    Unix(PathBuf),
}

/// Where to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Over IP.
    Inet(SocketAddr),
    /// Over a UNIX stream socket.
    Unix(PathBuf),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Inet(address) => address.fmt(f),
            Target::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl TargetSpec {
    /// Reads the forms in the module's table.
    ///
    /// # Errors
    /// If it is none of them.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(TargetSpec::Unix(path.into()));
        }
        let (host, ports) = split(text)
            .filter(|(host, _)| !host.is_empty())
            .ok_or_else(|| AddressError::Form(text.to_owned(), " or unix:/PATH"))?;
        Ok(TargetSpec::Host {
            host: host.to_owned(),
            ports: ports.map(parse_ports).transpose()?,
        })
    }

    /// The target of the port `listening` in the listener's `range`.
    ///
    /// # Errors
    /// If the name has no address of this family, or the ranges do not fit.
    pub fn resolve(&self, family: Family, listening: u16, range: &RangeInclusive<u16>) -> Result<Target, AddressError> {
        match self {
            TargetSpec::Unix(path) => Ok(Target::Unix(path.clone())),
            TargetSpec::Host { host, ports } => {
                let port = match ports {
                    None => listening,
                    Some(ports) if ports.len() == 1 => *ports.start(),
                    Some(ports) if ports.len() == range.len() => ports.start() + (listening - range.start()),
                    Some(ports) => {
                        return Err(AddressError::Ranges {
                            listening: range.len(),
                            target: ports.len(),
                        });
                    }
                };
                Ok(Target::Inet(SocketAddr::new(resolve(host, family)?, port)))
            }
        }
    }
}

/// Host and ports. Brackets are required round an IPv6 address that is followed by ports.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        return match rest.strip_prefix(':') {
            Some(ports) => Some((host, Some(ports))),
            None if rest.is_empty() => Some((host, None)),
            None => None,
        };
    }
    if text.parse::<IpAddr>().is_ok() {
        return Some((text, None));
    }
    match text.split_once(':') {
        Some((host, ports)) if !ports.contains(':') => Some((host, Some(ports))),
        Some(_) => None,
        None => Some((text, None)),
    }
}

fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, AddressError> {
    let bad = || AddressError::Port(text.to_owned());
    let port = |text: &str| text.parse::<u16>().ok().filter(|&port| port != 0);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (port(first).ok_or_else(bad)?, port(last).ok_or_else(bad)?);
    if first <= last { Ok(first..=last) } else { Err(bad()) }
}

fn resolve(name: &str, family: Family) -> Result<IpAddr, AddressError> {
    let failed = |reason: String| AddressError::Resolve {
        name: name.to_owned(),
        reason,
    };
    let wrong_family = || {
        failed(format!(
            "no {} address",
            if family == Family::V4 { "IPv4" } else { "IPv6" }
        ))
    };
    if let Ok(ip) = name.parse::<IpAddr>() {
        let ip = match ip.to_canonical() {
            // What cloudflare/mmproxy does, as far as kernels take it: a server on `[::]` is told of IPv4 clients as ::ffff:a.b.c.d,
            // and since Linux 5.4 no packet from such an address to ::1 is received.
            IpAddr::V6(Ipv6Addr::LOCALHOST) if family == Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            ip => ip,
        };
        return if family.accepts(ip) {
            Ok(ip)
        } else {
            Err(wrong_family())
        };
    }
    let found = (name, 0).to_socket_addrs().map_err(|error| failed(error.to_string()))?;
    found
        .map(|address| address.ip())
        .find(|&ip| family.accepts(ip))
        .ok_or_else(wrong_family)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inet(ip: &str, ports: RangeInclusive<u16>) -> Result<ListenSpec, AddressError> {
        Ok(ListenSpec::Inet {
            ip: ip.parse().expect("test address"),
            ports,
        })
    }

    #[test]
    fn listen_forms() {
        assert_eq!(ListenSpec::parse("0.0.0.0:8443"), inet("0.0.0.0", 8443..=8443));
        assert_eq!(ListenSpec::parse("[::]:1-65535"), inet("::", 1..=65535));
        assert_eq!(ListenSpec::parse(":8443"), inet("::", 8443..=8443));
        assert_eq!(ListenSpec::parse("systemd"), Ok(ListenSpec::Systemd(None)));
        assert_eq!(
            ListenSpec::parse("systemd:web"),
            Ok(ListenSpec::Systemd(Some("web".into())))
        );
        for bad in [
            "",
            "8443",
            "0.0.0.0",
            "0.0.0.0:0",
            "0.0.0.0:65536",
            "0.0.0.0:9-8",
            "0.0.0.0:",
            "::1:80",
            "[::1]80",
        ] {
            assert!(ListenSpec::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn target_ports_follow_the_listening_range() {
        let target = |text: &str, listening, range| {
            TargetSpec::parse(text)
                .and_then(|spec| spec.resolve(Family::V4, listening, &range))
                .map(|to| to.to_string())
        };
        assert_eq!(target("127.0.0.1:443", 8443, 8443..=8443), Ok("127.0.0.1:443".into()));
        assert_eq!(
            target("127.0.0.1:2000-2009", 1007, 1000..=1009),
            Ok("127.0.0.1:2007".into())
        );
        assert_eq!(target("127.0.0.1", 1007, 1000..=1009), Ok("127.0.0.1:1007".into()));
        assert_eq!(target("127.0.0.1:9", 1007, 1000..=1009), Ok("127.0.0.1:9".into()));
        assert_eq!(target("unix:/run/a", 1, 1..=1), Ok("unix:/run/a".into()));
        assert_eq!(
            target("127.0.0.1:2000-2005", 1000, 1000..=1009),
            Err(AddressError::Ranges {
                listening: 10,
                target: 6
            })
        );
        assert!(target("[2001:db8::1]:443", 1, 1..=1).is_err(), "wrong family");
        assert_eq!(
            target("[::1]:443", 1, 1..=1),
            Ok("127.0.0.1:443".into()),
            "a server on [::]"
        );
        assert_eq!(
            target("[::ffff:127.0.0.1]:443", 1, 1..=1),
            Ok("127.0.0.1:443".into()),
            "mapped is IPv4"
        );
        assert_eq!(target("localhost:80", 1, 1..=1), Ok("127.0.0.1:80".into()));
    }
}
