//! What the configuration accepts, and the sentence with which it refuses everything else.

use std::net::IpAddr;
use std::time::Duration;

use netfcts::format::RecordFormat;
use proptest::prelude::*;
use proxyengine::config::{
    AcceptProxy, Bind, Config, Fallback, HostPattern, Idle, ListenerId, Match, Policy, PoolId, PortIndex, ServerConfig,
    ServerId, UnknownFlows, Verify,
};

/// A small configuration that uses most keys; the tests change one thing of it at a time.
const GOOD: &str = r#"
[engine]
name = "edge"
cores = [3]
memory_mib = 512
idle = "poll"
drain = "500ms"
announce = "off"
unknown_flows = "silent"
replies_per_second = 10
leg_sample = 16
max_connections = 1000
reassembly_memory = 77
verify = "all"
buffers = 8192

[[port]]
name = "clients"
device = "net_af_packet0,iface=pe-eng0"
mac = "02:00:00:00:00:01"
vlan = 7
addresses = ["10.1.0.1/24", "2001:db8:1::1/64"]
gateways = ["10.1.0.254", "2001:db8:1::fe"]
neighbours = [{ ip = "10.1.0.254", mac = "02:00:00:00:00:fe" }]
rx_descriptors = 512

[[port]]
name = "servers"
device = "0000:07:00.0"
mtu = 9000
addresses = ["10.2.0.1/24"]
routes = [{ to = "10.9.0.0/16", via = "10.2.0.9" }]
checksum_offload = false

[[listener]]
name = "web"
addresses = ["10.1.0.1:80", "10.1.0.80:8000-8099"]
ports = ["clients"]
bind = "payload"
rules = [
  { http_host = "a.example", http_path = "/api", pool = "api" },
  { http_host = "*.example", pool = "web" },
  { tls_sni = "a.example", pool = "web" },
  { first_number = true, pool = "api" },
]
default = "web"
timeouts = { idle = "10m" }

[[listener]]
name = "web6"
addresses = ["[2001:db8:1::80]:80"]
rules = [{ http_path = "/", pool = "six" }]

[[pool]]
name = "web"
policy = "round_robin"
servers = [
  { name = "w1", address = "10.2.0.11:80", weight = 256, max_connections = 77 },
  { name = "w2", address = "10.9.0.12:80", mac = "02:00:00:00:00:12" },
]

[[pool]]
name = "api"
servers = [
  { name = "a1", address = "10.2.0.21:80" },
]
local_addresses = ["10.1.0.80", "10.2.0.5"]
local_ports = "8000-9000"
connect_timeout = "1s"
syn_retry = "200ms"
retries = 4
policy = "client_hash"
eject_after = 7
eject_for = "3s"
eject_most = 60
check = { kind = "tcp", interval = "2s", fast_interval = "200ms", timeout = "300ms", rise = 4, fall = 5 }

[[pool]]
name = "six"
servers = [{ name = "s6", address = "[2001:db8:1::a]:80" }]

[timeouts]
select = "10s"
idle = "3h"
time_wait = "1s"

[syn_ack]
mss = 1400
window_scale = 9
sack = false
timestamps = false
window = 8192

[dns]
servers = ["192.0.2.53"]
timeout = "2s"
retries = 3

[records]
file = "records.csv"
format = "csv"

[log]
level = "debug"
"#;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn named<'a>(config: &'a Config, server: &str) -> &'a ServerConfig {
    let mut servers = config.servers().iter();
    servers
        .find(|config| config.name == server)
        .expect("a server of that name")
}

#[test]
fn every_key_arrives() {
    let config = Config::parse(GOOD, "good.toml").unwrap_or_else(|error| panic!("{error}"));
    let engine = config.engine();
    assert_eq!(
        (engine.name.as_str(), engine.cores[0].0, engine.memory_mib),
        ("edge", 3, 512)
    );
    assert_eq!(
        (engine.idle, engine.unknown_flows, engine.verify),
        (Idle::Poll, UnknownFlows::Silent, Verify::All)
    );
    assert_eq!(
        (engine.drain, engine.replies_per_second, engine.leg_sample),
        (Duration::from_millis(500), 10, 16)
    );
    assert_eq!((engine.max_connections, engine.buffers), (1000, 8192));
    assert!(!engine.announce);
    assert_eq!((engine.reassembly_memory, engine.reassembly_quota), (77 << 20, 25));

    let dns = config.dns();
    assert_eq!(
        (dns.servers[0].to_string().as_str(), dns.timeout, dns.retries),
        ("192.0.2.53:53", Duration::from_secs(2), 3)
    );
    let [clients, servers] = config.ports() else {
        panic!("two ports")
    };
    assert_eq!(
        (
            clients.mtu,
            clients.vlan,
            clients.rx_descriptors,
            clients.tx_descriptors
        ),
        (1500, Some(7), 512, 1024)
    );
    assert_eq!(clients.mac.unwrap().to_string(), "02:00:00:00:00:01");
    assert_eq!(clients.neighbours[0].0, ip("10.1.0.254"));
    assert_eq!(clients.address(true), Some(ip("2001:db8:1::1")));
    assert!(clients.checksum_offload && !servers.checksum_offload);
    assert_eq!(
        (servers.mtu, servers.device.to_string().as_str()),
        (9000, "0000:07:00.0")
    );

    let web = config.listener(ListenerId(0));
    assert_eq!(
        (web.bind, web.default, web.rules.len()),
        (Bind::Payload, Fallback::Pool(PoolId(0)), 4)
    );
    assert_eq!(web.addresses[1].to_string(), "10.1.0.80:8000-8099");
    assert_eq!(web.pools(), [PoolId(1), PoolId(0)]);
    assert_eq!(
        (web.timeouts.select, web.timeouts.idle),
        (Duration::from_secs(10), Duration::from_secs(600))
    );
    let host = HostPattern::Exact("a.example".into());
    assert_eq!(
        web.rules[0].matches,
        Match::Http {
            host: Some(host.clone()),
            path: Some("/api".into())
        }
    );
    assert_eq!(
        (&web.rules[2].matches, &web.rules[3].matches),
        (
            &Match::Tls {
                sni: Some(host),
                alpn: None
            },
            &Match::FirstNumber
        )
    );
    assert_eq!(config.listener(ListenerId(1)).default, Fallback::Reject);

    let api = named(&config, "a1");
    assert_eq!(
        (api.connect_timeout, api.syn_retry),
        (Duration::from_secs(1), Duration::from_millis(200))
    );
    assert_eq!(
        (api.retries, api.eject_after, api.eject_for),
        (4, 7, Duration::from_secs(3))
    );
    let shares = [PoolId(0), PoolId(1)].map(|pool| config.pool(pool).eject_most);
    assert_eq!(shares, [100, 60]);
    let check = api.check.expect("a check");
    assert_eq!(
        (check.interval, check.fast_interval),
        (Duration::from_secs(2), Duration::from_millis(200))
    );
    assert_eq!(
        (check.timeout, check.rise, check.fall),
        (Some(Duration::from_millis(300)), 4, 5)
    );
    assert_eq!(config.server(ServerId(0)).check, None);
    assert_eq!(config.pool(PoolId(1)).policy, Policy::ClientHash);
    assert_eq!(config.pool(PoolId(0)).members[0].weight, 256);
    assert_eq!(config.server(ServerId(0)).max_connections, Some(77));
    assert_eq!(
        (
            config.server(ServerId(1)).max_connections,
            config.server(ServerId(1)).eject_after
        ),
        (None, 3)
    );
    assert_eq!(config.timeouts().half_close, Duration::from_secs(7440));
    assert_eq!(config.timeouts().connect, Duration::from_secs(10));
    let syn_ack = config.syn_ack();
    assert_eq!(
        (syn_ack.mss, syn_ack.window_scale, syn_ack.window),
        (Some(1400), Some(9), 8192)
    );
    assert!(!syn_ack.sack && !syn_ack.timestamps);
    let [records] = config.records() else {
        panic!("{:?}", config.records())
    };
    assert_eq!(
        (records.to.to_string(), records.format),
        ("records.csv".to_owned(), RecordFormat::Csv)
    );
    assert_eq!(config.log_level(), log::LevelFilter::Debug);
}

#[test]
fn servers_are_behind_the_port_whose_prefix_or_route_has_them() {
    let config = Config::parse(GOOD, "good.toml").unwrap();
    for (name, port, hop) in [
        ("w1", 1, "10.2.0.11"),
        ("w2", 1, "10.2.0.9"),
        ("a1", 1, "10.2.0.21"),
        ("s6", 0, "2001:db8:1::a"),
    ] {
        let server = named(&config, name);
        assert_eq!((server.next_hop.port.0, server.next_hop.ip), (port, ip(hop)), "{name}");
    }
    assert_eq!(config.routes().next_hop(ip("192.0.2.1")).unwrap().ip, ip("10.1.0.254"));
}

#[test]
fn local_addresses_default_to_the_port_and_leave_listeners_their_ports() {
    let config = Config::parse(GOOD, "good.toml").unwrap();
    let local = |name: &str| named(&config, name).local.clone();
    assert_eq!(local("w1")[0].ip, ip("10.2.0.1"));
    assert_eq!(local("w1")[0].ports.ranges(), [1024..=65535]);
    let [listening, other] = &local("a1")[..] else {
        panic!("two local addresses")
    };
    assert_eq!(
        (listening.ip, listening.ports.ranges()),
        (ip("10.1.0.80"), &[8100..=9000][..])
    );
    assert_eq!((other.ip, other.ports.ranges()), (ip("10.2.0.5"), &[8000..=9000][..]));
    let own = config.own_addresses(PortIndex { 0: 1 });
    assert_eq!(own, [ip("10.2.0.1"), ip("10.1.0.80"), ip("10.2.0.5")]);
    let own = config.own_addresses(PortIndex { 0: 0 });
    assert_eq!(
        own,
        ["10.1.0.1", "2001:db8:1::1", "10.1.0.80", "2001:db8:1::80"].map(ip)
    );
}

#[test]
fn clients_of_one_address_family_may_be_led_to_servers_of_the_other() {
    let text = GOOD.replace("default = \"web\"", "default = \"six\"");
    let config = Config::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.listeners()[0].default, Fallback::Pool(PoolId(2)));
    let server = config.servers().iter().find(|server| server.name == "s6");
    let local: Vec<IpAddr> = server.unwrap().local.iter().map(|local| local.ip).collect();
    assert_eq!(
        local,
        [ip("2001:db8:1::1")],
        "the port's address of the server's family"
    );
}

#[test]
fn a_server_in_two_pools_is_one_server() {
    let text = GOOD.replace(
        r#"servers = [{ name = "s6", address = "[2001:db8:1::a]:80" }]"#,
        "servers = [{ name = \"s6\", address = \"[2001:db8:1::a]:80\" }]\n\
         [[pool]]\nname = \"seven\"\nservers = [{ name = \"s6\", address = \"[2001:db8:1::a]:80\", weight = 7 }]",
    );
    let config = Config::parse(&text, "twice.toml").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.servers().len(), 4);
    assert_eq!(config.pool(PoolId(2)).members[0].server, ServerId(3));
    assert_eq!(config.pool(PoolId(3)).members[0].server, ServerId(3));
    assert_eq!(config.pool(PoolId(3)).members[0].weight, 7);
    let other = text.replace("weight = 7", "mac = \"02:00:00:00:00:07\"");
    assert_refused(
        &other,
        &["pool[3].servers[0] is [2001:db8:1::a]:80, which another pool has as well"],
    );
}

#[test]
fn a_promise_fits_the_widest_port() {
    let narrow = GOOD
        .replace("mtu = 9000", "mtu = 1440")
        .replace("vlan = 7", "mtu = 1440");
    assert!(Config::parse(&narrow, "narrow.toml").is_ok());
    let too_narrow = narrow.replace("mtu = 1440", "mtu = 1439");
    assert_refused(
        &too_narrow,
        &["syn_ack.mss is 1400, expected at most 1399, the largest MTU of a port less 40"],
    );
}

#[test]
fn several_mistakes_are_shown_at_once() {
    let text = GOOD
        .replace("memory_mib = 512", "memory_mib = 1")
        .replace("vlan = 7", "vlan = 0");
    let line = |of: &str| 1 + GOOD.lines().position(|line| line.contains(of)).expect("a line of GOOD");
    let vlan = format!("bad.toml:{}: port[0].vlan is 0", line("vlan = 7"));
    let memory = format!("bad.toml:{}: engine.memory_mib is 1", line("memory_mib = 512"));
    assert_refused(&text, &[&vlan, &memory]);
    let text = GOOD
        .replace("[log]", "[logs]")
        .replace("vlan = 7", "vlam = 7")
        .replace("weight", "height");
    let vlam = format!("bad.toml:{}: port[0].vlam is", line("vlan = 7"));
    assert_refused(&text, &["logs is no", &vlam, "pool[0].servers[0].height"]);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::load("no/such/file.toml").unwrap_err().to_string();
    assert!(
        error.starts_with("no/such/file.toml: the file cannot be read: "),
        "{error}"
    );
}

#[test]
fn headers_are_taken_from_addresses_and_prefixes_of_both_families() {
    let accept =
        "bind = \"payload\"\nproxy_protocol = { accept = \"optional\", from = [\"10.0.0.0/8\", \"2001:db8::1\"] }";
    let text = GOOD.replace("bind = \"payload\"", accept);
    let config = Config::parse(&text, "good.toml").expect("good");
    let listener = config.listener(ListenerId(0));
    assert_eq!(listener.accept, AcceptProxy::Optional);
    let shown: Vec<String> = listener.trusted.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10.0.0.0/8", "2001:db8::1/128"]);
    assert_eq!(config.listener(ListenerId(1)).accept, AcceptProxy::Off);
}

#[test]
fn a_header_names_a_client_too_late_for_the_syn_of_a_transparent_server() {
    let rules = &GOOD[GOOD.find("rules = [").expect("rules")..];
    let rules = &rules[..=rules.find("\n]").expect("their end") + 1];
    let accept = "proxy_protocol = { accept = \"optional\", from = [\"10.0.0.1\"] }";
    let text = GOOD
        .replace(rules, "")
        .replace("bind = \"payload\"", &format!("bind = \"syn\"\n{accept}"));
    let config = Config::parse(&text, "good.toml").expect("not transparent");
    assert_eq!(config.listener(ListenerId(0)).accept, AcceptProxy::Optional);
    let transparent = text.replace("policy = \"round_robin\"", "transparent = true");
    assert_refused(
        &transparent,
        &["listener[0].proxy_protocol.accept comes too late for the transparent server \""],
    );
    let handshake = transparent.replace("bind = \"syn\"", "bind = \"handshake\"");
    Config::parse(&handshake, "good.toml").expect("the header comes first");
}

fn assert_refused(text: &str, sentences: &[&str]) {
    let error = Config::parse(text, "bad.toml").expect_err("refused");
    let shown = error.to_string();
    for sentence in sentences {
        assert!(shown.contains(sentence), "expected {sentence:?} in:\n{shown}");
    }
    assert_eq!(
        error.problems().len(),
        sentences.len(),
        "no complaint without a cause:\n{shown}"
    );
    for line in shown.lines() {
        assert!(line.starts_with("bad.toml"), "{line}");
    }
}

/// Replaces one text of the good file by another and expects exactly one complaint, which names the line.
fn refused(from: &str, to: &str, sentence: &str) {
    assert_eq!(GOOD.matches(from).count(), 1, "{from:?} must occur once");
    let text = GOOD.replace(from, to);
    assert_refused(&text, &[sentence]);
    let shown = Config::parse(&text, "bad.toml").unwrap_err().to_string();
    let line: usize = shown
        .split(':')
        .nth(1)
        .and_then(|line| line.parse().ok())
        .expect("a line number");
    let changed = 1 + GOOD[..GOOD.find(from).unwrap()].matches('\n').count();
    assert!(
        (changed.saturating_sub(8)..=changed + to.matches('\n').count() + 1).contains(&line),
        "{changed}: {shown}"
    );
}

macro_rules! refusals {
    ($($name:ident: $from:expr => $to:expr, $sentence:expr;)*) => {
        $(#[test] fn $name() { refused($from, $to, $sentence); })*
    };
}

refusals! {
    syntax: "[engine]" => "[engine", "the file is not TOML here: ";
    duplicate_key: "cores = [3]" => "cores = [3]\ncores = [3]", "the file is not TOML here: duplicate key";
    unknown_section: "[log]" => "[logs]", "logs is no section of this file, expected \"engine\", ";
    unknown_key: "idle = \"poll\"" => "idel = \"poll\"", "engine.idel is not a key of this table, expected one of `name`, ";
    unknown_nested_key: "weight = 256" => "wheight = 256", "pool[0].servers[0].wheight is not a key of this table";
    missing_key: "device = \"0000:07:00.0\"" => "", "port[1] lacks the key `device`";
    wrong_type: "cores = [3]" => "cores = [\"three\"]", "engine.cores[0] is \"three\": invalid type: string";
    wrong_section_type: "[log]\nlevel = \"debug\"" => "[[log]]\nlevel = \"debug\"", "log is a list, expected a table written as [log]";
    accept_word: "bind = \"payload\"" => "proxy_protocol = { accept = \"yes\" }", "listener[0].proxy_protocol.accept is \"yes\", expected \"off\", \"optional\" or \"required\"";
    accept_from_nobody: "bind = \"payload\"" => "proxy_protocol = { accept = \"required\" }", "listener[0].proxy_protocol.from is missing, expected the prefixes of those";
    accept_from_without: "bind = \"payload\"" => "proxy_protocol = { from = [\"10.0.0.0/8\"] }", "listener[0].proxy_protocol.from has no meaning without accept";
    accept_from_host_bits: "bind = \"payload\"" => "proxy_protocol = { accept = \"optional\", from = [\"10.0.0.1/8\"] }", "listener[0].proxy_protocol.from[0] is \"10.0.0.1/8\", expected a prefix without host bits, such as \"10.0.0.0/8\"";
    accept_from_text: "bind = \"payload\"" => "proxy_protocol = { accept = \"optional\", from = [\"lan\"] }", "listener[0].proxy_protocol.from[0] is \"lan\", expected an address or a prefix such as";
    tlv_word: "policy = \"round_robin\"" => "proxy_protocol = { send = \"v2\", tlvs = [\"ssl\"] }", "pool[0].proxy_protocol.tlvs[0] is \"ssl\", expected \"authority\", ";
    tlv_in_version_1: "policy = \"round_robin\"" => "proxy_protocol = { send = \"v1\", tlvs = [\"alpn\"] }", "pool[0].proxy_protocol.tlvs can only be sent with version 2";
    transparent_ports: "policy = \"round_robin\"" => "transparent = true\nlocal_ports = \"2000-3000\"", "pool[0].local_ports has no meaning with transparent = true";
    transparent_across: "rules = [{ http_path = \"/\", pool = \"six\" }]" => "rules = [{ http_path = \"/\", pool = \"six\" }]\ndefault = \"four\"\n[[pool]]\nname = \"four\"\ntransparent = true\nservers = [{ name = \"f1\", address = \"10.2.0.44:80\" }]", "listener[1] leads clients of [2001:db8:1::80]:80 to the transparent server \"f1\" (10.2.0.44:80)";
    no_core: "cores = [3]" => "cores = []", "engine.cores is empty";
    core_twice: "cores = [3]" => "cores = [3, 3]", "engine.cores[1] is 3, expected a core that is named only once";
    core_out_of_range: "cores = [3]" => "cores = [-1]", "engine.cores[0] is -1, expected 0 to 8191";
    unknown_steering: "cores = [3]" => "cores = [3, 4]\nsteering = \"dice\"", "expected \"auto\", \"rss\", \"port\", \"ip\" or \"software\"";
    mask_with_holes: "cores = [3]" => "cores = [3, 4]\nport_mask = 0xA000", "engine.port_mask is 0xa000, expected a mask of the highest bits";
    mask_of_all: "cores = [3]" => "cores = [3, 4]\nport_mask = 0xFFFF", "engine.port_mask is 0xffff, expected a mask of the highest bits";
    mask_of_nothing: "cores = [3]" => "cores = [3, 4]\nport_mask = 0", "engine.port_mask is 0x0, expected a mask of the highest bits";
    memory: "memory_mib = 512" => "memory_mib = 63", "engine.memory_mib is 63, expected 64 to 1048576";
    idle: "idle = \"poll\"" => "idle = \"busy\"", "engine.idle is \"busy\", expected \"adaptive\" or \"poll\"";
    drain_word: "drain = \"500ms\"" => "drain = \"soon\"", "engine.drain is \"soon\", expected a duration such as";
    drain_range: "drain = \"500ms\"" => "drain = \"61m\"", "engine.drain is \"61m\", expected \"0s\" to \"1h\"";
    buffers: "buffers = 8192" => "buffers = 4000", "engine.buffers is 4000, expected at least 4864: 3584 for the descriptors of all ports and 1280 in flight";
    name_characters: "name = \"edge\"" => "name = \"ed ge\"", "engine.name is \"ed ge\", expected 1 to 64 letters";
    port_name_twice: "name = \"servers\"" => "name = \"clients\"", "port[1].name is \"clients\", expected a name that is used only once";
    device: "device = \"0000:07:00.0\"" => "device = \"eth0\"", "port[1].device is \"eth0\", expected a PCI address such as";
    memif_without_copies: "device = \"0000:07:00.0\"" => "device = \"net_memif0,role=client,zero-copy=yes\"", "expected a memif that copies, without \"zero-copy=yes\": DPDK 22.11 can have one such port at most";
    device_twice: "device = \"0000:07:00.0\"" => "device = \"net_af_packet0,iface=pe-eng1\"", "expected a device of its own; port \"clients\" has this one";
    interface_twice: "device = \"0000:07:00.0\"" => "device = \"net_af_xdp1,iface=pe-eng0\"", "expected an interface of its own; port \"clients\" has this one";
    port_mac: "mac = \"02:00:00:00:00:01\"" => "mac = \"03:00:00:00:00:01\"", "port[0].mac is \"03:00:00:00:00:01\", expected a unicast MAC";
    mtu_small: "mtu = 9000" => "mtu = 575", "port[1].mtu is 575, expected 576 to 9000";
    mtu_large: "mtu = 9000" => "mtu = 9001", "port[1].mtu is 9001, expected 576 to 9000";
    mtu_ipv6: "vlan = 7" => "mtu = 1279", "port[0].mtu is 1279, expected at least 1280 on a port with an IPv6 address";
    vlan: "vlan = 7" => "vlan = 4095", "port[0].vlan is 4095, expected 1 to 4094";
    port_address: "\"10.2.0.1/24\"" => "\"10.2.0.1/24\", \"10.3.0.1\"", "port[1].addresses[1] is \"10.3.0.1\", expected an address with its prefix";
    network_address: "\"10.1.0.1/24\"" => "\"10.1.0.1/24\", \"10.3.0.0/24\"", "port[0].addresses[1] is \"10.3.0.0/24\", expected the address of a host";
    broadcast_address: "\"10.1.0.1/24\"" => "\"10.1.0.1/24\", \"10.3.0.255/24\"", "this is its broadcast address";
    prefixes_overlap: "\"10.2.0.1/24\"" => "\"10.2.0.1/24\", \"10.1.0.129/25\"", "port[1].addresses[1] is \"10.1.0.129/25\", expected a prefix that overlaps none of another port; port \"clients\" has 10.1.0.1/24";
    gateway_off_link: "\"10.1.0.254\", \"2001:db8:1::fe\"" => "\"10.3.0.254\"", "port[0].gateways[0] is \"10.3.0.254\", expected an address in a prefix of port \"clients\"";
    gateway_is_self: "\"10.1.0.254\", \"2001:db8:1::fe\"" => "\"10.1.0.1\"", "expected a neighbour; this is port \"clients\" itself";
    two_gateways: "checksum_offload = false" => "gateways = [\"10.2.0.254\"]", "port[1].gateways[0] leads to 0.0.0.0/0, expected one way to it only; port \"clients\" has another";
    route_host_bits: "to = \"10.9.0.0/16\"" => "to = \"10.9.0.1/16\"", "port[1].routes[0].to is \"10.9.0.1/16\", expected a prefix without host bits: \"10.9.0.0/16\"";
    route_family: "to = \"10.9.0.0/16\"" => "to = \"2001:db8:9::/48\"", "port[1].routes[0].via is \"10.2.0.9\", expected a gateway of the same address family";
    neighbour_mac: "mac = \"02:00:00:00:00:fe\"" => "mac = \"ff:ff:ff:ff:ff:ff\"", "port[0].neighbours[0].mac is \"ff:ff:ff:ff:ff:ff\", expected a unicast";
    neighbour_is_own: "{ ip = \"10.1.0.254\"" => "{ ip = \"10.1.0.80\"", "port[0].neighbours[0].ip is 10.1.0.80, expected an address of another host; this one is the engine's own (listener \"web\")";
    gateway_is_listener: "\"10.1.0.254\", \"2001:db8:1::fe\"" => "\"10.1.0.80\"", "port[0].gateways[0] is 10.1.0.80, expected an address of another host; this one is the engine's own (listener \"web\")";
    route_via_local: "via = \"10.2.0.9\"" => "via = \"10.2.0.5\"", "port[1].routes[0].via is 10.2.0.5, expected an address of another host; this one is the engine's own (local address towards \"a1\")";
    two_macs: "name = \"a1\", address = \"10.2.0.21:80\"" => "name = \"a1\", address = \"10.9.0.12:81\", mac = \"02:00:00:00:00:13\"", "pool[1].servers[0].address is 10.9.0.12:81 at 02:00:00:00:00:13, expected the same mac as server \"w2\"";
    descriptors_range: "rx_descriptors = 512" => "rx_descriptors = 32", "port[0].rx_descriptors is 32, expected 64 to 4096";
    software_nic_queues: "vlan = 7" => "software_nic = { queues = 2 }", "port[0].software_nic.queues is 2, expected 1: one for each of `cores`";
    software_nic_queues_range: "vlan = 7" => "software_nic = { queues = 17, model = \"82599\" }", "port[0].software_nic.queues is 17, expected 1 to 16";
    software_nic_model: "vlan = 7" => "software_nic = { model = \"e810\" }", "port[0].software_nic.model is \"e810\", expected \"rss\", \"82599\" or \"x710\"";
    software_nic_core: "vlan = 7" => "software_nic = { core = 3 }", "port[0].software_nic.core is 3, expected a core that runs no worker";
    software_nic_key: "vlan = 7" => "software_nic = { queue = 1 }", "queue";
    descriptors_step: "rx_descriptors = 512" => "rx_descriptors = 500", "port[0].rx_descriptors is 500, expected a multiple of 32";
    listen_nothing: "addresses = [\"[2001:db8:1::80]:80\"]" => "addresses = []", "listener[1].addresses is empty";
    listen_text: "[2001:db8:1::80]:80" => "2001:db8:1::80:80", "listener[1].addresses[0] is \"2001:db8:1::80:80\", expected an address with a port";
    listen_port_0: "\"10.1.0.1:80\"" => "\"10.1.0.1:0\"", "listener[0].addresses[0] is \"10.1.0.1:0\", expected an address with a port";
    listen_range: "8000-8099\"]" => "8099-8000\"]", "listener[0].addresses[1] is \"10.1.0.80:8099-8000\", expected";
    listen_multicast: "\"10.1.0.1:80\"" => "\"224.0.0.1:80\"", "expected a unicast address; this is a multicast address";
    listen_twice: "\"10.1.0.1:80\"" => "\"10.1.0.80:8099-8150\"", "listener[0].addresses[1] is \"10.1.0.80:8000-8099\", expected addresses and ports that are given only once";
    listeners_overlap: "[2001:db8:1::80]:80\"]" => "[2001:db8:1::80]:80\", \"10.1.0.80:8099\"]\nports = [\"clients\"]", "listener[1].addresses[1] is \"10.1.0.80:8099\", expected addresses and ports that no other listener has; \"web\" listens there";
    listener_on_no_port: "[2001:db8:1::80]:80\"]" => "[2001:db8:f::80]:80\"]", "listener[1].ports is missing, expected the names of the ports";
    listener_port_unknown: "ports = [\"clients\"]" => "ports = [\"client\"]", "listener[0].ports[0] is \"client\", expected the name of a port: \"clients\" or \"servers\"";
    bind_unknown: "bind = \"payload\"" => "bind = \"data\"", "listener[0].bind is \"data\", expected \"payload\", \"handshake\" or \"syn\"";
    bind_syn_with_rules: "bind = \"payload\"" => "bind = \"syn\"", "listener[0].rules can never match, expected only client and listener_port: with bind = \"syn\" the server is chosen before";
    inspect_delay_long: "bind = \"payload\"" => "inspect_delay = \"11s\"", "listener[0].inspect_delay is \"11s\", expected less than `select`, \"10s\"";
    inspect_delay_short: "bind = \"payload\"" => "inspect_delay = \"1ms\"", "listener[0].inspect_delay is \"1ms\", expected \"10ms\" to \"30days\"";
    bind_handshake_with_rules: "bind = \"payload\"" => "bind = \"handshake\"", "listener[0].rules can never match, expected only client and listener_port: with bind = \"handshake\" the server is chosen before";
    no_way_to_serve: "rules = [{ http_path = \"/\", pool = \"six\" }]" => "", "listener[1] has neither rules nor a default";
    pool_unknown: "{ tls_sni = \"a.example\", pool = \"web\" }" => "{ tls_sni = \"a.example\", pool = \"wbe\" }", "listener[0].rules[2].pool is \"wbe\", expected the name of a pool: \"web\", \"api\" or \"six\"";
    default_unknown: "default = \"web\"" => "default = \"wbe\"", "listener[0].default is \"wbe\", expected the name of a pool";
    rule_of_no_kind: "{ first_number = true, pool" => "{ pool", "listener[0].rules[3] matches nothing, expected http_host and/or http_path";
    rule_of_two_kinds: "{ first_number = true, pool" => "{ first_number = true, tls_sni = \"b\", pool", "listener[0].rules[3] mixes kinds, expected one of http_host and/or http_path, ";
    rule_number_false: "{ first_number = true, pool" => "{ first_number = false, pool", "listener[0].rules[3].first_number is false, expected true";
    rule_host: "http_host = \"*.example\"" => "http_host = \"*.*.example\"", "listener[0].rules[1].http_host is \"*.*.example\", expected a host name";
    rule_host_port: "http_host = \"*.example\"" => "http_host = \"b.example:80\"", "listener[0].rules[1].http_host is \"b.example:80\", expected a host name without a port";
    rule_path: "http_path = \"/api\"" => "http_path = \"api\"", "listener[0].rules[0].http_path is \"api\", expected the beginning of a path";
    rule_sni_address: "tls_sni = \"a.example\"" => "tls_sni = \"192.0.2.1\"", "listener[0].rules[2].tls_sni is \"192.0.2.1\", expected a host name; TLS clients never send an address";
    rule_duplicate: "{ tls_sni = \"a.example\"" => "{ http_host = \"A.Example.\", http_path = \"/api\"", "listener[0].rules[2] can never match, expected it before rules[0], which matches the same requests";
    rule_shadowed: "{ tls_sni = \"a.example\"" => "{ http_host = \"b.a.example\"", "listener[0].rules[2] can never match, expected it before rules[1]";
    rule_http_after_number: "{ first_number = true, pool = \"api\" }," => "{ first_number = true, pool = \"api\" }, { http_host = \"z\", pool = \"api\" },", "listener[0].rules[4] can never match, expected it before rules[3], which matches the version number";
    rule_number_twice: "{ first_number = true, pool = \"api\" }," => "{ first_number = true, pool = \"api\" }, { first_number = true, pool = \"web\" },", "listener[0].rules[4] can never match, expected it before rules[3]";
    rule_leads_nowhere: "{ first_number = true, pool = \"api\" }," => "{ prefix = \"x\" },", "listener[0].rules[3] has neither of pool and action, expected a pool, or action = \"reject\", \"drop\" or \"tarpit\"";
    rule_leads_twice: "{ first_number = true, pool = \"api\" }," => "{ prefix = \"x\", pool = \"api\", action = \"drop\" },", "listener[0].rules[3] has both of pool and action, expected a pool, or action =";
    rule_action_unknown: "{ first_number = true, pool = \"api\" }," => "{ prefix = \"x\", action = \"deny\" },", "listener[0].rules[3].action is \"deny\", expected \"reject\", \"drop\" or \"tarpit\"";
    rule_client_text: "{ first_number = true, pool = \"api\" }," => "{ client = [\"10.0.0.0/33\"], action = \"drop\" },", "listener[0].rules[3].client[0] is \"10.0.0.0/33\", expected an address or a prefix such as";
    rule_client_host_bits: "{ first_number = true, pool = \"api\" }," => "{ client = [\"10.0.0.1/8\"], action = \"drop\" },", "listener[0].rules[3].client[0] is \"10.0.0.1/8\", expected a prefix without host bits, such as \"10.0.0.0/8\"";
    rule_client_nobody: "{ first_number = true, pool = \"api\" }," => "{ client = [], action = \"drop\" },", "listener[0].rules[3].client is empty, expected at least one address, prefix or list";
    rule_listener_port: "{ first_number = true, pool = \"api\" }," => "{ listener_port = [\"0\"], action = \"drop\" },", "listener[0].rules[3].listener_port[0] is \"0\", expected a port or a range of ports";
    rule_tarpit_payload: "{ first_number = true, pool = \"api\" }," => "{ prefix = \"x\", action = \"tarpit\" },", "listener[0].rules[3].action is \"tarpit\", expected \"reject\" or \"drop\": a connection is tarpitted by its first SYN";
    rule_tarpit_behind: "{ first_number = true, pool = \"api\" }," => "{ client = [\"10.9.0.0/16\"], action = \"tarpit\" },", "listener[0].rules[3].action is \"tarpit\", expected it before rules[0]: a connection is tarpitted by its first SYN";
    rule_number_refuses: "{ first_number = true, pool = \"api\" }," => "{ first_number = true, action = \"drop\" },", "listener[0].rules[3].first_number names a server of a pool, expected no other condition and no action beside it";
    rule_number_and_more: "{ first_number = true, pool = \"api\" }," => "{ first_number = true, client = [\"10.9.0.0/16\"], pool = \"api\" },", "listener[0].rules[3].first_number names a server of a pool";
    class_with_pool: "{ first_number = true, pool = \"api\" }," => "{ client = [\"10.9.0.0/16\"], class = \"a\", pool = \"api\" },", "listener[0].rules[3] gives a class, expected neither name, pool nor action beside it";
    class_of_payload: "{ first_number = true, pool = \"api\" }," => "{ prefix = \"x\", class = \"a\" },", "listener[0].rules[3] gives a class, expected only client and listener_port";
    class_name: "{ first_number = true, pool = \"api\" }," => "{ client = [\"10.9.0.0/16\"], class = \"a b\" },", "listener[0].rules[3].class is \"a b\", expected 1 to 64 letters";
    class_not_given: "[records]" => "[[class]]\nname = \"staff\"\n[records]", "class[0].name is \"staff\", expected a class that a rule gives";
    limit_of_nothing: "default = \"web\"" => "default = \"web\"\nlimit = { beyond = \"drop\" }", "listener[0].limit limits nothing, expected connections, rate, or both";
    limit_rate: "default = \"web\"" => "default = \"web\"\nlimit = { rate = 0 }", "listener[0].limit.rate is 0, expected 0.001 to 100000000 new connections a second";
    limit_connections: "default = \"web\"" => "default = \"web\"\nlimit = { connections = 0 }", "listener[0].limit.connections is 0, expected 1 to 67108864";
    limit_burst: "default = \"web\"" => "default = \"web\"\nlimit = { connections = 1, burst = 5 }", "listener[0].limit.burst means nothing without rate";
    limit_beyond: "default = \"web\"" => "default = \"web\"\nlimit = { connections = 1, beyond = \"deny\" }", "listener[0].limit.beyond is \"deny\", expected \"reject\", \"drop\" or \"tarpit\"";
    limit_prefix: "default = \"web\"" => "default = \"web\"\nclient_limit = { connections = 1, prefix_v4 = 33 }", "listener[0].client_limit.prefix_v4 is 33, expected 1 to 32";
    limit_of_proxies: "default = \"web\"" => "default = \"web\"\nclient_limit = { connections = 1 }\nproxy_protocol = { accept = \"required\", from = [\"10.0.0.0/8\"] }", "listener[0].client_limit counts those who shake hands, which are proxies where PROXY headers are accepted";
    limit_pool_tarpit: "name = \"api\"" => "name = \"api\"\nlimit = { connections = 1, beyond = \"tarpit\" }", "pool[1].limit.beyond is \"tarpit\", expected \"reject\" or \"drop\"";
    hash_without_use: "policy = \"client_hash\"" => "policy = \"round_robin\"\nhash = { seed = 1 }", "pool[1].hash means something with policy = \"client_hash\" or \"maglev\" only";
    hash_key: "policy = \"client_hash\"" => "policy = \"maglev\"\nhash = { key = \"sni\" }", "pool[1].hash.key is \"sni\", expected \"client\", \"tls_sni\", \"http_host\" or \"postgres_user\"";
    hash_prefix: "policy = \"client_hash\"" => "policy = \"maglev\"\nhash = { prefix_v4 = 33 }", "pool[1].hash.prefix_v4 is 33, expected 1 to 32";
    hash_factor: "policy = \"client_hash\"" => "policy = \"maglev\"\nhash = { balance_factor = 100 }", "pool[1].hash.balance_factor is 100, expected 101 to 10000";
    panic_range: "policy = \"client_hash\"" => "panic_below = 101", "pool[1].panic_below is 101, expected 0 to 100";
    slow_start_range: "policy = \"client_hash\"" => "slow_start = \"2h\"", "pool[1].slow_start is \"2h\", expected";
    backups_only: "{ name = \"a1\", address = \"10.2.0.21:80\" }" => "{ name = \"a1\", address = \"10.2.0.21:80\", backup = true }", "pool[1].servers are all backups, expected one that is none";
    rule_part_with_pool: "{ first_number = true, pool = \"api\" }," => "{ and = [{ prefix = \"x\", pool = \"api\" }, { regex = \"y\" }], pool = \"api\" },", "listener[0].rules[3].and[0] is a part of a rule, expected conditions without name, pool, action and class";
    rule_part_of_nothing: "{ first_number = true, pool = \"api\" }," => "{ not = [{ }], pool = \"api\" },", "listener[0].rules[3].not[0] matches nothing, expected http_host and/or http_path";
    rule_part_wrong: "{ first_number = true, pool = \"api\" }," => "{ not = [{ and = [{ prefix = \"\" }] }], pool = \"api\" },", "listener[0].rules[3].not[0].and[0].prefix is \"\", expected 1 to 256 bytes";
    rule_client_covered: "{ first_number = true, pool = \"api\" }," => "{ client = [\"10.9.0.0/16\"], pool = \"api\" }, { client = [\"10.9.3.0/24\", \"10.9.4.5\"], prefix = \"x\", action = \"drop\" },", "listener[0].rules[4] can never match, expected it before rules[3], which matches the same clients";
    rule_alpn_empty: "{ first_number = true, pool" => "{ tls_alpn = \"\", pool", "listener[0].rules[3].tls_alpn is \"\", expected the name of a protocol such as \"h2\"";
    rule_alpn_covered: "{ first_number = true, pool" => "{ tls_sni = \"A.example\", tls_alpn = \"h2\", pool", "listener[0].rules[3] can never match, expected it before rules[2], which matches the same names";
    rule_prefix_empty: "{ first_number = true, pool" => "{ prefix = \"\", pool", "listener[0].rules[3].prefix is \"\", expected 1 to 256 bytes";
    rule_prefix_odd: "{ first_number = true, pool" => "{ prefix_hex = \"16 03 1\", pool", "listener[0].rules[3].prefix_hex is \"16 03 1\", expected bytes as pairs of hexadecimal digits";
    rule_prefix_of_prefix: "{ first_number = true, pool" => "{ prefix = \"SSH-\", pool = \"web\" }, { prefix_hex = \"5353482d 32\", pool", "listener[0].rules[4] can never match, expected it before rules[3], which matches how every such payload begins";
    rule_prefix_of_tls: "{ tls_sni = \"a.example\", pool = \"web\" }," => "{ prefix_hex = \"16\", pool = \"web\" }, { tls_sni = \"a.example\", pool = \"web\" },", "listener[0].rules[3] can never match, expected it before rules[2], which matches how every such payload begins";
    rule_regex: "{ first_number = true, pool" => "{ regex = \"(\", pool", "listener[0].rules[3].regex is \"(\", expected a regular expression: unclosed group";
    rule_regex_big: "{ first_number = true, pool" => "{ regex = \"[01]*1[01]{20}\", pool", "listener[0].rules[3].regex is \"[01]*1[01]{20}\", expected a smaller expression: ";
    rule_regex_never: "{ first_number = true, pool" => "{ regex = \"a^\", pool", "listener[0].rules[3].regex is \"a^\", expected an expression that can match something";
    rule_regex_always: "{ first_number = true, pool" => "{ regex = \".*\", pool", "listener[0].rules[3].regex is \".*\", expected an expression that does not match every payload; a default does that";
    rule_regex_beyond: "{ first_number = true, pool" => "{ regex = \"^.{9}x\", regex_bytes = 9, pool", "expected an expression that can match within the first 9 bytes; this one takes 10, see regex_bytes";
    rule_regex_bytes: "{ first_number = true, pool" => "{ regex = \"x\", regex_bytes = 16385, pool", "listener[0].rules[3].regex_bytes is 16385, expected 1 to 16384";
    rule_regex_missing: "{ first_number = true, pool" => "{ regex_bytes = 10, pool", "listener[0].rules[3] lacks the key `regex`";
    rule_regex_twice: "{ first_number = true, pool" => "{ regex = \"^x+y\", pool = \"web\" }, { regex = \"^x+y\", pool", "listener[0].rules[4] can never match, expected it before rules[3], which is the same expression";
    rule_regex_of_prefix: "{ first_number = true, pool" => "{ regex = \"^EH?LO\", pool = \"web\" }, { prefix = \"EHLO there\", pool", "listener[0].rules[4] can never match, expected it before rules[3], which matches how every such payload begins";
    rule_dn: "{ first_number = true, pool" => "{ ldap_bind_dn = \"example.org\", pool", "listener[0].rules[3].ldap_bind_dn is \"example.org\", expected a distinguished name such as";
    rule_dn_covered: "{ first_number = true, pool" => "{ ldap_bind_dn = \"dc=org\", pool = \"web\" }, { ldap_bind_dn = \"ou=x, DC=org\", pool", "listener[0].rules[4] can never match, expected it before rules[3], which matches the same names";
    rule_ldap_after_number: "{ first_number = true, pool = \"api\" }," => "{ first_number = true, pool = \"api\" }, { ldap_bind_dn = \"*\", pool = \"web\" },", "listener[0].rules[4] can never match, expected it before rules[3], which matches the digit with which every such payload begins";
    rule_user_long: "{ first_number = true, pool" => "{ postgres_user = \"0123456789012345678901234567890123456789012345678901234567890123\", pool", "expected a name of 1 to 63 bytes, or \"*\" for any";
    rule_database_empty: "{ first_number = true, pool" => "{ postgres_database = \"\", pool", "listener[0].rules[3].postgres_database is \"\", expected a name of 1 to 63 bytes";
    rule_database_covered: "{ first_number = true, pool" => "{ postgres_database = \"shop\", pool = \"web\" }, { postgres_user = \"a\", postgres_database = \"shop\", pool", "listener[0].rules[4] can never match, expected it before rules[3], which matches the same users and databases";
    rule_ssl_request_false: "{ first_number = true, pool" => "{ ssl_request = false, pool", "listener[0].rules[3].ssl_request is false, expected true, or a rule of another kind";
    rule_ssl_request_twice: "{ first_number = true, pool" => "{ ssl_request = true, pool = \"web\" }, { ssl_request = true, pool", "listener[0].rules[4] can never match, expected it before rules[3]";
    rule_sni_twice: "{ tls_sni = \"a.example\", pool = \"web\" }" => "{ tls_sni = \"*\", pool = \"web\" }, { tls_sni = \"a.example\", pool = \"web\" }", "listener[0].rules[3] can never match";
    listener_timeout: "idle = \"10m\"" => "idle = \"31days\"", "listener[0].timeouts.idle is \"31days\", expected \"10ms\" to \"30days\"";
    pool_empty: "servers = [{ name = \"s6\", address = \"[2001:db8:1::a]:80\" }]" => "servers = []", "pool[2].servers is empty, expected at least one server";
    pool_named_reject: "name = \"six\"\n" => "name = \"reject\"\n[[pool]]\nname = \"six\"\n", "pool[2] lacks the key `servers`";
    server_address: "\"10.2.0.11:80\"" => "\"10.2.0.11\"", "pool[0].servers[0].address is \"10.2.0.11\", expected an address with its port";
    server_port_0: "\"10.2.0.11:80\"" => "\"10.2.0.11:0\"", "pool[0].servers[0].address is \"10.2.0.11:0\", expected a port of 1 to 65535";
    server_loopback: "\"10.2.0.11:80\"" => "\"127.0.0.1:80\"", "expected the unicast address of a host; this is a loopback address";
    server_mapped: "\"10.2.0.11:80\"" => "\"[::ffff:10.2.0.11]:80\"", "this is an IPv4-mapped address";
    server_weight_0: "weight = 256" => "weight = 0", "pool[0].servers[0].weight is 0, expected 1 to 256";
    server_weight: "weight = 256" => "weight = 257", "pool[0].servers[0].weight is 257, expected 1 to 256";
    reassembly_memory: "reassembly_memory = 77" => "reassembly_memory = 0", "engine.reassembly_memory is 0, expected 1 to 8192";
    server_limit: "max_connections = 77" => "max_connections = 0", "pool[0].servers[0].max_connections is 0, expected 1 to 16777216";
    retries: "retries = 4" => "retries = 17", "pool[1].retries is 17, expected 0 to 16";
    eject_after: "eject_after = 7" => "eject_after = -1", "pool[1].eject_after is -1, expected 0 to 1000";
    eject_for: "eject_for = \"3s\"" => "eject_for = \"2h\"", "pool[1].eject_for is \"2h\", expected \"10ms\" to \"1h\"";
    eject_most: "eject_most = 60" => "eject_most = 0", "pool[1].eject_most is 0, expected 1 to 100";
    check_kind: "kind = \"tcp\"" => "kind = \"ping\"", "pool[1].check.kind is \"ping\", expected \"tcp\", \"http\", \"https\", \"tls\", \"send\", \"postgres\", \"ldap\", \"redis\" or \"off\"";
    check_key: "kind = \"tcp\"" => "kind = \"tcp\", path = \"/\"", "pool[1].check.path is no key of a check of kind \"tcp\"";
    check_path: "kind = \"tcp\"" => "kind = \"http\", path = \"health\"", "pool[1].check.path is \"health\", expected a path such as \"/health\"";
    check_method: "kind = \"tcp\"" => "kind = \"http\", method = \"GE T\"", "pool[1].check.method is \"GE T\", expected 1 to 1024 visible characters of ASCII";
    check_host: "kind = \"tcp\"" => "kind = \"http\", host = \"a\\r\\nb\"", "pool[1].check.host is \"a\\r\\nb\", expected 1 to 1024 visible characters of ASCII";
    check_body: "kind = \"tcp\"" => "kind = \"http\", body = \"\"", "pool[1].check.body is 0 bytes, expected 1 to 1024 bytes";
    check_statuses: "kind = \"tcp\"" => "kind = \"http\", statuses = [\"200-600\"]", "pool[1].check.statuses[0] is \"200-600\", expected a status such as \"204\", or some such as \"200-399\"";
    check_no_status: "kind = \"tcp\"" => "kind = \"http\", statuses = []", "pool[1].check.statuses is empty, expected statuses that are right";
    check_expect: "kind = \"tcp\"" => "kind = \"send\", send = \"x\"", "pool[1].check.expect is missing, expected what is to be in the server's answer";
    check_user: "kind = \"tcp\"" => "kind = \"postgres\", user = \"\"", "pool[1].check.user is \"\", expected 1 to 1024 visible characters of ASCII";
    check_server_name: "kind = \"tcp\"" => "kind = \"tls\", server_name = \"10.0.0.1\"", "pool[1].check.server_name is \"10.0.0.1\", expected a DNS name";
    check_alpn: "kind = \"tcp\"" => "kind = \"https\", alpn = [\"\"]", "pool[1].check.alpn[0] is \"\", expected 1 to 255 bytes";
    check_ca: "kind = \"tcp\"" => "kind = \"tls\", ca = \"/none/of/these\"", "pool[1].check.ca is \"/none/of/these\": No such file or directory (os error 2), expected a PEM file with certificates of authorities";
    check_tls_key: "kind = \"tcp\"" => "kind = \"http\", alpn = [\"h2\"]", "pool[1].check.alpn is no key of a check of kind \"http\"";
    check_port: "kind = \"tcp\"" => "kind = \"tcp\", port = 0", "pool[1].check.port is 0, expected 1 to 65535";
    check_interval: "interval = \"2s\"" => "interval = \"2h\"", "pool[1].check.interval is \"2h\", expected \"10ms\" to \"1h\"";
    check_fast_interval: "fast_interval = \"200ms\"" => "fast_interval = \"3s\"", "pool[1].check.fast_interval is \"3s\", expected \"10ms\" to \"2s\"";
    check_timeout: "timeout = \"300ms\"" => "timeout = \"5ms\"", "pool[1].check.timeout is \"5ms\", expected \"10ms\" to \"1m\"";
    check_rise: "rise = 4" => "rise = 0", "pool[1].check.rise is 0, expected 1 to 100";
    check_fall: "fall = 5" => "fall = 101", "pool[1].check.fall is 101, expected 1 to 100";
    policy: "policy = \"round_robin\"" => "policy = \"random\"", "pool[0].policy is \"random\", expected \"round_robin\", \"least_connections\", \"client_hash\" or \"maglev\"";
    server_twice: "\"10.2.0.11:80\", weight = 256, max_connections = 77" => "\"10.9.0.12:80\", mac = \"02:00:00:00:00:12\"", "pool[0].servers[1].address is \"10.9.0.12:80\", expected a server that is in the pool only once";
    server_name_twice: "name = \"a1\"" => "name = \"w1\"", "pool[1].servers[0].name is \"w1\", expected a name that is used only once";
    server_unreachable: "[2001:db8:1::a]:80" => "[2001:db8:1::80]:81", "pool[2].servers[0].address is 2001:db8:1::80, expected an address of another host";
    local_address: "\"10.2.0.5\"]" => "\"10.2.0.5/24\"]", "pool[1].local_addresses[1] is \"10.2.0.5/24\", expected an IP address";
    local_address_twice: "\"10.2.0.5\"]" => "\"10.1.0.80\"]", "pool[1].local_addresses[1] is \"10.1.0.80\", expected an address that is given only once";
    local_family: "name = \"six\"\n" => "name = \"six\"\nlocal_addresses = [\"10.2.0.6\"]\n", "pool[2].servers[0] has no IPv6 address to be reached from";
    local_ports: "local_ports = \"8000-9000\"" => "local_ports = \"9000-8000\"", "pool[1].local_ports is \"9000-8000\", expected a range of TCP ports";
    local_ports_taken: "local_ports = \"8000-9000\"" => "local_ports = \"8000-8099\"", "pool[1].servers[0].address has no port left to be reached from at 10.1.0.80";
    timeout: "idle = \"3h\"" => "idle = \"9ms\"", "timeouts.idle is \"9ms\", expected \"10ms\" to \"30days\"";
    time_wait: "time_wait = \"1s\"" => "time_wait = \"241s\"", "timeouts.time_wait is \"241s\", expected \"0s\" to \"4m\"";
    syn_ack_mss: "mss = 1400" => "mss = 87", "syn_ack.mss is 87, expected 88 to 8960";
    syn_ack_scale: "window_scale = 9" => "window_scale = 15", "syn_ack.window_scale is 15, expected 0 to 14, or \"off\"";
    syn_ack_window: "window = 8192" => "window = 16385", "syn_ack.window is 16385, expected 536 to 16384";
    records_format: "format = \"csv\"" => "format = \"xml\"", "records.format is \"xml\", expected \"text\", \"csv\" or \"json\"";
    records_file: "file = \"records.csv\"" => "enabled = true", "records lacks the key `file`";
    records_two_places: "file = \"records.csv\"" => "file = \"a\"\nipfix = \"192.0.2.1:4739\"", "records.ipfix stands beside `file`";
    records_relative_socket: "file = \"records.csv\"" => "stream = \"run/x\"", "records.stream is \"run/x\", expected the path of a Unix stream socket";
    records_no_port: "file = \"records.csv\"" => "ipfix = \"192.0.2.1\"", "records.ipfix is \"192.0.2.1\", expected the address of a collector";
    records_format_of_flows: "file = \"records.csv\"" => "ipfix = \"192.0.2.1:4739\"", "records.format has no meaning beside `ipfix`";
    records_unknown_server: "file = \"records.csv\"" => "file = \"a\"\nservers = [\"x9\"]", "records.servers[0] is \"x9\", expected \"w1\"";
    records_unknown_cause: "file = \"records.csv\"" => "file = \"a\"\ncauses = [\"Bored\"]", "records.causes[0] is \"Bored\", expected \"Unknown\", \"Timeout\"";
    records_sample: "file = \"records.csv\"" => "file = \"a\"\nsample = 0", "records.sample is 0, expected 1 to 1000000";
    records_rotation_of_what: "file = \"records.csv\"" => "file = \"-\"\nrotate_mib = 1", "records.rotate_mib has no meaning without `file`";
    records_twice: "[records]\nfile = \"records.csv\"" => "[[records]]\nfile = \"a\"\n[[records]]\nfile = \"a\"", "records[1] names a a second time";
    records_by_another_path: "[records]\nfile = \"records.csv\"" => "[[records]]\nfile = \"/a/b\"\n[[records]]\nfile = \"/a/./b\"", "records[1] names /a/./b a second time";
    records_of_what_is_put_aside: "[records]\nfile = \"records.csv\"" => "[[records]]\nfile = \"/a\"\n[[records]]\nfile = \"/a.1\"", "records[1] names /a.1, which another sink puts its file aside as";
    records_put_aside: "[records]\nfile = \"records.csv\"" => "[[records]]\nfile = \"/a.2\"\n[[records]]\nfile = \"/a\"\nrotate_keep = 2", "records[1] puts its file aside as /a.2, which another sink has";
    log_level: "level = \"debug\"" => "level = \"loud\"", "log.level is \"loud\", expected \"info\", ";
}

#[test]
fn large_configurations_are_checked_in_no_time() {
    let servers: String = (0..10_000)
        .map(|i| {
            format!(
                "  {{ name = \"s{i}\", address = \"10.3.{}.{}:80\" }},\n",
                i / 250,
                i % 250 + 1
            )
        })
        .collect();
    let listen: String = (1..10_000).map(|port| format!("\"10.3.255.1:{port}\", ")).collect();
    let text = format!(
        "[[port]]\nname = \"p\"\ndevice = \"net_ring0\"\naddresses = [\"10.3.255.1/16\"]\n\
         [[listener]]\nname = \"l\"\naddresses = [{listen}]\ndefault = \"all\"\n\
         [[pool]]\nname = \"all\"\nservers = [\n{servers}]\n"
    );
    let start = std::time::Instant::now();
    let config = Config::parse(&text, "large").unwrap_or_else(|error| panic!("{error}"));
    println!("{:?}", start.elapsed());
    assert_eq!(config.servers().len(), 10_000);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    /// Files with typing errors: whatever is wrong, it is said, and each complaint with a place is about a line that exists.
    #[test]
    fn broken_files_are_refused_or_accepted_without_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..4_u8), 1..6),
    ) {
        let mut lines: Vec<String> = GOOD.lines().map(str::to_owned).collect();
        for (which, at, how) in changes {
            let which = which.index(lines.len());
            match how {
                0 => drop(lines.remove(which)),
                1 => lines.insert(at.index(lines.len()), lines[which].clone()),
                2 => lines.swap(which, at.index(GOOD.lines().count() / 2)),
                _ if lines[which].is_empty() => (),
                _ => {
                    let column = at.index(lines[which].len());
                    const OTHERS: &[u8] = b"0\"[]{}=,./:-x9 ";
                    let other = char::from(OTHERS[(which + column) % OTHERS.len()]).to_string();
                    lines[which].replace_range(column..=column, &other);
                }
            }
        }
        let text = lines.join("\n");
        if let Err(error) = Config::parse(&text, "broken.toml") {
            prop_assert!(!error.problems().is_empty());
            for problem in error.problems() {
                prop_assert!(problem.line.is_none_or(|line| (1..=lines.len()).contains(&line)), "{error}");
                prop_assert!(!problem.complaint.is_empty() && !problem.complaint.contains('\n'), "{error}");
            }
        }
    }
}
