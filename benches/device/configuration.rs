//! The configuration of the proxy that is measured.

use std::fmt::Write as _;

use e2d2::wire::MacAddr;

use super::load::server_addresses;
use super::{Conditions, PORTS, SERVERS, listener, mss, resting};

/// The proxy's configuration, in the words of its users.
pub(super) fn configuration(conditions: &Conditions, devices: [&str; 2], server_mac: MacAddr) -> String {
    let listener = listener(conditions.ipv6);
    let (clients_net, servers_net) = match conditions.ipv6 {
        false => (format!("{}/16", listener.ip()), "10.2.255.254/16"),
        true => (format!("{}/64", listener.ip()), "fd00:2::fffe/64"),
    };
    let mut text = format!(
        r#"
[engine]
cores = [0]
idle = "poll"
max_connections = {capacity}
{held}verify = "{verify}"

[[port]]
name = "clients"
device = "{clients}"
mtu = {mtu}
addresses = ["{clients_net}"]

[[port]]
name = "servers"
device = "{servers}"
mtu = {mtu}
addresses = ["{servers_net}"]

[[listener]]
name = "bench"
addresses = ["{listener}"]
rules = [{{ first_number = true, pool = "servers" }}]
default = "reject"

[timeouts]
time_wait = "{time_wait}ms"
idle = "1h"
select = "10m"

[promise]
probe = false
mss = {mss}
window_scale = 7
sack = true
timestamps = true

[[pool]]
name = "servers"
local_addresses = [{locals}]
"#,
        clients = devices[0],
        servers = devices[1],
        capacity = conditions.capacity,
        held = conditions
            .held_requests
            .map_or(String::new(), |held| format!("held_requests = {held}\n")),
        mtu = conditions.mtu,
        mss = mss(conditions.mtu, conditions.ipv6),
        verify = if conditions.verify_all { "all" } else { "acted" },
        time_wait = conditions.settings.time_wait.as_millis(),
        locals = (1..=local_addresses(conditions))
            .map(|last| match conditions.ipv6 {
                false => format!("\"10.2.100.{last}\""),
                true => format!("\"fd00:2::100:{last:x}\""),
            })
            .collect::<Vec<_>>()
            .join(", "),
    );
    if conditions.proxy_out {
        text.push_str("proxy_protocol = { send = \"v2\" }\n");
    }
    text.push_str("servers = [\n");
    for (index, address) in server_addresses(conditions.ipv6).iter().enumerate() {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "  {{ name = \"s{index}\", address = \"{address}\", mac = \"{server_mac}\" }},"
        );
    }
    text.push_str("]\n");
    if conditions.records {
        text.push_str("[records]\nfile = \"-\"\n");
    }
    text
}

/// Addresses that the proxy connects from: each open connection and each at rest takes a port of one towards one server.
fn local_addresses(conditions: &Conditions) -> u32 {
    let needed = conditions.settings.open + resting(&conditions.settings);
    needed.div_ceil(PORTS * u32::from(SERVERS)).max(2)
}
