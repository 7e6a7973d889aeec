//! Other settings while the core runs: made by another thread, taken in between two rounds.
//!
//! Whoever has a number keeps it, so that connections mean by it what they meant: a server or listener that is gone stays in
//! the settings until no connection names it. What the core takes in it swaps for what it had, which goes back with the
//! change to the thread that made it; nothing is allocated or freed here.

use super::{Proxy, Rooms};
use crate::base::callbacks::SelectServer;
use crate::base::difference::Difference;
use crate::base::output::NextHops;
use crate::base::settings::{CoreSteering, SendProxyFields, Settings, UpstreamSettings};
use crate::handshake::syn_ack_options::OptionsChange;
use crate::probe::Checks;
use crate::records::Log;
use crate::source_ports::SourcesChange;
use crate::tally::{Of, Tally};
use crate::upstream::UpstreamChange;
use e2d2::buffer::BufferPool;
use e2d2::memory::LargeSlice;
use e2d2::time::Instant;
use netfcts::progress::Progress;
use std::sync::Arc;

/// What a core goes on with, and once it has, what it had.
pub struct Change<S> {
    settings: Arc<Settings>,
    difference: Difference,
    selector: Option<S>,
    tally: Arc<Tally>,
    upstream: UpstreamChange,
    sources: SourcesChange,
    options: OptionsChange,
    checks: Option<Checks>,
    records: Option<LargeSlice<Progress>>,
    payload_fields: SendProxyFields,
    steering: Option<CoreSteering>,
}

impl<S> Change<S> {
    /// Other settings for a core that has those `before` and whose counts are `tally`, and what it chooses servers from as the
    /// worker with this index; without a selector it keeps its own, which knows rules by the numbers that they had when it was made.
    pub fn new(
        mut settings: Settings,
        (before, tally): (&Settings, &Tally),
        (upstream, worker): (&UpstreamSettings, usize),
        selector: Option<S>,
        difference: Difference,
    ) -> Self {
        let is_new = |of| match of {
            Of::Listener(listener) => difference.new_listeners.iter().any(|new| new.0 == listener),
            Of::Pool(pool) => difference.new_pools.binary_search(&pool).is_ok(),
            Of::Server(server) => difference.new_servers.binary_search(&server).is_ok(),
            Of::Rule(rule) => difference.new_rules.binary_search(&rule).is_ok(),
        };
        if selector.is_none() {
            settings.renumbered_rules = [&before.renumbered_rules[..], &difference.new_rules].concat();
            settings.renumbered_rules.sort_unstable();
            settings.renumbered_rules.dedup();
        }
        Change {
            tally: Arc::new(tally.with(&settings, upstream.pools.len(), is_new)),
            upstream: UpstreamChange::new(upstream, worker, &difference, settings.promises.offer.probe),
            sources: SourcesChange::new(&settings, before, &difference),
            options: OptionsChange::new(&settings, before, &difference),
            checks: Checks::for_change(&settings, before),
            records: Log::for_change(&settings, before),
            payload_fields: settings.fields_from_payload(),
            steering: settings.steering.clone(),
            settings: Arc::new(settings),
            selector,
            difference,
        }
    }

    /// The settings: the new ones until they are taken in, then the old ones.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Where the core counts, likewise.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// Goes on with other settings, and leaves in `change` what it had. Connections go on.
    pub fn adopt(&mut self, change: &mut Change<S>, now: Instant) {
        self.rooms.set_now(now);
        self.rooms.adopt(change);
    }

    /// The settings that the core has.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.rooms.settings)
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    fn adopt(&mut self, change: &mut Change<S>) {
        // While the ports that they have come from are still there.
        self.end_probes_of(&change.difference);
        self.end_checks_of(&change.difference);
        std::mem::swap(&mut self.settings, &mut change.settings);
        std::mem::swap(&mut self.tally, &mut change.tally);
        if let Some(selector) = &mut change.selector {
            std::mem::swap(&mut self.selector, selector);
        }
        self.legs.draw_one_in(self.settings.leg_sample);
        self.upstream.adopt(&mut change.upstream);
        self.upstream.meters().forgive(&self.settings.limits, self.now);
        self.sources.adopt(&mut change.sources);
        self.handshake.syn_ack_options.adopt(&mut change.options);
        let settings = (&*self.settings, &*change.settings);
        self.probes.adopt(settings, &change.difference, self.now);
        if change.settings.promises.offer.probe && !self.settings.promises.offer.probe {
            self.end_all_probes();
        }
        (self.checks).adopt(&mut change.checks, &self.settings, &change.difference, self.now);
        self.records.adopt(&self.settings, &mut change.records);
        std::mem::swap(&mut self.headers.payload_fields, &mut change.payload_fields);
        if let (Some(steering), Some(settings)) = (&mut self.steering, &mut change.steering) {
            std::mem::swap(&mut steering.settings, settings);
        }
    }
}
