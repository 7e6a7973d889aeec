//! The requests of checks, and the verdict about answers: bytes in, bytes out.
//!
//! Every kind is one request and one answer. The whole answer so far is judged anew with each part that arrives; its length is
//! bounded ([`MOST_HEARD`](super::end_point::MOST_HEARD)). An answer that can no longer become right is wrong at once.

use std::net::SocketAddr;

use crate::config::{CheckRequest, HttpCheck};

/// Header fields that are parsed: as many as common servers accept in a request.
const MOST_FIELDS: usize = 100;

/// The verdict about the bytes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The answer is incomplete.
    More,
    /// The answer is right.
    Passed,
    /// The answer is wrong.
    Wrong,
}

impl Verdict {
    fn of(is_right: bool) -> Self {
        if is_right { Verdict::Passed } else { Verdict::Wrong }
    }
}

/// PostgreSQL's protocol 3.0.
const POSTGRES_PROTOCOL: u32 = 3 << 16;

/// A search for the root DSE and none of its attributes: RFC 4511 4.5.1, RFC 4512 5.1. The message's number is 1, the scope is
/// the base object, the filter `(objectClass=*)`, the attribute `1.1`.
const SEARCH: &[u8] =
    b"\x30\x2a\x02\x01\x01\x63\x25\x04\x00\x0a\x01\x00\x0a\x01\x00\x02\x01\x00\x02\x01\x00\x01\x01\x00\
\x87\x0bobjectClass\x30\x05\x04\x031.1";

/// The bytes of a request to this server.
pub(super) fn bytes(request: &CheckRequest, server: SocketAddr) -> Vec<u8> {
    match request {
        CheckRequest::Http(http) => {
            let host = http.host.clone().unwrap_or_else(|| server.to_string());
            let (method, path) = (&http.method, &http.path);
            let program = concat!("proxyengine/", env!("CARGO_PKG_VERSION"));
            format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\nUser-Agent: {program}\r\nConnection: close\r\n\r\n")
                .into_bytes()
        }
        CheckRequest::Text { send, .. } => send.clone(),
        CheckRequest::Postgres { user } => {
            let length = 4 + 4 + b"user\0".len() + user.len() + 2;
            let mut bytes = Vec::with_capacity(length);
            bytes.extend_from_slice(&(length as u32).to_be_bytes());
            bytes.extend_from_slice(&POSTGRES_PROTOCOL.to_be_bytes());
            bytes.extend_from_slice(b"user\0");
            bytes.extend_from_slice(user.as_bytes());
            bytes.extend_from_slice(b"\0\0");
            bytes
        }
        CheckRequest::Ldap => SEARCH.to_vec(),
        CheckRequest::Redis => b"PING\r\n".to_vec(),
    }
}

/// The verdict about the answer so far; `is_all` once the server has closed.
pub(super) fn judge(request: &CheckRequest, heard: &[u8], is_all: bool) -> Verdict {
    let verdict = match request {
        CheckRequest::Http(http) => judge_http(http, heard),
        CheckRequest::Text { expect, .. } => {
            if contains(heard, expect) {
                Verdict::Passed
            } else {
                Verdict::More
            }
        }
        CheckRequest::Postgres { .. } => judge_postgres(heard),
        CheckRequest::Ldap => judge_ldap(heard),
        CheckRequest::Redis => judge_redis(heard),
    };
    match verdict {
        Verdict::More if is_all => Verdict::Wrong,
        verdict => verdict,
    }
}

fn contains(heard: &[u8], wanted: &[u8]) -> bool {
    heard.windows(wanted.len().max(1)).any(|part| part == wanted)
}

fn judge_http(http: &HttpCheck, heard: &[u8]) -> Verdict {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let parsed = response.parse(heard);
    if let Some(status) = response.code
        && !http.statuses.iter().any(|range| range.contains(&status))
    {
        return Verdict::Wrong;
    }
    match (parsed, &http.body) {
        (Err(_), _) => Verdict::Wrong,
        (Ok(httparse::Status::Partial), _) => Verdict::More,
        (Ok(httparse::Status::Complete(_)), None) => Verdict::Passed,
        (Ok(httparse::Status::Complete(head)), Some(body)) => {
            if contains(&heard[head..], body.as_bytes()) {
                Verdict::Passed
            } else {
                Verdict::More
            }
        }
    }
}

/// Right if the server asks for authentication or rejects user or database: it accepts sessions. Any other error is wrong, as it is
/// for `pg_isready`.
fn judge_postgres(heard: &[u8]) -> Verdict {
    match heard.first() {
        None => Verdict::More,
        Some(b'R') => Verdict::Passed,
        Some(b'E') => judge_postgres_error(heard),
        Some(_) => Verdict::Wrong,
    }
}

/// An ErrorResponse: `E`, its length, and fields that each have a letter and end with a NUL; `C` is the SQLSTATE.
fn judge_postgres_error(heard: &[u8]) -> Verdict {
    let Some(length) = heard.get(1..5).and_then(|bytes| bytes.first_chunk()) else {
        return Verdict::More;
    };
    let end = 1 + u32::from_be_bytes(*length) as usize;
    let Some(fields) = heard.get(5..end) else {
        return if end < 5 { Verdict::Wrong } else { Verdict::More };
    };
    let code = fields
        .split(|byte| *byte == 0)
        .find_map(|field| field.strip_prefix(b"C"));
    // Class 28: invalid authorization; class 3D: no such database.
    Verdict::of(code.is_some_and(|code| code.starts_with(b"28") || code.starts_with(b"3D")))
}

/// Right on an entry, or on an end of the search with success or with a demand to bind.
fn judge_ldap(heard: &[u8]) -> Verdict {
    const SUCCESS: u8 = 0;
    const STRONGER_AUTH_REQUIRED: u8 = 8;
    const INAPPROPRIATE_AUTHENTICATION: u8 = 48;
    const INSUFFICIENT_ACCESS_RIGHTS: u8 = 50;
    let mut rest = heard;
    // LDAPMessage ::= SEQUENCE { messageID INTEGER, protocolOp CHOICE { … } }
    for expected in [0x30, 0x02] {
        let Some((&tag, behind)) = rest.split_first() else {
            return Verdict::More;
        };
        if tag != expected {
            return Verdict::Wrong;
        }
        match ber_length(behind) {
            None => return Verdict::More,
            Some((length, behind)) if expected == 0x02 => match behind.get(length..) {
                None => return Verdict::More,
                Some(behind) => rest = behind,
            },
            Some((_, behind)) => rest = behind,
        }
    }
    match rest.split_first() {
        None => Verdict::More,
        // SearchResultEntry, RFC 4511 4.5.2.
        Some((0x64, _)) => Verdict::Passed,
        // SearchResultDone begins with its result, an ENUMERATED of one byte.
        Some((0x65, behind)) => match ber_length(behind).map(|(_, behind)| behind) {
            Some([0x0a, 0x01, result, ..]) => Verdict::of(matches!(
                *result,
                SUCCESS | STRONGER_AUTH_REQUIRED | INAPPROPRIATE_AUTHENTICATION | INSUFFICIENT_ACCESS_RIGHTS
            )),
            Some([_, _, _, ..]) => Verdict::Wrong,
            _ => Verdict::More,
        },
        Some(_) => Verdict::Wrong,
    }
}

/// A definite length (X.690 8.1.3), and the bytes after it; `None` if it is incomplete. A length of more than four bytes is read
/// as `usize::MAX`, which exceeds any answer.
fn ber_length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        return Some((first.into(), rest));
    }
    let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
    let longest = usize::MAX >> 1;
    let value = |length: &[u8]| length.iter().fold(0, |value, byte| value << 8 | usize::from(*byte));
    Some((if length.len() > 4 { longest } else { value(length) }, rest))
}

fn judge_redis(heard: &[u8]) -> Verdict {
    let right: [&[u8]; 2] = [b"+PONG\r\n", b"-NOAUTH "];
    if right.iter().any(|right| heard.starts_with(right)) {
        Verdict::Passed
    } else if right.iter().any(|right| right.starts_with(heard)) {
        Verdict::More
    } else {
        Verdict::Wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_case::test_case;

    fn http(body: Option<&str>) -> CheckRequest {
        CheckRequest::Http(HttpCheck {
            method: "GET".into(),
            path: "/health".into(),
            host: None,
            statuses: vec![200..=399],
            body: body.map(Into::into),
        })
    }

    fn text() -> CheckRequest {
        CheckRequest::Text {
            send: b"NOOP\r\n".to_vec(),
            expect: b"250 ".to_vec(),
        }
    }

    fn postgres() -> CheckRequest {
        CheckRequest::Postgres { user: "nobody".into() }
    }

    /// The verdict after each byte: `More` until the last, which decides.
    #[track_caller]
    fn decides(request: &CheckRequest, answer: &[u8], expected: Verdict) {
        for length in 0..answer.len() {
            let part = &answer[..length];
            assert_eq!(judge(request, part, false), Verdict::More, "{}", part.escape_ascii());
            assert_eq!(judge(request, part, true), Verdict::Wrong, "{}", part.escape_ascii());
        }
        assert_eq!(judge(request, answer, false), expected);
    }

    const RIGHT: Verdict = Verdict::Passed;
    const WRONG: Verdict = Verdict::Wrong;

    #[test_case(http(None), b"HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n", RIGHT; "a status")]
    #[test_case(http(None), b"HTTP/1.0 399 \r\n\r\n", RIGHT; "the last that is right")]
    #[test_case(http(None), b"HTTP/1.1 400", WRONG; "the first that is not")]
    #[test_case(http(None), b"HTTP/1.1 503", WRONG; "service unavailable")]
    #[test_case(http(Some("ok")), b"HTTP/1.1 200 ok\r\nok: ok\r\n\r\n{ok", RIGHT; "a body, and not the head")]
    #[test_case(http(None), b"HTTQ", WRONG; "not http")]
    #[test_case(text(), b"220 hello\r\n250 ", RIGHT; "bytes anywhere")]
    #[test_case(postgres(), b"R", RIGHT; "postgres asks for a password")]
    #[test_case(postgres(), b"E\0\0\0\x0bC28000\0", RIGHT; "postgres does not know us")]
    #[test_case(postgres(), b"E\0\0\0\x0fSF\0C57P03\0\0", WRONG; "postgres starts up")]
    #[test_case(postgres(), b"E\0\0\0\0", WRONG; "postgres with a bad length")]
    #[test_case(postgres(), b"H", WRONG; "not postgres")]
    #[test_case(CheckRequest::Ldap, b"\x30\x09\x02\x01\x01\x64", RIGHT; "an entry")]
    #[test_case(CheckRequest::Ldap, b"\x30\x84\0\0\0\x09\x02\x01\x01\x65\x84\0\0\0\x07\x0a\x01\x00", RIGHT; "an end with long lengths")]
    #[test_case(CheckRequest::Ldap, b"\x30\x0c\x02\x01\x01\x65\x07\x0a\x01\x32", RIGHT; "not for strangers")]
    #[test_case(CheckRequest::Ldap, b"\x30\x0c\x02\x01\x01\x65\x07\x0a\x01\x33", WRONG; "busy")]
    #[test_case(CheckRequest::Ldap, b"\x30\x0c\x02\x01\x01\x78", WRONG; "a notice of disconnection")]
    #[test_case(CheckRequest::Ldap, b"\x31", WRONG; "not ldap")]
    #[test_case(CheckRequest::Redis, b"+PONG\r\n", RIGHT; "pong")]
    #[test_case(CheckRequest::Redis, b"-NOAUTH ", RIGHT; "redis with a password")]
    #[test_case(CheckRequest::Redis, b"-L", WRONG; "redis is loading")]
    fn an_answer_is_judged_by_its_first_bytes_that_decide(request: CheckRequest, answer: &[u8], expected: Verdict) {
        decides(&request, answer, expected);
    }

    #[test]
    fn lengths_of_ldap_that_lie_are_waited_for_and_never_added_up() {
        for answer in [
            &b"\x30\x88\xff\xff\xff\xff\xff\xff\xff\xff\x02\x88\xff\xff\xff\xff\xff\xff\xff\xff\x01"[..],
            b"\x30\xff\x02",
        ] {
            assert_eq!(judge(&CheckRequest::Ldap, answer, false), Verdict::More);
        }
    }

    #[test]
    fn requests_are_as_their_protocols_have_them() {
        let server = "[2001:db8::1]:80".parse().expect("an address");
        let http = String::from_utf8(bytes(&http(None), server)).expect("text");
        assert!(
            http.starts_with("GET /health HTTP/1.0\r\nHost: [2001:db8::1]:80\r\n"),
            "{http}"
        );
        assert!(http.ends_with("\r\nConnection: close\r\n\r\n"), "{http}");
        let startup = bytes(&postgres(), server);
        assert_eq!(startup, b"\0\0\0\x15\0\x03\0\0user\0nobody\0\0");
        let search = bytes(&CheckRequest::Ldap, server);
        assert_eq!((search.len(), search[1]), (44, 42));
        assert_eq!(bytes(&CheckRequest::Redis, server), b"PING\r\n");
        assert_eq!(bytes(&text(), server), b"NOOP\r\n");
    }
}
