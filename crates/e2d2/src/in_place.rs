//! Sending by a ring without a copy.

#![allow(unsafe_code)] // A place is filled in place: by way of `rtrb`'s iterator a value would be copied three times.

use rtrb::Producer;

use crate::prefetch::prefetch_lines_to_write;

/// Sends what `make` makes in its place of the ring. Returns false, and makes nothing, if there is no room for two: the place behind is
/// looked at with it.
///
/// The reader's core has read that place when the ring came round, and has its lines: they come back before they are written.
#[inline]
pub fn send_in_place<T>(ring: &mut Producer<T>, make: impl FnOnce() -> T) -> bool {
    let Ok(mut places) = ring.write_chunk_uninit(2) else {
        return false;
    };
    let (([place, next], _) | ([place], [next])) = places.as_mut_slices() else {
        return false;
    };
    prefetch_lines_to_write(next);
    place.write(make());
    // SAFETY: the first place has been written.
    unsafe { places.commit(1) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtrb::RingBuffer;

    #[test]
    fn all_but_one_place_are_filled_in_order_and_nothing_is_made_without_room() {
        let (mut sender, mut receiver) = RingBuffer::new(3);
        for round in 0..5 {
            let boxed = |number: u32| move || Box::new((round, number));
            assert!(send_in_place(&mut sender, boxed(0)) && send_in_place(&mut sender, boxed(1)));
            assert!(!send_in_place(&mut sender, || unreachable!("no room")));
            assert_eq!(
                [receiver.pop(), receiver.pop()],
                [0, 1].map(|number| Ok(Box::new((round, number))))
            );
            assert!(receiver.is_empty());
        }
    }
}
