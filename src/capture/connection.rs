//! What is known of a captured connection.

use std::collections::VecDeque;
use std::time::Duration;

use e2d2::time::Instant;
use netfcts::Side;
use splice::capture::{Done, Facts, FrameKind};
use splice::drop_reason::DropReason;
use splice::ids::RuleId;
use splice::phase::Phase;

use super::groups::Group;
use super::packets::Written;
use super::words::{self, Ends, Leg};

/// Segments of a client before its server is there that are remembered, the first ones: most clients send one or two.
const MOST_HELD: usize = 16;

pub(super) struct Connection {
    pub(super) number: u64,
    pub(super) facts: Option<Facts>,
    pub(super) listener: Option<u16>,
    pub(super) rule: Option<RuleId>,
    pub(super) client: Option<(u128, u16)>,
    /// When the first payload of each side came.
    asked_at: Option<Instant>,
    answered_at: Option<Instant>,
    pub(super) over: Option<Fate>,
    /// What has come from the client before its server was there.
    held: Vec<Part>,
    pub(super) standing: Standing,
    pub(super) kept: VecDeque<Kept>,
}

/// What has become of a connection's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Written,
    LeftOut,
}

/// Who is forgotten first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// One that is over: late segments are written if the others were.
    Over,
    /// Somebody of whom nothing but a SYN has come, and the answer to it.
    Stranger,
    /// One that goes on.
    Open,
}

impl Standing {
    /// In the order in which they are forgotten.
    pub(super) const ALL: [Self; 3] = [Self::Over, Self::Stranger, Self::Open];
}

/// The packets of a group that is kept, and the bytes that they take.
pub(super) struct Kept {
    pub(super) packets: Vec<Written>,
    pub(super) bytes: usize,
}

/// A segment by its client's numbers.
struct Part {
    seq: u32,
    length: u32,
    packet: u64,
}

impl Connection {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            facts: None,
            listener: None,
            rule: None,
            client: None,
            asked_at: None,
            answered_at: None,
            over: None,
            held: Vec::new(),
            standing: Standing::Stranger,
            kept: VecDeque::new(),
        }
    }

    /// How it stands now.
    pub(super) fn standing(&self) -> Standing {
        match self.facts.map(|facts| facts.phase) {
            _ if self.over.is_some() => Standing::Over,
            // Of one that rests the others have been forgotten.
            Some(Phase::TimeWait) => Standing::Over,
            None | Some(Phase::SynForwarded | Phase::SynAckForwarded) => Standing::Stranger,
            Some(_) => Standing::Open,
        }
    }

    pub(super) fn learn(&mut self, group: &Group, done: &Done) {
        let was_met = self.is_met();
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
        let is_taken = done.dropped.is_none_or(|reason| reason == DropReason::Consumed);
        if side == Side::Client && !was_met && is_taken && ends.length > 0 && self.held.len() < MOST_HELD {
            self.held.push(Part {
                seq: ends.seq,
                length: ends.length,
                packet: group.packet,
            });
        }
        if ends.payload > 0 {
            let first = match side {
                Side::Client => &mut self.asked_at,
                Side::Server => &mut self.answered_at,
            };
            first.get_or_insert(group.at);
        }
    }

    /// Whether client and server have met: what the client says is passed on at once.
    pub(super) fn is_met(&self) -> bool {
        self.facts.is_some_and(|facts| facts.offsets.is_some())
    }

    /// What the client had to wait with has been sent.
    pub(super) fn forget_held(&mut self) {
        self.held = Vec::new();
    }

    /// The packets in which the client's bytes came that are in this frame to its server.
    pub(super) fn came_in(&self, ends: &Ends) -> impl Iterator<Item = u64> {
        let offset = self
            .facts
            .and_then(|facts| facts.offsets)
            .map_or(0, |[client, ..]| client);
        let (seq, length) = (ends.seq.wrapping_sub(offset), ends.length);
        let has_some = move |part: &&Part| {
            let behind = seq.wrapping_sub(part.seq).cast_signed();
            // A frame has fewer than 2^16 bytes.
            behind < part.length.cast_signed() && behind > -length.cast_signed()
        };
        self.held.iter().filter(has_some).map(|part| part.packet)
    }

    pub(super) fn is_slower_than(&self, bound: Duration, now: Instant) -> bool {
        self.asked_at
            .is_some_and(|asked| self.answered_at.unwrap_or(now).saturating_since(asked) > bound)
    }

    pub(super) fn leg_of(&self, kind: FrameKind, ends: Option<&Ends>) -> Leg {
        let is_to_client = ends.zip(self.client).is_none_or(|(ends, (address, port))| {
            ends.destination.0 == address && (ends.destination.1 == port || ends.destination.1 == 0)
        });
        match kind {
            FrameKind::Received(Side::Client) => Leg::Client,
            FrameKind::Received(Side::Server) | FrameKind::Held => Leg::Server,
            FrameKind::Passed | FrameKind::Own if is_to_client => Leg::Client,
            FrameKind::Passed | FrameKind::Own => Leg::Server,
        }
    }
}
