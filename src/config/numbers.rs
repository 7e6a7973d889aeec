//! Who has which number in another version of the file: its own, or one that nobody has.

use std::collections::HashMap;

use super::check::Place;
use super::continued::Standing;
use super::local_address::LocalAddress;
use super::model::{ListenerConfig, ServerConfig};
use super::source::{At, Source};
use super::{Config, ListenAddress};
use splice::ids::{ListenerId, PoolId, ServerId};

/// Numbers that nobody has.
struct Numbers {
    free: Vec<u16>,
    next: usize,
}

impl Numbers {
    /// Those that are nobody's, and those behind.
    fn of(standings: impl ExactSizeIterator<Item = Standing> + DoubleEndedIterator) -> Self {
        let next = standings.len();
        let free = standings.enumerate().rev();
        Numbers {
            free: free
                .filter(|(_, of)| *of == Standing::Nobody)
                .map(|(id, _)| id as u16)
                .collect(),
            next,
        }
    }

    fn next(&mut self) -> u16 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            // Beyond what can be, it is refused later by the count.
            u16::try_from(self.next - 1).unwrap_or(u16::MAX)
        })
    }

    /// A number for each: its own, or a free one.
    fn give(mut self, known: impl Iterator<Item = Option<u16>>) -> Vec<u16> {
        known.map(|known| known.unwrap_or_else(|| self.next())).collect()
    }
}

/// The numbers of pools.
pub(super) fn pools(old: &Config, new: &Config) -> Vec<PoolId> {
    let there = old.pools.iter().filter(|pool| pool.standing != Standing::Nobody);
    let known: HashMap<&str, u16> = there.map(|pool| (pool.name.as_str(), pool.id.0)).collect();
    let ids = new.pools.iter().map(|pool| known.get(pool.name.as_str()).copied());
    let given = Numbers::of(old.pools.iter().map(|pool| pool.standing)).give(ids);
    given.into_iter().map(PoolId).collect()
}

/// The numbers of servers; complains about those that have changed in what connections rely on.
pub(super) fn servers(old: &Config, new: &Config, places: &[Place], source: &mut Source<'_>) -> Vec<ServerId> {
    let there = old.servers.iter().filter(|server| server.standing != Standing::Nobody);
    let known: HashMap<_, &ServerConfig> = there.map(|server| (server.address, server)).collect();
    let mut at_of: HashMap<ServerId, &At> = HashMap::new();
    for place in places {
        // What DNS answers is not the pool's fault.
        let pool = if place.own.is_of_answer() {
            &place.own
        } else {
            &place.pool
        };
        at_of.entry(place.server).or_insert(pool);
    }
    let mut id_of = |server: &ServerConfig| {
        let before = *known.get(&server.address)?;
        let pool = *at_of.get(&server.id)?;
        let mut refuse = |key: &str, differs: bool| {
            if differs {
                let complaint = format!(
                    "has changed for {}, to which connections are open: it needs a restart",
                    server.address
                );
                source.complain(&pool.key(key), complaint);
            }
        };
        // What a PROXY header says is asked once, when it is written; frames of all connections go to the MAC address of now.
        refuse("local_addresses", !have_same(before, server, |local| local.ip));
        refuse("local_ports", !have_same(before, server, |local| &local.of_file));
        refuse("transparent", before.transparent != server.transparent);
        for (before, now) in before.local.iter().zip(&server.local) {
            if before.of_file == now.of_file && now.after(before).ports.is_empty() {
                let complaint = format!(
                    "has no port left for {} at {}: listeners have begun to listen on all of them; others need a restart",
                    server.address, now.ip
                );
                source.complain(&pool.key("local_ports"), complaint);
            }
        }
        Some(before.id.0)
    };
    let ids: Vec<_> = new.servers.iter().map(&mut id_of).collect();
    let given = Numbers::of(old.servers.iter().map(|server| server.standing)).give(ids.into_iter());
    given.into_iter().map(ServerId).collect()
}

impl ServerConfig {
    /// Whether the file says of `other` what it says of this one, whatever ports listeners leave to either.
    pub(super) fn says_the_same(&self, other: &ServerConfig) -> bool {
        let have_same_sources =
            have_same(self, other, |local| local.ip) && have_same(self, other, |local| &local.of_file);
        have_same_sources
            && ServerConfig {
                local: self.local.clone(),
                ..other.clone()
            } == *self
    }
}

/// Whether both are connected to from the same, as far as `of` says.
fn have_same<'a, T: PartialEq>(
    before: &'a ServerConfig,
    now: &'a ServerConfig,
    of: impl Fn(&'a LocalAddress) -> T,
) -> bool {
    before.local.iter().map(&of).eq(now.local.iter().map(&of))
}

/// The numbers of listeners, with the listener that had the addresses before where that is another.
pub(super) fn listeners(old: &Config, new: &Config) -> Vec<(ListenerId, Option<u16>)> {
    let in_file = |listener: &&ListenerConfig| listener.standing == Standing::InFile;
    let mut numbers = Numbers::of(old.listeners.iter().map(|listener| listener.standing));
    let mut id_of = |listener: &ListenerConfig| {
        let shares = |of: &&ListenerConfig| {
            let overlaps = |address| listener.addresses.iter().any(|own| own.overlaps(address));
            of.addresses.iter().any(overlaps)
        };
        let by_name = old.listeners.iter().filter(in_file).find(|of| of.name == listener.name);
        let is_renamed = |of: &&ListenerConfig| {
            of.addresses == listener.addresses && new.listeners.iter().all(|new| new.name != of.name)
        };
        let before = by_name.or_else(|| old.listeners.iter().filter(in_file).find(is_renamed));
        match before.filter(|of| of.goes_on_as(listener)) {
            Some(of) => (of.id, None),
            None => {
                let before = old.listeners.iter().filter(in_file).find(shares);
                (ListenerId(numbers.next()), before.map(|of| of.id.0))
            }
        }
    };
    new.listeners.iter().map(&mut id_of).collect()
}

impl ListenerConfig {
    /// Whether connections of this one lose nothing if its number is `other`'s from now on: they may be about to be opened, and
    /// none of its addresses goes.
    fn goes_on_as(&self, other: &ListenerConfig) -> bool {
        let has = |address: &ListenAddress| other.addresses.iter().any(|of| of.ip == address.ip);
        (self.bind, self.accept) == (other.bind, other.accept)
            && self.ports == other.ports
            && self.addresses.iter().all(has)
    }
}
