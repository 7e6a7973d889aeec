//! An answer that goes on: its body is sent in chunks (RFC 9112 7.1) by a thread of its own, until there is no more or the peer has
//! had enough.

use std::io::{self, Read, Write};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connection::Stream;

/// How long a peer may take nothing before it counts as gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// What makes a body, on a thread of its own.
pub(super) type MakeBody = Box<dyn FnOnce(Body) + Send>;

/// A body that is under way. Dropping it without [`finish`](Self::finish) leaves it incomplete, and the peer sees that.
pub struct Body {
    stream: Stream,
    /// The peer has closed its half: it wants no more.
    is_enough: bool,
}

impl Body {
    /// Sends `head` and has the body made.
    ///
    /// # Errors
    /// There is no thread left, or the socket refuses.
    pub(super) fn begin(stream: Stream, head: Vec<u8>, make: MakeBody) -> io::Result<()> {
        stream.wait_at_most(Some(PATIENCE))?;
        let mut body = Body {
            stream,
            is_enough: false,
        };
        let run = move || {
            if body.stream.write_all(&head).is_ok() {
                make(body);
            }
        };
        thread::Builder::new().name("stream".to_owned()).spawn(run).map(drop)
    }

    /// Sends these bytes; waits while the peer does not take them.
    ///
    /// # Errors
    /// The peer has gone, or has taken nothing for 30 s.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            // A chunk of no bytes would end the body.
            return Ok(());
        }
        self.stream.write_all(format!("{:x}\r\n", bytes.len()).as_bytes())?;
        self.stream.write_all(bytes)?;
        self.stream.write_all(b"\r\n")
    }

    /// A whole answer, its head included. A peer that does not take it has gone.
    pub(super) fn answer(mut self, bytes: &[u8]) {
        let _peer_may_be_gone = self.stream.write_all(bytes).and_then(|()| self.stream.shutdown_write());
    }

    /// Whether the peer wants no more: it has closed its half of the connection, or gone.
    pub fn is_enough(&mut self) -> bool {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        let has_news = poll(&mut fds, Some(&none)).is_ok_and(|ready| ready > 0);
        // What it says is not listened to.
        if has_news && !self.is_enough {
            self.is_enough = !matches!(self.stream.read(&mut [0; 64]), Ok(1..));
        }
        self.is_enough
    }

    /// Ends the body.
    ///
    /// # Errors
    /// As [`Body::send`].
    pub fn finish(mut self) -> io::Result<()> {
        self.stream.write_all(b"0\r\n\r\n")?;
        self.stream.shutdown_write()
    }
}
