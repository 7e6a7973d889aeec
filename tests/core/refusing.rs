//! Rules that refuse: by what a SYN tells, at the SYN and at the ACK that follows; and by the first payload.

use crate::harness::{Bench, CLIENT_ISN, CONFIG, Client, Server, nothing, only};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::{Cause, Side};
use proxyengine::config::Config;
use proxyengine::selectors::RuleSelector;
use splice::Usage;
use splice::drop_reason::DropReason;
use std::time::Duration;
use test_case::test_case;
use testkit::{Segment, Station};

/// [`CONFIG`] with these rules before those of both listeners, and these lines beside them.
pub fn config(rules: &str, lines: &str) -> String {
    let with = |pool: &str| {
        let number = format!("{{ first_number = true, pool = \"{pool}\" }}");
        (
            format!("rules = [{number}]"),
            format!("{lines}rules = [{}, {number}]", rules.replace("POOL", pool)),
        )
    };
    ["all", "all6"]
        .map(with)
        .iter()
        .fold(CONFIG.to_owned(), |text, (before, after)| {
            text.replacen(before, after, 1)
        })
}

pub fn bench_of(text: &str) -> Bench<RuleSelector> {
    let config = Config::parse(text, "test").unwrap_or_else(|error| panic!("{error}"));
    Bench::make_with(text, false, |_| {}, |_| RuleSelector::new(&config))
}

pub fn bench(rules: &str) -> Bench<RuleSelector> {
    bench_of(&config(rules, ""))
}

/// How many times a rule of the first listener has decided.
pub fn counted(bench: &Bench<RuleSelector>, rule: usize) -> u64 {
    counted_of(bench, 0, rule)
}

fn counted_of(bench: &Bench<RuleSelector>, listener: usize, rule: usize) -> u64 {
    let id = bench.config.listeners()[listener].rules[rule].id;
    bench.proxy.tally().rule(id).map_or(0, |rule| rule.chosen.get())
}

pub const FOUR: &str = "client = [\"10.0.0.1\"]";
const BOTH: &str = "client = [\"10.0.0.0/28\", \"fd00::/120\"]";

#[test_case(Client::new(40000); "IPv4")]
#[test_case(Client::new_v6(40000); "IPv6")]
fn a_rejected_syn_is_reset_and_leaves_nothing(client: Client) {
    let mut bench = bench(&format!("{{ {BOTH}, action = \"reject\" }}"));
    let rst = only(bench.receive(&client.syn()));
    assert_eq!(
        (rst.flags, rst.ack),
        (TcpFlags::RST | TcpFlags::ACK, CLIENT_ISN.wrapping_add(1))
    );
    // What belongs to no connection is told so by its own number, as by a closed port.
    let stray = Segment {
        ack: 77,
        ..client.segment(TcpFlags::PSH, b"hello")
    };
    let rst = only(bench.receive(&stray));
    assert_eq!((rst.flags, rst.seq), (TcpFlags::RST, 77));
    nothing(bench.receive(&Segment {
        flags: TcpFlags::RST,
        ..client.syn()
    }));
    assert_eq!(
        (
            bench.dropped(DropReason::RuleRejected),
            bench.dropped(DropReason::UnknownFlow)
        ),
        (2, 1)
    );
    assert_eq!(bench.proxy.usage(), Usage::default());
}

#[test]
fn a_dropped_client_hears_nothing_whatever_it_sends() {
    let mut bench = bench(&format!("{{ {FOUR}, action = \"drop\" }}"));
    let client = Client::new(40000);
    for segment in [
        client.syn(),
        client.syn(),
        client.segment(TcpFlags::ACK, b""),
        client.segment(TcpFlags::FIN, b"x"),
        Segment {
            flags: TcpFlags::SYN | TcpFlags::ACK,
            ..client.syn()
        },
        Segment {
            flags: TcpFlags::RST,
            ..client.syn()
        },
    ] {
        nothing(bench.receive(&segment));
    }
    assert_eq!((bench.dropped(DropReason::RuleDropped), counted(&bench, 0)), (5, 3));
    assert_eq!(bench.proxy.usage(), Usage::default());
    // Another client is served.
    let mut other = Client {
        me: Station::new(1, "10.0.0.2:40000"),
        ..Client::new(40000)
    };
    other.connect(&mut bench);
}

#[test]
fn unknown_flows_is_silent_but_a_rule_that_rejects_is_not() {
    let text = config(&format!("{{ {FOUR}, action = \"reject\" }}"), "");
    let mut bench = bench_of(&text.replacen("name = \"test\"", "name = \"test\"\nunknown_flows = \"silent\"", 1));
    assert_eq!(
        only(bench.receive(&Client::new(40000).syn())).flags,
        TcpFlags::RST | TcpFlags::ACK
    );
}

#[test]
fn rejections_are_limited_without_taking_anybody_elses_resets() {
    let mut bench = bench(&format!("{{ {FOUR}, action = \"reject\" }}"));
    let sent: usize = (0..4000)
        .map(|port| bench.receive(&Client::new(1 + port).syn()).len())
        .sum();
    assert!((500..=1500).contains(&sent), "{sent}");
    assert_eq!(bench.dropped(DropReason::RuleRejected), 4000);
    assert_eq!(bench.dropped(DropReason::RateLimited), 4000 - sent as u64);
    let stranger = Client {
        me: Station::new(1, "10.0.0.2:9"),
        ..Client::new(9)
    };
    assert_eq!(
        only(bench.receive(&stranger.segment(TcpFlags::ACK, b"x"))).flags,
        TcpFlags::RST
    );
}

#[test_case(Client::new(40000); "IPv4")]
#[test_case(Client::new_v6(40000); "IPv6")]
fn a_tarpitted_client_is_connected_and_gets_nothing_through(mut client: Client) {
    let mut bench = bench(&format!("{{ {BOTH}, action = \"tarpit\" }}"));
    let syn_ack = only(bench.receive(&client.syn()));
    assert_eq!(syn_ack.flags, TcpFlags::SYN | TcpFlags::ACK);
    assert_eq!(
        (syn_ack.window, syn_ack.options, syn_ack.payload.len()),
        (0, TcpOptions::NONE, 0)
    );
    assert_eq!(syn_ack.ack, CLIENT_ISN.wrapping_add(1));
    // The same again: a repeated SYN is told the same.
    assert_eq!(only(bench.receive(&client.syn())), syn_ack);
    client.seq = syn_ack.ack;
    client.ack = syn_ack.seq.wrapping_add(1);
    let una = client.seq;
    let probes = [
        client.segment(TcpFlags::ACK, b""),
        // A window probe of one byte (RFC 9293 3.8.6.1), one of Linux, with the number before, and a whole request.
        client.segment(TcpFlags::ACK, b"G"),
        Segment {
            seq: una.wrapping_sub(1),
            ..client.segment(TcpFlags::ACK, b"")
        },
        client.segment(TcpFlags::PSH, b"GET / HTTP/1.1\r\n\r\n"),
        client.segment(TcpFlags::FIN, b""),
    ];
    for probe in probes {
        let answer = only(bench.receive(&probe));
        assert_eq!((answer.flags, answer.window), (TcpFlags::ACK, 0), "{probe:?}");
        assert_eq!((answer.seq, answer.ack), (client.ack, una), "{probe:?}");
        assert!(
            answer.payload.is_empty() && answer.options == TcpOptions::NONE,
            "no larger than its cause"
        );
    }
    assert_eq!(
        (bench.proxy.usage(), bench.proxy.memory_in_use()),
        (Usage::default(), 0)
    );
    assert_eq!(
        (
            bench.dropped(DropReason::RuleTarpitted),
            counted_of(&bench, usize::from(client.me.address.is_ipv6()), 0)
        ),
        (7, 2)
    );
    assert!(bench.records().is_empty());
}

#[test]
fn a_tarpit_answers_no_answer_and_acknowledges_nothing_that_it_cannot_know() {
    let mut bench = bench(&format!("{{ {FOUR}, action = \"tarpit\" }}"));
    let client = Client::new(40000);
    // Two engines would answer each other for ever.
    nothing(bench.receive(&Segment {
        window: 0,
        ..client.segment(TcpFlags::ACK, b"")
    }));
    nothing(bench.receive(&Segment {
        flags: TcpFlags::SYN | TcpFlags::ACK,
        ..client.syn()
    }));
    nothing(bench.receive(&Segment {
        flags: TcpFlags::RST,
        ..client.syn()
    }));
    // A connection from before: nothing new is acknowledged, so that no client answers that it has not sent it.
    let old = Segment {
        seq: 5000,
        ack: 1_000_000,
        ..client.segment(TcpFlags::PSH, b"more")
    };
    let answer = only(bench.receive(&old));
    assert_eq!((answer.seq, answer.ack, answer.window), (1_000_000, 5000, 0));
}

#[test]
fn windows_of_zero_have_a_budget_of_their_own() {
    let mut bench = bench(&format!("{{ {FOUR}, action = \"tarpit\" }}"));
    let client = Client::new(40000);
    let sent: usize = (0..4000)
        .map(|_| bench.receive(&client.segment(TcpFlags::ACK, b"x")).len())
        .sum();
    assert!((500..=1500).contains(&sent), "{sent}");
    let stranger = Client {
        me: Station::new(1, "10.0.0.2:9"),
        ..Client::new(9)
    };
    assert_eq!(
        only(bench.receive(&stranger.segment(TcpFlags::ACK, b"x"))).flags,
        TcpFlags::RST
    );
    bench.wait(Duration::from_secs(1));
    only(bench.receive(&client.segment(TcpFlags::ACK, b"x")));
}

/// The rules of `text` for a core that has those of the bench.
pub fn reload(bench: &mut Bench<RuleSelector>, text: &str) {
    let (config, difference) = bench
        .config
        .reload_text(text, "test")
        .unwrap_or_else(|error| panic!("{error}"));
    let before = bench.proxy.settings();
    let macs: Vec<_> = before.devices.iter().map(|device| device.mac).collect();
    let mut settings = config.core_settings(0, &macs, |server| usize::from(server.id.0));
    settings.promises.offer.probe = false;
    let mut change = splice::Change::new(
        settings,
        (&*before, &*bench.proxy.tally()),
        (&config.upstream_settings(), 0),
        Some(RuleSelector::new(&config)),
        difference,
    );
    bench.proxy.adopt(&mut change, bench.now);
    bench.config = config;
}

#[test_case("reject", Some(TcpFlags::RST); "reject")]
#[test_case("drop", None; "drop")]
#[test_case("tarpit", Some(TcpFlags::ACK); "tarpit")]
fn who_was_admitted_at_the_syn_is_asked_again_at_the_ack(action: &str, answer: Option<TcpFlags>) {
    let mut bench = bench_of(CONFIG);
    let mut client = Client::new(40000);
    client.take_syn_ack(&only(bench.receive(&client.syn())));
    reload(&mut bench, &config(&format!("{{ {FOUR}, action = \"{action}\" }}"), ""));
    let sent = bench.receive(&client.segment(TcpFlags::ACK, b"1"));
    assert_eq!(sent.first().map(|segment| segment.flags), answer);
    assert_eq!(bench.proxy.usage(), Usage::default());
    // And back: its cookie has made nothing yet.
    reload(&mut bench, CONFIG);
    let syn = only(client.send(&mut bench, b"1 "));
    assert_eq!(syn.flags, TcpFlags::SYN);
}

#[test]
fn a_connection_that_is_open_stays_when_its_client_is_refused() {
    let mut bench = bench_of(CONFIG);
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"1 "));
    let mut server = Server::from_syn(&syn);
    server.accept(&mut bench);
    reload(&mut bench, &config(&format!("{{ {FOUR}, action = \"drop\" }}"), ""));
    assert_eq!(only(client.send(&mut bench, b"more")).payload, b"more");
    // Its port's next connection does not come about, be it at rest or not.
    only(bench.receive(&client.segment(TcpFlags::RST, b"")));
    nothing(bench.receive(&Segment { seq: 9, ..client.syn() }));
    assert_eq!(bench.dropped(DropReason::RuleDropped), 1);
}

#[test]
fn the_first_rule_that_matches_decides_at_the_syn_too() {
    let rules = "{ client = [\"10.0.0.1\"], pool = \"POOL\" }, { client = [\"10.0.0.0/24\", \"fd00::/64\"], action = \"drop\" }";
    let mut bench = bench(rules);
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    assert_eq!(only(client.send(&mut bench, b"x")).flags, TcpFlags::SYN);
    nothing(
        bench.receive(
            &Client {
                me: Station::new(1, "10.0.0.2:5"),
                ..Client::new(5)
            }
            .syn(),
        ),
    );
    assert_eq!((counted(&bench, 0), counted(&bench, 1)), (1, 1));
}

#[test]
fn a_rule_that_may_still_match_has_those_behind_it_wait_for_the_payload() {
    let rules = "{ client = [\"10.0.0.1\"], prefix = \"GET\", pool = \"POOL\" }, { client = [\"10.0.0.0/24\"], action = \"drop\" }";
    let mut bench = bench(rules);
    // For this one only the payload can tell; for the other one the first rule is out at once.
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    nothing(client.send(&mut bench, b"PUT"));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::SelectorReject);
    nothing(
        bench.receive(
            &Client {
                me: Station::new(1, "10.0.0.2:5"),
                ..Client::new(5)
            }
            .syn(),
        ),
    );
    assert_eq!((bench.dropped(DropReason::RuleDropped), counted(&bench, 1)), (2, 2));
}

/// Rules that only ask who the client is are asked at its SYN and at its ACK; a reload refuses those who shake hands after it. One that
/// has waited for the payload is asked then.
#[test]
fn who_was_admitted_is_not_asked_again_at_the_payload() {
    let refusing = format!("{{ {FOUR}, action = \"drop\" }}");
    for (rules, refused) in [
        (refusing.clone(), false),
        (format!("{{ prefix = \"GET\", pool = \"POOL\" }}, {refusing}"), true),
    ] {
        let mut bench = bench("{ prefix = \"SSH-\", action = \"reject\" }");
        let mut client = Client::new(40000);
        client.connect(&mut bench);
        bench.reload(&config(&rules, ""), |config| Some(RuleSelector::new(config)));
        let answers = client.send(&mut bench, b"0 hello");
        assert_eq!(
            (answers.len(), bench.dropped(DropReason::RuleDropped)),
            match refused {
                true => (0, 1),
                false => (1, 0),
            }
        );
        let is_silent = bench.receive(&Client::new(40001).syn()).is_empty();
        assert_eq!(is_silent, !refused, "{rules}");
    }
}

#[test]
fn a_payload_that_a_rule_rejects_is_reset() {
    let mut bench = bench("{ prefix = \"SSH-\", action = \"reject\" }");
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let rst = only(client.send(&mut bench, b"SSH-2.0-scan\r\n"));
    assert!(rst.flags.contains(TcpFlags::RST));
    assert_eq!((bench.dropped(DropReason::RuleRejected), counted(&bench, 0)), (1, 1));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::SelectorReject);
    bench.assert_all_returned();
}

#[test_case("bind = \"handshake\"\n"; "at the handshake")]
#[test_case("bind = \"syn\"\n"; "at the SYN")]
fn where_no_payload_is_waited_for_rules_ask_who_the_client_is(bind: &str) {
    let rules = "rules = [{ first_number = true, pool = \"POOL\" }]\ndefault = \"reject\"";
    let only_one = "rules = [{ client = [\"10.0.0.1\", \"fd00::1\"], pool = \"POOL\" }, { client = [\"10.0.0.3\"], action = \"reject\" }]\n\
                    default = \"reject\"";
    let text = ["all", "all6"].iter().fold(CONFIG.to_owned(), |text, pool| {
        text.replacen(
            &rules.replace("POOL", pool),
            &(bind.to_owned() + &only_one.replace("POOL", pool)),
            1,
        )
    });
    let mut bench = bench_of(&text);
    let mut client = Client::new(40000);
    let first = only(bench.receive(&client.syn()));
    if first.flags != TcpFlags::SYN {
        client.take_syn_ack(&first);
        assert_eq!(
            only(bench.receive(&client.segment(TcpFlags::ACK, b""))).flags,
            TcpFlags::SYN
        );
    }
    let other = Client {
        me: Station::new(1, "10.0.0.3:5"),
        ..Client::new(5)
    };
    assert_eq!(only(bench.receive(&other.syn())).flags, TcpFlags::RST | TcpFlags::ACK);
    assert_eq!((counted(&bench, 0), counted(&bench, 1)), (1, 1));
}

#[test]
fn ports_and_opposites() {
    let rules = "{ not = [{ client = [\"10.0.0.1\", \"fd00::1\"] }], listener_port = [\"80\"], action = \"drop\" }, \
                 { and = [{ prefix = \"1\" }, { regex = \"x\" }], action = \"reject\" }";
    let mut bench = bench(rules);
    nothing(
        bench.receive(
            &Client {
                me: Station::new(1, "10.0.0.2:5"),
                ..Client::new(5)
            }
            .syn(),
        ),
    );
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    assert!(only(client.send(&mut bench, b"1x\n")).flags.contains(TcpFlags::RST));
    let mut client = Client::new(40001);
    client.connect(&mut bench);
    assert_eq!(
        only(client.send(&mut bench, &[b"2x".as_slice(), &[b' '; 1100]].concat())).flags,
        TcpFlags::SYN
    );
}

#[test]
fn behind_a_proxy_the_header_says_who_is_refused() {
    let accept = "proxy_protocol = { accept = \"required\", from = [\"10.0.0.0/24\", \"fd00::/64\"] }\n";
    let mut bench = bench_of(&config(
        "{ client = [\"10.0.0.1\"], action = \"reject\" }, { client = [\"192.0.2.7\"], action = \"drop\" }",
        accept,
    ));
    let mut proxy = Client::new(40000);
    proxy.connect(&mut bench);
    nothing(proxy.send(&mut bench, b"PROXY TCP4 192.0.2.7 10.0.0.9 5000 80\r\n1 "));
    assert_eq!(
        (
            bench.dropped(DropReason::RuleDropped),
            bench.dropped(DropReason::RuleRejected)
        ),
        (1, 0)
    );
    let mut proxy = Client::new(40001);
    proxy.connect(&mut bench);
    assert_eq!(
        only(proxy.send(&mut bench, b"PROXY TCP4 192.0.2.8 10.0.0.9 5000 80\r\n1 ")).flags,
        TcpFlags::SYN
    );
}
