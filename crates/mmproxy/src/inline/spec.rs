//! Whether a listener can be inline, and what the programs are told of it. Pure.

use crate::access::{Action, Networks};
use crate::address::Target;
use crate::config::{Bind, Duplicate, HeaderMode, Listener, Protocol, SendHeader, SourcePort};
use crate::inline::layout::{ListId, ListenerEntry, MAX_HEADER, MAX_RULES, RuleEntry};
use crate::plan::Surroundings;
use std::net::SocketAddr;

/// A listener that can be inline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    local: SocketAddr,
    target_v4: Option<SocketAddr>,
    target_v6: Option<SocketAddr>,
    trusted: Option<Networks>,
    rules: Vec<(Option<Networks>, Action, bool)>,
    verify_checksum: bool,
    drop_duplicate: bool,
    slot: u32,
    header_limit: u32,
}

impl Spec {
    /// The listener for the programs.
    ///
    /// # Errors
    /// Says which of its settings only the two-socket mode has.
    pub fn of(listener: &Listener, surroundings: &Surroundings) -> Result<Self, String> {
        let local = match listener.bind {
            Bind::Address(local) | Bind::Passed(_, Some(local)) => local,
            Bind::Passed(_, None) => return Err("the passed socket has no address".into()),
        };
        let refused = [
            (listener.protocol != Protocol::Tcp, "it is for TCP only"),
            (
                listener.header != HeaderMode::Required,
                "header = \"required\" is needed",
            ),
            (!listener.spoof, "spoof = false"),
            (listener.send != SendHeader::Off, "send"),
            (listener.dynamic.is_some(), "dynamic_destination"),
            (listener.source_port != SourcePort::Keep, "source_port = \"random\""),
            (listener.idle_timeout.is_some(), "idle_timeout"),
            (listener.mark != 0, "mark"),
            (listener.transparent, "transparent"),
            (listener.multipath, "multipath"),
            (listener.rules.len() > MAX_RULES, "more than 16 rules"),
        ];
        if let Some((_, what)) = refused.iter().find(|(is, _)| *is) {
            return Err(format!("inline mode cannot do this: {what}"));
        }
        let here = |target: &Option<Target>| match target {
            None => Ok(None),
            Some(Target::Inet(target)) if surroundings.is_here(target.ip()) => Ok(Some(*target)),
            Some(target) => Err(format!("inline mode needs a server on this host: {target}")),
        };
        let of_family = |target: Option<SocketAddr>, v4| target.filter(|target| target.is_ipv4() == v4);
        Ok(Spec {
            local,
            target_v4: of_family(here(&listener.target_v4)?, true),
            target_v6: of_family(here(&listener.target_v6)?, false),
            trusted: listener.allowed.clone(),
            rules: listener
                .rules
                .iter()
                .map(|rule| (rule.source.clone(), rule.action, rule.tlv.is_some()))
                .collect(),
            verify_checksum: listener.verify_checksum,
            drop_duplicate: listener.duplicate == Duplicate::Drop,
            slot: listener.header_timeout.as_secs().clamp(1, 3600) as u32,
            header_limit: listener.header_limit.min(MAX_HEADER) as u32,
        })
    }

    /// The port that balancers connect to.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// What the programs are told; `list` gives a number to each list of networks.
    pub fn entry(&self, draining: bool, mut list: impl FnMut(&Networks) -> ListId) -> ListenerEntry {
        ListenerEntry {
            local: self.local,
            target_v4: self.target_v4,
            target_v6: self.target_v6,
            trusted: self.trusted.as_ref().map_or(0, &mut list),
            verify_checksum: self.verify_checksum,
            drop_duplicate: self.drop_duplicate,
            draining,
            slot: self.slot,
            header_limit: self.header_limit,
            rules: self
                .rules
                .iter()
                .map(|(source, action, tlv)| RuleEntry {
                    list: source.as_ref().map_or(0, &mut list),
                    allow: *action == Action::Allow,
                    tlv: *tlv,
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn listener() -> Listener {
        Listener {
            target_v4: Some(Target::Inet(([127, 0, 0, 1], 443).into())),
            ..Listener::default()
        }
    }

    #[test]
    fn what_only_two_sockets_can_do_is_named() {
        let why = |listener: Listener| Spec::of(&listener, &Surroundings::default()).expect_err("refused");
        let cases = [
            (
                Listener {
                    spoof: false,
                    ..listener()
                },
                "spoof",
            ),
            (Listener { mark: 7, ..listener() }, "mark"),
            (
                Listener {
                    header: HeaderMode::Optional,
                    ..listener()
                },
                "required",
            ),
            (
                Listener {
                    idle_timeout: Some(Duration::from_secs(1)),
                    ..listener()
                },
                "idle_timeout",
            ),
            (
                Listener {
                    target_v4: Some(Target::Inet(([192, 0, 2, 9], 443).into())),
                    ..listener()
                },
                "192.0.2.9:443",
            ),
            (
                Listener {
                    target_v6: Some(Target::Unix("/run/app".into())),
                    ..listener()
                },
                "unix:/run/app",
            ),
        ];
        for (listener, word) in cases {
            let why = why(listener);
            assert!(why.contains(word), "{why} does not name {word}");
        }
    }

    #[test]
    fn lists_get_their_numbers_and_the_header_its_limits() {
        let networks: Networks = crate::access::parse_network("10.0.0.0/8").into_iter().collect();
        let listener = Listener {
            allowed: Some(networks.clone()),
            ..listener()
        };
        let spec = Spec::of(&listener, &Surroundings::default()).expect("it can be inline");
        let entry = spec.entry(false, |list| {
            assert_eq!(*list, networks);
            7
        });
        assert_eq!((entry.trusted, entry.slot, entry.header_limit), (7, 10, 536));
        assert_eq!(
            (entry.target_v4, entry.target_v6),
            (Some(([127, 0, 0, 1], 443).into()), None)
        );
    }
}
