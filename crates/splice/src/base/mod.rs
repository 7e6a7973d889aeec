//! What every room may use: ids, reasons, settings, what a program decides, and what the core asks of the world.

pub mod addresses;
pub mod callbacks;
pub mod checks;
mod choice;
pub mod choice_table;
pub(crate) mod client_counts;
pub mod difference;
pub mod drop_reason;
pub mod hash;
pub mod ids;
pub mod limit;
pub mod meter;
pub(crate) mod output;
pub(crate) mod path;
pub mod server_state;
pub mod settings;
pub(crate) mod sizes;
mod source_sets;
pub mod stage;
pub mod standby;
mod syn_ack;
pub mod transparent_sources;
pub(crate) mod usual_time;
