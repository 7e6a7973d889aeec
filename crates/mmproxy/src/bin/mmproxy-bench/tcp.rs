//! TCP load and the servers it goes to.

use crate::place::Place;
use crate::tally::Tally;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

/// Buffer of servers and clients: large enough not to be what limits.
const BUFFER: usize = 256 * 1024;

/// A request, and the answer to it.
const REQUEST: [u8; 64] = [b'x'; 64];

/// What the clients do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Send `PING\r\n` again and again, and read the echo; counts bytes received.
    Stream { connections: usize },
    /// One request of 64 bytes at a time on each connection; counts answers.
    Requests { connections: usize },
    /// A connection for each request; counts answers.
    Connections { at_once: usize },
    /// Read what the server sends; counts bytes.
    Download { connections: usize },
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::IPV4,
        socket2::Type::STREAM.nonblocking().cloexec(),
        None,
    )?;
    socket.set_reuse_address(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

/// A server that is a thread of this process; it ends, with its connections, when this is dropped.
#[must_use]
pub(crate) struct Server(Arc<OwnedFd>);

impl Server {
    /// A handle, and what its thread finds readable once it is dropped.
    pub(crate) fn new() -> io::Result<(Self, Arc<OwnedFd>)> {
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        Ok((Server(Arc::clone(&bell)), bell))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An eventfd that nobody else writes to takes it.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

struct Peer {
    fd: OwnedFd,
    pending: Vec<u8>,
}

const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;

/// An event loop over connections that are accepted from `listener`; `act` returns whether the connection goes on.
fn serve(
    listener: TcpListener,
    flags: EventFlags,
    act: impl Fn(&mut Peer, &mut [u8]) -> bool + Send + 'static,
) -> io::Result<Server> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let (server, bell) = Server::new()?;
    epoll::add(&epoll, &bell, EventData::new_u64(BELL), EventFlags::IN)?;
    std::thread::spawn(move || {
        let mut peers: Vec<Option<Peer>> = Vec::new();
        let mut free = Vec::new();
        let mut scratch = vec![0; BUFFER];
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            if epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None).is_err() {
                continue;
            }
            for event in &events {
                if event.data.u64() == BELL {
                    return;
                }
                if event.data.u64() == LISTENER {
                    // Through the C library, so that a preloaded one sees it.
                    while let Ok((connection, _)) = listener.accept() {
                        if connection.set_nonblocking(true).is_err() {
                            continue;
                        }
                        let fd = OwnedFd::from(connection);
                        let slot = free.pop().unwrap_or_else(|| {
                            peers.push(None);
                            peers.len() - 1
                        });
                        if epoll::add(&epoll, &fd, EventData::new_u64(slot as u64), flags).is_ok() {
                            peers[slot] = Some(Peer {
                                fd,
                                pending: Vec::new(),
                            });
                        }
                    }
                    continue;
                }
                let slot = event.data.u64() as usize;
                let Some(peer) = &mut peers[slot] else { continue };
                if !act(peer, &mut scratch) {
                    peers[slot] = None;
                    free.push(slot);
                }
            }
        }
    });
    Ok(server)
}

/// Sends back whatever comes.
pub(crate) fn serve_echo(address: SocketAddr) -> io::Result<Server> {
    serve(
        listen(address)?,
        EventFlags::IN | EventFlags::OUT | EventFlags::ET,
        |peer, scratch| {
            loop {
                while !peer.pending.is_empty() {
                    match rustix::net::send(&peer.fd, &peer.pending, SendFlags::NOSIGNAL) {
                        Ok(count) => drop(peer.pending.drain(..count)),
                        Err(Errno::AGAIN) => return true,
                        Err(_) => return false,
                    }
                }
                let count = match rustix::net::recv(&peer.fd, &mut scratch[..], RecvFlags::empty()) {
                    Ok((0, _)) => return false,
                    Ok((count, _)) => count,
                    Err(error) => return error == Errno::AGAIN,
                };
                let sent = rustix::net::send(&peer.fd, &scratch[..count], SendFlags::NOSIGNAL).unwrap_or(0);
                peer.pending.extend_from_slice(&scratch[sent..count]);
                if count < scratch.len() && peer.pending.is_empty() {
                    return true;
                }
            }
        },
    )
}

/// Sends without end.
pub(crate) fn serve_source(address: SocketAddr) -> io::Result<Server> {
    serve(
        listen(address)?,
        EventFlags::OUT,
        |peer, scratch| match rustix::net::send(&peer.fd, &*scratch, SendFlags::NOSIGNAL) {
            Ok(_) => true,
            Err(error) => error == Errno::AGAIN,
        },
    )
}

/// The header of an ever new client, as the load generator is many: never one that another proxy has just used, whose
/// connection to the server may still be in TIME-WAIT.
///
/// The ports are none that the system chooses from for this process's own connections (32768 and up): it would skip
/// every port that a proxy has bound to a client's address, and after some thousands of connections spend most of its
/// time on that, in proportion to how many the proxies before have made.
fn next_header() -> Vec<u8> {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let ip = Ipv4Addr::from(0xcb00_0000 | (serial / 30_000 % 60_000 + 1));
    let port = 1024 + serial % 30_000;
    format!("PROXY TCP4 {ip} 198.51.100.9 {port} 443\r\n").into_bytes()
}

struct Client {
    fd: OwnedFd,
    /// When the current operation began; that of a connection begins with it.
    since: Instant,
    /// Bytes of the current answer that are missing.
    missing: usize,
}

/// Connects from one of many addresses, so that ports never run out, and sends `first` as soon as it can.
fn connect(target: SocketAddr, serial: u32, first: &[u8]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    mmproxy::sys::set_option(&fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
    rustix::net::bind(&fd, &SocketAddr::from((Place::client(target, serial), 0)))?;
    rustix::net::sockopt::set_tcp_nodelay(&fd, true)?;
    match rustix::net::connect(&fd, &target) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    // On one host the connection stands by now, unless the queue is full: then wait.
    let mut rest = first;
    while !rest.is_empty() {
        match rustix::net::send(&fd, rest, SendFlags::NOSIGNAL) {
            Ok(count) => rest = &rest[count..],
            Err(Errno::AGAIN | Errno::NOTCONN) => {
                let mut poll = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::OUT)];
                let time = rustix::time::Timespec { tv_sec: 5, tv_nsec: 0 };
                if rustix::event::poll(&mut poll, Some(&time))? == 0 {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(fd)
}

/// Generates load until `stop`.
pub(crate) fn generate(
    load: Load,
    target: SocketAddr,
    with_header: bool,
    tally: &Tally,
    stop: &AtomicBool,
) -> io::Result<()> {
    let (connections, first, flags) = match load {
        Load::Stream { connections } => (connections, &b""[..], EventFlags::IN | EventFlags::OUT),
        Load::Requests { connections } | Load::Connections { at_once: connections } => {
            (connections, &REQUEST[..], EventFlags::IN)
        }
        Load::Download { connections } => (connections, &b""[..], EventFlags::IN),
    };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut serial = 0;
    let mut open = |slot: usize, epoll: &OwnedFd| -> io::Result<Client> {
        serial += 1;
        let header = if with_header { next_header() } else { Vec::new() };
        let since = Instant::now();
        let fd = connect(target, serial, &[&header, first].concat())?;
        epoll::add(epoll, fd.as_fd(), EventData::new_u64(slot as u64), flags)?;
        Ok(Client {
            fd,
            since,
            missing: first.len(),
        })
    };
    let mut clients = (0..connections)
        .map(|slot| open(slot, &epoll))
        .collect::<io::Result<Vec<_>>>()?;
    let pings = b"PING\r\n".repeat(BUFFER / 6);
    let mut scratch = vec![0; BUFFER];
    let mut events = Vec::with_capacity(256);
    let time = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 50_000_000,
    };
    while !stop.load(Ordering::Relaxed) {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&time)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut done = 0;
        for event in &events {
            let slot = event.data.u64() as usize;
            let client = &mut clients[slot];
            let ready = event.flags;
            if ready.contains(EventFlags::OUT) {
                match rustix::net::send(&client.fd, &pings, SendFlags::NOSIGNAL) {
                    Ok(_) | Err(Errno::AGAIN) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if !ready.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                continue;
            }
            let read = match rustix::net::recv(&client.fd, &mut scratch[..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((read, _)) => read,
                Err(Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
            };
            match load {
                Load::Stream { .. } | Load::Download { .. } => done += read as u64,
                Load::Requests { .. } | Load::Connections { .. } => {
                    client.missing = client.missing.saturating_sub(read);
                    if client.missing != 0 {
                        continue;
                    }
                    done += 1;
                    tally.took(client.since.elapsed());
                    if matches!(load, Load::Requests { .. }) {
                        client.missing = REQUEST.len();
                        client.since = Instant::now();
                        rustix::net::send(&client.fd, &REQUEST, SendFlags::NOSIGNAL)?;
                    } else {
                        *client = open(slot, &epoll)?;
                    }
                }
            }
        }
        tally.units.fetch_add(done, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    /// What a server that is not part of the load tool has seen: connections, and bytes after the headers.
    #[derive(Default)]
    struct Seen {
        connections: AtomicU64,
        bytes: AtomicU64,
    }

    /// Runs a load for a moment against an echo that counts; returns what the tool counted and what the server saw.
    fn compare(load: Load, with_header: bool) -> (Arc<Tally>, Arc<Seen>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("socket");
        let target = listener.local_addr().expect("address");
        let seen = Arc::new(Seen::default());
        let server = Arc::clone(&seen);
        std::thread::spawn(move || {
            while let Ok((mut client, _)) = listener.accept() {
                let seen = Arc::clone(&server);
                seen.connections.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    let mut byte = [0];
                    while with_header && byte != [b'\n'] && client.read_exact(&mut byte).is_ok() {}
                    let mut buffer = vec![0; 64 * 1024];
                    while let Ok(length @ 1..) = client.read(&mut buffer) {
                        seen.bytes.fetch_add(length as u64, Ordering::SeqCst);
                        if client.write_all(&buffer[..length]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        let (tally, stop) = (Arc::new(Tally::default()), Arc::new(AtomicBool::new(false)));
        let client = {
            let (tally, stop) = (Arc::clone(&tally), Arc::clone(&stop));
            std::thread::spawn(move || generate(load, target, with_header, &tally, &stop))
        };
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        client.join().expect("thread").expect("load");
        (tally, seen)
    }

    #[test]
    fn requests_connections_and_bytes_are_what_the_server_saw() {
        for with_header in [false, true] {
            let (tally, seen) = compare(Load::Requests { connections: 3 }, with_header);
            let counted = tally.units.load(Ordering::Relaxed);
            // Three at a time: if each took the average or more, they would take this long together.
            let median = tally.quantile(0.5).expect("times");
            assert!(median * counted as f64 / 3.0 < 1.5, "{counted} of {median} s");
            let requests = seen.bytes.load(Ordering::SeqCst) / 64;
            assert!(
                counted > 0 && (counted..=counted + 3).contains(&requests),
                "{counted} of {requests}"
            );
            assert_eq!(seen.connections.load(Ordering::SeqCst), 3);

            let (tally, seen) = compare(Load::Connections { at_once: 3 }, with_header);
            let counted = tally.units.load(Ordering::Relaxed);
            let connections = seen.connections.load(Ordering::SeqCst);
            assert!(
                counted > 0 && (counted..=counted + 3).contains(&connections),
                "{counted} of {connections}"
            );

            let (tally, seen) = compare(Load::Stream { connections: 3 }, with_header);
            let counted = tally.units.load(Ordering::Relaxed);
            let bytes = seen.bytes.load(Ordering::SeqCst);
            assert!(counted > 1_000_000 && counted <= bytes, "{counted} of {bytes}");
        }
    }
}
