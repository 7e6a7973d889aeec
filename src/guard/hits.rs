//! How many SYNs came from those in a list.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use splice::ids::CoreId;

/// Counts of one core, in a line of its own: the core writes, any thread reads.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Hits(AtomicU64);

impl Hits {
    /// One more. No other core counts here, so nothing is lost between the load and the store.
    #[inline]
    pub fn add(&self) {
        self.0
            .store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// Those of all cores for one list, for as long as there is a list of its name.
#[derive(Debug, Default)]
pub struct ListHits(Mutex<BTreeMap<CoreId, Arc<Hits>>>);

impl ListHits {
    /// Where a core counts. Not for packet threads.
    pub fn of_core(&self, core: CoreId) -> Arc<Hits> {
        let mut cores = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(cores.entry(core).or_default())
    }

    /// By all cores.
    pub fn sum(&self) -> u64 {
        let cores = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cores.values().map(|hits| hits.0.load(Ordering::Relaxed)).sum()
    }
}

/// Counts are no part of what a configuration says.
impl PartialEq for ListHits {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ListHits {}
