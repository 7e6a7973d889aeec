//! A TCP proxy that reads the first payload before it chooses the server, and from then on only rewrites packets.
//!
//! # The life of a connection
//!
//! ```text
//! client SYN ────► SYN-ACK whose number is a cookie; nothing is stored         splice::cookie
//! client ACK ────► cookie checked, a connection made                           splice::connection, splice::table
//! payload ───────► held; the selector is asked: a server, more bytes, or no    splice::reassembly, callbacks, selectors
//! chosen ────────► SYN to the server with the options agreed with the client   splice::upstream
//! server SYN-ACK ► ACK, PROXY header if asked for, the held bytes in order     splice's send_proxy, rtx
//! from then on ──► addresses, ports, numbers, timestamps, SACK edges rewritten splice::translate
//! FIN, RST, idle ► half-close kept, late segments still translated, the port   splice::time_wait,
//!                  rests, a record is written                                  records
//! ```
//!
//! Each core runs all of it for the connections that it owns, from the packet to the record, and shares nothing. What a
//! segment does depends on the connection's [phase](splice::phase) and on what [event](splice::event) the segment is;
//! [`splice::step`] is the table of that, without any I/O or clock. The graph around it is in [`pipeline`].
//!
//! # As a library
//!
//! [`Config`](config::Config) is what the TOML file says, checked. [`Engine`](engine::Engine) opens the ports and starts
//! the workers, with the rules of the file or a [`SelectServer`] of yours.
//! `examples/engine_with_selector.rs` is the whole of such a program. An [`InspectPayload`] of yours sees every byte that
//! passes, and may change it: `examples/inspect_payload.rs`, `docs/callbacks.md`.
//!
//! Without the feature `dpdk`, which is on by default, everything but the ports of DPDK is there: the core, the graph on
//! heap buffers, the selectors.

// What explains the design is for readers of the source, who see the private modules, too.
#![allow(rustdoc::private_intra_doc_links)]

pub mod capture;
pub mod checks;
pub mod commands;
pub mod config;
pub mod devices;
pub mod doctor;
pub mod engine;
pub mod guard;
pub mod journal;
pub mod kernel;
pub mod log_levels;
pub mod log_ring;
pub mod names;
pub mod neighbour;
pub mod picture;
pub mod pipeline;
pub mod privileges;
pub mod records;
pub mod report;
pub mod selectors;
pub mod stages;
pub mod status;

pub use splice::callbacks::{self, InspectPayload, SelectServer, inspected};
