//! What was typed in the machine and what came of it, as a document.

use std::fmt::Write as _;
use std::time::Duration;

use super::machine::{Done, Machine};
use crate::RigError;

/// A machine and the record of what was done with it. A command that ends otherwise than expected is a fault, and the
/// walk goes on.
#[derive(Debug)]
pub struct Transcript<'a> {
    machine: &'a mut Machine,
    /// What stands in commands, and what a person would type for it.
    short: Vec<(String, &'static str)>,
    text: String,
    faults: Vec<String>,
}

impl<'a> Transcript<'a> {
    /// An empty record. In commands it shows the second of each pair in `short` in place of the first.
    pub fn new(machine: &'a mut Machine, short: Vec<(String, &'static str)>) -> Self {
        Self {
            machine,
            short,
            text: String::new(),
            faults: Vec::new(),
        }
    }

    /// A heading.
    pub fn chapter(&mut self, title: &str) {
        self.note(&format!("### {title}"));
    }

    /// Types a command that a user would, and records it with what it printed.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub fn type_in(&mut self, command: &str, limit: Duration) -> Result<Done, RigError> {
        self.type_after("", command, limit, |_| true)
    }

    /// The same of a command that has to succeed.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub fn must(&mut self, command: &str, limit: Duration) -> Result<Done, RigError> {
        self.must_show(command, limit, |_| true)
    }

    /// The same of a command that prints more than a reader looks at: the record has the lines that `is_shown` holds of.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub fn must_show(
        &mut self,
        command: &str,
        limit: Duration,
        is_shown: impl FnMut(&str) -> bool,
    ) -> Result<Done, RigError> {
        let done = self.type_after("", command, limit, is_shown)?;
        self.check(done.code == 0, || {
            format!("`{command}` ended with {}:\n{}", done.code, done.text)
        });
        Ok(done)
    }

    /// Runs the script `before`, which is not recorded, and then types a command.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub fn type_after(
        &mut self,
        before: &str,
        command: &str,
        limit: Duration,
        is_shown: impl FnMut(&str) -> bool,
    ) -> Result<Done, RigError> {
        let done = self.machine.run(&format!("{before}\n{command}"), limit)?;
        self.record(command, &done, is_shown);
        Ok(done)
    }

    fn record(&mut self, command: &str, done: &Done, mut is_shown: impl FnMut(&str) -> bool) {
        let mut command = command.to_owned();
        for (long, short) in &self.short {
            command = command.replace(long, short);
        }
        for (number, line) in command.lines().enumerate() {
            let mark = if number == 0 { "#" } else { " " };
            let _ = writeln!(self.text, "    {mark} {}", line.trim());
        }
        let mut left_out = false;
        for line in done.text.lines() {
            if is_shown(line) {
                left_out = false;
                let _ = writeln!(self.text, "{}", format!("    {line}").trim_end());
            } else if !left_out {
                left_out = true;
                let _ = writeln!(self.text, "    …");
            }
        }
        if done.code != 0 {
            let _ = writeln!(self.text, "    [exit code {}]", done.code);
        }
    }

    /// Runs what only the lab needs; it is not recorded.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub fn aside(&mut self, script: &str, limit: Duration) -> Result<Done, RigError> {
        self.machine.run(script, limit)
    }

    /// Adds a sentence.
    pub fn note(&mut self, text: &str) {
        let space = if self.text.ends_with("\n\n") { "" } else { "\n" };
        let _ = writeln!(self.text, "{space}{text}\n");
    }

    /// Says something to QEMU, as a hand at the cable would.
    ///
    /// # Errors
    /// As [`Machine::monitor`].
    pub fn by_hand(&mut self, what: &str, command: &str) -> Result<(), RigError> {
        self.note(what);
        self.machine.monitor(command).map(|_| ())
    }

    /// Notes a fault unless `holds`.
    pub fn check(&mut self, holds: bool, what: impl FnOnce() -> String) -> bool {
        if !holds {
            self.faults.push(what());
        }
        holds
    }

    /// The machine's folder, `/lab` in it.
    pub fn machine(&self) -> &Machine {
        self.machine
    }

    /// The record, and what went wrong.
    pub fn finish(self) -> (String, Vec<String>) {
        (self.text, self.faults)
    }
}
