//! Hand-over of packets between cores: bounded single-producer single-consumer rings.
//!
//! This is the steering of last resort, always correct: where the NIC cannot be made to deliver a packet to the core that
//! owns its connection, the core that got it passes it on. [`mesh`] makes one ring for every ordered pair of cores:
//!
//! ```text
//!             to core 0   to core 1   to core 2
//!   core 0        –         ring        ring       Outgoing: a row, owned by the core that sends
//!   core 1      ring          –         ring
//!   core 2      ring        ring          –        Incoming: a column, owned by the core that receives
//! ```
//!
//! A ring refuses what does not fit and gives it back. Packets left in a ring are freed when both its ends are gone.
//!
//! The two ends of a ring are on different cores, and each end writes where it stands: every end has cache lines of its own,
//! and so have the two positions that a ring shares.

use rtrb::{Consumer, Producer, PushError, RingBuffer};

/// What one core sends to the others.
pub struct Outgoing<T> {
    rings: Vec<Apart<Option<Producer<T>>>>,
}

/// What one core receives from the others.
pub struct Incoming<T> {
    rings: Vec<Apart<Consumer<T>>>,
    next: usize,
}

/// On two cache lines of its own: processors fetch lines in pairs.
#[repr(align(128))]
struct Apart<T>(T);

/// Both ends that one core holds; core `n` gets the `n`-th of [`mesh`].
pub struct Links<T> {
    /// To the other cores.
    pub outgoing: Outgoing<T>,
    /// From the other cores.
    pub incoming: Incoming<T>,
}

/// Rings of `capacity` items between each two of `cores` cores.
pub fn mesh<T: Send>(cores: usize, capacity: usize) -> Vec<Links<T>> {
    let mut links: Vec<_> = (0..cores)
        .map(|_| Links {
            outgoing: Outgoing {
                rings: Vec::with_capacity(cores),
            },
            incoming: Incoming {
                rings: Vec::with_capacity(cores.saturating_sub(1)),
                next: 0,
            },
        })
        .collect();
    for from in 0..cores {
        for to in 0..cores {
            let producer = (from != to).then(|| {
                let (producer, consumer) = RingBuffer::new(capacity);
                links[to].incoming.rings.push(Apart(consumer));
                producer
            });
            links[from].outgoing.rings.push(Apart(producer));
        }
    }
    links
}

impl<T> Outgoing<T> {
    /// Puts `item` into the ring of core `to`.
    ///
    /// # Errors
    /// Gives the item back if that ring is full, or if `to` is this core or none of the mesh.
    #[inline]
    pub fn push(&mut self, to: usize, item: T) -> Result<(), T> {
        match self.rings.get_mut(to) {
            Some(Apart(Some(ring))) => ring.push(item).map_err(|PushError::Full(item)| item),
            _ => Err(item),
        }
    }
}

impl<T> Incoming<T> {
    /// How many items wait. For reports: it reads what the other cores write.
    pub fn waiting(&self) -> usize {
        self.rings.iter().map(|ring| ring.0.slots()).sum()
    }

    /// Takes at most `max` items and gives each to `take`; returns how many.
    ///
    /// Each call begins with the ring after the one that the last call began with, so that no core is kept waiting by
    /// another that sends more than `max`.
    #[inline]
    pub fn take(&mut self, max: usize, mut take: impl FnMut(T)) -> usize {
        let count = self.rings.len();
        let mut taken = 0;
        for offset in 0..count {
            let Apart(ring) = &mut self.rings[(self.next + offset) % count];
            while taken < max
                && let Ok(item) = ring.pop()
            {
                take(item);
                taken += 1;
            }
        }
        self.next = if count == 0 { 0 } else { (self.next + 1) % count };
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all<T>(incoming: &mut Incoming<T>, max: usize) -> Vec<T> {
        let mut taken = Vec::new();
        incoming.take(max, |item| taken.push(item));
        taken
    }

    #[test]
    fn each_pair_of_cores_has_its_own_ring() {
        let mut links = mesh(3, 4);
        for (from, link) in links.iter_mut().enumerate() {
            for to in 0..3 {
                let pushed = link.outgoing.push(to, (from, to));
                assert_eq!(pushed.is_ok(), from != to, "{from} to {to}");
            }
        }
        assert_eq!(take_all(&mut links[0].incoming, 9), [(1, 0), (2, 0)]);
        assert_eq!(take_all(&mut links[1].incoming, 9), [(0, 1), (2, 1)]);
        assert_eq!(take_all(&mut links[2].incoming, 9), [(0, 2), (1, 2)]);
    }

    #[test]
    fn full_ring_and_unknown_core_give_the_item_back() {
        let mut links = mesh(2, 1);
        assert_eq!(links[0].outgoing.push(1, 'a'), Ok(()));
        assert_eq!(links[0].outgoing.push(1, 'b'), Err('b'));
        assert_eq!(links[0].outgoing.push(2, 'b'), Err('b'));
        assert_eq!(take_all(&mut links[1].incoming, 9), ['a']);
        assert_eq!(links[0].outgoing.push(1, 'b'), Ok(()));
    }

    #[test]
    fn busy_core_does_not_keep_another_waiting() {
        let mut links = mesh(3, 8);
        for n in 0..8 {
            links[0].outgoing.push(2, ("busy", n)).expect("room");
        }
        links[1].outgoing.push(2, ("quiet", 0)).expect("room");
        assert_eq!((links[2].incoming.waiting(), links[1].incoming.waiting()), (9, 0));
        let first = take_all(&mut links[2].incoming, 2);
        assert_eq!(links[2].incoming.waiting(), 7);
        let second = take_all(&mut links[2].incoming, 2);
        assert_eq!(first, [("busy", 0), ("busy", 1)]);
        assert_eq!(second, [("quiet", 0), ("busy", 2)]);
    }

    /// Where an end of a ring stands is written with every item: the ends of two cores share no cache line.
    #[test]
    fn ends_of_rings_share_no_cache_line() {
        let links = mesh::<u32>(3, 4);
        let lines_of = |link: &Links<u32>| -> Vec<usize> {
            let outgoing = link
                .outgoing
                .rings
                .iter()
                .map(|end| std::ptr::from_ref(end).addr() / 128);
            let incoming = link
                .incoming
                .rings
                .iter()
                .map(|end| std::ptr::from_ref(end).addr() / 128);
            outgoing.chain(incoming).collect()
        };
        assert_eq!(size_of::<Apart<Option<Producer<u32>>>>() % 128, 0);
        assert_eq!(size_of::<Apart<Consumer<u32>>>() % 128, 0);
        let mut lines: Vec<usize> = links.iter().flat_map(lines_of).collect();
        let ends = lines.len();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), ends);
        assert_eq!(ends, 3 * (3 + 2));
        // What both ends look at: one position each, on a line of its own.
        assert!(align_of::<RingBuffer<u32>>() >= 64 && size_of::<RingBuffer<u32>>() >= 2 * 64);
    }

    #[test]
    fn items_cross_threads_in_order_and_are_freed_once() {
        let counted = std::sync::Arc::new(());
        let mut links = mesh(2, 16);
        let mut receiver = links.pop().expect("core 1");
        let mut sender = links.pop().expect("core 0");
        let token = std::sync::Arc::clone(&counted);
        let sending = std::thread::spawn(move || {
            for n in 0..10_000_u32 {
                let mut item = (n, std::sync::Arc::clone(&token));
                while let Err(refused) = sender.outgoing.push(1, item) {
                    item = refused;
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < 9_990 {
            receiver.incoming.take(8, |(n, _)| {
                assert_eq!(n, expected);
                expected += 1;
            });
        }
        sending.join().expect("sending thread");
        drop((receiver, links));
        assert_eq!(
            std::sync::Arc::strong_count(&counted),
            1,
            "what stayed in the ring was freed"
        );
    }
}
