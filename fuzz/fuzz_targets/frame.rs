//! Any bytes as a frame.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| proxyengine_fuzz::wire::frame(bytes));
