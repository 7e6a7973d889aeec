//! A worker's end of the rings: a port like any other.

use std::fmt;

use arrayvec::ArrayVec;
use rtrb::{Consumer, Producer};

use crate::BURST;
use crate::buffer::PacketBuffer;
use crate::port::{Capabilities, Port, PortId};
use crate::wire::MacAddr;

/// One queue pair of a [`SoftwareNic`](super::SoftwareNic), owned by one core. It moves to that core's thread if its buffers do.
pub struct NicQueue<B> {
    index: u16,
    id: PortId,
    mac: MacAddr,
    mtu: u16,
    capabilities: Capabilities,
    rx: Consumer<B>,
    tx: Producer<B>,
}

impl<B: PacketBuffer> NicQueue<B> {
    pub(super) fn new(
        port: &impl Port<Buffer = B>,
        capabilities: Capabilities,
        index: u16,
        (rx, tx): (Consumer<B>, Producer<B>),
    ) -> Self {
        Self {
            index,
            id: port.id(),
            mac: port.mac(),
            mtu: port.mtu(),
            capabilities,
            rx,
            tx,
        }
    }
}

impl<B> NicQueue<B> {
    /// Packets that wait to be received.
    pub fn waiting(&self) -> usize {
        self.rx.slots()
    }

    /// Its place among the queues.
    pub fn index(&self) -> u16 {
        self.index
    }
}

impl<B: PacketBuffer> Port for NicQueue<B> {
    type Buffer = B;

    fn id(&self) -> PortId {
        self.id
    }

    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    #[inline]
    fn receive(&mut self, into: &mut ArrayVec<B, BURST>) -> usize {
        let count = self.rx.slots().min(into.remaining_capacity());
        // That many are there: only this end takes any.
        let Ok(packets) = self.rx.read_chunk(count) else {
            return 0;
        };
        into.extend(packets);
        count
    }

    #[inline]
    fn transmit(&mut self, from: &mut ArrayVec<B, BURST>) -> usize {
        let count = self.tx.slots().min(from.len());
        // There is room for that many: only this end adds any.
        let Ok(room) = self.tx.write_chunk_uninit(count) else {
            return 0;
        };
        room.fill_from_iter(from.drain(..count))
    }
}

impl<B> fmt::Debug for NicQueue<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NicQueue")
            .field("id", &self.id)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}
