//! Asking the processor for memory before it is needed.

#![allow(unsafe_code)] // one intrinsic that dereferences nothing

/// Asks for the cache line that `value` begins in, for reading soon. Has no effect on any result.
#[inline]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and changes no state that a program can see, whatever the address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
