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
///
/// # Panics
/// On a kernel that takes such programs: then ours are wrong.
#[cfg(all(test, inline_built))]
fn lacking(error: &impl std::fmt::Display) {
    let test = std::thread::current().name().unwrap_or("inline").to_owned();
    if !rustix::process::geteuid().is_root() {
        return rig::skip(&test, &format!("not root: {error}"));
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let is_new = (numbers.next(), numbers.next()) >= (Some(6), Some(9));
    let has_types = std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
    assert!(!is_new || !has_types, "Linux {release} refuses the programs: {error}");
    rig::lacking(&test, &error.to_string());
}
