//! Memory with pages of a size: large ones for what is read at random, small ones for what is hardly used.
//!
//! A table of hundreds of megabytes in pages of 4 KiB costs a page walk for nearly every look-up. Linux gives pages of
//! 2 MiB to whoever asks (`transparent_hugepage` = `madvise` or `always`); where it does not, nothing changes.

#![allow(unsafe_code)] // memory with an alignment that no type has, and a system call on it

use core::alloc::Layout;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use std::alloc::{alloc, dealloc, handle_alloc_error};

/// Linux' size of a transparent huge page on x86-64 and, with pages of 4 KiB, on AArch64.
const HUGE_PAGE: usize = 2 << 20;

/// Linux 6.1: put the pages together now, instead of when the kernel finds the time.
#[cfg(target_os = "linux")]
const MADV_COLLAPSE: libc::c_int = 25;

/// Values in a row as in a `Box<[T]>`, in large pages from the first on if they fill one.
///
/// What a table uses most is often at its beginning: slots are taken from there, and taken again. The allocator puts the
/// beginning anywhere in a large page, so that it would be the one part in small ones.
pub struct LargeSlice<T> {
    start: NonNull<T>,
    len: usize,
    /// Values that there is room for.
    capacity: usize,
    owns: PhantomData<T>,
}

// SAFETY: it owns its values and nothing else, as a `Box<[T]>` does.
unsafe impl<T: Send> Send for LargeSlice<T> {}
// SAFETY: likewise; a shared reference gives shared references only.
unsafe impl<T: Sync> Sync for LargeSlice<T> {}

impl<T> LargeSlice<T> {
    /// `len` values, which `make` makes of their places. Aborts as a `Vec` does if there is no memory for them.
    ///
    /// # Panics
    /// If they are longer than the address space. If `make` panics, what was made until then is leaked.
    pub fn from_fn(len: usize, make: impl FnMut(usize) -> T) -> Self {
        let layout = layout::<T>(len);
        let mut slice = LargeSlice::with_room(len);
        // Before the first byte is written, so that none of it is ever in small pages.
        #[cfg(target_os = "linux")]
        slice.advise(layout, libc::MADV_HUGEPAGE);
        for (place, value) in (0..len).map(make).enumerate() {
            // SAFETY: there is room for `len` values, and nothing in it yet that would have to be dropped.
            unsafe { slice.start.add(place).write(value) };
        }
        slice.len = len;
        #[cfg(target_os = "linux")]
        slice.advise(layout, MADV_COLLAPSE);
        slice
    }

    /// `len` copies of `value`.
    pub fn of(value: T, len: usize) -> Self
    where
        T: Clone,
    {
        LargeSlice::from_fn(len, |_| value.clone())
    }

    /// No values, and room for `capacity` of them: address space whose pages are taken, small ones at a time, when
    /// [`LargeSlice::grow_to`] gets to them. A large page would take a hundred times as long at that moment.
    ///
    /// # Panics
    /// If they are longer than the address space.
    pub fn reserved(capacity: usize) -> Self {
        let slice = LargeSlice::with_room(capacity);
        #[cfg(target_os = "linux")]
        slice.advise(layout::<T>(capacity), libc::MADV_NOHUGEPAGE);
        slice
    }

    /// Appends copies of `value` until there are `len` of them, or as many as there is room for. Allocates nothing.
    pub fn grow_to(&mut self, len: usize, value: T)
    where
        T: Clone,
    {
        let len = len.min(self.capacity);
        for place in self.len..len {
            // SAFETY: there is room for `capacity` values, and nothing in this place that would have to be dropped.
            unsafe { self.start.add(place).write(value.clone()) };
        }
        self.len = self.len.max(len);
    }

    /// Appends a value. Allocates nothing.
    ///
    /// # Errors
    /// The value itself, if there is no room.
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.len == self.capacity {
            return Err(value);
        }
        // SAFETY: there is room for `capacity` values, and nothing in this place that would have to be dropped.
        unsafe { self.start.add(self.len).write(value) };
        self.len += 1;
        Ok(())
    }

    /// The number of values that there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    fn with_room(capacity: usize) -> Self {
        let layout = layout::<T>(capacity);
        let mut slice = LargeSlice {
            start: NonNull::dangling(),
            len: 0,
            capacity,
            owns: PhantomData,
        };
        if layout.size() > 0 {
            // SAFETY: the layout is not empty.
            let memory = unsafe { alloc(layout) };
            slice.start = NonNull::new(memory.cast()).unwrap_or_else(|| handle_alloc_error(layout));
        }
        slice
    }

    /// For the whole large pages in it; the end of the last page may be another's. A kernel that knows no better does
    /// nothing.
    #[cfg(target_os = "linux")]
    fn advise(&self, layout: Layout, advice: libc::c_int) {
        let whole = layout.size() / HUGE_PAGE * HUGE_PAGE;
        if whole > 0 {
            // SAFETY: the range lies in our memory, and both advices keep its contents and its address.
            let _ = unsafe { libc::madvise(self.start.as_ptr().cast(), whole, advice) };
        }
    }
}

/// The memory of `len` values.
fn layout<T>(len: usize) -> Layout {
    let layout = Layout::array::<T>(len).and_then(|layout| {
        // An alignment of 1 leaves it the type's own.
        layout.align_to(if layout.size() < HUGE_PAGE { 1 } else { HUGE_PAGE })
    });
    #[expect(clippy::expect_used, reason = "what a `Vec` of that length does, too")]
    layout.expect("no longer than the address space")
}

impl<T> Drop for LargeSlice<T> {
    fn drop(&mut self) {
        let layout = layout::<T>(self.capacity);
        // SAFETY: the values are ours, and nobody has them after this.
        unsafe { ptr::drop_in_place(ptr::from_mut::<[T]>(self)) };
        if layout.size() > 0 {
            // SAFETY: it was taken with this layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl<T> Deref for LargeSlice<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` values stand there, which live as long as `self`.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for LargeSlice<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Takes the memory of values that nobody has written yet now, in large pages where Linux gives some: for zeroed memory that is about to
/// be used at random. Changes no value. Elsewhere it is taken as it is written.
pub fn take_in_large_pages<T>(values: &mut [T]) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        if size_of_val(values) < HUGE_PAGE {
            return;
        }
        // Whole small pages: the first may begin with what the allocator keeps in front of the values, and be the first of a large one.
        let all = values.as_mut_ptr_range();
        let (start, end) = (all.start.addr() / PAGE * PAGE, all.end.addr().next_multiple_of(PAGE));
        let first = all.start.with_addr(start).cast();
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_POPULATE_WRITE] {
            // SAFETY: each page of the range has a part of the values in it, and both advices keep contents and addresses.
            let _ = unsafe { libc::madvise(first, end - start, advice) };
        }
    }
}

/// Zeros in a row, in small pages that the system gives when they are first written: room for much of which little is used.
///
/// A page that is written costs a page fault then, below a microsecond, and stays.
pub struct SparseWords {
    start: NonNull<u16>,
    len: usize,
}

// SAFETY: it owns its words and nothing else, as a `Box<[u16]>` does.
unsafe impl Send for SparseWords {}
// SAFETY: likewise; a shared reference gives shared references only.
unsafe impl Sync for SparseWords {}

impl SparseWords {
    /// `len` zeros. Aborts as a `Vec` does if there are no addresses for them.
    ///
    /// # Panics
    /// If they are longer than the address space.
    pub fn new(len: usize) -> SparseWords {
        #[expect(clippy::expect_used, reason = "what a `Vec` of that length does, too")]
        let layout = Layout::array::<u16>(len).expect("no longer than the address space");
        let mut start = NonNull::dangling();
        if len > 0 {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new mapping, which takes nothing from anyone.
            let memory = unsafe { libc::mmap(ptr::null_mut(), layout.size(), protection, flags, -1, 0) };
            if memory == libc::MAP_FAILED {
                handle_alloc_error(layout);
            }
            // Else the first word written would bring 2 MiB.
            #[cfg(target_os = "linux")]
            // SAFETY: the range is the mapping, whose contents and address this keeps.
            let _ = unsafe { libc::madvise(memory, layout.size(), libc::MADV_NOHUGEPAGE) };
            start = NonNull::new(memory.cast()).unwrap_or_else(|| handle_alloc_error(layout));
        }
        SparseWords { start, len }
    }
}

impl Drop for SparseWords {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: it was mapped with this length, and nobody has it after this.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.len * size_of::<u16>()) };
        }
    }
}

impl Deref for SparseWords {
    type Target = [u16];

    #[inline]
    fn deref(&self) -> &[u16] {
        // SAFETY: `len` words stand there, zero or written, which live as long as `self`.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for SparseWords {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u16] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    /// Bytes of this process that are in memory.
    fn resident() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok());
        4096 * pages.unwrap_or(0_usize)
    }

    #[test]
    fn values_stay_while_their_memory_is_taken() {
        const WORDS: usize = 8 << 20;
        let mut words = vec![0_u64; WORDS].into_boxed_slice();
        words[WORDS - 1] = 7;
        let before = resident();
        take_in_large_pages(&mut words);
        assert!(resident() - before > WORDS * 8 * 9 / 10);
        assert_eq!((words.iter().sum::<u64>(), words[WORDS - 1]), (7, 7));
        take_in_large_pages(&mut words[..1]);
        take_in_large_pages::<u64>(&mut []);
    }

    #[test]
    fn sparse_words_take_the_pages_that_are_written() {
        const GIB: usize = 1 << 30;
        assert!(SparseWords::new(0).is_empty());
        let before = resident();
        let mut words = SparseWords::new(16 * GIB / 2);
        for page in 0..100 {
            words[page * GIB / 16] = page as u16 + 1;
        }
        assert!((0..100).all(|page| words[page * GIB / 16] == page as u16 + 1));
        assert_eq!(words.last(), Some(&0));
        let taken = resident().saturating_sub(before);
        assert!(taken < 16 << 20, "{taken} bytes for a hundred words");
    }

    #[test]
    fn values_stand_in_their_places_and_a_large_one_begins_with_a_page() {
        for len in [0, 1, 1000, 3 * HUGE_PAGE / 8 + 5] {
            let mut slice = LargeSlice::from_fn(len, |place| place as u64);
            assert_eq!(slice.len(), len);
            assert!(slice.iter().zip(0..).all(|(&value, place)| value == place));
            slice.iter_mut().for_each(|value| *value += 1);
            assert_eq!(slice.last().copied().unwrap_or_default(), len as u64);
            assert!(size_of_val(&*slice) < HUGE_PAGE || slice.as_ptr().addr().is_multiple_of(HUGE_PAGE));
        }
        assert_eq!(*LargeSlice::of(7_u8, 3), [7; 3]);
        assert_eq!(LargeSlice::of((), 5).len(), 5);
    }

    #[test]
    fn reserved_room_is_filled_from_the_front_and_never_moves() {
        for capacity in [0, 10, 3 * HUGE_PAGE / 8 + 5] {
            let mut slice = LargeSlice::reserved(capacity);
            let start = slice.as_ptr();
            assert_eq!((slice.len(), slice.capacity()), (0, capacity));
            slice.grow_to(7, 1_u64);
            assert_eq!(slice.len(), capacity.min(7));
            slice.grow_to(3, 2);
            slice.grow_to(capacity + 1, 3);
            assert_eq!((slice.len(), slice.as_ptr()), (capacity, start));
            assert_eq!(slice.push(4), Err(4));
            assert!(
                slice
                    .iter()
                    .zip(0..)
                    .all(|(&value, place)| value == if place < 7 { 1 } else { 3 })
            );
        }
    }

    #[test]
    fn what_is_in_it_is_dropped_once() {
        let counted = Rc::new(());
        let slice = LargeSlice::of(counted.clone(), 10);
        assert_eq!(Rc::strong_count(&counted), 12 - 1);
        drop(slice);
        assert_eq!(Rc::strong_count(&counted), 1);
        let mut slice = LargeSlice::reserved(10);
        slice.grow_to(3, counted.clone());
        assert_eq!(Rc::strong_count(&counted), 4);
        drop(slice);
        assert_eq!(Rc::strong_count(&counted), 1);
    }
}
