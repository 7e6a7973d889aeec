//! What the configuration can say but the engine cannot do yet: the only place to lift a restriction.
//!
//! The types of the checked configuration already hold all of it.

use super::Config;
use super::ids::PoolId;
use super::model::{Bind, Fallback, ListenerConfig};
use super::source::{At, Source};

/// Complains about everything in `config` that the engine does not do.
pub(super) fn refuse(source: &mut Source<'_>, config: &Config) {
    several_workers(source, config);
    for listener in config.listeners() {
        let at = At::root().key("listener").index(listener.id.index());
        early_binding(source, &at, listener);
        crossed_families(source, &at, listener, config);
    }
}

/// Without steering, the packets of a connection's two legs would meet different cores.
fn several_workers(source: &mut Source<'_>, config: &Config) {
    let cores = &config.engine().cores;
    if cores.len() > 1 {
        source.complain(
            &At::root().key("engine").key("cores"),
            format!(
                "names {} cores, expected exactly one: this engine does not run several workers yet",
                cores.len()
            ),
        );
    }
}

fn early_binding(source: &mut Source<'_>, at: &At, listener: &ListenerConfig) {
    if listener.bind == Bind::Syn {
        source.complain(
            &at.key("bind"),
            "is \"syn\", expected \"payload\" or \"handshake\": this engine does not pass on the client's SYN yet"
                .to_owned(),
        );
    }
}

/// A client of one address family and a server of the other.
fn crossed_families(source: &mut Source<'_>, at: &At, listener: &ListenerConfig, config: &Config) {
    let family = |ipv6| if ipv6 { "IPv6" } else { "IPv4" };
    let rules = listener.rules.iter().enumerate();
    let mut ways: Vec<(At, PoolId)> = rules.map(|(i, rule)| (at.key("rules").index(i), rule.pool)).collect();
    if let Fallback::Pool(pool) = listener.default {
        ways.push((at.key("default"), pool));
    }
    for (at, pool) in ways {
        let servers = config
            .pool(pool)
            .members
            .iter()
            .map(|member| config.server(member.server));
        let mut pairs = servers.flat_map(|server| listener.addresses.iter().map(move |address| (server, address)));
        if let Some((server, address)) = pairs.find(|(s, a)| s.address.is_ipv6() != a.ip.is_ipv6()) {
            let (theirs, ours) = (family(server.address.is_ipv6()), family(address.ip.is_ipv6()));
            source.complain(
                &at,
                format!(
                    "leads {ours} clients of {address} to the {theirs} server \"{}\" ({}), expected servers of the \
                     clients' family: this engine does not translate between them yet",
                    server.name, server.address
                ),
            );
        }
    }
}
