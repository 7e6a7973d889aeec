//! `[[list]]`, and the table that is made of all of them and of what rules ask.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;

use super::Config;
use super::model::ListenerConfig;
use super::rule::{Clients, Match};
use crate::guard::{Asked, CLASS, ClientTable, Entry, ListContent, ListHits, Source, TableError, is_class};

/// Prefixes with a class each, under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListConfig {
    /// Unlike that of any other list, and unlike an address.
    pub name: String,
    /// Where it comes from; none for one that is filled while the engine runs.
    pub file: Option<PathBuf>,
    /// What was in the file.
    pub content: Arc<ListContent>,
    /// The names of classes: those of the file, and behind them those that came while the engine ran.
    pub classes: Vec<String>,
    /// What came and went while the engine ran.
    pub changes: BTreeMap<IpNet, Changed>,
    /// How often somebody of it came.
    pub hits: Arc<ListHits>,
}

/// What has become of a prefix while the engine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It is in the list, whatever the file says.
    Added {
        /// With this class.
        entry: Entry,
        /// Until then; for good without.
        until: Option<Instant>,
    },
    /// It is not, until the file is read again.
    Removed,
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
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        let of_file = self.content.entries.iter();
        let unchanged = of_file.filter(|entry| self.changes.is_empty() || !self.changes.contains_key(&entry.prefix));
        let added = self.changes.values().filter_map(|changed| match changed {
            Changed::Added { entry, .. } => Some(entry),
            Changed::Removed => None,
        });
        unchanged.chain(added)
    }

    fn class(&mut self, name: &str) -> Result<u16, String> {
        if let Some(number) = self.classes.iter().position(|class| class == name) {
            return Ok(number as u16);
        }
        if !is_class(name) {
            return Err(format!("a class is {CLASS}"));
        }
        self.classes.push(name.to_owned());
        u16::try_from(self.classes.len() - 1).map_err(|_| "there are too many classes".to_owned())
    }

    fn has(&self, prefix: &IpNet) -> bool {
        match self.changes.get(prefix) {
            Some(changed) => *changed != Changed::Removed,
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
                let class = self.class(&class)?;
                for prefix in prefixes {
                    let entry = Entry { prefix, class };
                    self.changes.insert(prefix, Changed::Added { entry, until });
                }
            }
            ListChange::Remove(prefixes) => {
                if let Some(prefix) = prefixes.iter().find(|prefix| !self.has(prefix)) {
                    return Err(format!("{prefix} is not in the list \"{}\"", self.name));
                }
                prefixes.iter().for_each(|prefix| self.take_out(prefix));
            }
        }
        Ok(())
    }

    fn take_out(&mut self, prefix: &IpNet) {
        self.changes.remove(prefix);
        if self.is_in_file(prefix) {
            self.changes.insert(*prefix, Changed::Removed);
        }
    }

    /// Whether the same is in `other`, from the same file.
    pub(super) fn holds_the_same(&self, other: &ListConfig) -> bool {
        (&self.file, &self.changes) == (&other.file, &other.changes)
            && (Arc::ptr_eq(&self.content, &other.content) || self.content == other.content)
    }

    /// What came while the engine ran stays when the file is read again, and what is counted.
    pub(super) fn go_on_from(&mut self, before: &ListConfig) {
        self.hits = Arc::clone(&before.hits);
        for (prefix, changed) in &before.changes {
            if let Changed::Added { entry, until } = changed
                && let Some(class) = before.classes.get(usize::from(entry.class))
                && let Ok(class) = self.class(class)
            {
                let entry = Entry { class, ..*entry };
                self.changes.insert(*prefix, Changed::Added { entry, until: *until });
            }
        }
    }

    /// What has had its time is as the file says.
    fn expire(&mut self, now: Instant) {
        let is_over = |changed: &Changed| matches!(changed, Changed::Added { until: Some(until), .. } if *until <= now);
        self.changes.retain(|_, changed| !is_over(changed));
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

    /// The same without the prefixes of lists that have had their time; nothing if none has.
    ///
    /// # Errors
    /// There is no table for what is left.
    pub fn without_expired(&self, now: Instant) -> Result<Option<Config>, TableError> {
        let is_due = |changed: &Changed| matches!(changed, Changed::Added { until: Some(until), .. } if *until <= now);
        if !self.lists.iter().any(|list| list.changes.values().any(is_due)) {
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
            entries: list.entries().copied().collect(),
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
