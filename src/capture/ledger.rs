//! What cores have said, put together by connection, and what of it is written.
//!
//! A group is written when it has ended, a connection's groups in their order. Those of a connection that may not be wanted, or is
//! wanted only if it ends as [`Ending`] says, are kept, the last of them, until that is known. What is kept has bounds: whoever
//! comes when all places are taken has the oldest forgotten, and that is counted.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use e2d2::time::Instant;
use netfcts::Side;
use netfcts::format::{NameTable, RecordFormat, RecordLines};
use netfcts::record::Cause;
use splice::capture::{CaptureReader, Done, Facts, Frame, FrameKind, Wanted};
use splice::ids::RuleId;
use splice::phase::Phase;

use super::groups::{Core, Group, Key};
use super::pcapng::{self, Packet, Statistics};
use super::words::{self, Leg};

/// Connections of which something is known at a time.
const MOST_CONNECTIONS: usize = 65_536;

/// Groups that are kept of all connections together, some 1.5 KB each.
const MOST_KEPT: usize = 65_536;

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
    /// Frames that found no room on their way from a core.
    pub lost: u64,
    /// Connections of which something was kept that was forgotten, for want of places, before their end was known.
    pub forgotten: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.written += other.written;
        self.lost += other.lost;
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
    connections: HashMap<Key, Connection>,
    /// Keys in the order in which their connections came, with their numbers.
    order: VecDeque<(Key, u64)>,
    numbers: u64,
    /// Groups that are kept.
    kept: usize,
    began: Instant,
    /// By interface: packets written, and lost before one of them.
    told: Vec<(u64, u64)>,
    totals: Totals,
    /// Frames that are written at most.
    most: u64,
    /// What is to be sent.
    pub(super) out: Vec<u8>,
}

struct Connection {
    number: u64,
    facts: Option<Facts>,
    listener: Option<u16>,
    rule: Option<RuleId>,
    client: Option<(u128, u16)>,
    /// When the first payload of each side came.
    asked_at: Option<Instant>,
    answered_at: Option<Instant>,
    kept: VecDeque<Vec<Written>>,
    over: Option<Fate>,
}

/// What has become of a connection's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Written,
    LeftOut,
}

/// A packet that may be written.
struct Written {
    interface: u32,
    at: Instant,
    bytes: Vec<u8>,
    length: u32,
    comments: Vec<String>,
    is_inbound: bool,
    id: u64,
    core: usize,
}

impl Ledger {
    pub(super) fn new(
        readers: Vec<(u32, CaptureReader)>,
        ending: Ending,
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
            connections: HashMap::new(),
            order: VecDeque::new(),
            numbers: 0,
            kept: 0,
            began: now,
            told: vec![(0, 0); 2 * ports.len() + 1],
            totals: Totals::default(),
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
        // Each core's groups are in order, and the cores' clocks are one.
        ended.sort_by_key(|(group, _): &(Group, Done)| group.at);
        for (group, done) in ended {
            self.settle(group, &done);
        }
        taken
    }

    /// Whether all cores have let go of their taps.
    pub(super) fn is_abandoned(&self) -> bool {
        self.cores.iter().all(|core| core.reader.is_abandoned())
    }

    /// Whether so many frames are written as may be.
    pub(super) fn is_full(&self) -> bool {
        self.totals.written >= self.most
    }

    pub(super) fn totals(&self) -> Totals {
        Totals {
            lost: self.cores.iter().map(|core| core.reader.lost()).sum(),
            ..self.totals
        }
    }

    /// Ends the file.
    pub(super) fn finish(&mut self, now: Instant) {
        let rest: u64 = self.cores.iter().map(|core| core.reader.lost() - core.lost_told).sum();
        let times = (self.wall(self.began), self.wall(now));
        for (interface, (written, lost)) in (0..).zip(self.told.clone()) {
            // What was lost behind the last frame was of no interface that is known.
            let lost = lost + if interface == 0 { rest } else { 0 };
            let of = Statistics {
                interface,
                from_to_ns: times,
                received: written + lost,
                lost,
            };
            pcapng::statistics(&mut self.out, &of);
        }
    }

    fn wall(&self, at: Instant) -> u64 {
        self.names.epoch_ns.saturating_add(at.as_nanos())
    }

    /// What becomes of a group that has ended.
    fn settle(&mut self, group: Group, done: &Done) {
        let key = group.key;
        let is_late = done.facts.is_some_and(|facts| facts.phase == Phase::TimeWait);
        let known = self.connections.get(&key).map(|connection| connection.over);
        match known {
            _ if done.is_elsewhere => return,
            // A late segment of one that is over: it is written if the others were.
            Some(Some(Fate::LeftOut)) if is_late => return,
            None if is_late && !self.ending.is_any() => return,
            // Another connection of the same client's port. Of the one before nothing is kept.
            Some(Some(_)) if !is_late => _ = self.connections.remove(&key),
            _ => {}
        }
        self.know(key);
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        connection.learn(&group, done);
        let core = &mut self.cores[key.0];
        let record = done.is_over.then(|| core.record_of(connection.client)).flatten();
        let cause = (record.as_ref().map(|record| record.cause(Side::Client))).or(words::cause_of(&group.steps));
        let lines = &mut self.lines;
        let record = record.map(|record| format!("record {}", lines.line(&record).trim_end()));
        let number = core.number;
        let packets = packets_of(
            &group,
            (connection, done),
            record,
            ((&self.names, &self.rules), self.ports, number),
        );
        connection.kept.push_back(packets);
        self.kept += 1;
        let passes = self.ending.passes(connection, done, (cause, group.at));
        if passes == Some(false) && connection.kept.len() > self.ending.last {
            connection.kept.pop_front();
            self.kept -= 1;
        }
        if done.is_over || passes.is_none() {
            connection.over = Some(if passes == Some(true) {
                Fate::Written
            } else {
                Fate::LeftOut
            });
        }
        if passes == Some(true) || connection.over.is_some() {
            let kept = std::mem::take(&mut connection.kept);
            self.kept -= kept.len();
            let written = kept.into_iter().flatten().filter(|_| passes == Some(true));
            written.for_each(|packet| self.write(packet));
        }
        while self.kept > MOST_KEPT && !self.order.is_empty() {
            self.forget_oldest();
        }
    }

    /// Makes a place for a connection, if it has none.
    fn know(&mut self, key: Key) {
        if self.connections.contains_key(&key) {
            return;
        }
        if self.connections.len() >= MOST_CONNECTIONS {
            self.forget_oldest();
        }
        self.numbers += 1;
        let connection = Connection {
            number: self.numbers,
            facts: None,
            listener: None,
            rule: None,
            client: None,
            asked_at: None,
            answered_at: None,
            kept: VecDeque::new(),
            over: None,
        };
        self.connections.insert(key, connection);
        // Those that are over have left a key behind.
        if self.order.len() >= 2 * MOST_CONNECTIONS {
            let connections = &self.connections;
            self.order
                .retain(|(key, number)| connections.get(key).is_some_and(|of| of.number == *number));
        }
        self.order.push_back((key, self.numbers));
    }

    fn forget_oldest(&mut self) {
        while let Some((key, number)) = self.order.pop_front() {
            if self.connections.get(&key).is_some_and(|of| of.number == number) {
                let kept = self
                    .connections
                    .remove(&key)
                    .map_or(0, |forgotten| forgotten.kept.len());
                self.totals.forgotten += u64::from(kept > 0);
                self.kept -= kept;
                return;
            }
        }
    }

    fn write(&mut self, written: Written) {
        if self.is_full() {
            return;
        }
        let core = &mut self.cores[written.core];
        let lost = core.reader.lost() - core.lost_told;
        core.lost_told += lost;
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
        self.totals.written += 1;
    }
}

impl Connection {
    fn learn(&mut self, group: &Group, done: &Done) {
        if let Some(facts) = done.facts {
            (self.listener, self.rule) = (facts.listener.or(self.listener), facts.rule.or(self.rule));
            self.client = Some((u128::from_ne_bytes(facts.client), facts.client_port));
            self.facts = Some(facts);
        }
        let Some((frame, bytes)) = group.frames.first() else {
            return;
        };
        let (FrameKind::Received(side), Some(ends)) = (frame.kind, words::ends_of(bytes)) else {
            return;
        };
        if side == Side::Client {
            self.client.get_or_insert(ends.source);
        }
        if ends.payload > 0 {
            let first = match side {
                Side::Client => &mut self.asked_at,
                Side::Server => &mut self.answered_at,
            };
            first.get_or_insert(group.at);
        }
    }

    fn is_slower_than(&self, bound: Duration, now: Instant) -> bool {
        self.asked_at
            .is_some_and(|asked| self.answered_at.unwrap_or(now).saturating_since(asked) > bound)
    }

    fn leg_of(&self, kind: FrameKind, bytes: &[u8]) -> Leg {
        let to_client = || {
            let ends = words::ends_of(bytes);
            ends.zip(self.client).is_none_or(|(ends, (address, port))| {
                ends.destination.0 == address && (ends.destination.1 == port || ends.destination.1 == 0)
            })
        };
        match kind {
            FrameKind::Received(Side::Client) => Leg::Client,
            FrameKind::Received(Side::Server) | FrameKind::Held => Leg::Server,
            FrameKind::Passed | FrameKind::Own if to_client() => Leg::Client,
            FrameKind::Passed | FrameKind::Own => Leg::Server,
        }
    }
}

/// The packets of a group; what was decided stands in the first, a record in the last.
fn packets_of(
    group: &Group,
    (connection, done): (&Connection, &Done),
    record: Option<String>,
    ((names, rules), ports, core): ((&NameTable, &RuleNames), usize, u32),
) -> Vec<Written> {
    let facts = connection.facts.as_ref();
    let rule = connection.rule.and_then(|rule| rules.get(&rule));
    let parties = words::parties(facts, connection.listener, rule, names);
    let decision = words::decision(&group.steps, done, facts);
    let number = connection.number;
    let id = (group.key.0 as u64) << 48 | group.packet;
    let comment = |kind: &str, leg: Option<Leg>, is_first: bool| {
        let leg = leg.map_or(String::new(), |leg| format!(" leg={}", leg.name()));
        let decision = if is_first { decision.as_str() } else { "" };
        format!(
            "conn={number} pkt={core}-{}{leg} kind={kind}{parties}{decision}",
            group.packet
        )
    };
    let of_frame = |(place, (frame, bytes)): (usize, &(Frame, Vec<u8>))| {
        let leg = connection.leg_of(frame.kind, bytes);
        Written {
            interface: 2 * u32::from(frame.port.0) + u32::from(leg == Leg::Server),
            at: group.at,
            bytes: bytes.clone(),
            length: frame.length.into(),
            comments: vec![comment(words::kind_name(frame.kind), Some(leg), place == 0)],
            is_inbound: matches!(frame.kind, FrameKind::Received(_)),
            id,
            core: group.key.0,
        }
    };
    let mut packets: Vec<Written> = group.frames.iter().enumerate().map(of_frame).collect();
    if packets.is_empty() && !group.steps.is_empty() {
        let text = comment("event", None, true);
        let bytes = pcapng::text_packet(&text);
        packets.push(Written {
            interface: 2 * ports as u32,
            at: group.at,
            length: bytes.len() as u32,
            bytes,
            comments: vec![text],
            is_inbound: false,
            id,
            core: group.key.0,
        });
    }
    if let Some(last) = packets.last_mut() {
        last.comments.extend(record);
    }
    packets
}
