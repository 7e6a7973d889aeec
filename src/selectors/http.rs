//! Target and host of an HTTP/1 request (RFC 9112), as far as a choice between servers needs them.
//!
//! The host is known with the line that names it, without waiting for the rest of the head. A second `Host` line would
//! make the request invalid (RFC 9112 3.2), but that is for the server to say, which gets to see all of it; and a client
//! that wants another host's server than the first line names gains nothing by it, because later requests on the
//! connection are not looked at.
//!
//! Nothing is decoded or normalised: a path is compared as it was sent.

use super::Sought;

/// A request line, and what follows it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The host that the target itself names, in absolute form and with CONNECT.
    target_host: Option<&'a [u8]>,
    /// The path, up to the query.
    path: Option<&'a str>,
    /// The header lines so far.
    head: &'a [u8],
}

impl<'a> Request<'a> {
    /// The request that `bytes` begin with; known when its first line is complete.
    pub fn parse(bytes: &'a [u8]) -> Sought<Self> {
        let text = bytes
            .iter()
            .position(|b| !matches!(b, b'\r' | b'\n'))
            .unwrap_or(bytes.len());
        let end = bytes[text..].iter().position(|b| *b == b'\n').map(|at| text + at + 1);
        let (line, head) = bytes.split_at(end.unwrap_or(bytes.len()));
        let mut request = httparse::Request::new(&mut []);
        match request.parse(line) {
            Ok(httparse::Status::Partial) if end.is_none() => return Sought::NeedMore,
            Ok(_) => (),
            Err(_) => return Sought::Absent,
        }
        let (Some(method), Some(target), Some(_)) = (request.method, request.path, request.version) else {
            return Sought::Absent;
        };
        let (target_host, path) = match Target::parse(method, target) {
            Some(Target::Path(path)) => (None, Some(path)),
            Some(Target::Absolute { host, path }) => (Some(host), Some(path)),
            Some(Target::Authority(host)) => (Some(host), None),
            Some(Target::Server) => (None, None),
            None => return Sought::Absent,
        };
        Sought::Found(Self {
            target_host,
            path,
            head,
        })
    }

    /// The path without query; `None` for requests that have none (CONNECT, `OPTIONS *`).
    pub fn path(&self) -> Option<&'a str> {
        self.path
    }

    /// The host without port; IPv6 addresses are in brackets. RFC 9112 3.2.2: what the target says counts more than what
    /// the `Host` line says.
    pub fn host(&self) -> Sought<&'a [u8]> {
        if let Some(host) = self.target_host {
            return Sought::Found(host);
        }
        let mut head = self.head;
        while let Some(end) = head.iter().position(|b| *b == b'\n') {
            let line = &head[..end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            head = &head[end + 1..];
            // An empty line ends the head. RFC 9112 5.1: no white space before the colon; 5.2: no folded lines.
            let Some(colon) = line.iter().position(|b| *b == b':') else {
                return Sought::Absent;
            };
            let (name, value) = (&line[..colon], &line[colon + 1..]);
            if name.is_empty() || !name.iter().all(|b| is_token(*b)) {
                return Sought::Absent;
            }
            if name.eq_ignore_ascii_case(b"host") {
                return host_of(value.trim_ascii()).map_or(Sought::Absent, Sought::Found);
            }
        }
        Sought::NeedMore
    }
}

/// The forms of a request target: RFC 9112 3.2.
enum Target<'a> {
    Path(&'a str),
    Absolute { host: &'a [u8], path: &'a str },
    Authority(&'a [u8]),
    Server,
}

impl<'a> Target<'a> {
    fn parse(method: &str, target: &'a str) -> Option<Self> {
        if method == "CONNECT" {
            return host_of(target.as_bytes()).map(Self::Authority);
        }
        if target.starts_with('/') {
            return Some(Self::Path(before_query(target)));
        }
        if target == "*" {
            return Some(Self::Server);
        }
        let (scheme, rest) = target.split_once("://")?;
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return None;
        }
        let rest = before_query(rest);
        let (authority, path) = rest.find('/').map_or((rest, "/"), |slash| rest.split_at(slash));
        // RFC 9110 4.2.4: a user before "@" is not the host.
        let authority = authority.rsplit_once('@').map_or(authority, |(_, authority)| authority);
        Some(Self::Absolute {
            host: host_of(authority.as_bytes())?,
            path,
        })
    }
}

fn before_query(target: &str) -> &str {
    target.split(['?', '#']).next().unwrap_or(target)
}

/// The host in `host[:port]`: RFC 3986 3.2.2.
fn host_of(authority: &[u8]) -> Option<&[u8]> {
    let end = match authority.first()? {
        b'[' => authority.iter().position(|b| *b == b']')? + 1,
        _ => authority.iter().position(|b| *b == b':').unwrap_or(authority.len()),
    };
    let (host, port) = authority.split_at(end);
    let is_literal = host.starts_with(b"[");
    let is_host =
        |b: &u8| b.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(b) || is_literal && b"[:]".contains(b);
    let is_port = port.is_empty() || port[0] == b':' && port[1..].iter().all(u8::is_ascii_digit);
    (!host.is_empty() && host.iter().all(is_host) && is_port).then_some(host)
}

/// RFC 9110 5.6.2.
fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_case::test_case;

    /// Host and path as text; `-` for what is absent, `?` for what may still come.
    fn parsed(text: &str) -> String {
        match Request::parse(text.as_bytes()) {
            Sought::NeedMore => "?".into(),
            Sought::Absent => "-".into(),
            Sought::Found(request) => {
                let host = match request.host() {
                    Sought::Found(host) => String::from_utf8_lossy(host).into_owned(),
                    Sought::NeedMore => "?".into(),
                    Sought::Absent => "-".into(),
                };
                format!("{host} {}", request.path().unwrap_or("-"))
            }
        }
    }

    #[test_case("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n" => "a.example /"; "plain")]
    #[test_case("GET / HTTP/1.1\nHost: a.example\n\n" => "a.example /"; "bare line feeds")]
    #[test_case("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n" => "a /"; "empty lines first")]
    #[test_case("GET /x/y?q=/z HTTP/1.0\r\nA: b\r\nhOST:a:8080 \t\r\n" => "a /x/y"; "port, case, white space and query")]
    #[test_case("GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n" => "[2001:db8::1] /"; "IPv6 literal")]
    #[test_case("GET / HTTP/1.1\r\nHost: [2001:db8::1\r\n" => "- /"; "open bracket")]
    #[test_case("GET / HTTP/1.1\r\nHost: [::1]x\r\n" => "- /"; "text after the bracket")]
    #[test_case("GET / HTTP/1.1\r\nHost: a:b\r\n" => "- /"; "port of letters")]
    #[test_case("GET / HTTP/1.1\r\nHost: a b\r\n" => "- /"; "host of two words")]
    #[test_case("GET / HTTP/1.1\r\nHost: u@a\r\n" => "- /"; "user in the host line")]
    #[test_case("GET / HTTP/1.1\r\nHost:\r\n" => "- /"; "empty host")]
    #[test_case("GET / HTTP/1.1\r\nHost: \u{fc}\r\n" => "- /"; "not ASCII")]
    #[test_case("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" => "a /"; "the first of two")]
    #[test_case("GET / HTTP/1.1\r\nX: y\r\n\r\nHost: a\r\n" => "- /"; "after the head")]
    #[test_case("GET / HTTP/1.1\r\nHost : a\r\n" => "- /"; "space before the colon")]
    #[test_case("GET / HTTP/1.1\r\nX: y\r\n Host: a\r\n" => "- /"; "folded line")]
    #[test_case("GET / HTTP/1.1\r\nno colon\r\nHost: a\r\n" => "- /"; "malformed line before")]
    #[test_case("GET http://A.example:80/p?q HTTP/1.1\r\nHost: b\r\n" => "A.example /p"; "absolute form")]
    #[test_case("GET https://u:p@a.example HTTP/1.1\r\n" => "a.example /"; "absolute form with a user and no path")]
    #[test_case("GET http://a.example?q HTTP/1.1\r\n" => "a.example /"; "absolute form with a query only")]
    #[test_case("GET ftp://a.example/ HTTP/1.1\r\n" => "-"; "another scheme")]
    #[test_case("GET http:/// HTTP/1.1\r\n" => "-"; "absolute form without host")]
    #[test_case("CONNECT a.example:443 HTTP/1.1\r\n" => "a.example -"; "connect")]
    #[test_case("OPTIONS * HTTP/1.1\r\nHost: a\r\n" => "a -"; "asterisk")]
    #[test_case("GET relative HTTP/1.1\r\n" => "-"; "relative")]
    #[test_case("GET / HTTP/2.0\r\n" => "-"; "version 2")]
    #[test_case("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" => "-"; "preface of HTTP/2")]
    #[test_case("GET / HTTP/1.1 \r\n" => "-"; "space after the version")]
    #[test_case("GET /\r\n" => "-"; "HTTP 0.9")]
    #[test_case("GET  / HTTP/1.1\r\n" => "-"; "two spaces")]
    #[test_case("SSH-2.0-OpenSSH_9.2\r\n" => "-"; "another protocol")]
    #[test_case("\u{16}\u{3}\u{1}" => "-"; "TLS")]
    #[test_case("" => "?"; "nothing")]
    #[test_case("\r\n" => "?"; "only an empty line")]
    #[test_case("BREW" => "?"; "half a method")]
    #[test_case("GET / HTTP/1.1\r" => "?"; "half a line end")]
    #[test_case("GET / HTTP/1.1\r\n" => "? /"; "no header yet")]
    #[test_case("GET / HTTP/1.1\r\nHost: a.exampl" => "? /"; "half a host")]
    #[test_case("GET / HTTP/1.1\r\nHost: a\r" => "? /"; "half a line end after the host")]
    fn request(text: &str) -> String {
        parsed(text)
    }
}
