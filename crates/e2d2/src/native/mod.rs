//! DPDK: packet memory and ports of the `dpdk` feature.
//!
//! ```text
//!   Eal::start ──► MbufPool::new (one per core) ──► DpdkPort::open (one per device) ──► DpdkQueue (one per core)
//!        └────────── register_thread (once on each packet thread)
//! ```
//!
//! * [`Eal`] is DPDK's environment, started once per process.
//! * [`Mbuf`] and [`MbufPool`] are the packet memory, with [`crate::buffer`]'s traits.
//! * [`Device`] names a PCI address or a virtual device; [`DpdkPort`] configures it and gives out [`DpdkQueue`]s, which are
//!   [`crate::port::Port`]s. NICs, kernel interfaces, memif, pcap files and rings all take this one path.
//! * [`ring_pair`] is two ports crossed inside the process.
//!
//! Pools, ports and queues each hold the EAL, so that it is cleaned up after the last of them, in whatever order they are
//! dropped. The only order that is asked for: packets go back (are dropped or sent) before their pool does. A pool that is
//! dropped with packets still out is left in place, counted and reported, never freed under them.

mod device;
mod drivers;
mod eal;
mod eal_args;
mod eal_log;
mod flow;
mod host;
mod mbuf;
mod offloads;
mod pool;
mod port;
mod port_rss;
mod port_setup;
mod queue;
mod removal;
mod ring;
mod spread;

pub use device::{Device, DeviceError};
pub use eal::{Eal, EalError, RegisteredThread};
pub use eal_args::{EalConfig, HugePages, Memory, PageChoice};
pub use mbuf::Mbuf;
pub use pool::{MbufPool, PoolDemand, PoolError, data_room};
pub use port::{DpdkPort, PortConfig, PortError, PortStats};
pub use queue::{DpdkQueue, QueueCounters};
pub use ring::ring_pair;
