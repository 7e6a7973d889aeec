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

/// A line of the caches of x86-64, and of most others.
const LINE: usize = 64;

/// Asks for all cache lines of `value`, which begins with a line. Has no effect on any result.
#[inline]
pub fn prefetch_lines<T>(value: &T) {
    for line in 0..size_of::<T>().div_ceil(LINE) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above; `wrapping_byte_add` only computes an address.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(value).wrapping_byte_add(line * LINE).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (line, value);
    }
}
