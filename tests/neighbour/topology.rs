use std::net::IpAddr;

use e2d2::wire::MacAddr;
use proxyengine::config::Config;
use proxyengine::neighbour::{Interface, MAX_NEXT_HOPS, Neighbour, Topology, TopologyError, link_local_of};
use test_case::test_case;

use crate::world::{LEFT, RIGHT};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

fn interface(addresses: &[&str]) -> Interface {
    let addresses = addresses.iter().map(|net| net.parse().expect("network")).collect();
    Interface {
        port: LEFT,
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        addresses,
        aliases: vec![],
    }
}

fn neighbour(address: &str) -> Neighbour {
    Neighbour {
        port: LEFT,
        address: ip(address),
        mac: None,
    }
}

/// RFC 4291 appendix A, the example with the universal bit inverted.
#[test]
fn the_link_local_address_is_made_of_the_mac_address() {
    let mac = MacAddr([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
    assert_eq!(link_local_of(mac).to_string(), "fe80::3656:78ff:fe9a:bcde");
}

#[test]
fn questions_come_from_the_address_in_the_neighbours_network() {
    let topology = Topology::new(
        vec![interface(&[
            "10.1.0.1/16",
            "10.1.2.1/24",
            "192.0.2.1/30",
            "2001:db8::1/64",
        ])],
        &[
            "10.1.2.9",
            "10.1.9.9",
            "192.0.2.2",
            "203.0.113.9",
            "2001:db8::9",
            "fe80::9",
        ]
        .map(neighbour),
    )
    .expect("topology");
    let sources: Vec<String> = topology.next_hops().iter().map(|hop| hop.source.to_string()).collect();
    assert_eq!(sources[..3], ["10.1.2.1", "10.1.0.1", "192.0.2.1"]);
    assert!(sources[3].starts_with("10.1."), "any of its family: {}", sources[3]);
    assert_eq!(sources[4], "2001:db8::1");
    assert!(sources[5].contains(':'));
}

#[test]
fn a_neighbour_named_twice_is_one() {
    let mac = Some(MacAddr([2, 0, 0, 0, 0, 9]));
    let neighbours = [
        neighbour("10.0.0.9"),
        Neighbour {
            mac,
            ..neighbour("10.0.0.9")
        },
        neighbour("10.0.0.9"),
    ];
    let topology = Topology::new(vec![interface(&["10.0.0.1/24"])], &neighbours).expect("topology");
    assert_eq!(topology.next_hops().len(), 1);
    assert_eq!(topology.next_hops()[0].static_mac, mac);
}

#[test_case(&["10.0.0.1/24"], &["10.0.0.1"], "own addresses"; "server is ourselves")]
#[test_case(&["10.0.0.1/24"], &["224.0.0.5"], "no single station"; "server multicast")]
#[test_case(&["255.255.255.255/32"], &[], "no single station"; "own broadcast")]
#[test_case(&["10.0.0.1/24"], &["0.0.0.0"], "no single station"; "server unspecified")]
#[test_case(&["2001:db8::1/64"], &["10.0.0.9"], "no IPv4 address"; "no address of the family")]
fn impossible_networks_are_refused_in_a_sentence(own: &[&str], servers: &[&str], expected: &str) {
    let neighbours: Vec<Neighbour> = servers.iter().map(|server| neighbour(server)).collect();
    let error = Topology::new(vec![interface(own)], &neighbours).expect_err("refused");
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn two_macs_of_one_neighbour_are_refused() {
    let with_mac = |last| Neighbour {
        mac: Some(MacAddr([2, 0, 0, 0, 0, last])),
        ..neighbour("10.0.0.9")
    };
    let error = Topology::new(vec![interface(&["10.0.0.1/24"])], &[with_mac(1), with_mac(2)]).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "10.0.0.9 has two different MAC addresses: 02:00:00:00:00:01 and 02:00:00:00:00:02"
    );
}

#[test]
fn the_table_is_bounded() {
    let many = |count: usize| -> Vec<Neighbour> {
        (0..count as u32)
            .map(|index| neighbour(&std::net::Ipv4Addr::from(0x0a00_0100 + index).to_string()))
            .collect()
    };
    let build = |count| Topology::new(vec![interface(&["10.0.0.1/8"])], &many(count));
    assert_eq!(build(MAX_NEXT_HOPS).expect("fits").next_hops().len(), MAX_NEXT_HOPS);
    assert_eq!(
        build(MAX_NEXT_HOPS + 1).expect_err("one too many"),
        TopologyError::TooManyNextHops
    );
}

const CONFIG: &str = r#"
[[port]]
name = "clients"
device = "net_ring0"
addresses = ["10.0.0.1/24", "2001:db8::1/64"]
gateways = ["10.0.0.254"]

[[port]]
name = "servers"
device = "net_ring1"
addresses = ["192.168.7.1/24"]
neighbours = [{ ip = "192.168.7.21", mac = "02:00:00:00:07:21" }, { ip = "192.168.7.22", mac = "02:00:00:00:07:99" }]

[[listener]]
name = "web"
addresses = ["10.0.0.80:80"]
default = "near"

[[pool]]
name = "near"
servers = [
    { name = "plain", address = "192.168.7.20:80" },
    { name = "by-entry", address = "192.168.7.21:80" },
    { name = "by-mac", address = "192.168.7.22:80", mac = "02:00:00:00:07:22" },
    { name = "far", address = "203.0.113.5:80" },
    { name = "far-by-mac", address = "203.0.113.6:80", mac = "02:00:00:00:00:06" },
]
"#;

#[test]
fn a_configuration_becomes_a_topology() {
    let config = Config::parse(CONFIG, "test.toml").unwrap_or_else(|error| panic!("{error}"));
    let macs = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];
    let topology = Topology::from_config(&config, &macs).expect("topology");

    assert!(topology.owns(LEFT, ip("10.0.0.1")) && topology.owns(LEFT, ip("10.0.0.80")));
    assert!(!topology.owns(RIGHT, ip("10.0.0.80")) && topology.owns(RIGHT, ip("192.168.7.1")));
    let hops = config.servers().iter().map(|server| {
        let id = topology
            .next_hop_to(server)
            .unwrap_or_else(|| panic!("no next hop to {}", server.name));
        let hop = topology.next_hop(id).expect("entry");
        (
            server.name.as_str(),
            hop.port,
            hop.address.to_string(),
            hop.static_mac.map(|mac| mac.0),
        )
    });
    let by_mac = |last: u8, before: u8| Some([2, 0, 0, 0, before, last]);
    assert_eq!(
        hops.collect::<Vec<_>>(),
        [
            ("plain", RIGHT, "192.168.7.20".to_owned(), None),
            ("by-entry", RIGHT, "192.168.7.21".to_owned(), by_mac(0x21, 7)),
            ("by-mac", RIGHT, "192.168.7.22".to_owned(), by_mac(0x22, 7)),
            ("far", LEFT, "10.0.0.254".to_owned(), None),
            ("far-by-mac", LEFT, "203.0.113.6".to_owned(), by_mac(6, 0)),
        ]
    );
}
