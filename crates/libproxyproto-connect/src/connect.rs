//! The function that takes the place of the C library's, and what it needs of the system.
#![allow(unsafe_code)]
#![allow(unreachable_pub, reason = "exported as a symbol, not as an item")]

use crate::{header, options};
use libc::{c_int, c_void, sockaddr, socklen_t};
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

type Connect = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;

fn next() -> Option<Connect> {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut address = NEXT.load(Ordering::Relaxed);
    if address.is_null() {
        // SAFETY: the name is a C string.
        address = unsafe { libc::dlsym(libc::RTLD_NEXT, c"connect".as_ptr()) };
        NEXT.store(address, Ordering::Relaxed);
    }
    // SAFETY: it is the C library's connect, which has this type; null becomes `None`.
    unsafe { mem::transmute::<*mut c_void, Option<Connect>>(address) }
}

/// connect(2), and the header.
///
/// # Safety
/// As the C function: `address` points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let Some(next) = next() else { return fail(libc::ENOSYS) };
    // SAFETY: the caller's arguments are passed on.
    let result = unsafe { next(fd, address, length) };
    let error = errno();
    if result != 0 && error != libc::EINPROGRESS {
        return result;
    }
    // SAFETY: the kernel has just read `length` bytes there.
    let destination = unsafe { destination(address, length) };
    let prepared = destination
        .filter(|_| is_stream(fd))
        .and_then(|to| header(options(), to));
    let Some((bytes, length)) = prepared else {
        set_errno(error);
        return result;
    };
    match establish_and_send(fd, result != 0, &bytes[..length]) {
        Ok(()) => {
            if options().debug {
                eprintln!("libproxyproto_connect: header of {length} bytes sent");
            }
            0
        }
        Err(error) => fail(error),
    }
}

/// Waits until the connection stands, then sends.
fn establish_and_send(fd: c_int, connecting: bool, mut bytes: &[u8]) -> Result<(), c_int> {
    if connecting {
        wait_writable(fd)?;
        match socket_option(fd, libc::SO_ERROR) {
            Some(0) => {}
            error => return Err(error.unwrap_or(libc::EBADF)),
        }
    }
    while !bytes.is_empty() {
        // SAFETY: the pointer and length are those of `bytes`.
        let count = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        match usize::try_from(count) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(_) => match errno() {
                libc::EAGAIN => wait_writable(fd)?,
                libc::EINTR => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

fn wait_writable(fd: c_int) -> Result<(), c_int> {
    let time = options().timeout.max(Duration::from_millis(1)).as_millis();
    let mut polled = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    loop {
        // SAFETY: one entry, of a local variable.
        match unsafe { libc::poll(&mut polled, 1, c_int::try_from(time).unwrap_or(c_int::MAX)) } {
            0 => return Err(libc::ETIMEDOUT),
            1.. => return Ok(()),
            _ if errno() == libc::EINTR => {}
            _ => return Err(errno()),
        }
    }
}

fn is_stream(fd: c_int) -> bool {
    socket_option(fd, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
        && matches!(socket_option(fd, libc::SO_DOMAIN), Some(libc::AF_INET | libc::AF_INET6))
}

fn socket_option(fd: c_int, name: c_int) -> Option<c_int> {
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

/// The address that was connected to, if it is IP.
///
/// # Safety
/// `address` points to `length` bytes.
unsafe fn destination(address: *const sockaddr, length: socklen_t) -> Option<SocketAddr> {
    if address.is_null() || (length as usize) < mem::size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: all-zero bytes are a valid `sockaddr_storage`.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let count = (length as usize).min(mem::size_of_val(&storage));
    // SAFETY: both have room for `count` bytes. The caller's may be unaligned, so it is copied.
    unsafe { ptr::copy_nonoverlapping(address.cast::<u8>(), ptr::from_mut(&mut storage).cast::<u8>(), count) };
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is; the storage is large and aligned enough for any.
            let name = unsafe { &*ptr::from_ref(&storage).cast::<libc::sockaddr_in>() };
            Some(SocketAddr::from((
                Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes()),
                u16::from_be(name.sin_port),
            )))
        }
        libc::AF_INET6 => {
            // SAFETY: as above; what the caller did not give is zero.
            let name = unsafe { &*ptr::from_ref(&storage).cast::<libc::sockaddr_in6>() };
            Some(SocketAddr::from((
                Ipv6Addr::from(name.sin6_addr.s6_addr),
                u16::from_be(name.sin6_port),
            )))
        }
        _ => None,
    }
}

fn errno() -> c_int {
    // SAFETY: it is this thread's own.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}

fn fail(error: c_int) -> c_int {
    set_errno(error);
    -1
}
