//! A fixed number of slots with a free list: connections are named by their slot.

use e2d2::memory::LargeSlice;

/// `T`s in slots `0..capacity`, allocated at start. The free ones are a list through the slots themselves, so that a `T`
/// with some value to spare costs no more than its size. The list ends with the number of the slots there are.
pub(crate) struct Slab<T> {
    entries: LargeSlice<Slot<T>>,
    free: u32,
    used: usize,
    /// Slots up to the last that was ever taken.
    touched: u32,
}

enum Slot<T> {
    Taken(T),
    /// The next free slot, or anything that is none.
    Free(u32),
}

impl<T> Slab<T> {
    /// `capacity` empty slots.
    pub(crate) fn new(capacity: usize) -> Self {
        Slab {
            entries: LargeSlice::from_fn(capacity, |slot| Slot::Free(slot as u32 + 1)),
            free: 0,
            used: 0,
            touched: 0,
        }
    }

    /// Room for `capacity` slots whose memory is touched when it is used for the first time.
    pub(crate) fn reserved(capacity: usize) -> Self {
        Slab {
            entries: LargeSlice::reserved(capacity),
            free: 0,
            used: 0,
            touched: 0,
        }
    }

    /// The slot that the next value gets, if there is one.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        ((self.free as usize) < self.entries.capacity()).then_some(self.free)
    }

    /// Takes a slot for `value`. The slot freed last comes first: its lines are still in the cache.
    ///
    /// # Errors
    /// The value itself, if every slot is taken.
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, T> {
        let slot = self.free;
        let Some(entry) = self.entries.get_mut(slot as usize) else {
            return self.insert_behind(value);
        };
        // The head of the list is free.
        let Slot::Free(next) = *entry else { return Err(value) };
        *entry = Slot::Taken(value);
        self.free = next;
        self.used += 1;
        self.touched = self.touched.max(slot + 1);
        Ok(slot)
    }

    /// Takes a slot that was never used.
    #[cold]
    fn insert_behind(&mut self, value: T) -> Result<u32, T> {
        let slot = self.free;
        match self.entries.push(Slot::Taken(value)) {
            Err(Slot::Taken(value)) => return Err(value),
            Err(Slot::Free(_)) | Ok(()) => {}
        }
        self.free = slot + 1;
        self.used += 1;
        self.touched = slot + 1;
        Ok(slot)
    }

    /// Frees a slot. Returns false if it was free.
    #[inline]
    pub(crate) fn free(&mut self, slot: u32) -> bool {
        match self.entries.get_mut(slot as usize) {
            Some(entry @ Slot::Taken(_)) => {
                *entry = Slot::Free(self.free);
                self.free = slot;
                self.used -= 1;
                true
            }
            _ => false,
        }
    }

    /// Frees a slot and returns what was in it.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let entry = self.entries.get_mut(slot as usize)?;
        if matches!(entry, Slot::Free(_)) {
            return None;
        }
        let Slot::Taken(value) = std::mem::replace(entry, Slot::Free(self.free)) else {
            return None;
        };
        self.free = slot;
        self.used -= 1;
        Some(value)
    }

    /// What is in a slot.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        match self.entries.get(slot as usize)? {
            Slot::Taken(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// What is in a slot, to change it.
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        match self.entries.get_mut(slot as usize)? {
            Slot::Taken(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// Asks the processor for a slot's lines.
    #[inline]
    pub(crate) fn prefetch(&self, slot: u32) {
        if let Some(entry) = self.entries.get(slot as usize) {
            e2d2::prefetch_lines(entry);
        }
    }

    /// The number of taken slots.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Slots up to the last that was ever taken: none behind it is.
    pub(crate) fn touched(&self) -> u32 {
        self.touched
    }

    /// The number of slots.
    pub(crate) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// The memory of all slots that have been touched, in bytes.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.entries)
    }

    /// The bytes of one slot.
    pub(crate) const fn slot_size() -> usize {
        size_of::<Slot<T>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_slots_are_as_any_others_and_touched_in_order() {
        for mut slots in [Slab::new(3), Slab::reserved(3)] {
            let taken: Vec<_> = (0..3).map(|value| (slots.next(), slots.insert(value))).collect();
            assert_eq!(taken, [(Some(0), Ok(0)), (Some(1), Ok(1)), (Some(2), Ok(2))]);
            assert_eq!((slots.next(), slots.insert(9), slots.touched()), (None, Err(9), 3));
            assert!(slots.free(1) && !slots.free(1) && slots.free(0));
            assert_eq!(
                (slots.insert(7), slots.insert(8), slots.insert(9)),
                (Ok(0), Ok(1), Err(9))
            );
            assert_eq!((slots.get(1), slots.len(), slots.capacity()), (Some(&8), 3, 3));
        }
        let mut slots = Slab::reserved(1000);
        for value in 0..100 {
            assert_eq!(slots.insert(value), Ok(0));
            slots.free(0);
        }
        assert_eq!((slots.memory(), slots.touched()), (Slab::<i32>::slot_size(), 1));
    }
}
