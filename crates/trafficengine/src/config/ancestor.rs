//! The files of TrafficEngine, and of TcpEngine as a generator: `[netbricks]` and a section of the engine with its targets.
//!
//! Such a file is read into the same raw tables as one of ours and checked like them. Keys without a meaning here are named in
//! a warning each, with the reason.
//!
//! | there | here |
//! |---|---|
//! | the one port that is a PCI device, or `dpdk:` and a virtual one | `[port] device`, with `rxd` and `checksum` |
//! | the first of its cores | `[port] core`; each further core takes a port and a file of its own |
//! | `pool_size` | `[port] memory_mib` |
//! | `ipnet`, `mac` of its kernel port | the client's address, with `flow_steering = "Ip"` the one after it; `[link] prefixes`; `[port] mac` |
//! | the last port of the range | `[server] listen`, at that address; the others are the client's |
//! | `targets` | `[client] targets`; the `mac` of the first is `[link] next_hop_mac` |
//! | `cps_limit`, `max_open` | an open loop at that rate; without it a closed one of `max_open` |
//! | `test_size` | `[load] total` |
//! | `fin_by_client`, `fin_by_server` | `[script] rounds` is the smaller, and who has it closes |
//! | `timeouts.established` | `[script] idle` |

use toml::{Table, Value};

use super::ConfigError;
use super::raw::{RawClient, RawConfig, RawLink, RawLoad, RawPort, RawReport, RawScript, RawServer, RawTcp};

/// The names that the section of the engine has had.
const SECTIONS: [&str; 3] = ["trafficengine", "tcpengine", "engine"];

/// What the ancestors take when the file says nothing.
const FIN_BY_CLIENT: i64 = 1000;
const FIN_BY_SERVER: i64 = 1;
const ESTABLISHED_MS: i64 = 200;
const DESCRIPTORS: i64 = 128;

/// Connections at once where the file limits neither them nor their rate.
const OPEN: i64 = 1000;

/// Bytes of their first payload, which their server sends back.
const PAYLOAD: u32 = 16;

const DPDK_DECIDES: &str = "DPDK decides that by itself";
const ONE_CORE: &str = "a port has one core here: give each further core a port and a file of its own";
const KERNEL_PORT: &str = "no kernel is behind a generator's port";
const STEERING: &str = "a port has one core, so that nothing is steered";
const NOT_USED: &str = "the ancestors do not use it either";

/// Whether the file is one of the ancestors'.
pub(super) fn is_recognised(file: &Table) -> bool {
    file.contains_key("netbricks") && SECTIONS.iter().any(|name| file.contains_key(*name))
}

/// Reads the file; each warning is a sentence that names its key.
///
/// # Errors
/// A key that is needed is missing, or a value has the wrong type or means something else here.
pub(super) fn read(file: Table, name: &str) -> Result<(RawConfig, Vec<String>), ConfigError> {
    let mut reader = Reader {
        file: name,
        warnings: Vec::new(),
    };
    let raw = reader.config(file)?;
    Ok((raw, reader.warnings))
}

type Read<T> = Result<T, ConfigError>;

/// A table of the file and where it stands.
struct Keys {
    at: String,
    table: Table,
}

struct Reader<'a> {
    file: &'a str,
    warnings: Vec<String>,
}

/// What is said of the generator's own address.
struct Network {
    port: RawPort,
    address: std::net::Ipv4Addr,
    prefix: String,
}

impl Reader<'_> {
    fn refuse<T>(&self, key: &str, what: impl std::fmt::Display) -> Read<T> {
        Err(ConfigError::Syntax {
            file: self.file.to_owned(),
            reason: format!("{key} {what}"),
        })
    }

    fn warn(&mut self, key: &str, sentence: &str) {
        self.warnings.push(format!("{key} {sentence}"));
    }

    fn config(&mut self, mut file: Table) -> Read<RawConfig> {
        let mut netbricks = self.section(&mut file, "netbricks")?;
        let name = SECTIONS
            .iter()
            .find(|name| file.contains_key(**name))
            .unwrap_or(&SECTIONS[0]);
        let mut top = self.section(&mut file, name)?;
        for other in file.keys() {
            self.warn(other, "has no meaning here: it is no section of a generator's file");
        }
        let mut engine = self.table(&mut top, "engine")?;
        if let Some(mode) = self
            .string(&mut engine, "mode")?
            .filter(|mode| mode != "TrafficGenerator")
        {
            return self.refuse(
                &format!("{}.mode", engine.at),
                format_args!("is \"{mode}\": that is a proxy, which `proxyengine run` is"),
            );
        }
        let network = self.network(&mut netbricks, &mut engine)?;
        let (targets, next_hop_mac) = self.targets(&mut top)?;
        let script = self.script(&mut engine)?;
        let load = self.load(&mut engine, &mut top)?;
        let max_open = self
            .number(&mut engine, "max_open")?
            .and_then(|number| u32::try_from(number).ok());
        self.ignore(
            &mut engine,
            "port",
            "a generator's server listens on the last port of its range",
        );
        self.ignore(
            &mut engine,
            "detailed_records",
            "results are counts and latencies, see [report]",
        );
        for (key, why) in [
            ("name", "several processes do not get in each other's way"),
            ("master_core", "the main thread needs no core of its own"),
            ("cores", ONE_CORE),
            ("strict", "no other cores are taken than those that are named"),
            ("secondary", "a generator shares nothing with another process"),
            ("mbuf_cnt", "it follows from the descriptors"),
            ("cache_size", DPDK_DECIDES),
            ("vdev", "virtual devices are made of the ports that name them"),
        ] {
            self.ignore(&mut netbricks, key, why);
        }
        [netbricks, engine, top].into_iter().for_each(|keys| self.finish(keys));
        let has_client = !targets.is_empty();
        Ok(RawConfig {
            port: network.port,
            link: RawLink {
                prefixes: vec![network.prefix],
                gateways: Vec::new(),
                next_hop_mac,
            },
            tcp: RawTcp::default(),
            script,
            client: has_client.then(|| RawClient {
                addresses: vec![network.address.to_string()],
                ports: Some("1024-65534".to_owned()),
                targets,
                max_open,
                seed: None,
            }),
            load: has_client.then_some(RawLoad {
                open: max_open.or(load.open),
                ..load
            }),
            server: Some(RawServer {
                listen: vec![format!("{}:65535", network.address)],
                first_id: None,
                same_id: None,
                max_open: None,
            }),
            report: RawReport::default(),
        })
    }

    fn network(&mut self, netbricks: &mut Keys, engine: &mut Keys) -> Read<Network> {
        let (mut nics, mut own) = (Vec::new(), None);
        for mut keys in self.tables(netbricks, "ports")? {
            let name = self.needed(&mut keys, "name")?;
            if name.starts_with("kni:") || name.starts_with("virtio:") {
                let said = (self.string(&mut keys, "ipnet")?, self.string(&mut keys, "mac")?);
                for key in [
                    "rxd",
                    "txd",
                    "cores",
                    "rx_cores",
                    "tx_cores",
                    "k_cores",
                    "checksum",
                    "namespace",
                ] {
                    self.ignore(&mut keys, key, KERNEL_PORT);
                }
                own = own.or(Some(said));
                self.finish(keys);
            } else {
                nics.push((name, keys));
            }
        }
        let (count, mut nics) = (nics.len(), nics.into_iter());
        let (Some((name, mut nic)), 1) = (nics.next(), count) else {
            let what = format!(
                "has {count} ports besides those to the kernel, expected one: give each further one a file of its own"
            );
            return self.refuse(&format!("{}.ports", netbricks.at), what);
        };
        // In files without a port to the kernel the engine's section has them.
        let (net, mac) = match own {
            Some(said) => said,
            None => (self.string(engine, "ipnet")?, self.string(engine, "mac")?),
        };
        let at = format!("{}.ports", netbricks.at);
        let Some(net) = net else {
            return self.refuse(
                &at,
                "lacks the key `ipnet` in a port to the kernel: the generator's own address",
            );
        };
        let Ok(network) = net.parse::<ipnet::Ipv4Net>() else {
            return self.refuse(
                &at,
                format_args!("has the ipnet \"{net}\", expected an address such as 192.168.222.1/24"),
            );
        };
        let by_address = self.string(&mut nic, "flow_steering")?.is_some_and(|mode| mode == "Ip");
        let address = u32::from(network.addr()).wrapping_add(u32::from(by_address)).into();
        Ok(Network {
            port: self.port(&name, nic, mac, netbricks)?,
            address,
            prefix: net,
        })
    }

    fn port(&mut self, name: &str, mut nic: Keys, mac: Option<String>, netbricks: &mut Keys) -> Read<RawPort> {
        let key = if nic.table.contains_key("rx_cores") {
            "rx_cores"
        } else {
            "cores"
        };
        let at = format!("{}.{key}", nic.at);
        let cores = self.numbers(&mut nic, key)?;
        if cores.len() > 1 {
            self.warn(
                &at,
                &format!("names {} cores, of which the first is taken: {ONE_CORE}", cores.len()),
            );
        }
        for (key, why) in [
            ("tx_cores", "a core sends what it receives"),
            ("k_cores", KERNEL_PORT),
            ("kni", KERNEL_PORT),
            ("driver", DPDK_DECIDES),
            ("tso", NOT_USED),
            (
                "loopback",
                "it is a mode of one card; two ports and a cable do the same",
            ),
            ("txd", "there are as many descriptors as rxd says, each way"),
            ("fdir", STEERING),
        ] {
            self.ignore(&mut nic, key, why);
        }
        let number = |reader: &mut Self, keys: &mut Keys, key: &str| reader.number(keys, key);
        let descriptors = number(self, &mut nic, "rxd")?.unwrap_or(DESCRIPTORS);
        let memory = number(self, netbricks, "pool_size")?;
        let checksum = self.boolean(&mut nic, "checksum")?;
        self.finish(nic);
        Ok(RawPort {
            // `dpdk:` stands before DPDK's own name of a virtual device; a PCI address may lack its domain.
            device: match name.strip_prefix("dpdk:") {
                Some(device) => device.to_owned(),
                None if name.matches(':').count() == 1 => format!("0000:{name:0>7}"),
                None => name.to_owned(),
            },
            mac,
            mtu: None,
            core: cores.first().and_then(|core| usize::try_from(*core).ok()),
            memory_mib: memory.and_then(|mib| u32::try_from(mib).ok()),
            descriptors: u16::try_from(descriptors).ok(),
            checksum_offload: Some(checksum.unwrap_or(false)),
            verify_checksums: None,
            idle: Some("poll".to_owned()),
        })
    }

    fn targets(&mut self, top: &mut Keys) -> Read<(Vec<String>, Option<String>)> {
        let (mut targets, mut next_hop_mac) = (Vec::new(), None);
        for mut target in self.tables(top, "targets")? {
            let ip = match self.string(&mut target, "ip")? {
                Some(ip) => ip,
                // TcpEngine has the prefix with it.
                None => self.needed(&mut target, "ipnet")?,
            };
            let port = self.number(&mut target, "port")?.unwrap_or(0);
            targets.push(format!("{}:{port}", ip.split('/').next().unwrap_or_default()));
            let mac = self.string(&mut target, "mac")?;
            next_hop_mac = next_hop_mac.or(mac);
            self.ignore(&mut target, "id", "a target is known by its address");
            self.ignore(
                &mut target,
                "linux_if",
                "a MAC address is asked for by ARP, or given with `mac`",
            );
            self.finish(target);
        }
        Ok((targets, next_hop_mac))
    }

    fn script(&mut self, engine: &mut Keys) -> Read<RawScript> {
        let by_client = self.number(engine, "fin_by_client")?.unwrap_or(FIN_BY_CLIENT);
        let by_server = self.number(engine, "fin_by_server")?.unwrap_or(FIN_BY_SERVER);
        let close = match by_client.cmp(&by_server) {
            std::cmp::Ordering::Less => "client",
            std::cmp::Ordering::Equal => "both",
            std::cmp::Ordering::Greater => "server",
        };
        let mut timeouts = self.table(engine, "timeouts")?;
        let idle = self.number(&mut timeouts, "established")?.unwrap_or(ESTABLISHED_MS);
        self.finish(timeouts);
        let rounds = by_client.min(by_server);
        let Ok(rounds) = u16::try_from(rounds) else {
            return self.refuse(
                &format!("{}.fin_by_client and fin_by_server", engine.at),
                format_args!("make {rounds} payloads, expected at most 65535"),
            );
        };
        Ok(RawScript {
            rounds: Some(rounds),
            request: Some(PAYLOAD),
            response: Some(PAYLOAD),
            close: Some(close.to_owned()),
            servers: Some(1),
            idle: Some(format!("{idle}ms")),
            ..RawScript::default()
        })
    }

    fn load(&mut self, engine: &mut Keys, top: &mut Keys) -> Read<RawLoad> {
        let rate = self.number(engine, "cps_limit")?;
        let total = match self.number(engine, "test_size")? {
            Some(total) => Some(total),
            None => self.number(top, "test_size")?,
        };
        Ok(RawLoad {
            mode: if rate.is_some() { "open" } else { "closed" }.to_owned(),
            rate: rate.map(|rate| rate as f64),
            open: Some(OPEN as u32),
            depth: None,
            ramp: None,
            duration: None,
            total: total.and_then(|total| u64::try_from(total).ok()),
            // Theirs takes a port again at once.
            port_rest: Some("0s".to_owned()),
            grace: None,
        })
    }
}

/// Taking key after key.
impl Reader<'_> {
    fn section(&self, file: &mut Table, name: &str) -> Read<Keys> {
        match file.remove(name) {
            Some(Value::Table(table)) => Ok(Keys {
                at: name.to_owned(),
                table,
            }),
            Some(_) => self.refuse(name, "is no table"),
            None => Ok(Keys {
                at: name.to_owned(),
                table: Table::new(),
            }),
        }
    }

    fn table(&self, keys: &mut Keys, key: &str) -> Read<Keys> {
        let at = format!("{}.{key}", keys.at);
        let table = keys.table.remove(key).unwrap_or(Value::Table(Table::new()));
        match table {
            Value::Table(table) => Ok(Keys { at, table }),
            _ => self.refuse(&at, "is no table"),
        }
    }

    fn tables(&self, keys: &mut Keys, key: &str) -> Read<Vec<Keys>> {
        let at = format!("{}.{key}", keys.at);
        let items = match keys.table.remove(key) {
            Some(Value::Array(items)) => items,
            Some(_) => return self.refuse(&at, "is no list of tables"),
            None => Vec::new(),
        };
        let of_item = |(index, item): (usize, Value)| match item {
            Value::Table(table) => Ok(Keys {
                at: format!("{at}[{index}]"),
                table,
            }),
            _ => self.refuse(&format!("{at}[{index}]"), "is no table"),
        };
        items.into_iter().enumerate().map(of_item).collect()
    }

    fn string(&self, keys: &mut Keys, key: &str) -> Read<Option<String>> {
        match keys.table.remove(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => self.refuse(
                &format!("{}.{key}", keys.at),
                format_args!("is {other}, expected a string"),
            ),
        }
    }

    fn needed(&self, keys: &mut Keys, key: &str) -> Read<String> {
        match self.string(keys, key)? {
            Some(text) => Ok(text),
            None => self.refuse(&keys.at, format_args!("lacks the key `{key}`")),
        }
    }

    /// Never below zero: nothing that is counted in their files is.
    fn number(&self, keys: &mut Keys, key: &str) -> Read<Option<i64>> {
        match keys.table.remove(key) {
            None => Ok(None),
            Some(Value::Integer(number)) if number >= 0 => Ok(Some(number)),
            Some(other) => self.refuse(
                &format!("{}.{key}", keys.at),
                format_args!("is {other}, expected a number from 0 on"),
            ),
        }
    }

    fn numbers(&self, keys: &mut Keys, key: &str) -> Read<Vec<i64>> {
        let at = format!("{}.{key}", keys.at);
        let numbers = match keys.table.remove(key) {
            None => Some(Vec::new()),
            Some(Value::Array(items)) => items.iter().map(Value::as_integer).collect(),
            Some(_) => None,
        };
        numbers.map_or_else(|| self.refuse(&at, "is no list of numbers"), Ok)
    }

    fn boolean(&self, keys: &mut Keys, key: &str) -> Read<Option<bool>> {
        match keys.table.remove(key) {
            None => Ok(None),
            Some(Value::Boolean(yes)) => Ok(Some(yes)),
            Some(_) => self.refuse(&format!("{}.{key}", keys.at), "is neither true nor false"),
        }
    }

    fn ignore(&mut self, keys: &mut Keys, key: &str, why: &str) {
        if keys.table.remove(key).is_some() {
            let at = format!("{}.{key}", keys.at);
            self.warn(&at, &format!("has no meaning here: {why}"));
        }
    }

    /// Warns of all keys that nobody has taken.
    fn finish(&mut self, keys: Keys) {
        for key in keys.table.keys() {
            let at = format!("{}.{key}", keys.at);
            self.warn(&at, "has no meaning here: the ancestors do not know it either");
        }
    }
}
