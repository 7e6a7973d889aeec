//! What the documents name exists, and what they have a reader type is understood.

mod keys;
mod manual;
mod monitoring;
mod pictures;
mod reference;

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use e2d2::flow::{FlowRule, MaskedPort, NicModel};

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

#[test]
fn promises_of_security_name_tests_that_exist() {
    let mut known = BTreeSet::new();
    for folder in ["tests", "crates", "src"] {
        functions(&root().join(folder), &mut known);
    }
    let text = fs::read_to_string(root().join("SECURITY.md")).expect("the promises");
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
    let shown: Vec<&str> = rows.filter_map(|row| row.split('|').nth(4)).collect();
    assert!(shown.len() > 10, "{shown:?}");
    for cell in shown {
        assert!(cell.contains('`'), "a promise without what shows it: {cell:?}");
        let quoted = cell.split('`').skip(1).step_by(2);
        for test in quoted.filter(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '_')) {
            assert!(known.contains(test), "there is no test `{test}`");
        }
    }
}

/// Elsewhere the compiler refuses it, as the workspace denies it.
#[test]
fn unsafe_code_of_the_engine_is_where_security_says() {
    let mut paths = BTreeSet::new();
    files(&root(), &mut paths);
    let allowed = ["crates/dpdk-sys/", "crates/e2d2/"];
    let others = ["crates/libproxyproto", "crates/mmproxy/"];
    for path in paths
        .iter()
        .filter(|path| path.ends_with(".rs") && path.contains("src/"))
    {
        if !allowed.iter().chain(&others).any(|folder| path.starts_with(folder)) {
            let text = fs::read_to_string(root().join(path)).expect("a source");
            assert!(!text.contains("allow(unsafe_code"), "{path}");
        }
    }
}

/// All files of the repository below a folder, by their paths from its root.
fn files(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a readable folder").flatten() {
        let path = entry.path();
        if !path.is_dir() {
            let from_root = path.strip_prefix(root()).expect("below the root");
            into.insert(from_root.to_string_lossy().into_owned());
        } else if !matches!(entry.file_name().to_str(), Some("target" | ".git")) {
            files(&path, into);
        }
    }
}

/// Whether a word is the name of a file that is written by hand, with as many folders as it needs.
fn is_file_name(word: &str) -> bool {
    [".rs", ".sh", ".md"].iter().any(|end| word.ends_with(end))
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
}

#[test]
fn files_that_documents_name_exist() {
    let mut known = BTreeSet::new();
    files(&root(), &mut known);
    let (mut named, mut missing) = (0, Vec::new());
    // The lab's notes are about what was and what is planned.
    let documents = known
        .iter()
        .filter(|path| path.ends_with(".md") && !path.starts_with("docs/lab/"));
    for document in documents {
        let text = fs::read_to_string(root().join(document)).expect("a readable file");
        for line in text.lines().filter(|line| !line.starts_with("```")) {
            let words = line.split('`').skip(1).step_by(2).filter(|word| is_file_name(word));
            for word in words.map(|word| word.trim_start_matches("./")) {
                named += 1;
                let behind_a_folder = format!("/{word}");
                if !known
                    .iter()
                    .any(|path| path == word || path.ends_with(&behind_a_folder))
                {
                    missing.push(format!("{document}: {word}"));
                }
            }
        }
    }
    assert_eq!(missing, [""; 0]);
    assert!(named > 100, "{named} names");
}

/// The page is for those who have the card; what they try must be what the engine asks for.
#[test]
fn rules_to_try_by_hand_are_those_that_the_engine_makes() {
    let command = |model, destination: &str, port: Option<(u16, u16)>, queue| {
        let rule = FlowRule {
            destination: destination.parse::<IpAddr>().expect("an address"),
            port: port.map(|(value, mask)| MaskedPort { value, mask }),
            queue,
        };
        rule.testpmd(0, Some(model))
    };
    let (old, new) = (NicModel::Intel82599, NicModel::X710);
    let expected = [
        command(old, "10.77.0.1", Some((0xc000, 0xc000)), 0),
        command(old, "10.77.0.1", Some((0x8000, 0xc000)), 1),
        command(old, "10.77.0.1", Some((0x8000, 0x8000)), 0),
        command(old, "10.77.0.2", None, 0),
        command(old, "10.77.0.3", None, 1),
        command(new, "10.77.1.2", None, 0),
        command(new, "10.77.1.3", None, 1),
        command(new, "fd77:0:0:1::2", None, 0),
        command(new, "fd77:0:0:1::3", None, 1),
        command(new, "10.77.1.4", Some((0x8000, 0xc000)), 1),
    ];
    let text = fs::read_to_string(root().join("docs/steering-rules.md")).expect("the page");
    let commands: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("flow create"))
        .collect();
    assert_eq!(commands, expected);
}
