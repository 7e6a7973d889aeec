//! A DPDK port: configured once, then only its queues are used until the last of them is dropped.
#![allow(unsafe_code)] // FFI: reads and ends ethdev ports.

use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{ptr, thread};

use dpdk_sys as sys;

use super::device::{Device, DeviceError};
use super::eal::Eal;
use super::flow::Flows;
use super::pool::{MbufPool, PoolInner};
use super::port_setup::{self, c_string};
use super::queue::DpdkQueue;
use super::removal::Removal;
use super::ring::Ring;
use crate::flow::{FlowError, FlowRule};
use crate::port::{Capabilities, PortId};
use crate::rss::{DEFAULT_KEY, Rss};
use crate::wire::MacAddr;

/// How a port is to be set up. It gets as many queue pairs as pools are given to [`DpdkPort::open`].
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Its index in the engine's configuration.
    pub id: PortId,
    /// Which device it is.
    pub device: Device,
    /// The largest IP packet, up to 9000 bytes where the device has it.
    pub mtu: u16,
    /// Receive descriptors of each queue; brought within the device's limits.
    pub rx_descriptors: u16,
    /// Transmit descriptors of each queue; brought within the device's limits.
    pub tx_descriptors: u16,
    /// The 802.1Q tag, 1 to 4094, that a device which filters tags has to let through. Frames are received with their tags.
    pub vlan: Option<u16>,
    /// Its Ethernet address; none: the device's own.
    pub mac: Option<MacAddr>,
    /// Whether frames for other addresses are received too.
    pub promiscuous: bool,
    /// Whether checksum offloads are used where the device has them.
    pub checksum_offload: bool,
    /// The RSS key, at least 40 bytes; longer ones are cut and shorter ones repeated to what the device wants.
    pub rss_key: Vec<u8>,
    /// How long to wait for the link; a port whose link stays down is opened all the same. A memif client waits as long for
    /// its server's socket, and is not opened without.
    pub link_wait: Duration,
}

impl PortConfig {
    /// The usual setup of a device: MTU 1500, 1024 descriptors, offloads on, not promiscuous, two seconds for the link.
    pub fn new(id: PortId, device: Device) -> Self {
        Self {
            id,
            device,
            mtu: 1500,
            rx_descriptors: 1024,
            tx_descriptors: 1024,
            vlan: None,
            mac: None,
            promiscuous: false,
            checksum_offload: true,
            rss_key: DEFAULT_KEY.to_vec(),
            link_wait: Duration::from_secs(2),
        }
    }

    /// How many packet buffers one queue pair can hold at once, for [`super::PoolDemand::queues`].
    pub fn buffers(&self) -> u32 {
        match self.device.driver() {
            // Its fill ring and both packet rings have 2048 entries each, whatever is asked for.
            Some("net_af_xdp") => 3 * 2048,
            _ => u32::from(self.rx_descriptors) + u32::from(self.tx_descriptors),
        }
    }
}

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PortError {
    /// The device string does not name a usable device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Another port of this process has the device.
    #[error("{device} is in use by another port of this process")]
    InUse {
        /// The device.
        device: String,
    },
    /// No driver took the device.
    #[error("{device} could not be attached: {reason}{log}")]
    Attach {
        /// The device.
        device: String,
        /// What DPDK returned.
        reason: String,
        /// What DPDK logged about it.
        log: String,
    },
    /// The device string asks for another number of queues than the cores need.
    #[error(
        "{device}: {argument} is for another number of queues than the {queues} that are needed (one for each core)"
    )]
    QueueArgument {
        /// The device.
        device: String,
        /// The argument.
        argument: String,
        /// How many are needed.
        queues: usize,
    },
    /// More queues than the device has, or none.
    #[error("{device} has at most {most} queue pairs to spread over, and {asked} are asked for (one for each core)")]
    Queues {
        /// The device.
        device: String,
        /// How many were asked for.
        asked: usize,
        /// How many there are.
        most: u16,
    },
    /// The MTU is outside the device's limits.
    #[error("{device} takes an MTU from {least} to {most}, and {asked} is asked for")]
    Mtu {
        /// The device.
        device: String,
        /// What was asked for.
        asked: u16,
        /// The smallest.
        least: u16,
        /// The largest.
        most: u32,
    },
    /// The kernel interface below the device carries less.
    #[error(
        "{device}: its interface has an MTU of {actual}, and {asked} is asked for: `ip link set dev {interface} mtu {asked}`"
    )]
    InterfaceMtu {
        /// The device.
        device: String,
        /// The kernel interface.
        interface: String,
        /// What was asked for.
        asked: u16,
        /// What the interface has.
        actual: u32,
    },
    /// The other side of a memif client is not there.
    #[error("{device}: nobody serves {socket}; start the server's side first")]
    NoServer {
        /// The device.
        device: String,
        /// The socket.
        socket: String,
    },
    /// The buffers of a pool are too small for the port's frames.
    #[error("{device} needs packet buffers of {needed} bytes, and its pool has {actual}")]
    DataRoom {
        /// The device.
        device: String,
        /// What [`super::data_room`] says.
        needed: u16,
        /// What the pool has.
        actual: u16,
    },
    /// A step of the setup failed.
    #[error("{device}: {step} failed: {reason}{log}")]
    Setup {
        /// The device.
        device: String,
        /// The DPDK function.
        step: &'static str,
        /// What it returned.
        reason: String,
        /// What DPDK logged about it.
        log: String,
    },
}

/// A port's counters, as its device keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets lost because nobody fetched them in time.
    pub rx_missed: u64,
    /// Packets received with an error.
    pub rx_errors: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Packets lost because the pool was empty.
    pub rx_no_buffer: u64,
}

/// An open port. Its queues are given out by [`DpdkPort::open`]; the device is stopped and closed with the last of both.
#[derive(Debug)]
pub struct DpdkPort {
    // In this order: rules are removed from an open port.
    pub(super) flows: Flows,
    pub(super) shared: Arc<PortInner>,
    pub(super) rss: Option<Rss>,
}

/// What a port and its queues share; dropping it ends the device.
#[derive(Debug)]
pub(super) struct PortInner {
    pub(super) port: u16,
    pub(super) id: PortId,
    pub(super) mac: MacAddr,
    pub(super) mtu: u16,
    pub(super) capabilities: Capabilities,
    pub(super) needs_prepare: bool,
    pub(super) descriptors: (u16, u16),
    pub(super) driver: String,
    pub(super) name: String,
    pub(super) bus: &'static str,
    pub(super) started: bool,
    /// Of a PCI device.
    pub(super) removal: Option<Removal>,
    /// Buffers that each rx queue took from its pool when it was set up.
    pub(super) taken: Vec<u32>,
    // In this order: rings are drained into pools, and the EAL goes last.
    pub(super) rings: Vec<Arc<Ring>>,
    pub(super) pools: Vec<Arc<PoolInner>>,
    pub(super) eal: Eal,
}

impl DpdkPort {
    /// Attaches, configures and starts a device with one queue pair for each of `pools`, which is the pool that the queue's
    /// received packets come from.
    ///
    /// # Errors
    /// [`PortError`], each saying what to do; the device is left detached.
    pub fn open(eal: &Eal, config: &PortConfig, pools: &[&MbufPool]) -> Result<(Self, Vec<DpdkQueue>), PortError> {
        port_setup::open(eal, config, pools)
    }

    /// Its index in the engine's configuration.
    pub fn id(&self) -> PortId {
        self.shared.id
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> MacAddr {
        self.shared.mac
    }

    /// The driver's name, such as `net_ixgbe`.
    pub fn driver(&self) -> &str {
        &self.shared.driver
    }

    /// What it does for its packets.
    pub fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }

    /// Receive and transmit descriptors of each queue, within the device's limits.
    pub fn descriptors(&self) -> (u16, u16) {
        self.shared.descriptors
    }

    /// How received TCP packets are spread over the queues; none with one queue or a device that does not say.
    pub fn rss(&self) -> Option<&Rss> {
        self.rss.as_ref()
    }

    /// Has the device receive packets at the queues that `rules` say: all of them or none, besides those it has. They are removed
    /// when this value is dropped.
    ///
    /// # Errors
    /// The device has no rules; it, or what is known of its driver, refuses one; or it would do less than one says.
    pub fn install(&mut self, rules: &[FlowRule]) -> Result<(), FlowError> {
        self.flows.install(rules)
    }

    /// Removes all rules.
    pub fn remove_rules(&mut self) {
        self.flows.remove();
    }

    /// Whether the link is up, now.
    pub fn is_link_up(&self) -> bool {
        let mut link = sys::rte_eth_link::default();
        // SAFETY: the port is open; `link` is written.
        let result = unsafe { sys::rte_eth_link_get_nowait(self.shared.port, &mut link) };
        result == 0 && link.link_status() == sys::RTE_ETH_LINK_UP as u16
    }

    /// Whether the kernel wants the device back while it is open, or has taken it away: a PCI card that is pulled out, or a
    /// hypervisor that unplugs it. Of a device of vfio-pci the kernel waits until it is closed. Not for the packet path.
    pub fn is_removed(&self) -> bool {
        self.shared.removal.as_ref().is_some_and(Removal::is_due)
    }

    /// Waits until the link is up, at most for `limit`; returns whether it is.
    pub fn wait_for_link(&self, limit: Duration) -> bool {
        let start = Instant::now();
        loop {
            if self.is_link_up() {
                return true;
            }
            if start.elapsed() >= limit {
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its counters since it was opened; zero where the device keeps none.
    pub fn stats(&self) -> PortStats {
        let mut stats = sys::rte_eth_stats::default();
        // SAFETY: the port is open; `stats` is written.
        unsafe { sys::rte_eth_stats_get(self.shared.port, &mut stats) };
        PortStats {
            rx_packets: stats.ipackets,
            tx_packets: stats.opackets,
            rx_bytes: stats.ibytes,
            tx_bytes: stats.obytes,
            rx_missed: stats.imissed,
            rx_errors: stats.ierrors,
            tx_errors: stats.oerrors,
            rx_no_buffer: stats.rx_nombuf,
        }
    }
}

impl PortInner {
    /// Has net_af_xdp fetch the buffers of packets that were sent, which it otherwise does with the next packet only.
    fn collect_sent(&self) {
        for _ in 0..10 {
            for queue in 0..self.pools.len() as u16 {
                // SAFETY: the port is started and with its last owner nobody uses its queues any more; no packet is passed.
                unsafe { sys::ethdev::tx_burst(self.port, queue, ptr::null_mut(), 0) };
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for PortInner {
    fn drop(&mut self) {
        let Self { port, started, bus, .. } = *self;
        let keeps_buffers = self.driver == "net_af_xdp";
        if started && keeps_buffers {
            self.collect_sent();
        }
        let _alone = port_setup::devices();
        // SAFETY: the port exists, and with its last owner nobody uses its queues any more.
        let (stopped, closed) = unsafe {
            let stopped = if started { sys::rte_eth_dev_stop(port) } else { 0 };
            (stopped, sys::rte_eth_dev_close(port))
        };
        if stopped < 0 || closed < 0 {
            log::warn!("{}: stopping returned {stopped}, closing {closed}", self.name);
        }
        if keeps_buffers {
            // The kernel has let go of its fill ring, whose buffers the driver does not give back. It takes a new one for
            // each that it hands over, so that it keeps what it took at the start.
            self.pools
                .iter()
                .zip(&self.taken)
                .for_each(|(pool, &taken)| pool.lose(taken));
        }
        let (Ok(bus), Ok(name)) = (CString::new(bus), c_string(&self.name)) else {
            return;
        };
        // SAFETY: NUL-terminated names; what the bus does not know it refuses.
        unsafe { sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr()) };
    }
}
