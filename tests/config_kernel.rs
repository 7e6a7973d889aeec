//! `kernel` of a port: what is accepted, what follows from it, and the sentences with which the rest is refused.

use std::net::IpAddr;

use e2d2::port::PortId;
use e2d2::wire::MacAddr;
use netfcts::leg::mapped;
use proxyengine::config::{Config, KernelConfig};
use proxyengine::kernel::Claims;

const GOOD: &str = r#"
[[port]]
name = "wire"
device = "0000:07:00.0"
addresses = ["10.0.0.1/24", "2001:db8::1/64"]
gateways = ["10.0.0.254"]
kernel = { device = "pe-k0", namespace = "edge", rate = 500, local_ports = "61000-61999" }

[[listener]]
name = "web"
addresses = ["10.0.0.1:80", "10.9.9.9:443"]
default = "pool"

[[pool]]
name = "pool"
servers = [{ name = "s", address = "10.0.0.9:80" }]
"#;

fn parse(text: &str) -> Config {
    Config::parse(text, "edge.toml").unwrap_or_else(|error| panic!("{error}"))
}

fn kernel(text: &str) -> KernelConfig {
    parse(text).ports()[0].kernel.clone().expect("a kernel")
}

#[track_caller]
fn refused(old: &str, new: &str, expected: &str) {
    assert!(GOOD.contains(old), "{old}");
    let error = Config::parse(&GOOD.replace(old, new), "edge.toml")
        .expect_err("refused")
        .to_string();
    assert!(error.contains(expected), "{expected}\nin {error}");
}

const ALL: &str = "{ device = \"pe-k0\", namespace = \"edge\", rate = 500, local_ports = \"61000-61999\" }";

#[test]
fn the_kernel_has_the_ports_addresses_unless_others_are_named() {
    let all = kernel(GOOD);
    assert_eq!((all.device.as_str(), all.namespace.as_deref()), ("pe-k0", Some("edge")));
    assert_eq!((all.rate, all.local_ports), (500, Some(61_000..=61_999)));
    let shown: Vec<String> = all.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10.0.0.1/24", "2001:db8::1/64"]);

    let least = kernel(&GOOD.replace(ALL, "{ device = \"pe-k0\" }"));
    assert_eq!((least.namespace, least.rate, least.local_ports), (None, 10_000, None));

    // One of the port's, one more in its prefix, and a listener's that is in none.
    let named = kernel(&GOOD.replace(
        ALL,
        "{ device = \"pe-k0\", addresses = [\"2001:db8::1\", \"10.0.0.7\", \"10.9.9.9\"] }",
    ));
    let shown: Vec<String> = named.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["2001:db8::1/64", "10.0.0.7/24", "10.9.9.9/32"]);
    assert_eq!(
        parse(&GOOD.replace(&format!("kernel = {ALL}"), "")).ports()[0].kernel,
        None
    );
}

#[test]
fn its_own_tcp_ports_are_taken_out_of_the_pools() {
    let config = parse(GOOD);
    let local = &config.servers()[0].local[0];
    for (port, is_engines) in [
        (1024, true),
        (60_999, true),
        (61_000, false),
        (61_999, false),
        (62_000, true),
    ] {
        assert_eq!(local.ports.contains(port), is_engines, "{port}");
    }
    // Another address of the kernel's takes nothing from this one.
    let other = parse(&GOOD.replace(
        ALL,
        "{ device = \"pe-k0\", addresses = [\"10.0.0.7\"], local_ports = \"61000-61999\" }",
    ));
    assert!(other.servers()[0].local[0].ports.contains(61_500));
}

#[test]
fn tcp_that_is_left_is_the_kernels() {
    let config = parse(GOOD);
    let kernel = Claims::new(&config, &[MacAddr([2, 0, 0, 0, 0, 1])]).into_exception_path();
    let takes = |address: &str, port: u16| {
        let address: IpAddr = address.parse().expect("an address");
        kernel.takes_tcp(PortId(0), mapped(address), port)
    };
    for (address, port, is_kernels) in [
        ("10.0.0.1", 22, true),
        ("10.0.0.1", 80, false),
        ("10.0.0.1", 443, true),
        ("10.0.0.1", 1023, true),
        ("10.0.0.1", 1024, false),
        ("10.0.0.1", 61_000, true),
        ("10.0.0.1", 65_535, false),
        ("2001:db8::1", 5000, true),
        ("fe80::ff:fe00:1", 179, true),
        ("10.9.9.9", 22, false),
        ("10.0.0.2", 22, false),
    ] {
        assert_eq!(takes(address, port), is_kernels, "{address} {port}");
    }
    assert!(!kernel.takes_tcp(PortId(1), mapped("10.0.0.1".parse().expect("an address")), 22));
    assert!(
        Claims::new(
            &parse(&GOOD.replace(&format!("kernel = {ALL}"), "")),
            &[MacAddr::default()]
        )
        .is_empty()
    );
}

#[test]
fn what_cannot_be_is_refused() {
    refused(
        "\"pe-k0\"",
        "\"much-too-long-a-name\"",
        "port[0].kernel.device is \"much-too-long-a-name\", expected the name",
    );
    refused(
        "\"pe-k0\"",
        "\"a/b\"",
        "expected the name of an interface to be made: 1 to 15",
    );
    refused(
        "\"edge\"",
        "\"../edge\"",
        "port[0].kernel.namespace is \"../edge\", expected the name of a network namespace",
    );
    refused(
        "rate = 500",
        "rate = 0",
        "port[0].kernel.rate is 0, expected 1 to 1000000",
    );
    refused(
        "61000-61999",
        "600-700",
        "port[0].kernel.local_ports is \"600-700\", expected a range of ports from 1024 on",
    );
    refused("61000-61999", "x", "port[0].kernel.local_ports is \"x\"");
    refused(
        "rate = 500",
        "rat = 500",
        "port[0].kernel.rat is not a key of this table",
    );
    let addresses = |list: &str| format!("rate = 500, addresses = [{list}]");
    refused(
        "rate = 500",
        &addresses("\"10.0.0.1/24\""),
        "port[0].kernel.addresses[0] is \"10.0.0.1/24\", expected an IP address",
    );
    refused(
        "rate = 500",
        &addresses("\"10.0.0.5\", \"10.0.0.5\""),
        "an address that is given only once",
    );
    refused(
        "rate = 500",
        &addresses("\"10.7.0.1\""),
        "is \"10.7.0.1\", expected an address in a prefix of the port, or of a listener",
    );
    refused(
        "rate = 500",
        &addresses("\"10.0.0.9\""),
        "the engine's own (kernel's on port \"wire\")",
    );
    refused(
        "rate = 500",
        &addresses("\"10.0.0.254\""),
        "the engine's own (kernel's on port \"wire\")",
    );
    refused(
        "rate = 500",
        &addresses(""),
        "port[0].kernel gives the kernel no address",
    );
    refused(
        "\"10.0.0.1:80\"",
        "\"10.0.0.1:61500\"",
        "local_ports is \"61000-61999\", expected ports on which no listener serves 10.0.0.1",
    );
}

/// A packet socket gets copies of frames that the kernel of its namespace gets, too.
#[test]
fn a_port_that_shares_its_frames_wants_the_kernel_elsewhere() {
    let af_packet = "\"net_af_packet0,iface=eth1\"";
    assert!(
        parse(&GOOD.replace("\"0000:07:00.0\"", af_packet)).ports()[0]
            .kernel
            .is_some()
    );
    let here = GOOD.replace(", namespace = \"edge\"", "");
    assert!(parse(&here).ports()[0].kernel.is_some());
    let error = Config::parse(&here.replace("\"0000:07:00.0\"", af_packet), "edge.toml").expect_err("refused");
    assert!(
        error
            .to_string()
            .contains("port[0].kernel has no \"namespace\", expected one"),
        "{error}"
    );
}

#[test]
fn each_device_is_one_ports() {
    let two = GOOD.replace(", \"10.9.9.9:443\"", "");
    let second = |device: &str, kernel: &str| {
        format!("{two}\n[[port]]\nname = \"other\"\ndevice = \"{device}\"\naddresses = [\"10.5.0.1/24\"]\n{kernel}")
    };
    let same = second("net_ring0", "kernel = { device = \"pe-k0\" }");
    let error = Config::parse(&same, "edge.toml").expect_err("refused").to_string();
    assert!(
        error.contains("port[1].kernel.device is \"pe-k0\", expected an interface that is no other port's"),
        "{error}"
    );
    let below = second("net_af_xdp0,iface=pe-k0", "");
    let error = Config::parse(&below, "edge.toml").expect_err("refused").to_string();
    assert!(error.contains("port[0].kernel.device is \"pe-k0\""), "{error}");
    parse(&second("net_ring0", "kernel = { device = \"pe-k1\" }"));
}
