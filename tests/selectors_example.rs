//! What examples/custom_selector.rs promises.

#[allow(dead_code, unreachable_pub)]
#[path = "../examples/custom_selector.rs"]
mod custom_selector;

use std::collections::HashMap;
use std::net::SocketAddr;

use custom_selector::{CONFIGURATION, TenantSelector, factory};
use proxyengine::callbacks::{FirstPayload, SelectServer, Selection, SelectorFactory};
use proxyengine::config::{Config, CoreId, ListenerId, PoolId};

fn config(text: &str) -> Config {
    Config::parse(text, "example").unwrap_or_else(|error| panic!("{error}"))
}

fn ask(selector: &mut TenantSelector, bytes: &[u8], complete: bool) -> Selection {
    let address: SocketAddr = "192.0.2.1:4000".parse().expect("an address");
    selector.select(&FirstPayload::new(address, address, ListenerId(0), bytes, complete))
}

/// The name of the server of each of a thousand tenants.
fn servers_of_tenants(config: &Config) -> Vec<String> {
    let mut selector = factory(config).selector(CoreId(0));
    let server = |i| match ask(&mut selector, format!("TENANT t{i}\r\nmore").as_bytes(), false) {
        Selection::Server(id) => config.server(id).name.clone(),
        other => panic!("tenant {i}: {other:?}"),
    };
    (0..1000).map(server).collect()
}

#[test]
fn tenants_are_spread_and_every_core_agrees() {
    let config = config(CONFIGURATION);
    let servers = servers_of_tenants(&config);
    let mut counts = HashMap::new();
    for server in &servers {
        *counts.entry(server.clone()).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 3);
    assert!(counts.values().all(|count| (250..=420).contains(count)), "{counts:?}");
    let mut other = factory(&config).selector(CoreId(5));
    let mut known = config.servers().iter();
    let of_seven = known.find(|server| server.name == servers[7]).expect("a server");
    assert_eq!(ask(&mut other, b"TENANT t7\n", false), Selection::Server(of_seven.id));
}

#[test]
fn a_new_server_takes_tenants_from_all_and_moves_no_other() {
    let line = "  { name = \"shard-3\", address = \"192.0.2.13:4000\" },\n";
    let without = config(&CONFIGURATION.replace(line, ""));
    assert_eq!(without.servers().len(), 2);
    let (before, after) = (servers_of_tenants(&without), servers_of_tenants(&config(CONFIGURATION)));
    let moved: Vec<_> = before
        .iter()
        .zip(&after)
        .filter(|(before, after)| before != after)
        .collect();
    assert!((250..=420).contains(&moved.len()));
    assert!(moved.iter().all(|(_, after)| *after == "shard-3"));
}

#[test]
fn the_first_line_decides() {
    let mut selector = factory(&config(CONFIGURATION)).selector(CoreId(0));
    let line = b"TENANT acme\n";
    for len in 0..line.len() {
        assert_eq!(ask(&mut selector, &line[..len], false), Selection::NeedMore);
    }
    let whole = ask(&mut selector, line, false);
    assert!(matches!(whole, Selection::Server(_)));
    assert_eq!(
        ask(&mut selector, b"TENANT acme", true),
        whole,
        "a closed half ends the line as well"
    );
    assert_eq!(ask(&mut selector, b"HELLO\n", false), Selection::Pool(PoolId(0)));
    assert_eq!(ask(&mut selector, b"TENANT \n", false), Selection::Reject);
    assert_eq!(ask(&mut selector, &[b'x'; 257], false), Selection::Reject);
}
