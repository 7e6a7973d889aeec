//! The state of a server in a word, since when and why.

use e2d2::time::Instant;
use splice::server_state::{CheckFailure, Why};
use splice::standby::{Service, Standby};

use crate::config::{ServerConfig, Standing};
use crate::report::{Report, ServerReport};

/// All is well.
pub(super) const UP: &str = "up";
pub(super) const PARTLY_OUT: &str = "partly out";
pub(super) const OUT: &str = "out";
/// The file no longer has it; connections do.
pub(super) const PAST: &str = "past";
/// It was taken out of service.
pub(super) const DRAINED: &str = "drained";
/// The same, and nobody asks it anything.
pub(super) const IN_MAINTENANCE: &str = "maint";
/// Its checks say that it is down.
pub(super) const DOWN: &str = "down";

/// What a server does with its checks; nothing of one that is not checked.
pub(super) fn check_of(server: &ServerConfig, standby: &Standby) -> Option<&'static str> {
    server.check?;
    Some(match standby.server(server.id.0).down() {
        None => "passed",
        Some((CheckFailure::Refused, _)) => "refused",
        Some((CheckFailure::Unanswered, _)) => "unanswered",
        Some((CheckFailure::Wrong, _)) => "wrong",
    })
}

/// What an operator has to know of a server first.
pub(super) struct State {
    /// One of the words above.
    pub(super) word: &'static str,
    /// Since when.
    since: Instant,
    /// Nothing where all is well, or connections are all that is left of it.
    pub(super) why: Option<&'static str>,
}

impl State {
    pub(super) fn of(server: &ServerConfig, told: &ServerReport, report: &Report, standby: &Standby) -> Self {
        let known = standby.server(server.id.0);
        let changed_at = standby.changed_at(server.id.0);
        let by_operator = Some("operator");
        let (word, since, why) = match (server.standing, standby.of_server(server.id.0), known.down()) {
            (Standing::Past, _, _) => (PAST, changed_at, None),
            (_, Service::Drained, _) => (DRAINED, changed_at, by_operator),
            (_, Service::InMaintenance, _) => (IN_MAINTENANCE, changed_at, by_operator),
            (_, Service::In, Some((failure, since))) => (DOWN, since, Some(of_check(failure))),
            (_, Service::In, None) => match state_of(told, report) {
                UP => (UP, changed_at.max(known.since()), None),
                out => (out, known.since(), Some(of_calls(known.ejected_by()))),
            },
        };
        Self { word, since, why }
    }

    /// For how long it has been so.
    pub(super) fn seconds(&self, report: &Report) -> u64 {
        report.uptime_ms.saturating_sub(self.since.as_millis()) / 1000
    }
}

/// The last thing that went wrong with a server, whatever its state is now: a check, or what it was ejected for.
pub(super) fn last_failure(server: &ServerConfig, told: &ServerReport, standby: &Standby) -> Option<&'static str> {
    let known = standby.server(server.id.0);
    let was_ejected = told.ejected_by_failure + told.ejected_by_silence > 0;
    let of_calls = || was_ejected.then(|| of_calls(known.ejected_by()));
    known.failed_check().map(of_check).or_else(of_calls)
}

fn of_check(failure: CheckFailure) -> &'static str {
    match failure {
        CheckFailure::Refused => "check refused",
        CheckFailure::Unanswered => "check unanswered",
        CheckFailure::Wrong => "check wrong",
    }
}

fn of_calls(why: Why) -> &'static str {
    match why {
        Why::Failure => "calls failed",
        Why::Silence => "calls unanswered",
    }
}

/// Whether no core passes the server over, some, or all.
pub(super) fn state_of(server: &ServerReport, report: &Report) -> &'static str {
    match server.cores_out {
        0 => UP,
        out if out < report.cores.len() as u64 => PARTLY_OUT,
        _ => OUT,
    }
}
