//! What is written of a group: a packet for each frame, with its comment.

use e2d2::time::Instant;
use netfcts::format::NameTable;
use splice::capture::{Done, Frame, FrameKind};

use super::connection::Connection;
use super::groups::Group;
use super::ledger::RuleNames;
use super::pcapng;
use super::words::{self, Leg};

/// A packet that may be written.
pub(super) struct Written {
    pub(super) interface: u32,
    pub(super) at: Instant,
    pub(super) bytes: Vec<u8>,
    pub(super) length: u32,
    pub(super) comments: Vec<String>,
    pub(super) is_inbound: bool,
    pub(super) id: u64,
    pub(super) core: usize,
}

impl Written {
    /// The memory that it takes.
    pub(super) fn size(&self) -> usize {
        let comments = self.comments.iter().map(|comment| size_of::<String>() + comment.len());
        size_of::<Self>() + self.bytes.len() + comments.sum::<usize>()
    }
}

/// What things are called, as long as no reload changes it.
#[derive(Clone, Copy)]
pub(super) struct Naming<'a> {
    pub(super) names: &'a NameTable,
    pub(super) rules: &'a RuleNames,
    /// Ports that have interfaces.
    pub(super) ports: usize,
}

/// The packets of a group of this core; what was decided stands in the first, a record in the last.
pub(super) fn packets_of(
    group: &Group,
    (connection, done): (&Connection, &Done),
    record: Option<String>,
    naming: Naming<'_>,
    core: u32,
) -> Vec<Written> {
    let facts = connection.facts.as_ref();
    let rule = connection.rule.and_then(|rule| naming.rules.get(&rule));
    let parties = words::parties(facts, connection.listener, rule, naming.names);
    let decision = words::decision(&group.steps, done, facts);
    let number = connection.number;
    let id = (group.key.0 as u64) << 48 | group.packet;
    let comment = |said: &str, is_first: bool| {
        let decision = if is_first { decision.as_str() } else { "" };
        format!("conn={number} pkt={core}-{}{said}{parties}{decision}", group.packet)
    };
    let of_frame = |(place, (frame, bytes)): (usize, &(Frame, Vec<u8>))| {
        let ends = words::ends_of(bytes);
        let leg = connection.leg_of(frame.kind, ends.as_ref());
        let came_in: Vec<String> = match (frame.kind, &ends) {
            (FrameKind::Held, Some(ends)) => connection
                .came_in(ends)
                .map(|packet| format!("{core}-{packet}"))
                .collect(),
            _ => Vec::new(),
        };
        let kind = words::kind_name(frame.kind);
        let mut said = format!(" leg={} kind={kind}", leg.name());
        if !came_in.is_empty() {
            said += &format!(" of={}", came_in.join(","));
        }
        Written {
            interface: 2 * u32::from(frame.port.0) + u32::from(leg == Leg::Server),
            at: group.at,
            bytes: bytes.clone(),
            length: frame.length.into(),
            comments: vec![comment(&said, place == 0)],
            is_inbound: matches!(frame.kind, FrameKind::Received(_)),
            id,
            core: group.key.0,
        }
    };
    let mut packets: Vec<Written> = group.frames.iter().enumerate().map(of_frame).collect();
    if packets.is_empty() && !group.steps.is_empty() {
        let text = comment(" kind=event", true);
        let bytes = pcapng::text_packet(&text);
        packets.push(Written {
            interface: 2 * naming.ports as u32,
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
