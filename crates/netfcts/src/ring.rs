//! Hands ended connections from their core to the thread that makes records of them and writes those.
//!
//! One ring per core, one producer and one consumer, wait-free on both ends. A full ring loses the record and counts it:
//! the packet path never waits for a disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};

use crate::progress::Ended;
use crate::record::SessionRecord;

/// Makes a ring for `capacity` connections (128 bytes each) and returns its two ends.
pub fn record_ring(capacity: usize) -> (RecordSender, RecordReceiver) {
    let (producer, consumer) = RingBuffer::new(capacity);
    let lost = Arc::new(Lost::default());
    let sender = RecordSender {
        producer,
        lost: lost.clone(),
    };
    (sender, RecordReceiver { consumer, lost })
}

/// Records that found the ring full. The core writes it with each of them: no other core's data is in its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lost(AtomicU64);

/// The core's end of a record ring.
pub struct RecordSender {
    producer: Producer<Ended>,
    lost: Arc<Lost>,
}

impl RecordSender {
    /// Sends what `make` makes in its place of the ring, or counts it as lost if the ring is full.
    #[inline]
    pub fn send(&mut self, make: impl FnOnce() -> Ended) {
        match self.producer.write_chunk_uninit(1) {
            Ok(place) => _ = place.fill_from_iter(std::iter::once_with(make)),
            // Relaxed: the count stands for itself, no other data depends on it.
            Err(_) => _ = self.lost.0.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Records lost because the ring was full.
    pub fn records_lost(&self) -> u64 {
        self.lost.0.load(Ordering::Relaxed)
    }
}

/// The writing thread's end of a record ring.
pub struct RecordReceiver {
    consumer: Consumer<Ended>,
    lost: Arc<Lost>,
}

impl RecordReceiver {
    /// Gives the records of all that are in the ring now to `each` and returns their number.
    pub fn drain(&mut self, mut each: impl FnMut(&SessionRecord)) -> usize {
        let waiting = self.consumer.slots();
        for _ in 0..waiting {
            let Ok(ended) = self.consumer.pop() else { break };
            each(&ended.record());
        }
        waiting
    }

    /// Records lost because the ring was full.
    pub fn records_lost(&self) -> u64 {
        self.lost.0.load(Ordering::Relaxed)
    }

    /// Whether the sender is gone: after a last [`drain`](Self::drain) nothing more will come.
    pub fn is_abandoned(&self) -> bool {
        self.consumer.is_abandoned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::{Ends, Progress};

    fn numbered(number: u32) -> Ended {
        Ended {
            progress: Progress::NONE,
            ends: Ends {
                packets: (number, 0),
                ..Ends::default()
            },
        }
    }

    /// What cores write for every record, or every one lost, is in lines of its own.
    #[test]
    fn ends_of_two_rings_share_no_cache_line() {
        assert_eq!((align_of::<Lost>(), size_of::<Lost>()), (128, 128));
        // Both positions of a ring, each on a line of its own.
        assert!(align_of::<RingBuffer<Ended>>() >= 64);
        assert!(size_of::<RingBuffer<Ended>>() >= 2 * 64);
    }

    #[test]
    fn full_ring_loses_the_newest_and_counts() {
        let (mut sender, mut receiver) = record_ring(4);
        (0..6).for_each(|number| sender.send(|| numbered(number)));
        assert_eq!((sender.records_lost(), receiver.records_lost()), (2, 2));
        let mut seen = Vec::new();
        assert_eq!(receiver.drain(|record| seen.push(record.packets_to_server)), 4);
        assert_eq!(seen, [0, 1, 2, 3]);
        sender.send(|| numbered(6));
        assert_eq!(receiver.drain(|record| assert_eq!(*record, numbered(6).record())), 1);
    }

    #[test]
    fn records_cross_threads_in_order_and_none_is_unaccounted_for() {
        const COUNT: u32 = 100_000;
        let (mut sender, mut receiver) = record_ring(64);
        let producer = std::thread::spawn(move || {
            (0..COUNT).for_each(|number| sender.send(|| numbered(number)));
            sender.records_lost()
        });
        let (mut received, mut last) = (0, None);
        loop {
            let ended = receiver.is_abandoned();
            let count = receiver.drain(|record| {
                assert!(
                    last < Some(record.packets_to_server),
                    "{last:?} before {}",
                    record.packets_to_server
                );
                last = Some(record.packets_to_server);
            });
            received += count as u64;
            if ended && count == 0 {
                break;
            }
            std::thread::yield_now();
        }
        let lost = producer.join().unwrap();
        assert_eq!(received + lost, u64::from(COUNT));
    }
}
