//! Records to Unix sockets and to syslog: lines down a stream, or a datagram each.

use std::io::{self, ErrorKind, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use humantime_serde::re::humantime;
use netfcts::format::{NameTable, RecordLines};
use netfcts::record::SessionRecord;

use super::sink::{Fate, Output};
use crate::config::Endpoint;

/// How long a thread waits for a reader before it looks whether the engine ends.
const PATIENCE: Duration = Duration::from_millis(200);

/// Time between two attempts to reach somebody who is not there.
const RETRY: Duration = Duration::from_secs(1);

/// Bytes of lines that are sent at once.
const CHUNK: usize = 65_536;

/// Local use 0, informational (RFC 5424 6.2.1).
const PRIORITY: u8 = 16 * 8 + 6;

/// Lines down a Unix stream. A reader that goes is called again; its next line is a whole one.
pub(super) struct Stream {
    path: PathBuf,
    lines: RecordLines,
    stream: Option<UnixStream>,
    tried: Option<Instant>,
    buffer: Vec<u8>,
    /// Where each record in the buffer ends.
    ends: Vec<usize>,
}

impl Stream {
    pub(super) fn new(path: PathBuf, lines: RecordLines) -> Stream {
        Stream {
            path,
            lines,
            stream: None,
            tried: None,
            buffer: Vec::with_capacity(CHUNK),
            ends: Vec::new(),
        }
    }

    fn connect(&mut self) -> io::Result<()> {
        if self.stream.is_some() {
            return Ok(());
        }
        if self.tried.is_some_and(|tried| tried.elapsed() < RETRY) {
            return Err(ErrorKind::NotConnected.into());
        }
        self.tried = Some(Instant::now());
        let mut stream = UnixStream::connect(&self.path)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(self.lines.header().as_bytes())?;
        self.stream = Some(stream);
        Ok(())
    }

    /// Sends what is in the buffer, with how many bytes of it have gone.
    fn send(&mut self, fate: &Fate) -> (usize, io::Result<()>) {
        let mut sent = 0;
        if let Err(error) = self.connect() {
            return (sent, Err(error));
        }
        let Some(stream) = &mut self.stream else {
            return (sent, Ok(()));
        };
        while sent < self.buffer.len() {
            match stream.write(&self.buffer[sent..]) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                // A reader that is slow is waited for; the ring behind is what overflows.
                Err(error) if error.kind() == ErrorKind::WouldBlock && !fate.is_ending() => (),
                Err(error) => {
                    self.stream = None;
                    return (sent, Err(error));
                }
            }
        }
        (sent, Ok(()))
    }
}

impl Output for Stream {
    fn set_names(&mut self, names: &Arc<NameTable>) {
        self.lines.set_names(Arc::clone(names));
    }

    fn put(&mut self, record: &SessionRecord, fate: &Fate) -> io::Result<()> {
        self.buffer.extend_from_slice(self.lines.line(record).as_bytes());
        self.ends.push(self.buffer.len());
        if self.buffer.len() >= CHUNK {
            return self.flush(fate);
        }
        Ok(())
    }

    fn flush(&mut self, fate: &Fate) -> io::Result<()> {
        if self.ends.is_empty() {
            return Ok(());
        }
        let (sent, result) = self.send(fate);
        let written = self.ends.partition_point(|end| *end <= sent);
        fate.write(written as u64);
        fate.lose((self.ends.len() - written) as u64);
        self.buffer.clear();
        self.ends.clear();
        result
    }

    fn pending(&self) -> u64 {
        self.ends.len() as u64
    }
}

/// A datagram for each record.
pub(super) struct Datagrams {
    to: Endpoint,
    lines: RecordLines,
    /// What comes before each line behind its time, if it is for syslog.
    origin: Option<String>,
    socket: Option<Socket>,
    tried: Option<Instant>,
    message: Vec<u8>,
    /// The last one did not go.
    failing: bool,
}

enum Socket {
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

impl Socket {
    fn open(to: &Endpoint) -> io::Result<Socket> {
        match to {
            Endpoint::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                socket.set_write_timeout(Some(PATIENCE))?;
                Ok(Socket::Unix(socket))
            }
            Endpoint::Udp(address) => connected(*address).map(Socket::Udp),
        }
    }

    fn send(&self, message: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(socket) => socket.send(message),
            Socket::Udp(socket) => socket.send(message),
        }
    }
}

/// A UDP socket that sends there.
///
/// # Errors
/// There is no way there.
pub(super) fn connected(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    Ok(socket)
}

impl Datagrams {
    /// A line each, as it is.
    pub(super) fn plain(path: PathBuf, lines: RecordLines) -> Datagrams {
        Datagrams::new(Endpoint::Unix(path), lines, None)
    }

    /// A message of RFC 5424 each: facility local0, severity informational, MSGID `session`, the line as the text.
    pub(super) fn syslog(to: Endpoint, lines: RecordLines) -> Datagrams {
        let uname = rustix::system::uname();
        // RFC 5424 6.2.4: printable ASCII, or the nil value.
        let host = uname.nodename().to_str().ok().filter(|name| {
            let is_printable = name.bytes().all(|byte| byte.is_ascii_graphic());
            !name.is_empty() && name.len() <= 255 && is_printable
        });
        let origin = format!(" {} proxyengine {} session - ", host.unwrap_or("-"), std::process::id());
        Datagrams::new(to, lines, Some(origin))
    }

    fn new(to: Endpoint, lines: RecordLines, origin: Option<String>) -> Datagrams {
        Datagrams {
            to,
            lines,
            origin,
            socket: None,
            tried: None,
            message: Vec::with_capacity(2_048),
            failing: false,
        }
    }

    fn send(&mut self, fate: &Fate) -> io::Result<()> {
        if self.socket.is_none() {
            if self.tried.is_some_and(|tried| tried.elapsed() < RETRY) {
                return Err(ErrorKind::NotConnected.into());
            }
            self.tried = Some(Instant::now());
            self.socket = Some(Socket::open(&self.to)?);
        }
        let Some(socket) = &self.socket else { return Ok(()) };
        loop {
            let error = match socket.send(&self.message) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::Interrupted => (),
                // The reader's queue is full.
                ErrorKind::WouldBlock if !fate.is_ending() => (),
                _ => {
                    self.socket = None;
                    return Err(error);
                }
            }
        }
    }
}

impl Output for Datagrams {
    fn set_names(&mut self, names: &Arc<NameTable>) {
        self.lines.set_names(Arc::clone(names));
    }

    fn put(&mut self, record: &SessionRecord, fate: &Fate) -> io::Result<()> {
        self.message.clear();
        let line = self.lines.line(record);
        if let Some(origin) = &self.origin {
            let now = humantime::format_rfc3339_micros(SystemTime::now());
            write!(self.message, "<{PRIORITY}>1 {now}{origin}")?;
        }
        self.message.extend_from_slice(line.trim_end_matches('\n').as_bytes());
        let sent = self.send(fate);
        self.failing = sent.is_err();
        match sent {
            Ok(()) => fate.write(1),
            Err(_) => fate.lose(1),
        }
        sent
    }

    fn flush(&mut self, _fate: &Fate) -> io::Result<()> {
        // Nothing is kept, and the trouble of the last one is not over.
        if self.failing {
            Err(ErrorKind::NotConnected.into())
        } else {
            Ok(())
        }
    }

    fn pending(&self) -> u64 {
        0
    }
}
