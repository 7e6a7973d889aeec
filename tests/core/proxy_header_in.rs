//! The PROXY header that a client's stream begins with: taken off, believed or not, passed on.

use crate::harness::{Bench, CONFIG, Client, Server, nothing, only};
use e2d2::wire::tcp::TcpFlags;
use netfcts::{Cause, RecordFlags, SessionRecord, Side};
use proxy_protocol::{Addresses, Header, Parsed, Tlv, TlvWriter, Transport, parse};
use splice::drop_reason::DropReason;
use std::net::SocketAddr;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

/// What a balancer before us says, with another client than its own address.
pub const V1: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.9 5000 443\r\n";
const REQUEST: &[u8] = b"0 hello";

/// A bench whose first listener says this of headers, and whose first pool that.
fn bench_with(listener: &str, pool: &str) -> Bench {
    Bench::with_config(&config(listener, pool))
}

fn config(listener: &str, pool: &str) -> String {
    CONFIG
        .replace("name = \"web\"\n", &format!("name = \"web\"\n{listener}\n"))
        .replace("name = \"all\"\n", &format!("name = \"all\"\n{pool}\n"))
}

fn required() -> Bench {
    bench_with(REQUIRED, "")
}

const REQUIRED: &str = "proxy_protocol = { accept = \"required\", from = [\"10.0.0.1\"] }";
const OPTIONAL: &str = "proxy_protocol = { accept = \"optional\", from = [\"10.0.0.0/30\"] }";
const STRANGERS: &str = "proxy_protocol = { accept = \"required\", from = [\"10.0.0.2/32\"] }";
const OPTIONAL_STRANGERS: &str = "proxy_protocol = { accept = \"optional\", from = [\"10.0.0.2\"] }";
const HANDSHAKE: &str = "bind = \"handshake\"\nproxy_protocol = { accept = \"required\", from = [\"10.0.0.1\"] }";

/// The same in version 2, of a client over IPv6.
pub fn v2(tlvs: &[Tlv<'_>]) -> Vec<u8> {
    let (mut room, mut out) = ([0; 4096], [0; 8192]);
    let mut writer = TlvWriter::new(&mut room);
    for tlv in tlvs {
        writer.push(tlv).expect("room");
    }
    let from = |text: &str| text.parse::<SocketAddr>().expect("address");
    let addresses = Addresses::from_pair(from("[2001:db8::7]:5000"), from("[2001:db8::9]:443"));
    let header = Header::proxy(Transport::Stream, addresses).with_tlvs(writer.tlvs());
    let length = header.encode(&mut out).expect("room");
    out[..length].to_vec()
}

fn connected(bench: &mut Bench) -> Client {
    let mut client = Client::new(40000);
    client.connect(bench);
    client
}

/// What the server has received of the stream, when it acknowledges all of it at once; asserts that nothing is missing.
fn received(server: &mut Server, sent: &[Segment]) -> Vec<u8> {
    let first = server.ack;
    let mut stream: Vec<u8> = Vec::new();
    for segment in sent.iter().filter(|segment| segment.to == server.me) {
        let at = segment.seq.wrapping_sub(first) as usize;
        assert!(at <= stream.len(), "a gap before {segment:?}");
        stream.truncate(at.max(stream.len().min(at + segment.payload.len())));
        let known = stream.len() - at;
        stream.extend(segment.payload.get(known..).unwrap_or_default());
    }
    server.ack = first.wrapping_add(stream.len() as u32);
    stream
}

fn record(bench: &mut Bench) -> SessionRecord {
    let records = bench.records();
    assert_eq!(records.len(), 1);
    records[0]
}

/// Header and request in these pieces lead to a server that gets the request alone, and to a client all of whose bytes
/// are acknowledged.
#[track_caller]
fn passes_in_pieces(bench: &mut Bench, stream: &[u8], cuts: &[usize]) {
    let mut client = connected(bench);
    let mut sent = Vec::new();
    for (start, end) in [0].iter().chain(cuts).zip(cuts.iter().chain(&[stream.len()])) {
        sent.extend(client.send(bench, &stream[*start..*end]));
    }
    let syn = sent
        .iter()
        .find(|segment| segment.flags == TcpFlags::SYN)
        .expect("a SYN");
    let acks = sent.iter().filter(|segment| segment.to == client.me);
    acks.for_each(|ack| assert!(ack.ack.wrapping_sub(client.seq) as i32 <= 0 && ack.payload.is_empty()));
    let mut server = Server::from_syn(syn);
    let (_, held) = server.accept(bench);
    assert_eq!(received(&mut server, &held), REQUEST, "cut at {cuts:?}");
    let answer = only(server.send(bench, b"answer"));
    assert_eq!((answer.ack, answer.seq), (client.seq, client.ack), "cut at {cuts:?}");
    assert_eq!(answer.payload, b"answer");
    bench.finish();
    bench.assert_all_returned();
    assert_eq!(
        record(bench).client().to_string(),
        if stream.starts_with(b"PROXY") {
            "192.0.2.7"
        } else {
            "2001:db8::7"
        }
    );
}

#[test]
fn a_header_is_taken_off_wherever_it_is_cut() {
    for header in [V1.to_vec(), v2(&[]), v2(&[Tlv::Authority(b"a.test")])] {
        let stream = [&header[..], REQUEST].concat();
        passes_in_pieces(&mut required(), &stream, &[]);
        for cut in 1..stream.len() {
            passes_in_pieces(&mut required(), &stream, &[cut]);
        }
        let every: Vec<usize> = (1..stream.len()).collect();
        passes_in_pieces(&mut required(), &stream, &every);
    }
}

#[test]
fn segments_out_of_order_and_lost_make_one_header() {
    let mut bench = required();
    let client = connected(&mut bench);
    let stream = [V1, REQUEST].concat();
    let piece = |range: std::ops::Range<usize>| Segment {
        seq: client.seq.wrapping_add(range.start as u32),
        ..client.segment(TcpFlags::PSH, &stream[range])
    };
    nothing(bench.receive(&piece(30..stream.len())));
    nothing(bench.receive(&piece(10..20)));
    let ack = only(bench.receive(&piece(0..10)));
    assert_eq!(ack.ack, client.seq.wrapping_add(20));
    let syn = only(bench.receive(&piece(15..35)));
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    assert_eq!(received(&mut server, &held), REQUEST);
}

#[test]
fn a_header_alone_is_acknowledged_and_so_is_its_repetition() {
    let mut bench = required();
    let mut client = connected(&mut bench);
    let ack = only(client.send(&mut bench, V1));
    assert_eq!((ack.ack, ack.seq, ack.to), (client.seq, client.ack, client.me));
    let again = Segment {
        seq: client.seq.wrapping_sub(V1.len() as u32),
        ..client.segment(TcpFlags::PSH, V1)
    };
    assert_eq!(only(bench.receive(&again)).ack, client.seq);
    let syn = only(client.send(&mut bench, REQUEST));
    assert_eq!(
        bench.calls.lock().expect("one thread").last(),
        Some(&(REQUEST.to_vec(), false))
    );
    // While the server is called, too; the request, which is held, is ours from then on.
    assert_eq!(only(bench.receive(&again)).ack, client.seq);
    let mut server = Server::from_syn(&syn);
    server.accept(&mut bench);
    let passed = only(bench.receive(&again));
    assert_eq!(passed.to, server.me, "it knows by its number that this is old");
    assert_eq!(passed.seq, server.ack.wrapping_sub(V1.len() as u32));
}

#[test]
fn a_repeated_header_never_takes_the_place_of_ours() {
    let mut bench = bench_with(REQUIRED, "proxy_protocol = { send = \"v2\" }");
    let mut client = connected(&mut bench);
    let syn = only(client.send(&mut bench, &[V1, REQUEST].concat()));
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(&mut bench);
    let header_len = sent[0].payload.len();
    let whole = received(&mut server, &sent);
    assert_eq!(&whole[header_len..], REQUEST);
    // Neither of the two has reached the server; the client repeats all that it has sent.
    let again = Segment {
        seq: client.seq.wrapping_sub((V1.len() + REQUEST.len()) as u32),
        ..client.segment(TcpFlags::PSH, &[V1, REQUEST].concat())
    };
    let ack = only(bench.receive(&again));
    assert_eq!(
        (ack.to, ack.ack),
        (client.me, client.seq.wrapping_sub(REQUEST.len() as u32))
    );
    assert_eq!((ack.payload.len(), ack.flags), (0, TcpFlags::ACK));
    // Now it knows, and repeats the rest: ours goes before it.
    let rest = Segment {
        seq: client.seq.wrapping_sub(REQUEST.len() as u32),
        ..client.segment(TcpFlags::PSH, REQUEST)
    };
    let sent = bench.receive(&rest);
    assert_eq!([&sent[0].payload[..], &sent[1].payload].concat(), whole);
}

#[test]
fn rules_policies_records_and_servers_get_what_the_header_says() {
    let mut bench = bench_with(REQUIRED, "proxy_protocol = { send = \"v1\" }");
    let mut client = connected(&mut bench);
    let syn = only(client.send(&mut bench, &[V1, REQUEST].concat()));
    let (_, sent) = Server::from_syn(&syn).accept(&mut bench);
    assert_eq!(sent[0].payload, V1);
    assert_eq!(
        bench.asked.lock().expect("one thread").last(),
        Some(&["192.0.2.7:5000", "198.51.100.9:443", "10.0.0.1:40000"].map(|a| a.parse().expect("address")))
    );
    bench.finish();
    let record = record(&mut bench);
    assert_eq!(
        (record.client().to_string(), record.client_port),
        ("192.0.2.7".to_owned(), 5000)
    );
    assert_eq!(
        record.peer().map(|(ip, port)| SocketAddr::new(ip, port)),
        Some("10.0.0.1:40000".parse().expect("one"))
    );
    assert!(record.flags().contains(RecordFlags::PROXY_IN | RecordFlags::PROXY_OUT));
}

#[test]
fn the_pool_is_picked_from_by_the_clients_address() {
    // By client hash all clients behind one proxy would have one server.
    let text = config(REQUIRED, "policy = \"client_hash\"");
    let mut servers = std::collections::HashSet::new();
    for host in 1..40 {
        let mut bench = Bench::with_config(&text);
        let mut client = connected(&mut bench);
        let header = format!("PROXY TCP4 192.0.2.{host} 198.51.100.9 5000 443\r\np");
        servers.insert(only(client.send(&mut bench, header.as_bytes())).to.address);
    }
    assert_eq!(servers.len(), 3);
}

#[test]
fn fields_are_passed_on_before_our_own() {
    let pool = "proxy_protocol = { send = \"v2\", tlvs = [\"incoming\", \"unique_id\", \"crc32c\"] }";
    let mut bench = bench_with(REQUIRED, pool);
    let mut client = connected(&mut bench);
    let aws = Tlv::Other {
        kind: 0xea,
        value: b"\x01vpce-1",
    };
    let mut header = v2(&[
        Tlv::Authority(b"a.test"),
        aws,
        Tlv::UniqueId(b"theirs"),
        Tlv::Noop(&[0; 3]),
    ]);
    header.extend(REQUEST);
    let syn = only(client.send(&mut bench, &header));
    let (_, sent) = Server::from_syn(&syn).accept(&mut bench);
    let Ok(Parsed::Complete { header, length }) = parse(&sent[0].payload) else {
        panic!("no header: {:02x?}", sent[0].payload)
    };
    assert_eq!(length, sent[0].payload.len());
    assert_eq!(header.source(), Some("[2001:db8::7]:5000".parse().expect("address")));
    assert_eq!(
        header.destination(),
        Some("[2001:db8::9]:443".parse().expect("address"))
    );
    let kinds: Vec<u8> = header.tlvs.raw().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [0x02, 0xea, 0x05, 0x03]);
    assert_eq!(header.tlvs.find(0x05), Some(&b"theirs"[..]));
}

#[test_case(b"GET / HTTP/1.0\r\n", REQUIRED => DropReason::HeaderMalformed; "none")]
#[test_case(b"PROXY TCP4 192.0.2.7 2001:db8::1 1 2\r\n", REQUIRED => DropReason::HeaderMalformed; "mixed families")]
#[test_case(b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c", REQUIRED => DropReason::HeaderMalformed; "version 3")]
#[test_case(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x40\0", REQUIRED => DropReason::HeaderMalformed; "longer than is held")]
#[test_case(b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0cabcdefghijkl", REQUIRED => DropReason::HeaderMalformed; "of a datagram")]
#[test_case(b"PROXY TCP5 1.2.3.4", OPTIONAL => DropReason::HeaderMalformed; "optional and wrong")]
#[test_case(V1, STRANGERS => DropReason::HeaderUntrusted; "from a stranger")]
#[test_case(b"0 hello", STRANGERS => DropReason::HeaderUntrusted; "a stranger without")]
#[test_case(V1, OPTIONAL_STRANGERS => DropReason::HeaderUntrusted; "optional from a stranger")]
fn refused(bytes: &[u8], listener: &str) -> DropReason {
    let mut bench = bench_with(listener, "");
    let mut client = connected(&mut bench);
    let reset = only(client.send(&mut bench, bytes));
    assert!(reset.flags.contains(TcpFlags::RST), "{reset:?}");
    assert_eq!(reset.seq, client.ack);
    let record = record(&mut bench);
    assert_eq!(record.cause(Side::Client), Cause::BadProxyHeader);
    assert_eq!(record.client().to_string(), "10.0.0.1");
    bench.assert_all_returned();
    let reasons = [
        DropReason::HeaderMalformed,
        DropReason::HeaderUntrusted,
        DropReason::HeaderMissing,
    ];
    reasons
        .into_iter()
        .find(|&reason| bench.dropped(reason) == 1)
        .expect("a counted reason")
}

#[test]
fn a_wrong_checksum_is_refused() {
    let mut room = [0; 64];
    let mut tlvs = TlvWriter::new(&mut room);
    tlvs.push_checksum().expect("room");
    let from = |text: &str| text.parse::<SocketAddr>().expect("address");
    let mut out = [0; 128];
    let length = Header::proxy(
        Transport::Stream,
        Addresses::from_pair(from("192.0.2.7:5000"), from("198.51.100.9:443")),
    )
    .with_tlvs(tlvs.tlvs())
    .encode(&mut out)
    .expect("room");
    out[16] ^= 1;
    assert_eq!(refused(&out[..length], REQUIRED), DropReason::HeaderMalformed);
    out[16] ^= 1;
    let mut bench = required();
    let mut client = connected(&mut bench);
    assert_eq!(only(client.send(&mut bench, &out[..length])).ack, client.seq);
}

#[test_case(b""; "nothing")]
#[test_case(b"PROXY TCP4 192.0."; "a part")]
fn a_header_that_does_not_come_in_time_ends_the_connection(part: &[u8]) {
    let mut bench = required();
    let mut client = connected(&mut bench);
    if !part.is_empty() {
        only(client.send(&mut bench, part));
    }
    let sent = bench.wait(Duration::from_secs(40));
    assert!(only(sent).flags.contains(TcpFlags::RST));
    assert_eq!(bench.dropped(DropReason::HeaderMissing), 1);
    assert_eq!(record(&mut bench).cause(Side::Client), Cause::BadProxyHeader);
    bench.assert_all_returned();
}

#[test]
fn without_a_header_an_optional_connection_passes_as_it_is() {
    for listener in [OPTIONAL, OPTIONAL_STRANGERS] {
        let mut bench = bench_with(listener, "proxy_protocol = { send = \"v1\" }");
        let mut client = connected(&mut bench);
        let syn = only(client.send(&mut bench, REQUEST));
        let (_, sent) = Server::from_syn(&syn).accept(&mut bench);
        assert_eq!(sent[0].payload, b"PROXY TCP4 10.0.0.1 10.0.0.9 40000 80\r\n");
        assert_eq!(sent[1].payload, REQUEST);
        bench.finish();
        assert_eq!(record(&mut bench).peer(), None);
    }
}

#[test_case(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"; "LOCAL")]
#[test_case(b"\r\n\r\n\0\r\nQUIT\n\x20\x11\0\x0cabcdefghijkl"; "LOCAL with addresses")]
#[test_case(b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0"; "unspecified")]
#[test_case(b"PROXY UNKNOWN\r\n"; "version 1 UNKNOWN")]
fn a_header_without_addresses_leaves_the_connections_own(header: &[u8]) {
    let mut bench = bench_with(REQUIRED, "proxy_protocol = { send = \"v1\" }");
    let mut client = connected(&mut bench);
    let syn = only(client.send(&mut bench, &[header, REQUEST].concat()));
    let (_, sent) = Server::from_syn(&syn).accept(&mut bench);
    assert_eq!(sent[0].payload, b"PROXY TCP4 10.0.0.1 10.0.0.9 40000 80\r\n");
    assert_eq!(sent[1].payload, REQUEST);
    bench.finish();
    assert_eq!(record(&mut bench).client().to_string(), "10.0.0.1");
}

#[test]
fn only_the_first_of_two_headers_is_taken_off() {
    let mut bench = bench_with(REQUIRED, "");
    let mut client = connected(&mut bench);
    // The selector would refuse a stream that begins with "P"; so its own rule is met first.
    let second = [b"0 ", V1].concat();
    let syn = only(client.send(&mut bench, &[V1, &second].concat()));
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(&mut bench);
    assert_eq!(received(&mut server, &sent), second);
}

#[test]
fn a_health_check_that_says_no_more_than_its_header_is_answered_without_a_server() {
    let mut bench = required();
    let mut client = connected(&mut bench);
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    let last = client.segment(TcpFlags::PSH | TcpFlags::FIN, local);
    let fin = only(bench.receive(&last));
    assert_eq!(fin.flags, TcpFlags::FIN | TcpFlags::ACK);
    assert_eq!(fin.ack, client.seq.wrapping_add(local.len() as u32 + 1));
    (client.seq, client.ack) = (fin.ack, fin.seq.wrapping_add(1));
    nothing(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(record(&mut bench).cause(Side::Client), Cause::ActiveClose);
    bench.assert_all_returned();
}

#[test]
fn nothing_is_held_behind_the_fin_of_a_health_check() {
    let mut bench = required();
    let client = connected(&mut bench);
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    let beyond = Segment {
        seq: client.seq.wrapping_add(local.len() as u32 + 1),
        ..client.segment(TcpFlags::PSH, b"beyond the FIN")
    };
    nothing(bench.receive(&beyond));
    assert_eq!(bench.proxy.usage().held, 1);
    let fin = only(bench.receive(&client.segment(TcpFlags::PSH | TcpFlags::FIN, local)));
    assert_eq!(fin.flags, TcpFlags::FIN | TcpFlags::ACK);
    assert_eq!((bench.proxy.usage().connections, bench.proxy.usage().held), (1, 0));
    // The engine ends before our FIN is acknowledged: the number is the one behind it.
    let reset = only(bench.finish());
    assert_eq!(
        (reset.flags, reset.seq),
        (TcpFlags::RST | TcpFlags::ACK, fin.seq.wrapping_add(1))
    );
    bench.assert_all_returned();
}

fn handshake(listener: &str) -> Bench {
    let text = config(listener, "").replace(
        "rules = [{ first_number = true, pool = \"all\" }]\ndefault = \"reject\"\n\n[[pool]]\nname = \"all\"",
        "default = \"all\"\n\n[[pool]]\nname = \"all\"",
    );
    Bench::for_pools(&text)
}

#[test]
fn before_the_whole_header_no_server_is_called() {
    let mut bench = handshake(HANDSHAKE);
    let mut client = connected(&mut bench);
    for byte in &V1[..V1.len() - 1] {
        let ack = only(client.send(&mut bench, &[*byte]));
        assert_eq!((ack.to, ack.ack), (client.me, client.seq));
    }
    let sent = client.send(&mut bench, &V1[V1.len() - 1..]);
    assert_eq!((sent[0].to, sent[0].ack), (client.me, client.seq));
    let mut server = Server::from_syn(&sent[1]);
    let (_, held) = server.accept(&mut bench);
    assert_eq!(received(&mut server, &held), b"");
    let banner = only(server.send(&mut bench, b"220"));
    assert_eq!((banner.ack, banner.payload), (client.seq, b"220".to_vec()));
}

#[test]
fn a_silent_client_has_no_optional_header_when_its_time_is_over() {
    let text = "bind = \"handshake\"\nproxy_protocol = { accept = \"optional\", from = [\"10.0.0.1\"] }\n\
                timeouts = { select = \"2s\" }";
    let mut bench = handshake(text);
    connected(&mut bench);
    nothing(bench.wait(Duration::from_millis(1900)));
    Server::from_syn(&only(bench.wait(Duration::from_millis(200))));
    bench.finish();
    // With one it does not wait.
    let mut client = Client::new(40001);
    let mut bench = handshake(text);
    client.connect(&mut bench);
    let sent = client.send(&mut bench, V1);
    assert_eq!(sent.iter().filter(|segment| segment.flags == TcpFlags::SYN).count(), 1);
}
