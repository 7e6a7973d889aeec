//! Copies of requests that are given up when the memory for them is short (DECISIONS.md 28): the client repeats what
//! it has no ACK for, and no connection whose server is called is reset.

use crate::harness::{Bench, CONFIG, Client, Server, close, nothing, only};
use e2d2::wire::tcp::TcpFlags;
use netfcts::{Cause, RecordFlags, Side};
use proxyengine::callbacks::SelectServer;
use splice::drop_reason::DropReason;
use splice::settings::Settings;
use std::time::Duration;
use test_case::test_case;
use testkit::{Segment, Station};

/// What a chunk of 16 KiB takes with its 32 blocks.
pub const CHUNK: usize = 16 * 1024 + 32 * 64 + 16;

/// So little memory that 61 short requests fill it.
pub fn tight(settings: &mut Settings) {
    settings.capacity.reassembly_memory = 2 * CHUNK;
    settings.capacity.reassembly_quota = 100;
}

/// Requests of up to 512 bytes after which the next one makes another give way.
pub const FULL: u16 = 60;

pub fn bench_of(text: &str) -> Bench {
    let text = text.replace("max_connections = 64", "max_connections = 2048");
    Bench::make_with(&text, false, tight, |selector| selector)
}

fn bench() -> Bench {
    bench_of(CONFIG)
}

/// A connection whose server is called: its client, and the SYN.
pub fn call<S: SelectServer>(bench: &mut Bench<S>, mut client: Client, request: &[u8]) -> (Client, Segment) {
    client.connect(bench);
    let syn = only(client.send(bench, request));
    (client, syn)
}

/// Fills the memory with requests of others, whose servers are silent, until `extra` more than it carries are there. Those
/// that have waited longest give way.
pub fn fill<S: SelectServer>(bench: &mut Bench<S>, extra: u16) {
    let before = bench.proxy.usage().held as u16;
    for port in 2000..2000 + FULL - before + extra {
        call(bench, Client::new(port), b"1 fill");
    }
}

pub fn given_up<S: SelectServer>(bench: &Bench<S>) -> u64 {
    assert_eq!(bench.dropped(DropReason::ConnectionEvicted), 0, "nobody is reset");
    bench.dropped(DropReason::ReassemblyEvicted)
}

/// The same segment again, as it comes from a client that has waited for its ACK.
pub fn again(client: &Client, behind: usize, flags: TcpFlags, payload: &[u8]) -> Segment {
    Segment {
        seq: client.seq.wrapping_sub(behind as u32),
        ..client.segment(flags, payload)
    }
}

/// The engine's segments to the server with payload or FIN, as (bytes behind the server's first number, payload, FIN).
pub fn said(server: &Server, segments: &[Segment]) -> Vec<(u32, Vec<u8>, bool)> {
    let told = segments
        .iter()
        .filter(|segment| segment.to == server.me && !segment.is_empty());
    told.map(|segment| {
        let behind = segment.seq.wrapping_sub(server.ack);
        (behind, segment.payload.clone(), segment.flags.contains(TcpFlags::FIN))
    })
    .collect()
}

fn ack_of(segments: Vec<Segment>) -> u32 {
    only(segments).ack
}

#[test_case(Client::new(1000), "0 hello"; "IPv4")]
#[test_case(Client::new_v6(1000), "3 hello"; "IPv6")]
fn the_client_repeats_what_was_given_up(client: Client, request: &str) {
    let mut bench = bench();
    let request = request.as_bytes();
    let (mut client, syn) = call(&mut bench, client, request);
    fill(&mut bench, 0);
    assert_eq!((given_up(&bench), bench.proxy.usage().held), (0, usize::from(FULL)));
    fill_one(&mut bench, 3000);
    assert_eq!(given_up(&bench), 1, "the longest-waiting");
    // The server answers: the connection is there, and nothing is said yet.
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(&mut bench);
    nothing(sent);
    // The retransmission time-out of the client: TSval goes on.
    client.tsval += 1000;
    let passed = bench.receive(&again(&client, request.len(), TcpFlags::PSH, request));
    assert_eq!(said(&server, &passed), [(0, request.to_vec(), false)]);
    assert_eq!(only(passed).options.timestamps, Some((client.tsval, 90_000)));
    server.ack = server.ack.wrapping_add(request.len() as u32);
    let answer = only(server.send(&mut bench, b"answer"));
    assert_eq!((answer.ack, &answer.payload[..]), (client.seq, &b"answer"[..]));
    client.ack = client.ack.wrapping_add(6);
    close(&mut bench, &mut client, &mut server);
    let record = bench.records().into_iter().find(|record| record.client_port == 1000);
    let record = record.expect("a record");
    assert!(record.flags().contains(RecordFlags::COPY_GIVEN_UP));
    assert_eq!(record.cause(Side::Client), Cause::ActiveClose);
    bench.finish();
    bench.assert_all_returned();
}

/// One more, which makes the longest-waiting give way.
fn fill_one<S: SelectServer>(bench: &mut Bench<S>, port: u16) {
    call(bench, Client::new(port), b"1 fill");
}

#[test]
fn a_repetition_is_held_again_if_there_is_room_and_nobody_gives_way_for_it() {
    let mut bench = bench();
    let (mut client, syn) = call(&mut bench, Client::new(1000), b"0 hello");
    let (other, _) = call(&mut bench, Client::new(1001), b"0 other");
    fill(&mut bench, 2);
    assert_eq!((given_up(&bench), bench.proxy.usage().held), (2, usize::from(FULL)));
    nothing(bench.receive(&again(&client, 7, TcpFlags::PSH, b"0 hello")));
    assert_eq!(bench.proxy.usage().held, usize::from(FULL) + 1);
    nothing(bench.receive(&again(&other, 7, TcpFlags::PSH, b"0 other")));
    assert_eq!(bench.dropped(DropReason::ReassemblyFull), 1);
    assert_eq!((given_up(&bench), bench.proxy.usage().held), (2, usize::from(FULL) + 1));
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(&mut bench);
    assert_eq!(said(&server, &sent), [(0, b"0 hello".to_vec(), false)]);
    server.ack = server.ack.wrapping_add(7);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    close(&mut bench, &mut client, &mut server);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn many_segments_are_given_up_together_and_pass_in_any_order() {
    let mut bench = bench();
    let (mut client, syn) = call(&mut bench, Client::new(1000), &[&b"0"[..], &[b'a'; 1000]].concat());
    nothing(client.send(&mut bench, &[b'b'; 1000]));
    // A hole, and a FIN behind what follows it.
    client.seq = client.seq.wrapping_add(1000);
    nothing(bench.receive(&client.segment(TcpFlags::FIN, &[b'd'; 500])));
    for port in 3000.. {
        fill_one(&mut bench, port);
        if given_up(&bench) > 0 {
            break;
        }
    }
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(&mut bench);
    nothing(sent);
    // The last one comes first; the FIN closes this half when it passes.
    let last = only(bench.receive(&client.segment(TcpFlags::FIN, &[b'd'; 500])));
    assert_eq!((last.seq, last.payload.len()), (server.ack.wrapping_add(3001), 500));
    assert!(last.flags.contains(TcpFlags::FIN));
    let first = again(&client, 3001, TcpFlags::PSH, &[&b"0"[..], &[b'a'; 1000]].concat());
    assert_eq!(only(bench.receive(&first)).payload, first.payload);
    for (behind, byte) in [(2000, b'b'), (1000, b'c')] {
        let passed = only(bench.receive(&again(&client, behind, TcpFlags::PSH, &[byte; 1000])));
        assert_eq!(passed.seq, server.ack.wrapping_add(3001 - behind as u32));
    }
    client.seq = client.seq.wrapping_add(501);
    server.ack = server.ack.wrapping_add(3502);
    assert_eq!(ack_of(bench.receive(&server.segment(TcpFlags::ACK, b""))), client.seq);
    only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
    client.ack = client.ack.wrapping_add(1);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(bench.proxy.usage().time_wait, 1);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn a_fin_is_given_up_with_its_bytes() {
    let mut bench = bench();
    let mut client = Client::new(1000);
    client.connect(&mut bench);
    let syn = only(bench.receive(&client.segment(TcpFlags::FIN, b"0 bye")));
    fill(&mut bench, 1);
    assert_eq!(given_up(&bench), 1);
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(&mut bench);
    nothing(sent);
    // The server's half goes on: nothing has closed.
    let answer = only(server.send(&mut bench, b"who?"));
    assert_eq!((answer.ack, answer.flags.contains(TcpFlags::FIN)), (client.seq, false));
    let passed = bench.receive(&client.segment(TcpFlags::FIN, b"0 bye"));
    assert_eq!(said(&server, &passed), [(0, b"0 bye".to_vec(), true)]);
    bench.finish();
    bench.assert_all_returned();
}

/// What the client has an ACK for is owed, and only what is behind it is given up.
#[test]
fn what_is_acknowledged_is_kept() {
    // Enough that there are chunks to spare when someone has to give way.
    let roomy = |settings: &mut Settings| settings.capacity.reassembly_memory = 32 * CHUNK;
    let text = CONFIG.replace("max_connections = 64", "max_connections = 2048");
    let mut bench = Bench::make_with(&text, false, roomy, |selector| selector);
    let mut client = Client::new(1000);
    client.connect(&mut bench);
    let half = [&b"?"[..], &[b'x'; 400]].concat();
    assert_eq!(ack_of(client.send(&mut bench, &half)), client.seq);
    let acknowledged = client.seq;
    let rest = [&[b'y'; 800][..], b"\n"].concat();
    let syn = only(client.send(&mut bench, &rest));
    for port in 3000.. {
        let host = Station::new(1, &format!("10.0.1.{}:{port}", port % 8));
        call(
            &mut bench,
            Client {
                me: host,
                ..Client::new(port)
            },
            b"1 fill",
        );
        if given_up(&bench) > 0 {
            break;
        }
    }
    // Our ACK is repeated if it was lost, and covers no more than before.
    let acks = bench.receive(&again(&client, half.len() + rest.len(), TcpFlags::PSH, &half));
    assert_eq!(ack_of(acks), acknowledged);
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(&mut bench);
    assert_eq!(said(&server, &sent), [(0, half.clone(), false)]);
    let passed = bench.receive(&again(&client, rest.len(), TcpFlags::PSH, &rest));
    assert_eq!(said(&server, &passed), [(half.len() as u32, rest, false)]);
    // What is owed is repeated by us, the rest is not.
    let repeated = bench.wait(Duration::from_millis(1100));
    assert_eq!(said(&server, &repeated), [(0, half, false)]);
    bench.finish();
    bench.assert_all_returned();
}

/// Those who have asked for more are reset when there is no copy left, and only those: the server of nobody who is reset is
/// called.
#[test]
fn who_has_asked_for_more_gives_way_last() {
    let mut bench = bench();
    let mut asking = Client::new(900);
    asking.connect(&mut bench);
    only(asking.send(&mut bench, b"?"));
    let mut called = Client::new(901);
    called.connect(&mut bench);
    only(called.send(&mut bench, b"?"));
    let syn = only(called.send(&mut bench, b"\n"));
    fill(&mut bench, 30);
    assert_eq!(given_up(&bench), 30);
    // All that is left are such that have asked for more.
    for port in 4000..4060 {
        let mut client = Client::new(port);
        client.connect(&mut bench);
        client.send(&mut bench, b"?");
    }
    let copies = bench.dropped(DropReason::ReassemblyEvicted);
    assert_eq!(copies, 30 + 58, "every copy there was");
    let resets = bench.dropped(DropReason::ConnectionEvicted);
    assert!(resets > 0);
    let records = bench.records();
    assert_eq!(records.len() as u64, resets);
    assert_eq!(records[0].client_port, 900, "the longest-waiting");
    assert!(
        records
            .iter()
            .all(|record| record.cause(Side::Client) == Cause::HeldFull)
    );
    assert!(records.iter().all(|record| record.client_port != 901));
    let (_, sent) = Server::from_syn(&syn).accept(&mut bench);
    assert_eq!(only(sent).payload, b"?\n");
    bench.finish();
    bench.assert_all_returned();
}

/// The copy that has waited longest is of the connection whose segment has just come: the next one is given up, and not the
/// connection of a client that has asked for more.
#[test]
fn a_connection_that_asks_is_not_reset_while_there_are_copies_of_others() {
    let mut bench = bench();
    let mut holed = Client::new(900);
    holed.connect(&mut bench);
    let behind = |client: &Client, offset: u32| Segment {
        seq: client.seq.wrapping_add(offset),
        ..client.segment(TcpFlags::PSH, b"late")
    };
    bench.receive(&behind(&holed, 10));
    let mut asking = Client::new(901);
    asking.connect(&mut bench);
    only(asking.send(&mut bench, b"?"));
    fill(&mut bench, 0);
    assert_eq!(given_up(&bench), 0);
    // It needs a larger block.
    bench.receive(&behind(&holed, 1_000));
    assert!(given_up(&bench) > 0);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn a_long_request_empties_a_chunk_of_copies() {
    let mut bench = bench();
    let (_, first) = call(&mut bench, Client::new(1000), b"0 hello");
    fill(&mut bench, 0);
    // 4097 bytes need a whole chunk.
    let mut long = Client::new(1001);
    long.connect(&mut bench);
    for _ in 0..3 {
        long.send(&mut bench, &[&b"?"[..], &[b'x'; 1365]].concat());
    }
    assert_eq!(bench.dropped(DropReason::ReassemblyFull), 0);
    assert_eq!(
        given_up(&bench),
        60,
        "the chunk of the longest-waiting, and then the other"
    );
    let (_, sent) = Server::from_syn(&first).accept(&mut bench);
    nothing(sent);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn a_server_may_speak_and_close_before_the_first_byte_comes() {
    let mut bench = bench();
    let (mut client, syn) = call(&mut bench, Client::new(1000), b"0 hello");
    fill(&mut bench, 1);
    let mut server = Server::from_syn(&syn);
    server.accept(&mut bench);
    let banner = only(server.send(&mut bench, b"banner"));
    let first = client.seq.wrapping_sub(7);
    assert_eq!((banner.ack, &banner.payload[..]), (first, &b"banner"[..]));
    client.ack = client.ack.wrapping_add(6);
    // Before the repetition there is an ACK of what has come, with a number ahead of all that has passed.
    assert_eq!(ack_of(bench.receive(&client.segment(TcpFlags::ACK, b""))), server.seq);
    assert_eq!(ack_of(bench.receive(&server.segment(TcpFlags::FIN, b""))), first);
    (server.seq, client.ack) = (server.seq.wrapping_add(1), client.ack.wrapping_add(1));
    let passed = bench.receive(&again(&client, 7, TcpFlags::FIN, b"0 hello"));
    assert_eq!(said(&server, &passed), [(0, b"0 hello".to_vec(), true)]);
    (client.seq, server.ack) = (client.seq.wrapping_add(1), server.ack.wrapping_add(8));
    assert_eq!(ack_of(bench.receive(&server.segment(TcpFlags::ACK, b""))), client.seq);
    assert_eq!(bench.proxy.usage().time_wait, 1);
    bench.finish();
    bench.assert_all_returned();
}

/// Until the first byte has passed, a client has as long as it has for a first payload.
#[test_case(false, 35, Cause::SelectorTimeout; "gone")]
#[test_case(true, 301, Cause::IdleTimeout; "served")]
fn a_client_that_repeats_nothing_is_waited_for_as_for_its_first_payload(repeats: bool, seconds: u64, cause: Cause) {
    let text = "idle = \"300s\"\nselect = \"30s\"\n";
    let mut bench = bench_of(&format!("{CONFIG}\n[timeouts]\n{text}"));
    let (client, syn) = call(&mut bench, Client::new(1000), b"0 hello");
    fill(&mut bench, 1);
    let mut server = Server::from_syn(&syn);
    server.accept(&mut bench);
    if repeats {
        bench.wait(Duration::from_secs(20));
        only(bench.receive(&again(&client, 7, TcpFlags::PSH, b"0 hello")));
        server.ack = server.ack.wrapping_add(7);
        only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    }
    bench.wait(Duration::from_secs(if repeats { 290 } else { 29 }));
    let ended = |bench: &mut Bench| bench.records().into_iter().find(|record| record.client_port == 1000);
    assert!(ended(&mut bench).is_none());
    let resets = bench.wait(Duration::from_secs(seconds));
    let told = resets.iter().filter(|segment| segment.flags.contains(TcpFlags::RST));
    assert!(told.clone().any(|reset| reset.to == client.me) && told.clone().any(|reset| reset.to == server.me));
    let record = ended(&mut bench).expect("a record");
    assert_eq!(record.cause(Side::Client), cause);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn a_client_may_leave_without_its_copy() {
    let mut bench = bench();
    let (client, syn) = call(&mut bench, Client::new(1000), b"0 hello");
    let (other, other_syn) = call(&mut bench, Client::new(1001), b"0 hello");
    fill(&mut bench, 2);
    assert_eq!(given_up(&bench), 2);
    // Before the server's answer, with the number that follows what it has sent: we know of nothing that it has, and ask.
    let asked = only(bench.receive(&client.segment(TcpFlags::RST, b"")));
    assert_eq!((asked.flags, asked.ack), (TcpFlags::ACK, client.seq.wrapping_sub(7)));
    let proof = Segment {
        seq: asked.ack,
        ..client.segment(TcpFlags::RST, b"")
    };
    let told = bench.receive(&proof);
    assert!(told.iter().all(|segment| segment.to == syn.to));
    assert_eq!(
        only(bench.receive(&Server::from_syn(&syn).syn_ack())).flags,
        TcpFlags::RST
    );
    // And after it.
    let mut server = Server::from_syn(&other_syn);
    server.accept(&mut bench);
    let passed = only(bench.receive(&again(&other, 7, TcpFlags::RST, b"")));
    assert_eq!((passed.seq, passed.to), (server.ack, server.me));
    assert_eq!(bench.proxy.usage().held, usize::from(FULL));
    bench.finish();
    bench.assert_all_returned();
}

/// The server that refuses is not the last: the copy is not needed to call the next.
#[test]
fn another_server_is_called_without_the_copy() {
    let mut bench = bench();
    let (client, syn) = call(&mut bench, Client::new(1000), b"pool hello");
    fill(&mut bench, 1);
    assert_eq!(given_up(&bench), 1);
    let refusing = Server::from_syn(&syn);
    let next = only(bench.receive(&Segment {
        flags: TcpFlags::RST | TcpFlags::ACK,
        seq: 0,
        ..refusing.syn_ack()
    }));
    assert_ne!(next.to, syn.to);
    let mut server = Server::from_syn(&next);
    let (_, sent) = server.accept(&mut bench);
    nothing(sent);
    let passed = bench.receive(&again(&client, 10, TcpFlags::PSH, b"pool hello"));
    assert_eq!(said(&server, &passed), [(0, b"pool hello".to_vec(), false)]);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn what_a_server_acknowledges_selectively_is_what_has_passed() {
    let mut bench = bench();
    let (mut client, syn) = call(&mut bench, Client::new(1000), b"0 hello");
    fill(&mut bench, 1);
    let mut server = Server::from_syn(&syn);
    server.accept(&mut bench);
    // New bytes come before the repetition of the old.
    client.tsval += 5;
    let second = only(client.send(&mut bench, b"second"));
    assert_eq!(second.seq, server.ack.wrapping_add(7));
    server.tsecr = client.tsval;
    let sack = only(bench.receive(&Segment {
        sack: vec![(second.seq, second.seq.wrapping_add(6))],
        ..server.segment(TcpFlags::ACK, b"")
    }));
    assert_eq!(sack.ack, client.seq.wrapping_sub(13));
    assert_eq!(sack.sack, [(client.seq.wrapping_sub(6), client.seq)]);
    assert_eq!(sack.options.timestamps.map(|(_, echo)| echo), Some(client.tsval));
    let passed = bench.receive(&again(&client, 13, TcpFlags::PSH, b"0 hello"));
    assert_eq!(said(&server, &passed), [(0, b"0 hello".to_vec(), false)]);
    bench.finish();
    bench.assert_all_returned();
}
