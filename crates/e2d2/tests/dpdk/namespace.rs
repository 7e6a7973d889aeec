//! A network namespace for one test: of the test's own thread, without a name, gone with it. sysfs shows it too.
#![allow(unsafe_code)] // `unshare` on a thread.

use std::process::Command;
use std::thread;

use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, unshare_unsafe};

/// Runs `body` on a thread in a network namespace that has a veth pair `near`/`far`, both up, without IPv6 and with
/// checksums finished before packets leave.
///
/// Without the privilege to do so the test is skipped, and says so.
pub(crate) fn in_namespace(body: fn()) {
    if !capabilities(None).is_ok_and(|sets| {
        sets.effective
            .contains(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN)
    }) {
        skip("making a network namespace needs root");
        return;
    }
    let inside = thread::spawn(move || {
        // SAFETY: only this thread's namespaces change; nothing else of the process relies on them.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWNS) }
            .expect("root may make a network namespace");
        for command in [
            "mount --make-rprivate /",
            "mount -t sysfs e2d2 /sys",
            "ip link add near type veth peer name far",
            "ip link set dev near addrgenmode none",
            "ip link set dev far addrgenmode none",
            "ip link set dev lo up",
            "ip link set dev near up",
            "ip link set dev far up",
        ] {
            run(command);
        }
        body();
    });
    if let Err(panic) = inside.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Says that the calling test is skipped: [`rig::skip`].
pub(crate) fn skip(reason: &str) {
    rig::skip(thread::current().name().unwrap_or("dpdk"), reason);
}

/// Runs a command in the calling thread's namespace.
pub(crate) fn run(command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap_or_default()).args(words).status();
    assert!(
        status.as_ref().is_ok_and(|status| status.success()),
        "{command}: {status:?}"
    );
}
