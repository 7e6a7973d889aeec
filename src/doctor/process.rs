//! What the process may do, and whether DPDK is there.

use super::Visit;
use super::rules::{DPDK_DRIVER, DPDK_LIBRARIES, MEMLOCK, PRIVILEGES};
use crate::config::{Device, PortConfig};

/// capabilities(7): numbers and names of those that ports need.
const NET_ADMIN: (u32, &str) = (12, "CAP_NET_ADMIN");
const NET_RAW: (u32, &str) = (13, "CAP_NET_RAW");
const IPC_LOCK: (u32, &str) = (14, "CAP_IPC_LOCK");
const SYS_RAWIO: (u32, &str) = (17, "CAP_SYS_RAWIO");
const SYS_ADMIN: (u32, &str) = (21, "CAP_SYS_ADMIN");

/// Where distributions keep shared libraries.
const LIBRARIES: [&str; 5] = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64", "/lib"];

/// The effective capabilities of this process, a bit each.
fn capabilities(visit: &Visit<'_>) -> Option<u64> {
    let status = visit.root.read("/proc/self/status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(effective.trim(), 16).ok()
}

pub(super) fn privileges(visit: &mut Visit<'_>) {
    let Some(effective) = capabilities(visit) else { return };
    let mut needed: Vec<(u32, &str)> = visit.ports().iter().flat_map(needed_for).collect();
    if visit.config.is_none() {
        needed = vec![NET_ADMIN, NET_RAW, IPC_LOCK, SYS_RAWIO, SYS_ADMIN];
    }
    needed.sort_unstable();
    needed.dedup();
    needed.retain(|(number, _)| effective >> number & 1 == 0);
    let missing: Vec<&str> = needed.iter().map(|(_, name)| *name).collect();
    if missing.is_empty() {
        visit.pass(&PRIVILEGES, "this process has the capabilities that the ports take");
        return;
    }
    let what = format!("this process lacks {}", missing.join(", "));
    // A PCI device can also be given to a user, by the rights of its file below /dev/vfio.
    let is_needed = |port: &PortConfig| matches!(port.device, Device::Virtual { .. }) || port.kernel.is_some();
    let mut refused = visit.ports().iter().filter(|port| is_needed(port)).flat_map(needed_for);
    if refused.any(|of| needed.contains(&of)) {
        visit.error(&PRIVILEGES, what, &[]);
    } else {
        visit.warn(&PRIVILEGES, what, &[]);
    }
}

fn needed_for(port: &PortConfig) -> Vec<(u32, &'static str)> {
    let mut needed = match &port.device {
        Device::Pci { .. } => vec![SYS_RAWIO, SYS_ADMIN, IPC_LOCK],
        Device::Virtual { name, .. } if name.starts_with("net_af_packet") => vec![NET_RAW],
        Device::Virtual { name, .. } if name.starts_with("net_af_xdp") => vec![NET_ADMIN, NET_RAW, SYS_ADMIN],
        Device::Virtual { name, .. } if name.starts_with("net_tap") => vec![NET_ADMIN],
        Device::Virtual { name, .. } if name.starts_with("net_pcap") => vec![NET_RAW],
        Device::Virtual { .. } => Vec::new(),
    };
    if let Some(kernel) = &port.kernel {
        needed.push(NET_ADMIN);
        needed.extend(kernel.namespace.is_some().then_some(SYS_ADMIN));
    }
    needed
}

pub(super) fn memlock(visit: &mut Visit<'_>) {
    // mlock(2): the limit does not hold for a process with CAP_IPC_LOCK.
    if capabilities(visit).is_some_and(|effective| effective >> IPC_LOCK.0 & 1 == 1) {
        visit.pass(&MEMLOCK, "CAP_IPC_LOCK locks memory without a limit");
        return;
    }
    let limits = visit.root.read("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let Some(soft) = line.and_then(|line| line.split_whitespace().next()) else {
        return;
    };
    let needed_mib = visit.config.map_or(256, |config| config.engine().memory_mib);
    match soft.parse::<u64>() {
        // "unlimited"
        Err(_) => visit.pass(&MEMLOCK, "memory may be locked without a limit"),
        Ok(bytes) if bytes >> 20 >= u64::from(needed_mib) => {
            visit.pass(&MEMLOCK, format!("{} MiB may be locked", bytes >> 20));
        }
        Ok(bytes) => {
            let what = format!("{} KiB may be locked, {needed_mib} MiB are needed", bytes >> 10);
            visit.warn(&MEMLOCK, what, &[]);
        }
    }
}

pub(super) fn dpdk(visit: &mut Visit<'_>) {
    let mut places: Vec<String> = LIBRARIES.iter().map(|&place| place.to_owned()).collect();
    for place in LIBRARIES {
        // Debian's multi-arch directories: x86_64-linux-gnu and others.
        let names = visit.root.names(place);
        places.extend(
            names
                .iter()
                .filter(|name| name.contains("-linux-"))
                .map(|name| format!("{place}/{name}")),
        );
    }
    let mut libraries = Vec::new();
    for place in &places {
        libraries.extend(visit.root.names(place));
        for version in visit.root.names(&format!("{place}/dpdk")) {
            libraries.extend(visit.root.names(&format!("{place}/dpdk/{version}")));
        }
    }
    let has = |name: &str| libraries.iter().any(|of| of.starts_with(&format!("lib{name}.so")));
    if ["rte_eal", "rte_ethdev", "rte_mempool"].iter().all(|name| has(name)) {
        let found = libraries.iter().find(|name| name.starts_with("librte_eal.so"));
        visit.pass(&DPDK_LIBRARIES, found.cloned().unwrap_or_default());
    } else {
        visit.error(&DPDK_LIBRARIES, "DPDK's shared libraries are not there", &[]);
        return;
    }
    let mut drivers: Vec<String> = visit.ports().iter().filter_map(driver).collect();
    drivers.sort();
    drivers.dedup();
    for driver in drivers {
        if has(&format!("rte_{driver}")) {
            visit.pass(&DPDK_DRIVER, driver);
        } else {
            let what = format!("driver {driver} is not among DPDK's libraries");
            visit.error(&DPDK_DRIVER, what, &[("driver", &driver)]);
        }
    }
}

/// The driver of a virtual device: its name without the number at the end. A PCI device's is found by DPDK.
fn driver(port: &PortConfig) -> Option<String> {
    let Device::Virtual { name, .. } = &port.device else {
        return None;
    };
    Some(name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned())
}
