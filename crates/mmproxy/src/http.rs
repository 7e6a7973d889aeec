//! Metrics over HTTP: `/metrics` for Prometheus, `/stats` as JSON, `/healthz`.
//!
//! One thread, one request at a time, each with a deadline: it serves a scraper, not the world.

use crate::metrics::{self, Counters, InlineCounters};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(2);
const MAX_REQUEST: usize = 4096;

/// Serves the counters until the process ends.
pub fn serve(listener: &TcpListener, workers: &[Arc<Counters>], inline: Option<&InlineCounters>) {
    for connection in listener.incoming() {
        match connection {
            Ok(connection) => {
                if let Err(error) = answer(connection, workers, inline) {
                    log::debug!("metrics: {error}");
                }
            }
            Err(error) => {
                // Out of descriptors, for instance: the proxy has its own way with that.
                log::debug!("metrics: {error}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn answer(mut connection: TcpStream, workers: &[Arc<Counters>], inline: Option<&InlineCounters>) -> io::Result<()> {
    connection.set_write_timeout(Some(DEADLINE))?;
    let begin = Instant::now();
    let mut request = [0; MAX_REQUEST];
    let mut length = 0;
    while length < MAX_REQUEST && !request[..length].windows(4).any(|end| end == b"\r\n\r\n") {
        // What is left of the deadline, however many pieces the request comes in.
        let left = DEADLINE.saturating_sub(begin.elapsed()).max(Duration::from_millis(1));
        connection.set_read_timeout(Some(left))?;
        if begin.elapsed() > DEADLINE {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match connection.read(&mut request[length..])? {
            0 => break,
            count => length += count,
        }
    }
    let (status, kind, body) = respond(&request[..length], workers, inline);
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(answer.as_bytes())
}

fn respond(
    request: &[u8],
    workers: &[Arc<Counters>],
    inline: Option<&InlineCounters>,
) -> (&'static str, &'static str, String) {
    const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let counters = workers.iter().map(Arc::as_ref);
    match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics")) => {
            let inline = inline.map(InlineCounters::prometheus).unwrap_or_default();
            ("200 OK", TEXT, metrics::prometheus(counters) + &inline)
        }
        (Some(b"GET"), Some(b"/stats")) => ("200 OK", "application/json", metrics::json(counters, inline)),
        (Some(b"GET"), Some(b"/healthz")) => ("200 OK", TEXT, "ok\n".into()),
        (Some(b"GET"), _) => ("404 Not Found", TEXT, "/metrics, /stats, /healthz\n".into()),
        _ => ("405 Method Not Allowed", TEXT, "GET only\n".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let workers = [Arc::new(Counters::default())];
        let status = |request: &str| respond(request.as_bytes(), &workers, None).0;
        assert_eq!(status("GET /metrics HTTP/1.1\r\n\r\n"), "200 OK");
        assert_eq!(status("GET /stats HTTP/1.1\r\n\r\n"), "200 OK");
        assert_eq!(status("GET /healthz HTTP/1.1\r\n\r\n"), "200 OK");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "404 Not Found");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405 Method Not Allowed");
        assert_eq!(status(""), "405 Method Not Allowed");
    }
}
