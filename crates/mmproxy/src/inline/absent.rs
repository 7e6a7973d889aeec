//! What stands in for the programs in a build without them.

use crate::inline::layout::{Entry, Swept};
use std::io;
use std::path::Path;

/// Costs of inline mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Program, IP version, nanoseconds.
    pub ns_per_packet: Vec<(&'static str, u8, u64)>,
    /// Bytes.
    pub bytes_per_connection: u64,
}

/// Fails.
///
/// # Errors
/// Always.
pub fn costs() -> io::Result<Costs> {
    Err(io::ErrorKind::Unsupported.into())
}

/// None: without programs of one's own, those of others are in nobody's way.
pub fn other_programs(_ifindex: u32) -> Vec<String> {
    vec![]
}

/// Nothing: there is no value of it.
pub enum Kernel {}

impl Kernel {
    /// Fails.
    ///
    /// # Errors
    /// Always.
    pub fn load(_limit: u32, _folder: Option<&Path>) -> io::Result<Self> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this build has no inline mode (feature `inline`, clang)",
        ))
    }

    /// Whether connections outlive this value.
    pub fn is_pinned(&self) -> bool {
        match *self {}
    }

    /// The settings that are pinned.
    ///
    /// # Errors
    /// Never: there is no value.
    pub fn pinned_settings(&self) -> io::Result<Option<Vec<u8>>> {
        match *self {}
    }

    /// Attaches the programs to interfaces.
    ///
    /// # Errors
    /// Never: there is no value.
    pub fn attach(&mut self, _interfaces: &[u32]) -> io::Result<()> {
        match *self {}
    }

    /// Attaches the programs in a network of its own.
    ///
    /// # Errors
    /// Never: there is no value.
    pub fn attach_in_private(&mut self) -> io::Result<()> {
        match *self {}
    }

    /// Ends what was attached.
    pub fn detach(&mut self) {
        match *self {}
    }

    /// Writes an entry.
    ///
    /// # Errors
    /// Never: there is no value.
    pub fn put(&self, _map: &str, _entry: &Entry) -> io::Result<()> {
        match *self {}
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// Never: there is no value.
    pub fn delete(&self, _map: &str, _key: &[u8]) -> io::Result<()> {
        match *self {}
    }

    /// All keys of a map.
    ///
    /// # Errors
    /// Never: there is no value.
    pub fn keys(&self, _map: &str) -> io::Result<Vec<Vec<u8>>> {
        match *self {}
    }

    /// The counters.
    ///
    /// # Errors
    /// Never: there is no value.
    pub fn counters(&self) -> io::Result<Vec<u64>> {
        match *self {}
    }

    /// Forgets connections without a socket.
    ///
    /// # Errors
    /// Never: there is no value.
    pub fn sweep(&self, _from: Option<u32>, _now: u32) -> io::Result<Swept> {
        match *self {}
    }
}
