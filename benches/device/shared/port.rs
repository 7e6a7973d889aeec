//! The ports of the load: rings with an address.

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::native::{DpdkQueue, Mbuf};
use e2d2::port::{Capabilities, Port, PortId};
use e2d2::wire::MacAddr;

/// The Ethernet address of a port: a fixed number, so that proxy and load know each other's, also in two processes.
pub(super) fn mac_of(port: PortId) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, port.0])
}

/// A port with the address of its number, as rings have none.
pub(crate) struct LoadPort(DpdkQueue);

impl From<DpdkQueue> for LoadPort {
    fn from(queue: DpdkQueue) -> LoadPort {
        LoadPort(queue)
    }
}

impl Port for LoadPort {
    type Buffer = Mbuf;

    fn id(&self) -> PortId {
        self.0.id()
    }

    fn mac(&self) -> MacAddr {
        mac_of(self.0.id())
    }

    fn mtu(&self) -> u16 {
        self.0.mtu()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    #[inline]
    fn receive(&mut self, into: &mut ArrayVec<Self::Buffer, BURST>) -> usize {
        self.0.receive(into)
    }

    #[inline]
    fn transmit(&mut self, from: &mut ArrayVec<Self::Buffer, BURST>) -> usize {
        self.0.transmit(from)
    }
}
