//! What is known of a captured connection.

use std::collections::VecDeque;
use std::time::Duration;

use e2d2::time::Instant;
use netfcts::Side;
use splice::capture::{Done, Facts, FrameKind};
use splice::ids::RuleId;
use splice::phase::Phase;

use super::groups::Group;
use super::packets::Written;
use super::words::{self, Ends, Leg};

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
