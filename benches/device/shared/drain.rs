//! Threads beside the proxy's: the one that takes its records, and sinks of them if there are any, as the engine has them.

use netfcts::format::NameTable;
use netfcts::ring::RecordReceiver;
use proxyengine::config::RecordsConfig;
use proxyengine::records::RecordKeeper;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::BoxError;

/// Takes records out of the ring on threads of their own; without a sink they are made and counted.
pub(super) fn start(receiver: RecordReceiver, sinks: &[RecordsConfig]) -> Result<RecordKeeper, BoxError> {
    Ok(apart(|| {
        RecordKeeper::start(vec![receiver], sinks, NameTable::default())
    })??)
}

/// What `start` returns, whose threads run on other CPUs than the one that the bench is pinned to.
pub(crate) fn apart<T: Send>(start: impl FnOnce() -> T + Send) -> Result<T, BoxError> {
    let bench = sched_getaffinity(None)?;
    // Threads run where the one that starts them does.
    let started = std::thread::scope(|scope| {
        let starter = scope.spawn(|| {
            keep_off(&bench);
            start()
        });
        starter.join()
    });
    started.map_err(|_| "a thread that starts others has panicked".into())
}

/// Moves this thread off the CPU that the bench is pinned to, which it would have inherited.
fn keep_off(bench: &CpuSet) {
    if bench.count() != 1 {
        return;
    }
    let mut others = CpuSet::new();
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| !bench.is_set(cpu))
        .for_each(|cpu| others.set(cpu));
    // With one CPU there is no other: then it stays.
    let _stays = sched_setaffinity(None, &others);
}
