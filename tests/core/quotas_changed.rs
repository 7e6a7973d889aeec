//! Limits that a reload changes, those of single addresses of a prefix, and those of listeners that pass SYNs on.

use crate::harness::{Bench, Client, Server, bound_with_syn, only};
use crate::quotas::{bench, client_at, config, core, gets_in, granted, leave, metered};
use e2d2::wire::tcp::TcpFlags;
use proxyengine::config::Config;
use proxyengine::selectors::RuleSelector;
use splice::Usage;
use splice::drop_reason::DropReason;
use splice::limit::Limited;
use std::sync::Arc;
use std::time::Duration;
use test_case::test_case;

/// Whoever shakes hands with a server through us is counted when he has: SYNs that wait for their answers do not hide each other.
#[test_case("reject"; "reject")]
#[test_case("drop"; "drop")]
fn behind_a_forwarded_syn_a_limit_counts_who_shakes_hands(beyond: &str) {
    let limit = format!("client_limit = {{ connections = 2, beyond = \"{beyond}\" }}");
    let mut bench = Bench::for_pools(&bound_with_syn(&limit));
    let mut clients: Vec<(Client, Server)> = (0..4)
        .map(|port| {
            let client = Client::new(40000 + port);
            let syn = only(bench.receive(&client.syn()));
            (client, Server::from_syn(&syn))
        })
        .collect();
    for (client, server) in &mut clients {
        server.shake(&mut bench, client);
    }
    let mut sent = Vec::new();
    for (client, _) in &clients {
        sent.push(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    }
    let acked = sent
        .iter()
        .filter(|sent| sent.iter().all(|sent| sent.flags == TcpFlags::ACK));
    assert_eq!(acked.count(), 2);
    let resets = sent.iter().flatten().filter(|sent| sent.flags.contains(TcpFlags::RST));
    assert_eq!(
        resets.count(),
        if beyond == "reject" { 4 } else { 2 },
        "servers, and clients that are told"
    );
    assert_eq!(bench.proxy.drops()[DropReason::ClientLimit], 2);
    assert_eq!(bench.proxy.usage().connections, 2);
    bench.finish();
    bench.assert_all_returned();
}

/// SYNs whose clients never acknowledge anything may be forged: they take nothing of a pool's limit.
#[test]
fn behind_a_forwarded_syn_a_pool_counts_who_shakes_hands() {
    let limit = "name = \"all\"\nlimit = { connections = 2 }\n";
    let mut bench = Bench::for_pools(&bound_with_syn("").replacen("name = \"all\"\n", limit, 1));
    let open = |bench: &Bench| bench.standby.metered(Limited::Pool, 0).open;
    for port in 0..4 {
        assert_eq!(
            only(bench.receive(&Client::new(40000 + port).syn())).flags,
            TcpFlags::SYN
        );
    }
    bench.wait(Duration::from_millis(20));
    assert_eq!(open(&bench), 0);
    for port in 0..2 {
        let mut client = Client::new(41000 + port);
        let syn = only(bench.receive(&client.syn()));
        Server::from_syn(&syn).shake(&mut bench, &mut client);
        bench.receive(&client.segment(TcpFlags::ACK, b""));
        bench.wait(Duration::from_millis(20));
        assert_eq!(open(&bench), u64::from(port) + 1);
    }
    let refused = only(bench.receive(&Client::new(42000).syn()));
    assert!(refused.flags.contains(TcpFlags::RST));
    assert_eq!(bench.proxy.drops()[DropReason::PoolLimit], 1);
    bench.finish();
    bench.assert_all_returned();
    assert_eq!(open(&bench), 0);
}

#[test]
fn behind_a_forwarded_syn_a_header_takes_nobody_out_of_the_count() {
    let lines = "proxy_protocol = { accept = \"required\", from = [\"10.0.0.0/8\"] }\nlimit = { connections = 1 }";
    let mut bench = Bench::for_pools(&bound_with_syn(lines));
    let open = |bench: &mut Bench, port| {
        let mut client = Client::new(port);
        let syn = only(bench.receive(&client.syn()));
        Server::from_syn(&syn).shake(bench, &mut client);
        bench.receive(&client.segment(TcpFlags::ACK, b""));
        bench.proxy.usage().connections
    };
    assert_eq!(open(&mut bench, 40000), 1);
    // The second is refused at its SYN, as the first is counted.
    assert_eq!(
        only(bench.receive(&Client::new(40001).syn())).flags,
        TcpFlags::RST | TcpFlags::ACK
    );
    assert_eq!(bench.standby.metered(Limited::Listener, 0).open, 1);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn behind_a_forwarded_syn_a_single_address_has_half_of_its_prefix() {
    let mut bench = Bench::for_pools(&bound_with_syn("client_limit = { connections = 8 }"));
    let mut through = 0;
    for port in 0..8 {
        let mut client = client_at("fd00::bad", 41000 + port);
        let first = bench.receive(&client.syn());
        let Some(syn) = first.iter().find(|sent| sent.flags == TcpFlags::SYN) else {
            continue;
        };
        Server::from_syn(syn).shake(&mut bench, &mut client);
        let sent = bench.receive(&client.segment(TcpFlags::ACK, b""));
        through += usize::from(sent.iter().all(|sent| !sent.flags.contains(TcpFlags::RST)));
    }
    assert_eq!(through, 4);
}

/// The 33rd of an address whose prefix has room for 64 stays where the first answer has put it.
#[test]
fn a_single_address_beyond_its_half_is_kept_in_the_tarpit() {
    let mut bench = bench("client_limit = { connections = 64, beyond = \"tarpit\" }");
    let got = (0..40).filter(|port| gets_in(&mut bench, &mut client_at("fd00::bad", 1000 + port)));
    assert_eq!(got.count(), 32);
    let mut late = client_at("fd00::bad", 3000);
    (late.seq, late.ack) = (5000, 1_000_000);
    let ack = only(bench.receive(&late.segment(TcpFlags::ACK, b"?")));
    assert_eq!((ack.flags, ack.window), (TcpFlags::ACK, 0));
}

/// What was owed at a slow rate is not owed for longer than the bucket of the new one takes.
#[test_case("limit"; "of the listener")]
#[test_case("client_limit"; "of a client")]
fn a_raised_rate_holds_at_once(kind: &str) {
    let rules = |config: &Config| Some(RuleSelector::new(config));
    let mut bench = bench(&format!("{kind} = {{ rate = 1, burst = 500 }}"));
    let mut ports = 1000..60000_u16;
    assert_eq!(granted(&mut bench, &mut ports, 510), 500);
    bench.wait(Duration::from_millis(50));
    bench.reload(&config(&format!("{kind} = {{ rate = 100, burst = 10 }}"), ""), rules);
    assert_eq!(granted(&mut bench, &mut ports, 3), 0, "the bucket is empty");
    bench.wait(Duration::from_millis(200));
    assert!(granted(&mut bench, &mut ports, 20) >= 9);
}

/// The number of a pool stays taken while connections are counted for it, and who has it next begins anew.
#[test]
fn a_pools_number_is_free_when_nothing_is_counted_for_it() {
    let rules = |config: &Config| Some(RuleSelector::new(config));
    let with_pool = |name: &str, most: u32| {
        let rule = format!("{{ prefix = \"GET\", pool = \"{name}\" }}");
        let text = config("", "").replacen("{ first_number = true, pool = \"all\" }", &rule, 1);
        let pool = format!("name = \"{name}\"\nlimit = {{ connections = {most} }}\n");
        text.replacen("name = \"all\"\n", &pool, 1)
    };
    let splice = |bench: &mut Bench<RuleSelector>, port| {
        let mut client = client_at("10.0.0.1", port);
        assert!(gets_in(bench, &mut client));
        let syn = only(client.send(bench, b"GET / HTTP/1.1\r\n\r\n"));
        assert_eq!(syn.flags, TcpFlags::SYN, "it is called");
        bench.receive(&Server::from_syn(&syn).syn_ack());
        client
    };
    let mut bench = core(&with_pool("all", 2), &Arc::default());
    let clients = [splice(&mut bench, 40000), splice(&mut bench, 40001)];
    bench.reload(&with_pool("next", 1), rules);
    bench.forget_past(rules);
    bench.reload(&with_pool("third", 1), rules);
    let third = splice(&mut bench, 41000);
    assert_eq!(bench.config.find_pool("third").expect("a pool").index(), 3);
    for client in clients.iter().chain([&third]) {
        leave(&mut bench, client);
    }
    bench.wait(Duration::from_secs(90));
    while bench.forget_past(rules) {}
    bench.reload(&with_pool("fourth", 1), rules);
    let number = bench.config.find_pool("fourth").expect("a pool").index();
    assert!(number < 3, "{number}");
    assert_eq!(bench.proxy.tally().pool(number).expect("a pool").chosen.get(), 0);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn limits_come_and_go_with_a_reload_and_what_was_counted_is_taken_back() {
    let rules = |config: &Config| Some(RuleSelector::new(config));
    let mut bench = bench("");
    for port in 0..5 {
        assert!(gets_in(&mut bench, &mut client_at("10.0.0.1", 40000 + port)));
    }
    bench.reload(
        &config("limit = { connections = 2 }\nclient_limit = { connections = 2 }", ""),
        rules,
    );
    let later: Vec<bool> = (0..4)
        .map(|port| gets_in(&mut bench, &mut client_at("10.0.0.1", 41000 + port)))
        .collect();
    assert_eq!(later, [true, true, false, false], "those before it are not counted");
    bench.reload(&config("", ""), rules);
    assert!(gets_in(&mut bench, &mut client_at("10.0.0.1", 42000)));
    bench.finish();
    bench.wait(Duration::from_millis(50));
    assert_eq!(metered(&bench, Limited::Listener, 0).open, 0);
    assert_eq!(bench.standby.counted_clients(), 0);
    assert_eq!(bench.proxy.usage(), Usage::default());
}
