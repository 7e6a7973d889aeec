//! The rules of the configuration as a selector.

use crate::callbacks::{FirstPayload, SelectServer, Selection};
use crate::config::{Config, Fallback, Match, Rule, ServerId};

use super::number::first_number;
use super::{Sought, http, tls};

/// Chooses by the rules of each listener, in their order; by its default when no rule matches.
///
/// A rule is passed over only when it can no longer match. As long as one may still match, the rules behind it have to
/// wait: [`Selection::NeedMore`]. When the payload is complete, a rule that is still waiting does not match.
///
/// For the same payload the answer is the same however it was cut into segments. Work is proportional to the bytes so far,
/// and each protocol is looked for at most once per call; nothing is allocated.
#[derive(Clone, Debug)]
pub struct RuleSelector {
    /// By listener.
    listeners: Vec<(Vec<Rule>, Fallback)>,
    /// By pool: its servers in the order of the file.
    pools: Vec<Vec<ServerId>>,
}

impl RuleSelector {
    /// A selector for all listeners of `config`.
    pub fn new(config: &Config) -> Self {
        let listeners = config
            .listeners()
            .iter()
            .map(|listener| (listener.rules.clone(), listener.default))
            .collect();
        let pools = config
            .pools()
            .iter()
            .map(|pool| pool.members.iter().map(|member| member.server).collect())
            .collect();
        Self { listeners, pools }
    }

    fn apply(&self, rule: &Rule, payload: &mut Findings<'_>) -> Sought<Selection> {
        let to_pool = |matched| match matched {
            Sought::Found(true) => Sought::Found(Selection::Pool(rule.pool)),
            Sought::Found(false) | Sought::Absent => Sought::Absent,
            Sought::NeedMore => Sought::NeedMore,
        };
        match &rule.matches {
            Match::Http { host, path } => to_pool(payload.http_matches(host.as_ref(), path.as_deref())),
            Match::TlsSni(host) => to_pool(match payload.server_name() {
                Sought::Found(name) => Sought::Found(host.matches(name.as_bytes())),
                Sought::NeedMore => Sought::NeedMore,
                Sought::Absent => Sought::Absent,
            }),
            Match::FirstNumber => {
                let servers = self.pools.get(rule.pool.index()).map_or(&[][..], Vec::as_slice);
                // A checked configuration has at most 65535 servers, and no pool without one.
                match first_number(payload.bytes, payload.complete, servers.len() as u16) {
                    Sought::Found(n) => servers
                        .get(usize::from(n))
                        .map_or(Sought::Absent, |server| Sought::Found(Selection::Server(*server))),
                    Sought::NeedMore => Sought::NeedMore,
                    Sought::Absent => Sought::Absent,
                }
            }
        }
    }
}

impl SelectServer for RuleSelector {
    fn select(&mut self, payload: &FirstPayload<'_>) -> Selection {
        let Some((rules, default)) = self.listeners.get(payload.listener.index()) else {
            return Selection::Reject;
        };
        let mut findings = Findings::new(payload);
        for rule in rules {
            match self.apply(rule, &mut findings) {
                Sought::Found(selection) => return selection,
                Sought::NeedMore if !payload.complete => return Selection::NeedMore,
                Sought::NeedMore | Sought::Absent => (),
            }
        }
        match default {
            Fallback::Pool(pool) => Selection::Pool(*pool),
            Fallback::Reject => Selection::Reject,
        }
    }
}

/// A payload, and what has been found in it so far.
struct Findings<'a> {
    bytes: &'a [u8],
    complete: bool,
    http: Option<Sought<http::Request<'a>>>,
    host: Option<Sought<&'a [u8]>>,
    server_name: Option<Sought<tls::ServerName>>,
}

impl<'a> Findings<'a> {
    fn new(payload: &FirstPayload<'a>) -> Self {
        Self {
            bytes: payload.bytes,
            complete: payload.complete,
            http: None,
            host: None,
            server_name: None,
        }
    }

    fn server_name(&mut self) -> Sought<tls::ServerName> {
        *self.server_name.get_or_insert_with(|| tls::server_name(self.bytes))
    }

    fn http_matches(&mut self, host: Option<&crate::config::HostPattern>, path: Option<&str>) -> Sought<bool> {
        let request = match *self.http.get_or_insert_with(|| http::Request::parse(self.bytes)) {
            Sought::Found(request) => request,
            Sought::NeedMore => return Sought::NeedMore,
            Sought::Absent => return Sought::Absent,
        };
        if path.is_some_and(|prefix| !request.path().is_some_and(|path| path.starts_with(prefix))) {
            return Sought::Found(false);
        }
        let Some(pattern) = host else {
            return Sought::Found(true);
        };
        match *self.host.get_or_insert_with(|| request.host()) {
            Sought::Found(host) => Sought::Found(pattern.matches(host)),
            Sought::NeedMore => Sought::NeedMore,
            Sought::Absent => Sought::Absent,
        }
    }
}
