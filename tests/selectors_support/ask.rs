//! Asks a selector made of rules, byte by byte.

#![allow(unreachable_pub)] // a module of several test programs

use std::net::SocketAddr;

use proxyengine::callbacks::{FirstPayload, SelectServer, Selection};
use proxyengine::config::{Config, ListenerId};
use proxyengine::selectors::RuleSelector;

/// A selector for one listener with these rules (the TOML of the list) and this default.
///
/// Pools `a`, `b` and `c` have one server each, `many` has three: s3, s4, s5.
pub fn selector(rules: &str, default: &str) -> (Config, RuleSelector) {
    let text = format!(
        r#"
[[port]]
name = "p"
device = "net_ring0"
addresses = ["10.0.0.1/24"]
[[listener]]
name = "l"
addresses = ["10.0.0.1:80"]
rules = [{rules}]
default = "{default}"
[[pool]]
name = "a"
servers = [{{ name = "s0", address = "10.0.0.10:80" }}]
[[pool]]
name = "b"
servers = [{{ name = "s1", address = "10.0.0.11:80" }}]
[[pool]]
name = "c"
servers = [{{ name = "s2", address = "10.0.0.12:80" }}]
[[pool]]
name = "many"
servers = [
  {{ name = "s3", address = "10.0.0.13:80" }},
  {{ name = "s4", address = "10.0.0.14:80" }},
  {{ name = "s5", address = "10.0.0.15:80" }},
]
"#
    );
    let config = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
    let selector = RuleSelector::new(&config);
    (config, selector)
}

pub fn ask(selector: &mut RuleSelector, bytes: &[u8], complete: bool) -> Selection {
    let client: SocketAddr = "192.0.2.1:40000".parse().unwrap();
    let local: SocketAddr = "10.0.0.1:80".parse().unwrap();
    selector.select(&FirstPayload::new(client, local, ListenerId(0), bytes, complete))
}

/// The answer in the words of the configuration.
pub fn shown(config: &Config, selection: Selection) -> String {
    match selection {
        Selection::Pool(pool) => config.pool(pool).name.clone(),
        Selection::Server(server) => config.server(server).name.clone(),
        Selection::NeedMore => "need more".to_owned(),
        Selection::Reject => "reject".to_owned(),
        Selection::Drop => "drop".to_owned(),
    }
}

/// The final answer for a payload and the number of bytes it took; every shorter prefix must need more, and every longer
/// one give the same.
pub fn by_every_prefix(selector: &mut RuleSelector, payload: &[u8]) -> (Selection, usize) {
    let mut decided = None;
    for len in 0..=payload.len() {
        let answer = ask(selector, &payload[..len], false);
        match decided {
            None if answer != Selection::NeedMore => decided = Some((answer, len)),
            None => (),
            Some((first, at)) => {
                assert_eq!(
                    answer,
                    first,
                    "decided with {at} bytes, changed with {len} of {:02x?}",
                    &payload[..len]
                );
            }
        }
    }
    let complete = ask(selector, payload, true);
    assert_ne!(complete, Selection::NeedMore, "nothing more will come");
    if let Some((first, _)) = decided {
        assert_eq!(complete, first, "the end of the payload changes no decision");
    }
    decided.unwrap_or((complete, usize::MAX))
}
