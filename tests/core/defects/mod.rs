//! The ancestors' defects: for each of them the very input that broke ProxyEngine, and what becomes of it here.
//!
//! The numbers are those of `docs/ancestors.md`, which also names the defects that have no object here, and why. Everything
//! goes through the whole graph of a core.

mod correctness;
mod listed;
mod robustness;
mod translation;

use crate::graph_bench::GraphBench;
use crate::harness::{Client, Receive, Server, close, only, spliced};
use e2d2::wire::checksum;
use e2d2::wire::tcp::TcpFlags;

/// The client sends a word, which passes and is acknowledged.
fn talk(bench: &mut GraphBench, client: &mut Client, server: &mut Server) {
    assert_eq!(only(client.send(bench, b"word")).payload, b"word");
    server.ack = server.ack.wrapping_add(4);
    assert_eq!(only(bench.receive(&server.segment(TcpFlags::ACK, b""))).ack, client.seq);
}

/// Whatever has happened, the next client is served, and at the end nothing is missing.
fn assert_unharmed(mut bench: GraphBench) {
    let (mut client, mut server) = spliced(&mut bench, 50_000);
    assert_eq!(only(server.send(&mut bench, b"answer")).payload, b"answer");
    client.ack = client.ack.wrapping_add(6);
    close(&mut bench, &mut client, &mut server);
    bench.assert_all_returned("in the end");
}

/// Where the IPv4 header of an untagged frame begins, and the TCP header behind it when it has no options.
const IP: usize = 14;
const TCP: usize = IP + 20;

/// Makes the checksum of an IPv4 header right that a test has changed.
fn mend_ip_checksum(frame: &mut [u8]) {
    let end = IP + usize::from(frame[IP] & 0xf) * 4;
    frame[IP + 10..IP + 12].fill(0);
    let end = end.min(frame.len());
    let sum = checksum::finish(checksum::sum(&frame[IP..end]));
    frame[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
}

/// As the wire delivers it: not shorter than Ethernet allows.
fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    frame.resize(frame.len().max(60), 0);
    frame
}
