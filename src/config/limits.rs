//! `[[class]]`, and the limits of the whole configuration.

use splice::limit::{ClassSettings, Limit, Limits, Rank};

use super::{Config, Standing};

/// A class of clients, assigned by rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassConfig {
    /// Its name, unique.
    pub name: String,
    /// The limit of all its clients together.
    pub limit: Option<Limit>,
    /// Their turn in overload.
    pub rank: Rank,
}

impl ClassConfig {
    /// One without a limit.
    pub(super) fn named(name: &str) -> Self {
        ClassConfig {
            name: name.to_owned(),
            limit: None,
            rank: Rank::Usual,
        }
    }
}

impl Config {
    /// The classes by number; classes of earlier versions of the file keep theirs.
    pub fn classes(&self) -> &[ClassConfig] {
        &self.classes
    }

    /// All limits, for a core.
    pub(super) fn limits(&self) -> Limits {
        let listeners = self.listeners.iter();
        let class = |class: &ClassConfig| ClassSettings {
            limit: class.limit,
            rank: class.rank,
        };
        Limits::new(
            (
                listeners.clone().map(|listener| listener.limit).collect(),
                listeners.map(|listener| listener.client_limit).collect(),
            ),
            self.pools.iter().map(|pool| pool.limit).collect(),
            self.classes.iter().map(class).collect(),
        )
    }

    /// Gives classes the numbers that they had in the version before, as open connections are counted under them.
    pub(super) fn continue_classes(&mut self, before: &Config) {
        let mut classes: Vec<ClassConfig> = (before.classes.iter())
            .map(|class| ClassConfig::named(&class.name))
            .collect();
        let mut numbers = Vec::with_capacity(self.classes.len());
        for class in self.classes.drain(..) {
            let known = classes.iter().position(|known| known.name == class.name);
            let number = known.unwrap_or(classes.len());
            match classes.get_mut(number) {
                Some(known) => *known = class,
                None => classes.push(class),
            }
            numbers.push(number as u16);
        }
        self.classes = classes;
        // Listeners keep their numbers, too.
        let of_file = self
            .listeners
            .iter_mut()
            .filter(|listener| listener.standing == Standing::InFile);
        let rules = of_file.flat_map(|listener| &mut listener.classes);
        for rule in rules {
            rule.class = numbers[usize::from(rule.class)];
        }
    }
}
