//! Hands ended connections from their core to the thread that makes records of them and writes those.
//!
//! One ring per core, one producer and one consumer, wait-free on both ends. A full ring loses the record and counts it:
//! the packet path never waits for a disk. What was seen of the legs of a few connections goes by a ring beside it, so that the
//! others pay nothing for its size.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};

use crate::legs::Legs;
use crate::progress::Ended;
use crate::record::{RecordFlags, SessionRecord};

/// Connections in the ring for each whose legs there is room for beside it: more than one in a default sample.
const RECORDS_PER_LEGS: usize = 16;

/// Makes a ring for `capacity` connections (128 bytes each) and returns its two ends. Its memory is taken now, in large pages: the
/// sender goes round all of it, and in small pages every 32nd record would cost a page walk.
pub fn record_ring(capacity: usize) -> (RecordSender, RecordReceiver) {
    // The place behind the last one is looked at with it.
    let (mut producer, consumer) = RingBuffer::new(capacity + 1);
    if let Ok(mut places) = producer.write_chunk_uninit(capacity + 1) {
        e2d2::memory::take_in_large_pages(places.as_mut_slices().0);
    }
    let (to_legs, legs) = RingBuffer::new(capacity.div_ceil(RECORDS_PER_LEGS));
    let lost = Arc::new(Lost::default());
    let sender = RecordSender {
        producer,
        legs: to_legs,
        lost: lost.clone(),
    };
    (sender, RecordReceiver { consumer, legs, lost })
}

/// Records that found the ring full. The core writes it with each of them: no other core's data is in its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lost(AtomicU64);

/// The core's end of a record ring.
pub struct RecordSender {
    producer: Producer<Ended>,
    legs: Producer<Legs>,
    lost: Arc<Lost>,
}

impl RecordSender {
    /// Sends what `make` makes in its place of the ring, or counts it as lost if the ring is full.
    #[inline]
    pub fn send(&mut self, make: impl FnOnce() -> Ended) {
        if !e2d2::send_in_place(&mut self.producer, make) {
            self.lose();
        }
    }

    #[cold]
    fn lose(&mut self) {
        // Relaxed: the count stands for itself, no other data depends on it.
        self.lost.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The same for one whose legs were watched. What was seen of them is left out, and the flag with it, if there is no room.
    #[cold]
    pub fn send_sampled(&mut self, legs: &Legs, mut ended: Ended) {
        // They are there before the record that says so, and not without it.
        if self.producer.slots() > 1 && self.legs.push(*legs).is_ok() {
            ended.progress.set_flags(RecordFlags::SAMPLED);
        }
        self.send(|| ended);
    }

    /// Records lost because the ring was full.
    pub fn records_lost(&self) -> u64 {
        self.lost.0.load(Ordering::Relaxed)
    }
}

/// The writing thread's end of a record ring.
pub struct RecordReceiver {
    consumer: Consumer<Ended>,
    legs: Consumer<Legs>,
    lost: Arc<Lost>,
}

impl RecordReceiver {
    /// Gives the records of all that are in the ring now to `each` and returns their number.
    pub fn drain(&mut self, mut each: impl FnMut(&SessionRecord)) -> usize {
        let waiting = self.consumer.slots();
        for _ in 0..waiting {
            let Ok(ended) = self.consumer.pop() else { break };
            let mut record = ended.record();
            if record.flags().contains(RecordFlags::SAMPLED) {
                record.legs = self.legs.pop().ok();
            }
            each(&record);
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
    fn what_was_seen_of_legs_comes_with_its_record_or_not_at_all() {
        let (mut sender, mut receiver) = record_ring(RECORDS_PER_LEGS);
        let legs = |segments| {
            let mut legs = Legs::new(std::num::NonZeroU32::MIN);
            legs.client.segments = segments;
            legs
        };
        for round in 0..3 {
            sender.send(|| numbered(0));
            sender.send_sampled(&legs(round), numbered(1));
            // There is room for one.
            sender.send_sampled(&legs(9), numbered(2));
            sender.send(|| numbered(3));
            let mut seen = Vec::new();
            receiver.drain(|record| {
                let is_flagged = record.flags().contains(RecordFlags::SAMPLED);
                assert_eq!(is_flagged, record.legs.is_some());
                seen.push((record.packets_to_server, record.legs));
            });
            assert_eq!(seen, [(0, None), (1, Some(legs(round))), (2, None), (3, None)]);
        }
        (0..20).for_each(|_| sender.send(|| numbered(4)));
        sender.send_sampled(&legs(9), numbered(5));
        assert_eq!(sender.records_lost(), 5);
        receiver.drain(|record| assert_eq!((record.packets_to_server, record.legs), (4, None)));
        sender.send_sampled(&legs(7), numbered(6));
        receiver.drain(|record| assert_eq!(record.legs, Some(legs(7))));
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
