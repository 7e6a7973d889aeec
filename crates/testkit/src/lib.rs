//! What tests of every layer share: segments as values, simulated links, and TCP end points that no one here wrote.
//!
//! A development dependency only: everything here may panic, because a panic is how a test fails.

pub mod reference;
pub mod segment;
pub mod sim;

pub use segment::{Segment, Station};
