//! What is wrong with a configuration, in sentences that name file, line, key, value and what was expected.

use std::fmt;

/// Why a configuration was refused: every problem that was found, in the order of the file's lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where: `listener[1].rules[0].pool`. Empty when it concerns the file as a whole.
    pub path: String,
    /// Line of the file, counted from 1, when the place is in the file at all.
    pub line: Option<usize>,
    /// The rest of the sentence: `is "wbe", expected the name of a pool: "web" or "api"`.
    pub complaint: String,
}

impl ConfigError {
    pub(super) fn new(file: &str, problems: Vec<Problem>) -> Self {
        Self {
            file: file.to_owned(),
            problems,
        }
    }

    /// All that was found, at least one.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl Problem {
    /// In one line, with the name of the file: `demo.toml:14: port[0].mtu is 70000, expected 576 to 9000`.
    pub(super) fn in_file(&self, file: &str) -> String {
        let mut text = file.to_owned();
        if let Some(line) = self.line {
            text.push_str(&format!(":{line}"));
        }
        text.push_str(": ");
        if !self.path.is_empty() {
            text.push_str(&self.path);
            text.push(' ');
        }
        text.push_str(&self.complaint);
        text
    }
}

/// One line per problem.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            f.write_str(&problem.in_file(&self.file))?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
