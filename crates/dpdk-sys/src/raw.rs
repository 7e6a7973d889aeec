//! What bindgen generates; layouts are asserted at compile time by the generated code itself.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, unreachable_pub, missing_docs)]
#![allow(non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
