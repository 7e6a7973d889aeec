//! Network namespaces that a configuration names: used if they exist, else made for as long as the engine runs.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use e2d2::tap::namespace_path;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A namespace that was made here; it is removed with the value.
#[derive(Debug)]
pub(super) struct MadeNamespace(String);

/// Sees to it that the namespace `name` exists.
///
/// # Errors
/// A sentence that says what went wrong.
pub(super) fn ensure(name: &str) -> Result<Option<MadeNamespace>, String> {
    if is_there(name) {
        return Ok(None);
    }
    // `ip` and nothing of our own: it decides where names are kept, and whoever works there will use it.
    let ip = |arguments: &[&str]| {
        let output = Command::new("ip").args(arguments).output();
        let output = output.map_err(|error| format!("`ip` cannot be run: {error}; package iproute2 has it"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("`ip {}` failed: {}", arguments.join(" "), said.trim()))
    };
    if namespace_path(name).exists() {
        // A file that is no namespace: an `ip netns add` in a mount namespace that is gone.
        ip(&["netns", "delete", name])?;
    }
    ip(&["netns", "add", name])?;
    let made = MadeNamespace(name.to_owned());
    ip(&["-n", name, "link", "set", "lo", "up"])?;
    Ok(Some(made))
}

/// Whether there is a namespace of that name which this process may enter.
fn is_there(name: &str) -> bool {
    let Ok(handle) = File::open(namespace_path(name)) else {
        return false;
    };
    // Tried on a thread that ends at once.
    let enter = move || move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network)).is_ok();
    std::thread::spawn(enter).join().unwrap_or(false)
}

impl Drop for MadeNamespace {
    fn drop(&mut self) {
        let removed = Command::new("ip").args(["netns", "delete", &self.0]).status();
        if !removed.is_ok_and(|status| status.success()) {
            log::warn!(
                "network namespace {} could not be removed; `ip netns delete {0}` does it",
                self.0
            );
        }
    }
}
