//! Another version of a file for an engine that runs: what comes of both is what comes of the second alone.

#[path = "../drawn/mod.rs"]
mod drawn;
mod kept;

use std::net::{IpAddr, SocketAddr};

use drawn::{RESTARTS, drawn, small};
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use netfcts::leg::mapped;
use proptest::prelude::*;
use proxyengine::config::{
    ClassRule, Config, Fallback, ListenerId, Match, Named, PoolConfig, PoolId, PortConfig, ServerId, Standing,
};
use splice::upstream::Upstream;

pub(crate) fn parse(text: &str) -> Config {
    Config::parse(text, "drawn").unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// What a configuration says, whatever its numbers are.
fn meaning(config: &Config) -> Vec<String> {
    let pool_name = |pool: PoolId| config.pool(pool).name.clone();
    let in_file = |standing: Standing| standing == Standing::InFile;
    let mut lines = Vec::new();
    for listener in config.listeners().iter().filter(|of| in_file(of.standing)) {
        let rules: Vec<_> = listener
            .rules
            .iter()
            .map(|rule| (&rule.matches, pool_name(rule.pool().expect("a pool"))))
            .collect();
        let default = match listener.default {
            Fallback::Pool(pool) => pool_name(pool),
            Fallback::Reject => "reject".to_owned(),
        };
        let mut bare = listener.clone();
        (bare.id, bare.default) = (ListenerId(0), Fallback::Reject);
        bare.rules.clear();
        // Numbers of conditions and classes are those of their version.
        let class = |rule: &ClassRule| {
            let class = &config.classes()[usize::from(rule.class)];
            let asked = match &rule.matches {
                Match::Client(clients) => format!("{:?}", clients.prefixes),
                other => format!("{other:?}"),
            };
            format!("{asked} {class:?}")
        };
        let classes: Vec<String> = bare.classes.iter().map(class).collect();
        bare.classes.clear();
        lines.push(format!("{bare:?} {rules:?} {classes:?} {default}"));
    }
    for pool in config.pools().iter().filter(|of| in_file(of.standing)) {
        let member = |of: &splice::settings::Member| (config.server(of.server).address, of.weight, of.backup);
        let members: Vec<_> = pool.members.iter().map(member).collect();
        lines.push(format!("{} {:?} {:?} {members:?}", pool.name, pool.policy, pool.hash));
        lines.push(format!("{} {:?}", pool.name, picked(config, pool)));
    }
    for server in config.servers().iter().filter(|of| in_file(of.standing)) {
        let mut bare = server.clone();
        (bare.id, bare.group) = (ServerId(0), 0);
        lines.push(format!("{bare:?}"));
    }
    lines.push(format!(
        "{:?} {:?} {:?}",
        config.engine(),
        config.timeouts(),
        config.syn_ack()
    ));
    lines.sort();
    lines
}

/// Whom some clients get, where that does not depend on who came before.
fn picked(config: &Config, pool: &PoolConfig) -> Vec<Option<SocketAddr>> {
    if !pool.policy.is_hash() {
        return Vec::new();
    }
    let mut upstream = Upstream::new(&config.upstream_settings(), 0);
    let mut pick = |client: u8| {
        let server = upstream.pick(pool.id, IpAddr::from([10, 0, 0, client]), Instant::from_millis(1_000));
        server.map(|server| config.server(server).address)
    };
    (0..8).map(&mut pick).collect()
}

/// Who listens where, by name, as a core sees it.
fn listening(config: &Config) -> Vec<Option<String>> {
    let settings = config.core_settings(0, &[MacAddr([2, 0, 0, 0, 0, 1]); 2], |_| 0);
    let on = |last: u8| {
        let address = settings.addresses.index(mapped(IpAddr::from([10, 0, 0, last])))?;
        let listener = settings.addresses.listener(address, 80, PortId(0))?;
        Some(config.listener(ListenerId(listener)).name.clone())
    };
    (9..15).map(on).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    /// One after another, whatever is forgotten between: the last alone says what holds, or is refused by the key that it
    /// differs in.
    #[test]
    fn versions_after_each_other_are_the_last_alone(versions in proptest::collection::vec((drawn(), any::<bool>()), 2..6)) {
        let mut running = parse(&versions[0].0.text());
        let began = versions[0].0.restarts;
        for (version, forgets) in &versions[1..] {
            let text = version.text();
            let alone = parse(&text);
            let (next, difference) = match running.reload_text(&text, "drawn") {
                Ok(next) => next,
                Err(error) => {
                    let differs = (0..RESTARTS.len()).filter(|&index| began[index] != version.restarts[index]);
                    let mut keys: Vec<_> = differs.map(|index| RESTARTS[index].0).collect();
                    let mut refused: Vec<_> = error.problems().iter().map(|problem| problem.path.as_str()).collect();
                    keys.sort_unstable();
                    refused.sort_unstable();
                    prop_assert_eq!(keys, refused, "{}", error);
                    continue;
                }
            };
            prop_assert_eq!(began, version.restarts, "what needs a restart is refused");
            prop_assert_eq!(meaning(&next), meaning(&alone));
            prop_assert_eq!(listening(&next), listening(&alone));
            // Who stays keeps its number, and numbers of new servers follow those that there were.
            for server in running.servers().iter().filter(|server| server.standing != Standing::Nobody) {
                let now = next.server(server.id);
                prop_assert_eq!((now.address, now.group), (server.address, server.group));
                prop_assert!(!difference.new_servers.contains(&server.id.0));
            }
            let addresses = running.addresses();
            prop_assert_eq!(&next.addresses()[..addresses.len()], &addresses[..]);
            running = next;
            if *forgets && let Some((less, _)) = running.without_past(&Named::default()) {
                prop_assert!(!less.has_past());
                prop_assert_eq!(meaning(&less), meaning(&running));
                running = less;
            }
        }
        prop_assert!(running.servers().len() <= 6, "six servers at most: numbers come back");
    }
}

#[test]
fn a_reload_may_begin_with_sinks_and_end_the_last() {
    let running = parse(&small());
    let two = format!(
        "{}\n[[records]]\nfile = \"/tmp/r\"\n[[records]]\nsyslog = \"127.0.0.1:514\"\n",
        small()
    );
    let (with, _) = running.reload_text(&two, "f.toml").expect("live");
    assert_eq!(with.records().len(), 2);
    let (without, _) = with.reload_text(&small(), "f.toml").expect("live");
    assert!(without.records().is_empty());
}

#[test]
fn what_needs_a_restart_is_refused_by_its_key_and_line() {
    let text = small();
    let running = parse(&text);
    let refused = |from: &str, to: &str| {
        let other = text.replacen(from, to, 1);
        assert_ne!(other, text, "{from}");
        running
            .reload_text(&other, "f.toml")
            .map(|_| ())
            .expect_err(to)
            .to_string()
    };
    assert_eq!(
        refused("cores = [0]", "cores = [1]"),
        "f.toml:3: engine.cores has changed, which needs a restart"
    );
    assert!(refused("net_ring1", "net_ring2").contains("port[1] has changed, which needs a restart"));
    assert!(
        refused("name = \"p0\"\n", "name = \"p0\"\ntransparent = true\n")
            .contains("pool[0].transparent has changed for 10.1.0.100:80")
    );
    assert!(refused("default = \"p0\"", "default = \"p0\"\ninspect_delay = \"1s\"").contains("bind or inspect_delay"));
    // There is room for as many as are to be watched at the start, which may be none.
    let watching = |one_in| text.replacen("cores = [0]", &format!("cores = [0]\nleg_sample = {one_in}"), 1);
    let nobody = parse(&watching(0));
    let (more, none) = (watching(1), watching(0));
    assert!(running.reload_text(&more, "f.toml").is_ok() && running.reload_text(&none, "f.toml").is_ok());
    let error = nobody
        .reload_text(&more, "f.toml")
        .map(|_| ())
        .expect_err("no room")
        .to_string();
    assert_eq!(error, "f.toml:4: engine.leg_sample has changed, which needs a restart");
    // A file with an error is that first.
    assert!(refused("default = \"p0\"", "default = \"nobody\"").contains("expected the name of a pool"));
    assert_eq!(running, parse(&text), "all of that has changed nothing");
}

/// An address that only a server's calls came from is nobody's of ours once nothing names the server.
#[test]
fn the_source_addresses_of_a_forgotten_server_are_not_ours() {
    let usual = small();
    let more = format!(
        "{usual}\n[[pool]]\nname = \"other\"\nlocal_addresses = [\"10.1.0.50\"]\n\
         servers = [{{ name = \"o\", address = \"10.1.0.200:80\" }}]\n"
    );
    let running = parse(&more);
    let address = IpAddr::from([10, 1, 0, 50]);
    let is_ours = |config: &Config| {
        let ports = config.ports().iter();
        ports
            .map(|port| config.own_addresses(port.id))
            .any(|own| own.contains(&address))
    };
    assert!(is_ours(&running));
    let (without, _) = running
        .reload_text(&usual, "f.toml")
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(is_ours(&without), "connections may name the server");
    let (forgotten, _) = without.without_past(&Named::default()).expect("something was past");
    assert!(!is_ours(&forgotten));
    // A listener that has it then has it alone: another engine may answer for it.
    let listener = "[[listener]]\nname = \"more\"\naddresses = [\"10.1.0.50:80\"]\ndefault = \"p0\"\n";
    let (listens, _) = forgotten
        .reload_text(&format!("{usual}{listener}"), "f.toml")
        .unwrap_or_else(|error| panic!("{error}"));
    let of_listeners = |port: &PortConfig| listens.listener_addresses(port.id).contains(&address);
    assert!(listens.ports().iter().any(of_listeners));
}

/// Servers that are gone have their numbers until no connection names them: more than 65 535 together are refused, and nothing changes.
#[test]
fn a_reload_that_needs_more_numbers_than_there_are_is_refused() {
    let servers = |network: u8| -> String {
        let line = |n: u16| {
            format!(
                "{{ name = \"s{network}-{n}\", address = \"10.{network}.{}.{}:80\" }},\n",
                n >> 8,
                n & 0xff
            )
        };
        let lines: String = (0..40_000).map(line).collect();
        let head = "[engine]\nname = \"many\"\ncores = [0]\n";
        let port = "[[port]]\nname = \"left\"\ndevice = \"net_ring0\"\naddresses = [\"10.0.0.1/8\"]\n";
        let listener = "[[listener]]\nname = \"l\"\naddresses = [\"10.0.0.2:80\"]\ndefault = \"p\"\n";
        format!("{head}{port}{listener}[[pool]]\nname = \"p\"\nservers = [\n{lines}]\n")
    };
    let running = parse(&servers(1));
    let error = running.reload_text(&servers(2), "f.toml").expect_err("80 000 numbers");
    assert!(error.to_string().contains("65535 servers"), "{error}");
    // Once those before are forgotten there is room.
    let (less, _) = running
        .reload_text(&servers(1).replace("10.1.0.0:80", "10.3.0.0:80"), "f.toml")
        .expect("40 001");
    let (forgotten, _) = less.without_past(&Named::default()).expect("one is past");
    assert!(!forgotten.has_past());
}
