//! The checks of the fuzz targets without the fuzzer: every file of the corpus, and random bytes from a printed seed.
//!
//! `MINUTES=10 cargo test --test fuzzed -- --ignored --nocapture` goes on for so long with events for the core, without the
//! sanitizer and hundreds of times as many of them: inputs of some thousand events, put together of pieces of the corpus.

#![allow(unreachable_pub)] // modules of one test program

#[path = "../fuzz/src/lib.rs"]
mod checks;

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use testkit::sim::Random;

/// A number that the environment may name.
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The files of a folder, in the order of their names.
fn files_of(corpus: &str) -> Vec<std::path::PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(corpus);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no corpus in {}", folder.display());
    files
}

/// Runs a check on the files of its corpus, on each of them with a few bytes changed, and on random bytes.
fn try_all(corpus: &str, random_inputs: usize, check: impl Fn(&[u8])) {
    let seed = variable("SEED").unwrap_or(1);
    println!("SEED={seed}");
    let mut random = Random::new(seed);
    let files = files_of(corpus);
    for file in &files {
        println!("{}", file.display());
        let bytes = std::fs::read(file).expect("a readable file");
        check(&bytes);
        for _ in 0..(random_inputs / files.len() / 2).max(1) {
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
fn answers_of_name_servers() {
    try_all("fuzz/corpus/names", 20_000, checks::names);
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

/// Bytes of an input at length: some thousand events, as many as one is played with.
const AT_LENGTH: usize = 32 << 10;

/// Pieces of the corpus in any order, one byte in some hundred changed.
fn pieces(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = Vec::with_capacity(AT_LENGTH);
    while input.len() < AT_LENGTH {
        let file = &corpus[random.within(0..=corpus.len() as u64 - 1) as usize];
        let from = random.within(0..=file.len() as u64) as usize;
        let until = random.within(from as u64..=file.len() as u64) as usize;
        input.extend_from_slice(&file[from..until]);
        input.push(random.bits() as u8);
    }
    for _ in 0..random.within(0..=AT_LENGTH as u64 / 128) {
        let at = random.within(0..=input.len() as u64 - 1) as usize;
        input[at] = random.bits() as u8;
    }
    input
}

#[test]
#[ignore = "as long as MINUTES says"]
fn the_core_at_length() {
    let first = variable("SEED").unwrap_or(1);
    let until = Instant::now() + Duration::from_secs(60 * variable("MINUTES").unwrap_or(1));
    let files = files_of("fuzz/corpus/core");
    let corpus: Vec<Vec<u8>> = files
        .iter()
        .map(|file| std::fs::read(file).expect("a readable file"))
        .collect();
    let (next, events) = (AtomicU64::new(first), AtomicUsize::new(0));
    let work = || {
        while Instant::now() < until {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let input = pieces(&corpus, &mut Random::new(seed));
            let count = std::panic::catch_unwind(|| checks::core::events(&input));
            let count = count.unwrap_or_else(|panic| {
                println!("SEED={seed} fails");
                std::panic::resume_unwind(panic)
            });
            events.fetch_add(count, Ordering::Relaxed);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let (events, seeds) = (events.into_inner(), next.into_inner() - first);
    println!("{events} events of {seeds} seeds from {first}");
}
