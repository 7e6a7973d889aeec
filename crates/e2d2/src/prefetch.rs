//! Asking the processor for memory before it is needed.

#![allow(unsafe_code)] // instructions that dereference nothing

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
    for line in lines_of(value) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}

/// The same for writing soon: another core that has read the lines gives them up meanwhile.
#[inline]
pub(crate) fn prefetch_lines_to_write<T>(value: &T) {
    for line in lines_of(value) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above. The instruction is a no-operation where a processor does not have it (Intel SDM, PREFETCHW); the intrinsic
        // for it is a prefetch for reading, unless the compiler knows the processor.
        unsafe {
            core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}

/// Where the lines of `value` begin. Only addresses: nothing is read there.
#[inline]
fn lines_of<T>(value: &T) -> impl Iterator<Item = *const i8> {
    let first = core::ptr::from_ref(value).cast::<i8>();
    (0..size_of::<T>().div_ceil(LINE)).map(move |line| first.wrapping_add(line * LINE))
}
