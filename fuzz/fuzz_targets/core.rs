//! The core by a sequence of events.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| proxyengine_fuzz::core::events(bytes));
