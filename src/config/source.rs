//! The text of a configuration file with the place of every key, so that each complaint can name its line.

use std::cell::OnceCell;
use std::fmt::{self, Display, Write as _};
use std::net::SocketAddr;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::error::{ConfigError, Problem};

/// Where in the file: a dotted path with indices.
#[derive(Clone, Debug)]
pub(super) struct At {
    path: String,
    /// What is there is an address that DNS has answered with for the entry of this number.
    answer: Option<(usize, SocketAddr)>,
}

/// An address of a name that cannot be used: for the entry of this number, and why.
pub(super) type Unusable = ((usize, SocketAddr), String);

impl At {
    /// The file as a whole.
    pub(super) fn root() -> Self {
        Self::of(String::new())
    }

    fn of(path: String) -> Self {
        Self { path, answer: None }
    }

    /// The same place, for an address of the name that stands there. The file is not to blame for what is wrong with it.
    pub(super) fn of_answer(&self, entry: usize, address: SocketAddr) -> Self {
        Self {
            path: self.path.clone(),
            answer: Some((entry, address)),
        }
    }

    /// Whether DNS has answered with what is there.
    pub(super) fn is_of_answer(&self) -> bool {
        self.answer.is_some()
    }

    /// `key` within this table.
    pub(super) fn key(&self, key: &str) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        self.with([dot, key, ""])
    }

    /// Element `index` of this array.
    pub(super) fn index(&self, index: usize) -> Self {
        self.with(["[", &index.to_string(), "]"])
    }

    /// Without the machinery of formatting: of a configuration with ten thousand servers a hundred thousand places are named.
    fn with(&self, parts: [&str; 3]) -> Self {
        let mut path = String::with_capacity(self.path.len() + parts.iter().map(|part| part.len()).sum::<usize>());
        path.push_str(&self.path);
        parts.into_iter().for_each(|part| path.push_str(part));
        Self {
            path,
            answer: self.answer,
        }
    }
}

impl Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// A parsed document, and the problems found with it so far.
pub(super) struct Source<'t> {
    name: &'t str,
    text: &'t str,
    /// What nobody has read yet.
    unread: DeTable<'t>,
    /// All of it, once there is something to complain about.
    whole: OnceCell<DeValue<'t>>,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    unusable: Vec<Unusable>,
    /// Paths of ours, and what stands for them in the file.
    renamed: Vec<(String, String)>,
}

impl<'t> Source<'t> {
    /// Reads the syntax of `text`; `name` is what errors call the file.
    ///
    /// # Errors
    /// The first place that is not TOML.
    pub(super) fn parse(text: &'t str, name: &'t str) -> Result<Self, ConfigError> {
        // The parser can go on after a mistake, but what it then finds are mostly consequences of the first.
        let (root, errors) = DeTable::parse_recoverable(text);
        let mut source = Self {
            name,
            text,
            unread: root.into_inner(),
            whole: OnceCell::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
            unusable: Vec::new(),
            renamed: Vec::new(),
        };
        if let Some(error) = errors.first() {
            let line = error.span().map(|span| source.line_at(span.start));
            let complaint = format!("the file is not TOML here: {}", error.message());
            source.problems.push(Problem {
                path: String::new(),
                line,
                complaint,
            });
        }
        source.checked()?;
        Ok(source)
    }

    /// Complains that the value at `at` is not what is expected.
    pub(super) fn refuse(&mut self, at: &At, value: impl Display, expected: impl Display) {
        self.complain(at, format!("is {value}, expected {expected}"));
    }

    /// Complains with a sentence whose subject is `at`.
    pub(super) fn complain(&mut self, at: &At, complaint: impl Into<String>) {
        if let Some(answer) = at.answer {
            self.unusable.push((answer, complaint.into()));
            return;
        }
        let problem = self.problem(at, complaint.into());
        self.problems.push(problem);
    }

    /// Addresses of names that something was wrong with so far.
    pub(super) fn take_unusable(&mut self) -> Vec<Unusable> {
        std::mem::take(&mut self.unusable)
    }

    /// Notes what does not keep the file from being used; `at` is the subject.
    pub(super) fn warn(&mut self, at: &At, warning: impl Into<String>) {
        let problem = self.problem(at, warning.into());
        self.warnings.push(problem);
    }

    /// From now on complaints about `ours` and what is within are about `theirs`: that is what the file has in its place.
    pub(super) fn rename(&mut self, ours: &At, theirs: &At) {
        self.renamed.push((ours.path.clone(), theirs.path.clone()));
    }

    fn problem(&self, at: &At, complaint: String) -> Problem {
        let at = self.as_in_file(at);
        Problem {
            line: self.line_of(&at),
            path: at.path,
            complaint,
        }
    }

    /// The longest renamed part is replaced.
    fn as_in_file(&self, at: &At) -> At {
        let rest_of = |ours: &str| {
            let rest = at.path.strip_prefix(ours)?;
            (rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
        };
        let renamed = self
            .renamed
            .iter()
            .filter_map(|(ours, theirs)| Some((ours.len(), theirs, rest_of(ours)?)));
        match renamed.max_by_key(|(length, ..)| *length) {
            Some((_, theirs, rest)) => At::of(format!("{theirs}{rest}")),
            None => at.clone(),
        }
    }

    /// How many problems there are: what has grown in between went wrong in between.
    pub(super) fn problem_count(&self) -> usize {
        self.problems.len()
    }

    /// # Errors
    /// All problems so far, if any, in the order of the file.
    pub(super) fn checked(&mut self) -> Result<(), ConfigError> {
        if self.problems.is_empty() {
            return Ok(());
        }
        let mut problems = std::mem::take(&mut self.problems);
        problems.sort_by_key(|problem| problem.line);
        Err(ConfigError::new(self.name, problems))
    }

    /// The warnings so far, one line each, in the order of the file.
    pub(super) fn take_warnings(&mut self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut self.warnings);
        warnings.sort_by_key(|warning| warning.line);
        warnings.iter().map(|warning| warning.in_file(self.name)).collect()
    }

    /// Whether there is a key of this path of keys that has not been read.
    pub(super) fn has(&self, path: &[&str]) -> bool {
        let [first, inner @ ..] = path else { return true };
        let mut value = self.unread.get(*first);
        for key in inner {
            value = value.and_then(|value| value.get_ref().get(*key));
        }
        value.is_some()
    }

    /// Names of the top-level keys that have not been read.
    pub(super) fn top_level(&self) -> Vec<String> {
        self.unread.keys().map(|key| key.get_ref().to_string()).collect()
    }

    /// The table `[key]`, or its default when the file has none.
    pub(super) fn table<T: DeserializeOwned + Default>(&mut self, key: &str) -> T {
        let Some(value) = self.unread.remove(key) else {
            return T::default();
        };
        let at = At::root().key(key);
        if !value.get_ref().is_table() {
            self.complain(
                &at,
                format!("is {}, expected a table written as [{key}]", kind(value.get_ref())),
            );
            return T::default();
        }
        self.read(&at, value).unwrap_or_default()
    }

    /// The tables `[[key]]`, in order; those that cannot be read are complained about and left out.
    pub(super) fn tables<T: DeserializeOwned>(&mut self, key: &str) -> Vec<T> {
        let Some(value) = self.unread.remove(key) else {
            return Vec::new();
        };
        let at = At::root().key(key);
        let DeValue::Array(items) = value.into_inner() else {
            self.complain(
                &at,
                format!("is not a list, expected one or more tables, each written as [[{key}]]"),
            );
            return Vec::new();
        };
        items
            .into_iter()
            .enumerate()
            .filter_map(|(i, item)| self.read(&at.index(i), item))
            .collect()
    }

    /// The tables `[[key]]`, or the one table `[key]`.
    pub(super) fn table_or_tables<T: DeserializeOwned>(&mut self, key: &str) -> Vec<T> {
        if !self.unread.get(key).is_some_and(|value| value.get_ref().is_table()) {
            return self.tables(key);
        }
        let at = At::root().key(key);
        self.rename(&at.index(0), &at);
        let value = self.unread.remove(key);
        value.and_then(|value| self.read(&at, value)).into_iter().collect()
    }

    fn read<T: DeserializeOwned>(&mut self, at: &At, value: Spanned<DeValue<'t>>) -> Option<T> {
        match T::deserialize(ValueDeserializer::from(value)) {
            Ok(read) => Some(read),
            Err(error) => {
                let mut path = at.path.clone();
                let mut complaint = String::new();
                let mut line = self.line_of(at);
                if let Some(span) = error.span() {
                    line = Some(self.line_at(span.start));
                    if let Some(value) = self.values_to(at).last() {
                        descend(value, &span, &mut path);
                    }
                    let text = self.text.get(span).unwrap_or_default();
                    if path != at.path && !text.contains('\n') && !error.message().starts_with("unknown field") {
                        _ = write!(complaint, "is {text}: ");
                    }
                }
                complaint.push_str(&sentence(error.message()));
                self.problems.push(Problem { path, line, complaint });
                None
            }
        }
    }

    /// Line of the value at `at`, or of the nearest table around it that is in the file.
    fn line_of(&self, at: &At) -> Option<usize> {
        let nearest = self.values_to(at).last()?;
        Some(self.line_at(nearest.span().start))
    }

    /// The values on the way to that at `at`, from the outermost on, as far as the file has them.
    fn values_to<'s>(&'s self, at: &'s At) -> impl Iterator<Item = &'s Spanned<DeValue<'t>>> {
        let steps = at.path.split(['.', '[']).filter(|step| !step.is_empty());
        steps.scan(self.whole(), |value, step| {
            let next = match step.strip_suffix(']') {
                Some(index) => value.get(index.parse::<usize>().ok()?),
                None => value.get(step),
            }?;
            *value = next.get_ref();
            Some(next)
        })
    }

    /// The document. It is read again for it, as a file that nothing is wrong with is not looked at twice.
    fn whole(&self) -> &DeValue<'t> {
        self.whole
            .get_or_init(|| DeValue::Table(DeTable::parse_recoverable(self.text).0.into_inner()))
    }

    fn line_at(&self, offset: usize) -> usize {
        1 + self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
    }
}

/// Extends `path` to the innermost key or element whose text holds `span`.
fn descend(value: &Spanned<DeValue<'_>>, span: &Range<usize>, path: &mut String) {
    let holds = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
    match value.get_ref() {
        DeValue::Table(table) => {
            for (key, inner) in table {
                if holds(key.span()) || holds(inner.span()) {
                    _ = write!(path, ".{}", key.get_ref());
                    if !holds(key.span()) {
                        descend(inner, span, path);
                    }
                    return;
                }
            }
        }
        DeValue::Array(array) => {
            for (i, inner) in array.iter().enumerate() {
                if holds(inner.span()) {
                    _ = write!(path, "[{i}]");
                    return descend(inner, span, path);
                }
            }
        }
        _ => (),
    }
}

/// serde's messages have no subject; the path is put before them.
fn sentence(message: &str) -> String {
    if let Some(rest) = message.strip_prefix("unknown field ") {
        let expected = rest.split_once(", ").map_or("", |(_, expected)| expected);
        return format!("is not a key of this table, {expected}");
    }
    if let Some(field) = message.strip_prefix("missing field ") {
        return format!("lacks the key {field}");
    }
    message.to_owned()
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
