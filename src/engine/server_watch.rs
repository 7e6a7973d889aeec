//! Servers that are passed over, watched by the main thread: that one is out, or back, is logged once, with the reason.
//!
//! A core that ejects a server for all (`splice::upstream`) counts that on its board; whoever looks a few times a second misses an
//! ejection of 200 ms, but not that it was counted. A server that goes to and fro has a line in ten seconds, which says how
//! often it was ejected meanwhile; when many change at once, the first of them have lines, and the rest one together. What
//! checks say is for all cores ([`splice::server_state`]), and has lines of its own.

use splice::server_state::CheckFailure;

use crate::report::ServerReport;

/// How long a server has no line after one of it.
const QUIET_MS: u64 = 10_000;

/// Lines of one look.
const MOST_LINES: usize = 10;

/// What was told of each server, in the order of the configuration, with the name of each.
#[derive(Debug, Default)]
pub(super) struct ServerWatch {
    told: Vec<(String, Told)>,
}

/// What checks of a server say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checked {
    /// It has none.
    Not,
    /// Nothing against it.
    Up,
    /// It is down.
    Down(CheckFailure),
}

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    is_out: bool,
    by_failure: u64,
    by_silence: u64,
    at_ms: Option<u64>,
    is_down: bool,
    down_at_ms: Option<u64>,
}

impl ServerWatch {
    /// Logs what has changed since the last look; `now_ms` is the time since the start, and `checked` tells what the checks of the
    /// server with a number say.
    pub(super) fn look(&mut self, servers: &[ServerReport], now_ms: u64, checked: impl Fn(usize) -> Checked) {
        for line in self.news(servers, now_ms, checked) {
            log::warn!("{line}");
        }
    }

    fn news(&mut self, servers: &[ServerReport], now_ms: u64, checked: impl Fn(usize) -> Checked) -> Vec<String> {
        self.told.resize_with(servers.len(), Default::default);
        let mut lines = Vec::new();
        let mut more = 0;
        for (number, ((name, told), server)) in self.told.iter_mut().zip(servers).enumerate() {
            if *name != server.name {
                // The number is another server's now, or nobody's.
                (*name, *told) = (server.name.clone(), Told::default());
            }
            let checks = told.news_of_checks(&server.name, checked(number), now_ms);
            let calls = told.news(server, now_ms);
            for line in checks.into_iter().chain(calls) {
                if lines.len() < MOST_LINES {
                    lines.push(line);
                } else {
                    more += 1;
                }
            }
        }
        if more > 0 {
            lines.push(format!("{more} more servers are out or back"));
        }
        lines
    }
}

impl Told {
    fn news_of_checks(&mut self, name: &str, checked: Checked, now_ms: u64) -> Option<String> {
        if checked == Checked::Not {
            // That nothing holds it down any more is no answer of it.
            (self.is_down, self.down_at_ms) = (false, None);
            return None;
        }
        let is_down = checked != Checked::Up;
        let is_quiet = self.down_at_ms.is_some_and(|at| now_ms.saturating_sub(at) < QUIET_MS);
        if is_down == self.is_down || is_quiet {
            return None;
        }
        (self.is_down, self.down_at_ms) = (is_down, Some(now_ms));
        match checked {
            Checked::Not => None,
            Checked::Up => Some(format!("server {name} is up again: it answers its checks")),
            Checked::Down(CheckFailure::Refused) => Some(format!("server {name} is down: it refuses its checks")),
            Checked::Down(CheckFailure::Wrong) => {
                Some(format!("server {name} is down: its answers to checks are wrong"))
            }
            Checked::Down(CheckFailure::Unanswered) => {
                Some(format!("server {name} is down: it does not answer its checks"))
            }
        }
    }

    fn news(&mut self, server: &ServerReport, now_ms: u64) -> Option<String> {
        if server.ejected_by_failure < self.by_failure || server.ejected_by_silence < self.by_silence {
            // The number is another server's now.
            *self = Self::default();
        }
        let ejections = server.ejected_by_failure + server.ejected_by_silence;
        let new = ejections - self.by_failure - self.by_silence;
        let is_out = server.cores_out > 0;
        let is_news = is_out != self.is_out || (new > 0 && !is_out);
        if !is_news || self.at_ms.is_some_and(|at| now_ms.saturating_sub(at) < QUIET_MS) {
            return None;
        }
        let reason = match (
            server.ejected_by_failure > self.by_failure,
            server.ejected_by_silence > self.by_silence,
        ) {
            (true, true) => "calls failed or were not answered in time",
            (true, false) => "calls failed",
            (false, _) => "calls were not answered in time",
        };
        let name = &server.name;
        let line = match (is_out, new) {
            (true, _) => format!(
                "server {name} is passed over: {reason} ({} of {} so far failed)",
                server.failures, server.calls
            ),
            (false, 0) => format!("server {name} is back"),
            (false, _) => format!("server {name} is back; it was ejected {new} times: {reason}"),
        };
        *self = Self {
            is_out,
            by_failure: server.ejected_by_failure,
            by_silence: server.ejected_by_silence,
            at_ms: Some(now_ms),
            ..*self
        };
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, cores_out: u64, by_failure: u64) -> ServerReport {
        ServerReport {
            name: name.to_owned(),
            cores_out,
            ejected_by_failure: by_failure,
            calls: 20,
            failures: 3 * by_failure,
            ..ServerReport::default()
        }
    }

    #[test]
    fn a_change_is_told_once_with_its_reason() {
        let mut watch = ServerWatch::default();
        let mut look = |server: ServerReport, now_ms| watch.news(&[server], now_ms, |_| Checked::Not).concat();
        assert_eq!(look(server("b1", 0, 0), 0), "");
        let out = look(server("b1", 1, 1), 200);
        assert_eq!(out, "server b1 is passed over: calls failed (3 of 20 so far failed)");
        assert_eq!(look(server("b1", 4, 4), 400), "", "the same, on more cores");
        assert_eq!(look(server("b1", 0, 4), 10_199), "", "not so soon");
        let back = look(server("b1", 0, 4), 10_200);
        assert_eq!(back, "server b1 is back; it was ejected 3 times: calls failed");
        assert_eq!(look(server("b1", 0, 4), 60_000), "");
    }

    #[test]
    fn an_ejection_between_two_looks_is_told() {
        let mut watch = ServerWatch::default();
        let silent = ServerReport {
            ejected_by_silence: 2,
            ..server("b1", 0, 0)
        };
        assert_eq!(
            watch.news(&[silent], 0, |_| Checked::Not),
            ["server b1 is back; it was ejected 2 times: calls were not answered in time"]
        );
    }

    #[test]
    fn what_checks_say_is_told_once_with_the_reason() {
        let mut watch = ServerWatch::default();
        let mut look = |checked, now_ms| watch.news(&[server("b1", 0, 0)], now_ms, |_| checked).concat();
        assert_eq!(look(Checked::Up, 0), "");
        let silent = Checked::Down(CheckFailure::Unanswered);
        assert_eq!(look(silent, 200), "server b1 is down: it does not answer its checks");
        assert_eq!(look(Checked::Down(CheckFailure::Refused), 400), "");
        assert_eq!(look(Checked::Up, 10_199), "", "not so soon");
        assert_eq!(
            look(Checked::Up, 10_200),
            "server b1 is up again: it answers its checks"
        );
        assert_eq!(look(Checked::Up, 60_000), "");
        assert_eq!(
            look(Checked::Down(CheckFailure::Refused), 60_200),
            "server b1 is down: it refuses its checks"
        );
    }

    #[test]
    fn a_server_that_is_down_and_forgotten_or_checked_no_longer_is_not_up_again() {
        let mut watch = ServerWatch::default();
        let mut look = |name: &str, checked, now_ms| watch.news(&[server(name, 0, 0)], now_ms, |_| checked).concat();
        let down = Checked::Down(CheckFailure::Refused);
        assert_eq!(look("b1", down, 0), "server b1 is down: it refuses its checks");
        assert_eq!(
            look("b1", Checked::Not, 20_000),
            "",
            "a reload has taken its check away"
        );
        assert_eq!(
            look("b1", down, 20_200),
            "server b1 is down: it refuses its checks",
            "and given it back"
        );
        assert_eq!(look("", Checked::Not, 40_000), "", "nobody has the number");
        assert_eq!(look("b2", Checked::Up, 60_000), "");
        assert_eq!(look("b2", down, 60_200), "server b2 is down: it refuses its checks");
        assert_eq!(look("b3", Checked::Up, 80_000), "", "at once another's");
    }

    #[test]
    fn a_number_that_another_server_has_got_begins_anew() {
        let mut watch = ServerWatch::default();
        let ejected = |name: &str, times| ServerReport {
            ejected_by_silence: times,
            ..server(name, 0, 0)
        };
        assert_eq!(watch.news(&[ejected("b1", 3)], 0, |_| Checked::Not).len(), 1);
        assert!(watch.news(&[ejected("b2", 0)], 200, |_| Checked::Not).is_empty());
        assert_eq!(
            watch.news(&[ejected("b2", 1)], 400, |_| Checked::Not),
            ["server b2 is back; it was ejected 1 times: calls were not answered in time"]
        );
    }

    #[test]
    fn many_at_once_have_few_lines() {
        let mut watch = ServerWatch::default();
        let servers: Vec<ServerReport> = (0..1000).map(|n| server(&format!("b{n}"), 1, 1)).collect();
        let lines = watch.news(&servers, 0, |_| Checked::Not);
        assert_eq!(lines.len(), MOST_LINES + 1);
        assert_eq!(lines[MOST_LINES], "990 more servers are out or back");
        assert!(watch.news(&servers, 200, |_| Checked::Not).is_empty());
    }
}
