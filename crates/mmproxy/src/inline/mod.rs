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

/// Lists the running test as one that this machine cannot run: not root, or a kernel that takes no such program.
#[cfg(all(test, inline_built))]
fn lacking(error: &impl std::fmt::Display) {
    let test = std::thread::current().name().unwrap_or("inline").to_owned();
    if rustix::process::geteuid().is_root() {
        rig::lacking(&test, &error.to_string());
    } else {
        rig::skip(&test, &format!("not root: {error}"));
    }
}
