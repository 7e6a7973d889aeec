//! Ports of different kinds behind one type.

use arrayvec::ArrayVec;

use crate::BURST;
use crate::port::{Capabilities, Port, PortId};
use crate::wire::MacAddr;

/// `Box<dyn Port<Buffer = B>>` is a port: a graph can send to a NIC, a VLAN and a file alike. This costs one indirect call
/// for each burst, none for each packet.
impl<P: Port + ?Sized> Port for Box<P> {
    type Buffer = P::Buffer;

    fn id(&self) -> PortId {
        (**self).id()
    }

    fn mac(&self) -> MacAddr {
        (**self).mac()
    }

    fn mtu(&self) -> u16 {
        (**self).mtu()
    }

    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    #[inline]
    fn receive(&mut self, into: &mut ArrayVec<P::Buffer, BURST>) -> usize {
        (**self).receive(into)
    }

    #[inline]
    fn transmit(&mut self, from: &mut ArrayVec<P::Buffer, BURST>) -> usize {
        (**self).transmit(from)
    }
}
