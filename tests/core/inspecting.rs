//! Inspectors: each byte shown once and in order, and whatever they make of it arrives whole.

use crate::harness::{CONFIG, Client, Server, bound_with_syn, nothing, only};
use crate::scribe::{KEEPABLE, UNWANTED, bench, bench_with, connect, payloads, settled, take};
use e2d2::wire::tcp::TcpFlags;
use proxyengine::callbacks::Towards;
use splice::drop_reason::DropReason;
use std::time::Duration;
use testkit::Segment;

#[test]
fn what_passes_is_shown_once_with_its_place_and_costs_nothing() {
    let (mut bench, scribe) = bench();
    let (mut client, mut server) = settled(&mut bench, b"0 hello");
    let request = only(client.send(&mut bench, b"more"));
    assert_eq!((request.seq, request.payload.as_slice()), (server.ack, &b"more"[..]));
    let answer = only(server.send(&mut bench, b"answer"));
    assert_eq!((answer.seq, answer.ack), (client.ack, client.seq.wrapping_sub(4)));
    assert_eq!(
        scribe.calls(),
        [
            (Towards::Server, 0, b"0 hello".to_vec(), false),
            (Towards::Server, 7, b"more".to_vec(), false),
            (Towards::Client, 0, b"answer".to_vec(), false),
        ]
    );
    let usage = bench.proxy.usage();
    assert_eq!((usage.inspected, usage.kept, scribe.open()), (1, 0, 1));
    bench.finish();
    assert_eq!(scribe.open(), 0, "the context goes with the connection");
    bench.assert_all_returned();
}

#[test]
fn an_unwanted_connection_is_an_ordinary_one() {
    let (mut bench, scribe) = bench();
    let (_, mut server, sent) = connect(&mut bench, UNWANTED, b"0+hello");
    assert_eq!(take(&mut server, &sent), b"0+hello");
    assert_eq!((bench.proxy.usage().inspected, scribe.calls()), (0, vec![]));
}

#[test]
fn a_first_payload_may_grow_and_is_acknowledged_only_whole() {
    let (mut bench, scribe) = bench();
    let (client, mut server, sent) = connect(&mut bench, 40000, b"0+hello");
    assert_eq!(only(sent.clone()).payload, b"0+hello0+hello");
    let first = client.seq.wrapping_sub(7);
    // An ACK inside the changed bytes covers none of the client's; the window is less by what was added.
    let start = server.ack;
    for part in [1, 7, 13] {
        server.ack = start.wrapping_add(part);
        for ack in bench.receive(&server.segment(TcpFlags::ACK, b"")) {
            assert_eq!(ack.ack, first);
        }
    }
    let answer = only(server.send(&mut bench, b"early answer"));
    assert_eq!((answer.ack, answer.payload.as_slice()), (first, &b"early answer"[..]));
    server.ack = start.wrapping_add(14);
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!((ack.ack, ack.window), (client.seq, KEEPABLE));
    assert_eq!(scribe.calls().len(), 2);
    assert_eq!(bench.proxy.usage().kept, 0);
}

#[test]
fn acknowledged_bytes_of_a_first_payload_are_ours_whatever_became_of_them() {
    for (order, expected) in [
        ("?+", "?+half and half\n?+half and half\n"),
        ("? ", "? half and half\n"),
    ] {
        let (mut bench, _) = bench();
        let mut client = Client::new(40000);
        client.connect(&mut bench);
        let ack = only(client.send(&mut bench, format!("{order}half").as_bytes()));
        assert_eq!(ack.ack, client.seq);
        let syn = only(client.send(&mut bench, b" and half\n"));
        let mut server = Server::from_syn(&syn);
        let (_, lost) = server.accept(&mut bench);
        assert_eq!(only(lost).payload, expected.as_bytes());
        // Nobody repeats the first half but we.
        let repeated = only(bench.wait(Duration::from_millis(1100)));
        assert_eq!(
            (repeated.seq, repeated.payload.as_slice()),
            (server.ack, expected.as_bytes())
        );
        nothing(bench.wait(Duration::from_millis(1800)));
        let again = only(bench.wait(Duration::from_millis(300)));
        assert_eq!(again.payload, expected.as_bytes());
        take(&mut server, &[again]);
        let told = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
        assert_eq!(told.ack, client.seq);
        nothing(bench.wait(Duration::from_secs(20)));
    }
}

#[test]
fn a_header_goes_before_what_the_first_payload_became() {
    let text = CONFIG.replace(
        "name = \"all\"\n",
        "name = \"all\"\nproxy_protocol = { send = \"v1\" }\n",
    );
    let (mut bench, scribe) = bench_with(&text, |_| {}, "");
    let (mut client, mut server, sent) = connect(&mut bench, 40000, b"0+hello");
    assert_eq!(sent.len(), 2, "the header is a segment of its own");
    assert!(sent[0].payload.starts_with(b"PROXY TCP4 10.0.0.1 "));
    // Both are lost; the client repeats its bytes and gets both repeated.
    let mut again = client.segment(TcpFlags::PSH, b"0+hello");
    again.seq = client.seq.wrapping_sub(7);
    assert_eq!(payloads(&bench.receive(&again)), payloads(&sent));
    take(&mut server, &sent);
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(ack.ack, client.seq);
    let more = only(client.send(&mut bench, b"more"));
    assert_eq!(more.seq, server.ack);
    assert_eq!(scribe.calls()[0].2, b"0+hello");
}

#[test]
fn repeated_bytes_get_what_is_kept_and_no_second_call() {
    let (mut bench, scribe) = bench();
    let (mut client, server) = settled(&mut bench, b"0 hello");
    scribe.calls();
    let orders: [&[u8]; 4] = [b"plain1", b"+double", b"plain2", b"^turned"];
    let sent: Vec<Segment> = orders
        .iter()
        .map(|bytes| only(client.send(&mut bench, bytes)))
        .collect();
    assert_eq!(sent[1].payload, b"+double+double");
    assert_eq!(sent[3].payload, b"\x7eTURNED");
    let total: u32 = orders.iter().map(|bytes| bytes.len() as u32).sum();
    // One by one, all at once, and cut elsewhere.
    let mut again = client.segment(TcpFlags::PSH, &orders.concat());
    again.seq = client.seq.wrapping_sub(total);
    assert_eq!(payloads(&bench.receive(&again)), payloads(&sent));
    let mut part = client.segment(TcpFlags::PSH, b"1+dou");
    part.seq = client.seq.wrapping_sub(total - 5);
    let got = bench.receive(&part);
    assert_eq!(
        payloads(&got),
        [
            (server.ack.wrapping_add(5), b"1".to_vec()),
            (server.ack.wrapping_add(6), b"+double+double".to_vec())
        ]
    );
    let mut turned = client.segment(TcpFlags::PSH, b"rned");
    turned.seq = client.seq.wrapping_sub(4);
    assert_eq!(only(bench.receive(&turned)).payload, b"RNED");
    assert_eq!(scribe.calls().len(), 4);
}

#[test]
fn a_segment_that_begins_with_known_bytes_shows_only_the_rest() {
    let (mut bench, scribe) = bench();
    let (mut client, server) = settled(&mut bench, b"0 hello");
    client.send(&mut bench, b"+ab");
    scribe.calls();
    let mut both = client.segment(TcpFlags::PSH, b"+abmore");
    both.seq = client.seq.wrapping_sub(3);
    let sent = bench.receive(&both);
    assert_eq!(
        payloads(&sent),
        [
            (server.ack, b"+ab+ab".to_vec()),
            (server.ack.wrapping_add(6), b"more".to_vec())
        ]
    );
    assert_eq!(scribe.calls(), [(Towards::Server, 10, b"more".to_vec(), false)]);
}

#[test]
fn only_the_next_segment_is_shown_and_a_later_one_is_asked_for_again() {
    let (mut bench, scribe) = bench();
    let (mut client, server) = settled(&mut bench, b"0 hello");
    scribe.calls();
    let first = client.seq;
    client.seq = client.seq.wrapping_add(4);
    let duplicate = only(client.send(&mut bench, b"late"));
    assert_eq!(duplicate.to, client.me);
    assert_eq!((duplicate.ack, duplicate.len(), duplicate.seq), (first, 0, client.ack));
    assert_eq!(bench.dropped(DropReason::OutOfOrder), 1);
    client.seq = first;
    let passed = only(client.send(&mut bench, b"soon"));
    assert_eq!((passed.seq, passed.payload.as_slice()), (server.ack, &b"soon"[..]));
    assert_eq!(scribe.calls().len(), 1);
}

#[test]
fn what_is_taken_away_is_acknowledged_by_us() {
    let (mut bench, scribe) = bench();
    let (mut client, mut server) = settled(&mut bench, b"0 hello");
    let ack = only(client.send(&mut bench, b"-gone"));
    assert_eq!((ack.to, ack.ack, ack.len()), (client.me, client.seq, 0));
    // That ACK is lost.
    let mut again = client.segment(TcpFlags::PSH, b"-gone");
    again.seq = client.seq.wrapping_sub(5);
    assert_eq!(only(bench.receive(&again)).ack, client.seq);
    assert_eq!(scribe.calls().len(), 2);
    // What follows stands where it would have stood, and behind bytes under way nothing is acknowledged early.
    let next = only(client.send(&mut bench, b"next"));
    assert_eq!((next.seq, next.payload.as_slice()), (server.ack, &b"next"[..]));
    nothing(client.send(&mut bench, b"-too"));
    take(&mut server, &[next]);
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(ack.ack, client.seq);
}

#[test]
fn both_directions_change_and_close_with_their_numbers() {
    let (mut bench, scribe) = bench();
    let (mut client, mut server, taken_away) = connect(&mut bench, 40000, b"0-");
    let told = only(taken_away);
    assert_eq!((told.to, told.ack, told.len()), (client.me, client.seq, 0));
    let answer = only(server.send(&mut bench, b"+abc"));
    assert_eq!(answer.payload, b"+abc+abc");
    client.ack = client.ack.wrapping_add(8);
    let ack = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!((ack.ack, ack.seq), (server.seq, server.ack));
    // The server closes with bytes that grow, the client answers with its own FIN.
    let last = only(bench.receive(&server.segment(TcpFlags::FIN, b"+d")));
    assert_eq!(
        (last.payload.as_slice(), last.flags.contains(TcpFlags::FIN)),
        (&b"+d+d"[..], true)
    );
    server.seq = server.seq.wrapping_add(3);
    client.ack = client.ack.wrapping_add(5);
    let fin = only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    assert_eq!(
        (fin.ack, fin.seq, fin.flags.contains(TcpFlags::FIN)),
        (server.seq, server.ack, true)
    );
    client.seq = client.seq.wrapping_add(1);
    server.ack = server.ack.wrapping_add(1);
    let over = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!((over.ack, over.seq), (client.seq, client.ack));
    let usage = bench.proxy.usage();
    assert_eq!((usage.connections, usage.time_wait, usage.inspected), (0, 1, 0));
    assert_eq!(scribe.open(), 0);
    let lasts: Vec<_> = scribe
        .calls()
        .into_iter()
        .filter(|call| call.3)
        .map(|call| (call.0, call.1, call.2))
        .collect();
    assert_eq!(
        lasts,
        [(Towards::Client, 4, b"+d".to_vec()), (Towards::Server, 2, b"".to_vec())]
    );
    // The translation that rests has the last shifts: the client's last ACK once more.
    let late = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!((late.seq, late.ack), (server.ack, server.seq));
    let record = &bench.records()[0];
    assert_eq!(
        (record.bytes_to_server(), record.bytes_to_client()),
        (2, 6),
        "as received"
    );
    bench.assert_all_returned();
}

#[test]
fn a_last_word_may_be_added_when_a_direction_closes() {
    let (mut bench, _) = bench_with(CONFIG, |_| {}, "bye");
    let (mut client, mut server) = settled(&mut bench, b"0 hello");
    let fin = only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    assert_eq!(
        (fin.payload.as_slice(), fin.flags.contains(TcpFlags::FIN)),
        (&b"bye"[..], true)
    );
    // An ACK of the word without the FIN, then of both.
    server.ack = server.ack.wrapping_add(3);
    for ack in bench.receive(&server.segment(TcpFlags::ACK, b"")) {
        assert_eq!(ack.ack, client.seq);
    }
    // The client repeats its FIN, which the server may lack.
    let again = only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    assert_eq!((again.seq, again.len()), (server.ack, 1));
    server.ack = server.ack.wrapping_add(1);
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    client.seq = client.seq.wrapping_add(1);
    assert_eq!(ack.ack, client.seq);
    let last = only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
    assert_eq!((last.payload.as_slice(), last.ack), (&b"bye"[..], client.seq));
    client.ack = client.ack.wrapping_add(4);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.proxy.usage().connections, 0);
}

#[test]
fn a_first_payload_with_fin_is_the_last() {
    let (mut bench, scribe) = bench();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let syn = only(bench.receive(&client.segment(TcpFlags::FIN, b"0+x")));
    client.seq = client.seq.wrapping_add(4);
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(&mut bench);
    assert_eq!(take(&mut server, &sent), b"0+x0+x");
    assert!(sent[0].flags.contains(TcpFlags::FIN));
    let last = bench.receive(&server.segment(TcpFlags::FIN, b""));
    assert_eq!(only(last).ack, client.seq);
    assert!(scribe.calls()[0].3);
    client.ack = client.ack.wrapping_add(1);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.proxy.usage().connections, 0);
}

#[test]
fn who_is_done_leaves_an_ordinary_splice_behind() {
    let (mut bench, scribe) = bench();
    let (mut client, mut server) = settled(&mut bench, b"0+hello");
    only(client.send(&mut bench, b".done"));
    let half_done = only(client.send(&mut bench, b"+not shown"));
    assert_eq!(half_done.payload, b"+not shown");
    server.ack = server.ack.wrapping_add(15);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    // Out of order is none of our business any more.
    client.seq = client.seq.wrapping_add(10);
    let ahead = only(client.send(&mut bench, b"ahead"));
    assert_eq!(ahead.seq, server.ack.wrapping_add(10));
    assert_eq!(bench.proxy.usage().inspected, 1);
    let doubled = only(server.send(&mut bench, b"+x"));
    assert_eq!(doubled.payload, b"+x+x");
    only(server.send(&mut bench, b"."));
    assert_eq!(
        (bench.proxy.usage().inspected, scribe.open()),
        (1, 1),
        "what was changed is under way"
    );
    client.ack = client.ack.wrapping_add(5);
    let ack = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(ack.ack, server.seq);
    assert_eq!((bench.proxy.usage().inspected, scribe.open()), (0, 0));
    let calls = scribe.calls().len();
    let plain = only(server.send(&mut bench, b"+plain"));
    assert_eq!((plain.seq, plain.payload.as_slice()), (client.ack, &b"+plain"[..]));
    let request = only(client.send(&mut bench, b"+plain"));
    assert_eq!(request.seq, server.ack.wrapping_add(15));
    assert_eq!(scribe.calls().len(), 0);
    assert_eq!(calls, 4);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn behind_a_forwarded_syn_it_begins_with_the_clients_ack() {
    let text = bound_with_syn("");
    let header = "name = \"all\"\nproxy_protocol = { send = \"v1\" }\n";
    for (text, headers) in [(text.clone(), 0), (text.replace("name = \"all\"\n", header), 1)] {
        let (mut bench, scribe) = bench_with(&text, |_| {}, "");
        let mut client = Client::new(40000);
        let mut server = Server::from_syn(&only(bench.receive(&client.syn())));
        server.shake(&mut bench, &mut client);
        // The third ACK comes with the request.
        let sent = client.send(&mut bench, b"0+ask");
        assert_eq!(sent.len(), 1 + headers);
        assert!(take(&mut server, &sent).ends_with(b"0+ask0+ask"));
        assert_eq!(sent[0].options.timestamps, Some((client.tsval, server.tsval)));
        let answer = only(server.send(&mut bench, b"+x"));
        assert_eq!((answer.payload.as_slice(), answer.ack), (&b"+x+x"[..], client.seq));
        assert_eq!((answer.seq, scribe.calls().len(), scribe.open()), (client.ack, 2, 1));
        bench.finish();
        bench.assert_all_returned();
    }
}

/// RFC 3168 6.1.3: what we send in the place of other segments has neither marks nor their echo.
#[test]
fn ecn_is_not_agreed_where_segments_may_be_ours() {
    let (mut bench, _) = bench_with(&bound_with_syn(""), |_| {}, "");
    let syn = Segment {
        flags: TcpFlags::SYN | TcpFlags::ECE | TcpFlags::CWR,
        ..Client::new(40000).syn()
    };
    assert_eq!(only(bench.receive(&syn)).flags, TcpFlags::SYN);
}

#[test]
fn a_server_that_speaks_first_is_heard_first() {
    let rules = "rules = [{ first_number = true, pool = \"all\" }]\ndefault = \"reject\"";
    let text = CONFIG.replacen(rules, "bind = \"handshake\"\ndefault = \"all\"", 1);
    let (mut bench, scribe) = bench_with(&text, |_| {}, "");
    let mut client = Client::new(40000);
    let syn_ack = only(bench.receive(&client.syn()));
    client.take_syn_ack(&syn_ack);
    let mut server = Server::from_syn(&only(bench.receive(&client.segment(TcpFlags::ACK, b""))));
    let (_, nothing_held) = server.accept(&mut bench);
    nothing(nothing_held);
    let greeting = only(server.send(&mut bench, b"+hi"));
    assert_eq!(
        (greeting.seq, greeting.payload.as_slice()),
        (client.ack, &b"+hi+hi"[..])
    );
    client.ack = client.ack.wrapping_add(6);
    let request = only(client.send(&mut bench, b"0+ask"));
    assert_eq!(
        (request.payload.as_slice(), request.ack),
        (&b"0+ask0+ask"[..], server.seq)
    );
    assert_eq!(scribe.calls().len(), 2);
}
