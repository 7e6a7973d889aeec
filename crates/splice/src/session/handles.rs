//! What a connection has of other rooms: numbers of their entries. None is zero, so that an `Option` of one costs no byte.

use std::num::NonZeroU32;

/// A block of the [reassembly pool](crate::reassembly).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(NonZeroU32);

/// An entry of the [retransmission queues](crate::retransmit::rtx).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtxId(NonZeroU32);

macro_rules! numbered {
    ($id:ident) => {
        impl $id {
            /// That of the entry with this number; nothing for the largest, which no table has.
            #[inline]
            pub(crate) const fn of(number: u32) -> Option<Self> {
                match NonZeroU32::new(number.wrapping_add(1)) {
                    Some(number) => Some($id(number)),
                    None => None,
                }
            }

            /// The number of the entry.
            #[inline]
            pub(crate) const fn number(self) -> u32 {
                self.0.get() - 1
            }
        }
    };
}

numbered!(BufferId);
numbered!(RtxId);
