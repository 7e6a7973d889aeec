//! What one round may do besides its packets: timers that fire or move, connections that end with the engine.
//!
//! A million timers can be due at once: all connections of a restart, an attack, a machine that stood still. A burst of
//! packets must not wait for them, and what they send must find room in the outbox, or peers never hear of their end. So
//! each round does a part, and the rest goes on in the next.

use crate::base::callbacks::MAX_FIRST_PAYLOAD;
use crate::base::output::Output;
use crate::base::sizes::{LEAST_MSS, MAX_HEADER};
use std::time::Duration;

/// Timers that a round moves at most. Each is one cache line from memory that nothing could ask for before, 100 ns on slow
/// machines: some 13 µs, a quarter of what a round may take (`rounds_over_50us` of `benches/siege/attack`).
pub const MOVED_PER_ROUND: usize = 128;

/// Timers that a round fires at most. Each may end a connection, which costs as much as some moves.
pub const FIRED_PER_ROUND: usize = MOVED_PER_ROUND / MOVES_PER_FIRED;

/// Moves that a timer counts for which fires: a connection that ends touches eight or nine lines.
const MOVES_PER_FIRED: usize = 8;

/// Part of it for a round that took a full burst of packets: timers then take as much of a core as packets do, so that its
/// queues do not overflow at half load.
const PART_WHEN_BUSY: usize = 4;

/// Frames that timers of one round emit at most: one that repeats all there is to repeat, and others that end both sides.
pub const TIMER_FRAMES_PER_ROUND: usize = 9 * e2d2::BURST;

/// Frames that one timer emits at most: a header and all held bytes again, in the smallest segments with timestamps, and
/// one kept segment each way. Ending both sides takes four.
pub(crate) const FRAMES_OF_TIMER: usize = (MAX_FIRST_PAYLOAD + MAX_HEADER) / (LEAST_MSS as usize - 12) + 2 + 2;

const _: () = assert!(FRAMES_OF_TIMER + 2 * FIRED_PER_ROUND <= TIMER_FRAMES_PER_ROUND);

/// Room in the outbox that held and unacknowledged bytes leave to everything else: two RSTs to either side for each packet of two
/// bursts, the port's and another core's.
pub const KEPT_FOR_CONTROL: usize = 4 * 2 * e2d2::BURST;

/// Slots that one round of the end looks into: many connections may have ended before.
pub(crate) const LOOKED_INTO_PER_ROUND: usize = 1024;

/// How long timers wait for a port that takes no frames. Longer than any queue takes to empty that is emptied at all.
pub(crate) const CONGESTED_FOR: Duration = Duration::from_millis(100);

/// What is left of a round's part.
pub(crate) struct RoundBudget {
    moves: usize,
    /// The outbox's room below which no timer fires.
    least_room: usize,
}

impl RoundBudget {
    /// For a round in which no timer may move.
    pub(crate) const NONE: RoundBudget = RoundBudget {
        moves: 0,
        least_room: 0,
    };

    /// For a round that took so much that timers have to wait, or not.
    pub(crate) fn new<B>(is_busy: bool, out: &impl Output<B>) -> RoundBudget {
        let part = if is_busy { PART_WHEN_BUSY } else { 1 };
        RoundBudget {
            moves: MOVED_PER_ROUND / part,
            least_room: out
                .room()
                .saturating_sub(TIMER_FRAMES_PER_ROUND - FRAMES_OF_TIMER)
                .max(FRAMES_OF_TIMER),
        }
    }

    /// What timers may still move.
    pub(crate) fn moves(&mut self) -> &mut usize {
        &mut self.moves
    }

    /// True if another timer may fire.
    pub(crate) fn affords_one<B>(&self, out: &impl Output<B>) -> bool {
        self.moves > 0 && out.room() >= self.least_room
    }

    /// A timer has fired; that it was taken out has been paid for.
    pub(crate) fn note_fired(&mut self) {
        self.moves = self.moves.saturating_sub(MOVES_PER_FIRED - 1);
    }
}

/// True while the outbox has room for another segment of held or unacknowledged bytes.
#[inline]
pub(crate) fn has_room_for_data<B>(out: &impl Output<B>) -> bool {
    out.room() > KEPT_FOR_CONTROL
}
