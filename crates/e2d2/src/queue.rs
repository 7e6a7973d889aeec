//! A bounded queue on one core.
//!
//! Its memory is allocated once. What does not fit is given back to the caller, who must decide what becomes of it; the
//! hand-over between cores is [`crate::handover`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::collections::vec_deque::Drain;
use std::rc::Rc;

/// A queue with two owners on a core: one fills it, the other empties it.
pub type SharedQueue<T> = Rc<RefCell<Queue<T>>>;

/// A first-in first-out queue of at most `capacity` items.
#[derive(Debug)]
pub struct Queue<T> {
    items: VecDeque<T>,
    capacity: usize,
}

impl<T> Queue<T> {
    /// An empty queue with room for `capacity` items.
    pub fn new(capacity: usize) -> Self {
        Self {
            items: VecDeque::with_capacity(capacity),
            capacity,
        }
    }

    /// An empty queue for two owners on this core.
    pub fn shared(capacity: usize) -> SharedQueue<T> {
        Rc::new(RefCell::new(Self::new(capacity)))
    }

    /// Puts `item` at the end.
    ///
    /// # Errors
    /// Gives the item back if the queue is full.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        self.items.push_back(item);
        Ok(())
    }

    /// Takes the item at the front.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.items.pop_front()
    }

    /// Takes the first `max` items, or all if there are fewer; those not iterated over are dropped with the iterator.
    ///
    /// A queue that is emptied this way starts over at the front of its memory, which stays in the cache.
    #[inline]
    pub fn drain(&mut self, max: usize) -> Drain<'_, T> {
        let count = max.min(self.items.len());
        self.items.drain(..count)
    }

    /// How many items wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether the next [`Queue::push`] is refused.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.items.len() >= self.capacity
    }

    /// How many items it holds at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many more items fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.capacity - self.items.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_item_fits_and_the_next_comes_back() {
        let mut queue = Queue::new(2);
        assert_eq!((queue.push('a'), queue.push('b')), (Ok(()), Ok(())));
        assert_eq!(queue.room(), 0);
        assert_eq!(queue.push('c'), Err('c'));
        assert_eq!(queue.pop(), Some('a'));
        assert_eq!(queue.push('c'), Ok(()));
        assert_eq!(queue.drain(9).collect::<String>(), "bc");
        assert!(queue.is_empty());
    }

    #[test]
    fn queue_of_capacity_zero_refuses_everything() {
        assert_eq!(Queue::new(0).push(1), Err(1));
    }

    #[test]
    fn draining_a_part_keeps_the_order_of_the_rest() {
        let mut queue = Queue::new(8);
        (0..5).for_each(|n| queue.push(n).expect("room"));
        assert_eq!(queue.drain(2).collect::<Vec<_>>(), [0, 1]);
        queue.push(5).expect("room");
        assert_eq!(queue.drain(usize::MAX).collect::<Vec<_>>(), [2, 3, 4, 5]);
    }

    #[test]
    fn memory_is_allocated_once() {
        let mut queue = Queue::new(100);
        let before = queue.items.capacity();
        for round in 0..1_000 {
            while queue.push(round).is_ok() {}
            queue.drain(round % 100).for_each(drop);
        }
        assert_eq!(queue.items.capacity(), before);
    }
}
