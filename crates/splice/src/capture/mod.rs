//! What a core copies of chosen connections, for a file that says what was decided about each frame.
//!
//! ```text
//!  Proxy ─► Tap ── entries, bytes of frames, records ──► CaptureReader ─► whoever writes a file
//! ```
//!
//! All that one frame from outside causes, or one timer, is a group: its frames and [`Entry`]s have the same packet number. The frame
//! comes first, then steps of the state machine and frames that go out, and [`Done`] at the end. A core formats nothing, allocates
//! nothing and waits for nobody: a group that finds no room in the rings is lost whole, and its frames are counted. While there is none,
//! whole batches are.
//!
//! Without a tap a core pays for a test of a mark in the flow table per frame that comes in, a test and a count per frame that goes out, a
//! test per frame that is dropped, and one per event that is no plain segment. With one, a connection that is not chosen costs a look at two
//! bitmaps more, and a batch that is lost is counted as a whole. A frame that passes and is captured writes twice its headers, two places
//! of 24 bytes and an entry (`bench capture`).

mod bits;
mod choice;
mod group;
mod rings;
mod sieve;
mod tap;

pub use choice::{Choice, Extent};
pub(crate) use group::{Interrupted, Whose};
pub(crate) use sieve::Sieve;
pub use tap::Tap;

use crate::base::drop_reason::DropReason;
use crate::base::ids::{RuleId, ServerId};
use crate::session::action::Action;
use crate::session::event::Event;
use crate::session::phase::Phase;
use e2d2::port::PortId;
use e2d2::time::Instant;
use netfcts::record::SessionRecord;
use netfcts::ring::{RecordReceiver, record_ring};
use netfcts::{Cause, Side};
use rtrb::{Consumer, RingBuffer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries that wait for the reader, some 90 bytes each.
pub const ENTRIES: usize = 8192;

/// Frames that wait for the reader, 24 bytes each.
const FRAMES: usize = 2 * ENTRIES;

/// Bytes of frames that wait for the reader.
const BYTES: usize = 1 << 20;

/// Records that wait for the reader: it takes them when it has taken the entries of a turn, half as many as there is room
/// for, and each comes with two entries, a step and the end of its group.
const RECORDS: usize = ENTRIES;

/// How a frame came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// It came in, on the leg to this side.
    Received(Side),
    /// The frame that came in, as it goes out, or a piece of it.
    Passed,
    /// Bytes, or the end, of a client that came before and were held until its server was there.
    Held,
    /// A frame of our own making: a SYN-ACK, an ACK, a RST, what is sent again.
    Own,
}

/// A frame. Its bytes are the next in the ring of bytes, and the first entry behind it says that it is there.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// How it came to be.
    pub kind: FrameKind,
    /// The port.
    pub port: PortId,
    /// Bytes of the whole frame.
    pub length: u16,
    /// Bytes of it that were copied.
    pub captured: u16,
}

/// What one event did to a connection.
#[derive(Clone, Copy, Debug)]
pub struct Stepped {
    /// The phase before.
    pub before: Phase,
    /// What happened.
    pub event: Event,
    /// The phase after.
    pub after: Phase,
    /// What was done about it, in order.
    pub actions: &'static [Action],
    /// Why no server has answered so far, of a connection that calls one.
    pub failure: Option<Cause>,
}

/// What a core knows of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Its phase.
    pub phase: Phase,
    /// Its client's address, IPv4 in its mapped form.
    pub client: [u8; 16],
    /// Its client's port.
    pub client_port: u16,
    /// Its listener; resting connections have forgotten it.
    pub listener: Option<u16>,
    /// The server that is called, or was.
    pub server: Option<ServerId>,
    /// The rule that has chosen the server.
    pub rule: Option<RuleId>,
    /// Once spliced: what is added to SEQ of client and server, and to TSval of client and server.
    pub offsets: Option<[u32; 4]>,
}

/// Whether a connection is one of those that the capture is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It is.
    Yes,
    /// Its server or rule is not known yet.
    Unknown,
    /// It is not: what was captured of it is to be forgotten.
    No,
}

/// The end of a group.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// What was known of the connection then; nothing if there is none, or none any more.
    pub facts: Option<Facts>,
    /// Why the frame, or something that was to come of it, was dropped last.
    pub dropped: Option<DropReason>,
    /// Whether the connection is wanted.
    pub wanted: Wanted,
    /// The connection is over. Its record, if records are kept, is in the ring of records already.
    pub is_over: bool,
    /// The frame is of no captured connection of this core: another core has it, or the kernel, or the one that rests was not captured.
    pub is_elsewhere: bool,
}

/// One thing that a core says.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The number of its group, from 1; of this core.
    pub packet: u64,
    /// The connection: the hash of its client's addresses and ports, from the SYN on.
    pub connection: u64,
    /// When, by the core's clock.
    pub at: Instant,
    /// Frames of any group between the entry before and this one.
    frames: u16,
    /// What.
    pub what: What,
}

/// What an entry says.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// A step of the state machine.
    Step(Stepped),
    /// The group is over.
    Done(Done),
}

const _: () = assert!(size_of::<Entry>() <= 96, "an entry costs no more than a small frame");

/// Frames that found no room. The core writes it with each batch of them: no other core's data is in its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lost(AtomicU64);

/// The reader's end of a [`Tap`].
pub struct CaptureReader {
    entries: Consumer<Entry>,
    frames: Consumer<(u64, Frame)>,
    bytes: Consumer<u8>,
    records: RecordReceiver,
    lost: Arc<Lost>,
}

/// A tap for a core with so many places for connections and for resting ones, and its reader.
pub fn capture_ring(choice: Choice, extent: Extent, places: usize, resting: usize) -> (Box<Tap>, CaptureReader) {
    let (to_entries, entries) = RingBuffer::new(ENTRIES);
    let (to_frames, frames) = RingBuffer::new(FRAMES);
    let (to_bytes, bytes) = RingBuffer::new(BYTES);
    let (to_records, records) = record_ring(RECORDS);
    let lost = Arc::new(Lost::default());
    let rings = rings::Rings {
        entries: to_entries,
        frames: to_frames,
        bytes: to_bytes,
        records: to_records,
        lost: Arc::clone(&lost),
    };
    let tap = Tap::new(choice, extent, (places, resting), rings);
    let reader = CaptureReader {
        entries,
        frames,
        bytes,
        records,
        lost,
    };
    (Box::new(tap), reader)
}

impl CaptureReader {
    /// The next entry. Before, the frames that have come up to it go to `each`, with the number of their group and what was copied.
    pub fn next(&mut self, mut each: impl FnMut(u64, Frame, Vec<u8>)) -> Option<Entry> {
        let entry = self.entries.pop().ok()?;
        for _ in 0..entry.frames {
            // They were put there before the entry, and their bytes before them.
            let Ok((packet, frame)) = self.frames.pop() else { break };
            let mut bytes = vec![0; usize::from(frame.captured)];
            let _all_are_there = self.bytes.pop_entire_slice(&mut bytes);
            each(packet, frame, bytes);
        }
        Some(entry)
    }

    /// Gives the records that have come to `each`.
    pub fn records(&mut self, each: impl FnMut(&SessionRecord)) {
        self.records.drain(each);
    }

    /// Frames of chosen connections that found no room so far.
    pub fn lost(&self) -> u64 {
        self.lost.0.load(Ordering::Relaxed)
    }

    /// Whether the tap is gone: behind what is in the rings nothing will come.
    pub fn is_abandoned(&self) -> bool {
        self.entries.is_abandoned()
    }
}
