//! System calls that nobody wraps: attaching to an interface by a link, which ends with the descriptor that it returns (Linux
//! 6.6), and a network of one's own.
#![allow(unsafe_code, reason = "libbpf-rs has no tcx links, rustix no safe unshare")]

use libbpf_rs::{MapCore, MapType};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Which way packets go.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Into the host.
    Ingress,
    /// Out of it.
    Egress,
}

impl Way {
    fn attach_type(self) -> libbpf_sys::bpf_attach_type {
        match self {
            Way::Ingress => libbpf_sys::BPF_TCX_INGRESS,
            Way::Egress => libbpf_sys::BPF_TCX_EGRESS,
        }
    }
}

/// The numbers of the programs that links run on what passes the interface this way, the first first.
///
/// # Errors
/// What the kernel reports: no such interface, no tcx, no capability.
pub(super) fn attached(ifindex: u32, way: Way) -> io::Result<Vec<u32>> {
    // `BPF_MPROG_MAX` of kernel/bpf/mprog.c.
    let mut ids = vec![0; 64];
    let interface = i32::try_from(ifindex).map_err(io::Error::other)?;
    let mut query = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
        prog_ids: ids.as_mut_ptr(),
        __bindgen_anon_1: libbpf_sys::bpf_prog_query_opts__bindgen_ty_1 {
            count: ids.len() as u32,
        },
        ..Default::default()
    };
    // SAFETY: `query` and the buffer that it names, with room for `count` numbers, outlive the call.
    checked(unsafe { libbpf_sys::bpf_prog_query_opts(interface, way.attach_type(), &raw mut query) })?;
    // SAFETY: both names of the field have the same type.
    ids.truncate(unsafe { query.__bindgen_anon_1.count } as usize);
    Ok(ids)
}

/// Runs `program` on what passes the interface this way, for as long as the returned descriptor is open.
///
/// # Errors
/// What the kernel reports: no such interface, no tcx, no capability.
pub(super) fn attach(program: BorrowedFd<'_>, ifindex: u32, way: Way) -> io::Result<OwnedFd> {
    let interface = i32::try_from(ifindex).map_err(io::Error::other)?;
    // SAFETY: no pointer is passed but the null of "no options".
    let result =
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), interface, way.attach_type(), std::ptr::null()) };
    let link = checked(result)?;
    // SAFETY: the call has made the descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::from_raw_os_error(-result))
    } else {
        Ok(result)
    }
}

/// Gives a link or map a name in a BPF file system, by which it stays.
///
/// # Errors
/// What the kernel reports: the name is there already, another file system.
pub(super) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the text ends with a zero and outlives the call.
    checked(unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) })?;
    Ok(())
}

/// What has this name in a BPF file system.
///
/// # Errors
/// What the kernel reports.
pub(super) fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: the text ends with a zero and outlives the call.
    let fd = checked(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })?;
    // SAFETY: the call has made the descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Puts `program` in the place of what the link runs, between two packets.
///
/// # Errors
/// What the kernel reports: the link's interface has gone.
pub(super) fn replace(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointer is passed but the null of "no options".
    checked(unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) })?;
    Ok(())
}

/// Entries of a hash, one after the other.
pub(super) struct Batch {
    pub(super) keys: Vec<u8>,
    pub(super) values: Vec<u8>,
    /// Where the next batch begins; `None` after the last.
    pub(super) next: Option<u32>,
}

/// Reads some `room` entries of a hash in one system call, from where a batch before has ended. What others write meanwhile may be
/// missing or there twice. libbpf-rs ends with the first batch that is not full, which any but the last may be.
///
/// # Errors
/// What the kernel reports; if the map is no plain hash.
pub(super) fn read_batch(map: &impl MapCore, from: Option<u32>, room: u32) -> io::Result<Batch> {
    // Where the kernel goes on is the number of a chain of the hash.
    if map.map_type() != MapType::Hash {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let bytes = |size: u32| vec![0; size as usize * room as usize];
    let (mut keys, mut values) = (bytes(map.key_size()), bytes(map.value_size()));
    let (mut from, mut next, mut count) = (from, 0u32, room);
    let begin = from.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: both buffers have room for `count` entries of this map's sizes, and the numbers are the 4 bytes that a hash takes;
    // the kernel writes no more than that, and all outlive the call.
    let result = unsafe {
        libbpf_sys::bpf_map_lookup_batch(
            map.as_fd().as_raw_fd(),
            begin.cast(),
            std::ptr::from_mut(&mut next).cast(),
            keys.as_mut_ptr().cast(),
            values.as_mut_ptr().cast(),
            &raw mut count,
            std::ptr::null(),
        )
    };
    let is_last = match checked(result) {
        Ok(_) => false,
        // All others than this have read nothing.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
        Err(error) => return Err(error),
    };
    keys.truncate(count as usize * map.key_size() as usize);
    values.truncate(count as usize * map.value_size() as usize);
    Ok(Batch {
        keys,
        values,
        next: (!is_last).then_some(next),
    })
}

/// Moves this thread into a new network namespace, with loopback up. It ends with the thread and what it has open.
///
/// # Errors
/// What the kernel reports: `CAP_SYS_ADMIN` is needed.
pub(super) fn enter_private_network() -> io::Result<()> {
    // SAFETY: no pointer is passed, and the network is no resource whose separation breaks Rust's rules.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    let mut name = [0; libc::IFNAMSIZ];
    (name[0], name[1]) = (b'l' as libc::c_char, b'o' as libc::c_char);
    let request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short,
        },
    };
    // SAFETY: `request` outlives the call, which reads it only, and is what this request takes.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
