//! Counters by name, in groups.

use e2d2::counters::{Counters, Reason};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Named counts that belong together, in a fixed order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterGroup {
    pub(super) counts: Vec<(&'static str, u64)>,
}

/// Groups of counters by name, in the order in which they were added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterGroups {
    pub(super) groups: Vec<(&'static str, CounterGroup)>,
}

impl CounterGroup {
    /// The counts in the order given.
    pub fn new(counts: impl IntoIterator<Item = (&'static str, u64)>) -> Self {
        Self {
            counts: counts.into_iter().collect(),
        }
    }

    /// The count of that name.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.counts.iter().find(|(of, _)| *of == name).map(|(_, count)| *count)
    }

    /// All counts with their names, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.counts.iter().copied()
    }

    /// The sum of all counts.
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    fn add(&mut self, counts: impl Iterator<Item = (&'static str, u64)>) {
        for (place, (name, count)) in counts.enumerate() {
            // Mostly the same names come in the same order.
            let known = match self.counts.get(place) {
                Some((of, _)) if *of == name => Some(place),
                _ => self.counts.iter().position(|(of, _)| *of == name),
            };
            match known {
                Some(place) => self.counts[place].1 += count,
                None => self.counts.push((name, count)),
            }
        }
    }
}

impl CounterGroups {
    /// Adds a group; one of that name is added to.
    pub fn add(&mut self, name: &'static str, group: &CounterGroup) {
        self.count(name, group.counts.iter().copied());
    }

    /// Adds counts to the group of that name, which is made if there is none. Allocates nothing for names that are there.
    pub fn count(&mut self, name: &'static str, counts: impl IntoIterator<Item = (&'static str, u64)>) {
        let place = self.groups.iter().position(|(of, _)| *of == name);
        let place = place.unwrap_or_else(|| {
            self.groups.push((name, CounterGroup::default()));
            self.groups.len() - 1
        });
        self.groups[place].1.add(counts.into_iter());
    }

    /// The same with every reason of a list, also those that never happened.
    pub fn count_reasons<R: Reason>(&mut self, name: &'static str, counters: &Counters<R>) {
        self.count(name, counters.iter().map(|(reason, count)| (reason.name(), count)));
    }

    /// All counts, group by group.
    pub fn counts(&self) -> impl Iterator<Item = u64> + '_ {
        self.groups
            .iter()
            .flat_map(|(_, group)| &group.counts)
            .map(|(_, count)| *count)
    }

    /// The same, to be changed.
    pub fn counts_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        self.groups
            .iter_mut()
            .flat_map(|(_, group)| &mut group.counts)
            .map(|(_, count)| count)
    }

    /// Forgets all counts and keeps their names.
    pub fn set_to_zero(&mut self) {
        self.counts_mut().for_each(|count| *count = 0);
    }

    /// Adds all groups of another core.
    pub fn add_all(&mut self, other: &Self) {
        for (name, group) in &other.groups {
            self.add(name, group);
        }
    }

    /// The groups with their names, in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &CounterGroup)> + '_ {
        self.groups.iter().map(|(name, group)| (*name, group))
    }

    /// The count of that name in the first group that has it.
    pub fn find(&self, name: &str) -> Option<u64> {
        self.groups.iter().find_map(|(_, group)| group.count(name))
    }

    /// The group of that name.
    pub fn group(&self, name: &str) -> Option<&CounterGroup> {
        self.groups.iter().find(|(of, _)| *of == name).map(|(_, group)| group)
    }
}

impl Serialize for CounterGroup {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.counts.len()))?;
        for (name, count) in &self.counts {
            map.serialize_entry(name, count)?;
        }
        map.end()
    }
}

impl Serialize for CounterGroups {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.groups.len()))?;
        for (name, group) in &self.groups {
            map.serialize_entry(name, group)?;
        }
        map.end()
    }
}
