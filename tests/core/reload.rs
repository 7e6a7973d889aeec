//! Other settings while connections are open: they go on, and what is new is served.

use crate::harness::{Bench, CONFIG, Client, PROXY_MAC, Server, close, only};
use e2d2::wire::MacAddr;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use proxyengine::callbacks::SelectServer;
use proxyengine::config::{BY_DEFAULT, Config, Named, Rule};
use proxyengine::selectors::RuleSelector;
use splice::difference::Difference;
use splice::{Change, Look};
use std::collections::HashSet;
use std::time::Duration;

impl<S: SelectServer> Bench<S> {
    /// The core goes on with another version of the configuration, as the engine has it do that.
    pub fn reload(&mut self, text: &str, selector: impl FnOnce(&Config) -> Option<S>) {
        let (config, difference) = self.read(text);
        let mut change = self.made(&config, difference, selector);
        self.take_in(config, &mut change);
    }

    fn read(&self, text: &str) -> (Config, Difference) {
        (self.config.reload_text(text, "test")).unwrap_or_else(|error| panic!("{error}"))
    }

    fn made(&self, config: &Config, difference: Difference, selector: impl FnOnce(&Config) -> Option<S>) -> Change<S> {
        let macs = PROXY_MAC.map(|mac| MacAddr([2, 0, 0, 0, 0, mac]));
        let mut settings = config.core_settings(0, &macs, |server| usize::from(server.id.0));
        settings.promises.offer.probe = self.probes;
        let upstream = config.upstream_settings();
        let before = (&*self.proxy.settings(), &*self.proxy.tally());
        Change::new(settings, before, (&upstream, 0), selector(config), difference)
    }

    fn take_in(&mut self, config: Config, change: &mut Change<S>) {
        self.proxy.adopt(change, self.now);
        self.config = config;
    }

    /// The core forgets what is past and no connection names; whether there is something.
    pub fn forget_past(&mut self, selector: impl FnOnce(&Config) -> Option<S>) -> bool {
        let mut look = Look::default();
        while !look.is_over() {
            self.proxy.look_at_names(&mut look);
        }
        let named = Named {
            listeners: look.listeners().collect(),
            pools: look.pools().collect(),
            servers: look.servers().collect(),
        };
        let Some((config, difference)) = self.config.without_past(&named) else {
            return false;
        };
        let mut change = self.made(&config, difference, selector);
        self.take_in(config, &mut change);
        true
    }
}

/// Lines of the servers of pool "all", by the number that their address ends with.
pub fn with_servers(servers: &[(u32, u32)]) -> String {
    let (head, rest) = CONFIG.split_once("  { name = \"s0\"").expect("servers");
    let (_, tail) = rest.split_once("]\n").expect("the end of the pool");
    let line = |(server, weight): &(u32, u32)| {
        format!(
            "  {{ name = \"s{server}\", address = \"10.1.0.{}:8080\", weight = {weight} }},\n",
            100 + server
        )
    };
    let lines: String = servers.iter().map(line).collect();
    head.replacen(
        "{ first_number = true, pool = \"all\" }",
        "{ prefix = \"GET\", pool = \"all\" }",
        1,
    ) + &lines
        + "]\n"
        + tail
}

pub fn rules(config: &Config) -> Option<RuleSelector> {
    Some(RuleSelector::new(config))
}

pub fn bench(text: &str) -> Bench<RuleSelector> {
    let config = Config::parse(text, "test").unwrap_or_else(|error| panic!("{error}"));
    Bench::make_with(text, false, |_| {}, |_| RuleSelector::new(&config))
}

/// A new connection, spliced.
pub fn connect(bench: &mut Bench<RuleSelector>, port: u16) -> (Client, Server) {
    let mut client = Client::new(port);
    client.connect(bench);
    let syn = only(client.send(bench, b"GET / HTTP/1.1\r\n\r\n"));
    assert_eq!(syn.flags, TcpFlags::SYN);
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(bench);
    server.ack = server
        .ack
        .wrapping_add(sent.iter().map(|of| of.payload.len() as u32).sum());
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    (client, server)
}

/// Bytes go both ways.
#[track_caller]
pub fn talk(bench: &mut Bench<RuleSelector>, client: &mut Client, server: &mut Server) {
    let up = only(client.send(bench, b"more"));
    assert_eq!((up.to, up.payload.as_slice()), (server.me, &b"more"[..]));
    server.ack = server.ack.wrapping_add(4);
    let down = only(server.send(bench, b"reply"));
    assert_eq!((down.to, down.payload.as_slice()), (client.me, &b"reply"[..]));
    client.ack = client.ack.wrapping_add(5);
}

/// Which servers the next connections go to.
fn chosen(bench: &mut Bench<RuleSelector>, ports: std::ops::Range<u16>) -> Vec<u8> {
    let connections: Vec<_> = ports.map(|port| connect(bench, port)).collect();
    let mut chosen = Vec::new();
    for (mut client, mut server) in connections {
        let std::net::IpAddr::V4(ip) = server.me.address.ip() else {
            panic!("IPv4");
        };
        chosen.push(ip.octets()[3] - 100);
        close(bench, &mut client, &mut server);
    }
    chosen
}

#[test]
fn a_connection_outlives_its_server_and_its_listener_and_their_return() {
    let all = with_servers(&[(0, 1), (1, 1), (2, 1)]);
    let mut bench = bench(&all);
    let (mut client, mut server) = connect(&mut bench, 40000);
    let own = u32::from(server.me.address.ip().to_string().ends_with("101"));
    let others: Vec<_> = [(0, 1), (1, 1), (2, 1)].into_iter().filter(|of| of.0 != own).collect();

    // The server is gone, weights differ.
    bench.reload(&with_servers(&others), rules);
    talk(&mut bench, &mut client, &mut server);
    let to: HashSet<u8> = chosen(&mut bench, 41000..41006).into_iter().collect();
    assert!(!to.contains(&(own as u8)) && to.len() == 2, "{to:?}");

    // The listener is gone: its connection is not.
    let moved = with_servers(&others).replace("addresses = [\"10.0.0.9:80\"]", "addresses = [\"10.0.0.9:81\"]");
    let moved = moved.replace("name = \"web\"", "name = \"other\"");
    bench.reload(&moved, rules);
    talk(&mut bench, &mut client, &mut server);
    let refused = only(bench.receive(&Client::new(42000).syn()));
    assert!(refused.flags.contains(TcpFlags::RST), "{refused:?}");

    // Both are back, by the numbers that they had.
    bench.reload(&all, rules);
    talk(&mut bench, &mut client, &mut server);
    assert_eq!(
        chosen(&mut bench, 43000..43006)
            .into_iter()
            .collect::<HashSet<_>>()
            .len(),
        3
    );
    close(&mut bench, &mut client, &mut server);
    bench.assert_all_returned();
}

#[test]
fn weights_and_the_order_of_rules_hold_from_the_next_connection_on() {
    let text = with_servers(&[(0, 1), (1, 1), (2, 1)]);
    let mut bench = bench(&text);
    bench.reload(&with_servers(&[(0, 4), (1, 1), (2, 1)]), rules);
    let to = chosen(&mut bench, 41000..41012);
    assert_eq!(to.iter().filter(|server| **server == 0).count(), 8, "{to:?}");
    // The first rule that matches decides, so now it is the other pool.
    let rule = "{ prefix = \"GET\", pool = \"all\" }";
    let first = "{ prefix = \"GET /\", pool = \"late\" }, { prefix = \"GET\", pool = \"all\" }";
    let late = "\n[[pool]]\nname = \"late\"\nservers = [{ name = \"s9\", address = \"10.1.0.109:8080\" }]\n";
    bench.reload(&(text.replacen(rule, first, 1) + late), rules);
    assert_eq!(chosen(&mut bench, 42000..42003), [9, 9, 9]);
    bench.assert_all_returned();
}

/// How many connections each rule of the first listener has chosen a server for, by what it is called; then its default.
fn counted(bench: &Bench<RuleSelector>) -> Vec<(String, u64)> {
    let tally = bench.proxy.tally();
    let of_rule = |(place, rule): (usize, &Rule)| {
        let counted = tally.rule(rule.id).expect("counted");
        (rule.shown_as(place), counted.chosen.get())
    };
    let rules = bench.config.listeners()[0].rules.iter().enumerate().map(of_rule);
    let by_default = tally.listener(0).expect("counted").by_default.get();
    rules.chain([(BY_DEFAULT.to_owned(), by_default)]).collect()
}

#[test]
fn a_rule_goes_on_counting_while_others_come_and_go() {
    let is = |rows: &[(&str, u64)]| -> Vec<(String, u64)> {
        let row = |(rule, count): &(&str, u64)| ((*rule).to_owned(), *count);
        rows.iter().map(row).collect()
    };
    let text = with_servers(&[(0, 1)]).replacen("default = \"reject\"", "default = \"all\"", 1);
    let mut bench = bench(&text);
    chosen(&mut bench, 41000..41003);
    assert_eq!(counted(&bench), is(&[("0", 3), ("default", 0)]));

    let rule = "{ prefix = \"GET\", pool = \"all\" }";
    let before_it = format!("{{ name = \"root\", prefix = \"GET / \", pool = \"all\" }}, {rule}");
    bench.reload(&text.replacen(rule, &before_it, 1), rules);
    assert_eq!(counted(&bench), is(&[("root", 0), ("1", 3), ("default", 0)]));
    chosen(&mut bench, 42000..42002);
    assert_eq!(counted(&bench), is(&[("root", 2), ("1", 3), ("default", 0)]));

    bench.reload(&text.replacen(rule, "{ prefix = \"PUT\", pool = \"all\" }", 1), rules);
    chosen(&mut bench, 43000..43004);
    assert_eq!(counted(&bench), is(&[("0", 0), ("default", 4)]));

    // One that comes back is a new one.
    bench.reload(&text, rules);
    chosen(&mut bench, 44000..44001);
    assert_eq!(counted(&bench), is(&[("0", 1), ("default", 4)]));
    bench.assert_all_returned();
}

/// A program's own selector is not made anew: it goes on with the rules of its beginning, by their numbers.
#[test]
fn a_selector_that_is_kept_counts_for_no_rule_that_has_got_a_number_of_its() {
    let kept = |_: &Config| None;
    let text = with_servers(&[(0, 1)]).replacen("default = \"reject\"", "default = \"all\"", 1);
    let rule = "{ prefix = \"GET\", pool = \"all\" }";
    let with_rule = |prefix: &str| text.replacen(rule, &format!("{{ prefix = \"{prefix}\", pool = \"all\" }}"), 1);
    let mut bench = bench(&text);
    chosen(&mut bench, 41000..41003);
    let before_it = format!("{{ name = \"root\", prefix = \"GET / \", pool = \"all\" }}, {rule}");
    bench.reload(&text.replacen(rule, &before_it, 1), kept);
    chosen(&mut bench, 42000..42002);
    let counts = |bench: &_| counted(bench).into_iter().map(|(_, count)| count).collect::<Vec<_>>();
    assert_eq!(counts(&bench), [0, 5, 0], "it is still the second rule");
    // Its number is free then, and the next new rule has it.
    bench.reload(&with_rule("PUT"), kept);
    bench.reload(&with_rule("POST"), kept);
    chosen(&mut bench, 43000..43004);
    assert_eq!(counts(&bench), [0, 4]);
    // And stays that rule's.
    bench.reload(&with_rule("POST"), kept);
    chosen(&mut bench, 44000..44001);
    assert_eq!(counts(&bench), [0, 5]);
    bench.reload(&text, rules);
    chosen(&mut bench, 45000..45002);
    assert_eq!(counts(&bench), [2, 5]);
    bench.assert_all_returned();
}

#[test]
fn a_client_between_handshake_and_request_is_served_by_the_new_rules() {
    let mut bench = bench(&with_servers(&[(0, 1)]));
    let mut early = Client::new(40000);
    early.connect(&mut bench);
    let mut half_way = Client::new(40001);
    let syn_ack = only(bench.receive(&half_way.syn()));
    only(early.send(&mut bench, b"G"));
    bench.reload(&with_servers(&[(1, 1)]), rules);
    let syn = only(
        early
            .send(&mut bench, b"ET / HTTP/1.1\r\n\r\n")
            .into_iter()
            .filter(|of| of.flags == TcpFlags::SYN)
            .collect(),
    );
    assert!(syn.to.address.ip().to_string().ends_with(".101"), "{syn:?}");
    // A cookie of before makes a connection of now.
    half_way.take_syn_ack(&syn_ack);
    let syn = only(half_way.send(&mut bench, b"GET / HTTP/1.1\r\n\r\n"));
    assert!(syn.to.address.ip().to_string().ends_with(".101"), "{syn:?}");
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn a_number_is_free_when_no_connection_has_it_and_its_memory_with_it() {
    let mut bench = bench(&with_servers(&[(0, 1)]));
    let before = bench.proxy.memory();
    let (mut client, mut server) = connect(&mut bench, 40000);
    bench.reload(&with_servers(&[(1, 1)]), rules);
    bench.reload(&with_servers(&[(2, 1)]), rules);
    assert!(bench.proxy.memory() > before);
    // Nobody has server 1; server 0 has a connection.
    assert!(bench.forget_past(rules));
    assert!(!bench.forget_past(rules), "server 0 is named");
    talk(&mut bench, &mut client, &mut server);
    close(&mut bench, &mut client, &mut server);
    // As long as it rests, late segments come.
    assert!(!bench.forget_past(rules), "and rests");
    bench.wait(Duration::from_secs(6));
    assert!(bench.forget_past(rules));
    // What is new takes the numbers that are free: the table does not grow.
    let mut memory = Vec::new();
    for turn in 0..20 {
        bench.reload(&with_servers(&[(turn % 3, 1)]), rules);
        let port = 41000 + 2 * turn as u16;
        let to = chosen(&mut bench, port..port + 2);
        assert_eq!(to, [(turn % 3) as u8; 2]);
        bench.wait(Duration::from_secs(6));
        bench.forget_past(rules);
        memory.push(bench.proxy.memory());
    }
    assert_eq!(
        memory[4], memory[19],
        "as much after nineteen reloads as after four: {memory:?}"
    );
    bench.assert_all_returned();
}

/// Servers of a pool to which connections go that ask for it.
fn with_pool(servers: &[(u32, u32)]) -> String {
    with_servers(servers).replace(
        "{ prefix = \"GET\", pool = \"all\" }",
        "{ first_number = true, pool = \"all\" }",
    )
}

/// Answers these probes, with timestamps or without; returns how many they were.
fn answer(bench: &mut Bench, timestamps: bool, syns: &[testkit::Segment]) -> usize {
    for syn in syns.iter().filter(|of| of.flags == TcpFlags::SYN) {
        let mut syn_ack = Server::from_syn(syn).syn_ack();
        if !timestamps {
            syn_ack.options.timestamps = None;
        }
        bench.receive(&syn_ack);
    }
    syns.len()
}

/// The last number of the address of the server that the next client is led to, and whether it agreed timestamps.
fn pick(bench: &mut Bench, port: u16) -> (u8, bool) {
    let mut client = Client::new(port);
    let syn_ack = only(bench.receive(&client.syn()));
    (client.seq, client.ack) = (client.seq.wrapping_add(1), syn_ack.seq.wrapping_add(1));
    led_to(bench, &client, syn_ack.options.timestamps.is_some())
}

/// The same for a client whose SYN was answered.
fn led_to(bench: &mut Bench, client: &Client, has_timestamps: bool) -> (u8, bool) {
    let mut request = client.segment(TcpFlags::PSH, b"pool");
    if !has_timestamps {
        request.options = TcpOptions::NONE;
    }
    let sent = bench.receive(&request);
    let syn = sent.iter().find(|of| of.flags == TcpFlags::SYN).expect("a call");
    bench.receive(&Server::from_syn(syn).syn_ack());
    let std::net::IpAddr::V4(ip) = syn.to.address.ip() else {
        panic!("IPv4");
    };
    (ip.octets()[3], syn.options.timestamps.is_some())
}

/// A server that can do less than was offered takes connections when no cookie is left that offered more.
#[test]
fn a_new_server_waits_for_its_probe_and_then_for_cookies_that_promised_more() {
    let mut bench = Bench::probing(&with_pool(&[(0, 1)]));
    let asked = bench.wait(Duration::from_millis(100));
    assert!(answer(&mut bench, true, &asked) >= 1);
    bench.wait(Duration::from_secs(9));
    bench.reload(&with_pool(&[(0, 1), (1, 1)]), |_| None);
    // Not before it has said what it can do.
    for port in 41000..41004 {
        assert_eq!(pick(&mut bench, port), (100, true));
    }
    let asked = bench.wait(Duration::from_millis(100));
    assert_eq!(answer(&mut bench, false, &asked), 1, "the new one alone is asked");
    // Clients who were offered timestamps still go elsewhere.
    for port in 42000..42004 {
        assert_eq!(pick(&mut bench, port), (100, true));
    }
    bench.wait(Duration::from_secs(16));
    // From now on they are not offered, and the new server takes its turn.
    let called: HashSet<_> = (43000..43004).map(|port| pick(&mut bench, port)).collect();
    assert_eq!(called, HashSet::from([(100, false), (101, false)]));
}

/// Where all servers of a pool are new they are called before their probe is answered: a call may succeed, a RST never does. Nobody
/// knows yet whether they have timestamps, so none are offered.
#[test]
fn new_servers_are_called_before_their_probe_where_there_is_nobody_else() {
    let mut bench = Bench::probing(&with_pool(&[(0, 1)]));
    let asked = bench.wait(Duration::from_millis(100));
    assert!(answer(&mut bench, true, &asked) >= 1);
    bench.wait(Duration::from_secs(9));
    bench.reload(&with_pool(&[(1, 1)]), |_| None);
    for port in 41000..41004 {
        assert_eq!(pick(&mut bench, port), (101, false));
    }
}

/// A client who was promised more than the new one can do is no worse off: the next is called.
#[test]
fn a_new_server_is_called_before_its_probe_rather_than_one_that_is_down() {
    let check = "name = \"all\"\ncheck = { kind = \"tcp\" }\n";
    let text = |servers| with_pool(servers).replacen("name = \"all\"\n", check, 1);
    let mut bench = Bench::probing(&text(&[(0, 1)]));
    let asked = bench.wait(Duration::from_millis(100));
    assert!(answer(&mut bench, true, &asked) >= 1);
    bench.wait(Duration::from_secs(9));
    assert!(bench.standby.server(0).down().is_some());
    bench.reload(&text(&[(0, 1), (1, 1)]), |_| None);
    assert_eq!(pick(&mut bench, 41000), (101, true));
    let mut client = Client::new(41001);
    let syn_ack = only(bench.receive(&client.syn()));
    client.take_syn_ack(&syn_ack);
    let syn = only(client.send(&mut bench, b"pool"));
    let mut server = Server::from_syn(&syn);
    server.options.timestamps = None;
    let sent = bench.receive(&server.syn_ack());
    assert_eq!((sent[0].to, sent[0].flags), (server.me, TcpFlags::RST));
    assert_eq!(sent[1].to.address, "10.1.0.100:8080".parse().expect("an address"));
    bench.finish();
    bench.assert_all_returned();
}

/// Of two new servers that can do less than was offered the second waits for the cookies that offered more, though SYN-ACKs
/// offer less already because of the first.
#[test]
fn a_second_new_server_waits_for_cookies_that_promised_more() {
    let mut bench = Bench::probing(&with_pool(&[(0, 1)]));
    let asked = bench.wait(Duration::from_millis(100));
    assert!(answer(&mut bench, true, &asked) >= 1);
    let until_slot = |bench: &Bench| Duration::from_millis(8_000 - bench.now.as_millis() % 8_000);
    bench.wait(until_slot(&bench));
    bench.wait(until_slot(&bench) - Duration::from_secs(1));
    assert_eq!(pick(&mut bench, 40000), (100, true));
    bench.reload(&with_pool(&[(0, 1), (1, 1), (2, 1)]), |_| None);
    let asked = bench.wait(Duration::from_millis(100));
    assert_eq!(answer(&mut bench, false, &asked[..1]), 1);
    // These clients are offered timestamps, as all in their slot.
    let offered = (41000..41004).map(|port| {
        let mut client = Client::new(port);
        let syn_ack = only(bench.receive(&client.syn()));
        assert!(syn_ack.options.timestamps.is_some());
        (client.seq, client.ack) = (client.seq.wrapping_add(1), syn_ack.seq.wrapping_add(1));
        client
    });
    let offered: Vec<_> = offered.collect();
    // The next slot offers none, and in it the second server answers.
    bench.wait(until_slot(&bench));
    assert_eq!(pick(&mut bench, 42000), (100, false));
    assert_eq!(answer(&mut bench, false, &asked[1..]), 1);
    bench.wait(Duration::from_millis(1));
    for client in &offered {
        assert_eq!(led_to(&mut bench, client, true), (100, true));
    }
    bench.wait(Duration::from_secs(16));
    let called: HashSet<_> = (43000..43006).map(|port| pick(&mut bench, port)).collect();
    assert_eq!(called, HashSet::from([(100, false), (101, false), (102, false)]));
}

/// A hundred pools of a hundred servers, one server in each of which is another by each version.
fn hundred_pools(turn: u32) -> String {
    let (head, _) = CONFIG.split_once("[[listener]]").expect("listeners");
    let mut text = head.replace("10.1.0.9/24", "10.1.0.9/16");
    for pool in 0..100_u32 {
        let server = |n: u32| {
            let last = if n == 0 { 100 + turn } else { n };
            format!(
                "{{ name = \"s{pool}-{last}\", address = \"10.1.{}.{last}:8080\" }}",
                pool + 1
            )
        };
        let servers: Vec<String> = (0..100).map(server).collect();
        text += &format!("[[pool]]\nname = \"p{pool}\"\nservers = [{}]\n", servers.join(", "));
    }
    text + "[[listener]]\nname = \"web\"\naddresses = [\"10.0.0.9:80\"]\ndefault = \"p0\"\n"
}

/// What is new is made beforehand, so that the core takes it in at once. The bound is far above what it takes; `--nocapture` tells.
#[test]
fn a_core_takes_in_ten_thousand_servers_within_a_round() {
    let mut bench = bench(&hundred_pools(0));
    let mut times = Vec::new();
    for turn in 1..20 {
        let began = std::time::Instant::now();
        let (config, difference) = bench.read(&hundred_pools(turn));
        assert_eq!((difference.new_servers.len(), difference.pools.len()), (100, 100));
        let read = began.elapsed();
        let mut change = bench.made(&config, difference, rules);
        let made = began.elapsed() - read;
        let began = std::time::Instant::now();
        bench.proxy.adopt(&mut change, bench.now);
        times.push(began.elapsed());
        bench.config = config;
        if turn == 1 {
            println!("read in {read:?}, made in {made:?}");
        }
        bench.forget_past(rules);
    }
    times.sort_unstable();
    println!(
        "taken in in {:?} (shortest), {:?} (median)",
        times[0],
        times[times.len() / 2]
    );
    assert!(times[0] < Duration::from_micros(500), "{times:?}");
}
