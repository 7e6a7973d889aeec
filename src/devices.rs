//! `proxyengine devices`: gives the engine the hugepages and the PCI devices that its configuration names.
//!
//! ```text
//!   Root (/sys, /proc) ─┐
//!                       ├─► plan ─► steps ─► take ─► files below /sys, modprobe
//!   Config ─────────────┘
//! ```
//!
//! It runs as root, once after boot and before the engine, so that the engine needs no root. What lives here: deciding and
//! writing. What does not: opening a device. Nothing is given back at the end of the engine; a second run finds it done.

use std::fmt;
use std::fs;
use std::process::Command;

use thiserror::Error;

use crate::config::{Config, Device};
use crate::doctor::Root;
use crate::doctor::devices::{DRIVERS, PCI, carries_default_route, driver};
use crate::doctor::machine::{HUGE, pages, shares};

/// The kernel's driver that hands a device to a process, and has the IOMMU keep it to that process's memory.
const VFIO: &str = "vfio-pci";

/// One thing to do to the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Have so many hugepages below a directory of `/sys`.
    Reserve {
        /// The pages' directory, of the machine or of a NUMA node.
        directory: String,
        /// How many there are to be, in use ones included.
        count: u64,
        /// Whether a port cannot be opened without.
        needed: bool,
    },
    /// Load a driver of the kernel.
    Load(&'static str),
    /// Take a PCI device from its driver and bind it to vfio-pci.
    Bind {
        /// The device: `0000:07:00.0`.
        address: String,
        /// Its driver until now; none if it has none.
        from: Option<String>,
    },
}

/// Why the machine cannot be made ready.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DevicesError {
    /// The configuration names a device that is not there.
    #[error("port {port}: there is no PCI device at {address}; `lspci -D` lists them")]
    NoDevice {
        /// The port's name.
        port: String,
        /// Its device.
        address: String,
    },
    /// Without its device the machine may be out of reach.
    #[error("port {port}: the default route leads over {address}, so it stays with the kernel; name another device")]
    WayOut {
        /// The port's name.
        port: String,
        /// Its device.
        address: String,
    },
    /// vfio-pci takes a device only behind an IOMMU.
    #[error(
        "port {port}: vfio-pci cannot take {address}, as the kernel uses no IOMMU: boot with intel_iommu=on iommu=pt \
         (AMD: amd_iommu=on iommu=pt), or bind it to uio_pci_generic and run the engine as root"
    )]
    NoIommu {
        /// The port's name.
        port: String,
        /// Its device.
        address: String,
    },
    /// A file of the kernel could not be written.
    #[error("{file} cannot be written: {reason}")]
    Write {
        /// Where.
        file: String,
        /// What the kernel says.
        reason: String,
    },
    /// A driver could not be loaded.
    #[error("the driver {driver} cannot be loaded: {reason}")]
    Load {
        /// Which.
        driver: &'static str,
        /// What modprobe says.
        reason: String,
    },
    /// The kernel took another driver, or none.
    #[error("{address} could not be bound to {VFIO}; `dmesg` says why")]
    NotBound {
        /// The device.
        address: String,
    },
    /// The kernel found fewer pages of contiguous memory.
    #[error(
        "{directory}: only {had} of {wanted} hugepages could be had, as memory is fragmented: reserve them at boot with \
         hugepages={wanted} on the kernel's command line"
    )]
    TooFewPages {
        /// The pages' directory.
        directory: String,
        /// How many there are.
        had: u64,
        /// How many there were to be.
        wanted: u64,
    },
}

/// What has to be done on the machine for this configuration; nothing if it is ready.
///
/// Run it before the engine: pages that the engine uses are not free, and more would be reserved.
///
/// # Errors
///
/// A device that is missing, is the machine's way out, or cannot be handed over.
pub fn plan(root: &Root, config: &Config) -> Result<Vec<Step>, DevicesError> {
    let ports = config.ports().iter();
    let on_pci: Vec<(String, String)> = ports
        .filter_map(|port| match &port.device {
            Device::Pci { address, .. } => Some((port.name.clone(), address.to_string())),
            Device::Virtual { .. } => None,
        })
        .collect();
    let mut steps = reserve(root, config, !on_pci.is_empty());
    let mut binds = Vec::new();
    for (port, address) in on_pci {
        if !root.exists(&format!("{PCI}/{address}")) {
            return Err(DevicesError::NoDevice { port, address });
        }
        let from = driver(root, &address);
        if from.as_deref().is_some_and(|name| DRIVERS.contains(&name)) {
            continue;
        }
        if carries_default_route(root, &address) {
            return Err(DevicesError::WayOut { port, address });
        }
        if root.names("/sys/kernel/iommu_groups").is_empty() {
            return Err(DevicesError::NoIommu { port, address });
        }
        binds.push(Step::Bind { address, from });
    }
    if !binds.is_empty() && !root.exists(&format!("/sys/bus/pci/drivers/{VFIO}")) {
        steps.push(Step::Load(VFIO));
    }
    steps.append(&mut binds);
    Ok(steps)
}

/// The pages that are missing: on the nodes of the workers' cores where the machine has nodes, else anywhere.
fn reserve(root: &Root, config: &Config, needed: bool) -> Vec<Step> {
    let memory_mib = u64::from(config.engine().memory_mib);
    let cores: Vec<u16> = config.engine().cores.iter().map(|core| core.0).collect();
    let mut places: Vec<(String, u64)> = shares(root, &cores, memory_mib)
        .into_iter()
        .map(|(node, mib)| (format!("/sys/devices/system/node/node{node}/hugepages"), mib))
        .filter(|(directory, _)| !root.names(directory).is_empty())
        .collect();
    if places.is_empty() {
        places.push((HUGE.to_owned(), memory_mib));
    }
    let missing = |(directory, mib): (String, u64)| {
        let all = pages(root, &directory);
        let free: u64 = all.iter().map(|of| of.free * of.kib).sum();
        let smallest = all.iter().min_by_key(|of| of.kib)?;
        let missing = (mib << 10).saturating_sub(free).div_ceil(smallest.kib);
        (missing > 0).then(|| Step::Reserve {
            directory: format!("{directory}/hugepages-{}kB", smallest.kib),
            count: smallest.configured + missing,
            needed,
        })
    };
    places.into_iter().filter_map(missing).collect()
}

/// Does one step.
///
/// # Errors
///
/// What the kernel refuses. Too few pages are an error only where a port needs them; else the engine runs on ordinary pages.
pub fn take(root: &Root, step: &Step) -> Result<(), DevicesError> {
    match step {
        Step::Reserve {
            directory,
            count,
            needed,
        } => {
            let file = format!("{directory}/nr_hugepages");
            write(root, &file, &count.to_string())?;
            let had = root
                .number(&file)
                .and_then(|number| u64::try_from(number).ok())
                .unwrap_or(0);
            if had < *count && *needed {
                let (directory, wanted) = (directory.clone(), *count);
                return Err(DevicesError::TooFewPages { directory, had, wanted });
            }
            Ok(())
        }
        Step::Load(driver) => load(driver),
        Step::Bind { address, from } => bind(root, address, from.is_some()),
    }
}

/// Linux, Documentation/ABI/testing/sysfs-bus-pci: a device with `driver_override` is bound to the driver of that name only.
fn bind(root: &Root, address: &str, has_driver: bool) -> Result<(), DevicesError> {
    let device = format!("{PCI}/{address}");
    write(root, &format!("{device}/driver_override"), VFIO)?;
    if has_driver {
        write(root, &format!("{device}/driver/unbind"), address)?;
    }
    write(root, "/sys/bus/pci/drivers_probe", address)?;
    let is_bound = driver(root, address).as_deref() == Some(VFIO);
    // Whoever gives the device back is to get its own driver again.
    write(root, &format!("{device}/driver_override"), "\n")?;
    let address = address.to_owned();
    is_bound.then_some(()).ok_or(DevicesError::NotBound { address })
}

fn load(driver: &'static str) -> Result<(), DevicesError> {
    let failed = |reason: String| DevicesError::Load { driver, reason };
    let output = Command::new("modprobe").arg(driver).output();
    let output = output.map_err(|error| failed(format!("modprobe: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

fn write(root: &Root, file: &str, text: &str) -> Result<(), DevicesError> {
    fs::write(root.path(file), text).map_err(|error| DevicesError::Write {
        file: file.to_owned(),
        reason: error.to_string(),
    })
}

/// A sentence about what is done.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserve { directory, count, .. } => write!(f, "{count} hugepages in {directory}"),
            Self::Load(driver) => write!(f, "load {driver}"),
            Self::Bind { address, from } => {
                let from = from.as_deref().unwrap_or("no driver");
                write!(f, "bind {address} to {VFIO}, from {from}")
            }
        }
    }
}
