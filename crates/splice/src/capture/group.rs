//! A group: what comes of one frame, or of one timer, while it is dealt with.

use super::{Done, Facts, Wanted};
use crate::base::drop_reason::DropReason;
use e2d2::time::Instant;
use netfcts::Side;

/// What comes of one frame, or one timer.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    pub(super) packet: u64,
    pub(super) connection: u64,
    pub(super) at: Instant,
    /// The connection's place, once there is one.
    pub(super) slot: Option<u32>,
    /// Whose it is as long as there is no such place.
    pub(super) whose: Whose,
    /// The leg on which its frame came in.
    pub(super) received: Option<Side>,
    /// There was no room for it: its frames are counted, no more.
    pub(super) is_lost: bool,
    /// Something was said of it behind the frame that came in.
    pub(super) has_effect: bool,
    pub(super) dropped: Option<DropReason>,
    pub(super) is_unwanted: bool,
    pub(super) is_over: bool,
}

/// Whose frame, or timer, a group is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The connection's in this place.
    Open(u32),
    /// A resting connection's that was captured.
    Resting,
    /// A resting connection's that was not: nothing is said of it, unless the frame begins another.
    Uncaptured,
    /// Somebody's who has no connection.
    Stranger,
}

/// What a connection's turn has interrupted.
pub(crate) enum Interrupted {
    /// Nothing: the turn is part of the group.
    Nothing,
    /// The group of another connection, or of none.
    Group(Option<Group>),
}

impl Group {
    /// One that begins, without room if `said` is nothing; else with its number and that of its connection.
    #[inline]
    pub(super) fn begin(whose: Whose, at: Instant, said: Option<(u64, u64)>) -> Self {
        let (packet, connection) = said.unwrap_or_default();
        Self {
            packet,
            connection,
            at,
            slot: match whose {
                Whose::Open(slot) => Some(slot),
                Whose::Resting | Whose::Uncaptured | Whose::Stranger => None,
            },
            whose,
            received: None,
            is_lost: said.is_none(),
            has_effect: false,
            dropped: None,
            is_unwanted: false,
            is_over: false,
        }
    }

    /// Its end.
    pub(super) fn done(&self, facts: Option<Facts>, wanted: Wanted) -> Done {
        let is_nobodys = self.slot.is_none() && (!self.has_effect || self.whose == Whose::Uncaptured);
        Done {
            facts,
            dropped: self.dropped,
            wanted,
            is_over: self.is_over,
            is_elsewhere: is_nobodys,
        }
    }
}
