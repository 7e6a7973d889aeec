//! The devices behind the ports.

use super::rules::{
    DESCRIPTORS, INTERFACE, INTERRUPT_REMAPPING, IOMMU, IOMMU_TRANSLATES, NUMA, PCI_DEVICE, PCI_DRIVER, PCIE_LINK, TUN,
};
use super::{Root, Severity, Visit, misplaced};
use crate::config::Device;

pub(crate) const PCI: &str = "/sys/bus/pci/devices";

/// Kernel drivers that leave a PCI device to DPDK; the Mellanox ones share theirs. The list that ports are opened by.
pub(crate) const DRIVERS: [&str; 5] = ["vfio-pci", "uio_pci_generic", "igb_uio", "mlx5_core", "mlx4_core"];

/// Those that leave addressing to the device: behind a translating IOMMU it reaches nothing.
const UIO_DRIVERS: [&str; 2] = ["uio_pci_generic", "igb_uio"];

/// Fewer descriptors than this hold less than 20 µs of 64-byte frames at 10 Gbit/s.
const FEWEST_DESCRIPTORS: u16 = 256;

/// The names and PCI addresses of the configuration's ports, or of all network devices without one.
fn devices(visit: &Visit<'_>) -> Vec<(String, String)> {
    if visit.config.is_some() {
        return visit.pci_ports();
    }
    let is_network = |address: &String| {
        let class = visit.root.read(&format!("{PCI}/{address}/class"));
        // PCI's class 02: network controllers.
        class.is_some_and(|class| class.starts_with("0x02"))
    };
    let all = visit.root.names(PCI).into_iter().filter(is_network);
    all.map(|address| (address.clone(), address)).collect()
}

pub(super) fn iommu(visit: &mut Visit<'_>) {
    let groups = visit.root.names("/sys/kernel/iommu_groups").len();
    if groups > 0 {
        visit.pass(&IOMMU, format!("{groups} groups"));
        return;
    }
    let devices = devices(visit);
    let is_unsafe = visit
        .root
        .read("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
    if is_unsafe.is_some_and(|value| value == "Y") {
        visit.pass(&IOMMU, "none, and vfio has been told to do without");
        return;
    }
    if visit.config.is_some() && devices.is_empty() {
        visit.pass(&IOMMU, "none, and no port is a PCI device");
        return;
    }
    let amd = visit
        .root
        .read("/proc/cpuinfo")
        .is_some_and(|info| info.contains("AuthenticAMD"));
    let parameter = if amd { "amd_iommu=on" } else { "intel_iommu=on" };
    let uses_vfio = |(_, address): &(String, String)| driver(visit.root, address).as_deref() == Some("vfio-pci");
    let severity = if visit.config.is_some() && devices.iter().any(uses_vfio) {
        Severity::Error
    } else {
        Severity::Warning
    };
    visit.find(&IOMMU, severity, "there is no IOMMU group", &[("iommu", parameter)]);
}

/// The kernel driver that a device is bound to.
pub(crate) fn driver(root: &Root, address: &str) -> Option<String> {
    root.link(&format!("{PCI}/{address}/driver"))
}

/// What the IOMMU does to the addresses of a device on a uio driver.
fn translation(visit: &mut Visit<'_>, address: &str) {
    // Linux, Documentation/ABI/testing/sysfs-kernel-iommu_groups: "DMA" and "DMA-FQ" translate, "identity" does not.
    let group = visit.root.read(&format!("{PCI}/{address}/iommu_group/type"));
    if let Some(group) = group.filter(|group| group.starts_with("DMA")) {
        let what = format!("{address}: a uio driver behind an IOMMU that translates (its group is of type {group})");
        visit.error(&IOMMU_TRANSLATES, what, &[("pci", address)]);
    }
}

/// Whether vfio-pci accepts a device's interrupts.
fn interrupt_remapping(visit: &mut Visit<'_>, address: &str) {
    const ALLOWED: &str = "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";
    if visit.root.read(ALLOWED).is_some_and(|value| value == "Y") {
        return;
    }
    let switched_off = visit
        .root
        .read("/proc/cmdline")
        .is_some_and(|line| line.split_whitespace().any(|word| word == "intremap=off"));
    // Intel VT-d, 11.4.3: bit 3 of the extended capabilities is support for interrupt remapping.
    let lacks = |unit: &String| {
        let capabilities = visit.root.read(&format!("/sys/class/iommu/{unit}/intel-iommu/ecap"));
        let capabilities = capabilities.and_then(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok());
        capabilities.is_some_and(|bits| bits & 1 << 3 == 0)
    };
    if switched_off || visit.root.names("/sys/class/iommu").iter().any(lacks) {
        let what = format!("{address}: vfio-pci without interrupt remapping");
        visit.error(&INTERRUPT_REMAPPING, what, &[("pci", address)]);
    }
}

pub(super) fn pci(visit: &mut Visit<'_>) {
    let devices = devices(visit);
    if devices.is_empty() {
        let what = if visit.config.is_some() {
            visit.pass(&PCI_DEVICE, "no port is a PCI device");
            return;
        } else {
            "this machine has no PCI network device; ports can stand on interfaces (net_af_packet, net_af_xdp)"
        };
        visit.warn(&PCI_DEVICE, what, &[]);
        return;
    }
    for (name, address) in devices {
        if !visit.root.exists(&format!("{PCI}/{address}")) {
            let what = format!("port {name}: there is no device at {address}");
            visit.error(&PCI_DEVICE, what, &[]);
            continue;
        }
        let driver = driver(visit.root, &address);
        let driver = driver.as_deref().unwrap_or("no driver");
        let is_way_out = carries_default_route(visit.root, &address);
        if DRIVERS.contains(&driver) {
            visit.pass(&PCI_DRIVER, format!("{address}: {driver}"));
            if UIO_DRIVERS.contains(&driver) {
                translation(visit, &address);
            } else if driver == "vfio-pci" {
                interrupt_remapping(visit, &address);
            }
        } else if is_way_out && visit.config.is_none() {
            let what = format!("{address}: {driver}; the default route leads there, so it stays with Linux");
            visit.pass(&PCI_DRIVER, what);
        } else {
            let mut what = format!("{address} is bound to {driver}");
            if is_way_out {
                what += " and the default route leads there: without it this machine may be out of reach";
            }
            let severity = if visit.config.is_some() {
                Severity::Error
            } else {
                Severity::Warning
            };
            // vfio-pci takes a device only behind an IOMMU.
            let has_iommu = !visit.root.names("/sys/kernel/iommu_groups").is_empty();
            let bind = if has_iommu { "vfio-pci" } else { "uio_pci_generic" };
            visit.find(&PCI_DRIVER, severity, what, &[("pci", &address), ("bind", bind)]);
        }
        link(visit, &address);
    }
}

/// Whether the kernel's way out of this machine is an interface of the device: taking it away may lock out who does it.
pub(crate) fn carries_default_route(root: &Root, address: &str) -> bool {
    let directory = format!("{PCI}/{address}");
    let mut interfaces = root.names(&format!("{directory}/net"));
    // Paravirtual devices are one level below.
    for name in root.names(&directory) {
        if name.starts_with("virtio") {
            interfaces.extend(root.names(&format!("{directory}/{name}/net")));
        }
    }
    // IPv4: interface, destination, …; IPv6: destination, its length, … interface.
    let v4 = root.read("/proc/net/route").unwrap_or_default();
    let v6 = root.read("/proc/net/ipv6_route").unwrap_or_default();
    let by_v4 = v4.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (interface, to) = (words.next()?, words.next()?);
        (to == "00000000").then_some(interface)
    });
    let by_v6 = v6.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_default = words.first()?.bytes().all(|byte| byte == b'0') && *words.get(1)? == "00";
        (is_default)
            .then(|| words.last().copied())
            .flatten()
            .filter(|name| *name != "lo")
    });
    by_v4
        .chain(by_v6)
        .any(|interface| interfaces.iter().any(|of| of == interface))
}

fn link(visit: &mut Visit<'_>, address: &str) {
    let read = |file: &str| visit.root.read(&format!("{PCI}/{address}/{file}"));
    // "8.0 GT/s PCIe"; a virtual device says "Unknown", or nothing.
    let speed = |file: &str| read(file)?.split_whitespace().next()?.parse::<f64>().ok();
    let width = |file: &str| read(file)?.parse::<u32>().ok().filter(|width| (1..=64).contains(width));
    let now = speed("current_link_speed").zip(width("current_link_width"));
    let most = speed("max_link_speed").zip(width("max_link_width"));
    let (Some((speed, width)), Some((most_speed, most_width))) = (now, most) else {
        return;
    };
    let is = format!("{address}: {width} lanes at {speed} GT/s");
    if speed < most_speed || width < most_width {
        let what = format!("{is}, of {most_width} at {most_speed} GT/s that the card can do");
        visit.warn(&PCIE_LINK, what, &[("pci", address)]);
    } else {
        visit.pass(&PCIE_LINK, is);
    }
}

pub(super) fn numa(visit: &mut Visit<'_>) {
    let Some(config) = visit.config else { return };
    let misplaced = misplaced(visit.root, config);
    if misplaced.is_empty() {
        visit.pass(&NUMA, "no port is known to be on another node than a core");
    }
    for place in misplaced {
        visit.warn(&NUMA, place.to_string(), &[("node", &place.port_node.to_string())]);
    }
}

pub(super) fn descriptors(visit: &mut Visit<'_>) {
    let pci = |device: &Device| matches!(device, Device::Pci { .. });
    let short: Vec<String> = visit
        .ports()
        .iter()
        .filter(|port| pci(&port.device))
        .filter(|port| port.rx_descriptors.min(port.tx_descriptors) < FEWEST_DESCRIPTORS)
        .map(|port| {
            let (rx, tx) = (port.rx_descriptors, port.tx_descriptors);
            format!("port {}: {rx} to receive, {tx} to send", port.name)
        })
        .collect();
    if short.is_empty() && visit.config.is_some() {
        visit.pass(&DESCRIPTORS, format!("at least {FEWEST_DESCRIPTORS} where it matters"));
    }
    for what in short {
        visit.warn(&DESCRIPTORS, what, &[]);
    }
}

/// Interfaces below virtual ports, and what the way to the kernel needs.
pub(super) fn interfaces(visit: &mut Visit<'_>) {
    let on_interface: Vec<(String, String)> = visit
        .ports()
        .iter()
        .filter(|port| match &port.device {
            // net_tap makes its own.
            Device::Virtual { name, .. } => !name.starts_with("net_tap"),
            Device::Pci { .. } => false,
        })
        .filter_map(|port| Some((port.name.clone(), port.device.linux_interface()?.to_owned())))
        .collect();
    for (port, interface) in on_interface {
        if visit.root.exists(&format!("/sys/class/net/{interface}")) {
            visit.pass(&INTERFACE, interface);
        } else {
            let what = format!("port {port}: there is no interface {interface}");
            visit.error(&INTERFACE, what, &[]);
        }
    }
    if visit.ports().iter().any(|port| port.kernel.is_some()) {
        if visit.root.exists("/dev/net/tun") {
            visit.pass(&TUN, "/dev/net/tun");
        } else {
            visit.error(&TUN, "there is no /dev/net/tun", &[]);
        }
    }
}
