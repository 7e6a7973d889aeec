//! What one core has said, by packet number: frames, steps, and how each ended.

use std::collections::VecDeque;

use e2d2::time::Instant;
use netfcts::record::SessionRecord;
use splice::capture::{CaptureReader, Done, ENTRIES, Frame, Stepped, What};

/// Entries that are taken from a core before another has its turn.
const TAKEN_AT_ONCE: usize = 4096;

/// Records that wait for the group in which their connection ended: all that a core's ring has, and as many before them.
const MOST_RECORDS: usize = 2 * ENTRIES;

/// The index of a core, and what it calls a connection.
pub(super) type Key = (usize, u64);

/// What comes from one core.
pub(super) struct Core {
    pub(super) number: u32,
    pub(super) reader: CaptureReader,
    open: Vec<Group>,
    /// Records of connections whose last group has not ended.
    records: VecDeque<SessionRecord>,
    lost_told: u64,
}

/// The frames and steps of one packet number.
#[derive(Default)]
pub(super) struct Group {
    pub(super) packet: u64,
    /// Whose it is and when it was, as its first entry says.
    pub(super) key: Key,
    pub(super) at: Instant,
    pub(super) frames: Vec<(Frame, Vec<u8>)>,
    pub(super) steps: Vec<Stepped>,
}

/// The place of a group among those that have begun: one or two at a time.
fn place_of(open: &mut Vec<Group>, packet: u64) -> usize {
    let place = open.iter().position(|group| group.packet == packet);
    place.unwrap_or_else(|| {
        open.push(Group {
            packet,
            ..Group::default()
        });
        open.len() - 1
    })
}

impl Core {
    pub(super) fn new(number: u32, reader: CaptureReader) -> Self {
        Self {
            number,
            reader,
            open: Vec::new(),
            records: VecDeque::new(),
            lost_told: 0,
        }
    }

    /// Frames that found no room since this was asked last.
    pub(super) fn take_lost(&mut self) -> u64 {
        let lost = self.reader.lost() - self.lost_told;
        self.lost_told += lost;
        lost
    }

    /// Takes what has come, a part at a time; groups that have ended go to `ended`. Returns the number of entries.
    pub(super) fn take(&mut self, index: usize, ended: &mut Vec<(Group, Done)>) -> usize {
        let Self { reader, open, .. } = self;
        for taken in 0..TAKEN_AT_ONCE {
            let frame = |packet, frame, bytes| {
                let place = place_of(open, packet);
                open[place].frames.push((frame, bytes));
            };
            let Some(entry) = reader.next(frame) else {
                return taken;
            };
            let place = place_of(open, entry.packet);
            let group = &mut open[place];
            (group.key, group.at) = ((index, entry.connection), entry.at);
            match entry.what {
                What::Step(step) => group.steps.push(step),
                What::Done(done) => ended.push((open.swap_remove(place), done)),
            }
        }
        TAKEN_AT_ONCE
    }

    /// The record of a connection that is over. It was sent before the end of its last group.
    pub(super) fn record_of(&mut self, client: Option<(u128, u16)>) -> Option<SessionRecord> {
        let records = &mut self.records;
        self.reader.records(|record| records.push_back(*record));
        while records.len() > MOST_RECORDS {
            records.pop_front();
        }
        let (client, port) = client?;
        let is_it = |record: &SessionRecord| {
            // A record names the client of a PROXY header, and its peer beside.
            let (address, of_port) = record.peer().unwrap_or_else(|| (record.client(), record.client_port));
            netfcts::leg::mapped(address) == client && of_port == port
        };
        let place = records.iter().position(is_it)?;
        records.remove(place)
    }
}
