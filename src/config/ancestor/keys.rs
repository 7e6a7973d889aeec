//! A table of an ancestor's file, from which key after key is taken: what is left at the end has no meaning.

use toml::{Table, Value};

use crate::config::source::{At, Source};

/// What is left of a table.
pub(super) struct Keys {
    /// Where it stands.
    pub(super) at: At,
    table: Table,
}

impl Keys {
    /// The section of this name; empty when the file has none.
    pub(super) fn section(source: &mut Source<'_>, name: &str) -> Self {
        Self {
            at: At::root().key(name),
            table: source.table(name),
        }
    }

    /// The table at `key`; empty when there is none.
    pub(super) fn table(&mut self, source: &mut Source<'_>, key: &str) -> Self {
        let at = self.at.key(key);
        let table = match self.table.remove(key) {
            Some(Value::Table(table)) => table,
            Some(other) => {
                source.refuse(&at, shown(&other), "a table");
                Table::new()
            }
            None => Table::new(),
        };
        Self { at, table }
    }

    /// The tables in the list at `key`.
    pub(super) fn tables(&mut self, source: &mut Source<'_>, key: &str) -> Vec<Self> {
        let at = self.at.key(key);
        let items = match self.table.remove(key) {
            Some(Value::Array(items)) => items,
            Some(other) => {
                source.refuse(&at, shown(&other), "a list of tables");
                Vec::new()
            }
            None => Vec::new(),
        };
        let mut tables = Vec::with_capacity(items.len());
        for (i, item) in items.into_iter().enumerate() {
            let at = at.index(i);
            match item {
                Value::Table(table) => tables.push(Self { at, table }),
                other => source.refuse(&at, shown(&other), "a table"),
            }
        }
        tables
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    pub(super) fn string(&mut self, source: &mut Source<'_>, key: &str) -> Option<String> {
        match self.table.remove(key)? {
            Value::String(text) => Some(text),
            other => {
                source.refuse(&self.at.key(key), shown(&other), "a string");
                None
            }
        }
    }

    pub(super) fn number(&mut self, source: &mut Source<'_>, key: &str) -> Option<i64> {
        match self.table.remove(key)? {
            Value::Integer(number) => Some(number),
            other => {
                source.refuse(&self.at.key(key), shown(&other), "a number");
                None
            }
        }
    }

    pub(super) fn boolean(&mut self, source: &mut Source<'_>, key: &str) -> Option<bool> {
        match self.table.remove(key)? {
            Value::Boolean(yes) => Some(yes),
            other => {
                source.refuse(&self.at.key(key), shown(&other), "true or false");
                None
            }
        }
    }

    pub(super) fn numbers(&mut self, source: &mut Source<'_>, key: &str) -> Option<Vec<i64>> {
        let value = self.table.remove(key)?;
        let numbers = value
            .as_array()
            .and_then(|items| items.iter().map(Value::as_integer).collect());
        if numbers.is_none() {
            source.refuse(&self.at.key(key), shown(&value), "a list of numbers");
        }
        numbers
    }

    /// A string without which nothing goes; when it is missing, the complaint and an empty one.
    pub(super) fn needed(&mut self, source: &mut Source<'_>, key: &str) -> String {
        if !self.table.contains_key(key) {
            source.complain(&self.at, format!("lacks the key `{key}`"));
        }
        self.string(source, key).unwrap_or_default()
    }

    /// The same for a port of TCP.
    pub(super) fn needed_port(&mut self, source: &mut Source<'_>, key: &str) -> u16 {
        if !self.table.contains_key(key) {
            source.complain(&self.at, format!("lacks the key `{key}`"));
        }
        let Some(number) = self.number(source, key) else {
            return 1;
        };
        u16::try_from(number).ok().filter(|port| *port != 0).unwrap_or_else(|| {
            source.refuse(&self.at.key(key), number, "a port of 1 to 65535");
            1
        })
    }

    /// Takes a key that has no meaning here, and says why in a warning.
    pub(super) fn ignore(&mut self, source: &mut Source<'_>, key: &str, why: &str) {
        if self.table.remove(key).is_some() {
            source.warn(&self.at.key(key), format!("has no meaning here: {why}"));
        }
    }

    /// Warns of all keys that nobody has taken.
    pub(super) fn finish(self, source: &mut Source<'_>) {
        for key in self.table.keys() {
            source.warn(
                &self.at.key(key),
                "has no meaning here: the ancestors do not know it either",
            );
        }
    }
}

/// A value in one line of reasonable length.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    let mut line: String = text
        .chars()
        .take(40)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if line.len() < text.len() {
        line.push('…');
    }
    line
}
