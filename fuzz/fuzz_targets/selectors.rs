//! Any bytes as first payload.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| proxyengine_fuzz::selectors(bytes));
