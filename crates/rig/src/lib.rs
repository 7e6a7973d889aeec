//! The software rig: Linux clients and Linux servers in network namespaces, and the engine between them on a crossed
//! cable of veth pairs.
//!
//! What lives here: making and removing the rig ([`Rig`]; the topology itself is `prepNet.sh`'s, so that a person and a
//! test stand on the same one), running and ending programs in it ([`process`]), the real servers the tests talk to
//! ([`servers`]), the engine as a process ([`engine`]), lossy links ([`loss`]) and what went over the wire
//! ([`capture`], [`tshark`]). What does not: the tests (`tests/rig/`, and those of the other crates), and anything that knows the
//! engine's insides. This crate depends on no other of the workspace, so that each may use it in its tests.
//!
//! ```text
//!                 clients ──┐                            clients ── br0 ── pe-eng0 ┐
//!   one-armed               br0 ── pe-eng0 · engine                                engine   two-armed
//!                 servers ──┘                            servers ── br1 ── pe-eng1 ┘
//! ```
//!
//! A rig needs root, a kernel with namespaces and some packages; [`requirements`] says what is missing, and a test that
//! cannot run says so through [`skip`] or [`lacking`].
//!
//! Everything is bounded in time, and nothing is left behind: processes and namespaces go when the [`Rig`] is dropped,
//! when the program gets SIGINT or SIGTERM, and, should it be killed outright, when the next rig is made.

pub mod capture;
mod cleanup;
pub mod demo;
pub mod engine;
mod error;
mod far;
pub mod lab;
pub mod loss;
mod namespace;
pub mod process;
mod routers;
pub mod servers;
mod topology;
pub mod tshark;

pub use error::RigError;
pub use far::{FAR_HOST, FAR_NETWORKS};
pub use namespace::Place;
pub use topology::{Arms, HOSTS, Rig, RigOptions, SERVERS, requirements};

use std::io::Write;

/// What cargo is told when a test has it build mmproxy: its inline mode where there is what that is built with, as `build.sh test`
/// does. Tests that run beside each other find one program under its name, so all are to build the same.
pub fn features_of_mmproxy() -> &'static [&'static str] {
    let runs = |program: &str| {
        let output = std::process::Command::new(program).arg("--version").output();
        output.is_ok_and(|output| output.status.success())
    };
    let is_there = |header: &str| std::path::Path::new("/usr/include").join(header).exists();
    if runs("clang") && runs("make") && is_there("gelf.h") && is_there("zlib.h") {
        &["--features", "mmproxy/inline"]
    } else {
        &[]
    }
}

/// Says that a test cannot run here for want of something that every machine can be given: root, namespaces, Debian
/// packages, descriptors. `build.sh test` lists what was said, and counts the test as skipped.
///
/// # Panics
/// When `PROXYENGINE_REQUIRE_RIG` is set: on a machine that is known to have all it takes, as that of continuous
/// integration, a skipped test is a failed one.
pub fn skip(test: &str, reason: &str) {
    assert!(
        std::env::var_os("PROXYENGINE_REQUIRE_RIG").is_none(),
        "not to be skipped here: {test}: {reason}"
    );
    list(test, reason);
}

/// Says that a test cannot run here for want of something that not every kernel or processor has: BBR, hugepages, nested
/// emulation. It is listed and counted like [`skip`], and fails nowhere.
pub fn lacking(test: &str, reason: &str) {
    list(test, reason);
}

/// Writes to the file that `PROXYENGINE_SKIP_FILE` names, or to stderr when there is none.
fn list(test: &str, reason: &str) {
    let line = format!("{test}: {}\n", reason.replace('\n', " "));
    let written = std::env::var_os("PROXYENGINE_SKIP_FILE")
        .and_then(|path| std::fs::OpenOptions::new().append(true).open(path).ok())
        .is_some_and(|mut file| file.write_all(line.as_bytes()).is_ok());
    if !written {
        eprint!("skipped: {line}");
    }
}
