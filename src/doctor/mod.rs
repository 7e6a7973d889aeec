//! `proxyengine doctor`: looks at the machine and says what is in the engine's way, why, and which command mends it.
//!
//! ```text
//!   Root (/sys, /proc, …) ─┐
//!                          ├─► examine ─► Diagnosis ─► text, JSON
//!   Config, if there is one┘      │
//!                                 └ rules: one row for each thing, the same in rt-tuning.md
//! ```
//!
//! What lives here: reading and judging. What does not: changing anything, opening a device or starting DPDK; it needs no
//! privileges, and what it may not read it says nothing about. Everything is read below a [`Root`], which tests replace by
//! a directory.
//!
//! An **error** keeps the engine from starting, or a port from working; a **warning** costs speed or latency.

pub(crate) mod devices;
pub(crate) mod machine;
mod placement;
mod process;
mod root;
pub mod rules;

use std::fmt;

use serde::Serialize;

use crate::config::{Config, Device, PortConfig};

pub use placement::{Misplaced, misplaced};
pub use root::{Root, cpu_list, show_cpus};
pub use rules::Rule;

/// How bad it is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It costs speed or latency.
    Warning,
    /// The engine does not start, or a port does not work.
    Error,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of its rule.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong: a sentence with values.
    pub what: String,
    /// Why it matters.
    pub why: &'static str,
    /// The command that mends it, for this machine.
    pub fix: String,
}

/// Something that is as it should be, or does not matter here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Passed {
    /// The name of its rule.
    pub id: &'static str,
    /// What was seen.
    pub what: String,
}

/// All that was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// Number of errors.
    pub errors: usize,
    /// Number of warnings.
    pub warnings: usize,
    /// What is wrong, errors first.
    pub findings: Vec<Finding>,
    /// The rest.
    pub passed: Vec<Passed>,
}

/// Looks at the machine for the engine that `config` describes, which is `file`; without one, at what every engine needs,
/// and at all network devices.
pub fn examine(root: &Root, config: Option<(&Config, &str)>) -> Diagnosis {
    let mut visit = Visit {
        root,
        config: config.map(|(config, _)| config),
        file: config.map_or("engine.toml", |(_, file)| file).to_owned(),
        diagnosis: Diagnosis::default(),
    };
    process::privileges(&mut visit);
    process::memlock(&mut visit);
    process::dpdk(&mut visit);
    machine::features(&mut visit);
    machine::tsc(&mut visit);
    machine::hugepages(&mut visit);
    machine::transparent_hugepages(&mut visit);
    machine::cores(&mut visit);
    machine::isolation(&mut visit);
    machine::governor(&mut visit);
    machine::siblings(&mut visit);
    machine::interrupts(&mut visit);
    devices::iommu(&mut visit);
    devices::pci(&mut visit);
    devices::numa(&mut visit);
    devices::descriptors(&mut visit);
    devices::interfaces(&mut visit);
    let mut diagnosis = visit.diagnosis;
    diagnosis
        .findings
        .sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let count = |severity| diagnosis.findings.iter().filter(|of| of.severity == severity).count();
    (diagnosis.errors, diagnosis.warnings) = (count(Severity::Error), count(Severity::Warning));
    diagnosis
}

/// A visit that is going on.
struct Visit<'a> {
    root: &'a Root,
    config: Option<&'a Config>,
    file: String,
    diagnosis: Diagnosis,
}

impl Visit<'_> {
    fn pass(&mut self, rule: &Rule, what: impl Into<String>) {
        let (id, what) = (rule.id, what.into());
        self.diagnosis.passed.push(Passed { id, what });
    }

    fn find(&mut self, rule: &'static Rule, severity: Severity, what: impl Into<String>, values: &[(&str, &str)]) {
        let mut values = values.to_vec();
        values.push(("file", &self.file));
        let fix = rules::fill(rule.fix, &values);
        self.diagnosis.findings.push(Finding {
            id: rule.id,
            severity,
            what: what.into(),
            why: rule.why,
            fix,
        });
    }

    fn warn(&mut self, rule: &'static Rule, what: impl Into<String>, values: &[(&str, &str)]) {
        self.find(rule, Severity::Warning, what, values);
    }

    fn error(&mut self, rule: &'static Rule, what: impl Into<String>, values: &[(&str, &str)]) {
        self.find(rule, Severity::Error, what, values);
    }

    /// The ports of the configuration; none without one.
    fn ports(&self) -> &[PortConfig] {
        self.config.map_or(&[], Config::ports)
    }

    /// The PCI addresses of the configuration's ports.
    fn pci_ports(&self) -> Vec<(String, String)> {
        let pci = |port: &PortConfig| match &port.device {
            Device::Pci { address, .. } => Some((port.name.clone(), address.to_string())),
            Device::Virtual { .. } => None,
        };
        self.ports().iter().filter_map(pci).collect()
    }

    /// The workers' cores; none without a configuration.
    fn cores(&self) -> Vec<u16> {
        let cores = self.config.map(|config| &config.engine().cores);
        cores.into_iter().flatten().map(|core| core.0).collect()
    }
}

impl Diagnosis {
    /// Whether nothing is wrong.
    pub fn is_well(&self) -> bool {
        self.findings.is_empty()
    }

    /// The JSON form: one object, indented, with a final newline.
    pub fn to_json(&self) -> String {
        // Strings and numbers always serialise.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let severity = match finding.severity {
                Severity::Error => "ERROR",
                Severity::Warning => "warning",
            };
            writeln!(f, "{severity:8} {}: {}", finding.id, finding.what)?;
            writeln!(f, "         why: {}", finding.why)?;
            writeln!(f, "         fix: {}", finding.fix)?;
        }
        for passed in &self.passed {
            writeln!(f, "{:8} {}: {}", "ok", passed.id, passed.what)?;
        }
        let count = |count: usize, name: &str| format!("{count} {name}{}", if count == 1 { "" } else { "s" });
        writeln!(
            f,
            "{}, {}, {} in order; rt-tuning.md explains more",
            count(self.errors, "error"),
            count(self.warnings, "warning"),
            self.passed.len()
        )
    }
}
