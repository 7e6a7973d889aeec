//! One connection: request in, answer out, end.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::request::{self, Answer, Peer, Reply, Request};
use super::stream::Body;
use super::{ANSWER_TIME, Hosts, MOST_REQUEST, REQUEST_TIME};

/// How long the peer may take to close after it has got its answer. Bytes of it that are unread when this end closes would
/// make a RST of the end, and the peer may lose the answer by that.
const LINGER: Duration = Duration::from_millis(500);

/// A stream of either family.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

enum State {
    /// The request, as far as it is here.
    Request(Vec<u8>),
    /// The answer, and how much of it is on its way.
    Answer(Vec<u8>, usize),
    /// The peer is to close.
    Closing,
}

pub(super) struct Connection {
    stream: Stream,
    peer: Peer,
    state: State,
    deadline: Instant,
}

impl Connection {
    /// `stream` does not block.
    pub(super) fn new(stream: Stream, now: Instant) -> io::Result<Self> {
        let peer = match &stream {
            Stream::Tcp(_) => Peer::Network,
            Stream::Unix(stream) => Peer::Local {
                uid: rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw(),
            },
        };
        Ok(Self {
            stream,
            peer,
            state: State::Request(Vec::new()),
            deadline: now + REQUEST_TIME,
        })
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Moves its deadline by the time that handlers took, in which no connection was looked at.
    pub(super) fn put_off(&mut self, time: Duration) {
        self.deadline += time;
    }

    /// Its request is incomplete: it may have to give its place to others.
    pub(super) fn is_incomplete(&self) -> bool {
        matches!(self.state, State::Request(_))
    }

    /// Its answer is sent: it may have to give its place to others.
    pub(super) fn is_closing(&self) -> bool {
        matches!(self.state, State::Closing)
    }

    /// Its peer has come over a Unix socket.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.peer, Peer::Local { .. })
    }

    /// What it waits for.
    pub(super) fn interest(&self) -> PollFlags {
        match self.state {
            State::Request(_) | State::Closing => PollFlags::IN,
            State::Answer(..) => PollFlags::OUT,
        }
    }

    /// Does what can be done without waiting; whether anything is left to do.
    pub(super) fn go_on(
        &mut self,
        now: Instant,
        hosts: &Hosts,
        handler: &mut dyn FnMut(&Request<'_>) -> Answer,
    ) -> bool {
        if now >= self.deadline {
            return false;
        }
        loop {
            let result = match &mut self.state {
                State::Request(_) => self.read(now, hosts, handler),
                State::Answer(..) => self.write(now),
                State::Closing => self.discard(),
            };
            match result {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    fn read(
        &mut self,
        now: Instant,
        hosts: &Hosts,
        handler: &mut dyn FnMut(&Request<'_>) -> Answer,
    ) -> io::Result<bool> {
        let State::Request(bytes) = &mut self.state else {
            return Ok(true);
        };
        let mut piece = [0; 2048];
        let room = piece.len().min(MOST_REQUEST.saturating_sub(bytes.len()));
        let count = self.stream.read(&mut piece[..room])?;
        if count == 0 {
            return Ok(false);
        }
        bytes.extend_from_slice(&piece[..count]);
        match request::answer(bytes, self.peer, hosts, handler) {
            None => {}
            Some(Reply::Whole(answer)) => {
                self.state = State::Answer(answer, 0);
                self.deadline = now + ANSWER_TIME;
            }
            Some(Reply::Begun(head, make)) => {
                Body::begin(self.stream.try_clone()?, head, make)?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn write(&mut self, now: Instant) -> io::Result<bool> {
        let State::Answer(bytes, written) = &mut self.state else {
            return Ok(true);
        };
        if *written < bytes.len() {
            *written += self.stream.write(&bytes[*written..])?;
            return Ok(true);
        }
        self.stream.shutdown_write()?;
        self.state = State::Closing;
        self.deadline = now + LINGER;
        Ok(true)
    }

    fn discard(&mut self) -> io::Result<bool> {
        // One piece for each look at the socket: who goes on sending is not listened to for longer than the deadline.
        match self.stream.read(&mut [0; 4096])? {
            0 => Ok(false),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Stream {
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
        })
    }

    /// Has reading and writing wait, but not for longer than this, if it is said.
    pub(super) fn wait_at_most(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(time)?;
                stream.set_write_timeout(time)
            }
            Self::Unix(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(time)?;
                stream.set_write_timeout(time)
            }
        }
    }

    pub(super) fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
