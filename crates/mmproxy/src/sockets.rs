//! Opening sockets: listening ones, and those that connect to a server from the client's address.
//!
//! Over loopback nothing is lost, and nothing waits but in the sockets themselves: there is no congestion to control. BBR, which is
//! many systems' default for what goes far, estimates a rate there all the same and sends by a timer, which costs half of the
//! throughput (`bench mmproxy`). So connections that cannot leave this host get Reno instead of it, unless the
//! configuration names another.

use crate::address::{Family, Target};
use crate::config::{Bind, Duplicate, Listener, Protocol, SourcePort};
use crate::metrics::Reason;
use crate::plan::{Plan, Surroundings};
use crate::sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, ipproto, sockopt};
use socket2::{Domain, Socket, Type};
use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// `IPV6_TRANSPARENT` of linux/in6.h, which libc does not name on every platform.
const IPV6_TRANSPARENT: c_int = 75;

/// `IPPROTO_MPTCP` of linux/in.h.
const IPPROTO_MPTCP: c_int = 262;

/// The congestion control that every kernel has. It sends what the window allows at once.
const UNPACED: &str = "reno";

/// Opens the listening socket of `listener`, or duplicates the one that was passed.
///
/// # Errors
/// What the system reports; a missing capability is `PermissionDenied`.
pub fn listen(listener: &Listener) -> io::Result<OwnedFd> {
    let address = match &listener.bind {
        Bind::Address(address) => *address,
        Bind::Passed(number, _) => {
            let fd = sys::duplicate_passed(*number)?;
            rustix::io::ioctl_fionbio(&fd, true)?;
            set_inherited(&fd, listener)?;
            return Ok(fd);
        }
    };
    let kind = if listener.protocol == Protocol::Tcp {
        Type::STREAM
    } else {
        Type::DGRAM
    };
    let protocol = (listener.multipath && listener.protocol == Protocol::Tcp).then(|| IPPROTO_MPTCP.into());
    let socket = Socket::new(Domain::for_address(address), kind.nonblocking().cloexec(), protocol)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    if address.is_ipv6() {
        // `[::]` takes IPv4 as well, as with the peers.
        socket.set_only_v6(false)?;
    }
    if listener.transparent {
        set_transparent(&socket, address.ip())?;
    }
    set_inherited(&socket, listener)?;
    socket.bind(&address.into())?;
    if listener.protocol == Protocol::Tcp {
        socket.listen(listener.backlog)?;
    }
    Ok(socket.into())
}

/// Options that accepted connections inherit (so that they cost nothing for each), or that a UDP socket needs.
fn set_inherited(fd: impl AsFd, listener: &Listener) -> io::Result<()> {
    let local = match &listener.bind {
        Bind::Address(local) | Bind::Passed(_, Some(local)) => Some(*local),
        Bind::Passed(_, None) => None,
    };
    match listener.protocol {
        Protocol::Tcp => {
            sockopt::set_tcp_nodelay(&fd, true)?;
            set_keepalive(&fd, listener)?;
            let is_loopback = local.is_some_and(|local| local.ip().is_loopback());
            set_congestion(&fd, listener, is_loopback && is_paced(&fd))?;
            if listener.fast_open != 0 {
                sys::set_option(&fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, listener.fast_open as c_int)?;
            }
        }
        Protocol::Udp => {
            let Some(local) = local else { return Ok(()) };
            // Coalesced datagrams are an optimisation that old kernels lack.
            let _ = sys::set_option(&fd, libc::SOL_UDP, libc::UDP_GRO, 1);
            // Bursts are what batching is for; the system's limit may cut this.
            let _ = sockopt::set_socket_recv_buffer_size(&fd, 4 << 20);
            let _ = sockopt::set_socket_send_buffer_size(&fd, 4 << 20);
            if local.ip().is_unspecified() || listener.transparent {
                // Replies leave from the address that the balancer sent to.
                match local {
                    SocketAddr::V4(_) => sys::set_option(&fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?,
                    SocketAddr::V6(_) => sys::set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?,
                }
            }
        }
    }
    Ok(())
}

fn set_keepalive(fd: impl AsFd, listener: &Listener) -> io::Result<()> {
    if let Some(time) = listener.keepalive {
        sockopt::set_socket_keepalive(&fd, true)?;
        sockopt::set_tcp_keepidle(&fd, time)?;
    }
    Ok(())
}

/// Sets the congestion control that the configuration names, or else the one without a timer if that is `unpaced`. Accepted
/// connections inherit it.
fn set_congestion(fd: impl AsFd, listener: &Listener, unpaced: bool) -> io::Result<()> {
    match &listener.congestion {
        Some(name) => sockopt::set_tcp_congestion(fd, name).map_err(|error| {
            let error = io::Error::from(error);
            io::Error::new(error.kind(), format!("congestion control {name}: {error}"))
        }),
        None => {
            if unpaced {
                // Nothing depends on it.
                let _ = sockopt::set_tcp_congestion(fd, UNPACED);
            }
            Ok(())
        }
    }
}

/// Whether the congestion control of a new TCP connection sends by a timer.
pub fn system_paces() -> bool {
    Socket::new(Domain::IPV4, Type::STREAM.cloexec(), None).is_ok_and(|socket| is_paced(&socket))
}

/// Whether a socket's congestion control sends by a timer: of Linux's own only BBR does.
fn is_paced(fd: impl AsFd) -> bool {
    sockopt::tcp_congestion(fd).is_ok_and(|name| name.starts_with("bbr"))
}

/// Allows binding to addresses that are not ours.
fn set_transparent(fd: impl AsFd, ip: IpAddr) -> io::Result<()> {
    match ip {
        IpAddr::V4(_) => sys::set_option(fd, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1),
        IpAddr::V6(_) => sys::set_option(fd, libc::IPPROTO_IPV6, IPV6_TRANSPARENT, 1),
    }
}

/// Why there is no connection to the target.
#[derive(Debug)]
pub struct ConnectError {
    /// For the counters.
    pub reason: Reason,
    /// What the system said.
    pub error: io::Error,
}

impl ConnectError {
    fn new(reason: Reason, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        let reason = match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => Reason::NoResources,
            _ => reason,
        };
        ConnectError { reason, error }
    }
}

/// A socket that connects, or is connected.
#[derive(Debug)]
pub struct Connecting {
    /// The socket.
    pub fd: OwnedFd,
    /// The client's port was in use, so that the kernel chose another.
    pub port_changed: bool,
}

/// Connects to the target of `plan` without waiting, from its source if there is one.
///
/// # Errors
/// If no socket can be had, the source cannot be used, or the target refuses at once.
pub fn connect(listener: &Listener, surroundings: &Surroundings, plan: &Plan) -> Result<Connecting, ConnectError> {
    let target = match &plan.target {
        Target::Inet(target) => *target,
        Target::Unix(path) => {
            let failed = |error: Errno| ConnectError::new(Reason::ConnectFailed, error);
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let fd = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
            let address = SocketAddrUnix::new(path).map_err(failed)?;
            net::connect(&fd, &address).map_err(failed)?;
            return Ok(Connecting {
                fd,
                port_changed: false,
            });
        }
    };
    let unpaced = surroundings.paces && surroundings.is_here(target.ip());
    let source = plan.source.map(|source| match listener.source_port {
        SourcePort::Keep => source,
        SourcePort::Random => SocketAddr::new(source.ip(), 0),
    });
    match try_connect(listener, source, target, unpaced) {
        Ok(fd) => Ok(Connecting {
            fd,
            port_changed: false,
        }),
        Err(error) if is_duplicate(&error) => match source {
            Some(source) if source.port() != 0 && listener.duplicate == Duplicate::RandomPort => {
                let source = SocketAddr::new(source.ip(), 0);
                let fd = try_connect(listener, Some(source), target, unpaced)?;
                Ok(Connecting { fd, port_changed: true })
            }
            Some(_) => Err(ConnectError {
                reason: Reason::Duplicate,
                ..error
            }),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// The client's address and port are in use towards this target, by a connection or its TIME-WAIT.
fn is_duplicate(error: &ConnectError) -> bool {
    matches!(error.error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EADDRINUSE))
}

fn try_connect(
    listener: &Listener,
    source: Option<SocketAddr>,
    target: SocketAddr,
    unpaced: bool,
) -> Result<OwnedFd, ConnectError> {
    let tcp = listener.protocol == Protocol::Tcp;
    let (kind, protocol) = if tcp {
        (SocketType::STREAM, ipproto::TCP)
    } else {
        (SocketType::DGRAM, ipproto::UDP)
    };
    let family = if target.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let failed = |error: Errno| ConnectError::new(Reason::ConnectFailed, error);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = net::socket_with(family, kind, flags, Some(protocol)).map_err(failed)?;
    if let Some(source) = source {
        bind_source(&fd, source, target).map_err(|error| ConnectError::new(Reason::SpoofFailed, error))?;
    }
    let option = |error: io::Error| ConnectError::new(Reason::SpoofFailed, error);
    if listener.mark != 0 {
        sys::set_option(&fd, libc::SOL_SOCKET, libc::SO_MARK, listener.mark as c_int).map_err(option)?;
    }
    if tcp {
        set_congestion(&fd, listener, unpaced).map_err(|error| ConnectError::new(Reason::ConnectFailed, error))?;
        // TCP_NODELAY is set before the second write: see `relay::Endpoint`.
        // On loopback the kernel itself tells when the other side is gone.
        if !target.ip().to_canonical().is_loopback() {
            set_keepalive(&fd, listener).map_err(option)?;
        }
    } else {
        let _ = sys::set_option(&fd, libc::SOL_UDP, libc::UDP_GRO, 1);
    }
    match net::connect(&fd, &target) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(error) => Err(failed(error)),
    }
}

/// Binds to the client's address. Source and target are of one family, or this fails.
fn bind_source(fd: &OwnedFd, source: SocketAddr, target: SocketAddr) -> io::Result<()> {
    let source = match (source.ip().to_canonical(), target) {
        (IpAddr::V4(ip), SocketAddr::V4(_)) => SocketAddr::from((ip, source.port())),
        (IpAddr::V6(ip), SocketAddr::V6(_)) => SocketAddr::from((ip, source.port())),
        _ => return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
    };
    set_transparent(fd, source.ip())?;
    sockopt::set_socket_reuseaddr(fd, true)?;
    if source.port() == 0 {
        // The port is then chosen at connect, where the target counts: 64 k ports per target, not per address.
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
    }
    net::bind(fd, &source)?;
    Ok(())
}

/// Connects from `source` as a proxy would, and waits: for `mmproxy check`.
///
/// # Errors
/// What the first step that fails reports.
pub fn probe_connect(source: IpAddr, target: SocketAddr, mark: u32, wait: std::time::Duration) -> io::Result<()> {
    let listener = Listener {
        mark,
        ..Listener::default()
    };
    let source = SocketAddr::new(source, 0);
    let fd = try_connect(&listener, Some(source), target, false).map_err(|failed| failed.error)?;
    let mut poll = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::OUT)];
    let wait = rustix::time::Timespec::try_from(wait).map_err(io::Error::other)?;
    if rustix::event::poll(&mut poll, Some(&wait))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    sockopt::socket_error(&fd)??;
    Ok(())
}

/// An address that nobody has, to test with: TEST-NET-1 and the documentation prefix.
pub fn test_source(family: Family) -> IpAddr {
    match family {
        Family::V6 => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        Family::V4 | Family::Any => IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    }
}

/// Descriptors passed to this process with this name (all if `None`) and this type, with the address they are
/// bound to (sd_listen_fds(3)).
pub fn passed_sockets(name: Option<&str>, stream: bool) -> Vec<(i32, Option<SocketAddr>)> {
    let passed = match sd_notify::listen_fds_with_names() {
        Ok(passed) => passed.collect(),
        Err(error) => {
            log::warn!("what systemd has passed cannot be used: {error}");
            vec![]
        }
    };
    passed
        .into_iter()
        .filter(|(_, passed)| name.is_none_or(|name| passed == name))
        .filter_map(|(number, _)| {
            let fd = sys::duplicate_passed(number).ok()?;
            let wanted = if stream { SocketType::STREAM } else { SocketType::DGRAM };
            if sockopt::socket_type(&fd).ok()? != wanted {
                return None;
            }
            let inet = matches!(
                sockopt::socket_domain(&fd),
                Ok(AddressFamily::INET | AddressFamily::INET6)
            );
            let local = rustix::net::getsockname(&fd)
                .ok()
                .and_then(|local| SocketAddr::try_from(local).ok());
            inet.then_some((number, local))
        })
        .collect()
}
