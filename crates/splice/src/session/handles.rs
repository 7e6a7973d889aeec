//! What a connection has of other rooms: numbers of their entries. None is zero, so that an `Option` of one costs no byte.

use std::num::NonZeroU32;

macro_rules! numbers {
    ($($(#[$doc:meta])* $id:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $id(NonZeroU32);

        impl $id {
            /// That of the entry with this number; no table has so many that the largest would be one.
            #[inline]
            pub(crate) const fn of(number: u32) -> Self {
                $id(NonZeroU32::MIN.saturating_add(number))
            }

            /// The number of the entry.
            #[inline]
            pub(crate) const fn number(self) -> u32 {
                self.0.get() - 1
            }
        }
    )*};
}

numbers! {
    /// A block of the [reassembly pool](crate::reassembly).
    BufferId
    /// An entry of the [retransmission queues](crate::retransmit::rtx).
    RtxId
}
