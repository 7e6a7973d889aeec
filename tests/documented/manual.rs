//! The manual: every document is in it, every command in it is one, every configuration in it loads.

use std::fs;
use std::process::Command;

use pages::commands;
use proxyengine::config::Config;

use super::root;

/// What the manual is made of, from `docs/SUMMARY.md`: paths from the root, with their texts.
fn pages_of_the_manual() -> Vec<(String, String)> {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).expect("the summary");
    let links = summary
        .lines()
        .filter_map(|line| line.split_once("](")?.1.split(')').next());
    let paths = links.map(|link| match link.strip_prefix("../") {
        Some(file) => file.to_owned(),
        None => format!("docs/{link}"),
    });
    let texts = paths.map(|path| {
        let text = fs::read_to_string(root().join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        (path, text)
    });
    texts.collect()
}

#[test]
fn the_manual_has_every_document_once() {
    let mut named: Vec<String> = pages_of_the_manual().into_iter().map(|(path, _)| path).collect();
    let mut there = Vec::new();
    for folder in ["", "docs", "docs/reference"] {
        for entry in fs::read_dir(root().join(folder)).expect("a folder").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") && name != "SUMMARY.md" {
                there.push(format!("{folder}/{name}").trim_start_matches('/').to_owned());
            }
        }
    }
    named.sort();
    there.sort();
    assert_eq!(named, there);
}

/// All options that the text has, as it writes them.
fn options(words: &[String]) -> impl Iterator<Item = &str> {
    let options = words.iter().filter(|word| word.starts_with("--") && word.len() > 2);
    options.map(|word| word.split('=').next().unwrap_or(word))
}

/// With `--help` behind it a command line is read from left to right and nothing is done. The page of the commands is what
/// the engine says itself, and has usages, not command lines.
#[test]
fn commands_of_the_engine_are_understood() {
    let subcommands = super::reference::subcommands(&[]);
    assert!(subcommands.iter().any(|name| name == "check"), "{subcommands:?}");
    let mut tried = 0;
    let pages = pages_of_the_manual().into_iter();
    for (path, text) in pages.filter(|(path, _)| path != "docs/reference/commands.md") {
        for words in commands(&text, "proxyengine") {
            let names_a_file = words.iter().any(|word| word == "FILE" || word.ends_with(".toml"));
            let first = words.first().map_or("", String::as_str);
            assert!(
                subcommands.iter().any(|name| name == first) || names_a_file || first.starts_with("--"),
                "{path}: proxyengine {words:?}"
            );
            let output = Command::new(env!("CARGO_BIN_EXE_proxyengine"))
                .args(&words)
                .arg("--help")
                .output();
            let output = output.expect("the engine");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{path}: proxyengine {words:?}: {said}");
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried} commands");
}

/// The scripts' commands and options are in what they say of themselves, those of benchmarks in their sources.
#[test]
fn commands_of_the_scripts_are_known() {
    let usage = |script: &str| {
        let output = Command::new(root().join(script)).arg("--help").output();
        let output = output.unwrap_or_else(|error| panic!("{script}: {error}"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let benches = benches();
    let mut tried = 0;
    for (script, usage) in ["./build.sh", "./prepNet.sh"].map(|script| (script, usage(script))) {
        for (path, text) in pages_of_the_manual() {
            let commands = commands(&text, script);
            for words in commands.into_iter().filter(|words| words != &["--help"]) {
                let first = words.first().map_or("", String::as_str);
                let is_known = usage.lines().any(|line| line.split_whitespace().next() == Some(first))
                    || usage.contains(&format!("{} {first} ", &script[2..]));
                assert!(is_known, "{path}: {script} {first}");
                let sources = if first == "bench" { &benches } else { &usage };
                for option in options(&words) {
                    // In Rust a name, in a shell itself.
                    let name = option[2..].replace('-', "_");
                    let is_option = usage.contains(option) || sources.contains(option) || sources.contains(&name);
                    assert!(is_option, "{path}: {script} {words:?} has no {option}");
                }
                tried += 1;
            }
        }
    }
    assert!(tried > 20, "{tried} commands");
}

/// The sources of all benchmarks and of the programs that they share.
fn benches() -> String {
    let mut paths = std::collections::BTreeSet::new();
    super::files(&root(), &mut paths);
    let sources = paths.iter().filter(|path| {
        path.ends_with(".rs")
            && (path.contains("benches/") || path.contains("crates/rig/src") || path.contains("src/bin/"))
    });
    sources
        .map(|path| fs::read_to_string(root().join(path)).expect("a source"))
        .collect()
}

/// Those of `docs/configuration.md` are tried by `tests/config_files.rs` with everything else in it.
#[test]
fn configurations_in_the_manual_load() {
    let mut loaded = 0;
    for (path, text) in pages_of_the_manual() {
        for example in text
            .split("```toml\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
        {
            Config::parse(example, &path).unwrap_or_else(|error| panic!("{error}\nin:\n{example}"));
            loaded += 1;
        }
    }
    assert!(loaded >= 8, "{loaded} files");
}
