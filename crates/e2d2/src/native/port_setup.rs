//! Opening a port: attach, ask what it can do, configure, start.
#![allow(unsafe_code)] // FFI: configures ethdev ports.

use std::ffi::{CStr, CString, NulError, c_int};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{ptr, thread};

use dpdk_sys as sys;

use super::device::DeviceError;
use super::eal::Eal;
use super::flow::Flows;
use super::host;
use super::offloads::{self, Offloads};
use super::pool::{MbufPool, data_room};
use super::port::{DpdkPort, PortConfig, PortError, PortInner};
use super::port_rss;
use super::queue::DpdkQueue;
use super::removal::Removal;
use super::ring::{self, Ring};
use crate::flow::NicModel;
use crate::port::Capabilities;
use crate::wire::MacAddr;

const EEXIST: c_int = 17;

/// Devices come and go one at a time: the EAL scans a list of device arguments while it attaches one, without a lock of its own
/// (`local_dev_probe` in `eal_common_dev.c`), so that two threads can lose each other's device.
static DEVICES: Mutex<()> = Mutex::new(());

/// Holds off other threads that attach or remove devices.
pub(super) fn devices() -> MutexGuard<'static, ()> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See [`DpdkPort::open`].
pub(super) fn open(
    eal: &Eal,
    config: &PortConfig,
    pools: &[&MbufPool],
) -> Result<(DpdkPort, Vec<DpdkQueue>), PortError> {
    config.device.check()?;
    check_pools(config, pools)?;
    check_interface_mtu(config)?;
    wait_for_server(config)?;
    eal.log().forget();
    if config.device.driver() == Some("net_ring") {
        // DPDK's own net_ring has as many queues as there happen to be lcores; with rings of ours it has what is asked for.
        let rings = ring::rings(eal, config.device.name(), pools.len(), config.rx_descriptors, pools)?;
        return open_rings(eal, config, pools, &rings, &rings);
    }
    let port = attach(eal, config, pools.len())?;
    let inner = adopt(eal, config, pools, port, config.device.bus(), config.device.name());
    finish(inner, config, pools)
}

/// Opens a net_ring port over the given rings.
pub(super) fn open_rings(
    eal: &Eal,
    config: &PortConfig,
    pools: &[&MbufPool],
    rx: &[Arc<Ring>],
    tx: &[Arc<Ring>],
) -> Result<(DpdkPort, Vec<DpdkQueue>), PortError> {
    check_pools(config, pools)?;
    let (port, name) = ring::attach(eal, config.device.name(), rx, tx)?;
    let mut inner = adopt(eal, config, pools, port, "vdev", &name);
    inner.rings = rx.iter().chain(tx).map(Arc::clone).collect();
    finish(inner, config, pools)
}

/// From here on the port has an owner, which closes it whatever fails.
fn adopt(eal: &Eal, config: &PortConfig, pools: &[&MbufPool], port: u16, bus: &'static str, name: &str) -> PortInner {
    PortInner {
        port,
        id: config.id,
        mac: MacAddr::default(),
        mtu: config.mtu,
        capabilities: Capabilities::default(),
        needs_prepare: false,
        descriptors: (config.rx_descriptors, config.tx_descriptors),
        driver: String::new(),
        name: name.to_owned(),
        bus,
        started: false,
        removal: None,
        taken: Vec::new(),
        rings: Vec::new(),
        pools: pools.iter().map(|pool| pool.share()).collect(),
        eal: eal.clone(),
    }
}

fn finish(
    mut inner: PortInner,
    config: &PortConfig,
    pools: &[&MbufPool],
) -> Result<(DpdkPort, Vec<DpdkQueue>), PortError> {
    let info = device_info(&inner)?;
    if !info.driver_name.is_null() {
        // SAFETY: a static string of the driver.
        inner.driver = unsafe { CStr::from_ptr(info.driver_name) }
            .to_string_lossy()
            .into_owned();
    }
    let rss_hf = configure(&mut inner, config, &info, pools.len())?;
    set_up_queues(&mut inner)?;
    set_addresses(&mut inner, config)?;
    // SAFETY: configured, with all queues set up.
    step(&inner, "rte_eth_dev_start", unsafe {
        sys::rte_eth_dev_start(inner.port)
    })?;
    inner.started = true;
    if let Some(vlan) = config.vlan
        && Offloads::of(config, &info).rx & sys::DPDK_RX_OFFLOAD_VLAN_FILTER != 0
    {
        // SAFETY: the port is started, with the filter configured.
        step(&inner, "rte_eth_dev_vlan_filter", unsafe {
            sys::rte_eth_dev_vlan_filter(inner.port, vlan, 1)
        })?;
    }
    if inner.bus == "pci" {
        inner.removal = CString::new(inner.name.as_str())
            .ok()
            .and_then(|name| Removal::watch(&name));
    }
    let rss = if rss_hf == 0 {
        None
    } else {
        port_rss::spread_evenly(&inner, config, &info, rss_hf)
    };

    let shared = Arc::new(inner);
    let port = DpdkPort {
        flows: Flows::new(&shared, pools.len() as u16),
        shared,
        rss,
    };
    if !port.wait_for_link(config.link_wait) {
        log::warn!("{}: the link is down", port.shared.name);
    }
    let queues = (0..pools.len() as u16)
        .map(|queue| DpdkQueue::new(&port.shared, queue))
        .collect();
    Ok((port, queues))
}

fn check_pools(config: &PortConfig, pools: &[&MbufPool]) -> Result<(), PortError> {
    let device = config.device.to_string();
    if pools.is_empty() {
        return Err(PortError::Queues {
            device,
            asked: 0,
            most: u16::MAX,
        });
    }
    if let Some((key, value)) = config.device.queue_argument()
        && value.parse() != Ok(pools.len())
    {
        return Err(PortError::QueueArgument {
            device,
            argument: format!("{key}={value}"),
            queues: pools.len(),
        });
    }
    let needed = data_room(config.mtu);
    match pools.iter().map(|pool| pool.data_room()).min() {
        Some(actual) if actual < needed => Err(PortError::DataRoom { device, needed, actual }),
        _ => Ok(()),
    }
}

/// A kernel interface drops what is larger than its own MTU without a word.
fn check_interface_mtu(config: &PortConfig) -> Result<(), PortError> {
    let Some(interface) = config.device.kernel_interface() else {
        return Ok(());
    };
    match host::interface_mtu(interface) {
        Some(actual) if actual < u32::from(config.mtu) => Err(PortError::InterfaceMtu {
            device: config.device.to_string(),
            interface: interface.to_owned(),
            asked: config.mtu,
            actual,
        }),
        _ => Ok(()),
    }
}

/// A memif client cannot be started before its server has made the socket.
fn wait_for_server(config: &PortConfig) -> Result<(), PortError> {
    let Some(socket) = config.device.server_socket() else {
        return Ok(());
    };
    let start = Instant::now();
    while !Path::new(socket).exists() {
        if start.elapsed() >= config.link_wait {
            return Err(PortError::NoServer {
                device: config.device.to_string(),
                socket: socket.to_owned(),
            });
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Has the device's driver take it, and finds its port number.
fn attach(eal: &Eal, config: &PortConfig, queues: usize) -> Result<u16, PortError> {
    let device = &config.device;
    let failed = |reason: String| PortError::Attach {
        device: device.to_string(),
        reason,
        log: eal.log().complaints(),
    };
    let nul = |_: NulError| failed("a NUL byte in the device string".to_owned());
    let name = CString::new(device.name()).map_err(nul)?;
    let bus = CString::new(device.bus()).map_err(nul)?;
    let arguments = CString::new(device.arguments(queues, data_room(config.mtu))).map_err(nul)?;
    let mut port = 0;
    let _alone = devices();
    // SAFETY: NUL-terminated strings; `port` is written. A PCI device that was allowed at the start has its port already.
    unsafe {
        if sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &mut port) != 0 {
            let result = sys::rte_eal_hotplug_add(bus.as_ptr(), name.as_ptr(), arguments.as_ptr());
            if result == -EEXIST {
                return Err(PortError::InUse {
                    device: device.to_string(),
                });
            }
            if result < 0 {
                return Err(failed(reason(result)));
            }
            if sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &mut port) != 0 {
                return Err(failed("its driver made no Ethernet port of it".to_owned()));
            }
        } else if device.bus() == "vdev" {
            return Err(PortError::InUse {
                device: device.to_string(),
            });
        }
    }
    own(port).map_err(|_| PortError::InUse {
        device: device.to_string(),
    })?;
    Ok(port)
}

/// Marks the port as ours, which fails if it already is.
pub(super) fn own(port: u16) -> Result<(), c_int> {
    let mut owner = sys::rte_eth_dev_owner::default();
    for (to, from) in owner.name.iter_mut().zip(c"e2d2".to_bytes_with_nul()) {
        *to = *from as _;
    }
    // SAFETY: the port exists; ids are made and compared under DPDK's own lock.
    let result = unsafe {
        sys::rte_eth_dev_owner_new(&mut owner.id);
        sys::rte_eth_dev_owner_set(port, &owner)
    };
    if result == 0 { Ok(()) } else { Err(result) }
}

fn device_info(inner: &PortInner) -> Result<sys::rte_eth_dev_info, PortError> {
    let mut info = sys::rte_eth_dev_info::default();
    // SAFETY: the port exists; `info` is written.
    step(inner, "rte_eth_dev_info_get", unsafe {
        sys::rte_eth_dev_info_get(inner.port, &mut info)
    })?;
    Ok(info)
}

/// Configures the device within its limits; returns the hash types that spread packets over the queues, 0 if none.
fn configure(
    inner: &mut PortInner,
    config: &PortConfig,
    info: &sys::rte_eth_dev_info,
    queues: usize,
) -> Result<u64, PortError> {
    let mut most = info.max_rx_queues.min(info.max_tx_queues);
    if let Some(model) = NicModel::of_driver(&inner.driver) {
        // The device may have more of them than its hash leads to.
        most = most.min(model.most_queues());
    }
    if queues > usize::from(most) {
        return Err(PortError::Queues {
            device: inner.name.clone(),
            asked: queues,
            most,
        });
    }
    let mut wanted = sys::rte_eth_conf::default();
    wanted.rxmode.mtu = device_mtu(inner, config, info)?;

    let asked = Offloads::of(config, info);
    (wanted.rxmode.offloads, wanted.txmode.offloads) = (asked.rx, asked.tx);

    // Only TCP: everything else goes to queue 0, whatever its addresses.
    let rss_hf = info.flow_type_rss_offloads & (sys::DPDK_RSS_NONFRAG_IPV4_TCP | sys::DPDK_RSS_NONFRAG_IPV6_TCP);
    let mut key = port_rss::key_for(config, info);
    let spread = queues > 1 && rss_hf != 0 && !key.is_empty();
    if spread {
        wanted.rxmode.mq_mode = sys::RTE_ETH_MQ_RX_RSS;
        wanted.rxmode.offloads |= info.rx_offload_capa & sys::DPDK_RX_OFFLOAD_RSS_HASH;
        wanted.rx_adv_conf.rss_conf = sys::rte_eth_rss_conf {
            rss_key: key.as_mut_ptr(),
            rss_key_len: key.len() as u8,
            rss_hf,
        };
    }

    inner.capabilities = Capabilities {
        rx_checksum: asked.rx & offloads::RX_CHECKSUMS != 0,
        tx_checksum: asked.tx & offloads::TX_CHECKSUMS != 0,
        rss_hash: wanted.rxmode.offloads & sys::DPDK_RX_OFFLOAD_RSS_HASH != 0,
    };
    inner.needs_prepare = inner.capabilities.tx_checksum;
    let queues = queues as u16;
    // SAFETY: the port exists and is stopped; the configuration and the key live during the call and are copied.
    step(inner, "rte_eth_dev_configure", unsafe {
        sys::rte_eth_dev_configure(inner.port, queues, queues, &wanted)
    })?;
    let (mut rx, mut tx) = inner.descriptors;
    // SAFETY: the port is configured; the numbers are brought within its limits.
    step(inner, "rte_eth_dev_adjust_nb_rx_tx_desc", unsafe {
        sys::rte_eth_dev_adjust_nb_rx_tx_desc(inner.port, &mut rx, &mut tx)
    })?;
    inner.descriptors = (rx, tx);
    Ok(if spread { rss_hf } else { 0 })
}

/// The MTU that the device is told, once it is known to be within the device's limits.
fn device_mtu(inner: &PortInner, config: &PortConfig, info: &sys::rte_eth_dev_info) -> Result<u32, PortError> {
    // These two name the limit of an ordinary frame whatever their rings' buffers hold, and look at no MTU.
    if matches!(config.device.driver(), Some("net_af_packet" | "net_memif")) {
        return Ok(0);
    }
    // As rte_ethdev has it: the driver's own overhead if it tells both limits, else header and check sequence.
    let (max_frame, max_mtu) = (info.max_rx_pktlen, u32::from(info.max_mtu));
    let overhead = if info.max_mtu != u16::MAX && max_frame > max_mtu {
        max_frame - max_mtu
    } else {
        18
    };
    let most = max_frame.saturating_sub(overhead).min(max_mtu);
    if config.mtu < info.min_mtu || u32::from(config.mtu) > most {
        let device = inner.name.clone();
        return Err(PortError::Mtu {
            device,
            asked: config.mtu,
            least: info.min_mtu,
            most,
        });
    }
    Ok(u32::from(config.mtu))
}

fn set_up_queues(inner: &mut PortInner) -> Result<(), PortError> {
    // SAFETY: the port exists; the NUMA node may be unknown (-1).
    let node = unsafe { sys::rte_eth_dev_socket_id(inner.port) } as u32;
    let (rx, tx) = inner.descriptors;
    let mut taken = Vec::with_capacity(inner.pools.len());
    for (queue, pool) in inner.pools.iter().enumerate() {
        let (number, before) = (queue as u16, pool.available());
        // SAFETY: the port is configured with this many queues; the pool lives as long as the port; null means defaults.
        let result = unsafe { sys::rte_eth_rx_queue_setup(inner.port, number, rx, node, ptr::null(), pool.as_ptr()) };
        step(inner, "rte_eth_rx_queue_setup", result)?;
        taken.push(before.saturating_sub(pool.available()));
        // SAFETY: as above.
        let result = unsafe { sys::rte_eth_tx_queue_setup(inner.port, number, tx, node, ptr::null()) };
        step(inner, "rte_eth_tx_queue_setup", result)?;
    }
    inner.taken = taken;
    Ok(())
}

/// Sets the Ethernet address and what is received besides it: multicast (neighbour discovery), or everything.
fn set_addresses(inner: &mut PortInner, config: &PortConfig) -> Result<(), PortError> {
    let mut promiscuous = config.promiscuous;
    let mut address = sys::rte_ether_addr::default();
    if let Some(mac) = config.mac {
        address.addr_bytes = mac.0;
        // SAFETY: the port is configured; the address is copied.
        let result = unsafe { sys::rte_eth_dev_default_mac_addr_set(inner.port, &mut address) };
        // A driver that cannot filter for another address has to let everything through.
        promiscuous |= result < 0;
        inner.mac = mac;
    } else {
        // SAFETY: the port is configured; the address is written.
        let result = unsafe { sys::rte_eth_macaddr_get(inner.port, &mut address) };
        step(inner, "rte_eth_macaddr_get", result)?;
        inner.mac = MacAddr(address.addr_bytes);
    }
    // SAFETY: the port is configured. Virtual devices often have no filter at all and refuse both, which is as good.
    unsafe {
        if promiscuous || sys::rte_eth_allmulticast_enable(inner.port) < 0 {
            sys::rte_eth_promiscuous_enable(inner.port);
        }
    }
    Ok(())
}

/// A negative return value as an error that names the step.
fn step(inner: &PortInner, step: &'static str, result: c_int) -> Result<(), PortError> {
    if result >= 0 {
        return Ok(());
    }
    let (reason, log) = (reason(result), inner.eal.log().complaints());
    Err(PortError::Setup {
        device: inner.name.clone(),
        step,
        reason,
        log,
    })
}

/// What a negative return value says. Drivers return -1 for anything, which read as an error number would be a claim about
/// permissions.
fn reason(result: c_int) -> String {
    if result == -1 {
        "refused by its driver".to_owned()
    } else {
        sys::thread::error_text(-result)
    }
}

/// A name for C; device names have no NUL byte, as parsing them showed.
pub(super) fn c_string(text: &str) -> Result<CString, DeviceError> {
    CString::new(text).map_err(|_| DeviceError::Syntax {
        device: text.to_owned(),
        part: "a NUL byte".to_owned(),
    })
}
