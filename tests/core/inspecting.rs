//! Inspectors: each byte shown once and in order, and whatever they make of it arrives whole.

use crate::harness::{Bench, CONFIG, Client, Selector, Server, nothing, only};
use e2d2::wire::tcp::TcpFlags;
use netfcts::record::{Cause, Side};
use proxyengine::callbacks::{ConnectionInfo, InspectPayload, Inspected, Payload, Towards, Verdict};
use proxyengine::proxy::drop_reason::DropReason;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::Segment;

/// The largest window of a direction in which something was changed: what can be kept, less what a call may add.
const KEEPABLE: u16 = (56 * 1024) >> 7;

/// One call: where to, from which byte on, the bytes, and whether they were the last.
type Call = (Towards, u64, Vec<u8>, bool);

/// Writes down what it is shown and does what the bytes say: see [`obey`].
#[derive(Clone, Default)]
pub struct Scribe {
    calls: Arc<Mutex<Vec<Call>>>,
    open: Arc<AtomicUsize>,
    /// What is written when a direction closes.
    farewell: &'static [u8],
}

/// Counts the contexts that live.
pub struct Token(Arc<AtomicUsize>);

impl Drop for Token {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl InspectPayload for Scribe {
    type Context = Token;

    fn open(&mut self, connection: &ConnectionInfo) -> Option<Token> {
        assert_eq!(connection.local.port(), 80);
        assert_eq!(connection.server_address.port(), 8080);
        if connection.client.port() == UNWANTED {
            return None;
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        Some(Token(Arc::clone(&self.open)))
    }

    fn inspect(&mut self, _context: &mut Token, payload: &mut Payload<'_>) -> Verdict {
        let call = (
            payload.towards(),
            payload.offset(),
            payload.bytes().to_vec(),
            payload.is_last(),
        );
        self.calls.lock().expect("one thread").push(call);
        let (is_last, farewell) = (payload.is_last(), self.farewell);
        if is_last && !farewell.is_empty() {
            let (bytes, output) = payload.replace();
            output.write(bytes).expect("room");
            output.write(farewell).expect("room");
            return Verdict::Replace;
        }
        obey(payload)
    }
}

/// The client port of connections that are not to be inspected.
const UNWANTED: u16 = 666;

/// `+` doubles the bytes, `#` makes them fifty times as many, `-` takes them away, `^` turns letters upside down in place,
/// `!` refuses, `.` is done; everything else passes. The byte may be the first or, for a first payload, the second.
fn obey(payload: &mut Payload<'_>) -> Verdict {
    let skip = usize::from(payload.offset() == 0 && !payload.is_to_client());
    match payload.bytes().get(skip) {
        Some(order @ (b'+' | b'#')) => {
            let times = if *order == b'+' { 2 } else { 50 };
            let (bytes, output) = payload.replace();
            (0..times).for_each(|_| output.write(bytes).expect("room"));
            Verdict::Replace
        }
        Some(b'-') => Verdict::Replace,
        Some(b'^') => {
            payload.bytes_mut().iter_mut().for_each(|byte| *byte ^= 0x20);
            Verdict::Pass
        }
        Some(b'!') => Verdict::Reject,
        Some(b'.') => Verdict::Done,
        _ => Verdict::Pass,
    }
}

type InspectedBench = Bench<Inspected<Selector, Scribe>>;

fn bench() -> (InspectedBench, Scribe) {
    bench_with(CONFIG, |_| {}, "")
}

fn bench_with(
    text: &str,
    adjust: impl FnOnce(&mut proxyengine::proxy::settings::Settings),
    farewell: &'static str,
) -> (InspectedBench, Scribe) {
    let scribe = Scribe {
        farewell: farewell.as_bytes(),
        ..Scribe::default()
    };
    let inspector = scribe.clone();
    let bench = Bench::make_with(text, false, adjust, |selector| Inspected::new(selector, inspector));
    (bench, scribe)
}

impl Scribe {
    fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls.lock().expect("one thread"))
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

/// A spliced connection on `port`, and what the server got first.
fn connect(bench: &mut InspectedBench, port: u16, first: &[u8]) -> (Client, Server, Vec<Segment>) {
    let mut client = Client::new(port);
    client.connect(bench);
    let syn = only(client.send(bench, first));
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(bench);
    (client, server, sent)
}

/// The same, with everything acknowledged: both numberings are known and nothing is kept.
fn settled(bench: &mut InspectedBench, first: &[u8]) -> (Client, Server) {
    let (client, mut server, sent) = connect(bench, 40000, first);
    take(&mut server, &sent);
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!((ack.ack, ack.seq), (client.seq, client.ack));
    assert_eq!(bench.proxy.usage().kept, 0);
    (client, server)
}

/// The server takes segments in order and returns their bytes.
fn take(server: &mut Server, segments: &[Segment]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for segment in segments {
        assert_eq!(segment.seq, server.ack, "in order");
        server.ack = server.ack.wrapping_add(segment.len());
        bytes.extend(&segment.payload);
    }
    bytes
}

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

fn payloads(segments: &[Segment]) -> Vec<(u32, Vec<u8>)> {
    segments
        .iter()
        .map(|segment| (segment.seq, segment.payload.clone()))
        .collect()
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
    assert_eq!((usage.connections, usage.resting, usage.inspected), (0, 1, 0));
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
fn a_refused_connection_gets_rst_on_both_sides_and_a_cause() {
    for (first, later) in [(&b"0!"[..], None), (b"0 hello", Some(&b"!"[..]))] {
        let (mut bench, scribe) = bench();
        let (mut client, server, mut sent) = connect(&mut bench, 40000, first);
        if let Some(later) = later {
            sent = client.send(&mut bench, later);
        }
        let resets = |to| {
            sent.iter()
                .filter(move |s| s.to == to && s.flags.contains(TcpFlags::RST))
                .map(|s| s.seq)
                .collect::<Vec<_>>()
        };
        assert!(resets(client.me).contains(&client.ack));
        assert!(resets(server.me).contains(&server.ack), "{sent:?}");
        assert_eq!(sent.len(), resets(client.me).len() + resets(server.me).len());
        assert_eq!(bench.records()[0].cause(Side::Client), Cause::SelectorReject);
        assert_eq!((bench.dropped(DropReason::Rejected), scribe.open()), (1, 0));
        bench.assert_all_returned();
    }
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
fn more_than_a_segment_is_split_and_never_sent_beyond_the_window() {
    let (mut bench, _) = bench();
    let (mut client, mut server) = settled(&mut bench, b"0 hello");
    server.me.address.set_port(8080);
    let mut small = server.segment(TcpFlags::ACK, b"");
    small.window = 32; // 4096 bytes
    bench.receive(&small);
    // 100 bytes become 5000.
    let mut order = vec![b'a'; 100];
    order[0] = b'#';
    let sent = client.send(&mut bench, &order);
    let to_server: Vec<_> = sent.iter().filter(|segment| segment.to == server.me).cloned().collect();
    assert!(to_server.iter().all(|segment| segment.payload.len() <= 1448));
    let mut got = take(&mut server, &to_server);
    assert_eq!(got.len(), 4096);
    // While bytes wait, nothing new is taken.
    let refused = only(client.send(&mut bench, b"more"));
    assert_eq!((refused.ack, refused.window), (client.seq.wrapping_sub(104), 0));
    assert_eq!(bench.dropped(DropReason::KeptFull), 1);
    client.seq = client.seq.wrapping_sub(4);
    let answers = bench.receive(&server.segment(TcpFlags::ACK, b""));
    let (rest, to_client): (Vec<_>, Vec<_>) = answers.into_iter().partition(|segment| segment.to == server.me);
    got.extend(take(&mut server, &rest));
    assert_eq!(got, order.repeat(50));
    for ack in to_client {
        assert_eq!(ack.ack, client.seq.wrapping_sub(100));
    }
    let done = bench.receive(&server.segment(TcpFlags::ACK, b""));
    assert_eq!(done.last().expect("an ACK").ack, client.seq);
    assert!(done.last().expect("an ACK").window > 0);
    let more = only(client.send(&mut bench, b"more"));
    assert_eq!(more.seq, server.ack);
}

#[test]
fn no_more_than_64_kib_are_kept_and_the_window_says_so() {
    let (mut bench, _) = bench();
    let (mut client, mut server) = settled(&mut bench, b"0 hello");
    let mut open = server.segment(TcpFlags::ACK, b"");
    open.window = 4000; // 512 000 bytes
    bench.receive(&open);
    let mut order = vec![b'a'; 1000];
    order[0] = b'+';
    let mut taken = 0;
    loop {
        let answer = client.send(&mut bench, &order);
        if bench.dropped(DropReason::KeptFull) > 0 {
            let refusal = only(answer);
            assert_eq!(refusal.to, client.me);
            // What is under way, and no more.
            assert_eq!(u32::from(refusal.window) << 7, 1000 * taken / 128 * 128);
            break;
        }
        taken += 1;
        assert!(taken < 40, "the limit is never reached");
    }
    // What is not taken leaves 8 KiB and itself of the 64.
    assert_eq!(taken, (64 * 1024 - 8 * 1024 - 1000) / 2000 + 1);
    client.seq = client.seq.wrapping_sub(1000);
    server.ack = server.ack.wrapping_add(2000 * taken);
    let reopened = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!((reopened.ack, bench.proxy.usage().kept), (client.seq, 0));
    assert!(u32::from(reopened.window) << 7 > 50_000, "{}", reopened.window);
    assert_eq!(client.send(&mut bench, &order).len(), 2);
}

#[test]
fn kept_bytes_are_repeated_after_three_duplicates_and_step_by_step() {
    let (mut bench, _) = bench();
    let (mut client, mut server) = settled(&mut bench, b"0 hello");
    let mut order = vec![b'a'; 100];
    order[0] = b'#';
    let sent = client.send(&mut bench, &order);
    assert_eq!(sent.len(), 4);
    let start = server.ack;
    let duplicates: Vec<usize> = (0..4)
        .map(|_| bench.receive(&server.segment(TcpFlags::ACK, b"")).len())
        .collect();
    // The first is a window update to us; then three.
    assert_eq!(duplicates.iter().sum::<usize>(), 1, "{duplicates:?}");
    for at in [1448, 2 * 1448, 3 * 1448] {
        server.ack = start.wrapping_add(at);
        let next: Vec<_> = bench
            .receive(&server.segment(TcpFlags::ACK, b""))
            .into_iter()
            .filter(|segment| segment.to == server.me)
            .collect();
        assert_eq!(only(next).seq, server.ack, "each step asks for the next");
    }
    server.ack = start.wrapping_add(5000);
    let told = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(told.ack, client.seq);
}

#[test]
fn a_receiver_that_never_answers_ends_the_connection() {
    let (mut bench, _) = bench();
    let (mut client, _) = settled(&mut bench, b"0 hello");
    client.send(&mut bench, b"+abc");
    let sent = bench.wait(Duration::from_secs(600));
    let repeated = sent.iter().filter(|segment| segment.payload == b"+abc+abc").count();
    assert_eq!(repeated, 8);
    assert!(sent.iter().any(|segment| segment.flags.contains(TcpFlags::RST)));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::RetransmitLimit);
    bench.assert_all_returned();
}

#[test]
fn probes_and_keep_alives_reach_who_can_answer_them() {
    let (mut bench, scribe) = bench();
    let (mut client, mut server) = settled(&mut bench, b"0+hello");
    scribe.calls();
    for payload in [&b""[..], b"x"] {
        let mut alive = client.segment(TcpFlags::ACK, payload);
        alive.seq = client.seq.wrapping_sub(1);
        let passed = only(bench.receive(&alive));
        assert_eq!((passed.to, passed.seq), (server.me, server.ack.wrapping_sub(1)));
        let answer = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
        assert_eq!((answer.to, answer.ack), (client.me, client.seq));
    }
    assert_eq!(scribe.calls(), []);
    // The server closes its window; one byte of the client's tries it.
    let mut closed = server.segment(TcpFlags::ACK, b"");
    closed.window = 0;
    assert_eq!(only(bench.receive(&closed)).window, 0);
    let probe = only(client.send(&mut bench, b"p"));
    assert_eq!((probe.to, probe.seq), (server.me, server.ack));
    let refused = only(bench.receive(&closed));
    assert_eq!((refused.ack, refused.window), (client.seq.wrapping_sub(1), 0));
    let mut again = client.segment(TcpFlags::PSH, b"p");
    again.seq = client.seq.wrapping_sub(1);
    assert_eq!(only(bench.receive(&again)).payload, b"p");
    server.ack = server.ack.wrapping_add(1);
    let open = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!((open.ack, open.window), (client.seq, KEEPABLE));
}

#[test]
fn a_changed_probe_of_a_closed_window_is_repeated_until_it_opens() {
    let (mut bench, _) = bench();
    let (mut client, mut server) = settled(&mut bench, b"0 hello");
    let mut closed = server.segment(TcpFlags::ACK, b"");
    closed.window = 0;
    bench.receive(&closed);
    for segment in client.send(&mut bench, b"+") {
        assert_eq!(segment.to, client.me, "nothing is sent into a closed window");
    }
    for _ in 0..12 {
        // Far more than are allowed without an answer.
        let probes = bench.wait(Duration::from_secs(61));
        assert!(!probes.is_empty() && probes.iter().all(|probe| probe.payload == b"++"));
        bench.receive(&closed);
    }
    let got = bench.receive(&server.segment(TcpFlags::ACK, b""));
    assert!(got.iter().all(|segment| !segment.flags.contains(TcpFlags::RST)));
    server.ack = server.ack.wrapping_add(2);
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!(ack.ack, client.seq);
}

#[test]
fn a_reset_has_the_numbers_that_its_receiver_expects() {
    let (mut bench, scribe) = bench();
    let (mut client, server) = settled(&mut bench, b"0 hello");
    client.send(&mut bench, b"+abc");
    let resets = bench.receive(&Segment {
        flags: TcpFlags::RST,
        ..client.segment(TcpFlags::RST, b"")
    });
    let numbers: Vec<u32> = resets.iter().map(|segment| segment.seq).collect();
    assert!(resets.iter().all(|segment| segment.to == server.me));
    assert_eq!(numbers, [server.ack.wrapping_add(8), server.ack]);
    assert_eq!((bench.proxy.usage().connections, scribe.open()), (0, 0));
    bench.assert_all_returned();
}

#[test]
fn sack_blocks_are_cut_to_what_is_all_there() {
    let (mut bench, _) = bench();
    let (mut client, server) = settled(&mut bench, b"0 hello");
    let base = client.seq;
    client.send(&mut bench, b"first");
    client.send(&mut bench, b"+grow");
    client.send(&mut bench, b"third");
    // The server has everything but the first; its block ends inside the third.
    let mut ack = server.segment(TcpFlags::ACK, b"");
    ack.sack = vec![(server.ack.wrapping_add(5), server.ack.wrapping_add(18))];
    let told = only(bench.receive(&ack));
    assert_eq!(told.sack, [(base.wrapping_add(5), base.wrapping_add(13))]);
    // And with only a part of the grown bytes: cut to nothing, so nothing is said.
    ack.sack = vec![(server.ack.wrapping_add(8), server.ack.wrapping_add(12))];
    assert_eq!(only(bench.receive(&ack)).sack, []);
    ack.sack = vec![(server.ack.wrapping_add(8), server.ack.wrapping_add(20))];
    assert_eq!(
        only(bench.receive(&ack)).sack,
        [(base.wrapping_add(10), base.wrapping_add(15))]
    );
}

#[test]
fn without_room_to_inspect_a_connection_it_ends() {
    let (mut bench, scribe) = bench_with(CONFIG, |settings| settings.capacity.inspected = 1, "");
    let (_client, _server, _) = connect(&mut bench, 40000, b"0 hello");
    let (other, server, sent) = connect(&mut bench, 40001, b"0 hello");
    assert!(sent.iter().all(|segment| segment.flags.contains(TcpFlags::RST)));
    assert!(sent.iter().any(|segment| segment.to == other.me) && sent.iter().any(|segment| segment.to == server.me));
    assert_eq!((bench.dropped(DropReason::InspectFull), scribe.open()), (1, 1));
    bench.finish();
    bench.assert_all_returned();

    let (mut bench, scribe) = bench_with(CONFIG, |settings| settings.capacity.kept_blocks = 4, "");
    let (_, _, sent) = connect(&mut bench, 40000, b"0 hello");
    assert!(sent.iter().all(|segment| segment.flags.contains(TcpFlags::RST)));
    assert_eq!((bench.dropped(DropReason::InspectFull), scribe.open()), (1, 0));
    bench.assert_all_returned();
}

#[test]
fn a_wrong_checksum_is_never_shown() {
    let (mut bench, scribe) = bench();
    let (client, _) = settled(&mut bench, b"0 hello");
    scribe.calls();
    let mut frame = client.segment(TcpFlags::PSH, b"wrong").emit(&mut bench.pool);
    use e2d2::buffer::PacketBuffer;
    *frame.data_mut().last_mut().expect("a byte") ^= 1;
    nothing(bench.receive_frame(e2d2::port::PortId(0), frame));
    assert_eq!((bench.dropped(DropReason::BadTcpChecksum), scribe.calls()), (1, vec![]));
}

#[test]
fn shutting_down_and_falling_silent_end_contexts() {
    let (mut bench, scribe) = bench();
    let (mut client, server) = settled(&mut bench, b"0 hello");
    client.send(&mut bench, b"+under way");
    let resets = bench.finish();
    assert!(resets.iter().any(|s| s.to == server.me && s.seq == server.ack));
    assert_eq!(scribe.open(), 0);
    bench.assert_all_returned();

    let (mut bench, scribe) = self::bench();
    settled(&mut bench, b"0 hello");
    let text_idle = Duration::from_secs(60 * 60 * 24);
    bench.now += text_idle;
    bench.wait(Duration::from_secs(60));
    assert_eq!((bench.proxy.usage().connections, scribe.open()), (0, 0));
}
