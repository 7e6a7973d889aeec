//! The checks of the fuzz targets without the fuzzer: every file of the corpus, and random bytes from a printed seed.

#![allow(unreachable_pub)] // modules of one test program

#[path = "../fuzz/src/lib.rs"]
mod checks;

use std::path::Path;
use testkit::sim::Random;

/// Runs a check on the files of its corpus, on each of them with a few bytes changed, and on random bytes.
fn try_all(corpus: &str, random_inputs: usize, check: impl Fn(&[u8])) {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    println!("SEED={seed}");
    let mut random = Random::new(seed);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(corpus);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no corpus in {}", folder.display());
    for file in &files {
        println!("{}", file.display());
        let bytes = std::fs::read(file).expect("a readable file");
        check(&bytes);
        for _ in 0..random_inputs / files.len() / 2 {
            let mut changed = bytes.clone();
            for _ in 0..random.within(1..=4) {
                if let Some(last) = changed.len().checked_sub(1) {
                    let at = random.within(0..=last as u64) as usize;
                    changed[at] = random.bits() as u8;
                }
            }
            check(&changed);
        }
    }
    for _ in 0..random_inputs / 2 {
        let length = random.within(0..=600);
        let bytes: Vec<u8> = (0..length).map(|_| random.bits() as u8).collect();
        check(&bytes);
    }
}

#[test]
fn frames() {
    try_all("fuzz/corpus/frame", 20_000, checks::wire::frame);
}

#[test]
fn options() {
    try_all("fuzz/corpus/options", 20_000, checks::wire::tcp_options);
}

#[test]
fn proxy_headers() {
    try_all("fuzz/corpus/proxy_protocol", 20_000, checks::headers::any);
}

#[test]
fn selectors() {
    try_all("fuzz/corpus/selectors", 4_000, checks::selectors);
}

#[test]
fn configurations() {
    try_all("config", 2_000, checks::config);
}

#[test]
fn the_core_by_events() {
    try_all("fuzz/corpus/core", 300, |bytes| {
        checks::core::events(bytes);
    });
}
