//! A request as the handler sees it, its answer, and the bytes of both.

use std::net::IpAddr;

use super::stream::{Body, MakeBody};
use super::{Hosts, MOST_REQUEST};
use crate::metrics::Format;

/// Headers of a request; a browser sends some twenty.
const MOST_HEADERS: usize = 48;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Somebody over TCP.
    Network,
    /// A process of this machine over a Unix socket, with the user that it ran as when it connected.
    Local {
        /// Its effective user.
        uid: u32,
    },
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// `GET` (also for `HEAD`) or `POST`.
    pub method: &'a str,
    /// What is asked for, up to the question mark.
    pub path: &'a str,
    /// What stands behind the question mark.
    pub query: &'a str,
    /// `Accept` names OpenMetrics.
    pub(super) wants_open_metrics: bool,
    /// Who asks.
    pub peer: Peer,
}

/// What is answered.
pub struct Answer {
    /// RFC 9110 15.
    pub status: u16,
    /// The media type of the body.
    pub kind: &'static str,
    /// Bytes.
    pub body: String,
    make: Make,
}

/// What is made on a thread of its own.
enum Make {
    Nothing,
    /// A body without a known length, in the place of the answer's.
    Body(MakeBody),
    /// The answer.
    Answer(Box<dyn FnOnce() -> Answer + Send>),
}

/// An answer on its way.
pub(super) enum Reply {
    /// All of it.
    Whole(Vec<u8>),
    /// Its head, and who makes the rest.
    Begun(Vec<u8>, MakeBody),
}

const PLAIN: &str = "text/plain; charset=utf-8";

impl Request<'_> {
    /// The format that metrics are to be in.
    pub fn format(&self) -> Format {
        if self.wants_open_metrics {
            Format::OpenMetrics
        } else {
            Format::Text
        }
    }
}

impl Answer {
    /// 200 with a body of this media type.
    pub fn of(kind: &'static str, body: String) -> Self {
        Self {
            status: 200,
            kind,
            body,
            make: Make::Nothing,
        }
    }

    /// 200 with a body of this media type that `make` sends piece by piece, on a thread of its own.
    pub fn stream(kind: &'static str, make: impl FnOnce(Body) + Send + 'static) -> Self {
        Self {
            make: Make::Body(Box::new(make)),
            ..Self::of(kind, String::new())
        }
    }

    /// What `make` answers as a whole on a thread of its own, for what takes long: others are served meanwhile.
    pub fn beside(make: impl FnOnce() -> Answer + Send + 'static) -> Self {
        Self {
            make: Make::Answer(Box::new(make)),
            ..Self::text("")
        }
    }

    /// 200 with text.
    pub fn text(body: impl Into<String>) -> Self {
        Self::of(PLAIN, body.into())
    }

    /// 200 with JSON.
    pub fn json(body: String) -> Self {
        Self::of("application/json", body)
    }

    /// 404; `hint` says what there is.
    pub fn not_found(hint: &str) -> Self {
        Self::refusal(404, hint)
    }

    /// Another status, with a sentence.
    pub fn refusal(status: u16, sentence: &str) -> Self {
        Self {
            status,
            ..Self::text(sentence)
        }
    }

    /// The bytes of the answer; without its body for `HEAD`.
    fn bytes(&self, is_head: bool) -> Vec<u8> {
        let allow = if self.status == 405 {
            "Allow: GET, HEAD, POST\r\n"
        } else {
            ""
        };
        let length = match self.make {
            Make::Body(_) => "Transfer-Encoding: chunked".to_owned(),
            _ => format!("Content-Length: {}", self.body.len()),
        };
        let head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\n{length}\r\n{allow}Cache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            self.status,
            phrase(self.status),
            self.kind,
        );
        let mut bytes = head.into_bytes();
        if !is_head {
            bytes.extend_from_slice(self.body.as_bytes());
        }
        bytes
    }

    fn reply(self, is_head: bool) -> Reply {
        let bytes = self.bytes(is_head);
        match self.make {
            Make::Body(make) if !is_head => Reply::Begun(bytes, make),
            Make::Answer(make) => Reply::Begun(Vec::new(), Box::new(move |body| body.answer(&make().bytes(is_head)))),
            _ => Reply::Whole(bytes),
        }
    }
}

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        409 => "Conflict",
        503 => "Service Unavailable",
        _ => "Status",
    }
}

/// What `bytes` are: nothing yet if the request is not complete.
pub(super) fn answer(
    bytes: &[u8],
    peer: Peer,
    hosts: &Hosts,
    handler: &mut dyn FnMut(&Request<'_>) -> Answer,
) -> Option<Reply> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let refuse = |status, sentence| Some(Answer::refusal(status, sentence).reply(false));
    match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < MOST_REQUEST => return None,
        Ok(httparse::Status::Partial) => return refuse(431, "the request is too long\n"),
        Err(httparse::Error::TooManyHeaders) => return refuse(431, "too many headers\n"),
        Err(_) => return refuse(400, "no HTTP request\n"),
    }
    let (Some(method), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version) else {
        return refuse(400, "no HTTP request\n");
    };
    let headers = Headers(parsed.headers);
    if headers.has_body() {
        return refuse(413, "a request has no body here\n");
    }
    if let Err((status, sentence)) = headers.check_host(version, peer, hosts) {
        return refuse(status, sentence);
    }
    let is_head = method == "HEAD";
    if !is_head && !["GET", "POST"].contains(&method) {
        return refuse(405, "GET, HEAD and POST only\n");
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let request = Request {
        method: if is_head { "GET" } else { method },
        path,
        query,
        wants_open_metrics: headers
            .value("accept")
            .is_some_and(|accepted| contains(accepted, OPEN_METRICS)),
        peer,
    };
    Some(handler(&request).reply(is_head))
}

const OPEN_METRICS: &[u8] = b"application/openmetrics-text";

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|found| found == part)
}

struct Headers<'a>(&'a [httparse::Header<'a>]);

impl Headers<'_> {
    fn values<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s [u8]> {
        let is_it = move |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case(name);
        self.0.iter().filter(is_it).map(|header| header.value)
    }

    fn value<'s>(&'s self, name: &'s str) -> Option<&'s [u8]> {
        self.values(name).next()
    }

    fn has_body(&self) -> bool {
        self.value("transfer-encoding").is_some() || self.values("content-length").any(|length| length != b"0")
    }

    fn check_host(&self, version: u8, peer: Peer, hosts: &Hosts) -> Result<(), (u16, &'static str)> {
        // RFC 9112 3.2: a request of HTTP/1.1 without Host, or with more than one, is answered by 400.
        let mut values = self.values("host");
        match (values.next(), values.next()) {
            (Some(host), None) if peer == Peer::Network && !hosts.allow(host) => Err((
                421,
                "the Host of the request is no address and no name of this server\n",
            )),
            (Some(_), None) => Ok(()),
            // Browsers speak 1.1: what has no Host was sent by no web page.
            (None, _) if version == 0 => Ok(()),
            _ => Err((400, "a request has one Host\n")),
        }
    }
}

impl Hosts {
    fn allow(&self, host: &[u8]) -> bool {
        let Ok(host) = str::from_utf8(host) else {
            return false;
        };
        // A port may follow; an IPv6 address is in brackets.
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or(rest),
            None => host.split(':').next().unwrap_or(host),
        };
        match self {
            Self::Any => true,
            Self::Named(names) => {
                let is_named = |known: &String| known.eq_ignore_ascii_case(name);
                name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost") || names.iter().any(is_named)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str, peer: Peer, hosts: &Hosts) -> Option<String> {
        let mut handler = |request: &Request<'_>| {
            let Request {
                method,
                path,
                query,
                wants_open_metrics,
                ..
            } = request;
            Answer::text(format!("{method} {path} {query} {wants_open_metrics}"))
        };
        let Reply::Whole(bytes) = answer(text.as_bytes(), peer, hosts, &mut handler)? else {
            panic!("no stream was asked for");
        };
        Some(String::from_utf8(bytes).expect("text"))
    }

    fn status(text: &str) -> u16 {
        let answer = asked(text, Peer::Network, &Hosts::Named(vec!["engine.example".to_owned()])).expect("complete");
        answer
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .expect("a status")
    }

    #[test]
    fn a_request_is_answered_when_it_is_complete() {
        let text =
            "GET /metrics?a=1 HTTP/1.1\r\nhost: 127.0.0.1:9180\r\nAccept: application/openmetrics-text;q=1\r\n\r\n";
        for length in 0..text.len() {
            assert_eq!(asked(&text[..length], Peer::Network, &Hosts::Any), None, "{length}");
        }
        let whole = asked(text, Peer::Network, &Hosts::Any).expect("complete");
        assert!(whole.starts_with("HTTP/1.1 200 OK\r\n"), "{whole}");
        assert!(whole.contains("\r\nContent-Length: 21\r\n"), "{whole}");
        assert!(whole.ends_with("\r\n\r\nGET /metrics a=1 true"), "{whole}");
    }

    #[test]
    fn head_has_no_body_and_the_length_of_one() {
        let head = asked("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n", Peer::Network, &Hosts::Any).expect("complete");
        assert!(
            head.contains("\r\nContent-Length: 12\r\n") && head.ends_with("\r\n\r\n"),
            "{head}"
        );
    }

    #[test]
    fn a_host_is_an_address_localhost_or_a_known_name() {
        let of = |host: &str| status(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        for host in [
            "127.0.0.1",
            "10.1.2.3:80",
            "[::1]",
            "[2001:db8::1]:80",
            "localhost:1",
            "Engine.Example:80",
        ] {
            assert_eq!(of(host), 200, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:80",
            "",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
        ] {
            assert_eq!(of(host), 421, "{host}");
        }
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(status("GET / HTTP/1.0\r\n\r\n"), 200);
        assert_eq!(
            status("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"),
            400
        );
        // A browser cannot get to a Unix socket.
        let local = asked(
            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            Peer::Local { uid: 0 },
            &Hosts::Named(vec![]),
        );
        assert!(local.expect("complete").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn what_is_no_request_for_this_server_is_refused() {
        for (text, code) in [
            ("\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}", 400),
            ("GET / HTTP/2.0\r\n\r\n", 400),
            ("SSH-2.0-x\r\n", 400),
            ("DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
            ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n", 413),
            (
                "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
                413,
            ),
            ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 200),
        ] {
            assert_eq!(status(text), code, "{text:?}");
        }
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(MOST_REQUEST));
        assert_eq!(status(&long), 431);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MOST_HEADERS + 1));
        assert_eq!(status(&many), 431);
    }
}
