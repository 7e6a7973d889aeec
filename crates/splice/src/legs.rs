//! What only a splicer sees: the round-trip times of both legs, and what was lost on which, of one connection in so many.
//!
//! ```text
//!  client ──── its leg ──── splicer ──── its leg ──── server
//!    │  data of the client  ─────►│                      │     below the highest number, and
//!    │  out of order: lost here   │  retransmitted: lost here   has not passed yet, or has
//!    │  round trip: server data passes, the client's ACK of it comes back; likewise on the other leg
//! ```
//!
//! Which connections are watched is decided by our initial sequence number, when they are spliced: it is a cookie, or a server's
//! choice, so no client can choose it. A bit of the connection says so, and a [mark](crate::session::table::Mark) of its flows, by which the
//! entry is asked for before the segment has its turn. Entries stand in a table of fixed size, found by the connection's place. What is
//! seen is counted in the [tally](crate::tally) as it happens, and is the connection's own until it ends.
//!
//! Budget: a connection that is not watched costs a product, a comparison, and a test of two bits per segment. An entry has three
//! cache lines, and there are twice as many as are to be expected: seven bytes per connection for one in 64.

mod passed;

use crate::base::ids::{PoolId, ServerId};
use crate::session::connection::Spliced;
use crate::session::segment::Segment;
use crate::tally::{LegTally, LegsTally, Tally};
use e2d2::memory::LargeSlice;
use e2d2::time::Instant;
use e2d2::wire::tcp::TcpFlags;
use netfcts::Side;
use netfcts::legs::Legs;
use netfcts::seq::SeqNum;
use passed::Passed;
use std::num::NonZeroU32;

/// Places that an entry may stand in: a cache line of connections' places.
const WAYS: usize = 16;

/// Entries for each that is to be expected: so nearly none finds its places taken.
const ROOM: usize = 2;

/// No connection's place.
const NOBODY: u32 = u32::MAX;

/// The connections that are watched.
pub(crate) struct WatchedLegs {
    /// The largest [`mixed`] number of those in the sample; `None`: nobody is.
    sample: Option<(u32, NonZeroU32)>,
    /// Whose the entries are, by the lower bits of the connection's place.
    owners: LargeSlice<[u32; WAYS]>,
    entries: LargeSlice<Entry>,
    used: usize,
}

/// A watched connection.
#[derive(Clone, Debug)]
struct Entry {
    to_server: Passed,
    to_client: Passed,
    figures: Legs,
    pool: Option<PoolId>,
    server: u16,
}

const _: () = assert!(size_of::<Entry>() <= 192, "three cache lines");

impl WatchedLegs {
    /// Room for one in `one_in` of so many connections; for none if that is zero.
    pub(crate) fn new(one_in: u32, connections: usize) -> Self {
        let some = NonZeroU32::new(one_in);
        let rows = some.map_or(0, |one_in| {
            let expected = connections.div_ceil(one_in.get() as usize);
            // A power of two, so that a place is found by a mask.
            (expected * ROOM).div_ceil(WAYS).next_power_of_two()
        });
        let figures = Legs::new(some.unwrap_or(NonZeroU32::MIN));
        let nobodys = Entry {
            to_server: Passed::new(SeqNum(0)),
            to_client: Passed::new(SeqNum(0)),
            figures,
            pool: None,
            server: 0,
        };
        let mut legs = WatchedLegs {
            sample: None,
            owners: LargeSlice::of([NOBODY; WAYS], rows),
            entries: LargeSlice::of(nobodys, rows * WAYS),
            used: 0,
        };
        legs.draw_one_in(one_in);
        legs
    }

    /// Draws one in `one_in` from now on, as far as there is room: that stays as it was made.
    pub(crate) fn draw_one_in(&mut self, one_in: u32) {
        self.sample = NonZeroU32::new(one_in).map(|one_in| (u32::MAX / one_in, one_in));
    }

    /// Asks the processor for the places that the connection in `slot` may have.
    #[inline]
    pub(crate) fn prefetch_places(&self, slot: u32) {
        if let Some(owners) = self.owners.get(self.row_of(slot)) {
            e2d2::prefetch(owners);
        }
    }

    /// When they have come, for its entry.
    #[cold]
    pub(crate) fn prefetch_entry(&self, slot: u32) {
        if let Some(entry) = self.place_of(slot, slot).and_then(|place| self.entries.get(place)) {
            e2d2::prefetch_lines(entry);
        }
    }

    /// Whether a connection with this initial sequence number of ours is one of the sample.
    #[inline]
    pub(crate) fn is_drawn(&self, iss: SeqNum) -> bool {
        self.sample.is_some_and(|(most, _)| mixed(iss) <= most)
    }

    /// Watches the connection in `slot`, which is about to be spliced, to a server of this pool. Returns false if there is no
    /// room: it is not watched then.
    #[cold]
    pub(crate) fn watch(
        &mut self,
        slot: u32,
        spliced: &Spliced,
        (server, pool): (ServerId, Option<PoolId>),
        tally: &Tally,
    ) -> bool {
        let (Some((_, one_in)), Some(place)) = (self.sample, self.place_of(NOBODY, slot)) else {
            return false;
        };
        let Some(entry) = self.entries.get_mut(place) else {
            return false;
        };
        *entry = Entry {
            to_server: Passed::new(spliced.to_server.end),
            to_client: Passed::new(spliced.to_client.end),
            figures: Legs::new(one_in),
            pool,
            server: server.0,
        };
        let counted = tally.legs(entry.pool, entry.server);
        counted.into_iter().flatten().for_each(LegsTally::note_begin);
        self.owners[place / WAYS][place % WAYS] = slot;
        self.used += 1;
        true
    }

    /// Bytes of the client that were held, from the first number to before the second, go to the server at `now`.
    #[cold]
    pub(crate) fn note_held(&mut self, slot: u32, numbers: (SeqNum, SeqNum), now: Instant) {
        if let Some(entry) = self.entry_mut(slot) {
            entry.to_server.note_sent(numbers, now);
        }
    }

    /// A segment of `from` passes, whose ACK is `ack` in its peer's numbers.
    #[cold]
    pub(crate) fn note_passed(
        &mut self,
        slot: u32,
        (from, segment): (Side, &Segment),
        ack: SeqNum,
        now: Instant,
        tally: &Tally,
    ) {
        if segment.flags.intersects(TcpFlags::SYN | TcpFlags::RST) {
            return;
        }
        let Some(entry) = self.entry_mut(slot) else { return };
        let (own, peer) = match from {
            Side::Client => (&mut entry.to_server, &mut entry.to_client),
            Side::Server => (&mut entry.to_client, &mut entry.to_server),
        };
        let has_bytes = segment.len() > 0;
        let sent = has_bytes
            .then(|| own.note_sent((segment.seq, segment.end()), now))
            .flatten();
        let rtt = peer.note_acknowledged(ack, now);
        let has_closed = own.note_window(segment.window);
        let figures = entry.figures.of_mut(from);
        let counted = tally.legs(entry.pool, entry.server);
        let each = |note: &dyn Fn(&LegTally)| counted.iter().flatten().for_each(|legs| note(legs.of(from)));
        if let Some(sent) = sent {
            figures.count(sent);
            each(&|leg| leg.note_sent(sent));
        }
        if let Some(rtt) = rtt {
            figures.measure(rtt);
            each(&|leg| leg.note_rtt(rtt));
        }
        if has_closed {
            figures.count_zero_window();
            each(&LegTally::note_zero_window);
        }
    }

    /// What was seen of the legs of the connection in `slot`, if it is watched.
    pub(crate) fn figures(&self, slot: u32) -> Option<&Legs> {
        Some(&self.entries.get(self.place_of(slot, slot)?)?.figures)
    }

    /// The connection in `slot` is over. Returns what was seen of its legs, if it was watched.
    #[cold]
    pub(crate) fn end(&mut self, slot: u32) -> Option<Legs> {
        let place = self.place_of(slot, slot)?;
        self.owners[place / WAYS][place % WAYS] = NOBODY;
        self.used -= 1;
        Some(self.entries.get(place)?.figures)
    }

    /// Connections that are watched now.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Connections that there is room for.
    pub(crate) fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// All of it, in bytes.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.owners) + size_of_val(&*self.entries)
    }

    /// Where `owner` stands among the places that the connection in `slot` may have.
    fn place_of(&self, owner: u32, slot: u32) -> Option<usize> {
        let row = self.row_of(slot);
        let way = self.owners.get(row)?.iter().position(|of| *of == owner)?;
        Some(row * WAYS + way)
    }

    fn row_of(&self, slot: u32) -> usize {
        slot as usize & self.owners.len().wrapping_sub(1)
    }

    fn entry_mut(&mut self, slot: u32) -> Option<&mut Entry> {
        let place = self.place_of(slot, slot)?;
        self.entries.get_mut(place)
    }
}

/// A number whose upper bits depend on all bits of this one: a cookie's first ones are the time (multiplicative hashing, by the
/// golden ratio).
fn mixed(iss: SeqNum) -> u32 {
    iss.0.wrapping_mul(0x9e37_79b9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_its_share_and_none_of_nothing() {
        let drawn = |one_in| {
            let legs = WatchedLegs::new(one_in, 1_000);
            (0..100_000).filter(|iss| legs.is_drawn(SeqNum(*iss))).count()
        };
        assert_eq!((drawn(0), drawn(1)), (0, 100_000));
        assert!((1_400..=1_700).contains(&drawn(64)), "{}", drawn(64));
        let of = |one_in, connections| WatchedLegs::new(one_in, connections).capacity();
        assert_eq!(
            [of(0, 1_000), of(64, 1), of(64, 1 << 20), of(1, 1_000)],
            [0, 16, 1 << 15, 2_048]
        );
    }
}
