//! Other servers, listeners and pools while the core runs: tables made by another thread, taken in by swapping.

use super::{AdvertisedOptions, Known, Least, Ring, SynAckOptions};
use crate::base::difference::{Difference, put};
use crate::base::settings::{Settings, SynAckSettings};

/// What a core has to take in when it goes on with other settings, and afterwards what it had.
pub(crate) struct OptionsChange {
    settings: SynAckSettings,
    servers: Vec<(u16, Option<Known>)>,
    listeners: Vec<(u16, Option<u16>, Option<Ring>)>,
    pools: Box<[Least]>,
    next: Box<[AdvertisedOptions]>,
}

impl OptionsChange {
    pub(crate) fn new(settings: &Settings, difference: &Difference) -> Self {
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
            pools: vec![Least::NOTHING; promises.pools.len()].into_boxed_slice(),
            next: vec![unknown; promises.reach.len()].into_boxed_slice(),
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
        std::mem::swap(&mut self.pools, &mut change.pools);
        std::mem::swap(&mut self.next, &mut change.next);
        self.find_least();
    }
}
