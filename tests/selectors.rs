//! Selection by the configuration's rules: the same answer however the payload is cut, early where that is right.

use std::net::SocketAddr;

use proptest::prelude::*;
use proxyengine::callbacks::{FirstPayload, SelectServer, Selection};
use proxyengine::config::{HostPattern, ListenerId};
use test_case::test_case;

#[path = "selectors_support/ask.rs"]
mod ask;
#[path = "selectors_support/hello.rs"]
mod hello;

use ask::{ask, by_every_prefix, selector, shown};
use hello::{Hello, SERVER_NAME};

const HTTP_RULES: &str = r#"
    { http_host = "a.example", http_path = "/api", pool = "b" },
    { http_host = "a.example", pool = "a" },
    { http_host = "*.wild.example", pool = "c" },
    { http_host = "[2001:db8::1]", pool = "c" },
    { http_path = "/any", pool = "many" },
"#;

#[test_case("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n" => "a"; "by host")]
#[test_case("GET /api/x HTTP/1.1\r\nHost: a.example\r\n\r\n" => "b"; "by host and path")]
#[test_case("GET /ap HTTP/1.1\r\nHost: a.example\r\n\r\n" => "a"; "shorter than the prefix")]
#[test_case("GET /x?/api HTTP/1.1\r\nHost: a.example\r\n\r\n" => "a"; "prefix in the query")]
#[test_case("GET / HTTP/1.1\r\nHOST: A.Example.:8080\r\n\r\n" => "a"; "case, dot and port")]
#[test_case("GET / HTTP/1.1\r\nHost: x.wild.example\r\n\r\n" => "c"; "by domain")]
#[test_case("GET / HTTP/1.1\r\nHost: wild.example\r\n\r\n" => "reject"; "the domain itself")]
#[test_case("GET / HTTP/1.1\r\nHost: [2001:db8:0::1]:80\r\n\r\n" => "c"; "by IPv6 address")]
#[test_case("GET /anywhere HTTP/1.1\r\nHost: b.example\r\n\r\n" => "many"; "by path")]
#[test_case("GET /any HTTP/1.0\r\n\r\n" => "many"; "by path without host")]
#[test_case("GET /any HTTP/1.1\r\nHost: a.example\r\n\r\n" => "a"; "the host's rule comes first")]
#[test_case("GET http://a.example/api HTTP/1.1\r\nHost: b.example\r\n\r\n" => "b"; "absolute form")]
#[test_case("CONNECT a.example:443 HTTP/1.1\r\n\r\n" => "a"; "connect")]
#[test_case("POST / HTTP/1.1\r\nContent-Length: 3\r\nHost: a.example\r\n\r\nabc" => "a"; "with a body")]
#[test_case("GET / HTTP/1.1\r\nX: y\r\n\r\n" => "reject"; "no host")]
#[test_case("SSH-2.0-x\r\n" => "reject"; "not HTTP")]
fn http(payload: &str) -> String {
    let (config, mut selector) = selector(HTTP_RULES, "reject");
    let (selection, _) = by_every_prefix(&mut selector, payload.as_bytes());
    shown(&config, selection)
}

#[test]
fn http_is_decided_as_early_as_is_right() {
    let (config, mut selector) = selector(HTTP_RULES, "reject");
    let mut after = |payload: &str| {
        let (selection, len) = by_every_prefix(&mut selector, payload.as_bytes());
        (shown(&config, selection), payload[..len].to_owned())
    };
    // With the line of the host, before the end of the head.
    let (pool, read) = after("GET / HTTP/1.1\r\nHost: a.example\r\nCookie: long\r\n\r\n");
    assert_eq!(
        (pool.as_str(), read.as_str()),
        ("a", "GET / HTTP/1.1\r\nHost: a.example\r\n")
    );
    // With the request line when the target names the host.
    let (pool, read) = after("GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(
        (pool.as_str(), read.as_str()),
        ("a", "GET http://a.example/ HTTP/1.1\r\n")
    );
    // The path would do, but the rules for hosts come first and may still match.
    let (pool, read) = after("GET /any HTTP/1.1\r\nHost: b\r\n\r\n");
    assert_eq!(
        (pool.as_str(), read.as_str()),
        ("many", "GET /any HTTP/1.1\r\nHost: b\r\n")
    );
    // With the first byte that no request has.
    let (pool, read) = after("\u{16}\u{3}\u{1}");
    assert_eq!((pool.as_str(), read.as_str()), ("reject", "\u{16}"));
}

#[test]
fn a_path_alone_needs_only_the_request_line() {
    let (config, mut selector) = selector(r#"{ http_path = "/x", pool = "a" }"#, "b");
    let payload = b"GET /x HTTP/1.1\r\nHost: b\r\n\r\n";
    let (selection, len) = by_every_prefix(&mut selector, payload);
    assert_eq!(
        (shown(&config, selection).as_str(), len),
        ("a", "GET /x HTTP/1.1\r\n".len())
    );
}

#[test]
fn a_head_beyond_the_limit_gets_the_default() {
    let (config, mut selector) = selector(HTTP_RULES, "c");
    let mut head = b"GET / HTTP/1.1\r\n".to_vec();
    while head.len() < proxyengine::callbacks::MAX_FIRST_PAYLOAD {
        head.extend_from_slice(b"Cookie: 0123456789abcdef\r\n");
    }
    head.truncate(proxyengine::callbacks::MAX_FIRST_PAYLOAD);
    assert_eq!(ask(&mut selector, &head, false), Selection::NeedMore);
    assert_eq!(shown(&config, ask(&mut selector, &head, true)), "c");
}

#[test_case("7 stars" => "s4"; "seven modulo three")]
#[test_case("star 3\n" => "s3")]
#[test_case("18446744073709551617 " => "s5"; "two modulo three, beyond 64 bits")]
#[test_case("no number" => "reject")]
#[test_case("at the end: 5" => "s5"; "ends with the payload")]
fn numbers(payload: &str) -> String {
    let (config, mut selector) = selector(r#"{ first_number = true, pool = "many" }"#, "reject");
    let (selection, _) = by_every_prefix(&mut selector, payload.as_bytes());
    shown(&config, selection)
}

const MIXED_RULES: &str = r#"
    { tls_sni = "a.example", pool = "a" },
    { http_host = "b.example", pool = "b" },
    { tls_sni = "*", pool = "c" },
    { first_number = true, pool = "many" },
"#;

#[test]
fn rules_of_several_kinds_share_a_listener() {
    let (config, mut selector) = selector(MIXED_RULES, "reject");
    let mut answer = |payload: &[u8]| {
        let (selection, _) = by_every_prefix(&mut selector, payload);
        shown(&config, selection)
    };
    assert_eq!(answer(&Hello::named("a.example").records(4096)), "a");
    assert_eq!(answer(&Hello::named("other.example").records(4096)), "c");
    assert_eq!(answer(b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n"), "b");
    // Neither rule before it can match a request for another host: its first number is that of the version.
    assert_eq!(answer(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"), "s4");
    assert_eq!(answer(b"star 5 "), "s5");
    assert_eq!(answer(b"no number"), "reject");
}

#[test]
fn a_post_quantum_hello_is_decided_with_its_name_wherever_it_is() {
    let (config, mut selector) = selector(MIXED_RULES, "reject");
    let early = Hello::named("A.Example").with_post_quantum_share().records(4096);
    let (selection, len) = by_every_prefix(&mut selector, &early);
    assert_eq!(shown(&config, selection), "a");
    assert!(len < 200, "before the key share: {len}");
    let late = Hello::unnamed()
        .with_post_quantum_share()
        .with(SERVER_NAME, hello::server_name(b"a.example."))
        .records(500);
    let (selection, len) = by_every_prefix(&mut selector, &late);
    assert_eq!((shown(&config, selection).as_str(), len), ("a", late.len()));
}

#[test]
fn without_rules_the_default_is_known_at_once() {
    let (config, mut one) = selector("", "a");
    assert_eq!(shown(&config, ask(&mut one, b"", false)), "a");
    let (_, mut none) = selector("", "reject");
    assert_eq!(ask(&mut none, b"x", false), Selection::Reject);
}

#[test]
fn a_silent_client_gets_the_default() {
    let (config, mut selector) = selector(MIXED_RULES, "b");
    assert_eq!(ask(&mut selector, b"", false), Selection::NeedMore);
    assert_eq!(shown(&config, ask(&mut selector, b"", true)), "b");
}

#[test]
fn an_unknown_listener_is_rejected() {
    let (_, mut selector) = selector(MIXED_RULES, "b");
    let address: SocketAddr = "10.0.0.1:80".parse().unwrap();
    let payload = FirstPayload::new(address, address, ListenerId(1), b"x", true);
    assert_eq!(selector.select(&payload), Selection::Reject);
}

/// Pieces of what the parsers look for, so that random sequences of them go deep.
fn protocol_pieces() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: &[&[u8]] = &[
        b"GET",
        b" ",
        b"/",
        b"/api",
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"HTTP/2",
        b"\r",
        b"\n",
        b"\r\n",
        b"Host:",
        b"host: ",
        b"a.example",
        b"x.wild.example",
        b":80",
        b"[::1]",
        b"http://",
        b"@",
        b"?",
        b"*",
        b"CONNECT",
        b"X: y\r\n",
        b"12",
        b"\x16\x03\x01",
        b"\x00",
        b"\x01",
        b"\x00\x05",
        b"\xff",
        b"\t",
    ];
    prop::collection::vec(prop::sample::select(PIECES), 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn any_bytes_are_decided_once_and_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for rules in [HTTP_RULES, MIXED_RULES] {
            by_every_prefix(&mut selector(rules, "reject").1, &bytes);
        }
    }

    #[test]
    fn bytes_that_look_like_protocols_are_decided_once_and_without_panic(bytes in protocol_pieces()) {
        for rules in [HTTP_RULES, MIXED_RULES] {
            by_every_prefix(&mut selector(rules, "reject").1, &bytes);
        }
    }
}

/// Rules for hosts, some with a path, from so few labels that many match the same request.
fn host_rules() -> impl Strategy<Value = Vec<(String, Option<&'static str>, &'static str)>> {
    let label = prop::sample::select(vec!["a", "b", "c"]);
    let name = prop::collection::vec(label, 1..9).prop_map(|labels| labels.join("."));
    let pattern = prop_oneof![
        4 => name.clone(),
        3 => name.prop_map(|name| format!("*.{name}")),
        1 => Just("[2001:db8::1]".to_owned()),
    ];
    let path = prop::sample::select(vec![None, None, Some("/p"), Some("/p/q")]);
    let pool = prop::sample::select(vec!["a", "b", "c", "many"]);
    prop::collection::vec((pattern, path, pool), 1..40)
}

/// Leaves out rules that an earlier one covers: the configuration refuses them.
fn that_can_match(
    rules: Vec<(String, Option<&'static str>, &'static str)>,
) -> Vec<(HostPattern, &'static str, &'static str)> {
    let mut kept: Vec<(HostPattern, &str, &str)> = Vec::new();
    for (pattern, path, pool) in rules {
        let (pattern, path): (HostPattern, _) = (pattern.parse().unwrap(), path.unwrap_or(""));
        if !kept
            .iter()
            .any(|(earlier, prefix, _)| earlier.covers(&pattern) && path.starts_with(prefix))
        {
            kept.push((pattern, path, pool));
        }
    }
    kept
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn the_first_rule_that_matches_wins_however_many_there_are(
        rules in host_rules(),
        hosts in prop::collection::vec("([abcABC]\\.){0,9}[abc]\\.?|\\[2001:db8::1\\]|d", 1..4),
        path in prop::sample::select(vec!["/", "/p", "/p/q/r"]),
        other in 0..40_usize,
    ) {
        let rules = that_can_match(rules);
        let mut text: Vec<String> = rules
            .iter()
            .map(|(host, path, pool)| match *path {
                "" => format!("{{ http_host = \"{host}\", pool = \"{pool}\" }}"),
                path => format!("{{ http_host = \"{host}\", http_path = \"{path}\", pool = \"{pool}\" }}"),
            })
            .collect();
        // A rule of another kind among them, for which they are two groups.
        text.insert(other.min(text.len()), "{ tls_sni = \"*\", pool = \"a\" }".to_owned());
        let (config, mut selector) = selector(&text.join(","), "reject");
        for host in hosts {
            let first = rules
                .iter()
                .find(|(pattern, prefix, _)| pattern.matches(host.as_bytes()) && path.starts_with(prefix));
            let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let (selection, _) = by_every_prefix(&mut selector, request.as_bytes());
            prop_assert_eq!(shown(&config, selection), first.map_or("reject", |(_, _, pool)| *pool));
        }
    }
}

#[test]
fn conditions_that_are_combined_are_decided_as_early_as_is_right() {
    let rules = r#"
        { client = ["192.0.2.0/24"], prefix = "A", pool = "a" },
        { and = [{ prefix = "B" }, { regex = "z" }], pool = "b" },
        { not = [{ prefix = "AB" }, { prefix = "C" }], listener_port = ["80"], action = "drop" },
    "#;
    let (config, mut selector) = selector(rules, "c");
    let mut after = |payload: &str| {
        let (selection, len) = by_every_prefix(&mut selector, payload.as_bytes());
        (shown(&config, selection), len)
    };
    assert_eq!(after("AB"), ("a".to_owned(), 1));
    assert_eq!(after("B12z"), ("b".to_owned(), 4));
    // The second may still match, up to the last byte that its expression looks at.
    assert_eq!(after("B12"), ("drop".to_owned(), usize::MAX));
    assert_eq!(after("C"), ("c".to_owned(), 1));
    assert_eq!(after("D"), ("drop".to_owned(), 1));
}
