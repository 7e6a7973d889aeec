//! Takes rigs down when the program is told to end, or has been killed before it could.
//!
//! A panic unwinds and drops the rig; a signal does neither, so one thread waits for it. SIGKILL leaves a rig behind; its
//! name holds the process id of its maker, by which the next rig recognises it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::process;

/// Taking a rig down may have to wait for programs that end slowly.
const TAKING_DOWN: Duration = Duration::from_secs(30);
/// Rigs made by tests are called `pet<process id>n<number>`.
const OWN_PREFIX: &str = "pet";

/// The rigs that are up now. Global because a signal is the process's, not anyone's in particular.
static RAISED: Mutex<Vec<String>> = Mutex::new(Vec::new());
static WATCH: Once = Once::new();

/// The name for the `number`th rig of this process.
pub(crate) fn own_name(number: usize) -> String {
    format!("{OWN_PREFIX}{}n{number}", std::process::id())
}

/// From now on the rig is taken down when a signal ends the program.
pub(crate) fn watch_over(prefix: &str) {
    RAISED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(prefix.to_owned());
    WATCH.call_once(|| {
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
        if let Ok(mut signals) = signals {
            thread::spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    let raised = RAISED.lock().unwrap_or_else(PoisonError::into_inner);
                    raised.iter().for_each(|prefix| take_down(prefix));
                    // What a shell says of a program that a signal has ended.
                    std::process::exit(128 + signal);
                }
            });
        }
    });
}

/// The rig is gone, or is to stay.
pub(crate) fn forget(prefix: &str) {
    RAISED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .retain(|raised| raised != prefix);
}

/// The script that makes and removes rigs.
pub(crate) fn prep_net() -> Command {
    Command::new(root().join("prepNet.sh"))
}

/// The top of the source tree.
pub(crate) fn root() -> PathBuf {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    root.canonicalize().unwrap_or_else(|_| root.to_owned())
}

/// Ends what runs in the rig's namespaces and removes them.
pub(crate) fn take_down(prefix: &str) {
    let down = process::run(
        prep_net().args(["down", "--quiet", "--prefix", prefix]),
        b"",
        TAKING_DOWN,
    );
    if let Err(error) = down {
        eprintln!("the rig {prefix} may not be gone: {error}");
    }
}

/// Takes down the rigs of processes that no longer run.
pub(crate) fn sweep() {
    let Ok(namespaces) = std::fs::read_dir("/run/netns") else {
        return;
    };
    let mut stale: Vec<String> = namespaces
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| Some(name.rsplit_once('-')?.0.to_owned()))
        .filter(|prefix| maker_of(prefix).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()))
        .collect();
    stale.sort();
    stale.dedup();
    stale.iter().for_each(|prefix| take_down(prefix));
}

/// The process that made the rig of this name, if a test made it.
fn maker_of(prefix: &str) -> Option<u32> {
    prefix.strip_prefix(OWN_PREFIX)?.split_once('n')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rig_of_our_own_names_its_maker() {
        assert_eq!(maker_of(&own_name(3)), Some(std::process::id()));
    }

    #[test]
    fn a_rig_of_a_person_has_no_maker() {
        for prefix in ["pe", "pedemo", "pet", "petn1", "petsn1", "other12n1"] {
            assert_eq!(maker_of(prefix), None, "{prefix}");
        }
    }
}
