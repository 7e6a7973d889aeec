//! What a connection has of other rooms: numbers of their entries.

/// A block of the [reassembly pool](crate::reassembly); [`BufferId::NONE`] stands for no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(pub(crate) u32);

impl BufferId {
    /// No block.
    pub const NONE: BufferId = BufferId(u32::MAX);

    /// No block, since what it had was given up.
    pub const GIVEN_UP: BufferId = BufferId(u32::MAX - 1);

    /// True if there is no block.
    pub const fn is_none(self) -> bool {
        self.0 >= Self::GIVEN_UP.0
    }
}
