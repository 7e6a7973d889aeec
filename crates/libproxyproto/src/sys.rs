//! The C library's own functions, and the few system calls that are made here, as safe functions.
#![allow(unsafe_code)]

use crate::stash;
use libc::{c_char, c_int, c_void, sockaddr, socklen_t};
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

/// A function of the next library in line, looked up at its first use.
pub(crate) struct Next {
    name: &'static std::ffi::CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static std::ffi::CStr) -> Self {
        Next {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Looks it up, so that no signal handler has to: the loader has locks.
    pub(crate) fn prepare(&self) {
        // SAFETY: the name is a C string; the call has no other condition.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
    }

    /// Its address.
    ///
    /// # Safety
    /// `F` is the type of a pointer to that function.
    pub(crate) unsafe fn get<F: Copy>(&self) -> Option<F> {
        const { assert!(mem::size_of::<F>() == mem::size_of::<*mut c_void>()) };
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            // A constructor that runs before ours.
            self.prepare();
            address = self.address.load(Ordering::Relaxed);
        }
        if address.is_null() {
            return None;
        }
        // SAFETY: it is not null, so it is the function of that name, of which the caller says that `F` is the type.
        Some(unsafe { mem::transmute_copy(&address) })
    }
}

type Accept4 = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;

pub(crate) static ACCEPT4: Next = Next::new(c"accept4");

/// Accepts a connection with these flags; the address is that of the peer if it is an IP connection.
pub(crate) fn accept(listener: c_int, flags: c_int) -> io::Result<(c_int, Option<SocketAddr>)> {
    // SAFETY: all-zero bytes are a valid `sockaddr_storage`.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let mut length = mem::size_of_val(&storage) as socklen_t;
    // SAFETY: this is the type of accept4(2).
    let accept4 = unsafe { ACCEPT4.get::<Accept4>() }.ok_or(io::ErrorKind::Unsupported)?;
    // SAFETY: the pointers are to local variables, with the storage's length.
    let fd = unsafe { accept4(listener, ptr::from_mut(&mut storage).cast(), &mut length, flags) };
    if fd < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok((fd, from_storage(&storage)))
    }
}

pub(crate) fn from_storage(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is; the storage is large and aligned enough for any.
            let name = unsafe { &*ptr::from_ref(storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { &*ptr::from_ref(storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(name.sin6_port), 0, name.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// An address in the kernel's form, and its length.
pub(crate) fn to_storage(address: SocketAddr) -> (libc::sockaddr_storage, socklen_t) {
    // SAFETY: all-zero bytes are a valid `sockaddr_storage`.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let length = match address {
        SocketAddr::V4(address) => {
            // SAFETY: the storage is large and aligned enough for any socket address, which is plain data.
            let name = unsafe { &mut *ptr::from_mut(&mut storage).cast::<libc::sockaddr_in>() };
            name.sin_family = libc::AF_INET as libc::sa_family_t;
            name.sin_port = address.port().to_be();
            name.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            mem::size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            // SAFETY: as above.
            let name = unsafe { &mut *ptr::from_mut(&mut storage).cast::<libc::sockaddr_in6>() };
            name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            name.sin6_port = address.port().to_be();
            name.sin6_addr.s6_addr = address.ip().octets();
            name.sin6_scope_id = address.scope_id();
            mem::size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as socklen_t)
}

/// Receives without waiting. With `flags` of `MSG_PEEK` the bytes stay.
pub(crate) fn receive(fd: c_int, into: &mut [u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: the pointer and length are those of `into`.
    let count = unsafe { libc::recv(fd, into.as_mut_ptr().cast(), into.len(), flags | libc::MSG_DONTWAIT) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Sends without waiting.
pub(crate) fn send(fd: c_int, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length are those of `bytes`.
    let count = unsafe {
        libc::send(
            fd,
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Closes a descriptor that nobody else uses.
pub(crate) fn close(fd: c_int) {
    // SAFETY: closing has no memory to be wrong about; whether the number is ours is the callers' care.
    unsafe { libc::close(fd) };
}

/// An integer socket option of the socket level.
pub(crate) fn option(fd: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut length = mem::size_of_val(&value) as socklen_t;
    // SAFETY: the pointers are to local variables, with the value's length.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            name,
            ptr::from_mut(&mut value).cast(),
            &mut length,
        )
    };
    (result == 0).then_some(value)
}

/// Sets an integer socket option.
pub(crate) fn set_option(fd: c_int, level: c_int, name: c_int, value: c_int) {
    // SAFETY: the pointer is to a local variable, with its length.
    unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            ptr::from_ref(&value).cast(),
            mem::size_of_val(&value) as socklen_t,
        );
    }
}

/// The number that the kernel gives a socket and no other, ever.
pub(crate) fn cookie(fd: c_int) -> Option<u64> {
    let mut value: u64 = 0;
    let mut length = mem::size_of_val(&value) as socklen_t;
    // SAFETY: the pointers are to local variables, with the value's length.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            ptr::from_mut(&mut value).cast(),
            &mut length,
        )
    };
    (result == 0).then_some(value)
}

/// The address a socket is bound to.
pub(crate) fn local_address(fd: c_int) -> Option<SocketAddr> {
    // SAFETY: all-zero bytes are a valid `sockaddr_storage`.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let mut length = mem::size_of_val(&storage) as socklen_t;
    // By system call: `getsockname` of this library would come back here.
    // SAFETY: the pointers are to local variables, with the storage's length.
    let result = unsafe { libc::syscall(libc::SYS_getsockname, fd, ptr::from_mut(&mut storage), &mut length) };
    if result == 0 { from_storage(&storage) } else { None }
}

/// Makes the descriptor what `accept4` with these flags would have made it.
pub(crate) fn set_flags(fd: c_int, flags: c_int) {
    // SAFETY: these requests take integers.
    unsafe {
        let status = libc::fcntl(fd, libc::F_GETFL);
        let wanted = if flags & libc::SOCK_NONBLOCK != 0 {
            status | libc::O_NONBLOCK
        } else {
            status & !libc::O_NONBLOCK
        };
        libc::fcntl(fd, libc::F_SETFL, wanted);
        libc::fcntl(
            fd,
            libc::F_SETFD,
            if flags & libc::SOCK_CLOEXEC != 0 {
                libc::FD_CLOEXEC
            } else {
                0
            },
        );
    }
}

/// Whether a descriptor is open and stays so across `exec`.
pub(crate) fn survives_exec(fd: c_int) -> bool {
    // SAFETY: this request has no argument.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Attaches the program to a socket.
pub(crate) fn attach(fd: c_int, program: &stash::Program) -> bool {
    let mut filter = program.map(|(code, k)| libc::sock_filter { code, jt: 0, jf: 0, k });
    let header = libc::sock_fprog {
        len: stash::LENGTH as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the header points to `filter` with its length; the kernel copies both during the call.
    unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            ptr::from_ref(&header).cast(),
            mem::size_of_val(&header) as socklen_t,
        ) == 0
    }
}

/// The program that is attached to a socket, if it has the length of ours.
pub(crate) fn attached(fd: c_int) -> Option<stash::Program> {
    let mut filter = [libc::sock_filter {
        code: 0,
        jt: 0,
        jf: 0,
        k: 0,
    }; stash::LENGTH];
    // In and out in instructions. Asked for more than there is, the kernel says how many; for fewer, it refuses.
    let mut length = stash::LENGTH as socklen_t;
    // SAFETY: the buffer has room for as many instructions as `length` says.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_GET_FILTER,
            filter.as_mut_ptr().cast(),
            &mut length,
        )
    };
    (result == 0 && length as usize == stash::LENGTH).then(|| filter.map(|one| (one.code, one.k)))
}

/// One end of a channel between threads or processes, with the cookie that tells it from whatever has its number after a
/// server has closed all descriptors that it does not know.
#[derive(Copy, Clone)]
pub(crate) struct End {
    fd: c_int,
    cookie: u64,
}

impl End {
    /// The descriptor, while it is still this one.
    pub(crate) fn fd(self) -> Option<c_int> {
        (cookie(self.fd) == Some(self.cookie)).then_some(self.fd)
    }
}

/// Two ends of a channel that keeps messages apart: what is sent to one is received from the other.
pub(crate) fn channel() -> Option<[End; 2]> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the pointer is to two integers.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
        return None;
    }
    let [one, other] = fds.map(|fd| cookie(fd).map(|cookie| End { fd, cookie }));
    Some([one?, other?])
}

/// Bytes that were sent from this end and not yet received at the other.
pub(crate) fn in_flight(end: c_int) -> usize {
    let mut count: c_int = 0;
    // SAFETY: the request writes an integer.
    unsafe { libc::ioctl(end, libc::TIOCOUTQ, ptr::from_mut(&mut count)) };
    usize::try_from(count).unwrap_or(0)
}

/// Room for a control message with one descriptor.
#[repr(align(8))]
struct Rights([u8; 24]);

/// Length of a control message with one descriptor: header and value.
const RIGHTS: usize = 16 + mem::size_of::<c_int>();

/// Sends a message, and a descriptor with it; the sender keeps its own.
pub(crate) fn send_descriptor(end: c_int, bytes: &[u8], fd: c_int) -> bool {
    let mut control = Rights([0; 24]);
    control.0[..8].copy_from_slice(&RIGHTS.to_ne_bytes());
    control.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
    control.0[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
    control.0[16..20].copy_from_slice(&fd.to_ne_bytes());
    let mut vector = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all-zero bytes are a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    // SAFETY: the header points to local variables, with their lengths; the kernel only reads what `bytes` holds.
    unsafe { libc::sendmsg(end, &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) >= 0 }
}

/// Receives a message of this length and the descriptor that came with it.
pub(crate) fn receive_descriptor<const LENGTH: usize>(end: c_int) -> Option<([u8; LENGTH], c_int)> {
    let mut control = Rights([0; 24]);
    let mut bytes = [0; LENGTH];
    let mut vector = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all-zero bytes are a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    // SAFETY: the header points to local variables, with their lengths.
    let count = unsafe { libc::recvmsg(end, &mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    let whole = count == bytes.len() as isize && header.msg_controllen as usize >= RIGHTS;
    let fd = control.0[16..].first_chunk().map(|fd| c_int::from_ne_bytes(*fd))?;
    whole.then_some((bytes, fd))
}

/// Waits until one of the descriptors is readable or the time is over; says which are.
pub(crate) fn wait(fds: &[c_int], time: Option<Duration>) -> Vec<bool> {
    let mut polled: Vec<libc::pollfd> = fds
        .iter()
        .map(|&fd| libc::pollfd {
            fd,
            events: libc::POLLIN | libc::POLLRDHUP,
            revents: 0,
        })
        .collect();
    let time = time.map_or(-1, |time| c_int::try_from(time.as_millis() + 1).unwrap_or(c_int::MAX));
    // SAFETY: the pointer and length are those of `polled`.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, time) };
    polled.iter().map(|polled| polled.revents != 0).collect()
}

/// Connects without waiting, sends the bytes and closes. `false` if it did not work at once.
pub(crate) fn knock(address: SocketAddr, bytes: &[u8]) -> bool {
    let family = if address.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    // SAFETY: the call takes integers.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return false;
    }
    let (storage, length) = to_storage(address);
    // SAFETY: the pointer is to a local variable, with the address' length.
    unsafe { libc::connect(fd, ptr::from_ref(&storage).cast(), length) };
    // On one host it is connected by now, unless the queue is full; then the listener is readable anyway.
    let sent = send(fd, bytes).is_ok();
    close(fd);
    sent
}

/// Random bytes.
pub(crate) fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    // SAFETY: the pointer and length are those of `bytes`.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    bytes
}

/// Which signals a thread has blocked.
pub(crate) struct SignalMask(libc::sigset_t);

/// Blocks all signals in this thread; returns which were blocked before.
pub(crate) fn block_signals() -> SignalMask {
    // SAFETY: the first set is filled before it is used, the second is written by the call.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        SignalMask(before)
    }
}

/// Blocks what was blocked before, and nothing else.
pub(crate) fn restore_signals(mask: &SignalMask) {
    // SAFETY: the set is one that the kernel gave.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &mask.0, ptr::null_mut()) };
}

/// Memory for a value, all zero, from the kernel itself; `None` without memory. It stays until [`unmap`].
pub(crate) fn map_zeroed<T>() -> Option<*mut T> {
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping, wherever the kernel wants it; its pages are aligned for any type here.
    let memory = unsafe { libc::mmap(ptr::null_mut(), mem::size_of::<T>(), protection, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory.cast())
}

/// Gives back what [`map_zeroed`] has mapped.
///
/// # Safety
/// It was, for this type, and nobody uses it.
pub(crate) unsafe fn unmap<T>(memory: *mut T) {
    // SAFETY: the caller's word.
    unsafe { libc::munmap(memory.cast(), mem::size_of::<T>()) };
}

/// Bytes in pages of their own, given back with it: a signal handler that has interrupted the allocator may have some.
pub(crate) struct Pages<const N: usize>(*mut [u8; N]);

impl<const N: usize> Pages<N> {
    /// All zero; `None` without memory.
    pub(crate) fn new() -> Option<Self> {
        map_zeroed().map(Pages)
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8; N] {
        // SAFETY: mapped until the drop, and only reached through this.
        unsafe { &mut *self.0 }
    }
}

impl<const N: usize> Drop for Pages<N> {
    fn drop(&mut self) {
        // SAFETY: it was mapped for this type, and is used no more.
        unsafe { unmap(self.0) };
    }
}

/// Number of this process.
pub(crate) fn process() -> u32 {
    // SAFETY: it has no condition.
    unsafe { libc::getpid().unsigned_abs() }
}

/// Writes a line to standard error, cut to what fits; no lock and no allocator is in it.
pub(crate) fn say(text: std::fmt::Arguments<'_>) {
    struct Line {
        bytes: [u8; 256],
        length: usize,
    }
    impl std::fmt::Write for Line {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            let room = self.bytes.len() - 1 - self.length;
            let part = &text.as_bytes()[..text.len().min(room)];
            self.bytes[self.length..self.length + part.len()].copy_from_slice(part);
            self.length += part.len();
            Ok(())
        }
    }
    let mut line = Line {
        bytes: [0; 256],
        length: 0,
    };
    let _ = std::fmt::Write::write_fmt(&mut line, text);
    line.bytes[line.length] = b'\n';
    // SAFETY: the pointer and length are those of the written part.
    unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.length + 1) };
}

/// Calls these around every `fork`.
pub(crate) fn at_fork(before: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // SAFETY: the functions are static and take nothing.
    unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
}

/// Writes an address where a caller of `accept` or `getpeername` wants it, cut to the room there is (as the kernel does).
///
/// # Safety
/// Both are null, or `room` points to the number of bytes that may be written at `to`.
pub(crate) unsafe fn write_address(address: SocketAddr, to: *mut sockaddr, room: *mut socklen_t) {
    if to.is_null() || room.is_null() {
        return;
    }
    let (storage, length) = to_storage(address);
    // SAFETY: `room` is valid by the caller's word, and `to` for as many bytes; the storage is longer than `length`.
    unsafe {
        let count = (*room).min(length);
        ptr::copy_nonoverlapping(ptr::from_ref(&storage).cast::<u8>(), to.cast::<u8>(), count as usize);
        *room = length;
    }
}

/// Sets `errno`.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: it is this thread's own.
    unsafe { *libc::__errno_location() = value };
}

/// Highest descriptor that `exec` is looked through for.
pub(crate) fn descriptor_limit() -> c_int {
    // SAFETY: the call takes an integer.
    let limit = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
    c_int::try_from(limit).unwrap_or(1024).clamp(3, 65_536)
}

/// A C string array, as `exec` takes it.
pub(crate) type Strings = *const *const c_char;

/// Whether `ip` is one that a socket of this family can show as its peer, and how.
pub(crate) fn as_family(address: SocketAddr, family: c_int) -> Option<SocketAddr> {
    match (family, address.ip().to_canonical()) {
        (libc::AF_INET, IpAddr::V4(ip)) => Some(SocketAddr::new(ip.into(), address.port())),
        (libc::AF_INET6, IpAddr::V4(ip)) => Some(SocketAddr::new(ip.to_ipv6_mapped().into(), address.port())),
        (libc::AF_INET6 | libc::AF_INET, IpAddr::V6(ip)) => Some(SocketAddr::new(ip.into(), address.port())),
        _ => None,
    }
}

/// getpeername(2) of the kernel.
///
/// # Safety
/// As getpeername(2).
pub(crate) unsafe fn kernel_peer(fd: c_int, to: *mut sockaddr, room: *mut socklen_t) {
    // SAFETY: the caller's pointers are passed on to the kernel, which checks them.
    unsafe { libc::syscall(libc::SYS_getpeername, fd, to, room) };
}

/// getpeername(2) of the kernel, and the room that the caller had given.
///
/// # Safety
/// As getpeername(2).
pub(crate) unsafe fn kernel_peer_room(fd: c_int, to: *mut sockaddr, room: *mut socklen_t) -> (c_int, socklen_t) {
    // SAFETY: if it is not null it is valid by the caller's word.
    let given = if room.is_null() { 0 } else { unsafe { *room } };
    // SAFETY: the caller's pointers are passed on to the kernel, which checks them.
    (
        unsafe { libc::syscall(libc::SYS_getpeername, fd, to, room) } as c_int,
        given,
    )
}

/// getsockname(2) of the kernel, and the room that the caller had given.
///
/// # Safety
/// As getsockname(2).
pub(crate) unsafe fn kernel_local_room(fd: c_int, to: *mut sockaddr, room: *mut socklen_t) -> (c_int, socklen_t) {
    // SAFETY: if it is not null it is valid by the caller's word.
    let given = if room.is_null() { 0 } else { unsafe { *room } };
    // SAFETY: the caller's pointers are passed on to the kernel, which checks them.
    (
        unsafe { libc::syscall(libc::SYS_getsockname, fd, to, room) } as c_int,
        given,
    )
}

/// The kernel's idea of the peer.
pub(crate) fn peer_address(fd: c_int) -> Option<SocketAddr> {
    // SAFETY: all-zero bytes are a valid `sockaddr_storage`.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let mut length = mem::size_of_val(&storage) as socklen_t;
    // SAFETY: the pointers are to local variables, with the storage's length.
    let result = unsafe { libc::syscall(libc::SYS_getpeername, fd, ptr::from_mut(&mut storage), &mut length) };
    if result == 0 { from_storage(&storage) } else { None }
}

/// The state of a TCP connection, as `TCP_INFO` numbers it.
pub(crate) fn tcp_state(fd: c_int) -> Option<u8> {
    let mut state: u8 = 0;
    let mut length: socklen_t = 1;
    // SAFETY: the kernel writes at most the one byte that `length` says.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            ptr::from_mut(&mut state).cast(),
            &mut length,
        )
    };
    (result == 0).then_some(state)
}

/// Bytes that can be read.
pub(crate) fn unread(fd: c_int) -> usize {
    let mut count: c_int = 0;
    // SAFETY: the request writes an integer.
    unsafe { libc::ioctl(fd, libc::FIONREAD, ptr::from_mut(&mut count)) };
    usize::try_from(count).unwrap_or(0)
}
