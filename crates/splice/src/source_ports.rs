//! Source addresses and ports towards servers.
//!
//! Servers that began together have their pools of ports in one group, which is one reservation of memory: it goes when none
//! of them is left. A pool is made of the ports that its server has when it begins. Where somebody begins to listen on one of them it
//! is not handed out again: settings that come later have a part of these ports.

use crate::base::difference::{Difference, MOST_SERVERS, put};
use crate::base::settings::{Local, Server, Settings};
use e2d2::time::Instant;
use netfcts::pool::{LastUse, PortPool, PortPools, Taken};
use std::sync::Arc;
use std::time::Duration;

/// The source ports of one core.
pub(crate) struct SourcePorts {
    groups: Vec<PortPools>,
    /// By server.
    places: Vec<Place>,
}

/// Where a server's pools are, and whose turn it is.
#[derive(Clone, Copy, Debug)]
struct Place {
    group: u16,
    /// Its number in the group.
    server: u16,
    /// The index of the local address that is next.
    next_local: u32,
}

/// What a core has to take in, and afterwards what it had.
pub(crate) struct SourcesChange {
    groups: Vec<(u16, Option<PortPools>)>,
    places: Vec<(u16, Option<Place>)>,
    /// How long ports rest, if that is new.
    time_wait: Option<Duration>,
}

impl SourcePorts {
    pub(crate) fn new(settings: &Settings) -> Self {
        let mut groups = Vec::with_capacity(MOST_SERVERS);
        groups.push(pools(settings.servers.iter(), settings.time_wait));
        let mut places = Vec::with_capacity(MOST_SERVERS);
        places.extend((0..settings.servers.len()).map(|server| Place::new(0, server)));
        SourcePorts { groups, places }
    }

    /// Takes a change in, and leaves in it what was there.
    pub(crate) fn adopt(&mut self, change: &mut SourcesChange) {
        if let Some(time_wait) = change.time_wait {
            self.groups.iter_mut().for_each(|pools| pools.set_quarantine(time_wait));
        }
        for (group, pools) in &mut change.groups {
            put(&mut self.groups, *group, pools);
        }
        for (server, place) in &mut change.places {
            put(&mut self.places, *server, place);
        }
    }

    /// The index of the local address whose turn it is towards a server.
    pub(crate) fn next_local(&self, server: usize) -> usize {
        self.places[server].next_local as usize
    }

    pub(crate) fn set_next_local(&mut self, server: usize, local: usize) {
        self.places[server].next_local = local as u32;
    }

    /// The pool of a local address of a server.
    pub(crate) fn pool(&self, server: usize, local: usize) -> &PortPool {
        let place = self.places[server];
        self.groups[usize::from(place.group)].pool(usize::from(place.server), local)
    }

    /// Takes a port towards a server from a local address of this number, one of those that the settings say now: see
    /// [`PortPools::take`].
    #[inline]
    pub(crate) fn take(&mut self, server: usize, (number, local): (usize, &Local), now: Instant) -> Option<Taken> {
        let place = self.places[server];
        let pool = (usize::from(place.server), number);
        self.groups[usize::from(place.group)].take(pool, &local.ports, now)
    }

    /// Gives a port back: see [`PortPools::release`].
    #[inline]
    pub(crate) fn release(&mut self, (server, local): (usize, usize), port: u16, last: LastUse, now: Instant) {
        let place = self.places[server];
        let pool = (usize::from(place.server), local);
        self.groups[usize::from(place.group)].release(pool, port, last, now);
    }

    /// Ports that are taken.
    pub(crate) fn in_use(&self) -> usize {
        let pools = self.groups.iter().flat_map(PortPools::iter);
        pools.map(PortPool::in_use).sum()
    }

    pub(crate) fn memory(&self) -> usize {
        self.groups.iter().map(PortPools::memory).sum::<usize>() + size_of_val(&*self.places)
    }

    pub(crate) fn grown(&self) -> usize {
        self.groups.iter().map(PortPools::grown).sum()
    }
}

impl Place {
    fn new(group: u16, server: usize) -> Self {
        Place {
            group,
            server: server as u16,
            next_local: 0,
        }
    }
}

impl SourcesChange {
    /// For a core with the settings `before`.
    pub(crate) fn new(settings: &Settings, before: &Settings, difference: &Difference) -> Self {
        let new = difference.new_servers.iter();
        let servers = new.clone().map(|&id| &settings.servers[usize::from(id)]);
        let mut groups: Vec<_> = (difference.past_groups.iter())
            .map(|&group| (group, Some(pools([].into_iter(), settings.time_wait))))
            .collect();
        if !difference.new_servers.is_empty() {
            groups.push((difference.group, Some(pools(servers, settings.time_wait))));
        }
        let place = |(server, &id): (usize, &u16)| (id, Some(Place::new(difference.group, server)));
        SourcesChange {
            groups,
            places: new.enumerate().map(place).collect(),
            time_wait: (settings.time_wait != before.time_wait).then_some(settings.time_wait),
        }
    }
}

/// A pool for each local address of each of these servers.
fn pools<'a>(servers: impl Iterator<Item = &'a Server>, time_wait: Duration) -> PortPools {
    let port_sets = |server: &Server| {
        let sets = server.locals.iter().map(|local| Arc::clone(&local.ports));
        sets.collect::<Vec<_>>()
    };
    PortPools::new(servers.map(port_sets), time_wait)
}
