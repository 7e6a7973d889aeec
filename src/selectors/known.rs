//! What conditions say before there is a payload.

use crate::config::{Clients, Match};
use crate::guard::ClientTable;
use splice::callbacks::Arrival;

use super::Sought;

/// The set that the sender of a segment is in.
#[inline]
pub(super) fn set_of(table: &ClientTable, arrival: &Arrival) -> u16 {
    let peer = arrival.mapped_peer();
    match arrival.looked_up() {
        Some(found) => table.set(found, peer),
        None => table.set_of(peer),
    }
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

    #[inline]
    fn is_of(&self, clients: &Clients) -> bool {
        self.clients
            .is_some_and(|(table, set)| table.meets(set, clients.number))
    }
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
