//! Servers that see the client's own address and port (`transparent = true`).

use crate::harness::{Bench, CONFIG, Client, Server, bound_with_syn, nothing, only};
use crate::icmp::{error_about, read};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::Side;
use netfcts::record::{Cause, TRANSPARENT};
use splice::drop_reason::DropReason;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

const ACCEPT: &str = "proxy_protocol = { accept = \"required\", from = [\"10.0.0.0/24\"] }";

fn bench(listener: &str) -> Bench {
    let text = CONFIG
        .replace("name = \"web\"\n", &format!("name = \"web\"\n{listener}\n"))
        .replace("name = \"all\"\n", "name = \"all\"\ntransparent = true\n")
        .replace("name = \"all6\"\n", "name = \"all6\"\ntransparent = true\n");
    Bench::with_config(&text)
}

/// A client that has sent this, and the server that got our SYN.
fn called(bench: &mut Bench, mut client: Client, bytes: &[u8]) -> (Client, Server) {
    client.connect(bench);
    let mut sent = client.send(bench, bytes);
    let syn = sent.pop().expect("a SYN");
    (client, Server::from_syn(&syn))
}

#[test]
fn the_server_is_called_from_the_clients_address_and_port() {
    for (client, digit) in [(Client::new(40000), b'1'), (Client::new_v6(40001), b'4')] {
        let mut bench = bench("");
        let (client, mut server) = called(&mut bench, client, &[digit, b' ']);
        assert_eq!(server.proxy.address, client.me.address);
        let (_, sent) = server.accept(&mut bench);
        assert_eq!(only(sent).from.address, client.me.address);
        server.ack = server.ack.wrapping_add(2);
        let answer = only(server.send(&mut bench, b"answer"));
        assert_eq!(
            (answer.from.address, answer.to.address),
            (client.proxy.address, client.me.address)
        );
        assert_eq!((answer.seq, answer.ack), (client.ack, client.seq));
        bench.finish();
        bench.assert_all_returned();
        let record = bench.records()[0];
        assert_eq!(
            (record.local_address, record.local_port),
            (TRANSPARENT, client.me.address.port())
        );
    }
}

/// The SYN itself comes from the client's address and port.
#[test]
fn a_syn_is_passed_on_from_the_clients_address_and_port() {
    for client in [Client::new(40000), Client::new_v6(40001)] {
        let mut bench = passing_syns();
        let mut client = client;
        let syn = only(bench.receive(&client.syn()));
        assert_eq!(
            (syn.from.address, syn.options),
            (client.me.address, options_of(&client))
        );
        let mut server = Server::from_syn(&syn);
        let syn_ack = server.shake(&mut bench, &mut client);
        assert_eq!(
            (syn_ack.from.address, syn_ack.to.address),
            (client.proxy.address, client.me.address)
        );
        let ack = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
        assert_eq!((ack.from.address, ack.seq), (client.me.address, server.ack));
        assert_eq!(only(client.send(&mut bench, b"hello")).from.address, client.me.address);
        let banner = only(server.send(&mut bench, b"220"));
        assert_eq!((banner.to.address, banner.seq), (client.me.address, client.ack));
        // It rests with its source, and a late segment finds its way.
        assert_eq!(bench.receive(&client.segment(TcpFlags::RST, b"")).len(), 1);
        assert_eq!(only(server.send(&mut bench, b"late")).to.address, client.me.address);
        bench.finish();
        bench.assert_all_returned();
        let record = bench.records()[0];
        assert_eq!(
            (record.local_address, record.local_port),
            (TRANSPARENT, client.me.address.port())
        );
    }
}

#[test]
fn a_forwarded_syn_that_is_refused_goes_to_the_next_server_from_the_same_source() {
    let mut bench = passing_syns();
    let client = Client::new(40000);
    let mut syn = only(bench.receive(&client.syn()));
    let mut servers = vec![syn.to.address];
    for _ in 0..2 {
        let refusal = Segment {
            ack: syn.seq.wrapping_add(1),
            flags: TcpFlags::RST | TcpFlags::ACK,
            ..Segment::between(syn.to, syn.from)
        };
        syn = only(bench.receive(&refusal));
        assert_eq!((syn.flags, syn.from.address), (TcpFlags::SYN, client.me.address));
        servers.push(syn.to.address);
    }
    servers.sort_unstable();
    servers.dedup();
    assert_eq!(servers.len(), 3);
    bench.finish();
    bench.assert_all_returned();
}

fn passing_syns() -> Bench {
    let text = ["all", "all6"].iter().fold(bound_with_syn(""), |text, pool| {
        let name = format!("name = \"{pool}\"\n");
        text.replace(&name, &format!("{name}transparent = true\n"))
    });
    Bench::for_pools(&text)
}

/// What a client says in its SYN, as far as both links carry it.
fn options_of(client: &Client) -> TcpOptions {
    let largest = if client.me.address.is_ipv6() { 1440 } else { 1460 };
    TcpOptions {
        mss: Some(largest),
        ..client.syn().options
    }
}

#[test]
fn with_a_header_it_is_the_address_that_the_header_names() {
    let mut bench = bench(ACCEPT);
    let header = b"PROXY TCP4 192.0.2.7 198.51.100.9 5000 443\r\n1 ";
    let (client, mut server) = called(&mut bench, Client::new(40000), header);
    assert_eq!(server.proxy.address.to_string(), "192.0.2.7:5000");
    assert_eq!(bench.proxy.usage().transparent_sources, 1);
    server.accept(&mut bench);
    let answer = only(server.send(&mut bench, b"answer"));
    assert_eq!(answer.to, client.me);
    // It rests with its source: a late segment still finds its way.
    bench.finish();
    assert_eq!(
        bench.proxy.usage().transparent_sources,
        0,
        "nothing rests after the end"
    );
    let record = bench.records()[0];
    assert_eq!(
        (record.client().to_string(), record.local_port),
        ("192.0.2.7".to_owned(), 5000)
    );
}

#[test]
fn a_resting_connection_keeps_its_source_and_a_new_one_takes_it_over() {
    let mut bench = bench(ACCEPT);
    let header = b"PROXY TCP4 192.0.2.7 198.51.100.9 5000 443\r\n1 ";
    let (mut client, mut server) = called(&mut bench, Client::new(40000), header);
    server.accept(&mut bench);
    let reset = client.segment(TcpFlags::RST, b"");
    assert_eq!(bench.receive(&reset).len(), 1);
    assert_eq!(
        (bench.proxy.usage().time_wait, bench.proxy.usage().transparent_sources),
        (1, 1)
    );
    let late = only(server.send(&mut bench, b"late"));
    assert_eq!(late.to, client.me);
    client = Client::new(40001);
    let (_, mut again) = called(&mut bench, client, header);
    assert_eq!(again.proxy.address, server.proxy.address);
    assert_eq!(bench.proxy.usage().transparent_sources, 2);
    again.accept(&mut bench);
    assert_eq!(only(again.send(&mut bench, b"new")).to.address.port(), 40001);
    bench.finish();
    bench.assert_all_returned();
}

/// Two listeners lead to one server; the client uses one port for both.
#[test]
fn an_address_and_port_in_use_towards_the_server_are_refused() {
    let mut bench = bench(ACCEPT);
    let header = b"PROXY TCP4 192.0.2.7 198.51.100.9 5000 443\r\n1 ";
    let (_, mut server) = called(&mut bench, Client::new(40000), header);
    server.accept(&mut bench);
    let mut second = Client::new(40001);
    second.connect(&mut bench);
    let reset = only(second.send(&mut bench, header));
    assert!(reset.flags.contains(TcpFlags::RST) && reset.to == second.me);
    assert_eq!(bench.dropped(DropReason::SourceInUse), 1);
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::NoPort);
    // The first goes on.
    assert_eq!(only(server.send(&mut bench, b"on")).payload, b"on");
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn in_a_pool_the_next_server_is_tried() {
    let mut bench = bench(ACCEPT);
    let header = b"PROXY TCP4 192.0.2.7 198.51.100.9 5000 443\r\np";
    let mut servers = Vec::new();
    for port in 0..3 {
        let (_, mut server) = called(&mut bench, Client::new(40000 + port), header);
        server.accept(&mut bench);
        servers.push(server.me.address);
    }
    servers.sort_unstable();
    servers.dedup();
    assert_eq!(servers.len(), 3);
    bench.finish();
    bench.assert_all_returned();
}

#[test_case("TCP4 127.0.0.1 198.51.100.9 5000 443"; "loop-back")]
#[test_case("TCP4 0.0.0.0 198.51.100.9 5000 443"; "none")]
#[test_case("TCP4 224.0.0.1 198.51.100.9 5000 443"; "multicast")]
#[test_case("TCP4 255.255.255.255 198.51.100.9 5000 443"; "broadcast")]
#[test_case("TCP4 10.1.0.9 198.51.100.9 5000 443"; "our own")]
#[test_case("TCP4 10.1.0.101 198.51.100.9 5000 443"; "the server's own")]
#[test_case("TCP4 192.0.2.7 198.51.100.9 0 443"; "no port")]
#[test_case("TCP6 2001:db8::1 2001:db8::2 5000 443"; "of the other family")]
#[test_case("TCP6 ::1 2001:db8::2 5000 443"; "loop-back of the other family")]
fn an_address_that_no_host_can_have_is_refused(addresses: &str) {
    let mut bench = bench(ACCEPT);
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let reset = only(client.send(&mut bench, format!("PROXY {addresses}\r\n1 ").as_bytes()));
    assert!(reset.flags.contains(TcpFlags::RST), "{reset:?}");
    assert_eq!(bench.dropped(DropReason::SourceRefused), 1);
    bench.assert_all_returned();
}

#[test]
fn an_icmp_error_to_the_clients_address_is_passed_on() {
    let mut bench = bench("");
    let (client, mut server) = called(&mut bench, Client::new(40000), b"1 ");
    let (_, sent) = server.accept(&mut bench);
    let request = only(sent);
    let (port, error) = error_about(&request, Some(1400));
    let passed = bench.receive_icmp(port, &error);
    assert_eq!(passed.len(), 1);
    let (mtu, quoted) = read(&passed[0]);
    assert_eq!(mtu, Some(1400));
    // To the client, about the segment that it sent.
    let sent = (quoted.src_addr, quoted.src_port, quoted.dst_addr, quoted.dst_port);
    let (me, proxy) = (client.me.address, client.proxy.address);
    assert_eq!(sent, (me.ip(), me.port(), proxy.ip(), proxy.port()));
    assert_eq!(quoted.seq, client.seq.wrapping_sub(2));
}

#[test]
fn a_server_that_does_not_answer_is_given_up_and_the_source_is_free() {
    let mut bench = bench(ACCEPT);
    let header = b"PROXY TCP4 192.0.2.7 198.51.100.9 5000 443\r\n1 ";
    let (client, _) = called(&mut bench, Client::new(40000), header);
    let sent = bench.wait(Duration::from_secs(60));
    let reset = |segment: &&Segment| segment.to == client.me && segment.flags.contains(TcpFlags::RST);
    assert_eq!(sent.iter().filter(reset).count(), 1);
    assert_eq!(bench.proxy.usage().transparent_sources, 0);
    bench.assert_all_returned();
    nothing(bench.finish());
}
