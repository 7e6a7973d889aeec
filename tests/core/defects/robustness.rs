//! R0 to R15: what ended the ancestor's process, one of its cores, or its memory.

use super::{IP, TCP, assert_unharmed, close, mend_ip_checksum, padded, spliced};
use crate::graph_bench::{CABLE, GraphBench};
use crate::harness::{Client, Receive, Server, nothing, only};
use arrayvec::ArrayVec;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::fate::DropReason;
use e2d2::port::{Port, PortId};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::{Cause, Side};
use proxyengine::pipeline;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

/// Behind this port are the clients, behind the other one the servers.
const CLIENTS: PortId = PortId(0);

/// A SYN without options, as short as a frame may be.
fn short_syn() -> Vec<u8> {
    let syn = Segment {
        options: TcpOptions::NONE,
        ..Client::new(40000).syn()
    };
    padded(syn.frame())
}

#[test]
fn r00_a_syn_whose_options_reach_beyond_its_end_is_dropped() {
    let mut bench = GraphBench::new();
    let mut syn = short_syn();
    assert_eq!((syn.len(), &syn[IP + 2..IP + 4]), (60, &[0, 40][..]));
    syn[TCP + 12] = 15 << 4;
    nothing(bench.receive_bytes(CLIENTS, &syn));
    assert_eq!(bench.graph_dropped(DropReason::BadTcpDataOffset), 1);
    assert_unharmed(bench);
}

#[test]
fn r01_a_packet_longer_than_its_frame_is_dropped() {
    let mut bench = GraphBench::new();
    let mut syn = short_syn();
    syn[IP + 2..IP + 4].copy_from_slice(&1500_u16.to_be_bytes());
    mend_ip_checksum(&mut syn);
    nothing(bench.receive_bytes(CLIENTS, &syn));
    assert_eq!(bench.graph_dropped(DropReason::BadIpTotalLength), 1);
    assert_unharmed(bench);
}

/// They read a structure of 16 bytes, or a decimal number, from whatever came second, the padding of a bare ACK included.
#[test]
fn r02_a_first_payload_may_be_of_any_length_and_content() {
    let mut bench = GraphBench::new();
    for (port, payload) in [(40000, &b"x"[..]), (40001, &[0xff; 15]), (40002, &[0; 16])] {
        let mut client = Client::new(port);
        client.connect(&mut bench);
        nothing(bench.receive_bytes(CLIENTS, &padded(client.segment(TcpFlags::ACK, b"").frame())));
        let segment = client.segment(TcpFlags::PSH, payload);
        let reset = only(bench.receive_bytes(CLIENTS, &padded(segment.frame())));
        assert!(reset.flags.contains(TcpFlags::RST), "the selector refuses it");
        let asked = bench.calls.lock().expect("one thread").pop();
        assert_eq!(asked, Some((payload.to_vec(), false)), "asked with the payload alone");
    }
    assert_unharmed(bench);
}

#[test]
fn r03_a_server_may_repeat_its_fin_as_often_as_it_likes() {
    let mut bench = GraphBench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    let fin = server.segment(TcpFlags::FIN, b"");
    for _ in 0..50 {
        assert_eq!(only(bench.receive(&fin)).to, client.me, "each reaches the client");
    }
    server.seq = server.seq.wrapping_add(1);
    client.ack = client.ack.wrapping_add(1);
    only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    server.ack = server.ack.wrapping_add(1);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    let records = bench.records();
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].cause(Side::Client), Cause::PassiveClose);
    assert_unharmed(bench);
}

#[test_case(TCP + 12, 15 << 4, DropReason::BadTcpDataOffset; "TCP header beyond the packet")]
#[test_case(TCP + 12, 4 << 4, DropReason::BadTcpDataOffset; "TCP header below its least")]
#[test_case(IP, 0x4f, DropReason::BadTcpDataOffset; "IP header to the end of the packet")]
#[test_case(IP, 0x44, DropReason::BadIpHeaderLength; "IP header below its least")]
fn r04_header_lengths_that_do_not_fit_are_dropped(at: usize, byte: u8, reason: DropReason) {
    let mut bench = GraphBench::new();
    let mut syn = short_syn();
    syn[at] = byte;
    mend_ip_checksum(&mut syn);
    nothing(bench.receive_bytes(CLIENTS, &syn));
    let counted =
        [reason, DropReason::BadIpHeaderLength, DropReason::TooShort].map(|reason| bench.graph_dropped(reason));
    assert!(counted.contains(&1), "{counted:?}");
    assert_unharmed(bench);
}

/// Three NOPs and an end of list behind the IPv4 header.
fn with_ip_options(segment: &Segment) -> Vec<u8> {
    let mut frame = segment.frame();
    frame.splice(TCP..TCP, [1, 1, 1, 0]);
    frame[IP] = 0x46;
    let length = (frame.len() - IP) as u16;
    frame[IP + 2..IP + 4].copy_from_slice(&length.to_be_bytes());
    mend_ip_checksum(&mut frame);
    frame
}

#[test]
fn r05_ip_options_do_not_move_the_tcp_header() {
    let mut bench = GraphBench::new();
    let mut client = Client::new(40000);
    let syn_ack = only(bench.receive_bytes(CLIENTS, &with_ip_options(&client.syn())));
    client.take_syn_ack(&syn_ack);
    let request = with_ip_options(&client.segment(TcpFlags::PSH, b"2 hello"));
    let syn = only(bench.receive_bytes(CLIENTS, &request));
    assert_eq!(syn.to.address, "10.1.0.102:8080".parse().expect("an address"));
    client.seq = client.seq.wrapping_add(7);
    let (_, held) = Server::from_syn(&syn).accept(&mut bench);
    assert_eq!(only(held).payload, b"2 hello");
    let more = with_ip_options(&client.segment(TcpFlags::PSH, b"more"));
    assert_eq!(only(bench.receive_bytes(CLIENTS, &more)).payload, b"more");
    assert_unharmed(bench);
}

#[test_case(0x20, 0; "the first")]
#[test_case(0x20, 8; "one between")]
#[test_case(0, 8; "the last")]
fn r06_fragments_are_never_read_as_tcp(more: u8, offset: u8) {
    let mut bench = GraphBench::new();
    let mut frame = short_syn();
    frame[IP + 6..IP + 8].copy_from_slice(&[more, offset]);
    mend_ip_checksum(&mut frame);
    nothing(bench.receive_bytes(CLIENTS, &frame));
    assert_eq!(bench.graph_dropped(DropReason::Fragment), 1);
    assert_unharmed(bench);
}

/// Their timer and their generator ran on frames of these types, wherever they came from.
#[test_case([0x08, 0xfe]; "the timer's")]
#[test_case([0x08, 0xff]; "the generator's")]
fn r07_private_ether_types_from_the_wire_mean_nothing(ether_type: [u8; 2]) {
    let mut bench = GraphBench::new();
    let mut frame = short_syn();
    frame[12..14].copy_from_slice(&ether_type);
    nothing(bench.receive_bytes(CLIENTS, &frame));
    assert_eq!(bench.graph_dropped(DropReason::NoSuchGroup), 1);
    assert_unharmed(bench);
}

#[test]
fn r08_without_a_free_buffer_nothing_is_sent_and_everything_goes_on_later() {
    let mut bench = GraphBench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    // All but one, in which the request comes.
    let hoard: Vec<_> = (1..bench.core.pool.available())
        .filter_map(|_| bench.core.pool.take())
        .collect();
    let sent = client.send(&mut bench, b"0 hello");
    assert!(sent.iter().all(|segment| segment.flags == TcpFlags::SYN), "{sent:?}");
    drop(sent);
    let extra = bench.core.pool.take();
    bench.wait(Duration::from_millis(500));
    drop((hoard, extra));
    let syn = only(bench.wait(Duration::from_millis(1_100)));
    let (_, held) = Server::from_syn(&syn).accept(&mut bench);
    assert_eq!(only(held).payload, b"0 hello");
    assert_unharmed(bench);
}

/// Takes everything from the cables, however long they were stuck; returns how much it was.
fn unstick(bench: &mut GraphBench) -> usize {
    let mut taken = 0;
    for _ in 0..100 {
        taken += bench.exchange([]).len();
    }
    taken
}

/// So many SYNs come in while nobody takes the answers from the clients' cable.
fn flood_a_stuck_port(bench: &mut GraphBench, syns: u32) {
    for n in 0..syns {
        let syn = Segment {
            seq: n.wrapping_mul(2_654_435_761),
            ..Client::new(n as u16).syn()
        };
        let mut burst = ArrayVec::new();
        burst.push(syn.emit(&mut bench.core.pool));
        bench.core.far[0].transmit(&mut burst);
        assert!(burst.is_empty(), "the graph takes what comes in");
        let _ = bench.core.task.run(bench.now);
    }
}

#[test]
fn r09_what_a_full_queue_refuses_is_counted_and_given_back() {
    let mut bench = GraphBench::new();
    // What the engine says of itself to its neighbours when it starts.
    bench.exchange([]);
    flood_a_stuck_port(&mut bench, 5_000);
    let refused = bench.graph_dropped(DropReason::TxRefused);
    let held = bench.core.pool.capacity() - bench.core.pool.available();
    assert_eq!(refused + held as u64, 5_000, "each answer is held or counted");
    assert_eq!(unstick(&mut bench), held, "and what is held goes out in the end");
    assert_unharmed(bench);
}

/// They left a connection to whoever came next when its record was fetched while it was open.
#[test]
fn r12_records_are_taken_while_connections_are_open() {
    let mut bench = GraphBench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    assert!(bench.records().is_empty(), "it has not ended");
    assert_eq!(only(client.send(&mut bench, b"more")).payload, b"more");
    server.ack = server.ack.wrapping_add(4);
    close(&mut bench, &mut client, &mut server);
    assert_eq!(bench.records().len(), 1);
    assert!(bench.records().is_empty(), "once only");
    assert_unharmed(bench);
}

/// Every byte of what is sent follows from what the segment says: there is none that nobody has written.
#[test]
fn r14_headers_with_options_are_written_to_the_last_byte() {
    let mut bench = GraphBench::new();
    let syn = Client::new(40000).syn().emit(&mut bench.core.pool);
    bench.exchange([]);
    let answers = bench.exchange([(CLIENTS, syn)]);
    let [answer] = &answers[..] else {
        panic!("one answer, not {}", answers.len())
    };
    let syn_ack = Segment::read(answer.data());
    assert!(syn_ack.options.timestamps.is_some() && syn_ack.options.window_scale.is_some());
    // Written once more by someone else.
    let mut again = syn_ack.frame();
    // The identification and the don't-fragment flag are the sender's choice.
    again[IP + 4..IP + 8].copy_from_slice(&answer.data()[IP + 4..IP + 8]);
    mend_ip_checksum(&mut again);
    assert_eq!(answer.data(), again);
    drop(answers);
    assert_unharmed(bench);
}

#[test]
fn r15_a_stuck_port_holds_a_bounded_number_of_frames() {
    let mut bench = GraphBench::new();
    let bound = CABLE + pipeline::frames_held(2);
    for _ in 0..5 {
        flood_a_stuck_port(&mut bench, 2_000);
        let held = bench.core.pool.capacity() - bench.core.pool.available();
        assert!(held <= bound, "{held} frames");
    }
    assert!(bench.core.pool.available() > 0, "buffers are left to receive into");
    unstick(&mut bench);
    assert_unharmed(bench);
}
