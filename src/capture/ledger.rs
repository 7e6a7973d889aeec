//! What cores have said, put together by connection, and what of it is written.
//!
//! A group is written when it has ended, a connection's groups in their order. Those of a connection that may not be wanted, or is
//! wanted only if it ends as [`Ending`] says, are kept, the last of them, until that is known. What is kept has bounds (`places`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use e2d2::time::Instant;
use netfcts::Side;
use netfcts::format::{NameTable, RecordFormat, RecordLines};
use netfcts::record::Cause;
use splice::capture::{CaptureReader, Done, Wanted};
use splice::ids::RuleId;
use splice::phase::Phase;

use super::connection::{Connection, Fate};
use super::groups::{Core, Group, Key};
use super::packets::{Naming, Written, packets_of};
use super::pcapng::{self, Packet, Statistics};
use super::places::{Bounds, Places};
use super::words::{self, Leg};

/// How a connection has to end to be written: all that is said here.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    /// For one of these causes; for any if there is none.
    pub(super) causes: Vec<Cause>,
    /// The server's first byte came later than this behind the first of the client, or not at all.
    pub(super) slower_than: Option<Duration>,
    /// Groups of a connection that are kept, the last ones.
    pub(super) last: usize,
}

impl Ending {
    fn is_any(&self) -> bool {
        self.causes.is_empty() && self.slower_than.is_none()
    }

    /// Whether what is kept of a connection is written now; nothing if it never is.
    fn passes(&self, connection: &Connection, done: &Done, (cause, at): (Option<Cause>, Instant)) -> Option<bool> {
        match done.wanted {
            Wanted::No => None,
            Wanted::Unknown => Some(false),
            Wanted::Yes if self.is_any() || connection.over.is_some() => Some(true),
            Wanted::Yes if !done.is_over => Some(false),
            Wanted::Yes => {
                let has_cause = self.causes.is_empty() || cause.is_some_and(|cause| self.causes.contains(&cause));
                let is_slow = (self.slower_than).is_none_or(|bound| connection.is_slower_than(bound, at));
                (has_cause && is_slow).then_some(true)
            }
        }
    }
}

/// What became of what cores have said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Frames in the file.
    pub written: u64,
    /// Frames that found no room on their way from a core, or were kept and had to be forgotten.
    pub lost: u64,
    /// Those of them that were kept until there was no place for them, before the end of their connection was known.
    pub forgotten_frames: u64,
    /// The connections that these were of.
    pub forgotten: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.written += other.written;
        self.lost += other.lost;
        self.forgotten_frames += other.forgotten_frames;
        self.forgotten += other.forgotten;
    }
}

impl std::ops::Sub for Totals {
    type Output = Self;

    /// What has come since `before`.
    fn sub(self, before: Self) -> Self {
        Self {
            written: self.written - before.written,
            lost: self.lost - before.lost,
            forgotten_frames: self.forgotten_frames - before.forgotten_frames,
            forgotten: self.forgotten - before.forgotten,
        }
    }
}

/// What rules are called where they are shown.
pub(super) type RuleNames = HashMap<RuleId, String>;

pub(super) struct Ledger {
    cores: Vec<Core>,
    ending: Ending,
    names: Arc<NameTable>,
    rules: RuleNames,
    lines: RecordLines,
    ports: usize,
    places: Places,
    began: Instant,
    /// By interface: packets written, and lost before one of them.
    told: Vec<(u64, u64)>,
    /// Frames in the file, and how many there may be.
    written: u64,
    most: u64,
    /// What is to be sent.
    pub(super) out: Vec<u8>,
}

impl Ledger {
    pub(super) fn new(
        readers: Vec<(u32, CaptureReader)>,
        (ending, bounds): (Ending, Bounds),
        (names, rules, ports): (NameTable, RuleNames, &[String]),
        (comment, snaplen): (&str, u16),
        (now, most): (Instant, u64),
    ) -> Self {
        let names = Arc::new(names);
        let mut out = Vec::new();
        pcapng::section_header(&mut out, concat!("proxyengine ", env!("CARGO_PKG_VERSION")), comment);
        for port in ports {
            for leg in [Leg::Client, Leg::Server] {
                let name = format!("{port}.{}", leg.name());
                let description = format!("port {port}, legs to {}s", leg.name());
                pcapng::interface(&mut out, pcapng::ETHERNET, snaplen.into(), (&name, &description));
            }
        }
        let own = ("engine", "what the engine did without a frame");
        pcapng::interface(&mut out, pcapng::UPPER_PDU, 0, own);
        Self {
            cores: readers
                .into_iter()
                .map(|(number, reader)| Core::new(number, reader))
                .collect(),
            ending,
            lines: RecordLines::new(RecordFormat::JsonLines, Arc::clone(&names), 1),
            names,
            rules,
            ports: ports.len(),
            places: Places::new(bounds, 2 * ports.len() + 1),
            began: now,
            told: vec![(0, 0); 2 * ports.len() + 1],
            written: 0,
            most,
            out,
        }
    }

    /// Takes what cores have said meanwhile, a part at a time, and returns how many entries that was.
    pub(super) fn take(&mut self) -> usize {
        let mut ended = Vec::new();
        let mut taken = 0;
        for (index, core) in self.cores.iter_mut().enumerate() {
            taken += core.take(index, &mut ended);
        }
        self.settle_all(ended);
        taken
    }

    /// Each core's groups are in order, and the cores' clocks are one.
    fn settle_all(&mut self, mut ended: Vec<(Group, Done)>) {
        ended.sort_by_key(|(group, _)| group.at);
        for (group, done) in ended {
            self.settle(group, &done);
        }
    }

    /// Goes on with what things are called after a reload.
    pub(super) fn rename(&mut self, names: NameTable, rules: RuleNames) {
        // Times go on as they are, whatever has become of the wall clock.
        let epoch_ns = self.names.epoch_ns;
        self.names = Arc::new(NameTable { epoch_ns, ..names });
        self.rules = rules;
        self.lines = RecordLines::new(RecordFormat::JsonLines, Arc::clone(&self.names), 1);
    }

    /// Whether all cores have let go of their taps.
    pub(super) fn is_abandoned(&self) -> bool {
        self.cores.iter().all(|core| core.reader.is_abandoned())
    }

    /// Whether so many frames are written as may be.
    pub(super) fn is_full(&self) -> bool {
        self.written >= self.most
    }

    pub(super) fn totals(&self) -> Totals {
        let lost: u64 = self.cores.iter().map(|core| core.reader.lost()).sum();
        let forgotten = self.places.forgotten();
        Totals {
            written: self.written,
            lost: lost + forgotten.frames,
            forgotten_frames: forgotten.frames,
            forgotten: forgotten.connections,
        }
    }

    /// Ends the file, with a line for its reader if it ends before its time.
    pub(super) fn finish(&mut self, now: Instant, why: Option<&str>) {
        let rest: u64 = self.cores.iter_mut().map(Core::take_lost).sum();
        let times = (self.wall(self.began), self.wall(now));
        for (interface, (written, lost)) in (0..).zip(self.told.clone()) {
            // What was lost behind the last frame was of no interface that is known.
            let lost = lost + self.places.take_untold(interface) + if interface == 0 { rest } else { 0 };
            let of = Statistics {
                interface,
                from_to_ns: times,
                received: written + lost,
                lost,
                comment: why,
            };
            pcapng::statistics(&mut self.out, &of);
        }
    }

    fn wall(&self, at: Instant) -> u64 {
        self.names.epoch_ns.saturating_add(at.as_nanos())
    }

    /// What becomes of a group that has ended.
    fn settle(&mut self, group: Group, done: &Done) {
        if done.is_elsewhere || !self.is_news(&group.key, done) {
            return;
        }
        let key = group.key;
        let connection = self.places.enter(key);
        connection.learn(&group, done);
        let core = &mut self.cores[key.0];
        let record = done.is_over.then(|| core.record_of(connection.client)).flatten();
        let cause = (record.as_ref().map(|record| record.cause(Side::Client))).or(words::cause_of(&group.steps));
        let lines = &mut self.lines;
        let record = record.map(|record| format!("record {}", lines.line(&record).trim_end()));
        let naming = Naming {
            names: &self.names,
            rules: &self.rules,
            ports: self.ports,
        };
        let packets = packets_of(&group, (connection, done), record, naming, core.number);
        if connection.is_met() {
            connection.forget_held();
        }
        let passes = self.ending.passes(connection, done, (cause, group.at));
        let is_written = passes == Some(true);
        if done.is_over || passes.is_none() {
            connection.over = Some(if is_written { Fate::Written } else { Fate::LeftOut });
        }
        let is_settled = is_written || connection.over.is_some();
        self.places.keep(&key, packets);
        self.places.keep_last(&key, self.ending.last);
        if is_settled {
            let kept = self.places.take_kept(&key).filter(|_| is_written);
            kept.for_each(|packet| self.write(packet));
        }
        self.places.note(key);
    }

    /// Whether a group is of a connection that is to be known, and not of one whose frames were left out. Of another with the same
    /// client's port before it nothing is known any more.
    fn is_news(&mut self, key: &Key, done: &Done) -> bool {
        let is_late = done.facts.is_some_and(|facts| facts.phase == Phase::TimeWait);
        let is_begun = done.facts.is_some() || done.is_over;
        let known = self.places.get(key);
        match known.map(|connection| connection.over) {
            // A late segment of one that is over: it is written if the others were.
            Some(Some(fate)) if is_late => return fate == Fate::Written,
            None if is_late => return self.ending.is_any(),
            // How it ended was lost.
            Some(None) if is_late && !self.ending.is_any() => {
                self.places.forget(key);
                return false;
            }
            Some(Some(_)) => self.places.forget(key),
            Some(None) if !is_begun && known.is_some_and(|connection| connection.facts.is_some()) => {
                self.places.forget(key);
            }
            _ => {}
        }
        true
    }

    fn write(&mut self, written: Written) {
        if self.is_full() {
            return;
        }
        let core = &mut self.cores[written.core];
        let lost = core.take_lost() + self.places.take_untold(written.interface);
        let number = core.number;
        let packet = Packet {
            interface: written.interface,
            at_ns: self.wall(written.at),
            bytes: &written.bytes,
            length: written.length,
            comments: &written.comments,
            is_inbound: written.is_inbound,
            lost,
            id: written.id,
            queue: number,
        };
        pcapng::packet(&mut self.out, &packet);
        if let Some((count, dropped)) = self.told.get_mut(written.interface as usize) {
            *count += 1;
            *dropped += lost;
        }
        self.written += 1;
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
