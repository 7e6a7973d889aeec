//! The drivers of virtual devices: a table of what DPDK 22.11 packages, and whether it is installed.

use std::path::Path;

use dpdk_sys as sys;
use rustix::thread::CapabilitySet;

use super::device::DeviceError;

/// What we know about a driver of virtual devices.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Driver {
    pub(super) name: &'static str,
    pub(super) arguments: &'static [&'static str],
    pub(super) required: &'static [&'static str],
    /// Arguments that name kernel interfaces, which must exist.
    pub(super) interfaces: &'static [&'static str],
    /// Arguments that name files to be read.
    pub(super) files: &'static [&'static str],
    /// The argument that says how many queues there are, for drivers that must be told.
    pub(super) queues: Option<&'static str>,
    pub(super) capability: Option<(CapabilitySet, &'static str)>,
}

const PLAIN: Driver = Driver {
    name: "",
    arguments: &[],
    required: &[],
    interfaces: &[],
    files: &[],
    queues: None,
    capability: None,
};

const RAW: Option<(CapabilitySet, &str)> = Some((CapabilitySet::NET_RAW, "cap_net_raw"));
const ADMIN: Option<(CapabilitySet, &str)> = Some((CapabilitySet::NET_ADMIN, "cap_net_admin"));

/// The drivers and their arguments as DPDK 22.11 has them.
pub(super) static DRIVERS: [Driver; 7] = [
    Driver {
        name: "net_ring",
        ..PLAIN
    },
    Driver {
        name: "net_null",
        arguments: &["size", "copy", "no-rx"],
        ..PLAIN
    },
    Driver {
        name: "net_pcap",
        arguments: &[
            "rx_pcap",
            "tx_pcap",
            "rx_iface",
            "rx_iface_in",
            "tx_iface",
            "iface",
            "phy_mac",
            "infinite_rx",
        ],
        interfaces: &["rx_iface", "rx_iface_in", "tx_iface", "iface"],
        files: &["rx_pcap"],
        ..PLAIN
    },
    Driver {
        name: "net_memif",
        arguments: &[
            "role",
            "id",
            "bsize",
            "rsize",
            "socket",
            "socket-abstract",
            "owner-uid",
            "owner-gid",
            "mac",
            "secret",
            "zero-copy",
        ],
        ..PLAIN
    },
    Driver {
        name: "net_tap",
        arguments: &["iface", "remote", "mac"],
        capability: ADMIN,
        ..PLAIN
    },
    Driver {
        name: "net_af_packet",
        arguments: &["iface", "qpairs", "blocksz", "framesz", "framecnt", "qdisc_bypass"],
        required: &["iface"],
        interfaces: &["iface"],
        queues: Some("qpairs"),
        capability: RAW,
        ..PLAIN
    },
    Driver {
        name: "net_af_xdp",
        arguments: &[
            "iface",
            "start_queue",
            "queue_count",
            "shared_umem",
            "xdp_prog",
            "busy_budget",
            "force_copy",
        ],
        required: &["iface"],
        interfaces: &["iface"],
        queues: Some("queue_count"),
        capability: ADMIN,
        ..PLAIN
    },
];

/// The names of all drivers, for error messages.
pub(super) fn names() -> String {
    DRIVERS.iter().map(|driver| driver.name).collect::<Vec<_>>().join(", ")
}

/// Looks for the driver where the EAL loads drivers from: `…/dpdk/pmds-23.0/librte_net_ring.so.23`.
pub(super) fn check_installed(driver: &'static str) -> Result<(), DeviceError> {
    let directory = sys::RTE_EAL_PMD_PATH
        .strip_suffix(b"\0")
        .unwrap_or(sys::RTE_EAL_PMD_PATH);
    let directory = Path::new(std::str::from_utf8(directory).unwrap_or_default());
    let version = directory.extension().is_some().then(|| directory.file_stem()).flatten();
    let version = version
        .and_then(|name| name.to_str())
        .and_then(|name| name.strip_prefix("pmds-"))
        .unwrap_or("23");
    if directory.join(format!("librte_{driver}.so.{version}")).exists() {
        return Ok(());
    }
    let package = format!("librte-{}{version}", driver.replace('_', "-"));
    Err(DeviceError::MissingDriver { driver, package })
}
