//! What stands in for the programs in a build without them.

use crate::inline::layout::Entry;
use std::io;

/// Nothing: there is no value of it.
pub enum Kernel {}

impl Kernel {
    /// Fails.
    ///
    /// # Errors
    /// Always.
    pub fn load(_limit: u32) -> io::Result<Self> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this build has no inline mode (feature `inline`, clang)",
        ))
    }

    /// Attaches the programs to an interface.
    ///
    /// # Errors
    /// Never: there is no value.
    pub fn attach(&mut self, _ifindex: u32) -> io::Result<()> {
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
    pub fn sweep(&self, _keys: &[u8]) -> io::Result<()> {
        match *self {}
    }
}
