//! What tests of every layer share: segments as values, and the checks that every frame must pass.
//!
//! A development dependency only: everything here may panic, because a panic is how a test fails.

pub mod segment;

pub use segment::{Segment, Station};
