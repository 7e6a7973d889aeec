//! Operators on heap memory: packets in, packets out.

mod common;

use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{NOW, arp_frame, cable, collect, drops, inject, number_of, settle, tcp_frame, traffic};
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use e2d2::counters::Counters;
use e2d2::fate::{DropReason, GraphCounters, Traffic};
use e2d2::handover;
use e2d2::operators::{Burst, Frame, Node, Outbox, Round, Source, Task, dequeue, from_cores, merge, receive};
use e2d2::port::PortId;
use e2d2::queue::Queue;
use e2d2::time::Instant;
use e2d2::wire::frame::Packet;

/// Swaps the Ethernet addresses and sends the frame back where it came from.
fn reflect(mut frame: Frame<HeapBuffer>) -> Frame<HeapBuffer> {
    if let Some((destination, rest)) = frame.buffer.data_mut().split_first_chunk_mut::<6>()
        && let Some(source) = rest.first_chunk_mut::<6>()
    {
        core::mem::swap(destination, source);
    }
    frame
}

#[test]
fn reflector_on_two_ports_returns_each_frame_to_its_port() {
    let mut pool = HeapPool::new(64, 128);
    let (mut left, mut right) = (cable(0, 64), cable(1, 64));
    let (counters, reader) = GraphCounters::new();
    let mut task =
        merge([receive(&left.near), receive(&right.near)])
            .map(reflect)
            .send([left.near, right.near], 0, counters);

    inject(&mut left.far, &mut pool, &[tcp_frame(1), tcp_frame(2)]);
    inject(&mut right.far, &mut pool, &[tcp_frame(3)]);
    settle(&mut task);

    let numbers = |frames: Vec<Vec<u8>>| frames.iter().map(|frame| number_of(frame)).collect::<Vec<_>>();
    let at_left = collect(&mut left.far);
    assert_eq!(at_left[0][..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    assert_eq!(numbers(at_left), [1, 2]);
    assert_eq!(numbers(collect(&mut right.far)), [3]);
    assert_eq!(
        (traffic(&reader, Traffic::Received), traffic(&reader, Traffic::Sent)),
        (3, 3)
    );
    assert_eq!(drops(&reader), []);
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn refused_packets_wait_in_order_and_leave_when_there_is_room() {
    let mut pool = HeapPool::new(256, 128);
    let (mut wire, mut input) = (cable(0, 8), cable(1, 256));
    let (counters, reader) = GraphCounters::new();
    let mut task = receive(&input.near)
        .map(|frame| Frame {
            port: PortId(0),
            ..frame
        })
        .send([wire.near], 100, counters);

    // 8 in the cable, 32 staged, 100 in the backlog: the last 10 of 150 are lost.
    inject(&mut input.far, &mut pool, &(0..150).map(tcp_frame).collect::<Vec<_>>());
    settle(&mut task);
    assert_eq!(drops(&reader), [(DropReason::TxRefused, 10)]);
    assert_eq!(reader.held(), 132);
    let mut numbers = Vec::new();
    for _ in 0..20 {
        numbers.extend(collect(&mut wire.far).iter().map(|frame| number_of(frame)));
        settle(&mut task);
    }
    assert_eq!(numbers, (0..140).collect::<Vec<_>>());
    assert_eq!(reader.held(), 0);
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn full_port_does_not_hold_up_another() {
    let mut pool = HeapPool::new(64, 128);
    let (full, mut free, mut input) = (cable(0, 0), cable(1, 64), cable(2, 64));
    let (counters, _reader) = GraphCounters::new();
    let mut task = receive(&input.near)
        .map(|frame| Frame {
            port: PortId((number_of(frame.buffer.data()) % 2) as u8),
            ..frame
        })
        .send([full.near, free.near], 64, counters);
    inject(&mut input.far, &mut pool, &(0..40).map(tcp_frame).collect::<Vec<_>>());
    settle(&mut task);
    assert_eq!(collect(&mut free.far).len(), 20);
}

#[test]
fn packets_without_a_way_out_are_counted() {
    let mut pool = HeapPool::new(8, 128);
    let mut input = cable(7, 8);
    let (counters, reader) = GraphCounters::new();
    let other = cable(0, 8);
    let mut task = receive(&input.near)
        .filter(|frame| frame.buffer.len() == 54)
        .send([other.near], 8, counters);
    inject(&mut input.far, &mut pool, &[tcp_frame(1), arp_frame()]);
    settle(&mut task);
    assert_eq!(
        drops(&reader),
        [(DropReason::Filtered, 1), (DropReason::UnknownPort, 1)]
    );
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn partly_pulled_burst_is_given_before_what_the_port_gives_next() {
    let mut pool = HeapPool::new(64, 128);
    let mut input = cable(0, 64);
    let (counters, reader) = GraphCounters::new();
    let mut round = Round::new(NOW, &counters);
    let mut source = receive(&input.near);
    inject(&mut input.far, &mut pool, &(0..40).map(tcp_frame).collect::<Vec<_>>());
    let mut numbers = Vec::new();
    for expected in [10, 10, 10, 10, 0] {
        let pulled = source.pull(&mut round, 10, |_, frame| numbers.push(number_of(frame.buffer.data())));
        assert_eq!(pulled, expected);
    }
    assert_eq!(numbers, (0..40).collect::<Vec<_>>());
    assert_eq!(traffic(&reader, Traffic::Received), 40);
}

#[test]
fn queue_between_two_tasks_drops_and_counts_what_it_refuses() {
    let mut pool = HeapPool::new(64, 128);
    let (mut input, mut output) = (cable(0, 64), cable(0, 64));
    let (counters, reader) = GraphCounters::new();
    let queue = Queue::shared(20);
    let mut filling = receive(&input.near).enqueue(Rc::clone(&queue), Rc::clone(&counters));
    let mut emptying = dequeue(&queue).send([output.near], 0, counters);
    inject(&mut input.far, &mut pool, &(0..30).map(tcp_frame).collect::<Vec<_>>());
    settle(&mut filling);
    settle(&mut emptying);
    assert_eq!(collect(&mut output.far).len(), 20);
    assert_eq!(drops(&reader), [(DropReason::QueueFull, 10)]);
    assert_eq!(
        (traffic(&reader, Traffic::ToQueue), traffic(&reader, Traffic::FromQueue)),
        (20, 20)
    );
    assert_eq!(reader.held(), 0);
    assert_eq!(pool.available(), pool.capacity());
}

/// Waits for the other core, but not for ever.
fn meet(arrived: &AtomicUsize, expected: usize) {
    arrived.fetch_add(1, Ordering::AcqRel);
    let give_up = std::time::Instant::now() + Duration::from_secs(20);
    while arrived.load(Ordering::Acquire) < expected {
        assert!(std::time::Instant::now() < give_up, "the other core did not come");
        std::thread::yield_now();
    }
}

/// Two cores on two threads: each owns the packets with its parity and hands the others over.
#[test]
fn packets_reach_the_core_that_owns_them() {
    fn core(link: handover::Links<Packet<HeapBuffer>>, arrived: &AtomicUsize) -> (Vec<u32>, Counters<DropReason>) {
        let mut pool = HeapPool::new(64, 128);
        let (mut input, mut output) = (cable(0, 64), cable(0, 64));
        let (counters, reader) = GraphCounters::new();
        let owner = |packet: &Packet<HeapBuffer>| (number_of(packet.buffer.data()) % 2) as usize;
        let own = receive(&input.near).parse().hand_over(link.outgoing, owner);
        let mut task = merge((own, from_cores(link.incoming))).send([output.near], 0, counters);
        inject(&mut input.far, &mut pool, &(0..40).map(tcp_frame).collect::<Vec<_>>());
        settle(&mut task);
        meet(arrived, 2);
        settle(&mut task);
        let mut numbers: Vec<_> = collect(&mut output.far).iter().map(|frame| number_of(frame)).collect();
        numbers.sort_unstable();
        // Buffers of this core may still be in use by the other.
        meet(arrived, 4);
        assert_eq!(pool.available(), pool.capacity());
        (numbers, reader.drops.snapshot())
    }
    let arrived = AtomicUsize::new(0);
    let results: Vec<_> = std::thread::scope(|scope| {
        let cores: Vec<_> = handover::mesh(2, 16)
            .into_iter()
            .map(|link| scope.spawn(|| core(link, &arrived)))
            .collect();
        cores.into_iter().map(|core| core.join().expect("core")).collect()
    });
    for (core, (numbers, dropped)) in (0..).zip(results) {
        assert!(
            numbers.iter().all(|number| number % 2 == core),
            "core {core} got {numbers:?}"
        );
        // Of the 20 that belong to the other core, what its ring had no room for was dropped here and counted.
        let refused = dropped[DropReason::HandoverRefused];
        assert!(refused <= 4 && dropped.total() == refused, "core {core}: {dropped:?}");
        assert!((36..=40).contains(&numbers.len()), "core {core} got {}", numbers.len());
    }
}

/// Leaves every second packet in the batch.
struct Careless;

impl Node for Careless {
    type Input = Frame<HeapBuffer>;
    type Output = Frame<HeapBuffer>;

    fn process(&mut self, round: &mut Round<'_>, batch: &mut Burst<Self::Input>, out: &mut Outbox<Self::Output>) {
        let half = batch.len() / 2;
        for frame in batch.drain(..half) {
            out.emit(round, frame);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        Some(Instant::from_millis(77))
    }
}

#[test]
fn what_a_node_leaves_is_dropped_and_counted() {
    let mut pool = HeapPool::new(64, 128);
    let (mut input, mut output) = (cable(0, 64), cable(0, 64));
    let (counters, reader) = GraphCounters::new();
    let mut task = receive(&input.near)
        .process(Careless, 64)
        .send([output.near], 0, counters);
    assert_eq!(task.next_deadline(), Some(Instant::from_millis(77)));
    inject(&mut input.far, &mut pool, &(0..10).map(tcp_frame).collect::<Vec<_>>());
    settle(&mut task);
    assert_eq!(collect(&mut output.far).len(), 5);
    assert_eq!(drops(&reader), [(DropReason::LeftByNode, 5)]);
    assert_eq!(reader.held(), 0);
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn discard_ends_a_branch() {
    let mut pool = HeapPool::new(64, 128);
    let mut input = cable(0, 64);
    let (counters, reader) = GraphCounters::new();
    let mut task = receive(&input.near).discard(DropReason::Unwanted, counters);
    inject(&mut input.far, &mut pool, &vec![arp_frame(); 40]);
    settle(&mut task);
    assert_eq!(drops(&reader), [(DropReason::Unwanted, 40)]);
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn dropping_a_graph_frees_what_it_holds() {
    let mut pool = HeapPool::new(64, 128);
    let (full, mut input) = (cable(0, 0), cable(0, 64));
    let (counters, reader) = GraphCounters::new();
    let mut task = receive(&input.near)
        .process(Careless, 64)
        .send([full.near], 64, counters);
    inject(&mut input.far, &mut pool, &vec![tcp_frame(0); 60]);
    settle(&mut task);
    assert_eq!(reader.held(), 30);
    assert_eq!(pool.available(), 34);
    drop(task);
    assert_eq!(pool.available(), pool.capacity());
}
