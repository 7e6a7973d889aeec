//! How one server is doing, as far as one core has seen it: may it be called, and for how long is it passed over.
//!
//! ```text
//!        `eject_after` failures in a row, or five overdue calls in a row           its time is over, one call tries it
//!   Fit ─────────────────────────────────────────────────────────────► Ejected ◄──────────────────────────────► OnTrial
//!    ▲                                                                    │    the trial fails or is overdue        │
//!    └───────────────────────── any call is answered ─────────────────────┴─────────────────────────────────────────┘
//! ```

use std::time::Duration;

use arrayvec::ArrayVec;
use e2d2::time::Instant;

use crate::base::settings::UpstreamServer;

/// The longest time that failures pass a server over for, unless `eject_for` is longer.
const LONGEST_EJECTION: Duration = Duration::from_secs(300);

/// For how long silence passes a server over at first: a pause of a virtual machine or of a garbage collector is over then.
const FIRST_SILENCE: Duration = Duration::from_millis(200);

/// Overdue calls in a row that are silence. Where one call in 25 is lost, five in a row are one in ten million.
const SILENT_CALLS: usize = 5;

/// In what time these have to begin: of a server that is called less often nothing can be said.
const SILENT_WITHIN: Duration = Duration::from_secs(1);

/// How a server is doing, as one core has seen it since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerHealth {
    /// Connections to it that are open, from the SYN on.
    pub open: u32,
    /// Calls to it.
    pub calls: u64,
    /// Calls that it refused, for which it was unreachable, or to which it said nothing until the end.
    pub failures: u64,
    /// Times that it was ejected because calls had failed.
    pub ejected_by_failure: u32,
    /// Times that it was ejected because calls were overdue.
    pub ejected_by_silence: u32,
    /// It was ejected, and has answered no call since.
    pub is_out: bool,
    /// Since when that is so, or is not so.
    pub since: Instant,
}

/// What this core knows of a server's state.
#[derive(Clone, Debug)]
pub(super) struct Health {
    /// What is told of it.
    seen: ServerHealth,
    /// This core's share of `max_connections`.
    pub(super) limit: u32,
    /// It is new, and is asked what it can do before it takes a connection.
    is_joining: bool,
    fitness: Fitness,
    /// For how long it was ejected last; zero since it has answered.
    ejected_for: Duration,
    /// When it last answered a call.
    answered_at: Instant,
    /// When the last overdue calls began, none of which it had answered since.
    overdue: ArrayVec<Instant, SILENT_CALLS>,
}

/// Whether a server may be called.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Fitness {
    /// It may, having failed this many times in a row.
    Fit { failures: u32 },
    /// Not before this time; then by one connection.
    Ejected { until: Instant },
    /// One connection is trying. When nothing came of it until then, another may try.
    OnTrial { since: Instant, until: Instant },
}

impl Health {
    /// A server that may have so many connections.
    pub(super) fn new(limit: u32) -> Self {
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
            fitness: Fitness::Fit { failures: 0 },
            ejected_for: Duration::ZERO,
            answered_at: Instant::ZERO,
            overdue: ArrayVec::new(),
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

    pub(super) fn has_room(&self) -> bool {
        self.seen.open < self.limit && !self.is_joining
    }

    /// What it is like now.
    pub(super) fn seen(&self) -> &ServerHealth {
        &self.seen
    }

    /// It is called.
    pub(super) fn note_open(&mut self) {
        self.seen.open += 1;
        self.seen.calls += 1;
    }

    /// A call, or the connection that came of it, is over.
    pub(super) fn note_close(&mut self) {
        self.seen.open = self.seen.open.saturating_sub(1);
    }

    /// True if it was not ejected since it last answered.
    pub(super) fn is_fit(&self) -> bool {
        matches!(self.fitness, Fitness::Fit { .. })
    }

    /// True if it is fit, or a call may try it.
    pub(super) fn may_be_asked(&self, now: Instant) -> bool {
        match self.fitness {
            Fitness::Fit { .. } => true,
            Fitness::Ejected { until } | Fitness::OnTrial { until, .. } => until <= now,
        }
    }

    /// It is about to be called. If that is a trial, nobody else tries it for as long as `patience`.
    pub(super) fn note_picked(&mut self, now: Instant, patience: Duration) {
        match self.fitness {
            Fitness::Ejected { until } | Fitness::OnTrial { until, .. } if until <= now => {
                let until = now + patience;
                self.fitness = Fitness::OnTrial { since: now, until };
            }
            Fitness::Fit { .. } | Fitness::Ejected { .. } | Fitness::OnTrial { .. } => (),
        }
    }

    /// It has answered a call.
    pub(super) fn note_answer(&mut self, now: Instant) {
        if self.seen.is_out {
            (self.seen.is_out, self.seen.since) = (false, now);
        }
        self.fitness = Fitness::Fit { failures: 0 };
        self.ejected_for = Duration::ZERO;
        self.answered_at = now;
        self.overdue.clear();
    }

    /// It has refused a call, was unreachable, or said nothing until the end. Returns true if that ejects it.
    pub(super) fn note_failure(&mut self, settings: &UpstreamServer, now: Instant) -> bool {
        self.seen.failures += 1;
        let is_out = match &mut self.fitness {
            Fitness::Fit { failures } => {
                *failures = failures.saturating_add(1);
                settings.eject_after != 0 && *failures >= settings.eject_after
            }
            // What began before says nothing new.
            Fitness::Ejected { .. } => false,
            Fitness::OnTrial { .. } => true,
        };
        if is_out {
            self.seen.ejected_by_failure += 1;
            self.eject(now, settings.eject_for, LONGEST_EJECTION.max(settings.eject_for));
        }
        is_out
    }

    /// A call that began at `began` is overdue: to be said once of each. Returns true if that ejects the server.
    pub(super) fn note_overdue(&mut self, settings: &UpstreamServer, began: Instant, now: Instant) -> bool {
        let is_out = match self.fitness {
            Fitness::Fit { .. } => settings.eject_after != 0 && self.is_silent(began),
            Fitness::Ejected { .. } => false,
            // Older calls say nothing new.
            Fitness::OnTrial { since, .. } => began >= since,
        };
        if is_out {
            self.seen.ejected_by_silence += 1;
            self.eject(now, FIRST_SILENCE.min(settings.eject_for), settings.eject_for);
        }
        is_out
    }

    /// Whether this overdue call makes enough of them.
    fn is_silent(&mut self, began: Instant) -> bool {
        // It has answered meanwhile, if not this call.
        if began <= self.answered_at {
            return false;
        }
        if self.overdue.is_full() {
            self.overdue.remove(0);
        }
        self.overdue.push(began);
        // Timers of one tick come up in any order.
        let first = self.overdue.iter().min();
        let last = self.overdue.iter().max();
        self.overdue.is_full()
            && first
                .zip(last)
                .is_some_and(|(first, last)| *last - *first <= SILENT_WITHIN)
    }

    fn eject(&mut self, now: Instant, first: Duration, longest: Duration) {
        if !self.seen.is_out {
            (self.seen.is_out, self.seen.since) = (true, now);
        }
        let time = self.ejected_for.saturating_mul(2).clamp(first, longest);
        self.fitness = Fitness::Ejected { until: now + time };
        self.ejected_for = time;
        self.overdue.clear();
    }
}
