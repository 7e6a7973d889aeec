//! Which source ports towards servers are one core's, of several: those whose answers come back to it.
//!
//! A set takes some 100 µs to be made, and few of a thousand servers' are different; so each is made once, and other settings
//! take over what those before had.

use arrayvec::ArrayVec;
use netfcts::pool::PortSet;
use netfcts::steering::{SourceKind, SteeringPlan};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What is remembered before it is looked for.
const LATELY: usize = 8;

/// Legs of a kind, and the place of the ports that they may have in memory.
type Which = (SourceKind, usize);

/// The sets of one core, for its settings and those after them, whose plans have the same rules and spread alike.
#[derive(Debug, Default)]
pub struct SourceSets {
    /// Each different set once.
    all: HashSet<Arc<PortSet>>,
    /// By what it is made of, which stays for that long.
    ours: HashMap<Which, (Arc<PortSet>, Arc<PortSet>)>,
}

/// The sets of one version of the settings, while they are chosen.
pub(crate) struct Chooser<'a> {
    sets: &'a mut SourceSets,
    /// The same set in `sets`, by the place of one in memory, which stays meanwhile.
    same: HashMap<usize, (Arc<PortSet>, Arc<PortSet>)>,
    used: HashSet<Which>,
    /// What was asked for lately, as most servers of a pool ask for the same at each of their addresses.
    lately: ArrayVec<(Which, Arc<PortSet>), LATELY>,
}

impl SourceSets {
    pub(crate) fn begin(&mut self) -> Chooser<'_> {
        Chooser {
            sets: self,
            same: HashMap::new(),
            used: HashSet::new(),
            lately: ArrayVec::new(),
        }
    }

    /// The set with these ports.
    fn shared(&mut self, ports: &Arc<PortSet>) -> Arc<PortSet> {
        if let Some(set) = self.all.get(ports) {
            return Arc::clone(set);
        }
        self.all.insert(Arc::clone(ports));
        Arc::clone(ports)
    }
}

impl Chooser<'_> {
    /// Those of `ports` that bring answers of a server to one of our addresses back to this core.
    pub(crate) fn ours(
        &mut self,
        (plan, core): (&SteeringPlan, usize),
        (server, local): ((u128, u16), u128),
        ports: &Arc<PortSet>,
    ) -> Arc<PortSet> {
        let asked = (plan.source_kind(server, local), place(ports));
        if let Some((_, ours)) = self.lately.iter().find(|(lately, _)| *lately == asked) {
            return Arc::clone(ours);
        }
        let same = self.same.entry(place(ports));
        let (_, ports) = same.or_insert_with(|| (Arc::clone(ports), self.sets.shared(ports)));
        let which = (asked.0, place(ports));
        self.used.insert(which);
        if !self.sets.ours.contains_key(&which) {
            let is_ours = plan.source_ports(server, local, core);
            let ours: Arc<PortSet> = Arc::new(ports.iter().filter(|&port| is_ours(port)).collect());
            let ours = self.sets.shared(&ours);
            self.sets.ours.insert(which, (Arc::clone(ports), ours));
        }
        let ours = Arc::clone(&self.sets.ours[&which].1);
        if self.lately.is_full() {
            self.lately.pop_at(0);
        }
        self.lately.push((asked, Arc::clone(&ours)));
        ours
    }

    /// All are chosen: others are forgotten, unless somebody still has them.
    pub(crate) fn end(self) {
        let Chooser {
            sets,
            same,
            used,
            lately,
        } = self;
        drop((same, lately));
        sets.ours.retain(|which, _| used.contains(which));
        sets.all.retain(|set| Arc::strong_count(set) > 1);
    }
}

/// Where a set is in memory.
fn place(set: &Arc<PortSet>) -> usize {
    Arc::as_ptr(set) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: u128 = 0xffff_0a00_0001;

    fn chosen(sets: &mut SourceSets, core: usize, ports: impl Iterator<Item = u16>) -> Arc<PortSet> {
        let plan = SteeringPlan::software(2, 7);
        let ports = Arc::new(ports.collect());
        let mut chooser = sets.begin();
        let first = chooser.ours((&plan, core), ((1, 80), LOCAL), &ports);
        let again = chooser.ours((&plan, core), ((2, 81), LOCAL), &ports);
        assert!(Arc::ptr_eq(&first, &again), "one kind of leg");
        chooser.end();
        first
    }

    #[test]
    fn other_settings_take_over_what_those_before_had() {
        let mut sets = SourceSets::default();
        let before = chosen(&mut sets, 0, 1024..2048);
        assert!(Arc::ptr_eq(&before, &chosen(&mut sets, 0, 1024..2048)));
        let others = chosen(&mut sets, 0, 1024..3000);
        assert!(others.iter().filter(|&port| port < 2048).eq(before.iter()));
        // That of the second core is the rest.
        let rest = chosen(&mut SourceSets::default(), 1, 1024..2048);
        assert_eq!(before.len() + rest.len(), 1024);
        assert!(rest.iter().all(|port| !before.contains(port)));
    }

    #[test]
    fn what_nobody_has_any_more_is_forgotten() {
        let mut sets = SourceSets::default();
        for last in 2000..2100 {
            drop(chosen(&mut sets, 0, 1024..last));
        }
        assert_eq!((sets.ours.len(), sets.all.len()), (1, 2));
    }
}
