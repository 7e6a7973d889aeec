//! The core: one worker's TCP proxy as a function of time and packets.
//!
//! `(now, packets)` in, packets out. No I/O, no clock, no thread, no unsafe: the same code runs on a NIC and in
//! `cargo test`. One [`Proxy`] belongs to one core, and shares with others only words about servers and limits ([`standby`]).
//!
//! ```text
//!  batch ─► read ─► look up ─► classify ─► step ─► apply ─► Output
//! ```
//!
//! Each module is a room; ARCHITECTURE.md draws which may use which. Read [`phase`], then [`step`]: they are the design.
//! [`classify`](session::classify) says what a segment means, [`proxy`] does what [`step`](step::step) asks for,
//! [`translate`] rewrites what passes.
//!
//! Budget (cycles, one connection of 7 + 7 packets): SipHash 200, look-ups 300, rewriting 200, make and free with timer
//! and port 250. Memory: two cache lines a connection, 16 bytes a flow-table entry pair at full load, 12 a timer.

// What explains the design is for readers of the source, who see the private modules, too.
#![allow(rustdoc::private_intra_doc_links)]

mod admission;
mod base;
pub mod capture;
mod emit;
mod handshake;
mod icmp;
mod inspect;
mod legs;
mod probe;
mod proxy;
mod proxy_header;
pub mod reassembly;
mod records;
mod retransmit;
mod rewrite;
mod session;
mod source_ports;
pub mod steering;
pub mod tally;
pub mod time_wait;
pub mod upstream;

pub use admission::round_budget;
pub use base::output::{NextHops, Output};
pub use base::settings::Secrets;
pub use base::{
    addresses, callbacks, checks, choice_table, difference, drop_reason, hash, ids, limit, meter, server_state,
    settings, stage, standby, transparent_sources,
};
pub use handshake::{cookie, syn_ack_options};
pub use probe::{CheckEvent, ProbeEvent};
pub use proxy::{Change, CoreParts, Look, Proxy, Usage, visit};
pub use records::RecordSink;
pub use rewrite::{siit, translate};
pub use session::{action, close, connection, endpoints, event, phase, state, step, table};
