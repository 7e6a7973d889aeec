//! Connections whose header is not whole: a helper thread waits for them, then wakes the server.
//!
//! A connection that is ready goes through a channel that all processes share which were forked after `listen`, and the
//! listener is woken by connecting to it: whichever process accepts that waking connection takes the next one from the
//! channel. (The kernel may well wake another process than the one that holds the connection, and always that one.) The
//! helper wakes again until the channel is empty.

use crate::hooks::{self, Verdict};
use crate::lock::Lock;
use crate::options::{debug, options};
use crate::sys::{self, End};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Most connections that wait at a time, and never more than a quarter of the server's descriptors. When there are more,
/// those that have waited longest are closed: peers that send no header keep nobody out until their deadline.
const MOST: usize = 4096;

/// How long to wait before waking again: the queue of the listener was full, or another process took the call.
const AGAIN: Duration = Duration::from_millis(20);

struct Waiting {
    fd: i32,
    /// Cookie of the listener it came from.
    listener: u64,
    /// Where to wake that listener.
    address: SocketAddr,
    deadline: Instant,
}

struct Ready {
    fd: i32,
    listener: u64,
    address: SocketAddr,
}

struct State {
    incoming: Vec<Waiting>,
    /// Connections that wait, in the helper or on the way to it: a forked child closes its copies.
    held: Vec<i32>,
    /// Taken from the channel, perhaps for another listener of this process than the one that was woken.
    ready: Vec<Ready>,
    /// To the helper: a byte for each connection handed over.
    bell: Option<[End; 2]>,
    /// Ready connections, to whichever process accepts.
    channel: Option<[End; 2]>,
    helper: bool,
}

static STATE: Lock<State> = Lock::new(State {
    incoming: Vec::new(),
    held: Vec::new(),
    ready: Vec::new(),
    bell: None,
    channel: None,
    helper: false,
});

/// In two words, as it is looked at without the lock; [`PROCESS`] says that it is there.
static SECRET: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The process that has prepared itself, or was forked by one that has; 0 for none.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// How many are in `ready`: looked at by every accept without the lock.
static READY: AtomicUsize = AtomicUsize::new(0);

/// The first bytes of a connection that only wakes. The secret keeps others from making such connections.
const KNOCK: &[u8; 16] = b"\0libproxyproto!\0";

/// What a waking connection sends.
fn knock_bytes(secret: [u8; 16]) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(KNOCK);
    bytes[16..].copy_from_slice(&secret);
    bytes
}

/// Whether a connection that begins so only woke us.
pub(crate) fn is_knock(bytes: &[u8]) -> bool {
    bytes.starts_with(KNOCK) && secret().is_some_and(|secret| bytes.starts_with(&knock_bytes(secret)))
}

fn secret() -> Option<[u8; 16]> {
    if PROCESS.load(Ordering::Acquire) == 0 {
        return None;
    }
    let mut secret = [0; 16];
    for (bytes, word) in secret.chunks_exact_mut(8).zip(&SECRET) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    Some(secret)
}

/// Prepares for `fork`. Called by listen and every accept; does something once. Processes that share a listener are forked
/// after listen, and so share secret and channel.
pub(crate) fn prepare() {
    // No `Once`: a signal handler that has interrupted it would wait for ever. Whoever comes meanwhile goes on without.
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    sys::at_fork(before_fork, in_parent, in_child);
    let random = sys::random();
    for (word, bytes) in SECRET.iter().zip(random.as_chunks::<8>().0) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    PROCESS.store(sys::process(), Ordering::Release);
    // Room for all there will be, so that the allocator is not called under the lock: it has one of its own, which a signal
    // handler may have interrupted. Whoever came meanwhile has left a few.
    let (mut incoming, mut held, mut ready) = (with_room(), with_room(), with_room());
    let mut state = STATE.lock();
    if state.channel.is_none() {
        state.channel = sys::channel();
    }
    incoming.append(&mut state.incoming);
    held.append(&mut state.held);
    ready.append(&mut state.ready);
    let small = (
        std::mem::replace(&mut state.incoming, incoming),
        std::mem::replace(&mut state.held, held),
        std::mem::replace(&mut state.ready, ready),
    );
    drop(state);
    drop(small);
}

/// A list that nothing has to be allocated for later; the kernel gives its memory as it is used.
fn with_room<T>() -> Vec<T> {
    Vec::with_capacity(2 * MOST)
}

/// Whether this is the process that the memory belongs to: not a child of `vfork`.
pub(crate) fn is_own_process() -> bool {
    PROCESS.load(Ordering::Relaxed) == sys::process()
}

/// What goes through the channel beside the descriptor.
const MESSAGE: usize = 27;

/// Cookie of the listener, whether the connection is to be delivered as it is, and the listener's address.
fn encode(listener: u64, as_it_is: bool, address: SocketAddr) -> [u8; MESSAGE] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut message = [u8::from(as_it_is); MESSAGE];
    message[..8].copy_from_slice(&listener.to_ne_bytes());
    message[9..25].copy_from_slice(&ip.octets());
    message[25..].copy_from_slice(&address.port().to_ne_bytes());
    message
}

fn decode(message: &[u8; MESSAGE]) -> Option<(u64, bool, SocketAddr)> {
    let listener = u64::from_ne_bytes(*message.first_chunk()?);
    let ip = Ipv6Addr::from(*message.get(9..)?.first_chunk::<16>()?).to_canonical();
    let port = u16::from_ne_bytes(*message.last_chunk()?);
    Some((listener, message[8] == 1, SocketAddr::new(ip, port)))
}

/// A waking connection was accepted: takes the next connection from the channel.
pub(crate) fn answer_knock() {
    let end = STATE.lock().channel.and_then(|[_, end]| end.fd());
    let Some((message, fd)) = end.and_then(sys::receive_descriptor) else {
        return;
    };
    // The header is still on it: who takes the connection takes the header off, and so knows the address.
    match decode(&message) {
        Some((listener, as_it_is, address)) if as_it_is || hooks::examine(fd) == Verdict::Deliver => {
            let mut state = STATE.lock();
            // So many are left by listeners that are gone.
            if state.ready.len() >= 2 * MOST {
                return sys::close(fd);
            }
            state.ready.push(Ready { fd, listener, address });
            READY.store(state.ready.len(), Ordering::Release);
        }
        _ => sys::close(fd),
    }
}

/// Wakes the other listeners of this process whose connections were taken from the channel on behalf of this one.
pub(crate) fn forward(listener: i32) {
    if READY.load(Ordering::Acquire) == 0 {
        return;
    }
    let (cookie, Some(secret)) = (sys::cookie(listener), secret()) else {
        return;
    };
    // By number, as nothing is allocated under the lock; from the end, so that none is left out when another thread takes one.
    let numbers = 0..STATE.lock().ready.len();
    let other = |index: usize| {
        STATE
            .lock()
            .ready
            .get(index)
            .map(|ready: &Ready| (ready.listener, ready.address))
    };
    for (of, address) in numbers.rev().filter_map(other) {
        if Some(of) != cookie {
            sys::knock(address, &knock_bytes(secret));
        }
    }
}

/// A connection of this listener that is ready.
pub(crate) fn take_ready(listener: i32) -> Option<i32> {
    if READY.load(Ordering::Acquire) == 0 {
        return None;
    }
    let cookie = sys::cookie(listener)?;
    let mut state = STATE.lock();
    let index = state.ready.iter().position(|ready| ready.listener == cookie)?;
    let ready = state.ready.remove(index);
    READY.store(state.ready.len(), Ordering::Release);
    Some(ready.fd)
}

/// Hands a connection to the helper. `false` if it cannot be: the caller closes it.
pub(crate) fn hold(fd: i32, listener: i32) -> bool {
    let (Some(cookie), Some(address)) = (sys::cookie(listener), sys::local_address(listener)) else {
        return false;
    };
    let deadline = Instant::now() + options().timeout;
    let mut state = STATE.lock();
    // As many again may come until the helper has closed the oldest.
    if state.held.len() >= 2 * most() {
        return false;
    }
    if state
        .channel
        .is_none_or(|ends| ends.iter().any(|end| end.fd().is_none()))
    {
        // The server has closed what it does not know: from here on this process has its own.
        state.channel = sys::channel();
    }
    state.incoming.push(Waiting {
        fd,
        listener: cookie,
        address,
        deadline,
    });
    state.held.push(fd);
    if !std::mem::replace(&mut state.helper, true) {
        let bell = sys::channel();
        state.bell = bell;
        // Without the lock: a thread is allocated.
        drop(state);
        if !bell.is_some_and(|[_, end]| start_helper(end)) {
            return without_helper(fd);
        }
        state = STATE.lock();
    }
    let bell = state.bell.and_then(|[end, _]| end.fd());
    drop(state);
    if let Some(bell) = bell {
        // It only fails if there are plenty already.
        let _ = sys::send(bell, &[0]);
    }
    true
}

/// Starts the helper thread, which that bell wakes; whether there is one. It is born with all signals blocked: they are the
/// server's own threads'.
fn start_helper(bell: End) -> bool {
    let mask = sys::block_signals();
    let thread = std::thread::Builder::new()
        .name("libproxyproto".into())
        .stack_size(256 * 1024);
    let is_started = thread.spawn(move || help(bell)).is_ok();
    sys::restore_signals(&mask);
    is_started
}

/// The helper could not be started: gives up all that wait for it, but for `fd`, which is the caller's. Returns false, as
/// [`hold`] does then.
fn without_helper(fd: i32) -> bool {
    let mut state = STATE.lock();
    state.helper = false;
    let bell = state.bell.take();
    bell.iter().flatten().filter_map(|end| end.fd()).for_each(sys::close);
    let State { incoming, held, .. } = &mut *state;
    for waiting in incoming.drain(..) {
        held.retain(|&held| held != waiting.fd);
        if waiting.fd != fd {
            sys::close(waiting.fd);
        }
    }
    false
}

fn most() -> usize {
    usize::try_from(sys::descriptor_limit() / 4).unwrap_or(1).clamp(1, MOST)
}

/// The helper thread.
fn help(bell: End) {
    // Room for `MOST` that wait and for all of `incoming`, so that nothing is allocated under the lock.
    let [mut waiting, mut still] = [(); 2].map(|()| Vec::<Waiting>::with_capacity(3 * MOST));
    // Where there are connections in the channel.
    let mut wake: Vec<SocketAddr> = Vec::new();
    loop {
        let bell_fd = bell.fd();
        let mut fds = vec![bell_fd.unwrap_or(-1)];
        fds.extend(waiting.iter().map(|one| one.fd));
        let readable = sys::wait(&fds, sleep(&waiting, bell_fd.is_none() || !wake.is_empty()));
        if let (Some(bell), Some(true)) = (bell_fd, readable.first()) {
            while sys::receive(bell, &mut [0; 64], 0).is_ok_and(|count| count != 0) {}
        }
        let now = Instant::now();
        for (one, &readable) in waiting.drain(..).zip(readable.iter().skip(1)) {
            if readable || now >= one.deadline {
                still.extend(look(one, now, &mut wake));
            } else {
                still.push(one);
            }
        }
        std::mem::swap(&mut waiting, &mut still);
        waiting.append(&mut STATE.lock().incoming);
        let excess = waiting.len().saturating_sub(most());
        for oldest in waiting.drain(..excess) {
            debug!("closing the connection that has waited longest for its header: there are too many");
            release(oldest.fd);
        }
        call(&mut wake);
    }
}

/// Until the next deadline, or for a moment if somebody has to be woken again.
fn sleep(waiting: &[Waiting], soon: bool) -> Option<Duration> {
    let now = Instant::now();
    let deadline = waiting
        .iter()
        .map(|one| one.deadline.saturating_duration_since(now))
        .min();
    if soon {
        Some(deadline.map_or(AGAIN, |time| time.min(AGAIN)))
    } else {
        deadline
    }
}

/// Looks at a connection that has news. Returns it if it is to wait on.
fn look(one: Waiting, now: Instant, wake: &mut Vec<SocketAddr>) -> Option<Waiting> {
    let late = now >= one.deadline;
    match hooks::inspect(one.fd) {
        Verdict::Incomplete { have, needed } if !late => {
            // Sleep until so much is there: what is only looked at stays readable.
            sys::set_option(one.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (have + needed) as i32);
            Some(one)
        }
        // A client that waits for the server to speak, where headers are optional.
        Verdict::Incomplete { have: 0, .. } if !options().required => make_ready(one, true, wake),
        Verdict::Deliver => make_ready(one, false, wake),
        Verdict::Incomplete { have, .. } => {
            debug!(
                "closing a connection: {have} bytes of a header within {:?}",
                options().timeout
            );
            release(one.fd);
            None
        }
        Verdict::Close => {
            release(one.fd);
            None
        }
    }
}

/// Closes this process's own copy. A child that is forked has it with its number in the list, or neither.
fn release(fd: i32) {
    let mut state = STATE.lock();
    state.held.retain(|&held| held != fd);
    sys::close(fd);
}

/// Puts a connection into the channel. Returns it if there is no room, to be looked at again.
fn make_ready(one: Waiting, as_it_is: bool, wake: &mut Vec<SocketAddr>) -> Option<Waiting> {
    sys::set_option(one.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
    let address = reachable(one.address);
    let message = encode(one.listener, as_it_is, address);
    let end = STATE.lock().channel.and_then(|[end, _]| end.fd());
    if !end.is_some_and(|end| sys::send_descriptor(end, &message, one.fd)) {
        return Some(one);
    }
    if !wake.contains(&address) {
        wake.push(address);
    }
    release(one.fd);
    None
}

/// Connects to the listeners, once for each connection in the channel; forgets them when it is empty.
fn call(wake: &mut Vec<SocketAddr>) {
    let end = STATE.lock().channel.and_then(|[end, _]| end.fd());
    let (Some(secret), true) = (secret(), end.is_some_and(|end| sys::in_flight(end) != 0)) else {
        return wake.clear();
    };
    for &address in wake.iter() {
        sys::knock(address, &knock_bytes(secret));
    }
}

/// An address to reach a listener on that is bound to every address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Whether a waking connection may be under way.
pub(crate) fn is_expecting_knock() -> bool {
    PROCESS.load(Ordering::Relaxed) != 0
}

extern "C" fn before_fork() {
    STATE.acquire();
}

extern "C" fn in_parent() {
    STATE.release();
}

/// The child has no helper, and the waiting connections are the parent's. The channel is for both.
extern "C" fn in_child() {
    PROCESS.store(sys::process(), Ordering::Relaxed);
    STATE.release();
    let mut state = STATE.lock();
    state.held.drain(..).for_each(sys::close);
    state.ready.drain(..).for_each(|ready| sys::close(ready.fd));
    let bell = state.bell.take();
    bell.iter().flatten().filter_map(|end| end.fd()).for_each(sys::close);
    state.incoming.clear();
    state.helper = false;
    READY.store(0, Ordering::Release);
}
