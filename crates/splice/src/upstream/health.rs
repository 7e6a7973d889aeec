//! How one server is doing, as far as this core has seen it; and what it makes of that for all cores.
//!
//! What this core counts is its own. Whether the server may be called, how often it has failed in a row and when its calls that
//! are overdue began is in its [state](crate::base::server_state), which all cores share: the core that sees the last of
//! what it takes ejects the server for all of them, and one call of one core tries it when its time is over.
//!
//! ```text
//!        `eject_after` failures in a row, or five overdue calls in a row           its time is over, one call tries it
//!   fit ─────────────────────────────────────────────────────────────► ejected ◄──────────────────────────────► on trial
//!    ▲                                                                    │    the trial fails or is overdue        │
//!    └───────────────────────── any call is answered ─────────────────────┴─────────────────────────────────────────┘
//! ```

use std::time::Duration;

use e2d2::time::Instant;

use crate::base::server_state::{Ejection, ServerState, Why};
use crate::base::settings::UpstreamServer;

/// The longest time that failures pass a server over for, unless `eject_for` is longer.
const LONGEST_EJECTION: Duration = Duration::from_secs(300);

/// For how long silence passes a server over at first: a pause of a virtual machine or of a garbage collector is over then.
const FIRST_SILENCE: Duration = Duration::from_millis(200);

/// How a server is doing: what one core has counted since the start, and what all cores make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerHealth {
    /// Connections to it that are open, from the SYN on.
    pub open: u32,
    /// Calls to it.
    pub calls: u64,
    /// Calls that it refused, for which it was unreachable, or to which it said nothing until the end.
    pub failures: u64,
    /// Times that this core has ejected it because calls had failed.
    pub ejected_by_failure: u32,
    /// Times that this core has ejected it because calls were overdue.
    pub ejected_by_silence: u32,
    /// It was ejected, or is kept because too few would be left, and has answered no call since: the same for all cores.
    pub is_out: bool,
    /// Since when that is so, or is not so.
    pub since: Instant,
}

/// What this core has seen of a server.
#[derive(Clone, Debug)]
pub(super) struct Health {
    /// What is told of it; whether it is out is added by whoever asks.
    seen: ServerHealth,
    /// How many connections all cores together may have to it.
    pub(super) limit: Option<u32>,
    /// It is new, and is asked what it can do before it takes a connection.
    is_joining: bool,
    /// The last call of this core that tried it while it was ejected.
    trial: Option<Trial>,
    /// When it last answered a call of this core.
    answered_at: Instant,
}

/// A call that tries a server that is ejected.
#[derive(Clone, Copy, Debug)]
struct Trial {
    since: Instant,
    /// Until when it keeps others from trying, as the state has it: with another time it is another's.
    until: u64,
}

impl Health {
    /// A server that may have so many connections of all cores.
    pub(super) fn new(limit: Option<u32>) -> Self {
        Health {
            seen: ServerHealth {
                open: 0,
                calls: 0,
                failures: 0,
                ejected_by_failure: 0,
                ejected_by_silence: 0,
                is_out: false,
                since: Instant::ZERO,
            },
            limit,
            is_joining: false,
            trial: None,
            answered_at: Instant::ZERO,
        }
    }

    /// The same server as one that takes no connection yet.
    pub(super) fn joining(self) -> Self {
        Health {
            is_joining: true,
            ..self
        }
    }

    /// It takes connections from now on.
    pub(super) fn admit(&mut self) {
        self.is_joining = false;
    }

    /// With so many connections of all cores it has room for one more; `u32::MAX` without a limit, 0 before it takes any.
    pub(super) fn room(&self) -> u32 {
        if self.is_joining {
            return 0;
        }
        self.limit.unwrap_or(u32::MAX)
    }

    /// It takes no connection yet, but its limit, if it has one, leaves room for one more.
    pub(super) fn is_joining_with_room(&self, has_room: impl Fn(u32) -> bool) -> bool {
        self.is_joining && self.limit.is_none_or(has_room)
    }

    /// Connections of this core to it.
    pub(super) fn open(&self) -> u32 {
        self.seen.open
    }

    /// What it is like now.
    pub(super) fn seen(&self, state: ServerState<'_>) -> ServerHealth {
        ServerHealth {
            is_out: state.is_out(),
            since: state.since(),
            ..self.seen
        }
    }

    /// It is called.
    pub(super) fn note_open(&mut self) {
        self.seen.open += 1;
        self.seen.calls += 1;
    }

    /// A call, or the connection that came of it, is over. Returns false if there was none.
    pub(super) fn note_close(&mut self) -> bool {
        let was_open = self.seen.open > 0;
        self.seen.open = self.seen.open.saturating_sub(1);
        was_open
    }

    /// It is about to be called. If that is a trial, nobody else tries it for as long as `patience`.
    pub(super) fn note_picked(&mut self, state: ServerState<'_>, now: Instant, patience: Duration) {
        if let Some(until) = state.begin_trial(now, patience) {
            self.trial = Some(Trial { since: now, until });
        }
    }

    /// It has answered a call. Returns true if it was only kept because too few would have been left.
    pub(super) fn note_answer(&mut self, state: ServerState<'_>, now: Instant) -> bool {
        self.answered_at = now;
        self.trial = None;
        state.note_answer(now)
    }

    /// It has refused a call, was unreachable, or said nothing until the end. Returns true if that ejects it.
    pub(super) fn note_failure(&mut self, state: ServerState<'_>, settings: &UpstreamServer) -> bool {
        self.seen.failures += 1;
        // What began before it was ejected says nothing new.
        self.is_on_trial(state) || state.note_failure(settings.eject_after)
    }

    /// A call that began at `began` is overdue: to be said once of each. Returns true if that ejects the server.
    pub(super) fn note_overdue(&mut self, state: ServerState<'_>, settings: &UpstreamServer, began: Instant) -> bool {
        match self.trial {
            // Older calls say nothing new.
            Some(trial) if self.is_on_trial(state) => began >= trial.since,
            // It has answered meanwhile, if not this call.
            _ => settings.eject_after != 0 && began > self.answered_at && state.note_overdue(began),
        }
    }

    /// A call of this core tries the server now.
    fn is_on_trial(&self, state: ServerState<'_>) -> bool {
        self.trial.is_some_and(|trial| state.is_ejected_until(trial.until))
    }

    /// Ejects it, for all cores. Nothing if another core has done that meanwhile.
    pub(super) fn eject(
        &mut self,
        state: ServerState<'_>,
        why: Why,
        settings: &UpstreamServer,
        now: Instant,
    ) -> Option<Ejection> {
        let times = match why {
            Why::Failure => (settings.eject_for, LONGEST_EJECTION.max(settings.eject_for)),
            Why::Silence => (FIRST_SILENCE.min(settings.eject_for), settings.eject_for),
        };
        let trial = self.trial.take().map(|trial| trial.until);
        state.eject(why, trial.filter(|until| state.is_ejected_until(*until)), times, now)
    }

    /// That is counted.
    pub(super) fn count_ejection(&mut self, why: Why) {
        match why {
            Why::Failure => self.seen.ejected_by_failure += 1,
            Why::Silence => self.seen.ejected_by_silence += 1,
        }
    }
}
