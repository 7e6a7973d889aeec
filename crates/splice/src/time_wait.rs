//! Connections that are over: a cache line each, in the order of their end.
//!
//! Late segments of either side are still translated (a lost last ACK, a repeated FIN), and the server-side port rests. Bytes
//! are refused if inspection was under way when the connection ended early ([`Late`]).
//! All rest equally long, so a ring in order of closing needs no timer: the oldest is always at the head. After a reload that changed
//! `time_wait` an entry may rest as long as the one before it, until the older ones have gone.
//! When the ring is full the oldest goes early.

use crate::session::connection::{Spliced, SplicedFlags, WindowScale};
use crate::session::endpoints::Endpoints;
use e2d2::memory::LargeSlice;
use netfcts::Side;
use netfcts::seq::SeqNum;

/// What is left of a connection.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct TimeWaitEntry {
    /// Its end points.
    pub ends: Endpoints,
    /// See [`Spliced`].
    pub client_seq_offset: u32,
    /// See [`Spliced`].
    pub server_seq_offset: u32,
    /// See [`Spliced`].
    pub client_ts_offset: u32,
    /// See [`Spliced`].
    pub server_ts_offset: u32,
    /// The upper half of the number that follows what the client has sent: no more fits.
    client_end: u16,
    /// The end of the rest, in ms of the core's clock.
    pub until: u32,
    /// How windows are rescaled.
    pub scale: WindowScale,
    /// Which legs the flow table still leads here: another connection may have taken one over.
    pub legs: Legs,
    /// What of a late segment passes.
    pub late: Late,
}

const _: () = assert!(
    size_of::<Option<TimeWaitEntry>>() == 64,
    "what is left of a connection fits one cache line"
);

/// What of a late segment passes. One byte: the entry is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// All of it.
    Whole,
    /// All but its SACK blocks: the server declined SACK.
    WithoutSack,
    /// Neither SACK blocks nor payload. The connection was inspected until it ended before its receivers had acknowledged all:
    /// the inspector has not seen these bytes, or has changed them.
    HeaderOnly,
    /// Neither payload nor an RST of the server, nor SACK blocks: a SYN of the client for a new connection has been answered
    /// since. The numbers of that can be near the old ones, and no receiver tells them apart.
    Answered,
}

/// The legs of a resting connection that the flow table still knows. One byte: the entry is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Legs {
    /// None.
    Neither,
    /// The client's.
    Client,
    /// The server's.
    Server,
    /// Both.
    Both,
}

impl Legs {
    /// The flow table leads this side's leg here.
    pub fn has(self, side: Side) -> bool {
        match side {
            Side::Client => matches!(self, Legs::Client | Legs::Both),
            Side::Server => matches!(self, Legs::Server | Legs::Both),
        }
    }

    /// What is left when this side's leg belongs to another connection.
    pub fn without(self, side: Side) -> Legs {
        match (self.has(side.peer()), side) {
            (false, _) => Legs::Neither,
            (true, Side::Client) => Legs::Server,
            (true, Side::Server) => Legs::Client,
        }
    }
}

fn upper_half(seq: SeqNum) -> u16 {
    (seq.0 >> 16) as u16
}

impl TimeWaitEntry {
    /// A SYN of the client has been answered. What was inspected stays as it is: its payload goes nowhere, and who was cut off
    /// has been reset by us.
    pub fn note_answered(&mut self) {
        if self.late != Late::HeaderOnly {
            self.late = Late::Answered;
        }
    }

    /// True if a segment with this number may be one that the client has sent in this connection: nothing before the largest
    /// window is on its way any more, and nothing lies behind the end. Right to 64 KiB.
    pub fn may_have_sent(&self, seq: SeqNum) -> bool {
        let behind = self.client_end.wrapping_sub(upper_half(seq));
        u32::from(behind) <= (self.scale.largest_window_for(Side::Client) >> 16) + 1
    }

    /// What rests of a spliced connection until `until` (ms). `is_cut_off` says that inspection was under way when it ended early.
    pub fn of(ends: Endpoints, spliced: &Spliced, is_cut_off: bool, until: u32) -> Self {
        TimeWaitEntry {
            ends,
            client_seq_offset: spliced.client_seq_offset,
            server_seq_offset: spliced.server_seq_offset,
            client_ts_offset: spliced.client_ts_offset,
            server_ts_offset: spliced.server_ts_offset,
            client_end: upper_half(spliced.to_server.end),
            until,
            scale: spliced.scale,
            legs: Legs::Both,
            late: match spliced.flags.contains(SplicedFlags::BLANK_SACK) {
                _ if is_cut_off => Late::HeaderOnly,
                true => Late::WithoutSack,
                false => Late::Whole,
            },
        }
    }
}

/// How many of the oldest are made ready for their end: the table's lines of both legs have not been touched for the whole
/// rest.
const AHEAD: usize = 8;

/// The resting connections of one core.
pub struct TimeWaitRing {
    entries: LargeSlice<Option<TimeWaitEntry>>,
    head: usize,
    len: usize,
    /// The hashes of both legs of the oldest: a ring.
    ahead: [[u64; 2]; AHEAD],
    ahead_head: usize,
    ahead_len: usize,
    evicted: u64,
}

impl TimeWaitRing {
    /// Room for `capacity` connections, allocated now.
    pub fn new(capacity: usize) -> Self {
        TimeWaitRing {
            entries: LargeSlice::of(None, capacity.max(1)),
            head: 0,
            len: 0,
            ahead: [[0; 2]; AHEAD],
            ahead_head: 0,
            ahead_len: 0,
            evicted: 0,
        }
    }

    /// The slot that the next [`TimeWaitRing::push`] will use; `None` when the ring is full.
    pub fn next_slot(&self) -> Option<u32> {
        (self.len < self.entries.len()).then(|| self.wrap(self.head + self.len) as u32)
    }

    /// Adds the youngest. Gives it back if the ring is full.
    ///
    /// # Errors
    /// The entry itself, if there is no room.
    pub fn push(&mut self, rested: TimeWaitEntry) -> Result<u32, TimeWaitEntry> {
        let Some(slot) = self.next_slot() else {
            return Err(rested);
        };
        self.entries[slot as usize] = Some(rested);
        self.len += 1;
        Ok(slot)
    }

    /// The oldest, with its slot.
    pub fn oldest(&self) -> Option<(u32, &TimeWaitEntry)> {
        if self.len == 0 {
            return None;
        }
        self.entries[self.head]
            .as_ref()
            .map(|rested| (self.head as u32, rested))
    }

    /// Takes the oldest out.
    pub fn pop(&mut self) -> Option<TimeWaitEntry> {
        if self.len == 0 {
            return None;
        }
        let rested = self.entries[self.head].take();
        self.head = self.wrap(self.head + 1);
        self.len -= 1;
        if self.ahead_len > 0 {
            self.ahead_head = (self.ahead_head + 1) % AHEAD;
            self.ahead_len -= 1;
        }
        rested
    }

    /// The oldest has to make room for a younger one.
    pub fn note_evicted(&mut self) {
        self.evicted += 1;
    }

    /// How many had to since the start: a sign that `capacity` is too small for `time_wait`.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The hashes that were noted of the oldest.
    #[inline]
    pub fn ahead(&self) -> Option<[u64; 2]> {
        (self.ahead_len > 0).then(|| self.ahead[self.ahead_head])
    }

    /// The next to be made ready for its end, unless enough are.
    #[inline]
    pub fn next_ahead(&self) -> Option<&TimeWaitEntry> {
        if self.ahead_len == AHEAD || self.ahead_len == self.len {
            return None;
        }
        self.entries[self.wrap(self.head + self.ahead_len)].as_ref()
    }

    /// Notes the hashes of both legs of [`TimeWaitRing::next_ahead`].
    pub fn note_ahead(&mut self, hashes: [u64; 2]) {
        if self.ahead_len < AHEAD {
            // The one that will be read after as many more.
            let later = self.wrap(self.head + self.ahead_len);
            e2d2::prefetch(&self.entries[self.wrap(later + AHEAD.min(self.entries.len()))]);
            self.ahead[(self.ahead_head + self.ahead_len) % AHEAD] = hashes;
            self.ahead_len += 1;
        }
    }

    /// A place of the ring, from one that may be a round too far.
    fn wrap(&self, place: usize) -> usize {
        if place < self.entries.len() {
            place
        } else {
            place - self.entries.len()
        }
    }

    /// The entry in `slot`.
    #[inline]
    pub fn entry(&self, slot: u32) -> Option<&TimeWaitEntry> {
        self.entries.get(slot as usize)?.as_ref()
    }

    /// The entry in `slot`, to change it.
    pub fn entry_mut(&mut self, slot: u32) -> Option<&mut TimeWaitEntry> {
        self.entries.get_mut(slot as usize)?.as_mut()
    }

    /// The number of places.
    pub(crate) fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// The number of resting connections.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when none rests.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory of the ring in bytes.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.entries)
    }
}
