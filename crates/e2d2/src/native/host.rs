//! What the machine has: PCI devices, interfaces of the calling thread's network namespace, capabilities.

use std::fs;
use std::path::Path;

use rustix::net::{AddressFamily, SocketType, netdevice, socket};
use rustix::thread::{CapabilitySet, capabilities};

use super::device::{DeviceError, pci_address};
use super::drivers;

/// Kernel drivers that leave a PCI device to DPDK; the Mellanox ones share theirs.
const PCI_DRIVERS: [&str; 5] = ["vfio-pci", "uio_pci_generic", "igb_uio", "mlx5_core", "mlx4_core"];

/// Checks that a PCI device (an address with optional arguments) exists and is left to DPDK by its kernel driver.
pub(super) fn check_pci(device: &str) -> Result<(), DeviceError> {
    let text = device.split_once(',').map_or(device, |(address, _)| address);
    let Some(address) = pci_address(text) else {
        return Err(DeviceError::Unknown {
            device: device.to_owned(),
            known: drivers::names(),
        });
    };
    let directory = Path::new("/sys/bus/pci/devices").join(&address);
    if !directory.exists() {
        return Err(DeviceError::NoPciDevice { address });
    }
    let driver = fs::read_link(directory.join("driver")).ok();
    let driver = driver
        .as_deref()
        .and_then(Path::file_name)
        .and_then(|name| name.to_str())
        .unwrap_or("no driver");
    if PCI_DRIVERS.contains(&driver) {
        return Ok(());
    }
    Err(DeviceError::PciNotBound {
        address,
        driver: driver.to_owned(),
    })
}

/// Whether the calling thread's network namespace has the interface.
pub(super) fn interface_exists(name: &str) -> bool {
    interface_index(name).is_some()
}

fn interface_index(name: &str) -> Option<u32> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    netdevice::name_to_index(&socket, name).ok()
}

/// The MTU of an interface, from sysfs; none if sysfs shows another network namespace than the calling thread's.
pub(super) fn interface_mtu(name: &str) -> Option<u32> {
    let read = |what: &str| {
        fs::read_to_string(format!("/sys/class/net/{name}/{what}"))
            .ok()?
            .trim()
            .parse::<u32>()
            .ok()
    };
    if read("ifindex")? == interface_index(name)? {
        read("mtu")
    } else {
        None
    }
}

/// Whether the calling thread has the capability; if that cannot be told, DPDK will find out.
pub(super) fn has_capability(needed: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}
