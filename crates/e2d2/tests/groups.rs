//! `group_by` and `merge`: who gets which packets, in which order, and who waits.

mod common;

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use common::{NOW, arp_frame, cable, collect, drops, inject, number_of, settle, strange_frame, tcp_frame};
use e2d2::BURST;
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool};
use e2d2::counters::Reason;
use e2d2::fate::{DropReason, GraphCounters};
use e2d2::operators::{Round, Source, merge, merge_by_priority, receive};
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::frame::{Kind, Packet};

e2d2::reasons! {
    enum Class {
        Tcp = "tcp",
        Neighbour = "neighbour",
        Other = "other",
    }
}

fn class_of(packet: &Packet<HeapBuffer>) -> Class {
    match packet.kind {
        Kind::Tcp(_) => Class::Tcp,
        Kind::Arp | Kind::Icmpv4 { .. } | Kind::Icmpv6 { .. } => Class::Neighbour,
        Kind::Other { .. } => Class::Other,
    }
}

#[test]
fn groups_get_their_packets_and_untaken_groups_are_counted() {
    let mut pool = HeapPool::new(512, 128);
    let (mut tcp_out, mut arp_out, mut input) = (cable(0, 256), cable(1, 256), cable(2, 256));
    let (counters, reader) = GraphCounters::new();
    let groups = receive(&input.near).parse().group_by(class_of);
    let to = |port| {
        move |packet: Packet<HeapBuffer>| Packet {
            port: PortId(port),
            ..packet
        }
    };
    let tcp = groups.group(Class::Tcp).map(to(0));
    let arp = groups.group(Class::Neighbour).map(to(1));
    let mut task = merge((tcp, arp)).send([tcp_out.near, arp_out.near], 0, counters);

    let mut frames = Vec::new();
    for n in 0..60 {
        frames.extend([tcp_frame(n), arp_frame(), strange_frame()]);
    }
    inject(&mut input.far, &mut pool, &frames);
    settle(&mut task);
    let numbers: Vec<_> = collect(&mut tcp_out.far).iter().map(|frame| number_of(frame)).collect();
    assert_eq!(numbers, (0..60).collect::<Vec<_>>());
    assert_eq!(collect(&mut arp_out.far), vec![arp_frame(); 60]);
    assert_eq!(drops(&reader), [(DropReason::NoSuchGroup, 60)]);
    assert_eq!(pool.available(), pool.capacity());
}

/// A source that always has packets and counts how often it is asked.
struct Endless {
    asked: Rc<Cell<usize>>,
}

impl Source for Endless {
    type Item = usize;

    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, usize)) -> usize {
        self.asked.set(self.asked.get() + 1);
        let count = max.min(BURST);
        (0..count).for_each(|n| each(round, n));
        count
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

#[test]
fn source_above_groups_is_asked_once_per_round() {
    let asked = Rc::new(Cell::new(0));
    let source = Endless {
        asked: Rc::clone(&asked),
    };
    let groups = source.group_by(|n| Class::ALL[n % 3]);
    let (counters, reader) = GraphCounters::new();
    let mut round = Round::new(NOW, &counters);
    let mut merged = merge_by_priority(Class::ALL.iter().map(|class| groups.group(*class)).collect::<Vec<_>>());
    for rounds in 1..=5 {
        let mut got = Vec::new();
        assert_eq!(merged.pull(&mut round, usize::MAX, |_, n| got.push(n)), BURST);
        assert!(got.is_sorted_by_key(|n| n % 3), "{got:?}");
        assert_eq!(asked.get(), rounds);
    }
    assert_eq!(drops(&reader), []);
}

#[test]
fn rotating_merge_of_groups_loses_nothing_and_forgets_nobody() {
    let asked = Rc::default();
    let source = Endless {
        asked: Rc::clone(&asked),
    };
    let groups = source.group_by(|n| Class::ALL[n % 3]);
    let (counters, reader) = GraphCounters::new();
    let mut round = Round::new(NOW, &counters);
    let mut merged = merge([Class::Tcp, Class::Neighbour, Class::Other].map(|class| groups.group(class)));
    let mut got = [0; 3];
    for _ in 0..90 {
        merged.pull(&mut round, usize::MAX, |_, n| got[n % 3] += 1);
    }
    // Of each burst of 32, 11 are of the first two groups and 10 of the third; at most two bursts wait in the queues.
    let bursts = asked.get();
    assert!((80..=90).contains(&bursts), "{bursts} bursts in 90 rounds");
    for (group, share) in [11, 11, 10].into_iter().enumerate() {
        assert!(
            got[group] > share * (bursts - 3) && got[group] <= share * bursts,
            "{got:?} of {bursts} bursts"
        );
    }
    assert_eq!(drops(&reader), []);
}

/// A group that is pulled rarely holds the others up; it does not lose packets.
#[test]
fn slow_group_waits_without_loss() {
    let mut pool = HeapPool::new(1024, 128);
    let (mut output, mut input) = (cable(2, 1024), cable(2, 1024));
    let (counters, reader) = GraphCounters::new();
    let groups = receive(&input.near).parse().group_by(class_of);
    let mut fast = groups
        .group(Class::Tcp)
        .send([Rc::clone(&output.near)], 0, Rc::clone(&counters));
    let mut slow = groups
        .group(Class::Neighbour)
        .send([Rc::clone(&output.near)], 0, Rc::clone(&counters));

    let frames: Vec<_> = (0..400)
        .map(|n| if n % 2 == 0 { arp_frame() } else { tcp_frame(n) })
        .collect();
    inject(&mut input.far, &mut pool, &frames);
    settle(&mut fast);
    let before = collect(&mut output.far).len();
    assert!(
        before < 200,
        "the fast group went on although the slow one's queue was full"
    );
    for _ in 0..20 {
        settle(&mut slow);
        settle(&mut fast);
    }
    assert_eq!(before + collect(&mut output.far).len(), 400);
    assert_eq!(drops(&reader), []);
    assert_eq!(reader.held(), 0);
}

/// A source of what is there from the beginning.
struct Stock(VecDeque<usize>);

impl Source for Stock {
    type Item = usize;

    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, usize)) -> usize {
        let count = max.min(BURST).min(self.0.len());
        self.0.drain(..count).for_each(|n| each(round, n));
        count
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

#[test]
fn merge_in_turn_is_fair_and_by_priority_is_not() {
    fn share_of_the_first(by_priority: bool) -> usize {
        let (counters, _reader) = GraphCounters::new();
        let mut round = Round::new(NOW, &counters);
        let sources = [0, 1, 2].map(|index| Stock(vec![index; 1024].into()));
        let mut merged = if by_priority {
            merge_by_priority(sources)
        } else {
            merge(sources)
        };
        let mut of_the_first = 0;
        for _ in 0..30 {
            assert_eq!(
                merged.pull(&mut round, BURST, |_, index| of_the_first += usize::from(index == 0)),
                BURST
            );
        }
        of_the_first
    }
    assert_eq!(share_of_the_first(false), 10 * BURST);
    assert_eq!(share_of_the_first(true), 30 * BURST);
}

#[test]
fn lower_priority_gets_what_is_left_of_the_batch() {
    let (counters, _reader) = GraphCounters::new();
    let mut round = Round::new(NOW, &counters);
    let (urgent, bulk) = (Stock([100].into()), Stock((0..8).collect()));
    let mut merged = merge_by_priority((urgent, bulk));
    let mut got = Vec::new();
    assert_eq!(merged.pull(&mut round, 4, |_, n| got.push(n)), 4);
    assert_eq!(got, [100, 0, 1, 2]);
}
