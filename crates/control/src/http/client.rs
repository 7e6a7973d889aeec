//! The client's half: one request, and its answer, whole or as it comes.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::connection::Stream;
use super::{ANSWER_TIME, Endpoint};

/// Bytes of an answer: far more than any here has.
const MOST_ANSWER: u64 = 64 << 20;

/// Bytes of an answer's head.
const MOST_HEAD: usize = 16 << 10;

/// An answer whose body is still coming: it is read here. It ends with an error if the server goes away before its end.
pub struct Streamed {
    /// Its status.
    pub status: u16,
    reader: BufReader<Stream>,
    /// Bytes that are left of the chunk that is being read.
    left: u64,
    is_chunked: bool,
    is_over: bool,
}

/// Tells the server that enough has come of an answer; what is under way still comes, and its end.
pub struct Enough(Stream);

impl Enough {
    /// Says so.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn say(&self) -> io::Result<()> {
        self.0.shutdown_write()
    }
}

/// Asks the server at `endpoint`; its status and body.
///
/// # Errors
/// Nobody listens there, nobody answers within [`ANSWER_TIME`], or what answers speaks no HTTP.
pub fn ask(endpoint: &Endpoint, method: &str, path: &str) -> io::Result<(u16, String)> {
    ask_within(endpoint, method, path, ANSWER_TIME)
}

/// The same for what may take the server so long.
///
/// # Errors
/// The same, after that time.
pub fn ask_within(endpoint: &Endpoint, method: &str, path: &str, patience: Duration) -> io::Result<(u16, String)> {
    let stream = connect(endpoint)?;
    stream.wait_at_most(Some(patience))?;
    let mut answer = Streamed::begin(stream, endpoint, method, path)?;
    let mut body = String::new();
    answer.by_ref().take(MOST_ANSWER).read_to_string(&mut body)?;
    Ok((answer.status, body))
}

/// The same for an answer that goes on until it is over, or somebody says that it is enough: between two pieces of it any time may
/// pass.
///
/// # Errors
/// The same.
pub fn stream(endpoint: &Endpoint, method: &str, path: &str) -> io::Result<(Streamed, Enough)> {
    let stream = connect(endpoint)?;
    let enough = Enough(stream.try_clone()?);
    let answer = Streamed::begin(stream, endpoint, method, path)?;
    answer.reader.get_ref().wait_at_most(None)?;
    Ok((answer, enough))
}

fn connect(endpoint: &Endpoint) -> io::Result<Stream> {
    let stream = match endpoint {
        Endpoint::Tcp(address) => Stream::Tcp(TcpStream::connect_timeout(address, ANSWER_TIME)?),
        Endpoint::Unix(socket) => Stream::Unix(UnixStream::connect(socket)?),
    };
    stream.wait_at_most(Some(ANSWER_TIME))?;
    Ok(stream)
}

fn no_http() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer is not one of HTTP")
}

impl Streamed {
    fn begin(mut stream: Stream, endpoint: &Endpoint, method: &str, path: &str) -> io::Result<Self> {
        let host = match endpoint {
            Endpoint::Tcp(address) => address.to_string(),
            Endpoint::Unix(_) => "localhost".to_owned(),
        };
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut reader = BufReader::new(stream);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let left = MOST_HEAD.saturating_sub(head.len()) as u64;
            if reader.by_ref().take(left).read_until(b'\n', &mut head)? == 0 {
                return Err(no_http());
            }
        }
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut answer = httparse::Response::new(&mut headers);
        if !matches!(answer.parse(&head), Ok(httparse::Status::Complete(_))) {
            return Err(no_http());
        }
        let status = answer.code.ok_or_else(no_http)?;
        let is_chunked = (answer.headers.iter())
            .any(|header| header.name.eq_ignore_ascii_case("transfer-encoding") && header.value == b"chunked");
        Ok(Self {
            status,
            reader,
            left: 0,
            is_chunked,
            is_over: false,
        })
    }

    /// RFC 9112 7.1: the size of the next chunk.
    fn next_chunk(&mut self) -> io::Result<()> {
        let mut line = String::new();
        self.reader.by_ref().take(18).read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left = u64::from_str_radix(line.trim_end(), 16).map_err(|_| no_http())?;
        self.is_over = self.left == 0;
        Ok(())
    }
}

impl Read for Streamed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if !self.is_chunked {
            return self.reader.read(bytes);
        }
        if self.left == 0 && !self.is_over {
            self.next_chunk()?;
        }
        if self.is_over || bytes.is_empty() {
            return Ok(0);
        }
        let room = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.reader.read(&mut bytes[..room])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        if self.left == 0 {
            let mut end = [0; 2];
            self.reader.read_exact(&mut end)?;
        }
        Ok(count)
    }
}
