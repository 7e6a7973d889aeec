//! Frames between a core and the kernel's thread: bytes in a ring of fixed size, so that no packet buffer leaves its core.
//!
//! One producer, one consumer, wait-free. A frame is two bytes of length and its bytes; it is there when all of them are.

use rtrb::{Consumer, Producer, RingBuffer};

const LENGTH: usize = 2;

/// The ring has no room for the frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RingFull;

/// The end that frames are put into.
#[derive(Debug)]
pub struct FrameSender(Producer<u8>);

/// The end that frames are taken from.
#[derive(Debug)]
pub struct FrameReceiver(Consumer<u8>);

/// A ring of `bytes` bytes; a frame takes two more than it has.
pub fn frame_ring(bytes: usize) -> (FrameSender, FrameReceiver) {
    let (producer, consumer) = RingBuffer::new(bytes);
    (FrameSender(producer), FrameReceiver(consumer))
}

impl FrameSender {
    /// Whether a frame of `length` bytes would fit now; it still will until the next [`push`](Self::push).
    pub fn has_room_for(&self, length: usize) -> bool {
        self.0.slots() >= LENGTH + length
    }

    /// Copies a frame into the ring.
    ///
    /// # Errors
    /// There is no room, or it is longer than 65 535 bytes.
    pub fn push(&mut self, frame: &[u8]) -> Result<(), RingFull> {
        self.push_joined(&[], frame)
    }

    /// Copies a frame into the ring that stands in two places.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_joined(&mut self, front: &[u8], rest: &[u8]) -> Result<(), RingFull> {
        let whole = front.len() + rest.len();
        let length = u16::try_from(whole).map_err(|_| RingFull)?;
        if !self.has_room_for(whole) {
            return Err(RingFull);
        }
        // Only this end takes room away, so none of them fails.
        self.0
            .push_entire_slice(&length.to_ne_bytes())
            .and_then(|()| self.0.push_entire_slice(front))
            .and_then(|()| self.0.push_entire_slice(rest))
            .map_err(|_| RingFull)
    }
}

impl FrameReceiver {
    /// Takes the next frame and puts it in the place of what `into` holds; false if there is none.
    pub fn pop(&mut self, into: &mut Vec<u8>) -> bool {
        let Some(length) = self.next_length() else { return false };
        let Ok(chunk) = self.0.read_chunk(LENGTH + length) else {
            return false;
        };
        let (first, second) = chunk.as_slices();
        into.clear();
        into.extend_from_slice(first.get(LENGTH..).unwrap_or_default());
        into.extend_from_slice(&second[LENGTH.saturating_sub(first.len()).min(second.len())..]);
        chunk.commit_all();
        true
    }

    /// Whether there is nothing. One load where that is so.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn next_length(&mut self) -> Option<usize> {
        let chunk = self.0.read_chunk(LENGTH).ok()?;
        let (first, second) = chunk.as_slices();
        let mut bytes = first.iter().chain(second);
        let length = [*bytes.next()?, *bytes.next()?];
        Some(u16::from_ne_bytes(length).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_whole_and_in_order_wherever_the_ring_wraps() {
        let (mut sender, mut receiver) = frame_ring(100);
        let mut into = Vec::new();
        for n in 0..1000_usize {
            let frames: Vec<Vec<u8>> = (0..3).map(|i| vec![(n + i) as u8; (n * 7 + i * 3) % 30]).collect();
            for frame in &frames {
                assert_eq!(sender.push(frame), Ok(()), "{n}");
            }
            for frame in &frames {
                assert!(receiver.pop(&mut into));
                assert_eq!(&into, frame, "{n}");
            }
            assert!(receiver.is_empty() && !receiver.pop(&mut into));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let (mut sender, mut receiver) = frame_ring(20);
        assert_eq!(sender.push(&[1; 18]), Ok(()));
        assert_eq!(sender.push(&[]), Err(RingFull));
        let mut into = Vec::new();
        assert!(receiver.pop(&mut into));
        assert_eq!(into, [1; 18]);
        assert!(sender.has_room_for(18) && !sender.has_room_for(19));
        assert_eq!(sender.push(&[2; 19]), Err(RingFull));
        assert_eq!(sender.push(&vec![0; 1 << 16]), Err(RingFull));
        assert!(receiver.is_empty());
    }

    #[test]
    fn a_frame_that_is_half_there_is_not_there() {
        let (mut sender, mut receiver) = frame_ring(64);
        let mut into = vec![9];
        sender.0.push_entire_slice(&3_u16.to_ne_bytes()).expect("room");
        sender.0.push_entire_slice(&[7, 8]).expect("room");
        assert!(!receiver.pop(&mut into));
        sender.0.push(9).expect("room");
        assert!(receiver.pop(&mut into));
        assert_eq!(into, [7, 8, 9]);
    }
}
