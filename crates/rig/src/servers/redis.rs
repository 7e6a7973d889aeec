//! redis, which keeps nothing.

use std::net::SocketAddr;

use super::{STARTING, name_of};
use crate::process::Process;
use crate::{Place, Rig, RigError};

/// redis.
pub const REDIS: u16 = 6379;

/// Starts redis as server `index` on port 6379 of its IPv4 and IPv6 address.
///
/// # Errors
/// When it does not listen in time.
pub fn start_redis(rig: &Rig, index: usize) -> Result<Process, RigError> {
    let addresses = rig.server_addresses(index);
    let [v4, v6] = addresses.map(|address| address.to_string());
    let port = REDIS.to_string();
    let folder = rig.folder().to_string_lossy();
    let mut arguments = vec!["--port", &port, "--bind", &v4, &v6, "--dir", &folder];
    arguments.extend(["--save", "", "--appendonly", "no"]);
    arguments.extend(["--protected-mode", "no", "--daemonize", "no"]);
    let name = format!("redis-{}", name_of(index));
    let mut redis = rig.start(Place::Servers, &name, "redis-server", &arguments)?;
    redis.wait_for_listeners(&addresses.map(|address| SocketAddr::new(address, REDIS)), STARTING)?;
    Ok(redis)
}
