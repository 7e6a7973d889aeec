//! The ring of records against a queue: what is taken out is what went in, in order, and what was lost was the newest.

use netfcts::progress::{Ended, Ends, Progress};
use netfcts::ring::record_ring;
use std::collections::VecDeque;
use testkit::sim::Random;

fn numbered(number: u32) -> Ended {
    Ended {
        progress: Progress::NONE,
        ends: Ends {
            client: u128::from_ne_bytes([10; 16]),
            client_port: number as u16,
            packets: (number, 0),
            ..Ends::default()
        },
    }
}

#[test]
fn loses_the_newest_and_nothing_else() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let capacity = random.within(1..=70) as usize;
        let (mut sender, mut receiver) = record_ring(capacity);
        let (mut model, mut lost, mut number) = (VecDeque::new(), 0, 0);
        for _ in 0..2_000 {
            if random.chance(600) {
                for _ in 0..random.within(1..=capacity as u64) {
                    sender.send(|| numbered(number));
                    if model.len() < capacity {
                        model.push_back(number);
                    } else {
                        lost += 1;
                    }
                    number += 1;
                }
            } else {
                let mut taken = Vec::new();
                let count = receiver.drain(|record| {
                    assert_eq!(*record, numbered(record.packets_to_server).record(), "seed {seed}");
                    taken.push(record.packets_to_server);
                });
                assert_eq!(
                    (count, &taken),
                    (model.len(), &model.drain(..).collect()),
                    "seed {seed}"
                );
            }
            let counted = (sender.records_lost(), receiver.records_lost());
            assert_eq!(counted, (lost, lost), "seed {seed}");
        }
        drop(sender);
        assert!(receiver.is_abandoned());
        assert_eq!(
            receiver.drain(|_| {}),
            model.len(),
            "what was sent can be read after the sender's end"
        );
    }
}
