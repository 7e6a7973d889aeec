//! Large pages for memory that is read at random.
//!
//! A table of hundreds of megabytes in pages of 4 KiB costs a page walk for nearly every look-up. Linux gives pages of
//! 2 MiB to whoever asks (`transparent_hugepage` = `madvise` or `always`); where it does not, nothing changes.

#![allow(unsafe_code)] // one system call on memory that we hold

/// Linux' size of a transparent huge page on x86-64 and, with pages of 4 KiB, on AArch64.
const HUGE_PAGE: usize = 2 << 20;

/// Linux 6.1: put the pages together now, instead of when the kernel finds the time.
#[cfg(target_os = "linux")]
const MADV_COLLAPSE: libc::c_int = 25;

/// Asks for large pages under `slice`, as far as it covers whole ones. To be called once, after it has been filled.
/// Contents and addresses stay; a kernel that knows no better ignores it.
pub fn prefer_large_pages<T>(slice: &[T]) {
    let start = slice.as_ptr().addr().next_multiple_of(HUGE_PAGE);
    let end = (slice.as_ptr().addr() + size_of_val(slice)) / HUGE_PAGE * HUGE_PAGE;
    if end <= start {
        return;
    }
    #[cfg(target_os = "linux")]
    for advice in [libc::MADV_HUGEPAGE, MADV_COLLAPSE] {
        let pages = slice.as_ptr().map_addr(|_| start).cast_mut().cast();
        // SAFETY: the range lies within `slice`, which is borrowed for the call; both advices keep its contents.
        let _ = unsafe { libc::madvise(pages, end - start, advice) };
    }
}
