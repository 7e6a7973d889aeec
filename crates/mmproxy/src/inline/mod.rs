//! Inline mode: the header is taken off in the kernel, and the server's own socket has the client as its peer.
//!
//! ```text
//!               spec: may this listener, and as what
//!                 │
//! daemon ─► control (a thread) ─► kernel: programs, maps, links   ─►  bpf/inline.bpf.c
//!                 └ host: what the host's TCP agrees to
//! ```
//!
//! A connection that the programs do not take in comes to the listener's socket as ever, so that the workers know nothing of
//! all this. Where the build has no programs, [`kernel`] says so.

pub mod control;
pub mod host;
pub mod layout;
pub mod spec;

#[cfg(inline_built)]
mod cost;
#[cfg(inline_built)]
pub mod kernel;
#[cfg(not(inline_built))]
#[path = "absent.rs"]
pub mod kernel;
#[cfg(inline_built)]
mod pins;
#[cfg(inline_built)]
mod system;
