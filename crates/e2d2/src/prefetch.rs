//! Asking the processor for memory before it is needed.

#![allow(unsafe_code)] // one intrinsic and one instruction that dereference nothing

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

/// Asks for all cache lines of `value`, which begins with a line, to be written soon: what another core has of them is
/// taken away before the first store waits for it. Has no effect on any result; processors that do not know it do nothing.
#[inline]
pub fn prefetch_lines_to_write<T>(value: &T) {
    for line in 0..size_of::<T>().div_ceil(LINE) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above. The intrinsic of this name asks for reading where the target is any x86-64.
        unsafe {
            let line = core::ptr::from_ref(value).wrapping_byte_add(line * LINE);
            core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (line, value);
    }
}
