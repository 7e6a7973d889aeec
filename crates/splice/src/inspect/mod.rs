//! Inspected connections: what is remembered of them beside [`Connection`](crate::session::connection::Connection).
//!
//! An inspector sees each byte once and in order, so an inspected direction is more than a splice: it knows what comes
//! next ([`direction`]), and keeps what the inspector has put in the place of other bytes until their receiver has them
//! ([`kept`]). The sender is told of its bytes only when their replacement has arrived whole; so it goes on repeating
//! them, and each repetition is answered from what is kept, never by a second call.
//!
//! This file holds the table; `apply/inspecting.rs` shows bytes and `apply/inspect_send.rs` sends what is kept.

pub(crate) mod direction;
pub(crate) mod kept;

use crate::base::callbacks::{ConnectionInfo, MAX_FIRST_PAYLOAD};
use crate::session::slab::Slab;
use direction::{InspectedDirection, MAX_TRIES};
use kept::{KeptPool, LIMIT};
use netfcts::Side;

/// A connection that is not inspected.
const NONE: u32 = u32::MAX;

/// An inspected connection.
#[derive(Debug)]
pub(crate) struct Inspection {
    /// Between whom it is.
    pub info: ConnectionInfo,
    /// Client → server.
    pub to_server: InspectedDirection,
    /// Server → client.
    pub to_client: InspectedDirection,
}

impl Inspection {
    /// The direction that `side` sends in.
    pub(crate) fn sent_by(&self, side: Side) -> &InspectedDirection {
        match side {
            Side::Client => &self.to_server,
            Side::Server => &self.to_client,
        }
    }

    /// The direction that `side` sends in, to change it.
    pub(crate) fn sent_by_mut(&mut self, side: Side) -> &mut InspectedDirection {
        match side {
            Side::Client => &mut self.to_server,
            Side::Server => &mut self.to_client,
        }
    }

    /// True if nothing is left to do that an ordinary splice does not do.
    pub(crate) fn is_done(&self) -> bool {
        self.to_server.done_in_step() && self.to_client.done_in_step()
    }

    /// True if a receiver has left all repetitions unanswered, and the wait behind the last one is over.
    pub(crate) fn is_given_up(&self, now_ms: u32) -> bool {
        let has_waited = |direction: &InspectedDirection| {
            direction.kept.len() > 0 && direction.timer.is_due(now_ms) && direction.timer.has_tried(MAX_TRIES)
        };
        has_waited(&self.to_server) || has_waited(&self.to_client)
    }

    /// The earliest time at which something has to be repeated, in ms of the core's clock.
    pub(crate) fn deadline(&self) -> Option<u32> {
        let of = |direction: &InspectedDirection| (direction.kept.len() > 0).then_some(direction.timer.deadline());
        match (of(&self.to_server), of(&self.to_client)) {
            (Some(a), Some(b)) => Some(if (a.wrapping_sub(b) as i32) < 0 { a } else { b }),
            (one, other) => one.or(other),
        }
    }
}

/// All inspected connections of a core.
pub(crate) struct Inspections {
    by_slot: Box<[u32]>,
    entries: Slab<Inspection>,
    /// What replaces other bytes.
    pub kept: KeptPool,
    /// Room for one call's output, and for a segment made of kept bytes.
    pub scratch: Vec<u8>,
    /// Room for the first payload while it is shown.
    pub first: Vec<u8>,
}

impl Inspections {
    /// Room for `count` inspected connections among `slots`, and `blocks` of kept bytes; nothing at all for none.
    pub(crate) fn new(slots: usize, count: usize, blocks: usize) -> Self {
        let room = |size: usize| vec![0; if count == 0 { 0 } else { size }];
        Inspections {
            by_slot: vec![NONE; if count == 0 { 0 } else { slots }].into_boxed_slice(),
            entries: Slab::new(count),
            kept: KeptPool::new(blocks),
            scratch: room(LIMIT),
            first: room(MAX_FIRST_PAYLOAD),
        }
    }

    /// The inspection of the connection in `slot`.
    #[inline]
    pub(crate) fn index(&self, slot: u32) -> Option<u32> {
        self.by_slot.get(slot as usize).copied().filter(|&index| index != NONE)
    }

    pub(crate) fn of(&self, slot: u32) -> Option<&Inspection> {
        self.entries.get(self.index(slot)?)
    }

    pub(crate) fn of_mut(&mut self, slot: u32) -> Option<&mut Inspection> {
        let index = self.index(slot)?;
        self.entries.get_mut(index)
    }

    /// What an inspected connection's `side` sends.
    pub(crate) fn sent_by(&self, slot: u32, side: Side) -> Option<&InspectedDirection> {
        self.of(slot).map(|inspection| inspection.sent_by(side))
    }

    /// The same, to be changed.
    pub(crate) fn sent_by_mut(&mut self, slot: u32, side: Side) -> Option<&mut InspectedDirection> {
        self.of_mut(slot).map(|inspection| inspection.sent_by_mut(side))
    }

    /// Begins an inspection; `None` if every entry is taken.
    pub(crate) fn open(&mut self, slot: u32, inspection: Inspection) -> Option<u32> {
        let place = self.by_slot.get_mut(slot as usize)?;
        let index = self.entries.insert(inspection).ok()?;
        *place = index;
        Some(index)
    }

    /// Ends the inspection of the connection in `slot` and returns its index.
    pub(crate) fn close(&mut self, slot: u32) -> Option<u32> {
        let index = self.index(slot)?;
        self.by_slot[slot as usize] = NONE;
        if let Some(mut inspection) = self.entries.remove(index) {
            self.kept.release(&mut inspection.to_server.kept, usize::MAX);
            self.kept.release(&mut inspection.to_client.kept, usize::MAX);
        }
        Some(index)
    }

    /// Keeps `bytes` for the receiver of what `from` sends, in the place of the next `in_len` bytes; false without room.
    pub(crate) fn keep(&mut self, slot: u32, from: Side, in_len: u32, bytes: &[u8], now_ms: u32) -> bool {
        if in_len == 0 && bytes.is_empty() {
            return true;
        }
        let Some(index) = self.index(slot) else { return false };
        let Some(inspection) = self.entries.get_mut(index) else {
            return false;
        };
        let direction = inspection.sent_by_mut(from);
        let is_kept = direction.can_record() && self.kept.append(&mut direction.kept, bytes);
        if is_kept {
            direction.record(in_len, bytes.len() as u32, now_ms);
        }
        is_kept
    }

    /// Forgets the first `count` bytes kept for the receiver of what `from` sends.
    pub(crate) fn release(&mut self, slot: u32, from: Side, count: usize) {
        let Some(index) = self.index(slot) else { return };
        if let Some(inspection) = self.entries.get_mut(index) {
            self.kept.release(&mut inspection.sent_by_mut(from).kept, count);
        }
    }

    /// How many bytes can be kept for the receiver of what `from` sends.
    pub(crate) fn room(&self, slot: u32, from: Side) -> usize {
        self.of(slot)
            .map_or(0, |inspection| self.kept.room(&inspection.sent_by(from).kept))
    }

    /// The number of inspected connections.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The memory in bytes, empty entries included.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.by_slot)
            + self.entries.memory()
            + self.kept.memory()
            + self.scratch.capacity()
            + self.first.capacity()
    }
}
