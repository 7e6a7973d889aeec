//! A TAP device: an Ethernet interface of the Linux kernel whose cable is a file.
//!
//! What the kernel sends through the interface is read here, frame by frame, and what is written here the kernel receives.
//! [`Tap::open`] makes the interface, in another network namespace if asked to, and gives it MAC address, MTU, addresses
//! and routes; it goes when the value is dropped. Nothing here is for a packet core: every call is a system call. Whoever
//! has frames for the kernel hands them to a thread of its own.
//!
//! No DPDK: works on every kernel with `/dev/net/tun`, needs `CAP_NET_ADMIN`, and for a namespace `CAP_SYS_ADMIN`.
//!
//! Source: Linux' `Documentation/networking/tuntap.rst`, rtnetlink(7), setns(2).

#![allow(unsafe_code)] // one ioctl, for which no crate here has a safe form

mod link;

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustix::time::Timespec;

use crate::wire::MacAddr;

/// The longest name that the kernel takes (`IFNAMSIZ` less the NUL).
pub const MAX_NAME: usize = 15;

/// The device that makes TAPs.
const TUN: &str = "/dev/net/tun";

/// What a TAP is to be.
#[derive(Clone, Debug, Default)]
pub struct TapOptions {
    /// The interface's name: 1 to [`MAX_NAME`] bytes without `/`, blanks and `%`. One that exists is attached to, if it is
    /// a TAP that nobody holds.
    pub name: String,
    /// The network namespace below `/run/netns` that the interface is to be in; none: the calling thread's.
    pub namespace: Option<String>,
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its MTU, in bytes.
    pub mtu: u16,
    /// Its addresses with the length of their on-link prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Prefixes that are reached through it, each by a router.
    pub routes: Vec<((IpAddr, u8), IpAddr)>,
    /// First and last TCP and UDP port that programs in the namespace get for their own connections; only with a
    /// `namespace`, whose setting it is.
    pub ephemeral_ports: Option<(u16, u16)>,
}

/// Why there is no TAP.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The kernel has no TAP devices, or this process may not have one.
    #[error("{TUN} cannot be opened: {0}; `modprobe tun` makes it, and it needs read and write permission")]
    NoTun(io::Error),
    /// No namespace of that name.
    #[error(
        "network namespace {name} cannot be entered: {source}; `ip netns add {name}` makes one, entering it needs root"
    )]
    Namespace {
        /// The name.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// The interface was refused.
    #[error("interface {name} was not made: {source}{}", hint(source))]
    Refused {
        /// The name.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// Something about the interface was refused.
    #[error("interface {name}: {what} was refused: {source}")]
    Setup {
        /// The name.
        name: String,
        /// What was to be set.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => "; it needs root or CAP_NET_ADMIN",
        Some(libc::EBUSY) => "; another program holds a device of this name",
        Some(libc::EINVAL) => "; an interface of this name exists that is no TAP",
        _ => "",
    }
}

/// A TAP device. Reads and writes never wait; [`Tap::wait`] does.
#[derive(Debug)]
pub struct Tap {
    file: OwnedFd,
    name: String,
}

impl Tap {
    /// Makes the interface and brings it up.
    ///
    /// # Errors
    /// [`TapError`]; nothing is left of the interface.
    pub fn open(options: &TapOptions) -> Result<Self, TapError> {
        let Some(namespace) = &options.namespace else {
            return Self::open_here(options);
        };
        let failed = |source| TapError::Namespace {
            name: namespace.clone(),
            source,
        };
        let handle = File::open(namespace_path(namespace)).map_err(failed)?;
        // A thread of its own: the calling one stays where it is.
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                let moved = move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network));
                moved.map_err(|errno| failed(errno.into()))?;
                Self::open_here(options)
            });
            there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn open_here(options: &TapOptions) -> Result<Self, TapError> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open(TUN, flags, Mode::empty()).map_err(|errno| TapError::NoTun(errno.into()))?;
        let name = options.name.clone();
        attach(&file, &name).map_err(|source| TapError::Refused {
            name: name.clone(),
            source,
        })?;
        let failed = |what: String, source| TapError::Setup {
            name: name.clone(),
            what,
            source,
        };
        let mut link = link::Link::of(&name).map_err(|error| failed("looking it up".into(), error))?;
        let up = link.set_up(options.mac, options.mtu);
        up.map_err(|error| failed(format!("MAC address {}, MTU {}", options.mac, options.mtu), error))?;
        for &(address, prefix) in &options.addresses {
            let added = link.add_address(address, prefix);
            added.map_err(|error| failed(format!("address {address}/{prefix}"), error))?;
        }
        for &((to, prefix), via) in &options.routes {
            let added = link.add_route(to, prefix, via);
            added.map_err(|error| failed(format!("the route to {to}/{prefix} by {via}"), error))?;
        }
        if let (Some((first, last)), Some(_)) = (options.ephemeral_ports, &options.namespace) {
            let range = "/proc/sys/net/ipv4/ip_local_port_range";
            let set = fs::write(range, format!("{first} {last}"));
            set.map_err(|error| failed(format!("{first} {last} in {range}"), error))?;
        }
        Ok(Self { file, name })
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the next frame that the kernel sends; none if there is none now. A frame that is longer than `into` is cut.
    ///
    /// # Errors
    /// What read(2) says: the interface is down, or gone.
    pub fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.file, into) {
            Ok(length) => Ok(Some(length)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Lets the kernel receive a frame.
    ///
    /// # Errors
    /// What write(2) says: the interface is down, the frame too short, or there is no memory.
    pub fn write(&self, frame: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.file, frame)?;
        Ok(())
    }

    /// Waits until there is a frame to read, for `limit` at most.
    pub fn wait(&self, limit: Duration) {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // An error is a wait that was too short: whoever waits looks again anyway.
        let _ = poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&limit));
    }
}

/// Where a named network namespace is found.
pub fn namespace_path(name: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(name)
}

/// Whether the kernel takes this as the name of an interface.
pub fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'%' | b':');
    (1..=MAX_NAME).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(is_plain)
}

/// Ties the open file to the interface `name`, which is made if it does not exist.
fn attach(file: &OwnedFd, name: &str) -> io::Result<()> {
    if !is_name(name) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no name for an interface"));
    }
    // `struct ifreq`: a name of 16 bytes, and here the flags in the first two of the union.
    let mut request = [0_u8; size_of::<libc::ifreq>()];
    request[..name.len()].copy_from_slice(name.as_bytes());
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI) as u16;
    request[libc::IFNAMSIZ..libc::IFNAMSIZ + 2].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which is what `request` has the size of.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, request.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_the_kernel_takes() {
        for good in ["a", "pe-k0", "kni:1".replace(':', "").as_str(), "fifteen-bytes-x"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "pe-k%d", "sixteen-bytes-xy", "ä"] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn a_namespace_that_is_not_there_is_named_with_the_command_that_makes_it() {
        let options = TapOptions {
            name: "pe-k0".into(),
            namespace: Some("no-such-namespace-here".into()),
            ..TapOptions::default()
        };
        let error = Tap::open(&options).expect_err("not there").to_string();
        assert!(error.contains("`ip netns add no-such-namespace-here`"), "{error}");
    }
}
