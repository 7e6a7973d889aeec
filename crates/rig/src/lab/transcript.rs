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
    text: String,
    faults: Vec<String>,
}

impl<'a> Transcript<'a> {
    /// An empty record.
    pub fn new(machine: &'a mut Machine) -> Self {
        Self {
            machine,
            text: String::new(),
            faults: Vec::new(),
        }
    }

    /// A heading.
    pub fn chapter(&mut self, title: &str) {
        let _ = writeln!(self.text, "\n### {title}\n");
    }

    /// Types a command that a user would, and records it with what it printed.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub fn type_in(&mut self, command: &str, limit: Duration) -> Result<Done, RigError> {
        let done = self.machine.run(command, limit)?;
        let _ = writeln!(self.text, "    # {command}");
        for line in done.text.lines() {
            let _ = writeln!(self.text, "    {line}");
        }
        if done.code != 0 {
            let _ = writeln!(self.text, "    [exit code {}]", done.code);
        }
        Ok(done)
    }

    /// The same of a command that has to succeed.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub fn must(&mut self, command: &str, limit: Duration) -> Result<Done, RigError> {
        let done = self.type_in(command, limit)?;
        self.check(done.code == 0, || {
            format!("`{command}` ended with {}:\n{}", done.code, done.text)
        });
        Ok(done)
    }

    /// Runs what only the lab needs; it is not recorded.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub fn aside(&mut self, script: &str, limit: Duration) -> Result<Done, RigError> {
        self.machine.run(script, limit)
    }

    /// Says something to QEMU, as a hand at the cable would.
    ///
    /// # Errors
    /// As [`Machine::monitor`].
    pub fn by_hand(&mut self, what: &str, command: &str) -> Result<(), RigError> {
        let _ = writeln!(self.text, "\n{what}\n");
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
