//! Connections whose legs are watched: which they are, and what passes. Those that are inspected are not: what an inspector
//! changes is the engine's own to send again.

use super::connecting::SpliceParams;
use crate::base::callbacks::SelectServer;
use crate::base::output::NextHops;
use crate::proxy::Rooms;
use crate::session::connection::{Connection, SplicedFlags};
use crate::session::segment::Segment;
use crate::session::table::Mark;
use e2d2::buffer::BufferPool;
use netfcts::Side;

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Watches the legs of a connection that was spliced, and of which nothing has passed, if it is one of the sample. Returns
    /// whether they are.
    #[inline]
    pub(super) fn watch(&mut self, slot: u32, connection: &mut Connection, splice_params: &SpliceParams) -> bool {
        self.legs.is_drawn(splice_params.client.iss) && self.begin_watch(slot, connection)
    }

    #[cold]
    fn begin_watch(&mut self, slot: u32, connection: &mut Connection) -> bool {
        let (Some(leg), Some(spliced)) = (connection.ends.leg, connection.spliced_mut()) else {
            return false;
        };
        let to = (leg.server, spliced.pool());
        if !self.legs.watch(slot, spliced, to, &self.tally) {
            return false;
        }
        spliced.flags.insert(SplicedFlags::WATCHED);
        let hashes = self.leg_hashes(&connection.ends);
        self.mark_legs(slot, hashes, Mark::Watched);
        true
    }

    /// What was held for the server of a watched connection has been sent, and a header before it.
    #[cold]
    pub(super) fn note_held(&mut self, slot: u32, connection: &Connection, splice_params: &SpliceParams) {
        let Some(spliced) = connection.spliced() else { return };
        let (now, first) = (self.now, splice_params.client.first_byte());
        let mut last = splice_params.start();
        let mut note = |numbers| self.legs.note_held(slot, numbers, now);
        if last != first {
            note((last, first));
            last = first;
        }
        for (start, run) in self.reassembly.runs(splice_params.client.held) {
            last = first + (start + run.len()) as u32;
            note((first + start as u32, last));
        }
        // A FIN behind them.
        if spliced.to_server.end.gt(last) {
            note((last, spliced.to_server.end));
        }
    }

    /// A segment of `from` is accepted on a watched connection.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_watched(&mut self, slot: u32, connection: &Connection, from: Side, segment: &Segment) {
        if let Some(spliced) = connection.spliced() {
            let ack = spliced.ack_for_peer(from, segment.ack);
            self.legs.note_passed(slot, (from, segment), ack, self.now, &self.tally);
        }
    }
}
