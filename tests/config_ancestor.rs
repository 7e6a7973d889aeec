//! The files of ProxyEngine itself: what becomes of them, and what is said about the rest.

use std::path::Path;
use std::time::Duration;

use proxyengine::config::{Bind, Config, Fallback, Match, Policy, PoolId, Steering};

const FILES: [&str; 7] = [
    "proxy_run",
    "proxy_run.2",
    "test_rfs_ip",
    "test_rfs_port",
    "client_syn_fin",
    "timeout",
    "older",
];

fn load(name: &str) -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/ancestors/{name}.toml"));
    Config::load(path).unwrap_or_else(|error| panic!("{error}"))
}

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/ancestors/{name}.toml"));
    std::fs::read_to_string(path).expect("a file")
}

/// In one line what the network of a file is: device, address, listening port, address and ports towards servers.
fn network(config: &Config) -> String {
    let (port, listener, server) = (&config.ports()[0], &config.listeners()[0], &config.servers()[0]);
    format!(
        "{} {} {} from {} {:?}",
        port.device,
        port.addresses[0],
        listener.addresses[0],
        server
            .local
            .iter()
            .map(|local| local.ip.to_string())
            .collect::<Vec<_>>()
            .join(" "),
        server.local[0].ports.ranges()
    )
}

#[test]
fn networks_are_as_the_ancestors_make_them() {
    for (file, expected) in [
        (
            "proxy_run",
            "0000:07:00.0 192.168.222.1/24 192.168.222.1:999 from 192.168.222.2 192.168.222.8 192.168.222.9 [64512..=65535]",
        ),
        (
            "proxy_run.2",
            "0000:0a:00.0 192.168.222.8/24 192.168.222.8:19999 from 192.168.222.9 192.168.222.10 192.168.222.11 [32768..=65535]",
        ),
        (
            "test_rfs_ip",
            "0000:07:00.0 192.168.222.1/24 192.168.222.1:999 from 192.168.222.2 192.168.222.3 [64512..=65535]",
        ),
        (
            "test_rfs_port",
            "0000:07:00.0 192.168.222.1/24 192.168.222.1:999 from 192.168.222.1 [32768..=65535]",
        ),
        (
            "client_syn_fin",
            "0000:07:00.0 192.168.222.1/24 192.168.222.1:999 from 192.168.222.2 192.168.222.3 [64512..=65535]",
        ),
        (
            "timeout",
            "0000:07:00.0 192.168.222.1/24 192.168.222.1:999 from 192.168.222.2 [64512..=65535]",
        ),
        (
            "older",
            "0000:0a:00.0 192.168.222.8/24 192.168.222.8:999 from 192.168.222.8 [57344..=65535]",
        ),
    ] {
        assert_eq!(network(&load(file)), expected, "{file}");
    }
}

#[test]
fn every_value_with_a_meaning_arrives() {
    let config = load("proxy_run");
    let engine = config.engine();
    assert_eq!(
        (engine.name.as_str(), engine.memory_mib, engine.buffers),
        ("proxyengine", 2048, 65535)
    );
    assert_eq!(engine.cores.iter().map(|core| core.0).collect::<Vec<_>>(), [1, 2, 3]);
    let steering = |name: &str| {
        let config = load(name);
        (config.engine().steering, config.engine().port_mask)
    };
    assert_eq!(steering("proxy_run"), (Steering::Ip, None));
    assert_eq!(steering("test_rfs_port"), (Steering::Port, Some(0xc000)));
    assert_eq!(
        steering("timeout"),
        (Steering::Auto, None),
        "one core has nothing to steer"
    );
    let port = &config.ports()[0];
    assert_eq!((port.rx_descriptors, port.tx_descriptors), (512, 512));
    assert_eq!(port.mac.expect("a MAC address").to_string(), "a0:36:9f:82:9c:fc");
    assert!(port.checksum_offload);
    assert!(!load("timeout").ports()[0].checksum_offload, "theirs is off by default");
    let names: Vec<&str> = config.servers().iter().map(|server| server.name.as_str()).collect();
    assert_eq!(names, ["Hubert", "Anna", "Berta", "Carl", "Dora"]);
    let dora = &config.servers()[4];
    assert_eq!(dora.address, "192.168.222.7:65535".parse().expect("an address"));
    assert_eq!(dora.mac.expect("a MAC address").to_string(), "a0:36:9f:82:00:07");
    assert_eq!(dora.connect_timeout, Duration::from_secs(2));
    let timeouts = config.timeouts();
    assert_eq!(
        [timeouts.select, timeouts.idle, timeouts.half_close],
        [Duration::from_secs(2); 3]
    );
    assert_eq!(
        load("timeout").timeouts().idle,
        Duration::from_millis(200),
        "theirs by default"
    );
    let places: Vec<String> = config.records().iter().map(|sink| sink.to.to_string()).collect();
    assert_eq!(places, ["c_records.txt"]);
    assert!(load("proxy_run.2").records().is_empty());
}

#[test]
fn the_first_number_chooses_the_target() {
    for file in FILES {
        let config = load(file);
        let listener = &config.listeners()[0];
        assert_eq!(listener.rules.len(), 1, "{file}");
        assert_eq!(
            (&listener.rules[0].matches, listener.rules[0].pool()),
            (&Match::FirstNumber, Some(PoolId(0)))
        );
        assert_eq!(listener.default, Fallback::Pool(PoolId(0)));
        assert_eq!(config.pools()[0].policy, Policy::RoundRobin);
    }
    assert_eq!(load("test_rfs_port").servers().len(), 7);
}

#[test]
fn each_key_without_a_meaning_is_named_once_with_its_line_and_the_reason() {
    let config = load("proxy_run");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ancestors/proxy_run.toml");
    let mut keys = Vec::new();
    for warning in config.warnings() {
        let rest = warning
            .strip_prefix(&format!("{}:", path.display()))
            .unwrap_or_else(|| panic!("{warning}"));
        let (line, sentence) = rest.split_once(": ").expect("a line number");
        let line: usize = line.parse().expect("a line number");
        let (key, why) = sentence.split_once(' ').expect("a sentence");
        let last = key.rsplit('.').next().expect("a key");
        let said = text("proxy_run").lines().nth(line - 1).expect("a line").contains(last);
        assert!(said, "line {line} has no {last}: {warning}");
        assert!(why.len() > 20 && !why.contains('\n'), "{warning}");
        keys.push(key.to_owned());
    }
    assert_eq!(
        keys,
        [
            "netbricks.master_core",
            "netbricks.cache_size",
            "netbricks.vdev",
            "netbricks.ports[0].driver",
            "netbricks.ports[0].fdir.pballoc",
            "netbricks.ports[0].fdir.mode",
            "netbricks.ports[0].fdir.ipv4_mask",
            "netbricks.ports[0].fdir.src_port_mask",
            "netbricks.ports[0].flow_steering",
            "netbricks.ports[1].name",
            "netbricks.ports[1].rxd",
            "netbricks.ports[1].txd",
            "netbricks.ports[1].cores",
            "netbricks.ports[1].k_cores",
        ]
    );
}

/// `namespace`, `ipnet` and `mac` of their kernel ports: an interface there with the proxy's address and MAC address.
#[test]
fn their_kernel_port_is_an_interface_in_their_namespace() {
    for (file, device, namespace) in [
        ("proxy_run", "kni1", "nskni"),
        ("proxy_run.2", "kni1", "nskni"),
        ("older", "kni1", "nskni"),
        ("timeout", "tap00", "nsvirtio00"),
        ("test_rfs_ip", "tap00", "nsvirtio00"),
    ] {
        let config = load(file);
        let port = &config.ports()[0];
        let kernel = port.kernel.as_ref().unwrap_or_else(|| panic!("{file} has no kernel"));
        assert_eq!(
            (kernel.device.as_str(), kernel.namespace.as_deref()),
            (device, Some(namespace)),
            "{file}"
        );
        assert_eq!(kernel.addresses, port.addresses, "{file}");
    }
    let said = load("proxy_run").warnings().join("\n");
    assert!(
        said.contains("[1].name names a port to the kernel, which here is the TAP device \"kni1\""),
        "{said}"
    );
    refused(
        "proxy_run",
        "namespace = \"nskni\"",
        "namespace = \"a/b\"",
        "netbricks.ports[1].namespace is \"a/b\", expected the name of a network namespace",
    );
}

#[test]
fn what_changes_is_said() {
    let warnings = |name: &str| load(name).warnings().join("\n");
    let port = warnings("test_rfs_port");
    assert!(
        port.contains("engine.targets[0].id is \"server 1\" and becomes \"server-1\""),
        "{port}"
    );
    assert!(
        port.contains("engine.targets[6].linux_if has no meaning here: a server's MAC address is asked for by ARP")
    );
    assert!(port.contains("engine.test_size has no meaning here"));
    let taken = text("proxy_run").replace("\"192.168.222.3\"", "\"192.168.222.2\"");
    let config = Config::parse(&taken, "taken.toml").unwrap_or_else(|error| panic!("{error}"));
    let all = config.warnings().join("\n");
    assert!(
        all.contains(
            "netbricks.ports[0].flow_steering would make 192.168.222.2 the address towards the servers, but target"
        ),
        "{all}"
    );
    let unknown = text("older").replace("cores = [1]\n", "cores = [1]\ncolour = \"red\"\n") + "[other]\nx = 1\n";
    let config = Config::parse(&unknown, "unknown.toml").unwrap_or_else(|error| panic!("{error}"));
    let all = config.warnings().join("\n");
    assert!(
        all.contains("unknown.toml:5: netbricks.colour has no meaning here"),
        "{all}"
    );
    assert!(
        all.contains("other has no meaning here: it is no section of a proxy's file"),
        "{all}"
    );
}

#[test]
fn a_software_nic_stands_for_their_card_where_there_is_none() {
    let with_nic = text("test_rfs_port").replace("rxd = 512", "software_nic = \"82599\", rxd = 512");
    let config = Config::parse(&with_nic, "soft.toml").unwrap_or_else(|error| panic!("{error}"));
    let nic = config.ports()[0].software_nic.expect("one");
    assert_eq!((nic.model.name(), nic.queues, nic.core), ("82599", 2, None));
    let bad = with_nic.replace("\"82599\"", "\"i82599\"");
    let error = Config::parse(&bad, "soft.toml").expect_err("no such card").to_string();
    assert!(
        error.contains("netbricks.ports[0].software_nic is \"i82599\", expected \"rss\""),
        "{error}"
    );
}

#[test]
fn both_names_of_the_section_load_the_same() {
    let ours = Config::parse(&text("proxy_run"), "a").unwrap_or_else(|error| panic!("{error}"));
    let other = text("proxy_run").replace("[proxyengine]", "[engine]");
    let other = Config::parse(&other, "a").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ours, other);
}

#[test]
fn a_file_of_ours_has_no_warnings() {
    let config = Config::load(Path::new(env!("CARGO_MANIFEST_DIR")).join("config/demo.toml"));
    assert!(config.unwrap_or_else(|error| panic!("{error}")).warnings().is_empty());
}

/// Replaces one text of a file by another and expects exactly one complaint, in the words of the file.
fn refused(file: &str, from: &str, to: &str, sentence: &str) {
    let before = text(file);
    assert_eq!(before.matches(from).count(), 1, "{from:?} must occur once in {file}");
    let error = Config::parse(&before.replace(from, to), "bad.toml")
        .expect_err("refused")
        .to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(
        error.starts_with("bad.toml:") && error.contains(sentence),
        "expected {sentence:?} in:\n{error}"
    );
}

#[test]
fn complaints_are_about_what_the_file_says() {
    let file = "proxy_run";
    refused(
        file,
        "rxd = 512",
        "rxd = 500",
        "netbricks.ports[0].rxd is 500, expected a multiple of 32",
    );
    refused(
        file,
        "7:00.0",
        "ovs:x",
        "netbricks.ports[0].name is \"ovs:x\", expected a PCI address",
    );
    refused(
        file,
        "192.168.222.1/24",
        "192.168.222.1",
        "netbricks.ports[1].ipnet is \"192.168.222.1\", expected an address with its prefix",
    );
    refused(
        file,
        "192.168.222.1/24",
        "192.168.222.0/24",
        "netbricks.ports[1].ipnet is \"192.168.222.0/24\", expected the address of a host",
    );
    refused(
        file,
        "a0:36:9f:82:9c:fc",
        "a0:36",
        "netbricks.ports[1].mac is \"a0:36\", expected a unicast MAC address",
    );
    refused(
        file,
        "kni = \"kni:1\"",
        "kni = \"kni:2\"",
        "netbricks.ports[0].kni is \"kni:2\", expected the name of a port to the kernel in this list",
    );
    refused(
        file,
        "\"FC00\"",
        "\"FC01\"",
        "netbricks.ports[0].fdir.dst_port_mask is \"FC01\", expected a mask of ports",
    );
    refused(
        file,
        "flow_steering = \"Ip\"",
        "flow_steering = \"Mac\"",
        "netbricks.ports[0].flow_steering is \"Mac\", expected \"Ip\" or \"Port\"",
    );
    refused(
        file,
        "port = 999",
        "port = 0",
        "proxyengine.engine.port is 0, expected a port of 1 to 65535",
    );
    refused(file, "port = 999, ", "", "proxyengine.engine lacks the key `port`");
    refused(
        file,
        "established = 2000",
        "established = 9",
        "proxyengine.engine.timeouts.established is 9, expected 10 to",
    );
    refused(
        file,
        "192.168.222.4\"",
        "192.168.222.300\"",
        "proxyengine.targets[1].ip is \"192.168.222.300:65535\", expected an address with its port",
    );
    refused(
        file,
        "\"Carl\"",
        "\"Anna\"",
        "proxyengine.targets[3].id is \"Anna\", expected a name that is used only once",
    );
    refused(
        file,
        "mbuf_cnt = 65535",
        "mbuf_cnt = 1000",
        "netbricks.mbuf_cnt is 1000, expected at least 2304",
    );
    refused(
        file,
        "pool_size = 2048",
        "pool_size = \"much\"",
        "netbricks.pool_size is \"much\", expected a number",
    );
    refused(
        "older",
        "ipnet = \"192.168.222.8/24\", ",
        "",
        "netbricks.ports[0] has no address, expected `ipnet`",
    );
    refused(
        "older",
        "{ name = \"kni:1\"",
        "{ name = \"8:00.0\"",
        "netbricks.ports has 2 ports besides those to the kernel, expected one",
    );
    refused(
        "older",
        "[{ id = \"server 1\", ip = \"192.168.222.32\", mac = \"02:00:00:00:00:20\", port = 12345 }]",
        "[]",
        "proxyengine.targets is empty, expected at least one server",
    );
}

#[test]
fn a_generators_file_is_none_of_a_proxy() {
    let error = Config::parse(
        "[netbricks]\nname = \"g\"\nports = []\n[trafficengine]\nx = 1\n",
        "g.toml",
    )
    .expect_err("refused");
    assert!(error.to_string().contains("engine lacks the key `port`"), "{error}");
}

/// TcpEngine's words: the simple proxy chooses at the SYN, targets have a prefix, and a generator is none of ours.
#[test]
fn modes_of_tcpengine_are_when_to_bind() {
    let file = text("test_rfs_port");
    let mode = |mode: &str| {
        let text = file.replace("mode = \"Delayed\"", &format!("mode = \"{mode}\""));
        assert!(mode == "Delayed" || text != file, "the file has a mode");
        Config::parse(&text, "t.toml")
    };
    for (name, bind, rules) in [
        ("Delayed", Bind::Payload, 1),
        ("DelayedProxy", Bind::Payload, 1),
        ("SimpleProxy", Bind::Syn, 0),
    ] {
        let config = mode(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let listener = &config.listeners()[0];
        assert_eq!((listener.bind, listener.rules.len()), (bind, rules), "{name}");
        assert!(
            !config
                .warnings()
                .iter()
                .any(|warning| warning.to_string().contains("engine.mode"))
        );
    }
    let error = mode("TrafficGenerator").expect_err("no proxy").to_string();
    assert!(
        error.contains("engine.mode is \"TrafficGenerator\": that is a load"),
        "{error}"
    );
    let with_prefix = file.replace("ip = \"192.168.222.32\"", "ipnet = \"192.168.222.32/24\"");
    assert_ne!(with_prefix, file);
    let config = Config::parse(&with_prefix, "t.toml").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.servers()[0].address.ip().to_string(), "192.168.222.32");
}
