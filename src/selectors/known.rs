//! What conditions say before there is a payload.

use std::sync::Arc;

use crate::config::{ClassRule, Clients, Match, Rule, RuleAction, RuleId};
use crate::guard::ClientTable;
use splice::callbacks::{Arrival, Refusal};

use super::Sought;

/// The set that the sender of a segment is in.
#[inline]
pub(super) fn set_of(table: &ClientTable, arrival: &Arrival) -> u16 {
    let peer = arrival.mapped_peer();
    arrival.looked_up().unwrap_or_else(|| table.set_of(peer))
}

/// What is known of a client before it has said anything.
pub(super) struct Known<'a> {
    /// The table of clients, and the set in it that this one is in.
    pub(super) clients: Option<(&'a ClientTable, u16)>,
    pub(super) listener_port: u16,
}

impl Known<'_> {
    /// Whether it is as wanted, as far as that says.
    #[inline]
    pub(super) fn at_syn(&self, wanted: &Match) -> Sought<bool> {
        match wanted {
            Match::Client(clients) => Sought::Found(self.is_of(clients)),
            _ => self.at_syn_otherwise(wanted),
        }
    }

    fn at_syn_otherwise(&self, wanted: &Match) -> Sought<bool> {
        match wanted {
            Match::ListenerPort(ports) => Sought::Found(ports.contains(self.listener_port)),
            Match::All(parts) => all(parts.iter().map(|part| self.at_syn(part))),
            Match::Not(part) => opposite(self.at_syn(part)),
            _ => Sought::NeedMore,
        }
    }

    /// How the first rule that matches at the SYN refuses, if it does. A rule that has to wait for the payload has those behind it wait,
    /// too.
    pub(super) fn refusal(&self, rules: &[Rule]) -> Option<(RuleId, Refusal)> {
        for rule in rules {
            match (self.at_syn(&rule.matches), rule.action) {
                (Sought::Found(true), RuleAction::Refuse(refusal)) => return Some((rule.id, refusal)),
                (Sought::Found(true), RuleAction::Pool(_)) | (Sought::NeedMore, _) => return None,
                (Sought::Found(false) | Sought::Absent, _) => (),
            }
        }
        None
    }

    /// The class that the first rule gives which matches.
    pub(super) fn class(&self, rules: &[ClassRule]) -> Option<u16> {
        let is_it = |rule: &&ClassRule| self.at_syn(&rule.matches) == Sought::Found(true);
        rules.iter().find(is_it).map(|rule| rule.class)
    }

    /// What rules that refuse and rules that give classes say.
    #[inline(never)]
    pub(super) fn ask(&self, rules: &[Rule], classes: &[ClassRule]) -> Verdict {
        Verdict {
            refusal: self.refusal(rules),
            class: self.class(classes),
        }
    }

    /// What was found out before of clients of the same set.
    #[inline]
    pub(super) fn verdict<'v>(&self, verdicts: Option<&'v [Verdict]>) -> Option<&'v Verdict> {
        let (_, set) = self.clients?;
        verdicts?.get(usize::from(set))
    }

    #[inline]
    fn is_of(&self, clients: &Clients) -> bool {
        self.clients
            .is_some_and(|(table, set)| table.meets(set, clients.number))
    }
}

/// What the rules of a listener say at the SYN of the clients of one set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    pub(super) refusal: Option<(RuleId, Refusal)>,
    pub(super) class: Option<u16>,
}

/// Verdicts for all listeners together: 16 MiB.
pub(super) const MOST_VERDICTS: usize = 1 << 20;

const _: () = assert!(size_of::<Verdict>() <= 16);

/// What rules that refuse and rules that give classes say at the SYN, by set of clients; takes their number off `room`. `None` if they
/// ask for nothing, or for the listener's port, or if there is no room: they are asked each time then.
pub(super) fn verdicts(
    rules: &[Rule],
    classes: &[ClassRule],
    table: &ClientTable,
    room: &mut usize,
) -> Option<Arc<[Verdict]>> {
    let is_by_port = |wanted: &Match| matches!(wanted, Match::ListenerPort(_));
    let mut asked = (rules.iter().map(|rule| &rule.matches)).chain(classes.iter().map(|rule| &rule.matches));
    if rules.is_empty() && classes.is_empty() || asked.any(|wanted| wanted.has_within(&is_by_port)) {
        return None;
    }
    *room = room.checked_sub(table.sets())?;
    let verdict = |set| {
        let known = Known {
            clients: Some((table, set as u16)),
            listener_port: 0,
        };
        known.ask(rules, classes)
    };
    Some((0..table.sets()).map(verdict).collect())
}

/// Whether all are so: not as soon as one is certain not to be.
pub(super) fn all(parts: impl Iterator<Item = Sought<bool>>) -> Sought<bool> {
    let mut answer = Sought::Found(true);
    for part in parts {
        match part {
            Sought::Found(true) => {}
            Sought::NeedMore => answer = Sought::NeedMore,
            Sought::Found(false) | Sought::Absent => return Sought::Absent,
        }
    }
    answer
}

pub(super) fn opposite(of: Sought<bool>) -> Sought<bool> {
    match of {
        Sought::Found(is_so) => Sought::Found(!is_so),
        Sought::Absent => Sought::Found(true),
        Sought::NeedMore => Sought::NeedMore,
    }
}
