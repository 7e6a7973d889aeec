//! Any bytes as the answer of a name server.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| proxyengine_fuzz::names(bytes));
