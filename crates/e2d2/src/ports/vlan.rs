//! One VLAN of a port.

use std::rc::Rc;

use arrayvec::ArrayVec;

use crate::BURST;
use crate::fate::{DropReason, GraphCounters};
use crate::port::{Capabilities, Port, PortId};
use crate::wire::MacAddr;
use crate::wire::vlan::VlanTag;

/// A VLAN identifier that names a VLAN: 1 to 4094.
///
/// Source: IEEE 802.1Q-2018 table 9-2: 0 tags a priority only, 4095 is reserved.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VlanId(u16);

/// The number names no VLAN.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} is no VLAN identifier: expected 1 to 4094")]
pub struct NoVlanId(pub u16);

impl TryFrom<u16> for VlanId {
    type Error = NoVlanId;

    fn try_from(id: u16) -> Result<Self, NoVlanId> {
        match id {
            1..=4094 => Ok(Self(id)),
            _ => Err(NoVlanId(id)),
        }
    }
}

/// A port of which only one VLAN is used: what is behind it sees frames without a tag.
///
/// Received frames lose the tag; those without a tag or with another VLAN's are dropped and counted as
/// [`DropReason::VlanMismatch`]. Transmitted frames get the tag, with priority 0. An inner tag (802.1ad, QinQ) stays.
pub struct VlanPort<P> {
    port: P,
    id: VlanId,
    counters: Rc<GraphCounters>,
}

impl<P: Port> VlanPort<P> {
    /// The VLAN `id` of `port`; what is dropped is counted in `counters`.
    pub fn new(port: P, id: VlanId, counters: Rc<GraphCounters>) -> Self {
        Self { port, id, counters }
    }

    /// The port whose VLAN this is.
    pub fn port(&self) -> &P {
        &self.port
    }
}

impl<P: Port> Port for VlanPort<P> {
    type Buffer = P::Buffer;

    fn id(&self) -> PortId {
        self.port.id()
    }

    fn mac(&self) -> MacAddr {
        self.port.mac()
    }

    /// The MTU of the port: the tag belongs to the link layer, and ports carry it beyond their MTU (802.3ac).
    fn mtu(&self) -> u16 {
        self.port.mtu()
    }

    /// Those of the port, but it fills in no checksums: the offsets that a packet asks with would be wrong by the tag.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_checksum: false,
            ..self.port.capabilities()
        }
    }

    fn receive(&mut self, into: &mut ArrayVec<P::Buffer, BURST>) -> usize {
        let before = into.len();
        self.port.receive(into);
        let mut index = 0;
        into.retain(|buffer| {
            index += 1;
            if index <= before {
                return true;
            }
            let is_ours = VlanTag::strip(buffer).is_some_and(|tag| tag.id == self.id.0);
            if !is_ours {
                self.counters.count_refused(DropReason::VlanMismatch);
            }
            is_ours
        });
        into.len() - before
    }

    fn transmit(&mut self, from: &mut ArrayVec<P::Buffer, BURST>) -> usize {
        let tag = VlanTag::new(self.id.0);
        from.retain(|buffer| {
            let has_tag = tag.insert(buffer).is_ok();
            if !has_tag {
                self.counters.drops.add(DropReason::NoHeadroom, 1);
            }
            has_tag
        });
        let sent = self.port.transmit(from);
        // Refused ones come again: they must be as they were.
        for buffer in from {
            VlanTag::strip(buffer);
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
    use crate::fate::{GraphReader, Traffic};
    use crate::ports::LoopbackPort;

    /// A VLAN 7 on one end of a cable, and the bare other end.
    fn vlan_cable(capacity: usize) -> (VlanPort<LoopbackPort>, LoopbackPort, GraphReader) {
        let (near, far) = LoopbackPort::pair(PortId(0), PortId(1), capacity);
        let (counters, reader) = GraphCounters::new();
        let id = VlanId::try_from(7).expect("a VLAN");
        (VlanPort::new(near, id, counters), far, reader)
    }

    fn frame(pool: &mut HeapPool, byte: u8) -> HeapBuffer {
        let mut bytes = [byte; 60];
        bytes[12..14].copy_from_slice(&[0x08, 0x00]);
        pool.take_copy(&bytes).expect("buffer")
    }

    fn tagged(pool: &mut HeapPool, byte: u8, tag: VlanTag) -> HeapBuffer {
        let mut buffer = frame(pool, byte);
        tag.insert(&mut buffer).expect("headroom");
        buffer
    }

    #[test]
    fn only_numbers_of_vlans_are_accepted() {
        for (id, is_good) in [(0, false), (1, true), (4094, true), (4095, false), (u16::MAX, false)] {
            assert_eq!(VlanId::try_from(id).is_ok(), is_good, "{id}");
        }
    }

    #[test]
    fn own_frames_lose_the_tag_and_others_are_counted() {
        let mut pool = HeapPool::new(8, 128);
        let (mut vlan, mut far, reader) = vlan_cable(8);
        let with_priority = VlanTag {
            priority: 5,
            ..VlanTag::new(7)
        };
        let mut burst: ArrayVec<_, BURST> = ArrayVec::new();
        burst.push(tagged(&mut pool, 1, VlanTag::new(7)));
        burst.push(frame(&mut pool, 2));
        burst.push(tagged(&mut pool, 3, VlanTag::new(8)));
        burst.push(tagged(&mut pool, 4, VlanTag::new(0)));
        burst.push(tagged(&mut pool, 5, with_priority));
        far.transmit(&mut burst);

        let mut received = ArrayVec::new();
        received.push(frame(&mut pool, 9));
        assert_eq!(vlan.receive(&mut received), 2);
        let expected = [9, 1, 5].map(|byte| frame(&mut pool, byte).data().to_vec());
        assert_eq!(
            received.iter().map(|buffer| buffer.data().to_vec()).collect::<Vec<_>>(),
            expected
        );
        assert_eq!(reader.drops.snapshot()[DropReason::VlanMismatch], 3);
        assert_eq!(
            reader.traffic.snapshot()[Traffic::Received],
            3,
            "dropped ones count as received"
        );
        assert_eq!(reader.held(), 0);
    }

    #[test]
    fn transmitted_frames_get_the_tag_and_refused_ones_stay_untagged() {
        let mut pool = HeapPool::new(8, 128);
        let (mut vlan, mut far, reader) = vlan_cable(1);
        let mut burst: ArrayVec<_, BURST> = [1, 2].map(|byte| frame(&mut pool, byte)).into_iter().collect();
        assert_eq!(vlan.transmit(&mut burst), 1);
        assert_eq!(burst[0].data(), frame(&mut pool, 2).data());
        for byte in [1, 2] {
            let mut received = ArrayVec::new();
            assert_eq!(far.receive(&mut received), 1);
            assert_eq!(received[0].data(), tagged(&mut pool, byte, VlanTag::new(7)).data());
            vlan.transmit(&mut burst);
        }
        assert_eq!(reader.drops.snapshot().total(), 0);
    }

    #[test]
    fn frame_without_headroom_is_dropped_and_counted() {
        let mut pool = HeapPool::new(8, 128);
        let (mut vlan, mut far, reader) = vlan_cable(8);
        let mut tight = frame(&mut pool, 1);
        let headroom = tight.headroom();
        tight.prepend(headroom - 3).expect("headroom");
        let mut burst: ArrayVec<_, BURST> = [tight, frame(&mut pool, 2)].into_iter().collect();
        assert_eq!(vlan.transmit(&mut burst), 1);
        assert!(burst.is_empty());
        let mut received = ArrayVec::new();
        assert_eq!(far.receive(&mut received), 1);
        assert_eq!(reader.drops.snapshot()[DropReason::NoHeadroom], 1);
    }
}
