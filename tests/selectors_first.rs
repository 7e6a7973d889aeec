//! Rules about first bytes, expressions, TLS protocols, LDAP names and PostgreSQL users: byte by byte, and with what real
//! clients send.

use proptest::prelude::*;
use proxyengine::config::PayloadRegex;
use proxyengine::selectors::Sought;
use proxyengine::selectors::ldap::bind_name;
use proxyengine::selectors::postgres::{encryption_request, startup};
use proxyengine::selectors::tls::protocols;
use test_case::test_case;
use tls_parser::{TlsExtension, TlsMessage, TlsMessageHandshake};

#[path = "selectors_support/ask.rs"]
mod ask;
#[path = "selectors_support/hello.rs"]
mod hello;

use ask::{by_every_prefix, selector, shown};
use hello::{Hello, SERVER_NAME, records, vector16};

const PSQL: &[u8] = include_bytes!("selectors_support/first/psql-startup.bin");
const PSQL_SSL: &[u8] = include_bytes!("selectors_support/first/psql-ssl-request.bin");
const LDAP: &[u8] = include_bytes!("selectors_support/first/ldap-simple.bin");
const LDAP_ANONYMOUS: &[u8] = include_bytes!("selectors_support/first/ldap-anonymous.bin");
const LDAP_STARTTLS: &[u8] = include_bytes!("selectors_support/first/ldap-starttls.bin");
const LDAP_V2: &[u8] = include_bytes!("selectors_support/first/ldap-v2.bin");
const OPENSSL: &[u8] = include_bytes!("selectors_support/hellos/openssl-tls13.bin");

/// Where the rules lead a payload, and after how many bytes that is known; `usize::MAX` for only at its end.
fn decided(rules: &str, payload: &[u8]) -> (String, usize) {
    let (config, mut selector) = selector(rules, "reject");
    let (selection, len) = by_every_prefix(&mut selector, payload);
    (shown(&config, selection), len)
}

fn pool(rules: &str, payload: &[u8]) -> String {
    decided(rules, payload).0
}

const BYTES: &str = r#"
    { prefix = "SSH-2.0-", pool = "a" },
    { prefix_hex = "16 0301", pool = "b" },
    { prefix = "SSH-", pool = "c" },
"#;

#[test_case(b"SSH-2.0-OpenSSH_9.2\r\n" => ("a".to_owned(), 8); "the longer one")]
#[test_case(b"SSH-1.5-x" => ("c".to_owned(), 5); "the shorter one, when the longer cannot be any more")]
#[test_case(b"\x16\x03\x01\x02" => ("b".to_owned(), 3); "in hexadecimal digits")]
#[test_case(b"\x16\x03\x03\x02" => ("reject".to_owned(), 3); "another version")]
#[test_case(b"SSH" => ("reject".to_owned(), usize::MAX); "too short")]
#[test_case(b"ssh-2.0-" => ("reject".to_owned(), 1); "another case")]
fn first_bytes(payload: &[u8]) -> (String, usize) {
    decided(BYTES, payload)
}

const EXPRESSIONS: &str = r#"
    { regex = '^(HELO|EHLO) [^\r\n]*\.one\.test\r?\n', pool = "a" },
    { regex = '(?i)x-tenant: two', regex_bytes = 40, pool = "b" },
    { regex = '^QUIT\r\n$', pool = "c" },
"#;

#[test_case(b"EHLO mail.one.test\r\n" => ("a".to_owned(), 20); "with the last byte, not one later")]
#[test_case(b"EHLO mail.one.test\r\nMAIL FROM:<x>\r\n" => ("a".to_owned(), 20); "whatever follows")]
#[test_case(b"GET / HTTP/1.1\r\nX-TENANT: Two\r\n" => ("b".to_owned(), 29); "anywhere, in any case")]
#[test_case(b"0123456789012345678901234567x-tenant: two" => ("reject".to_owned(), 40); "beyond the first bytes")]
#[test_case(b"012345678901234567890123456x-tenant: two" => ("b".to_owned(), 40); "within the first bytes")]
#[test_case(b"QUIT\r\n" => ("c".to_owned(), usize::MAX); "only with the end")]
#[test_case(b"QUIT\r\nx" => ("reject".to_owned(), usize::MAX); "with more than the end")]
fn expressions(payload: &[u8]) -> (String, usize) {
    decided(EXPRESSIONS, payload)
}

const PROTOCOLS: &str = r#"
    { tls_sni = "www.example.org", tls_alpn = "http/1.1", pool = "a" },
    { tls_alpn = "h2", pool = "b" },
    { tls_sni = "*", pool = "c" },
"#;

#[test_case(OPENSSL => "a"; "name and protocol, the second on the list")]
#[test_case(&hello(&[b"h2"]) => "b"; "the protocol alone")]
#[test_case(&hello(&[b"h3", b"h2"]) => "b"; "in any place")]
#[test_case(&hello(&[b"h2c"]) => "c"; "a longer name")]
#[test_case(&Hello::named("a.example").records(100) => "c"; "none offered")]
fn tls(payload: &[u8]) -> String {
    pool(PROTOCOLS, payload)
}

/// A hello for `a.example` with these protocols.
fn hello(offered: &[&[u8]]) -> Vec<u8> {
    Hello::named("a.example").with(16, alpn(offered)).records(100)
}

/// RFC 7301 3.1.
fn alpn(offered: &[&[u8]]) -> Vec<u8> {
    let mut body = Vec::new();
    vector16(&mut body, |out| {
        for name in offered {
            out.push(name.len() as u8);
            out.extend_from_slice(name);
        }
    });
    body
}

#[test]
fn a_wrong_name_does_not_wait_for_the_protocols() {
    let rules = r#"{ tls_sni = "b.example", tls_alpn = "h2", pool = "a" }"#;
    let late = Hello::named("a.example")
        .with_post_quantum_share()
        .with(16, alpn(&[b"h2"]));
    let (answer, len) = decided(rules, &late.records(4096));
    assert_eq!(answer, "reject");
    assert!(len < 200, "{len}");
}

/// The protocols in text; `-` when there are none, `?` when they may still come.
fn shown_protocols(bytes: &[u8]) -> String {
    match protocols(bytes) {
        Sought::Found(protocols) => protocols
            .iter()
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect::<Vec<_>>()
            .join(" "),
        Sought::NeedMore => "?".to_owned(),
        Sought::Absent => "-".to_owned(),
    }
}

/// What tls-parser reads of the same message.
fn protocols_by_oracle(message: &[u8]) -> Option<String> {
    let (_, TlsMessage::Handshake(TlsMessageHandshake::ClientHello(hello))) =
        tls_parser::parse_tls_message_handshake(message).ok()?
    else {
        return None;
    };
    let (_, extensions) = tls_parser::parse_tls_client_hello_extensions(hello.ext?).ok()?;
    let offered = extensions.into_iter().find_map(|extension| match extension {
        TlsExtension::ALPN(names) => Some(names),
        _ => None,
    });
    let text = |name: &&[u8]| String::from_utf8_lossy(name).into_owned();
    Some(offered.map_or("-".to_owned(), |names| {
        names.iter().map(text).collect::<Vec<_>>().join(" ")
    }))
}

#[test_case(alpn(&[b"h2", b"http/1.1"]) => "h2 http/1.1"; "two")]
#[test_case(alpn(&[]) => "-"; "none")]
#[test_case(alpn(&[b""]) => "-"; "an empty name")]
#[test_case(alpn(&[&[b'x'; 255], &[b'y'; 255]]) => "x".repeat(255) + " " + &"y".repeat(255); "the longest list")]
#[test_case(alpn(&[&[b'x'; 255], &[b'y'; 255], b""]) => "-"; "a longer list")]
#[test_case(vec![0, 3, 5, b'h', b'2'] => "-"; "a name longer than the list")]
#[test_case(vec![0, 9, 2, b'h', b'2'] => "-"; "a list longer than the extension")]
fn protocol_lists(extension: Vec<u8>) -> String {
    shown_protocols(&Hello::unnamed().with(16, extension).with(0x1234, vec![1]).records(33))
}

#[test]
fn protocols_of_real_hellos_are_those_of_the_oracle() {
    for bytes in [
        OPENSSL,
        include_bytes!("selectors_support/hellos/openssl-tls12.bin"),
        include_bytes!("selectors_support/hellos/rustls-pq.bin"),
    ] {
        assert_eq!(Some(shown_protocols(bytes)), protocols_by_oracle(&bytes[5..]));
    }
    assert_eq!(shown_protocols(OPENSSL), "h2 http/1.1");
}

const NAMES: &str = r#"
    { ldap_bind_dn = "ou=people,dc=example,dc=org", pool = "a" },
    { ldap_bind_dn = "", pool = "b" },
    { ldap_bind_dn = 'o=Example', pool = "c" },
"#;

#[test_case(LDAP => ("a".to_owned(), 49); "below, with the last byte of the name")]
#[test_case(LDAP_ANONYMOUS => ("b".to_owned(), 12); "anonymous")]
#[test_case(LDAP_V2 => ("c".to_owned(), 33); "version 2, an escaped comma")]
#[test_case(LDAP_STARTTLS => ("reject".to_owned(), 6); "another operation")]
#[test_case(b"GET / HTTP/1.1\r\n" => ("reject".to_owned(), 1); "another protocol")]
#[test_case(b"000" => ("reject".to_owned(), 3); "no bind but digits")]
fn ldap(payload: &[u8]) -> (String, usize) {
    decided(NAMES, payload)
}

/// An element of BER with the shortest length.
fn element(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    match body.len() {
        short @ 0..=127 => bytes.push(short as u8),
        long => bytes.extend_from_slice(&[0x82, (long >> 8) as u8, long as u8]),
    }
    bytes.extend_from_slice(body);
    bytes
}

fn bind_request(id: &[u8], version: &[u8], name: &[u8]) -> Vec<u8> {
    let credentials = element(0x80, b"secret");
    let bind = [element(2, version), element(4, name), credentials].concat();
    element(0x30, &[element(2, id), element(0x60, &bind)].concat())
}

/// The name in text; `-` when there is none, `?` when it may still come. Every shorter prefix needs more, every longer one
/// says the same.
fn shown_name(bytes: &[u8]) -> String {
    let shown = |bytes: &[u8]| match bind_name(bytes) {
        Sought::Found(name) => String::from_utf8_lossy(name).into_owned(),
        Sought::NeedMore => "?".to_owned(),
        Sought::Absent => "-".to_owned(),
    };
    let mut answer = "?".to_owned();
    for len in 0..=bytes.len() {
        let now = shown(&bytes[..len]);
        assert!(
            answer == "?" || answer == now,
            "{answer} changed to {now} with {len} bytes"
        );
        answer = now;
    }
    answer
}

#[test_case(&[1], &[3], b"dc=org" => "dc=org"; "usual")]
#[test_case(&[0x7f, 0xff, 0xff, 0xff], &[127], b"x" => "x"; "largest numbers")]
#[test_case(&[0], &[3], b"x" => "-"; "message 0")]
#[test_case(&[0, 1], &[3], b"x" => "-"; "a number with a zero before it")]
#[test_case(&[0, 0x80], &[3], b"x" => "x"; "a number that needs the zero")]
#[test_case(&[0x80], &[3], b"x" => "-"; "a negative number")]
#[test_case(&[1, 2, 3, 4, 5], &[3], b"x" => "-"; "a number of five bytes")]
#[test_case(&[], &[3], b"x" => "-"; "no number")]
#[test_case(&[1], &[0], b"x" => "-"; "version 0")]
#[test_case(&[1], &[0, 200], b"x" => "-"; "version 200")]
#[test_case(&[1], &[3], &[0xff] => "-"; "not UTF-8")]
#[test_case(&[1], &[3], &[b'a'; 4096] => "a".repeat(4096); "longest name")]
#[test_case(&[1], &[3], &[b'a'; 4097] => "-"; "too long a name")]
fn bind_requests(id: &[u8], version: &[u8], name: &[u8]) -> String {
    shown_name(&bind_request(id, version, name))
}

#[test]
fn lengths_are_definite_and_nested() {
    let good = bind_request(&[1], &[3], b"dc=org");
    let changed = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        shown_name(&bytes)
    };
    // 30 len 02 01 01 60 len 02 01 03 04 06 name 80 06 secret
    assert_eq!(changed(1, 0x80), "-", "indefinite");
    assert_eq!(changed(1, 0x85), "-", "a length of five bytes");
    assert_eq!(changed(1, 0xff), "-", "a reserved length");
    assert_eq!(changed(1, good[1] - 1), "-", "the operation is longer than the message");
    assert_eq!(changed(1, good[1] + 1), "dc=org", "controls may follow");
    assert_eq!(changed(5, 0x63), "-", "a search");
    assert_eq!(changed(6, good[6] + 1), "-", "the bind is longer than the message");
    assert_eq!(changed(6, 12), "-", "no room for credentials");
    assert_eq!(changed(10, 0x24), "-", "a constructed string");
    assert_eq!(changed(11, 100), "-", "the name is longer than the bind");
    // As clients of Windows write lengths.
    let inner = &good[2..];
    let wide = [&[0x30, 0x84, 0, 0, 0, inner.len() as u8][..], inner].concat();
    assert_eq!(shown_name(&wide), "dc=org");
}

const DATABASES: &str = r#"
    { ssl_request = true, pool = "many" },
    { postgres_user = "root", pool = "c" },
    { postgres_database = "shop", pool = "a" },
    { postgres_user = "alice", postgres_database = "alice", pool = "b" },
"#;

/// A StartupMessage with these parameters.
fn startup_message(parameters: &[&str]) -> Vec<u8> {
    let mut body = vec![0, 3, 0, 0];
    for text in parameters {
        body.extend_from_slice(text.as_bytes());
        body.push(0);
    }
    body.push(0);
    [&(body.len() as u32 + 4).to_be_bytes()[..], &body].concat()
}

#[test_case(PSQL => ("a".to_owned(), 56); "psql")]
#[test_case(PSQL_SSL => ("many".to_owned(), 8); "psql that may encrypt")]
#[test_case(b"\x00\x00\x00\x08\x04\xd2\x16\x30" => ("many".to_owned(), 8); "GSSENCRequest")]
#[test_case(b"\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02" => ("reject".to_owned(), 5); "CancelRequest")]
#[test_case(&startup_message(&["user", "alice"]) => ("b".to_owned(), 20); "the database of the user's name")]
#[test_case(&startup_message(&["database", "shop", "user", "root"]) => ("c".to_owned(), 33); "in any order")]
#[test_case(&startup_message(&["user", "a", "database", "x", "database", "shop"]) => ("a".to_owned(), 41); "the last of two counts")]
#[test_case(&startup_message(&["user", "Root"]) => ("reject".to_owned(), 19); "another case")]
#[test_case(b"GET / HTTP/1.1\r\n\r\n" => ("reject".to_owned(), 1); "another protocol")]
fn postgres(payload: &[u8]) -> (String, usize) {
    decided(DATABASES, payload)
}

/// User and database; `-` when there are none, `?` when they may still come.
fn shown_startup(bytes: &[u8]) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    match startup(bytes) {
        Sought::Found(startup) => format!("{}@{}", text(startup.user), text(startup.database)),
        Sought::NeedMore => "?".to_owned(),
        Sought::Absent => "-".to_owned(),
    }
}

#[test]
fn startup_messages_have_bounds() {
    assert_eq!(shown_startup(&startup_message(&["user", "u", "database", ""])), "u@u");
    assert_eq!(shown_startup(&startup_message(&[])), "-", "no user");
    assert_eq!(shown_startup(&startup_message(&["user", ""])), "-", "an empty user");
    assert_eq!(
        shown_startup(&startup_message(&["user", "u", "x"])),
        "-",
        "a name without a value"
    );
    let changed = |at: usize, to: u8| {
        let mut bytes = startup_message(&["user", "u"]);
        bytes[at] = to;
        shown_startup(&bytes)
    };
    assert_eq!(changed(7, 2), "u@u", "protocol 3.2");
    assert_eq!(changed(5, 2), "-", "protocol 2");
    assert_eq!(changed(3, 8), "-", "shorter than any");
    assert_eq!(changed(3, 15), "-", "ends within a string");
    assert_eq!(changed(3, 17), "?", "a byte is still to come");
    let padded = |len: usize| startup_message(&["user", "u", "options", &"x".repeat(len)]);
    let overhead = padded(0).len();
    assert_eq!(shown_startup(&padded(10_004 - overhead)), "u@u");
    assert_eq!(shown_startup(&padded(10_005 - overhead)), "-");
}

/// Expressions made of these, most of them about bytes that payloads below have.
fn expression() -> impl Strategy<Value = String> {
    const ATOMS: &[&str] = &[
        "a", "b", ".", "[ab]", "[^a]", "\\n", "\\xff", "^", "$", "(?m:^)", "(?m:$)", "\\b", "\\B", "(?i:A)", "\\z",
        "\\w",
    ];
    const AFTER: &[&str] = &["", "", "", "*", "+", "?", "{2}", "*?", "|"];
    let piece = (prop::sample::select(ATOMS), prop::sample::select(AFTER));
    prop::collection::vec(piece, 1..6)
        .prop_map(|pieces| pieces.iter().map(|(atom, after)| format!("{atom}{after}")).collect())
}

/// Pieces of what the parsers look for, so that random sequences of them go deep.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: &[&[u8]] = &[
        b"\x30",
        b"\x02\x01",
        b"\x01",
        b"\x03",
        b"\x60",
        b"\x04",
        b"\x84\x00\x00\x00",
        b"\x20",
        b"\x82\x01",
        b"dc=org",
        b",",
        b"\\",
        b"=",
        b"+",
        b"\x80\x00",
        b"\x00\x00\x00",
        b"\x00",
        b"\x08\x04\xd2\x16",
        b"\x2f",
        b"\x00\x03\x00\x00",
        b"user\0",
        b"database\0",
        b"shop\0",
        b"SSH-",
        b"EHLO ",
        b".one.test\r\n",
        b"\x16\x03\x01",
        b"x-tenant: two",
    ];
    prop::collection::vec(prop::sample::select(PIECES), 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn any_bytes_are_decided_once_and_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        for rules in [BYTES, EXPRESSIONS, PROTOCOLS, NAMES, DATABASES] {
            by_every_prefix(&mut selector(rules, "reject").1, &bytes);
        }
    }

    #[test]
    fn bytes_that_look_like_protocols_are_decided_once_and_without_panic(bytes in pieces()) {
        for rules in [BYTES, EXPRESSIONS, PROTOCOLS, NAMES, DATABASES] {
            by_every_prefix(&mut selector(rules, "reject").1, &bytes);
        }
    }

    #[test]
    fn changed_messages_are_decided_once_and_without_panic(
        which in 0..4_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = [LDAP, LDAP_V2, PSQL, PSQL_SSL][which].to_vec();
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        for rules in [NAMES, DATABASES] {
            by_every_prefix(&mut selector(rules, "reject").1, &bytes);
        }
    }

    #[test]
    fn names_come_back_as_they_were_sent(
        id in 1..=i32::MAX,
        version in 1..=127_u8,
        name in "[ -~]{0,300}",
        user in "[^\0]{1,20}",
        database in "[^\0]{1,20}",
    ) {
        let id = id.to_be_bytes();
        let shortest = id.iter().zip(id.iter().skip(1)).take_while(|(first, next)| **first == 0 && **next < 0x80).count();
        prop_assert_eq!(shown_name(&bind_request(&id[shortest..], &[version], name.as_bytes())), name);
        let message = startup_message(&["application_name", "x", "database", &database, "user", &user]);
        prop_assert_eq!(shown_startup(&message), format!("{user}@{database}"));
        prop_assert_eq!(encryption_request(&message), Sought::Absent);
    }

    #[test]
    fn protocols_are_those_of_the_oracle(
        offered in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 1..8),
        before in prop::collection::vec(any::<u8>(), 0..100),
        size in 1..300_usize,
    ) {
        let offered: Vec<&[u8]> = offered.iter().map(Vec::as_slice).collect();
        let hello = Hello::unnamed().with(0x1a1a, before).with(16, alpn(&offered)).with(SERVER_NAME, hello::server_name(b"a"));
        let message = hello.message();
        prop_assert_eq!(Some(shown_protocols(&records(&message, size))), protocols_by_oracle(&message));
    }

    /// crate `regex` searches in a text as a whole. What we say of the beginning must be right whatever follows.
    #[test]
    fn expressions_match_what_crate_regex_matches(
        expression in expression(),
        first_bytes in 1..12_u16,
        payload in prop::collection::vec(prop::sample::select(&b"ab\nA \xff"[..]), 0..10),
        rest in prop::collection::vec(prop::sample::select(&b"ab\nA \xff"[..]), 0..10),
    ) {
        let oracle = regex::bytes::RegexBuilder::new(&expression).unicode(false).build();
        let ours = PayloadRegex::new(&expression, first_bytes);
        // Ours also refuses what matches always or never.
        prop_assume!(ours.is_ok());
        let (Ok(ours), Ok(oracle)) = (ours, oracle) else {
            return Err(TestCaseError::fail("ours takes what crate regex does not"));
        };
        let matches = |text: &[u8]| oracle.is_match(&text[..text.len().min(first_bytes.into())]);
        prop_assert_eq!(ours.is_match(&payload, true), Some(matches(&payload)));
        let whole = [&payload[..], &rest].concat();
        if let Some(early) = ours.is_match(&payload, false) {
            prop_assert_eq!(early, matches(&whole), "decided with {:?}, then came {:?}", payload, rest);
        }
    }
}
