//! What the documents name exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The names of all functions in Rust files under a folder.
fn functions(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a readable folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                functions(&path, into);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a readable file");
            let names = text.split("fn ").skip(1);
            into.extend(names.map(|rest| {
                rest.chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                    .collect()
            }));
        }
    }
}

#[test]
fn rules_of_tcp_name_tests_that_exist() {
    let mut known = BTreeSet::new();
    for folder in ["tests", "crates", "src"] {
        functions(&root().join(folder), &mut known);
    }
    let text = fs::read_to_string(root().join("docs/rfc-coverage.md")).expect("the list");
    let rules: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("| ") && line[2..].starts_with(|c: char| c.is_ascii_digit()))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    assert!(rules.len() > 60 && rules.len() <= 80, "{} rules", rules.len());
    for (number, rule) in (1..).zip(&rules) {
        assert_eq!(rule[1], number.to_string(), "the rules are numbered: {rule:?}");
        let tests: Vec<&str> = rule[4].split('`').skip(1).step_by(2).collect();
        assert!(
            !tests.is_empty() || rule[4] == "–",
            "rule {number} names neither a test nor that there is none"
        );
        for test in tests {
            assert!(known.contains(test), "rule {number}: there is no test `{test}`");
        }
    }
}
