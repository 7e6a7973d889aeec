//! The trait of everything that receives and transmits packets.
//!
//! A [`Port`] is one receive and one transmit queue of a device, owned by one core. The implementations live elsewhere:
//! DPDK's, and those that need no device.

use arrayvec::ArrayVec;

use crate::BURST;
use crate::buffer::PacketBuffer;
use crate::wire::MacAddr;

/// Index of a port in the engine's configuration; all queues of a device share it.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug, PartialOrd, Ord, Default)]
pub struct PortId(pub u8);

/// What a port does for its packets so that software need not.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, Hash)]
pub struct Capabilities {
    /// Verifies IPv4 and TCP checksums and says so in [`crate::buffer::RxInfo`].
    pub rx_checksum: bool,
    /// Fills in what [`crate::buffer::PacketBuffer::set_tx_offload`] asks for.
    pub tx_checksum: bool,
    /// Tells the RSS hash of received packets.
    pub rss_hash: bool,
}

/// One receive and transmit queue pair of a device, owned by one core.
pub trait Port {
    /// The packet memory that comes in and goes out here.
    type Buffer: PacketBuffer;

    /// Which port of the configuration this is.
    fn id(&self) -> PortId;

    /// Its Ethernet address.
    fn mac(&self) -> MacAddr;

    /// The largest IP packet it carries, in bytes, without the Ethernet header.
    fn mtu(&self) -> u16;

    /// What it does for its packets.
    fn capabilities(&self) -> Capabilities;

    /// Appends received packets, at most as many as `into` still has room for; returns how many.
    fn receive(&mut self, into: &mut ArrayVec<Self::Buffer, BURST>) -> usize;

    /// Sends packets from the front; returns how many were taken. Refused ones stay in `from`, in order.
    fn transmit(&mut self, from: &mut ArrayVec<Self::Buffer, BURST>) -> usize;
}
