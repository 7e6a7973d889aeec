//! TCP clients and servers that load a proxy, or anything else that speaks TCP, and check what it does.
//!
//! A [`Generator`] owns one port and plays the client's role, the server's, or both. It is a pure core: packets and the
//! time go in, packets come out, so it runs in virtual time in tests, alternates with a proxy in one thread in benches,
//! and runs on DPDK ports in the binary.
//!
//! ```text
//!            ┌── link ── ARP, neighbour discovery, ping
//!  port ─────┼── server ── table ── tcb        accepts, checks requests, responds, closes as asked
//!            └── client ── table ── tcb        starts as the pacer says, asks, checks responses, measures
//! ```
//!
//! * Open loop: connections start at times fixed beforehand, and latency counts from there, so that a slow peer is not
//!   spared by a load that waits for it. Closed loop: so many at once. Drawn: so many at once, each waits established
//!   until it is drawn at random.
//! * Requests carry a selector key, responses the server's number, and every byte of both is checked.
//! * Lost segments are sent again and counted; neither side stores payload.
//!
//! Budget: 128 bytes per connection, 16 for its timer, 4 to 16 for finding it.

pub mod attack;
pub mod client;
pub mod config;
mod endpoints;
mod flows;
pub mod generator;
pub mod link;
mod output;
pub mod pace;
pub mod payload;
pub mod plot;
mod received;
pub mod report;
mod role;
pub mod run;
pub mod server;
pub mod stats;
mod table;
mod tcb;

pub use client::ClientSettings;
pub use endpoints::{AddressRange, ParseRangeError};
pub use generator::{Generator, GeneratorSettings, PortStats};
pub use link::LinkSettings;
pub use pace::{Pace, Span};
pub use payload::{Close, Format};
pub use server::{Listener, ServerSettings};
pub use tcb::TcpSettings;
