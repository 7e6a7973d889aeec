//! The thread that takes the proxy's records, as the engine's own records thread would.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use netfcts::ring::RecordReceiver;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::BoxError;

/// Takes records out of the ring on a thread of its own.
pub(super) struct RecordDrain {
    stop: Arc<AtomicBool>,
    pub(super) lost: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl RecordDrain {
    pub(super) fn start(mut receiver: RecordReceiver) -> Result<RecordDrain, BoxError> {
        let (stop, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, lost_there) = (stop.clone(), lost.clone());
        let bench = sched_getaffinity(None)?;
        let thread = std::thread::Builder::new().name("records".to_owned()).spawn(move || {
            keep_off(&bench);
            while !stopped.load(Ordering::Relaxed) {
                receiver.drain(|record| _ = std::hint::black_box(record.bytes_to_client()));
                lost_there.store(receiver.records_lost(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        })?;
        Ok(RecordDrain {
            stop,
            lost,
            thread: Some(thread),
        })
    }
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

impl Drop for RecordDrain {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked but by a defect, which would have been printed.
            let _ended = thread.join();
        }
    }
}
