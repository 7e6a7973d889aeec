//! The example of `docs/configuration.md` with every rule and policy, on the wire: who gets which first payload.

use crate::harness::{Bench, Client, PROXY_MAC, nothing, only};
use e2d2::wire::tcp::TcpFlags;
use proxyengine::config::Config;
use proxyengine::selectors::RuleSelector;
use test_case::test_case;
use testkit::{Segment, Station};

fn example() -> String {
    let document = include_str!("../../docs/configuration.md");
    let section = document.split("### Every rule and policy").nth(1).expect("the section");
    let block = section
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    block.expect("an example").to_owned()
}

fn bench() -> Bench<RuleSelector> {
    let text = example();
    let config = Config::parse(&text, "docs/configuration.md").unwrap_or_else(|error| panic!("{error}"));
    Bench::make_with(&text, false, |_| {}, |_| RuleSelector::new(&config))
}

/// What the engine sends when a client says this at once.
fn called(bench: &mut Bench<RuleSelector>, client: (u8, u16), payload: &[u8]) -> Segment {
    let mut client = Client {
        me: Station::new(1, &format!("192.0.2.{}:1", client.0)).with_port(client.1),
        proxy: Station::new(PROXY_MAC[0], "192.0.2.10:443"),
        ..Client::new(client.1)
    };
    let syn_ack = only(bench.receive(&client.syn()));
    client.take_syn_ack(&syn_ack);
    nothing(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    only(bench.receive(&client.segment(TcpFlags::PSH, payload)))
}

/// A ClientHello (RFC 8446 4.1.2) with a server name (RFC 6066 3) and one application protocol (RFC 7301 3.1).
pub fn hello(name: &str, protocol: &str) -> Vec<u8> {
    let prefixed = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let name = prefixed(&[&[0][..], &prefixed(name.as_bytes())].concat());
    let protocol = prefixed(&[&[protocol.len() as u8][..], protocol.as_bytes()].concat());
    let extensions = [&[0, 0][..], &prefixed(&name), &[0, 16], &prefixed(&protocol)].concat();
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &prefixed(&[0x13, 0x01]),
        &[1, 0],
        &prefixed(&extensions),
    ]
    .concat();
    let handshake = [&[1, 0][..], &prefixed(&body)].concat();
    [&[0x16, 3, 1][..], &prefixed(&handshake)].concat()
}

/// RFC 4511 4.2: a simple bind.
fn bind(name: &str) -> Vec<u8> {
    let request = [&[2, 1, 3, 4, name.len() as u8][..], name.as_bytes(), &[0x80, 0]].concat();
    let message = [&[2, 1, 1, 0x60, request.len() as u8][..], &request].concat();
    [&[0x30, message.len() as u8][..], &message].concat()
}

fn startup(user: &str, database: &str) -> Vec<u8> {
    let text = format!("user\0{user}\0database\0{database}\0\0");
    let length = (8 + text.len()) as u32;
    [&length.to_be_bytes()[..], &[0, 3, 0, 0], text.as_bytes()].concat()
}

#[test_case(&hello("shop.example", "h2") => "20"; "server name and ALPN")]
#[test_case(&hello("other.example", "acme-tls/1") => "50"; "ALPN alone")]
#[test_case(&hello("shop.example", "http/1.1") => "40"; "the name without the ALPN")]
#[test_case(b"SSH-2.0-OpenSSH_9.2\r\n" => "51"; "byte prefix")]
#[test_case(b"SSH-1.99-old\r\n" => "40"; "another prefix")]
#[test_case(b"EHLO a.example\r\n" => "52"; "regular expression")]
#[test_case(b"EHLO a.other\r\n" => "40"; "another line")]
#[test_case(&bind("uid=bob,ou=people,dc=example,dc=org") => "53"; "LDAP bind name")]
#[test_case(&bind("uid=bob,ou=robots,dc=example,dc=org") => "40"; "another branch")]
#[test_case(&startup("alice", "shop") => "54"; "PostgreSQL user and database")]
#[test_case(&startup("bob", "shop") => "55"; "PostgreSQL database")]
#[test_case(&startup("bob", "stock") => "40"; "another database")]
#[test_case(&[0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f] => "56"; "SSLRequest")]
#[test_case(&[0, 0, 0, 8, 4, 0xd2, 0x16, 0x30] => "56"; "GSSENCRequest")]
#[test_case(b"anything else\r\n" => "40"; "default")]
fn rules_choose(payload: &[u8]) -> String {
    let syn = called(&mut bench(), (1, 40000), payload);
    assert_eq!(syn.flags, TcpFlags::SYN);
    let ip = syn.to.address.ip().to_string();
    ip.rsplit('.').next().expect("four numbers").to_owned()
}

/// How many of the calls each server got, by address.
fn counts(bench: &mut Bench<RuleSelector>, payload: &[u8], clients: impl Iterator<Item = (u8, u16)>) -> Vec<usize> {
    let mut counts = std::collections::BTreeMap::new();
    for client in clients {
        *counts.entry(called(bench, client, payload).to.address).or_insert(0) += 1;
    }
    counts.into_values().collect()
}

#[test]
fn least_connections_and_weights_on_the_wire() {
    let mut bench = bench();
    // None of them ends: three open ones at the large server for one at the small.
    let calls = counts(
        &mut bench,
        &hello("shop.example", "h2"),
        (0..12).map(|n| (1, 40000 + n)),
    );
    assert_eq!(calls, [9, 3]);
}

#[test]
fn turns_and_weights_on_the_wire() {
    let calls = counts(&mut bench(), b"anything else\r\n", (0..12).map(|n| (1, 40000 + n)));
    assert_eq!(calls, [8, 4]);
}

#[test]
fn client_hash_on_the_wire() {
    let request = b"GET /api/x HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let mut bench = bench();
    for client in 1..=9 {
        let calls = counts(&mut bench, request, (0..4).map(|n| (client, 40000 + n)));
        assert_eq!(calls, [4], "client {client}: one address, one server");
    }
    let spread = counts(&mut bench, request, (20..50).map(|client| (client, 40000)));
    assert_eq!(spread.len(), 3, "many addresses, all servers: {spread:?}");
}

#[test]
fn the_example_has_every_kind_of_rule_and_policy() {
    let text = example();
    for word in [
        "tls_sni",
        "tls_alpn",
        "http_host",
        "http_path",
        "prefix",
        "regex",
        "ldap_bind_dn",
        "postgres_user",
        "postgres_database",
        "ssl_request",
        "default",
        "round_robin",
        "least_connections",
        "client_hash",
        "maglev",
        "balance_factor",
        "backup",
        "slow_start",
        "client_limit",
        "class",
        "weight",
        "max_connections",
        "eject_after",
        "[syn_ack]",
    ] {
        assert!(text.contains(word), "{word}");
    }
}
