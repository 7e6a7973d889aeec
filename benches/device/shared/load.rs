//! The clients and servers around the proxy: what they do.

use std::net::{IpAddr, SocketAddr};

use benchkit::{Arm, cps_arms, cps_client, cps_server};
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use trafficengine::{AddressRange, ClientSettings, Pace, ServerSettings};

use super::port::LoadPort;
use super::{Conditions, Rules, listener, mss};

pub(super) fn server_addresses(conditions: &Conditions) -> Vec<SocketAddr> {
    let address = |last| match conditions.ipv6 {
        false => IpAddr::from([10, 2, 0, last]),
        true => IpAddr::from([0xfd00, 2, 0, 0, 0, 0, 0, u16::from(last)]),
    };
    (1..=conditions.servers)
        .map(|last| SocketAddr::new(address(last), 80))
        .collect()
}

pub(super) fn load(
    conditions: &Conditions,
    macs: &[MacAddr; 2],
    client_end: LoadPort,
    server_end: LoadPort,
    now: Instant,
) -> Vec<Arm<LoadPort>> {
    let (client, server) = roles(conditions);
    cps_arms(client, server, macs, [client_end, server_end], now)
}

/// What clients and servers do.
pub(crate) fn roles(conditions: &Conditions) -> (ClientSettings, ServerSettings) {
    // With 64 512 ports each: four million end points, and some that rest.
    let sources = match conditions.ipv6 {
        false => "10.1.0.1-10.1.0.80",
        true => "fd00:1::1-fd00:1::50",
    };
    let sources: AddressRange = sources.parse().expect("a range of addresses");
    // Where the pool picks, each answer is the right one.
    let servers = if conditions.rules == Rules::Pool {
        1
    } else {
        conditions.servers
    };
    let mut client = cps_client(&conditions.settings, sources, listener(conditions.ipv6), servers);
    (client.rounds, client.request, client.response) = (conditions.rounds, conditions.request, conditions.response);
    let (format, shortest) = conditions.rules.format();
    (client.format, client.keys) = (format, conditions.rules.keys());
    client.request = client.request.max(shortest);
    client.tcp[0].mss = mss(conditions.mtu, false);
    client.tcp[1].mss = mss(conditions.mtu, true);
    client.depth = conditions.depth;
    if let Some(rate) = conditions.rate {
        client.pace = Pace::Open { rate };
    }
    let mut server = cps_server(&client, &server_addresses(conditions));
    if conditions.rules == Rules::Pool {
        server.listeners.iter_mut().for_each(|listener| listener.id = 0);
    }
    server.proxy_header = conditions.proxy_out;
    (client, server)
}
