//! Dropbear: an SSH server, which speaks before its clients do.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use super::{STARTING, make_folder, name_of};
use crate::process::{self, Process};
use crate::{Place, Rig, RigError};

/// Dropbear.
pub const SSH: u16 = 22;

/// Starts Dropbear as server `index` on port 22 of its IPv4 and IPv6 address, and returns it with its public key, which no
/// other server has: `ssh-ed25519 AAAA…`.
///
/// # Errors
/// When no key can be made, or it does not listen in time.
pub fn start_ssh(rig: &Rig, index: usize) -> Result<(Process, String), RigError> {
    let name = name_of(index);
    let folder: PathBuf = rig.file(&format!("ssh-{name}"));
    make_folder(&folder)?;
    let key = folder.join("key");
    let mut dropbearkey = Command::new("dropbearkey");
    let made = process::run(dropbearkey.args(["-t", "ed25519", "-f"]).arg(&key), b"", STARTING)?.text();
    // The line of the key, without the comment at its end.
    let public = made.lines().find(|line| line.starts_with("ssh-ed25519 ")).map(|line| {
        let words: Vec<&str> = line.split(' ').take(2).collect();
        words.join(" ")
    });
    let public = public.ok_or_else(|| RigError::Unreadable {
        path: key.clone(),
        reason: format!("dropbearkey shows no public key: {made}"),
    })?;
    let addresses = rig.server_addresses(index).map(|address| SocketAddr::new(address, SSH));
    let (key, pid) = (key.to_string_lossy(), folder.join("pid"));
    let [v4, v6] = addresses.map(|address| address.to_string());
    let pid = pid.to_string_lossy();
    // In the foreground, complaining to stderr, with this key alone.
    let arguments = ["-F", "-E", "-r", &key, "-P", &pid, "-p", &v4, "-p", &v6];
    let mut dropbear = rig.start(Place::Servers, &format!("ssh-{name}"), "dropbear", &arguments)?;
    dropbear.wait_for_listeners(&addresses, STARTING)?;
    Ok((dropbear, public))
}
