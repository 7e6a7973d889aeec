//! The clients and servers around the proxy: what they do, and their generators.

use std::net::{IpAddr, SocketAddr};

use e2d2::native::Mbuf;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use trafficengine::bench::{Arm, cps_client, cps_server};
use trafficengine::{AddressRange, ClientSettings, Generator, GeneratorSettings, LinkSettings, Pace, ServerSettings};

use super::port::CountingPort;
use super::{Conditions, LISTENER, SERVERS};

pub(super) fn server_addresses() -> Vec<SocketAddr> {
    (1..=SERVERS)
        .map(|last| SocketAddr::new(IpAddr::from([10, 2, 0, last]), 80))
        .collect()
}

pub(super) fn load(
    conditions: &Conditions,
    macs: &[MacAddr; 2],
    client_end: CountingPort,
    server_end: CountingPort,
    now: Instant,
) -> Vec<Arm<CountingPort>> {
    let (client, server) = roles(conditions);
    arms(client, server, macs, client_end, server_end, now)
}

/// What clients and servers do.
pub(crate) fn roles(conditions: &Conditions) -> (ClientSettings, ServerSettings) {
    // With 64 512 ports each: four million end points, and some that rest.
    let sources: AddressRange = "10.1.0.1-10.1.0.80".parse().expect("a range of addresses");
    let mut client = cps_client(
        &conditions.settings,
        sources,
        SocketAddr::new(LISTENER.into(), 8080),
        SERVERS,
    );
    (client.rounds, client.request, client.response) = (conditions.rounds, conditions.request, conditions.response);
    client.tcp[0].mss = conditions.mtu - 40;
    client.depth = conditions.depth;
    if let Some(rate) = conditions.rate {
        client.pace = Pace::Open { rate };
    }
    let mut server = cps_server(&client, &server_addresses());
    server.proxy_header = conditions.proxy_out;
    (client, server)
}

/// A role, or both, that sends everything to `next_hop`.
pub(crate) fn generator(
    client: Option<ClientSettings>,
    server: Option<ServerSettings>,
    next_hop: MacAddr,
    now: Instant,
) -> Generator<Mbuf> {
    let link = LinkSettings {
        next_hop_mac: Some(next_hop),
        ..LinkSettings::default()
    };
    let settings = GeneratorSettings {
        link,
        client,
        server,
        verify_checksums: true,
    };
    Generator::new(settings, now)
}

/// Both ends of the load, which reach each other, or the proxy, at these addresses.
pub(super) fn arms(
    client: ClientSettings,
    server: ServerSettings,
    macs: &[MacAddr; 2],
    client_end: CountingPort,
    server_end: CountingPort,
    now: Instant,
) -> Vec<Arm<CountingPort>> {
    let generator = |client, server, mac| generator(client, server, mac, now);
    vec![
        Arm {
            generator: generator(Some(client), None, macs[0]),
            port: client_end,
        },
        Arm {
            generator: generator(None, Some(server), macs[1]),
            port: server_end,
        },
    ]
}
