//! The IEEE 802.1Q tag: four bytes between the Ethernet addresses and the EtherType.

use super::ethernet::ethertype;
use crate::buffer::{NoRoom, PacketBuffer};

/// Bytes of a tag.
pub const TAG_LEN: usize = 4;

/// Where the tag begins in a frame.
const AT: usize = 12;

/// A customer tag (EtherType 0x8100).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct VlanTag {
    /// VLAN identifier, 0 to 4095; 0 tags the priority only, 4095 is reserved.
    pub id: u16,
    /// Priority code point, 0 to 7.
    pub priority: u8,
    /// May be dropped first.
    pub drop_eligible: bool,
}

impl VlanTag {
    /// A tag of priority 0; `id` beyond 4095 is cut to 12 bits.
    pub const fn new(id: u16) -> Self {
        Self {
            id: id & 0x0fff,
            priority: 0,
            drop_eligible: false,
        }
    }

    /// From the 16 bits of tag control information.
    pub const fn from_control(control: u16) -> Self {
        Self {
            id: control & 0x0fff,
            priority: (control >> 13) as u8,
            drop_eligible: control & 0x1000 != 0,
        }
    }

    /// The 16 bits of tag control information.
    pub const fn control(self) -> u16 {
        (self.priority as u16 & 7) << 13 | (self.drop_eligible as u16) << 12 | self.id & 0x0fff
    }

    /// The outermost tag of a frame, if it has one and a whole EtherType follows.
    #[inline]
    pub fn of(frame: &[u8]) -> Option<Self> {
        let header = frame.first_chunk::<{ AT + TAG_LEN + 2 }>()?;
        if u16::from_be_bytes([header[AT], header[AT + 1]]) != ethertype::VLAN {
            return None;
        }
        Some(Self::from_control(u16::from_be_bytes([header[AT + 2], header[AT + 3]])))
    }

    /// Takes the outermost tag out of a frame; nothing happens if it has none.
    ///
    /// The addresses move up by four bytes, all else stays where it is in memory.
    #[inline]
    pub fn strip(buffer: &mut impl PacketBuffer) -> Option<Self> {
        let tag = Self::of(buffer.data())?;
        buffer.data_mut().copy_within(..AT, TAG_LEN);
        buffer.trim_front(TAG_LEN);
        Some(tag)
    }

    /// Puts a tag into a frame, outside of any that it has.
    ///
    /// # Errors
    /// [`NoRoom`] if there are no four bytes of headroom or no Ethernet addresses; the frame is unchanged.
    #[inline]
    pub fn insert(self, buffer: &mut impl PacketBuffer) -> Result<(), NoRoom> {
        if buffer.len() < AT {
            return Err(NoRoom);
        }
        buffer.prepend(TAG_LEN)?;
        let data = buffer.data_mut();
        data.copy_within(TAG_LEN..TAG_LEN + AT, 0);
        data[AT..AT + 2].copy_from_slice(&ethertype::VLAN.to_be_bytes());
        data[AT + 2..AT + 4].copy_from_slice(&self.control().to_be_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{BufferPool, HeapPool};

    const UNTAGGED: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 8, 0, 0x45, 0];
    const TAG: VlanTag = VlanTag {
        id: 0xabc,
        priority: 5,
        drop_eligible: true,
    };

    #[test]
    fn inserted_tag_can_be_seen_and_stripped() {
        let mut buffer = HeapPool::new(1, 64).take_copy(&UNTAGGED).expect("fits");
        assert_eq!(VlanTag::of(buffer.data()), None);
        assert_eq!(TAG.insert(&mut buffer), Ok(()));
        assert_eq!(
            buffer.data()[..18],
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0, 0xba, 0xbc, 8, 0]
        );
        assert_eq!(VlanTag::of(buffer.data()), Some(TAG));
        assert_eq!(VlanTag::strip(&mut buffer), Some(TAG));
        assert_eq!(buffer.data(), UNTAGGED);
        assert_eq!(VlanTag::strip(&mut buffer), None);
        assert_eq!(buffer.data(), UNTAGGED);
    }

    #[test]
    fn tag_needs_an_ethertype_behind_it() {
        let tagged = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0, 0, 1, 8, 0];
        assert_eq!(VlanTag::of(&tagged), Some(VlanTag::new(1)));
        assert_eq!(VlanTag::of(&tagged[..17]), None);
    }

    #[test]
    fn insertion_fails_whole_where_there_is_no_room() {
        let mut pool = HeapPool::new(1, 64);
        let mut buffer = pool.take_copy(&UNTAGGED).expect("fits");
        buffer.prepend(125).expect("headroom of 128");
        let before = buffer.data().to_vec();
        assert_eq!(TAG.insert(&mut buffer), Err(NoRoom));
        assert_eq!(buffer.data(), before);
        drop(buffer);
        let mut short = pool.take_copy(&[0; 11]).expect("fits");
        assert_eq!(TAG.insert(&mut short), Err(NoRoom));
    }

    #[test]
    fn every_control_word_round_trips() {
        for control in 0..=u16::MAX {
            assert_eq!(VlanTag::from_control(control).control(), control);
        }
    }
}
