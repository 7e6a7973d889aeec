//! Has all cores go on with another version of the configuration: topology, next hops and each core's part of it, in this order.
//!
//! A running engine does it for its workers; a [`Reloader`] for cores that somebody else runs, as benches do that measure each
//! round.

use std::sync::Arc;

use e2d2::wire::MacAddr;
use splice::difference::Difference;

use super::board::Board;
use super::generation::{Desk, Generations, Next, Remake, offices};
use super::running::ReloadError;
use super::steering;
use super::watch::Watch;
use crate::config::{Config, CoreId};
use crate::neighbour::{SharedNeighbours, Topology};
use crate::selectors::RuleSelector;

/// Where each core shows itself.
pub(super) type Boards = Vec<(CoreId, Arc<Board>)>;

/// What all cores have before they go on.
pub(super) struct Before<'a> {
    pub(super) macs: &'a [MacAddr],
    pub(super) topology: &'a Arc<Topology>,
    pub(super) neighbours: &'a SharedNeighbours,
    pub(super) boards: Boards,
}

/// Returns what they have afterwards. If that fails nothing has changed on any.
pub(super) fn go_on_with(
    generations: &mut dyn Generations,
    (config, difference): (&Arc<Config>, &Difference),
    before: Before<'_>,
) -> Result<(Arc<Topology>, Boards), ReloadError> {
    steering::check(config)?;
    let hops = before.topology.next_hops();
    let topology = Arc::new(Topology::from_config_after(config, before.macs, hops)?);
    before.neighbours.go_on_with(&topology, hops);
    let boards = generations.change(&Next {
        config,
        difference,
        topology: &topology,
        before: before.topology,
        boards: before.boards,
    });
    match boards {
        Ok(boards) => Ok((topology, boards)),
        Err(error) => {
            before.neighbours.go_on_with(before.topology, topology.next_hops());
            Err(error.into())
        }
    }
}

/// The main thread's part of a reload, for cores by the rules of the configuration that are no workers of an engine.
pub struct Reloader {
    generations: Box<dyn Generations>,
    config: Arc<Config>,
    topology: Arc<Topology>,
    neighbours: Arc<SharedNeighbours>,
    macs: Vec<MacAddr>,
    boards: Boards,
}

impl Reloader {
    /// For so many cores, which all begin with this configuration on ports with these MAC addresses; and each core's end, for
    /// [`Engine::core_by_rules`](super::Engine::core_by_rules).
    pub fn new(
        config: Arc<Config>,
        (neighbours, topology): (Arc<SharedNeighbours>, Arc<Topology>),
        macs: Vec<MacAddr>,
        cores: usize,
    ) -> (Reloader, Vec<Desk<RuleSelector>>) {
        let remake: Remake<RuleSelector> = Box::new(|config, _| RuleSelector::new(config));
        let (generations, desks) = offices(cores, Some(remake));
        let reloader = Reloader {
            generations: Box::new(generations),
            config,
            topology,
            neighbours,
            macs,
            boards: Vec::new(),
        };
        (reloader, desks)
    }

    /// The cores have begun: a view of each, in the order of their ends.
    pub fn begin(&mut self, cores: &[Watch]) {
        self.boards = cores.iter().flat_map(Watch::boards).collect();
    }

    /// The version that all cores run with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Has all cores go on with another version, which goes on from theirs; returns when all use it.
    ///
    /// # Errors
    /// As a running engine's reload: no core has changed.
    pub fn go_on_with(&mut self, config: Config, difference: &Difference) -> Result<(), ReloadError> {
        let config = Arc::new(config);
        let before = Before {
            macs: &self.macs,
            topology: &self.topology,
            neighbours: &self.neighbours,
            boards: self.boards.clone(),
        };
        let (topology, boards) = go_on_with(&mut *self.generations, (&config, difference), before)?;
        (self.config, self.topology, self.boards) = (config, topology, boards);
        Ok(())
    }

    /// Forgets what is past and no connection names. A look at all connections begins with the first call.
    ///
    /// # Errors
    /// As [`go_on_with`](Self::go_on_with).
    pub fn forget_past(&mut self) -> Result<(), ReloadError> {
        let named = self.generations.look(&self.config);
        match named.and_then(|named| self.config.without_past(&named)) {
            Some((config, difference)) => self.go_on_with(config, &difference),
            None => Ok(()),
        }
    }
}
