//! The configuration of the proxy that is measured.

use std::fmt::Write as _;
use std::net::SocketAddr;

use e2d2::wire::MacAddr;

use super::load::server_addresses;
use super::{Conditions, PORTS, Rules, SERVERS, listener, mss, resting};

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
verify = "{verify}"

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
{rules}

[timeouts]
time_wait = "{time_wait}ms"
idle = "1h"
select = "10m"

[syn_ack]
probe = false
mss = {mss}
window_scale = 7
sack = true
timestamps = true

"#,
        rules = rules(conditions),
        clients = devices[0],
        servers = devices[1],
        capacity = conditions.capacity,
        mtu = conditions.mtu,
        mss = mss(conditions.mtu, conditions.ipv6),
        verify = if conditions.verify_all { "all" } else { "acted" },
        time_wait = conditions.settings.time_wait.as_millis(),
    );
    guard(&mut text, conditions);
    pools(&mut text, conditions, server_mac);
    checked(&mut text, conditions, server_mac);
    if conditions.records {
        let [syslog, ipfix] = conditions.sinks.unwrap_or([514, 4739]);
        text.push_str(&format!(
            "[[records]]\nfile = \"/dev/null\"\nformat = \"json\"\n\
             [[records]]\nsyslog = \"127.0.0.1:{syslog}\"\n\
             [[records]]\nipfix = \"127.0.0.1:{ipfix}\"\n"
        ));
    }
    text
}

/// The list that a rule asks for, and the class of all clients.
fn guard(text: &mut String, conditions: &Conditions) {
    if let Some(file) = conditions.guarded_by {
        let _ = write!(
            text,
            "[[list]]\nname = \"seen\"\nfile = \"{file}\"\n\
             [[class]]\nname = \"clients\"\nlimit = {{ connections = 10000000, rate = 100000000 }}\n"
        );
    }
}

/// A pool of servers that are only checked: each at another port of the load's first one, which answers for them at its own.
fn checked(text: &mut String, conditions: &Conditions, server_mac: MacAddr) {
    if conditions.checked == 0 {
        return;
    }
    let server = server_addresses(conditions)[0];
    let servers: String = (1..=conditions.checked)
        .map(|n| {
            let address = SocketAddr::new(server.ip(), server.port() + n);
            format!("  {{ name = \"c{n}\", address = \"{address}\", mac = \"{server_mac}\" }},\n")
        })
        .collect();
    let _ = write!(
        text,
        "\n[[pool]]\nname = \"checked\"\nservers = [\n{servers}]\n\
         check = {{ kind = \"tcp\", port = {}, interval = \"100ms\", fast_interval = \"100ms\", timeout = \"50ms\" }}\n",
        server.port(),
    );
}

/// The pools: one of all servers where the number says which or nothing does, else one for each server.
fn pools(text: &mut String, conditions: &Conditions, server_mac: MacAddr) {
    let locals = (1..=local_addresses(conditions))
        .map(|last| match conditions.ipv6 {
            false => format!("\"10.2.100.{last}\""),
            true => format!("\"fd00:2::100:{last:x}\""),
        })
        .collect::<Vec<_>>()
        .join(", ");
    let servers: Vec<String> = server_addresses(conditions)
        .iter()
        .enumerate()
        .map(|(index, address)| {
            format!("  {{ name = \"s{index}\", address = \"{address}\", mac = \"{server_mac}\" }},\n")
        })
        .collect();
    let pools = match conditions.rules {
        Rules::Number | Rules::Pool => vec![("servers".to_owned(), servers.concat())],
        _ => (0..)
            .zip(servers)
            .map(|(index, server)| (pool(index), server))
            .collect(),
    };
    for (name, servers) in pools {
        // Writing to a String does not fail.
        let _ = write!(text, "\n[[pool]]\nname = \"{name}\"\nlocal_addresses = [{locals}]\n");
        if conditions.proxy_out {
            text.push_str("proxy_protocol = { send = \"v2\" }\n");
        }
        let _ = write!(text, "servers = [\n{servers}]\n");
    }
}

fn pool(index: u16) -> String {
    format!("of-{index}")
}

/// A rule for each key, or for each server: the right server of a key is the key modulo their number.
fn rules(conditions: &Conditions) -> String {
    let rules = conditions.rules;
    let named = |kind: &str| {
        (0..rules.keys())
            .map(|key| {
                let pool = pool(key % u16::from(SERVERS));
                format!("  {{ {kind} = \"s{key}.example\", pool = \"{pool}\" }},\n")
            })
            .collect::<String>()
    };
    let rules = match rules {
        Rules::Pool => return "default = \"servers\"".to_owned(),
        Rules::Number => "  { first_number = true, pool = \"servers\" },\n".to_owned(),
        Rules::Http1000 => named("http_host"),
        Rules::Sni1000 => named("tls_sni"),
        Rules::Regex => ["[048]", "[159]", "[26]", "[37]"]
            .iter()
            .zip(0..)
            .map(|(keys, index)| {
                let pool = pool(index);
                format!("  {{ regex = '^{keys} [0-9a-f]{{8}}[csb] ', pool = \"{pool}\" }},\n")
            })
            .collect(),
    };
    let (guard, limit) = match conditions.guarded_by {
        Some(_) => (
            "  { client = [\"seen\"], action = \"drop\" },\n  { not = [{ client = [\"seen\"] }], class = \"clients\" },\n",
            "client_limit = { connections = 1000000, rate = 10000000 }\n",
        ),
        None => ("", ""),
    };
    format!("{limit}rules = [\n{guard}{rules}]\ndefault = \"reject\"")
}

/// Addresses that the proxy connects from: each open connection and each at rest takes a port of one towards one server.
fn local_addresses(conditions: &Conditions) -> u32 {
    let needed = conditions.settings.open + resting(&conditions.settings);
    needed.div_ceil(PORTS * u32::from(conditions.servers)).max(2)
}
