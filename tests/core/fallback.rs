//! Listeners that wait for the first payload only for a while: then the choice is made with what is there.

use crate::harness::{Bench, CONFIG, Client, Server, nothing, only};
use e2d2::wire::tcp::TcpFlags;
use netfcts::{Cause, RecordFlags, Side};
use proxyengine::config::Config;
use std::time::Duration;
use testkit::Segment;

fn text(default: &str) -> String {
    let listener = format!("default = \"{default}\"\ninspect_delay = \"2s\"");
    CONFIG.replacen("default = \"reject\"", &listener, 1)
}

fn bench() -> Bench {
    Bench::with_config(&text("all"))
}

/// What the selector has been asked.
fn calls(bench: &Bench) -> Vec<(Vec<u8>, bool)> {
    bench.calls.lock().expect("calls").clone()
}

#[test]
fn a_silent_client_gets_the_default_and_the_server_speaks_first() {
    // The harness' selector refuses nothing at all: what names the pool is for those who say something.
    let mut bench = Bench::for_pools(&text("all"));
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    nothing(bench.wait(Duration::from_millis(1_950)));
    let syn = only(bench.wait(Duration::from_millis(100)));
    assert_eq!(syn.flags, TcpFlags::SYN);
    assert_eq!(calls(&bench), [(Vec::new(), true)]);
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    nothing(held);
    let banner = only(server.send(&mut bench, b"220 ready"));
    assert_eq!((banner.payload.as_slice(), banner.seq), (&b"220 ready"[..], client.ack));
    client.ack = client.ack.wrapping_add(9);
    assert_eq!(only(client.send(&mut bench, b"HELO")).payload, b"HELO");
    bench.finish();
    assert!(bench.records()[0].flags().contains(RecordFlags::FALLBACK));
    bench.assert_all_returned();
}

#[test]
fn who_says_enough_in_time_is_served_at_once() {
    let mut bench = bench();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    nothing(bench.wait(Duration::from_millis(1_900)));
    let syn = only(client.send(&mut bench, b"1 hello"));
    Server::from_syn(&syn).accept(&mut bench);
    nothing(bench.wait(Duration::from_secs(5)));
    bench.finish();
    assert!(!bench.records()[0].flags().contains(RecordFlags::FALLBACK));
}

#[test]
fn half_a_request_goes_to_the_default_with_all_its_bytes() {
    let mut bench = bench();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    only(client.send(&mut bench, b"?half"));
    // Out of order behind it: not to be seen, but to be kept.
    client.seq = client.seq.wrapping_add(3);
    only(client.send(&mut bench, b"rest"));
    let syn = only(bench.wait(Duration::from_millis(2_050)));
    assert_eq!(calls(&bench).last(), Some(&(b"?half".to_vec(), true)));
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    let payloads: Vec<&[u8]> = held.iter().map(|segment| segment.payload.as_slice()).collect();
    assert_eq!(payloads, [&b"?half"[..], b"rest"]);
    assert_eq!(held[1].seq, server.ack.wrapping_add(8));
    // What was acknowledged is repeated by us.
    assert_eq!(only(bench.wait(Duration::from_millis(1_100))).payload, b"?half");
    server.ack = server.ack.wrapping_add(5);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    bench.finish();
    let record = bench.records()[0];
    assert!(record.flags().contains(RecordFlags::FALLBACK | RecordFlags::NEED_MORE));
    bench.assert_all_returned();
}

#[test]
fn a_refusal_is_an_answer() {
    let mut bench = bench();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    // The harness' selector refuses who says nothing.
    let reset = only(bench.wait(Duration::from_millis(2_050)));
    assert_eq!((reset.to, reset.seq), (client.me, client.ack));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::SelectorReject);
    bench.assert_all_returned();
}

#[test]
fn without_a_default_an_undecided_connection_is_over() {
    let mut bench = Bench::with_config(&text("reject"));
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    only(client.send(&mut bench, b"?half"));
    let reset = only(bench.wait(Duration::from_millis(2_050)));
    assert!(reset.flags.contains(TcpFlags::RST));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::SelectorTimeout);
    bench.assert_all_returned();
}

#[test]
fn a_silent_client_whose_ack_was_lost_is_asked_for_it() {
    let mut bench = Bench::for_pools(&text("all"));
    let mut client = Client::new(40000);
    let syn_ack = only(bench.receive(&client.syn()));
    let again = only(bench.wait(Duration::from_millis(1_050)));
    assert_eq!((again.flags, again.seq), (syn_ack.flags, syn_ack.seq));
    client.take_syn_ack(&again);
    nothing(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    // The wait begins when the client is there.
    nothing(
        bench
            .wait(Duration::from_millis(1_900))
            .into_iter()
            .filter(|segment: &Segment| segment.to != client.me)
            .collect(),
    );
    let sent = bench.wait(Duration::from_millis(200));
    assert_eq!(sent.last().map(|segment| segment.flags), Some(TcpFlags::SYN));
}

#[test]
fn who_does_not_wait_for_payload_cannot_wait_for_it_for_a_while() {
    let text = text("all").replacen(
        "rules = [{ first_number = true, pool = \"all\" }]\n",
        "bind = \"handshake\"\n",
        1,
    );
    let error = Config::parse(&text, "test").expect_err("refused").to_string();
    assert!(
        error.contains("inspect_delay means nothing with bind = \"handshake\""),
        "{error}"
    );
}
