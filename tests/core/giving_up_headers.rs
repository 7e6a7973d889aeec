//! Copies that are given up where PROXY headers come or go, or an inspector looks: what is told of the client is the same.

use crate::choices::hello;
use crate::giving_up::{CHUNK, again, bench_of, call, fill, given_up, said, tight};
use crate::harness::{Bench, CONFIG, Client, Server, nothing, only};
use crate::scribe::bench_with;
use e2d2::wire::tcp::TcpFlags;
use proxy_protocol::{Parsed, kind, parse};
use proxyengine::callbacks::Towards;
use splice::drop_reason::DropReason;
use splice::settings::Settings;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

fn sending(proxy_protocol: &str) -> String {
    let pool = |name: &str| format!("name = \"{name}\"\nproxy_protocol = {proxy_protocol}\n");
    CONFIG
        .replace("max_connections = 64", "max_connections = 2048")
        .replace("name = \"all\"\n", &pool("all"))
        .replace("name = \"all6\"\n", &pool("all6"))
}

/// The header that a server gets of a TLS client, with its copy or without it; the second is the client's first flight, as it
/// passes then.
fn header_of(client: Client, tlvs: &str, extra: Option<u16>, rtx_queues: usize) -> (Vec<u8>, Bench, Client, Server) {
    let text = sending(&format!("{{ send = \"v2\", tlvs = {tlvs} }}"));
    let adjust = |settings: &mut Settings| {
        tight(settings);
        settings.capacity.rtx_queues = rtx_queues;
    };
    let mut bench = Bench::make_with(&text, true, adjust, |selector| selector);
    let first = hello("shop.example", "h2");
    let (client, syn) = call(&mut bench, client, &first);
    if let Some(extra) = extra {
        fill(&mut bench, extra);
    }
    let mut server = Server::from_syn(&syn);
    let (_, mut sent) = server.accept(&mut bench);
    let header = sent.remove(0).payload;
    assert!(matches!(parse(&header), Ok(Parsed::Complete { length, .. }) if length == header.len()));
    server.ack = server.ack.wrapping_add(header.len() as u32);
    assert_eq!(sent.len(), usize::from(extra != Some(1) || rtx_queues == 0));
    (header, bench, client, server)
}

const ALL: &str = "[\"unique_id\", \"alpn\", \"authority\", \"crc32c\"]";

#[test_case(Client::new(1000), Client::new(1000), ALL; "IPv4")]
#[test_case(Client::new_v6(1000), Client::new_v6(1000), ALL; "IPv6")]
#[test_case(Client::new(1000), Client::new(1000), "[\"authority\"]"; "the name alone")]
#[test_case(Client::new(1000), Client::new(1000), "[]"; "addresses alone")]
fn the_server_gets_the_same_header(one: Client, other: Client, tlvs: &str) {
    let (with_copy, ..) = header_of(one, tlvs, None, 64);
    let (without, mut bench, client, mut server) = header_of(other, tlvs, Some(1), 64);
    assert_eq!(without, with_copy);
    assert_eq!(given_up(&bench), 1);
    // Ours is the header, and the rest is the client's.
    let repeated = bench.wait(Duration::from_millis(1100));
    let header = repeated
        .into_iter()
        .filter(|segment| !segment.payload.is_empty())
        .collect();
    assert_eq!(only(header).payload, without);
    let first = hello("shop.example", "h2");
    let passed = bench.receive(&again(&client, first.len(), TcpFlags::PSH, &first));
    assert_eq!(said(&server, &passed).last(), Some(&(0, first.clone(), false)));
    // An ACK of the header is news to nobody; one of the rest is.
    nothing(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    server.ack = server.ack.wrapping_add(first.len() as u32);
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!((ack.ack, bench.proxy.usage().headers), (client.seq, 0));
    bench.finish();
    bench.assert_all_returned();
}

/// Where what the header says of the bytes cannot be kept, the copy is.
#[test]
fn a_copy_is_kept_where_its_header_would_be_lost() {
    let (header, bench, ..) = header_of(Client::new(1000), "[\"authority\"]", Some(1), 0);
    let Ok(Parsed::Complete { header, .. }) = parse(&header) else {
        panic!("no header: {header:02x?}")
    };
    assert_eq!(header.tlvs.find(kind::AUTHORITY), Some(&b"shop.example"[..]));
    assert_eq!(given_up(&bench), 1, "another's");
}

const BEHIND: &str = "proxy_protocol = { accept = \"required\", from = [\"10.0.0.1\", \"fd00::1\"] }\n";

/// The header of the client's balancer came with its request: without an ACK both are repeated, and both are known.
#[test_case(""; "no header to the server")]
#[test_case("proxy_protocol = { send = \"v2\", tlvs = [\"incoming\"] }\n"; "a header to the server")]
fn an_incoming_header_is_repeated_with_the_bytes_behind_it(to_server: &str) {
    let text = CONFIG
        .replacen("name = \"web\"\n", &format!("name = \"web\"\n{BEHIND}"), 1)
        .replace("name = \"all\"\n", &format!("name = \"all\"\n{to_server}"));
    let mut bench = bench_of(&text);
    let whole = b"PROXY TCP4 192.0.2.66 198.51.100.9 5000 443\r\n0 hello";
    let (client, syn) = call(&mut bench, Client::new(1000), whole);
    for port in 2000..2060 {
        let fill = format!("PROXY TCP4 192.0.2.{} 198.51.100.9 5000 443\r\n1 fill", port % 50);
        call(&mut bench, Client::new(port), fill.as_bytes());
    }
    assert_eq!(given_up(&bench), 1);
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(&mut bench);
    let mut start = server.ack;
    if !to_server.is_empty() {
        let header = only(sent).payload;
        let Ok(Parsed::Complete { header: parsed, .. }) = parse(&header) else {
            panic!("no header: {header:02x?}")
        };
        assert_eq!(parsed.source(), Some("192.0.2.66:5000".parse().expect("address")));
        // While ours is not acknowledged, the client is told that its own has arrived.
        let told = only(bench.receive(&again(&client, whole.len(), TcpFlags::PSH, whole)));
        assert_eq!((told.to, told.ack), (client.me, client.seq.wrapping_sub(7)));
        start = start.wrapping_add(header.len() as u32);
    } else {
        nothing(sent);
    }
    server.ack = start;
    bench.receive(&server.segment(TcpFlags::ACK, b""));
    let passed = only(bench.receive(&again(&client, 7, TcpFlags::PSH, b"0 hello")));
    assert_eq!((passed.seq, &passed.payload[..]), (start, &b"0 hello"[..]));
    bench.finish();
    bench.assert_all_returned();
}

/// A header came in two segments, of which the first was acknowledged. The second has the request, which is given up as any other.
#[test]
fn what_came_with_the_rest_of_a_header_is_given_up() {
    let mut bench = bench_of(&CONFIG.replacen("name = \"web\"\n", &format!("name = \"web\"\n{BEHIND}"), 1));
    let mut client = Client::new(1000);
    client.connect(&mut bench);
    only(client.send(&mut bench, b"PROXY TCP4 192.0.2.66 "));
    let syn = only(client.send(&mut bench, b"198.51.100.9 5000 443\r\n0 hello"));
    for port in 2000..2060 {
        let fill = format!("PROXY TCP4 192.0.2.{} 198.51.100.9 5000 443\r\n1 fill", port % 50);
        call(&mut bench, Client::new(port), fill.as_bytes());
    }
    assert_eq!(given_up(&bench), 1);
    let (_, sent) = Server::from_syn(&syn).accept(&mut bench);
    nothing(sent);
    bench.finish();
    bench.assert_all_returned();
}

/// The inspector is shown each byte once, whoever brings it.
#[test]
fn an_inspector_is_shown_what_the_client_repeats() {
    let text = CONFIG.replace("max_connections = 64", "max_connections = 2048");
    let adjust = |settings: &mut Settings| {
        tight(settings);
        settings.capacity.inspected = 4;
    };
    let (mut bench, scribe) = bench_with(&text, adjust, "");
    let (client, syn) = call(&mut bench, Client::new(1000), b"0 hello");
    fill(&mut bench, 1);
    assert_eq!(given_up(&bench), 1);
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(&mut bench);
    nothing(sent);
    assert_eq!(scribe.calls(), []);
    let passed = bench.receive(&again(&client, 7, TcpFlags::PSH, b"0 hello"));
    assert_eq!(said(&server, &passed), [(0, b"0 hello".to_vec(), false)]);
    assert_eq!(scribe.calls(), [(Towards::Server, 0, b"0 hello".to_vec(), false)]);
    server.ack = server.ack.wrapping_add(7);
    let answer = only(server.send(&mut bench, b"answer"));
    assert_eq!((answer.ack, &answer.payload[..]), (client.seq, &b"answer"[..]));
    bench.finish();
    bench.assert_all_returned();
}

/// A client that is silent behind its SYN-ACK from the server asks for more: before the header is whole there is no server.
#[test]
fn behind_a_forwarded_syn_a_part_of_a_header_asks_for_more() {
    let text = crate::harness::bound_with_syn(BEHIND).replace("max_connections = 64", "max_connections = 2048");
    let adjust = |settings: &mut Settings| settings.capacity.reassembly_memory = 2 * CHUNK;
    let mut bench = Bench::make_with(&text, true, adjust, |selector| selector);
    for port in 1000..1061 {
        let mut client = Client::new(port);
        let syn = only(bench.receive(&client.syn()));
        let mut server = Server::from_syn(&syn);
        server.shake(&mut bench, &mut client);
        nothing(bench.receive(&client.segment(TcpFlags::ACK, b"")));
        let sent: Vec<Segment> = client.send(&mut bench, b"PROXY TCP4 ");
        assert!(sent.iter().any(|segment| segment.ack == client.seq) || bench.dropped(DropReason::ReassemblyQuota) > 0);
    }
    assert_eq!(bench.dropped(DropReason::ReassemblyEvicted), 0);
    bench.finish();
    bench.assert_all_returned();
}
