//! The core by a sequence of events. With `EVENTS=1` in the environment it says how many they were, every 2²⁰ of them.
#![no_main]

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Events between two reports.
const TOLD_EVERY: usize = 1 << 20;

static EVENTS: AtomicUsize = AtomicUsize::new(0);
static IS_TOLD: LazyLock<bool> = LazyLock::new(|| std::env::var_os("EVENTS").is_some());

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let count = proxyengine_fuzz::core::events(bytes);
    let before = EVENTS.fetch_add(count, Ordering::Relaxed);
    if *IS_TOLD && before / TOLD_EVERY != (before + count) / TOLD_EVERY {
        eprintln!("{} events", before + count);
    }
});
