//! `[[list]]`, and the table that is made of all of them and of what rules ask.

use std::collections::BTreeMap;
use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;

use super::Config;
use super::model::ListenerConfig;
use super::rule::{Clients, Match};
use crate::guard::{
    Asked, CLASS, ClientTable, Entry, ListContent, ListHits, MOST_CLASSES, MOST_ENTRIES, NO_CLASS, Source, TableError,
    is_class,
};

/// Prefixes with a class each, under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListConfig {
    /// Unlike that of any other list, and unlike an address.
    pub name: String,
    /// Where it comes from; none for one that is filled while the engine runs.
    pub file: Option<PathBuf>,
    /// What was in the file.
    pub content: Arc<ListContent>,
    /// The names of classes: those of the file, and behind them those of `changes`.
    pub classes: Vec<String>,
    /// What came and went while the engine ran.
    pub changes: BTreeMap<IpNet, Changed>,
    /// SYNs of those in it.
    pub hits: Arc<ListHits>,
}

/// What has become of a prefix while the engine runs: one of both at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// For good; without it, what the file says.
    pub kept: Option<Kept>,
    /// In the list with this class until then, whatever else holds.
    pub for_now: Option<(u16, Instant)>,
}

/// What holds of a prefix for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is in the list with this class, whatever the file says.
    Added(u16),
    /// It is not, until the file is read again.
    Removed,
}

impl Changed {
    /// Its class if it is in the list.
    pub fn class(&self) -> Option<u16> {
        match (self.for_now, self.kept) {
            (Some((class, _)), _) | (None, Some(Kept::Added(class))) => Some(class),
            (None, Some(Kept::Removed) | None) => None,
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.for_now.is_some_and(|(_, until)| until <= now)
    }

    fn classes_mut(&mut self) -> impl Iterator<Item = &mut u16> {
        let kept = match &mut self.kept {
            Some(Kept::Added(class)) => Some(class),
            Some(Kept::Removed) | None => None,
        };
        kept.into_iter().chain(self.for_now.as_mut().map(|(class, _)| class))
    }
}

/// A change of a list while the engine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListChange {
    /// These prefixes are in it from now on.
    Add {
        /// Without host bits.
        prefixes: Vec<IpNet>,
        /// Their class; empty for none.
        class: String,
        /// Until when.
        until: Option<Instant>,
    },
    /// These are not.
    Remove(Vec<IpNet>),
}

impl ListConfig {
    /// A list of this name with what its file says.
    pub(super) fn new(name: String, file: Option<PathBuf>, content: ListContent) -> Self {
        ListConfig {
            name,
            file,
            classes: content.classes.clone(),
            content: Arc::new(content),
            changes: BTreeMap::new(),
            hits: Arc::default(),
        }
    }

    /// What is in it now.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let of_file = self.content.entries.iter().copied();
        let unchanged = of_file.filter(|entry| self.changes.is_empty() || !self.changes.contains_key(&entry.prefix));
        let added = self.changes.iter().filter_map(|(prefix, changed)| {
            let class = changed.class()?;
            Some(Entry { prefix: *prefix, class })
        });
        unchanged.chain(added)
    }

    /// How many.
    pub fn prefixes(&self) -> usize {
        let of_file = self.changes.keys().filter(|prefix| self.is_in_file(prefix)).count();
        let added = self.changes.values().filter_map(Changed::class).count();
        self.content.entries.len() - of_file + added
    }

    fn has(&self, prefix: &IpNet) -> bool {
        match self.changes.get(prefix) {
            Some(changed) => changed.class().is_some(),
            None => self.is_in_file(prefix),
        }
    }

    fn is_in_file(&self, prefix: &IpNet) -> bool {
        let entries = &self.content.entries;
        entries.binary_search_by_key(prefix, |entry| entry.prefix).is_ok()
    }

    fn change(&mut self, change: ListChange) -> Result<(), String> {
        match change {
            ListChange::Add { prefixes, class, until } => {
                if class != NO_CLASS && !is_class(&class) {
                    return Err(format!("a class is {CLASS}"));
                }
                let class = self.number(&class);
                for prefix in prefixes {
                    let changed = self.changes.entry(prefix).or_default();
                    *changed = match until {
                        Some(until) => Changed {
                            for_now: Some((class, until)),
                            ..*changed
                        },
                        None => Changed {
                            kept: Some(Kept::Added(class)),
                            for_now: None,
                        },
                    };
                }
            }
            ListChange::Remove(prefixes) => {
                if let Some(prefix) = prefixes.iter().find(|prefix| !self.has(prefix)) {
                    return Err(format!("{prefix} is not in the list \"{}\"", self.name));
                }
                prefixes.iter().for_each(|prefix| self.take_out(prefix));
            }
        }
        self.renumber()
    }

    fn take_out(&mut self, prefix: &IpNet) {
        self.changes.remove(prefix);
        if self.is_in_file(prefix) {
            let changed = Changed {
                kept: Some(Kept::Removed),
                for_now: None,
            };
            self.changes.insert(*prefix, changed);
        }
    }

    /// The number of a class, which it gets if it has none.
    fn number(&mut self, name: &str) -> u16 {
        let known = self.classes.iter().position(|class| class == name);
        let number = known.unwrap_or(self.classes.len());
        if known.is_none() {
            self.classes.push(name.to_owned());
        }
        // Fewer than twice `MOST_CLASSES`.
        number as u16
    }

    /// Numbers the classes of its changes anew, and forgets the names of those that nothing has any more.
    fn renumber(&mut self) -> Result<(), String> {
        let (changes, classes) = (mem::take(&mut self.changes), mem::take(&mut self.classes));
        self.take_changes(changes, &classes)
    }

    /// Has these changes in the place of its own, whose classes have numbers in `classes`.
    fn take_changes(&mut self, mut changes: BTreeMap<IpNet, Changed>, classes: &[String]) -> Result<(), String> {
        self.classes.clone_from(&self.content.classes);
        let mut numbers = vec![None; classes.len()];
        for class in changes.values_mut().flat_map(Changed::classes_mut) {
            let number = &mut numbers[usize::from(*class)];
            *class = *number.get_or_insert_with(|| self.number(&classes[usize::from(*class)]));
        }
        self.changes = changes;
        let too_many = |most, what| Err(format!("the list \"{}\" would have more than {most} {what}", self.name));
        if self.classes.len() > MOST_CLASSES {
            return too_many(MOST_CLASSES - 1, "classes");
        }
        if self.prefixes() > MOST_ENTRIES {
            return too_many(MOST_ENTRIES, "prefixes");
        }
        Ok(())
    }

    /// Whether the same is in `other`, from the same file.
    pub(super) fn holds_the_same(&self, other: &ListConfig) -> bool {
        (&self.file, &self.changes) == (&other.file, &other.changes)
            && (Arc::ptr_eq(&self.content, &other.content) || self.content == other.content)
    }

    /// What came while the engine ran stays when the file is read again, and what is counted.
    ///
    /// # Errors
    /// A sentence: that is more than a list can have.
    pub(super) fn go_on_from(&mut self, before: &ListConfig) -> Result<(), String> {
        self.hits = Arc::clone(&before.hits);
        let mut changes = before.changes.clone();
        changes
            .values_mut()
            .for_each(|changed| changed.kept = changed.kept.filter(|kept| *kept != Kept::Removed));
        changes.retain(|_, changed| *changed != Changed::default());
        self.take_changes(changes, &before.classes)
    }

    /// What has had its time is as it was before.
    fn expire(&mut self, now: Instant) {
        let over = self.changes.values_mut().filter(|changed| changed.is_over(now));
        over.for_each(|changed| changed.for_now = None);
        self.changes.retain(|_, changed| *changed != Changed::default());
        // There is no more than there was.
        _ = self.renumber();
    }
}

impl Config {
    /// The same configuration with another content of a list.
    ///
    /// # Errors
    /// A sentence: there is no such list, what is to be taken out is not in it, or there is no table for all that.
    pub fn with_list(&self, name: &str, change: ListChange) -> Result<Config, String> {
        let mut config = self.clone();
        let Some(list) = config.lists.iter_mut().find(|list| list.name == name) else {
            return Err(format!("there is no list \"{name}\""));
        };
        list.change(change)?;
        config.make_table().map_err(|error| error.to_string())?;
        Ok(config)
    }

    /// Names of lists whose file has no prefix any more, as a failed download leaves it, and how many it had `before`.
    pub fn emptied_lists<'a>(&'a self, before: &'a Config) -> impl Iterator<Item = (&'a str, usize)> {
        let size = |list: &ListConfig| list.content.entries.len();
        self.lists
            .iter()
            .filter(move |list| list.file.is_some() && size(list) == 0)
            .filter_map(move |list| {
                let before = before.lists.iter().find(|before| before.name == list.name)?;
                (size(before) > 0).then_some((list.name.as_str(), size(before)))
            })
    }

    /// The same without the prefixes of lists that have had their time; nothing if none has.
    ///
    /// # Errors
    /// There is no table for what is left.
    pub fn without_expired(&self, now: Instant) -> Result<Option<Config>, TableError> {
        let is_due = |list: &ListConfig| list.changes.values().any(|changed| changed.is_over(now));
        if !self.lists.iter().any(is_due) {
            return Ok(None);
        }
        let mut config = self.clone();
        config.lists.iter_mut().for_each(|list| list.expire(now));
        config.make_table()?;
        Ok(Some(config))
    }

    /// Numbers what rules ask about clients, and makes the table that answers it.
    pub(super) fn make_table(&mut self) -> Result<(), TableError> {
        let mut asked: Vec<Clients> = Vec::new();
        number(&mut self.listeners, &mut asked);
        if asked.is_empty() && self.lists.is_empty() {
            self.client_table = None;
            return Ok(());
        }
        let place = |name: &str| self.lists.iter().position(|list| list.name == name);
        let of_lists = |(name, class): &(String, Option<String>)| {
            let list = place(name)?;
            let classes = &self.lists[list].classes;
            match class {
                None => Some((list, None)),
                // What nobody has is of nobody.
                Some(class) => Some((list, Some(classes.iter().position(|of| of == class)? as u16))),
            }
        };
        let asked: Vec<Asked> = asked
            .iter()
            .map(|clients| Asked {
                prefixes: clients.prefixes.clone(),
                lists: clients.lists.iter().filter_map(of_lists).collect(),
            })
            .collect();
        let source = |list: &ListConfig| Source {
            entries: list.entries().collect(),
            classes: list.classes.len(),
        };
        let sources: Vec<Source> = self.lists.iter().map(source).collect();
        self.client_table = Some(Arc::new(ClientTable::new(&sources, &asked)?));
        Ok(())
    }
}

/// Those that ask the same have one number.
fn number(listeners: &mut [ListenerConfig], asked: &mut Vec<Clients>) {
    for listener in listeners {
        let classes = listener.classes.iter_mut().map(|rule| &mut rule.matches);
        let rules = listener.rules.iter_mut().map(|rule| &mut rule.matches);
        rules.chain(classes).for_each(|matches| number_within(matches, asked));
    }
}

fn number_within(matches: &mut Match, asked: &mut Vec<Clients>) {
    match matches {
        Match::Client(clients) => {
            let known = asked.iter().position(|known| known == clients);
            let number = known.unwrap_or(asked.len());
            // Beyond what can be numbered, the table is refused.
            clients.number = number as u16;
            if known.is_none() {
                asked.push(clients.clone());
            }
        }
        Match::All(parts) => parts.iter_mut().for_each(|part| number_within(part, asked)),
        Match::Not(part) => number_within(part, asked),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    #[test]
    fn a_list_grows_no_longer_than_its_file_may_be() {
        let entry = |n: u32| Entry {
            prefix: IpNet::from(IpAddr::from(Ipv4Addr::from(n))),
            class: 0,
        };
        let content = ListContent {
            entries: (1..=MOST_ENTRIES as u32).map(entry).collect(),
            ..ListContent::default()
        };
        let mut list = ListConfig::new("l".to_owned(), None, content);
        let prefix = |text: &str| vec![text.parse().expect("a prefix")];
        let add = |text: &str| ListChange::Add {
            prefixes: prefix(text),
            class: String::new(),
            until: None,
        };
        list.change(add("0.0.0.7/32")).expect("the file has it");
        let refused = list.clone().change(add("192.0.2.1/32"));
        assert_eq!(
            refused,
            Err("the list \"l\" would have more than 2000000 prefixes".to_owned())
        );
        list.change(ListChange::Remove(prefix("0.0.0.7/32"))).expect("a change");
        list.change(add("192.0.2.1/32")).expect("in its place");
        assert_eq!(list.prefixes(), MOST_ENTRIES);
    }
}
