//! Any bytes as TCP options.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| proxyengine_fuzz::wire::tcp_options(bytes));
