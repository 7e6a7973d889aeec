//! The system calls that no safe library here offers: batches of datagrams, a few socket options, passed descriptors.
//! All `unsafe` of this crate is in this file; every function in it is safe for any argument.
#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ffi::c_int;
use std::io::{self, IoSlice};
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

/// Most datagrams that one system call takes or gives.
pub const BATCH: usize = 64;

/// Room for one datagram, or for several that the kernel coalesced: the largest UDP payload fits.
const SLOT: usize = 65_536;

/// Room for control messages of one datagram: `IPV6_PKTINFO` (40) and `UDP_GRO`/`UDP_SEGMENT` (24), aligned.
const CONTROL: usize = 96;

/// Sets an integer socket option.
///
/// # Errors
/// What `setsockopt` reports.
pub fn set_option(fd: impl AsFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which the kernel only reads during the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            ptr::from_ref(&value).cast(),
            mem::size_of::<c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Lets a socket hold twice this many bytes to be sent, whatever the system's limit. The kernel may still take that back
/// when memory is short.
///
/// # Errors
/// What `setsockopt` reports: `EPERM` without `CAP_NET_ADMIN`.
pub fn set_send_buffer(fd: impl AsFd, bytes: usize) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes)?;
    // A size that was set is locked; kernels before 5.14 have no way to undo that.
    let _ = set_option(&fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK, 0);
    Ok(())
}

/// One instruction of classic BPF.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Distance to jump if true.
    pub jump_true: u8,
    /// Distance to jump if false.
    pub jump_false: u8,
    /// Operand.
    pub operand: u32,
}

/// Lets this program choose the socket of a `SO_REUSEPORT` group by what a datagram says.
///
/// # Errors
/// What `setsockopt` reports; the kernel checks the program.
pub fn attach_reuseport_program(fd: impl AsFd, program: &[Instruction]) -> io::Result<()> {
    attach(fd, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

fn attach(fd: impl AsFd, level: c_int, name: c_int, program: &[Instruction]) -> io::Result<()> {
    let mut filter = raw_filter(program);
    let length = u16::try_from(filter.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let header = libc::sock_fprog {
        len: length,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: `header` points to `filter`, which has `length` instructions; both outlive the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            ptr::from_ref(&header).cast(),
            mem::size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn raw_filter(program: &[Instruction]) -> Vec<libc::sock_filter> {
    let raw = |one: &Instruction| libc::sock_filter {
        code: one.code,
        jt: one.jump_true,
        jf: one.jump_false,
        k: one.operand,
    };
    program.iter().map(raw).collect()
}

/// A duplicate, closed on exec, of a descriptor that was passed by number.
///
/// # Errors
/// If the number is no open descriptor.
pub fn duplicate_passed(number: i32) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: it is only used for one system call, which fails with EBADF if the number is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    Ok(rustix::io::fcntl_dupfd_cloexec(borrowed, 3)?)
}

/// One datagram as it came in; several if the kernel coalesced them.
#[derive(Copy, Clone, Debug)]
pub struct Received<'a> {
    /// Payload.
    pub data: &'a [u8],
    /// Who sent it; `None` on connected sockets that did not ask.
    pub from: Option<SocketAddr>,
    /// The address of ours that it was sent to, if the socket asks for it.
    pub to: Option<IpAddr>,
    /// Length of each datagram but the last in `data`, if there are several.
    pub segment: Option<usize>,
    /// More came than there was room for.
    pub truncated: bool,
}

impl<'a> Received<'a> {
    /// The datagrams in it.
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let data = self.data;
        let length = self.segment.unwrap_or(data.len()).max(1);
        let empty = data.is_empty().then_some(data);
        empty.into_iter().chain(data.chunks(length))
    }
}

#[repr(align(8))]
#[derive(Clone)]
struct Control([u8; CONTROL]);

/// Buffers for [`BATCH`] datagrams. Pages of slots that are never used are never touched.
pub struct RecvBatch {
    data: Vec<u8>,
    control: Vec<Control>,
    names: Vec<libc::sockaddr_storage>,
    lengths: Vec<(u32, u32, u32, c_int)>,
}

impl RecvBatch {
    /// Makes the buffers.
    pub fn new() -> Self {
        // SAFETY: all-zero bytes are a valid `sockaddr_storage`, which is plain data.
        let name: libc::sockaddr_storage = unsafe { mem::zeroed() };
        RecvBatch {
            data: vec![0; BATCH * SLOT],
            control: vec![Control([0; CONTROL]); BATCH],
            names: vec![name; BATCH],
            lengths: vec![(0, 0, 0, 0); BATCH],
        }
    }

    /// Receives into the slots from `first` on without waiting, at most `limit`; returns how many were filled.
    ///
    /// # Errors
    /// What `recvmmsg` reports, `WouldBlock` if there is nothing.
    pub fn receive(&mut self, fd: impl AsFd, first: usize, limit: usize) -> io::Result<usize> {
        let count = BATCH.saturating_sub(first).min(limit);
        match count {
            0 => Ok(0),
            1..=8 => self.receive_up_to::<8>(fd, first, count),
            _ => self.receive_up_to::<BATCH>(fd, first, count),
        }
    }

    fn receive_up_to<const MOST: usize>(&mut self, fd: impl AsFd, first: usize, count: usize) -> io::Result<usize> {
        let count = count.min(MOST);
        // SAFETY: all-zero bytes are valid for both, which are plain data with null pointers.
        let (mut vectors, mut headers): ([libc::iovec; MOST], [libc::mmsghdr; MOST]) =
            unsafe { (mem::zeroed(), mem::zeroed()) };
        let slots = self.data[first * SLOT..].chunks_exact_mut(SLOT);
        let slots = slots
            .zip(&mut self.control[first..])
            .zip(&mut self.names[first..])
            .take(count);
        for ((((data, control), name), vector), header) in slots.zip(&mut vectors).zip(&mut headers) {
            *vector = libc::iovec {
                iov_base: data.as_mut_ptr().cast(),
                iov_len: data.len(),
            };
            header.msg_hdr.msg_name = ptr::from_mut(name).cast();
            header.msg_hdr.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL as _;
        }
        // SAFETY: each of the first `count` headers points to its own slot of data, control and name, which belong to
        // `self` and outlive the call.
        let result = unsafe {
            libc::recvmmsg(
                fd.as_fd().as_raw_fd(),
                headers.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let received = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
        for (lengths, header) in self.lengths[first..].iter_mut().zip(&headers[..received]) {
            let control = header.msg_hdr.msg_controllen as u32;
            *lengths = (
                header.msg_len,
                control,
                header.msg_hdr.msg_namelen,
                header.msg_hdr.msg_flags,
            );
        }
        Ok(received)
    }

    /// Bytes of a slot; fewer if it has fewer.
    pub fn bytes(&self, slot: usize, start: usize, length: usize) -> &[u8] {
        let slot = &self.data[slot * SLOT..(slot + 1) * SLOT];
        slot.get(start..start + length).unwrap_or_default()
    }

    /// What is in a slot since the last [`receive`](Self::receive) that filled it.
    pub fn message(&self, slot: usize) -> Received<'_> {
        let (length, control, name, flags) = self.lengths[slot];
        let start = slot * SLOT;
        let mut received = Received {
            data: &self.data[start..start + (length as usize).min(SLOT)],
            from: if name == 0 { None } else { from_raw(&self.names[slot]) },
            to: None,
            segment: None,
            truncated: flags & libc::MSG_TRUNC != 0,
        };
        read_control(&self.control[slot].0[..(control as usize).min(CONTROL)], &mut received);
        received
    }
}

impl Default for RecvBatch {
    fn default() -> Self {
        Self::new()
    }
}

/// Walks the control messages: each has length (8 bytes), level and type (4 each), and is padded to 8 bytes.
fn read_control(mut control: &[u8], received: &mut Received<'_>) {
    while let Some((length, rest)) = control.split_first_chunk::<8>() {
        let length = usize::from_ne_bytes(*length);
        let (Some(level), Some(kind)) = (
            rest.first_chunk::<4>(),
            rest.get(4..).and_then(<[u8]>::first_chunk::<4>),
        ) else {
            return;
        };
        let Some(value) = control.get(16..length) else { return };
        match (i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind)) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let segment = value.first_chunk().map(|segment| c_int::from_ne_bytes(*segment));
                received.segment = segment
                    .and_then(|segment| usize::try_from(segment).ok())
                    .filter(|&length| length != 0);
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // in_pktinfo: index, the local address to answer from, the destination of the packet.
                let octets = value.get(8..).and_then(<[u8]>::first_chunk::<4>);
                received.to = octets.map(|octets| IpAddr::from(*octets));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                received.to = value.first_chunk::<16>().map(|octets| IpAddr::from(*octets));
            }
            _ => {}
        }
        control = control.get(length.next_multiple_of(8)..).unwrap_or_default();
    }
}

/// One system call's worth of outgoing data on a datagram socket.
#[derive(Copy, Clone, Debug)]
pub struct Outgoing<'a> {
    /// The payload in pieces.
    pub parts: &'a [IoSlice<'a>],
    /// Where to; `None` on connected sockets.
    pub to: Option<SocketAddr>,
    /// The address of ours to send from, on sockets bound to any.
    pub from: Option<IpAddr>,
    /// Cut the payload into datagrams of this length (the last may be shorter).
    pub segment: Option<u16>,
}

/// Sends up to [`BATCH`] messages without waiting; returns how many were sent.
///
/// # Errors
/// What `sendmmsg` reports for the first message.
pub fn send_messages(fd: impl AsFd, messages: &[Outgoing<'_>]) -> io::Result<usize> {
    // Headers, names and controls of a full batch are 18 kB to clear: a single datagram shall not pay for that.
    match messages.len() {
        0 => Ok(0),
        1 => send_up_to::<1>(fd, messages),
        2..=8 => send_up_to::<8>(fd, messages),
        _ => send_up_to::<BATCH>(fd, messages),
    }
}

fn send_up_to<const MOST: usize>(fd: impl AsFd, messages: &[Outgoing<'_>]) -> io::Result<usize> {
    let count = messages.len().min(MOST);
    // SAFETY: all-zero bytes are valid for these, which are plain data with null pointers.
    let (mut headers, mut names): ([libc::mmsghdr; MOST], [libc::sockaddr_storage; MOST]) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut controls = [const { Control([0; CONTROL]) }; MOST];
    let places = headers.iter_mut().zip(&mut names).zip(&mut controls);
    for (message, ((header, name), control)) in messages[..count].iter().zip(places) {
        if let Some(to) = message.to {
            header.msg_hdr.msg_namelen = to_raw(to, name);
            header.msg_hdr.msg_name = ptr::from_mut(name).cast();
        }
        // `IoSlice` is guaranteed to have the layout of `iovec`; the kernel does not write to it when sending.
        header.msg_hdr.msg_iov = message.parts.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_iovlen = message.parts.len() as _;
        let length = write_control(message, &mut control.0);
        if length != 0 {
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = length as _;
        }
    }
    // SAFETY: each of the first `count` headers points to parts that `messages` borrows and to a name and control of its
    // own, with their lengths; all outlive the call.
    let result = unsafe {
        libc::sendmmsg(
            fd.as_fd().as_raw_fd(),
            headers.as_mut_ptr(),
            count as u32,
            (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
        )
    };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Writes the control messages and returns their length.
fn write_control(message: &Outgoing<'_>, control: &mut [u8; CONTROL]) -> usize {
    let mut at = 0;
    let mut put = |level: c_int, kind: c_int, value: &[u8]| {
        let length = 16 + value.len();
        let Some(place) = control.get_mut(at..at + length) else {
            return;
        };
        place[..8].copy_from_slice(&length.to_ne_bytes());
        place[8..12].copy_from_slice(&level.to_ne_bytes());
        place[12..16].copy_from_slice(&kind.to_ne_bytes());
        place[16..].copy_from_slice(value);
        at += length.next_multiple_of(8);
    };
    match message.from {
        Some(IpAddr::V4(from)) => {
            let mut value = [0; 12];
            value[4..8].copy_from_slice(&from.octets());
            put(libc::IPPROTO_IP, libc::IP_PKTINFO, &value);
        }
        Some(IpAddr::V6(from)) => {
            let mut value = [0; 20];
            value[..16].copy_from_slice(&from.octets());
            put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &value);
        }
        None => {}
    }
    if let Some(segment) = message.segment {
        put(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    }
    at
}

fn from_raw(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that the storage, which is large and aligned enough for any, holds this type.
            let name = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(name.sin6_port), 0, name.sin6_scope_id).into())
        }
        _ => None,
    }
}

fn to_raw(address: SocketAddr, name: &mut libc::sockaddr_storage) -> libc::socklen_t {
    match address {
        SocketAddr::V4(address) => {
            // SAFETY: the storage is large and aligned enough for any socket address, which is plain data.
            let name = unsafe { &mut *ptr::from_mut(name).cast::<libc::sockaddr_in>() };
            name.sin_family = libc::AF_INET as libc::sa_family_t;
            name.sin_port = address.port().to_be();
            name.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            mem::size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        SocketAddr::V6(address) => {
            // SAFETY: as above.
            let name = unsafe { &mut *ptr::from_mut(name).cast::<libc::sockaddr_in6>() };
            name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            name.sin6_port = address.port().to_be();
            name.sin6_addr.s6_addr = address.ip().octets();
            name.sin6_scope_id = address.scope_id();
            mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privileges::{Role, enter_sandbox};
    use std::net::UdpSocket;

    #[test]
    fn the_sandbox_has_no_new_namespaces() {
        let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
        let made = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true)?;
            enter_sandbox(Role::Relay)?;
            // SAFETY: no memory is shared; a child, which would be a defect, ends at once.
            let made = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(flags), 0, 0, 0, 0) };
            if made == 0 {
                // SAFETY: ends the child, without destructors.
                unsafe { libc::_exit(0) };
            }
            io::Result::Ok((made, io::Error::last_os_error().kind()))
        });
        let made = made.join().expect("the thread lives on").expect("filters");
        assert_eq!(made, (-1, io::ErrorKind::PermissionDenied));
    }

    #[test]
    fn batches_carry_addresses_and_segments() {
        let receiver = UdpSocket::bind("127.0.0.1:0").expect("socket");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("socket");
        let to = receiver.local_addr().expect("address");
        set_option(&receiver, libc::IPPROTO_IP, libc::IP_PKTINFO, 1).expect("pktinfo");
        set_option(&receiver, libc::SOL_UDP, libc::UDP_GRO, 1).expect("gro");
        let pieces = [IoSlice::new(b"aaaa"), IoSlice::new(b"bbbb"), IoSlice::new(b"cc")];
        let single = [IoSlice::new(b"single")];
        let messages = [
            Outgoing {
                parts: &pieces,
                to: Some(to),
                from: None,
                segment: Some(4),
            },
            Outgoing {
                parts: &[],
                to: Some(to),
                from: None,
                segment: None,
            },
            Outgoing {
                parts: &single,
                to: Some(to),
                from: Some("127.0.0.1".parse().expect("ip")),
                segment: None,
            },
        ];
        assert_eq!(send_messages(&sender, &messages).expect("sent"), 3);
        let mut batch = RecvBatch::new();
        let mut seen = vec![];
        let mut slot = 0;
        while seen.len() < 5 {
            slot += batch.receive(&receiver, slot, BATCH).expect("received");
            seen = (0..slot)
                .flat_map(|slot| batch.message(slot).datagrams().map(<[u8]>::to_vec).collect::<Vec<_>>())
                .collect();
        }
        assert_eq!(seen, [&b"aaaa"[..], b"bbbb", b"cc", b"", b"single"]);
        let message = batch.message(0);
        assert_eq!(message.from, sender.local_addr().ok());
        assert_eq!(message.to, Some("127.0.0.1".parse().expect("ip")));
        assert_eq!(
            batch.receive(&receiver, 0, 1).expect_err("empty").kind(),
            io::ErrorKind::WouldBlock
        );
    }
}
