//! The server name of ClientHellos: of real stacks, made by hand, cut anywhere, and compared with tls-parser.

use proptest::prelude::*;
use proxyengine::callbacks::MAX_FIRST_PAYLOAD;
use proxyengine::selectors::Sought;
use proxyengine::selectors::tls::server_name;
use test_case::test_case;
use tls_parser::{SNIType, TlsExtension, TlsMessage, TlsMessageHandshake};

#[path = "selectors_support/hello.rs"]
mod hello;

use hello::{Hello, SERVER_NAME, records, vector16};

/// The name in text; `-` when there is none, `?` when it may still come.
fn shown(bytes: &[u8]) -> String {
    match server_name(bytes) {
        Sought::Found(name) => name.to_string(),
        Sought::NeedMore => "?".to_owned(),
        Sought::Absent => "-".to_owned(),
    }
}

/// The final answer; every shorter prefix must need more, every longer one say the same.
fn by_every_prefix(bytes: &[u8]) -> (String, usize) {
    let mut decided: Option<(String, usize)> = None;
    for len in 0..=bytes.len() {
        let answer = shown(&bytes[..len]);
        match &decided {
            None if answer != "?" => decided = Some((answer, len)),
            None => (),
            Some((first, at)) => assert_eq!(&answer, first, "decided with {at} bytes, changed with {len}"),
        }
    }
    decided.unwrap_or(("?".to_owned(), bytes.len()))
}

#[test_case(include_bytes!("selectors_support/hellos/openssl-tls13.bin") => "www.example.org"; "openssl tls13")]
#[test_case(include_bytes!("selectors_support/hellos/openssl-tls12.bin") => "Mail.Example.NET"; "openssl tls12")]
#[test_case(include_bytes!("selectors_support/hellos/openssl-nosni.bin") => "-"; "openssl without name")]
#[test_case(include_bytes!("selectors_support/hellos/rustls-pq.bin") => "pq.example.com"; "rustls post-quantum")]
#[test_case(include_bytes!("selectors_support/hellos/rustls-tls12.bin") => "old.example.com"; "rustls tls12")]
#[test_case(include_bytes!("selectors_support/hellos/rustls-ip.bin") => "-"; "rustls to an address")]
fn real_hellos(bytes: &[u8]) -> String {
    let (name, _) = by_every_prefix(bytes);
    assert_eq!(Some(name.clone()), oracle(&bytes[5..]), "tls-parser reads the same");
    // The same message in other records.
    for size in [1, 2, 3, 7, 64, 255, 256, 1000] {
        assert_eq!(
            by_every_prefix(&records(&bytes[5..], size)).0,
            name,
            "in records of {size} bytes"
        );
    }
    name
}

/// What tls-parser reads in a handshake message, in our words; `None` when it does not understand it.
fn oracle(message: &[u8]) -> Option<String> {
    let (_, TlsMessage::Handshake(TlsMessageHandshake::ClientHello(hello))) =
        tls_parser::parse_tls_message_handshake(message).ok()?
    else {
        return None;
    };
    let Some(extensions) = hello.ext else {
        return Some("-".to_owned());
    };
    let (rest, extensions) = tls_parser::parse_tls_client_hello_extensions(extensions).ok()?;
    if !rest.is_empty() {
        return None;
    }
    for extension in extensions {
        if let TlsExtension::SNI(names) = extension {
            let host = names.iter().find(|(kind, _)| *kind == SNIType::HostName);
            return Some(host.map_or("-".to_owned(), |(_, name)| String::from_utf8_lossy(name).into_owned()));
        }
    }
    Some("-".to_owned())
}

#[test]
fn the_name_is_known_before_the_key_shares_behind_it() {
    let hello = Hello::named("a.example").with_post_quantum_share();
    let bytes = hello.records(4096);
    assert!(
        bytes.len() > 1300,
        "longer than a segment with options: {}",
        bytes.len()
    );
    let (name, len) = by_every_prefix(&bytes);
    assert_eq!(name, "a.example");
    assert!(len < 200, "{len} bytes");
}

#[test]
fn a_name_behind_post_quantum_key_shares_waits_for_the_second_segment() {
    let hello = Hello::unnamed()
        .with_post_quantum_share()
        .with(0x2a2a, vec![0; 700])
        .with(SERVER_NAME, hello::server_name(b"late.example"));
    let bytes = hello.records(16384);
    assert!(bytes.len() > 2000);
    assert_eq!(shown(&bytes[..1448]), "?");
    assert_eq!(by_every_prefix(&bytes), ("late.example".to_owned(), bytes.len()));
}

#[test]
fn grease_is_like_any_unknown_extension() {
    let mut hello = Hello::unnamed().with(0x0a0a, vec![]).with(0xfafa, vec![0]);
    hello.cipher_suites.splice(0..0, [0x1a, 0x1a]);
    let hello = hello.with(SERVER_NAME, hello::server_name(b"a.example"));
    assert_eq!(by_every_prefix(&hello.records(100)).0, "a.example");
}

#[test]
fn what_follows_the_hello_is_not_read() {
    let mut bytes = Hello::named("a.example").records(4096);
    bytes.extend_from_slice(&[20, 3, 3, 0, 1, 1, 23, 3, 3, 0xff, 0xff]);
    assert_eq!(by_every_prefix(&bytes).0, "a.example");
    let mut bytes = Hello::unnamed().records(4096);
    bytes.extend_from_slice(&[0xff; 20]);
    assert_eq!(by_every_prefix(&bytes).0, "-");
}

/// A list of names as the extension holds it: (type, name).
fn names(list: &[(u8, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    vector16(&mut body, |out| {
        for (kind, name) in list {
            out.push(*kind);
            vector16(out, |out| out.extend_from_slice(name));
        }
    });
    body
}

#[test_case(names(&[(0, b"a.example")]) => "a.example"; "one")]
#[test_case(names(&[(0, b"a.example.")]) => "a.example."; "as it was sent")]
#[test_case(names(&[(9, b"x"), (0, b"a.example")]) => "a.example"; "after one of another type")]
#[test_case(names(&[(9, b"x")]) => "-"; "only of another type")]
#[test_case(names(&[(0, b"a"), (0, b"b")]) => "-"; "two")]
#[test_case(names(&[(0, b"")]) => "-"; "empty")]
#[test_case(names(&[(0, b"a\0b")]) => "-"; "with a zero")]
#[test_case(names(&[(0, b"a b")]) => "-"; "with a space")]
#[test_case(names(&[(0, "\u{fc}".as_bytes())]) => "-"; "not ASCII")]
#[test_case(names(&[(0, &[b'a'; 254])]) => "a".repeat(254); "longest")]
#[test_case(names(&[(0, &[b'a'; 255])]) => "-"; "too long")]
#[test_case(names(&[]) => "-"; "empty list")]
#[test_case(vec![] => "-"; "empty extension, as servers send it")]
#[test_case(vec![0, 4, 0, 0, 1] => "-"; "list longer than the extension")]
#[test_case(vec![0, 3, 0, 0, 1, b'a'] => "-"; "list shorter than the extension")]
#[test_case(vec![0, 4, 0, 0, 2, b'a'] => "-"; "name longer than the list")]
fn name_lists(extension: Vec<u8>) -> String {
    let hello = Hello::unnamed()
        .with(SERVER_NAME, extension)
        .with(0x1234, vec![1, 2, 3]);
    by_every_prefix(&hello.records(33)).0
}

#[test]
fn field_bounds() {
    let name = |change: &dyn Fn(&mut Hello)| {
        let mut hello = Hello::named("a.example");
        change(&mut hello);
        by_every_prefix(&hello.records(4096)).0
    };
    assert_eq!(name(&|h| h.session_id = vec![]), "a.example");
    assert_eq!(name(&|h| h.session_id = vec![1; 33]), "-");
    assert_eq!(name(&|h| h.cipher_suites = vec![0x13, 0x01]), "a.example");
    assert_eq!(name(&|h| h.cipher_suites = vec![]), "-");
    assert_eq!(name(&|h| h.cipher_suites = vec![0; 3]), "-");
    assert_eq!(name(&|h| h.compression_methods = vec![]), "-");
    assert_eq!(name(&|h| h.version = 0x0300), "a.example");
    assert_eq!(name(&|h| h.version = 0x0203), "-");
    assert_eq!(name(&|h| h.extensions = None), "-");
    assert_eq!(name(&|h| h.extensions = Some(vec![])), "-");
}

#[test]
fn records_have_bounds() {
    let message = Hello::named("a.example").message();
    let whole = records(&message, 4096);
    let changed = |at: usize, to: u8| {
        let mut bytes = whole.clone();
        bytes[at] = to;
        by_every_prefix(&bytes)
    };
    assert_eq!(changed(0, 23), ("-".to_owned(), 1), "application data");
    assert_eq!(changed(0, 0x80), ("-".to_owned(), 1), "a hello of SSL 2");
    assert_eq!(changed(1, 2), ("-".to_owned(), 2), "version 2");
    assert_eq!(changed(2, 9).0, "a.example", "the minor version is ignored");
    assert_eq!(changed(3, 0x40), ("-".to_owned(), 5), "a record beyond 2^14");
    assert_eq!(changed(5, 2), ("-".to_owned(), 6), "a ServerHello");
    assert_eq!(changed(6, 1), ("-".to_owned(), 9), "a hello beyond the limit");
    let mut empty_first = vec![22, 3, 1, 0, 0];
    empty_first.extend_from_slice(&whole);
    assert_eq!(by_every_prefix(&empty_first), ("-".to_owned(), 5), "an empty record");
    let mut interrupted = records(&message[..20], 20);
    interrupted.extend_from_slice(&[20, 3, 3, 0, 1, 1]);
    assert_eq!(
        by_every_prefix(&interrupted),
        ("-".to_owned(), 26),
        "another record between two of the hello"
    );
}

#[test]
fn the_longest_hello_has_a_limit() {
    // The padding extension makes the body as long as wanted: its own header takes 4 bytes, the message's another 4.
    let padded = |to: usize| {
        let padding = to + 4 - Hello::named("a.example").message().len() - 4;
        let hello = Hello::unnamed()
            .with(21, vec![0; padding])
            .with(SERVER_NAME, hello::server_name(b"a.example"));
        assert_eq!(hello.message().len(), to + 4);
        hello.records(MAX_FIRST_PAYLOAD)
    };
    assert_eq!(shown(&padded(16_384)), "a.example");
    assert_eq!(shown(&padded(16_385)), "-");
}

fn extension() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let grease = prop::sample::select(&[0x0a0a_u16, 0x5a5a, 0xfafa][..]);
    let kind = prop_oneof![grease, 0x1000..0x2000_u16];
    (kind, prop::collection::vec(any::<u8>(), 0..80))
}

prop_compose! {
    /// A well-formed hello with extensions in any order and the name somewhere among them, and the name.
    fn hellos()(
        session_id in prop::collection::vec(any::<u8>(), 0..=32),
        mut extensions in prop::collection::vec(extension(), 0..12),
        name in prop::option::of("[a-zA-Z0-9._-]{1,80}"),
        at in any::<prop::sample::Index>(),
    ) -> (Hello, Option<String>) {
        if let Some(name) = &name {
            extensions.insert(at.index(extensions.len() + 1), (SERVER_NAME, hello::server_name(name.as_bytes())));
        }
        (Hello { session_id, extensions: Some(extensions), ..Hello::unnamed() }, name)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn names_are_found_in_any_order_records_and_segments((hello, name) in hellos(), size in 1..600_usize) {
        let expected = name.unwrap_or("-".to_owned());
        prop_assert_eq!(&oracle(&hello.message()), &Some(expected.clone()));
        prop_assert_eq!(by_every_prefix(&hello.records(size)).0, expected);
    }

    #[test]
    fn changed_hellos_are_read_as_the_oracle_reads_them(
        (hello, _) in hellos(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut message = hello.message();
        for (at, to) in changes {
            let at = at.index(message.len());
            message[at] = to;
        }
        let (ours, _) = by_every_prefix(&records(&message, 300));
        // Where both have an opinion it is the same; ours is stricter about what may be in a name and how often.
        if ours != "-" && ours != "?" && let Some(theirs) = oracle(&message) {
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        by_every_prefix(&bytes);
        by_every_prefix(&records(&bytes, 20));
        let mut body = vec![1, 0];
        vector16(&mut body, |out| out.extend_from_slice(&bytes));
        by_every_prefix(&records(&body, 50));
    }
}
