//! Other servers, listeners and pools while the core runs: tables made by another thread, taken in by swapping.

use super::least::{Least, PoolsLeast};
use super::{Known, Ring, SynAckOptions};
use crate::base::difference::{Difference, put};
use crate::base::settings::{Settings, SynAckSettings};

/// What a core has to take in when it goes on with other settings, and afterwards what it had.
pub(crate) struct OptionsChange {
    settings: SynAckSettings,
    servers: Vec<(u16, Option<Known>)>,
    listeners: Vec<(u16, Option<u16>, Option<Ring>)>,
    pools: PoolsLeast,
    /// Pools with other members.
    changed: Vec<u16>,
    /// Pools with servers that they get and the core knows.
    additions: Vec<(u16, u16)>,
    /// Listeners with pools that they did not reach.
    reached: Vec<(u16, u16)>,
    /// Servers are asked and were not, or the other way round.
    asks_otherwise: bool,
}

impl OptionsChange {
    /// For a core with the settings `before`.
    pub(crate) fn new(settings: &Settings, before: &Settings, difference: &Difference) -> Self {
        let promises = &settings.promises;
        let unknown = Least::NOTHING.promise(&promises.offer);
        let known = |id: u16| {
            let known = Known::new(&settings.servers[usize::from(id)], settings);
            let is_joining = promises.offer.probe && difference.new_servers.binary_search(&id).is_ok();
            (id, Some(Known { is_joining, ..known }))
        };
        OptionsChange {
            settings: promises.clone(),
            servers: difference.replaced().map(known).collect(),
            listeners: (difference.new_listeners.iter())
                .map(|&(listener, before)| (listener, before, Some(Ring::new(unknown))))
                .collect(),
            pools: PoolsLeast::new(promises.pools.len(), unknown),
            changed: difference.pools.clone(),
            additions: additions(promises, &before.promises, difference),
            reached: reached(promises, &before.promises, difference),
            asks_otherwise: promises.offer.probe != before.promises.offer.probe,
        }
    }
}

impl SynAckOptions {
    /// Takes a change in, and leaves in it what was there.
    pub(crate) fn adopt(&mut self, change: &mut OptionsChange) {
        std::mem::swap(&mut self.settings, &mut change.settings);
        for (server, known) in &mut change.servers {
            put(&mut self.servers, *server, known);
        }
        for (listener, before, ring) in &mut change.listeners {
            // Cookies that were given for the addresses come back to the listener that has them now.
            if let Some(before) = before.and_then(|before| self.listeners.get(usize::from(before))) {
                *ring = Some(*before);
            }
            put(&mut self.listeners, *listener, ring);
        }
        self.pools.adopt(&mut change.pools, &change.changed);
        for &(listener, pool) in &change.reached {
            if let Some(ring) = self.listeners.get(usize::from(listener)) {
                self.pools.join_offers(pool, ring);
            }
        }
        for &(pool, server) in &change.additions {
            if let Some(known) = self.servers.get(usize::from(server)).filter(|known| !known.is_joining) {
                self.pools.lower(pool, Least::of(known));
            }
        }
        if change.asks_otherwise {
            let is_asked = self.settings.offer.probe;
            for known in &mut self.servers {
                (known.server_caps, known.is_asked) = (None, is_asked);
            }
            self.pools.forget(is_asked);
        }
    }
}

/// The pools that a listener reaches and did not, or that a new one does which has another's addresses.
fn reached(promises: &SynAckSettings, before: &SynAckSettings, difference: &Difference) -> Vec<(u16, u16)> {
    let is_new = |listener: u16| difference.new_listeners.iter().any(|new| new.0 == listener);
    let of_listener = |(listener, reach): (u16, &Vec<u16>)| {
        let had = before.reach.get(usize::from(listener)).filter(|_| !is_new(listener));
        let had = had.map_or(&[][..], |had| had.as_slice());
        let more = reach.iter().copied().filter(move |pool| !had.contains(pool));
        more.map(move |pool| (listener, pool)).collect::<Vec<_>>()
    };
    (0..).zip(&promises.reach).flat_map(of_listener).collect()
}

/// The servers that a changed pool has and had not, but for new ones, which [join](SynAckOptions::join) it.
fn additions(promises: &SynAckSettings, before: &SynAckSettings, difference: &Difference) -> Vec<(u16, u16)> {
    let had = |pool: u16, server: u16| {
        let pools = before.pools_of.get(usize::from(server));
        pools.is_some_and(|pools| pools.contains(&pool))
    };
    let is_new = |server: u16| difference.new_servers.binary_search(&server).is_ok();
    let of_pool = |&pool: &u16| {
        let members = promises.pools.get(usize::from(pool)).into_iter().flatten().copied();
        let added = members.filter(move |&server| promises.offer.probe && !is_new(server) && !had(pool, server));
        added.map(move |server| (pool, server))
    };
    difference.pools.iter().flat_map(of_pool).collect()
}
