//! The core's ends of the rings to a capture's reader.

use super::{Entry, Frame, Lost};
use netfcts::ring::RecordSender;
use rtrb::Producer;
use std::sync::Arc;

/// With less room no group begins: steps and ends, frames, and their bytes. A connection has fewer frames held than these.
const ROOM: (usize, usize, usize) = (64, 256, 128 << 10);

/// The producers of the rings.
pub(super) struct Rings {
    pub(super) entries: Producer<Entry>,
    pub(super) frames: Producer<(u64, Frame)>,
    pub(super) bytes: Producer<u8>,
    pub(super) records: RecordSender,
    pub(super) lost: Arc<Lost>,
}

impl Rings {
    /// Whether there is room for a group, by what is known of the reader.
    #[inline]
    pub(super) fn have_room(&self) -> bool {
        let (entries, frames, bytes) = ROOM;
        self.entries.cached_slots() >= entries
            && self.frames.cached_slots() >= frames
            && self.bytes.cached_slots() >= bytes
    }

    /// Looks how far the reader has come.
    #[cold]
    pub(super) fn look(&self) {
        let _is_known_from_now_on = (self.entries.slots(), self.frames.slots(), self.bytes.slots());
    }
}
