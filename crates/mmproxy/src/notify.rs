//! The service manager: sockets that systemd passed, and telling it how we are.

use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::time::Duration;

/// First passed descriptor: sd_listen_fds(3).
const FIRST: i32 = 3;

/// Descriptors passed to this process with this name (all if `None`) and this type, with the address they are bound to.
pub fn passed_sockets(name: Option<&str>, stream: bool) -> Vec<(i32, Option<SocketAddr>)> {
    let variable = |key| std::env::var(key).ok();
    if variable("LISTEN_PID").and_then(|pid| pid.parse().ok()) != Some(std::process::id()) {
        return vec![];
    }
    let count = variable("LISTEN_FDS")
        .and_then(|count| count.parse::<i32>().ok())
        .unwrap_or(0)
        .clamp(0, 4096);
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let names: Vec<&str> = names.split(':').collect();
    (0..count)
        .filter(|&index| name.is_none_or(|name| names.get(index as usize) == Some(&name)))
        .filter_map(|index| {
            let fd = crate::sys::duplicate_passed(FIRST + index).ok()?;
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
            inet.then_some((FIRST + index, local))
        })
        .collect()
}

/// Sends a state such as `READY=1` to the service manager; nothing happens without one.
///
/// # Errors
/// If there is a manager that cannot be reached.
pub fn notify(state: &str) -> io::Result<()> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let socket = UnixDatagram::unbound()?;
    match path.to_str().and_then(|path| path.strip_prefix('@')) {
        Some(name) => {
            socket.send_to_addr(state.as_bytes(), &UnixAddr::from_abstract_name(name)?)?;
        }
        None => {
            socket.send_to(state.as_bytes(), &path)?;
        }
    }
    Ok(())
}

/// How often the service manager wants to hear from us, if it does.
pub fn watchdog_interval() -> Option<Duration> {
    let wanted = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    let for_us = std::env::var("WATCHDOG_PID").map_or(true, |pid| pid.parse() == Ok(std::process::id()));
    // Half of it, as sd_watchdog_enabled(3) recommends.
    for_us.then(|| Duration::from_micros(wanted) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_manager_nothing_is_passed() {
        assert!(passed_sockets(None, true).is_empty());
        assert_eq!(watchdog_interval(), None);
        assert!(notify("READY=1").is_ok());
    }
}
