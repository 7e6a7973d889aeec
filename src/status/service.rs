//! What an operator asks for servers, pools, listeners and the engine: whether they take connections, and what becomes of open ones.

use std::time::Duration;

use splice::standby::Service;

use super::connections::Refusal;
use crate::engine::{Subject, Watch};
use crate::journal::Change;

/// The longest time that connections are ended over.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order<'a> {
    pub(super) subject: Subject<'a>,
    pub(super) service: Service,
    /// Over what time open connections are ended, if they are.
    over: Option<Duration>,
}

impl<'a> Order<'a> {
    /// Of a path and a query; `None` if the path is about something else.
    pub(super) fn read(path: &'a str, query: &str) -> Option<Result<Self, Refusal>> {
        let (order, of) = path.strip_prefix("/api/v1/")?.split_once('/')?;
        let service = match order {
            "drain" => Service::Drained,
            "maint" => Service::InMaintenance,
            "ready" => Service::In,
            _ => return None,
        };
        let (what, name) = of.split_once('/').unwrap_or((of, ""));
        let order = || {
            Ok(Self {
                subject: Subject::new(what, name).map_err(|sentence| (409, sentence))?,
                service,
                over: read_close(query, service).map_err(|sentence| (400, sentence))?,
            })
        };
        Some(order())
    }

    /// Has open connections ended, if that was asked, of what is out of service.
    pub(super) fn close(&self, watch: &Watch) -> Result<(), String> {
        self.over.map_or(Ok(()), |over| watch.close(self.subject, over))
    }
}

fn read_close(query: &str, service: Service) -> Result<Option<Duration>, String> {
    let close = match query.split_once('=') {
        None if query.is_empty() => return Ok(None),
        None if query == "kill" => Duration::ZERO,
        Some(("close_over", seconds)) => {
            let seconds = seconds.parse().map(Duration::from_secs);
            let seconds = seconds
                .ok()
                .filter(|over| (Duration::from_secs(1)..=LONGEST).contains(over));
            seconds.ok_or_else(|| format!("close_over: expected seconds from 1 to {}", LONGEST.as_secs()))?
        }
        _ => return Err("expected close_over=SECONDS or kill".to_owned()),
    };
    match service {
        Service::In => Err("what is in service is not closed".to_owned()),
        Service::Drained | Service::InMaintenance => Ok(Some(close)),
    }
}

/// A change that is kept, but for those of subjects.
pub(super) fn kept_change<'a>(change: &str, levels: &'a str) -> Option<Change<'a>> {
    match change {
        "log" => Some(Change::Log(levels)),
        "records/on" => Some(Change::Records(true)),
        "records/off" => Some(Change::Records(false)),
        "announce/on" => Some(Change::Announce(true)),
        "announce/off" => Some(Change::Announce(false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_from_paths_and_queries() {
        let read = |path: &'static str, query| Order::read(path, query).expect("about a subject");
        let (subject, service) = (Subject::Pool("a/b"), Service::InMaintenance);
        let over = Some(Duration::from_secs(600));
        let order = Order { subject, service, over };
        assert_eq!(read("/api/v1/maint/pool/a/b", "close_over=600"), Ok(order));
        let kill = read("/api/v1/drain/engine", "kill").map(|order| (order.subject, order.over));
        assert_eq!(kill, Ok((Subject::Engine, Some(Duration::ZERO))));
        assert_eq!(
            read("/api/v1/ready/server/s", "").map(|order| order.service),
            Ok(Service::In)
        );
        for (path, query) in [
            ("/api/v1/ready/engine", "kill"),
            ("/api/v1/drain/engine", "close_over=0"),
            ("/api/v1/drain/engine", "close_over=1d"),
            ("/api/v1/drain/engine", "soon"),
            ("/api/v1/drain/engine/one", ""),
            ("/api/v1/drain/core/1", ""),
        ] {
            assert!(read(path, query).is_err(), "{path}?{query}");
        }
        assert_eq!(Order::read("/api/v1/reload", ""), None);
    }
}
