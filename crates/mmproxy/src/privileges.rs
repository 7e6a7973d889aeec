//! Giving up what is not needed after start: capabilities, the user, system calls.

use crate::config::Config;
use rustix::process::{Resource, Rlimit};
use rustix::thread::CapabilitySet;
use std::io;

/// How to get the capability that spoofing needs.
pub const ADMIN_HINT: &str = "CAP_NET_ADMIN is needed: run as root, or `setcap cap_net_admin,cap_net_bind_service+ep \
                              $(command -v mmproxy)`, or AmbientCapabilities=CAP_NET_ADMIN in the systemd unit";

/// What a running proxy keeps: spoofing and SO_MARK; listening on low ports after a reload.
const KEPT: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_BIND_SERVICE);

/// Whether this thread may spoof.
pub fn has_net_admin() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

/// Raises the limit of descriptors as far as it goes, and returns it.
pub fn raise_descriptor_limit() -> u64 {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if limit.current != limit.maximum && rustix::process::setrlimit(Resource::Nofile, raised).is_ok() {
        return limit.maximum.unwrap_or(u64::MAX);
    }
    limit.current.unwrap_or(u64::MAX)
}

/// Changes to the configured user and group and keeps of the capabilities what spoofing and low ports need. Threads that are started
/// later inherit all of it, so this comes before them.
///
/// # Errors
/// If the user or group does not exist, or the change is refused.
pub fn drop_privileges(config: &Config) -> io::Result<()> {
    let user = sandbox::user(config.user.as_deref(), config.group.as_deref())?;
    sandbox::keep_capabilities(KEPT, user)
}

/// Which of the threads a sandbox is for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// Relays, and all that they start.
    Relay,
    /// Keeps the programs of inline mode informed, for which it calls `bpf(2)`. Without capabilities that loads no program.
    Inline,
}

/// Forbids what a proxy never does, and changing or executing files, to this thread and those it starts.
///
/// # Errors
/// If the kernel has no filters.
pub fn enter_sandbox(role: Role) -> io::Result<()> {
    // Not every kernel has it; the filter below does not need it.
    if let Err(error) = sandbox::write_only_below(&[]) {
        log::debug!("files can be changed: {error}");
    }
    match role {
        Role::Relay => sandbox::forbid(&[&sandbox::TAKEOVER[..], &[libc::SYS_bpf]].concat()),
        Role::Inline => sandbox::forbid(&sandbox::TAKEOVER),
    }
}
