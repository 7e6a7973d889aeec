//! Requests that nobody sends who means well: each is refused or finds nothing, and the engine goes on as before.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use control::http::Endpoint;
use serde_json::Value;
use testkit::Station;

use crate::status::Served;

/// More than any answer here: a refusal is a sentence about what was asked in at most 8 KiB.
const MOST_ANSWER: usize = 32_768;

impl Served {
    /// Sends these bytes and reads what comes back.
    fn answer_to(&self, request: &[u8]) -> String {
        let Endpoint::Unix(socket) = &self.socket else {
            panic!("a Unix socket");
        };
        let mut stream = UnixStream::connect(socket).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
        // The answer may come before all has been sent, and the connection be closed.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() <= MOST_ANSWER, "{} bytes to {request:?}", answer.len());
        String::from_utf8(answer).expect("answers are text")
    }

    /// The status, and the body behind the empty line.
    fn asked(&self, method: &str, target: &[u8], more: &[u8]) -> (u16, String) {
        let head = [
            method.as_bytes(),
            b" /api/v1/",
            target,
            b" HTTP/1.1\r\nHost: localhost\r\n",
        ]
        .concat();
        let answer = self.answer_to(&[&head, more].concat());
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        (
            status.unwrap_or_else(|| panic!("no status: {answer:?}")),
            body.to_owned(),
        )
    }
}

const END: &[u8] = b"\r\n";

/// Keys that are none, or twice; values that none can have; escapes that are none, or of what is no text.
const WRONG: &str = "
    server server= server=two server=one%00 server=%6Fne% server=% server=%2 server=%zz server=%C3 server=%ff%fe
    server=%F4%90%80%80 ser%76er=one server=one&server=one slow&slow= SERVER=one =one = server=one;state=spliced
    server=one?state=spliced server=+one server=one%26slow listener= listener=web%0a listener=../../etc/passwd client=
    client=10.0.0.5/33 client=::/129 client=10.0.0.5/-1 client=010.0.0.5 client=10.0.0.5%2F32%2F32 client=localhost older=
    older=-1 older=1e9 older=4294967296 older=%20%20 older=NaN older=0x10 state= state=SPLICED state=spliced%20 limit=
    limit=-1 limit=4294967296 limit=99999999999999999999999999 from= from=- from=0 from=0- from=-1-0 from=0-4294967296
    from=0-0-0 from=18446744073709551616-0 id= id=0-0 id=0-0- id=0-0-100000000 id=0-0-g id=-0-0-0 id=0-4294967296-0
    id=%30-0-0-0 x x= &&&x&&&
";

#[test]
fn queries_that_mean_nothing_are_refused() {
    let served = Served::start("proxy-queries");
    served.bench.open(Station::new(5, "10.0.0.5:50000"));
    let mut refused: Vec<Vec<u8>> = WRONG
        .split_whitespace()
        .map(|query| query.as_bytes().to_vec())
        .collect();
    refused.push([b"server=", "o".repeat(7_000).as_bytes()].concat());
    refused.push("server=%6F".repeat(700).into_bytes());
    refused.push([&b"server=one"[..], "&slow".repeat(1_000).as_bytes()].concat());
    refused.push((0..600).map(|key| format!("k{key}&")).collect::<String>().into_bytes());
    // Bytes that no URL has: RFC 3986 2.
    refused.push(b"server=\xff\xfe".to_vec());
    refused.push("server=größe".as_bytes().to_vec());
    refused.push(b"server=one\x00".to_vec());
    refused.push(b"server=one\x1b[31m".to_vec());
    for query in refused {
        for (method, path) in [
            ("GET", "connections"),
            ("GET", "connection"),
            ("POST", "connections/end"),
        ] {
            let target = [path.as_bytes(), b"?", &query].concat();
            let (status, body) = served.asked(method, &target, END);
            assert_eq!(status, 400, "{method} {}: {body}", String::from_utf8_lossy(&target));
            assert!(!body.contains(|c: char| c.is_control() && c != '\n'), "{body:?}");
        }
    }
    let long = [b"connections?server=", "o".repeat(9_000).as_bytes()].concat();
    assert_eq!(served.asked("GET", &long, END).0, 431);
    nothing_has_changed(served);
}

#[test]
fn queries_that_find_nothing_say_so() {
    let served = Served::start("proxy-nothing-found");
    served.bench.open(Station::new(5, "10.0.0.5:50000"));
    for query in [
        "client=192.0.2.0/24",
        "client=::ffff:192.0.2.1",
        "older=4294967295",
        "state=last_ack",
        "slow=no",
        "from=0-4294967295",
        "from=0-4294967295&limit=4294967295",
        "server=%6f%6E%65&client=%3A%3A1",
        "id=0-4294967295-ffffffff",
        "id=0-0-0",
        "&&slow&&",
        "watched=no&state=last_ack",
    ] {
        let (status, body) = served.asked("GET", format!("connections?{query}").as_bytes(), END);
        let found: Value = serde_json::from_str(&body).unwrap_or_default();
        let none = found["connections"].as_array().is_some_and(Vec::is_empty);
        assert!(status == 200 && none, "{query}: {status} {body}");
    }
    for (query, code) in [
        ("from=1-0", 404),
        ("id=7-0-0", 404),
        ("from=18446744073709551615-0", 404),
    ] {
        assert_eq!(served.ask(&format!("connections?{query}")).0, code, "{query}");
    }
    nothing_has_changed(served);
}

#[test]
fn bodies_and_other_orders_are_refused() {
    let served = Served::start("proxy-bodies");
    served.bench.open(Station::new(5, "10.0.0.5:50000"));
    let json = b"Content-Length: 16\r\nContent-Type: application/json\r\n\r\n{\"server\":\"one\"}";
    let cases: [(&str, &str, &[u8], u16); 15] = [
        ("POST", "connections/end?server=one", json, 413),
        ("POST", "connections/end", json, 413),
        (
            "POST",
            "connections/end?server=one",
            b"Content-Length: 99999999999999999999\r\n\r\n",
            413,
        ),
        ("POST", "connections/end?server=one", b"Content-Length: -1\r\n\r\n", 413),
        (
            "POST",
            "connections/end?server=one",
            b"Content-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
            413,
        ),
        (
            "POST",
            "connections/end?server=one",
            b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            413,
        ),
        ("GET", "connections", b"Content-Length: 5\r\n\r\nhello", 413),
        ("POST", "connections/end?", END, 400),
        ("POST", "connections/end?slow&limit=1", END, 400),
        ("POST", "records/off?server=one", END, 400),
        ("POST", "drain/engine?x", END, 400),
        ("POST", "log?proxyengine=loud", END, 400),
        ("POST", "drain/server/%6Fne", END, 409),
        ("POST", "drain/everything/one", END, 409),
        ("POST", "connections", END, 405),
    ];
    for (method, target, more, code) in cases {
        let (status, body) = served.asked(method, target.as_bytes(), more);
        assert_eq!(status, code, "{method} {target}: {body}");
    }
    nothing_has_changed(served);
}

/// The one connection is there, and the engine takes others.
fn nothing_has_changed(served: Served) {
    served.bench.open(Station::new(6, "10.0.0.6:50001"));
    let (status, all) = served.ask("connections");
    assert_eq!(
        (status, all["connections"].as_array().map(Vec::len)),
        (200, Some(2)),
        "{all}"
    );
    served.end();
}
