//! A fixed number of slots with a free list: connections are named by their slot.

use e2d2::memory::prefer_large_pages;

/// `T`s in slots `0..capacity`, allocated at start.
pub(super) struct Slots<T> {
    entries: Box<[Option<T>]>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    /// `capacity` empty slots.
    pub(super) fn new(capacity: usize) -> Self {
        let entries: Box<[Option<T>]> = (0..capacity).map(|_| None).collect();
        prefer_large_pages(&entries);
        Slots {
            entries,
            free: (0..capacity as u32).rev().collect(),
        }
    }

    /// Takes a slot for `value`. The slot freed last comes first: its lines are still in the cache.
    ///
    /// # Errors
    /// The value itself, if every slot is taken.
    pub(super) fn insert(&mut self, value: T) -> Result<u32, T> {
        let Some(slot) = self.free.pop() else { return Err(value) };
        self.entries[slot as usize] = Some(value);
        Ok(slot)
    }

    /// Frees a slot and returns what was in it.
    pub(super) fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.entries.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(value)
    }

    /// What is in a slot.
    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize)?.as_ref()
    }

    /// What is in a slot, to change it.
    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.entries.get_mut(slot as usize)?.as_mut()
    }

    /// Asks the processor for a slot's lines.
    #[inline]
    pub(super) fn prefetch(&self, slot: u32) {
        if let Some(entry) = self.entries.get(slot as usize) {
            e2d2::prefetch(entry);
        }
    }

    /// The number of taken slots.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// The number of slots.
    pub(super) fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// The memory of all slots in bytes.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.entries) + self.free.capacity() * size_of::<u32>()
    }
}
