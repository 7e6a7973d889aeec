//! The client's half: one request, and its answer.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use super::{ANSWER_TIME, Endpoint};

/// Bytes of an answer: far more than any here has.
const MOST_ANSWER: u64 = 64 << 20;

/// Asks the server at `endpoint`; its status and body.
///
/// # Errors
/// Nobody listens there, nobody answers within [`ANSWER_TIME`], or what answers speaks no HTTP.
pub fn ask(endpoint: &Endpoint, method: &str, path: &str) -> io::Result<(u16, String)> {
    match endpoint {
        Endpoint::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, ANSWER_TIME)?;
            stream.set_read_timeout(Some(ANSWER_TIME))?;
            stream.set_write_timeout(Some(ANSWER_TIME))?;
            ask_on(stream, &address.to_string(), method, path)
        }
        Endpoint::Unix(socket) => {
            let stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(ANSWER_TIME))?;
            stream.set_write_timeout(Some(ANSWER_TIME))?;
            ask_on(stream, "localhost", method, path)
        }
    }
}

fn ask_on(mut stream: impl Read + Write, host: &str, method: &str, path: &str) -> io::Result<(u16, String)> {
    stream.write_all(format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut bytes = Vec::new();
    stream.take(MOST_ANSWER).read_to_end(&mut bytes)?;
    let no_http = || io::Error::new(io::ErrorKind::InvalidData, "the answer is not one of HTTP");
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut answer = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(head)) = answer.parse(&bytes) else {
        return Err(no_http());
    };
    let status = answer.code.ok_or_else(no_http)?;
    let body = String::from_utf8(bytes.split_off(head)).map_err(|_| no_http())?;
    Ok((status, body))
}
