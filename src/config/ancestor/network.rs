//! The port of an ancestor's file, with its way to the kernel: the kernel port beside it, whose addresses they are.

use std::net::IpAddr;

use ipnet::IpNet;

use super::keys::Keys;
use super::steering::{self, Steering};
use super::{DPDK_DECIDES, PROXY};
use crate::config::raw::{RawKernel, RawPort, RawServer, RawSoftwareNic};
use crate::config::source::{At, Source};

const KERNEL_PORT: &str = "the kernel's frames are carried by a thread of their own, on no core of the engine's";
/// The kernel's device of the older files, which name none.
const KERNEL_DEVICE: &str = "kni1";
const STEERING: &str = "rules are made for TCP to whole addresses, from wherever it comes";
const NOT_USED: &str = "the ancestors do not use it either";

/// What is known of the network.
pub(super) struct Network {
    pub(super) port: RawPort,
    /// Where clients connect to.
    pub(super) address: IpAddr,
    pub(super) steering: Steering,
    pub(super) cores: Vec<i64>,
    pub(super) cores_at: At,
}

/// A port that packets come in at.
struct Nic {
    at: At,
    device: String,
    rx_descriptors: Option<i64>,
    tx_descriptors: Option<i64>,
    checksum: Option<bool>,
    kernel_port: Option<String>,
    steering: Option<(At, String)>,
    port_mask: Option<u16>,
    /// The only key of ours: the card that is imitated where there is none.
    software_nic: Option<(At, String)>,
    cores: Vec<i64>,
    cores_at: At,
}

/// A port to the kernel.
struct KernelPort {
    name: String,
    addresses: Addresses,
}

/// What is said about the proxy's own address; with it, where.
#[derive(Default)]
struct Addresses {
    net: Option<(At, String)>,
    mac: Option<(At, String)>,
    /// The kernel's device and where it is.
    device: Option<String>,
    namespace: Option<(At, String)>,
}

impl Network {
    pub(super) fn read(
        source: &mut Source<'_>,
        netbricks: &mut Keys,
        engine: &mut Keys,
        targets: &[RawServer],
        all_cores: &[i64],
    ) -> Self {
        let at = netbricks.at.key("ports");
        let mut nics = Vec::new();
        let mut kernel_ports = Vec::new();
        for mut keys in netbricks.tables(source, "ports") {
            let name = keys.needed(source, "name");
            if name.starts_with("kni:") || name.starts_with("virtio:") {
                kernel_ports.push(kernel_port(source, &mut keys, name));
            } else {
                nics.push(nic(source, &mut keys, &name));
            }
            keys.finish(source);
        }
        if nics.len() != 1 {
            let sentence = format!(
                "has {} ports besides those to the kernel, expected one: each further one was a proxy of its own",
                nics.len()
            );
            source.complain(&at, sentence);
        }
        let nic = nics.into_iter().next().unwrap_or_else(|| Nic::missing(&at));
        let addresses = own_addresses(source, &nic, kernel_ports, engine);
        nic.into_network(source, addresses, engine, targets, all_cores)
    }
}

fn nic(source: &mut Source<'_>, keys: &mut Keys, name: &str) -> Nic {
    let cores_key = if keys.has("rx_cores") { "rx_cores" } else { "cores" };
    let cores_at = keys.at.key(cores_key);
    keys.ignore(source, "tx_cores", "a worker sends what it receives");
    keys.ignore(source, "k_cores", KERNEL_PORT);
    keys.ignore(source, "driver", DPDK_DECIDES);
    keys.ignore(source, "tso", NOT_USED);
    keys.ignore(source, "loopback", "it is a means of the ancestors' benchmarks");
    let (at, software_at) = (keys.at.key("flow_steering"), keys.at.key("software_nic"));
    let mut nic = Nic {
        at: keys.at.clone(),
        device: device(name),
        rx_descriptors: keys.number(source, "rxd"),
        tx_descriptors: keys.number(source, "txd"),
        checksum: keys.boolean(source, "checksum"),
        kernel_port: keys.string(source, "kni"),
        steering: keys.string(source, "flow_steering").map(|steering| (at, steering)),
        port_mask: None,
        software_nic: keys.string(source, "software_nic").map(|model| (software_at, model)),
        cores: keys.numbers(source, cores_key).unwrap_or_default(),
        cores_at,
    };
    let mut fdir = keys.table(source, "fdir");
    for key in ["pballoc", "mode", "ipv4_mask", "src_port_mask"] {
        fdir.ignore(source, key, STEERING);
    }
    nic.port_mask = port_mask(source, &mut fdir);
    fdir.finish(source);
    nic
}

/// A mask of nothing means all ports.
fn port_mask(source: &mut Source<'_>, fdir: &mut Keys) -> Option<u16> {
    let at = fdir.at.key("dst_port_mask");
    let text = fdir.string(source, "dst_port_mask")?;
    let digits = text.trim_start_matches("0x");
    let mask = u16::from_str_radix(digits, 16).ok();
    // Ones from the left, then zeros.
    match mask.filter(|mask| mask.leading_ones() + mask.trailing_zeros() == 16 || *mask == 0) {
        Some(0) => None,
        Some(mask) => Some(mask),
        None => {
            source.refuse(
                &at,
                format!("\"{text}\""),
                "a mask of ports in hexadecimal digits, such as \"FC00\"",
            );
            None
        }
    }
}

fn kernel_port(source: &mut Source<'_>, keys: &mut Keys, name: String) -> KernelPort {
    let mut addresses = addresses(source, keys);
    let device = kernel_device(&name);
    let sentence = format!("names a port to the kernel, which here is the TAP device \"{device}\"");
    source.warn(&keys.at.key("name"), sentence);
    addresses.device = Some(device);
    for key in ["rxd", "txd", "cores", "rx_cores", "tx_cores", "k_cores", "checksum"] {
        keys.ignore(source, key, KERNEL_PORT);
    }
    KernelPort { name, addresses }
}

/// In a kernel port, in older files in `engine`.
fn addresses(source: &mut Source<'_>, keys: &mut Keys) -> Addresses {
    let [net, mac, namespace] = ["ipnet", "mac", "namespace"].map(|key| {
        let at = keys.at.key(key);
        keys.string(source, key).map(|text| (at, text))
    });
    Addresses {
        net,
        mac,
        device: None,
        namespace,
    }
}

/// `iface` among the arguments, or the name as far as it can be an interface's: `kni:1` is `kni1`.
fn kernel_device(name: &str) -> String {
    if let Some(interface) = name.split(',').find_map(|argument| argument.strip_prefix("iface=")) {
        return interface.to_owned();
    }
    let first = name.split(',').next().unwrap_or_default();
    first.strip_prefix("virtio:").unwrap_or(first).replace(':', "")
}

fn own_addresses(source: &mut Source<'_>, nic: &Nic, kernel_ports: Vec<KernelPort>, engine: &mut Keys) -> Addresses {
    let in_engine = addresses(source, engine);
    let mut which = 0;
    if let Some(wanted) = &nic.kernel_port {
        // `virtio:virtio_user0` stands for the port whose name goes on with arguments.
        let is_wanted = |port: &KernelPort| port.name == *wanted || port.name.split(',').next() == Some(wanted);
        which = kernel_ports.iter().position(is_wanted).unwrap_or_else(|| {
            let expected = "the name of a port to the kernel in this list";
            source.refuse(&nic.at.key("kni"), format!("\"{wanted}\""), expected);
            0
        });
    }
    let beside = kernel_ports.into_iter().nth(which);
    let beside = beside.map(|port| port.addresses).unwrap_or_default();
    Addresses {
        net: beside.net.or(in_engine.net),
        mac: beside.mac.or(in_engine.mac),
        device: beside.device,
        namespace: beside.namespace.or(in_engine.namespace),
    }
}

impl Nic {
    /// Stands for what has been complained about.
    fn missing(at: &At) -> Self {
        Self {
            at: at.clone(),
            device: String::new(),
            rx_descriptors: None,
            tx_descriptors: None,
            checksum: None,
            kernel_port: None,
            steering: None,
            port_mask: None,
            software_nic: None,
            cores: Vec::new(),
            cores_at: at.clone(),
        }
    }

    fn into_network(
        self,
        source: &mut Source<'_>,
        addresses: Addresses,
        engine: &mut Keys,
        targets: &[RawServer],
        all_cores: &[i64],
    ) -> Network {
        let older_at = engine.at.key("flow_steering");
        let older = engine
            .string(source, "flow_steering")
            .map(|steering| (older_at, steering));
        let steering = self.steering.clone().or(older);
        self.tell_names(source, &addresses, steering.as_ref());
        let net = net(source, &self.at, addresses.net.as_ref());
        let has_kernel = addresses.device.is_some() || addresses.namespace.is_some();
        let kernel = has_kernel.then(|| RawKernel {
            device: addresses.device.unwrap_or_else(|| KERNEL_DEVICE.to_owned()),
            namespace: addresses.namespace.map(|(_, namespace)| namespace),
            addresses: None,
            rate: None,
            local_ports: None,
        });
        let cores = if self.cores.is_empty() {
            all_cores.to_vec()
        } else {
            self.cores
        };
        let (mask, base) = (self.port_mask, net.addr());
        let steering = steering::read(source, steering.as_ref(), mask, base, cores.len(), targets);
        let software_nic = self.software_nic.map(|(at, model)| {
            source.rename(&At::root().key("port").index(0).key("software_nic").key("model"), &at);
            RawSoftwareNic {
                queues: None,
                model: Some(model),
                core: None,
            }
        });
        Network {
            address: net.addr(),
            steering,
            port: RawPort {
                name: PROXY.to_owned(),
                device: self.device,
                mac: addresses.mac.map(|(_, mac)| mac),
                mtu: None,
                vlan: None,
                addresses: vec![net.to_string()],
                gateways: Vec::new(),
                routes: Vec::new(),
                neighbours: Vec::new(),
                rx_descriptors: self.rx_descriptors,
                tx_descriptors: self.tx_descriptors,
                // Theirs is off by default.
                checksum_offload: Some(self.checksum.unwrap_or(false)),
                software_nic,
                kernel,
            },
            cores,
            cores_at: self.cores_at,
        }
    }

    /// Under which keys of the file the tables of ours are found.
    fn tell_names(&self, source: &mut Source<'_>, addresses: &Addresses, steering: Option<&(At, String)>) {
        let port = At::root().key("port").index(0);
        let pool = At::root().key("pool").index(0);
        source.rename(&port, &self.at);
        source.rename(&port.key("device"), &self.at.key("name"));
        source.rename(&port.key("rx_descriptors"), &self.at.key("rxd"));
        source.rename(&port.key("tx_descriptors"), &self.at.key("txd"));
        source.rename(&pool.key("local_ports"), &self.at.key("fdir").key("dst_port_mask"));
        if let Some((at, _)) = &addresses.net {
            source.rename(&port.key("addresses").index(0), at);
        }
        if let Some((at, _)) = &addresses.mac {
            source.rename(&port.key("mac"), at);
        }
        if let Some((at, _)) = &addresses.namespace {
            source.rename(&port.key("kernel").key("namespace"), at);
        }
        if let Some((at, _)) = steering {
            source.rename(&pool.key("local_addresses").index(0), at);
        }
    }
}

fn net(source: &mut Source<'_>, nic: &At, said: Option<&(At, String)>) -> IpNet {
    let net = match said {
        None => {
            source.complain(
                nic,
                "has no address, expected `ipnet` in the kernel port beside it (which its key `kni` names), or in `engine`",
            );
            None
        }
        Some((at, text)) => {
            let net = text.parse::<IpNet>().ok();
            if net.is_none() {
                let expected = "an address with its prefix, such as \"192.168.222.1/24\"";
                source.refuse(at, format!("\"{text}\""), expected);
            }
            net
        }
    };
    net.unwrap_or_else(|| IpNet::V4(ipnet::Ipv4Net::default()))
}

/// The device as DPDK names it today: `7:00.0` is `07:00.0`, `dpdk:` before a virtual one is left out.
fn device(name: &str) -> String {
    if let Some(device) = name.strip_prefix("dpdk:") {
        return device.to_owned();
    }
    if name == "null" {
        return "net_null0".to_owned();
    }
    let Some((bus, function)) = name.rsplit_once(':') else {
        return name.to_owned();
    };
    let padded = |digits: &str, length: usize| format!("{digits:0>length$}");
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    match bus.split_once(':') {
        Some((domain, bus)) if is_number(domain) && is_number(bus) => {
            format!("{}:{}:{function}", padded(domain, 4), padded(bus, 2))
        }
        None if is_number(bus) => format!("{}:{function}", padded(bus, 2)),
        _ => name.to_owned(),
    }
}
