//! Limits of open and new connections, counted over all cores.

use crate::harness::{Bench, CONFIG, Client, nothing, only};
use crate::scribe::Scribe;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::record::NO_CLASS;
use netfcts::{Cause, Side};
use proxyengine::callbacks::Inspected;
use proxyengine::config::Config;
use proxyengine::selectors::RuleSelector;
use splice::drop_reason::DropReason;
use splice::limit::Limited;
use splice::meter::Metered;
use splice::standby::Standby;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use test_case::test_case;
use testkit::{Segment, Station};

/// [`CONFIG`] with room for more connections, these lines in both listeners, and these sections at the end.
pub fn config(lines: &str, sections: &str) -> String {
    let text = CONFIG.replacen("max_connections = 64", "max_connections = 4096", 1);
    text.replace("default = \"reject\"", &format!("default = \"reject\"\n{lines}")) + sections
}

pub fn core(text: &str, standby: &Arc<Standby>) -> Bench<RuleSelector> {
    let config = Config::parse(text, "test").unwrap_or_else(|error| panic!("{error}"));
    Bench::sharing(text, standby, |_| RuleSelector::new(&config))
}

/// This many cores with the state that cores share.
fn cores(text: &str, count: usize) -> Vec<Bench<RuleSelector>> {
    let standby = Arc::default();
    (0..count).map(|_| core(text, &standby)).collect()
}

pub fn bench(lines: &str) -> Bench<RuleSelector> {
    core(&config(lines, ""), &Arc::default())
}

fn open(bench: &Bench<RuleSelector>) -> usize {
    bench.proxy.usage().connections
}

pub fn metered(bench: &Bench<RuleSelector>, kind: Limited, id: u16) -> Metered {
    bench.standby.metered(kind, id)
}

pub fn client_at(address: &str, port: u16) -> Client {
    let v6 = address.contains(':');
    let base = if v6 { Client::new_v6(port) } else { Client::new(port) };
    let at = SocketAddr::new(address.parse().expect("an address"), port);
    Client {
        me: Station::new(1, &at.to_string()),
        ..base
    }
}

/// Completes the client's handshake; returns the answers to its ACK.
fn shake(bench: &mut Bench<RuleSelector>, client: &mut Client) -> Vec<Segment> {
    let syn_ack = only(bench.receive(&client.syn()));
    assert_eq!(syn_ack.flags, TcpFlags::SYN | TcpFlags::ACK);
    client.seq = client.seq.wrapping_add(1);
    client.ack = syn_ack.seq.wrapping_add(1);
    bench.receive(&client.segment(TcpFlags::ACK, b""))
}

/// Whether the client's connection is admitted.
pub fn gets_in(bench: &mut Bench<RuleSelector>, client: &mut Client) -> bool {
    let before = open(bench);
    _ = shake(bench, client);
    open(bench) > before
}

/// How many of so many tries of a client from the next ports are admitted.
pub fn granted(bench: &mut Bench<RuleSelector>, ports: &mut Range<u16>, tries: usize) -> usize {
    let ports = ports.take(tries);
    ports
        .filter(|port| gets_in(bench, &mut client_at("10.0.0.1", *port)))
        .count()
}

pub fn leave(bench: &mut Bench<RuleSelector>, client: &Client) {
    let before = open(bench);
    _ = bench.receive(&client.segment(TcpFlags::RST, b""));
    assert_eq!(open(bench), before - 1, "a reset ends a connection");
}

#[test_case("10.0.0.1", "10.0.0.2"; "IPv4")]
#[test_case("fd00::1", "fd00:0:0:1::1"; "IPv6")]
fn a_client_has_so_many_and_another_as_many(one: &str, other: &str) {
    let mut bench = bench("client_limit = { connections = 3, prefix_v6 = 128 }");
    let mut clients: Vec<Client> = (0..3).map(|port| client_at(one, 40000 + port)).collect();
    assert!(clients.iter_mut().all(|client| gets_in(&mut bench, client)));
    let mut fourth = client_at(one, 40003);
    let rst = only(shake(&mut bench, &mut fourth));
    assert_eq!((rst.flags, rst.seq), (TcpFlags::RST, fourth.ack));
    assert_eq!(bench.dropped(DropReason::ClientLimit), 1);
    assert!(gets_in(&mut bench, &mut client_at(other, 40000)));
    leave(&mut bench, &clients[1]);
    // The cookie is still valid.
    _ = bench.receive(&fourth.segment(TcpFlags::ACK, b""));
    assert_eq!(open(&bench), 4);
    bench.finish();
    assert_eq!(bench.standby.counted_clients(), 0);
    bench.assert_all_returned();
}

#[test]
fn who_has_not_shaken_hands_counts_for_nothing() {
    let mut bench = bench("limit = { connections = 5, rate = 5 }\nclient_limit = { connections = 5, rate = 5 }");
    for port in 0..5000 {
        _ = bench.receive(&client_at("10.0.0.1", 1 + port).syn());
    }
    bench.wait(Duration::from_millis(50));
    assert_eq!(metered(&bench, Limited::Listener, 0), Metered::default());
    assert_eq!(bench.standby.counted_clients(), 0);
    assert!(gets_in(&mut bench, &mut client_at("10.0.0.1", 6000)));
}

#[test_case("drop"; "silence")]
#[test_case("tarpit"; "a window of zero")]
fn beyond_a_limit_there_is_another_answer_than_a_reset(beyond: &str) {
    let limit = format!("client_limit = {{ connections = 1, beyond = \"{beyond}\" }}");
    let mut bench = bench(&limit);
    let mut first = client_at("10.0.0.1", 40000);
    assert!(gets_in(&mut bench, &mut first));
    let mut second = client_at("10.0.0.1", 40001);
    let sent = shake(&mut bench, &mut second);
    if beyond == "drop" {
        nothing(sent);
    } else {
        let ack = only(sent);
        assert_eq!((ack.flags, ack.window), (TcpFlags::ACK, 0));
        assert_eq!((ack.seq, ack.ack), (second.ack, second.seq));
        assert_eq!(ack.options, TcpOptions::NONE);
    }
    assert_eq!((open(&bench), bench.dropped(DropReason::ClientLimit)), (1, 1));
    // A repetition is admitted when there is room.
    leave(&mut bench, &first);
    _ = bench.receive(&second.segment(TcpFlags::ACK | TcpFlags::PSH, b"?"));
    assert_eq!(open(&bench), 1);
    bench.finish();
    bench.assert_all_returned();
}

/// RFC 9293 3.8.6.1: a client probes a window of zero for as long as it likes, a cookie is valid for 16 s.
#[test]
fn a_limit_tarpits_all_that_a_client_sends_until_there_is_room() {
    let mut bench = bench("client_limit = { connections = 1, beyond = \"tarpit\" }");
    let first = &mut client_at("10.0.0.1", 40000);
    assert!(gets_in(&mut bench, first));
    let mut second = client_at("10.0.0.1", 40001);
    (second.seq, second.ack) = (5000, 1_000_000);
    let probe = second.segment(TcpFlags::ACK, b"?");
    let ack = only(bench.receive(&probe));
    assert_eq!((ack.flags, ack.window), (TcpFlags::ACK, 0));
    assert_eq!((ack.seq, ack.ack, ack.options), (1_000_000, 5000, TcpOptions::NONE));
    leave(&mut bench, first);
    assert!(bench.receive(&probe).iter().all(|sent| sent.flags == TcpFlags::RST));
}

#[test]
fn a_rate_grants_its_burst_and_then_one_after_the_other() {
    let mut bench = bench("client_limit = { rate = 10, burst = 4 }");
    let mut ports = 1..60000_u16;
    assert_eq!(granted(&mut bench, &mut ports, 20), 4);
    let mut later = 0;
    for _ in 0..20 {
        bench.wait(Duration::from_millis(50));
        later += granted(&mut bench, &mut ports, 5);
    }
    assert_eq!(later, 10, "a second's worth");
    bench.wait(Duration::from_secs(30));
    assert_eq!(
        granted(&mut bench, &mut ports, 20),
        4,
        "a pause saves no more than the burst"
    );
}

/// Eight cores, each of which takes one client after the other.
struct Crowd {
    cores: Vec<Bench<RuleSelector>>,
    next: u16,
}

impl Crowd {
    fn new(lines: &str, sections: &str) -> Self {
        Crowd {
            cores: cores(&config(lines, sections), 8),
            next: 1024,
        }
    }

    /// One more client on a core; the client if it is admitted.
    fn comes(&mut self, core: usize, address: &str) -> Option<Client> {
        self.next = self.next.checked_add(1).unwrap_or(1024);
        let mut client = client_at(address, self.next);
        gets_in(&mut self.cores[core], &mut client).then_some(client)
    }

    fn passes(&mut self, time: Duration) {
        for core in &mut self.cores {
            core.now += time;
            _ = core.round();
        }
    }

    fn open(&self) -> usize {
        self.cores.iter().map(open).sum()
    }

    fn ends(&mut self) {
        self.cores.iter_mut().for_each(|core| _ = core.finish());
        self.passes(Duration::from_millis(20));
        for kind in [Limited::Listener, Limited::Class, Limited::Pool, Limited::Server] {
            let open = (0..6).map(|id| self.cores[0].standby.metered(kind, id).open);
            assert_eq!(open.sum::<u64>(), 0, "{kind:?}");
        }
        assert_eq!(self.cores[0].standby.counted_clients(), 0);
        self.cores.iter_mut().for_each(Bench::assert_all_returned);
    }
}

#[test]
fn eight_cores_together_grant_a_client_exactly_its_number() {
    let mut crowd = Crowd::new("client_limit = { connections = 20 }", "");
    let granted: Vec<_> = (0..200)
        .filter_map(|n| Some((n % 8, crowd.comes(n % 8, "10.0.0.1")?)))
        .collect();
    assert_eq!((granted.len(), crowd.open()), (20, 20));
    for (core, client) in granted {
        leave(&mut crowd.cores[core], &client);
        assert!(
            crowd.comes((core + 3) % 8, "10.0.0.1").is_some(),
            "its place is free on every core"
        );
        assert!(crowd.comes(core, "10.0.0.1").is_none());
    }
    crowd.ends();
}

/// In one moment each core sees what the others had 10 ms before: of a limit up to 1024 no more than that limit, as each
/// connection is published at once.
#[test]
fn eight_cores_together_grant_a_listener_its_number() {
    let mut crowd = Crowd::new("limit = { connections = 500 }", "");
    let granted = (0..2000).filter_map(|n| crowd.comes(n % 8, "10.0.0.1")).count();
    assert_eq!(granted, 500);
    assert_eq!(crowd.cores[0].standby.metered(Limited::Listener, 0).open, 500);
    crowd.passes(Duration::from_millis(10));
    assert_eq!(
        crowd.cores[0].standby.metered(Limited::Listener, 0),
        Metered {
            open: 500,
            begun: 500,
            refused: 1500
        }
    );
    crowd.ends();
}

#[test]
fn beyond_a_large_limit_there_are_at_most_those_of_the_last_ten_milliseconds() {
    let mut crowd = Crowd::new("limit = { connections = 4000 }", "");
    let (mut granted, mut in_last) = (0, 0);
    for step in 0..30 {
        in_last = (0..200)
            .filter(|n| crowd.comes((step * 200 + n) * 5 % 8, "10.0.0.1").is_some())
            .count();
        granted += in_last;
        if granted >= 4000 {
            break;
        }
        crowd.passes(Duration::from_millis(10));
    }
    assert!((4000..=4000 + in_last).contains(&granted), "{granted} and {in_last}");
    crowd.ends();
}

/// At most the burst, what the rate grants meanwhile, and 1 + rate × 10 ms of each core.
#[test_case(50.0, 10; "few")]
#[test_case(2000.0, 100; "many")]
fn eight_cores_together_grant_a_rate(rate: f64, burst: u32) {
    let mut crowd = Crowd::new(&format!("limit = {{ rate = {rate}, burst = {burst} }}"), "");
    let mut granted = 0;
    let mut clients = Vec::new();
    for step in 0..500 {
        for n in 0..12 {
            if let Some(client) = crowd.comes((step + n) % 8, "10.0.0.1") {
                granted += 1;
                clients.push(((step + n) % 8, client));
            }
        }
        crowd.passes(Duration::from_millis(2));
        clients
            .drain(..)
            .for_each(|(core, client)| leave(&mut crowd.cores[core], &client));
    }
    let meant = f64::from(burst) + rate;
    let excess = 8.0 * (1.0 + rate * 0.01);
    let granted = f64::from(granted);
    assert!(
        (meant - excess..=meant + excess).contains(&granted),
        "{granted}, meant {meant}, excess {excess}"
    );
    crowd.ends();
}

#[test]
fn eight_cores_together_grant_a_server_its_number() {
    let text = config("", "").replace(
        "name = \"all\"\nservers = [",
        "name = \"all\"\npolicy = \"least_connections\"\nservers = [",
    );
    let text = text.replace("8080\" }", "8080\", max_connections = 5 }");
    let text = text.replace(
        "{ first_number = true, pool = \"all\" }",
        "{ prefix = \"GET\", pool = \"all\" }",
    );
    let mut crowd = Crowd {
        cores: cores(&text, 8),
        next: 1024,
    };
    let mut syns = 0;
    for n in 0..40 {
        let mut client = crowd.comes(n % 8, "10.0.0.1").expect("no limit of clients");
        let sent = client.send(&mut crowd.cores[n % 8], b"GET / HTTP/1.1\r\n\r\n");
        syns += usize::from(sent.iter().any(|sent| sent.flags == TcpFlags::SYN));
    }
    assert_eq!(syns, 15, "three servers of five each");
    crowd.ends();
}

#[test]
fn a_pool_that_has_too_many_refuses_when_it_is_chosen() {
    for beyond in ["reject", "drop"] {
        let text = config("", "").replacen(
            "{ first_number = true, pool = \"all\" }",
            "{ prefix = \"GET\", pool = \"all\" }",
            1,
        );
        let limit = format!("name = \"all\"\nlimit = {{ connections = 1, beyond = \"{beyond}\" }}\n");
        let mut bench = core(&text.replacen("name = \"all\"\n", &limit, 1), &Arc::default());
        let mut first = client_at("10.0.0.1", 40000);
        assert!(gets_in(&mut bench, &mut first));
        let syn = only(first.send(&mut bench, b"GET / HTTP/1.1\r\n\r\n"));
        assert_eq!(syn.flags, TcpFlags::SYN);
        let mut second = client_at("10.0.0.1", 40001);
        assert!(gets_in(&mut bench, &mut second), "what it wants is not known yet");
        let sent = second.send(&mut bench, b"GET / HTTP/1.1\r\n\r\n");
        if beyond == "reject" {
            assert!(only(sent).flags.contains(TcpFlags::RST));
        } else {
            nothing(sent);
            nothing(bench.receive(&second.segment(TcpFlags::ACK, b"GET")));
        }
        assert_eq!((open(&bench), bench.dropped(DropReason::PoolLimit)), (1, 1));
        let cause = bench.records()[0].cause(Side::Client);
        assert_eq!(cause, Cause::SelectorReject);
        // The call ends: the pool has room again.
        _ = bench.receive(&first.segment(TcpFlags::RST, b""));
        let mut third = client_at("10.0.0.1", 40002);
        assert!(gets_in(&mut bench, &mut third));
        assert_eq!(
            only(third.send(&mut bench, b"GET / HTTP/1.1\r\n\r\n")).flags,
            TcpFlags::SYN
        );
        bench.finish();
        bench.assert_all_returned();
    }
}

const CLASSES: &str = "rules = [\
    { client = [\"10.0.0.0/29\"], class = \"office\" }, \
    { client = [\"10.0.0.0/28\"], class = \"guests\" }, \
    { prefix = \"GET\", pool = \"all\" }]";

/// The number of a class.
fn place(bench: &Bench<RuleSelector>, name: &str) -> u16 {
    let place = bench.config.classes().iter().position(|class| class.name == name);
    place.expect("a class") as u16
}

#[test]
fn a_class_is_limited_whatever_its_clients() {
    let text = config(
        "",
        "\n[[class]]\nname = \"guests\"\nlimit = { connections = 2, beyond = \"drop\" }\n",
    );
    let text = text.replacen("rules = [{ first_number = true, pool = \"all\" }]", CLASSES, 1);
    let mut bench = core(&text, &Arc::default());
    for port in 0..10 {
        assert!(
            gets_in(&mut bench, &mut client_at("10.0.0.2", 40000 + port)),
            "an office has no limit"
        );
    }
    let guests: Vec<bool> = [8, 10, 11, 12, 13, 14, 15]
        .into_iter()
        .map(|host| gets_in(&mut bench, &mut client_at(&format!("10.0.0.{host}"), 40000)))
        .collect();
    assert_eq!(guests, [true, true, false, false, false, false, false]);
    assert!(
        gets_in(&mut bench, &mut client_at("10.0.0.77", 40000)),
        "who has no class"
    );
    assert_eq!(bench.dropped(DropReason::ClassLimit), 5);
    bench.wait(Duration::from_millis(50));
    let of = |bench: &Bench<RuleSelector>, name: &str| {
        let Metered { open, begun, refused } = metered(bench, Limited::Class, place(bench, name));
        [open, begun, refused]
    };
    assert_eq!((of(&bench, "guests"), of(&bench, "office")), ([2, 2, 5], [10, 10, 0]));
    bench.finish();
    bench.wait(Duration::from_millis(50));
    assert_eq!(of(&bench, "office"), [0, 10, 0]);
    let records = bench.records();
    let in_class = |class: u16| records.iter().filter(|record| record.class == class).count();
    let counts = [place(&bench, "office"), place(&bench, "guests"), NO_CLASS].map(in_class);
    assert_eq!(counts, [10, 2, 1]);
    bench.assert_all_returned();
}

#[test]
fn an_inspector_takes_nobody_his_class() {
    let text = config("", "").replacen("rules = [{ first_number = true, pool = \"all\" }]", CLASSES, 1);
    let config = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
    let inspected = |_| Inspected::new(RuleSelector::new(&config), Scribe::default());
    let mut bench = Bench::make_with(&text, false, |_| {}, inspected);
    client_at("10.0.0.2", 40000).connect(&mut bench);
    bench.wait(Duration::from_millis(50));
    let of_all = (0..2).map(|class| bench.standby.metered(Limited::Class, class).begun);
    assert_eq!(of_all.collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn beside_one_neighbour_half_of_the_prefix_is_left() {
    let mut bench = bench("client_limit = { connections = 64 }");
    let attacker: Vec<bool> = (0..200)
        .map(|port| gets_in(&mut bench, &mut client_at("fd00::bad", 1000 + port)))
        .collect();
    assert_eq!(attacker.iter().filter(|got| **got).count(), 32);
    for host in 1..=12 {
        let address = format!("fd00::1:{host}");
        assert!(gets_in(&mut bench, &mut client_at(&address, 40000)), "{address}");
        assert!(!gets_in(&mut bench, &mut client_at("fd00::bad", 2000 + host)));
    }
    bench.finish();
    bench.assert_all_returned();
}

#[test_case("connections = 64"; "connections")]
#[test_case("rate = 64"; "a rate")]
fn the_honest_half_of_a_prefix_is_served_beside_any_number_of_new_neighbours(limit: &str) {
    let mut bench = bench(&format!("client_limit = {{ {limit} }}"));
    let honest: Vec<String> = (1..=8).map(|host| format!("fd00::1:{host}")).collect();
    // All connections end, so their addresses are known.
    for address in &honest {
        let mut client = client_at(address, 30000);
        assert!(gets_in(&mut bench, &mut client));
        leave(&mut bench, &client);
    }
    bench.wait(Duration::from_secs(10));
    let newcomers = (0..2000)
        .filter(|host| gets_in(&mut bench, &mut client_at(&format!("fd00::8000:{host:x}"), 40000)))
        .count();
    assert_eq!(newcomers, 48);
    for address in &honest {
        assert!(gets_in(&mut bench, &mut client_at(address, 40000)), "{address}");
        assert!(!gets_in(&mut bench, &mut client_at("fd00::9000:1", 40000)));
    }
    // Another prefix is another client.
    assert!(gets_in(&mut bench, &mut client_at("fd00:0:0:1::1", 40000)));
    bench.finish();
    bench.assert_all_returned();
}
