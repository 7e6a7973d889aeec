//! Attaching to an interface by a link, which ends with the descriptor that it returns (Linux 6.6).
#![allow(unsafe_code, reason = "libbpf-rs has no tcx links")]

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io;

/// Which way packets go.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Into the host.
    Ingress,
    /// Out of it.
    Egress,
}

/// Runs `program` on what passes the interface this way, for as long as the returned descriptor is open.
///
/// # Errors
/// What the kernel reports: no such interface, no tcx, no capability.
pub(super) fn attach(program: BorrowedFd<'_>, ifindex: u32, way: Way) -> io::Result<OwnedFd> {
    let kind = match way {
        Way::Ingress => libbpf_sys::BPF_TCX_INGRESS,
        Way::Egress => libbpf_sys::BPF_TCX_EGRESS,
    };
    let interface = i32::try_from(ifindex).map_err(io::Error::other)?;
    // SAFETY: no pointer is passed but the null of "no options".
    let result = unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), interface, kind, std::ptr::null()) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: the call has made the descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}
