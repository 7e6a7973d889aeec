//! What one round does when everything is due at once: a part of it, and all that is to be sent finds room.

use crate::graph_bench::{CABLE, GraphBench};
use crate::harness::{Bench, CONFIG, Client, Server, only};
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{HeapBuffer, PacketBuffer};
use e2d2::fate::DropReason as GraphDrop;
use e2d2::port::Port;
use e2d2::wire::frame::{self, Kind};
use e2d2::wire::tcp::TcpFlags;
use splice::drop_reason::DropReason;
use splice::round_budget::{FIRED_PER_ROUND, KEPT_FOR_CONTROL, TIMER_FRAMES_PER_ROUND};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use testkit::{Segment, Station};

fn with_capacity(connections: usize) -> String {
    CONFIG.replace("max_connections = 64", &format!("max_connections = {connections}"))
}

/// The `n`-th of a million clients.
fn client(n: u32) -> Client {
    let address = format!("10.0.0.{}:{}", 10 + n / 50_000, 1024 + n % 50_000);
    Client {
        me: Station::new(1, &address),
        ..Client::new(1)
    }
}

/// A million clients have connected in the same moment, say nothing, and are over in the same one.
#[test]
fn a_million_timers_that_are_due_at_once_are_a_part_of_each_round() {
    const COUNT: usize = 1_000_000;
    let mut bench = Bench::with_config(&with_capacity(COUNT * 3 / 2));
    for n in 0..COUNT as u32 {
        client(n).connect(&mut bench);
    }
    assert_eq!(bench.proxy.usage().connections, COUNT);
    bench.now += Duration::from_secs(31);
    let (mut rounds, mut told) = (0, 0);
    loop {
        let before = bench.proxy.usage().connections;
        let (sent, worked) = bench.round();
        let ended = before - bench.proxy.usage().connections;
        assert!(ended <= FIRED_PER_ROUND, "{ended} ended in one round");
        assert!(
            sent.len() <= TIMER_FRAMES_PER_ROUND,
            "{} frames in one round",
            sent.len()
        );
        assert!(sent.iter().all(|frame| frame.flags.contains(TcpFlags::RST)));
        told += sent.len();
        if !worked {
            break;
        }
        rounds += 1;
    }
    assert_eq!((told, bench.proxy.usage().connections), (COUNT, 0));
    // The timers have moved down from one level to the next, which is a part of the rounds, too.
    assert!(rounds > COUNT / FIRED_PER_ROUND, "{rounds} rounds");
    bench.assert_all_returned();
}

/// Connections that idle between clients and servers, in a graph whose cables nobody empties but the test.
fn idle_connections(count: u16) -> GraphBench {
    let mut bench = GraphBench::with_config(&with_capacity(2 * usize::from(count)));
    for port in 0..count {
        crate::harness::spliced(&mut bench, 1024 + port);
    }
    bench
}

/// A round of the graph, and how many frames the far ends take then; who has been told of the end of its connection.
fn round(bench: &mut GraphBench, takes: usize, told: &mut BTreeSet<(SocketAddr, SocketAddr)>) {
    let _worked = bench.core.task.run(bench.now);
    for far in &mut bench.core.far {
        let mut taken: ArrayVec<HeapBuffer, BURST> = ArrayVec::new();
        let _ = far.receive(&mut taken);
        assert!(taken.len() <= takes);
        let is_tcp = |frame: &HeapBuffer| matches!(frame::parse(frame.data()), Ok(Kind::Tcp(_)));
        for frame in taken.into_iter().filter(is_tcp) {
            let segment = Segment::read(frame.data());
            assert!(segment.flags.contains(TcpFlags::RST), "{segment:?}");
            told.insert((segment.from.address, segment.to.address));
        }
    }
}

#[track_caller]
fn assert_nothing_was_lost(bench: &GraphBench) {
    for reason in [GraphDrop::OutboxFull, GraphDrop::TxRefused] {
        assert_eq!(bench.graph_dropped(reason), 0, "{reason:?}");
    }
}

#[test]
fn both_ends_hear_of_each_end_however_many_there_are() {
    const COUNT: u16 = 3_000;
    let mut bench = idle_connections(COUNT);
    bench.now += Duration::from_secs(3 * 3600);
    let mut told = BTreeSet::new();
    for _ in 0..2 * usize::from(COUNT) {
        // Each port takes a burst in a round, much less than timers could send.
        round(&mut bench, BURST, &mut told);
    }
    assert_eq!(told.len(), 2 * usize::from(COUNT));
    assert_nothing_was_lost(&bench);
    bench.assert_all_returned("all timed out");
}

#[test]
fn both_ends_hear_of_the_end_of_the_engine_however_many_there_are() {
    const COUNT: u16 = 3_000;
    let mut bench = idle_connections(COUNT);
    bench.core.handle.finish();
    let (mut told, mut rounds) = (BTreeSet::new(), 0);
    while !bench.core.handle.is_finished() {
        let before = told.len();
        round(&mut bench, BURST, &mut told);
        assert!(told.len() - before <= TIMER_FRAMES_PER_ROUND);
        rounds += 1;
    }
    (0..2 * CABLE).for_each(|_| round(&mut bench, BURST, &mut told));
    assert_eq!(told.len(), 2 * usize::from(COUNT));
    assert!(rounds >= usize::from(COUNT) / FIRED_PER_ROUND, "{rounds} rounds");
    assert_nothing_was_lost(&bench);
    bench.assert_all_returned("finished");
}

/// A port that takes nothing for ever does not keep timers from their work.
#[test]
fn a_dead_port_holds_timers_up_for_a_while_only() {
    const COUNT: u16 = 3_000;
    let mut bench = idle_connections(COUNT);
    bench.now += Duration::from_secs(3 * 3600);
    for _ in 0..1_000 {
        let _worked = bench.core.task.run(bench.now);
    }
    let open = |bench: &GraphBench| bench.core.handle.look(|proxy| proxy.usage().connections);
    assert!(open(&bench) > 0, "what finds no room waits");
    assert_nothing_was_lost(&bench);
    bench.now += Duration::from_millis(101);
    for _ in 0..1_000 {
        let _worked = bench.core.task.run(bench.now);
    }
    assert_eq!(open(&bench), 0);
    let lost = bench.graph_dropped(GraphDrop::TxRefused) + bench.dropped(DropReason::NoBuffer);
    assert!(lost > 0, "and what is lost is counted");
}

/// Servers that take 88 bytes at once accept requests of 16 KiB in one burst: more segments than there is room for.
#[test]
fn held_requests_in_tiny_segments_leave_room_for_all_else() {
    const ROOM: usize = 144 + KEPT_FOR_CONTROL;
    let requests = BURST - 1;
    let mut bench = Bench::with_config(&with_capacity(1024).replace("[records]", "[syn_ack]\nmss = 1460\n[records]"));
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for n in 0..requests as u16 {
        let mut client = Client::new(2000 + n);
        client.connect(&mut bench);
        let mut server = Server::from_syn(&only(client.send(&mut bench, &[&b"0"[..], &[b'x'; 1399]].concat())));
        for _ in 0..10 {
            assert!(client.send(&mut bench, &[b'x'; 1400]).is_empty());
        }
        server.options.mss = Some(88);
        clients.push(client);
        servers.push(server);
    }
    let (mut leaving, _) = crate::harness::spliced(&mut bench, 1000);
    leaving.tsval += 1;
    let mut batch: Vec<Segment> = servers.iter().map(Server::syn_ack).collect();
    batch.push(leaving.segment(TcpFlags::RST, b""));
    let sent = bench.receive_all(&batch, ROOM);
    // Each server is acknowledged in any case, and the RST behind them has passed.
    let acknowledged = sent[..144].iter().filter(|segment| segment.payload.is_empty()).count();
    assert_eq!(sent.len(), 144 + (requests - acknowledged) + 1);
    assert!(sent.last().is_some_and(|last| last.flags.contains(TcpFlags::RST)));
    assert!(bench.dropped(DropReason::NoRoom) > 0);
    // What found no room is the client's to repeat, like all that was not acknowledged: it passes then.
    let client = clients.last_mut().expect("some");
    client.seq = client.seq.wrapping_sub(1400);
    let repeated = client.send(&mut bench, &[b'x'; 1400]);
    let bytes: usize = repeated.iter().map(|segment| segment.payload.len()).sum();
    assert_eq!(bytes, 1400, "cut as the server takes it");
}
