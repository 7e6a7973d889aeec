//! The state of a server in a word.

use splice::server_state::CheckFailure;
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
pub(super) fn state_in(server: &ServerConfig, told: &ServerReport, report: &Report, standby: &Standby) -> &'static str {
    match (server.standing, standby.of_server(server.id.0)) {
        (Standing::Past, _) => PAST,
        (_, Service::Drained) => DRAINED,
        (_, Service::InMaintenance) => IN_MAINTENANCE,
        (_, Service::In) if standby.server(server.id.0).down().is_some() => DOWN,
        (_, Service::In) => state_of(told, report),
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
