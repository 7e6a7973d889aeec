//! Connections whose header is not whole: a helper thread waits for them, then wakes the server.

use crate::hooks::{self, Verdict};
use crate::lock::Lock;
use crate::options::{debug, options};
use crate::sys;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Most connections that wait at a time; further ones are closed.
const MOST: usize = 4096;

/// How long to wait before waking a server again that did not come: another process took the call, or its queue is full.
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
    woken: Instant,
}

#[derive(Default)]
struct State {
    incoming: Vec<Waiting>,
    ready: Vec<Ready>,
    /// How many the helper holds.
    held: usize,
    /// Descriptors the helper holds, so that a forked child can close them.
    held_fds: Vec<i32>,
    event: Option<i32>,
    helper: bool,
    secret: Option<[u8; 16]>,
}

static STATE: Lock<State> = Lock::new(State {
    incoming: Vec::new(),
    ready: Vec::new(),
    held: 0,
    held_fds: Vec::new(),
    event: None,
    helper: false,
    secret: None,
});

/// How many are ready: looked at by every accept without the lock.
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
    bytes.starts_with(KNOCK)
        && STATE
            .lock()
            .secret
            .is_some_and(|secret| bytes.starts_with(&knock_bytes(secret)))
}

/// A connection of this listener whose header is whole by now.
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

/// Prepares for `fork`. Called by every accept; does something once.
pub(crate) fn prepare() {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| sys::at_fork(before_fork, in_parent, in_child));
}

/// Hands a connection to the helper. `false` if it cannot be: the caller closes it.
pub(crate) fn hold(fd: i32, listener: i32) -> bool {
    let (Some(cookie), Some(address)) = (sys::cookie(listener), sys::local_address(listener)) else {
        return false;
    };
    let deadline = Instant::now() + options().timeout;
    let mut state = STATE.lock();
    if state.held + state.incoming.len() >= MOST {
        return false;
    }
    // A child shares its parent's secret, and so recognises its waking connections on a listener that both have.
    state.secret.get_or_insert_with(sys::random);
    let event = *state.event.get_or_insert_with(sys::event);
    if !state.helper {
        let thread = std::thread::Builder::new()
            .name("libproxyproto".into())
            .stack_size(256 * 1024);
        if event < 0 || thread.spawn(move || help(event)).is_err() {
            return false;
        }
        state.helper = true;
    }
    state.incoming.push(Waiting {
        fd,
        listener: cookie,
        address,
        deadline,
    });
    state.held_fds.push(fd);
    drop(state);
    sys::ring(event);
    true
}

/// The helper thread.
fn help(event: i32) {
    sys::block_signals();
    let mut waiting: Vec<Waiting> = Vec::new();
    loop {
        let mut fds = vec![event];
        fds.extend(waiting.iter().map(|one| one.fd));
        let readable = sys::wait(&fds, sleep(&waiting));
        if readable[0] {
            sys::unring(event);
        }
        let now = Instant::now();
        let mut still = Vec::with_capacity(waiting.len());
        for (one, &readable) in waiting.drain(..).zip(&readable[1..]) {
            if readable || now >= one.deadline {
                still.extend(look(one, now));
            } else {
                still.push(one);
            }
        }
        waiting = still;
        let mut state = STATE.lock();
        waiting.append(&mut state.incoming);
        state.held = waiting.len();
        drop(state);
        wake();
    }
}

/// Until the next deadline, or soon if somebody has to be woken again.
fn sleep(waiting: &[Waiting]) -> Option<Duration> {
    let now = Instant::now();
    let deadline = waiting
        .iter()
        .map(|one| one.deadline.saturating_duration_since(now))
        .min();
    if READY.load(Ordering::Acquire) == 0 {
        deadline
    } else {
        Some(deadline.map_or(AGAIN, |time| time.min(AGAIN)))
    }
}

/// Looks at a connection that has news. Returns it if it is to wait on.
fn look(one: Waiting, now: Instant) -> Option<Waiting> {
    let late = now >= one.deadline;
    match hooks::examine(one.fd) {
        Verdict::Incomplete { have, needed } if !late => {
            // Sleep until so much is there: what is only looked at stays readable.
            sys::set_option(one.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (have + needed) as i32);
            Some(one)
        }
        // A client that waits for the server to speak, where headers are optional.
        Verdict::Incomplete { have: 0, .. } if !options().required => {
            make_ready(one);
            None
        }
        Verdict::Deliver => {
            make_ready(one);
            None
        }
        Verdict::Incomplete { have, .. } => {
            debug!(
                "closing a connection: {have} bytes of a header within {:?}",
                options().timeout
            );
            discard(one.fd);
            None
        }
        Verdict::Close => {
            discard(one.fd);
            None
        }
    }
}

fn discard(fd: i32) {
    STATE.lock().held_fds.retain(|&held| held != fd);
    sys::close(fd);
}

fn make_ready(one: Waiting) {
    sys::set_option(one.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
    let mut state = STATE.lock();
    state.held_fds.retain(|&held| held != one.fd);
    // Long ago: it is woken at once.
    let woken = Instant::now().checked_sub(AGAIN).unwrap_or_else(Instant::now);
    state.ready.push(Ready {
        fd: one.fd,
        listener: one.listener,
        address: one.address,
        woken,
    });
    READY.store(state.ready.len(), Ordering::Release);
}

/// Connects to each listener that has connections ready.
fn wake() {
    let mut state = STATE.lock();
    let Some(secret) = state.secret else { return };
    let now = Instant::now();
    let mut targets: Vec<SocketAddr> = Vec::new();
    for ready in &mut state.ready {
        if now.duration_since(ready.woken) >= AGAIN {
            ready.woken = now;
            let address = reachable(ready.address);
            if !targets.contains(&address) {
                targets.push(address);
            }
        }
    }
    drop(state);
    for address in targets {
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

extern "C" fn before_fork() {
    STATE.acquire();
    crate::table::TABLE.acquire();
}

extern "C" fn in_parent() {
    crate::table::TABLE.release();
    STATE.release();
}

/// The child has no helper, and the waiting connections are the parent's.
extern "C" fn in_child() {
    crate::table::TABLE.release();
    STATE.release();
    let mut state = STATE.lock();
    let event = state.event.take();
    let fds: Vec<i32> = state.held_fds.drain(..).chain(event).collect();
    let ready: Vec<Ready> = state.ready.drain(..).collect();
    state.incoming.clear();
    state.held = 0;
    state.helper = false;
    READY.store(0, Ordering::Release);
    drop(state);
    fds.into_iter()
        .chain(ready.into_iter().map(|ready| ready.fd))
        .for_each(sys::close);
}

/// Whether a waking connection may be under way.
pub(crate) fn is_expecting_knock() -> bool {
    STATE.lock().secret.is_some()
}
