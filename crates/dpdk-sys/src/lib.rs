#![allow(unsafe_code)]
//! dpdk-sys
#[allow(missing_docs, unreachable_pub, non_camel_case_types, non_upper_case_globals, non_snake_case, clippy::all, clippy::undocumented_unsafe_blocks)]
mod raw { include!(concat!(env!("OUT_DIR"), "/bindings.rs")); }
pub use raw::*;
