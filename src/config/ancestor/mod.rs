//! The files of ProxyEngine itself: `[netbricks]`, and `[engine]` or `[proxyengine]` with its targets.
//!
//! Such a file is read into the same raw tables as one of ours and checked like them; the [`Source`] is told under which keys
//! of the file each of them is found, so that complaints name what is there. Keys without a meaning here are named in a
//! warning each, with the reason.
//!
//! | there | here |
//! |---|---|
//! | the one port that is a PCI device, or `dpdk:` and a virtual one | the only `[[port]]` |
//! | `ipnet` and `mac` of its kernel port (`kni:`, `virtio:`), in older files of `engine` | its `addresses` and `mac` |
//! | that kernel port, with its `namespace` | its `kernel`: a TAP in that namespace that has the same addresses |
//! | its `cores` | `[engine] cores` |
//! | `engine.port` at that address | the only `[[listener]]` |
//! | `engine.mode` | `bind`: `"SimpleProxy"` of TcpEngine is `"syn"`, the others are `"payload"` |
//! | `targets`, with `ip` or TcpEngine's `ipnet` | the only `[[pool]]`, chosen from by `first_number` as in the ancestors' tests, else in turn |
//! | `flow_steering = "Ip"` | `local_addresses`: those after that of `ipnet`, one for each core; `steering = "ip"` where there are several |
//! | `flow_steering = "Port"` | `steering = "port"` where there are several cores |
//! | `fdir.dst_port_mask` | `local_ports`: those that their cores have, the first from the mask on; `port_mask` |
//! | no key of theirs, `software_nic` in the port | the model of a `software_nic` |
//! | `engine.timeouts.established` | `select`, `connect`, `idle` and `half_close`: theirs is one timer from SYN to end |
//! | `engine.detailed_records` | `[records]` into their file |

mod keys;
mod network;
mod steering;

use super::error::ConfigError;
use super::raw::{
    RawConfig, RawControl, RawEngine, RawListener, RawListenerTimeouts, RawLog, RawPool, RawRecords, RawRule,
    RawServer, RawSynAck, RawTimeouts,
};
use super::source::{At, Source};
use keys::Keys;
use network::Network;

/// What the ancestors take when the file says nothing, in milliseconds.
const ESTABLISHED: i64 = 200;
/// Where the ancestors write their records.
const RECORDS: &str = "c_records.txt";
/// The only pool.
const POOL: &str = "targets";
/// The only port, and the only listener.
const PROXY: &str = "proxy";

const DPDK_DECIDES: &str = "DPDK decides that by itself";

/// Whether the file is one of the ancestors'.
pub(super) fn is_recognised(source: &Source<'_>) -> bool {
    // Ours has a section [engine] as well, but in theirs there is a table of the same name.
    ["netbricks", "proxyengine"].iter().any(|name| source.has(&[name])) || source.has(&["engine", "engine"])
}

/// Reads the file.
///
/// # Errors
/// What has a meaning here, but not the one that is written.
pub(super) fn read(source: &mut Source<'_>) -> Result<RawConfig, ConfigError> {
    let section = if source.has(&["proxyengine"]) {
        "proxyengine"
    } else {
        "engine"
    };
    for name in source.top_level() {
        if name != "netbricks" && name != section {
            source.warn(
                &At::root().key(&name),
                "has no meaning here: it is no section of a proxy's file",
            );
        }
    }
    let mut netbricks = Keys::section(source, "netbricks");
    let mut top = Keys::section(source, section);
    let mut engine = top.table(source, "engine");
    let servers = targets(source, &mut top);
    let cores = netbricks.numbers(source, "cores").unwrap_or_default();
    let bind = mode(source, &mut engine);
    let network = Network::read(source, &mut netbricks, &mut engine, &servers, &cores);
    let config = RawConfig {
        engine: process(source, &mut netbricks, &network),
        listeners: vec![listener(source, &mut engine, &network, bind)],
        timeouts: timeouts(source, &mut engine),
        records: vec![records(source, &mut engine)],
        lists: Vec::new(),
        classes: Vec::new(),
        dns: Default::default(),
        pools: vec![RawPool {
            name: POOL.to_owned(),
            policy: None,
            hash: None,
            slow_start: None,
            panic_below: None,
            servers,
            local_addresses: network
                .steering
                .local_addresses
                .iter()
                .map(ToString::to_string)
                .collect(),
            local_ports: network.steering.local_ports.clone(),
            connect_timeout: None,
            syn_retry: None,
            // Its one timer of the whole connection left no time for a second try.
            retries: Some(0),
            eject_after: None,
            eject_for: None,
            eject_most: None,
            limit: None,
            proxy_protocol: None,
            transparent: None,
            check: None,
        }],
        ports: vec![network.port],
        syn_ack: RawSynAck::default(),
        log: RawLog::default(),
        control: RawControl::default(),
    };
    top.ignore(source, "test_size", "it belongs to the ancestors' tests");
    netbricks.finish(source);
    engine.finish(source);
    top.finish(source);
    source.checked()?;
    Ok(config)
}

fn process(source: &mut Source<'_>, netbricks: &mut Keys, network: &Network) -> RawEngine {
    for (ours, theirs) in [("name", "name"), ("memory_mib", "pool_size"), ("buffers", "mbuf_cnt")] {
        source.rename(&At::root().key("engine").key(ours), &netbricks.at.key(theirs));
    }
    source.rename(&At::root().key("engine").key("cores"), &network.cores_at);
    let cores = &network.cores;
    netbricks.ignore(source, "master_core", "the main thread needs no core of its own");
    netbricks.ignore(source, "strict", "no other cores are taken than those that are named");
    netbricks.ignore(source, "secondary", "an engine shares nothing with another process");
    netbricks.ignore(source, "cache_size", DPDK_DECIDES);
    netbricks.ignore(source, "vdev", "virtual devices are made of the ports that name them");
    RawEngine {
        name: netbricks.string(source, "name"),
        cores: (!cores.is_empty()).then(|| cores.clone()),
        steering: network.steering.mode.map(str::to_owned),
        port_mask: network.steering.port_mask,
        memory_mib: netbricks.number(source, "pool_size"),
        buffers: netbricks.number(source, "mbuf_cnt"),
        ..RawEngine::default()
    }
}

/// When the server is chosen; TcpEngine's simple proxy does that at the SYN.
fn mode(source: &mut Source<'_>, engine: &mut Keys) -> Option<String> {
    let at = engine.at.key("mode");
    match engine.string(source, "mode")?.as_str() {
        "Delayed" | "DelayedProxy" => None,
        "SimpleProxy" => Some("syn".to_owned()),
        "TrafficGenerator" => {
            source.complain(
                &at,
                "is \"TrafficGenerator\": that is a load, which `trafficengine run` plays".to_owned(),
            );
            None
        }
        other => {
            let sentence = format!("is \"{other}\" and means nothing here: the server is chosen by the first payload");
            source.warn(&at, sentence);
            None
        }
    }
}

fn listener(source: &mut Source<'_>, engine: &mut Keys, network: &Network, bind: Option<String>) -> RawListener {
    let at = engine.at.key("port");
    let port = engine.needed_port(source, "port");
    source.rename(&At::root().key("listener").index(0).key("addresses").index(0), &at);
    RawListener {
        name: PROXY.to_owned(),
        addresses: vec![format!("{}:{port}", network.address)],
        ports: None,
        // With the SYN there is no payload to choose by.
        rules: match bind {
            Some(_) => Vec::new(),
            None => vec![RawRule {
                first_number: Some(true),
                pool: Some(POOL.to_owned()),
                ..RawRule::default()
            }],
        },
        bind,
        limit: None,
        client_limit: None,
        default: Some(POOL.to_owned()),
        inspect_delay: None,
        timeouts: RawListenerTimeouts::default(),
        proxy_protocol: None,
    }
}

fn targets(source: &mut Source<'_>, top: &mut Keys) -> Vec<RawServer> {
    let pool = At::root().key("pool").index(0);
    let at = top.at.key("targets");
    source.rename(&pool, &at);
    source.rename(&pool.key("servers"), &at);
    let mut servers = Vec::new();
    for (i, mut target) in top.tables(source, "targets").into_iter().enumerate() {
        let ours = pool.key("servers").index(i);
        source.rename(&ours.key("address"), &target.at.key("ip"));
        source.rename(&ours.key("name"), &target.at.key("id"));
        let id = target.needed(source, "id");
        let name = plain(&id);
        if name != id {
            let sentence = format!("is \"{id}\" and becomes \"{name}\": names stand in records, logs and metrics");
            source.warn(&target.at.key("id"), sentence);
        }
        // TcpEngine writes the prefix with it.
        let ip = match target.has("ipnet") && !target.has("ip") {
            true => {
                let net = target.needed(source, "ipnet");
                net.split('/').next().unwrap_or_default().to_owned()
            }
            false => target.needed(source, "ip"),
        };
        let port = target.needed_port(source, "port");
        target.ignore(
            source,
            "linux_if",
            "a server's MAC address is asked for by ARP, or given with `mac`",
        );
        servers.push(RawServer {
            name,
            address: format!("{ip}:{port}"),
            weight: None,
            backup: None,
            max_connections: None,
            mac: target.string(source, "mac"),
            check: None,
        });
        target.finish(source);
    }
    servers
}

/// A name as ours are, of one as theirs are: `server 1` becomes `server-1`.
fn plain(id: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    id.chars().map(|c| if is_plain(c) { c } else { '-' }).collect()
}

fn timeouts(source: &mut Source<'_>, engine: &mut Keys) -> RawTimeouts {
    let mut timeouts = engine.table(source, "timeouts");
    let at = timeouts.at.key("established");
    let established = timeouts.number(source, "established").unwrap_or(ESTABLISHED);
    timeouts.finish(source);
    // As `[timeouts]`, but one complaint instead of four.
    let longest = 30 * 24 * 60 * 60 * 1000;
    let established = if (10..=longest).contains(&established) {
        established
    } else {
        source.refuse(&at, established, format!("10 to {longest} milliseconds"));
        ESTABLISHED
    };
    let time = Some(format!("{established}ms"));
    RawTimeouts {
        select: time.clone(),
        connect: time.clone(),
        idle: time.clone(),
        half_close: time,
        time_wait: None,
    }
}

fn records(source: &mut Source<'_>, engine: &mut Keys) -> RawRecords {
    let wanted = engine.boolean(source, "detailed_records").unwrap_or(false);
    RawRecords {
        file: wanted.then(|| RECORDS.to_owned()),
        ..RawRecords::default()
    }
}
