//! Any text as configuration.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| proxyengine_fuzz::config(bytes));
