//! A connection: its phase, the table of phases and events, and what a segment means to it. Plain types and functions.

pub mod action;
pub(crate) mod attempts;
pub(crate) mod classify;
pub mod close;
pub mod connection;
pub mod endpoints;
pub mod event;
pub(crate) mod handles;
pub(crate) mod limits;
pub(crate) mod numbers;
pub(crate) mod options;
pub mod phase;
pub(crate) mod segment;
pub(crate) mod slab;
pub mod state;
pub mod step;
pub mod table;
