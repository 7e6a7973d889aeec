//! The functions that take the place of the C library's.
#![allow(unsafe_code)]
#![allow(unreachable_pub, reason = "exported as symbols, not as items")]

use crate::options::{debug, options};
use crate::pending;
use crate::stash;
use crate::sys::{self, Next, Strings};
use crate::table::{self, Claim};
use libc::{c_char, c_int, sockaddr, socklen_t};
use proxy_protocol::{Command, Error, Header, Parsed, V2_MAX_LEN, Version};
use std::io;
use std::net::SocketAddr;

/// Bytes looked at first: all headers without large TLVs.
const FIRST_LOOK: usize = 1024;

/// What is to become of an accepted connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The server gets it; its header, if there was one, is off and noted.
    Deliver,
    /// It is closed.
    Close,
    /// Its header is not whole.
    Incomplete {
        /// Bytes that are there.
        have: usize,
        /// At least so many more are needed.
        needed: usize,
    },
}

/// Looks at the first bytes of a connection; takes the header off if it is whole, and notes what it says.
pub(crate) fn examine(fd: c_int) -> Verdict {
    look(fd, Take::Yes)
}

/// The same, but the header stays: another process may come to take the connection.
pub(crate) fn inspect(fd: c_int) -> Verdict {
    look(fd, Take::No)
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Take {
    Yes,
    No,
}

fn look(fd: c_int, take: Take) -> Verdict {
    let mut first = [0; FIRST_LOOK];
    let length = match sys::receive(fd, &mut first, libc::MSG_PEEK) {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Verdict::Incomplete { have: 0, needed: 1 },
        // It was reset: the server finds that out itself, unless it wants headers.
        Err(_) => return no_header("reset"),
    };
    if length == 0 {
        return no_header("closed at once");
    }
    if pending::is_knock(&first[..length]) {
        // In the helper it is of no use; the knocking goes on.
        if take == Take::Yes {
            pending::answer_knock();
        }
        return Verdict::Close;
    }
    // A connection of this host was let through as it might have been one that wakes.
    if options().is_choosy() && sys::peer_address(fd).is_none_or(|peer| !options().allows(peer.ip())) {
        return no_header("the peer is not allowed to send headers");
    }
    if length < FIRST_LOOK {
        return judge(fd, &first[..length], take);
    }
    match proxy_protocol::parse(&first) {
        Ok(Parsed::Incomplete { .. }) => {
            let Some(mut pages) = sys::Pages::<V2_MAX_LEN>::new() else {
                return Verdict::Close;
            };
            let all = pages.bytes();
            let length = sys::receive(fd, all, libc::MSG_PEEK).unwrap_or(0);
            judge(fd, &all[..length], take)
        }
        _ => judge(fd, &first, take),
    }
}

fn judge(fd: c_int, bytes: &[u8], take: Take) -> Verdict {
    match proxy_protocol::parse(bytes) {
        Ok(Parsed::Complete { .. }) if take == Take::No => Verdict::Deliver,
        Ok(Parsed::Complete { header, length }) => {
            if !consume(fd, length) {
                return Verdict::Close;
            }
            note(fd, &header);
            Verdict::Deliver
        }
        // The peer has ended: there will be no more.
        Ok(Parsed::Incomplete { .. }) if has_ended(fd, bytes.len()) => {
            debug!("closing a connection that ended within its header");
            Verdict::Close
        }
        Ok(Parsed::Incomplete { needed }) => Verdict::Incomplete {
            have: bytes.len(),
            needed,
        },
        Err(Error::NoHeader) => no_header("no header"),
        Err(reason) => {
            // A header, but a wrong one: never shown to the server as data, in no mode.
            debug!("closing a connection: {reason}");
            Verdict::Close
        }
    }
}

fn no_header(what: &str) -> Verdict {
    if options().required {
        debug!("closing a connection: {what}");
        Verdict::Close
    } else {
        Verdict::Deliver
    }
}

/// Takes the header off the connection. Its bytes are all there: they were looked at.
fn consume(fd: c_int, length: usize) -> bool {
    let mut taken = 0;
    let mut into = [0; 4096];
    while taken < length {
        let room = into.len().min(length - taken);
        match sys::receive(fd, &mut into[..room], 0) {
            Ok(count @ 1..) => taken += count,
            _ => return false,
        }
    }
    true
}

/// Whether the peer has closed its side after these bytes.
fn has_ended(fd: c_int, have: usize) -> bool {
    // TCP_INFO's first byte is the state; CLOSE_WAIT (8) is what follows a FIN, CLOSE (7) a reset.
    sys::tcp_state(fd).is_some_and(|state| matches!(state, 7 | 8)) && sys::unread(fd) <= have
}

fn note(fd: c_int, header: &Header<'_>) {
    let counts = match header.version {
        Version::V1 => options().v1,
        Version::V2 => options().v2,
    };
    let pair = if header.command == Command::Proxy && counts {
        header.addresses.as_pair()
    } else {
        None
    };
    if let (Some((peer, destination)), Some(cookie)) = (pair, sys::cookie(fd)) {
        debug!("descriptor {fd} is {peer} to {destination}");
        table::insert(fd, cookie, Claim { peer, destination });
    }
}

/// What a socket's header said.
fn claim(fd: c_int) -> Option<Claim> {
    let noted = if table::is_empty() {
        None
    } else {
        sys::cookie(fd).and_then(|cookie| table::find(fd, cookie))
    };
    noted.or_else(|| sys::attached(fd).as_ref().and_then(stash::decode))
}

/// The address as this socket's family can say it. An IPv4 socket shows an IPv6 client as such if there is room for it,
/// and otherwise the real peer rather than half an address.
fn shown(fd: c_int, address: SocketAddr, room: socklen_t) -> Option<SocketAddr> {
    let shown = sys::as_family(address, sys::option(fd, libc::SO_DOMAIN)?)?;
    let (_, length) = sys::to_storage(shown);
    let own = if sys::option(fd, libc::SO_DOMAIN) == Some(libc::AF_INET) {
        16
    } else {
        28
    };
    (length <= own || room >= length).then_some(shown)
}

fn accept_connection(listener: c_int, flags: c_int) -> io::Result<(c_int, Option<SocketAddr>)> {
    pending::prepare();
    loop {
        if let Some(fd) = pending::take_ready(listener) {
            sys::set_flags(fd, flags);
            return Ok((fd, peer_of(fd)));
        }
        let (fd, peer) = sys::accept(listener, flags)?;
        let Some(peer) = peer else { return Ok((fd, None)) };
        if !options().allows(peer.ip()) && !may_be_knock(fd, peer) {
            match no_header("the peer is not allowed to send headers") {
                Verdict::Deliver => return Ok((fd, Some(peer))),
                _ => {
                    sys::close(fd);
                    continue;
                }
            }
        }
        match examine(fd) {
            Verdict::Deliver => {
                let claimed = claimed_peer(fd);
                return Ok((fd, Some(claimed.unwrap_or(peer))));
            }
            Verdict::Close => {
                sys::close(fd);
                pending::forward(listener);
            }
            Verdict::Incomplete { .. } => {
                sys::set_flags(fd, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
                if !pending::hold(fd, listener) {
                    debug!("closing a connection: too many wait for their header");
                    sys::close(fd);
                }
            }
        }
    }
}

/// A waking connection comes from this host, which need not be in the list: from a loopback address, or from the one that it goes to.
fn may_be_knock(fd: c_int, peer: SocketAddr) -> bool {
    let is_ours = || sys::local_address(fd).is_some_and(|own| own.ip() == peer.ip());
    pending::is_expecting_knock() && (peer.ip().to_canonical().is_loopback() || is_ours())
}

fn claimed_peer(fd: c_int) -> Option<SocketAddr> {
    let cookie = sys::cookie(fd)?;
    table::find(fd, cookie).map(|claim| claim.peer)
}

fn peer_of(fd: c_int) -> Option<SocketAddr> {
    claimed_peer(fd).or_else(|| sys::peer_address(fd))
}

/// accept4(2).
///
/// # Safety
/// As the C function: both pointers null, or `length` says how many bytes `address` has room for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    match accept_connection(fd, flags) {
        Ok((accepted, peer)) => {
            // SAFETY: the caller's pointers, as accept4(2) wants them.
            unsafe { write_peer(accepted, peer, address, length) };
            accepted
        }
        Err(error) => {
            sys::set_errno(error.raw_os_error().unwrap_or(libc::EINVAL));
            -1
        }
    }
}

/// Writes what accept reports.
///
/// # Safety
/// Both pointers are null, or `length` says how many bytes `address` has room for.
unsafe fn write_peer(fd: c_int, peer: Option<SocketAddr>, address: *mut sockaddr, length: *mut socklen_t) {
    if address.is_null() || length.is_null() {
        return;
    }
    // SAFETY: it is not null, and valid by the caller's word.
    let room = unsafe { *length };
    match peer.and_then(|peer| shown(fd, peer, room)) {
        // SAFETY: the caller's word.
        Some(shown) => unsafe { sys::write_address(shown, address, length) },
        // Not IP, or no room: what the kernel says.
        // SAFETY: the caller's word.
        None => unsafe { sys::kernel_peer(fd, address, length) },
    }
}

/// accept(2).
///
/// # Safety
/// As [`accept4`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the caller's pointers are passed on.
    unsafe { accept4(fd, address, length, 0) }
}

/// getpeername(2).
///
/// # Safety
/// As the C function: `length` says how many bytes `address` has room for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the caller's pointers are passed on.
    let result = unsafe { sys::kernel_peer_room(fd, address, length) };
    let (result, room) = result;
    if result == 0
        && options().getpeername
        && let Some(shown) = claim(fd).and_then(|claim| shown(fd, claim.peer, room))
    {
        // SAFETY: the kernel has just written there, so both are valid; the room is what the caller said.
        unsafe {
            *length = room;
            sys::write_address(shown, address, length);
        }
    }
    result
}

/// getsockname(2): the header's destination if `LIBPROXYPROTO_GETSOCKNAME` is set.
///
/// # Safety
/// As [`getpeername`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the caller's pointers are passed on.
    let (result, room) = unsafe { sys::kernel_local_room(fd, address, length) };
    if result == 0
        && options().destination
        && let Some(shown) = claim(fd).and_then(|claim| shown(fd, claim.destination, room))
    {
        // SAFETY: the kernel has just written there, so both are valid; the room is what the caller said.
        unsafe {
            *length = room;
            sys::write_address(shown, address, length);
        }
    }
    result
}

/// Runs when the library is loaded, before the program: what needs the allocator or the loader must not wait for a call
/// that a signal handler may make.
extern "C" fn load() {
    options();
    [&sys::ACCEPT4, &LISTEN, &DUP, &DUP2, &DUP3]
        .into_iter()
        .for_each(Next::prepare);
}

// SAFETY: the loader calls each function in this section once, with arguments that a C function may ignore.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

type Listen = unsafe extern "C" fn(c_int, c_int) -> c_int;
static LISTEN: Next = Next::new(c"listen");

/// listen(2): the kernel holds connections back until data is there, for a while, so that accept finds the header.
#[unsafe(no_mangle)]
pub extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: this is the type of listen(2).
    let Some(next) = (unsafe { LISTEN.get::<Listen>() }) else {
        sys::set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: it takes integers.
    let result = unsafe { next(fd, backlog) };
    if result == 0 {
        pending::prepare();
    }
    if result == 0 && matches!(sys::option(fd, libc::SO_DOMAIN), Some(libc::AF_INET | libc::AF_INET6)) {
        // One retransmission of the SYN-ACK: a silent client is accepted after that, and waits in the helper.
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 1);
    }
    result
}

/// Notes that one descriptor is now another's socket as well. Not in a child of `vfork`: the table is its parent's, the descriptors
/// are its own. There, and in a child that was made by a system call, the search by cookie finds the original.
fn copied(old: c_int, new: c_int) {
    if table::is_empty() || !pending::is_own_process() {
        return;
    }
    if let Some(cookie) = sys::cookie(new)
        && let Some(claim) = table::find(old, cookie)
    {
        table::insert(new, cookie, claim);
    }
}

/// The table is left alone on failure, and so is `errno`.
fn copied_keeping_errno(old: c_int, new: c_int) -> c_int {
    if new >= 0 {
        copied(old, new);
    }
    new
}

type Dup = unsafe extern "C" fn(c_int) -> c_int;
type Dup2 = unsafe extern "C" fn(c_int, c_int) -> c_int;
type Dup3 = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
static DUP: Next = Next::new(c"dup");
static DUP2: Next = Next::new(c"dup2");
static DUP3: Next = Next::new(c"dup3");

/// dup(2).
#[unsafe(no_mangle)]
pub extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: this is the type of dup(2), which takes an integer.
    unsafe { DUP.get::<Dup>().map_or(-1, |next| copied_keeping_errno(fd, next(fd))) }
}

/// dup2(2).
#[unsafe(no_mangle)]
pub extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: this is the type of dup2(2), which takes integers.
    unsafe {
        DUP2.get::<Dup2>()
            .map_or(-1, |next| copied_keeping_errno(old, next(old, new)))
    }
}

/// dup3(2).
#[unsafe(no_mangle)]
pub extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: this is the type of dup3(2), which takes integers.
    unsafe {
        DUP3.get::<Dup3>()
            .map_or(-1, |next| copied_keeping_errno(old, next(old, new, flags)))
    }
}

/// Before `exec`: what this process knows of sockets that stay open is written into them.
fn stash_all() {
    if table::is_empty() {
        return;
    }
    for fd in 0..sys::descriptor_limit() {
        if !sys::survives_exec(fd) {
            continue;
        }
        let found = sys::cookie(fd).and_then(|cookie| table::find(fd, cookie));
        if let Some(found) = found {
            sys::attach(fd, &stash::encode(&found));
        }
    }
}

/// Defines a function of the `exec` family that first writes the addresses into the sockets.
macro_rules! exec {
    ($name:ident, $symbol:literal, ($($argument:ident: $kind:ty),*)) => {
        #[doc = concat!("`", stringify!($name), "`: addresses survive it.")]
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            static NEXT: Next = Next::new($symbol);
            stash_all();
            // SAFETY: this is the function's type; the caller's arguments are passed on.
            unsafe {
                match NEXT.get::<unsafe extern "C" fn($($kind),*) -> c_int>() {
                    Some(next) => next($($argument),*),
                    None => {
                        sys::set_errno(libc::ENOSYS);
                        -1
                    }
                }
            }
        }
    };
}

exec!(execve, c"execve", (path: *const c_char, arguments: Strings, environment: Strings));
exec!(execv, c"execv", (path: *const c_char, arguments: Strings));
exec!(execvp, c"execvp", (file: *const c_char, arguments: Strings));
exec!(execvpe, c"execvpe", (file: *const c_char, arguments: Strings, environment: Strings));
exec!(fexecve, c"fexecve", (fd: c_int, arguments: Strings, environment: Strings));
exec!(posix_spawn, c"posix_spawn", (
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const libc::posix_spawn_file_actions_t,
    attributes: *const libc::posix_spawnattr_t,
    arguments: Strings,
    environment: Strings
));
exec!(posix_spawnp, c"posix_spawnp", (
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const libc::posix_spawn_file_actions_t,
    attributes: *const libc::posix_spawnattr_t,
    arguments: Strings,
    environment: Strings
));
