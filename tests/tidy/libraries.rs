//! What the libraries may be: their licences, where they come from, and which of them the tree has twice.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use spdx::{Expression, LicenseReq, ParseMode};

/// Each of them lets a program be given on under this project's licences.
const LICENCES: [&str; 7] = [
    "0BSD",
    "Apache-2.0",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// In two versions, as libraries that are used ask for different ones.
const TWICE: [&str; 9] = [
    "bitflags",
    "getrandom",
    "itertools",
    "rand",
    "rand_core",
    "signal-hook",
    "syn",
    "thiserror",
    "thiserror-impl",
];

/// What is compiled on this machine: all of it is there, as these tests have been built.
fn packages() -> Vec<Value> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--offline",
        "--filter-platform",
    ]);
    cargo.arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn text<'a>(package: &'a Value, key: &str) -> &'a str {
    package[key].as_str().unwrap_or_default()
}

#[test]
fn libraries_come_from_the_registry_under_licences_that_fit() {
    let is_fitting = |wanted: &LicenseReq| {
        let id = wanted.license.id();
        id.is_some_and(|id| LICENCES.contains(&id.name))
    };
    let mut wrong = Vec::new();
    for package in packages() {
        let (name, licence) = (text(&package, "name"), text(&package, "license"));
        // "/" stood for "OR" once.
        let parsed = Expression::parse_mode(licence, ParseMode::LAX);
        if !parsed.is_ok_and(|licence| licence.evaluate(is_fitting)) {
            wrong.push(format!("{name}: licence {licence:?}"));
        }
        let source = text(&package, "source");
        if !source.is_empty() && !source.starts_with("registry+") {
            wrong.push(format!("{name}: from {source}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_other_library_is_there_twice() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let (name, version) = (text(&package, "name"), text(&package, "version"));
        versions.entry(name.to_owned()).or_default().insert(version.to_owned());
    }
    let twice = versions.iter().filter(|(_, versions)| versions.len() > 1);
    let twice: Vec<&str> = twice.map(|(name, _)| name.as_str()).collect();
    assert_eq!(twice, TWICE);
}
