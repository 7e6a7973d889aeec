//! What must hold for any bytes, one function for each fuzz target.
//!
//! The fuzzer calls them with bytes of its own (`fuzz_targets/`); `tests/fuzzed.rs` calls them with every file under
//! `corpus/` and with random bytes, so that what was found once is tried in each run of the tests, without a nightly
//! compiler.

pub mod core;
pub mod headers;
pub mod wire;

#[allow(dead_code, unreachable_pub)] // the core's tests use all of it
#[path = "../../tests/core/harness.rs"]
mod harness;

use proxyengine::config::Config;
use proxyengine::names::message::{self, Data, Kind, Reply};
use proxyengine::selectors::{Sought, http, ldap, number, postgres, tls};
use std::fmt::Debug;

/// Any text as configuration: refused in a sentence, or accepted.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Err(error) = Config::parse(text, "fuzzed") {
        assert!(
            error.to_string().contains("fuzzed"),
            "an error that does not name the file: {error}"
        );
    }
}

/// Any bytes as first payload. A selector asks for more until it knows, and then says the same whatever follows; so it
/// does not matter how the bytes were cut into segments.
pub fn selectors(bytes: &[u8]) {
    is_final(bytes, |bytes| match http::Request::parse(bytes) {
        Sought::Found(request) => request
            .host()
            .map(|host| (host.to_vec(), request.path().map(str::to_owned))),
        Sought::NeedMore => Sought::NeedMore,
        Sought::Absent => Sought::Absent,
    });
    is_final(bytes, |bytes| tls::server_name(bytes).map(|name| format!("{name:?}")));
    is_final(bytes, |bytes| {
        tls::protocols(bytes).map(|names| names.iter().map(<[u8]>::to_vec).collect::<Vec<_>>())
    });
    is_final(bytes, |bytes| ldap::bind_name(bytes).map(<[u8]>::to_vec));
    is_final(bytes, |bytes| {
        postgres::startup(bytes).map(|startup| format!("{startup:?}"))
    });
    is_final(bytes, postgres::encryption_request);
    is_final(bytes, |bytes| number::first_number(bytes, false, u16::MAX));
    assert_ne!(
        number::first_number(bytes, true, 7),
        Sought::NeedMore,
        "nothing more will come"
    );
}

/// Any bytes as the answer of a name server, to the questions of the corpus: refused, or read as what was asked for, of which there is no more
/// than the bytes have room for.
pub fn names(bytes: &[u8]) {
    let questions = [
        ("_ldap._tcp.example.net", Kind::Srv),
        ("web.example.net", Kind::A),
        ("web.example.net", Kind::Aaaa),
    ];
    for (name, kind) in questions {
        let Ok(Reply::Told(data, _)) = message::answer(bytes, 7, name, kind) else {
            continue;
        };
        assert_eq!(bytes[..2], [0, 7], "an answer to another question");
        match (kind, data) {
            (Kind::Srv, Data::Targets(targets)) => {
                assert!(targets.iter().all(|target| target.port != 0 && !target.name.is_empty()));
                assert!(targets.len() <= bytes.len() / 18);
            }
            (Kind::A | Kind::Aaaa, Data::Addresses(addresses)) => {
                assert!(addresses.iter().all(|ip| ip.is_ipv4() == (kind == Kind::A)));
                assert!(
                    addresses
                        .iter()
                        .all(|ip| !ip.is_loopback() && !ip.is_multicast() && !ip.is_unspecified())
                );
                assert!(addresses.len() <= bytes.len() / 15);
            }
            (_, data) => panic!("{kind:?} is answered with {data:?}"),
        }
    }
}

fn is_final<T: PartialEq + Debug>(bytes: &[u8], parse: impl Fn(&[u8]) -> Sought<T>) {
    let verdict = parse(bytes);
    // Every cut of short payloads, some of long ones.
    let step = 1 + bytes.len() / 64;
    for cut in (0..bytes.len()).step_by(step) {
        let early = parse(&bytes[..cut]);
        assert!(
            early == Sought::NeedMore || early == verdict,
            "{early:?} after {cut} bytes, {verdict:?} after {}",
            bytes.len()
        );
    }
}
