//! What breaks other programs of this family: each test is an input that kills, stalls, confuses or truncates a peer.

mod daemon;
mod hostile;
mod listeners;
#[path = "../rig/mod.rs"]
mod rig;
mod streams;

use rig::{rest, v1};
use std::io::Write;
use std::net::{Shutdown, TcpStream};

pub(crate) fn header(port: u16) -> Vec<u8> {
    v1(&format!("203.0.113.7:{port}"), "198.51.100.9:443")
}

/// Whether the proxy closes the connection without a byte.
pub(crate) fn is_refused(mut client: TcpStream) -> bool {
    // So that one that is served ends as well.
    let _ = client.shutdown(Shutdown::Write);
    rest(&mut client).is_empty()
}

pub(crate) fn file_with(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("file");
    file.write_all(text.as_bytes()).expect("written");
    file
}

pub(crate) fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().expect("path")
}

/// The address that a server saw. On one host the client's port is taken by the client itself, so another one is used.
pub(crate) fn address_of(seen: &str) -> &str {
    seen.rsplit_once(':').map_or("", |(address, _)| address)
}
