//! Whose source ports checks use.
//!
//! Two connections with the same four addresses and ports would be one. Ports are given out by server, that is, by address and
//! port; a check may go to another port (`check.port`), which may be another server's, or several servers' checks may go there. So
//! all of them take their ports from one server's.

use super::{Config, ServerConfig, ServerId, Standing};
use splice::difference::Difference;
use std::collections::HashMap;
use std::net::SocketAddr;

/// By number: the server whose source ports the checks of this one use.
pub(super) fn check_sources(servers: &[ServerConfig]) -> Vec<ServerId> {
    let there = || servers.iter().filter(|server| server.standing != Standing::Nobody);
    let check_port = |server: &ServerConfig| server.check.and_then(|check| check.port);
    let mut sources: Vec<ServerId> = servers.iter().map(|server| server.id).collect();
    if there().all(|server| check_port(server).is_none()) {
        return sources;
    }
    // The server at that address and port, if there is one, else the first that is checked there.
    let mut by_target: HashMap<SocketAddr, ServerId> = there().map(|server| (server.address, server.id)).collect();
    for server in there() {
        if let Some(port) = check_port(server) {
            let target = SocketAddr::new(server.address.ip(), port);
            sources[server.id.index()] = *by_target.entry(target).or_insert(server.id);
        }
    }
    sources
}

/// Servers that were there before, and whose checks use other ports from now on, have other checks.
pub(super) fn add_moved(difference: &mut Difference, old: &Config, config: &Config) {
    let (before, now) = (check_sources(&old.servers), check_sources(&config.servers));
    let is_new = |id: &u16| difference.new_servers.binary_search(id).is_ok();
    let both = (0..).zip(before.iter().zip(&now));
    let moved = both.filter_map(|(id, (before, now))| (before != now && !is_new(&id)).then_some(id));
    let moved: Vec<u16> = moved.collect();
    difference.checks.extend(moved);
    difference.checks.sort_unstable();
    difference.checks.dedup();
}
