//! The files of TrafficEngine and TcpEngine: what becomes of them, and what is said about the rest.

use std::path::Path;
use std::time::Duration;

use trafficengine::config::{Config, Overrides};
use trafficengine::{Close, Pace};

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/ancestors/{name}.toml"));
    std::fs::read_to_string(path).expect("a file")
}

fn load(name: &str) -> Config {
    Config::parse(&text(name), name, &Overrides::default()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_file_of_trafficengine_is_its_load() {
    let config = load("traffic_run");
    assert_eq!(config.port.device, "0000:07:00.0");
    assert_eq!(
        (config.port.core, config.port.descriptors, config.port.memory_mib),
        (Some(1), 4096, 4096)
    );
    assert_eq!(
        config.port.mac.map(|mac| mac.to_string()).as_deref(),
        Some("a0:36:9f:82:9c:fc")
    );
    let client = config.generator.client.expect("a client");
    // By address its first core has the one after the kernel's.
    assert_eq!(client.sources[0].at(0).to_string(), "192.168.222.2");
    assert_eq!(client.targets, ["192.168.222.8:19999".parse().expect("an address")]);
    assert_eq!((client.pace, client.max_open), (Pace::Open { rate: 265_000.0 }, 2000));
    assert_eq!(
        (client.rounds, client.request, client.response, client.close),
        (1, 16, 16, Close::Server)
    );
    assert_eq!(
        (client.span.total, client.idle),
        (Some(2_000_000), Duration::from_millis(200))
    );
    let server = config.generator.server.expect("a server");
    assert_eq!(server.listeners[0].address.to_string(), "192.168.222.2:65535");
    assert_eq!(
        config.generator.link.next_hop_mac.map(|mac| mac.to_string()).as_deref(),
        Some("a0:36:9f:82:9c:fe")
    );
}

#[test]
fn a_file_of_tcpengine_has_its_own_words() {
    let config = load("tcpengine");
    assert_eq!(config.port.device, "net_af_packet0,iface=eth1");
    let client = config.generator.client.expect("a client");
    assert_eq!(client.sources[0].at(0).to_string(), "10.9.0.1");
    assert_eq!(client.targets, ["10.9.0.7:8080".parse().expect("an address")]);
    assert_eq!(
        (client.pace, client.rounds, client.close),
        (Pace::Closed { open: 500 }, 3, Close::Client)
    );
    let both = text("tcpengine").replace("fin_by_server = 5", "fin_by_server = 3");
    let config = Config::parse(&both, "both", &Overrides::default()).expect("a file");
    assert_eq!(config.generator.client.map(|client| client.close), Some(Close::Both));
}

/// Each key that the file has and that means nothing is named once, and none that does.
#[test]
fn keys_without_meaning_are_named() {
    let named = |name: &str| -> Vec<String> {
        let config = load(name);
        assert!(
            config
                .warnings
                .iter()
                .all(|warning| warning.contains("no meaning here") || warning.contains("one core here"))
        );
        let first = |warning: &String| warning.split(' ').next().map(str::to_owned);
        config.warnings.iter().filter_map(first).collect()
    };
    let mut of_traffic = named("traffic_run");
    of_traffic.sort();
    assert_eq!(
        of_traffic,
        [
            "netbricks.cache_size",
            "netbricks.cores",
            "netbricks.master_core",
            "netbricks.mbuf_cnt",
            "netbricks.name",
            "netbricks.ports[0].driver",
            "netbricks.ports[0].fdir",
            "netbricks.ports[0].kni",
            "netbricks.ports[0].rx_cores",
            "netbricks.ports[0].tx_cores",
            "netbricks.ports[0].txd",
            "netbricks.ports[1].k_cores",
            "netbricks.ports[1].namespace",
            "netbricks.ports[1].rxd",
            "netbricks.ports[1].txd",
            "netbricks.vdev",
            "trafficengine.engine.detailed_records",
            "trafficengine.engine.port",
            "trafficengine.targets[0].id",
            "trafficengine.targets[0].linux_if",
        ]
    );
    assert!(named("tcpengine").contains(&"engine.unheard_of".to_owned()));
}

#[test]
fn what_cannot_be_meant_is_refused_by_name() {
    for (from, to, expected) in [
        (
            "mode = \"TrafficGenerator\"",
            "mode = \"SimpleProxy\"",
            "engine.engine.mode is \"SimpleProxy\": that is a proxy",
        ),
        ("ipnet = \"10.9.0.1/16\", ", "", "netbricks.ports lacks the key `ipnet`"),
        (
            "max_open = 500",
            "max_open = -1",
            "engine.engine.max_open is -1, expected a number",
        ),
        (
            "ipnet = \"10.9.0.7/16\", port",
            "port",
            "engine.targets[0] lacks the key `ipnet`",
        ),
        ("ipnet = \"10.9.0.1/16\"", "ipnet = \"10.9\"", "has the ipnet \"10.9\""),
        (
            "name = \"virtio:virtio_user0,",
            "name = \"dpdk:net_ring0,",
            "netbricks.ports has 2 ports",
        ),
    ] {
        let text = text("tcpengine");
        assert!(text.contains(from), "{from}");
        let error = Config::parse(&text.replace(from, to), "t", &Overrides::default()).expect_err(expected);
        assert!(error.to_string().contains(expected), "{error}");
    }
}
