//! The loop: who waits for what, who is let in, who has to go.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::MOST_CONNECTIONS;
use super::connection::{Connection, Stream};
use super::endpoint::{Endpoint, bind_unix};
use super::request::{Answer, Request};

/// Connections that are taken from one listener before anybody else is looked at.
const ACCEPTED_AT_ONCE: usize = 16;

/// Places that nobody over TCP gets while there is a Unix socket, but no more than half of them.
const KEPT_FOR_UNIX: usize = 8;

/// How long no connection is accepted after that failed, for want of descriptors, for instance.
const PAUSE: Duration = Duration::from_millis(100);

/// Which names a request over TCP may give this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Any: for servers that web pages may read.
    Any,
    /// IP addresses, `localhost`, and these.
    Named(Vec<String>),
}

/// A server that does not run yet.
pub struct Server {
    listeners: Vec<Listener>,
    hosts: Hosts,
    most_connections: usize,
    begin: Option<Box<dyn FnOnce() + Send>>,
}

/// A place for a new connection.
enum Room {
    Free,
    /// That of the connection of this index.
    Of(usize),
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A server that runs on a thread of its own. Dropping it ends it, and removes its Unix sockets.
pub struct Running {
    // Its end wakes the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// Without a listener; for IP addresses and `localhost`.
    pub fn new() -> Self {
        Self {
            listeners: Vec::new(),
            hosts: Hosts::Named(Vec::new()),
            most_connections: MOST_CONNECTIONS,
            begin: None,
        }
    }

    /// What its thread does first: to give up rights, for instance, before it reads what strangers write.
    pub fn begin_with(&mut self, begin: impl FnOnce() + Send + 'static) {
        self.begin = Some(Box::new(begin));
    }

    /// How many connections it holds at once, instead of [`MOST_CONNECTIONS`]; at least one.
    pub fn allow_connections(&mut self, most: usize) {
        self.most_connections = most.max(1);
    }

    /// Which names requests over TCP may give it.
    pub fn allow_hosts(&mut self, hosts: Hosts) {
        self.hosts = hosts;
    }

    /// Listens there. A Unix socket is for its owner and its group (0660).
    ///
    /// # Errors
    /// As `bind`.
    pub fn listen(&mut self, endpoint: &Endpoint) -> io::Result<()> {
        match endpoint {
            Endpoint::Tcp(address) => self.listen_on(TcpListener::bind(address)?),
            Endpoint::Unix(path) => {
                let listener = bind_unix(path)?;
                listener.set_nonblocking(true)?;
                self.listeners.push(Listener::Unix(listener, path.clone()));
                Ok(())
            }
        }
    }

    /// The same with a listener that is bound already.
    ///
    /// # Errors
    /// As `fcntl`.
    pub fn listen_on(&mut self, listener: TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        self.listeners.push(Listener::Tcp(listener));
        Ok(())
    }

    /// Serves on a thread of this name. The handler runs there, one request at a time.
    ///
    /// # Errors
    /// The thread or its way to be woken cannot be made.
    pub fn spawn(
        self,
        name: &str,
        handler: impl FnMut(&Request<'_>) -> Answer + Send + 'static,
    ) -> io::Result<Running> {
        let (stop, stopped) = UnixStream::pair()?;
        let thread = thread::Builder::new().name(name.to_owned()).stack_size(512 << 10);
        let thread = thread.spawn(move || self.serve(&stopped, handler))?;
        Ok(Running {
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    fn serve(mut self, stopped: &UnixStream, mut handler: impl FnMut(&Request<'_>) -> Answer) {
        if let Some(begin) = self.begin.take() {
            begin();
        }
        let mut connections: Vec<Connection> = Vec::new();
        let mut paused_until = None;
        loop {
            let begin = Instant::now();
            paused_until = paused_until.filter(|until| *until > begin);
            match self.wait(stopped, &connections, paused_until) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    log::error!("control: poll: {error}");
                    return;
                }
            }
            let now = Instant::now();
            let mut taken = Duration::ZERO;
            let mut timed = |request: &Request<'_>| {
                let begin = Instant::now();
                let answer = handler(request);
                taken += begin.elapsed();
                answer
            };
            connections.retain_mut(|connection| connection.go_on(now, &self.hosts, &mut timed));
            if paused_until.is_none()
                && let Err(error) = self.accept(&mut connections, now, &mut timed)
            {
                log::debug!("control: no connection can be accepted: {error}");
                paused_until = Some(now + PAUSE);
            }
            // Nobody is late by what others have asked for.
            connections.iter_mut().for_each(|connection| connection.put_off(taken));
        }
    }

    /// Waits until there is something to do; whether that is to end.
    fn wait(
        &self,
        stopped: &UnixStream,
        connections: &[Connection],
        paused_until: Option<Instant>,
    ) -> io::Result<bool> {
        let deadlines = connections.iter().map(Connection::deadline).chain(paused_until);
        let left = deadlines
            .min()
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            // A deadline is not looked at a moment before it.
            tv_nsec: i64::from(left.subsec_nanos()) + 1,
        });
        let timeout = timeout.map(|time| Timespec {
            tv_sec: time.tv_sec + time.tv_nsec / 1_000_000_000,
            tv_nsec: time.tv_nsec % 1_000_000_000,
        });
        let mut fds = vec![PollFd::new(stopped, PollFlags::IN)];
        fds.extend(
            connections
                .iter()
                .map(|connection| PollFd::new(connection, connection.interest())),
        );
        if paused_until.is_none() {
            let with_room = (self.listeners.iter()).filter(|listener| self.room(listener, connections).is_some());
            fds.extend(with_room.map(|listener| PollFd::new(listener, PollFlags::IN)));
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => Ok(!fds[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// A place for a connection to this listener: a free one, or that of a connection which has to give it up. Those whose answer is
    /// under way keep theirs. Some places are for Unix sockets only, so that readers over TCP keep no administrator out.
    fn room(&self, listener: &Listener, connections: &[Connection]) -> Option<Room> {
        let is_unix = matches!(listener, Listener::Unix(..));
        let has_unix = self.listeners.iter().any(|of| matches!(of, Listener::Unix(..)));
        let kept = if has_unix && !is_unix {
            KEPT_FOR_UNIX.min(self.most_connections / 2)
        } else {
            0
        };
        let of_network = connections.iter().filter(|connection| !connection.is_local()).count();
        if connections.len() < self.most_connections && (is_unix || of_network < self.most_connections - kept) {
            return Some(Room::Free);
        }
        // They are in the order in which they came. Nobody over TCP takes the place of a local peer.
        let may_go = |is: fn(&Connection) -> bool| {
            (connections.iter()).position(|connection| is(connection) && (is_unix || !connection.is_local()))
        };
        may_go(Connection::is_closing)
            .or_else(|| may_go(Connection::is_incomplete))
            .map(Room::Of)
    }

    /// Takes those who knock, and looks at once at what they have sent.
    fn accept(
        &self,
        connections: &mut Vec<Connection>,
        now: Instant,
        handler: &mut dyn FnMut(&Request<'_>) -> Answer,
    ) -> io::Result<()> {
        for listener in &self.listeners {
            for _ in 0..ACCEPTED_AT_ONCE {
                let Some(room) = self.room(listener, connections) else {
                    break;
                };
                match listener.accept() {
                    Ok(stream) => {
                        if let Room::Of(index) = room {
                            connections.remove(index);
                        }
                        if let Ok(mut connection) = Connection::new(stream, now)
                            && connection.go_on(now, &self.hosts, handler)
                        {
                            connections.push(connection);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // Of one that is gone already: accept(2).
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl Listener {
    fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(stream))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Whoever comes later finds that nobody is here, or replaces it.
            let _ = fs::remove_file(path);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A handler that panicked has been heard of.
            let _ = thread.join();
        }
    }
}
