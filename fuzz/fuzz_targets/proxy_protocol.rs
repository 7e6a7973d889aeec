//! Any bytes as PROXY protocol headers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| proxyengine_fuzz::headers::any(bytes));
