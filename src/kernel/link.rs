//! From the configuration to devices, threads and rings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use e2d2::tap::{Tap, TapError, TapOptions};
use e2d2::time::Clock;
use e2d2::wire::MacAddr;
use ipnet::IpNet;

use super::claims::Claims;
use super::end::{KernelCounterReader, KernelEnd, Lane};
use super::namespace::{self, MadeNamespace};
use super::pump::{Pump, PumpParts};
use super::ring::frame_ring;
use crate::config::{Config, KernelConfig, PortConfig};
use crate::privileges;

/// Bytes of each ring: 170 full frames of Ethernet's usual size, 28 of the largest.
const RING: usize = 256 << 10;

/// Why there is no kernel behind a port.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The device, or the namespace that it is to be in.
    #[error("port {port}: {source}")]
    Tap {
        /// The port's name.
        port: String,
        /// What is wrong with it.
        source: TapError,
    },
    /// The namespace was to be made.
    #[error("port {port}: network namespace {namespace} could not be made: {reason}")]
    Namespace {
        /// The port's name.
        port: String,
        /// The namespace's.
        namespace: String,
        /// A sentence.
        reason: String,
    },
    /// The thread.
    #[error("port {port}: the thread of its way to the kernel could not be started: {source}")]
    Thread {
        /// The port's name.
        port: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The devices and threads of all ports. Dropping it ends the threads and removes the devices.
#[derive(Debug, Default)]
pub struct KernelLinks {
    links: Vec<KernelLink>,
    // After the devices that are in them.
    namespaces: Vec<MadeNamespace>,
}

#[derive(Debug)]
struct KernelLink {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for KernelLink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot panic but by a mistake of ours, which it has then said.
            let _ = thread.join();
        }
    }
}

/// Makes the devices that the configuration asks for, on ports with these MAC addresses, starts their threads, and gives
/// each of `cores` cores its end; the first one sends what comes from the kernel. None where no port has a kernel.
///
/// # Errors
/// [`KernelError`]; nothing is left open.
pub fn connect(
    config: &Config,
    macs: &[MacAddr],
    cores: usize,
    clock: &Clock,
) -> Result<(KernelLinks, Vec<Option<KernelEnd>>), KernelError> {
    let claims = Arc::new(Claims::new(config, macs));
    let mut links = KernelLinks::default();
    let mut lanes: Vec<Vec<Lane>> = (0..cores).map(|_| Vec::new()).collect();
    let mut counters = Vec::new();
    for (port, mac) in config.ports().iter().zip(macs) {
        let Some(kernel) = &port.kernel else { continue };
        let tap = open(config, port, kernel, *mac, &mut links)?;
        counters.push(links.start(tap, port, kernel, *mac, &mut lanes, clock)?);
        log::info!("port {}: the kernel's part is {}", port.name, Described(kernel));
    }
    let now = clock.now();
    let mut counters = Some(counters).into_iter();
    let end = |lanes: Vec<Lane>| {
        let others = counters.next().unwrap_or_default();
        (!claims.is_empty()).then(|| KernelEnd::new(Arc::clone(&claims), lanes, others, now))
    };
    Ok((links, lanes.into_iter().map(end).collect()))
}

fn open(
    config: &Config,
    port: &PortConfig,
    kernel: &KernelConfig,
    mac: MacAddr,
    links: &mut KernelLinks,
) -> Result<Tap, KernelError> {
    if let Some(name) = &kernel.namespace {
        let made = namespace::ensure(name).map_err(|reason| KernelError::Namespace {
            port: port.name.clone(),
            namespace: name.clone(),
            reason,
        })?;
        links.namespaces.extend(made);
    }
    let tap = Tap::open(&tap_options(config, port, kernel, mac));
    tap.map_err(|source| KernelError::Tap {
        port: port.name.clone(),
        source,
    })
}

/// In a namespace of its own the kernel gets the port's routes and its share of TCP ports; the host's are left alone.
fn tap_options(config: &Config, port: &PortConfig, kernel: &KernelConfig, mac: MacAddr) -> TapOptions {
    let parts = |net: &IpNet| (net.addr(), net.prefix_len());
    let routes = config.routes().iter().filter(|route| route.port == port.id);
    let has_family = |of: &IpNet| {
        kernel
            .addresses
            .iter()
            .any(|net| net.addr().is_ipv4() == of.addr().is_ipv4())
    };
    let routes = routes
        .filter(|route| has_family(&route.to))
        .filter_map(|route| Some((parts(&route.to), route.via?)));
    let local_ports = kernel.local_ports.as_ref();
    TapOptions {
        name: kernel.device.clone(),
        namespace: kernel.namespace.clone(),
        mac,
        mtu: port.mtu,
        addresses: kernel.addresses.iter().map(parts).collect(),
        routes: if kernel.namespace.is_some() {
            routes.collect()
        } else {
            Vec::new()
        },
        ephemeral_ports: local_ports.map(|range| (*range.start(), *range.end())),
    }
}

impl KernelLinks {
    /// Starts the thread of one port; adds the port's lane to each core's.
    fn start(
        &mut self,
        tap: Tap,
        port: &PortConfig,
        kernel: &KernelConfig,
        mac: MacAddr,
        lanes: &mut [Vec<Lane>],
        clock: &Clock,
    ) -> Result<KernelCounterReader, KernelError> {
        let (from_kernel, from) = frame_ring(RING);
        let mut from = Some(from);
        let mut to_kernel = Vec::new();
        let share = kernel
            .rate
            .div_ceil(u32::try_from(lanes.len()).unwrap_or(u32::MAX).max(1));
        for lanes in lanes {
            let (to, receiver) = frame_ring(RING);
            to_kernel.push(receiver);
            lanes.push(Lane {
                port: port.id,
                to,
                from: from.take(),
                rate: share,
            });
        }
        let parts = PumpParts {
            device: tap,
            to_kernel,
            from_kernel,
            mac,
            mtu: port.mtu,
            rate: kernel.rate,
        };
        let mut pump = Pump::new(parts, clock.now());
        let counters = pump.counter_reader();
        let stop = Arc::new(AtomicBool::new(false));
        let (clock, told) = (*clock, Arc::clone(&stop));
        let name = format!("kernel-{}", kernel.device);
        let thread = thread::Builder::new().name(name).spawn(move || {
            privileges::enter_plain_thread();
            pump.run(&clock, &told);
        });
        let thread = thread.map_err(|source| KernelError::Thread {
            port: port.name.clone(),
            source,
        })?;
        self.links.push(KernelLink {
            stop,
            thread: Some(thread),
        });
        Ok(counters)
    }
}

/// `interface pe-k0 in namespace mgmt, 10.0.0.1/24, 10000 frames a second each way`
struct Described<'a>(&'a KernelConfig);

impl std::fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kernel = self.0;
        write!(f, "interface {}", kernel.device)?;
        if let Some(namespace) = &kernel.namespace {
            write!(f, " in namespace {namespace}")?;
        }
        for address in &kernel.addresses {
            write!(f, ", {address}")?;
        }
        write!(f, ", {} frames a second each way", kernel.rate)
    }
}
