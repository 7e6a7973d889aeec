//! Listeners that pass SYNs on and whose clients' streams begin with a PROXY header: the server waits for the client's ACK
//! until that is whole.

use crate::harness::{Bench, Client, SERVER_ISN, Server, bound_with_syn, nothing, only};
use crate::proxy_header_in::{V1, v2};
use crate::scribe;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::{Cause, RecordFlags, Side};
use proxy_protocol::{Parsed, Tlv, parse};
use proxyengine::callbacks::SelectServer;
use splice::drop_reason::DropReason;
use std::net::SocketAddr;
use std::time::Duration;
use testkit::Segment;

const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
const REQUEST: &[u8] = b"hello";

pub const REQUIRED: &str = "proxy_protocol = { accept = \"required\", from = [\"10.0.0.1\", \"fd00::/64\"] }";
pub const OPTIONAL: &str =
    "proxy_protocol = { accept = \"optional\", from = [\"10.0.0.1\"] }\ntimeouts = { select = \"2s\" }";
pub const OPTIONAL_STRANGERS: &str = "proxy_protocol = { accept = \"optional\", from = [\"10.0.0.2\"] }";
const SEND: &str = "proxy_protocol = { send = \"v2\", tlvs = [\"incoming\", \"unique_id\", \"crc32c\"] }";

fn text(listener: &str, pool: &str) -> String {
    bound_with_syn(listener).replace("name = \"all\"\n", &format!("name = \"all\"\n{pool}\n"))
}

pub fn bench(listener: &str, pool: &str) -> Bench {
    Bench::for_pools(&text(listener, pool))
}

/// A client that has got the server's SYN-ACK and has not answered.
fn answered_by<S: SelectServer>(bench: &mut Bench<S>, mut client: Client) -> (Client, Server) {
    let syn = only(bench.receive(&client.syn()));
    let mut server = Server::from_syn(&syn);
    let syn_ack = server.shake(bench, &mut client);
    assert_eq!(syn_ack.window, 16_384, "as much as is held before the header is whole");
    (client, server)
}

fn answered(bench: &mut Bench) -> (Client, Server) {
    answered_by(bench, Client::new(40000))
}

/// A client that has answered, of which the server knows nothing.
pub fn waiting(bench: &mut Bench) -> (Client, Server) {
    let (client, server) = answered(bench);
    nothing(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    (client, server)
}

/// The bytes that the server gets of these segments, when it acknowledges all of them at once.
#[track_caller]
fn received(server: &mut Server, sent: &[Segment]) -> Vec<u8> {
    let first = server.ack;
    let mut stream: Vec<u8> = Vec::new();
    for segment in sent.iter().filter(|segment| segment.to == server.me) {
        assert_eq!(segment.ack, server.seq, "it acknowledges the SYN: {segment:?}");
        let at = segment.seq.wrapping_sub(first) as usize;
        assert!(at <= stream.len(), "a gap before {segment:?}");
        let known = stream.len() - at;
        stream.extend(segment.payload.get(known..).unwrap_or_default());
    }
    server.ack = first.wrapping_add(stream.len() as u32);
    stream
}

/// The segments of `sent` that go to the client acknowledge no more than it has sent, and never less than before.
#[track_caller]
fn acknowledged(client: &Client, sent: &[Segment]) -> Option<u32> {
    let mut last = None;
    for ack in sent.iter().filter(|segment| segment.to == client.me) {
        assert_eq!((ack.flags, ack.seq, ack.payload.len()), (TcpFlags::ACK, client.ack, 0));
        assert!(ack.ack.wrapping_sub(client.seq) as i32 <= 0);
        assert_eq!(
            ack.options.timestamps.map(|(tsval, _)| tsval),
            Some(client.tsecr),
            "the server's clock goes on from here"
        );
        assert!(last.is_none_or(|last| ack.ack.wrapping_sub(last) as i32 >= 0));
        last = Some(ack.ack);
    }
    last
}

/// Header and request in these pieces lead to a server that gets the request alone behind our header, if it gets one.
#[track_caller]
fn passes_in_pieces(pool: &str, header: &[u8], cuts: &[usize]) {
    let mut bench = bench(REQUIRED, pool);
    let stream = [header, REQUEST].concat();
    let (mut client, mut server) = waiting(&mut bench);
    let mut sent = Vec::new();
    for (start, end) in [0].iter().chain(cuts).zip(cuts.iter().chain(&[stream.len()])) {
        let now = client.send(&mut bench, &stream[*start..*end]);
        let early = *end < header.len() && now.iter().any(|segment| segment.to == server.me);
        assert!(!early, "nothing passes before the whole header: {now:#?}");
        acknowledged(&client, &now);
        sent.extend(now);
    }
    assert_eq!(
        sent.iter().find(|s| s.to == server.me).map(|s| s.payload.len()),
        Some(0)
    );
    let mut got = received(&mut server, &sent);
    if !pool.is_empty() {
        let Ok(Parsed::Complete { header: ours, length }) = parse(&got) else {
            panic!("no header: {got:02x?}")
        };
        let Ok(Parsed::Complete { header: theirs, .. }) = parse(header) else {
            panic!("the test's own header")
        };
        assert_eq!(
            (ours.source(), ours.destination()),
            (theirs.source(), theirs.destination())
        );
        assert_eq!(ours.tlvs.find(0x02), theirs.tlvs.find(0x02));
        got.drain(..length);
    }
    assert_eq!(got, REQUEST, "cut at {cuts:?}");
    let answer = only(server.send(&mut bench, b"answer"));
    assert_eq!((answer.ack, answer.seq), (client.seq, client.ack), "cut at {cuts:?}");
    client.ack = client.ack.wrapping_add(6);
    let more = only(client.send(&mut bench, b"more"));
    assert_eq!((more.seq, more.ack), (server.ack, server.seq));
    bench.finish();
    let record = bench.records()[0];
    let named = if header.starts_with(b"PROXY") {
        "192.0.2.7"
    } else {
        "2001:db8::7"
    };
    assert_eq!(record.client().to_string(), named);
    assert_eq!(
        record.peer().map(|(ip, port)| SocketAddr::new(ip, port)),
        Some("10.0.0.1:40000".parse().expect("one"))
    );
    assert!(record.flags().contains(RecordFlags::PROXY_IN));
    bench.assert_all_returned();
}

#[test]
fn a_header_is_taken_off_wherever_it_is_cut() {
    for pool in ["", SEND] {
        for header in [V1.to_vec(), v2(&[]), v2(&[Tlv::Authority(b"a.test")])] {
            let length = header.len() + REQUEST.len();
            passes_in_pieces(pool, &header, &[]);
            for cut in 1..length {
                passes_in_pieces(pool, &header, &[cut]);
            }
            let every: Vec<usize> = (1..length).collect();
            passes_in_pieces(pool, &header, &every);
        }
    }
}

#[test]
fn a_server_that_speaks_first_does_so_behind_the_header() {
    for pool in ["", "proxy_protocol = { send = \"v1\" }"] {
        let mut bench = bench(REQUIRED, pool);
        let (mut client, mut server) = waiting(&mut bench);
        // It waits for the client's ACK, and repeats what it waits for: the client has had that.
        nothing(bench.receive(&server.syn_ack()));
        nothing(bench.receive(&server.segment(TcpFlags::PSH, b"220 too early")));
        assert_eq!(bench.dropped(DropReason::NotAnAnswer), 1);
        let sent = client.send(&mut bench, V1);
        assert_eq!(
            acknowledged(&client, &sent),
            Some(client.seq),
            "nobody else knows of it"
        );
        let expected = if pool.is_empty() { &b""[..] } else { V1 };
        let start = server.ack;
        assert_eq!(received(&mut server, &sent), expected);
        if !pool.is_empty() {
            // Lost: nobody but us can send it again.
            let again = only(bench.wait(Duration::from_millis(1100)));
            assert_eq!((again.seq, again.payload.as_slice()), (start, V1));
            nothing(bench.receive(&server.segment(TcpFlags::ACK, b"")));
        }
        let banner = only(server.send(&mut bench, b"220 ready"));
        assert_eq!(
            (banner.payload.as_slice(), banner.seq, banner.ack),
            (&b"220 ready"[..], client.ack, client.seq)
        );
        let (tsval, echo) = banner.options.timestamps.expect("timestamps");
        assert_eq!((tsval, echo), (client.tsecr, 500));
        client.ack = client.ack.wrapping_add(9);
        let hello = only(client.send(&mut bench, b"HELO"));
        assert_eq!((hello.seq, hello.ack), (server.ack, server.seq));
        bench.finish();
        bench.assert_all_returned();
    }
}

#[test]
fn our_ack_of_the_syn_is_repeated_when_the_server_asks() {
    let mut bench = bench(REQUIRED, "");
    let (mut client, server) = waiting(&mut bench);
    let sent = client.send(&mut bench, V1);
    assert_eq!(sent.len(), 2);
    let ack = only(bench.receive(&server.syn_ack()));
    assert_eq!((ack.to, ack.seq, ack.ack), (server.me, server.ack, server.seq));
}

#[test]
fn the_acks_place_may_be_taken_by_the_header() {
    // The third ACK was lost.
    let mut bench = bench(REQUIRED, "");
    let (mut client, mut server) = answered(&mut bench);
    let sent = client.send(&mut bench, &[V1, REQUEST].concat());
    assert_eq!(received(&mut server, &sent), REQUEST);
    bench.finish();
    // The header as well: what is behind it waits for it.
    let mut bench = self::bench(REQUIRED, "");
    let (mut client, mut server) = answered(&mut bench);
    let first = client.segment(TcpFlags::PSH, V1);
    client.seq = client.seq.wrapping_add(V1.len() as u32);
    nothing(client.send(&mut bench, REQUEST));
    let sent = bench.receive(&first);
    assert_eq!(received(&mut server, &sent), REQUEST);
    assert_eq!(only(server.send(&mut bench, b"x")).ack, client.seq);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn pieces_out_of_order_overlapping_and_repeated_make_one_header() {
    let mut bench = bench(REQUIRED, SEND);
    let (client, mut server) = waiting(&mut bench);
    let stream = [V1, REQUEST].concat();
    let piece = |range: std::ops::Range<usize>| Segment {
        seq: client.seq.wrapping_add(range.start as u32),
        ..client.segment(TcpFlags::PSH, &stream[range])
    };
    nothing(bench.receive(&piece(30..stream.len())));
    nothing(bench.receive(&piece(10..20)));
    let ack = only(bench.receive(&piece(0..10)));
    assert_eq!((ack.to, ack.ack), (client.me, client.seq.wrapping_add(20)));
    // A part of it that is acknowledged comes again, alone and with what follows.
    assert_eq!(only(bench.receive(&piece(0..15))).ack, client.seq.wrapping_add(20));
    assert_eq!(only(bench.receive(&piece(5..25))).ack, client.seq.wrapping_add(25));
    let sent = bench.receive(&piece(0..stream.len()));
    let got = received(&mut server, &sent);
    assert!(got.ends_with(REQUEST) && got.starts_with(b"\r\n\r\n\0"));
    assert_eq!(
        only(server.send(&mut bench, b"x")).ack,
        client.seq.wrapping_add(stream.len() as u32)
    );
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn a_header_that_the_client_repeats_never_takes_the_place_of_ours() {
    for (pool, has_ours) in [("", false), (SEND, true)] {
        let mut bench = bench(REQUIRED, pool);
        let (mut client, mut server) = waiting(&mut bench);
        let start = server.ack;
        let sent = client.send(&mut bench, &[V1, REQUEST].concat());
        let whole = received(&mut server, &sent);
        server.ack = start;
        // All of it was lost behind us, and the client repeats all that it has sent.
        let again = Segment {
            seq: client.seq.wrapping_sub((V1.len() + REQUEST.len()) as u32),
            ..client.segment(TcpFlags::PSH, &[V1, REQUEST].concat())
        };
        let passed = only(bench.receive(&again));
        if !has_ours {
            // It knows by the number that the first bytes are not its own.
            let first = server.ack.wrapping_sub(V1.len() as u32);
            assert_eq!((passed.to, passed.seq), (server.me, first));
            continue;
        }
        let first = client.seq.wrapping_sub(REQUEST.len() as u32);
        assert_eq!((passed.to, passed.ack), (client.me, first));
        let rest = Segment {
            seq: first,
            ..client.segment(TcpFlags::PSH, REQUEST)
        };
        let sent = bench.receive(&rest);
        assert_eq!(received(&mut server, &sent), whole);
    }
}

#[test]
fn no_window_edge_moves_to_the_left() {
    // The server offers little, and our header takes its part of that.
    let mut bench = bench(REQUIRED, SEND);
    let mut client = Client::new(40000);
    let syn = only(bench.receive(&client.syn()));
    let mut server = Server::from_syn(&syn);
    let syn_ack = only(bench.receive(&Segment {
        window: 1280,
        ..server.syn_ack()
    }));
    assert_eq!(syn_ack.window, 1280);
    server.seq = server.isn.wrapping_add(1);
    client.take_syn_ack(&syn_ack);
    let told = client.seq.wrapping_add(1280);
    nothing(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    let edge = |segment: &Segment| segment.ack.wrapping_add(u32::from(segment.window) << 7);
    let mut sent = Vec::new();
    for byte in V1 {
        sent.extend(client.send(&mut bench, &[*byte]));
    }
    let acks: Vec<u32> = sent.iter().filter(|s| s.to == client.me).map(edge).collect();
    assert_eq!(acks.len(), V1.len());
    assert!(
        acks.is_sorted() && acks[0].wrapping_sub(told) as i32 >= -127,
        "{acks:?} {told}"
    );
    let ours = received(&mut server, &sent).len() as u32;
    // The server's window still ends where it did.
    let window = (1280 - ours) >> 7;
    let last = acks[acks.len() - 1];
    for window in [window, window, 20] {
        let said = Segment {
            window: window as u16,
            ..server.segment(TcpFlags::PSH, b"x")
        };
        server.seq = server.seq.wrapping_add(1);
        let passed = only(bench.receive(&said));
        assert!(edge(&passed).wrapping_sub(last) as i32 >= 0, "{passed:?}");
    }
}

#[test]
fn without_scaling_sack_and_timestamps_it_is_the_same() {
    let mut bench = bench(REQUIRED, "");
    let client = Client::new(40000);
    let bare = |segment: Segment| Segment {
        options: TcpOptions::NONE,
        ..segment
    };
    let syn = only(bench.receive(&bare(client.syn())));
    let mut server = Server::from_syn(&syn);
    server.options = TcpOptions::NONE;
    let syn_ack = only(bench.receive(&server.syn_ack()));
    server.seq = SERVER_ISN.wrapping_add(1);
    let mut client = Client {
        seq: syn_ack.ack,
        ack: syn_ack.seq.wrapping_add(1),
        ..client
    };
    let (first, rest) = V1.split_at(10);
    let ack = only(bench.receive(&bare(client.segment(TcpFlags::PSH, first))));
    assert_eq!((ack.window, ack.options), (16_384 - 10, TcpOptions::NONE));
    client.seq = client.seq.wrapping_add(10);
    let sent = bench.receive(&bare(client.segment(TcpFlags::PSH, &[rest, REQUEST].concat())));
    assert!(sent.iter().all(|segment| segment.options == TcpOptions::NONE));
    assert_eq!(received(&mut server, &sent), REQUEST);
}

#[test]
fn a_health_check_asks_the_server() {
    for (last, rest) in [(LOCAL.to_vec(), &b""[..]), ([LOCAL, b"bye"].concat(), b"bye")] {
        let mut bench = bench(REQUIRED, "");
        let (client, mut server) = waiting(&mut bench);
        let sent = bench.receive(&client.segment(TcpFlags::PSH | TcpFlags::FIN, &last));
        assert_eq!(received(&mut server, &sent), rest);
        assert!(sent.last().expect("a FIN").flags.contains(TcpFlags::FIN));
        server.ack = server.ack.wrapping_add(1);
        let fin = only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
        let end = client.seq.wrapping_add(last.len() as u32 + 1);
        assert_eq!(
            (fin.to, fin.ack),
            (client.me, end),
            "it covers all that the client has sent"
        );
        let ack = Segment {
            seq: end,
            ack: fin.seq.wrapping_add(1),
            ..client.segment(TcpFlags::ACK, b"")
        };
        only(bench.receive(&ack));
        let record = bench.records()[0];
        assert_eq!(record.cause(Side::Client), Cause::ActiveClose);
        assert_eq!(record.client().to_string(), "10.0.0.1");
        bench.assert_all_returned();
    }
}

#[test]
fn without_a_header_an_optional_connection_passes_as_it_is() {
    for listener in [OPTIONAL, OPTIONAL_STRANGERS] {
        let mut bench = bench(listener, "proxy_protocol = { send = \"v1\" }");
        let (mut client, mut server) = waiting(&mut bench);
        let sent = client.send(&mut bench, b"HELO");
        assert_eq!(
            received(&mut server, &sent),
            b"PROXY TCP4 10.0.0.1 10.0.0.9 40000 80\r\nHELO"
        );
        bench.finish();
        assert_eq!(bench.records()[0].peer(), None);
        bench.assert_all_returned();
    }
}

#[test]
fn bytes_that_were_acknowledged_before_they_proved_to_be_payload_are_ours_to_repeat() {
    let mut bench = bench(OPTIONAL, "");
    let (mut client, mut server) = waiting(&mut bench);
    let ack = only(client.send(&mut bench, b"\r\n"));
    assert_eq!((ack.to, ack.ack), (client.me, client.seq));
    let start = server.ack;
    let sent = client.send(&mut bench, b"EHLO");
    assert_eq!(received(&mut server, &sent), b"\r\nEHLO");
    let again = only(bench.wait(Duration::from_millis(1100)));
    assert_eq!((again.seq, again.payload.as_slice()), (start, &b"\r\n"[..]));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn a_silent_client_has_no_optional_header_when_its_time_is_over() {
    let mut bench = bench(OPTIONAL, "");
    let (client, mut server) = waiting(&mut bench);
    nothing(bench.wait(Duration::from_millis(1900)));
    let ack = only(bench.wait(Duration::from_millis(200)));
    assert_eq!((ack.to, ack.flags), (server.me, TcpFlags::ACK));
    assert_eq!((ack.seq, ack.ack), (server.ack, server.seq));
    let banner = only(server.send(&mut bench, b"220"));
    assert_eq!((banner.seq, banner.ack), (client.ack, client.seq));
    // One that closes its side at once is one without.
    let (other, server) = answered_by(&mut bench, Client::new(40001));
    let sent = bench.receive(&other.segment(TcpFlags::FIN, b""));
    let fin = sent.last().expect("a FIN");
    assert_eq!((fin.to, fin.seq), (server.me, server.ack));
    assert!(fin.flags.contains(TcpFlags::FIN));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn ecn_is_not_agreed_on_over_bytes_that_end_here() {
    let mut bench = bench(REQUIRED, "");
    let syn = only(bench.receive(&Segment {
        flags: TcpFlags::SYN | TcpFlags::ECE | TcpFlags::CWR,
        ..Client::new(40000).syn()
    }));
    assert_eq!(syn.flags, TcpFlags::SYN);
}

#[test]
fn past_the_mark_headers_are_taken_behind_a_cookie() {
    let mut bench = bench(REQUIRED, SEND);
    let clients: Vec<_> = (0..13_u16).map(|n| Client::new(1000 + n)).collect();
    let mut answers = Vec::new();
    for client in &clients {
        answers.push(only(bench.receive(&client.syn())));
    }
    let mut late = Client::new(1012);
    late.take_syn_ack(&answers[12]);
    nothing(bench.receive(&late.segment(TcpFlags::ACK, b"")));
    let sent = late.send(&mut bench, &[V1, REQUEST].concat());
    let mut server = Server::from_syn(&only(sent));
    let (_, sent) = server.accept(&mut bench);
    assert!(received(&mut server, &sent).ends_with(REQUEST));
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn all_of_it_over_ipv6_whatever_the_header_names() {
    for (header, named) in [(v2(&[]), "2001:db8::7"), (V1.to_vec(), "192.0.2.7")] {
        let mut bench = bench(REQUIRED, "");
        let (mut client, mut server) = answered_by(&mut bench, Client::new_v6(40000));
        nothing(bench.receive(&client.segment(TcpFlags::ACK, b"")));
        let sent = client.send(&mut bench, &[&header[..], REQUEST].concat());
        assert_eq!(received(&mut server, &sent), REQUEST);
        assert_eq!(only(server.send(&mut bench, b"x")).ack, client.seq);
        bench.finish();
        assert_eq!(bench.records()[0].client().to_string(), named);
    }
}

#[test]
fn a_longest_header_is_held_and_a_second_one_is_payload() {
    let mut bench = bench(REQUIRED, "");
    let (mut client, mut server) = waiting(&mut bench);
    let header = v2(&[Tlv::Netns(&[b'n'; 3000])]);
    let stream = [&header[..], V1, REQUEST].concat();
    let mut sent = Vec::new();
    for piece in stream.chunks(1400) {
        sent.extend(client.send(&mut bench, piece));
    }
    assert_eq!(received(&mut server, &sent), [V1, REQUEST].concat());
}

#[test]
fn an_inspector_is_told_whom_the_header_named_and_shown_what_is_behind_it() {
    let config = text(REQUIRED, "proxy_protocol = { send = \"v1\" }");
    for (port, inspected) in [(5000, 1), (scribe::UNWANTED, 0)] {
        let (mut bench, scribe) = scribe::bench_with(&config, |_| {}, "");
        let (mut client, mut server) = answered_by(&mut bench, Client::new(40000));
        nothing(bench.receive(&client.segment(TcpFlags::ACK, b"")));
        let header = format!("PROXY TCP4 192.0.2.7 198.51.100.9 {port} 80\r\n");
        let stream = [header.as_bytes(), b"0 hello"].concat();
        let sent = client.send(&mut bench, &stream);
        assert_eq!(received(&mut server, &sent), stream);
        assert_eq!(bench.proxy.usage().inspected, inspected);
        let shown: Vec<Vec<u8>> = scribe.calls().into_iter().map(|call| call.2).collect();
        assert_eq!(shown, vec![b"0 hello".to_vec(); inspected]);
        let answer = only(server.send(&mut bench, b"answer"));
        assert_eq!((answer.ack, answer.payload), (client.seq, b"answer".to_vec()));
        bench.finish();
        bench.assert_all_returned();
    }
}

/// A server's SYN-ACK that is passed on with a closed window: the ACK of the header opens it, and the client hears of that.
#[test]
fn the_ack_of_a_header_that_opens_the_window_is_passed_on() {
    let mut bench = bench("", "proxy_protocol = { send = \"v1\" }");
    let mut client = Client::new(40000);
    let mut server = Server::from_syn(&only(bench.receive(&client.syn())));
    let shut = Segment {
        window: 0,
        ..server.syn_ack()
    };
    let syn_ack = only(bench.receive(&shut));
    assert_eq!(syn_ack.window, 0);
    client.take_syn_ack(&syn_ack);
    server.seq = server.seq.wrapping_add(1);
    let sent = bench.receive(&client.segment(TcpFlags::ACK, b""));
    received(&mut server, &sent);
    let opens = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!((opens.to, opens.ack), (client.me, client.seq));
    assert!(opens.window > 0);
}
