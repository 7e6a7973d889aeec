//! Drawn configurations, one after the other on a core that runs: it serves clients as one does that has begun with the last.

#[path = "../drawn/mod.rs"]
mod drawn;

use crate::harness::{Bench, Client, PROXY_MAC, Server, only};
use drawn::{Drawn, drawn};
use e2d2::wire::tcp::TcpFlags;
use proptest::prelude::*;
use proxyengine::config::Config;
use proxyengine::selectors::RuleSelector;
use std::collections::BTreeSet;
use std::time::Duration;
use testkit::{Segment, Station};

/// More than all weights of a pool together: each server gets one of so many connections.
const CLIENTS: u16 = 60;

/// Last bytes of addresses, on some of which there is a listener.
const ADDRESSES: std::ops::Range<u8> = 9..15;

fn bench(text: &str) -> Bench<RuleSelector> {
    let config = Config::parse(text, "drawn").unwrap_or_else(|error| panic!("{error}"));
    Bench::make_with(text, false, |_| {}, |_| RuleSelector::new(&config))
}

fn client(port: u16, listener: u8) -> Client {
    Client {
        me: Station::new(1, &format!("10.9.{}.1:{port}", port % 250)),
        proxy: Station::new(PROXY_MAC[0], &format!("10.0.0.{listener}:80")),
        ..Client::new(port)
    }
}

/// What a client is answered that says this, from its SYN to the SYN of its server; then it leaves.
fn answer(bench: &mut Bench<RuleSelector>, mut client: Client, says: &[u8]) -> String {
    bench.wait(Duration::from_millis(500));
    let sent = bench.receive(&client.syn());
    // An address that a listener has had stays ours: who connects to it is refused, where a stranger's gets no answer.
    let syn_ack = sent.iter().find(|sent| sent.flags == TcpFlags::SYN | TcpFlags::ACK);
    let Some(syn_ack) = syn_ack else {
        return "nobody listens".to_owned();
    };
    let said = |syn: &Segment| {
        let options = syn.options;
        (syn.window, options.mss, options.window_scale, options.sack_permitted)
    };
    // The client of these tests wants timestamps.
    if syn_ack.options.timestamps.is_none() {
        return format!("{:?} without timestamps", said(syn_ack));
    }
    client.take_syn_ack(syn_ack);
    bench.receive(&client.segment(TcpFlags::ACK, b""));
    let syn = only(client.send(bench, says));
    bench.receive(&client.segment(TcpFlags::RST, b""));
    let [offered, agreed] = [syn_ack, &syn].map(said);
    let to = syn.to.address;
    format!("{offered:?} {agreed:?} {:?} {to}", syn.flags)
}

/// Of each address and first byte; whom each client gets, or, where that depends on who came before, whom clients get.
fn answers(bench: &mut Bench<RuleSelector>, is_by_hash: bool) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for listener in ADDRESSES {
        for says in [b"a", b"b", b"c"] {
            let each: Vec<String> = (0..CLIENTS)
                .map(|n| answer(bench, client(20_000 + n, listener), says))
                .collect();
            all.push(match is_by_hash {
                true => each,
                false => each.into_iter().collect::<BTreeSet<_>>().into_iter().collect(),
            });
        }
    }
    all
}

/// Somebody whose connection goes on, if the file has a listener at the first address: what was has its number for as long.
fn stays(bench: &mut Bench<RuleSelector>, port: u16) {
    let mut client = client(port, ADDRESSES.start + 1);
    let sent = bench.receive(&client.syn());
    if let [syn_ack] = &sent[..]
        && syn_ack.flags == TcpFlags::SYN | TcpFlags::ACK
        && syn_ack.options.timestamps.is_some()
    {
        client.take_syn_ack(syn_ack);
        bench.receive(&client.segment(TcpFlags::ACK, b""));
        let syn = only(client.send(bench, b"a"));
        // A server that said nothing would be passed over soon.
        Server::from_syn(&syn).accept(bench);
    }
}

/// The versions that the first can go on with.
fn that_follow(versions: Vec<Drawn>) -> Vec<Drawn> {
    let began = versions[0].restarts;
    versions
        .into_iter()
        .filter(|version| version.restarts == began)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(30) })]

    #[test]
    fn versions_after_each_other_serve_as_the_last_alone(versions in proptest::collection::vec(drawn(), 2..5), forgets: bool) {
        let versions = that_follow(versions);
        let rules = |config: &Config| Some(RuleSelector::new(config));
        let mut running = bench(&versions[0].text());
        for (port, version) in (30_000..).zip(&versions[1..]) {
            stays(&mut running, port);
            // What answers have told is not in the file: at the end servers are not asked.
            running.probes = port % 2 == 0 && !std::ptr::eq(version, versions.last().expect("one, at least"));
            running.reload(&version.text(), rules);
            if forgets {
                running.forget_past(rules);
            }
        }
        // Those that were new while servers were probed wait for what cookies have promised.
        running.wait(Duration::from_secs(40));
        let last = versions.last().expect("one, at least");
        let is_by_hash = last.text().matches("policy = \"client_hash\"").count()
            + last.text().matches("policy = \"maglev\"").count()
            == 2;
        let mut alone = bench(&last.text());
        prop_assert_eq!(answers(&mut running, is_by_hash), answers(&mut alone, is_by_hash));
    }
}
