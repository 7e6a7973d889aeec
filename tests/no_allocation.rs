//! The whole graph of a core, from cable to cable, takes no memory once it runs: counted by the allocator itself, while
//! connections open, talk, wait, are refused, reset, forgotten and used again.

#![allow(dead_code, unreachable_pub)] // modules shared with another test program

#[path = "core/graph_bench.rs"]
mod graph_bench;
#[path = "core/harness.rs"]
mod harness;

use std::collections::BTreeMap;
use std::time::Duration;

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, HeapBuffer, PacketBuffer};
use e2d2::port::{Port, PortId};
use e2d2::wire::Envelope;
use e2d2::wire::frame::{self, Kind};
use e2d2::wire::icmpv4::Icmpv4Repr;
use e2d2::wire::tcp::TcpFlags;
use graph_bench::GraphBench;
use harness::{CONFIG, Client, PROXY_MAC, Receive, Server};
use proxyengine::callbacks::{
    ConnectionInfo, FirstPayload, InspectPayload, Inspected, Payload, SelectServer, Selection, Verdict,
};
use proxyengine::config::{ListenerId, PayloadRegex, PoolId, ServerId};
use splice::Usage;
use testkit::Segment;

#[path = "../crates/e2d2/tests/counting/mod.rs"]
mod counting;

/// The last of the listeners that [`config`] adds to the harness's two: its clients say nothing.
const SLOW: ListenerId = ListenerId(4);

/// As the harness's selector, but it writes nothing down.
struct Quiet;

impl SelectServer for Quiet {
    fn select(&mut self, payload: &FirstPayload<'_>) -> Selection {
        match payload.bytes.first() {
            Some(digit @ b'0'..=b'9') => Selection::Server(ServerId(u16::from(digit - b'0'))),
            Some(b'p') => Selection::Pool(PoolId(payload.listener.0)),
            Some(b'?') if payload.bytes.contains(&b'\n') => Selection::Server(ServerId(0)),
            Some(b'?') => Selection::NeedMore,
            // Those who bind with the SYN, or have waited long enough.
            None => Selection::Pool(PoolId(u16::from(payload.listener == SLOW))),
            _ => Selection::Reject,
        }
    }
}

/// Writes every payload anew, with its letters exchanged between upper and lower case.
struct Swap;

impl InspectPayload for Swap {
    type Context = u64;

    fn open(&mut self, _connection: &ConnectionInfo) -> Option<u64> {
        Some(0)
    }

    fn inspect(&mut self, seen: &mut u64, payload: &mut Payload<'_>) -> Verdict {
        let (bytes, output) = payload.replace();
        *seen += bytes.len() as u64;
        for byte in bytes {
            let swapped = if byte.is_ascii_alphabetic() { byte ^ 0x20 } else { *byte };
            output.write(&[swapped]).expect("room for as much as there was");
        }
        Verdict::Replace
    }
}

/// Short times, few ports, servers that are never thought dead, and listeners that bind with the SYN.
fn config() -> String {
    let listener = "[[listener]]\nname = \"early\"\naddresses = [\"10.0.0.9:81\"]\nbind = \"syn\"\ndefault = \"all\"\n\
                    [[listener]]\nname = \"headed\"\naddresses = [\"10.0.0.9:83\"]\nbind = \"syn\"\ndefault = \"all\"\n\
                    proxy_protocol = { accept = \"required\", from = [\"10.0.0.0/24\"] }\n\
                    [[listener]]\nname = \"slow\"\naddresses = [\"10.0.0.9:82\"]\ninspect_delay = \"1s\"\n\
                    rules = [{ first_number = true, pool = \"all\" }]\ndefault = \"all6\"\n";
    let pools = CONFIG
        .replace(
            "name = \"all\"\n",
            "name = \"all\"\neject_after = 0\nlocal_ports = \"5000-5099\"\n",
        )
        .replace(
            "name = \"all6\"\n",
            "name = \"all6\"\neject_after = 0\nlocal_ports = \"5000-5099\"\n",
        );
    let times =
        "[timeouts]\nselect = \"2s\"\nconnect = \"3s\"\nidle = \"5s\"\nhalf_close = \"5s\"\ntime_wait = \"1s\"\n";
    format!("{pools}\n{listener}\n{times}")
}

/// What allocations were counted while the graph ran; all else is the test's own.
struct Counted<S> {
    bench: GraphBench<S>,
    allocations: usize,
    /// The most of everything that was in use at a time.
    most: Usage,
    /// Ended connections by the cause of the client's side.
    causes: BTreeMap<String, usize>,
}

impl<S: SelectServer> Counted<S> {
    fn new(selector: S) -> Self {
        Counted {
            bench: GraphBench::with_selector(&config(), 6, selector),
            allocations: 0,
            most: Usage::default(),
            causes: BTreeMap::new(),
        }
    }

    /// Runs the graph until it is idle and returns the TCP segments that it sent.
    fn run(&mut self) -> Vec<Segment> {
        let mut sent = Vec::new();
        for round in 0.. {
            assert!(round < 1000, "the graph still finds work after 1000 rounds");
            let before = counting::allocations();
            let worked = !self.bench.core.task.run(self.bench.now).is_none();
            self.allocations += counting::allocations() - before;
            for far in &mut self.bench.core.far {
                let mut burst: ArrayVec<HeapBuffer, BURST> = ArrayVec::new();
                while far.receive(&mut burst) > 0 {
                    for buffer in burst.drain(..) {
                        if matches!(frame::parse(buffer.data()), Ok(Kind::Tcp(_))) {
                            sent.push(Segment::read(buffer.data()));
                        }
                    }
                }
            }
            if !worked {
                break;
            }
        }
        let usage = self.bench.core.handle.look(|proxy| proxy.usage());
        self.most.connections = self.most.connections.max(usage.connections);
        self.most.time_wait = self.most.time_wait.max(usage.time_wait);
        self.most.held = self.most.held.max(usage.held);
        self.most.half_open = self.most.half_open.max(usage.half_open);
        self.most.forwarded_syns = self.most.forwarded_syns.max(usage.forwarded_syns);
        self.most.inspected = self.most.inspected.max(usage.inspected);
        self.most.kept = self.most.kept.max(usage.kept);
        self.most.rtx_queues = self.most.rtx_queues.max(usage.rtx_queues);
        self.most.flows = self.most.flows.max(usage.flows);
        self.most.timers = self.most.timers.max(usage.timers);
        self.most.ports = self.most.ports.max(usage.ports);
        let causes = &mut self.causes;
        self.bench.core.records.drain(|record| {
            let cause = format!("{:?}", record.cause(netfcts::Side::Client));
            *causes.entry(cause).or_default() += 1;
        });
        sent
    }

    fn frame(&mut self, port: PortId, frame: &[u8]) -> Vec<Segment> {
        let buffer = self
            .bench
            .core
            .pool
            .take_copy(frame)
            .expect("a buffer that nobody has kept");
        let mut burst: ArrayVec<HeapBuffer, BURST> = ArrayVec::new();
        burst.push(buffer);
        self.bench.core.far[usize::from(port.0)].transmit(&mut burst);
        assert!(burst.is_empty(), "the cable is full");
        self.run()
    }

    /// Lets time pass and returns what was sent meanwhile.
    fn wait(&mut self, time: Duration) -> Vec<Segment> {
        let end = self.bench.now + time;
        let mut sent = Vec::new();
        while self.bench.now < end {
            self.bench.now += Duration::from_millis(100).min(end - self.bench.now);
            sent.extend(self.run());
        }
        sent
    }

    /// Bytes that are there from the start, and bytes of reservations that have been touched so far.
    fn memory(&self) -> (usize, usize) {
        let handle = &self.bench.core.handle;
        let (all, grown) = handle.look(|proxy| (proxy.memory(), proxy.memory_grown()));
        (all - grown, grown)
    }

    /// Waits until every connection is over and checks that nothing is in use.
    fn settle(&mut self) {
        self.wait(Duration::from_secs(20));
        assert_eq!(self.bench.core.handle.look(|proxy| proxy.usage()), Usage::default());
        assert_eq!(self.bench.core.reader.held(), 0);
        assert_eq!(self.bench.core.pool.available(), self.bench.core.pool.capacity());
    }
}

impl<S: SelectServer> Receive for Counted<S> {
    fn receive(&mut self, segment: &Segment) -> Vec<Segment> {
        let port = PortId(u8::from(segment.to.mac.0[5] == PROXY_MAC[1]));
        self.frame(port, &segment.frame())
    }
}

/// Client and server of a connection whose request has been passed on and acknowledged.
fn spliced(bench: &mut Counted<impl SelectServer>, mut client: Client, request: &[u8]) -> Option<(Client, Server)> {
    client.connect(bench);
    let syn = client
        .send(bench, request)
        .into_iter()
        .find(|s| s.flags == TcpFlags::SYN)?;
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(bench);
    for segment in held {
        server.ack = segment.seq.wrapping_add(segment.len());
    }
    bench.receive(&server.segment(TcpFlags::ACK, b""));
    Some((client, server))
}

fn close(bench: &mut Counted<impl SelectServer>, client: &mut Client, server: &mut Server) {
    bench.receive(&client.segment(TcpFlags::FIN, b""));
    client.seq = client.seq.wrapping_add(1);
    server.ack = server.ack.wrapping_add(1);
    bench.receive(&server.segment(TcpFlags::FIN, b""));
    server.seq = server.seq.wrapping_add(1);
    client.ack = client.ack.wrapping_add(1);
    bench.receive(&client.segment(TcpFlags::ACK, b""));
}

/// An answer of some segments, the second of them lost at first, and everything acknowledged.
fn answer(bench: &mut Counted<impl SelectServer>, client: &mut Client, server: &mut Server) {
    let segments: Vec<_> = (0..4_u32)
        .map(|n| Segment {
            seq: server.seq.wrapping_add(n * 1000),
            ..server.segment(TcpFlags::PSH, &[n as u8; 1000])
        })
        .collect();
    for n in [0, 2, 3] {
        bench.receive(&segments[n]);
        let sack = vec![(client.ack.wrapping_add(2000), client.ack.wrapping_add(4000))];
        bench.receive(&Segment {
            sack: if n == 3 { sack } else { Vec::new() },
            ..client.segment(TcpFlags::ACK, b"")
        });
    }
    // What came behind the hole may have been lost, too.
    for segment in &segments[1..] {
        assert_eq!(bench.receive(segment).len(), 1);
    }
    server.seq = server.seq.wrapping_add(4000);
    client.ack = client.ack.wrapping_add(4000);
    bench.receive(&client.segment(TcpFlags::ACK, b""));
}

fn refuse(bench: &mut Counted<impl SelectServer>, syn: &Segment) {
    bench.receive(&Segment {
        ack: syn.seq.wrapping_add(1),
        flags: TcpFlags::RST | TcpFlags::ACK,
        window: 0,
        ..Segment::between(syn.to, syn.from)
    });
}

/// A complaint of a router about a segment that the proxy sent.
fn complain(bench: &mut Counted<impl SelectServer>, about: &Segment, code: u8) {
    let (from, to) = (about.to, about.from);
    let quoted = about.frame();
    let envelope = Envelope {
        src_mac: from.mac,
        dst_mac: to.mac,
        src_addr: from.address.ip(),
        dst_addr: to.address.ip(),
        hop_limit: 64,
    };
    let message = Icmpv4Repr::Unreachable {
        code,
        next_hop_mtu: 1300,
        original: &quoted[14..],
    };
    let mut buffer = bench.bench.core.pool.take().expect("a buffer that nobody has kept");
    message.emit(&envelope, &mut buffer).expect("room for an error");
    let frame = buffer.data().to_vec();
    drop(buffer);
    bench.frame(PortId(u8::from(to.mac.0[5] == PROXY_MAC[1])), &frame);
}

/// The ways of a connection that [`connection`] knows.
const KINDS: u16 = 19;

/// One connection from its SYN to its end, or to where its time-out has to end it.
fn connection(bench: &mut Counted<impl SelectServer>, kind: u16, port: u16) {
    let client = Client::new(port);
    match kind {
        0..=2 => whole(
            bench,
            client,
            [&b"0 hello"[..], b"3 to IPv6", b"pool"][usize::from(kind)],
        ),
        3 => whole(bench, Client::new_v6(port), b"4 hello"),
        4 => whole(bench, Client::new_v6(port), b"1 to IPv4"),
        5 => in_pieces(bench, client, true),
        6 => in_pieces(bench, client, false),
        7 => {
            let mut client = client;
            client.connect(bench);
            client.send(bench, b"refused by the selector");
        }
        8 | 9 => {
            let mut client = client;
            client.connect(bench);
            let sent = client.send(bench, b"1 hello");
            // The server refuses, or says nothing; the client comes again.
            if let Some(syn) = sent.iter().find(|s| s.flags == TcpFlags::SYN && kind == 8) {
                refuse(bench, syn);
            }
        }
        10 => {
            // Nobody acknowledges the SYN-ACK; strangers knock.
            bench.receive(&client.syn());
            bench.receive(&client.segment(TcpFlags::ACK, b"guessed"));
            bench.receive(&client.segment(TcpFlags::RST, b""));
            bench.frame(PortId(0), &[0x5a; 60]);
        }
        11 | 12 => {
            let Some((client, server)) = spliced(bench, client, b"2 hello") else {
                return;
            };
            let reset = if kind == 11 {
                client.segment(TcpFlags::RST, b"")
            } else {
                server.segment(TcpFlags::RST, b"")
            };
            bench.receive(&reset);
            bench.receive(&server.segment(TcpFlags::PSH, b"late"));
        }
        13 => {
            // Silence after the splice, and routers that complain.
            if let Some((client, server)) = spliced(bench, client, b"0 idle") {
                for segment in bench.receive(&server.segment(TcpFlags::PSH, b"lost")) {
                    complain(bench, &segment, 4);
                    complain(bench, &segment, 1);
                }
                bench.receive(&client.segment(TcpFlags::ACK, b""));
            }
        }
        14 => early(bench, client, true),
        15 => early(bench, client, false),
        16 => headed(bench, client, true),
        17 => headed(bench, client, false),
        _ => {
            // Says nothing, and after a second is connected by default; its server greets and leaves.
            let mut client = client;
            client.proxy = client.proxy.with_port(82);
            bench.receive(&client.syn());
            bench.wait(Duration::from_millis(1500));
            client.connect(bench);
            bench.wait(Duration::from_millis(900));
            // The server answers within the bound of a call: it would be left for the next one.
            let syn = (0..20).find_map(|_| {
                let sent = bench.wait(Duration::from_millis(10));
                sent.into_iter()
                    .find(|s| s.flags == TcpFlags::SYN && s.to.address.is_ipv6())
            });
            let mut server = Server::from_syn(&syn.expect("connected by default"));
            server.accept(bench);
            server.send(bench, b"220 ready");
            bench.receive(&server.segment(TcpFlags::RST, b""));
        }
    }
}

/// Opened, asked, answered, closed; then late copies, and the same ports again while the connection rests.
fn whole(bench: &mut Counted<impl SelectServer>, client: Client, request: &[u8]) {
    let (port, is_v6) = (client.me.address.port(), client.me.address.is_ipv6());
    let Some((mut client, mut server)) = spliced(bench, client, request) else {
        return;
    };
    answer(bench, &mut client, &mut server);
    close(bench, &mut client, &mut server);
    let late = Segment {
        seq: server.seq.wrapping_sub(1),
        ..server.segment(TcpFlags::FIN, b"")
    };
    bench.receive(&late);
    bench.receive(&client.segment(TcpFlags::ACK, b""));
    let mut again = if is_v6 { Client::new_v6(port) } else { Client::new(port) };
    again.seq = client.seq.wrapping_add(100_000);
    again.tsval = client.tsval + 5000;
    if let Some((mut client, mut server)) = spliced(bench, again, request) {
        close(bench, &mut client, &mut server);
    }
}

/// A request that the selector wants more of, out of order; completed, or left as it is.
fn in_pieces(bench: &mut Counted<impl SelectServer>, mut client: Client, completed: bool) {
    client.connect(bench);
    client.send(bench, b"?one piece");
    let start = client.seq;
    client.seq = start.wrapping_add(1000);
    client.send(bench, &[b'c'; 1000]);
    client.seq = start;
    client.send(bench, &[b'b'; 1000]);
    client.seq = start.wrapping_add(2000);
    if !completed {
        return;
    }
    let sent = client.send(bench, b"and the end\n");
    let Some(syn) = sent.iter().find(|s| s.flags == TcpFlags::SYN) else {
        return;
    };
    let mut server = Server::from_syn(syn);
    let (_, held) = server.accept(bench);
    let bytes: usize = held.iter().map(|segment| segment.payload.len()).sum();
    assert_eq!(bytes, 2022, "the whole request goes to the server");
    // Nothing of it arrives, so that the queue has to be retransmitted; a part is acknowledged then.
    bench.wait(Duration::from_millis(1500));
    server.ack = server.ack.wrapping_add(1000);
    bench.receive(&server.segment(TcpFlags::ACK, b""));
    bench.receive(&server.segment(TcpFlags::RST, b""));
}

/// Through the listener that binds with the SYN: a whole connection, or one that its server refuses.
fn early(bench: &mut Counted<impl SelectServer>, mut client: Client, accepted: bool) {
    client.proxy = client.proxy.with_port(81);
    let syn = bench.receive(&client.syn());
    let syn = syn
        .iter()
        .find(|s| s.flags == TcpFlags::SYN)
        .expect("the SYN is passed on");
    if !accepted {
        return refuse(bench, syn);
    }
    let mut server = Server::from_syn(syn);
    let syn_ack = bench.receive(&server.syn_ack());
    server.seq = server.isn.wrapping_add(1);
    client.take_syn_ack(&harness::only(syn_ack));
    bench.receive(&client.segment(TcpFlags::ACK, b""));
    answer(bench, &mut client, &mut server);
    close(bench, &mut client, &mut server);
}

/// Through the listener that takes a PROXY header behind the SYN: a whole connection, or one whose header never ends.
fn headed(bench: &mut Counted<impl SelectServer>, mut client: Client, completed: bool) {
    client.proxy = client.proxy.with_port(83);
    let syn = bench.receive(&client.syn());
    let mut server = Server::from_syn(&harness::only(syn));
    let syn_ack = bench.receive(&server.syn_ack());
    server.seq = server.isn.wrapping_add(1);
    client.take_syn_ack(&harness::only(syn_ack));
    bench.receive(&client.segment(TcpFlags::ACK, b""));
    client.send(bench, b"PROXY TCP4 192.0.2.7 198.");
    bench.receive(&server.syn_ack());
    if !completed {
        return;
    }
    client.send(bench, b"51.100.9 5000 443\r\n");
    answer(bench, &mut client, &mut server);
    close(bench, &mut client, &mut server);
}

/// Connections of every kind, some at a time, until `count` have been begun; then all are over.
fn connections(bench: &mut Counted<impl SelectServer>, count: u16, port: &mut u16) {
    for n in 0..count {
        connection(bench, n % KINDS, *port);
        *port = if *port == 60_000 { 20_000 } else { *port + 1 };
        if n % 32 == 31 {
            bench.wait(Duration::from_secs(6));
        }
    }
    bench.settle();
}

fn take_no_memory(selector: impl SelectServer) -> Usage {
    let mut bench = Counted::new(selector);
    let mut port = 20_000;
    connections(&mut bench, 5 * KINDS, &mut port);
    assert!(
        bench.allocations < 200,
        "{} allocations while warming up",
        bench.allocations
    );
    let ((fixed, mut grown), warm) = (bench.memory(), bench.most);
    bench.allocations = 0;
    bench.causes.clear();
    for round in 0..8 {
        connections(&mut bench, 40 * KINDS, &mut port);
        assert_eq!(bench.allocations, 0, "allocations in round {round}");
        let memory = bench.memory();
        assert_eq!(memory.0, fixed, "round {round}");
        // Reservations are touched as they are used: in the first half every port of every pool is. Then no page is new.
        if round < 4 {
            grown = memory.1;
        }
        assert_eq!(memory.1, grown, "round {round}");
    }
    println!("at most {:?}; ended: {:?}", bench.most, bench.causes);
    // A counter that creeps up would end above what the same mixture needed while warming up.
    assert_eq!(bench.most, warm);
    // Every connection but those that never were: the ninth kind comes no further than its SYN.
    let ended: usize = bench.causes.values().sum();
    assert!(
        ended >= 8 * 40 * usize::from(KINDS - 1),
        "too few connections ended: {:?}",
        bench.causes
    );
    for cause in [
        "ActiveClose",
        "ActiveRst",
        "PassiveRst",
        "IdleTimeout",
        "SelectorReject",
        "SelectorTimeout",
        "BadProxyHeader",
        "ServerRefused",
    ] {
        assert!(
            bench.causes.contains_key(cause),
            "no connection ended by {cause}: {:?}",
            bench.causes
        );
    }
    let most = bench.most;
    for (count, of) in [
        (most.half_open, "half-open connections"),
        (most.forwarded_syns, "forwarded SYNs"),
        (most.held, "held requests"),
        (most.time_wait, "resting connections"),
    ] {
        assert!(count > 0, "the mixture knows no {of}");
    }
    most
}

#[test]
fn thousands_of_connections_take_no_memory() {
    let most = take_no_memory(Quiet);
    assert!(most.rtx_queues > 0 && most.inspected == 0, "{most:?}");
}

#[test]
fn thousands_of_inspected_connections_take_no_memory() {
    let most = take_no_memory(Inspected::new(Quiet, Swap));
    assert!(most.inspected > 0 && most.kept > 0, "{most:?}");
}

/// Each state of a table that is made takes memory: who counts that counts the work, however fast the machine is. 8 MiB may
/// be taken meanwhile, and no state is smaller than 64 bytes.
#[test]
fn an_expression_that_would_be_too_big_is_refused_soon() {
    for big in ["[01]*1[01]{20}", "(a{1000}){1000}", "(.*a){30}.{30}b", r"\w{5000}"] {
        let before = counting::allocations();
        let refused = PayloadRegex::new(big, 1000).is_err();
        let allocations = counting::allocations() - before;
        assert!(refused, "{big}");
        assert!(allocations < (8 << 20) / 64, "{big}: {allocations}");
    }
}
