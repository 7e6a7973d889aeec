//! A cable between two ports of the same core.

use arrayvec::ArrayVec;

use crate::BURST;
use crate::buffer::{HeapBuffer, PacketBuffer};
use crate::port::{Capabilities, Port, PortId};
use crate::queue::{Queue, SharedQueue};
use crate::wire::MacAddr;

/// One end of a cable: what it transmits, the other end receives, in order and without loss.
///
/// The cable holds a bounded number of packets for each direction; what does not fit is refused to the transmitter, as a
/// full transmit ring of a NIC does. Buffers pass from one end to the other as they are: nothing is copied.
#[derive(Debug)]
pub struct LoopbackPort<B = HeapBuffer> {
    id: PortId,
    mac: MacAddr,
    mtu: u16,
    incoming: SharedQueue<B>,
    outgoing: SharedQueue<B>,
}

impl<B: PacketBuffer> LoopbackPort<B> {
    /// Both ends of a cable that holds `capacity` packets each way. The MTU is 1500 bytes.
    ///
    /// The Ethernet addresses are locally administered and end in the port's id: tell the ids apart.
    pub fn pair(first: PortId, second: PortId, capacity: usize) -> (Self, Self) {
        let (to_first, to_second) = (Queue::shared(capacity), Queue::shared(capacity));
        let end = |id: PortId, incoming: &SharedQueue<B>, outgoing: &SharedQueue<B>| Self {
            id,
            mac: MacAddr([0x02, 0, 0, 0, 0, id.0]),
            mtu: 1500,
            incoming: SharedQueue::clone(incoming),
            outgoing: SharedQueue::clone(outgoing),
        };
        (end(first, &to_first, &to_second), end(second, &to_second, &to_first))
    }

    /// The same end with another Ethernet address.
    pub fn with_mac(self, mac: MacAddr) -> Self {
        Self { mac, ..self }
    }

    /// The same end with another MTU. It is what [`Port::mtu`] says; longer packets pass.
    pub fn with_mtu(self, mtu: u16) -> Self {
        Self { mtu, ..self }
    }
}

impl<B: PacketBuffer> Port for LoopbackPort<B> {
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
        Capabilities::default()
    }

    fn receive(&mut self, into: &mut ArrayVec<B, BURST>) -> usize {
        let mut incoming = self.incoming.borrow_mut();
        let count = incoming.len().min(into.remaining_capacity());
        into.extend(incoming.drain(count));
        count
    }

    fn transmit(&mut self, from: &mut ArrayVec<B, BURST>) -> usize {
        let mut outgoing = self.outgoing.borrow_mut();
        let count = from.len().min(outgoing.room());
        for buffer in from.drain(..count) {
            // There is room for `count`, so nothing comes back.
            let _none = outgoing.push(buffer);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{BufferPool, HeapPool};

    fn burst(pool: &mut HeapPool, bytes: &[u8]) -> ArrayVec<HeapBuffer, BURST> {
        bytes
            .iter()
            .map(|byte| pool.take_copy(&[*byte]).expect("buffer"))
            .collect()
    }

    fn bytes(burst: &ArrayVec<HeapBuffer, BURST>) -> Vec<u8> {
        burst.iter().map(|buffer| buffer.data()[0]).collect()
    }

    #[test]
    fn frames_cross_in_order_and_both_ways() {
        let mut pool = HeapPool::new(8, 64);
        let (mut left, mut right) = LoopbackPort::pair(PortId(0), PortId(1), 4);
        assert_eq!(left.transmit(&mut burst(&mut pool, &[1, 2])), 2);
        assert_eq!(right.transmit(&mut burst(&mut pool, &[3])), 1);

        let (mut at_left, mut at_right) = (ArrayVec::new(), ArrayVec::new());
        assert_eq!((left.receive(&mut at_left), right.receive(&mut at_right)), (1, 2));
        assert_eq!((bytes(&at_left), bytes(&at_right)), (vec![3], vec![1, 2]));
        assert_eq!(left.receive(&mut at_left), 0);
    }

    #[test]
    fn full_cable_refuses_and_keeps_the_order() {
        let mut pool = HeapPool::new(8, 64);
        let (mut left, mut right) = LoopbackPort::pair(PortId(0), PortId(1), 3);
        let mut frames = burst(&mut pool, &[1, 2, 3, 4, 5]);
        assert_eq!(left.transmit(&mut frames), 3);
        assert_eq!(bytes(&frames), [4, 5]);
        assert_eq!(left.transmit(&mut frames), 0);

        let mut received = ArrayVec::new();
        assert_eq!(right.receive(&mut received), 3);
        assert_eq!(left.transmit(&mut frames), 2);
        assert_eq!(right.receive(&mut received), 2);
        assert_eq!(bytes(&received), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn receive_fills_only_the_room_left() {
        let mut pool = HeapPool::new(2 * BURST, 64);
        let (mut left, mut right) = LoopbackPort::pair(PortId(0), PortId(1), 2 * BURST);
        left.transmit(&mut burst(&mut pool, &[7; BURST]));
        let mut received = burst(&mut pool, &[0; BURST - 1]);
        assert_eq!(right.receive(&mut received), 1);
        assert_eq!(right.receive(&mut received), 0);
        assert_eq!(received.len(), BURST);
    }
}
