//! The PROXY header towards servers: a segment of its own, ours until it is acknowledged, unseen by the client.

use crate::harness::{Bench, CONFIG, Client, Server, nothing, only};
use e2d2::wire::tcp::TcpFlags;
use proxy_protocol::{Parsed, Tlv, Version, parse};
use splice::drop_reason::DropReason;
use splice::settings::Settings;
use std::time::Duration;
use testkit::Segment;

fn config(proxy_protocol: &str) -> String {
    CONFIG.replace(
        "name = \"all\"\n",
        &format!("name = \"all\"\nproxy_protocol = {proxy_protocol}\n"),
    )
}

fn bench(proxy_protocol: &str) -> Bench {
    Bench::with_config(&config(proxy_protocol))
}

/// A spliced connection, the header that the server got, and what came behind it.
fn announced(bench: &mut Bench, payload: &[u8]) -> (Client, Server, Segment, Vec<Segment>) {
    let mut client = Client::new(40000);
    client.connect(bench);
    let syn = only(client.send(bench, payload));
    let mut server = Server::from_syn(&syn);
    let (_, mut sent) = server.accept(bench);
    let header = sent.remove(0);
    (client, server, header, sent)
}

#[test]
fn version_1_names_client_and_listener() {
    let mut bench = bench("{ send = \"v1\" }");
    let (_, server, header, rest) = announced(&mut bench, b"0 hello");
    assert_eq!(header.payload, b"PROXY TCP4 10.0.0.1 10.0.0.9 40000 80\r\n");
    assert_eq!(header.seq, server.ack);
    let request = only(rest);
    assert_eq!(request.payload, b"0 hello");
    assert_eq!(request.seq, server.ack.wrapping_add(header.payload.len() as u32));
}

/// A connection that has its header goes on behind it; one whose server has not accepted yet gets that of now.
#[test]
fn another_version_of_the_file_says_what_the_next_header_is() {
    let mut bench = bench("{ send = \"v1\" }");
    let (mut first, mut of_first, header, rest) = announced(&mut bench, b"0 hello");
    let length = header.payload.len() + only(rest).payload.len();
    of_first.ack = of_first.ack.wrapping_add(length as u32);
    bench.receive(&of_first.segment(TcpFlags::ACK, b""));
    let mut second = Client::new(40001);
    second.connect(&mut bench);
    let mut of_second = Server::from_syn(&only(second.send(&mut bench, b"0 hello")));

    bench.reload(&config("{ send = \"v2\" }"), |_| None);
    let (_, sent) = of_second.accept(&mut bench);
    let Ok(Parsed::Complete { header, .. }) = parse(&sent[0].payload) else {
        panic!("{sent:?}");
    };
    assert_eq!(header.version, Version::V2);
    let more = only(first.send(&mut bench, b"more"));
    assert_eq!((more.payload.as_slice(), more.seq), (&b"more"[..], of_first.ack));
    bench.reload(&config("{ send = \"off\" }"), |_| None);
    of_first.ack = of_first.ack.wrapping_add(4);
    let answer = only(of_first.send(&mut bench, b"reply"));
    assert_eq!((answer.payload.as_slice(), answer.ack), (&b"reply"[..], first.seq));
}

/// A header costs no packet where it fits; what is lost of the two is repeated by whom it belongs to.
#[test]
fn header_and_request_share_a_segment_if_they_fit() {
    for (length, segments) in [(1, 1), (1421 - 12, 1), (1422 - 12, 2)] {
        let mut bench = bench("{ send = \"v1\" }");
        let mut client = Client::new(40000);
        client.connect(&mut bench);
        let payload = [b"0", &vec![b'x'; length - 1][..]].concat();
        let syn = only(client.send(&mut bench, &payload));
        let mut sent = bench.receive(&Server::from_syn(&syn).syn_ack());
        sent.remove(0);
        let header = b"PROXY TCP4 10.0.0.1 10.0.0.9 40000 80\r\n";
        assert_eq!(header.len(), 39);
        assert_eq!(sent.len(), segments, "{length} bytes of 1448 less 39");
        let stream: Vec<u8> = sent.iter().flat_map(|segment| segment.payload.clone()).collect();
        assert_eq!(stream, [&header[..], &payload].concat());
        // Lost, both: the header is ours to repeat, the request the client's.
        let again = only(bench.wait(Duration::from_millis(1_200)));
        assert_eq!(again.payload, header);
        client.seq = client.seq.wrapping_sub(length as u32);
        let again = client.send(&mut bench, &payload);
        let again: Vec<_> = again
            .iter()
            .map(|segment| (segment.seq, &segment.payload[..]))
            .collect();
        let first = syn.seq.wrapping_add(1);
        assert_eq!(again, [(first, &header[..]), (first.wrapping_add(39), &payload[..])]);
    }
}

/// What cannot be repeated is sent once: most likely the server gets it. And no header takes the place of another.
#[test]
fn a_header_that_there_is_no_room_to_keep_is_sent_all_the_same() {
    let text = CONFIG.replace(
        "name = \"all\"\n",
        "name = \"all\"\nproxy_protocol = { send = \"v1\" }\n",
    );
    let few = |settings: &mut Settings| settings.capacity.rtx_queues = 3;
    let mut bench = Bench::make_with(&text, false, few, |selector| selector);
    let header = |port: u16| format!("PROXY TCP4 10.0.0.1 10.0.0.9 {port} 80\r\n").into_bytes();
    let accept = |bench: &mut Bench, port: u16| {
        let mut client = Client::new(port);
        client.connect(bench);
        let mut server = Server::from_syn(&only(client.send(bench, b"0 hello")));
        let (_, sent) = server.accept(bench);
        assert_eq!(
            (&sent[0].payload, &sent[1].payload[..]),
            (&header(port), &b"0 hello"[..])
        );
        server.ack = server.ack.wrapping_add(sent[0].payload.len() as u32 + 7);
        server
    };
    let mut servers: Vec<Server> = (40000..40005).map(|port| accept(&mut bench, port)).collect();
    assert_eq!(
        (bench.proxy.usage().rtx_queues, bench.dropped(DropReason::RtxFull)),
        (3, 2)
    );
    // The second is acknowledged; the sixth has its room.
    only(servers[1].send(&mut bench, b"answer"));
    accept(&mut bench, 40005);
    assert_eq!(
        (bench.proxy.usage().rtx_queues, bench.dropped(DropReason::RtxFull)),
        (3, 2)
    );
    let mut again: Vec<_> = bench
        .wait(Duration::from_millis(1_100))
        .into_iter()
        .map(|sent| sent.payload)
        .collect();
    again.sort();
    assert_eq!(again, [40000, 40002, 40005].map(header));
    bench.finish();
    bench.assert_all_returned();
}

/// Else the server's PAWS check would drop the request that follows (RFC 7323 5.3).
#[test]
fn the_header_is_no_newer_than_the_request_behind_it() {
    let mut bench = bench("{ send = \"v1\" }");
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"0 hello"));
    bench.wait(Duration::from_millis(300));
    let (_, sent) = Server::from_syn(&syn).accept(&mut bench);
    let value = |segment: &Segment| segment.options.timestamps.expect("timestamps were agreed").0;
    let [header, request] = &sent[..] else {
        panic!("the header and the request: {sent:?}")
    };
    assert!(
        value(request).wrapping_sub(value(header)).cast_signed() >= 0,
        "{header:?} {request:?}"
    );
    let again = bench.wait(Duration::from_millis(1_500));
    assert!(
        !again.is_empty() && again.iter().all(|again| value(again) == value(header)),
        "{again:?}"
    );
}

#[test]
fn version_2_carries_the_wanted_fields() {
    let mut bench = bench("{ send = \"v2\", tlvs = [\"unique_id\", \"crc32c\", \"authority\"] }");
    let (_, _, header, _) = announced(&mut bench, b"0 hello");
    let Ok(Parsed::Complete { header: parsed, length }) = parse(&header.payload) else {
        panic!("not a header: {:02x?}", header.payload)
    };
    assert_eq!((parsed.version, length), (Version::V2, header.payload.len()));
    assert_eq!(parsed.source(), Some("10.0.0.1:40000".parse().expect("address")));
    assert_eq!(parsed.destination(), Some("10.0.0.9:80".parse().expect("address")));
    let id = parsed.tlvs.iter().find_map(|tlv| match tlv {
        Tlv::UniqueId(id) => Some(id.to_vec()),
        _ => None,
    });
    assert_eq!(
        id,
        Some(format!("00{:016x}{:04x}", bench.now.as_nanos(), 40000).into_bytes())
    );
    assert_eq!(
        parsed
            .tlvs
            .iter()
            .filter(|tlv| matches!(tlv, Tlv::Authority(_)))
            .count(),
        0,
        "the client speaks no TLS"
    );
}

#[test]
fn the_client_never_sees_the_header() {
    let mut bench = bench("{ send = \"v2\" }");
    let (client, mut server, header, _) = announced(&mut bench, b"0 hello");
    let length = header.payload.len() as u32;
    // An ACK of the header alone, or of a part of it, is news to nobody.
    let first = server.ack;
    for part in [1, length - 1, length] {
        server.ack = first.wrapping_add(part);
        nothing(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    }
    server.ack = first.wrapping_add(length + 7);
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!((ack.ack, ack.seq), (client.seq, client.ack));
    let answer = only(server.send(&mut bench, b"answer"));
    assert_eq!((answer.ack, answer.seq), (client.seq, client.ack));
    assert_eq!(bench.proxy.usage().rtx_queues, 0);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn data_that_overtakes_the_acknowledgement_of_the_header_is_held_up_at_the_first_byte() {
    let mut bench = bench("{ send = \"v2\" }");
    let (client, mut server, _, _) = announced(&mut bench, b"0 hello");
    // A server that speaks before it has read anything.
    let banner = only(server.send(&mut bench, b"banner"));
    assert_eq!(banner.ack, client.seq.wrapping_sub(7));
    assert_eq!(banner.payload, b"banner");
}

#[test]
fn a_lost_header_is_repeated_by_time_until_it_is_acknowledged() {
    let mut bench = bench("{ send = \"v1\" }");
    let (_, mut server, header, _) = announced(&mut bench, b"0 hello");
    let again = only(bench.wait(Duration::from_millis(1100)));
    assert_eq!((again.payload.clone(), again.seq), (header.payload.clone(), header.seq));
    let again = only(bench.wait(Duration::from_millis(2100)));
    assert_eq!(again.payload, header.payload);
    server.ack = server.ack.wrapping_add(header.payload.len() as u32 - 3);
    nothing(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    let rest = only(bench.wait(Duration::from_millis(1100)));
    assert_eq!(rest.payload, &header.payload[header.payload.len() - 3..]);
    server.ack = server.ack.wrapping_add(3);
    nothing(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    nothing(bench.wait(Duration::from_secs(100)));
}

#[test]
fn a_lost_header_is_repeated_with_the_clients_first_bytes() {
    let mut bench = bench("{ send = \"v1\" }");
    let (client, _, header, _) = announced(&mut bench, b"0 hello");
    let repeated = Segment {
        seq: client.seq.wrapping_sub(7),
        ..client.segment(TcpFlags::PSH, b"0 hello")
    };
    let sent = bench.receive(&repeated);
    assert_eq!(sent.len(), 2);
    assert_eq!(
        (&sent[0].payload, &sent[1].payload[..]),
        (&header.payload, &b"0 hello"[..])
    );
}

#[test]
fn three_duplicate_acks_bring_the_header_at_once() {
    let mut bench = bench("{ send = \"v1\" }");
    let (_, server, header, _) = announced(&mut bench, b"0 hello");
    let mut repeated = Vec::new();
    for _ in 0..3 {
        repeated.extend(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    }
    assert_eq!(only(repeated).payload, header.payload);
}

/// RFC 5681 2: a duplicate ACK has the window of the ACK before it.
#[test]
fn window_updates_do_not_bring_the_header() {
    let mut bench = bench("{ send = \"v1\" }");
    let (_, server, header, _) = announced(&mut bench, b"0 hello");
    let with_window = |window: u16| Segment {
        window,
        ..server.segment(TcpFlags::ACK, b"")
    };
    for window in [509, 600, 700, 800, 900] {
        nothing(bench.receive(&with_window(window)));
    }
    nothing(bench.receive(&with_window(900)));
    assert_eq!(only(bench.receive(&with_window(900))).payload, header.payload);
}

/// RFC 9293 3.1: without its flag the acknowledgement field says nothing.
#[test]
fn a_rst_without_ack_acknowledges_nothing() {
    let mut bench = bench("{ send = \"v1\" }");
    let (_, server, header, _) = announced(&mut bench, b"0 hello");
    // In the window, but not the next number: the connection goes on (RFC 5961 3.2).
    let reset = Segment {
        flags: TcpFlags::RST,
        seq: server.seq.wrapping_add(1),
        ack: server.ack.wrapping_add(header.payload.len() as u32 + 7),
        ..server.segment(TcpFlags::RST, b"")
    };
    bench.receive(&reset);
    assert_eq!(bench.proxy.usage().rtx_queues, 1);
    let again = bench.wait(Duration::from_millis(1_100));
    assert!(again.iter().any(|again| again.payload == header.payload), "{again:?}");
}

#[test]
fn a_server_that_never_takes_the_header_is_given_up() {
    let mut bench = bench("{ send = \"v1\" }");
    let (client, _, header, _) = announced(&mut bench, b"0 hello");
    let sent = bench.wait(Duration::from_secs(300));
    let is_reset = |segment: &&Segment| segment.flags.contains(TcpFlags::RST);
    assert_eq!(
        sent.iter()
            .filter(is_reset)
            .filter(|reset| reset.to == client.me)
            .count(),
        1
    );
    // The server has acknowledged nothing: its next number is the header's, unless its ACK is on the way.
    let to_server = sent.iter().filter(is_reset).filter(|reset| reset.to != client.me);
    let behind = header.seq.wrapping_add(header.payload.len() as u32 + 7);
    assert_eq!(
        to_server.map(|reset| reset.seq).collect::<Vec<_>>(),
        [behind, header.seq]
    );
    assert_eq!(
        bench.records()[0].cause(netfcts::Side::Client),
        netfcts::record::Cause::RetransmitLimit
    );
    bench.assert_all_returned();
}

/// RFC 9293 3.8.6.1: a connection whose receiver answers probes of its closed window stays open.
#[test]
fn a_server_that_answers_with_a_closed_window_is_not_given_up() {
    let mut bench = bench("{ send = \"v1\" }");
    let (client, server, header, _) = announced(&mut bench, b"0 hello");
    let closed = Segment {
        window: 0,
        ..server.segment(TcpFlags::ACK, b"")
    };
    for _ in 0..600 {
        for sent in bench.wait(Duration::from_secs(1)) {
            assert!(!sent.flags.contains(TcpFlags::RST), "{sent:?}");
            if sent.to == header.to {
                bench.receive(&closed);
            }
        }
        // The client is there.
        bench.receive(&client.segment(TcpFlags::ACK, b""));
    }
    assert_eq!(bench.proxy.usage().connections, 1);
}

#[test]
fn a_request_that_needed_more_follows_the_header_and_both_are_ours() {
    let mut bench = bench("{ send = \"v1\" }");
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    only(client.send(&mut bench, b"?half"));
    let syn = only(client.send(&mut bench, b" and half\n"));
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(&mut bench);
    assert_eq!(sent.iter().map(|s| s.payload.len()).collect::<Vec<_>>(), [39, 15]);
    let again = bench.wait(Duration::from_millis(1100));
    assert_eq!(again.len(), 2);
    assert_eq!(
        (again[0].payload.len(), again[1].payload.as_slice()),
        (39, &b"?half"[..])
    );
    server.ack = server.ack.wrapping_add(39 + 15);
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(ack.ack, client.seq);
    assert_eq!((bench.proxy.usage().rtx_queues, bench.proxy.usage().held), (0, 0));
}
