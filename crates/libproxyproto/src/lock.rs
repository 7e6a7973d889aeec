//! A lock that `fork` cannot leave locked in the child: the fork handlers take all of them before and free them after.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// A spinning lock for a few instructions at a time.
pub(crate) struct Lock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, of which there is one at a time.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Lock {
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.acquire();
        Guard(self)
    }

    /// Takes the lock without a guard: before `fork`.
    pub(crate) fn acquire(&self) {
        while self
            .taken
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            std::thread::yield_now();
        }
    }

    /// Frees the lock that [`acquire`](Self::acquire) took: after `fork`, in parent and child.
    pub(crate) fn release(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

/// Access to the value while it lives.
pub(crate) struct Guard<'a, T>(&'a Lock<T>);

#[allow(unsafe_code)]
impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so nobody else has a reference.
        unsafe { &*self.0.value.get() }
    }
}

#[allow(unsafe_code)]
impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and this guard is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.release();
    }
}
